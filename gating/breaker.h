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
 * A hard failure means that the host is not there or not usable (refused, closed, unreachable,
 * wrong key, broken protocol). A soft failure means that one call failed (timeout, not finite,
 * wrong shape). BUSY and DRAINING are refusals of a live host: BUSY leaves the state as it is;
 * DRAINING opens the breaker, because the host is about to leave. Cancels by this process and
 * errors of this machine say nothing about the host and leave the state as it is.
 *
 * Back-off n is base * 2^(n-1), at most `backoff_max_us`, times a jitter in [1 - jitter, 1 +
 * jitter] drawn from the breaker's own stream, so that a thousand trainers don't probe a host in
 * the same instant. A probe without a verdict is given up after `probe_timeout_us`.
 *
 * Only hosts with failures have an entry, at most `hosts_max`; when the table is full, the oldest
 * entry is dropped. Loop thread; the caller passes the time; no I/O and no timers: the trainer
 * marks a host dead in the directory until hth_breaker_retry_at.
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
    uint64_t opened;  /* changes to OPEN */
    uint64_t probes;  /* changes to HALF-OPEN */
    uint64_t closed;  /* changes from OPEN or HALF-OPEN to CLOSED */
    uint64_t refused; /* calls of hth_breaker_allow that returned false */
    uint32_t remembered;
};

/* Copies rng: pass a stream split off for this. Errors: E_RANGE (an option outside its range). */
enum hth_err hth_breaker_new(const struct hth_breaker_opts *opts, const struct hth_rng *rng,
                             struct hth_breaker **out) HTH_MUST;
void hth_breaker_free(struct hth_breaker *breaker);

/* True if this host may be called now. When the back-off is over, it returns true once: that call
 * is the probe, and its verdict must be reported. */
bool hth_breaker_allow(struct hth_breaker *breaker, const struct hth_peer_id *host, int64_t now_us);
/* True if hth_breaker_allow would return true; takes no probe and counts nothing. */
bool hth_breaker_peek(const struct hth_breaker *breaker, const struct hth_peer_id *host,
                      int64_t now_us);
enum hth_breaker_state hth_breaker_state(const struct hth_breaker *breaker,
                                         const struct hth_peer_id *host);
/* The time from which an OPEN or HALF-OPEN host may be called; INT64_MIN for a CLOSED one. */
int64_t hth_breaker_retry_at(const struct hth_breaker *breaker, const struct hth_peer_id *host);

/* Reports the verdict of a call. Returns true when this verdict opened the breaker: the caller then
 * marks the host dead in the directory. Failures of calls that were sent before it opened change
 * nothing; a success always closes it. */
bool hth_breaker_report(struct hth_breaker *breaker, const struct hth_peer_id *host,
                        enum hth_err err, int64_t now_us);
/* Closes the breaker and drops the entry: the host published a newer record. */
void hth_breaker_forget(struct hth_breaker *breaker, const struct hth_peer_id *host);

void hth_breaker_get_stats(const struct hth_breaker *breaker, struct hth_breaker_stats *out);

#endif
