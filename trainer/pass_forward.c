/* SPDX-License-Identifier: Apache-2.0 */
/* pass_forward.c: input, mixture, attention, gate, loss. Equations and shapes: model.h, pass.h. */
#include <string.h>

#include "gating/gate.h"
#include "trainer/pass.h"
#include "trainer/pass_steps.h"

#define NORM_EPS 1e-5f

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

static enum hth_err enter(struct hth_pass *p, float *out)
{
    const struct hth_model *m = p->model;
    struct hth_linear lin = {.w = m->win, .bias = m->bin};

    if (m->opts.kind == HTH_MODEL_LM) {
        HTH_TRY(hth_pass_up(p, p->tokens, p->rows));
        return hth_embed_forward(m->exec, m->ids[0].embedding, hth_pass_indices(p, p->tokens),
                                 hth_pass_rows(p, out));
    }
    HTH_TRY(hth_pass_up(p, p->input, (size_t)p->rows * m->opts.features));
    return hth_linear_forward(m->exec, &lin, hth_pass_view(p, p->input, p->rows, m->opts.features),
                              hth_pass_rows(p, out));
}

/* x = xa + Wo attention(Wqkv LayerNorm(xa) + bqkv) + bo */
static enum hth_err attend(struct hth_pass *p, uint32_t l)
{
    const struct hth_model *m = p->model;
    const struct hth_model_layer *w = &m->layer[l];
    struct hth_pass_layer *a = &p->layer[l];
    uint32_t d = m->opts.d, heads = m->opts.heads;
    struct hth_layernorm ln = {.gamma = w->attn_gamma, .beta = w->attn_beta, .eps = NORM_EPS};
    struct hth_linear qkv = {.w = w->set->wqkv, .bias = w->set->bqkv};
    struct hth_linear out = {
        .w = w->set->wo, .bias = w->set->bo, .residual = hth_pass_rows(p, a->xa)};
    struct hth_attention att = {.seq = m->opts.seq_len, .heads = heads, .rope = m->rope};
    struct hth_view qkv_view = hth_pass_view(p, a->qkv, p->rows, 3 * d);

    HTH_TRY(hth_layernorm_forward(m->exec, &ln, hth_pass_rows(p, a->xa),
                                  hth_pass_rows(p, a->attn_in),
                                  hth_pass_view(p, a->attn_stats, p->rows, 2)));
    HTH_TRY(hth_linear_forward(m->exec, &qkv, hth_pass_rows(p, a->attn_in), qkv_view));
    HTH_TRY(hth_attention_forward(m->exec, &att, qkv_view, hth_pass_rows(p, a->att),
                                  hth_pass_view(p, a->lse, p->rows, heads)));
    return hth_linear_forward(m->exec, &out, hth_pass_rows(p, a->att), hth_pass_rows(p, a->x));
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
    struct hth_layernorm ln = {.gamma = w->gamma, .beta = w->beta, .eps = NORM_EPS};
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

enum hth_err hth_pass_forward(struct hth_pass *p, uint32_t l)
{
    bool lm = p->model->opts.kind == HTH_MODEL_LM;
    float *entry = lm ? p->layer[l].xa : p->layer[l].x;

    if (l == 0)
        HTH_TRY(enter(p, entry));
    else
        HTH_TRY(leave_layer(p, l - 1, entry));
    if (lm)
        HTH_TRY(attend(p, l));
    return choose(p, l);
}

/* Logits, loss, and in training the gradient of the stream: dx = dL/dx_N. */
enum hth_err hth_pass_head(struct hth_pass *p)
{
    const struct hth_model *m = p->model;
    uint32_t classes = m->opts.classes, n = m->opts.layers;
    struct hth_layernorm ln = {.gamma = m->gamma, .beta = m->beta, .eps = NORM_EPS};
    struct hth_linear out = {.w = m->wout, .bias = m->ids[0].bias};
    struct hth_view logits = hth_pass_view(p, p->logits, p->rows, classes);

    HTH_TRY(leave_layer(p, n - 1, p->x));
    HTH_TRY(hth_layernorm_forward(m->exec, &ln, hth_pass_rows(p, p->x), hth_pass_rows(p, p->h),
                                  hth_pass_view(p, p->stats, p->rows, 2)));
    HTH_TRY(hth_linear_forward(m->exec, &out, hth_pass_rows(p, p->h), logits));
    HTH_TRY(hth_pass_up(p, p->labels, p->rows));
    HTH_TRY(hth_xent(m->exec, logits, hth_pass_indices(p, p->labels), 1.0f / (float)p->rows,
                     p->train ? logits : HTH_VIEW_NONE, &p->xent));
    HTH_TRY(hth_exec_sync(m->exec));
    if (!(p->xent.loss_sum >= 0 && p->xent.loss_sum < (double)INT64_MAX))
        return HTH_E_NOT_FINITE;
    return p->train ? hth_pass_head_back(p, logits) : HTH_OK;
}

/* ---- cost ------------------------------------------------------------------------------------ */

double hth_pass_forward_flops(const struct hth_pass *p, uint32_t l)
{
    const struct hth_model_opts *o = &p->model->opts;
    double d = o->d, per_row = d * p->model->table_width;

    if (o->kind == HTH_MODEL_LM)
        per_row += 4 * d * d + d * o->seq_len;
    else if (l == 0)
        per_row += (double)o->features * d;
    return 2 * per_row * p->rows;
}

double hth_pass_head_flops(const struct hth_pass *p)
{
    const struct hth_model_opts *o = &p->model->opts;

    return 2.0 * o->d * o->classes * p->rows * (p->train ? 3 : 1);
}
