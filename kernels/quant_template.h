/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant_template.h: the loops of quant_int.h. A file that includes this defines QUANT_TABLE,
 * the name of its table, and QUANT_ISA, its text, and is compiled with the flags of its set. Most
 * loops are plain C that compilers vectorise; where they do not, intrinsics beside the plain loop
 * give the same bits.
 */
#include "kernels/quant_int.h"

#include <math.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "formats are little-endian");

#ifdef __clang__
#define VECTOR_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTOR_LOOP _Pragma("GCC ivdep")
#endif
#define ALWAYS    static inline __attribute__((always_inline))

#define MAGNITUDE 0x7fffffffu
#define BLOCK     HTH_QUANT_INT8_BLOCK
#define CHUNK     1024 /* floats that stay in the first cache between two loops */

typedef uint16_t u16_any __attribute__((aligned(1), may_alias));
typedef float f32_any __attribute__((aligned(1), may_alias));

ALWAYS uint32_t bits_of(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof(b));
    return b;
}

ALWAYS float float_of(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof(x));
    return x;
}

/* Nearest even integer of |x| < 2^22, as its low bits. */
ALWAYS uint32_t round_bits(float x)
{
    return bits_of(x + 12582912.0f); /* 1.5 * 2^23: the sum's last place is 1 */
}

ALWAYS void put(struct hth_quant_out o, size_t i, float v)
{
    o.y[i] = o.add ? o.y[i] + o.alpha * v : v;
}

/* Without signs the bits have the same order as signed numbers, whose maximum every set has. */
static uint32_t max_bits(size_t n, const void *floats)
{
    const f32_any *x = floats;
    int32_t m = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t b = (int32_t)(bits_of(x[i]) & MAGNITUDE);
        m = b > m ? b : m;
    }
    return (uint32_t)m;
}

static uint32_t max_bits16(size_t n, const uint8_t *x)
{
    const u16_any *h = (const u16_any *)x;
    int16_t m = 0;
    for (size_t i = 0; i < n; i++) {
        int16_t b = (int16_t)(h[i] & 0x7fffu);
        m = b > m ? b : m;
    }
    return (uint32_t)m;
}

/* -- floats of 32 and 16 bits -------------------------------------------------------------- */

ALWAYS void f32_out(size_t n, const uint8_t *in, struct hth_quant_out o)
{
    const f32_any *x = (const f32_any *)in;
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++)
        put(o, i, x[i]);
}

/* 65504 is binary16's largest; numbers above must not become infinite. */
ALWAYS uint16_t f16_of(float x)
{
    uint32_t b = bits_of(x), sign = b >> 16 & 0x8000u, mag = b & MAGNITUDE;
    mag = mag > 0x477fe000u ? 0x477fe000u : mag;
    uint32_t normal = (mag - 0x38000000u + 0xfffu + (mag >> 13 & 1)) >> 13;
    /* Below 2^-14: adding 1/2 makes the sum's last place that of a subnormal half. */
    uint32_t tiny = bits_of(float_of(mag < 0x38800000u ? mag : 0) + 0.5f) - 0x3f000000u;
    return (uint16_t)(sign | (mag < 0x38800000u ? tiny : normal));
}

ALWAYS float f16_to(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = h & 0x7fffu;
    uint32_t tiny = bits_of((float)(int32_t)mag * 0x1p-24f);
    return float_of(sign | (mag < 0x400u ? tiny : (mag << 13) + 0x38000000u));
}

static uint32_t f16_encode(size_t n, const float *x, uint8_t *out)
{
    u16_any *h = (u16_any *)out;
    uint32_t m = 0;
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t end = HTH_MIN(n, at + CHUNK), i = at;
        uint32_t top = max_bits(end - at, x + at);
        m = top > m ? top : m;
#if defined(__AVX512F__)
        const __m512 high = _mm512_set1_ps(65504), low = _mm512_set1_ps(-65504);
        for (; i + 16 <= end; i += 16) {
            __m512 v = _mm512_max_ps(low, _mm512_min_ps(high, _mm512_loadu_ps(x + i)));
            _mm256_storeu_si256((__m256i *)(void *)(out + 2 * i), _mm512_cvtps_ph(v, 0));
        }
#elif defined(__F16C__)
        const __m256 high = _mm256_set1_ps(65504), low = _mm256_set1_ps(-65504);
        for (; i + 8 <= end; i += 8) {
            __m256 v = _mm256_max_ps(low, _mm256_min_ps(high, _mm256_loadu_ps(x + i)));
            _mm_storeu_si128((__m128i *)(void *)(out + 2 * i), _mm256_cvtps_ph(v, 0));
        }
#endif
        VECTOR_LOOP
        for (size_t j = i; j < end; j++)
            h[j] = f16_of(x[j]);
    }
    return m;
}

ALWAYS void f16_out(size_t n, const uint8_t *in, struct hth_quant_out o)
{
    const u16_any *h = (const u16_any *)in;
    size_t i = 0;
#if defined(__AVX512F__)
    const __m512 alpha = _mm512_set1_ps(o.alpha);
    for (; i + 16 <= n; i += 16) {
        __m512 v = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(in + 2 * i)));
        if (o.add)
            v = _mm512_add_ps(_mm512_loadu_ps(o.y + i), _mm512_mul_ps(alpha, v));
        _mm512_storeu_ps(o.y + i, v);
    }
#elif defined(__F16C__)
    const __m256 alpha = _mm256_set1_ps(o.alpha);
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(in + 2 * i)));
        if (o.add)
            v = _mm256_add_ps(_mm256_loadu_ps(o.y + i), _mm256_mul_ps(alpha, v));
        _mm256_storeu_ps(o.y + i, v);
    }
#endif
    VECTOR_LOOP
    for (size_t j = i; j < n; j++)
        put(o, j, f16_to(h[j]));
}

static uint32_t bf16_encode(size_t n, const float *x, uint8_t *out)
{
    u16_any *h = (u16_any *)out;
    uint32_t m = 0;
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t end = HTH_MIN(n, at + CHUNK);
        uint32_t top = max_bits(end - at, x + at);
        m = top > m ? top : m;
        VECTOR_LOOP
        for (size_t i = at; i < end; i++) {
            uint32_t b = bits_of(x[i]), mag = b & MAGNITUDE;
            mag = mag > 0x7f7f0000u ? 0x7f7f0000u : mag; /* the largest must not round up */
            h[i] = (uint16_t)((b >> 16 & 0x8000u) | (mag + 0x7fffu + (mag >> 16 & 1)) >> 16);
        }
    }
    return m;
}

ALWAYS void bf16_out(size_t n, const uint8_t *in, struct hth_quant_out o)
{
    const u16_any *h = (const u16_any *)in;
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++)
        put(o, i, float_of((uint32_t)h[i] << 16));
}

/* -- int8 ---------------------------------------------------------------------------------- */

/* A block's scale as bf16, from the bits of its largest magnitude; 0 for one that is too small. */
ALWAYS uint32_t int8_scale(uint32_t top)
{
    uint32_t scale = (bits_of(float_of(top) / 127.0f) + 0xffffu) >> 16;
    return top < 0x04000000u ? 0 : scale; /* 2^-119 */
}

ALWAYS float int8_inverse(uint32_t scale)
{
    return scale > 0 ? 1.0f / float_of(scale << 16) : 0.0f;
}

ALWAYS uint32_t int8_block(size_t n, const float *x, uint8_t *codes, u16_any *scale)
{
    uint32_t top = max_bits(n, x), s = int8_scale(top);
    float inv = int8_inverse(s);
    *scale = (uint16_t)s;
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)round_bits(x[i] * inv);
    return top;
}

static uint32_t int8_encode(size_t n, const float *x, uint8_t *codes, uint8_t *scales)
{
    u16_any *scale = (u16_any *)scales;
    size_t i = 0, b = 0;
    uint32_t m = 0;
    for (; i + BLOCK <= n; i += BLOCK, b++) {
        uint32_t top = int8_block(BLOCK, x + i, codes + i, scale + b);
        m = top > m ? top : m;
    }
    if (i < n) {
        uint32_t top = int8_block(n - i, x + i, codes + i, scale + b);
        m = top > m ? top : m;
    }
    return m;
}

ALWAYS void int8_out(size_t n, const uint8_t *codes, const uint8_t *scales, struct hth_quant_out o)
{
    const u16_any *scale = (const u16_any *)scales;
    for (size_t at = 0; at < n; at += BLOCK) {
        float s = float_of((uint32_t)scale[at / BLOCK] << 16);
        if (at + BLOCK <= n) {
            VECTOR_LOOP
            for (size_t i = 0; i < BLOCK; i++)
                put(o, at + i, (float)(int8_t)codes[at + i] * s);
        } else {
            for (size_t i = at; i < n; i++)
                put(o, i, (float)(int8_t)codes[i] * s);
        }
    }
}

/* -- code books ---------------------------------------------------------------------------- */

/* The code nearest to q; see struct hth_dynamic. */
ALWAYS uint8_t dynamic_code(const struct hth_dynamic *d, float q)
{
    uint32_t bits = bits_of(q), mag = bits & MAGNITUDE, key = mag >> 16;
    key = key > HTH_DYNAMIC_CELL_FIRST ? key - HTH_DYNAMIC_CELL_FIRST : 0;
    uint32_t cell = d->cell[key], step = (cell >> 17) + ((mag & 0xffffu) > (cell & 0x1ffffu));
    /* Signs are random: no branch. 1 has no negative twin. */
    uint32_t sign = 0 - (bits >> 31);
    int32_t code = (int32_t)(d->zero + ((step ^ sign) - sign));
    return (uint8_t)(code & ~(code >> 31));
}

#if defined(__AVX512F__)
/* Encodes the first n / 16 * 16 values; returns their number. */
static size_t dynamic_encode_vector(const struct hth_dynamic *d, size_t n, const float *x, float m,
                                    uint8_t *codes)
{
    const __m512i first = _mm512_set1_epi32(HTH_DYNAMIC_CELL_FIRST), none = _mm512_setzero_si512();
    const __m512i zero = _mm512_set1_epi32((int)d->zero);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 q = _mm512_div_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(m));
        __m512i bits = _mm512_castps_si512(q);
        __m512i mag = _mm512_and_si512(bits, _mm512_set1_epi32(MAGNITUDE));
        __m512i key = _mm512_max_epi32(_mm512_srli_epi32(mag, 16), first);
        __m512i cell = _mm512_i32gather_epi32(_mm512_sub_epi32(key, first), d->cell, 4);
        __m512i step = _mm512_srli_epi32(cell, 17);
        __mmask16 next =
            _mm512_cmpgt_epi32_mask(_mm512_and_si512(mag, _mm512_set1_epi32(0xffff)),
                                    _mm512_and_si512(cell, _mm512_set1_epi32(0x1ffff)));
        step = _mm512_mask_add_epi32(step, next, step, _mm512_set1_epi32(1));
        __m512i code = _mm512_add_epi32(zero, step);
        code = _mm512_mask_sub_epi32(code, _mm512_movepi32_mask(bits), zero, step);
        _mm_storeu_si128((__m128i *)(void *)(codes + i),
                         _mm512_cvtepi32_epi8(_mm512_max_epi32(code, none)));
    }
    return i;
}
#elif defined(__AVX2__)
static size_t dynamic_encode_vector(const struct hth_dynamic *d, size_t n, const float *x, float m,
                                    uint8_t *codes)
{
    const __m256i first = _mm256_set1_epi32(HTH_DYNAMIC_CELL_FIRST), none = _mm256_setzero_si256();
    const __m256i zero = _mm256_set1_epi32((int)d->zero);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 q = _mm256_div_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(m));
        __m256i bits = _mm256_castps_si256(q);
        __m256i mag = _mm256_and_si256(bits, _mm256_set1_epi32(MAGNITUDE));
        __m256i key = _mm256_max_epi32(_mm256_srli_epi32(mag, 16), first);
        __m256i cell =
            _mm256_i32gather_epi32((const int *)d->cell, _mm256_sub_epi32(key, first), 4);
        /* A true comparison is -1. */
        __m256i next = _mm256_cmpgt_epi32(_mm256_and_si256(mag, _mm256_set1_epi32(0xffff)),
                                          _mm256_and_si256(cell, _mm256_set1_epi32(0x1ffff)));
        __m256i step = _mm256_sub_epi32(_mm256_srli_epi32(cell, 17), next);
        __m256i signs = _mm256_srai_epi32(bits, 31);
        step = _mm256_sub_epi32(_mm256_xor_si256(step, signs), signs);
        __m256i code = _mm256_max_epi32(_mm256_add_epi32(zero, step), none);
        __m128i words =
            _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
        _mm_storel_epi64((__m128i *)(void *)(codes + i), _mm_packus_epi16(words, words));
    }
    return i;
}
#else
static size_t dynamic_encode_vector(const struct hth_dynamic *d, size_t n, const float *x, float m,
                                    uint8_t *codes)
{
    (void)d, (void)n, (void)x, (void)m, (void)codes;
    return 0;
}
#endif

static void dynamic_encode(const struct hth_dynamic *d, size_t n, const float *x, float m,
                           uint8_t *codes)
{
    float q[CHUNK]; /* a loop of divisions alone is vectorised in every set */
    for (size_t at = dynamic_encode_vector(d, n, x, m, codes); at < n; at += CHUNK) {
        size_t count = HTH_MIN(n - at, (size_t)CHUNK);
        VECTOR_LOOP
        for (size_t i = 0; i < count; i++)
            q[i] = x[at + i] / m;
        for (size_t i = 0; i < count; i++)
            codes[at + i] = dynamic_code(d, q[i]);
    }
}

#ifdef __AVX512F__
/* book[code] of 16 codes, with the book in 16 registers: each permutation selects from 32 entries,
 * and the upper three bits of a code choose among eight. Faster than a gather. */
ALWAYS __m512 book_lookup(const __m512 book[16], __m512i code)
{
    __m512 v[8];
    for (int i = 0; i < 8; i++)
        v[i] = _mm512_permutex2var_ps(book[2 * i], code, book[2 * i + 1]);
    __mmask16 bit5 = _mm512_test_epi32_mask(code, _mm512_set1_epi32(32));
    __mmask16 bit6 = _mm512_test_epi32_mask(code, _mm512_set1_epi32(64));
    __mmask16 bit7 = _mm512_test_epi32_mask(code, _mm512_set1_epi32(128));
    for (int i = 0; i < 4; i++)
        v[i] = _mm512_mask_blend_ps(bit5, v[2 * i], v[2 * i + 1]);
    v[0] = _mm512_mask_blend_ps(bit6, v[0], v[1]);
    v[1] = _mm512_mask_blend_ps(bit6, v[2], v[3]);
    return _mm512_mask_blend_ps(bit7, v[0], v[1]);
}
#endif

/* book[code] * m */
ALWAYS void book_out(const float *book, size_t n, const uint8_t *codes, float m,
                     struct hth_quant_out o)
{
    size_t i = 0;
#ifdef __AVX512F__
    __m512 all[16], factor = _mm512_set1_ps(m), alpha = _mm512_set1_ps(o.alpha);
    for (int k = 0; k < 16; k++)
        all[k] = _mm512_loadu_ps(book + 16 * k);
    for (; i + 16 <= n; i += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(codes + i));
        __m512 v = _mm512_mul_ps(book_lookup(all, _mm512_cvtepu8_epi32(bytes)), factor);
        if (o.add)
            v = _mm512_add_ps(_mm512_loadu_ps(o.y + i), _mm512_mul_ps(alpha, v));
        _mm512_storeu_ps(o.y + i, v);
    }
#endif
    for (; i < n; i++)
        put(o, i, book[codes[i]] * m);
}

/* -- uniform8 ------------------------------------------------------------------------------ */

#define LANES 16

ALWAYS double fold(double lane[LANES])
{
    for (int step = LANES / 2; step > 0; step /= 2) {
        for (int i = 0; i < step; i++)
            lane[i] += lane[i + step];
    }
    return lane[0];
}

static double sum(size_t n, const float *x)
{
    double lane[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t l = 0; l < LANES; l++)
            lane[l] += (double)x[i + l];
    }
    for (size_t l = 0; i < n; i++, l++)
        lane[l] += (double)x[i];
    return fold(lane);
}

static double spread(size_t n, const float *x, float mean)
{
    double lane[LANES] = {0}, from = (double)mean;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t l = 0; l < LANES; l++)
            lane[l] += ((double)x[i + l] - from) * ((double)x[i + l] - from);
    }
    for (size_t l = 0; i < n; i++, l++)
        lane[l] += ((double)x[i] - from) * ((double)x[i] - from);
    return fold(lane);
}

static void uniform_encode(size_t n, const float *x, struct hth_uniform *u, uint8_t *codes)
{
    float mean = u->mean, inv = u->inv;
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t end = HTH_MIN(n, at + CHUNK);
        VECTOR_LOOP
        for (size_t i = at; i < end; i++) {
            float q = (x[i] - mean) * inv;
            q = q > 127.0f ? 127.0f : q;
            q = q < -128.0f ? -128.0f : q;
            codes[i] = (uint8_t)(round_bits(q) + 128u);
        }
        /* CHUNK is a multiple of 4, so element i of the tensor goes to sum i mod 4. */
        for (size_t i = at; i < end; i++)
            u->bucket[i & 3][codes[i]] += (hth_pair){(double)x[i], 1.0};
    }
}

/* -- both kinds of output ------------------------------------------------------------------ */

/* One loop that stores and one that adds, each without a test inside. */
#define BOTH(call)                                                                                 \
    do {                                                                                           \
        if (o.add) {                                                                               \
            o.add = true;                                                                          \
            call;                                                                                  \
        } else {                                                                                   \
            o.add = false;                                                                         \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

static void f32_decode(size_t n, const uint8_t *in, struct hth_quant_out o)
{
    BOTH(f32_out(n, in, o));
}

static void f16_decode(size_t n, const uint8_t *in, struct hth_quant_out o)
{
    BOTH(f16_out(n, in, o));
}

static void bf16_decode(size_t n, const uint8_t *in, struct hth_quant_out o)
{
    BOTH(bf16_out(n, in, o));
}

static void int8_decode(size_t n, const uint8_t *codes, const uint8_t *scales,
                        struct hth_quant_out o)
{
    BOTH(int8_out(n, codes, scales, o));
}

static void book_decode(const float *book, size_t n, const uint8_t *codes, float m,
                        struct hth_quant_out o)
{
    BOTH(book_out(book, n, codes, m, o));
}

const struct hth_quantops QUANT_TABLE = {
    .isa = QUANT_ISA,
    .max_bits = max_bits,
    .max_bits16 = max_bits16,
    .f32_decode = f32_decode,
    .f16_encode = f16_encode,
    .f16_decode = f16_decode,
    .bf16_encode = bf16_encode,
    .bf16_decode = bf16_decode,
    .int8_encode = int8_encode,
    .int8_decode = int8_decode,
    .dynamic_encode = dynamic_encode,
    .book_decode = book_decode,
    .sum = sum,
    .spread = spread,
    .uniform_encode = uniform_encode,
};
