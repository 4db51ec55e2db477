/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peak.c: loops of multiply-adds on registers. A volatile takes the results, or the compiler would
 * remove the loops.
 */
#include "kernels/peak.h"

#include <string.h>

#include "kernels/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Enough independent sums to fill two pipes of latency 4 to 6; AVX2 has 16 registers in all. */
#define SUMS_WIDE   24
#define SUMS_NARROW 12

static _Thread_local volatile float keep;

typedef float four __attribute__((vector_size(16)));

static double run_plain(uint32_t rounds)
{
    four sum[SUMS_NARROW], a = {1, 1, 1, 1}, b = {1e-9f, 1e-9f, 1e-9f, 1e-9f};
    a *= 1.0f + keep * 0;
    for (int i = 0; i < SUMS_NARROW; i++)
        sum[i] = b * (float)(i + 1);
    for (uint32_t r = 0; r < rounds; r++) {
        for (int i = 0; i < SUMS_NARROW; i++)
            sum[i] = sum[i] * a + b;
    }
    for (int i = 1; i < SUMS_NARROW; i++)
        sum[0] += sum[i];
    keep = sum[0][0] * 0;
    return 2.0 * 4 * SUMS_NARROW * rounds;
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) static double run_avx2(uint32_t rounds)
{
    __m256 sum[SUMS_NARROW], a = _mm256_set1_ps(1.0f + keep * 0), b = _mm256_set1_ps(1e-9f);
    for (int i = 0; i < SUMS_NARROW; i++)
        sum[i] = _mm256_set1_ps((float)i);
    for (uint32_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS_NARROW; i++)
            sum[i] = _mm256_fmadd_ps(sum[i], a, b);
    }
    for (int i = 1; i < SUMS_NARROW; i++)
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    keep = _mm256_cvtss_f32(sum[0]) * 0;
    return 2.0 * 8 * SUMS_NARROW * rounds;
}

__attribute__((target("avx512f"))) static double run_avx512(uint32_t rounds)
{
    __m512 sum[SUMS_WIDE], a = _mm512_set1_ps(1.0f + keep * 0), b = _mm512_set1_ps(1e-9f);
    for (int i = 0; i < SUMS_WIDE; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (uint32_t r = 0; r < rounds; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < SUMS_WIDE; i++)
            sum[i] = _mm512_fmadd_ps(sum[i], a, b);
    }
    for (int i = 1; i < SUMS_WIDE; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    keep = _mm512_cvtss_f32(sum[0]) * 0;
    return 2.0 * 16 * SUMS_WIDE * rounds;
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) static double
run_bf16(uint32_t rounds)
{
    __m512 sum[SUMS_WIDE], tiny = _mm512_set1_ps(1e-9f + keep * 0);
    __m512bh a = _mm512_cvtne2ps_pbh(tiny, tiny);
    for (int i = 0; i < SUMS_WIDE; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (uint32_t r = 0; r < rounds; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < SUMS_WIDE; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], a, a);
    }
    for (int i = 1; i < SUMS_WIDE; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    keep = _mm512_cvtss_f32(sum[0]) * 0;
    return 2.0 * 32 * SUMS_WIDE * rounds;
}

#define TILE_SUMS 6 /* tiles 6 and 7 are the operands */

/* Configures eight whole tiles, and leaves none. */
__attribute__((target("amx-tile,amx-bf16"))) static double run_amx(uint32_t rounds)
{
    uint8_t config[64] = {1};
    for (int i = 0; i < 8; i++) {
        config[16 + 2 * i] = 64; /* bytes of a row */
        config[48 + i] = 16;     /* rows */
    }
    _tile_loadconfig(config);
    _tile_zero(6);
    _tile_zero(7);
    for (uint32_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 6, 7);
        _tile_dpbf16ps(1, 6, 7);
        _tile_dpbf16ps(2, 6, 7);
        _tile_dpbf16ps(3, 6, 7);
        _tile_dpbf16ps(4, 6, 7);
        _tile_dpbf16ps(5, 6, 7);
    }
    _tile_release();
    return 2.0 * 16 * 16 * 32 * TILE_SUMS * rounds;
}

#endif

const char *hth_peak_name(enum hth_peak kind)
{
    static const char *const names[HTH_PEAKS] = {"generic", "avx2", "avx512", "avx512bf16",
                                                 "amxbf16"};
    return names[kind];
}

bool hth_peak_usable(enum hth_peak kind)
{
#if defined(__x86_64__)
    switch (kind) {
    case HTH_PEAK_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case HTH_PEAK_AVX512:
        return __builtin_cpu_supports("avx512f");
    case HTH_PEAK_BF16:
        return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl");
    case HTH_PEAK_AMX:
        return hth_isa_runs("amxbf16");
    default:
        break;
    }
#endif
    return kind == HTH_PEAK_PLAIN;
}

double hth_peak_run(enum hth_peak kind, uint32_t rounds)
{
    if (!hth_peak_usable(kind))
        return 0;
#if defined(__x86_64__)
    if (kind == HTH_PEAK_AVX2)
        return run_avx2(rounds);
    if (kind == HTH_PEAK_AVX512)
        return run_avx512(rounds);
    if (kind == HTH_PEAK_BF16)
        return run_bf16(rounds);
    if (kind == HTH_PEAK_AMX)
        return run_amx(rounds);
#endif
    return run_plain(rounds);
}

enum hth_peak hth_peak_of(const char *isa, enum hth_matmul compute)
{
    if (strcmp(isa, "amxbf16") == 0)
        return HTH_PEAK_AMX;
    if (compute == HTH_MATMUL_BF16 && hth_peak_usable(HTH_PEAK_BF16))
        return HTH_PEAK_BF16;
    if (strcmp(isa, "avx2") == 0)
        return HTH_PEAK_AVX2;
    return strncmp(isa, "avx512", 6) == 0 ? HTH_PEAK_AVX512 : HTH_PEAK_PLAIN;
}

#define MARGIN 1.1

enum hth_matmul hth_peak_quicker(double fp32, double bf16)
{
    return bf16 > 0 && fp32 <= MARGIN * bf16 ? HTH_MATMUL_BF16 : HTH_MATMUL_F32;
}
