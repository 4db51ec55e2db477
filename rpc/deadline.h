/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deadline.h: how long to wait for a peer, learnt from what it did.
 *
 *   deadline = clamp(median + k * 1.4826 * MAD, floor, ceiling)
 *
 * over the last HTH_DEADLINE_WINDOW durations; MAD is the median of |x - median|, and 1.4826 makes
 * it the standard deviation of a normal distribution. The median forgets a few stragglers, which a
 * mean would not. A missed deadline enters the window as one and a half of itself: when everything
 * becomes slower, the deadline follows within half a window instead of failing for ever.
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
#define HTH_DEADLINE_OPTS_INIT                                                                     \
    {                                                                                              \
        .k = 6.0, .floor_us = 200 * HTH_US_PER_MS, .ceiling_us = 60 * HTH_US_PER_S,                \
        .initial_us = 20 * HTH_US_PER_S,                                                           \
    }

struct hth_deadline {
    struct hth_deadline_opts opts;
    uint32_t sample_us[HTH_DEADLINE_WINDOW]; /* a ring; longest 71 minutes */
    uint32_t count;                          /* ever observed; saturates above the window */
    uint32_t next;
    uint32_t fresh; /* observed since cached_us was computed */
    int64_t cached_us;
};

void hth_deadline_init(struct hth_deadline *d, const struct hth_deadline_opts *opts);
/* A call took this long. */
void hth_deadline_observe(struct hth_deadline *d, int64_t took_us);
/* A call was given up after this long. */
void hth_deadline_miss(struct hth_deadline *d, int64_t waited_us);
/* How long to wait for the next one. */
int64_t hth_deadline_get(struct hth_deadline *d);
/* The median alone; 0 before the first duration. */
int64_t hth_deadline_median(const struct hth_deadline *d);

#endif
