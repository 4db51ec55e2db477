/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_avx512bf16.c: the packed kernels for AVX512_BF16: vdpbf16ps multiplies two pairs per lane,
 * so a unit holds two numbers.
 */
#include "kernels/packed_avx512bf16.h"

#define PK_TABLE hth_packed_avx512bf16
#define PK_NAME  "avx512bf16"
#define PK_BF16  1
#include "kernels/packed_template.h"
