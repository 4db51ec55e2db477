/* SPDX-License-Identifier: Apache-2.0 */
/* packed-avx512.c: the packed kernels for AVX-512, fp32. */
#include "kernels/packed-avx512.h"

#define PK_TABLE hth_packed_avx512
#define PK_NAME  "avx512"
#define PK_BF16  0
#include "kernels/packed-template.h"
