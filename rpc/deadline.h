/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deadline.h: how long to wait for a peer, learnt from its past calls.
 *
 *   usual    = clamp(median + max(k * 1.4826 * MAD, slack * median), floor, ceiling)
 *   deadline = max(usual, patience)
 *
 * `usual` is over the last HTH_DEADLINE_WINDOW durations of calls that were answered; MAD is the
 * median of |x - median|, and 1.4826 makes it the standard deviation of a normal distribution. The
 * median forgets a few stragglers, which a mean would not. Slack has the role of the minimum
 * variance in TCP's timer: on a link without jitter more than half of the calls take the same time,
 * MAD is 0, and a call that queued for a microsecond would be late.
 *
 * A miss is a censored sample: it says only "longer than this, or never". So it is not counted as a
 * duration: at a loss of one half the misses would become the median, and each would cause a longer
 * one. A miss changes only the *patience*, which has the role of Karn's back-off in TCP's timer:
 *
 *   a miss     counts when it waited for the present deadline; no call that was sent later was
 *              answered (else the peer is not slow, and this call is lost); and, but for the first
 *              in a row, bytes arrived from the peer since the last call ended (a silent peer is
 *              not slow, and not worth longer waits). From the HTH_DEADLINE_MISSES-th one in a row
 *              on, patience = twice the wait.
 *   an answer  ends the streak. Within `usual` it ends the patience, too. Beyond it the patience
 *              was right: it stays for half a window of calls, until the median has followed, and
 *              at least for its own length, because quick calls end sooner than slow ones.
 *
 * Where more than three in four of the last HTH_DEADLINE_WINDOW calls were missed, quick answers
 * end neither streak nor patience and prove no loss of earlier calls: they must not hide that most
 * calls are slow.
 *
 * Of many concurrent calls some may be slow while others are quick (calls of an overloaded expert,
 * say). The slow ones look lost, and only waiting longer tells the two apart. So where more than
 * one in four of the window were missed, each HTH_DEADLINE_WINDOW-th call that a later call's
 * answer proved lost makes the next call a *probe*:
 *
 *   deadline of the n-th probe = 2^(1 + z) times the usual, z = zeros at the end of n in binary
 *
 * (2, 4, 2, 8, 2, 4, 2, 16, ...: every scale is reached, and under a ceiling of 2^m times the usual
 * the mean of probes that end in vain is m + 1). An answer beyond `usual` then gives a patience of
 * twice its duration. One slow call in four or fewer is not followed: a retry, or doing without the
 * answer, is cheaper.
 *
 * So a peer that became ten times slower than its deadline is followed after HTH_DEADLINE_MISSES +
 * 3 misses. Where two in five of many concurrent calls did, that takes 20 probes on average: each
 * eighth probe is long enough, and two in five of those are of a slow call. Of calls made one by
 * one of which half are lost, one in 2^HTH_DEADLINE_MISSES finds a patience, and the mean deadline
 * is 1 + m / 2^HTH_DEADLINE_MISSES times the usual one under a ceiling of 2^m times it. Of many
 * concurrent calls it is 1 + m / 64, because one in 64 is a probe.
 */
#ifndef HTH_RPC_DEADLINE_H
#define HTH_RPC_DEADLINE_H

#include "core/base.h"

#define HTH_DEADLINE_WINDOW 32

struct hth_deadline_opts {
    double k;
    double slack; /* at least this share is added to the median */
    int64_t floor_us;
    int64_t ceiling_us;
    int64_t initial_us; /* before HTH_DEADLINE_SAMPLES_MIN durations are known */
};

#define HTH_DEADLINE_SAMPLES_MIN 4
#define HTH_DEADLINE_MISSES      4 /* in a row: the peer may have become slow */
#define HTH_DEADLINE_OPTS_INIT                                                                     \
    {                                                                                              \
        .k = 6.0, .slack = 0.25, .floor_us = 200 * HTH_US_PER_MS, .ceiling_us = 60 * HTH_US_PER_S, \
        .initial_us = 20 * HTH_US_PER_S,                                                           \
    }

struct hth_deadline {
    struct hth_deadline_opts opts;
    uint32_t sample_us[HTH_DEADLINE_WINDOW]; /* answered; a ring; longest 71 minutes */
    uint32_t count;                          /* ever answered; saturates above the window */
    uint32_t next;
    uint32_t fresh;    /* answered since usual_us was computed */
    uint32_t streak;   /* misses that counted since the last answer */
    uint32_t held;     /* calls for which the patience stays whatever their outcome */
    uint32_t lost;     /* misses since the last probe that were counted as losses */
    uint32_t probes;   /* ever */
    uint32_t outcomes; /* of the last HTH_DEADLINE_WINDOW calls: a bit is set for a miss */
    int64_t usual_us;
    int64_t patience_us;   /* 0: none */
    int64_t held_until_us; /* time until which the patience stays */
    int64_t began_us;      /* when the latest answered call had been sent */
    int64_t ended_us;      /* when the last call was answered or missed */
};

void hth_deadline_init(struct hth_deadline *d, const struct hth_deadline_opts *opts);
/* A call was answered at now_us and took took_us. */
void hth_deadline_observe(struct hth_deadline *d, int64_t now_us, int64_t took_us);
/* A call that was sent at sent_us is given up at now_us, after waited_us, which includes the time
 * before it was sent. received_us: when bytes last arrived from the peer. */
void hth_deadline_miss(struct hth_deadline *d, int64_t now_us, int64_t waited_us, int64_t sent_us,
                       int64_t received_us);
/* How long to wait for a call that begins here: hth_deadline_get, or a probe's time. */
int64_t hth_deadline_begin(struct hth_deadline *d);
/* How long to wait for a call that is no probe. */
int64_t hth_deadline_get(struct hth_deadline *d);
/* The median alone; 0 before the first duration. */
int64_t hth_deadline_median(const struct hth_deadline *d);

#endif
