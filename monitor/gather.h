/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather.h: collects what `hearth status` shows: a run's peers, and what each of them answers.
 *
 *   a DHT node answers -> beacons -> one run -> each of its peers: ABOUT (about.h), and of hosts
 *                                    INFO (experts/server.h), at the same time
 *                                       -> the peers that they name are asked, too
 *
 * `recall` asks trainers for what they remember, too (recall.h). hth_gather_again asks all anew
 * over the same connections, as a monitor does every few seconds.
 *
 * Beacons say where to begin, and mean the run's layers. The rest comes from the peers themselves,
 * because records outlive their host by a minute, a host behind a router publishes them all the
 * same, and a DHT hands them out late while some of its nodes are dead. A peer that does not answer
 * is *silent*. Its experts are not served, nor are those of a host that others can't dial, as it
 * says itself.
 *
 * It ends when each peer has answered or refused and nothing new came for a moment; wait_us after
 * the first DHT node answered at the latest. Before that answer it waits for ever: joining
 * (dht/peers.h) says why none comes.
 *
 * Anybody may name a third party's address. One that no connection is open to is dialled three
 * times in a minute at most, whoever is said to be there; else the peer is silent.
 *
 * Without a name it takes the beacons of all runs, and goes on with a run while it is the only one.
 * Of layers with one name the one of most hosts is shown (status_layers.h).
 *
 * Loop thread only. Runs on any env: its tests are simulated.
 */
#ifndef HTH_MONITOR_GATHER_H
#define HTH_MONITOR_GATHER_H

#include "monitor/about.h"
#include "monitor/recall.h"
#include "monitor/status_layers.h"
#include "core/dht.h"
#include "core/env.h"
#include "dht/peers.h"

struct hth_admission;
struct hth_expert_client;
struct hth_map;
struct hth_members;
struct hth_roster;
struct hth_rpc;

/* Peers of a run that are listed; later ones are left out. */
#define HTH_GATHER_PEERS_MAX 1024
/* Experts that are counted, of all hosts; later ones are left out. */
#define HTH_GATHER_EXPERTS_MAX (1u << 20)
/* Addresses that are dialled in a minute; peers at others are silent. */
#define HTH_GATHER_DIALLED_MAX (4 * HTH_GATHER_PEERS_MAX)

/* A peer on this machine: dialled at `addr`, whatever it announces. */
struct hth_gather_own {
    struct hth_peer_id id;
    struct hth_addr addr;
};

struct hth_gather_opts {
    struct hth_census *census;
    const char *network;                   /* NULL: the only one that beacons name */
    const char *name;                      /* of the run; NULL: the one in the network */
    const struct hth_beacon_layer *layers; /* of a run file; NULL: those of the beacons */
    size_t layer_count;
    const struct hth_gather_own *own; /* borrowed */
    size_t own_count;
    const struct hth_admission *admission; /* as in hth_rpc_opts */
    const struct hth_members *members;     /* of a closed run; NULL: every key has the same pass */
    int64_t wait_us;
    bool recall;  /* ask trainers what they remember, too */
    hth_fn *done; /* once for each asking; may not free the gathering, nor ask again */
    void *arg;
};

/* An expert that a host lists. */
struct hth_gather_expert {
    uint32_t layer, index;
};

enum hth_gather_state { HTH_NOT_ASKED, HTH_ASKED, HTH_ANSWERED, HTH_SILENT };

struct hth_gather_peer {
    struct hth_peer_id id;
    uint8_t role;
    struct hth_addr addr; /* announced; family 0: it only dials, so nobody can ask it */
    bool own;
    enum hth_err turned_away; /* its run is closed, and our pass does not hold there; HTH_OK: no */
    int64_t seen_us;  /* wall clock of its newest record */
    enum hth_gather_state state;
    struct hth_about *about;          /* NULL: none came; earlier versions answer without it */
    struct hth_recall_told *recall;   /* NULL: none came */
    uint32_t experts;                 /* that it lists, as it says */
    struct hth_gather_expert *expert; /* those of the shown layers, in order, each once */
    uint32_t expert_count, expert_room;
    bool listed, asked_info; /* all of them; a page is under way */
    bool asked_recall;
    uint32_t next_expert, layers_seen;
    struct hth_gather *of;
    struct hth_rpc_call *call, *recall_call;
};

struct hth_gather { /* read-only for others, and for printing after `done` */
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_gather_opts opts;
    char network[HTH_NAME_LEN_MAX + 1]; /* the run that is shown; empty: none is chosen */
    struct hth_roster *roster;          /* notes of the trainers; NULL: none is chosen */
    struct hth_beacon_layer layer[HTH_DIR_LAYERS_MAX];
    size_t layer_count;
    struct hth_status_layers claims; /* not with a run file's layers */
    uint32_t layers_version;         /* counts the changes of `layer` */
    struct hth_gather_peer *peer[HTH_GATHER_PEERS_MAX];
    size_t peer_count;
    struct hth_map *by_id;
    struct hth_map *dialled; /* addresses of the last minute, by their text */
    uint32_t expert_count;   /* of all peers */
    struct hth_rpc *rpc;
    struct hth_expert_client *client;
    uint32_t waits; /* for so many answers */
    struct hth_timer *timer;
    int64_t answered_us; /* when a DHT node answered; 0: not yet */
    int64_t lookup_us, changed_us;
    uint32_t recall_after_s; /* trainers tell points after this Unix second only */
    bool complete;           /* it did not end for lack of time */
    enum hth_err err;
};

/* Errors: those of hth_rpc_new. */
enum hth_err hth_gather_new(struct hth_env *env, struct hth_dht *dht,
                            const struct hth_gather_opts *opts, struct hth_gather **out) HTH_MUST;
/* After `done`: forgets what was answered, and asks all again. Points that trainers recall are
 * those after this Unix second. Errors: those of hth_rpc_new. */
enum hth_err hth_gather_again(struct hth_gather *g, uint32_t recall_after_s) HTH_MUST;
/* NULL is fine. */
void hth_gather_free(struct hth_gather *g);

/* The run's name, for people. Returns out. */
const char *hth_gather_name(const struct hth_gather *g, char out[HTH_NAME_LEN_MAX + 1]);
/* The networks seen with a host or a trainer; if there is none, those with plain nodes only. Free
 * the array, whose first *count elements are valid, with hth_free. */
struct hth_census_network *hth_gather_runs(const struct hth_gather *g, size_t *count);
/* A peer's beacon; false: the DHT has not handed it out. */
bool hth_gather_beacon(const struct hth_gather *g, const struct hth_peer_id *id,
                       struct hth_census_node *out);
/* Finds the next layer, from *i and *l on, that differs from the shown one of the same name, which
 * is *number. */
bool hth_gather_other(const struct hth_gather *g, uint32_t *i, size_t *l,
                      struct hth_census_node *node, const struct hth_beacon_layer **layer,
                      uint32_t *number);
/* Whether others get at the experts of this peer. */
bool hth_gather_serves(const struct hth_gather_peer *p);
/* The experts of a layer that a host serves, and those that two or more serve. After `done`. */
void hth_gather_count(const struct hth_gather *g, uint32_t layer, uint32_t *served,
                      uint32_t *twice);

#endif
