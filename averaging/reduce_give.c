/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_give.c: a member's own parts on their way to the reducers and back.
 *
 *   WAITING -> ENCODING -> OUT -> APPLYING -> SETTLED
 *      |  fp32: none        |         ^
 *      ^--- E_BUSY ---------'         |
 *      `---- given up: keep the local values
 */
#include <math.h>
#include <string.h>

#include "averaging/reduce_int.h"

static void send_call(struct reduce_sent *s, const struct hth_segment *segments,
                      uint32_t segment_count, struct hth_blob *blob, size_t offset);

static struct reduce_member_state *reducer_of(const struct reduce_sent *s)
{
    return &s->round->members[s->to];
}

static struct hth_env *env_of(const struct hth_reduce_round *r)
{
    return r->reducer->env;
}

static struct reduce_sent *sends_to(const struct hth_reduce_round *r, uint32_t to)
{
    const struct reduce_member_state *self = &r->members[r->is.self];
    uint32_t first = r->members[to].first_part;
    return &r->sends[first - (first > self->first_part ? self->part_count : 0)];
}

/* ---- settling ------------------------------------------------------------------------------ */

static void settle(struct reduce_sent *s, double weight, bool kept)
{
    struct hth_reduce_round *r = s->round;
    struct reduce_member_state *m = reducer_of(s);
    s->state = SEND_SETTLED;
    m->settled++;
    r->settled_floats += s->count;
    r->sends_left--;
    r->weight_floats += (kept ? r->members[r->is.self].is.weight : weight) * s->count;
    if (kept) {
        m->parts_kept++;
        r->parts_kept++;
    }
}

/* ---- applying answers ---------------------------------------------------------------------- */

struct apply {
    struct hth_job job;
    struct hth_reduce_round *round;
    struct reduce_sent *send;
    struct hth_blob *blob; /* the answer's body; NULL: keep the local values */
    size_t offset;
    struct hth_segment *segments;
    uint32_t segment_count;
    double weight;
    bool whole;
    bool kept;
    bool far; /* too far off: the local values are kept */
};

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
    struct apply *a = HTH_CONTAINER(job, struct apply, job);
    const struct reduce_sent *s = a->send;
    float *y = (float *)(void *)a->round->average->data + s->first;
    const float *own = (const float *)(const void *)a->round->is.values->data + s->first;
    if (!a->kept && a->whole)
        a->kept =
            hth_codec_decode(a->segments, a->segment_count, a->blob->data + a->offset, y) != HTH_OK;
    else if (!a->kept)
        a->kept = hth_codec_answer(a->segments, a->segment_count, a->blob->data + a->offset, own,
                                   y) != HTH_OK;
    a->far = !a->kept && is_far(s, y, own);
    if (a->kept || a->far)
        memcpy(y, own, s->count * sizeof(float));
}

static void apply_free(struct apply *a)
{
    hth_blob_unref(a->blob);
    hth_free(a->segments);
    round_unref(a->round);
    hth_free(a);
}

static void done_apply(struct hth_job *job, enum hth_err err)
{
    struct apply *a = HTH_CONTAINER(job, struct apply, job);
    struct hth_reduce_round *r = a->round;
    if (r->state == ROUND_RUNNING) {
        if (err != HTH_OK)
            r->err = err;
        if (a->far)
            give_fail(r, a->send->to, HTH_REDUCE_DROP_FAR);
        settle(a->send, a->weight, a->kept || a->far);
        give_pump_all(r);
        round_check(r);
    }
    apply_free(a);
}

/* Takes the reply's segments, and a reference on the blob. */
static void apply(struct reduce_sent *s, struct hth_blob *blob, size_t offset,
                  const struct hth_part_reply *reply)
{
    struct hth_reduce_round *r = s->round;
    struct apply *a = hth_new(struct apply);
    double bytes = (double)s->count * sizeof(float);
    s->state = SEND_APPLYING;
    a->round = round_ref(r);
    a->send = s;
    a->blob = blob != NULL ? hth_blob_ref(blob) : NULL;
    a->offset = offset;
    a->segments = reply->segments;
    a->segment_count = reply->segment_count;
    a->weight = reply->weight;
    a->whole = reply->whole;
    a->kept = blob == NULL;
    a->job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                              .run = run_apply,
                              .done = done_apply,
                              .flops = s->count,
                              .bytes_moved = 3 * bytes};
    enum hth_err err = hth_job_submit(env_of(r), &a->job);
    if (err == HTH_OK)
        return;
    r->err = err;
    settle(s, 0, true);
    round_soon(r);
    apply_free(a);
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

/* Of the group's members without those that the answer says are not in the mean. */
static double weight_in(const struct hth_reduce_round *r, const struct hth_part_reply *reply)
{
    double weight = r->group_weight;
    for (uint32_t i = 0; i < reply->missing_count; i++) {
        if (reply->missing[i] < r->is.member_count)
            weight -= r->members[reply->missing[i]].is.weight;
    }
    return weight;
}

/* The answer fits the part and the group, or the reducer is not to be believed. Its weight follows
 * from who is in it: who could say less of it would keep a whole group below its quorum, round
 * after round, and look like one who answers well. */
static enum hth_err open_answer(const struct reduce_sent *s, const struct hth_rpc_result *result,
                                struct hth_part_reply *reply)
{
    uint64_t bytes = 0, floats = 0;
    if (result->tensor_count > 1 ||
        (result->tensor_count == 1 &&
         (result->tensors->ndim != 1 || result->tensors->dtype != HTH_U8)))
        return HTH_E_BAD_SHAPE;
    if (result->tensor_count == 1)
        bytes = result->tensors->dim[0];
    HTH_TRY(hth_part_reply_open(result->payload, result->payload_len, bytes, reply));
    for (uint32_t i = 0; i < reply->segment_count; i++)
        floats += reply->segments[i].count;
    enum hth_err err = HTH_OK;
    if (reply->segment_count > 0 && floats != s->count)
        err = HTH_E_BAD_SHAPE;
    /* Weights are sums in the order of members: the last bits may differ. */
    if (reply->segment_count > 0 &&
        fabs(reply->weight - weight_in(s->round, reply)) > 1e-9 * s->round->group_weight)
        err = HTH_E_RANGE;
    if (err != HTH_OK)
        hth_part_reply_clear(reply);
    return err;
}

static void on_reply(struct reduce_sent *s, const struct hth_rpc_result *result)
{
    struct hth_reduce_round *r = s->round;
    struct hth_part_reply reply;
    watch_progress(r, s->to);
    reducer_of(s)->put_off_us = 0;
    if (open_answer(s, result, &reply) != HTH_OK) {
        keep(s);
        give_fail(r, s->to, HTH_REDUCE_DROP_REFUSED);
        return;
    }
    note_missing(r, s->to, &reply);
    const struct hth_tensor *t = result->tensors;
    if (reply.segment_count == 0 || t == NULL || t->blob == NULL) {
        hth_part_reply_clear(&reply);
        keep(s);
    } else {
        r->bytes_in += t->dim[0];
        r->reducer->stats.bytes_in += t->dim[0];
        hth_metric_add(r->reducer->metrics.bytes_in, (int64_t)t->dim[0]);
        apply(s, t->blob, t->offset, &reply);
    }
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
    m->in_flight_bytes -= s->bytes;
    if (result->err == HTH_OK) {
        on_reply(s, result);
    } else if ((result->err == HTH_E_BUSY && result->remote) ||
               (result->err == HTH_E_CLOSED && watch_connected(r, s->to))) {
        m->heard_us = hth_now_us(env_of(r)); /* it lives, and has no room just now */
        if (m->put_off_us == 0)
            m->put_off_us = m->heard_us;
        s->state = SEND_WAITING;
    } else if (result->err == HTH_E_BUDGET || result->err == HTH_E_NO_MEMORY) {
        keep(s); /* no room here for this answer */
        give_pump(r, s->to);
    } else {
        on_failure(s, result);
    }
}

/* ---- encoding ------------------------------------------------------------------------------ */

struct encode {
    struct hth_job job;
    struct hth_reduce_round *round;
    struct reduce_sent *send;
    struct hth_blob *blob;
    struct hth_segment segments[HTH_AVG_SEGMENTS_MAX];
    uint32_t segment_count;
    bool pack, sample;
    enum hth_err err;
    struct hth_codec_error error;
};

static void run_encode(struct hth_job *job)
{
    struct encode *e = HTH_CONTAINER(job, struct encode, job);
    const float *x = (const float *)(const void *)e->round->is.values->data + e->send->first;
    e->err = hth_codec_encode(e->segments, e->segment_count, x, e->pack, e->blob->data,
                              e->sample ? &e->error : NULL);
}

static void encode_free(struct encode *e)
{
    hth_blob_unref(e->blob);
    round_unref(e->round);
    hth_free(e);
}

static void done_encode(struct hth_job *job, enum hth_err err)
{
    struct encode *e = HTH_CONTAINER(job, struct encode, job);
    struct hth_reduce_round *r = e->round;
    struct reduce_sent *s = e->send;
    if (r->state != ROUND_RUNNING) {
        encode_free(e);
        return;
    }
    struct reduce_member_state *m = reducer_of(s);
    m->in_flight_bytes -= s->bytes;
    if (err != HTH_OK || m->as_reducer != HTH_REDUCE_DROP_NONE || e->err == HTH_E_NO_MEMORY) {
        keep(s);
    } else if (e->err != HTH_OK) {
        /* Nothing that could be added: ask for the mean. */
        r->members[r->is.self].as_sender = HTH_REDUCE_DROP_NOT_FINITE;
        send_call(s, NULL, 0, NULL, 0);
    } else {
        r->error.lost += e->error.lost;
        r->error.was += e->error.was;
        send_call(s, e->segments, e->segment_count, e->blob, 0);
    }
    encode_free(e);
}

/* ---- sending ------------------------------------------------------------------------------- */

static void send_call(struct reduce_sent *s, const struct hth_segment *segments,
                      uint32_t segment_count, struct hth_blob *blob, size_t offset)
{
    struct hth_reduce_round *r = s->round;
    struct reduce_member_state *m = reducer_of(s);
    uint8_t payload[HTH_PART_BYTES_MAX];
    uint64_t bytes = hth_codec_bytes(segments, segment_count);
    struct hth_part_head part = {.group = r->is.group,
                                 .part = s->part,
                                 .weight = r->members[r->is.self].is.weight,
                                 .segments = (struct hth_segment *)segments,
                                 .segment_count = segment_count};
    struct hth_tensor tensor = {HTH_U8, 1, {bytes}, blob, offset};
    struct hth_rpc_target target = {m->is.id, m->is.addr};
    struct hth_rpc_call_opts opts = {
        .method = HTH_REDUCE_METHOD,
        .body = {payload, hth_part_pack(&part, payload), &tensor, blob != NULL ? 1 : 0},
        .timeout_us = HTH_MAX(r->end_us - hth_now_us(env_of(r)), (int64_t)1),
        .trace_id = s->part,
    };
    memcpy(&opts.idem.hi, r->is.group.b, sizeof(opts.idem.hi));
    opts.idem.lo = s->part;
    s->state = SEND_OUT;
    enum hth_err err = hth_rpc_call(r->reducer->rpc, &target, &opts, on_answer, s, &s->call);
    if (err == HTH_E_QUEUE_FULL) {
        s->state = SEND_WAITING;
        return;
    }
    if (err != HTH_OK) {
        keep(s);
        return;
    }
    s->bytes = (uint32_t)bytes;
    m->in_flight_bytes += s->bytes;
    round_count_out(r, segments, segment_count);
}

static void submit(struct encode *e)
{
    struct reduce_sent *s = e->send;
    struct hth_env *env = env_of(s->round);
    size_t bytes = hth_codec_bytes(e->segments, e->segment_count);
    e->job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                              .run = run_encode,
                              .done = done_encode,
                              .flops = 4.0 * s->count,
                              .bytes_moved = (double)s->count * sizeof(float) + (double)bytes};
    enum hth_err err = hth_env_blob_new(env, bytes, NULL, &e->blob);
    if (err == HTH_OK)
        err = hth_job_submit(env, &e->job);
    if (err == HTH_OK) {
        s->state = SEND_ENCODING;
        s->bytes = (uint32_t)bytes;
        reducer_of(s)->in_flight_bytes += s->bytes;
        return;
    }
    encode_free(e);
    if (err == HTH_E_QUEUE_FULL)
        s->state = SEND_WAITING;
    else
        keep(s);
}

static void begin(struct reduce_sent *s)
{
    struct hth_reduce_round *r = s->round;
    struct encode *e = hth_new(struct encode);
    e->round = round_ref(r);
    e->send = s;
    e->sample = (s->part - reducer_of(s)->first_part) % SAMPLE_EVERY == 0;
    /* Too many small stretches of different formats: their bytes do not matter. */
    if (hth_codec_cut(r->is.spans, r->is.span_count, s->first, s->count, e->segments,
                      &e->segment_count) != HTH_OK) {
        e->segments[0] = (struct hth_segment){HTH_QUANT_F32, s->count,
                                              s->count * (uint32_t)sizeof(float), false};
        e->segment_count = 1;
    }
    for (uint32_t i = 0; i < e->segment_count; i++)
        e->pack =
            e->pack || hth_codec_packs(e->segments[i].format, r->reducer->opts.link_bytes_per_s);
    if (e->pack || !hth_codec_is_fp32(e->segments, e->segment_count)) {
        submit(e);
        return;
    }
    send_call(s, e->segments, e->segment_count, r->is.values, s->first * sizeof(float));
    encode_free(e);
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
    if (r->state != ROUND_RUNNING || m->part_count == 0 || r->send_count == 0 || to == r->is.self)
        return;
    struct reduce_sent *sends = sends_to(r, to);
    uint32_t reach = reach_of(r, m);
    while (m->begun < reach && m->in_flight_bytes < WINDOW_BYTES &&
           m->as_reducer == HTH_REDUCE_DROP_NONE)
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
    for (uint32_t i = 0; i < r->send_count; i++) {
        struct reduce_sent *s = &r->sends[i];
        struct reduce_member_state *m = reducer_of(s);
        bool begun = s->part - m->first_part < m->begun;
        if (s->state != SEND_WAITING || !begun || m->in_flight_bytes >= WINDOW_BYTES)
            continue;
        begin(s);
    }
}

void give_fail(struct hth_reduce_round *r, uint32_t to, enum hth_reduce_drop why)
{
    struct reduce_member_state *m = &r->members[to];
    if (r->state != ROUND_RUNNING || m->as_reducer != HTH_REDUCE_DROP_NONE ||
        !watch_due_as_reducer(r, to))
        return;
    watch_say(r, to, "reducer", why);
    m->as_reducer = why;
    hth_metric_add(r->reducer->metrics.dropped, 1);
    struct reduce_sent *sends = sends_to(r, to);
    for (uint32_t i = 0; i < m->part_count; i++) {
        struct reduce_sent *s = &sends[i];
        if (s->call != NULL) {
            hth_rpc_cancel(s->call);
            s->call = NULL;
            m->in_flight_bytes -= s->bytes;
        }
        if (s->state == SEND_WAITING || s->state == SEND_OUT)
            keep(s);
    }
    m->begun = m->part_count;
}

void give_end(struct hth_reduce_round *r)
{
    for (uint32_t i = 0; i < r->send_count; i++) {
        if (r->sends[i].call != NULL)
            hth_rpc_cancel(r->sends[i].call);
        r->sends[i].call = NULL;
    }
}
