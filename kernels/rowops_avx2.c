/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rowops_avx2.c: the same loops compiled for AVX2 and FMA. Nothing here may run before
 * hth_isa_runs() has looked at the CPU.
 */
#define ROWOPS_TABLE hth_rowops_avx2
#define ROWOPS_WIDTH 8
#include "kernels/rowops_template.h"
