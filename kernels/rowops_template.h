/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rowops_template.h: the loops behind rowops.h. A file that includes this defines
 *   ROWOPS_TABLE   the name of the table it makes
 *   ROWOPS_WIDTH   floats in a register of its instruction set
 * and is compiled with the flags of that set, without fast-math: comparisons decide about NaN.
 */
#include "kernels/rowops.h"

#include <math.h>
#include <string.h>

#include "kernels/elements.h"

/* The caller promises that outputs are inputs or don't overlap; without the pragma gcc guards each
 * loop by a run-time check that sends the in-place case down the scalar path. */
#ifdef __clang__
#define VECTOR_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTOR_LOOP _Pragma("GCC ivdep")
#endif

#if ROWOPS_WIDTH > 4
#include <immintrin.h>
#endif

#define W ROWOPS_WIDTH
typedef float vec __attribute__((vector_size(4 * ROWOPS_WIDTH), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * ROWOPS_WIDTH)));

#define PARTS       4           /* registers that sum a row: as many as an addition takes cycles */
#define LANES       (PARTS * W) /* partial sums of a row */
#define EIGHT_TWICE 16          /* partial sums in double; random counters side by side */

static inline vec load(const float *p)
{
    return *(const vec *)p;
}

static inline void store(float *p, vec v)
{
    *(vec *)p = v;
}

static inline vec all(float x)
{
    return (vec){0} + x;
}

/* a < b ? yes : no */
static inline vec select_less(vec a, vec b, vec yes, vec no)
{
#if W == 16
    return (vec)_mm512_mask_blend_ps(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ),
                                     (__m512)no, (__m512)yes);
#else
    ivec less = a < b;
    return (vec)(((ivec)yes & less) | ((ivec)no & ~less));
#endif
}

#include "kernels/rowops_gemm_template.h"

/* -- sums over a row ----------------------------------------------------------------------- */

/* Adds the partial sums of a row pairwise: each half of them to the other, down to one. */
static inline float fold(const float lane[LANES])
{
    vec v = (load(lane) + load(lane + 2 * W)) + (load(lane + W) + load(lane + 3 * W));
#if W == 16
    __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
#elif W == 8
    __m256 half = (__m256)v;
#endif
#if W > 4
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(q) + _mm_cvtss_f32(_mm_movehdup_ps(q));
#else
    return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

/* Element i goes to partial sum i mod LANES. */
#define ROW_SUM(n, lane, vector_term, scalar_term)                                                 \
    do {                                                                                           \
        vec acc_[PARTS];                                                                           \
        for (int q = 0; q < PARTS; q++)                                                            \
            acc_[q] = (vec){0};                                                                    \
        size_t i = 0;                                                                              \
        for (; i + LANES <= (n); i += LANES) {                                                     \
            for (int q = 0; q < PARTS; q++) {                                                      \
                size_t at = i + (size_t)(q * W);                                                   \
                acc_[q] += (vector_term);                                                          \
            }                                                                                      \
        }                                                                                          \
        size_t l = 0;                                                                              \
        for (int q = 0; q < PARTS - 1; q++) {                                                      \
            if (i + W <= (n)) {                                                                    \
                size_t at = i;                                                                     \
                acc_[q] += (vector_term);                                                          \
                i += W;                                                                            \
                l += W;                                                                            \
            }                                                                                      \
        }                                                                                          \
        for (int q = 0; q < PARTS; q++)                                                            \
            store((lane) + q * W, acc_[q]);                                                        \
        for (; i < (n); i++, l++)                                                                  \
            (lane)[l] += (scalar_term);                                                            \
    } while (0)

static float row_sum(size_t n, const float *x)
{
    float lane[LANES];
    ROW_SUM(n, lane, load(x + at), x[i]);
    return fold(lane);
}

static float row_dot(size_t n, const float *a, const float *b)
{
    float lane[LANES];
    ROW_SUM(n, lane, load(a + at) * load(b + at), a[i] * b[i]);
    return fold(lane);
}

/* Sum of (x - mean)^2. */
static float row_spread(size_t n, const float *x, float mean)
{
    float lane[LANES];
    ROW_SUM(n, lane, (load(x + at) - mean) * (load(x + at) - mean), (x[i] - mean) * (x[i] - mean));
    return fold(lane);
}

/* In double, so that no finite float overflows the sum: it is finite exactly when all elements
 * are. */
static double row_sumsq(size_t n, const float *x)
{
    double lane[EIGHT_TWICE] = {0};
    size_t i = 0;
    for (; i + EIGHT_TWICE <= n; i += EIGHT_TWICE) {
        for (int l = 0; l < EIGHT_TWICE; l++)
            lane[l] += (double)x[i + (size_t)l] * (double)x[i + (size_t)l];
    }
    for (int l = 0; i < n; i++, l++)
        lane[l] += (double)x[i] * (double)x[i];
    for (int step = EIGHT_TWICE / 2; step > 0; step /= 2) {
        for (int l = 0; l < step; l++)
            lane[l] += lane[l + step];
    }
    return lane[0];
}

/* -- activations --------------------------------------------------------------------------- */

/* hth_el_exp_negative, W at once. */
static inline vec exp_negative_vec(vec x)
{
    const vec low = all(-87.0f);
    vec clamped = select_less(x, low, low, x);
    vec shifted = clamped * 1.44269504f + 12582912.0f;
    vec n = shifted - 12582912.0f;
    vec r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
    vec p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    vec e = p * (vec)(((ivec)shifted << 23) + 0x3f800000);
    return select_less(x, low, (vec){0}, e);
}

static void row_act_forward(size_t n, enum hth_act act, const float *x, float *y)
{
    if (act == HTH_ACT_GELU) {
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++)
            y[i] = hth_el_gelu(x[i]);
    } else if (act == HTH_ACT_RELU) {
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++)
            y[i] = x[i] < 0.0f ? 0.0f : x[i]; /* in this order NaN stays NaN */
    } else if (y != x) {
        memcpy(y, x, n * sizeof(float));
    }
}

static void row_act_backward(size_t n, enum hth_act act, const float *x, const float *dy, float *dx)
{
    if (act == HTH_ACT_GELU) {
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++)
            dx[i] = dy[i] * hth_el_gelu_slope(x[i]);
    } else if (act == HTH_ACT_RELU) {
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++)
            dx[i] = x[i] <= 0.0f ? 0.0f : dy[i];
    } else if (dx != dy) {
        memcpy(dx, dy, n * sizeof(float));
    }
}

static void row_geglu(size_t n, const float *a, const float *b, float *y)
{
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++)
        y[i] = hth_el_gelu(a[i]) * b[i];
}

static void row_geglu_back(size_t n, const float *a, const float *b, const float *dy, float *da,
                           float *db)
{
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++) {
        float x = a[i], gate = b[i];
        da[i] = dy[i] * gate * hth_el_gelu_slope(x);
        db[i] = dy[i] * hth_el_gelu(x);
    }
}

static void row_scale(size_t n, const float *a, const float *b, const float *c, float *y)
{
    if (c == NULL) {
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++)
            y[i] = a[i] * b[i];
    } else {
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++)
            y[i] = a[i] * b[i] + c[i];
    }
}

static void row_combine(size_t n, float alpha, const float *a, float beta, const float *b, float *y)
{
    if (b == NULL) {
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++)
            y[i] = alpha * a[i];
    } else {
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++)
            y[i] = alpha * a[i] + beta * b[i];
    }
}

static void row_epilogue(size_t n, const float *x, const struct hth_row_epilogue *e, float *y)
{
    const float *bias = e->bias;
    float *pre = e->pre;
    /* The two forms of an FFN's first layer need one pass over the row. */
    if (bias != NULL && pre == NULL && e->act == HTH_ACT_GELU && e->residual == NULL) {
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++)
            y[i] = hth_el_gelu(x[i] + bias[i]);
        return;
    }
    if (bias != NULL && pre != NULL && e->act == HTH_ACT_GELU && e->residual == NULL) {
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++) {
            float p = x[i] + bias[i];
            pre[i] = p;
            y[i] = hth_el_gelu(p);
        }
        return;
    }
    if (bias != NULL)
        row_combine(n, 1.0f, x, 1.0f, bias, y);
    else if (y != x)
        memcpy(y, x, n * sizeof(float));
    if (pre != NULL)
        memcpy(pre, y, n * sizeof(float));
    row_act_forward(n, e->act, y, y);
    if (e->residual != NULL)
        row_combine(n, 1.0f, y, 1.0f, e->residual, y);
}

/* -- layer norm ---------------------------------------------------------------------------- */

static void row_layernorm(size_t n, const float *x, const struct hth_row_norm *norm, float *y,
                          float *stats)
{
    const float *gamma = norm->gamma, *beta = norm->beta;
    float mean = row_sum(n, x) / (float)n;
    float rstd = 1.0f / sqrtf(row_spread(n, x, mean) / (float)n + norm->eps);
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
    if (stats != NULL) {
        stats[0] = mean;
        stats[1] = rstd;
    }
}

/* With h = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - h mean(g h)). */
static void row_layernorm_back(size_t n, const struct hth_row_norm_back *b)
{
    const float *x = b->x, *dy = b->dy, *gamma = b->gamma;
    float *dx = b->dx;
    float mean = b->stats[0], rstd = b->stats[1], lane[LANES], lane_h[LANES];
    ROW_SUM(n, lane, load(dy + at) * load(gamma + at), dy[i] * gamma[i]);
    ROW_SUM(n, lane_h, load(dy + at) * load(gamma + at) * ((load(x + at) - mean) * rstd),
            dy[i] * gamma[i] * ((x[i] - mean) * rstd));
    float mean_g = fold(lane) / (float)n, mean_gh = fold(lane_h) / (float)n;
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++) {
        float h = (x[i] - mean) * rstd;
        dx[i] = rstd * (dy[i] * gamma[i] - mean_g - h * mean_gh);
    }
}

static void row_layernorm_sums(size_t n, const struct hth_row_norm_back *b)
{
    const float *x = b->x, *dy = b->dy;
    float *dgamma = b->dgamma, *dbeta = b->dbeta;
    float mean = b->stats[0], rstd = b->stats[1];
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++) {
        dgamma[i] += dy[i] * ((x[i] - mean) * rstd);
        dbeta[i] += dy[i];
    }
}

/* -- softmax ------------------------------------------------------------------------------- */

static void row_exp_minus(size_t n, const float *x, float lse, float *y)
{
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++)
        y[i] = hth_el_exp_negative(x[i] - lse);
}

/* Comparisons skip NaN here; the exponentials bring it back. */
static float row_max(size_t n, const float *x)
{
    float lane[W];
    vec top[PARTS];
    for (int q = 0; q < PARTS; q++)
        top[q] = all(-INFINITY);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int q = 0; q < PARTS; q++) {
            vec v = load(x + i + (size_t)(q * W));
            top[q] = select_less(top[q], v, v, top[q]);
        }
    }
    for (int q = 1; q < PARTS; q++)
        top[0] = select_less(top[0], top[q], top[q], top[0]);
    store(lane, top[0]);
    for (; i < n; i++)
        lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    for (int l = 1; l < W; l++)
        lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
    return lane[0];
}

static inline vec exp_store_vec(const float *x, float top, float *y)
{
    vec e = exp_negative_vec(load(x) - top);
    store(y, e);
    return e;
}

/* Writes e^(x - top); returns the sum. */
static float row_exp_sum(size_t n, const float *x, float top, float *y)
{
    float lane[LANES];
    ROW_SUM(n, lane, exp_store_vec(x + at, top, y + at), y[i] = hth_el_exp_negative(x[i] - top));
    return fold(lane);
}

static void row_max_sumexp(size_t n, const float *x, float *max, float *sum)
{
    float lane[LANES], top = row_max(n, x);
    ROW_SUM(n, lane, exp_negative_vec(load(x + at) - top), hth_el_exp_negative(x[i] - top));
    *max = top;
    *sum = fold(lane);
}

static void row_softmax(size_t n, const float *x, float *y)
{
    float inv = 1.0f / row_exp_sum(n, x, row_max(n, x), y);
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++)
        y[i] *= inv;
}

/* True if element `label` is the first of the largest. */
static bool is_first_largest(const float *x, float top, size_t label)
{
    for (size_t i = 0; x[label] == top; i++) {
        if (x[i] == top)
            return i == label;
    }
    return false;
}

static void row_xent(size_t n, const float *x, size_t label, float grad_scale,
                     struct hth_row_xent *out, float *dx)
{
    float at_label = x[label];
    if (dx == NULL) {
        row_max_sumexp(n, x, &out->max, &out->sum);
        out->first = is_first_largest(x, out->max, label);
    } else {
        out->max = row_max(n, x);
        out->first = is_first_largest(x, out->max, label);
        out->sum = row_exp_sum(n, x, out->max, dx);
        float scale = grad_scale / out->sum;
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++)
            dx[i] = scale * dx[i];
        dx[label] -= grad_scale;
    }
    out->at_label = at_label;
}

static void row_softmax_back(size_t n, const float *y, const float *dy, float *dx)
{
    float sum = row_dot(n, y, dy);
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++)
        dx[i] = y[i] * (dy[i] - sum);
}

/* -- small things -------------------------------------------------------------------------- */

static void row_axpy(size_t n, float alpha, const float *x, float *y)
{
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++)
        y[i] += alpha * x[i];
}

static void row_rotate(size_t half, const float *x, const float *cosines, const float *sines,
                       float sign, float *y)
{
    VECTOR_LOOP
    for (size_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], c = cosines[i], s = sign * sines[i];
        y[i] = a * c - b * s;
        y[i + half] = a * s + b * c;
    }
}

/* Kept where the random word reaches the threshold p * 2^32. */
static void row_dropout(size_t n, const float *x, const uint32_t *words, uint32_t threshold,
                        float scale, float *y)
{
    VECTOR_LOOP
    for (size_t i = 0; i < n; i++)
        y[i] = words[i] >= threshold ? x[i] * scale : 0.0f;
}

/* Philox4x32-10 (see core/rng.h), 16 counters side by side. */
static void row_philox(size_t blocks, uint32_t first, const uint32_t c123[3], const uint32_t key[2],
                       uint32_t *words)
{
    for (size_t done = 0; done < blocks; done += EIGHT_TWICE) {
        uint32_t c0[EIGHT_TWICE], c1[EIGHT_TWICE], c2[EIGHT_TWICE], c3[EIGHT_TWICE], k0 = key[0],
                                                                                     k1 = key[1];
        for (uint32_t l = 0; l < EIGHT_TWICE; l++) {
            c0[l] = first + (uint32_t)done + l;
            c1[l] = c123[0];
            c2[l] = c123[1];
            c3[l] = c123[2];
        }
        for (int round = 0; round < 10; round++) {
            for (int l = 0; l < EIGHT_TWICE; l++) {
                uint64_t p0 = UINT64_C(0xD2511F53) * c0[l], p1 = UINT64_C(0xCD9E8D57) * c2[l];
                c0[l] = (uint32_t)(p1 >> 32) ^ c1[l] ^ k0;
                c1[l] = (uint32_t)p1;
                c2[l] = (uint32_t)(p0 >> 32) ^ c3[l] ^ k1;
                c3[l] = (uint32_t)p0;
            }
            k0 += UINT32_C(0x9E3779B9);
            k1 += UINT32_C(0xBB67AE85);
        }
        size_t count = blocks - done < EIGHT_TWICE ? blocks - done : EIGHT_TWICE;
        for (size_t l = 0; l < count; l++) {
            uint32_t *w = words + 4 * (done + l);
            w[0] = c0[l];
            w[1] = c1[l];
            w[2] = c2[l];
            w[3] = c3[l];
        }
    }
}

static void row_stream(size_t bytes, const void *src, void *dst)
{
#if W == 16
    if ((uintptr_t)dst % 64 == 0 && bytes % 64 == 0) {
        for (size_t i = 0; i < bytes; i += 64)
            _mm512_stream_si512((void *)((char *)dst + i),
                                _mm512_loadu_si512((const char *)src + i));
        return;
    }
#elif W == 8
    if ((uintptr_t)dst % 64 == 0 && bytes % 64 == 0) {
        for (size_t i = 0; i < bytes; i += 32)
            _mm256_stream_si256((void *)((char *)dst + i),
                                _mm256_loadu_si256((const void *)((const char *)src + i)));
        return;
    }
#endif
    memcpy(dst, src, bytes);
}

static void row_stream_end(void)
{
#if W > 4
    _mm_sfence(); /* streaming stores are not ordered with later stores */
#endif
}

/* -- number formats ------------------------------------------------------------------------ */

static void row_to_bf16(size_t n, const float *x, uint16_t *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = hth_el_to_bf16(x[i]);
}

static void row_from_bf16(size_t n, const uint16_t *x, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = hth_el_from_bf16(x[i]);
}

static void row_to_f16(size_t n, const float *x, uint16_t *y)
{
    size_t i = 0;
#if W == 16
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(void *)(y + i), _mm512_cvtps_ph(_mm512_loadu_ps(x + i), 0));
#elif W == 8
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
#endif
    for (; i < n; i++)
        y[i] = hth_el_to_f16(x[i]);
}

static void row_from_f16(size_t n, const uint16_t *x, float *y)
{
    size_t i = 0;
#if W == 16
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(
            y + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(x + i))));
#elif W == 8
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i,
                         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
#endif
    for (; i < n; i++)
        y[i] = hth_el_from_f16(x[i]);
}

#include "kernels/rowops_optim_template.h"

const struct hth_rowops ROWOPS_TABLE = {
    .gemm = row_gemm,
    .epilogue = row_epilogue,
    .act_forward = row_act_forward,
    .act_backward = row_act_backward,
    .geglu = row_geglu,
    .geglu_back = row_geglu_back,
    .scale = row_scale,
    .layernorm = row_layernorm,
    .layernorm_back = row_layernorm_back,
    .layernorm_sums = row_layernorm_sums,
    .softmax = row_softmax,
    .softmax_back = row_softmax_back,
    .exp_minus = row_exp_minus,
    .max_sumexp = row_max_sumexp,
    .xent = row_xent,
    .dot = row_dot,
    .sumsq = row_sumsq,
    .axpy = row_axpy,
    .combine = row_combine,
    .rotate = row_rotate,
    .dropout = row_dropout,
    .to_bf16 = row_to_bf16,
    .from_bf16 = row_from_bf16,
    .to_f16 = row_to_f16,
    .from_f16 = row_from_f16,
    .adam = row_adam,
    .sgd = row_sgd,
    .lamb_moments = row_lamb_moments,
    .lamb_apply = row_lamb_apply,
    .stream = row_stream,
    .stream_end = row_stream_end,
    .philox = row_philox,
};
