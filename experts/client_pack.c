/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_pack.c: deals pairs to hosts and gathers their rows into requests.
 */
#include "experts/client_int.h"

#include "core/map.h"

#include <stdlib.h>
#include <string.h>

/* The sort key of pairs. The order is total, since a pair's number appears once. */
struct deal {
    uint32_t host, target, unit, pair;
};

/* A job that gathers groups. The worker reads its own list of them: the batch's list may be
 * reallocated meanwhile. */
struct pack {
    struct hth_job job;
    struct hth_expert_batch *batch;
    struct cl_group **groups;
    uint32_t count;
};

static int deal_cmp(const void *pa, const void *pb)
{
    const struct deal *a = pa, *b = pb;

    if (a->host != b->host)
        return a->host < b->host ? -1 : 1;
    if (a->target != b->target)
        return a->target < b->target ? -1 : 1;
    if (a->unit != b->unit)
        return a->unit < b->unit ? -1 : 1;
    return a->pair < b->pair ? -1 : a->pair > b->pair;
}

/* Hosts get numbers in order of their first appearance among the targets. */
static uint32_t *number_hosts(const struct hth_expert_batch *b, bool replica)
{
    struct hth_map *seen = hth_map_new();
    uint32_t *numbers = hth_new_array(uint32_t, b->targets_count);
    uint32_t count = 0;

    for (uint32_t i = 0; i < b->targets_count; i++) {
        const struct hth_expert_target *t = &b->targets[i];
        const struct hth_addr *a = replica ? &t->replica_addr : &t->addr;
        uint8_t key[HTH_HASH_LEN + 19];
        void *known;
        memcpy(key, replica ? t->replica_host.b : t->host.b, HTH_HASH_LEN);
        key[HTH_HASH_LEN] = a->family;
        memcpy(key + HTH_HASH_LEN + 1, a->ip, 16);
        memcpy(key + HTH_HASH_LEN + 17, &a->port, 2);
        known = hth_map_get(seen, key, sizeof(key));
        if (known == NULL) {
            numbers[i] = count++;
            hth_map_put(seen, key, sizeof(key), &numbers[i]);
        } else {
            numbers[i] = *(uint32_t *)known;
        }
    }
    hth_map_free(seen);
    return numbers;
}

void hth_cl_group_free(struct cl_group *g)
{
    hth_timer_free(g->batch->env, g->retry_timer);
    hth_blob_unref(g->x.blob);
    hth_blob_unref(g->dy.blob);
    hth_blob_unref(g->reply.blob);
    hth_free(g->pairs);
    hth_free(g->coord);
    hth_free(g->rows);
    hth_free(g->status);
    hth_free(g->gain);
    hth_free(g);
}

/* The number of pairs from `deals` on that one request takes: those of one host, within the limits
 * of a request. */
static uint32_t group_len(const struct hth_expert_batch *b, const struct deal *deals, uint32_t left)
{
    /* Counted as floats in any wire type: the host computes in floats and limits their number. */
    size_t unit_bytes = (size_t)b->block_rows * b->d * sizeof(float);
    /* The limit of a backward's two tensors, so that its requests are those of the forward. */
    size_t bytes_max = HTH_EXPERT_CALL_BYTES_MAX / (b->backward || b->keep ? 2 : 1);
    uint32_t parts = 1, n = 1;

    while (n < left && deals[n].host == deals[0].host) {
        parts += deals[n].target != deals[n - 1].target ? 1 : 0;
        if (parts > HTH_EXPERT_CALL_PARTS_MAX || (n + 1) * unit_bytes > bytes_max ||
            (uint64_t)(n + 1) * b->block_rows > HTH_EXPERT_CALL_ROWS_MAX)
            break;
        n++;
    }
    return n;
}

static struct cl_group *group_new(struct hth_expert_batch *b, const struct deal *deals, uint32_t n,
                                  bool replica)
{
    struct cl_group *g = hth_new(struct cl_group);
    const struct hth_expert_target *t = &b->targets[deals[0].target];
    uint32_t number = b->groups_count;

    g->batch = b;
    g->on_replica = replica;
    g->to.peer = replica ? t->replica_host : t->host;
    g->to.addr = replica ? t->replica_addr : t->addr;
    g->pairs = hth_new_array(uint32_t, n);
    g->coord = hth_new_array(uint32_t, (size_t)n * b->ndim);
    g->rows = hth_new_array(uint32_t, n);
    g->status = hth_new_array(enum hth_err, n);
    g->gain = hth_new_array(float, n);
    g->pairs_count = n;
    for (uint32_t i = 0; i < n; i++) {
        if (i == 0 || deals[i].target != deals[i - 1].target) {
            memcpy(g->coord + (size_t)g->parts * b->ndim, b->targets[deals[i].target].coord,
                   b->ndim * sizeof(uint32_t));
            g->parts++;
        }
        g->pairs[i] = deals[i].pair;
        g->rows[g->parts - 1] += b->block_rows;
        b->places[deals[i].pair] =
            (struct cl_place){.group = number, .part = g->parts - 1, .row = g->rows_total};
        g->rows_total += b->block_rows;
    }
    if (b->backward || b->keep) {
        g->idem.hi = b->client->idem_hi;
        g->idem.lo = ++b->client->idem_lo;
    }
    return g;
}

static void group_append(struct hth_expert_batch *b, struct cl_group *g)
{
    if (b->groups_count == b->groups_capacity) {
        b->groups_capacity = b->groups_capacity == 0 ? 8 : b->groups_capacity * 2;
        b->groups = hth_realloc(b->groups, b->groups_capacity, sizeof(struct cl_group *));
    }
    b->groups[b->groups_count++] = g;
    b->groups_open++;
    b->info.hosts++;
}

enum hth_err hth_cl_deal(struct hth_expert_batch *b, uint32_t *pairs, uint32_t count, bool replica)
{
    struct deal *deals = hth_try_calloc(count, sizeof(*deals));
    uint32_t *hosts = number_hosts(b, replica);
    enum hth_err err = HTH_E_NO_MEMORY;

    if (deals == NULL)
        goto out;
    for (uint32_t i = 0; i < count; i++) {
        const struct hth_expert_pair *p = &b->pairs[pairs[i]];
        deals[i] = (struct deal){hosts[p->target], p->target, p->unit, pairs[i]};
    }
    qsort(deals, count, sizeof(*deals), deal_cmp);
    err = HTH_E_DUPLICATE;
    for (uint32_t i = 1; i < count; i++)
        if (deals[i].target == deals[i - 1].target && deals[i].unit == deals[i - 1].unit)
            goto out;
    for (uint32_t i = 0, n; i < count; i += n) {
        n = group_len(b, deals + i, count - i);
        group_append(b, group_new(b, deals + i, n, replica));
    }
    err = HTH_OK;
out:
    hth_free(deals);
    hth_free(hosts);
    return err;
}

/* The forward's request with exactly the pairs of this group, to the same host, if that host keeps
 * its rows; else NULL. */
static const struct cl_group *forward_of(const struct cl_group *g,
                                         const struct hth_expert_batch *forward)
{
    const struct hth_expert_pair *pairs = g->batch->pairs;
    uint32_t target = pairs[g->pairs[0]].target;
    const struct cl_group *f;

    if (target >= forward->targets_count || forward->answered_by[target] == 0)
        return NULL;
    f = forward->groups[forward->answered_by[target] - 1];
    if (!f->kept || hth_peer_id_cmp(&f->to.peer, &g->to.peer) != 0 ||
        f->pairs_count != g->pairs_count || forward->wire != g->batch->wire)
        return NULL;
    for (uint32_t i = 0; i < g->pairs_count; i++) {
        const struct hth_expert_pair *a = &forward->pairs[f->pairs[i]], *b = &pairs[g->pairs[i]];
        if (a->unit != b->unit || a->target != b->target)
            return NULL;
    }
    return f;
}

void hth_cl_name(struct hth_expert_batch *b, const struct hth_expert_batch *forward)
{
    for (uint32_t i = 0; i < b->groups_count; i++) {
        const struct cl_group *f = forward_of(b->groups[i], forward);
        if (f == NULL)
            continue;
        b->groups[i]->named = true;
        b->groups[i]->forward = f->idem;
    }
}

/* ---- gathering ----------------------------------------------------------------------------- */

/* The number of the unit whose rows pair i of the group sends: of x, or of dy. */
static uint32_t unit_of(const struct cl_group *g, uint32_t i, bool dy)
{
    return dy ? g->pairs[i] : g->batch->pairs[g->pairs[i]].unit;
}

/* True if the group's rows lie one after the other in the caller's tensor, at an offset that the
 * wire can carry. They are sent from there. */
static bool is_direct(const struct cl_group *g, const struct hth_tensor *t, bool dy)
{
    const struct hth_expert_batch *b = g->batch;
    size_t unit_bytes = (size_t)b->block_rows * b->d * sizeof(float);

    if (b->wire != HTH_F32 || (t->offset + unit_of(g, 0, dy) * unit_bytes) % 64 != 0)
        return false;
    for (uint32_t i = 1; i < g->pairs_count; i++)
        if (unit_of(g, i, dy) != unit_of(g, 0, dy) + i)
            return false;
    return true;
}

static enum hth_err prepare(struct cl_group *g, struct hth_tensor *out, bool dy, bool *direct)
{
    struct hth_expert_batch *b = g->batch;
    const struct hth_tensor *from = dy ? &b->dy : &b->x;
    size_t unit_bytes = (size_t)b->block_rows * b->d * sizeof(float);
    size_t bytes = g->rows_total * hth_rows_bytes(b->wire, b->d);

    *out = hth_rows_tensor(b->wire, g->rows_total, b->d);
    *direct = is_direct(g, from, dy);
    if (!*direct)
        return hth_env_blob_new(b->env, bytes, b->client->opts.budget, &out->blob);
    out->blob = hth_blob_ref(from->blob);
    out->offset = from->offset + unit_of(g, 0, dy) * unit_bytes;
    return HTH_OK;
}

static void gather(const struct cl_group *g, const struct hth_tensor *to, bool dy)
{
    const struct hth_expert_batch *b = g->batch;
    const struct hth_tensor *from = dy ? &b->dy : &b->x;
    size_t n = (size_t)b->block_rows * b->d, step = b->block_rows * hth_rows_bytes(b->wire, b->d);
    const float *rows = (const float *)(const void *)(from->blob->data + from->offset);

    for (uint32_t i = 0; i < g->pairs_count; i++)
        hth_rows_from_f32(rows + unit_of(g, i, dy) * n, b->wire, b->block_rows, b->d,
                          to->blob->data + to->offset + i * step);
}

static void pack_run(struct hth_job *job)
{
    const struct pack *p = HTH_CONTAINER(job, struct pack, job);

    for (uint32_t i = 0; i < p->count; i++) {
        const struct cl_group *g = p->groups[i];
        if (!g->x_ready)
            gather(g, &g->x, false);
        if (!g->dy_ready)
            gather(g, &g->dy, true);
    }
}

static void pack_done(struct hth_job *job, enum hth_err err)
{
    struct pack *p = HTH_CONTAINER(job, struct pack, job);
    struct hth_expert_batch *b = p->batch;
    bool was_in_call = b->in_call;

    b->packs--;
    b->in_call = true; /* settling a group must not free the batch under this loop */
    for (uint32_t i = 0; i < p->count && !b->dead; i++) {
        p->groups[i]->x_ready = p->groups[i]->dy_ready = true;
        if (p->groups[i]->settled)
            continue;
        if (err != HTH_OK)
            hth_cl_settle(p->groups[i], err);
        else
            hth_cl_send(p->groups[i]);
    }
    b->in_call = was_in_call;
    hth_free(p->groups);
    hth_free(p);
    if (b->dead)
        hth_cl_release(b);
}

static bool is_ready(const struct cl_group *g)
{
    return g->x_ready && g->dy_ready;
}

/* A pack of those groups first .. end - 1 that have rows to gather; NULL if there are none. */
static struct pack *pack_new(struct hth_expert_batch *b, uint32_t first, uint32_t end)
{
    struct pack *p = hth_new(struct pack);

    p->batch = b;
    p->groups = hth_new_array(struct cl_group *, end - first);
    p->job = (struct hth_job){.lane = HTH_LANE_COMPUTE, .run = pack_run, .done = pack_done};
    for (uint32_t i = first; i < end; i++) {
        struct cl_group *g = b->groups[i];
        if (g->settled || is_ready(g))
            continue;
        p->groups[p->count++] = g;
        p->job.bytes_moved += 8.0 * g->rows_total * b->d;
    }
    if (p->count > 0)
        return p;
    hth_free(p->groups);
    hth_free(p);
    return NULL;
}

/* Gives the group the tensors that it needs and does not have yet. */
static enum hth_err prepare_group(struct cl_group *g)
{
    g->x_ready = g->x_ready || g->named;
    g->dy_ready = g->dy_ready || !g->batch->backward;
    if (!g->x_ready && g->x.blob == NULL)
        HTH_TRY(prepare(g, &g->x, false, &g->x_ready));
    if (!g->dy_ready && g->dy.blob == NULL)
        HTH_TRY(prepare(g, &g->dy, true, &g->dy_ready));
    return HTH_OK;
}

void hth_cl_pack(struct hth_expert_batch *b, uint32_t first, uint32_t end)
{
    struct pack *p;
    enum hth_err err;

    for (uint32_t i = first; i < end; i++) {
        err = prepare_group(b->groups[i]);
        if (err != HTH_OK)
            hth_cl_settle(b->groups[i], err);
    }
    p = pack_new(b, first, end);
    for (uint32_t i = first; i < end; i++) {
        struct cl_group *g = b->groups[i];
        if (!g->settled && is_ready(g))
            hth_cl_send(g);
    }
    if (p == NULL)
        return;
    b->packs++;
    err = hth_job_submit(b->env, &p->job);
    if (err != HTH_OK)
        pack_done(&p->job, err);
}
