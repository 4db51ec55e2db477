/* SPDX-License-Identifier: Apache-2.0 */
/* swarm.c: hosts on threads, clients, and a comparison with direct kernel calls. */
#include "benchmarks/swarm.h"

#include "core/mem.h"
#include "net/net.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define NETWORK    "bench"
#define LAYER      "bench"
#define TIMEOUT_US (120 * HTH_US_PER_S)
/* Both sides use the same kernels and rows; only the order of a gradient's sum may differ. */
#define DISTANCE_MAX 1e-5
#define VERIFY_MAX   3

struct hth_bench_host {
    struct hth_bench_swarm *swarm;
    uint32_t first, count; /* experts */
    pthread_t thread;
    bool started;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_server *server;
    struct hth_addr addr;
    uint32_t loaded;

    /* The host's thread signals the thread that waits. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool ready;
    enum hth_err err;
    struct hth_server_stats stats;
    bool stats_there;
};

/* ---- a host -------------------------------------------------------------------------------- */

static void host_ready(struct hth_bench_host *h, enum hth_err err)
{
    pthread_mutex_lock(&h->lock);
    h->ready = true;
    if (h->err == HTH_OK)
        h->err = err;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
}

static void on_expert(void *arg, const struct hth_uid *uid, enum hth_err err, bool restored)
{
    struct hth_bench_host *h = arg;
    (void)uid;
    (void)restored;
    h->loaded++;
    if (err != HTH_OK || h->loaded == h->count)
        host_ready(h, err);
}

static void expert_opts(const struct hth_bench_swarm *swarm, uint32_t index,
                        struct hth_expert_opts *out)
{
    *out = (struct hth_expert_opts)HTH_EXPERT_OPTS_INIT;
    out->kind = swarm->opts.kind;
    out->shape.d = swarm->opts.d;
    out->clip_norm = 0;
    out->backend = swarm->opts.bench->backend;
    out->run_seed = swarm->opts.bench->seed;
    out->uid.ncoord = swarm->grid.ndim;
    memcpy(out->uid.name, swarm->grid.name, sizeof(out->uid.name));
    hth_grid_coords(&swarm->grid, index, out->uid.coord);
}

static enum hth_err env_new(const struct hth_bench *bench, uint32_t threads, struct hth_env **out)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    opts.compute_threads = threads;
    opts.plain = bench->plain;
    HTH_TRY(hth_net_new(&opts, out));
    return hth_cli_log_apply(&bench->log, &(*out)->log);
}

static enum hth_err host_build(struct hth_bench_host *h)
{
    const struct hth_bench_swarm_opts *o = &h->swarm->opts;
    struct hth_rpc_opts rpc_opts = HTH_RPC_OPTS_INIT;
    struct hth_server_opts opts = HTH_SERVER_OPTS_INIT;
    const struct hth_addr loopback = {.family = 4, .ip = {127, 0, 0, 1}};
    HTH_TRY(env_new(o->bench, o->host_threads, &h->env));
    rpc_opts.network = NETWORK;
    rpc_opts.listen = &loopback;
    /* Clients' loops do not run between measurements, so they could not answer a ping. */
    rpc_opts.ping_after_us = 0;
    rpc_opts.idle_timeout_us = 0;
    HTH_TRY(hth_rpc_new(h->env, &rpc_opts, &h->rpc));
    hth_rpc_addr(h->rpc, &h->addr);
    opts.batch_rows_max = o->batch_rows_max;
    opts.step_rows = o->step_rows;
    opts.queue_us_max = TIMEOUT_US;
    opts.on_expert = on_expert;
    opts.arg = h;
    HTH_TRY(hth_server_new(h->env, h->rpc, &opts, &h->server));
    for (uint32_t i = 0; i < h->count; i++) {
        struct hth_expert_opts expert;
        expert_opts(h->swarm, h->first + i, &expert);
        HTH_TRY(hth_server_add(h->server, &expert));
    }
    return HTH_OK;
}

static void *host_main(void *arg)
{
    struct hth_bench_host *h = arg;
    enum hth_err err = host_build(h);
    if (err == HTH_OK)
        err = hth_net_run(h->env);
    if (err != HTH_OK)
        host_ready(h, err);
    if (h->env != NULL)
        hth_net_jobs_end(h->env);
    hth_server_free(h->server);
    hth_rpc_free(h->rpc);
    hth_net_free(h->env);
    h->env = NULL;
    return NULL;
}

static enum hth_err host_start(struct hth_bench_host *h)
{
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->wake, NULL);
    if (pthread_create(&h->thread, NULL, host_main, h) != 0)
        return HTH_E_IO;
    h->started = true;
    return HTH_OK;
}

static enum hth_err host_wait(struct hth_bench_host *h)
{
    pthread_mutex_lock(&h->lock);
    while (!h->ready)
        pthread_cond_wait(&h->wake, &h->lock);
    enum hth_err err = h->err;
    pthread_mutex_unlock(&h->lock);
    return err;
}

static void host_stop(struct hth_bench_host *h)
{
    if (h->started) {
        /* A host that failed to start has ended by itself; only a ready one has a loop to stop. */
        if (host_wait(h) == HTH_OK)
            hth_net_stop(h->env);
        pthread_join(h->thread, NULL);
    }
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->wake);
}

static void take_stats(void *arg)
{
    struct hth_bench_host *h = arg;
    pthread_mutex_lock(&h->lock);
    hth_server_stats(h->server, &h->stats);
    h->stats_there = true;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
}

void hth_bench_swarm_stats(struct hth_bench_swarm *swarm, struct hth_server_stats *out)
{
    *out = (struct hth_server_stats){0};
    for (uint32_t i = 0; i < swarm->opts.hosts; i++) {
        struct hth_bench_host *h = &swarm->hosts[i];
        h->stats_there = false;
        hth_post(h->env, take_stats, h);
        pthread_mutex_lock(&h->lock);
        while (!h->stats_there)
            pthread_cond_wait(&h->wake, &h->lock);
        out->requests += h->stats.requests;
        out->batches += h->stats.batches;
        out->jobs += h->stats.jobs;
        out->steps += h->stats.steps;
        out->rows_forward += h->stats.rows_forward;
        out->rows_backward += h->stats.rows_backward;
        out->bytes_in += h->stats.bytes_in;
        out->bytes_out += h->stats.bytes_out;
        pthread_mutex_unlock(&h->lock);
    }
}

/* ---- the swarm ----------------------------------------------------------------------------- */

static enum hth_err client_new(const struct hth_bench *bench, struct hth_bench_client *c)
{
    struct hth_rpc_opts rpc_opts = HTH_RPC_OPTS_INIT;
    struct hth_expert_client_opts opts = HTH_EXPERT_CLIENT_OPTS_INIT;
    HTH_TRY(env_new(bench, 1, &c->env));
    rpc_opts.network = NETWORK;
    rpc_opts.ping_after_us = 0;
    rpc_opts.idle_timeout_us = 0;
    /* A busy machine must not cause retries. */
    rpc_opts.timeout_min_us = 30 * HTH_US_PER_S;
    HTH_TRY(hth_rpc_new(c->env, &rpc_opts, &c->rpc));
    opts.timeout_us = TIMEOUT_US;
    return hth_expert_client_new(c->env, c->rpc, &opts, &c->experts);
}

static enum hth_err start_hosts(struct hth_bench_swarm *s)
{
    const struct hth_bench_swarm_opts *o = &s->opts;
    int64_t start_us = hth_bench_now_us(NULL);
    enum hth_err err = HTH_OK;
    s->hosts = hth_new_array(struct hth_bench_host, o->hosts);
    for (uint32_t i = 0; i < o->hosts && err == HTH_OK; i++) {
        struct hth_bench_host *h = &s->hosts[i];
        h->swarm = s;
        h->first = (uint32_t)((uint64_t)i * o->experts / o->hosts);
        h->count = (uint32_t)((uint64_t)(i + 1) * o->experts / o->hosts) - h->first;
        err = host_start(h);
    }
    for (uint32_t i = 0; i < o->hosts && s->hosts[i].started; i++) {
        enum hth_err one = host_wait(&s->hosts[i]);
        err = err == HTH_OK ? one : err;
    }
    s->start_s = (double)(hth_bench_now_us(NULL) - start_us) / 1e6;
    return err;
}

static void name_targets(struct hth_bench_swarm *s)
{
    s->targets = hth_new_array(struct hth_expert_target, s->opts.experts);
    for (uint32_t i = 0; i < s->opts.hosts; i++) {
        const struct hth_bench_host *h = &s->hosts[i];
        for (uint32_t e = h->first; e < h->first + h->count; e++) {
            hth_grid_coords(&s->grid, e, s->targets[e].coord);
            s->targets[e].host = h->env->self;
            s->targets[e].addr = h->addr;
        }
    }
}

enum hth_err hth_bench_swarm_new(const struct hth_bench_swarm_opts *opts,
                                 struct hth_bench_swarm **out)
{
    struct hth_bench_swarm *s = hth_new(struct hth_bench_swarm);
    uint32_t side = (uint32_t)ceil(sqrt(opts->experts)), dims[2] = {side, side};
    enum hth_err err;
    *out = NULL;
    s->opts = *opts;
    HTH_GOTO(out, hth_grid_init(&s->grid, LAYER, 2, dims));
    HTH_GOTO(out, start_hosts(s));
    name_targets(s);
    s->clients = hth_new_array(struct hth_bench_client, opts->clients);
    for (uint32_t i = 0; i < opts->clients; i++)
        HTH_GOTO(out, client_new(opts->bench, &s->clients[i]));
    *out = s;
    return HTH_OK;
out:
    hth_bench_swarm_free(s);
    return err;
}

void hth_bench_swarm_free(struct hth_bench_swarm *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; s->clients != NULL && i < s->opts.clients; i++) {
        struct hth_bench_client *c = &s->clients[i];
        if (c->env != NULL)
            hth_net_jobs_end(c->env);
        hth_expert_client_free(c->experts);
        hth_rpc_free(c->rpc);
        hth_net_free(c->env);
    }
    for (uint32_t i = 0; s->hosts != NULL && i < s->opts.hosts; i++) {
        if (s->hosts[i].swarm != NULL)
            host_stop(&s->hosts[i]);
    }
    hth_free(s->clients);
    hth_free(s->hosts);
    hth_free(s->targets);
    hth_free(s);
}

/* ---- calls --------------------------------------------------------------------------------- */

struct hth_tensor hth_bench_tensor(uint32_t rows, uint32_t d)
{
    return (struct hth_tensor){.dtype = HTH_F32,
                               .ndim = 2,
                               .dim = {rows, d},
                               .blob = hth_blob_try_new((size_t)rows * d * sizeof(float))};
}

void hth_bench_call_one(const struct hth_bench_swarm *swarm, uint32_t expert, uint32_t rows,
                        struct hth_expert_pair *pairs, struct hth_expert_call *call)
{
    hth_bench_call_spread(swarm, expert, 1, rows, pairs, call);
}

void hth_bench_call_spread(const struct hth_bench_swarm *swarm, uint32_t first, uint32_t experts,
                           uint32_t rows, struct hth_expert_pair *pairs,
                           struct hth_expert_call *call)
{
    for (uint32_t i = 0; i < rows; i++)
        pairs[i] =
            (struct hth_expert_pair){.unit = i, .target = (uint32_t)((uint64_t)i * experts / rows)};
    *call = (struct hth_expert_call){
        .layer = swarm->grid.name,
        .ndim = swarm->grid.ndim,
        .targets = &swarm->targets[first],
        .targets_count = experts,
        .pairs = pairs,
        .pairs_count = rows,
        .wire = swarm->opts.bench->wire,
    };
}

struct swarm_ask {
    struct hth_env *env;
    bool done;
};

static void on_answer(void *arg, struct hth_expert_batch *batch)
{
    struct swarm_ask *ask = arg;
    (void)batch;
    ask->done = true;
    hth_net_stop(ask->env);
}

enum hth_err hth_bench_ask(struct hth_bench_client *client, const struct hth_expert_call *call,
                           struct hth_expert_batch **out)
{
    struct swarm_ask ask = {.env = client->env};
    struct hth_expert_batch *batch;
    *out = NULL;
    HTH_TRY(hth_experts_call(client->experts, call, on_answer, &ask, &batch));
    enum hth_err err = hth_net_run(client->env);
    if (err == HTH_OK && !ask.done)
        err = HTH_E_BUG;
    const enum hth_err *verdicts = hth_expert_batch_verdicts(batch);
    for (uint32_t i = 0; i < call->pairs_count && err == HTH_OK; i++)
        err = verdicts[i];
    if (err == HTH_OK)
        *out = batch;
    else
        hth_expert_batch_free(batch);
    return err;
}

/* ---- comparison with direct kernel calls --------------------------------------------------- */

enum hth_err hth_bench_twin_expert(const struct hth_bench_swarm *swarm, uint32_t index,
                                   struct hth_expert **out)
{
    struct hth_expert_opts opts;
    expert_opts(swarm, index, &opts);
    HTH_TRY(hth_expert_new(&opts, out));
    enum hth_err err = hth_expert_init(*out);
    if (err != HTH_OK) {
        hth_expert_free(*out);
        *out = NULL;
    }
    return err;
}

/* Computes expert `index` for x (and dy, if not NULL) without a network. */
static enum hth_err direct(const struct hth_bench_swarm *s, uint32_t index, uint32_t rows, float *x,
                           float *dy, float *out)
{
    uint32_t d = s->opts.d;
    struct hth_expert *expert;
    struct hth_exec *ex = NULL;
    enum hth_err err;
    HTH_TRY(hth_bench_twin_expert(s, index, &expert));
    size_t scratch = hth_expert_scratch_bytes(expert, rows, dy != NULL);
    HTH_GOTO(out, hth_exec_new(s->opts.bench->backend, scratch, &ex));
    if (dy == NULL)
        HTH_GOTO(out, hth_expert_forward(expert, ex, hth_view_f32(x, rows, d, d),
                                         hth_view_f32(out, rows, d, d)));
    else
        HTH_GOTO(out,
                 hth_expert_backward(expert, ex, rows, hth_view_f32(x, rows, d, d),
                                     hth_view_f32(dy, rows, d, d), hth_view_f32(out, rows, d, d)));
    err = hth_exec_sync(ex);
out:
    hth_exec_free(ex);
    hth_expert_free(expert);
    return err;
}

/* Rows of a narrow type are rounded in each direction: x or dy in requests, y or dx in replies. */
static double distance_max(const struct hth_bench_swarm *s)
{
    switch (s->opts.bench->wire) {
    case HTH_BF16:
        return 8e-3;
    case HTH_F16:
        return 1e-3;
    case HTH_I8:
        return 4e-2;
    default:
        return DISTANCE_MAX;
    }
}

static enum hth_err verify_one(struct hth_bench_swarm *s, uint32_t index, uint32_t rows,
                               bool backward)
{
    uint32_t d = s->opts.d;
    size_t count = (size_t)rows * d;
    struct hth_expert_pair *pairs = hth_new_array(struct hth_expert_pair, rows);
    float *got = hth_new_array(float, count), *want = hth_new_array(float, count);
    uint8_t *ok = hth_new_array(uint8_t, rows);
    struct hth_tensor x = hth_bench_tensor(rows, d), dy = hth_bench_tensor(rows, d);
    struct hth_expert_batch *batch = NULL;
    struct hth_expert_call call;
    enum hth_err err = HTH_E_NO_MEMORY;
    if (x.blob == NULL || dy.blob == NULL)
        goto out;
    hth_bench_normals(s->opts.bench->seed, 1000 + index, hth_bench_floats(&x), count);
    hth_bench_normals(s->opts.bench->seed, 2000 + index, hth_bench_floats(&dy), count);
    hth_bench_call_one(s, index, rows, pairs, &call);
    call.x = x;
    if (backward)
        call.dy = dy;
    HTH_GOTO(out, hth_bench_ask(&s->clients[0], &call, &batch));
    HTH_GOTO(out, direct(s, index, rows, hth_bench_floats(&x),
                         backward ? hth_bench_floats(&dy) : NULL, want));
    if (hth_expert_batch_unpack(batch, got, d, ok) > 0 ||
        !(hth_bench_distance(got, want, count) < distance_max(s))) {
        hth_cli_say_error("expert %u gives different %s through the network", index,
                          backward ? "gradients" : "rows");
        err = HTH_E_BUG;
    }
out:
    hth_expert_batch_free(batch);
    hth_blob_unref(x.blob);
    hth_blob_unref(dy.blob);
    hth_free(pairs);
    hth_free(got);
    hth_free(want);
    hth_free(ok);
    return err;
}

enum hth_err hth_bench_swarm_verify(struct hth_bench_swarm *swarm, uint32_t rows, bool backward)
{
    uint32_t n = swarm->opts.experts, some = HTH_MIN(n, (uint32_t)VERIFY_MAX);
    /* Forwards come first, because a backward changes the weights. */
    for (uint32_t i = 0; i < some; i++)
        HTH_TRY(verify_one(swarm, (uint32_t)((uint64_t)i * n / some), rows, false));
    for (uint32_t i = 0; i < some && backward; i++)
        HTH_TRY(verify_one(swarm, (uint32_t)((uint64_t)i * n / some), rows, true));
    return HTH_OK;
}
