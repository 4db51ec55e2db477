/* SPDX-License-Identifier: Apache-2.0 */
#include "app/together.h"

#include "cli/json.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "trainer/helper.h"

#include <string.h>

#define BITS_PER_MBIT 1e6
/* OpenDHT keeps superseded records for a while and hands them all to a newcomer, so they are
 * published no more often than this. */
#define PUBLISH_LOCAL_US (3 * HTH_US_PER_S)
#define PUBLISH_BATCH_US (1 * HTH_US_PER_S)

/* ---- life ---------------------------------------------------------------------------------- */

static void on_change(void *arg)
{
    struct hth_together *t = arg;
    if (t->trainer != NULL)
        hth_trainer_nudge(t->trainer);
}

static void on_lost(void *arg, const struct hth_peer_id *peer)
{
    struct hth_together *t = arg;
    if (t->trainer != NULL)
        hth_trainer_peer_lost(t->trainer, peer);
}

enum hth_err hth_together_open(struct hth_together *t, struct hth_peer *peer,
                               const struct hth_run_averaging *run, enum hth_avg_mode mode,
                               double up_mbit)
{
    struct hth_avg_peer_opts o = HTH_AVG_PEER_OPTS_INIT;
    memset(t, 0, sizeof(*t));
    t->peer = peer;
    o.network = peer->network;
    o.addr = peer->announce;
    o.mode = mode;
    o.bandwidth = t->bandwidth = up_mbit * BITS_PER_MBIT;
    o.roster.group_max = run->group;
    o.roster.silent = true;
    o.roster.publish_min_us = run->mode == HTH_RUN_BATCH ? PUBLISH_BATCH_US : PUBLISH_LOCAL_US;
    if (run->grid != NULL)
        HTH_TRY(hth_avg_shape_parse(run->grid, &o.roster.shape));
    o.reducer.clip = run->clip;
    o.moshpit.share_max = run->share_max;
    o.on_change = on_change;
    o.on_lost = on_lost;
    o.arg = t;
    HTH_TRY(hth_avg_peer_open(peer->env, peer->rpc, peer->dht, &o, &t->avg));
    peer->on_peer_lost = hth_avg_peer_lost;
    peer->on_peer_lost_arg = &t->avg;
    return HTH_OK;
}

/* A hash of the settings that hth_together_open takes from the run file and all trainers must have
 * alike. */
static uint64_t averaging_hash(const struct hth_run_averaging *run)
{
    struct hth_avg_shape shape;
    char text[HTH_AVG_SHAPE_TEXT_MAX] = "";
    uint64_t hash;
    if (run->grid != NULL && hth_avg_shape_parse(run->grid, &shape) == HTH_OK)
        hth_avg_shape_text(&shape, text);
    hash = hth_hash64(text, strlen(text), run->group);
    return hth_hash64(&run->share_max, sizeof(run->share_max), hash);
}

void hth_together_share(struct hth_together *t, const struct hth_run_averaging *run,
                        struct hth_share_opts *out)
{
    out->mode = run->mode == HTH_RUN_BATCH ? HTH_SHARE_BATCH : HTH_SHARE_LOCAL;
    out->roster = t->avg.roster;
    out->reducer = t->avg.reducer;
    out->dht = t->peer->dht;
    out->network = t->peer->network;
    out->addr = t->peer->announce;
    out->bandwidth = t->bandwidth;
    out->every = run->every;
    out->states = run->states;
    out->meeting = averaging_hash(run);
    out->format = (enum hth_quant_format)run->format;
    out->clip = run->clip;
    if (run->grid == NULL || hth_avg_shape_parse(run->grid, &out->shape) != HTH_OK)
        out->shape = (struct hth_avg_shape){.dims = 0}; /* the run file was checked */
    out->target = run->target;
    out->delayed = run->delayed;
    out->strict = run->majority == HTH_RUN_STRICT;
}

void hth_together_join(struct hth_together *t)
{
    if (t->avg.roster != NULL)
        hth_roster_speak(t->avg.roster);
}

void hth_together_leave(struct hth_together *t, hth_fn *done, void *arg)
{
    if (t->avg.roster != NULL)
        hth_roster_leave(t->avg.roster, done, arg);
    else
        done(arg);
}

void hth_together_close(struct hth_together *t)
{
    if (t->peer == NULL)
        return;
    t->peer->on_peer_lost = NULL;
    hth_avg_peer_close(&t->avg);
    memset(t, 0, sizeof(*t));
}

uint32_t hth_together_trainers(const struct hth_together *t)
{
    return t->avg.roster != NULL ? HTH_MAX(hth_roster_population(t->avg.roster, NULL), 1u) : 1;
}

/* ---- status page --------------------------------------------------------------------------- */

static json_t *short_id(const struct hth_peer_id *id)
{
    char text[HTH_PEER_SHORT_LEN];
    return json_string(hth_peer_id_short(id, text));
}

static json_t *round_json(const struct hth_avg_round_info *r)
{
    json_t *members = json_array();
    char group[17];
    for (uint32_t i = 0; i < HTH_MIN(r->members, (uint32_t)HTH_AVG_STATUS_MEMBERS); i++)
        json_array_append_new(members, short_id(&r->member[i]));
    hth_hex(r->group.b, 8, group);
    json_t *o = json_object();
    hth_json_count(o, "number", r->number);
    hth_json_count(o, "axis", r->axis);
    hth_json_text(o, "group", group);
    hth_json_count(o, "members", r->members);
    hth_json_take(o, "peers", members);
    hth_json_count(o, "drops", r->drops);
    hth_json_text(o, "reason", hth_avg_reason_name(r->reason));
    hth_json_text(o, "error", hth_err_name(r->err));
    hth_json_real(o, "weight_fraction", r->weight_fraction);
    hth_json_real(o, "wait_ms", (double)r->wait_us / 1e3);
    hth_json_real(o, "reduce_ms", (double)r->reduce_us / 1e3);
    hth_json_count(o, "bytes_out", r->bytes_out);
    hth_json_count(o, "bytes_in", r->bytes_in);
    return o;
}

static json_t *share_json(const struct hth_share_stats *s)
{
    double relative = s->norm > 0 ? s->distance / s->norm : 0;
    char head[17] = "";
    json_t *o = json_object();
    if (s->run.members > 0)
        hth_hex(s->run.head.b, 8, head);
    hth_json_text(o, "phase", hth_share_phase_name(s->run.phase));
    hth_json_count(o, "gathered", s->gathered);
    hth_json_count(o, "steps_shared", s->steps_shared);
    hth_json_count(o, "steps_alone", s->steps_alone);
    hth_json_count(o, "tries_failed", s->run.averages.failed);
    hth_json_text(o, "head", head);
    hth_json_count(o, "members", s->run.members);
    hth_json_count(o, "means", s->run.means);
    hth_json_count(o, "means_refused", s->means_refused);
    hth_json_count(o, "forks", s->run.forks);
    hth_json_count(o, "joined", s->run.joined);
    hth_json_count(o, "catch_ups", s->catch_ups);
    hth_json_count(o, "state_bytes", s->state_bytes);
    hth_json_real(o, "weight", s->weight);
    hth_json_real(o, "distance", s->distance);
    hth_json_real(o, "distance_relative", relative);
    hth_json_real(o, "averaged_ms", (double)s->run.averages.last.reduce_us / 1e3);
    hth_json_text(o, "news", s->run.fetch.news);
    return o;
}

static json_t *contributed_json(const struct hth_trainer *trainer)
{
    struct hth_contribution c;
    json_t *o = json_object();
    hth_trainer_contribution(trainer, &c);
    hth_json_count(o, "samples", c.samples);
    hth_json_count(o, "of", c.of);
    hth_json_count(o, "rank", c.rank);
    hth_json_count(o, "peers", c.peers);
    return o;
}

static json_t *reasons_json(const struct hth_averager_stats *s)
{
    json_t *reasons = json_object();
    for (unsigned i = 0; i < HTH_AVG_REASONS_MAX; i++)
        if (s->reasons[i] > 0)
            hth_json_count(reasons, hth_avg_reason_name((enum hth_avg_reason)i), s->reasons[i]);
    return reasons;
}

static json_t *averaging_json(const struct hth_together *t, const struct hth_train_stats *stats)
{
    struct hth_averager_stats a = {.rounds = 0};
    struct hth_roster_stats r;
    char shape[HTH_AVG_SHAPE_TEXT_MAX];
    json_t *all = stats != NULL ? share_json(&stats->share) : json_object();
    if (t->avg.roster == NULL)
        return all;
    if (stats != NULL)
        a = stats->share.run.averages;
    else if (t->helper != NULL)
        hth_helper_rounds(t->helper, &a);
    hth_roster_stats(t->avg.roster, &r);
    const struct hth_avg_shape *grid = &hth_roster_self(t->avg.roster)->shape;
    hth_json_count(all, "trainers", hth_roster_population(t->avg.roster, NULL));
    hth_json_count(all, "seen", r.seen);
    if (stats != NULL && stats->share.run.shape.dims > 0)
        grid = &stats->share.run.shape;
    hth_json_text(all, "grid", hth_avg_shape_text(grid, shape));
    hth_json_count(all, "rounds", a.rounds);
    hth_json_count(all, "rounds_failed", a.failed);
    hth_json_count(all, "rounds_alone", a.reasons[HTH_AVG_ALONE]);
    hth_json_count(all, "drops", a.drops);
    hth_json_count(all, "bytes_out", a.bytes_out);
    hth_json_count(all, "bytes_in", a.bytes_in);
    hth_json_count(all, "refused_notes", r.refused);
    hth_json_text(all, "refusal", r.refusal);
    if (t->trainer != NULL)
        hth_json_take(all, "contributed", contributed_json(t->trainer));
    hth_json_take(all, "reasons", reasons_json(&a));
    hth_json_take(all, "last", round_json(&a.last));
    return all;
}

char *hth_together_page(const struct hth_together *t, const struct hth_metrics *metrics,
                        const struct hth_train_stats *stats)
{
    char *numbers = hth_metrics_json(metrics);
    json_t *all = json_loads(numbers, 0, NULL);
    hth_free(numbers);
    if (!json_is_object(all)) {
        json_decref(all);
        all = json_object();
    }
    json_object_set_new(all, "averaging", averaging_json(t, stats));
    char *dumped = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(9));
    char *text = hth_strdup(dumped != NULL ? dumped : "{}");
    free(dumped);
    json_decref(all);
    return text;
}
