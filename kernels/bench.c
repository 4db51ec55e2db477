/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c: times the bare kernels; a wrong kernel is not timed. */
#include "kernels/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/blocks.h"
#include "kernels/optim.h"

#define REPEATS_MAX     101
#define CHECK_TOLERANCE 2e-5
#define CHECKED_ROWS    4

struct bench {
    const struct hth_bench_options *options;
    struct hth_params *params;
    struct hth_exec *ex;
    struct hth_ffn ffn;
    struct hth_optim optim;
    struct hth_view x, y, dy, hidden;
    void *saved;
    float *memory;
};

static enum hth_err bench_once(struct bench *b)
{
    struct hth_linear linear = {.w = b->ffn.w1, .bias = b->ffn.b1};
    switch (b->options->kind) {
    case HTH_BENCH_LINEAR_FORWARD:
        HTH_TRY(hth_linear_forward(b->ex, &linear, b->x, b->hidden));
        break;
    case HTH_BENCH_FFN_FORWARD:
        HTH_TRY(hth_ffn_forward(b->ex, &b->ffn, b->x, b->y, NULL));
        break;
    case HTH_BENCH_FFN_STEP:
        hth_params_zero_grads(b->params);
        HTH_TRY(hth_ffn_forward(b->ex, &b->ffn, b->x, b->y, b->saved));
        HTH_TRY(hth_ffn_backward(b->ex, &b->ffn, b->x, b->saved, b->dy, b->y));
        HTH_TRY(hth_optim_step(b->ex, b->params, &b->optim, 1.0f));
        break;
    case HTH_BENCH_ADAM:
        HTH_TRY(hth_optim_step(b->ex, b->params, &b->optim, 1.0f));
        break;
    }
    return hth_exec_sync(b->ex);
}

static enum hth_err bench_setup(struct bench *b)
{
    const struct hth_bench_options *o = b->options;
    struct hth_ffn_options shape = {.dim = o->dim};
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    uint32_t ld = hth_ld_f32(o->dim), ld_hidden = hth_ld_f32(4 * o->dim);
    size_t rows = o->rows;
    HTH_TRY(hth_params_new(o->backend, &b->params));
    HTH_TRY(hth_ffn_declare(b->params, &shape, &b->ffn));
    HTH_TRY(hth_params_seal(b->params, &seal));
    HTH_TRY(hth_exec_new(o->backend, hth_ffn_scratch_bytes(o->backend, &b->ffn, o->rows), &b->ex));
    b->memory = hth_try_aligned((3 * rows * ld + rows * ld_hidden) * sizeof(float));
    b->saved = hth_backend_alloc(o->backend, hth_ffn_saved_bytes(&b->ffn, o->rows));
    if (b->memory == NULL || b->saved == NULL)
        return HTH_E_NO_MEMORY;
    b->x = hth_view_f32(b->memory, o->rows, o->dim, ld);
    b->y = hth_view_f32(b->memory + rows * ld, o->rows, o->dim, ld);
    b->dy = hth_view_f32(b->memory + 2 * rows * ld, o->rows, o->dim, ld);
    b->hidden = hth_view_f32(b->memory + 3 * rows * ld, o->rows, 4 * o->dim, ld_hidden);
    for (size_t i = 0; i < 3 * rows * ld; i++)
        b->memory[i] = (float)(int32_t)(hth_mix64(i) >> 40) * 0x1p-23f - 1.0f;
    b->optim = HTH_OPTIM_INIT;
    return HTH_OK;
}

static double gelu64(double x)
{
    return 0.5 * x * (1.0 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
}

/* The FFN block on one row, in double; `scratch` holds hidden + dim numbers. */
static void ffn64(const struct bench *b, const float *flat, const float *x, double *scratch)
{
    uint32_t d = b->ffn.dim, h = b->ffn.hidden;
    double *hidden = scratch, *y = scratch + h, mean = 0, spread = 0;
    const float *w1 = flat + hth_weight_offset(b->ffn.w1),
                *b1 = flat + hth_weight_offset(b->ffn.b1);
    const float *w2 = flat + hth_weight_offset(b->ffn.w2),
                *b2 = flat + hth_weight_offset(b->ffn.b2);
    for (uint32_t j = 0; j < h; j++)
        hidden[j] = (double)b1[j];
    for (uint32_t k = 0; k < d; k++) {
        for (uint32_t j = 0; j < h; j++)
            hidden[j] += (double)x[k] * (double)w1[(size_t)k * h + j];
    }
    for (uint32_t j = 0; j < d; j++)
        y[j] = (double)x[j] + (double)b2[j];
    for (uint32_t k = 0; k < h; k++) {
        double a = gelu64(hidden[k]);
        for (uint32_t j = 0; j < d; j++)
            y[j] += a * (double)w2[(size_t)k * d + j];
    }
    for (uint32_t j = 0; j < d; j++)
        mean += y[j] / d;
    for (uint32_t j = 0; j < d; j++)
        spread += (y[j] - mean) * (y[j] - mean) / d;
    for (uint32_t j = 0; j < d; j++)
        y[j] = (y[j] - mean) / sqrt(spread + (double)b->ffn.eps);
}

/* Some rows of the block against double. */
static enum hth_err bench_check(struct bench *b, double *error)
{
    uint32_t d = b->ffn.dim, h = b->ffn.hidden, rows = b->options->rows;
    double diff = 0, norm = 0;
    const float *flat = hth_params_flat(b->params, HTH_PART_VALUE);
    double *scratch = hth_try_calloc((size_t)d + h, sizeof(double));
    enum hth_err err = scratch != NULL && flat != NULL ? HTH_OK : HTH_E_NO_MEMORY;
    if (err == HTH_OK)
        err = hth_ffn_forward(b->ex, &b->ffn, b->x, b->y, NULL);
    for (uint32_t i = 0; err == HTH_OK && i < HTH_MIN(rows, CHECKED_ROWS); i++) {
        size_t r = (size_t)i * (rows - 1) / CHECKED_ROWS;
        const float *y = (const float *)b->y.data + r * b->y.ld;
        ffn64(b, flat, (const float *)b->x.data + r * b->x.ld, scratch);
        for (uint32_t j = 0; j < d; j++) {
            double want = scratch[h + j], off = (double)y[j] - want;
            diff += off * off;
            norm += want * want;
        }
    }
    hth_free(scratch);
    *error = sqrt(diff / (norm > 0 ? norm : 1));
    return err != HTH_OK || *error < CHECK_TOLERANCE ? err : HTH_E_BUG;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum hth_err bench_time(struct bench *b, struct hth_bench_result *out)
{
    const struct hth_bench_options *o = b->options;
    double us[REPEATS_MAX];
    uint32_t repeats = o->repeats > 0 ? HTH_MIN(o->repeats, (uint32_t)REPEATS_MAX) : 7;
    HTH_TRY(bench_once(b)); /* warms caches and touches pages */
    for (uint32_t i = 0; i < repeats; i++) {
        int64_t start = o->clock_us(o->clock_arg);
        HTH_TRY(bench_once(b));
        int64_t spent = o->clock_us(o->clock_arg) - start;
        us[i] = (double)HTH_MAX(spent, 1);
    }
    qsort(us, repeats, sizeof(us[0]), by_value);
    double elements = (double)b->ffn.dim * b->ffn.hidden * o->rows; /* of one matrix product */
    double products = o->kind == HTH_BENCH_LINEAR_FORWARD ? 1
                      : o->kind == HTH_BENCH_FFN_FORWARD  ? 2
                      : o->kind == HTH_BENCH_FFN_STEP     ? 6
                                                          : 0;
    out->us_best = us[0];
    out->us_median = us[repeats / 2];
    out->rows_per_s = products > 0 ? o->rows * 1e6 / out->us_median : 0;
    out->gflops = 2e-3 * products * elements / out->us_median;
    if (o->kind == HTH_BENCH_ADAM)
        out->gb_per_s = 28e-3 * (double)hth_params_elements(b->params) / out->us_median;
    return HTH_OK;
}

enum hth_err hth_bench_run(const struct hth_bench_options *options, struct hth_bench_result *out)
{
    *out = (struct hth_bench_result){0};
    if (options->clock_us == NULL || options->rows == 0 || options->dim == 0)
        return HTH_E_CONFIG;
    if (!(hth_backend_caps(options->backend) & HTH_CAP_HOST_MEMORY))
        return HTH_E_UNSUPPORTED;
    struct bench b = {.options = options};
    enum hth_err err;
    HTH_GOTO(out, bench_setup(&b));
    HTH_GOTO(out, bench_check(&b, &out->check_error));
    HTH_GOTO(out, bench_time(&b, out));
out:
    hth_exec_free(b.ex);
    hth_backend_free(options->backend, b.saved);
    hth_aligned_free(b.memory);
    hth_params_free(b.params);
    return err;
}
