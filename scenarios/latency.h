/* SPDX-License-Identifier: Apache-2.0 */
/*
 * latency.h: does the trainer hide latency? Learning@home's experiment with the production trainer.
 *
 * Trainers with a DMoE classifier, hosts with fast devices, and a delay on every call: both ways of
 * every message are drawn from an exponential distribution with half the given mean. A message also
 * waits for those before it on its connection, so waits are longer than in an experiment that
 * delays each call separately. Throughput is measured in virtual time, after the pipeline has
 * filled. The trunk's arithmetic (about 50 ms a micro-batch of four layers) limits the undelayed
 * run.
 *
 * The options choose the schedule:
 *
 *   asynchronous    many flights, a grid of experts, a few of them for each row
 *   deep pipeline   as many flights, one expert a layer, each layer on another host
 *   pipelined       the same with as many flights as there are stages, forward and backward:
 *                   2 * layers
 *   model-parallel  the same with one flight: a batch must end before the next begins
 *
 * Hosts may fail: each is up and down for exponential times, so that a share `down` of them is down
 * on average, from the beginning on; half of the crashes are silent. With `patient` trainers wait
 * for every answer, which suits runs with delays and without crashes. Otherwise the production
 * deadlines and grace apply.
 *
 * Payloads are ghosts and jobs are charged, not run; everything else is the production code. A row
 * is a pure function of its options.
 */
#ifndef HTH_SCENARIOS_LATENCY_H
#define HTH_SCENARIOS_LATENCY_H

#include "core/base.h"
#include "sim/world.h"

#define HTH_LATENCY_TRAINERS_MAX 64

struct hth_latency_opts {
    uint64_t seed;
    double delay_ms;  /* mean extra time of a call; 0: none */
    uint32_t flights; /* micro-batches in the air of each trainer */
    uint32_t trainers;
    uint32_t layers;
    uint32_t side; /* of the grid: side * side experts a layer */
    uint32_t k;    /* experts of a row */
    uint32_t hosts;
    uint32_t micro_batch; /* samples */
    /* Updates to measure of each trainer, after two cycles of all flights. Rounded up to whole
     * cycles, as flights land in bunches. */
    uint32_t updates;
    int64_t measure_us; /* above 0: measure for this time instead */
    bool patient;
    double down;            /* 0..0.9: share of the time that a host is down */
    int64_t down_us;        /* mean downtime */
    hth_trace_fn *on_event; /* NULL: none */
    void *arg;              /* of on_event */
};
#define HTH_LATENCY_OPTS_INIT                                                                      \
    {                                                                                              \
        .seed = 1, .flights = 320, .trainers = 1, .layers = 4, .side = 4, .k = 4, .hosts = 8,      \
        .micro_batch = 64, .updates = 600, .patient = true, .down_us = 10 * HTH_US_PER_S           \
    }

struct hth_latency_row {
    double delay_ms;
    uint32_t flights;
    double samples_per_s;   /* of all trainers, in virtual time */
    double useful_per_s;    /* times the share of the (unit, expert) pairs that learned */
    double staleness_mean;  /* updates between a flight's start and its gradient */
    double answers_missing; /* fraction of the (unit, expert) pairs asked */
    double virtual_s;
    uint64_t deaths; /* crashes of hosts */
    uint64_t trace;  /* hash of all events */
};

/* Run one configuration. Errors: E_CONFIG, E_TIMEOUT (no update in an hour of virtual time), those
 * of the parts. */
enum hth_err hth_sim_latency(const struct hth_latency_opts *opts,
                             struct hth_latency_row *row) HTH_MUST;

#endif
