/* SPDX-License-Identifier: Apache-2.0 */
/* crowd.h: simulated peers that look for groups, for the tests of matchmaking. */
#ifndef HTH_TESTS_AVERAGING_CROWD_H
#define HTH_TESTS_AVERAGING_CROWD_H

#include "averaging/match.h"
#include "rpc/rpc.h"
#include "sim/world.h"

#define CROWD_MAX    320
#define CROWD_PORT   4000
#define CROWD_RTT_US (20 * HTH_US_PER_MS) /* of the calm world */

struct crowd;

struct mate {
    struct crowd *crowd;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_match *match;
    struct hth_addr addr;
    struct hth_look *look; /* NULL: not looking */
    struct hth_avg_cell cell;
    uint32_t ended;
    struct hth_look_result result; /* of the last look; the group below */
    struct hth_avg_group *group;   /* NULL: none */
    int64_t ended_us;
    bool absent; /* not due */
};

struct crowd {
    struct hth_world *world;
    struct mate mate[CROWD_MAX];
    uint32_t count;
    bool due_known; /* everybody of the crowd who is looking in the same line, or not absent */
    struct hth_match_opts match;
    struct hth_look_opts look; /* of crowd_look */
};

/* A calm world; `opts` may be NULL. */
void crowd_start(struct crowd *c, uint64_t seed, uint32_t count, const struct hth_world_opts *opts);
void crowd_stop(struct crowd *c);
/* With the crowd's options, in the line of the mate's cell. */
void crowd_look(struct mate *m);
void crowd_look_all(struct crowd *c);
/* Runs until all that look have ended or the time is over; returns whether they have. */
bool crowd_run(struct crowd *c, int64_t us);
/* Whether every mate that is up and has a group agrees with all members that are up. */
bool crowd_agrees(const struct crowd *c);
/* Until a note that is put is seen by who watches (sim/params.h), in round trips. */
double crowd_dht_rtts(uint32_t n);
/* Round trips that the slowest of all needs for a group of all. */
double crowd_round(struct crowd *c, uint64_t round);

#endif
