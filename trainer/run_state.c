/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * run_state.c: the state of the run as bytes, for donors to give and newcomers to adopt.
 *
 * The blob is the parameters' values and then each state of the optimiser, flat and fp32; the meta
 * bytes are the position of the run. They hold only what is equal for all members of a run, so that
 * donors at the same step have the same root.
 *
 *   meta:  0 version (4)   4 states (4)   8 floats (8)   16 updates (8)   24 samples (8)
 *          32 steps (8)
 */
/* clang-format on */
#include <math.h>

#include "averaging/state.h"
#include "core/bytes.h"
#include "trainer/trainer_int.h"

#define META_VERSION 3

const enum hth_part hth_run_part[] = {HTH_PART_VALUE, HTH_PART_STATE0, HTH_PART_STATE1};

size_t hth_run_state_bytes(const struct hth_trainer *t)
{
    return hth_share_parts(t->model, true) * hth_trunk_floats(t) * sizeof(float);
}

enum hth_err hth_run_state_export(const struct hth_trainer *t, uint32_t parts, struct hth_blob *out)
{
    size_t n = hth_trunk_floats(t);

    for (uint32_t i = 0; i < parts; i++)
        HTH_TRY(hth_params_export(t->model->exec, t->model->params, hth_run_part[i], 0, n,
                                  (float *)out->data + i * n));
    return HTH_OK;
}

/* ---- giving ---------------------------------------------------------------------------------- */

static void copy_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, newcomer.give);

    work->err = hth_run_state_export(t, hth_share_parts(t->model, true), t->newcomer.given);
}

/* No update comes between the job and this function, so that the counters match the copy. */
static void copy_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, newcomer.give);
    struct hth_newcomer *n = &t->newcomer;
    struct hth_blob *copy = n->given;

    n->given = NULL;
    n->copied(t, err, copy);
    hth_blob_unref(copy);
}

void hth_run_state_copy(struct hth_trainer *t, hth_run_state_copied_fn *copied)
{
    struct hth_newcomer *n = &t->newcomer;
    enum hth_err err = hth_env_blob_new(t->env, hth_run_state_bytes(t), t->opts.budget, &n->given);

    if (err != HTH_OK) {
        copied(t, err, NULL);
        return;
    }
    n->copied = copied;
    n->give.run = copy_run;
    n->give.done = copy_done;
    n->give.job.bytes_moved = 2.0 * (double)hth_run_state_bytes(t);
    hth_queue_push(&t->trunk, &n->give);
}

void hth_run_state_meta(const struct hth_trainer *t, uint8_t out[HTH_RUN_STATE_META])
{
    struct hth_writer w;

    hth_writer_init(&w, out, HTH_RUN_STATE_META);
    hth_write_u32(&w, META_VERSION);
    hth_write_u32(&w, hth_share_parts(t->model, true) - 1);
    hth_write_u64(&w, hth_trunk_floats(t));
    hth_write_u64(&w, t->stats.updates);
    hth_write_u64(&w, t->stats.samples);
    hth_write_u64(&w, hth_params_steps(t->model->params));
}

static void give(struct hth_trainer *t, enum hth_err err, struct hth_blob *copy)
{
    struct hth_state_donor *donor = t->newcomer.donor;
    uint8_t meta[HTH_RUN_STATE_META];

    hth_run_state_meta(t, meta);
    if (donor != NULL && err == HTH_OK)
        err = hth_state_donor_give(donor, t->stats.updates, meta, sizeof(meta), copy);
    if (donor != NULL && err != HTH_OK)
        hth_state_donor_decline(donor);
}

void hth_run_state_want(void *arg)
{
    struct hth_trainer *t = arg;
    struct hth_newcomer *n = &t->newcomer;

    if (n->boot != HTH_BOOT_READY || n->given != NULL || t->stopping)
        hth_state_donor_decline(n->donor);
    else
        hth_run_state_copy(t, give);
}

uint64_t hth_run_state_step(void *arg)
{
    return ((const struct hth_trainer *)arg)->stats.updates;
}

/* ---- adopting -------------------------------------------------------------------------------- */

enum hth_err hth_run_state_open(const struct hth_trainer *t, const uint8_t *meta, size_t len,
                                struct hth_newcomer *out)
{
    struct hth_reader in;

    hth_reader_init(&in, meta, len);
    uint32_t version = hth_read_u32(&in), states = hth_read_u32(&in);
    uint64_t floats = hth_read_u64(&in);
    out->updates = hth_read_u64(&in);
    out->samples = hth_read_u64(&in);
    out->steps = hth_read_u64(&in);
    HTH_TRY(in.err);
    if (version != META_VERSION)
        return HTH_E_VERSION;
    if (hth_reader_left(&in) > 0 || states != hth_share_parts(t->model, true) - 1 ||
        floats != hth_trunk_floats(t))
        return HTH_E_BAD_SHAPE;
    if (out->updates > HTH_AVG_STEP_MAX || out->steps > HTH_AVG_STEP_MAX ||
        out->samples > UINT64_MAX / 2)
        return HTH_E_RANGE;
    return HTH_OK;
}

/* Second moments are means of squares. */
static enum hth_err check_part(const float *v, size_t len, enum hth_part part)
{
    for (size_t i = 0; i < len; i++) {
        if (!isfinite(v[i]))
            return HTH_E_NOT_FINITE;
        if (part == HTH_PART_STATE1 && v[i] < 0)
            return HTH_E_RANGE;
    }
    return HTH_OK;
}

static enum hth_err replace(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;
    const float *values = (const float *)n->values->data;
    size_t len = hth_trunk_floats(t);

    for (uint32_t i = 0; i < hth_share_parts(t->model, true); i++)
        HTH_TRY(check_part(values + i * len, len, hth_run_part[i]));
    for (uint32_t i = 0; i < hth_share_parts(t->model, true); i++)
        HTH_TRY(hth_params_import(t->model->exec, t->model->params, hth_run_part[i], 0, len,
                                  values + i * len));
    hth_params_set_steps(t->model->params, n->steps);
    return HTH_OK;
}

static void adopt_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, newcomer.apply);

    work->err = replace(t);
}

static void adopt_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, newcomer.apply);

    if (err == HTH_OK || err == HTH_E_NOT_FINITE || err == HTH_E_RANGE)
        t->newcomer.adopted(t, err);
    else
        hth_trainer_spoilt(t, err);
}

void hth_run_state_adopt(struct hth_trainer *t, hth_run_state_adopted_fn *adopted)
{
    struct hth_newcomer *n = &t->newcomer;

    n->adopted = adopted;
    n->apply.run = adopt_run;
    n->apply.done = adopt_done;
    n->apply.job.bytes_moved = 3.0 * (double)hth_run_state_bytes(t);
    hth_queue_push(&t->trunk, &n->apply);
}

void hth_run_state_taken(struct hth_trainer *t)
{
    const struct hth_newcomer *n = &t->newcomer;

    t->stats.updates = n->updates;
    t->stats.samples = n->samples;
    t->stats.rows = n->samples * t->model->opts.seq_len;
    t->stats.share.catch_ups++;
    HTH_LOG(t->env, HTH_INFO, HTH_SUB_TRAIN, "goes on from step %llu of the run",
            (unsigned long long)t->stats.updates);
}
