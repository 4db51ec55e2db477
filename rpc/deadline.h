/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deadline.h: how long to wait for a peer, learnt from what it did.
 *
 *   usual    = clamp(median + k * 1.4826 * MAD, floor, ceiling)
 *   deadline = max(usual, patience)
 *
 * The first is over the last HTH_DEADLINE_WINDOW durations of calls that were answered; MAD is the
 * median of |x - median|, and 1.4826 makes it the standard deviation of a normal distribution. The
 * median forgets a few stragglers, which a mean would not.
 *
 * A miss is a censored sample: all it says is "longer than this, or never". So it is no duration
 * (at a loss of one half the misses would become the median, and each the cause of a longer
 * one), and moves only the *patience*, which is what Karn's back-off is to TCP's timer:
 *
 *   a miss     counts when it waited for the present deadline; no call that began later was
 *              answered (else the peer is not slow, and this call is lost); and, but for the first
 *              in a row, something was heard of the peer since the last call ended, if only that
 *              it knows of that (a silent peer is not slow, and not worth longer waits). From the
 *              HTH_DEADLINE_MISSES-th one in a row on, patience = twice what was waited.
 *   an answer  ends the row. Within `usual` it ends the patience, too. Beyond it the patience was
 *              right, and stays for half a window of calls, until the median has followed.
 *
 * Where more than three in four of the last HTH_DEADLINE_WINDOW calls were missed, quick answers
 * end neither row nor patience and say nothing about others: they must not hide that most are slow.
 *
 * So a peer that became ten times slower than its deadline is followed after HTH_DEADLINE_MISSES +
 * 3 misses. Of calls made one by one of which half are lost, one in 2^HTH_DEADLINE_MISSES finds a
 * patience of any kind, and the mean deadline is 1 + m / 2^HTH_DEADLINE_MISSES times the usual one
 * under a ceiling of 2^m times it.
 * A plain value, no allocation, for one thread.
 */
#ifndef HTH_RPC_DEADLINE_H
#define HTH_RPC_DEADLINE_H

#include "core/base.h"

#define HTH_DEADLINE_WINDOW 32

struct hth_deadline_opts {
    double k;
    int64_t floor_us;
    int64_t ceiling_us;
    int64_t initial_us; /* before HTH_DEADLINE_SAMPLES_MIN durations are known */
};

#define HTH_DEADLINE_SAMPLES_MIN 4
#define HTH_DEADLINE_MISSES      4 /* in a row: the peer may have become slow */
#define HTH_DEADLINE_OPTS_INIT                                                                     \
    {                                                                                              \
        .k = 6.0, .floor_us = 200 * HTH_US_PER_MS, .ceiling_us = 60 * HTH_US_PER_S,                \
        .initial_us = 20 * HTH_US_PER_S,                                                           \
    }

struct hth_deadline {
    struct hth_deadline_opts opts;
    uint32_t sample_us[HTH_DEADLINE_WINDOW]; /* answered; a ring; longest 71 minutes */
    uint32_t count;                          /* ever answered; saturates above the window */
    uint32_t next;
    uint32_t fresh; /* answered since usual_us was computed */
    uint32_t row;   /* misses that counted since the last answer */
    uint32_t held;  /* calls for which the patience stays whatever they bring */
    uint32_t fates; /* of the last HTH_DEADLINE_WINDOW calls: a bit is set for a miss */
    int64_t usual_us;
    int64_t patience_us; /* 0: none */
    int64_t began_us;    /* the latest begin of a call that was answered */
    int64_t ended_us;    /* when the last call was answered or missed */
};

void hth_deadline_init(struct hth_deadline *d, const struct hth_deadline_opts *opts);
/* A call was answered now and took this long. */
void hth_deadline_observe(struct hth_deadline *d, int64_t now_us, int64_t took_us);
/* A call is given up now, after this long. Anything at all was last heard of the peer at heard_us.
 */
void hth_deadline_miss(struct hth_deadline *d, int64_t now_us, int64_t waited_us, int64_t heard_us);
/* How long to wait for the next one. */
int64_t hth_deadline_get(struct hth_deadline *d);
/* The median alone; 0 before the first duration. */
int64_t hth_deadline_median(const struct hth_deadline *d);

#endif
