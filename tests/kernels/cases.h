/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.h: the table of operation x shape that every back end has to pass.
 *
 * A case makes inputs (a pure function of the seed), runs operations, and hands each output to
 * case_check together with what the float64 twin says. The runner runs a case on `ref` first and
 * keeps its outputs; on another back end each output is also held against that of `ref`. Outputs
 * are poisoned with NaN before and surrounded by guard values that must survive.
 *
 * Operands that a back end rounds (TF32: u = 2^-11, bf16: u = 2^-9, relatively) carry that into the
 * answer. For a product c = a b, with sums in fp32,
 *
 *     |c' - c| <= (2 u + u^2) |a| |b|      so      ||c' - c|| / ||c|| <= 2 u || |a| |b| || / ||c||
 *
 * which is below 1e-3 with TF32 where nothing cancels (2 u = 0.98e-3) and without a bound where it
 * does: of many sums a few cancel and weigh little in the norm, of one to three all may. Inputs for
 * which errors of u in them alone move the answer by more than a quarter of the tolerance (or u)
 * say nothing about arithmetic: small cases draw others instead. How much they move is seen on ref,
 * with inputs shaken by u. Arithmetic that cuts operands off in place of rounding them still fails.
 *
 * Nothing here needs cmocka: a runner of a few lines (GPU machines) runs the very same cases.
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

/* What one run of a case works with. */
struct case_run {
    const struct hth_backend *be;
    struct hth_exec *ex;
    struct hth_exec *ref; /* a case is run on ref several times */
    uint64_t seed;
    double tolerance;         /* ||a - b|| / ||b|| against float64 and against ref */
    struct case_output *kept; /* ref's outputs in order, for the next run */
    size_t kept_count, kept_cap, next;
    bool recording;
    double shake;    /* inputs are moved by so much, relatively; 0: not */
    uint64_t shook;  /* numbers that were */
    double moved;    /* by how much that moved an output, at most */
    char error[300]; /* the first thing that went wrong, or empty */
};

/* A shape; each case says what a, b and c mean to it. */
struct case_shape {
    uint32_t rows, a, b, c;
};

struct kernel_case {
    const char *name;
    void (*run)(struct case_run *run, struct case_shape shape);
    const struct case_shape *shapes;
    size_t shape_count;
    bool products; /* whose operands a back end may round */
};

extern const struct kernel_case kernel_cases[];
extern const size_t kernel_case_count;

/* Runs one case and shape on the back end. Returns NULL, or the text of the failure (static). */
const char *kernel_case_run(const struct kernel_case *kase, struct case_shape shape,
                            const struct hth_backend *be, double tolerance, uint64_t seed);

/* -- for the cases ------------------------------------------------------------------------- */

/* A matrix in memory of the back end with a copy here, in float and in double. */
struct mat {
    struct hth_view v;
    float *host;
    double *twin; /* dense [rows, cols] */
    size_t floats;
    void *device;
};

/* Random numbers in [-1, 1) times `scale`. */
struct mat mat_random(struct case_run *run, uint32_t rows, uint32_t cols, float scale);
/* Full of NaN, to be written. */
struct mat mat_poison(struct case_run *run, uint32_t rows, uint32_t cols);
/* int32 in [0, bound). */
struct mat mat_indices(struct case_run *run, uint32_t rows, uint32_t bound);
/* Another number or index, here alone until mat_upload. */
void mat_set(struct mat *m, uint32_t row, uint32_t col, float value);
void mat_set_index(struct mat *m, uint32_t row, int32_t index);
/* Sends the host's numbers again, after a case changed them; refreshes the twin. */
void mat_upload(struct case_run *run, struct mat *m);
/* Fetches what the back end has; fails the run with that text where guards or gaps changed. */
void mat_download(struct case_run *run, struct mat *m, const char *what);
float mat_get(const struct mat *m, uint32_t row, uint32_t col);
void mat_free(struct case_run *run, struct mat *m);

/* Fails the run with a text; the first one stays. */
void case_fail(struct case_run *run, const char *format, ...) HTH_PRINTF(2, 3);
/* The operation's result code. */
void case_ok(struct case_run *run, enum hth_err err, const char *what);
/* That error from the operation, or from the sync after it, and none from the next sync. */
void case_refused(struct case_run *run, enum hth_err err, enum hth_err want, const char *what);
/* The output, downloaded, against the twin's [rows, cols]; guards and row gaps untouched. */
void case_check(struct case_run *run, const char *what, struct mat *m, const double *want);
/* Any floats. */
void case_check_floats(struct case_run *run, const char *what, const float *got, const double *want,
                       size_t count);
/* One tensor of a parameter set. */
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
void case_ffn(struct case_run *run, struct case_shape s);
void case_ffn_many(struct case_run *run, struct case_shape s);
void case_optimiser(struct case_run *run, struct case_shape s);
/* Those of cases_rest.c. */
void case_half(struct case_run *run, struct case_shape s);
void case_dropout(struct case_run *run, struct case_shape s);
void case_lamb(struct case_run *run, struct case_shape s);
void case_grad_norm(struct case_run *run, struct case_shape s);
void case_bad_index(struct case_run *run, struct case_shape s);
void case_tblock(struct case_run *run, struct case_shape s);

#endif
