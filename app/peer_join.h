/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_join.h: how a peer joins its swarm, learns whether others reach it (reach.h), and remembers
 * other peers for the next start.
 *
 *   addresses of --join, then those remembered in the state folder; without --join and --dir, also
 *   those that the run's other processes on this machine remember, and those processes themselves
 *      -> a try (dht/peers.h) -> joined, perhaps as the first of the run
 *                             -> nothing answers: again after 1, 2, 4 ... 30 s (--once: code 4)
 *
 * A file of remembered peers lists this process while it runs, the peers of the census, and the
 * addresses that it joined through. It is written when the peer has joined, soon after, each
 * minute, and at the end. A peer that may be the first of its run and only remembers peers does
 * not wait for them.
 *
 * Loop thread; each function may block for a moment.
 */
#ifndef HTH_APP_PEER_JOIN_H
#define HTH_APP_PEER_JOIN_H

#include "app/peer.h"

struct hth_peer_join;

/* Resolves names and reads files. Needs the peer's env, dir and network. *out is valid after an
 * error, too, which was printed: E_USAGE (an ephemeral peer has no address), those of a name. */
enum hth_err hth_peer_join_new(const struct hth_peer_opts *opts, struct hth_peer *peer,
                               struct hth_peer_join **out) HTH_MUST;
/* The addresses to join through; those of --join first. */
const struct hth_addr *hth_peer_join_addrs(const struct hth_peer_join *join, size_t *count);
/* Whether --join names this port of this machine: it is another process's. */
bool hth_peer_join_names_port(const struct hth_peer_join *join, uint16_t port);
/* Forgets the addresses at which this peer itself listens: it would wait for its own answer. */
void hth_peer_join_drop_self(struct hth_peer_join *join, const struct hth_addr *listen);
/* Opens the peer's census and begins to join; when that is done, calls peer->on_joined, or
 * hth_peer_stop after printing what failed. Errors: those of a watch. */
enum hth_err hth_peer_join_start(struct hth_peer_join *join) HTH_MUST;
/* Writes the file of remembered peers. NULL is fine. */
void hth_peer_join_free(struct hth_peer_join *join);

#endif
