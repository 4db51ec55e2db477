/* SPDX-License-Identifier: Apache-2.0 */
/* Shares against published vectors, against the conditions of an optimum, and under bad input. */
#include "averaging/shares.h"
#include "core/rng.h"
#include "support/suite.h"

static void fill(double *b, uint32_t from, uint32_t to, double value)
{
    for (uint32_t i = from; i < to; i++)
        b[i] = value;
}

/* Runs of equal bandwidths, and the shares of each run's members. */
TEST(golden)
{
    static const struct {
        struct {
            uint32_t members;
            double bandwidth, share;
        } run[2];
        double most; /* 0: claims are not bounded */
    } cases[] = {{{{8, 1000, 0.125}}, 0},
                 {{{8, 200, 0.125}}, 0},
                 {{{1, 1000, 0.805556}, {7, 200, 0.027778}}, 0},
                 {{{4, 1000, 0.25}, {4, 100, 0}}, 0},
                 {{{1, 1000, 1}, {7, 0, 0}}, 0},
                 {{{1, 5, 1}}, 0},
                 {{{1, 5, 0.5}, {1, 20, 0.5}}, 0},
                 {{{1, 5, 1}, {1, 0, 0}}, 0},
                 /* nobody said anything */
                 {{{1, 0, 1}}, 0},
                 {{{8, 0, 0.125}}, 0},
                 /* The hybrid set-up: 3 mean shares each of the fast ones, so 3 leaves it alone,
                  * and 2 costs 46 %. */
                 {{{8, 1000, 0.125}, {16, 200, 0}}, 0},
                 {{{8, 1000, 0.125}, {16, 200, 0}}, 3},
                 {{{8, 1000, 2.0 / 24}, {16, 200, 1.0 / 48}}, 2}};
    for (size_t c = 0; c < HTH_ARRAY_LEN(cases); c++) {
        double b[HTH_AVG_MEMBERS_MAX], w[HTH_AVG_MEMBERS_MAX];
        uint32_t first = cases[c].run[0].members, n = first + cases[c].run[1].members;
        fill(b, 0, first, cases[c].run[0].bandwidth);
        fill(b, first, n, cases[c].run[1].bandwidth);
        if (cases[c].most > 0)
            assert_ok(hth_avg_bound_claims(b, n, cases[c].most));
        assert_ok(hth_avg_shares(b, n, w));
        for (uint32_t i = 0; i < n; i++)
            assert_close(w[i], cases[c].run[i >= first].share, 0, 1e-6);
    }
}

/* The bound of a claim: none is beyond it, who is below keeps his bandwidth to the bit, those at
 * the bound and the others end as the bounded program's optimum wants it (by its conditions:
 * whoever reduces below the bound ends together, those at it sooner, those at nothing would end
 * later), and no round is longer than with equal shares. */
static void bounded(const double *claims, uint32_t n, double most)
{
    double b[HTH_AVG_MEMBERS_MAX], w[HTH_AVG_MEMBERS_MAX], free_w[HTH_AVG_MEMBERS_MAX];
    double sum = 0, level = 0, slowest = 0, worst = 0, equal = 0, cap;
    uint32_t reducers = 0;

    memcpy(b, claims, n * sizeof(*b));
    assert_ok(hth_avg_bound_claims(b, n, most));
    assert_ok(hth_avg_shares(b, n, w));
    assert_ok(hth_avg_shares(claims, n, free_w));
    for (uint32_t i = 0; i < n; i++)
        reducers += claims[i] > 0;
    cap = HTH_MIN(most / reducers, 1.0);
    for (uint32_t i = 0; i < n; i++) {
        sum += w[i];
        assert_true(w[i] <= cap * (1 + 1e-12));
        assert_true(b[i] <= claims[i] && (b[i] > 0) == (claims[i] > 0));
        if (b[i] == claims[i] && w[i] > 0)
            level = fmax(level, (1 + (n - 2) * w[i]) / claims[i]);
        if (claims[i] == 0)
            continue;
        slowest = fmax(slowest, 1 / claims[i]);
        worst = fmax(worst, (1 + (n - 2) * w[i]) / claims[i]);
        equal = fmax(equal, (1 + (n - 2.0) / reducers) / claims[i]);
    }
    assert_close(sum, 1, 0, 1e-12);
    assert_true(worst <= equal * (1 + 1e-9));
    assert_true(worst <= slowest * (1 + (n - 2.0) / reducers) * (1 + 1e-9));
    for (uint32_t i = 0; i < n; i++) {
        double time = claims[i] > 0 ? (1 + (n - 2) * w[i]) / claims[i] : 0;

        if (b[i] < claims[i]) {
            assert_close(w[i], cap, 1e-9, 0);
            assert_true(level == 0 || time <= level * (1 + 1e-9));
        } else if (w[i] > 0) {
            assert_close(time, level, 1e-9, 0);
        } else if (claims[i] > 0) {
            assert_true(time >= level * (1 - 1e-9));
        }
        if (free_w[i] > cap * (1 + 1e-9))
            assert_true(b[i] < claims[i]);
    }
}

TEST(bounded_claims)
{
    static const double mosts[] = {1, 1.5, 2, 3, 7, HTH_AVG_MEMBERS_MAX};
    double b[HTH_AVG_MEMBERS_MAX], w[HTH_AVG_MEMBERS_MAX];
    struct hth_rng rng;

    hth_rng_init(&rng, 33);
    for (uint32_t round = 0; round < 6000; round++) {
        uint32_t n = 3 + (uint32_t)hth_rng_below(&rng, round % 10 == 0 ? 254 : 20);
        for (uint32_t i = 0; i < n; i++) {
            bool client = i > 0 && hth_rng_chance(&rng, 0.2);
            double size = hth_rng_normal(&rng);
            b[i] = client ? 0 : exp(3 * size);
        }
        bounded(b, n, mosts[round % HTH_ARRAY_LEN(mosts)]);
    }
    /* One claims all there is: of eight it has two eighths, of 256 one 128th, of four a half. */
    for (uint32_t n = 4; n <= HTH_AVG_MEMBERS_MAX; n *= 2) {
        fill(b, 0, n, 1e8);
        b[n - 1] = HTH_AVG_BANDWIDTH_MAX;
        bounded(b, n, 2);
        assert_ok(hth_avg_bound_claims(b, n, 2));
        assert_ok(hth_avg_shares(b, n, w));
        assert_close(w[n - 1], 2.0 / n, 1e-12, 0);
        assert_close(w[0], (1 - 2.0 / n) / (n - 1), 1e-9, 0);
    }
    /* Claims at both limits of what may be said; and one who is alone among clients. */
    fill(b, 0, 8, HTH_AVG_BANDWIDTH_MIN);
    fill(b, 0, 4, HTH_AVG_BANDWIDTH_MAX);
    bounded(b, 8, 1);
    bounded(b, 8, 2);
    fill(b, 1, 8, 0);
    bounded(b, 8, 1);
}

TEST(hostile)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY, -1, -1e-30, 1e-7, 1.1e15, 5e-324, 1e300};
    double b[HTH_AVG_MEMBERS_MAX + 1], w[HTH_AVG_MEMBERS_MAX];
    fill(b, 0, HTH_AVG_MEMBERS_MAX + 1, 100);
    assert_err(HTH_E_RANGE, hth_avg_shares(b, 0, w));
    assert_err(HTH_E_RANGE, hth_avg_shares(b, HTH_AVG_MEMBERS_MAX + 1, w));
    assert_ok(hth_avg_shares(b, HTH_AVG_MEMBERS_MAX, w));
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        b[2] = bad[i];
        assert_int_equal(hth_avg_bandwidth_bad(b, 5), 2);
        assert_err(HTH_E_RANGE, hth_avg_shares(b, 5, w));
        assert_err(HTH_E_RANGE, hth_avg_bound_claims(b, 5, 2));
    }
    assert_int_equal(hth_avg_bandwidth_bad(b, 2), 2);
    assert_err(HTH_E_RANGE, hth_avg_bound_claims(b, 2, 0.99));
    assert_err(HTH_E_RANGE, hth_avg_bound_claims(b, 2, NAN));
    assert_err(HTH_E_RANGE, hth_avg_bound_claims(b, 0, 2));
    assert_err(HTH_E_RANGE, hth_avg_bound_claims(b, HTH_AVG_MEMBERS_MAX + 1, 2));
    b[2] = HTH_AVG_BANDWIDTH_MAX;
    b[1] = HTH_AVG_BANDWIDTH_MIN;
    assert_ok(hth_avg_shares(b, 5, w));
    assert_true(w[2] <= 1 && w[1] == 0);
}

/* ---- whole elements ------------------------------------------------------------------------ */

TEST(split)
{
    static const double w[4] = {0.5, 0.25, 0.125, 0.125};
    static const uint64_t cases[][6] = {
        /* total, minimum, counts */
        {80, 0, 40, 20, 10, 10},
        {7, 0, 3, 2, 1, 1}, /* they end at 3.5, 5.25, 6.125, 7 */
        {0, 0, 0, 0, 0, 0},
        /* Fewer than 11 are not worth a part: the last two leave theirs to the others, 2 to 1. */
        {80, 11, 53, 27, 0, 0},
        {80, 1000, 80, 0, 0, 0}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        uint64_t c[4];
        assert_ok(hth_avg_split(w, 4, cases[i][0], cases[i][1], c));
        assert_memory_equal(c, cases[i] + 2, sizeof(c));
    }
}

TEST(split_sums)
{
    struct hth_rng rng;
    hth_rng_init(&rng, 32);
    for (uint32_t round = 0; round < 3000; round++) {
        double b[HTH_AVG_MEMBERS_MAX], w[HTH_AVG_MEMBERS_MAX];
        uint64_t counts[HTH_AVG_MEMBERS_MAX], sum = 0;
        uint32_t n = 1 + (uint32_t)hth_rng_below(&rng, 40);
        uint64_t total = hth_rng_u64(&rng) >> (31 + hth_rng_below(&rng, 33));
        uint64_t minimum = round % 2 == 0 ? 0 : 1000;
        for (uint32_t i = 0; i < n; i++) {
            double size = hth_rng_normal(&rng);
            b[i] = hth_rng_chance(&rng, 0.2) ? 0 : exp(2 * size);
        }
        assert_ok(hth_avg_shares(b, n, w));
        assert_ok(hth_avg_split(w, n, total, minimum, counts));
        for (uint32_t i = 0; i < n; i++) {
            sum += counts[i];
            assert_true(w[i] > 0 || counts[i] == 0);
            assert_true(counts[i] == 0 || counts[i] + 1 >= minimum || counts[i] == total);
            if (minimum == 0)
                assert_true(fabs((double)counts[i] - w[i] * (double)total) <= 1.001);
        }
        assert_true(sum == total);
    }
}

TEST(split_refuses)
{
    static const double bad[][3] = {{0.5, 0.5, 0.1}, {0.5, 0.5, NAN}, {1.5, -0.5, 0}};
    const double w[3] = {0.5, 0.5, 0};
    uint64_t c[3];
    assert_ok(hth_avg_split(w, 3, HTH_PARAMS_FLOATS_MAX, 0, c));
    assert_err(HTH_E_RANGE, hth_avg_split(w, 3, HTH_PARAMS_FLOATS_MAX + 1, 0, c));
    assert_err(HTH_E_RANGE, hth_avg_split(w, 0, 10, 0, c));
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        assert_err(HTH_E_RANGE, hth_avg_split(bad[i], 3, 10, 0, c));
}
