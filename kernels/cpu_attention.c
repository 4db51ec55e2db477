/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_attention.c: attention of one head of one sequence at a time, in blocks of queries.
 *
 * A block is a band of the mask (mask.h), or several that share their text keys, and each of its
 * stretches of keys is one product. Without a mask a query uses the keys up to itself, and the
 * upper triangle is never computed but for the last tile:
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
 * A sequence that grows has one query at a time, with its keys where the caller keeps them.
 *
 * The context's team shares the heads: each head writes columns of its own, so no bit
 * depends on the thread that computes it.
 */
#include "kernels/cpu_int.h"

#include <math.h>
#include <string.h>

#include "core/team.h"
#include "kernels/math64.h"

/* Queries of a block: of a band alone, whose keys may be the whole sequence, and of bands that
 * share the text's keys, which a block packs once. */
#define QUERY_BLOCK  64
#define SHARED_BLOCK 96

/* Rows of numbers, `ld` apart. */
struct rows {
    float *data;
    size_t ld;
};

static float *row_at(struct rows m, uint32_t i)
{
    return m.data + i * m.ld;
}

/* One head of one sequence: [seq, dh] each, in the order of the mask's walk. Keys, values and their
 * gradients are dense, because every block reads them; the others may lie where the caller's do. */
struct head {
    const struct hth_mask *mask;
    uint32_t seq, dh, unpadded; /* unpadded: of the text */
    float scale;
    bool walks;           /* the walk is not in the order of the sequence */
    struct rows q, k, v;  /* q, k rotated where there is a rope */
    struct rows out;      /* backward: of the caller, in the order of the sequence */
    struct rows dout, dq; /* backward only, like the rest */
    struct rows dk, dv;
    float *p, *dp; /* scores of a block */
};

/* Floats of a block's scores. */
static size_t block_floats(uint32_t seq)
{
    return (size_t)SHARED_BLOCK * hth_ld_f32(seq);
}

size_t hth_cpu_attention_scratch(const struct hth_backend *be, uint32_t seq, uint32_t head_dim)
{
    const struct hth_cpu *cpu = be->impl;
    size_t dense = hth_exec_cost((size_t)seq * head_dim * sizeof(float));
    size_t block = hth_exec_cost(block_floats(seq) * sizeof(float));
    size_t gemm = HTH_MAX(cpu->gemm_scratch(seq, head_dim), cpu->gemm_scratch(head_dim, seq));
    return 8 * dense + 2 * block + HTH_MAX(gemm, cpu->gemm_scratch_max);
}

static enum hth_err head_take(struct hth_exec *ex, struct head *h, bool backward)
{
    struct rows *dense[] = {&h->q, &h->k, &h->v, &h->out, &h->dout, &h->dq, &h->dk, &h->dv};
    size_t bytes = (size_t)h->seq * h->dh * sizeof(float);
    for (size_t i = 0; i < (backward ? 8 : 4); i++) {
        *dense[i] = (struct rows){hth_exec_take(ex, bytes), h->dh};
        if (dense[i]->data == NULL)
            return HTH_E_NO_MEMORY;
    }
    bytes = block_floats(h->seq) * sizeof(float);
    h->p = hth_exec_take(ex, bytes);
    h->dp = backward ? hth_exec_take(ex, bytes) : h->p;
    return h->p == NULL || h->dp == NULL ? HTH_E_NO_MEMORY : HTH_OK;
}

/* Copies the rows of a sequence into the order of the walk, rotated where there is a rope. */
static void head_gather(const struct hth_exec *ex, const struct hth_rope *rope,
                        const struct head *h, struct rows src, struct rows dst)
{
    for (uint32_t i = 0; i < h->seq; i++) {
        uint32_t t = hth_mask_place(h->mask, h->seq, i);
        const float *x = row_at(src, t);
        float *y = row_at(dst, i);
        if (rope == NULL) {
            memcpy(y, x, h->dh * sizeof(float));
            continue;
        }
        size_t at = (size_t)t * rope->half;
        hth_cpu_of(ex)->row->rotate(rope->half, x, rope->cosines + at, rope->sines + at, 1.0f, y);
    }
}

/* The same back. Rows that lie there already stay. */
static void head_scatter(const struct hth_exec *ex, const struct hth_rope *rope,
                         const struct head *h, struct rows src, struct rows dst)
{
    for (uint32_t i = 0; i < h->seq && src.data != dst.data; i++) {
        uint32_t t = hth_mask_place(h->mask, h->seq, i);
        const float *x = row_at(src, i);
        float *y = row_at(dst, t);
        if (rope == NULL) {
            memcpy(y, x, h->dh * sizeof(float));
            continue;
        }
        size_t at = (size_t)t * rope->half;
        hth_cpu_of(ex)->row->rotate(rope->half, x, rope->cosines + at, rope->sines + at, -1.0f, y);
    }
}

/* -- blocks -------------------------------------------------------------------------------- */

/* Some queries with a stretch of keys: their scores are columns col .. of the queries' rows. */
struct piece {
    uint32_t q, queries, k, keys, col;
};

/* Queries q0 .. q1: bands with the same text keys, of which one piece serves all. */
struct block {
    uint32_t q0, q1, bands, pieces;
    size_t ld; /* of rows of scores */
    struct hth_band band[SHARED_BLOCK];
    struct piece piece[SHARED_BLOCK + 1];
};

static void block_at(const struct head *h, uint32_t q0, struct block *b)
{
    uint32_t columns = 0;
    uint32_t most = hth_mask_band(h->mask, h->seq, q0, 1).text > 0 ? SHARED_BLOCK : QUERY_BLOCK;
    b->q0 = b->q1 = q0;
    b->bands = 0;
    while (b->q1 < h->seq && b->q1 - q0 < most) {
        struct hth_band band = hth_mask_band(h->mask, h->seq, b->q1, most - (b->q1 - q0));
        if (b->bands > 0 && (band.text == 0 || band.text != b->band[0].text))
            break;
        columns = HTH_MAX(columns, band.text + band.to - band.from);
        b->q1 = band.end;
        b->band[b->bands++] = band;
    }
    b->ld = hth_ld_f32(columns);
    b->pieces = 0;
    if (b->band[0].text > 0)
        b->piece[b->pieces++] = (struct piece){q0, b->q1 - q0, 0, b->band[0].text, 0};
    for (const struct hth_band *n = b->band; n < b->band + b->bands; n++)
        b->piece[b->pieces++] =
            (struct piece){n->first, n->end - n->first, n->from, n->to - n->from, n->text};
}

/* The row of scores of query q. */
static float *score_row(const struct block *b, float *p, uint32_t q)
{
    return p + (q - b->q0) * b->ld;
}

/* p = x[queries] y[keys]^T: scores of all pieces. */
static enum hth_err block_scores(struct hth_exec *ex, const struct head *h, const struct block *b,
                                 struct rows x, struct rows y, float *p)
{
    for (uint32_t i = 0; i < b->pieces; i++) {
        const struct piece *n = &b->piece[i];
        struct hth_gemm g = {.form = HTH_GEMM_NT,
                             .m = n->queries,
                             .n = n->keys,
                             .k = h->dh,
                             .a = row_at(x, n->q),
                             .lda = x.ld,
                             .b = row_at(y, n->k),
                             .ldb = y.ld,
                             .c = score_row(b, p, n->q) + n->col,
                             .ldc = b->ld};
        HTH_TRY(hth_cpu_of(ex)->gemm(ex, &g));
    }
    return HTH_OK;
}

/* y[queries] = p x[keys]. */
static enum hth_err block_mix(struct hth_exec *ex, const struct head *h, const struct block *b,
                              float *p, struct rows x, struct rows y)
{
    for (uint32_t i = 0; i < b->pieces; i++) {
        const struct piece *n = &b->piece[i];
        struct hth_gemm g = {.form = HTH_GEMM_NN,
                             .accumulate = n->col > 0, /* to the text's part */
                             .m = n->queries,
                             .n = h->dh,
                             .k = n->keys,
                             .a = score_row(b, p, n->q) + n->col,
                             .lda = b->ld,
                             .b = row_at(x, n->k),
                             .ldb = x.ld,
                             .c = row_at(y, n->q),
                             .ldc = y.ld};
        HTH_TRY(hth_cpu_of(ex)->gemm(ex, &g));
    }
    return HTH_OK;
}

/* y[keys] += p^T x[queries]. */
static enum hth_err block_collect(struct hth_exec *ex, const struct head *h, const struct block *b,
                                  float *p, struct rows x, struct rows y)
{
    for (uint32_t i = 0; i < b->pieces; i++) {
        const struct piece *n = &b->piece[i];
        struct hth_gemm g = {.form = HTH_GEMM_TN,
                             .accumulate = true,
                             .m = n->keys,
                             .n = h->dh,
                             .k = n->queries,
                             .a = score_row(b, p, n->q) + n->col,
                             .lda = b->ld,
                             .b = row_at(x, n->q),
                             .ldb = x.ld,
                             .c = row_at(y, n->k),
                             .ldc = y.ld};
        HTH_TRY(hth_cpu_of(ex)->gemm(ex, &g));
    }
    return HTH_OK;
}

/* Scales the scores of query q and hides what it does not see; returns the number up to the last
 * that it sees. */
static uint32_t mask_scores(const struct hth_exec *ex, const struct head *h,
                            const struct hth_band *band, uint32_t q, float *p)
{
    uint32_t n = hth_mask_row(h->mask, band, q, h->unpadded, p);
    hth_cpu_of(ex)->row->combine(n, h->scale, p, 0, NULL, p);
    return n;
}

/* -- forward and backward of a head -------------------------------------------------------- */

static void band_softmax(const struct hth_exec *ex, const struct head *h, const struct block *b,
                         const struct hth_band *band, float *lse, size_t ld_lse)
{
    const struct hth_rowops *row = hth_cpu_of(ex)->row;
    uint32_t columns = band->text + band->to - band->from;
    for (uint32_t q = band->first; q < band->end; q++) {
        float *p = score_row(b, h->p, q), top, sum;
        uint32_t n = mask_scores(ex, h, band, q, p);
        row->max_sumexp(n, p, &top, &sum);
        float total = top + (float)hth_log64((double)sum);
        row->exp_minus(n, p, total, p);
        memset(p + n, 0, (columns - n) * sizeof(float));
        if (lse != NULL)
            lse[hth_mask_place(h->mask, h->seq, q) * ld_lse] = total;
    }
}

static enum hth_err head_forward(struct hth_exec *ex, const struct head *h, float *lse,
                                 size_t ld_lse)
{
    struct block b;
    for (uint32_t q0 = 0; q0 < h->seq; q0 = b.q1) {
        block_at(h, q0, &b);
        HTH_TRY(block_scores(ex, h, &b, h->q, h->k, h->p));
        for (uint32_t i = 0; i < b.bands; i++)
            band_softmax(ex, h, &b, &b.band[i], lse, ld_lse);
        HTH_TRY(block_mix(ex, h, &b, h->p, h->v, h->out));
    }
    return HTH_OK;
}

/* p = probabilities and dp = dS of the band, both with zeros where a query sees nothing. */
static void band_gradient(const struct hth_exec *ex, const struct head *h, const struct block *b,
                          const struct hth_band *band, const float *lse, size_t ld_lse)
{
    const struct hth_rowops *row = hth_cpu_of(ex)->row;
    uint32_t columns = band->text + band->to - band->from;
    for (uint32_t q = band->first; q < band->end; q++) {
        float *p = score_row(b, h->p, q), *dp = score_row(b, h->dp, q);
        uint32_t n = mask_scores(ex, h, band, q, p), at = hth_mask_place(h->mask, h->seq, q);
        float d = row->dot(h->dh, row_at(h->dout, q), row_at(h->out, at));
        row->exp_minus(n, p, lse[at * ld_lse], p);
        for (uint32_t i = 0; i < n; i++)
            dp[i] = p[i] * (dp[i] - d) * h->scale;
        memset(p + n, 0, (columns - n) * sizeof(float));
        memset(dp + n, 0, (columns - n) * sizeof(float));
    }
}

static enum hth_err head_backward(struct hth_exec *ex, const struct head *h, const float *lse,
                                  size_t ld_lse)
{
    struct block b;
    memset(h->dk.data, 0, (size_t)h->seq * h->dh * sizeof(float));
    memset(h->dv.data, 0, (size_t)h->seq * h->dh * sizeof(float));
    for (uint32_t q0 = 0; q0 < h->seq; q0 = b.q1) {
        block_at(h, q0, &b);
        HTH_TRY(block_scores(ex, h, &b, h->q, h->k, h->p));
        HTH_TRY(block_scores(ex, h, &b, h->dout, h->v, h->dp));
        for (uint32_t i = 0; i < b.bands; i++)
            band_gradient(ex, h, &b, &b.band[i], lse, ld_lse);
        HTH_TRY(block_collect(ex, h, &b, h->p, h->dout, h->dv));
        HTH_TRY(block_collect(ex, h, &b, h->dp, h->q, h->dk));
        HTH_TRY(block_mix(ex, h, &b, h->dp, h->k, h->dq));
    }
    return HTH_OK;
}

/* -- heads over a team: they are independent ------------------------------------------------ */

struct heads {
    const struct hth_attention *att;
    struct hth_mask mask;
    const struct hth_attention_saved *saved; /* backward only */
    struct hth_view qkv, out, lse;
    struct hth_view dout, dqkv;
    uint32_t count, parts;
};

/* Head i, of sequence i / heads. */
static void head_init(struct head *h, const struct heads *all, uint32_t i, uint32_t dim)
{
    const struct hth_attention *att = all->att;
    *h = (struct head){.mask = &all->mask, .seq = att->seq, .dh = dim / att->heads};
    h->scale = 1.0f / sqrtf((float)h->dh);
    h->walks = all->mask.kind == HTH_MASK_COLUMN;
    h->unpadded = all->mask.text;
    if (att->unpadded.data != NULL)
        h->unpadded =
            (uint32_t)((const int32_t *)att->unpadded.data)[i / att->heads * att->unpadded.ld];
}

/* Columns from `col` on of the view's rows from `row` on. */
static struct rows rows_of(struct hth_view v, uint32_t row, size_t col)
{
    return (struct rows){hth_row(v, row) + col, v.ld};
}

static void gather_qkv(const struct hth_exec *ex, const struct hth_rope *rope, struct head *h,
                       struct rows qkv, size_t dim)
{
    const struct rows keys = {qkv.data + dim, qkv.ld}, values = {qkv.data + 2 * dim, qkv.ld};
    if (rope == NULL && !h->walks)
        h->q = qkv;
    else
        head_gather(ex, rope, h, qkv, h->q);
    head_gather(ex, rope, h, keys, h->k);
    head_gather(ex, NULL, h, values, h->v);
}

static enum hth_err one_forward(struct hth_exec *ex, const struct heads *all, uint32_t i)
{
    uint32_t row = i / all->att->heads * all->att->seq, head = i % all->att->heads;
    struct head h;
    head_init(&h, all, i, all->out.cols);
    HTH_TRY(head_take(ex, &h, false));
    size_t col = (size_t)head * h.dh;
    const struct rows out = rows_of(all->out, row, col);
    gather_qkv(ex, all->att->rope, &h, rows_of(all->qkv, row, col), all->out.cols);
    if (!h.walks)
        h.out = out;
    float *stats = hth_row_or_null(all->lse, row);
    HTH_TRY(head_forward(ex, &h, stats != NULL ? stats + head : NULL, all->lse.ld));
    head_scatter(ex, NULL, &h, h.out, out);
    return HTH_OK;
}

static enum hth_err one_backward(struct hth_exec *ex, const struct heads *all, uint32_t i)
{
    const struct hth_attention_saved *saved = all->saved;
    const struct hth_rope *rope = all->att->rope;
    uint32_t row = i / all->att->heads * all->att->seq, head = i % all->att->heads;
    struct head h;
    size_t dim = all->dout.cols;
    head_init(&h, all, i, all->dout.cols);
    HTH_TRY(head_take(ex, &h, true));
    size_t col = (size_t)head * h.dh;
    const struct rows dq = rows_of(all->dqkv, row, col), dk = rows_of(all->dqkv, row, col + dim),
                      dv = rows_of(all->dqkv, row, col + 2 * dim);
    gather_qkv(ex, rope, &h, rows_of(saved->qkv, row, col), dim);
    h.out = rows_of(saved->out, row, col);
    if (h.walks)
        head_gather(ex, NULL, &h, rows_of(all->dout, row, col), h.dout);
    else
        h.dout = rows_of(all->dout, row, col);
    if (rope == NULL && !h.walks)
        h.dq = dq;
    HTH_TRY(head_backward(ex, &h, hth_row(saved->lse, row) + head, saved->lse.ld));
    head_scatter(ex, rope, &h, h.dq, dq);
    head_scatter(ex, rope, &h, h.dk, dk);
    head_scatter(ex, NULL, &h, h.dv, dv);
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
    all->mask = all->att->mask != NULL ? *all->att->mask : (struct hth_mask){.text = seq};
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

/* -- sequences that grow: one query at a time ---------------------------------------------- */

/* Keys of a query that lie evenly apart, and the place of their first score. */
struct stretch {
    uint32_t start, stride, count, col;
};

struct growing {
    const struct hth_attention *att;
    const struct hth_attention_kept *kept;
    struct hth_mask mask;
    struct hth_view qkv, out;
    uint32_t count, parts;
};

/* p = q K^T, or y = p V, over one stretch of kept rows; `kept` begins at the head's own columns. */
static enum hth_err one_product(struct hth_exec *ex, const struct head *h, struct rows kept,
                                const struct stretch *s, bool mix)
{
    float *p = h->p + s->col, *b = row_at(kept, s->start);
    size_t ldb = s->stride * kept.ld;
    struct hth_gemm g = {.form = mix ? HTH_GEMM_NN : HTH_GEMM_NT,
                         .accumulate = mix && s->col > 0, /* to the text's part */
                         .m = 1,
                         .n = mix ? h->dh : s->count,
                         .k = mix ? s->count : h->dh,
                         .a = mix ? p : h->q.data,
                         .lda = mix ? s->count : h->dh,
                         .b = b,
                         .ldb = ldb,
                         .c = mix ? h->out.data : p,
                         .ldc = mix ? h->dh : s->count};
    return s->count == 0 ? HTH_OK : hth_cpu_of(ex)->gemm(ex, &g);
}

/* The query at position t, rotated, is h->q; its output goes to h->out. */
static enum hth_err one_query(struct hth_exec *ex, const struct head *h, struct rows keys,
                              struct rows values, uint32_t t)
{
    struct stretch s[2] = {{0}, {0}};
    struct hth_band band = hth_mask_last(h->mask, t, &s[1].start, &s[1].stride);
    struct block b = {.q0 = band.first, .ld = 0};
    s[0] = (struct stretch){0, 1, band.text, 0};
    s[1].count = band.to - band.from;
    s[1].col = band.text;
    for (int i = 0; i < 2; i++)
        HTH_TRY(one_product(ex, h, keys, &s[i], false));
    band_softmax(ex, h, &b, &band, NULL, 0);
    for (int i = 0; i < 2; i++)
        HTH_TRY(one_product(ex, h, values, &s[i], true));
    return HTH_OK;
}

static void rotate_or_copy(const struct hth_exec *ex, const struct growing *all, uint32_t t,
                           uint32_t dh, const float *x, float *y)
{
    const struct hth_rope *rope = all->att->rope;
    if (rope == NULL) {
        memcpy(y, x, dh * sizeof(float));
        return;
    }
    size_t at = (size_t)t * rope->half;
    hth_cpu_of(ex)->row->rotate(rope->half, x, rope->cosines + at, rope->sines + at, 1.0f, y);
}

static enum hth_err grow_one(struct hth_exec *ex, const struct growing *all, uint32_t i)
{
    const struct hth_attention *att = all->att;
    uint32_t s = i / att->heads, dim = all->out.cols, dh = dim / att->heads;
    size_t col = (size_t)(i % att->heads) * dh;
    struct head h = {.mask = &all->mask, .dh = dh, .scale = 1.0f / sqrtf((float)dh)};
    const struct hth_view *kept = &all->kept->kept;
    struct rows keys = {hth_row(*kept, (size_t)s * all->kept->positions) + col, kept->ld};
    struct rows values = {keys.data + dim, keys.ld};
    h.unpadded = all->mask.text;
    if (att->unpadded.data != NULL)
        h.unpadded = (uint32_t)((const int32_t *)att->unpadded.data)[(size_t)s * att->unpadded.ld];
    h.q = (struct rows){hth_exec_take(ex, dh * sizeof(float)), 0};
    h.p = hth_exec_take(ex, (size_t)all->kept->positions * sizeof(float));
    if (h.q.data == NULL || h.p == NULL)
        return HTH_E_NO_MEMORY;
    for (uint32_t j = 0; j < att->seq; j++) {
        uint32_t t = all->kept->at + j;
        const float *row = hth_row(all->qkv, (size_t)s * att->seq + j) + col;
        rotate_or_copy(ex, all, t, dh, row, h.q.data);
        rotate_or_copy(ex, all, t, dh, row + dim, row_at(keys, t));
        memcpy(row_at(values, t), row + 2 * (size_t)dim, dh * sizeof(float));
        h.out = (struct rows){hth_row(all->out, (size_t)s * att->seq + j) + col, 0};
        HTH_TRY(one_query(ex, &h, keys, values, t));
    }
    return HTH_OK;
}

static enum hth_err grow_part(struct hth_exec *ex, void *arg, uint32_t part)
{
    const struct growing *all = arg;
    uint32_t end = (uint32_t)((uint64_t)all->count * (part + 1) / all->parts);
    for (uint32_t i = (uint32_t)((uint64_t)all->count * part / all->parts); i < end; i++) {
        size_t mark = hth_exec_mark(ex);
        HTH_TRY(grow_one(ex, all, i));
        hth_exec_release(ex, mark);
    }
    return HTH_OK;
}

enum hth_err hth_cpu_attention_grow(struct hth_exec *ex, const struct hth_attention *att,
                                    const struct hth_attention_kept *kept, struct hth_view qkv,
                                    struct hth_view out)
{
    struct growing all = {.att = att, .kept = kept, .qkv = qkv, .out = out};
    uint64_t work = (uint64_t)qkv.rows * (kept->at + att->seq) * out.cols * 2;
    all.mask = att->mask != NULL ? *att->mask : (struct hth_mask){.text = kept->positions};
    all.count = qkv.rows / att->seq * att->heads;
    all.parts = (uint32_t)HTH_MIN(
        HTH_MIN(work / PART_WORK + 1, (uint64_t)4 * hth_team_width(ex->team)), (uint64_t)all.count);
    return hth_exec_share(ex, all.parts,
                          hth_cpu_attention_scratch(ex->be, kept->positions, out.cols / att->heads),
                          grow_part, &all);
}
