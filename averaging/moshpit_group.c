/* SPDX-License-Identifier: Apache-2.0 */
/* moshpit_group.c: one round of a sweep: from the look that ended to the values that came of it. */
#include <stdlib.h>
#include <string.h>

#include "averaging/match_msg.h"
#include "averaging/moshpit_int.h"
#include "core/bytes.h"
#include "core/mem.h"

#define ORIGIN_SEED UINT64_C(0x6f726967696e)

/* ---- statistics ------------------------------------------------------------------------------ */

void hth_sweep_count(struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;
    struct hth_averager_stats *st = &mp->stats;
    struct hth_avg_round_info *info = &s->info;
    bool ok = info->err == HTH_OK;

    st->bytes_out += info->bytes_out;
    st->bytes_in += info->bytes_in;
    s->result.rounds += ok;
    if (s->is_proxy)
        return;
    if (ok || info->reason == HTH_AVG_ALONE)
        mp->alone_in[hth_avg_axis(&s->shape, info->number)] = ok ? 0 : s->generation;
    st->rounds += ok;
    st->failed += !ok;
    st->alone += info->reason == HTH_AVG_ALONE;
    st->drops += info->drops;
    if (info->reason < HTH_AVG_REASONS_MAX)
        st->reasons[info->reason]++;
    st->last = *info;
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

/* ---- reducing ------------------------------------------------------------------------------- */

static void judge_fates(struct moshpit_sweep *s, const struct hth_reduce_result *r)
{
    for (uint32_t i = 0; i < r->members && i < s->group->count; i++) {
        enum hth_reduce_drop drop = r->fates[i].as_sender;
        if (i != s->group->self && r->fates[i].as_reducer == HTH_REDUCE_DROP_REFUSED)
            hth_refusers_add(&s->mp->refusers, &s->group->member[i].id, hth_now_us(s->env));
        if (drop == HTH_REDUCE_DROP_NONE)
            drop = r->fates[i].as_reducer;
        if (i == s->group->self || drop == HTH_REDUCE_DROP_NONE ||
            drop == HTH_REDUCE_DROP_NOT_FINITE)
            continue;
        hth_moshpit_suspect(s->mp, &s->group->member[i].id);
    }
}

/* Trainers whose values are in all parts of this round's average. Who was left out of some may be
 * in another one; in parts that kept local values is nobody but this member. */
static uint32_t heads_of(const struct hth_avg_group *g, const struct hth_reduce_result *r)
{
    uint32_t heads = 0;

    for (uint32_t i = 0; i < g->count; i++) {
        bool counts = g->member[i].weight > 0 && r->fates[i].parts_missing == 0 &&
                      (r->parts_kept == 0 || i == g->self);

        for (uint32_t j = 0; j < i && counts && g->member[i].origin != 0; j++)
            counts = g->member[j].origin != g->member[i].origin || g->member[j].weight == 0 ||
                     r->fates[j].parts_missing > 0;
        heads += counts ? 1 + g->member[i].others : 0;
    }
    return heads;
}

/* Whose values are in the average of this round. Who was left out of some of the parts makes it
 * another one than that of the members, for all of the group; parts that kept local values, for
 * this member alone. */
static uint64_t origin_of(const struct moshpit_sweep *s, const struct hth_reduce_result *r)
{
    uint64_t origin = s->origin_met, group = hth_load_u64le(s->group->id.b);

    for (uint32_t i = 0; i < r->members; i++) {
        const uint64_t numbers[3] = {group, i, r->fates[i].parts_missing};

        if (r->fates[i].parts_missing > 0)
            origin = hth_hash64(numbers, sizeof(numbers), origin);
    }
    if (r->parts_kept > 0)
        origin = hth_hash64(&origin, sizeof(origin), hth_sweep_origin(&s->env->self));
    return origin + (origin == 0);
}

static void on_reduced(void *arg, const struct hth_reduce_result *r)
{
    struct moshpit_sweep *s = arg;
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
    info->codec_error = r->encode_error;
    if (r->err == HTH_OK && !helper && r->average == NULL) {
        info->err = HTH_E_BUG;
        info->reason = HTH_AVG_FAILED;
    }
    if (info->err == HTH_OK) {
        if (!s->observes)
            judge_fates(s, r);
        s->result.weight_fraction *= r->weight_fraction;
        s->result.codec_error = HTH_MAX(s->result.codec_error, r->encode_error);
        if (!helper) {
            hth_blob_unref(s->values);
            s->values = hth_blob_ref(r->average);
            s->weight = HTH_MIN(r->weight, (double)HTH_AVG_WEIGHT_MAX);
            s->origin = origin_of(s, r);
            s->heads = heads_of(s->group, r);
            s->result.parts_kept += r->parts_kept;
        }
    }
    hth_free(s->met);
    s->met = s->group;
    s->group = NULL;
    hth_sweep_round_over(s);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Who did not say how fast it is counts as the lower median of those who did, which one claim can't
 * move far. */
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
                                .same = s->offer.same,
                                .share_max = s->mp->opts.share_max,
                                .timeout_us = hth_sweep_round_us(s),
                                .done = on_reduced,
                                .arg = s};
    double usual = usual_bandwidth(g);
    enum hth_err err;

    for (uint32_t i = 0; i < g->count; i++) {
        members[i].id = g->member[i].id;
        members[i].addr = g->member[i].addr;
        members[i].weight = g->member[i].weight;
        members[i].bandwidth = g->member[i].bandwidth;
        members[i].origin = g->member[i].origin;
        if (hth_avg_mode_reduces(g->member[i].mode) && g->member[i].bandwidth == 0)
            members[i].bandwidth = usual;
    }
    err = hth_reduce_start(s->mp->reducer, &o, &s->reduce);
    hth_free(members);
    /* Who died while the group began is not waited for once more. */
    for (uint32_t i = 0; i < s->lost_count && err == HTH_OK; i++)
        hth_reducer_peer_lost(s->mp->reducer, &s->lost[i]);
    for (uint32_t i = 0; i < g->count && err == HTH_OK; i++)
        if (hth_moshpit_is_lost(s->mp, &g->member[i].id, s->look_us))
            hth_reducer_peer_lost(s->mp->reducer, &g->member[i].id);
    return err;
}

uint64_t hth_sweep_origin(const struct hth_peer_id *id)
{
    uint64_t hash = hth_hash64(id->b, sizeof(id->b), ORIGIN_SEED);

    return hash != 0 ? hash : 1;
}

/* Members with the same origin bring one group's mean, and share its weight. Returns the origin of
 * what they all will have. */
static uint64_t share_weights(struct hth_avg_group *g)
{
    uint32_t alike[HTH_AVG_MEMBERS_MAX] = {0};
    uint64_t origin = 0;

    for (uint32_t i = 0; i < g->count; i++) {
        bool first = g->member[i].weight > 0;

        for (uint32_t j = 0; j < g->count; j++) {
            if (g->member[j].weight == 0 || g->member[j].origin != g->member[i].origin)
                continue;
            alike[i]++;
            first &= j >= i;
        }
        origin ^= first ? g->member[i].origin : 0;
    }
    for (uint32_t i = 0; i < g->count; i++)
        if (g->member[i].origin != 0 && alike[i] > 1)
            g->member[i].weight /= alike[i];
    return origin;
}

static void note_group(struct moshpit_sweep *s, const struct hth_look_result *r)
{
    struct hth_avg_round_info *info = &s->info;
    struct hth_avg_group *g = r->group;

    s->origin_met = share_weights(g);

    info->members = g->count;
    info->group = g->id;
    s->result.weight_met = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        if (i < HTH_AVG_STATUS_MEMBERS)
            info->member[i] = g->member[i].id;
        if (g->member[i].weight > 0)
            s->result.step_max = HTH_MAX(s->result.step_max, g->member[i].step);
        s->result.weight_met += g->member[i].weight;
        if (g->member[i].mode != HTH_AVG_OBSERVER)
            hth_roster_heard(s->mp->roster, &g->member[i].id, 0);
    }
}

/* Where cells move, the one after this round follows from the group's order alone. */
static void move(struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;

    if (s->offer.sweep == HTH_AVG_SWEEP_AUTO && !s->is_proxy) {
        mp->round_met = HTH_MAX(mp->round_met, s->round + 1);
        hth_roster_set_round(mp->roster, s->round + 1);
    }
    if (!s->moves)
        return;
    hth_avg_cell_next(&s->shape, s->round, &s->group->id, s->group->self, &s->cell);
    if (hth_roster_set_cell(mp->roster, s->generation, &s->cell) != HTH_OK)
        HTH_LOG(s->env, HTH_DEBUG, HTH_SUB_AVG, "the grid changed during a round");
}

void hth_sweep_on_look(void *arg, const struct hth_look_result *r)
{
    struct moshpit_sweep *s = arg;
    struct hth_avg_round_info *info = &s->info;
    enum hth_err err;

    s->look = NULL;
    hth_moshpit_looked(s, r->err == HTH_OK);
    s->mp->full_lines += s->observes && (r->reason == HTH_AVG_FULL || r->reason == HTH_AVG_BEGUN);
    if (s->offered && !s->is_proxy && !s->observes)
        hth_moshpit_look_over(s, r);
    memset(info, 0, sizeof(*info));
    info->number = s->round;
    info->axis = hth_avg_axis(&s->shape, s->round);
    info->wait_us = r->wait_us;
    info->match_us = r->match_us;
    if (r->err != HTH_OK) {
        if (s->offered && !s->is_proxy && !s->observes && !hth_peer_id_is_zero(&r->kept_by))
            hth_refusers_add(&s->mp->refusers, &r->kept_by, hth_now_us(s->env));
        if (s->offered && !s->is_proxy && !s->observes && hth_map_count(s->mp->suspects) > 0)
            hth_roster_seek(s->mp->roster);
        if (s->offer.sweep == HTH_AVG_SWEEP_AUTO && !s->is_proxy)
            hth_roster_set_round(s->mp->roster, s->round + 1);
        hth_free(s->met);
        s->met = NULL;
        s->round++;
        if (!s->offered) { /* what was prepared was never offered */
            s->info.err = r->err;
            s->info.reason = r->reason;
            hth_sweep_count(s);
            hth_sweep_end_soon(s);
            return;
        }
        hth_sweep_round_failed(s, r->err == HTH_E_TIMEOUT ? HTH_E_NOT_FOUND : r->err, r->reason);
        return;
    }
    if (!s->is_proxy)
        hth_roster_sought(s->mp->roster);
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
        hth_sweep_round_failed(s, err, HTH_AVG_FAILED);
        return;
    }
    if (s->done_rounds + 1 < s->rounds) {
        hth_sweep_look_on(s);
        hth_proxy_start(s, s->group, s->group->line.round, false);
    }
}
