/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * flight.c: one flight. Every arrow is a callback; between two of them the flight holds no thread.
 *
 *   start -> read_done -> [way.h: forward through layers and experts] -> head -> head_done
 *         -> [experts'] -> backward(N-1) -> backward_done -> [experts'] .. -> backward(0) -> apply
 *
 * Of a dense model one job does all between read_done and apply.
 */
/* clang-format on */
#include <string.h>

#include "core/mem.h"
#include "trainer/trainer_int.h"

static void head(struct hth_flight *f);
static void backward(struct hth_flight *f, uint32_t l);
static void ask_back(struct hth_flight *f, uint32_t l);

/* Ends the flight without an update. */
static void drop(struct hth_flight *f, enum hth_err err)
{
    struct hth_trainer *t = f->trainer;

    for (uint32_t l = 0; l < t->model->opts.layers; l++) {
        hth_transport_judge(f->pass->layer[l].batch);
        hth_transport_judge(f->pass->layer[l].back_batch);
    }
    if (err == HTH_E_NOT_FINITE)
        t->stats.flights_not_finite++;
    else
        t->stats.flights_failed++;
    hth_metric_add(t->metrics.dropped, 1);
    /* Canceled jobs mean that the program ends, which needs no warning. */
    HTH_LOG(t->env, err == HTH_E_CANCELED ? HTH_DEBUG : HTH_WARN, HTH_SUB_TRAIN,
            "micro-batch %llu is dropped without an update: %s", (unsigned long long)f->pass->step,
            hth_err_text(err));
    if (f->eval)
        hth_eval_landed(t, f, err);
    else if (++t->drops >= HTH_DROPS_MAX)
        hth_trainer_fatal(t, err);
    hth_trainer_landed(t, f);
}

static struct hth_flight *of_work(struct hth_work *work)
{
    return HTH_CONTAINER(work, struct hth_flight, way.work);
}

static void count_pairs(void *arg, const struct hth_transport_batch *batch)
{
    const struct hth_flight *f = arg;
    struct hth_train_stats *stats = &f->trainer->stats;
    const enum hth_err *verdicts = hth_transport_verdicts(batch);

    for (uint32_t i = 0; !f->eval && i < batch->pairs; i++) {
        if (batch->backward)
            stats->backward_missing += verdicts[i] != HTH_OK;
        else if (verdicts[i] == HTH_OK)
            stats->answers++;
        else
            stats->answers_missing++;
    }
}

static void arrived(void *arg, enum hth_err err)
{
    if (err != HTH_OK)
        drop(arg, err);
    else
        head(arg);
}

/* ---- dense models ---------------------------------------------------------------------------- */

static void dense_run(struct hth_work *work)
{
    struct hth_flight *f = of_work(work);

    f->pass->err = hth_pass_dense(f->pass);
}

static void dense_done(struct hth_work *work, enum hth_err err)
{
    struct hth_flight *f = of_work(work);

    if (err == HTH_OK)
        err = f->pass->err;
    if (err != HTH_OK) {
        drop(f, err);
    } else if (f->eval) {
        hth_eval_landed(f->trainer, f, HTH_OK);
        hth_trainer_landed(f->trainer, f);
    } else {
        hth_trainer_apply(f);
    }
}

/* ---- data ------------------------------------------------------------------------------------ */

static void read_run(struct hth_work *work)
{
    struct hth_flight *f = of_work(work);
    struct hth_trainer *t = f->trainer;
    struct hth_pass *p = f->pass;
    bool test = f->eval && !f->trial;
    const struct hth_data_info *info = test ? &t->eval_info : &t->data_info;
    size_t read = (size_t)f->valid * info->labels;

    p->err = hth_data_read(test ? t->eval_data : t->data, f->position, f->valid, p->input,
                           p->tokens, p->labels);
    /* Padding: rows without a label add nothing to loss, accuracy and gradient. */
    for (size_t i = read; i < p->rows; i++) {
        p->labels[i] = HTH_LABEL_NONE;
        if (p->tokens != NULL)
            p->tokens[i] = 0;
    }
    if (p->input != NULL)
        memset(p->input + (size_t)f->valid * info->features, 0,
               (size_t)(p->samples - f->valid) * info->features * sizeof(float));
}

static void read_done(struct hth_work *work, enum hth_err err)
{
    struct hth_flight *f = of_work(work);

    if (err == HTH_OK)
        err = f->pass->err;
    if (err != HTH_OK) {
        const struct hth_trainer *t = f->trainer;
        const char *why = hth_data_why(f->eval && !f->trial ? t->eval_data : t->data);

        if (why[0] != '\0' && !t->fatal)
            HTH_LOG(
                t->env, HTH_ERROR, HTH_SUB_TRAIN,
                "%s; put a good copy there and use --resume to continue from the last checkpoint",
                why);
        hth_trainer_fatal(f->trainer, err);
        hth_trainer_landed(f->trainer, f);
        return;
    }
    if (f->pass->model->opts.dense)
        hth_way_submit(&f->way, &f->trainer->trunk, dense_run, dense_done,
                       hth_pass_dense_flops(f->pass));
    else
        hth_way_start(&f->way);
}

void hth_flight_start(struct hth_flight *f)
{
    struct hth_trainer *t = f->trainer;

    f->way = (struct hth_way){
        .env = t->env,
        .trunk = &t->trunk,
        .transport = t->transport,
        .budget = t->opts.budget,
        .rng = &t->rng,
        .pass = f->pass,
        .order = f->eval ? 0 : f->pass->step + 1, /* evaluations first */
        .answered = count_pairs,
        .arrived = arrived,
        .arg = f,
    };
    f->pass->train = !f->eval;
    f->started_at = t->stats.updates;
    f->begun_us = hth_now_us(t->env);
    hth_way_submit(&f->way, &t->io, read_run, read_done, 0);
}

/* ---- loss ------------------------------------------------------------------------------------ */

static void count_bad(struct hth_flight *f, uint32_t answers)
{
    f->trainer->stats.answers_bad += answers;
    hth_metric_add(f->trainer->metrics.bad, answers);
}

/* False: the flight may not be used. One without numbers says nothing of experts. */
static bool count_mixtures(struct hth_flight *f, bool good)
{
    struct hth_train_stats *stats = &f->trainer->stats;
    uint64_t empty = 0, rows = 0;

    for (uint32_t l = 0; l < f->pass->model->opts.layers; l++) {
        const struct hth_pass_layer *layer = &f->pass->layer[l];

        count_bad(f, layer->bad);
        if (f->eval || f->trainer->opts.without_experts)
            continue;
        empty += layer->mixed.rows_empty;
        rows += f->pass->units;
        stats->rows_without_expert += layer->mixed.rows_empty;
        hth_metric_add(f->trainer->metrics.lost_rows, (int64_t)layer->mixed.rows_empty);
        stats->rows_below_k_min += layer->mixed.rows_below_k_min;
        stats->rows_short += layer->mixed.rows_short;
        stats->rows_mixed += f->pass->units;
    }
    return !good || rows == 0 || hth_starved_note(f->trainer, empty, rows);
}

static void head_run(struct hth_work *work)
{
    struct hth_flight *f = of_work(work);

    f->pass->err = hth_pass_head(f->pass);
}

static void head_done(struct hth_work *work, enum hth_err err)
{
    struct hth_flight *f = of_work(work);
    uint32_t last = f->pass->model->opts.layers - 1;
    bool fed;

    if (err == HTH_OK)
        err = f->pass->err;
    if (!work->ran && err == HTH_OK) {
        hth_pass_ok_from_verdicts(f->pass, last);
        hth_pass_pick_back(f->pass, last);
    }
    hth_transport_judge(f->pass->layer[last].batch);
    fed = count_mixtures(f, err == HTH_OK);
    if (err != HTH_OK) {
        drop(f, err);
    } else if (!f->eval && !fed) {
        hth_metric_add(f->trainer->metrics.dropped, 1);
        hth_trainer_landed(f->trainer, f);
    } else if (f->eval) {
        hth_eval_landed(f->trainer, f, HTH_OK);
        hth_trainer_landed(f->trainer, f);
    } else {
        ask_back(f, last);
    }
}

/* Allocates gradients for a layer's answers. Only the job will know how many answered, so there is
 * room for all pairs. */
static enum hth_err prepare_dy(struct hth_flight *f, uint32_t l)
{
    struct hth_pass_layer *layer = &f->pass->layer[l];

    if (f->eval || layer->pairs_count == 0)
        return HTH_OK;
    return hth_way_rows(&f->way, (size_t)layer->pairs_count * f->pass->model->block_rows,
                        &layer->dy);
}

static void head(struct hth_flight *f)
{
    enum hth_err err = prepare_dy(f, f->pass->model->opts.layers - 1);

    if (err != HTH_OK) {
        drop(f, err);
        return;
    }
    hth_way_submit(&f->way, &f->trainer->trunk, head_run, head_done, hth_pass_head_flops(f->pass));
}

/* ---- backward -------------------------------------------------------------------------------- */

static void answered_back(void *arg, struct hth_transport_batch *batch)
{
    struct hth_flight *f = arg;

    count_pairs(f, batch);
    f->pass->layer[f->way.layer].back_batch = batch;
    backward(f, f->way.layer);
}

/* Sends gradients to the hosts that answered the forward, and to no other host. */
static void ask_back(struct hth_flight *f, uint32_t l)
{
    struct hth_pass_layer *layer = &f->pass->layer[l];
    struct hth_transport_call call = hth_way_call(&f->way, l);
    struct hth_transport_batch *batch, *forward_batch = layer->batch;
    enum hth_err err;

    f->way.layer = l;
    layer->batch = NULL;
    for (uint32_t i = 0; forward_batch != NULL && i < layer->targets_count; i++)
        hth_transport_host(forward_batch, i, &layer->targets[i]);
    if (layer->back_count == 0) {
        hth_transport_batch_free(forward_batch);
        backward(f, l);
        return;
    }
    call.dy = layer->dy;
    call.forward = forward_batch;
    call.pairs = layer->back_pairs;
    call.pairs_count = layer->back_count;
    call.k_min = 0;
    err = hth_transport_call(f->trainer->transport, &call, answered_back, f, &batch);
    hth_transport_batch_free(forward_batch);
    if (err == HTH_OK) {
        layer->back_batch = batch;
        return;
    }
    /* The experts then count as constants: they return no gradient. */
    HTH_LOG(f->trainer->env, HTH_WARN, HTH_SUB_TRAIN,
            "micro-batch %llu: no gradient to layer %u's experts: %s; they learn nothing from it",
            (unsigned long long)f->pass->step, l, hth_err_text(err));
    layer->back_count = 0;
    backward(f, l);
}

static void backward_run(struct hth_work *work)
{
    struct hth_flight *f = of_work(work);

    f->pass->err = hth_pass_backward(f->pass, f->way.layer);
}

static void backward_done(struct hth_work *work, enum hth_err err)
{
    struct hth_flight *f = of_work(work);

    if (err == HTH_OK)
        err = f->pass->err;
    if (err != HTH_OK) {
        drop(f, err);
        return;
    }
    hth_transport_judge(f->pass->layer[f->way.layer].back_batch);
    count_bad(f, f->pass->layer[f->way.layer].bad_back);
    if (!work->ran && f->way.layer > 0)
        hth_pass_pick_back(f->pass, f->way.layer - 1);
    if (f->way.layer > 0)
        ask_back(f, f->way.layer - 1);
    else
        hth_trainer_apply(f);
}

static void backward(struct hth_flight *f, uint32_t l)
{
    enum hth_err err = l > 0 ? prepare_dy(f, l - 1) : HTH_OK;

    f->way.layer = l;
    if (err != HTH_OK) {
        drop(f, err);
        return;
    }
    hth_way_submit(&f->way, &f->trainer->trunk, backward_run, backward_done,
                   2 * hth_pass_forward_flops(f->pass, l));
}
