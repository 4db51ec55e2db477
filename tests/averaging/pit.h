/* SPDX-License-Identifier: Apache-2.0 */
/* pit.h: simulated averagers, whole: endpoint and averager on a node each. */
#ifndef HTH_TESTS_AVERAGING_PIT_H
#define HTH_TESTS_AVERAGING_PIT_H

#include "averaging/peer.h"
#include "rpc/rpc.h"
#include "sim/world.h"

#define PIT_PORT   4000
#define PIT_RTT_US (20 * HTH_US_PER_MS) /* of the calm world */

struct pit;

struct pit_peer {
    struct pit *pit;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_addr addr;
    struct hth_rpc *rpc;
    struct hth_avg_peer avg;
    bool up;
    struct hth_avg_cell cell;
    enum hth_avg_mode mode;
    float *values; /* pit's count; what it offers, and what the last average was */
    double weight;
    /* what happened */
    uint32_t offered, ended;
    uint32_t left, failed; /* rounds of the offer that are left; all that failed */
    int64_t offered_us, ended_us, longest_us; /* from an offer to its end */
    struct hth_avg_result result;             /* of the last one; its blobs are gone */
};

struct pit {
    struct hth_world *world;
    struct pit_peer *peer;
    uint32_t peers;
    size_t count;               /* floats */
    struct hth_avg_shape shape; /* dims 0: by the population */
    bool has_cells;             /* by their numbers */
    struct hth_moshpit_opts opts;
    double bandwidth; /* of each */
    struct hth_roster_opts roster;
    enum hth_quant_format format;
    struct hth_avg_span span; /* of all */
};

/* Options with which peers can be made; set what differs, then pit_start. */
void pit_init(struct pit *p, uint64_t seed, uint32_t peers, size_t count,
              const struct hth_world_opts *world);
/* Boots all peers and lets the roster settle for settle_us. */
void pit_start(struct pit *p, int64_t settle_us);
void pit_stop(struct pit *p);
/* Values of peer i: standard normals of the seed. */
void pit_fill(struct pit *p, uint64_t seed);
/* So many rounds in turn, each with the average of the one before. */
void pit_offer(struct pit_peer *peer, uint32_t rounds);
void pit_offer_all(struct pit *p, uint32_t rounds);
/* Until nobody that is up has an offer under way. */
bool pit_run(struct pit *p, int64_t us);
/* The weighted mean of the values of all that are up and bring some, in double. `out` has pit's
 * count. */
void pit_mean(const struct pit *p, double *out);
/* Largest deviation of anybody who is up from `mean`. */
double pit_deviation(const struct pit *p, const double *mean);
/* Largest deviation between any two that are up. */
double pit_spread(const struct pit *p);

#endif
