/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: loops over rows that the compiler vectorises; see rows.h. */
#include "experts/rows.h"

#include "core/blob.h"
#include "kernels/quant.h"

#include <string.h>

/* One clone per instruction set, chosen when the program starts; all give the same bits. A function
 * with clones needs a name that is unique in the program: clang gives its resolver external
 * linkage. */
#ifdef HTH_EXPERTS_CLONES
#define ROWS_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define ROWS_CLONES
#endif

bool hth_rows_dtype_ok(enum hth_dtype dtype)
{
    return dtype == HTH_F32 || dtype == HTH_BF16 || dtype == HTH_F16 || dtype == HTH_I8;
}

size_t hth_rows_bytes(enum hth_dtype dtype, size_t d)
{
    return dtype == HTH_I8 ? hth_quant_bytes(HTH_QUANT_INT8, d) : d * hth_dtype_size(dtype);
}

struct hth_tensor hth_rows_tensor(enum hth_dtype dtype, uint32_t rows, uint32_t d)
{
    uint64_t cols = dtype == HTH_I8 ? hth_rows_bytes(dtype, d) : d;

    return (struct hth_tensor){.dtype = dtype, .ndim = 2, .dim = {rows, cols}};
}

uint64_t hth_rows_width(const struct hth_tensor *t)
{
    const uint64_t block = HTH_QUANT_INT8_BLOCK + 2;
    uint64_t cols = t->dim[1], scales = cols / block + (cols % block != 0);

    if (t->dtype != HTH_I8)
        return cols;
    return cols % block == 1 || cols % block == 2 ? 0 : cols - 2 * scales; /* a scale, no code */
}

static uint32_t bits_of(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static float float_of(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t u = bits_of(f);
    uint32_t nan = u >> 16 | 0x40, rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;

    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

/* Converts by scaling: a multiplication by 2^112 moves the exponent and is right for subnormals. */
static float from_f16(uint16_t h)
{
    uint32_t u = (uint32_t)(h & 0x7fff) << 13;
    uint32_t finite = bits_of(float_of(u) * float_of(0x77800000));
    uint32_t mag = (h & 0x7c00) == 0x7c00 ? u | 0x7f800000 : finite;

    return float_of(mag | (uint32_t)(h & 0x8000) << 16);
}

/* Computes every case and selects one, so that the loop has no branches. */
static uint16_t to_f16(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    /* Subnormal or zero: the addition of 0.5 rounds at the right bit. */
    uint32_t small = bits_of(float_of(mag) + 0.5f) - 0x3f000000;
    uint32_t normal = (mag + 0xfff + (mag >> 13 & 1) - 0x38000000) >> 13;
    uint32_t half = mag < 0x38800000 ? small : normal;

    half = mag >= 0x47800000 ? 0x7c00 : half; /* 65536 and beyond, infinity too */
    half = mag > 0x7f800000 ? 0x7e00 : half;
    return (uint16_t)(sign | half);
}

ROWS_CLONES static void rows_widen(const void *src, enum hth_dtype dtype, size_t count, float *dst)
{
    const uint16_t *half = src;

    if (dtype == HTH_F32)
        memcpy(dst, src, count * sizeof(float));
    else if (dtype == HTH_BF16)
        for (size_t i = 0; i < count; i++)
            dst[i] = float_of((uint32_t)half[i] << 16);
    else
        for (size_t i = 0; i < count; i++)
            dst[i] = from_f16(half[i]);
}

ROWS_CLONES static void rows_narrow(const float *src, enum hth_dtype dtype, size_t count, void *dst)
{
    uint16_t *half = dst;

    if (dtype == HTH_F32)
        memcpy(dst, src, count * sizeof(float));
    else if (dtype == HTH_BF16)
        for (size_t i = 0; i < count; i++)
            half[i] = to_bf16(src[i]);
    else
        for (size_t i = 0; i < count; i++)
            half[i] = to_f16(src[i]);
}

/* Makes all of a row NaN: its first scale is a code that decoders refuse. */
static void int8_spoil(uint8_t *row, size_t d)
{
    const uint16_t nan = 0x7fc0;

    memset(row, 0, hth_rows_bytes(HTH_I8, d));
    memcpy(row + d, &nan, sizeof(nan));
}

static void int8_rows_to_f32(const uint8_t *src, size_t rows, size_t d, float *dst)
{
    size_t bytes = hth_rows_bytes(HTH_I8, d);

    for (size_t r = 0; r < rows; r++, src += bytes, dst += d)
        if (hth_quant_decode(HTH_QUANT_INT8, src, bytes, d, dst) != HTH_OK)
            for (size_t i = 0; i < d; i++)
                dst[i] = float_of(0x7fc00000);
}

static void int8_rows_from_f32(const float *src, size_t rows, size_t d, uint8_t *dst)
{
    size_t bytes = hth_rows_bytes(HTH_I8, d);

    for (size_t r = 0; r < rows; r++, src += d, dst += bytes)
        if (hth_quant_encode(HTH_QUANT_INT8, src, d, dst) != HTH_OK)
            int8_spoil(dst, d);
}

void hth_rows_to_f32(const void *src, enum hth_dtype dtype, size_t rows, size_t d, float *dst)
{
    if (dtype == HTH_I8)
        int8_rows_to_f32(src, rows, d, dst);
    else
        rows_widen(src, dtype, rows * d, dst);
}

void hth_rows_from_f32(const float *src, enum hth_dtype dtype, size_t rows, size_t d, void *dst)
{
    if (dtype == HTH_I8)
        int8_rows_from_f32(src, rows, d, dst);
    else
        rows_narrow(src, dtype, rows * d, dst);
}

ROWS_CLONES bool hth_rows_finite(const float *src, size_t count)
{
    uint32_t bad = 0;

    /* One more overflows an exponent of all ones into the sign bit. */
    for (size_t i = 0; i < count; i++)
        bad |= (bits_of(src[i]) & 0x7fffffff) + 0x00800000;
    return (bad & 0x80000000) == 0;
}

bool hth_rows_below(const float *src, size_t count, float limit)
{
    uint32_t most = bits_of(limit), bad = 0;

    /* Without their signs floats have the order of their bits. */
    for (size_t i = 0; i < count; i++)
        bad |= most - (bits_of(src[i]) & 0x7fffffff);
    return (bad & 0x80000000) == 0;
}

/* The square of a float is exact in a double, so fused and separate operations give the same
 * bits. */
ROWS_CLONES double hth_rows_sumsq(const float *src, size_t count)
{
    double lane[8] = {0}, sum = 0;
    size_t i = 0;

    for (; i + 8 <= count; i += 8)
        for (size_t j = 0; j < 8; j++)
            lane[j] += (double)src[i + j] * src[i + j];
    for (; i < count; i++)
        sum += (double)src[i] * src[i];
    for (size_t j = 0; j < 8; j++)
        sum += lane[j];
    return sum;
}

enum hth_err hth_rows_check(const struct hth_tensor *t, uint64_t rows, uint64_t d)
{
    uint64_t bytes;

    if (!hth_rows_dtype_ok(t->dtype) || t->ndim != 2 || t->dim[0] != rows || d == 0 ||
        hth_rows_width(t) != d)
        return HTH_E_BAD_SHAPE;
    HTH_TRY(hth_tensor_bytes(t, &bytes));
    if (t->blob == NULL || t->offset > t->blob->size || bytes > t->blob->size - t->offset)
        return HTH_E_BAD_SHAPE;
    return HTH_OK;
}
