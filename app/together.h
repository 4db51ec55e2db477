/* SPDX-License-Identifier: Apache-2.0 */
/*
 * together.h: what a trainer needs to share its trunk with others, and a helper to reduce for them:
 * the averager (averaging/peer.h) on one peer; and how averaging is shown.
 *
 * A trainer that others can't dial (peer.h: dials_only) takes part as a client, which reduces
 * nothing.
 *
 *   hth_together_open    before the trainer is made; says nothing to others yet
 *   hth_together_join    once the peer has joined the swarm
 *   hth_together_leave   a goodbye, before the peer stops
 *   hth_together_close   after the trainer was freed
 */
#ifndef HTH_APP_TOGETHER_H
#define HTH_APP_TOGETHER_H

#include "app/peer.h"
#include "averaging/peer.h"
#include "cli/runfile.h"
#include "trainer/trainer.h"

#include <jansson.h>

struct hth_helper;

struct hth_together {
    struct hth_peer *peer;
    struct hth_avg_peer avg;     /* closed: it trains alone */
    struct hth_trainer *trainer; /* set by the owner, for nudges; may be NULL ... */
    struct hth_helper *helper;   /* ... as may this */
};

/* `up_mbit`: what this line can send, 0 when it is not known. Errors: E_CONFIG, those of a
 * watch. */
enum hth_err hth_together_open(struct hth_together *t, struct hth_peer *peer,
                               const struct hth_run_averaging *run, enum hth_avg_mode mode,
                               double up_mbit) HTH_MUST;
/* Fills in what the trainer must know. */
void hth_together_share(struct hth_together *t, const struct hth_run_averaging *run,
                        struct hth_share_opts *out);
void hth_together_join(struct hth_together *t);
/* done comes once, also when nothing was open. */
void hth_together_leave(struct hth_together *t, hth_fn *done, void *arg);
void hth_together_close(struct hth_together *t);

/* Trainers seen, this one included; 1 when nothing is open. */
uint32_t hth_together_trainers(const struct hth_together *t);
/* Of all rounds, as the status page has them; all zero when there was none. */
void hth_together_rounds(const struct hth_together *t, struct hth_averager_stats *out);
/* A status page: all of a peer's numbers, and "averaging" among them, also when nothing is open.
 * `stats` is a trainer's; NULL: a helper. Heap string. */
char *hth_together_page(const struct hth_together *t, const struct hth_metrics *metrics,
                        const struct hth_train_stats *stats);

#endif
