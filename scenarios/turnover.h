/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turnover.h: peers crash and others replace them: when do the remaining ones notice?
 *
 * `peers` nodes are up at any time, in neighbourhoods of at most `hood`, as in echo.h: each
 * announces its experts, follows its neighbourhood in a directory and calls its hosts. Each place
 * has a second node in reserve. Nodes crash at exponential times, a share `replaced` of all places
 * a minute. In the same instant the node of the same neighbourhood that has been down for longest
 * takes the place, so that the number of peers stays the same and a crashed node stays down for
 * long.
 *
 *   crash of h   |<--- forget: until viewer v no longer shows h --->|
 *   start of h   |<--- discover: until v, which was there, shows h --->|
 *   start of v   |<--- newcomer: until v shows nine tenths of the live hosts --->|
 *   last crash   |<--- recovery: until all show exactly the live hosts --->|
 *
 * The directories of at most HTH_CHURN_VIEWERS_MAX places are read every 50 ms, which is the
 * resolution of the times. A node that returns before it was forgotten counts for neither forget
 * nor discover. Calls carry ghosts. A row is a pure function of its options.
 */
#ifndef HTH_SCENARIOS_TURNOVER_H
#define HTH_SCENARIOS_TURNOVER_H

#include "core/base.h"
#include "sim/world.h"

#define HTH_CHURN_VIEWERS_MAX 64
#define HTH_CHURN_HOOD_MAX    64

struct hth_sim_churn_opts {
    uint64_t seed;
    uint32_t peers;
    uint32_t hood;
    uint32_t experts;  /* of each peer */
    double replaced;   /* 0..10: crashes of a place in a minute */
    double silent;     /* 0..1: share of them that is silent */
    double latency_ms; /* one way; jitter is exponential with a tenth of it as mean */
    uint32_t payload_bytes;
    int64_t call_every_us;
    int64_t record_life_us;
    int64_t duration_us;    /* of the churn, after 20 s of calm */
    hth_trace_fn *on_event; /* NULL: none */
    void *arg;              /* of on_event */
};
#define HTH_SIM_CHURN_OPTS_INIT                                                                    \
    {                                                                                              \
        .seed = 1, .peers = 64, .hood = 32, .experts = 4, .replaced = 0.1, .silent = 0.5,          \
        .latency_ms = 40, .payload_bytes = 64u << 10, .call_every_us = HTH_US_PER_S,               \
        .record_life_us = 60 * HTH_US_PER_S, .duration_us = 300 * HTH_US_PER_S                     \
    }

/* NaN without any event. Times in seconds, means and 95th percentiles over pairs. */
struct hth_sim_churn_row {
    double goodput; /* calls that were answered, of those that all peers should have made */
    double discover_s, discover_p95_s;
    double forget_s, forget_p95_s;
    double dead;       /* share of the shown hosts that were down */
    double newcomer_s; /* mean */
    double recovery_s; /* NaN: not within two record lives and a minute */
    double median_ms;  /* of a call that was answered */
    uint64_t deaths;
    uint64_t trace;
};

/* Run one configuration. Errors: E_CONFIG (numbers that make no world), E_BUG (an invariant of
 * echo.h is violated; `why`, when not NULL, gets the text and has HTH_ECHO_WHY_MAX bytes). */
enum hth_err hth_sim_churn(const struct hth_sim_churn_opts *opts, struct hth_sim_churn_row *row,
                           char *why) HTH_MUST;

#endif
