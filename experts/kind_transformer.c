/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kind_transformer.c: a causal transformer block as an expert. A unit of work is a whole sequence
 * of block_rows rows: attention needs the whole sequence, and then nothing from other requests.
 */
#include "experts/kind_int.h"

#include "core/mem.h"
#include "kernels/blocks.h"

#define ROPE_BASE 10000.0

struct hth_module {
    struct hth_params *params;
    struct hth_rope *rope;
    struct hth_tblock block;
    uint32_t seq;
};

static enum hth_err tr_shape(struct hth_expert_shape *shape)
{
    HTH_TRY(hth_kind_rows_shape(shape));
    if (shape->heads == 0)
        shape->heads = HTH_MAX(1u, shape->d / 64);
    if (shape->d % shape->heads != 0 || shape->d / shape->heads % 2 != 0)
        return HTH_E_BAD_SHAPE;
    return HTH_OK;
}

static void tr_free(struct hth_module *module)
{
    if (module == NULL)
        return;
    hth_params_free(module->params);
    hth_rope_free(module->rope);
    hth_free(module);
}

static enum hth_err tr_new(const struct hth_module_opts *opts, struct hth_module **out)
{
    const struct hth_expert_shape *s = &opts->shape;
    struct hth_module *m = hth_new(struct hth_module);
    struct hth_tblock_options block = {.dim = s->d, .hidden = s->inner, .heads = s->heads};
    enum hth_err err;

    m->seq = s->block_rows;
    HTH_GOTO(out, hth_rope_new(opts->backend, m->seq, s->d / s->heads, ROPE_BASE, &m->rope));
    block.rope = m->rope;
    HTH_GOTO(out, hth_params_new(opts->backend, &m->params));
    HTH_GOTO(out, hth_tblock_declare(m->params, &block, &m->block));
    HTH_GOTO(out, hth_params_seal(m->params, &opts->seal));
    *out = m;
    return HTH_OK;
out:
    tr_free(m);
    return err;
}

static struct hth_params *tr_params(struct hth_module *module)
{
    return module->params;
}

static size_t tr_scratch(const struct hth_module_opts *opts, uint32_t rows, bool backward)
{
    const struct hth_expert_shape *s = &opts->shape;
    const struct hth_tblock t = {.dim = s->d, .hidden = s->inner, .heads = s->heads};
    size_t bytes = hth_tblock_scratch_bytes(opts->backend, &t, rows, s->block_rows);

    return backward ? bytes + hth_exec_cost(hth_tblock_saved_bytes(&t, rows)) : bytes;
}

static enum hth_err tr_forward(const struct hth_module *module, struct hth_exec *ex,
                               struct hth_view x, struct hth_view y)
{
    return hth_tblock_forward(ex, &module->block, module->seq, x, y, NULL);
}

static enum hth_err tr_backward(struct hth_module *module, struct hth_exec *ex, struct hth_view x,
                                struct hth_view dy, struct hth_view dx)
{
    size_t mark = hth_exec_mark(ex);
    struct hth_tblock_back back = {.seq = module->seq, .x = x};
    enum hth_err err = HTH_E_NO_MEMORY;

    back.saved = hth_exec_take(ex, hth_tblock_saved_bytes(&module->block, x.rows));
    if (back.saved == NULL)
        goto out;
    HTH_GOTO(out, hth_tblock_forward(ex, &module->block, module->seq, x, dx, back.saved));
    HTH_GOTO(out, hth_tblock_backward(ex, &module->block, &back, dy, dx));
out:
    hth_exec_release(ex, mark);
    return err;
}

/* Per row: 8 d^2 for the projections, 4 d inner for the FFN, and scores and values over half of the
 * positions on average. */
static double tr_flops(const struct hth_expert_shape *s, bool backward)
{
    double d = s->d;
    double forward = 8 * d * d + 4 * d * s->inner + 2 * d * (s->block_rows + 1.0);

    return backward ? 3 * forward : forward;
}

static uint64_t tr_weights(const struct hth_expert_shape *s)
{
    uint64_t d = s->d;

    return 4 * d * d + 2 * d * s->inner + s->inner + 9 * d;
}

const struct hth_expert_kind hth_kind_transformer = {
    .name = "transformer",
    .shape = tr_shape,
    .module_new = tr_new,
    .module_free = tr_free,
    .params = tr_params,
    .scratch_bytes = tr_scratch,
    .forward = tr_forward,
    .backward = tr_backward,
    .flops_per_row = tr_flops,
    .weights = tr_weights,
};
