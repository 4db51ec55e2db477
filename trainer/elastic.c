/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared batches: gather together, average, step together (share.h has the picture). Here until a
 * batch is taken; elastic_step.c does the rest.
 *
 * Gradients are means over a micro-batch; the sum holds each times its samples, so that
 *
 *     mean = sum / samples            of this trainer
 *     common = sum over trainers of samples_i * mean_i / sum of samples_i
 *
 * is the gradient of the whole batch, whatever the sizes of micro-batches. A trainer that has none
 * when the batch is full goes on until its first one has landed; the others wait for it as long as
 * the averager's window is open.
 *
 * Weights change in a step only, so everybody who took the same steps has the same parameters. Who
 * sees that others are a step ahead and does not get there itself fetches the state (newcomer.c).
 */
#include <math.h>
#include <string.h>

#include "averaging/roster.h"
#include "core/mem.h"
#include "trainer/trainer_int.h"

#define POLL_US      (100 * HTH_US_PER_MS) /* others' progress */
#define BEHIND_US    (1 * HTH_US_PER_S)    /* others end a round a little earlier */
#define SPEED_FACTOR 0.1
#define LANDS_LATE   0.5 /* of the time between two landings, and it is as good as in time */
#define IDLE_MAX     1.5 /* of that time, with nothing in the air */

static void pump_batch(struct hth_trainer *t);

static size_t flat_len(const struct hth_trainer *t)
{
    return hth_params_flat_len(t->model->params);
}

/* The step that samples are gathered for: the next one, or with `delayed` the one after it. */
static uint64_t gather_step(const struct hth_trainer *t)
{
    bool next = t->opts.share.delayed && t->batch.phase != HTH_BATCH_GATHER;

    return t->stats.updates + next;
}

uint32_t hth_batch_population(const struct hth_trainer *t)
{
    if (t->opts.share.roster == NULL)
        return 1;
    return HTH_MAX(hth_roster_present(t->opts.share.roster), 1u);
}

/* With how many samples, as estimated, the batch is closed. With `delayed` nobody waits for what is
 * in the air: the estimate goes on during a micro-batch, and half of one is missing on average. */
static uint64_t closes_at(const struct hth_trainer *t)
{
    uint64_t target = t->opts.share.target;

    if (t->opts.share.delayed && t->opts.share.roster != NULL)
        target += (uint64_t)hth_batch_population(t) * t->opts.micro_batch / 2;
    return target;
}

static void look(const struct hth_trainer *t, struct hth_roster_batch *out)
{
    memset(out, 0, sizeof(*out));
    if (t->opts.share.roster != NULL) {
        hth_share_tell_landings(t);
        hth_roster_batch(t->opts.share.roster, gather_step(t), closes_at(t), out);
        return;
    }
    out->samples = out->samples_said = (double)t->batch.samples;
    out->step_max = gather_step(t);
    out->eta_us = t->batch.samples >= t->opts.share.target ? 0 : INT64_MAX;
}

/* Others that could share this batch. */
bool hth_batch_is_alone(const struct hth_trainer *t)
{
    return t->opts.share.roster == NULL || hth_roster_population(t->opts.share.roster, NULL) <= 1;
}

/* ---- gathering ------------------------------------------------------------------------------- */

enum hth_err hth_batch_add(struct hth_trainer *t, const float *grad, double *norm)
{
    size_t n = flat_len(t);
    float samples = (float)t->opts.micro_batch;
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)grad[i] * grad[i];
    *norm = sqrt(sum);
    if (!isfinite(sum))
        return HTH_E_NOT_FINITE;
    for (size_t i = 0; i < n; i++)
        t->batch.sum[i] += samples * grad[i];
    return HTH_OK;
}

/* Speed counts only while flights may start: to wait for others, or to evaluate, is no measure of
 * how fast this machine gathers. It counts from then, and not from the first landing: of few
 * flights that are in the air together all land at once, and what they took would not be seen. */
static void measure_speed(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;
    int64_t now = hth_now_us(t->env);

    if (b->landed_us > 0 && !t->eval.active) {
        double s = (double)(now - b->landed_us) / 1e6 / t->opts.micro_batch;

        b->s_per_sample += SPEED_FACTOR * (s - b->s_per_sample);
        b->s_weight += SPEED_FACTOR * (1 - b->s_weight);
    }
    b->landed_us = now;
}

void hth_batch_added(struct hth_trainer *t)
{
    t->batch.samples += t->opts.micro_batch;
    measure_speed(t);
    if (t->collab == NULL)
        hth_share_tell(t);
}

/* Our part of what the last average was short of, as far as we may bring it. */
static bool owes(const struct hth_trainer *t)
{
    const struct hth_batch *b = &t->batch;
    uint64_t most = t->opts.share.step_samples_max;
    uint64_t ours = b->samples + (uint64_t)t->training * t->opts.micro_batch;

    return ours < b->need && (most == 0 || ours + t->opts.micro_batch <= most);
}

/* Only what lands before the batch is full. Who is alike lands at the same moment, and all would
 * leave it to the others, or all make one too many: as many go on as it takes, in an order that is
 * another one for each step. That leaves nothing to spare. So where a batch was short lately, as
 * somebody is gone whose words are still there, or a try failed, and where more are said to be
 * there than come, it errs by LANDS_LATE, and rather all make one too many. Nobody waits for long
 * for others who don't make it full. */
static bool is_wanted(const struct hth_trainer *t, const struct hth_roster_batch *all,
                      uint64_t ours, double rate)
{
    double apart_us = 1e6 * t->opts.micro_batch / rate;
    double idle_us = t->training > 0 ? 0 : (double)(hth_now_us(t->env) - t->batch.landed_us);
    int64_t lands_us = (int64_t)((t->training + 1) * apart_us);

    if (idle_us > IDLE_MAX * apart_us)
        return true;
    if (t->opts.share.roster == NULL || t->stats.updates < t->batch.spares_until ||
        !hth_roster_all_come(t->opts.share.roster))
        return (t->training + 1 - LANDS_LATE) * apart_us <= (double)all->eta_us;
    return (double)ours + hth_roster_batch_before(t->opts.share.roster, gather_step(t),
                                                  closes_at(t), lands_us, (int64_t)apart_us) <
           (double)closes_at(t);
}

bool hth_batch_may_launch(const struct hth_trainer *t)
{
    const struct hth_batch *b = &t->batch;
    uint64_t most = t->opts.share.step_samples_max;
    uint64_t ours = b->samples + (uint64_t)t->training * t->opts.micro_batch;
    struct hth_roster_batch all;
    double rate;

    if (!b->on)
        return true;
    if (t->collab != NULL)
        return hth_shared_may_launch(t);
    if (!t->opts.share.delayed && b->phase != HTH_BATCH_GATHER)
        return false;
    if (ours == 0 || owes(t))
        return true; /* something at least */
    if (most > 0 && ours + t->opts.micro_batch > most)
        return false;
    look(t, &all);
    rate = hth_share_rate(b);
    if (t->opts.share.delayed || rate <= 0)
        return all.samples + (double)t->training * t->opts.micro_batch < (double)closes_at(t);
    return all.eta_us > 0 && is_wanted(t, &all, ours, rate);
}

/* ---- taking ---------------------------------------------------------------------------------- */

static void take_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, batch.take);
    float *mean = (float *)t->batch.mean->data;
    float samples = (float)t->batch.taken;
    size_t n = flat_len(t);

    for (size_t i = 0; i < n; i++)
        mean[i] = t->batch.sum[i] / samples;
    memset(t->batch.sum, 0, n * sizeof(float));
}

static void take_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, batch.take);

    if (err != HTH_OK) {
        hth_trainer_fatal(t, err);
        return;
    }
    hth_batch_offer(t);
}

static void take(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;
    size_t bytes = flat_len(t) * sizeof(float);

    if (hth_env_blob_new(t->env, bytes, t->opts.budget, &b->mean) != HTH_OK) {
        hth_timer_set(t->env, b->timer, POLL_US);
        return;
    }
    b->phase = HTH_BATCH_TAKE;
    b->taken = b->samples;
    b->samples = 0;
    b->population = hth_batch_population(t);
    b->tries = 0;
    b->landed_us = t->opts.share.delayed ? b->landed_us : 0;
    b->taken_us = hth_now_us(t->env);
    b->take.run = take_run;
    b->take.done = take_done;
    b->take.job.bytes_moved = 3.0 * (double)bytes;
    hth_queue_push(&t->trunk, &b->take);
    hth_share_tell(t);
}

/* ---- back to gathering ----------------------------------------------------------------------- */

static void put_back_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, batch.put_back);
    const float *mean = (const float *)t->batch.mean->data;
    size_t n = flat_len(t);

    for (size_t i = 0; i < n; i++)
        t->batch.sum[i] += (float)t->batch.taken * mean[i];
}

static void gather_again(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;

    hth_blob_unref(b->mean);
    hth_blob_unref(b->common);
    b->mean = b->common = NULL;
    b->taken = 0;
    b->prepared = false;
    b->phase = HTH_BATCH_GATHER;
    if (b->landed_us == 0)
        b->landed_us = hth_now_us(t->env);
    if (t->opts.share.roster != NULL)
        hth_roster_set_ready_at(t->opts.share.roster, 0); /* not known yet */
    hth_share_tell(t);
    hth_trainer_pump_soon(t);
}

static void forget_goes(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;

    b->at_us = hth_now_us(t->env);
    b->tries = 0;
    b->goes = 0;
    b->lines = 0;
    b->brought = 0;
    b->need = 0;
    b->missed_us = b->asked_us = 0;
}

void hth_batch_follow(struct hth_trainer *t)
{
    forget_goes(t);
    t->batch.population = hth_batch_population(t);
    t->batch.taken_us = hth_now_us(t->env);
}

void hth_batch_next(struct hth_trainer *t)
{
    forget_goes(t);
    gather_again(t);
}

void hth_batch_renumber(struct hth_trainer *t)
{
    forget_goes(t);
    if (t->batch.phase == HTH_BATCH_AGAIN)
        hth_batch_put_back(t);
    else
        gather_again(t);
}

static void put_back_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, batch.put_back);

    if (err == HTH_OK)
        t->batch.samples += t->batch.taken;
    gather_again(t);
}

void hth_batch_put_back(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;

    b->phase = HTH_BATCH_PUT_BACK;
    b->put_back.run = put_back_run;
    b->put_back.done = put_back_done;
    b->put_back.job.bytes_moved = 12.0 * (double)flat_len(t);
    hth_queue_push(&t->trunk, &b->put_back);
}

/* ---- together with others -------------------------------------------------------------------- */

static bool is_anybody_with_us(const struct hth_trainer *t)
{
    const struct hth_roster *r = t->opts.share.roster;
    const struct hth_roster_peer *p;

    for (uint32_t i = 0; (p = hth_roster_at(r, i)) != NULL; i++)
        if (!p->doubted && p->note.schema == hth_roster_self(r)->schema &&
            (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) == 0 && p->step == t->stats.updates)
            return true;
    return false;
}

/* A single one takes a step without us when we were left out of its average, and know it by ours;
 * when it asked for us in vain for as long as it is asked for a quorum; or when the state that we
 * took was late. Else it says what is not true. */
static bool may_one_be_ahead(const struct hth_trainer *t)
{
    int64_t here_us = hth_now_us(t->env) - t->batch.at_us;

    return t->batch.tries > 0 || t->newcomer.overtaken > 0 ||
           (here_us > HTH_BATCH_PATIENCE_US && !is_anybody_with_us(t));
}

/* How many steps the others are ahead, if enough of them say so. A single one can't have gone far,
 * for it has no quorum: beside others it does not even lengthen the way to where those are. */
static uint64_t steps_behind(const struct hth_trainer *t)
{
    const struct hth_roster *r = t->opts.share.roster;
    uint64_t ours = t->stats.updates, step;

    if (r == NULL)
        return 0;
    step = hth_roster_reached(r, ours, HTH_BATCH_AHEAD_ONE_IN, 1);
    if (!may_one_be_ahead(t) ||
        (step - ours > HTH_BATCH_AHEAD_ALONE && hth_roster_population(r, NULL) > 2))
        step = hth_roster_reached(r, ours, HTH_BATCH_AHEAD_ONE_IN, 2);
    return step - ours;
}

bool hth_batch_is_passed(const struct hth_trainer *t)
{
    return steps_behind(t) > 1;
}

/* Its state came, and most took the step without it: where a step is long the next state has most
 * time if it is asked for at once. (Where it is short they are soon two ahead.) */
static bool is_left_out(const struct hth_trainer *t, const struct hth_roster_batch *all)
{
    double step_us = 1e6 * (double)t->opts.share.target / HTH_MAX(all->samples_per_s, 1.0);
    uint64_t ours = t->stats.updates;

    return t->newcomer.overtaken > 0 && t->batch.phase == HTH_BATCH_GATHER &&
           hth_roster_reached(t->opts.share.roster, ours, 2, 1) > ours &&
           2 * step_us > (double)BEHIND_US;
}

/* True when the others have gone on without us. */
static bool fell_behind(struct hth_trainer *t, const struct hth_roster_batch *all)
{
    struct hth_batch *b = &t->batch;
    int64_t now = hth_now_us(t->env);
    uint64_t steps = steps_behind(t);

    if (steps == 0) {
        b->behind_since_us = 0;
        return false;
    }
    if (b->behind_since_us == 0)
        b->behind_since_us = now;
    if (steps > 1 || t->newcomer.approximate || is_left_out(t, all) ||
        now - b->behind_since_us > BEHIND_US) {
        b->behind_since_us = 0;
        hth_newcomer_catch_up(t, steps);
    }
    return true;
}

/* Looks for the group before the batch is full. */
static void prepare(struct hth_trainer *t, const struct hth_roster_batch *all)
{
    struct hth_batch *b = &t->batch;
    struct hth_avg_offer o;

    if (b->prepared || all->eta_us > t->opts.share.prepare_us || hth_batch_is_alone(t) ||
        t->opts.share.prepare_us == 0)
        return;
    o = hth_batch_make_offer(t);
    o.weight = HTH_MAX((double)b->samples, 1.0);
    b->prepared = hth_averager_prepare(&t->average.averager, &o, all->eta_us) == HTH_OK;
}

static void gather(struct hth_trainer *t, const struct hth_roster_batch *all)
{
    struct hth_batch *b = &t->batch;

    if (all->eta_us > 0) {
        prepare(t, all);
        hth_timer_set(t->env, b->timer, HTH_MIN(HTH_MAX(all->eta_us, 1000), POLL_US));
        return;
    }
    /* What is in the air still counts: weights must not change under it. */
    if (b->samples == 0 || owes(t) ||
        (t->training > 0 && (!t->opts.share.delayed || b->samples < b->need))) {
        prepare(t, all);
        hth_timer_set(t->env, b->timer, POLL_US);
        return;
    }
    take(t);
}

static void pump_batch(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;
    struct hth_roster_batch all;

    if (b->phase != HTH_BATCH_GATHER && b->phase != HTH_BATCH_AGAIN)
        return;
    if (t->stats.updates >= t->opts.updates_max)
        return;
    look(t, &all);
    if (hth_newcomer_yield(t) || fell_behind(t, &all)) {
        hth_timer_set(t->env, b->timer, POLL_US);
        return;
    }
    if (b->phase == HTH_BATCH_GATHER)
        gather(t, &all);
    else if (hth_now_us(t->env) >= b->retry_at_us || (b->no_grid && hth_batch_has_grid(t)))
        hth_batch_offer(t);
    else
        hth_timer_set(t->env, b->timer, b->retry_at_us - hth_now_us(t->env));
}

void hth_batch_pump(struct hth_trainer *t)
{
    if (t->collab != NULL)
        hth_shared_pump(t);
    else if (t->batch.on)
        pump_batch(t);
}

static void on_timer(void *arg)
{
    struct hth_trainer *t = arg;

    if (t->collab != NULL)
        hth_shared_timer(t);
    else
        hth_trainer_pump(t);
}

void hth_batch_reset(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;

    if (!b->on)
        return;
    HTH_ASSERT(b->phase == HTH_BATCH_GATHER || b->phase == HTH_BATCH_AGAIN);
    if (b->sum != NULL)
        memset(b->sum, 0, flat_len(t) * sizeof(float));
    b->samples = 0;
    b->behind_since_us = 0;
    b->landed_us = 0;
    hth_batch_next(t);
}

enum hth_err hth_batch_start(struct hth_trainer *t)
{
    const struct hth_share_opts *o = &t->opts.share;
    struct hth_batch *b = &t->batch;
    size_t bytes = flat_len(t) * sizeof(float);

    b->on = o->mode == HTH_SHARE_BATCH;
    if (!b->on)
        return HTH_OK;
    if (o->target == 0 || !(o->quorum >= 0 && o->quorum <= 1) ||
        (o->step_samples_max > 0 && o->step_samples_max < t->opts.micro_batch))
        return HTH_E_CONFIG;
    b->sum = hth_try_aligned(bytes);
    if (b->sum == NULL)
        return HTH_E_NO_MEMORY;
    memset(b->sum, 0, bytes);
    b->timer = hth_timer_new(t->env, on_timer, t);
    b->at_us = hth_now_us(t->env);
    if (o->roster != NULL)
        hth_roster_need_all(o->roster);
    return HTH_OK;
}

void hth_batch_clear(struct hth_trainer *t)
{
    hth_blob_unref(t->batch.mean);
    hth_blob_unref(t->batch.common);
    hth_blob_unref(t->batch.taking);
    hth_blob_unref(t->batch.adopts);
    hth_aligned_free(t->batch.sum);
}
