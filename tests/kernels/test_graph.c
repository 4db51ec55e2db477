/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_graph.c: recorded calls (kernels/cuda/graph.h): the table and its keys, and blocks on the
 * shim, whose recordings keep the arguments of their time.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "kernels/blocks.h"
#include "kernels/cuda/device.h"
#include "kernels/optim.h"
#include "kernels/shim_control.h"
#include "support/suite.h"

#define DIM    16
#define ROWS   8
#define ROUNDS 7

/* ---- the table ----------------------------------------------------------------------------- */

static uint32_t dropped;

static void count_drop(void *arg, void *graph)
{
    (void)graph;
    assert_ptr_equal(arg, &dropped);
    dropped++;
}

TEST(table_replaces_the_least_recently_used)
{
    static struct hth_graphs graphs;
    struct hth_call_key key;
    struct hth_graph *g, *first = NULL;
    int thing = 0;
    bool known;
    (void)state;
    memset(&key, 0, sizeof(key));
    dropped = 0;
    for (uint32_t i = 0; i < HTH_GRAPHS_MAX; i++) {
        key.rows = i + 1;
        g = hth_graphs_at(&graphs, &key, 1, &known, count_drop, &dropped);
        assert_false(known);
        assert_int_equal(g->state, HTH_GRAPH_SEEN);
        g->graph = i % 2 == 0 ? &thing : NULL;
        first = i == 0 ? g : first;
    }
    key.rows = 1; /* used again: the second, without a graph, is the oldest */
    assert_ptr_equal(hth_graphs_at(&graphs, &key, 1, &known, count_drop, &dropped), first);
    assert_true(known);
    key.rows = 1000;
    g = hth_graphs_at(&graphs, &key, 1, &known, count_drop, &dropped);
    assert_false(known);
    assert_null(g->graph);
    assert_int_equal(dropped, 0);
    key.rows = 1001; /* the third has one */
    (void)hth_graphs_at(&graphs, &key, 1, &known, count_drop, &dropped);
    assert_int_equal(dropped, 1);
    key.rows = 2;
    (void)hth_graphs_at(&graphs, &key, 1, &known, count_drop, &dropped);
    assert_false(known); /* it had been replaced */
    key.rows = 1;
    assert_ptr_equal(hth_graphs_at(&graphs, &key, 1, &known, count_drop, &dropped), first);
    hth_graphs_clear(&graphs, count_drop, &dropped);
    assert_int_equal(dropped, HTH_GRAPHS_MAX / 2);
}

TEST(every_part_of_the_key_counts)
{
    static struct hth_graphs graphs;
    struct hth_call_key key;
    int here = 0, there = 0;
    bool known;
    (void)state;
    memset(&key, 0, sizeof(key));
    memset(&graphs, 0, sizeof(graphs));
    (void)hth_graphs_at(&graphs, &key, 1, &known, count_drop, &dropped);
#define NEW_KEY(change)                                                                            \
    memset(&key, 0, sizeof(key));                                                                  \
    change;                                                                                        \
    (void)hth_graphs_at(&graphs, &key, 1, &known, count_drop, &dropped);                           \
    assert_false(known);                                                                           \
    (void)hth_graphs_at(&graphs, &key, 1, &known, count_drop, &dropped);                           \
    assert_true(known)
    NEW_KEY(key.what = 1);
    NEW_KEY(key.rows = 1);
    NEW_KEY(key.dim = 1);
    NEW_KEY(key.hidden = 1);
    NEW_KEY(key.heads = 1);
    NEW_KEY(key.seq = 1);
    NEW_KEY(key.zero = 1);
    NEW_KEY(key.eps = 1);
    for (size_t i = 0; i < HTH_ARRAY_LEN(key.ld); i++) {
        NEW_KEY(key.ld[i] = 1);
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(key.at); i++) {
        NEW_KEY(key.at[i] = &here);
        NEW_KEY(key.at[i] = &there);
    }
    memset(&key, 0, sizeof(key));
    (void)hth_graphs_at(&graphs, &key, 2, &known, count_drop, &dropped);
    assert_false(known); /* the context has another room */
    assert_int_equal(sizeof(key), 8 * 4 + sizeof(key.ld) + sizeof(key.at)); /* no padding */
    hth_graphs_clear(&graphs, count_drop, &dropped);
}

/* ---- blocks -------------------------------------------------------------------------------- */

static struct hth_cu_device device;

static int setup(void **state)
{
    char why[200];
    (void)state;
    return hth_cu_device_open(&device, &hth_gpu_shim, 0, (size_t)256 << 20, why, sizeof(why)) ==
                   HTH_OK
               ? 0
               : -1;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(device.pool.used, 0);
    hth_cu_device_close(&device);
    return 0;
}

struct model {
    const struct hth_backend *be;
    struct hth_params *p;
    struct hth_ffn ffn;
    struct hth_tblock block;
    struct hth_exec *ex;
    bool transformer;
    float *x, *y, *dy, *dx;
    void *saved;
};

static struct hth_view view(float *at)
{
    return hth_view_f32(at, ROWS, DIM, DIM);
}

static void model_open(struct model *m, enum hth_gpu_type type, bool transformer)
{
    const struct hth_ffn_options ffn = {.dim = DIM, .eps = 1e-5f};
    const struct hth_tblock_options block = {.dim = DIM, .heads = 2};
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    size_t bytes = ROWS * DIM * sizeof(float), scratch;
    *m = (struct model){.be = &device.tables[type], .transformer = transformer};
    assert_ok(hth_params_new(m->be, &m->p));
    if (transformer)
        assert_ok(hth_tblock_declare(m->p, &block, &m->block));
    else
        assert_ok(hth_ffn_declare(m->p, &ffn, &m->ffn));
    assert_ok(hth_params_seal(m->p, &seal));
    scratch = transformer ? hth_tblock_scratch_bytes(m->be, &m->block, ROWS, ROWS / 2)
                          : hth_ffn_scratch_bytes(m->be, &m->ffn, ROWS);
    assert_ok(hth_exec_new(m->be, scratch, &m->ex));
    m->x = hth_backend_alloc(m->be, bytes);
    m->y = hth_backend_alloc(m->be, bytes);
    m->dy = hth_backend_alloc(m->be, bytes);
    m->dx = hth_backend_alloc(m->be, bytes);
    m->saved = hth_backend_alloc(m->be, transformer ? hth_tblock_saved_bytes(&m->block, ROWS)
                                                    : hth_ffn_saved_bytes(&m->ffn, ROWS));
}

static void model_close(struct model *m)
{
    hth_exec_free(m->ex);
    hth_backend_free(m->be, m->x);
    hth_backend_free(m->be, m->y);
    hth_backend_free(m->be, m->dy);
    hth_backend_free(m->be, m->dx);
    hth_backend_free(m->be, m->saved);
    hth_params_free(m->p);
}

static void round_trip(struct model *m, uint32_t round)
{
    const struct hth_tblock_back back = {.seq = ROWS / 2, .x = view(m->x), .saved = m->saved};
    float host[2][ROWS * DIM];
    for (uint32_t i = 0; i < 2 * ROWS * DIM; i++)
        host[i % 2][i / 2] = (float)(((i + round * 7919) * 2654435761u >> 9) % 2003) / 1001.0f - 1;
    assert_ok(hth_exec_upload(m->ex, m->x, host[0], sizeof(host[0])));
    assert_ok(hth_exec_upload(m->ex, m->dy, host[1], sizeof(host[1])));
    if (m->transformer) {
        assert_ok(hth_tblock_forward(m->ex, &m->block, ROWS / 2, view(m->x), view(m->y), m->saved));
        assert_ok(hth_tblock_backward(m->ex, &m->block, &back, view(m->dy), view(m->dx)));
    } else {
        assert_ok(hth_ffn_forward(m->ex, &m->ffn, view(m->x), view(m->y), m->saved));
        assert_ok(hth_ffn_backward(m->ex, &m->ffn, view(m->x), m->saved, view(m->dy), view(m->dx)));
    }
}

/* Gradients are overwritten in one round and added to in the next, then a step follows; at
 * intervals the weights are evicted and fetched. Returns all results, which the caller frees. */
static float *train(enum hth_gpu_type type, bool transformer, bool moves, size_t *count)
{
    struct model m;
    struct hth_optim optim = HTH_OPTIM_INIT;
    size_t one = ROWS * DIM, at = 0;
    model_open(&m, type, transformer);
    size_t len = hth_params_flat_len(m.p);
    float *all = calloc(2 * ROUNDS * (2 * one + len), sizeof(float));
    for (uint32_t round = 0; round < 2 * ROUNDS; round++) {
        round_trip(&m, round);
        assert_ok(hth_exec_download(m.ex, all + at, m.y, one * sizeof(float)));
        assert_ok(hth_exec_download(m.ex, all + at + one, m.dx, one * sizeof(float)));
        assert_ok(hth_params_export(m.ex, m.p, HTH_PART_GRAD, 0, len, all + at + 2 * one));
        at += 2 * one + len;
        if (round % 2 == 1) {
            assert_ok(hth_optim_step(m.ex, m.p, &optim, 1));
            hth_params_zero_grads(m.p);
        }
        assert_ok(hth_exec_sync(m.ex));
        if (moves && round % 5 == 4)
            assert_true(hth_resident_make_room(&device.resident, SIZE_MAX));
    }
    model_close(&m);
    *count = at;
    return all;
}

static void same_as_usual(enum hth_gpu_type type, bool transformer, bool moves)
{
    size_t count, again;
    hth_shim_graphs(false); /* every recording fails: the calls run as usual */
    uint32_t before = hth_shim_graph_launches();
    float *want = train(type, transformer, moves, &count);
    assert_int_equal(hth_shim_graph_launches(), before);
    hth_shim_graphs(true);
    float *got = train(type, transformer, moves, &again);
    uint32_t launches = hth_shim_graph_launches() - before;
    /* Forward, and backward with and without sums: each runs once as usual, then by its graph. The
     * first backward grows the context's room, so the two calls in front of it are first ones once
     * more. */
    uint32_t most = (2 * ROUNDS - 1) + 2 * (ROUNDS - 1) - 2;
    if (!moves)
        assert_int_equal(launches, most);
    assert_true(launches > 0 && launches <= most);
    assert_int_equal(count, again);
    assert_memory_equal(got, want, count * sizeof(float));
    free(got);
    free(want);
}

TEST(ffn_graphs_give_the_same_bits)
{
    (void)state;
    same_as_usual(HTH_GPU_F32, false, false);
    same_as_usual(HTH_GPU_F32, false, true);
}

TEST(transformer_graphs_give_the_same_bits)
{
    (void)state;
    same_as_usual(HTH_GPU_F32, true, false);
}

/* Images are rebuilt outside of recordings, and steps update them. */
TEST(bf16)
{
    size_t count, again;
    (void)state;
    hth_shim_graphs(false);
    float *want = train(HTH_GPU_BF16, false, true, &count);
    hth_shim_graphs(true);
    uint32_t before = hth_shim_graph_launches();
    float *got = train(HTH_GPU_BF16, false, true, &again);
    assert_true(hth_shim_graph_launches() > before);
    assert_memory_equal(got, want, count * sizeof(float));
    free(got);
    free(want);
}

/* ---- graphs that don't start --------------------------------------------------------------- */

static uint32_t starts, failing_start;

static int failing_launch(void *graph, void *stream)
{
    return ++starts == failing_start ? 719 : hth_gpu_shim.graph_launch(graph, stream);
}

/* A graph that doesn't start is dropped for good, and its calls run as usual. */
TEST(failed_start_runs_the_call_as_usual)
{
    struct hth_gpu gpu = hth_gpu_shim;
    size_t count, again;
    (void)state;
    hth_shim_graphs(false);
    float *want = train(HTH_GPU_F32, false, false, &count);
    hth_shim_graphs(true);
    gpu.graph_launch = failing_launch;
    device.gpu = &gpu;
    uint32_t usual = 0;
    for (failing_start = 1000; failing_start > 0;
         failing_start = failing_start > 9 ? 9 : failing_start - 1) {
        starts = 0;
        float *got = train(HTH_GPU_F32, false, false, &again);
        assert_int_equal(count, again);
        assert_memory_equal(got, want, count * sizeof(float));
        free(got);
        usual = failing_start == 1000 ? starts : usual;
        assert_true(failing_start == 1000 || starts < usual);
    }
    device.gpu = &hth_gpu_shim;
    free(want);
}

/* ---- others on the same card --------------------------------------------------------------- */

static atomic_bool recording;
static atomic_uint disturbed;
static pthread_t other;
static bool other_started;
static void *others_block;
static atomic_uint unguarded; /* of both, without the flag */
static atomic_bool other_came;
static _Thread_local bool is_other;

/* Recordings and waits for the whole card hold the same flag, so they never overlap under any
 * schedule of the threads. */
static bool card_is_taken(void)
{
    bool taken = atomic_flag_test_and_set(&device.whole);
    if (!taken)
        atomic_flag_clear(&device.whole);
    return taken;
}

static int watched_begin(void *stream)
{
    int err = hth_gpu_shim.capture_begin(stream);
    atomic_store(&recording, err == 0);
    atomic_fetch_add(&unguarded, !card_is_taken());
    return err;
}

static int watched_end(void *stream, void **graph)
{
    atomic_store(&recording, false);
    return hth_gpu_shim.capture_end(stream, graph);
}

static int watched_device_sync(void)
{
    atomic_fetch_add(&disturbed, atomic_load(&recording));
    atomic_fetch_add(&unguarded, !card_is_taken());
    return 0;
}

/* The last call before the other thread waits for the card. */
static int watched_use(int index)
{
    if (is_other)
        atomic_store(&other_came, true);
    return hth_gpu_shim.use(index);
}

static void *free_block(void *unused)
{
    (void)unused;
    is_other = true;
    hth_backend_free(&device.tables[HTH_GPU_F32], others_block);
    return NULL;
}

/* During the first recording another thread gives memory back. */
static int watched_matmul(void *blas, void *stream, const struct hth_gpu_matmul *m)
{
    if (atomic_load(&recording) && !other_started) {
        other_started = true;
        assert_int_equal(pthread_create(&other, NULL, free_block, NULL), 0);
        while (!atomic_load(&other_came))
            sched_yield();
    }
    return hth_gpu_shim.matmul(blas, stream, m);
}

/* The driver refuses a wait for the whole card while a stream records: the freed block could then
 * be reused while kernels still use it. */
TEST(recording_and_waiting_exclude_each_other)
{
    struct hth_gpu gpu = hth_gpu_shim;
    struct model m;
    (void)state;
    gpu.capture_begin = watched_begin;
    gpu.capture_end = watched_end;
    gpu.device_sync = watched_device_sync;
    gpu.matmul = watched_matmul;
    gpu.use = watched_use;
    device.gpu = &gpu;
    model_open(&m, HTH_GPU_F32, false);
    others_block = hth_backend_alloc(m.be, 4096);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        round_trip(&m, round);
        assert_ok(hth_exec_sync(m.ex));
    }
    assert_true(other_started);
    assert_int_equal(pthread_join(other, NULL), 0);
    model_close(&m);
    device.gpu = &hth_gpu_shim;
    assert_int_equal(atomic_load(&disturbed), 0);
    assert_int_equal(atomic_load(&unguarded), 0);
}

SUITE_WITH(setup, teardown)
