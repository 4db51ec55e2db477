/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters, and the optimiser's states where that is asked for, averaged in the background.
 *
 * A job copies them, the averager takes the copy, and training continues. When the round has ended,
 * a job adds average - copy to the parameters as they are then. Adam's second moment stays >= 0.
 */
#include <math.h>
#include <string.h>

#include "averaging/roster.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "trainer/trainer_int.h"

static const enum hth_part part_of[] = {HTH_PART_VALUE, HTH_PART_STATE0, HTH_PART_STATE1};

static size_t flat_len(const struct hth_trainer *t)
{
    return hth_params_flat_len(t->model->params);
}

static size_t offer_bytes(const struct hth_trainer *t)
{
    return t->average.parts * flat_len(t) * sizeof(float);
}

uint64_t hth_share_schema(const struct hth_trainer *t, uint32_t ticket)
{
    return hth_settings_schema(&t->settings, ticket);
}

/* ---- offering -------------------------------------------------------------------------------- */

static void snapshot_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.snapshot);
    struct hth_average *a = &t->average;
    float *out = (float *)a->values->data;
    size_t n = flat_len(t);

    a->err = HTH_OK;
    for (uint32_t i = 0; i < a->parts && a->err == HTH_OK; i++)
        a->err = hth_params_export(t->model->exec, t->model->params, part_of[i], 0, n, out + i * n);
}

static void snapshot_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.snapshot);
    struct hth_average *a = &t->average;
    double samples = (double)(t->stats.samples - a->samples_at);
    const struct hth_avg_offer offer = {
        .values = a->values,
        .count = a->parts * flat_len(t),
        .weight = HTH_MIN(HTH_MAX(samples, 1.0), HTH_AVG_WEIGHT_MAX),
        .schema = hth_share_schema(t, HTH_TICKET_PARAMS),
        .spans = a->spans,
        .span_count = a->spans != NULL ? a->span_count + (a->parts > 1) : 0,
    };

    a->busy = false;
    if (err == HTH_OK && work->ran)
        err = a->err;
    if (err == HTH_OK)
        err = hth_averager_offer(&a->averager, &offer);
    if (err == HTH_OK) {
        a->out = true;
        a->samples_at = t->stats.samples;
    } else {
        HTH_LOG(t->env, HTH_DEBUG, HTH_SUB_AVG,
                "parameters of update %llu are not offered for averaging: %s; the next offer is "
                "%llu updates later",
                (unsigned long long)a->at, hth_err_text(err),
                (unsigned long long)t->opts.share.every);
    }
    hth_blob_unref(a->values);
    a->values = NULL;
}

void hth_average_offer(struct hth_trainer *t)
{
    struct hth_average *a = &t->average;
    uint64_t every = t->opts.share.every;
    enum hth_avg_reason reason;

    if (a->busy || a->out || every == 0 || t->batch.on || t->stats.updates - a->at < every)
        return;
    a->at = t->stats.updates;
    if (hth_averager_ready(&a->averager, &reason) != HTH_OK)
        return;
    if (hth_fault(t->env, "trainer.snapshot") ||
        hth_env_blob_new(t->env, offer_bytes(t), t->opts.budget, &a->values) != HTH_OK)
        return; /* no memory: a later update offers again */
    a->busy = true;
    a->snapshot.run = snapshot_run;
    a->snapshot.done = snapshot_done;
    a->snapshot.job.bytes_moved = 2.0 * (double)offer_bytes(t);
    hth_queue_push(&t->trunk, &a->snapshot);
}

/* ---- applying a round ------------------------------------------------------------------------ */

/* Adds to[i] += average - copy; returns the sums of squares of the difference and the average. */
static void add_difference(float *to, const float *average, const float *copy, size_t n,
                           double sums[2])
{
    for (size_t i = 0; i < n; i++) {
        float difference = average[i] - copy[i];

        to[i] += difference;
        sums[0] += (double)difference * difference;
        sums[1] += (double)average[i] * average[i];
    }
}

/* Adds average - copy to one buffer. */
static enum hth_err difference_of(struct hth_trainer *t, uint32_t part, double sums[2])
{
    const struct hth_average *a = &t->average;
    const float *average = (const float *)a->mean->data, *copy = (const float *)a->offered->data;
    size_t n = flat_len(t);
    float *flat;

    HTH_TRY(hth_model_flat_take(t->model, part_of[part], &flat));
    add_difference(flat, average + part * n, copy + part * n, n, sums);
    for (size_t i = 0; part_of[part] == HTH_PART_STATE1 && i < n; i++)
        flat[i] = flat[i] > 0 ? flat[i] : 0;
    return hth_model_flat_give(t->model, part_of[part], flat, true);
}

static void difference_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.apply);
    struct hth_average *a = &t->average;
    double sums[2] = {0, 0}, others[2] = {0, 0};

    a->err = difference_of(t, 0, sums);
    for (uint32_t part = 1; part < a->parts && a->err == HTH_OK; part++)
        a->err = difference_of(t, part, others);
    a->distance = sqrt(sums[0]);
    a->norm = sqrt(sums[1]);
}

static void difference_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.apply);
    struct hth_average *a = &t->average;

    a->busy = false;
    hth_blob_unref(a->mean);
    hth_blob_unref(a->offered);
    a->mean = a->offered = NULL;
    if (err == HTH_OK && work->ran && a->err != HTH_OK) {
        hth_trainer_spoilt(t, a->err); /* some of the buffers may have been changed */
        return;
    }
    if (err == HTH_OK) {
        t->stats.share.distance = a->distance;
        t->stats.share.norm = a->norm;
    }
}

static void round_of_params(struct hth_trainer *t, const struct hth_avg_result *result)
{
    struct hth_average *a = &t->average;

    a->out = false;
    if (a->discard || t->newcomer.boot == HTH_BOOT_APPLY) {
        a->discard = false;
        return;
    }
    if (result->err != HTH_OK || result->average == NULL ||
        result->average->size != offer_bytes(t) || result->values == NULL ||
        result->values->size != offer_bytes(t) || a->mean != NULL) {
        t->stats.rounds_failed++;
        HTH_LOG(t->env, HTH_INFO, HTH_SUB_AVG,
                "round for the parameters failed: %s; they stay as they are until the next round",
                hth_avg_reason_text(result->reason));
        return;
    }
    t->stats.rounds++;
    a->busy = true;
    a->mean = hth_blob_ref(result->average);
    a->offered = hth_blob_ref(result->values);
    a->apply.run = difference_run;
    a->apply.done = difference_done;
    a->apply.job.bytes_moved = 4.0 * (double)offer_bytes(t);
    hth_queue_push(&t->trunk, &a->apply);
}

static void on_round(void *arg, const struct hth_avg_result *result)
{
    struct hth_trainer *t = arg;

    if (t->freed)
        return;
    hth_share_tell_round(t->opts.share.roster, &result->round, t->stats.share.distance,
                         t->stats.share.norm);
    round_of_params(t, result);
}

/* ---- life ------------------------------------------------------------------------------------ */

enum hth_err hth_average_start(struct hth_trainer *t)
{
    struct hth_average *a = &t->average;

    a->parts = hth_share_parts(t->model, t->opts.share.states);
    a->at = t->stats.updates;
    a->samples_at = t->stats.samples;
    HTH_TRY(hth_share_spans(t->model, t->opts.share.format, a->parts, &a->spans, &a->span_count));
    return hth_averager_start(&a->averager, on_round, t);
}

void hth_average_clear(struct hth_trainer *t)
{
    hth_blob_unref(t->average.values);
    hth_blob_unref(t->average.mean);
    hth_blob_unref(t->average.offered);
    hth_free(t->average.spans);
}
