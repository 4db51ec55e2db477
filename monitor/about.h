/* SPDX-License-Identifier: Apache-2.0 */
/*
 * about.h: what a peer says of itself and of others when it is asked: method 15, ABOUT, without a
 * payload. `hearth status` asks each peer that it lists, and so learns which of them live and can
 * be reached, and of peers whose records the DHT has not handed out yet.
 *
 *    0  start, wall clock in us (8)                        24  trainers served now (4)
 *    8  rows served since then (8)                         28  wait in ms (4)
 *   16  can't save since, wall clock in us; 0: it can (8)  32  rows/s (4)   36  reachable (1)
 *   37  type of arithmetic (1)   38  version: a length (1) and so many bytes
 *       peers that it knows (2), then of each:
 *       id 32, role 1, family 1 (0: only dials), ip 16, port 2, age of its newest record in s 4
 *       reasons for which it refused others (1), then of each: a length (1) and so many bytes of
 *       text, and how often since its start (4)
 *
 * All numbers are little-endian. Later versions only append: a reader ignores bytes beyond those it
 * knows. A peer of an earlier version answers E_NO_SUCH_METHOD. The peers are hearsay: a reader
 * dials them, which proves their ids. Pure functions, any thread.
 */
#ifndef HTH_MONITOR_ABOUT_H
#define HTH_MONITOR_ABOUT_H

#include "core/base.h"
#include "core/env.h"
#include "dht/announce.h"

#define HTH_METHOD_ABOUT       15
#define HTH_ABOUT_PEERS_MAX    256 /* named in one answer */
#define HTH_ABOUT_REFUSALS_MAX 16
#define HTH_ABOUT_REASON_MAX   23
#define HTH_ABOUT_BYTES_MAX                                                                        \
    (42 + HTH_VERSION_LEN_MAX + 56 * HTH_ABOUT_PEERS_MAX +                                         \
     (5 + HTH_ABOUT_REASON_MAX) * HTH_ABOUT_REFUSALS_MAX)

/* Whether others can dial a peer (app/reach.h). On the wire: append, never renumber. */
enum hth_reach { HTH_REACH_UNKNOWN, HTH_REACH_YES, HTH_REACH_NO };

struct hth_about_peer {
    struct hth_peer_id id;
    uint8_t role;         /* enum hth_role, or one of a later version */
    struct hth_addr addr; /* family 0: it only dials */
    uint32_t age_s;
};

/* Refusals of a peer: of others at HELLO and of requests, by the error's name (E_PASS_REVOKED); of
 * claims of experts, means of parameters, and states. */
struct hth_about_refusal {
    char reason[HTH_ABOUT_REASON_MAX + 1];
    uint32_t count;
};

struct hth_about {
    int64_t started_us;
    uint64_t rows;
    int64_t unsaved_since_us;
    uint32_t trainers, queue_ms, rows_per_s;
    enum hth_reach reach; /* whether others can dial it, as far as it knows */
    uint8_t compute;      /* enum hth_compute, or one of a later version; of hosts */
    char version[HTH_VERSION_LEN_MAX + 1];
    uint32_t peer_count;
    struct hth_about_peer peer[HTH_ABOUT_PEERS_MAX];
    uint32_t refusal_count;
    struct hth_about_refusal refusal[HTH_ABOUT_REFUSALS_MAX];
};

/* Adds a reason, unless count is 0 or there is no room. */
void hth_about_refuse(struct hth_about *about, const char *reason, uint64_t count);
/* Whether it refused values of members: claims, means or states. Such a member is broken, or
 * lies. */
bool hth_about_refuses_values(const struct hth_about *about);

/* Returns the number of bytes. */
size_t hth_about_write(const struct hth_about *about, uint8_t out[HTH_ABOUT_BYTES_MAX]);
/* Errors: E_TRUNCATED; E_TOO_LARGE (peers); E_RANGE (a time beyond INT64_MAX / 2, a reach);
 * E_MALFORMED (a family, a version or reason that can't be printed). */
enum hth_err hth_about_read(const uint8_t *data, size_t len, struct hth_about *out) HTH_MUST;

#endif
