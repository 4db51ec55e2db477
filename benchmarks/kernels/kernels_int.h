/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_int.h: the cases and their checks, shared by the files of this folder. */
#ifndef HTH_BENCHMARKS_KERNELS_KERNELS_INT_H
#define HTH_BENCHMARKS_KERNELS_KERNELS_INT_H

#include "benchmarks/kernels/bench.h"
#include "benchmarks/kernels/device.h"
#include "kernels/blocks.h"
#include "kernels/optim.h"

struct hth_bench_case {
    struct hth_bench_options options;
    struct hth_params *params;
    struct hth_exec *ex;
    struct hth_ffn ffn; /* for kinds with weights, except flat vectors */
    struct hth_optim optim;
    struct hth_view x, y, dy;        /* [rows, d] */
    struct hth_view hidden, dhidden; /* [rows, 4 d] */
    struct hth_view labels;          /* [rows, 1] */
    struct hth_xent_result xent;     /* written at the sync */
    void *saved;
    float *memory;
    double flops, bytes, error;
};

/* Fills with numbers in [-1, 1), a pure function of index and salt. */
void hth_bench_numbers(float *to, size_t count, uint64_t salt);

/* The row of the batch that is the r-th checked row. */
#define HTH_BENCH_CHECKED_ROWS 4
uint32_t hth_bench_checked_count(uint32_t rows);
uint32_t hth_bench_checked_row(uint32_t rows, uint32_t i);

/* Makes a case without its check. Errors: as hth_bench_case_new. */
enum hth_err hth_bench_case_make(const struct hth_bench_options *options,
                                 struct hth_bench_case **out) HTH_MUST;

/* Runs a case in a card's memory and compares; sets c->error. */
#define HTH_BENCH_AWAY_ROWS 32u /* rows of the check */
enum hth_err hth_bench_check_away(struct hth_bench_case *c) HTH_MUST;
/* The tolerance for this type of products. */
double hth_bench_away_tolerance(const struct hth_backend *be);

/* Gives all parts to the context and does not wait. */
enum hth_err hth_bench_case_launch(struct hth_bench_case *c) HTH_MUST;

/* -- of the device's table ----------------------------------------------------------------- */

struct hth_bench_timer {
    uint32_t repeats; /* 0: 11 */
    int64_t (*clock_us)(void *arg);
    void *clock_arg;
};
typedef enum hth_err hth_bench_fn(void *arg);
/* The time of one run; and the median of several after one that warms up. */
enum hth_err hth_bench_once_us(const struct hth_bench_timer *t, struct hth_exec *ex,
                               hth_bench_fn *fn, void *arg, double *us) HTH_MUST;
enum hth_err hth_bench_median_us(const struct hth_bench_timer *t, struct hth_exec *ex,
                                 hth_bench_fn *fn, void *arg, double *us) HTH_MUST;
/* The lines of ops.c. */
#define HTH_BENCH_OPS_TOLERANCE 1e-4
void hth_bench_ops(const struct hth_bench_timer *timer, const struct hth_bench_device_options *o,
                   const struct hth_bench_rates *rates, uint32_t dim, uint32_t rows);

/* The lines of group.c. */
void hth_bench_group(const struct hth_bench_timer *timer, const struct hth_bench_device_options *o,
                     const struct hth_bench_rates *rates, uint32_t dim);

/* Runs the operation and compares; sets c->error. Errors: E_BUG (error too large), E_NO_MEMORY. */
enum hth_err hth_bench_check(struct hth_bench_case *c) HTH_MUST;

#endif
