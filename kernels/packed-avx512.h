/* SPDX-License-Identifier: Apache-2.0 */
/* packed-avx512.h: what the two sets with AVX-512 share: 32 registers, 24 of them sums. */
#include <immintrin.h>

#define PK_W                16
#define PK_MR               12

#define MASK(n)             ((__mmask16)((1u << (n)) - 1))
#define PK_LOAD_N(p, n)     ((vec)_mm512_maskz_loadu_ps(MASK(n), p))
#define PK_STORE_N(p, n, v) _mm512_mask_storeu_ps(p, MASK(n), (__m512)(v))

/* The estimate has 14 bits; one step of Newton's method doubles them, for a third of a division. */
static inline __attribute__((always_inline)) __m512 inverse(__m512 x)
{
    __m512 y = _mm512_rcp14_ps(x);
    return y * (2.0f - x * y);
}
#define PK_INVERSE(x) ((vec)inverse((__m512)(x)))
