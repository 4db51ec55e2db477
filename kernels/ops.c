/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.c: checks all arguments of an operation, once, and calls the back end's table.
 */
#include <math.h>

#include "core/mem.h"
#include "kernels/backend_int.h"
#include "kernels/math64.h"
#include "kernels/quant.h"

/* True for a view of floats with that shape. */
static bool is_f32(struct hth_view v, uint32_t rows, uint32_t cols)
{
    return v.data != NULL && v.dtype == HTH_F32 && v.rows == rows && v.cols == cols && v.ld >= cols;
}

static bool is_f32_or_none(struct hth_view v, uint32_t rows, uint32_t cols)
{
    return v.data == NULL || is_f32(v, rows, cols);
}

/* The same, or a view of the back end's operand type. */
static bool is_operand(const struct hth_exec *ex, struct hth_view v, uint32_t rows, uint32_t cols)
{
    if (v.dtype == hth_backend_operand(ex->be))
        v.dtype = HTH_F32;
    return is_f32(v, rows, cols);
}

static bool is_i32_column(struct hth_view v, uint32_t rows)
{
    return v.data != NULL && v.dtype == HTH_I32 && v.rows == rows && v.cols == 1 && v.ld >= 1;
}

/* True for a sealed weight of that shape on this context's back end. */
static bool is_weight(const struct hth_exec *ex, const struct hth_weight *w, uint32_t rows,
                      uint32_t cols)
{
    return w != NULL && w->owner->sealed && w->owner->be == ex->be && w->rows == rows &&
           w->cols == cols;
}

/* True for [1, n] or, for old checkpoints' sake, [n, 1]. */
static bool is_vector(const struct hth_exec *ex, const struct hth_weight *w, uint32_t n)
{
    return is_weight(ex, w, 1, n) || is_weight(ex, w, n, 1);
}

/* Holds the values of both; `other` may be NULL, or of the same set. */
static enum hth_err hold_values(struct hth_exec *ex, struct hth_weight *w, struct hth_weight *other)
{
    HTH_TRY(hth_params_hold(ex, w->owner, HTH_HOLD_VALUE, 0));
    if (other == NULL || other->owner == w->owner)
        return HTH_OK;
    return hth_params_hold(ex, other->owner, HTH_HOLD_VALUE, 0);
}

/* Holds gradients to be written. Errors: also E_UNSUPPORTED (the set has none). */
static enum hth_err hold_grads(struct hth_exec *ex, struct hth_weight *w, struct hth_weight *other,
                               uint32_t reads)
{
    if (!w->owner->has_grads || (other != NULL && !other->owner->has_grads))
        return HTH_E_UNSUPPORTED;
    HTH_TRY(hth_params_hold(ex, w->owner, reads, HTH_HOLD_GRAD));
    if (other == NULL || other->owner == w->owner)
        return HTH_OK;
    return hth_params_hold(ex, other->owner, reads, HTH_HOLD_GRAD);
}

#define REQUIRE(cond)                                                                              \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return HTH_E_BAD_SHAPE;                                                                \
    } while (0)

/* Views without rows may have no data, so this returns before the shapes are checked. */
#define NOTHING_TO_DO(view)                                                                        \
    do {                                                                                           \
        if ((view).rows == 0)                                                                      \
            return HTH_OK;                                                                         \
    } while (0)

enum hth_err hth_linear_forward(struct hth_exec *ex, const struct hth_linear *lin,
                                struct hth_view x, struct hth_view y)
{
    NOTHING_TO_DO(x);
    REQUIRE(is_weight(ex, lin->w, x.cols, y.cols) && is_operand(ex, x, x.rows, x.cols));
    REQUIRE(is_operand(ex, y, x.rows, y.cols));
    REQUIRE(lin->pre.data == NULL || is_operand(ex, lin->pre, x.rows, y.cols));
    REQUIRE(is_f32_or_none(lin->residual, x.rows, y.cols) && x.data != y.data);
    REQUIRE(lin->residual.data == NULL || lin->residual.data != y.data);
    REQUIRE(lin->bias == NULL || is_vector(ex, lin->bias, y.cols));
    HTH_TRY(hold_values(ex, lin->w, lin->bias));
    return ex->be->linear_forward(ex, lin, x, y);
}

enum hth_err hth_linear_backward_data(struct hth_exec *ex, const struct hth_linear_back *lin,
                                      struct hth_view dy, struct hth_view dx)
{
    NOTHING_TO_DO(dy);
    REQUIRE(is_weight(ex, lin->w, dx.cols, dy.cols) && is_operand(ex, dy, dy.rows, dy.cols));
    REQUIRE(is_operand(ex, dx, dy.rows, dx.cols) && dx.data != dy.data);
    REQUIRE(lin->act == HTH_ACT_NONE || is_operand(ex, lin->pre, dy.rows, dx.cols));
    REQUIRE(is_f32_or_none(lin->residual, dy.rows, dx.cols));
    REQUIRE(lin->residual.data == NULL || lin->residual.data != dx.data);
    REQUIRE(lin->bias == NULL || is_vector(ex, lin->bias, dx.cols));
    HTH_TRY(hold_values(ex, lin->w, NULL));
    if (lin->bias != NULL)
        HTH_TRY(hold_grads(ex, lin->bias, NULL, 0));
    return ex->be->linear_backward_data(ex, lin, dy, dx);
}

enum hth_err hth_linear_backward_weight(struct hth_exec *ex, struct hth_weight *w,
                                        struct hth_weight *bias, struct hth_view x,
                                        struct hth_view dy)
{
    NOTHING_TO_DO(x);
    REQUIRE(is_weight(ex, w, x.cols, dy.cols) && is_operand(ex, x, x.rows, x.cols));
    REQUIRE(is_operand(ex, dy, x.rows, dy.cols));
    REQUIRE(bias == NULL || (is_vector(ex, bias, dy.cols) && dy.dtype == HTH_F32));
    HTH_TRY(hold_grads(ex, w, bias, 0));
    return ex->be->linear_backward_weight(ex, w, bias, x, dy);
}

/* The rows of a bias, all the same: no step from one to the next. */
static struct hth_view bias_rows(const struct hth_weight *bias, uint32_t rows)
{
    return bias == NULL ? HTH_VIEW_NONE
                        : (struct hth_view){bias->value, HTH_F32, rows, bias->cols, 0};
}

static bool is_dense(const struct hth_exec *ex)
{
    return ex->be->caps & HTH_CAP_DENSE;
}

enum hth_err hth_tied_forward(struct hth_exec *ex, const struct hth_tied *tied, struct hth_view x,
                              struct hth_view y)
{
    NOTHING_TO_DO(x);
    REQUIRE(is_weight(ex, tied->w, y.cols, x.cols) && is_f32(x, x.rows, x.cols));
    REQUIRE(is_f32(y, x.rows, y.cols) && x.data != y.data);
    REQUIRE(tied->bias == NULL || is_weight(ex, tied->bias, 1, y.cols));
    if (!is_dense(ex))
        return HTH_E_UNSUPPORTED;
    HTH_TRY(hold_values(ex, tied->w, tied->bias));
    struct hth_linear_back back = {.w = tied->w, .residual = bias_rows(tied->bias, x.rows)};
    return ex->be->linear_backward_data(ex, &back, x, y);
}

enum hth_err hth_tied_backward(struct hth_exec *ex, const struct hth_tied *tied, struct hth_view x,
                               struct hth_view dy, struct hth_view dx)
{
    NOTHING_TO_DO(x);
    REQUIRE(is_weight(ex, tied->w, dy.cols, x.cols) && is_f32(x, x.rows, x.cols));
    REQUIRE(is_f32(dy, x.rows, dy.cols) && is_f32(dx, x.rows, x.cols));
    REQUIRE(dx.data != dy.data && dx.data != x.data);
    REQUIRE(tied->bias == NULL || is_weight(ex, tied->bias, 1, dy.cols));
    if (!is_dense(ex))
        return HTH_E_UNSUPPORTED;
    const struct hth_linear lin = {.w = tied->w};
    HTH_TRY(hth_linear_forward(ex, &lin, dy, dx));
    HTH_TRY(hth_linear_backward_weight(ex, tied->w, NULL, dy, x));
    if (tied->bias == NULL)
        return HTH_OK;
    HTH_TRY(hold_grads(ex, tied->bias, NULL, 0));
    return ex->be->column_sums(ex, tied->bias, dy);
}

size_t hth_linear_scratch(const struct hth_backend *be, uint32_t in, uint32_t out)
{
    return be->linear_scratch(be, in, out);
}

enum hth_err hth_act_forward(struct hth_exec *ex, enum hth_act act, struct hth_view x,
                             struct hth_view y)
{
    NOTHING_TO_DO(x);
    REQUIRE(is_f32(x, x.rows, x.cols) && is_f32(y, x.rows, x.cols));
    return ex->be->act_forward(ex, act, x, y);
}

enum hth_err hth_act_backward(struct hth_exec *ex, enum hth_act act, struct hth_view x,
                              struct hth_view dy, struct hth_view dx)
{
    NOTHING_TO_DO(x);
    REQUIRE(is_f32(x, x.rows, x.cols) && is_f32(dy, x.rows, x.cols) && is_f32(dx, x.rows, x.cols));
    return ex->be->act_backward(ex, act, x, dy, dx);
}

enum hth_err hth_geglu_forward(struct hth_exec *ex, struct hth_view x, struct hth_view y)
{
    NOTHING_TO_DO(x);
    REQUIRE(y.cols <= UINT32_MAX / 2 && is_f32(x, x.rows, 2 * y.cols) &&
            is_f32(y, x.rows, y.cols) && x.data != y.data);
    return is_dense(ex) ? ex->be->geglu_forward(ex, x, y) : HTH_E_UNSUPPORTED;
}

enum hth_err hth_geglu_backward(struct hth_exec *ex, struct hth_view x, struct hth_view dy,
                                struct hth_view dx)
{
    NOTHING_TO_DO(x);
    REQUIRE(dy.cols <= UINT32_MAX / 2 && is_f32(x, x.rows, 2 * dy.cols));
    REQUIRE(is_f32(dy, x.rows, dy.cols) && is_f32(dx, x.rows, x.cols) && dx.data != dy.data);
    return is_dense(ex) ? ex->be->geglu_backward(ex, x, dy, dx) : HTH_E_UNSUPPORTED;
}

enum hth_err hth_scale_forward(struct hth_exec *ex, struct hth_weight *scale, struct hth_view x,
                               struct hth_view residual, struct hth_view y)
{
    NOTHING_TO_DO(x);
    REQUIRE(is_weight(ex, scale, 1, x.cols) && is_f32(x, x.rows, x.cols));
    REQUIRE(is_f32_or_none(residual, x.rows, x.cols) && is_f32(y, x.rows, x.cols));
    if (!is_dense(ex))
        return HTH_E_UNSUPPORTED;
    HTH_TRY(hold_values(ex, scale, NULL));
    return ex->be->scale_forward(ex, scale, x, residual, y);
}

enum hth_err hth_scale_backward(struct hth_exec *ex, struct hth_weight *scale, struct hth_view x,
                                struct hth_view dy, struct hth_view dx)
{
    NOTHING_TO_DO(x);
    REQUIRE(is_weight(ex, scale, 1, x.cols) && is_f32(x, x.rows, x.cols));
    REQUIRE(is_f32(dy, x.rows, x.cols) && is_f32(dx, x.rows, x.cols));
    if (!is_dense(ex))
        return HTH_E_UNSUPPORTED;
    HTH_TRY(hold_grads(ex, scale, NULL, HTH_HOLD_VALUE));
    return ex->be->scale_backward(ex, scale, x, dy, dx);
}

enum hth_err hth_layernorm_forward(struct hth_exec *ex, const struct hth_layernorm *ln,
                                   struct hth_view x, struct hth_view y, struct hth_view stats)
{
    NOTHING_TO_DO(x);
    REQUIRE(is_f32(x, x.rows, x.cols) && is_f32(y, x.rows, x.cols) && x.cols > 0);
    REQUIRE(is_f32_or_none(stats, x.rows, 2) && is_vector(ex, ln->gamma, x.cols));
    REQUIRE(is_vector(ex, ln->beta, x.cols));
    HTH_TRY(hold_values(ex, ln->gamma, ln->beta));
    return ex->be->layernorm_forward(ex, ln, x, y, stats);
}

enum hth_err hth_layernorm_backward(struct hth_exec *ex, const struct hth_layernorm_back *ln,
                                    struct hth_view dy, struct hth_view dx)
{
    NOTHING_TO_DO(dy);
    REQUIRE(is_f32(dy, dy.rows, dy.cols) && is_f32(dx, dy.rows, dy.cols) && dy.cols > 0);
    REQUIRE(is_f32(ln->x, dy.rows, dy.cols) && is_f32(ln->stats, dy.rows, 2));
    REQUIRE(is_f32_or_none(ln->residual, dy.rows, dy.cols));
    REQUIRE(ln->residual.data == NULL || ln->residual.data != dx.data);
    REQUIRE(is_vector(ex, ln->gamma, dy.cols) && is_vector(ex, ln->beta, dy.cols));
    HTH_TRY(hold_grads(ex, ln->gamma, ln->beta, HTH_HOLD_VALUE));
    return ex->be->layernorm_backward(ex, ln, dy, dx);
}

enum hth_err hth_softmax_forward(struct hth_exec *ex, struct hth_view x, struct hth_view y)
{
    NOTHING_TO_DO(x);
    REQUIRE(is_f32(x, x.rows, x.cols) && is_f32(y, x.rows, x.cols) && x.cols > 0);
    return ex->be->softmax_forward(ex, x, y);
}

enum hth_err hth_softmax_backward(struct hth_exec *ex, struct hth_view y, struct hth_view dy,
                                  struct hth_view dx)
{
    NOTHING_TO_DO(y);
    REQUIRE(is_f32(y, y.rows, y.cols) && is_f32(dy, y.rows, y.cols) && is_f32(dx, y.rows, y.cols));
    return ex->be->softmax_backward(ex, y, dy, dx);
}

/* Checks that indices are in [0, bound), or `none` where allowed. The CPU can read only host
 * memory; a device back end checks on the device and reports at the sync. */
static enum hth_err check_indices(const struct hth_exec *ex, struct hth_view index, uint32_t bound,
                                  bool allow_none)
{
    if (!(ex->be->caps & HTH_CAP_HOST_MEMORY))
        return HTH_OK;
    for (uint32_t r = 0; r < index.rows; r++) {
        int32_t i = ((const int32_t *)index.data)[(size_t)r * index.ld];
        if (allow_none && i == HTH_LABEL_NONE)
            continue;
        if (i < 0 || (uint32_t)i >= bound)
            return HTH_E_RANGE;
    }
    return HTH_OK;
}

enum hth_err hth_xent(struct hth_exec *ex, struct hth_view logits, struct hth_view labels,
                      float grad_scale, struct hth_view dlogits, struct hth_xent_result *result)
{
    *result = (struct hth_xent_result){0};
    NOTHING_TO_DO(logits);
    REQUIRE(is_f32(logits, logits.rows, logits.cols) && logits.cols > 0);
    REQUIRE(is_i32_column(labels, logits.rows));
    REQUIRE(is_f32_or_none(dlogits, logits.rows, logits.cols));
    HTH_TRY(check_indices(ex, labels, logits.cols, true));
    return ex->be->xent(ex, logits, labels, grad_scale, dlogits, result);
}

enum hth_err hth_embed_forward(struct hth_exec *ex, struct hth_weight *w, struct hth_view tokens,
                               struct hth_view y)
{
    NOTHING_TO_DO(tokens);
    REQUIRE(w != NULL && is_weight(ex, w, w->rows, y.cols) && is_i32_column(tokens, tokens.rows));
    HTH_TRY(hold_values(ex, w, NULL));
    return hth_gather_rows(ex, hth_view_f32(w->value, w->rows, w->cols, w->cols), tokens, y);
}

enum hth_err hth_embed_backward(struct hth_exec *ex, struct hth_weight *w, struct hth_view tokens,
                                struct hth_view dy)
{
    NOTHING_TO_DO(tokens);
    REQUIRE(w != NULL && is_weight(ex, w, w->rows, dy.cols) && is_i32_column(tokens, tokens.rows));
    HTH_TRY(hold_grads(ex, w, NULL, 0));
    HTH_TRY(hth_weight_grad_ready(w));
    return hth_scatter_add_rows(ex, dy, tokens, HTH_VIEW_NONE,
                                hth_view_f32(w->grad, w->rows, w->cols, w->cols));
}

enum hth_err hth_gather_rows(struct hth_exec *ex, struct hth_view src, struct hth_view index,
                             struct hth_view dst)
{
    NOTHING_TO_DO(index);
    REQUIRE(is_f32(src, src.rows, dst.cols) && is_i32_column(index, index.rows));
    REQUIRE(is_f32(dst, index.rows, dst.cols));
    HTH_TRY(check_indices(ex, index, src.rows, false));
    return ex->be->gather_rows(ex, src, index, dst);
}

enum hth_err hth_scatter_add_rows(struct hth_exec *ex, struct hth_view src, struct hth_view index,
                                  struct hth_view weight, struct hth_view dst)
{
    NOTHING_TO_DO(index);
    REQUIRE(is_f32(src, index.rows, dst.cols) && is_i32_column(index, index.rows));
    REQUIRE(is_f32(dst, dst.rows, dst.cols) && is_f32_or_none(weight, index.rows, 1));
    HTH_TRY(check_indices(ex, index, dst.rows, false));
    return ex->be->scatter_add_rows(ex, src, index, weight, dst);
}

/* -- attention ----------------------------------------------------------------------------- */

/* Positions t < text are of text, later ones of a picture of that width. */
struct rope_rule {
    uint32_t text, width;
    double rate[HTH_HEAD_DIM_MAX / 2];  /* of each pair */
    uint8_t axis[HTH_HEAD_DIM_MAX / 2]; /* 0: t, 1: y, 2: x */
};

static uint32_t rope_place(const struct rope_rule *rule, uint32_t axis, uint32_t t)
{
    if (axis == 0)
        return HTH_MIN(t, rule->text);
    if (t < rule->text)
        return 0;
    return 1 + (axis == 1 ? (t - rule->text) / rule->width : (t - rule->text) % rule->width);
}

static void rope_fill(const struct rope_rule *rule, const struct hth_rope *rope, float *host)
{
    size_t half = rope->half, count = rope->seq_max * half;
    for (size_t i = 0; i < half; i++) {
        for (uint32_t t = 0; t < rope->seq_max; t++) {
            double sine, cosine;
            hth_sincos64((double)rope_place(rule, rule->axis[i], t) * rule->rate[i], &sine,
                         &cosine);
            host[t * half + i] = (float)cosine;
            host[count + t * half + i] = (float)sine;
        }
    }
}

static enum hth_err rope_make(const struct hth_backend *be, uint32_t positions, uint32_t half,
                              const struct rope_rule *rule, struct hth_rope **out)
{
    enum hth_err err = HTH_E_NO_MEMORY;
    size_t count = (size_t)positions * half, bytes = 2 * count * sizeof(float);
    struct hth_exec *ex = NULL;
    struct hth_rope *rope = hth_new(struct hth_rope);
    *rope = (struct hth_rope){.be = be, .seq_max = positions, .half = half};
    rope->cosines = hth_backend_alloc(be, bytes);
    float *host = hth_try_aligned(bytes);
    if (rope->cosines == NULL || host == NULL)
        goto out;
    rope->sines = rope->cosines + count;
    rope_fill(rule, rope, host);
    HTH_GOTO(out, hth_exec_new(be, 0, &ex));
    HTH_GOTO(out, hth_exec_upload(ex, rope->cosines, host, bytes));
    HTH_GOTO(out, hth_exec_sync(ex));
    *out = rope;
    rope = NULL;
out:
    hth_exec_free(ex);
    hth_aligned_free(host);
    hth_rope_free(rope);
    return err;
}

enum hth_err hth_rope_new(const struct hth_backend *be, uint32_t seq_max, uint32_t head_dim,
                          double base, struct hth_rope **out)
{
    struct rope_rule rule = {.text = seq_max};
    if (seq_max == 0 || head_dim == 0 || head_dim % 2 != 0 || !(base > 1.0) || !isfinite(base))
        return HTH_E_CONFIG;
    if (seq_max > HTH_SEQ_MAX || head_dim > HTH_HEAD_DIM_MAX)
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < head_dim / 2; i++)
        rule.rate[i] = hth_exp64(-hth_log64(base) * (double)(2 * i) / (double)head_dim);
    return rope_make(be, seq_max, head_dim / 2, &rule, out);
}

enum hth_err hth_rope_new_picture(const struct hth_backend *be, const struct hth_rope_picture *size,
                                  struct hth_rope **out)
{
    static const double base[] = {10000, 100, 100};
    struct rope_rule rule = {.text = size->text, .width = size->width};
    uint32_t half = size->head_dim / 2, p = half / 3;
    if (size->text == 0 || size->height == 0 || size->width == 0 || size->head_dim % 2 != 0 ||
        p == 0)
        return HTH_E_CONFIG;
    uint64_t positions = size->text + (uint64_t)size->height * size->width;
    if (positions > HTH_SEQ_MAX || size->head_dim > HTH_HEAD_DIM_MAX)
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < 3 * p; i++) { /* the rate of the others is 0 */
        rule.axis[i] = (uint8_t)(i / p);
        rule.rate[i] = hth_exp64(-hth_log64(base[i / p]) * (double)(i % p) / (double)p);
    }
    return rope_make(be, (uint32_t)positions, half, &rule, out);
}

void hth_rope_free(struct hth_rope *rope)
{
    if (rope == NULL)
        return;
    hth_backend_free(rope->be, rope->cosines);
    hth_free(rope);
}

static bool mask_fits(const struct hth_attention *att, uint32_t rows)
{
    if (att->mask == NULL)
        return att->unpadded.data == NULL;
    return hth_mask_check(att->mask) == HTH_OK && att->seq <= hth_mask_positions(att->mask) &&
           (att->unpadded.data == NULL || is_i32_column(att->unpadded, rows / att->seq));
}

/* Checks what the shapes do not say. */
static enum hth_err mask_allowed(const struct hth_exec *ex, const struct hth_attention *att)
{
    if (att->mask == NULL)
        return HTH_OK;
    if (!is_dense(ex))
        return HTH_E_UNSUPPORTED;
    for (uint32_t r = 0; att->unpadded.data != NULL && r < att->unpadded.rows; r++) {
        int32_t n = ((const int32_t *)att->unpadded.data)[(size_t)r * att->unpadded.ld];
        if (n < 1 || (uint32_t)n > att->mask->text)
            return HTH_E_RANGE;
    }
    return HTH_OK;
}

/* The checks that forward and backward share; d is the width of a third of qkv. */
static bool attention_fits(const struct hth_exec *ex, const struct hth_attention *att,
                           struct hth_view qkv, uint32_t d)
{
    if (att->seq == 0 || att->seq > HTH_SEQ_MAX || qkv.rows % att->seq != 0 || att->heads == 0 ||
        d == 0 || d > UINT32_MAX / 3 || d % att->heads != 0 || !is_f32(qkv, qkv.rows, 3 * d))
        return false;
    const struct hth_rope *rope = att->rope;
    return mask_fits(att, qkv.rows) &&
           (rope == NULL ||
            (rope->be == ex->be && rope->half * 2 == d / att->heads && rope->seq_max >= att->seq));
}

enum hth_err hth_attention_forward(struct hth_exec *ex, const struct hth_attention *att,
                                   struct hth_view qkv, struct hth_view out, struct hth_view lse)
{
    NOTHING_TO_DO(qkv);
    REQUIRE(attention_fits(ex, att, qkv, out.cols) && is_f32(out, qkv.rows, out.cols));
    REQUIRE(is_f32_or_none(lse, qkv.rows, att->heads));
    HTH_TRY(mask_allowed(ex, att));
    return ex->be->attention_forward(ex, att, qkv, out, lse);
}

enum hth_err hth_attention_backward(struct hth_exec *ex, const struct hth_attention *att,
                                    const struct hth_attention_saved *saved, struct hth_view dout,
                                    struct hth_view dqkv)
{
    NOTHING_TO_DO(dout);
    REQUIRE(attention_fits(ex, att, dqkv, dout.cols) && is_f32(dout, dqkv.rows, dout.cols));
    REQUIRE(is_f32(saved->qkv, dqkv.rows, dqkv.cols) && is_f32(saved->out, dout.rows, dout.cols));
    REQUIRE(is_f32(saved->lse, dout.rows, att->heads));
    HTH_TRY(mask_allowed(ex, att));
    return ex->be->attention_backward(ex, att, saved, dout, dqkv);
}

/* A sequence that grows has `positions` places in the end, and its rope and mask must cover all. */
static bool grow_fits(const struct hth_exec *ex, const struct hth_attention *att,
                      const struct hth_attention_kept *kept, struct hth_view qkv, uint32_t d)
{
    struct hth_attention whole = *att;
    struct hth_view none = {qkv.data, HTH_F32, 0, qkv.cols, qkv.ld};
    if (att->seq == 0 || qkv.rows % att->seq != 0 || att->seq > kept->positions ||
        kept->at > kept->positions - att->seq)
        return false;
    uint32_t sequences = qkv.rows / att->seq;
    whole.seq = kept->positions;
    whole.unpadded = HTH_VIEW_NONE;
    return attention_fits(ex, &whole, none, d) && is_f32(qkv, qkv.rows, 3 * d) &&
           (uint64_t)sequences * kept->positions <= UINT32_MAX &&
           is_f32(kept->kept, sequences * kept->positions, 2 * d) &&
           (att->mask != NULL
                ? att->unpadded.data == NULL || is_i32_column(att->unpadded, sequences)
                : att->unpadded.data == NULL);
}

enum hth_err hth_attention_grow(struct hth_exec *ex, const struct hth_attention *att,
                                const struct hth_attention_kept *kept, struct hth_view qkv,
                                struct hth_view out)
{
    NOTHING_TO_DO(qkv);
    REQUIRE(grow_fits(ex, att, kept, qkv, out.cols) && is_f32(out, qkv.rows, out.cols));
    HTH_TRY(mask_allowed(ex, att));
    if (ex->be->attention_grow == NULL || (att->mask != NULL && att->mask->kind == HTH_MASK_NONE))
        return HTH_E_UNSUPPORTED;
    return ex->be->attention_grow(ex, att, kept, qkv, out);
}

size_t hth_attention_scratch(const struct hth_backend *be, uint32_t seq, uint32_t head_dim)
{
    return be->attention_scratch(be, seq, head_dim);
}

/* -- elementwise and reductions ------------------------------------------------------------ */

enum hth_err hth_combine(struct hth_exec *ex, float alpha, struct hth_view a, float beta,
                         struct hth_view b, struct hth_view y)
{
    NOTHING_TO_DO(a);
    REQUIRE(is_f32(a, a.rows, a.cols) && is_f32(y, a.rows, a.cols));
    REQUIRE(is_f32_or_none(b, a.rows, a.cols));
    return ex->be->combine(ex, alpha, a, beta, b, y);
}

enum hth_err hth_fill(struct hth_exec *ex, struct hth_view y, float value)
{
    NOTHING_TO_DO(y);
    REQUIRE(is_f32(y, y.rows, y.cols));
    return ex->be->fill(ex, y, value);
}

enum hth_err hth_dropout(struct hth_exec *ex, const struct hth_dropout *drop, struct hth_view x,
                         struct hth_view y)
{
    NOTHING_TO_DO(x);
    REQUIRE(is_f32(x, x.rows, x.cols) && is_f32(y, x.rows, x.cols));
    if (!(drop->p >= 0.0f && drop->p < 1.0f))
        return HTH_E_RANGE;
    return ex->be->dropout(ex, drop, x, y);
}

/* Converts rows to int8 or back. The bytes are the same on every CPU. */
static enum hth_err int8_rows(struct hth_exec *ex, struct hth_view src, struct hth_view dst)
{
    for (uint32_t r = 0; r < src.rows; r++) {
        const float *x = (const float *)src.data + (size_t)r * src.ld;
        const uint8_t *in = (const uint8_t *)src.data + (size_t)r * src.ld;
        uint8_t *out = (uint8_t *)dst.data + (size_t)r * dst.ld;
        float *y = (float *)dst.data + (size_t)r * dst.ld;
        if (src.dtype == HTH_F32)
            HTH_TRY(hth_quant_encode_team(ex->team, HTH_QUANT_INT8, x, src.cols, out));
        else
            HTH_TRY(hth_quant_decode_team(ex->team, HTH_QUANT_INT8, in, src.cols, dst.cols, y));
    }
    return HTH_OK;
}

static enum hth_err cast_int8(struct hth_exec *ex, struct hth_view src, struct hth_view dst)
{
    uint32_t cols = src.dtype == HTH_F32 ? src.cols : dst.cols;
    uint32_t bytes = src.dtype == HTH_F32 ? dst.cols : src.cols;
    REQUIRE(src.rows == dst.rows && bytes == hth_quant_bytes(HTH_QUANT_INT8, cols));
    REQUIRE(src.ld >= src.cols && dst.ld >= dst.cols && src.data != NULL && dst.data != NULL);
    return ex->be->caps & HTH_CAP_HOST_MEMORY ? int8_rows(ex, src, dst)
                                              : ex->be->cast(ex, src, dst);
}

enum hth_err hth_cast(struct hth_exec *ex, struct hth_view src, struct hth_view dst)
{
    NOTHING_TO_DO(src);
    if ((src.dtype == HTH_F32 && dst.dtype == HTH_I8) ||
        (src.dtype == HTH_I8 && dst.dtype == HTH_F32))
        return cast_int8(ex, src, dst);
    REQUIRE(src.rows == dst.rows && src.cols == dst.cols && src.ld >= src.cols);
    REQUIRE(dst.ld >= dst.cols && src.data != NULL && dst.data != NULL);
    bool from_f32 = src.dtype == HTH_F32 && (dst.dtype == HTH_BF16 || dst.dtype == HTH_F16);
    bool to_f32 = dst.dtype == HTH_F32 && (src.dtype == HTH_BF16 || src.dtype == HTH_F16);
    bool copy = src.dtype == dst.dtype && hth_dtype_size(src.dtype) > 0;
    if (!from_f32 && !to_f32 && !copy)
        return HTH_E_UNSUPPORTED;
    return ex->be->cast(ex, src, dst);
}

enum hth_err hth_sumsq(struct hth_exec *ex, struct hth_view x, struct hth_sumsq_result *result)
{
    *result = (struct hth_sumsq_result){.finite = true};
    NOTHING_TO_DO(x);
    REQUIRE(is_f32(x, x.rows, x.cols));
    return ex->be->sumsq(ex, x, result);
}
