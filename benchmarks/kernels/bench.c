/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c: makes cases for timing, and times one by its median. */
#include "benchmarks/kernels/kernels_int.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/backend_int.h"
#include "kernels/quant.h"

#define REPEATS_MAX  101
#define ADAM_BYTES   28.0 /* per parameter: value, gradient and two states read, three written */
#define INT8_BYTES   (4 + 1 + 2.0 / HTH_QUANT_INT8_BLOCK)
#define FLAT_COLUMNS 8192

struct kind {
    const char *name;
    double products; /* number of products of rows * d * 4 d multiply-adds */
    double bytes;    /* per element of [rows, d], or of a flat vector */
};

static const struct kind kinds[HTH_BENCH_KINDS] = {
    [HTH_BENCH_LINEAR_FORWARD] = {"linear_forward", 2, 0},
    [HTH_BENCH_LINEAR_BACKWARD_DATA] = {"linear_backward_data", 2, 0},
    [HTH_BENCH_LINEAR_BACKWARD_WEIGHT] = {"linear_backward_weight", 2, 0},
    [HTH_BENCH_FFN_FORWARD] = {"ffn_forward", 2, 0},
    [HTH_BENCH_FFN_FORWARD_BACKWARD] = {"ffn_forward_backward", 6, 0},
    [HTH_BENCH_FFN_TRAIN_STEP] = {"ffn_train_step", 6, 0},
    [HTH_BENCH_LAYERNORM] = {"layernorm", 0, 8},
    [HTH_BENCH_SOFTMAX] = {"softmax", 0, 8},
    [HTH_BENCH_XENT] = {"xent", 0, 8},
    [HTH_BENCH_ADAMW] = {"adamw", 0, ADAM_BYTES},
    [HTH_BENCH_QUANTIZE_INT8] = {"quantize_int8", 0, INT8_BYTES},
    [HTH_BENCH_DEQUANTIZE_INT8] = {"dequantize_int8", 0, INT8_BYTES},
};

const char *hth_bench_kind_name(enum hth_bench_kind kind)
{
    return kinds[kind].name;
}

bool hth_bench_kind_multiplies(enum hth_bench_kind kind)
{
    return kinds[kind].products > 0;
}

bool hth_bench_kind_is_flat(enum hth_bench_kind kind)
{
    return kind >= HTH_BENCH_ADAMW;
}

/* ---- the work ------------------------------------------------------------------------------ */

static enum hth_err run_linear(struct hth_bench_case *c, bool up)
{
    struct hth_weight *w = up ? c->ffn.w1 : c->ffn.w2, *bias = up ? c->ffn.b1 : c->ffn.b2;
    struct hth_linear forward = {.w = w, .bias = bias};
    struct hth_linear_back back = {.w = w};
    struct hth_view x = up ? c->x : c->dhidden, dy = up ? c->dhidden : c->dy;
    switch (c->options.kind) {
    case HTH_BENCH_LINEAR_FORWARD:
        return hth_linear_forward(c->ex, &forward, x, up ? c->hidden : c->y);
    case HTH_BENCH_LINEAR_BACKWARD_DATA:
        return hth_linear_backward_data(c->ex, &back, dy, up ? c->y : c->hidden);
    default:
        w->grad_zero = bias->grad_zero = true; /* only this product's gradients start at zero */
        return hth_linear_backward_weight(c->ex, w, bias, x, dy);
    }
}

static enum hth_err run_ffn_back(struct hth_bench_case *c)
{
    hth_params_zero_grads(c->params);
    HTH_TRY(hth_ffn_forward(c->ex, &c->ffn, c->x, c->y, c->saved));
    return hth_ffn_backward(c->ex, &c->ffn, c->x, c->saved, c->dy, c->y);
}

static enum hth_err run_rows(struct hth_bench_case *c)
{
    struct hth_layernorm norm = {.gamma = c->ffn.gamma, .beta = c->ffn.beta, .eps = c->ffn.eps};
    switch (c->options.kind) {
    case HTH_BENCH_LAYERNORM:
        return hth_layernorm_forward(c->ex, &norm, c->x, c->y, HTH_VIEW_NONE);
    case HTH_BENCH_SOFTMAX:
        return hth_softmax_forward(c->ex, c->x, c->y);
    default:
        return hth_xent(c->ex, c->x, c->labels, 1.0f, c->y, &c->xent);
    }
}

static enum hth_err run_quant(struct hth_bench_case *c)
{
    size_t count = hth_params_flat_len(c->params);
    if (c->options.kind == HTH_BENCH_QUANTIZE_INT8)
        return hth_quant_encode_team(c->ex->team, HTH_QUANT_INT8,
                                     hth_params_flat(c->params, HTH_PART_VALUE), count, c->saved);
    return hth_quant_decode_team(c->ex->team, HTH_QUANT_INT8, c->saved,
                                 hth_quant_bytes(HTH_QUANT_INT8, count), count,
                                 hth_params_flat(c->params, HTH_PART_GRAD));
}

static enum hth_err start_work(struct hth_bench_case *c, uint32_t part)
{
    switch (c->options.kind) {
    case HTH_BENCH_LINEAR_FORWARD:
    case HTH_BENCH_LINEAR_BACKWARD_DATA:
    case HTH_BENCH_LINEAR_BACKWARD_WEIGHT:
        return run_linear(c, part == 0);
    case HTH_BENCH_FFN_FORWARD:
        return hth_ffn_forward(c->ex, &c->ffn, c->x, c->y, NULL);
    case HTH_BENCH_FFN_FORWARD_BACKWARD:
        return run_ffn_back(c);
    case HTH_BENCH_FFN_TRAIN_STEP:
        HTH_TRY(run_ffn_back(c));
        return hth_optim_step(c->ex, c->params, &c->optim, 1.0f);
    case HTH_BENCH_ADAMW:
        return hth_optim_step(c->ex, c->params, &c->optim, 1.0f);
    case HTH_BENCH_QUANTIZE_INT8:
    case HTH_BENCH_DEQUANTIZE_INT8:
        return run_quant(c);
    default:
        return run_rows(c);
    }
}

uint32_t hth_bench_case_parts(const struct hth_bench_case *c)
{
    return c->options.kind <= HTH_BENCH_LINEAR_BACKWARD_WEIGHT ? 2 : 1;
}

enum hth_err hth_bench_case_run_part(struct hth_bench_case *c, uint32_t part)
{
    HTH_TRY(start_work(c, part));
    return hth_exec_sync(c->ex);
}

enum hth_err hth_bench_case_launch(struct hth_bench_case *c)
{
    for (uint32_t part = 0; part < hth_bench_case_parts(c); part++)
        HTH_TRY(start_work(c, part));
    return HTH_OK;
}

enum hth_err hth_bench_case_run(struct hth_bench_case *c)
{
    for (uint32_t part = 0; part < hth_bench_case_parts(c); part++)
        HTH_TRY(hth_bench_case_run_part(c, part));
    return HTH_OK;
}

/* ---- making a case ------------------------------------------------------------------------- */

void hth_bench_numbers(float *to, size_t count, uint64_t salt)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (float)(int32_t)(hth_mix64(i + (salt << 40)) >> 40) * 0x1p-23f - 1.0f;
}

/* Whether the case is in this process's memory. */
static bool is_here(const struct hth_bench_case *c)
{
    return (hth_backend_caps(c->options.backend) & HTH_CAP_HOST_MEMORY) != 0;
}

static struct hth_view next_view(float **at, uint32_t rows, uint32_t cols)
{
    struct hth_view v = hth_view_f32(*at, rows, cols, hth_ld_f32(cols));
    *at += (size_t)rows * v.ld;
    return v;
}

/* Hidden rows in the type in which a block has them (kernels/blocks.c), but where a bias's gradient
 * needs fp32. bf16 numbers are cut off in place: a row never passes floats still to be read. */
static void as_operand(const struct hth_bench_case *c, struct hth_view *v)
{
    struct hth_view from = *v;
    bool bf16 = hth_backend_operand(c->options.backend) == HTH_BF16;
    if (!bf16 || c->options.kind == HTH_BENCH_LINEAR_BACKWARD_WEIGHT)
        return;
    v->dtype = HTH_BF16;
    v->ld = 2 * hth_ld_f32((v->cols + 1) / 2);
    for (uint32_t r = 0; r < v->rows; r++) {
        const uint32_t *bits = (const uint32_t *)from.data + (size_t)r * from.ld;
        uint16_t *to = (uint16_t *)v->data + (size_t)r * v->ld;
        for (uint32_t j = 0; j < v->cols; j++)
            to[j] = (uint16_t)(bits[j] >> 16);
    }
}

static enum hth_err make_rows(struct hth_bench_case *c)
{
    uint32_t rows = c->options.rows, d = c->options.dim;
    size_t floats = (size_t)rows * (3 * hth_ld_f32(d) + 2 * hth_ld_f32(4 * d) + hth_ld_f32(1));
    c->memory = hth_backend_alloc(c->options.backend, floats * sizeof(float));
    c->saved = hth_backend_alloc(c->options.backend, hth_ffn_saved_bytes(&c->ffn, rows));
    if (c->memory == NULL || c->saved == NULL)
        return HTH_E_NO_MEMORY;
    float *at = c->memory;
    c->x = next_view(&at, rows, d);
    c->y = next_view(&at, rows, d);
    c->dy = next_view(&at, rows, d);
    c->hidden = next_view(&at, rows, 4 * d);
    c->dhidden = next_view(&at, rows, 4 * d);
    c->labels = hth_view_i32((int32_t *)(void *)at, rows);
    float *host = is_here(c) ? c->memory : hth_try_aligned(floats * sizeof(float));
    if (host == NULL)
        return HTH_E_NO_MEMORY;
    hth_bench_numbers(host, floats, 1);
    for (uint32_t r = 0; r < rows; r++)
        ((int32_t *)(void *)(host + (at - c->memory)))[r] = (int32_t)(hth_mix64(r) % d);
    if (is_here(c)) {
        as_operand(c, &c->hidden);
        as_operand(c, &c->dhidden);
        return HTH_OK;
    }
    enum hth_err err = hth_exec_upload(c->ex, c->memory, host, floats * sizeof(float));
    hth_aligned_free(host);
    return err;
}

static enum hth_err make_flat(struct hth_bench_case *c)
{
    uint64_t d = c->options.dim;
    uint64_t elements = c->options.elements > 0 ? c->options.elements : 8 * d * d;
    struct hth_param_spec spec = {.name = "flat",
                                  .rows = (uint32_t)((elements + FLAT_COLUMNS - 1) / FLAT_COLUMNS),
                                  .cols = FLAT_COLUMNS,
                                  .init = HTH_INIT_UNIFORM,
                                  .scale = 0.02f};
    struct hth_weight *w;
    if (elements > (uint64_t)UINT32_MAX * FLAT_COLUMNS / 2)
        return HTH_E_TOO_LARGE;
    return hth_params_add(c->params, &spec, &w);
}

/* Makes gradients, or the bytes to decode. */
static enum hth_err make_vectors(struct hth_bench_case *c)
{
    size_t count = hth_params_flat_len(c->params);
    if (!is_here(c)) {
        float *host = hth_try_aligned(count * sizeof(float));
        if (host == NULL)
            return HTH_E_NO_MEMORY;
        hth_bench_numbers(host, count, 2);
        enum hth_err err = hth_params_import(c->ex, c->params, HTH_PART_GRAD, 0, count, host);
        hth_aligned_free(host);
        return err;
    }
    hth_bench_numbers(hth_params_flat(c->params, HTH_PART_GRAD), count, 2);
    if (c->options.kind == HTH_BENCH_ADAMW)
        return HTH_OK;
    c->saved = hth_backend_alloc(c->options.backend, hth_quant_bytes(HTH_QUANT_INT8, count));
    if (c->saved == NULL)
        return HTH_E_NO_MEMORY;
    return hth_quant_encode(HTH_QUANT_INT8, hth_params_flat(c->params, HTH_PART_VALUE), count,
                            c->saved);
}

static enum hth_err make_weights(struct hth_bench_case *c)
{
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    struct hth_ffn_options shape = {.dim = c->options.dim};
    bool flat = hth_bench_kind_is_flat(c->options.kind);
    size_t scratch = 0;
    HTH_TRY(hth_params_new(c->options.backend, &c->params));
    if (flat)
        HTH_TRY(make_flat(c));
    else
        HTH_TRY(hth_ffn_declare(c->params, &shape, &c->ffn));
    if (c->options.kind != HTH_BENCH_FFN_TRAIN_STEP && c->options.kind != HTH_BENCH_ADAMW)
        seal.state_slots = 0;
    seal.factored_grads = c->options.kind == HTH_BENCH_FFN_TRAIN_STEP; /* as on a host */
    HTH_TRY(hth_params_seal(c->params, &seal));
    if (!flat)
        scratch = hth_ffn_scratch_bytes(c->options.backend, &c->ffn, c->options.rows);
    HTH_TRY(hth_exec_new(c->options.backend, scratch, &c->ex));
    hth_exec_set_team(c->ex, c->options.team);
    c->optim = HTH_OPTIM_INIT;
    c->optim.kind = HTH_OPTIM_ADAMW;
    c->optim.weight_decay = 0.01f;
    return flat ? make_vectors(c) : HTH_OK;
}

enum hth_err hth_bench_case_make(const struct hth_bench_options *options,
                                 struct hth_bench_case **out)
{
    const struct kind *kind = &kinds[options->kind];
    *out = NULL;
    if (options->rows == 0 || options->dim == 0)
        return HTH_E_CONFIG;
    if (!(hth_backend_caps(options->backend) & HTH_CAP_HOST_MEMORY) &&
        options->kind >= HTH_BENCH_QUANTIZE_INT8)
        return HTH_E_UNSUPPORTED; /* the formats of quant.h are host memory's; a card's rows:
                                     ops.c */
    struct hth_bench_case *c = hth_new(struct hth_bench_case);
    double elements = (double)options->rows * options->dim;
    enum hth_err err;
    c->options = *options;
    HTH_GOTO(out, make_weights(c));
    if (hth_bench_kind_is_flat(options->kind))
        elements = (double)hth_params_flat_len(c->params);
    else
        HTH_GOTO(out, make_rows(c));
    c->flops = 2.0 * kind->products * elements * 4 * options->dim;
    c->bytes = kind->bytes * elements;
    *out = c;
out:
    if (err != HTH_OK)
        hth_bench_case_free(c);
    return err;
}

enum hth_err hth_bench_case_new(const struct hth_bench_options *options,
                                struct hth_bench_case **out)
{
    struct hth_bench_case *c;
    *out = NULL;
    HTH_TRY(hth_bench_case_make(options, &c));
    enum hth_err err = is_here(c) ? hth_bench_check(c) : hth_bench_check_away(c);
    if (err == HTH_OK)
        *out = c;
    else
        hth_bench_case_free(c);
    return err;
}

void hth_bench_case_free(struct hth_bench_case *c)
{
    if (c == NULL)
        return;
    hth_exec_free(c->ex);
    hth_backend_free(c->options.backend, c->saved);
    hth_backend_free(c->options.backend, c->memory);
    hth_params_free(c->params);
    hth_free(c);
}

double hth_bench_case_flops(const struct hth_bench_case *c)
{
    return c->flops;
}

double hth_bench_case_bytes(const struct hth_bench_case *c)
{
    return c->bytes;
}

void hth_bench_case_set_team(struct hth_bench_case *c, struct hth_team *team)
{
    hth_exec_set_team(c->ex, team);
}

/* ---- timing one case ----------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum hth_err time_case(struct hth_bench_case *c, struct hth_bench_result *out)
{
    const struct hth_bench_options *o = &c->options;
    double us[REPEATS_MAX];
    uint32_t repeats = o->repeats > 0 ? HTH_MIN(o->repeats, (uint32_t)REPEATS_MAX) : 7;
    HTH_TRY(hth_bench_case_run(c)); /* warms caches and touches pages */
    for (uint32_t i = 0; i < repeats; i++) {
        int64_t start = o->clock_us(o->clock_arg);
        HTH_TRY(hth_bench_case_run(c));
        int64_t spent = o->clock_us(o->clock_arg) - start;
        us[i] = (double)HTH_MAX(spent, 1);
    }
    qsort(us, repeats, sizeof(us[0]), by_value);
    out->us_best = us[0];
    out->us_median = us[repeats / 2];
    out->rows_per_s = hth_bench_kind_is_flat(o->kind) ? 0 : o->rows * 1e6 / out->us_median;
    out->gflops = c->flops * 1e-3 / out->us_median;
    out->gb_per_s = c->bytes * 1e-3 / out->us_median;
    out->check_error = c->error;
    return HTH_OK;
}

enum hth_err hth_bench_run(const struct hth_bench_options *options, struct hth_bench_result *out)
{
    struct hth_bench_case *c;
    *out = (struct hth_bench_result){0};
    if (options->clock_us == NULL)
        return HTH_E_CONFIG;
    HTH_TRY(hth_bench_case_new(options, &c));
    enum hth_err err = time_case(c, out);
    hth_bench_case_free(c);
    return err;
}
