/* SPDX-License-Identifier: Apache-2.0 */
/* peer.c: the table of averager.h over rounds: where and when, a look, a reduction, its end. */
#include "averaging/peer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/codec.h"
#include "core/mem.h"

#define SETTLED_US (1 * HTH_US_PER_S) /* then all have said where they are */

struct moshpit {
    struct hth_env *env;
    struct hth_avg_peer *peer;
    struct hth_moshpit_opts opts;
    struct hth_avg_member self; /* as others hear of it */
    hth_avg_round_fn *fn;       /* NULL: not started */
    void *arg;
    /* the round under way */
    enum { IDLE, LOOKS, REDUCES } state;
    struct hth_avg_offer offer; /* values referenced */
    struct hth_avg_line line;
    struct hth_reduce_round *reduce;
    struct hth_avg_group *group;
    struct hth_avg_round_info info;
    int64_t looked_us; /* when the last look ended */
    struct hth_averager_stats stats;
    struct {
        struct hth_metric *rounds, *failed, *drops, *bytes, *wait, *reduce;
    } metrics;
};

/* ---- reasons --------------------------------------------------------------------------------- */

static const struct {
    const char *name, *text;
} reasons[] = {
#define ROW(num, name, text) [num] = {#name, text},
    HTH_AVG_REASON_MAP(ROW)
#undef ROW
};

const char *hth_avg_reason_name(enum hth_avg_reason reason)
{
    bool known = reason < HTH_ARRAY_LEN(reasons) && reasons[reason].name != NULL;

    return known ? reasons[reason].name : "UNKNOWN";
}

const char *hth_avg_reason_text(enum hth_avg_reason reason)
{
    bool known = reason < HTH_ARRAY_LEN(reasons) && reasons[reason].text != NULL;

    return known ? reasons[reason].text : "an unknown reason";
}

/* ---- the end -------------------------------------------------------------------------------- */

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

/* `average` is borrowed: NULL of a helper, and without one. The callback may offer anew. */
static void end(struct moshpit *mp, enum hth_err err, enum hth_avg_reason reason,
                struct hth_blob *average)
{
    struct hth_avg_result result;

    mp->info.err = err;
    mp->info.reason = reason;
    count(mp, &mp->info);
    result = (struct hth_avg_result){err, reason, mp->offer.values, average, mp->info};
    hth_free(mp->group);
    mp->group = NULL;
    mp->state = IDLE;
    if (mp->fn != NULL)
        mp->fn(mp->arg, &result);
    hth_blob_unref(result.values);
}

/* ---- reducing ------------------------------------------------------------------------------- */

static void on_reduced(void *arg, const struct hth_reduce_result *r)
{
    struct moshpit *mp = arg;
    struct hth_avg_round_info *info = &mp->info;

    for (uint32_t i = 0; i < r->members && i < mp->group->count; i++)
        if (r->fates[i].as_sender == HTH_REDUCE_DROP_SILENT ||
            r->fates[i].as_reducer == HTH_REDUCE_DROP_SILENT)
            hth_roster_lost(mp->peer->roster, &mp->group->member[i].id);
    mp->reduce = NULL;
    info->drops = r->dropped;
    info->weight_fraction = r->err == HTH_OK ? r->weight_fraction : 0;
    info->reduce_us = r->took_us;
    info->bytes_out = r->bytes_out;
    info->bytes_in = r->bytes_in;
    if (r->err != HTH_OK)
        end(mp, r->err, HTH_AVG_FAILED, NULL);
    else
        end(mp, HTH_OK, HTH_AVG_OK, r->average);
}

/* Members that are lost, silent, or slower than the others are given up long before. */
static int64_t round_us(const struct moshpit *mp)
{
    int64_t most_us = HTH_AVG_WINDOW_MAX_US / 10 * 9 - mp->opts.window_us;

    return HTH_MAX(mp->opts.round_us, HTH_MIN(hth_reduce_thin_us(mp->offer.count), most_us));
}

static enum hth_err reduce(struct moshpit *mp)
{
    const struct hth_avg_group *g = mp->group;
    struct hth_reduce_member *members = hth_new_array(struct hth_reduce_member, g->count);
    struct hth_reduce_opts o = {.group = g->id,
                                .members = members,
                                .member_count = g->count,
                                .self = g->self,
                                .values = mp->offer.values,
                                .count = mp->offer.count,
                                .spans = mp->offer.spans,
                                .span_count = mp->offer.span_count,
                                .share_max = mp->opts.share_max,
                                .timeout_us = round_us(mp),
                                .done = on_reduced,
                                .arg = mp};
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
    err = hth_reduce_start(mp->peer->reducer, &o, &mp->reduce);
    hth_free(members);
    return err;
}

/* From a first one that the group's id draws: short groups leave other coordinates free. */
static uint32_t place_in(const struct hth_avg_group *g)
{
    return (hth_load_u32le(g->id.b) >> 1) + g->self;
}

static void on_look(void *arg, enum hth_avg_reason reason, struct hth_avg_group *group,
                    int64_t waited_us)
{
    struct moshpit *mp = arg;
    struct hth_avg_round_info *info = &mp->info;
    enum hth_err err;

    mp->looked_us = hth_now_us(mp->env);
    info->wait_us = waited_us;
    if (group != NULL)
        hth_roster_set_place(mp->peer->roster, info->axis, place_in(group));
    hth_roster_set_round(mp->peer->roster, mp->line.round + 1);
    if (group == NULL) {
        end(mp, HTH_E_NOT_FOUND, reason, NULL);
        return;
    }
    mp->state = REDUCES;
    mp->group = group;
    info->members = group->count;
    info->group = group->id;
    for (uint32_t i = 0; i < HTH_MIN(group->count, (uint32_t)HTH_AVG_STATUS_MEMBERS); i++)
        info->member[i] = group->member[i].id;
    err = reduce(mp);
    if (err != HTH_OK)
        end(mp, err, HTH_AVG_FAILED, NULL);
}

/* ---- where and when -------------------------------------------------------------------------- */

static struct hth_avg_line line_now(const struct moshpit *mp, uint32_t round)
{
    const struct hth_roster_note *self = hth_roster_self(mp->peer->roster);

    return (struct hth_avg_line){.round = round, .shape = self->shape, .cell = self->cell};
}

static int by_number(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Somebody of the line of that round has left it for a later one, or has not. */
static bool has_one(const struct moshpit *mp, uint32_t round, bool left)
{
    struct hth_avg_line line = line_now(mp, round);
    const struct hth_roster_peer *p;

    for (uint32_t i = 0; (p = hth_roster_at(mp->peer->roster, i)) != NULL; i++)
        if (hth_roster_meets(mp->peer->roster, p) && hth_match_in_line(&p->note, &line) &&
            (hth_match_ahead(p->note.round, round) > 0) == left)
            return true;
    return false;
}

/* That of the middle peer: with the lowest round it would do as long as nobody is absent, but
 * whoever missed one would go on looking for it with the others who did, a round behind all the
 * rest for good. A peer that is only late stays with those of its line until one of them has left
 * for a later round, and none goes back where all of its line have been. What is said of rounds is
 * not proved, so that all may go to a wrong one, but together. */
static uint32_t present_round(const struct moshpit *mp)
{
    uint32_t own = hth_roster_self(mp->peer->roster)->round, count = 0;
    int32_t *rounds = hth_new_array(int32_t, HTH_AVG_ROSTER_MAX), middle = 0;
    const struct hth_roster_peer *p;
    bool stays;

    for (uint32_t i = 0; (p = hth_roster_at(mp->peer->roster, i)) != NULL; i++)
        if (hth_roster_meets(mp->peer->roster, p) && (p->note.flags & HTH_ROSTER_HELPER) == 0)
            rounds[count++] = hth_match_ahead(p->note.round, own);
    qsort(rounds, count, sizeof(*rounds), by_number);
    if (count > 0)
        middle = rounds[(count - 1) / 2];
    hth_free(rounds);
    stays = middle > 0 ? !has_one(mp, own, true)
                       : hth_now_us(mp->env) < mp->looked_us + SETTLED_US ||
                             !has_one(mp, own + (uint32_t)middle, false);
    return stays ? own : own + (uint32_t)middle;
}

/* Looks in the present round's line. Errors: E_NOT_FOUND. */
static enum hth_err look(struct moshpit *mp)
{
    if (hth_roster_self(mp->peer->roster)->shape.dims == 0)
        return HTH_E_NOT_FOUND;
    mp->line = line_now(mp, present_round(mp));
    hth_roster_set_round(mp->peer->roster, mp->line.round);
    mp->info = (struct hth_avg_round_info){.number = mp->line.round,
                                           .axis = hth_avg_axis(&mp->line.shape, mp->line.round)};
    mp->self.weight = mp->offer.weight;
    hth_match_look(mp->peer->match, &mp->line, &mp->self, mp->opts.window_us, on_look, mp);
    return HTH_OK;
}

/* ---- offers --------------------------------------------------------------------------------- */

static enum hth_err mp_ready(const void *self)
{
    const struct moshpit *mp = self;
    const struct hth_roster_note *note = hth_roster_self(mp->peer->roster);

    if (mp->fn == NULL || (note->flags & HTH_ROSTER_BOOTSTRAPPING) != 0 || note->shape.dims == 0 ||
        hth_roster_population(mp->peer->roster, NULL) < 2)
        return HTH_E_NOT_FOUND;
    return mp->state != IDLE ? HTH_E_BUSY : HTH_OK;
}

static enum hth_err check(const struct moshpit *mp, const struct hth_avg_offer *o)
{
    if (o->count == 0 || o->count > HTH_PARAMS_FLOATS_MAX)
        return HTH_E_RANGE;
    if (o->spans != NULL)
        HTH_TRY(hth_avg_spans_check(o->spans, o->span_count, o->count));
    if (mp->self.mode == HTH_AVG_HELPER)
        return o->values == NULL && o->weight == 0 ? HTH_OK : HTH_E_RANGE;
    if (o->values == NULL || o->values->size != o->count * sizeof(float))
        return HTH_E_RANGE;
    return o->weight > 0 && o->weight <= HTH_AVG_WEIGHT_MAX ? HTH_OK : HTH_E_RANGE;
}

static enum hth_err begin(struct moshpit *mp, const struct hth_avg_offer *offer)
{
    HTH_TRY(check(mp, offer));
    HTH_TRY(mp_ready(mp));
    mp->offer = *offer;
    HTH_TRY(look(mp));
    mp->state = LOOKS;
    if (offer->values != NULL)
        hth_blob_ref(offer->values);
    return HTH_OK;
}

static enum hth_err mp_offer(void *self, const struct hth_avg_offer *offer)
{
    struct moshpit *mp = self;
    enum hth_err err = begin(mp, offer);

    mp->stats.offers++;
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
    if (mp->state == IDLE)
        return;
    hth_match_stop(mp->peer->match);
    if (mp->reduce != NULL)
        hth_reduce_cancel(mp->reduce);
    mp->reduce = NULL;
    hth_blob_unref(mp->offer.values);
    hth_free(mp->group);
    mp->group = NULL;
    mp->state = IDLE;
}

static void mp_stats(const void *self, struct hth_averager_stats *out)
{
    const struct moshpit *mp = self;

    *out = mp->stats;
    out->under_way = mp->state != IDLE;
}

static void mp_free(void *self)
{
    mp_stop(self);
    hth_free(self);
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

static enum hth_err moshpit_new(struct hth_env *env, const struct hth_avg_peer_opts *opts,
                                struct hth_avg_peer *p)
{
    const struct hth_moshpit_opts *o = &opts->moshpit;
    struct moshpit *mp;

    if (o->group_min < 2 || o->group_min > HTH_AVG_MEMBERS_MAX / 2 || o->window_us <= 0 ||
        o->round_us <= 0 || o->window_us + o->round_us > HTH_AVG_WINDOW_MAX_US ||
        (opts->mode == HTH_AVG_CLIENT ? opts->bandwidth != 0 : opts->addr.family == 0) ||
        !(o->share_max >= 1 && isfinite(o->share_max)))
        return HTH_E_CONFIG;
    mp = hth_new(struct moshpit);
    mp->env = env;
    mp->peer = p;
    mp->opts = *o;
    mp->self = (struct hth_avg_member){.mode = opts->mode, .bandwidth = opts->bandwidth};
    register_metrics(mp);
    p->averager = (struct hth_averager){&ops, mp};
    return HTH_OK;
}

/* ---- the peer -------------------------------------------------------------------------------- */

/* A round begins anew elsewhere, as long as nobody was met. */
static void on_change(void *arg)
{
    struct hth_avg_peer *p = arg;
    struct moshpit *mp = p->averager.self;
    struct hth_avg_line line;

    if (mp != NULL && mp->state == LOOKS) {
        line = line_now(mp, mp->line.round);
        if (!hth_avg_line_eq(&line, &mp->line)) {
            hth_match_stop(p->match);
            if (look(mp) != HTH_OK)
                end(mp, HTH_E_NOT_FOUND, HTH_AVG_NOBODY, NULL);
        }
    }
    if (p->match != NULL)
        hth_match_nudge(p->match);
    if (p->on_change != NULL)
        p->on_change(p->arg);
}

void hth_avg_peer_lost(void *peer, const struct hth_peer_id *lost, enum hth_err err)
{
    struct hth_avg_peer *p = peer;

    if (p->reducer != NULL)
        hth_reducer_peer_lost(p->reducer, lost);
    if (p->match != NULL && err != HTH_OK) { /* it was not idle */
        hth_roster_lost(p->roster, lost);
        hth_match_nudge(p->match);
    }
    if (p->on_lost != NULL)
        p->on_lost(p->arg, lost);
}

static enum hth_err make(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                         const struct hth_avg_peer_opts *opts, struct hth_avg_peer *p)
{
    struct hth_roster_opts roster = opts->roster;

    roster.network = opts->network;
    roster.addr = opts->addr;
    if (opts->mode == HTH_AVG_CLIENT)
        roster.flags |= HTH_ROSTER_CLIENT;
    if (opts->mode == HTH_AVG_HELPER)
        roster.flags |= HTH_ROSTER_HELPER;
    roster.on_change = on_change;
    roster.arg = p;
    HTH_TRY(hth_roster_new(env, dht, &roster, &p->roster));
    HTH_TRY(hth_reducer_new(env, rpc, &opts->reducer, &p->reducer));
    HTH_TRY(moshpit_new(env, opts, p));
    p->match = hth_match_new(env, rpc, p->roster, opts->moshpit.group_min);
    return HTH_OK;
}

enum hth_err hth_avg_peer_open(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                               const struct hth_avg_peer_opts *opts, struct hth_avg_peer *p)
{
    enum hth_err err;

    memset(p, 0, sizeof(*p));
    p->on_change = opts->on_change;
    p->on_lost = opts->on_lost;
    p->arg = opts->arg;
    err = make(env, rpc, dht, opts, p);
    if (err != HTH_OK)
        hth_avg_peer_close(p);
    return err;
}

void hth_avg_peer_close(struct hth_avg_peer *p)
{
    hth_averager_free(&p->averager);
    hth_match_free(p->match);
    hth_reducer_free(p->reducer);
    hth_roster_free(p->roster);
    memset(p, 0, sizeof(*p));
}
