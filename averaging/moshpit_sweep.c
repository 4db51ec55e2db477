/* SPDX-License-Identifier: Apache-2.0 */
/* moshpit_sweep.c: one offer on its way through the axes. */
#include <string.h>

#include "averaging/moshpit_int.h"
#include "core/mem.h"

#define THIN_BIT_S  2e6 /* a home's line, the worst that is worth it */
#define WINDOW_WAYS 4   /* a look that is far from others: so often what they are farther */

/* ---- the end -------------------------------------------------------------------------------- */

static void sweep_free(struct moshpit_sweep *s)
{
    hth_timer_free(s->env, s->timer);
    hth_blob_unref(s->values);
    hth_blob_unref(s->offer.values);
    hth_free(s->group);
    hth_free(s->met);
    hth_free(s->spans);
    hth_free(s);
}

/* Out of the table and without anything under way. */
static void sweep_detach(struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;

    if (s->look != NULL)
        hth_look_cancel(s->look);
    if (s->reduce != NULL)
        hth_reduce_cancel(s->reduce);
    s->look = NULL;
    s->reduce = NULL;
    hth_proxy_values(s, false);
    for (uint32_t i = 0; i < HTH_AVG_OFFERS_MAX; i++)
        if (mp->sweeps[i] == s)
            mp->sweeps[i] = NULL;
    for (uint32_t i = 0; i < HTH_AVG_PROXIES_MAX; i++)
        if (mp->proxies[i] == s)
            mp->proxies[i] = NULL;
    for (uint32_t i = 0; i < HTH_AVG_KEPT_MAX; i++)
        if (mp->kept[i] == s)
            mp->kept[i] = NULL;
    s->mp = NULL;
}

void hth_sweep_cancel(struct moshpit_sweep *s)
{
    sweep_detach(s);
    if (!s->job_runs)
        sweep_free(s);
}

static void tell(struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;
    struct hth_avg_result *r = &s->result;
    bool tells = s->offered && !s->is_proxy;

    r->ticket = s->offer.ticket;
    r->took_us = hth_now_us(s->env) - s->start_us;
    r->values = s->offer.values;
    if (r->rounds > 0) {
        r->err = HTH_OK;
        r->reason = HTH_AVG_OK;
        r->average = s->values;
        r->weight = s->weight;
        r->origin = s->origin;
        r->heads = s->heads;
        r->change = s->change;
        if (!s->is_proxy) {
            mp->stats.distance = mp->stats.last.change = s->change;
            hth_metric_set(mp->metrics.distance, s->change);
        }
    } else {
        r->weight_fraction = 0;
        if (r->err == HTH_OK)
            r->err = HTH_E_NOT_FOUND;
    }
    sweep_detach(s);
    if (tells && mp->fn != NULL)
        mp->fn(mp->arg, r);
    sweep_free(s);
}

/* How far the average is from what was offered; payloads are looked at in jobs only. */
static void change_run(struct hth_job *job)
{
    struct moshpit_sweep *s = HTH_CONTAINER(job, struct moshpit_sweep, job);
    const float *a = (const float *)s->offer.values->data, *b = (const float *)s->values->data;

    s->change = hth_reduce_distance(b, a, s->offer.count);
}

static void change_done(struct hth_job *job, enum hth_err err)
{
    struct moshpit_sweep *s = HTH_CONTAINER(job, struct moshpit_sweep, job);

    (void)err; /* canceled: the change stays 0 */
    s->job_runs = false;
    if (s->mp == NULL)
        sweep_free(s);
    else
        tell(s);
}

static void on_end(void *arg)
{
    struct moshpit_sweep *s = arg;

    if (s->kept) {
        hth_sweep_cancel(s);
        return;
    }
    if (!s->ending) { /* its time is over */
        if (s->reduce != NULL)
            hth_reduce_cancel(s->reduce);
        if (s->look != NULL)
            hth_look_cancel(s->look);
        s->reduce = NULL;
        s->look = NULL;
        s->result.err = HTH_E_TIMEOUT;
        s->result.reason = s->offered ? HTH_AVG_LATE : HTH_AVG_NOT_READY;
    }
    s->ending = true;
    if (s->result.rounds == 0 || s->offer.values == NULL || s->values == s->offer.values ||
        s->is_proxy) {
        tell(s);
        return;
    }
    s->job.lane = HTH_LANE_COMPUTE;
    s->job.run = change_run;
    s->job.done = change_done;
    s->job.flops = 3 * (double)s->offer.count;
    s->job.bytes_moved = 8 * (double)s->offer.count;
    s->job_runs = hth_job_submit(s->env, &s->job) == HTH_OK;
    if (!s->job_runs)
        tell(s);
}

/* Not inside the call that caused it. */
void hth_sweep_end_soon(struct moshpit_sweep *s)
{
    s->ending = true;
    hth_timer_set(s->env, s->timer, 0);
}

/* ---- a round that ended --------------------------------------------------------------------- */

void hth_sweep_round_over(struct moshpit_sweep *s)
{
    hth_sweep_count(s);
    s->done_rounds++;
    /* Never those of a later round: the line that they are for has others. */
    hth_proxy_values(s, s->info.err == HTH_OK);
    if (s->info.err == HTH_OK || s->met == NULL)
        hth_proxy_start(s, s->met, s->round - 1, true);
    hth_proxy_keep(s);
    if (s->done_rounds >= s->rounds) {
        hth_sweep_end_soon(s);
        return;
    }
    if (s->look != NULL) {
        s->look_us = hth_now_us(s->env);
        hth_look_ready(s->look, s->weight, s->origin, hth_sweep_others(s));
    } else {
        hth_sweep_look_on(s);
    }
}

void hth_sweep_round_failed(struct moshpit_sweep *s, enum hth_err err, enum hth_avg_reason reason)
{
    s->info.err = err;
    s->info.reason = reason;
    hth_sweep_round_over(s);
}

/* ---- looking -------------------------------------------------------------------------------- */

static uint32_t due(void *arg, struct hth_match_due *out, uint32_t max)
{
    return hth_moshpit_due(arg, out, max);
}

static uint32_t known(void *arg, struct hth_match_known *out, uint32_t max)
{
    return hth_moshpit_known(arg, out, max);
}

static bool excludes(void *arg, const struct hth_peer_id *id)
{
    const struct moshpit_sweep *s = arg;

    return hth_refusers_exclude(&s->mp->refusers, id, hth_now_us(s->env));
}

static void deaf(void *arg, const struct hth_peer_id *id)
{
    hth_moshpit_deaf(((struct moshpit_sweep *)arg)->mp, id);
}

static bool bereft(void *arg)
{
    return hth_moshpit_bereft(arg);
}

static bool missed(void *arg, const struct hth_peer_id *id)
{
    const struct moshpit_sweep *s = arg;
    const struct hth_roster_peer *p = hth_roster_find(s->mp->roster, id);

    return p != NULL && (hth_moshpit_suspected(s->mp, p) || hth_proxy_replaces(s, p));
}

uint64_t hth_sweep_run(const struct moshpit *mp, uint32_t kind)
{
    return kind != 0 ? hth_hash64(&kind, sizeof(kind), mp->run) : mp->run;
}

struct hth_avg_line hth_sweep_line(const struct moshpit_sweep *s)
{
    return (struct hth_avg_line){.run = hth_sweep_run(s->mp, s->kind),
                                 .generation = s->generation,
                                 .round = s->round,
                                 .shape = s->shape,
                                 .cell = s->cell};
}

uint32_t hth_sweep_others(const struct moshpit_sweep *s)
{
    uint32_t others = s->heads > 0 ? s->heads - 1 : 0;

    return HTH_MIN(others, hth_avg_others_max(&s->shape, s->round));
}

/* With one axis everybody belongs into one group, also who has come since it was shaped. Where
 * cells move, a line often holds one or two more than it has cells: cut into halves it would mix
 * less. Where they don't, the line is one mean: two halves of it would end with two. */
static void group_sizes(const struct moshpit_sweep *s, struct hth_look_opts *o)
{
    uint32_t size = s->shape.size[hth_avg_axis(&s->shape, s->round)];
    uint32_t full = HTH_MAX(HTH_MIN(size, HTH_AVG_MEMBERS_MAX / 2u), s->mp->opts.group_min);

    o->group_min = s->mp->opts.group_min;
    o->group_full = full;
    o->group_max = HTH_AVG_MEMBERS_MAX / 2;
    if (s->shape.dims > 1)
        o->group_max = HTH_MIN(s->moves ? full + full / 4 : 2 * full, o->group_max);
}

/* A line waits for members whose own line waited for somebody as long as it could: so each axis has
 * a little more time than the one before, and all have more where the others are far. Who observes
 * has more by what the axes before may take. */
int64_t hth_sweep_window_us(const struct moshpit_sweep *s)
{
    const struct hth_moshpit_opts *o = &s->mp->opts;
    uint32_t axis = s->moves ? 0 : hth_avg_axis(&s->shape, s->round);
    int64_t far_us = hth_match_patience_us(s->mp->match) - o->match.patience_us;
    int64_t before_us = s->observes ? axis * (o->window_us + o->round_us) : 0;

    return HTH_MIN(o->window_us + WINDOW_WAYS * far_us + axis * o->match.patience_us + before_us,
                   HTH_AVG_WINDOW_MAX_US - o->round_us);
}

/* Groups on lines of THIN_BIT_S take twice what they need at best. Who is lost, silent, or slower
 * than the others is given up long before. */
int64_t hth_sweep_round_us(const struct moshpit_sweep *s)
{
    double bits = 2.0 * 8 * sizeof(float) * (double)s->offer.count;
    double time_us = 2 * bits / THIN_BIT_S * HTH_US_PER_S;
    int64_t most_us = HTH_AVG_WINDOW_MAX_US / 10 * 9 - hth_sweep_window_us(s);

    return HTH_MAX(s->mp->opts.round_us, (int64_t)HTH_MIN(time_us, (double)most_us));
}

/* A look for the present round; while the last one is still reduced it is not ready. */
enum hth_err hth_sweep_look(struct moshpit_sweep *s, bool ready, int64_t ahead_us)
{
    struct moshpit *mp = s->mp;
    struct hth_look_opts o = {.line = hth_sweep_line(s),
                              .schema = s->offer.schema,
                              .mode = mp->opts.mode,
                              .bandwidth = mp->opts.bandwidth,
                              .weight = s->weight,
                              .step = s->offer.step,
                              .says_step =
                                  s->offer.sweep != HTH_AVG_SWEEP_AUTO && s->shape.dims == 1,
                              .origin = s->origin,
                              .others = hth_sweep_others(s),
                              .ready = ready,
                              .window_us = hth_sweep_window_us(s),
                              .ahead_us = ready ? 0 : ahead_us,
                              .due = due,
                              .known = known,
                              .excludes = excludes,
                              .bereft = s->observes ? NULL : bereft,
                              .deaf = s->observes ? NULL : deaf, /* it judges nobody */
                              .missed = s->observes ? NULL : missed,
                              .done = hth_sweep_on_look,
                              .arg = s};

    group_sizes(s, &o);
    if (s->observes || (s->is_proxy && hth_proxy_follows(s))) {
        o.mode = s->observes ? HTH_AVG_OBSERVER : HTH_AVG_CLIENT;
        o.says_step = o.says_step && !s->observes; /* it has not got there */
        o.bandwidth = 0;
    }
    s->look_us = hth_now_us(s->env) + (ready ? 0 : ahead_us);
    return hth_look_new(mp->match, &o, &s->look);
}

void hth_sweep_look_on(struct moshpit_sweep *s)
{
    bool ready = s->reduce == NULL;
    enum hth_err err = hth_sweep_look(s, ready, hth_sweep_round_us(s));

    if (err == HTH_OK || !ready)
        return; /* what could not be looked for ahead is looked for later */
    s->round++;
    memset(&s->info, 0, sizeof(s->info));
    s->info.number = s->round - 1;
    hth_sweep_round_failed(s, err, HTH_AVG_FAILED);
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* The first round that no sweep of ours is in, and in which nobody was met yet. One that was looked
 * for in vain may be looked for again: who counted on from there would be ahead of all for good. */
static uint64_t first_free(const struct moshpit *mp, const struct moshpit_sweep *sweep)
{
    uint64_t round = mp->round_met;

    for (uint32_t i = 0; i < HTH_AVG_OFFERS_MAX; i++) {
        const struct moshpit_sweep *s = mp->sweeps[i];

        if (s != NULL && s != sweep && s->offer.sweep == HTH_AVG_SWEEP_AUTO)
            round = HTH_MAX(round, s->round + s->rounds - s->done_rounds);
    }
    return round;
}

/* The first round from there in which this sweep can begin. */
static uint64_t from_first_axis(const struct moshpit_sweep *s, uint64_t round)
{
    uint32_t dims = s->shape.dims;

    return s->rounds > 1 ? (round + dims - 1) / dims * dims : round;
}

/* All lines of the last axis end with the same mean, and observers spread over them by their ids:
 * one has no cell of its own. Whose line was full began without it: it goes to the next one. */
static void observe(struct moshpit_sweep *s)
{
    uint64_t mark = hth_sweep_origin(&s->env->self) + s->mp->full_lines;

    memset(&s->cell, 0, sizeof(s->cell));
    for (uint32_t i = 0; i < s->shape.dims; i++) {
        s->cell.at[i] = (uint32_t)(mark % s->shape.size[i]);
        mark /= s->shape.size[i];
    }
    s->rounds = 1;
    s->round = s->offer.sweep * s->shape.dims + s->shape.dims - 1;
}

/* Where and when: by the roster as it is now. Errors: E_NOT_FOUND. */
static enum hth_err place(struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;
    const struct hth_avg_shape *shape = hth_roster_shape(mp->roster, &s->generation);

    if (shape->dims == 0)
        return HTH_E_NOT_FOUND;
    s->shape = *shape;
    if (s->observes) {
        observe(s);
        return HTH_OK;
    }
    HTH_TRY(hth_roster_cell(mp->roster, &s->cell));
    s->rounds = s->offer.rounds == HTH_AVG_ALL_AXES ? shape->dims : s->offer.rounds;
    /* Through all axes everybody stands still: one disturbed round would cost the grid its order,
     * and with it the exact mean, for long. */
    s->moves = s->offer.sweep == HTH_AVG_SWEEP_AUTO && s->offer.rounds != HTH_AVG_ALL_AXES;
    if (s->offer.sweep != HTH_AVG_SWEEP_AUTO) {
        s->round = s->offer.sweep * shape->dims;
        s->kind = hth_moshpit_kind(s);
        return HTH_OK;
    }
    s->round = from_first_axis(s, first_free(mp, s));
    s->round = from_first_axis(s, hth_moshpit_round(s));
    /* Who says a later round than the one it looks in is expected by nobody. */
    hth_roster_retry_round(mp->roster, s->round);
    return HTH_OK;
}

static enum hth_err copy_offer(struct moshpit_sweep *s, const struct hth_avg_offer *offer)
{
    size_t bytes = (size_t)offer->span_count * sizeof(*offer->spans);

    s->offer = *offer;
    if (offer->spans != NULL && offer->span_count > 0) {
        s->spans = hth_try_calloc(offer->span_count, sizeof(*offer->spans));
        if (s->spans == NULL)
            return HTH_E_NO_MEMORY;
        memcpy(s->spans, offer->spans, bytes);
    }
    s->offer.spans = s->spans;
    if (offer->values != NULL)
        s->offer.values = hth_blob_ref(offer->values);
    s->values = s->offer.values != NULL ? hth_blob_ref(s->offer.values) : NULL;
    s->weight = offer->weight;
    return HTH_OK;
}

struct moshpit_sweep *hth_sweep_alloc(struct moshpit *mp, const struct hth_avg_offer *offer)
{
    struct moshpit_sweep *s = hth_new(struct moshpit_sweep);

    s->mp = mp;
    s->env = mp->env;
    s->start_us = hth_now_us(mp->env);
    s->result.weight_fraction = 1;
    s->heads = mp->opts.mode != HTH_AVG_HELPER;
    s->origin = hth_sweep_origin(&mp->env->self);
    if (offer->attempt > 0)
        s->origin = hth_hash64(&offer->attempt, sizeof(offer->attempt), s->origin);
    s->kind = offer->kind;
    s->timer = hth_timer_new(mp->env, on_end, s);
    if (copy_offer(s, offer) == HTH_OK)
        return s;
    sweep_free(s);
    return NULL;
}

int64_t hth_sweep_time_us(const struct moshpit_sweep *s)
{
    int64_t spare_us = HTH_US_PER_S + s->mp->opts.match.patience_us;

    if (s->offer.timeout_us > 0)
        return s->offer.timeout_us;
    return s->rounds * (hth_sweep_window_us(s) + hth_sweep_round_us(s) + spare_us);
}

enum hth_err hth_sweep_new(struct moshpit *mp, const struct hth_avg_offer *offer, bool offered,
                           int64_t ready_in_us, struct moshpit_sweep **out)
{
    struct moshpit_sweep *s = hth_sweep_alloc(mp, offer);
    enum hth_err err;

    *out = NULL;
    if (s == NULL)
        return HTH_E_NO_MEMORY;
    s->offered = offered;
    s->observes = offered && hth_moshpit_observes(mp, offer);
    s->heads = s->observes ? 0 : s->heads;
    HTH_GOTO(fail, place(s));
    hth_proxy_begin(s);
    HTH_GOTO(fail, hth_sweep_look(s, offered, HTH_MAX(2 * ready_in_us, HTH_US_PER_S)));
    hth_timer_set(s->env, s->timer, hth_sweep_time_us(s) + HTH_MAX(2 * ready_in_us, (int64_t)0));
    *out = s;
    return HTH_OK;
fail:
    sweep_free(s);
    return err;
}

/* Elsewhere; nobody was met yet. */
static void look_anew(struct moshpit_sweep *s)
{
    hth_look_cancel(s->look);
    s->look = NULL;
    if (place(s) == HTH_OK) {
        hth_proxy_begin(s);
        if (hth_sweep_look(s, s->offered, HTH_MAX(s->look_us - hth_now_us(s->env), HTH_US_PER_S)) ==
            HTH_OK)
            return;
    }
    s->result.err = HTH_E_NOT_FOUND;
    s->result.reason = HTH_AVG_NOBODY;
    hth_sweep_end_soon(s);
}

static bool may_go_on(const struct moshpit_sweep *s)
{
    return s->look != NULL && !s->observes && s->reduce == NULL && s->done_rounds == 0 &&
           s->kind == s->offer.kind && hth_moshpit_kind(s) != s->kind;
}

void hth_sweep_heard(struct moshpit_sweep *s, const struct hth_peer_id *id)
{
    const struct hth_avg_line *line =
        hth_match_heard(s->mp->match, id, s->offer.schema, NULL, NULL);

    if (s->offer.kind_on != 0 && line != NULL &&
        line->run == hth_sweep_run(s->mp, s->offer.kind_on) && may_go_on(s))
        look_anew(s);
}

void hth_sweep_values(struct moshpit_sweep *s, const struct hth_avg_offer *offer)
{
    uint64_t ticket = offer->ticket;

    s->offer.values = offer->values != NULL ? hth_blob_ref(offer->values) : NULL;
    s->values = offer->values != NULL ? hth_blob_ref(offer->values) : NULL;
    s->offer.weight = offer->weight;
    s->offer.ticket = ticket;
    s->weight = offer->weight;
    s->offered = true;
    s->start_us = s->look_us = hth_now_us(s->env);
    if (s->look == NULL)
        return;
    if (may_go_on(s))
        look_anew(s);
    else
        hth_look_ready(s->look, s->weight, s->origin, hth_sweep_others(s));
}

void hth_sweep_nudge(struct moshpit_sweep *s)
{
    uint32_t generation;

    (void)hth_roster_shape(s->mp->roster, &generation);
    if (generation == s->generation || s->done_rounds > 0 || s->reduce != NULL || s->look == NULL)
        return;
    look_anew(s);
}
