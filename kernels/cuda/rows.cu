/* SPDX-License-Identifier: Apache-2.0 */
/* rows.cu: operations on single rows: one block per row, or one thread per element. */
#include "kernels/cuda/launch.h"

#include "kernels/cuda/kernels.h"

#define ROW_THREADS 256u
#define GRID_ROWS   65535u

/* -- elements ------------------------------------------------------------------------------ */

__device__ __forceinline__ float act_of(int act, float x)
{
    if (act == HTH_CU_GELU)
        return hth_el_gelu(x);
    return act == HTH_CU_RELU && x < 0.0f ? 0.0f : x; /* in this order NaN stays NaN */
}

__device__ __forceinline__ float act_back_of(int act, float x, float dy)
{
    if (act == HTH_CU_GELU)
        return dy * hth_el_gelu_slope(x);
    return act == HTH_CU_RELU && x <= 0.0f ? 0.0f : dy;
}

/* Element (r, c) of a matrix, 0 where there is none. */
__device__ __forceinline__ float at_or_zero(struct hth_cu_mat m, uint32_t r, uint32_t c)
{
    return m.data != NULL ? m.data[(size_t)r * m.ld + c] : 0.0f;
}

/* Calls f(row, column) for every element of rows x cols. */
template <class F> __global__ void each_element(F f, uint32_t rows, uint32_t cols)
{
    for (uint32_t r = blockIdx.y; r < rows; r += gridDim.y) {
        for (uint32_t c = blockIdx.x * blockDim.x + threadIdx.x; c < cols;
             c += gridDim.x * blockDim.x)
            f(r, c);
    }
}

template <class F> static int launch_each(void *stream, F f, uint32_t rows, uint32_t cols)
{
    unsigned threads = hth_threads_for(cols, ROW_THREADS);
    dim3 grid(hth_ceil_div(cols, threads), rows < GRID_ROWS ? rows : GRID_ROWS);
    return HTH_LAUNCH(each_element<F>, grid, dim3(threads), 0, stream, f, rows, cols);
}

struct epilogue_element {
    struct hth_cu_epilogue e;
    struct hth_cu_mat y;
    __device__ void operator()(uint32_t r, uint32_t c) const
    {
        float *at = y.data + (size_t)r * y.ld + c;
        float x = *at + (e.bias != NULL ? e.bias[c] : 0.0f);
        if (e.pre.data != NULL)
            e.pre.data[(size_t)r * e.pre.ld + c] = x;
        *at = act_of(e.act, x) + at_or_zero(e.residual, r, c);
    }
};

int hth_cu_epilogue(void *stream, const struct hth_cu_epilogue *e, struct hth_cu_mat y)
{
    return launch_each(stream, epilogue_element{*e, y}, y.rows, y.cols);
}

struct act_element {
    int act;
    struct hth_cu_mat x, y;
    __device__ void operator()(uint32_t r, uint32_t c) const
    {
        y.data[(size_t)r * y.ld + c] = act_of(act, x.data[(size_t)r * x.ld + c]);
    }
};

int hth_cu_act(void *stream, int act, struct hth_cu_mat x, struct hth_cu_mat y)
{
    return launch_each(stream, act_element{act, x, y}, x.rows, x.cols);
}

struct act_back_element {
    int act;
    struct hth_cu_mat pre, dy, residual, dx;
    __device__ void operator()(uint32_t r, uint32_t c) const
    {
        float d = act_back_of(act, at_or_zero(pre, r, c), dy.data[(size_t)r * dy.ld + c]);
        dx.data[(size_t)r * dx.ld + c] = d + at_or_zero(residual, r, c);
    }
};

int hth_cu_act_back(void *stream, int act, struct hth_cu_mat pre, struct hth_cu_mat dy,
                    struct hth_cu_mat residual, struct hth_cu_mat dx)
{
    return launch_each(stream, act_back_element{act, pre, dy, residual, dx}, dy.rows, dy.cols);
}

/* -- layer norm ---------------------------------------------------------------------------- */

/* One block per row, the row kept in shared memory where it fits. */
#define ROW_CACHE  11264u /* floats: 44 KiB, with the sums below the 48 KiB of every device */
#define WARPS_MOST (ROW_THREADS / HTH_WARP)

static size_t row_shared(uint32_t cols, uint32_t rows_kept)
{
    size_t kept = (size_t)cols * rows_kept <= ROW_CACHE ? (size_t)cols * rows_kept : 0;
    return (WARPS_MOST + kept) * sizeof(float);
}

__global__ void layernorm_row(struct hth_cu_norm n, struct hth_cu_mat x, struct hth_cu_mat y,
                              int cached)
{
    HTH_SHARED(float, room);
    float *kept = room + WARPS_MOST;
    const float *in = x.data + (size_t)blockIdx.x * x.ld;
    float *out = y.data + (size_t)blockIdx.x * y.ld;
    float sum = 0.0f, spread = 0.0f;
    for (uint32_t c = threadIdx.x; c < x.cols; c += blockDim.x) {
        float v = in[c];
        if (cached)
            kept[c] = v; /* read back by the same thread only */
        sum += v;
    }
    float mean = hth_block_sum(sum, room) / (float)x.cols;
    const float *again = cached ? kept : in;
    for (uint32_t c = threadIdx.x; c < x.cols; c += blockDim.x)
        spread += (again[c] - mean) * (again[c] - mean);
    float rstd = 1.0f / sqrtf(hth_block_sum(spread, room) / (float)x.cols + n.eps);
    for (uint32_t c = threadIdx.x; c < x.cols; c += blockDim.x)
        out[c] = (again[c] - mean) * rstd * n.gamma[c] + n.beta[c];
    if (threadIdx.x == 0 && n.stats.data != NULL) {
        float *stats = n.stats.data + (size_t)blockIdx.x * n.stats.ld;
        stats[0] = mean;
        stats[1] = rstd;
    }
}

int hth_cu_layernorm(void *stream, const struct hth_cu_norm *n, struct hth_cu_mat x,
                     struct hth_cu_mat y)
{
    return HTH_LAUNCH(layernorm_row, dim3(x.rows), dim3(hth_threads_for(x.cols, ROW_THREADS)),
                      row_shared(x.cols, 1), stream, *n, x, y, x.cols <= ROW_CACHE);
}

/* With h = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - h mean(g h)) + residual. */
__global__ void layernorm_back_row(struct hth_cu_norm n, struct hth_cu_mat x, struct hth_cu_mat dy,
                                   struct hth_cu_mat residual, struct hth_cu_mat dx, int cached)
{
    HTH_SHARED(float, room);
    float *kept_h = room + WARPS_MOST, *kept_g = kept_h + x.cols;
    const float *in = x.data + (size_t)blockIdx.x * x.ld;
    const float *d = dy.data + (size_t)blockIdx.x * dy.ld;
    float *out = dx.data + (size_t)blockIdx.x * dx.ld;
    const float *stats = n.stats.data + (size_t)blockIdx.x * n.stats.ld;
    float mean = stats[0], rstd = stats[1], sum_g = 0.0f, sum_gh = 0.0f;
    for (uint32_t c = threadIdx.x; c < x.cols; c += blockDim.x) {
        float h = (in[c] - mean) * rstd, g = d[c] * n.gamma[c];
        if (cached) {
            kept_h[c] = h;
            kept_g[c] = g;
        }
        sum_g += g;
        sum_gh += g * h;
    }
    float mean_g = hth_block_sum(sum_g, room) / (float)x.cols;
    float mean_gh = hth_block_sum(sum_gh, room) / (float)x.cols;
    for (uint32_t c = threadIdx.x; c < x.cols; c += blockDim.x) {
        float h = cached ? kept_h[c] : (in[c] - mean) * rstd;
        float g = cached ? kept_g[c] : d[c] * n.gamma[c];
        out[c] = rstd * (g - mean_g - h * mean_gh) + at_or_zero(residual, blockIdx.x, c);
    }
}

int hth_cu_layernorm_back(void *stream, const struct hth_cu_norm *n, struct hth_cu_mat x,
                          struct hth_cu_mat dy, struct hth_cu_mat residual, struct hth_cu_mat dx)
{
    return HTH_LAUNCH(layernorm_back_row, dim3(x.rows), dim3(hth_threads_for(x.cols, ROW_THREADS)),
                      row_shared(x.cols, 2), stream, *n, x, dy, residual, dx,
                      (size_t)2 * x.cols <= ROW_CACHE);
}

/* -- softmax and cross-entropy ------------------------------------------------------------- */

/* The largest element of a row and the sum of e^(x - largest). */
struct row_exp {
    float top, sum;
};

__device__ __forceinline__ struct row_exp row_exp_of(const float *x, uint32_t cols, float *room)
{
    struct row_exp e = {-INFINITY, 0.0f};
    for (uint32_t c = threadIdx.x; c < cols; c += blockDim.x)
        e.top = x[c] > e.top ? x[c] : e.top;
    e.top = hth_block_max(e.top, room);
    for (uint32_t c = threadIdx.x; c < cols; c += blockDim.x)
        e.sum += hth_el_exp_negative(x[c] - e.top);
    e.sum = hth_block_sum(e.sum, room);
    return e;
}

__global__ void softmax_row(struct hth_cu_mat x, struct hth_cu_mat y)
{
    HTH_SHARED(float, room);
    const float *in = x.data + (size_t)blockIdx.x * x.ld;
    float *out = y.data + (size_t)blockIdx.x * y.ld;
    struct row_exp e = row_exp_of(in, x.cols, room);
    float inv = 1.0f / e.sum;
    for (uint32_t c = threadIdx.x; c < x.cols; c += blockDim.x)
        out[c] = hth_el_exp_negative(in[c] - e.top) * inv;
}

int hth_cu_softmax(void *stream, struct hth_cu_mat x, struct hth_cu_mat y)
{
    return HTH_LAUNCH(softmax_row, dim3(x.rows), dim3(hth_threads_for(x.cols, ROW_THREADS)),
                      row_shared(0, 0), stream, x, y);
}

__global__ void softmax_back_row(struct hth_cu_mat y, struct hth_cu_mat dy, struct hth_cu_mat dx)
{
    HTH_SHARED(float, room);
    const float *p = y.data + (size_t)blockIdx.x * y.ld;
    const float *d = dy.data + (size_t)blockIdx.x * dy.ld;
    float *out = dx.data + (size_t)blockIdx.x * dx.ld, sum = 0.0f;
    for (uint32_t c = threadIdx.x; c < y.cols; c += blockDim.x)
        sum += p[c] * d[c];
    sum = hth_block_sum(sum, room);
    for (uint32_t c = threadIdx.x; c < y.cols; c += blockDim.x)
        out[c] = p[c] * (d[c] - sum);
}

int hth_cu_softmax_back(void *stream, struct hth_cu_mat y, struct hth_cu_mat dy,
                        struct hth_cu_mat dx)
{
    return HTH_LAUNCH(softmax_back_row, dim3(y.rows), dim3(hth_threads_for(y.cols, ROW_THREADS)),
                      row_shared(0, 0), stream, y, dy, dx);
}

/* True if no element in front of the label is as large; counted over the block. */
__device__ __forceinline__ int is_first_largest(const float *x, uint32_t label, float at_label,
                                                float top, float *room)
{
    float before = 0.0f;
    for (uint32_t c = threadIdx.x; c < label; c += blockDim.x)
        before += x[c] == top ? 1.0f : 0.0f;
    before = hth_block_sum(before, room);
    return at_label == top && before == 0.0f;
}

__global__ void xent_row(struct hth_cu_xent a, struct hth_cu_mat logits)
{
    HTH_SHARED(float, room);
    uint32_t row = blockIdx.x;
    const float *x = logits.data + (size_t)row * logits.ld;
    float *dx = a.dlogits.data != NULL ? a.dlogits.data + (size_t)row * a.dlogits.ld : NULL;
    int32_t label = a.labels[(size_t)row * a.ld_labels];
    struct hth_cu_xent_sum sum = {0.0, 0, 0};
    if (label < 0 || (uint32_t)label >= logits.cols) { /* the same for the whole block */
        for (uint32_t c = threadIdx.x; c < logits.cols && dx != NULL; c += blockDim.x)
            dx[c] = 0.0f;
        if (threadIdx.x == 0 && label != -1)
            *a.fault = HTH_CU_BAD_INDEX;
    } else {
        struct row_exp e = row_exp_of(x, logits.cols, room);
        float at_label = x[label], scale = a.grad_scale / e.sum;
        sum.loss = hth_el_log64((double)e.sum) + (double)e.top - (double)at_label;
        sum.counted = 1;
        sum.correct = (uint32_t)is_first_largest(x, (uint32_t)label, at_label, e.top, room);
        for (uint32_t c = threadIdx.x; c < logits.cols && dx != NULL; c += blockDim.x) {
            float p = scale * hth_el_exp_negative(x[c] - e.top);
            dx[c] = c == (uint32_t)label ? p - a.grad_scale : p;
        }
    }
    if (threadIdx.x == 0)
        a.rows[row] = sum;
}

/* One block: each thread adds its rows in their order, then the threads' sums are added. */
__global__ void xent_total(const struct hth_cu_xent_sum *rows, uint32_t count,
                           struct hth_cu_xent_sum *out)
{
    HTH_SHARED(double, room);
    double loss = 0.0, counted = 0.0, correct = 0.0;
    for (uint32_t r = threadIdx.x; r < count; r += blockDim.x) {
        loss += rows[r].loss;
        counted += rows[r].counted;
        correct += rows[r].correct;
    }
    loss = hth_block_sum(loss, room);
    counted = hth_block_sum(counted, room);
    correct = hth_block_sum(correct, room);
    if (threadIdx.x == 0) {
        out->loss = loss;
        out->counted = (uint32_t)counted;
        out->correct = (uint32_t)correct;
    }
}

int hth_cu_xent(void *stream, const struct hth_cu_xent *a, struct hth_cu_mat logits)
{
    int err =
        HTH_LAUNCH(xent_row, dim3(logits.rows), dim3(hth_threads_for(logits.cols, ROW_THREADS)),
                   row_shared(0, 0), stream, *a, logits);
    if (err != 0)
        return err;
    return HTH_LAUNCH(xent_total, dim3(1), dim3(hth_threads_for(logits.rows, ROW_THREADS)),
                      WARPS_MOST * sizeof(double), stream, a->rows, logits.rows, a->sum);
}
