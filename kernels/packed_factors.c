/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_factors.c: gradients that stay products.
 *
 *   dW [in, out] = sum over batches of x^T dy          M rows in all
 *
 * With few rows the product is small work and a large result: for M = 8 and W [1024, 4096] writing
 * dW and reading it again takes longer than all products of the step. So this file keeps x and dy,
 * packed as the kernel needs them, and the optimiser computes rows of dW in the cache:
 *
 *   x    [columns / width] panels of [units][width]      rows of dW: what a tile broadcasts
 *   dy   [columns / nr]    panels of [units][nr]         columns of dW: what a tile loads
 *
 * Both panels have room for `cap` units, of which the first `units` are filled. A batch begins with
 * its own unit, so each element adds the same products in the same order as with a gradient in
 * memory: both methods give the same bits.
 *
 * For clipping, the norm of dW is computed without dW:
 *   ||x^T dy||^2 = sum over r, s of (x_r . x_s) (dy_r . dy_s)
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/team.h"
#include "kernels/packed_int.h"

/* The factors together are at most this part of the gradient, and of few rows: with more, they cost
 * more than a gradient in memory. */
#define SHARE    4
#define ROWS_MAX HTH_FACTOR_ROWS_MAX
#define ROWS_MIN 4

static uint32_t up(uint32_t n, uint32_t step)
{
    return (n + step - 1) / step;
}

/* The most units of K for the factors of a weight; 0: its gradient is not kept as a product. */
static uint32_t units_max(const struct hth_packed_isa *isa, const struct hth_weight *w)
{
    uint64_t both = (uint64_t)w->rows + w->cols;
    uint64_t rows = HTH_MIN((uint64_t)w->rows * w->cols / (SHARE * both), (uint64_t)ROWS_MAX);
    return w->owner->factored && rows >= ROWS_MIN ? (uint32_t)rows / isa->pair : 0;
}

/* Allocates factors. False: no memory. */
static bool make(const struct hth_packed_isa *isa, struct hth_weight *w, uint32_t cap)
{
    size_t x = (size_t)up(w->rows, isa->width) * cap * isa->width;
    size_t dy = (size_t)up(w->cols, isa->nr) * cap * isa->nr;
    x = (x + 15) / 16 * 16; /* both begin on a cache line */
    w->factors.x = hth_try_aligned((x + dy) * sizeof(uint32_t));
    if (w->factors.x == NULL)
        return false;
    w->factors.dy = w->factors.x + x;
    w->factors.cap = cap;
    return true;
}

void hth_packed_factors_free(struct hth_weight *w)
{
    hth_aligned_free(w->factors.x);
}

/* -- keeping a batch ----------------------------------------------------------------------- */

/* Appends all rows of x to panels that are `width` wide. */
static void append(const struct hth_packed_isa *isa, const struct hth_factors *f, struct hth_view x,
                   uint32_t width, uint32_t *panels)
{
    uint32_t *dst = panels + (size_t)f->units * width;
    for (uint32_t col = 0; col < x.cols; col += width, dst += (size_t)f->cap * width) {
        uint32_t cols = HTH_MIN(x.cols - col, width);
        if (x.dtype == HTH_BF16)
            isa->pack_down_bf16((const uint16_t *)x.data + col, x.ld, x.rows, cols, dst, width);
        else
            isa->pack_down((const float *)x.data + col, x.ld, x.rows, cols, dst, width);
    }
}

bool hth_packed_factors_take(struct hth_exec *ex, struct hth_weight *w, struct hth_view x,
                             struct hth_view dy)
{
    const struct hth_packed_isa *isa = hth_packed_isa_of(ex->be);
    struct hth_factors *f = &w->factors;
    uint32_t cap = units_max(isa, w), units = hth_units(isa, x.rows);
    if (f->units + units > cap)
        hth_packed_factors_add(w, ex->team);
    if (units > cap || (f->cap == 0 && !make(isa, w, cap)))
        return false;
    if (f->units == 0)
        f->starts = 0;
    f->starts |= UINT64_C(1) << f->units;
    append(isa, f, x, isa->width, f->x);
    append(isa, f, dy, isa->nr, f->dy);
    f->units += units;
    return true;
}

/* -- rows of dW ---------------------------------------------------------------------------- */

/* Rows of a tile; they lie in one panel of x. */
static uint32_t tile_rows(const struct hth_packed_isa *isa)
{
    uint32_t rows = isa->width > isa->mr ? isa->width / 2 : isa->width;
    return HTH_MIN(rows, (uint32_t)HTH_FACTOR_TILE_ROWS);
}

/* A block of dW: rows that lie in one panel of x. */
struct block {
    const struct hth_weight *w;
    uint32_t row0, rows, col0, cols;
    float *c;
    size_t ldc;
    bool fresh; /* c = dW, else c += dW */
};

/* The end of the units that are summed together: all, or where groups are, those of one batch, as
 * with a gradient in memory. */
static uint32_t piece_end(const struct hth_packed_isa *isa, const struct hth_factors *f, uint32_t u)
{
    uint32_t end = isa->group > 1 ? u + 1 : f->units;
    while (end < f->units && (f->starts >> end & 1) == 0)
        end++;
    return end;
}

/* Units u .. u + units of the block's rows of x. `turned` has room for them. */
static const uint32_t *left(const struct block *b, uint32_t u, uint32_t units, uint32_t *turned)
{
    const struct hth_packed_isa *isa = hth_packed_isa_of(b->w->owner->be);
    const struct hth_factors *f = &b->w->factors;
    uint32_t row = b->row0 % isa->width;
    const uint32_t *a = f->x + ((size_t)(b->row0 / isa->width) * f->cap + u) * isa->width;
    if (isa->turn == NULL)
        return a + row;
    size_t all = hth_groups(isa, units) * (size_t)isa->width, there = (size_t)units * isa->width;
    memcpy(turned, a, there * sizeof(*a));
    memset(turned + there, 0, (all - there) * sizeof(*a));
    isa->turn(turned, hth_groups(isa, units));
    return turned + (size_t)(row % isa->group) * isa->width + row / isa->group * isa->group;
}

/* Sums the last columns of the block, which do not fill a tile, in a buffer. */
static void edge_of(const struct block *b, struct hth_tile *t, uint32_t col)
{
    const struct hth_packed_isa *isa = hth_packed_isa_of(b->w->owner->be);
    float edge[HTH_FACTOR_TILE_ROWS * HTH_PACK_NR] __attribute__((aligned(64))) = {0};
    size_t bytes = (b->cols - col) * sizeof(float);
    t->c = edge;
    t->ldc = isa->nr;
    for (uint32_t r = 0; !t->fresh && r < b->rows; r++)
        memcpy(edge + r * isa->nr, b->c + r * b->ldc + col, bytes);
    isa->tile_by_units(t);
    for (uint32_t r = 0; r < b->rows; r++)
        memcpy(b->c + r * b->ldc + col, edge + r * isa->nr, bytes);
}

static void rows_of(const struct block *b)
{
    const struct hth_packed_isa *isa = hth_packed_isa_of(b->w->owner->be);
    const struct hth_factors *f = &b->w->factors;
    uint32_t turned[ROWS_MAX * HTH_PACK_MR] __attribute__((aligned(64)));
    for (uint32_t u = 0, end; u < f->units; u = end) {
        end = piece_end(isa, f, u);
        struct hth_tile t = {.a = left(b, u, end - u, turned),
                             .ldc = b->ldc,
                             .rows = b->rows,
                             .units = end - u,
                             .fresh = b->fresh && u == 0};
        t.ahead = t.a;
        for (uint32_t col = 0; col < b->cols; col += isa->nr) {
            t.b = f->dy + (size_t)(b->col0 + col) * f->cap + (size_t)u * isa->nr;
            t.c = b->c + col;
            if (b->cols - col >= isa->nr)
                isa->tile_by_units(&t);
            else
                edge_of(b, &t, col);
        }
    }
    hth_packed_leave(isa);
}

uint32_t hth_packed_factors_rows(const struct hth_weight *w, uint32_t row0, uint32_t col0,
                                 uint32_t cols, float *c, size_t ldc)
{
    uint32_t rows = HTH_MIN(w->rows - row0, tile_rows(hth_packed_isa_of(w->owner->be)));
    const struct block b = {w, row0, rows, col0, cols, c, ldc, true};
    rows_of(&b);
    return rows;
}

static void add_part(void *arg, uint32_t part)
{
    struct hth_weight *w = arg;
    uint32_t step = tile_rows(hth_packed_isa_of(w->owner->be));
    uint32_t end = HTH_MIN(w->rows, (part + 1) * HTH_PACKED_TILE);
    for (uint32_t r = part * HTH_PACKED_TILE; r < end; r += step) {
        float *c = w->grad + (size_t)r * w->cols;
        const struct block b = {w, r, HTH_MIN(end - r, step), 0, w->cols, c, w->cols, w->grad_zero};
        rows_of(&b);
    }
}

void hth_packed_factors_add(struct hth_weight *w, struct hth_team *team)
{
    if (w->factors.units == 0)
        return;
    hth_team_run(team, up(w->rows, HTH_PACKED_TILE), add_part, w);
    w->grad_zero = false;
    w->factors.units = 0;
}

/* -- the norm ------------------------------------------------------------------------------ */

#define CHUNK 256 /* columns at a time: a multiple of every panel's width */

struct gram {
    double dot[ROWS_MAX][ROWS_MAX]; /* r <= s */
};

/* Unpacks columns of a panel as rows of floats. */
static void unpack(const struct hth_packed_isa *isa, const uint32_t *panel, uint32_t width,
                   uint32_t units, float *rows)
{
    for (uint32_t u = 0; u < units; u++) {
        for (uint32_t j = 0; j < width; j++) {
            uint32_t unit = panel[u * width + j], low = unit << 16, high = unit & 0xffff0000u;
            if (isa->pair == 1) {
                memcpy(&rows[u * CHUNK + j], &unit, sizeof(float));
                continue;
            }
            memcpy(&rows[2 * u * CHUNK + j], &low, sizeof(float));
            memcpy(&rows[(2 * u + 1) * CHUNK + j], &high, sizeof(float));
        }
    }
}

static void gram_of(const struct hth_weight *w, const uint32_t *panels, uint32_t width,
                    uint32_t cols, struct gram *g)
{
    const struct hth_packed_cpu *cpu = w->owner->be->impl;
    float rows[ROWS_MAX * CHUNK];
    uint32_t units = w->factors.units, count = units * cpu->isa->pair;
    memset(g, 0, sizeof(*g));
    for (uint32_t col = 0; col < cols; col += CHUNK) {
        uint32_t wide = HTH_MIN(up(cols - col, width) * width, (uint32_t)CHUNK);
        for (uint32_t j = 0; j < wide; j += width)
            unpack(cpu->isa, panels + (size_t)(col + j) * w->factors.cap, width, units, rows + j);
        for (uint32_t r = 0; r < count; r++) {
            for (uint32_t s = r; s < count; s++)
                g->dot[r][s] += (double)cpu->cpu.row->dot(wide, rows + r * CHUNK, rows + s * CHUNK);
        }
    }
}

double hth_packed_factors_sumsq(const struct hth_weight *w)
{
    const struct hth_packed_isa *isa = hth_packed_isa_of(w->owner->be);
    struct gram x, dy;
    double sum = 0, bound = 0;
    uint32_t count = w->factors.units * isa->pair;
    gram_of(w, w->factors.x, isa->width, w->rows, &x);
    gram_of(w, w->factors.dy, isa->nr, w->cols, &dy);
    for (uint32_t r = 0; r < count; r++) {
        for (uint32_t s = r; s < count; s++)
            sum += (r == s ? 1 : 2) * x.dot[r][s] * dy.dot[r][s];
        bound += sqrt(x.dot[r][r] * dy.dot[r][r]);
    }
    /* No partial sum of an element exceeds the bound: below it nothing overflows. */
    if (!(bound <= (double)FLT_MAX))
        return isnan(bound) ? bound : (double)INFINITY;
    return HTH_MAX(sum, 0.0);
}
