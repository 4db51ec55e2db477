/* SPDX-License-Identifier: Apache-2.0 */
/* load.c: closed loops of callers, with a thread per client. */
#include "benchmarks/swarm.h"
#include "core/mem.h"
#include "core/rng.h"
#include "net/net.h"

#include <pthread.h>

struct load_run;

struct caller {
    struct load_run *run;
    struct hth_rng rng;
    uint32_t batches_left;
    uint32_t expert;
    struct hth_expert_batch *forward; /* the backward's; NULL in a forward */
    bool in_backward;
};

/* One client's share. */
struct load_run {
    struct hth_bench_swarm *swarm;
    const struct hth_bench_load *load;
    struct hth_bench_client *client;
    struct caller *callers;
    uint32_t callers_count, active;
    struct hth_expert_pair *pairs;
    struct hth_tensor x, dy;
    pthread_t thread;
    pthread_barrier_t *gate; /* the clock starts when all threads wait here */
    uint64_t requests, retries;
    int64_t end_us;
    enum hth_err err;
};

static void caller_end(struct caller *c, enum hth_err err)
{
    struct load_run *r = c->run;
    if (r->err == HTH_OK)
        r->err = err;
    if (--r->active == 0) {
        r->end_us = hth_bench_now_us(NULL);
        hth_net_stop(r->client->env);
    }
}

static void on_answer(void *arg, struct hth_expert_batch *batch);

static void caller_send(struct caller *c)
{
    struct load_run *r = c->run;
    struct hth_expert_batch *batch;
    struct hth_expert_call call;
    hth_bench_call_spread(r->swarm, c->expert, HTH_MAX(r->load->spread, 1u), r->load->rows,
                          r->pairs, &call);
    call.x = r->x;
    call.keep = r->load->backward && !c->in_backward;
    call.forward = c->forward;
    if (c->in_backward)
        call.dy = r->dy;
    enum hth_err err = hth_experts_call(r->client->experts, &call, on_answer, c, &batch);
    hth_expert_batch_free(c->forward);
    c->forward = NULL;
    if (err != HTH_OK)
        caller_end(c, err);
}

static void caller_next(struct caller *c)
{
    if (c->batches_left == 0) {
        caller_end(c, HTH_OK);
        return;
    }
    c->batches_left--;
    c->in_backward = !c->run->load->forward;
    c->expert = 0;
    if (c->run->load->spread == 0)
        c->expert = (uint32_t)hth_rng_below(&c->rng, c->run->swarm->opts.experts);
    caller_send(c);
}

static void on_answer(void *arg, struct hth_expert_batch *batch)
{
    struct caller *c = arg;
    struct load_run *r = c->run;
    struct hth_expert_batch_info info;
    uint32_t pairs = hth_expert_batch_pairs(batch);
    bool whole = hth_expert_batch_ok_count(batch) == pairs;
    enum hth_err err = HTH_OK;
    for (uint32_t i = 0; i < pairs && !whole && err == HTH_OK; i++)
        err = hth_expert_batch_verdicts(batch)[i];
    hth_expert_batch_info(batch, &info);
    r->requests += info.requests;
    r->retries += info.retries;
    if (err == HTH_OK && r->load->backward && !c->in_backward) {
        c->in_backward = true;
        c->forward = batch;
        caller_send(c);
        return;
    }
    hth_expert_batch_free(batch);
    if (err != HTH_OK) {
        caller_end(c, err);
    } else {
        caller_next(c);
    }
}

static void *run_main(void *arg)
{
    struct load_run *r = arg;
    pthread_barrier_wait(r->gate);
    r->end_us = hth_bench_now_us(NULL);
    for (uint32_t i = 0; i < r->callers_count; i++)
        caller_next(&r->callers[i]);
    if (r->active > 0) {
        enum hth_err err = hth_net_run(r->client->env);
        r->err = r->err == HTH_OK ? err : r->err;
    }
    return NULL;
}

/* Fills rows with uniform numbers of variance 1; the values do not affect the speed. */
static enum hth_err make_rows(struct load_run *r)
{
    uint32_t rows = r->load->rows, d = r->swarm->opts.d;
    size_t count = (size_t)rows * d;
    r->pairs = hth_new_array(struct hth_expert_pair, rows);
    r->x = hth_bench_tensor(rows, d);
    r->dy = r->load->backward ? hth_bench_tensor(rows, d) : r->x;
    if (r->x.blob == NULL || r->dy.blob == NULL)
        return HTH_E_NO_MEMORY;
    float *x = hth_bench_floats(&r->x), *dy = hth_bench_floats(&r->dy);
    for (size_t i = 0; i < count; i++) {
        if (r->load->backward)
            dy[i] = 1.0f;
        x[i] = ((float)(hth_mix64(r->load->seed + i) >> 40) * 0x1p-23f - 1.0f) * 1.7320508f;
    }
    return HTH_OK;
}

static enum hth_err run_init(struct load_run *r, const struct hth_bench_load *load, uint32_t number)
{
    uint32_t clients = r->swarm->opts.clients;
    struct hth_rng root;
    hth_rng_init(&root, load->seed);
    r->load = load;
    r->client = &r->swarm->clients[number];
    r->callers_count = r->active =
        load->callers / clients + (number < load->callers % clients ? 1 : 0);
    r->callers = hth_new_array(struct caller, HTH_MAX(r->callers_count, 1u));
    for (uint32_t i = 0; i < r->callers_count; i++) {
        struct caller *c = &r->callers[i];
        c->run = r;
        c->rng = hth_rng_split(&root, "caller", (uint64_t)i * clients + number);
        c->batches_left = load->batches;
    }
    return make_rows(r);
}

static void run_clear(struct load_run *r)
{
    hth_free(r->callers);
    hth_free(r->pairs);
    hth_blob_unref(r->x.blob);
    if (r->load != NULL && r->load->backward)
        hth_blob_unref(r->dy.blob);
}

/* Starts all threads or none: a barrier would never open for fewer threads than it counts. */
static void start_runs(struct load_run *runs, uint32_t count, pthread_barrier_t *gate)
{
    for (uint32_t i = 0; i < count; i++) {
        runs[i].gate = gate;
        HTH_ASSERT(pthread_create(&runs[i].thread, NULL, run_main, &runs[i]) == 0);
    }
}

static enum hth_err collect(struct load_run *runs, uint32_t count, int64_t start_us,
                            struct hth_bench_load_result *out)
{
    const struct hth_bench_load *load = runs[0].load;
    uint64_t requests = 0;
    int64_t end_us = start_us + 1;
    enum hth_err err = HTH_OK;
    *out = (struct hth_bench_load_result){0};
    for (uint32_t i = 0; i < count; i++) {
        requests += runs[i].requests;
        out->retries += runs[i].retries;
        end_us = HTH_MAX(end_us, runs[i].end_us);
        err = err == HTH_OK ? runs[i].err : err;
    }
    out->seconds = (double)(end_us - start_us) / 1e6;
    out->rows_per_s = (double)load->callers * load->batches * load->rows / out->seconds;
    out->requests_per_s = (double)requests / out->seconds;
    return err;
}

enum hth_err hth_bench_drive(struct hth_bench_swarm *swarm, const struct hth_bench_load *load,
                             struct hth_bench_load_result *out)
{
    uint32_t count = swarm->opts.clients;
    struct load_run *runs = hth_new_array(struct load_run, count);
    pthread_barrier_t gate;
    int64_t start_us;
    enum hth_err err = HTH_OK;
    pthread_barrier_init(&gate, NULL, count + 1);
    for (uint32_t i = 0; i < count; i++) {
        runs[i].swarm = swarm;
        HTH_GOTO(out, run_init(&runs[i], load, i));
    }
    start_runs(runs, count, &gate);
    start_us = hth_bench_now_us(NULL);
    pthread_barrier_wait(&gate);
    for (uint32_t i = 0; i < count; i++)
        pthread_join(runs[i].thread, NULL);
    err = collect(runs, count, start_us, out);
out:
    for (uint32_t i = 0; i < count; i++)
        run_clear(&runs[i]);
    pthread_barrier_destroy(&gate);
    hth_free(runs);
    return err;
}
