/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.h: fork and join of one piece of work over idle threads.
 *
 * A kernel that can be cut into independent parts (panels of columns, blocks of rows, experts)
 * hands them to the team of its context. The caller works on them itself. Idle threads of the
 * environment help, and leave after their current part as soon as a job waits for them. So a team
 * adds no threads to the machine; with no idle thread the caller does all parts, in order.
 *
 *   part i of fn is called exactly once, by some thread, for every i < parts;
 *   all of them have returned, and what they wrote is visible, when hth_team_run returns.
 *
 * Nothing may depend on which thread runs a part, or on the order of the parts. Each part writes to
 * its own memory, so the bits of a result never depend on the team. A part may call hth_team_run
 * again. Parts do not wait for each other: they may run one after the other.
 *
 * net/ makes one per environment (hth_env_team); the simulator has none, and NULL is a team of the
 * caller alone. This file has no threads: a team is a table of functions.
 */
#ifndef HTH_CORE_TEAM_H
#define HTH_CORE_TEAM_H

#include "core/base.h"

struct hth_team;

typedef void hth_team_fn(void *arg, uint32_t part);

struct hth_team_ops {
    /* parts >= 2 */
    void (*run)(struct hth_team *team, uint32_t parts, hth_team_fn *fn, void *arg);
    uint32_t (*width)(const struct hth_team *team);
};

/* Embedded in the struct that implements it. */
struct hth_team {
    const struct hth_team_ops *ops;
};

/* Calls fn(arg, 0) ... fn(arg, parts - 1) and returns when all have returned. */
static inline void hth_team_run(struct hth_team *team, uint32_t parts, hth_team_fn *fn, void *arg)
{
    if (team != NULL && parts > 1) {
        team->ops->run(team, parts, fn, arg);
        return;
    }
    for (uint32_t part = 0; part < parts; part++)
        fn(arg, part);
}

/* The most threads that work at the same time, the caller included; 1 without a team. A hint for
 * cutting work. Cut into more parts than that: helpers may join late and leave early. */
static inline uint32_t hth_team_width(const struct hth_team *team)
{
    return team != NULL ? team->ops->width(team) : 1;
}

#endif
