/* SPDX-License-Identifier: Apache-2.0 */
/*
 * balance.c: see balance.h for the equations. Two passes over the rows: the first computes the
 * softmax of every row and the mean P of all; the second computes the gradient, which needs P.
 *
 *   work:  | p [rows, width] | mask [width] | P [width] | a [width] |
 */
#include "gating/balance.h"

#include "gating/simd.h"

struct balance_pass {
    const struct hth_gate_batch *batch;
    size_t width;
    size_t rows_counted;            /* B: rows that are finite */
    size_t live[HTH_GRID_DIMS_MAX]; /* n: live coordinates of each axis */
    float *p;
    float *mask; /* 0 where live, -INFINITY elsewhere: added to the scores */
    float *mean;
    float *pull;
};

/* p = softmax(s + mask) over n entries, at least one of them live; mean += p. */
HTH_CLONES static void hth_gating_softmax_masked(const float *s, const float *mask, size_t n,
                                                 float *p, float *mean)
{
    float lane[HTH_LANES];
    for (size_t l = 0; l < HTH_LANES; l++)
        lane[l] = -INFINITY;
    size_t i = 0;
    for (; i + HTH_LANES <= n; i += HTH_LANES) {
        for (size_t l = 0; l < HTH_LANES; l++) {
            float v = s[i + l] + mask[i + l];
            lane[l] = v > lane[l] ? v : lane[l];
        }
    }
    for (size_t l = 0; i < n; i++, l++) {
        float v = s[i] + mask[i];
        lane[l] = v > lane[l] ? v : lane[l];
    }
    float max = hth_lanes_max(lane);
    for (i = 0; i < n; i++)
        p[i] = hth_exp_neg(s[i] + mask[i] - max);
    memset(lane, 0, sizeof(lane));
    for (i = 0; i + HTH_LANES <= n; i += HTH_LANES) {
        for (size_t l = 0; l < HTH_LANES; l++)
            lane[l] += p[i + l];
    }
    for (size_t l = 0; i < n; i++, l++)
        lane[l] += p[i];
    float scale = 1.0f / hth_lanes_sum(lane);
    for (i = 0; i < n; i++) {
        p[i] *= scale;
        mean[i] += p[i];
    }
}

/* ds += p * scale * (a - sum of a p): the softmax's backward. */
HTH_CLONES static void hth_gating_softmax_backward(const float *p, const float *a, size_t n,
                                                   float scale, float *ds)
{
    float lane[HTH_LANES] = {0.0f};
    size_t i = 0;
    for (; i + HTH_LANES <= n; i += HTH_LANES) {
        for (size_t l = 0; l < HTH_LANES; l++)
            lane[l] += a[i + l] * p[i + l];
    }
    for (size_t l = 0; i < n; i++, l++)
        lane[l] += a[i] * p[i];
    float centre = hth_lanes_sum(lane);
    for (i = 0; i < n; i++)
        ds[i] += p[i] * scale * (a[i] - centre);
}

size_t hth_balance_work_floats(const struct hth_grid *grid, size_t rows)
{
    return (rows + 3) * (size_t)hth_gate_width(grid);
}

static void set_live(struct balance_pass *w, const uint8_t *live)
{
    const struct hth_grid *grid = w->batch->grid;
    uint32_t column = 0;
    for (uint32_t i = 0; i < grid->ndim; i++) {
        for (uint32_t c = 0; c < grid->dim[i]; c++, column++) {
            bool alive = live == NULL || live[column] != 0;
            w->mask[column] = alive ? 0.0f : -INFINITY;
            w->live[i] += alive;
        }
    }
}

static void make_softmaxes(struct balance_pass *w, const float *tables, uint64_t *rows_skipped)
{
    const struct hth_grid *grid = w->batch->grid;
    for (size_t b = 0; b < w->batch->rows; b++) {
        const float *row = tables + b * w->width;
        if (hth_gating_any_not_finite(row, w->width)) {
            ++*rows_skipped;
            continue;
        }
        w->rows_counted++;
        uint32_t offset = 0;
        for (uint32_t i = 0; i < grid->ndim; i++) {
            if (w->live[i] > 0)
                hth_gating_softmax_masked(row + offset, w->mask + offset, grid->dim[i],
                                          w->p + b * w->width + offset, w->mean + offset);
            offset += grid->dim[i];
        }
    }
}

/* pull[c] = how often a chosen expert of a counted row has coordinate c; returns the number of
 * choices. */
static uint64_t count_choices(struct balance_pass *w, const float *tables)
{
    const struct hth_gate_batch *batch = w->batch;
    uint64_t choices = 0;
    for (size_t b = 0; b < batch->rows; b++) {
        if (hth_gating_any_not_finite(tables + b * w->width, w->width))
            continue;
        for (size_t j = b * batch->k; j < (b + 1) * batch->k; j++) {
            if (batch->index[j] == HTH_GATE_NONE)
                continue;
            uint32_t coord[HTH_GRID_DIMS_MAX];
            hth_grid_coords(batch->grid, batch->index[j], coord);
            uint32_t offset = 0;
            for (uint32_t i = 0; i < batch->grid->ndim; i++) {
                w->pull[offset + coord[i]] += 1.0f;
                offset += batch->grid->dim[i];
            }
            choices++;
        }
    }
    return choices;
}

/* The loss terms of one axis; turns pull from counts into a_c, the derivative by P_c. */
static void axis_terms(struct balance_pass *w, const struct hth_balance_opts *opts,
                       uint64_t choices, uint32_t axis, uint32_t offset,
                       struct hth_balance_result *r)
{
    uint32_t dim = w->batch->grid->dim[axis];
    double n = (double)w->live[axis];
    double switch_sum = 0.0, square_sum = 0.0, f_max = 0.0;
    for (uint32_t c = offset; c < offset + dim; c++) {
        double mean = (double)w->mean[c] / (double)w->rows_counted;
        double f = choices > 0 ? (double)w->pull[c] / (double)choices : 0.0;
        switch_sum += f * mean;
        square_sum += mean * mean;
        f_max = HTH_MAX(f_max, f);
        w->pull[c] =
            (float)(n * ((double)opts->switch_weight * f + 2.0 * (double)opts->cv_weight * mean));
    }
    r->switch_term[axis] = n * switch_sum;
    r->cv_term[axis] = n * square_sum - 1.0;
    r->load_max[axis] = n * f_max;
    r->loss += (double)opts->switch_weight * r->switch_term[axis] +
               (double)opts->cv_weight * r->cv_term[axis];
}

static void add_gradient(const struct balance_pass *w, const float *tables, float *dtables)
{
    const struct hth_grid *grid = w->batch->grid;
    float scale = 1.0f / (float)w->rows_counted;
    for (size_t b = 0; b < w->batch->rows; b++) {
        if (hth_gating_any_not_finite(tables + b * w->width, w->width))
            continue;
        uint32_t offset = 0;
        for (uint32_t i = 0; i < grid->ndim; i++) {
            size_t at = b * w->width + offset;
            if (w->live[i] > 0)
                hth_gating_softmax_backward(w->p + at, w->pull + offset, grid->dim[i], scale,
                                            dtables + at);
            offset += grid->dim[i];
        }
    }
}

void hth_balance(const struct hth_gate_batch *batch, const struct hth_balance_opts *opts,
                 const float *tables, float *dtables, float *work,
                 struct hth_balance_result *result)
{
    size_t width = hth_gate_width(batch->grid);
    struct balance_pass w = {.batch = batch, .width = width, .p = work};
    w.mask = work + batch->rows * width;
    w.mean = w.mask + width;
    w.pull = w.mean + width;
    memset(w.mean, 0, 2 * width * sizeof(float));
    set_live(&w, opts->live);
    *result = (struct hth_balance_result){0};
    make_softmaxes(&w, tables, &result->rows_skipped);
    if (w.rows_counted == 0)
        return;
    uint64_t choices = count_choices(&w, tables);
    uint32_t offset = 0;
    for (uint32_t i = 0; i < batch->grid->ndim; i++) {
        if (w.live[i] > 0)
            axis_terms(&w, opts, choices, i, offset, result);
        offset += batch->grid->dim[i];
    }
    if (dtables != NULL)
        add_gradient(&w, tables, dtables);
}
