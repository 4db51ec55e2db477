/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.h: the table of operation x shape that every back end has to pass.
 *
 * A case makes inputs (a pure function of the seed), runs operations, and passes each output to
 * case_check together with the float64 twin's. The runner runs a case on `ref` first and keeps its
 * outputs; on another back end each output is also compared with that of `ref`. Outputs are first
 * filled with NaN and surrounded by guard values that must survive.
 *
 * Rounded operands (TF32: u = 2^-11, bf16: u = 2^-9, relatively) cause an error in the result. For
 * a product c = a b, with sums in fp32,
 *
 *     |c' - c| <= (2 u + u^2) |a| |b|      so      ||c' - c|| / ||c|| <= 2 u || |a| |b| || / ||c||
 *
 * which is below 1e-3 with TF32 without cancellation (2 u = 0.98e-3) and has no bound with it: of
 * many sums a few cancel and weigh little in the norm, of one to three all may. Inputs for which
 * errors of u alone move the result by more than a quarter of the tolerance (or u) cannot test
 * arithmetic: small cases draw other inputs. The runner measures that on ref, with inputs shaken by
 * u. Arithmetic that truncates operands instead of rounding them still fails.
 *
 * This file does not need cmocka: the runner of GPU machines (runner.c) runs the same cases.
 */
#ifndef HTH_TESTS_KERNELS_CASES_H
#define HTH_TESTS_KERNELS_CASES_H

#include <stdio.h>

#include "kernels/ops.h"
#include "kernels/optim.h"
#include "kernels/params.h"

struct case_output {
    float *data;
    size_t count;
};

/* The state of one run of a case. */
struct case_run {
    const struct hth_backend *be;
    struct hth_exec *ex;
    struct hth_exec *ref; /* a case runs on ref several times */
    uint64_t seed;
    double tolerance;         /* ||a - b|| / ||b|| against float64 and against ref */
    struct case_output *kept; /* ref's outputs in order, for the next run */
    size_t kept_count, kept_cap, next;
    bool recording;
    double shake;    /* relative change of inputs; 0: none */
    uint64_t shook;  /* numbers that were changed */
    double moved;    /* the largest change of an output by that */
    char error[300]; /* the first failure, or empty */
};

/* A shape; each case has its own meaning of a, b and c. */
struct case_shape {
    uint32_t rows, a, b, c;
};

struct kernel_case {
    const char *name;
    void (*run)(struct case_run *run, struct case_shape shape);
    const struct case_shape *shapes;
    size_t shape_count;
    bool products; /* has products, whose operands a back end may round */
};

extern const struct kernel_case kernel_cases[];
extern const size_t kernel_case_count;

/* Runs one case and shape on the back end. Returns NULL, or the text of the failure (static). */
const char *kernel_case_run(const struct kernel_case *kase, struct case_shape shape,
                            const struct hth_backend *be, double tolerance, uint64_t seed);

/* -- for the cases ------------------------------------------------------------------------- */

/* A matrix in the back end's memory with a copy in this process, in float and in double. */
struct mat {
    struct hth_view v;
    float *host;
    double *twin; /* dense [rows, cols] */
    size_t floats;
    void *device;
};

/* Random numbers in [-1, 1) times `scale`. */
struct mat mat_random(struct case_run *run, uint32_t rows, uint32_t cols, float scale);
/* A matrix full of NaN, for an output. */
struct mat mat_poison(struct case_run *run, uint32_t rows, uint32_t cols);
/* int32 in [0, bound). */
struct mat mat_indices(struct case_run *run, uint32_t rows, uint32_t bound);
/* Sets a number or index in the copy, until mat_upload. */
void mat_set(struct mat *m, uint32_t row, uint32_t col, float value);
void mat_set_index(struct mat *m, uint32_t row, int32_t index);
/* Uploads the copy's numbers after a change; refreshes the twin. */
void mat_upload(struct case_run *run, struct mat *m);
/* Downloads the matrix; fails the run with that text where guards or gaps changed. */
void mat_download(struct case_run *run, struct mat *m, const char *what);
float mat_get(const struct mat *m, uint32_t row, uint32_t col);
void mat_free(struct case_run *run, struct mat *m);

/* Fails the run with a text; keeps the first one. */
void case_fail(struct case_run *run, const char *format, ...) HTH_PRINTF(2, 3);
/* Fails the run unless the operation succeeded. */
void case_ok(struct case_run *run, enum hth_err err, const char *what);
/* Expects that error from the operation, or from the sync after it, and none from the next sync. */
void case_refused(struct case_run *run, enum hth_err err, enum hth_err want, const char *what);
/* Compares the downloaded output with the twin's [rows, cols]; guards and row gaps must be
 * intact. */
void case_check(struct case_run *run, const char *what, struct mat *m, const double *want);
/* Compares any floats. */
void case_check_floats(struct case_run *run, const char *what, const float *got, const double *want,
                       size_t count);
/* Compares one tensor of a parameter set. */
void case_check_weight(struct case_run *run, const char *what, struct hth_weight *w,
                       enum hth_part part, const double *want);
double *twin_of_weight(struct case_run *run, struct hth_weight *w, enum hth_part part);

/* A sealed set of one or two random matrices. */
struct case_pair {
    struct hth_params *p;
    struct hth_weight *w, *b;
    double *tw, *tb; /* twins of the values */
};
struct case_pair case_pair_new(struct case_run *run, uint32_t rows, uint32_t cols, uint32_t rows2,
                               uint32_t cols2);
void case_pair_free(struct case_pair *q);
/* n doubles. */
double *case_zeros(size_t n);

/* The cases of cases_blocks.c. */
void case_attention(struct case_run *run, struct case_shape s);
void case_mask(struct case_run *run, struct case_shape s);
void case_ffn(struct case_run *run, struct case_shape s);
void case_ffn_many(struct case_run *run, struct case_shape s);
void case_optimiser(struct case_run *run, struct case_shape s);
/* Those of cases_dense.c. */
void case_geglu(struct case_run *run, struct case_shape s);
void case_scale(struct case_run *run, struct case_shape s);
void case_tied(struct case_run *run, struct case_shape s);
void case_ranges(struct case_run *run, struct case_shape s);
/* Those of cases_rest.c. */
void case_half(struct case_run *run, struct case_shape s);
void case_dropout(struct case_run *run, struct case_shape s);
void case_lamb(struct case_run *run, struct case_shape s);
void case_grad_norm(struct case_run *run, struct case_shape s);
void case_bad_index(struct case_run *run, struct case_shape s);
void case_tblock(struct case_run *run, struct case_shape s);

#endif
