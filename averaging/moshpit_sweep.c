/* SPDX-License-Identifier: Apache-2.0 */
/* moshpit_sweep.c: one offer on its way through the axes. */
#include <math.h>
#include <string.h>

#include "averaging/moshpit_int.h"
#include "core/mem.h"

static void look_on(struct sweep *s);

/* ---- the end -------------------------------------------------------------------------------- */

static void sweep_free(struct sweep *s)
{
    hth_timer_free(s->env, s->timer);
    hth_blob_unref(s->values);
    hth_blob_unref(s->offer.values);
    hth_free(s->group);
    hth_free(s->spans);
    hth_free(s);
}

/* Out of the table and without anything under way. */
static void sweep_detach(struct sweep *s)
{
    struct moshpit *mp = s->mp;

    if (s->look != NULL)
        hth_look_cancel(s->look);
    if (s->reduce != NULL)
        hth_reduce_cancel(s->reduce);
    s->look = NULL;
    s->reduce = NULL;
    for (uint32_t i = 0; i < HTH_AVG_OFFERS_MAX; i++)
        if (mp->sweeps[i] == s)
            mp->sweeps[i] = NULL;
    s->mp = NULL;
}

void hth_sweep_cancel(struct sweep *s)
{
    sweep_detach(s);
    if (!s->job_runs)
        sweep_free(s);
}

static void tell(struct sweep *s)
{
    struct moshpit *mp = s->mp;
    struct hth_avg_result *r = &s->result;
    bool offered = s->offered;

    r->ticket = s->offer.ticket;
    r->took_us = hth_now_us(s->env) - s->start_us;
    r->values = s->offer.values;
    if (r->rounds > 0) {
        r->err = HTH_OK;
        r->reason = HTH_AVG_OK;
        r->average = s->values;
        r->weight = s->weight;
        r->change = s->change;
        mp->stats.distance = s->change;
        mp->stats.last.change = s->change;
        hth_metric_set(mp->metrics.distance, s->change);
    } else {
        r->weight_fraction = 0;
        if (r->err == HTH_OK)
            r->err = HTH_E_NOT_FOUND;
    }
    sweep_detach(s);
    if (offered && mp->fn != NULL)
        mp->fn(mp->arg, r);
    sweep_free(s);
}

/* How far the average is from what was offered; payloads are looked at in jobs only. */
static void change_run(struct hth_job *job)
{
    struct sweep *s = HTH_CONTAINER(job, struct sweep, job);
    const float *a = (const float *)s->offer.values->data, *b = (const float *)s->values->data;
    double sum = 0;

    for (size_t i = 0; i < s->offer.count; i++) {
        double d = (double)b[i] - (double)a[i];
        sum += d * d;
    }
    s->change = sqrt(sum);
}

static void change_done(struct hth_job *job, enum hth_err err)
{
    struct sweep *s = HTH_CONTAINER(job, struct sweep, job);

    (void)err; /* canceled: the change stays 0 */
    s->job_runs = false;
    if (s->mp == NULL)
        sweep_free(s);
    else
        tell(s);
}

static void on_end(void *arg)
{
    struct sweep *s = arg;

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
    if (s->result.rounds == 0 || s->values == NULL || s->values == s->offer.values) {
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
static void end_soon(struct sweep *s)
{
    s->ending = true;
    hth_timer_set(s->env, s->timer, 0);
}

/* ---- a round that ended --------------------------------------------------------------------- */

static void count_round(struct sweep *s)
{
    struct moshpit *mp = s->mp;
    struct hth_averager_stats *st = &mp->stats;
    struct hth_avg_round_info *info = &s->info;
    bool ok = info->err == HTH_OK;

    st->rounds += ok;
    st->failed += !ok;
    st->alone += info->reason == HTH_AVG_ALONE;
    st->drops += info->drops;
    st->bytes_out += info->bytes_out;
    st->bytes_in += info->bytes_in;
    if (info->reason < HTH_AVG_REASONS_MAX)
        st->reasons[info->reason]++;
    st->last = *info;
    s->result.rounds += ok;
    s->result.rounds_failed += !ok;
    s->result.drops += info->drops;
    s->result.wait_us += info->wait_us;
    s->result.match_us += info->match_us;
    s->result.reduce_us += info->reduce_us;
    s->result.bytes_out += info->bytes_out;
    s->result.bytes_in += info->bytes_in;
    hth_metric_add(ok ? mp->metrics.rounds : mp->metrics.failed, 1);
    hth_metric_add(mp->metrics.drops, info->drops);
    hth_metric_add(mp->metrics.bytes, (int64_t)(info->bytes_out + info->bytes_in));
    hth_metric_observe(mp->metrics.wait, (double)info->wait_us / 1e6);
    if (ok) {
        s->result.members = info->members;
        hth_metric_observe(mp->metrics.reduce, (double)info->reduce_us / 1e6);
    } else {
        s->result.err = info->err;
        s->result.reason = info->reason;
    }
    HTH_LOG(s->env, HTH_DEBUG, HTH_SUB_AVG,
            "round %llu: %s, %u members, %u dropped, wait %lld us, reduce %lld us",
            (unsigned long long)info->number, hth_avg_reason_name(info->reason), info->members,
            info->drops, (long long)info->wait_us, (long long)info->reduce_us);
}

static void round_over(struct sweep *s)
{
    count_round(s);
    s->done_rounds++;
    if (s->done_rounds >= s->rounds) {
        end_soon(s);
        return;
    }
    if (s->look != NULL) {
        s->look_us = hth_now_us(s->env);
        hth_look_ready(s->look, s->weight);
    } else {
        look_on(s);
    }
}

static void round_failed(struct sweep *s, enum hth_err err, enum hth_avg_reason reason)
{
    s->info.err = err;
    s->info.reason = reason;
    round_over(s);
}

/* ---- reducing ------------------------------------------------------------------------------- */

static void judge_fates(struct sweep *s, const struct hth_reduce_result *r)
{
    for (uint32_t i = 0; i < r->members && i < s->group->count; i++) {
        enum hth_reduce_drop drop = r->fates[i].as_sender;
        if (drop == HTH_REDUCE_DROP_NONE)
            drop = r->fates[i].as_reducer;
        if (i == s->group->self || drop == HTH_REDUCE_DROP_NONE ||
            drop == HTH_REDUCE_DROP_NOT_FINITE)
            continue;
        hth_moshpit_suspect(s->mp, &s->group->member[i].id);
    }
}

static void on_reduced(void *arg, const struct hth_reduce_result *r)
{
    struct sweep *s = arg;
    struct hth_avg_round_info *info = &s->info;
    bool helper = s->mp->opts.mode == HTH_AVG_HELPER;

    s->reduce = NULL;
    info->err = r->err;
    info->reason = r->err == HTH_OK ? HTH_AVG_OK : HTH_AVG_FAILED;
    info->drops = r->dropped;
    info->weight_fraction = r->weight_fraction;
    info->reduce_us = r->took_us;
    info->bytes_out = r->bytes_out;
    info->bytes_in = r->bytes_in;
    if (r->err == HTH_OK && !helper && r->average == NULL) {
        info->err = HTH_E_BUG;
        info->reason = HTH_AVG_FAILED;
    }
    if (info->err == HTH_OK) {
        judge_fates(s, r);
        s->result.weight_fraction *= r->weight_fraction;
        s->result.codec_error = HTH_MAX(s->result.codec_error, r->encode_error);
        if (!helper) {
            hth_blob_unref(s->values);
            s->values = hth_blob_ref(r->average);
            s->weight = HTH_MIN(r->weight, (double)HTH_AVG_WEIGHT_MAX);
        }
    }
    hth_free(s->group);
    s->group = NULL;
    round_over(s);
}

/* Who did not say how fast it is counts as the mean of those who did. */
static double bandwidth_of(const struct hth_avg_group *g, uint32_t index)
{
    double sum = 0;
    uint32_t known = 0;

    if (g->member[index].mode == HTH_AVG_CLIENT || g->member[index].bandwidth > 0)
        return g->member[index].bandwidth;
    for (uint32_t i = 0; i < g->count; i++) {
        sum += g->member[i].bandwidth;
        known += g->member[i].bandwidth > 0;
    }
    return known > 0 ? sum / known : 1;
}

static enum hth_err reduce(struct sweep *s)
{
    const struct hth_avg_group *g = s->group;
    struct hth_reduce_member *members = hth_new_array(struct hth_reduce_member, g->count);
    struct hth_reduce_opts o = {.group = g->id,
                                .members = members,
                                .member_count = g->count,
                                .self = g->self,
                                .values = s->values,
                                .count = s->offer.count,
                                .spans = s->spans,
                                .span_count = s->spans != NULL ? s->offer.span_count : 0,
                                .timeout_us = s->mp->opts.round_us,
                                .done = on_reduced,
                                .arg = s};
    enum hth_err err;

    for (uint32_t i = 0; i < g->count; i++) {
        members[i].id = g->member[i].id;
        members[i].addr = g->member[i].addr;
        members[i].weight = g->member[i].weight;
        members[i].bandwidth = bandwidth_of(g, i);
    }
    err = hth_reduce_start(s->mp->reducer, &o, &s->reduce);
    hth_free(members);
    /* A leader that died while it began is not waited for once more. */
    for (uint32_t i = 0; i < s->lost_count && err == HTH_OK; i++)
        hth_reducer_peer_lost(s->mp->reducer, &s->lost[i]);
    return err;
}

static void note_group(struct sweep *s, const struct hth_look_result *r)
{
    struct hth_avg_round_info *info = &s->info;
    const struct hth_avg_group *g = r->group;

    info->members = g->count;
    info->group = g->id;
    s->result.weight_met = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        if (i < HTH_AVG_STATUS_MEMBERS)
            info->member[i] = g->member[i].id;
        s->result.step_max = HTH_MAX(s->result.step_max, g->member[i].step);
        s->result.weight_met += g->member[i].weight;
    }
}

/* Where cells move, the one after this round follows from the group's order alone. */
static void move(struct sweep *s)
{
    struct moshpit *mp = s->mp;

    if (s->offer.sweep == HTH_AVG_SWEEP_AUTO)
        hth_roster_set_round(mp->roster, s->round + 1);
    if (!s->moves)
        return;
    hth_avg_cell_next(&s->shape, s->round, &s->group->id, s->group->self, &s->cell);
    if (hth_roster_set_cell(mp->roster, s->generation, &s->cell) != HTH_OK)
        HTH_LOG(s->env, HTH_DEBUG, HTH_SUB_AVG, "the grid changed during a round");
}

static void on_look(void *arg, const struct hth_look_result *r)
{
    struct sweep *s = arg;
    struct hth_avg_round_info *info = &s->info;
    enum hth_err err;

    s->look = NULL;
    memset(info, 0, sizeof(*info));
    info->number = s->round;
    info->axis = hth_avg_axis(&s->shape, s->round);
    info->wait_us = r->wait_us;
    info->match_us = r->match_us;
    if (r->err != HTH_OK) {
        if (s->offer.sweep == HTH_AVG_SWEEP_AUTO)
            hth_roster_set_round(s->mp->roster, s->round + 1);
        s->round++;
        if (!s->offered) { /* what was prepared was never offered */
            s->info.err = r->err;
            s->info.reason = r->reason;
            count_round(s);
            end_soon(s);
            return;
        }
        round_failed(s, r->err == HTH_E_TIMEOUT ? HTH_E_NOT_FOUND : r->err, r->reason);
        return;
    }
    note_group(s, r);
    s->group = r->group;
    memcpy(s->lost, r->lost, sizeof(s->lost));
    s->lost_count = r->lost_count;
    move(s);
    s->round++;
    err = reduce(s);
    if (err != HTH_OK) {
        hth_free(s->group);
        s->group = NULL;
        round_failed(s, err, HTH_AVG_FAILED);
        return;
    }
    if (s->done_rounds + 1 < s->rounds)
        look_on(s);
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

static void deaf(void *arg, const struct hth_peer_id *id)
{
    hth_moshpit_suspect(((struct sweep *)arg)->mp, id);
}

struct hth_avg_line hth_sweep_line(const struct sweep *s)
{
    uint64_t run = s->mp->run;

    if (s->offer.kind != 0)
        run = hth_hash64(&s->offer.kind, sizeof(s->offer.kind), run);
    return (struct hth_avg_line){.run = run,
                                 .generation = s->generation,
                                 .round = s->round,
                                 .shape = s->shape,
                                 .cell = s->cell};
}

/* With one axis everybody belongs into one group, also who has come since it was shaped. */
static void group_sizes(const struct sweep *s, struct hth_look_opts *o)
{
    uint32_t size = s->shape.size[hth_avg_axis(&s->shape, s->round)];

    o->group_min = s->mp->opts.group_min;
    o->group_full = HTH_MAX(HTH_MIN(size, HTH_AVG_MEMBERS_MAX / 2u), o->group_min);
    o->group_max = o->group_full;
    if (s->shape.dims == 1)
        o->group_max = HTH_AVG_MEMBERS_MAX / 2;
}

/* A look for the present round; while the last one is still reduced it is not ready. */
static enum hth_err look_new(struct sweep *s, bool ready, int64_t ahead_us)
{
    struct moshpit *mp = s->mp;
    struct hth_look_opts o = {.line = hth_sweep_line(s),
                              .schema = s->offer.schema,
                              .mode = mp->opts.mode,
                              .bandwidth = mp->opts.bandwidth,
                              .weight = s->weight,
                              .step = s->offer.step,
                              .ready = ready,
                              .window_us = mp->opts.window_us,
                              .ahead_us = ready ? 0 : ahead_us,
                              .due = due,
                              .known = known,
                              .deaf = deaf,
                              .done = on_look,
                              .arg = s};

    group_sizes(s, &o);
    s->look_us = hth_now_us(s->env) + (ready ? 0 : ahead_us);
    return hth_look_new(mp->match, &o, &s->look);
}

static void look_on(struct sweep *s)
{
    bool ready = s->reduce == NULL;
    enum hth_err err = look_new(s, ready, s->mp->opts.round_us);

    if (err == HTH_OK || !ready)
        return; /* what could not be looked for ahead is looked for later */
    s->round++;
    memset(&s->info, 0, sizeof(s->info));
    s->info.number = s->round - 1;
    round_failed(s, err, HTH_AVG_FAILED);
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* Where and when: by the roster as it is now. Errors: E_NOT_FOUND. */
static enum hth_err place(struct sweep *s)
{
    struct moshpit *mp = s->mp;
    const struct hth_avg_shape *shape = hth_roster_shape(mp->roster, &s->generation);

    if (shape->dims == 0)
        return HTH_E_NOT_FOUND;
    s->shape = *shape;
    HTH_TRY(hth_roster_cell(mp->roster, &s->cell));
    s->rounds = s->offer.rounds == HTH_AVG_ALL_AXES ? shape->dims : s->offer.rounds;
    /* Through all axes everybody stands still: one disturbed round would cost the grid its order,
     * and with it the exact mean, for long. */
    s->moves = s->offer.sweep == HTH_AVG_SWEEP_AUTO && s->offer.rounds != HTH_AVG_ALL_AXES;
    if (s->offer.sweep != HTH_AVG_SWEEP_AUTO) {
        s->round = s->offer.sweep * shape->dims;
        return HTH_OK;
    }
    s->round = HTH_MAX(hth_roster_self(mp->roster)->round, mp->round_next);
    s->round = hth_moshpit_round(mp, s->offer.schema, s->round);
    if (s->rounds > 1)
        s->round += (shape->dims - s->round % shape->dims) % shape->dims;
    mp->round_next = s->round + s->rounds;
    hth_roster_set_round(mp->roster, s->round);
    return HTH_OK;
}

static enum hth_err copy_offer(struct sweep *s, const struct hth_avg_offer *offer)
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

enum hth_err hth_sweep_new(struct moshpit *mp, const struct hth_avg_offer *offer, bool offered,
                           int64_t ready_in_us, struct sweep **out)
{
    struct sweep *s = hth_new(struct sweep);
    int64_t timeout_us = offer->timeout_us;
    enum hth_err err;

    *out = NULL;
    s->mp = mp;
    s->env = mp->env;
    s->offered = offered;
    s->start_us = hth_now_us(mp->env);
    s->result.weight_fraction = 1;
    s->timer = hth_timer_new(mp->env, on_end, s);
    HTH_GOTO(fail, copy_offer(s, offer));
    HTH_GOTO(fail, place(s));
    HTH_GOTO(fail, look_new(s, offered, HTH_MAX(2 * ready_in_us, HTH_US_PER_S)));
    if (timeout_us <= 0)
        timeout_us = s->rounds * (mp->opts.window_us + mp->opts.round_us + HTH_US_PER_S);
    hth_timer_set(s->env, s->timer, timeout_us + HTH_MAX(2 * ready_in_us, (int64_t)0));
    *out = s;
    return HTH_OK;
fail:
    sweep_free(s);
    return err;
}

void hth_sweep_values(struct sweep *s, const struct hth_avg_offer *offer)
{
    uint64_t ticket = offer->ticket;

    s->offer.values = offer->values != NULL ? hth_blob_ref(offer->values) : NULL;
    s->values = offer->values != NULL ? hth_blob_ref(offer->values) : NULL;
    s->offer.weight = offer->weight;
    s->offer.ticket = ticket;
    s->weight = offer->weight;
    s->offered = true;
    s->start_us = s->look_us = hth_now_us(s->env);
    if (s->look != NULL)
        hth_look_ready(s->look, s->weight);
}

void hth_sweep_nudge(struct sweep *s)
{
    uint32_t generation;

    (void)hth_roster_shape(s->mp->roster, &generation);
    if (generation == s->generation || s->done_rounds > 0 || s->reduce != NULL || s->look == NULL)
        return;
    hth_look_cancel(s->look);
    s->look = NULL;
    if (place(s) != HTH_OK ||
        look_new(s, s->offered, HTH_MAX(s->look_us - hth_now_us(s->env), HTH_US_PER_S)) != HTH_OK) {
        s->result.err = HTH_E_NOT_FOUND;
        s->result.reason = HTH_AVG_NOBODY;
        end_soon(s);
    }
}
