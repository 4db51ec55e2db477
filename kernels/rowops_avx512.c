/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rowops_avx512.c: the same loops compiled for AVX-512. Nothing here may run before
 * hth_isa_runs() has looked at the CPU.
 */
#define ROWOPS_TABLE hth_rowops_avx512
#define ROWOPS_WIDTH 16
#include "kernels/rowops_template.h"
