/* SPDX-License-Identifier: Apache-2.0 */
/*
 * churn.h: crashes and restarts the nodes of a world, by processes (life.h) or by traces (avail.h).
 *
 *     struct hth_churn_opts o = HTH_CHURN_OPTS_INIT;
 *     o.peer.kind = HTH_LIFE_WEIBULL;
 *     struct hth_churn *churn = hth_churn_new(world, &o, seed);
 *     for each node: hth_churn_add(churn, node);
 *     ... run ...
 *     hth_churn_stop(churn);          all are up again, and stay
 *     hth_world_free(world);
 *     hth_churn_free(churn);
 *
 * Correlated failures: nodes belong to providers (a cloud's zone, a power line, a national network)
 * that have sessions and downtimes of their own; a node is up while both it and its provider are.
 * When a provider fails, all its nodes crash in the same instant.
 *
 * A node whose downtime ends while its provider is down comes up with its provider. A crash is
 * silent (a power failure) with the given chance; otherwise the peers get a reset. A churn draws
 * from its own generators, so that it crashes the same nodes at the same times whatever else the
 * world does. One thread; free it after its world.
 */
#ifndef HTH_SCENARIOS_CHURN_H
#define HTH_SCENARIOS_CHURN_H

#include "scenarios/avail.h"
#include "scenarios/life.h"
#include "sim/world.h"

struct hth_churn;

struct hth_churn_opts {
    struct hth_life peer;
    struct hth_life provider; /* ALWAYS: nodes fail alone */
    uint32_t providers;       /* nodes are dealt to them in rotation */
    double silent;
    /* Each node begins as if it had lived like this for long: it is down with the chance of its
     * share of downtime. (Its first session or downtime is drawn whole, which is exact for the
     * memoryless kinds.) */
    bool under_way;
};
#define HTH_CHURN_OPTS_INIT                                                                        \
    {                                                                                              \
        .peer = HTH_LIFE_INIT, .provider = HTH_LIFE_INIT, .providers = 1, .silent = 0.5            \
    }

struct hth_churn_stats {
    uint64_t deaths, returns;
    uint64_t outages; /* of providers */
    uint32_t down;    /* nodes that are down */
};

struct hth_churn *hth_churn_new(struct hth_world *world, const struct hth_churn_opts *opts,
                                uint64_t seed);
/* NULL is fine. */
void hth_churn_free(struct hth_churn *churn);
/* Add a node, which is up. Its first session begins; with `under_way` it may be a downtime. */
void hth_churn_add(struct hth_churn *churn, struct hth_node *node);
/* Let the node follow the rows, whose time counts from this call: up or down, link and speed.
 * `rows` is borrowed until the churn is freed. `base` is the device that `speed` multiplies.
 * Providers do not affect the node. */
void hth_churn_play(struct hth_churn *churn, struct hth_node *node,
                    const struct hth_avail_row *rows, size_t count, const struct hth_device *base);
/* End the churn, and restart all nodes that are down. */
void hth_churn_stop(struct hth_churn *churn);
void hth_churn_stats(const struct hth_churn *churn, struct hth_churn_stats *out);

#endif
