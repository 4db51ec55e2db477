/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda.c: promises of the CUDA back end beyond the table of cases: the bits of `ref` where
 * they are promised, the same bits twice, faults at the sync, and many tensors.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "benchmarks/kernels/kernels_int.h"
#include "kernels/blocks.h"
#include "kernels/cuda/device.h"
#include "kernels/optim.h"
#include "kernels/plugin.h"
#include "kernels/quant.h"
#include "kernels/shim_control.h"
#include "support/suite.h"

#define MEMORY ((size_t)256 << 20)

static struct hth_cu_device device;
static const struct hth_backend *cuda;
static struct hth_exec *ex;

static int setup(void **state)
{
    char why[200];
    (void)state;
    if (hth_cu_device_open(&device, &hth_gpu_shim, 0, MEMORY, why, sizeof(why)) != HTH_OK)
        return -1;
    cuda = &device.tables[HTH_GPU_F32];
    hth_shim_guard(true);
    return hth_exec_new(cuda, 1 << 20, &ex) == HTH_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    hth_exec_free(ex);
    assert_int_equal(device.pool.used, 0);
    hth_shim_guard(false);
    hth_cu_device_close(&device);
    return 0;
}

static float number(size_t i)
{
    return (float)((i * 2654435761u >> 7) % 20011) / 10007.0f - 1.0f;
}

static float *on_device(const float *host, size_t count)
{
    float *p = hth_backend_alloc(cuda, count * sizeof(float));
    assert_non_null(p);
    if (host != NULL)
        assert_ok(hth_exec_upload(ex, p, host, count * sizeof(float)));
    return p;
}

static void fetch(float *host, const void *from, size_t count)
{
    assert_ok(hth_exec_download(ex, host, from, count * sizeof(float)));
    assert_ok(hth_exec_sync(ex));
}

/* The guard of these tests works: an access to the card's memory ends the process. */
TEST(closed_memory_ends_an_access)
{
    float x = 1, *d = on_device(&x, 1);
    int status = 0;
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        fclose(stderr); /* hides the sanitizer's report */
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        _exit(*(volatile float *)d == 1 ? 0 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    hth_backend_free(cuda, d);
}

/* -- bits as on the CPU -------------------------------------------------------------------- */

static void values_of(const struct hth_backend *be, enum hth_init init, float *out, size_t count)
{
    struct hth_params *p;
    struct hth_weight *w;
    struct hth_exec *e;
    struct hth_param_spec spec = {
        .name = "w", .rows = 7, .cols = (uint32_t)count / 7, .init = init};
    struct hth_seal_options seal = {.seed = 99, .stream = 5, .state_slots = 0};
    assert_ok(hth_params_new(be, &p));
    assert_ok(hth_params_add(p, &spec, &w));
    assert_ok(hth_params_seal(p, &seal));
    assert_ok(hth_exec_new(be, 0, &e));
    assert_ok(hth_weight_export(e, w, HTH_PART_VALUE, out));
    hth_exec_free(e);
    hth_params_free(p);
}

TEST(initial_values_are_refs)
{
    static const enum hth_init kinds[] = {HTH_INIT_ZEROS,  HTH_INIT_ONES,    HTH_INIT_UNIFORM,
                                          HTH_INIT_NORMAL, HTH_INIT_KAIMING, HTH_INIT_LINEAR};
    float got[7 * 331], want[7 * 331];
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(kinds); i++) {
        values_of(cuda, kinds[i], got, HTH_ARRAY_LEN(got));
        values_of(hth_backend_ref(), kinds[i], want, HTH_ARRAY_LEN(want));
        assert_memory_equal(got, want, sizeof(got));
    }
}

TEST(dropout_bits_are_refs)
{
    enum { ROWS = 5, COLS = 131, N = ROWS * COLS };
    struct hth_dropout drop = {
        .p = 0.3f, .seed = 0x123456789abcdef, .op = 3, .step = 7, .expert = 9};
    float x[N], want[N], got[N];
    struct hth_exec *cpu;
    (void)state;
    for (size_t i = 0; i < N; i++)
        x[i] = number(i);
    assert_ok(hth_exec_new(hth_backend_ref(), 0, &cpu));
    assert_ok(hth_dropout(cpu, &drop, hth_view_f32(x, ROWS, COLS, COLS),
                          hth_view_f32(want, ROWS, COLS, COLS)));
    float *d = on_device(x, N);
    assert_ok(hth_dropout(ex, &drop, hth_view_f32(d, ROWS, COLS, COLS),
                          hth_view_f32(d, ROWS, COLS, COLS)));
    fetch(got, d, N);
    assert_memory_equal(got, want, sizeof(got));
    hth_backend_free(cuda, d);
    hth_exec_free(cpu);
}

static const uint32_t odd_bits[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00001,
                                    0x7f800001, 0x00000001, 0x477fefff, 0x477ff000, 0x33000000,
                                    0x33000001, 0x38800000, 0x387fffff, 0x7f7fffff, 0x3f808000,
                                    0x3f818000, 0x3f808001};

TEST(cast_bits_are_refs)
{
    enum { N = 512 };
    static const enum hth_dtype types[] = {HTH_BF16, HTH_F16};
    float x[N], back[N], want_back[N];
    uint16_t half[N], want[N];
    struct hth_exec *cpu;
    (void)state;
    for (size_t i = 0; i < N; i++)
        x[i] = number(i) * (float)(1 << i % 20) * 0x1p-12f;
    memcpy(x, odd_bits, sizeof(odd_bits));
    assert_ok(hth_exec_new(hth_backend_ref(), 0, &cpu));
    float *d = on_device(x, N), *h = on_device(NULL, N), *b = on_device(NULL, N);
    for (int t = 0; t < 2; t++) {
        struct hth_view small = {h, types[t], 1, N, N}, small_cpu = {want, types[t], 1, N, N};
        assert_ok(hth_cast(cpu, hth_view_f32(x, 1, N, N), small_cpu));
        assert_ok(hth_cast(ex, hth_view_f32(d, 1, N, N), small));
        assert_ok(hth_exec_download(ex, half, h, sizeof(half)));
        assert_ok(hth_exec_sync(ex));
        assert_memory_equal(half, want, sizeof(half));
        assert_ok(hth_cast(cpu, small_cpu, hth_view_f32(want_back, 1, N, N)));
        assert_ok(hth_cast(ex, small, hth_view_f32(b, 1, N, N)));
        fetch(back, b, N);
        assert_memory_equal(back, want_back, sizeof(back));
    }
    /* A copy between equal types, rows apart. */
    assert_ok(hth_cast(ex, hth_view_f32(d, 4, 100, 128), hth_view_f32(b, 4, 100, 128)));
    fetch(back, b, N);
    assert_memory_equal(back + 128, x + 128, 100 * sizeof(float));
    hth_backend_free(cuda, d);
    hth_backend_free(cuda, h);
    hth_backend_free(cuda, b);
    hth_exec_free(cpu);
}

/* The bytes are the CPU's (the table of cases compares rows). This tests the numbers at the ends of
 * the format, and its refusals. */
TEST(int8_bytes_are_the_cpus)
{
    static const uint32_t counts[] = {1, 63, 64, 65, 1000};
    (void)state;
    for (size_t c = 0; c < HTH_ARRAY_LEN(counts); c++) {
        uint32_t n = counts[c], bytes = (uint32_t)hth_quant_bytes(HTH_QUANT_INT8, n);
        float x[1000], got[1000], want[1000];
        uint8_t here[1000 + 32], there[1000 + 32];
        for (size_t i = 0; i < n; i++)
            x[i] = i % 64 == 5 ? 0 : number(i) * (i < 300 ? 1e-3f : i < 400 ? 1e-37f : 3e4f);
        assert_ok(hth_quant_encode(HTH_QUANT_INT8, x, n, here));
        assert_ok(hth_quant_decode(HTH_QUANT_INT8, here, bytes, n, want));
        float *d = on_device(x, n), *y = on_device(NULL, n);
        uint8_t *q = hth_backend_alloc(cuda, bytes);
        struct hth_view dv = hth_view_f32(d, 1, n, n), yv = hth_view_f32(y, 1, n, n);
        struct hth_view qv = {q, HTH_I8, 1, bytes, bytes};
        assert_ok(hth_cast(ex, dv, qv));
        assert_ok(hth_exec_download(ex, there, q, bytes));
        assert_ok(hth_cast(ex, qv, yv));
        fetch(got, y, n);
        assert_memory_equal(there, here, bytes);
        assert_memory_equal(got, want, n * sizeof(float));
        qv.cols--;
        assert_err(HTH_E_BAD_SHAPE, hth_cast(ex, dv, qv));
        qv.cols++;
        there[bytes - 1] = 0xff; /* a scale below zero */
        assert_ok(hth_exec_upload(ex, q, there, bytes));
        assert_ok(hth_cast(ex, qv, yv));
        assert_err(HTH_E_NOT_FINITE, hth_exec_sync(ex));
        x[n / 2] = NAN;
        assert_ok(hth_exec_upload(ex, d, x, n * sizeof(float)));
        assert_ok(hth_cast(ex, dv, qv));
        assert_err(HTH_E_NOT_FINITE, hth_exec_sync(ex));
        hth_backend_free(cuda, d);
        hth_backend_free(cuda, y);
        hth_backend_free(cuda, q);
    }
}

/* -- faults -------------------------------------------------------------------------------- */

TEST(bad_index_is_reported_at_the_sync)
{
    const int32_t bad[] = {0, 2, 7}, good[] = {0, 2, 1}, labels[] = {1, -1, 4};
    float table[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, got[9];
    (void)state;
    float *t = on_device(table, 9), *y = on_device(NULL, 9);
    void *index = on_device((const float *)(const void *)bad, 3);
    struct hth_view tv = hth_view_f32(t, 3, 3, 3), yv = hth_view_f32(y, 3, 3, 3);
    struct hth_xent_result result;
    assert_ok(hth_gather_rows(ex, tv, hth_view_i32(index, 3), yv));
    assert_err(HTH_E_RANGE, hth_exec_sync(ex));
    assert_ok(hth_exec_sync(ex)); /* reported once */
    assert_ok(hth_scatter_add_rows(ex, yv, hth_view_i32(index, 3), HTH_VIEW_NONE, tv));
    assert_err(HTH_E_RANGE, hth_exec_sync(ex));
    assert_ok(hth_exec_upload(ex, index, labels, sizeof(labels)));
    assert_ok(hth_xent(ex, tv, hth_view_i32(index, 3), 1, yv, &result));
    assert_err(HTH_E_RANGE, hth_exec_sync(ex));
    assert_int_equal(result.counted, 1);
    assert_ok(hth_exec_upload(ex, t, table, sizeof(table)));
    assert_ok(hth_exec_upload(ex, index, good, sizeof(good)));
    assert_ok(hth_gather_rows(ex, tv, hth_view_i32(index, 3), yv));
    fetch(got, y, 9);
    assert_true(got[0] == 1 && got[3] == 7 && got[6] == 4);
    hth_backend_free(cuda, t);
    hth_backend_free(cuda, y);
    hth_backend_free(cuda, index);
}

/* More results than a stream holds, and copies larger than its ring. */
TEST(many_results_and_large_copies_arrive)
{
    enum { SUMS = 3 * HTH_CU_RESULTS + 1, LARGE = 3 * (1 << 20) / 2 + 5 };
    static struct hth_sumsq_result sums[SUMS];
    (void)state;
    float x[4] = {1, 2, 3, 4};
    float *d = on_device(x, 4), *big = on_device(NULL, LARGE);
    for (uint32_t i = 0; i < SUMS; i++)
        assert_ok(hth_sumsq(ex, hth_view_f32(d, 1, i % 4 + 1, 4), &sums[i]));
    assert_ok(hth_exec_sync(ex));
    static const double want[] = {1, 5, 14, 30};
    for (uint32_t i = 0; i < SUMS; i++)
        assert_true(sums[i].sum == want[i % 4] && sums[i].finite);
    float *host = malloc(LARGE * sizeof(float)), *back = malloc(LARGE * sizeof(float));
    for (size_t i = 0; i < LARGE; i++)
        host[i] = number(i);
    assert_ok(hth_exec_upload(ex, big, host, LARGE * sizeof(float)));
    fetch(back, big, LARGE);
    assert_memory_equal(host, back, LARGE * sizeof(float));
    free(host);
    free(back);
    hth_backend_free(cuda, d);
    hth_backend_free(cuda, big);
}

/* -- optimisers over many tensors, and the same bits twice --------------------------------- */

/* 150 tensors of many sizes: three launches. Returns their values after three steps. */
static float *stepped(const struct hth_backend *be, enum hth_optim_kind kind, size_t *len)
{
    struct hth_params *p;
    struct hth_exec *e;
    struct hth_optim opt = HTH_OPTIM_INIT;
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    opt.kind = kind;
    opt.weight_decay = 0.1f;
    opt.trust_max = 10;
    assert_ok(hth_params_new(be, &p));
    for (uint32_t i = 0; i < 150; i++) {
        char name[8];
        struct hth_weight *w;
        snprintf(name, sizeof(name), "t%u", i);
        struct hth_param_spec spec = {.name = name,
                                      .rows = i % 7 == 0 ? 41 : 1,
                                      .cols = 1 + i * 37 % 211,
                                      .init = HTH_INIT_UNIFORM,
                                      .no_decay = i % 3 == 0};
        assert_ok(hth_params_add(p, &spec, &w));
    }
    assert_ok(hth_params_seal(p, &seal));
    assert_ok(hth_exec_new(be, 0, &e));
    *len = hth_params_flat_len(p);
    float *flat = malloc(*len * sizeof(float));
    for (size_t i = 0; i < *len; i++)
        flat[i] = number(i);
    assert_ok(hth_params_import(e, p, HTH_PART_GRAD, 0, *len, flat));
    for (int step = 0; step < 3; step++)
        assert_ok(hth_optim_step(e, p, &opt, 0.5f));
    float *out = calloc(*len, sizeof(float));
    for (uint32_t i = 0; i < 150; i++) /* the gaps between tensors had a gradient here */
        assert_ok(hth_weight_export(e, hth_params_at(p, i), HTH_PART_VALUE,
                                    out + hth_weight_offset(hth_params_at(p, i))));
    free(flat);
    hth_exec_free(e);
    hth_params_free(p);
    return out;
}

TEST(steps_over_many_tensors_match_ref)
{
    static const enum hth_optim_kind kinds[] = {HTH_OPTIM_SGD, HTH_OPTIM_ADAM, HTH_OPTIM_ADAMW,
                                                HTH_OPTIM_LAMB};
    (void)state;
    hth_shim_guard(false); /* thousands of launches */
    for (size_t k = 0; k < HTH_ARRAY_LEN(kinds); k++) {
        size_t len, again_len;
        hth_shim_seed(1);
        float *got = stepped(cuda, kinds[k], &len);
        hth_shim_seed(2);
        float *again = stepped(cuda, kinds[k], &again_len);
        float *want = stepped(hth_backend_ref(), kinds[k], &again_len);
        assert_memory_equal(got, again, len * sizeof(float));
        for (size_t i = 0; i < len; i++)
            assert_close(got[i], want[i], 2e-6, 2e-6);
        free(got);
        free(again);
        free(want);
    }
    hth_shim_guard(true);
}

/* One pass of an FFN block with the warps in this order; returns its dx and all gradients. */
static float *block_pass(uint64_t order, size_t *len)
{
    enum { ROWS = 137, DIM = 72 };
    struct hth_params *p;
    struct hth_ffn f;
    struct hth_ffn_options options = {.dim = DIM, .hidden = 150};
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    static float x[ROWS * DIM];
    hth_shim_seed(order);
    assert_ok(hth_params_new(cuda, &p));
    assert_ok(hth_ffn_declare(p, &options, &f));
    assert_ok(hth_params_seal(p, &seal));
    assert_ok(hth_exec_reserve(ex, hth_ffn_scratch_bytes(cuda, &f, ROWS)));
    for (size_t i = 0; i < ROWS * DIM; i++)
        x[i] = number(i);
    float *in = on_device(x, ROWS * DIM), *out = on_device(NULL, ROWS * DIM);
    void *saved = hth_backend_alloc(cuda, hth_ffn_saved_bytes(&f, ROWS));
    struct hth_view v = hth_view_f32(in, ROWS, DIM, DIM), y = hth_view_f32(out, ROWS, DIM, DIM);
    assert_ok(hth_ffn_forward(ex, &f, v, y, saved));
    assert_ok(hth_ffn_backward(ex, &f, v, saved, y, y));
    *len = hth_params_flat_len(p) + ROWS * DIM;
    float *all = malloc(*len * sizeof(float));
    fetch(all, out, ROWS * DIM);
    assert_ok(hth_params_export(ex, p, HTH_PART_GRAD, 0, *len - ROWS * DIM, all + ROWS * DIM));
    hth_backend_free(cuda, in);
    hth_backend_free(cuda, out);
    hth_backend_free(cuda, saved);
    hth_params_free(p);
    return all;
}

TEST(warp_order_changes_no_bit)
{
    size_t len, again_len;
    (void)state;
    float *one = block_pass(11, &len), *two = block_pass(12, &again_len);
    assert_int_equal(len, again_len);
    assert_memory_equal(one, two, len * sizeof(float));
    free(one);
    free(two);
}

/* Every benchmark case that a card supports, against the CPU. */
TEST(bench_cases_match_the_cpu)
{
    (void)state;
    for (int kind = 0; kind < HTH_BENCH_KINDS; kind++) {
        struct hth_bench_options options = {
            .backend = cuda, .kind = (enum hth_bench_kind)kind, .dim = 24, .rows = 40};
        struct hth_bench_case *c;
        enum hth_err err = hth_bench_case_new(&options, &c);
        if (kind >= HTH_BENCH_QUANTIZE_INT8) {
            assert_err(HTH_E_UNSUPPORTED, err);
            continue;
        }
        assert_ok(err);
        assert_ok(hth_bench_case_run(c));
        assert_true(c->error < 1e-4);
        if (hth_bench_kind_multiplies(options.kind)) /* two orders of addition differ slightly */
            assert_true(c->error > 0);
        hth_bench_case_free(c);
    }
}

/* The library's bare product and the driver's bare copy: the operands' bits go in unchanged. */
TEST(bare_product_and_copy_are_plain)
{
    enum { M = 5, K = 9, N = 7, LD = 16 };
    float a[M * LD], b[K * LD], got[M * LD], bits[M * LD];
    for (size_t i = 0; i < HTH_ARRAY_LEN(a); i++)
        a[i] = number(i);
    for (size_t i = 0; i < HTH_ARRAY_LEN(b); i++)
        b[i] = number(1000 + i);
    (void)state;
    float *da = on_device(a, M * LD), *db = on_device(b, K * LD), *dc = on_device(NULL, M * LD);
    const struct hth_view va = hth_view_f32(da, M, K, LD), vb = hth_view_f32(db, K, N, LD);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const struct hth_backend *be = &device.tables[bf16 ? HTH_GPU_BF16 : HTH_GPU_F32];
        struct hth_exec *own;
        void *ha = on_device(NULL, M * LD), *hb = on_device(NULL, K * LD);
        struct hth_view oa = {ha, bf16 ? HTH_BF16 : HTH_F32, M, K, LD};
        struct hth_view ob = {hb, bf16 ? HTH_BF16 : HTH_F32, K, N, LD};
        assert_ok(hth_exec_new(be, 0, &own));
        assert_ok(hth_cast(own, va, oa));
        assert_ok(hth_cast(own, vb, ob));
        assert_ok(be->bare_product(own, oa, ob, hth_view_f32(dc, M, N, LD)));
        assert_ok(hth_exec_sync(own));
        fetch(got, dc, M * LD);
        for (size_t r = 0; r < M; r++) {
            for (size_t c = 0; c < N; c++) {
                double want = 0;
                for (size_t i = 0; i < K; i++)
                    want += (double)a[r * LD + i] * (double)b[i * LD + c];
                assert_close(got[r * LD + c], want, 0, bf16 ? 0.04 : 1e-5);
            }
        }
        hth_exec_free(own);
        hth_backend_free(cuda, ha);
        hth_backend_free(cuda, hb);
    }
    assert_ok(cuda->bare_copy(ex, dc, da, sizeof(a)));
    fetch(bits, dc, M * LD);
    assert_memory_equal(bits, a, sizeof(a));
    hth_backend_free(cuda, da);
    hth_backend_free(cuda, db);
    hth_backend_free(cuda, dc);
}

/* As many experts as the formula gives fit together; one more evicts one. */
TEST(formula_gives_the_experts_that_fit)
{
    enum { FIT = 3, DIM2 = 300 };
    struct hth_params *p[FIT + 1];
    struct hth_ffn f;
    const struct hth_ffn_options options = {.dim = DIM2};
    const struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    uint64_t parameters = 8 * DIM2 * DIM2 + 7 * DIM2, usual = device.resident.budget;
    (void)state;
    hth_shim_guard(false);
    device.resident.budget = FIT * hth_device_expert_bytes(parameters, 2, true);
    uint64_t before = device.resident.stats.evictions;
    for (int i = 0; i <= FIT; i++) {
        assert_int_equal(device.resident.stats.evictions, before);
        assert_ok(hth_params_new(&device.tables[HTH_GPU_BF16], &p[i]));
        assert_ok(hth_ffn_declare(p[i], &options, &f));
        assert_ok(hth_params_seal(p[i], &seal));
        assert_int_equal(hth_params_elements(p[i]), parameters);
    }
    assert_true(device.resident.stats.evictions > before);
    assert_int_equal(hth_device_weights_bytes((uint64_t)8 << 30), (uint64_t)6656 << 20);
    assert_int_equal(hth_device_weights_bytes((uint64_t)2 << 30), (uint64_t)1 << 30);
    for (int i = 0; i <= FIT; i++)
        hth_params_free(p[i]);
    device.resident.budget = usual;
    hth_shim_guard(true);
}

TEST(too_wide_head_is_refused)
{
    struct hth_attention att = {.seq = 1, .heads = 1};
    float *d = on_device(NULL, 3 * 600);
    (void)state;
    assert_err(HTH_E_UNSUPPORTED,
               hth_attention_forward(ex, &att, hth_view_f32(d, 1, 1800, 1800),
                                     hth_view_f32(d, 1, 600, 600), HTH_VIEW_NONE));
    hth_backend_free(cuda, d);
}

SUITE_WITH(setup, teardown)
