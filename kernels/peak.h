/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peak.h: the peak rate of multiply-adds of one core, with which kernels are compared.
 *
 * Each kind is a loop of independent fused multiply-adds on registers alone: no memory access, and
 * enough sums to hide each addition's latency. The caller times it just beside the kernel that it
 * compares, because the clock of a core changes with its load and its temperature.
 */
#ifndef HTH_KERNELS_PEAK_H
#define HTH_KERNELS_PEAK_H

#include "core/base.h"

enum hth_peak {
    HTH_PEAK_PLAIN, /* fp32, C compiled for the oldest core of this family */
    HTH_PEAK_AVX2,  /* fp32 */
    HTH_PEAK_AVX512,
    HTH_PEAK_BF16, /* AVX512_BF16: pairs of bf16 products added to fp32 */
    HTH_PEAKS
};

/* True if this CPU has the instructions. */
bool hth_peak_usable(enum hth_peak kind);
/* Runs the loop `rounds` times and returns the number of floating point operations (a multiply-add
 * counts two). 0 where it is not usable. */
double hth_peak_run(enum hth_peak kind, uint32_t rounds);

#endif
