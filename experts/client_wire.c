/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_wire.c: brings a group to its verdict: sends it, retries or turns to the replicas, and
 * gives each of its pairs a verdict.
 *
 *   BUSY              a forward goes to the replicas; else retry after the time in the refusal
 *   lost, timed out   a forward goes to the replicas; else one retry on the same host, a backward
 *                     with the same idempotency key
 *   GONE              the rows of a forward that was named: send them
 *   other             the verdict
 *
 * All retries end at the batch's deadline.
 */
#include "experts/client_int.h"

#include <string.h>

#define RETRY_MIN_US (1 * HTH_US_PER_MS)
/* With less time left a retry can't succeed. */
#define RETRY_WORTH_US (1 * HTH_US_PER_MS)

static void tell_host(const struct cl_group *g, enum hth_err err, int64_t rtt_us)
{
    const struct hth_expert_client_opts *o = &g->batch->client->opts;

    if (o->on_host != NULL)
        o->on_host(o->arg, &g->to.peer, err, rtt_us);
}

static void pair_verdict(struct hth_expert_batch *b, uint32_t pair, enum hth_err err)
{
    uint32_t unit = b->pairs[pair].unit;
    bool was = b->ok[unit] >= b->k_min || b->left[unit] == 0;

    b->verdicts[pair] = err;
    b->left[unit]--;
    if (err == HTH_OK) {
        b->ok[unit]++;
        b->answered_by[b->pairs[pair].target] = b->places[pair].group + 1;
    }
    if (!was && (b->ok[unit] >= b->k_min || b->left[unit] == 0))
        b->unsatisfied--;
}

void hth_cl_settle(struct cl_group *g, enum hth_err err)
{
    struct hth_expert_batch *b = g->batch;

    g->settled = true;
    g->err = err;
    g->call = NULL;
    hth_timer_free(b->env, g->retry_timer);
    g->retry_timer = NULL;
    b->info.hosts_failed += err != HTH_OK ? 1 : 0;
    for (uint32_t i = 0; i < g->pairs_count; i++) {
        uint32_t part = b->places[g->pairs[i]].part;
        pair_verdict(b, g->pairs[i], err != HTH_OK ? err : g->status[part]);
    }
    if (--b->groups_open == 0) {
        hth_cl_finish(b);
    } else if (b->k_min > 0 && b->unsatisfied == 0 && !b->grace_armed) {
        b->grace_armed = true;
        hth_timer_set(b->env, b->grace_timer, b->grace_us);
    }
}

void hth_cl_cut(struct hth_expert_batch *b, enum hth_err err)
{
    uint32_t open = b->groups_open;

    for (uint32_t i = 0; open > 0; i++) {
        struct cl_group *g = b->groups[i];
        if (g->settled)
            continue;
        open--; /* the last settle may free the batch: no access after it */
        if (g->call != NULL)
            hth_rpc_cancel(g->call);
        if (g->call != NULL || g->retry_timer != NULL)
            tell_host(g, b->grace_armed ? HTH_E_CANCELED : err, 0);
        hth_cl_settle(g, err);
    }
}

/* Deals the pairs to new groups on their replicas. False when one of them has none. */
static bool go_to_replicas(struct cl_group *g)
{
    struct hth_expert_batch *b = g->batch;
    uint32_t first = b->groups_count;
    bool was_in_call = b->in_call;

    if (b->backward || g->on_replica)
        return false;
    for (uint32_t i = 0; i < g->pairs_count; i++)
        if (!b->targets[b->pairs[g->pairs[i]].target].has_replica)
            return false;
    if (hth_cl_deal(b, g->pairs, g->pairs_count, true) != HTH_OK)
        return false;
    g->settled = true; /* the new groups settle its pairs */
    b->groups_open--;
    b->info.hosts_failed++;
    b->info.retries++;
    b->in_call = true;
    hth_cl_pack(b, first, b->groups_count);
    b->in_call = was_in_call;
    return true;
}

static void on_retry(void *arg)
{
    hth_cl_send(arg);
}

static void retry_later(struct cl_group *g, int64_t delay_us)
{
    struct hth_env *env = g->batch->env;

    g->batch->info.retries++;
    if (g->retry_timer == NULL)
        g->retry_timer = hth_timer_new(env, on_retry, g);
    hth_timer_set(env, g->retry_timer, delay_us);
}

static bool is_lost(enum hth_err err)
{
    return err == HTH_E_CLOSED || err == HTH_E_TIMEOUT || err == HTH_E_REFUSED ||
           err == HTH_E_UNREACHABLE || err == HTH_E_DRAINING;
}

/* The rest of the endpoint's back-off after a lost connection; calls until then fail at once. */
static int64_t backoff_us(const struct cl_group *g)
{
    struct hth_rpc_peer_info info;

    if (hth_rpc_peer_info(g->batch->client->rpc, &g->to.peer, &info) != HTH_OK)
        return 0;
    return info.retry_in_us;
}

/* Arranges a retry for the group; false if there is none. */
static bool try_again(struct cl_group *g, const struct hth_rpc_result *r)
{
    struct hth_expert_batch *b = g->batch;
    const struct hth_expert_client_opts *o = &b->client->opts;
    int64_t left_us = b->deadline_us - hth_now_us(b->env);
    int64_t wait_us = HTH_MAX(RETRY_MIN_US, r->retry_after_us);

    if (left_us < RETRY_WORTH_US)
        return false;
    if (r->err == HTH_E_BUSY) {
        if (go_to_replicas(g))
            return true;
        if (g->busy_retries++ >= o->busy_retries_max || wait_us >= left_us)
            return false;
        retry_later(g, wait_us);
        return true;
    }
    if (!is_lost(r->err))
        return false;
    if (go_to_replicas(g))
        return true;
    wait_us = RETRY_MIN_US + backoff_us(g);
    if ((r->err != HTH_E_CLOSED && r->err != HTH_E_TIMEOUT) || wait_us >= left_us ||
        g->lost_retries++ >= o->lost_retries_max)
        return false;
    retry_later(g, wait_us);
    return true;
}

/* Takes the reply. A reply that does not fit the request is the host's fault: E_PROTOCOL. */
static enum hth_err read_reply(struct cl_group *g, const struct hth_rpc_result *r)
{
    struct hth_expert_batch *b = g->batch;
    bool any = false;

    if (hth_expert_msg_reply_open(r->payload, r->payload_len, g->parts, g->status, &g->kept) !=
        HTH_OK)
        return HTH_E_PROTOCOL;
    g->kept = g->kept && b->keep;
    for (uint32_t i = 0; i < g->parts; i++) {
        /* No part may have these statuses, and judging would excuse the host for them. */
        if (g->status[i] == HTH_E_CANCELED || g->status[i] == HTH_E_BUSY)
            g->status[i] = HTH_E_PROTOCOL;
        any = any || g->status[i] == HTH_OK;
    }
    if (!any)
        return HTH_OK;
    if (r->tensor_count != 1 || r->tensors[0].dtype != b->wire ||
        hth_rows_check(&r->tensors[0], g->rows_total, b->d) != HTH_OK)
        return HTH_E_PROTOCOL;
    g->reply = r->tensors[0];
    hth_blob_ref(g->reply.blob);
    b->info.bytes_in += g->rows_total * hth_rows_bytes(b->wire, b->d);
    return HTH_OK;
}

/* Sends the rows that the host no longer has; its verdict is still to come. */
static void send_rows(struct cl_group *g)
{
    struct hth_expert_batch *b = g->batch;
    uint32_t number = b->places[g->pairs[0]].group;
    bool was_in_call = b->in_call;

    b->info.retries++;
    g->named = g->x_ready = false;
    g->forward = (struct hth_rpc_idem){0};
    b->in_call = true;
    hth_cl_pack(b, number, number + 1);
    b->in_call = was_in_call;
}

static void on_result(void *arg, const struct hth_rpc_result *r)
{
    struct cl_group *g = arg;
    enum hth_err err = r->err;

    g->call = NULL;
    if (err == HTH_E_GONE && r->remote && g->named) {
        send_rows(g);
        return;
    }
    if (err == HTH_OK)
        err = read_reply(g, r);
    g->answered = err == HTH_OK;
    g->refused = r->remote && !is_lost(err);
    g->rtt_us = r->rtt_us;
    tell_host(g, err, r->rtt_us);
    if (err != HTH_OK && r->err != HTH_OK && try_again(g, r))
        return;
    hth_cl_settle(g, err);
}

void hth_cl_send(struct cl_group *g)
{
    struct hth_expert_batch *b = g->batch;
    const struct hth_expert_msg work = {.layer = b->layer,
                                        .ndim = b->ndim,
                                        .parts = g->parts,
                                        .coord = g->coord,
                                        .rows = g->rows,
                                        .rows_in_microbatch = b->rows_in_microbatch,
                                        .forward = g->forward};
    const struct hth_tensor tensors[2] = {g->named ? g->dy : g->x, g->dy};
    struct hth_rpc_call_opts call = {.idem = g->idem, .trace_id = b->trace_id};
    int64_t left_us = b->deadline_us - hth_now_us(b->env);
    uint8_t *payload;
    enum hth_err err = hth_expert_msg_pack(&work, &payload, &call.body.payload_len);

    call.method = b->backward ? HTH_METHOD_EXPERT_BACKWARD : HTH_METHOD_EXPERT_FORWARD;
    call.body.payload = payload;
    call.body.tensors = tensors;
    call.body.tensor_count = b->backward && !g->named ? 2 : 1;
    call.timeout_max_us = HTH_MAX(left_us, 1);
    if (err == HTH_OK)
        err = hth_rpc_call(b->client->rpc, &g->to, &call, on_result, g, &g->call);
    hth_free(payload);
    if (err != HTH_OK) {
        tell_host(g, err, 0);
        hth_cl_settle(g, err);
        return;
    }
    b->info.requests++;
    b->info.bytes_out += g->rows_total * hth_rows_bytes(b->wire, b->d) * call.body.tensor_count;
}
