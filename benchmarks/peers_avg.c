/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers_avg.c: hearth's side of case C: averagers find each other through the DHT and average.
 *
 * 16 nodes form a 4 x 4 grid, each with its own address, DHT node, loop and threads. Each averages
 * five rounds in groups of four, with its vector in half precision. The clock runs from the moment
 * all nodes are up to the end of the last step. A step succeeds if all four vectors are in its
 * mean; if all steps succeed, every node must hold the true mean.
 */
#include "benchmarks/avg_node.h"
#include "benchmarks/peers.h"
#include "core/mem.h"
#include "net/net.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define NODES   16
#define ROUNDS  5
#define GROUP   4
#define UP_S    120
#define ROUND_S 60

struct averagers;

struct one {
    struct averagers *swarm;
    struct hth_avg_node node;
    struct hth_avg_node_opts opts;
    pthread_t thread;
    bool started;
    uint32_t done, good;
};

struct averagers {
    const struct hth_bench *bench;
    size_t floats;
    struct one one[NODES];
    struct hth_addr first;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    uint32_t up, ended, failed; /* nodes */
    enum hth_err err;
    int64_t begin_us, end_us;
};

/* ---- one node's thread ---------------------------------------------------------------------- */

static void count(struct averagers *s, uint32_t *counter)
{
    pthread_mutex_lock(&s->lock);
    (*counter)++;
    s->end_us = hth_bench_now_us(NULL);
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

static void on_ready(void *arg)
{
    struct one *o = arg;

    count(o->swarm, &o->swarm->up);
}

static void step(void *arg)
{
    struct one *o = arg;

    if (hth_avg_node_sweep(&o->node, 1) != HTH_OK) {
        o->done = ROUNDS; /* the remaining steps count as failed */
        count(o->swarm, &o->swarm->ended);
    }
}

static void on_sweep(void *arg, const struct hth_avg_result *r)
{
    struct one *o = arg;

    o->good += r->err == HTH_OK && r->round.members == GROUP && r->round.drops == 0 &&
               r->round.weight_fraction == 1;
    if (++o->done < ROUNDS)
        step(o);
    else
        count(o->swarm, &o->swarm->ended);
}

static void *node_main(void *arg)
{
    struct one *o = arg;
    struct averagers *s = o->swarm;
    enum hth_err err = hth_avg_node_open(&o->opts, &o->node);

    if (err == HTH_OK && o->opts.rank == 0) {
        pthread_mutex_lock(&s->lock);
        s->first = o->node.opts.addr;
        pthread_cond_broadcast(&s->wake);
        pthread_mutex_unlock(&s->lock);
    }
    if (err == HTH_OK)
        err = hth_avg_node_run(&o->node);
    if (err != HTH_OK) {
        s->err = err;
        count(s, &s->failed);
    }
    return NULL;
}

/* ---- all ------------------------------------------------------------------------------------ */

/* Waits until the counter has all nodes. Errors: a node's, E_TIMEOUT. */
static enum hth_err wait_for(struct averagers *s, const uint32_t *counter, int64_t seconds)
{
    struct timespec until;
    int bad = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&s->lock);
    while (*counter < NODES && s->failed == 0 && bad == 0)
        bad = pthread_cond_timedwait(&s->wake, &s->lock, &until);
    enum hth_err err = s->failed > 0 ? s->err : (bad != 0 ? HTH_E_TIMEOUT : HTH_OK);
    pthread_mutex_unlock(&s->lock);
    return err;
}

static enum hth_err wait_first(struct averagers *s)
{
    struct timespec until;
    int bad = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += UP_S;
    pthread_mutex_lock(&s->lock);
    while (s->first.port == 0 && s->failed == 0 && bad == 0)
        bad = pthread_cond_timedwait(&s->wake, &s->lock, &until);
    enum hth_err err = s->failed > 0 ? s->err : (bad != 0 ? HTH_E_TIMEOUT : HTH_OK);
    pthread_mutex_unlock(&s->lock);
    return err;
}

static enum hth_err swarm_start(struct averagers *s)
{
    /* Each node has one address and one port (docs/footguns.md). The address depends on the process
     * id, so that two benchmarks on one machine do not meet. */
    const uint8_t x = (uint8_t)(1 + getpid() / 250 % 250), y = (uint8_t)(1 + getpid() % 250);

    for (uint32_t i = 0; i < NODES; i++) {
        struct one *o = &s->one[i];
        o->swarm = s;
        o->opts = (struct hth_avg_node_opts){
            .network = "peers-c",
            .addr = {.family = 4, .ip = {127, 90, x, y}},
            .threads = 1,
            .population = NODES,
            .shape = {.dims = 2, .size = {GROUP, GROUP}},
            .rank = i,
            .count = s->floats,
            .format = HTH_QUANT_F16,
            .seed = s->bench->seed,
            .window_us = 10 * HTH_US_PER_S,
            .on_ready = on_ready,
            .on_sweep = on_sweep,
            .arg = o,
        };
        if (i > 0) {
            o->opts.join = &s->first;
            o->opts.join_count = 1;
        }
        if (pthread_create(&o->thread, NULL, node_main, o) != 0)
            return HTH_E_IO;
        o->started = true;
        if (i == 0)
            HTH_TRY(wait_first(s));
    }
    return wait_for(s, &s->up, UP_S);
}

static void swarm_stop(struct averagers *s)
{
    for (uint32_t i = 0; i < NODES; i++) {
        struct one *o = &s->one[i];
        if (!o->started)
            continue;
        if (o->node.env != NULL)
            hth_net_stop(o->node.env);
        pthread_join(o->thread, NULL);
        hth_avg_node_close(&o->node);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    hth_free(s);
}

/* The largest deviation of any node from the true mean, over the largest value. */
static enum hth_err deviation(const struct averagers *s, double *out)
{
    size_t floats = s->floats;
    double *mean = hth_try_calloc(floats, sizeof(*mean)), worst = 0, largest = 0;
    float *x = hth_try_calloc(floats, sizeof(*x));
    enum hth_err err = mean != NULL && x != NULL ? HTH_OK : HTH_E_NO_MEMORY;

    for (uint32_t i = 0; i < NODES && err == HTH_OK; i++) {
        hth_avg_node_values(s->bench->seed, i, x, floats);
        for (size_t j = 0; j < floats; j++) {
            mean[j] += (double)x[j] / NODES;
            largest = HTH_MAX(largest, fabs((double)x[j]));
        }
    }
    for (uint32_t i = 0; i < NODES && err == HTH_OK; i++)
        for (size_t j = 0; j < floats; j++)
            worst = hth_worse(worst, fabs((double)s->one[i].node.values[j] - mean[j]));
    *out = worst / HTH_MAX(largest, 1e-9);
    hth_free(mean);
    hth_free(x);
    return err;
}

/* ---- the case ------------------------------------------------------------------------------- */

struct averagers_side {
    const struct hth_bench *bench;
    size_t floats;
};

/* Starts no nodes: each run makes new ones. */
static enum hth_err averagers_open(struct hth_bench *b, const struct hth_bench_peers_case *c,
                                   void **state)
{
    struct averagers_side *side = hth_new(struct averagers_side);
    const size_t width = c->width;
    HTH_ASSERT(c->nodes == NODES && c->rounds == ROUNDS && c->group == GROUP);
    side->bench = b;
    side->floats = 3 * (12 * width * width + 19 * width);
    *state = side;
    return HTH_OK;
}

static enum hth_err averagers_run(void *state, struct hth_bench_peers_run *out)
{
    const struct averagers_side *side = state;
    struct averagers *s = hth_new(struct averagers);
    double off = 0;
    enum hth_err err;

    s->bench = side->bench;
    s->floats = side->floats;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    HTH_GOTO(out, swarm_start(s));
    s->begin_us = hth_bench_now_us(NULL);
    for (uint32_t i = 0; i < NODES; i++)
        hth_post(s->one[i].node.env, step, &s->one[i]);
    HTH_GOTO(out, wait_for(s, &s->ended, ROUNDS * ROUND_S));
    for (uint32_t i = 0; i < NODES; i++)
        out->good += s->one[i].good;
    HTH_GOTO(out, deviation(s, &off));
    /* A failed step leaves vectors out of the mean, so only complete runs are compared. */
    if (out->good == NODES * ROUNDS && off > 2e-3) {
        hth_cli_say_error("case C: a node is off the true mean by %.3g of the largest value", off);
        err = HTH_E_BUG;
        goto out;
    }
    out->value = (double)(s->end_us - s->begin_us) / 1e6;
out:
    swarm_stop(s);
    return err;
}

static void averagers_close(void *state)
{
    hth_free(state);
}

const struct hth_bench_peers_side hth_bench_peers_averagers = {averagers_open, averagers_run,
                                                               averagers_close};
