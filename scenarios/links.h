/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * links.h: how does the time of an average depend on the links of the members?
 *
 * DeDLOC's comparison on the production reduction: every peer has a link of its own bandwidth, up
 * and down, and one vector is averaged in three ways that differ only in the bandwidths given to
 * the reducer:
 *
 *   allreduce   all the same: equal shares
 *   server      that of the fastest, 0 for all others: a parameter server
 *   adaptive    the real ones: the shares of averaging/shares.h
 *
 * Two times are measured, both virtual:
 *
 *   simulated_s  from the instant at which all begin, not yet connected, until the last has the
 *                mean
 *   steady_s     the extra time of a vector of twice the length: the cost of each further byte
 *
 * The formulas of hth_links_times predict steady_s. In a single round no answer can begin before
 * the first vector part has arrived from every member, and slow links wait as long at the other
 * end: with p parts to a share that is about 1 / p of the time.
 *
 * Payloads are ghosts in fp32 and arithmetic costs almost nothing, so that the links alone count.
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
    int64_t latency_us;      /* one way, between any two peers */
};

struct hth_links_row {
    double predicted_s, simulated_s, steady_s;
    uint64_t bytes; /* of the first average, over all links, headers included */
    /* the averaged share of the weight, least over the members: 1, or a member was abandoned and
     * steady_s is NaN */
    double fraction;
    uint64_t trace; /* of the first average */
};

/* The formulas, in seconds, of a vector of so many bits and bandwidths in bit/s: with equal shares
 * 2 (n - 1) / n  S / min b, over the fastest (n - 1) S / max b, with adaptive shares S xi. All are
 * infinite without a bandwidth above 0, and 0 for n = 1. Errors: as hth_avg_shares, and E_RANGE for
 * the bits. */
enum hth_err hth_links_times(const double *bandwidth, uint32_t n, double bits,
                             double seconds[HTH_LINKS_WAYS]) HTH_MUST;

/* "allreduce", "server", "adaptive". Never NULL. */
const char *hth_links_way_name(enum hth_links_way way);

/* Run one comparison. Errors: E_CONFIG (peers, bandwidths, count), E_TIMEOUT (no end within 20
 * times the prediction and a minute), those of the reduction. */
enum hth_err hth_sim_links(const struct hth_links_opts *opts, enum hth_links_way way,
                           struct hth_links_row *row) HTH_MUST;

#endif
