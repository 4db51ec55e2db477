/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_run.c: the part of the server that runs on a compute worker: gather, check, kernels,
 * scatter.
 *
 * It reads the fixed fields of requests and writes only into the job, the answers' bytes and, under
 * the rule of store.h, the expert. A segment whose rows are refused gets zeros and its verdict; the
 * others of its batch are computed without it, and by the bit rule of the kernels they don't
 * notice.
 */
#include "experts/server_int.h"

#include <math.h>
#include <string.h>

/* Where the rows of a batch lie: in the request and the answer themselves, or gathered in scratch.
 */
struct rows {
    float *x, *dy, *out;
    uint32_t count; /* rows that go through the kernels */
};

static const uint8_t *seg_bytes(const struct srv_segment *seg, const struct hth_blob *blob,
                                size_t offset)
{
    const struct srv_request *r = seg->part->request;

    return blob->data + offset + (size_t)seg->row0 * r->d * hth_dtype_size(r->dtype);
}

static uint8_t *seg_out(const struct srv_segment *seg)
{
    const struct srv_request *r = seg->part->request;

    return r->out->data + (size_t)seg->row0 * r->d * hth_dtype_size(r->dtype);
}

static void zero_out(const struct srv_segment *seg)
{
    const struct srv_request *r = seg->part->request;

    memset(seg_out(seg), 0, (size_t)seg->rows * r->d * hth_dtype_size(r->dtype));
}

/* Finite, and so small that no sum of squares or products in the kernels overflows: one peer's 1e30
 * would make the expert's gradient infinite and cost everybody else the step. */
static enum hth_err judge_numbers(const float *rows, size_t count)
{
    if (!hth_rows_finite(rows, count))
        return HTH_E_NOT_FINITE;
    return hth_rows_below(rows, count, HTH_EXPERT_NUMBER_MAX) ? HTH_OK : HTH_E_RANGE;
}

static enum hth_err judge(const struct hth_server_opts *opts, const float *x, const float *dy,
                          size_t count)
{
    if (opts->check_finite)
        HTH_TRY(judge_numbers(x, count));
    if (dy == NULL)
        return HTH_OK;
    if (opts->check_finite)
        HTH_TRY(judge_numbers(dy, count));
    if (opts->grad_norm_max > 0 && !(sqrt(hth_rows_sumsq(dy, count)) <= opts->grad_norm_max))
        return HTH_E_NORM;
    return HTH_OK;
}

/* One fp32 segment: no copies at all. */
static void rows_direct(const struct srv_job *job, struct srv_segment *seg, bool backward,
                        struct rows *rows)
{
    const struct srv_request *r = seg->part->request;

    rows->x = (float *)(uintptr_t)seg_bytes(seg, r->x, r->x_offset);
    rows->dy = backward ? (float *)(uintptr_t)seg_bytes(seg, r->dy, r->dy_offset) : NULL;
    rows->out = (float *)(uintptr_t)seg_out(seg);
    seg->status = judge(&job->server->opts, rows->x, rows->dy, (size_t)seg->rows * r->d);
    rows->count = seg->status == HTH_OK ? seg->rows : 0;
    if (rows->count == 0)
        zero_out(seg);
}

static enum hth_err rows_gather(struct srv_job *job, const struct srv_batch *b, struct rows *rows)
{
    size_t d = b->expert->d, bytes = (size_t)b->rows * d * sizeof(float);
    bool backward = b->what == SRV_BACKWARD;

    rows->count = 0;
    rows->x = hth_exec_take(job->ex, bytes);
    rows->out = hth_exec_take(job->ex, bytes);
    rows->dy = backward ? hth_exec_take(job->ex, bytes) : NULL;
    if (rows->x == NULL || rows->out == NULL || (backward && rows->dy == NULL))
        return HTH_E_NO_MEMORY;
    for (uint32_t i = 0; i < b->segs; i++) {
        struct srv_segment *seg = &job->segs[b->seg0 + i];
        const struct srv_request *r = seg->part->request;
        size_t at = rows->count * d, n = seg->rows * d;
        float *x = rows->x + at, *dy = backward ? rows->dy + at : NULL;
        hth_rows_to_f32(seg_bytes(seg, r->x, r->x_offset), r->dtype, n, x);
        if (backward)
            hth_rows_to_f32(seg_bytes(seg, r->dy, r->dy_offset), r->dtype, n, dy);
        seg->status = judge(&job->server->opts, x, dy, n);
        if (seg->status == HTH_OK)
            rows->count += seg->rows;
        else
            zero_out(seg);
    }
    return HTH_OK;
}

static void rows_scatter(struct srv_job *job, const struct srv_batch *b, const struct rows *rows)
{
    size_t d = b->expert->d;
    const float *from = rows->out;

    for (uint32_t i = 0; i < b->segs; i++) {
        struct srv_segment *seg = &job->segs[b->seg0 + i];
        if (seg->status != HTH_OK)
            continue;
        hth_rows_from_f32(from, seg->part->request->dtype, seg->rows * d, seg_out(seg));
        from += seg->rows * d;
    }
}

static bool is_direct(const struct srv_job *job, const struct srv_batch *b)
{
    const struct srv_request *r = job->segs[b->seg0].part->request;
    size_t row_bytes = (size_t)r->d * sizeof(float);

    /* Kernels want floats aligned as floats, which any row of an aligned tensor is. */
    return b->segs == 1 && r->dtype == HTH_F32 && r->x_offset % sizeof(float) == 0 &&
           r->dy_offset % sizeof(float) == 0 && row_bytes > 0;
}

static enum hth_err compute(struct srv_job *job, const struct srv_batch *b, const struct rows *rows)
{
    uint32_t d = b->expert->d;
    struct hth_view x = hth_view_f32(rows->x, rows->count, d, d);
    struct hth_view dy = hth_view_f32(rows->dy, rows->count, d, d);
    struct hth_view out = hth_view_f32(rows->out, rows->count, d, d);
    struct hth_expert *expert = b->expert->expert;

    if (rows->count == 0)
        return HTH_OK;
    if (b->what == SRV_FORWARD)
        HTH_TRY(hth_expert_forward(expert, job->ex, x, out));
    else if (b->beside)
        HTH_TRY(hth_expert_backward_beside(expert, job->ex, b->rows_in_microbatch, x, dy, out));
    else
        HTH_TRY(hth_expert_backward(expert, job->ex, b->rows_in_microbatch, x, dy, out));
    return hth_exec_sync(job->ex);
}

static void run_rows(struct srv_job *job, struct srv_batch *b)
{
    bool backward = b->what == SRV_BACKWARD, direct = is_direct(job, b);
    size_t gathered = hth_exec_cost((size_t)b->rows * b->expert->d * sizeof(float));
    size_t mark = hth_exec_mark(job->ex);
    struct rows rows = {0};
    enum hth_err err;

    HTH_GOTO(out, hth_exec_reserve(job->ex,
                                   hth_expert_scratch_bytes(b->expert->expert, b->rows, backward) +
                                       3 * gathered));
    if (direct)
        rows_direct(job, &job->segs[b->seg0], backward, &rows);
    else
        HTH_GOTO(out, rows_gather(job, b, &rows));
    HTH_GOTO(out, compute(job, b, &rows));
    if (!direct)
        rows_scatter(job, b, &rows);
out:
    hth_exec_release(job->ex, mark);
    b->err = err;
    if (err == HTH_OK)
        return;
    for (uint32_t i = 0; i < b->segs; i++) {
        struct srv_segment *seg = &job->segs[b->seg0 + i];
        seg->status = seg->status == HTH_OK ? err : seg->status;
        zero_out(seg);
    }
}

/* From the checkpoint when there is one. A file that can't be used is an error, never a new start.
 */
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

void hth_srv_run(struct hth_job *base)
{
    struct srv_job *job = HTH_CONTAINER(base, struct srv_job, job);

    for (uint32_t i = 0; i < job->batches; i++) {
        struct srv_batch *b = &job->batch[i];
        if (b->what == SRV_LOAD)
            b->err = load(job, b);
        else if (b->what == SRV_STEP)
            b->err = hth_expert_step(b->expert->expert, job->ex);
        else
            run_rows(job, b);
    }
}
