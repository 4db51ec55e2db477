/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd.h: private to gating/. Helpers of loops that the compiler vectorises once per instruction
 * set; the program picks one when it starts. All give the same bits: sums run in HTH_LANES fixed
 * lanes that are folded in one order, contraction is off, and the exponential is plain float
 * arithmetic, because the results of libm differ between versions.
 */
#ifndef HTH_GATING_SIMD_H
#define HTH_GATING_SIMD_H

#include "core/base.h"

#include <math.h>
#include <string.h>

/* A function with clones needs a name that is unique in the whole program, static or not: clang
 * gives its resolver external linkage. */
#ifdef HTH_GATING_CLONES
#define HTH_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define HTH_CLONES
#endif

#define HTH_LANES 16

/* Folds the lanes pairwise: the one order in which partial sums are added. */
static inline float hth_lanes_sum(float *lane)
{
    for (size_t half = HTH_LANES / 2; half > 0; half /= 2) {
        for (size_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    }
    return lane[0];
}

static inline float hth_lanes_max(const float *lane)
{
    float max = lane[0];
    for (size_t l = 1; l < HTH_LANES; l++)
        max = lane[l] > max ? lane[l] : max;
    return max;
}

/* e^x for x <= 0, -INFINITY included; 0 below -87. Cody-Waite reduction to |r| <= ln(2) / 2, then
 * the Cephes polynomial of degree 7; at most 2 ulp off. x must not be NaN. */
static inline float hth_exp_neg(float x)
{
    float clamped = x < -87.0f ? -87.0f : x;
    /* Adding and subtracting 1.5 * 2^23 rounds to the nearest integer. */
    float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;
    float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * r * r + r) + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23; /* 2^n; n >= -126 */
    float scale;
    memcpy(&scale, &bits, sizeof(scale));
    return x < -87.0f ? 0.0f : p * scale;
}

/* 1 when the float is NaN or infinite, from its bits: an integer test, which vectorises. */
static inline uint32_t hth_not_finite(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (bits & 0x7f800000u) == 0x7f800000u;
}

/* Non-zero when any of n floats is NaN or infinite. */
uint32_t hth_gating_any_not_finite(const float *x, size_t n);

#endif
