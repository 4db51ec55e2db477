/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kind_ffn.c: the feed-forward expert, y = LayerNorm(x + W2 gelu(W1 x + b1) + b2).
 *
 * A thin layer over kernels/blocks.h. The backward pass runs the forward again, because a host
 * keeps no activations between a trainer's two calls. That forward saves its activations in the
 * context's scratch.
 */
#include "experts/kind_int.h"

#include "core/mem.h"
#include "kernels/blocks.h"

struct hth_module {
    struct hth_params *params;
    struct hth_ffn ffn;
};

static enum hth_err ffn_shape(struct hth_expert_shape *shape)
{
    HTH_TRY(hth_kind_rows_shape(shape));
    return shape->block_rows == 1 ? HTH_OK : HTH_E_BAD_SHAPE;
}

static void ffn_free(struct hth_module *module)
{
    if (module == NULL)
        return;
    hth_params_free(module->params);
    hth_free(module);
}

static enum hth_err ffn_new(const struct hth_module_opts *opts, struct hth_module **out)
{
    const struct hth_ffn_options ffn = {.dim = opts->shape.d, .hidden = opts->shape.inner};
    struct hth_module *m = hth_new(struct hth_module);
    enum hth_err err;

    HTH_GOTO(out, hth_params_new(opts->backend, &m->params));
    HTH_GOTO(out, hth_ffn_declare(m->params, &ffn, &m->ffn));
    HTH_GOTO(out, hth_params_seal(m->params, &opts->seal));
    *out = m;
    return HTH_OK;
out:
    ffn_free(m);
    return err;
}

static struct hth_params *ffn_params(struct hth_module *module)
{
    return module->params;
}

static size_t ffn_scratch(const struct hth_module_opts *opts, uint32_t rows, bool backward)
{
    const struct hth_ffn f = {.dim = opts->shape.d, .hidden = opts->shape.inner};
    size_t bytes = hth_ffn_scratch_bytes(opts->backend, &f, rows);

    return backward ? bytes + hth_exec_cost(hth_ffn_saved_bytes(&f, rows)) : bytes;
}

static enum hth_err ffn_forward(const struct hth_module *module, struct hth_exec *ex,
                                struct hth_view x, struct hth_view y)
{
    return hth_ffn_forward(ex, &module->ffn, x, y, NULL);
}

/* The y of the recomputed forward is not needed: it goes into the room of dx. */
static enum hth_err ffn_backward(struct hth_module *module, struct hth_exec *ex, struct hth_view x,
                                 struct hth_view dy, struct hth_view dx)
{
    size_t mark = hth_exec_mark(ex);
    void *saved = hth_exec_take(ex, hth_ffn_saved_bytes(&module->ffn, x.rows));
    enum hth_err err = HTH_E_NO_MEMORY;

    if (saved == NULL)
        goto out;
    HTH_GOTO(out, hth_ffn_forward(ex, &module->ffn, x, dx, saved));
    HTH_GOTO(out, hth_ffn_backward(ex, &module->ffn, x, saved, dy, dx));
out:
    hth_exec_release(ex, mark);
    return err;
}

static enum hth_err ffn_many(struct hth_exec *ex, const struct hth_module_call *calls,
                             uint32_t count, bool backward)
{
    struct hth_ffn_entry entries[HTH_MODULE_CALLS_MAX];
    size_t mark = hth_exec_mark(ex);
    enum hth_err err = HTH_E_NO_MEMORY;

    for (uint32_t i = 0; i < count; i++) {
        const struct hth_module_call *c = &calls[i];
        const struct hth_ffn *f = &c->module->ffn;
        void *saved = backward ? hth_exec_take(ex, hth_ffn_saved_bytes(f, c->x.rows)) : NULL;
        if (backward && saved == NULL)
            goto out;
        entries[i] = (struct hth_ffn_entry){.ffn = f,
                                            .x = c->x,
                                            .y = backward ? c->dx : c->y,
                                            .saved = saved,
                                            .dy = c->dy,
                                            .dx = c->dx};
    }
    HTH_GOTO(out, hth_ffn_forward_many(ex, entries, count));
    if (backward)
        err = hth_ffn_backward_many(ex, entries, count);
out:
    hth_exec_release(ex, mark);
    return err;
}

/* A forward has two products. A backward repeats them and adds two for dx and two for the
 * weights. */
static double ffn_flops(const struct hth_expert_shape *shape, bool backward)
{
    double forward = 4.0 * shape->d * shape->inner;

    return backward ? 3 * forward : forward;
}

static uint64_t ffn_weights(const struct hth_expert_shape *shape)
{
    return 2 * (uint64_t)shape->d * shape->inner + shape->inner + 3 * (uint64_t)shape->d;
}

const struct hth_expert_kind hth_kind_ffn = {
    .name = "ffn",
    .shape = ffn_shape,
    .module_new = ffn_new,
    .module_free = ffn_free,
    .params = ffn_params,
    .scratch_bytes = ffn_scratch,
    .forward = ffn_forward,
    .backward = ffn_backward,
    .many = ffn_many,
    .flops_per_row = ffn_flops,
    .weights = ffn_weights,
};
