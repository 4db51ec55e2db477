/* SPDX-License-Identifier: Apache-2.0 */
/* moshpit.c: the table of averager.h over rounds: where and when, a look, a reduction, its end. */
#include "averaging/moshpit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/codec.h"
#include "averaging/reduce.h"
#include "averaging/roster.h"
#include "core/mem.h"
#include "dht/record.h"

#define SETTLED_US (1 * HTH_US_PER_S) /* then all have said where they are */

struct moshpit;

struct moshpit_round {
    struct moshpit *mp;
    struct hth_avg_offer offer; /* values referenced */
    struct hth_avg_line line;
    bool looks;
    struct hth_reduce_round *reduce;
    struct hth_avg_group *group; /* of the reduction */
    struct hth_avg_round_info info;
};

struct moshpit {
    struct hth_env *env;
    struct hth_roster *roster;
    struct hth_reducer *reducer;
    struct hth_match *match;
    struct hth_moshpit_opts opts;
    char network[HTH_NAME_LEN_MAX + 1];
    uint64_t run;         /* tag */
    hth_avg_round_fn *fn; /* NULL: not started */
    void *arg;
    struct moshpit_round *round; /* NULL: none under way */
    int64_t looked_us;           /* when the last look ended */
    struct hth_averager_stats stats;
    struct {
        struct hth_metric *rounds, *failed, *drops, *bytes, *wait, *reduce;
    } metrics;
};

/* ---- the end -------------------------------------------------------------------------------- */

/* Without a goodbye: nobody looks in that line for long. */
static void stop_looking(struct moshpit_round *s)
{
    if (s->looks)
        hth_match_stop(s->mp->match);
    s->looks = false;
}

static void round_free(struct moshpit_round *s)
{
    stop_looking(s);
    if (s->reduce != NULL)
        hth_reduce_cancel(s->reduce);
    hth_blob_unref(s->offer.values);
    hth_free(s->group);
    hth_free(s);
}

static void count(struct moshpit *mp, const struct hth_avg_round_info *info)
{
    struct hth_averager_stats *st = &mp->stats;
    bool ok = info->err == HTH_OK;

    st->rounds += ok;
    st->failed += !ok;
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
    round_free(s);
}

/* ---- reducing ------------------------------------------------------------------------------- */

static void on_reduced(void *arg, const struct hth_reduce_result *r)
{
    struct moshpit_round *s = arg;
    struct hth_avg_round_info *info = &s->info;

    for (uint32_t i = 0; i < r->members && i < s->group->count; i++)
        if (r->fates[i].as_sender == HTH_REDUCE_DROP_SILENT ||
            r->fates[i].as_reducer == HTH_REDUCE_DROP_SILENT)
            hth_roster_lost(s->mp->roster, &s->group->member[i].id);
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
    end(s, HTH_OK, HTH_AVG_OK, r->average, HTH_MIN(r->weight, (double)HTH_AVG_WEIGHT_MAX));
}

/* Members that are lost, silent, or slower than the others are given up long before. */
static int64_t round_us(const struct moshpit_round *s)
{
    int64_t most_us = HTH_AVG_WINDOW_MAX_US / 10 * 9 - s->mp->opts.window_us;

    return HTH_MAX(s->mp->opts.round_us, HTH_MIN(hth_reduce_thin_us(s->offer.count), most_us));
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
                                .spans = s->offer.spans,
                                .span_count = s->offer.span_count,
                                .share_max = s->mp->opts.share_max,
                                .timeout_us = round_us(s),
                                .done = on_reduced,
                                .arg = s};
    enum hth_err err;

    for (uint32_t i = 0; i < g->count; i++) {
        members[i].id = g->member[i].id;
        members[i].addr = g->member[i].addr;
        members[i].weight = g->member[i].weight;
        members[i].bandwidth = g->member[i].bandwidth;
        if (hth_avg_mode_reduces(g->member[i].mode) && g->member[i].bandwidth == 0)
            members[i].bandwidth = HTH_REDUCE_NOT_SAID;
    }
    hth_reduce_fill_usual(members, g->count);
    err = hth_reduce_start(s->mp->reducer, &o, &s->reduce);
    hth_free(members);
    return err;
}

/* From a first one that the group's id draws: short groups leave other coordinates free. */
static uint32_t place_in(const struct hth_avg_group *g)
{
    return (hth_load_u32le(g->id.b) >> 1) + g->self;
}

static void on_look(void *arg, const struct hth_look_result *r)
{
    struct moshpit_round *s = arg;
    struct hth_avg_round_info *info = &s->info;
    enum hth_err err;

    s->looks = false;
    stop_looking(s);
    info->wait_us = r->wait_us;
    info->match_us = r->match_us;
    if (r->group != NULL)
        hth_roster_set_place(s->mp->roster, info->axis, place_in(r->group));
    hth_roster_set_round(s->mp->roster, s->line.round + 1);
    s->mp->looked_us = hth_now_us(s->mp->env);
    if (r->group == NULL) {
        end(s, HTH_E_NOT_FOUND, r->reason, NULL, 0);
        return;
    }
    s->group = r->group;
    info->members = s->group->count;
    info->group = s->group->id;
    for (uint32_t i = 0; i < HTH_MIN(s->group->count, (uint32_t)HTH_AVG_STATUS_MEMBERS); i++)
        info->member[i] = s->group->member[i].id;
    err = reduce(s);
    if (err != HTH_OK)
        end(s, err, HTH_AVG_FAILED, NULL, 0);
}

/* ---- looking -------------------------------------------------------------------------------- */

static struct hth_avg_line line_now(const struct moshpit *mp, uint32_t round)
{
    const struct hth_roster_note *self = hth_roster_self(mp->roster);

    return (struct hth_avg_line){
        .run = mp->run, .round = round, .shape = self->shape, .cell = self->cell};
}

static int by_number(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Others of the line of that round that are so far ahead of it. */
static uint32_t in_line(const struct moshpit *mp, uint32_t round, int32_t least, int32_t most)
{
    struct hth_avg_line line = line_now(mp, round);
    const struct hth_roster_peer *p;
    uint32_t count = 0;

    for (uint32_t i = 0; (p = hth_roster_at(mp->roster, i)) != NULL; i++) {
        int32_t by = hth_match_ahead(p->note.round, round);

        count += hth_roster_meets(mp->roster, p) && hth_match_in_line(&p->note, &line) && by >= least && by <= most;
    }
    return count;
}

/* That of the middle peer: with the lowest round it would do as long as nobody is absent, but
 * whoever missed one would go on looking for it with the others who did, a round behind all the
 * rest for good. Who is only late has not missed its round, nor met nobody who is ahead: a peer
 * stays with others of its line that are in its round if none has left for a later one, and does
 * not go back where all of its line have been. What is said of rounds is not proved, so that all
 * may go to a wrong one, but together. */
static uint32_t present_round(const struct moshpit *mp)
{
    uint32_t own = hth_roster_self(mp->roster)->round, count = 0;
    int32_t *rounds = hth_new_array(int32_t, HTH_AVG_ROSTER_MAX), middle = 0;
    const struct hth_roster_peer *p;
    bool stays;

    for (uint32_t i = 0; (p = hth_roster_at(mp->roster, i)) != NULL; i++)
        if (hth_roster_meets(mp->roster, p) && (p->note.flags & HTH_ROSTER_HELPER) == 0)
            rounds[count++] = hth_match_ahead(p->note.round, own);
    qsort(rounds, count, sizeof(*rounds), by_number);
    if (count > 0)
        middle = rounds[(count - 1) / 2];
    hth_free(rounds);
    stays = middle > 0 ? in_line(mp, own, 0, 0) > 0 && in_line(mp, own, 1, INT32_MAX) == 0
                       : hth_now_us(mp->env) < mp->looked_us + SETTLED_US ||
                             in_line(mp, own + (uint32_t)middle, INT32_MIN, 0) == 0;
    return stays ? own : own + (uint32_t)middle;
}

static void look(struct moshpit_round *s)
{
    const struct hth_moshpit_opts *opts = &s->mp->opts;
    const struct hth_look_opts o = {.line = s->line,
                                    .mode = opts->mode,
                                    .bandwidth = opts->bandwidth,
                                    .weight = s->offer.weight,
                                    .window_us = opts->window_us,
                                    .done = on_look,
                                    .arg = s};

    s->info = (struct hth_avg_round_info){
        .number = s->line.round, .axis = hth_avg_axis(&s->line.shape, s->line.round)};
    hth_match_look(s->mp->match, &o);
    s->looks = true;
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* Where and when: by the roster as it is now. Errors: E_NOT_FOUND. */
static enum hth_err place(struct moshpit_round *s)
{
    struct moshpit *mp = s->mp;

    if (hth_roster_self(mp->roster)->shape.dims == 0)
        return HTH_E_NOT_FOUND;
    s->line = line_now(mp, present_round(mp));
    hth_roster_set_round(mp->roster, s->line.round);
    look(s);
    return HTH_OK;
}

static enum hth_err round_new(struct moshpit *mp, const struct hth_avg_offer *offer,
                              struct moshpit_round **out)
{
    struct moshpit_round *s = hth_new(struct moshpit_round);
    enum hth_err err;

    s->mp = mp;
    s->offer = *offer;
    if (offer->values != NULL)
        hth_blob_ref(offer->values);
    err = place(s);
    if (err != HTH_OK) {
        round_free(s);
        s = NULL;
    }
    *out = s;
    return err;
}

/* Elsewhere, as long as nobody was met. */
static void round_nudge(struct moshpit_round *s)
{
    struct hth_avg_line line = line_now(s->mp, s->line.round);

    if (!s->looks || hth_avg_line_eq(&line, &s->line))
        return;
    stop_looking(s);
    if (place(s) != HTH_OK)
        end(s, HTH_E_NOT_FOUND, HTH_AVG_NOBODY, NULL, 0);
}

/* ---- offers --------------------------------------------------------------------------------- */

static enum hth_err mp_ready(const void *self)
{
    const struct moshpit *mp = self;
    const struct hth_roster_note *note = hth_roster_self(mp->roster);

    if (mp->fn == NULL || (note->flags & HTH_ROSTER_BOOTSTRAPPING) != 0 || note->shape.dims == 0 ||
        hth_roster_population(mp->roster, NULL) < 2)
        return HTH_E_NOT_FOUND;
    return mp->round != NULL ? HTH_E_BUSY : HTH_OK;
}

static enum hth_err check(const struct moshpit *mp, const struct hth_avg_offer *o)
{
    if (o->count == 0 || o->count > HTH_PARAMS_FLOATS_MAX)
        return HTH_E_RANGE;
    if (o->spans != NULL)
        HTH_TRY(hth_avg_spans_check(o->spans, o->span_count, o->count));
    if (mp->opts.mode == HTH_AVG_HELPER)
        return o->values == NULL && o->weight == 0 ? HTH_OK : HTH_E_RANGE;
    if (o->values == NULL || o->values->size != o->count * sizeof(float))
        return HTH_E_RANGE;
    return o->weight > 0 && o->weight <= HTH_AVG_WEIGHT_MAX ? HTH_OK : HTH_E_RANGE;
}

static enum hth_err begin(struct moshpit *mp, const struct hth_avg_offer *offer)
{
    HTH_TRY(check(mp, offer));
    HTH_TRY(mp_ready(mp));
    return round_new(mp, offer, &mp->round);
}

static enum hth_err mp_offer(void *self, const struct hth_avg_offer *offer)
{
    struct moshpit *mp = self;
    enum hth_err err = begin(mp, offer);

    mp->stats.offers++;
    mp->stats.refused += err != HTH_OK;
    return err;
}

/* ---- life ----------------------------------------------------------------------------------- */

static enum hth_err mp_start(void *self, hth_avg_round_fn *fn, void *arg)
{
    struct moshpit *mp = self;

    mp->fn = fn;
    mp->arg = arg;
    return HTH_OK;
}

static void mp_stop(void *self)
{
    struct moshpit *mp = self;

    mp->fn = NULL;
    if (mp->round != NULL)
        round_free(mp->round);
    mp->round = NULL;
}

static void mp_stats(const void *self, struct hth_averager_stats *out)
{
    const struct moshpit *mp = self;
    const struct hth_avg_shape *shape = &hth_roster_self(mp->roster)->shape;

    *out = mp->stats;
    out->under_way = mp->round != NULL;
    out->population = hth_roster_population(mp->roster, NULL);
    out->axes = shape->dims;
    out->cells = shape->dims > 0 ? hth_avg_cells(shape) : 0;
}

static void mp_free(void *self)
{
    struct moshpit *mp = self;

    mp_stop(mp);
    hth_match_free(mp->match);
    hth_free(mp);
}

static const struct hth_averager_ops ops = {
    .start = mp_start,
    .ready = mp_ready,
    .offer = mp_offer,
    .stop = mp_stop,
    .stats = mp_stats,
    .free = mp_free,
};

static void register_metrics(struct moshpit *mp)
{
    struct hth_metrics *m = mp->env->metrics;

    mp->metrics.rounds = hth_counter(m, "hearth_avg_rounds_total", "Rounds that gave an average");
    mp->metrics.failed = hth_counter(m, "hearth_avg_rounds_failed_total", "Rounds that gave none");
    mp->metrics.drops =
        hth_counter(m, "hearth_avg_drops_total", "Members that were dropped during rounds");
    mp->metrics.bytes =
        hth_counter(m, "hearth_avg_bytes_total", "Encoded values sent and received in rounds");
    mp->metrics.wait = hth_histogram(m, "hearth_avg_wait_seconds",
                                     "From values that are ready to a group that begins", 1e-4);
    mp->metrics.reduce =
        hth_histogram(m, "hearth_avg_reduce_seconds", "Reducing within a group", 1e-4);
}

enum hth_err hth_moshpit_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_roster *roster,
                             struct hth_reducer *reducer,
                             const struct hth_moshpit_opts *opts, struct hth_averager *out)
{
    struct moshpit *mp;

    out->ops = NULL;
    out->self = NULL;
    if (opts->network == NULL || opts->network[0] == '\0' ||
        strlen(opts->network) > HTH_NAME_LEN_MAX || opts->group_min < 2 ||
        opts->group_min > HTH_AVG_MEMBERS_MAX / 2 || opts->window_us <= 0 || opts->round_us <= 0 ||
        opts->window_us + opts->round_us > HTH_AVG_WINDOW_MAX_US ||
        (opts->mode == HTH_AVG_CLIENT ? opts->bandwidth != 0 : opts->addr.family == 0) ||
        !(opts->share_max >= 1 && isfinite(opts->share_max)))
        return HTH_E_CONFIG;
    mp = hth_new(struct moshpit);
    mp->env = env;
    mp->roster = roster;
    mp->reducer = reducer;
    mp->opts = *opts;
    memcpy(mp->network, opts->network, strlen(opts->network));
    mp->opts.network = mp->network;
    mp->run = hth_network_tag(env->crypto, opts->network);
    /* With another bound a group would be cut in two ways. */
    if (opts->share_max != HTH_AVG_SHARE_MAX)
        mp->run = hth_hash64(&opts->share_max, sizeof(opts->share_max), mp->run);
    mp->match = hth_match_new(env, rpc, roster, opts->group_min);
    register_metrics(mp);
    out->ops = &ops;
    out->self = mp;
    return HTH_OK;
}

void hth_moshpit_nudge(struct hth_averager *a)
{
    struct moshpit *mp = a->self;

    HTH_ASSERT(a->ops == &ops);
    if (mp->round != NULL)
        round_nudge(mp->round);
    hth_match_nudge(mp->match);
}

void hth_moshpit_peer_lost(struct hth_averager *a, const struct hth_peer_id *peer, enum hth_err err)
{
    struct moshpit *mp = a->self;

    HTH_ASSERT(a->ops == &ops);
    if (err == HTH_OK) /* it was idle */
        return;
    hth_roster_lost(mp->roster, peer);
    hth_match_nudge(mp->match);
}

void hth_moshpit_match_stats(const struct hth_averager *a, struct hth_match_stats *out)
{
    const struct moshpit *mp = a->self;

    HTH_ASSERT(a->ops == &ops);
    hth_match_stats(mp->match, out);
}
