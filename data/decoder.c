/* SPDX-License-Identifier: Apache-2.0 */
/* decoder.c: an embedding and two linear layers over neighbourhoods of codes. */
#include "data/decoder.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/ops.h"
#include "kernels/optim.h"

#define NEIGHBOURS 9
#define EMBED      16
#define HIDDEN     256
#define BATCH_ROWS 4096 /* patches of a step: 64 pictures of 8 x 8 codes */
#define RATE       3e-3f

struct hth_decoder {
    const struct hth_book *book;
    uint32_t side, grid, out; /* patches of a side; numbers of a patch */
    uint32_t rows_max;        /* patches that the buffers hold */
    struct hth_params *params;
    struct hth_exec *exec;
    struct hth_weight *embed, *w1, *b1, *w2, *b2;
    uint64_t seed;
    /* Of a batch: tokens [rows * 9], and matrices of `rows` rows. */
    int32_t *tokens;
    float *x, *dx; /* 9 * EMBED columns */
    float *pre, *hidden, *dhidden;
    float *y, *dy; /* `out` columns */
};

/* ---- life ---------------------------------------------------------------------------------- */

static enum hth_err add(struct hth_decoder *d, const char *name, uint32_t rows, uint32_t cols,
                        enum hth_init init, struct hth_weight **out)
{
    struct hth_param_spec spec = {.name = name, .rows = rows, .cols = cols, .init = init};

    return hth_params_add(d->params, &spec, out);
}

static enum hth_err add_all(struct hth_decoder *d)
{
    HTH_TRY(add(d, "embed", d->book->codes + 1, EMBED, HTH_INIT_NORMAL, &d->embed));
    HTH_TRY(add(d, "w1", NEIGHBOURS * EMBED, HIDDEN, HTH_INIT_LINEAR, &d->w1));
    HTH_TRY(add(d, "b1", 1, HIDDEN, HTH_INIT_ZEROS, &d->b1));
    HTH_TRY(add(d, "w2", HIDDEN, d->out, HTH_INIT_ZEROS, &d->w2));
    return add(d, "b2", 1, d->out, HTH_INIT_ZEROS, &d->b2);
}

static float *matrix(const struct hth_decoder *d, uint32_t cols)
{
    return hth_try_aligned((size_t)d->rows_max * cols * sizeof(float));
}

static enum hth_err make_buffers(struct hth_decoder *d)
{
    d->tokens = hth_try_calloc((size_t)d->rows_max * NEIGHBOURS, sizeof(*d->tokens));
    d->x = matrix(d, NEIGHBOURS * EMBED);
    d->dx = matrix(d, NEIGHBOURS * EMBED);
    d->pre = matrix(d, HIDDEN);
    d->hidden = matrix(d, HIDDEN);
    d->dhidden = matrix(d, HIDDEN);
    d->y = matrix(d, d->out);
    d->dy = matrix(d, d->out);
    return d->tokens != NULL && d->x != NULL && d->dx != NULL && d->pre != NULL &&
                   d->hidden != NULL && d->dhidden != NULL && d->y != NULL && d->dy != NULL
               ? HTH_OK
               : HTH_E_NO_MEMORY;
}

static enum hth_err build(struct hth_decoder *d, const struct hth_decoder_opts *opts)
{
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    size_t scratch = HTH_MAX(hth_linear_scratch(opts->backend, NEIGHBOURS * EMBED, HIDDEN),
                             hth_linear_scratch(opts->backend, HIDDEN, d->out));

    HTH_TRY(hth_params_new(opts->backend, &d->params));
    HTH_TRY(add_all(d));
    seal.seed = opts->seed;
    HTH_TRY(hth_params_seal(d->params, &seal));
    HTH_TRY(hth_exec_new(opts->backend, scratch, &d->exec));
    hth_exec_set_team(d->exec, opts->team);
    return make_buffers(d);
}

enum hth_err hth_decoder_new(const struct hth_decoder_opts *opts, struct hth_decoder **out)
{
    struct hth_decoder *d = hth_new(struct hth_decoder);
    enum hth_err err;

    d->book = opts->book;
    d->side = opts->side;
    d->grid = opts->side / opts->book->patch;
    d->out = 3 * opts->book->patch * opts->book->patch;
    d->rows_max = HTH_MAX((uint32_t)BATCH_ROWS, d->grid * d->grid);
    d->seed = opts->seed;
    err = build(d, opts);
    if (err != HTH_OK) {
        hth_decoder_free(d);
        d = NULL;
    }
    *out = d;
    return err;
}

void hth_decoder_free(struct hth_decoder *d)
{
    if (d == NULL)
        return;
    hth_exec_free(d->exec);
    hth_params_free(d->params);
    hth_free(d->tokens);
    hth_aligned_free(d->x);
    hth_aligned_free(d->dx);
    hth_aligned_free(d->pre);
    hth_aligned_free(d->hidden);
    hth_aligned_free(d->dhidden);
    hth_aligned_free(d->y);
    hth_aligned_free(d->dy);
    hth_free(d);
}

struct hth_params *hth_decoder_params(struct hth_decoder *d)
{
    return d->params;
}

/* ---- forward ------------------------------------------------------------------------------- */

/* The neighbourhoods of a picture's codes, row by row. */
static void set_tokens(const struct hth_decoder *d, const uint16_t *codes, int32_t *tokens)
{
    int grid = (int)d->grid;

    for (int y = 0; y < grid; y++) {
        for (int x = 0; x < grid; x++) {
            for (int i = 0; i < NEIGHBOURS; i++) {
                int ny = y + i / 3 - 1, nx = x + i % 3 - 1;
                bool inside = ny >= 0 && ny < grid && nx >= 0 && nx < grid;
                *tokens++ = inside ? codes[ny * grid + nx] : (int32_t)d->book->codes;
            }
        }
    }
}

static struct hth_view view(float *data, uint32_t rows, uint32_t cols)
{
    return hth_view_f32(data, rows, cols, cols);
}

static enum hth_err forward(struct hth_decoder *d, uint32_t rows)
{
    struct hth_linear first = {.w = d->w1,
                               .bias = d->b1,
                               .act = HTH_ACT_GELU,
                               .pre = view(d->pre, rows, HIDDEN),
                               .residual = HTH_VIEW_NONE};
    struct hth_linear second = {.w = d->w2,
                                .bias = d->b2,
                                .act = HTH_ACT_NONE,
                                .pre = HTH_VIEW_NONE,
                                .residual = HTH_VIEW_NONE};

    HTH_TRY(hth_embed_forward(d->exec, d->embed, hth_view_i32(d->tokens, rows * NEIGHBOURS),
                              view(d->x, rows * NEIGHBOURS, EMBED)));
    HTH_TRY(hth_linear_forward(d->exec, &first, view(d->x, rows, NEIGHBOURS * EMBED),
                               view(d->hidden, rows, HIDDEN)));
    HTH_TRY(hth_linear_forward(d->exec, &second, view(d->hidden, rows, HIDDEN),
                               view(d->y, rows, d->out)));
    return hth_exec_sync(d->exec);
}

static float centre_of(const struct hth_decoder *d, uint16_t code, uint32_t i)
{
    return (float)d->book->centres[(size_t)code * d->out + i] / (HTH_BOOK_SCALE * 255.0f);
}

/* Where number i of patch `at` lies in a picture. */
static size_t pixel_of(const struct hth_decoder *d, uint32_t at, uint32_t i)
{
    uint32_t row = 3 * d->book->patch;
    size_t y = (size_t)(at / d->grid) * d->book->patch + i / row;

    return y * d->side * 3 + (size_t)(at % d->grid) * row + i % row;
}

enum hth_err hth_decoder_paint(struct hth_decoder *d, const uint16_t *codes, uint8_t *rgb)
{
    uint32_t rows = d->grid * d->grid;

    set_tokens(d, codes, d->tokens);
    HTH_TRY(forward(d, rows));
    for (uint32_t at = 0; at < rows; at++) {
        for (uint32_t i = 0; i < d->out; i++) {
            float v = 255.0f * (d->y[(size_t)at * d->out + i] + centre_of(d, codes[at], i));
            rgb[pixel_of(d, at, i)] = (uint8_t)(HTH_MIN(HTH_MAX(v, 0.0f), 255.0f) + 0.5f);
        }
    }
    return HTH_OK;
}

/* ---- training ------------------------------------------------------------------------------ */

struct lesson {
    const struct hth_book_pictures *pictures;
    uint16_t *codes; /* of all pictures */
    uint32_t *order;
    uint32_t at; /* in the order */
    struct hth_rng rng;
};

/* dy: the gradient of the mean squared error of picture `index`, in rows from `first`. */
static void set_error(struct hth_decoder *d, const struct lesson *l, uint32_t index, uint32_t first,
                      float scale)
{
    uint32_t rows = d->grid * d->grid;
    const uint8_t *rgb = l->pictures->rgb + (size_t)index * d->side * d->side * 3;
    const uint16_t *codes = l->codes + (size_t)index * rows;

    for (uint32_t at = 0; at < rows; at++) {
        for (uint32_t i = 0; i < d->out; i++) {
            size_t to = (size_t)(first + at) * d->out + i;
            float want = (float)rgb[pixel_of(d, at, i)] / 255.0f - centre_of(d, codes[at], i);
            d->dy[to] = scale * (d->y[to] - want);
        }
    }
}

static enum hth_err backward(struct hth_decoder *d, uint32_t rows)
{
    struct hth_view x = view(d->x, rows, NEIGHBOURS * EMBED), dx = x;
    struct hth_view hidden = view(d->hidden, rows, HIDDEN),
                    dhidden = view(d->dhidden, rows, HIDDEN);
    struct hth_view dy = view(d->dy, rows, d->out);
    struct hth_linear_back second = {.w = d->w2,
                                     .bias = d->b1,
                                     .act = HTH_ACT_GELU,
                                     .pre = view(d->pre, rows, HIDDEN),
                                     .residual = HTH_VIEW_NONE};
    struct hth_linear_back first = {
        .w = d->w1, .act = HTH_ACT_NONE, .pre = HTH_VIEW_NONE, .residual = HTH_VIEW_NONE};

    dx.data = d->dx;
    HTH_TRY(hth_linear_backward_weight(d->exec, d->w2, d->b2, hidden, dy));
    HTH_TRY(hth_linear_backward_data(d->exec, &second, dy, dhidden));
    HTH_TRY(hth_linear_backward_weight(d->exec, d->w1, NULL, x, dhidden));
    HTH_TRY(hth_linear_backward_data(d->exec, &first, dhidden, dx));
    return hth_embed_backward(d->exec, d->embed, hth_view_i32(d->tokens, rows * NEIGHBOURS),
                              view(d->dx, rows * NEIGHBOURS, EMBED));
}

static uint32_t next_picture(struct lesson *l)
{
    if (l->at == 0)
        hth_rng_shuffle(&l->rng, l->order, l->pictures->count, sizeof(*l->order));
    uint32_t index = l->order[l->at];
    l->at = (l->at + 1) % l->pictures->count;
    return index;
}

static enum hth_err step(struct hth_decoder *d, struct lesson *l, uint32_t batch, float rate)
{
    uint32_t each = d->grid * d->grid, rows = batch * each, chosen[BATCH_ROWS];
    struct hth_optim optim = HTH_OPTIM_INIT;

    for (uint32_t i = 0; i < batch; i++) {
        chosen[i] = next_picture(l);
        set_tokens(d, l->codes + (size_t)chosen[i] * each,
                   d->tokens + (size_t)i * each * NEIGHBOURS);
    }
    HTH_TRY(forward(d, rows));
    for (uint32_t i = 0; i < batch; i++)
        set_error(d, l, chosen[i], i * each, 2.0f / ((float)rows * (float)d->out));
    hth_params_zero_grads(d->params);
    HTH_TRY(backward(d, rows));
    optim.lr = rate;
    HTH_TRY(hth_optim_step(d->exec, d->params, &optim, 1.0f));
    return hth_exec_sync(d->exec);
}

static enum hth_err run_steps(struct hth_decoder *d, struct lesson *l, uint32_t steps,
                              hth_book_progress_fn *progress, void *arg)
{
    struct hth_schedule schedule = {.kind = HTH_SCHEDULE_COSINE, .lr = RATE, .total_steps = steps};
    uint32_t each = d->grid * d->grid;
    uint32_t batch = HTH_MAX(1u, HTH_MIN(BATCH_ROWS / each, l->pictures->count));

    for (uint32_t i = 0; i < l->pictures->count; i++) {
        l->order[i] = i;
        hth_book_encode(d->book, l->pictures->rgb + (size_t)i * d->side * d->side * 3, d->side,
                        l->codes + (size_t)i * each);
    }
    for (uint32_t i = 0; i < steps; i++) {
        HTH_TRY(step(d, l, batch, hth_schedule_lr(&schedule, i)));
        if (progress != NULL)
            progress(arg, i + 1, steps);
    }
    return HTH_OK;
}

enum hth_err hth_decoder_train(struct hth_decoder *d, const struct hth_book_pictures *pictures,
                               uint32_t steps, hth_book_progress_fn *progress, void *arg)
{
    struct lesson l = {.pictures = pictures};
    enum hth_err err = HTH_E_NO_MEMORY;

    hth_rng_init(&l.rng, d->seed);
    l.codes = hth_try_calloc((size_t)pictures->count * d->grid * d->grid, sizeof(*l.codes));
    l.order = hth_try_calloc(pictures->count, sizeof(*l.order));
    if (l.codes != NULL && l.order != NULL)
        err = run_steps(d, &l, steps, progress, arg);
    hth_free(l.codes);
    hth_free(l.order);
    return err;
}
