/* SPDX-License-Identifier: Apache-2.0 */
/* trial.c: a trainer without network, stopped after a second. */
#include "app/trial.h"

#include "cli/config.h"
#include "cli/device.h"
#include "core/env.h"
#include "net/net.h"
#include "trainer/trainer.h"

#define TRIAL_US      HTH_US_PER_S
#define TRIAL_WAIT_US (60 * HTH_US_PER_S)

struct trial {
    struct hth_env *env;
    struct hth_trainer *trainer;
    struct hth_timer *timer;
    int64_t started_us;
    int64_t begun_us; /* the first update; 0: none yet */
    uint64_t begun_samples;
    double rate; /* samples/s; 0: not known */
    bool ended;
    enum hth_err err;
};

static void stopped(void *arg)
{
    const struct trial *t = arg;
    hth_net_stop(t->env);
}

static void end(struct trial *t, enum hth_err err)
{
    if (t->ended)
        return;
    t->ended = true;
    t->err = err;
    hth_trainer_stop(t->trainer, stopped, t);
}

static void on_update(void *arg, const struct hth_train_stats *stats)
{
    struct trial *t = arg;
    int64_t now = hth_now_us(t->env);
    if (t->begun_us == 0) {
        t->begun_us = now;
        t->begun_samples = stats->samples;
    } else if (now - t->begun_us >= TRIAL_US) {
        t->rate = 1e6 * (double)(stats->samples - t->begun_samples) / (double)(now - t->begun_us);
        end(t, HTH_OK);
    }
}

static void on_done(void *arg, enum hth_err err)
{
    end(arg, err);
}

/* A machine this slow, or this busy, gives a guess by its first update, or none. */
static void on_timer(void *arg)
{
    struct trial *t = arg;
    int64_t spent_us = hth_now_us(t->env) - t->started_us;
    t->rate = 1e6 * (double)t->begun_samples / (double)spent_us;
    end(t, t->begun_us != 0 ? HTH_OK : HTH_E_TIMEOUT);
}

static enum hth_err run_trial(struct trial *t, const struct hth_runfile *run)
{
    struct hth_trainer_opts opts = HTH_TRAINER_OPTS_INIT;
    struct hth_device_flags flags = {.backend = NULL};
    struct hth_config_data paths;
    enum hth_err err = hth_device_choose(&flags, hth_config_compute(run), &opts.backend);

    if (err != HTH_OK)
        return err;
    hth_config_model(run, &opts.model);
    hth_config_data(run, 1, &paths, &opts.data, &opts.eval_data);
    hth_config_optim(&run->optimizer, &opts.optim);
    hth_config_optim(&run->experts.optimizer, &opts.local_optim);
    opts.micro_batch = run->train.rows;
    opts.flights = run->train.flights;
    opts.updates_max = UINT32_MAX;
    opts.local = true;
    opts.local_step_rows = run->experts.step_rows;
    opts.has_eval_data = true; /* opened, so that a test set that does not fit is found, too */
    opts.on = (struct hth_train_callbacks){.on_update = on_update, .on_done = on_done, .arg = t};
    err = hth_trainer_new(t->env, &opts, &t->trainer);
    if (err == HTH_OK) {
        hth_timer_set(t->env, t->timer, TRIAL_WAIT_US);
        t->started_us = hth_now_us(t->env);
        hth_trainer_start(t->trainer);
        err = hth_net_run(t->env);
        hth_net_jobs_end(t->env);
        hth_trainer_free(t->trainer);
    }
    hth_config_data_clear(&paths);
    return err != HTH_OK ? err : t->err;
}

enum hth_err hth_trial(const struct hth_runfile *run, double *samples_per_s)
{
    struct hth_net_opts net = HTH_NET_OPTS_INIT;
    struct trial t = {.env = NULL};
    enum hth_err err;

    HTH_TRY(hth_net_new(&net, &t.env));
    t.timer = hth_timer_new(t.env, on_timer, &t);
    err = run_trial(&t, run);
    hth_timer_free(t.env, t.timer);
    hth_net_free(t.env);
    *samples_per_s = t.rate;
    return err;
}
