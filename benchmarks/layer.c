/* SPDX-License-Identifier: Apache-2.0 */
/* layer.c: runs a mixture-of-experts layer as a trainer does. */
#include "benchmarks/layer.h"

#include "core/mem.h"
#include "dht/directory.h"
#include "gating/beam.h"
#include "gating/gate.h"
#include "gating/mixture.h"
#include "kernels/ops.h"
#include "kernels/optim.h"

#include <string.h>

#define GATE_LR 0.01f

struct hth_bench_layer {
    struct hth_bench_swarm *swarm;
    uint32_t rows, k, d, width;
    struct hth_grid_view *view;
    struct hth_beam *beam;
    struct hth_params *params;
    struct hth_weight *gate;
    struct hth_exec *ex;
    /* [rows, ...] */
    struct hth_tensor x, dy; /* dy [rows * k, d] */
    float *tables, *dtables, *scores, *dscores, *weights, *out, *dout;
    float *y, *dx; /* [rows * k, d] */
    uint8_t *ok;
    const float **y_at;
    float **dy_at;
    uint32_t *index;
    /* the current call */
    struct hth_expert_target *targets;
    struct hth_expert_pair *pairs;
    uint32_t *target_of; /* index is an expert; UINT32_MAX: not chosen in this step */
    uint32_t targets_count;
};

static enum hth_err make_view(struct hth_bench_layer *l)
{
    uint32_t n = l->swarm->opts.experts, *index = hth_new_array(uint32_t, n);
    for (uint32_t i = 0; i < n; i++)
        index[i] = i;
    enum hth_err err = hth_grid_view_new(&l->swarm->grid, index, n, &l->view);
    hth_free(index);
    return err;
}

static enum hth_err make_gate(struct hth_bench_layer *l)
{
    const struct hth_backend *be = l->swarm->opts.bench->backend;
    struct hth_beam_opts beam = HTH_BEAM_OPTS_INIT;
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    const struct hth_param_spec spec = {
        .name = "gate", .rows = l->d, .cols = l->width, .init = HTH_INIT_LINEAR};
    beam.k = l->k;
    seal.seed = l->swarm->opts.bench->seed;
    seal.state_slots = 0;
    HTH_TRY(hth_beam_new(&l->swarm->grid, &beam, &l->beam));
    HTH_TRY(hth_params_new(be, &l->params));
    HTH_TRY(hth_params_add(l->params, &spec, &l->gate));
    HTH_TRY(hth_params_seal(l->params, &seal));
    return hth_exec_new(be, hth_linear_scratch(be, l->d, l->width), &l->ex);
}

static enum hth_err make_arrays(struct hth_bench_layer *l)
{
    size_t rows = l->rows, pairs = rows * l->k, experts = l->swarm->opts.experts;
    l->x = hth_bench_tensor(l->rows, l->d);
    l->dy = hth_bench_tensor(l->rows * l->k, l->d);
    if (l->x.blob == NULL || l->dy.blob == NULL)
        return HTH_E_NO_MEMORY;
    hth_bench_normals(l->swarm->opts.bench->seed, 1, hth_bench_floats(&l->x), rows * l->d);
    l->tables = hth_new_array(float, rows * l->width);
    l->dtables = hth_new_array(float, rows * l->width);
    l->scores = hth_new_array(float, pairs);
    l->dscores = hth_new_array(float, pairs);
    l->weights = hth_new_array(float, pairs);
    l->out = hth_new_array(float, rows * l->d);
    l->dout = hth_new_array(float, rows * l->d);
    l->y = hth_new_array(float, pairs * l->d);
    l->dx = hth_new_array(float, pairs * l->d);
    l->ok = hth_new_array(uint8_t, pairs);
    l->y_at = hth_new_array(const float *, pairs);
    l->dy_at = hth_new_array(float *, pairs);
    l->index = hth_new_array(uint32_t, pairs);
    l->targets = hth_new_array(struct hth_expert_target, experts);
    l->pairs = hth_new_array(struct hth_expert_pair, pairs);
    l->target_of = hth_new_array(uint32_t, experts);
    return HTH_OK;
}

enum hth_err hth_bench_layer_new(struct hth_bench_swarm *swarm, uint32_t rows, uint32_t k,
                                 struct hth_bench_layer **out)
{
    struct hth_bench_layer *l = hth_new(struct hth_bench_layer);
    enum hth_err err;
    *out = NULL;
    l->swarm = swarm;
    l->rows = rows;
    l->k = k;
    l->d = swarm->opts.d;
    l->width = hth_gate_width(&swarm->grid);
    HTH_GOTO(out, make_view(l));
    HTH_GOTO(out, make_gate(l));
    HTH_GOTO(out, make_arrays(l));
    *out = l;
    return HTH_OK;
out:
    hth_bench_layer_free(l);
    return err;
}

void hth_bench_layer_free(struct hth_bench_layer *l)
{
    if (l == NULL)
        return;
    hth_grid_view_unref(l->view);
    hth_beam_free(l->beam);
    hth_exec_free(l->ex);
    hth_params_free(l->params);
    hth_blob_unref(l->x.blob);
    hth_blob_unref(l->dy.blob);
    hth_free(l->tables);
    hth_free(l->dtables);
    hth_free(l->scores);
    hth_free(l->dscores);
    hth_free(l->weights);
    hth_free(l->out);
    hth_free(l->dout);
    hth_free(l->y);
    hth_free(l->dx);
    hth_free(l->ok);
    hth_free(l->y_at);
    hth_free(l->dy_at);
    hth_free(l->index);
    hth_free(l->targets);
    hth_free(l->pairs);
    hth_free(l->target_of);
    hth_free(l);
}

/* ---- a step -------------------------------------------------------------------------------- */

static enum hth_err choose(struct hth_bench_layer *l, struct hth_bench_layer_step *step)
{
    const struct hth_linear lin = {.w = l->gate, .pre = HTH_VIEW_NONE, .residual = HTH_VIEW_NONE};
    const struct hth_beam_result result = {.index = l->index, .score = l->scores};
    const struct hth_beam_batch batch = {.view = l->view, .tables = l->tables, .rows = l->rows};
    HTH_TRY(hth_linear_forward(l->ex, &lin,
                               hth_view_f32(hth_bench_floats(&l->x), l->rows, l->d, l->d),
                               hth_view_f32(l->tables, l->rows, l->width, l->width)));
    HTH_TRY(hth_exec_sync(l->ex));
    int64_t start_ns = hth_bench_now_ns(NULL);
    HTH_TRY(hth_beam_search(l->beam, &batch, &result, NULL));
    step->ms_search = (double)(hth_bench_now_ns(NULL) - start_ns) / 1e6;
    return HTH_OK;
}

/* Pair i is choice i of the batch. Every place of the grid has an expert, so no choice fails. */
static enum hth_err make_call(struct hth_bench_layer *l, struct hth_expert_call *call)
{
    uint32_t pairs = l->rows * l->k;
    memset(l->target_of, 0xff, l->swarm->opts.experts * sizeof(*l->target_of));
    l->targets_count = 0;
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t expert = l->index[i];
        if (expert == HTH_GATE_NONE)
            return HTH_E_BUG;
        if (l->target_of[expert] == UINT32_MAX) {
            l->target_of[expert] = l->targets_count;
            l->targets[l->targets_count++] = l->swarm->targets[expert];
        }
        l->pairs[i] = (struct hth_expert_pair){.unit = i / l->k, .target = l->target_of[expert]};
    }
    *call = (struct hth_expert_call){
        .layer = l->swarm->grid.name,
        .ndim = l->swarm->grid.ndim,
        .x = l->x,
        .targets = l->targets,
        .targets_count = l->targets_count,
        .pairs = l->pairs,
        .pairs_count = pairs,
        .wire = l->swarm->opts.bench->wire,
    };
    return HTH_OK;
}

static enum hth_err ask(struct hth_bench_layer *l, const struct hth_expert_call *call, float *out,
                        uint32_t *requests, uint64_t *bytes, struct hth_expert_batch **batch)
{
    struct hth_expert_batch_info info;
    HTH_TRY(hth_bench_ask(&l->swarm->clients[0], call, batch));
    uint32_t not_finite = hth_expert_batch_unpack(*batch, out, l->d, l->ok);
    hth_expert_batch_info(*batch, &info);
    *requests = info.requests;
    *bytes += info.bytes_in + info.bytes_out;
    return not_finite > 0 ? HTH_E_NOT_FINITE : HTH_OK;
}

static double loss_and_gradient(struct hth_bench_layer *l)
{
    size_t count = (size_t)l->rows * l->d;
    const float *x = hth_bench_floats(&l->x);
    float scale = 2.0f / (float)count;
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        float diff = l->out[i] - x[i];
        sum += (double)diff * (double)diff;
        l->dout[i] = scale * diff;
    }
    return sum / (double)count;
}

static enum hth_err update_gate(struct hth_bench_layer *l)
{
    const struct hth_gate_batch batch = {
        .grid = &l->swarm->grid, .rows = l->rows, .k = l->k, .index = l->index};
    const struct hth_optim sgd = {.kind = HTH_OPTIM_SGD, .lr = GATE_LR};
    memset(l->dtables, 0, (size_t)l->rows * l->width * sizeof(float));
    hth_gate_backward(&batch, l->dscores, l->dtables);
    hth_params_zero_grads(l->params);
    HTH_TRY(hth_linear_backward_weight(l->ex, l->gate, NULL,
                                       hth_view_f32(hth_bench_floats(&l->x), l->rows, l->d, l->d),
                                       hth_view_f32(l->dtables, l->rows, l->width, l->width)));
    return hth_optim_step(l->ex, l->params, &sgd, 1.0f);
}

enum hth_err hth_bench_layer_step(struct hth_bench_layer *l, struct hth_bench_layer_step *step)
{
    struct hth_expert_call call;
    struct hth_expert_batch *forward = NULL, *backward = NULL;
    enum hth_err err;
    size_t pairs = (size_t)l->rows * l->k;
    struct hth_mixture mix = {.rows = l->rows, .k = l->k, .d = l->d, .scores = l->scores};
    int64_t start_us = hth_bench_now_us(NULL);
    *step = (struct hth_bench_layer_step){0};
    HTH_GOTO(out, choose(l, step));
    HTH_GOTO(out, make_call(l, &call));
    call.keep = true;
    HTH_GOTO(out, ask(l, &call, l->y, &step->requests_forward, &step->bytes, &forward));
    for (size_t i = 0; i < pairs; i++) {
        l->y_at[i] = l->y + i * l->d;
        l->dy_at[i] = hth_bench_floats(&l->dy) + i * l->d;
    }
    mix.y = l->y_at;
    hth_mixture_forward(&mix, l->weights, l->out, NULL);
    int64_t middle_us = hth_bench_now_us(NULL);
    step->loss = loss_and_gradient(l);
    hth_mixture_backward(&mix, l->weights, l->dout, l->dscores, l->dy_at);
    call.dy = l->dy;
    call.forward = forward;
    HTH_GOTO(out, ask(l, &call, l->dx, &step->requests_backward, &step->bytes, &backward));
    HTH_GOTO(out, update_gate(l));
    int64_t end_us = hth_bench_now_us(NULL);
    step->experts = l->targets_count;
    step->ms = (double)(end_us - start_us) / 1e3;
    step->ms_forward = (double)(middle_us - start_us) / 1e3;
    step->ms_backward = (double)(end_us - middle_us) / 1e3;
out:
    hth_expert_batch_free(forward);
    hth_expert_batch_free(backward);
    return err;
}
