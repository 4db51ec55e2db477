/* SPDX-License-Identifier: Apache-2.0 */
/*
 * isa.h: which instruction sets this CPU runs: the names that choose a table of loops. Tests and
 * measurements that visit all tables take the names from here.
 *
 *   generic      plain C, any CPU
 *   avx2         AVX2, FMA and F16C
 *   avx512       and AVX-512 F, BW, DQ, VL
 *   avx512bf16   and AVX512_BF16
 *   amxbf16      and AMX tiles of bf16, if the kernel lets this process use them (kernels/amx.h)
 */
#ifndef HTH_KERNELS_ISA_H
#define HTH_KERNELS_ISA_H

#include <stdbool.h>
#include <stddef.h>

/* The names above in that order; NULL from their end on. */
const char *hth_isa_name(size_t i);
/* True if this CPU runs the set; false for unknown names. */
bool hth_isa_runs(const char *name);
/* The reason why it does not run here: the hardware, or the kernel's permission. NULL: it runs. */
const char *hth_isa_why_not(const char *name);

#endif
