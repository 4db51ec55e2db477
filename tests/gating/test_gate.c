/* SPDX-License-Identifier: Apache-2.0 */
/* Product-key tables: layout, scores of chosen experts, and the gradient of the tables. */
#include "core/rng.h"
#include "gating/gate.h"
#include "support/suite.h"

static struct hth_grid grid_of(uint32_t ndim, uint32_t a, uint32_t b, uint32_t c)
{
    struct hth_grid grid;
    uint32_t dim[HTH_GRID_DIMS_MAX] = {a, b, c};
    assert_ok(hth_grid_init(&grid, "ffn0", ndim, dim));
    return grid;
}

TEST(tables_lie_side_by_side)
{
    (void)state;
    struct hth_grid grid = grid_of(3, 3, 4, 5);
    assert_int_equal(hth_gate_width(&grid), 12);
    assert_int_equal(hth_gate_offset(&grid, 0), 0);
    assert_int_equal(hth_gate_offset(&grid, 1), 3);
    assert_int_equal(hth_gate_offset(&grid, 2), 7);
    struct hth_grid line = grid_of(1, 9, 1, 1);
    assert_int_equal(hth_gate_width(&line), 9);
}

/* The entries are powers of two: the sum identifies the entries in it. */
TEST(score_is_the_sum_of_entries)
{
    (void)state;
    struct hth_grid grid = grid_of(3, 3, 4, 5);
    float tables[2 * 12];
    for (int i = 0; i < 12; i++) {
        tables[i] = ldexpf(1.0f, i);
        tables[12 + i] = -ldexpf(1.0f, i);
    }
    uint32_t coord[3] = {2, 1, 4};
    uint32_t index[4] = {0, hth_grid_index(&grid, coord), HTH_GATE_NONE, 0};
    struct hth_gate_batch batch = {.grid = &grid, .rows = 2, .k = 2, .index = index};
    float scores[4];
    hth_gate_forward(&batch, tables, scores);
    assert_true(scores[0] == 1.0f + 8.0f + 128.0f);
    assert_true(scores[1] == 4.0f + 16.0f + 2048.0f);
    assert_true(isinf(scores[2]) && scores[2] < 0);
    assert_true(scores[3] == -(1.0f + 8.0f + 128.0f));
}

/* loss = sum of g * score in double, by its own walk over the coordinates. */
static double loss_of(const struct hth_gate_batch *batch, const double *tables, const float *g)
{
    double loss = 0.0;
    uint32_t width = hth_gate_width(batch->grid);
    for (size_t i = 0; i < batch->rows * batch->k; i++) {
        if (batch->index[i] == HTH_GATE_NONE)
            continue;
        uint32_t rest = batch->index[i];
        for (uint32_t dim = batch->grid->ndim; dim-- > 0;) {
            uint32_t c = rest % batch->grid->dim[dim];
            rest /= batch->grid->dim[dim];
            loss +=
                (double)g[i] * tables[i / batch->k * width + hth_gate_offset(batch->grid, dim) + c];
        }
    }
    return loss;
}

TEST(gradient_matches_central_differences)
{
    (void)state;
    enum { ROWS = 5, K = 4 };
    struct hth_rng rng;
    hth_rng_init(&rng, 7);
    for (uint32_t ndim = 1; ndim <= 3; ndim++) {
        struct hth_grid grid = grid_of(ndim, 4, ndim > 1 ? 3 : 1, ndim > 2 ? 5 : 1);
        uint32_t width = hth_gate_width(&grid);
        uint32_t index[ROWS * K];
        float g[ROWS * K], dtables[ROWS * 12];
        double tables[ROWS * 12];
        for (int i = 0; i < ROWS * K; i++) {
            bool none = hth_rng_chance(&rng, 0.2);
            index[i] = none ? HTH_GATE_NONE : (uint32_t)hth_rng_below(&rng, hth_grid_size(&grid));
            g[i] = (float)hth_rng_normal(&rng);
        }
        for (uint32_t i = 0; i < ROWS * width; i++) {
            tables[i] = hth_rng_normal(&rng);
            dtables[i] = 0.5f; /* backward adds to dtables */
        }
        struct hth_gate_batch batch = {.grid = &grid, .rows = ROWS, .k = K, .index = index};
        hth_gate_backward(&batch, g, dtables);
        for (uint32_t i = 0; i < ROWS * width; i++) {
            double keep = tables[i];
            tables[i] = keep + 1e-3;
            double up = loss_of(&batch, tables, g);
            tables[i] = keep - 1e-3;
            double down = loss_of(&batch, tables, g);
            tables[i] = keep;
            assert_close(dtables[i] - 0.5f, (up - down) / 2e-3, 1e-5, 1e-6);
        }
    }
}
