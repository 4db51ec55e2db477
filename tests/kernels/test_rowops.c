/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rowops.c: every table of row loops that this CPU runs, against double: odd lengths, rows at
 * the end of memory, in place, NaN and infinity, all halves.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <sys/mman.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/isa.h"
#include "kernels/rowops.h"
#include "kernels/twin64.h"
#include "support/suite.h"

/* The table under test, one after the other of those that this CPU runs. */
static struct table {
    const char *isa;
    const struct hth_rowops *row;
} * table, tables[8];
static size_t table_count;

static void find_tables(void)
{
    const char *isa;
    for (size_t i = 0; (isa = hth_isa_name(i)) != NULL; i++) {
        struct table t = {isa, hth_rowops_find(isa)};
        assert_true(table_count < HTH_ARRAY_LEN(tables));
        if (hth_isa_runs(isa) && (table_count == 0 || tables[table_count - 1].row != t.row))
            tables[table_count++] = t;
    }
}

static const size_t lengths[] = {1,   2,   3,   4,   5,   7,   8,   9,   15,   16,  17, 31,
                                 32,  33,  47,  48,  63,  64,  65,  79,  80,   95,  96, 127,
                                 128, 129, 191, 192, 193, 255, 256, 257, 1000, 1023};
#define LONGEST 1023

/* -- rows that end where the readable memory ends ------------------------------------------ */

#define ROWS 6

static struct {
    uint8_t *map[ROWS];
    size_t size;
    float *row[ROWS]; /* of the current length */
    size_t n;
} mem;

static int setup(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    (void)state;
    find_tables();
    mem.size = (LONGEST * sizeof(float) / page + 2) * page;
    for (size_t i = 0; i < ROWS; i++) {
        mem.map[i] =
            mmap(NULL, mem.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mem.map[i] == MAP_FAILED ||
            mprotect(mem.map[i] + mem.size - page, page, PROT_NONE) != 0)
            return -1;
    }
    return 0;
}

/* Rows of n random floats in [-scale, scale), NaN before them. */
static void rows_of(size_t n, float scale)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    mem.n = n;
    for (size_t r = 0; r < ROWS; r++) {
        memset(mem.map[r], 0xff, mem.size - page);
        mem.row[r] = (float *)(void *)(mem.map[r] + mem.size - page) - n;
        for (size_t i = 0; i < n; i++)
            mem.row[r][i] =
                ((float)(int32_t)(hth_mix64(n * 7919 + r * 104729 + i) >> 40) * 0x1p-23f - 1.0f) *
                scale;
    }
}

static double wide[ROWS][LONGEST];

/* Copies the rows as doubles before an operation changes them. */
static void widen(void)
{
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t i = 0; i < mem.n; i++)
            wide[r][i] = (double)mem.row[r][i];
    }
}

static void same(const char *what, const float *got, const double *want, size_t n, double tolerance)
{
    double off = hth_test_rel_l2(got, want, n);
    if (!(off <= tolerance))
        fail_msg("%s, %s, %zu values: off by %.2e", table->isa, what, mem.n, off);
}

static void near(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s, %s, %zu values: %.9g, not %.9g", table->isa, what, mem.n, got, want);
}

/* Runs a check on every table and length, with fresh rows. */
static void everywhere(float scale, void (*check)(const struct hth_rowops *row, size_t n))
{
    for (table = tables; table < tables + table_count; table++) {
        for (size_t k = 0; k < HTH_ARRAY_LEN(lengths); k++) {
            rows_of(lengths[k], scale);
            widen();
            check(table->row, lengths[k]);
        }
    }
}

#define ROWS_OF_CHECK                                                                              \
    float *a = mem.row[0], *b = mem.row[1], *c = mem.row[2], *d = mem.row[3];                      \
    double *want = wide[ROWS - 1];                                                                 \
    (void)a, (void)b, (void)c, (void)d, (void)want

/* -- activations, norms, softmax ----------------------------------------------------------- */

static void check_dense(const struct hth_rowops *row, size_t n)
{
    ROWS_OF_CHECK;
    for (size_t i = 0; i < n; i++) {
        want[i] = twin_act(HTH_ACT_GELU, wide[0][i]) * wide[1][i];
        wide[4][i] = wide[2][i] * wide[1][i] * twin_act_slope(HTH_ACT_GELU, wide[0][i]);
    }
    row->geglu(n, a, b, d);
    same("geglu", d, want, n, 1e-6);
    for (size_t i = 0; i < n; i++)
        want[i] = wide[2][i] * twin_act(HTH_ACT_GELU, wide[0][i]);
    row->geglu_back(n, a, b, c, a, b);
    same("geglu', first half", a, wide[4], n, 1e-6);
    same("geglu', second half", b, want, n, 1e-6);
    for (size_t i = 0; i < n; i++)
        want[i] = (double)a[i] * (double)b[i] + wide[2][i];
    row->scale(n, a, b, c, c);
    same("scale", c, want, n, 1e-6);
}

static void check_activations(const struct hth_rowops *row, size_t n)
{
    ROWS_OF_CHECK;
    for (size_t i = 0; i < n; i++)
        want[i] = twin_act(HTH_ACT_GELU, wide[0][i]);
    row->act_forward(n, HTH_ACT_GELU, a, c);
    same("gelu", c, want, n, 1e-6);
    for (size_t i = 0; i < n; i++)
        want[i] = twin_act_slope(HTH_ACT_GELU, wide[0][i]) * wide[1][i];
    row->act_backward(n, HTH_ACT_GELU, a, b, b);
    same("gelu'", b, want, n, 1e-6);
    struct hth_row_epilogue e = {.bias = d, .act = HTH_ACT_GELU, .pre = c, .residual = NULL};
    for (size_t i = 0; i < n; i++)
        want[i] = twin_act(HTH_ACT_GELU, (double)(a[i] + d[i]));
    row->epilogue(n, a, &e, a);
    same("epilogue", a, want, n, 1e-6);
}

TEST(activations_match_double)
{
    (void)state;
    everywhere(4, check_activations);
    everywhere(4, check_dense);
}

static void check_layernorm(const struct hth_rowops *row, size_t n)
{
    ROWS_OF_CHECK;
    float stats[2];
    double *dgamma = hth_new_array(double, 3 * LONGEST), *dbeta = dgamma + LONGEST;
    double *dx = dbeta + LONGEST;
    struct hth_row_norm norm = {.gamma = b, .beta = c, .eps = 1e-5f};
    struct twin_norm t = {wide[0], wide[1], wide[2], (double)1e-5f, dgamma, dbeta};
    twin_layernorm(1, n, &t, want);
    row->layernorm(n, a, &norm, mem.row[4], stats);
    if (n > 1) /* one value has deviation 0 */
        same("layernorm", mem.row[4], want, n, 3e-6);
    memset(mem.row[4], 0, n * sizeof(float));
    memset(mem.row[5], 0, n * sizeof(float));
    twin_layernorm_back(1, n, &t, wide[3], dx);
    struct hth_row_norm_back back = {a, b, stats, d, d, mem.row[4], mem.row[5]};
    row->layernorm_sums(n, &back);
    row->layernorm_back(n, &back);
    if (n > 2)
        same("dx", d, dx, n, 1e-5);
    same("dbeta", mem.row[5], dbeta, n, 1e-6);
    if (n > 1)
        same("dgamma", mem.row[4], dgamma, n, 1e-5);
    hth_free(dgamma);
}

TEST(layernorm_matches_double)
{
    (void)state;
    everywhere(2, check_layernorm);
}

static void check_softmax_and_xent(const struct hth_rowops *row, size_t n)
{
    ROWS_OF_CHECK;
    twin_softmax(1, n, wide[0], want);
    row->softmax(n, a, c);
    same("softmax", c, want, n, 2e-6);
    double dx[LONGEST], max = -INFINITY, sum = 0;
    int label = (int)(n / 3);
    bool first = true;
    for (size_t i = 0; i < n; i++)
        max = fmax(max, wide[0][i]);
    for (size_t i = 0; i < n; i++)
        sum += exp(wide[0][i] - max);
    for (size_t i = 0; i < n; i++)
        first = first && (i == (size_t)label || wide[0][i] < wide[0][label]);
    float got_max, got_sum;
    row->max_sumexp(n, a, &got_max, &got_sum);
    near("max", (double)got_max, max, 0);
    near("sum", (double)got_sum, sum, 2e-6 * sum);
    (void)twin_xent(1, n, wide[0], &label, dx);
    for (size_t i = 0; i < n; i++)
        dx[i] *= 0.5;
    for (int kind = 0; kind < 3; kind++) { /* no gradient, apart, in place */
        struct hth_row_xent x;
        float *out = kind == 0 ? NULL : kind == 1 ? b : a;
        row->xent(n, a, (size_t)label, 0.5f, &x, out);
        near("xent max", (double)x.max, max, 0);
        near("xent sum", (double)x.sum, sum, 2e-6 * sum);
        assert_true((double)x.at_label == wide[0][label] && x.first == first);
        for (size_t i = 0; out != NULL && i < n; i++)
            near("xent dx", (double)out[i], dx[i], 5e-7);
    }
}

TEST(softmax_and_xent_match_double)
{
    (void)state;
    everywhere(20, check_softmax_and_xent);
}

/* The first of equal largest elements is the largest, at any place. */
static void check_first_largest(const struct hth_rowops *row, size_t n)
{
    ROWS_OF_CHECK;
    struct hth_row_xent x;
    size_t p = n / 2, q = n - 1;
    a[p] = a[q] = 7;
    row->xent(n, a, p, 1, &x, NULL);
    assert_true(x.first && x.max == 7);
    row->xent(n, a, q, 1, &x, NULL);
    assert_true(x.first == (p == q));
    a[0] = NAN;
    row->xent(n, a, q, 1, &x, b);
    assert_true(isnan(x.sum) && isnan(b[n - 1]));
}

TEST(first_of_equal_largest_wins)
{
    (void)state;
    everywhere(1, check_first_largest);
}

/* -- sums and small things ----------------------------------------------------------------- */

static void check_sums(const struct hth_rowops *row, size_t n)
{
    ROWS_OF_CHECK;
    double dot = 0, squares = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        dot += wide[0][i] * wide[1][i];
        size += fabs(wide[0][i] * wide[1][i]);
        squares += wide[0][i] * wide[0][i];
    }
    near("dot", (double)row->dot(n, a, b), dot, 5e-7 * size);
    near("sumsq", row->sumsq(n, a), squares, 1e-13 * squares);
    for (size_t at = 0; at < n; at += n / 5 + 1) {
        float kept = a[at];
        a[at] = at % 2 ? NAN : -INFINITY;
        assert_false(isfinite(row->sumsq(n, a)));
        a[at] = 3e38f;
        assert_true(isfinite(row->sumsq(n, a)));
        a[at] = kept;
    }
}

TEST(sums_match_double)
{
    (void)state;
    everywhere(3, check_sums);
}

static void check_elementwise(const struct hth_rowops *row, size_t n)
{
    ROWS_OF_CHECK;
    for (size_t i = 0; i < n; i++)
        want[i] = 0.5 * wide[0][i] - 0.25 * wide[1][i];
    row->combine(n, 0.5f, a, -0.25f, b, c);
    same("combine", c, want, n, 2e-7);
    for (size_t i = 0; i < n; i++)
        want[i] = wide[1][i] + 0.75 * wide[0][i];
    row->axpy(n, 0.75f, a, b);
    same("axpy", b, want, n, 2e-7);
    for (size_t i = 0; i < n; i++)
        want[i] = exp(wide[0][i] - 3);
    row->exp_minus(n, a, 3, c);
    same("exp_minus", c, want, n, 1e-6);
    memset(d, 0, n * sizeof(float));
    row->stream(n * sizeof(float), a, d);
    row->stream_end();
    assert_memory_equal(a, d, n * sizeof(float));
}

TEST(elementwise_loops_match_double)
{
    (void)state;
    everywhere(2, check_elementwise);
}

/* NaN and infinity follow the arithmetic of floats. */
static void check_bad_values(const struct hth_rowops *row, size_t n)
{
    ROWS_OF_CHECK;
    for (size_t at = 0; at < n; at += n / 4 + 1) {
        float kept = a[at];
        a[at] = NAN;
        row->softmax(n, a, c);
        for (size_t i = 0; i < n; i++)
            assert_true(isnan(c[i]));
        row->act_forward(n, HTH_ACT_GELU, a, c);
        for (size_t i = 0; i < n; i++)
            assert_true(isnan(c[i]) == (i == at));
        row->act_forward(n, HTH_ACT_RELU, a, c);
        assert_true(isnan(c[at]));
        a[at] = INFINITY;
        row->act_forward(n, HTH_ACT_GELU, a, c);
        assert_true(c[at] == INFINITY);
        a[at] = -1e30f;
        row->act_forward(n, HTH_ACT_GELU, a, c);
        assert_true(c[at] == 0);
        row->act_backward(n, HTH_ACT_GELU, a, b, c);
        assert_true(c[at] == 0);
        row->softmax(n, a, c);
        assert_true((n == 1 ? c[at] == 1 : c[at] == 0));
        a[at] = kept;
    }
}

TEST(nan_and_infinity_propagate)
{
    (void)state;
    everywhere(1, check_bad_values);
}

/* -- halves -------------------------------------------------------------------------------- */

/* Every half to float is exact, and back gives the same bits; NaN stays NaN. */
TEST(every_half_converts_exactly)
{
    static uint16_t half[65536], back[65536];
    static float x[65536], y[65536];
    (void)state;
    for (uint32_t i = 0; i < 65536; i++)
        half[i] = (uint16_t)i;
    for (table = tables; table < tables + table_count; table++) {
        for (int bf = 0; bf < 2; bf++) {
            (bf ? hth_rowops_ref.from_bf16 : hth_rowops_ref.from_f16)(65536, half, x);
            (bf ? table->row->from_bf16 : table->row->from_f16)(65536, half, y);
            (bf ? table->row->to_bf16 : table->row->to_f16)(65536, y, back);
            uint32_t infinite = bf ? 0x7f80 : 0x7c00;
            for (uint32_t i = 0; i < 65536; i++) {
                if ((i & 0x7fff) > infinite) {
                    assert_true(isnan(y[i]) && (back[i] & 0x7fff) > infinite);
                    continue;
                }
                assert_true(memcmp(&x[i], &y[i], 4) == 0 && back[i] == half[i]);
            }
        }
    }
    assert_true(x[0x3f80] == 1.0f && x[0xc000] == -2.0f); /* of bf16, the last format */
}

/* Nearest, ties to even, against the definition: the nearest of the two halves around. */
static void check_rounding_to_half(const struct hth_rowops *row, size_t n)
{
    ROWS_OF_CHECK;
    static const float special[] = {65504,    65519.99f,  65520,    65536,        1e-8f, 0x1p-24f,
                                    0x1p-25f, 0x1.8p-24f, 0x1p-14f, 0x1.ffcp-15f, 0.1f,  -0.0f};
    uint16_t h[LONGEST];
    uint16_t ref[LONGEST];
    for (size_t i = 0; i < n; i++)
        a[i] =
            i % 3 == 0 ? special[i / 3 % HTH_ARRAY_LEN(special)] : a[i] * ldexpf(1, -(int)(i % 36));
    row->to_f16(n, a, h);
    hth_rowops_ref.to_f16(n, a, ref);
    assert_memory_equal(h, ref, n * sizeof(h[0]));
    row->from_f16(n, h, b);
    for (size_t i = 0; i < n; i++) {
        double x = (double)a[i];
        double step = fmax(ldexp(1, ilogb(x == 0 ? 1e-30 : x) - 10), 0x1p-24);
        if (fabs(x) >= 65520)
            assert_true(isinf(b[i]));
        else
            assert_true(fabs((double)b[i] - x) <= step / 2);
    }
    row->to_bf16(n, a, h);
    hth_rowops_ref.to_bf16(n, a, ref);
    assert_memory_equal(h, ref, n * sizeof(h[0]));
}

TEST(floats_round_to_nearest_half)
{
    (void)state;
    everywhere(70000, check_rounding_to_half);
}

/* -- optimisers ---------------------------------------------------------------------------- */

static int optim_variant; /* the kinds, and SGD without momentum */

static void check_optimisers(const struct hth_rowops *row, size_t n)
{
    ROWS_OF_CHECK;
    int kind = optim_variant;
    struct hth_step s = {.kind = kind < 3 ? (enum hth_optim_kind)kind : HTH_OPTIM_SGD,
                         .grad_scale = 0.5f,
                         .lr = 0.01f,
                         .momentum = kind == 3 ? 0 : 0.9f,
                         .beta1 = 0.9f,
                         .beta2 = 0.999f,
                         .eps = 1e-8f,
                         .decay = 0.1f,
                         .bias1 = 1.0f - 0.9f,
                         .bias2_sqrt = sqrtf(1.0f - 0.999f)};
    struct twin_optim t = {(int)s.kind,     (double)s.lr,  (double)s.momentum, (double)s.beta1,
                           (double)s.beta2, (double)s.eps, (double)s.decay};
    struct hth_row_step r = {.w = a, .m = c, .v = d, .g = b, .count = n};
    memset(c, 0, n * sizeof(float));
    memset(d, 0, n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        wide[2][i] = wide[3][i] = 0;
        twin_optim(&t, 1, 0.5 * wide[1][i], &wide[0][i], &wide[2][i], &wide[3][i]);
    }
    (s.kind == HTH_OPTIM_SGD ? row->sgd : row->adam)(&s, &r);
    same("w", a, wide[0], n, 2e-6);
    if (kind != 3)
        same("m", c, wide[2], n, 2e-6);
    if (s.kind != HTH_OPTIM_SGD)
        same("v", d, wide[3], n, 2e-4); /* 1 - 0.999f has lost three digits */
}

TEST(optimisers_match_double)
{
    (void)state;
    for (optim_variant = 0; optim_variant < 4; optim_variant++)
        everywhere(1, check_optimisers);
}

static void check_lamb(const struct hth_rowops *row, size_t n)
{
    ROWS_OF_CHECK;
    struct hth_step s = {.kind = HTH_OPTIM_LAMB,
                         .grad_scale = 0.5f,
                         .beta1 = 0.75f,
                         .beta2 = 0.875f,
                         .eps = 1e-6f,
                         .decay = 0.125f,
                         .bias1 = 0.4375f,
                         .bias2_sqrt = 0.5f};
    struct hth_row_step r = {.w = a, .m = c, .v = d, .g = b, .count = n};
    double sums[2], ww = 0, uu = 0;
    for (size_t i = 0; i < n; i++) {
        d[i] = fabsf(d[i]);
        double g = 0.5 * wide[1][i], m = 0.75 * wide[2][i] + 0.25 * g;
        double v = 0.875 * (double)d[i] + 0.125 * g * g;
        double u = m / 0.4375 / (sqrt(v) / 0.5 + 1e-6) + 0.125 * wide[0][i];
        ww += wide[0][i] * wide[0][i];
        uu += u * u;
        want[i] = wide[0][i] - 0.03 * u;
        wide[2][i] = m;
    }
    row->lamb_moments(&s, &r, sums);
    near("||w||^2", sums[0], ww, 1e-12 * ww);
    near("||r||^2", sums[1], uu, 2e-6 * uu);
    same("m", c, wide[2], n, 1e-6);
    row->lamb_apply(&s, &r, 0.03f);
    same("w", a, want, n, 1e-6);
}

TEST(lamb_matches_double)
{
    (void)state;
    everywhere(1, check_lamb);
}

SUITE_WITH(setup, NULL)
