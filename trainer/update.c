/* SPDX-License-Identifier: Apache-2.0 */
/*
 * update.c: uses a flight's gradient for an update of the trunk, or adds it to a shared batch
 * (shared.c). Both are jobs of the trunk's queue, so that no segment sees half an update. The
 * gradient was computed on weights that are up to `staleness` updates older; it is applied
 * unchanged.
 */
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "trainer/trainer_int.h"

#define EMA_FACTOR    0.02
#define RATE_WINDOW_S 10.0

/* ---- gradients ------------------------------------------------------------------------------- */

enum hth_err hth_step_trunk(struct hth_trainer *t, const float *grad, double *norm, float *lr)
{
    struct hth_model *m = t->model;
    const struct hth_train_optim *o = &t->opts.optim;
    struct hth_optim optim = o->optim;
    bool finite = false;

    HTH_TRY(hth_params_import(m->exec, m->params, HTH_PART_GRAD, 0, hth_params_flat_len(m->params),
                              grad));
    HTH_TRY(hth_grad_norm(m->exec, m->params, norm, &finite));
    if (!finite)
        return HTH_E_NOT_FINITE;
    optim.lr = hth_schedule_lr(&o->schedule, hth_params_steps(m->params));
    *lr = optim.lr;
    HTH_TRY(hth_optim_step(m->exec, m->params, &optim, hth_clip_scale(*norm, o->clip_norm)));
    return hth_exec_sync(m->exec);
}

static void apply_run(struct hth_work *work)
{
    struct hth_flight *f = HTH_CONTAINER(work, struct hth_flight, way.work);
    struct hth_trainer *t = f->trainer;

    if (t->batch.on)
        f->pass->err = hth_batch_add(t, f->pass->grads, &f->grad_norm);
    else
        f->pass->err = hth_step_trunk(t, f->pass->grads, &f->grad_norm, &f->lr);
}

static double ema(double old, double value, bool first)
{
    return first ? value : old + EMA_FACTOR * (value - old);
}

static double rate_add(struct hth_rate *r, int64_t now_us, double count)
{
    double seconds = (double)(now_us - r->last_us) / 1e6;
    double decay = exp(-seconds / RATE_WINDOW_S);

    r->last_us = now_us;
    r->count = r->count * decay + count;
    r->s = r->s * decay + seconds;
    return r->s > 0 ? r->count / r->s : 0;
}

/* Counts the flight's loss, accuracy and staleness, whether or not its gradient is used. */
static void count_flight(struct hth_flight *f)
{
    struct hth_trainer *t = f->trainer;
    struct hth_train_stats *s = &t->stats;
    uint64_t stale = s->updates - HTH_MIN(f->started_at, s->updates);

    s->loss = hth_pass_loss(f->pass);
    s->accuracy = hth_pass_accuracy(f->pass);
    bool first = s->loss_ema == 0; /* a fetched state brings no mean either */
    s->loss_ema = ema(s->loss_ema, s->loss, first);
    s->accuracy_ema = ema(s->accuracy_ema, s->accuracy, first);
    s->flights_landed++;
    s->own_samples += t->opts.micro_batch;
    s->staleness[HTH_MIN(stale, (uint64_t)HTH_STALENESS_BUCKETS - 1)]++;
    t->stale_sum += (double)stale;
    s->staleness_mean = t->stale_sum / ++t->stale_count;
    t->drops = 0;
    t->transport->stats.top_gain = 0;
    hth_metric_set(t->metrics.loss, s->loss_ema);
    hth_metric_observe(t->metrics.staleness, (double)stale);
    hth_metric_add(t->metrics.samples, t->opts.micro_batch);
    s->samples_per_s = rate_add(&t->samples_rate, hth_now_us(t->env), t->opts.micro_batch);
}

void hth_count_update(struct hth_trainer *t, uint64_t samples, double grad_norm, float lr)
{
    struct hth_train_stats *s = &t->stats;
    double rate = rate_add(&t->updates_rate, hth_now_us(t->env), 1);

    s->grad_norm = grad_norm;
    s->lr = lr;
    s->updates++;
    s->samples += samples;
    s->rows = s->samples * t->model->opts.seq_len;
    s->epoch = s->samples / t->data_info.samples;
    s->eta_s = rate > 0
                   ? (double)(t->opts.updates_max - HTH_MIN(s->updates, t->opts.updates_max)) / rate
                   : 0;
    if (s->share.first_step_us == 0)
        s->share.first_step_us = HTH_MAX(hth_now_us(t->env) - t->started_us, 1);
    hth_metric_add(t->metrics.updates, 1);
}

void hth_tell_update(struct hth_trainer *t)
{
    struct hth_train_stats stats;

    if (t->opts.on.on_update == NULL)
        return;
    hth_trainer_stats(t, &stats);
    t->opts.on.on_update(t->opts.on.arg, &stats);
}

static void applied(struct hth_flight *f)
{
    struct hth_trainer *t = f->trainer;

    count_flight(f);
    if (t->batch.on) {
        hth_batch_added(t);
        return;
    }
    hth_count_update(t, t->opts.micro_batch, f->grad_norm, f->lr);
    hth_share_tell(t);
    hth_average_offer(t);
}

static void apply_done(struct hth_work *work, enum hth_err err)
{
    struct hth_flight *f = HTH_CONTAINER(work, struct hth_flight, way.work);
    struct hth_trainer *t = f->trainer;

    if (err == HTH_OK)
        err = f->pass->err;
    if (err == HTH_OK) {
        applied(f);
    } else if (err == HTH_E_NOT_FINITE) {
        t->stats.flights_not_finite++;
        hth_metric_add(t->metrics.dropped, 1);
        if (++t->drops >= HTH_DROPS_MAX)
            hth_trainer_fatal(t, err);
    } else {
        hth_trainer_spoilt(t, err);
    }
    hth_trainer_landed(t, f);
    if (err == HTH_OK && !t->batch.on)
        hth_tell_update(t);
}

void hth_trainer_apply(struct hth_flight *f)
{
    double floats = (double)hth_params_flat_len(f->trainer->model->params);

    f->way.work.run = apply_run;
    f->way.work.done = apply_done;
    f->way.work.job.flops = 12 * floats;
    f->way.work.job.bytes_moved = (f->trainer->batch.on ? 12 : 36) * floats;
    hth_queue_push(&f->trainer->trunk, &f->way.work);
}
