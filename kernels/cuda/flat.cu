/* SPDX-License-Identifier: Apache-2.0 */
/* flat.cu: elementwise operations, number formats, random numbers, and the sum of squares. */
#include "kernels/cuda/launch.h"

#include "kernels/cuda/kernels.h"

#define THREADS   256u
#define GRID_ROWS 65535u

/* blockIdx.x covers the columns of a row, blockIdx.y the rows. Rows without a gap between them form
 * one long row. */
struct extent {
    uint32_t rows;
    size_t cols;
};

static dim3 grid_of(struct extent e, unsigned per_thread)
{
    size_t blocks = (e.cols + (size_t)THREADS * per_thread - 1) / ((size_t)THREADS * per_thread);
    return dim3((unsigned)(blocks < 0x7fffffff ? blocks : 0x7fffffff),
                e.rows < GRID_ROWS ? e.rows : GRID_ROWS);
}

static unsigned threads_of(size_t cols)
{
    return hth_threads_for((uint32_t)(cols < THREADS ? cols : THREADS), THREADS);
}

template <class F> __global__ void each_flat(F f, struct extent e)
{
    for (uint32_t r = blockIdx.y; r < e.rows; r += gridDim.y) {
        for (size_t c = (size_t)blockIdx.x * blockDim.x + threadIdx.x; c < e.cols;
             c += (size_t)gridDim.x * blockDim.x)
            f(r, c);
    }
}

template <class F> static int launch_flat(void *stream, F f, struct extent e)
{
    return HTH_LAUNCH(each_flat<F>, grid_of(e, 1), dim3(threads_of(e.cols)), 0, stream, f, e);
}

static bool is_dense(struct hth_cu_mat m)
{
    return m.data == NULL || m.ld == m.cols;
}

static struct extent extent_of(struct hth_cu_mat m, bool dense)
{
    struct extent e = {m.rows, m.cols};
    if (dense) {
        e.rows = 1;
        e.cols = (size_t)m.rows * m.cols;
    }
    return e;
}

__global__ void nothing(int)
{
}

int hth_cu_nothing(void *stream)
{
    return HTH_LAUNCH(nothing, dim3(1), dim3(HTH_WARP), 0, stream, 0);
}

struct combine_element {
    float alpha, beta;
    struct hth_cu_mat a, b, y;
    __device__ void operator()(uint32_t r, size_t c) const
    {
        float x = alpha * a.data[(size_t)r * a.ld + c];
        if (b.data != NULL)
            x += beta * b.data[(size_t)r * b.ld + c];
        y.data[(size_t)r * y.ld + c] = x;
    }
};

int hth_cu_combine(void *stream, float alpha, struct hth_cu_mat a, float beta, struct hth_cu_mat b,
                   struct hth_cu_mat y)
{
    struct extent e = extent_of(y, is_dense(a) && is_dense(b) && is_dense(y));
    return launch_flat(stream, combine_element{alpha, beta, a, b, y}, e);
}

struct fill_element {
    float value;
    struct hth_cu_mat y;
    __device__ void operator()(uint32_t r, size_t c) const
    {
        y.data[(size_t)r * y.ld + c] = value;
    }
};

int hth_cu_fill(void *stream, struct hth_cu_mat y, float value)
{
    return launch_flat(stream, fill_element{value, y}, extent_of(y, is_dense(y)));
}

/* Element (r, c) uses word c mod 4 of block r * ceil(cols / 4) + c / 4: a thread does four. */
struct dropout_four {
    struct hth_cu_dropout d;
    struct hth_cu_mat x, y;
    uint32_t row_blocks;
    __device__ void operator()(uint32_t r, size_t four) const
    {
        uint32_t c = 4 * (uint32_t)four;
        uint32_t word[4] = {r * row_blocks + (uint32_t)four, d.c123[0], d.c123[1], d.c123[2]};
        hth_el_philox(word, d.key[0], d.key[1]);
        for (uint32_t i = 0; i < 4 && c + i < x.cols; i++) {
            float in = x.data[(size_t)r * x.ld + c + i];
            y.data[(size_t)r * y.ld + c + i] = word[i] >= d.threshold ? in * d.scale : 0.0f;
        }
    }
};

int hth_cu_dropout(void *stream, const struct hth_cu_dropout *d, struct hth_cu_mat x,
                   struct hth_cu_mat y)
{
    uint32_t row_blocks = x.cols / 4 + (x.cols % 4 != 0);
    return launch_flat(stream, dropout_four{*d, x, y, row_blocks}, extent{x.rows, row_blocks});
}

/* -- number formats ------------------------------------------------------------------------ */

struct cast_element {
    struct hth_cu_cast a;
    __device__ void operator()(uint32_t r, size_t c) const
    {
        size_t i = r * a.ld_src + c, o = r * a.ld_dst + c;
        if (a.from == HTH_CU_BYTES)
            ((uint8_t *)a.dst)[o] = ((const uint8_t *)a.src)[i];
        else if (a.from == HTH_CU_WORDS)
            ((uint32_t *)a.dst)[o] = ((const uint32_t *)a.src)[i];
        else if (a.to == HTH_CU_BF16)
            ((uint16_t *)a.dst)[o] = hth_el_to_bf16(((const float *)a.src)[i]);
        else if (a.to == HTH_CU_F16)
            ((uint16_t *)a.dst)[o] = hth_el_to_f16(((const float *)a.src)[i]);
        else if (a.from == HTH_CU_BF16)
            ((float *)a.dst)[o] = hth_el_from_bf16(((const uint16_t *)a.src)[i]);
        else
            ((float *)a.dst)[o] = hth_el_from_f16(((const uint16_t *)a.src)[i]);
    }
};

int hth_cu_cast(void *stream, const struct hth_cu_cast *c)
{
    struct extent e = {c->rows, c->cols};
    if (c->ld_src == c->cols && c->ld_dst == c->cols) {
        e.rows = 1;
        e.cols = c->rows * c->cols;
    }
    return launch_flat(stream, cast_element{*c}, e);
}

/* -- sum of squares ------------------------------------------------------------------------ */

/* Each block computes one partial sum in double, of elements far apart: the shape decides the
 * order. */
__global__ void sumsq_parts(struct hth_cu_mat x, struct extent e, double *room)
{
    HTH_SHARED(double, warps);
    double sum = 0.0;
    for (uint32_t r = blockIdx.y; r < e.rows; r += gridDim.y) {
        for (size_t c = (size_t)blockIdx.x * blockDim.x + threadIdx.x; c < e.cols;
             c += (size_t)gridDim.x * blockDim.x) {
            double v = (double)x.data[(size_t)r * x.ld + c];
            sum += v * v;
        }
    }
    sum = hth_block_sum(sum, warps);
    if (threadIdx.x == 0)
        room[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

__global__ void sumsq_total(const double *room, uint32_t count, double *out)
{
    HTH_SHARED(double, warps);
    double sum = 0.0;
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
        sum += room[i];
    sum = hth_block_sum(sum, warps);
    if (threadIdx.x == 0)
        *out = sum;
}

int hth_cu_sumsq(void *stream, struct hth_cu_mat x, double *room, double *sum)
{
    struct extent e = extent_of(x, is_dense(x));
    size_t shared = THREADS / HTH_WARP * sizeof(double);
    size_t wide = (e.cols + 4 * THREADS - 1) / (4 * (size_t)THREADS);
    uint32_t across = (uint32_t)(wide < HTH_CU_SUM_BLOCKS ? wide : HTH_CU_SUM_BLOCKS);
    uint32_t down = HTH_CU_SUM_BLOCKS / across < e.rows ? HTH_CU_SUM_BLOCKS / across : e.rows;
    uint32_t count = across * down;
    int err = HTH_LAUNCH(sumsq_parts, dim3(across, down), dim3(threads_of(e.cols)), shared, stream,
                         x, e, room);
    if (err != 0)
        return err;
    return HTH_LAUNCH(sumsq_total, dim3(1), dim3(threads_of(count)), shared, stream,
                      (const double *)room, count, sum);
}

/* -- initial values ------------------------------------------------------------------------ */

/* Four elements: one block of Philox, the same numbers as on the CPU. */
struct init_four {
    struct hth_cu_init a;
    __device__ void operator()(uint32_t, size_t four) const
    {
        float out[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        uint32_t word[4] = {(uint32_t)four, a.tensor, 0, a.stream_word};
        if (a.kind > 1)
            hth_el_philox(word, a.key[0], a.key[1]);
        if (a.kind == 3) {
            hth_el_normal(word[0], word[1], a.scale, out);
            hth_el_normal(word[2], word[3], a.scale, out + 2);
        }
        for (uint32_t i = 0; i < 4 && 4 * four + i < a.count; i++) {
            if (a.kind == 1)
                out[i] = a.scale;
            else if (a.kind == 2)
                out[i] = hth_el_uniform(word[i]) * a.scale;
            a.dst[4 * four + i] = out[i];
        }
    }
};

int hth_cu_init(void *stream, const struct hth_cu_init *args)
{
    return launch_flat(stream, init_four{*args}, extent{1, (args->count + 3) / 4});
}
