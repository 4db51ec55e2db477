/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h: a peer of the network for the verbs node, serve, train and status: an identity, an
 * environment, a DHT node and an rpc endpoint on one port number. It joins the swarm and ends in
 * order.
 *
 *   hth_peer_open        key, loop, rpc, DHT; prints id, address and the --join for others
 *   ... build the verb's modules on peer->env ...
 *   hth_peer_run         until hth_peer_stop; the first Ctrl-C (or SIGTERM, or SIGHUP when the
 *                        terminal closes) calls on_drain, a second Ctrl-C or SIGTERM exits at once
 *                        with code 130
 *   ... free the modules ...
 *   hth_peer_close
 *
 * One thread. Every function may block for a moment: they run at start and end.
 */
#ifndef HTH_APP_PEER_H
#define HTH_APP_PEER_H

#include "monitor/about.h"
#include "app/admit.h"
#include "app/reach.h"
#include "cli/cli.h"
#include "core/budget.h"
#include "core/dht.h"
#include "core/env.h"
#include "dht/announce.h"
#include "dht/peers.h"
#include "rpc/rpc.h"

struct hth_lists;
struct hth_lock;
struct hth_raise;
struct hth_opendht;
struct hth_page;
struct hth_members;
struct hth_peer_join;

struct hth_peer_opts {
    const char *verb;    /* "node", "serve", ... for the banner */
    struct hth_env *env; /* of an ephemeral peer: the caller's, who frees it later; NULL: its own */
    const struct hth_cli_net *net;
    const struct hth_cli_log *log;
    const struct hth_runfile *run; /* NULL: not known (status, node) */
    const char *network; /* NULL: by --network, the run file or the invite; none: any (status) */
    uint8_t roles;       /* in a closed run: the rights of which this verb needs one; 0: none */
    bool rpc_listens;    /* accept calls; else the endpoint only dials */
    bool dials_only;     /* client mode: announce no address */
    bool may_be_first;   /* finding no other peer of this network is no error (serve, node) */
    bool quiet;          /* no banner (status) */
    bool ephemeral;      /* a key for this process only, any free port (status) */
    bool tries_on;       /* ephemeral, and yet tries to join until it succeeds */
    bool offline;        /* no DHT, no endpoint: only the loop (train --local) */
    /* Judges the state folder once it is locked and before anything is made; prints errors. */
    enum hth_err (*check_dir)(void *arg, const char *dir);
    void *check_arg;
    const struct hth_addr *also; /* further peers to join through (status) */
    size_t also_count;
    int64_t patience_us; /* for beacons, once the DHT answers; 0: a usual time (status) */
};

struct hth_peer {
    struct hth_lock *lock; /* of the state folder: one process at a time */
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_opendht *opendht;
    struct hth_rpc *rpc;
    struct hth_blob *run_text;   /* the run file, for peers that ask for it; NULL: not known */
    struct hth_admit admit;      /* to a closed run */
    struct hth_members *members; /* of it; NULL: the run is open */
    struct hth_lists *lists;     /* of revoked invites, with it */
    struct hth_raise *raise;     /* of those on probation; NULL: of a peer for a moment */
    struct hth_budget bodies;    /* tensors of all connections, both ways */
    struct hth_peer_join *join;
    struct hth_census *census; /* other nodes of this network, or of all; NULL when offline */
    struct hth_page *page;     /* NULL: none was asked for */
    struct hth_addr listen;    /* where we listen, with the real port */
    struct hth_addr announce;  /* where others dial us; family 0: they can't */
    char *dir;
    char *name;    /* of the run, for people and folders; "": not known */
    char *network; /* of the run (core/name.h), for records and HELLO; "": not known */
    /* set by the verb before hth_peer_run */
    hth_fn *on_joined; /* a DHT node answered, or there is none to join */
    hth_fn *on_drain;  /* first Ctrl-C; must lead to hth_peer_stop */
    char *(*status_json)(void *arg);
    char *(*trouble)(void *arg); /* why it can't do its work, for /health; NULL: it can */
    void (*tell)(void *arg, struct hth_about *out); /* adds to what it says of itself */
    void (*refresh)(void *arg); /* sets gauges before they are shown; may be NULL */
    void *arg;
    /* called for each lost connection; may be NULL, and set at any time */
    hth_rpc_peer_lost_fn *on_peer_lost;
    void *on_peer_lost_arg;
    int64_t started_us;       /* wall clock */
    bool stays;               /* on this machine: it takes part in a run without an owner */
    bool joined;              /* a peer answered, or there is none to join */
    enum hth_reach reachable; /* at `announce`, by what other peers say */
    /* private */
    bool draining, elsewhere, lent; /* lent: env is the caller's */
    bool once;                      /* ends when a peer turns it away */
    enum hth_err refused;           /* by another peer of the run, as last printed */
    enum hth_err ousted;            /* its invite holds no more: it drains, and ends with that */
    struct hth_timer *grant_timer;  /* of a closed run */
    bool was_raised;                /* its pass is another one, and not shown yet */
    int exit_code;
};

/* Returns HTH_EXIT_OK, or the code to exit with after printing on stderr what failed and what to
 * do. */
int hth_peer_open(const struct hth_peer_opts *opts, struct hth_peer *peer);
/* Runs the loop; returns the exit code given to hth_peer_stop. */
int hth_peer_run(struct hth_peer *peer);
/* Writes its answer to a peer that asks how it is; *about is empty before. */
void hth_peer_about(const struct hth_peer *peer, struct hth_about *about);
/* Makes hth_peer_run return. */
void hth_peer_stop(struct hth_peer *peer, int exit_code);
/* Ends all jobs. Call it before freeing the verb's modules, to which jobs refer. */
void hth_peer_jobs_end(struct hth_peer *peer);
/* Says goodbye in the DHT, closes sockets, frees memory. */
void hth_peer_close(struct hth_peer *peer);

#endif
