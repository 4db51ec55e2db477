/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eval.c: evaluations. Their flights have no backward; they run over the first `eval_samples` of
 * the test data with the weights that they find. They share the slots with training and start
 * first.
 */
#include <math.h>
#include <string.h>

#include "trainer/trainer_int.h"

static uint64_t samples_of_next(const struct hth_trainer *t)
{
    bool last = t->stats.updates >= t->opts.updates_max && t->opts.eval_samples_last > 0;
    uint64_t wanted = last ? t->opts.eval_samples_last : t->opts.eval_samples;

    return wanted > 0 ? HTH_MIN(wanted, t->eval_info.samples) : t->eval_info.samples;
}

bool hth_eval_is_due(const struct hth_trainer *t)
{
    uint64_t evaluated = t->evaluated_at == UINT64_MAX ? 0 : t->evaluated_at;

    return t->opts.eval_every > 0 && !t->eval.active &&
           t->stats.updates - evaluated >= t->opts.eval_every;
}

uint64_t hth_eval_left(const struct hth_trainer *t)
{
    if (t->eval.active)
        return t->eval.total - t->eval.next;
    return t->eval.wanted || hth_eval_is_due(t) ? samples_of_next(t) : 0;
}

void hth_eval_begin(struct hth_trainer *t)
{
    struct hth_eval *e = &t->eval;

    memset(e, 0, sizeof(*e));
    e->active = true;
    e->total = samples_of_next(t);
    e->result.updates = t->stats.updates;
    t->evaluated_at = t->stats.updates;
}

bool hth_eval_next(struct hth_trainer *t, struct hth_flight *f)
{
    struct hth_eval *e = &t->eval;

    if (!e->active || e->next >= e->total)
        return false;
    f->eval = true;
    f->position = e->next;
    f->valid = (uint32_t)HTH_MIN((uint64_t)t->opts.micro_batch, e->total - e->next);
    f->pass->step = e->next / t->opts.micro_batch;
    e->next += f->valid;
    e->in_air++;
    return true;
}

static void finish(struct hth_trainer *t)
{
    struct hth_eval *e = &t->eval;
    struct hth_eval_result *r = &e->result;
    const struct hth_eval_sum *last = &e->sum[t->model->ids_count - 1];
    double mean[HTH_IDS_MAX];

    for (uint32_t i = 0; i < HTH_IDS_MAX; i++)
        mean[i] = e->sum[i].loss / (double)HTH_MAX(e->sum[i].counted, UINT64_C(1));
    e->active = false;
    if (t->batch.landed_us > 0) /* the pause says nothing about its speed */
        t->batch.landed_us = hth_now_us(t->env);
    r->loss = hth_model_loss(t->model, mean);
    r->accuracy = (double)last->correct / (double)HTH_MAX(last->counted, UINT64_C(1));
    r->bits_per_byte = r->loss / log(2.0);
    r->bits_per_code = mean[HTH_IDS_CODES] / log(2.0);
    if (r->samples > 0)
        hth_checkpoint_judge(t, r);
    t->stats.evals++;
    if (t->opts.on.on_eval != NULL && r->samples > 0)
        t->opts.on.on_eval(t->opts.on.arg, r);
}

static void add(struct hth_eval_sum *sum, const struct hth_xent_result *x)
{
    sum->loss += x->loss_sum;
    sum->counted += x->counted;
    sum->correct += x->correct;
}

static bool has_experts(const struct hth_trainer *t)
{
    return !t->opts.without_experts && !t->model->opts.dense;
}

void hth_eval_landed(struct hth_trainer *t, struct hth_flight *f, enum hth_err err)
{
    struct hth_eval *e = &t->eval;

    if (f->trial) {
        hth_trial_landed(t, f, err);
        return;
    }
    e->in_air--;
    if (err == HTH_OK) {
        const struct hth_pass *p = f->pass;

        for (uint32_t i = 0; i < HTH_IDS_MAX; i++)
            add(&e->sum[i], &p->xent[i]);
        e->result.samples += f->valid;
        for (uint32_t l = 0; l < p->model->opts.layers && has_experts(t); l++)
            e->result.rows_without_expert += p->layer[l].mixed.rows_empty;
    }
    if (e->in_air == 0 && (e->next >= e->total || t->stopping))
        finish(t);
}

enum hth_err hth_trainer_eval(struct hth_trainer *t)
{
    if (t->eval_data == NULL)
        return HTH_E_CONFIG;
    if (t->eval.active || t->eval.wanted)
        return HTH_E_BUSY;
    t->eval.wanted = true;
    hth_trainer_pump_soon(t);
    return HTH_OK;
}
