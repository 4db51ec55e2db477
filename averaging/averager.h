/* SPDX-License-Identifier: Apache-2.0 */
/*
 * averager.h: how a trainer's trunk stays one model with those of other trainers.
 *
 * The trainer knows only this table. Training never waits for a round: the trainer offers a frozen
 * snapshot of a flat buffer (parameters, or a gradient's sum) and goes on; when the round has ended
 * it is told the average. Of parameters it takes the *difference* to the snapshot and adds it to
 * whatever they have become meanwhile,
 *
 *     w(t + n) += average(snapshots) - snapshot(t)
 *
 * so that the local steps made during the round survive. Offers count by their weight, which is the
 * number of samples behind them.
 *
 * An offer goes through `rounds` successive axes of the grid (grid.h): one mixes a little and is
 * cheap, all of them (HTH_AVG_ALL_AXES) give the weighted mean of everybody on a full grid, because
 * the weights are carried along. Who offers with the same schema and the same sweep can meet.
 *
 * Threads: everything on the loop thread. Only jobs look into the blobs. The callback of a round
 * never runs inside hth_averager_offer.
 *
 * Who offers nothing, NULL with weight 0, *observes*: nobody waits for it or counts it, and it is
 * told what the others of that sweep end with. The result is as theirs but that `values` is NULL;
 * an average of which parts_kept > 0 has holes of zeros and is of no use. A newcomer may observe
 * before it has a state; early is well, as nobody waits: when no group has begun within the window
 * the offer ends ALONE and is made again. `rounds` is HTH_AVG_ALL_AXES, and the sweep has a number.
 *
 * hth_averager_nobody is the averager of a trainer that is alone: every offer is refused with a
 * reason, and training goes on.
 */
#ifndef HTH_AVERAGING_AVERAGER_H
#define HTH_AVERAGING_AVERAGER_H

#include "averaging/reason.h"
#include "core/base.h"
#include "core/blob.h"
#include "core/ident.h"
#include "core/limits.h"

struct hth_avg_span;

/* Of hth_avg_offer.rounds; and of .sweep: the next one, as the roster says. */
#define HTH_AVG_ALL_AXES   0
#define HTH_AVG_SWEEP_AUTO UINT64_MAX

/* What one trainer brings. `values` is borrowed; an averager that accepts refs it. */
struct hth_avg_offer {
    struct hth_blob *values; /* `count` floats, frozen; NULL of a helper, and of who observes */
    size_t count;
    double weight;    /* samples behind them; 0 < weight <= HTH_AVG_WEIGHT_MAX; 0 of those two */
    uint64_t step;    /* trunk updates applied so far */
    uint64_t schema;  /* hash of the tensors' names and shapes: only equals are averaged */
    uint64_t sweep;   /* who gives a number meets those with the same one (the global step) */
    uint32_t kind;    /* each has lines of its own: parameters never look where gradients do */
    uint32_t kind_on; /* in lines of that kind, where most of those heard in this sweep are there:
                       * they do the sweep once more; 0: never */
    uint32_t attempt; /* with other values in this sweep, before: whose origin is another one */
    uint32_t rounds;  /* axes to go through, or HTH_AVG_ALL_AXES */
    const struct hth_avg_span *spans; /* formats on the wire (codec.h); copied; NULL: fp32 */
    uint32_t span_count;
    bool same; /* all shall end with the same bits (reduce.h): a gradient, not parameters */
    int64_t timeout_us; /* for all of it; 0: the averager's choice */
    uint64_t ticket;    /* the caller's own, given back in the result */
};

/* How an offer ended. Borrowed by the callback: ref the blobs to keep them. */
struct hth_avg_result {
    uint64_t ticket;
    enum hth_err err;           /* HTH_OK: there is an average; else why not, for programs */
    enum hth_avg_reason reason; /* the same for people; HTH_AVG_OK in the first case */
    struct hth_blob *values;    /* as offered */
    struct hth_blob *average;   /* `count` floats; NULL unless HTH_OK */
    double weight_fraction;     /* of the groups' weight that was averaged, mean over elements */
    double weight;              /* samples behind the average, this peer's included */
    /* Says whose values are in the average: alike on two members of a sweep where their averages
     * are alike, up to the order of sums. Another one where parts kept local values. */
    uint64_t origin;
    uint32_t parts_kept;    /* of this peer's, in all rounds: whose reducer was lost */
    double weight_met;      /* that the last group's members brought; alike on all of them */
    uint64_t step_max;      /* the newest among those that were met */
    uint32_t members;       /* of the last group, this peer included */
    uint32_t heads;         /* trainers whose values are in all of it, this one included if so */
    uint32_t rounds;        /* axes that gave an average */
    uint32_t rounds_failed; /* axes on which nobody was met, or nothing averaged */
    uint32_t drops;         /* members that were dropped on the way */
    int64_t wait_us;        /* looking for group mates, until the group began */
    int64_t match_us;       /* of that: after the last mate had come */
    int64_t reduce_us;
    int64_t took_us;
    uint64_t bytes_out, bytes_in; /* of values, as encoded */
    double change;                /* norm of average - values */
    double codec_error;           /* relative, of this peer's own encoded values; 0 for fp32 */
};

typedef void hth_avg_round_fn(void *arg, const struct hth_avg_result *result);

/* One round as it happened: what `hearth status` shows. */
struct hth_avg_round_info {
    uint64_t number; /* of the round; 0 members: none yet */
    uint32_t axis;
    uint32_t members; /* as the group began */
    uint32_t drops;   /* of them, dropped on the way */
    enum hth_avg_reason reason;
    enum hth_err err;
    struct hth_hash group;
    struct hth_peer_id member[HTH_AVG_STATUS_MEMBERS]; /* the first of them, in the group's order */
    double weight_fraction;
    int64_t wait_us, match_us, reduce_us;
    uint64_t bytes_out, bytes_in;
    double change;
    double codec_error; /* relative, of this peer's own encoded values; 0 for fp32 */
};

struct hth_averager_stats {
    uint64_t offers, refused;
    uint64_t rounds, failed; /* single rounds, by outcome */
    uint64_t alone;          /* of the failed: nobody was met */
    uint64_t drops, bytes_out, bytes_in;
    uint64_t proxied;     /* sweeps in the place of somebody who was missing */
    uint32_t under_way;   /* offers */
    uint32_t population;  /* trainers known to take part, this one included */
    uint32_t axes, cells; /* of the grid; 0 before it is known */
    double distance;      /* norm of the last change: how far the group mates had drifted */
    uint64_t reasons[HTH_AVG_REASONS_MAX]; /* how often a round ended, or a JOIN was refused, so */
    struct hth_avg_round_info last;
};

struct hth_averager_ops {
    const char *name;
    /* Joins the run; rounds report to `fn`. */
    enum hth_err (*start)(void *self, hth_avg_round_fn *fn, void *arg);
    /* HTH_OK when an offer would be taken now; asked first, so that no snapshot is made in vain. */
    enum hth_err (*ready)(void *self, enum hth_avg_reason *reason);
    enum hth_err (*offer)(void *self, const struct hth_avg_offer *offer);
    enum hth_err (*prepare)(void *self, const struct hth_avg_offer *offer, int64_t ready_in_us);
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
/* Errors: E_NOT_FOUND (nobody to average with), E_BUSY (enough is under way). */
static inline HTH_MUST enum hth_err hth_averager_ready(struct hth_averager *a,
                                                       enum hth_avg_reason *reason)
{
    return a->ops->ready(a->self, reason);
}
/* Errors: those of hth_averager_ready, E_RANGE (weight, count or rounds out of range, no
 * values). */
static inline HTH_MUST enum hth_err hth_averager_offer(struct hth_averager *a,
                                                       const struct hth_avg_offer *offer)
{
    return a->ops->offer(a->self, offer);
}
/* Looks for a group ahead of an offer that will come in about ready_in_us with the same schema and
 * sweep; `values` and `weight` are not looked at. What is prepared and never offered ends by itself
 * without a result. Errors: those of hth_averager_offer, E_DUPLICATE (prepared or offered). */
static inline HTH_MUST enum hth_err
hth_averager_prepare(struct hth_averager *a, const struct hth_avg_offer *offer, int64_t ready_in_us)
{
    return a->ops->prepare(a->self, offer, ready_in_us);
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
