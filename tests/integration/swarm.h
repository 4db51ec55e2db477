/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swarm.h: runs averagers as processes (averager_peer.c), each with its own DHT node, in a grid.
 *
 * Peer N is in cell N and starts with the normals of rank N. Peer 0 is the bootstrap node of the
 * others. If `helper` is set the last peer has no values. On loopback all share one address; in a
 * lab (lab/lab.h) each is on a host of its own, h0, h1, ..., and the test runs inside `netlab run`.
 *
 *   swarm_start
 *   swarm_sweep(s, true)            from values that differ
 *   swarm_sweep(s, false)           from the values of the last sweep
 *   swarm_spread, swarm_deviation
 *
 * Functions skip a peer that is `gone`. Single-threaded.
 */
#ifndef HTH_TESTS_INTEGRATION_SWARM_H
#define HTH_TESTS_INTEGRATION_SWARM_H

#include "integration/place.h"

#define SWARM_MAX      28
#define SWARM_PORT     4000 /* in a lab, ... */
#define SWARM_NEWCOMER 10   /* ... where this is the newcomer's host */

struct swarm_opts {
    const char *shape;
    uint32_t peers; /* including the helper */
    size_t count;   /* floats */
    const char *format;
    bool lab;
    int patience_s;       /* a peer may be late or silent for this long; 0: the program's default */
    double helper;        /* the last peer is a helper with this many bit/s; 0: no helper */
    uint64_t state_bytes; /* > 0: all but the helper are donors of such a state for a newcomer */
    /* NULL: no death. Else one of the peers [die_first, die_last] dies after `calm` sweeps
     * (averager_peer.c). */
    uint32_t calm;
    const char *die, *role, *phase;
    uint32_t die_first, die_last;
};

struct swarm {
    struct place *place;
    struct swarm_opts opts;
    struct proc *proc[SWARM_MAX], *newcomer;
    char addr[SWARM_MAX][64], out[SWARM_MAX][PLACE_TEXT_MAX];
    bool gone[SWARM_MAX];
    uint32_t sweeps;
    int64_t began_us; /* start of the current sweep, on the machine's clock */
};

/* Starts all peers; returns when every peer sees all others. */
void swarm_start(struct swarm *s, struct place *p, const struct swarm_opts *opts);
/* Starts a sweep of all live peers; `anew`: with their first values. */
void swarm_begin(struct swarm *s, bool anew);
/* Waits until all live peers have ended it. */
void swarm_end(struct swarm *s);
/* Does both; returns the microseconds of the slowest peer. */
int64_t swarm_sweep(struct swarm *s, bool anew);
/* The number after the last `before` that follows `since` in a peer's output; -1: there is none. */
int64_t proc_number(struct proc *proc, const char *since, const char *before);
/* When the last live peer ended the current sweep, on the machine's clock. */
int64_t swarm_ended_us(struct swarm *s);

/* The largest difference between any two live peers, and from the true mean of all. */
double swarm_spread(const struct swarm *s);
double swarm_deviation(const struct swarm *s);

#endif
