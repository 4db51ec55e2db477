/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters, and the optimiser's states where that is asked for, averaged in the background.
 *
 * A job copies them, the averager takes the copy, and training continues. When the round has ended,
 * a job adds average - copy to the parameters as they are then. Adam's second moment stays >= 0.
 *
 * Nobody proves what others bring. So with `clip` a mean is refused that lies further from the copy
 * than HTH_FAR_CHANGES times the largest change of late: how far this trainer's own steps have
 * moved its values since the mean before. Means are no change, so that no series of them widens the
 * bound, nor does a series of refused ones; only a trainer whose rounds all failed may be far off.
 */
#include <math.h>

#include "averaging/reduce.h"
#include "averaging/roster.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "trainer/trainer_int.h"

#define REFUSED_MAX 8 /* means in a row */

static size_t offer_bytes(const struct hth_trainer *t)
{
    return t->average.parts * hth_trunk_floats(t) * sizeof(float);
}

/* ---- offering -------------------------------------------------------------------------------- */

static bool needs_since(const struct hth_trainer *t)
{
    return t->opts.share.clip > 0 && t->average.since == NULL;
}

static void snapshot_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.snapshot);
    struct hth_average *a = &t->average;
    const float *out = (const float *)a->values->data;
    size_t n = hth_trunk_floats(t);

    work->err = hth_run_state_export(t, a->parts, a->values);
    for (uint32_t i = 0; i < a->parts && work->err == HTH_OK && a->since != NULL; i++)
        a->change[i] =
            HTH_MAX(HTH_FAR_FADES * a->change[i],
                    hth_reduce_distance(out + i * n, (const float *)a->since->data + i * n, n));
}

static void snapshot_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.snapshot);
    struct hth_average *a = &t->average;
    double samples = (double)(t->stats.samples - a->samples_at);
    const struct hth_avg_offer offer = {
        .values = a->values,
        .count = a->parts * hth_trunk_floats(t),
        .weight = HTH_MIN(HTH_MAX(samples, 1.0), HTH_AVG_WEIGHT_MAX),
        .schema = hth_settings_schema(&t->settings, HTH_TICKET_PARAMS),
        .spans = a->spans,
        .span_count = a->span_count,
    };

    a->busy = false;
    if (err == HTH_OK && needs_since(t)) {
        a->since = a->values; /* also what it learns before it meets others is its own change */
        a->values = NULL;
        return;
    }
    if (err == HTH_OK)
        err = hth_averager_offer(&a->averager, &offer);
    a->out = err == HTH_OK; /* else it offers again `every` updates later */
    a->samples_at = a->out ? t->stats.samples : a->samples_at;
    hth_blob_unref(a->values);
    a->values = NULL;
}

void hth_average_offer(struct hth_trainer *t)
{
    struct hth_average *a = &t->average;
    uint64_t every = t->opts.share.every;

    if (a->averager.ops == NULL) /* alone: no copy is worth its memory */
        return;
    if (a->busy || a->out || every == 0 || t->batch.on ||
        t->stats.updates - a->at < (needs_since(t) ? 1 : every))
        return;
    a->at = t->stats.updates;
    if (!needs_since(t) && hth_averager_ready(&a->averager) != HTH_OK)
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
    const float *average = (const float *)a->mean->data, *copy = (const float *)a->values->data;
    size_t n = hth_trunk_floats(t);
    float *flat;

    HTH_TRY(hth_model_flat_take(t->model, hth_run_part[part], &flat));
    add_difference(flat, average + part * n, copy + part * n, n, sums);
    for (size_t i = 0; hth_run_part[part] == HTH_PART_STATE1 && i < n; i++)
        flat[i] = flat[i] > 0 ? flat[i] : 0;
    return hth_model_flat_give(t->model, hth_run_part[part], flat, true);
}

static bool is_far(const struct hth_trainer *t)
{
    const struct hth_average *a = &t->average;
    const float *average = (const float *)a->mean->data, *copy = (const float *)a->values->data;
    size_t n = hth_trunk_floats(t);

    for (uint32_t part = 0; t->opts.share.clip > 0 && part < a->parts; part++)
        if (!(hth_reduce_distance(average + part * n, copy + part * n, n) <=
              HTH_FAR_CHANGES * a->change[part])) /* also if the distance is no number */
            return true;
    return false;
}

static void difference_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.apply);
    struct hth_average *a = &t->average;
    double sums[2] = {0, 0}, others[2] = {0, 0};

    a->refused = is_far(t);
    if (a->refused)
        return;
    work->err = difference_of(t, 0, sums);
    for (uint32_t part = 1; part < a->parts && work->err == HTH_OK; part++)
        work->err = difference_of(t, part, others);
    a->distance = sqrt(sums[0]);
    a->norm = sqrt(sums[1]);
}

/* It may be this trainer that is far off: a machine that slept, or is slow. Then it looks where the
 * run is; in vain, if the others lie, and so ever less often. */
static void doubt_oneself(struct hth_trainer *t)
{
    struct hth_average *a = &t->average;

    if (++a->refused_in_row < a->refused_max)
        return;
    a->refused_in_row = 0;
    a->refused_max *= 2;
    hth_newcomer_again(t);
}

/* Told of the first one, and each time that there are twice as many. */
static void count_refused(struct hth_trainer *t)
{
    uint64_t n = ++t->stats.share.means_refused;

    hth_metric_add(t->metrics.means_refused, 1);
    if ((n & (n - 1)) == 0)
        HTH_LOG(t->env, HTH_WARN, HTH_SUB_AVG,
                "a mean is refused (%llu so far): it is further from the own parameters than %g of "
                "their own changes; one of its members is broken, or lies",
                (unsigned long long)n, HTH_FAR_CHANGES);
}

static void difference_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, average.apply);
    struct hth_average *a = &t->average;

    a->busy = false;
    if (err != HTH_OK) {
        hth_trainer_spoilt(t, err); /* some of the buffers may have been changed */
        return;
    }
    if (a->since != NULL) {
        hth_blob_unref(a->since);
        a->since = hth_blob_ref(a->refused ? a->values : a->mean);
    }
    hth_blob_unref(a->mean);
    hth_blob_unref(a->values);
    a->mean = a->values = NULL;
    if (a->refused) {
        count_refused(t);
        doubt_oneself(t);
        return;
    }
    a->refused_in_row = 0;
    a->refused_max = REFUSED_MAX;
    t->stats.share.distance = a->distance;
    t->stats.share.norm = a->norm;
}

static void on_round(void *arg, const struct hth_avg_result *result)
{
    struct hth_trainer *t = arg;
    struct hth_average *a = &t->average;

    if (t->freed)
        return;
    hth_share_tell_round(t->opts.share.roster, &result->round, t->stats.share.distance,
                         t->stats.share.norm);
    a->out = false;
    if (a->discard || t->newcomer.boot == HTH_BOOT_APPLY) {
        a->discard = false;
        return;
    }
    if (result->err != HTH_OK) {
        HTH_LOG(t->env, HTH_INFO, HTH_SUB_AVG,
                "round for the parameters failed: %s; they stay as they are until the next round",
                hth_avg_reason_text(result->reason));
        return;
    }
    a->busy = true;
    a->mean = hth_blob_ref(result->average);
    a->values = hth_blob_ref(result->values);
    a->apply.run = difference_run;
    a->apply.done = difference_done;
    a->apply.job.bytes_moved = 4.0 * (double)offer_bytes(t);
    hth_queue_push(&t->trunk, &a->apply);
}

/* ---- life ------------------------------------------------------------------------------------ */

enum hth_err hth_average_start(struct hth_trainer *t)
{
    struct hth_average *a = &t->average;

    a->parts =
        hth_share_parts(t->model, t->opts.share.states && t->opts.share.mode == HTH_SHARE_LOCAL);
    a->at = t->stats.updates;
    a->samples_at = t->stats.samples;
    a->refused_max = REFUSED_MAX;
    HTH_TRY(hth_share_spans(t->model, t->opts.share.format, a->parts, &a->spans, &a->span_count));
    return hth_averager_start(&a->averager, on_round, t);
}

void hth_average_renew(struct hth_trainer *t)
{
    struct hth_average *a = &t->average;

    a->at = t->stats.updates;
    a->samples_at = t->stats.samples;
    a->discard = a->out;
    hth_blob_unref(a->since);
    a->since = NULL;
}

void hth_average_clear(struct hth_trainer *t)
{
    hth_blob_unref(t->average.since);
    hth_blob_unref(t->average.values);
    hth_blob_unref(t->average.mean);
    hth_free(t->average.spans);
}
