/* SPDX-License-Identifier: Apache-2.0 */
/* share.c: what a trainer publishes in its roster record, and what it reports about sharing. */
#include "averaging/roster.h"
#include "averaging/state.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "trainer/trainer_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TELL_STEPS_US (3 * HTH_US_PER_S)

double hth_share_rate(const struct hth_batch *b)
{
    return b->s_per_sample > 0 ? b->s_weight / b->s_per_sample : 0;
}

/* Publishes the step of a trainer that steps by itself. No other trainer waits for it, so that
 * every TELL_STEPS_US is often enough. */
static void tell_steps(struct hth_trainer *t, struct hth_roster *r)
{
    int64_t now = hth_now_us(t->env);

    if (t->told_us != 0 && now - t->told_us < TELL_STEPS_US)
        return;
    t->told_us = now;
    hth_roster_set_progress(r, t->stats.updates, 0, t->stats.samples_per_s);
}

/* Time that the rest of an evaluation takes at most, as its flights start first. A step is
 * published before the evaluation that follows it begins. */
static int64_t evaluates_us(const struct hth_trainer *t, int64_t apart_us)
{
    uint64_t left = hth_eval_left(t);

    return (int64_t)((left + t->opts.micro_batch - 1) / t->opts.micro_batch) * apart_us;
}

/* Publishes when micro-batches land: at intervals by its speed, those included that will start
 * soon. With `delayed` they land through the steps as well, but not through evaluations. */
void hth_share_tell_landings(const struct hth_trainer *t)
{
    const struct hth_batch *b = &t->batch;
    bool delayed = t->opts.share.delayed;
    double rate = hth_share_rate(b);
    int64_t now = hth_now_us(t->env), next_us = INT64_MAX, apart_us, eval_us = 0;

    if ((b->phase == HTH_BATCH_GATHER || delayed) && rate > 0) {
        apart_us = (int64_t)(1e6 * t->opts.micro_batch / rate);
        eval_us = evaluates_us(t, apart_us);
        next_us = t->training > 0 && eval_us == 0 ? HTH_MAX(b->landed_us + apart_us, now)
                                                  : now + apart_us + eval_us;
    }
    hth_roster_set_landings(t->opts.share.roster, delayed && eval_us == 0 ? 0 : t->opts.micro_batch,
                            next_us);
}

void hth_share_tell(struct hth_trainer *t)
{
    struct hth_roster *r = t->opts.share.roster;
    const struct hth_batch *b = &t->batch;
    bool next = t->opts.share.delayed && b->phase != HTH_BATCH_GATHER;
    uint32_t flags;

    if (r == NULL || t->collab != NULL)
        return;
    flags = hth_roster_self(r)->flags & ~HTH_ROSTER_OVERLAPS;
    hth_roster_set_flags(r, flags | (b->on && next ? HTH_ROSTER_OVERLAPS : 0));
    if (b->on) {
        struct hth_roster_marks marks;

        hth_lineage_say(&t->lineage, &marks);
        hth_roster_set_marks(r, &marks);
        hth_share_tell_landings(t);
    }
    if (!b->on)
        tell_steps(t, r);
    else if (next || b->phase == HTH_BATCH_GATHER)
        hth_roster_set_progress(r, t->stats.updates + next, b->samples, hth_share_rate(b));
    else /* while the taken samples are averaged */
        hth_roster_set_progress(r, t->stats.updates, b->taken, hth_share_rate(b));
}

uint32_t hth_share_parts(const struct hth_model *model, bool states)
{
    return 1 + (states ? HTH_MIN(hth_params_state_slots(model->params), 2u) : 0);
}

enum hth_err hth_share_spans(const struct hth_model *model, enum hth_quant_format format,
                             uint32_t parts, struct hth_avg_span **out, uint32_t *count)
{
    size_t n = hth_params_flat_len(model->params);
    struct hth_avg_span *spans;

    *out = NULL;
    *count = 0;
    if (format == 0 || format == HTH_QUANT_F32)
        return HTH_OK;
    HTH_TRY(hth_avg_spans_of(model->params, format, &spans, count));
    *out = hth_new_array(struct hth_avg_span, *count + 1);
    memcpy(*out, spans, *count * sizeof(*spans));
    (*out)[*count] = (struct hth_avg_span){.count = (parts - 1) * n, .format = HTH_QUANT_F32};
    hth_free(spans);
    return HTH_OK;
}

void hth_share_tell_last(struct hth_roster *roster, const struct hth_averager *averager,
                         const struct hth_avg_result *r, double distance, double norm)
{
    struct hth_averager_stats stats;
    struct hth_roster_last last = {.members = HTH_MIN(r->members, HTH_AVG_MEMBERS_MAX),
                                   .drops = HTH_MIN(r->drops, HTH_AVG_MEMBERS_MAX),
                                   .reason = r->reason,
                                   .wait_ms = (uint32_t)(r->wait_us / HTH_US_PER_MS),
                                   .match_ms = (uint32_t)(r->match_us / HTH_US_PER_MS),
                                   .reduce_ms = (uint32_t)(r->reduce_us / HTH_US_PER_MS),
                                   .bytes = r->bytes_out + r->bytes_in,
                                   .change = distance,
                                   .norm = norm,
                                   .weight_fraction = HTH_MIN(r->weight_fraction, 1.0)};

    if (roster == NULL)
        return;
    hth_averager_stats(averager, &stats);
    if (r->err == HTH_OK)
        last.group = hth_load_u32le(stats.last.group.b);
    if (isfinite(last.change) && isfinite(last.norm))
        hth_roster_set_last(roster, &last);
}

void hth_share_tell_round(struct hth_roster *roster, const struct hth_avg_round_info *round)
{
    const struct hth_roster_last last = {
        .group = hth_load_u32le(round->group.b),
        .members = HTH_MIN(round->members, HTH_AVG_MEMBERS_MAX),
        .drops = HTH_MIN(round->drops, HTH_AVG_MEMBERS_MAX),
        .reason = round->reason,
        .reduce_ms = (uint32_t)(round->reduce_us / HTH_US_PER_MS),
        .bytes = round->bytes_out + round->bytes_in,
        .weight_fraction = HTH_MIN(round->weight_fraction, 1.0)};

    if (roster != NULL)
        hth_roster_set_last(roster, &last);
}

const char *hth_share_phase_name(enum hth_share_phase phase)
{
    static const char *const names[] = {
        [HTH_SHARE_ALONE] = "alone",
        [HTH_SHARE_LOOKING] = "looking for others",
        [HTH_SHARE_FETCHING] = "fetching the run's state",
        [HTH_SHARE_TRAINING] = "training",
        [HTH_SHARE_AVERAGING] = "averaging",
        [HTH_SHARE_STEPPING] = "stepping",
        [HTH_SHARE_AGAIN] = "waiting to average again",
    };

    return (size_t)phase < HTH_ARRAY_LEN(names) ? names[phase] : "?";
}

static enum hth_share_phase phase_of(const struct hth_trainer *t)
{
    if (t->collab != NULL)
        return hth_shared_phase(t);
    switch (t->newcomer.boot) {
    case HTH_BOOT_READY:
        break;
    case HTH_BOOT_LOOK:
        return HTH_SHARE_LOOKING;
    default:
        return HTH_SHARE_FETCHING;
    }
    if (t->opts.share.roster == NULL)
        return HTH_SHARE_ALONE;
    switch (t->batch.phase) {
    case HTH_BATCH_TAKE:
    case HTH_BATCH_AVERAGE:
        return HTH_SHARE_AVERAGING;
    case HTH_BATCH_STEP:
        return HTH_SHARE_STEPPING;
    case HTH_BATCH_AGAIN:
        return HTH_SHARE_AGAIN;
    default:
        return HTH_SHARE_TRAINING;
    }
}

static void add_states(const struct hth_newcomer *n, const struct hth_hearing *heard,
                       struct hth_share_stats *out)
{
    struct hth_state_progress fetched;
    struct hth_state_donor_stats given;

    if (n->fetch != NULL) {
        hth_state_fetch_progress(n->fetch, &fetched);
        out->parts = fetched.parts;
        out->parts_done = fetched.parts_done;
    }
    if (n->boot != HTH_BOOT_READY && heard->count > 0 && out->parts > 0)
        snprintf(out->news, sizeof(out->news),
                 "%u of %u chunks of the state; receives averages since step %llu, "
                 "%u of them kept",
                 out->parts_done, out->parts, (unsigned long long)heard->first, heard->count);
    if (n->donor != NULL) {
        hth_state_donor_stats(n->donor, &given);
        out->given_bytes = given.bytes;
    }
}

static bool tells_more(const struct hth_lineage_standing *a, const struct hth_lineage_standing *b)
{
    return a->step > b->step || (a->step == b->step && a->alike + a->unlike > b->alike + b->unlike);
}

void hth_share_stats(const struct hth_trainer *t, struct hth_share_stats *out)
{
    struct hth_lineage_standing standing;
    struct hth_roster_batch all;

    *out = t->stats.share;
    if (t->collab != NULL)
        hth_shared_stats(t, out);
    else
        add_states(&t->newcomer, &t->hearing, out);
    out->phase = phase_of(t);
    out->approximate = t->newcomer.approximate;
    out->gathered = t->batch.samples;
    if (!t->batch.on || t->opts.share.roster == NULL || t->collab != NULL)
        return;
    hth_roster_batch(t->opts.share.roster, t->stats.updates, t->opts.share.target, &all);
    out->known = all.samples;
    out->eta_us = all.eta_us;
    hth_newcomer_stands(t, &standing);
    if (!tells_more(&standing, &t->stood))
        standing = t->stood;
    out->milestone_step = standing.step;
    out->milestone_digest = standing.mark;
    out->alike = standing.alike;
    out->unlike = standing.unlike;
}
