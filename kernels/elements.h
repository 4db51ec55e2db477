/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elements.h: arithmetic of one element, shared by the loops of the CPU and the kernels of the GPU.
 *
 * Everything here is a pure function of numbers: no memory, no C library beyond sqrt and frexp. So
 * one text is compiled for every instruction set and for the device, a test on one holds for the
 * others, and random numbers and number formats have the same bits everywhere. The bits of the
 * `double` functions need contraction off, as kernels/ is compiled.
 *
 * C17 and C++17 (nvcc) read it.
 */
#ifndef HTH_KERNELS_ELEMENTS_H
#define HTH_KERNELS_ELEMENTS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define HTH_ELEMENT static __device__ __forceinline__
#else
#define HTH_ELEMENT static inline __attribute__((always_inline, unused))
#endif

HTH_ELEMENT uint32_t hth_el_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof(b));
    return b;
}

HTH_ELEMENT float hth_el_float(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof(x));
    return x;
}

/* -- exponential and activations ----------------------------------------------------------- */

/* e^x for x <= 0 (tiny positive rounding errors are fine), within 2 units in the last place;
 * exactly 0 below -87, NaN for NaN. x = n ln 2 + r, |r| <= ln 2 / 2; the polynomial is that of
 * Cephes' expf. */
HTH_ELEMENT float hth_el_exp_negative(float x)
{
    float clamped = x < -87.0f ? -87.0f : x;
    float shifted = clamped * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: rounds to an integer */
    float n = shifted - 12582912.0f;
    uint32_t bits = hth_el_bits(shifted);
    float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    /* The integer sits in the low bits of `shifted`; as exponent it makes 2^n. */
    float e = p * hth_el_float((bits << 23) + UINT32_C(0x3f800000));
    return x < -87.0f ? 0.0f : e;
}

#define HTH_GELU_C 0.7978845608f
#define HTH_GELU_A 0.044715f

/* 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = c (x + a x^3). With q = e^-|2u| neither side overflows:
 * the factor is 1 / (1 + q) for u >= 0 and q / (1 + q) below. */
HTH_ELEMENT float hth_el_gelu(float x)
{
    float u2 = 2.0f * HTH_GELU_C * (x + HTH_GELU_A * x * x * x);
    float q = hth_el_exp_negative(u2 > 0.0f ? -u2 : u2);
    return x * ((u2 > 0.0f ? 1.0f : q) / (1.0f + q));
}

/* d gelu / dx = s + x s (1 - s) du2/dx with s = 1 / (1 + e^-u2), s (1 - s) = q / (1 + q)^2.
 * Beyond |x| = 16 q is 0 and x is held there, so that x^2 can't overflow into 0 * infinity. */
HTH_ELEMENT float hth_el_gelu_slope(float x)
{
    float z = x > 16.0f ? 16.0f : x;
    z = z < -16.0f ? -16.0f : z;
    float u2 = 2.0f * HTH_GELU_C * (z + HTH_GELU_A * z * z * z);
    float q = hth_el_exp_negative(u2 > 0.0f ? -u2 : u2);
    float inv = 1.0f / (1.0f + q);
    float s = (u2 > 0.0f ? 1.0f : q) * inv;
    return s + z * (q * inv * inv) * (2.0f * HTH_GELU_C * (1.0f + 3.0f * HTH_GELU_A * z * z));
}

/* -- number formats ------------------------------------------------------------------------ */

/* Round half to even by adding just under half, plus one where the kept part is odd. A NaN gets its
 * quiet bit, or its payload could round to infinity. */
HTH_ELEMENT uint16_t hth_el_to_bf16(float x)
{
    uint32_t b = hth_el_bits(x);
    uint32_t rounded = (b + 0x7fffu + (b >> 16 & 1)) >> 16;
    return (uint16_t)((b & 0x7fffffffu) > 0x7f800000u ? (b >> 16 | 0x40u) : rounded);
}

HTH_ELEMENT float hth_el_from_bf16(uint16_t h)
{
    return hth_el_float((uint32_t)h << 16);
}

HTH_ELEMENT uint16_t hth_el_to_f16(float x)
{
    uint32_t b = hth_el_bits(x), sign = b >> 16 & 0x8000u, mag = b & 0x7fffffffu;
    /* Normal: move the exponent's bias from 127 to 15 and round half to even at bit 13. */
    uint32_t normal = (mag - 0x38000000u + 0xfffu + (mag >> 13 & 1)) >> 13;
    /* Below 2^-14: adding 1/2 makes the sum's last place that of a subnormal half (2^-24), and the
     * addition does the rounding. */
    uint32_t tiny = hth_el_bits(hth_el_float(mag < 0x38800000u ? mag : 0) + 0.5f) - 0x3f000000u;
    uint32_t h = mag < 0x38800000u ? tiny : normal;
    h = mag >= 0x477ff000u ? 0x7c00u : h; /* 65520 and more round to infinity */
    h = mag > 0x7f800000u ? 0x7e00u : h;
    return (uint16_t)(sign | h);
}

HTH_ELEMENT float hth_el_from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, mag = x & 0x7fffu;
    uint32_t normal = (mag << 13) + 0x38000000u;
    uint32_t special = (mag << 13) | 0x7f800000u | (mag > 0x7c00u ? 0x400000u : 0u);
    /* Subnormal: mag * 2^-24, exact in a float. */
    uint32_t tiny = hth_el_bits((float)(int32_t)mag * 0x1p-24f);
    uint32_t b = mag < 0x400u ? tiny : normal;
    b = mag >= 0x7c00u ? special : b;
    return hth_el_float(sign | b);
}

/* -- optimisers: the equations stand in optim.h -------------------------------------------- */

struct hth_el_adam {
    float scale, b1, beta2, b2, eps, rate, root, l2, shrink;
};

HTH_ELEMENT float hth_el_adam(const struct hth_el_adam *s, float x, float g, float *m, float *v)
{
    float grad = g * s->scale + s->l2 * x;
    float mean = *m + s->b1 * (grad - *m);
    float square = s->beta2 * *v + s->b2 * (grad * grad);
    *m = mean;
    *v = square;
    return x * s->shrink - s->rate * (mean / (sqrtf(square) * s->root + s->eps));
}

/* LAMB's update before the trust ratio, from moved moments. */
struct hth_el_lamb {
    float inv_bias1, root, eps, decay;
};

HTH_ELEMENT float hth_el_lamb(const struct hth_el_lamb *s, float w, float m, float v)
{
    return m * s->inv_bias1 / (sqrtf(v) * s->root + s->eps) + s->decay * w;
}

/* -- random numbers ------------------------------------------------------------------------ */

/* Philox4x32-10 (see core/rng.h) of the counter in c. */
HTH_ELEMENT void hth_el_philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = UINT64_C(0xD2511F53) * c[0], p1 = UINT64_C(0xCD9E8D57) * c[2];
        uint32_t c1 = c[1], c3 = c[3];
        c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t)p0;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
}

/* 24 bits are exact in a float: [-1, 1) in steps of 2^-23. */
HTH_ELEMENT float hth_el_uniform(uint32_t word)
{
    return (float)(int32_t)(word >> 8) * 0x1p-23f - 1.0f;
}

/* -- double, with the same bits on every machine (math64.h says why) ----------------------- */

#define HTH_LN2_HI      0x1.62e42fee00000p-1 /* the leading 32 bits: n * HI is exact */
#define HTH_LN2_LO      0x1.a39ef35793c76p-33
#define HTH_PIO2_HI     0x1.921fb54400000p+0 /* 33 bits of pi / 2 */
#define HTH_PIO2_MI     0x1.0b4611a600000p-34
#define HTH_PIO2_LO     0x1.3198a2e037073p-69
#define HTH_ROUND_MAGIC 0x1.8p52 /* adding and subtracting it rounds to an integer */

/* log x for finite x > 0. */
HTH_ELEMENT double hth_el_log64(double x)
{
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
    return e * HTH_LN2_HI + (e * HTH_LN2_LO + 2.0 * s * sum);
}

HTH_ELEMENT void hth_el_sincos64(double x, double *sine, double *cosine)
{
    double n = (x * 0.63661977236758138 + HTH_ROUND_MAGIC) - HTH_ROUND_MAGIC;
    double r = ((x - n * HTH_PIO2_HI) - n * HTH_PIO2_MI) - n * HTH_PIO2_LO;
    double r2 = r * r, s = 1.0, c = 1.0;
    /* |r| <= pi / 4: terms to r^17 and r^18. */
    for (int k = 8; k >= 1; k--) {
        s = 1.0 - s * r2 / ((2.0 * k) * (2.0 * k + 1.0));
        c = 1.0 - c * r2 / ((2.0 * k - 1.0) * (2.0 * k));
    }
    s *= r;
    int quarter = (int)((int64_t)n & 3);
    double a = (quarter & 1) != 0 ? c : s, b = (quarter & 1) != 0 ? s : c;
    *sine = (quarter & 2) != 0 ? -a : a;
    *cosine = quarter == 1 || quarter == 2 ? -b : b;
}

/* Box-Muller on two words; the first gives a number in (0, 1]. */
HTH_ELEMENT void hth_el_normal(uint32_t w0, uint32_t w1, float scale, float out[2])
{
    double sine, cosine;
    double radius = sqrt(-2.0 * hth_el_log64(((double)w0 + 1.0) * 0x1p-32));
    hth_el_sincos64((double)w1 * (0x1p-32 * 6.283185307179586), &sine, &cosine);
    out[0] = (float)(radius * cosine * (double)scale);
    out[1] = (float)(radius * sine * (double)scale);
}

#endif
