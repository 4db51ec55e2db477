/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closed.h: an endpoint of a closed run (admission/pass.h): whose invite asks, and connections that
 * end with their invites.
 *
 * The endpoint judges the grants of its connections every 10 s, and ends those that hold no more
 * with the gate's error: E_PASS_EXPIRED, E_PASS_REVOKED, E_PASS_EARLY.
 *
 * Handlers and callers that see whether a peer's work is good say so: the witness of the
 * admission counts it for those on probation (admission/witness.h).
 *
 * Loop thread only.
 */
#ifndef HTH_RPC_CLOSED_H
#define HTH_RPC_CLOSED_H

#include "rpc/rpc.h"

/* The caller's invite (hth_grant), which its keys share, its serial, for people, and its class
 * (enum hth_member_class), when the request arrived. In an open run 0, 0 and HTH_MEMBER: each key
 * counts for itself. */
uint64_t hth_rpc_invite(const struct hth_rpc_request *req);
uint64_t hth_rpc_serial(const struct hth_rpc_request *req);
uint8_t hth_rpc_class(const struct hth_rpc_request *req);
/* Judges at once: the gate has changed. */
void hth_rpc_judge_again(struct hth_rpc *rpc);
/* Our own credentials have changed: says goodbye on all connections, so that what is under way
 * ends there, and the next ones show them. */
void hth_rpc_show_again(struct hth_rpc *rpc);
/* A connected peer did work that can be judged: a host's answer, a trainer's gradient. */
void hth_rpc_saw_work(struct hth_rpc *rpc, const struct hth_peer_id *peer, bool good);

#endif
