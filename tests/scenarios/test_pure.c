/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pure.c: the pure simulations against expectations by enumeration: a round is a matrix W that
 * depends on the set of absent peers, so the expected squared error of the first rounds is the mean
 * of |W - J|^2 / N over all patterns of absence (J: all peers hold the mean), and needs no
 * sampling.
 */
#include "core/mem.h"
#include "scenarios/pure_means.h"
#include "support/suite.h"

#define N_MAX 9

static struct hth_pure_opts opts_of(enum hth_pure_method method, uint32_t peers, const char *grid,
                                    double p_fail, uint32_t rounds)
{
    struct hth_pure_opts opts = HTH_PURE_OPTS_INIT;
    opts.method = method;
    opts.peers = peers;
    assert_ok(hth_avg_shape_parse(grid, &opts.shape));
    opts.p_fail = p_fail;
    opts.rounds = rounds;
    return opts;
}

/* ---- expectations by enumeration ----------------------------------------------------------- */

/* The matrix of one round, written from the description in pure.h. Bit i of `absent`: peer i. */
typedef void matrix_fn(uint32_t n, uint32_t absent, uint32_t round, double w[N_MAX][N_MAX]);

static bool there(uint32_t absent, uint32_t i)
{
    return (absent >> i & 1) == 0;
}

static void gossip_matrix(uint32_t n, uint32_t absent, uint32_t round, double w[N_MAX][N_MAX])
{
    (void)round;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t left = (i + n - 1) % n, right = (i + 1) % n;
        double share = 1.0 / (1 + there(absent, left) + there(absent, right));
        w[i][i] = there(absent, i) ? share : 1;
        w[i][left] = there(absent, i) && there(absent, left) ? share : 0;
        w[i][right] = there(absent, i) && there(absent, right) ? share : 0;
    }
}

/* Push-sum without the division by the weights, which come from the same matrix. Five peers: the
 * powers of two below are 1, 2, 4. */
static void push_matrix(uint32_t n, uint32_t absent, uint32_t round, double w[N_MAX][N_MAX])
{
    static const uint32_t steps[2][2] = {{1, 2}, {4, 1}};
    for (uint32_t i = 0; i < n; i++) {
        w[i][i] += there(absent, i) ? 1.0 / 3 : 1;
        for (uint32_t k = 0; k < 2 && there(absent, i); k++) {
            uint32_t to = (i + steps[round][k]) % n;
            w[there(absent, to) ? to : i][i] += 1.0 / 3;
        }
    }
}

/* A full 3x3 grid; the placement of the peers does not change the expectation. */
static void grid_matrix(uint32_t n, uint32_t absent, uint32_t round, double w[N_MAX][N_MAX])
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t count = 0;
        for (uint32_t pass = 0; pass < 2; pass++)
            for (uint32_t j = 0; j < n; j++) {
                bool line = round == 0 ? i % 3 == j % 3 : i / 3 == j / 3;
                if (!line || !there(absent, i) || !there(absent, j))
                    continue;
                if (pass == 0)
                    count++;
                else
                    w[i][j] = 1.0 / count;
            }
        if (count == 0)
            w[i][i] = 1;
    }
}

/* The same with slow peers, which are too late and get the mean of their line's others. */
static void late_matrix(uint32_t n, uint32_t late, uint32_t round, double w[N_MAX][N_MAX])
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t count = 0;
        for (uint32_t j = 0; j < n; j++)
            count += (round == 0 ? i % 3 == j % 3 : i / 3 == j / 3) && there(late, j);
        for (uint32_t j = 0; j < n; j++)
            if ((round == 0 ? i % 3 == j % 3 : i / 3 == j / 3) && there(late, j))
                w[i][j] = 1.0 / count;
        if (count == 0)
            w[i][i] = 1;
    }
}

/* The same with peers on the other side of a partition. */
static void cut_matrix(uint32_t n, uint32_t cut, uint32_t round, double w[N_MAX][N_MAX])
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t count = 0;
        for (uint32_t pass = 0; pass < 2; pass++)
            for (uint32_t j = 0; j < n; j++) {
                bool line = round == 0 ? i % 3 == j % 3 : i / 3 == j / 3;
                if (!line || there(cut, i) != there(cut, j))
                    continue;
                if (pass == 0)
                    count++;
                else
                    w[i][j] = 1.0 / count;
            }
    }
}

static void gossip_late_matrix(uint32_t n, uint32_t late, uint32_t round, double w[N_MAX][N_MAX])
{
    (void)round;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t left = (i + n - 1) % n, right = (i + 1) % n;
        double share = 1.0 / (1 + there(late, left) + there(late, right));
        w[i][i] = share;
        w[i][left] = there(late, left) ? share : 0;
        w[i][right] = there(late, right) ? share : 0;
    }
}

static void gossip_cut_matrix(uint32_t n, uint32_t cut, uint32_t round, double w[N_MAX][N_MAX])
{
    (void)round;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t left = (i + n - 1) % n, right = (i + 1) % n;
        bool to_left = there(cut, i) == there(cut, left);
        bool to_right = there(cut, i) == there(cut, right);
        double share = 1.0 / (1 + to_left + to_right);
        w[i][i] = share;
        w[i][left] = to_left ? share : 0;
        w[i][right] = to_right ? share : 0;
    }
}

static void push_cut_matrix(uint32_t n, uint32_t cut, uint32_t round, double w[N_MAX][N_MAX])
{
    static const uint32_t steps[2][2] = {{1, 2}, {4, 1}};
    for (uint32_t i = 0; i < n; i++) {
        w[i][i] += 1.0 / 3;
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t to = (i + steps[round][k]) % n;
            w[there(cut, to) == there(cut, i) ? to : i][i] += 1.0 / 3;
        }
    }
}

static double distance(uint32_t n, double w[N_MAX][N_MAX], bool weighted)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double weight = 0;
        for (uint32_t j = 0; j < n; j++)
            weight += weighted ? w[i][j] : 1.0 / n;
        for (uint32_t j = 0; j < n; j++)
            sum += (w[i][j] / weight - 1.0 / n) * (w[i][j] / weight - 1.0 / n);
    }
    return sum / n;
}

static double chance(uint32_t n, uint32_t absent, double p)
{
    double product = 1;
    for (uint32_t i = 0; i < n; i++)
        product *= there(absent, i) ? 1 - p : p;
    return product;
}

/* Expected squared errors after one and after two rounds. */
static void enumerate(matrix_fn *matrix, uint32_t n, double p, bool weighted, double out[2])
{
    out[0] = out[1] = 0;
    for (uint32_t first = 0; first < 1u << n; first++) {
        double a[N_MAX][N_MAX] = {{0}};
        matrix(n, first, 0, a);
        out[0] += chance(n, first, p) * distance(n, a, weighted);
        for (uint32_t second = 0; second < 1u << n; second++) {
            double b[N_MAX][N_MAX] = {{0}}, ba[N_MAX][N_MAX] = {{0}};
            matrix(n, second, 1, b);
            for (uint32_t i = 0; i < n; i++)
                for (uint32_t k = 0; k < n; k++)
                    for (uint32_t j = 0; j < n && b[i][k] != 0; j++)
                        ba[i][j] += b[i][k] * a[k][j];
            out[1] += chance(n, first, p) * chance(n, second, p) * distance(n, ba, weighted);
        }
    }
}

static void check_failure(enum hth_pure_method method, enum hth_pure_failure failure, uint32_t n,
                          const char *grid, double p, matrix_fn *matrix)
{
    struct hth_pure_opts opts = opts_of(method, n, grid, p, 2);
    double want[2], *got;
    opts.failure = failure;
    opts.cap = 2;
    enumerate(matrix, n, p, method == HTH_PURE_PUSHSUM, want);
    got = pure_means(&opts, 20000);
    for (size_t t = 0; t < 2; t++)
        assert_close(got[t], want[t], 0, 4 * got[hth_pure_row_len(&opts) + t] + 1e-15);
    hth_free(got);
}

static void check(enum hth_pure_method method, uint32_t n, const char *grid, double p,
                  matrix_fn *matrix)
{
    check_failure(method, HTH_PURE_ABSENT, n, grid, p, matrix);
}

TEST(errors_match_enumeration)
{
    (void)state;
    check(HTH_PURE_GOSSIP, 5, "5", 0, gossip_matrix);
    check(HTH_PURE_GOSSIP, 5, "5", 0.3, gossip_matrix);
    check(HTH_PURE_PUSHSUM, 5, "5", 0, push_matrix);
    check(HTH_PURE_PUSHSUM, 5, "5", 0.3, push_matrix);
    check(HTH_PURE_MOSHPIT, 9, "3x3", 0, grid_matrix);
    check(HTH_PURE_MOSHPIT, 9, "3x3", 0.3, grid_matrix);
}

TEST(each_failure_matches_enumeration)
{
    (void)state;
    check_failure(HTH_PURE_MOSHPIT, HTH_PURE_SLOW, 9, "3x3", 0.3, late_matrix);
    check_failure(HTH_PURE_MOSHPIT, HTH_PURE_PARTITION, 9, "3x3", 0.3, cut_matrix);
    check_failure(HTH_PURE_GOSSIP, HTH_PURE_SLOW, 5, "5", 0.3, gossip_late_matrix);
    check_failure(HTH_PURE_GOSSIP, HTH_PURE_PARTITION, 5, "5", 0.3, gossip_cut_matrix);
    check_failure(HTH_PURE_PUSHSUM, HTH_PURE_PARTITION, 5, "5", 0.3, push_cut_matrix);
}

/* One round of one group with crashes: all patterns of alive, crashed before and crashed after its
 * values went out, and of each number's reducer being alive or not. */
TEST(crashes_match_enumeration)
{
    enum { N = 5, PATTERNS = 243 };
    struct hth_pure_opts opts = opts_of(HTH_PURE_MOSHPIT, N, "5", 0.3, 1);
    double want = 0, *got, apart = 1 - 1.0 / N;
    (void)state;
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        int given = 0, dead = 0, digits = pattern;
        double chance_of = 1, changed = 0;
        int fate[N];
        for (int i = 0; i < N; i++, digits /= 3) {
            fate[i] = digits % 3;
            chance_of *= fate[i] == 0 ? 0.7 : 0.15;
            dead += fate[i] != 0;
            given += fate[i] != 1;
        }
        /* a mean of `given` of N starting values is 1/given - 1/N from the mean of all */
        for (int i = 0; i < N; i++)
            changed += (fate[i] == 0 ? 1.0 / given - 1.0 / N : apart) / N;
        want += chance_of * ((double)dead / N * apart + (1 - (double)dead / N) * changed);
    }
    opts.failure = HTH_PURE_CRASH;
    opts.cap = 1;
    got = pure_means(&opts, 40000);
    assert_close(got[0], want, 0, 4 * got[hth_pure_row_len(&opts)]);
    hth_free(got);
}

/* A peer that fails for two rounds fails in both: the second changes nothing in a single group. */
TEST(held_failures_change_nothing_in_one_group)
{
    struct hth_pure_opts opts = opts_of(HTH_PURE_MOSHPIT, 6, "6", 0.3, 4);
    double row[16];
    struct hth_pure *pure;
    (void)state;
    opts.hold = 2;
    assert_int_equal(hth_pure_row_len(&opts), 16);
    assert_ok(hth_pure_new(&opts, &pure));
    uint32_t differ = 0;
    for (uint64_t s = 0; s < 50; s++) {
        hth_pure_run(pure, s, row);
        assert_close(row[0], row[1], 1e-12, 1e-30);
        assert_close(row[2], row[3], 1e-12, 1e-30);
        differ += row[1] != row[2];
    }
    assert_true(differ > 25);
    hth_pure_free(pure);
}

/* ---- properties ---------------------------------------------------------------------------- */

/* Full grids without failures are exact after as many rounds as there are axes, and not earlier. */
TEST(full_grids_are_exact_after_one_round_per_axis)
{
    static const struct {
        uint32_t peers, rounds;
        const char *grid;
    } cases[] = {{1024, 2, "32x32"}, {512, 3, "8x8x8"}, {16, 4, "2x2x2x2"}, {7, 1, "7"}};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_pure_opts opts =
            opts_of(HTH_PURE_MOSHPIT, cases[i].peers, cases[i].grid, 0, cases[i].rounds);
        double *got = pure_means(&opts, 3);

        assert_true(got[cases[i].rounds - 1] <= 1e-25);
        assert_true(cases[i].rounds == 1 || got[cases[i].rounds - 2] > 1e-3);
        assert_true(got[hth_pure_at(&opts, HTH_PURE_REACHED_1E9)] == cases[i].rounds);
        hth_free(got);
    }
}

/* Groups keep the sum, so both errors are equal; push-sum finds the mean despite absences; gossip
 * agrees on another value. */
TEST(groups_and_pushsum_find_the_mean)
{
    (void)state;
    for (int m = HTH_PURE_GOSSIP; m < HTH_PURE_METHODS; m++) {
        struct hth_pure_opts opts = opts_of((enum hth_pure_method)m, 30, "6x6", 0.1, 400);
        double *got = pure_means(&opts, 20);
        for (uint32_t t = 0; t < 30 && m >= HTH_PURE_RANDOM; t++)
            assert_close(got[t], got[opts.rounds + t], 1e-9, 1e-25);
        assert_true(got[2 * opts.rounds - 1] < 1e-4); /* variance */
        if (m == HTH_PURE_GOSSIP)
            assert_true(got[opts.rounds - 1] > 1e-4);
        else
            assert_true(got[opts.rounds - 1] < 1e-9);
        hth_free(got);
    }
}

/* Exact expectations equal those by enumeration where all patterns can be counted; elsewhere the
 * means of many seeds are near them. */
TEST(exact_expectations_match_enumeration_and_seeds)
{
    static const struct {
        enum hth_pure_method method;
        uint32_t peers;
        const char *grid;
        double p_fail;
    } cases[] = {{HTH_PURE_MOSHPIT, 24, "2x3x4", 0.2}, {HTH_PURE_MOSHPIT, 12, "3x1x4", 0.3},
                 {HTH_PURE_MOSHPIT, 16, "2x2x2x2", 0}, {HTH_PURE_RANDOM, 12, "4", 0.2},
                 {HTH_PURE_RANDOM, 6, "1", 0.5},       {HTH_PURE_GOSSIP, 7, "7", 0},
                 {HTH_PURE_GOSSIP, 2, "2", 0},         {HTH_PURE_ALLREDUCE, 9, "9", 0.05}};
    double want[5], sure[2];
    (void)state;
    struct hth_pure_opts opts = opts_of(HTH_PURE_MOSHPIT, 9, "3x3", 0.3, 2);
    enumerate(grid_matrix, 9, 0.3, false, sure);
    assert_ok(hth_pure_expected(&opts, want));
    assert_close(want[0], sure[0], 1e-12, 0);
    assert_close(want[1], sure[1], 1e-12, 0);
    opts = opts_of(HTH_PURE_GOSSIP, 5, "5", 0, 2);
    enumerate(gossip_matrix, 5, 0, false, sure);
    assert_ok(hth_pure_expected(&opts, want));
    assert_close(want[0], sure[0], 1e-12, 0);
    assert_close(want[1], sure[1], 1e-12, 0);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        opts = opts_of(cases[i].method, cases[i].peers, cases[i].grid, cases[i].p_fail, 5);
        opts.cap = 5;
        double *got = pure_means(&opts, 4000);
        assert_ok(hth_pure_expected(&opts, want));
        for (size_t t = 0; t < 5; t++)
            assert_close(got[t], want[t], 0, 4 * got[hth_pure_row_len(&opts) + t] + 1e-15);
        hth_free(got);
    }
    opts = opts_of(HTH_PURE_MOSHPIT, 8, "3x3", 0.1, 2);
    assert_err(HTH_E_UNSUPPORTED, hth_pure_expected(&opts, want));
    opts = opts_of(HTH_PURE_RANDOM, 10, "4", 0.1, 2);
    assert_err(HTH_E_UNSUPPORTED, hth_pure_expected(&opts, want));
    opts = opts_of(HTH_PURE_GOSSIP, 9, "9", 0.1, 2);
    assert_err(HTH_E_UNSUPPORTED, hth_pure_expected(&opts, want));
    opts = opts_of(HTH_PURE_MOSHPIT, 9, "3x3", 0.1, 2);
    opts.hold = 2;
    assert_err(HTH_E_UNSUPPORTED, hth_pure_expected(&opts, want));
    opts.hold = 1;
    opts.failure = HTH_PURE_CRASH;
    assert_err(HTH_E_UNSUPPORTED, hth_pure_expected(&opts, want));
    opts.peers = 0;
    assert_err(HTH_E_CONFIG, hth_pure_expected(&opts, want));
}

TEST(allreduce_rounds_match_the_formula)
{
    (void)state;
    for (uint32_t peers = 64; peers <= 512; peers *= 2) {
        struct hth_pure_opts opts = opts_of(HTH_PURE_ALLREDUCE, peers, "32x32", 0.005, 3);
        double want = pow(0.995, -(double)peers), *got = pure_means(&opts, 2000), missed = 1;
        size_t len = hth_pure_row_len(&opts), at = hth_pure_at(&opts, HTH_PURE_REACHED_1E9);
        assert_close(hth_pure_allreduce_rounds(&opts), want, 1e-12, 0);
        assert_close(got[at], want, 0, 4 * got[len + at]);
        for (uint32_t t = 0; t < 3; t++) {
            missed *= 1 - 1 / want;
            assert_close(got[t], missed * (peers - 1) / peers, 0, 4 * got[len + t]);
        }
        hth_free(got);
    }
}

/* Vectors sent by a peer in a round. */
TEST(vectors_sent_match_the_formulas)
{
    static const struct {
        enum hth_pure_method method;
        const char *grid;
        double first, second;
    } cases[] = {
        {HTH_PURE_ALLREDUCE, "8x8", 2 * 63 / 64.0, 0},
        {HTH_PURE_GOSSIP, "8x8", 2, 2},
        {HTH_PURE_PUSHSUM, "8x8", 2, 2},
        {HTH_PURE_RANDOM, "8x8", 1.75, 1.75},
        {HTH_PURE_MOSHPIT, "16x4", 2 * 15 / 16.0, 1.5},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_pure_opts opts = opts_of(cases[i].method, 64, cases[i].grid, 0, 2);
        double *got = pure_means(&opts, 2);
        assert_close(got[4], cases[i].first, 1e-12, 0);
        assert_close(got[5], cases[i].second, 1e-12, 0);
        hth_free(got);
    }
    struct hth_pure_opts opts = opts_of(HTH_PURE_GOSSIP, 64, "8x8", 0.25, 1);
    double *got = pure_means(&opts, 1000);
    assert_close(got[2], 2 * 0.75 * 0.75, 0, 4 * got[hth_pure_row_len(&opts) + 2]);
    hth_free(got);
}

/* A target that is not reached counts as the cap, and is reported. */
TEST(unreached_targets_count_as_the_cap)
{
    struct hth_pure_opts opts = opts_of(HTH_PURE_GOSSIP, 200, "20x20", 0, 4);
    double *got;
    (void)state;
    opts.cap = 7;
    got = pure_means(&opts, 4);
    assert_close(got[hth_pure_at(&opts, HTH_PURE_REACHED)], 7, 1e-12, 0);
    assert_close(got[hth_pure_at(&opts, HTH_PURE_UNREACHED)], 1, 1e-12, 0);
    hth_free(got);
}

/* A seed gives the same row in any order and on any thread. */
TEST(row_depends_on_seed_only)
{
    (void)state;
    for (int m = 0; m < HTH_PURE_METHODS; m++) {
        struct hth_pure_opts opts = opts_of((enum hth_pure_method)m, 50, "8x8", 0.05, 5);
        double first[19], again[19], other[19];
        struct hth_pure *a, *b;
        assert_int_equal(hth_pure_row_len(&opts), 19);
        assert_ok(hth_pure_new(&opts, &a));
        assert_ok(hth_pure_new(&opts, &b));
        hth_pure_run(a, 3, first);
        hth_pure_run(b, 9, other);
        hth_pure_run(b, 3, again);
        assert_memory_equal(first, again, sizeof(first));
        assert_memory_not_equal(first, other, sizeof(first));
        hth_pure_free(a);
        hth_pure_free(b);
    }
}

TEST(invalid_options_are_refused)
{
    struct hth_pure_opts good = HTH_PURE_OPTS_INIT;
    struct hth_pure *pure;
    enum hth_pure_method method;
    struct hth_pure_opts bad[12];
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        bad[i] = good;
    bad[0].peers = 0;
    bad[1].peers = HTH_PURE_PEERS_MAX + 1;
    bad[2].rounds = 0;
    bad[3].rounds = HTH_PURE_ROUNDS_MAX + 1;
    bad[4].cap = HTH_PURE_ROUNDS_MAX + 1;
    bad[5].p_fail = 1;
    bad[6].p_fail = NAN;
    bad[7].shape.size[1] = 0;
    bad[8].shape = (struct hth_avg_shape){.dims = 2, .size = {2048, 1024}};
    bad[9].peers = 1025; /* each needs a cell */
    bad[10].hold = 0;
    bad[11].failure = HTH_PURE_FAILURES;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        assert_err(HTH_E_CONFIG, hth_pure_new(&bad[i], &pure));
    bad[9].method = HTH_PURE_RANDOM; /* a method that needs no cells */
    assert_ok(hth_pure_new(&bad[9], &pure));
    hth_pure_free(pure);
    assert_ok(hth_pure_method_find("pushsum", &method));
    assert_int_equal(method, HTH_PURE_PUSHSUM);
    assert_err(HTH_E_NOT_FOUND, hth_pure_method_find("push", &method));
}

/* ---- mixing -------------------------------------------------------------------------------- */

TEST(mixing_matches_theorem_3_2)
{
    static const struct {
        uint32_t peers, groups;
        double exact, printed;
    } cases[] = {{6, 1, 0, 0.027778},       {6, 2, 0.2, 0.222222},
                 {6, 3, 0.4, 0.416667},     {6, 6, 1, 1},
                 {8, 2, 1.0 / 7, 0.156250}, {8, 4, 3.0 / 7, 0.437500},
                 {7, 3, 1.0 / 3, 0.346939}};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_mixing_opts o = {cases[i].peers, cases[i].groups, 2, 5};
        double sum[2] = {0}, square[2] = {0}, trials = 20000;
        assert_ok(hth_mixing_block(&o, 0, 10000, sum, square));
        assert_ok(hth_mixing_block(&o, 1, 10000, sum, square));
        assert_close(hth_mixing_exact(&o, 1), cases[i].exact, 0, 1e-12);
        assert_close(hth_mixing_printed(&o, 1), cases[i].printed, 0, 1e-6);
        for (uint32_t t = 0; t < 2; t++) {
            double mean = sum[t] / trials;
            double se = sqrt(fmax(0, square[t] / trials - mean * mean) / (trials - 1));
            assert_close(mean, hth_mixing_exact(&o, t + 1), 0, 4 * se + 1e-12);
            assert_true(mean <= hth_mixing_printed(&o, t + 1) + 1e-12);
        }
    }
    struct hth_mixing_opts bad = {1, 1, 1, 1};
    double sum, square;
    assert_err(HTH_E_CONFIG, hth_mixing_block(&bad, 0, 1, &sum, &square));
    bad = (struct hth_mixing_opts){8, 9, 1, 1};
    assert_err(HTH_E_CONFIG, hth_mixing_block(&bad, 0, 1, &sum, &square));
    bad = (struct hth_mixing_opts){8, 0, 1, 1};
    assert_err(HTH_E_CONFIG, hth_mixing_block(&bad, 0, 1, &sum, &square));
}
