/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pure_int.h: the workspace of pure.h, shared by the runner (pure.c) and the methods
 * (pure_methods.c).
 */
#ifndef HTH_SCENARIOS_PURE_INT_H
#define HTH_SCENARIOS_PURE_INT_H

#include "core/rng.h"
#include "scenarios/pure.h"

typedef double hth_pure_vec[HTH_PURE_COLUMNS];

/* The fate of a peer in a round. */
enum hth_pure_fate {
    HTH_PURE_HERE,
    HTH_PURE_AWAY,
    HTH_PURE_CUT, /* on the other side of a partition */
    HTH_PURE_LATE,
    HTH_PURE_DIES_EARLY, /* crashes before its values are in any sum */
    HTH_PURE_DIES_LATE
};

struct hth_pure {
    struct hth_pure_opts opts;
    const struct hth_pure_step *step;
    uint32_t cells;
    struct hth_rng rng;    /* for placement, partitions of the peers */
    struct hth_rng coins;  /* failures */
    hth_pure_vec *x, *y;   /* values, and the next ones where a method needs both */
    double *weight, *next; /* of pushsum, else NULL */
    hth_pure_vec mean;     /* of the first values */
    uint8_t *fate;         /* of each peer in this round: enum hth_pure_fate */
    double sent;           /* vectors sent by all peers in this round */
    uint32_t *order;       /* a permutation of the peers; for moshpit one for each axis */
    uint32_t *shuffled;    /* another permutation */
    uint32_t *begin;       /* by line: its beginning in `order`; for moshpit for each axis */
    struct hth_avg_cell *cell;
};

/* A method: its needs, its start and its round. */
struct hth_pure_step {
    bool cells; /* each peer has its own cell */
    void (*start)(struct hth_pure *p);
    void (*round)(struct hth_pure *p, uint32_t round);
};

/* Peers are cut into this many random groups; of sizes that differ by at most 1, larger first. */
static inline uint32_t hth_pure_groups(uint32_t peers, uint32_t most)
{
    return (peers + most - 1) / most;
}
static inline uint32_t hth_pure_group_size(uint32_t peers, uint32_t groups, uint32_t index)
{
    return peers / groups + (index < peers % groups);
}

extern const struct hth_pure_step hth_pure_steps[HTH_PURE_METHODS];

#endif
