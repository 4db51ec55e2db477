/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_group.c: many FFN blocks at once on the CUDA back end (kernels/cuda/group.c), its kernels
 * run by the shim: each block's results are those of a single call, for any numbers of rows.
 */
#include <stdlib.h>

#include "core/mem.h"
#include "kernels/blocks.h"
#include "kernels/cuda/device.h"
#include "kernels/shim_control.h"
#include "support/suite.h"

#define DIM    22
#define HIDDEN 37
#define BLOCKS 13
#define MEMORY ((size_t)256 << 20)

static const uint32_t rows_of[BLOCKS] = {7, 1, 19, 0, 9, 18, 23, 17, 40, 16, 8, 2};

static struct hth_cu_device device;
static const struct hth_backend *be;
static struct hth_exec *ex;

struct block {
    struct hth_params *p;
    struct hth_ffn f;
    uint32_t rows;
    float *x, *dy, *y, *dx; /* on the card */
    void *saved;
};

/* A block's results after two rounds: y, dx and gradients. */
struct result {
    float *value;
    size_t count;
};

static int setup(void **state)
{
    char why[200];
    (void)state;
    if (hth_cu_device_open(&device, &hth_gpu_shim, 0, MEMORY, why, sizeof(why)) != HTH_OK)
        return -1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(device.pool.used, 0);
    hth_cu_device_close(&device);
    return 0;
}

static float *matrix(uint32_t rows, uint32_t salt)
{
    size_t count = (size_t)rows * DIM;
    float *host = malloc((count + 1) * sizeof(float));
    float *at = hth_backend_alloc(be, (count + 1) * sizeof(float));
    assert_non_null(at);
    for (size_t i = 0; i < count; i++)
        host[i] = (float)(((i + salt * 977) * 2654435761u >> 7) % 20011) / 10007.0f - 1.0f;
    assert_ok(hth_exec_upload(ex, at, host, count * sizeof(float)));
    free(host);
    return at;
}

static void open_block(struct block *b, uint32_t i)
{
    struct hth_ffn_options options = {.dim = DIM, .hidden = HIDDEN, .eps = 1e-5f};
    struct hth_seal_options seal = {.seed = 7, .stream = i, .state_slots = 0};
    assert_ok(hth_params_new(be, &b->p));
    assert_ok(hth_ffn_declare(b->p, &options, &b->f));
    assert_ok(hth_params_seal(b->p, &seal));
    b->rows = rows_of[i];
    b->x = matrix(b->rows, 4 * i);
    b->dy = matrix(b->rows, 4 * i + 1);
    b->y = matrix(b->rows, 4 * i + 2);
    b->dx = matrix(b->rows, 4 * i + 3);
    b->saved = hth_backend_alloc(be, hth_ffn_saved_bytes(&b->f, HTH_MAX(b->rows, 1u)));
    assert_non_null(b->saved);
}

static void close_block(struct block *b)
{
    hth_backend_free(be, b->x);
    hth_backend_free(be, b->dy);
    hth_backend_free(be, b->y);
    hth_backend_free(be, b->dx);
    hth_backend_free(be, b->saved);
    hth_params_free(b->p);
}

static struct hth_ffn_entry entry_of(struct block *b, bool saves)
{
    return (struct hth_ffn_entry){.ffn = &b->f,
                                  .x = hth_view_f32(b->x, b->rows, DIM, DIM),
                                  .y = hth_view_f32(b->y, b->rows, DIM, DIM),
                                  .saved = saves ? b->saved : NULL,
                                  .dy = hth_view_f32(b->dy, b->rows, DIM, DIM),
                                  .dx = hth_view_f32(b->dx, b->rows, DIM, DIM)};
}

/* Computes all blocks in one call, or one by one. */
static void run_blocks(struct block *b, bool together, bool saves, bool backward)
{
    struct hth_ffn_entry e[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++)
        e[i] = entry_of(&b[i], saves);
    if (together) {
        assert_ok(backward ? hth_ffn_backward_many(ex, e, BLOCKS)
                           : hth_ffn_forward_many(ex, e, BLOCKS));
        return;
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (backward)
            assert_ok(hth_ffn_backward(ex, e[i].ffn, e[i].x, e[i].saved, e[i].dy, e[i].dx));
        else
            assert_ok(hth_ffn_forward(ex, e[i].ffn, e[i].x, e[i].y, e[i].saved));
    }
}

static struct result result_of(struct block *b)
{
    size_t n = (size_t)b->rows * DIM, len = hth_params_flat_len(b->p);
    struct result r = {calloc(2 * n + len, sizeof(float)), 2 * n + len};
    assert_ok(hth_exec_download(ex, r.value, b->y, n * sizeof(float)));
    assert_ok(hth_exec_download(ex, r.value + n, b->dx, n * sizeof(float)));
    assert_ok(hth_params_export(ex, b->p, HTH_PART_GRAD, 0, len, r.value + 2 * n));
    return r;
}

/* Forward and backward, twice (gradients add up), then a forward that saves nothing. */
static void compute(enum hth_gpu_type type, bool together, struct result out[BLOCKS])
{
    static struct block b[BLOCKS];
    be = &device.tables[type];
    assert_ok(hth_exec_new(be, 0, &ex));
    for (uint32_t i = 0; i < BLOCKS; i++)
        open_block(&b[i], i);
    assert_ok(hth_exec_sync(ex));
    assert_ok(hth_exec_reserve(ex, hth_ffn_many_scratch_bytes(ex, &b[0].f, 40, BLOCKS)));
    for (int round = 0; round < 2; round++) {
        run_blocks(b, together, true, false);
        run_blocks(b, together, true, true);
        assert_ok(hth_exec_sync(ex));
    }
    run_blocks(b, together, false, false);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        out[i] = result_of(&b[i]);
        close_block(&b[i]);
    }
    hth_exec_free(ex);
}

static double distance(const struct result *a, const struct result *b)
{
    double diff = 0, norm = 0;
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        diff += pow((double)a->value[i] - b->value[i], 2);
        norm += pow(b->value[i], 2);
    }
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

static void free_results(struct result *r)
{
    for (uint32_t i = 0; i < BLOCKS; i++)
        free(r[i].value);
}

static void together_as_alone(enum hth_gpu_type type, double tolerance)
{
    struct result alone[BLOCKS], many[BLOCKS], again[BLOCKS];
    hth_shim_seed(1);
    compute(type, false, alone);
    for (int batch = 0; batch < 2;
         batch++) { /* with and without a library that has such products */
        uint32_t before = hth_shim_many();
        hth_shim_batch(batch != 0);
        hth_shim_seed(2);
        compute(type, true, many);
        if (batch != 0) {
            hth_shim_seed(3);
            compute(type, true, again);
        }
        assert_true(batch == 0 || hth_shim_many() - before >= 2 * 2 * 5);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            double off = distance(&many[i], &alone[i]);
            if (!(off < tolerance))
                fail_msg("block %u of %u rows is off by %g", i, rows_of[i], off);
            if (batch != 0)
                assert_memory_equal(many[i].value, again[i].value, many[i].count * sizeof(float));
        }
        free_results(many);
        if (batch != 0)
            free_results(again);
    }
    free_results(alone);
    hth_shim_batch(false);
}

TEST(fp32_group_equals_single_calls)
{
    (void)state;
    together_as_alone(HTH_GPU_F32, 2e-6);
}

/* Both round at the same places, so they are nearer to each other than bf16 to fp32. */
TEST(bf16_group_equals_single_calls)
{
    (void)state;
    together_as_alone(HTH_GPU_BF16, 1e-4);
}

/* On a card for two blocks the others are computed as there is room. */
TEST(small_card_computes_blocks_in_runs)
{
    struct result roomy[BLOCKS], tight[BLOCKS];
    size_t usual = device.resident.budget;
    (void)state;
    hth_shim_batch(true);
    compute(HTH_GPU_F32, true, roomy);
    device.resident.budget = 5 * hth_pool_round((size_t)2 * (DIM + 2) * HIDDEN * sizeof(float));
    uint64_t evictions = device.resident.stats.evictions, loads = device.resident.stats.loads;
    compute(HTH_GPU_F32, true, tight);
    assert_true(device.resident.stats.evictions > evictions + BLOCKS);
    /* Values and gradients are made, fetched once at most for each forward (values) and backward
     * pass, and once more to be read: parts fetched for a run stay for it. */
    assert_true(device.resident.stats.loads - loads <= BLOCKS * (2 + 3 + 2 * 2 + 1));
    for (uint32_t i = 0; i < BLOCKS; i++)
        assert_true(distance(&tight[i], &roomy[i]) < 2e-6);
    device.resident.budget = usual;
    free_results(roomy);
    free_results(tight);
    hth_shim_batch(false);
}

/* A bad entry fails alone; the call returns the first one's error. */
TEST(bad_entries_fail_alone)
{
    static struct block b[BLOCKS];
    struct hth_ffn_entry e[BLOCKS];
    float first, poison = -7;
    (void)state;
    be = &device.tables[HTH_GPU_F32];
    hth_shim_guard(true); /* only kernels and copies access the card's memory */
    assert_ok(hth_exec_new(be, 0, &ex));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        open_block(&b[i], i);
        e[i] = entry_of(&b[i], true);
        assert_ok(hth_exec_upload(ex, b[i].y, &poison, b[i].rows > 0 ? sizeof(poison) : 0));
    }
    assert_ok(hth_exec_sync(ex));
    assert_ok(hth_exec_reserve(ex, hth_ffn_many_scratch_bytes(ex, &b[0].f, 40, BLOCKS)));
    e[4].y.cols--;
    e[9].y.data = e[9].x.data;
    assert_err(HTH_E_BAD_SHAPE, hth_ffn_forward_many(ex, e, BLOCKS));
    assert_ok(hth_exec_sync(ex));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (b[i].rows == 0)
            continue;
        assert_ok(hth_exec_download(ex, &first, b[i].y, sizeof(first)));
        assert_ok(hth_exec_sync(ex));
        assert_true((first == poison) == (i == 4 || i == 9));
    }
    e[4] = entry_of(&b[4], false); /* a backward needs `saved` */
    e[9] = entry_of(&b[9], true);
    assert_err(HTH_E_BAD_SHAPE, hth_ffn_backward_many(ex, e, BLOCKS));
    for (uint32_t i = 0; i < BLOCKS; i++)
        close_block(&b[i]);
    hth_exec_free(ex);
    hth_shim_guard(false);
}

SUITE_WITH(setup, teardown)
