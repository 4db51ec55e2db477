/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c: checks each case against the same computation in double.
 *
 * A few rows are computed in double. For a gradient, which sums over rows, the check makes the
 * output gradient of all other rows zero: then the sum over the checked rows is the exact result,
 * and the back end still works on the full batch.
 */
#include "benchmarks/kernels/kernels_int.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/backend_int.h"

#define TOLERANCE      5e-6 /* relative 2-norm, for products in fp32 */
#define TOLERANCE_BF16 6e-3
/* The largest of 64 uniform numbers is 127 steps: the error is 1 / (127 sqrt(12)) of it, and the
 * numbers' root mean square is 1 / sqrt(3) of it; the quotient is 0.0039. */
#define TOLERANCE_INT8 0.0045

/* Sums of squares of the difference and of the expected values. */
struct distance {
    double diff, norm;
};

static void off(struct distance *s, double got, double want)
{
    s->diff += (got - want) * (got - want);
    s->norm += want * want;
}

static double relative(const struct distance *s)
{
    double r = sqrt(s->diff / (s->norm > 0 ? s->norm : 1));
    return isfinite(r) ? r : INFINITY;
}

static double number(struct hth_view v, uint32_t r, uint32_t j)
{
    size_t at = (size_t)r * v.ld + j;
    if (v.dtype != HTH_BF16)
        return (double)((const float *)v.data)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)v.data)[at] << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return (double)x;
}

static void off_row(struct distance *s, struct hth_view got, uint32_t r, const double *want)
{
    for (uint32_t j = 0; j < got.cols; j++)
        off(s, number(got, r, j), want[j]);
}

uint32_t hth_bench_checked_count(uint32_t rows)
{
    return HTH_MIN(rows, (uint32_t)HTH_BENCH_CHECKED_ROWS);
}

uint32_t hth_bench_checked_row(uint32_t rows, uint32_t i)
{
    uint32_t count = hth_bench_checked_count(rows);
    return count > 1 ? (uint32_t)((uint64_t)i * (rows - 1) / (count - 1)) : 0;
}

/* ---- products of one row in double --------------------------------------------------------- */

static void load(struct hth_view v, uint32_t r, double *to)
{
    for (uint32_t j = 0; j < v.cols; j++)
        to[j] = number(v, r, j);
}

/* y = x W + bias */
static void times(const struct hth_weight *w, const struct hth_weight *bias, const double *x,
                  double *y)
{
    for (uint32_t j = 0; j < w->cols; j++)
        y[j] = bias != NULL ? (double)bias->value[j] : 0;
    for (uint32_t k = 0; k < w->rows; k++) {
        const float *row = w->value + (size_t)k * w->cols;
        for (uint32_t j = 0; j < w->cols; j++)
            y[j] += x[k] * (double)row[j];
    }
}

/* dx = dy W^T */
static void times_transposed(const struct hth_weight *w, const double *dy, double *dx)
{
    for (uint32_t k = 0; k < w->rows; k++) {
        const float *row = w->value + (size_t)k * w->cols;
        double sum = 0;
        for (uint32_t j = 0; j < w->cols; j++)
            sum += dy[j] * (double)row[j];
        dx[k] = sum;
    }
}

/* Compares the gradient of w with the sum over `count` rows of x^T dy; `stride` is the distance
 * between two rows. */
static void off_gradient(struct distance *s, const struct hth_weight *w, uint32_t count,
                         const double *x, const double *dy, size_t stride)
{
    for (uint32_t k = 0; k < w->rows; k++) {
        for (uint32_t j = 0; j < w->cols; j++) {
            double want = 0;
            for (uint32_t i = 0; i < count; i++)
                want += (x != NULL ? x[i * stride + k] : 1.0) * dy[i * stride + j];
            off(s, (double)w->grad[(size_t)k * w->cols + j], want);
        }
    }
}

static size_t row_bytes(struct hth_view v)
{
    return v.ld * hth_dtype_size(v.dtype);
}

/* Sets all rows of a view to zero except the checked ones. */
static void only_checked(struct hth_view v)
{
    for (uint32_t r = 0, i = 0; r < v.rows; r++) {
        if (i < hth_bench_checked_count(v.rows) && r == hth_bench_checked_row(v.rows, i))
            i++;
        else
            memset((uint8_t *)v.data + r * row_bytes(v), 0, row_bytes(v));
    }
}

/* A copy of a view's numbers, which put_back restores; NULL: no memory. */
static void *keep_rows(struct hth_view v)
{
    void *copy = hth_try_calloc(v.rows, row_bytes(v));
    if (copy != NULL)
        memcpy(copy, v.data, v.rows * row_bytes(v));
    return copy;
}

static void put_back(struct hth_view v, void *copy)
{
    if (copy != NULL)
        memcpy(v.data, copy, v.rows * row_bytes(v));
    hth_free(copy);
}

/* ---- linear -------------------------------------------------------------------------------- */

static void check_linear_rows(struct hth_bench_case *c, double *in, double *out)
{
    bool forward = c->options.kind == HTH_BENCH_LINEAR_FORWARD;
    struct distance s = {0, 0};
    for (uint32_t i = 0; i < hth_bench_checked_count(c->options.rows); i++) {
        uint32_t r = hth_bench_checked_row(c->options.rows, i);
        load(forward ? c->x : c->dy, r, in);
        if (forward)
            times(c->ffn.w1, c->ffn.b1, in, out);
        else
            times_transposed(c->ffn.w2, in, out);
        off_row(&s, c->hidden, r, out);
        load(c->dhidden, r, in);
        if (forward)
            times(c->ffn.w2, c->ffn.b2, in, out);
        else
            times_transposed(c->ffn.w1, in, out);
        off_row(&s, c->y, r, out);
    }
    c->error = relative(&s);
}

static void check_linear_weights(struct hth_bench_case *c, double *in, double *out)
{
    uint32_t count = hth_bench_checked_count(c->options.rows), h = c->ffn.hidden;
    struct distance s = {0, 0};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t r = hth_bench_checked_row(c->options.rows, i);
        load(c->x, r, in + (size_t)i * h);
        load(c->dhidden, r, out + (size_t)i * h);
    }
    off_gradient(&s, c->ffn.w1, count, in, out, h);
    off_gradient(&s, c->ffn.b1, count, NULL, out, h);
    for (uint32_t i = 0; i < count; i++)
        load(c->dy, hth_bench_checked_row(c->options.rows, i), in + (size_t)i * h);
    off_gradient(&s, c->ffn.w2, count, out, in, h);
    off_gradient(&s, c->ffn.b2, count, NULL, in, h);
    c->error = relative(&s);
}

static enum hth_err check_linear(struct hth_bench_case *c)
{
    size_t numbers = (size_t)HTH_BENCH_CHECKED_ROWS * c->ffn.hidden;
    bool weights = c->options.kind == HTH_BENCH_LINEAR_BACKWARD_WEIGHT;
    double *in = hth_try_calloc(numbers, 2 * sizeof(double));
    void *dy = weights ? keep_rows(c->dy) : NULL;
    void *dhidden = weights ? keep_rows(c->dhidden) : NULL;
    enum hth_err err = HTH_E_NO_MEMORY;
    if (in == NULL || (weights && (dy == NULL || dhidden == NULL)))
        goto out;
    if (weights) {
        only_checked(c->dy);
        only_checked(c->dhidden);
    }
    HTH_GOTO(out, hth_bench_case_run(c));
    if (weights)
        check_linear_weights(c, in, in + numbers);
    else
        check_linear_rows(c, in, in + numbers);
out:
    put_back(c->dy, dy);
    put_back(c->dhidden, dhidden);
    hth_free(in);
    return err;
}

/* ---- the FFN block ------------------------------------------------------------------------- */

/* Intermediate values of one row, each a vector of at most `hidden` numbers. */
struct row64 {
    double *x, *pre, *act, *norm, *dy, *dsum, *dpre, *dx;
    double spread; /* 1 / sqrt(var + eps) */
};
#define ROW_VECTORS 8

static double gelu64(double x)
{
    return 0.5 * x * (1.0 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope64(double x)
{
    double t = tanh(0.7978845608 * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608 * (1.0 + 0.134145 * x * x);
}

static void ffn_forward64(const struct hth_ffn *f, struct row64 *r)
{
    uint32_t d = f->dim;
    double mean = 0, var = 0;
    times(f->w1, f->b1, r->x, r->pre);
    for (uint32_t j = 0; j < f->hidden; j++)
        r->act[j] = gelu64(r->pre[j]);
    times(f->w2, f->b2, r->act, r->norm);
    for (uint32_t j = 0; j < d; j++) {
        r->norm[j] += r->x[j];
        mean += r->norm[j] / d;
    }
    for (uint32_t j = 0; j < d; j++)
        var += (r->norm[j] - mean) * (r->norm[j] - mean) / d;
    r->spread = 1 / sqrt(var + (double)f->eps);
    for (uint32_t j = 0; j < d; j++)
        r->norm[j] = (r->norm[j] - mean) * r->spread;
}

static void ffn_backward64(const struct hth_ffn *f, struct row64 *r)
{
    uint32_t d = f->dim;
    double mean = 0, mean_norm = 0;
    for (uint32_t j = 0; j < d; j++) {
        r->dsum[j] = r->dy[j] * (double)f->gamma->value[j];
        mean += r->dsum[j] / d;
        mean_norm += r->dsum[j] * r->norm[j] / d;
    }
    for (uint32_t j = 0; j < d; j++)
        r->dsum[j] = r->spread * (r->dsum[j] - mean - r->norm[j] * mean_norm);
    times_transposed(f->w2, r->dsum, r->dpre);
    for (uint32_t j = 0; j < f->hidden; j++)
        r->dpre[j] *= gelu_slope64(r->pre[j]);
    times_transposed(f->w1, r->dpre, r->dx);
    for (uint32_t j = 0; j < d; j++)
        r->dx[j] += r->dsum[j];
}

static void check_ffn_gradients(struct hth_bench_case *c, const struct row64 *first, size_t stride)
{
    uint32_t count = hth_bench_checked_count(c->options.rows);
    struct distance s = {0, 0};
    off_gradient(&s, c->ffn.w1, count, first->x, first->dpre, stride);
    off_gradient(&s, c->ffn.b1, count, NULL, first->dpre, stride);
    off_gradient(&s, c->ffn.w2, count, first->act, first->dsum, stride);
    off_gradient(&s, c->ffn.b2, count, NULL, first->dsum, stride);
    off_gradient(&s, c->ffn.beta, count, NULL, first->dy, stride);
    c->error = HTH_MAX(c->error, relative(&s));
}

/* Checks output or input gradient of the checked rows, then the gradients of the weights. */
static void check_ffn_rows(struct hth_bench_case *c, double *numbers)
{
    bool backward = c->options.kind != HTH_BENCH_FFN_FORWARD;
    uint32_t count = hth_bench_checked_count(c->options.rows), h = c->ffn.hidden, d = c->ffn.dim;
    struct row64 rows[HTH_BENCH_CHECKED_ROWS];
    struct distance s = {0, 0};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t r = hth_bench_checked_row(c->options.rows, i);
        double *v = numbers + (size_t)i * ROW_VECTORS * h;
        rows[i] = (struct row64){v,         v + h,     v + 2 * h, v + 3 * h, v + 4 * h,
                                 v + 5 * h, v + 6 * h, v + 7 * h, 0};
        load(c->x, r, rows[i].x);
        load(c->dy, r, rows[i].dy);
        ffn_forward64(&c->ffn, &rows[i]);
        if (backward) {
            ffn_backward64(&c->ffn, &rows[i]);
            off_row(&s, c->y, r, rows[i].dx);
            continue;
        }
        for (uint32_t j = 0; j < d; j++)
            rows[i].norm[j] =
                rows[i].norm[j] * (double)c->ffn.gamma->value[j] + (double)c->ffn.beta->value[j];
        off_row(&s, c->y, r, rows[i].norm);
    }
    c->error = relative(&s);
    if (backward) {
        (void)hth_params_flat(c->params, HTH_PART_GRAD); /* which may be products until now */
        check_ffn_gradients(c, &rows[0], (size_t)ROW_VECTORS * h);
    }
}

static enum hth_err check_step(struct hth_bench_case *c);

static enum hth_err check_ffn(struct hth_bench_case *c)
{
    enum hth_bench_kind kind = c->options.kind;
    bool backward = kind != HTH_BENCH_FFN_FORWARD;
    size_t numbers = (size_t)HTH_BENCH_CHECKED_ROWS * ROW_VECTORS * c->ffn.hidden;
    double *memory = hth_try_calloc(numbers, sizeof(double));
    void *dy = backward ? keep_rows(c->dy) : NULL;
    enum hth_err err = HTH_E_NO_MEMORY;
    if (memory == NULL || (backward && dy == NULL))
        goto out;
    if (backward) {
        only_checked(c->dy);
        c->options.kind = HTH_BENCH_FFN_FORWARD_BACKWARD; /* the check needs unchanged weights */
    }
    err = hth_bench_case_run(c);
    c->options.kind = kind;
    if (err == HTH_OK)
        check_ffn_rows(c, memory);
out:
    put_back(c->dy, dy);
    hth_free(memory);
    return err == HTH_OK && kind == HTH_BENCH_FFN_TRAIN_STEP ? check_step(c) : err;
}

/* ---- AdamW --------------------------------------------------------------------------------- */

/* Compares with the closed form of AdamW's first step, whose corrected moments are g and g^2. */
static void off_first_step(struct distance *s, const struct hth_optim *o,
                           const struct hth_weight *w, const float *before)
{
    double decay = w->no_decay ? 0 : (double)o->lr * (double)o->weight_decay;
    for (size_t i = 0; i < (size_t)w->rows * w->cols; i++) {
        double g = (double)w->grad[i], old = (double)before[w->offset + i];
        double step = -decay * old - (double)o->lr * g / (fabs(g) + (double)o->eps);
        off(s, (double)w->value[i] - old, step);
    }
}

static enum hth_err check_step(struct hth_bench_case *c)
{
    size_t floats = hth_params_flat_len(c->params);
    float *before = hth_try_calloc(floats, sizeof(float));
    struct distance s = {0, 0};
    enum hth_err err = HTH_E_NO_MEMORY;
    if (before == NULL)
        return err;
    memcpy(before, hth_params_flat(c->params, HTH_PART_VALUE), floats * sizeof(float));
    HTH_GOTO(out, hth_bench_case_run(c));
    (void)hth_params_flat(c->params, HTH_PART_GRAD); /* which may be products until now */
    for (uint32_t i = 0; i < hth_params_count(c->params); i++)
        off_first_step(&s, &c->optim, hth_params_at(c->params, i), before);
    c->error = HTH_MAX(c->error, relative(&s));
out:
    hth_free(before);
    return err;
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* Softmax, minus one at the label; a label of `cols` subtracts nothing. */
static void softmax64(double *x, uint32_t cols, uint32_t label)
{
    double top = x[0], sum = 0;
    for (uint32_t j = 1; j < cols; j++)
        top = HTH_MAX(top, x[j]);
    for (uint32_t j = 0; j < cols; j++)
        sum += x[j] = exp(x[j] - top);
    for (uint32_t j = 0; j < cols; j++)
        x[j] = x[j] / sum - (j == label ? 1 : 0);
}

static void layernorm64(double *x, uint32_t cols, double eps)
{
    double mean = 0, var = 0;
    for (uint32_t j = 0; j < cols; j++)
        mean += x[j] / cols;
    for (uint32_t j = 0; j < cols; j++)
        var += (x[j] - mean) * (x[j] - mean) / cols;
    for (uint32_t j = 0; j < cols; j++)
        x[j] = (x[j] - mean) / sqrt(var + eps);
}

static enum hth_err check_rows(struct hth_bench_case *c)
{
    uint32_t d = c->options.dim;
    const int32_t *labels = c->labels.data;
    struct distance s = {0, 0};
    double *x = hth_try_calloc(d, sizeof(double));
    enum hth_err err = HTH_E_NO_MEMORY;
    if (x == NULL)
        return err;
    HTH_GOTO(out, hth_bench_case_run(c));
    for (uint32_t i = 0; i < hth_bench_checked_count(c->options.rows); i++) {
        uint32_t r = hth_bench_checked_row(c->options.rows, i);
        load(c->x, r, x);
        if (c->options.kind == HTH_BENCH_LAYERNORM)
            layernorm64(x, d, (double)c->ffn.eps);
        else
            softmax64(x, d, c->options.kind == HTH_BENCH_XENT ? (uint32_t)labels[r] : d);
        off_row(&s, c->y, r, x);
    }
    c->error = relative(&s);
out:
    hth_free(x);
    return err;
}

/* ---- int8 ---------------------------------------------------------------------------------- */

/* Encodes and decodes; the error must not exceed the format's. */
static enum hth_err check_quant(struct hth_bench_case *c)
{
    size_t count = hth_params_flat_len(c->params);
    const float *x = hth_params_flat(c->params, HTH_PART_VALUE);
    const float *y = hth_params_flat(c->params, HTH_PART_GRAD);
    struct distance s = {0, 0};
    enum hth_bench_kind kind = c->options.kind;
    enum hth_err err;
    c->options.kind = HTH_BENCH_QUANTIZE_INT8;
    err = hth_bench_case_run(c);
    c->options.kind = HTH_BENCH_DEQUANTIZE_INT8;
    if (err == HTH_OK)
        err = hth_bench_case_run(c);
    c->options.kind = kind;
    HTH_TRY(err);
    for (size_t i = 0; i < count; i++)
        off(&s, (double)y[i], (double)x[i]);
    c->error = relative(&s);
    return c->error < (c->options.tolerance > 0 ? c->options.tolerance : TOLERANCE_INT8)
               ? HTH_OK
               : HTH_E_BUG;
}

/* ---- all ----------------------------------------------------------------------------------- */

enum hth_err hth_bench_check(struct hth_bench_case *c)
{
    enum hth_err err;
    switch (c->options.kind) {
    case HTH_BENCH_LINEAR_FORWARD:
    case HTH_BENCH_LINEAR_BACKWARD_DATA:
    case HTH_BENCH_LINEAR_BACKWARD_WEIGHT:
        err = check_linear(c);
        break;
    case HTH_BENCH_FFN_FORWARD:
    case HTH_BENCH_FFN_FORWARD_BACKWARD:
    case HTH_BENCH_FFN_TRAIN_STEP:
        err = check_ffn(c);
        break;
    case HTH_BENCH_ADAMW:
        err = check_step(c);
        break;
    case HTH_BENCH_QUANTIZE_INT8:
    case HTH_BENCH_DEQUANTIZE_INT8:
        return check_quant(c);
    default:
        err = check_rows(c);
        break;
    }
    HTH_TRY(err);
    double tolerance = c->options.tolerance;
    if (tolerance <= 0)
        tolerance =
            hth_backend_compute(c->options.backend) == HTH_MATMUL_BF16 ? TOLERANCE_BF16 : TOLERANCE;
    return c->error < tolerance ? HTH_OK : HTH_E_BUG;
}
