/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_take.c: the parts that this member reduces. Contributions are kept as they came until
 * everybody's is there (or was given up); then one job adds them in the order of members, writes
 * the mean once, and encodes the answers of those who sent narrower formats, or one for all. fp32
 * answers refer to the mean itself.
 *
 *   open --complete--> summing --job--> done --> answers; latecomers are told the mean itself
 */
#include <string.h>

#include "averaging/reduce_int.h"

struct sum {
    struct hth_job job;
    struct reduce_part *part;
    enum hth_err err;
    double clip;   /* as of the options */
    double weight; /* of what could be added, as it counts here */
    float *room;   /* of narrow values, decoded */
    size_t room_bytes;
    bool told; /* the room of this member's values has what all are told */
    struct sum_input in[];
};

static bool is_sender(const struct reduce_member_state *m)
{
    return m->is.weight > 0;
}

/* This member's own. Its blob is room for what it would send to itself, and then for what all are
 * told: NULL where that is fp32, or no memory was left; values and mean themselves do then. */
static struct reduce_contribution *mine_of(const struct reduce_part *o)
{
    return &o->from[o->round->is.self];
}

/* ---- answers ------------------------------------------------------------------------------- */

static void reply(struct reduce_contribution *c, const struct hth_segment *segments,
                  uint32_t segment_count, struct hth_blob *blob, size_t offset)
{
    const struct reduce_part *o = c->part;
    struct hth_reduce_round *r = o->round;
    uint8_t payload[HTH_PART_BYTES_MAX];
    struct hth_part_reply answer = {.segment_count = segment_count};
    if (segment_count > 0)
        memcpy(answer.segments, segments, segment_count * sizeof(segments[0]));
    for (uint32_t i = 0; i < r->is.member_count; i++)
        if (is_sender(&r->members[i]) && o->from[i].state != GIVE_HERE)
            answer.missing[i / 8] |= (uint8_t)(1u << i % 8);
    uint64_t bytes = hth_codec_bytes(segments, segment_count);
    struct hth_tensor tensor = {HTH_U8, 1, {bytes}, blob, offset};
    struct hth_rpc_body body = {payload, hth_part_reply_pack(&answer, payload), &tensor,
                                bytes > 0 ? 1 : 0};
    struct hth_rpc_request *req = c->req;
    c->req = NULL;
    r->result.bytes_out += bytes;
    hth_rpc_reply(req, &body);
}

/* The mean itself; or that there is none. */
static void reply_mean(struct reduce_contribution *c)
{
    const struct reduce_part *o = c->part;
    const struct hth_reduce_round *r = o->round;
    const struct reduce_contribution *mine = mine_of(o);
    const struct hth_segment whole = {HTH_QUANT_F32, o->count};
    if (!(o->weight > 0))
        reply(c, NULL, 0, NULL, 0);
    else if (mine->blob != NULL)
        reply(c, mine->segments, mine->segment_count, mine->blob, 0);
    else
        reply(c, &whole, 1, r->average, (size_t)(o->first - r->average_first) * sizeof(float));
}

/* Frees the values sent, which were used: a round may last long, and needs the room. */
static void let_go(struct reduce_contribution *c)
{
    hth_blob_unref(c->blob);
    hth_blob_unref(c->answer);
    hth_free(c->segments);
    c->blob = c->answer = NULL;
    c->segments = NULL;
    c->segment_count = 0;
}

/* ---- the job ------------------------------------------------------------------------------- */

static const float *own_values(const struct sum *s)
{
    const struct reduce_part *o = s->part;
    return (const float *)(const void *)o->round->is.values->data + o->first;
}

/* Its own values are added as this member sends them to others: all who have the same ones add the
 * same, whoever of them reduces. */
static enum hth_err decode(const struct sum *s, uint32_t i, float *y)
{
    const struct reduce_contribution *c = &s->part->from[i];
    if (c == mine_of(s->part))
        HTH_TRY(hth_codec_encode(c->segments, c->segment_count, own_values(s), c->blob->data));
    return hth_codec_decode(c->segments, c->segment_count, c->blob->data + c->offset, NULL, y);
}

/* The inputs as floats: where they are, or decoded. */
static enum hth_err prepare(struct sum *s)
{
    const struct reduce_part *o = s->part;
    const struct hth_reduce_opts *is = &o->round->is;
    float *y = NULL;
    for (uint32_t i = 0; i < is->member_count; i++) {
        bool narrow = !hth_codec_is_fp32(o->from[i].segments, o->from[i].segment_count);
        s->room_bytes += !s->in[i].out && narrow ? o->count * sizeof(float) : 0;
    }
    if (s->room_bytes > 0)
        y = s->room = hth_try_block(s->room_bytes);
    if (s->room_bytes > 0 && y == NULL)
        return HTH_E_NO_MEMORY;
    for (uint32_t i = 0; i < is->member_count; i++) {
        const struct reduce_contribution *c = &o->from[i];
        struct sum_input *in = &s->in[i];
        if (in->out)
            continue;
        if (!hth_codec_is_fp32(c->segments, c->segment_count)) {
            in->values = y;
            in->out = decode(s, i, y) != HTH_OK;
            y += o->count;
        } else if (i == is->self) {
            in->values = own_values(s);
        } else {
            in->values = (const float *)(const void *)(c->blob->data + c->offset);
        }
    }
    return HTH_OK;
}

/* The mean becomes what the others make of it. */
static bool write_told(const struct sum *s, float *mean)
{
    const struct reduce_contribution *mine = mine_of(s->part);
    return hth_codec_encode(mine->segments, mine->segment_count, mean, mine->blob->data) ==
               HTH_OK &&
           hth_codec_decode(mine->segments, mine->segment_count, mine->blob->data, NULL, mean) ==
               HTH_OK;
}

/* Stretches in fp32 are the mean, others the mean less what was sent. */
static enum hth_err write_answer(const struct reduce_contribution *c, const float *sent,
                                 const float *mean)
{
    size_t bytes = c->part->count * sizeof(float);
    float *rest = hth_try_block(bytes);
    if (rest == NULL)
        return HTH_E_NO_MEMORY;
    for (uint32_t i = 0, at = 0; i < c->segment_count; i++)
        for (uint32_t end = at + c->segments[i].count; at < end; at++)
            rest[at] = c->segments[i].format == HTH_QUANT_F32 ? mean[at] : mean[at] - sent[at];
    enum hth_err err = hth_codec_encode(c->segments, c->segment_count, rest, c->answer->data);
    hth_block_free(rest, bytes);
    return err;
}

/* Answers in the senders' formats, this member's own among them: it takes what others who sent the
 * same would make of theirs. */
static enum hth_err write_answers(struct sum *s, float *mean)
{
    const struct reduce_part *o = s->part;
    const struct reduce_contribution *mine = mine_of(o);
    for (uint32_t i = 0; i < o->round->is.member_count; i++) {
        struct sum_input *in = &s->in[i];
        in->answered =
            in->answered && !in->out && write_answer(&o->from[i], in->values, mean) == HTH_OK;
    }
    if (!s->in[o->round->is.self].answered)
        return HTH_OK;
    return hth_codec_decode(mine->segments, mine->segment_count, mine->answer->data, own_values(s),
                            mean);
}

static void run_sum(struct hth_job *job)
{
    struct sum *s = HTH_CONTAINER(job, struct sum, job);
    const struct reduce_part *o = s->part;
    const struct hth_reduce_round *r = o->round;
    uint32_t n = r->is.member_count;
    float *mean = (float *)(void *)r->average->data + (o->first - r->average_first);

    s->err = prepare(s);
    if (s->err != HTH_OK)
        return;
    s->weight = hth_reduce_sum(s->in, n, mean, o->count);
    if (!(s->weight > 0)) {
        s->told = false;
        for (uint32_t i = 0; i < n; i++)
            s->in[i].answered = false;
        if (r->is.values != NULL)
            memcpy(mean, own_values(s), o->count * sizeof(float));
        return;
    }
    if (s->clip > 0)
        s->err = hth_reduce_clip(s->in, n, s->clip, r->is.fixed, mean, o->count);
    if (s->told)
        s->told = write_told(s, mean);
    if (s->err == HTH_OK && !r->is.same)
        s->err = write_answers(s, mean);
}

static void sum_free(struct sum *s)
{
    if (s->room != NULL)
        hth_block_free(s->room, s->room_bytes);
    round_unref(s->part->round);
    hth_free(s);
}

/* Members in the mean and their weight, as all members know them. */
static void settle(struct sum *s)
{
    struct reduce_part *o = s->part;
    struct hth_reduce_round *r = o->round;
    double own = reduce_self(r)->is.weight;
    o->done = true;
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        struct reduce_member_state *m = &r->members[i];
        if (o->from[i].state == GIVE_HERE && s->in[i].out) {
            o->from[i].state = GIVE_EMPTY;
            if (m->fate->as_sender == HTH_REDUCE_DROP_NONE)
                m->fate->as_sender = HTH_REDUCE_DROP_NOT_FINITE;
        }
        if (o->from[i].state == GIVE_HERE && s->weight > 0)
            o->weight += m->is.weight;
        else if (is_sender(m))
            m->fate->parts_missing++;
    }
    r->result.weight += (o->weight > 0 ? o->weight : own) * o->count;
    r->reducer->stats.parts_reduced++;
    r->owns_left--;
}

static void done_sum(struct hth_job *job, enum hth_err err)
{
    struct sum *s = HTH_CONTAINER(job, struct sum, job);
    struct reduce_part *o = s->part;
    struct hth_reduce_round *r = o->round;
    err = err == HTH_OK ? s->err : err;
    if (r->reducer != NULL && err != HTH_OK) {
        round_fail(r, err);
    } else if (r->reducer != NULL) {
        settle(s);
        if (!s->told)
            let_go(mine_of(o));
        for (uint32_t i = 0; i < r->is.member_count; i++) {
            struct reduce_contribution *c = &o->from[i];
            if (c->req != NULL && s->in[i].answered)
                reply(c, c->segments, c->segment_count, c->answer, 0);
            else if (c->req != NULL) /* as the mean is, or it came while the job ran */
                reply_mean(c);
            if (i != r->is.self)
                let_go(c);
        }
        round_check(r);
    }
    sum_free(s);
}

/* ---- completeness -------------------------------------------------------------------------- */

static bool is_complete(const struct hth_reduce_round *r, const struct reduce_part *o)
{
    for (uint32_t i = 0; i < r->is.member_count; i++)
        if (i != r->is.self && watch_waits_for(&r->members[i]) && o->from[i].state == GIVE_NONE)
            return false;
    return true;
}

/* Room for as many bytes as the contribution's segments have. Without it the mean itself, or the
 * own values, will do. */
static bool make_room(const struct reduce_contribution *c, struct hth_budget *budget,
                      struct hth_blob **out)
{
    struct hth_env *env = c->part->round->reducer->env;
    return !hth_codec_is_fp32(c->segments, c->segment_count) &&
           hth_env_blob_new(env, hth_codec_bytes(c->segments, c->segment_count), budget, out) ==
               HTH_OK;
}

static void set_segments(struct reduce_contribution *c, const struct hth_segment *segments,
                         uint32_t count)
{
    c->segments = hth_new_array(struct hth_segment, count);
    c->segment_count = count;
    memcpy(c->segments, segments, count * sizeof(segments[0]));
}

/* Like the mean the own one's room is of this member's own size, and lives as long: it is not of
 * the bytes that others make us hold. */
static void begin_own(struct reduce_contribution *mine)
{
    struct hth_segment segments[HTH_AVG_SEGMENTS_MAX];
    set_segments(mine, segments, round_segments(mine->part, segments));
    if (!make_room(mine, NULL, &mine->blob))
        let_go(mine);
}

static void begin_sum(struct reduce_part *o)
{
    struct hth_reduce_round *r = o->round;
    double bytes = (double)o->count * sizeof(float), floats = 0;
    struct sum *s = hth_calloc(1, sizeof(*s) + r->is.member_count * sizeof(s->in[0]));
    round_ref(r);
    s->part = o;
    s->clip = r->reducer->opts.clip;
    /* As if it ran: of ghosts all are finite, and in the mean. */
    begin_own(mine_of(o));
    s->told = r->is.same && mine_of(o)->blob != NULL;
    s->weight = 1;
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        struct reduce_contribution *c = &o->from[i];
        struct sum_input *in = &s->in[i];
        in->weight = r->members[i].is.weight;
        in->out = c->state != GIVE_HERE;
        if (in->out)
            continue;
        bool own = i == r->is.self;
        in->answered = !r->is.same && (own || c->req != NULL) &&
                       make_room(c, own ? NULL : hth_rpc_budget(r->reducer->rpc), &c->answer);
        floats += o->count;
        bytes += (double)hth_codec_bytes(c->segments, c->segment_count) +
                 (in->answered ? 4.0 * o->count : 0);
    }
    s->job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                              .run = run_sum,
                              .done = done_sum,
                              .flops = (s->clip > 0 ? 6.0 : 2.0) * floats,
                              .bytes_moved = bytes};
    o->summing = true;
    enum hth_err err = hth_job_submit(r->reducer->env, &s->job);
    if (err != HTH_OK) {
        round_fail(r, err);
        sum_free(s);
    }
}

void take_review(struct hth_reduce_round *r)
{
    const struct reduce_member_state *self = reduce_self(r);
    for (uint32_t i = 0; i < self->part_count && r->reducer != NULL; i++) {
        struct reduce_part *o = &r->parts[self->first_part + i];
        if (!o->summing && is_complete(r, o))
            begin_sum(o);
    }
}

/* ---- what arrives -------------------------------------------------------------------------- */

/* The sender does not want the answer any more, or is gone; its values still count. */
static void on_cancel(void *arg)
{
    struct reduce_contribution *c = arg;
    struct hth_rpc_request *req = c->req;
    c->req = NULL;
    hth_rpc_refuse(req, HTH_E_CANCELED, 0, NULL);
}

/* Why a part does not fit the round; NULL: it does. */
static const char *misfit(const struct hth_reduce_round *r, uint32_t member,
                          const struct hth_part_head *head, enum hth_err *err)
{
    const struct reduce_member_state *self = reduce_self(r), *from = &r->members[member];
    *err = HTH_E_RANGE;
    if (!reduce_hears(&from->is) || (!is_sender(from) && head->segment_count > 0))
        return "this member has no values for the group";
    if (head->part < self->first_part || head->part - self->first_part >= self->part_count)
        return "this part is reduced by another member";
    *err = HTH_E_BAD_SHAPE;
    if (head->segment_count > 0 && head->floats != r->parts[head->part].count)
        return "the part has another number of floats";
    *err = HTH_E_DUPLICATE;
    if (r->parts[head->part].from[member].state != GIVE_NONE)
        return "this part was sent before";
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

void take_part(struct hth_reduce_round *r, struct hth_rpc_request *req,
               const struct hth_part_head *head, struct hth_blob *blob, size_t offset)
{
    enum hth_err err = HTH_E_BAD_PEER_ID;
    const char *text = "no member of this group";
    uint32_t member = member_of(r, hth_rpc_peer(req));
    if (member != UINT32_MAX)
        text = misfit(r, member, head, &err);
    if (text != NULL) {
        hth_rpc_refuse(req, err, 0, text);
        return;
    }
    struct reduce_part *o = &r->parts[head->part];
    struct reduce_contribution *c = &o->from[member];
    uint64_t bytes = hth_codec_bytes(head->segments, head->segment_count);
    watch_progress(r, member);
    c->req = req;
    hth_rpc_on_cancel(req, on_cancel, c);
    c->state = !o->summing && blob != NULL ? GIVE_HERE : GIVE_EMPTY;
    if (c->state == GIVE_HERE) {
        set_segments(c, head->segments, head->segment_count);
        c->blob = hth_blob_ref(blob);
        c->offset = offset;
    }
    if (head->segment_count == 0 && is_sender(&r->members[member]) && !o->summing)
        r->members[member].fate->as_sender = HTH_REDUCE_DROP_NOT_FINITE; /* by its own word */
    r->members[member].got++;
    r->result.bytes_in += bytes;
    r->reducer->stats.bytes_in += bytes;
    if (o->done)
        reply_mean(c);
    else if (!o->summing && is_complete(r, o))
        begin_sum(o);
}

void take_end(struct hth_reduce_round *r, enum hth_err err, const char *text)
{
    const struct reduce_member_state *self = reduce_self(r);
    for (uint32_t i = 0; i < self->part_count; i++) {
        for (uint32_t k = 0; k < r->is.member_count; k++) {
            struct reduce_contribution *c = &r->parts[self->first_part + i].from[k];
            struct hth_rpc_request *req = c->req;
            c->req = NULL;
            if (req == NULL)
                continue;
            hth_rpc_on_cancel(req, NULL, NULL);
            hth_rpc_refuse(req, err, 0, text);
        }
    }
}
