/* SPDX-License-Identifier: Apache-2.0 */
/*
 * columns.cu: sums over the rows of a batch, and rows that are gathered and scattered.
 *
 * A sum over rows is cut into slabs of rows, summed side by side, and the slabs' sums are added in
 * their order: the shape alone decides the order, so two runs give the same bits.
 */
#include "kernels/cuda/launch.h"

#include "kernels/cuda/kernels.h"

#define SLAB_ROWS  64u
#define SLABS_MOST 64u
#define SIDE       32u /* columns of a block: one warp reads a line of them */
#define DEPTH      8u  /* rows that a block reads at a time */

uint32_t hth_cu_slabs(uint32_t rows)
{
    uint32_t slabs = (rows + SLAB_ROWS - 1) / SLAB_ROWS;
    return slabs < SLABS_MOST ? slabs : SLABS_MOST;
}

/* The summands: dy alone, or dy * h for the norm's gamma. */
struct column_terms {
    struct hth_cu_mat dy, x, stats; /* x without data: dy alone */
};

__device__ __forceinline__ float term(const struct column_terms &t, uint32_t r, uint32_t c)
{
    float d = t.dy.data[(size_t)r * t.dy.ld + c];
    if (t.x.data == NULL)
        return d;
    const float *stats = t.stats.data + (size_t)r * t.stats.ld;
    return d * ((t.x.data[(size_t)r * t.x.ld + c] - stats[0]) * stats[1]);
}

/* room[slab][column] = sum over the rows of the slab. */
__global__ void slab_sums(struct column_terms t, float *room)
{
    HTH_SHARED(float, part); /* [DEPTH][SIDE] */
    uint32_t lane = threadIdx.x % SIDE, depth = threadIdx.x / SIDE;
    uint32_t col = blockIdx.x * SIDE + lane, slabs = gridDim.y, rows = t.dy.rows;
    uint32_t first = (uint32_t)((uint64_t)rows * blockIdx.y / slabs);
    uint32_t end = (uint32_t)((uint64_t)rows * (blockIdx.y + 1) / slabs);
    float sum = 0.0f;
    for (uint32_t r = first + depth; r < end && col < t.dy.cols; r += DEPTH)
        sum += term(t, r, col);
    part[depth * SIDE + lane] = sum;
    __syncthreads();
    if (depth == 0 && col < t.dy.cols) {
        for (uint32_t i = 1; i < DEPTH; i++)
            sum += part[i * SIDE + lane];
        room[(size_t)blockIdx.y * t.dy.cols + col] = sum;
    }
}

__global__ void add_slabs(const float *room, uint32_t slabs, uint32_t cols, int accumulate,
                          float *dst)
{
    uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols)
        return;
    float sum = accumulate ? dst[col] : 0.0f;
    for (uint32_t s = 0; s < slabs; s++)
        sum += room[(size_t)s * cols + col];
    dst[col] = sum;
}

static int column_sum(void *stream, const struct column_terms &t, int accumulate, float *room,
                      float *dst)
{
    uint32_t cols = t.dy.cols, slabs = hth_cu_slabs(t.dy.rows);
    unsigned threads = hth_threads_for(cols, 256);
    int err = HTH_LAUNCH(slab_sums, dim3(hth_ceil_div(cols, SIDE), slabs), dim3(SIDE * DEPTH),
                         SIDE * DEPTH * sizeof(float), stream, t, room);
    if (err != 0)
        return err;
    return HTH_LAUNCH(add_slabs, dim3(hth_ceil_div(cols, threads)), dim3(threads), 0, stream, room,
                      slabs, cols, accumulate, dst);
}

int hth_cu_column_sum(void *stream, struct hth_cu_mat dy, int accumulate, float *room, float *dst)
{
    struct column_terms t = {dy, {}, {}};
    return column_sum(stream, t, accumulate, room, dst);
}

int hth_cu_layernorm_grads(void *stream, const struct hth_cu_norm_grads *g, struct hth_cu_mat dy)
{
    struct column_terms gamma = {dy, g->x, g->stats}, beta = {dy, {}, {}};
    int err = column_sum(stream, gamma, g->add_gamma, g->room, g->dgamma);
    if (err != 0)
        return err;
    size_t half = (size_t)hth_cu_slabs(dy.rows) * dy.cols;
    return column_sum(stream, beta, g->add_beta, g->room + half, g->dbeta);
}

/* -- gather and scatter -------------------------------------------------------------------- */

#define ROW_THREADS 256u

/* One block per row of dst; a row without a source becomes zero. */
__global__ void gather_row(struct hth_cu_mat src, const int32_t *index, uint32_t ld_index,
                           struct hth_cu_mat dst, int *fault)
{
    int32_t i = index[(size_t)blockIdx.x * ld_index];
    bool good = i >= 0 && (uint32_t)i < src.rows;
    if (!good && threadIdx.x == 0)
        *fault = HTH_CU_BAD_INDEX;
    for (uint32_t c = threadIdx.x; c < dst.cols; c += blockDim.x)
        dst.data[(size_t)blockIdx.x * dst.ld + c] = good ? src.data[(size_t)i * src.ld + c] : 0.0f;
}

int hth_cu_gather(void *stream, struct hth_cu_mat src, const int32_t *index, uint32_t ld_index,
                  struct hth_cu_mat dst, int *fault)
{
    return HTH_LAUNCH(gather_row, dim3(dst.rows), dim3(hth_threads_for(dst.cols, ROW_THREADS)), 0,
                      stream, src, index, ld_index, dst, fault);
}

/* One block per source row. The block of an index's first row adds all its rows, in order; the
 * others return. The search through the indices costs rows^2 / 2 reads of integers, from the
 * cache. */
__global__ void scatter_row(struct hth_cu_scatter s, struct hth_cu_mat src, struct hth_cu_mat dst)
{
    HTH_SHARED(int, hit); /* [blockDim.x] */
    uint32_t first = blockIdx.x;
    int32_t mine = s.index[(size_t)first * s.ld_index];
    if (mine < 0 || (uint32_t)mine >= dst.rows) {
        if (threadIdx.x == 0)
            *s.fault = HTH_CU_BAD_INDEX;
        return; /* the whole block */
    }
    int seen = 0;
    for (uint32_t j = threadIdx.x; j < first; j += blockDim.x)
        seen |= s.index[(size_t)j * s.ld_index] == mine;
    if (__syncthreads_or(seen))
        return;
    float *to = dst.data + (size_t)mine * dst.ld;
    for (uint32_t base = first; base < src.rows; base += blockDim.x) {
        uint32_t j = base + threadIdx.x;
        hit[threadIdx.x] = j < src.rows && s.index[(size_t)j * s.ld_index] == mine;
        if (__syncthreads_or(hit[threadIdx.x])) {
            for (uint32_t k = 0; k < blockDim.x; k++) {
                if (!hit[k])
                    continue;
                const float *from = src.data + (size_t)(base + k) * src.ld;
                float weight = s.weight != NULL ? s.weight[(size_t)(base + k) * s.ld_weight] : 1.0f;
                for (uint32_t c = threadIdx.x; c < src.cols; c += blockDim.x)
                    to[c] += weight * from[c];
            }
        }
        __syncthreads(); /* before `hit` is written again */
    }
}

int hth_cu_scatter_add(void *stream, const struct hth_cu_scatter *s, struct hth_cu_mat src,
                       struct hth_cu_mat dst)
{
    unsigned threads = hth_threads_for(src.cols, ROW_THREADS);
    return HTH_LAUNCH(scatter_row, dim3(src.rows), dim3(threads), threads * sizeof(int), stream, *s,
                      src, dst);
}
