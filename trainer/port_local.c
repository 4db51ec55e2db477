/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts in this process. A call is one job in the trainer's queue: for each target the rows of
 * its pairs are gathered in order of their units, as the server would get them in one request, and
 * the expert steps by the server's rule; so that both ports give the same bits when nothing fails.
 */
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "trainer/port.h"

struct local_port {
    struct hth_port base;
    struct hth_env *env;
    struct hth_queue *queue;
    uint32_t layers;
    uint32_t d, block_rows;
    uint64_t step_rows;
    struct hth_grid grid[HTH_MODEL_LAYERS_MAX];
    struct hth_grid_view *view[HTH_MODEL_LAYERS_MAX];
    struct hth_expert **experts[HTH_MODEL_LAYERS_MAX]; /* [grid size] */
    /* Grown by jobs, which never overlap: gathered rows in, rows out, and the kernels' context. */
    float *in, *in_dy, *out;
    float *card; /* all three once more, where the experts live on a card */
    size_t in_floats;
    struct hth_exec *exec;
    const struct hth_backend *backend;
};

struct local_batch {
    struct hth_port_batch base;
    struct local_port *port;
    struct hth_work work;
    uint32_t layer, rows_in_microbatch;
    struct hth_blob *x, *dy;
    struct hth_expert_pair *pairs;
    uint32_t *target_expert;
    float *rows; /* [pairs * block_rows, d] */
    enum hth_err *verdicts;
    bool finished, abandoned;
};

static struct hth_grid_view *local_view(struct hth_port *base, uint32_t layer)
{
    return HTH_CONTAINER(base, struct local_port, base)->view[layer];
}

static bool local_find(struct hth_port *base, uint32_t layer, uint32_t expert,
                       struct hth_expert_target *out)
{
    struct local_port *port = HTH_CONTAINER(base, struct local_port, base);

    memset(out, 0, sizeof(*out));
    hth_grid_coords(&port->grid[layer], expert, out->coord);
    return true;
}

static bool is_here(const struct local_port *port)
{
    return (hth_backend_caps(port->backend) & HTH_CAP_HOST_MEMORY) != 0;
}

static void drop_rows(struct local_port *port)
{
    hth_aligned_free(port->in);
    hth_aligned_free(port->in_dy);
    hth_aligned_free(port->out);
    if (port->card != NULL)
        hth_backend_free(port->backend, port->card);
    port->in = port->in_dy = port->out = port->card = NULL;
    port->in_floats = 0;
}

static enum hth_err grow(struct local_port *port, size_t floats, size_t scratch_bytes)
{
    if (floats > port->in_floats) {
        drop_rows(port);
        port->in = hth_try_aligned(floats * sizeof(float));
        port->in_dy = hth_try_aligned(floats * sizeof(float));
        port->out = hth_try_aligned(floats * sizeof(float));
        if (!is_here(port))
            port->card = hth_backend_alloc(port->backend, 3 * floats * sizeof(float));
        if (port->in == NULL || port->in_dy == NULL || port->out == NULL ||
            (!is_here(port) && port->card == NULL)) {
            drop_rows(port);
            return HTH_E_NO_MEMORY;
        }
        port->in_floats = floats;
    }
    return hth_exec_reserve(port->exec, scratch_bytes);
}

/* The pass itself, on rows that the kernels see. */
static enum hth_err compute(struct local_batch *b, struct hth_expert *expert, struct hth_view in,
                            struct hth_view dy, struct hth_view out)
{
    struct local_port *port = b->port;
    enum hth_err err;

    if (!b->base.backward)
        return hth_expert_forward(expert, port->exec, in, out);
    HTH_TRY(hth_expert_backward(expert, port->exec, b->rows_in_microbatch, in, dy, out));
    if (hth_expert_pending_rows(expert) < port->step_rows)
        return HTH_OK;
    err = hth_expert_step(expert, port->exec);
    /* The gradient was dropped; the rows that were answered stay valid. */
    return err == HTH_E_NOT_FINITE ? HTH_OK : err;
}

/* The same through a card's memory. */
static enum hth_err compute_there(struct local_batch *b, struct hth_expert *expert, uint32_t rows)
{
    struct local_port *port = b->port;
    size_t floats = (size_t)rows * port->d, bytes = floats * sizeof(float);
    struct hth_view in = hth_view_f32(port->card, rows, port->d, port->d), dy = in, out = in;

    dy.data = port->card + port->in_floats;
    out.data = port->card + 2 * port->in_floats;
    HTH_TRY(hth_exec_upload(port->exec, in.data, port->in, bytes));
    if (b->base.backward)
        HTH_TRY(hth_exec_upload(port->exec, dy.data, port->in_dy, bytes));
    HTH_TRY(compute(b, expert, in, dy, out));
    return hth_exec_download(port->exec, port->out, out.data, bytes);
}

/* One expert's share of a batch: pairs first .. first + count - 1. */
static enum hth_err run_expert(struct local_batch *b, struct hth_expert *expert, uint32_t first,
                               uint32_t count)
{
    struct local_port *port = b->port;
    size_t unit = (size_t)port->block_rows * port->d;
    uint32_t rows = count * port->block_rows;
    const float *x = (const float *)b->x->data;
    enum hth_err err, synced;

    HTH_TRY(grow(port, count * unit,
                 HTH_MAX(hth_expert_scratch_bytes(expert, rows, b->base.backward),
                         hth_expert_scratch_bytes(expert, 0, false))));
    for (uint32_t i = 0; i < count; i++)
        memcpy(port->in + i * unit, x + b->pairs[first + i].unit * unit, unit * sizeof(float));
    if (b->base.backward)
        memcpy(port->in_dy, (const float *)b->dy->data + first * unit,
               count * unit * sizeof(float));
    err = is_here(port) ? compute(b, expert, hth_view_f32(port->in, rows, port->d, port->d),
                                  hth_view_f32(port->in_dy, rows, port->d, port->d),
                                  hth_view_f32(port->out, rows, port->d, port->d))
                        : compute_there(b, expert, rows);
    synced = hth_exec_sync(port->exec); /* also of what was begun and failed */
    HTH_TRY(err != HTH_OK ? err : synced);
    memcpy(b->rows + first * unit, port->out, count * unit * sizeof(float));
    return HTH_OK;
}

static void batch_run(struct hth_work *work)
{
    struct local_batch *b = HTH_CONTAINER(work, struct local_batch, work);

    for (uint32_t first = 0, end; first < b->base.pairs; first = end) {
        uint32_t target = b->pairs[first].target;
        struct hth_expert *expert = b->port->experts[b->layer][b->target_expert[target]];
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

static const enum hth_err *local_verdicts(const struct hth_port_batch *base)
{
    return HTH_CONTAINER(base, struct local_batch, base)->verdicts;
}

static void local_host(const struct hth_port_batch *base, uint32_t target,
                       struct hth_expert_target *io)
{
    (void)base;
    (void)target;
    (void)io;
}

static uint32_t local_unpack(struct hth_port_batch *base, float *out, size_t stride, uint8_t *ok)
{
    const struct local_batch *b = HTH_CONTAINER(base, struct local_batch, base);
    size_t unit = (size_t)b->port->block_rows * b->port->d;
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

/* It trusts itself. */
static void local_judge(struct hth_port_batch *base)
{
    (void)base;
}

/* A job that waits or runs can't be taken back: it then frees the batch. */
static void local_batch_free(struct hth_port_batch *base)
{
    struct local_batch *b = HTH_CONTAINER(base, struct local_batch, base);

    if (b->finished || b->port->queue->closed)
        batch_release(b);
    else
        b->abandoned = true;
}

static const struct hth_port_batch_ops local_batch_ops = {
    .verdicts = local_verdicts,
    .host = local_host,
    .unpack = local_unpack,
    .judge = local_judge,
    .free = local_batch_free,
};

static void charge(struct local_batch *b, const struct hth_port_call *call)
{
    const struct hth_expert *any = b->port->experts[call->layer][0];
    const struct hth_expert_kind *kind = hth_expert_kind_of(any);
    double rows = (double)call->pairs_count * call->block_rows;

    b->work.job.flops = rows * kind->flops_per_row(hth_expert_shape_of(any), b->base.backward);
    b->work.job.bytes_moved = rows * call->d * sizeof(float) * 3;
}

static enum hth_err local_call(struct hth_port *base, const struct hth_port_call *call,
                               hth_port_done_fn *done, void *arg, struct hth_port_batch **out)
{
    struct local_port *port = HTH_CONTAINER(base, struct local_port, base);
    struct local_batch *b = hth_new(struct local_batch);
    size_t bytes = (size_t)call->pairs_count * call->block_rows * call->d * sizeof(float);

    b->base = (struct hth_port_batch){
        .ops = &local_batch_ops,
        .port = base,
        .backward = call->dy != NULL,
        .pairs = call->pairs_count,
        .done = done,
        .arg = arg,
    };
    b->port = port;
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
    hth_queue_push(port->queue, &b->work);
    *out = &b->base;
    return HTH_OK;
}

static void local_gauge(struct hth_port *base)
{
    struct local_port *port = HTH_CONTAINER(base, struct local_port, base);

    base->stats.live_experts = 0;
    for (uint32_t l = 0; l < port->layers; l++)
        base->stats.live_experts += port->view[l]->live_count;
}

static void local_ask(struct hth_port *base, uint32_t layer)
{
    (void)base;
    (void)layer;
}

static void local_free(struct hth_port *base)
{
    struct local_port *port = HTH_CONTAINER(base, struct local_port, base);

    for (uint32_t l = 0; l < port->layers; l++) {
        uint32_t size = hth_grid_size(&port->grid[l]);

        for (uint32_t i = 0; port->experts[l] != NULL && i < size; i++)
            hth_expert_free(port->experts[l][i]);
        hth_free(port->experts[l]);
        hth_grid_view_unref(port->view[l]);
    }
    drop_rows(port);
    hth_exec_free(port->exec);
    hth_free(port);
}

static const struct hth_port_ops local_ops = {
    .view = local_view,
    .find = local_find,
    .call = local_call,
    .gauge = local_gauge,
    .ask = local_ask,
    .free = local_free,
};

static enum hth_err make_layer(struct local_port *port, const struct hth_port_opts *opts,
                               uint32_t layer)
{
    const struct hth_grid *grid = &opts->grids[layer];
    uint32_t size = hth_grid_size(grid), made = opts->without_experts ? 0 : size;
    uint32_t *all = hth_try_calloc(size, sizeof(*all));
    enum hth_err err = HTH_OK;

    port->grid[layer] = *grid;
    port->layers = layer + 1;
    port->experts[layer] = hth_try_calloc(size, sizeof(*port->experts[layer]));
    if (all == NULL || port->experts[layer] == NULL) {
        err = HTH_E_NO_MEMORY;
        goto out;
    }
    for (uint32_t i = 0; i < made; i++) {
        struct hth_expert_opts e = HTH_EXPERT_OPTS_INIT;

        all[i] = i;
        memcpy(e.uid.name, grid->name, sizeof(e.uid.name));
        e.uid.ncoord = grid->ndim;
        hth_grid_coords(grid, i, e.uid.coord);
        e.kind = opts->expert_kind;
        e.shape.d = opts->d;
        e.shape.block_rows = opts->block_rows;
        e.optim = opts->optim->optim;
        e.schedule = opts->optim->schedule;
        e.clip_norm = opts->optim->clip_norm;
        e.backend = opts->backend;
        e.run_seed = opts->run_seed;
        HTH_GOTO(out, hth_expert_new(&e, &port->experts[layer][i]));
        HTH_GOTO(out, hth_expert_init(port->experts[layer][i]));
    }
    err = hth_grid_view_new(grid, all, made, &port->view[layer]);
out:
    hth_free(all);
    return err;
}

enum hth_err hth_port_local_new(const struct hth_port_opts *opts, struct hth_port **out)
{
    struct local_port *port;
    enum hth_err err;

    *out = NULL;
    if (opts->layers > HTH_MODEL_LAYERS_MAX)
        return HTH_E_CONFIG;
    port = hth_new(struct local_port);
    port->base.ops = &local_ops;
    port->env = opts->env;
    port->queue = opts->queue;
    port->backend = opts->backend;
    port->d = opts->d;
    port->block_rows = HTH_MAX(opts->block_rows, 1u);
    port->step_rows = HTH_MAX(opts->step_rows, (uint64_t)1);
    HTH_GOTO(fail, hth_exec_new(opts->backend, 0, &port->exec));
    hth_exec_set_team(port->exec, hth_env_team(opts->env));
    for (uint32_t l = 0; l < opts->layers; l++)
        HTH_GOTO(fail, make_layer(port, opts, l));
    *out = &port->base;
    return HTH_OK;
fail:
    local_free(&port->base);
    return err;
}

struct hth_expert *hth_port_local_expert(struct hth_port *base, uint32_t layer, uint32_t index)
{
    struct local_port *port = HTH_CONTAINER(base, struct local_port, base);

    if (base->ops != &local_ops || layer >= port->layers ||
        index >= hth_grid_size(&port->grid[layer]))
        return NULL;
    return port->experts[layer][index];
}
