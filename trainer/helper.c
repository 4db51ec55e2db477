/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/helper.h"

#include <stdlib.h>

#include "averaging/codec.h"
#include "averaging/roster.h"
#include "collab/helper.h"
#include "core/mem.h"
#include "kernels/params.h"
#include "trainer/trainer_int.h"

#define POLL_US  (100 * HTH_US_PER_MS)
#define AGAIN_US (250 * HTH_US_PER_MS) /* after a matching that found no group */
#define STILL_US (500 * HTH_US_PER_MS) /* after an average that no trainer stepped on */

/* Offers that may be out at once. There are two for gradients: when the group of the next step
 * meets, the offer for a step whose group the helper missed may not have ended yet. */
enum { PARAMS, GRADIENT, GRADIENT_TOO, ERRANDS };
struct errand {
    bool out;
    uint64_t step;
};

struct hth_helper {
    struct hth_env *env;
    struct hth_roster *roster;
    struct hth_averager *averager;
    struct hth_share_opts share;
    struct hth_roll_helper *roll; /* NULL: not by roll call */
    struct hth_model *model;
    struct hth_settings settings;
    uint32_t parts; /* buffers in an offer of parameters: values and states */
    struct hth_avg_span *spans;
    uint32_t span_count;
    struct hth_timer *timer;
    struct errand errand[ERRANDS];
    int64_t again_us; /* no further offer before this time */
    bool resting;
    bool params_wanted; /* at this step */
    uint64_t met_step;  /* step of the last average of a whole batch, which the trainers step on */
    int64_t met_us;
    uint32_t lines; /* 1: the lines of trainers that continue this step (elastic_step.c) */
    double brought; /* samples in the last average of this step */
    struct hth_helper_stats stats;
};

/* ---- where the trainers are ------------------------------------------------------------------ */

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* The lower median of the trainers' steps, so that no single peer moves it. */
static uint64_t step_of_trainers(const struct hth_helper *h)
{
    uint64_t *steps = hth_new_array(uint64_t, HTH_AVG_ROSTER_MAX), middle;
    const struct hth_roster_peer *p;
    size_t n = 0;

    for (uint32_t i = 0; (p = hth_roster_at(h->roster, i)) != NULL && n < HTH_AVG_ROSTER_MAX; i++)
        if (p->note.schema == hth_roster_self(h->roster)->schema && !p->doubted &&
            (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0)
            steps[n++] = p->step;
    qsort(steps, n, sizeof(*steps), by_number);
    middle = n > 0 ? steps[(n - 1) / 2] : h->stats.step;
    hth_free(steps);
    return middle;
}

static bool is_batch_near(const struct hth_helper *h)
{
    struct hth_roster_batch all;

    hth_roster_batch(h->roster, h->stats.step, h->share.target, &all);
    return all.eta_us <= h->share.prepare_us;
}

/* ---- offering -------------------------------------------------------------------------------- */

static void look(struct hth_helper *h, uint32_t number)
{
    bool params = number == PARAMS, batch = h->share.mode == HTH_SHARE_BATCH;
    uint32_t ticket = params ? HTH_TICKET_PARAMS : HTH_TICKET_GRADIENT;
    uint32_t parts = params ? h->parts : 1;
    uint32_t spans = h->span_count + (params && h->parts > 1);
    const struct hth_avg_offer offer = {
        .count = parts * hth_params_flat_len(hth_model_params(h->model)),
        .step = h->stats.step,
        .schema = hth_settings_schema(&h->settings, ticket),
        .kind = ticket + (params ? 0 : h->lines),
        .kind_on = params || h->lines > 0 ? 0 : ticket + 1,
        .sweep = batch ? h->stats.step : HTH_AVG_SWEEP_AUTO,
        .rounds = batch ? HTH_AVG_ALL_AXES : 1,
        .spans = h->spans,
        .span_count = h->spans != NULL ? spans : 0,
        .same = !params,
        .timeout_us = h->share.timeout_us,
        .ticket = number,
    };
    struct errand *e = &h->errand[number];

    e->step = h->stats.step;
    e->out = hth_averager_offer(h->averager, &offer) == HTH_OK;
    if (!e->out)
        h->again_us = hth_now_us(h->env) + AGAIN_US;
}

static void look_for_batch(struct hth_helper *h)
{
    const struct errand *one = &h->errand[GRADIENT], *other = &h->errand[GRADIENT_TOO];

    if ((one->out && one->step == h->stats.step) || (other->out && other->step == h->stats.step))
        return;
    if (!one->out)
        look(h, GRADIENT);
    else if (!other->out)
        look(h, GRADIENT_TOO);
}

/* The step to help with. Roster records arrive late, so after an average of a whole batch the
 * helper assumes for STILL_US that the trainers step. */
static uint64_t next_step(const struct hth_helper *h)
{
    uint64_t step = step_of_trainers(h);

    if (h->met_us == 0 || hth_now_us(h->env) - h->met_us >= STILL_US || h->met_step < step)
        return step;
    return h->met_step + 1;
}

static void follow_batches(struct hth_helper *h)
{
    uint64_t step = next_step(h), every = h->share.every;

    if (step != h->stats.step) {
        h->stats.step = step;
        h->lines = 0;
        h->brought = 0;
        h->again_us = 0;
        h->params_wanted = step > 0 && every > 0 && step % every == 0;
        hth_roster_set_progress(h->roster, step, 0, 0);
    }
    if (h->params_wanted && !h->errand[PARAMS].out) {
        h->params_wanted = false; /* one attempt, as the trainers make */
        look(h, PARAMS);
    }
    if (hth_now_us(h->env) >= h->again_us && is_batch_near(h))
        look_for_batch(h);
}

static void on_timer(void *arg)
{
    struct hth_helper *h = arg;

    if (h->resting)
        return;
    if (h->share.mode == HTH_SHARE_BATCH)
        follow_batches(h);
    else if (!h->errand[PARAMS].out && hth_now_us(h->env) >= h->again_us)
        look(h, PARAMS);
    hth_timer_set(h->env, h->timer, POLL_US);
}

/* Judges an average as the trainers do. If the group had fewer samples than the target, they meet
 * again in other lines with more. Without a quorum they meet again in the first lines and step only
 * once they have one; the helper's offer in other lines is then in vain and does no harm. */
static void batch_met(struct hth_helper *h, uint64_t step, double met)
{
    bool is_short = met + 0.5 < (double)h->share.target && met > h->brought + 0.5;

    h->lines = is_short;
    h->brought = is_short ? met : 0;
    if (is_short)
        return;
    h->met_step = step;
    h->met_us = hth_now_us(h->env);
}

static void on_round(void *arg, const struct hth_avg_result *r)
{
    struct hth_helper *h = arg;
    struct errand *e = &h->errand[r->ticket];

    e->out = false;
    h->again_us = hth_now_us(h->env) + (r->err == HTH_OK ? 0 : AGAIN_US);
    h->stats.rounds += r->err == HTH_OK;
    h->stats.rounds_missed += r->err != HTH_OK;
    hth_share_tell_last(h->roster, h->averager, r, 0, 0);
    if (r->ticket != PARAMS && e->step == h->stats.step) {
        if (r->err == HTH_OK)
            batch_met(h, e->step, r->weight_met);
        else
            h->lines = 0;
    }
    hth_helper_nudge(h);
}

/* ---- by roll call ---------------------------------------------------------------------------- */

static void on_roll_round(void *arg)
{
    struct hth_helper *h = arg;
    struct hth_roll_helper_stats stats;

    hth_roll_helper_stats(h->roll, &stats);
    hth_roster_set_progress(h->roster, stats.step, 0, 0);
    hth_share_tell_round(h->roster, &stats.averages.last);
}

static enum hth_err help_by_roll(struct hth_helper *h, struct hth_rpc *rpc)
{
    const struct hth_share_opts *s = &h->share;
    const struct hth_roll_helper_opts opts = {
        .network = s->network,
        .schema = hth_settings_schema(&h->settings, HTH_TICKET_GRADIENT),
        .addr = s->addr,
        .bandwidth = s->bandwidth,
        .count = hth_params_flat_len(hth_model_params(h->model)),
        .spans = h->spans,
        .span_count = h->spans != NULL ? h->span_count : 0,
        .shape = s->shape,
        .dht = s->dht,
        .reducer = s->reducer,
        .on_round = on_roll_round,
        .arg = h,
    };

    return hth_roll_helper_new(h->env, rpc, &opts, &h->roll);
}

/* ---- life ------------------------------------------------------------------------------------ */

enum hth_err hth_helper_new(struct hth_env *env, const struct hth_helper_opts *opts,
                            struct hth_helper **out)
{
    struct hth_helper *h;
    enum hth_err err;

    *out = NULL;
    if (opts->share.roster == NULL || opts->averager == NULL)
        return HTH_E_CONFIG;
    h = hth_new(struct hth_helper);
    h->env = env;
    h->roster = opts->share.roster;
    h->averager = opts->averager;
    h->share = opts->share;
    if (h->share.mode == HTH_SHARE_BATCH)
        h->stats.step = UINT64_MAX; /* none yet, so that step 0 is a change */
    if (h->share.mode == HTH_SHARE_BATCH)
        hth_roster_need_all(h->roster);
    HTH_GOTO(fail, hth_model_new(opts->backend, &opts->model, &h->model));
    h->parts = hth_share_parts(h->model, h->share.states);
    HTH_GOTO(fail, hth_share_spans(h->model, h->share.format, h->parts, &h->spans, &h->span_count));
    hth_settings_of(h->model, &opts->optim, &h->share, &h->settings);
    hth_settings_set(h->roster, &h->settings, HTH_TICKET_PARAMS);
    HTH_GOTO(fail, hth_averager_start(h->averager, on_round, h));
    h->timer = hth_timer_new(env, on_timer, h);
    if (h->share.mode == HTH_SHARE_BATCH && h->share.reducer != NULL)
        HTH_GOTO(fail, help_by_roll(h, opts->rpc));
    else
        hth_timer_set(env, h->timer, 0);
    *out = h;
    return HTH_OK;
fail:
    hth_helper_free(h);
    return err;
}

void hth_helper_free(struct hth_helper *h)
{
    if (h == NULL)
        return;
    hth_roll_helper_free(h->roll);
    hth_averager_stop(h->averager);
    if (h->timer != NULL)
        hth_timer_free(h->env, h->timer);
    hth_model_free(h->model);
    hth_free(h->spans);
    hth_free(h);
}

void hth_helper_nudge(struct hth_helper *h)
{
    if (h->roll == NULL)
        hth_timer_set(h->env, h->timer, 0);
}

void hth_helper_quiesce(struct hth_helper *h)
{
    h->resting = true;
    if (h->roll != NULL)
        hth_roll_helper_rest(h->roll);
}

void hth_helper_rounds(const struct hth_helper *h, struct hth_averager_stats *out)
{
    struct hth_roll_helper_stats roll;

    if (h->roll == NULL) {
        hth_averager_stats(h->averager, out);
        return;
    }
    hth_roll_helper_stats(h->roll, &roll);
    *out = roll.averages;
}

void hth_helper_stats(const struct hth_helper *h, struct hth_helper_stats *out)
{
    struct hth_roll_helper_stats roll;

    *out = h->stats;
    if (h->roll != NULL) {
        hth_roll_helper_stats(h->roll, &roll);
        *out = (struct hth_helper_stats){roll.step, roll.averages.rounds, roll.averages.failed};
    }
    if (out->step == UINT64_MAX)
        out->step = 0;
}
