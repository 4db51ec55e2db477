/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.h: product-key scores and their gradient.
 *
 * A grid of 1 to 3 dimensions with G_0 x G_1 x G_2 experts is scored with only G_0 + G_1 + G_2
 * numbers per row: one table per dimension, and an expert's score is the sum of its coordinates'
 * entries,
 *
 *     score(b, c) = s_0[b, c_0] + s_1[b, c_1] + s_2[b, c_2].
 *
 * The tables of a row lie side by side, so that one linear layer d -> width makes them all:
 *
 *     tables[b]:  | s_0: G_0 floats | s_1: G_1 floats | s_2: G_2 floats |      width = sum of G_i
 *
 * That layer, and the norm in front of it, belong to the trainer's trunk. This file has only the
 * layout, the score of an expert and the scatter of d(score) into d(tables).
 *
 * An expert is identified by its index in the grid (hth_grid_index). All of gating/ breaks ties by
 * that index. HTH_GATE_NONE means "no expert", where a row got fewer than it asked for.
 *
 * Pure functions on plain float arrays: any thread, no state, no allocation. Sums run in float from
 * dimension 0 upwards, so that the same tables give the same bits everywhere.
 */
#ifndef HTH_GATING_GATE_H
#define HTH_GATING_GATE_H

#include "core/base.h"
#include "dht/uid.h"

#define HTH_GATE_NONE UINT32_MAX

/* Floats per row of the tables. */
uint32_t hth_gate_width(const struct hth_grid *grid);
/* Column where the table of axis `dim` begins. */
uint32_t hth_gate_offset(const struct hth_grid *grid, uint32_t dim);
/* The score of one expert from one row's tables. */
float hth_gate_score(const struct hth_grid *grid, const float *row_tables, uint32_t index);

/* One batch and its choices: [rows, k] expert indices or HTH_GATE_NONE. */
struct hth_gate_batch {
    const struct hth_grid *grid;
    size_t rows;
    size_t k;
    const uint32_t *index;
};

/* scores[b, j] of the chosen experts from tables [rows, width]; -INFINITY for HTH_GATE_NONE. */
void hth_gate_forward(const struct hth_gate_batch *batch, const float *tables, float *scores);
/* dtables[b, off_i + c_i] += dscores[b, j] for every chosen expert and axis. HTH_GATE_NONE adds
 * nothing. The caller clears dtables [rows, width]. */
void hth_gate_backward(const struct hth_gate_batch *batch, const float *dscores, float *dtables);

#endif
