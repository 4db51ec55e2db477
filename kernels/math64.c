/* SPDX-License-Identifier: Apache-2.0 */
/* math64.c: textbook series after argument reduction; see math64.h for why. Compiled with
 * contraction off. */
#include "kernels/math64.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LN2_HI      0x1.62e42fee00000p-1 /* the leading 32 bits: n * LN2_HI is exact */
#define LN2_LO      0x1.a39ef35793c76p-33
#define PIO2_HI     0x1.921fb54400000p+0 /* 33 bits of pi / 2 */
#define PIO2_MI     0x1.0b4611a600000p-34
#define PIO2_LO     0x1.3198a2e037073p-69
#define ROUND_MAGIC 0x1.8p52 /* adding and subtracting it rounds to an integer */

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
    double n = (x * 1.4426950408889634 + ROUND_MAGIC) - ROUND_MAGIC;
    double r = (x - n * LN2_HI) - n * LN2_LO;
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
    int e;
    double m = frexp(x, &e); /* exact: x = m * 2^e, m in [1/2, 1) */
    if (m < 0.70710678118654752) {
        m *= 2.0;
        e--;
    }
    /* log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172: s^21 / 21 is below 1e-17. */
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, sum = 0.0;
    for (int k = 21; k >= 1; k -= 2)
        sum = sum * s2 + 1.0 / k;
    return e * LN2_HI + (e * LN2_LO + 2.0 * s * sum);
}

void hth_sincos64(double x, double *sine, double *cosine)
{
    double n = (x * 0.63661977236758138 + ROUND_MAGIC) - ROUND_MAGIC;
    double r = ((x - n * PIO2_HI) - n * PIO2_MI) - n * PIO2_LO;
    double r2 = r * r, s = 1.0, c = 1.0;
    /* |r| <= pi / 4: terms to r^17 and r^18. */
    for (int k = 8; k >= 1; k--) {
        s = 1.0 - s * r2 / ((2.0 * k) * (2.0 * k + 1.0));
        c = 1.0 - c * r2 / ((2.0 * k - 1.0) * (2.0 * k));
    }
    s *= r;
    switch ((int64_t)n & 3) {
    case 0:
        *sine = s;
        *cosine = c;
        break;
    case 1:
        *sine = c;
        *cosine = -s;
        break;
    case 2:
        *sine = -s;
        *cosine = -c;
        break;
    default:
        *sine = -c;
        *cosine = s;
        break;
    }
}
