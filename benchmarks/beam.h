/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beam.h: times a beam search over a warm grid view, for `hearth bench gate` and
 * `hearth bench peers --case beam`.
 *
 * The caller gives the view, so that a program can time the directory it runs on and print that
 * directory's request counter, and a clock. Before the timing some rows are compared with brute
 * force over all live experts; a difference is an error. Scores are normal, drawn by Philox from
 * the seed. One thread.
 */
#ifndef HTH_BENCHMARKS_BEAM_H
#define HTH_BENCHMARKS_BEAM_H

#include "core/base.h"
#include "dht/directory.h"

struct hth_bench_gate_opts {
    const struct hth_grid *grid;
    const struct hth_grid_view *view;
    uint32_t rows;
    uint32_t k;
    uint32_t width;       /* 0: the default */
    uint32_t rounds;      /* timed batches, each with new scores */
    uint32_t verify_rows; /* rows compared with brute force */
    float noise_std;
    uint64_t seed;
    int64_t (*now_ns)(void *arg); /* monotonic */
    void *arg;
};

struct hth_bench_gate_result {
    double ms_median; /* per batch */
    double ms_best;
    double ms_worst;
    double prefixes_per_row;
    uint64_t experts; /* live in the view */
    uint32_t verified_rows;
};

/* Errors: E_RANGE (options), E_NO_MEMORY, E_BUG (brute force disagrees), and the search's own. */
enum hth_err hth_bench_gate(const struct hth_bench_gate_opts *opts,
                            struct hth_bench_gate_result *result) HTH_MUST;

#endif
