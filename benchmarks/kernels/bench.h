/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h: makes the bare kernels into cases that a program can time, each verified first.
 *
 * A case owns the memory of one operation (weights, activations, scratch). It checks the back end's
 * results once against the same computation in double; each call of hth_bench_case_run then does
 * exactly the work to be timed. The caller reads the clock, so it can alternate our work with
 * another program's and with the core's peak (peak.h), and drift of the core's clock meets all of
 * them. hth_bench_run times a case alone: the median of some repeats.
 *
 * The check of a large batch is exact and cheap: the output gradient is zero outside a few rows, so
 * that all rows pass through the kernels and only those few through double.
 *
 * One thread per case; any number of cases side by side. A case with a team may use it inside.
 */
#ifndef HTH_BENCHMARKS_KERNELS_BENCH_H
#define HTH_BENCHMARKS_KERNELS_BENCH_H

#include "core/base.h"
#include "kernels/backend.h"

enum hth_bench_kind {
    /* Both products of the FFN block with their bias: [rows, d] x [d, 4 d], [rows, 4 d] x [4 d,
     * d]. */
    HTH_BENCH_LINEAR_FORWARD,
    HTH_BENCH_LINEAR_BACKWARD_DATA,
    HTH_BENCH_LINEAR_BACKWARD_WEIGHT,
    /* The FFN block of width d. */
    HTH_BENCH_FFN_FORWARD,
    HTH_BENCH_FFN_FORWARD_BACKWARD,
    HTH_BENCH_FFN_TRAIN_STEP, /* with AdamW and the back end's new copy of the weights */
    /* Rows of width d. */
    HTH_BENCH_LAYERNORM,
    HTH_BENCH_SOFTMAX,
    HTH_BENCH_XENT, /* loss and gradient */
    /* Flat vectors. */
    HTH_BENCH_ADAMW,
    HTH_BENCH_QUANTIZE_INT8, /* blocks of 64 (quant.h); independent of the back end */
    HTH_BENCH_DEQUANTIZE_INT8,
    HTH_BENCH_KINDS
};

/* "linear_forward", ... */
const char *hth_bench_kind_name(enum hth_bench_kind kind);
/* Whether the kind's rate is operations (of products); else it is bytes. */
bool hth_bench_kind_multiplies(enum hth_bench_kind kind);
/* Whether the kind works on a flat vector, without rows. */
bool hth_bench_kind_is_flat(enum hth_bench_kind kind);

struct hth_bench_options {
    const struct hth_backend *backend;
    enum hth_bench_kind kind;
    uint32_t dim, rows;    /* flat vectors ignore rows, which must not be 0 */
    uint64_t elements;     /* of flat vectors; 0: the parameters of the FFN block of width dim */
    double tolerance;      /* of the check, relative 2-norm; 0: 5e-6, or 6e-3 for bf16 */
    struct hth_team *team; /* borrowed; NULL: no helpers */
    /* Only for hth_bench_run: */
    uint32_t repeats;               /* 0: 7 */
    int64_t (*clock_us)(void *arg); /* must not be NULL */
    void *clock_arg;
};

struct hth_bench_case;

/* Makes and checks a case. Errors: E_CONFIG (no rows, no width), E_NO_MEMORY, E_UNSUPPORTED (the
 * card lacks this kind), E_BUG (the check failed). */
enum hth_err hth_bench_case_new(const struct hth_bench_options *options,
                                struct hth_bench_case **out) HTH_MUST;
void hth_bench_case_free(struct hth_bench_case *c);
/* Does the work once. Errors: those of the operations. */
enum hth_err hth_bench_case_run(struct hth_bench_case *c) HTH_MUST;
/* The number of parts of a case. A case of several independent products (HTH_BENCH_LINEAR_) can be
 * timed product by product, so that each finds its own weights in the cache, as a layer that runs
 * alone does. All parts together are one run. Other cases have one part. */
uint32_t hth_bench_case_parts(const struct hth_bench_case *c);
enum hth_err hth_bench_case_run_part(struct hth_bench_case *c, uint32_t part) HTH_MUST;
/* Operations of the matrix products of one run (a multiply-add counts two), and bytes that it moves
 * even with a perfect cache (0 for kinds that multiply). */
double hth_bench_case_flops(const struct hth_bench_case *c);
double hth_bench_case_bytes(const struct hth_bench_case *c);
/* Changes the helpers; NULL: none. */
void hth_bench_case_set_team(struct hth_bench_case *c, struct hth_team *team);

struct hth_bench_result {
    double us_median, us_best; /* per call */
    double rows_per_s;         /* from the median, like the rates below; 0 for flat vectors */
    double gflops;             /* multiply-adds of the matrix products, as two operations */
    double gb_per_s;           /* bytes read and written; 0 for kinds that multiply */
    double check_error;        /* relative 2-norm to a computation in double of sampled rows */
};

/* Errors: as hth_bench_case_new, and E_CONFIG (no clock). */
enum hth_err hth_bench_run(const struct hth_bench_options *options,
                           struct hth_bench_result *out) HTH_MUST;

#endif
