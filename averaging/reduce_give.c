/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_give.c: a member's own parts on their way to the reducers and back.
 *
 *   waiting -> encoding -> out -> applying -> settled
 *      |  fp32: none        |         ^
 *      ^--- E_BUSY ---------'         |
 *      `---- given up: keep the local values
 */
#include <math.h>
#include <string.h>

#include "averaging/reduce_int.h"

/* One way of a part: its values to the reducer, or what they become here. */
struct give {
    struct hth_job job;
    struct reduce_part *part;
    struct hth_blob *blob; /* of the values, or of the answer; NULL: none */
    size_t offset;
    enum hth_err err; /* of the arithmetic. Applying: the local values are kept */
    struct hth_part_head head;
    struct hth_part_reply reply;
    double weight; /* in the mean */
};

static struct reduce_member_state *reducer_of(const struct reduce_part *p)
{
    return &p->round->members[p->to];
}

static struct give *give_new(struct reduce_part *p)
{
    struct give *g = hth_new(struct give);
    round_ref(p->round);
    g->part = p;
    return g;
}

static void give_free(struct give *g)
{
    hth_blob_unref(g->blob);
    round_unref(g->part->round);
    hth_free(g);
}

static enum hth_err submit(struct give *g, void (*run)(struct hth_job *),
                           void (*done)(struct hth_job *, enum hth_err), double flops, double bytes)
{
    uint32_t floats = g->part->count;
    g->job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                              .run = run,
                              .done = done,
                              .flops = flops * floats,
                              .bytes_moved = bytes + floats * sizeof(float)};
    return hth_job_submit(g->part->round->reducer->env, &g->job);
}

/* ---- applying answers ---------------------------------------------------------------------- */

static bool is_far(const struct reduce_part *p, const float *y, const float *own)
{
    const struct hth_reduce_round *r = p->round;
    double most = 0;
    if (r->is.far == NULL)
        return false;
    for (uint64_t at = p->first, end = at + p->count, next; at < end; at = next) {
        uint64_t block = at / HTH_AVG_BLOCK_FLOATS, first = block * HTH_AVG_BLOCK_FLOATS;
        uint64_t size = HTH_MIN(r->is.count - first, HTH_AVG_BLOCK_FLOATS);
        next = HTH_MIN(first + size, end);
        most += (double)r->is.far[block] * r->is.far[block] * (double)(next - at) / (double)size;
    }
    return !(hth_reduce_distance(y, own, p->count) <= sqrt(most));
}

static void run_apply(struct hth_job *job)
{
    struct give *g = HTH_CONTAINER(job, struct give, job);
    const struct reduce_part *p = g->part;
    float *y = (float *)(void *)p->round->average->data + p->first;
    const float *own = (const float *)(const void *)p->round->is.values->data + p->first;
    if (g->err == HTH_OK)
        g->err = hth_codec_decode(g->reply.segments, g->reply.segment_count,
                                  g->blob->data + g->offset, p->round->is.same ? NULL : own, y);
    if (g->err == HTH_OK && is_far(p, y, own))
        g->err = HTH_E_NORM;
    if (g->err != HTH_OK)
        memcpy(y, own, p->count * sizeof(float));
}

static void done_apply(struct hth_job *job, enum hth_err err)
{
    struct give *g = HTH_CONTAINER(job, struct give, job);
    struct reduce_part *p = g->part;
    struct hth_reduce_round *r = p->round;
    bool kept = g->err != HTH_OK;
    if (r->reducer != NULL && err != HTH_OK) {
        round_fail(r, err);
    } else if (r->reducer != NULL) {
        if (g->err == HTH_E_NORM)
            give_fail(r, p->to, HTH_REDUCE_DROP_FAR);
        if (g->err == HTH_E_NOT_FINITE)
            give_fail(r, p->to, HTH_REDUCE_DROP_REFUSED);
        reducer_of(p)->settled++;
        r->settled_floats += p->count;
        r->sends_left--;
        r->result.parts_kept += kept;
        r->result.weight += (kept ? reduce_self(r)->is.weight : g->weight) * p->count;
        give_pump_all(r);
        round_check(r);
    }
    give_free(g);
}

/* Writes the part's mean by the answer; with an error the local values are kept. */
static void apply(struct give *g)
{
    struct reduce_part *p = g->part;
    reducer_of(p)->under_way_bytes -= p->bytes;
    p->waiting = false;
    enum hth_err err = submit(g, run_apply, done_apply, 1, 2.0 * p->count * sizeof(float));
    if (err != HTH_OK) {
        round_fail(p->round, err);
        give_free(g);
    }
}

static void keep(struct reduce_part *p)
{
    struct give *g = give_new(p);
    g->err = HTH_E_UNREACHABLE;
    apply(g);
}

/* ---- answers ------------------------------------------------------------------------------- */

static bool is_missing(const struct give *g, uint32_t i)
{
    return (g->reply.missing[i / 8] >> i % 8 & 1) != 0;
}

/* A reducer has its own values: it is without them only where they are not finite. */
static void note_missing(const struct give *g)
{
    struct hth_reduce_round *r = g->part->round;
    for (uint32_t i = 0; i < r->is.member_count; i++)
        r->members[i].fate->parts_missing += is_missing(g, i);
    if (is_missing(g, g->part->to))
        reducer_of(g->part)->fate->as_sender = HTH_REDUCE_DROP_NOT_FINITE;
}

/* The answer fits the part and the group, or the reducer is not to be believed. */
static enum hth_err open_answer(struct give *g, const struct hth_rpc_result *result)
{
    const struct hth_reduce_round *r = g->part->round;
    struct hth_part_reply *reply = &g->reply;
    uint64_t bytes;
    HTH_TRY(hth_part_tensor(result->tensors, result->tensor_count, &bytes));
    HTH_TRY(hth_part_reply_open(result->payload, result->payload_len, bytes, reply));
    for (uint32_t i = 0; i < r->is.member_count; i++)
        g->weight += is_missing(g, i) ? 0 : r->members[i].is.weight;
    if (reply->segment_count == 0 || (reply->floats == g->part->count && g->weight > 0))
        return HTH_OK;
    return HTH_E_RANGE;
}

static void on_reply(struct reduce_part *p, const struct hth_rpc_result *result)
{
    struct hth_reduce_round *r = p->round;
    struct give *g = give_new(p);
    watch_progress(r, p->to);
    reducer_of(p)->put_off_us = 0;
    g->err = open_answer(g, result);
    if (g->err != HTH_OK) {
        apply(g);
        give_fail(r, p->to, HTH_REDUCE_DROP_REFUSED);
        return;
    }
    note_missing(g);
    uint64_t bytes = hth_codec_bytes(g->reply.segments, g->reply.segment_count);
    r->result.bytes_in += bytes;
    r->reducer->stats.bytes_in += bytes;
    if (bytes > 0) {
        g->blob = hth_blob_ref(result->tensors->blob);
        g->offset = result->tensors->offset;
    } else {
        g->err = HTH_E_UNREACHABLE;
    }
    apply(g);
    give_pump_all(r);
}

/* Given up as a reducer, and in both roles where it is gone or the round is over there. */
static void on_failure(struct reduce_part *p, const struct hth_rpc_result *result)
{
    struct hth_reduce_round *r = p->round;
    bool over = result->err == HTH_E_EXPIRED || result->err == HTH_E_CANCELED;
    keep(p);
    if (result->remote && over) /* it may be we who are late */
        watch_drop(r, p->to, HTH_REDUCE_DROP_SLOW);
    else if (result->remote)
        give_fail(r, p->to, HTH_REDUCE_DROP_REFUSED);
    else if (result->err == HTH_E_TIMEOUT)
        give_fail(r, p->to, HTH_REDUCE_DROP_SLOW);
    else
        watch_drop(r, p->to, HTH_REDUCE_DROP_LOST);
}

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct reduce_part *p = arg;
    struct hth_reduce_round *r = p->round;
    struct reduce_member_state *m = reducer_of(p);
    p->call = NULL;
    if (result->err == HTH_OK) {
        on_reply(p, result);
    } else if (result->err == HTH_E_BUSY && result->remote) {
        m->heard_us = hth_now_us(r->reducer->env); /* it lives, and has no room just now */
        if (m->put_off_us == 0)
            m->put_off_us = m->heard_us;
        p->waiting = true;
    } else if (result->err == HTH_E_BUDGET || result->err == HTH_E_NO_MEMORY) {
        keep(p); /* no room here for this answer */
        give_pump_all(r);
    } else {
        on_failure(p, result);
    }
}

/* ---- sending ------------------------------------------------------------------------------- */

/* Without segments it asks for the mean. */
static void send_call(struct give *g)
{
    struct reduce_part *p = g->part;
    struct hth_reduce_round *r = p->round;
    const struct reduce_member_state *m = reducer_of(p);
    uint8_t payload[HTH_PART_BYTES_MAX];
    uint64_t bytes = hth_codec_bytes(g->head.segments, g->head.segment_count);
    struct hth_tensor tensor = {HTH_U8, 1, {bytes}, g->blob, g->offset};
    struct hth_rpc_target target = {m->is.id, m->is.addr};
    struct hth_rpc_call_opts opts = {
        .method = HTH_REDUCE_METHOD,
        .body = {payload, hth_part_pack(&g->head, payload), &tensor, bytes > 0 ? 1 : 0},
        .timeout_us = HTH_MAX(
            r->start_us + r->is.timeout_us / 100 * 95 - hth_now_us(r->reducer->env), (int64_t)1),
        .trace_id = g->head.part,
    };
    enum hth_err err = hth_rpc_call(r->reducer->rpc, &target, &opts, on_answer, p, &p->call);
    if (err == HTH_OK)
        r->result.bytes_out += bytes;
    else if (err == HTH_E_QUEUE_FULL)
        p->waiting = true;
    else
        keep(p);
}

static void run_encode(struct hth_job *job)
{
    struct give *g = HTH_CONTAINER(job, struct give, job);
    const float *x = (const float *)(const void *)g->part->round->is.values->data + g->part->first;
    g->err = hth_codec_encode(g->head.segments, g->head.segment_count, x, g->blob->data);
}

static void done_encode(struct hth_job *job, enum hth_err err)
{
    struct give *g = HTH_CONTAINER(job, struct give, job);
    struct reduce_part *p = g->part;
    struct hth_reduce_round *r = p->round;
    bool given_up = reducer_of(p)->fate->as_reducer != HTH_REDUCE_DROP_NONE;
    if (r->reducer != NULL && (err != HTH_OK || given_up || g->err == HTH_E_NO_MEMORY)) {
        keep(p);
    } else if (r->reducer != NULL) {
        if (g->err != HTH_OK) { /* nothing that could be added */
            reduce_self(r)->fate->as_sender = HTH_REDUCE_DROP_NOT_FINITE;
            g->head.segment_count = 0;
        }
        send_call(g);
    }
    give_free(g);
}

static void encode(struct give *g)
{
    struct reduce_part *p = g->part;
    size_t bytes = hth_codec_bytes(g->head.segments, g->head.segment_count);
    enum hth_err err = hth_env_blob_new(p->round->reducer->env, bytes, NULL, &g->blob);
    if (err == HTH_OK)
        err = submit(g, run_encode, done_encode, 4, (double)bytes);
    if (err == HTH_OK)
        return;
    if (err == HTH_E_QUEUE_FULL)
        p->waiting = true;
    else
        keep(p);
    give_free(g);
}

static void begin(struct reduce_part *p)
{
    struct hth_reduce_round *r = p->round;
    struct give *g = give_new(p);
    struct hth_part_head *head = &g->head;
    p->waiting = false;
    head->group = r->is.group;
    head->part = (uint32_t)(p - r->parts);
    bool brings = reduce_self(r)->is.weight > 0;
    head->segment_count = brings ? round_segments(p, head->segments) : 0;
    if (p->bytes == 0) {
        p->bytes = brings ? (uint32_t)hth_codec_bytes(head->segments, head->segment_count)
                          : p->count * (uint32_t)sizeof(float); /* the answer's */
        reducer_of(p)->under_way_bytes += p->bytes;
    }
    if (!hth_codec_is_fp32(head->segments, head->segment_count)) {
        encode(g);
        return;
    }
    g->blob = hth_blob_ref(r->is.values);
    g->offset = p->first * sizeof(float);
    send_call(g);
    give_free(g);
}

/* How many parts for a reducer may have been begun. On slow lines all shares get on alike, by what
 * the group moves in a while ahead of what is settled. Else small shares would take from the large
 * one's time, fast members would fill the lines of reducers before slow ones get there, and what is
 * said meanwhile would wait behind all of it. One more, so that one is on its way while another is
 * answered. */
static uint32_t reach_of(const struct hth_reduce_round *r, const struct reduce_member_state *m)
{
    double settled = (double)r->settled_floats;
    double total = (double)(r->is.count - reduce_self(r)->floats);
    double ahead = HTH_MIN(r->pace * WINDOW_S, r->start_floats + settled);
    double reach = (settled + HTH_MAX(ahead, r->start_floats)) / total;
    if (isinf(r->pace) || reach >= 1)
        return m->part_count;
    return (uint32_t)(reach * m->part_count) + 1;
}

static void pump(struct hth_reduce_round *r, uint32_t to)
{
    struct reduce_member_state *m = &r->members[to];
    if (r->reducer == NULL || !watch_due_as_reducer(r, to))
        return;
    uint32_t reach = reach_of(r, m);
    while (m->begun < reach && m->under_way_bytes < WINDOW_BYTES)
        begin(&r->parts[m->first_part + m->begun++]);
}

/* Each begins with another one, so that nobody is sent to by all at once. */
void give_pump_all(struct hth_reduce_round *r)
{
    for (uint32_t k = 1; k < r->is.member_count; k++)
        pump(r, (r->is.self + k) % r->is.member_count);
}

void give_again(struct hth_reduce_round *r)
{
    for (uint32_t i = 0; i < r->part_count; i++) {
        struct reduce_part *p = &r->parts[i];
        if (p->waiting && p->bytes > 0 && watch_due_as_reducer(r, p->to))
            begin(p);
    }
}

void give_fail(struct hth_reduce_round *r, uint32_t to, enum hth_reduce_drop why)
{
    struct reduce_member_state *m = &r->members[to];
    if (r->reducer == NULL || !watch_due_as_reducer(r, to))
        return;
    watch_say(r, to, "reducer", why);
    m->fate->as_reducer = why;
    for (uint32_t i = 0; i < m->part_count; i++) {
        struct reduce_part *p = &r->parts[m->first_part + i];
        bool out = p->call != NULL;
        if (out)
            hth_rpc_cancel(p->call);
        p->call = NULL;
        if (out || p->waiting)
            keep(p);
    }
}

void give_end(struct hth_reduce_round *r)
{
    for (uint32_t i = 0; i < r->part_count; i++) {
        if (r->parts[i].call != NULL)
            hth_rpc_cancel(r->parts[i].call);
        r->parts[i].call = NULL;
    }
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        if (r->members[i].ask != NULL)
            hth_rpc_cancel(r->members[i].ask);
        r->members[i].ask = NULL;
    }
}
