/* SPDX-License-Identifier: Apache-2.0 */
/*
 * echo.h: the smallest application for simulated nodes that uses the production rpc and dht code
 * as hosts and trainers do.
 *
 * Peers form neighbourhoods. Each announces its experts of its neighbourhood's layer, follows that
 * layer in a directory, and at random times calls a random live host of it with a payload, which
 * the host sends back after a job. A call whose connection is lost is retried up to twice.
 *
 * These invariants are checked all the time, and the first violation is kept as text:
 *
 *   - every call gets exactly one verdict, or vanishes with its caller (hth_echo_check_end)
 *   - every reply carries the payload that was sent, by its digest
 *   - calls that begin after hth_echo_expect_success all succeed, and find a host
 *   - a node that is down holds nothing: no timer, stream, job, handle (hth_echo_check_now)
 *   - at the end every directory shows exactly its neighbourhood (hth_echo_check_views)
 *
 * Some timeouts are shorter than in production, so that a minute shows recovery too: a peer that
 * failed is dialled again after at most 2 s, and a host that was marked dead is tried again after 3
 * s. One thread; free the world first, then the peers.
 */
#ifndef HTH_SCENARIOS_ECHO_H
#define HTH_SCENARIOS_ECHO_H

#include "sim/world.h"

#define HTH_ECHO_EXPERTS_MAX 1000
#define HTH_ECHO_WHY_MAX     160

struct hth_echo;

struct hth_echo_opts {
    uint32_t count;
    uint32_t hood;    /* peers of a neighbourhood, 2 or more (hth_hood_of) */
    uint32_t experts; /* of each peer */
    uint32_t payload_bytes;
    int64_t call_every_us;  /* of each peer, drawn from 0.9 to 1.1 of it */
    int64_t record_life_us; /* 0: the announcer's */
    int64_t dead_retry_us;  /* time after which a host that was marked dead is tried again */
    /* Changes a node's options before it is made (its boot is filled in afterwards); may be
     * NULL. */
    void (*node)(void *arg, uint32_t index, struct hth_node_opts *opts);
    void *arg;
};
#define HTH_ECHO_OPTS_INIT                                                                         \
    {                                                                                              \
        .count = 50, .hood = 32, .experts = 2, .payload_bytes = 256u << 10,                        \
        .call_every_us = HTH_US_PER_S, .dead_retry_us = 3 * HTH_US_PER_S                           \
    }

/* The last neighbourhood may be smaller; a peer that would be alone belongs to the one before. */
struct hth_hood {
    uint32_t number, first, size; /* peers first to first + size - 1 */
};
struct hth_hood hth_hood_of(uint32_t index, uint32_t count, uint32_t hood);
/* Number of experts in the layer of the largest neighbourhood; at most HTH_GRID_DIM_MAX. */
uint64_t hth_hood_experts(uint32_t count, uint32_t hood, uint32_t experts);

struct hth_echo_stats {
    uint64_t calls, ok, failed, again, vanished;
    uint64_t without_host;    /* times when a peer knew no other host to call */
    uint64_t outstanding;     /* calls without a verdict so far */
    double latency_median_us; /* of successful calls, retries included */
    double latency_p99_us;
};

/* Make the nodes. Errors: E_RANGE (fewer than 2 peers; no experts, or too many of a peer or in a
 * neighbourhood; an empty payload). */
enum hth_err hth_echo_new(struct hth_world *world, const struct hth_echo_opts *opts,
                          struct hth_echo **out) HTH_MUST;
/* NULL is fine. */
void hth_echo_free(struct hth_echo *peers);
struct hth_node *hth_echo_node(struct hth_echo *peers, uint32_t index);
/* Whether `viewer` has `host`, of its own neighbourhood, in its directory as alive. False while the
 * viewer is down. */
bool hth_echo_sees(struct hth_echo *peers, uint32_t viewer, uint32_t host);

/* Tell the peers that the faults are over: later calls must succeed. */
void hth_echo_expect_success(struct hth_echo *peers);
/* Stop making calls; those under way continue. */
void hth_echo_stop(struct hth_echo *peers);
bool hth_echo_all_answered(void *peers);

void hth_echo_check_now(struct hth_echo *peers);
void hth_echo_check_views(struct hth_echo *peers);
/* Crash all nodes, then count verdicts and the objects left behind. */
void hth_echo_check_end(struct hth_echo *peers);
/* Report a violated condition of a scenario's own; the first reason is kept. */
void hth_echo_broken(struct hth_echo *peers, const char *fmt, ...) HTH_PRINTF(2, 3);
/* The first violated condition, or "". */
const char *hth_echo_why(const struct hth_echo *peers);
void hth_echo_stats(struct hth_echo *peers, struct hth_echo_stats *out);

#endif
