/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.c: the trunk's parameters, declared segment by segment so that a segment's are contiguous.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "gating/gate.h"
#include "trainer/layer.h"

#define ROPE_BASE      10000.0

#define TIED_DEVIATION 0.02f

/* ---- checks ---------------------------------------------------------------------------------- */

static enum hth_err HTH_PRINTF(2, 3) wrong(char *why, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(why, HTH_MODEL_WHY_MAX, fmt, args);
    va_end(args);
    return HTH_E_CONFIG;
}

static bool is_sequence(const struct hth_model_opts *o)
{
    return o->kind != HTH_MODEL_CLASSIFIER;
}

static bool is_tied(const struct hth_model_opts *o)
{
    return o->tied || o->kind == HTH_MODEL_PICTURE;
}

static enum hth_err check_range(const char *key, uint64_t value, uint64_t low, uint64_t high,
                                char *why)
{
    if (value >= low && value <= high)
        return HTH_OK;
    return wrong(why, "model.%s is %llu; it must be from %llu to %llu", key,
                 (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
}

static enum hth_err check_classifier(const struct hth_model_opts *o, char *why)
{
    HTH_TRY(check_range("features", o->features, 1, HTH_IDX_ITEM_BYTES_MAX, why));
    HTH_TRY(check_range("context", o->seq_len, 1, 1, why));
    if (o->dense || o->share > 0 || o->tied || o->layer_scale > 0 || o->objective != HTH_CAUSAL)
        return wrong(why, "model.expert 'none', share, tied, layer_scale and objective need "
                          "model.kind 'lm' or 'picture'");
    if (strcmp(o->expert_kind, "transformer") == 0)
        return wrong(why, "model.expert 'transformer' works on sequences, so it needs model.kind "
                          "'lm'");
    return HTH_OK;
}

static enum hth_err check_experts(const struct hth_model_opts *o, char *why)
{
    HTH_TRY(check_range("top_k", o->top_k, 1, HTH_TOP_K_MAX, why));
    if (o->k_min > o->top_k)
        return wrong(why, "train.k_min is %u; it must be at most model.top_k (%u)", o->k_min,
                     o->top_k);
    if (!(o->noise_std >= 0) || !(o->balance >= 0))
        return wrong(why, "model.noise and model.balance must be numbers from 0");
    if (o->kind == HTH_MODEL_PICTURE && strcmp(o->expert_kind, "transformer") == 0)
        return wrong(why, "model.expert 'transformer' has no masks of pictures; use 'ffn' or "
                          "'none'");
    return HTH_OK;
}

static enum hth_err check_share(const struct hth_model_opts *o, char *why)
{
    uint32_t most = o->share_last ? o->layers : o->layers - 1;

    if (o->share <= most)
        return HTH_OK;
    return wrong(why, "model.share is %u; %u layers use at most %u sets%s", o->share, o->layers,
                 most, o->share_last ? "" : ", as the last has its own (share_last: false)");
}

/* Settings of layers with attention. */
static enum hth_err check_sequence(const struct hth_model_opts *o, char *why)
{
    uint32_t step = 2 * o->heads;

    HTH_TRY(check_range("heads", o->heads, 1, o->d, why));
    if (o->d % step != 0)
        return wrong(why, "model.dim (%u) must be an even multiple of model.heads (%u), such as %u",
                     o->d, o->heads, (o->d / step + 1) * step);
    HTH_TRY(check_share(o, why));
    if (o->embed_dim > 0 && !is_tied(o))
        return wrong(why, "model.embed_dim factorises a tied embedding; it needs 'tied: true'");
    HTH_TRY(check_range("embed_dim", o->embed_dim, 0, HTH_MODEL_DIM_MAX, why));
    if (!(o->layer_scale >= 0 && o->layer_scale <= 1e6f))
        return wrong(why, "model.layer_scale must be from 0 to 1000000");
    return HTH_OK;
}

static enum hth_err check_lm(const struct hth_model_opts *o, char *why)
{
    HTH_TRY(check_range("context", o->seq_len, 1, HTH_SEQ_LEN_MAX, why));
    for (uint32_t l = 0; l < o->layers; l++)
        if (o->mask[l] != HTH_MASK_FULL)
            return wrong(why, "model.masks other than 'full' need model.kind 'picture'");
    return HTH_OK;
}

static enum hth_err check_picture(const struct hth_model_opts *o, char *why)
{
    uint64_t places = (uint64_t)o->height * o->width;

    HTH_TRY(check_range("text", o->text, 1, HTH_SEQ_LEN_MAX, why));
    HTH_TRY(check_range("height", o->height, 1, HTH_SEQ_LEN_MAX, why));
    HTH_TRY(check_range("width", o->width, 1, HTH_SEQ_LEN_MAX, why));
    HTH_TRY(check_range("codes", o->codes, 2, HTH_MODEL_DIM_MAX, why));
    if (o->text + places > HTH_SEQ_LEN_MAX)
        return wrong(why, "model.text + height * width is %llu positions; at most %u are possible",
                     (unsigned long long)(o->text + places), HTH_SEQ_LEN_MAX);
    if (o->window % 2 == 0)
        return wrong(why, "model.window is %u; it must be odd, such as %u", o->window,
                     o->window + 1);
    if (o->d / o->heads < 6)
        return wrong(why, "model.dim / model.heads is %u; positions on three axes need at least 6",
                     o->d / o->heads);
    if (!(o->image_weight >= 0 && o->image_weight <= 1e6f))
        return wrong(why, "model.image_weight must be from 0 to 1000000");
    if (o->objective != HTH_CAUSAL)
        return wrong(why, "model.objective 'masked' needs model.kind 'lm'");
    for (uint32_t l = 0; l < o->layers; l++) {
        struct hth_mask mask = {o->mask[l], o->text, o->height, o->width, o->window};

        if (o->mask[l] == HTH_MASK_NONE || hth_mask_check(&mask) != HTH_OK)
            return wrong(why, "model.masks of a picture are full, row, column and conv");
    }
    return o->seq_len == o->text + places - 1
               ? HTH_OK
               : wrong(why, "a sequence of this model has %llu rows, not %u",
                       (unsigned long long)(o->text + places - 1), o->seq_len);
}

enum hth_err hth_model_check(const struct hth_model_opts *o, const struct hth_backend *backend,
                             char why[HTH_MODEL_WHY_MAX])
{
    bool asks_dense = o->kind == HTH_MODEL_PICTURE || o->dense || o->tied || o->layer_scale > 0 ||
                      o->objective == HTH_MASKED;

    why[0] = '\0';
    HTH_TRY(check_range("dim", o->d, 1, HTH_MODEL_DIM_MAX, why));
    HTH_TRY(check_range("layers", o->layers, 1, HTH_MODEL_LAYERS_MAX, why));
    HTH_TRY(check_range("vocab", o->classes, 2, HTH_MODEL_DIM_MAX, why));
    if (is_sequence(o))
        HTH_TRY(check_sequence(o, why));
    if (o->kind == HTH_MODEL_CLASSIFIER)
        HTH_TRY(check_classifier(o, why));
    else if (o->kind == HTH_MODEL_LM)
        HTH_TRY(check_lm(o, why));
    else
        HTH_TRY(check_picture(o, why));
    if (!o->dense)
        HTH_TRY(check_experts(o, why));
    if (asks_dense && backend != NULL && !(hth_backend_caps(backend) & HTH_CAP_DENSE)) {
        wrong(why,
              "the back end %s has no masks, feed-forwards and tied outputs for this model; "
              "compute it with --device cpu and --backend packed",
              hth_backend_name(backend));
        return HTH_E_UNSUPPORTED;
    }
    return HTH_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

uint32_t hth_model_sets(const struct hth_model_opts *o)
{
    if (o->share == 0)
        return o->layers;
    return o->share + !o->share_last;
}

uint32_t hth_model_set(const struct hth_model_opts *o, uint32_t layer)
{
    if (o->share == 0)
        return layer;
    return layer + 1 == o->layers && !o->share_last ? o->share : layer % o->share;
}

/* Declares tensors under one prefix and remembers the first error. */
struct declarer {
    struct hth_model *model;
    char prefix[48];
    enum hth_err err;
};

static struct hth_weight *declare_scaled(struct declarer *d, const char *name, uint32_t rows,
                                         uint32_t cols, enum hth_init init, float scale)
{
    struct hth_weight *w = NULL;
    char full[96];
    struct hth_param_spec spec = {
        .name = full,
        .rows = rows,
        .cols = cols,
        .init = init,
        .scale = scale,
        .no_decay = rows == 1,
    };

    if (d->err != HTH_OK)
        return NULL;
    snprintf(full, sizeof(full), "%s%s", d->prefix, name);
    d->err = hth_params_add(d->model->params, &spec, &w);
    return w;
}

static struct hth_weight *declare(struct declarer *d, const char *name, uint32_t rows,
                                  uint32_t cols, enum hth_init init)
{
    return declare_scaled(d, name, rows, cols, init, 1.0f);
}

static void declare_set(struct declarer *dc, uint32_t s)
{
    const struct hth_model_opts *o = &dc->model->opts;
    struct hth_model_set *set = &dc->model->set[s];
    uint32_t d = o->d;

    if (!is_sequence(o))
        return;
    set->wqkv = declare(dc, "attn.qkv.weight", d, 3 * d, HTH_INIT_LINEAR);
    if (o->kind == HTH_MODEL_LM && !o->dense)
        set->bqkv = declare(dc, "attn.qkv.bias", 1, 3 * d, HTH_INIT_ZEROS);
    set->wo = declare(dc, "attn.out.weight", d, d, HTH_INIT_LINEAR);
    set->bo = declare(dc, "attn.out.bias", 1, d, HTH_INIT_ZEROS);
    if (!o->dense)
        return;
    set->w1 = declare(dc, "ffn.0.weight", d, 8 * d, HTH_INIT_LINEAR);
    set->b1 = declare(dc, "ffn.0.bias", 1, 8 * d, HTH_INIT_ZEROS);
    set->w2 = declare(dc, "ffn.2.weight", 4 * d, d, HTH_INIT_LINEAR);
    set->b2 = declare(dc, "ffn.2.bias", 1, d, HTH_INIT_ZEROS);
}

static struct hth_weight *declare_layer_scale(struct declarer *dc, const char *name)
{
    const struct hth_model_opts *o = &dc->model->opts;

    if (!(o->layer_scale > 0))
        return NULL;
    return declare_scaled(dc, name, 1, o->d, HTH_INIT_ONES, o->layer_scale);
}

static void declare_layer(struct declarer *dc, uint32_t l)
{
    const struct hth_model_opts *o = &dc->model->opts;
    struct hth_model_layer *layer = &dc->model->layer[l];
    uint32_t d = o->d;

    snprintf(dc->prefix, sizeof(dc->prefix), "layers.%u.", l);
    if (is_sequence(o)) {
        layer->attn_gamma = declare(dc, "attn_norm.weight", 1, d, HTH_INIT_ONES);
        layer->attn_beta = declare(dc, "attn_norm.bias", 1, d, HTH_INIT_ZEROS);
        layer->attn_scale = declare_layer_scale(dc, "attn_scale");
    }
    if (o->share == 0)
        declare_set(dc, l);
    layer->gamma = declare(dc, "norm.weight", 1, d, HTH_INIT_ONES);
    layer->beta = declare(dc, "norm.bias", 1, d, HTH_INIT_ZEROS);
    if (o->dense) {
        layer->ffn_scale = declare_layer_scale(dc, "ffn_scale");
        return;
    }
    layer->wgate = declare(dc, "gate.weight", d, dc->model->table_width, HTH_INIT_LINEAR);
    layer->bgate = declare(dc, "gate.bias", 1, dc->model->table_width, HTH_INIT_ZEROS);
}

/* Where the flat buffer ends so far. */
static size_t flat_end(const struct declarer *dc)
{
    return hth_params_flat_len(dc->model->params);
}

static struct hth_stretch since(const struct declarer *dc, size_t first)
{
    return (struct hth_stretch){first, flat_end(dc) - first};
}

static void declare_ids(struct declarer *dc, uint32_t i, const char *name, uint32_t count)
{
    struct hth_model *m = dc->model;
    const struct hth_model_opts *o = &m->opts;

    m->ids_count = i + 1;
    m->ids[i].count = count;
    m->ids[i].embedding = declare_scaled(dc, name, count, o->embed_dim > 0 ? o->embed_dim : o->d,
                                         HTH_INIT_NORMAL, o->tied ? TIED_DEVIATION : 0.1f);
}

static void declare_input(struct declarer *dc)
{
    struct hth_model *m = dc->model;
    const struct hth_model_opts *o = &m->opts;

    if (o->kind == HTH_MODEL_CLASSIFIER) {
        m->ids_count = 1;
        m->ids[0].count = o->classes;
        m->win = declare(dc, "input.weight", o->features, o->d, HTH_INIT_LINEAR);
        m->bin = declare(dc, "input.bias", 1, o->d, HTH_INIT_ZEROS);
    } else if (o->kind == HTH_MODEL_LM) {
        declare_ids(dc, 0, "embedding.weight", o->classes + (o->objective == HTH_MASKED));
    } else {
        declare_ids(dc, HTH_IDS_TEXT, "words.weight", o->classes);
        declare_ids(dc, HTH_IDS_CODES, "codes.weight", o->codes);
    }
    if (o->embed_dim > 0)
        m->factor = declare(dc, "embedding.factor", o->embed_dim, o->d, HTH_INIT_LINEAR);
}

static void declare_head(struct declarer *dc)
{
    struct hth_model *m = dc->model;
    const struct hth_model_opts *o = &m->opts;
    bool picture = o->kind == HTH_MODEL_PICTURE;

    m->gamma = declare(dc, "norm.weight", 1, o->d, HTH_INIT_ONES);
    m->beta = declare(dc, "norm.bias", 1, o->d, HTH_INIT_ZEROS);
    if (!o->tied)
        m->wout = declare(dc, "output.weight", o->d, m->ids[0].count, HTH_INIT_LINEAR);
    for (uint32_t i = 0; i < m->ids_count; i++)
        m->ids[i].bias = declare(dc,
                                 !picture            ? "output.bias"
                                 : i == HTH_IDS_TEXT ? "words.bias"
                                                     : "codes.bias",
                                 1, m->ids[i].count, HTH_INIT_ZEROS);
}

/* Shared sets first, then the input's tensors, what the layers own, and the head. */
static enum hth_err declare_all(struct hth_model *m)
{
    const struct hth_model_opts *o = &m->opts;
    struct declarer dc = {.model = m};
    struct hth_stretch set[HTH_MODEL_LAYERS_MAX];
    size_t first;

    for (uint32_t s = 0; o->share > 0 && s < hth_model_sets(o); s++) {
        first = flat_end(&dc);
        snprintf(dc.prefix, sizeof(dc.prefix), "sets.%u.", s);
        declare_set(&dc, s);
        set[s] = since(&dc, first);
    }
    dc.prefix[0] = '\0';
    first = flat_end(&dc);
    declare_input(&dc);
    m->input = since(&dc, first);
    for (uint32_t l = 0; l < o->layers; l++) {
        first = flat_end(&dc);
        declare_layer(&dc, l);
        m->own[l] = since(&dc, first);
        if (o->share > 0)
            m->shared[l] = set[hth_model_set(o, l)];
    }
    dc.prefix[0] = '\0';
    first = flat_end(&dc);
    declare_head(&dc);
    m->own[o->layers] = since(&dc, first);
    return dc.err;
}

static void make_layers(struct hth_model *m)
{
    const struct hth_model_opts *o = &m->opts;

    for (uint32_t l = 0; l < o->layers; l++) {
        m->layer[l].set = &m->set[hth_model_set(o, l)];
        m->layer[l].mask =
            o->kind == HTH_MODEL_PICTURE
                ? (struct hth_mask){o->mask[l], o->text, o->height, o->width, o->window}
                : (struct hth_mask){.kind =
                                        o->objective == HTH_MASKED ? HTH_MASK_NONE : HTH_MASK_FULL,
                                    .text = o->seq_len};
    }
}

static enum hth_err make_grids(struct hth_model *m)
{
    char name[HTH_NAME_LEN_MAX + 1];

    for (uint32_t s = 0; s < hth_model_sets(&m->opts) && !m->opts.dense; s++) {
        if ((size_t)snprintf(name, sizeof(name), "%s%u", m->prefix, s) >= sizeof(name))
            return HTH_E_CONFIG;
        if (hth_grid_init(&m->set[s].grid, name, m->opts.grid_ndim, m->opts.grid_dim) != HTH_OK)
            return HTH_E_CONFIG;
        m->table_width = hth_gate_width(&m->set[s].grid);
    }
    return HTH_OK;
}

static enum hth_err make_beams(struct hth_model *m)
{
    struct hth_beam_opts o = HTH_BEAM_OPTS_INIT;

    o.k = m->opts.top_k;
    o.width = m->opts.beam_width;
    o.seed = m->opts.seed;
    HTH_TRY(hth_beam_new(&m->set[0].grid, &o, &m->beam_plain));
    o.noise_std = m->opts.noise_std;
    return hth_beam_new(&m->set[0].grid, &o, &m->beam);
}

static enum hth_err make_rope(struct hth_model *m)
{
    const struct hth_model_opts *o = &m->opts;
    const struct hth_rope_picture size = {o->text, o->height, o->width, o->d / o->heads};

    if (o->kind == HTH_MODEL_PICTURE)
        return hth_rope_new_picture(m->backend, &size, &m->rope);
    return hth_rope_new(m->backend, o->seq_len, o->d / o->heads, ROPE_BASE, &m->rope);
}

static enum hth_err make_params(struct hth_model *m)
{
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;

    HTH_TRY(declare_all(m));
    seal.seed = m->opts.seed;
    seal.stream = UINT32_MAX; /* experts count from 0: none has the trunk's numbers */
    return hth_params_seal(m->params, &seal);
}

/* Takes the options, and makes grids and a set of parameters without any. */
static enum hth_err begin(struct hth_model *m, const struct hth_backend *backend,
                          const struct hth_model_opts *opts)
{
    char why[HTH_MODEL_WHY_MAX];

    m->opts = *opts;
    if (opts->layer_prefix == NULL || opts->expert_kind == NULL)
        return HTH_E_CONFIG;
    m->prefix = hth_strdup(opts->layer_prefix);
    m->expert_kind = hth_strdup(opts->expert_kind);
    m->opts.layer_prefix = m->prefix;
    m->opts.expert_kind = m->expert_kind;
    m->opts.tied = is_tied(opts);
    if (m->opts.heads == 0)
        m->opts.heads = HTH_MAX(m->opts.d / 32, 1u);
    HTH_TRY(hth_model_check(&m->opts, backend, why));
    m->backend = backend != NULL ? backend : hth_backend_ref();
    m->block_rows =
        !m->opts.dense && strcmp(m->expert_kind, "transformer") == 0 ? m->opts.seq_len : 1;
    HTH_TRY(make_grids(m));
    make_layers(m);
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
    if (!m->opts.dense)
        HTH_GOTO(fail, make_beams(m));
    if (is_sequence(&m->opts))
        HTH_GOTO(fail, make_rope(m));
    HTH_GOTO(fail, make_params(m));
    HTH_GOTO(fail, hth_exec_new(m->backend, hth_layer_scratch(m), &m->exec));
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

const struct hth_grid *hth_model_grid(const struct hth_model *model, uint32_t set)
{
    return &model->set[set].grid;
}

/* The options that change what tensors of the same names and shapes mean. */
static uint64_t options_hash(const struct hth_model *model)
{
    const struct hth_model_opts *o = &model->opts;
    uint32_t weight;
    memcpy(&weight, &o->image_weight, sizeof(weight));
    const uint64_t numbers[] = {o->kind,       o->d,       o->layers,    o->heads,
                                o->features,   o->classes, o->seq_len,   model->block_rows,
                                o->dense,      o->text,    o->height,    o->width,
                                o->codes,      weight,     o->window,    o->share,
                                o->share_last, o->tied,    o->embed_dim, o->objective,
                                o->data_hash};
    uint64_t hash = hth_hash64(numbers, sizeof(numbers), 0);

    for (uint32_t l = 0; l < o->layers; l++) {
        uint64_t mask = model->layer[l].mask.kind;

        hash = hth_hash64(&mask, sizeof(mask), hash);
    }
    return hash;
}

bool hth_model_takes(const struct hth_model_opts *m, const struct hth_data_opts *data,
                     const struct hth_data_info *info)
{
    if (m->kind == HTH_MODEL_PICTURE)
        return data->kind == HTH_DATA_SET_CODES && info->features == m->seq_len &&
               m->classes >= data->vocab && m->codes >= data->codes;
    if (m->kind == HTH_MODEL_LM)
        return (data->kind == HTH_DATA_TEXT || data->kind == HTH_DATA_SET_TEXT) &&
               info->features == m->seq_len && m->classes >= data->vocab;
    return (data->kind == HTH_DATA_IMAGES || data->kind == HTH_DATA_SET_IMAGES) &&
           info->features == m->features && data->classes <= m->classes;
}

uint64_t hth_model_schema(const struct hth_model *model)
{
    const struct hth_model_opts *o = &model->opts;
    uint64_t hash = options_hash(model);

    for (uint32_t i = 0; i < hth_params_count(model->params); i++) {
        const struct hth_weight *w = hth_params_at(model->params, i);
        const char *name = hth_weight_name(w);
        uint64_t shape[2] = {hth_weight_rows(w), hth_weight_cols(w)};

        hash = hth_hash64(name, strlen(name), hash);
        hash = hth_hash64(shape, sizeof(shape), hash);
    }
    for (uint32_t s = 0; s < hth_model_sets(o) && !o->dense; s++) {
        char text[HTH_UID_TEXT_MAX];

        hth_grid_text(&model->set[s].grid, text);
        hash = hth_hash64(text, strlen(text), hash);
    }
    return hash;
}

enum hth_err hth_model_find_schema(const struct hth_model_opts *opts, uint64_t *schema)
{
    struct hth_model *m = hth_new(struct hth_model);
    enum hth_err err = begin(m, NULL, opts);

    if (err == HTH_OK)
        err = declare_all(m);
    *schema = err == HTH_OK ? hth_model_schema(m) : 0;
    hth_model_free(m);
    return err;
}
