/* SPDX-License-Identifier: Apache-2.0 */
/* moshpit_round.c: one offer on its way: a look, a reduction, its end. */
#include <stdlib.h>
#include <string.h>

#include "averaging/match_msg.h"
#include "averaging/moshpit_int.h"
#include "core/mem.h"

#define THIN_BIT_S  2e6 /* a home's line, the worst that is worth it */
#define WINDOW_WAYS 4   /* a look that is far from others: so often what they are farther */

/* ---- the end -------------------------------------------------------------------------------- */

void hth_round_free(struct moshpit_round *s)
{
    if (s->look != NULL)
        hth_look_cancel(s->look);
    if (s->reduce != NULL)
        hth_reduce_cancel(s->reduce);
    hth_blob_unref(s->offer.values);
    hth_free(s->group);
    hth_free(s->spans);
    hth_free(s);
}

static void count(struct moshpit *mp, const struct hth_avg_round_info *info)
{
    struct hth_averager_stats *st = &mp->stats;
    bool ok = info->err == HTH_OK;

    st->rounds += ok;
    st->failed += !ok;
    st->alone += info->reason == HTH_AVG_ALONE;
    st->drops += info->drops;
    st->bytes_out += info->bytes_out;
    st->bytes_in += info->bytes_in;
    st->reasons[info->reason]++;
    st->last = *info;
    hth_metric_add(ok ? mp->metrics.rounds : mp->metrics.failed, 1);
    hth_metric_add(mp->metrics.drops, info->drops);
    hth_metric_add(mp->metrics.bytes, (int64_t)(info->bytes_out + info->bytes_in));
    hth_metric_observe(mp->metrics.wait, (double)info->wait_us / 1e6);
    if (ok)
        hth_metric_observe(mp->metrics.reduce, (double)info->reduce_us / 1e6);
    HTH_LOG(mp->env, HTH_DEBUG, HTH_SUB_AVG,
            "round %llu: %s, %u members, %u dropped, wait %lld us, reduce %lld us",
            (unsigned long long)info->number, hth_avg_reason_name(info->reason), info->members,
            info->drops, (long long)info->wait_us, (long long)info->reduce_us);
}

/* `average` is borrowed: NULL of a helper, and without one. */
static void end(struct moshpit_round *s, enum hth_err err, enum hth_avg_reason reason,
                struct hth_blob *average, double weight)
{
    struct moshpit *mp = s->mp;
    struct hth_avg_result result;

    s->info.err = err;
    s->info.reason = reason;
    count(mp, &s->info);
    result = (struct hth_avg_result){err, reason, s->offer.values, average, weight, s->info};
    mp->round = NULL;
    if (mp->fn != NULL)
        mp->fn(mp->arg, &result);
    hth_round_free(s);
}

/* ---- reducing ------------------------------------------------------------------------------- */

/* A member that was dropped is not expected in the next line before it was heard again. */
static void note_dropped(struct moshpit_round *s, const struct hth_reduce_result *r)
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
    struct moshpit_round *s = arg;
    struct hth_avg_round_info *info = &s->info;

    s->reduce = NULL;
    info->drops = r->dropped;
    info->weight_fraction = r->err == HTH_OK ? r->weight_fraction : 0;
    info->reduce_us = r->took_us;
    info->bytes_out = r->bytes_out;
    info->bytes_in = r->bytes_in;
    info->codec_error = r->encode_error;
    if (r->err != HTH_OK) {
        end(s, r->err, HTH_AVG_FAILED, NULL, 0);
        return;
    }
    note_dropped(s, r);
    end(s, HTH_OK, HTH_AVG_OK, r->average, HTH_MIN(r->weight, (double)HTH_AVG_WEIGHT_MAX));
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
static int64_t round_us(const struct moshpit_round *s)
{
    double bits = 2.0 * 8 * sizeof(float) * (double)s->offer.count;
    double time_us = 2 * bits / THIN_BIT_S * HTH_US_PER_S;
    int64_t most_us = HTH_AVG_WINDOW_MAX_US / 10 * 9 - hth_round_window_us(s);

    return HTH_MAX(s->mp->opts.round_us, (int64_t)HTH_MIN(time_us, (double)most_us));
}

static enum hth_err reduce(struct moshpit_round *s)
{
    const struct hth_avg_group *g = s->group;
    struct hth_reduce_member *members = hth_new_array(struct hth_reduce_member, g->count);
    struct hth_reduce_opts o = {.group = g->id,
                                .members = members,
                                .member_count = g->count,
                                .self = g->self,
                                .values = s->offer.values,
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
static void move(struct moshpit_round *s)
{
    struct moshpit *mp = s->mp;

    mp->round_met = HTH_MAX(mp->round_met, s->round + 1);
    hth_roster_set_round(mp->roster, s->round + 1);
    hth_avg_cell_next(&s->shape, s->round, &s->group->id, s->group->self, &s->cell);
    if (hth_roster_set_cell(mp->roster, &s->shape, &s->cell) != HTH_OK)
        HTH_LOG(s->mp->env, HTH_DEBUG, HTH_SUB_AVG, "the grid changed during a round");
}

static void on_look(void *arg, const struct hth_look_result *r)
{
    struct moshpit_round *s = arg;
    struct hth_avg_round_info *info = &s->info;
    enum hth_err err;

    s->look = NULL;
    hth_moshpit_looked(s, r->err == HTH_OK);
    info->wait_us = r->wait_us;
    info->match_us = r->match_us;
    if (r->err != HTH_OK) {
        hth_roster_set_round(s->mp->roster, s->round + 1);
        end(s, r->err == HTH_E_TIMEOUT ? HTH_E_NOT_FOUND : r->err, r->reason, NULL, 0);
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
        end(s, err, HTH_AVG_FAILED, NULL, 0);
}

/* ---- looking -------------------------------------------------------------------------------- */

static uint32_t peers(void *arg, struct hth_match_peer *out, uint32_t max, bool *all)
{
    return hth_moshpit_peers(arg, out, max, all);
}

static void deaf(void *arg, const struct hth_peer_id *id)
{
    hth_roster_lost(((struct moshpit_round *)arg)->mp->roster, id);
}

struct hth_avg_line hth_round_line(const struct moshpit_round *s)
{
    return (struct hth_avg_line){
        .run = s->mp->run, .round = s->round, .shape = s->shape, .cell = s->cell};
}

/* With one axis everybody belongs into one group, also who has come since it was shaped. Else a
 * line often holds one or two more than it has cells: cut into halves it would mix less. */
static void group_sizes(const struct moshpit_round *s, struct hth_look_opts *o)
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
int64_t hth_round_window_us(const struct moshpit_round *s)
{
    const struct hth_moshpit_opts *o = &s->mp->opts;
    int64_t far_us = hth_match_patience_us(s->mp->match) - o->match.patience_us;

    return HTH_MIN(o->window_us + WINDOW_WAYS * far_us, HTH_AVG_WINDOW_MAX_US - o->round_us);
}

static enum hth_err look(struct moshpit_round *s)
{
    struct moshpit *mp = s->mp;
    struct hth_look_opts o = {.line = hth_round_line(s),
                              .schema = s->offer.schema,
                              .mode = mp->opts.mode,
                              .bandwidth = mp->opts.bandwidth,
                              .weight = s->offer.weight,
                              .window_us = hth_round_window_us(s),
                              .peers = peers,
                              .deaf = deaf,
                              .done = on_look,
                              .arg = s};

    group_sizes(s, &o);
    s->info =
        (struct hth_avg_round_info){.number = s->round, .axis = hth_avg_axis(&s->shape, s->round)};
    s->look_us = hth_now_us(s->mp->env);
    return hth_look_new(mp->match, &o, &s->look);
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* Where and when: by the roster as it is now. Errors: E_NOT_FOUND. */
static enum hth_err place(struct moshpit_round *s)
{
    struct moshpit *mp = s->mp;
    const struct hth_avg_shape *shape = hth_roster_shape(mp->roster);

    if (shape->dims == 0)
        return HTH_E_NOT_FOUND;
    s->shape = *shape;
    HTH_TRY(hth_roster_cell(mp->roster, &s->cell));
    /* The first in which nobody was met yet: one that was looked for in vain may be looked for
     * again. Who counted on from there would be ahead of all for good. */
    s->round = mp->round_met;
    s->round = hth_moshpit_round(s);
    mp->round_met = HTH_MIN(mp->round_met, s->round);
    /* Who says a later round than the one it looks in is expected by nobody. */
    hth_roster_set_round(mp->roster, s->round);
    return look(s);
}

static enum hth_err copy_offer(struct moshpit_round *s, const struct hth_avg_offer *offer)
{
    size_t bytes = (size_t)offer->span_count * sizeof(*offer->spans);

    s->offer = *offer;
    s->offer.spans = NULL;
    if (offer->values != NULL)
        s->offer.values = hth_blob_ref(offer->values);
    if (offer->spans == NULL || offer->span_count == 0)
        return HTH_OK;
    s->spans = hth_try_calloc(1, bytes);
    if (s->spans == NULL)
        return HTH_E_NO_MEMORY;
    memcpy(s->spans, offer->spans, bytes);
    return HTH_OK;
}

enum hth_err hth_round_new(struct moshpit *mp, const struct hth_avg_offer *offer,
                           struct moshpit_round **out)
{
    struct moshpit_round *s = hth_new(struct moshpit_round);
    enum hth_err err;

    s->mp = mp;
    err = copy_offer(s, offer);
    if (err == HTH_OK)
        err = place(s);
    if (err != HTH_OK) {
        hth_round_free(s);
        s = NULL;
    }
    *out = s;
    return err;
}

/* Another grid: elsewhere, as long as nobody was met. */
void hth_round_nudge(struct moshpit_round *s)
{
    if (hth_avg_shape_eq(hth_roster_shape(s->mp->roster), &s->shape) || s->look == NULL)
        return;
    hth_look_cancel(s->look);
    s->look = NULL;
    if (place(s) != HTH_OK)
        end(s, HTH_E_NOT_FOUND, HTH_AVG_NOBODY, NULL, 0);
}
