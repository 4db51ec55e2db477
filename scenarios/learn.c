/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/learn.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "scenarios/churn.h"
#include "scenarios/swarm.h"

#define TEXT_TRAIN_END 0.9
#define BACK_US        HTH_US_PER_S /* the successor of a replaced host is there */
#define SLOWNESS       0.1
#define SHUFFLE_ROWS   512

struct learn;

struct learner {
    struct learn *run;
    uint32_t index;
    struct hth_train_stats last;
    double stale_sum; /* sum of the staleness of its updates so far */
    bool done;
};

struct learn {
    const struct hth_learn_opts *opts;
    struct hth_learn_report *report;
    struct hth_world *world;
    struct hth_swarm *swarm;
    struct hth_churn *churn;
    struct learner learner[HTH_LEARN_TRAINERS_MAX];
    struct hth_device host, slow, trainer;
    bool calm;
    double calm_samples, calm_s;
    enum hth_err err;
};

/* ---- what happens ---------------------------------------------------------------------------- */

static double now_s(const struct learn *run)
{
    return (double)hth_world_now_us(run->world) / 1e6;
}

static double sum_updates(const struct learn *run)
{
    double sum = 0;

    for (uint32_t i = 0; i < run->opts->trainers; i++)
        sum += (double)run->learner[i].last.updates;
    return sum;
}

/* The time of training so far. An evaluation occupies some of the flights, so their share of the
 * time is subtracted. */
static double training_s(const struct learn *run)
{
    double eval_us = 0;

    for (uint32_t i = 0; i < run->opts->trainers; i++)
        eval_us += (double)run->learner[i].last.eval_us;
    return now_s(run) - eval_us / 1e6 / run->opts->flights / run->opts->trainers;
}

/* End all faults except slowness, which is a property of the host. */
static void make_calm(void *arg)
{
    struct learn *run = arg;
    const struct hth_link calm = {.latency_us = 100};

    hth_world_set_fault(run->world, "experts.lost", 0);
    hth_world_set_fault(run->world, "rpc.busy", 0);
    hth_world_set_link(run->world, &calm);
    if (run->churn != NULL)
        hth_churn_stop(run->churn);
}

/* The trainer reports the mean staleness only, and a histogram that ends too early. */
static void count_staleness(struct learner *l, const struct hth_train_stats *s)
{
    double sum = s->staleness_mean * (double)s->flights_landed;
    double bucket = floor((sum - l->stale_sum + 0.5) / HTH_LEARN_STALE_WIDTH);
    double last = HTH_LEARN_STALE_MAX - 1;

    l->run->report->stale[(size_t)fmax(0, fmin(bucket, last))]++;
    l->stale_sum = sum;
}

static void on_update(void *arg, const struct hth_train_stats *s)
{
    struct learner *l = arg;
    struct learn *run = l->run;
    uint64_t goal = run->opts->updates / run->opts->trainers;

    count_staleness(l, s);
    l->last = *s;
    if (run->calm || l->index != 0 || s->updates + run->opts->flights < goal)
        return;
    run->calm = true;
    run->calm_samples = sum_updates(run) * run->opts->micro_batch;
    run->calm_s = training_s(run);
    hth_world_at(run->world, hth_world_now_us(run->world), make_calm, run);
}

static void on_eval(void *arg, const struct hth_eval_result *e)
{
    struct learner *l = arg;
    struct learn *run = l->run;
    struct hth_learn_report *r = run->report;

    if (r->evals == HTH_LEARN_EVALS_MAX)
        return;
    r->eval[r->evals++] = (struct hth_learn_eval){
        .updates = (double)e->updates * run->opts->trainers,
        .samples = (double)e->updates * run->opts->trainers * run->opts->micro_batch,
        .at_s = now_s(run),
        .loss = e->loss,
        .accuracy = e->accuracy,
    };
}

static void on_done(void *arg, enum hth_err err)
{
    struct learner *l = arg;

    l->done = true;
    if (l->run->err == HTH_OK)
        l->run->err = err;
}

static bool finished(void *arg)
{
    const struct learn *run = arg;

    if (run->err != HTH_OK || hth_swarm_err(run->swarm) != HTH_OK)
        return true;
    for (uint32_t i = 0; i < run->opts->trainers; i++)
        if (!run->learner[i].done)
            return false;
    return true;
}

/* ---- who takes part -------------------------------------------------------------------------- */

static void edit_trainer(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    struct learn *run = arg;

    t->data.peer = i;
    t->on = (struct hth_train_callbacks){
        .on_update = on_update, .on_eval = on_eval, .on_done = on_done, .arg = &run->learner[i]};
    if (i != 0)
        t->eval_every = 0;
}

static void mount_file(struct learn *run, const char *name, const struct hth_learn_file *f)
{
    if (f->data != NULL)
        hth_world_mount(run->world, name, f->data, f->len);
}

static void set_data(struct learn *run, struct hth_trainer_opts *t)
{
    const struct hth_learn_opts *o = run->opts;
    const struct hth_learn_data *d = o->data;

    mount_file(run, "images", &d->images);
    mount_file(run, "labels", &d->labels);
    mount_file(run, "test-images", &d->test_images);
    mount_file(run, "test-labels", &d->test_labels);
    mount_file(run, "text", &d->text);
    t->data.kind = o->lm ? HTH_DATA_TEXT : HTH_DATA_IMAGES;
    t->data.images = "images";
    t->data.labels = "labels";
    t->data.text = "text";
    t->data.seq_len = o->seq;
    t->data.classes = d->classes;
    t->data.shuffle_rows = SHUFFLE_ROWS;
    t->data.seed = o->seed;
    t->eval_data = t->data;
    t->eval_data.images = "test-images";
    t->eval_data.labels = "test-labels";
    t->eval_data.shuffle_rows = 0;
    t->has_eval_data = true;
    if (o->lm)
        t->data.end = t->eval_data.begin = TEXT_TRAIN_END;
}

static void set_model(const struct hth_learn_opts *o, struct hth_model_opts *m)
{
    uint32_t side = (uint32_t)lround(sqrt(o->experts));

    m->kind = o->lm ? HTH_MODEL_LM : HTH_MODEL_CLASSIFIER;
    m->d = o->d;
    m->layers = o->layers;
    m->features = o->data->features;
    m->classes = o->lm ? 256 : o->data->classes;
    m->seq_len = o->lm ? o->seq : 1;
    m->grid_dim[0] = m->grid_dim[1] = side;
    m->top_k = o->k;
    m->seed = o->seed;
}

/* A job of the trunk takes a millisecond, which allows about 70 updates a second; hosts that are
 * not slow are fast enough not to be the limit. */
static void set_devices(struct learn *run)
{
    run->host = run->trainer = (struct hth_device)HTH_DEVICE_INIT;
    run->trainer.job_overhead_us = 1000;
    run->host.job_overhead_us = 500;
    run->slow = run->host;
    run->slow.job_overhead_us = (int64_t)((double)run->host.job_overhead_us / SLOWNESS);
    run->slow.flops_per_s *= SLOWNESS;
    run->slow.bytes_per_s *= SLOWNESS;
    run->slow.up_bytes_per_s *= SLOWNESS;
    run->slow.down_bytes_per_s *= SLOWNESS;
}

static struct hth_swarm_opts swarm_opts(struct learn *run)
{
    const struct hth_learn_opts *o = run->opts;
    struct hth_swarm_opts s = HTH_SWARM_OPTS_INIT;

    set_devices(run);
    s.hosts = o->hosts;
    s.shift = 1;
    s.trainers = o->trainers;
    s.host_device = &run->host;
    s.trainer_device = &run->trainer;
    s.trainer.backend = o->backend;
    set_model(o, &s.trainer.model);
    set_data(run, &s.trainer);
    s.trainer.optim.schedule.lr = o->lr;
    s.trainer.flights = o->flights;
    s.trainer.micro_batch = o->micro_batch;
    s.trainer.updates_max = o->updates / o->trainers;
    s.trainer.eval_every = HTH_MAX(s.trainer.updates_max / o->evals, (uint64_t)1);
    s.trainer.eval_samples = o->eval_samples;
    s.trainer.eval_samples_last = o->eval_samples_last;
    s.trainer.grace_us = o->grace_us;
    s.trainer.experts_min = HTH_MIN(o->k, o->experts);
    s.trainer.share.every = o->average_every;
    s.trainer.share.bootstrap = true;
    s.expert_optim.schedule.lr = o->expert_lr;
    s.server.step_rows = o->step_rows;
    s.server.step_age_us = 600 * HTH_US_PER_S; /* steps count rows, whatever the delay */
    s.server.checkpoint_dir = "experts";
    s.server.checkpoint_period_us = 10 * HTH_US_PER_S;
    s.server.queue_us_max = 60 * HTH_US_PER_S;
    s.blank = o->blank;
    s.share = o->trainers > 1;
    s.edit = edit_trainer;
    s.arg = run;
    return s;
}

static void start_misfortune(struct learn *run)
{
    const struct hth_learn_opts *o = run->opts;
    struct hth_churn_opts c = HTH_CHURN_OPTS_INIT;

    hth_world_set_fault(run->world, "experts.lost", o->lost);
    hth_world_set_fault(run->world, "rpc.busy", o->refused);
    for (uint32_t i = 0; i < (uint32_t)lround(o->slow * o->hosts); i++)
        hth_node_set_device(hth_swarm_host(run->swarm, i), &run->slow);
    if (o->down <= 0 && o->replaced <= 0)
        return;
    c.peer.kind = HTH_LIFE_POISSON;
    c.provider.kind = HTH_LIFE_ALWAYS;
    c.under_way = o->down > 0;
    c.peer.down_us = o->down > 0 ? o->down_us : BACK_US;
    c.peer.up_us = o->down > 0 ? (int64_t)((double)o->down_us * (1 - o->down) / o->down)
                               : (int64_t)(60e6 / o->replaced);
    run->churn = hth_churn_new(run->world, &c, o->seed);
    for (uint32_t i = 0; i < o->hosts; i++)
        hth_churn_add(run->churn, hth_swarm_host(run->swarm, i));
}

/* ---- what came out --------------------------------------------------------------------------- */

/* Measure how evenly the experts of each layer were used. */
static void measure_use(const struct learn *run)
{
    const struct hth_learn_opts *o = run->opts;
    uint64_t *rows = hth_new_array(uint64_t, o->experts);

    for (uint32_t l = 0; l < o->layers; l++) {
        double sum = 0, most = 0, entropy = 0;

        hth_swarm_expert_rows(run->swarm, l, rows);
        for (uint32_t i = 0; i < o->experts; i++) {
            sum += (double)rows[i];
            most = fmax(most, (double)rows[i]);
        }
        for (uint32_t i = 0; i < o->experts; i++)
            if (rows[i] > 0)
                entropy -= (double)rows[i] / sum * log((double)rows[i] / sum);
        run->report->used += (o->experts > 1 ? entropy / log(o->experts) : 1) / o->layers;
        run->report->busiest += (sum > 0 ? most * o->experts / sum : 0) / o->layers;
    }
    hth_free(rows);
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : NAN;
}

static void measure(struct learn *run)
{
    struct hth_learn_report *r = run->report;
    struct hth_train_stats s, sum = {.updates = 0};
    struct hth_churn_stats churn = {.deaths = 0};
    double lost_flights = 0, landed = 0, stale = 0;

    for (uint32_t i = 0; i < run->opts->trainers; i++) {
        hth_trainer_stats(hth_swarm_trainer_at(run->swarm, i), &s);
        sum.answers += s.answers;
        sum.answers_missing += s.answers_missing;
        sum.backward_missing += s.backward_missing;
        sum.rows_short += s.rows_short;
        sum.rows_without_expert += s.rows_without_expert;
        sum.rows_mixed += s.rows_mixed;
        lost_flights += (double)(s.flights_failed + s.flights_not_finite);
        landed += (double)s.flights_landed;
        stale += s.staleness_mean * (double)s.flights_landed;
    }
    double asked = (double)(sum.answers + sum.answers_missing);
    r->answered = share((double)sum.answers, asked);
    r->learned = share((double)sum.answers - (double)sum.backward_missing, asked);
    r->short_rows = share((double)sum.rows_short, (double)sum.rows_mixed);
    r->empty_rows = share((double)sum.rows_without_expert, (double)sum.rows_mixed);
    r->dropped = share(lost_flights, lost_flights + landed);
    r->staleness = share(stale, landed);
    for (size_t i = 0; i < HTH_LEARN_STALE_MAX; i++)
        r->stale[i] = share(r->stale[i], landed);
    r->samples_per_s = share(run->calm_samples, run->calm_s);
    r->virtual_s = now_s(run);
    r->hash = hth_world_trace_hash(run->world);
    if (run->churn != NULL)
        hth_churn_stats(run->churn, &churn);
    r->deaths = churn.deaths;
    measure_use(run);
}

static bool makes_sense(const struct hth_learn_opts *o)
{
    long side = lround(sqrt(o->experts));

    return o->experts > 0 && (uint32_t)(side * side) == o->experts && o->k > 0 &&
           o->k <= o->experts && o->hosts > 0 && o->trainers > 0 &&
           o->trainers <= HTH_LEARN_TRAINERS_MAX && o->flights > 0 && o->micro_batch > 0 &&
           o->updates >= o->trainers && o->evals > 0 && o->evals < HTH_LEARN_EVALS_MAX &&
           o->delay_ms >= 0 && o->delay_ms <= 10000 && o->lost >= 0 && o->lost <= 0.9 &&
           o->refused >= 0 && o->refused <= 0.9 && o->down >= 0 && o->down <= 0.9 &&
           o->replaced >= 0 && o->replaced <= 10 && o->slow >= 0 && o->slow <= 1 &&
           o->down_us > 0 && (o->lm ? o->data->text.data : o->data->images.data) != NULL;
}

enum hth_err hth_sim_learn(const struct hth_learn_opts *opts, struct hth_learn_report *out)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_swarm_opts s;
    struct learn *run;
    enum hth_err err;

    memset(out, 0, sizeof(*out));
    if (!makes_sense(opts))
        return HTH_E_CONFIG;
    w.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    w.link = (struct hth_link){
        .latency_us = 100,
        .jitter_us = (int64_t)(opts->delay_ms * 500),
        .jitter = HTH_JITTER_EXPONENTIAL,
    };
    run = hth_new(struct learn);
    run->opts = opts;
    run->report = out;
    for (uint32_t i = 0; i < opts->trainers; i++)
        run->learner[i] = (struct learner){.run = run, .index = i};
    w.trace = opts->on_event;
    w.trace_arg = opts->arg;
    run->world = hth_world_new(opts->seed, &w);
    s = swarm_opts(run);
    run->swarm = hth_swarm_new(run->world, &s);
    start_misfortune(run);
    err = hth_world_run_until_true(run->world, finished, run, opts->limit_us) ? run->err
                                                                              : HTH_E_TIMEOUT;
    if (err == HTH_OK)
        err = hth_swarm_err(run->swarm);
    if (err == HTH_OK)
        measure(run);
    hth_world_free(run->world);
    hth_churn_free(run->churn);
    hth_swarm_free(run->swarm);
    hth_free(run);
    return err;
}
