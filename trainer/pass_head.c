/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass_head.c: both ends of the trunk: tokens or pixels in, losses out. A picture's text and codes
 * have tables and heads of their own; the heads read rows in the order of pass.h, so that each is
 * one product.
 */
#include <string.h>

#include "core/rng.h"
#include "data/words.h"
#include "trainer/pass_steps.h"

/* ---- input ----------------------------------------------------------------------------------- */

/* BERT's: the share of tokens that have a loss; of these, those that become the mask, and those
 * that become a drawn id. */
#define MASKED_SHARE 0.15
#define TO_MASK      0.8
#define TO_DRAWN     0.1

static bool is_below(uint32_t word, double share)
{
    return (double)word < share * 0x1p32;
}

/* Masks tokens as a function of (seed, number of the flight, row). */
static void mask_tokens(struct hth_pass *p)
{
    const struct hth_model_opts *o = &p->model->opts;
    uint64_t seed = hth_mix64(o->seed ^ UINT64_C(0x6d61736b));
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    for (uint32_t row = 0; row < p->rows; row++) {
        const uint32_t counter[4] = {row, (uint32_t)p->step, (uint32_t)(p->step >> 32), p->train};
        uint32_t word[4];

        hth_philox(counter, key, word);
        if (p->labels[row] == HTH_LABEL_NONE || !is_below(word[0], MASKED_SHARE)) {
            p->labels[row] = HTH_LABEL_NONE;
            continue;
        }
        p->labels[row] = p->tokens[row];
        if (is_below(word[1], TO_MASK))
            p->tokens[row] = (int32_t)o->classes;
        else if (is_below(word[1], TO_MASK + TO_DRAWN))
            p->tokens[row] = (int32_t)((uint64_t)word[2] * o->classes >> 32);
    }
}

/* A text's ids before its padding; at least one. */
static void count_unpadded(struct hth_pass *p)
{
    const struct hth_model_opts *o = &p->model->opts;

    for (uint32_t s = 0; s < p->samples; s++) {
        const int32_t *text = p->tokens + (size_t)s * (p->rows / p->samples);
        uint32_t n = o->text;

        while (n > 1 && text[n - 1] == HTH_ID_PAD)
            n--;
        p->unpadded[s] = (int32_t)n;
    }
}

/* Tokens of one kind that lie together: a sequence, or the text or the codes of one. */
struct span {
    uint32_t ids, first, rows;
};

static uint32_t span_count(const struct hth_pass *p)
{
    return p->grown != NULL ? 1 : p->model->opts.kind == HTH_MODEL_PICTURE ? 2 * p->samples : 1;
}

static struct span span_at(const struct hth_pass *p, uint32_t i)
{
    const struct hth_model_opts *o = &p->model->opts;

    if (o->kind != HTH_MODEL_PICTURE)
        return (struct span){HTH_IDS_TEXT, 0, p->rows};
    if (p->grown != NULL) /* text and codes grow in calls of their own */
        return (struct span){p->grown->at == 0 ? HTH_IDS_TEXT : HTH_IDS_CODES, 0, p->rows};
    if (i % 2 == 0)
        return (struct span){HTH_IDS_TEXT, i / 2 * o->seq_len, o->text};
    return (struct span){HTH_IDS_CODES, i / 2 * o->seq_len + o->text, o->seq_len - o->text};
}

static struct hth_view span_floats(const struct hth_pass *p, struct span s, float *data,
                                   uint32_t cols)
{
    return cols == 0 ? HTH_VIEW_NONE
                     : hth_pass_view(p, data + (size_t)s.first * cols, s.rows, cols);
}

enum hth_err hth_pass_enter(struct hth_pass *p, float *x)
{
    struct hth_model *m = p->model;
    const struct hth_model_opts *o = &m->opts;
    struct hth_linear lin = {.w = m->win, .bias = m->bin};

    if (o->kind == HTH_MODEL_CLASSIFIER) {
        HTH_TRY(hth_pass_up(p, p->input, (size_t)p->rows * o->features));
        return hth_linear_forward(m->exec, &lin, hth_pass_view(p, p->input, p->rows, o->features),
                                  hth_pass_rows(p, x));
    }
    if (o->objective == HTH_MASKED)
        mask_tokens(p);
    if (o->kind == HTH_MODEL_PICTURE) {
        if (p->grown == NULL || p->grown->at == 0)
            count_unpadded(p);
        HTH_TRY(hth_pass_up(p, p->unpadded, p->samples));
    }
    HTH_TRY(hth_pass_up(p, p->tokens, p->rows));
    for (uint32_t i = 0; i < span_count(p); i++) {
        struct span s = span_at(p, i);

        HTH_TRY(hth_layer_embed(m->exec, m, s.ids, hth_pass_indices(p, p->tokens + s.first, s.rows),
                                span_floats(p, s, p->factored, o->embed_dim),
                                span_floats(p, s, x, o->d)));
    }
    return HTH_OK;
}

enum hth_err hth_pass_enter_back(struct hth_pass *p)
{
    struct hth_model *m = p->model;
    const struct hth_model_opts *o = &m->opts;

    if (o->kind == HTH_MODEL_CLASSIFIER)
        return hth_linear_backward_weight(m->exec, m->win, m->bin,
                                          hth_pass_view(p, p->input, p->rows, o->features),
                                          hth_pass_rows(p, p->dx));
    for (uint32_t i = 0; i < span_count(p); i++) {
        struct span s = span_at(p, i);
        struct hth_embed_back back = {hth_pass_indices(p, p->tokens + s.first, s.rows),
                                      span_floats(p, s, p->factored, o->embed_dim),
                                      span_floats(p, s, p->dfactored, o->embed_dim)};

        HTH_TRY(hth_layer_embed_back(m->exec, m, s.ids, &back, span_floats(p, s, p->dx, o->d)));
    }
    return HTH_OK;
}

/* ---- heads ----------------------------------------------------------------------------------- */

double hth_model_loss(const struct hth_model *m, const double mean[HTH_IDS_MAX])
{
    double w = (double)m->opts.image_weight;

    if (m->opts.kind != HTH_MODEL_PICTURE)
        return mean[0];
    return (mean[HTH_IDS_TEXT] + w * mean[HTH_IDS_CODES]) / (1 + w);
}

/* dLoss / d(mean of vocabulary i) */
static double weight_of(const struct hth_model *m, uint32_t i)
{
    double unit[HTH_IDS_MAX] = {0};

    unit[i] = 1;
    return hth_model_loss(m, unit);
}

double hth_pass_loss(const struct hth_pass *p)
{
    double mean[HTH_IDS_MAX] = {0};

    for (uint32_t i = 0; i < p->model->ids_count; i++)
        mean[i] = p->xent[i].loss_sum / HTH_MAX(p->xent[i].counted, 1u);
    return hth_model_loss(p->model, mean);
}

double hth_pass_accuracy(const struct hth_pass *p)
{
    const struct hth_xent_result *x = &p->xent[p->model->ids_count - 1];

    return (double)x->correct / HTH_MAX(x->counted, 1u);
}

/* Rows of one head in `p->ordered`, or in p->h where there is only one. */
struct part {
    uint32_t first, rows;
    float *h;
    int32_t *labels;
};

static struct part part_of(const struct hth_pass *p, uint32_t i)
{
    struct part part = {.rows = hth_pass_head_rows(p, i),
                        .h = p->ordered != NULL ? p->ordered : p->h,
                        .labels = p->head_labels != NULL ? p->head_labels : p->labels};

    for (uint32_t before = 0; before < i; before++)
        part.first += hth_pass_head_rows(p, before);
    part.labels += part.first;
    return part;
}

static struct hth_view part_floats(const struct hth_pass *p, struct part part, float *data,
                                   uint32_t cols)
{
    return cols == 0 ? HTH_VIEW_NONE
                     : hth_pass_view(p, data + (size_t)part.first * cols, part.rows, cols);
}

static enum hth_err order_rows(struct hth_pass *p)
{
    struct hth_exec *ex = p->model->exec;

    if (p->order == NULL)
        return hth_pass_up(p, p->labels, p->rows);
    for (uint32_t i = 0; i < p->rows; i++)
        p->head_labels[i] = p->labels[p->order[i]];
    HTH_TRY(hth_pass_up(p, p->head_labels, p->rows));
    HTH_TRY(hth_pass_up(p, p->order, p->rows));
    HTH_TRY(hth_pass_up(p, p->place, p->rows));
    return hth_gather_rows(ex, hth_pass_rows(p, p->h), hth_pass_indices(p, p->order, p->rows),
                           hth_pass_rows(p, p->ordered));
}

static uint32_t count_labels(struct part part)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < part.rows; i++)
        n += part.labels[i] != HTH_LABEL_NONE;
    return n;
}

static enum hth_err head_loss(struct hth_pass *p, uint32_t i)
{
    const struct hth_model *m = p->model;
    struct part part = part_of(p, i);
    struct hth_view logits = hth_pass_view(p, p->logits[i], part.rows, m->ids[i].count);
    float scale = (float)(weight_of(m, i) / HTH_MAX(count_labels(part), 1u));

    HTH_TRY(hth_layer_logits(m->exec, m, i, part_floats(p, part, part.h, m->opts.d),
                             part_floats(p, part, p->head_factored, m->opts.embed_dim), logits));
    return hth_xent(m->exec, logits, hth_pass_indices(p, part.labels, part.rows), scale,
                    p->train ? logits : HTH_VIEW_NONE, &p->xent[i]);
}

/* Sequences that grow need the logits of their last rows alone. */
static enum hth_err last_logits(struct hth_pass *p)
{
    struct hth_model *m = p->model;
    uint32_t n = p->samples, each = p->rows / n, d = m->opts.d, i = m->ids_count - 1;
    uint32_t e = m->opts.embed_dim;
    struct hth_view x = hth_pass_view(p, p->x, n, d), h = hth_pass_view(p, p->h, n, d);

    for (uint32_t s = 0; s < n; s++)
        memmove(p->x + (size_t)s * d, p->x + ((size_t)(s + 1) * each - 1) * d, d * sizeof(float));
    HTH_TRY(hth_layer_last_norm(m->exec, m, x, h, HTH_VIEW_NONE));
    return hth_layer_logits(m->exec, m, i, h,
                            e > 0 ? hth_pass_view(p, p->head_factored, n, e) : HTH_VIEW_NONE,
                            hth_pass_view(p, p->logits[i], n, m->ids[i].count));
}

enum hth_err hth_pass_losses(struct hth_pass *p)
{
    struct hth_model *m = p->model;

    if (p->grown != NULL)
        return last_logits(p);
    HTH_TRY(hth_layer_last_norm(m->exec, m, hth_pass_rows(p, p->x), hth_pass_rows(p, p->h),
                                hth_pass_view(p, p->stats, p->rows, 2)));
    HTH_TRY(order_rows(p));
    for (uint32_t i = 0; i < m->ids_count; i++)
        HTH_TRY(head_loss(p, i));
    HTH_TRY(hth_exec_sync(m->exec));
    for (uint32_t i = 0; i < m->ids_count; i++)
        if (!(p->xent[i].loss_sum >= 0 && p->xent[i].loss_sum < (double)INT64_MAX))
            return HTH_E_NOT_FINITE;
    return HTH_OK;
}

/* The gradients of the heads' inputs -> p->dh */
static enum hth_err heads_back(struct hth_pass *p, float *dh)
{
    struct hth_model *m = p->model;
    uint32_t e = m->opts.embed_dim;

    for (uint32_t i = 0; i < m->ids_count; i++) {
        struct part part = part_of(p, i);
        struct hth_logits_back back = {part_floats(p, part, part.h, m->opts.d),
                                       part_floats(p, part, p->head_factored, e),
                                       part_floats(p, part, p->dfactored, e)};

        HTH_TRY(hth_layer_logits_back(m->exec, m, i, &back,
                                      hth_pass_view(p, p->logits[i], part.rows, m->ids[i].count),
                                      part_floats(p, part, dh, m->opts.d)));
    }
    return HTH_OK;
}

enum hth_err hth_pass_losses_back(struct hth_pass *p)
{
    struct hth_model *m = p->model;
    struct hth_layernorm_back ln = {
        .gamma = m->gamma,
        .beta = m->beta,
        .x = hth_pass_rows(p, p->x),
        .stats = hth_pass_view(p, p->stats, p->rows, 2),
    };

    HTH_TRY(heads_back(p, p->order != NULL ? p->spare : p->dh));
    if (p->order != NULL)
        HTH_TRY(hth_gather_rows(m->exec, hth_pass_rows(p, p->spare),
                                hth_pass_indices(p, p->place, p->rows), hth_pass_rows(p, p->dh)));
    return hth_layernorm_backward(m->exec, &ln, hth_pass_rows(p, p->dh), hth_pass_rows(p, p->dx));
}
