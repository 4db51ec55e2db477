/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed.c: linear layers over packed weights, for every instruction set.
 *
 *   for a block of rows of x, as many as fit into L2 when packed:
 *       pack them
 *       for each panel of the weight:                       (shared by the team)
 *           for each chunk of K, for each tile of rows:     sums in registers, between chunks in L1
 *           the tile's end, from L1: bias, GELU, residual; y is written once
 *
 * Panels of W^T, for dx = dy W^T, lie in their own image or are transposed from the forward image.
 * The weight gradient is the same product with x^T in place of x: its K are the rows of the batch.
 */
#include "kernels/packed_int.h"

#include <string.h>

/* -- products over the rows of a batch ----------------------------------------------------- */

/* y = end(x B): x [rows, k], B n columns in panels. */
struct packed_product {
    const struct hth_packed_isa *isa;
    uint32_t n, units, rows; /* rows of this block */
    uint32_t parts;
    struct hth_view x; /* of this block */
    uint32_t *a;       /* its packed rows (packed_int.h) */
    const uint32_t *panels;
    bool transposed;         /* panels are those of B^T and are transposed piece by piece */
    struct hth_tile_end end; /* at the block's first row and column 0 */
};

/* How a block of rows lies packed, in units: `run` of a row together, `row` to the next row's, and
 * `step` to its next. */
struct runs {
    uint32_t run, row;
    size_t step;
};

static struct runs runs_of(const struct hth_packed_isa *isa, uint32_t rows)
{
    if (isa->group > 1)
        return (struct runs){isa->group, isa->group, (size_t)(rows + 1) * isa->group};
    return (struct runs){HTH_PACK_UNITS, HTH_PACK_LDA, (size_t)rows * HTH_PACK_LDA};
}

static size_t packed_bytes(const struct hth_packed_isa *isa, uint32_t units, uint32_t rows)
{
    struct runs a = runs_of(isa, rows);
    return (units + a.run - 1) / a.run * a.step * sizeof(uint32_t);
}

/* Rows packed at a time; no bit depends on it. */
static uint32_t block_rows(const struct hth_packed_isa *isa, uint32_t units)
{
    size_t row = packed_bytes(isa, units, 1) - packed_bytes(isa, units, 0);
    size_t rows = HTH_MIN(isa->block_bytes / row, (size_t)isa->block_rows);
    return rows < isa->mr ? isa->mr : (uint32_t)(rows / isa->mr * isa->mr);
}

static size_t block_bytes(const struct hth_packed_isa *isa, uint32_t units, uint32_t rows)
{
    size_t most = HTH_MIN(block_rows(isa, units), rows);
    return hth_exec_cost(packed_bytes(isa, units, (uint32_t)most));
}

/* Element (r, c) of a view. */
static void *place(struct hth_view v, size_t r, size_t c)
{
    return (uint8_t *)v.data + (r * v.ld + c) * hth_dtype_size(v.dtype);
}

/* Packs rows first .. first + rows of the block. Where groups are, a row is spread at once. */
static void pack_rows(const struct packed_product *p, uint32_t first, uint32_t rows)
{
    const struct hth_packed_isa *isa = p->isa;
    struct runs to = runs_of(isa, p->rows);
    uint32_t most = isa->group > 1 ? p->x.cols : to.run * isa->pair;
    for (uint32_t k0 = 0; k0 < p->x.cols; k0 += most) {
        uint32_t k = HTH_MIN(p->x.cols - k0, most);
        uint32_t *a = p->a + k0 / most * to.step + (size_t)first * to.row;
        for (uint32_t r = first; r < first + rows; r++, a += to.row) {
            if (p->x.dtype == HTH_BF16)
                isa->pack_row_bf16(place(p->x, r, k0), k, a, to.step);
            else
                isa->pack_row(place(p->x, r, k0), k, a, to.step);
        }
    }
}

#define PACK_ROWS    16                /* of a part */
#define PACK_NUMBERS ((size_t)1 << 17) /* fewer are packed before a helper comes */

static void pack_part(void *arg, uint32_t part)
{
    const struct packed_product *p = arg;
    pack_rows(p, part * PACK_ROWS, HTH_MIN(p->rows - part * PACK_ROWS, (uint32_t)PACK_ROWS));
}

static void pack_block(struct hth_exec *ex, struct packed_product *p)
{
    bool much = (size_t)p->rows * p->x.cols >= PACK_NUMBERS;
    hth_team_run(much ? ex->team : NULL, (p->rows + PACK_ROWS - 1) / PACK_ROWS, pack_part, p);
}

/* First row of tile i of `tiles`: as even as possible, since a tile of few rows is slow, those with
 * one more first. */
static uint32_t tile_first(uint32_t rows, uint32_t tiles, uint32_t i)
{
    return rows / tiles * i + HTH_MIN(rows % tiles, i);
}

static void *moved(void *p, size_t elements, bool bf16)
{
    return p != NULL ? (uint8_t *)p + elements * (bf16 ? 2 : 4) : NULL;
}

/* The tile's end moved to that row and column. */
static struct hth_tile_end end_at(const struct hth_tile_end *e, size_t row, size_t col)
{
    struct hth_tile_end at = *e;
    at.y = moved(e->y, row * e->ldy + col, e->y_bf16);
    at.pre = moved(e->pre, row * e->ld_pre + col, e->pre_bf16);
    at.residual = e->residual != NULL ? e->residual + row * e->ld_residual + col : NULL;
    at.bias = e->bias != NULL ? e->bias + col : NULL;
    at.sums = e->sums != NULL ? e->sums + col : NULL;
    return at;
}

static void end_tile(const struct packed_product *p, const float *c, uint32_t row, uint32_t rows,
                     uint32_t col)
{
    struct hth_tile_end end = end_at(&p->end, row, col);
    p->isa->finish(c, rows, HTH_MIN(p->n - col, p->isa->nr), &end);
}

/* Prefetches what the end of a tile reads and writes, while the tile is summed: its rows lie far
 * apart, so the hardware does not predict them. */
static void expect_rows(const void *at, size_t row_bytes, uint32_t rows, size_t bytes, bool write)
{
    const uint8_t *row = at;
    for (uint32_t r = 0; at != NULL && r < rows; r++, row += row_bytes) {
        for (size_t b = 0; b < bytes; b += 64) {
            if (write)
                __builtin_prefetch(row + b, 1);
            else
                __builtin_prefetch(row + b);
        }
    }
}

static void expect_end(const struct packed_product *p, uint32_t row, uint32_t rows, uint32_t col)
{
    const struct hth_tile_end e = end_at(&p->end, row, col);
    size_t cols = HTH_MIN(p->n - col, p->isa->nr), y = e.y_bf16 ? 2 : 4, pre = e.pre_bf16 ? 2 : 4;
    if (!e.stream)
        expect_rows(e.y, e.ldy * y, rows, cols * y, true);
    if (!e.stream || e.backward)
        expect_rows(e.pre, e.ld_pre * pre, rows, cols * pre, !e.backward);
    expect_rows(e.residual, e.ld_residual * sizeof(float), rows, cols * sizeof(float), false);
}

/* While a block's tiles use a chunk of a panel, each prefetches its share of the next chunk, which
 * follows in memory. The first tile to use that would alone need all of it within 6000 clocks: more
 * than L3 delivers, let alone memory. */
static void expect_chunk(struct hth_tile *t, const uint32_t *next, uint32_t tile, uint32_t tiles,
                         uint32_t nr)
{
    t->ahead_step = tiles > 1 ? nr / tiles : 0;
    t->ahead = next + (size_t)tile * t->units * t->ahead_step;
}

/* -- transposed panels -- */

#define TRANSPOSE_UNITS 128 /* of a panel at a time: 16 KiB, which fit L1 */
#define LINE            16  /* units of a cache line */

/* Units of a side of a panel, and of a piece. */
static uint32_t piece_units(const struct packed_product *p)
{
    return p->isa->nr / p->isa->pair;
}

static uint32_t piece_lines(const struct packed_product *p)
{
    return HTH_MAX(piece_units(p) * p->isa->nr / LINE, 1u);
}

/* The address of columns panel * nr .. of B in panel i of B^T. Beyond the last panel: those needed
 * next. */
static const uint32_t *piece_at(const struct packed_product *p, uint32_t panel, uint32_t i)
{
    uint32_t nr = p->isa->nr, pieces = (p->units * p->isa->pair + nr - 1) / nr;
    size_t length = (size_t)hth_units(p->isa, p->n) * nr;
    if (i >= pieces) {
        i -= pieces;
        panel++;
    }
    return p->panels + HTH_MIN(i, pieces - 1) * length + (size_t)panel * piece_units(p) * nr;
}

/* Pieces that the tiles of a block can prefetch while they use one part of a transposed panel. */
static uint32_t pieces_expected(const struct packed_product *p, uint32_t tiles)
{
    return HTH_MIN(tiles * TRANSPOSE_UNITS / piece_lines(p), TRANSPOSE_UNITS / piece_units(p));
}

/* Prefetches a tile's share of the pieces that are transposed next. */
static void expect_pieces(const struct packed_product *p, struct hth_tile *t, uint32_t panel,
                          uint32_t u, uint32_t tile)
{
    uint32_t lines = piece_lines(p), share = HTH_MAX(TRANSPOSE_UNITS / lines, 1u);
    size_t length = (size_t)hth_units(p->isa, p->n) * p->isa->nr;
    t->ahead = piece_at(p, panel, u / piece_units(p) + tile * share);
    t->ahead_lines = lines - 1;
    /* Panels shorter than a piece lie one behind the other. */
    t->ahead_step = HTH_MAX(length, (size_t)lines * LINE) - (size_t)(lines - 1) * LINE;
}

/* Makes units u .. u + units of a panel of B from pieces of B^T. */
static void transpose_panel(const struct packed_product *p, uint32_t panel, uint32_t u,
                            uint32_t units, uint32_t *dst)
{
    uint32_t nr = p->isa->nr, side = piece_units(p),
             tiles = (p->rows + p->isa->mr - 1) / p->isa->mr;
    uint32_t there = HTH_MIN(hth_units(p->isa, p->n) - panel * side, side);
    uint32_t expected = pieces_expected(p, tiles) * side;
    for (uint32_t i = 0; i < units; i += side, dst += side * nr) {
        if (i + expected < units)
            expect_rows(piece_at(p, panel, (u + i + expected) / side), 0, 1,
                        (size_t)there * nr * sizeof(*dst), false);
        p->isa->transpose(piece_at(p, panel, (u + i) / side), there, dst);
    }
}

/* Adds units u .. u + units of a panel, or of two, to the block's sums; u is within one chunk. */
static void panel_units(const struct packed_product *p, uint32_t panel, uint32_t panels, uint32_t u,
                        uint32_t units, const uint32_t *b, float *sums)
{
    const struct hth_packed_isa *isa = p->isa;
    uint32_t nr = isa->nr, tiles = (p->rows + isa->mr - 1) / isa->mr;
    size_t length = (size_t)p->units * nr;
    struct runs from = runs_of(isa, p->rows);
    const uint32_t *a = p->a + u / from.run * from.step + u % from.run;
    bool last = u + units == p->units;
    for (uint32_t i = 0; i < tiles; i++) {
        uint32_t first = tile_first(p->rows, tiles, i);
        struct hth_tile t = {.a = a + (size_t)first * from.row,
                             .b = b,
                             .c = sums + first * nr,
                             .ldc = nr,
                             .next_group = from.step,
                             .next_panel = panels > 1 ? length : 0,
                             .rows = tile_first(p->rows, tiles, i + 1) - first,
                             .units = units,
                             .fresh = u == 0};
        if (p->transposed)
            expect_pieces(p, &t, panel, u + units, i);
        else
            expect_chunk(&t, b + (panels - 1) * length + (size_t)units * nr, i, tiles, nr);
        for (uint32_t k = 0; last && k < panels; k++)
            expect_end(p, first, t.rows, (panel + k) * nr);
        isa->tile_by_rows(&t);
        for (uint32_t k = 0; last && k < panels; k++)
            end_tile(p, t.c + k * t.rows * nr, first, t.rows, (panel + k) * nr);
    }
}

/* Computes one panel, or two for few rows. */
static void panel_run(const struct packed_product *p, uint32_t panel, uint32_t panels)
{
    float sums[HTH_PACK_BLOCK_ROWS * HTH_PACK_NR] __attribute__((aligned(64)));
    uint32_t transposed[TRANSPOSE_UNITS * HTH_PACK_NR] __attribute__((aligned(64)));
    uint32_t step = p->transposed ? TRANSPOSE_UNITS : p->isa->chunk, nr = p->isa->nr;
    const uint32_t *b = p->panels + panel * (size_t)p->units * nr;
    for (uint32_t u = 0; u < p->units; u += step) {
        uint32_t units = HTH_MIN(p->units - u, step);
        if (p->transposed)
            transpose_panel(p, panel, u, units, transposed);
        panel_units(p, panel, panels, u, units, p->transposed ? transposed : b + (size_t)u * nr,
                    sums);
    }
}

static uint32_t panels_of(const struct hth_packed_isa *isa, uint32_t n)
{
    return (n + isa->nr - 1) / isa->nr;
}

static void product_part(void *arg, uint32_t part)
{
    const struct packed_product *p = arg;
    uint32_t panels = panels_of(p->isa, p->n);
    uint32_t end = tile_first(panels, p->parts, part + 1);
    uint32_t step = p->rows <= p->isa->pair_rows && !p->transposed ? 2 : 1;
    for (uint32_t i = tile_first(panels, p->parts, part); i < end; i += step)
        panel_run(p, i, HTH_MIN(end - i, step));
    if (p->end.stream)
        p->isa->settle();
    hth_packed_leave(p->isa);
}

/* With fewer multiply-adds a second thread does not pay. */
#define PART_WORK ((uint64_t)1 << 20)

static uint32_t parts_of(const struct hth_exec *ex, uint64_t work, uint32_t most)
{
    uint32_t width = hth_team_width(ex->team);
    if (width == 1 || work < 2 * PART_WORK)
        return 1;
    uint64_t parts = HTH_MIN(work / PART_WORK, (uint64_t)4 * width);
    return (uint32_t)HTH_MIN(parts, (uint64_t)most);
}

static uint32_t blocks_of(const struct hth_packed_isa *isa, struct hth_view x)
{
    uint32_t most = block_rows(isa, hth_units(isa, x.cols));
    return (x.rows + most - 1) / most;
}

/* First row of block i: whole tiles, but in the last. */
static uint32_t block_first(const struct hth_packed_isa *isa, uint32_t rows, uint32_t blocks,
                            uint32_t i)
{
    uint32_t tiles = (rows + isa->mr - 1) / isa->mr;
    return HTH_MIN(rows, tile_first(tiles, blocks, i) * isa->mr);
}

static bool on_lines(const void *p, size_t row_bytes)
{
    return ((uintptr_t)p | row_bytes) % 64 == 0;
}

/* True if y would leave the caches before anyone reads it: written past them, it spares reading the
 * old lines. */
static bool end_streams(const struct packed_product *p, uint32_t rows)
{
    const struct hth_tile_end *e = &p->end;
    size_t y = e->ldy * (e->y_bf16 ? 2 : 4), pre = e->ld_pre * (e->pre_bf16 ? 2 : 4);
    return rows * y >= p->isa->stream_bytes && on_lines(e->y, y) &&
           (e->backward || on_lines(e->pre, e->pre != NULL ? pre : 0));
}

static enum hth_err product_run(struct hth_exec *ex, struct packed_product *p, struct hth_view x)
{
    const struct hth_packed_isa *isa = p->isa;
    uint32_t blocks = blocks_of(isa, x);
    p->units = hth_units(isa, x.cols);
    size_t mark = hth_exec_mark(ex);
    p->a = hth_exec_take(ex, block_bytes(isa, p->units, x.rows));
    if (p->a == NULL)
        return HTH_E_NO_MEMORY;
    p->end.stream = end_streams(p, x.rows);
    struct hth_tile_end end = p->end;
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t first = block_first(isa, x.rows, blocks, i);
        p->rows = block_first(isa, x.rows, blocks, i + 1) - first;
        p->x = (struct hth_view){place(x, first, 0), x.dtype, p->rows, x.cols, x.ld};
        p->end = end_at(&end, first, 0);
        pack_block(ex, p);
        p->parts = parts_of(ex, (uint64_t)p->rows * x.cols * p->n, panels_of(isa, p->n));
        hth_team_run(ex->team, p->parts, product_part, p);
    }
    hth_exec_release(ex, mark);
    return HTH_OK;
}

enum hth_err hth_packed_linear_forward(struct hth_exec *ex, const struct hth_linear *lin,
                                       struct hth_view x, struct hth_view y)
{
    struct packed_product p = {.isa = hth_packed_isa_of(ex->be), .n = y.cols};
    HTH_TRY(hth_packed_image(ex, lin->w, HTH_IMAGE_FORWARD, &p.panels));
    p.end = (struct hth_tile_end){.act = lin->act,
                                  .pre_bf16 = lin->pre.dtype == HTH_BF16,
                                  .y_bf16 = y.dtype == HTH_BF16,
                                  .bias = lin->bias != NULL ? lin->bias->value : NULL,
                                  .pre = lin->pre.data,
                                  .residual = lin->residual.data,
                                  .y = y.data,
                                  .ld_pre = lin->pre.ld,
                                  .ld_residual = lin->residual.ld,
                                  .ldy = y.ld};
    return product_run(ex, &p, x);
}

enum hth_err hth_packed_linear_backward_data(struct hth_exec *ex, const struct hth_linear_back *lin,
                                             struct hth_view dy, struct hth_view dx)
{
    struct packed_product p = {.isa = hth_packed_isa_of(ex->be), .n = dx.cols};
    p.transposed = !hth_packed_image_pays(lin->w, blocks_of(p.isa, dy));
    HTH_TRY(hth_packed_image(ex, lin->w, p.transposed ? HTH_IMAGE_FORWARD : HTH_IMAGE_BACKWARD,
                             &p.panels));
    if (lin->bias != NULL)
        HTH_TRY(hth_weight_grad_ready(lin->bias));
    p.end = (struct hth_tile_end){.act = lin->act,
                                  .backward = true,
                                  .pre_bf16 = lin->pre.dtype == HTH_BF16,
                                  .y_bf16 = dx.dtype == HTH_BF16,
                                  .sums = lin->bias != NULL ? lin->bias->grad : NULL,
                                  .pre = lin->pre.data,
                                  .residual = lin->residual.data,
                                  .y = dx.data,
                                  .ld_pre = lin->pre.ld,
                                  .ld_residual = lin->residual.ld,
                                  .ldy = dx.ld};
    return product_run(ex, &p, dy);
}

/* -- products over the units of a batch: C (+)= A^T B ------------------------------------- */

/* Units of K at a time: 16 KiB of a tile of A, which each part packs on its own stack. */
#define OUTER_UNITS  256
#define STREAM_BYTES ((size_t)8 << 20)
#define EXPECT_UNITS 32                  /* a shorter tile ends before its prefetches arrive */
#define OUTER_BYTES  ((size_t)384 << 10) /* of packed columns of B */
#define KEPT_UNITS   128                 /* shorter ones are repacked as fast */
#define KEPT_BYTES   ((size_t)6 << 20)   /* of packed columns of A: 4096 of 512 bf16 numbers */

struct outer {
    const struct hth_packed_isa *isa;
    struct hth_view a, b; /* of as many rows */
    float *c;             /* [a.cols, b.cols] */
    size_t ldc;
    bool accumulate;
    uint32_t k0, k;        /* rows of A and B in this chunk */
    uint32_t col0, panels; /* columns of B that are packed */
    uint32_t units, parts;
    bool stream;
    uint32_t *packed; /* columns of B */
    uint32_t *kept;   /* the first `keeps` tiles of A, for all column blocks of B */
    uint32_t keeps;
    size_t kept_bytes;
};

/* Sums the last columns of C, which do not fill a tile, in a buffer. */
static void outer_edge(const struct outer *o, struct hth_tile *t, float *c, uint32_t cols)
{
    float sums[HTH_PACK_MR * HTH_PACK_NR] __attribute__((aligned(64))) = {0};
    HTH_ASSERT(t->rows <= HTH_PACK_MR);
    for (uint32_t r = 0; !t->fresh && r < t->rows; r++)
        memcpy(sums + r * o->isa->nr, c + r * o->ldc, cols * sizeof(float));
    t->c = sums;
    t->ldc = o->isa->nr;
    t->stream = false;
    o->isa->tile_by_units(t);
    for (uint32_t r = 0; r < t->rows; r++)
        memcpy(c + r * o->ldc, sums + r * o->isa->nr, cols * sizeof(float));
}

/* Packs `cols` columns of the chunk's rows of x, K downwards, zeros below. */
static void outer_pack(const struct outer *o, struct hth_view x, uint32_t col, uint32_t cols,
                       uint32_t *dst, uint32_t width)
{
    if (x.dtype == HTH_BF16)
        o->isa->pack_down_bf16(place(x, o->k0, col), x.ld, o->k, cols, dst, width);
    else
        o->isa->pack_down(place(x, o->k0, col), x.ld, o->k, cols, dst, width);
    size_t there = hth_units(o->isa, o->k);
    memset(dst + there * width, 0, (o->units - there) * width * sizeof(*dst));
}

/* Packs a tile of A with the first column block of B and keeps it for the others: a row of x lies
 * far from the next, and packing waits for each. The last tiles of a wide x are repacked on the
 * stack. */
static uint32_t *outer_kept(const struct outer *o, uint32_t tile)
{
    return tile < o->keeps ? o->kept + (size_t)tile * o->units * o->isa->width : NULL;
}

/* Computes tile i of A's columns, rows first .. first + rows of C: the panels lie side by side, so
 * it writes C along its rows. */
static void outer_tile(const struct outer *o, uint32_t tile, uint32_t first, uint32_t rows)
{
    uint32_t here[OUTER_UNITS * HTH_PACK_MR] __attribute__((aligned(64)));
    uint32_t nr = o->isa->nr, n = o->b.cols, *kept = outer_kept(o, tile);
    uint32_t *a = kept != NULL ? kept : here, *next = outer_kept(o, tile + 1);
    if (kept == NULL || o->col0 == 0) {
        outer_pack(o, o->a, first, rows, a, o->isa->width);
        if (o->isa->turn != NULL)
            o->isa->turn(a, o->units);
    }
    for (uint32_t i = 0; i < o->panels; i++) {
        uint32_t col = o->col0 + i * nr;
        float *c = o->c + first * o->ldc + col;
        struct hth_tile t = {.a = a,
                             .b = o->packed + (size_t)i * o->units * nr,
                             .c = c,
                             .ldc = o->ldc,
                             .ahead = next != NULL && i == 0 ? next : a,
                             .ahead_step = next != NULL && i == 0 ? o->isa->width : 0,
                             .rows = rows,
                             .units = o->units,
                             .fresh = o->k0 == 0 && !o->accumulate,
                             .stream = o->stream};
        if (i + 1 < o->panels && o->units >= EXPECT_UNITS && !o->stream)
            expect_rows(c + nr, o->ldc * sizeof(*c), rows, HTH_MIN(n - col - nr, nr) * sizeof(*c),
                        true);
        if (n - col < nr)
            outer_edge(o, &t, c, n - col);
        else
            o->isa->tile_by_units(&t);
    }
}

static void outer_part(void *arg, uint32_t part)
{
    const struct outer *o = arg;
    uint32_t m = o->a.cols, tiles = (m + o->isa->mr - 1) / o->isa->mr;
    uint32_t end = tile_first(tiles, o->parts, part + 1);
    for (uint32_t i = tile_first(tiles, o->parts, part); i < end; i++) {
        uint32_t first = tile_first(m, tiles, i);
        outer_tile(o, i, first, tile_first(m, tiles, i + 1) - first);
    }
    if (o->stream)
        o->isa->settle();
    hth_packed_leave(o->isa);
}

static uint32_t outer_units(const struct hth_packed_isa *isa, uint32_t k)
{
    return hth_groups(isa, hth_units(isa, k));
}

static uint32_t outer_panels(const struct hth_packed_isa *isa, uint32_t units)
{
    size_t panels = OUTER_BYTES / ((size_t)units * isa->nr * sizeof(uint32_t));
    return (uint32_t)HTH_MAX(panels, (size_t)1);
}

/* Bytes of the packed columns of B. */
static size_t outer_bytes(const struct hth_packed_isa *isa, uint32_t units, uint32_t n)
{
    size_t panel = (size_t)HTH_MIN(units, (uint32_t)OUTER_UNITS) * isa->nr * sizeof(uint32_t);
    return HTH_MIN(panels_of(isa, n) * panel, OUTER_BYTES);
}

/* Bytes of the packed columns of A that are worth keeping. */
static size_t kept_bytes(const struct hth_packed_isa *isa, uint32_t units, uint32_t m, uint32_t n)
{
    size_t tile = (size_t)HTH_MIN(units, (uint32_t)OUTER_UNITS) * isa->width * sizeof(uint32_t);
    size_t tiles = HTH_MIN((m + isa->mr - 1) / isa->mr, KEPT_BYTES / tile);
    bool once = panels_of(isa, n) <= outer_panels(isa, HTH_MIN(units, (uint32_t)OUTER_UNITS));
    return once || units < KEPT_UNITS ? 0 : tiles * tile;
}

/* True if the gradient would leave the cache before the optimiser reads it. It is then written past
 * the cache, which leaves the room to the images and saves reading the old lines. */
static bool outer_streams(const struct outer *o)
{
    return (size_t)o->a.cols * o->b.cols * sizeof(float) >= STREAM_BYTES && !o->accumulate &&
           o->a.rows <= OUTER_UNITS * o->isa->pair && on_lines(o->c, o->ldc * sizeof(float));
}

/* A panel of B with this many rows is worth a helper. */
#define SHARED_ROWS 128

static void outer_pack_panel(void *arg, uint32_t i)
{
    const struct outer *o = arg;
    uint32_t nr = o->isa->nr, col = o->col0 + i * nr;
    outer_pack(o, o->b, col, HTH_MIN(o->b.cols - col, nr), o->packed + (size_t)i * o->units * nr,
               nr);
}

static void outer_block(struct hth_exec *ex, struct outer *o)
{
    uint32_t nr = o->isa->nr, m = o->a.cols;
    hth_team_run(o->k >= SHARED_ROWS ? ex->team : NULL, o->panels, outer_pack_panel, o);
    uint32_t tiles = (m + o->isa->mr - 1) / o->isa->mr;
    uint64_t cols = (uint64_t)o->panels * nr;
    o->keeps = (uint32_t)(o->kept_bytes / ((size_t)o->units * o->isa->width * sizeof(uint32_t)));
    o->parts = parts_of(ex, m * cols * o->k, tiles);
    hth_team_run(ex->team, o->parts, outer_part, o);
}

/* Runs the product; the caller has set a, b, c, ldc and accumulate. */
static enum hth_err outer_run(struct hth_exec *ex, struct outer *o)
{
    const struct hth_packed_isa *isa = o->isa = hth_packed_isa_of(ex->be);
    uint32_t k = o->a.rows, n = o->b.cols;
    size_t mark = hth_exec_mark(ex);
    o->stream = outer_streams(o);
    o->packed = hth_exec_take(ex, outer_bytes(isa, outer_units(isa, k), n));
    if (o->packed == NULL)
        return HTH_E_NO_MEMORY;
    o->kept_bytes = kept_bytes(isa, outer_units(isa, k), o->a.cols, n);
    o->kept = o->kept_bytes > 0 ? hth_exec_take(ex, o->kept_bytes) : NULL;
    if (o->kept == NULL)
        o->kept_bytes = 0; /* a product without a weight has no scratch for it */
    for (o->k0 = 0; o->k0 < k; o->k0 += OUTER_UNITS * isa->pair) {
        o->k = HTH_MIN(k - o->k0, OUTER_UNITS * isa->pair);
        o->units = outer_units(isa, o->k);
        uint32_t most = outer_panels(isa, o->units), panels = panels_of(isa, n);
        for (uint32_t i = 0; i < panels; i += o->panels) {
            o->panels = HTH_MIN(most, panels - i);
            o->col0 = i * isa->nr;
            outer_block(ex, o);
        }
    }
    hth_exec_release(ex, mark);
    return HTH_OK;
}

enum hth_err hth_packed_linear_backward_weight(struct hth_exec *ex, struct hth_weight *w,
                                               struct hth_weight *bias, struct hth_view x,
                                               struct hth_view dy)
{
    if (hth_packed_factors_take(ex, w, x, dy))
        return bias != NULL ? hth_cpu_bias_grad(ex, bias, dy) : HTH_OK;
    struct outer o = {.a = x, .b = dy, .c = w->grad, .ldc = w->cols, .accumulate = !w->grad_zero};
    HTH_TRY(outer_run(ex, &o));
    w->grad_zero = false;
    return bias != NULL ? hth_cpu_bias_grad(ex, bias, dy) : HTH_OK;
}

/* -- any product, both sides packed for it ------------------------------------------------- */

static struct hth_view gemm_view(const float *data, uint32_t rows, uint32_t cols, size_t ld)
{
    return hth_view_f32((float *)(uintptr_t)data, rows, cols, (uint32_t)ld);
}

enum hth_err hth_packed_gemm(struct hth_exec *ex, const struct hth_gemm *g)
{
    if (g->form == HTH_GEMM_TN) {
        struct outer o = {.a = gemm_view(g->a, g->k, g->m, g->lda),
                          .b = gemm_view(g->b, g->k, g->n, g->ldb),
                          .c = g->c,
                          .ldc = g->ldc,
                          .accumulate = g->accumulate};
        return outer_run(ex, &o);
    }
    const struct hth_packed_isa *isa = hth_packed_isa_of(ex->be);
    uint32_t units = hth_units(isa, g->k);
    size_t mark = hth_exec_mark(ex);
    uint32_t *b = hth_exec_take(ex, (size_t)units * isa->nr * sizeof(uint32_t));
    struct packed_product p = {.isa = isa, .units = units, .panels = b};
    uint32_t most = block_rows(isa, units);
    p.a = hth_exec_take(ex, block_bytes(isa, units, g->m));
    if (b == NULL || p.a == NULL) {
        hth_exec_release(ex, mark);
        return HTH_E_NO_MEMORY;
    }
    for (uint32_t first = 0; first < g->m; first += p.rows) {
        p.rows = HTH_MIN(g->m - first, most);
        p.x = gemm_view(g->a + first * g->lda, p.rows, g->k, g->lda);
        pack_rows(&p, 0, p.rows);
        for (uint32_t col = 0; col < g->n; col += isa->nr) {
            p.n = HTH_MIN(g->n - col, isa->nr);
            if (g->form == HTH_GEMM_NN)
                isa->pack_down(g->b + col, g->ldb, g->k, p.n, b, isa->nr);
            else
                isa->pack_along(g->b + col * g->ldb, g->ldb, g->k, p.n, b);
            float *c = g->c + first * g->ldc + col;
            p.end = (struct hth_tile_end){
                .y = c, .ldy = g->ldc, .residual = g->accumulate ? c : NULL, .ld_residual = g->ldc};
            panel_run(&p, 0, 1);
        }
    }
    hth_packed_leave(isa);
    hth_exec_release(ex, mark);
    return HTH_OK;
}

/* -- scratch ------------------------------------------------------------------------------- */

size_t hth_packed_linear_scratch(const struct hth_backend *be, uint32_t in, uint32_t out)
{
    const struct hth_packed_isa *isa = hth_packed_isa_of(be);
    uint32_t longest = hth_units(isa, HTH_MAX(in, out));
    return HTH_MAX(block_bytes(isa, longest, UINT32_MAX),
                   hth_exec_cost(outer_bytes(isa, OUTER_UNITS, out)) +
                       hth_exec_cost(kept_bytes(isa, OUTER_UNITS, in, out)));
}

/* Enough for every set: the widest panel and tile, and units of one number. */
size_t hth_packed_gemm_scratch(size_t n, size_t k)
{
    size_t row = (k / HTH_PACK_UNITS + 1) * HTH_PACK_LDA * sizeof(uint32_t);
    size_t rows =
        HTH_MAX(HTH_PACK_MR * row, HTH_MIN(HTH_PACK_BLOCK_ROWS * row, HTH_PACK_BLOCK_BYTES));
    size_t outer = (n + HTH_PACK_NR) * OUTER_UNITS * sizeof(uint32_t);
    size_t product = hth_exec_cost(rows) + hth_exec_cost(k * HTH_PACK_NR * sizeof(uint32_t));
    return HTH_MAX(product, hth_exec_cost(HTH_MIN(outer, OUTER_BYTES)));
}
