/* SPDX-License-Identifier: Apache-2.0 */
/*
 * select.h: how long does a trainer that has just come take to select its first experts?
 *
 * `nodes` nodes on three continents share a DHT; `hosts` of them announce the experts of one layer,
 * dealt out in equal runs, with the production announcer; some of them then lose their power, so
 * that their records stay. Ten seconds later trainers come, one after the other, that know nothing:
 *
 *   boot           first                          exact
 *   |--- DHT ------|--- more records ---------------|
 *   open the layer  the production beam search       it selects what a search among all that is
 *                   finds k experts                  announced would
 *
 * From then on searches need no network at all, which is counted too. Each trainer searches for one
 * row with random scores of its own.
 *
 * The keys of records change every HTH_TOPIC_EPOCH_US (docs/records.md). Soon after a change most
 * records lie under the old key still, some under the new one, and a trainer gets two answers: what
 * it selects after the first of them may be a poor choice. `epoch_s` says how long before the first
 * trainer the keys changed. A row is a pure function of its options.
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
    uint32_t side; /* of the grid: side * side experts, at least as many as hosts */
    uint32_t k;
    double dead;    /* 0..0.9: share of the hosts that lost their power just before */
    double far;     /* all latencies are multiplied by this */
    double epoch_s; /* 0..119 */
    bool poor;      /* three in ten values are missing from an answer, and come within 30 s */
    hth_trace_fn *on_event; /* NULL: none */
    void *arg;              /* of on_event */
};
#define HTH_SELECT_OPTS_INIT                                                                       \
    {                                                                                              \
        .seed = 1, .nodes = 1000, .hosts = 64, .trainers = 8, .side = 32, .k = 4, .far = 1,        \
        .epoch_s = 60                                                                              \
    }

/* Means over the trainers; NaN where none got there within 60 s. */
struct hth_select_row {
    double first_s, exact_s;
    double exact;         /* share of the trainers whose first selection was exact */
    double living;        /* share of the experts of first selections whose host was up */
    double dht_requests;  /* of a trainer until it was exact, or the 60 s were over */
    double warm_requests; /* that a hundred searches more cost all trainers: 0 */
    uint64_t trace;
};

/* Errors: E_CONFIG (numbers that make no world), those of the parts. */
enum hth_err hth_sim_select(const struct hth_select_opts *opts,
                            struct hth_select_row *row) HTH_MUST;

#endif
