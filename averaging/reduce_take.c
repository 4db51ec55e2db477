/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_take.c: the parts that this member reduces. Contributions are kept as they came until
 * everybody's is there (or was given up); then one job adds them in the order of members, writes
 * the mean once, and encodes the answers of those who sent narrower formats, or one for all. fp32
 * answers refer to the mean itself.
 *
 *   OPEN --complete--> SUMMING --job--> DONE --> answers; latecomers are told the mean itself
 */
#include <string.h>

#include "averaging/reduce_int.h"

struct input {
    struct reduce_contribution *from;
    struct hth_blob *blob;        /* a reference; NULL: this member's own values */
    struct hth_blob *answer;      /* NULL: it is not answered with a difference */
    bool fine;                    /* the answer could be written */
    struct hth_segment *segments; /* of the answer */
};

struct sum {
    struct hth_job job;
    struct hth_reduce_round *round;
    struct reduce_owned *own;
    bool told_fine;
    enum hth_err err;
    double weight;
    double clip; /* as of the options */
    uint32_t count;
    struct sum_input *plain; /* one per input */
    struct input input[];
};

static bool is_sender(const struct reduce_member_state *m)
{
    return m->is.weight > 0;
}

/* ---- answers ------------------------------------------------------------------------------- */

static void reply(struct reduce_contribution *c, struct hth_segment *segments,
                  uint32_t segment_count, bool whole, struct hth_blob *blob, size_t offset)
{
    const struct reduce_owned *o = c->own;
    struct hth_reduce_round *r = o->round;
    uint8_t payload[HTH_PART_BYTES_MAX];
    struct hth_part_reply answer = {
        .weight = o->weight, .segments = segments, .segment_count = segment_count, .whole = whole};
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        if (is_sender(&r->members[i]) && !o->from[i].in)
            answer.missing[answer.missing_count++] = i;
    }
    uint64_t bytes = hth_codec_bytes(segments, segment_count);
    struct hth_tensor tensor = {HTH_U8, 1, {bytes}, blob, offset};
    struct hth_rpc_body body = {payload, hth_part_reply_pack(&answer, payload), &tensor,
                                bytes > 0 ? 1 : 0};
    struct hth_rpc_request *req = c->req;
    c->req = NULL;
    c->answers++;
    round_count_out(r, segments, segment_count);
    hth_rpc_reply(req, &body);
}

/* What was sent has been used: a round may last long, and the room is needed. A repeat gets the
 * mean itself. */
static void let_go(struct reduce_contribution *c)
{
    hth_blob_unref(c->blob);
    hth_free(c->segments);
    c->blob = NULL;
    c->segments = NULL;
    c->segment_count = 0;
}

/* The mean itself; or that there is none. */
static void reply_mean(struct reduce_contribution *c)
{
    const struct reduce_owned *o = c->own;
    const struct hth_reduce_round *r = o->round;
    if (o->told_fine && o->weight > 0) {
        reply(c, o->told_segments, o->told_count, true, o->told, 0);
        return;
    }
    struct hth_segment whole = {HTH_QUANT_F32, o->count, o->count * (uint32_t)sizeof(float), false};
    bool any = o->weight > 0;
    reply(c, &whole, any ? 1 : 0, true, any ? r->average : NULL,
          (size_t)(o->first - r->average_first) * sizeof(float));
}

/* ---- the job ------------------------------------------------------------------------------- */

/* This member's own values as it sends them to others: all who have the same ones add the same,
 * whoever of them reduces. */
static void send_to_self(const struct reduce_owned *o, struct sum_input *in)
{
    const float *x = (const float *)(const void *)in->bytes;
    if (o->told == NULL ||
        hth_codec_encode(o->told_segments, o->told_count, x, false, o->told->data, NULL) != HTH_OK)
        return;
    in->segments = o->told_segments;
    in->segment_count = o->told_count;
    in->bytes = o->told->data;
}

static void prepare(struct sum *s)
{
    const struct hth_reduce_round *r = s->round;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct reduce_contribution *c = s->input[i].from;
        struct sum_input *in = &s->plain[i];
        in->weight = r->members[c->member].counts;
        if (s->input[i].blob == NULL) {
            in->bytes = r->is.values->data + s->own->first * sizeof(float);
            send_to_self(s->own, in);
            continue;
        }
        in->segments = c->segments;
        in->segment_count = c->segment_count;
        in->bytes = s->input[i].blob->data + c->offset;
    }
}

static bool is_packed(const struct sum_input *in)
{
    bool packed = false;
    for (uint32_t k = 0; k < in->segment_count; k++)
        packed = packed || in->segments[k].packed;
    return packed;
}

/* The mean becomes what the others make of it. Packed where the line of one of them pays for it. */
static enum hth_err write_told(struct sum *s, float *mean)
{
    const struct reduce_owned *o = s->own;
    bool packed = false;
    for (uint32_t i = 0; i < s->count; i++)
        packed = packed || is_packed(&s->plain[i]);
    HTH_TRY(hth_codec_encode(o->told_segments, o->told_count, mean, packed, o->told->data, NULL));
    return hth_codec_decode(o->told_segments, o->told_count, o->told->data, mean);
}

/* Answers in the senders' formats. A sender without one gets the mean itself: its part was damaged,
 * or there is no sum, and its answer's bytes were never written. */
static void write_answers(struct sum *s, const float *mean)
{
    for (uint32_t i = 0; i < s->count; i++) {
        struct input *in = &s->input[i];
        in->fine = in->answer != NULL && s->err == HTH_OK && !s->plain[i].damaged &&
                   hth_reduce_answer(&s->plain[i], mean, s->own->count, is_packed(&s->plain[i]),
                                     in->segments, in->answer->data) == HTH_OK;
    }
}

/* This member takes what others who sent the same would make of their answers. */
static enum hth_err answer_self(const struct sum *s, float *mean)
{
    const struct reduce_owned *o = s->own;
    const struct sum_input *in = s->plain;
    for (uint32_t i = 0; i < s->count && in->bytes != (o->told != NULL ? o->told->data : NULL); i++)
        in++;
    if (in == s->plain + s->count || in->damaged)
        return HTH_OK;
    HTH_TRY(hth_reduce_answer(in, mean, o->count, false, o->told_segments, o->told->data));
    return hth_codec_answer(o->told_segments, o->told_count, o->told->data,
                            (const float *)(const void *)o->round->is.values->data + o->first,
                            mean);
}

/* The weight of those in the sum, as members know it. */
static double claimed(const struct sum *s)
{
    double weight = 0;
    for (uint32_t i = 0; i < s->count; i++)
        if (!s->plain[i].damaged)
            weight += s->round->members[s->input[i].from->member].is.weight;
    return weight;
}

static void run_sum(struct hth_job *job)
{
    struct sum *s = HTH_CONTAINER(job, struct sum, job);
    const struct hth_reduce_round *r = s->round;
    const struct reduce_owned *o = s->own;
    float *mean = (float *)(void *)r->average->data + (o->first - r->average_first);

    prepare(s);
    s->err = hth_reduce_sum(s->plain, s->count, mean, o->count, &s->weight);
    if (s->weight > 0)
        s->weight = claimed(s);
    if (s->err == HTH_OK && s->weight > 0 && s->clip > 0)
        s->err = hth_reduce_clip(s->plain, s->count, s->clip, r->is.fixed, mean, o->count);
    if (s->err != HTH_OK)
        s->weight = 0;
    if (!(s->weight > 0) && r->is.values != NULL)
        memcpy(mean, r->is.values->data + o->first * sizeof(float), o->count * sizeof(float));
    if (r->is.same && o->told != NULL && s->weight > 0)
        s->told_fine = write_told(s, mean) == HTH_OK;
    write_answers(s, mean);
    if (!r->is.same && s->weight > 0 && o->told != NULL)
        s->err = answer_self(s, mean);
}

static void sum_free(struct sum *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        hth_blob_unref(s->input[i].blob);
        hth_blob_unref(s->input[i].answer);
        hth_free(s->input[i].segments);
    }
    hth_free(s->plain);
    round_unref(s->round);
    hth_free(s);
}

static void answer_all(struct sum *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        struct input *in = &s->input[i];
        struct reduce_contribution *c = in->from;
        if (c->req != NULL && in->fine)
            reply(c, in->segments, c->segment_count, false, in->answer, 0);
        else if (c->req != NULL)
            reply_mean(c);
        let_go(c);
    }
}

/* The mean is there. */
static void finish_sum(struct sum *s)
{
    struct reduce_owned *o = s->own;
    struct hth_reduce_round *r = s->round;
    o->state = OWN_DONE;
    o->weight = s->weight;
    o->told_fine = s->told_fine;
    for (uint32_t i = 0; i < s->count; i++) {
        bool damaged = s->plain[i].damaged;
        struct reduce_contribution *c = s->input[i].from;
        c->in = !damaged;
        r->members[c->member].parts_clipped += s->plain[i].clipped;
        if (damaged) {
            r->members[c->member].as_sender = HTH_REDUCE_DROP_NOT_FINITE;
            r->parts_damaged++;
        }
    }
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        if (is_sender(&r->members[i]) && !o->from[i].in)
            r->members[i].parts_missing++;
    }
    r->weight_floats += (s->weight > 0 ? s->weight : r->members[r->is.self].is.weight) * o->count;
    r->reducer->stats.parts_reduced++;
    r->owns_left--;
}

static void done_sum(struct hth_job *job, enum hth_err err)
{
    struct sum *s = HTH_CONTAINER(job, struct sum, job);
    struct hth_reduce_round *r = s->round;
    struct reduce_owned *o = s->own;
    if (r->state == ROUND_GONE) {
        sum_free(s);
        return;
    }
    if (err == HTH_OK)
        err = s->err;
    if (err != HTH_OK)
        r->err = err;
    finish_sum(s);
    answer_all(s);
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        if (o->from[i].req != NULL) /* it came while the job ran, or has no values */
            reply_mean(&o->from[i]);
    }
    sum_free(s);
    if (r->state == ROUND_RUNNING)
        round_check(r);
}

/* Room for the answer of a narrow format. Without it the mean itself will do. */
static void want_answer(struct hth_reduce_round *r, struct input *in)
{
    struct reduce_contribution *c = in->from;
    size_t bytes = 0;
    if (c->req == NULL || r->is.same || hth_codec_is_fp32(c->segments, c->segment_count))
        return;
    for (uint32_t i = 0; i < c->segment_count; i++)
        bytes += hth_quant_bytes(c->segments[i].format, c->segments[i].count);
    if (hth_env_blob_new(r->reducer->env, bytes, hth_rpc_budget(r->reducer->rpc), &in->answer) !=
        HTH_OK)
        return;
    in->segments = hth_new_array(struct hth_segment, c->segment_count);
    /* What a ghost's answer says, whose job is not run. */
    for (uint32_t i = 0; i < c->segment_count; i++) {
        struct hth_segment *seg = &in->segments[i];
        seg->format = c->segments[i].format;
        seg->count = c->segments[i].count;
        seg->bytes = (uint32_t)hth_quant_bytes(seg->format, seg->count);
    }
    in->fine = true;
}

static void add_input(struct sum *s, struct reduce_contribution *c, double *bytes)
{
    struct hth_reduce_round *r = s->round;
    struct input *in = &s->input[s->count++];
    in->from = c;
    c->in = true;
    in->blob = c->blob != NULL ? hth_blob_ref(c->blob) : NULL;
    want_answer(r, in);
    /* As if it ran: ghosts are finite, and all of them are in the mean. */
    s->weight += r->members[c->member].is.weight;
    *bytes += (double)hth_codec_bytes(c->segments, c->segment_count) +
              (in->answer != NULL ? 4.0 * (double)s->own->count : 0);
}

/* Nobody can be answered, and the round has no result. */
static void sum_fail(struct sum *s, enum hth_err err)
{
    struct hth_reduce_round *r = s->round;
    r->err = err;
    s->own->state = OWN_DONE;
    r->owns_left--;
    round_soon(r);
    for (uint32_t i = 0; i < s->count; i++) {
        struct hth_rpc_request *req = s->input[i].from->req;
        s->input[i].from->req = NULL;
        if (req != NULL)
            hth_rpc_refuse(req, err, 0, "the arithmetic can't be done now");
    }
    sum_free(s);
}

/* ---- completeness -------------------------------------------------------------------------- */

static bool is_complete(const struct hth_reduce_round *r, const struct reduce_owned *o)
{
    if (o->got == r->senders)
        return true;
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        const struct reduce_member_state *m = &r->members[i];
        if (i != r->is.self && is_sender(m) && !m->dropped && o->from[i].state == GIVE_NONE)
            return false;
    }
    return true;
}

/* Room for what this member would send to itself, and then for what all are told. Without it the
 * values and the mean themselves will do. Like the mean it is of this member's own size, and lives
 * as long: it is not of the bytes that others make us hold. */
static bool want_told(struct reduce_owned *o)
{
    struct hth_reduce_round *r = o->round;
    struct hth_segment segments[HTH_AVG_SEGMENTS_MAX];
    if (hth_codec_cut(r->is.spans, r->is.span_count, o->first, o->count, segments,
                      &o->told_count) != HTH_OK ||
        hth_codec_is_fp32(segments, o->told_count))
        return false;
    if (hth_env_blob_new(r->reducer->env, hth_codec_bytes(segments, o->told_count), NULL,
                         &o->told) != HTH_OK)
        return false;
    o->told_segments = hth_new_array(struct hth_segment, o->told_count);
    memcpy(o->told_segments, segments, o->told_count * sizeof(segments[0]));
    return true;
}

static void begin_sum(struct reduce_owned *o)
{
    struct hth_reduce_round *r = o->round;
    struct sum *s = hth_calloc(1, sizeof(*s) + r->is.member_count * sizeof(s->input[0]));
    double bytes = (double)o->count * sizeof(float);
    s->round = round_ref(r);
    s->own = o;
    s->clip = r->reducer->opts.clip;
    s->plain = hth_new_array(struct sum_input, r->is.member_count);
    o->state = OWN_SUMMING;
    s->told_fine = want_told(o) && r->is.same; /* as if it ran: of a ghost it is */
    for (uint32_t i = 0; i < r->is.member_count; i++)
        if (o->from[i].state == GIVE_HERE)
            add_input(s, &o->from[i], &bytes);
    s->job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                              .run = run_sum,
                              .done = done_sum,
                              .flops = (s->clip > 0 ? 6.0 : 2.0) * s->count * o->count,
                              .bytes_moved = bytes};
    enum hth_err err = hth_job_submit(r->reducer->env, &s->job);
    if (err != HTH_OK)
        sum_fail(s, err);
}

void take_review(struct hth_reduce_round *r)
{
    for (uint32_t i = 0; i < r->own_count && r->state == ROUND_RUNNING; i++) {
        if (r->owns[i].state == OWN_OPEN && is_complete(r, &r->owns[i]))
            begin_sum(&r->owns[i]);
    }
}

/* ---- what arrives -------------------------------------------------------------------------- */

/* The sender does not want the answer any more, or is gone; its values still count. */
static void on_cancel(void *arg)
{
    struct reduce_contribution *c = arg;
    struct hth_reduce_round *r = c->own->round;
    struct hth_rpc_request *req = c->req;
    c->req = NULL;
    hth_rpc_refuse(req, HTH_E_CANCELED, 0, NULL);
    if (r->state == ROUND_RUNNING && !watch_connected(r, c->member))
        watch_drop(r, c->member, HTH_REDUCE_DROP_LOST);
}

/* What the sender says fits the round. NULL when it does. */
static const char *misfit(const struct hth_reduce_round *r, uint32_t member,
                          const struct hth_part_head *part, enum hth_err *err)
{
    const struct reduce_member_state *self = &r->members[r->is.self];
    uint64_t floats = 0;
    *err = HTH_E_RANGE;
    if (part->weight != r->members[member].is.weight || !(part->weight > 0))
        return "the weight is not the one that the group knows";
    if (part->part < self->first_part || part->part - self->first_part >= r->own_count)
        return "this part is reduced by another member";
    for (uint32_t i = 0; i < part->segment_count; i++)
        floats += part->segments[i].count;
    *err = HTH_E_BAD_SHAPE;
    if (part->segment_count > 0 && floats != r->owns[part->part - self->first_part].count)
        return "the part has another number of floats";
    return NULL;
}

static uint32_t member_of(const struct hth_reduce_round *r, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        if (i != r->is.self && hth_peer_id_eq(&r->members[i].is.id, id))
            return i;
    }
    return UINT32_MAX;
}

/* The first content counts; of several requests the newest is answered. */
static void take_repeat(struct reduce_contribution *c, struct hth_rpc_request *req)
{
    struct hth_rpc_request *old = c->req;
    if (c->answers >= REPEATS_MAX) {
        hth_rpc_refuse(req, HTH_E_DUPLICATE, 0, "this part was answered before");
        return;
    }
    if (old != NULL) {
        hth_rpc_on_cancel(old, NULL, NULL);
        c->req = NULL;
        hth_rpc_refuse(old, HTH_E_DUPLICATE, 0, "this part was sent again");
    }
    c->req = req;
    hth_rpc_on_cancel(req, on_cancel, c);
    if (c->own->state == OWN_DONE)
        reply_mean(c);
}

static void take_first(struct reduce_contribution *c, struct hth_rpc_request *req,
                       struct hth_part_head *part, struct hth_blob *blob, size_t offset)
{
    struct reduce_owned *o = c->own;
    struct hth_reduce_round *r = o->round;
    uint64_t bytes = hth_codec_bytes(part->segments, part->segment_count);
    c->req = req;
    hth_rpc_on_cancel(req, on_cancel, c);
    c->state = o->state == OWN_OPEN && part->segment_count > 0 ? GIVE_HERE : GIVE_EMPTY;
    if (c->state == GIVE_HERE) {
        c->segments = part->segments;
        c->segment_count = part->segment_count;
        part->segments = NULL;
        c->blob = blob != NULL ? hth_blob_ref(blob) : NULL;
        c->offset = offset;
    }
    if (part->segment_count == 0 && o->state == OWN_OPEN)
        r->members[c->member].as_sender = HTH_REDUCE_DROP_NOT_FINITE; /* by its own word */
    o->got++;
    r->members[c->member].got++;
    r->bytes_in += bytes;
    r->reducer->stats.bytes_in += bytes;
    hth_metric_add(r->reducer->metrics.bytes_in, (int64_t)bytes);
    if (o->state == OWN_DONE)
        reply_mean(c);
    else if (o->state == OWN_OPEN && is_complete(r, o))
        begin_sum(o);
}

void take_part(struct hth_reduce_round *r, struct hth_rpc_request *req, struct hth_part_head *part,
               struct hth_blob *blob, size_t offset)
{
    enum hth_err err = HTH_E_BAD_PEER_ID;
    const char *text = "no member of this group";
    uint32_t member = member_of(r, hth_rpc_peer(req));
    if (member != UINT32_MAX)
        text = misfit(r, member, part, &err);
    if (text != NULL) {
        r->reducer->stats.parts_refused++;
        hth_part_clear(part);
        hth_rpc_refuse(req, err, 0, text);
        return;
    }
    struct reduce_owned *o = &r->owns[part->part - r->members[r->is.self].first_part];
    struct reduce_contribution *c = &o->from[member];
    watch_progress(r, member);
    if (c->state == GIVE_NONE)
        take_first(c, req, part, blob, offset);
    else
        take_repeat(c, req);
    hth_part_clear(part);
}

void take_end(struct hth_reduce_round *r, enum hth_err err, const char *text)
{
    for (uint32_t i = 0; i < r->own_count; i++) {
        for (uint32_t k = 0; k < r->is.member_count; k++) {
            struct reduce_contribution *c = &r->owns[i].from[k];
            struct hth_rpc_request *req = c->req;
            c->req = NULL;
            if (req == NULL)
                continue;
            hth_rpc_on_cancel(req, NULL, NULL);
            hth_rpc_refuse(req, err, 0, text);
        }
    }
}
