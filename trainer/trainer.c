/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.c: creates and ends a trainer, and decides which flight starts when. */
#include <stdio.h>
#include <string.h>

#include "collab/collab.h"
#include "core/mem.h"
#include "trainer/trainer_int.h"

#define WAIT_EXPERTS_US (200 * HTH_US_PER_MS)

/* ---- which flight starts when ---------------------------------------------------------------- */

static void pump_timer(void *arg)
{
    hth_trainer_pump(arg);
}

void hth_trainer_pump_soon(struct hth_trainer *t)
{
    hth_timer_set(t->env, t->pump_timer, 0);
}

static uint32_t grids_of(const struct hth_trainer *t)
{
    return t->model->opts.dense ? 0 : hth_model_sets(&t->model->opts);
}

/* Whether each layer has enough live experts. Training without any would teach only the residual
 * path, which only the control wants. */
static bool experts_ready(struct hth_trainer *t)
{
    bool ready = true;

    for (uint32_t l = 0; l < grids_of(t); l++) {
        uint32_t live = hth_transport_view(t->transport, l)->live_count;

        if (live < t->opts.experts_min && !t->opts.without_experts) {
            ready = false;
            if (live == 0)
                hth_transport_ask(t->transport, l);
        }
    }
    return ready;
}

static bool wait_for_experts(struct hth_trainer *t)
{
    int64_t now = hth_now_us(t->env);

    if (experts_ready(t) && !hth_starved_waits(t)) {
        if (t->stats.starved) /* it only tries */
            return false;
        if (t->stats.waiting)
            t->stats.waiting_us += now - t->waiting_since_us;
        t->stats.waiting = false;
        return false;
    }
    if (!t->stats.waiting) {
        t->stats.waiting = true;
        t->waiting_since_us = now;
        if (!t->stats.starved)
            HTH_LOG(t->env, HTH_INFO, HTH_SUB_TRAIN, "waiting for experts to appear");
    }
    hth_timer_set(t->env, t->pump_timer, WAIT_EXPERTS_US);
    return true;
}

static bool training_next(struct hth_trainer *t, struct hth_flight *f)
{
    if (t->stats.updates + (t->batch.on ? 0 : t->training) >= t->opts.updates_max ||
        (t->stats.starved && t->training > 0) || (t->batch.on && !hth_shared_may_launch(t)))
        return false;
    f->eval = false;
    f->position = t->launched * t->opts.micro_batch;
    f->valid = t->opts.micro_batch;
    f->pass->step = t->launched++;
    t->training++;
    return true;
}

static bool next(struct hth_trainer *t, struct hth_flight *f)
{
    if (t->trial.on)
        return hth_trial_next(t, f);
    return hth_eval_next(t, f) || training_next(t, f);
}

static void launch(struct hth_trainer *t)
{
    for (uint32_t i = 0; i < t->opts.flights; i++) {
        struct hth_flight *f = &t->flights[i];

        if (f->busy)
            continue;
        if (!next(t, f))
            return;
        f->busy = true;
        t->in_air++;
        hth_flight_start(f);
        if (t->collab != NULL && !f->eval)
            hth_shared_tell(t);
    }
}

static void finish(struct hth_trainer *t, enum hth_err err)
{
    t->finished = true;
    if (t->opts.on.on_done != NULL)
        t->opts.on.on_done(t->opts.on.arg, err);
}

/* A trainer that keeps its vote writes one more, even of the same step: it may have adopted the
 * parameters of another branch since. */
static bool checkpoint_due(const struct hth_trainer *t)
{
    bool last = t->stopping && t->collab != NULL && t->stats.updates > 0 && !t->ckpt.last;

    /* The parameters of a trial are nobody's yet. */
    return t->checkpoint_path != NULL && !t->spoilt && t->trial.done == NULL &&
           (t->ckpt.at != t->stats.updates || last);
}

/* No flight is in the air and none will start: saves, evaluates what was saved, then calls
 * back. */
static void wind_up(struct hth_trainer *t)
{
    if (t->ckpt.busy)
        return;
    if (checkpoint_due(t)) { /* also after an earlier failure; one attempt */
        hth_checkpoint_take(t);
    } else if (!t->stopping && t->opts.eval_every > 0 && t->evaluated_at != t->stats.updates) {
        hth_eval_begin(t);
        launch(t);
    } else if (t->stopping) {
        hth_fn *done = t->stop_done;

        t->stop_done = NULL;
        if (done != NULL && t->collab != NULL)
            hth_shared_save(t);
        if (done != NULL)
            done(t->stop_arg);
    } else {
        finish(t, HTH_OK);
    }
}

static void look_at_the_clock(struct hth_trainer *t)
{
    const struct hth_trainer_opts *o = &t->opts;

    if (hth_eval_is_due(t))
        t->eval.wanted = true;
    if (t->checkpoint_path != NULL && o->checkpoint_every > 0 && !t->ckpt.busy &&
        t->stats.updates - t->ckpt.at >= o->checkpoint_every)
        t->ckpt.wanted = true;
}

void hth_trainer_pump(struct hth_trainer *t)
{
    if (t->fatal) {
        if (t->in_air == 0 && !t->finished)
            finish(t, t->fatal_err);
        if (t->in_air == 0 && t->stopping && t->stop_done != NULL)
            wind_up(t);
        return;
    }
    if (t->stopping) {
        if (t->in_air == 0)
            wind_up(t);
        return;
    }
    if (t->started && t->collab != NULL)
        hth_shared_pump(t);
    if (!t->started || t->finished || (!t->trial.on && !hth_newcomer_ready(t)))
        return;
    if (t->trial.on) {
        if (t->training == 0 && !wait_for_experts(t))
            launch(t);
        return;
    }
    look_at_the_clock(t);
    if (t->ckpt.dir != NULL && t->eval.wanted && !t->eval.active && checkpoint_due(t))
        t->ckpt.wanted = true; /* of what is evaluated */
    if (t->ckpt.wanted) {
        if (t->in_air == 0 && !t->ckpt.busy)
            hth_checkpoint_take(t);
        return;
    }
    if (t->eval.wanted && !t->eval.active)
        hth_eval_begin(t);
    if (t->stats.updates >= t->opts.updates_max && !t->eval.active && t->in_air == 0) {
        wind_up(t);
        return;
    }
    if (!wait_for_experts(t))
        launch(t);
}

void hth_trainer_fatal(struct hth_trainer *t, enum hth_err err)
{
    if (t->fatal)
        return;
    t->fatal = true;
    t->fatal_err = err;
    t->stopping |= t->stop_done != NULL; /* it waited for leave, which nobody answers now */
    t->spoilt |= err == HTH_E_NOT_FINITE;
    /* A canceled job means that the program ends, which is no error. */
    HTH_LOG(t->env, err == HTH_E_CANCELED ? HTH_DEBUG : HTH_ERROR, HTH_SUB_TRAIN,
            "training stops after %llu updates: %s", (unsigned long long)t->stats.updates,
            hth_err_text(err));
    if (err == HTH_E_NOT_FINITE && t->transport->stats.top_gain > 0) {
        char id[HTH_PEER_SHORT_LEN];

        HTH_LOG(t->env, HTH_ERROR, HTH_SUB_TRAIN,
                "the largest answers since the last update, %.3g times their inputs, came from "
                "host %s; it may be the cause",
                t->transport->stats.top_gain, hth_peer_id_short(&t->transport->stats.top_host, id));
    }
    hth_trainer_pump_soon(t);
}

void hth_trainer_spoilt(struct hth_trainer *t, enum hth_err err)
{
    t->spoilt = true;
    hth_trainer_fatal(t, err);
}

void hth_trainer_landed(struct hth_trainer *t, struct hth_flight *f)
{
    hth_pass_reset(f->pass);
    f->busy = false;
    t->in_air--;
    if (f->eval)
        t->stats.eval_us += hth_now_us(t->env) - f->begun_us;
    else
        t->training--;
    if (t->collab != NULL && !f->eval)
        hth_shared_tell(t);
    hth_trainer_pump_soon(t);
}

/* ---- life ------------------------------------------------------------------------------------ */

static enum hth_err check_opts(const struct hth_trainer_opts *o)
{
    if (o->flights == 0 || o->flights > HTH_FLIGHTS_MAX || o->micro_batch == 0 ||
        o->micro_batch > HTH_MICRO_BATCH_MAX || o->updates_max == 0)
        return HTH_E_CONFIG;
    if (!o->local && (o->rpc == NULL || o->directory == NULL || o->without_experts))
        return HTH_E_CONFIG;
    if ((o->eval_every > 0 && !o->has_eval_data) || o->keep > HTH_KEPT_MAX)
        return HTH_E_CONFIG;
    if (hth_optim_check(&o->optim.optim) != HTH_OK ||
        (o->local && hth_optim_check(&o->local_optim.optim) != HTH_OK))
        return HTH_E_CONFIG;
    return HTH_OK;
}

static enum hth_err open_data(struct hth_trainer *t)
{
    HTH_TRY(hth_data_open(t->env, &t->opts.data, &t->data));
    hth_data_info(t->data, &t->data_info);
    if (!hth_model_takes(&t->opts.model, &t->opts.data, &t->data_info))
        return HTH_E_CONFIG;
    if (!t->opts.has_eval_data)
        return HTH_OK;
    HTH_TRY(hth_data_open(t->env, &t->opts.eval_data, &t->eval_data));
    hth_data_info(t->eval_data, &t->eval_info);
    return hth_model_takes(&t->opts.model, &t->opts.eval_data, &t->eval_info) ? HTH_OK
                                                                              : HTH_E_CONFIG;
}

static enum hth_err make_transport(struct hth_trainer *t)
{
    struct hth_grid grids[HTH_MODEL_LAYERS_MAX];
    struct hth_transport_opts o = {
        .env = t->env,
        .layers = grids_of(t),
        .grids = grids,
        .expert_kind = t->model->opts.expert_kind,
        .d = t->model->opts.d,
        .block_rows = t->model->block_rows,
        .heads = t->model->block_rows > 1 ? t->model->opts.heads : 0,
        .rpc = t->opts.rpc,
        .directory = t->opts.directory,
        .grace_us = t->opts.grace_us,
        .timeout_us = t->opts.timeout_us,
        .wire = t->opts.wire,
        .budget = t->opts.budget,
        .queue = &t->trunk,
        .backend = t->model->backend,
        .optim = &t->opts.local_optim,
        .without_experts = t->opts.without_experts,
        .step_rows = t->opts.local_step_rows,
        .run_seed = t->opts.model.seed,
        .run = t->run,
        .run_text = t->opts.run_text,
        .experts_dir = t->opts.resume ? t->experts_dir : NULL,
        .experts_needed = t->ckpt.known,
        .why = t->opts.why,
    };

    for (uint32_t l = 0; l < o.layers; l++)
        grids[l] = *hth_model_grid(t->model, l);
    return t->opts.local ? hth_transport_local_new(&o, &t->transport)
                         : hth_transport_net_new(&o, &t->transport);
}

static enum hth_err make_flights(struct hth_trainer *t)
{
    t->flights = hth_try_calloc(t->opts.flights, sizeof(*t->flights));
    if (t->flights == NULL)
        return HTH_E_NO_MEMORY;
    for (uint32_t i = 0; i < t->opts.flights; i++) {
        t->flights[i].trainer = t;
        HTH_TRY(hth_pass_new(t->model, t->opts.micro_batch, &t->flights[i].pass));
    }
    return HTH_OK;
}

static enum hth_err open_kept(struct hth_trainer *t)
{
    const char *path = t->checkpoint_path, *slash;
    enum hth_err err;

    if (t->opts.keep == 0 || path == NULL)
        return HTH_OK;
    slash = strrchr(path, '/');
    t->ckpt.dir = slash != NULL ? hth_asprintf("%.*s", (int)(slash - path), path) : hth_strdup(".");
    if (!t->opts.resume)
        return HTH_OK;
    err = hth_saved_read(t->env, t->ckpt.dir, &t->ckpt.kept);
    return err != HTH_E_CORRUPT
               ? err
               : hth_blame(t->opts.why, err,
                           "kept/kept.safetensors beside it is damaged: move the folder kept away");
}

static enum hth_err resume(struct hth_trainer *t)
{
    enum hth_err err;

    HTH_TRY(open_kept(t));
    if (!t->opts.resume || t->checkpoint_path == NULL)
        return HTH_OK;
    err = hth_checkpoint_load(t);
    return err == HTH_E_NO_FILE ? HTH_OK : err;
}

static void destroy(struct hth_trainer *t)
{
    for (uint32_t i = 0; t->flights != NULL && i < t->opts.flights; i++)
        hth_pass_free(t->flights[i].pass);
    hth_free(t->flights);
    hth_transport_free(t->transport);
    hth_blob_unref(t->ckpt.bytes);
    hth_transport_files_clear(&t->ckpt.experts);
    hth_average_clear(t);
    hth_batch_clear(t);
    hth_newcomer_clear(t);
    hth_data_free(t->data);
    hth_data_free(t->eval_data);
    hth_model_free(t->model);
    hth_free(t->checkpoint_path);
    hth_free(t->ckpt.dir);
    hth_free(t->experts_dir);
    hth_free(t->run);
    hth_free(t);
}

static void queue_idle(void *arg)
{
    struct hth_trainer *t = arg;

    if (--t->closing == 0)
        destroy(t);
}

/* Cancels calls under way, because the caller may free rpc next. A running job uses its flight's
 * memory and maybe finished batches, so these stay until it ends; all else is freed. Local batches
 * are jobs themselves and wait with it. */
static void release_flights(struct hth_trainer *t)
{
    for (uint32_t i = 0; i < t->opts.flights; i++) {
        struct hth_flight *f = &t->flights[i];

        if (f->pass != NULL && t->trunk.running != &f->way.work && t->io.running != &f->way.work)
            hth_pass_reset(f->pass);
    }
    hth_transport_free(t->transport);
    t->transport = NULL;
}

void hth_trainer_free(struct hth_trainer *t)
{
    if (t == NULL || t->freed)
        return;
    t->freed = true;
    hth_averager_stop(&t->average.averager);
    hth_collab_free(t->collab);
    t->collab = NULL;
    hth_newcomer_stop(t);
    hth_timer_free(t->env, t->pump_timer);
    t->closing = hth_queue_close(&t->trunk, queue_idle, t);
    t->closing += hth_queue_close(&t->io, queue_idle, t);
    if (t->closing == 0)
        destroy(t);
    else if (!t->opts.local && t->flights != NULL)
        release_flights(t);
}

static void make_metrics(struct hth_trainer *t)
{
    struct hth_metrics *m = t->env->metrics;

    t->metrics = (struct hth_train_metrics){
        .updates = hth_counter(m, "hearth_train_updates_total", "Gradients applied to the trunk"),
        .samples = hth_counter(m, "hearth_train_samples_total", "Samples behind these updates"),
        .dropped = hth_counter(m, "hearth_train_flights_dropped_total",
                               "Micro-batches that gave no update"),
        .lost_rows = hth_counter(m, "hearth_train_rows_without_expert_total",
                                 "Rows that took the residual path for want of an answer"),
        .bad = hth_counter(m, "hearth_train_answers_bad_total",
                           "Answers not used, being not finite or too large"),
        .loss = hth_gauge(m, "hearth_train_loss", "Moving average of the loss, in nats per row"),
        .means_refused = hth_counter(m, "hearth_train_means_refused_total",
                                     "Means of parameters that were too far from the own ones"),
        .staleness = hth_histogram(m, "hearth_train_staleness_updates",
                                   "Updates between a micro-batch's start and its gradient", 1),
    };
}

enum hth_err hth_trainer_new(struct hth_env *env, const struct hth_trainer_opts *opts,
                             struct hth_trainer **out)
{
    struct hth_trainer *t;
    enum hth_err err;

    *out = NULL;
    if (opts->why != NULL)
        opts->why->text[0] = '\0';
    HTH_TRY(check_opts(opts));
    t = hth_new(struct hth_trainer);
    t->env = env;
    t->opts = *opts;
    t->evaluated_at = UINT64_MAX;
    t->rng = hth_rng_split(&env->rng, "trainer", 0);
    if (opts->checkpoint_path != NULL)
        t->checkpoint_path = hth_strdup(opts->checkpoint_path);
    if (opts->run != NULL)
        t->run = hth_strdup(opts->run);
    if (opts->local && opts->experts_dir != NULL)
        t->experts_dir = hth_strdup(opts->experts_dir);
    hth_queue_init(&t->trunk, env, HTH_LANE_COMPUTE);
    hth_queue_init(&t->io, env, HTH_LANE_IO);
    t->pump_timer = hth_timer_new(env, pump_timer, t);
    make_metrics(t);
    if (opts->averager != NULL)
        t->average.averager = *opts->averager;
    HTH_GOTO(fail, open_data(t));
    t->opts.model.data_hash = t->data_info.hash;
    HTH_GOTO(fail, hth_model_new(opts->backend, &t->opts.model, &t->model));
    hth_exec_set_team(t->model->exec, hth_env_team(env));
    /* The caller may free its strings: the model has copies. */
    t->opts.model = *hth_model_opts_of(t->model);
    hth_settings_of(t->model, &t->opts.optim, &t->opts.share, &t->settings);
    HTH_GOTO(fail, resume(t));
    HTH_GOTO(fail, make_transport(t));
    HTH_GOTO(fail, make_flights(t));
    HTH_GOTO(fail, hth_average_start(t));
    HTH_GOTO(fail, hth_shared_start(t));
    HTH_GOTO(fail, hth_newcomer_start(t));
    *out = t;
    return HTH_OK;
fail:
    hth_trainer_free(t);
    return err;
}

void hth_trainer_start(struct hth_trainer *t)
{
    t->started = true;
    t->started_us = t->newcomer.since_us = hth_now_us(t->env);
    t->samples_rate.last_us = t->updates_rate.last_us = t->started_us;
    if (t->collab != NULL)
        hth_shared_begin(t);
    hth_trainer_pump_soon(t);
}

static void wind_up_now(void *arg)
{
    struct hth_trainer *t = arg;

    t->stopping = true;
    t->eval.wanted = false;
    hth_trainer_pump_soon(t);
}

/* A trainer that shares batches takes leave of the others first, and trains on meanwhile. */
void hth_trainer_stop(struct hth_trainer *t, hth_fn *done, void *arg)
{
    t->stop_done = done;
    t->stop_arg = arg;
    if (t->collab != NULL && t->started && !t->finished && !t->fatal &&
        t->stats.updates < t->opts.updates_max)
        hth_collab_leave(t->collab, wind_up_now, t);
    else
        wind_up_now(t);
}

void hth_trainer_peer_lost(struct hth_trainer *t, const struct hth_peer_id *peer)
{
    if (t->collab != NULL)
        hth_collab_peer_lost(t->collab, peer);
}

void hth_trainer_nudge(struct hth_trainer *t)
{
    if (!t->started || t->finished)
        return;
    hth_newcomer_nudge(t);
    hth_trainer_pump_soon(t);
}

/* ---- reading --------------------------------------------------------------------------------- */

void hth_trainer_stats(const struct hth_trainer *t, struct hth_train_stats *out)
{
    const struct hth_transport_stats *p = &t->transport->stats;

    hth_transport_gauge(t->transport);
    *out = t->stats;
    out->requests = p->requests;
    out->requests_failed = p->requests_failed;
    out->retries = p->retries;
    out->parts_bad = p->parts_bad;
    out->parts_refused = p->parts_refused;
    out->claims_refused = p->claims_refused;
    out->bytes_out = p->bytes_out;
    out->bytes_in = p->bytes_in;
    out->live_experts = p->live_experts;
    out->hosts = p->hosts;
    out->hosts_dead = p->hosts_dead;
    out->flights = t->in_air;
    out->unsaved_since_us = t->ckpt.unsaved.since_us;
    hth_share_stats(t, &out->share);
    if (out->waiting)
        out->waiting_us += hth_now_us(t->env) - t->waiting_since_us;
}

const struct hth_collab *hth_trainer_collab(const struct hth_trainer *t)
{
    return t->collab;
}

struct hth_model *hth_trainer_model(struct hth_trainer *t)
{
    return t->model;
}

struct hth_expert *hth_trainer_local_expert(struct hth_trainer *t, uint32_t layer, uint32_t index)
{
    return hth_transport_local_expert(t->transport, layer, index);
}
