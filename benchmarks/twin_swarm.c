/* SPDX-License-Identifier: Apache-2.0 */
/*
 * twin_swarm.c: the twin cases that need a swarm (A, E, start), and the beam.
 *
 *   A      hivemind's benchmark_throughput: clients in closed loops, each picks an expert at random
 *   E      a trainer's steps through one layer on two hosts
 *   start  from nothing to 16 experts that answer
 */
#include "benchmarks/gate.h"
#include "benchmarks/layer.h"
#include "benchmarks/twin.h"

#define WARM_STEPS  2
#define WARM_ROWS   8 /* of each expert */
#define TIMED_STEPS 6

enum hth_err hth_bench_twin_calls(struct hth_bench *b, const struct hth_bench_twin_case *c)
{
    const struct hth_bench_swarm_opts opts = {
        .bench = b,
        .kind = c->kind,
        .d = c->d,
        .experts = c->experts,
        .hosts = 1,
        .clients = c->clients,
        .host_threads = hth_bench_threads(b),
        .batch_rows_max = 8192,
        .step_rows = 1,
    };
    /* Every expert once: a new one's gradients and moments are memory that nobody touched yet. */
    struct hth_bench_load warm = {.callers = c->clients,
                                  .batches = 1,
                                  .rows = c->experts * WARM_ROWS,
                                  .spread = c->experts,
                                  .forward = true,
                                  .backward = c->backward,
                                  .seed = b->seed + 1};
    struct hth_bench_load load = warm;
    struct hth_bench_load_result result;
    struct hth_bench_samples samples;
    struct hth_bench_swarm *swarm;
    enum hth_err err;
    load.batches = c->batches;
    load.rows = c->rows;
    load.spread = 0;
    HTH_TRY(hth_bench_swarm_new(&opts, &swarm));
    HTH_GOTO(out, hth_bench_swarm_verify(swarm, 16, c->backward));
    HTH_GOTO(out, hth_bench_drive(swarm, &warm, &result));
    hth_bench_begin(&samples);
    while (hth_bench_more(b, &samples, 5)) {
        load.seed = b->seed + 2 + samples.count;
        HTH_GOTO(out, hth_bench_drive(swarm, &load, &result));
        hth_bench_add(&samples, result.rows_per_s);
    }
    hth_bench_twin_emit(b, c, NULL, &samples);
out:
    hth_bench_swarm_free(swarm);
    return err;
}

static enum hth_err timed_steps(struct hth_bench *b, const struct hth_bench_twin_case *c,
                                struct hth_bench_layer *layer)
{
    struct hth_bench_layer_step step;
    struct hth_bench_samples samples;
    for (int i = 0; i < WARM_STEPS; i++)
        HTH_TRY(hth_bench_layer_step(layer, &step));
    hth_bench_begin(&samples);
    while (hth_bench_more(b, &samples, TIMED_STEPS)) {
        HTH_TRY(hth_bench_layer_step(layer, &step));
        hth_bench_add(&samples, 1000 / step.ms);
    }
    hth_bench_twin_emit(b, c, NULL, &samples);
    return HTH_OK;
}

enum hth_err hth_bench_twin_layer(struct hth_bench *b, const struct hth_bench_twin_case *c)
{
    const struct hth_bench_swarm_opts opts = {
        .bench = b,
        .kind = c->kind,
        .d = c->d,
        .experts = c->experts,
        .hosts = c->hosts,
        .clients = 1,
        .host_threads = HTH_MAX(1u, hth_bench_threads(b) / c->hosts),
        .batch_rows_max = 8192,
        .step_rows = 1,
    };
    struct hth_bench_swarm *swarm;
    struct hth_bench_layer *layer = NULL;
    enum hth_err err;
    HTH_TRY(hth_bench_swarm_new(&opts, &swarm));
    HTH_GOTO(out, hth_bench_swarm_verify(swarm, 16, true));
    HTH_GOTO(out, hth_bench_layer_new(swarm, c->rows, c->k, &layer));
    err = timed_steps(b, c, layer);
out:
    hth_bench_layer_free(layer);
    hth_bench_swarm_free(swarm);
    return err;
}

enum hth_err hth_bench_twin_start(struct hth_bench *b, const struct hth_bench_twin_case *c)
{
    const struct hth_bench_swarm_opts opts = {
        .bench = b,
        .kind = c->kind,
        .d = c->d,
        .experts = c->experts,
        .hosts = 1,
        .clients = 1,
        .host_threads = hth_bench_threads(b),
        .batch_rows_max = 8192,
        .step_rows = 1,
    };
    struct hth_bench_samples samples;
    hth_bench_begin(&samples);
    while (hth_bench_more(b, &samples, 5)) {
        struct hth_bench_swarm *swarm;
        HTH_TRY(hth_bench_swarm_new(&opts, &swarm));
        double start_s = swarm->start_s;
        enum hth_err err = hth_bench_swarm_verify(swarm, 4, false);
        hth_bench_swarm_free(swarm);
        HTH_TRY(err);
        hth_bench_add(&samples, start_s);
    }
    hth_bench_twin_emit(b, c, NULL, &samples);
    return HTH_OK;
}

enum hth_err hth_bench_twin_beam(struct hth_bench *b, const struct hth_bench_twin_case *c)
{
    const struct hth_bench_gate_case gate = {
        .experts = c->experts, .rows = c->rows, .k = c->k, .rounds = 201, .seed = b->seed};
    struct hth_bench_gate_figure figure;
    struct hth_bench_samples samples;
    hth_bench_begin(&samples);
    while (hth_bench_more(b, &samples, 3)) {
        HTH_TRY(hth_bench_gate_measure(&gate, &figure));
        if (figure.dht_requests != 0)
            return HTH_E_BUG;
        hth_bench_add(&samples, figure.ms_median);
    }
    hth_bench_twin_emit(b, c, NULL, &samples);
    return HTH_OK;
}
