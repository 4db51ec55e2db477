/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_torture.c: experts that don't fit together train on a card whose driver fails: its n-th
 * call alone, or that one and all after it. For every n the result is an error or the right
 * numbers, everything that was made is given back once, and no thread waits for ever.
 *
 *   test_kernels_cuda_torture        some dozen of the calls
 *   test_kernels_cuda_torture all    every one of them
 */
#include "support/test.h"

#include <stdlib.h>

#include "kernels/blocks.h"
#include "kernels/cuda/device.h"
#include "kernels/optim.h"
#include "kernels/shim_control.h"

#define DIM    8
#define ROWS   4
#define BLOCKS 4
#define FIT    3 /* experts that fit on the card together */
#define ROUNDS 3
#define POINTS 12

static struct {
    long calls, fail_at; /* 0: none */
    bool for_good;       /* all later ones, too */
    long made, gone;
} bad;

static bool fails(void)
{
    bad.calls++;
    return bad.fail_at > 0 && (bad.for_good ? bad.calls >= bad.fail_at : bad.calls == bad.fail_at);
}

static int count_made(int err)
{
    bad.made += err == 0;
    return err;
}

/* ---- a driver that fails ------------------------------------------------------------------- */

#define CALL(name, params, args)                                                                   \
    static int bad_##name params                                                                   \
    {                                                                                              \
        return fails() ? 999 : hth_gpu_shim.name args;                                             \
    }
#define MAKE(name, params, args)                                                                   \
    static int bad_##name params                                                                   \
    {                                                                                              \
        return fails() ? 999 : count_made(hth_gpu_shim.name args);                                 \
    }
#define DROP(type, name)                                                                           \
    static type bad_##name(void *p)                                                                \
    {                                                                                              \
        bad.gone++;                                                                                \
        return hth_gpu_shim.name(p);                                                               \
    }

CALL(info, (int device, struct hth_gpu_info *out), (device, out))
CALL(use, (int device), (device))
CALL(mem_left, (size_t * bytes), (bytes))
CALL(stream_sync, (void *stream), (stream))
CALL(stream_wait, (void *stream, void *event), (stream, event))
CALL(event_record, (void *event, void *stream), (event, stream))
CALL(event_sync, (void *event), (event))
CALL(capture_begin, (void *stream), (stream))
CALL(graph_launch, (void *graph, void *stream), (graph, stream))
CALL(copy_in, (void *to, const void *from, size_t bytes, void *on), (to, from, bytes, on))
CALL(copy_out, (void *to, const void *from, size_t bytes, void *on), (to, from, bytes, on))
CALL(zero, (void *to, size_t bytes, void *on), (to, bytes, on))
CALL(device_sync, (void), ())
CALL(matmul, (void *blas, void *on, const struct hth_gpu_matmul *m), (blas, on, m))
CALL(matmul_many, (void *blas, void *on, const struct hth_gpu_many *m), (blas, on, m))
MAKE(mem_alloc, (void **p, size_t bytes), (p, bytes))
MAKE(host_alloc, (void **p, size_t bytes), (p, bytes))
MAKE(stream_new, (void **p), (p))
MAKE(event_new, (void **p), (p))
DROP(int, mem_free)
DROP(int, host_free)
DROP(void, stream_free)
DROP(void, event_free)
DROP(void, blas_close)
DROP(void, graph_free)

static int bad_capture_end(void *stream, void **graph)
{
    int err = hth_gpu_shim.capture_end(stream, graph);
    if (!fails())
        return count_made(err);
    if (err == 0)
        hth_gpu_shim.graph_free(*graph);
    *graph = NULL;
    return 999;
}

static int bad_blas_open(void **blas, char *why, size_t why_size)
{
    if (!fails())
        return count_made(hth_gpu_shim.blas_open(blas, why, why_size));
    if (why != NULL)
        snprintf(why, why_size, "no library");
    return 999;
}

static const char *bad_text(int err)
{
    (void)err;
    return "it failed on purpose";
}

static struct hth_gpu driver(void)
{
    struct hth_gpu gpu = hth_gpu_shim;
#define TAKE(name) gpu.name = bad_##name
    TAKE(text), TAKE(info), TAKE(use), TAKE(mem_left), TAKE(stream_sync), TAKE(stream_wait);
    TAKE(event_record), TAKE(event_sync), TAKE(capture_begin), TAKE(capture_end);
    TAKE(graph_launch), TAKE(copy_in), TAKE(copy_out), TAKE(zero), TAKE(device_sync);
    TAKE(matmul), TAKE(matmul_many), TAKE(mem_alloc), TAKE(host_alloc), TAKE(stream_new);
    TAKE(event_new), TAKE(blas_open), TAKE(mem_free), TAKE(host_free), TAKE(stream_free);
    TAKE(event_free), TAKE(blas_close), TAKE(graph_free);
#undef TAKE
    return gpu;
}

/* ---- work ---------------------------------------------------------------------------------- */

struct expert {
    struct hth_params *p;
    struct hth_ffn f;
    float *x, *y, *dy, *dx;
    void *saved;
};

struct work {
    struct hth_cu_device device;
    const struct hth_backend *be;
    struct hth_exec *ex;
    struct expert e[BLOCKS];
    float *out; /* values and the last dx of all, one after the other */
    size_t count;
};

static enum hth_err open_expert(struct work *w, uint32_t i)
{
    const struct hth_ffn_options shape = {.dim = DIM, .eps = 1e-5f};
    const struct hth_seal_options seal = {.seed = 3, .stream = i, .state_slots = 1};
    struct expert *e = &w->e[i];
    float *rows[4];
    HTH_TRY(hth_params_new(w->be, &e->p));
    HTH_TRY(hth_ffn_declare(e->p, &shape, &e->f));
    HTH_TRY(hth_params_seal(e->p, &seal));
    for (int k = 0; k < 4; k++) {
        rows[k] = hth_backend_alloc(w->be, sizeof(float) * ROWS * DIM);
        *(k == 0 ? &e->x : k == 1 ? &e->y : k == 2 ? &e->dy : &e->dx) = rows[k];
    }
    e->saved = hth_backend_alloc(w->be, hth_ffn_saved_bytes(&e->f, ROWS));
    return rows[0] && rows[1] && rows[2] && rows[3] && e->saved ? HTH_OK : HTH_E_NO_MEMORY;
}

static enum hth_err upload_rows(struct work *w, uint32_t i, uint32_t round)
{
    float host[2][ROWS * DIM];
    for (uint32_t k = 0; k < 2 * ROWS * DIM; k++)
        host[k % 2][k / 2] =
            (float)(((k + i * 977 + round * 7919) * 2654435761u >> 9) % 2003) / 1001.0f - 1;
    HTH_TRY(hth_exec_upload(w->ex, w->e[i].x, host[0], sizeof(host[0])));
    return hth_exec_upload(w->ex, w->e[i].dy, host[1], sizeof(host[1]));
}

static enum hth_err train_round(struct work *w, uint32_t round)
{
    struct hth_ffn_entry entry[BLOCKS];
    struct hth_optim optim = HTH_OPTIM_INIT;
    optim.kind = HTH_OPTIM_SGD;
    optim.lr = 0.01f;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        struct expert *e = &w->e[i];
        struct hth_view x = hth_view_f32(e->x, ROWS, DIM, DIM);
        struct hth_view dy = hth_view_f32(e->dy, ROWS, DIM, DIM);
        entry[i] = (struct hth_ffn_entry){.ffn = &e->f,
                                          .x = x,
                                          .y = hth_view_f32(e->y, ROWS, DIM, DIM),
                                          .saved = e->saved,
                                          .dy = dy,
                                          .dx = hth_view_f32(e->dx, ROWS, DIM, DIM)};
        hth_params_ahead(w->ex, e->p, true);
        HTH_TRY(upload_rows(w, i, round));
        HTH_TRY(hth_ffn_forward(w->ex, &e->f, x, entry[i].y, e->saved));
        HTH_TRY(hth_ffn_backward(w->ex, &e->f, x, e->saved, dy, entry[i].dx));
        HTH_TRY(hth_exec_sync(w->ex));
    }
    /* Those that fit, and all of them. */
    for (uint32_t n = FIT - 1; n <= BLOCKS; n += BLOCKS - FIT + 1) {
        HTH_TRY(hth_ffn_forward_many(w->ex, entry, n));
        HTH_TRY(hth_ffn_backward_many(w->ex, entry, n));
        HTH_TRY(hth_exec_sync(w->ex));
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        HTH_TRY(hth_optim_step(w->ex, w->e[i].p, &optim, 1));
        HTH_TRY(hth_exec_sync(w->ex));
        hth_params_zero_grads(w->e[i].p);
    }
    return HTH_OK;
}

static enum hth_err train(struct work *w)
{
    HTH_TRY(hth_exec_new(w->be, 0, &w->ex));
    for (uint32_t i = 0; i < BLOCKS; i++)
        HTH_TRY(open_expert(w, i));
    HTH_TRY(hth_exec_reserve(w->ex, hth_ffn_many_scratch_bytes(w->ex, &w->e[0].f, ROWS, BLOCKS)));
    for (uint32_t round = 0; round < ROUNDS; round++)
        HTH_TRY(train_round(w, round));
    size_t len = hth_params_flat_len(w->e[0].p);
    w->count = BLOCKS * (len + ROWS * DIM);
    w->out = calloc(w->count, sizeof(float));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        float *at = w->out + i * (len + ROWS * DIM);
        HTH_TRY(hth_params_export(w->ex, w->e[i].p, HTH_PART_VALUE, 0, len, at));
        HTH_TRY(hth_exec_download(w->ex, at + len, w->e[i].dx, sizeof(float) * ROWS * DIM));
        HTH_TRY(hth_exec_sync(w->ex));
    }
    return HTH_OK;
}

/* Opens a card, trains, closes it. The caller frees *out. */
static enum hth_err live(enum hth_gpu_type type, long fail_at, bool for_good, float **out,
                         size_t *count)
{
    struct hth_gpu gpu = driver();
    struct work *w = calloc(1, sizeof(*w));
    char why[200] = "";
    memset(&bad, 0, sizeof(bad));
    bad.fail_at = fail_at;
    bad.for_good = for_good;
    enum hth_err err = hth_cu_device_open(&w->device, &gpu, 0, (size_t)64 << 20, why, sizeof(why));
    if (err == HTH_OK) {
        w->device.resident.budget = FIT * 4 * hth_pool_round(sizeof(float) * 8 * DIM * (DIM + 1));
        w->be = &w->device.tables[type];
        err = train(w);
        hth_exec_free(w->ex);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            struct expert *e = &w->e[i];
            void *const blocks[] = {e->x, e->y, e->dy, e->dx, e->saved};
            for (size_t k = 0; k < HTH_ARRAY_LEN(blocks); k++)
                hth_backend_free(w->be, blocks[k]);
            hth_params_free(e->p);
        }
        const struct hth_resident *r = &w->device.resident;
        size_t loose = 0; /* kept for the next item */
        for (uint32_t i = 0; i < r->loose_count; i++)
            loose += r->loose[i].bytes;
        if (w->device.pool.used != loose)
            fail_msg("call %ld%s fails (%s): %zu bytes were never given back", fail_at,
                     for_good ? " and all after it" : "", hth_err_name(err), w->device.pool.used);
        assert_int_equal(w->device.resident.held, 0);
        hth_cu_device_close(&w->device);
    } else {
        assert_true(why[0] != '\0');
    }
    if (bad.made != bad.gone)
        fail_msg("call %ld%s fails (%s): %ld things were made, %ld freed", fail_at,
                 for_good ? " and all after it" : "", hth_err_name(err), bad.made, bad.gone);
    *out = w->out;
    *count = w->count;
    free(w);
    return err;
}

static bool every_call;

static void torture(enum hth_gpu_type type, double tolerance)
{
    float *want, *got;
    size_t count, again;
    uint32_t failed = 0, fine = 0;
    hth_shim_batch(true);
    assert_ok(live(type, 0, false, &want, &count));
    long calls = bad.calls, step = every_call ? 1 : HTH_MAX(calls / POINTS, 1);
    for (int for_good = 0; for_good < 2; for_good++) {
        for (long n = 1 + for_good; n <= calls; n += step) {
            enum hth_err err = live(type, n, for_good != 0, &got, &again);
            failed += err != HTH_OK;
            fine += err == HTH_OK;
            for (size_t i = 0; err == HTH_OK && i < count; i++) {
                if (!(fabs((double)got[i] - want[i]) <= tolerance))
                    fail_msg("call %ld fails without an error, and number %zu is %g, not %g", n, i,
                             (double)got[i], (double)want[i]);
            }
            free(got);
        }
    }
    free(want);
    hth_shim_batch(false);
    assert_true(failed > POINTS / 2 && fine > 0);
}

static void fp32_survives_every_driver_failure(void **state)
{
    (void)state;
    torture(HTH_GPU_F32, 1e-4);
}

static void bf16_survives_every_driver_failure(void **state)
{
    (void)state;
    torture(HTH_GPU_BF16, 2e-2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fp32_survives_every_driver_failure),
                                       cmocka_unit_test(bf16_survives_every_driver_failure)};
    every_call = argc > 1 && strcmp(argv[1], "all") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
