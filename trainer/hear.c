/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hear.c: going along with the others' steps while the state is on its way.
 *
 * A state is of the step that was taken last when a donor copied it. When it has come the others
 * may have taken the next one; so who fetches it *listens*: it takes part in the others' averages
 * without bringing anything, judges them as they do, and keeps those that they step on. The state
 * of step s and the averages of s, s + 1, .. make what the others are.
 *
 *     others   s --------------> s+1 -------------> s+2 ----
 *     state      '-- copy of s ----------------.     |
 *     heard          '-- average of s   '-- average of s+1
 *     newcomer                             s, s+1,  s+2: trains
 *
 * What is kept is bounded (HTH_HEARD_MAX averages, 4 bytes a parameter each, from the trainer's
 * budget). A step that was missed begins the log anew, and a state that is older than it is of no
 * use. A wrong guess of what the others did is healed as any other parting: by the vote on lineages
 * (lineage.h).
 */
#include <math.h>
#include <string.h>

#include "averaging/roster.h"
#include "core/budget.h"
#include "trainer/trainer_int.h"

#define AGAIN_US (100 * HTH_US_PER_MS) /* after a look in vain */
#define STILL_US (2 * HTH_US_PER_S)    /* then the others did not step on what was heard */

static bool is_on(const struct hth_trainer *t)
{
    enum hth_boot boot = t->newcomer.boot;

    return t->batch.on && t->opts.share.roster != NULL &&
           (boot == HTH_BOOT_FETCH || boot == HTH_BOOT_LAND);
}

static size_t mean_bytes(const struct hth_trainer *t)
{
    return hth_params_flat_len(t->model->params) * sizeof(float);
}

/* ---- what was heard -------------------------------------------------------------------------- */

static uint64_t next_of(const struct hth_hearing *h)
{
    return h->first + h->count;
}

static void forget_last(struct hth_trainer *t)
{
    struct hth_hearing *h = &t->hearing;

    hth_blob_unref(h->log[--h->count].mean);
    if (t->opts.budget != NULL)
        hth_budget_give(t->opts.budget, mean_bytes(t));
}

static void clear_log(struct hth_trainer *t)
{
    while (t->hearing.count > 0)
        forget_last(t);
}

void hth_hear_clear(struct hth_trainer *t)
{
    clear_log(t);
    t->hearing.step = 0;
    t->hearing.can = false;
}

/* The others went on from that step, and what was heard does not lead there. */
static void miss(struct hth_trainer *t, uint64_t step)
{
    struct hth_hearing *h = &t->hearing;

    h->missed = HTH_MAX(h->missed, step);
    h->missed_us = hth_now_us(t->env);
    if (h->count > 0 && next_of(h) <= h->missed)
        clear_log(t);
}

/* Not in the place of the state, whose room is taken when it is found. */
static bool is_room(const struct hth_trainer *t)
{
    struct hth_budget *budget = t->opts.budget;
    size_t state = t->newcomer.boot == HTH_BOOT_LAND ? 0 : hth_run_state_bytes(t);
    struct hth_state_progress progress = {0};

    if (budget == NULL)
        return true;
    if (t->newcomer.fetch != NULL)
        hth_state_fetch_progress(t->newcomer.fetch, &progress);
    if (progress.step != 0)
        state = 0;
    if (hth_budget_take(budget, mean_bytes(t) + state) != HTH_OK)
        return false;
    hth_budget_give(budget, state);
    return true;
}

static void keep(struct hth_trainer *t, uint64_t step, const struct hth_avg_result *r)
{
    struct hth_hearing *h = &t->hearing;

    if (h->count > 0 && step < next_of(h))
        return;
    if (h->count > 0 && step > next_of(h))
        clear_log(t);
    if (h->count == HTH_HEARD_MAX || !is_room(t)) {
        HTH_LOG(t->env, HTH_INFO, HTH_SUB_TRAIN, "no room to keep the average of step %llu",
                (unsigned long long)step);
        return;
    }
    if (h->count == 0)
        h->first = step;
    h->log[h->count++] = (struct hth_heard){
        .mean = hth_blob_ref(r->average), .weight = r->weight, .origin = r->origin, .finite = true};
    h->heard_us = hth_now_us(t->env);
    t->stats.share.heard++;
}

uint64_t hth_hear_since(const struct hth_trainer *t)
{
    return t->hearing.count > 0 ? t->hearing.first : t->hearing.missed + 1;
}

/* ---- listening ------------------------------------------------------------------------------- */

/* Notes cost nothing, and alone say nothing of a step that is beyond all that spoke to us. */
static uint64_t spoken_of(const struct hth_roster *r)
{
    const struct hth_roster_peer *p;
    uint64_t step = 0;
    bool any = false;

    for (uint32_t i = 0; (p = hth_roster_at(r, i)) != NULL; i++) {
        if (p->spoke_us == 0 || p->doubted || p->note.schema != hth_roster_self(r)->schema)
            continue;
        any = true;
        step = HTH_MAX(step, p->step);
    }
    return any ? step : UINT64_MAX;
}

/* Above that one, as half of them, and two, say. */
static uint64_t reached(const struct hth_trainer *t, uint64_t above)
{
    const struct hth_roster *r = t->opts.share.roster;

    return HTH_MIN(hth_roster_reached(r, above, 2, 2), HTH_MAX(spoken_of(r), above));
}

/* Where most are; notes are late, and after an average that all step on they are believed to. */
static uint64_t step_of_run(struct hth_trainer *t)
{
    struct hth_hearing *h = &t->hearing;
    uint64_t step = reached(t, 0);

    if (h->count == 0 || step >= next_of(h))
        return step;
    if (step + 1 < next_of(h) || hth_now_us(t->env) - h->heard_us < STILL_US)
        return next_of(h);
    forget_last(t);
    return step;
}

/* Where samples are gathered while others are averaged, most have gone on to the next ones. */
static bool is_batch_near(const struct hth_trainer *t)
{
    const struct hth_roster *r = t->opts.share.roster;
    struct hth_roster_batch all;

    hth_roster_batch(r, t->hearing.step, t->opts.share.target, &all);
    return all.eta_us <= t->opts.share.prepare_us ||
           (t->opts.share.delayed && 2 * all.ahead >= hth_roster_population(r, NULL));
}

static bool is_out(const struct hth_hearing *h, uint64_t step)
{
    bool out = false;

    for (uint32_t i = 0; i < HTH_HEARING_LOOKS; i++)
        out |= h->look[i].out && h->look[i].step == step;
    return out;
}

static void look(struct hth_trainer *t)
{
    struct hth_hearing *h = &t->hearing;
    struct hth_avg_offer o = hth_batch_make_offer(t);
    uint32_t i = 0;
    enum hth_err err;

    while (i < HTH_HEARING_LOOKS && h->look[i].out)
        i++;
    if (i == HTH_HEARING_LOOKS)
        return;
    o.values = NULL;
    o.weight = 0;
    o.step = o.sweep = h->step;
    o.ticket = HTH_TICKET_HEARD + i;
    err = hth_averager_offer(&t->average.averager, &o);
    h->look[i] = (struct hth_hearing_look){.out = err == HTH_OK, .step = h->step};
    h->can = err == HTH_OK;
    h->rest = h->rest && h->can; /* a state that is here does not wait for it */
    if (err != HTH_OK) {
        HTH_LOG(t->env, HTH_DEBUG, HTH_SUB_TRAIN, "step %llu can't be listened to: %s",
                (unsigned long long)h->step, hth_err_text(err));
        h->again_us = hth_now_us(t->env) + AGAIN_US;
    }
}

static void go_to(struct hth_trainer *t, uint64_t step)
{
    struct hth_hearing *h = &t->hearing;
    bool heard = h->count > 0 && next_of(h) == step;

    if (h->step != 0 && step > h->step && !heard && !is_out(h, step - 1))
        miss(t, step - 1);
    h->step = step;
    h->rest = false;
    h->again_us = 0;
    hth_batch_follow(t);
}

static void follow(struct hth_trainer *t)
{
    struct hth_hearing *h = &t->hearing;
    uint64_t step = step_of_run(t);
    bool missed;

    if (step == 0 || step >= t->opts.updates_max) /* who is done takes no further step */
        return;
    if (step != h->step)
        go_to(t, step);
    h->missed = HTH_MIN(h->missed, step + 1); /* who said a later step is not believed any more */
    missed = step <= h->missed && hth_now_us(t->env) - h->missed_us < STILL_US;
    if (hth_now_us(t->env) >= h->again_us && !missed && !is_out(h, step) && is_batch_near(t))
        look(t);
}

/* Beside a state that is here it only hears what it has begun to. */
void hth_hear_pump(struct hth_trainer *t)
{
    struct hth_hearing *h = &t->hearing;

    if (!is_on(t) || h->count == HTH_HEARD_MAX ||
        hth_roster_population(t->opts.share.roster, NULL) < 2)
        return;
    if (t->newcomer.boot == HTH_BOOT_FETCH)
        follow(t);
    else if (h->rest && !is_out(h, h->step))
        look(t);
}

/* Of a step that the others have left the average says whether it is the one that they took. */
static enum hth_verdict judge(struct hth_trainer *t, const struct hth_avg_result *r, uint64_t step)
{
    if (r->err != HTH_OK || r->parts_kept > 0 || r->average == NULL ||
        r->average->size != mean_bytes(t))
        return HTH_VERDICT_AGAIN;
    if (step == t->hearing.step)
        return hth_batch_judge(t, r);
    return r->weight_met + 0.5 >= (double)t->opts.share.target ? HTH_VERDICT_STEP
                                                               : HTH_VERDICT_AGAIN;
}

void hth_hear_result(struct hth_trainer *t, const struct hth_avg_result *r)
{
    struct hth_hearing *h = &t->hearing;
    struct hth_hearing_look *from = &h->look[r->ticket - HTH_TICKET_HEARD];
    enum hth_verdict verdict;

    from->out = false;
    if (!is_on(t))
        return;
    verdict = judge(t, r, from->step);
    HTH_LOG(t->env, HTH_DEBUG, HTH_SUB_TRAIN, "listened to step %llu: %s; %.0f samples of %u",
            (unsigned long long)from->step, hth_avg_reason_text(r->reason), r->weight, r->heads);
    if (verdict == HTH_VERDICT_STEP)
        keep(t, from->step, r);
    if (verdict == HTH_VERDICT_AGAIN && (from->step < h->step || r->reason == HTH_AVG_BEGUN))
        miss(t, from->step);
    if (from->step == h->step) {
        h->rest = verdict == HTH_VERDICT_REST;
        if (verdict == HTH_VERDICT_STEP)
            hth_batch_follow(t);
        if (verdict == HTH_VERDICT_AGAIN) {
            t->batch.tries++;
            t->batch.lines = 0;
            h->again_us = hth_now_us(t->env) + AGAIN_US;
        }
    }
    hth_timer_set(t->env, t->newcomer.timer, 0);
}

/* ---- for a state ----------------------------------------------------------------------------- */

static uint64_t leads_to(const struct hth_hearing *h, uint64_t step)
{
    return h->count > 0 && step >= h->first ? HTH_MAX(next_of(h), step) : step;
}

bool hth_hear_is_about_to(const struct hth_trainer *t, uint64_t step)
{
    uint64_t next = leads_to(&t->hearing, step);

    if (next >= t->opts.updates_max || hth_roster_population(t->opts.share.roster, NULL) < 2)
        return false;
    return is_out(&t->hearing, next) ||
           (t->hearing.step == next && t->hearing.rest && t->hearing.count < HTH_HEARD_MAX);
}

bool hth_hear_is_late(const struct hth_trainer *t, uint64_t step)
{
    uint64_t next = leads_to(&t->hearing, step);

    if (!t->hearing.can || is_out(&t->hearing, next))
        return false;
    return next <= t->hearing.missed || reached(t, next) > next;
}

enum hth_err hth_hear_step(struct hth_trainer *t, uint64_t step)
{
    struct hth_hearing *h = &t->hearing;

    for (uint32_t i = 0; i < h->count && step >= h->first; i++) {
        struct hth_heard *e = &h->log[i];
        enum hth_err err;

        if (h->first + i < step)
            continue;
        err = hth_step_trunk(t, (const float *)e->mean->data, &e->grad_norm, &e->lr);
        if (err != HTH_OK && err != HTH_E_NOT_FINITE)
            return err;
        e->finite = err == HTH_OK;
    }
    return HTH_OK;
}

void hth_hear_count(struct hth_trainer *t)
{
    struct hth_hearing *h = &t->hearing;

    for (uint32_t i = 0; i < h->count && t->stats.updates >= h->first; i++) {
        const struct hth_heard *e = &h->log[i];

        if (h->first + i < t->stats.updates)
            continue;
        t->stats.flights_not_finite += !e->finite;
        t->stats.share.weight = e->weight;
        hth_count_update(t, (uint64_t)llround(e->weight), e->grad_norm, e->lr);
        hth_lineage_add(&t->lineage, t->stats.updates, e->origin);
        hth_tell_update(t);
    }
    hth_hear_clear(t);
}
