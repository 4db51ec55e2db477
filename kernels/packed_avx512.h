/* SPDX-License-Identifier: Apache-2.0 */
/* packed_avx512.h: macros of the sets with AVX-512: 32 registers, 24 of them sums. */
#include <immintrin.h>

#define PK_W                16
#ifndef PK_MR
#define PK_MR 12
#endif

#define MASK(n)             ((__mmask16)((1u << (n)) - 1))
#define PK_LOAD_N(p, n)     ((vec)_mm512_maskz_loadu_ps(MASK(n), p))
#define PK_STORE_N(p, n, v) _mm512_mask_storeu_ps(p, MASK(n), (__m512)(v))

/* If one operand is NaN, these return the second. */
#define PK_MAX(limit, v) ((vec)_mm512_max_ps(_mm512_set1_ps(limit), (__m512)(v)))
#define PK_MIN(limit, v) ((vec)_mm512_min_ps(_mm512_set1_ps(limit), (__m512)(v)))
#define PK_STREAM(p, v)  _mm512_stream_ps(p, (__m512)(v))
#define PK_SETTLE()      _mm_sfence()
