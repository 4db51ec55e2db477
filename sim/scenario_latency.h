/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scenario_latency.h: does the trainer hide latency? Learning@home's experiment on the real
 * trainer.
 *
 * One trainer with a 4-layer DMoE classifier, hosts with fast devices, and a delay on every call:
 * both ways of every message are drawn from an exponential distribution with half the given mean. A
 * message also waits for those before it on its connection, so that the real waits are longer than
 * in an experiment that delays each call by itself. Throughput is measured in virtual time, after
 * the pipeline has filled, with many flights in the air and, for contrast, with one. The trunk's
 * arithmetic (about 50 ms a micro-batch) is what limits the undelayed run.
 *
 * Payloads are ghosts and jobs are charged, not run; everything else is the production code. A row
 * is a pure function of its options.
 */
#ifndef HTH_SIM_SCENARIO_LATENCY_H
#define HTH_SIM_SCENARIO_LATENCY_H

#include "core/base.h"

struct hth_latency_opts {
    uint64_t seed;
    double delay_ms;  /* mean of a call's extra time; 0: none */
    uint32_t flights; /* micro-batches in the air */
    uint32_t layers;
    uint32_t hosts;
    uint32_t micro_batch; /* samples */
    uint32_t updates;     /* measured, after as many as there are flights, twice */
};
#define HTH_LATENCY_OPTS_INIT                                                                      \
    {                                                                                              \
        .seed = 1, .flights = 320, .layers = 4, .hosts = 8, .micro_batch = 64, .updates = 600      \
    }

struct hth_latency_row {
    double delay_ms;
    uint32_t flights;
    double samples_per_s;   /* virtual */
    double staleness_mean;  /* updates between a flight's start and its gradient */
    double answers_missing; /* fraction of the (unit, expert) pairs asked */
    double virtual_s;
    uint64_t trace; /* hash of everything that happened */
};

/* Errors: E_CONFIG, E_TIMEOUT (the updates did not come within an hour of virtual time), and those
 * of the parts. */
enum hth_err hth_sim_latency(const struct hth_latency_opts *opts,
                             struct hth_latency_row *row) HTH_MUST;

#endif
