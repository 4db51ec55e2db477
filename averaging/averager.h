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
 * An offer is one round, along the next axis of the grid (grid.h). Peers that offer with the same
 * schema can meet.
 *
 * Threads: everything on the loop thread. Only jobs look into the blobs. The callback of a round
 * never runs inside hth_averager_offer.
 *
 * An averager that is all zero is that of a trainer that is alone: every offer is refused, and
 * training goes on.
 */
#ifndef HTH_AVERAGING_AVERAGER_H
#define HTH_AVERAGING_AVERAGER_H

#include "core/base.h"
#include "core/blob.h"
#include "core/ident.h"
#include "core/limits.h"

struct hth_avg_span;

/* Every way in which a group does not come about, or a round ends without an average, for people
 * and other peers: what a peer answers to a JOIN (match.h), and from 32 on what a round ends with.
 * Numbers travel on the wire: append, never renumber. X(number, NAME, text) */
#define HTH_AVG_REASON_MAP(X)                                                                      \
    X(0, OK, "averaged")                                                                           \
    X(6, FULL, "the group is full")                                                                \
    X(12, DRAINING, "the peer is shutting down")                                                   \
    X(13, MALFORMED, "the message can't be read")                                                  \
    X(14, RANGE, "a number of the message is outside its range")                                   \
    X(18, OTHER_VERSION, "the peer has a program that averages otherwise: update")                 \
    X(32, NOBODY, "no other trainer takes part in this run")                                       \
    X(33, ALONE, "nobody else of the line came in time")                                           \
    X(34, TOO_FEW, "too few came in time")                                                         \
    X(35, NO_HOST, "the host was lost, or silent")                                                 \
    X(36, LEFT_OUT, "the group was begun without this peer")                                       \
    X(38, NO_PARTS, "none of the parts could be averaged")                                         \
    X(43, FAILED, "a local error; see the error's code")

enum hth_avg_reason {
#define HTH_AVG_REASON_ENUM(num, name, text) HTH_AVG_##name = num,
    HTH_AVG_REASON_MAP(HTH_AVG_REASON_ENUM)
#undef HTH_AVG_REASON_ENUM
};

/* "FULL", for logs and JSON; "UNKNOWN" for a newer peer's number. Never NULL. */
const char *hth_avg_reason_name(enum hth_avg_reason reason);
/* The sentence of the table. Never NULL. */
const char *hth_avg_reason_text(enum hth_avg_reason reason);

/* The values of one trainer. `values` is borrowed; an averager that accepts refs it. */
struct hth_avg_offer {
    struct hth_blob *values; /* `count` floats, frozen; NULL of a helper */
    size_t count;
    double weight;   /* samples behind them; 0 < weight <= HTH_AVG_WEIGHT_MAX; 0 of a helper */
    uint64_t schema; /* of the tensors, as the roster tells it: only equals are averaged */
    /* Formats on the wire (codec.h); borrowed until the round has ended; NULL: fp32. */
    const struct hth_avg_span *spans;
    uint32_t span_count;
};

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
    double weight_fraction; /* of the group's that was averaged, mean over elements */
    int64_t wait_us;        /* looking for group mates, until the group began */
    int64_t reduce_us;
    uint64_t bytes_out, bytes_in; /* of values, as encoded */
};

/* How an offer ended. Borrowed by the callback: ref the blobs to keep them. */
struct hth_avg_result {
    enum hth_err err;           /* HTH_OK: there is an average; else why not, for programs */
    enum hth_avg_reason reason; /* the same for people; HTH_AVG_OK in the first case */
    struct hth_blob *values;    /* as offered */
    struct hth_blob *average;   /* `count` floats; NULL unless HTH_OK */
    struct hth_avg_round_info round;
};

typedef void hth_avg_round_fn(void *arg, const struct hth_avg_result *result);

struct hth_averager_stats {
    uint64_t offers;
    uint64_t rounds, failed; /* single rounds, by outcome */
    uint64_t drops, bytes_out, bytes_in;
    uint32_t under_way;                    /* offers */
    uint64_t reasons[HTH_AVG_REASONS_MAX]; /* how often a round ended so */
    struct hth_avg_round_info last;
};

struct hth_averager_ops {
    /* Joins the run; rounds report to `fn`. */
    enum hth_err (*start)(void *self, hth_avg_round_fn *fn, void *arg);
    /* HTH_OK when an offer would be taken now; asked first, so that no snapshot is made in vain. */
    enum hth_err (*ready)(const void *self);
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
    return a->ops != NULL ? a->ops->start(a->self, fn, arg) : HTH_OK;
}
/* Errors: E_NOT_FOUND (nobody to average with), E_BUSY (an offer is under way). */
static inline HTH_MUST enum hth_err hth_averager_ready(const struct hth_averager *a)
{
    return a->ops != NULL ? a->ops->ready(a->self) : HTH_E_NOT_FOUND;
}
/* Errors: those of hth_averager_ready, E_RANGE (weight or count out of range, no values). */
static inline HTH_MUST enum hth_err hth_averager_offer(struct hth_averager *a,
                                                       const struct hth_avg_offer *offer)
{
    return a->ops != NULL ? a->ops->offer(a->self, offer) : HTH_E_NOT_FOUND;
}
static inline void hth_averager_stop(struct hth_averager *a)
{
    if (a->ops != NULL)
        a->ops->stop(a->self);
}
static inline void hth_averager_stats(const struct hth_averager *a, struct hth_averager_stats *out)
{
    *out = (struct hth_averager_stats){.rounds = 0};
    if (a->ops != NULL)
        a->ops->stats(a->self, out);
}
static inline void hth_averager_free(struct hth_averager *a)
{
    if (a->ops != NULL)
        a->ops->free(a->self);
    a->ops = NULL;
}

#endif
