/* SPDX-License-Identifier: Apache-2.0 */
/*
 * select.h: how long does a new trainer take to select its first experts?
 *
 * `nodes` nodes on three continents share a DHT; `hosts` of them announce the experts of one layer,
 * dealt out in equal runs, with the production announcer; some of them then crash silently, so that
 * their records stay. Ten seconds later trainers without any records start, one after the other:
 *
 *   boot           first                          exact
 *   |--- DHT ------|--- more records ---------------|
 *   open the layer  the production beam search       it selects the same experts as a search among
 *                   finds k experts                  all announced ones
 *
 * Later searches need no network, which is checked, too. Each trainer searches for one row with
 * random scores of its own.
 *
 * The keys of records change every HTH_TOPIC_EPOCH_US (docs/records.md). Soon after a change most
 * records are still under the old key, some under the new one, and a trainer gets two answers: its
 * selection after the first answer may be a poor one. `epoch_s` is the time from the last change to
 * the first trainer. A row is a pure function of its options.
 */
#ifndef HTH_SCENARIOS_SELECT_H
#define HTH_SCENARIOS_SELECT_H

#include "core/base.h"
#include "sim/world.h"

#define HTH_SELECT_TRAINERS_MAX 64
#define HTH_SELECT_HOSTS_MAX    1024

struct hth_select_opts {
    uint64_t seed;
    uint32_t nodes; /* hosts and trainers included */
    uint32_t hosts;
    uint32_t trainers;
    uint32_t side; /* the grid has side * side experts, at least as many as hosts */
    uint32_t k;
    double dead;    /* 0..0.9: share of the hosts that crashed silently just before */
    double far;     /* factor on all latencies */
    double epoch_s; /* 0..119 */
    bool poor;      /* three in ten values are missing from an answer, and arrive within 30 s */
    hth_trace_fn *on_event; /* NULL: none */
    void *arg;              /* of on_event */
};
#define HTH_SELECT_OPTS_INIT                                                                       \
    {                                                                                              \
        .seed = 1, .nodes = 1000, .hosts = 64, .trainers = 8, .side = 32, .k = 4, .far = 1,        \
        .epoch_s = 60                                                                              \
    }

/* Means over the trainers; NaN where no trainer got there within 60 s. */
struct hth_select_row {
    double first_s, exact_s;
    double exact;         /* share of the trainers whose first selection was exact */
    double living;        /* share of the experts of first selections whose host was up */
    double dht_requests;  /* of a trainer until it was exact, or 60 s were over */
    double warm_requests; /* cost of a hundred more searches of all trainers: 0 */
    uint64_t trace;
};

/* Run one configuration. Errors: E_CONFIG (numbers that make no world), those of the parts. */
enum hth_err hth_sim_select(const struct hth_select_opts *opts,
                            struct hth_select_row *row) HTH_MUST;

#endif
