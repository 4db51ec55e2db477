/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h: the bare kernels' speed, verified before it is timed.
 *
 * The figure beside `hearth bench expert`: the same block in the same process, without a network.
 * kernels/ may not read a clock, so the caller brings one (microseconds, monotonic).
 * Single-threaded; several threads may each run their own.
 */
#ifndef HTH_KERNELS_BENCH_H
#define HTH_KERNELS_BENCH_H

#include "core/base.h"
#include "kernels/backend.h"

enum hth_bench_kind {
    HTH_BENCH_LINEAR_FORWARD, /* [rows, d] x [d, 4 d] */
    HTH_BENCH_FFN_FORWARD,    /* the FFN block of width d */
    HTH_BENCH_FFN_STEP,       /* forward, backward, Adam */
    HTH_BENCH_ADAM,           /* Adam alone over the FFN block's parameters */
};

struct hth_bench_options {
    const struct hth_backend *backend;
    enum hth_bench_kind kind;
    uint32_t dim, rows;
    uint32_t repeats;               /* the median of so many; 0: 7 */
    int64_t (*clock_us)(void *arg); /* must not be NULL */
    void *clock_arg;
};

struct hth_bench_result {
    double us_median, us_best; /* of one call */
    double rows_per_s;         /* from the median, as the rates below */
    double gflops;             /* multiply-adds of the matrix products, as two operations */
    double gb_per_s;           /* Adam: bytes read and written */
    double check_error;        /* relative 2-norm against a double computation of sampled rows */
};

/* Errors: E_CONFIG (no clock, no rows), E_NO_MEMORY, E_BUG (the check failed: nothing was timed).
 */
enum hth_err hth_bench_run(const struct hth_bench_options *options,
                           struct hth_bench_result *out) HTH_MUST;

#endif
