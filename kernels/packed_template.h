/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_template.h: the packed kernels of one instruction set; docs/kernels.md explains them. A
 * file that includes this defines, beside headers of its instruction set,
 *   PK_TABLE, PK_NAME   the table it makes and the set's name
 *   PK_W, PK_MR         lanes of a vector; rows of a tile. A tile is two vectors wide
 *   PK_BF16             1: a unit is two bf16 numbers, 0: one fp32 number
 * and may define (without them plain C is used)
 *   PK_DOT(acc, units, b)       bf16: acc + the products of the units' lower and upper halves
 *   PK_ALONG(p), PK_ACROSS(even, odd)  bf16: units of 2 W numbers at p; of two vectors' lanes
 *   PK_TRANSPOSE(src, dst)           bf16: W rows of 2 W units with K and columns exchanged
 *   PK_NARROW(v)                bf16: a vector's lanes, rounded like those two
 *   PK_LOAD_N(p, n), PK_STORE_N(p, n, v)  the first n < W lanes, touching no others
 *   PK_STREAM(p, v), PK_SETTLE()  a store past the caches, and the fence after such stores
 *   PK_STREAM_HALF(p, h)        the same of bf16 numbers
 *   PK_INVERSE(x)               1 / x for 1 <= x <= 2^127
 *   PK_MAX(limit, v), PK_MIN(limit, v)  v clamped at a limit; NaN stays NaN
 *   PK_GROUP                    units that one instruction sums: rows are filled up to it
 *   PK_TILES                    the fields of a table that has tile_by_rows and tile_by_units of
 *                               its own, behind this include
 * and is compiled with the flags of the set, contraction of a * b + c allowed. The order of every
 * sum is fixed: element (i, j) adds its products in rising k, so neither a row's neighbours nor the
 * way in which work is split changes a bit.
 */
#include "kernels/packed_int.h"

#include <string.h>

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

#define NR     (2 * PK_W)
#define LINE   16 /* units of a cache line */

typedef float vec __attribute__((vector_size(4 * PK_W), aligned(4), may_alias));
typedef uint32_t uvec __attribute__((vector_size(4 * PK_W), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * PK_W), aligned(4), may_alias));
typedef uint16_t hvec __attribute__((vector_size(2 * PK_W), aligned(2), may_alias)); /* of bf16 */

INLINE vec load(const void *p)
{
    return *(const vec *)p;
}

INLINE void store(void *p, vec v)
{
    *(vec *)p = v;
}

INLINE void store_units(uint32_t *p, uvec v)
{
    *(uvec *)p = v;
}

#ifndef PK_LOAD_N
INLINE vec load_n(const float *p, uint32_t n)
{
    vec v = {0};
    memcpy(&v, p, n * sizeof(float));
    return v;
}
#define PK_LOAD_N(p, n) load_n(p, n)
#endif
#ifndef PK_STORE_N
INLINE void store_n(float *p, uint32_t n, vec v)
{
    memcpy(p, &v, n * sizeof(float));
}
#define PK_STORE_N(p, n, v) store_n(p, n, v)
#endif
#ifndef PK_STREAM
#define PK_STREAM(p, v) store(p, v)
#define PK_SETTLE()     ((void)0)
#endif
#ifndef PK_STREAM_HALF
#define PK_STREAM_HALF(p, h) (*(hvec *)(p) = (h))
#endif
#ifndef PK_INVERSE
#define PK_INVERSE(x) (1.0f / (x))
#endif

#ifndef PK_GROUP
#define PK_GROUP 1
#endif

/* Loads min(n, W) lanes; n may be 0 or negative. */
INLINE vec load_some(const float *p, int64_t n)
{
    if (n >= PK_W)
        return load(p);
    return n > 0 ? PK_LOAD_N(p, (uint32_t)n) : (vec){0};
}

/* -- units --------------------------------------------------------------------------------- */

_Static_assert(PK_GROUP == 1 || PK_GROUP == PK_W, "a group is a vector");

#define SOON_NUMBERS 512 /* of a row, prefetched: beyond a page the hardware does not */

#if PK_BF16
#define PAIR 2
#ifndef PK_ALONG
/* Nearest, ties to even; NaN stays NaN (kernels/rowops_template.h has the same). */
INLINE uint32_t bf16_of(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof(b));
    uint32_t rounded = (b + 0x7fffu + (b >> 16 & 1)) >> 16;
    return (b & 0x7fffffffu) > 0x7f800000u ? (b >> 16 | 0x40u) : rounded;
}

INLINE uvec along(const float *p)
{
    uvec u;
    for (int l = 0; l < PK_W; l++)
        u[l] = bf16_of(p[2 * l]) | bf16_of(p[2 * l + 1]) << 16;
    return u;
}

INLINE uvec across(vec even, vec odd)
{
    uvec u;
    for (int l = 0; l < PK_W; l++)
        u[l] = bf16_of(even[l]) | bf16_of(odd[l]) << 16;
    return u;
}

INLINE hvec narrow(vec v)
{
    hvec h;
    for (int l = 0; l < PK_W; l++)
        h[l] = (uint16_t)bf16_of(v[l]);
    return h;
}

INLINE vec dot(vec acc, uvec a, uvec b)
{
    const uvec upper = (uvec){0} + 0xffff0000u;
    acc += (vec)(a << 16) * (vec)(b << 16);
    return acc + (vec)(a & upper) * (vec)(b & upper);
}
#define PK_ALONG(p)           along(p)
#define PK_ACROSS(even, odd)  across(even, odd)
#define PK_NARROW(v)          narrow(v)
#define PK_DOT(acc, units, b) dot(acc, (uvec){0} + (units), b)
#endif

/* The first n of W bf16 numbers, each in the lower half of a lane; zeros after them. */
INLINE uvec halves(const uint16_t *p, int64_t n)
{
    hvec h = {0};
    if (n >= PK_W)
        h = *(const hvec *)p;
    else if (n > 0)
        memcpy(&h, p, (size_t)n * sizeof(*p));
    return __builtin_convertvector(h, uvec);
}

#if PK_GROUP > 1
static void pack_row_bf16(const uint16_t *src, uint32_t k, uint32_t *dst, size_t step)
{
    uint32_t at = 0;
    for (; at + 2 * PK_GROUP <= k; at += 2 * PK_GROUP, dst += step) {
        uvec units; /* src is aligned to 2 bytes only */
        __builtin_prefetch(src + at + 2 * SOON_NUMBERS);
        memcpy(&units, src + at, sizeof(units));
        store_units(dst, units);
    }
    if (at < k) {
        uvec last = {0};
        memcpy(&last, src + at, (k - at) * sizeof(*src));
        store_units(dst, last);
    }
}
#else
static void pack_row_bf16(const uint16_t *src, uint32_t k, uint32_t *dst, size_t step)
{
    (void)step;
    if (k % 2 != 0)
        dst[k / 2] = 0;
    memcpy(dst, src, k * sizeof(*src));
}
#endif

static void pack_down_bf16(const uint16_t *src, size_t ld, uint32_t k, uint32_t cols, uint32_t *dst,
                           uint32_t width)
{
    for (uint32_t r = 0; r < k; r += 2) {
        const uint16_t *even = src + (size_t)r * ld;
        __builtin_prefetch(even + 16 * ld);
        __builtin_prefetch(even + 17 * ld);
        for (uint32_t j = 0; j < width; j += PK_W) {
            int64_t left = (int64_t)cols - j;
            uvec lower = halves(even + j, left);
            uvec upper = r + 1 < k ? halves(even + ld + j, left) : (uvec){0};
            store_units(dst + j, lower | upper << 16);
        }
        dst += width;
    }
}
#else
#define PAIR                  1
INLINE vec dot(vec acc, uint32_t unit, uvec b)
{
    float x;
    memcpy(&x, &unit, sizeof(x));
    return acc + x * (vec)b;
}
#define PK_ALONG(p)           ((uvec)load(p))
#define PK_ACROSS(even, odd)  ((uvec)(even))
#define PK_DOT(acc, units, b) dot(acc, units, b)
#endif

/* Makes W units from the n numbers at p, zeros behind them. */
INLINE uvec units_along(const float *p, uint32_t n)
{
    if (n >= PAIR * PK_W)
        return PK_ALONG(p);
    float some[PAIR * PK_W] = {0};
    memcpy(some, p, n * sizeof(float));
    return PK_ALONG(some);
}

static void pack_row(const float *src, uint32_t k, uint32_t *dst, size_t step)
{
    uint32_t at = 0;
    if (PK_GROUP == 1)
        step = PK_W;
    for (; at + PAIR * PK_W <= k; at += PAIR * PK_W, dst += step) {
        __builtin_prefetch(src + at + SOON_NUMBERS); /* into the next page, too */
        if (PAIR * PK_W > 16)
            __builtin_prefetch(src + at + SOON_NUMBERS + 16);
        store_units(dst, PK_ALONG(src + at));
    }
    if (at < k) {
        uvec last = units_along(src + at, k - at);
        uint32_t units = PK_GROUP > 1 ? PK_GROUP : (k - at + PAIR - 1) / PAIR;
        memcpy(dst, &last, units * sizeof(uint32_t));
    }
}

static void pack_down(const float *src, size_t ld, uint32_t k, uint32_t cols, uint32_t *dst,
                      uint32_t width)
{
    for (uint32_t r = 0; r < k; r += PAIR) {
        const float *even = src + (size_t)r * ld;
        /* Rows lie in different pages, where the hardware prefetches nothing. */
        __builtin_prefetch(even + 16 * ld);
        __builtin_prefetch(even + 16 * ld + 16);
        if (PAIR == 2) {
            __builtin_prefetch(even + 17 * ld);
            __builtin_prefetch(even + 17 * ld + 16);
        }
        bool odd = PAIR == 2 && r + 1 < k;
        for (uint32_t j = 0; j < width; j += PK_W) {
            int64_t left = (int64_t)cols - j;
            vec lower = load_some(even + j, left);
            vec upper = odd ? load_some(even + ld + j, left) : (vec){0};
            (void)upper; /* fp32 has none */
            store_units(dst + j, PK_ACROSS(lower, upper));
        }
        dst += width;
    }
}

/* Transposes: each round interleaves the first half of the rows with the second. */
#if PK_W == 16
#define ZIP_LOW(a, b)                                                                              \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b)                                                                             \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif PK_W == 8
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

INLINE void zip_rows(const uvec in[PK_W], uvec out[PK_W])
{
    UNROLL
    for (int i = 0; i < PK_W / 2; i++) {
        out[2 * i] = ZIP_LOW(in[i], in[i + PK_W / 2]);
        out[2 * i + 1] = ZIP_HIGH(in[i], in[i + PK_W / 2]);
    }
}

INLINE void transpose(uvec m[PK_W])
{
    uvec t[PK_W];
    zip_rows(m, t);
    zip_rows(t, m);
    if (PK_W == 4)
        return;
    zip_rows(m, t);
    if (PK_W == 8) {
        memcpy(m, t, sizeof(t));
        return;
    }
    zip_rows(t, m);
}

static void pack_along(const float *src, size_t ld, uint32_t k, uint32_t cols, uint32_t *dst)
{
    uint32_t units = (k + PAIR - 1) / PAIR;
    for (uint32_t u = 0; u < units; u += PK_W) {
        uint32_t left = k - PAIR * u, lines = units - u < PK_W ? units - u : PK_W;
        for (uint32_t j = 0; j < NR; j += PK_W) {
            uvec m[PK_W];
            for (uint32_t l = 0; l < PK_W; l++)
                m[l] = j + l < cols ? units_along(src + (size_t)(j + l) * ld + PAIR * u, left)
                                    : (uvec){0};
            transpose(m);
            for (uint32_t l = 0; l < lines; l++)
                store_units(dst + (size_t)(u + l) * NR + j, m[l]);
        }
    }
}

#if PK_BF16
#ifndef PK_TRANSPOSE
/* Rows of units are [W][2 W]: it transposes units, then two neighbours exchange halves. */
INLINE void transpose_units(const uint32_t *src, uint32_t *dst)
{
    for (uint32_t j = 0; j < NR; j += PK_W) {
        uvec m[PK_W];
        for (uint32_t u = 0; u < PK_W; u++)
            m[u] = *(const uvec *)(src + (size_t)u * NR + j);
        transpose(m);
        for (uint32_t l = 0; l < PK_W; l += 2, dst += NR) {
            uvec even = (m[l] & 0xffffu) | m[l + 1] << 16;
            uvec odd = m[l] >> 16 | (m[l + 1] & 0xffff0000u);
            store_units(dst, ZIP_LOW(even, odd));
            store_units(dst + PK_W, ZIP_HIGH(even, odd));
        }
    }
}
#define PK_TRANSPOSE(src, dst) transpose_units(src, dst)
#endif

static void transpose_some(const uint32_t *src, uint32_t units, uint32_t *dst)
{
    uint32_t some[PK_W * NR] __attribute__((aligned(64))) = {0};
    if (units < PK_W)
        src = memcpy(some, src, (size_t)units * NR * sizeof(*src));
    PK_TRANSPOSE(src, dst);
}
#else
static void transpose_some(const uint32_t *src, uint32_t units, uint32_t *dst)
{
    pack_along((const float *)(const void *)src, NR, NR, units, dst);
}
#endif

/* -- tiles --------------------------------------------------------------------------------- */

#define PAIR_ROWS (PK_MR / 2)

#ifdef PK_TILES
static void tile_by_rows(const struct hth_tile *t);
static void tile_by_units(const struct hth_tile *t);
#else
#define PK_TILES                                                                                   \
    .group = PK_GROUP, .width = PK_W, .chunk = HTH_PACK_UNITS, .block_rows = 96,                   \
    .block_bytes = (size_t)816 << 10, .stream_bytes = SIZE_MAX

#define FEW_ROWS 8

/* Unit u of row r of A is a[r * row_step + u * unit_step]; all constants where this is inlined.
 * With two panels, C of the second lies below that of the first. */
INLINE void tile(const struct hth_tile *t, const int rows, const int panels, const size_t row_step,
                 const size_t unit_step)
{
    vec acc[PK_MR][2];
    UNROLL
    for (int i = 0; i < rows * panels; i++) {
        const float *c = t->c + (size_t)i * t->ldc;
        acc[i][0] = t->fresh ? (vec){0} : load(c);
        acc[i][1] = t->fresh ? (vec){0} : load(c + PK_W);
    }
    const uint32_t *a = t->a, *b = t->b, *ahead = t->ahead;
    const size_t ahead_step = t->ahead_step;
    const uint32_t ahead_lines = t->ahead_lines;
    /* B comes from L2; for a batch of one tile with few rows, from L3 or memory. */
    const size_t soon = (unit_step == 1 && rows <= FEW_ROWS ? 64 : 16) * NR;
    for (uint32_t left = t->units; left > 0; left--) {
        UNROLL
        for (int p = 0; p < panels; p++) {
            const uint32_t *bp = b + (size_t)p * t->next_panel;
            /* Prefetched ahead, across pages, too. */
            __builtin_prefetch(bp + soon);
            if (4 * NR > 64)
                __builtin_prefetch(bp + soon + 16);
            uvec b0 = *(const uvec *)bp, b1 = *(const uvec *)(bp + PK_W);
            UNROLL
            for (int r = 0; r < rows; r++) {
                uint32_t unit = a[(size_t)r * row_step];
                acc[p * rows + r][0] = PK_DOT(acc[p * rows + r][0], unit, b0);
                acc[p * rows + r][1] = PK_DOT(acc[p * rows + r][1], unit, b1);
            }
        }
        __builtin_prefetch(ahead, 0, 2);
        ahead += ((left - 1) & ahead_lines) != 0 ? LINE : ahead_step;
        a += unit_step;
        b += NR;
    }
    UNROLL
    for (int i = 0; i < rows * panels; i++) {
        float *c = t->c + (size_t)i * t->ldc;
        if (t->stream) {
            PK_STREAM(c, acc[i][0]);
            PK_STREAM(c + PK_W, acc[i][1]);
        } else {
            store(c, acc[i][0]);
            store(c + PK_W, acc[i][1]);
        }
    }
}

#define ROWS(n)  ((n) < PK_MR ? (n) : PK_MR)
#define TILE_OF(n, row_step, unit_step)                                                            \
    case n:                                                                                        \
        tile(t, ROWS(n), 1, row_step, unit_step);                                                  \
        break
#define TILES_TO_12(row_step, unit_step)                                                           \
    TILE_OF(1, row_step, unit_step);                                                               \
    TILE_OF(2, row_step, unit_step);                                                               \
    TILE_OF(3, row_step, unit_step);                                                               \
    TILE_OF(4, row_step, unit_step);                                                               \
    TILE_OF(5, row_step, unit_step);                                                               \
    TILE_OF(6, row_step, unit_step);                                                               \
    TILE_OF(7, row_step, unit_step);                                                               \
    TILE_OF(8, row_step, unit_step);                                                               \
    TILE_OF(9, row_step, unit_step);                                                               \
    TILE_OF(10, row_step, unit_step);                                                              \
    TILE_OF(11, row_step, unit_step);                                                              \
    TILE_OF(12, row_step, unit_step)

/* Few rows mean few sums, each waiting for its last addition: then two panels are summed at a
 * time. */
#define PAIR_OF(n)                                                                                 \
    case n:                                                                                        \
        tile(t, (n) < PAIR_ROWS ? (n) : PAIR_ROWS, 2, HTH_PACK_LDA, 1);                            \
        break

static void tile_pair(const struct hth_tile *t)
{
    switch (t->rows) {
        PAIR_OF(1);
        PAIR_OF(2);
        PAIR_OF(3);
        PAIR_OF(4);
        PAIR_OF(5);
        PAIR_OF(6);
    }
}

static void tile_by_rows(const struct hth_tile *t)
{
    if (t->next_panel > 0) {
        tile_pair(t);
        return;
    }
    switch (t->rows) {
        TILES_TO_12(HTH_PACK_LDA, 1);
    }
}

static void tile_by_units(const struct hth_tile *t)
{
    switch (t->rows) {
        TILES_TO_12(1, PK_W);
    }
}

#endif

static void settle(void)
{
    PK_SETTLE();
}

/* -- the end of a tile --------------------------------------------------------------------- */

INLINE vec pick(ivec mask, vec yes, vec no)
{
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

#ifndef PK_MAX
#define PK_MAX(limit, v) pick((v) < (limit), (vec){0} + (limit), v)
#define PK_MIN(limit, v) pick((v) > (limit), (vec){0} + (limit), v)
#endif

/* 1 / (1 + 2^e). 2^f on [-1/2, 1/2] is a polynomial of relative error 7.5e-8 (Remez), the integer
 * goes into the exponent. NaN stays NaN. */
INLINE vec logistic2(vec e)
{
    const vec magic = (vec){0} + 12582912.0f; /* 1.5 * 2^23: rounds to an integer */
    e = PK_MAX(-126.0f, e);
    e = PK_MIN(126.0f, e);
    vec shifted = e + magic, f = e - (shifted - magic);
    vec p = f * 1.3276471979478776e-3f + 9.67554133421605e-3f;
    p = p * f + 5.550713273542586e-2f;
    p = p * f + 2.4022119723848476e-1f;
    p = p * f + 6.931469670647331e-1f;
    p = p * f + 1.0f;
    vec power = (vec)((uvec)p + ((uvec)shifted << 23));
    return PK_INVERSE(1.0f + power);
}

/* gelu(x) = x / (1 + 2^-t) with t = 2 log2(e) c (x + a x^3). Below -16 it is 0 to the last bit, and
 * x is clamped there; above, a t of infinity is harmless. */
#define GELU_T1 2.302208198f  /* 2 log2(e) 0.7978845608 */
#define GELU_T3 0.1029432397f /* 0.044715 of it */
#define LN2     0.6931471806f

INLINE vec gelu(vec x)
{
    x = PK_MAX(-16.0f, x);
    return x * logistic2(x * (x * x * -GELU_T3 - GELU_T1));
}

/* s + x s (1 - s) du/dx. Beyond |x| = 16 s is 0 or 1, and x is clamped there so that x^2 can't
 * overflow into 0 * infinity. */
INLINE vec gelu_slope(vec x)
{
    x = PK_MAX(-16.0f, x);
    x = PK_MIN(16.0f, x);
    vec x2 = x * x, s = logistic2(x * (x2 * -GELU_T3 - GELU_T1));
    return s + x * (s - s * s) * (x2 * (3 * GELU_T3 * LN2) + GELU_T1 * LN2);
}

/* Loads n <= W elements of a row of floats, or of bf16 numbers. */
INLINE vec get(const void *row, size_t at, uint32_t n, bool bf16)
{
#if PK_BF16
    if (bf16)
        return (vec)(halves((const uint16_t *)row + at, n) << 16);
#endif
    (void)bf16; /* sets of fp32 have none */
    const float *p = (const float *)row + at;
    return n >= PK_W ? load(p) : PK_LOAD_N(p, n);
}

INLINE void put(void *row, size_t at, uint32_t n, bool bf16, bool past, vec v)
{
#if PK_BF16
    if (bf16) {
        uint16_t *half = (uint16_t *)row + at;
        hvec h = PK_NARROW(v);
        if (n < PK_W)
            memcpy(half, &h, n * sizeof(*half));
        else if (past)
            PK_STREAM_HALF(half, h);
        else
            *(hvec *)half = h;
        return;
    }
#endif
    (void)bf16;
    float *p = (float *)row + at;
    if (n < PK_W)
        PK_STORE_N(p, n, v);
    else if (past)
        PK_STREAM(p, v);
    else
        store(p, v);
}

INLINE vec end_forward(vec v, size_t r, size_t col, uint32_t n, const struct hth_tile_end *e,
                       enum hth_act act)
{
    if (e->bias != NULL)
        v += get(e->bias, col, n, false);
    if (e->pre != NULL)
        put(e->pre, r * e->ld_pre + col, n, e->pre_bf16, e->stream, v);
    if (act == HTH_ACT_GELU)
        v = gelu(v);
    else if (act == HTH_ACT_RELU)
        v = pick(v < 0.0f, (vec){0}, v); /* in this order NaN stays NaN */
    return v;
}

INLINE vec end_backward(vec v, size_t r, size_t col, uint32_t n, const struct hth_tile_end *e,
                        enum hth_act act)
{
    if (act == HTH_ACT_NONE)
        return v;
    vec x = get(e->pre, r * e->ld_pre + col, n, e->pre_bf16);
    if (act == HTH_ACT_GELU)
        return v * gelu_slope(x);
    return act == HTH_ACT_RELU ? pick(x <= 0.0f, (vec){0}, v) : v;
}

/* Row by row, so that a line which is written past the caches is written at once. The columns' sums
 * stay in registers. */
INLINE void finish_rows(const float *c, uint32_t rows, uint32_t cols, const struct hth_tile_end *e,
                        enum hth_act act, bool backward)
{
    bool adds = backward && e->sums != NULL;
    vec sums[2] = {{0}, {0}};
    for (uint32_t i = 0; adds && i * PK_W < cols; i++)
        sums[i] = get(e->sums, i * PK_W, cols - i * PK_W, false);
    for (uint32_t r = 0; r < rows; r++) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t col = i * PK_W, n = cols - col;
            if (col >= cols)
                break;
            vec v = load(c + r * NR + col);
            v = backward ? end_backward(v, r, col, n, e, act) : end_forward(v, r, col, n, e, act);
            if (e->residual != NULL)
                v += get(e->residual, r * e->ld_residual + col, n, false);
            put(e->y, r * e->ldy + col, n, e->y_bf16, e->stream, v);
            sums[i] += v;
        }
    }
    for (uint32_t i = 0; adds && i * PK_W < cols; i++)
        put(e->sums, i * PK_W, cols - i * PK_W, false, false, sums[i]);
}

INLINE void finish_tile(const float *c, uint32_t rows, uint32_t cols, const struct hth_tile_end *e,
                        enum hth_act act, bool backward)
{
    if (cols == NR)
        finish_rows(c, rows, NR, e, act, backward);
    else
        finish_rows(c, rows, cols, e, act, backward);
}

static void finish(const float *c, uint32_t rows, uint32_t cols, const struct hth_tile_end *e)
{
    if (e->act == HTH_ACT_GELU && e->backward)
        finish_tile(c, rows, cols, e, HTH_ACT_GELU, true);
    else if (e->act == HTH_ACT_GELU)
        finish_tile(c, rows, cols, e, HTH_ACT_GELU, false);
    else if (e->backward)
        finish_tile(c, rows, cols, e, e->act, true);
    else
        finish_tile(c, rows, cols, e, e->act, false);
}

const struct hth_packed_isa PK_TABLE = {
    .name = PK_NAME,
    .compute = PK_BF16 ? HTH_MATMUL_BF16 : HTH_MATMUL_F32,
    .mr = PK_MR,
    .nr = NR,
    PK_TILES,
    .pair = PAIR,
    .pair_rows = PAIR_ROWS,
    .tile_by_rows = tile_by_rows,
    .tile_by_units = tile_by_units,
    .settle = settle,
    .finish = finish,
    .pack_row = pack_row,
    .pack_down = pack_down,
    .pack_along = pack_along,
    .transpose = transpose_some,
#if PK_BF16
    .pack_row_bf16 = pack_row_bf16,
    .pack_down_bf16 = pack_down_bf16,
#endif
};
