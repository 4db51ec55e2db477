/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer.h: one mixture-of-experts layer as a trainer runs it, step by step, on one thread:
 *
 *   tables = x Wg   ->  beam search  ->  forward calls  ->  mixture  ->  loss = mean (out - x)^2
 *   dWg, Wg -= lr dWg  <-  scores' gradient  <-  backward calls  <-  mixture's gradient
 *
 * The calls go to a bench swarm, whose experts are all known.
 */
#ifndef HTH_BENCHMARKS_LAYER_H
#define HTH_BENCHMARKS_LAYER_H

#include "benchmarks/swarm.h"

struct hth_bench_layer;

struct hth_bench_layer_step {
    double ms;
    double ms_forward;  /* gate, search, calls, mixture */
    double ms_backward; /* loss, calls, gradients, the gate's step */
    double ms_search;
    uint32_t requests_forward, requests_backward;
    uint32_t experts; /* distinct ones that were chosen */
    uint64_t bytes;   /* of tensors, both ways, both passes */
    double loss;
};

/* Rows are drawn once. Errors: those of the gate and E_NO_MEMORY. */
enum hth_err hth_bench_layer_new(struct hth_bench_swarm *swarm, uint32_t rows, uint32_t k,
                                 struct hth_bench_layer **out) HTH_MUST;
/* NULL is fine. */
void hth_bench_layer_free(struct hth_bench_layer *layer);

/* One step. Errors: the first bad verdict, and E_BUG when a row got fewer than k answers. */
enum hth_err hth_bench_layer_step(struct hth_bench_layer *layer,
                                  struct hth_bench_layer_step *out) HTH_MUST;

#endif
