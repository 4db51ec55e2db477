/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_amxbf16.c: the packed kernels for AMX: tdpbf16ps multiplies a tile of 16 rows of A by one
 * of 16 columns of B, 16 units of K at a time; docs/kernels.md, "Tiles of AMX", draws them.
 *
 * Packing and the ends of tiles are those of AVX512_BF16. The instruction sums the pairs of its 16
 * units from zero, lower and upper halves apart, and adds both to C; so K is always cut into the
 * same 16 units, and the last are filled with zeros. Denormals count as zero and become zero.
 *
 * A chunk of a panel, 32 KiB, stays in the first cache while the tiles of a block pass by: rows of
 * A are loaded past that cache (`again`), and the sums rest in it. A product over units, and one of
 * few rows, keeps A and lets B pass.
 *
 * A thread configures its tiles when it meets the first product or another number of rows, and
 * releases them at the end of each piece of work (`leave`): the kernel then has 8 KiB less to save
 * when it switches threads.
 *
 * The tests compile this file a second time with HTH_AMX_SHIM, for machines without AMX: the
 * intrinsics are functions (tests/kernels/amx_shim.h), the vectors plain C.
 */
#define PK_MR 32
#ifdef HTH_AMX_SHIM
#include HTH_AMX_SHIM
#define PK_W 16
#else
#include "kernels/packed_avx512bf16.h"
#endif

#define PK_TABLE hth_packed_amxbf16
#define PK_NAME  "amxbf16"
#define PK_BF16  1
#define PK_GROUP 16
#define PK_TILES                                                                                   \
    .group = PK_GROUP, .width = 2 * PK_W, .chunk = 256, .block_rows = HTH_PACK_BLOCK_ROWS,         \
    .block_bytes = HTH_PACK_BLOCK_BYTES, .stream_bytes = (size_t)8 << 20, .turn = turn,            \
    .leave = leave

#include <stdint.h>

static void turn(uint32_t *a, uint32_t units);
static void leave(void);

#include "kernels/packed_template.h"

#define SIDE 16 /* rows of A, columns of B and units of K of one tile */
#define SOON (64 * NR)

/* Tiles 0 to 3 are sums, 4 and 5 rows of A, 6 and 7 columns of B. */
enum form {
    FEW,  /* up to 16 rows:                  sums 0 1 */
    TWO,  /* up to 16 rows of two panels:    sums 0 1 and 2 3 */
    TALL, /* 17 to 32 rows:                  sums 0 1 over 2 3 */
};

/* How A lies, in units: from a row to the next, from 16 units of K to the next, to row 16. */
struct walk {
    size_t row, group, lower;
    bool again; /* A is read again before B */
};

/* -- configuration ------------------------------------------------------------------------- */

struct config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Rows for which this thread's tiles are configured; 0: they are not. */
static _Thread_local uint32_t configured;

static void configure(uint32_t rows)
{
    if (configured == rows)
        return;
    struct config c = {.palette = 1};
    uint8_t upper = (uint8_t)HTH_MIN(rows, (uint32_t)SIDE);
    uint8_t lower = rows > SIDE ? (uint8_t)(rows - SIDE) : upper;
    const uint8_t tile_rows[8] = {upper, upper, lower, lower, upper, lower, SIDE, SIDE};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = tile_rows[i];
        c.row_bytes[i] = SIDE * sizeof(uint32_t);
    }
    _tile_loadconfig(&c);
    configured = rows;
}

static void leave(void)
{
    if (configured != 0)
        _tile_release();
    configured = 0;
}

/* -- sums ---------------------------------------------------------------------------------- */

/* The intrinsics of compilers don't say which memory they read. */
#define MEMORY_IS_WRITTEN() __asm__ volatile("" ::: "memory")

#define ROW_BYTES           (NR * sizeof(float)) /* of a panel */

/* The side that is read again soon goes into the first cache, the other past it. */
#define LOAD(tile, from, row_bytes, again)                                                         \
    do {                                                                                           \
        if (again)                                                                                 \
            _tile_loadd(tile, from, row_bytes);                                                    \
        else                                                                                       \
            _tile_stream_loadd(tile, from, row_bytes);                                             \
    } while (0)
#define LOAD_A(tile, from) LOAD(tile, from, w->row * sizeof(*a), w->again)
#define LOAD_B(tile, from) LOAD(tile, from, ROW_BYTES, !w->again)

INLINE void multiply(const uint32_t *a, const struct walk *w, const uint32_t *b, size_t next_panel,
                     enum form form)
{
    LOAD_A(4, a);
    LOAD_B(6, b);
    _tile_dpbf16ps(0, 4, 6);
    LOAD_B(7, b + SIDE);
    _tile_dpbf16ps(1, 4, 7);
    if (form == TALL) {
        LOAD_A(5, a + w->lower);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    } else if (form == TWO) {
        LOAD_B(6, b + next_panel);
        _tile_dpbf16ps(2, 4, 6);
        LOAD_B(7, b + next_panel + SIDE);
        _tile_dpbf16ps(3, 4, 7);
    }
}

/* The last units of K, which are less than 16: B is filled with zeros, as A is. */
INLINE void multiply_rest(const struct hth_tile *t, const uint32_t *a, const struct walk *w,
                          const uint32_t *b, enum form form)
{
    uint32_t rest[2][SIDE * NR] __attribute__((aligned(64)));
    uint32_t units = t->units % SIDE;
    for (int p = 0; p < (form == TWO ? 2 : 1); p++) {
        memcpy(rest[p], b + (size_t)p * t->next_panel, units * ROW_BYTES);
        memset(rest[p] + units * NR, 0, (SIDE - units) * ROW_BYTES);
    }
    MEMORY_IS_WRITTEN();
    multiply(a, w, rest[0], SIDE * NR, form);
}

/* C of tiles 2 and 3 begins `far` floats behind that of 0 and 1. */
INLINE void load_sums(const float *c, size_t ldc, size_t far, bool fresh, enum form form)
{
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    _tile_loadd(0, c, ldc * sizeof(*c));
    _tile_loadd(1, c + SIDE, ldc * sizeof(*c));
    if (form != FEW) {
        _tile_loadd(2, c + far, ldc * sizeof(*c));
        _tile_loadd(3, c + far + SIDE, ldc * sizeof(*c));
    }
}

INLINE void store_sums(float *c, size_t ldc, size_t far, enum form form)
{
    _tile_stored(0, c, ldc * sizeof(*c));
    _tile_stored(1, c + SIDE, ldc * sizeof(*c));
    if (form != FEW) {
        _tile_stored(2, c + far, ldc * sizeof(*c));
        _tile_stored(3, c + far + SIDE, ldc * sizeof(*c));
    }
    MEMORY_IS_WRITTEN();
}

/* Tiles can't be stored past the caches: they rest in the first and leave it from vectors. */
static void stream_sums(const struct hth_tile *t, enum form form)
{
    float sums[PK_MR * NR] __attribute__((aligned(64)));
    store_sums(sums, NR, SIDE * NR, form);
    for (uint32_t r = 0; r < t->rows; r++) {
        PK_STREAM(t->c + r * t->ldc, load(sums + r * NR));
        PK_STREAM(t->c + r * t->ldc + PK_W, load(sums + r * NR + PK_W));
    }
}

/* Prefetches this group's share of what the next panel needs. */
INLINE const uint32_t *expect(const struct hth_tile *t, const uint32_t *ahead, uint32_t left)
{
    if (t->ahead_lines == 0) {
        for (uint32_t i = 0; i < t->ahead_step; i++, ahead += LINE)
            __builtin_prefetch(ahead, 0, 2);
        return ahead;
    }
    for (uint32_t i = 1; i <= SIDE; i++) {
        __builtin_prefetch(ahead, 0, 2);
        ahead += ((left - i) & t->ahead_lines) != 0 ? LINE : t->ahead_step;
    }
    return ahead;
}

INLINE void sum(const struct hth_tile *t, const struct walk *w, enum form form)
{
    const uint32_t *a = t->a, *b = t->b, *ahead = t->ahead;
    size_t far = form == TALL ? SIDE * t->ldc : t->rows * t->ldc;
    configure(t->rows);
    MEMORY_IS_WRITTEN();
    load_sums(t->c, t->ldc, far, t->fresh, form);
    uint32_t left = t->units;
    for (; left >= SIDE; left -= SIDE, a += w->group, b += SIDE * NR) {
        multiply(a, w, b, t->next_panel, form);
        ahead = expect(t, ahead, left);
        for (uint32_t i = 1; form != TALL && i <= SIDE; i++) { /* B of few rows comes from L3 */
            __builtin_prefetch(b + SOON + i * NR);
            __builtin_prefetch(b + SOON + i * NR + LINE);
        }
    }
    if (left > 0)
        multiply_rest(t, a, w, b, form);
    if (t->stream)
        stream_sums(t, form);
    else
        store_sums(t->c, t->ldc, far, form);
}

static void tile_by_rows(const struct hth_tile *t)
{
    struct walk w = {SIDE, t->next_group, SIDE * SIDE, true};
    if (t->next_panel > 0) {
        sum(t, &w, TWO);
    } else if (t->rows <= SIDE) {
        sum(t, &w, FEW);
    } else {
        w.again = false;
        sum(t, &w, TALL);
    }
}

static void tile_by_units(const struct hth_tile *t)
{
    const struct walk w = {2 * SIDE, SIDE * 2 * SIDE, SIDE, true};
    if (t->rows <= SIDE)
        sum(t, &w, FEW);
    else
        sum(t, &w, TALL);
}

/* Each square of 16 units and 16 rows in its place. */
static void turn(uint32_t *a, uint32_t units)
{
    for (uint32_t u = 0; u < units; u += SIDE, a += SIDE * 2 * SIDE) {
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t *at = a + half * SIDE;
            uvec m[SIDE];
            for (uint32_t i = 0; i < SIDE; i++)
                m[i] = *(const uvec *)(at + (size_t)i * 2 * SIDE);
            transpose(m);
            for (uint32_t i = 0; i < SIDE; i++)
                store_units(at + (size_t)i * 2 * SIDE, m[i]);
        }
    }
}
