/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dialback.h: "can you dial me at this address?", asked of a peer, since nobody can see a router in
 * front of oneself.
 *
 *   A                                          B
 *   DIALBACK (address) ---- connection 1 ----> may it be dialled?
 *   a key is proved    <--- connection 2 ----- dials it, wants A's key, hangs up
 *   reached or not, and  <-- connection 1 ----
 *   the address that connection 1 comes from
 *
 * B never dials where a stranger points. It dials
 * - the IP address from which connection 1 comes, which its TCP and TLS handshakes have proved; or
 * - an address that A's own signed record announces (the caller's `announced`): all peers of the
 *   run dial that one anyway;
 * and no address that leads less far than the one A comes from (core/ident.h: hth_addr_scope): a
 * stranger from the internet can't make B dial into B's own network. Those are "not reached"
 * without a dial.
 *
 * One request costs the address at most a few SYNs, or one TCP handshake and one TLS hello of some
 * 500 bytes, a few times what A sent. So there is little to gain, and it is bounded: one dial in
 * HTH_DIALBACK_EACH_US for an origin and for a target (an IPv4 address, an IPv6 /64), and
 * HTH_DIALBACK_DIALS_MAX in that time for all. The reply says whether A's own key answered and no
 * more, so it tells A nothing about other machines.
 *
 * It proves TCP only. UDP can't be asked for: A's own packets to B have opened the way back.
 *
 * Loop thread only.
 */
#ifndef HTH_RPC_DIALBACK_H
#define HTH_RPC_DIALBACK_H

#include "rpc/rpc.h"

#define HTH_RPC_DIALBACK            1
#define HTH_DIALBACK_EACH_US        (20 * HTH_US_PER_S)
#define HTH_DIALBACK_DIALS_MAX      32
#define HTH_DIALBACK_MESSAGE_MAX    64
#define HTH_DIALBACK_ASK_TIMEOUT_US (15 * HTH_US_PER_S)

/* ---- answering ----------------------------------------------------------------------------- */

struct hth_dialback;

/* Whether this peer has announced exactly this address in a record that it signed. */
typedef bool hth_dialback_announced_fn(void *arg, const struct hth_peer_id *peer,
                                       const struct hth_addr *addr);

/* Serves the method until it is freed. Refusals: E_MALFORMED, E_RANGE (the address); E_AGAIN (the
 * address is neither the caller's nor announced, as far as this peer knows yet); E_BUSY (this
 * origin, or all, asked too often). `announced` may be NULL: nothing is. */
struct hth_dialback *hth_dialback_new(struct hth_env *env, struct hth_rpc *rpc,
                                      hth_dialback_announced_fn *announced, void *arg);
/* Before the endpoint. NULL is fine. */
void hth_dialback_free(struct hth_dialback *d);

/* ---- asking -------------------------------------------------------------------------------- */

struct hth_dialback_reply {
    bool reached;
    struct hth_addr from; /* where this peer's connection comes from, port 0; family 0: not said */
};

/* Asks whether this peer is reached at `addr`: hth_rpc_call's contract. The callback opens the
 * reply with hth_dialback_reply_open. */
enum hth_err hth_dialback_ask(struct hth_rpc *rpc, const struct hth_rpc_target *target,
                              const struct hth_addr *addr, hth_rpc_done_fn *done, void *arg,
                              struct hth_rpc_call **call) HTH_MUST;

/* ---- messages ------------------------------------------------------------------------------ */

/* Errors: E_TOO_LARGE, E_MALFORMED, E_RANGE (no port, or an address of no machine). */
enum hth_err hth_dialback_ask_open(const uint8_t *payload, size_t len,
                                   struct hth_addr *out) HTH_MUST;
enum hth_err hth_dialback_reply_open(const uint8_t *payload, size_t len,
                                     struct hth_dialback_reply *out) HTH_MUST;
/* Return the length. */
size_t hth_dialback_ask_pack(const struct hth_addr *addr, uint8_t out[HTH_DIALBACK_MESSAGE_MAX]);
size_t hth_dialback_reply_pack(const struct hth_dialback_reply *reply,
                               uint8_t out[HTH_DIALBACK_MESSAGE_MAX]);

#endif
