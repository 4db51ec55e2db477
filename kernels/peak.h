/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peak.h: the peak rate of multiply-adds of one core, with which kernels are compared and by which
 * `auto` chooses a type.
 *
 * Each kind is a loop of independent fused multiply-adds on registers alone: no memory access, and
 * enough sums to hide each addition's latency. The caller times it just beside the kernel that it
 * compares, because the clock of a core changes with its load and its temperature.
 */
#ifndef HTH_KERNELS_PEAK_H
#define HTH_KERNELS_PEAK_H

#include "core/base.h"
#include "kernels/backend.h"

enum hth_peak {
    HTH_PEAK_PLAIN, /* fp32, C compiled for the oldest core of this family */
    HTH_PEAK_AVX2,  /* fp32 */
    HTH_PEAK_AVX512,
    HTH_PEAK_BF16, /* from here on bf16. AVX512_BF16: pairs of products added to fp32 */
    HTH_PEAK_AMX,  /* tiles of 16 x 16 fp32 */
    HTH_PEAKS
};

/* "avx512": the table that uses it. */
const char *hth_peak_name(enum hth_peak kind);
/* True if this CPU has the instructions. */
bool hth_peak_usable(enum hth_peak kind);
/* The instruction of a table of kernels (kernels/isa.h) for that type. */
enum hth_peak hth_peak_of(const char *isa, enum hth_matmul compute);
/* Runs the loop `rounds` times and returns the number of floating point operations (a multiply-add
 * counts two). 0 where it is not usable. */
double hth_peak_run(enum hth_peak kind, uint32_t rounds);

/* The quicker of fp32 and bf16 by their peaks, 0 for a type that this CPU lacks. bf16 halves the
 * bytes of a weight, so fp32 must be ahead by a tenth: more than two measurements differ, and less
 * than one instruction is ahead of another. */
enum hth_matmul hth_peak_quicker(double fp32, double bf16);

#endif
