/* SPDX-License-Identifier: Apache-2.0 */
/*
 * breaker.h: one circuit breaker per host, so that a dead host isn't chosen on the next step.
 *
 *              failures_to_open soft failures, or one hard
 *     CLOSED ------------------------------------------------> OPEN   (back-off runs, no calls)
 *        ^                                                     |  ^
 *        | success                        back-off over, asked |  | failure: back-off doubles
 *        |                                                     v  |
 *        +------------------------------------------------- HALF-OPEN (one probe under way)
 *
 * Hard failures say that nobody is there (refused, closed, unreachable, wrong key, broken
 * protocol); soft ones say that this call went wrong (timeout, not finite, wrong shape). BUSY and
 * DRAINING are answers of a living host: BUSY changes nothing; DRAINING opens, for it announced its
 * end. Our own cancels and errors of this machine say nothing about the host and change nothing.
 *
 * Back-off n is base * 2^(n-1), at most `backoff_max_us`, times a jitter in [1 - jitter, 1 +
 * jitter] drawn from the breaker's own stream, so that a thousand trainers don't probe a host in
 * the same instant. A probe whose verdict never comes is forgotten after `probe_timeout_us`.
 *
 * Only hosts in trouble are remembered, at most `hosts_max`; beyond that the one that got into
 * trouble first is forgotten. Loop thread; time is passed in; no I/O and no timers: the trainer
 * tells the directory to hide a host until hth_breaker_retry_at.
 */
#ifndef HTH_GATING_BREAKER_H
#define HTH_GATING_BREAKER_H

#include "core/base.h"
#include "core/ident.h"
#include "core/limits.h"
#include "core/rng.h"

struct hth_breaker;

enum hth_breaker_state { HTH_BREAKER_CLOSED, HTH_BREAKER_OPEN, HTH_BREAKER_HALF_OPEN };

struct hth_breaker_opts {
    uint32_t failures_to_open; /* soft failures in a row */
    uint32_t hosts_max;        /* at most HTH_BREAKER_HOSTS_MAX */
    int64_t backoff_us;        /* the first back-off */
    int64_t backoff_max_us;
    int64_t probe_timeout_us;
    double jitter; /* 0 .. 1 */
};
#define HTH_BREAKER_OPTS_INIT                                                                      \
    {                                                                                              \
        .failures_to_open = 2, .hosts_max = 4096, .backoff_us = HTH_US_PER_S,                      \
        .backoff_max_us = 60 * HTH_US_PER_S, .probe_timeout_us = 30 * HTH_US_PER_S, .jitter = 0.25 \
    }

struct hth_breaker_stats {
    uint64_t opened;  /* times a breaker went to OPEN */
    uint64_t probes;  /* times it let one call through */
    uint64_t closed;  /* times a host came back */
    uint64_t refused; /* hth_breaker_allow said no */
    uint32_t remembered;
};

/* rng is copied: split one off for this. Errors: E_RANGE (an option outside its range). */
enum hth_err hth_breaker_new(const struct hth_breaker_opts *opts, const struct hth_rng *rng,
                             struct hth_breaker **out) HTH_MUST;
void hth_breaker_free(struct hth_breaker *breaker);

/* May this host be called now? When the back-off is over, yes once: that call is the probe, and its
 * verdict must be told. */
bool hth_breaker_allow(struct hth_breaker *breaker, const struct hth_peer_id *host, int64_t now_us);
/* The same without taking the probe: true unless a call now would be refused. */
bool hth_breaker_peek(const struct hth_breaker *breaker, const struct hth_peer_id *host,
                      int64_t now_us);
enum hth_breaker_state hth_breaker_state(const struct hth_breaker *breaker,
                                         const struct hth_peer_id *host);
/* When an OPEN or HALF-OPEN host may be tried again; INT64_MIN for a closed one. */
int64_t hth_breaker_retry_at(const struct hth_breaker *breaker, const struct hth_peer_id *host);

/* The verdict of a call. Returns true when this verdict opened the breaker: the moment to hide the
 * host in the directory. Verdicts of calls that were sent before it opened are welcome and change
 * nothing but a success, which closes. */
bool hth_breaker_report(struct hth_breaker *breaker, const struct hth_peer_id *host,
                        enum hth_err err, int64_t now_us);
/* The host announced itself anew (its record's sequence rose): start afresh. */
void hth_breaker_forget(struct hth_breaker *breaker, const struct hth_peer_id *host);

void hth_breaker_get_stats(const struct hth_breaker *breaker, struct hth_breaker_stats *out);

#endif
