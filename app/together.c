/* SPDX-License-Identifier: Apache-2.0 */
#include "app/together.h"

#include "core/bytes.h"
#include "core/mem.h"
#include "trainer/helper.h"

#include <string.h>

#define BITS_PER_MBIT 1e6
/* OpenDHT keeps superseded notes for a while, and a newcomer is handed them all. */
#define TELL_LOCAL_US (2 * HTH_US_PER_S)
#define TELL_BATCH_US (1 * HTH_US_PER_S)

/* ---- life ---------------------------------------------------------------------------------- */

static void on_change(void *arg)
{
    struct hth_together *t = arg;
    if (t->trainer != NULL)
        hth_trainer_nudge(t->trainer);
    if (t->helper != NULL)
        hth_helper_nudge(t->helper);
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
    o.bandwidth = up_mbit * BITS_PER_MBIT;
    o.roster.group_max = run->group;
    o.roster.silent = true;
    o.roster.publish_min_us = run->mode == HTH_RUN_BATCH ? TELL_BATCH_US : TELL_LOCAL_US;
    if (run->grid != NULL)
        HTH_TRY(hth_avg_shape_parse(run->grid, &o.roster.shape));
    o.reducer.link_bytes_per_s = up_mbit * BITS_PER_MBIT / 8;
    o.reducer.clip = run->clip;
    o.moshpit.share_max = run->share_max;
    o.moshpit.budget = &peer->bodies;
    o.on_change = on_change;
    o.arg = t;
    HTH_TRY(hth_avg_peer_open(peer->env, peer->rpc, peer->dht, &o, &t->avg));
    peer->on_peer_lost = hth_avg_peer_lost;
    peer->on_peer_lost_arg = &t->avg;
    return HTH_OK;
}

/* What hth_together_open took from the run file and all must agree on. */
static uint64_t meeting(const struct hth_run_averaging *run)
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
    out->dht = t->peer->dht;
    out->network = t->peer->network;
    out->addr = t->peer->announce;
    out->every = run->every;
    out->states = run->states;
    out->meeting = meeting(run);
    out->format = (enum hth_quant_format)run->format;
    out->target = run->target;
    out->quorum = run->quorum;
    out->delayed = run->delayed;
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

/* ---- shown --------------------------------------------------------------------------------- */

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
    return json_pack("{s:I, s:i, s:s, s:i, s:o, s:i, s:s, s:s, s:f, s:f, s:f, s:f, s:I, s:I, s:f, "
                     "s:f}",
                     "number", (json_int_t)r->number, "axis", (int)r->axis, "group", group,
                     "members", (int)r->members, "peers", members, "drops", (int)r->drops, "reason",
                     hth_avg_reason_name(r->reason), "error", hth_err_name(r->err),
                     "weight_fraction", r->weight_fraction, "wait_ms", (double)r->wait_us / 1e3,
                     "match_ms", (double)r->match_us / 1e3, "reduce_ms", (double)r->reduce_us / 1e3,
                     "bytes_out", (json_int_t)r->bytes_out, "bytes_in", (json_int_t)r->bytes_in,
                     "change", r->change, "codec_error", r->codec_error);
}

static json_t *share_json(const struct hth_share_stats *s)
{
    double relative = s->norm > 0 ? s->distance / s->norm : 0;
    return json_pack(
        "{s:s, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:f, s:f, s:f, "
        "s:f, s:s}",
        "phase", hth_share_phase_name(s->phase), "gathered", (json_int_t)s->gathered, "known",
        s->known, "eta_s", s->eta_us == INT64_MAX ? -1.0 : (double)s->eta_us / 1e6, "steps_shared",
        (json_int_t)s->steps_shared, "steps_alone", (json_int_t)s->steps_alone, "below_quorum",
        (json_int_t)s->below_quorum, "short_of", (json_int_t)s->short_of, "tries_failed",
        (json_int_t)s->tries_failed, "catch_ups", (json_int_t)s->catch_ups, "yields",
        (json_int_t)s->yields, "overtaken", (json_int_t)s->overtaken, "approximate",
        (int)s->approximate, "state_bytes", (json_int_t)s->state_bytes, "weight", s->weight,
        "distance", s->distance, "distance_relative", relative, "averaged_ms",
        (double)s->averaged_us / 1e3, "news", s->news);
}

static json_t *reasons_json(const struct hth_averager_stats *s)
{
    json_t *reasons = json_object();
    for (unsigned i = 0; i < HTH_AVG_REASONS_MAX; i++)
        if (s->reasons[i] > 0)
            json_object_set_new(reasons, hth_avg_reason_name((enum hth_avg_reason)i),
                                json_integer((json_int_t)s->reasons[i]));
    return reasons;
}

void hth_together_last(const struct hth_together *t, struct hth_avg_round_info *out)
{
    struct hth_averager_stats a = {.last = {.weight_fraction = 0}};
    if (t->avg.averager.ops != NULL)
        hth_averager_stats(&t->avg.averager, &a);
    *out = a.last;
}

static json_t *averaging_json(const struct hth_together *t, const struct hth_train_stats *stats)
{
    struct hth_averager_stats a;
    struct hth_roster_stats r;
    char shape[HTH_AVG_SHAPE_TEXT_MAX];
    uint32_t generation;
    json_t *all = stats != NULL ? share_json(&stats->share) : json_object();
    if (t->avg.roster == NULL)
        return all;
    hth_averager_stats(&t->avg.averager, &a);
    hth_roster_stats(t->avg.roster, &r);
    const struct hth_avg_shape *grid = hth_roster_shape(t->avg.roster, &generation);
    json_object_update_new(
        all,
        json_pack("{s:i, s:i, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:o, s:o}",
                  "trainers", (int)hth_roster_population(t->avg.roster, NULL), "seen", (int)r.seen,
                  "grid", generation > 0 ? hth_avg_shape_text(grid, shape) : "", "generation",
                  (int)generation, "rounds", (json_int_t)a.rounds, "rounds_failed",
                  (json_int_t)a.failed, "rounds_alone", (json_int_t)a.alone, "drops",
                  (json_int_t)a.drops, "bytes_out", (json_int_t)a.bytes_out, "bytes_in",
                  (json_int_t)a.bytes_in, "refused_notes", (json_int_t)r.refused, "refusal",
                  r.refusal, "reasons", reasons_json(&a), "last", round_json(&a.last)));
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
