/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h: one who averages, whole: a roster, a reducer and a moshpit on one endpoint, wired to each
 * other. Those of trainers, helpers, benchmarks and simulated peers are all made here.
 *
 *      roster --- somebody came, went or moved ---> moshpit, then its owner
 *      endpoint --- a connection was lost ---> reducer, moshpit
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
#include "averaging/moshpit.h"
#include "averaging/reduce.h"
#include "averaging/roster.h"

struct hth_avg_peer_opts {
    const char *network;
    struct hth_addr addr; /* where others reach it; family 0: nowhere, for a client */
    enum hth_avg_mode mode;
    double bandwidth; /* bit/s that it can send; 0: not known, or a client */
    /* Network, addresses, bandwidths, on_change, the moshpit's mode and the flag of a client or a
     * helper are set from the above and below. */
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

/* All zero: closed. The first three are for the owner's calls. */
struct hth_avg_peer {
    struct hth_roster *roster;
    struct hth_reducer *reducer;
    struct hth_averager averager;
    hth_fn *on_change;
    void (*on_lost)(void *arg, const struct hth_peer_id *peer);
    void *arg;
};

/* Errors: those of hth_roster_new, hth_reducer_new and hth_moshpit_new; it is closed then. */
enum hth_err hth_avg_peer_open(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                               const struct hth_avg_peer_opts *opts,
                               struct hth_avg_peer *peer) HTH_MUST;
/* Without a goodbye, and without a result for what was offered. Closed twice is fine. */
void hth_avg_peer_close(struct hth_avg_peer *peer);
/* For the endpoint's on_peer_lost, with the peer as its arg; fine while that is closed. */
void hth_avg_peer_lost(void *peer, const struct hth_peer_id *lost, enum hth_err err);

#endif
