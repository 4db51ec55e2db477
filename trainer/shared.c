/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.c: the trainer's side of a collaboration (collab/collab.h): one batch that all gather.
 *
 * Gradients are means over a micro-batch; the sum holds each times its samples, so that
 *
 *     mean = sum / samples            of this trainer
 *     common = sum over trainers of samples_i * mean_i / sum of samples_i
 *
 * is the gradient of the whole batch, whatever the sizes of micro-batches. A batch that was taken
 * for an average stays as `mean` until it counts, and is taken again with the samples since:
 *
 *     sum, samples --take--> mean, taken --used--> nothing
 *          ^ landings           '---- take again: (taken mean + sum) / (taken + samples)
 */
#include <math.h>
#include <string.h>

#include "averaging/reduce.h"
#include "averaging/roster.h"
#include "averaging/state.h"
#include "collab/collab.h"
#include "collab/collab_file.h"
#include "collab/fold.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "trainer/trainer_int.h"

#define SPEED_FACTOR 0.1

/* ---- gathering ---------------------------------------------------------------------------- */

enum hth_err hth_batch_add(struct hth_trainer *t, const float *grad, double *norm)
{
    size_t n = hth_trunk_floats(t);
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
void hth_batch_added(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;
    int64_t now = hth_now_us(t->env);

    b->samples += t->opts.micro_batch;
    if (b->landed_us > 0 && !t->eval.active) {
        double s = (double)(now - b->landed_us) / 1e6 / t->opts.micro_batch;

        b->s_per_sample += SPEED_FACTOR * (s - b->s_per_sample);
        b->s_weight += SPEED_FACTOR * (1 - b->s_weight);
    }
    b->landed_us = now;
}

/* Samples a second while gathering; 0: not known. */
static double rate_of(const struct hth_batch *b)
{
    return b->s_per_sample > 0 ? b->s_weight / b->s_per_sample : 0;
}

static struct hth_brings brings_of(const struct hth_trainer *t)
{
    const struct hth_batch *b = &t->batch;
    double rate = rate_of(b);
    int64_t each_us = rate > 0 ? (int64_t)(1e6 * t->opts.micro_batch / rate) : 0;
    int64_t since_us = b->landed_us > 0 ? hth_now_us(t->env) - b->landed_us : 0;
    uint64_t samples = b->taken + b->samples, most = t->opts.share.step_samples_max;
    uint64_t air = (uint64_t)t->training * t->opts.micro_batch;
    bool no_more = most > 0 && samples + air + t->opts.micro_batch > most;

    return (struct hth_brings){.samples = (uint32_t)HTH_MIN(samples, (uint64_t)UINT32_MAX / 2),
                               .air = (uint32_t)air,
                               .grain = t->opts.micro_batch,
                               .lands_us = t->training * each_us - since_us,
                               .each_us = no_more ? HTH_BRINGS_NO_MORE : each_us};
}

static enum hth_collab_phase phase_of(const struct hth_trainer *t)
{
    struct hth_collab_stats stats;

    hth_collab_stats(t->collab, &stats);
    return stats.phase;
}

void hth_shared_tell(struct hth_trainer *t)
{
    struct hth_brings brings = brings_of(t);

    hth_collab_brings(t->collab, &brings);
    if (t->opts.share.roster == NULL)
        return;
    uint32_t flags = hth_roster_self(t->opts.share.roster)->flags & ~HTH_ROSTER_BOOTSTRAPPING;
    bool ready = hth_shared_is_ready(t);

    hth_roster_set_flags(t->opts.share.roster, flags | (ready ? 0 : HTH_ROSTER_BOOTSTRAPPING));
    hth_roster_set_progress(t->opts.share.roster, t->stats.updates,
                            t->batch.taken + t->batch.samples, rate_of(&t->batch));
}

/* With `delayed` as many samples as it brought last are gathered while these are averaged. */
static bool may_gather_ahead(const struct hth_trainer *t)
{
    const struct hth_batch *b = &t->batch;
    enum hth_collab_phase phase = phase_of(t);
    uint64_t ours = b->samples + (uint64_t)(t->training + 1) * t->opts.micro_batch;

    return t->opts.share.delayed && b->adopts == NULL &&
           (phase == HTH_COLLAB_AVERAGES || phase == HTH_COLLAB_STEPS) &&
           ours <= HTH_MAX(b->ahead, t->opts.micro_batch);
}

bool hth_shared_may_launch(const struct hth_trainer *t)
{
    struct hth_brings brings = brings_of(t);

    if (t->batch.adopts != NULL || brings.each_us == HTH_BRINGS_NO_MORE)
        return false;
    return hth_collab_may_launch(t->collab, &brings) || may_gather_ahead(t);
}

static void on_fail(void *arg, enum hth_err err)
{
    hth_trainer_fatal(arg, err);
}

static void on_more(void *arg)
{
    struct hth_trainer *t = arg;

    hth_shared_tell(t);
    hth_trainer_pump_soon(t);
}

/* To begin beside trainers with other settings would be a second run. */
static bool on_may_begin(void *arg)
{
    struct hth_trainer *t = arg;

    if (t->opts.share.roster == NULL || !hth_newcomer_is_another_run(t))
        return true;
    hth_trainer_fatal(t, HTH_E_OTHER_SETTINGS);
    return false;
}

/* ---- taking ------------------------------------------------------------------------------- */

static size_t blocks_of(const struct hth_trainer *t)
{
    return (hth_trunk_floats(t) + HTH_AVG_BLOCK_FLOATS - 1) / HTH_AVG_BLOCK_FLOATS;
}

/* A mean of honest gradients is not much larger than the largest that this trainer took lately. A
 * stretch that it rarely touches may have what is usual elsewhere. */
static void bound_means(struct hth_trainer *t, const float *mean)
{
    float *far = t->batch.far;
    size_t n = hth_trunk_floats(t);
    double sum = 0;

    for (size_t first = 0; first < n; first += HTH_AVG_BLOCK_FLOATS) {
        float *its = &far[first / HTH_AVG_BLOCK_FLOATS];
        double squares = 0;

        for (size_t i = first; i < HTH_MIN(n, first + HTH_AVG_BLOCK_FLOATS); i++)
            squares += (double)mean[i] * mean[i];
        *its = HTH_MAX(HTH_FAR_FADES * *its, HTH_FAR_CHANGES * (float)sqrt(squares));
        sum += squares;
    }
    for (size_t k = 0; k < blocks_of(t); k++) {
        size_t count = HTH_MIN(n - k * HTH_AVG_BLOCK_FLOATS, HTH_AVG_BLOCK_FLOATS);

        far[k] = HTH_MAX(far[k], HTH_FAR_CHANGES * (float)sqrt(sum * (double)count / (double)n));
    }
}

static void take_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, batch.take);
    struct hth_batch *b = &t->batch;
    const float *before = b->mean != NULL ? (const float *)b->mean->data : NULL;
    float all = (float)(b->taken + b->samples);
    size_t n = hth_trunk_floats(t);

    if (b->taking == NULL || all == 0)
        return;
    float *mean = (float *)b->taking->data;
    for (size_t i = 0; i < n; i++)
        mean[i] = (b->sum[i] + (before != NULL ? (float)b->taken * before[i] : 0)) / all;
    memset(b->sum, 0, n * sizeof(float));
    if (b->far != NULL)
        bound_means(t, mean);
}

static void take_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, batch.take);
    struct hth_batch *b = &t->batch;

    if (err != HTH_OK) {
        hth_trainer_fatal(t, err);
        return;
    }
    if (b->taking == NULL) {
        hth_collab_taken(t->collab, HTH_E_NO_MEMORY, NULL, 0);
        return;
    }
    hth_blob_unref(b->taken + b->samples > 0 ? b->mean : b->taking);
    b->mean = b->taken + b->samples > 0 ? b->taking : NULL;
    b->taking = NULL;
    b->taken += b->samples;
    b->samples = 0;
    b->ahead = b->taken;
    b->landed_us = t->opts.share.delayed ? b->landed_us : 0; /* to wait is no measure of speed */
    hth_collab_taken(t->collab, b->mean != NULL ? HTH_OK : HTH_E_STALE, b->mean, b->taken);
    hth_trainer_pump_soon(t);
}

static void on_take(void *arg)
{
    struct hth_trainer *t = arg;
    struct hth_batch *b = &t->batch;
    size_t bytes = hth_trunk_floats(t) * sizeof(float);

    if (hth_env_blob_new(t->env, bytes, t->opts.budget, &b->taking) != HTH_OK)
        b->taking = NULL;
    b->take.run = take_run;
    b->take.done = take_done;
    b->take.job.bytes_moved = 4.0 * (double)bytes;
    hth_queue_push(&t->trunk, &b->take);
}

static void on_used(void *arg)
{
    struct hth_trainer *t = arg;

    hth_blob_unref(t->batch.mean);
    t->batch.mean = NULL;
    t->batch.taken = 0;
}

/* ---- stepping ----------------------------------------------------------------------------- */

static void tell_round(const struct hth_trainer *t)
{
    struct hth_collab_stats stats;

    hth_collab_stats(t->collab, &stats);
    if (stats.averages.rounds > 0)
        hth_share_tell_round(t->opts.share.roster, &stats.averages.last, 0, 0);
}

static void step_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, batch.step);
    struct hth_batch *b = &t->batch;

    work->err = hth_step_trunk(t, (const float *)b->common->data, &b->grad_norm, &b->lr);
}

static void step_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, batch.step);
    struct hth_batch *b = &t->batch;

    hth_blob_unref(b->common);
    b->common = NULL;
    if (err != HTH_OK && err != HTH_E_NOT_FINITE) {
        hth_trainer_spoilt(t, err);
        return;
    }
    t->stats.flights_not_finite += err != HTH_OK; /* nobody steps on it, and all count it as done */
    hth_count_update(t, (uint64_t)t->stats.share.weight, b->grad_norm, b->lr);
    b->landed_us = hth_now_us(t->env);
    hth_collab_stepped(t->collab);
    tell_round(t);
    hth_shared_tell(t);
    hth_tell_update(t);
    hth_trainer_pump_soon(t);
}

static void on_step(void *arg, struct hth_blob *mean, uint64_t samples,
                    const struct hth_chain_link *link)
{
    struct hth_trainer *t = arg;
    struct hth_batch *b = &t->batch;
    double floats = (double)hth_trunk_floats(t);

    HTH_ASSERT(t->stats.updates + 1 == link->step);
    b->common = hth_blob_ref(mean);
    t->stats.share.weight = (double)samples;
    t->stats.share.steps_alone += link->count == 1;
    t->stats.share.steps_shared += link->count > 1;
    b->step.run = step_run;
    b->step.done = step_done;
    b->step.job.flops = 12 * floats;
    b->step.job.bytes_moved = 36 * floats;
    hth_queue_push(&t->trunk, &b->step);
}

/* ---- states ------------------------------------------------------------------------------- */

static void copied(struct hth_trainer *t, enum hth_err err, struct hth_blob *copy)
{
    uint8_t meta[HTH_RUN_STATE_META];

    hth_run_state_meta(t, meta);
    hth_collab_copied(t->collab, err, copy, meta, sizeof(meta));
}

static void on_copy(void *arg)
{
    hth_run_state_copy(arg, copied);
}

/* Samples that were gathered on other parameters are of no use. */
static void drop_batch(struct hth_trainer *t)
{
    struct hth_batch *b = &t->batch;

    hth_blob_unref(b->mean);
    b->mean = NULL;
    b->taken = b->samples = 0;
    memset(b->sum, 0, hth_trunk_floats(t) * sizeof(float));
    b->landed_us = hth_now_us(t->env);
}

static void adopted(struct hth_trainer *t, enum hth_err err)
{
    hth_blob_unref(t->newcomer.values);
    t->newcomer.values = NULL;
    if (err == HTH_OK) {
        hth_run_state_taken(t);
        drop_batch(t);
    }
    hth_collab_adopted(t->collab, err);
    hth_shared_tell(t);
    hth_trainer_pump_soon(t);
}

/* Flights in the air were begun with other weights: they land first. */
static void on_adopt(void *arg, const struct hth_state_result *state, const uint8_t *meta,
                     size_t meta_len)
{
    struct hth_trainer *t = arg;
    enum hth_err err = hth_run_state_open(t, meta, meta_len, &t->newcomer);

    t->stats.share.state_bytes += state->bytes;
    t->stats.share.state_us = state->took_us;
    if (err != HTH_OK) {
        hth_collab_adopted(t->collab, err);
        return;
    }
    t->batch.adopts = hth_blob_ref(state->values);
    hth_trainer_pump_soon(t);
}

void hth_shared_pump(struct hth_trainer *t)
{
    if (t->batch.adopts == NULL || t->training > 0)
        return;
    t->newcomer.values = t->batch.adopts;
    t->batch.adopts = NULL;
    hth_run_state_adopt(t, adopted);
}

/* ---- life --------------------------------------------------------------------------------- */

/* A trainer that has taken all its steps, by its checkpoint, needs no others, and no state of
 * theirs. */
static bool is_over(const struct hth_trainer *t)
{
    return t->stats.updates >= t->opts.updates_max;
}

bool hth_shared_is_ready(const struct hth_trainer *t)
{
    return is_over(t) || phase_of(t) >= HTH_COLLAB_GATHERS;
}

static enum hth_err make_batch(struct hth_trainer *t)
{
    size_t bytes = hth_trunk_floats(t) * sizeof(float);

    t->batch.on = true;
    t->batch.sum = hth_try_aligned(bytes);
    if (t->batch.sum == NULL)
        return HTH_E_NO_MEMORY;
    memset(t->batch.sum, 0, bytes);
    if (t->opts.share.clip > 0)
        t->batch.far = hth_new_array(float, blocks_of(t));
    return HTH_OK;
}

void hth_batch_clear(struct hth_trainer *t)
{
    hth_blob_unref(t->batch.mean);
    hth_blob_unref(t->batch.common);
    hth_blob_unref(t->batch.taking);
    hth_blob_unref(t->batch.adopts);
    hth_aligned_free(t->batch.sum);
    hth_free(t->batch.far);
}

static char *vote_path(const struct hth_trainer *t)
{
    return hth_asprintf("%s.vote", t->checkpoint_path);
}

/* A file that can't be removed may be read again, and is not believed. NULL: there is none. */
static struct hth_blob *take_vote(struct hth_trainer *t)
{
    struct hth_blob *bytes = NULL;
    char *path = t->checkpoint_path != NULL ? vote_path(t) : NULL;
    enum hth_err err = path == NULL
                           ? HTH_E_NO_FILE
                           : hth_file_read(t->env, path, HTH_COLLAB_FILE_BYTES_MAX, &bytes);
    enum hth_err gone = err != HTH_E_NO_FILE ? hth_file_remove(t->env, path) : HTH_OK;

    err = err == HTH_OK ? gone : err;
    if (err != HTH_OK && err != HTH_E_NO_FILE)
        HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN,
                "%s can't be used: %s; this trainer joins its run anew, without a vote", path,
                hth_err_text(err));
    if (err != HTH_OK) {
        hth_blob_unref(bytes);
        bytes = NULL;
    }
    hth_free(path);
    return bytes;
}

enum hth_err hth_shared_start(struct hth_trainer *t)
{
    static const struct hth_collab_ops ops = {.take = on_take,
                                              .used = on_used,
                                              .step = on_step,
                                              .copy = on_copy,
                                              .adopt = on_adopt,
                                              .more = on_more,
                                              .may_begin = on_may_begin,
                                              .fail = on_fail};
    const struct hth_share_opts *o = &t->opts.share;
    struct hth_collab_opts opts =
        hth_share_collab(t->model, &t->settings, o, t->average.spans, t->average.span_count);

    if (o->mode != HTH_SHARE_BATCH)
        return HTH_OK;
    if (t->opts.rpc == NULL || o->dht == NULL || o->reducer == NULL || o->network == NULL ||
        o->look_us < 0 || (o->step_samples_max > 0 && o->step_samples_max < t->opts.micro_batch))
        return HTH_E_CONFIG;
    HTH_TRY(make_batch(t));
    opts.life = hth_rng_u64(&t->rng);
    opts.step = t->stats.updates;
    opts.samples = t->stats.samples;
    opts.budget = t->opts.budget;
    opts.far = t->batch.far;
    if (o->roster != NULL) {
        hth_settings_set(o->roster, &t->settings, HTH_TICKET_PARAMS);
        hth_roster_set_flags(o->roster,
                             hth_roster_self(o->roster)->flags | HTH_ROSTER_BOOTSTRAPPING);
    }
    struct hth_blob *vote = take_vote(t);
    opts.frozen = t->opts.resume && !opts.bootstrap ? vote : NULL;
    enum hth_err err = hth_collab_new(t->env, t->opts.rpc, &opts, &ops, t, &t->collab);
    hth_blob_unref(vote);
    return err;
}

void hth_shared_begin(struct hth_trainer *t)
{
    if (!is_over(t))
        hth_collab_start(t->collab);
}

void hth_shared_save(struct hth_trainer *t)
{
    struct hth_blob *bytes;
    char *path;

    if (!t->ckpt.last_ok || t->ckpt.on_disk != t->stats.updates ||
        hth_collab_save(t->collab, t->stats.updates, &bytes) != HTH_OK)
        return;
    const struct hth_span span = {bytes, 0, bytes->size};
    path = vote_path(t);
    enum hth_err err = hth_file_write(t->env, path, &span, 1);
    if (err != HTH_OK)
        HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN,
                "%s was not written: %s; this trainer will join its run anew, without a vote", path,
                hth_err_text(err));
    hth_blob_unref(bytes);
    hth_free(path);
}

void hth_trainer_contribution(const struct hth_trainer *t, struct hth_contribution *out)
{
    const struct hth_choice *choice = t->collab != NULL ? hth_collab_choice(t->collab) : NULL;
    struct hth_fold *fold = NULL;

    *out = (struct hth_contribution){.samples = 0};
    if (choice != NULL && choice->tip != HTH_LINK_NONE)
        fold = hth_fold_upto(choice->chain, choice->tip);
    if (fold == NULL)
        return;
    out->of = hth_chain_samples(choice->chain, choice->tip);
    out->peers = fold->count;
    for (uint32_t i = 0; i < fold->count; i++)
        if (hth_peer_id_eq(&fold->peer[i].id, &t->env->self))
            out->samples = fold->peer[i].samples;
    for (uint32_t i = 0; i < fold->count && out->samples > 0; i++)
        out->rank += fold->peer[i].samples > out->samples;
    out->rank += out->samples > 0;
    hth_free(fold);
}
