/* SPDX-License-Identifier: Apache-2.0 */
/* packed_avx2.c: the packed kernels for AVX2 and FMA: 16 registers, 12 of them sums. */
#include <immintrin.h>

#define PK_TABLE hth_packed_avx2
#define PK_NAME  "avx2"
#define PK_W     8
#define PK_MR    6
#define PK_BF16  0

/* Lanes below n; masked loads and stores do not touch the others. */
#define MASK(n)                                                                                    \
    _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#define PK_LOAD_N(p, n)     ((vec)_mm256_maskload_ps(p, MASK(n)))
#define PK_STORE_N(p, n, v) _mm256_maskstore_ps(p, MASK(n), (__m256)(v))
/* If one operand is NaN, these return the second. */
#define PK_MAX(limit, v) ((vec)_mm256_max_ps(_mm256_set1_ps(limit), (__m256)(v)))
#define PK_MIN(limit, v) ((vec)_mm256_min_ps(_mm256_set1_ps(limit), (__m256)(v)))
#define PK_STREAM(p, v)  _mm256_stream_ps(p, (__m256)(v))
#define PK_SETTLE()      _mm_sfence()
#include "kernels/packed_template.h"
