/* SPDX-License-Identifier: Apache-2.0 */
/* moshpit_round.c: one offer on its way: where and when, a look, a reduction, its end. */
#include <stdlib.h>
#include <string.h>

#include "averaging/match_msg.h"
#include "averaging/moshpit_int.h"
#include "core/mem.h"

#define THIN_BIT_S  2e6 /* a home's line, the worst that is worth it */
#define WINDOW_WAYS 4   /* a look that is far from others: so often what they are farther */

/* ---- the end -------------------------------------------------------------------------------- */

/* Without a goodbye: nobody looks in that line for long. */
static void stop_looking(struct moshpit_round *s)
{
    if (s->look != NULL)
        hth_look_cancel(s->look);
    hth_roster_free(s->lookers);
    s->look = NULL;
    s->lookers = NULL;
}

void hth_round_free(struct moshpit_round *s)
{
    stop_looking(s);
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

/* Longer where the others are far. */
static int64_t window_us(const struct moshpit_round *s)
{
    const struct hth_moshpit_opts *o = &s->mp->opts;
    int64_t far_us = WINDOW_WAYS * hth_match_far_us(s->mp->match);

    return HTH_MIN(o->window_us + far_us, HTH_AVG_WINDOW_MAX_US - o->round_us);
}

/* Groups on lines of THIN_BIT_S take twice what they need at best. Who is lost, silent, or slower
 * than the others is given up long before. */
static int64_t round_us(const struct moshpit_round *s)
{
    double bits = 2.0 * 8 * sizeof(float) * (double)s->offer.count;
    double time_us = 2 * bits / THIN_BIT_S * HTH_US_PER_S;
    int64_t most_us = HTH_AVG_WINDOW_MAX_US / 10 * 9 - window_us(s);

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

static void on_look(void *arg, const struct hth_look_result *r)
{
    struct moshpit_round *s = arg;
    struct hth_avg_round_info *info = &s->info;
    enum hth_err err;

    s->look = NULL;
    stop_looking(s);
    s->mp->vain = r->err != HTH_OK;
    info->wait_us = r->wait_us;
    info->match_us = r->match_us;
    hth_roster_set_round(s->mp->roster, s->line.round + 1);
    if (r->err != HTH_OK) {
        end(s, r->err == HTH_E_TIMEOUT ? HTH_E_NOT_FOUND : r->err, r->reason, NULL, 0);
        return;
    }
    s->group = r->group;
    info->members = s->group->count;
    info->group = s->group->id;
    for (uint32_t i = 0; i < HTH_MIN(s->group->count, (uint32_t)HTH_AVG_STATUS_MEMBERS); i++)
        info->member[i] = s->group->member[i].id;
    s->mp->next = s->line.round + 1;
    err = reduce(s);
    if (err == HTH_OK)
        hth_reducer_peer_lost(s->mp->reducer, &r->lost);
    else
        end(s, err, HTH_AVG_FAILED, NULL, 0);
}

/* ---- looking -------------------------------------------------------------------------------- */

/* One that may meet us. */
static bool is_ours(const struct moshpit_round *s, const struct hth_roster_peer *p)
{
    return p->note.schema == s->offer.schema && (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) == 0 &&
           !p->lost;
}

static bool is_in_line(const struct moshpit_round *s, const struct hth_roster_peer *p)
{
    struct hth_avg_line theirs = s->line;

    theirs.shape = p->note.shape;
    theirs.cell = p->note.cell;
    return hth_avg_shape_eq(&theirs.shape, &s->line.shape) && hth_avg_line_eq(&theirs, &s->line);
}

/* Rounds are numbers on a circle: whatever somebody says, others are a few ahead or behind. */
static int32_t ahead(const struct hth_roster_peer *p, uint32_t round)
{
    return (int32_t)(p->note.round - round);
}

/* The peers in our line that are not ahead of us. One that is a round behind may be about to end
 * it, and is waited for as well as those who come to this one; one that is further behind for a
 * moment. */
static uint32_t peers(void *arg, struct hth_match_peer *out, uint32_t max, bool *all)
{
    const struct moshpit_round *s = arg;
    const struct hth_roster *roster = s->lookers != NULL ? s->lookers : s->mp->roster;
    const struct hth_roster_peer *p;
    uint32_t count = 0;

    *all = s->lookers == NULL;
    for (uint32_t i = 0; (p = hth_roster_at(roster, i)) != NULL && count < max; i++)
        if (is_ours(s, p) && is_in_line(s, p) && ahead(p, s->line.round) <= 0)
            out[count++] = (struct hth_match_peer){
                .id = p->id, .addr = p->note.addr, .due = ahead(p, s->line.round) >= -1};
    return count;
}

static void on_lookers(void *arg)
{
    hth_match_nudge(((struct moshpit_round *)arg)->mp->match);
}

/* A key in the DHT costs dozens of datagrams: only where the run's roster does not show all. */
static enum hth_err find_lookers(struct moshpit_round *s)
{
    const struct hth_roster_note *self = hth_roster_self(s->mp->roster);
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    bool exact;

    (void)hth_roster_population(s->mp->roster, &exact);
    if (exact)
        return HTH_OK;
    o.network = s->mp->network;
    o.line = key;
    o.line_len = hth_avg_line_key(&s->line, key);
    o.schema = s->offer.schema;
    o.addr = self->addr;
    o.flags = self->flags;
    o.shape = s->line.shape;
    o.has_cell = true;
    o.cell = s->line.cell;
    o.on_change = on_lookers;
    o.arg = s;
    HTH_TRY(hth_roster_new(s->mp->env, s->mp->dht, &o, &s->lookers));
    hth_roster_set_round(s->lookers, s->line.round);
    return HTH_OK;
}

static void deaf(void *arg, const struct hth_peer_id *id)
{
    const struct moshpit_round *s = arg;

    hth_roster_lost(s->mp->roster, id);
    if (s->lookers != NULL)
        hth_roster_lost(s->lookers, id);
}

static int by_number(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* With the lowest round it would do as long as nobody is absent; but whoever missed one would go on
 * looking for it with the others who did, a round behind all the rest for good. So one goes with
 * the middle; back to it only after a vain look. Who is only late has not missed its round: as long
 * as others of its line are there, and none has left for a later one, it goes there, too. What is
 * said of rounds is not proved, so that all may go to a wrong one, but together. */
static uint32_t present_round(const struct moshpit_round *s)
{
    const struct moshpit *mp = s->mp;
    int32_t *rounds = hth_new_array(int32_t, HTH_AVG_ROSTER_MAX), middle = 0;
    const struct hth_roster_peer *p;
    bool awaited = false, left = false;
    uint32_t count = 0;

    for (uint32_t i = 0; (p = hth_roster_at(mp->roster, i)) != NULL; i++) {
        if (!is_ours(s, p) || (p->note.flags & HTH_ROSTER_HELPER) != 0)
            continue;
        rounds[count++] = ahead(p, mp->next);
        if (is_in_line(s, p)) {
            awaited |= rounds[count - 1] == 0;
            left |= rounds[count - 1] > 0;
        }
    }
    qsort(rounds, count, sizeof(*rounds), by_number);
    if (count > 0)
        middle = rounds[(count - 1) / 2];
    hth_free(rounds);
    if (!mp->vain && (middle < 0 || (awaited && !left)))
        middle = 0;
    return mp->next + (uint32_t)middle;
}

static enum hth_err look(struct moshpit_round *s)
{
    struct moshpit *mp = s->mp;
    uint32_t axis = hth_avg_axis(&s->line.shape, s->line.round);
    struct hth_look_opts o = {.line = s->line,
                              .schema = s->offer.schema,
                              .mode = mp->opts.mode,
                              .bandwidth = mp->opts.bandwidth,
                              .weight = s->offer.weight,
                              .group_min = mp->opts.group_min,
                              .group_full = HTH_MAX(s->line.shape.size[axis], mp->opts.group_min),
                              .window_us = window_us(s),
                              .peers = peers,
                              .deaf = deaf,
                              .done = on_look,
                              .arg = s};

    s->info = (struct hth_avg_round_info){.number = s->line.round, .axis = axis};
    HTH_TRY(find_lookers(s));
    return hth_look_new(mp->match, &o, &s->look);
}

/* ---- the beginning --------------------------------------------------------------------------- */

static struct hth_avg_line line_now(const struct moshpit *mp, uint32_t round)
{
    const struct hth_roster_note *self = hth_roster_self(mp->roster);

    return (struct hth_avg_line){
        .run = mp->run, .round = round, .shape = self->shape, .cell = self->cell};
}

/* Where and when: by the roster as it is now. Errors: E_NOT_FOUND. */
static enum hth_err place(struct moshpit_round *s)
{
    struct moshpit *mp = s->mp;

    s->line = line_now(mp, mp->next);
    if (s->line.shape.dims == 0)
        return HTH_E_NOT_FOUND;
    mp->next = present_round(s);
    hth_roster_set_round(mp->roster, mp->next);
    s->line = line_now(mp, mp->next);
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

/* Elsewhere, as long as nobody was met. */
void hth_round_nudge(struct moshpit_round *s)
{
    struct hth_avg_line line = line_now(s->mp, s->line.round);

    if (s->look == NULL || hth_avg_line_eq(&line, &s->line))
        return;
    stop_looking(s);
    if (place(s) != HTH_OK)
        end(s, HTH_E_NOT_FOUND, HTH_AVG_NOBODY, NULL, 0);
}
