/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda.c: a host whose experts are on a card: the CUDA back end with its kernels on the shim.
 * Only kernels and copies may access the card's memory, so a stray pointer crashes.
 */
#include "experts/swarm.h"

#include "core/mem.h"
#include "kernels/cuda/device.h"
#include "kernels/shim_control.h"
#include "support/suite.h"

#define D      16
#define ROWS   8
#define ROUNDS 12

static struct hth_cu_device device;

static int setup(void **state)
{
    char why[200];
    (void)state;
    if (hth_cu_device_open(&device, &hth_gpu_shim, 0, 0, why, sizeof(why)) != HTH_OK)
        return -1;
    hth_shim_guard(true);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hth_shim_guard(false);
    assert_int_equal(device.pool.used, 0);
    hth_cu_device_close(&device);
    return 0;
}

static double distance(const float *a, const float *b, size_t n)
{
    double diff = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        diff += pow((double)a[i] - b[i], 2);
        norm += pow(b[i], 2);
    }
    return sqrt(diff / norm);
}

/* Normal numbers that bf16 holds exactly. */
static float *coarse(uint64_t seed, size_t n)
{
    float *x = normals(seed, n);

    for (size_t i = 0; i < n; i++)
        x[i] = roundf(x[i] * 16) / 16;
    return x;
}

/* Every third round is sent as bf16, so that rows are gathered; the others need no copy. Batches
 * have ROWS rows, less a multiple of `fewer`. */
static void train(const char *kind, uint32_t fewer, double tolerance)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    struct reference r;
    struct swarm_caller c;
    float want[ROWS * D];

    h.expert.kind = kind;
    if (strcmp(kind, "transformer") == 0) {
        h.expert.shape.heads = 2;
        h.expert.shape.block_rows = 4;
    }
    h.expert.backend = hth_backend_ref();
    h.expert.uid = uid_of(0);
    reference_start(&r, &h.expert);
    h.expert.backend = &device.tables[HTH_GPU_F32];
    h.opts.step_rows = 2 * ROWS;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct answer out;
        float *x = coarse(2 * round, ROWS * D), *dy = coarse(2 * round + 1, ROWS * D);
        /* The micro-batch changes between sums: the card scales the accumulated gradients. */
        uint32_t microbatch = round % 4 == 1 ? 2 * ROWS : ROWS, rows = ROWS - round % 4 * fewer;
        struct ask a = {.coord = {0},
                        .rows = {rows},
                        .parts = 1,
                        .d = D,
                        .x = x,
                        .dy = dy,
                        .microbatch = microbatch,
                        .key = round + 1,
                        .dtype = round % 3 == 2 ? HTH_BF16 : HTH_F32};
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        assert_ok(out.status[0]);
        reference_backward(&r, rows, microbatch, x, dy, want);
        if (a.dtype == HTH_F32)
            assert_true(distance(out.rows, want, (size_t)rows * D) < tolerance);
        answer_clear(&out);
        if (hth_expert_pending_rows(r.expert) >= 2 * ROWS)
            assert_ok(hth_expert_step(r.expert, r.ex));
        a.dy = NULL;
        a.dtype = HTH_F32;
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        reference_forward(&r, rows, x, want);
        assert_true(distance(out.rows, want, (size_t)rows * D) < tolerance);
        answer_clear(&out);
        hth_aligned_free(x);
        hth_aligned_free(dy);
        assert_int_equal(hth_expert_pending_rows(r.expert),
                         hth_expert_pending_rows(host_expert(&h, 0)));
    }
    assert_true(hth_expert_steps(r.expert) >= 4);
    assert_int_equal(hth_expert_steps(r.expert), hth_expert_steps(host_expert(&h, 0)));
    caller_stop(&c);
    host_stop(&h);
    reference_stop(&r);
    hth_world_free(w);
}

TEST(ffn_trains)
{
    (void)state;
    train("ffn", 0, 1e-4);
}

/* Batches of 8, 7, 6 and 5 rows are the same call after padding: from the third on each is one
 * graph launch. A round is a forward and a backward pass, and a forward pass alone. */
TEST(padded_batches_replay_one_graph)
{
    (void)state;
    uint32_t before = hth_shim_graph_launches(), calls = 3 * ROUNDS;
    train("ffn", 1, 1e-4);
    uint32_t launches = hth_shim_graph_launches() - before;
    if (launches < calls * 3 / 4)
        fail_msg("%u of %u calls were recorded ones", launches, calls);
}

TEST(padding_does_not_change_the_result)
{
    const struct hth_backend *card = &device.tables[HTH_GPU_F32], *cpu = hth_backend_ref();
    uint32_t last = 0, count = 0;
    (void)state;
    for (uint32_t rows = 1; rows <= 8192; rows++) {
        uint32_t many = hth_backend_padded(card, rows, 1);
        assert_int_equal(hth_backend_padded(cpu, rows, 1), rows);
        assert_true(many >= rows && many >= last && many - rows < HTH_MAX(8u, rows / 4));
        assert_int_equal(hth_backend_padded(card, many, 1), many);
        assert_true(rows < 512 || many - rows < 64);
        count += many != last;
        last = many;
    }
    assert_true(count < 150);
    for (uint32_t units = 1; units < 100; units++) {
        uint32_t rows = hth_backend_padded(card, 48 * units, 48);
        assert_int_equal(rows % 48, 0);
        assert_true(rows >= 48 * units && rows - 48 * units < 96);
    }
}

TEST(transformer_trains)
{
    (void)state;
    train("transformer", 0, 1e-4);
}

/* A checkpoint made on the card gives the same bits on the card and on the CPU. */
TEST(checkpoints_move_between_card_and_cpu)
{
    struct swarm_host h = host_init();
    struct reference a, b, cpu;
    struct hth_blob *one, *two;
    float *x = normals(5, ROWS * D), *y = normals(6, ROWS * D);
    struct hth_exec *ex;

    (void)state;
    h.expert.uid = uid_of(0);
    h.expert.backend = &device.tables[HTH_GPU_F32];
    reference_start(&a, &h.expert);
    size_t bytes = ROWS * D * sizeof(float);
    float *in = hth_backend_alloc(h.expert.backend, bytes);
    float *out = hth_backend_alloc(h.expert.backend, bytes);
    assert_ok(hth_exec_upload(a.ex, in, x, bytes));
    reference_backward(&a, ROWS, ROWS, in, in, out);
    assert_ok(hth_expert_step(a.expert, a.ex));
    assert_ok(hth_exec_sync(a.ex));
    assert_ok(hth_expert_snapshot(a.expert, &one));
    reference_start(&b, &h.expert);
    assert_ok(hth_expert_load_blob(b.expert, one->data, one->size));
    assert_ok(hth_expert_snapshot(b.expert, &two));
    assert_int_equal(one->size, two->size);
    assert_memory_equal(one->data, two->data, one->size);
    reference_forward(&b, ROWS, in, out);
    assert_ok(hth_exec_download(b.ex, x, out, bytes));
    assert_ok(hth_exec_sync(b.ex));
    h.expert.backend = hth_backend_ref();
    reference_start(&cpu, &h.expert);
    assert_ok(hth_expert_load_blob(cpu.expert, one->data, one->size));
    assert_ok(hth_exec_new(hth_backend_ref(), 0, &ex));
    float *again = normals(5, ROWS * D);
    reference_forward(&cpu, ROWS, again, y);
    assert_true(distance(x, y, ROWS * D) < 1e-5);
    hth_exec_free(ex);
    hth_backend_free(&device.tables[HTH_GPU_F32], in);
    hth_backend_free(&device.tables[HTH_GPU_F32], out);
    hth_aligned_free(x);
    hth_aligned_free(y);
    hth_aligned_free(again);
    hth_blob_unref(one);
    hth_blob_unref(two);
    reference_stop(&a);
    reference_stop(&b);
    reference_stop(&cpu);
}

/* One part of six is refused; the others, computed in its group, get the same bits. */
static void ask_with_a_nan(struct hth_world *w, struct swarm_caller *c, const struct swarm_host *h)
{
    enum { PARTS = 6, BAD = 2 };
    float *x = coarse(77, PARTS * ROWS * D), *good = coarse(77, PARTS * ROWS * D);
    struct ask a = {.d = D, .x = x, .microbatch = ROWS}, b;
    struct answer bad, whole;

    for (; a.parts < PARTS; a.parts++) {
        a.coord[a.parts] = a.parts;
        a.rows[a.parts] = ROWS;
    }
    b = a;
    b.x = good;
    x[BAD * ROWS * D + 5] = NAN;
    ask_wait(w, c, h, &a, &bad);
    ask_wait(w, c, h, &b, &whole);
    assert_ok(bad.err);
    assert_ok(whole.err);
    for (uint32_t i = 0; i < PARTS; i++) {
        size_t at = (size_t)i * ROWS * D;
        assert_err(i == BAD ? HTH_E_NOT_FINITE : HTH_OK, bad.status[i]);
        assert_ok(whole.status[i]);
        if (i != BAD)
            assert_true(distance(bad.rows + at, whole.rows + at, ROWS * D) < 1e-6);
        else
            assert_true(bad.rows[at] == 0);
    }
    answer_clear(&bad);
    answer_clear(&whole);
    hth_aligned_free(x);
    hth_aligned_free(good);
}

/* Trains a host's six experts, one by one and together, on a card with `budget` bytes for weights
 * (0: for all). Returns the bits of the experts, which the caller frees. */
static struct hth_blob *host_six(size_t budget, struct hth_resident_stats *stats)
{
    enum { EXPERTS = 6 };
    struct hth_world *w = hth_world_new(3, NULL);
    struct swarm_host h = host_init();
    struct swarm_caller c;
    struct hth_blob *all, *one;
    size_t usual = device.resident.budget, len = 0;

    if (budget > 0)
        device.resident.budget = budget;
    memset(&device.resident.stats, 0, sizeof(device.resident.stats));
    h.expert.backend = &device.tables[HTH_GPU_BF16];
    h.expert.shape.d = D;
    h.layer_count = EXPERTS;
    h.opts.step_rows = 2 * ROWS;
    host_start(&h, w, "host");
    assert_int_equal(h.loaded, EXPERTS);
    caller_start(&c, w, "caller", NULL);
    for (uint32_t round = 0; round < 8; round++) {
        struct answer out;
        float *x = coarse(2 * round, EXPERTS * ROWS * D);
        float *dy = coarse(2 * round + 1, EXPERTS * ROWS * D);
        struct ask a = {.d = D, .x = x, .dy = dy, .microbatch = ROWS, .key = round + 1};
        uint32_t parts = round % 2 == 0 ? EXPERTS : 1;
        for (; a.parts < parts; a.parts++) {
            a.coord[a.parts] = (round + a.parts) % EXPERTS;
            a.rows[a.parts] = ROWS;
        }
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        for (uint32_t i = 0; i < parts; i++)
            assert_ok(out.status[i]);
        answer_clear(&out);
        a.dy = NULL;
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        for (uint32_t i = 0; i < parts; i++)
            assert_ok(out.status[i]);
        answer_clear(&out);
        hth_aligned_free(x);
        hth_aligned_free(dy);
    }
    ask_with_a_nan(w, &c, &h);
    assert_true(device.resident.used <= device.resident.budget);
    all = NULL;
    for (uint32_t i = 0; i < EXPERTS; i++) {
        assert_true(hth_expert_steps(host_expert(&h, i)) > 0);
        assert_ok(hth_expert_snapshot(host_expert(&h, i), &one));
        if (all == NULL)
            assert_ok(hth_blob_new_budget(EXPERTS * one->size, NULL, &all));
        memcpy(all->data + len, one->data, one->size);
        len += one->size;
        hth_blob_unref(one);
    }
    *stats = device.resident.stats;
    caller_stop(&c);
    host_stop(&h);
    hth_world_free(w);
    device.resident.budget = usual;
    assert_false(hth_resident_is_held(&device.resident));
    return all;
}

/* Experts that are evicted and fetched learn the same bits as resident ones. */
TEST(evicted_experts_learn_the_same_bits)
{
    struct hth_resident_stats roomy, tight;
    (void)state;
    uint32_t products = hth_shim_many();
    hth_shim_batch(true);
    struct hth_blob *want = host_six(0, &roomy);
    assert_true(hth_shim_many() > products + 8); /* the six experts of a request form one group */
    size_t set; /* of one expert: the least budget that trains it */
    struct hth_params *p;
    struct hth_expert_opts opts = HTH_EXPERT_OPTS_INIT;
    struct hth_expert *e;
    opts.uid = uid_of(0);
    opts.shape.d = D;
    opts.backend = &device.tables[HTH_GPU_BF16];
    assert_ok(hth_expert_new(&opts, &e));
    assert_ok(hth_expert_init(e));
    p = hth_expert_params(e);
    assert_non_null(p);
    set = device.resident.used;
    hth_expert_free(e);
    struct hth_blob *got = host_six(5 * set / 2, &tight);
    assert_int_equal(roomy.evictions, 0);
    assert_true(tight.evictions > 20 && tight.bytes_in > 0);
    assert_int_equal(want->size, got->size);
    assert_memory_equal(want->data, got->data, want->size);
    hth_blob_unref(got);
    got = host_six(set, &tight); /* room for one expert */
    assert_true(tight.evictions > 60);
    assert_memory_equal(want->data, got->data, want->size);
    hth_blob_unref(got);
    hth_blob_unref(want);
    hth_shim_batch(false);
}

/* A host has the CPU and two cards, with experts on each in rotation: all answer with the CPU's
 * numbers, and no device waits for another. */
TEST(devices_answer_side_by_side)
{
    enum { EXPERTS = 6 };
    static struct hth_cu_device other;
    struct hth_world *w = hth_world_new(4, NULL);
    struct swarm_host h = host_init();
    struct swarm_caller c;
    char why[200];
    float *x = coarse(1, EXPERTS * ROWS * D), *dy = coarse(2, EXPERTS * ROWS * D), want[ROWS * D];
    const struct hth_backend *backends[3] = {hth_backend_ref()};
    struct ask a = {.d = D, .x = x, .dy = dy, .microbatch = ROWS, .key = 1};
    struct answer out;

    (void)state;
    assert_ok(hth_cu_device_open(&other, &hth_gpu_shim, 1, 0, why, sizeof(why)));
    backends[1] = &device.tables[HTH_GPU_F32];
    backends[2] = &other.tables[HTH_GPU_F32];
    assert_int_equal(hth_backend_jobs(backends[0]), UINT32_MAX);
    assert_int_equal(hth_backend_jobs(backends[1]), 2);
    h.layer_count = 0;
    host_start(&h, w, "host");
    for (uint32_t i = 0; i < EXPERTS; i++) {
        h.expert.uid = uid_of(i);
        h.expert.shape.d = D;
        h.expert.backend = backends[i % 3];
        assert_ok(hth_server_add(h.server, &h.expert));
    }
    caller_start(&c, w, "caller", NULL);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(h.loaded, EXPERTS);
    for (; a.parts < EXPERTS; a.parts++) {
        a.coord[a.parts] = a.parts;
        a.rows[a.parts] = ROWS;
    }
    ask_wait(w, &c, &h, &a, &out);
    assert_ok(out.err);
    for (uint32_t i = 0; i < EXPERTS; i++) {
        struct reference r;
        size_t at = (size_t)i * ROWS * D;
        assert_ok(out.status[i]);
        h.expert.uid = uid_of(i);
        h.expert.backend = hth_backend_ref();
        reference_start(&r, &h.expert);
        reference_backward(&r, ROWS, ROWS, x + at, dy + at, want);
        assert_true(distance(out.rows + at, want, ROWS * D) < 1e-5);
        reference_stop(&r);
    }
    answer_clear(&out);
    caller_stop(&c);
    host_stop(&h);
    hth_world_free(w);
    assert_int_equal(other.pool.used, 0);
    hth_cu_device_close(&other);
    hth_aligned_free(x);
    hth_aligned_free(dy);
}

/* Noise at first; then one of four senders pulls against the other three, a hundred times as hard.
 * Experts on a card are watched as others are, also those whose batches form one group. */
TEST(canary_watches_experts_on_a_card)
{
    enum { EXPERTS = 2, SENDERS = 4, FEW = 8, CALM = 16 * 2 * 12, STEPS = CALM + 16 * 2 * 8 };
    static const size_t floats = (size_t)EXPERTS * FEW * D;
    struct hth_world *w = hth_world_new(5, NULL);
    struct swarm_host h = host_init();
    struct swarm_caller c[SENDERS];
    struct ask a = {
        .coord = {0, 1}, .rows = {FEW, FEW}, .parts = EXPERTS, .d = D, .microbatch = SENDERS * FEW};

    (void)state;
    h.expert.shape.d = D;
    h.expert.backend = &device.tables[HTH_GPU_F32];
    h.layer_count = EXPERTS;
    h.opts.step_rows = SENDERS * FEW;
    h.opts.bound_senders = false;
    host_start(&h, w, "host");
    for (int i = 0; i < SENDERS; i++)
        caller_start(&c[i], w, "caller", NULL);
    for (uint32_t step = 0; step < STEPS && host_stats(&h).pauses < EXPERTS; step++) {
        for (uint32_t i = 0; i < SENDERS; i++) {
            struct answer out;
            uint64_t seed = SENDERS * step + i + 1;
            float *x = normals(seed, floats), *dy = normals(seed + STEPS * SENDERS, floats);
            for (size_t k = 0; k < floats && step >= CALM; k++)
                dy[k] = i == 0 ? -100 : 1;
            a.x = x;
            a.dy = dy;
            a.key = seed;
            ask_wait(w, &c[i], &h, &a, &out);
            assert_ok(out.err);
            answer_clear(&out);
            hth_aligned_free(x);
            hth_aligned_free(dy);
        }
        assert_true(step >= CALM || host_stats(&h).pauses == 0);
    }
    assert_int_equal(host_stats(&h).pauses, EXPERTS);
    for (int i = 0; i < SENDERS; i++)
        caller_stop(&c[i]);
    host_stop(&h);
    hth_world_free(w);
}

SUITE_WITH(setup, teardown)
