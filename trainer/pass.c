/* SPDX-License-Identifier: Apache-2.0 */
/* pass.c: a flight's memory, carved from one block, and the choices that the loop makes for it. */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "gating/gate.h"
#include "trainer/pass.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/* Runs twice over the same carving: once to count bytes, once to hand them out. */
struct carver {
    uint8_t *base; /* NULL while counting */
    size_t used;
};

static void *carve(struct carver *c, size_t count, size_t size)
{
    void *p = c->base != NULL ? c->base + c->used : NULL;

    c->used += (count * size + 63) / 64 * 64;
    return p;
}

static float *carve_floats(struct carver *c, size_t count)
{
    return carve(c, count, sizeof(float));
}

/* The most distinct experts that the units of a pass can choose. */
static size_t targets_max(const struct hth_pass *p)
{
    size_t slots = (size_t)p->units * p->model->opts.top_k;

    return HTH_MIN(slots, (size_t)hth_grid_size(&p->model->set[0].grid));
}

/* Whether kernels work on another memory than the process'. */
static bool is_away(const struct hth_model *m)
{
    return (hth_backend_caps(m->backend) & HTH_CAP_HOST_MEMORY) == 0;
}

static void carve_attention(struct hth_pass *p, struct hth_pass_layer *layer, struct carver *c)
{
    size_t rows = p->rows, d = p->model->opts.d;

    layer->xa = carve_floats(c, rows * d);
    layer->attn_in = carve_floats(c, rows * d);
    layer->attn_stats = carve_floats(c, rows * 2);
    layer->qkv = carve_floats(c, rows * 3 * d);
    layer->att = carve_floats(c, rows * d);
    layer->lse = carve_floats(c, rows * p->model->opts.heads);
    if (p->model->opts.layer_scale > 0)
        layer->attn_proj = carve_floats(c, rows * d);
}

static void carve_dense(struct hth_pass *p, struct hth_pass_layer *layer, struct carver *c)
{
    size_t rows = p->rows, d = p->model->opts.d;

    layer->normed = carve_floats(c, rows * d);
    layer->wide = carve_floats(c, rows * 8 * d);
    layer->gated = carve_floats(c, rows * 4 * d);
    if (p->model->opts.layer_scale > 0)
        layer->proj = carve_floats(c, rows * d);
}

/* `c` holds what kernels see, `own` the rest. */
static void carve_layer(struct hth_pass *p, struct hth_pass_layer *layer, struct carver *c,
                        struct carver *own)
{
    const struct hth_model *m = p->model;
    size_t rows = p->rows, d = m->opts.d, units = p->units, slots = units * m->opts.top_k;

    if (m->opts.kind != HTH_MODEL_CLASSIFIER)
        carve_attention(p, layer, c);
    layer->x = carve_floats(c, rows * d);
    layer->stats = carve_floats(c, rows * 2);
    if (m->opts.dense) {
        carve_dense(p, layer, c);
        return;
    }
    if (is_away(m))
        layer->h_there = carve_floats(c, rows * d);
    if (m->block_rows > 1)
        layer->pool = carve_floats(c, units * d);
    layer->tables = carve_floats(c, units * m->table_width);
    layer->live = carve(own, m->table_width, 1);
    layer->index = carve(own, slots, sizeof(uint32_t));
    layer->score = carve_floats(own, slots);
    layer->weight = carve_floats(own, slots);
    layer->targets = carve(own, targets_max(p), sizeof(*layer->targets));
    layer->target_expert = carve(own, targets_max(p), sizeof(uint32_t));
    layer->pairs = carve(own, slots, sizeof(*layer->pairs));
    layer->slot = carve(own, slots, sizeof(uint32_t));
    layer->y = carve_floats(own, slots * m->block_rows * d);
    layer->ok = carve(own, slots, 1);
    layer->yptr = carve(own, slots, sizeof(float *));
    layer->back_pairs = carve(own, slots, sizeof(*layer->back_pairs));
    layer->back_slot = carve(own, slots, sizeof(uint32_t));
    layer->dscore = carve_floats(own, slots);
}

uint32_t hth_pass_head_rows(const struct hth_pass *p, uint32_t i)
{
    const struct hth_model_opts *o = &p->model->opts;

    if (o->kind != HTH_MODEL_PICTURE)
        return p->rows;
    return p->samples * (i == HTH_IDS_TEXT ? o->text - 1 : o->height * o->width);
}

static void carve_input(struct hth_pass *p, struct carver *c)
{
    const struct hth_model_opts *o = &p->model->opts;
    size_t rows = p->rows;

    p->labels = carve(c, rows, sizeof(int32_t));
    if (o->kind == HTH_MODEL_CLASSIFIER) {
        p->input = carve_floats(c, rows * o->features);
        return;
    }
    p->tokens = carve(c, rows, sizeof(int32_t));
    if (o->kind == HTH_MODEL_PICTURE)
        p->unpadded = carve(c, p->samples, sizeof(int32_t));
    p->factored = carve_floats(c, rows * o->embed_dim);
}

static void carve_head(struct hth_pass *p, struct carver *c)
{
    const struct hth_model *m = p->model;
    size_t rows = p->rows, d = m->opts.d;

    p->x = carve_floats(c, rows * d);
    p->stats = carve_floats(c, rows * 2);
    p->h = carve_floats(c, rows * d);
    if (m->opts.kind == HTH_MODEL_PICTURE) {
        p->order = carve(c, rows, sizeof(int32_t));
        p->place = carve(c, rows, sizeof(int32_t));
        p->head_labels = carve(c, rows, sizeof(int32_t));
        p->ordered = carve_floats(c, rows * d);
    }
    p->head_factored = carve_floats(c, rows * m->opts.embed_dim);
    p->dfactored = carve_floats(c, rows * m->opts.embed_dim);
    for (uint32_t i = 0; i < m->ids_count; i++)
        p->logits[i] =
            carve_floats(c, (p->train ? hth_pass_head_rows(p, i) : rows) * m->ids[i].count);
}

/* Floats of the longest stretch that is added to another segment's. */
static size_t part_floats(const struct hth_model *m)
{
    size_t most = m->opts.tied ? m->input.count : 0;

    if (m->opts.dense)
        return 0;
    for (uint32_t l = 0; l < m->opts.layers; l++)
        most = HTH_MAX(most, m->shared[l].count);
    return most;
}

static size_t work_floats(const struct hth_pass *p)
{
    const struct hth_model *m = p->model;
    size_t wide = m->opts.dense ? 4 : m->opts.kind != HTH_MODEL_CLASSIFIER ? 3 : 0;
    size_t floats = p->rows * wide * m->opts.d;

    if (m->opts.dense)
        return floats;
    floats = HTH_MAX(floats, hth_balance_work_floats(&m->set[0].grid, p->units));
    return HTH_MAX(floats, (size_t)p->units * m->opts.d);
}

static void carve_pass(struct hth_pass *p, struct carver *c, struct carver *own)
{
    const struct hth_model *m = p->model;
    size_t rows = p->rows, d = m->opts.d;

    carve_input(p, c);
    for (uint32_t l = 0; l < m->opts.layers; l++)
        carve_layer(p, &p->layer[l], c, own);
    carve_head(p, c);
    p->dx = carve_floats(c, rows * d);
    p->dh = carve_floats(c, rows * d);
    p->spare = carve_floats(c, rows * d);
    p->dtables = carve_floats(c, (size_t)p->units * m->table_width);
    p->work = carve_floats(c, work_floats(p));
    p->dyptr = carve(own, m->opts.dense ? 0 : (size_t)p->units * m->opts.top_k, sizeof(float *));
    if (p->train) {
        p->grads = carve_floats(own, hth_params_flat_len(m->params));
        p->part = carve_floats(own, part_floats(m));
    }
}

/* Rows of the heads: those of all texts, then those of all pictures. */
static void order_rows(struct hth_pass *p)
{
    uint32_t seq = p->model->opts.seq_len, text = p->model->opts.text - 1, n = 0;

    for (uint32_t row = 0; row < p->rows; row++)
        if (row % seq < text)
            p->order[n++] = (int32_t)row;
    for (uint32_t row = 0; row < p->rows; row++)
        if (row % seq >= text)
            p->order[n++] = (int32_t)row;
    for (uint32_t i = 0; i < n; i++)
        p->place[p->order[i]] = (int32_t)i;
}

void hth_pass_resize(struct hth_pass *p, uint32_t samples, uint32_t rows)
{
    p->samples = samples;
    p->rows = rows;
    p->units = rows / p->model->block_rows;
    if (p->order != NULL && p->grown == NULL)
        order_rows(p);
}

static enum hth_err pass_new(struct hth_model *model, uint32_t samples, uint64_t rows, bool train,
                             struct hth_pass **out)
{
    struct hth_pass *p;
    struct carver c = {NULL, 0}, own = {NULL, 0};

    *out = NULL;
    if (samples == 0 || samples > HTH_MICRO_BATCH_MAX ||
        rows * (model->opts.dense ? 1 : model->opts.top_k) > HTH_EXPERT_PAIRS_MAX)
        return HTH_E_TOO_LARGE;
    p = hth_new(struct hth_pass);
    p->model = model;
    p->train = train;
    hth_pass_resize(p, samples, (uint32_t)rows);
    p->layer = hth_new_array(struct hth_pass_layer, model->opts.layers);
    carve_pass(p, &c, &own);
    p->memory = hth_try_aligned(c.used + own.used);
    if (is_away(model))
        p->card = hth_backend_alloc(model->backend, c.used);
    if (p->memory == NULL || (is_away(model) && p->card == NULL)) {
        hth_pass_free(p);
        return HTH_E_NO_MEMORY;
    }
    own = (struct carver){p->memory + c.used, 0};
    c = (struct carver){p->memory, 0};
    carve_pass(p, &c, &own);
    hth_pass_resize(p, samples, (uint32_t)rows);
    *out = p;
    return HTH_OK;
}

enum hth_err hth_pass_new(struct hth_model *model, uint32_t samples, struct hth_pass **out)
{
    return pass_new(model, samples, (uint64_t)samples * model->opts.seq_len, true, out);
}

enum hth_err hth_pass_new_rows(struct hth_model *model, uint32_t rows, struct hth_pass **out)
{
    return pass_new(model, HTH_MIN(rows, (uint32_t)HTH_MICRO_BATCH_MAX), rows, false, out);
}

void hth_pass_reset(struct hth_pass *p)
{
    for (uint32_t l = 0; l < p->model->opts.layers; l++) {
        struct hth_pass_layer *layer = &p->layer[l];

        hth_transport_batch_free(layer->batch);
        hth_transport_batch_free(layer->back_batch);
        hth_blob_unref(layer->h);
        hth_blob_unref(layer->dy);
        hth_grid_view_unref(layer->view);
        layer->batch = NULL;
        layer->back_batch = NULL;
        layer->h = NULL;
        layer->dy = NULL;
        layer->view = NULL;
        layer->pairs_count = 0;
        layer->targets_count = 0;
        layer->back_count = 0;
        layer->bad = layer->bad_back = 0;
        layer->mixed = (struct hth_mixture_stats){0};
    }
    p->err = HTH_OK;
    memset(p->xent, 0, sizeof(p->xent));
    p->balance_loss = 0;
}

void hth_pass_free(struct hth_pass *p)
{
    if (p == NULL)
        return;
    hth_pass_reset(p);
    hth_aligned_free(p->memory);
    if (p->card != NULL)
        hth_backend_free(p->model->backend, p->card);
    hth_free(p->layer);
    hth_free(p);
}

/* ---- choices --------------------------------------------------------------------------------- */

/* Draws a start in the view's list and takes k places evenly apart, which gives each unit distinct
 * experts. */
void hth_pass_choose(struct hth_pass *p, uint32_t l, struct hth_rng *rng)
{
    struct hth_pass_layer *layer = &p->layer[l];
    const struct hth_grid_view *view = layer->view;
    uint32_t k = p->model->opts.top_k;

    for (uint32_t u = 0; u < p->units; u++) {
        uint32_t *index = layer->index + (size_t)u * k;
        uint32_t first = 0, stride = 1;

        if (view->live_count > 0) {
            first = (uint32_t)hth_rng_below(rng, view->live_count);
            stride = HTH_MAX(view->live_count / k, 1u);
        }
        for (uint32_t j = 0; j < k; j++) {
            uint64_t at = first + (uint64_t)j * stride;

            index[j] = j < view->live_count ? view->expert[at % view->live_count] : HTH_GATE_NONE;
        }
    }
}

static int cmp_u64(const void *a, const void *b)
{
    uint64_t x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return x < y ? -1 : x > y;
}

/* Slots that have an expert, sorted by (expert, unit): keys are expert << 32 | slot. */
static size_t sort_slots(const struct hth_pass *p, const struct hth_pass_layer *layer,
                         uint64_t *keys)
{
    size_t slots = (size_t)p->units * p->model->opts.top_k, n = 0;

    for (size_t i = 0; i < slots; i++)
        if (layer->index[i] != HTH_GATE_NONE)
            keys[n++] = (uint64_t)layer->index[i] << 32 | i;
    qsort(keys, n, sizeof(*keys), cmp_u64);
    return n;
}

void hth_pass_route(struct hth_pass *p, uint32_t l, struct hth_transport *transport)
{
    struct hth_pass_layer *layer = &p->layer[l];
    uint32_t k = p->model->opts.top_k, set = hth_model_set(&p->model->opts, l);
    uint64_t *keys = hth_new_array(uint64_t, (size_t)p->units * k);
    size_t n = sort_slots(p, layer, keys);
    uint32_t expert = HTH_GATE_NONE;
    bool found = false;

    layer->pairs_count = 0;
    layer->targets_count = 0;
    hth_transport_begin_route(transport);
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = (uint32_t)keys[i];

        if ((uint32_t)(keys[i] >> 32) != expert) {
            expert = (uint32_t)(keys[i] >> 32);
            found =
                hth_transport_find(transport, set, expert, &layer->targets[layer->targets_count]);
            if (found)
                layer->target_expert[layer->targets_count++] = expert;
        }
        if (!found)
            continue;
        layer->pairs[layer->pairs_count] =
            (struct hth_expert_pair){.unit = slot / k, .target = layer->targets_count - 1};
        layer->slot[layer->pairs_count++] = slot;
    }
    hth_free(keys);
}

void hth_pass_pick_back(struct hth_pass *p, uint32_t l)
{
    struct hth_pass_layer *layer = &p->layer[l];

    layer->back_count = 0;
    for (uint32_t i = 0; i < layer->pairs_count; i++) {
        if (!layer->ok[i])
            continue;
        layer->back_pairs[layer->back_count] = layer->pairs[i];
        layer->back_slot[layer->back_count++] = layer->slot[i];
    }
}

void hth_pass_ok_from_verdicts(struct hth_pass *p, uint32_t l)
{
    struct hth_pass_layer *layer = &p->layer[l];
    uint32_t k = p->model->opts.top_k, have = 0;
    const enum hth_err *verdicts =
        layer->batch != NULL ? hth_transport_verdicts(layer->batch) : NULL;
    uint32_t *answers = hth_new_array(uint32_t, p->units);

    for (uint32_t i = 0; i < layer->pairs_count; i++) {
        layer->ok[i] = verdicts != NULL && verdicts[i] == HTH_OK;
        answers[layer->slot[i] / k] += layer->ok[i];
        have += layer->ok[i];
    }
    layer->mixed = (struct hth_mixture_stats){.answers = have};
    for (uint32_t u = 0; u < p->units; u++) {
        layer->mixed.rows_empty += answers[u] == 0;
        layer->mixed.rows_below_k_min += answers[u] < HTH_MAX(p->model->opts.k_min, 1u);
        layer->mixed.rows_short += answers[u] < k;
    }
    hth_free(answers);
}
