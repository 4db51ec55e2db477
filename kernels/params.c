/* SPDX-License-Identifier: Apache-2.0 */
/*
 * params.c: flat parameter sets.
 *
 *   value  [ w1 ........ | pad | b1 .. | pad | w2 ........ | pad ]
 *   grad   [ the same layout                                     ]   from the first backward on
 *   state  [ the same layout, once or twice                      ]   from the first step on
 *
 * Gradients and states start *logically* zero: their pages are not touched before they are first
 * used, so that a server with many experts starts at once and forward-only use needs a quarter.
 */
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/backend_int.h"

#define FLOATS_ALIGN 16 /* tensors start on 64 bytes */

enum hth_err hth_params_new(const struct hth_backend *be, struct hth_params **out)
{
    struct hth_params *p = hth_new(struct hth_params);
    p->be = be;
    p->version = 1;
    *out = p;
    return HTH_OK;
}

void hth_params_free(struct hth_params *p)
{
    if (p == NULL)
        return;
    for (uint32_t i = 0; i < p->count && p->be->image_free != NULL; i++)
        p->be->image_free(p->weights[i]);
    if (p->be->params_close != NULL) {
        p->be->params_close(p);
    } else {
        hth_backend_free(p->be, p->value);
        hth_backend_free(p->be, p->grad);
        hth_backend_free(p->be, p->state[0]);
        hth_backend_free(p->be, p->state[1]);
    }
    for (uint32_t i = 0; i < p->count; i++)
        hth_free(p->weights[i]);
    hth_free(p->weights);
    hth_free(p);
}

enum hth_err hth_params_add(struct hth_params *p, const struct hth_param_spec *spec,
                            struct hth_weight **out)
{
    if (p->sealed || spec->rows == 0 || spec->cols == 0 || spec->name == NULL ||
        spec->name[0] == '\0' || strlen(spec->name) > HTH_PARAM_NAME_MAX ||
        hth_params_find(p, spec->name) != NULL)
        return HTH_E_CONFIG;
    uint64_t elements = (uint64_t)spec->rows * spec->cols;
    if (p->count >= HTH_PARAMS_TENSORS_MAX || elements > HTH_PARAMS_FLOATS_MAX ||
        p->flat_len + elements + FLOATS_ALIGN > HTH_PARAMS_FLOATS_MAX)
        return HTH_E_TOO_LARGE;
    if (p->count == p->cap) {
        p->cap = p->cap > 0 ? 2 * p->cap : 8;
        p->weights = hth_realloc(p->weights, p->cap, sizeof(p->weights[0]));
    }
    struct hth_weight *w = hth_new(struct hth_weight);
    w->owner = p;
    w->index = p->count;
    memcpy(w->name, spec->name, strlen(spec->name) + 1); /* the length is checked above */
    w->rows = spec->rows;
    w->cols = spec->cols;
    w->offset = p->flat_len;
    w->init = spec->init;
    w->scale = spec->scale != 0 ? spec->scale : 1.0f;
    w->no_decay = spec->no_decay;
    p->weights[p->count++] = w;
    p->elements += elements;
    p->flat_len += (elements + FLOATS_ALIGN - 1) / FLOATS_ALIGN * FLOATS_ALIGN;
    *out = w;
    return HTH_OK;
}

static enum hth_err zero(const struct hth_backend *be, float *dst, size_t count)
{
    struct hth_init_args args = {.dst = dst, .count = count, .init = HTH_INIT_ZEROS};
    return count > 0 ? be->init(be, &args) : HTH_OK;
}

/* Writes zeros between a tensor's last element and the next tensor. */
static enum hth_err zero_pad(const struct hth_params *p, const struct hth_weight *w, float *flat)
{
    size_t end = w->offset + (size_t)w->rows * w->cols;
    size_t next = w->index + 1 < p->count ? p->weights[w->index + 1]->offset : p->flat_len;
    return zero(p->be, flat + end, next - end);
}

static enum hth_err weight_init(struct hth_params *p, struct hth_weight *w,
                                const struct hth_seal_options *options)
{
    struct hth_init_args args = {.dst = w->value,
                                 .count = (size_t)w->rows * w->cols,
                                 .init = w->init,
                                 .scale = w->scale,
                                 .seed = options->seed,
                                 .stream = options->stream,
                                 .tensor = w->index};
    if (w->init == HTH_INIT_KAIMING) {
        args.init = HTH_INIT_NORMAL;
        args.scale = (float)((double)w->scale * sqrt(2.0 / (double)w->rows));
    } else if (w->init == HTH_INIT_LINEAR) {
        args.init = HTH_INIT_UNIFORM;
        args.scale = (float)((double)w->scale / sqrt((double)w->rows));
    }
    HTH_TRY(p->be->init(p->be, &args));
    return zero_pad(p, w, p->value);
}

/* Allocates the flat buffers of a set whose back end does not move them. */
static enum hth_err open_plain(struct hth_params *p)
{
    size_t bytes = p->flat_len * sizeof(float);
    bool have = (p->value = hth_backend_alloc(p->be, bytes)) != NULL;
    if (p->has_grads)
        have = have && (p->grad = hth_backend_alloc(p->be, bytes)) != NULL;
    for (uint32_t i = 0; i < p->slots; i++)
        have = have && (p->state[i] = hth_backend_alloc(p->be, bytes)) != NULL;
    return have ? HTH_OK : HTH_E_NO_MEMORY; /* the set frees the others */
}

enum hth_err hth_params_seal(struct hth_params *p, const struct hth_seal_options *options)
{
    if (p->sealed || options->state_slots > 2)
        return HTH_E_CONFIG;
    p->has_grads = !options->forward_only;
    p->factored = options->factored_grads;
    p->slots = options->forward_only ? 0 : options->state_slots;
    HTH_TRY(p->be->params_open != NULL ? p->be->params_open(p) : open_plain(p));
    for (uint32_t i = 0; i < p->count; i++) {
        struct hth_weight *w = p->weights[i];
        w->value = p->value + w->offset;
        HTH_TRY(weight_init(p, w, options));
        if (p->grad != NULL) {
            w->grad = p->grad + w->offset;
            w->grad_zero = true;
            HTH_TRY(zero_pad(p, w, p->grad));
        }
    }
    p->state_zero = true;
    p->sealed = true;
    if (p->be->params_opened != NULL)
        p->be->params_opened(p);
    return HTH_OK;
}

enum hth_err hth_weight_grad_ready(struct hth_weight *w)
{
    if (w->factors.units > 0)
        w->owner->be->factors_add(w, NULL);
    if (!w->grad_zero)
        return HTH_OK;
    HTH_TRY(zero(w->owner->be, w->grad, (size_t)w->rows * w->cols));
    w->grad_zero = false;
    return HTH_OK;
}

enum hth_err hth_params_grads_ready(struct hth_params *p, bool products)
{
    for (uint32_t i = 0; i < p->count; i++) {
        if (!products || !hth_weight_is_product(p->weights[i]))
            HTH_TRY(hth_weight_grad_ready(p->weights[i]));
    }
    return HTH_OK;
}

enum hth_err hth_params_states_ready(struct hth_params *p)
{
    for (uint32_t i = 0; p->state_zero && i < p->slots; i++)
        HTH_TRY(zero(p->be, p->state[i], p->flat_len));
    p->state_zero = false;
    return HTH_OK;
}

const struct hth_backend *hth_params_backend(const struct hth_params *p)
{
    return p->be;
}

uint32_t hth_params_count(const struct hth_params *p)
{
    return p->count;
}

uint64_t hth_params_elements(const struct hth_params *p)
{
    return p->elements;
}

size_t hth_params_flat_len(const struct hth_params *p)
{
    return p->flat_len;
}

uint32_t hth_params_state_slots(const struct hth_params *p)
{
    return p->slots;
}

struct hth_weight *hth_params_at(struct hth_params *p, uint32_t index)
{
    return index < p->count ? p->weights[index] : NULL;
}

struct hth_weight *hth_params_find(struct hth_params *p, const char *name)
{
    for (uint32_t i = 0; i < p->count; i++) {
        if (strcmp(p->weights[i]->name, name) == 0)
            return p->weights[i];
    }
    return NULL;
}

const char *hth_weight_name(const struct hth_weight *w)
{
    return w->name;
}

uint32_t hth_weight_rows(const struct hth_weight *w)
{
    return w->rows;
}

uint32_t hth_weight_cols(const struct hth_weight *w)
{
    return w->cols;
}

size_t hth_weight_offset(const struct hth_weight *w)
{
    return w->offset;
}

/* The buffer of a part; writes its logical zeros first. Errors: E_UNSUPPORTED. */
static enum hth_err part_buffer(struct hth_params *p, enum hth_part part, float **out)
{
    float *buffer = NULL;
    switch (part) {
    case HTH_PART_VALUE:
        buffer = p->value;
        break;
    case HTH_PART_GRAD:
        buffer = p->grad;
        if (buffer != NULL)
            HTH_TRY(hth_params_grads_ready(p, false));
        break;
    case HTH_PART_STATE0:
    case HTH_PART_STATE1:
        buffer = p->state[part - HTH_PART_STATE0];
        if (buffer != NULL)
            HTH_TRY(hth_params_states_ready(p));
        break;
    }
    *out = buffer;
    return buffer != NULL ? HTH_OK : HTH_E_UNSUPPORTED;
}

float *hth_params_flat(struct hth_params *p, enum hth_part part)
{
    float *buffer = NULL;
    if (!(p->be->caps & HTH_CAP_HOST_MEMORY) || part_buffer(p, part, &buffer) != HTH_OK)
        return NULL;
    return buffer;
}

void hth_params_touched(struct hth_params *p)
{
    p->version++;
}

/* Holds a part for reading. Logical zeros are written at the first read, so only reading values
 * writes nothing. */
static enum hth_err part_hold(struct hth_exec *ex, struct hth_params *p, enum hth_part part,
                              bool write)
{
    uint32_t bit = 1u << part;
    return hth_params_hold(ex, p, bit, write || part != HTH_PART_VALUE ? bit : 0);
}

static enum hth_err part_range(struct hth_params *p, enum hth_part part, size_t first, size_t count,
                               float **out)
{
    HTH_TRY(part_buffer(p, part, out));
    if (first > p->flat_len || count > p->flat_len - first)
        return HTH_E_RANGE;
    *out += first;
    return HTH_OK;
}

enum hth_err hth_params_export(struct hth_exec *ex, struct hth_params *p, enum hth_part part,
                               size_t first, size_t count, float *dst)
{
    float *src = NULL;
    HTH_TRY(part_hold(ex, p, part, false));
    HTH_TRY(part_range(p, part, first, count, &src));
    HTH_TRY(hth_exec_download(ex, dst, src, count * sizeof(float)));
    return hth_exec_sync(ex);
}

enum hth_err hth_params_import(struct hth_exec *ex, struct hth_params *p, enum hth_part part,
                               size_t first, size_t count, const float *src)
{
    float *dst = NULL;
    HTH_TRY(part_hold(ex, p, part, true));
    HTH_TRY(part_range(p, part, first, count, &dst));
    HTH_TRY(hth_exec_upload(ex, dst, src, count * sizeof(float)));
    if (part == HTH_PART_VALUE)
        hth_params_touched(p);
    return hth_exec_sync(ex);
}

enum hth_err hth_weight_export(struct hth_exec *ex, struct hth_weight *w, enum hth_part part,
                               float *dst)
{
    return hth_params_export(ex, w->owner, part, w->offset, (size_t)w->rows * w->cols, dst);
}

enum hth_err hth_weight_import(struct hth_exec *ex, struct hth_weight *w, enum hth_part part,
                               const float *src)
{
    return hth_params_import(ex, w->owner, part, w->offset, (size_t)w->rows * w->cols, src);
}

#define SCALE_COLS ((size_t)1 << 20)

enum hth_err hth_params_scale(struct hth_exec *ex, struct hth_params *p, enum hth_part part,
                              float factor)
{
    float *flat = NULL;
    HTH_TRY(part_hold(ex, p, part, true));
    HTH_TRY(part_buffer(p, part, &flat));
    for (size_t at = 0; at < p->flat_len; at += SCALE_COLS) {
        uint32_t cols = (uint32_t)HTH_MIN(p->flat_len - at, SCALE_COLS);
        struct hth_view v = hth_view_f32(flat + at, 1, cols, cols);
        HTH_TRY(ex->be->combine(ex, factor, v, 0, HTH_VIEW_NONE, v));
    }
    if (part == HTH_PART_VALUE)
        hth_params_touched(p);
    return HTH_OK;
}

void hth_params_ahead(struct hth_exec *ex, struct hth_params *p, bool gradients)
{
    if (ex->be->params_ahead != NULL && ex->be == p->be && p->sealed)
        ex->be->params_ahead(ex, p, HTH_HOLD_VALUE | (gradients ? HTH_HOLD_GRAD : 0));
}

void hth_params_zero_grads(struct hth_params *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        p->weights[i]->grad_zero = p->weights[i]->grad != NULL;
        p->weights[i]->factors.units = 0;
    }
}

uint64_t hth_params_steps(const struct hth_params *p)
{
    return p->steps;
}

void hth_params_set_steps(struct hth_params *p, uint64_t steps)
{
    p->steps = steps;
}
