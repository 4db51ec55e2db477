/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.c: measures the operations between the products, one by one, for the device's table.
 *
 * All operands of an operation are in one block of memory with the same content on the device and
 * on the CPU, so that after the operation the two blocks are compared as a whole.
 */
#include "benchmarks/kernels/kernels_int.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/backend_int.h"
#include "kernels/quant.h"

#define CHECK_ROWS 64u
#define MATRICES   5
#define HEAD       64u
#define SEQ        1024u
#define RATE       0.1f /* of the optimisers: a step large enough for the check to see */
#define INT8_BYTES (4 + 1 + 2.0 / HTH_QUANT_INT8_BLOCK)

/* The operands: matrices a, b, c, d, e of [rows, dim], one of another type, given by its dtype, and
 * an embedding table of the same shape, which optimisers step, too. */
struct bench_operands {
    const struct hth_backend *be;
    struct hth_exec *ex;
    struct hth_params *norm, *embedding;
    struct hth_weight *gamma, *beta, *table;
    uint32_t rows, dim, heads, seq;
    float *block;
    size_t floats;
    struct hth_view m[MATRICES];
    struct hth_view qkv, dqkv, lse, stats, index, other;
    struct hth_xent_result xent;
    struct hth_sumsq_result sumsq;
    const struct bench_op *op;
};

struct bench_op {
    const char *name;
    double bytes; /* per element of [rows, dim] */
    double flops; /* per element, times the length of a sequence */
    enum hth_err (*run)(struct bench_operands *w);
};

enum { A, B, C, D, E };

/* -- the operations ------------------------------------------------------------------------ */

static enum hth_err run_copy(struct bench_operands *w)
{
    return hth_cast(w->ex, w->m[A], w->m[B]);
}

static enum hth_err run_fill(struct bench_operands *w)
{
    return hth_fill(w->ex, w->m[B], 0.25f);
}

static enum hth_err run_combine(struct bench_operands *w)
{
    return hth_combine(w->ex, 0.5f, w->m[A], 2.0f, w->m[B], w->m[C]);
}

/* The matrix as another type; its memory has room for floats. */
static struct hth_view other_as(struct bench_operands *w, enum hth_dtype type)
{
    uint32_t bytes = 4 * hth_ld_f32(w->dim);
    bool int8 = type == HTH_I8;
    w->other.dtype = type;
    w->other.cols = int8 ? (uint32_t)hth_quant_bytes(HTH_QUANT_INT8, w->dim) : w->dim;
    w->other.ld = int8 ? bytes : bytes / 2;
    return w->other;
}

static enum hth_err run_to_bf16(struct bench_operands *w)
{
    return hth_cast(w->ex, w->m[A], other_as(w, HTH_BF16));
}

static enum hth_err run_from_bf16(struct bench_operands *w)
{
    return hth_cast(w->ex, other_as(w, HTH_BF16), w->m[B]);
}

static enum hth_err run_to_fp16(struct bench_operands *w)
{
    return hth_cast(w->ex, w->m[A], other_as(w, HTH_F16));
}

static enum hth_err run_from_fp16(struct bench_operands *w)
{
    return hth_cast(w->ex, other_as(w, HTH_F16), w->m[B]);
}

static enum hth_err run_quantize(struct bench_operands *w)
{
    return hth_cast(w->ex, w->m[A], other_as(w, HTH_I8));
}

static enum hth_err run_dequantize(struct bench_operands *w)
{
    return hth_cast(w->ex, other_as(w, HTH_I8), w->m[B]);
}

static enum hth_err run_dropout(struct bench_operands *w)
{
    const struct hth_dropout drop = {.p = 0.1f, .seed = 5};
    return hth_dropout(w->ex, &drop, w->m[A], w->m[B]);
}

static enum hth_err run_gelu(struct bench_operands *w)
{
    return hth_act_forward(w->ex, HTH_ACT_GELU, w->m[A], w->m[B]);
}

static enum hth_err run_gelu_back(struct bench_operands *w)
{
    return hth_act_backward(w->ex, HTH_ACT_GELU, w->m[A], w->m[B], w->m[C]);
}

static enum hth_err run_layernorm(struct bench_operands *w)
{
    const struct hth_layernorm ln = {.gamma = w->gamma, .beta = w->beta, .eps = 1e-5f};
    return hth_layernorm_forward(w->ex, &ln, w->m[A], w->m[B], w->stats);
}

static enum hth_err run_layernorm_back(struct bench_operands *w)
{
    const struct hth_layernorm_back ln = {
        .gamma = w->gamma, .beta = w->beta, .x = w->m[A], .stats = w->stats};
    hth_params_zero_grads(w->norm);
    return hth_layernorm_backward(w->ex, &ln, w->m[B], w->m[C]);
}

static enum hth_err run_softmax(struct bench_operands *w)
{
    return hth_softmax_forward(w->ex, w->m[A], w->m[B]);
}

static enum hth_err run_softmax_back(struct bench_operands *w)
{
    return hth_softmax_backward(w->ex, w->m[A], w->m[B], w->m[C]);
}

static enum hth_err run_xent(struct bench_operands *w)
{
    return hth_xent(w->ex, w->m[A], w->index, 1.0f, w->m[B], &w->xent);
}

static enum hth_err run_gather(struct bench_operands *w)
{
    return hth_gather_rows(w->ex, w->m[A], w->index, w->m[B]);
}

static enum hth_err run_scatter(struct bench_operands *w)
{
    return hth_scatter_add_rows(w->ex, w->m[A], w->index, HTH_VIEW_NONE, w->m[B]);
}

static enum hth_err run_embed(struct bench_operands *w)
{
    return hth_embed_forward(w->ex, w->table, w->index, w->m[B]);
}

static enum hth_err run_embed_back(struct bench_operands *w)
{
    return hth_embed_backward(w->ex, w->table, w->index, w->m[A]);
}

static enum hth_err step_with(struct bench_operands *w, enum hth_optim_kind kind)
{
    struct hth_optim optim = HTH_OPTIM_INIT;
    optim.kind = kind;
    optim.lr = RATE;
    return hth_optim_step(w->ex, w->embedding, &optim, 1);
}

static enum hth_err run_sgd(struct bench_operands *w)
{
    return step_with(w, HTH_OPTIM_SGD);
}

static enum hth_err run_lamb(struct bench_operands *w)
{
    return step_with(w, HTH_OPTIM_LAMB);
}

static enum hth_err run_sumsq(struct bench_operands *w)
{
    return hth_sumsq(w->ex, w->m[A], &w->sumsq);
}

static enum hth_err run_attention(struct bench_operands *w)
{
    const struct hth_attention att = {.seq = w->seq, .heads = w->heads};
    return hth_attention_forward(w->ex, &att, w->qkv, w->m[D], w->lse);
}

static enum hth_err run_attention_back(struct bench_operands *w)
{
    const struct hth_attention att = {.seq = w->seq, .heads = w->heads};
    const struct hth_attention_saved saved = {w->qkv, w->m[D], w->lse};
    return hth_attention_backward(w->ex, &att, &saved, w->m[A], w->dqkv);
}

/* Order matters: attention writes what its backward reads, casts back follow casts, steps follow
 * gradients. Causal attention does half of the products. */
static const struct bench_op ops[] = {
    {"copy", 8, 0, run_copy},
    {"fill", 4, 0, run_fill},
    {"combine", 12, 0, run_combine},
    {"to_bf16", 6, 0, run_to_bf16},
    {"from_bf16", 6, 0, run_from_bf16},
    {"to_fp16", 6, 0, run_to_fp16},
    {"from_fp16", 6, 0, run_from_fp16},
    {"quantize_int8", INT8_BYTES, 0, run_quantize},
    {"dequantize_int8", INT8_BYTES, 0, run_dequantize},
    {"dropout", 8, 0, run_dropout},
    {"gelu", 8, 0, run_gelu},
    {"gelu_back", 12, 0, run_gelu_back},
    {"layernorm", 8, 0, run_layernorm},
    {"layernorm_back", 12, 0, run_layernorm_back},
    {"softmax", 8, 0, run_softmax},
    {"softmax_back", 12, 0, run_softmax_back},
    {"xent", 8, 0, run_xent},
    {"gather_rows", 8, 0, run_gather},
    {"scatter_add_rows", 12, 0, run_scatter},
    {"embed", 8, 0, run_embed},
    {"embed_back", 12, 0, run_embed_back},
    {"sgd", 20, 0, run_sgd},
    {"lamb", 40, 0, run_lamb},
    {"sumsq", 4, 0, run_sumsq},
    {"attention", 0, 2, run_attention},
    {"attention_back", 0, 5, run_attention_back},
};

/* -- a world ------------------------------------------------------------------------------- */

static struct hth_view next(float **at, uint32_t rows, uint32_t cols)
{
    struct hth_view v = hth_view_f32(*at, rows, cols, hth_ld_f32(cols));
    *at += (size_t)rows * v.ld;
    return v;
}

/* Places the operands in memory at base; with base NULL it only counts. */
static size_t lay_out(struct bench_operands *w, float *base)
{
    static float nowhere[1];
    float *first = base != NULL ? base : nowhere, *at = first;
    if (base == NULL) {
        size_t ld = hth_ld_f32(w->dim), wide = hth_ld_f32(3 * w->dim);
        return (size_t)w->rows *
               ((MATRICES + 1) * ld + 2 * wide + hth_ld_f32(w->heads) + hth_ld_f32(2) + 1);
    }
    for (int i = 0; i < MATRICES; i++)
        w->m[i] = next(&at, w->rows, w->dim);
    w->qkv = next(&at, w->rows, 3 * w->dim);
    w->dqkv = next(&at, w->rows, 3 * w->dim);
    w->lse = next(&at, w->rows, w->heads);
    w->stats = next(&at, w->rows, 2);
    w->other = (struct hth_view){.data = at, .rows = w->rows};
    (void)other_as(w, HTH_BF16);
    at += (size_t)w->rows * hth_ld_f32(w->dim);
    w->index = hth_view_i32((int32_t *)(void *)at, w->rows);
    return (size_t)(at - first) + w->rows;
}

/* The initial content: numbers in (0, 1), valid for every operation, 0.5 in the bf16 matrix, and
 * indices and labels that are valid rows and columns. */
static float *numbers(const struct bench_operands *w)
{
    float *host = hth_try_aligned(w->floats * sizeof(float));
    if (host == NULL)
        return NULL;
    for (size_t i = 0; i + w->rows < w->floats; i++)
        host[i] = ((float)(hth_mix64(i + 1) >> 41) + 1.0f) * 0x1p-24f;
    size_t index = w->floats - w->rows, half = (size_t)w->rows * hth_ld_f32(w->dim);
    for (size_t i = index - half; i < index; i++)
        memcpy(&host[i], &(uint32_t){0x3f003f00}, sizeof(float));
    for (uint32_t r = 0; r < w->rows; r++) {
        int32_t at = (int32_t)(hth_mix64(r) % HTH_MIN(w->rows, w->dim));
        memcpy(&host[index + r], &at, sizeof(at));
    }
    return host;
}

static void world_clear(struct bench_operands *w)
{
    hth_exec_free(w->ex);
    hth_backend_free(w->be, w->block);
    hth_params_free(w->norm);
    hth_params_free(w->embedding);
}

static enum hth_err make_weights(struct bench_operands *w)
{
    struct hth_seal_options seal = {.state_slots = 0};
    const struct hth_param_spec gamma = {.name = "g", .rows = 1, .cols = w->dim};
    const struct hth_param_spec beta = {.name = "b", .rows = 1, .cols = w->dim};
    const struct hth_param_spec table = {
        .name = "t", .rows = w->rows, .cols = w->dim, .init = HTH_INIT_UNIFORM, .scale = 1};
    HTH_TRY(hth_params_new(w->be, &w->norm));
    HTH_TRY(hth_params_add(w->norm, &gamma, &w->gamma));
    HTH_TRY(hth_params_add(w->norm, &beta, &w->beta));
    HTH_TRY(hth_params_seal(w->norm, &seal));
    seal.state_slots = 2;
    HTH_TRY(hth_params_new(w->be, &w->embedding));
    HTH_TRY(hth_params_add(w->embedding, &table, &w->table));
    return hth_params_seal(w->embedding, &seal);
}

static enum hth_err world_init(struct bench_operands *w, const struct hth_backend *be, uint32_t dim,
                               uint32_t rows)
{
    *w = (struct bench_operands){.be = be, .dim = dim, .rows = rows};
    w->heads = dim % HEAD == 0 ? dim / HEAD : 1;
    w->seq = rows % SEQ == 0 ? SEQ : rows;
    w->floats = lay_out(w, NULL);
    w->block = hth_backend_alloc(be, w->floats * sizeof(float));
    float *host = numbers(w);
    enum hth_err err = HTH_E_NO_MEMORY;
    if (w->block == NULL || host == NULL)
        goto out;
    (void)lay_out(w, w->block);
    HTH_GOTO(out, make_weights(w));
    HTH_GOTO(out, hth_exec_new(be, hth_attention_scratch(be, rows, dim / w->heads), &w->ex));
    HTH_GOTO(out, hth_exec_upload(w->ex, w->block, host, w->floats * sizeof(float)));
    HTH_GOTO(out, hth_exec_sync(w->ex));
out:
    hth_aligned_free(host);
    return err;
}

/* -- the check ----------------------------------------------------------------------------- */

/* Number of floats that an operation may write: the block, the weights' parts, two sums. */
static size_t written(const struct bench_operands *w)
{
    return w->floats + hth_params_flat_len(w->norm) + 2 * hth_params_flat_len(w->embedding) + 2;
}

static enum hth_err take_part(struct bench_operands *w, struct hth_params *p, enum hth_part part,
                              float **at)
{
    size_t count = hth_params_flat_len(p);
    HTH_TRY(hth_params_export(w->ex, p, part, 0, count, *at));
    *at += count;
    return HTH_OK;
}

/* Copies all of that after the operation, with the matrix of another type as floats in matrix e. */
static enum hth_err after(struct bench_operands *w, const struct bench_op *op, float *out)
{
    float *at = out + w->floats;
    HTH_TRY(op->run(w));
    HTH_TRY(hth_cast(w->ex, w->other, w->m[E]));
    HTH_TRY(hth_exec_download(w->ex, out, w->block, w->floats * sizeof(float)));
    HTH_TRY(hth_exec_sync(w->ex));
    HTH_TRY(take_part(w, w->norm, HTH_PART_GRAD, &at));
    HTH_TRY(take_part(w, w->embedding, HTH_PART_GRAD, &at));
    HTH_TRY(take_part(w, w->embedding, HTH_PART_VALUE, &at));
    at[0] = (float)w->sumsq.sum;
    at[1] = (float)w->xent.loss_sum;
    return HTH_OK;
}

/* Distance over the floats, without the matrix of another type and the indices. */
static double distance(const struct bench_operands *w, const float *got, const float *want)
{
    size_t end = w->floats - w->rows - (size_t)w->rows * hth_ld_f32(w->dim);
    double diff = 0, norm = 0;
    for (size_t i = 0; i < written(w); i = i + 1 == end ? w->floats : i + 1) {
        double off = (double)got[i] - (double)want[i];
        diff += off * off;
        norm += (double)want[i] * (double)want[i];
    }
    double r = sqrt(diff / (norm > 0 ? norm : 1));
    return isfinite(r) ? r : INFINITY;
}

/* Runs all operations in order on a small batch, on the device and the CPU, and records by how much
 * each moves the two apart. */
static enum hth_err check_all(const struct hth_backend *be, uint32_t dim, uint32_t rows,
                              double *errors)
{
    const struct hth_backend *cpu;
    struct bench_operands there = {0}, here = {0};
    float *got = NULL, *want = NULL;
    enum hth_err err;
    HTH_TRY(hth_backend_by_name("auto", &cpu));
    HTH_GOTO(out, world_init(&there, be, dim, HTH_MIN(rows, CHECK_ROWS)));
    HTH_GOTO(out, world_init(&here, cpu, dim, HTH_MIN(rows, CHECK_ROWS)));
    got = hth_try_aligned(written(&here) * sizeof(float));
    want = hth_try_aligned(written(&here) * sizeof(float));
    err = HTH_E_NO_MEMORY;
    if (got == NULL || want == NULL)
        goto out;
    for (size_t i = 0; i < HTH_ARRAY_LEN(ops); i++) {
        HTH_GOTO(out, after(&there, &ops[i], got));
        HTH_GOTO(out, after(&here, &ops[i], want));
        errors[i] = distance(&here, got, want);
    }
out:
    world_clear(&there);
    world_clear(&here);
    hth_aligned_free(got);
    hth_aligned_free(want);
    return err;
}

/* -- the lines ----------------------------------------------------------------------------- */

static enum hth_err run_op(void *arg)
{
    struct bench_operands *w = arg;
    return w->op->run(w);
}

void hth_bench_ops(const struct hth_bench_timer *timer, const struct hth_bench_device_options *o,
                   const struct hth_bench_rates *rates, uint32_t dim, uint32_t rows)
{
    double errors[HTH_ARRAY_LEN(ops)] = {0};
    struct bench_operands w;
    enum hth_err err = check_all(o->backend, dim, rows, errors);
    enum hth_err made = world_init(&w, o->backend, dim, rows);
    for (size_t i = 0; i < HTH_ARRAY_LEN(ops); i++) {
        double elements = (double)rows * dim;
        struct hth_bench_line l = {.op = ops[i].name,
                                   .dim = dim,
                                   .rows = rows,
                                   .err = err != HTH_OK ? err : made,
                                   .flops = ops[i].flops * elements * w.seq,
                                   .bytes = ops[i].bytes * elements,
                                   .check_error = errors[i]};
        w.op = &ops[i];
        if (l.err == HTH_OK && !(errors[i] < HTH_BENCH_OPS_TOLERANCE))
            l.err = HTH_E_BUG;
        if (l.err == HTH_OK)
            l.err = hth_bench_median_us(timer, w.ex, run_op, &w, &l.us);
        l.floor_us = hth_bench_floor_us(l.flops, l.bytes, rates);
        o->on_line(o->arg, &l);
    }
    world_clear(&w);
}
