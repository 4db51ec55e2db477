/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu.c: the operations of the CPU back ends, written once over a matrix product and a table of row
 * loops (cpu_int.h). Each works row by row, so the bit rule follows from that of the two.
 */
#include "kernels/cpu_int.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "core/team.h"
#include "kernels/elements.h"
#include "kernels/math64.h"

/* -- memory -------------------------------------------------------------------------------- */

static void *cpu_alloc(const struct hth_backend *be, size_t bytes)
{
    (void)be;
    return hth_try_aligned(bytes);
}

static void cpu_free(const struct hth_backend *be, void *p)
{
    (void)be;
    hth_aligned_free(p);
}

static enum hth_err cpu_exec_open(struct hth_exec *ex)
{
    ex->stream = NULL;
    return HTH_OK;
}

static void cpu_exec_close(struct hth_exec *ex)
{
    (void)ex;
}

static enum hth_err cpu_exec_sync(struct hth_exec *ex)
{
    (void)ex;
    return HTH_OK;
}

static enum hth_err cpu_copy(struct hth_exec *ex, void *dst, const void *src, size_t bytes)
{
    (void)ex;
    memcpy(dst, src, bytes);
    return HTH_OK;
}

/* -- initial values ------------------------------------------------------------------------ */

#define INIT_WORDS 1024

static enum hth_err cpu_init(const struct hth_backend *be, const struct hth_init_args *args)
{
    const struct hth_cpu *cpu = be->impl;
    uint32_t words[INIT_WORDS];
    float chunk[INIT_WORDS];
    /* Initial values must not share random numbers with dropout, for any seed. */
    uint64_t seed = hth_mix64(args->seed ^ UINT64_C(0x696e697469616c73));
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t c123[3] = {args->tensor, 0, args->stream};
    if (args->init == HTH_INIT_ZEROS) {
        memset(args->dst, 0, args->count * sizeof(float));
        return HTH_OK;
    }
    for (size_t at = 0; at < args->count; at += INIT_WORDS) {
        size_t n = HTH_MIN(args->count - at, (size_t)INIT_WORDS);
        if (args->init == HTH_INIT_ONES) {
            for (size_t i = 0; i < n; i++)
                args->dst[at + i] = args->scale;
            continue;
        }
        cpu->row->philox(INIT_WORDS / 4, (uint32_t)(at / 4), c123, key, words);
        if (args->init == HTH_INIT_NORMAL) {
            for (size_t i = 0; i < INIT_WORDS; i += 2)
                hth_el_normal(words[i], words[i + 1], args->scale, chunk + i);
        } else {
            for (size_t i = 0; i < INIT_WORDS; i++)
                chunk[i] = hth_el_uniform(words[i]) * args->scale;
        }
        memcpy(args->dst + at, chunk, n * sizeof(float));
    }
    return HTH_OK;
}

/* -- linear -------------------------------------------------------------------------------- */

static size_t cpu_linear_scratch(const struct hth_backend *be, uint32_t in, uint32_t out)
{
    const struct hth_cpu *cpu = be->impl;
    return cpu->gemm_scratch(out, in) + cpu->gemm_scratch(in, out);
}

static enum hth_err cpu_linear_forward(struct hth_exec *ex, const struct hth_linear *lin,
                                       struct hth_view x, struct hth_view y)
{
    const struct hth_cpu *cpu = hth_cpu_of(ex);
    struct hth_gemm g = {.form = HTH_GEMM_NN,
                         .m = x.rows,
                         .n = y.cols,
                         .k = x.cols,
                         .a = x.data,
                         .lda = x.ld,
                         .b = lin->w->value,
                         .ldb = lin->w->cols,
                         .c = y.data,
                         .ldc = y.ld};
    HTH_TRY(cpu->gemm(ex, &g));
    const float *bias = lin->bias != NULL ? lin->bias->value : NULL;
    if (bias == NULL && lin->act == HTH_ACT_NONE && lin->pre.data == NULL &&
        lin->residual.data == NULL)
        return HTH_OK;
    for (uint32_t r = 0; r < y.rows; r++) {
        float *row = hth_row(y, r);
        struct hth_row_epilogue e = {bias, lin->act, hth_row_or_null(lin->pre, r),
                                     hth_row_or_null(lin->residual, r)};
        cpu->row->epilogue(y.cols, row, &e, row);
    }
    return HTH_OK;
}

static enum hth_err cpu_linear_backward_data(struct hth_exec *ex, const struct hth_linear_back *lin,
                                             struct hth_view dy, struct hth_view dx)
{
    const struct hth_cpu *cpu = hth_cpu_of(ex);
    struct hth_gemm g = {.form = HTH_GEMM_NT,
                         .m = dy.rows,
                         .n = dx.cols,
                         .k = dy.cols,
                         .a = dy.data,
                         .lda = dy.ld,
                         .b = lin->w->value,
                         .ldb = lin->w->cols,
                         .c = dx.data,
                         .ldc = dx.ld};
    HTH_TRY(cpu->gemm(ex, &g));
    for (uint32_t r = 0; r < dx.rows; r++) {
        float *row = hth_row(dx, r);
        if (lin->act != HTH_ACT_NONE)
            cpu->row->act_backward(dx.cols, lin->act, hth_row(lin->pre, r), row, row);
        if (lin->residual.data != NULL)
            cpu->row->combine(dx.cols, 1.0f, row, 1.0f, hth_row(lin->residual, r), row);
    }
    return lin->bias != NULL ? hth_cpu_bias_grad(ex, lin->bias, dx) : HTH_OK;
}

static enum hth_err cpu_linear_backward_weight(struct hth_exec *ex, struct hth_weight *w,
                                               struct hth_weight *bias, struct hth_view x,
                                               struct hth_view dy)
{
    const struct hth_cpu *cpu = hth_cpu_of(ex);
    struct hth_gemm g = {.form = HTH_GEMM_TN,
                         .accumulate = !w->grad_zero,
                         .m = x.cols,
                         .n = dy.cols,
                         .k = x.rows,
                         .a = x.data,
                         .lda = x.ld,
                         .b = dy.data,
                         .ldb = dy.ld,
                         .c = w->grad,
                         .ldc = w->cols};
    HTH_TRY(cpu->gemm(ex, &g));
    w->grad_zero = false;
    return bias != NULL ? hth_cpu_bias_grad(ex, bias, dy) : HTH_OK;
}

/* -- rows over a team ---------------------------------------------------------------------- */

/* A part with fewer numbers is not worth a helper. */
#define PART_NUMBERS ((size_t)1 << 15)

/* Work on independent rows: any cut gives the same bits. */
typedef void rows_fn(const struct hth_rowops *row, const void *arg, uint32_t first, uint32_t end);

struct rows_work {
    const struct hth_rowops *row;
    rows_fn *fn;
    const void *arg;
    uint32_t rows, parts; /* or columns */
};

static void rows_part(void *arg, uint32_t part)
{
    const struct rows_work *w = arg;
    uint32_t first = (uint32_t)((uint64_t)w->rows * part / w->parts);
    uint32_t end = (uint32_t)((uint64_t)w->rows * (part + 1) / w->parts);
    w->fn(w->row, w->arg, first, end);
}

static void by_rows(struct hth_exec *ex, uint32_t rows, uint32_t cols, rows_fn *fn, const void *arg)
{
    struct rows_work w = {hth_cpu_of(ex)->row, fn, arg, rows, 1};
    size_t parts = (size_t)rows * cols / PART_NUMBERS, width = hth_team_width(ex->team);
    if (width > 1 && parts > 1)
        w.parts = (uint32_t)HTH_MIN(HTH_MIN(parts, 4 * width), (size_t)rows);
    hth_team_run(ex->team, w.parts, rows_part, &w);
}

/* Columns of a part: whole cache lines, and whole vectors in every table. */
#define PART_COLUMNS 64

static uint32_t column_parts(const struct hth_exec *ex, uint32_t rows, uint32_t cols)
{
    size_t parts = (size_t)rows * cols / PART_NUMBERS, width = hth_team_width(ex->team);
    parts = HTH_MIN(HTH_MIN(parts, 4 * width), (size_t)cols / PART_COLUMNS);
    return width > 1 && parts > 1 ? (uint32_t)parts : 1;
}

static void columns_part(void *arg, uint32_t part)
{
    const struct rows_work *w = arg;
    uint64_t groups = (w->rows + PART_COLUMNS - 1) / PART_COLUMNS;
    uint32_t first = (uint32_t)(groups * part / w->parts) * PART_COLUMNS;
    uint32_t end = (uint32_t)(groups * (part + 1) / w->parts) * PART_COLUMNS;
    w->fn(w->row, w->arg, first, HTH_MIN(end, w->rows));
}

/* Computes sums over rows, in row order, of columns first .. end: any cut gives the same bits. */
static void by_columns(struct hth_exec *ex, uint32_t rows, uint32_t cols, rows_fn *fn,
                       const void *arg)
{
    struct rows_work w = {hth_cpu_of(ex)->row, fn, arg, cols, column_parts(ex, rows, cols)};
    hth_team_run(ex->team, w.parts, columns_part, &w);
}

struct column_sums {
    struct hth_view dy;
    float *sums;
};

static void bias_columns(const struct hth_rowops *row, const void *arg, uint32_t first,
                         uint32_t end)
{
    const struct column_sums *s = arg;
    for (uint32_t r = 0; r < s->dy.rows; r++)
        row->axpy(end - first, 1.0f, hth_row(s->dy, r) + first, s->sums + first);
}

enum hth_err hth_cpu_bias_grad(struct hth_exec *ex, struct hth_weight *bias, struct hth_view dy)
{
    HTH_TRY(hth_weight_grad_ready(bias));
    struct column_sums s = {dy, bias->grad};
    by_columns(ex, dy.rows, dy.cols, bias_columns, &s);
    return HTH_OK;
}

/* -- activations, normalisation, softmax --------------------------------------------------- */

/* Views of an operation that reads a and b and writes y. */
struct views {
    struct hth_view a, b, y;
    enum hth_act act;
};

static void act_forward_rows(const struct hth_rowops *row, const void *arg, uint32_t first,
                             uint32_t end)
{
    const struct views *v = arg;
    for (uint32_t r = first; r < end; r++)
        row->act_forward(v->a.cols, v->act, hth_row(v->a, r), hth_row(v->y, r));
}

static void act_backward_rows(const struct hth_rowops *row, const void *arg, uint32_t first,
                              uint32_t end)
{
    const struct views *v = arg;
    for (uint32_t r = first; r < end; r++)
        row->act_backward(v->a.cols, v->act, hth_row(v->a, r), hth_row(v->b, r), hth_row(v->y, r));
}

static void softmax_rows(const struct hth_rowops *row, const void *arg, uint32_t first,
                         uint32_t end)
{
    const struct views *v = arg;
    for (uint32_t r = first; r < end; r++)
        row->softmax(v->a.cols, hth_row(v->a, r), hth_row(v->y, r));
}

static void softmax_back_rows(const struct hth_rowops *row, const void *arg, uint32_t first,
                              uint32_t end)
{
    const struct views *v = arg;
    for (uint32_t r = first; r < end; r++)
        row->softmax_back(v->a.cols, hth_row(v->a, r), hth_row(v->b, r), hth_row(v->y, r));
}

static enum hth_err cpu_act_forward(struct hth_exec *ex, enum hth_act act, struct hth_view x,
                                    struct hth_view y)
{
    struct views v = {.a = x, .y = y, .act = act};
    by_rows(ex, x.rows, x.cols, act_forward_rows, &v);
    return HTH_OK;
}

static enum hth_err cpu_act_backward(struct hth_exec *ex, enum hth_act act, struct hth_view x,
                                     struct hth_view dy, struct hth_view dx)
{
    struct views v = {.a = x, .b = dy, .y = dx, .act = act};
    by_rows(ex, x.rows, x.cols, act_backward_rows, &v);
    return HTH_OK;
}

static void geglu_rows(const struct hth_rowops *row, const void *arg, uint32_t first, uint32_t end)
{
    const struct views *v = arg;
    uint32_t h = v->y.cols;
    for (uint32_t r = first; r < end; r++)
        row->geglu(h, hth_row(v->a, r), hth_row(v->a, r) + h, hth_row(v->y, r));
}

static void geglu_back_rows(const struct hth_rowops *row, const void *arg, uint32_t first,
                            uint32_t end)
{
    const struct views *v = arg;
    uint32_t h = v->b.cols;
    for (uint32_t r = first; r < end; r++)
        row->geglu_back(h, hth_row(v->a, r), hth_row(v->a, r) + h, hth_row(v->b, r),
                        hth_row(v->y, r), hth_row(v->y, r) + h);
}

static enum hth_err cpu_geglu_forward(struct hth_exec *ex, struct hth_view x, struct hth_view y)
{
    struct views v = {.a = x, .y = y};
    by_rows(ex, x.rows, x.cols, geglu_rows, &v);
    return HTH_OK;
}

static enum hth_err cpu_geglu_backward(struct hth_exec *ex, struct hth_view x, struct hth_view dy,
                                       struct hth_view dx)
{
    struct views v = {.a = x, .b = dy, .y = dx};
    by_rows(ex, x.rows, x.cols, geglu_back_rows, &v);
    return HTH_OK;
}

/* -- layer scale */

struct scale_work {
    float *scale; /* or its gradient */
    struct hth_view x, other, y;
};

static void scale_rows(const struct hth_rowops *row, const void *arg, uint32_t first, uint32_t end)
{
    const struct scale_work *s = arg;
    for (uint32_t r = first; r < end; r++)
        row->scale(s->x.cols, hth_row(s->x, r), s->scale, hth_row_or_null(s->other, r),
                   hth_row(s->y, r));
}

static void scale_columns(const struct hth_rowops *row, const void *arg, uint32_t first,
                          uint32_t end)
{
    const struct scale_work *s = arg;
    for (uint32_t r = 0; r < s->x.rows; r++)
        row->scale(end - first, hth_row(s->x, r) + first, hth_row(s->other, r) + first,
                   s->scale + first, s->scale + first);
}

static enum hth_err cpu_scale_forward(struct hth_exec *ex, struct hth_weight *scale,
                                      struct hth_view x, struct hth_view residual,
                                      struct hth_view y)
{
    struct scale_work s = {scale->value, x, residual, y};
    by_rows(ex, x.rows, x.cols, scale_rows, &s);
    return HTH_OK;
}

static enum hth_err cpu_scale_backward(struct hth_exec *ex, struct hth_weight *scale,
                                       struct hth_view x, struct hth_view dy, struct hth_view dx)
{
    HTH_TRY(hth_weight_grad_ready(scale));
    struct scale_work sums = {scale->grad, x, dy, HTH_VIEW_NONE};
    by_columns(ex, x.rows, x.cols, scale_columns, &sums); /* first: dx may be x or dy */
    return cpu_scale_forward(ex, scale, dy, HTH_VIEW_NONE, dx);
}

struct norm_rows {
    struct hth_row_norm norm;
    struct hth_view x, y, stats;
};

static void layernorm_rows(const struct hth_rowops *row, const void *arg, uint32_t first,
                           uint32_t end)
{
    const struct norm_rows *n = arg;
    for (uint32_t r = first; r < end; r++)
        row->layernorm(n->x.cols, hth_row(n->x, r), &n->norm, hth_row(n->y, r),
                       hth_row_or_null(n->stats, r));
}

static enum hth_err cpu_layernorm_forward(struct hth_exec *ex, const struct hth_layernorm *ln,
                                          struct hth_view x, struct hth_view y,
                                          struct hth_view stats)
{
    struct norm_rows n = {{ln->gamma->value, ln->beta->value, ln->eps}, x, y, stats};
    by_rows(ex, x.rows, x.cols, layernorm_rows, &n);
    return HTH_OK;
}

struct norm_back {
    const struct hth_layernorm_back *ln;
    struct hth_view dy, dx;
    bool apart; /* sums over rows have their own pass */
};

static struct hth_row_norm_back norm_back_at(const struct norm_back *n, uint32_t r, uint32_t col)
{
    const struct hth_layernorm_back *ln = n->ln;
    return (struct hth_row_norm_back){hth_row(ln->x, r) + col, ln->gamma->value + col,
                                      hth_row(ln->stats, r),   hth_row(n->dy, r) + col,
                                      hth_row(n->dx, r) + col, ln->gamma->grad + col,
                                      ln->beta->grad + col};
}

static void norm_sums_columns(const struct hth_rowops *row, const void *arg, uint32_t first,
                              uint32_t end)
{
    const struct norm_back *n = arg;
    for (uint32_t r = 0; r < n->dy.rows; r++) {
        struct hth_row_norm_back b = norm_back_at(n, r, first);
        row->layernorm_sums(end - first, &b);
    }
}

static void norm_back_rows(const struct hth_rowops *row, const void *arg, uint32_t first,
                           uint32_t end)
{
    const struct norm_back *n = arg;
    for (uint32_t r = first; r < end; r++) {
        struct hth_row_norm_back b = norm_back_at(n, r, 0);
        if (!n->apart)
            row->layernorm_sums(n->dy.cols, &b);
        row->layernorm_back(n->dy.cols, &b);
        if (n->ln->residual.data != NULL)
            row->combine(n->dy.cols, 1.0f, b.dx, 1.0f, hth_row(n->ln->residual, r), b.dx);
    }
}

static enum hth_err cpu_layernorm_backward(struct hth_exec *ex, const struct hth_layernorm_back *ln,
                                           struct hth_view dy, struct hth_view dx)
{
    struct norm_back n = {.ln = ln, .dy = dy, .dx = dx};
    HTH_TRY(hth_weight_grad_ready(ln->gamma));
    HTH_TRY(hth_weight_grad_ready(ln->beta));
    n.apart = column_parts(ex, dy.rows, dy.cols) > 1;
    if (!n.apart) {
        norm_back_rows(hth_cpu_of(ex)->row, &n, 0, dy.rows);
        return HTH_OK;
    }
    by_columns(ex, dy.rows, dy.cols, norm_sums_columns, &n); /* first: dx may be dy */
    by_rows(ex, dy.rows, dy.cols, norm_back_rows, &n);
    return HTH_OK;
}

static enum hth_err cpu_softmax_forward(struct hth_exec *ex, struct hth_view x, struct hth_view y)
{
    struct views v = {.a = x, .y = y};
    by_rows(ex, x.rows, x.cols, softmax_rows, &v);
    return HTH_OK;
}

static enum hth_err cpu_softmax_backward(struct hth_exec *ex, struct hth_view y, struct hth_view dy,
                                         struct hth_view dx)
{
    struct views v = {.a = y, .b = dy, .y = dx};
    by_rows(ex, y.rows, y.cols, softmax_back_rows, &v);
    return HTH_OK;
}

#define XENT_ROWS 256 /* rows whose losses are then added in order */

struct xent_rows {
    struct hth_view logits, labels, dlogits;
    float grad_scale;
    uint32_t base; /* first row of these */
    double *loss;  /* of each of these rows */
    bool *first;
};

static int32_t label_of(struct hth_view labels, size_t r)
{
    return ((const int32_t *)labels.data)[r * labels.ld];
}

static void xent_rows(const struct hth_rowops *row, const void *arg, uint32_t first, uint32_t end)
{
    const struct xent_rows *x = arg;
    uint32_t cols = x->logits.cols;
    for (uint32_t i = first; i < end; i++) {
        int32_t label = label_of(x->labels, x->base + i);
        float *dx = hth_row_or_null(x->dlogits, x->base + i);
        struct hth_row_xent one;
        if (label == HTH_LABEL_NONE) {
            if (dx != NULL)
                memset(dx, 0, cols * sizeof(float));
            continue;
        }
        row->xent(cols, hth_row(x->logits, x->base + i), (size_t)label, x->grad_scale, &one, dx);
        x->loss[i] = hth_log64((double)one.sum) + (double)one.max - (double)one.at_label;
        x->first[i] = one.first;
    }
}

static enum hth_err cpu_xent(struct hth_exec *ex, struct hth_view logits, struct hth_view labels,
                             float grad_scale, struct hth_view dlogits,
                             struct hth_xent_result *result)
{
    struct hth_xent_result sum = {0};
    double loss[XENT_ROWS];
    bool first[XENT_ROWS];
    struct xent_rows x = {logits, labels, dlogits, grad_scale, 0, loss, first};
    for (; x.base < logits.rows; x.base += XENT_ROWS) {
        uint32_t rows = HTH_MIN(logits.rows - x.base, (uint32_t)XENT_ROWS);
        by_rows(ex, rows, logits.cols, xent_rows, &x);
        for (uint32_t i = 0; i < rows; i++) {
            if (label_of(labels, x.base + i) == HTH_LABEL_NONE)
                continue;
            sum.loss_sum += loss[i];
            sum.counted++;
            sum.correct += first[i];
        }
    }
    *result = sum;
    return HTH_OK;
}

/* -- rows ---------------------------------------------------------------------------------- */

static size_t index_at(struct hth_view index, uint32_t r)
{
    return (size_t)((const int32_t *)index.data)[(size_t)r * index.ld];
}

static enum hth_err cpu_gather_rows(struct hth_exec *ex, struct hth_view src, struct hth_view index,
                                    struct hth_view dst)
{
    (void)ex;
    for (uint32_t r = 0; r < dst.rows; r++)
        memcpy(hth_row(dst, r), hth_row(src, index_at(index, r)), dst.cols * sizeof(float));
    return HTH_OK;
}

static enum hth_err cpu_scatter_add_rows(struct hth_exec *ex, struct hth_view src,
                                         struct hth_view index, struct hth_view weight,
                                         struct hth_view dst)
{
    for (uint32_t r = 0; r < src.rows; r++) {
        float alpha = weight.data != NULL ? *hth_row(weight, r) : 1.0f;
        hth_cpu_of(ex)->row->axpy(src.cols, alpha, hth_row(src, r),
                                  hth_row(dst, index_at(index, r)));
    }
    return HTH_OK;
}

/* -- elementwise --------------------------------------------------------------------------- */

static enum hth_err cpu_combine(struct hth_exec *ex, float alpha, struct hth_view a, float beta,
                                struct hth_view b, struct hth_view y)
{
    for (uint32_t r = 0; r < y.rows; r++) {
        hth_cpu_of(ex)->row->combine(y.cols, alpha, hth_row(a, r), beta, hth_row_or_null(b, r),
                                     hth_row(y, r));
    }
    return HTH_OK;
}

static enum hth_err cpu_fill(struct hth_exec *ex, struct hth_view y, float value)
{
    (void)ex;
    for (uint32_t r = 0; r < y.rows; r++) {
        float *row = hth_row(y, r);
        for (uint32_t c = 0; c < y.cols; c++)
            row[c] = value;
    }
    return HTH_OK;
}

#define DROPOUT_WORDS 1024

/* Element (r, c) uses word c mod 4 of block r * ceil(cols / 4) + c / 4. */
static enum hth_err cpu_dropout(struct hth_exec *ex, const struct hth_dropout *drop,
                                struct hth_view x, struct hth_view y)
{
    const struct hth_rowops *row = hth_cpu_of(ex)->row;
    const uint32_t key[2] = {(uint32_t)drop->seed, (uint32_t)(drop->seed >> 32)};
    const uint32_t c123[3] = {drop->op, drop->step, drop->expert};
    uint32_t words[DROPOUT_WORDS];
    uint32_t threshold = (uint32_t)((double)drop->p * 4294967296.0);
    float scale = 1.0f / (1.0f - drop->p);
    uint32_t row_blocks = x.cols / 4 + (x.cols % 4 != 0);
    for (uint32_t r = 0; r < x.rows; r++) {
        for (uint32_t c = 0; c < x.cols; c += DROPOUT_WORDS) {
            uint32_t n = HTH_MIN(x.cols - c, (uint32_t)DROPOUT_WORDS);
            row->philox((n + 3) / 4, r * row_blocks + c / 4, c123, key, words);
            row->dropout(n, hth_row(x, r) + c, words, threshold, scale, hth_row(y, r) + c);
        }
    }
    return HTH_OK;
}

static enum hth_err cpu_cast(struct hth_exec *ex, struct hth_view src, struct hth_view dst)
{
    const struct hth_rowops *row = hth_cpu_of(ex)->row;
    size_t from = hth_dtype_size(src.dtype), to = hth_dtype_size(dst.dtype);
    for (uint32_t r = 0; r < src.rows; r++) {
        const void *x = (const char *)src.data + (size_t)r * src.ld * from;
        void *y = (char *)dst.data + (size_t)r * dst.ld * to;
        if (src.dtype == dst.dtype)
            memcpy(y, x, src.cols * from);
        else if (dst.dtype == HTH_BF16)
            row->to_bf16(src.cols, x, y);
        else if (dst.dtype == HTH_F16)
            row->to_f16(src.cols, x, y);
        else if (src.dtype == HTH_BF16)
            row->from_bf16(src.cols, x, y);
        else
            row->from_f16(src.cols, x, y);
    }
    return HTH_OK;
}

#define SUMSQ_ROWS 64

struct sumsq_work {
    const struct hth_rowops *row;
    struct hth_view x;
    uint32_t first;
    double sum[SUMSQ_ROWS];
};

static void sumsq_row(void *arg, uint32_t part)
{
    struct sumsq_work *w = arg;
    w->sum[part] = w->row->sumsq(w->x.cols, hth_row(w->x, w->first + part));
}

static enum hth_err cpu_sumsq(struct hth_exec *ex, struct hth_view x,
                              struct hth_sumsq_result *result)
{
    struct sumsq_work w = {.row = hth_cpu_of(ex)->row, .x = x};
    /* Short rows are not worth a helper. */
    struct hth_team *team = x.cols >= 1u << 14 ? ex->team : NULL;
    double sum = 0;
    for (; w.first < x.rows; w.first += SUMSQ_ROWS) {
        uint32_t rows = HTH_MIN(x.rows - w.first, (uint32_t)SUMSQ_ROWS);
        hth_team_run(team, rows, sumsq_row, &w);
        for (uint32_t r = 0; r < rows; r++)
            sum += w.sum[r];
    }
    result->sum = sum;
    result->finite = isfinite(sum);
    return HTH_OK;
}

/* The table of a CPU back end; the two differ in `impl`. */
#define CPU_TABLE(name_, cpu_, caps_)                                                              \
    {                                                                                              \
        .abi = HTH_BACKEND_ABI, .size = sizeof(struct hth_backend), .name = (name_),               \
        .caps = HTH_CAP_HOST_MEMORY | HTH_CAP_ROW_INVARIANT | HTH_CAP_DENSE | (caps_),             \
        .compute = HTH_MATMUL_F32, .impl = (cpu_), .alloc = cpu_alloc, .free = cpu_free,           \
        .exec_open = cpu_exec_open, .exec_close = cpu_exec_close, .exec_sync = cpu_exec_sync,      \
        .upload = cpu_copy, .download = cpu_copy, .init = cpu_init,                                \
        .linear_scratch = cpu_linear_scratch, .linear_forward = cpu_linear_forward,                \
        .linear_backward_data = cpu_linear_backward_data,                                          \
        .linear_backward_weight = cpu_linear_backward_weight, .act_forward = cpu_act_forward,      \
        .act_backward = cpu_act_backward, .geglu_forward = cpu_geglu_forward,                      \
        .geglu_backward = cpu_geglu_backward, .scale_forward = cpu_scale_forward,                  \
        .scale_backward = cpu_scale_backward, .column_sums = hth_cpu_bias_grad,                    \
        .layernorm_forward = cpu_layernorm_forward, .layernorm_backward = cpu_layernorm_backward,  \
        .softmax_forward = cpu_softmax_forward, .softmax_backward = cpu_softmax_backward,          \
        .xent = cpu_xent, .gather_rows = cpu_gather_rows,                                          \
        .scatter_add_rows = cpu_scatter_add_rows, .attention_scratch = hth_cpu_attention_scratch,  \
        .attention_forward = hth_cpu_attention_forward,                                            \
        .attention_backward = hth_cpu_attention_backward,                                          \
        .attention_grow = hth_cpu_attention_grow, .combine = cpu_combine,                          \
        .fill = cpu_fill, .dropout = cpu_dropout, .cast = cpu_cast, .sumsq = cpu_sumsq,            \
        .step = hth_cpu_step,                                                                      \
    }

const struct hth_backend hth_cpu_ref_backend = CPU_TABLE("ref", &hth_cpu_ref, HTH_CAP_REPRODUCIBLE);
const struct hth_backend hth_cpu_blas_backend = CPU_TABLE("blas", &hth_cpu_blas, 0);
