/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/latency.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "scenarios/churn.h"
#include "scenarios/idx.h"
#include "scenarios/swarm.h"

#define PIXELS 784
#define ITEMS  64

struct latency_run {
    struct hth_world *world;
    struct hth_swarm *swarm;
    struct hth_churn *churn; /* NULL: hosts stay up */
    uint32_t trainers;
    uint64_t goal; /* updates of all trainers together */
    uint64_t updates;
    bool done;
    uint8_t images[16 + ITEMS * PIXELS];
    uint8_t labels[8 + ITEMS];
};

static void on_update(void *arg, const struct hth_train_stats *stats)
{
    (void)stats;
    ((struct latency_run *)arg)->updates++;
}

static void on_done(void *arg, enum hth_err err)
{
    (void)err;
    ((struct latency_run *)arg)->done = true;
}

static bool reached(void *arg)
{
    const struct latency_run *run = arg;

    return run->updates >= run->goal || run->done || hth_swarm_err(run->swarm) != HTH_OK;
}

/* Mount data with headers only: ghosts read no pixels. */
static void mount_data(struct latency_run *run)
{
    hth_sim_idx_heads(run->images, run->labels, ITEMS, 28);
    hth_world_mount(run->world, "images", run->images, sizeof(run->images));
    hth_world_mount(run->world, "labels", run->labels, sizeof(run->labels));
}

static struct hth_swarm_opts swarm_opts(const struct hth_latency_opts *opts,
                                        struct latency_run *run, struct hth_device *host,
                                        struct hth_device *trainer)
{
    struct hth_swarm_opts o = HTH_SWARM_OPTS_INIT;

    /* The trunk's arithmetic takes about 50 ms a micro-batch; hosts are fast enough not to be the
     * limit. */
    *host = (struct hth_device)HTH_DEVICE_INIT;
    *trainer = (struct hth_device)HTH_DEVICE_INIT;
    host->flops_per_s = 200e9;
    trainer->flops_per_s = 400e6;
    o.hosts = opts->hosts;
    o.shift = opts->side == 1;
    o.trainers = opts->trainers;
    o.host_device = host;
    o.trainer_device = trainer;
    o.trainer.model.layers = opts->layers;
    o.trainer.model.grid_dim[0] = o.trainer.model.grid_dim[1] = opts->side;
    o.trainer.model.top_k = opts->k;
    o.trainer.data.images = "images";
    o.trainer.data.labels = "labels";
    o.trainer.data.shuffle_rows = 0;
    o.trainer.flights = opts->flights;
    o.trainer.micro_batch = opts->micro_batch;
    o.trainer.updates_max = UINT32_MAX;
    if (opts->patient) {
        /* Wait for every answer: the study hides delays and does not cut them off. An adaptive
         * deadline would cut the tail of an exponential distribution. */
        o.trainer.model.k_min = 0;
        o.trainer.experts_min = opts->side * opts->side;
        o.deadline_min_us = 30 * HTH_US_PER_S;
        o.trainer.timeout_us = 60 * HTH_US_PER_S;
    }
    o.trainer.on =
        (struct hth_train_callbacks){.on_update = on_update, .on_done = on_done, .arg = run};
    o.server.queue_us_max = 60 * HTH_US_PER_S;
    return o;
}

/* Run until the goal, as long as each limit_us brings an update: the total time depends on the
 * number of updates. With goal 0, run for limit_us. */
static enum hth_err run_to(struct latency_run *run, uint64_t goal, int64_t limit_us)
{
    run->goal = goal > 0 ? goal : UINT64_MAX;
    uint64_t before = run->updates;
    bool there = hth_world_run_until_true(run->world, reached, run, limit_us);
    while (goal > 0 && !there && run->updates > before && hth_swarm_err(run->swarm) == HTH_OK) {
        before = run->updates;
        there = hth_world_run_until_true(run->world, reached, run, limit_us);
    }
    if (hth_swarm_err(run->swarm) != HTH_OK)
        return hth_swarm_err(run->swarm);
    if (!there)
        return goal > 0 ? HTH_E_TIMEOUT : HTH_OK;
    return run->updates >= run->goal ? HTH_OK : HTH_E_BUG;
}

/* Sums over all trainers. */
struct totals {
    uint64_t samples, answers, missing, backward_missing;
    double landed, stale; /* flights, and the sum of the updates by which they were late */
};

static struct totals totals(struct latency_run *run)
{
    struct totals sum = {.samples = 0};
    struct hth_train_stats s;

    for (uint32_t i = 0; i < run->trainers; i++) {
        hth_trainer_stats(hth_swarm_trainer_at(run->swarm, i), &s);
        sum.samples += s.samples;
        sum.answers += s.answers;
        sum.missing += s.answers_missing;
        sum.backward_missing += s.backward_missing;
        sum.landed += (double)s.flights_landed;
        sum.stale += s.staleness_mean * (double)s.flights_landed;
    }
    return sum;
}

static void tell(const struct totals *from, const struct totals *to, double seconds,
                 struct hth_latency_row *row)
{
    uint64_t missing = to->missing - from->missing;
    double asked = (double)(to->answers - from->answers + missing);
    double unlearned = (double)(missing + to->backward_missing - from->backward_missing);

    row->samples_per_s = (double)(to->samples - from->samples) / seconds;
    row->staleness_mean = (to->stale - from->stale) / fmax(to->landed - from->landed, 1);
    row->answers_missing = (double)missing / fmax(asked, 1);
    row->useful_per_s = row->samples_per_s * (1 - unlearned / fmax(asked, 1));
}

static enum hth_err measure(struct latency_run *run, const struct hth_latency_opts *opts,
                            struct hth_latency_row *row)
{
    /* Flights land in bunches, once per cycle of all flights, so measure whole cycles. */
    uint64_t turns = ((uint64_t)opts->updates + opts->flights - 1) / opts->flights;
    uint64_t warm = 2 * (uint64_t)opts->flights * opts->trainers;
    uint64_t goal = warm + turns * opts->flights * opts->trainers;
    struct hth_churn_stats churn = {.deaths = 0};

    HTH_TRY(run_to(run, warm, 3600 * HTH_US_PER_S));
    int64_t begin_us = hth_world_now_us(run->world);
    struct totals from = totals(run);
    if (opts->measure_us > 0)
        HTH_TRY(run_to(run, 0, opts->measure_us));
    else
        HTH_TRY(run_to(run, goal, 3600 * HTH_US_PER_S));
    int64_t end_us = hth_world_now_us(run->world);
    struct totals to = totals(run);
    if (run->churn != NULL)
        hth_churn_stats(run->churn, &churn);
    row->delay_ms = opts->delay_ms;
    row->flights = opts->flights;
    row->virtual_s = (double)end_us / 1e6;
    tell(&from, &to, (double)(end_us - begin_us) / 1e6, row);
    row->deaths = churn.deaths;
    row->trace = hth_world_trace_hash(run->world);
    return HTH_OK;
}

static void start_failures(struct latency_run *run, const struct hth_latency_opts *opts)
{
    struct hth_churn_opts o = HTH_CHURN_OPTS_INIT;

    if (opts->down == 0)
        return;
    o.peer.kind = HTH_LIFE_POISSON;
    o.peer.down_us = opts->down_us;
    o.peer.up_us = (int64_t)((double)opts->down_us * (1 - opts->down) / opts->down);
    o.provider.kind = HTH_LIFE_ALWAYS;
    o.under_way = true;
    run->churn = hth_churn_new(run->world, &o, opts->seed);
    for (uint32_t i = 0; i < opts->hosts; i++)
        hth_churn_add(run->churn, hth_swarm_host(run->swarm, i));
}

static bool makes_sense(const struct hth_latency_opts *o)
{
    return o->flights > 0 && o->flights <= HTH_FLIGHTS_MAX && o->hosts > 0 && o->updates > 0 &&
           o->trainers > 0 && o->trainers <= HTH_LATENCY_TRAINERS_MAX && o->side > 0 &&
           o->delay_ms >= 0 && o->delay_ms <= 10000 && o->down >= 0 && o->down <= 0.9 &&
           o->down_us > 0;
}

enum hth_err hth_sim_latency(const struct hth_latency_opts *opts, struct hth_latency_row *row)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_device host, trainer;
    struct hth_swarm_opts o;
    struct latency_run *run;
    enum hth_err err;

    memset(row, 0, sizeof(*row));
    if (!makes_sense(opts))
        return HTH_E_CONFIG;
    w.ghost = true;
    w.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    w.link = (struct hth_link){
        .latency_us = 100,
        .jitter_us = (int64_t)(opts->delay_ms * 500),
        .jitter = HTH_JITTER_EXPONENTIAL,
    };
    run = hth_new(struct latency_run);
    w.trace = opts->on_event;
    w.trace_arg = opts->arg;
    run->world = hth_world_new(opts->seed, &w);
    run->trainers = opts->trainers;
    mount_data(run);
    o = swarm_opts(opts, run, &host, &trainer);
    run->swarm = hth_swarm_new(run->world, &o);
    start_failures(run, opts);
    err = measure(run, opts, row);
    hth_world_free(run->world);
    hth_churn_free(run->churn);
    hth_swarm_free(run->swarm);
    hth_free(run);
    return err;
}
