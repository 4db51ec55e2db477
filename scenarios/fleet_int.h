/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fleet_int.h (internal): shared by fleet.c, which runs the fleet, and fleet_check.c, which judges
 * it.
 */
#ifndef HTH_SCENARIOS_FLEET_INT_H
#define HTH_SCENARIOS_FLEET_INT_H

#include "core/budget.h"
#include "core/map.h"
#include "core/mem.h"
#include "scenarios/fleet.h"
#include "scenarios/fleet_hull.h"
#include "scenarios/swarm.h"

#define FLEET_FOLDER "experts"
#define FLEET_SIDE   4
#define FLEET_PIXELS (FLEET_SIDE * FLEET_SIDE)
#define FLEET_ITEMS  512

struct fleet_node {
    struct hth_fleet *fleet;
    uint32_t index; /* of the node */
    struct hth_budget budget;
    bool repair_due;
    /* of a host */
    struct hth_map *applied; /* backwards since its restart */
    struct hth_server_stats host;
    /* of a trainer */
    struct hth_averager watched;
    struct hth_train_stats now, baseline;
    bool stopped;
};

struct fleet_attacker {
    struct hth_fleet *fleet;
    const struct hth_malice *kind;
    struct hth_node *node;
    struct hth_malice_place place;
    void *self;
};

struct hth_fleet {
    struct hth_world *world;
    struct hth_fleet_opts opts;
    struct hth_swarm *swarm;
    struct hth_hull *hull;
    struct fleet_node *members;
    uint32_t honest;
    struct fleet_attacker *bad;
    uint32_t bad_count;
    bool lied_to, split;             /* whether an attacker is in_averages, or splits */
    struct hth_trainer_opts trainer; /* of the run */
    struct hth_grid grids[HTH_MODEL_LAYERS_MAX];
    uint8_t images[16 + FLEET_ITEMS * FLEET_PIXELS], labels[8 + FLEET_ITEMS];
    struct hth_fleet_stats sums; /* of nodes that have ended */
    uint64_t rounds_then;        /* rounds when the faults ended */
    int64_t calm_from_us;
    uint32_t to_stop;
    bool stopping;
    double spread;
    char why[HTH_FLEET_WHY_MAX];
};

static inline bool fleet_is_host(const struct fleet_node *m)
{
    return m->index < m->fleet->opts.hosts;
}

static inline struct hth_node *fleet_node_of(const struct fleet_node *m)
{
    return hth_fleet_node(m->fleet, m->index);
}

/* NULL while it is down. */
static inline struct hth_trainer *fleet_trainer(struct hth_fleet *f, uint32_t i)
{
    return hth_swarm_trainer_at(f->swarm, i);
}

/* Add the counters of a node that ends to the sums. */
void hth_fleet_add_trainer(struct hth_fleet_stats *sums, const struct hth_train_stats *s);
void hth_fleet_add_host(struct hth_fleet_stats *sums, const struct hth_server_stats *s);

#endif
