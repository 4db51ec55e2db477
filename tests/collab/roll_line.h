/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roll_line.h: members of one line that choose steps in the simulated world. The average is a table
 * that the members of a round share: each takes part when its GO comes, and the first to end the
 * round says who is in it, as reducers do.
 */
#ifndef HTH_TESTS_COLLAB_ROLL_LINE_H
#define HTH_TESTS_COLLAB_ROLL_LINE_H

#include "collab/nodes.h"
#include "collab/roll.h"

enum { MEMBERS_MAX = 8, STEPS_MAX = 16384, ROUNDS_MAX = 16384, GRAIN = 8 };
#define AVERAGE_US (10 * MS)
#define ROUND_US   (300 * MS) /* members that did not come by then are left out */
#define FETCH_US   (20 * MS)

struct line;

struct mate {
    struct line *line;
    uint32_t index;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_chain *chain;
    struct hth_roll_call *roll;
    struct hth_timer *batch, *average, *fetch;
    struct hth_hash fetching;
    struct round *round;
    uint64_t life;
    uint32_t speaks;     /* its last protocol; 0: the program's */
    int64_t each_us;     /* its speed; */
    int64_t measured_us; /* 0 before the first landing */
    uint32_t samples, air;
    int64_t lands_us, tip_us;
    bool mute;                       /* never says what it brings */
    bool rests;                      /* brings no more */
    bool lies;                       /* nothing of what it starts lands */
    bool deserts;                    /* brings nothing to rounds */
    bool refuses;                    /* the mean of its next round */
    bool by_hand;                    /* it has no roll call, and comes to no round */
    bool listed, reduces;            /* in the last list of any member */
    struct hth_hash head[STEPS_MAX]; /* by step, as this member held them last */
    uint64_t step;
    uint32_t rounds; /* in which it was */
};

struct round {
    struct hth_hash id;
    uint32_t count;
    struct hth_peer_id member[HTH_ROLL_LINE_MAX];
    bool came[HTH_ROLL_LINE_MAX];
    int64_t began_us;
    bool closed;
};

struct line {
    struct hth_world *world;
    struct mate mate[MEMBERS_MAX];
    uint32_t n, founders;
    bool eventual;
    uint32_t side[MEMBERS_MAX]; /* of the cut; all 0: none */
    struct round round[ROUNDS_MAX];
    uint32_t rounds;
    uint64_t target;
    double uneven;
    uint64_t over_max; /* samples of a list beyond it */
    uint32_t lost;     /* micro-batches that were in the air when a round began */
    uint32_t astray;   /* states that nobody has, and somebody wanted */
    uint32_t links_max, members_max;
};

/* A line of founders that have one genesis: fill what differs, then add them. */
struct line *line_new(uint64_t seed, const struct hth_world_opts *opts, uint32_t founders);
struct mate *line_add(struct line *l);
/* The same with n founders that are there. */
struct line *line_start(uint64_t seed, uint32_t n, bool eventual);
/* Frees it, and checks that nothing is left open. */
void line_stop(struct line *l);
/* A member's chain, with the genesis. */
struct hth_chain *line_chain(const struct line *l, const struct hth_crypto *crypto, uint32_t *at);
/* It starts what its quota allows, and says so. */
void line_gather(void *mate);
void line_cut(struct line *l, uint32_t first);
void line_heal(struct line *l);
/* All that are up hold one head of each of the last steps; returns the least step. */
uint64_t line_agree(const struct line *l);
const struct hth_chain_link *line_tip(const struct mate *m);

#endif
