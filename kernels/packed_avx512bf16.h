/* SPDX-License-Identifier: Apache-2.0 */
/* packed_avx512bf16.h: macros of the two sets whose vectors are those of AVX512_BF16. */
#include "kernels/packed_avx512.h"

#include <stdint.h>

#define PK_DOT(acc, units, b)                                                                      \
    ((vec)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)_mm512_set1_epi32((int)(units)), (__m512bh)(b)))
#define PK_ALONG(p) ((uvec)_mm512_cvtne2ps_pbh(_mm512_loadu_ps((p) + 16), _mm512_loadu_ps(p)))
/* The conversion puts all lanes of `odd` above those of `even`; units need them side by side. */
#define PK_ACROSS(even, odd)                                                                       \
    ((uvec)_mm512_permutexvar_epi16(_mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26,   \
                                                     10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, \
                                                     19, 3, 18, 2, 17, 1, 16, 0),                  \
                                    (__m512i)_mm512_cvtne2ps_pbh((__m512)(odd), (__m512)(even))))
#define PK_STREAM_HALF(p, h) _mm256_stream_si256((__m256i *)(void *)(p), (__m256i)(h))
#define PK_NARROW(v)         ((hvec)_mm512_cvtneps_pbh((__m512)(v)))
/* 14 bits suffice: the product's operands have 8. */
#define PK_INVERSE(x) ((vec)_mm512_rcp14_ps((__m512)(x)))
/* Four neighbours in a row of units, [even | odd unit] of k and k + 1, become four of the
 * transposed row: the middle two change places. Then pairs of units are transposed, 8 x 8 at a
 * time. */
static inline __attribute__((always_inline)) void transpose_8x8(const uint32_t *src, uint32_t *dst)
{
    const __m512i middle =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    __m512i a[8], t[8], s[8];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(src + 32 * i), middle);
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_unpacklo_epi64(a[2 * i], a[2 * i + 1]);
        t[4 + i] = _mm512_unpackhi_epi64(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        s[2 * i] = _mm512_shuffle_i64x2(t[2 * i], t[2 * i + 1], 0x88);
        s[2 * i + 1] = _mm512_shuffle_i64x2(t[2 * i], t[2 * i + 1], 0xdd);
    }
    for (int odd = 0; odd < 2; odd++) {
        const __m512i *q = s + 4 * odd;
        uint32_t *row = dst + 32 * odd;
        _mm512_store_si512(row, _mm512_shuffle_i64x2(q[0], q[2], 0x88));
        _mm512_store_si512(row + 64, _mm512_shuffle_i64x2(q[1], q[3], 0x88));
        _mm512_store_si512(row + 128, _mm512_shuffle_i64x2(q[0], q[2], 0xdd));
        _mm512_store_si512(row + 192, _mm512_shuffle_i64x2(q[1], q[3], 0xdd));
    }
}

static inline __attribute__((always_inline)) void transpose_piece(const uint32_t *src,
                                                                  uint32_t *dst)
{
    for (int i = 0; i < 2; i++) {
        transpose_8x8(src + 256 * i, dst + 16 * i);
        transpose_8x8(src + 256 * i + 16, dst + 256 + 16 * i);
    }
}
#define PK_TRANSPOSE(src, dst) transpose_piece(src, dst)
