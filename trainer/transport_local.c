/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_local.c: experts in this process. A call is one job in the trainer's queue: for each
 * target it gathers the rows of its pairs in order of their units, as in one request to a host, and
 * the expert steps by the server's rule; so that both ports give the same bits when nothing fails.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "trainer/transport.h"

struct local_transport {
    struct hth_transport base;
    struct hth_env *env;
    struct hth_queue *queue;
    uint32_t layers;
    uint32_t d, block_rows;
    uint64_t step_rows;
    struct hth_grid grid[HTH_MODEL_LAYERS_MAX];
    struct hth_grid_view *view[HTH_MODEL_LAYERS_MAX];
    struct hth_expert **experts[HTH_MODEL_LAYERS_MAX]; /* [grid size] */
    /* Gathered rows in, rows out, and the kernels' context. Jobs grow them; these never overlap. */
    float *in, *in_dy, *out;
    float *card; /* twins of all three, if the experts are on a card */
    size_t in_floats;
    struct hth_exec *exec;
    const struct hth_backend *backend;
};

struct local_batch {
    struct hth_transport_batch base;
    struct local_transport *transport;
    struct hth_work work;
    uint32_t layer, rows_in_microbatch;
    struct hth_blob *x, *dy;
    struct hth_expert_pair *pairs;
    uint32_t *target_expert;
    float *rows; /* [pairs * block_rows, d] */
    enum hth_err *verdicts;
    bool finished, abandoned;
};

static struct hth_grid_view *local_view(struct hth_transport *base, uint32_t layer)
{
    return HTH_CONTAINER(base, struct local_transport, base)->view[layer];
}

static bool local_find(struct hth_transport *base, uint32_t layer, uint32_t expert,
                       struct hth_expert_target *out)
{
    struct local_transport *transport = HTH_CONTAINER(base, struct local_transport, base);

    memset(out, 0, sizeof(*out));
    hth_grid_coords(&transport->grid[layer], expert, out->coord);
    return true;
}

static bool is_here(const struct local_transport *transport)
{
    return (hth_backend_caps(transport->backend) & HTH_CAP_HOST_MEMORY) != 0;
}

static void drop_rows(struct local_transport *transport)
{
    hth_aligned_free(transport->in);
    hth_aligned_free(transport->in_dy);
    hth_aligned_free(transport->out);
    if (transport->card != NULL)
        hth_backend_free(transport->backend, transport->card);
    transport->in = transport->in_dy = transport->out = transport->card = NULL;
    transport->in_floats = 0;
}

static enum hth_err grow(struct local_transport *transport, size_t floats, size_t scratch_bytes)
{
    if (floats > transport->in_floats) {
        drop_rows(transport);
        transport->in = hth_try_aligned(floats * sizeof(float));
        transport->in_dy = hth_try_aligned(floats * sizeof(float));
        transport->out = hth_try_aligned(floats * sizeof(float));
        if (!is_here(transport))
            transport->card = hth_backend_alloc(transport->backend, 3 * floats * sizeof(float));
        if (transport->in == NULL || transport->in_dy == NULL || transport->out == NULL ||
            (!is_here(transport) && transport->card == NULL)) {
            drop_rows(transport);
            return HTH_E_NO_MEMORY;
        }
        transport->in_floats = floats;
    }
    return hth_exec_reserve(transport->exec, scratch_bytes);
}

/* Runs one expert on rows in memory that the kernels see. */
static enum hth_err compute(struct local_batch *b, struct hth_expert *expert, struct hth_view in,
                            struct hth_view dy, struct hth_view out)
{
    struct local_transport *transport = b->transport;
    enum hth_err err;

    if (!b->base.backward)
        return hth_expert_forward(expert, transport->exec, in, out);
    HTH_TRY(hth_expert_backward(expert, transport->exec, b->rows_in_microbatch, in, dy, out));
    if (hth_expert_pending_rows(expert) < transport->step_rows)
        return HTH_OK;
    err = hth_expert_step(expert, transport->exec);
    /* Only the gradient was dropped: the rows that the expert returned are valid. */
    return err == HTH_E_NOT_FINITE ? HTH_OK : err;
}

/* The same with the rows uploaded to a card and downloaded from it. */
static enum hth_err compute_there(struct local_batch *b, struct hth_expert *expert, uint32_t rows)
{
    struct local_transport *transport = b->transport;
    size_t floats = (size_t)rows * transport->d, bytes = floats * sizeof(float);
    struct hth_view in = hth_view_f32(transport->card, rows, transport->d, transport->d), dy = in,
                    out = in;

    dy.data = transport->card + transport->in_floats;
    out.data = transport->card + 2 * transport->in_floats;
    HTH_TRY(hth_exec_upload(transport->exec, in.data, transport->in, bytes));
    if (b->base.backward)
        HTH_TRY(hth_exec_upload(transport->exec, dy.data, transport->in_dy, bytes));
    HTH_TRY(compute(b, expert, in, dy, out));
    return hth_exec_download(transport->exec, transport->out, out.data, bytes);
}

/* Runs one expert's pairs of a batch: first .. first + count - 1. */
static enum hth_err run_expert(struct local_batch *b, struct hth_expert *expert, uint32_t first,
                               uint32_t count)
{
    struct local_transport *transport = b->transport;
    size_t unit = (size_t)transport->block_rows * transport->d;
    uint32_t rows = count * transport->block_rows;
    const float *x = (const float *)b->x->data;
    enum hth_err err, synced;

    HTH_TRY(grow(transport, count * unit,
                 HTH_MAX(hth_expert_scratch_bytes(expert, rows, b->base.backward),
                         hth_expert_scratch_bytes(expert, 0, false))));
    for (uint32_t i = 0; i < count; i++)
        memcpy(transport->in + i * unit, x + b->pairs[first + i].unit * unit, unit * sizeof(float));
    if (b->base.backward)
        memcpy(transport->in_dy, (const float *)b->dy->data + first * unit,
               count * unit * sizeof(float));
    err = is_here(transport)
              ? compute(b, expert, hth_view_f32(transport->in, rows, transport->d, transport->d),
                        hth_view_f32(transport->in_dy, rows, transport->d, transport->d),
                        hth_view_f32(transport->out, rows, transport->d, transport->d))
              : compute_there(b, expert, rows);
    synced = hth_exec_sync(transport->exec); /* after an error operations may run on */
    HTH_TRY(err != HTH_OK ? err : synced);
    memcpy(b->rows + first * unit, transport->out, count * unit * sizeof(float));
    return HTH_OK;
}

static void batch_run(struct hth_work *work)
{
    struct local_batch *b = HTH_CONTAINER(work, struct local_batch, work);

    for (uint32_t first = 0, end; first < b->base.pairs; first = end) {
        uint32_t target = b->pairs[first].target;
        struct hth_expert *expert = b->transport->experts[b->layer][b->target_expert[target]];
        enum hth_err err;

        for (end = first + 1; end < b->base.pairs && b->pairs[end].target == target;)
            end++;
        err = run_expert(b, expert, first, end - first);
        for (uint32_t i = first; i < end; i++)
            b->verdicts[i] = err;
    }
}

static void batch_release(struct local_batch *b)
{
    hth_blob_unref(b->x);
    hth_blob_unref(b->dy);
    hth_free(b->pairs);
    hth_free(b->target_expert);
    hth_aligned_free(b->rows);
    hth_free(b->verdicts);
    hth_free(b);
}

static void batch_done(struct hth_work *work, enum hth_err err)
{
    struct local_batch *b = HTH_CONTAINER(work, struct local_batch, work);

    b->finished = true;
    if (b->abandoned) {
        batch_release(b);
        return;
    }
    for (uint32_t i = 0; err != HTH_OK && i < b->base.pairs; i++)
        b->verdicts[i] = err;
    b->base.done(b->base.arg, &b->base);
}

static const enum hth_err *local_verdicts(const struct hth_transport_batch *base)
{
    return HTH_CONTAINER(base, struct local_batch, base)->verdicts;
}

static void local_host(const struct hth_transport_batch *base, uint32_t target,
                       struct hth_expert_target *io)
{
    (void)base;
    (void)target;
    (void)io;
}

static uint32_t local_unpack(struct hth_transport_batch *base, float *out, size_t stride,
                             uint8_t *ok)
{
    const struct local_batch *b = HTH_CONTAINER(base, struct local_batch, base);
    size_t unit = (size_t)b->transport->block_rows * b->transport->d;
    uint32_t not_finite = 0;

    for (uint32_t i = 0; i < base->pairs; i++) {
        const float *row = b->rows + i * unit;
        bool finite = true;

        for (size_t j = 0; j < unit; j++)
            finite = finite && isfinite(row[j]);
        ok[i] = b->verdicts[i] == HTH_OK && finite;
        not_finite += b->verdicts[i] == HTH_OK && !finite;
        if (ok[i])
            memcpy(out + i * stride, row, unit * sizeof(float));
        else
            memset(out + i * stride, 0, unit * sizeof(float));
    }
    return not_finite;
}

/* This process trusts itself. */
static void local_judge(struct hth_transport_batch *base)
{
    (void)base;
}

/* A job that waits or runs can't be withdrawn; its end then frees the batch. */
static void local_batch_free(struct hth_transport_batch *base)
{
    struct local_batch *b = HTH_CONTAINER(base, struct local_batch, base);

    if (b->finished || b->transport->queue->closed)
        batch_release(b);
    else
        b->abandoned = true;
}

static const struct hth_transport_batch_ops local_batch_ops = {
    .verdicts = local_verdicts,
    .host = local_host,
    .unpack = local_unpack,
    .judge = local_judge,
    .free = local_batch_free,
};

static void charge(struct local_batch *b, const struct hth_transport_call *call)
{
    const struct hth_expert *any = b->transport->experts[call->layer][0];
    const struct hth_expert_kind *kind = hth_expert_kind_of(any);
    double rows = (double)call->pairs_count * call->block_rows;

    b->work.job.flops = rows * kind->flops_per_row(hth_expert_shape_of(any), b->base.backward);
    b->work.job.bytes_moved = rows * call->d * sizeof(float) * 3;
}

static enum hth_err local_call(struct hth_transport *base, const struct hth_transport_call *call,
                               hth_transport_done_fn *done, void *arg,
                               struct hth_transport_batch **out)
{
    struct local_transport *transport = HTH_CONTAINER(base, struct local_transport, base);
    struct local_batch *b = hth_new(struct local_batch);
    size_t bytes = (size_t)call->pairs_count * call->block_rows * call->d * sizeof(float);

    b->base = (struct hth_transport_batch){
        .ops = &local_batch_ops,
        .transport = base,
        .backward = call->dy != NULL,
        .pairs = call->pairs_count,
        .done = done,
        .arg = arg,
    };
    b->transport = transport;
    b->layer = call->layer;
    b->rows_in_microbatch = call->rows_in_microbatch;
    b->x = hth_blob_ref(call->x);
    b->dy = call->dy != NULL ? hth_blob_ref(call->dy) : NULL;
    b->pairs = hth_try_calloc(call->pairs_count, sizeof(*b->pairs));
    b->target_expert = hth_try_calloc(call->targets_count, sizeof(*b->target_expert));
    b->rows = hth_try_aligned(bytes);
    b->verdicts = hth_try_calloc(call->pairs_count, sizeof(*b->verdicts));
    if (b->pairs == NULL || b->target_expert == NULL || b->rows == NULL || b->verdicts == NULL) {
        batch_release(b);
        return HTH_E_NO_MEMORY;
    }
    memcpy(b->pairs, call->pairs, call->pairs_count * sizeof(*b->pairs));
    memcpy(b->target_expert, call->target_expert, call->targets_count * sizeof(*b->target_expert));
    charge(b, call);
    b->work.order = call->trace_id + 1;
    b->work.run = batch_run;
    b->work.done = batch_done;
    hth_queue_push(transport->queue, &b->work);
    *out = &b->base;
    return HTH_OK;
}

static void local_gauge(struct hth_transport *base)
{
    struct local_transport *transport = HTH_CONTAINER(base, struct local_transport, base);

    base->stats.live_experts = 0;
    for (uint32_t l = 0; l < transport->layers; l++)
        base->stats.live_experts += transport->view[l]->live_count;
}

static void local_ask(struct hth_transport *base, uint32_t layer)
{
    (void)base;
    (void)layer;
}

static void local_free(struct hth_transport *base)
{
    struct local_transport *transport = HTH_CONTAINER(base, struct local_transport, base);

    for (uint32_t l = 0; l < transport->layers; l++) {
        uint32_t size = hth_grid_size(&transport->grid[l]);

        for (uint32_t i = 0; transport->experts[l] != NULL && i < size; i++)
            hth_expert_free(transport->experts[l][i]);
        hth_free(transport->experts[l]);
        hth_grid_view_unref(transport->view[l]);
    }
    drop_rows(transport);
    hth_exec_free(transport->exec);
    hth_free(transport);
}

static const struct hth_transport_ops local_ops = {
    .view = local_view,
    .find = local_find,
    .call = local_call,
    .gauge = local_gauge,
    .ask = local_ask,
    .free = local_free,
};

static bool has_weights(const struct hth_expert *expert)
{
    return hth_expert_kind_of(expert)->weights(hth_expert_shape_of(expert)) > 0;
}

static enum hth_err load_expert(const struct hth_transport_opts *opts, struct hth_expert *expert)
{
    char *path = hth_expert_path(opts->experts_dir, expert);
    enum hth_err err = hth_expert_load_file(expert, opts->env, path);

    hth_free(path);
    if (err == HTH_E_NO_FILE && !opts->experts_needed)
        return hth_expert_init(expert);
    if (err == HTH_OK || err == HTH_E_NO_MEMORY)
        return err;
    return hth_blame(opts->why, err, "its expert %s can't be loaded from %s: %s",
                     hth_expert_uid_text(expert), opts->experts_dir, hth_err_text(err));
}

static enum hth_err make_expert(struct local_transport *transport,
                                const struct hth_transport_opts *opts, uint32_t layer, uint32_t i)
{
    const struct hth_grid *grid = &opts->grids[layer];
    struct hth_expert_opts e = HTH_EXPERT_OPTS_INIT;
    struct hth_expert **expert = &transport->experts[layer][i];

    memcpy(e.uid.name, grid->name, sizeof(e.uid.name));
    e.uid.ncoord = grid->ndim;
    hth_grid_coords(grid, i, e.uid.coord);
    e.kind = opts->expert_kind;
    e.shape.d = opts->d;
    e.shape.block_rows = opts->block_rows;
    e.shape.heads = opts->heads;
    e.optim = opts->optim->optim;
    e.schedule = opts->optim->schedule;
    e.clip_norm = opts->optim->clip_norm;
    e.backend = opts->backend;
    e.run_seed = opts->run_seed;
    e.run = opts->run;
    e.run_text = opts->run_text;
    HTH_TRY(hth_expert_new(&e, expert));
    if (opts->experts_dir == NULL || !has_weights(*expert))
        return hth_expert_init(*expert);
    return load_expert(opts, *expert);
}

static enum hth_err make_layer(struct local_transport *transport,
                               const struct hth_transport_opts *opts, uint32_t layer)
{
    const struct hth_grid *grid = &opts->grids[layer];
    uint32_t size = hth_grid_size(grid), made = opts->without_experts ? 0 : size;
    uint32_t *all = hth_try_calloc(size, sizeof(*all));
    enum hth_err err = HTH_OK;

    transport->grid[layer] = *grid;
    transport->layers = layer + 1;
    transport->experts[layer] = hth_try_calloc(size, sizeof(*transport->experts[layer]));
    if (all == NULL || transport->experts[layer] == NULL) {
        err = HTH_E_NO_MEMORY;
        goto out;
    }
    for (uint32_t i = 0; i < made; i++) {
        all[i] = i;
        HTH_GOTO(out, make_expert(transport, opts, layer, i));
    }
    err = hth_grid_view_new(grid, all, made, &transport->view[layer]);
out:
    hth_free(all);
    return err;
}

enum hth_err hth_transport_local_new(const struct hth_transport_opts *opts,
                                     struct hth_transport **out)
{
    struct local_transport *transport;
    enum hth_err err;

    *out = NULL;
    if (opts->layers > HTH_MODEL_LAYERS_MAX)
        return HTH_E_CONFIG;
    transport = hth_new(struct local_transport);
    transport->base.ops = &local_ops;
    transport->env = opts->env;
    transport->queue = opts->queue;
    transport->backend = opts->backend;
    transport->d = opts->d;
    transport->block_rows = HTH_MAX(opts->block_rows, 1u);
    transport->step_rows = HTH_MAX(opts->step_rows, (uint64_t)1);
    HTH_GOTO(fail, hth_exec_new(opts->backend, 0, &transport->exec));
    hth_exec_set_team(transport->exec, hth_env_team(opts->env));
    for (uint32_t l = 0; l < opts->layers; l++)
        HTH_GOTO(fail, make_layer(transport, opts, l));
    *out = &transport->base;
    return HTH_OK;
fail:
    local_free(&transport->base);
    return err;
}

struct hth_expert *hth_transport_local_expert(struct hth_transport *base, uint32_t layer,
                                              uint32_t index)
{
    struct local_transport *transport = HTH_CONTAINER(base, struct local_transport, base);

    if (base->ops != &local_ops || layer >= transport->layers ||
        index >= hth_grid_size(&transport->grid[layer]))
        return NULL;
    return transport->experts[layer][index];
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static enum hth_err save_expert(struct local_transport *transport, struct hth_expert *expert,
                                const char *dir, struct hth_transport_file *out)
{
    enum hth_err err;

    HTH_TRY(hth_exec_reserve(transport->exec, hth_expert_scratch_bytes(expert, 0, false)));
    err = hth_expert_step(expert, transport->exec);
    if (err != HTH_OK && err != HTH_E_NOT_FINITE) /* then the gradient was dropped */
        return err;
    HTH_TRY(hth_expert_snapshot(expert, &out->bytes));
    out->path = hth_expert_path(dir, expert);
    return HTH_OK;
}

enum hth_err hth_transport_local_save(struct hth_transport *base, const char *dir,
                                      struct hth_transport_files *out)
{
    struct local_transport *transport = HTH_CONTAINER(base, struct local_transport, base);
    size_t count = 0;

    *out = (struct hth_transport_files){.count = 0};
    if (base->ops != &local_ops)
        return HTH_OK;
    for (uint32_t l = 0; l < transport->layers; l++)
        count += transport->view[l]->live_count;
    out->file = hth_calloc(HTH_MAX(count, (size_t)1), sizeof(*out->file));
    for (uint32_t l = 0; l < transport->layers; l++)
        for (uint32_t i = 0; i < transport->view[l]->live_count; i++) {
            struct hth_expert *expert = transport->experts[l][i];

            if (!has_weights(expert))
                continue;
            HTH_TRY(save_expert(transport, expert, dir, &out->file[out->count]));
            out->count++;
        }
    return HTH_OK;
}

void hth_transport_files_clear(struct hth_transport_files *files)
{
    for (uint32_t i = 0; i < files->count; i++) {
        hth_free(files->file[i].path);
        hth_blob_unref(files->file[i].bytes);
    }
    hth_free(files->file);
    *files = (struct hth_transport_files){.count = 0};
}
