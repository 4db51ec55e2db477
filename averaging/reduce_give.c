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
    struct reduce_sent *send;
    struct hth_blob *blob; /* of the values, or of the answer; NULL: none */
    size_t offset;
    struct hth_segment *segments;
    uint32_t segment_count;
    enum hth_err err; /* of the arithmetic. Applying: the local values are kept */
    /* encoding */
    bool pack, sample;
    struct hth_codec_error error;
    /* applying */
    double weight;
    bool whole;
};

static struct reduce_member_state *reducer_of(const struct reduce_sent *s)
{
    return &s->round->members[s->to];
}

static struct reduce_sent *sends_to(const struct hth_reduce_round *r, uint32_t to)
{
    const struct reduce_member_state *self = &r->members[r->is.self];
    uint32_t first = r->members[to].first_part;
    return &r->sends[first - (first > self->first_part ? self->part_count : 0)];
}

static struct give *give_new(struct reduce_sent *s, struct hth_blob *blob, size_t offset)
{
    struct give *g = hth_new(struct give);
    round_ref(s->round);
    g->send = s;
    g->blob = blob != NULL ? hth_blob_ref(blob) : NULL;
    g->offset = offset;
    return g;
}

static void give_free(struct give *g)
{
    hth_blob_unref(g->blob);
    hth_free(g->segments);
    round_unref(g->send->round);
    hth_free(g);
}

static enum hth_err submit(struct give *g, void (*run)(struct hth_job *),
                           void (*done)(struct hth_job *, enum hth_err), double flops, double bytes)
{
    uint32_t floats = g->send->count;
    g->job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                              .run = run,
                              .done = done,
                              .flops = flops * floats,
                              .bytes_moved = bytes + floats * sizeof(float)};
    return hth_job_submit(g->send->round->reducer->env, &g->job);
}

/* ---- applying answers ---------------------------------------------------------------------- */

static bool is_far(const struct reduce_sent *s, const float *y, const float *own)
{
    const struct hth_reduce_round *r = s->round;
    double most = 0;
    if (r->is.far == NULL)
        return false;
    for (uint64_t at = s->first, end = at + s->count, next; at < end; at = next) {
        uint64_t block = at / HTH_AVG_FAR_FLOATS, first = block * HTH_AVG_FAR_FLOATS;
        uint64_t size = HTH_MIN(r->is.count - first, HTH_AVG_FAR_FLOATS);
        next = HTH_MIN(first + size, end);
        most += (double)r->is.far[block] * r->is.far[block] * (double)(next - at) / (double)size;
    }
    return !(hth_reduce_distance(y, own, s->count) <= sqrt(most));
}

static void run_apply(struct hth_job *job)
{
    struct give *g = HTH_CONTAINER(job, struct give, job);
    const struct reduce_sent *s = g->send;
    float *y = (float *)(void *)s->round->average->data + s->first;
    const float *own = (const float *)(const void *)s->round->is.values->data + s->first;
    if (g->err == HTH_OK && g->whole)
        g->err = hth_codec_decode(g->segments, g->segment_count, g->blob->data + g->offset, y);
    else if (g->err == HTH_OK)
        g->err = hth_codec_answer(g->segments, g->segment_count, g->blob->data + g->offset, own, y);
    if (g->err == HTH_OK && is_far(s, y, own))
        g->err = HTH_E_NORM;
    if (g->err != HTH_OK)
        memcpy(y, own, s->count * sizeof(float));
}

static void done_apply(struct hth_job *job, enum hth_err err)
{
    struct give *g = HTH_CONTAINER(job, struct give, job);
    struct reduce_sent *s = g->send;
    struct hth_reduce_round *r = s->round;
    bool kept = g->err != HTH_OK;
    if (r->state == ROUND_RUNNING && err != HTH_OK) {
        round_fail(r, err);
    } else if (r->state == ROUND_RUNNING) {
        if (g->err == HTH_E_NORM)
            give_fail(r, s->to, HTH_REDUCE_DROP_FAR);
        if (g->err == HTH_E_NOT_FINITE || g->err == HTH_E_MALFORMED)
            give_fail(r, s->to, HTH_REDUCE_DROP_REFUSED);
        reducer_of(s)->settled++;
        r->settled_floats += s->count;
        r->sends_left--;
        r->parts_kept += kept;
        r->weight_floats += (kept ? r->members[r->is.self].is.weight : g->weight) * s->count;
        give_pump_all(r);
        round_check(r);
    }
    give_free(g);
}

/* Writes the part's mean by the answer; no blob: the local values are kept. */
static void apply(struct reduce_sent *s, struct hth_blob *blob, size_t offset,
                  const struct hth_part_reply *reply)
{
    struct give *g = give_new(s, blob, offset);
    reducer_of(s)->under_way_bytes -= s->bytes;
    s->waiting = false;
    g->segments = reply->segments;
    g->segment_count = reply->segment_count;
    g->weight = reply->weight;
    g->whole = reply->whole;
    g->err = blob != NULL ? HTH_OK : HTH_E_UNREACHABLE;
    enum hth_err err = submit(g, run_apply, done_apply, 1, 2.0 * s->count * sizeof(float));
    if (err != HTH_OK) {
        round_fail(s->round, err);
        give_free(g);
    }
}

static void keep(struct reduce_sent *s)
{
    apply(s, NULL, 0, &(struct hth_part_reply){.weight = 0});
}

/* ---- answers ------------------------------------------------------------------------------- */

/* A reducer has its own values: it is without them only where they are not finite. */
static void note_missing(struct hth_reduce_round *r, uint32_t reducer,
                         const struct hth_part_reply *reply)
{
    for (uint32_t i = 0; i < reply->missing_count; i++) {
        if (reply->missing[i] < r->is.member_count)
            r->members[reply->missing[i]].parts_missing++;
        if (reply->missing[i] == reducer)
            r->members[reducer].as_sender = HTH_REDUCE_DROP_NOT_FINITE;
    }
}

/* The answer fits the part and the group, or the reducer is not to be believed. Its weight follows
 * from who is in it: who could say less of it would keep a whole group below its quorum, round
 * after round, and look like one who answers well. */
static enum hth_err open_answer(const struct reduce_sent *s, const struct hth_rpc_result *result,
                                struct hth_part_reply *reply)
{
    const struct hth_reduce_round *r = s->round;
    uint64_t bytes, floats = 0;
    double weight = r->group_weight;
    HTH_TRY(hth_part_tensor(result->tensors, result->tensor_count, &bytes));
    HTH_TRY(hth_part_reply_open(result->payload, result->payload_len, bytes, reply));
    if (reply->segment_count == 0)
        return HTH_OK;
    for (uint32_t i = 0; i < reply->segment_count; i++)
        floats += reply->segments[i].count;
    for (uint32_t i = 0; i < reply->missing_count; i++)
        if (reply->missing[i] < r->is.member_count)
            weight -= r->members[reply->missing[i]].is.weight;
    /* Weights are sums in the order of members: the last bits may differ. */
    if (floats == s->count && fabs(reply->weight - weight) <= 1e-9 * r->group_weight)
        return HTH_OK;
    hth_part_reply_clear(reply);
    return HTH_E_RANGE;
}

static void on_reply(struct reduce_sent *s, const struct hth_rpc_result *result)
{
    struct hth_reduce_round *r = s->round;
    struct hth_part_reply reply;
    const struct hth_tensor *t = result->tensors;
    watch_progress(r, s->to);
    reducer_of(s)->put_off_us = 0;
    if (open_answer(s, result, &reply) != HTH_OK) {
        keep(s);
        give_fail(r, s->to, HTH_REDUCE_DROP_REFUSED);
        return;
    }
    note_missing(r, s->to, &reply);
    uint64_t bytes = hth_codec_bytes(reply.segments, reply.segment_count);
    r->bytes_in += bytes;
    r->reducer->stats.bytes_in += bytes;
    apply(s, bytes > 0 ? t->blob : NULL, bytes > 0 ? t->offset : 0, &reply);
    give_pump(r, s->to);
}

/* Given up as a reducer, and in both roles where it is gone or the round is over there. */
static void on_failure(struct reduce_sent *s, const struct hth_rpc_result *result)
{
    struct hth_reduce_round *r = s->round;
    bool over = result->err == HTH_E_EXPIRED || result->err == HTH_E_CANCELED;
    keep(s);
    if (result->remote && over) /* it may be we who are late */
        watch_drop(r, s->to, HTH_REDUCE_DROP_DEADLINE);
    else if (result->remote)
        give_fail(r, s->to, HTH_REDUCE_DROP_REFUSED);
    else if (result->err == HTH_E_TIMEOUT)
        give_fail(r, s->to, HTH_REDUCE_DROP_DEADLINE);
    else if (watch_connected(r, s->to))
        give_fail(r, s->to, HTH_REDUCE_DROP_LOST);
    else
        watch_drop(r, s->to, HTH_REDUCE_DROP_LOST);
}

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct reduce_sent *s = arg;
    struct hth_reduce_round *r = s->round;
    struct reduce_member_state *m = reducer_of(s);
    s->call = NULL;
    if (result->err == HTH_OK) {
        on_reply(s, result);
    } else if ((result->err == HTH_E_BUSY && result->remote) ||
               (result->err == HTH_E_CLOSED && watch_connected(r, s->to))) {
        m->heard_us = hth_now_us(r->reducer->env); /* it lives, and has no room just now */
        if (m->put_off_us == 0)
            m->put_off_us = m->heard_us;
        s->waiting = true;
    } else if (result->err == HTH_E_BUDGET || result->err == HTH_E_NO_MEMORY) {
        keep(s); /* no room here for this answer */
        give_pump(r, s->to);
    } else {
        on_failure(s, result);
    }
}

/* ---- sending ------------------------------------------------------------------------------- */

/* Without segments it asks for the mean. */
static void send_call(struct give *g)
{
    struct reduce_sent *s = g->send;
    struct hth_reduce_round *r = s->round;
    const struct reduce_member_state *m = reducer_of(s);
    uint8_t payload[HTH_PART_BYTES_MAX];
    uint64_t bytes = hth_codec_bytes(g->segments, g->segment_count);
    struct hth_part_head part = {.group = r->is.group,
                                 .part = s->part,
                                 .weight = r->members[r->is.self].is.weight,
                                 .segments = g->segments,
                                 .segment_count = g->segment_count};
    struct hth_tensor tensor = {HTH_U8, 1, {bytes}, g->blob, g->offset};
    struct hth_rpc_target target = {m->is.id, m->is.addr};
    struct hth_rpc_call_opts opts = {
        .method = HTH_REDUCE_METHOD,
        .body = {payload, hth_part_pack(&part, payload), &tensor, bytes > 0 ? 1 : 0},
        .timeout_us = HTH_MAX(r->end_us - hth_now_us(r->reducer->env), (int64_t)1),
        .trace_id = s->part,
    };
    memcpy(&opts.idem.hi, r->is.group.b, sizeof(opts.idem.hi));
    opts.idem.lo = s->part;
    enum hth_err err = hth_rpc_call(r->reducer->rpc, &target, &opts, on_answer, s, &s->call);
    if (err == HTH_OK)
        r->bytes_out += bytes;
    else if (err == HTH_E_QUEUE_FULL)
        s->waiting = true;
    else
        keep(s);
}

static void run_encode(struct hth_job *job)
{
    struct give *g = HTH_CONTAINER(job, struct give, job);
    const float *x = (const float *)(const void *)g->send->round->is.values->data + g->send->first;
    g->err = hth_codec_encode(g->segments, g->segment_count, x, g->pack, g->blob->data,
                              g->sample ? &g->error : NULL);
}

static void done_encode(struct hth_job *job, enum hth_err err)
{
    struct give *g = HTH_CONTAINER(job, struct give, job);
    struct reduce_sent *s = g->send;
    struct hth_reduce_round *r = s->round;
    bool given_up = reducer_of(s)->as_reducer != HTH_REDUCE_DROP_NONE;
    if (r->state == ROUND_RUNNING && (err != HTH_OK || given_up || g->err == HTH_E_NO_MEMORY)) {
        keep(s);
    } else if (r->state == ROUND_RUNNING) {
        if (g->err != HTH_OK) { /* nothing that could be added */
            r->members[r->is.self].as_sender = HTH_REDUCE_DROP_NOT_FINITE;
            g->segment_count = 0;
        }
        r->error.lost += g->error.lost;
        r->error.was += g->error.was;
        send_call(g);
    }
    give_free(g);
}

static void encode(struct give *g)
{
    struct reduce_sent *s = g->send;
    size_t bytes = hth_codec_bytes(g->segments, g->segment_count);
    enum hth_err err = hth_env_blob_new(s->round->reducer->env, bytes, NULL, &g->blob);
    if (err == HTH_OK)
        err = submit(g, run_encode, done_encode, 4, (double)bytes);
    if (err == HTH_OK)
        return;
    if (err == HTH_E_QUEUE_FULL)
        s->waiting = true;
    else
        keep(s);
    give_free(g);
}

static void begin(struct reduce_sent *s)
{
    struct hth_reduce_round *r = s->round;
    struct give *g = give_new(s, NULL, 0);
    bool brings = r->members[r->is.self].is.weight > 0;
    s->waiting = false;
    g->sample = (s->part - reducer_of(s)->first_part) % SAMPLE_EVERY == 0;
    g->segment_count = brings ? round_segments(r, s->first, s->count, &g->segments) : 0;
    for (uint32_t i = 0; i < g->segment_count; i++)
        g->pack =
            g->pack || hth_codec_packs(g->segments[i].format, r->reducer->opts.link_bytes_per_s);
    if (s->bytes == 0) {
        s->bytes = brings ? (uint32_t)hth_codec_bytes(g->segments, g->segment_count)
                          : s->count * (uint32_t)sizeof(float); /* the answer's */
        reducer_of(s)->under_way_bytes += s->bytes;
    }
    if (brings && (g->pack || !hth_codec_is_fp32(g->segments, g->segment_count))) {
        encode(g);
        return;
    }
    g->blob = hth_blob_ref(r->is.values);
    g->offset = s->first * sizeof(float);
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
    double total = (double)(r->is.count - r->members[r->is.self].floats);
    if (isinf(r->pace))
        return m->part_count;
    double first = START_PARTS * total / r->send_count * r->reducer_count;
    double ahead = HTH_MIN(r->pace * WINDOW_S, first + (double)r->settled_floats);
    ahead = HTH_MAX(ahead, first);
    double reach = ((double)r->settled_floats + ahead) / total;
    return reach < 1 ? (uint32_t)(reach * m->part_count) + 1 : m->part_count;
}

void give_pump(struct hth_reduce_round *r, uint32_t to)
{
    struct reduce_member_state *m = &r->members[to];
    if (r->state != ROUND_RUNNING || !watch_due_as_reducer(r, to))
        return;
    struct reduce_sent *sends = sends_to(r, to);
    uint32_t reach = reach_of(r, m);
    while (m->begun < reach && m->under_way_bytes < WINDOW_BYTES)
        begin(&sends[m->begun++]);
}

/* Each begins with another one, so that nobody is sent to by all at once. */
void give_pump_all(struct hth_reduce_round *r)
{
    for (uint32_t k = 1; k <= r->reducer_count; k++)
        give_pump(r, r->reducers[(r->is.self + k) % r->reducer_count]);
}

void give_again(struct hth_reduce_round *r)
{
    for (uint32_t i = 0; i < r->is.member_count; i++)
        for (uint32_t k = 0; watch_due_as_reducer(r, i) && k < r->members[i].begun; k++)
            if (sends_to(r, i)[k].waiting)
                begin(&sends_to(r, i)[k]);
}

void give_fail(struct hth_reduce_round *r, uint32_t to, enum hth_reduce_drop why)
{
    struct reduce_member_state *m = &r->members[to];
    if (r->state != ROUND_RUNNING || !watch_due_as_reducer(r, to))
        return;
    watch_say(r, to, "reducer", why);
    m->as_reducer = why;
    for (uint32_t i = 0; i < m->part_count; i++) {
        struct reduce_sent *s = &sends_to(r, to)[i];
        bool out = s->call != NULL;
        if (out)
            hth_rpc_cancel(s->call);
        s->call = NULL;
        if (out || s->waiting)
            keep(s);
    }
}

void give_end(struct hth_reduce_round *r)
{
    for (uint32_t i = 0; i < r->send_count; i++) {
        if (r->sends[i].call != NULL)
            hth_rpc_cancel(r->sends[i].call);
        r->sends[i].call = NULL;
    }
}
