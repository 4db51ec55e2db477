/* SPDX-License-Identifier: Apache-2.0 */
/* moshpit.c: the table of averager.h over rounds. */
#include "averaging/moshpit.h"

#include <math.h>
#include <string.h>

#include "averaging/moshpit_int.h"
#include "core/mem.h"
#include "dht/record.h"

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
    return hth_round_new(mp, offer, &mp->round);
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
        hth_round_free(mp->round);
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
    .name = "moshpit",
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

static void on_spoke(void *arg, const struct hth_peer_id *id, const struct hth_avg_line *line,
                     uint64_t schema, int64_t wall_us)
{
    const struct moshpit *mp = arg;

    if (line->run == mp->run)
        hth_roster_heard(mp->roster, id, line, schema, wall_us);
}

enum hth_err hth_moshpit_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                             struct hth_roster *roster, struct hth_reducer *reducer,
                             const struct hth_moshpit_opts *opts, struct hth_averager *out)
{
    struct hth_match_opts match = {.addr = opts->addr, .spoke = on_spoke};
    struct moshpit *mp;

    out->ops = NULL;
    out->self = NULL;
    if (opts->network == NULL || opts->network[0] == '\0' ||
        strlen(opts->network) > HTH_NAME_LEN_MAX || opts->group_min < 2 ||
        opts->group_min > HTH_AVG_MEMBERS_MAX / 2 || opts->window_us <= 0 || opts->round_us <= 0 ||
        opts->window_us + opts->round_us > HTH_AVG_WINDOW_MAX_US ||
        (opts->mode == HTH_AVG_CLIENT && opts->bandwidth != 0) ||
        !(opts->share_max >= 1 && isfinite(opts->share_max)))
        return HTH_E_CONFIG;
    mp = hth_new(struct moshpit);
    mp->env = env;
    mp->dht = dht;
    mp->roster = roster;
    mp->reducer = reducer;
    mp->opts = *opts;
    memcpy(mp->network, opts->network, strlen(opts->network));
    mp->opts.network = mp->network;
    mp->run = hth_network_tag(env->crypto, opts->network);
    /* With another bound a group would be cut in two ways. */
    if (opts->share_max != HTH_AVG_SHARE_MAX)
        mp->run = hth_hash64(&opts->share_max, sizeof(opts->share_max), mp->run);
    match.arg = mp;
    mp->match = hth_match_new(env, rpc, &match);
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
        hth_round_nudge(mp->round);
    hth_match_nudge(mp->match);
}

void hth_moshpit_peer_lost(struct hth_averager *a, const struct hth_peer_id *peer, enum hth_err err)
{
    struct moshpit *mp = a->self;

    HTH_ASSERT(a->ops == &ops);
    if (err == HTH_OK) /* it was idle */
        return;
    hth_roster_lost(mp->roster, peer);
    hth_match_peer_lost(mp->match, peer);
}

void hth_moshpit_match_stats(const struct hth_averager *a, struct hth_match_stats *out)
{
    const struct moshpit *mp = a->self;

    HTH_ASSERT(a->ops == &ops);
    hth_match_stats(mp->match, out);
}
