/* SPDX-License-Identifier: Apache-2.0 */
/*
 * places.h: keeps the places of one host for its whole life. A *place* is one expert of one layer;
 * a host of `want` places serves that many experts, wherever in the grids they are free.
 *
 *        +------------------- U(30, 90) s, or a place fell free -------------------+
 *        v                                                                         |
 *      look: leave places that another host keeps -> take free ones -> load -> announce
 *        ^                                                                         |
 *        +------ U(1, 3) flights of a record, then 3 and 9 times that long --------+
 *
 * Taking, in this order: places that this host had within the last minute, though another host took
 * them over meanwhile (its own records outlive it so long, or the file is so young); places with a
 * checkpoint in its folder; free ones. Places
 * are spread evenly over the layers; a shortfall in one goes to any other. A host for which none is
 * free is a *spare*: it waits and takes the first that falls free.
 *
 * Two hosts on one place. Records cross, so it happens, and both come to the same verdict:
 *
 *   one holds it for SETTLED_US, the other for less    the settled one keeps it
 *   neither is settled, steps differ clearly           the one with more steps
 *   neither is settled, one had it before it started   that one
 *   else                                               the larger hash(uid, peer id)
 *
 * The other one leaves: out of its record at once, out of its server when trainers know, its
 * checkpoint written. Pinned experts (those that its owner named) never move: they are wanted
 * replicas.
 *
 * Before another host's claim decides anything that host must confirm it (claims.h). A host that
 * lies about steps takes no place from a settled one; one that lies about its age as well takes
 * those where its hash is larger.
 *
 * Loop thread. The caller owns server, announcer and endpoint, and passes on the server's
 * on_expert; on_change may come inside hth_places_loaded.
 */
#ifndef HTH_EXPERTS_PLACES_H
#define HTH_EXPERTS_PLACES_H

#include "core/dht.h"
#include "dht/announce.h"
#include "experts/server.h"

/* A record reaches its watchers after 1 + log2(N) / 2 round trips (OpenDHT, measured on 64 nodes):
 * 0.4 s for 64 nodes that are 50 ms apart. */
#define HTH_PLACES_FLIGHT_US (500 * HTH_US_PER_MS)

struct hth_places;

struct hth_places_opts {
    const char *network;
    const struct hth_grid *grids; /* copied */
    uint32_t layers;
    struct hth_layer_shape shape;
    uint32_t want; /* places besides pinned experts */
    struct hth_rpc *rpc;
    struct hth_server *server;
    struct hth_announcer *announcer;
    /* Fills in the options of an expert that this host takes. */
    void (*expert)(void *arg, const struct hth_uid *uid, struct hth_expert_opts *out);
    hth_fn *on_change; /* hth_places_stats gives other numbers; may be NULL */
    void *arg;
};

/* Errors: those of hth_directory_new and hth_directory_open_layer. */
enum hth_err hth_places_new(struct hth_env *env, struct hth_dht *dht,
                            const struct hth_places_opts *opts, struct hth_places **out) HTH_MUST;
/* Leaves records and experts as they are. NULL is fine. */
void hth_places_free(struct hth_places *places);

/* Hosts this expert for good. Errors: E_NOT_FOUND (no such layer), those of hth_grid_find and
 * hth_server_add. */
enum hth_err hth_places_pin(struct hth_places *places, const struct hth_uid *uid) HTH_MUST;
/* This host has a checkpoint of that expert; `recent`: written within the last minute. Unknown
 * experts are ignored. */
void hth_places_had(struct hth_places *places, const struct hth_uid *uid, bool recent);
/* The DHT answers: the first look comes after U(1, 3) flights. */
void hth_places_start(struct hth_places *places);
/* No more looks: the host drains. */
void hth_places_stop(struct hth_places *places);
/* Pass the server's on_expert on. */
void hth_places_loaded(struct hth_places *places, const struct hth_uid *uid, enum hth_err err,
                       bool restored);

struct hth_places_stats {
    uint32_t want; /* pinned ones too */
    uint32_t served, loading, failed;
    uint32_t restored; /* from checkpoints, since the start */
    uint32_t moved;    /* left to other hosts, since the start */
    bool looked;       /* places were chosen: what is missing is not free */
};
void hth_places_stats(const struct hth_places *places, struct hth_places_stats *out);

#endif
