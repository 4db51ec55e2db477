/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.c: the FFN and the transformer block, composed of operations. */
#include "kernels/blocks.h"

#include <math.h>
#include <stdio.h>

#include "core/mem.h"
#include "kernels/backend_int.h"

/* Bytes of a matrix of floats in our layout, and the cursor that hands out such matrices. */
static size_t matrix_bytes(uint32_t rows, uint32_t cols)
{
    return hth_exec_cost((size_t)rows * hth_ld_f32(cols) * sizeof(float));
}

static struct hth_view next_matrix(uint8_t **at, uint32_t rows, uint32_t cols)
{
    struct hth_view v = hth_view_f32((float *)*at, rows, cols, hth_ld_f32(cols));
    *at += matrix_bytes(rows, cols);
    return v;
}

/* A matrix in scratch; its data is NULL when too little is left. */
static struct hth_view take_matrix(struct hth_exec *ex, uint32_t rows, uint32_t cols)
{
    void *data = hth_exec_take(ex, matrix_bytes(rows, cols));
    return hth_view_f32(data, rows, cols, hth_ld_f32(cols));
}

/* The same memory for a matrix that is only an operand of products. */
static struct hth_view operand(const struct hth_backend *be, struct hth_view v)
{
    v.dtype = hth_backend_operand(be);
    if (v.dtype == HTH_BF16)
        v.ld = 2 * hth_ld_f32((v.cols + 1) / 2);
    return v;
}

/* One tensor to declare. */
struct tensor {
    struct hth_weight **out;
    const char *name;
    uint32_t rows, cols;
    enum hth_init init;
    bool no_decay;
    uint32_t fan_in; /* of a bias, which PyTorch draws within 1 / sqrt(inputs); 0: by `rows` */
};

static enum hth_err declare(struct hth_params *p, const char *prefix, const struct tensor *tensors,
                            size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct tensor *t = &tensors[i];
        char name[HTH_PARAM_NAME_MAX + 2];
        int len = snprintf(name, sizeof(name), "%s%s", prefix != NULL ? prefix : "", t->name);
        if (len < 0 || len > HTH_PARAM_NAME_MAX)
            return HTH_E_CONFIG;
        struct hth_param_spec spec = {.name = name,
                                      .rows = t->rows,
                                      .cols = t->cols,
                                      .init = t->init,
                                      .no_decay = t->no_decay};
        if (t->fan_in > 0) {
            /* LINEAR on a [1, n] bias would count one input: pass the bound itself. */
            spec.init = HTH_INIT_UNIFORM;
            spec.scale = (float)(1.0 / sqrt((double)t->fan_in));
        }
        HTH_TRY(hth_params_add(p, &spec, t->out));
    }
    return HTH_OK;
}

/* -- FFN ----------------------------------------------------------------------------------- */

enum hth_err hth_ffn_declare(struct hth_params *p, const struct hth_ffn_options *options,
                             struct hth_ffn *out)
{
    uint32_t d = options->dim;
    if (d == 0 || d > UINT32_MAX / 4)
        return HTH_E_CONFIG;
    uint32_t h = options->hidden > 0 ? options->hidden : 4 * d;
    struct hth_ffn f = {.dim = d, .hidden = h, .eps = options->eps > 0 ? options->eps : 1e-12f};
    const struct tensor tensors[] = {
        {&f.w1, "layers.0.weight", d, h, HTH_INIT_LINEAR, false, 0},
        {&f.b1, "layers.0.bias", 1, h, HTH_INIT_LINEAR, true, d},
        {&f.w2, "layers.2.weight", h, d, HTH_INIT_LINEAR, false, 0},
        {&f.b2, "layers.2.bias", 1, d, HTH_INIT_LINEAR, true, h},
        {&f.gamma, "norm.weight", 1, d, HTH_INIT_ONES, true, 0},
        {&f.beta, "norm.bias", 1, d, HTH_INIT_ZEROS, true, 0},
    };
    HTH_TRY(declare(p, options->prefix, tensors, HTH_ARRAY_LEN(tensors)));
    *out = f;
    return HTH_OK;
}

/* Saved for backward: the hidden layer before and after GELU, the sum before the norm. With bf16,
 * pre only decides the slope of GELU, 1e-3 off. */
struct ffn_saved {
    struct hth_view pre, act, sum, stats;
};

static struct ffn_saved ffn_layout(const struct hth_backend *be, const struct hth_ffn *f,
                                   uint32_t rows, void *memory)
{
    uint8_t *at = memory;
    struct ffn_saved s;
    s.pre = operand(be, next_matrix(&at, rows, f->hidden));
    s.act = operand(be, next_matrix(&at, rows, f->hidden));
    s.sum = next_matrix(&at, rows, f->dim);
    s.stats = next_matrix(&at, rows, 2);
    return s;
}

size_t hth_ffn_saved_bytes(const struct hth_ffn *f, uint32_t rows)
{
    return 2 * matrix_bytes(rows, f->hidden) + matrix_bytes(rows, f->dim) + matrix_bytes(rows, 2);
}

size_t hth_ffn_scratch_bytes(const struct hth_backend *be, const struct hth_ffn *f, uint32_t rows)
{
    return matrix_bytes(rows, f->hidden) + matrix_bytes(rows, f->dim) +
           HTH_MAX(hth_linear_scratch(be, f->dim, f->hidden),
                   hth_linear_scratch(be, f->hidden, f->dim));
}

/* A call of a block, for back ends that record it once and repeat its launches (backend_int.h). */
#define WEIGHTS_MOST 12
struct block_call {
    struct hth_call_key key;
    const void *block;
    struct hth_weight *const *weights; /* all of one set */
    uint32_t weight_count;
    bool backward;
    struct hth_view x, y, dy, dx;
    void *saved;
};

static void call_views(struct block_call *c)
{
    const struct hth_view views[4] = {c->x, c->y, c->dy, c->dx};
    for (int i = 0; i < 4; i++) {
        c->key.ld[i] = views[i].ld;
        c->key.at[i] = views[i].data;
    }
    c->key.rows = c->x.rows;
    c->key.at[4] = c->saved;
}

/* Puts into the key which gradients are written and which are added to. */
static void call_start(const struct block_call *c)
{
    for (uint32_t i = 0; c->backward && i < c->weight_count; i++)
        c->weights[i]->grad_zero = (c->key.zero >> i & 1) != 0;
}

static enum hth_err call_run(struct hth_exec *ex, struct block_call *c, hth_exec_fn *fn)
{
    struct hth_params *p = c->weights[0]->owner;
    for (uint32_t i = 0; c->backward && i < c->weight_count; i++)
        c->key.zero |= (uint32_t)c->weights[i]->grad_zero << i;
    if (ex->be->replay == NULL || ex->be != p->be || (c->backward && !p->has_grads))
        return fn(ex, c, 0);
    HTH_TRY(hth_params_hold(ex, p, HTH_HOLD_VALUE, c->backward ? HTH_HOLD_GRAD : 0));
    call_views(c);
    c->key.at[5] = c->weights[0]->value;
    c->key.at[6] = c->backward ? c->weights[0]->grad : NULL;
    c->key.at[7] = ex->scratch + ex->scratch_used;
    HTH_TRY(ex->be->replay(ex, p, &c->key, fn, c));
    for (uint32_t i = 0; c->backward && i < c->weight_count; i++)
        c->weights[i]->grad_zero = false; /* as the recorded call left them */
    return HTH_OK;
}

enum { CALL_FFN_FORWARD, CALL_FFN_BACKWARD, CALL_TBLOCK_FORWARD, CALL_TBLOCK_BACKWARD };

static enum hth_err ffn_forward(struct hth_exec *ex, void *arg, uint32_t unused)
{
    const struct block_call *c = arg;
    const struct hth_ffn *f = c->block;
    struct hth_view x = c->x, y = c->y;
    void *saved = c->saved;
    (void)unused;
    size_t mark = hth_exec_mark(ex);
    /* Inference: y holds the sum, and the norm works in place. */
    struct ffn_saved s = {.pre = HTH_VIEW_NONE, .sum = y, .stats = HTH_VIEW_NONE};
    if (saved != NULL)
        s = ffn_layout(ex->be, f, x.rows, saved);
    else
        s.act = operand(ex->be, take_matrix(ex, x.rows, f->hidden));
    enum hth_err err = HTH_E_NO_MEMORY;
    if (s.act.data == NULL)
        goto out;
    struct hth_linear up = {.w = f->w1, .bias = f->b1, .act = HTH_ACT_GELU, .pre = s.pre};
    HTH_GOTO(out, hth_linear_forward(ex, &up, x, s.act));
    struct hth_linear down = {.w = f->w2, .bias = f->b2, .residual = x};
    HTH_GOTO(out, hth_linear_forward(ex, &down, s.act, s.sum));
    struct hth_layernorm norm = {.gamma = f->gamma, .beta = f->beta, .eps = f->eps};
    HTH_GOTO(out, hth_layernorm_forward(ex, &norm, s.sum, y, s.stats));
out:
    hth_exec_release(ex, mark);
    return err;
}

static enum hth_err ffn_backward(struct hth_exec *ex, void *arg, uint32_t unused)
{
    const struct block_call *c = arg;
    const struct hth_ffn *f = c->block;
    struct hth_view x = c->x, dy = c->dy, dx = c->dx;
    void *saved = c->saved;
    (void)unused;
    call_start(c);
    size_t mark = hth_exec_mark(ex);
    struct ffn_saved s = ffn_layout(ex->be, f, x.rows, saved);
    struct hth_view dsum = take_matrix(ex, x.rows, f->dim);
    struct hth_view dpre = operand(ex->be, take_matrix(ex, x.rows, f->hidden));
    enum hth_err err = HTH_E_NO_MEMORY;
    if (dsum.data == NULL || dpre.data == NULL)
        goto out;
    struct hth_layernorm_back norm = {
        .gamma = f->gamma, .beta = f->beta, .x = s.sum, .stats = s.stats};
    HTH_GOTO(out, hth_layernorm_backward(ex, &norm, dy, dsum));
    HTH_GOTO(out, hth_linear_backward_weight(ex, f->w2, f->b2, s.act, dsum));
    struct hth_linear_back down = {.w = f->w2, .bias = f->b1, .act = HTH_ACT_GELU, .pre = s.pre};
    HTH_GOTO(out, hth_linear_backward_data(ex, &down, dsum, dpre));
    HTH_GOTO(out, hth_linear_backward_weight(ex, f->w1, NULL, x, dpre));
    struct hth_linear_back up = {.w = f->w1, .residual = dsum};
    HTH_GOTO(out, hth_linear_backward_data(ex, &up, dpre, dx));
out:
    hth_exec_release(ex, mark);
    return err;
}

static struct block_call ffn_call(const struct hth_ffn *f, struct hth_weight *const *weights,
                                  uint32_t what)
{
    return (struct block_call){
        .key = {.what = what, .dim = f->dim, .hidden = f->hidden, .eps = f->eps},
        .block = f,
        .weights = weights,
        .weight_count = 6,
        .backward = what == CALL_FFN_BACKWARD,
    };
}

enum hth_err hth_ffn_forward(struct hth_exec *ex, const struct hth_ffn *f, struct hth_view x,
                             struct hth_view y, void *saved)
{
    struct hth_weight *const weights[] = {f->w1, f->b1, f->w2, f->b2, f->gamma, f->beta};
    struct block_call c = ffn_call(f, weights, CALL_FFN_FORWARD);
    if (x.rows == 0)
        return HTH_OK;
    if (x.cols != f->dim || y.rows != x.rows || y.cols != f->dim || x.data == y.data)
        return HTH_E_BAD_SHAPE;
    c.x = x;
    c.y = y;
    c.saved = saved;
    return call_run(ex, &c, ffn_forward);
}

enum hth_err hth_ffn_backward(struct hth_exec *ex, const struct hth_ffn *f, struct hth_view x,
                              void *saved, struct hth_view dy, struct hth_view dx)
{
    struct hth_weight *const weights[] = {f->w1, f->b1, f->w2, f->b2, f->gamma, f->beta};
    struct block_call c = ffn_call(f, weights, CALL_FFN_BACKWARD);
    if (x.rows == 0)
        return HTH_OK;
    if (x.cols != f->dim || dy.rows != x.rows || dy.cols != f->dim || saved == NULL)
        return HTH_E_BAD_SHAPE;
    c.x = x;
    c.dy = dy;
    c.dx = dx;
    c.saved = saved;
    return call_run(ex, &c, ffn_backward);
}

/* -- many FFN ------------------------------------------------------------------------------ */

static enum hth_err forward_entry(struct hth_exec *ex, void *arg, uint32_t i)
{
    const struct hth_ffn_entry *e = (const struct hth_ffn_entry *)arg + i;
    return hth_ffn_forward(ex, e->ffn, e->x, e->y, e->saved);
}

static enum hth_err backward_entry(struct hth_exec *ex, void *arg, uint32_t i)
{
    const struct hth_ffn_entry *e = (const struct hth_ffn_entry *)arg + i;
    return hth_ffn_backward(ex, e->ffn, e->x, e->saved, e->dy, e->dx);
}

size_t hth_ffn_many_scratch_bytes(const struct hth_exec *ex, const struct hth_ffn *f, uint32_t rows,
                                  uint32_t count)
{
    return hth_exec_each_bytes(ex, count, hth_ffn_scratch_bytes(ex->be, f, rows));
}

/* True if the call for this entry alone would compute something. */
static bool is_sound(const struct hth_exec *ex, const struct hth_ffn_entry *e, bool backward)
{
    uint32_t rows = e->x.rows, d = e->ffn->dim;
    struct hth_view out = backward ? e->dx : e->y;
    const struct hth_params *p = e->ffn->w1->owner;
    bool good = rows > 0 && e->x.data != NULL && e->x.cols == d && out.data != NULL &&
                out.rows == rows && out.cols == d && p->sealed && p->be == ex->be;
    if (!backward)
        return good && e->x.data != e->y.data;
    return good && p->has_grads && e->saved != NULL && e->dy.data != NULL && e->dy.rows == rows &&
           e->dy.cols == d;
}

static struct hth_ffn_member member_of(const struct hth_backend *be, const struct hth_ffn_entry *e,
                                       uint32_t index)
{
    struct hth_ffn_member m = {
        .ffn = e->ffn, .index = index, .x = e->x, .y = e->y, .dy = e->dy, .dx = e->dx};
    if (e->saved != NULL) {
        struct ffn_saved s = ffn_layout(be, e->ffn, e->x.rows, e->saved);
        m.pre = s.pre;
        m.act = s.act;
        m.sum = s.sum;
        m.stats = s.stats;
    }
    return m;
}

/* State of entries that are computed one by one: the lowest that failed. */
struct alone {
    hth_exec_fn *fn;
    void *entries;
    uint32_t failed_at;
    enum hth_err err;
};

static enum hth_err run_alone(struct hth_exec *ex, void *arg, uint32_t i)
{
    struct alone *a = arg;
    enum hth_err err = a->fn(ex, a->entries, i);
    if (err != HTH_OK && (a->err == HTH_OK || i < a->failed_at)) {
        a->failed_at = i;
        a->err = err;
    }
    return err;
}

/* Computes the entries on a back end that takes many at once. */
static enum hth_err many_at_once(struct hth_exec *ex, const struct hth_ffn_entry *entries,
                                 uint32_t count, hth_exec_fn *fn)
{
    struct hth_ffn_member *members = hth_new_array(struct hth_ffn_member, count);
    struct alone alone = {.fn = fn, .entries = (void *)(uintptr_t)entries};
    bool backward = fn == backward_entry;
    enum hth_err err = HTH_OK;
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (is_sound(ex, &entries[i], backward))
            members[n++] = member_of(ex->be, &entries[i], i);
        else
            (void)run_alone(ex, &alone, i); /* no rows, or an error of its own */
    }
    if (n > 0)
        err = ex->be->ffn_many(ex, members, n, backward, run_alone, &alone);
    hth_free(members);
    return alone.err != HTH_OK ? alone.err : err;
}

static enum hth_err many(struct hth_exec *ex, const struct hth_ffn_entry *entries, uint32_t count,
                         hth_exec_fn *fn)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (entries[i].ffn->dim != entries[0].ffn->dim ||
            entries[i].ffn->hidden != entries[0].ffn->hidden)
            return HTH_E_BAD_SHAPE;
        rows = HTH_MAX(rows, entries[i].x.rows);
    }
    if (count == 0)
        return HTH_OK;
    if (ex->be->ffn_many != NULL && count > 1)
        return many_at_once(ex, entries, count, fn);
    return hth_exec_each(ex, count, hth_ffn_scratch_bytes(ex->be, entries[0].ffn, rows), fn,
                         (void *)(uintptr_t)entries);
}

enum hth_err hth_ffn_forward_many(struct hth_exec *ex, const struct hth_ffn_entry *entries,
                                  uint32_t count)
{
    return many(ex, entries, count, forward_entry);
}

enum hth_err hth_ffn_backward_many(struct hth_exec *ex, const struct hth_ffn_entry *entries,
                                   uint32_t count)
{
    return many(ex, entries, count, backward_entry);
}

/* -- transformer --------------------------------------------------------------------------- */

enum hth_err hth_tblock_declare(struct hth_params *p, const struct hth_tblock_options *options,
                                struct hth_tblock *out)
{
    uint32_t d = options->dim;
    if (d == 0 || d > UINT32_MAX / 4 || options->heads == 0 || d % options->heads != 0 ||
        (options->rope != NULL && options->rope->half * 2 != d / options->heads))
        return HTH_E_CONFIG;
    uint32_t h = options->hidden > 0 ? options->hidden : 4 * d;
    struct hth_tblock t = {.dim = d,
                           .hidden = h,
                           .heads = options->heads,
                           .eps = options->eps > 0 ? options->eps : 1e-5f,
                           .rope = options->rope};
    const struct tensor tensors[] = {
        {&t.ln1_gamma, "norm1.weight", 1, d, HTH_INIT_ONES, true, 0},
        {&t.ln1_beta, "norm1.bias", 1, d, HTH_INIT_ZEROS, true, 0},
        {&t.wqkv, "attn.qkv.weight", d, 3 * d, HTH_INIT_LINEAR, false, 0},
        {&t.bqkv, "attn.qkv.bias", 1, 3 * d, HTH_INIT_ZEROS, true, 0},
        {&t.wo, "attn.out.weight", d, d, HTH_INIT_LINEAR, false, 0},
        {&t.bo, "attn.out.bias", 1, d, HTH_INIT_ZEROS, true, 0},
        {&t.ln2_gamma, "norm2.weight", 1, d, HTH_INIT_ONES, true, 0},
        {&t.ln2_beta, "norm2.bias", 1, d, HTH_INIT_ZEROS, true, 0},
        {&t.w1, "ffn.0.weight", d, h, HTH_INIT_LINEAR, false, 0},
        {&t.b1, "ffn.0.bias", 1, h, HTH_INIT_LINEAR, true, d},
        {&t.w2, "ffn.2.weight", h, d, HTH_INIT_LINEAR, false, 0},
        {&t.b2, "ffn.2.bias", 1, d, HTH_INIT_LINEAR, true, h},
    };
    HTH_TRY(declare(p, options->prefix, tensors, HTH_ARRAY_LEN(tensors)));
    *out = t;
    return HTH_OK;
}

struct tblock_saved {
    struct hth_view norm1, stats1, qkv, att, lse; /* of the attention half */
    struct hth_view mid, norm2, stats2, pre, act; /* mid is u in blocks.h */
};

static struct tblock_saved tblock_layout(const struct hth_backend *be, const struct hth_tblock *t,
                                         uint32_t rows, void *memory)
{
    uint8_t *at = memory;
    struct tblock_saved s;
    s.norm1 = next_matrix(&at, rows, t->dim);
    s.stats1 = next_matrix(&at, rows, 2);
    s.qkv = next_matrix(&at, rows, 3 * t->dim);
    s.att = next_matrix(&at, rows, t->dim);
    s.lse = next_matrix(&at, rows, t->heads);
    s.mid = next_matrix(&at, rows, t->dim);
    s.norm2 = next_matrix(&at, rows, t->dim);
    s.stats2 = next_matrix(&at, rows, 2);
    s.pre = operand(be, next_matrix(&at, rows, t->hidden));
    s.act = operand(be, next_matrix(&at, rows, t->hidden));
    return s;
}

size_t hth_tblock_saved_bytes(const struct hth_tblock *t, uint32_t rows)
{
    return 4 * matrix_bytes(rows, t->dim) + 2 * matrix_bytes(rows, 2) +
           matrix_bytes(rows, 3 * t->dim) + matrix_bytes(rows, t->heads) +
           2 * matrix_bytes(rows, t->hidden);
}

size_t hth_tblock_scratch_bytes(const struct hth_backend *be, const struct hth_tblock *t,
                                uint32_t rows, uint32_t seq)
{
    size_t linear = HTH_MAX(hth_linear_scratch(be, t->dim, t->hidden),
                            hth_linear_scratch(be, t->hidden, t->dim));
    linear = HTH_MAX(linear, hth_linear_scratch(be, t->dim, 3 * t->dim));
    linear = HTH_MAX(linear, hth_linear_scratch(be, t->dim, t->dim));
    size_t inner = HTH_MAX(linear, hth_attention_scratch(be, seq, t->dim / t->heads));
    /* Inference needs scratch for the saved matrices; backward needs the gradients of the same. */
    size_t backward = matrix_bytes(rows, t->hidden) + 3 * matrix_bytes(rows, t->dim) +
                      matrix_bytes(rows, 3 * t->dim);
    return inner + HTH_MAX(hth_tblock_saved_bytes(t, rows), backward);
}

static enum hth_err tblock_forward(struct hth_exec *ex, void *arg, uint32_t unused)
{
    const struct block_call *c = arg;
    const struct hth_tblock *t = c->block;
    struct hth_view x = c->x, y = c->y;
    uint32_t seq = c->key.seq;
    void *saved = c->saved;
    (void)unused;
    size_t mark = hth_exec_mark(ex);
    enum hth_err err = HTH_E_NO_MEMORY;
    if (saved == NULL)
        saved = hth_exec_take(ex, hth_tblock_saved_bytes(t, x.rows));
    if (saved == NULL)
        goto out;
    struct tblock_saved s = tblock_layout(ex->be, t, x.rows, saved);
    struct hth_layernorm norm1 = {.gamma = t->ln1_gamma, .beta = t->ln1_beta, .eps = t->eps};
    HTH_GOTO(out, hth_layernorm_forward(ex, &norm1, x, s.norm1, s.stats1));
    struct hth_linear qkv = {.w = t->wqkv, .bias = t->bqkv};
    HTH_GOTO(out, hth_linear_forward(ex, &qkv, s.norm1, s.qkv));
    struct hth_attention att = {.seq = seq, .heads = t->heads, .rope = t->rope};
    HTH_GOTO(out, hth_attention_forward(ex, &att, s.qkv, s.att, s.lse));
    struct hth_linear proj = {.w = t->wo, .bias = t->bo, .residual = x};
    HTH_GOTO(out, hth_linear_forward(ex, &proj, s.att, s.mid));
    struct hth_layernorm norm2 = {.gamma = t->ln2_gamma, .beta = t->ln2_beta, .eps = t->eps};
    HTH_GOTO(out, hth_layernorm_forward(ex, &norm2, s.mid, s.norm2, s.stats2));
    struct hth_linear up = {.w = t->w1, .bias = t->b1, .act = HTH_ACT_GELU, .pre = s.pre};
    HTH_GOTO(out, hth_linear_forward(ex, &up, s.norm2, s.act));
    struct hth_linear down = {.w = t->w2, .bias = t->b2, .residual = s.mid};
    HTH_GOTO(out, hth_linear_forward(ex, &down, s.act, y));
out:
    hth_exec_release(ex, mark);
    return err;
}

/* Backward through the FFN half and its residual path: dmid gets the gradient of u from dy, that of
 * y. */
static enum hth_err tblock_back_ffn(struct hth_exec *ex, const struct hth_tblock *t,
                                    const struct tblock_saved *s, struct hth_view dy,
                                    struct hth_view dmid)
{
    struct hth_view dpre = operand(ex->be, take_matrix(ex, dy.rows, t->hidden));
    struct hth_view dnorm = take_matrix(ex, dy.rows, t->dim);
    if (dpre.data == NULL || dnorm.data == NULL)
        return HTH_E_NO_MEMORY;
    HTH_TRY(hth_linear_backward_weight(ex, t->w2, t->b2, s->act, dy));
    struct hth_linear_back down = {.w = t->w2, .bias = t->b1, .act = HTH_ACT_GELU, .pre = s->pre};
    HTH_TRY(hth_linear_backward_data(ex, &down, dy, dpre));
    HTH_TRY(hth_linear_backward_weight(ex, t->w1, NULL, s->norm2, dpre));
    struct hth_linear_back up = {.w = t->w1};
    HTH_TRY(hth_linear_backward_data(ex, &up, dpre, dnorm));
    struct hth_layernorm_back norm = {.gamma = t->ln2_gamma,
                                      .beta = t->ln2_beta,
                                      .x = s->mid,
                                      .stats = s->stats2,
                                      .residual = dy};
    return hth_layernorm_backward(ex, &norm, dnorm, dmid);
}

/* Backward through the attention half and its residual path: dx gets the gradient of x from dmid,
 * that of u. */
static enum hth_err tblock_back_attention(struct hth_exec *ex, const struct hth_tblock *t,
                                          const struct tblock_saved *s,
                                          const struct hth_tblock_back *back, struct hth_view dmid,
                                          struct hth_view dx)
{
    struct hth_view dqkv = take_matrix(ex, dmid.rows, 3 * t->dim);
    struct hth_view datt = take_matrix(ex, dmid.rows, t->dim);
    if (dqkv.data == NULL || datt.data == NULL)
        return HTH_E_NO_MEMORY;
    HTH_TRY(hth_linear_backward_weight(ex, t->wo, t->bo, s->att, dmid));
    struct hth_linear_back proj = {.w = t->wo};
    HTH_TRY(hth_linear_backward_data(ex, &proj, dmid, datt));
    struct hth_attention att = {.seq = back->seq, .heads = t->heads, .rope = t->rope};
    struct hth_attention_saved saved = {.qkv = s->qkv, .out = s->att, .lse = s->lse};
    HTH_TRY(hth_attention_backward(ex, &att, &saved, datt, dqkv));
    HTH_TRY(hth_linear_backward_weight(ex, t->wqkv, t->bqkv, s->norm1, dqkv));
    struct hth_linear_back qkv = {.w = t->wqkv};
    HTH_TRY(hth_linear_backward_data(ex, &qkv, dqkv, datt));
    struct hth_layernorm_back norm = {.gamma = t->ln1_gamma,
                                      .beta = t->ln1_beta,
                                      .x = back->x,
                                      .stats = s->stats1,
                                      .residual = dmid};
    return hth_layernorm_backward(ex, &norm, datt, dx);
}

static enum hth_err tblock_backward(struct hth_exec *ex, void *arg, uint32_t unused)
{
    const struct block_call *c = arg;
    const struct hth_tblock *t = c->block;
    const struct hth_tblock_back all = {.seq = c->key.seq, .x = c->x, .saved = c->saved};
    const struct hth_tblock_back *back = &all;
    struct hth_view dy = c->dy, dx = c->dx;
    (void)unused;
    call_start(c);
    size_t mark = hth_exec_mark(ex);
    struct tblock_saved s = tblock_layout(ex->be, t, back->x.rows, back->saved);
    struct hth_view dmid = take_matrix(ex, dy.rows, t->dim);
    enum hth_err err = HTH_E_NO_MEMORY;
    if (dmid.data == NULL)
        goto out;
    size_t half = hth_exec_mark(ex);
    HTH_GOTO(out, tblock_back_ffn(ex, t, &s, dy, dmid));
    hth_exec_release(ex, half);
    HTH_GOTO(out, tblock_back_attention(ex, t, &s, back, dmid, dx));
out:
    hth_exec_release(ex, mark);
    return err;
}

static struct block_call tblock_call(const struct hth_tblock *t, struct hth_weight **weights,
                                     uint32_t seq, uint32_t what)
{
    struct hth_weight *const all[WEIGHTS_MOST] = {
        t->w1, t->b1, t->w2,        t->b2,       t->wqkv,      t->bqkv,
        t->wo, t->bo, t->ln1_gamma, t->ln1_beta, t->ln2_gamma, t->ln2_beta};
    struct block_call c = {
        .key = {.what = what,
                .dim = t->dim,
                .hidden = t->hidden,
                .heads = t->heads,
                .seq = seq,
                .eps = t->eps},
        .block = t,
        .weights = weights,
        .weight_count = WEIGHTS_MOST,
        .backward = what == CALL_TBLOCK_BACKWARD,
    };
    for (uint32_t i = 0; i < WEIGHTS_MOST; i++)
        weights[i] = all[i];
    c.key.at[8] = t->rope != NULL ? t->rope->cosines : NULL;
    return c;
}

enum hth_err hth_tblock_forward(struct hth_exec *ex, const struct hth_tblock *t, uint32_t seq,
                                struct hth_view x, struct hth_view y, void *saved)
{
    struct hth_weight *weights[WEIGHTS_MOST];
    struct block_call c = tblock_call(t, weights, seq, CALL_TBLOCK_FORWARD);
    if (x.rows == 0)
        return HTH_OK;
    if (x.cols != t->dim || y.rows != x.rows || y.cols != t->dim || x.data == y.data)
        return HTH_E_BAD_SHAPE;
    c.x = x;
    c.y = y;
    c.saved = saved;
    return call_run(ex, &c, tblock_forward);
}

enum hth_err hth_tblock_backward(struct hth_exec *ex, const struct hth_tblock *t,
                                 const struct hth_tblock_back *back, struct hth_view dy,
                                 struct hth_view dx)
{
    struct hth_weight *weights[WEIGHTS_MOST];
    struct block_call c = tblock_call(t, weights, back->seq, CALL_TBLOCK_BACKWARD);
    if (back->x.rows == 0)
        return HTH_OK;
    if (back->x.cols != t->dim || dy.rows != back->x.rows || dy.cols != t->dim ||
        back->saved == NULL)
        return HTH_E_BAD_SHAPE;
    c.x = back->x;
    c.dy = dy;
    c.dx = dx;
    c.saved = back->saved;
    return call_run(ex, &c, tblock_backward);
}
