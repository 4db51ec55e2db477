/* SPDX-License-Identifier: Apache-2.0 */
/* client.c: life of the client and its batches; client_int.h has the picture. */
#include "experts/client_int.h"

#include <string.h>

/* A call of method INFO. */
struct cl_info {
    struct hth_expert_client *client;
    struct cl_info *prev, *next;
    struct hth_rpc_call *call;
    hth_expert_info_fn *done;
    void *arg;
};

enum hth_err hth_expert_client_new(struct hth_env *env, struct hth_rpc *rpc,
                                   const struct hth_expert_client_opts *opts,
                                   struct hth_expert_client **out)
{
    struct hth_expert_client *c;

    *out = NULL;
    if (opts->timeout_us <= 0 || opts->grace_us < 0)
        return HTH_E_CONFIG;
    c = hth_new(struct hth_expert_client);
    c->env = env;
    c->rpc = rpc;
    c->opts = *opts;
    c->idem_hi = hth_rng_u64(&env->rng) | 1; /* never the zero key */
    *out = c;
    return HTH_OK;
}

/* ---- batches ------------------------------------------------------------------------------- */

static void unlink_batch(struct hth_expert_batch *b)
{
    if (b->client == NULL)
        return;
    if (b->prev != NULL)
        b->prev->next = b->next;
    else
        b->client->batches = b->next;
    if (b->next != NULL)
        b->next->prev = b->prev;
    b->client = NULL;
}

static void free_timers(struct hth_expert_batch *b)
{
    hth_timer_free(b->env, b->deadline_timer);
    hth_timer_free(b->env, b->grace_timer);
    hth_timer_free(b->env, b->finish_timer);
    b->deadline_timer = b->grace_timer = b->finish_timer = NULL;
}

void hth_cl_release(struct hth_expert_batch *b)
{
    if (b->packs > 0)
        return;
    for (uint32_t i = 0; i < b->groups_count; i++)
        hth_cl_group_free(b->groups[i]);
    free_timers(b);
    hth_blob_unref(b->x.blob);
    hth_blob_unref(b->dy.blob);
    hth_free(b->groups);
    hth_free(b->targets);
    hth_free(b->answered_by);
    hth_free(b->pairs);
    hth_free(b->places);
    hth_free(b->verdicts);
    hth_free(b->left);
    hth_free(b->ok);
    hth_free(b);
}

void hth_expert_batch_free(struct hth_expert_batch *batch)
{
    if (batch == NULL)
        return;
    for (uint32_t i = 0; i < batch->groups_count; i++) {
        struct cl_group *g = batch->groups[i];
        if (!g->settled && g->call != NULL)
            hth_rpc_cancel(g->call);
        g->call = NULL;
        g->settled = true;
        hth_timer_free(batch->env, g->retry_timer);
        g->retry_timer = NULL;
    }
    unlink_batch(batch);
    free_timers(batch);
    batch->dead = true;
    hth_cl_release(batch);
}

static void call_done(struct hth_expert_batch *b)
{
    free_timers(b);
    b->info.elapsed_us = hth_now_us(b->env) - b->started_us;
    unlink_batch(b);
    b->done(b->arg, b); /* may free the batch */
}

static void on_finish(void *arg)
{
    call_done(arg);
}

void hth_cl_finish(struct hth_expert_batch *b)
{
    b->finished = true;
    hth_timer_cancel(b->env, b->deadline_timer);
    hth_timer_cancel(b->env, b->grace_timer);
    if (b->in_call)
        hth_timer_set(b->env, b->finish_timer, 0);
    else
        call_done(b);
}

static void on_deadline(void *arg)
{
    hth_cl_cut(arg, HTH_E_TIMEOUT);
}

static enum hth_err check_call(const struct hth_expert_call *c)
{
    uint64_t block = HTH_MAX(1u, c->block_rows), units, pair_rows;
    bool backward = c->dy.blob != NULL;

    if (c->layer == NULL || strlen(c->layer) == 0 || strlen(c->layer) > HTH_NAME_LEN_MAX ||
        c->ndim == 0 || c->ndim > HTH_GRID_DIMS_MAX)
        return HTH_E_RANGE;
    if (c->pairs_count == 0)
        return HTH_E_RANGE;
    if (c->pairs_count > HTH_EXPERT_PAIRS_MAX || block > HTH_EXPERT_BLOCK_ROWS_MAX)
        return HTH_E_TOO_LARGE;
    if (c->x.ndim != 2 || c->x.dtype != HTH_F32 || c->x.dim[1] == 0 ||
        c->x.dim[1] > HTH_EXPERT_D_MAX || c->x.dim[0] % block != 0 || c->x.dim[0] > UINT32_MAX)
        return HTH_E_BAD_SHAPE;
    units = c->x.dim[0] / block;
    pair_rows = c->pairs_count * block;
    HTH_TRY(hth_rows_check(&c->x, c->x.dim[0], c->x.dim[1]));
    if (backward &&
        (c->dy.dtype != HTH_F32 || hth_rows_check(&c->dy, pair_rows, c->x.dim[1]) != HTH_OK))
        return HTH_E_BAD_SHAPE;
    if (c->wire != 0 && !hth_rows_dtype_ok(c->wire))
        return HTH_E_BAD_SHAPE;
    for (uint32_t i = 0; i < c->pairs_count; i++)
        if (c->pairs[i].unit >= units || c->pairs[i].target >= c->targets_count)
            return HTH_E_RANGE;
    return HTH_OK;
}

static void *copy_of(const void *from, size_t count, size_t size)
{
    void *to = hth_try_calloc(count > 0 ? count : 1, size);

    if (to != NULL && count > 0)
        memcpy(to, from, count * size);
    return to;
}

/* Copies the arrays whose size the call decides. */
static enum hth_err copy_lists(struct hth_expert_batch *b, const struct hth_expert_call *c)
{
    b->targets_count = c->targets_count;
    b->pairs_count = c->pairs_count;
    b->targets = copy_of(c->targets, c->targets_count, sizeof(*c->targets));
    b->answered_by = hth_try_calloc(c->targets_count + 1, sizeof(*b->answered_by));
    b->pairs = copy_of(c->pairs, c->pairs_count, sizeof(*c->pairs));
    b->places = hth_try_calloc(c->pairs_count, sizeof(*b->places));
    b->verdicts = hth_try_calloc(c->pairs_count, sizeof(*b->verdicts));
    b->left = hth_try_calloc(b->units + 1, sizeof(*b->left));
    b->ok = hth_try_calloc(b->units + 1, sizeof(*b->ok));
    if (b->targets == NULL || b->answered_by == NULL || b->pairs == NULL || b->places == NULL ||
        b->verdicts == NULL || b->left == NULL || b->ok == NULL)
        return HTH_E_NO_MEMORY;
    for (uint32_t i = 0; i < c->pairs_count; i++)
        if (b->left[c->pairs[i].unit]++ == UINT16_MAX)
            return HTH_E_TOO_LARGE;
    for (uint32_t u = 0; u < b->units; u++)
        b->unsatisfied += b->left[u] > 0 && b->k_min > 0 ? 1 : 0;
    return HTH_OK;
}

static struct hth_expert_batch *batch_new(struct hth_expert_client *client,
                                          const struct hth_expert_call *c)
{
    const struct hth_expert_client_opts *o = &client->opts;
    struct hth_expert_batch *b = hth_new(struct hth_expert_batch);

    b->client = client;
    b->env = client->env;
    memcpy(b->layer, c->layer, strlen(c->layer));
    b->ndim = c->ndim;
    b->block_rows = HTH_MAX(1u, c->block_rows);
    b->d = (uint32_t)c->x.dim[1];
    b->units = (uint32_t)(c->x.dim[0] / b->block_rows);
    b->backward = c->dy.blob != NULL;
    if (b->backward)
        b->rows_in_microbatch =
            c->rows_in_microbatch > 0 ? c->rows_in_microbatch : (uint32_t)c->x.dim[0];
    b->keep = c->keep && !b->backward;
    b->k_min = c->k_min;
    b->wire = c->wire != 0 ? c->wire : HTH_F32;
    b->x = c->x;
    hth_blob_ref(b->x.blob);
    if (b->backward) {
        b->dy = c->dy;
        hth_blob_ref(b->dy.blob);
    }
    b->started_us = hth_now_us(b->env);
    b->deadline_us = b->started_us + (c->timeout_us > 0 ? c->timeout_us : o->timeout_us);
    b->grace_us = c->grace_us > 0 ? c->grace_us : o->grace_us;
    b->gain_max = c->gain_max;
    b->trace_id = c->trace_id;
    b->deadline_timer = hth_timer_new(b->env, on_deadline, b);
    b->grace_timer = hth_timer_new(b->env, on_deadline, b);
    b->finish_timer = hth_timer_new(b->env, on_finish, b);
    b->next = client->batches;
    if (b->next != NULL)
        b->next->prev = b;
    client->batches = b;
    return b;
}

enum hth_err hth_experts_call(struct hth_expert_client *client, const struct hth_expert_call *call,
                              hth_expert_batch_fn *done, void *arg, struct hth_expert_batch **out)
{
    struct hth_expert_batch *b;
    uint32_t *all;
    enum hth_err err;

    *out = NULL;
    HTH_TRY(check_call(call));
    b = batch_new(client, call);
    b->done = done;
    b->arg = arg;
    all = hth_try_calloc(call->pairs_count, sizeof(*all));
    err = HTH_E_NO_MEMORY;
    if (all == NULL)
        goto out;
    for (uint32_t i = 0; i < call->pairs_count; i++)
        all[i] = i;
    HTH_GOTO(out, copy_lists(b, call));
    HTH_GOTO(out, hth_cl_deal(b, all, call->pairs_count, false));
    hth_timer_set(b->env, b->deadline_timer, b->deadline_us - b->started_us);
    if (b->backward && call->forward != NULL)
        hth_cl_name(b, call->forward);
    b->in_call = true;
    hth_cl_pack(b, 0, b->groups_count);
    b->in_call = false;
    *out = b;
out:
    hth_free(all);
    if (err != HTH_OK)
        hth_expert_batch_free(b);
    return err;
}

/* ---- a finished batch ---------------------------------------------------------------------- */

uint32_t hth_expert_batch_pairs(const struct hth_expert_batch *batch)
{
    return batch->pairs_count;
}

const enum hth_err *hth_expert_batch_verdicts(const struct hth_expert_batch *batch)
{
    return batch->verdicts;
}

uint32_t hth_expert_batch_ok_count(const struct hth_expert_batch *batch)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < batch->pairs_count; i++)
        count += batch->verdicts[i] == HTH_OK ? 1 : 0;
    return count;
}

void hth_expert_batch_host(const struct hth_expert_batch *batch, uint32_t target,
                           struct hth_peer_id *host, struct hth_addr *addr)
{
    const struct hth_expert_target *t = &batch->targets[target];
    uint32_t group = batch->answered_by[target];

    *host = group > 0 ? batch->groups[group - 1]->to.peer : t->host;
    *addr = group > 0 ? batch->groups[group - 1]->to.addr : t->addr;
}

void hth_expert_batch_info(const struct hth_expert_batch *batch, struct hth_expert_batch_info *out)
{
    *out = batch->info;
}

/* ---- list of a host's experts -------------------------------------------------------------- */

static void info_unlink(struct cl_info *q)
{
    if (q->prev != NULL)
        q->prev->next = q->next;
    else
        q->client->infos = q->next;
    if (q->next != NULL)
        q->next->prev = q->prev;
}

static void on_info(void *arg, const struct hth_rpc_result *r)
{
    struct cl_info *q = arg;
    struct hth_expert_info *infos = NULL;
    uint32_t count = 0, total = 0;
    enum hth_err err = r->err;

    if (err == HTH_OK)
        err = hth_info_reply_open(r->payload, r->payload_len, &infos, &count, &total);
    info_unlink(q);
    q->done(q->arg, err, infos, count, total);
    hth_free(infos);
    hth_free(q);
}

enum hth_err hth_expert_client_info(struct hth_expert_client *client,
                                    const struct hth_rpc_target *host, uint32_t first,
                                    int64_t timeout_us, hth_expert_info_fn *done, void *arg)
{
    struct hth_rpc_call_opts call = {.method = HTH_METHOD_EXPERT_INFO, .timeout_us = timeout_us};
    struct cl_info *q = hth_new(struct cl_info);
    uint8_t payload[8];
    enum hth_err err;

    hth_info_request_pack(first, payload, &call.body.payload_len);
    call.body.payload = payload;
    q->client = client;
    q->done = done;
    q->arg = arg;
    err = hth_rpc_call(client->rpc, host, &call, on_info, q, &q->call);
    if (err != HTH_OK) {
        hth_free(q);
        return err;
    }
    q->next = client->infos;
    if (q->next != NULL)
        q->next->prev = q;
    client->infos = q;
    return HTH_OK;
}

void hth_expert_client_free(struct hth_expert_client *client)
{
    struct cl_info *q;

    if (client == NULL)
        return;
    while (client->batches != NULL)
        hth_expert_batch_free(client->batches);
    while ((q = client->infos) != NULL) {
        client->infos = q->next;
        hth_rpc_cancel(q->call);
        hth_free(q);
    }
    hth_free(client);
}
