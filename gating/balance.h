/* SPDX-License-Identifier: Apache-2.0 */
/*
 * balance.h: a loss that keeps the gate from sending everything to a few experts.
 *
 * Per grid dimension with n live coordinates, p_b = softmax of the row's table over them:
 *
 *     P_c = mean over rows of p_b[c]            (soft: carries the gradient)
 *     f_c = share of the chosen experts that have coordinate c   (counted: a constant)
 *
 *     switch term  n * sum over c of f_c P_c        1 when either is even (Fedus et al., eq. 4)
 *     cv term      n * sum over c of P_c^2 - 1      the squared coefficient of variation of P,
 *                                                   0 when even (Shazeer et al., eq. 6)
 *
 * loss = sum over dimensions of (switch_weight * switch + cv_weight * cv). With
 * a_c = n (switch_weight f_c + 2 cv_weight P_c) and B rows,
 *
 *     d(loss)/d(s_b[c]) = p_b[c] / B * (a_c - sum over c' of a_c' p_b[c']).
 *
 * f and P are multiplied per coordinate. A scalar in place of f would make the term constant,
 * because the softmax sums to 1, and its gradient would vanish. A test guards this.
 *
 * The softmax leaves out coordinates without a live expert, so that the loss never draws rows
 * towards experts that don't exist. Rows with a number that is not finite are skipped and counted.
 * Pure function, any thread; the caller lends the workspace.
 */
#ifndef HTH_GATING_BALANCE_H
#define HTH_GATING_BALANCE_H

#include "gating/gate.h"

struct hth_balance_opts {
    float switch_weight;
    float cv_weight;
    const uint8_t *live; /* [width]: non-zero where a coordinate has an expert; NULL: all have */
};
#define HTH_BALANCE_OPTS_INIT                                                                      \
    {                                                                                              \
        .switch_weight = 0.01f, .cv_weight = 0.0f, .live = NULL                                    \
    }

struct hth_balance_result {
    double loss; /* weighted, as added to the training loss */
    double switch_term[HTH_GRID_DIMS_MAX];
    double cv_term[HTH_GRID_DIMS_MAX];
    double load_max[HTH_GRID_DIMS_MAX]; /* n * max f_c: 1 = even, n = all to one coordinate */
    uint64_t rows_skipped;
};

/* Floats of workspace for this many rows. */
size_t hth_balance_work_floats(const struct hth_grid *grid, size_t rows);

/* Computes the loss of tables [rows, width] and adds its gradient to dtables [rows, width]; NULL:
 * the loss alone. batch->index holds the chosen experts. */
void hth_balance(const struct hth_gate_batch *batch, const struct hth_balance_opts *opts,
                 const float *tables, float *dtables, float *work,
                 struct hth_balance_result *result);

#endif
