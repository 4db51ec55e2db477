/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/layer.h"

size_t hth_layer_scratch(const struct hth_model *m)
{
    const struct hth_model_opts *o = &m->opts;
    uint32_t d = o->d, e = o->embed_dim > 0 ? o->embed_dim : d;
    const uint32_t shapes[][2] = {
        {d, m->table_width},       {o->features, d},          {d, 3 * d}, {d, d},
        {o->dense ? d : 0, 8 * d}, {o->dense ? 4 * d : 0, d}, {e, d}};
    size_t bytes = 0;

    for (size_t i = 0; i < HTH_ARRAY_LEN(shapes); i++)
        if (shapes[i][0] > 0 && shapes[i][1] > 0)
            bytes = HTH_MAX(bytes, hth_linear_scratch(m->backend, shapes[i][0], shapes[i][1]));
    for (uint32_t i = 0; i < m->ids_count; i++) {
        bytes = HTH_MAX(bytes, hth_linear_scratch(m->backend, d, m->ids[i].count));
        bytes = HTH_MAX(bytes, hth_linear_scratch(m->backend, m->ids[i].count, e));
    }
    if (o->kind != HTH_MODEL_CLASSIFIER)
        bytes = HTH_MAX(bytes, hth_attention_scratch(m->backend, o->seq_len, d / o->heads));
    return bytes;
}

/* ---- both halves of a layer ------------------------------------------------------------------ */

/* One half of a layer: x -> LayerNorm -> .. -> in -> y = x + scale (in W + b). */
struct half {
    struct hth_weight *gamma, *beta, *w, *bias, *scale;
    struct hth_view x, normed, stats, in, proj;
};

static enum hth_err norm(struct hth_exec *ex, const struct half *h)
{
    struct hth_layernorm ln = {.gamma = h->gamma, .beta = h->beta, .eps = HTH_NORM_EPS};

    return hth_layernorm_forward(ex, &ln, h->x, h->normed, h->stats);
}

static enum hth_err leave(struct hth_exec *ex, const struct half *h, struct hth_view y)
{
    struct hth_linear lin = {.w = h->w, .bias = h->bias};

    if (h->scale == NULL) {
        lin.residual = h->x;
        return hth_linear_forward(ex, &lin, h->in, y);
    }
    HTH_TRY(hth_linear_forward(ex, &lin, h->in, h->proj));
    return hth_scale_forward(ex, h->scale, h->proj, h->x, y);
}

/* dy of the stream -> gradients of scale, w and bias, and din; `row` is overwritten. */
static enum hth_err leave_back(struct hth_exec *ex, const struct half *h, struct hth_view dy,
                               struct hth_view row, struct hth_view din)
{
    struct hth_linear_back lin = {.w = h->w};

    if (h->scale != NULL) {
        HTH_TRY(hth_scale_backward(ex, h->scale, h->proj, dy, row));
        dy = row;
    }
    HTH_TRY(hth_linear_backward_weight(ex, h->w, h->bias, h->in, dy));
    return hth_linear_backward_data(ex, &lin, dy, din);
}

/* Through the product that follows the norm, and the norm: dx = LayerNorm'(dout w^T) + dy. */
static enum hth_err enter_back(struct hth_exec *ex, const struct half *h, struct hth_weight *w,
                               struct hth_weight *bias, struct hth_view dout, struct hth_view row,
                               struct hth_view dy, struct hth_view dx)
{
    struct hth_linear_back lin = {.w = w};
    struct hth_layernorm_back ln = {
        .gamma = h->gamma, .beta = h->beta, .x = h->x, .stats = h->stats, .residual = dy};

    HTH_TRY(hth_linear_backward_weight(ex, w, bias, h->normed, dout));
    HTH_TRY(hth_linear_backward_data(ex, &lin, dout, row));
    return hth_layernorm_backward(ex, &ln, row, dx);
}

/* The same memory with other columns. */
static struct hth_view columns(struct hth_view v, uint32_t cols)
{
    v.cols = v.ld = cols;
    return v;
}

/* ---- attention ------------------------------------------------------------------------------- */

static struct half attn_half(const struct hth_model *m, uint32_t l,
                             const struct hth_attn_room *room)
{
    const struct hth_model_layer *w = &m->layer[l];

    return (struct half){w->attn_gamma, w->attn_beta, w->set->wo,  w->set->bo, w->attn_scale,
                         room->x,       room->normed, room->stats, room->att,  room->proj};
}

static struct hth_attention attention(const struct hth_model *m, uint32_t l,
                                      const struct hth_attn_room *room)
{
    const struct hth_model_opts *o = &m->opts;
    bool causal = o->kind == HTH_MODEL_LM && o->objective == HTH_CAUSAL;

    return (struct hth_attention){.seq = room->seq,
                                  .heads = o->heads,
                                  .rope = m->rope,
                                  .mask = causal ? NULL : &m->layer[l].mask,
                                  .unpadded = room->unpadded};
}

enum hth_err hth_layer_qkv(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                           const struct hth_attn_room *room)
{
    struct half h = attn_half(m, l, room);
    struct hth_linear qkv = {.w = m->layer[l].set->wqkv, .bias = m->layer[l].set->bqkv};

    HTH_TRY(norm(ex, &h));
    return hth_linear_forward(ex, &qkv, room->normed, room->qkv);
}

enum hth_err hth_layer_attend(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                              const struct hth_attn_room *room)
{
    struct hth_attention att = attention(m, l, room);

    return hth_attention_forward(ex, &att, room->qkv, room->att, room->lse);
}

enum hth_err hth_layer_grow(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                            const struct hth_attn_room *room, const struct hth_attention_kept *kept)
{
    struct hth_attention att = attention(m, l, room);

    return hth_attention_grow(ex, &att, kept, room->qkv, room->att);
}

enum hth_err hth_layer_out(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                           const struct hth_attn_room *room, struct hth_view y)
{
    struct half h = attn_half(m, l, room);

    return leave(ex, &h, y);
}

enum hth_err hth_layer_attn_back(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                                 const struct hth_attn_room *room, const struct hth_back_room *back,
                                 struct hth_view dy, struct hth_view dx)
{
    const struct hth_model_set *set = m->layer[l].set;
    struct half h = attn_half(m, l, room);
    struct hth_attention att = attention(m, l, room);
    struct hth_attention_saved saved = {room->qkv, room->att, room->lse};
    struct hth_view dqkv = columns(back->wide, 3 * m->opts.d);

    /* dx is free until the end: the gradient before the layer scale, if there is one. */
    HTH_TRY(leave_back(ex, &h, dy, dx, back->row));
    HTH_TRY(hth_attention_backward(ex, &att, &saved, back->row, dqkv));
    return enter_back(ex, &h, set->wqkv, set->bqkv, dqkv, back->row, dy, dx);
}

/* ---- feed-forward ---------------------------------------------------------------------------- */

static struct half ffn_half(const struct hth_model *m, uint32_t l, const struct hth_ffn_room *room)
{
    const struct hth_model_layer *w = &m->layer[l];

    return (struct half){w->gamma, w->beta,      w->set->w2,  w->set->b2,  w->ffn_scale,
                         room->x,  room->normed, room->stats, room->gated, room->proj};
}

enum hth_err hth_layer_ffn(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                           const struct hth_ffn_room *room, struct hth_view y)
{
    struct half h = ffn_half(m, l, room);
    struct hth_linear wide = {.w = m->layer[l].set->w1, .bias = m->layer[l].set->b1};

    HTH_TRY(norm(ex, &h));
    HTH_TRY(hth_linear_forward(ex, &wide, room->normed, room->wide));
    HTH_TRY(hth_geglu_forward(ex, room->wide, room->gated));
    return leave(ex, &h, y);
}

enum hth_err hth_layer_ffn_back(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                                const struct hth_ffn_room *room, const struct hth_back_room *back,
                                struct hth_view dy, struct hth_view dx)
{
    const struct hth_model_set *set = m->layer[l].set;
    struct half h = ffn_half(m, l, room);
    struct hth_view dgated = columns(back->wide, 4 * m->opts.d);

    HTH_TRY(leave_back(ex, &h, dy, dx, dgated));
    HTH_TRY(hth_geglu_backward(ex, room->wide, dgated, room->wide));
    return enter_back(ex, &h, set->w1, set->b1, room->wide, back->row, dy, dx);
}

/* ---- ids ------------------------------------------------------------------------------------- */

enum hth_err hth_layer_embed(struct hth_exec *ex, const struct hth_model *m, uint32_t i,
                             struct hth_view tokens, struct hth_view factored, struct hth_view x)
{
    struct hth_linear factor = {.w = m->factor};

    if (m->factor == NULL)
        return hth_embed_forward(ex, m->ids[i].embedding, tokens, x);
    HTH_TRY(hth_embed_forward(ex, m->ids[i].embedding, tokens, factored));
    return hth_linear_forward(ex, &factor, factored, x);
}

enum hth_err hth_layer_embed_back(struct hth_exec *ex, const struct hth_model *m, uint32_t i,
                                  const struct hth_embed_back *back, struct hth_view dx)
{
    struct hth_linear_back factor = {.w = m->factor};

    if (m->factor == NULL)
        return hth_embed_backward(ex, m->ids[i].embedding, back->tokens, dx);
    HTH_TRY(hth_linear_backward_weight(ex, m->factor, NULL, back->factored, dx));
    HTH_TRY(hth_linear_backward_data(ex, &factor, dx, back->dfactored));
    return hth_embed_backward(ex, m->ids[i].embedding, back->tokens, back->dfactored);
}

enum hth_err hth_layer_last_norm(struct hth_exec *ex, const struct hth_model *m, struct hth_view x,
                                 struct hth_view h, struct hth_view stats)
{
    struct hth_layernorm ln = {.gamma = m->gamma, .beta = m->beta, .eps = HTH_NORM_EPS};

    return hth_layernorm_forward(ex, &ln, x, h, stats);
}

enum hth_err hth_layer_logits(struct hth_exec *ex, const struct hth_model *m, uint32_t i,
                              struct hth_view h, struct hth_view factored, struct hth_view logits)
{
    struct hth_linear out = {.w = m->wout, .bias = m->ids[i].bias};
    struct hth_tied tied = {m->ids[i].embedding, m->ids[i].bias}, factor = {m->factor, NULL};

    if (m->wout != NULL)
        return hth_linear_forward(ex, &out, h, logits);
    if (m->factor == NULL)
        return hth_tied_forward(ex, &tied, h, logits);
    HTH_TRY(hth_tied_forward(ex, &factor, h, factored));
    return hth_tied_forward(ex, &tied, factored, logits);
}

enum hth_err hth_layer_logits_back(struct hth_exec *ex, const struct hth_model *m, uint32_t i,
                                   const struct hth_logits_back *back, struct hth_view dlogits,
                                   struct hth_view dh)
{
    struct hth_linear_back lin = {.w = m->wout};
    struct hth_tied tied = {m->ids[i].embedding, m->ids[i].bias}, factor = {m->factor, NULL};

    if (m->wout != NULL) {
        HTH_TRY(hth_linear_backward_weight(ex, m->wout, m->ids[i].bias, back->h, dlogits));
        return hth_linear_backward_data(ex, &lin, dlogits, dh);
    }
    if (m->factor == NULL)
        return hth_tied_backward(ex, &tied, back->h, dlogits, dh);
    HTH_TRY(hth_tied_backward(ex, &tied, back->factored, dlogits, back->dfactored));
    return hth_tied_backward(ex, &factor, back->h, back->dfactored, dh);
}
