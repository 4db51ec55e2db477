/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.h: the nodes of a network, joining it, and a cache of peers for the next start.
 *
 * The *census* watches the beacons of all nodes (announce.h) and lists those of one network, or of
 * all networks: names, roles, addresses, layers. `hearth status` and the peer cache use it.
 *
 * *Joining* checks that the DHT answers and that it carries our swarm, and names each way to fail:
 *
 *   nothing answers on UDP, and TCP is refused too          E_JOIN_NOTHING_LISTENS
 *   nothing answers on UDP, but TCP at that address does    E_JOIN_UDP_CLOSED
 *   only beacons of other networks                          E_JOIN_WRONG_NETWORK
 *   only beacons from the future or the past                E_JOIN_CLOCK
 *   only beacons of newer versions                          E_JOIN_VERSION
 *
 * It relies on one convention: a node's rpc (TCP) and DHT (UDP) use the same port number, so that
 * people need to exchange only one ADDRESS:PORT.
 *
 * The *peer cache* is a small text file of peers that were alive. The next start tries them beside
 * the bootstrap list. A damaged one is logged, ignored and rewritten.
 *
 * Loop thread only; callbacks never come inside a call and may free the object that calls.
 */
#ifndef HTH_DHT_PEERS_H
#define HTH_DHT_PEERS_H

#include "core/base.h"
#include "core/dht.h"
#include "core/env.h"
#include "dht/announce.h"
#include "dht/listing.h"

/* ---- census -------------------------------------------------------------------------------- */

struct hth_census;

struct hth_census_node {
    struct hth_peer_id id;
    enum hth_role role;
    const char *network; /* the node's name for it, which matches the record's tag; borrowed */
    struct hth_host_info info;
    const struct hth_beacon_layer *layers; /* borrowed until the loop's next turn */
    size_t layer_count;
    int64_t issued_us; /* its wall clock */
};

struct hth_census_stats {
    uint32_t nodes;         /* of this network (or of all), ourselves not counted */
    uint32_t wrong_network; /* beacons seen that were refused, by reason */
    uint32_t clock_ahead;
    uint32_t expired;
    uint32_t version;
    uint32_t damaged;
    char namesake[HTH_NAME_LEN_MAX + 1]; /* another network of our run's name, by its own word */
    /* the latest of them, for people; names both clocks when they differ */
    char refusal[200];
    int64_t expired_issued_us;     /* of the expired one issued last: its time, */
    struct hth_peer_id expired_id; /* its owner, */
    struct hth_addr expired_addr;  /* and the owner's address; family 0: none */
};

/* A network by its beacons, ourselves not counted. */
struct hth_census_network {
    char name[HTH_NAME_LEN_MAX + 1];
    uint32_t nodes; /* of any role */
    uint32_t hosts, trainers;
};

/* network NULL takes the beacons of all networks. Errors: E_CONFIG (network), those of a watch. */
enum hth_err hth_census_new(struct hth_env *env, struct hth_dht *dht, const char *network,
                            struct hth_census **out) HTH_MUST;
void hth_census_free(struct hth_census *census);
/* Logs from here on who joins and who is gone, at level INFO. */
void hth_census_log(struct hth_census *census);
/* In order of arrival: false past the last. */
bool hth_census_at(const struct hth_census *census, uint32_t i, struct hth_census_node *out);
void hth_census_stats(const struct hth_census *census, struct hth_census_stats *out);
/* The networks of the nodes seen, by name; returns how many there are (may exceed max). */
size_t hth_census_networks(const struct hth_census *census, struct hth_census_network *out,
                           size_t max);
/* Starts a lookup (see hth_board_ask). */
enum hth_err hth_census_ask(struct hth_census *census) HTH_MUST;

/* ---- joining ------------------------------------------------------------------------------- */

struct hth_join;

struct hth_join_opts {
    const char *network;
    bool any_network;                 /* `network` is not used: a beacon of any network suffices */
    const struct hth_addr *bootstrap; /* copied; the same nodes as the DHT's */
    size_t bootstrap_count;           /* 0: this is the first node, and joining succeeds at once */
    size_t typed_count;        /* the first so many were typed by a person: texts name these */
    struct hth_census *census; /* of that network, borrowed; NULL: the join opens its own */
    int64_t timeout_us;        /* for the DHT to answer */
    int64_t beacon_us;         /* and then for a beacon of this network */
    int64_t scan_us;           /* and then, if none came, for those of clocks that differ */
};
#define HTH_JOIN_OPTS_INIT                                                                         \
    {                                                                                              \
        .timeout_us = 10 * 1000000, .beacon_us = 3 * 1000000, .scan_us = 6 * 1000000               \
    }

struct hth_join_result {
    enum hth_err err; /* HTH_OK, or one of E_JOIN_* */
    char text[320];   /* what was found, and what to do, for people */
    uint32_t nodes;   /* beacons of this network */
    int64_t took_us;
};
typedef void hth_join_fn(void *arg, const struct hth_join_result *result);

/* done comes once. Errors: E_CONFIG (network), E_BUDGET (HTH_BOOTSTRAP_MAX), those of a watch. */
enum hth_err hth_join_new(struct hth_env *env, struct hth_dht *dht,
                          const struct hth_join_opts *opts, hth_join_fn *done, void *arg,
                          struct hth_join **out) HTH_MUST;
/* NULL is fine. */
void hth_join_free(struct hth_join *join);

/* ---- the peer cache ------------------------------------------------------------------------ */

struct hth_peer_entry {
    struct hth_addr addr;
    struct hth_peer_id id; /* zero when unknown */
    int64_t seen_us;       /* wall clock */
};

/* The file's text:  "hearth-peers 1 COUNT\n", then per peer "ADDRESS ID_IN_HEX SEEN_US\n", then
 * "end CHECKSUM_IN_HEX\n". Errors: E_TOO_LARGE, E_BAD_MAGIC, E_VERSION, E_CORRUPT; *count is 0. */
enum hth_err hth_peercache_read(const uint8_t *data, size_t len, struct hth_peer_entry *out,
                                size_t max, size_t *count) HTH_MUST;
/* Loads a file, newest peers first. A missing one is E_NO_FILE; damaged: as above, logged. */
enum hth_err hth_peercache_load(struct hth_env *env, const char *path, struct hth_peer_entry *out,
                                size_t max, size_t *count) HTH_MUST;
/* Writes at most HTH_PEERCACHE_PEERS_MAX of them. Errors: those of hth_file_write. */
enum hth_err hth_peercache_save(struct hth_env *env, const char *path,
                                const struct hth_peer_entry *peers, size_t count) HTH_MUST;
/* The census's nodes as entries to save; returns how many. */
size_t hth_census_peers(const struct hth_census *census, struct hth_peer_entry *out, size_t max);

#endif
