/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Updates of the trunk: a flight's gradient, and what averaging rounds change.
 *
 * Both are jobs of the trunk's queue, so that no segment sees half an update. A flight's gradient
 * was computed on weights that were up to `staleness` updates younger; it is applied as it is.
 */
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "trainer/trainer_int.h"

#define EMA_FACTOR    0.02
#define RATE_WINDOW_S 10.0

/* ---- gradients ------------------------------------------------------------------------------- */

static enum hth_err step_trunk(struct hth_flight *f)
{
    struct hth_trainer *t = f->trainer;
    struct hth_model *m = t->model;
    const struct hth_train_optim *o = &t->opts.optim;
    struct hth_optim optim = o->optim;
    bool finite = false;

    HTH_TRY(hth_params_import(m->exec, m->params, HTH_PART_GRAD, 0, hth_params_flat_len(m->params),
                              f->pass->grads));
    HTH_TRY(hth_grad_norm(m->exec, m->params, &f->grad_norm, &finite));
    if (!finite)
        return HTH_E_NOT_FINITE;
    optim.lr = hth_schedule_lr(&o->schedule, hth_params_steps(m->params));
    f->lr = optim.lr;
    HTH_TRY(hth_optim_step(m->exec, m->params, &optim, hth_clip_scale(f->grad_norm, o->clip_norm)));
    return hth_exec_sync(m->exec);
}

static void apply_run(struct hth_work *work)
{
    struct hth_flight *f = HTH_CONTAINER(work, struct hth_flight, work);

    f->pass->err = step_trunk(f);
}

static double ema(double old, double value, bool first)
{
    return first ? value : old + EMA_FACTOR * (value - old);
}

/* Samples per second over about the last ten: two sums that decay alike. */
static void update_rate(struct hth_trainer *t)
{
    int64_t now = hth_now_us(t->env);
    double seconds = (double)(now - t->last_update_us) / 1e6;
    double decay = exp(-seconds / RATE_WINDOW_S);
    uint64_t left;

    t->last_update_us = now;
    t->rate_samples = t->rate_samples * decay + t->opts.micro_batch;
    t->rate_s = t->rate_s * decay + seconds;
    t->stats.samples_per_s = t->rate_s > 0 ? t->rate_samples / t->rate_s : 0;
    left = t->opts.updates_max - HTH_MIN(t->stats.updates, t->opts.updates_max);
    t->stats.eta_s = t->stats.samples_per_s > 0
                         ? (double)left * t->opts.micro_batch / t->stats.samples_per_s
                         : 0;
}

static void count_update(struct hth_flight *f)
{
    struct hth_trainer *t = f->trainer;
    struct hth_train_stats *s = &t->stats;
    const struct hth_xent_result *x = &f->pass->xent;
    uint64_t stale = s->updates - f->born;
    double counted = x->counted > 0 ? x->counted : 1;

    s->loss = x->loss_sum / counted;
    s->accuracy = (double)x->correct / counted;
    s->loss_ema = ema(s->loss_ema, s->loss, s->updates == 0);
    s->accuracy_ema = ema(s->accuracy_ema, s->accuracy, s->updates == 0);
    s->grad_norm = f->grad_norm;
    s->lr = f->lr;
    s->staleness[HTH_MIN(stale, (uint64_t)HTH_STALENESS_BUCKETS - 1)]++;
    t->stale_sum += (double)stale;
    s->staleness_mean = t->stale_sum / ++t->stale_count;
    s->updates++;
    s->samples += t->opts.micro_batch;
    s->rows = s->samples * t->model->opts.seq_len;
    s->epoch = s->samples / t->data_info.samples;
    t->drops = 0;
    hth_metric_add(t->metrics.updates, 1);
    hth_metric_add(t->metrics.samples, t->opts.micro_batch);
    hth_metric_set(t->metrics.loss, s->loss_ema);
    hth_metric_observe(t->metrics.staleness, (double)stale);
    update_rate(t);
}

static void apply_done(struct hth_work *work, enum hth_err err)
{
    struct hth_flight *f = HTH_CONTAINER(work, struct hth_flight, work);
    struct hth_trainer *t = f->trainer;

    if (err == HTH_OK)
        err = f->pass->err;
    if (err == HTH_OK) {
        count_update(f);
        hth_average_offer(t);
    } else if (err == HTH_E_NOT_FINITE) {
        t->stats.flights_not_finite++;
        hth_metric_add(t->metrics.dropped, 1);
        if (++t->drops >= HTH_DROPS_MAX)
            hth_trainer_fatal(t, err);
    } else {
        hth_trainer_fatal(t, err);
    }
    hth_trainer_landed(t, f);
    if (err == HTH_OK && t->opts.on.on_update != NULL) {
        struct hth_train_stats stats;

        hth_trainer_stats(t, &stats);
        t->opts.on.on_update(t->opts.on.arg, &stats);
    }
}

void hth_trainer_apply(struct hth_flight *f)
{
    double floats = (double)hth_params_flat_len(f->trainer->model->params);

    f->work.run = apply_run;
    f->work.done = apply_done;
    f->work.job.flops = 12 * floats;
    f->work.job.bytes_moved = 36 * floats;
    hth_queue_push(&f->trainer->trunk, &f->work);
}

/* ---- averaging ------------------------------------------------------------------------------- */

static void snapshot_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.snapshot);
    struct hth_params *params = t->model->params;

    memcpy(t->average.values->data, hth_params_flat(params, HTH_PART_VALUE),
           hth_params_flat_len(params) * sizeof(float));
}

static void snapshot_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.snapshot);
    struct hth_average *a = &t->average;
    struct hth_avg_offer offer = {
        .values = a->values,
        .count = hth_params_flat_len(t->model->params),
        .weight = (double)(t->stats.samples - a->samples_at),
        .step = t->stats.updates,
        .schema = hth_model_schema(t->model),
        .sweep = HTH_AVG_SWEEP_AUTO,
        .rounds = 1,
    };

    a->busy = false;
    if (err == HTH_OK)
        err = hth_averager_offer(&a->averager, &offer);
    if (err == HTH_OK)
        a->samples_at = t->stats.samples;
    else
        HTH_LOG(t->env, HTH_DEBUG, HTH_SUB_AVG, "no round: %s", hth_err_text(err));
    hth_blob_unref(a->values);
    a->values = NULL;
}

void hth_average_offer(struct hth_trainer *t)
{
    struct hth_average *a = &t->average;
    size_t bytes = hth_params_flat_len(t->model->params) * sizeof(float);
    enum hth_avg_reason reason;

    if (a->busy || t->opts.average_every == 0 || t->stats.updates - a->at < t->opts.average_every)
        return;
    a->at = t->stats.updates;
    if (hth_averager_ready(&a->averager, &reason) != HTH_OK)
        return;
    if (hth_env_blob_new(t->env, bytes, t->opts.budget, &a->values) != HTH_OK)
        return; /* no room now: the next update offers again */
    a->busy = true;
    a->snapshot.run = snapshot_run;
    a->snapshot.done = snapshot_done;
    a->snapshot.job.bytes_moved = 2.0 * (double)bytes;
    hth_queue_push(&t->trunk, &a->snapshot);
}

static void difference_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.apply);
    struct hth_params *params = t->model->params;
    float *w = hth_params_flat(params, HTH_PART_VALUE);
    const float *average = (const float *)t->average.mean->data;
    const float *snapshot = (const float *)t->average.offered->data;
    size_t n = hth_params_flat_len(params);
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        float difference = average[i] - snapshot[i];

        w[i] += difference;
        sum += (double)difference * difference;
    }
    hth_params_touched(params);
    t->average.distance = sqrt(sum);
}

static void difference_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.apply);

    t->average.busy = false;
    hth_blob_unref(t->average.mean);
    hth_blob_unref(t->average.offered);
    t->average.mean = t->average.offered = NULL;
    if (err == HTH_OK)
        t->stats.averaged_distance = t->average.distance;
}

void hth_average_round(void *arg, const struct hth_avg_result *result)
{
    struct hth_trainer *t = arg;
    struct hth_average *a = &t->average;
    size_t bytes = hth_params_flat_len(t->model->params) * sizeof(float);

    if (t->freed)
        return;
    if (result->err != HTH_OK || result->average == NULL || result->average->size != bytes ||
        a->mean != NULL) {
        t->stats.rounds_failed++;
        HTH_LOG(t->env, HTH_INFO, HTH_SUB_AVG, "round failed: %s",
                hth_avg_reason_text(result->reason));
        return;
    }
    t->stats.rounds++;
    a->busy = true;
    a->mean = hth_blob_ref(result->average);
    a->offered = hth_blob_ref(result->values);
    a->apply.run = difference_run;
    a->apply.done = difference_done;
    a->apply.job.bytes_moved = 4.0 * (double)bytes;
    hth_queue_push(&t->trunk, &a->apply);
}
