/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/quota.h"

#define TIME_MAX   (INT64_C(1) << 30) /* 2^32 times this, and this once more, fit into 63 bits */
#define CLOSES_MAX (INT64_C(1) << 62)
#define FIRST_TRY  HTH_US_PER_MS

static int64_t bounded(int64_t us, int64_t least)
{
    return HTH_MIN(HTH_MAX(us, least), TIME_MAX);
}

static uint32_t base_of(const struct hth_brings *b)
{
    return (uint32_t)HTH_MIN((uint64_t)b->samples + b->air, UINT32_MAX);
}

static uint32_t grain_of(const struct hth_brings *b)
{
    return HTH_MAX(b->grain, 1u);
}

static bool is_known(const struct hth_brings *b)
{
    return b->each_us > 0 && b->each_us != HTH_BRINGS_NO_MORE;
}

/* The lower median of the known speeds, found by halving its range: no memory is needed. */
static int64_t median_us(const struct hth_brings *in, uint32_t n)
{
    int64_t lo = 0, hi = TIME_MAX; /* at least half are <= hi; not so for lo */
    uint32_t known = 0, unknown = 0;
    for (uint32_t i = 0; i < n; i++) {
        known += is_known(&in[i]);
        unknown += in[i].each_us <= 0;
    }
    if (known == 0 || unknown == 0)
        return HTH_US_PER_S;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        uint32_t below = 0;
        for (uint32_t i = 0; i < n; i++)
            below += is_known(&in[i]) && bounded(in[i].each_us, 1) <= mid;
        if (below >= (known + 1) / 2)
            hi = mid;
        else
            lo = mid;
    }
    return hi;
}

/* How many more micro-batches land up to a moment. */
static uint32_t more_by(const struct hth_brings *b, int64_t unknown_us, int64_t at_us)
{
    int64_t each = is_known(b) ? bounded(b->each_us, 1) : unknown_us;
    int64_t left = at_us - bounded(b->lands_us, -TIME_MAX);
    if (b->each_us == HTH_BRINGS_NO_MORE || left < each)
        return 0;
    int64_t room = (UINT32_MAX - base_of(b)) / grain_of(b);
    return (uint32_t)HTH_MIN(left / each, room);
}

static uint64_t sum_by(const struct hth_brings *in, uint32_t n, int64_t unknown_us, int64_t at_us)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += base_of(&in[i]) + (uint64_t)grain_of(&in[i]) * more_by(&in[i], unknown_us, at_us);
    return sum;
}

bool hth_quota(const struct hth_brings *in, uint32_t n, uint64_t target, uint32_t *quota)
{
    int64_t unknown_us = median_us(in, n), lo = -TIME_MAX, hi = FIRST_TRY;
    for (uint32_t i = 0; i < n; i++)
        quota[i] = base_of(&in[i]);
    uint64_t sum = sum_by(in, n, unknown_us, lo); /* nothing more lands by then */
    if (sum >= target)
        return true;
    for (; sum_by(in, n, unknown_us, hi) < target; lo = hi, hi *= 2)
        if (hi > CLOSES_MAX / 2)
            return false;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (sum_by(in, n, unknown_us, mid) < target)
            lo = mid;
        else
            hi = mid;
    }
    /* All that lands before hi, and at hi as much as is missing. */
    sum = sum_by(in, n, unknown_us, lo);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t more = more_by(&in[i], unknown_us, lo);
        if (sum < target && more_by(&in[i], unknown_us, hi) > more) {
            more++;
            sum += grain_of(&in[i]);
        }
        quota[i] += more * grain_of(&in[i]);
    }
    return true;
}

int64_t hth_quota_closes_us(const struct hth_brings *in, uint32_t n, const uint32_t *quota)
{
    int64_t unknown_us = median_us(in, n), closes = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct hth_brings *b = &in[i];
        int64_t each = is_known(b) ? bounded(b->each_us, 1) : unknown_us;
        uint32_t base = base_of(b), more = 0;
        if (quota[i] > base)
            more = (quota[i] - base - 1) / grain_of(b) + 1;
        if (more > 0 && b->each_us == HTH_BRINGS_NO_MORE)
            return INT64_MAX;
        if (more > 0 || b->air > 0)
            closes = HTH_MAX(closes, bounded(b->lands_us, -TIME_MAX) + each * (int64_t)more);
    }
    return closes;
}
