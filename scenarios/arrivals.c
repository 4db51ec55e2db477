/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/arrivals.h"

#include <math.h>

#include "averaging/state.h"
#include "collab/collab.h"
#include "core/mem.h"
#include "kernels/params.h"
#include "scenarios/toy.h"

#define S           HTH_US_PER_S
#define PEERS_MAX   16
#define MEMBERS     4
#define WARM_STEPS  (HTH_MEANS_MAX + 8) /* means alone lead no newcomer so far */
#define CALM_STEPS  10
#define CALM_S      2.0 /* but at least so long, where steps are short */
#define BATCHES     4   /* micro-batches of a member in a step, */
#define BATCH_ITEMS 96  /* each of so many samples, so that hashes cost little beside them, */
#define BUSY        0.5 /* that take this part of a step, at least */

/* A newcomer's line carries that many bytes a second at least, and the state is as large as that
 * makes it: slower lines than 1 MB/s are slow for those that hand out states and means
 * (averaging/state_donor.c), and the roll call speaks on it, too. */
#define LINE_MIN  1.2e6
#define STATE_MIN 1e5

/* The promises (rollcall.md). */
#define IN_STEPS 3
#define IN_S     1.0
#define SLOWED   1.3

struct newcomer {
    uint32_t index; /* in the crew; 0: it did not come yet */
    bool booted;
    int64_t held_us, in_us; /* 0: not yet */
    double limit_s;
};

struct arrival_run {
    const struct hth_arrival_opts *opts;
    struct hth_arrival_report *report;
    struct hth_world *world;
    struct hth_crew *crew;
    struct hth_device member, slow, wide; /* a newcomer is slow, and wide once it holds a head */
    double mean_bytes;
    struct newcomer newcomer[PEERS_MAX];
    uint64_t until; /* run until this step */
    uint64_t step;  /* the members' latest link, */
    int64_t step_us;
    int64_t join_us; /* 0: not yet */
    uint32_t steps;  /* without newcomers since then, */
    double steps_s;  /* which took so long */
};

/* ---- machines -------------------------------------------------------------------------------- */

/* A sample costs about 6 operations for each parameter. */
static struct hth_device device_of(const struct arrival_run *a, double bytes_per_s)
{
    double samples_per_s = BATCHES * BATCH_ITEMS / (BUSY * a->opts->step_s);
    double params = a->mean_bytes / sizeof(float);

    return (struct hth_device){.flops_per_s = samples_per_s * 6 * params,
                               .bytes_per_s = 10e9,
                               .job_overhead_us = 20,
                               .compute_workers = 1,
                               .disk_bytes_per_s = 500e6,
                               .disk_latency_us = 100,
                               .up_bytes_per_s = bytes_per_s,
                               .down_bytes_per_s = bytes_per_s};
}

static double member_line(const struct arrival_run *a)
{
    double means = fmax(HTH_ARRIVAL_ROUND, 3 / a->opts->state_steps);

    return means * a->mean_bytes / a->opts->step_s;
}

static void set_members(struct arrival_run *a)
{
    a->member = device_of(a, member_line(a));
    for (uint32_t i = 0; i < a->opts->members; i++)
        hth_node_set_device(hth_crew_node(a->crew, i), &a->member);
}

/* Sets them by what a step really takes. */
static void set_newcomers(struct arrival_run *a)
{
    double means = 3 / a->opts->state_steps, mean_a_step = a->mean_bytes / a->report->calm_s;

    a->slow = device_of(a, means * mean_a_step);
    a->wide = device_of(a, fmax(means, HTH_ARRIVAL_MEANS) * mean_a_step);
}

/* The side of a picture with which the state has about that size. */
static uint32_t side_of(double state_bytes, uint32_t d)
{
    return HTH_MAX((uint32_t)sqrt(state_bytes / 12 / d), (uint32_t)HTH_TOY_SIDE);
}

/* ---- what happens ---------------------------------------------------------------------------- */

static bool is_in(const struct arrival_run *a, const struct hth_chain *chain, uint32_t link,
                  uint32_t i)
{
    const struct hth_chain_link *at = hth_chain_at(chain, link);
    const struct hth_peer_id *id = &hth_node_env(hth_crew_node(a->crew, i))->self;

    for (uint32_t k = 0; k < at->count; k++)
        if (at->roll[k].marks & HTH_ROLL_IN &&
            hth_peer_id_eq(hth_chain_id(chain, at->roll[k].member), id))
            return true;
    return false;
}

/* The members' first step on a new link. */
static void note_link(struct arrival_run *a, const struct hth_chain *chain, uint32_t link)
{
    int64_t now = hth_world_now_us(a->world);
    bool alone = true;

    for (uint32_t i = 0; i < a->opts->newcomers && a->join_us != 0; i++) {
        struct newcomer *n = &a->newcomer[i];
        bool in = n->index != 0 && is_in(a, chain, link, n->index);

        if (in && n->in_us == 0)
            n->in_us = now;
        alone &= !in;
    }
    if (a->join_us != 0 && alone) {
        a->steps++;
        a->steps_s += (double)(now - a->step_us) / S;
    }
    a->step_us = now;
}

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct arrival_run *a = arg;
    const struct hth_collab *collab = hth_trainer_collab(hth_crew_trainer(a->crew, i));
    struct hth_collab_stats s;

    (void)stats;
    hth_collab_stats(collab, &s);
    if (i >= a->opts->members || s.step <= a->step)
        return;
    a->step = s.step;
    note_link(a, hth_collab_choice(collab)->chain,
              hth_chain_find(hth_collab_choice(collab)->chain, &s.head));
}

/* The time in which a line carries that many means and those that are made meanwhile. */
static double transfer_s(const struct arrival_run *a, uint64_t means)
{
    double mean_s = a->mean_bytes / a->wide.down_bytes_per_s;

    return (double)means * mean_s / (1 - mean_s / a->report->calm_s);
}

static void look_at(struct arrival_run *a, struct newcomer *n)
{
    const struct hth_trainer *t = hth_crew_trainer(a->crew, n->index);
    struct hth_collab_stats s;

    if (t == NULL || n->held_us != 0)
        return;
    hth_collab_stats(hth_trainer_collab(t), &s);
    if (s.step == 0)
        return;
    n->held_us = hth_world_now_us(a->world);
    uint64_t lacks = a->step - HTH_MIN(s.step, a->step);
    n->limit_s = fmax(IN_STEPS * a->report->calm_s, IN_S) + transfer_s(a, lacks);
    a->report->lacked = HTH_MAX(a->report->lacked, (uint32_t)lacks);
    a->report->states += s.states;
    hth_node_set_device(hth_crew_node(a->crew, n->index), &a->wide);
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool is_past(void *arg)
{
    const struct arrival_run *a = arg;

    return a->step >= a->until || hth_crew_err(a->crew) != HTH_OK;
}

static enum hth_err run_to(struct arrival_run *a, uint64_t step)
{
    double most_us = 60 * S + 4 * a->opts->step_s * S * (double)(step - a->step);

    a->until = step;
    if (!hth_world_run_until_true(a->world, is_past, a, (int64_t)most_us))
        return HTH_E_TIMEOUT;
    return hth_crew_err(a->crew);
}

static enum hth_err warm_up(struct arrival_run *a)
{
    uint64_t steps = (uint64_t)fmax(CALM_STEPS, CALM_S / a->opts->step_s);

    HTH_TRY(run_to(a, WARM_STEPS));
    int64_t since = a->step_us;
    HTH_TRY(run_to(a, WARM_STEPS + steps));
    a->report->calm_s = (double)(a->step_us - since) / S / (double)steps;
    return HTH_OK;
}

/* All come within a tenth of a step, at any time in it. */
static void join(struct arrival_run *a)
{
    double step_us = a->opts->step_s * S;
    struct hth_rng rng;

    hth_rng_init(&rng, a->opts->seed);
    hth_world_run_for(a->world, (int64_t)(hth_rng_unit(&rng) * step_us));
    a->join_us = hth_world_now_us(a->world);
    for (uint32_t i = 0; i < a->opts->newcomers; i++) {
        a->newcomer[i].index = hth_crew_join(a->crew);
        hth_node_set_device(hth_crew_node(a->crew, a->newcomer[i].index), &a->slow);
        hth_world_run_for(a->world,
                          (int64_t)(hth_rng_unit(&rng) * step_us / 10 / a->opts->newcomers));
    }
}

static bool all_are_in(const struct arrival_run *a)
{
    for (uint32_t i = 0; i < a->opts->newcomers; i++)
        if (a->newcomer[i].in_us == 0)
            return false;
    return true;
}

static void watch(struct arrival_run *a)
{
    const struct hth_arrival_opts *o = a->opts;
    int64_t step_us = (int64_t)(o->step_s * S);
    int64_t poll_us = HTH_MAX(step_us / 50, 500);
    double state_us = o->state_steps * o->step_s * S;
    int64_t end_us = a->join_us + 60 * S + 60 * step_us + (int64_t)(o->newcomers * 4 * state_us);

    while (!all_are_in(a) && hth_world_now_us(a->world) < end_us) {
        hth_world_run_for(a->world, poll_us);
        for (uint32_t i = 0; i < o->newcomers; i++)
            look_at(a, &a->newcomer[i]);
    }
}

static void judge(struct arrival_run *a)
{
    struct hth_arrival_report *r = a->report;
    bool all = true;

    for (uint32_t i = 0; i < a->opts->newcomers; i++) {
        const struct newcomer *n = &a->newcomer[i];
        double in_s = (double)(n->in_us - n->held_us) / S;

        all &= n->in_us != 0 && n->held_us != 0;
        r->in_s_max = fmax(r->in_s_max, in_s);
        r->over = fmax(r->over, in_s / n->limit_s);
    }
    if (!all)
        r->in_s_max = -1;
    r->slowed = a->steps > 0 ? a->steps_s / a->steps / r->calm_s : 1;
    r->hash = hth_world_trace_hash(a->world);
}

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    const struct arrival_run *a = arg;
    const struct hth_device *line = i < a->opts->members ? &a->member : &a->wide;

    t->data.peer = i + 1;
    t->share.bandwidth = 8 * line->up_bytes_per_s;
}

static struct hth_crew_opts crew_opts(struct arrival_run *a, uint32_t side, uint32_t d)
{
    struct hth_crew_opts crew;

    hth_toy_crew(side, &crew);
    crew.trainer.model.d = d;
    crew.trainer.micro_batch = BATCH_ITEMS;
    crew.trainer.share.target = (uint64_t)BATCH_ITEMS * BATCHES * a->opts->members;
    crew.members = a->opts->members;
    crew.members_max = PEERS_MAX;
    crew.edit = edit;
    crew.on_update = on_update;
    crew.arg = a;
    return crew;
}

static enum hth_err run(struct arrival_run *a)
{
    const struct hth_params *p;

    hth_world_run_for(a->world, 1);
    HTH_TRY(hth_crew_err(a->crew));
    p = hth_model_params(hth_trainer_model(hth_crew_trainer(a->crew, 0)));
    a->mean_bytes = (double)hth_params_flat_len(p) * sizeof(float);
    set_members(a);
    HTH_TRY(warm_up(a));
    set_newcomers(a);
    join(a);
    watch(a);
    judge(a);
    return hth_crew_err(a->crew);
}

enum hth_err hth_sim_arrival(const struct hth_arrival_opts *opts, struct hth_arrival_report *out)
{
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct arrival_run a = {.opts = opts, .report = out};
    double bytes = fmax(STATE_MIN, LINE_MIN * opts->state_steps * opts->step_s);
    uint32_t d = bytes > 1e8 ? 256 : bytes > 1e7 ? 64 : 8, side = side_of(bytes, d);
    enum hth_err err;

    *out = (struct hth_arrival_report){.calm_s = 0};
    if (opts->members == 0 || opts->newcomers == 0 || opts->members + opts->newcomers > PEERS_MAX ||
        !(opts->step_s >= 0.005) || !(opts->step_s <= 600) || !(opts->state_steps >= 0.01) ||
        !(opts->state_steps <= 30))
        return HTH_E_CONFIG;
    world.ghost = true;
    world.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    world.link.latency_us = (int64_t)fmin(10e3, opts->step_s * S / 100);
    a.world = hth_world_new(opts->seed, &world);
    struct hth_toy *toy = hth_toy_new(a.world, side);
    const struct hth_crew_opts crew = crew_opts(&a, side, d);
    a.mean_bytes = (double)side * side * d * sizeof(float); /* about, until there is a model */
    a.member = device_of(&a, member_line(&a));
    a.crew = hth_crew_new(a.world, &crew);
    err = run(&a);
    hth_world_free(a.world);
    hth_crew_free(a.crew);
    hth_toy_free(toy);
    return err;
}

/* ---- promises -------------------------------------------------------------------------------- */

const char *hth_arrival_broken(const struct hth_arrival_report *r)
{
    if (r->in_s_max < 0)
        return "a newcomer was never in";
    if (r->over > 1)
        return "a newcomer came later than 3 steps, 1 s and its transfer";
    if (r->slowed > SLOWED)
        return "the others' steps took more than 1.3 times as long";
    return NULL;
}

static const double steps_s[] = {0.01, 0.1, 1, 5, 30};
static const double states[] = {0.1, 0.3, 1, 3, 10};
static const uint32_t newcomers[] = {1, 2, 3, 4, 6};

uint32_t hth_arrivals_rows(void)
{
    return HTH_ARRAY_LEN(steps_s) * HTH_ARRAY_LEN(states) * HTH_ARRAY_LEN(newcomers);
}

struct hth_arrival_opts hth_arrivals_row(uint32_t row)
{
    uint32_t n = HTH_ARRAY_LEN(newcomers), k = HTH_ARRAY_LEN(states);

    return (struct hth_arrival_opts){.members = MEMBERS,
                                     .newcomers = newcomers[row % n],
                                     .step_s = steps_s[row / n / k],
                                     .state_steps = states[row / n % k]};
}
