/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers_swarm.c: hearth's side of the cases that need a swarm, and of the beam search.
 *
 *   A     clients in closed loops; each request goes to a random expert
 *   E     a trainer's steps through one layer
 *   beam  64 rows over 4,096 experts
 */
#include "benchmarks/gate.h"
#include "benchmarks/layer.h"
#include "benchmarks/peers.h"

#include "core/mem.h"

#define WARM_STEPS 2
#define WARM_ROWS  8 /* per expert */
#define SEARCHES   201
#define RUN_US     (HTH_US_PER_S / 2)

struct swarm_side {
    struct hth_bench *bench;
    const struct hth_bench_peers_case *c;
    struct hth_bench_swarm *swarm;
    struct hth_bench_layer *layer; /* E */
};

static struct swarm_side *side_new(struct hth_bench *b, const struct hth_bench_peers_case *c)
{
    struct swarm_side *s = hth_new(struct swarm_side);
    s->bench = b;
    s->c = c;
    return s;
}

static void side_close(void *state)
{
    struct swarm_side *s = state;
    if (s == NULL)
        return;
    hth_bench_layer_free(s->layer);
    hth_bench_swarm_free(s->swarm);
    hth_free(s);
}

static enum hth_err swarm_open(struct swarm_side *s, uint32_t hosts, uint32_t clients)
{
    const struct hth_bench_swarm_opts opts = {
        .bench = s->bench,
        .kind = s->c->kind,
        .d = s->c->d,
        .experts = s->c->experts,
        .hosts = hosts,
        .clients = clients,
        .host_threads = HTH_MAX(1u, hth_bench_threads(s->bench) / hosts),
        .batch_rows_max = 8192,
        .step_rows = 1,
    };
    return hth_bench_swarm_new(&opts, &s->swarm);
}

/* ---- A -------------------------------------------------------------------------------------- */

static enum hth_err calls_open(struct hth_bench *b, const struct hth_bench_peers_case *c,
                               void **state)
{
    struct swarm_side *s = *state = side_new(b, c);
    /* Calls every expert once: the first step of an expert touches its gradients and moments. */
    struct hth_bench_load warm = {.callers = c->clients,
                                  .batches = 1,
                                  .rows = c->experts * WARM_ROWS,
                                  .spread = c->experts,
                                  .forward = true,
                                  .backward = c->backward,
                                  .seed = b->seed + 1};
    struct hth_bench_load_result result;
    HTH_TRY(swarm_open(s, 1, c->clients));
    HTH_TRY(hth_bench_swarm_verify(s->swarm, 16, c->backward));
    return hth_bench_drive(s->swarm, &warm, &result);
}

static enum hth_err calls_run(void *state, struct hth_bench_peers_run *out)
{
    struct swarm_side *s = state;
    const struct hth_bench_load load = {.callers = s->c->clients,
                                        .batches = s->c->batches,
                                        .rows = s->c->rows,
                                        .forward = true,
                                        .backward = s->c->backward,
                                        .seed = s->bench->seed + 2};
    struct hth_bench_load_result result;
    HTH_TRY(hth_bench_drive(s->swarm, &load, &result));
    out->value = result.rows_per_s;
    return HTH_OK;
}

const struct hth_bench_peers_side hth_bench_peers_calls = {calls_open, calls_run, side_close};

/* ---- E -------------------------------------------------------------------------------------- */

static enum hth_err layer_open(struct hth_bench *b, const struct hth_bench_peers_case *c,
                               void **state)
{
    struct swarm_side *s = *state = side_new(b, c);
    struct hth_bench_layer_step step;
    HTH_TRY(swarm_open(s, c->hosts, 1));
    HTH_TRY(hth_bench_swarm_verify(s->swarm, 16, true));
    HTH_TRY(hth_bench_layer_new(s->swarm, c->rows, c->k, &s->layer));
    for (int i = 0; i < WARM_STEPS; i++)
        HTH_TRY(hth_bench_layer_step(s->layer, &step));
    return HTH_OK;
}

static enum hth_err layer_run(void *state, struct hth_bench_peers_run *out)
{
    struct swarm_side *s = state;
    struct hth_bench_layer_step step;
    struct hth_bench_samples ms;
    hth_bench_begin(&ms);
    /* At least as many as hivemind makes; more where they are short, so that one pause of the
     * machine is not the figure. */
    while (ms.count < s->c->steps ||
           (ms.count < HTH_BENCH_REPEATS_MAX && hth_bench_now_us(NULL) - ms.start_us < RUN_US)) {
        HTH_TRY(hth_bench_layer_step(s->layer, &step));
        hth_bench_add(&ms, step.ms);
    }
    out->value = 1000 / hth_bench_median(&ms);
    return HTH_OK;
}

const struct hth_bench_peers_side hth_bench_peers_layer = {layer_open, layer_run, side_close};

/* ---- beam ----------------------------------------------------------------------------------- */

static enum hth_err beam_open(struct hth_bench *b, const struct hth_bench_peers_case *c,
                              void **state)
{
    *state = side_new(b, c);
    return HTH_OK;
}

/* Each run compares with brute force before it times. */
static enum hth_err beam_run(void *state, struct hth_bench_peers_run *out)
{
    const struct swarm_side *s = state;
    const struct hth_bench_gate_case gate = {.experts = s->c->experts,
                                             .rows = s->c->rows,
                                             .k = s->c->k,
                                             .rounds = SEARCHES,
                                             .seed = s->bench->seed};
    struct hth_bench_gate_figure figure;
    HTH_TRY(hth_bench_gate_measure(&gate, &figure));
    out->value = figure.ms_median;
    return figure.dht_requests == 0 ? HTH_OK : HTH_E_BUG;
}

const struct hth_bench_peers_side hth_bench_peers_beam = {beam_open, beam_run, side_close};
