/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce.h: the weighted mean of a group's vectors, by a butterfly that outlives its members.
 *
 * A *round* is one group of members that all know the same list. The vector is cut into shares, one
 * per member that reduces, by bandwidth (shares.h), and shares into parts: all members cut alike,
 * from the list alone (docs/protocol.md, 3.2). Each member sends each part to its reducer, several
 * at a time; the reducer adds what has come in the order of members and answers:
 *
 *      sender 0 --- part p --->.                           .---> mean or difference
 *      sender 1 --- part p --->  reducer r: sum_i w_i x_i  ----> ...
 *      itself   -------------->'          / sum_i w_i      '---> its own result
 *
 * fp32 parts are answered with the mean itself, one blob for all, so that all members hold the same
 * bits. Narrower formats are answered with mean - (what that member sent), in its format, which the
 * member adds to its own floats: the error of the encoding is relative to the difference, and each
 * keeps a rounding of its own. That suits parameters. Of a gradient all must take the same step:
 * in a round that says `same` the reducer encodes the mean once, in its own formats, and takes up
 * what all make of that; the error is relative to the mean, and all members hold the same bits.
 *
 * Roles. A member with bandwidth > 0 reduces; one with bandwidth 0 (a client, that others can't
 * dial) only sends, unless all are clients. A member with weight 0 only reduces; with bandwidth 0,
 * too, it sends parts without values, and is told the mean.
 *
 * What goes wrong costs its own share of the result, never the round:
 *   a sender is lost, silent, slow, or never begins   left out of the parts it has not sent, and
 *                                                     answered all the same
 *   a part holds NaN or infinity                      left out of that part; answered with the mean
 *   a reducer is lost or silent                       its parts keep the local values
 *   an answer holds NaN or infinity, or is further    that part does, and its reducer is given up
 *   from the own values than `far` allows
 *   everybody else is gone, n = 1                     the own values come back, fraction < 1
 *   a sender lies with finite numbers                 drawn in with `clip`, from three on
 * reduce_watch.c says who is lost, silent or slow. Reducers give up on whoever is missing at 0.8 of
 * the round's time, so that the answers still come within it. A round always ends by its timeout.
 *
 * Parts of a round that has not begun here are held for silence_us, bounded; those of one that has
 * ended are refused, as are repeats.
 *
 * Threads: the loop thread; arithmetic in jobs. No callback runs inside a call of its cause.
 * Ghost payloads work: only jobs look into blobs.
 */
#ifndef HTH_AVERAGING_REDUCE_H
#define HTH_AVERAGING_REDUCE_H

#include "averaging/codec.h"
#include "core/budget.h"
#include "core/env.h"
#include "rpc/rpc.h"

struct hth_reducer;
struct hth_reduce_round;

/* ---- the node's reducer -------------------------------------------------------------------- */

struct hth_reducer_opts {
    int64_t silence_us;  /* that means dead, and two round trips more */
    int64_t patience_us; /* without a part or an answer from a peer that lives */
    double clip;         /* 0, or at least 1: who is further from the median of three or more
                          * than that many times the median distance, for its weight, counts
                          * for less in the parts reduced here */
};
#define HTH_AVG_CLIP 2.0 /* the `clip` of a run that does not say another */
#define HTH_REDUCER_OPTS_INIT                                                                      \
    {                                                                                              \
        .silence_us = 700 * HTH_US_PER_MS, .patience_us = 5 * HTH_US_PER_S                         \
    }

/* Serves HTH_REDUCE_METHOD on the endpoint, which must outlive it. opts may be NULL.
 * Errors: E_CONFIG (an option makes no sense). */
enum hth_err hth_reducer_new(struct hth_env *env, struct hth_rpc *rpc,
                             const struct hth_reducer_opts *opts,
                             struct hth_reducer **out) HTH_MUST;
/* Ends all rounds without callbacks. Not from a callback. NULL is fine. */
void hth_reducer_free(struct hth_reducer *reducer);
/* A connection was lost: call it from the endpoint's on_peer_lost. Without it the loss is found
 * through calls and silence. */
void hth_reducer_peer_lost(struct hth_reducer *reducer, const struct hth_peer_id *peer);

/* ---- a round ------------------------------------------------------------------------------- */

struct hth_reduce_member {
    struct hth_peer_id id;
    struct hth_addr addr; /* family 0: only over a connection that exists (clients) */
    double bandwidth;     /* bit/s, as of shares.h; 0: reduces nothing */
    double weight;        /* at most HTH_AVG_WEIGHT_MAX; 0: its values count for nothing */
    bool stranger; /* has done nothing yet: nobody is patient with it before its values begin */
};

/* Why a member was not fully part of a round (reduce_watch.c has the sentences). */
enum hth_reduce_drop {
    HTH_REDUCE_DROP_NONE,
    HTH_REDUCE_DROP_LOST,
    HTH_REDUCE_DROP_SILENT,
    HTH_REDUCE_DROP_SLOW,
    HTH_REDUCE_DROP_REFUSED,
    HTH_REDUCE_DROP_NOT_FINITE,
    HTH_REDUCE_DROP_FAR,
};

/* The fate of one member, as seen from here. */
struct hth_reduce_fate {
    enum hth_reduce_drop as_sender, as_reducer;
    uint32_t parts_missing; /* of those averaged, without it: the same for all who kept none */
};

/* Borrowed by the callback: ref the blob to keep it. */
struct hth_reduce_result {
    enum hth_err err;         /* HTH_OK, or E_NO_MEMORY, E_NOT_FINITE (own values), E_CANCELED */
    struct hth_blob *average; /* `count` floats; NULL for a helper and unless HTH_OK */
    double weight;            /* in the mean, averaged over elements; kept ones count the own */
    double weight_fraction;   /* of the group's */
    const struct hth_reduce_fate *fates; /* one per member, in their order */
    uint32_t members;
    uint32_t dropped;             /* members whose fate is not NONE, NONE, or that miss in parts */
    uint32_t parts;               /* of the vector */
    uint32_t parts_kept;          /* with local values */
    uint64_t bytes_out, bytes_in; /* of encoded values, requests and answers */
    int64_t took_us;              /* from start to now */
};

typedef void hth_reduce_done_fn(void *arg, const struct hth_reduce_result *result);

struct hth_reduce_opts {
    struct hth_hash group; /* the same for all members, and of no other round */
    const struct hth_reduce_member
        *members; /* the same list in the same order everywhere; copied */
    uint32_t member_count;
    uint32_t self;
    struct hth_blob *values; /* `count` floats, frozen; referenced. NULL: it only reduces */
    uint64_t count;
    const struct hth_avg_span *spans; /* formats of what this member sends; copied. NULL: fp32 */
    uint32_t span_count;
    /* Of each HTH_AVG_BLOCK_FLOATS values, the last ones of fewer: how far from the own values
     * their mean may lie. Copied. NULL, and in groups of two, where nobody can tell: anywhere. */
    const float *far;
    bool same;        /* all shall hold the same bits, in narrow formats, too; all members say so */
    bool fixed;       /* with `same`: other groups reduce the same values with the same weights in
                       * the same order, and all of them shall hold the same bits, whoever reduces
                       * how much: blocks lie at fixed places; uniform8 travels as int8 */
    double share_max; /* no share is more than so many times the mean one, whatever is claimed
                       * (shares.h): the same at all members. 0: by the claims alone */
    int64_t timeout_us;
    hth_reduce_done_fn *done;
    void *arg;
};

/* The callback comes exactly once unless this fails or the round is canceled. *round may be NULL.
 * Errors: E_RANGE (members, bandwidths, weights, count, self, share_max, timeout), E_DUPLICATE (a
 * member is named twice, or the group is known already), E_UNSUPPORTED and E_RANGE of the spans,
 * E_BUDGET (HTH_AVG_ROUNDS_MAX are under way), E_NO_MEMORY. */
enum hth_err hth_reduce_start(struct hth_reducer *reducer, const struct hth_reduce_opts *opts,
                              struct hth_reduce_round **round) HTH_MUST;
/* No callback comes any more; peers' parts are refused. Only before the callback came. */
void hth_reduce_cancel(struct hth_reduce_round *round);

struct hth_reducer_stats {
    uint64_t parts_reduced;
    uint64_t bytes_in;
    uint32_t rounds_now;
};
void hth_reducer_stats(const struct hth_reducer *reducer, struct hth_reducer_stats *out);

/* |x - v|, summed in double in an order that depends on n alone. For jobs. */
double hth_reduce_distance(const float *x, const float *v, size_t n);

#define HTH_REDUCE_METHOD 66

/* bit/s of a member that reduces and did not say how much it can send. */
#define HTH_REDUCE_NOT_SAID 1.0
/* Such a member counts as the lower median of those that did, which one claim can't move far. */
void hth_reduce_fill_usual(struct hth_reduce_member *members, uint32_t count);
/* Twice what so many floats take at best over a line that is just worth training over. */
int64_t hth_reduce_thin_us(uint64_t count);

#endif
