/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h: what node, serve, train and status have in common: an identity, an environment, a DHT
 * node and an rpc endpoint on one port number, the joining of a swarm, and an orderly end.
 *
 *   hth_peer_open        key, loop, DHT, rpc; prints who I am, where I listen, the line for others
 *   ... build the verb's modules on peer->env ...
 *   hth_peer_run         until hth_peer_stop; first Ctrl-C (or SIGTERM) calls on_drain once, the
 *                        second ends at once with code 130
 *   ... free the modules ...
 *   hth_peer_close
 *
 * Everything here may block for a moment: it runs at start and end.
 */
#ifndef HTH_APP_PEER_H
#define HTH_APP_PEER_H

#include "cli/cli.h"
#include "core/budget.h"
#include "core/dht.h"
#include "core/env.h"
#include "dht/announce.h"
#include "dht/peers.h"
#include "rpc/rpc.h"

struct hth_http;
struct hth_lock;
struct hth_opendht;

struct hth_peer_opts {
    const char *verb; /* "node", "serve", ... for the banner */
    const struct hth_cli_net *net;
    const struct hth_cli_log *log;
    const char *network; /* NULL: no name is known, join whatever runs there (status) */
    bool rpc_listens;    /* others call us; else the endpoint only dials ... */
    bool dials_only;   /* ... because others can't: nothing is announced to be dialled (a client) */
    bool may_be_first; /* nobody else of this network yet is fine (serve, node) */
    bool quiet;        /* no banner (status) */
    bool ephemeral;    /* a key for this process only, any free port (status) */
    bool offline;      /* no DHT, no endpoint: only the loop (train --local) */
};

struct hth_peer {
    struct hth_lock *lock; /* of the state folder, which is one process's at a time */
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_opendht *opendht;
    struct hth_rpc *rpc;
    struct hth_budget bodies; /* tensors of all connections, both ways */
    struct hth_join *join;
    struct hth_census *census; /* the other nodes of this network, or of all; NULL when offline */
    struct hth_timer *save_timer;
    struct hth_http *http;
    struct hth_addr listen;   /* where we listen, with the real port */
    struct hth_addr announce; /* what we tell others; family 0: we can't be dialled */
    char *dir;
    char *network;
    /* set by the verb before hth_peer_run */
    hth_fn *on_joined; /* a DHT node answered; at once when there was nobody to join */
    hth_fn *on_drain;  /* first Ctrl-C; must lead to hth_peer_stop */
    char *(*status_json)(void *arg);
    void *arg;
    /* a connection was lost; may be NULL, and set at any time */
    hth_rpc_peer_lost_fn *on_peer_lost;
    void *on_peer_lost_arg;
    /* private */
    bool draining, may_be_first, quiet, only_cached;
    int exit_code;
    char *peers_path;
};

/* Says on stderr what failed and what to do. The code to exit with, HTH_EXIT_OK when it worked. */
int hth_peer_open(const struct hth_peer_opts *opts, struct hth_peer *peer);
/* Runs the loop; returns the exit code given to hth_peer_stop. */
int hth_peer_run(struct hth_peer *peer);
/* Makes hth_peer_run return. */
void hth_peer_stop(struct hth_peer *peer, int exit_code);
/* Before the verb's modules are freed: jobs end, so that none refers to them. */
void hth_peer_jobs_end(struct hth_peer *peer);
/* Goodbye to the DHT, sockets closed, memory freed. */
void hth_peer_close(struct hth_peer *peer);

#endif
