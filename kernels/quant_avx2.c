/* SPDX-License-Identifier: Apache-2.0 */
/* quant_avx2.c: the loops of quant.h for AVX2, FMA and F16C. */
#define QUANT_TABLE hth_quantops_avx2
#define QUANT_ISA   "avx2"
#include "kernels/quant_template.h"
