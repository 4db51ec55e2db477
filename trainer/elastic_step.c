/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elastic_step.c: a shared batch that was taken, until its step: offered, averaged, judged,
 * applied.
 *
 *   OFFER --average--> enough? --yes--> short of the target? --no--> STEP
 *     ^                   |no                  |yes
 *     '--AGAIN------------'                    '--> PUT_BACK, and more is gathered
 */
#include <math.h>

#include "averaging/roster.h"
#include "core/rng.h"
#include "trainer/trainer_int.h"

#define AGAIN_US    (250 * HTH_US_PER_MS) /* at most, times the tries so far */
#define AGAIN_TRIES 4
#define WHOLE_TRIES 2 /* for an average without parts that kept local values */
#define GOES_MAX    8 /* averages of one step that may be short of the target */
#define FEW_TRIES   3 /* of a few, with what they have, before they gather on */
#define SPARE_STEPS 16

/* ---- stepping -------------------------------------------------------------------------------- */

static void step_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, batch.step);
    struct hth_batch *b = &t->batch;

    b->err = hth_step_trunk(t, (const float *)b->common->data, &b->grad_norm, &b->lr);
}

static void step_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, batch.step);
    struct hth_batch *b = &t->batch;

    if (err == HTH_OK)
        err = b->err;
    if (err != HTH_OK && err != HTH_E_NOT_FINITE) {
        hth_trainer_spoilt(t, err);
        return;
    }
    t->stats.flights_not_finite += err != HTH_OK; /* nobody steps on it, and all count it as done */
    t->stats.share.weight = b->weight;
    t->stats.share.averaged_us = hth_now_us(t->env) - b->taken_us;
    hth_count_update(t, (uint64_t)llround(b->weight), b->grad_norm, b->lr);
    hth_lineage_add(&t->lineage, t->stats.updates, b->origin);
    hth_newcomer_stepped(t);
    hth_batch_next(t);
    hth_average_offer(t);
    hth_tell_update(t);
}

static void step(struct hth_trainer *t, struct hth_blob *common, double weight, uint64_t origin)
{
    struct hth_batch *b = &t->batch;
    double floats = (double)hth_params_flat_len(t->model->params);

    b->phase = HTH_BATCH_STEP;
    b->common = hth_blob_ref(common);
    b->weight = weight;
    b->origin = origin;
    b->step.run = step_run;
    b->step.done = step_done;
    b->step.job.flops = 12 * floats;
    b->step.job.bytes_moved = 36 * floats;
    hth_queue_push(&t->trunk, &b->step);
}

/* ---- averaging ------------------------------------------------------------------------------- */

struct hth_avg_offer hth_batch_make_offer(const struct hth_trainer *t)
{
    return (struct hth_avg_offer){
        .values = t->batch.mean,
        .count = hth_params_flat_len(t->model->params),
        .weight = HTH_MIN((double)t->batch.taken, HTH_AVG_WEIGHT_MAX),
        .step = t->stats.updates,
        .schema = hth_share_schema(t, HTH_TICKET_GRADIENT),
        .kind = HTH_TICKET_GRADIENT + t->batch.lines,
        .kind_on = t->batch.lines == 0 ? HTH_TICKET_GRADIENT + 1 : 0,
        .sweep = t->stats.updates,
        .attempt = t->batch.goes,
        .rounds = HTH_AVG_ALL_AXES,
        .spans = t->average.spans,
        .span_count = t->average.spans != NULL ? t->average.span_count : 0,
        .same = true,
        .timeout_us = t->opts.share.timeout_us,
        .ticket = HTH_TICKET_GRADIENT,
    };
}

/* Something went wrong: batches are not cut close for a while. */
static void spare(struct hth_trainer *t)
{
    t->batch.spares_until = t->stats.updates + 1 + SPARE_STEPS;
}

/* Soon, so that the times in which two peers look overlap, and after a random time, so that they do
 * not miss each other in step. Others are told, and expect us. Whoever failed meets in the first
 * lines of the step. */
static void try_again(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;
    double part = 0.2 + 0.8 * hth_rng_unit(&t->rng);
    int64_t wait_us;

    b->tries++;
    spare(t);
    wait_us = (int64_t)(part * AGAIN_US * HTH_MIN(b->tries, AGAIN_TRIES));
    if (t->opts.share.roster != NULL)
        hth_roster_set_ready_at(t->opts.share.roster, hth_wall_us(t->env) + wait_us);
    b->lines = 0;
    b->phase = HTH_BATCH_AGAIN;
    b->retry_at_us = hth_now_us(t->env) + wait_us;
    hth_timer_set(t->env, b->timer, wait_us);
}

/* Who began in the same moment says so a little later, and the first steps may be short: as long as
 * somebody is seen that has no state yet, and had no time to begin, nobody goes ahead. */
static bool do_others_begin(const struct hth_trainer *t)
{
    const struct hth_share_stats *s = &t->stats.share;
    struct hth_roster_stats roster;

    if (t->opts.share.roster == NULL || t->opts.share.bootstrap ||
        s->steps_shared + s->steps_alone > 0 ||
        hth_now_us(t->env) - t->started_us > 2 * t->opts.share.look_us)
        return false;
    hth_roster_stats(t->opts.share.roster, &roster);
    return roster.bootstrapping > 0;
}

/* Nobody else: our own samples must be enough. */
static void go_alone(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;

    if (do_others_begin(t)) {
        try_again(t);
        return;
    }
    if (b->taken >= t->opts.share.target) {
        t->stats.share.steps_alone++;
        hth_newcomer_is_whole(t, true);
        step(t, b->mean, (double)b->taken, hth_hash64(t->env->self.b, sizeof(t->env->self.b), 0));
        return;
    }
    hth_batch_put_back(t);
}

/* At a run's start the others do not wait: the grid that is just agreed on is used at once. */
bool hth_batch_has_grid(const struct hth_trainer *t)
{
    uint32_t generation = 1;

    if (t->opts.share.roster != NULL)
        (void)hth_roster_shape(t->opts.share.roster, &generation);
    return generation > 0;
}

void hth_batch_offer(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;
    const struct hth_avg_offer o = hth_batch_make_offer(t);
    enum hth_err err;

    b->no_grid = !hth_batch_is_alone(t) && !hth_batch_has_grid(t);
    if (hth_batch_is_alone(t)) {
        go_alone(t);
        return;
    }
    b->phase = HTH_BATCH_AVERAGE;
    err = hth_averager_offer(&t->average.averager, &o);
    if (err != HTH_OK) {
        HTH_LOG(t->env, HTH_DEBUG, HTH_SUB_AVG, "the batch can't be offered: %s",
                hth_err_text(err));
        try_again(t);
    }
}

/* More than the quorum, or all, of those who were there when this batch was taken, and still are.
 * Of two parts that do not meet, at most one may step: so heads are counted, which all who have an
 * average count alike; of samples each knows by notes, which come late. */
static bool is_quorum(const struct hth_trainer *t, const struct hth_avg_result *r)
{
    uint32_t now = HTH_MIN(hth_batch_population(t), t->batch.population);

    return r->heads >= now || r->heads > t->opts.share.quorum * now;
}

/* Notes are only words, of the dead and of strangers too: for a time a quorum of them is asked for,
 * and then those who came have it, for nobody else did. While more is gathered nobody is asked. */
static bool is_enough(struct hth_trainer *t, const struct hth_avg_result *r)
{
    struct hth_batch *b = &t->batch;
    int64_t now = hth_now_us(t->env);

    if (is_quorum(t, r))
        return true;
    if (b->missed_us != 0)
        b->asked_us += now - HTH_MAX(b->missed_us, b->taken_us);
    b->missed_us = now;
    if (b->asked_us < HTH_BATCH_PATIENCE_US)
        return false;
    hth_roster_doubt_mute(t->opts.share.roster, false); /* not again with each step */
    return true;
}

/* The batch was closed by an estimate. Judged by what the group brought, dropped members included,
 * which all of it know alike; not when the last time brought as much, for then nobody has more. */
static bool is_short(const struct hth_trainer *t, const struct hth_avg_result *r)
{
    const struct hth_batch *b = &t->batch;

    return r->weight_met + 0.5 < (double)t->opts.share.target && r->weight_met > b->brought + 0.5 &&
           b->goes < GOES_MAX;
}

/* Parts of a gradient whose reducer was lost are this peer's own: all would step on other numbers.
 * Without that reducer the next try is whole. */
static bool is_whole(const struct hth_trainer *t, const struct hth_avg_result *r)
{
    return r->parts_kept == 0 || t->batch.tries >= WHOLE_TRIES;
}

/* Those who are enough meet in other lines: a row that is a moment late would be mixed with who is
 * there again. Others may still meet the rest. They do so but once: on a grid rows find different
 * sums after a disturbance, and those who go on for the second time would wait for those who do for
 * the first, in other lines. */
enum hth_verdict hth_batch_judge(struct hth_trainer *t, const struct hth_avg_result *r)
{
    struct hth_batch *b = &t->batch;
    bool enough = is_enough(t, r);

    t->stats.share.below_quorum += !enough;
    if (is_short(t, r) && (enough || b->tries >= FEW_TRIES)) {
        HTH_LOG(t->env, HTH_DEBUG, HTH_SUB_TRAIN, "a step's batch: %.0f of %llu samples, going on",
                r->weight_met, (unsigned long long)t->opts.share.target);
        t->stats.share.short_of++;
        b->goes++;
        spare(t);
        b->lines = enough;
        b->brought = r->weight_met;
        return HTH_VERDICT_REST;
    }
    return enough ? HTH_VERDICT_STEP : HTH_VERDICT_AGAIN;
}

/* An average that all of its group have. Of the rest everybody brings as much more as it had a part
 * in what there was. */
static void judge(struct hth_trainer *t, const struct hth_avg_result *r)
{
    struct hth_batch *b = &t->batch;

    switch (hth_batch_judge(t, r)) {
    case HTH_VERDICT_REST: /* the need is more than we had, as the target is more than was met */
        b->need = (uint64_t)ceil((double)b->taken * (double)t->opts.share.target / r->weight_met);
        hth_batch_put_back(t);
        break;
    case HTH_VERDICT_STEP:
        t->stats.share.steps_shared++;
        hth_roster_met(t->opts.share.roster, r->heads);
        step(t, r->average, r->weight, r->origin);
        break;
    default:
        HTH_LOG(t->env, HTH_INFO, HTH_SUB_AVG,
                "step %llu: %u trainers of %u are too few, for now: %.0f samples",
                (unsigned long long)t->stats.updates, r->heads, b->population, r->weight);
        try_again(t);
    }
}

void hth_batch_result(struct hth_trainer *t, const struct hth_avg_result *r)
{
    struct hth_batch *b = &t->batch;

    /* Of a batch that was given up, or of one that has been offered again since. */
    if (b->phase != HTH_BATCH_AVERAGE || r->values != b->mean)
        return;
    /* What is averaged after the others took this step and the next is the average of a few. */
    if (r->err == HTH_OK && is_whole(t, r) && r->average != NULL &&
        r->average->size == hth_params_flat_len(t->model->params) * sizeof(float) &&
        !hth_batch_is_passed(t)) {
        judge(t, r);
        return;
    }
    t->stats.share.tries_failed++;
    /* Who came to no try for as long as a quorum is asked for is not waited for any more; whose
     * doubt has just ended, and had a whole window to speak in, not even for that. */
    if (r->err != HTH_OK)
        hth_roster_doubt_mute(t->opts.share.roster,
                              hth_now_us(t->env) - b->taken_us < HTH_BATCH_PATIENCE_US);
    HTH_LOG(t->env, HTH_INFO, HTH_SUB_AVG, "step %llu: %s; %.0f samples",
            (unsigned long long)t->stats.updates, hth_avg_reason_text(r->reason), r->weight);
    try_again(t);
}
