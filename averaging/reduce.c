/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: the reducer and its rounds: begin, requests, end. */
#include "averaging/reduce.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/reduce_int.h"

#define THIN_BIT_S 2e6 /* a home's line, the worst that is worth it */

/* ---- names --------------------------------------------------------------------------------- */

static const struct {
    const char *name, *text;
} drops[] = {
#define DROP(upper, lower, text) {#lower, text},
    HTH_REDUCE_DROP_MAP(DROP)
#undef DROP
};

const char *hth_reduce_drop_name(enum hth_reduce_drop drop)
{
    return (size_t)drop < HTH_ARRAY_LEN(drops) ? drops[drop].name : "unknown";
}

const char *hth_reduce_drop_text(enum hth_reduce_drop drop)
{
    return (size_t)drop < HTH_ARRAY_LEN(drops) ? drops[drop].text : "unknown";
}

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
    for (uint32_t i = 0; i < r->own_count; i++) {
        for (uint32_t k = 0; k < r->is.member_count; k++) {
            hth_blob_unref(r->owns[i].from[k].blob);
            hth_free(r->owns[i].from[k].segments);
        }
        hth_free(r->owns[i].from);
        hth_blob_unref(r->owns[i].told);
        hth_free(r->owns[i].told_segments);
    }
    hth_blob_unref(r->is.values);
    hth_blob_unref(r->average);
    hth_free(r->owns);
    hth_free(r->sends);
    hth_free((void *)r->is.far);
    hth_free((void *)r->is.spans);
    hth_free(r->reducers);
    hth_free(r->members);
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
    r->state = ROUND_GONE;
    give_end(r);
    watch_end(r);
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

void round_count_out(struct hth_reduce_round *r, const struct hth_segment *segments, uint32_t count)
{
    uint64_t bytes = hth_codec_bytes(segments, count);
    r->bytes_out += bytes;
    hth_metric_add(r->reducer->metrics.bytes_out, (int64_t)bytes);
}

static void fill_result(struct hth_reduce_round *r, struct hth_reduce_fate *fates,
                        struct hth_reduce_result *res)
{
    uint64_t floats = 0;
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        const struct reduce_member_state *m = &r->members[i];
        fates[i] = (struct hth_reduce_fate){m->as_sender, m->as_reducer, m->parts_missing,
                                            m->parts_kept, m->parts_clipped};
        res->dropped += m->as_sender != HTH_REDUCE_DROP_NONE ||
                        m->as_reducer != HTH_REDUCE_DROP_NONE || m->parts_missing > 0;
    }
    for (uint32_t i = 0; i < r->own_count; i++)
        floats += r->owns[i].count;
    if (r->is.values != NULL)
        floats = r->is.count;
    res->err = r->err;
    res->average = r->err == HTH_OK && r->is.values != NULL ? r->average : NULL;
    res->weight = floats > 0 ? r->weight_floats / (double)floats : 0;
    res->weight_fraction = res->weight / r->group_weight;
    res->fates = fates;
    res->members = r->is.member_count;
    res->parts = r->part_count;
    res->parts_kept = r->parts_kept;
    res->parts_damaged = r->parts_damaged;
    res->bytes_out = r->bytes_out;
    res->bytes_in = r->bytes_in;
    res->took_us = hth_now_us(r->reducer->env) - r->start_us;
    res->encode_error = r->error.was > 0 ? sqrt(r->error.lost / r->error.was) : 0;
}

static uint32_t count_in(const struct hth_reducer *red, enum round_state state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < red->round_count; i++)
        n += red->rounds[i]->state == state;
    return n;
}

/* Somebody who was given up may still send: it is told the mean, and stays with the others. */
static bool is_owed(const struct hth_reduce_round *r)
{
    for (uint32_t i = 0; i < r->is.member_count && r->err == HTH_OK; i++) {
        const struct reduce_member_state *m = &r->members[i];
        if (i != r->is.self && m->is.weight > 0 && m->got < r->own_count)
            return true;
    }
    return false;
}

static void linger(struct hth_reduce_round *r)
{
    struct hth_reducer *red = r->reducer;
    for (uint32_t i = 0; count_in(red, ROUND_LINGERING) >= LINGERING_MAX; i++)
        if (red->rounds[i]->state == ROUND_LINGERING)
            round_remove(red->rounds[i], HTH_E_EXPIRED);
    r->state = ROUND_LINGERING;
    give_end(r);
    watch_end(r);
    hth_timer_set(red->env, r->timer, LINGER_US);
    hth_blob_unref(r->is.values);
    r->is.values = NULL;
}

static void finish(struct hth_reduce_round *r)
{
    struct hth_reduce_result res = {0};
    struct hth_reduce_fate *fates = hth_new_array(struct hth_reduce_fate, r->is.member_count);
    round_ref(r);
    fill_result(r, fates, &res);
    hth_metric_add(r->reducer->metrics.rounds, 1);
    if (is_owed(r))
        linger(r);
    else
        round_remove(r, HTH_E_EXPIRED);
    r->is.done(r->is.arg, &res);
    hth_free(fates);
    round_unref(r);
}

void round_check(struct hth_reduce_round *r)
{
    if (r->state == ROUND_RUNNING && r->sends_left == 0 && r->owns_left == 0)
        finish(r);
}

void round_soon(struct hth_reduce_round *r)
{
    r->look_us = hth_now_us(r->reducer->env);
    hth_timer_set(r->reducer->env, r->timer, 0);
}

static void on_round_timer(void *arg)
{
    struct hth_reduce_round *r = arg;
    if (r->state == ROUND_LINGERING) {
        round_remove(r, HTH_E_EXPIRED);
        return;
    }
    round_ref(r);
    watch_tick(r);
    round_check(r);
    /* Arithmetic that is still in the lane's queue may not hold up the caller. */
    if (r->state == ROUND_RUNNING && hth_now_us(r->reducer->env) >= r->end_us) {
        r->err = HTH_E_TIMEOUT;
        finish(r);
    }
    round_unref(r);
}

void hth_reduce_cancel(struct hth_reduce_round *r)
{
    HTH_ASSERT(r->state == ROUND_RUNNING);
    round_remove(r, HTH_E_CANCELED);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
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
    qsort(known, count, sizeof(*known), by_size);
    for (uint32_t i = 0; i < n; i++)
        if (m[i].bandwidth == HTH_REDUCE_NOT_SAID)
            m[i].bandwidth = known[(count - 1) / 2];
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
        if (!isfinite(m->weight) || m->weight < 0 || m->weight > HTH_AVG_WEIGHT_MAX ||
            (m->weight == 0 && m->bandwidth == 0))
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
    if ((o->members[o->self].weight > 0) != (o->values != NULL))
        return HTH_E_RANGE;
    if (o->values != NULL && o->values->size / sizeof(float) < o->count)
        return HTH_E_RANGE;
    if (o->spans != NULL)
        HTH_TRY(hth_avg_spans_check(o->spans, o->span_count, o->count));
    if (find_round(red, &o->group) != NULL || has_ended(red, &o->group))
        return HTH_E_DUPLICATE;
    return count_in(red, ROUND_RUNNING) < HTH_AVG_ROUNDS_MAX ? HTH_OK : HTH_E_BUDGET;
}

/* Its own copies of what the caller keeps only for the call. */
static void keep_opts(struct hth_reduce_round *r)
{
    const struct hth_avg_span plain = {r->is.count, HTH_QUANT_F32};
    const struct hth_reduce_opts *o = &r->is;
    uint32_t n = o->spans != NULL ? o->span_count : 1;
    struct hth_avg_span *spans = hth_new_array(struct hth_avg_span, n);
    size_t blocks = (o->count + HTH_AVG_FAR_FLOATS - 1) / HTH_AVG_FAR_FLOATS;
    float *far = NULL;
    memcpy(spans, o->spans != NULL ? o->spans : &plain, n * sizeof(*spans));
    for (uint32_t i = 0; o->fixed && i < n; i++)
        if (spans[i].format == HTH_QUANT_UNIFORM8)
            spans[i].format = HTH_QUANT_INT8;
    if (o->far != NULL && r->senders >= HTH_REDUCE_CLIP_MEMBERS - 1) {
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
    for (uint32_t i = 0; i < o->member_count; i++) {
        r->members[i].is = o->members[i];
        r->members[i].round = r;
        r->members[i].heard_us = r->members[i].progress_us = r->members[i].nudged_us = now;
        r->members[i].here_us = now;
        r->group_weight += o->members[i].weight;
        r->senders += i != o->self && o->members[i].weight > 0;
    }
    keep_opts(r);
    r->unit = o->fixed ? UNIT_FLOATS_FIXED : UNIT_FLOATS;
    r->start_us = r->base_us = now;
    r->end_us = now + o->timeout_us;
    weigh_members(r);
    return r;
}

/* The average's own memory: all of it, or for a helper its share. */
static enum hth_err make_average(struct hth_reduce_round *r)
{
    const struct reduce_member_state *self = &r->members[r->is.self];
    uint64_t floats = r->is.values != NULL ? r->is.count : HTH_MAX(self->floats, (uint64_t)1);
    r->average_first = r->is.values != NULL ? 0 : self->first;
    if (hth_fault(r->reducer->env, "averaging.memory"))
        return HTH_E_NO_MEMORY;
    return hth_env_blob_new(r->reducer->env, floats * sizeof(float), NULL, &r->average);
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

/* ---- requests ------------------------------------------------------------------------------ */

static enum hth_err open_request(struct hth_rpc_request *req, struct hth_part_head *part,
                                 const struct hth_tensor **tensor)
{
    size_t count, len;
    const struct hth_tensor *tensors = hth_rpc_tensors(req, &count);
    const uint8_t *payload = hth_rpc_payload(req, &len);
    *tensor = count > 0 ? tensors : NULL;
    if (count > 1 || (count == 1 && (tensors->ndim != 1 || tensors->dtype != HTH_U8)))
        return HTH_E_BAD_SHAPE;
    return hth_part_open(payload, len, count == 1 ? tensors->dim[0] : 0, part);
}

static void on_request(void *arg, struct hth_rpc_request *req)
{
    struct hth_reducer *red = arg;
    struct hth_part_head part;
    const struct hth_tensor *tensor;
    enum hth_err err = open_request(req, &part, &tensor);
    if (err == HTH_OK && has_ended(red, &part.group)) {
        hth_part_clear(&part);
        err = HTH_E_EXPIRED;
    }
    if (err != HTH_OK) {
        red->stats.parts_refused++;
        hth_rpc_refuse(req, err, 0, NULL);
        return;
    }
    struct hth_blob *blob = tensor != NULL ? tensor->blob : NULL;
    size_t offset = tensor != NULL ? tensor->offset : 0;
    struct hth_reduce_round *r = find_round(red, &part.group);
    if (part.part == HTH_PART_NONE && (r == NULL || r->state != ROUND_RUNNING)) {
        hth_part_clear(&part);
        hth_rpc_refuse(req, r == NULL ? HTH_E_NOT_FOUND : HTH_E_EXPIRED, 0, NULL);
    } else if (r != NULL) {
        take_part(r, req, &part, blob, offset);
    } else {
        early_hold(red, req, &part, blob, offset);
    }
}

/* ---- the reducer --------------------------------------------------------------------------- */

static bool opts_ok(const struct hth_reducer_opts *o)
{
    return o->silence_us > 0 && o->patience_us > 0 && o->link_bytes_per_s >= 0 &&
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
    red->metrics.rounds = hth_counter(env->metrics, "hearth_reduce_rounds_total",
                                      "Rounds of averaging that ended here");
    red->metrics.bytes_out = hth_counter(env->metrics, "hearth_reduce_out_bytes",
                                         "Encoded values sent to group members");
    red->metrics.bytes_in = hth_counter(env->metrics, "hearth_reduce_in_bytes",
                                        "Encoded values that came from group members");
    red->metrics.dropped = hth_counter(env->metrics, "hearth_reduce_dropped_total",
                                       "Members dropped from a round, as sender or as reducer");
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
    early_end(red);
    hth_timer_free(red->env, red->timer);
    hth_free(red->histories);
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
    out->rounds_now = count_in(red, ROUND_RUNNING);
}
