/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench-ops.c: the operations between the products, one by one, for the device's table.
 *
 * All of an operation's operands lie in one block of memory, which starts out the same on the
 * device and on the CPU: so after the operation the two blocks are compared as a whole.
 */
#include "kernels/bench-internal.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/backend-internal.h"

#define CHECK_ROWS 64u
#define MATRICES   5
#define HEAD       64u
#define SEQ        1024u

/* One operation's world: matrices a, b, c, d, e of [rows, dim]. */
struct world {
    const struct hth_backend *be;
    struct hth_exec *ex;
    struct hth_params *p;
    struct hth_weight *gamma, *beta, *table;
    uint32_t rows, dim, heads, seq;
    float *block;
    size_t floats;
    struct hth_view m[MATRICES];
    struct hth_view qkv, dqkv, lse, stats, index, half;
    struct hth_xent_result xent;
    struct hth_sumsq_result sumsq;
    const struct op *op;
};

struct op {
    const char *name;
    double bytes; /* per element of [rows, dim] */
    double flops; /* per element, times the length of a sequence */
    enum hth_err (*run)(struct world *w);
};

enum { A, B, C, D, E };

/* -- the operations ------------------------------------------------------------------------ */

static enum hth_err run_copy(struct world *w)
{
    return hth_cast(w->ex, w->m[A], w->m[B]);
}

static enum hth_err run_fill(struct world *w)
{
    return hth_fill(w->ex, w->m[B], 0.25f);
}

static enum hth_err run_combine(struct world *w)
{
    return hth_combine(w->ex, 0.5f, w->m[A], 2.0f, w->m[B], w->m[C]);
}

static enum hth_err run_to_bf16(struct world *w)
{
    return hth_cast(w->ex, w->m[A], w->half);
}

static enum hth_err run_from_bf16(struct world *w)
{
    return hth_cast(w->ex, w->half, w->m[B]);
}

static enum hth_err run_dropout(struct world *w)
{
    const struct hth_dropout drop = {.p = 0.1f, .seed = 5};
    return hth_dropout(w->ex, &drop, w->m[A], w->m[B]);
}

static enum hth_err run_gelu(struct world *w)
{
    return hth_act_forward(w->ex, HTH_ACT_GELU, w->m[A], w->m[B]);
}

static enum hth_err run_gelu_back(struct world *w)
{
    return hth_act_backward(w->ex, HTH_ACT_GELU, w->m[A], w->m[B], w->m[C]);
}

static enum hth_err run_layernorm(struct world *w)
{
    const struct hth_layernorm ln = {.gamma = w->gamma, .beta = w->beta, .eps = 1e-5f};
    return hth_layernorm_forward(w->ex, &ln, w->m[A], w->m[B], w->stats);
}

static enum hth_err run_layernorm_back(struct world *w)
{
    const struct hth_layernorm_back ln = {
        .gamma = w->gamma, .beta = w->beta, .x = w->m[A], .stats = w->stats};
    hth_params_zero_grads(w->p);
    return hth_layernorm_backward(w->ex, &ln, w->m[B], w->m[C]);
}

static enum hth_err run_softmax(struct world *w)
{
    return hth_softmax_forward(w->ex, w->m[A], w->m[B]);
}

static enum hth_err run_softmax_back(struct world *w)
{
    return hth_softmax_backward(w->ex, w->m[A], w->m[B], w->m[C]);
}

static enum hth_err run_xent(struct world *w)
{
    return hth_xent(w->ex, w->m[A], w->index, 1.0f, w->m[B], &w->xent);
}

static enum hth_err run_gather(struct world *w)
{
    return hth_gather_rows(w->ex, w->m[A], w->index, w->m[B]);
}

static enum hth_err run_scatter(struct world *w)
{
    return hth_scatter_add_rows(w->ex, w->m[A], w->index, HTH_VIEW_NONE, w->m[B]);
}

static enum hth_err run_sumsq(struct world *w)
{
    return hth_sumsq(w->ex, w->m[A], &w->sumsq);
}

static enum hth_err run_attention(struct world *w)
{
    const struct hth_attention att = {.seq = w->seq, .heads = w->heads};
    return hth_attention_forward(w->ex, &att, w->qkv, w->m[D], w->lse);
}

static enum hth_err run_attention_back(struct world *w)
{
    const struct hth_attention att = {.seq = w->seq, .heads = w->heads};
    const struct hth_attention_saved saved = {w->qkv, w->m[D], w->lse};
    return hth_attention_backward(w->ex, &att, &saved, w->m[A], w->dqkv);
}

/* Attention after the others: it makes what its backward reads. Causal: half of the products. */
static const struct op ops[] = {
    {"copy", 8, 0, run_copy},
    {"fill", 4, 0, run_fill},
    {"combine", 12, 0, run_combine},
    {"to_bf16", 6, 0, run_to_bf16},
    {"from_bf16", 6, 0, run_from_bf16},
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

/* With base NULL only counts. */
static size_t lay_out(struct world *w, float *base)
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
    w->half = (struct hth_view){at, HTH_BF16, w->rows, w->dim, 2 * hth_ld_f32(w->dim)};
    at += (size_t)w->rows * hth_ld_f32(w->dim);
    w->index = hth_view_i32((int32_t *)(void *)at, w->rows);
    return (size_t)(at - first) + w->rows;
}

/* Numbers in (0, 1), which every operation takes, 0.5 in the bf16 matrix; every index and label is
 * a row and a column. */
static float *numbers(const struct world *w)
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

static void world_clear(struct world *w)
{
    hth_exec_free(w->ex);
    hth_backend_free(w->be, w->block);
    hth_params_free(w->p);
}

static enum hth_err world_init(struct world *w, const struct hth_backend *be, uint32_t dim,
                               uint32_t rows)
{
    struct hth_seal_options seal = {.state_slots = 0};
    const struct hth_param_spec gamma = {.name = "g", .rows = 1, .cols = dim};
    const struct hth_param_spec beta = {.name = "b", .rows = 1, .cols = dim};
    *w = (struct world){.be = be, .dim = dim, .rows = rows};
    w->heads = dim % HEAD == 0 ? dim / HEAD : 1;
    w->seq = rows % SEQ == 0 ? SEQ : rows;
    w->floats = lay_out(w, NULL);
    w->block = hth_backend_alloc(be, w->floats * sizeof(float));
    float *host = numbers(w);
    enum hth_err err = HTH_E_NO_MEMORY;
    if (w->block == NULL || host == NULL)
        goto out;
    (void)lay_out(w, w->block);
    HTH_GOTO(out, hth_params_new(be, &w->p));
    HTH_GOTO(out, hth_params_add(w->p, &gamma, &w->gamma));
    HTH_GOTO(out, hth_params_add(w->p, &beta, &w->beta));
    HTH_GOTO(out, hth_params_seal(w->p, &seal));
    HTH_GOTO(out, hth_exec_new(be, hth_attention_scratch(be, rows, dim / w->heads), &w->ex));
    HTH_GOTO(out, hth_exec_upload(w->ex, w->block, host, w->floats * sizeof(float)));
    HTH_GOTO(out, hth_exec_sync(w->ex));
out:
    hth_aligned_free(host);
    return err;
}

/* -- the check ----------------------------------------------------------------------------- */

/* The block after the operation, bf16 numbers as floats in matrix e, and gradients behind it. */
static enum hth_err after(struct world *w, const struct op *op, float *out)
{
    HTH_TRY(op->run(w));
    HTH_TRY(hth_cast(w->ex, w->half, w->m[E]));
    HTH_TRY(hth_exec_download(w->ex, out, w->block, w->floats * sizeof(float)));
    HTH_TRY(hth_exec_sync(w->ex));
    size_t grads = hth_params_flat_len(w->p);
    HTH_TRY(hth_params_export(w->ex, w->p, HTH_PART_GRAD, 0, grads, out + w->floats));
    out[w->floats + grads] = (float)w->sumsq.sum;
    out[w->floats + grads + 1] = (float)w->xent.loss_sum;
    return HTH_OK;
}

/* Over what is floats: neither the bf16 matrix nor the indices. */
static double distance(const struct world *w, const float *got, const float *want)
{
    size_t end = w->floats - w->rows - (size_t)w->rows * hth_ld_f32(w->dim);
    size_t count = w->floats + hth_params_flat_len(w->p) + 2;
    double diff = 0, norm = 0;
    for (size_t i = 0; i < count; i = i + 1 == end ? w->floats : i + 1) {
        double off = (double)got[i] - (double)want[i];
        diff += off * off;
        norm += (double)want[i] * (double)want[i];
    }
    double r = sqrt(diff / (norm > 0 ? norm : 1));
    return isfinite(r) ? r : INFINITY;
}

/* All operations in turns on a small batch, here and there: how far each moved the two apart. */
static enum hth_err check_all(const struct hth_backend *be, uint32_t dim, uint32_t rows,
                              double *errors)
{
    const struct hth_backend *cpu;
    struct world there = {0}, here = {0};
    float *got = NULL, *want = NULL;
    enum hth_err err;
    HTH_TRY(hth_backend_by_name("auto", &cpu));
    HTH_GOTO(out, world_init(&there, be, dim, HTH_MIN(rows, CHECK_ROWS)));
    HTH_GOTO(out, world_init(&here, cpu, dim, HTH_MIN(rows, CHECK_ROWS)));
    size_t floats = here.floats + hth_params_flat_len(here.p) + 2;
    got = hth_try_aligned(floats * sizeof(float));
    want = hth_try_aligned(floats * sizeof(float));
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
    struct world *w = arg;
    return w->op->run(w);
}

void hth_bench_ops(const struct hth_bench_timer *timer, const struct hth_bench_device_options *o,
                   const struct hth_bench_rates *rates, uint32_t dim, uint32_t rows)
{
    double errors[HTH_ARRAY_LEN(ops)] = {0};
    struct world w;
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
