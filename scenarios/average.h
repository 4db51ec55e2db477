/* SPDX-License-Identifier: Apache-2.0 */
/*
 * average.h: the production averager against the model of pure.h.
 *
 * N nodes, each made of the production parts (rpc + roster + reducer + moshpit), average real
 * vectors of `dim` floats from N(0, 1) in a simulated world. All begin a round at the same instant,
 * each with an offer of one round; the round is over when the last offer has ended. A pause between
 * two rounds stands for training, and gives records time to spread. So these rounds can be compared
 * with those of pure.h, under the same failures of the same names:
 *
 *   absent     does not offer in this round, but its process lives and its records say so
 *   crash      its process dies while it reduces: as the group begins, with the first values that
 *              come in, or with the first sum (drawn); every second crash is silent. When the round
 *              is over it starts again with its earlier values
 *   slow       its link and its processor have a tenth of their speed in this round
 *   partition  it is on the other side of a partition, which the DHT does not cross either; the
 *              partition ends as the next round begins, or heal_us before it
 *
 * Method MOSHPIT is the production averager as it is. ALLREDUCE is the same with one group
 * of all, which only begins when all peers are there. The other methods of pure.h are not protocols
 * here.
 *
 * The metrics of a round, each a mean over all N peers, failed ones included:
 *
 *   mse        squared distance to the mean of all start values
 *   variance   squared distance to the mean of the present values
 *   vectors    values sent, in vectors
 *   seconds    virtual, from the begin to the end of the last offer
 *   bytes      that arrived on the node's streams: values, headers, probes, matchmaking
 *   success    of the offers of peers that did not crash in the round: share with an average
 *   fraction   of the weight of those groups that was averaged
 *   members    of their groups
 *
 * The errors have the precision of floats: variances end near 1e-16. Rounds to a target are those
 * of pure.h, each number of the vector counted for itself.
 */
#ifndef HTH_SCENARIOS_AVERAGE_H
#define HTH_SCENARIOS_AVERAGE_H

#include "core/base.h"
#include "scenarios/pure.h"
#include "sim/params.h"

#define HTH_AVERAGE_PEERS_MAX 4096
#define HTH_AVERAGE_DIM_MAX   (1u << 20)

/* X(NAME, name, label): the lists of a row; the first three are those of pure.h. */
#define HTH_AVERAGE_METRIC_MAP(X)                                                                  \
    X(MSE, "mse", "squared distance to the true mean")                                             \
    X(VARIANCE, "variance", "variance among the peers")                                            \
    X(VECTORS, "vectors_sent", "vectors sent by a peer")                                           \
    X(SECONDS, "seconds", "seconds of the round")                                                  \
    X(BYTES, "bytes", "bytes received by a peer")                                                  \
    X(SUCCESS, "success", "share of the offers that had an average")                               \
    X(FRACTION, "fraction", "share of the weight that was averaged")                               \
    X(MEMBERS, "members", "members of a group")

enum hth_average_metric {
#define HTH_AVERAGE_ENUM(name, text, label) HTH_AVERAGE_##name,
    HTH_AVERAGE_METRIC_MAP(HTH_AVERAGE_ENUM)
#undef HTH_AVERAGE_ENUM
        HTH_AVERAGE_METRICS
};

/* For events.csv: `node` is "" for the world. `detail` may be empty. */
typedef void hth_average_event_fn(void *arg, int64_t now_us, const char *node, const char *event,
                                  const char *detail);

struct hth_average_opts {
    struct hth_pure_opts base; /* method, peers, shape, failure, p_fail, hold, rounds, cap, seed */
    uint32_t dim;
    struct hth_link link;
    double line_bytes_per_s; /* of each node, up and down; 0: no limit */
    int64_t pause_us;
    int64_t heal_us;                /* at most the pause */
    hth_average_event_fn *on_event; /* may be NULL */
    void *arg;
};
#define HTH_AVERAGE_OPTS_INIT                                                                      \
    {                                                                                              \
        .base = HTH_PURE_OPTS_INIT, .dim = 1024, .link = {.latency_us = 25 * HTH_US_PER_MS},       \
        .line_bytes_per_s = 12.5e6, .pause_us = 3 * HTH_US_PER_S                                   \
    }

struct hth_average_report {
    uint64_t hash;
    uint64_t offers, failed; /* failed: of the peers that did not crash in the round */
    uint64_t deaths;
    uint64_t leaks;  /* objects that peers left behind at a crash */
    uint32_t rounds; /* played */
};

/* Length of a row: HTH_AVERAGE_METRICS lists of base.rounds numbers each, in the order above, and
 * then the four numbers of pure.h. The run ends early when both targets are reached and the lists
 * are complete. A number that cannot be measured is NaN. */
size_t hth_average_row_len(const struct hth_average_opts *opts);

/* Run seed number `index` of the options. Errors: E_CONFIG (as of hth_pure_new; a method that is no
 * protocol; more peers than cells, than HTH_AVERAGE_PEERS_MAX, or of ALLREDUCE than a group holds;
 * dim 0 or beyond HTH_AVERAGE_DIM_MAX), E_TIMEOUT (a round did not end: a bug), those of a boot. */
enum hth_err hth_sim_average(const struct hth_average_opts *opts, uint64_t index, double *row,
                             struct hth_average_report *report) HTH_MUST;

#endif
