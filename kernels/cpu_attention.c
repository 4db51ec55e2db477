/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_attention.c: causal attention of one head of one sequence at a time, in blocks of queries.
 *
 * Queries q0 .. q1 use only keys 0 .. q1, so each block multiplies by a growing slice of K
 * and V and the upper triangle is never computed but for the last tile:
 *
 *         keys 0 ......... q1
 *   q0  [ x x x x x x .     ]      S = Q K^T / sqrt(dh), row t keeps keys 0 .. t
 *    .  [ x x x x x x x .   ]      P = exp(S - lse)
 *   q1  [ x x x x x x x x . ]      O = P V
 *
 * Backward recomputes P from the saved log-sum-exp. With D = rowsum(dO * O):
 *   dV += P^T dO,  dS = P * (dO V^T - D) / sqrt(dh),  dQ = dS K,  dK += dS^T Q,
 * and the rotation is undone on dQ and dK.
 *
 * The context's team shares the heads: each head writes columns of its own, so no bit
 * depends on the thread that computes it.
 */
#include "kernels/cpu_int.h"

#include <math.h>
#include <string.h>

#include "core/team.h"
#include "kernels/math64.h"

#define QUERY_BLOCK 64

/* One head of one sequence, gathered densely: [seq, dh] each. */
struct head {
    uint32_t seq, dh;
    float scale;
    float *q, *k, *v;    /* rotated where there is a rope */
    float *out, *dout;   /* backward only */
    float *dq, *dk, *dv; /* backward only */
    float *p, *dp;       /* [QUERY_BLOCK, seq]; dp backward only */
};

size_t hth_cpu_attention_scratch(const struct hth_backend *be, uint32_t seq, uint32_t head_dim)
{
    const struct hth_cpu *cpu = be->impl;
    size_t dense = hth_exec_cost((size_t)seq * head_dim * sizeof(float));
    size_t block = hth_exec_cost((size_t)QUERY_BLOCK * seq * sizeof(float));
    size_t gemm = HTH_MAX(cpu->gemm_scratch(seq, head_dim), cpu->gemm_scratch(head_dim, seq));
    return 8 * dense + 2 * block + HTH_MAX(gemm, cpu->gemm_scratch_max);
}

static enum hth_err head_take(struct hth_exec *ex, struct head *h, bool backward)
{
    float **dense[] = {&h->q, &h->k, &h->v, &h->out, &h->dout, &h->dq, &h->dk, &h->dv};
    size_t bytes = (size_t)h->seq * h->dh * sizeof(float);
    for (size_t i = 0; i < (backward ? 8 : 3); i++) {
        *dense[i] = hth_exec_take(ex, bytes);
        if (*dense[i] == NULL)
            return HTH_E_NO_MEMORY;
    }
    bytes = (size_t)QUERY_BLOCK * h->seq * sizeof(float);
    h->p = hth_exec_take(ex, bytes);
    h->dp = backward ? hth_exec_take(ex, bytes) : h->p;
    return h->p == NULL || h->dp == NULL ? HTH_E_NO_MEMORY : HTH_OK;
}

/* Copies columns first .. first + dh of the sequence's rows, rotated where there is a rope. */
static void head_gather(const struct hth_exec *ex, const struct hth_rope *rope,
                        const struct head *h, const float *src, size_t ld, float *dst)
{
    for (uint32_t t = 0; t < h->seq; t++) {
        const float *x = src + t * ld;
        float *y = dst + (size_t)t * h->dh;
        if (rope == NULL) {
            memcpy(y, x, h->dh * sizeof(float));
            continue;
        }
        size_t at = (size_t)t * rope->half;
        hth_cpu_of(ex)->row->rotate(rope->half, x, rope->cosines + at, rope->sines + at, 1.0f, y);
    }
}

static void head_scatter(const struct hth_exec *ex, const struct hth_rope *rope,
                         const struct head *h, const float *src, float *dst, size_t ld)
{
    for (uint32_t t = 0; t < h->seq; t++) {
        const float *x = src + (size_t)t * h->dh;
        float *y = dst + t * ld;
        if (rope == NULL) {
            memcpy(y, x, h->dh * sizeof(float));
            continue;
        }
        size_t at = (size_t)t * rope->half;
        hth_cpu_of(ex)->row->rotate(rope->half, x, rope->cosines + at, rope->sines + at, -1.0f, y);
    }
}

/* p = Q[q0 .. q1) K[0 .. q1)^T, unscaled. */
static enum hth_err head_scores(struct hth_exec *ex, const struct head *h, uint32_t q0, uint32_t q1)
{
    struct hth_gemm g = {.form = HTH_GEMM_NT,
                         .m = q1 - q0,
                         .n = q1,
                         .k = h->dh,
                         .a = h->q + (size_t)q0 * h->dh,
                         .lda = h->dh,
                         .b = h->k,
                         .ldb = h->dh,
                         .c = h->p,
                         .ldc = h->seq};
    return hth_cpu_of(ex)->gemm(ex, &g);
}

static enum hth_err head_forward(struct hth_exec *ex, const struct head *h, float *out, size_t ldo,
                                 float *lse, size_t ld_lse)
{
    const struct hth_cpu *cpu = hth_cpu_of(ex);
    for (uint32_t q0 = 0; q0 < h->seq; q0 += QUERY_BLOCK) {
        uint32_t q1 = HTH_MIN(h->seq, q0 + QUERY_BLOCK);
        HTH_TRY(head_scores(ex, h, q0, q1));
        for (uint32_t t = q0; t < q1; t++) {
            float *p = h->p + (size_t)(t - q0) * h->seq, top, sum;
            cpu->row->combine(t + 1, h->scale, p, 0, NULL, p);
            cpu->row->max_sumexp(t + 1, p, &top, &sum);
            float total = top + (float)hth_log64((double)sum);
            cpu->row->exp_minus(t + 1, p, total, p);
            memset(p + t + 1, 0, (q1 - t - 1) * sizeof(float));
            if (lse != NULL)
                lse[t * ld_lse] = total;
        }
        struct hth_gemm g = {.form = HTH_GEMM_NN,
                             .m = q1 - q0,
                             .n = h->dh,
                             .k = q1,
                             .a = h->p,
                             .lda = h->seq,
                             .b = h->v,
                             .ldb = h->dh,
                             .c = out + q0 * ldo,
                             .ldc = ldo};
        HTH_TRY(cpu->gemm(ex, &g));
    }
    return HTH_OK;
}

/* p = probabilities and dp = dS of the block, both with zeros above the diagonal. */
static enum hth_err block_gradient(struct hth_exec *ex, const struct head *h, uint32_t q0,
                                   uint32_t q1, const float *lse, size_t ld_lse)
{
    const struct hth_rowops *row = hth_cpu_of(ex)->row;
    HTH_TRY(head_scores(ex, h, q0, q1));
    struct hth_gemm g = {.form = HTH_GEMM_NT,
                         .m = q1 - q0,
                         .n = q1,
                         .k = h->dh,
                         .a = h->dout + (size_t)q0 * h->dh,
                         .lda = h->dh,
                         .b = h->v,
                         .ldb = h->dh,
                         .c = h->dp,
                         .ldc = h->seq};
    HTH_TRY(hth_cpu_of(ex)->gemm(ex, &g));
    for (uint32_t t = q0; t < q1; t++) {
        float *p = h->p + (size_t)(t - q0) * h->seq, *dp = h->dp + (size_t)(t - q0) * h->seq;
        size_t at = (size_t)t * h->dh, n = t + 1;
        float d = row->dot(h->dh, h->dout + at, h->out + at);
        row->combine(n, h->scale, p, 0, NULL, p);
        row->exp_minus(n, p, lse[t * ld_lse], p);
        for (size_t i = 0; i < n; i++)
            dp[i] = p[i] * (dp[i] - d) * h->scale;
        memset(p + n, 0, (q1 - n) * sizeof(float));
        memset(dp + n, 0, (q1 - n) * sizeof(float));
    }
    return HTH_OK;
}

static enum hth_err head_backward(struct hth_exec *ex, const struct head *h, const float *lse,
                                  size_t ld_lse)
{
    const struct hth_cpu *cpu = hth_cpu_of(ex);
    size_t dh = h->dh;
    memset(h->dk, 0, h->seq * dh * sizeof(float));
    memset(h->dv, 0, h->seq * dh * sizeof(float));
    for (uint32_t q0 = 0; q0 < h->seq; q0 += QUERY_BLOCK) {
        uint32_t q1 = HTH_MIN(h->seq, q0 + QUERY_BLOCK);
        HTH_TRY(block_gradient(ex, h, q0, q1, lse, ld_lse));
        struct hth_gemm g = {.form = HTH_GEMM_TN,
                             .accumulate = true,
                             .m = q1,
                             .n = h->dh,
                             .k = q1 - q0,
                             .a = h->p,
                             .lda = h->seq,
                             .b = h->dout + q0 * dh,
                             .ldb = dh,
                             .c = h->dv,
                             .ldc = dh};
        HTH_TRY(cpu->gemm(ex, &g));
        g.a = h->dp;
        g.b = h->q + q0 * dh;
        g.c = h->dk;
        HTH_TRY(cpu->gemm(ex, &g));
        struct hth_gemm dq = {.form = HTH_GEMM_NN,
                              .m = q1 - q0,
                              .n = h->dh,
                              .k = q1,
                              .a = h->dp,
                              .lda = h->seq,
                              .b = h->k,
                              .ldb = dh,
                              .c = h->dq + q0 * dh,
                              .ldc = dh};
        HTH_TRY(cpu->gemm(ex, &dq));
    }
    return HTH_OK;
}

static void head_init(struct head *h, const struct hth_attention *att, uint32_t dim)
{
    *h = (struct head){.seq = att->seq, .dh = dim / att->heads};
    h->scale = 1.0f / sqrtf((float)h->dh);
}

/* -- heads over a team: they are independent ------------------------------------------------ */

struct heads {
    const struct hth_attention *att;
    const struct hth_attention_saved *saved; /* backward only */
    struct hth_view qkv, out, lse;
    struct hth_view dout, dqkv;
    uint32_t count, parts;
};

/* Head i: of sequence i / heads. */
static enum hth_err one_forward(struct hth_exec *ex, const struct heads *all, uint32_t i)
{
    const struct hth_rope *rope = all->att->rope;
    uint32_t row = i / all->att->heads * all->att->seq, head = i % all->att->heads;
    struct head h;
    size_t dim = all->out.cols;
    head_init(&h, all->att, all->out.cols);
    HTH_TRY(head_take(ex, &h, false));
    const float *src = hth_row(all->qkv, row) + (size_t)head * h.dh;
    head_gather(ex, rope, &h, src, all->qkv.ld, h.q);
    head_gather(ex, rope, &h, src + dim, all->qkv.ld, h.k);
    head_gather(ex, NULL, &h, src + 2 * dim, all->qkv.ld, h.v);
    float *stats = hth_row_or_null(all->lse, row);
    return head_forward(ex, &h, hth_row(all->out, row) + (size_t)head * h.dh, all->out.ld,
                        stats != NULL ? stats + head : NULL, all->lse.ld);
}

static enum hth_err one_backward(struct hth_exec *ex, const struct heads *all, uint32_t i)
{
    const struct hth_attention_saved *saved = all->saved;
    const struct hth_rope *rope = all->att->rope;
    uint32_t row = i / all->att->heads * all->att->seq, head = i % all->att->heads;
    struct head h;
    size_t dim = all->dout.cols, dq = all->dqkv.ld;
    head_init(&h, all->att, all->dout.cols);
    HTH_TRY(head_take(ex, &h, true));
    size_t col = (size_t)head * h.dh;
    const float *src = hth_row(saved->qkv, row) + col;
    float *dst = hth_row(all->dqkv, row) + col;
    head_gather(ex, rope, &h, src, saved->qkv.ld, h.q);
    head_gather(ex, rope, &h, src + dim, saved->qkv.ld, h.k);
    head_gather(ex, NULL, &h, src + 2 * dim, saved->qkv.ld, h.v);
    head_gather(ex, NULL, &h, hth_row(saved->out, row) + col, saved->out.ld, h.out);
    head_gather(ex, NULL, &h, hth_row(all->dout, row) + col, all->dout.ld, h.dout);
    HTH_TRY(head_backward(ex, &h, hth_row(saved->lse, row) + head, saved->lse.ld));
    head_scatter(ex, rope, &h, h.dq, dst, dq);
    head_scatter(ex, rope, &h, h.dk, dst + dim, dq);
    head_scatter(ex, NULL, &h, h.dv, dst + 2 * dim, dq);
    return HTH_OK;
}

static enum hth_err heads_part(struct hth_exec *ex, void *arg, uint32_t part)
{
    const struct heads *all = arg;
    uint32_t end = (uint32_t)((uint64_t)all->count * (part + 1) / all->parts);
    for (uint32_t i = (uint32_t)((uint64_t)all->count * part / all->parts); i < end; i++) {
        size_t mark = hth_exec_mark(ex);
        HTH_TRY(all->saved != NULL ? one_backward(ex, all, i) : one_forward(ex, all, i));
        hth_exec_release(ex, mark);
    }
    return HTH_OK;
}

/* A helper pays from this many multiply-adds on. */
#define PART_WORK ((uint64_t)1 << 20)

static enum hth_err heads_run(struct hth_exec *ex, struct heads *all, uint32_t rows, uint32_t dim)
{
    uint32_t seq = all->att->seq, width = hth_team_width(ex->team);
    uint64_t work = (uint64_t)rows * seq * dim * (all->saved != NULL ? 5 : 2) / 2;
    all->count = rows / seq * all->att->heads;
    all->parts =
        (uint32_t)HTH_MIN(HTH_MIN(work / PART_WORK + 1, (uint64_t)4 * width), (uint64_t)all->count);
    return hth_exec_share(ex, all->parts,
                          hth_cpu_attention_scratch(ex->be, seq, dim / all->att->heads), heads_part,
                          all);
}

enum hth_err hth_cpu_attention_forward(struct hth_exec *ex, const struct hth_attention *att,
                                       struct hth_view qkv, struct hth_view out,
                                       struct hth_view lse)
{
    struct heads all = {.att = att, .qkv = qkv, .out = out, .lse = lse};
    return heads_run(ex, &all, qkv.rows, out.cols);
}

enum hth_err hth_cpu_attention_backward(struct hth_exec *ex, const struct hth_attention *att,
                                        const struct hth_attention_saved *saved,
                                        struct hth_view dout, struct hth_view dqkv)
{
    struct heads all = {.att = att, .saved = saved, .dout = dout, .dqkv = dqkv};
    return heads_run(ex, &all, dout.rows, dout.cols);
}
