/* SPDX-License-Identifier: Apache-2.0 */
/* gate.c: the layout of product-key tables, scores of experts and their gradient. */
#include "gating/gate.h"

#include "gating/simd.h"

HTH_CLONES static uint32_t hth_gating_scan_not_finite(const float *x, size_t n)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= hth_not_finite(x[i]);
    return bad;
}

uint32_t hth_gating_any_not_finite(const float *x, size_t n)
{
    return hth_gating_scan_not_finite(x, n);
}

uint32_t hth_gate_width(const struct hth_grid *grid)
{
    return hth_gate_offset(grid, grid->ndim);
}

uint32_t hth_gate_offset(const struct hth_grid *grid, uint32_t dim)
{
    uint32_t offset = 0;
    for (uint32_t i = 0; i < dim; i++)
        offset += grid->dim[i];
    return offset;
}

float hth_gate_score(const struct hth_grid *grid, const float *row_tables, uint32_t index)
{
    uint32_t coord[HTH_GRID_DIMS_MAX];
    hth_grid_coords(grid, index, coord);
    float score = row_tables[coord[0]];
    uint32_t offset = grid->dim[0];
    for (uint32_t i = 1; i < grid->ndim; i++) {
        score += row_tables[offset + coord[i]];
        offset += grid->dim[i];
    }
    return score;
}

/* tables: [rows, width]  index: [rows, k]  scores: [rows, k] */
void hth_gate_forward(const struct hth_gate_batch *batch, const float *tables, float *scores)
{
    size_t width = hth_gate_width(batch->grid);
    for (size_t b = 0; b < batch->rows; b++) {
        for (size_t j = b * batch->k; j < (b + 1) * batch->k; j++) {
            uint32_t index = batch->index[j];
            scores[j] = index == HTH_GATE_NONE
                            ? -INFINITY
                            : hth_gate_score(batch->grid, tables + b * width, index);
        }
    }
}

/* index: [rows, k]  dscores: [rows, k]  dtables: [rows, width] */
void hth_gate_backward(const struct hth_gate_batch *batch, const float *dscores, float *dtables)
{
    const struct hth_grid *grid = batch->grid;
    size_t width = hth_gate_width(grid);
    for (size_t b = 0; b < batch->rows; b++) {
        float *row = dtables + b * width;
        for (size_t j = b * batch->k; j < (b + 1) * batch->k; j++) {
            if (batch->index[j] == HTH_GATE_NONE)
                continue;
            uint32_t coord[HTH_GRID_DIMS_MAX];
            hth_grid_coords(grid, batch->index[j], coord);
            uint32_t offset = 0;
            for (uint32_t i = 0; i < grid->ndim; i++) {
                row[offset + coord[i]] += dscores[j];
                offset += grid->dim[i];
            }
        }
    }
}
