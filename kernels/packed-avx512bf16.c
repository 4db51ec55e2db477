/* SPDX-License-Identifier: Apache-2.0 */
/* packed-avx512bf16.c: the packed kernels for AVX512_BF16: vdpbf16ps multiplies two pairs per lane,
 * so a unit holds two numbers. */
#include "kernels/packed-avx512.h"

#define PK_TABLE hth_packed_avx512bf16
#define PK_NAME  "avx512bf16"
#define PK_BF16  1

#define PK_DOT(acc, units, b)                                                                      \
    ((vec)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)_mm512_set1_epi32((int)(units)), (__m512bh)(b)))
#define PK_ALONG(p) ((uvec)_mm512_cvtne2ps_pbh(_mm512_loadu_ps((p) + 16), _mm512_loadu_ps(p)))
/* The conversion puts all lanes of `odd` above those of `even`; units want them side by side. */
#define PK_ACROSS(even, odd)                                                                       \
    ((uvec)_mm512_permutexvar_epi16(_mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26,   \
                                                     10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, \
                                                     19, 3, 18, 2, 17, 1, 16, 0),                  \
                                    (__m512i)_mm512_cvtne2ps_pbh((__m512)(odd), (__m512)(even))))
#define PK_NARROW(v) ((hvec)_mm512_cvtneps_pbh((__m512)(v)))
/* 14 bits, where the sum behind x has 8. */
#define PK_INVERSE(x) ((vec)_mm512_rcp14_ps((__m512)(x)))
#include "kernels/packed-template.h"
