/* SPDX-License-Identifier: Apache-2.0 */
/*
 * averager.h: how a trainer's trunk stays one model with those of other trainers.
 *
 * The trainer knows only this table. Training never waits for a round: the trainer offers a frozen
 * snapshot of its flat trunk buffer and goes on; when the round has ended it is told, takes the
 * *difference* (average minus snapshot) and adds it to whatever its trunk has become meanwhile:
 *
 *     w(t + n) += average(snapshots) - snapshot(t)
 *
 * so that the local steps made during the round survive. Snapshots count by their weight, which is
 * the number of samples behind them since the last round.
 *
 * Threads: everything on the loop thread. Only jobs look into the blobs. The callback of a round
 * never runs inside hth_averager_offer.
 *
 * hth_averager_nobody is the averager of a trainer that is alone: every offer is refused with a
 * reason, and training goes on.
 */
#ifndef HTH_AVERAGING_AVERAGER_H
#define HTH_AVERAGING_AVERAGER_H

#include "core/base.h"
#include "core/blob.h"

struct hth_env;

/* What one trainer brings to a round. `values` is borrowed; an averager that accepts refs it. */
struct hth_avg_offer {
    struct hth_blob *values; /* `count` floats, frozen */
    size_t count;
    double weight;   /* samples since the last round; > 0 */
    uint64_t step;   /* trunk updates applied so far */
    uint64_t schema; /* hash of the tensors' names and shapes: only equals are averaged */
};

/* How a round ended. Borrowed by the callback: ref the blob to keep it. */
struct hth_avg_result {
    enum hth_err err;            /* HTH_OK, or why nothing was averaged */
    const char *reason;          /* the same for people; never NULL */
    struct hth_blob *difference; /* `count` floats; NULL unless HTH_OK */
    double weight_fraction;      /* share of the group's weight that was averaged, 0..1 */
    uint32_t members;            /* of the group, this peer included */
    int64_t took_us;
};

typedef void hth_avg_round_fn(void *arg, const struct hth_avg_result *result);

struct hth_averager_stats {
    uint64_t offers, refused, rounds, failed;
    uint32_t members; /* of the last group */
    double distance;  /* norm of the last difference, 0 before the first round */
};

struct hth_averager_ops {
    const char *name;
    /* Joins the run; rounds report to `fn`. */
    enum hth_err (*start)(void *self, hth_avg_round_fn *fn, void *arg);
    /* HTH_OK when an offer would be taken now; asked first, so that no snapshot is made in vain. */
    enum hth_err (*ready)(void *self, const char **reason);
    enum hth_err (*offer)(void *self, const struct hth_avg_offer *offer);
    /* Leaves the run: a round under way is given up and `fn` is not called any more. */
    void (*stop)(void *self);
    void (*stats)(const void *self, struct hth_averager_stats *out);
    void (*free)(void *self);
};

struct hth_averager {
    const struct hth_averager_ops *ops;
    void *self;
};

static inline HTH_MUST enum hth_err hth_averager_start(struct hth_averager *a, hth_avg_round_fn *fn,
                                                       void *arg)
{
    return a->ops->start(a->self, fn, arg);
}
/* Errors: E_NOT_FOUND (nobody to average with), E_BUSY (a round is under way). `reason` is set for
 * each and stays valid for the averager's life. */
static inline HTH_MUST enum hth_err hth_averager_ready(struct hth_averager *a, const char **reason)
{
    return a->ops->ready(a->self, reason);
}
/* Errors: those of hth_averager_ready, E_RANGE (weight not positive or no values). */
static inline HTH_MUST enum hth_err hth_averager_offer(struct hth_averager *a,
                                                       const struct hth_avg_offer *offer)
{
    return a->ops->offer(a->self, offer);
}
static inline void hth_averager_stop(struct hth_averager *a)
{
    a->ops->stop(a->self);
}
static inline void hth_averager_stats(const struct hth_averager *a, struct hth_averager_stats *out)
{
    a->ops->stats(a->self, out);
}
static inline void hth_averager_free(struct hth_averager *a)
{
    if (a->ops != NULL)
        a->ops->free(a->self);
    a->ops = NULL;
}

/* Never fails. Free with hth_averager_free. */
void hth_averager_nobody(struct hth_averager *out);

#endif
