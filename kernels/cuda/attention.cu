/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention.cu: causal attention in tiles of T queries by T keys, scores never leave the chip.
 *
 *   forward   one block per tile of queries; online softmax over the tiles of keys before it:
 *               m' = max(m, max s),  l' = l e^(m - m') + sum e^(s - m'),
 *               o' = o e^(m - m') + sum e^(s - m') v;   at the end  out = o / l,  lse = m + log l
 *   backward  P = e^(s - lse) again. One pass per tile of queries makes dQ, one per tile of keys
 *             makes dK and dV; each sum belongs to one block, so no atomics:
 *               D = rowsum(dO * O),  dS = P * (dO V^T - D) * scale
 *               dQ = dS K,   dK = dS^T Q,   dV = P^T dO
 *
 * A warp owns T / 4 rows of its tile; lane j scores key j and sums the columns j, j + 32, ... Tiles
 * lie in shared memory with one float between rows, so that lanes which read down a column use
 * different banks. Rotary positions rotate queries and keys when a tile is read, and rotate
 * gradients back when they are written. Columns beyond the head's are zero.
 */
#include "kernels/cuda/launch.h"

#include "kernels/cuda/kernels.h"

#define WARPS   4u
#define THREADS (WARPS * HTH_WARP)

/* A block's place: a tile of one head of one sequence. */
struct place {
    uint32_t row0; /* of the sequence */
    uint32_t head, tile;
};

__device__ __forceinline__ struct place place_of(const struct hth_cu_attention &a, uint32_t t)
{
    uint32_t tiles = (a.seq + t - 1) / t, b = blockIdx.x;
    struct place p;
    p.tile = b % tiles;
    p.head = b / tiles % a.heads;
    p.row0 = b / tiles / a.heads * a.seq;
    return p;
}

/* Loads rows first .. first + T of a head into a tile; rows beyond the sequence become 0. */
template <int DH, int T>
__device__ void load_tile(const struct hth_cu_attention &a, const float *src, uint32_t ld,
                          uint32_t first, bool transpose, float *tile)
{
    uint32_t half = a.dh / 2;
    for (uint32_t i = threadIdx.x; i < (uint32_t)(T * DH); i += blockDim.x) {
        uint32_t r = i / DH, d = i % DH, t = first + r;
        float x = 0.0f;
        if (t < a.seq && d < a.dh) {
            const float *row = src + (size_t)t * ld;
            x = row[d];
            if (transpose) {
                uint32_t pair = d < half ? d : d - half;
                float c = a.cosines[(size_t)t * half + pair], s = a.sines[(size_t)t * half + pair];
                x = d < half ? x * c - row[d + half] * s : row[d - half] * s + x * c;
            }
        }
        tile[r * (DH + 1) + d] = x;
    }
}

/* Writes a tile of gradients, rotated back where the forward rotated. */
template <int DH, int T>
__device__ void store_tile(const struct hth_cu_attention &a, const float *tile, bool transpose,
                           uint32_t first, uint32_t ld, float *dst)
{
    uint32_t half = a.dh / 2;
    for (uint32_t i = threadIdx.x; i < (uint32_t)(T * DH); i += blockDim.x) {
        uint32_t r = i / DH, d = i % DH, t = first + r;
        if (t >= a.seq || d >= a.dh)
            continue;
        const float *row = tile + r * (DH + 1);
        float x = row[d];
        if (transpose) {
            uint32_t pair = d < half ? d : d - half;
            float c = a.cosines[(size_t)t * half + pair], s = a.sines[(size_t)t * half + pair];
            x = d < half ? x * c + row[d + half] * s : x * c - row[d - half] * s;
        }
        dst[(size_t)t * ld + d] = x;
    }
}

/* Dot product of two rows of tiles. */
template <int DH> __device__ __forceinline__ float dot(const float *x, const float *y)
{
    float sum = 0.0f;
#pragma unroll 8
    for (int d = 0; d < DH; d++)
        sum += x[d] * y[d];
    return sum;
}

/* sums[j] += weight * row[lane + 32 j] */
template <int DH>
__device__ __forceinline__ void add_row(float *sums, float weight, const float *row)
{
#pragma unroll
    for (int j = 0; j < DH / 32; j++)
        sums[j] += weight * row[threadIdx.x % HTH_WARP + j * 32];
}

template <int DH>
__device__ __forceinline__ void put_row(const float *sums, float scale, float *row)
{
#pragma unroll
    for (int j = 0; j < DH / 32; j++)
        row[threadIdx.x % HTH_WARP + j * 32] = sums[j] * scale;
}

#define TILE(DH, T) ((T) * ((DH) + 1)) /* floats of a tile */
#define SQUARE(T)   ((T) * ((T) + 1))  /* of scores */

template <int DH, int T> __global__ void attention_forward(struct hth_cu_attention a)
{
    HTH_SHARED(float, q);
    float *kv = q + TILE(DH, T), *p = kv + TILE(DH, T);
    const int rows = T / WARPS;
    struct place at = place_of(a, T);
    uint32_t warp = threadIdx.x / HTH_WARP, lane = threadIdx.x % HTH_WARP, dim = a.heads * a.dh;
    uint32_t first = at.tile * T;
    const float *src = a.qkv.data + (size_t)at.row0 * a.qkv.ld + (size_t)at.head * a.dh;
    float scale = 1.0f / sqrtf((float)a.dh), top[rows], sum[rows], out[rows][DH / 32];
#pragma unroll
    for (int r = 0; r < rows; r++) {
        top[r] = -INFINITY;
        sum[r] = 0.0f;
#pragma unroll
        for (int j = 0; j < DH / 32; j++)
            out[r][j] = 0.0f;
    }
    load_tile<DH, T>(a, src, a.qkv.ld, first, a.cosines != NULL, q);
    for (uint32_t key = 0; key <= first; key += T) {
        load_tile<DH, T>(a, src + dim, a.qkv.ld, key, a.cosines != NULL, kv);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < rows; r++) {
            uint32_t row = warp * rows + r;
            bool seen = lane < T && key + lane <= first + row && key + lane < a.seq;
            float s = seen ? dot<DH>(q + row * (DH + 1), kv + lane * (DH + 1)) * scale : -INFINITY;
            float peak = hth_warp_max(s), next = peak > top[r] ? peak : top[r];
            float e = seen ? hth_el_exp_negative(s - next) : 0.0f;
            float keep = sum[r] == 0.0f ? 0.0f : hth_el_exp_negative(top[r] - next);
            sum[r] = sum[r] * keep + hth_warp_sum(e);
            top[r] = next;
#pragma unroll
            for (int j = 0; j < DH / 32; j++)
                out[r][j] *= keep;
            if (lane < T)
                p[row * (T + 1) + lane] = e;
        }
        __syncthreads(); /* all keys are read, all scores written */
        load_tile<DH, T>(a, src + 2 * dim, a.qkv.ld, key, false, kv);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < rows; r++) {
            for (int j = 0; j < T; j++)
                add_row<DH>(out[r], p[(warp * rows + r) * (T + 1) + j], kv + j * (DH + 1));
        }
        __syncthreads(); /* before the tile is loaded again */
    }
#pragma unroll
    for (int r = 0; r < rows; r++)
        put_row<DH>(out[r], 1.0f / sum[r], q + (warp * rows + r) * (DH + 1));
    __syncthreads();
    float *dst = a.out.data + (size_t)at.row0 * a.out.ld + (size_t)at.head * a.dh;
    store_tile<DH, T>(a, q, false, first, a.out.ld, dst);
#pragma unroll
    for (int r = 0; r < rows; r++) {
        uint32_t t = first + warp * rows + r;
        if (a.lse.data != NULL && lane == 0 && t < a.seq)
            a.lse.data[(size_t)(at.row0 + t) * a.lse.ld + at.head] =
                top[r] + (float)hth_el_log64((double)sum[r]);
    }
}

/* -- backward ------------------------------------------------------------------------------ */

/* delta[row][head] = sum of dout * out: one warp each. */
__global__ void attention_delta(struct hth_cu_attention a)
{
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / HTH_WARP;
    bool mine = i < (size_t)a.rows * a.heads;
    uint32_t row = mine ? (uint32_t)(i / a.heads) : 0, head = mine ? (uint32_t)(i % a.heads) : 0;
    const float *x = a.dout.data + (size_t)row * a.dout.ld + (size_t)head * a.dh;
    const float *y = a.out.data + (size_t)row * a.out.ld + (size_t)head * a.dh;
    float sum = 0.0f;
    for (uint32_t d = threadIdx.x % HTH_WARP; mine && d < a.dh; d += HTH_WARP)
        sum += x[d] * y[d];
    sum = hth_warp_sum(sum);
    if (mine && threadIdx.x % HTH_WARP == 0)
        a.delta[i] = sum;
}

/* The tiles of a backward pass. */
template <int DH, int T> struct tiles {
    float *q, *k, *v, *dout, *p, *ds;
    __device__ explicit tiles(float *at)
        : q(at), k(q + TILE(DH, T)), v(k + TILE(DH, T)), dout(v + TILE(DH, T)),
          p(dout + TILE(DH, T)), ds(p + SQUARE(T))
    {
    }
};

/* Computes P and dS of the tile at queries `first`, keys `key`. Ends with a barrier: both are
 * complete. */
template <int DH, int T>
__device__ void score_gradients(const struct hth_cu_attention &a, const struct place &at,
                                uint32_t first, uint32_t key, const struct tiles<DH, T> &s)
{
    uint32_t warp = threadIdx.x / HTH_WARP, lane = threadIdx.x % HTH_WARP;
    float scale = 1.0f / sqrtf((float)a.dh);
    for (uint32_t row = warp; row < (uint32_t)T; row += WARPS) {
        uint32_t t = first + row, j = key + lane;
        if (lane >= (uint32_t)T)
            continue; /* no shuffle follows */
        float p = 0.0f, ds = 0.0f;
        if (t < a.seq && j <= t) {
            size_t r = at.row0 + t;
            float x = dot<DH>(s.q + row * (DH + 1), s.k + lane * (DH + 1)) * scale;
            float dp = dot<DH>(s.dout + row * (DH + 1), s.v + lane * (DH + 1));
            p = hth_el_exp_negative(x - a.lse.data[r * a.lse.ld + at.head]);
            ds = p * (dp - a.delta[r * a.heads + at.head]) * scale;
        }
        s.p[row * (T + 1) + lane] = p;
        s.ds[row * (T + 1) + lane] = ds;
    }
    __syncthreads();
}

template <int DH, int T> __global__ void attention_back_q(struct hth_cu_attention a)
{
    HTH_SHARED(float, room);
    struct tiles<DH, T> s(room);
    const int rows = T / WARPS;
    struct place at = place_of(a, T);
    uint32_t warp = threadIdx.x / HTH_WARP, dim = a.heads * a.dh, first = at.tile * T;
    size_t col = (size_t)at.head * a.dh;
    const float *src = a.qkv.data + (size_t)at.row0 * a.qkv.ld + col;
    float dq[rows][DH / 32] = {};
    load_tile<DH, T>(a, src, a.qkv.ld, first, a.cosines != NULL, s.q);
    load_tile<DH, T>(a, a.dout.data + (size_t)at.row0 * a.dout.ld + col, a.dout.ld, first, false,
                     s.dout);
    for (uint32_t key = 0; key <= first; key += T) {
        load_tile<DH, T>(a, src + dim, a.qkv.ld, key, a.cosines != NULL, s.k);
        load_tile<DH, T>(a, src + 2 * dim, a.qkv.ld, key, false, s.v);
        __syncthreads();
        score_gradients<DH, T>(a, at, first, key, s);
#pragma unroll
        for (int r = 0; r < rows; r++) {
            for (int j = 0; j < T; j++)
                add_row<DH>(dq[r], s.ds[(warp * rows + r) * (T + 1) + j], s.k + j * (DH + 1));
        }
        __syncthreads(); /* before the next tile of keys */
    }
#pragma unroll
    for (int r = 0; r < rows; r++)
        put_row<DH>(dq[r], 1.0f, s.q + (warp * rows + r) * (DH + 1));
    __syncthreads();
    store_tile<DH, T>(a, s.q, a.cosines != NULL, first, a.dqkv.ld,
                      a.dqkv.data + (size_t)at.row0 * a.dqkv.ld + col);
}

template <int DH, int T> __global__ void attention_back_kv(struct hth_cu_attention a)
{
    HTH_SHARED(float, room);
    struct tiles<DH, T> s(room);
    const int rows = T / WARPS;
    struct place at = place_of(a, T);
    uint32_t warp = threadIdx.x / HTH_WARP, dim = a.heads * a.dh, key = at.tile * T;
    size_t col = (size_t)at.head * a.dh;
    const float *src = a.qkv.data + (size_t)at.row0 * a.qkv.ld + col;
    const float *dout = a.dout.data + (size_t)at.row0 * a.dout.ld + col;
    float *dst = a.dqkv.data + (size_t)at.row0 * a.dqkv.ld + col;
    float dk[rows][DH / 32] = {}, dv[rows][DH / 32] = {};
    load_tile<DH, T>(a, src + dim, a.qkv.ld, key, a.cosines != NULL, s.k);
    load_tile<DH, T>(a, src + 2 * dim, a.qkv.ld, key, false, s.v);
    for (uint32_t first = key; first < a.seq; first += T) {
        load_tile<DH, T>(a, src, a.qkv.ld, first, a.cosines != NULL, s.q);
        load_tile<DH, T>(a, dout, a.dout.ld, first, false, s.dout);
        __syncthreads();
        score_gradients<DH, T>(a, at, first, key, s);
#pragma unroll
        for (int r = 0; r < rows; r++) {
            for (int i = 0; i < T; i++) {
                uint32_t score = i * (T + 1) + warp * rows + r;
                add_row<DH>(dv[r], s.p[score], s.dout + i * (DH + 1));
                add_row<DH>(dk[r], s.ds[score], s.q + i * (DH + 1));
            }
        }
        __syncthreads(); /* before the next tile of queries */
    }
#pragma unroll
    for (int r = 0; r < rows; r++) {
        put_row<DH>(dk[r], 1.0f, s.k + (warp * rows + r) * (DH + 1));
        put_row<DH>(dv[r], 1.0f, s.v + (warp * rows + r) * (DH + 1));
    }
    __syncthreads();
    store_tile<DH, T>(a, s.k, a.cosines != NULL, key, a.dqkv.ld, dst + dim);
    store_tile<DH, T>(a, s.v, false, key, a.dqkv.ld, dst + 2 * dim);
}

/* -- launches: the smallest width that fits the head --------------------------------------- */

static dim3 grid_of(const struct hth_cu_attention *a, uint32_t t)
{
    return dim3(a->rows / a->seq * a->heads * hth_ceil_div(a->seq, t));
}

template <int DH, int T> static int forward(void *stream, const struct hth_cu_attention *a)
{
    size_t shared = (2 * TILE(DH, T) + SQUARE(T)) * sizeof(float);
    static_assert((2 * TILE(DH, T) + SQUARE(T)) * sizeof(float) <= 48 * 1024, "shared memory");
    return HTH_LAUNCH((attention_forward<DH, T>), grid_of(a, T), dim3(THREADS), shared, stream, *a);
}

template <int DH, int T> static int backward(void *stream, const struct hth_cu_attention *a)
{
    size_t shared = (4 * TILE(DH, T) + 2 * SQUARE(T)) * sizeof(float);
    static_assert((4 * TILE(DH, T) + 2 * SQUARE(T)) * sizeof(float) <= 48 * 1024, "shared memory");
    unsigned blocks = hth_ceil_div((size_t)a->rows * a->heads, WARPS);
    int err = HTH_LAUNCH(attention_delta, dim3(blocks), dim3(THREADS), 0, stream, *a);
    if (err == 0)
        err =
            HTH_LAUNCH((attention_back_q<DH, T>), grid_of(a, T), dim3(THREADS), shared, stream, *a);
    if (err == 0)
        err = HTH_LAUNCH((attention_back_kv<DH, T>), grid_of(a, T), dim3(THREADS), shared, stream,
                         *a);
    return err;
}

int hth_cu_attention(void *stream, const struct hth_cu_attention *a)
{
    if (a->dh <= 32)
        return forward<32, 32>(stream, a);
    if (a->dh <= 64)
        return forward<64, 32>(stream, a);
    if (a->dh <= 128)
        return forward<128, 32>(stream, a);
    return a->dh <= 256 ? forward<256, 16>(stream, a) : forward<512, 8>(stream, a);
}

int hth_cu_attention_back(void *stream, const struct hth_cu_attention *a)
{
    if (a->dh <= 32)
        return backward<32, 32>(stream, a);
    if (a->dh <= 64)
        return backward<64, 32>(stream, a);
    if (a->dh <= 128)
        return backward<128, 16>(stream, a);
    return a->dh <= 256 ? backward<256, 8>(stream, a) : backward<512, 4>(stream, a);
}
