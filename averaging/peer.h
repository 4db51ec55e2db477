/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h: one who averages, whole: a roster, a reducer and a matchmaker on one endpoint, and the
 * averager (averager.h) that uses them. Those of trainers, helpers, benchmarks and simulated peers
 * are all made here.
 *
 *      roster --- somebody came, went or moved ---> averager, then its owner
 *      endpoint --- a connection was lost ---> reducer, roster
 *
 * An offer is one round of Moshpit All-Reduce: it looks for a group in this peer's line of the grid
 * (match.h) and reduces in it (reduce.h). Cells follow from the roster: on a full grid whose peers
 * have equal weights as many offers as it has axes give all of them the mean of all, and a peer
 * that missed a round puts nothing out of order. Round r works along axis r mod d. An offer takes
 * the round after its last one, or that of the median peer of the roster. The shape and the cell
 * are those of the roster when it begins; while nobody was met yet, others begin it anew. An offer
 * always ends, and failures are told by reason and counted; none of them stops anything.
 *
 * What the parts must agree on is said once. The endpoint is the owner's, who makes it first and
 * lets it tell of lost connections:
 *
 *      struct hth_avg_peer p = {.roster = NULL};
 *      rpc.on_peer_lost = hth_avg_peer_lost;
 *      rpc.arg = &p;
 *      hth_rpc_new(env, &rpc, &endpoint);
 *      hth_avg_peer_open(env, endpoint, dht, &opts, &p);
 *      hth_averager_start(&p.averager, on_round, arg);      (a trainer does this by itself)
 *
 * Loop thread. What is passed in is borrowed and must outlive the peer, which may not move.
 */
#ifndef HTH_AVERAGING_PEER_H
#define HTH_AVERAGING_PEER_H

#include "averaging/averager.h"
#include "averaging/match.h"
#include "averaging/reduce.h"
#include "averaging/roster.h"
#include "averaging/shares.h"

struct hth_moshpit_opts {
    uint32_t group_min; /* members that make a round worth it, helpers not counted */
    int64_t window_us;  /* that a round looks for a group after the values are ready */
    int64_t round_us;   /* that a round reduces, at most; large vectors more (hth_reduce_thin_us) */
    double share_max;   /* of a group's vector nobody reduces more than so many times the mean of
                         * those who reduce, whatever bandwidth it claims; at least 1, and of 256 or
                         * more nothing is bound. The same wherever schemas are equal: with another
                         * bound a group would be cut in two ways */
};
#define HTH_MOSHPIT_OPTS_INIT                                                                      \
    {                                                                                              \
        .group_min = 2, .window_us = 3 * HTH_US_PER_S, .round_us = 30 * HTH_US_PER_S,              \
        .share_max = HTH_AVG_SHARE_MAX                                                             \
    }

struct hth_avg_peer_opts {
    const char *network;
    struct hth_addr addr; /* where others reach it; family 0: nowhere, for a client */
    enum hth_avg_mode mode;
    double bandwidth; /* bit/s that it can send; 0: not known, or a client */
    /* Network, address, on_change and the flag of a client or a helper are set from the above and
     * below. */
    struct hth_roster_opts roster;
    struct hth_reducer_opts reducer;
    struct hth_moshpit_opts moshpit;
    hth_fn *on_change; /* as the roster's; may be NULL */
    /* A connection was lost, besides what the peer does about it; may be NULL. */
    void (*on_lost)(void *arg, const struct hth_peer_id *peer);
    void *arg;
};
#define HTH_AVG_PEER_OPTS_INIT                                                                     \
    {                                                                                              \
        .roster = HTH_ROSTER_OPTS_INIT, .reducer = HTH_REDUCER_OPTS_INIT,                          \
        .moshpit = HTH_MOSHPIT_OPTS_INIT                                                           \
    }

/* All zero: closed. The first four are for the owner's calls. */
struct hth_avg_peer {
    struct hth_roster *roster;
    struct hth_reducer *reducer;
    struct hth_match *match;
    struct hth_averager averager;
    hth_fn *on_change;
    void (*on_lost)(void *arg, const struct hth_peer_id *peer);
    void *arg;
};

/* Errors: E_CONFIG, those of hth_roster_new and hth_reducer_new; it is closed then. */
enum hth_err hth_avg_peer_open(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                               const struct hth_avg_peer_opts *opts,
                               struct hth_avg_peer *peer) HTH_MUST;
/* Without a goodbye, and without a result for what was offered. Closed twice is fine. */
void hth_avg_peer_close(struct hth_avg_peer *peer);
/* For the endpoint's on_peer_lost, with the peer as its arg; fine while that is closed. */
void hth_avg_peer_lost(void *peer, const struct hth_peer_id *lost, enum hth_err err);

#endif
