/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lists.h: members of a closed run tell each other which invites are revoked (admission/revoke.h),
 * over the connections that they have: a DHT node that keeps lists back keeps nobody from them.
 *
 *   A                                              B
 *   LISTS (signers and sequences of A's lists) --> what does A lack?
 *   takes what is new, and tells its other peers <-- B's newer lists
 *                                                  what does B lack? Then it asks A likewise
 *
 * A newcomer asks the first three peers that it is connected with, then one of all at random in
 * each HTH_LISTS_EVERY_US. A peer that learns of a newer list asks all others at once, at most
 * HTH_LISTS_TOLD_MAX: these lack it, and ask back. So a list crosses a swarm of connected peers in
 * a few round trips, whoever had it first. An answer has at most HTH_REVOKED_PACK_MAX bytes.
 *
 * Loop thread only.
 */
#ifndef HTH_RPC_LISTS_H
#define HTH_RPC_LISTS_H

#include "admission/revoke.h"
#include "rpc/rpc.h"

#define HTH_RPC_LISTS      2 /* the method */
#define HTH_LISTS_FIRST    3
#define HTH_LISTS_EVERY_US (15 * HTH_US_PER_S)
#define HTH_LISTS_TOLD_MAX 64

struct hth_lists;

/* Serves the method until it is freed. on_news: the set has a newer list, from a peer. The set must
 * outlive it. */
struct hth_lists *hth_lists_new(struct hth_env *env, struct hth_rpc *rpc,
                                struct hth_revoked_set *set, hth_fn *on_news, void *arg);
/* Before the endpoint. NULL is fine. */
void hth_lists_free(struct hth_lists *lists);
/* The set has a newer list from another source: tells the connected peers. */
void hth_lists_tell(struct hth_lists *lists);

#endif
