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
 *          32 steps (8)    40 the lineage (lineage.h)
 */
/* clang-format on */
#include <math.h>

#include "averaging/state.h"
#include "core/bytes.h"
#include "trainer/trainer_int.h"

#define META_VERSION 2
#define META_BYTES   (40 + HTH_LINEAGE_BYTES)

static const enum hth_part part_of[] = {HTH_PART_VALUE, HTH_PART_STATE0, HTH_PART_STATE1};

static uint32_t part_count(const struct hth_trainer *t)
{
    return 1 + HTH_MIN(hth_params_state_slots(t->model->params), 2u);
}

size_t hth_run_state_bytes(const struct hth_trainer *t)
{
    return part_count(t) * hth_params_flat_len(t->model->params) * sizeof(float);
}

/* ---- giving ---------------------------------------------------------------------------------- */

static void give_run(struct hth_work *work)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, newcomer.give);
    struct hth_newcomer *n = &t->newcomer;
    size_t len = hth_params_flat_len(t->model->params);

    n->err = HTH_OK;
    for (uint32_t i = 0; i < part_count(t) && n->err == HTH_OK; i++)
        n->err = hth_params_export(t->model->exec, t->model->params, part_of[i], 0, len,
                                   (float *)n->given->data + i * len);
}

/* Trainers that average parameters keep no lineage: they send one that begins at this step. */
static void write_meta(const struct hth_trainer *t, uint8_t out[META_BYTES])
{
    struct hth_lineage lineage = t->lineage;
    struct hth_writer w;

    if (!t->batch.on)
        hth_lineage_init(&lineage, t->stats.updates);
    hth_writer_init(&w, out, META_BYTES);
    hth_write_u32(&w, META_VERSION);
    hth_write_u32(&w, part_count(t) - 1);
    hth_write_u64(&w, hth_params_flat_len(t->model->params));
    hth_write_u64(&w, t->stats.updates);
    hth_write_u64(&w, t->stats.samples);
    hth_write_u64(&w, hth_params_steps(t->model->params));
    hth_lineage_write(&lineage, &w);
}

/* No update comes between the job and this function, so that the counters match the copy. */
static void give_done(struct hth_work *work, enum hth_err err)
{
    struct hth_trainer *t = HTH_CONTAINER(work, struct hth_trainer, newcomer.give);
    struct hth_newcomer *n = &t->newcomer;
    uint8_t meta[META_BYTES];

    n->giving = false;
    if (err == HTH_OK && work->ran)
        err = n->err;
    write_meta(t, meta);
    if (n->donor != NULL && err == HTH_OK)
        err = hth_state_donor_give(n->donor, t->stats.updates, meta, sizeof(meta), n->given);
    if (n->donor != NULL && err != HTH_OK)
        hth_state_donor_decline(n->donor);
    hth_blob_unref(n->given);
    n->given = NULL;
}

void hth_run_state_want(void *arg)
{
    struct hth_trainer *t = arg;
    struct hth_newcomer *n = &t->newcomer;

    if (n->boot != HTH_BOOT_READY || n->approximate || n->giving || t->stopping ||
        hth_env_blob_new(t->env, hth_run_state_bytes(t), t->opts.budget, &n->given) != HTH_OK) {
        hth_state_donor_decline(n->donor);
        return;
    }
    n->giving = true;
    n->give.run = give_run;
    n->give.done = give_done;
    n->give.job.bytes_moved = 2.0 * (double)hth_run_state_bytes(t);
    hth_queue_push(&t->trunk, &n->give);
}

uint64_t hth_run_state_step(void *arg)
{
    return ((const struct hth_trainer *)arg)->stats.updates;
}

/* ---- adopting -------------------------------------------------------------------------------- */

enum hth_err hth_run_state_open(const struct hth_trainer *t, const struct hth_state_result *r,
                                struct hth_newcomer *out)
{
    struct hth_reader in;
    uint32_t version, states;
    uint64_t floats;

    hth_reader_init(&in, r->meta, r->meta_len);
    version = hth_read_u32(&in);
    states = hth_read_u32(&in);
    floats = hth_read_u64(&in);
    out->updates = hth_read_u64(&in);
    out->samples = hth_read_u64(&in);
    out->steps = hth_read_u64(&in);
    if (in.err == HTH_OK && version != META_VERSION)
        return HTH_E_VERSION;
    HTH_TRY(hth_lineage_read(&in, out->updates, &out->lineage));
    if (hth_reader_left(&in) > 0 || states != part_count(t) - 1 ||
        floats != hth_params_flat_len(t->model->params))
        return HTH_E_BAD_SHAPE;
    if (out->updates != r->step || out->updates > HTH_AVG_STEP_MAX ||
        out->steps > HTH_AVG_STEP_MAX || out->samples > UINT64_MAX / 2)
        return HTH_E_RANGE;
    if (out->yields_to.step != 0) { /* the state must be of the branch that won the vote */
        uint64_t mark = hth_lineage_at(&out->lineage, out->yields_to.step);

        if (mark != 0 && mark != out->yields_to.mark)
            return HTH_E_STALE;
    }
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

enum hth_err hth_run_state_take_up(struct hth_trainer *t)
{
    struct hth_newcomer *n = &t->newcomer;
    const float *values = (const float *)n->values->data;
    size_t len = hth_params_flat_len(t->model->params);

    for (uint32_t i = 0; i < part_count(t); i++)
        HTH_TRY(check_part(values + i * len, len, part_of[i]));
    for (uint32_t i = 0; i < part_count(t); i++)
        HTH_TRY(hth_params_import(t->model->exec, t->model->params, part_of[i], 0, len,
                                  values + i * len));
    hth_params_set_steps(t->model->params, n->steps);
    return HTH_OK;
}
