/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.c: many small FFN blocks of one shape at once: one product of the library for all of them,
 * and one launch of ours between two products (group.cu). One block after the other would be some
 * fifteen launches each, none of which fills a card.
 *
 * Blocks form runs of similar numbers of rows (the largest less than twice the smallest), padded to
 * one number, and of as many blocks as fit on the card together; a block that fits no run is
 * computed alone. One table, uploaded once per run, has the addresses of each block for the kernels
 * and the library.
 */
#include "kernels/cuda/device.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_MOST  256u  /* larger blocks fill a card alone */
#define ROWS_TOTAL 4096u /* of a run, padded */
#define PRODUCTS   4u

/* The table to upload: one block of memory, on the host and on the card. */
struct group_table {
    struct hth_cu_member member[HTH_CU_GROUP];
    const void *a[PRODUCTS][HTH_CU_GROUP], *b[PRODUCTS][HTH_CU_GROUP];
    void *c[PRODUCTS][HTH_CU_GROUP];
};

struct group_run {
    struct hth_exec *ex;
    struct hth_cu_stream *s;
    const struct hth_ffn_member *const *member;
    struct hth_cu_group g;
    struct group_table here, *there;
    enum hth_gpu_type type;
    bool backward;
    uint32_t most; /* most blocks of a run: fewer after a table of more had no room */
};

static uint32_t padded(uint32_t n)
{
    return (n + 7) / 8 * 8;
}

/* ---- runs ---------------------------------------------------------------------------------- */

static int by_rows(const void *a, const void *b)
{
    const struct hth_ffn_member *x = *(const struct hth_ffn_member *const *)a;
    const struct hth_ffn_member *y = *(const struct hth_ffn_member *const *)b;
    if (x->x.rows != y->x.rows)
        return x->x.rows < y->x.rows ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* True if all gradients of a block are added to, or all overwritten; other blocks are computed
 * alone. */
static bool is_even(const struct hth_ffn *f)
{
    bool zero = f->w1->grad_zero;
    return f->b1->grad_zero == zero && f->w2->grad_zero == zero && f->b2->grad_zero == zero &&
           f->gamma->grad_zero == zero && f->beta->grad_zero == zero;
}

static bool fits(const struct group_run *run, const struct hth_ffn_member *first,
                 const struct hth_ffn_member *m, uint32_t count)
{
    uint32_t rows = padded(m->x.rows);
    if (rows > ROWS_MOST || count >= run->most || rows * (count + 1) > ROWS_TOTAL ||
        (rows > 8 && m->x.rows >= 2 * first->x.rows))
        return false;
    return !run->backward ||
           (is_even(m->ffn) && m->ffn->w1->grad_zero == first->ffn->w1->grad_zero);
}

/* Holds the weights of the first `count` blocks of the run that are on the card together. */
static uint32_t hold_first(struct group_run *run, uint32_t count)
{
    uint32_t reads = HTH_HOLD_VALUE, writes = run->backward ? HTH_HOLD_GRAD : 0, n = 0;
    while (n < count &&
           hth_cu_params_try(run->ex, run->member[n]->ffn->w1->owner, reads, writes) == HTH_OK)
        n++;
    return n;
}

/* Holds as many blocks as there is room for. Parts held for earlier work are released first. Blocks
 * that do not fit beside the others form the next run, so each set is copied once. */
static uint32_t hold_some(struct group_run *run, uint32_t count)
{
    bool others = run->s->held_count > 0;
    uint32_t n = hold_first(run, count);
    if (n == count || !others)
        return n;
    hth_cu_settle(run->s);
    hth_cu_release_all(run->s);
    return hold_first(run, count);
}

/* ---- the table ----------------------------------------------------------------------------- */

static struct hth_cu_member member_of(const struct hth_ffn_member *m)
{
    const struct hth_ffn *f = m->ffn;
    return (struct hth_cu_member){
        .rows = m->x.rows,
        .ld_x = m->x.ld,
        .ld_y = m->y.ld,
        .ld_dy = m->dy.ld,
        .ld_dx = m->dx.ld,
        .ld_hidden = m->act.ld,
        .ld_dim = m->sum.ld,
        .ld_stats = m->stats.ld,
        .x = m->x.data,
        .dy = m->dy.data,
        .y = m->y.data,
        .dx = m->dx.data,
        .pre = m->pre.data,
        .act = m->act.data,
        .sum = m->sum.data,
        .stats = m->stats.data,
        .b1 = f->b1->value,
        .b2 = f->b2->value,
        .gamma = f->gamma->value,
        .beta = f->beta->value,
        .db1 = f->b1->grad,
        .db2 = f->b2->grad,
        .dgamma = f->gamma->grad,
        .dbeta = f->beta->grad,
    };
}

/* Block i of a matrix of the group. */
static void *part_of(const struct group_run *run, void *matrix, size_t element, uint32_t ld,
                     uint32_t i)
{
    return (uint8_t *)matrix + (size_t)i * run->g.rows * ld * element;
}

static size_t operand_bytes(const struct group_run *run)
{
    return run->g.bf16 ? sizeof(uint16_t) : sizeof(float);
}

static void fill_forward(struct group_run *run, uint32_t i)
{
    struct hth_cu_group *g = &run->g;
    struct group_table *t = &run->here;
    const struct hth_ffn *f = run->member[i]->ffn;
    size_t unit = operand_bytes(run);
    t->a[0][i] = part_of(run, g->operand_x, unit, g->ld_dim, i);
    t->b[0][i] = hth_cu_weight_operand(run->s, run->type, f->w1);
    t->c[0][i] = part_of(run, g->product_h, sizeof(float), g->ld_hidden, i);
    t->a[1][i] = part_of(run, g->operand_h, unit, g->ld_hidden, i);
    t->b[1][i] = hth_cu_weight_operand(run->s, run->type, f->w2);
    t->c[1][i] = part_of(run, g->product_d, sizeof(float), g->ld_dim, i);
}

/* In order: dw2 = act^T dsum, dpre = dsum w2^T, dw1 = x^T dpre, dx = dpre w1^T. */
static void fill_backward(struct group_run *run, uint32_t i)
{
    struct hth_cu_group *g = &run->g;
    struct group_table *t = &run->here;
    const struct hth_ffn *f = run->member[i]->ffn;
    size_t unit = operand_bytes(run);
    t->a[0][i] = part_of(run, g->operand_h, unit, g->ld_hidden, i);
    t->b[0][i] = part_of(run, g->operand_d, unit, g->ld_dim, i);
    t->c[0][i] = f->w2->grad;
    t->a[1][i] = t->b[0][i];
    t->b[1][i] = hth_cu_weight_operand(run->s, run->type, f->w2);
    t->c[1][i] = part_of(run, g->product_h, sizeof(float), g->ld_hidden, i);
    t->a[2][i] = part_of(run, g->operand_x, unit, g->ld_dim, i);
    t->b[2][i] = t->a[0][i];
    t->c[2][i] = f->w1->grad;
    t->a[3][i] = t->a[0][i];
    t->b[3][i] = hth_cu_weight_operand(run->s, run->type, f->w1);
    t->c[3][i] = part_of(run, g->product_d, sizeof(float), g->ld_dim, i);
}

/* Lays out the group's matrices and its table in the room. */
static enum hth_err lay_out(struct group_run *run)
{
    struct hth_cu_group *g = &run->g;
    size_t rows = (size_t)g->rows * g->count, unit = operand_bytes(run);
    size_t wide = hth_cu_cost(rows * g->ld_hidden * sizeof(float));
    size_t narrow = hth_cu_cost(rows * g->ld_dim * sizeof(float));
    size_t wide_op = hth_cu_cost(rows * g->ld_hidden * unit);
    size_t narrow_op = hth_cu_cost(rows * g->ld_dim * unit);
    uint8_t *at = hth_cu_room(run->s, hth_cu_cost(sizeof(struct group_table)) + wide + 2 * narrow +
                                          wide_op + 2 * narrow_op);
    if (at == NULL)
        return HTH_E_NO_MEMORY;
    run->there = (struct group_table *)(void *)at;
    at += hth_cu_cost(sizeof(struct group_table));
    g->product_h = (float *)(void *)at;
    g->product_d = (float *)(void *)(at + wide);
    g->dsum = (float *)(void *)(at + wide + narrow);
    g->operand_h = at + wide + 2 * narrow;
    g->operand_x = at + wide + 2 * narrow + wide_op;
    g->operand_d = at + wide + 2 * narrow + wide_op + narrow_op;
    g->members = run->there->member;
    for (uint32_t i = 0; i < g->count; i++) {
        run->here.member[i] = member_of(run->member[i]);
        if (run->backward)
            fill_backward(run, i);
        else
            fill_forward(run, i);
    }
    HTH_TRY(hth_cu_upload(run->ex, run->there, &run->here, sizeof(run->here)));
    return run->s->err; /* no kernel may use the addresses of a table that was not uploaded */
}

/* ---- products ------------------------------------------------------------------------------ */

/* Computes product `p` of the table: for all blocks at once where the library can, else one by
 * one. */
static void product(struct group_run *run, uint32_t p, struct hth_gpu_matmul m)
{
    const struct hth_gpu *gpu = run->s->dev->gpu;
    struct group_table *t = &run->here;
    m.type = run->type;
    const struct hth_gpu_many many = {.each = m,
                                      .count = run->g.count,
                                      .a = run->there->a[p],
                                      .b = run->there->b[p],
                                      .c = run->there->c[p]};
    int err = gpu->matmul_many(run->s->blas, run->s->queue, &many);
    if (err != HTH_GPU_NO_FUSION) {
        hth_cu_check(run->s, err);
        return;
    }
    for (uint32_t i = 0; i < run->g.count; i++) {
        m.a = t->a[p][i];
        m.b = t->b[p][i];
        m.c = t->c[p][i];
        hth_cu_check(run->s, gpu->matmul(run->s->blas, run->s->queue, &m));
    }
}

/* rows x n = (rows x k) (k x n), or times the transpose of (n x k). */
static struct hth_gpu_matmul rows_times(const struct group_run *run, int form, uint32_t k,
                                        uint32_t n)
{
    const struct hth_cu_group *g = &run->g;
    return (struct hth_gpu_matmul){.form = form,
                                   .m = g->rows,
                                   .n = n,
                                   .k = k,
                                   .lda = k == g->dim ? g->ld_dim : g->ld_hidden,
                                   .ldb = form == HTH_GPU_NN ? n : k,
                                   .ldc = n == g->dim ? g->ld_dim : g->ld_hidden};
}

/* Gradient of a weight [m, n] from the rows of two operands. */
static struct hth_gpu_matmul rows_summed(const struct group_run *run, uint32_t m, uint32_t n)
{
    const struct hth_cu_group *g = &run->g;
    return (struct hth_gpu_matmul){.form = HTH_GPU_TN,
                                   .m = m,
                                   .n = n,
                                   .k = g->rows,
                                   .lda = m == g->dim ? g->ld_dim : g->ld_hidden,
                                   .ldb = n == g->dim ? g->ld_dim : g->ld_hidden,
                                   .ldc = n,
                                   .accumulate = g->accumulate};
}

static void forward(struct group_run *run)
{
    const struct hth_cu_group *g = &run->g;
    void *queue = run->s->queue;
    hth_cu_check(run->s, hth_cu_group_stage_x(queue, g));
    product(run, 0, rows_times(run, HTH_GPU_NN, g->dim, g->hidden));
    hth_cu_check(run->s, hth_cu_group_up_end(queue, g));
    product(run, 1, rows_times(run, HTH_GPU_NN, g->hidden, g->dim));
    hth_cu_check(run->s, hth_cu_group_down_end(queue, g));
}

static void backward(struct group_run *run)
{
    const struct hth_cu_group *g = &run->g;
    void *queue = run->s->queue;
    hth_cu_check(run->s, hth_cu_group_stage_act(queue, g));
    hth_cu_check(run->s, hth_cu_group_norm_back(queue, g));
    hth_cu_check(run->s, hth_cu_group_columns(queue, g, HTH_CU_SUM_GAMMA));
    hth_cu_check(run->s, hth_cu_group_columns(queue, g, HTH_CU_SUM_BETA));
    hth_cu_check(run->s, hth_cu_group_columns(queue, g, HTH_CU_SUM_B2));
    product(run, 0, rows_summed(run, g->hidden, g->dim));
    product(run, 1, rows_times(run, HTH_GPU_NT, g->dim, g->hidden));
    hth_cu_check(run->s, hth_cu_group_down_back_end(queue, g));
    hth_cu_check(run->s, hth_cu_group_columns(queue, g, HTH_CU_SUM_B1));
    hth_cu_check(run->s, hth_cu_group_stage_x(queue, g));
    product(run, 2, rows_summed(run, g->dim, g->hidden));
    product(run, 3, rows_times(run, HTH_GPU_NT, g->hidden, g->dim));
    hth_cu_check(run->s, hth_cu_group_dx_end(queue, g));
    for (uint32_t i = 0; i < g->count; i++) {
        const struct hth_ffn *f = run->member[i]->ffn;
        f->w1->grad_zero = f->b1->grad_zero = f->w2->grad_zero = f->b2->grad_zero = false;
        f->gamma->grad_zero = f->beta->grad_zero = false;
    }
}

/* Computes some of the first blocks; returns their number. 0: the caller computes the first
 * alone. */
static uint32_t run_some(struct group_run *run, const struct hth_ffn_member *const *member,
                         uint32_t count)
{
    const struct hth_ffn *f = member[0]->ffn;
    run->member = member;
    count = count > 1 ? hold_some(run, count) : 0;
    if (count < 2)
        return 0;
    run->g = (struct hth_cu_group){.count = count,
                                   .rows = padded(member[count - 1]->x.rows),
                                   .dim = f->dim,
                                   .hidden = f->hidden,
                                   .ld_dim = padded(f->dim),
                                   .ld_hidden = padded(f->hidden),
                                   .bf16 = run->type == HTH_GPU_BF16,
                                   .accumulate = !f->w1->grad_zero,
                                   .eps = f->eps};
    if (lay_out(run) != HTH_OK) {
        run->most = count / 2;
        return 0;
    }
    if (run->backward)
        backward(run);
    else
        forward(run);
    return count;
}

enum hth_err hth_cu_ffn_many(struct hth_exec *ex, const struct hth_ffn_member *members,
                             uint32_t count, bool is_backward, hth_exec_fn *alone, void *arg)
{
    const struct hth_ffn_member **sorted = malloc(count * sizeof(const struct hth_ffn_member *));
    struct group_run *run = calloc(1, sizeof(*run));
    if (sorted == NULL || run == NULL) {
        free(sorted);
        free(run);
        return HTH_E_NO_MEMORY;
    }
    run->ex = ex;
    run->s = hth_cu_enter(ex);
    run->type = hth_cu_type_of(ex);
    run->backward = is_backward;
    run->most = HTH_CU_GROUP;
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = &members[i];
    qsort(sorted, count, sizeof(sorted[0]), by_rows);
    for (uint32_t i = 0, n; i < count; i += n) {
        for (n = 0; i + n < count && fits(run, sorted[i], sorted[i + n], n); n++)
            continue;
        n = run_some(run, sorted + i, n);
        if (n == 0)
            (void)alone(ex, arg, sorted[i + n++]->index);
    }
    free(sorted);
    free(run);
    return HTH_OK;
}
