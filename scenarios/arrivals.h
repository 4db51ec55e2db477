/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arrivals.h: how soon newcomers take part in a run by roll call (collab/collab.h).
 *
 *     they boot          the state came       the tip is held            a roll has it
 *     |----------------->|------------------->|------------------------->|
 *        looks, fetches    means since, each    READY, a batch, a round
 *                          |<--------------- in_s, limit_s ------------->|
 *
 * A crew (crew.h) of trainers steps long enough for a newcomer to need the state. A member's line
 * carries HTH_ARRIVAL_ROUND means in a step, so that its rounds are short; a newcomer's line
 * carries the state in `state_steps` steps. The promise holds where a newcomer's line carries a
 * mean a step, and the state is three means long: once a newcomer has the state, its line carries
 * HTH_ARRIVAL_MEANS means a step at least, both ways.
 */
#ifndef HTH_SCENARIOS_ARRIVALS_H
#define HTH_SCENARIOS_ARRIVALS_H

#include "core/base.h"

#define HTH_ARRIVAL_ROUND 10.0
#define HTH_ARRIVAL_MEANS 2.0

struct hth_arrival_opts {
    uint64_t seed;
    uint32_t members, newcomers; /* at least 1; together at most 16 */
    double step_s;               /* about what a step of the members takes */
    double state_steps;
};

struct hth_arrival_report {
    double calm_s;   /* a step of the members, before */
    double in_s_max; /* of all newcomers, from holding a head to a roll; < 0: one never was in */
    double over;     /* that time by what is promised, of the newcomer for which it is worst */
    double slowed;   /* a step while they came, by calm_s; a step with a newcomer is not counted */
    uint32_t lacked; /* means that one lacked at most, when it held the state */
    uint64_t states; /* that were fetched: else means led from the run's begin */
    uint64_t hash;   /* of the world's events */
};

/* Runs one arrival. Errors: E_CONFIG (numbers out of range), E_TIMEOUT (the members take no steps),
 * those of a boot. */
enum hth_err hth_sim_arrival(const struct hth_arrival_opts *opts,
                             struct hth_arrival_report *out) HTH_MUST;
/* The first promise that a report breaks, in words; NULL: it keeps all. */
const char *hth_arrival_broken(const struct hth_arrival_report *r);

/* The table: steps of 10 ms to 30 s, states of 0.1 to 10 steps, 1 to 6 newcomers. The seed is left
 * at 0. */
uint32_t hth_arrivals_rows(void);
struct hth_arrival_opts hth_arrivals_row(uint32_t row);

#endif
