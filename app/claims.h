/* SPDX-License-Identifier: Apache-2.0 */
/*
 * claims.h: asks the hosts of a directory to confirm the experts that their records claim.
 *
 * Anyone can sign a record that says "I serve all of ffn0". One small record every 20 s would keep
 * volunteers out of these places for ever. So before a claim blocks a place, its host is asked how
 * many experts it has (INFO, experts/client.h), over a connection that proves its key. A host that
 * does not answer, or has fewer experts than it claims, is marked dead in the directory
 * (hth_directory_mark_dead). A wrong verdict costs one more replica of an expert.
 *
 * At most ASKED_MAX requests are open at once, and after ALL_US every host without an answer is
 * disbelieved: thousands of invented owners cost that time and no more. A host that answers and
 * lies is not caught here: trainers find it by its results (trainer/transport_trust.h).
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

/* Calls done once, not inside this call; in that turn the directory shows only hosts that
 * confirmed their claims. env, rpc and directory must outlive *out. Errors: those of
 * hth_expert_client_new. */
enum hth_err hth_claims_ask(struct hth_env *env, struct hth_rpc *rpc,
                            struct hth_directory *directory, hth_fn *done, void *arg,
                            struct hth_claims **out) HTH_MUST;
/* Cancels a pending done. NULL is fine. */
void hth_claims_free(struct hth_claims *claims);

#endif
