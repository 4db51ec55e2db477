/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim.cu: optimiser steps: one launch goes over all tensors of a set.
 *
 *   tensor 0          tensor 1   tensor 2
 *   [ 0 | 1 | 2 | 3 ] [ 4 ]      [ 5 | 6 ]        blocks of HTH_CU_CHUNK elements
 *
 * A block finds its tensor by its number. Where a tensor has a bf16 image, the same launch writes
 * the new values into it. The equations are in optim.h, the arithmetic in elements.h.
 */
#include "kernels/cuda/launch.h"

#include "kernels/cuda/kernels.h"

#define THREADS 256u

void hth_cu_step_layout(struct hth_cu_step *s)
{
    s->blocks = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        s->tensor[i].first_block = s->blocks;
        s->blocks += hth_ceil_div(s->tensor[i].count, HTH_CU_CHUNK);
    }
}

size_t hth_cu_step_room(const struct hth_cu_step *s)
{
    return s->kind == HTH_CU_LAMB ? s->blocks * 2 * sizeof(double) + s->count * sizeof(float) : 0;
}

/* The last tensor that starts at or before this block. */
__device__ __forceinline__ uint32_t tensor_of(const struct hth_cu_step &s, uint32_t block)
{
    uint32_t low = 0, high = s.count - 1;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (s.tensor[middle].first_block <= block)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The elements of a tensor that this block steps. */
struct stretch {
    size_t first, end; /* of the tensor */
    uint32_t tensor;
};

__device__ __forceinline__ struct stretch stretch_of(const struct hth_cu_step &s)
{
    struct stretch p;
    p.tensor = tensor_of(s, blockIdx.x);
    const struct hth_cu_tensor &t = s.tensor[p.tensor];
    p.first = (size_t)(blockIdx.x - t.first_block) * HTH_CU_CHUNK;
    p.end = p.first + HTH_CU_CHUNK < t.count ? p.first + HTH_CU_CHUNK : t.count;
    return p;
}

__device__ __forceinline__ void put(const struct hth_cu_step &s, const struct hth_cu_tensor &t,
                                    size_t i, float value)
{
    s.w[t.offset + i] = value;
    if (t.image != NULL)
        t.image[i] = hth_el_to_bf16(value);
}

__global__ void sgd_step(struct hth_cu_step s)
{
    struct stretch p = stretch_of(s);
    const struct hth_cu_tensor &t = s.tensor[p.tensor];
    for (size_t i = p.first + threadIdx.x; i < p.end; i += blockDim.x) {
        float w = s.w[t.offset + i], move = s.g[t.offset + i] * s.grad_scale + t.decay * w;
        if (s.m != NULL && s.momentum != 0.0f) {
            move = s.momentum * s.m[t.offset + i] + move;
            s.m[t.offset + i] = move;
        }
        put(s, t, i, w - s.lr * move);
    }
}

__global__ void adam_step(struct hth_cu_step s)
{
    struct stretch p = stretch_of(s);
    const struct hth_cu_tensor &t = s.tensor[p.tensor];
    struct hth_el_adam c;
    c.scale = s.grad_scale;
    c.b1 = 1.0f - s.beta1;
    c.beta2 = s.beta2;
    c.b2 = 1.0f - s.beta2;
    c.eps = s.eps;
    c.rate = s.lr / s.bias1;
    c.root = 1.0f / s.bias2_sqrt;
    c.l2 = s.decoupled ? 0.0f : t.decay;
    c.shrink = s.decoupled ? 1.0f - s.lr * t.decay : 1.0f;
    for (size_t i = p.first + threadIdx.x; i < p.end; i += blockDim.x) {
        size_t at = t.offset + i;
        float m = s.m[at], v = s.v[at];
        float w = hth_el_adam(&c, s.w[at], s.g[at], &m, &v);
        s.m[at] = m;
        s.v[at] = v;
        put(s, t, i, w);
    }
}

/* -- LAMB: the norms are needed first ------------------------------------------------------ */

__device__ __forceinline__ struct hth_el_lamb lamb_of(const struct hth_cu_step &s, float decay)
{
    struct hth_el_lamb c = {1.0f / s.bias1, 1.0f / s.bias2_sqrt, s.eps, decay};
    return c;
}

/* Updates the moments; leaves the block's share of both sums of squares in room. */
__global__ void lamb_moments(struct hth_cu_step s)
{
    HTH_SHARED(double, warps);
    struct stretch p = stretch_of(s);
    const struct hth_cu_tensor &t = s.tensor[p.tensor];
    struct hth_el_lamb c = lamb_of(s, t.decay);
    double weight = 0.0, update = 0.0;
    for (size_t i = p.first + threadIdx.x; i < p.end; i += blockDim.x) {
        size_t at = t.offset + i;
        float g = s.g[at] * s.grad_scale, w = s.w[at];
        float m = s.m[at] + (1.0f - s.beta1) * (g - s.m[at]);
        float v = s.beta2 * s.v[at] + (1.0f - s.beta2) * (g * g);
        s.m[at] = m;
        s.v[at] = v;
        double u = (double)hth_el_lamb(&c, w, m, v);
        weight += (double)w * (double)w;
        update += u * u;
    }
    weight = hth_block_sum(weight, warps);
    update = hth_block_sum(update, warps);
    if (threadIdx.x == 0) {
        s.room[2 * (size_t)blockIdx.x] = weight;
        s.room[2 * (size_t)blockIdx.x + 1] = update;
    }
}

__device__ __forceinline__ float *lamb_rates_of(const struct hth_cu_step &s)
{
    return (float *)(s.room + 2 * (size_t)s.blocks);
}

/* One block per tensor: its rate times the trust ratio. */
__global__ void lamb_rates(struct hth_cu_step s)
{
    HTH_SHARED(double, warps);
    const struct hth_cu_tensor &t = s.tensor[blockIdx.x];
    uint32_t end = blockIdx.x + 1 < s.count ? s.tensor[blockIdx.x + 1].first_block : s.blocks;
    double weight = 0.0, update = 0.0;
    for (uint32_t b = t.first_block + threadIdx.x; b < end; b += blockDim.x) {
        weight += s.room[2 * (size_t)b];
        update += s.room[2 * (size_t)b + 1];
    }
    weight = hth_block_sum(weight, warps);
    update = hth_block_sum(update, warps);
    if (threadIdx.x == 0) {
        double ratio = 1.0;
        if (t.adapt && weight > 0.0 && update > 0.0) {
            ratio = sqrt(weight) / sqrt(update);
            if (s.trust_max > 0.0f && ratio > (double)s.trust_max)
                ratio = (double)s.trust_max;
        }
        lamb_rates_of(s)[blockIdx.x] = (float)((double)s.lr * ratio);
    }
}

__global__ void lamb_apply(struct hth_cu_step s)
{
    struct stretch p = stretch_of(s);
    const struct hth_cu_tensor &t = s.tensor[p.tensor];
    struct hth_el_lamb c = lamb_of(s, t.decay);
    float rate = lamb_rates_of(s)[p.tensor];
    for (size_t i = p.first + threadIdx.x; i < p.end; i += blockDim.x) {
        size_t at = t.offset + i;
        put(s, t, i, s.w[at] - rate * hth_el_lamb(&c, s.w[at], s.m[at], s.v[at]));
    }
}

int hth_cu_step(void *stream, const struct hth_cu_step *s)
{
    size_t shared = THREADS / HTH_WARP * sizeof(double);
    if (s->kind == HTH_CU_SGD)
        return HTH_LAUNCH(sgd_step, dim3(s->blocks), dim3(THREADS), 0, stream, *s);
    if (s->kind == HTH_CU_ADAM)
        return HTH_LAUNCH(adam_step, dim3(s->blocks), dim3(THREADS), 0, stream, *s);
    int err = HTH_LAUNCH(lamb_moments, dim3(s->blocks), dim3(THREADS), shared, stream, *s);
    if (err == 0)
        err = HTH_LAUNCH(lamb_rates, dim3(s->count), dim3(THREADS), shared, stream, *s);
    if (err == 0)
        err = HTH_LAUNCH(lamb_apply, dim3(s->blocks), dim3(THREADS), 0, stream, *s);
    return err;
}
