/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opendht.h: `struct hth_dht` made of OpenDHT, through its C API. Target hth_dht_opendht.
 *
 * One object is one Kademlia node on UDP. OpenDHT's two threads per node stay hidden: their
 * callbacks copy bytes into a bounded queue and wake our loop, where everything else happens. Any
 * number of nodes may live in one process; all calls are for the env's loop thread.
 *
 * All of hearth's swarms share one OpenDHT network number, and a swarm's name is part of every key
 * and record (record.h). So a peer that joins with the wrong name still reaches nodes and gets a
 * named error (peers.h) instead of a timeout.
 *
 * The C API chooses the port but not the address to listen on. A node on 127.0.0.1 must not answer
 * the whole network, so the library wraps bind(2) while a node is made; see opendht_bind.c.
 *
 * `nodes_good` in the statistics is a lower bound, because the C API shows no routing table:
 * bootstrap nodes that answered their last ping, or 1 when another node accepted a value recently.
 */
#ifndef HTH_DHT_OPENDHT_H
#define HTH_DHT_OPENDHT_H

#include "core/base.h"
#include "core/dht.h"
#include "core/env.h"

#define HTH_OPENDHT_NETWORK 0x48525448u /* "HTRH" */

struct hth_opendht;

struct hth_opendht_opts {
    struct hth_addr bind;             /* family 0: every address; port 0 picks one */
    const struct hth_addr *bootstrap; /* copied; nodes to join through */
    size_t bootstrap_count;           /* at most HTH_BOOTSTRAP_MAX */
    uint32_t network;                 /* OpenDHT's own number */
    const char *persist_path;         /* file for the routing table; NULL: none */
};
#define HTH_OPENDHT_OPTS_INIT                                                                      \
    {                                                                                              \
        .network = HTH_OPENDHT_NETWORK                                                             \
    }

/* Errors: E_ADDR_IN_USE (the port can't be bound), E_BUDGET (too many bootstrap addresses). */
enum hth_err hth_opendht_new(struct hth_env *env, const struct hth_opendht_opts *opts,
                             struct hth_opendht **out) HTH_MUST;
/* Stops the node and its threads; takes some milliseconds. Remaining puts, gets and watches end
 * without a callback, and their handles become invalid. NULL is fine. */
void hth_opendht_free(struct hth_opendht *o);

/* Borrowed; the interface that all other modules use. */
struct hth_dht *hth_opendht_dht(struct hth_opendht *o);
/* The UDP port in use. */
uint16_t hth_opendht_port(const struct hth_opendht *o);
/* Keys that the node watches; hth_dht_unwatch lowers it with a delay. */
size_t hth_opendht_watching(const struct hth_opendht *o);
/* Adds a node to join through. Errors: E_BUDGET. */
enum hth_err hth_opendht_bootstrap(struct hth_opendht *o, const struct hth_addr *addr) HTH_MUST;

#endif
