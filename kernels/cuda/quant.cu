/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant.cu: the blockwise 8-bit format of quant.h, byte for byte what the CPU writes. One warp does
 * a block of 64 values. Compiled with contraction off: the bytes are a function of the floats.
 */
#include "kernels/cuda/launch.h"

#include "kernels/cuda/kernels.h"

#define BLOCK   64u
#define THREADS 256u
#define END     0x7f000000u /* 2^127: what the CPU refuses, too */

__global__ void int8_encode(const float *x, size_t count, int8_t *codes, uint16_t *scales,
                            int *fault)
{
    size_t block = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / HTH_WARP;
    size_t at = block * BLOCK + threadIdx.x % HTH_WARP;
    float v[2];
    uint32_t top = 0;
    for (uint32_t i = 0; i < 2; i++) {
        v[i] = at + i * HTH_WARP < count ? x[at + i * HTH_WARP] : 0.0f;
        uint32_t bits = hth_el_bits(v[i]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    for (unsigned step = HTH_WARP / 2; step > 0; step /= 2) {
        uint32_t other = __shfl_xor_sync(HTH_FULL_WARP, top, step);
        top = other > top ? other : top;
    }
    uint32_t scale = (hth_el_bits(hth_el_float(top) / 127.0f) + 0xffffu) >> 16;
    scale = top < 0x04000000u ? 0 : scale; /* 2^-119 */
    float inverse = scale > 0 ? 1.0f / hth_el_float(scale << 16) : 0.0f;
    if (threadIdx.x % HTH_WARP == 0 && at < count) {
        scales[block] = (uint16_t)scale;
        if (top >= END)
            *fault = HTH_CU_NOT_FINITE;
    }
    for (uint32_t i = 0; i < 2 && at + i * HTH_WARP < count; i++) /* 1.5 * 2^23 rounds */
        codes[at + i * HTH_WARP] = (int8_t)(uint8_t)hth_el_bits(v[i] * inverse + 12582912.0f);
}

__global__ void int8_decode(const int8_t *codes, const uint16_t *scales, size_t count, float *y)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] = (float)codes[i] * hth_el_from_bf16(scales[i / BLOCK]);
}

int hth_cu_int8_encode(void *stream, const float *x, size_t count, int8_t *codes, uint16_t *scales,
                       int *fault)
{
    size_t blocks = (count + BLOCK - 1) / BLOCK;
    return HTH_LAUNCH(int8_encode, dim3(hth_ceil_div(blocks, THREADS / HTH_WARP)), dim3(THREADS), 0,
                      stream, x, count, codes, scales, fault);
}

int hth_cu_int8_decode(void *stream, const int8_t *codes, const uint16_t *scales, size_t count,
                       float *y)
{
    return HTH_LAUNCH(int8_decode, dim3(hth_ceil_div(count, THREADS)), dim3(THREADS), 0, stream,
                      codes, scales, count, y);
}
