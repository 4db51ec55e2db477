/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/collab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/params.h"
#include "scenarios/idx.h"
#include "scenarios/crew.h"
#include "scenarios/trunk.h"

#define LINE_TRAINERS 16 /* more of them average on a grid */
#define CLASSES       10
#define TRAIN_ITEMS   4096
#define TEST_ITEMS    1024
#define MEMBERS_MAX   64
#define EVENTS_MAX    64
#define LIMIT_US      (20000 * HTH_US_PER_S)
#define DIGIT_NOISE   200
#define PAST_STEPS    16 /* trunks of updates further apart are not compared */

struct collab_event {
    uint64_t step;
    bool join; /* a trainer joins; otherwise one crashes */
};

struct file {
    uint8_t *images, *labels;
    size_t images_len, labels_len;
};

/* The trunk of the trainer that made an update first. */
struct past {
    uint64_t step; /* 0: none */
    float *values;
};

struct collab_run {
    const struct hth_sim_collab_opts *opts;
    struct hth_collab_report *report;
    struct hth_world *world;
    struct hth_crew *crew;
    struct hth_rng rng;
    struct file train, test;
    uint64_t updates[MEMBERS_MAX];
    uint32_t catch_ups[MEMBERS_MAX], yields[MEMBERS_MAX];
    struct hth_train_stats first, late; /* of the first trainer, and of the newcomer */
    uint32_t newcomer;
    uint64_t until; /* run until this step */
    struct past past[PAST_STEPS];
};

/* ---- pictures -------------------------------------------------------------------------------- */

/* Each class has a random pattern; a picture is that pattern under noise that hides half of it. So
 * the task takes long to learn, and is never learned wholly. */
static void make_file(struct file *f, uint32_t items, uint32_t side, uint64_t seed, uint64_t draw)
{
    uint32_t pixels = side * side;
    uint8_t *pattern = hth_calloc(CLASSES, pixels);
    struct hth_rng rng;

    hth_rng_init(&rng, seed);
    for (uint32_t i = 0; i < CLASSES * pixels; i++)
        pattern[i] = hth_rng_chance(&rng, 0.3) ? 55 : 0;
    rng = hth_rng_split(&rng, "items", draw);
    f->images_len = 16 + (size_t)items * pixels;
    f->labels_len = 8 + items;
    f->images = hth_calloc(f->images_len, 1);
    f->labels = hth_calloc(f->labels_len, 1);
    hth_sim_idx_heads(f->images, f->labels, items, side);
    for (uint32_t i = 0; i < items; i++) {
        uint32_t c = (uint32_t)hth_rng_below(&rng, CLASSES);

        f->labels[8 + i] = (uint8_t)c;
        for (uint32_t j = 0; j < pixels; j++)
            f->images[16 + (size_t)i * pixels + j] =
                (uint8_t)(pattern[c * pixels + j] + hth_rng_below(&rng, DIGIT_NOISE));
    }
    hth_free(pattern);
}

static void mount(struct collab_run *c)
{
    make_file(&c->train, TRAIN_ITEMS, c->opts->side, 11, 0);
    make_file(&c->test, TEST_ITEMS, c->opts->side, 11, 1);
    hth_world_mount(c->world, "train-images", c->train.images, c->train.images_len);
    hth_world_mount(c->world, "train-labels", c->train.labels, c->train.labels_len);
    hth_world_mount(c->world, "test-images", c->test.images, c->test.images_len);
    hth_world_mount(c->world, "test-labels", c->test.labels, c->test.labels_len);
}

/* ---- the crew -------------------------------------------------------------------------------- */

/* All trainers take the same step, so compare each trunk after it with that of the first. */
static void compare(struct collab_run *c, uint32_t i, uint64_t step)
{
    struct hth_params *p = hth_model_params(hth_trainer_model(hth_crew_trainer(c->crew, i)));
    const float *values = hth_params_flat(p, HTH_PART_VALUE);
    size_t n = hth_params_flat_len(p);
    struct past *past = &c->past[step % PAST_STEPS];

    if (past->step > step)
        return;
    if (past->step < step) {
        if (past->values == NULL)
            past->values = hth_new_array(float, n);
        memcpy(past->values, values, n * sizeof(float));
        past->step = step;
        return;
    }
    c->report->drift = hth_worse(c->report->drift, hth_trunk_distance(past->values, values, n));
}

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *s)
{
    struct collab_run *c = arg;

    if (c->opts->mode == HTH_SHARE_BATCH)
        compare(c, i, s->updates);
    c->updates[i] = s->updates;
    c->catch_ups[i] = (uint32_t)s->share.catch_ups;
    c->yields[i] = (uint32_t)s->share.run.joined;
    if (i == c->newcomer && c->late.updates == 0) {
        c->late = *s;
        c->report->first_step = s->updates;
    }
    if (i != 0)
        return;
    c->first = *s;
    if (s->share.weight > 0)
        c->report->samples_min = c->report->samples_min == 0
                                     ? s->share.weight
                                     : fmin(c->report->samples_min, s->share.weight);
}

static void on_eval(void *arg, uint32_t i, const struct hth_eval_result *e)
{
    struct collab_run *c = arg;
    struct hth_collab_report *r = c->report;

    if (i != 0 || r->points == HTH_COLLAB_POINTS_MAX)
        return;
    r->at[r->points] = (double)c->first.samples;
    r->loss[r->points++] = e->loss;
    r->accuracy = e->accuracy;
}

static void own_data(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    const struct collab_run *c = arg;

    t->data.seed = c->opts->order;
    t->data.peer = i + 1;
    if (i != 0)
        t->eval_every = 0;
}

static struct hth_crew_opts crew_opts(struct collab_run *c)
{
    /* A micro-batch takes about 60 ms, as on a small machine. */
    static const struct hth_device device = {.flops_per_s = 20e9,
                                             .bytes_per_s = 10e9,
                                             .job_overhead_us = 4000,
                                             .compute_workers = 1,
                                             .disk_bytes_per_s = 500e6,
                                             .disk_latency_us = 100,
                                             .up_bytes_per_s = 12.5e6,
                                             .down_bytes_per_s = 12.5e6};
    const struct hth_sim_collab_opts *o = c->opts;
    struct hth_crew_opts crew = HTH_CREW_OPTS_INIT;
    struct hth_trainer_opts *t = &crew.trainer;

    t->model.d = o->dim;
    t->model.features = o->side * o->side;
    t->model.classes = CLASSES;
    t->model.grid_dim[0] = t->model.grid_dim[1] = 2;
    t->model.top_k = 2;
    t->model.balance = 0;
    t->model.seed = 5;
    t->optim.schedule = (struct hth_schedule){
        .kind = HTH_SCHEDULE_COSINE, .lr = 2e-3f, .lr_final = 1e-4f, .total_steps = o->steps};
    t->local_optim.schedule.lr = 0; /* all experts are equal and stay so */
    t->data.images = "train-images";
    t->data.labels = "train-labels";
    t->data.classes = CLASSES;
    t->data.shuffle_rows = 512;
    t->eval_data = t->data;
    t->eval_data.images = "test-images";
    t->eval_data.labels = "test-labels";
    t->eval_data.shuffle_rows = 0;
    t->has_eval_data = true;
    /* The others wait for an evaluation. One would begin with the step at which a newcomer starts,
     * and what its first step takes would be that evaluation's time. */
    t->eval_every = o->what == HTH_COLLAB_NEWCOMER ? 0 : HTH_MAX(o->steps / 20, 5u);
    t->micro_batch = o->rows;
    t->flights = 1;
    t->updates_max = o->steps;
    t->share.mode = o->mode;
    t->share.every = o->every;
    t->share.target = o->target;
    if (o->mode == HTH_SHARE_BATCH && o->trainers > LINE_TRAINERS)
        t->share.shape = hth_avg_shape_for(o->trainers, LINE_TRAINERS);
    crew.members = o->trainers;
    crew.members_max = MEMBERS_MAX;
    crew.device = &device;
    crew.edit = own_data;
    crew.on_update = on_update;
    crew.on_eval = on_eval;
    crew.arg = c;
    return crew;
}

/* The step of the run. The first trainer makes all evaluations, and where trainers step by
 * themselves they slow it down. */
static uint64_t step_of_run(const struct collab_run *c)
{
    uint64_t most = c->updates[0];

    for (uint32_t i = 1; c->opts->mode == HTH_SHARE_LOCAL && i < MEMBERS_MAX; i++)
        most = HTH_MAX(most, c->updates[i]);
    return most;
}

/* A trainer that adopts a state of the last step ends without an update of its own. */
static bool at_step(void *arg)
{
    struct collab_run *c = arg;

    return step_of_run(c) >= c->until || hth_crew_all_done(c->crew) ||
           hth_crew_err(c->crew) != HTH_OK;
}

static enum hth_err run_to(struct collab_run *c, uint64_t step)
{
    c->until = step;
    if (!hth_world_run_until_true(c->world, at_step, c, LIMIT_US))
        return HTH_E_TIMEOUT;
    return hth_crew_err(c->crew);
}

static bool is_finished(void *arg)
{
    struct collab_run *c = arg;

    return hth_crew_all_done(c->crew);
}

static enum hth_err run_to_the_end(struct collab_run *c)
{
    if (!hth_world_run_until_true(c->world, is_finished, c, LIMIT_US))
        return HTH_E_TIMEOUT;
    return hth_crew_err(c->crew);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static int by_step(const void *a, const void *b)
{
    const struct collab_event *x = a, *y = b;

    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return (int)x->join - (int)y->join;
}

static void kill_it(struct collab_run *c, uint32_t i)
{
    enum hth_crash how = hth_rng_chance(&c->rng, 0.5) ? HTH_CRASH_RESET : HTH_CRASH_SILENT;

    hth_node_crash(hth_crew_node(c->crew, i), how);
    c->report->died++;
}

/* Crash a trainer that is up. Not the first, which makes the measurements. */
static void kill_one(struct collab_run *c)
{
    uint32_t up[MEMBERS_MAX], n = 0;

    for (uint32_t i = 1; i < hth_crew_count(c->crew); i++)
        if (hth_node_is_up(hth_crew_node(c->crew, i)))
            up[n++] = i;
    if (n > 0)
        kill_it(c, up[hth_rng_below(&c->rng, n)]);
}

static enum hth_err churn(struct collab_run *c)
{
    struct collab_event events[EVENTS_MAX];
    uint32_t n = c->opts->die + c->opts->join;

    for (uint32_t i = 0; i < n; i++) {
        events[i].join = i >= c->opts->die;
        events[i].step = c->opts->steps / 10 + hth_rng_below(&c->rng, c->opts->steps * 7 / 10 + 1);
    }
    qsort(events, n, sizeof(*events), by_step);
    for (uint32_t i = 0; i < n; i++) {
        HTH_TRY(run_to(c, events[i].step));
        if (!events[i].join) {
            if (c->opts->within_us > 0)
                hth_world_run_for(c->world, hth_rng_below(&c->rng, c->opts->within_us));
            kill_one(c);
        } else {
            hth_crew_join(c->crew);
            c->report->joined++;
        }
    }
    return run_to_the_end(c);
}

static void share_of(struct collab_run *c, uint32_t i, struct hth_share_stats *out)
{
    struct hth_train_stats s = {0};

    if (hth_crew_trainer(c->crew, i) != NULL)
        hth_trainer_stats(hth_crew_trainer(c->crew, i), &s);
    *out = s.share;
}

/* When half of the newcomer's state has arrived, crash the donor that gave most of it. */
static bool is_half_way(void *arg)
{
    struct collab_run *c = arg;
    struct hth_share_stats s;

    share_of(c, c->newcomer, &s);
    const struct hth_state_progress *fetch = &s.run.fetch;
    c->report->donor_died_at = fetch->parts > 0 ? (double)fetch->parts_done / fetch->parts : 0;
    return c->report->donor_died_at >= 0.5;
}

static enum hth_err kill_a_donor(struct collab_run *c)
{
    struct hth_share_stats s;
    uint32_t most = c->newcomer;

    if (!hth_world_run_until_true(c->world, is_half_way, c, 60 * HTH_US_PER_S))
        return HTH_E_TIMEOUT;
    for (uint32_t i = 0; i < c->newcomer; i++) {
        share_of(c, i, &s);
        if (s.run.given_bytes > c->report->donor_gave) {
            most = i;
            c->report->donor_gave = s.run.given_bytes;
        }
    }
    if (most == c->newcomer)
        return HTH_E_TIMEOUT;
    kill_it(c, most);
    return HTH_OK;
}

static enum hth_err newcomer(struct collab_run *c)
{
    HTH_TRY(run_to(c, c->opts->steps / 2));
    c->report->joined_at = step_of_run(c);
    c->newcomer = hth_crew_join(c->crew);
    c->report->joined++;
    if (c->opts->kill_donor)
        HTH_TRY(kill_a_donor(c));
    HTH_TRY(run_to_the_end(c));
    c->report->state_bytes = c->late.share.state_bytes;
    c->report->state_s = (double)c->late.share.state_us / 1e6;
    c->report->first_step_s = (double)c->late.share.first_step_us / 1e6;
    return HTH_OK;
}

static enum hth_err run_case(struct collab_run *c)
{
    switch (c->opts->what) {
    case HTH_COLLAB_CHURN:
        return churn(c);
    case HTH_COLLAB_NEWCOMER:
        return newcomer(c);
    default:
        return run_to_the_end(c);
    }
}

static void measure(struct collab_run *c)
{
    struct hth_collab_report *r = c->report;

    r->steps = c->first.updates;
    r->samples = c->first.samples;
    r->steps_alone = c->first.share.steps_alone;
    r->spread = hth_crew_spread(c->crew);
    r->virtual_s = (double)hth_world_now_us(c->world) / 1e6;
    r->hash = hth_world_trace_hash(c->world);
    for (uint32_t i = 0; i < MEMBERS_MAX; i++) {
        r->catch_ups += c->catch_ups[i];
        r->yields += c->yields[i];
    }
}

enum hth_err hth_sim_collab(const struct hth_sim_collab_opts *o, struct hth_collab_report *out)
{
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct hth_crew_opts crew;
    struct collab_run *c;
    enum hth_err err;

    memset(out, 0, sizeof(*out));
    if (o->trainers == 0 || o->steps == 0 || o->rows == 0 || o->dim == 0 || o->side == 0 ||
        o->side > 64 || o->trainers + o->join + 1 > MEMBERS_MAX || o->die + o->join > EVENTS_MAX ||
        o->die >= o->trainers ||
        (o->what == HTH_COLLAB_NEWCOMER && o->mode == HTH_SHARE_LOCAL &&
         o->steps / 2 <= HTH_SHARE_LAG_LOCAL))
        return HTH_E_CONFIG;
    c = hth_new(struct collab_run);
    c->opts = o;
    c->report = out;
    c->newcomer = UINT32_MAX;
    hth_rng_init(&c->rng, o->seed);
    world.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    world.trace = o->on_event;
    world.trace_arg = o->arg;
    c->world = hth_world_new(o->seed, &world);
    mount(c);
    crew = crew_opts(c);
    c->crew = hth_crew_new(c->world, &crew);
    err = run_case(c);
    if (err == HTH_OK)
        measure(c);
    hth_world_free(c->world);
    hth_crew_free(c->crew);
    hth_free(c->train.images);
    hth_free(c->train.labels);
    hth_free(c->test.images);
    hth_free(c->test.labels);
    for (int i = 0; i < PAST_STEPS; i++)
        hth_free(c->past[i].values);
    hth_free(c);
    return err;
}

/* ---- comparing ------------------------------------------------------------------------------- */

double hth_collab_samples(const struct hth_sim_collab_opts *o)
{
    return (double)o->steps * (double)(o->mode == HTH_SHARE_BATCH ? o->target : o->rows);
}

/* Whether a point of the report is nearer to `samples` than a next one would be. */
static bool is_near(const struct hth_collab_report *r, double samples)
{
    uint32_t last = r->points - 1;
    double before = last > 0 ? (r->at[1] - r->at[0]) / 2 : 0;
    double after = last > 0 ? (r->at[last] - r->at[last - 1]) / 2 : 0;

    return samples >= r->at[0] - before && samples <= r->at[last] + after;
}

double hth_collab_loss_at(const struct hth_collab_report *r, double samples)
{
    uint32_t last = r->points - 1;

    if (r->points == 0 || !is_near(r, samples))
        return NAN;
    if (samples <= r->at[0] || samples >= r->at[last])
        return r->loss[samples <= r->at[0] ? 0 : last];
    for (uint32_t i = 1; i < r->points; i++)
        if (r->at[i] >= samples && r->at[i] > r->at[i - 1])
            return r->loss[i - 1] + (r->loss[i] - r->loss[i - 1]) * (samples - r->at[i - 1]) /
                                        (r->at[i] - r->at[i - 1]);
    return r->loss[last];
}

void hth_collab_compare(const struct hth_collab_report *r, const struct hth_collab_report *calm,
                        struct hth_collab_difference *out)
{
    double end = calm->points > 0 ? calm->at[calm->points - 1] : 0, difference;
    uint32_t n = 0;

    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < r->points; i++) {
        if (r->at[i] < r->at[r->points - 1] / 2)
            continue;
        /* A point beyond the end of the calm run is compared with its end. */
        difference = r->loss[i] / hth_collab_loss_at(calm, HTH_MIN(r->at[i], end)) - 1;
        out->worst = hth_worse(out->worst, fabs(difference));
        out->last = fabs(difference);
        out->mean += difference;
        n++;
    }
    out->mean = n > 0 ? out->mean / n : 0;
}
