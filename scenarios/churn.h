/* SPDX-License-Identifier: Apache-2.0 */
/*
 * churn.h: makes the nodes of a world come and go, by processes (life.h) or by traces (avail.h).
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
 * that have a life of their own; a node is up while it and its provider are. When a provider goes,
 * all its nodes die in the same instant.
 *
 * A node that is down when a stretch of its own ends comes up only once its provider is back.
 * Deaths are silent (the power is gone) with the given chance, else the peers are told by a reset.
 * A churn draws from generators of its own, so that it kills the same nodes at the same times
 * whatever else the world does. One thread; it is freed after its world.
 */
#ifndef HTH_SCENARIOS_CHURN_H
#define HTH_SCENARIOS_CHURN_H

#include "scenarios/avail.h"
#include "scenarios/life.h"
#include "sim/world.h"

struct hth_churn;

struct hth_churn_opts {
    struct hth_life peer;
    struct hth_life provider; /* ALWAYS: nodes die alone */
    uint32_t providers;       /* nodes are dealt to them in turns */
    double silent;
    /* Each node begins as if it had lived like this for long: down with the chance of its share of
     * time down. (Its first stretch is drawn whole, which is exact where nothing is remembered.) */
    bool under_way;
};
#define HTH_CHURN_OPTS_INIT                                                                        \
    {                                                                                              \
        .peer = HTH_LIFE_INIT, .provider = HTH_LIFE_INIT, .providers = 1, .silent = 0.5            \
    }

struct hth_churn_stats {
    uint64_t deaths, returns;
    uint64_t outages; /* of providers */
    uint32_t down;    /* nodes, now */
};

struct hth_churn *hth_churn_new(struct hth_world *world, const struct hth_churn_opts *opts,
                                uint64_t seed);
/* NULL is fine. */
void hth_churn_free(struct hth_churn *churn);
/* The node is up now; its first stretch begins, which `under_way` may be one down. */
void hth_churn_add(struct hth_churn *churn, struct hth_node *node);
/* The node follows the rows, counted from now: up, line and speed. `rows` is borrowed until the
 * churn is freed. `base` is the device that `speed` multiplies. Providers do not touch it. */
void hth_churn_play(struct hth_churn *churn, struct hth_node *node,
                    const struct hth_avail_row *rows, size_t count, const struct hth_device *base);
/* From now on nothing happens any more, and all nodes are restarted that are down. */
void hth_churn_stop(struct hth_churn *churn);
void hth_churn_stats(const struct hth_churn *churn, struct hth_churn_stats *out);

#endif
