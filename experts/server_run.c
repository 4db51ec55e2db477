/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_run.c: the part of the server that runs on a compute worker: gather, check, kernels,
 * scatter.
 *
 * It reads the fixed fields of requests and writes only into the job, the replies' bytes and, under
 * the rule of store.h, the expert. A segment whose rows are refused gets zeros and its verdict. The
 * other segments of its batch are computed without it and, by the bit rule of the kernels, get the
 * same bits.
 */
#include "experts/server_int.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/ops.h"

/* The factor of rows that do not count. */
#define UNCOUNTED 0x1p-40

/* The rows of a batch: in the request and the reply themselves, or gathered in scratch. */
struct rows {
    float *x, *dy, *out;
    uint32_t count;     /* rows that go through the kernels */
    uint32_t padding;   /* the last of them are zeros that belong to no request */
    uint32_t uncounted; /* others that weigh nothing in the expert's gradient */
    void *block;        /* a card's gathered rows, which are not in its scratch; or NULL */
    size_t block_bytes;
};

/* True if the kernels read this process's memory. */
static bool is_here(const struct srv_batch *b)
{
    return (hth_backend_caps(b->expert->backend) & HTH_CAP_HOST_MEMORY) != 0;
}

static const uint8_t *seg_bytes(const struct srv_segment *seg, const struct hth_blob *blob,
                                size_t offset)
{
    const struct srv_request *r = seg->part->request;

    return blob->data + offset + seg->row0 * hth_rows_bytes(r->dtype, r->d);
}

static uint8_t *seg_out(const struct srv_segment *seg)
{
    const struct srv_request *r = seg->part->request;

    return r->out->data + seg->row0 * hth_rows_bytes(r->dtype, r->d);
}

static void zero_out(const struct srv_segment *seg)
{
    const struct srv_request *r = seg->part->request;

    memset(seg_out(seg), 0, seg->rows * hth_rows_bytes(r->dtype, r->d));
}

/* Checks that the numbers are finite and so small that no sum of squares or products in the kernels
 * overflows. One peer's 1e30 would make the expert's gradient infinite and cost all other peers the
 * step. */
static enum hth_err judge_numbers(const float *rows, size_t count)
{
    if (hth_rows_below(rows, count, HTH_EXPERT_NUMBER_MAX))
        return HTH_OK; /* one pass over rows without fault */
    return hth_rows_finite(rows, count) ? HTH_E_RANGE : HTH_E_NOT_FINITE;
}

/* Checks the norm of M dy, which is what a row adds to the step (store.h): M is the sender's claim.
 * Each row is checked alone, or a part of many rows could hide a bad one. */
static enum hth_err judge_norms(double norm_max, const struct srv_segment *seg, const float *dy)
{
    const struct srv_request *r = seg->part->request;

    for (uint32_t i = 0; i < seg->rows; i++)
        if (!(r->rows_in_microbatch * sqrt(hth_rows_sumsq(dy + (size_t)i * r->d, r->d)) <=
              norm_max))
            return HTH_E_NORM;
    return HTH_OK;
}

/* Decides how far a backward's dy is scaled down, so that its sender is no more of the expert's
 * gradient than senders.h allows. Rows that do not count still need a dx: their factor is as good
 * as 0, and can be divided by. */
static void weigh(struct srv_segment *seg, const float *dy)
{
    const struct srv_request *r = seg->part->request;
    double sumsq = hth_rows_sumsq(dy, (size_t)seg->rows * r->d), rows = HTH_MAX(seg->rows, 1u);
    bool outlies;

    seg->norm = r->rows_in_microbatch * sqrt(sumsq / rows);
    outlies = seg->norm_max > 0 && seg->norm > HTH_SENDERS_OUTLYING * seg->norm_max;
    seg->counted = outlies ? 0 : seg->taken;
    seg->scale = (float)HTH_MAX(seg->counted / rows, UNCOUNTED);
    if (seg->norm_max > 0 && seg->norm > seg->norm_max)
        seg->scale *= (float)(seg->norm_max / seg->norm);
}

static void scale_rows(float *v, size_t count, float factor)
{
    for (size_t i = 0; factor != 1 && i < count; i++)
        v[i] *= factor;
}

/* dy is NULL in a forward. */
static enum hth_err judge(const struct hth_server_opts *opts, const struct srv_segment *seg,
                          const float *x, const float *dy)
{
    size_t count = (size_t)seg->rows * seg->part->request->d;

    if (opts->check_finite)
        HTH_TRY(judge_numbers(x, count));
    if (dy == NULL)
        return HTH_OK;
    if (opts->check_finite)
        HTH_TRY(judge_numbers(dy, count));
    return opts->grad_norm_max > 0 ? judge_norms(opts->grad_norm_max, seg, dy) : HTH_OK;
}

/* One fp32 segment needs no copies. */
static void rows_direct(const struct srv_job *job, struct srv_segment *seg, bool backward,
                        struct rows *rows)
{
    const struct srv_request *r = seg->part->request;

    rows->x = (float *)(uintptr_t)seg_bytes(seg, r->x, r->x_offset);
    rows->dy = backward ? (float *)(uintptr_t)seg_bytes(seg, r->dy, r->dy_offset) : NULL;
    rows->out = (float *)(uintptr_t)seg_out(seg);
    seg->status = judge(&job->server->opts, seg, rows->x, rows->dy);
    rows->count = seg->status == HTH_OK ? seg->rows : 0;
    if (rows->count == 0)
        zero_out(seg);
}

/* Room to gather rows: the context's scratch, or this process's memory where the scratch is a
 * card's. */
static enum hth_err rows_room(struct hth_exec *ex, const struct srv_batch *b, struct rows *rows)
{
    size_t bytes = hth_exec_cost((size_t)b->rows * b->expert->d * sizeof(float));
    size_t all = (b->kind == SRV_BACKWARD ? 3 : 2) * bytes;
    uint8_t *room;

    if (!is_here(b)) {
        rows->block = hth_try_block(all);
        rows->block_bytes = all;
    }
    room = is_here(b) ? hth_exec_take(ex, all) : rows->block;
    if (room == NULL)
        return HTH_E_NO_MEMORY;
    rows->x = (float *)(void *)room;
    rows->out = (float *)(void *)(room + bytes);
    rows->dy = b->kind == SRV_BACKWARD ? (float *)(void *)(room + 2 * bytes) : NULL;
    return HTH_OK;
}

static enum hth_err rows_gather(struct srv_job *job, struct hth_exec *ex, const struct srv_batch *b,
                                struct rows *rows)
{
    size_t d = b->expert->d;
    bool backward = b->kind == SRV_BACKWARD;

    rows->count = 0;
    HTH_TRY(rows_room(ex, b, rows));
    for (uint32_t i = 0; i < b->segs; i++) {
        struct srv_segment *seg = &job->segs[b->seg0 + i];
        const struct srv_request *r = seg->part->request;
        size_t at = rows->count * d;
        float *x = rows->x + at, *dy = backward ? rows->dy + at : NULL;
        hth_rows_to_f32(seg_bytes(seg, r->x, r->x_offset), r->dtype, seg->rows, d, x);
        if (backward)
            hth_rows_to_f32(seg_bytes(seg, r->dy, r->dy_offset), r->dtype, seg->rows, d, dy);
        seg->status = judge(&job->server->opts, seg, x, dy);
        if (seg->status != HTH_OK) {
            zero_out(seg);
            continue;
        }
        rows->count += seg->rows;
        if (backward) {
            weigh(seg, dy);
            scale_rows(dy, seg->rows * d, seg->scale);
            rows->uncounted += seg->rows - seg->counted;
        }
    }
    return HTH_OK;
}

static void rows_scatter(struct srv_job *job, const struct srv_batch *b, const struct rows *rows)
{
    size_t d = b->expert->d;
    float *from = rows->out;

    for (uint32_t i = 0; i < b->segs; i++) {
        struct srv_segment *seg = &job->segs[b->seg0 + i];
        if (seg->status != HTH_OK)
            continue;
        if (b->kind == SRV_BACKWARD) /* dx is linear in dy: the sender gets that of what it sent */
            scale_rows(from, seg->rows * d, 1 / seg->scale);
        hth_rows_from_f32(from, seg->part->request->dtype, seg->rows, d, seg_out(seg));
        from += seg->rows * d;
    }
}

/* One segment of floats is computed where it lies, unless its dy is to be scaled. */
static bool is_direct(struct srv_job *job, const struct srv_batch *b)
{
    struct srv_segment *seg = &job->segs[b->seg0];
    const struct srv_request *r = seg->part->request;

    /* Kernels need rows aligned as floats, which any row of an aligned tensor is. */
    if (b->segs != 1 || r->dtype != HTH_F32 || r->x_offset % sizeof(float) != 0 ||
        r->dy_offset % sizeof(float) != 0 || r->d == 0)
        return false;
    if (b->kind == SRV_BACKWARD)
        weigh(seg, (const float *)(const void *)seg_bytes(seg, r->dy, r->dy_offset));
    return b->kind == SRV_FORWARD || seg->scale == 1;
}

static uint32_t padded(const struct srv_batch *b, uint32_t rows)
{
    return hth_backend_padded(b->expert->backend, rows,
                              hth_expert_shape_of(b->expert->expert)->block_rows);
}

/* Copies the rows to `to`, and zeros behind them. */
static enum hth_err put_rows(struct hth_exec *ex, const struct rows *there, uint32_t d,
                             const float *from, float *to)
{
    size_t floats = (size_t)(there->count - there->padding) * d;

    HTH_TRY(hth_exec_upload(ex, to, from, floats * sizeof(float)));
    return hth_fill(ex, hth_view_f32(to + floats, there->padding, d, d), 0);
}

/* Copies the rows into a card's memory: `total` rows with the padding. Only a backward has dy. */
static enum hth_err rows_upload(struct hth_exec *ex, const struct srv_batch *b,
                                const struct rows *here, uint32_t total, struct rows *there)
{
    uint32_t d = b->expert->d;
    size_t bytes = (size_t)total * d * sizeof(float);

    there->count = total;
    there->padding = total - here->count;
    there->uncounted = here->uncounted;
    there->x = hth_exec_take(ex, bytes);
    there->out = hth_exec_take(ex, bytes);
    there->dy = here->dy != NULL ? hth_exec_take(ex, bytes) : NULL;
    if (there->x == NULL || there->out == NULL || (here->dy != NULL && there->dy == NULL))
        return HTH_E_NO_MEMORY;
    HTH_TRY(put_rows(ex, there, d, here->x, there->x));
    return here->dy != NULL ? put_rows(ex, there, d, here->dy, there->dy) : HTH_OK;
}

static enum hth_err compute_here(struct hth_exec *ex, const struct srv_batch *b,
                                 const struct rows *rows)
{
    uint32_t d = b->expert->d;
    struct hth_view x = hth_view_f32(rows->x, rows->count, d, d);
    struct hth_view dy = hth_view_f32(rows->dy, rows->count, d, d);
    struct hth_view out = hth_view_f32(rows->out, rows->count, d, d);
    struct hth_expert *expert = b->expert->expert;

    const struct hth_expert_pass call = {.expert = expert,
                                         .rows_in_microbatch = b->rows_in_microbatch,
                                         .padding = rows->padding,
                                         .uncounted = rows->uncounted,
                                         .x = x,
                                         .dy = dy,
                                         .out = out};

    if (b->kind == SRV_FORWARD)
        return hth_expert_forward(expert, ex, x, out);
    return hth_expert_backward_pass(ex, &call);
}

/* Uploads rows to a card, runs its kernels and downloads the result. All are in the order of one
 * stream, so one wait suffices. */
static enum hth_err compute(struct hth_exec *ex, const struct srv_batch *b, const struct rows *rows)
{
    size_t bytes = (size_t)rows->count * b->expert->d * sizeof(float);
    struct rows there = {0};
    enum hth_err err, synced;

    if (rows->count == 0)
        return HTH_OK;
    if (is_here(b)) {
        HTH_GOTO(out, compute_here(ex, b, rows));
    } else {
        HTH_GOTO(out, rows_upload(ex, b, rows, padded(b, rows->count), &there));
        HTH_GOTO(out, compute_here(ex, b, &there));
        HTH_GOTO(out, hth_exec_download(ex, rows->out, there.out, bytes));
    }
out:
    synced = hth_exec_sync(ex); /* after a failure, too: rows are freed next */
    return err != HTH_OK ? err : synced;
}

/* Scratch that run_rows takes from its context. */
static size_t batch_scratch(const struct srv_batch *b)
{
    uint32_t rows = padded(b, b->rows);
    size_t gathered = hth_exec_cost((size_t)rows * b->expert->d * sizeof(float));

    if (b->kind == SRV_STEP && b->expert->canary != NULL)
        return hth_canary_scratch_bytes(b->expert->canary, b->expert->expert);
    if (b->kind != SRV_FORWARD && b->kind != SRV_BACKWARD)
        return 0;
    return hth_expert_scratch_bytes(b->expert->expert, rows, b->kind == SRV_BACKWARD) +
           3 * gathered;
}

/* Shows the canary the rows of a backward that weigh. */
static void show_canary(struct srv_job *job, const struct srv_batch *b, const struct rows *rows)
{
    size_t at = 0;

    for (uint32_t i = 0; i < b->segs && b->expert->canary != NULL; i++) {
        const struct srv_segment *seg = &job->segs[b->seg0 + i];
        if (seg->status != HTH_OK)
            continue;
        if (seg->counted > 0)
            hth_canary_keep(b->expert->canary, seg->part->request->sender, seg->rows, rows->x + at,
                            rows->dy + at);
        at += (size_t)seg->rows * b->expert->d;
    }
}

static enum hth_err step(struct srv_batch *b, struct hth_exec *ex)
{
    struct hth_expert *expert = b->expert->expert;

    if (b->drops) {
        hth_expert_drop(expert);
        return HTH_OK;
    }
    HTH_TRY(hth_expert_step(expert, ex));
    b->jumped = b->expert->canary != NULL && hth_canary_stepped(b->expert->canary, expert, ex);
    return HTH_OK;
}

static enum hth_err run_rows(struct srv_job *job, struct hth_exec *ex, struct srv_batch *b)
{
    bool backward = b->kind == SRV_BACKWARD;
    struct rows rows = {0};
    enum hth_err err = HTH_OK;

    b->direct = is_direct(job, b);
    if (b->direct)
        rows_direct(job, &job->segs[b->seg0], backward, &rows);
    else
        HTH_GOTO(out, rows_gather(job, ex, b, &rows));
    HTH_GOTO(out, compute(ex, b, &rows));
    if (backward)
        show_canary(job, b, &rows);
    if (!b->direct)
        rows_scatter(job, b, &rows);
out:
    hth_block_free(rows.block, rows.block_bytes);
    return err;
}

/* ---- a card's grouped batches --------------------------------------------------------------- */

/* A card computes small batches of experts of one shape in one group of launches, because one small
 * batch leaves it idle. These limit the rows of each batch and the scratch of the group. */
#define TOGETHER_ROWS  256u
#define TOGETHER_BYTES ((size_t)256 << 20)

static bool goes_with(const struct srv_batch *first, const struct srv_batch *b)
{
    const struct hth_expert *e = b->expert->expert, *f = first->expert->expert;

    return b->kind == first->kind && (b->kind == SRV_FORWARD || b->kind == SRV_BACKWARD) &&
           b->rows <= TOGETHER_ROWS && hth_expert_kind_of(e) == hth_expert_kind_of(f) &&
           hth_expert_kind_of(e)->many != NULL &&
           memcmp(hth_expert_shape_of(e), hth_expert_shape_of(f),
                  sizeof(*hth_expert_shape_of(e))) == 0;
}

/* The number of batches from the i-th on that form one group, and the scratch that they take. */
static uint32_t together(const struct srv_job *job, uint32_t i, size_t *scratch)
{
    uint32_t count = 1;

    *scratch = batch_scratch(&job->batch[i]);
    if (is_here(&job->batch[i]) || !goes_with(&job->batch[i], &job->batch[i]))
        return 1;
    for (; i + count < job->batches && count < HTH_MODULE_CALLS_MAX; count++) {
        size_t more = batch_scratch(&job->batch[i + count]);
        if (!goes_with(&job->batch[i], &job->batch[i + count]) || *scratch + more > TOGETHER_BYTES)
            break;
        *scratch += more;
    }
    return count;
}

struct kernel_group {
    struct srv_job *job;
    struct hth_exec *ex;
    struct srv_batch *batch;
    uint32_t count, calls_count;
    struct rows here[HTH_MODULE_CALLS_MAX], there[HTH_MODULE_CALLS_MAX];
    struct hth_expert_pass call[HTH_MODULE_CALLS_MAX];
};

static struct hth_view card_view(const struct srv_batch *b, float *at, uint32_t rows)
{
    return hth_view_f32(at, rows, b->expert->d, b->expert->d);
}

/* Checks the rows of one batch and uploads them, unless all were refused. */
static enum hth_err group_rows(struct kernel_group *g, uint32_t i)
{
    struct srv_batch *b = &g->batch[i];
    struct rows *here = &g->here[i], *there = &g->there[i];

    b->direct = is_direct(g->job, b);
    if (b->direct)
        rows_direct(g->job, &g->job->segs[b->seg0], b->kind == SRV_BACKWARD, here);
    else
        HTH_TRY(rows_gather(g->job, g->ex, b, here));
    if (here->count == 0)
        return HTH_OK;
    HTH_TRY(rows_upload(g->ex, b, here, here->count, there));
    g->call[g->calls_count++] =
        (struct hth_expert_pass){.expert = b->expert->expert,
                                 .rows_in_microbatch = b->rows_in_microbatch,
                                 .uncounted = there->uncounted,
                                 .x = card_view(b, there->x, there->count),
                                 .dy = card_view(b, there->dy, there->count),
                                 .out = card_view(b, there->out, there->count)};
    return HTH_OK;
}

static enum hth_err group_compute(struct kernel_group *g)
{
    for (uint32_t i = 0; i < g->count; i++)
        HTH_TRY(group_rows(g, i));
    HTH_TRY(hth_expert_many(g->ex, g->call, g->calls_count, g->batch->kind == SRV_BACKWARD));
    for (uint32_t i = 0; i < g->count; i++) {
        size_t bytes = (size_t)g->here[i].count * g->batch[i].expert->d * sizeof(float);
        if (bytes > 0)
            HTH_TRY(hth_exec_download(g->ex, g->here[i].out, g->there[i].out, bytes));
    }
    return HTH_OK;
}

/* Computes a group. Its batches share one verdict, but for segments that were refused. */
static void run_together(struct srv_job *job, struct hth_exec *ex, uint32_t first, uint32_t count)
{
    struct kernel_group *g = hth_new(struct kernel_group);
    size_t mark = hth_exec_mark(ex);
    enum hth_err err, synced;

    g->job = job;
    g->ex = ex;
    g->batch = &job->batch[first];
    g->count = count;
    err = group_compute(g);
    synced = hth_exec_sync(ex);
    err = err != HTH_OK ? err : synced;
    for (uint32_t i = 0; i < count; i++) {
        g->batch[i].err = err;
        if (err == HTH_OK && g->batch->kind == SRV_BACKWARD)
            show_canary(job, &g->batch[i], &g->here[i]);
        if (err == HTH_OK && !g->batch[i].direct)
            rows_scatter(job, &g->batch[i], &g->here[i]);
        hth_block_free(g->here[i].block, g->here[i].block_bytes);
    }
    hth_exec_release(ex, mark);
    hth_free(g);
}

/* Reads the checkpoint if there is one, else draws the weights. A file that can't be used is an
 * error and never leads to new weights. */
static enum hth_err load(struct srv_job *job, struct srv_batch *b)
{
    struct hth_server *s = job->server;
    enum hth_err err = HTH_E_NO_FILE;

    if (s->checkpoint_dir != NULL && !b->expert->passes_through) {
        char *path = hth_expert_path(s->checkpoint_dir, b->expert->expert);
        err = hth_expert_load_file(b->expert->expert, s->env, path);
        hth_free(path);
        b->restored = err == HTH_OK;
    }
    return err == HTH_E_NO_FILE ? hth_expert_init(b->expert->expert) : err;
}

/* Prefetches the weights of the next batch: a card may host more experts than its memory holds. */
static void bring_weights(const struct srv_job *job, struct hth_exec *ex, uint32_t i)
{
    for (uint32_t k = i; k < HTH_MIN(i + 2, job->batches); k++) {
        const struct srv_batch *b = &job->batch[k];
        struct hth_params *p = hth_expert_params(b->expert->expert);
        if (b->kind != SRV_LOAD && p != NULL)
            hth_params_ahead(ex, p, b->kind != SRV_FORWARD);
    }
}

static enum hth_err run_batch(struct hth_exec *ex, void *arg, uint32_t i)
{
    struct srv_job *job = arg;
    struct srv_batch *b = &job->batch[i];
    size_t mark = hth_exec_mark(ex);

    bring_weights(job, ex, i);
    if (b->kind == SRV_LOAD)
        b->err = load(job, b);
    else if (b->kind == SRV_STEP)
        b->err = step(b, ex);
    else
        b->err = run_rows(job, ex, b);
    hth_exec_release(ex, mark);
    return HTH_OK; /* each batch has its own verdict */
}

static void fail_rows(struct srv_job *job, const struct srv_batch *b)
{
    for (uint32_t i = 0; i < b->segs; i++) {
        struct srv_segment *seg = &job->segs[b->seg0 + i];
        seg->status = seg->status == HTH_OK ? b->err : seg->status;
        zero_out(seg);
    }
}

/* Runs a card's job: the batches in order, groups at once. */
static enum hth_err run_on_card(struct srv_job *job)
{
    size_t scratch = 0, one;

    for (uint32_t i = 0; i < job->batches;
         i += together(job, i, &one), scratch = HTH_MAX(scratch, one))
        continue;
    HTH_TRY(hth_exec_reserve(job->ex, scratch));
    for (uint32_t i = 0, count; i < job->batches; i += count) {
        count = together(job, i, &one);
        if (count > 1)
            run_together(job, job->ex, i, count);
        else
            (void)run_batch(job->ex, job, i);
    }
    return HTH_OK;
}

/* The batches of a job are independent: idle workers take some of them. */
void hth_srv_run(struct hth_job *base)
{
    struct srv_job *job = HTH_CONTAINER(base, struct srv_job, job);
    size_t scratch = 0;
    enum hth_err err;

    if (job->ex == NULL) /* not on the loop thread: a card may block */
        HTH_GOTO(out, hth_exec_new(job->device->backend, 0, &job->ex));
    if (!is_here(&job->batch[0])) {
        err = run_on_card(job);
        goto out;
    }
    for (uint32_t i = 0; i < job->batches; i++)
        scratch = HTH_MAX(scratch, batch_scratch(&job->batch[i]));
    hth_exec_set_team(job->ex, hth_env_team(job->server->env));
    HTH_GOTO(out, hth_exec_reserve(job->ex, hth_exec_each_bytes(job->ex, job->batches, scratch)));
    err = hth_exec_each(job->ex, job->batches, scratch, run_batch, job);
out:
    for (uint32_t i = 0; i < job->batches; i++) {
        job->batch[i].err = err != HTH_OK ? err : job->batch[i].err;
        if (job->batch[i].err != HTH_OK)
            fail_rows(job, &job->batch[i]);
    }
}
