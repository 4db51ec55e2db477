/* SPDX-License-Identifier: Apache-2.0 */
/*
 * math64.c: textbook series after argument reduction; math64.h has the reason. Compiled with
 * contraction off.
 */
#include "kernels/math64.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/elements.h"

static double power_of_two(int n)
{
    uint64_t bits = (uint64_t)(n + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

double hth_exp64(double x)
{
    if (x != x)
        return x;
    if (x < -745.0)
        return 0.0;
    if (x > 709.75)
        return (double)INFINITY;
    double n = (x * 1.4426950408889634 + HTH_ROUND_MAGIC) - HTH_ROUND_MAGIC;
    double r = (x - n * HTH_LN2_HI) - n * HTH_LN2_LO;
    /* Taylor to r^13 / 13!, |r| <= 0.347: the next term is below 1e-17. */
    double p = 1.0;
    for (int k = 13; k >= 1; k--)
        p = 1.0 + p * r / k;
    /* Two factors, so that subnormal results come out right. */
    int half = (int)n / 2;
    return p * power_of_two(half) * power_of_two((int)n - half);
}

double hth_log64(double x)
{
    if (!(x > 0.0))
        return x == 0.0 ? -(double)INFINITY : (double)NAN;
    if (!isfinite(x))
        return x;
    return hth_el_log64(x);
}

void hth_sincos64(double x, double *sine, double *cosine)
{
    hth_el_sincos64(x, sine, cosine);
}
