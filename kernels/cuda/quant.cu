/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant.cu: rows of the blockwise 8-bit format of quant.h, with the CPU's bytes. One
 * warp does a block of 64 values. Compiled with contraction off: the bytes are a function of the
 * floats. A row's bytes may begin anywhere, so scales are read and written by bytes.
 */
#include "kernels/cuda/launch.h"

#include "kernels/cuda/kernels.h"

#define BLOCK     64u
#define THREADS   256u
#define END       0x7f000000u /* 2^127: the CPU refuses it, too */
#define SCALE_END 0x7c00u     /* 2^121: scales that no encoder writes, negative ones too */

/* The block of a row that this warp converts. */
struct place {
    bool mine;
    size_t row;
    uint32_t block, at; /* of the block's values: the lane's first */
};

__device__ __forceinline__ struct place place_of(const struct hth_cu_int8 &q)
{
    size_t warp = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / HTH_WARP;
    uint32_t blocks = (q.x.cols + BLOCK - 1) / BLOCK;
    struct place p;
    p.mine = warp < (size_t)q.x.rows * blocks;
    p.row = p.mine ? warp / blocks : 0;
    p.block = p.mine ? (uint32_t)(warp % blocks) : 0;
    p.at = p.block * BLOCK + threadIdx.x % HTH_WARP;
    return p;
}

__global__ void int8_encode(struct hth_cu_int8 q)
{
    struct place p = place_of(q);
    const float *x = q.x.data + p.row * q.x.ld;
    uint8_t *codes = q.bytes + p.row * q.ld_bytes;
    float v[2];
    uint32_t top = 0;
    for (uint32_t i = 0; i < 2; i++) {
        v[i] = p.mine && p.at + i * HTH_WARP < q.x.cols ? x[p.at + i * HTH_WARP] : 0.0f;
        uint32_t bits = hth_el_bits(v[i]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    for (unsigned step = HTH_WARP / 2; step > 0; step /= 2) {
        uint32_t other = __shfl_xor_sync(HTH_FULL_WARP, top, step);
        top = other > top ? other : top;
    }
    if (!p.mine)
        return;
    uint32_t scale = (hth_el_bits(hth_el_float(top) / 127.0f) + 0xffffu) >> 16;
    scale = top < 0x04000000u ? 0 : scale; /* 2^-119 */
    float inverse = scale > 0 ? 1.0f / hth_el_float(scale << 16) : 0.0f;
    if (threadIdx.x % HTH_WARP == 0) {
        codes[q.x.cols + 2 * p.block] = (uint8_t)scale;
        codes[q.x.cols + 2 * p.block + 1] = (uint8_t)(scale >> 8);
        if (top >= END)
            *q.fault = HTH_CU_NOT_FINITE;
    }
    for (uint32_t i = 0; i < 2 && p.at + i * HTH_WARP < q.x.cols; i++) /* 1.5 * 2^23 rounds */
        codes[p.at + i * HTH_WARP] = (uint8_t)hth_el_bits(v[i] * inverse + 12582912.0f);
}

__global__ void int8_decode(struct hth_cu_int8 q)
{
    struct place p = place_of(q);
    if (!p.mine)
        return; /* no shuffle follows */
    const uint8_t *codes = q.bytes + p.row * q.ld_bytes, *at = codes + q.x.cols + 2 * p.block;
    uint16_t scale = (uint16_t)(at[0] | at[1] << 8);
    if (scale >= SCALE_END && threadIdx.x % HTH_WARP == 0)
        *q.fault = HTH_CU_NOT_FINITE;
    for (uint32_t i = 0; i < 2 && p.at + i * HTH_WARP < q.x.cols; i++)
        q.x.data[p.row * q.x.ld + p.at + i * HTH_WARP] =
            (float)(int8_t)codes[p.at + i * HTH_WARP] * hth_el_from_bf16(scale);
}

static dim3 grid_of(const struct hth_cu_int8 *q)
{
    size_t blocks = (size_t)q->x.rows * hth_ceil_div(q->x.cols, BLOCK);

    return dim3(hth_ceil_div(blocks, THREADS / HTH_WARP));
}

int hth_cu_int8_encode(void *stream, const struct hth_cu_int8 *q)
{
    return HTH_LAUNCH(int8_encode, grid_of(q), dim3(THREADS), 0, stream, *q);
}

int hth_cu_int8_decode(void *stream, const struct hth_cu_int8 *q)
{
    return HTH_LAUNCH(int8_decode, grid_of(q), dim3(THREADS), 0, stream, *q);
}
