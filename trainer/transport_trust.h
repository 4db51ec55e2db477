/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_trust.h (internal): judges the hosts of experts by their answers.
 *
 * Hosts are not trusted, and one replica of an expert may answer wrongly while the other experts of
 * its host are fine. So each replica has a breaker of its own in each direction (gating/breaker.h,
 * same back-off). Refused numbers and a missing expert open it at once; two refusals in a row for
 * another reason open it, too. Among these are BUSY and E_NORM of a gradient, which are no fault of
 * the host but a reason to ask others meanwhile. A replica with an open breaker is asked only if
 * its expert has no other. If most parts of a host were bad, the caller judges the host as well.
 *
 * The limit for gains (experts/client.h) is computed for each layer and direction from the last
 * batches: HTH_EXPERT_GAIN_FACTOR times the lower median of their quartiles, where a median below 1
 * counts as 1. Until GAINS_MIN batches are known, each batch is judged by its own quartile, up to
 * HTH_EXPERT_GAIN_FIRST_MAX, for the first host to answer is not trusted either. A batch counts as
 * at most twice the median (or as that first bound). So a host that has a layer to itself can raise
 * the usual gain only slowly, one refused batch after another.
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

/* Whether this replica may be asked; with `closed`, only if both its breakers are closed. Changes
 * nothing. */
bool hth_trust_peek(const struct hth_trust *trust, const struct hth_peer_id *host, uint32_t layer,
                    uint32_t expert, bool closed, int64_t now_us);
/* Takes the probe, if there is one, of a replica that will be asked. Only after peek returned
 * true. */
void hth_trust_take(struct hth_trust *trust, const struct hth_peer_id *host, uint32_t layer,
                    uint32_t expert, int64_t now_us);
/* Reports the verdict of one request part. */
void hth_trust_report(struct hth_trust *trust, const struct hth_peer_id *host, uint32_t layer,
                      uint32_t expert, bool backward, enum hth_err err, int64_t now_us);

/* Adds the usual gain of one batch; 0 is not counted. */
void hth_trust_learn(struct hth_trust *trust, uint32_t layer, bool backward, double gain);
/* The limit for the next call; 0: not known yet. */
double hth_trust_gain_max(const struct hth_trust *trust, uint32_t layer, bool backward);

/* Rank of a host among hosts of equal cost; differs from peer to peer. */
uint64_t hth_trust_spread(const struct hth_peer_id *self, const struct hth_peer_id *host);

#endif
