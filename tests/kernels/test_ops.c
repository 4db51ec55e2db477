/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ops.c: tests beside the table of cases: formats, dropout, clipping, schedules, scratch, back
 * ends by name, the benchmark functions.
 */
#include "core/limits.h"
#include "core/mem.h"
#include "core/rng.h"
#include "benchmarks/kernels/bench.h"
#include "kernels/blas.h"
#include "kernels/blocks.h"
#include "kernels/math64.h"
#include "kernels/optim.h"
#include "support/suite.h"

static const struct hth_backend *backends[2];
static struct hth_exec *execs[2];

static int setup(void **state)
{
    (void)state;
    backends[0] = hth_backend_ref();
    if (hth_test_blas(&backends[1]) != HTH_OK)
        return -1;
    for (size_t k = 0; k < 2; k++) {
        if (hth_exec_new(backends[k], 1 << 20, &execs[k]) != HTH_OK)
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hth_exec_free(execs[0]);
    hth_exec_free(execs[1]);
    return 0;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* The value of a half, from its definition. */
static double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double sign = h & 0x8000 ? -1 : 1;
    if (exponent == 31)
        return mantissa ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24));
}

static double bf16_value(uint16_t h)
{
    return (double)float_of((uint32_t)h << 16);
}

/* All 65536 numbers of a 16-bit format survive the round trip. A value between two neighbours
 * rounds to the nearer one, the middle to the even one. */
static void check_format(struct hth_exec *ex, enum hth_dtype dtype, double (*value)(uint16_t),
                         uint16_t infinity)
{
    enum { N = 65536 };
    uint16_t *in = hth_calloc(N, 2), *out = hth_calloc(N, 2);
    float *wide = hth_calloc(N, sizeof(float));
    for (int i = 0; i < N; i++)
        in[i] = (uint16_t)i;
    struct hth_view v16 = {in, dtype, 1, N, N}, vout = {out, dtype, 1, N, N};
    struct hth_view v32 = hth_view_f32(wide, 1, N, N);
    assert_ok(hth_cast(ex, v16, v32));
    assert_ok(hth_cast(ex, v32, vout));
    for (int i = 0; i < N; i++) {
        double want = value((uint16_t)i);
        if (isnan(want)) {
            assert_true(isnan(wide[i]) && isnan(value(out[i])));
        } else {
            assert_true((double)wide[i] == want);
            assert_int_equal(out[i], i);
        }
    }
    /* Quarter points between i and i + 1, both signs; the step above the largest number is the last
     * before infinity. */
    for (int quarter = 1; quarter < 4; quarter++) {
        for (int i = 0; i + 1 < infinity; i++) {
            double low = value((uint16_t)i), step = value((uint16_t)(i + 1)) - low;
            wide[i] = (float)(low + step * quarter / 4);
            wide[i + 32768] = -wide[i];
        }
        assert_ok(hth_cast(ex, v32, vout));
        for (int i = 0; i + 1 < infinity; i++) {
            int want = quarter == 2 ? i + (i & 1) : i + (quarter > 2);
            assert_int_equal(out[i], want);
            assert_int_equal(out[i + 32768], want + 32768);
        }
    }
    hth_free(in);
    hth_free(out);
    hth_free(wide);
}

TEST(formats_round_to_nearest_even)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        check_format(execs[k], HTH_F16, half_value, 0x7c00);
        check_format(execs[k], HTH_BF16, bf16_value, 0x7f80);
        /* Beyond the largest: 65519.99 is still 65504, 65520 is not. */
        float big[6] = {65519.99f,           65520, -1e30f, 3.4028235e38f, float_of(0x7f800001),
                        float_of(0xffffffff)};
        uint16_t h[6], b[6];
        struct hth_view in = hth_view_f32(big, 1, 6, 6);
        struct hth_view half = {h, HTH_F16, 1, 6, 6}, brain = {b, HTH_BF16, 1, 6, 6};
        assert_ok(hth_cast(execs[k], in, half));
        assert_ok(hth_cast(execs[k], in, brain));
        assert_int_equal(h[0], 0x7bff);
        assert_int_equal(h[1], 0x7c00);
        assert_int_equal(h[2], 0xfc00);
        assert_int_equal(b[3], 0x7f80);
        assert_true(isnan(half_value(h[4])) && isnan(half_value(h[5])));
        assert_true(isnan(bf16_value(b[4])) && isnan(bf16_value(b[5])));
    }
}

TEST(dropout_is_a_function_of_its_seed)
{
    (void)state;
    enum { M = 37, N = 2051 };
    float *x = hth_calloc((size_t)3 * M * N, sizeof(float)), *y = x + M * N, *z = y + M * N;
    struct hth_view v[3];
    for (size_t i = 0; i < 3; i++)
        v[i] = hth_view_f32(x + i * M * N, M, N, N);
    for (size_t i = 0; i < (size_t)M * N; i++)
        x[i] = 1;
    struct hth_dropout drop = {.p = 0.25f, .seed = 1234567890123, .op = 3, .step = 9, .expert = 2};
    assert_ok(hth_dropout(execs[0], &drop, v[0], v[1]));
    assert_ok(hth_dropout(execs[1], &drop, v[0], v[2]));
    assert_memory_equal(y, z, (size_t)M * N * sizeof(float));
    uint32_t key[2] = {(uint32_t)drop.seed, (uint32_t)(drop.seed >> 32)}, words[4];
    size_t kept = 0;
    for (uint32_t r = 0; r < M; r++) {
        for (uint32_t c = 0; c < N; c++) {
            hth_philox((uint32_t[]){r * ((N + 3) / 4) + c / 4, 3, 9, 2}, key, words);
            bool keep = words[c % 4] >= UINT32_C(0x40000000);
            assert_true(y[r * N + c] == (keep ? 1 / 0.75f : 0));
            kept += keep;
        }
    }
    assert_close((double)kept / (M * N), 0.75, 0.01, 0);
    drop.step++;
    assert_ok(hth_dropout(execs[0], &drop, v[0], v[2]));
    assert_true(memcmp(y, z, (size_t)M * N * sizeof(float)) != 0);
    drop.p = 0;
    assert_ok(hth_dropout(execs[0], &drop, v[0], v[0]));
    assert_true(x[0] == 1 && x[M * N - 1] == 1);
    for (size_t i = 0; i < 3; i++) {
        drop.p = (const float[]){1, -0.1f, NAN}[i];
        assert_err(HTH_E_RANGE, hth_dropout(execs[0], &drop, v[0], v[1]));
    }
    hth_free(x);
}

TEST(norm_and_clipping_are_right)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct hth_params *p;
        struct hth_weight *a, *b;
        struct hth_param_spec sa = {.name = "a", .rows = 3, .cols = 7};
        struct hth_param_spec sb = {.name = "b", .rows = 1, .cols = 5};
        struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
        float g[21], h[5];
        double sum = 0, norm;
        bool finite;
        assert_ok(hth_params_new(backends[k], &p));
        assert_ok(hth_params_add(p, &sa, &a));
        assert_ok(hth_params_add(p, &sb, &b));
        assert_ok(hth_params_seal(p, &seal));
        for (int i = 0; i < 26; i++) {
            float value = (float)(i * i) - 100;
            *(i < 21 ? &g[i] : &h[i - 21]) = value;
            sum += (double)value * (double)value;
        }
        assert_ok(hth_grad_norm(execs[k], p, &norm, &finite));
        assert_true(finite && norm == 0);
        assert_ok(hth_weight_import(execs[k], a, HTH_PART_GRAD, g));
        assert_ok(hth_weight_import(execs[k], b, HTH_PART_GRAD, h));
        assert_ok(hth_grad_norm(execs[k], p, &norm, &finite));
        assert_true(finite);
        assert_close(norm, sqrt(sum), 1e-13, 0);
        h[4] = 3e38f; /* its square overflows a float, but not the sum */
        assert_ok(hth_weight_import(execs[k], b, HTH_PART_GRAD, h));
        assert_ok(hth_grad_norm(execs[k], p, &norm, &finite));
        assert_true(finite);
        assert_close(norm, 3e38, 1e-6, 0);
        h[4] = k == 0 ? NAN : -INFINITY;
        assert_ok(hth_weight_import(execs[k], b, HTH_PART_GRAD, h));
        assert_ok(hth_grad_norm(execs[k], p, &norm, &finite));
        assert_false(finite);
        hth_params_free(p);
    }
    assert_true(hth_clip_scale(0.5, 1) == 1);
    assert_true(hth_clip_scale(50, 0) == 1);
    assert_close(hth_clip_scale(50, 1), 1 / (50 + 1e-6), 1e-7, 0);
    assert_true(hth_clip_scale(0, 1) == 1);
}

TEST(schedules_follow_their_equations)
{
    (void)state;
    struct hth_schedule s = {.lr = 0.1f, .lr_final = 0.01f, .warmup_steps = 10, .total_steps = 110};
    const double pi = 3.14159265358979324;
    for (int kind = HTH_SCHEDULE_CONSTANT; kind <= HTH_SCHEDULE_COSINE; kind++) {
        s.kind = (enum hth_schedule_kind)kind;
        for (uint64_t step = 0; step < 130; step++) {
            double t = fmin(1, ((double)step - 10) / 100), want = 0.1;
            if (step < 10)
                want = 0.1 * ((double)step + 1) / 10;
            else if (kind == HTH_SCHEDULE_LINEAR)
                want = 0.1 + t * (0.01 - 0.1);
            else if (kind == HTH_SCHEDULE_COSINE)
                want = 0.01 + 0.09 * 0.5 * (1 + cos(pi * t));
            assert_close(hth_schedule_lr(&s, step), want, 1e-6, 0);
        }
    }
    s.total_steps = 0;
    assert_true(hth_schedule_lr(&s, UINT64_MAX) == 0.1f);
    s.warmup_steps = 0;
    assert_true(hth_schedule_lr(&s, 0) == 0.1f);
}

TEST(math64_matches_the_library)
{
    (void)state;
    for (int i = -3000; i <= 3000; i++) {
        double x = i * 0.2371, s, c;
        hth_sincos64(x * 37, &s, &c);
        assert_close(s, sin(x * 37), 0, 4e-16);
        assert_close(c, cos(x * 37), 0, 4e-16);
        assert_close(hth_exp64(x * 0.99), exp(x * 0.99), 1e-15, 1e-320);
        assert_close(hth_log64(exp(x * 0.99)), log(exp(x * 0.99)), 4e-16, 1e-300);
        assert_close(hth_log64(1 + x * 1e-9), log(1 + x * 1e-9), 4e-16, 1e-17);
    }
    assert_true(hth_exp64(0) == 1 && hth_log64(1) == 0);
    assert_true(hth_exp64(-800) == 0 && isinf(hth_exp64(800)) && isnan(hth_exp64((double)NAN)));
    assert_true(isinf(hth_log64(0)) && isnan(hth_log64(-1)) && isinf(hth_log64((double)INFINITY)));
    assert_close(hth_log64(0x1p-1070), log(0x1p-1070), 1e-15, 0);
}

TEST(scratch_is_a_bounded_stack)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct hth_exec *ex;
        struct hth_params *p;
        struct hth_ffn f;
        struct hth_ffn_options options = {.dim = 64, .hidden = 512};
        struct hth_seal_options seal = {0};
        float x[3 * 64] = {0}, y[3 * 64];
        struct hth_view vx = hth_view_f32(x, 3, 64, 64), vy = hth_view_f32(y, 3, 64, 64);
        assert_ok(hth_params_new(backends[k], &p));
        assert_ok(hth_ffn_declare(p, &options, &f));
        assert_ok(hth_params_seal(p, &seal));
        assert_ok(hth_exec_new(backends[k], 64, &ex));
        assert_err(HTH_E_NO_MEMORY, hth_ffn_forward(ex, &f, vx, vy, NULL));
        assert_ok(hth_exec_reserve(ex, hth_ffn_scratch_bytes(backends[k], &f, 3)));
        assert_ok(hth_ffn_forward(ex, &f, vx, vy, NULL));
        /* The stack: aligned, exhaustible, given back. */
        size_t mark = hth_exec_mark(ex);
        assert_null(hth_exec_take(ex, SIZE_MAX));
        void *a = hth_exec_take(ex, 1), *b = hth_exec_take(ex, 65);
        assert_true((uintptr_t)a % 64 == 0 && (uintptr_t)b - (uintptr_t)a == 64);
        assert_int_equal(hth_exec_mark(ex) - mark, hth_exec_cost(1) + hth_exec_cost(65));
        hth_exec_release(ex, mark);
        hth_exec_free(ex);
        hth_params_free(p);
    }
}

TEST(backends_are_found_by_name)
{
    (void)state;
    const struct hth_backend *be;
    struct hth_backend_info info[9];
    assert_ok(hth_backend_by_name("ref", &be));
    assert_ptr_equal(be, hth_backend_ref());
    bool blas = hth_backend_by_name("blas", &be) == HTH_OK;
    assert_true(!blas || strcmp(hth_backend_name(be), "blas") == 0);
    assert_ok(hth_backend_by_name("packed", &be));
    assert_string_equal(hth_backend_name(be), "packed");
    assert_err(HTH_E_NO_DEVICE, hth_backend_by_name("abacus", &be));
    assert_int_equal(hth_backend_list(info, 9), 4);
    assert_int_equal(hth_backend_list(info, 1), 1);
    assert_true(info[0].usable && strcmp(info[0].name, "ref") == 0);
    assert_true(info[1].usable && strcmp(info[1].name, "packed") == 0);
    assert_non_null(strstr(info[1].detail, "fp32"));
    assert_string_equal(info[2].name, "packed-bf16");
    assert_non_null(strstr(info[2].detail, "bf16"));
    assert_true(info[3].usable == blas);
    assert_true(!blas || strstr(info[3].detail, "core type") != NULL);
    assert_true(hth_backend_caps(backends[0]) & HTH_CAP_REPRODUCIBLE);
    assert_false(hth_backend_caps(backends[1]) & HTH_CAP_REPRODUCIBLE);
    for (uint32_t cols = 1; cols < 5000; cols += 7) {
        assert_true(hth_ld_f32(cols) >= cols && hth_ld_f32(cols) % 16 == 0);
        assert_true(hth_ld_f32(cols) % 1024 != 0);
    }
}

static int64_t fake_clock(void *arg)
{
    int64_t *now = arg;
    return *now += 1000;
}

TEST(bench_checks_its_results)
{
    (void)state;
    int64_t now = 0;
    static const double products[HTH_BENCH_KINDS] = {2, 2, 2, 2, 6, 6};
    static const double bytes[HTH_BENCH_KINDS] = {[HTH_BENCH_LAYERNORM] = 8 * 5 * 32,
                                                  [HTH_BENCH_SOFTMAX] = 8 * 5 * 32,
                                                  [HTH_BENCH_XENT] = 8 * 5 * 32,
                                                  [HTH_BENCH_ADAMW] = 28 * 8192,
                                                  [HTH_BENCH_QUANTIZE_INT8] = 5.03125 * 8192,
                                                  [HTH_BENCH_DEQUANTIZE_INT8] = 5.03125 * 8192};
    for (int kind = 0; kind < HTH_BENCH_KINDS; kind++) {
        struct hth_bench_options o = {.backend = backends[1],
                                      .kind = (enum hth_bench_kind)kind,
                                      .dim = 32,
                                      .rows = 5,
                                      .repeats = 3,
                                      .clock_us = fake_clock,
                                      .clock_arg = &now};
        struct hth_bench_result r;
        assert_ok(hth_bench_run(&o, &r));
        assert_true(r.us_median == 1000 && r.check_error > 0 &&
                    r.check_error < (kind >= HTH_BENCH_QUANTIZE_INT8 ? 0.0045 : 1e-5));
        assert_close(r.gflops, products[kind] * 2 * 5 * 32 * 128 / 1e-3 / 1e9, 1e-9, 0);
        assert_close(r.gb_per_s, bytes[kind] / 1e-3 / 1e9, 1e-9, 0);
        assert_close(r.rows_per_s, hth_bench_kind_is_flat(o.kind) ? 0 : 5000, 1e-9, 0);
        assert_true(hth_bench_kind_multiplies(o.kind) == (products[kind] > 0));
        o.tolerance = 1e-12; /* below the precision of fp32: nothing is timed */
        assert_err(HTH_E_BUG, hth_bench_run(&o, &r));
        o.rows = 0;
        assert_err(HTH_E_CONFIG, hth_bench_run(&o, &r));
    }
}

SUITE_WITH(setup, teardown)
