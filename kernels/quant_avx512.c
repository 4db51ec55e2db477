/* SPDX-License-Identifier: Apache-2.0 */
/* quant_avx512.c: the loops of quant.h for AVX-512 (F, BW, DQ, VL). */
#define QUANT_TABLE hth_quantops_avx512
#define QUANT_ISA   "avx512"
#include "kernels/quant_template.h"
