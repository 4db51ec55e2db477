/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swarm.h: averagers as processes (averager_peer.c), each with its own DHT node, in a grid.
 *
 * Peer N stands in cell N and begins with the normals of rank N; peer 0 is the one through which
 * all others find the DHT. Where `helper` is set the last peer has no values. On loopback they
 * share one address; in a lab (lab/lab.h) each is a host of its own, h0, h1, ..., and the test
 * itself runs inside of `netlab run`.
 *
 *   swarm_start ... swarm_sweep(s, true): from values that differ ... swarm_sweep(s, false): from
 *   what the last sweep left ... swarm_spread, swarm_deviation
 *
 * A peer that is `gone` is neither told to begin nor waited for. Single-threaded.
 */
#ifndef HTH_TESTS_INTEGRATION_SWARM_H
#define HTH_TESTS_INTEGRATION_SWARM_H

#include "integration/place.h"

#define SWARM_MAX      28
#define SWARM_PORT     4000 /* in a lab, ... */
#define SWARM_NEWCOMER 10   /* ... where this is the newcomer's host */

struct swarm_opts {
    const char *shape;
    uint32_t peers; /* the helper included */
    size_t count;   /* floats */
    const char *format;
    bool lab;
    int patience_s;       /* a peer may be late or silent for so long; 0: as in earnest */
    double helper;        /* bit/s of the last peer's line, and it is a helper; 0: it is not */
    uint64_t state_bytes; /* all but the helper hand out such a state, and there is a newcomer */
    /* NULL: nobody dies. Else after so many calm sweeps (averager_peer.c), and of the peers
     * [die_first, die_last] only. */
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
    int64_t began_us; /* the present one, on the machine's clock */
};

/* Until all see all. */
void swarm_start(struct swarm *s, struct place *p, const struct swarm_opts *opts);
/* All that are there begin a sweep; `anew`: with their first values. */
void swarm_begin(struct swarm *s, bool anew);
/* Until all that are there have ended it. */
void swarm_end(struct swarm *s);
/* Both; returns the microseconds of the slowest. */
int64_t swarm_sweep(struct swarm *s, bool anew);
/* A peer's number behind the last `before` that it said after `since`; -1: it did not. */
int64_t proc_number(struct proc *proc, const char *since, const char *before);
/* When the last of those that are there ended the present sweep, on the machine's clock. */
int64_t swarm_ended_us(struct swarm *s);

/* Largest difference between any two that are there, and from the true mean of all. */
double swarm_spread(const struct swarm *s);
double swarm_deviation(const struct swarm *s);

#endif
