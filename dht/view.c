/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.c: snapshots of a layer's live coordinates, built from one bit per expert.
 */
#include "dht/view.h"

#include <string.h>

#include "core/mem.h"

/* The public part comes first; buffers keep their capacity, so that a rebuild in place allocates
 * nothing. */
struct view {
    struct hth_grid_view pub;
    uint32_t *coord[HTH_GRID_DIMS_MAX];
    uint32_t *start[HTH_GRID_DIMS_MAX];
    uint32_t *expert;
    uint64_t *live;
    size_t capacity; /* experts the arrays have room for */
};

size_t hth_view_words(const struct hth_grid *grid)
{
    return ((size_t)hth_grid_size(grid) + 63) / 64;
}

static void view_free(struct view *v)
{
    for (size_t l = 0; l < HTH_GRID_DIMS_MAX; l++) {
        hth_free(v->coord[l]);
        hth_free(v->start[l]);
    }
    hth_free(v->expert);
    hth_free(v->live);
    hth_free(v);
}

struct hth_grid_view *hth_grid_view_ref(struct hth_grid_view *view)
{
    view->refs++;
    return view;
}

void hth_grid_view_unref(struct hth_grid_view *view)
{
    if (view != NULL && --view->refs == 0)
        view_free(HTH_CONTAINER(view, struct view, pub));
}

/* The most nodes that level l can have: its prefixes, or the experts. */
static size_t level_max(const struct hth_grid *grid, size_t level, size_t experts)
{
    uint64_t prefixes = 1;
    for (size_t i = 0; i <= level; i++)
        prefixes *= grid->dim[i];
    return prefixes < experts ? (size_t)prefixes : experts;
}

static bool grow(uint32_t **array, size_t count)
{
    uint32_t *p = hth_try_realloc(*array, count, sizeof(*p));
    if (p != NULL)
        *array = p;
    return p != NULL;
}

static void point(struct view *v)
{
    v->pub.expert = v->expert;
    v->pub.live = v->live;
    for (size_t l = 0; l < HTH_GRID_DIMS_MAX; l++) {
        v->pub.coord[l] = v->coord[l];
        v->pub.start[l] = v->start[l];
    }
}

static enum hth_err reserve(struct view *v, const struct hth_grid *grid, size_t experts)
{
    if (v->live == NULL) {
        v->live = hth_try_calloc(hth_view_words(grid), sizeof(*v->live));
        if (v->live == NULL)
            return HTH_E_NO_MEMORY;
    }
    if (experts <= v->capacity && v->expert != NULL)
        return HTH_OK;
    size_t capacity = HTH_MIN(experts + experts / 4 + 16, (size_t)hth_grid_size(grid));
    bool ok = grow(&v->expert, capacity);
    for (size_t l = 0; l < grid->ndim && ok; l++)
        ok = grow(&v->coord[l], level_max(grid, l, capacity)) &&
             (l + 1 == grid->ndim || grow(&v->start[l], level_max(grid, l, capacity) + 1));
    if (ok)
        v->capacity = capacity;
    point(v); /* needed after a failure too: some arrays may have moved */
    return ok ? HTH_OK : HTH_E_NO_MEMORY;
}

static void begin(struct view *v, const struct hth_grid *grid, size_t live)
{
    struct hth_grid_view *p = &v->pub;
    p->ndim = grid->ndim;
    memcpy(p->dim, grid->dim, sizeof(p->dim));
    p->live_count = (uint32_t)live;
    memset(p->count, 0, sizeof(p->count));
    point(v);
}

/* Opens the inner nodes that lead to this row (a row: all coordinates but the last). */
static void open_row(struct view *v, uint32_t row)
{
    struct hth_grid_view *p = &v->pub;
    uint32_t leaves = p->count[p->ndim - 1];
    if (p->ndim == 2) {
        v->coord[0][p->count[0]] = row;
        v->start[0][p->count[0]++] = leaves;
        return;
    }
    uint32_t c0 = row / p->dim[1];
    if (p->count[0] == 0 || v->coord[0][p->count[0] - 1] != c0) {
        v->coord[0][p->count[0]] = c0;
        v->start[0][p->count[0]++] = p->count[1];
    }
    v->coord[1][p->count[1]] = row - c0 * p->dim[1];
    v->start[1][p->count[1]++] = leaves;
}

static void build(struct view *v, const uint64_t *bits, size_t words)
{
    struct hth_grid_view *p = &v->pub;
    uint32_t last = p->ndim - 1, row_dim = p->dim[last], n = 0;
    uint64_t row_end = 0; /* the expert after the open row; one division per row */
    uint32_t row_first = 0;
    for (size_t w = 0; w < words; w++) {
        for (uint64_t left = bits[w]; left != 0; left &= left - 1) {
            uint32_t e = (uint32_t)(w * 64) + (uint32_t)__builtin_ctzll(left);
            if (e >= row_end && p->ndim > 1) {
                uint32_t row = e / row_dim;
                row_first = row * row_dim;
                row_end = (uint64_t)row_first + row_dim;
                p->count[last] = n;
                open_row(v, row);
            }
            v->coord[last][n] = e - row_first;
            v->expert[n++] = e;
        }
    }
    p->count[last] = n;
    for (uint32_t l = 0; l < last; l++)
        v->start[l][p->count[l]] = p->count[l + 1];
}

enum hth_err hth_view_make(struct hth_grid_view **view, const struct hth_grid *grid,
                           const uint64_t *bits, size_t live)
{
    struct view *v;
    if (*view != NULL && (*view)->refs == 1) {
        v = HTH_CONTAINER(*view, struct view, pub);
        HTH_TRY(reserve(v, grid, live));
    } else {
        v = hth_new(struct view);
        v->pub.refs = 1;
        enum hth_err err = reserve(v, grid, live);
        if (err != HTH_OK) {
            view_free(v);
            return err;
        }
        v->pub.generation = *view != NULL ? (*view)->generation : 0;
        hth_grid_view_unref(*view);
        *view = &v->pub;
    }
    begin(v, grid, live);
    memcpy(v->live, bits, hth_view_words(grid) * sizeof(*bits));
    build(v, bits, hth_view_words(grid));
    HTH_ASSERT(v->pub.count[v->pub.ndim - 1] == live);
    v->pub.generation++;
    return HTH_OK;
}

enum hth_err hth_grid_view_new(const struct hth_grid *grid, const uint32_t *experts, size_t count,
                               struct hth_grid_view **out)
{
    size_t live = 0;
    *out = NULL;
    uint64_t *bits = hth_try_calloc(hth_view_words(grid), sizeof(*bits));
    if (bits == NULL)
        return HTH_E_NO_MEMORY;
    enum hth_err err = HTH_OK;
    for (size_t i = 0; i < count && err == HTH_OK; i++) {
        if (experts[i] >= hth_grid_size(grid)) {
            err = HTH_E_RANGE;
            break;
        }
        uint64_t bit = UINT64_C(1) << (experts[i] & 63);
        live += (bits[experts[i] >> 6] & bit) == 0;
        bits[experts[i] >> 6] |= bit;
    }
    if (err == HTH_OK)
        err = hth_view_make(out, grid, bits, live);
    hth_free(bits);
    return err;
}
