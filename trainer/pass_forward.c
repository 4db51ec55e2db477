/* SPDX-License-Identifier: Apache-2.0 */
/* pass_forward.c: mixture, attention, gate. Equations and shapes: model.h, pass.h. */
#include <string.h>

#include "gating/gate.h"
#include "trainer/pass.h"
#include "trainer/pass_steps.h"

/* Unpacks the answers of layer l into y, ok and yptr; then mix [U, D] = sum of w_j y_j over
 * survivors. */
static void collect(struct hth_pass *p, uint32_t l, float *mix)
{
    struct hth_pass_layer *layer = &p->layer[l];
    struct hth_mixture mixture = hth_pass_mixture(p, l);
    size_t slots = mixture.rows * mixture.k;

    for (size_t i = 0; i < slots; i++)
        layer->yptr[i] = NULL;
    if (layer->batch != NULL)
        layer->bad = hth_transport_unpack(layer->batch, layer->y, mixture.d, layer->ok);
    else
        memset(layer->ok, 0, layer->pairs_count);
    for (uint32_t i = 0; i < layer->pairs_count; i++)
        if (layer->ok[i])
            layer->yptr[layer->slot[i]] = layer->y + i * mixture.d;
    hth_mixture_forward(&mixture, layer->weight, mix, &layer->mixed);
}

/* The stream after layer l: out = x_l + mixture_l. */
static enum hth_err leave_layer(struct hth_pass *p, uint32_t l, float *out)
{
    collect(p, l, p->dh);
    HTH_TRY(hth_pass_up(p, p->dh, (size_t)p->rows * p->model->opts.d));
    return hth_combine(p->model->exec, 1.0f, hth_pass_rows(p, p->layer[l].x), 1.0f,
                       hth_pass_rows(p, p->dh), hth_pass_rows(p, out));
}

struct hth_attn_room hth_pass_attn_room(const struct hth_pass *p, uint32_t l)
{
    const struct hth_pass_layer *a = &p->layer[l];

    return (struct hth_attn_room){
        .seq = p->rows / p->samples,
        .x = hth_pass_rows(p, a->xa),
        .normed = hth_pass_rows(p, a->attn_in),
        .stats = hth_pass_view(p, a->attn_stats, p->rows, 2),
        .qkv = hth_pass_view(p, a->qkv, p->rows, 3 * p->model->opts.d),
        .att = hth_pass_rows(p, a->att),
        .lse = hth_pass_view(p, a->lse, p->rows, p->model->opts.heads),
        .proj = a->attn_proj != NULL ? hth_pass_rows(p, a->attn_proj) : HTH_VIEW_NONE,
        .unpadded =
            p->unpadded != NULL ? hth_pass_indices(p, p->unpadded, p->samples) : HTH_VIEW_NONE,
    };
}

struct hth_ffn_room hth_pass_ffn_room(const struct hth_pass *p, uint32_t l)
{
    const struct hth_pass_layer *a = &p->layer[l];

    return (struct hth_ffn_room){
        .x = hth_pass_rows(p, a->x),
        .normed = hth_pass_rows(p, a->normed),
        .stats = hth_pass_view(p, a->stats, p->rows, 2),
        .wide = hth_pass_view(p, a->wide, p->rows, 8 * p->model->opts.d),
        .gated = hth_pass_view(p, a->gated, p->rows, 4 * p->model->opts.d),
        .proj = a->proj != NULL ? hth_pass_rows(p, a->proj) : HTH_VIEW_NONE,
    };
}

/* xa -> x through the attention of layer l. */
static enum hth_err attend(struct hth_pass *p, uint32_t l)
{
    struct hth_model *m = p->model;
    struct hth_attn_room room = hth_pass_attn_room(p, l);
    struct hth_attention_kept kept = {.positions = 0};

    if (p->grown != NULL)
        kept = (struct hth_attention_kept){hth_view_f32(p->grown->kept[l],
                                                        p->samples * p->grown->positions,
                                                        2 * m->opts.d, 2 * m->opts.d),
                                           p->grown->positions, p->grown->at};
    HTH_TRY(hth_layer_qkv(m->exec, m, l, &room));
    if (p->grown != NULL)
        HTH_TRY(hth_layer_grow(m->exec, m, l, &room, &kept));
    else
        HTH_TRY(hth_layer_attend(m->exec, m, l, &room));
    return hth_layer_out(m->exec, m, l, &room, hth_pass_rows(p, p->layer[l].x));
}

/* pool [U, d] = mean over the B rows of each unit */
static void pool_units(struct hth_pass *p, const float *h, float *pool)
{
    uint32_t block = p->model->block_rows, d = p->model->opts.d;

    for (uint32_t u = 0; u < p->units; u++) {
        float *out = pool + (size_t)u * d;

        memset(out, 0, d * sizeof(float));
        for (uint32_t r = 0; r < block; r++)
            for (uint32_t j = 0; j < d; j++)
                out[j] += h[((size_t)u * block + r) * d + j];
        for (uint32_t j = 0; j < d; j++)
            out[j] /= (float)block;
    }
}

static void mark_live(const struct hth_model *m, uint32_t l, const struct hth_grid_view *view,
                      uint8_t *live)
{
    memset(live, 0, m->table_width);
    for (uint32_t dim = 0; dim < view->ndim; dim++) {
        uint8_t *axis = live + hth_gate_offset(&m->layer[l].set->grid, dim);

        for (uint32_t i = 0; i < view->count[dim]; i++)
            axis[view->coord[dim][i]] = 1;
    }
}

/* h = LayerNorm(x); tables = Wg pool(h) + bg. Both are in this process' memory on return. */
static enum hth_err score(struct hth_pass *p, uint32_t l)
{
    const struct hth_model *m = p->model;
    const struct hth_model_layer *w = &m->layer[l];
    struct hth_pass_layer *a = &p->layer[l];
    size_t floats = (size_t)p->rows * m->opts.d, width = m->table_width;
    float *h = hth_pass_h(p, l), *here = (float *)a->h->data;
    struct hth_layernorm ln = {.gamma = w->gamma, .beta = w->beta, .eps = HTH_NORM_EPS};
    struct hth_linear gate = {.w = w->wgate, .bias = w->bgate};

    HTH_TRY(hth_layernorm_forward(m->exec, &ln, hth_pass_rows(p, a->x), hth_pass_rows(p, h),
                                  hth_pass_view(p, a->stats, p->rows, 2)));
    HTH_TRY(hth_pass_down(p, h, here, floats));
    if (m->block_rows > 1) {
        HTH_TRY(hth_exec_sync(m->exec));
        pool_units(p, here, a->pool);
        HTH_TRY(hth_pass_up(p, a->pool, (size_t)p->units * m->opts.d));
    }
    HTH_TRY(hth_linear_forward(
        m->exec, &gate, hth_pass_view(p, m->block_rows > 1 ? a->pool : h, p->units, m->opts.d),
        hth_pass_view(p, a->tables, p->units, m->table_width)));
    HTH_TRY(hth_pass_down(p, a->tables, a->tables, p->units * width));
    return hth_exec_sync(m->exec);
}

/* Finds the best k live experts of each unit. */
static enum hth_err choose(struct hth_pass *p, uint32_t l)
{
    const struct hth_model *m = p->model;
    struct hth_pass_layer *a = &p->layer[l];
    struct hth_beam_batch batch = {
        .view = a->view,
        .tables = a->tables,
        .rows = p->units,
        .step = p->step * m->opts.layers + l,
    };
    struct hth_beam_result result = {.index = a->index, .score = a->score};

    HTH_TRY(score(p, l));
    mark_live(m, l, a->view, a->live);
    return hth_beam_search(p->train ? m->beam : m->beam_plain, &batch, &result, NULL);
}

/* All layers of a dense model: -> p->x */
static enum hth_err forward_dense(struct hth_pass *p)
{
    struct hth_model *m = p->model;
    uint32_t n = m->opts.layers;

    HTH_TRY(hth_pass_enter(p, p->layer[0].xa));
    for (uint32_t l = 0; l < n; l++) {
        struct hth_ffn_room room = hth_pass_ffn_room(p, l);
        float *out = l + 1 < n ? p->layer[l + 1].xa : p->x;

        HTH_TRY(attend(p, l));
        HTH_TRY(hth_layer_ffn(m->exec, m, l, &room, hth_pass_rows(p, out)));
    }
    return HTH_OK;
}

enum hth_err hth_pass_forward(struct hth_pass *p, uint32_t l)
{
    if (p->model->opts.dense)
        return forward_dense(p);
    bool attends = p->model->opts.kind != HTH_MODEL_CLASSIFIER;
    float *entry = attends ? p->layer[l].xa : p->layer[l].x;

    if (l == 0)
        HTH_TRY(hth_pass_enter(p, entry));
    else
        HTH_TRY(leave_layer(p, l - 1, entry));
    if (attends)
        HTH_TRY(attend(p, l));
    return choose(p, l);
}

enum hth_err hth_pass_head(struct hth_pass *p)
{
    bool dense = p->model->opts.dense;

    if (!dense)
        HTH_TRY(leave_layer(p, p->model->opts.layers - 1, p->x));
    HTH_TRY(hth_pass_losses(p));
    if (!p->train)
        return HTH_OK;
    return dense ? hth_pass_dense_back(p) : hth_pass_head_back(p);
}

enum hth_err hth_pass_dense(struct hth_pass *p)
{
    HTH_TRY(forward_dense(p));
    return hth_pass_head(p);
}

/* ---- cost ------------------------------------------------------------------------------------ */

double hth_pass_forward_flops(const struct hth_pass *p, uint32_t l)
{
    const struct hth_model_opts *o = &p->model->opts;
    double d = o->d, per_row = d * p->model->table_width;

    if (o->kind != HTH_MODEL_CLASSIFIER)
        per_row += 4 * d * d + d * o->seq_len;
    else if (l == 0)
        per_row += (double)o->features * d;
    if (o->dense)
        per_row = (per_row + 12 * d * d) * o->layers;
    return 2 * per_row * p->rows;
}

double hth_pass_head_flops(const struct hth_pass *p)
{
    const struct hth_model *m = p->model;
    double products = 0;

    for (uint32_t i = 0; i < m->ids_count; i++)
        products += (double)hth_pass_head_rows(p, i) * m->ids[i].count;
    return 2.0 * m->opts.d * products * (p->train ? 3 : 1);
}

double hth_pass_dense_flops(const struct hth_pass *p)
{
    return hth_pass_forward_flops(p, 0) * (p->train ? 3 : 1) + hth_pass_head_flops(p);
}
