/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_optim.c: optimiser steps of the CPU back ends: one tensor cut into parts for a team.
 *
 * Every element's step depends on that element alone, so parts may be cut anywhere and the bits do
 * not change. LAMB's two norms are sums over parts whose size depends on the tensor only, added in
 * order.
 */
#include <math.h>

#include "core/team.h"
#include "kernels/packed_int.h"

/* Elements of a part: four streams of 256 KiB, long enough for the prefetchers of the CPU. */
#define PART ((size_t)1 << 16)
/* Parts of a LAMB norm: their sums stay on the stack. */
#define NORM_PARTS 256

struct work {
    struct hth_weight *weight;
    const struct hth_rowops *row;
    const struct hth_step *step;
    struct hth_row_step all; /* the whole tensor */
    float rate;              /* LAMB: learning rate times trust ratio */
    size_t part;             /* elements of one */
    double sums[NORM_PARTS][2];
};

static uint32_t parts_of(const struct work *w)
{
    return (uint32_t)((w->all.count + w->part - 1) / w->part);
}

/* The step of `count` elements of the tensor. */
static struct hth_row_step stretch(const struct work *w, size_t first, size_t count)
{
    const struct hth_row_step *a = &w->all;
    return (struct hth_row_step){
        .w = a->w + first,
        .g = a->g + first,
        .m = a->m != NULL ? a->m + first : NULL,
        .v = a->v != NULL ? a->v + first : NULL,
        .count = count,
    };
}

static void apply(const struct work *w, const struct hth_row_step *r)
{
    switch (w->step->kind) {
    case HTH_OPTIM_SGD:
        w->row->sgd(w->step, r);
        break;
    case HTH_OPTIM_ADAM:
    case HTH_OPTIM_ADAMW:
        w->row->adam(w->step, r);
        break;
    case HTH_OPTIM_LAMB:
        w->row->lamb_apply(w->step, r, w->rate);
        break;
    }
}

static struct hth_row_step part_at(const struct work *w, uint32_t part)
{
    size_t first = part * w->part;
    return stretch(w, first, HTH_MIN(w->all.count - first, w->part));
}

static void apply_part(void *arg, uint32_t part)
{
    const struct work *w = arg;
    struct hth_row_step r = part_at(w, part);
    apply(w, &r);
}

static void moments_part(void *arg, uint32_t part)
{
    struct work *w = arg;
    struct hth_row_step r = part_at(w, part);
    w->row->lamb_moments(w->step, &r, w->sums[part]);
}

/* Updates the moments; returns the learning rate of this tensor. */
static float lamb_rate(struct hth_exec *ex, struct work *w)
{
    const struct hth_step *s = w->step;
    double weight = 0, update = 0;
    w->part = HTH_MAX(PART, (w->all.count / NORM_PARTS + 16) / 16 * 16);
    uint32_t parts = parts_of(w);
    hth_team_run(ex->team, parts, moments_part, w);
    for (uint32_t i = 0; i < parts; i++) {
        weight += w->sums[i][0];
        update += w->sums[i][1];
    }
    if (!s->adapt || !(weight > 0) || !(update > 0))
        return s->lr;
    double ratio = sqrt(weight) / sqrt(update);
    if (s->trust_max > 0 && ratio > (double)s->trust_max)
        ratio = (double)s->trust_max;
    return (float)((double)s->lr * ratio);
}

/* Columns of a product gradient that is computed on the stack for its step: 8 rows of 16 KiB. */
#define MADE_COLS 4096
#define MADE_LD   (MADE_COLS + 16) /* not a multiple of 4 KiB */

/* Steps rows row0 .. row0 + rows, whose gradient is a product: computes some rows of it at a
 * time. */
static void apply_product(const struct work *w, uint32_t row0, uint32_t rows)
{
    float made[HTH_FACTOR_TILE_ROWS * MADE_LD] __attribute__((aligned(64)));
    uint32_t cols = w->weight->cols, done = 0;
    for (uint32_t r = row0; r < row0 + rows; r += done) {
        for (uint32_t col = 0; col < cols; col += MADE_COLS) {
            uint32_t n = HTH_MIN(cols - col, (uint32_t)MADE_COLS);
            done = hth_packed_factors_rows(w->weight, r, col, n, made, MADE_LD);
            for (uint32_t i = 0; i < done; i++) {
                struct hth_row_step s = stretch(w, (size_t)(r + i) * cols + col, n);
                s.g = made + (size_t)i * MADE_LD;
                apply(w, &s);
            }
        }
    }
}

/* Steps a strip of HTH_PACKED_TILE rows: consecutive memory, so the step streams as without images.
 * Then it writes the values into the images while they are in the second or third cache. A step
 * tile by tile would find them in the first cache and lose more by leaving the streams. */
static void strip_part(void *arg, uint32_t part)
{
    const struct work *w = arg;
    struct hth_weight *weight = w->weight;
    uint32_t row0 = part * HTH_PACKED_TILE, ld = weight->cols;
    uint32_t rows = HTH_MIN(weight->rows - row0, (uint32_t)HTH_PACKED_TILE);
    struct hth_row_step r = stretch(w, (size_t)row0 * ld, (size_t)rows * ld);
    if (hth_weight_is_product(weight))
        apply_product(w, row0, rows);
    else
        apply(w, &r);
    for (uint32_t col = 0; col < ld; col += HTH_PACKED_TILE) {
        uint32_t cols = HTH_MIN(ld - col, (uint32_t)HTH_PACKED_TILE);
        hth_packed_emit_tile(weight, row0, rows, col, cols, r.w + col, ld);
    }
}

enum hth_err hth_cpu_step(struct hth_exec *ex, struct hth_weight *weight,
                          const struct hth_step *step)
{
    const struct hth_params *p = weight->owner;
    struct work w = {
        .weight = weight,
        .row = hth_cpu_of(ex)->row,
        .step = step,
        .all = {.w = weight->value,
                .g = weight->grad,
                .m = p->slots > 0 ? p->state[0] + weight->offset : NULL,
                .v = p->slots > 1 ? p->state[1] + weight->offset : NULL,
                .count = (size_t)weight->rows * weight->cols},
    };
    if (step->kind == HTH_OPTIM_LAMB)
        w.rate = lamb_rate(ex, &w);
    w.part = PART;
    if (!hth_packed_emit_begin(weight) && !hth_weight_is_product(weight)) {
        hth_team_run(ex->team, parts_of(&w), apply_part, &w);
        return HTH_OK;
    }
    uint32_t strips = weight->rows / HTH_PACKED_TILE + (weight->rows % HTH_PACKED_TILE != 0);
    hth_team_run(ex->team, strips, strip_part, &w);
    hth_packed_emit_end(weight);
    return HTH_OK;
}
