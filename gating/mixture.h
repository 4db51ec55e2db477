/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mixture.h: the weighted mean of the outputs of the experts that answered for a row.
 *
 * A row b chose k experts with scores z_j and got the outputs y_j of some of them, its survivors
 * S_b.
 *
 *     w_j   = exp(z_j) / sum over i in S_b of exp(z_i)     (0 for j outside S_b)
 *     out_b = sum over j in S_b of w_j y_j
 *
 * and with g = d(loss)/d(out_b)
 *
 *     d(loss)/d(y_j) = w_j g
 *     d(loss)/d(z_j) = w_j (g.y_j - sum over i of w_i g.y_i)
 *
 * so the gate learns only from survivors. A row without survivors gives zeros and a zero gradient,
 * never NaN, and is counted; the caller's residual path alone carries it. k_min applies to each
 * row, not to the batch.
 *
 * Outputs are given as pointers, one per (row, choice), so that they stay in the buffers they
 * arrived in; NULL means "no answer". The caller replaces an output that holds NaN or infinity by
 * NULL first (hth_mixture_drop_not_finite); a score of NaN or -infinity also takes its expert out,
 * and +infinity counts as the largest float.
 *
 * Pure functions: any thread (a job's), nothing is kept or allocated. All sums have a fixed order,
 * the exponential is our own, so the bits are the same on every x86-64.
 */
#ifndef HTH_GATING_MIXTURE_H
#define HTH_GATING_MIXTURE_H

#include "core/base.h"

struct hth_mixture {
    size_t rows;
    size_t k;     /* choices per row, 1 .. HTH_TOP_K_MAX */
    size_t d;     /* floats per output */
    size_t k_min; /* rows with fewer survivors are counted as short; 0 or 1: only empty ones */
    const float *scores;   /* [rows, k] */
    const float *const *y; /* [rows, k] pointers to d floats, or NULL */
};

struct hth_mixture_stats {
    uint64_t answers;          /* survivors over all rows */
    uint64_t rows_empty;       /* rows left to the residual path */
    uint64_t rows_below_k_min; /* empty ones included */
    uint64_t rows_short;       /* fewer than k survivors */
};

/* Sets y[i] to NULL where the output holds NaN or infinity; returns how many. */
size_t hth_mixture_drop_not_finite(const float **y, size_t count, size_t d);

/* True when every row has k_min answers (y not NULL); the grace timer starts then. A row that asked
 * for fewer than k_min experts (asked[b] < k_min) needs all of them. asked may be NULL (k for every
 * row). */
bool hth_mixture_ready(const float *const *y, const uint32_t *asked, size_t rows, size_t k,
                       size_t k_min);

/* Writes weights [rows, k] and out [rows, d] whole. stats may be NULL; it is written, not added
 * to. */
void hth_mixture_forward(const struct hth_mixture *m, float *weights, float *out,
                         struct hth_mixture_stats *stats);

/* From the forward's weights and dout [rows, d]: writes dscores [rows, k] whole, and w_j g to each
 * dy[i] that is not NULL (dy as y: [rows, k] pointers; the array itself may be NULL). A choice
 * without answer gets a dscore of 0 and, where dy is given, zeros. */
void hth_mixture_backward(const struct hth_mixture *m, const float *weights, const float *dout,
                          float *dscores, float *const *dy);

#endif
