/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fleet.h: an application for simulated nodes: a whole run. Hosts that serve experts and write
 * their checkpoints, trainers that train on them, write theirs and average their trunks, all made
 * of the production parts (swarm.h); beside them Byzantine peers (malice.h).
 *
 * It trains a small classifier on pictures drawn from the seed. With ghosts nothing is computed and
 * no file is written; all else happens. With real payloads it learns, files are torn and disks fill
 * up.
 *
 * These invariants are checked all the time, and the first violation is kept as text:
 *
 *   once        no host computes a backward twice between two restarts
 *   budgets     no node holds more for others than its budget; at the end, nothing
 *   hull        LOCAL: every element of an average lies between the least and the greatest offered
 *               for it (not with attackers whose values are in the averages)
 *   heads       BATCH: trainers that hold the same head of their chain (collab/chain.h) hold the
 *               same parameters, bit for bit, whatever attackers do
 *   freed       a node that is down holds nothing: no timer, stream, job, handle
 *   errors      a node ends, or does not host an expert, only because of the plan's disks and fault
 *               sites; its simulated owner then discards the damaged file and starts it again
 *
 * and after the faults (hth_fleet_expect_recovery, and a while later hth_fleet_check_recovery):
 *
 *   every trainer is up, sees every expert, has made updates and, with others, averages; no flight
 *   failed; answers arrive; trunks are finite, and with real payloads close to each other (not with
 *   attackers that answer for others' parts). BATCH: every trainer takes steps, all of one chain
 *
 *   hth_fleet_stop: trainers and hosts end by themselves, so every call got its verdict; the files
 *   of a host can be read
 *
 *   hth_fleet_check_end: most rows had an expert's answer in most layers: no trainer trained for
 *   long without experts
 *
 * One thread; free the world first, then the fleet.
 */
#ifndef HTH_SCENARIOS_FLEET_H
#define HTH_SCENARIOS_FLEET_H

#include "scenarios/malice.h"
#include "sim/world.h"
#include "trainer/share.h"

#define HTH_FLEET_WHY_MAX      160
#define HTH_FLEET_NODES_MAX    4096
#define HTH_FLEET_TRAINERS_MAX 256

struct hth_fleet;

/* The number of attackers of each kind. */
struct hth_fleet_malice {
    const struct hth_malice *kind;
    uint32_t nodes;
};

struct hth_fleet_opts {
    uint32_t hosts, copies; /* copies: the hosts of each expert */
    uint32_t trainers;
    uint32_t dim, layers, top_k, rows, flights;
    uint32_t grid; /* experts of a layer: grid x grid */
    bool average;  /* false: each trainer has a trunk of its own */
    enum hth_share_mode mode;
    uint32_t group;        /* most trainers of a line; 0: the roster's choice */
    uint32_t every;        /* updates between averages of the parameters */
    uint64_t target;       /* BATCH: samples of a step */
    double clip;           /* of hth_reducer_opts */
    int64_t checkpoint_us; /* of a host; 0: no checkpoints */
    uint64_t held_max;     /* bytes that a node may hold for others */
    /* files may fail or tear; sites may fire: a node may end because of them */
    bool bad_disks, faulty;
    const struct hth_fleet_malice *malice;
    uint32_t malice_count;
    /* Changes a node's options before it is made; may be NULL. */
    void (*node)(void *arg, uint32_t index, struct hth_node_opts *opts);
    void *arg;
};
#define HTH_FLEET_OPTS_INIT                                                                        \
    {                                                                                              \
        .hosts = 6, .copies = 2, .trainers = 3, .dim = 16, .layers = 2, .top_k = 2, .rows = 8,     \
        .flights = 2, .grid = 2, .average = true, .every = 10, .target = 128,                      \
        .checkpoint_us = 5 * HTH_US_PER_S, .held_max = UINT64_C(64) << 20                          \
    }

struct hth_fleet_stats {
    /* of all restarts together */
    uint64_t updates, flights_failed, requests, answers, answers_missing;
    uint64_t rounds, rounds_failed; /* of averaging: of parameters, and shared steps */
    uint64_t rows_alone;            /* (row, layer) pairs without an expert's answer */
    uint64_t applied, replays;      /* backwards; repeats answered from the stored reply */
    uint64_t files, files_failed;   /* checkpoints that hosts wrote */
    uint64_t restored, repairs;     /* experts from files; files thrown away */
    uint64_t catch_ups;             /* states that trainers fetched from others */
    /* replies that trainers refused, requests that hosts refused */
    uint64_t not_finite, refused_bad;
    double spread; /* largest relative distance between two trunks at the check; 0 with ghosts */
};

/* Make the nodes: hosts, trainers, then attackers. Errors: E_RANGE (0 or beyond the limits above,
 * which also hold for all attackers together; no such grid). */
enum hth_err hth_fleet_new(struct hth_world *world, const struct hth_fleet_opts *opts,
                           struct hth_fleet **out) HTH_MUST;
/* NULL is fine. */
void hth_fleet_free(struct hth_fleet *fleet);
uint32_t hth_fleet_count(const struct hth_fleet *fleet);
struct hth_node *hth_fleet_node(struct hth_fleet *fleet, uint32_t index);
/* Whether that node is one of the hosts and trainers. */
bool hth_fleet_is_honest(const struct hth_fleet *fleet, uint32_t index);

/* Tell the fleet that the faults are over. The first 8 s are for repairs; later no host may end. A
 * trainer lands its flights first, so it has 20 s. */
void hth_fleet_end_faults(struct hth_fleet *fleet);
void hth_fleet_expect_recovery(struct hth_fleet *fleet);
void hth_fleet_check_recovery(struct hth_fleet *fleet);
/* Stop: trainers land their flights, then hosts drain. */
void hth_fleet_stop(struct hth_fleet *fleet);
bool hth_fleet_all_stopped(void *fleet);

void hth_fleet_check_now(struct hth_fleet *fleet);
/* Crash all nodes, then count the objects left behind. */
void hth_fleet_check_end(struct hth_fleet *fleet);
void hth_fleet_broken(struct hth_fleet *fleet, const char *fmt, ...) HTH_PRINTF(2, 3);
/* The first violated condition, or "". */
const char *hth_fleet_why(const struct hth_fleet *fleet);
void hth_fleet_stats(struct hth_fleet *fleet, struct hth_fleet_stats *out);

#endif
