/* SPDX-License-Identifier: Apache-2.0 */
/* run.c: runs a drawn scenario and judges it. */
#include "core/limits.h"
#include "core/mem.h"
#include "scenarios/echo.h"
#include "scenarios/scenario.h"
#include "sim/profile.h"

#include <inttypes.h>
#include <string.h>

/* The share of the time after which calls must succeed: by then connections that were stalled for
 * longer are closed, and records and bans have expired. */
#define RECOVERY_SHARE 0.9
/* For the last calls, with all their retries. */
#define LAST_CALLS_US (20 * HTH_US_PER_S)

struct scenario_run;

/* The application of the nodes: peers or a fleet, with functions of the same meaning. */
struct app {
    struct hth_node *(*node)(struct scenario_run *r, uint32_t i);
    void (*broken)(struct scenario_run *r, const char *text);
    void (*check_now)(struct scenario_run *r);
    void (*end_faults)(struct scenario_run *r);
    void (*expect)(struct scenario_run *r); /* nine tenths of the time are over */
    void (*judge)(struct scenario_run *r);  /* all of the time is over */
    void (*stop)(struct scenario_run *r);
    bool (*is_stopped)(void *run);
    void (*check_end)(struct scenario_run *r);
    void (*report)(struct scenario_run *r);
};

struct scenario_run {
    const struct app *app;
    const struct hth_plan *plan;
    const struct hth_scenario *s;
    struct hth_scenario_report *report;
    struct hth_world *world;
    struct hth_echo *peers; /* or */
    struct hth_fleet *fleet;
    struct hth_churn *churn;
    struct hth_device *devices; /* one per node, as drawn */
    struct hth_rng rng;         /* for events; nodes draw from generators of their own */
    bool cut;
};

static bool over(const struct scenario_run *r)
{
    return hth_world_now_us(r->world) >= r->plan->safety_us;
}

static struct hth_node *any_node(struct scenario_run *r)
{
    return r->app->node(r, (uint32_t)hth_rng_below(&r->rng, r->s->nodes));
}

/* The nodes that a node talks to: its neighbourhood; in a fleet, all. */
static struct hth_hood hood_of(const struct scenario_run *r, const struct hth_node *node)
{
    uint32_t hood = r->fleet != NULL ? r->s->nodes : r->s->load.hood;
    return hth_hood_of((uint32_t)hth_node_index(node), r->s->nodes, hood);
}

static struct hth_node *neighbour(struct scenario_run *r, const struct hth_node *node)
{
    struct hth_hood hood = hood_of(r, node);
    return r->app->node(r, hood.first + (uint32_t)hth_rng_below(&r->rng, hood.size));
}

static void again(struct scenario_run *r, int64_t after_us, hth_fn *fn)
{
    hth_world_at(r->world, hth_world_now_us(r->world) + HTH_MAX(after_us, HTH_US_PER_MS), fn, r);
}

/* ---- partitions, clogs, clocks ------------------------------------------------------------- */

static void cut_off(struct scenario_run *r, struct hth_node *node, bool one_way)
{
    struct hth_hood hood = hood_of(r, node);
    if (!one_way) {
        hth_node_set_side(node, 1);
        return;
    }
    for (uint32_t j = hood.first; j < hood.first + hood.size; j++)
        if (r->app->node(r, j) != node)
            hth_world_block(r->world, node, r->app->node(r, j), true);
}

static void on_partition(void *arg)
{
    struct scenario_run *r = arg;
    if (over(r))
        return;
    r->cut = !r->cut;
    if (!r->cut) {
        hth_world_heal(r->world);
        again(r, r->plan->partition_every_us, on_partition);
        return;
    }
    bool one_way = hth_rng_chance(&r->rng, r->s->partitions.one_way);
    r->report->partitions++;
    for (uint32_t i = 0; i < r->s->nodes; i++)
        if (hth_rng_chance(&r->rng, r->plan->partition_share))
            cut_off(r, r->app->node(r, i), one_way);
    again(r, r->plan->partition_for_us, on_partition);
}

static void on_clog(void *arg)
{
    struct scenario_run *r = arg;
    int64_t now_us = hth_world_now_us(r->world);
    if (over(r))
        return;
    /* Clogs end when the faults end. */
    int64_t until_us = HTH_MIN(now_us + r->plan->clog_for_us, r->plan->safety_us);
    for (uint32_t i = 0; i < r->s->clogs.ways; i++) {
        struct hth_node *from = any_node(r), *to = neighbour(r, from);
        hth_world_clog(r->world, from, to, until_us);
        r->report->clogs++;
    }
    again(r, r->plan->clog_every_us, on_clog);
}

/* Draw evenly from -most_us to most_us. */
static int64_t around_zero(struct hth_rng *rng, int64_t most_us)
{
    return (int64_t)((2.0 * hth_rng_unit(rng) - 1.0) * (double)most_us);
}

static void on_step(void *arg)
{
    struct scenario_run *r = arg;
    if (over(r))
        return;
    struct hth_node *node = any_node(r);
    hth_node_wall_set(node, around_zero(&r->rng, r->plan->step_us));
    r->report->steps++;
    again(r, r->plan->step_every_us, on_step);
}

/* ---- the nodes ----------------------------------------------------------------------------- */

static uint32_t pick(struct hth_rng *rng, const double *share, uint32_t count)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += share[i];
    double at = hth_rng_unit(rng) * sum;
    uint32_t i = 0;
    while (i + 1 < count && at >= share[i])
        at -= share[i++];
    return i;
}

static void draw_device(struct scenario_run *r, struct hth_rng *rng, struct hth_device *out)
{
    double share[HTH_SCENARIO_DEVICES_MAX];
    *out = (struct hth_device)HTH_DEVICE_INIT;
    for (uint32_t i = 0; i < r->s->device_count; i++)
        share[i] = r->s->devices[i].share;
    if (r->s->device_count > 0) {
        const struct hth_scenario_device *d = &r->s->devices[pick(rng, share, r->s->device_count)];
        out->flops_per_s = d->gflops * 1e9;
        out->bytes_per_s = d->gbytes_per_s * 1e9;
        out->compute_workers = d->workers;
        out->up_bytes_per_s = d->up_mbit * 125e3;
        out->down_bytes_per_s = d->down_mbit * 125e3;
        out->disk_bytes_max = (uint64_t)(d->disk_mb * 1e6);
        if (d->measured != NULL)
            hth_profile_apply(d->measured, out);
    }
    if (hth_rng_chance(rng, r->plan->straggler_share))
        hth_device_scale(out, r->plan->straggler_speed);
}

static uint32_t draw_zone(struct scenario_run *r, struct hth_rng *rng)
{
    double share[HTH_SCENARIO_ZONES_MAX];
    for (uint32_t i = 0; i < r->s->zone_count; i++)
        share[i] = r->s->zones[i].share;
    return r->s->zone_count > 0 ? pick(rng, share, r->s->zone_count) : 0;
}

static void draw_node(void *arg, uint32_t index, struct hth_node_opts *o)
{
    struct scenario_run *r = arg;
    struct hth_rng root, rng;
    hth_rng_init(&root, r->plan->seed);
    rng = hth_rng_split(&root, "scenario node", index);
    draw_device(r, &rng, &r->devices[index]);
    o->device = &r->devices[index];
    o->zone = draw_zone(r, &rng);
    o->wall_skew_us = around_zero(&rng, r->plan->skew_us);
    o->clock_offset_us = (int64_t)hth_rng_below(&rng, 1000 * HTH_US_PER_S);
}

/* ---- the world ----------------------------------------------------------------------------- */

static void set_links(struct scenario_run *r, bool faults)
{
    struct hth_link link = r->plan->link;
    link.loss = faults ? link.loss : 0.0;
    hth_world_set_link(r->world, &link);
    for (uint32_t i = 0; i < r->s->zone_count; i++) {
        for (uint32_t j = 0; j <= i; j++) {
            link.latency_us = (int64_t)(r->s->zones[i].latency_ms[j] * 1e3);
            hth_world_zone_link(r->world, i, j, &link);
        }
    }
}

/* Drop the log: errors of a fleet under faults are expected. */
static void no_log(void *arg, const char *line, size_t len)
{
    (void)arg;
    (void)line;
    (void)len;
}

static void make_world(struct scenario_run *r, const struct hth_scenario_opts *opts)
{
    struct hth_world_opts o = HTH_WORLD_OPTS_INIT;
    o.ghost = !r->s->load.real;
    o.log_level = opts->log_level;
    o.log_sink = r->s->swarm.trainers > 0 && opts->log_level == HTH_ERROR ? no_log : NULL;
    /* most payloads are one segment, which saves two thirds of the events */
    o.segment_bytes = 512u << 10;
    o.dht = r->plan->dht;
    o.chaos = r->plan->chaos;
    o.trace = opts->on_event;
    o.trace_arg = opts->arg;
    r->world = hth_world_new(r->plan->seed, &o);
    set_links(r, true);
}

/* End all faults. */
static void end_faults(struct scenario_run *r)
{
    struct hth_dht_params dht = HTH_DHT_PARAMS_INIT;
    struct hth_chaos calm = {.short_read = r->plan->chaos.short_read,
                             .short_write = r->plan->chaos.short_write};
    dht.watch_refresh_us = r->plan->dht.watch_refresh_us;
    hth_world_heal(r->world);
    set_links(r, false);
    hth_world_set_dht(r->world, &dht);
    hth_world_set_chaos(r->world, &calm);
    hth_churn_stop(r->churn);
    /* A clock beyond the tolerance of records would stay wrong for ever: its owner sets it
     * right. */
    for (uint32_t i = 0; i < r->s->nodes; i++)
        hth_node_wall_set(r->app->node(r, i),
                          around_zero(&r->rng, HTH_MIN(r->plan->skew_us, HTH_US_PER_S)));
}

static void begin_faults(struct scenario_run *r, const struct hth_avail *trace)
{
    const struct hth_plan *p = r->plan;
    r->churn = hth_churn_new(r->world, &p->churn, p->seed);
    for (uint32_t i = 0; i < r->s->nodes; i++) {
        struct hth_node *node = r->app->node(r, i);
        if (trace != NULL) {
            const struct hth_avail_peer *peer = &trace->peers[i % trace->peer_count];
            hth_churn_play(r->churn, node, peer->rows, peer->count, &r->devices[i]);
        } else if (p->churns && (r->fleet == NULL || hth_fleet_is_honest(r->fleet, i))) {
            hth_churn_add(r->churn, node);
        }
    }
    if (p->partition_every_us > 0)
        again(r, p->partition_every_us, on_partition);
    if (p->clog_every_us > 0)
        again(r, p->clog_every_us, on_clog);
    if (p->step_every_us > 0)
        again(r, p->step_every_us, on_step);
}

/* ---- peers --------------------------------------------------------------------------------- */

static struct hth_node *peers_node(struct scenario_run *r, uint32_t i)
{
    return hth_echo_node(r->peers, i);
}

static void peers_broken(struct scenario_run *r, const char *text)
{
    hth_echo_broken(r->peers, "%s", text);
}

static void peers_check_now(struct scenario_run *r)
{
    hth_echo_check_now(r->peers);
}

static void peers_end_faults(struct scenario_run *r)
{
    (void)r;
}

static void peers_expect(struct scenario_run *r)
{
    hth_echo_expect_success(r->peers);
}

static void peers_stop(struct scenario_run *r)
{
    hth_echo_stop(r->peers);
}

static bool peers_stopped(void *run)
{
    return hth_echo_all_answered(((struct scenario_run *)run)->peers);
}

static void peers_check_end(struct scenario_run *r)
{
    hth_echo_check_views(r->peers);
    hth_echo_check_end(r->peers);
}

static void peers_report(struct scenario_run *r)
{
    struct hth_scenario_report *out = r->report;
    struct hth_echo_stats calls;
    hth_echo_stats(r->peers, &calls);
    out->calls = calls.calls;
    out->calls_ok = calls.ok;
    out->calls_failed = calls.failed;
    out->calls_again = calls.again;
    out->calls_vanished = calls.vanished;
    out->calls_without_host = calls.without_host;
    out->latency_median_us = calls.latency_median_us;
    out->latency_p99_us = calls.latency_p99_us;
    memcpy(out->why, hth_echo_why(r->peers), sizeof(out->why));
}

static const struct app peers_app = {
    .node = peers_node,
    .broken = peers_broken,
    .check_now = peers_check_now,
    .end_faults = peers_end_faults,
    .expect = peers_expect,
    .judge = peers_end_faults, /* the invariants are checked when the last calls have ended */
    .stop = peers_stop,
    .is_stopped = peers_stopped,
    .check_end = peers_check_end,
    .report = peers_report,
};

static enum hth_err make_peers(struct scenario_run *r)
{
    struct hth_echo_opts peers = HTH_ECHO_OPTS_INIT;
    const struct hth_scenario *s = r->s;
    r->app = &peers_app;
    peers.count = s->nodes;
    peers.hood = s->load.hood;
    peers.experts = s->load.experts;
    peers.payload_bytes = (uint32_t)(s->load.payload_kib * 1024);
    peers.call_every_us = (int64_t)(1e6 / s->load.calls_per_s);
    peers.node = draw_node;
    peers.arg = r;
    return hth_echo_new(r->world, &peers, &r->peers);
}

/* ---- a fleet ------------------------------------------------------------------------------- */

static struct hth_node *fleet_node(struct scenario_run *r, uint32_t i)
{
    return hth_fleet_node(r->fleet, i);
}

static void fleet_broken(struct scenario_run *r, const char *text)
{
    hth_fleet_broken(r->fleet, "%s", text);
}

static void fleet_check_now(struct scenario_run *r)
{
    hth_fleet_check_now(r->fleet);
}

static void fleet_end_faults(struct scenario_run *r)
{
    hth_fleet_end_faults(r->fleet);
}

static void fleet_expect(struct scenario_run *r)
{
    hth_fleet_expect_recovery(r->fleet);
}

static void fleet_judge(struct scenario_run *r)
{
    hth_fleet_check_recovery(r->fleet);
}

static void fleet_stop(struct scenario_run *r)
{
    hth_fleet_stop(r->fleet);
}

static bool fleet_stopped(void *run)
{
    return hth_fleet_all_stopped(((struct scenario_run *)run)->fleet);
}

static void fleet_check_end(struct scenario_run *r)
{
    hth_fleet_check_end(r->fleet);
}

static void fleet_report(struct scenario_run *r)
{
    struct hth_scenario_report *out = r->report;
    hth_fleet_stats(r->fleet, &out->fleet);
    out->is_swarm = true;
    out->calls = out->fleet.answers + out->fleet.answers_missing;
    out->calls_ok = out->fleet.answers;
    out->calls_failed = out->fleet.answers_missing;
    memcpy(out->why, hth_fleet_why(r->fleet), sizeof(out->why));
}

static const struct app fleet_app = {
    .node = fleet_node,
    .broken = fleet_broken,
    .check_now = fleet_check_now,
    .end_faults = fleet_end_faults,
    .expect = fleet_expect,
    .judge = fleet_judge,
    .stop = fleet_stop,
    .is_stopped = fleet_stopped,
    .check_end = fleet_check_end,
    .report = fleet_report,
};

static enum hth_err make_fleet(struct scenario_run *r)
{
    const struct hth_scenario *s = r->s;
#define KIND(name) {&hth_malice_##name, s->malice.name},
    const struct hth_fleet_malice malice[] = {HTH_MALICE_MAP(KIND)};
#undef KIND
    struct hth_fleet_opts o = {
        .hosts = s->swarm.hosts,
        .copies = s->swarm.copies,
        .trainers = s->swarm.trainers,
        .dim = s->swarm.dim,
        .layers = s->swarm.layers,
        .top_k = s->swarm.top_k,
        .rows = s->swarm.rows,
        .flights = s->swarm.flights,
        .grid = s->swarm.grid,
        .average = s->swarm.averaging != HTH_SCENARIO_OFF,
        .mode = s->swarm.averaging == HTH_SCENARIO_BATCH ? HTH_SHARE_BATCH : HTH_SHARE_LOCAL,
        .every = s->swarm.every,
        .target = s->swarm.target,
        .clip = s->swarm.clip,
        .checkpoint_us = (int64_t)(s->swarm.checkpoint_s * 1e6),
        .held_max = (uint64_t)(s->swarm.held_mib * 1048576.0),
        .bad_disks = r->plan->chaos.io_error > 0 || r->plan->chaos.torn_file > 0,
        .faulty = r->plan->chaos.site_enabled > 0,
        .malice = malice,
        .malice_count = HTH_ARRAY_LEN(malice),
        .node = draw_node,
        .arg = r,
    };
    r->app = &fleet_app;
    return hth_fleet_new(r->world, &o, &r->fleet);
}

/* ---- the run ------------------------------------------------------------------------------- */

static void advance(struct scenario_run *r, const struct hth_scenario_opts *opts, int64_t until_us)
{
    for (int64_t t = hth_world_now_us(r->world); t < until_us;) {
        t = HTH_MIN(t + HTH_US_PER_S, until_us);
        r->report->events += hth_world_run_until(r->world, t);
        r->app->check_now(r);
        if (opts->progress != NULL)
            opts->progress(opts->arg, t, r->report->events);
    }
}

static void fill_report(struct scenario_run *r)
{
    struct hth_scenario_report *out = r->report;
    struct hth_churn_stats churn;
    struct hth_world_stats world;
    hth_churn_stats(r->churn, &churn);
    hth_world_stats(r->world, &world);
    out->hash = hth_world_trace_hash(r->world);
    out->virtual_us = hth_world_now_us(r->world);
    out->events = world.events;
    out->deaths = churn.deaths;
    out->outages = churn.outages;
    out->bytes_delivered = world.bytes_delivered;
    out->dht_values = world.dht_values;
    r->app->report(r);
    out->pass = out->why[0] == '\0';
}

static void run_phases(struct scenario_run *r, const struct hth_scenario_opts *opts)
{
    const struct hth_plan *p = r->plan;
    if (p->safety_us > 0) {
        begin_faults(r, opts->trace);
        advance(r, opts, p->safety_us);
        end_faults(r);
    } else {
        r->churn = hth_churn_new(r->world, &p->churn, p->seed);
        hth_churn_stop(r->churn);
    }
    r->app->end_faults(r);
    advance(r, opts, (int64_t)((double)p->duration_us * RECOVERY_SHARE));
    r->app->expect(r);
    advance(r, opts, p->duration_us);
    r->app->judge(r);
    r->app->stop(r);
    if (!hth_world_run_until_true(r->world, r->app->is_stopped, r, LAST_CALLS_US))
        r->app->broken(r, "some calls never got a verdict");
    r->app->check_end(r);
}

enum hth_err hth_scenario_run(const struct hth_plan *plan, const struct hth_scenario_opts *opts,
                              struct hth_scenario_report *report)
{
    const struct hth_scenario *s = plan->scenario;
    struct scenario_run r = {.plan = plan, .s = s, .report = report};
    for (uint32_t i = 0; i < s->device_count; i++)
        if (s->devices[i].profile != NULL && s->devices[i].measured == NULL)
            return HTH_E_RANGE;
    memset(report, 0, sizeof(*report));
    strncpy(report->name, s->name, HTH_SCENARIO_NAME_MAX);
    report->seed = plan->seed;
    report->nodes = s->nodes;
    make_world(&r, opts);
    hth_rng_init(&r.rng, plan->seed ^ UINT64_C(0x4641554c5453));
    r.devices = hth_new_array(struct hth_device, s->nodes);
    enum hth_err err = s->swarm.trainers > 0 ? make_fleet(&r) : make_peers(&r);
    if (err == HTH_OK) {
        run_phases(&r, opts);
        fill_report(&r);
    }
    hth_world_free(r.world);
    hth_echo_free(r.peers);
    hth_fleet_free(r.fleet);
    hth_churn_free(r.churn);
    hth_free(r.devices);
    return err;
}
