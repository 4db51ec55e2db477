/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rowops.h: the CPU's loops over one row or one flat vector, as a table.
 *
 * The loops are written once (rowops_template.h) and compiled per instruction set: `ref` for any
 * CPU with contraction off, whose bits never change, and those for AVX2 with FMA and for AVX-512.
 * Each works row by row with an order of operations that depends on the row's length only, so the
 * bit rule holds by construction. Sums over a row use four registers of partial sums, added
 * pairwise in a fixed tree: fast, and a more accurate order than one by one.
 */
#ifndef HTH_KERNELS_ROWOPS_H
#define HTH_KERNELS_ROWOPS_H

#include "kernels/backend_int.h"

enum hth_gemm_form {
    HTH_GEMM_NN, /* C = A B:   a [m, k], b [k, n] */
    HTH_GEMM_NT, /* C = A B^T: a [m, k], b [n, k] */
    HTH_GEMM_TN, /* C = A^T B: a [k, m], b [k, n] */
};

/* C [m, n] = product, or C += product where `accumulate`. Leading dimensions in floats. */
struct hth_gemm {
    enum hth_gemm_form form;
    bool accumulate;
    uint32_t m, n, k;
    const float *a, *b;
    float *c;
    size_t lda, ldb, ldc;
};

/* y = act(x + bias) + residual; pre receives x + bias. Each pointer may be NULL. */
struct hth_row_epilogue {
    const float *bias;
    enum hth_act act;
    float *pre;
    const float *residual;
};

struct hth_row_norm {
    const float *gamma, *beta;
    float eps;
};

/* The loops add to dgamma and dbeta. dx may be dy, if it is computed last. */
struct hth_row_norm_back {
    const float *x, *gamma, *stats, *dy;
    float *dx, *dgamma, *dbeta;
};

/* Consecutive elements of a tensor. m and v are NULL where the kind has none. */
struct hth_row_step {
    float *w, *m, *v;
    const float *g;
    size_t count;
};

/* Inputs of a row's loss: its largest element, the sum of exp(x - largest), the element of its
 * label and whether that is the first of the largest. */
struct hth_row_xent {
    float max, sum, at_label;
    bool first;
};

struct hth_rowops {
    void (*gemm)(const struct hth_gemm *g);
    void (*epilogue)(size_t n, const float *x, const struct hth_row_epilogue *e,
                     float *y); /* y may be x */
    void (*act_forward)(size_t n, enum hth_act act, const float *x, float *y);
    void (*act_backward)(size_t n, enum hth_act act, const float *x, const float *dy, float *dx);
    /* y = gelu(a) b; da, db may be a, b. */
    void (*geglu)(size_t n, const float *a, const float *b, float *y);
    void (*geglu_back)(size_t n, const float *a, const float *b, const float *dy, float *da,
                       float *db);
    /* y = a b + c (c NULL: a b); y may be any of them. */
    void (*scale)(size_t n, const float *a, const float *b, const float *c, float *y);
    /* stats (mean, 1 / deviation) may be NULL. */
    void (*layernorm)(size_t n, const float *x, const struct hth_row_norm *norm, float *y,
                      float *stats);
    /* The first computes dx; the second adds the row's terms to dgamma and dbeta. The terms do not
     * depend on sums over the row, so that any columns can be computed alone. */
    void (*layernorm_back)(size_t n, const struct hth_row_norm_back *b);
    void (*layernorm_sums)(size_t n, const struct hth_row_norm_back *b);
    void (*softmax)(size_t n, const float *x, float *y);
    void (*softmax_back)(size_t n, const float *y, const float *dy, float *dx);
    /* y = exp(x - lse): recomputes probabilities. */
    void (*exp_minus)(size_t n, const float *x, float lse, float *y);
    /* The largest element and the sum of exp(x - largest). */
    void (*max_sumexp)(size_t n, const float *x, float *max, float *sum);
    /* dx = grad_scale * (softmax(x) - onehot(label)), or NULL; may be x. */
    void (*xent)(size_t n, const float *x, size_t label, float grad_scale, struct hth_row_xent *out,
                 float *dx);
    float (*dot)(size_t n, const float *a, const float *b);
    double (*sumsq)(size_t n, const float *x);
    void (*axpy)(size_t n, float alpha, const float *x, float *y); /* y += alpha x */
    void (*combine)(size_t n, float alpha, const float *a, float beta, const float *b, float *y);
    /* Rotates the two halves of a head by the angles; sign -1 rotates back. y may be x. */
    void (*rotate)(size_t half, const float *x, const float *cosines, const float *sines,
                   float sign, float *y);
    /* y = x scale where the random word reaches the threshold, else 0; one word per element. */
    void (*dropout)(size_t n, const float *x, const uint32_t *words, uint32_t threshold,
                    float scale, float *y);
    void (*to_bf16)(size_t n, const float *x, uint16_t *y);
    void (*from_bf16)(size_t n, const uint16_t *x, float *y);
    void (*to_f16)(size_t n, const float *x, uint16_t *y);
    void (*from_f16)(size_t n, const uint16_t *x, float *y);
    /* Optimiser steps. */
    void (*adam)(const struct hth_step *s, const struct hth_row_step *r);
    void (*sgd)(const struct hth_step *s, const struct hth_row_step *r);
    /* LAMB moves m and v first, and sums the squares of w and of the update; then w. */
    void (*lamb_moments)(const struct hth_step *s, const struct hth_row_step *r, double sums[2]);
    void (*lamb_apply)(const struct hth_step *s, const struct hth_row_step *r, float rate);
    /* Copies past the caches, for data that would leave them before its use; a plain copy where dst
     * or bytes is no multiple of 64. The same thread calls stream_end before others read it. */
    void (*stream)(size_t bytes, const void *src, void *dst);
    void (*stream_end)(void);
    /* Philox words for counters (first + i, c1, c2, c3), 4 words each. */
    void (*philox)(size_t blocks, uint32_t first, const uint32_t c123[3], const uint32_t key[2],
                   uint32_t *words);
};

extern const struct hth_rowops hth_rowops_ref;
extern const struct hth_rowops hth_rowops_avx2, hth_rowops_avx512;

/* The best table for this CPU, or NULL when `ref` is the only one. */
const struct hth_rowops *hth_rowops_fast(void);
/* The table of a set of isa.h; `ref` for "generic" and where the CPU can't run it. */
const struct hth_rowops *hth_rowops_find(const char *isa);

#endif
