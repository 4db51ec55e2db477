/* SPDX-License-Identifier: Apache-2.0 */
/* rowops-avx2.c: the same loops compiled for AVX2 and FMA. Nothing here may run before
 * hth_rowops_fast() has looked at the CPU. */
#define ROWOPS_TABLE hth_rowops_avx2
#define ROWOPS_WIDTH 8
#include "kernels/rowops-template.h"
