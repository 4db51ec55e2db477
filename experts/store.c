/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c: one hosted expert; store.h has the equation of the step and the rule for calls in
 * parallel.
 *
 * A checkpoint holds, per weight, NAME, and with the optimiser's states NAME.m and NAME.v, all F32
 * of shape [rows, cols], and this metadata:
 *
 *   format      hearth-expert-1          uid     ffn0.3.7
 *   run         the run's name, if the options have one
 *   kind        ffn                      d, inner, heads, block_rows
 *   optimizer   sgd | adam | adamw | lamb
 *   steps       steps done: Adam's bias correction and the schedule depend on it
 */
#include "experts/store.h"

#include "core/limits.h"
#include "core/mem.h"
#include "experts/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FORMAT   "hearth-expert-2"
#define FORMAT_1 "hearth-expert-1" /* its keys have no prefix */
#define PREFIX   "hearth."
/* Tolerance over exact sums: moments are rounded at each step. */
#define MOMENTS_SLACK 1.01

/* Gradients that wait for a step: the sums of store.h's equation. */
struct pending {
    uint64_t rows;
    uint32_t microbatch; /* M_acc */
};

struct hth_expert {
    struct hth_expert_opts opts;
    const struct hth_expert_kind *kind;
    struct hth_module_opts module_opts;
    struct hth_module *module; /* NULL until init or load */
    struct hth_params *params; /* of the module; NULL for kinds without */
    char uid_text[HTH_UID_TEXT_MAX];
    struct pending pending;
    bool moments_renewed; /* by the last load */
};

static const char *const state_suffix[] = {".m", ".v"};
static const enum hth_part state_part[] = {HTH_PART_STATE0, HTH_PART_STATE1};

static const char *optim_name(enum hth_optim_kind kind)
{
    static const char *const names[] = {"sgd", "adam", "adamw", "lamb"};

    return names[kind];
}

static bool schedule_ok(const struct hth_schedule *s)
{
    return isfinite(s->lr) && s->lr >= 0 && isfinite(s->lr_final) && s->lr_final >= 0;
}

enum hth_err hth_expert_new(const struct hth_expert_opts *opts, struct hth_expert **out)
{
    struct hth_expert *e = hth_new(struct hth_expert);
    uint64_t hash;
    enum hth_err err = HTH_E_CONFIG;

    *out = NULL;
    e->opts = *opts;
    e->kind = opts->kind == NULL ? NULL : hth_expert_kind_find(opts->kind);
    hth_uid_text(&opts->uid, e->uid_text);
    if (e->kind == NULL || opts->backend == NULL || !schedule_ok(&opts->schedule) ||
        !(opts->clip_norm >= 0))
        goto out;
    e->opts.kind = e->kind->name;
    e->opts.optim.lr = opts->schedule.lr;
    HTH_GOTO(out, hth_optim_check(&e->opts.optim));
    HTH_GOTO(out, e->kind->shape(&e->opts.shape));
    err = HTH_E_TOO_LARGE;
    if (e->kind->weights(&e->opts.shape) > HTH_EXPERT_PARAMS_MAX)
        goto out;
    hash = hth_hash64(e->uid_text, strlen(e->uid_text), 0);
    e->module_opts = (struct hth_module_opts){
        .backend = opts->backend,
        .shape = e->opts.shape,
        .seal = {.seed = hth_mix64(opts->run_seed ^ hash),
                 .stream = (uint32_t)(hash >> 32),
                 .state_slots = hth_optim_slots(&e->opts.optim),
                 .factored_grads = true},
    };
    *out = e;
    return HTH_OK;
out:
    hth_free(e);
    return err;
}

static void drop_module(struct hth_expert *expert)
{
    if (expert->module != NULL)
        expert->kind->module_free(expert->module);
    expert->module = NULL;
    expert->params = NULL;
    expert->pending.rows = 0;
    expert->moments_renewed = false;
}

void hth_expert_free(struct hth_expert *expert)
{
    if (expert == NULL)
        return;
    drop_module(expert);
    hth_free(expert);
}

enum hth_err hth_expert_init(struct hth_expert *expert)
{
    drop_module(expert);
    HTH_TRY(expert->kind->module_new(&expert->module_opts, &expert->module));
    expert->params = expert->kind->params(expert->module);
    return HTH_OK;
}

const struct hth_uid *hth_expert_uid(const struct hth_expert *expert)
{
    return &expert->opts.uid;
}

const char *hth_expert_uid_text(const struct hth_expert *expert)
{
    return expert->uid_text;
}

const struct hth_expert_kind *hth_expert_kind_of(const struct hth_expert *expert)
{
    return expert->kind;
}

const struct hth_expert_shape *hth_expert_shape_of(const struct hth_expert *expert)
{
    return &expert->opts.shape;
}

struct hth_params *hth_expert_params(struct hth_expert *expert)
{
    return expert->params;
}

size_t hth_expert_scratch_bytes(const struct hth_expert *expert, uint32_t rows, bool backward)
{
    if (rows == 0)
        return 0;
    return expert->kind->scratch_bytes(&expert->module_opts, rows, backward);
}

static enum hth_err check_rows(const struct hth_expert *expert, struct hth_view v, uint32_t rows)
{
    if (expert->module == NULL)
        return HTH_E_BUG;
    if (v.rows != rows || v.cols != expert->opts.shape.d || v.dtype != HTH_F32 ||
        v.rows % expert->opts.shape.block_rows != 0)
        return HTH_E_BAD_SHAPE;
    return HTH_OK;
}

enum hth_err hth_expert_forward(const struct hth_expert *expert, struct hth_exec *ex,
                                struct hth_view x, struct hth_view y)
{
    HTH_TRY(check_rows(expert, x, x.rows));
    HTH_TRY(check_rows(expert, y, x.rows));
    return expert->kind->forward(expert->module, ex, x, y);
}

/* Rescales the accumulated gradients from M_acc to another M: see store.h. The new M_acc holds
 * whether or not the pass itself succeeds. */
static enum hth_err backward_begin(struct hth_expert *expert, struct hth_exec *ex,
                                   const struct hth_expert_pass *c)
{
    struct pending *pending = &expert->pending;

    HTH_TRY(check_rows(expert, c->x, c->x.rows));
    HTH_TRY(check_rows(expert, c->dy, c->x.rows));
    HTH_TRY(check_rows(expert, c->out, c->x.rows));
    if (c->rows_in_microbatch == 0 || c->padding + c->uncounted > c->x.rows)
        return HTH_E_RANGE;
    if (expert->params == NULL)
        return HTH_OK;
    if (pending->rows > 0 && pending->microbatch != c->rows_in_microbatch)
        HTH_TRY(hth_params_scale(ex, expert->params, HTH_PART_GRAD,
                                 (float)((double)pending->microbatch / c->rows_in_microbatch)));
    pending->microbatch = c->rows_in_microbatch;
    return HTH_OK;
}

static void backward_end(struct hth_expert *expert, const struct hth_expert_pass *c)
{
    if (expert->params != NULL)
        expert->pending.rows += c->x.rows - c->padding - c->uncounted;
}

enum hth_err hth_expert_backward(struct hth_expert *expert, struct hth_exec *ex,
                                 uint32_t rows_in_microbatch, struct hth_view x, struct hth_view dy,
                                 struct hth_view dx)
{
    const struct hth_expert_pass call = {.expert = expert,
                                         .rows_in_microbatch = rows_in_microbatch,
                                         .x = x,
                                         .dy = dy,
                                         .out = dx};

    return hth_expert_backward_pass(ex, &call);
}

enum hth_err hth_expert_backward_pass(struct hth_exec *ex, const struct hth_expert_pass *c)
{
    HTH_TRY(backward_begin(c->expert, ex, c));
    HTH_TRY(c->expert->kind->backward(c->expert->module, ex, c->x, c->dy, c->out));
    backward_end(c->expert, c);
    return HTH_OK;
}

enum hth_err hth_expert_many(struct hth_exec *ex, const struct hth_expert_pass *calls,
                             uint32_t count, bool backward)
{
    struct hth_module_call modules[HTH_MODULE_CALLS_MAX];

    if (count == 0 || count > HTH_MODULE_CALLS_MAX)
        return count == 0 ? HTH_OK : HTH_E_RANGE;
    for (uint32_t i = 0; i < count; i++) {
        const struct hth_expert_pass *c = &calls[i];
        if (c->expert->kind != calls[0].expert->kind || c->expert->kind->many == NULL)
            return HTH_E_BUG;
        HTH_TRY(check_rows(c->expert, c->x, c->x.rows));
        HTH_TRY(check_rows(c->expert, c->out, c->x.rows));
        if (backward)
            HTH_TRY(backward_begin(c->expert, ex, c));
        modules[i] = (struct hth_module_call){
            .module = c->expert->module, .x = c->x, .y = c->out, .dy = c->dy, .dx = c->out};
    }
    HTH_TRY(calls[0].expert->kind->many(ex, modules, count, backward));
    for (uint32_t i = 0; i < count && backward; i++)
        backward_end(calls[i].expert, &calls[i]);
    return HTH_OK;
}

uint64_t hth_expert_pending_rows(const struct hth_expert *expert)
{
    return expert->pending.rows;
}

enum hth_err hth_expert_step(struct hth_expert *expert, struct hth_exec *ex)
{
    struct hth_optim optim = expert->opts.optim;
    double scale, norm;
    bool finite;
    enum hth_err err;

    if (hth_expert_pending_rows(expert) == 0)
        return HTH_OK;
    scale = (double)expert->pending.microbatch / (double)expert->pending.rows;
    HTH_GOTO(out, hth_grad_norm(ex, expert->params, &norm, &finite));
    err = HTH_E_NOT_FINITE;
    if (!finite)
        goto out;
    optim.lr = hth_expert_lr(expert);
    scale *= hth_clip_scale(norm * scale, expert->opts.clip_norm);
    HTH_GOTO(out, hth_optim_step(ex, expert->params, &optim, (float)scale));
    err = hth_exec_sync(ex); /* other contexts may read the weights next */
out:
    expert->pending.rows = 0;
    hth_params_zero_grads(expert->params);
    return err;
}

void hth_expert_drop(struct hth_expert *expert)
{
    expert->pending.rows = 0;
    if (expert->params != NULL)
        hth_params_zero_grads(expert->params);
}

uint64_t hth_expert_steps(const struct hth_expert *expert)
{
    return expert->params == NULL ? 0 : hth_params_steps(expert->params);
}

float hth_expert_lr(const struct hth_expert *expert)
{
    return hth_schedule_lr(&expert->opts.schedule, hth_expert_steps(expert));
}

/* ---- checkpoints --------------------------------------------------------------------------- */

/* A flat buffer in place; where the back end has its own memory, a copy in *copy. */
static enum hth_err flat_of(struct hth_params *p, enum hth_part part, float **flat, float **copy)
{
    size_t len = hth_params_flat_len(p);
    struct hth_exec *ex = NULL;
    enum hth_err err;

    *copy = NULL;
    *flat = hth_params_flat(p, part);
    if (*flat != NULL)
        return HTH_OK;
    *copy = *flat = hth_try_aligned(len * sizeof(float));
    if (*copy == NULL)
        return HTH_E_NO_MEMORY;
    HTH_TRY(hth_exec_new(hth_params_backend(p), 0, &ex));
    err = hth_params_export(ex, p, part, 0, len, *flat);
    hth_exec_free(ex);
    return err;
}

static void add_part(struct hth_st_writer *w, struct hth_params *p, const float *flat,
                     const char *suffix)
{
    char name[HTH_ST_NAME_MAX + 1];

    for (uint32_t i = 0; i < hth_params_count(p); i++) {
        struct hth_weight *weight = hth_params_at(p, i);
        const uint64_t dim[2] = {hth_weight_rows(weight), hth_weight_cols(weight)};
        snprintf(name, sizeof(name), "%s%s", hth_weight_name(weight), suffix);
        hth_st_add(w, name, HTH_F32, 2, dim, flat + hth_weight_offset(weight));
    }
}

static void add_meta(struct hth_st_writer *w, const struct hth_expert *expert)
{
    const struct hth_expert_shape *s = &expert->opts.shape;

    hth_st_add_meta(w, PREFIX "format", FORMAT);
    hth_st_add_meta(w, PREFIX "uid", expert->uid_text);
    if (expert->opts.run != NULL)
        hth_st_add_meta(w, PREFIX "run", expert->opts.run);
    hth_st_add_meta(w, PREFIX "kind", expert->kind->name);
    hth_st_add_meta_u64(w, PREFIX "d", s->d);
    hth_st_add_meta_u64(w, PREFIX "inner", s->inner);
    hth_st_add_meta_u64(w, PREFIX "heads", s->heads);
    hth_st_add_meta_u64(w, PREFIX "block_rows", s->block_rows);
    hth_st_add_meta(w, PREFIX "optimizer", optim_name(expert->opts.optim.kind));
    hth_st_add_meta_u64(w, PREFIX "steps", hth_expert_steps(expert));
    if (expert->opts.run_text != NULL)
        hth_st_add_meta(w, PREFIX "run_file", expert->opts.run_text);
}

static enum hth_err write_state(const struct hth_expert *expert, bool moments,
                                struct hth_blob **out)
{
    struct hth_st_writer *w = hth_st_writer_new();
    struct hth_params *p = expert->params;
    float *flat, *copy[3] = {NULL, NULL, NULL};
    enum hth_err err;

    *out = NULL;
    add_meta(w, expert);
    if (p != NULL) {
        HTH_GOTO(out, flat_of(p, HTH_PART_VALUE, &flat, &copy[2]));
        add_part(w, p, flat, "");
        for (uint32_t s = 0; moments && s < hth_params_state_slots(p); s++) {
            HTH_GOTO(out, flat_of(p, state_part[s], &flat, &copy[s]));
            add_part(w, p, flat, state_suffix[s]);
        }
    }
    HTH_GOTO(out, hth_st_writer_finish(w, out));
out:
    hth_st_writer_free(w);
    for (size_t i = 0; i < HTH_ARRAY_LEN(copy); i++)
        hth_aligned_free(copy[i]);
    return err;
}

enum hth_err hth_expert_snapshot(const struct hth_expert *expert, struct hth_blob **out)
{
    return write_state(expert, true, out);
}

enum hth_err hth_expert_weights(const struct hth_expert *expert, struct hth_blob **out)
{
    return write_state(expert, false, out);
}

/* `key` is a name in FORMAT; in FORMAT_1 it has no prefix. */
static const char *key_in(const struct hth_st_reader *r, const char *key)
{
    return hth_st_meta(r, PREFIX "format") == NULL ? key + strlen(PREFIX) : key;
}

static bool meta_is(const struct hth_st_reader *r, const char *key, const char *want)
{
    const char *text = hth_st_meta(r, key_in(r, key));

    return text != NULL && strcmp(text, want) == 0;
}

static bool meta_is_u64(const struct hth_st_reader *r, const char *key, uint64_t want)
{
    uint64_t value;

    return hth_st_meta_u64(r, key_in(r, key), &value) == HTH_OK && value == want;
}

static enum hth_err check_meta(const struct hth_expert *expert, const struct hth_st_reader *r)
{
    const struct hth_expert_shape *s = &expert->opts.shape;

    if (!hth_st_has_digest(r) ||
        (!meta_is(r, PREFIX "format", FORMAT) && !meta_is(r, PREFIX "format", FORMAT_1)))
        return HTH_E_CORRUPT;
    if (!meta_is(r, PREFIX "uid", expert->uid_text))
        return HTH_E_WRONG_RUN;
    if (expert->opts.run != NULL && hth_st_meta(r, key_in(r, PREFIX "run")) != NULL &&
        !meta_is(r, PREFIX "run", expert->opts.run))
        return HTH_E_WRONG_RUN;
    if (!meta_is(r, PREFIX "kind", expert->kind->name) || !meta_is_u64(r, PREFIX "d", s->d) ||
        !meta_is_u64(r, PREFIX "inner", s->inner) || !meta_is_u64(r, PREFIX "heads", s->heads) ||
        !meta_is_u64(r, PREFIX "block_rows", s->block_rows))
        return HTH_E_BAD_SHAPE;
    if (!meta_is(r, PREFIX "optimizer", optim_name(expert->opts.optim.kind)))
        return HTH_E_CONFIG;
    return HTH_OK;
}

/* Checks that a tensor's numbers are usable. The digest only proves that a file is whole, and
 * anybody can make one; weights that are not finite would answer NaN for ever. */
static enum hth_err check_values(const struct hth_st_entry *e, bool squares)
{
    const float *v = e->data;

    for (uint64_t i = 0; i < e->bytes / sizeof(float); i++) {
        if (!isfinite(v[i]))
            return HTH_E_NOT_FINITE;
        if (squares && v[i] < 0)
            return HTH_E_RANGE;
    }
    return HTH_OK;
}

static enum hth_err load_part(struct hth_params *p, struct hth_exec *ex,
                              const struct hth_st_reader *r, enum hth_part part, const char *suffix)
{
    char name[HTH_ST_NAME_MAX + 1];

    for (uint32_t i = 0; i < hth_params_count(p); i++) {
        struct hth_weight *w = hth_params_at(p, i);
        const struct hth_st_entry *e;
        snprintf(name, sizeof(name), "%s%s", hth_weight_name(w), suffix);
        e = hth_st_find(r, name);
        if (e == NULL || e->dtype != HTH_F32 || e->ndim != 2 || e->dim[0] != hth_weight_rows(w) ||
            e->dim[1] != hth_weight_cols(w))
            return HTH_E_BAD_SHAPE;
        if ((uintptr_t)e->data % sizeof(float) != 0)
            return HTH_E_CORRUPT; /* our writer aligns data: another program wrote this file */
        HTH_TRY(check_values(e, part == HTH_PART_STATE1));
        HTH_TRY(hth_weight_import(ex, w, part, e->data));
    }
    return HTH_OK;
}

/* Sums the numbers of a state's tensors, or their squares. load_part has checked them. */
static double state_sum(const struct hth_expert *expert, const struct hth_st_reader *r,
                        const char *suffix, bool squared)
{
    char name[HTH_ST_NAME_MAX + 1];
    double sum = 0;

    for (uint32_t i = 0; i < hth_params_count(expert->params); i++) {
        const struct hth_st_entry *e;
        snprintf(name, sizeof(name), "%s%s", hth_weight_name(hth_params_at(expert->params, i)),
                 suffix);
        e = hth_st_find(r, name);
        for (uint64_t k = 0; k < e->bytes / sizeof(float); k++) {
            double v = ((const float *)e->data)[k];
            sum += squared ? v * v : v;
        }
    }
    return sum;
}

/* True if steps with gradients of norm clip_norm at most can have left these moments (store.h). */
static bool moments_are_clipped(const struct hth_expert *expert, const struct hth_st_reader *r)
{
    const struct hth_optim *o = &expert->opts.optim;
    double c = expert->opts.clip_norm, most = c * c * MOMENTS_SLACK;

    if (c <= 0 || hth_params_state_slots(expert->params) < 2 ||
        (o->kind == HTH_OPTIM_ADAM && o->weight_decay > 0))
        return true;
    return state_sum(expert, r, state_suffix[0], true) <= most &&
           state_sum(expert, r, state_suffix[1], false) <= most;
}

static enum hth_err fill_state(struct hth_params *p, struct hth_exec *ex, enum hth_part part,
                               float value)
{
    enum hth_err err = HTH_OK;

    for (uint32_t i = 0; i < hth_params_count(p) && err == HTH_OK; i++) {
        struct hth_weight *w = hth_params_at(p, i);
        size_t count = (size_t)hth_weight_rows(w) * hth_weight_cols(w);
        float *all = hth_try_aligned(count * sizeof(float));
        if (all == NULL)
            return HTH_E_NO_MEMORY;
        for (size_t k = 0; k < count; k++)
            all[k] = value;
        err = hth_weight_import(ex, w, part, all);
        if (err == HTH_OK)
            err = hth_exec_sync(ex);
        hth_aligned_free(all);
    }
    return err;
}

/* Sets the moments that many gradients of the clipped norm, alike in all weights, would leave when
 * they cancel out. Zeros would not do: the bias correction is over, and the next steps would be too
 * large. */
static enum hth_err renew_moments(struct hth_expert *expert, struct hth_exec *ex)
{
    double c = expert->opts.clip_norm, weights = 0;

    for (uint32_t i = 0; i < hth_params_count(expert->params); i++) {
        struct hth_weight *w = hth_params_at(expert->params, i);
        weights += (double)hth_weight_rows(w) * hth_weight_cols(w);
    }
    expert->moments_renewed = true;
    HTH_TRY(fill_state(expert->params, ex, state_part[0], 0));
    return fill_state(expert->params, ex, state_part[1], (float)(c * c / weights));
}

static enum hth_err load_params(struct hth_expert *expert, const struct hth_st_reader *r)
{
    struct hth_params *p = expert->params;
    struct hth_exec *ex = NULL;
    uint64_t steps;
    enum hth_err err = HTH_E_CORRUPT;

    if (hth_st_meta_u64(r, key_in(r, PREFIX "steps"), &steps) != HTH_OK ||
        hth_st_count(r) != (size_t)hth_params_count(p) * (1 + hth_params_state_slots(p)))
        return err;
    if (steps > HTH_EXPERT_STEPS_MAX)
        return HTH_E_RANGE;
    HTH_TRY(hth_exec_new(hth_params_backend(p), 0, &ex));
    HTH_GOTO(out, load_part(p, ex, r, HTH_PART_VALUE, ""));
    for (uint32_t s = 0; s < hth_params_state_slots(p); s++)
        HTH_GOTO(out, load_part(p, ex, r, state_part[s], state_suffix[s]));
    if (!moments_are_clipped(expert, r))
        HTH_GOTO(out, renew_moments(expert, ex));
    HTH_GOTO(out, hth_exec_sync(ex));
    hth_params_set_steps(p, steps);
    hth_params_touched(p);
out:
    hth_exec_free(ex);
    return err;
}

enum hth_err hth_expert_load_blob(struct hth_expert *expert, const void *data, size_t len)
{
    struct hth_st_reader *r = NULL;
    enum hth_err err;

    drop_module(expert);
    err = hth_st_open(data, len, &r);
    if (err != HTH_OK)
        return err == HTH_E_NO_MEMORY ? err : HTH_E_CORRUPT;
    HTH_GOTO(out, check_meta(expert, r));
    HTH_GOTO(out, hth_expert_init(expert));
    if (expert->params != NULL)
        HTH_GOTO(out, load_params(expert, r));
out:
    hth_st_close(r);
    if (err != HTH_OK)
        drop_module(expert);
    return err;
}

bool hth_expert_moments_renewed(const struct hth_expert *expert)
{
    return expert->moments_renewed;
}

char *hth_expert_path(const char *dir, const struct hth_expert *expert)
{
    return hth_asprintf("%s/%s.safetensors", dir, expert->uid_text);
}

enum hth_err hth_expert_load_file(struct hth_expert *expert, struct hth_env *env, const char *path)
{
    struct hth_blob *blob = NULL;
    enum hth_err err;

    HTH_TRY(hth_file_read(env, path, HTH_CHECKPOINT_BYTES_MAX, &blob));
    err = hth_expert_load_blob(expert, blob->data, blob->size);
    hth_blob_unref(blob);
    return err;
}
