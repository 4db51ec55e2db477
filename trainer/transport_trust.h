/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_trust.h (internal): what a trainer makes of its hosts' answers.
 *
 * A host is a stranger, and what one copy of an expert answers may be wrong while the host's other
 * experts are as they should be. So each *copy*, an expert at a host, has a breaker of its own in
 * each direction (gating/breaker.h, same back-off): numbers that were refused, and an expert that
 * is not there, open it at once; two refusals for another reason, one after the other, do too, BUSY
 * and E_NORM of a gradient among them, which say nothing against a host but that others should be
 * asked meanwhile. A copy
 * that is open is asked only where its expert has no other. A host most of whose parts were bad is
 * moreover judged as a host, by the caller.
 *
 * The limit for gains (experts/client.h) comes from what was usual lately, for each layer and
 * direction: HTH_EXPERT_GAIN_FACTOR times the lower median of the quartiles of the last batches,
 * and never of less than 1. Until GAINS_MIN of them are known each batch goes by itself, but by no
 * more than HTH_EXPERT_GAIN_FIRST_MAX: the first who answers is a stranger, too. What a batch says
 * is counted as twice the median at most (or as that first bound), so that who has a layer to
 * itself can't make a large number usual but slowly, batch after batch that was refused.
 *
 * Loop thread. No I/O; time is passed in.
 */
#ifndef HTH_TRAINER_TRANSPORT_TRUST_H
#define HTH_TRAINER_TRANSPORT_TRUST_H

#include "core/base.h"
#include "core/ident.h"
#include "core/rng.h"

struct hth_trust;

/* rng is copied. Errors: none but those of the breaker. */
enum hth_err hth_trust_new(const struct hth_rng *rng, struct hth_trust **out) HTH_MUST;
void hth_trust_free(struct hth_trust *trust);

/* Whether this copy could be asked now; `closed`: and is in no trouble at all. Changes nothing. */
bool hth_trust_peek(const struct hth_trust *trust, const struct hth_peer_id *host, uint32_t layer,
                    uint32_t expert, bool closed, int64_t now_us);
/* It is asked now: after a yes of peek. */
void hth_trust_take(struct hth_trust *trust, const struct hth_peer_id *host, uint32_t layer,
                    uint32_t expert, int64_t now_us);
/* What came of a part. */
void hth_trust_report(struct hth_trust *trust, const struct hth_peer_id *host, uint32_t layer,
                      uint32_t expert, bool backward, enum hth_err err, int64_t now_us);

/* What was usual in one batch; 0 is not counted. */
void hth_trust_learn(struct hth_trust *trust, uint32_t layer, bool backward, double gain);
/* For the next call; 0: not known yet. */
double hth_trust_gain_max(const struct hth_trust *trust, uint32_t layer, bool backward);

/* Where a host stands among others that cost alike: differs from peer to peer. */
uint64_t hth_trust_spread(const struct hth_peer_id *self, const struct hth_peer_id *host);

#endif
