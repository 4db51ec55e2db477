/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bits.c: results that must be equal bit for bit: a row in any batch and any thread, the
 * reference on any machine and compiler, rows beside NaN rows.
 */
#define _GNU_SOURCE /* gettid */
#include "support/suite.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/blas.h"
#include "kernels/blocks.h"
#include "kernels/optim.h"
#include "kernels/tables.h"

/* Rows of the whole batch; packed blocks have fewer, so it covers one, less, and more than two. */
#define ROWS      70
#define MANY_ROWS 530
#define VAST_ROWS 1030 /* of 4096 bf16 numbers: over 8 MiB, which are written past the caches */

static const struct hth_backend *backends[2 + HTH_PACKED_MAX];
static size_t backend_count;

/* ref, blas, and every packed table that this CPU can run. */
static int setup(void **state)
{
    (void)state;
    backends[backend_count++] = hth_backend_ref();
    if (hth_test_blas(&backends[backend_count++]) != HTH_OK)
        return -1;
    backend_count += test_tables(backends + 2);
    return 0;
}

static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(int32_t)(hth_mix64(seed * 1000003 + i) >> 40) * 0x1p-23f - 1.0f;
}

struct ffn_box {
    struct hth_params *p;
    struct hth_ffn f;
    struct hth_exec *ex;
    void *saved;
};

static struct ffn_box ffn_new(const struct hth_backend *be, uint32_t dim, uint32_t hidden,
                              uint32_t rows)
{
    struct ffn_box b;
    struct hth_ffn_options options = {.dim = dim, .hidden = hidden};
    struct hth_seal_options seal = {.seed = 7, .state_slots = 2};
    assert_ok(hth_params_new(be, &b.p));
    assert_ok(hth_ffn_declare(b.p, &options, &b.f));
    assert_ok(hth_params_seal(b.p, &seal));
    assert_ok(hth_exec_new(be, hth_ffn_scratch_bytes(be, &b.f, rows), &b.ex));
    b.saved = hth_backend_alloc(be, hth_ffn_saved_bytes(&b.f, rows));
    return b;
}

static void ffn_free(struct ffn_box *b, const struct hth_backend *be)
{
    hth_backend_free(be, b->saved);
    hth_exec_free(b->ex);
    hth_params_free(b->p);
}

/* Forward and input gradient of `rows` rows from row `first` on, against the whole batch's. */
static void batch_repeats(struct ffn_box *b, const struct hth_backend *be,
                          const float *const all[4], uint32_t first, uint32_t rows)
{
    uint32_t d = b->f.dim;
    size_t at = (size_t)first * d, bytes = (size_t)rows * d * sizeof(float);
    float *x = hth_calloc(1, 4 * bytes), *dy = x + bytes / 4, *y = dy + bytes / 4;
    float *dx = y + bytes / 4;
    memcpy(x, all[0] + at, bytes);
    memcpy(dy, all[1] + at, bytes);
    struct hth_view vx = hth_view_f32(x, rows, d, d), vy = hth_view_f32(y, rows, d, d);
    struct hth_view vdy = hth_view_f32(dy, rows, d, d), vdx = hth_view_f32(dx, rows, d, d);
    assert_ok(hth_ffn_forward(b->ex, &b->f, vx, vy, NULL));
    if (memcmp(y, all[2] + at, bytes) != 0)
        fail_msg("%s: d %u, %u rows from %u: forward differs", hth_backend_name(be), d, rows,
                 first);
    assert_ok(hth_ffn_forward(b->ex, &b->f, vx, vy, b->saved));
    if (memcmp(y, all[2] + at, bytes) != 0)
        fail_msg("%s: d %u: forward that saves differs", hth_backend_name(be), d);
    assert_ok(hth_ffn_backward(b->ex, &b->f, vx, b->saved, vdy, vdx));
    if (memcmp(dx, all[3] + at, bytes) != 0)
        fail_msg("%s: d %u, %u rows from %u: backward differs", hth_backend_name(be), d, rows,
                 first);
    hth_free(x);
}

/* Batches of `rows` rows cut out of one of all rows. */
static void batches_repeat(const struct hth_backend *be, const uint32_t shape[2], uint32_t rows,
                           const uint32_t *batches, size_t count)
{
    size_t n = (size_t)rows * shape[0];
    struct ffn_box b = ffn_new(be, shape[0], shape[1], rows);
    float *x = hth_calloc(4 * n, sizeof(float));
    const float *all[4] = {x, x + n, x + 2 * n, x + 3 * n};
    struct hth_view v[4];
    fill(x, 2 * n, shape[0] + shape[1]);
    for (size_t i = 0; i < 4; i++)
        v[i] = hth_view_f32(x + i * n, rows, shape[0], shape[0]);
    assert_ok(hth_ffn_forward(b.ex, &b.f, v[0], v[2], b.saved));
    assert_ok(hth_ffn_backward(b.ex, &b.f, v[0], b.saved, v[1], v[3]));
    for (size_t i = 0; i < count; i++)
        batch_repeats(&b, be, all, (7 * (uint32_t)i) % (rows - batches[i] + 1), batches[i]);
    ffn_free(&b, be);
    hth_free(x);
}

TEST(row_bits_do_not_depend_on_the_batch)
{
    static const uint32_t shapes[][2] = {{5, 7},     {16, 64},   {64, 256},   {96, 384}, {100, 330},
                                         {333, 101}, {128, 512}, {256, 1024}, {1100, 45}};
    static const uint32_t batches[] = {1, 2, 3, 5, 8, 13, 31, 32, 33, 64, 69};
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++)
            batches_repeat(backends[k], shapes[s], ROWS, batches, HTH_ARRAY_LEN(batches));
    }
}

/* The same where a batch is several blocks of packed rows (packed.c: 96 rows at most, on tiles 256;
 * 48 and 160 of the second shape's hidden layer), which end at other rows in each. */
TEST(row_bits_do_not_depend_on_packed_blocks)
{
    static const uint32_t shapes[][2] = {{64, 256}, {12, 4096}};
    static const uint32_t batches[] = {1, 7, 48, 49, 95, 96, 97, 193, 257, 529};
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++)
            batches_repeat(backends[k], shapes[s], MANY_ROWS, batches, HTH_ARRAY_LEN(batches));
    }
}

#ifndef HTH_AMX_SHIM /* tiles in software know no caches */
TEST(row_bits_do_not_depend_on_caches)
{
    static const uint32_t shape[2] = {12, 4096}, batches[] = {3, 40};
    (void)state;
    for (size_t k = HTH_TEST_FEW ? backend_count - 1 : 2; k < backend_count; k++)
        batches_repeat(backends[k], shape, VAST_ROWS, batches, HTH_ARRAY_LEN(batches));
}
#endif

/* A sequence gives the same bits alone and among others. */
TEST(sequence_bits_do_not_depend_on_others)
{
    (void)state;
    enum { T = 75, D = 48, B = 3 };
    for (size_t k = 0; k < backend_count; k++) {
        const struct hth_backend *be = backends[k];
        struct hth_params *p;
        struct hth_tblock t;
        struct hth_rope *rope;
        struct hth_exec *ex;
        assert_ok(hth_rope_new(be, T, D / 3, 10000, &rope));
        struct hth_tblock_options options = {.dim = D, .heads = 3, .rope = rope};
        struct hth_seal_options seal = {.seed = 3};
        assert_ok(hth_params_new(be, &p));
        assert_ok(hth_tblock_declare(p, &options, &t));
        assert_ok(hth_params_seal(p, &seal));
        assert_ok(hth_exec_new(be, hth_tblock_scratch_bytes(be, &t, B * T, T), &ex));
        void *saved = hth_backend_alloc(be, hth_tblock_saved_bytes(&t, B * T));
        float *x = hth_calloc((size_t)6 * B * T * D, sizeof(float)), *y[6];
        for (size_t i = 0; i < 6; i++)
            y[i] = x + i * B * T * D;
        fill(x, (size_t)2 * B * T * D, 9);
        struct hth_tblock_back back = {T, hth_view_f32(y[0], B * T, D, D), saved};
        struct hth_view dy = hth_view_f32(y[1], B * T, D, D);
        assert_ok(hth_tblock_forward(ex, &t, T, back.x, hth_view_f32(y[2], B * T, D, D), saved));
        assert_ok(hth_tblock_backward(ex, &t, &back, dy, hth_view_f32(y[3], B * T, D, D)));
        for (size_t b = 0; b < B; b++) {
            size_t at = b * T * D;
            struct hth_tblock_back one = {T, hth_view_f32(y[0] + at, T, D, D), saved};
            assert_ok(hth_tblock_forward(ex, &t, T, one.x, hth_view_f32(y[4], T, D, D), saved));
            assert_memory_equal(y[4], y[2] + at, T * D * sizeof(float));
            assert_ok(hth_tblock_backward(ex, &t, &one, hth_view_f32(y[1] + at, T, D, D),
                                          hth_view_f32(y[5], T, D, D)));
            assert_memory_equal(y[5], y[3] + at, T * D * sizeof(float));
        }
        hth_free(x);
        hth_backend_free(be, saved);
        hth_exec_free(ex);
        hth_params_free(p);
        hth_rope_free(rope);
    }
}

/* NaN and infinity stay in their rows. */
TEST(not_finite_rows_stay_alone)
{
    (void)state;
    enum { D = 64, BAD_NAN = 3, BAD_INF = 11 };
    for (size_t k = 0; k < backend_count; k++) {
        struct ffn_box b = ffn_new(backends[k], D, 256, ROWS);
        size_t n = ROWS * D;
        float *x = hth_calloc(4 * n, sizeof(float));
        struct hth_view v[4];
        for (size_t i = 0; i < 4; i++)
            v[i] = hth_view_f32(x + i * n, ROWS, D, D);
        fill(x, n, 5);
        assert_ok(hth_ffn_forward(b.ex, &b.f, v[0], v[1], NULL));
        x[BAD_NAN * D + 5] = NAN;
        x[BAD_INF * D + 9] = INFINITY;
        assert_ok(hth_ffn_forward(b.ex, &b.f, v[0], v[2], NULL));
        for (size_t r = 0; r < ROWS; r++) {
            const float *good = x + n + r * D, *got = x + 2 * n + r * D;
            if (r == BAD_NAN || r == BAD_INF) {
                for (size_t c = 0; c < D; c++)
                    assert_true(isnan(got[c]));
            } else {
                assert_memory_equal(got, good, D * sizeof(float));
            }
        }
        struct hth_sumsq_result sum;
        assert_ok(hth_sumsq(b.ex, v[0], &sum));
        assert_false(sum.finite);
        assert_ok(hth_softmax_forward(b.ex, v[0], v[3]));
        assert_true(isnan(x[3 * n + BAD_NAN * D]) && !isnan(x[3 * n + (BAD_NAN + 1) * D]));
        hth_free(x);
        ffn_free(&b, backends[k]);
    }
}

/* Two steps of training a small block: every kernel of the path goes into one hash. */
static uint64_t train_hash(const struct hth_backend *be)
{
    enum { D = 37, M = 19 };
    struct ffn_box b = ffn_new(be, D, 83, ROWS);
    float *x = hth_calloc((size_t)4 * M * D, sizeof(float));
    struct hth_view v[4];
    struct hth_optim optim = HTH_OPTIM_INIT;
    int32_t labels[M];
    optim.kind = HTH_OPTIM_ADAMW;
    optim.weight_decay = 0.01f;
    for (size_t i = 0; i < 4; i++)
        v[i] = hth_view_f32(x + i * M * D, M, D, D);
    for (int i = 0; i < M; i++)
        labels[i] = i * 7 % D;
    fill(x, M * D, 77);
    uint64_t hash = 0;
    for (int step = 0; step < 2; step++) {
        struct hth_xent_result loss;
        struct hth_dropout drop = {.p = 0.2f, .seed = 11, .step = (uint32_t)step};
        hth_params_zero_grads(b.p);
        assert_ok(hth_ffn_forward(b.ex, &b.f, v[0], v[1], b.saved));
        assert_ok(hth_dropout(b.ex, &drop, v[1], v[2]));
        assert_ok(hth_xent(b.ex, v[2], hth_view_i32(labels, M), 1.0f / M, v[2], &loss));
        assert_ok(hth_dropout(b.ex, &drop, v[2], v[2]));
        assert_ok(hth_ffn_backward(b.ex, &b.f, v[0], b.saved, v[2], v[3]));
        assert_ok(hth_optim_step(b.ex, b.p, &optim, 1));
        hash = hth_hash64(x, (size_t)4 * M * D * sizeof(float), hash);
        hash = hth_hash64(&loss.loss_sum, sizeof(loss.loss_sum), hash);
    }
    hash = hth_hash64(hth_params_flat(b.p, HTH_PART_VALUE),
                      hth_params_flat_len(b.p) * sizeof(float), hash);
    hth_free(x);
    ffn_free(&b, be);
    return hash;
}

/* The hash of the reference's bits: equal for gcc, clang, any optimisation, any x86-64. A change of
 * this number changes every recorded simulation and must be intended. */
TEST(ref_bits_are_frozen)
{
    (void)state;
    uint64_t hash = train_hash(backends[0]);
    if (hash != UINT64_C(0x5b0de744a78b6327))
        fail_msg("the reference computes 0x%016llx", (unsigned long long)hash);
    for (size_t k = 1; k < backend_count; k++)
        assert_true(train_hash(backends[k]) == train_hash(backends[k]));
}

/* Attention, rotary tables, normals and bf16 have a hash of their own. */
TEST(ref_attention_bits_are_frozen)
{
    (void)state;
    enum { T = 33, H = 2, DH = 10, D = H * DH };
    const struct hth_backend *be = backends[0];
    struct hth_rope *rope;
    struct hth_exec *ex;
    struct hth_params *p;
    struct hth_weight *w;
    float y[T * D], lse[T * H], d[3 * T * D];
    uint16_t half[T * D];
    struct hth_param_spec spec = {.name = "x", .rows = T, .cols = 3 * D, .init = HTH_INIT_NORMAL};
    struct hth_seal_options seal = {.seed = 5};
    assert_ok(hth_rope_new(be, T, DH, 10000, &rope));
    assert_ok(hth_params_new(be, &p));
    assert_ok(hth_params_add(p, &spec, &w));
    assert_ok(hth_params_seal(p, &seal));
    assert_ok(hth_exec_new(be, hth_attention_scratch(be, T, DH), &ex));
    struct hth_attention att = {.seq = T, .heads = H, .rope = rope};
    float *x = hth_params_flat(p, HTH_PART_VALUE);
    struct hth_attention_saved s = {hth_view_f32(x, T, 3 * D, 3 * D), hth_view_f32(y, T, D, D),
                                    hth_view_f32(lse, T, H, H)};
    assert_ok(hth_attention_forward(ex, &att, s.qkv, s.out, s.lse));
    assert_ok(hth_attention_backward(ex, &att, &s, s.out, hth_view_f32(d, T, 3 * D, 3 * D)));
    struct hth_view vh = {half, HTH_BF16, T, D, D};
    assert_ok(hth_cast(ex, s.out, vh));
    uint64_t hash = hth_hash64(x, sizeof(d), 0);
    hash = hth_hash64(y, sizeof(y), hash);
    hash = hth_hash64(d, sizeof(d), hash);
    hash = hth_hash64(half, sizeof(half), hash);
    if (hash != UINT64_C(0x523956fe56134940))
        fail_msg("the reference computes 0x%016llx", (unsigned long long)hash);
    hth_exec_free(ex);
    hth_params_free(p);
    hth_rope_free(rope);
}

struct hash_call {
    const struct hth_backend *be;
    uint64_t want;
    bool same;
};

#define INTERRUPTIONS 20

static _Thread_local volatile sig_atomic_t interruptions;

/* Overwrites what a thread has in vector registers, in the midst of its sums. */
static void interrupt(int number)
{
    volatile float clutter[64];
    (void)number;
    for (int i = 0; i < 64; i++)
        clutter[i] = (float)i * 1.5f;
    interruptions += clutter[2] > 0;
}

static timer_t timer_of_this_thread(void)
{
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN};
    struct itimerspec often = {{0, 1000000}, {0, 1000000}};
    timer_t timer;
    event._sigev_un._tid = gettid();
    assert_int_equal(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    assert_int_equal(timer_settime(timer, 0, &often, NULL), 0);
    return timer;
}

static void *hash_thread(void *arg)
{
    struct hash_call *call = arg;
    timer_t timer = timer_of_this_thread();
    call->same = true;
    while (call->same && interruptions < INTERRUPTIONS)
        call->same = train_hash(call->be) == call->want;
    timer_delete(timer);
    return NULL;
}

/* Several callers at once, each with its own context and parameters, interrupted every millisecond:
 * the kernel keeps registers and tiles. */
TEST(contexts_on_threads_give_the_same_bits)
{
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESTART};
    (void)state;
    assert_int_equal(sigaction(SIGRTMIN, &action, NULL), 0);
    for (size_t k = 1; k < backend_count; k++) {
        pthread_t threads[4];
        struct hash_call calls[4];
        uint64_t want = train_hash(backends[k]);
        for (size_t i = 0; i < 4; i++) {
            calls[i] = (struct hash_call){.be = backends[k], .want = want};
            assert_int_equal(pthread_create(&threads[i], NULL, hash_thread, &calls[i]), 0);
        }
        for (size_t i = 0; i < 4; i++) {
            pthread_join(threads[i], NULL);
            assert_true(calls[i].same);
        }
    }
}

SUITE_WITH(setup, NULL)
