/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: the reducer and its rounds: begin, requests, end; and parts that come early. */
#include "averaging/reduce.h"

#include <math.h>
#include <string.h>

#include "averaging/reduce_int.h"

#define THIN_BIT_S 2e6 /* a home's line, the worst that is worth it */

/* ---- rounds: memory ------------------------------------------------------------------------ */

struct hth_reduce_round *round_ref(struct hth_reduce_round *r)
{
    r->refs++;
    return r;
}

void round_unref(struct hth_reduce_round *r)
{
    if (--r->refs > 0)
        return;
    for (uint32_t i = 0; i < r->part_count; i++) {
        struct reduce_contribution *from = r->parts[i].from;
        for (uint32_t k = 0; from != NULL && k < r->is.member_count; k++) {
            hth_blob_unref(from[k].blob);
            hth_blob_unref(from[k].answer);
            hth_free(from[k].segments);
        }
        hth_free(from);
    }
    hth_blob_unref(r->is.values);
    hth_blob_unref(r->average);
    hth_free(r->parts);
    hth_free((void *)r->is.far);
    hth_free((void *)r->is.spans);
    hth_free(r->members);
    hth_free(r->fates);
    hth_free(r);
}

static struct hth_reduce_round *find_round(const struct hth_reducer *red,
                                           const struct hth_hash *group)
{
    for (uint32_t i = 0; i < red->round_count; i++) {
        if (memcmp(red->rounds[i]->is.group.b, group->b, sizeof(group->b)) == 0)
            return red->rounds[i];
    }
    return NULL;
}

static bool has_ended(const struct hth_reducer *red, const struct hth_hash *group)
{
    for (uint32_t i = 0; i < HTH_MIN(red->ended_count, HTH_AVG_ROUNDS_MAX); i++) {
        if (memcmp(red->ended[i].b, group->b, sizeof(group->b)) == 0)
            return true;
    }
    return false;
}

/* Off the list: nobody is answered any more, and its name is remembered. */
static void round_remove(struct hth_reduce_round *r, enum hth_err err)
{
    struct hth_reducer *red = r->reducer;
    uint32_t at = 0;
    give_end(r);
    take_end(r, err, "this round has ended here");
    hth_timer_free(red->env, r->timer);
    r->timer = NULL;
    red->ended[red->ended_count++ % HTH_AVG_ROUNDS_MAX] = r->is.group;
    while (red->rounds[at] != r)
        at++;
    memmove(&red->rounds[at], &red->rounds[at + 1],
            (--red->round_count - at) * sizeof(struct hth_reduce_round *));
    r->reducer = NULL;
    round_unref(r);
}

/* ---- rounds: end --------------------------------------------------------------------------- */

static void finish(struct hth_reduce_round *r)
{
    struct hth_reduce_result *res = &r->result;
    uint64_t floats = r->is.values != NULL ? r->is.count : reduce_self(r)->floats;
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        const struct hth_reduce_fate *fate = &r->fates[i];
        res->dropped += fate->as_sender != HTH_REDUCE_DROP_NONE ||
                        fate->as_reducer != HTH_REDUCE_DROP_NONE || fate->parts_missing > 0;
    }
    res->average = res->err == HTH_OK && r->is.values != NULL ? r->average : NULL;
    res->weight = floats > 0 ? res->weight / (double)floats : 0;
    res->weight_fraction = res->weight / r->group_weight;
    res->fates = r->fates;
    res->members = r->is.member_count;
    res->parts = r->part_count;
    res->took_us = hth_now_us(r->reducer->env) - r->start_us;
    round_ref(r);
    round_remove(r, HTH_E_EXPIRED);
    r->is.done(r->is.arg, res);
    round_unref(r);
}

void round_check(struct hth_reduce_round *r)
{
    if (r->reducer != NULL &&
        (r->result.err != HTH_OK || (r->sends_left == 0 && r->owns_left == 0)))
        finish(r);
}

static void round_soon(struct hth_reduce_round *r)
{
    r->look_us = hth_now_us(r->reducer->env);
    hth_timer_set(r->reducer->env, r->timer, 0);
}

void round_fail(struct hth_reduce_round *r, enum hth_err err)
{
    r->result.err = err;
    round_soon(r);
}

static void on_round_timer(void *arg)
{
    struct hth_reduce_round *r = arg;
    round_ref(r);
    watch_tick(r);
    round_check(r);
    /* Arithmetic that is still in the lane's queue may not hold up the caller. */
    if (r->reducer != NULL && hth_now_us(r->reducer->env) >= r->end_us)
        r->result.err = HTH_E_TIMEOUT;
    round_check(r);
    round_unref(r);
}

void hth_reduce_cancel(struct hth_reduce_round *r)
{
    HTH_ASSERT(r->reducer != NULL);
    round_remove(r, HTH_E_CANCELED);
}

void hth_reduce_fill_usual(struct hth_reduce_member *m, uint32_t n)
{
    double known[HTH_AVG_MEMBERS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        if (m[i].bandwidth > HTH_REDUCE_NOT_SAID)
            known[count++] = m[i].bandwidth;
    if (count == 0)
        return;
    double median = hth_reduce_rank(known, count, (count - 1) / 2);
    for (uint32_t i = 0; i < n; i++)
        if (m[i].bandwidth == HTH_REDUCE_NOT_SAID)
            m[i].bandwidth = median;
}

int64_t hth_reduce_thin_us(uint64_t count)
{
    return (int64_t)(2 * 2.0 * 8 * sizeof(float) * (double)count / THIN_BIT_S * HTH_US_PER_S);
}

/* ---- rounds: begin ------------------------------------------------------------------------- */

static enum hth_err check_members(const struct hth_reduce_opts *o)
{
    double total = 0;
    if (o->member_count == 0 || o->member_count > HTH_AVG_MEMBERS_MAX || o->self >= o->member_count)
        return HTH_E_RANGE;
    for (uint32_t i = 0; i < o->member_count; i++) {
        const struct hth_reduce_member *m = &o->members[i];
        if (!isfinite(m->weight) || m->weight < 0 || m->weight > HTH_AVG_WEIGHT_MAX)
            return HTH_E_RANGE;
        total += m->weight;
        for (uint32_t k = 0; k < i; k++) {
            if (hth_peer_id_eq(&m->id, &o->members[k].id))
                return HTH_E_DUPLICATE;
        }
    }
    return total > 0 ? HTH_OK : HTH_E_RANGE;
}

static enum hth_err check(const struct hth_reducer *red, const struct hth_reduce_opts *o)
{
    HTH_TRY(check_members(o));
    if (o->count == 0 || o->count > HTH_PARAMS_FLOATS_MAX || o->timeout_us <= 0 ||
        o->timeout_us > HTH_AVG_REDUCE_TIMEOUT_MAX_US || o->done == NULL ||
        !(o->share_max == 0 || o->share_max >= 1))
        return HTH_E_RANGE;
    if (reduce_hears(&o->members[o->self]) != (o->values != NULL))
        return HTH_E_RANGE;
    if (o->values != NULL && o->values->size / sizeof(float) < o->count)
        return HTH_E_RANGE;
    if (o->spans != NULL)
        HTH_TRY(hth_avg_spans_check(o->spans, o->span_count, o->count));
    if (find_round(red, &o->group) != NULL || has_ended(red, &o->group))
        return HTH_E_DUPLICATE;
    return red->round_count < HTH_AVG_ROUNDS_MAX ? HTH_OK : HTH_E_BUDGET;
}

/* Its own copies of what the caller keeps only for the call. */
static void keep_opts(struct hth_reduce_round *r)
{
    const struct hth_avg_span plain = {r->is.count, HTH_QUANT_F32};
    const struct hth_reduce_opts *o = &r->is;
    uint32_t n = o->spans != NULL ? o->span_count : 1, senders = 0;
    struct hth_avg_span *spans = hth_new_array(struct hth_avg_span, n);
    size_t blocks = (o->count + HTH_AVG_BLOCK_FLOATS - 1) / HTH_AVG_BLOCK_FLOATS;
    float *far = NULL;
    memcpy(spans, o->spans != NULL ? o->spans : &plain, n * sizeof(*spans));
    for (uint32_t i = 0; o->fixed && i < n; i++)
        if (spans[i].format == HTH_QUANT_UNIFORM8)
            spans[i].format = HTH_QUANT_INT8;
    for (uint32_t i = 0; i < o->member_count; i++)
        senders += i != o->self && o->members[i].weight > 0;
    if (o->far != NULL && senders >= HTH_REDUCE_CLIP_MEMBERS - 1) {
        far = hth_new_array(float, blocks);
        memcpy(far, o->far, blocks * sizeof(float));
    }
    r->is.spans = spans;
    r->is.span_count = n;
    r->is.far = far;
    r->is.members = NULL;
    if (o->values != NULL)
        hth_blob_ref(o->values);
}

static struct hth_reduce_round *round_new(struct hth_reducer *red, const struct hth_reduce_opts *o)
{
    struct hth_reduce_round *r = hth_new(struct hth_reduce_round);
    int64_t now = hth_now_us(red->env);
    r->refs = 1;
    r->reducer = red;
    r->is = *o;
    r->members = hth_new_array(struct reduce_member_state, o->member_count);
    r->fates = hth_new_array(struct hth_reduce_fate, o->member_count);
    for (uint32_t i = 0; i < o->member_count; i++) {
        r->members[i].is = o->members[i];
        r->members[i].round = r;
        r->members[i].fate = &r->fates[i];
        r->members[i].heard_us = r->members[i].progress_us = r->members[i].here_us = now;
        r->group_weight += o->members[i].weight;
    }
    keep_opts(r);
    r->start_us = now;
    r->end_us = now + o->timeout_us;
    return r;
}

/* The average's own memory: all of it, or for a helper its share. */
static enum hth_err make_average(struct hth_reduce_round *r)
{
    const struct reduce_member_state *self = reduce_self(r);
    uint64_t floats = r->is.values != NULL ? r->is.count : HTH_MAX(self->floats, (uint64_t)1);
    r->average_first = r->is.values != NULL ? 0 : self->first;
    if (hth_fault(r->reducer->env, "averaging.memory"))
        return HTH_E_NO_MEMORY;
    return hth_env_blob_new(r->reducer->env, floats * sizeof(float), NULL, &r->average);
}

/* ---- requests ------------------------------------------------------------------------------ */

static void early_hold(struct hth_reducer *red, struct hth_rpc_request *req,
                       const struct hth_part_head *head);

static void on_request(void *arg, struct hth_rpc_request *req)
{
    struct hth_reducer *red = arg;
    struct hth_part_head head;
    size_t count, len;
    uint64_t bytes;
    const struct hth_tensor *tensor = hth_rpc_tensors(req, &count);
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_part_tensor(tensor, count, &bytes);
    if (err == HTH_OK)
        err = hth_part_open(payload, len, bytes, &head);
    if (err != HTH_OK) {
        hth_rpc_refuse(req, err, 0, NULL);
        return;
    }
    struct hth_reduce_round *r = find_round(red, &head.group);
    if (r != NULL)
        take_part(r, req, &head, bytes > 0 ? tensor->blob : NULL, bytes > 0 ? tensor->offset : 0);
    else if (has_ended(red, &head.group))
        hth_rpc_refuse(req, HTH_E_EXPIRED, 0, "this round has ended here");
    else if (head.part == HTH_PART_NONE)
        hth_rpc_refuse(req, HTH_E_NOT_FOUND, 0, "this round has not begun here");
    else
        early_hold(red, req, &head);
}

/* ---- parts of rounds that have not begun here ---------------------------------------------- */

/* Takes it off the list; the request is the caller's. */
static struct hth_rpc_request *early_remove(struct hth_reducer *red, struct reduce_early *e)
{
    struct reduce_early **at = &red->early;
    struct hth_rpc_request *req = e->req;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    hth_free(e);
    hth_rpc_on_cancel(req, NULL, NULL);
    return req;
}

static void on_early_cancel(void *arg)
{
    struct reduce_early *e = arg;
    hth_rpc_refuse(early_remove(e->reducer, e), HTH_E_CANCELED, 0, NULL);
}

static void early_tidy(void *reducer)
{
    struct hth_reducer *red = reducer;
    int64_t now = hth_now_us(red->env);
    while (red->early != NULL && red->early->until_us <= now)
        hth_rpc_refuse(early_remove(red, red->early), HTH_E_EXPIRED, 0,
                       "this round did not begin here");
    if (red->early != NULL)
        hth_timer_set(red->env, red->timer, red->early->until_us - now);
}

/* Until its round begins. Anybody may send them, so nobody may take all the room. */
static void early_hold(struct hth_reducer *red, struct hth_rpc_request *req,
                       const struct hth_part_head *head)
{
    size_t bytes = hth_codec_bytes(head->segments, head->segment_count), all = bytes;
    uint32_t parts = 0, of_peer = 0;
    struct reduce_early **end = &red->early;
    for (; *end != NULL; end = &(*end)->next) {
        all += (*end)->bytes;
        of_peer += hth_peer_id_eq(hth_rpc_peer((*end)->req), hth_rpc_peer(req));
        parts++;
    }
    if (all > HTH_AVG_EARLY_BYTES_MAX || parts >= HTH_AVG_EARLY_PARTS_MAX ||
        of_peer >= HTH_AVG_EARLY_PER_PEER_MAX) {
        hth_rpc_refuse(req, HTH_E_BUSY, 0, "this round has not begun here yet");
        return;
    }
    *end = hth_new(struct reduce_early);
    **end = (struct reduce_early){.reducer = red,
                                  .req = req,
                                  .group = head->group,
                                  .bytes = bytes,
                                  .until_us = hth_now_us(red->env) + red->opts.silence_us};
    hth_rpc_on_cancel(req, on_early_cancel, *end);
    early_tidy(red);
}

/* Takes the parts that came before the round began. */
static void early_take(struct hth_reduce_round *r)
{
    struct reduce_early *next;
    for (struct reduce_early *e = r->reducer->early; e != NULL; e = next) {
        next = e->next;
        if (memcmp(e->group.b, r->is.group.b, sizeof(e->group.b)) == 0)
            on_request(r->reducer, early_remove(r->reducer, e));
    }
}

enum hth_err hth_reduce_start(struct hth_reducer *red, const struct hth_reduce_opts *opts,
                              struct hth_reduce_round **out)
{
    if (out != NULL)
        *out = NULL;
    HTH_TRY(check(red, opts));
    struct hth_reduce_round *r = round_new(red, opts);
    enum hth_err err = round_cut(r);
    if (err == HTH_OK)
        err = make_average(r);
    if (err != HTH_OK) {
        round_unref(r);
        return err;
    }
    r->timer = hth_timer_new(red->env, on_round_timer, r);
    watch_begin(r);
    red->rounds[red->round_count++] = r;
    give_pump_all(r);
    take_review(r);
    early_take(r);
    if (r->sends_left == 0 && r->owns_left == 0)
        round_soon(r);
    if (out != NULL)
        *out = r;
    return HTH_OK;
}

/* ---- the reducer --------------------------------------------------------------------------- */

static bool opts_ok(const struct hth_reducer_opts *o)
{
    return o->silence_us > 0 && o->patience_us > 0 &&
           (o->clip == 0 || (o->clip >= 1 && isfinite(o->clip)));
}

enum hth_err hth_reducer_new(struct hth_env *env, struct hth_rpc *rpc,
                             const struct hth_reducer_opts *opts, struct hth_reducer **out)
{
    static const struct hth_reducer_opts usual = HTH_REDUCER_OPTS_INIT;
    *out = NULL;
    if (opts == NULL)
        opts = &usual;
    if (!opts_ok(opts))
        return HTH_E_CONFIG;
    struct hth_reducer *red = hth_new(struct hth_reducer);
    red->env = env;
    red->rpc = rpc;
    red->opts = *opts;
    red->timer = hth_timer_new(env, early_tidy, red);
    hth_rpc_serve(rpc, HTH_REDUCE_METHOD, on_request, red);
    *out = red;
    return HTH_OK;
}

void hth_reducer_free(struct hth_reducer *red)
{
    if (red == NULL)
        return;
    hth_rpc_serve(red->rpc, HTH_REDUCE_METHOD, NULL, NULL);
    while (red->round_count > 0)
        round_remove(red->rounds[0], HTH_E_CANCELED);
    while (red->early != NULL)
        hth_rpc_refuse(early_remove(red, red->early), HTH_E_CANCELED, 0, "shutting down");
    hth_timer_free(red->env, red->timer);
    hth_free(red);
}

void hth_reducer_peer_lost(struct hth_reducer *red, const struct hth_peer_id *peer)
{
    for (uint32_t i = 0; i < red->round_count; i++) {
        struct hth_reduce_round *r = red->rounds[i];
        for (uint32_t k = 0; k < r->is.member_count; k++) {
            if (k != r->is.self && hth_peer_id_eq(&r->members[k].is.id, peer))
                watch_drop(r, k, HTH_REDUCE_DROP_LOST);
        }
    }
}

void hth_reducer_stats(const struct hth_reducer *red, struct hth_reducer_stats *out)
{
    *out = red->stats;
    out->rounds_now = red->round_count;
}
