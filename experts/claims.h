/* SPDX-License-Identifier: Apache-2.0 */
/*
 * claims.h (internal to places.c): asks the hosts of a directory to confirm the experts that their
 * records claim.
 *
 * Anyone can sign a record that says "I serve all of ffn0". One small record every 20 s would keep
 * volunteers out of these places for ever. So before a claim decides anything, its host is asked
 * for the list of its experts (INFO, experts/client.h), over a connection that proves its key. A
 * host that does not answer is marked dead in the directory (hth_directory_mark_dead), and so is
 * one with more than WRONG_MAX wrong claims; fewer wrong claims are refuted one by one. A wrong
 * verdict costs one more replica of an expert.
 *
 * At most ASKED_MAX requests are open at once, and after ALL_US every host without an answer is
 * disbelieved: thousands of invented owners cost that time and no more. A host that answers and
 * lies is not caught here: trainers find it by its results (trainer/transport_trust.h).
 *
 * Loop thread.
 */
#ifndef HTH_EXPERTS_CLAIMS_H
#define HTH_EXPERTS_CLAIMS_H

#include "core/base.h"
#include "core/env.h"

struct hth_claims;
struct hth_directory;
struct hth_rpc;

/* Whether that host is to be asked. */
typedef bool hth_claims_asks_fn(void *arg, const struct hth_peer_id *id);

/* Asks the hosts chosen by `asks`, those that appear meanwhile too. Calls done once, not inside
 * this call; in that turn the directory shows of these hosts only confirmed claims. env, rpc and
 * directory must outlive *out. Errors: those of hth_expert_client_new. */
enum hth_err hth_claims_ask(struct hth_env *env, struct hth_rpc *rpc,
                            struct hth_directory *directory, hth_claims_asks_fn *asks, hth_fn *done,
                            void *arg, struct hth_claims **out) HTH_MUST;
/* By the host's own word. */
struct hth_claim_info {
    uint64_t steps;    /* of the expert's optimiser */
    int64_t hosted_us; /* since the expert was ready there */
    bool returned;     /* it had the expert before it started */
};
/* In done: an expert that the host confirmed; false when it did not. */
bool hth_claims_find(const struct hth_claims *claims, const struct hth_peer_id *host,
                     uint32_t layer, uint32_t index, struct hth_claim_info *out);
/* Cancels a pending done. NULL is fine. */
void hth_claims_free(struct hth_claims *claims);

#endif
