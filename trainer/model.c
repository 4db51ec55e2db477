/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.c: the trunk's parameters, declared segment by segment so that a segment's are contiguous.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "gating/gate.h"
#include "trainer/pass.h"

#define ROPE_BASE 10000.0

/* Declares tensors under one prefix and remembers the first error. */
struct declarer {
    struct hth_model *model;
    char prefix[48];
    enum hth_err err;
};

static struct hth_weight *declare(struct declarer *d, const char *name, uint32_t rows,
                                  uint32_t cols, enum hth_init init)
{
    struct hth_weight *w = NULL;
    char full[96];
    struct hth_param_spec spec = {
        .name = full,
        .rows = rows,
        .cols = cols,
        .init = init,
        .scale = init == HTH_INIT_NORMAL ? 0.1f : 1.0f,
        .no_decay = rows == 1,
    };

    if (d->err != HTH_OK)
        return NULL;
    snprintf(full, sizeof(full), "%s%s", d->prefix, name);
    d->err = hth_params_add(d->model->params, &spec, &w);
    return w;
}

static void declare_layer(struct declarer *dc, uint32_t l)
{
    struct hth_model_layer *layer = &dc->model->layer[l];
    uint32_t d = dc->model->opts.d;

    snprintf(dc->prefix, sizeof(dc->prefix), "layers.%u.", l);
    if (dc->model->opts.kind == HTH_MODEL_LM) {
        layer->attn_gamma = declare(dc, "attn_norm.weight", 1, d, HTH_INIT_ONES);
        layer->attn_beta = declare(dc, "attn_norm.bias", 1, d, HTH_INIT_ZEROS);
        layer->wqkv = declare(dc, "attn.qkv.weight", d, 3 * d, HTH_INIT_LINEAR);
        layer->bqkv = declare(dc, "attn.qkv.bias", 1, 3 * d, HTH_INIT_ZEROS);
        layer->wo = declare(dc, "attn.out.weight", d, d, HTH_INIT_LINEAR);
        layer->bo = declare(dc, "attn.out.bias", 1, d, HTH_INIT_ZEROS);
    }
    layer->gamma = declare(dc, "norm.weight", 1, d, HTH_INIT_ONES);
    layer->beta = declare(dc, "norm.bias", 1, d, HTH_INIT_ZEROS);
    layer->wgate = declare(dc, "gate.weight", d, dc->model->table_width, HTH_INIT_LINEAR);
    layer->bgate = declare(dc, "gate.bias", 1, dc->model->table_width, HTH_INIT_ZEROS);
}

static enum hth_err declare_all(struct hth_model *m)
{
    const struct hth_model_opts *o = &m->opts;
    struct declarer dc = {.model = m};
    bool lm = o->kind == HTH_MODEL_LM;

    if (lm) {
        m->win = declare(&dc, "embedding.weight", o->classes, o->d, HTH_INIT_NORMAL);
    } else {
        m->win = declare(&dc, "input.weight", o->features, o->d, HTH_INIT_LINEAR);
        m->bin = declare(&dc, "input.bias", 1, o->d, HTH_INIT_ZEROS);
    }
    for (uint32_t l = 0; l < o->layers; l++)
        declare_layer(&dc, l);
    dc.prefix[0] = '\0';
    m->gamma = declare(&dc, "norm.weight", 1, o->d, HTH_INIT_ONES);
    m->beta = declare(&dc, "norm.bias", 1, o->d, HTH_INIT_ZEROS);
    m->wout = declare(&dc, "output.weight", o->d, o->classes, HTH_INIT_LINEAR);
    m->bout = declare(&dc, "output.bias", 1, o->classes, HTH_INIT_ZEROS);
    return dc.err;
}

/* Segment 0 begins with the input's tensors, segment l > 0 with its layer's, the last one with the
 * norm. */
static void find_segments(struct hth_model *m)
{
    uint32_t n = m->opts.layers;

    m->segment[0] = 0;
    for (uint32_t l = 1; l < n; l++) {
        const struct hth_model_layer *layer = &m->layer[l];

        m->segment[l] =
            hth_weight_offset(layer->attn_gamma != NULL ? layer->attn_gamma : layer->gamma);
    }
    m->segment[n] = hth_weight_offset(m->gamma);
    m->segment[n + 1] = hth_params_flat_len(m->params);
}

static enum hth_err check_opts(const struct hth_model_opts *o)
{
    bool lm = o->kind == HTH_MODEL_LM;

    if (o->d == 0 || o->d > HTH_MODEL_DIM_MAX || o->layers == 0 ||
        o->layers > HTH_MODEL_LAYERS_MAX || o->classes < 2 || o->classes > HTH_MODEL_DIM_MAX)
        return HTH_E_CONFIG;
    if (o->top_k == 0 || o->top_k > HTH_TOP_K_MAX || o->k_min > o->top_k)
        return HTH_E_CONFIG;
    if (o->layer_prefix == NULL || o->expert_kind == NULL || !(o->noise_std >= 0) ||
        !(o->balance >= 0))
        return HTH_E_CONFIG;
    if (lm && (o->seq_len == 0 || o->seq_len > HTH_SEQ_LEN_MAX || o->heads == 0 ||
               o->d % o->heads != 0 || o->d / o->heads % 2 != 0))
        return HTH_E_CONFIG;
    if (!lm && (o->features == 0 || o->features > HTH_IDX_ITEM_BYTES_MAX || o->seq_len != 1))
        return HTH_E_CONFIG;
    /* A sequence of one row has no other row to attend to. */
    if (!lm && strcmp(o->expert_kind, "transformer") == 0)
        return HTH_E_CONFIG;
    return HTH_OK;
}

static enum hth_err make_grids(struct hth_model *m)
{
    char name[HTH_NAME_LEN_MAX + 1];

    for (uint32_t l = 0; l < m->opts.layers; l++) {
        if ((size_t)snprintf(name, sizeof(name), "%s%u", m->prefix, l) >= sizeof(name))
            return HTH_E_CONFIG;
        if (hth_grid_init(&m->layer[l].grid, name, m->opts.grid_ndim, m->opts.grid_dim) != HTH_OK)
            return HTH_E_CONFIG;
    }
    m->table_width = hth_gate_width(&m->layer[0].grid);
    return HTH_OK;
}

static enum hth_err make_beams(struct hth_model *m)
{
    struct hth_beam_opts o = HTH_BEAM_OPTS_INIT;

    o.k = m->opts.top_k;
    o.width = m->opts.beam_width;
    o.seed = m->opts.seed;
    HTH_TRY(hth_beam_new(&m->layer[0].grid, &o, &m->beam_plain));
    o.noise_std = m->opts.noise_std;
    return hth_beam_new(&m->layer[0].grid, &o, &m->beam);
}

static size_t scratch_bytes(const struct hth_model *m)
{
    const struct hth_model_opts *o = &m->opts;
    size_t bytes = hth_linear_scratch(m->backend, o->d, o->classes);

    bytes = HTH_MAX(bytes, hth_linear_scratch(m->backend, o->d, m->table_width));
    if (o->kind == HTH_MODEL_LM) {
        bytes = HTH_MAX(bytes, hth_linear_scratch(m->backend, o->d, 3 * o->d));
        bytes = HTH_MAX(bytes, hth_linear_scratch(m->backend, o->d, o->d));
        bytes = HTH_MAX(bytes, hth_attention_scratch(m->backend, o->seq_len, o->d / o->heads));
    } else {
        bytes = HTH_MAX(bytes, hth_linear_scratch(m->backend, o->features, o->d));
    }
    return bytes;
}

static enum hth_err make_params(struct hth_model *m)
{
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;

    HTH_TRY(declare_all(m));
    seal.seed = m->opts.seed;
    seal.stream = UINT32_MAX; /* experts count from 0: none has the trunk's numbers */
    HTH_TRY(hth_params_seal(m->params, &seal));
    find_segments(m);
    return HTH_OK;
}

/* Takes the options, and makes grids and a set of parameters without any. */
static enum hth_err begin(struct hth_model *m, const struct hth_backend *backend,
                          const struct hth_model_opts *opts)
{
    m->opts = *opts;
    m->prefix = hth_strdup(opts->layer_prefix != NULL ? opts->layer_prefix : "");
    m->expert_kind = hth_strdup(opts->expert_kind != NULL ? opts->expert_kind : "");
    m->opts.layer_prefix = m->prefix;
    m->opts.expert_kind = m->expert_kind;
    m->backend = backend != NULL ? backend : hth_backend_ref();
    if (m->opts.kind == HTH_MODEL_LM && m->opts.heads == 0)
        m->opts.heads = HTH_MAX(m->opts.d / 32, 1u);
    HTH_TRY(check_opts(&m->opts));
    m->block_rows = strcmp(m->expert_kind, "transformer") == 0 ? m->opts.seq_len : 1;
    HTH_TRY(make_grids(m));
    return hth_params_new(m->backend, &m->params);
}

enum hth_err hth_model_count(const struct hth_model_opts *opts, uint64_t *parameters)
{
    struct hth_model *m = hth_new(struct hth_model);
    enum hth_err err = begin(m, NULL, opts);

    if (err == HTH_OK)
        err = declare_all(m);
    *parameters = err == HTH_OK ? hth_params_elements(m->params) : 0;
    hth_model_free(m);
    return err;
}

enum hth_err hth_model_new(const struct hth_backend *backend, const struct hth_model_opts *opts,
                           struct hth_model **out)
{
    struct hth_model *m = hth_new(struct hth_model);
    enum hth_err err;

    *out = NULL;
    HTH_GOTO(fail, begin(m, backend, opts));
    HTH_GOTO(fail, make_beams(m));
    if (m->opts.kind == HTH_MODEL_LM)
        HTH_GOTO(fail, hth_rope_new(m->backend, m->opts.seq_len, m->opts.d / m->opts.heads,
                                    ROPE_BASE, &m->rope));
    HTH_GOTO(fail, make_params(m));
    HTH_GOTO(fail, hth_exec_new(m->backend, scratch_bytes(m), &m->exec));
    *out = m;
    return HTH_OK;
fail:
    hth_model_free(m);
    return err;
}

void hth_model_free(struct hth_model *m)
{
    if (m == NULL)
        return;
    hth_beam_free(m->beam);
    hth_beam_free(m->beam_plain);
    hth_params_free(m->params);
    hth_exec_free(m->exec);
    hth_rope_free(m->rope);
    hth_free(m->prefix);
    hth_free(m->expert_kind);
    hth_free(m);
}

enum hth_err hth_model_flat_take(struct hth_model *m, enum hth_part part, float **out)
{
    size_t len = hth_params_flat_len(m->params);
    enum hth_err err;

    *out = hth_params_flat(m->params, part);
    if (*out != NULL)
        return HTH_OK;
    *out = hth_try_aligned(len * sizeof(float));
    if (*out == NULL)
        return HTH_E_NO_MEMORY;
    err = hth_params_export(m->exec, m->params, part, 0, len, *out);
    if (err != HTH_OK) {
        hth_aligned_free(*out);
        *out = NULL;
    }
    return err;
}

enum hth_err hth_model_flat_give(struct hth_model *m, enum hth_part part, float *flat, bool wrote)
{
    bool copy = flat != NULL && flat != hth_params_flat(m->params, part);
    enum hth_err err = HTH_OK;

    if (copy && wrote)
        err = hth_params_import(m->exec, m->params, part, 0, hth_params_flat_len(m->params), flat);
    else if (wrote && part == HTH_PART_VALUE)
        hth_params_touched(m->params);
    if (copy)
        hth_aligned_free(flat);
    return err;
}

const struct hth_model_opts *hth_model_opts_of(const struct hth_model *model)
{
    return &model->opts;
}

struct hth_params *hth_model_params(struct hth_model *model)
{
    return model->params;
}

const struct hth_grid *hth_model_grid(const struct hth_model *model, uint32_t layer)
{
    return &model->layer[layer].grid;
}

uint64_t hth_model_schema(const struct hth_model *model)
{
    const struct hth_model_opts *o = &model->opts;
    uint64_t numbers[] = {o->kind,     o->d,       o->layers,  o->heads,
                          o->features, o->classes, o->seq_len, model->block_rows};
    uint64_t hash = hth_hash64(numbers, sizeof(numbers), 0);

    for (uint32_t i = 0; i < hth_params_count(model->params); i++) {
        const struct hth_weight *w = hth_params_at(model->params, i);
        const char *name = hth_weight_name(w);
        uint64_t shape[2] = {hth_weight_rows(w), hth_weight_cols(w)};

        hash = hth_hash64(name, strlen(name), hash);
        hash = hth_hash64(shape, sizeof(shape), hash);
    }
    for (uint32_t l = 0; l < o->layers; l++) {
        char text[HTH_UID_TEXT_MAX];

        hth_grid_text(&model->layer[l].grid, text);
        hash = hth_hash64(text, strlen(text), hash);
    }
    return hash;
}
