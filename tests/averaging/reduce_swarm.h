/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_swarm.h: what the tests of the reduction share: members of one group, each a node of a
 * simulated world (or an environment of net/) with an endpoint and a reducer; their vectors; and
 * the weighted mean in float64 to compare with.
 */
#ifndef HTH_TESTS_AVERAGING_REDUCE_SWARM_H
#define HTH_TESTS_AVERAGING_REDUCE_SWARM_H

#include "averaging/reduce.h"
#include "sim/world.h"
#include "support/test.h"

#define PEERS_MAX 32

struct reduce_swarm;

/* A lying reducer answers each part so, in place of the mean. */
struct reduce_lie {
    float value;                  /* of all floats */
    enum hth_quant_format format; /* of the answer: fp32 or bf16 */
    uint8_t missing;              /* bits: who is said not to be in it */
    bool brief, garbage, refuses; /* a float less; no message; or no answer at all */
};

struct reduce_peer {
    struct reduce_swarm *swarm;
    uint32_t index;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_reducer *reducer;
    struct hth_reduce_round *round;
    struct hth_blob *values; /* NULL: helper */
    struct hth_blob *average;
    struct hth_reduce_result result;
    struct hth_reduce_fate fates[PEERS_MAX];
    uint32_t results;
    struct reduce_lie lie;
};

struct reduce_swarm {
    struct hth_world *world;
    struct hth_world_opts world_opts;
    struct hth_reducer_opts reducer_opts;
    struct hth_rpc_opts rpc_opts;
    struct reduce_peer peer[PEERS_MAX];
    struct hth_reduce_member member[PEERS_MAX];
    uint32_t n;
    uint64_t count;
    enum hth_quant_format format; /* in which values are sent, where there are no spans: */
    const struct hth_avg_span *spans;
    uint32_t span_count;
    int64_t timeout_us;
    bool same, fixed; /* of the rounds' options */
    double share_max; /* likewise */
    uint8_t group;    /* of the next round */
    uint32_t absent;  /* bits: members that the next group is without */
};

/* Options with which a swarm begins: 1 ms links, no chaos. */
void swarm_defaults(struct reduce_swarm *s);
/* n nodes, each with N(index, 1) values; weights index + 1; bandwidth 1e9 for all. */
void swarm_new(struct reduce_swarm *s, uint64_t seed, uint32_t n, uint64_t count);
void swarm_free(struct reduce_swarm *s);
/* After `member` was edited: bandwidth 0 drops the address, weight 0 without it the values. */
void swarm_roles(struct reduce_swarm *s);
void swarm_fill(struct reduce_peer *p, uint64_t seed);
/* Answers with `lie` whatever is sent to it, and begins no round. */
void peer_lies(struct reduce_peer *p, const struct reduce_lie *lie);
/* Begins a round at one peer, at all; runs until all that are up have a result. */
void peer_start(struct reduce_peer *p);
void swarm_start(struct reduce_swarm *s);
void swarm_run(struct reduce_swarm *s);
/* The last two. */
void swarm_round(struct reduce_swarm *s);
bool swarm_is_done(void *swarm);
/* Runs for so long, or fails the test when all ended before. */
void swarm_for(struct reduce_swarm *s, int64_t us);
/* Forgets the last round's results; the next start is of a new group. */
void swarm_next(struct reduce_swarm *s);

/* One that took part has all of everybody's values; has lost nobody but this one. */
void check_calm(const struct reduce_peer *p);
void check_lost(const struct reduce_peer *p, uint32_t victim);
/* All averages have the same bits. */
void check_same(const struct reduce_swarm *s);

/* Weighted mean of the peers with their bit set in `who`, float i, in float64. */
double mean_of(const struct reduce_swarm *s, uint32_t who, uint64_t i);
/* A peer's average against that mean over [first, end). Largest deviation. */
double deviation(const struct reduce_peer *p, uint32_t who, uint64_t first, uint64_t end);
/* ||x - mean|| / ||mean - own||, over everything. */
double relative(const struct reduce_peer *p, uint32_t who);
float *values_of(const struct reduce_peer *p);
const float *average_of(const struct reduce_peer *p);

#endif
