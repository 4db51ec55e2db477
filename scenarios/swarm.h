/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swarm.h: hosts and trainers in a simulated world, each made of the production parts.
 *
 *   host i     rpc + expert server + announcer; serves the experts whose index is i modulo `hosts`,
 *              in every layer, and keeps their checkpoints on its disk
 *   trainer i  rpc + directory + trainer; each with a trunk of its own, or, with `share`, of one
 *              run: + averager (averaging/peer.h)
 *
 * The nodes boot and halt by themselves, so that a scenario can crash and restart any of them. Data
 * files must be mounted in the world first. One thread; the swarm lives as long as the world: free
 * the world first, then the swarm.
 */
#ifndef HTH_SCENARIOS_SWARM_H
#define HTH_SCENARIOS_SWARM_H

#include "averaging/peer.h"
#include "averaging/reduce.h"
#include "averaging/roster.h"
#include "dht/directory.h"
#include "experts/server.h"
#include "sim/world.h"
#include "trainer/trainer.h"

#define HTH_SWARM_NETWORK "sim"
#define HTH_SWARM_PORT    4000

struct hth_swarm;

struct hth_swarm_opts {
    uint32_t hosts;
    uint32_t copies;   /* hosts that serve each expert; 0 means 1 */
    uint32_t shift;    /* expert e of layer l lives on host e + l * shift, modulo `hosts` */
    uint32_t trainers; /* 0 means 1 */
    struct hth_trainer_opts
        trainer; /* rpc, directory and callbacks' arg are filled in; not local */
    struct hth_server_opts server;
    struct hth_train_optim expert_optim;
    const struct hth_admission *admission; /* of all, borrowed; NULL: the run is open */
    int64_t record_life_us;
    int64_t deadline_min_us; /* floor of the trainer's adaptive deadlines; 0: rpc's own */
    const struct hth_device *host_device, *trainer_device; /* NULL: the world's */
    /* A host that restarts is another machine: it has no checkpoints. */
    bool blank;
    bool share; /* network and addresses of these are filled in */
    struct hth_roster_opts roster;
    struct hth_moshpit_opts moshpit;
    struct hth_reducer_opts reducer;
    /* Called before trainer i is made, at each boot; may be NULL. */
    void (*edit)(void *arg, uint32_t i, struct hth_trainer_opts *trainer);
    /* The same for host i's server; and once before a node is made, hosts first, then trainers. */
    void (*edit_host)(void *arg, uint32_t i, struct hth_server_opts *server);
    void (*edit_node)(void *arg, uint32_t node, struct hth_node_opts *opts);
    /* The budget for bytes that a node holds for others; may be NULL, and return NULL. */
    struct hth_budget *(*budget)(void *arg, uint32_t node);
    /* Called when a boot failed. NULL: the swarm keeps the error (hth_swarm_err). */
    void (*on_bad_boot)(void *arg, uint32_t node, enum hth_err err);
    void *arg;
};
#define HTH_SWARM_OPTS_INIT                                                                        \
    {                                                                                              \
        .hosts = 3, .trainer = HTH_TRAINER_OPTS_INIT, .server = HTH_SERVER_OPTS_INIT,              \
        .expert_optim = HTH_TRAIN_OPTIM_INIT, .record_life_us = 60 * HTH_US_PER_S,                 \
        .roster = HTH_ROSTER_OPTS_INIT, .moshpit = HTH_MOSHPIT_OPTS_INIT,                          \
        .reducer = HTH_REDUCER_OPTS_INIT                                                           \
    }

/* Make a swarm. The nodes are up once the world's clock has moved. Strings in opts must outlive the
 * swarm. */
struct hth_swarm *hth_swarm_new(struct hth_world *world, const struct hth_swarm_opts *opts);
void hth_swarm_free(struct hth_swarm *swarm);
/* The options that the next boot of a node uses. */
struct hth_swarm_opts *hth_swarm_edit(struct hth_swarm *swarm);

struct hth_node *hth_swarm_host(struct hth_swarm *swarm, uint32_t i);
/* NULL while that host is down. */
struct hth_server *hth_swarm_server(struct hth_swarm *swarm, uint32_t i);
/* Node of the first trainer. */
struct hth_node *hth_swarm_trainer_node(struct hth_swarm *swarm);
/* The first trainer; NULL before its boot and while its node is down. */
struct hth_trainer *hth_swarm_trainer(struct hth_swarm *swarm);
/* Trainer i, which must be below `trainers`. */
struct hth_trainer *hth_swarm_trainer_at(struct hth_swarm *swarm, uint32_t i);
/* Rows that each expert of a layer computed in forwards, on all its hosts; one number for each cell
 * of the grid. */
void hth_swarm_expert_rows(const struct hth_swarm *swarm, uint32_t layer, uint64_t *rows);
/* The first error of any boot. */
enum hth_err hth_swarm_err(const struct hth_swarm *swarm);

#endif
