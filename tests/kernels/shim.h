/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shim.h: the names of kernels/cuda/launch.h for the CPU, so that tests run, check and sanitise the
 * device's kernels without a device.
 *
 * Each thread of a block is a fibre (ucontext). Blocks run one after the other, in an order drawn
 * from a seed. Within a block the shim draws a warp and runs it until all its fibres wait, then
 * another one. So a thread that reads another warp's value without the barrier in between reads
 * poison: shared memory is poisoned before each block. A barrier that not all threads reach, and a
 * shuffle that not all lanes reach, fail the launch. Each barrier of the source is identified by
 * its place, so that tests can leave one out (shim_control.h).
 *
 * The shim tests indexing, bounds, reductions and barriers. It does not test memory spaces,
 * alignment, races inside a warp, launch cost, streams, tensor cores or speed.
 */
#ifndef HTH_TESTS_KERNELS_SHIM_H
#define HTH_TESTS_KERNELS_SHIM_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HTH_SHIM
#define __global__
#define __device__
#define __forceinline__ static inline __attribute__((unused))

struct dim3 {
    unsigned x, y, z;
    explicit dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

extern dim3 hth_shim_thread, hth_shim_block, hth_shim_block_dim, hth_shim_grid_dim;
extern unsigned char *hth_shim_shared;
#define threadIdx hth_shim_thread
#define blockIdx  hth_shim_block
#define blockDim  hth_shim_block_dim
#define gridDim   hth_shim_grid_dim

/* The place of a barrier; the macros below make one for each that is compiled. */
struct hth_shim_place {
    const char *file;
    unsigned line;
    int number; /* of the barrier; -1: not reached yet */
};
/* Waits for all threads of the block; non-zero if any passed a value other than 0. */
int hth_shim_barrier(hth_shim_place *place, int value);
/* The value that lane `lane` ^ step of this warp passed: 8 bytes. */
uint64_t hth_shim_shuffle(uint64_t value, unsigned step);

#define __syncthreads_or(x)                                                                        \
    ({                                                                                             \
        static hth_shim_place place = {__FILE__, __LINE__, -1};                                    \
        hth_shim_barrier(&place, x);                                                               \
    })
#define __syncthreads() (void)__syncthreads_or(0)
#define HTH_FULL_WARP   0xffffffffu

template <class T> T __shfl_xor_sync(unsigned, T x, unsigned step)
{
    uint64_t bits = 0;
    static_assert(sizeof(T) <= sizeof(bits), "a shuffle moves up to 8 bytes");
    memcpy(&bits, &x, sizeof(T));
    bits = hth_shim_shuffle(bits, step);
    memcpy(&x, &bits, sizeof(T));
    return x;
}

typedef void hth_shim_fn(const void *arg);
int hth_shim_run(dim3 grid, dim3 block, size_t shared, hth_shim_fn *fn, const void *arg);

extern "C" bool hth_shim_recording(void);
extern "C" void hth_shim_record(int (*run)(void *), void *arg, void (*drop)(void *));

/* A recorded launch. */
template <class F> struct hth_shim_kept {
    dim3 grid, block;
    size_t shared;
    F body;
    static int run(void *arg)
    {
        hth_shim_kept *k = static_cast<hth_shim_kept *>(arg);
        return hth_shim_run(
            k->grid, k->block, k->shared,
            [](const void *body) { (*static_cast<const F *>(body))(); }, &k->body);
    }
    static void drop(void *arg)
    {
        delete static_cast<hth_shim_kept *>(arg);
    }
};

template <class F> int hth_shim_launch(dim3 grid, dim3 block, size_t shared, F body)
{
    if (hth_shim_recording()) {
        hth_shim_record(hth_shim_kept<F>::run, new hth_shim_kept<F>{grid, block, shared, body},
                        hth_shim_kept<F>::drop);
        return 0;
    }
    return hth_shim_run(
        grid, block, shared, [](const void *arg) { (*static_cast<const F *>(arg))(); }, &body);
}

/* Arguments are read when the launch is made, as on a device. */
template <class K, class... A>
int hth_shim_launch_kernel(dim3 grid, dim3 block, size_t shared, K kernel, A... args)
{
    return hth_shim_launch(grid, block, shared, [=] { kernel(args...); });
}

#define HTH_LAUNCH(kernel, grid, block, shared, stream, ...)                                       \
    ((void)(stream), hth_shim_launch_kernel((grid), (block), (shared), (kernel), __VA_ARGS__))
#define HTH_SHARED(type, name) type *name = reinterpret_cast<type *>(hth_shim_shared)

#endif
