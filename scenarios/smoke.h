/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smoke.h: does a swarm of N peers survive? A scenario (scenario.h) with fixed numbers and the
 * peers of echo.h. It also measures the simulator's own speed, and is the first thing to run after
 * a change.
 *
 * For two thirds of the time one peer in a hundred crashes every second and restarts some seconds
 * later, messages are lost, DHT answers are partial, and every other 5 s an eighth of the peers is
 * partitioned. Then all faults stop and the swarm has the rest of the time to recover.
 *
 * Nothing here reads a clock: the caller measures and passes wall time to hth_smoke_line.
 */
#ifndef HTH_SCENARIOS_SMOKE_H
#define HTH_SCENARIOS_SMOKE_H

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
    char why[160]; /* the first violated invariant; "" when it passed */
    struct hth_smoke_opts asked;
    uint32_t peers;
    uint64_t seed;
    uint64_t hash; /* trace hash */
    int64_t virtual_us;
    uint64_t events;
    uint64_t calls, calls_ok, calls_failed, calls_again, calls_vanished;
    uint64_t calls_without_host; /* ticks at which a peer knew no host to call */
    uint64_t crashes, partitions;
    uint64_t bytes_delivered;
    uint64_t dht_values;      /* in the DHT at the end */
    double latency_median_us; /* of successful calls, virtual */
};

/* Run. Errors: E_RANGE (options). A violated invariant is no error: see report->pass. */
enum hth_err hth_smoke_run(const struct hth_smoke_opts *opts,
                           struct hth_smoke_report *report) HTH_MUST;

#define HTH_SMOKE_LINE_MAX 512
/* "PASS seed=1 hash=... peers=1000 virtual_s=60 events=... virtual_per_wall=... events_per_s=...
 * memory_mib=..." or "FAIL ..." with the reason and the command that repeats it. wall_us and
 * memory_bytes of 0 leave their fields out, so that two runs give identical lines. */
const char *hth_smoke_line(const struct hth_smoke_report *report, int64_t wall_us,
                           uint64_t memory_bytes, char out[HTH_SMOKE_LINE_MAX]);

#endif
