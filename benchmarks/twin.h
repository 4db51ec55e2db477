/* SPDX-License-Identifier: Apache-2.0 */
/*
 * twin.h: the cases of `hearth bench twin`. docs/benchmarks.md says what hivemind's figures
 * are, on which machine they were measured, and what each case does.
 */
#ifndef HTH_BENCHMARKS_TWIN_H
#define HTH_BENCHMARKS_TWIN_H

#include "benchmarks/bench.h"

struct hth_bench_twin_case {
    const char *name;
    enum hth_err (*run)(struct hth_bench *b, const struct hth_bench_twin_case *c);
    const char *unit;
    double hivemind; /* the best of its configurations; 0: none */
    double aim;      /* ratio we want to reach; 0: none */
    bool less_is_better;
    const char *kind; /* of the experts */
    /* A: closed loops of clients */
    uint32_t d, experts, clients, batches, rows;
    bool backward;
    size_t floats; /* C: of each node's vector */
    /* E: steps of a layer */
    uint32_t hosts, k;
};

/* One row: case, value, unit, hivemind, ratio, aim. `variant` may be NULL. */
void hth_bench_twin_emit(struct hth_bench *b, const struct hth_bench_twin_case *c,
                         const char *variant, const struct hth_bench_samples *samples);

enum hth_err hth_bench_twin_calls(struct hth_bench *b,
                                  const struct hth_bench_twin_case *c) HTH_MUST;
enum hth_err hth_bench_twin_layer(struct hth_bench *b,
                                  const struct hth_bench_twin_case *c) HTH_MUST;
enum hth_err hth_bench_twin_start(struct hth_bench *b,
                                  const struct hth_bench_twin_case *c) HTH_MUST;
enum hth_err hth_bench_twin_beam(struct hth_bench *b, const struct hth_bench_twin_case *c) HTH_MUST;
/* Needs OpenDHT. */
enum hth_err hth_bench_twin_averagers(struct hth_bench *b,
                                      const struct hth_bench_twin_case *c) HTH_MUST;
enum hth_err hth_bench_twin_codec(struct hth_bench *b,
                                  const struct hth_bench_twin_case *c) HTH_MUST;

#endif
