/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * links.h: how long does a group need for an average, by the links of its members?
 *
 * DeDLOC's comparison on the production reduction: every peer has a line of its own bandwidth, up
 * and down, and one vector is averaged in three ways that differ only in the bandwidths which the
 * reducer is told:
 *
 *   allreduce   all the same: equal shares
 *   server      that of the fastest, 0 for all others: a parameter server
 *   adaptive    the real ones: the shares of averaging/shares.h
 *
 * Two times are told, both virtual:
 *
 *   simulated_s  from the instant at which all begin, not yet connected, until the last has the
 *                mean
 *   steady_s     what a vector of twice the length takes longer: the cost of each further byte
 *
 * The formulas of hth_avg_times are about the second. In a round of its own no answer can begin
 * before the first part has come from everybody, and slow lines wait for as long at the other end:
 * with p parts to a share that is about 1 / p of the time.
 *
 * Payloads are ghosts in fp32 and arithmetic costs next to nothing, so that the links alone count.
 */
/* clang-format on */
#ifndef HTH_SCENARIOS_LINKS_H
#define HTH_SCENARIOS_LINKS_H

#include "core/base.h"

enum hth_links_way { HTH_LINKS_ALLREDUCE, HTH_LINKS_SERVER, HTH_LINKS_ADAPTIVE, HTH_LINKS_WAYS };

struct hth_links_opts {
    uint64_t seed;
    const double *bandwidth; /* of each peer in bit/s, up and down; all above 0 */
    uint32_t peers;          /* 2..HTH_AVG_MEMBERS_MAX */
    uint64_t count;          /* floats of the vector */
    int64_t latency_us;      /* one way, between any two */
};

struct hth_links_row {
    double predicted_s, simulated_s, steady_s;
    uint64_t bytes;  /* of the first, delivered over all links, headers included */
    double fraction; /* of the weight that was averaged, the least over the members: 1, or
                      * somebody gave up on somebody, and steady_s is NaN */
    uint64_t trace;  /* of the first */
};

/* "allreduce", "server", "adaptive". Never NULL. */
const char *hth_links_way_name(enum hth_links_way way);

/* Errors: E_CONFIG (peers, bandwidths, count), E_TIMEOUT (no end within 20 times the
 * prediction and a minute), and those of the reduction. */
enum hth_err hth_sim_links(const struct hth_links_opts *opts, enum hth_links_way way,
                           struct hth_links_row *row) HTH_MUST;

#endif
