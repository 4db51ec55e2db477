/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial.c: a state of others is tried before it is taken. Nobody proves that a state is good; a
 * newcomer sees for itself that a few micro-batches of its own data lose no more with it than with
 * what it has, and else keeps that.
 *
 *   OWN --loss of the own parameters--> their copy --> the state is taken up --> NEW
 *   NEW --its loss--> HTH_OK
 *          '-- worse --> the copy is taken up --> E_RANGE
 */
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "trainer/trainer_int.h"

#define FLIGHTS 4u
#define MARGIN  1.1 /* of a loss; different rows of a run differ by less */

static void end(struct hth_trainer *t, enum hth_err err)
{
    struct hth_trial *trial = &t->trial;

    hth_blob_unref(t->newcomer.values);
    hth_blob_unref(trial->own);
    t->newcomer.values = trial->own = NULL;
    void (*done)(struct hth_trainer * t, enum hth_err err) = trial->done;
    trial->done = NULL;
    done(t, err);
}

/* ---- losses ---------------------------------------------------------------------------------- */

static void measure(struct hth_trainer *t, bool own)
{
    struct hth_trial *trial = &t->trial;

    trial->on = true;
    trial->is_own = own;
    trial->next = trial->in_air = trial->landed = 0;
    trial->sum = 0;
    hth_trainer_pump_soon(t);
}

bool hth_trial_next(struct hth_trainer *t, struct hth_flight *f)
{
    struct hth_trial *trial = &t->trial;

    if (trial->next == FLIGHTS)
        return false;
    f->eval = f->trial = true;
    f->position = (uint64_t)trial->next * t->opts.micro_batch;
    f->valid = t->opts.micro_batch;
    f->pass->step = trial->next++;
    trial->in_air++;
    return true;
}

static void copied(struct hth_trainer *t, enum hth_err err, struct hth_blob *copy);
static void restore(struct hth_trainer *t);

static void measured(struct hth_trainer *t, double loss)
{
    struct hth_trial *trial = &t->trial;

    trial->on = false;
    if (trial->is_own) {
        trial->own_loss = loss;
        hth_run_state_copy(t, copied);
    } else if (loss <= MARGIN * trial->own_loss) {
        end(t, HTH_OK);
    } else {
        t->stats.share.states_refused++;
        HTH_LOG(
            t->env, HTH_WARN, HTH_SUB_TRAIN,
            "the state of step %llu is not taken: with it the loss of the own data is %.3g, and "
            "%.3g without",
            (unsigned long long)t->newcomer.updates, loss, trial->own_loss);
        restore(t);
    }
}

void hth_trial_landed(struct hth_trainer *t, struct hth_flight *f, enum hth_err err)
{
    struct hth_trial *trial = &t->trial;

    f->trial = false;
    trial->in_air--;
    if (err == HTH_OK) {
        trial->sum += hth_pass_loss(f->pass);
        trial->landed++;
    } else if (err == HTH_E_NOT_FINITE) {
        trial->sum = INFINITY;
    }
    if (trial->in_air == 0 && trial->next == FLIGHTS && !t->stopping)
        measured(t, trial->landed > 0 ? trial->sum / trial->landed : INFINITY);
}

/* ---- states ---------------------------------------------------------------------------------- */

static void restored(struct hth_trainer *t, enum hth_err err)
{
    if (err == HTH_OK)
        end(t, HTH_E_RANGE);
    else
        hth_trainer_spoilt(t, err);
}

static void restore(struct hth_trainer *t)
{
    hth_blob_unref(t->newcomer.values);
    t->newcomer.values = hth_blob_ref(t->trial.own);
    t->newcomer.steps = t->trial.own_steps;
    hth_run_state_adopt(t, restored);
}

static void adopted(struct hth_trainer *t, enum hth_err err)
{
    if (err == HTH_OK)
        measure(t, false);
    else
        end(t, err);
}

static void copied(struct hth_trainer *t, enum hth_err err, struct hth_blob *copy)
{
    if (err != HTH_OK) {
        HTH_LOG(t->env, HTH_WARN, HTH_SUB_TRAIN,
                "the state of step %llu can't be tried: %s; give this trainer more memory",
                (unsigned long long)t->newcomer.updates, hth_err_text(err));
        end(t, HTH_E_RANGE);
        return;
    }
    t->trial.own = hth_blob_ref(copy);
    t->trial.own_steps = hth_params_steps(t->model->params);
    hth_run_state_adopt(t, adopted);
}

void hth_trial_begin(struct hth_trainer *t, void (*done)(struct hth_trainer *t, enum hth_err err))
{
    t->trial.done = done;
    measure(t, true);
}
