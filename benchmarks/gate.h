/* SPDX-License-Identifier: Apache-2.0 */
/* gate.h: measures one case of the beam search for `bench gate` and `bench peers --case beam`. */
#ifndef HTH_BENCHMARKS_GATE_H
#define HTH_BENCHMARKS_GATE_H

#include "core/base.h"

struct hth_bench_gate_case {
    uint32_t experts; /* rounded down to a square number */
    uint32_t rows, k;
    uint32_t width; /* 0: the default */
    uint32_t rounds;
    uint64_t seed;
};

struct hth_bench_gate_figure {
    uint64_t experts;
    double ms_median, ms_best, ms_worst; /* per batch */
    uint64_t dht_requests;               /* sent during the measurement */
};

/* Errors: those of the directory and of hth_bench_gate. */
enum hth_err hth_bench_gate_measure(const struct hth_bench_gate_case *c,
                                    struct hth_bench_gate_figure *out) HTH_MUST;

#endif
