/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.cu: the kernels between the products of many small FFN blocks of one shape (group.c): each
 * works on all blocks in one launch.
 *
 * Rows of all blocks lie one after the other in the group's matrices, each block padded to the same
 * number of rows with zeros, which change no sum:
 *
 *   [ block 0: 29 rows | 3 x 0 ][ block 1: 32 rows ][ block 2: 25 rows | 7 x 0 ] ...
 */
#include "kernels/cuda/launch.h"

#include "kernels/cuda/kernels.h"

#define THREADS   256u
#define GRID_ROWS 65535u
#define WARPS     (THREADS / HTH_WARP)
#define SIDE      32u /* columns of a block that sums columns */
#define DEPTH     8u  /* rows that it reads at a time */

/* An operand of a product: bf16 or fp32. */
__device__ __forceinline__ void put_operand(void *to, int bf16, size_t i, float x)
{
    if (bf16)
        ((uint16_t *)to)[i] = hth_el_to_bf16(x);
    else
        ((float *)to)[i] = x;
}

/* Calls f(member, row of it, row of the group, column). */
template <class F>
__global__ void each_padded(F f, const struct hth_cu_member *members, uint32_t rows, uint32_t count,
                            uint32_t cols)
{
    for (uint32_t at = blockIdx.y; at < rows * count; at += gridDim.y) {
        const struct hth_cu_member &m = members[at / rows];
        for (uint32_t c = blockIdx.x * blockDim.x + threadIdx.x; c < cols;
             c += gridDim.x * blockDim.x)
            f(m, at % rows, at, c);
    }
}

template <class F>
static int launch_padded(void *stream, F f, const struct hth_cu_group *g, uint32_t cols)
{
    unsigned threads = hth_threads_for(cols, THREADS);
    uint32_t rows = g->rows * g->count;
    dim3 grid(hth_ceil_div(cols, threads), rows < GRID_ROWS ? rows : GRID_ROWS);
    return HTH_LAUNCH(each_padded<F>, grid, dim3(threads), 0, stream, f, g->members, g->rows,
                      g->count, cols);
}

struct stage_x {
    struct hth_cu_group g;
    __device__ void operator()(const struct hth_cu_member &m, uint32_t r, uint32_t at,
                               uint32_t c) const
    {
        put_operand(g.operand_x, g.bf16, (size_t)at * g.ld_dim + c,
                    r < m.rows ? m.x[(size_t)r * m.ld_x + c] : 0.0f);
    }
};

struct stage_act {
    struct hth_cu_group g;
    __device__ void operator()(const struct hth_cu_member &m, uint32_t r, uint32_t at,
                               uint32_t c) const
    {
        put_operand(g.operand_h, g.bf16, (size_t)at * g.ld_hidden + c,
                    r < m.rows ? m.act[(size_t)r * m.ld_hidden + c] : 0.0f);
    }
};

int hth_cu_group_stage_x(void *stream, const struct hth_cu_group *g)
{
    return launch_padded(stream, stage_x{*g}, g, g->dim);
}

int hth_cu_group_stage_act(void *stream, const struct hth_cu_group *g)
{
    return launch_padded(stream, stage_act{*g}, g, g->hidden);
}

/* -- forward ------------------------------------------------------------------------------- */

/* gelu(product + b1): into the block's own memory where it is saved, and as the next operand. */
struct up_end {
    struct hth_cu_group g;
    __device__ void operator()(const struct hth_cu_member &m, uint32_t r, uint32_t at,
                               uint32_t c) const
    {
        float x = 0.0f, y = 0.0f;
        if (r < m.rows) {
            x = g.product_h[(size_t)at * g.ld_hidden + c] + m.b1[c];
            y = hth_el_gelu(x);
            if (m.pre != NULL) {
                m.pre[(size_t)r * m.ld_hidden + c] = x;
                m.act[(size_t)r * m.ld_hidden + c] = y;
            }
        }
        put_operand(g.operand_h, g.bf16, (size_t)at * g.ld_hidden + c, y);
    }
};

int hth_cu_group_up_end(void *stream, const struct hth_cu_group *g)
{
    return launch_padded(stream, up_end{*g}, g, g->hidden);
}

/* y = norm(product + b2 + x): one block of threads per row. */
__global__ void down_end_row(struct hth_cu_group g)
{
    HTH_SHARED(float, room);
    const struct hth_cu_member &m = g.members[blockIdx.x / g.rows];
    uint32_t r = blockIdx.x % g.rows;
    if (r >= m.rows)
        return; /* the whole block */
    const float *product = g.product_d + (size_t)blockIdx.x * g.ld_dim;
    const float *x = m.x + (size_t)r * m.ld_x;
    float *y = m.y + (size_t)r * m.ld_y;
    float *kept = m.sum != NULL ? m.sum + (size_t)r * m.ld_dim : y; /* by the same thread only */
    float sum = 0.0f, spread = 0.0f;
    for (uint32_t c = threadIdx.x; c < g.dim; c += blockDim.x) {
        float v = product[c] + m.b2[c] + x[c];
        kept[c] = v;
        sum += v;
    }
    float mean = hth_block_sum(sum, room) / (float)g.dim;
    for (uint32_t c = threadIdx.x; c < g.dim; c += blockDim.x)
        spread += (kept[c] - mean) * (kept[c] - mean);
    float rstd = 1.0f / sqrtf(hth_block_sum(spread, room) / (float)g.dim + g.eps);
    for (uint32_t c = threadIdx.x; c < g.dim; c += blockDim.x)
        y[c] = (kept[c] - mean) * rstd * m.gamma[c] + m.beta[c];
    if (threadIdx.x == 0 && m.stats != NULL) {
        m.stats[(size_t)r * m.ld_stats] = mean;
        m.stats[(size_t)r * m.ld_stats + 1] = rstd;
    }
}

int hth_cu_group_down_end(void *stream, const struct hth_cu_group *g)
{
    return HTH_LAUNCH(down_end_row, dim3(g->rows * g->count),
                      dim3(hth_threads_for(g->dim, THREADS)), WARPS * sizeof(float), stream, *g);
}

/* -- backward ------------------------------------------------------------------------------ */

/* The norm's backward (rows.cu has the equation) into dsum, and as an operand. */
__global__ void norm_back_row(struct hth_cu_group g)
{
    HTH_SHARED(float, room);
    const struct hth_cu_member &m = g.members[blockIdx.x / g.rows];
    uint32_t r = blockIdx.x % g.rows;
    size_t at = (size_t)blockIdx.x * g.ld_dim;
    if (r >= m.rows) { /* the whole block */
        for (uint32_t c = threadIdx.x; c < g.dim; c += blockDim.x) {
            g.dsum[at + c] = 0.0f;
            put_operand(g.operand_d, g.bf16, at + c, 0.0f);
        }
        return;
    }
    const float *in = m.sum + (size_t)r * m.ld_dim, *d = m.dy + (size_t)r * m.ld_dy;
    float mean = m.stats[(size_t)r * m.ld_stats], rstd = m.stats[(size_t)r * m.ld_stats + 1];
    float sum_g = 0.0f, sum_gh = 0.0f;
    for (uint32_t c = threadIdx.x; c < g.dim; c += blockDim.x) {
        float v = d[c] * m.gamma[c];
        sum_g += v;
        sum_gh += v * ((in[c] - mean) * rstd);
    }
    float mean_g = hth_block_sum(sum_g, room) / (float)g.dim;
    float mean_gh = hth_block_sum(sum_gh, room) / (float)g.dim;
    for (uint32_t c = threadIdx.x; c < g.dim; c += blockDim.x) {
        float h = (in[c] - mean) * rstd;
        float v = rstd * (d[c] * m.gamma[c] - mean_g - h * mean_gh);
        g.dsum[at + c] = v;
        put_operand(g.operand_d, g.bf16, at + c, v);
    }
}

int hth_cu_group_norm_back(void *stream, const struct hth_cu_group *g)
{
    return HTH_LAUNCH(norm_back_row, dim3(g->rows * g->count),
                      dim3(hth_threads_for(g->dim, THREADS)), WARPS * sizeof(float), stream, *g);
}

/* A summand of the sums over a block's rows, and their destination. */
__device__ __forceinline__ float column_term(const struct hth_cu_group &g,
                                             const struct hth_cu_member &m, int what, size_t at,
                                             uint32_t r, uint32_t c)
{
    if (what == HTH_CU_SUM_B1)
        return g.product_h[(at + r) * g.ld_hidden + c];
    if (what == HTH_CU_SUM_B2)
        return g.dsum[(at + r) * g.ld_dim + c];
    float d = m.dy[(size_t)r * m.ld_dy + c];
    if (what == HTH_CU_SUM_BETA)
        return d;
    const float *stats = m.stats + (size_t)r * m.ld_stats;
    return d * ((m.sum[(size_t)r * m.ld_dim + c] - stats[0]) * stats[1]);
}

__device__ __forceinline__ float *column_target(const struct hth_cu_member &m, int what)
{
    return what == HTH_CU_SUM_B1     ? m.db1
           : what == HTH_CU_SUM_B2   ? m.db2
           : what == HTH_CU_SUM_BETA ? m.dbeta
                                     : m.dgamma;
}

__global__ void group_columns(struct hth_cu_group g, int what, uint32_t cols)
{
    HTH_SHARED(float, part); /* [DEPTH][SIDE] */
    const struct hth_cu_member &m = g.members[blockIdx.y];
    uint32_t lane = threadIdx.x % SIDE, depth = threadIdx.x / SIDE;
    uint32_t col = blockIdx.x * SIDE + lane;
    float sum = 0.0f;
    for (uint32_t r = depth; r < m.rows && col < cols; r += DEPTH)
        sum += column_term(g, m, what, (size_t)blockIdx.y * g.rows, r, col);
    part[depth * SIDE + lane] = sum;
    __syncthreads();
    if (depth > 0 || col >= cols)
        return;
    for (uint32_t i = 1; i < DEPTH; i++)
        sum += part[i * SIDE + lane];
    float *to = column_target(m, what) + col;
    *to = g.accumulate ? *to + sum : sum;
}

int hth_cu_group_columns(void *stream, const struct hth_cu_group *g, int what)
{
    uint32_t cols = what == HTH_CU_SUM_B1 ? g->hidden : g->dim;
    return HTH_LAUNCH(group_columns, dim3(hth_ceil_div(cols, SIDE), g->count), dim3(SIDE * DEPTH),
                      SIDE * DEPTH * sizeof(float), stream, *g, what, cols);
}

/* product * gelu'(pre), in place and as an operand. */
struct down_back_end {
    struct hth_cu_group g;
    __device__ void operator()(const struct hth_cu_member &m, uint32_t r, uint32_t at,
                               uint32_t c) const
    {
        size_t i = (size_t)at * g.ld_hidden + c;
        float v = 0.0f;
        if (r < m.rows)
            v = g.product_h[i] * hth_el_gelu_slope(m.pre[(size_t)r * m.ld_hidden + c]);
        g.product_h[i] = v;
        put_operand(g.operand_h, g.bf16, i, v);
    }
};

int hth_cu_group_down_back_end(void *stream, const struct hth_cu_group *g)
{
    return launch_padded(stream, down_back_end{*g}, g, g->hidden);
}

struct dx_end {
    struct hth_cu_group g;
    __device__ void operator()(const struct hth_cu_member &m, uint32_t r, uint32_t at,
                               uint32_t c) const
    {
        size_t i = (size_t)at * g.ld_dim + c;
        if (r < m.rows)
            m.dx[(size_t)r * m.ld_dx + c] = g.product_d[i] + g.dsum[i];
    }
};

int hth_cu_group_dx_end(void *stream, const struct hth_cu_group *g)
{
    return launch_padded(stream, dx_end{*g}, g, g->dim);
}
