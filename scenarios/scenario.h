/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scenario.h: a world and its faults as plain numbers, most of them ranges from which each seed
 * draws; and the run that judges it.
 *
 * A run has two phases. In the first, *safety*, the faults of the scenario happen: peers crash and
 * restart, links are blocked and clogged, clocks step, answers are lost. Operations may fail then,
 * but nothing may go wrong: the invariants of echo.h or fleet.h are checked all the time. Then all
 * faults end, and in the second phase, *liveness*, the swarm must recover: after nine tenths of the
 * whole time every call succeeds, and at the end every directory is complete.
 *
 * The nodes are peers (echo.h), or the hosts and trainers of a run (fleet.h).
 *
 *     struct hth_scenario s;             from file.h, or hth_scenario_init
 *     struct hth_plan plan;
 *     hth_scenario_draw(&s, seed, &plan);       print it: hth_plan_text
 *     hth_scenario_run(&plan, &opts, &report);
 *     puts(hth_scenario_line(&report, ...));
 *
 * Ranges are drawn evenly, in the order of the struct, from a generator of their own; so a run
 * depends on the scenario and the seed, nothing else. Nothing here reads a clock: the caller
 * measures wall time. One thread.
 */
#ifndef HTH_SCENARIOS_SCENARIO_H
#define HTH_SCENARIOS_SCENARIO_H

#include "scenarios/churn.h"
#include "scenarios/fleet.h"
#include "sim/world.h"

#define HTH_SCENARIO_NAME_MAX    63
#define HTH_SCENARIO_TEXT_MAX    1536
#define HTH_SCENARIO_LINE_MAX    640
#define HTH_SCENARIO_DEVICES_MAX 16
#define HTH_SCENARIO_PATH_MAX    255

struct hth_range {
    double low, high;
};

struct hth_scenario_zone {
    char *name;
    double share;       /* share of the nodes, relative to the other zones' shares */
    double *latency_ms; /* to the zones up to and including this one */
    uint32_t latency_count;
};

struct hth_scenario_device {
    char *name;
    double share;
    double gflops, gbytes_per_s; /* of 1e9 */
    uint32_t workers;
    double up_mbit, down_mbit; /* 0: unlimited */
    double disk_mb;            /* 0: unlimited */
    char *profile;             /* path of a file; NULL: the rates above */
    /* The content of `profile`: the caller loads it, sets this before the run, and frees it. */
    const struct hth_profile *measured;
};

enum hth_scenario_averaging {
    HTH_SCENARIO_LOCAL, /* as of trainer/share.h */
    HTH_SCENARIO_BATCH,
    HTH_SCENARIO_OFF /* each trainer has a trunk of its own */
};

struct hth_scenario {
    char *name;
    uint32_t nodes;
    double duration_s;
    double safety; /* share of the time in which faults happen */
    struct {
        double payload_kib, calls_per_s;
        uint32_t experts, hood;
        bool real; /* bytes instead of ghosts */
    } load;
    /* trainers > 0: the nodes are hosts and trainers of one run (fleet.h) instead of peers, and
     * only `real` of `load` counts. */
    struct {
        uint32_t hosts, copies, trainers;
        uint32_t dim, layers, grid, top_k, rows, flights;
        enum hth_scenario_averaging averaging;
        uint32_t every, target;
        double clip;         /* of values that are averaged (averaging/reduce.h); 0: off */
        double checkpoint_s; /* 0: no files are written */
        double held_mib;     /* most that a node may hold for others */
    } swarm;
    struct {
#define HTH_SCENARIO_MALICE(name) uint32_t name;
        HTH_MALICE_MAP(HTH_SCENARIO_MALICE) /* nodes of each kind, with a swarm */
#undef HTH_SCENARIO_MALICE
    } malice;
    struct {
        struct hth_range latency_ms, jitter_ms, loss; /* jitter is exponential */
    } links;
    struct hth_scenario_zone *zones; /* none: one latency for all */
    uint32_t zone_count;
    struct hth_scenario_device *devices; /* none: one ordinary device */
    uint32_t device_count;
    struct {
        enum hth_life_kind kind; /* ALWAYS: no churn */
        struct hth_range up_s, down_s, shape, swing;
        double day_s;
        uint32_t providers; /* 0: no correlated failures */
        struct hth_range provider_up_s, provider_down_s;
        double silent;
    } churn;
    struct {
        struct hth_range every_s, for_s, share; /* every_s 0: none */
        double one_way;                         /* chance that only one direction is blocked */
    } partitions;
    struct {
        struct hth_range every_s, for_s;
        uint32_t ways; /* at a time, between neighbours */
    } clogs;
    struct {
        struct hth_range skew_ms, step_ms, every_s; /* every_s 0: no steps */
    } clocks;
    struct {
        struct hth_range share, speed;
    } stragglers;
    struct {
        struct hth_range lost_put, lost_get, partial, repeat, stale;
        double refresh_s;
    } dht;
    struct {
        struct hth_range short_read, short_write, io_error, torn_file;
        double sites, fires; /* fault sites: chance to be enabled for the run, and to fire then */
    } chaos;
};

/* Nodes of all kinds of malice together. */
uint64_t hth_scenario_malice(const struct hth_scenario *scenario);

/* Fill in the defaults, which a file's missing keys have, too: 50 calm nodes for a minute. All
 * pointers are to constants: nothing is to be freed. */
void hth_scenario_init(struct hth_scenario *s);
/* Check all values. Errors: E_RANGE; `error` names the key, its value and its limits. */
enum hth_err hth_scenario_check(const struct hth_scenario *s, char *error, size_t error_max);

/* One draw. `scenario` is borrowed: names, zones, devices. */
struct hth_plan {
    const struct hth_scenario *scenario;
    uint64_t seed;
    int64_t duration_us, safety_us;
    struct hth_link link;
    struct hth_dht_params dht;
    struct hth_chaos chaos;
    struct hth_churn_opts churn;
    bool churns;
    int64_t partition_every_us, partition_for_us;
    double partition_share;
    int64_t clog_every_us, clog_for_us;
    int64_t skew_us, step_us, step_every_us;
    double straggler_share, straggler_speed;
};
void hth_scenario_draw(const struct hth_scenario *s, uint64_t seed, struct hth_plan *out);
/* The drawn numbers as some lines for people. */
const char *hth_plan_text(const struct hth_plan *plan, char out[HTH_SCENARIO_TEXT_MAX]);

struct hth_scenario_opts {
    enum hth_log_level log_level;
    const struct hth_avail *trace; /* drives the nodes instead of churn; NULL: none */
    hth_trace_fn *on_event;        /* NULL: none */
    /* Called once per virtual second; may be NULL. */
    void (*progress)(void *arg, int64_t now_us, uint64_t events);
    void *arg;
};

struct hth_scenario_report {
    bool pass;
    char why[160];
    char name[HTH_SCENARIO_NAME_MAX + 1];
    uint64_t seed, hash;
    uint32_t nodes;
    int64_t virtual_us;
    uint64_t events;
    uint64_t calls, calls_ok, calls_failed, calls_again, calls_vanished, calls_without_host;
    uint64_t deaths, outages, partitions, clogs, steps;
    uint64_t bytes_delivered, dht_values;
    double latency_median_us, latency_p99_us;
    bool is_swarm; /* then the calls are those of trainers to hosts, and these count: */
    struct hth_fleet_stats fleet;
};

/* Run a plan. A violated invariant is no error: see report->pass. Errors: E_RANGE (the scenario was
 * not checked, or a device's profile was not loaded). */
enum hth_err hth_scenario_run(const struct hth_plan *plan, const struct hth_scenario_opts *opts,
                              struct hth_scenario_report *report) HTH_MUST;
/* "PASS scenario=... seed=... hash=... ..." or "FAIL ..." with the reason and `again`, the command
 * that repeats it. wall_us 0 leaves wall time out, so that two runs give identical lines. */
const char *hth_scenario_line(const struct hth_scenario_report *r, const char *again,
                              int64_t wall_us, char out[HTH_SCENARIO_LINE_MAX]);

#endif
