/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer.h: runs one mixture-of-experts layer as a trainer does, step by step, on one thread:
 *
 *   tables = x Wg   ->  beam search  ->  forward calls  ->  mixture  ->  loss = mean (out - x)^2
 *   dWg, Wg -= lr dWg  <-  scores' gradient  <-  backward calls  <-  mixture's gradient
 *
 * The calls go to a bench swarm (swarm.h), whose experts are all known.
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
    uint32_t experts; /* number of different experts chosen */
    uint64_t bytes;   /* of tensors, in both directions and passes */
    double loss;
};

/* Draws the rows, which all steps use. Errors: those of the gate and E_NO_MEMORY. */
enum hth_err hth_bench_layer_new(struct hth_bench_swarm *swarm, uint32_t rows, uint32_t k,
                                 struct hth_bench_layer **out) HTH_MUST;
/* NULL is fine. */
void hth_bench_layer_free(struct hth_bench_layer *layer);

/* Runs one step. Errors: the first bad verdict; E_BUG if a row got fewer than k replies. */
enum hth_err hth_bench_layer_step(struct hth_bench_layer *layer,
                                  struct hth_bench_layer_step *out) HTH_MUST;

#endif
