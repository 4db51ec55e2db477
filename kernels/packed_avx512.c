/* SPDX-License-Identifier: Apache-2.0 */
/* packed_avx512.c: the packed kernels for AVX-512, fp32. */
#include "kernels/packed_avx512.h"

#define PK_TABLE hth_packed_avx512
#define PK_NAME  "avx512"
#define PK_BF16  0
/* The estimate has 14 bits; a step of Newton's method doubles them, at a third of a division's
 * cost. */
static inline __attribute__((always_inline)) __m512 inverse(__m512 x)
{
    __m512 y = _mm512_rcp14_ps(x);
    return y * (2.0f - x * y);
}
#define PK_INVERSE(x) ((vec)inverse((__m512)(x)))
#include "kernels/packed_template.h"
