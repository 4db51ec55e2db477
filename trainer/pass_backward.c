/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass_backward.c: the segments backward. A segment zeroes the model's gradient buffer, computes
 * its weight gradients in it and copies them to the flight's own, as other flights' segments run
 * before this flight's next one.
 */
#include <string.h>

#include "gating/gate.h"
#include "trainer/pass_steps.h"

/* Swaps *buffer with the spare buffer, which holds a new result: residuals may not overlap their
 * sum. */
static void take_spare(struct hth_pass *p, float **buffer)
{
    float *old = *buffer;

    *buffer = p->spare;
    p->spare = old;
}

static enum hth_err keep_stretch(struct hth_pass *p, struct hth_stretch s)
{
    return hth_params_export(p->model->exec, p->model->params, HTH_PART_GRAD, s.first, s.count,
                             p->grads + s.first);
}

/* Copies the gradients of one segment. */
static enum hth_err keep_grads(struct hth_pass *p, uint32_t segment)
{
    if (segment == 0)
        HTH_TRY(keep_stretch(p, p->model->input));
    return keep_stretch(p, p->model->own[segment]);
}

/* Downloads the stream's gradient for the mixtures; valid after the next sync. */
static enum hth_err show_dx(const struct hth_pass *p)
{
    return hth_pass_down(p, p->dx, p->dx, (size_t)p->rows * p->model->opts.d);
}

/* From dx = dL/d(mixture of layer l): dscore, and dy of the pairs that answered. */
static void mixture_back(struct hth_pass *p, uint32_t l)
{
    struct hth_pass_layer *layer = &p->layer[l];
    struct hth_mixture mixture = hth_pass_mixture(p, l);
    size_t slots = mixture.rows * mixture.k;

    hth_pass_pick_back(p, l);
    for (size_t i = 0; i < slots; i++)
        p->dyptr[i] = NULL;
    for (uint32_t i = 0; i < layer->back_count; i++)
        p->dyptr[layer->back_slot[i]] = (float *)layer->dy->data + i * mixture.d;
    hth_mixture_backward(&mixture, layer->weight, p->dx, layer->dscore, p->dyptr);
}

enum hth_err hth_pass_head_back(struct hth_pass *p, struct hth_view dlogits)
{
    struct hth_model *m = p->model;
    struct hth_linear_back lin = {.w = m->wout};
    struct hth_layernorm_back ln = {
        .gamma = m->gamma,
        .beta = m->beta,
        .x = hth_pass_rows(p, p->x),
        .stats = hth_pass_view(p, p->stats, p->rows, 2),
    };

    hth_params_zero_grads(m->params);
    HTH_TRY(hth_linear_backward_weight(m->exec, m->wout, m->ids[0].bias, hth_pass_rows(p, p->h),
                                       dlogits));
    HTH_TRY(hth_linear_backward_data(m->exec, &lin, dlogits, hth_pass_rows(p, p->dh)));
    HTH_TRY(hth_layernorm_backward(m->exec, &ln, hth_pass_rows(p, p->dh), hth_pass_rows(p, p->dx)));
    HTH_TRY(show_dx(p));
    HTH_TRY(keep_grads(p, m->opts.layers)); /* waits for both */
    mixture_back(p, m->opts.layers - 1);
    return HTH_OK;
}

/* dh [R, d] = sum of the input gradients of the pairs that answered, in the order of the pairs. */
static void sum_answers(struct hth_pass *p, uint32_t l)
{
    struct hth_pass_layer *layer = &p->layer[l];
    size_t unit = (size_t)p->model->block_rows * p->model->opts.d;

    memset(p->dh, 0, (size_t)p->rows * p->model->opts.d * sizeof(float));
    if (layer->back_batch == NULL)
        return;
    /* The mixture's backward was the last to read y and ok of the forward: reuse them. */
    layer->bad_back = hth_transport_unpack(layer->back_batch, layer->y, unit, layer->ok);
    for (uint32_t i = 0; i < layer->back_count; i++) {
        float *out = p->dh + layer->back_pairs[i].unit * unit;
        const float *in = layer->y + i * unit;

        for (size_t j = 0; layer->ok[i] && j < unit; j++)
            out[j] += in[j];
    }
}

/* Gradients of the gate's weights, and the gate's part of dh. A transformer's gate reads the mean
 * over the rows of its unit. */
static enum hth_err gate_back(struct hth_pass *p, uint32_t l)
{
    const struct hth_model *m = p->model;
    const struct hth_model_layer *w = &m->layer[l];
    struct hth_pass_layer *a = &p->layer[l];
    uint32_t d = m->opts.d, block = m->block_rows;
    float *gate_in = block > 1 ? a->pool : hth_pass_h(p, l);
    size_t floats = (size_t)p->rows * d, entries = (size_t)p->units * m->table_width;
    struct hth_view dt = hth_pass_view(p, p->dtables, p->units, m->table_width);
    struct hth_gate_batch batch = {&w->set->grid, p->units, m->opts.top_k, a->index};
    struct hth_linear_back lin = {.w = w->wgate};
    struct hth_balance_result balance;

    memset(p->dtables, 0, entries * sizeof(float));
    hth_gate_backward(&batch, a->dscore, p->dtables);
    if (m->opts.balance > 0) {
        struct hth_balance_opts opts = {.switch_weight = m->opts.balance, .live = a->live};

        hth_balance(&batch, &opts, a->tables, p->dtables, p->work, &balance);
        p->balance_loss += balance.loss;
    }
    HTH_TRY(hth_pass_up(p, p->dtables, entries));
    HTH_TRY(hth_linear_backward_weight(m->exec, w->wgate, w->bgate,
                                       hth_pass_view(p, gate_in, p->units, d), dt));
    if (block == 1) {
        HTH_TRY(hth_pass_up(p, p->dh, floats));
        lin.residual = hth_pass_rows(p, p->dh);
        HTH_TRY(hth_linear_backward_data(m->exec, &lin, dt, hth_pass_rows(p, p->spare)));
        take_spare(p, &p->dh);
        return HTH_OK;
    }
    HTH_TRY(hth_linear_backward_data(m->exec, &lin, dt, hth_pass_view(p, p->work, p->units, d)));
    HTH_TRY(hth_pass_down(p, p->work, p->work, (size_t)p->units * d));
    HTH_TRY(hth_exec_sync(m->exec));
    for (uint32_t r = 0; r < p->rows; r++)
        for (uint32_t j = 0; j < d; j++)
            p->dh[(size_t)r * d + j] += p->work[(size_t)(r / block) * d + j] / (float)block;
    return hth_pass_up(p, p->dh, floats);
}

/* dx = dL/dx -> dL/dxa, through x = xa + Wo attention(..) + bo. */
static enum hth_err attend_back(struct hth_pass *p, uint32_t l)
{
    const struct hth_model *m = p->model;
    const struct hth_model_layer *w = &m->layer[l];
    struct hth_pass_layer *a = &p->layer[l];
    uint32_t d = m->opts.d, heads = m->opts.heads;
    struct hth_view dx = hth_pass_rows(p, p->dx), dh = hth_pass_rows(p, p->dh);
    struct hth_view dqkv = hth_pass_view(p, p->work, p->rows, 3 * d);
    struct hth_attention att = {.seq = m->opts.seq_len, .heads = heads, .rope = m->rope};
    struct hth_attention_saved saved = {
        .qkv = hth_pass_view(p, a->qkv, p->rows, 3 * d),
        .out = hth_pass_rows(p, a->att),
        .lse = hth_pass_view(p, a->lse, p->rows, heads),
    };
    struct hth_linear_back out = {.w = w->set->wo}, qkv = {.w = w->set->wqkv};
    struct hth_layernorm_back ln = {
        .gamma = w->attn_gamma,
        .beta = w->attn_beta,
        .x = hth_pass_rows(p, a->xa),
        .stats = hth_pass_view(p, a->attn_stats, p->rows, 2),
        .residual = dx,
    };

    HTH_TRY(
        hth_linear_backward_weight(m->exec, w->set->wo, w->set->bo, hth_pass_rows(p, a->att), dx));
    HTH_TRY(hth_linear_backward_data(m->exec, &out, dx, dh));
    HTH_TRY(hth_attention_backward(m->exec, &att, &saved, dh, dqkv));
    HTH_TRY(hth_linear_backward_weight(m->exec, w->set->wqkv, w->set->bqkv,
                                       hth_pass_rows(p, a->attn_in), dqkv));
    HTH_TRY(hth_linear_backward_data(m->exec, &qkv, dqkv, dh));
    HTH_TRY(hth_layernorm_backward(m->exec, &ln, dh, hth_pass_rows(p, p->spare)));
    take_spare(p, &p->dx);
    return HTH_OK;
}

static enum hth_err input_back(struct hth_pass *p)
{
    const struct hth_model *m = p->model;

    if (m->opts.kind == HTH_MODEL_LM)
        return hth_embed_backward(m->exec, m->ids[0].embedding, hth_pass_indices(p, p->tokens),
                                  hth_pass_rows(p, p->dx));
    return hth_linear_backward_weight(m->exec, m->win, m->bin,
                                      hth_pass_view(p, p->input, p->rows, m->opts.features),
                                      hth_pass_rows(p, p->dx));
}

/* The stream's gradient takes two ways past the experts: dL/dx = dx (residual) + LayerNorm'(dh). */
enum hth_err hth_pass_backward(struct hth_pass *p, uint32_t l)
{
    struct hth_model *m = p->model;
    struct hth_pass_layer *a = &p->layer[l];
    struct hth_layernorm_back ln = {
        .gamma = m->layer[l].gamma,
        .beta = m->layer[l].beta,
        .x = hth_pass_rows(p, a->x),
        .stats = hth_pass_view(p, a->stats, p->rows, 2),
        .residual = hth_pass_rows(p, p->dx),
    };

    hth_params_zero_grads(m->params);
    sum_answers(p, l);
    HTH_TRY(gate_back(p, l));
    HTH_TRY(
        hth_layernorm_backward(m->exec, &ln, hth_pass_rows(p, p->dh), hth_pass_rows(p, p->spare)));
    take_spare(p, &p->dx);
    if (m->opts.kind == HTH_MODEL_LM)
        HTH_TRY(attend_back(p, l));
    if (l == 0)
        HTH_TRY(input_back(p));
    if (l > 0)
        HTH_TRY(show_dx(p));
    HTH_TRY(keep_grads(p, l)); /* waits for both */
    if (l > 0)
        mixture_back(p, l - 1);
    return HTH_OK;
}
