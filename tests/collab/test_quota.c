/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas against all plans of small worlds; what they promise, by seeds; absurd numbers. */
#include "support/suite.h"

#include "collab/quota.h"
#include "core/rng.h"

enum { MEMBERS_MAX = 64 };

/* ---- small worlds: every plan -------------------------------------------------------- */

enum { MORE_MAX = 7 };

/* The moment in which a member's k-th further micro-batch lands. */
static int64_t landing(const struct hth_brings *b, uint32_t k)
{
    return b->lands_us + k * b->each_us;
}

/* The earliest last landing among all plans that reach the target; INT64_MIN: none is needed. */
static int64_t best_plan(const struct hth_brings *in, uint32_t n, uint64_t target)
{
    int64_t best = INT64_MAX;
    uint32_t plans = 1;
    for (uint32_t i = 0; i < n; i++)
        plans *= MORE_MAX + 1;
    for (uint32_t p = 0; p < plans; p++) {
        uint64_t sum = 0;
        int64_t last = INT64_MIN;
        for (uint32_t i = 0, rest = p; i < n; i++, rest /= MORE_MAX + 1) {
            uint32_t k = rest % (MORE_MAX + 1);
            sum += in[i].samples + in[i].air + k * in[i].grain;
            if (k > 0)
                last = HTH_MAX(last, landing(&in[i], k));
        }
        if (sum >= target)
            best = HTH_MIN(best, last);
    }
    return best;
}

TEST(quotas_are_the_best_plan)
{
    struct hth_rng rng;
    hth_rng_init(&rng, 1);
    for (uint32_t seed = 0; seed < 3000; seed++) {
        struct hth_brings in[3];
        uint32_t quota[3], n = 1 + (uint32_t)hth_rng_below(&rng, 3);
        uint64_t target = hth_rng_below(&rng, 14), sum = 0;
        int64_t last = INT64_MIN;
        for (uint32_t i = 0; i < n; i++)
            in[i] = (struct hth_brings){.samples = (uint32_t)hth_rng_below(&rng, 3),
                                        .air = (uint32_t)hth_rng_below(&rng, 3),
                                        .grain = 2 + (uint32_t)hth_rng_below(&rng, 3),
                                        .lands_us = (int64_t)hth_rng_below(&rng, 20) - 6,
                                        .each_us = 1 + (int64_t)hth_rng_below(&rng, 9)};
        assert_true(hth_quota(in, n, target, quota));
        for (uint32_t i = 0; i < n; i++) {
            uint32_t base = in[i].samples + in[i].air, k = (quota[i] - base) / in[i].grain;
            assert_true(quota[i] >= base && (quota[i] - base) % in[i].grain == 0);
            sum += quota[i];
            if (k > 0)
                last = HTH_MAX(last, landing(&in[i], k));
        }
        assert_true(sum >= target);
        assert_int_equal(last, best_plan(in, n, target));
        if (last == INT64_MIN)
            continue;
        /* Of those that land last the first bring theirs, and each is needed. */
        uint32_t last_grain = 0;
        bool left_out = false;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t k = (quota[i] - in[i].samples - in[i].air) / in[i].grain;
            if (k > 0 && landing(&in[i], k) == last) {
                assert_false(left_out);
                last_grain = in[i].grain;
            }
            left_out |= landing(&in[i], k + 1) == last;
        }
        assert_true(sum - last_grain < target);
    }
}

/* ---- promises ------------------------------------------------------------------------ */

static void check_promises(const struct hth_brings *in, uint32_t n, uint64_t target)
{
    uint32_t quota[MEMBERS_MAX], again[MEMBERS_MAX], most = 1;
    bool reached = hth_quota(in, n, target, quota);
    uint64_t sum = 0, base = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t own = HTH_MIN((uint64_t)in[i].samples + in[i].air, UINT32_MAX);
        assert_true(quota[i] >= own);
        assert_true(in[i].each_us != HTH_BRINGS_NO_MORE || quota[i] == own);
        base += own;
        sum += quota[i];
        most = HTH_MAX(most, in[i].grain);
    }
    assert_true(reached == (sum >= target));
    assert_true(sum == base || sum < target + most);
    assert_true(hth_quota(in, n, target, again) == reached);
    assert_memory_equal(quota, again, n * sizeof(quota[0]));
    int64_t closes = hth_quota_closes_us(in, n, quota);
    assert_true(closes >= 0 && closes < INT64_MAX);
}

static struct hth_brings likely(struct hth_rng *rng)
{
    int64_t each = (int64_t)hth_rng_below(rng, 1u << hth_rng_below(rng, 31));
    return (struct hth_brings){.samples =
                                   (uint32_t)hth_rng_below(rng, 1u << hth_rng_below(rng, 20)),
                               .air = (uint32_t)hth_rng_below(rng, 1000),
                               .grain = (uint32_t)hth_rng_below(rng, 1u << hth_rng_below(rng, 20)),
                               .lands_us = (int64_t)hth_rng_below(rng, 1000000) - 100000,
                               .each_us = hth_rng_chance(rng, 0.1) ? HTH_BRINGS_NO_MORE : each};
}

static uint32_t some_count(struct hth_rng *rng)
{
    static const uint32_t counts[] = {0, 1, 8, 1u << 31, UINT32_MAX - 1, UINT32_MAX};
    return counts[hth_rng_below(rng, HTH_ARRAY_LEN(counts))];
}

static int64_t some_time(struct hth_rng *rng)
{
    static const int64_t times[] = {0,         1,         -1,      INT64_MIN,     INT64_MAX,
                                    INT32_MAX, INT32_MIN, 1 << 30, INT64_MAX - 1, 1000};
    return times[hth_rng_below(rng, HTH_ARRAY_LEN(times))];
}

/* Of absurd numbers nothing overflows, and nothing takes long. */
TEST(promises_hold)
{
    static const uint64_t targets[] = {0, 1, 1u << 20, UINT64_C(1) << 34, UINT64_MAX};
    struct hth_rng rng;
    hth_rng_init(&rng, 2);
    for (uint32_t seed = 0; seed < 3000; seed++) {
        struct hth_brings in[MEMBERS_MAX], absurd[MEMBERS_MAX];
        uint32_t quota[MEMBERS_MAX], n = 1 + (uint32_t)hth_rng_below(&rng, MEMBERS_MAX);
        for (uint32_t i = 0; i < n; i++) {
            in[i] = likely(&rng);
            quota[i] = some_count(&rng);
            absurd[i] = (struct hth_brings){.samples = some_count(&rng)};
            absurd[i].air = some_count(&rng);
            absurd[i].grain = some_count(&rng);
            absurd[i].lands_us = some_time(&rng);
            absurd[i].each_us = some_time(&rng);
        }
        check_promises(in, n, hth_rng_below(&rng, UINT64_C(1) << hth_rng_below(&rng, 36)));
        assert_true(hth_quota_closes_us(absurd, n, quota) >= 0);
        uint64_t target = targets[seed % HTH_ARRAY_LEN(targets)];
        assert_true(hth_quota(absurd, n, target, quota) || target > 0);
        assert_true(hth_quota_closes_us(absurd, n, quota) >= 0);
    }
}

/* ---- cases --------------------------------------------------------------------------- */

TEST(cases)
{
    static const struct {
        struct hth_brings in[3];
        uint64_t target;
        uint32_t quota[3];
        bool reached;
        int64_t closes_us;
    } table[] = {
        /* a slow one that is in the air */
        {{{0, 0, 8, 0, 20}, {0, 0, 8, 0, 20}, {0, 8, 8, 200, 200}}, 64, {32, 24, 8}, true, 200},
        /* unknown speeds are the median */
        {{{0, 0, 8, 0, 20}, {0, 0, 8, 0, 0}, {0, 0, 8, 0, 100}}, 64, {32, 32, 0}, true, 80},
        {{{0, 0, 8, 0, 0}, {0, 0, 8, 0, -5}, {0, 0, 8, 0, 0}}, 24, {8, 8, 8}, true, 1000000},
        /* brings no more */
        {{{8, 8, 8, 5, HTH_BRINGS_NO_MORE}, {0, 0, 8, 0, 20}, {0, 0, 8, 0, 20}},
         32,
         {16, 8, 8},
         true,
         20},
        {{{8, 0, 8, 0, HTH_BRINGS_NO_MORE},
          {8, 8, 8, 3, HTH_BRINGS_NO_MORE},
          {.grain = 8, .each_us = HTH_BRINGS_NO_MORE}},
         32,
         {8, 16, 0},
         false,
         3},
        /* began long ago, and did not say so since */
        {{{0, 0, 8, -50, 20}, {0, 0, 8, 0, 20}, {0, 0, 8, 0, 20}}, 24, {24, 0, 0}, true, 10},
        /* enough already */
        {{{30, 8, 8, 7, 20}, {0, 0, 8, 0, 20}, {0, 0, 8, 0, 20}}, 32, {38, 0, 0}, true, 7},
    };
    for (size_t k = 0; k < HTH_ARRAY_LEN(table); k++) {
        uint32_t quota[3];
        assert_int_equal(hth_quota(table[k].in, 3, table[k].target, quota), table[k].reached);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(quota[i], table[k].quota[i]);
        assert_int_equal(hth_quota_closes_us(table[k].in, 3, quota), table[k].closes_us);
    }
    uint32_t more[] = {24, 0, 0};
    assert_int_equal(hth_quota_closes_us(table[3].in, 3, more), INT64_MAX);
}
