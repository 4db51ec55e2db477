/* SPDX-License-Identifier: Apache-2.0 */
/*
 * avg_node.h: an averager over real sockets and nothing else: loop, DHT node, endpoint, averager
 * (averaging/peer.h), and a vector that sweeps average. For benchmarks and for tests of several
 * processes; `hearth train` builds its own.
 *
 *   hth_avg_node_open     makes everything; the roster fills while the loop runs
 *   hth_avg_node_run      until hth_net_stop(node->env): waits for `population` peers, calls
 *                         on_ready; hth_avg_node_sweep begins a sweep, which calls on_sweep
 *   hth_avg_node_close
 *
 * One thread, that of the node's loop.
 */
#ifndef HTH_BENCHMARKS_AVG_NODE_H
#define HTH_BENCHMARKS_AVG_NODE_H

#include "averaging/peer.h"
#include "core/env.h"
#include "kernels/quant.h"
#include "rpc/rpc.h"

struct hth_avg_node;
struct hth_opendht;

#define HTH_AVG_NODE_SCHEMA 77 /* of the vectors and of the states that donors hand out */

struct hth_avg_node_opts {
    const char *network;
    struct hth_addr addr; /* TCP and UDP */
    const struct hth_addr *join;
    size_t join_count;
    uint32_t threads;
    uint32_t population; /* peers to wait for, this one included */
    struct hth_avg_shape shape;
    uint32_t rank; /* cell of this peer in the shape */
    size_t count;  /* floats */
    enum hth_quant_format format;
    enum hth_avg_mode mode; /* a helper offers no values */
    double bandwidth;       /* as in struct hth_roster_opts */
    uint32_t flags;         /* of the record, besides those of the mode */
    uint64_t seed;          /* of the values: standard normals of (seed, rank) */
    int64_t window_us;
    int64_t silence_us;  /* a peer silent for longer counts as dead; 0: learnt (hth_reducer_opts) */
    struct hth_log *log; /* NULL: errors only */
    void (*on_ready)(void *arg);                                      /* once, all peers are seen */
    void (*on_sweep)(void *arg, const struct hth_avg_result *result); /* after values are set */
    void *arg;
};

struct hth_avg_node {
    struct hth_avg_node_opts opts;
    struct hth_env *env;
    struct hth_opendht *opendht;
    struct hth_dht *dht;
    struct hth_rpc *rpc;
    struct hth_avg_peer avg;
    struct hth_timer *timer;
    struct hth_avg_span span;
    bool ready;
    uint32_t rounds, failed; /* of the sweep: left, and without an average */
    const float *values;     /* offered by the next sweep */
    struct hth_blob *offers; /* memory of the values */
};

/* The first values of peer `rank`. */
void hth_avg_node_values(uint64_t seed, uint32_t rank, float *out, size_t count);

/* Errors: those of the modules. Close the node also after an error. */
enum hth_err hth_avg_node_open(const struct hth_avg_node_opts *opts,
                               struct hth_avg_node *node) HTH_MUST;
enum hth_err hth_avg_node_run(struct hth_avg_node *node) HTH_MUST;
/* Copies other values. Not during a sweep. Errors: E_NO_MEMORY. */
enum hth_err hth_avg_node_set(struct hth_avg_node *node, const float *values) HTH_MUST;
/* Offers the values with weight 1, so many times in turn; the average replaces them. A helper only
 * reduces. on_sweep hears how the last round ended. Errors: those of an offer. */
enum hth_err hth_avg_node_sweep(struct hth_avg_node *node, uint32_t rounds) HTH_MUST;
void hth_avg_node_close(struct hth_avg_node *node);

#endif
