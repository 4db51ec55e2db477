/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kind_nop.c: an expert that returns its input, for measuring everything around it.
 *
 * When all parts of a request are of this kind, the server replies with the request's own bytes.
 * The functions here serve mixed requests and the trainer's local experts.
 */
#include "experts/kind_int.h"

#include "core/mem.h"
#include "kernels/ops.h"

struct hth_module {
    uint32_t d;
};

static enum hth_err nop_shape(struct hth_expert_shape *shape)
{
    HTH_TRY(hth_kind_rows_shape(shape));
    return shape->block_rows == 1 ? HTH_OK : HTH_E_BAD_SHAPE;
}

static enum hth_err nop_new(const struct hth_module_opts *opts, struct hth_module **out)
{
    *out = hth_new(struct hth_module);
    (*out)->d = opts->shape.d;
    return HTH_OK;
}

static void nop_free(struct hth_module *module)
{
    hth_free(module);
}

static struct hth_params *nop_params(struct hth_module *module)
{
    (void)module;
    return NULL;
}

static size_t nop_scratch(const struct hth_module_opts *opts, uint32_t rows, bool backward)
{
    (void)opts;
    (void)rows;
    (void)backward;
    return 0;
}

static enum hth_err nop_forward(const struct hth_module *module, struct hth_exec *ex,
                                struct hth_view x, struct hth_view y)
{
    if (x.cols != module->d || y.cols != module->d || x.rows != y.rows)
        return HTH_E_BAD_SHAPE;
    return hth_cast(ex, x, y); /* equal types: a copy, in any memory */
}

static enum hth_err nop_backward(struct hth_module *module, struct hth_exec *ex, struct hth_view x,
                                 struct hth_view dy, struct hth_view dx)
{
    (void)x;
    return nop_forward(module, ex, dy, dx);
}

static double nop_flops(const struct hth_expert_shape *shape, bool backward)
{
    (void)shape;
    (void)backward;
    return 0;
}

static uint64_t nop_weights(const struct hth_expert_shape *shape)
{
    (void)shape;
    return 0;
}

const struct hth_expert_kind hth_kind_nop = {
    .name = "nop",
    .shape = nop_shape,
    .module_new = nop_new,
    .module_free = nop_free,
    .params = nop_params,
    .scratch_bytes = nop_scratch,
    .forward = nop_forward,
    .backward = nop_backward,
    .flops_per_row = nop_flops,
    .weights = nop_weights,
    .passes_through = true,
};
