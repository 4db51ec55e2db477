/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.h: the macros and functions with which the kernels of this folder are written, so that one
 * source runs on a device (nvcc) and, for tests, on the CPU (tests/kernels/shim.h, which defines
 * HTH_SHIM and the same names): launches, shared memory, barriers, and sums over a warp and a
 * block.
 *
 * Blocks are whole warps, and all threads of a block reach every barrier and every shuffle. All
 * shared memory is dynamic: the launch gives its size. Sums have a fixed order: no float
 * atomics anywhere, so the same input gives the same bits.
 */
#ifndef HTH_KERNELS_CUDA_LAUNCH_H
#define HTH_KERNELS_CUDA_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#ifndef HTH_SHIM
#include <cuda_runtime.h>

#define HTH_LAUNCH(kernel, grid, block, shared, stream, ...)                                       \
    (kernel<<<(grid), (block), (shared), (cudaStream_t)(stream)>>>(__VA_ARGS__),                   \
     (int)cudaGetLastError())
#define HTH_SHARED(type, name)                                                                     \
    extern __shared__ __align__(16) unsigned char hth_shared_raw[];                                \
    type *name = (type *)hth_shared_raw
#define HTH_FULL_WARP 0xffffffffu
#endif

#include "kernels/elements.h"

#define HTH_WARP 32u

/* The sum over the warp, and its largest value: every lane gets the same. */
template <class T> __device__ __forceinline__ T hth_warp_sum(T x)
{
    for (unsigned step = HTH_WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(HTH_FULL_WARP, x, step);
    return x;
}

__device__ __forceinline__ float hth_warp_max(float x)
{
    for (unsigned step = HTH_WARP / 2; step > 0; step /= 2) {
        float other = __shfl_xor_sync(HTH_FULL_WARP, x, step);
        x = other > x ? other : x; /* a NaN is not larger: the sums bring it back */
    }
    return x;
}

/* The same over a block: `room` holds one value per warp. The first barrier publishes the warps'
 * values, the second lets `room` be used again. */
template <class T> __device__ __forceinline__ T hth_block_sum(T x, T *room)
{
    unsigned warps = blockDim.x / HTH_WARP;
    x = hth_warp_sum(x);
    if (threadIdx.x % HTH_WARP == 0)
        room[threadIdx.x / HTH_WARP] = x;
    __syncthreads();
    T total = room[0];
    for (unsigned i = 1; i < warps; i++)
        total += room[i];
    __syncthreads();
    return total;
}

__device__ __forceinline__ float hth_block_max(float x, float *room)
{
    unsigned warps = blockDim.x / HTH_WARP;
    x = hth_warp_max(x);
    if (threadIdx.x % HTH_WARP == 0)
        room[threadIdx.x / HTH_WARP] = x;
    __syncthreads();
    float top = room[0];
    for (unsigned i = 1; i < warps; i++)
        top = room[i] > top ? room[i] : top;
    __syncthreads();
    return top;
}

/* Threads for rows of that many columns: whole warps, at most `most`. */
static inline unsigned hth_threads_for(uint32_t cols, unsigned most)
{
    uint32_t threads = (cols + HTH_WARP - 1) / HTH_WARP * HTH_WARP;
    return threads < HTH_WARP ? HTH_WARP : threads > most ? most : (unsigned)threads;
}

static inline unsigned hth_ceil_div(size_t a, size_t b)
{
    return (unsigned)((a + b - 1) / b);
}

#endif
