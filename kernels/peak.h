/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peak.h: the most that one core can multiply and add, to hold kernels against.
 *
 * Each kind is a loop of independent fused multiply-adds on registers alone: no memory, no
 * dependence that the core could not hide. The caller times it, close to what it compares, because
 * the clock of a core moves with its load and its temperature.
 */
#ifndef HTH_KERNELS_PEAK_H
#define HTH_KERNELS_PEAK_H

#include "core/base.h"

enum hth_peak {
    HTH_PEAK_PLAIN, /* fp32, what the compiler makes of C for the oldest core of this family */
    HTH_PEAK_AVX2,  /* fp32 */
    HTH_PEAK_AVX512,
    HTH_PEAK_BF16, /* AVX512_BF16: pairs of bf16 products added to fp32 */
    HTH_PEAKS
};

/* Whether this CPU has the instructions. */
bool hth_peak_usable(enum hth_peak kind);
/* Runs the loop `rounds` times and returns the floating point operations that it did (a
 * multiply-add counts two). 0 where it is not usable. */
double hth_peak_run(enum hth_peak kind, uint32_t rounds);

#endif
