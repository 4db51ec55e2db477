/* SPDX-License-Identifier: Apache-2.0 */
/*
 * math64.h: exp, log, sine and cosine in plain double arithmetic.
 *
 * The C library's functions differ in the last bit between versions, and a trace hash covers the
 * reference kernels, initial weights, rotary tables and schedules. These use only +, -, *, / and
 * square roots, which IEEE 754 rounds the same everywhere, so that their bits never change. The
 * relative error is about 1e-15, far below that of the float they are rounded to.
 */
#ifndef HTH_KERNELS_MATH64_H
#define HTH_KERNELS_MATH64_H

/* e^x; 0 below -745, infinity above 709.7, NaN for NaN. */
double hth_exp64(double x);
/* Natural logarithm of a finite x > 0; -infinity for 0, NaN below, x for infinity and NaN. */
double hth_log64(double x);
/* For |x| <= 2^20; both at once. */
void hth_sincos64(double x, double *sine, double *cosine);

#endif
