/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net.c: server and client over real sockets, TLS and compute threads: two loops on two
 * threads. Many batches at once, forwards and backwards with steps between, some freed half-way.
 * Runs under TSan as well.
 */
#include <pthread.h>

#include "core/mem.h"
#include "experts/swarm.h"
#include "net/net.h"
#include "support/suite.h"

#define D       32
#define EXPERTS 6
#define UNITS   24
#define K       3
#define N       (UNITS * K)
#define BATCHES 120
#define AT_ONCE 8

struct side {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_addr addr;
    pthread_t thread;
};

static struct side serving, calling;
static struct hth_server *server;
static struct hth_expert_client *client;
static struct hth_expert_target target[EXPERTS];
static struct hth_expert_pair pairs[N];
static struct hth_tensor x, dy;
static float want[N * D];
static uint32_t started, finished, given_up;
static struct hth_server_stats stats;

static void side_start(struct side *s, bool listen, uint32_t threads)
{
    struct hth_net_opts nopts = HTH_NET_OPTS_INIT;
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    struct hth_addr any = {.family = 4, .ip = {127, 0, 0, 1}};

    memset(s, 0, sizeof(*s));
    nopts.compute_threads = threads;
    opts.network = "test";
    opts.listen = listen ? &any : NULL;
    opts.timeout_min_us = 20 * HTH_US_PER_S; /* a loaded machine must not look like a dead host */
    assert_ok(hth_net_new(&nopts, &s->env));
    assert_ok(hth_rpc_new(s->env, &opts, &s->rpc));
    hth_rpc_addr(s->rpc, &s->addr);
}

static void *run_loop(void *arg)
{
    struct side *s = arg;

    HTH_ASSERT(hth_net_run(s->env) == HTH_OK);
    return NULL;
}

static struct hth_tensor tensor_of(float *rows, uint64_t count)
{
    struct hth_tensor t = {.dtype = HTH_F32, .ndim = 2, .dim = {count, D}};

    t.blob = hth_blob_try_new(count * D * sizeof(float));
    assert_non_null(t.blob);
    memcpy(t.blob->data, rows, count * D * sizeof(float));
    hth_aligned_free(rows);
    return t;
}

static struct hth_expert_opts expert_opts(uint32_t i)
{
    struct swarm_host h = host_init();

    h.expert.shape = (struct hth_expert_shape){.d = D, .inner = 2 * D};
    h.expert.uid = uid_of(i);
    return h.expert;
}

static void start_all(uint64_t step_rows)
{
    struct hth_expert_client_opts copts = HTH_EXPERT_CLIENT_OPTS_INIT;
    struct hth_server_opts sopts = HTH_SERVER_OPTS_INIT;

    side_start(&serving, true, 2);
    side_start(&calling, false, 1);
    sopts.step_rows = step_rows;
    sopts.split_flops = 1e5;
    sopts.job_flops_min = 1e5;
    assert_ok(hth_server_new(serving.env, serving.rpc, &sopts, &server));
    assert_ok(hth_expert_client_new(calling.env, calling.rpc, &copts, &client));
    x = tensor_of(normals(1, UNITS * D), UNITS);
    dy = tensor_of(normals(2, N * D), N);
    for (uint32_t i = 0; i < EXPERTS; i++) {
        struct hth_expert_opts o = expert_opts(i);
        struct hth_expert_target t = {
            .coord = {i}, .host = serving.env->self, .addr = serving.addr};
        target[i] = t;
        assert_ok(hth_server_add(server, &o));
    }
    for (uint32_t i = 0; i < N; i++)
        pairs[i] = (struct hth_expert_pair){i / K, (i / K * 5 + i % K) % EXPERTS};
    for (uint32_t i = 0; i < N; i++) {
        struct hth_expert_opts o = expert_opts(pairs[i].target);
        struct reference r;
        reference_start(&r, &o);
        reference_forward(&r, 1, (const float *)(const void *)x.blob->data + pairs[i].unit * D,
                          want + i * D);
        reference_stop(&r);
    }
    started = finished = given_up = 0;
    assert_int_equal(pthread_create(&serving.thread, NULL, run_loop, &serving), 0);
}

static void stop_all(void)
{
    hth_expert_client_free(client);
    hth_rpc_free(calling.rpc);
    hth_net_free(calling.env);
    hth_net_stop(serving.env);
    assert_int_equal(pthread_join(serving.thread, NULL), 0);
    hth_server_stats(server, &stats);
    hth_server_free(server);
    hth_rpc_free(serving.rpc);
    hth_net_free(serving.env);
    hth_blob_unref(x.blob);
    hth_blob_unref(dy.blob);
}

static void next_batch(bool backward);
static bool check_bits;

static void on_batch(void *arg, struct hth_expert_batch *batch)
{
    static float out[N * D];
    bool backward = arg != NULL;
    uint8_t ok[N];

    assert_int_equal(hth_expert_batch_ok_count(batch), N);
    assert_int_equal(hth_expert_batch_unpack(batch, out, D, ok), 0);
    if (check_bits && !backward)
        assert_memory_equal(out, want, sizeof(want));
    hth_expert_batch_free(batch);
    finished++;
    if (started < BATCHES)
        next_batch(!backward);
    else if (finished + given_up == started)
        hth_net_stop(calling.env);
}

static void next_batch(bool backward)
{
    struct hth_expert_call call = {.layer = "ffn0",
                                   .ndim = 1,
                                   .x = x,
                                   .targets = target,
                                   .targets_count = EXPERTS,
                                   .pairs = pairs,
                                   .pairs_count = N};
    struct hth_expert_batch *b;

    if (backward)
        call.dy = dy;
    started++;
    assert_ok(hth_experts_call(client, &call, on_batch, backward ? &started : NULL, &b));
    if (started % 10 == 9) { /* the caller frees an open batch */
        hth_expert_batch_free(b);
        given_up++;
        next_batch(backward);
    }
}

static void run_batches(uint64_t step_rows)
{
    check_bits = step_rows > 1000000;
    start_all(step_rows);
    for (int i = 0; i < AT_ONCE; i++)
        next_batch(i % 2 == 1);
    assert_ok(hth_net_run(calling.env));
    assert_int_equal(finished + given_up, started);
    stop_all();
    assert_true(stats.rows_forward >= N * BATCHES / 4);
    assert_true(stats.rows_backward >= N * BATCHES / 4);
}

TEST(answers_equal_the_kernels)
{
    (void)state;
    run_batches(UINT64_C(1) << 40);
    assert_int_equal(stats.steps, 0);
}

/* Forwards, backwards and steps of the same experts run side by side on two compute threads. */
TEST(steps_run_beside_passes)
{
    (void)state;
    run_batches(16);
    assert_true(stats.steps >= stats.rows_backward / 200);
}

static void one_more_end(void *arg)
{
    (void)arg;
    if (++finished == 5)
        hth_net_stop(calling.env);
}

static void on_drained(void *arg)
{
    (void)arg;
    hth_post(calling.env, one_more_end, NULL);
}

static void drain_now(void *arg)
{
    hth_server_drain(server, on_drained, arg);
}

static void stop_when_done(void *arg, struct hth_expert_batch *batch)
{
    hth_expert_batch_free(batch);
    one_more_end(arg);
}

/* A drain under load: every batch ends, with answers or E_DRAINING. */
TEST(drain_under_load_ends_every_batch)
{
    struct hth_expert_call call = {.layer = "ffn0",
                                   .ndim = 1,
                                   .x = x,
                                   .targets = target,
                                   .targets_count = EXPERTS,
                                   .pairs = pairs,
                                   .pairs_count = N};
    struct hth_expert_batch *b;

    (void)state;
    start_all(16);
    call.x = x;
    for (int i = 0; i < 4; i++) {
        call.dy = i % 2 == 1 ? dy : (struct hth_tensor){0};
        assert_ok(hth_experts_call(client, &call, stop_when_done, NULL, &b));
    }
    hth_post(serving.env, drain_now, NULL);
    assert_ok(hth_net_run(calling.env));
    assert_int_equal(finished, 5); /* four batches and the drain */
    stop_all();
}
