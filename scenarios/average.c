/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/average.h"

#include "averaging/peer.h"
#include "core/mem.h"
#include "core/rng.h"
#include "rpc/rpc.h"
#include "sim/world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PORT      4000
#define SCHEMA    5
#define SETTLE_US (5 * HTH_US_PER_S) /* until each roster knows its level and its peers */
#define STEP_US   (HTH_US_PER_MS)
#define ROUND_US  (60 * HTH_US_PER_S) /* longer than any offer lasts */
#define SLOWNESS  10
#define SEGMENT_S 0.01 /* on a slow link */

/* The moment in its reduction at which a peer crashes. */
enum moment { BEGUN, VALUES_IN, FIRST_SUM, MOMENTS };

struct average_peer {
    struct average *average;
    struct hth_node *node;
    struct hth_env *env; /* NULL while it is down */
    struct hth_rpc *rpc;
    struct hth_avg_peer avg;
    struct hth_avg_cell cell;
    float *values;
    bool struck;
    /* of the present round */
    bool offered, ended;
    bool doomed, died;
    enum moment moment;
    enum hth_crash how;
    uint64_t bytes_in, parts; /* counters of its reducer before the round */
    struct hth_avg_result result;
};

struct average {
    const struct hth_average_opts *opts;
    struct hth_world *world;
    struct hth_rng coins, rng;
    struct average_peer *peer;
    double *start;      /* the mean of the start values of all peers */
    double *mean, *var; /* present ones, by number of the vector; see measure */
    uint8_t *arrived;   /* two targets for each number of the vector */
    uint32_t open;      /* offers that have not ended */
    int64_t last_us;    /* time at which the last one ended */
    uint32_t round;
    struct hth_average_report *report;
    enum hth_err err;
};

static const double targets[2] = {1e-4, 1e-9};

static void tell(const struct average *a, const struct average_peer *p, const char *event,
                 const char *detail)
{
    if (a->opts->on_event != NULL)
        a->opts->on_event(a->opts->arg, hth_world_now_us(a->world),
                          p != NULL ? hth_node_name(p->node) : "", event, detail);
}

/* ---- a peer -------------------------------------------------------------------------------- */

/* End the offer: with this result, or because its owner crashed. */
static void end_offer(struct average_peer *p)
{
    struct average *a = p->average;
    if (!p->offered || p->ended)
        return;
    p->ended = true;
    a->open--;
    a->last_us = hth_world_now_us(a->world);
}

static void on_round(void *arg, const struct hth_avg_result *r)
{
    struct average_peer *p = arg;
    char detail[48];
    p->result = *r;
    p->result.values = p->result.average = NULL;
    if (r->err == HTH_OK)
        memcpy(p->values, r->average->data, p->average->opts->dim * sizeof(float));
    snprintf(detail, sizeof(detail), "%u members", r->round.members);
    tell(p->average, p, r->err == HTH_OK ? "averaged" : "no average",
         r->err == HTH_OK ? detail : hth_avg_reason_name(r->reason));
    end_offer(p);
}

static enum hth_err build(struct hth_env *env, struct hth_dht *dht, struct average_peer *p)
{
    const struct hth_average_opts *o = p->average->opts;
    struct hth_addr addr = hth_node_addr(p->node, PORT);
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_avg_peer_opts avg = HTH_AVG_PEER_OPTS_INIT;
    rpc.network = avg.network = "average";
    rpc.listen = &addr;
    rpc.on_peer_lost = hth_avg_peer_lost;
    rpc.arg = &p->avg;
    avg.addr = addr;
    avg.bandwidth = 8 * o->line_bytes_per_s; /* as its owner configured */
    avg.roster.schema = SCHEMA;
    avg.roster.shape = o->base.shape;
    avg.roster.has_cell = true;
    avg.roster.cell = p->cell;
    if (o->base.method == HTH_PURE_ALLREDUCE)
        avg.moshpit.group_min = HTH_MAX(o->base.peers, 2);
    HTH_TRY(hth_rpc_new(env, &rpc, &p->rpc));
    HTH_TRY(hth_avg_peer_open(env, p->rpc, dht, &avg, &p->avg));
    return hth_averager_start(&p->avg.averager, on_round, p);
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct average_peer *p = arg;
    enum hth_err err = build(env, dht, p);
    p->env = env;
    if (err != HTH_OK && p->average->err == HTH_OK)
        p->average->err = err;
}

static void halt(struct hth_env *env, void *arg)
{
    struct average_peer *p = arg;
    (void)env;
    hth_avg_peer_close(&p->avg);
    hth_rpc_free(p->rpc);
    p->rpc = NULL;
    p->env = NULL;
    end_offer(p);
}

/* ---- the start ------------------------------------------------------------------------------ */

static struct hth_device device(const struct hth_average_opts *o, double speed)
{
    struct hth_device d = HTH_DEVICE_INIT;
    d.up_bytes_per_s = d.down_bytes_per_s = o->line_bytes_per_s * speed;
    d.flops_per_s *= speed;
    d.bytes_per_s *= speed;
    return d;
}

/* Place each peer in its own cell, as rosters do: the first cells are taken. */
static void place(struct average *a)
{
    uint32_t peers = a->opts->base.peers, *rank = hth_new_array(uint32_t, peers);
    for (uint32_t i = 0; i < peers; i++)
        rank[i] = i;
    hth_rng_shuffle(&a->rng, rank, peers, sizeof(*rank));
    for (uint32_t i = 0; i < peers; i++)
        a->peer[i].cell = hth_avg_cell_of_rank(&a->opts->base.shape, rank[i]);
    hth_free(rank);
}

static void fill(struct average *a)
{
    uint32_t peers = a->opts->base.peers, dim = a->opts->dim;
    for (uint32_t i = 0; i < peers; i++)
        for (uint32_t j = 0; j < dim; j++) {
            a->peer[i].values[j] = (float)hth_rng_normal(&a->rng);
            a->start[j] += (double)a->peer[i].values[j] / peers;
        }
}

static void populate(struct average *a)
{
    struct hth_device d = device(a->opts, 1);
    for (uint32_t i = 0; i < a->opts->base.peers; i++) {
        struct average_peer *p = &a->peer[i];
        struct hth_node_opts node = HTH_NODE_OPTS_INIT;
        char name[16];
        snprintf(name, sizeof(name), "p%u", i);
        p->average = a;
        p->values = hth_new_array(float, a->opts->dim);
        node.boot = boot;
        node.halt = halt;
        node.arg = p;
        node.device = &d;
        p->node = hth_world_node(a->world, name, &node);
    }
    place(a);
    fill(a);
}

/* ---- failures ------------------------------------------------------------------------------ */

static void doom(struct average *a, struct average_peer *p)
{
    struct hth_reducer_stats s;
    p->moment = (enum moment)hth_rng_below(&a->rng, MOMENTS);
    p->how = hth_rng_chance(&a->rng, 0.5) ? HTH_CRASH_SILENT : HTH_CRASH_RESET;
    p->doomed = true;
    hth_reducer_stats(p->avg.reducer, &s);
    p->bytes_in = s.bytes_in;
    p->parts = s.parts_reduced;
}

static void strike(struct average *a, struct average_peer *p, bool struck)
{
    const struct hth_pure_opts *o = &a->opts->base;
    struct hth_device d = device(a->opts, struck ? 1.0 / SLOWNESS : 1);
    bool was = p->struck;
    p->struck = struck;
    if (o->failure == HTH_PURE_SLOW && was != struck)
        hth_node_set_device(p->node, &d);
    if (o->failure == HTH_PURE_PARTITION && was != struck)
        hth_node_set_side(p->node, struck);
    if (was != struck && o->failure != HTH_PURE_CRASH)
        tell(a, p, hth_pure_failure_name(o->failure), struck ? "begins" : "ends");
}

static void draw(struct average *a)
{
    const struct hth_pure_opts *o = &a->opts->base;
    for (uint32_t i = 0; i < o->peers; i++) {
        struct average_peer *p = &a->peer[i];
        if (a->round % o->hold == 0)
            strike(a, p, hth_rng_chance(&a->coins, o->p_fail));
        if (p->struck && o->failure == HTH_PURE_CRASH)
            doom(a, p);
    }
}

/* Heal the partitions that end before the next round begins. */
static void heal(struct average *a)
{
    const struct hth_pure_opts *o = &a->opts->base;
    bool over = o->failure == HTH_PURE_PARTITION && a->opts->heal_us > 0;
    for (uint32_t i = 0; over && (a->round + 1) % o->hold == 0 && i < o->peers; i++)
        strike(a, &a->peer[i], false);
}

static bool is_time(const struct average_peer *p)
{
    struct hth_reducer_stats s;
    hth_reducer_stats(p->avg.reducer, &s);
    switch (p->moment) {
    case BEGUN:
        return s.rounds_now > 0;
    case VALUES_IN:
        return s.rounds_now > 0 && s.bytes_in > p->bytes_in;
    default:
        return s.rounds_now > 0 && s.parts_reduced > p->parts;
    }
}

static void kill_the_doomed(struct average *a)
{
    for (uint32_t i = 0; i < a->opts->base.peers; i++) {
        struct average_peer *p = &a->peer[i];
        if (!p->doomed || p->ended || !is_time(p))
            continue;
        tell(a, p, "dies", p->how == HTH_CRASH_SILENT ? "silently" : "with a reset");
        p->doomed = false;
        p->died = true;
        a->report->deaths++;
        hth_node_crash(p->node, p->how);
    }
}

static void revive(struct average *a)
{
    for (uint32_t i = 0; i < a->opts->base.peers; i++) {
        struct average_peer *p = &a->peer[i];
        p->doomed = false;
        if (!p->died)
            continue;
        tell(a, p, "starts", "");
        hth_node_restart(p->node);
    }
}

/* ---- a round ------------------------------------------------------------------------------- */

static enum hth_err offer(struct average_peer *p)
{
    struct average *a = p->average;
    struct hth_avg_offer o = {.count = a->opts->dim, .weight = 1, .schema = SCHEMA};
    size_t bytes = o.count * sizeof(float);
    HTH_TRY(hth_env_blob_new(p->env, bytes, NULL, &o.values));
    memcpy(o.values->data, p->values, bytes);
    enum hth_err err = hth_averager_offer(&p->avg.averager, &o);
    hth_blob_unref(o.values);
    if (err != HTH_OK) { /* no peer is there: counts as a round without an average */
        tell(a, p, "no average", hth_err_name(err));
        p->ended = true;
        p->result.err = err;
        return err == HTH_E_NOT_FOUND || err == HTH_E_BUSY ? HTH_OK : err;
    }
    a->open++;
    return HTH_OK;
}

static enum hth_err begin(struct average *a)
{
    a->open = 0;
    a->last_us = hth_world_now_us(a->world);
    for (uint32_t i = 0; i < a->opts->base.peers; i++) {
        struct average_peer *p = &a->peer[i];
        p->ended = p->died = false;
        memset(&p->result, 0, sizeof(p->result));
        p->offered = !(p->struck && a->opts->base.failure == HTH_PURE_ABSENT);
        if (p->offered)
            HTH_TRY(offer(p));
    }
    return HTH_OK;
}

static enum hth_err play(struct average *a)
{
    int64_t end_us = hth_world_now_us(a->world) + ROUND_US;
    bool deaths = a->opts->base.failure == HTH_PURE_CRASH;
    HTH_TRY(begin(a));
    while (a->open > 0 && hth_world_now_us(a->world) < end_us) {
        hth_world_run_for(a->world, STEP_US);
        if (deaths)
            kill_the_doomed(a);
    }
    return a->open == 0 ? a->err : HTH_E_TIMEOUT;
}

/* ---- measuring ----------------------------------------------------------------------------- */

/* Count one more round for each target that number j of the vector has not reached, up to the cap.
 * Returns whether it has reached both. */
static bool count_round(struct average *a, uint32_t j, double *row)
{
    uint32_t cap = a->opts->base.cap;
    bool all = true;
    for (int k = 0; k < 2; k++) {
        uint8_t *arrived = &a->arrived[2 * j + k];
        if (*arrived || a->round >= cap)
            continue;
        row[HTH_PURE_REACHED + k] += 1.0 / a->opts->dim;
        *arrived = a->var[j] < targets[k];
        all &= *arrived != 0;
        if (!*arrived && a->round + 1 == cap)
            row[HTH_PURE_UNREACHED + k] += 1.0 / a->opts->dim;
    }
    return all;
}

/* Compute the errors over all peers. Returns whether all numbers of the vector have reached both
 * targets. */
static bool measure(struct average *a, double *mse, double *variance, double *row)
{
    uint32_t peers = a->opts->base.peers, dim = a->opts->dim;
    bool all = true;
    memset(a->mean, 0, dim * sizeof(*a->mean));
    memset(a->var, 0, dim * sizeof(*a->var));
    for (uint32_t i = 0; i < peers; i++)
        for (uint32_t j = 0; j < dim; j++)
            a->mean[j] += (double)a->peer[i].values[j] / peers;
    for (uint32_t i = 0; i < peers; i++)
        for (uint32_t j = 0; j < dim; j++) {
            double off = (double)a->peer[i].values[j] - a->mean[j];
            a->var[j] += off * off / peers;
        }
    *mse = *variance = 0;
    for (uint32_t j = 0; j < dim; j++) {
        double shift = a->mean[j] - a->start[j];
        *variance += a->var[j] / dim;
        *mse += (a->var[j] + shift * shift) / dim;
        all &= count_round(a, j, row);
    }
    return all;
}

struct average_sums {
    double offers, living, averaged, fraction, members, bytes_out;
};

static void add_up(struct average *a, struct average_sums *s)
{
    for (uint32_t i = 0; i < a->opts->base.peers; i++) {
        const struct average_peer *p = &a->peer[i];
        s->offers += p->offered;
        s->bytes_out += (double)p->result.round.bytes_out;
        if (!p->offered || p->died)
            continue;
        s->living++;
        if (p->result.err != HTH_OK)
            continue;
        s->averaged++;
        s->fraction += p->result.round.weight_fraction;
        s->members += p->result.round.members;
    }
    a->report->offers += (uint64_t)s->offers;
    a->report->failed += (uint64_t)(s->living - s->averaged);
}

static void put(const struct average *a, double *row, enum hth_average_metric m, double value)
{
    row[m * a->opts->base.rounds + a->round] = value;
}

static void fill_row(struct average *a, double *row, int64_t begin_us, uint64_t bytes)
{
    const struct hth_average_opts *o = a->opts;
    double peers = o->base.peers;
    struct average_sums s = {0};
    add_up(a, &s);
    if (a->round >= o->base.rounds)
        return;
    put(a, row, HTH_AVERAGE_VECTORS, s.bytes_out / (double)(o->dim * sizeof(float)) / peers);
    put(a, row, HTH_AVERAGE_SECONDS, (double)(a->last_us - begin_us) / HTH_US_PER_S);
    put(a, row, HTH_AVERAGE_BYTES, (double)bytes / peers);
    put(a, row, HTH_AVERAGE_SUCCESS, s.living > 0 ? s.averaged / s.living : NAN);
    put(a, row, HTH_AVERAGE_FRACTION, s.averaged > 0 ? s.fraction / s.averaged : NAN);
    put(a, row, HTH_AVERAGE_MEMBERS, s.averaged > 0 ? s.members / s.averaged : NAN);
}

/* Play one round from failures to pause. *all: both targets are reached everywhere. */
static enum hth_err play_round(struct average *a, double *row, bool *all)
{
    const struct hth_pure_opts *o = &a->opts->base;
    struct hth_world_stats before, after;
    double mse, variance;
    char detail[96];
    draw(a);
    int64_t begin_us = hth_world_now_us(a->world);
    hth_world_stats(a->world, &before);
    tell(a, NULL, "round begins", "");
    HTH_TRY(play(a));
    hth_world_stats(a->world, &after);
    fill_row(a, row, begin_us, after.bytes_delivered - before.bytes_delivered);
    *all = measure(a, &mse, &variance, row + HTH_AVERAGE_METRICS * o->rounds);
    if (a->round < o->rounds) {
        put(a, row, HTH_AVERAGE_MSE, mse);
        put(a, row, HTH_AVERAGE_VARIANCE, variance);
    }
    snprintf(detail, sizeof(detail), "mse %.9g variance %.9g", mse, variance);
    tell(a, NULL, "round ends", detail);
    revive(a);
    hth_world_run_for(a->world, a->opts->pause_us - a->opts->heal_us);
    heal(a);
    hth_world_run_for(a->world, a->opts->heal_us);
    return a->err;
}

static enum hth_err run(struct average *a, double *row)
{
    const struct hth_pure_opts *o = &a->opts->base;
    bool all = false;
    hth_world_run_for(a->world, SETTLE_US);
    HTH_TRY(a->err);
    for (; a->round < o->rounds || (a->round < o->cap && !all); a->round++)
        HTH_TRY(play_round(a, row, &all));
    a->report->rounds = a->round;
    a->report->hash = hth_world_trace_hash(a->world);
    return HTH_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static enum hth_err check(const struct hth_average_opts *o)
{
    const struct hth_pure_opts *b = &o->base;
    struct hth_pure *pure;
    bool all = b->method == HTH_PURE_ALLREDUCE;
    HTH_TRY(hth_pure_new(b, &pure));
    hth_pure_free(pure);
    if ((!all && b->method != HTH_PURE_MOSHPIT) || b->peers > HTH_AVERAGE_PEERS_MAX ||
        b->peers < 2 || b->peers > hth_avg_cells(&b->shape) || o->dim == 0 ||
        o->dim > HTH_AVERAGE_DIM_MAX || o->pause_us < 0 || o->heal_us < 0 ||
        o->heal_us > o->pause_us || o->line_bytes_per_s < 0)
        return HTH_E_CONFIG;
    if (all &&
        (b->shape.dims != 1 || b->peers != b->shape.size[0] || b->peers > HTH_AVG_MEMBERS_MAX / 2))
        return HTH_E_CONFIG;
    return HTH_OK;
}

/* A segment arrives as a whole. With long ones on a slow link a peer would seem dead in between. */
static uint32_t segment_bytes(const struct hth_average_opts *o)
{
    double bytes = o->line_bytes_per_s / SLOWNESS * SEGMENT_S;
    return o->line_bytes_per_s == 0 ? 64u << 10 : (uint32_t)HTH_MIN(HTH_MAX(bytes, 1460), 64 << 10);
}

size_t hth_average_row_len(const struct hth_average_opts *o)
{
    return (size_t)HTH_AVERAGE_METRICS * o->base.rounds + 4;
}

enum hth_err hth_sim_average(const struct hth_average_opts *o, uint64_t index, double *row,
                             struct hth_average_report *report)
{
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct average a = {.opts = o, .report = report};
    struct hth_open_counts leaks;
    struct hth_rng root;
    memset(report, 0, sizeof(*report));
    HTH_TRY(check(o));
    memset(row, 0, hth_average_row_len(o) * sizeof(*row));
    hth_rng_init(&root, o->base.seed);
    a.rng = hth_rng_split(&root, "average", index);
    a.coins = hth_rng_split(&root, "strikes", index);
    world.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    world.link = o->link;
    world.segment_bytes = segment_bytes(o);
    a.world = hth_world_new(hth_rng_u64(&a.rng), &world);
    a.peer = hth_new_array(struct average_peer, o->base.peers);
    a.start = hth_new_array(double, o->dim);
    a.mean = hth_new_array(double, o->dim);
    a.var = hth_new_array(double, o->dim);
    a.arrived = hth_new_array(uint8_t, 2 * (size_t)o->dim);
    populate(&a);
    enum hth_err err = run(&a, row);
    for (uint32_t i = 0; i < o->base.peers; i++)
        hth_node_crash(a.peer[i].node, HTH_CRASH_RESET);
    hth_world_leaks(a.world, &leaks);
    report->leaks = hth_open_total(&leaks);
    hth_world_free(a.world);
    for (uint32_t i = 0; i < o->base.peers; i++)
        hth_free(a.peer[i].values);
    hth_free(a.peer);
    hth_free(a.start);
    hth_free(a.mean);
    hth_free(a.var);
    hth_free(a.arrived);
    return err;
}
