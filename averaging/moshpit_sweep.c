/* SPDX-License-Identifier: Apache-2.0 */
/* moshpit_sweep.c: one offer on its way through the axes. */
#include <stdlib.h>
#include <string.h>

#include "averaging/match_msg.h"
#include "averaging/moshpit_int.h"
#include "core/mem.h"

#define THIN_BIT_S  2e6 /* a home's line, the worst that is worth it */
#define WINDOW_WAYS 4   /* a look that is far from others: so often what they are farther */

static void look_on(struct moshpit_sweep *s);

/* ---- the end -------------------------------------------------------------------------------- */

static void sweep_free(struct moshpit_sweep *s)
{
    hth_timer_free(s->env, s->timer);
    hth_blob_unref(s->values);
    hth_blob_unref(s->offer.values);
    hth_free(s->group);
    hth_free(s->spans);
    hth_free(s);
}

static void give_up(struct moshpit_sweep *s)
{
    if (s->look != NULL)
        hth_look_cancel(s->look);
    if (s->reduce != NULL)
        hth_reduce_cancel(s->reduce);
    s->look = NULL;
    s->reduce = NULL;
}

/* Out of the table and without anything under way. */
static void detach(struct moshpit_sweep *s)
{
    give_up(s);
    s->mp->sweep = NULL;
}

void hth_sweep_cancel(struct moshpit_sweep *s)
{
    detach(s);
    sweep_free(s);
}

static void tell(struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;
    struct hth_avg_result *r = &s->result;

    r->ticket = s->offer.ticket;
    r->took_us = hth_now_us(s->env) - s->start_us;
    r->values = s->offer.values;
    if (r->rounds > 0) {
        r->err = HTH_OK;
        r->reason = HTH_AVG_OK;
        r->average = s->values;
        r->weight = s->weight;
    } else {
        r->weight_fraction = 0;
        if (r->err == HTH_OK)
            r->err = HTH_E_NOT_FOUND;
    }
    detach(s);
    if (mp->fn != NULL)
        mp->fn(mp->arg, r);
    sweep_free(s);
}

static void on_end(void *arg)
{
    struct moshpit_sweep *s = arg;

    if (!s->ending) { /* its time is over */
        give_up(s);
        s->result.err = HTH_E_TIMEOUT;
        s->result.reason = HTH_AVG_LATE;
    }
    tell(s);
}

/* Not inside the call that caused it. */
static void end_soon(struct moshpit_sweep *s)
{
    s->ending = true;
    hth_timer_set(s->env, s->timer, 0);
}

/* ---- a round that ended --------------------------------------------------------------------- */

static void count(struct moshpit_sweep *s)
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

static void round_over(struct moshpit_sweep *s, enum hth_err err, enum hth_avg_reason reason)
{
    s->info.err = err;
    s->info.reason = reason;
    count(s);
    hth_free(s->group);
    s->group = NULL;
    s->round++;
    if (++s->done_rounds < s->offer.rounds)
        look_on(s);
    else
        end_soon(s);
}

/* ---- reducing ------------------------------------------------------------------------------- */

/* A member that was dropped is not expected in the next line before it was heard again. */
static void note_dropped(struct moshpit_sweep *s, const struct hth_reduce_result *r)
{
    for (uint32_t i = 0; i < r->members && i < s->group->count; i++) {
        enum hth_reduce_drop drop = r->fates[i].as_sender;

        if (drop == HTH_REDUCE_DROP_NONE)
            drop = r->fates[i].as_reducer;
        if (i != s->group->self && drop != HTH_REDUCE_DROP_NONE &&
            drop != HTH_REDUCE_DROP_NOT_FINITE)
            hth_roster_lost(s->mp->roster, &s->group->member[i].id);
    }
}

static void on_reduced(void *arg, const struct hth_reduce_result *r)
{
    struct moshpit_sweep *s = arg;
    struct hth_avg_round_info *info = &s->info;

    s->reduce = NULL;
    info->drops = r->dropped;
    info->weight_fraction = r->weight_fraction;
    info->reduce_us = r->took_us;
    info->bytes_out = r->bytes_out;
    info->bytes_in = r->bytes_in;
    info->codec_error = r->encode_error;
    if (r->err != HTH_OK) {
        round_over(s, r->err, HTH_AVG_FAILED);
        return;
    }
    note_dropped(s, r);
    s->result.weight_fraction *= r->weight_fraction;
    if (r->average != NULL) {
        hth_blob_unref(s->values);
        s->values = hth_blob_ref(r->average);
        s->weight = HTH_MIN(r->weight, (double)HTH_AVG_WEIGHT_MAX);
    }
    round_over(s, HTH_OK, HTH_AVG_OK);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* A member that did not say how fast it is counts as the lower median of those that did, which one
 * claim can't move far. */
static double usual_bandwidth(const struct hth_avg_group *g)
{
    double said[HTH_AVG_MEMBERS_MAX];
    uint32_t known = 0;

    for (uint32_t i = 0; i < g->count; i++)
        if (g->member[i].bandwidth > 0)
            said[known++] = g->member[i].bandwidth;
    qsort(said, known, sizeof(*said), by_size);
    return known > 0 ? said[(known - 1) / 2] : 1;
}

/* Groups on lines of THIN_BIT_S take twice what they need at best. Who is lost, silent, or slower
 * than the others is given up long before. */
static int64_t round_us(const struct moshpit_sweep *s)
{
    double bits = 2.0 * 8 * sizeof(float) * (double)s->offer.count;
    double time_us = 2 * bits / THIN_BIT_S * HTH_US_PER_S;
    int64_t most_us = HTH_AVG_WINDOW_MAX_US / 10 * 9 - hth_sweep_window_us(s);

    return HTH_MAX(s->mp->opts.round_us, (int64_t)HTH_MIN(time_us, (double)most_us));
}

static enum hth_err reduce(struct moshpit_sweep *s)
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
                                .share_max = s->mp->opts.share_max,
                                .timeout_us = round_us(s),
                                .done = on_reduced,
                                .arg = s};
    double usual = usual_bandwidth(g);
    enum hth_err err;

    for (uint32_t i = 0; i < g->count; i++) {
        members[i].id = g->member[i].id;
        members[i].addr = g->member[i].addr;
        members[i].weight = g->member[i].weight;
        members[i].bandwidth = g->member[i].bandwidth;
        if (hth_avg_mode_reduces(g->member[i].mode) && g->member[i].bandwidth == 0)
            members[i].bandwidth = usual;
    }
    err = hth_reduce_start(s->mp->reducer, &o, &s->reduce);
    hth_free(members);
    return err;
}

/* The cell after this round follows from the group's order alone. */
static void move(struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;

    mp->round_met = HTH_MAX(mp->round_met, s->round + 1);
    hth_roster_set_round(mp->roster, s->round + 1);
    hth_avg_cell_next(&s->shape, s->round, &s->group->id, s->group->self, &s->cell);
    if (hth_roster_set_cell(mp->roster, s->generation, &s->cell) != HTH_OK)
        HTH_LOG(s->env, HTH_DEBUG, HTH_SUB_AVG, "the grid changed during a round");
}

static void on_look(void *arg, const struct hth_look_result *r)
{
    struct moshpit_sweep *s = arg;
    struct hth_avg_round_info *info = &s->info;
    enum hth_err err;

    s->look = NULL;
    hth_moshpit_looked(s, r->err == HTH_OK);
    info->wait_us = r->wait_us;
    info->match_us = r->match_us;
    if (r->err != HTH_OK) {
        hth_roster_set_round(s->mp->roster, s->round + 1);
        round_over(s, r->err == HTH_E_TIMEOUT ? HTH_E_NOT_FOUND : r->err, r->reason);
        return;
    }
    s->group = r->group;
    info->members = s->group->count;
    info->group = s->group->id;
    for (uint32_t i = 0; i < HTH_MIN(s->group->count, (uint32_t)HTH_AVG_STATUS_MEMBERS); i++)
        info->member[i] = s->group->member[i].id;
    move(s);
    err = reduce(s);
    if (err != HTH_OK)
        round_over(s, err, HTH_AVG_FAILED);
}

/* ---- looking -------------------------------------------------------------------------------- */

static uint32_t peers(void *arg, struct hth_match_peer *out, uint32_t max, bool *all)
{
    return hth_moshpit_peers(arg, out, max, all);
}

static void deaf(void *arg, const struct hth_peer_id *id)
{
    hth_roster_lost(((struct moshpit_sweep *)arg)->mp->roster, id);
}

struct hth_avg_line hth_sweep_line(const struct moshpit_sweep *s)
{
    return (struct hth_avg_line){.run = s->mp->run,
                                 .generation = s->generation,
                                 .round = s->round,
                                 .shape = s->shape,
                                 .cell = s->cell};
}

/* With one axis everybody belongs into one group, also who has come since it was shaped. Else a
 * line often holds one or two more than it has cells: cut into halves it would mix less. */
static void group_sizes(const struct moshpit_sweep *s, struct hth_look_opts *o)
{
    uint32_t size = s->shape.size[hth_avg_axis(&s->shape, s->round)];
    uint32_t full = HTH_MAX(HTH_MIN(size, HTH_AVG_MEMBERS_MAX / 2u), s->mp->opts.group_min);

    o->group_min = s->mp->opts.group_min;
    o->group_full = full;
    o->group_max = HTH_AVG_MEMBERS_MAX / 2;
    if (s->shape.dims > 1)
        o->group_max = HTH_MIN(full + full / 4, o->group_max);
}

/* Longer where the others are far. */
int64_t hth_sweep_window_us(const struct moshpit_sweep *s)
{
    const struct hth_moshpit_opts *o = &s->mp->opts;
    int64_t far_us = hth_match_patience_us(s->mp->match) - o->match.patience_us;

    return HTH_MIN(o->window_us + WINDOW_WAYS * far_us, HTH_AVG_WINDOW_MAX_US - o->round_us);
}

static enum hth_err look(struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;
    struct hth_look_opts o = {.line = hth_sweep_line(s),
                              .schema = s->offer.schema,
                              .mode = mp->opts.mode,
                              .bandwidth = mp->opts.bandwidth,
                              .weight = s->weight,
                              .window_us = hth_sweep_window_us(s),
                              .peers = peers,
                              .deaf = deaf,
                              .done = on_look,
                              .arg = s};

    group_sizes(s, &o);
    s->info =
        (struct hth_avg_round_info){.number = s->round, .axis = hth_avg_axis(&s->shape, s->round)};
    s->look_us = hth_now_us(s->env);
    return hth_look_new(mp->match, &o, &s->look);
}

static void look_on(struct moshpit_sweep *s)
{
    s->result.err = look(s);
    s->result.reason = HTH_AVG_FAILED;
    if (s->result.err != HTH_OK)
        end_soon(s);
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* The first round from there in which this sweep can begin. */
static uint64_t from_first_axis(const struct moshpit_sweep *s, uint64_t round)
{
    uint32_t dims = s->shape.dims;

    return s->offer.rounds > 1 ? (round + dims - 1) / dims * dims : round;
}

/* Where and when: by the roster as it is now. Errors: E_NOT_FOUND. */
static enum hth_err place(struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;
    const struct hth_avg_shape *shape = hth_roster_shape(mp->roster, &s->generation);

    if (shape->dims == 0)
        return HTH_E_NOT_FOUND;
    s->shape = *shape;
    HTH_TRY(hth_roster_cell(mp->roster, &s->cell));
    /* The first in which nobody was met yet: one that was looked for in vain may be looked for
     * again. Who counted on from there would be ahead of all for good. */
    s->round = from_first_axis(s, mp->round_met);
    s->round = from_first_axis(s, hth_moshpit_round(s));
    /* Who says a later round than the one it looks in is expected by nobody. */
    hth_roster_set_round(mp->roster, s->round);
    return HTH_OK;
}

static enum hth_err copy_offer(struct moshpit_sweep *s, const struct hth_avg_offer *offer)
{
    s->offer = *offer;
    s->offer.spans = NULL;
    if (offer->values != NULL) {
        s->offer.values = hth_blob_ref(offer->values);
        s->values = hth_blob_ref(offer->values);
    }
    s->weight = offer->weight;
    if (offer->spans == NULL || offer->span_count == 0)
        return HTH_OK;
    s->spans = hth_try_calloc(offer->span_count, sizeof(*offer->spans));
    if (s->spans == NULL)
        return HTH_E_NO_MEMORY;
    memcpy(s->spans, offer->spans, (size_t)offer->span_count * sizeof(*offer->spans));
    return HTH_OK;
}

static int64_t time_us(const struct moshpit_sweep *s)
{
    int64_t spare_us = HTH_US_PER_S + s->mp->opts.match.patience_us;

    if (s->offer.timeout_us > 0)
        return s->offer.timeout_us;
    return s->offer.rounds * (hth_sweep_window_us(s) + round_us(s) + spare_us);
}

enum hth_err hth_sweep_new(struct moshpit *mp, const struct hth_avg_offer *offer,
                           struct moshpit_sweep **out)
{
    struct moshpit_sweep *s = hth_new(struct moshpit_sweep);
    enum hth_err err;

    *out = NULL;
    s->mp = mp;
    s->env = mp->env;
    s->start_us = hth_now_us(mp->env);
    s->result.weight_fraction = 1;
    s->timer = hth_timer_new(mp->env, on_end, s);
    HTH_GOTO(fail, copy_offer(s, offer));
    HTH_GOTO(fail, place(s));
    HTH_GOTO(fail, look(s));
    hth_timer_set(s->env, s->timer, time_us(s));
    *out = s;
    return HTH_OK;
fail:
    sweep_free(s);
    return err;
}

/* Another grid: elsewhere, as long as nobody was met. */
void hth_sweep_nudge(struct moshpit_sweep *s)
{
    uint32_t generation;
    enum hth_err err;

    (void)hth_roster_shape(s->mp->roster, &generation);
    if (generation == s->generation || s->done_rounds > 0 || s->look == NULL)
        return;
    hth_look_cancel(s->look);
    s->look = NULL;
    err = place(s);
    if (err == HTH_OK)
        err = look(s);
    if (err == HTH_OK)
        return;
    s->result.err = HTH_E_NOT_FOUND;
    s->result.reason = HTH_AVG_NOBODY;
    end_soon(s);
}
