/* SPDX-License-Identifier: Apache-2.0 */
/*
 * together.h: puts an averager (averaging/peer.h) on a peer, with which a trainer averages its
 * trunk and a helper reduces for trainers; and makes their status page.
 *
 * A trainer that cannot be dialled (peer.h: dials_only) averages in client mode and reduces
 * nothing.
 *
 *   hth_together_open    before the trainer is made; publishes nothing
 *   hth_together_join    once the peer has joined the swarm; publishes its record
 *   hth_together_leave   publishes a goodbye, before the peer stops
 *   hth_together_close   after the trainer is freed
 *
 * Loop thread.
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
    struct hth_avg_peer avg;     /* closed: the trainer trains alone */
    struct hth_trainer *trainer; /* set by the owner, nudged when the roster changes; or NULL */
    struct hth_helper *helper;   /* the same */
    double bandwidth;            /* bit/s that this link sends; 0: not known */
};

/* `up_mbit`: upload bandwidth of this link; 0: not known. Errors: E_CONFIG, those of a watch. */
enum hth_err hth_together_open(struct hth_together *t, struct hth_peer *peer,
                               const struct hth_run_averaging *run, enum hth_avg_mode mode,
                               double up_mbit) HTH_MUST;
/* Fills in the trainer's averaging options from the run file and the open averager. */
void hth_together_share(struct hth_together *t, const struct hth_run_averaging *run,
                        struct hth_share_opts *out);
void hth_together_join(struct hth_together *t);
/* Calls done once; inside this call if nothing is open. */
void hth_together_leave(struct hth_together *t, hth_fn *done, void *arg);
void hth_together_close(struct hth_together *t);

/* Trainers seen, this one included; 1 when nothing is open. */
uint32_t hth_together_trainers(const struct hth_together *t);
/* The status page: all of a peer's metrics, and an object "averaging", also if nothing is open.
 * `stats` is the trainer's; NULL for a helper. Heap string. */
char *hth_together_page(const struct hth_together *t, const struct hth_metrics *metrics,
                        const struct hth_train_stats *stats);

#endif
