/* SPDX-License-Identifier: Apache-2.0 */
/*
 * claims.h: asks the hosts of a directory whether they are there, for who chooses places by it.
 *
 * Anyone can sign a record that says "I serve all of ffn0". To keep volunteers from these places
 * for ever would cost a stranger one small record every 20 s. So before a claim stands in
 * somebody's way its host is asked how many experts it has (INFO, experts/client.h) over a
 * connection that proves its key, and who does not answer, or has fewer than it claims, is hidden
 * in the directory as one that failed (hth_directory_mark_dead). What an error costs is a second
 * copy of an expert.
 *
 * At most ASKED_MAX are asked at once, and all of it ends after ALL_US: whom nothing was heard of
 * by then is not believed, so that thousands of made-up owners only cost that time. A host that
 * answers and lies is none for this: trainers find it by its answers (trainer/transport_trust.h).
 *
 * Loop thread.
 */
#ifndef HTH_APP_CLAIMS_H
#define HTH_APP_CLAIMS_H

#include "core/base.h"
#include "core/env.h"

struct hth_claims;
struct hth_directory;
struct hth_rpc;

/* done comes once, not inside this call; whom the directory still shows in that same turn was
 * believed. All must outlive it. Errors: those of hth_expert_client_new. */
enum hth_err hth_claims_ask(struct hth_env *env, struct hth_rpc *rpc,
                            struct hth_directory *directory, hth_fn *done, void *arg,
                            struct hth_claims **out) HTH_MUST;
/* Before done: it does not come. NULL is fine. */
void hth_claims_free(struct hth_claims *claims);

#endif
