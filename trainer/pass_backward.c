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

/* Copies a stretch of gradients to the flight's own, or adds it to them. */
static enum hth_err keep(struct hth_pass *p, struct hth_stretch s, bool add)
{
    struct hth_model *m = p->model;
    float *to = p->grads + s.first;

    HTH_TRY(
        hth_params_export(m->exec, m->params, HTH_PART_GRAD, s.first, s.count, add ? p->part : to));
    for (size_t i = 0; add && i < s.count; i++)
        to[i] += p->part[i];
    return HTH_OK;
}

/* Whether layer l is the first of its set that backward meets. */
static bool is_first_of_set(const struct hth_model_opts *o, uint32_t l)
{
    for (uint32_t above = l + 1; above < o->layers; above++)
        if (hth_model_set(o, above) == hth_model_set(o, l))
            return false;
    return true;
}

/* Keeps the gradients of one segment. */
static enum hth_err keep_grads(struct hth_pass *p, uint32_t segment)
{
    const struct hth_model *m = p->model;
    uint32_t n = m->opts.layers;

    if (segment < n && m->opts.share > 0)
        HTH_TRY(keep(p, m->shared[segment], !is_first_of_set(&m->opts, segment)));
    if (segment == 0 || (segment == n && m->opts.tied))
        HTH_TRY(keep(p, m->input, segment == 0 && m->opts.tied));
    return keep(p, m->own[segment], false);
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

enum hth_err hth_pass_head_back(struct hth_pass *p)
{
    struct hth_model *m = p->model;

    hth_params_zero_grads(m->params);
    HTH_TRY(hth_pass_losses_back(p));
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

static struct hth_back_room back_room(const struct hth_pass *p)
{
    uint32_t d = p->model->opts.d;

    return (struct hth_back_room){
        .row = hth_pass_rows(p, p->dh),
        .wide = hth_pass_view(p, p->work, p->rows, (p->model->opts.dense ? 4 : 3) * d)};
}

/* dx = dL/dx -> dL/dxa */
static enum hth_err attend_back(struct hth_pass *p, uint32_t l)
{
    struct hth_model *m = p->model;
    struct hth_attn_room room = hth_pass_attn_room(p, l);
    struct hth_back_room back = back_room(p);

    HTH_TRY(hth_layer_attn_back(m->exec, m, l, &room, &back, hth_pass_rows(p, p->dx),
                                hth_pass_rows(p, p->spare)));
    take_spare(p, &p->dx);
    return HTH_OK;
}

enum hth_err hth_pass_dense_back(struct hth_pass *p)
{
    struct hth_model *m = p->model;

    hth_params_zero_grads(m->params);
    HTH_TRY(hth_pass_losses_back(p));
    for (uint32_t l = m->opts.layers; l-- > 0;) {
        struct hth_ffn_room room = hth_pass_ffn_room(p, l);
        struct hth_back_room back = back_room(p);

        HTH_TRY(hth_layer_ffn_back(m->exec, m, l, &room, &back, hth_pass_rows(p, p->dx),
                                   hth_pass_rows(p, p->spare)));
        take_spare(p, &p->dx);
        HTH_TRY(attend_back(p, l));
    }
    HTH_TRY(hth_pass_enter_back(p));
    return hth_params_export(m->exec, m->params, HTH_PART_GRAD, 0, hth_params_flat_len(m->params),
                             p->grads);
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
    if (m->opts.kind != HTH_MODEL_CLASSIFIER)
        HTH_TRY(attend_back(p, l));
    if (l == 0)
        HTH_TRY(hth_pass_enter_back(p));
    if (l > 0)
        HTH_TRY(show_dx(p));
    HTH_TRY(keep_grads(p, l)); /* waits for both */
    if (l > 0)
        mixture_back(p, l - 1);
    return HTH_OK;
}
