/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smoke.h: does a swarm of N peers live? The shortest scenario that uses the production rpc and dht
 * code on every peer, and the measure of the simulator's own speed.
 *
 * Peers form neighbourhoods of 32. Each announces its experts (two) of its neighbourhood's layer,
 * follows that layer in a directory, and once a second calls a random live host of it with a
 * payload, which the host sends back after a job. During the first two thirds of the time nodes
 * crash and come back, messages are lost, DHT answers are partial, and neighbourhoods are cut in
 * two (safety phase). Then all faults stop (liveness phase). The run passes when
 *
 *   - every call (a lost connection's is made up to twice more) got exactly one verdict, or
 * vanished with its caller,
 *   - every reply carried the payload that was sent (by its digest),
 *   - at the end every directory shows exactly the hosts of its neighbourhood, and the calls of the
 *     last tenth of the time all succeeded,
 *   - after the end no timer, stream, job or DHT handle is left.
 *
 * Some patience is shortened so that a minute shows recovery too: a peer that failed is dialled
 * again after at most 2 s and a host that was marked dead is tried again after 3 s.
 *
 * Nothing here reads a clock: the caller measures and passes wall time to hth_smoke_line.
 */
#ifndef HTH_SIM_SMOKE_H
#define HTH_SIM_SMOKE_H

#include "core/log.h"

#define HTH_SMOKE_EXPERTS_MAX 1000

struct hth_smoke_opts {
    uint32_t peers;   /* 2..100000 */
    uint32_t experts; /* of each peer, 1..1000 */
    uint64_t seed;
    int64_t duration_us;    /* virtual; at least 60 s */
    uint32_t payload_bytes; /* of each request and reply */
    bool real_payloads;     /* bytes instead of ghosts: a hundred times slower, and compared */
    bool calm;              /* no faults at all */
    enum hth_log_level log_level;
    /* Called once per virtual second; may be NULL. */
    void (*progress)(void *arg, int64_t now_us, uint64_t events);
    void *arg;
};
#define HTH_SMOKE_OPTS_INIT                                                                        \
    {                                                                                              \
        .peers = 1000, .experts = 2, .seed = 1, .duration_us = 60 * 1000000,                       \
        .payload_bytes = 256u << 10, .log_level = HTH_ERROR                                        \
    }

struct hth_smoke_report {
    bool pass;
    char why[160]; /* the first invariant that was broken; "" when it passed */
    struct hth_smoke_opts asked;
    uint32_t peers;
    uint64_t seed;
    uint64_t hash; /* of the trace */
    int64_t virtual_us;
    uint64_t events;
    uint64_t calls, calls_ok, calls_failed, calls_again, calls_vanished;
    uint64_t calls_without_host; /* ticks on which nobody was known */
    uint64_t crashes, partitions;
    uint64_t bytes_delivered;
    uint64_t dht_values;      /* in the table at the end */
    double latency_median_us; /* of successful calls, virtual */
};

/* Errors: E_RANGE (options). A broken invariant is no error: look at report->pass. */
enum hth_err hth_smoke_run(const struct hth_smoke_opts *opts,
                           struct hth_smoke_report *report) HTH_MUST;

#define HTH_SMOKE_LINE_MAX 512
/* "PASS seed=1 hash=... peers=1000 virtual_s=60 events=... virtual_per_wall=... events_per_s=...
 * memory_mib=..." or "FAIL ..." with the reason and the command that shows it again. wall_us and
 * memory_bytes of 0 leave their fields out, so that two runs give identical lines. */
const char *hth_smoke_line(const struct hth_smoke_report *report, int64_t wall_us,
                           uint64_t memory_bytes, char out[HTH_SMOKE_LINE_MAX]);

#endif
