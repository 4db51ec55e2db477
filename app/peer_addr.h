/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer_addr.h: the addresses of a peer: where it listens, and which one it announces.
 *
 * Main thread. The functions ask the kernel and send nothing.
 */
#ifndef HTH_APP_PEER_ADDR_H
#define HTH_APP_PEER_ADDR_H

#include "core/ident.h"

/* Every address of both families, or of IPv4 where the kernel has no IPv6. */
void hth_peer_addr_any(uint16_t port, struct hth_addr *out);
/* Whether UDP is free at this address and port, for [::] in both families. */
bool hth_peer_addr_udp_free(const struct hth_addr *addr);
/* Whether the address, without its port, is one of this machine. */
bool hth_peer_addr_is_own(const struct hth_addr *addr);
/* The address to announce for a peer that listens at `listen`: that one, unless it is a wildcard;
 * else one of this machine of a family that is listened on: the one from which it reaches `join`
 * (family 0: none), or the internet, or that of an interface. Loopback only if there is no
 * other. */
void hth_peer_addr_announce(const struct hth_addr *listen, const struct hth_addr *join,
                            struct hth_addr *out);
/* A remark, after a blank, on an address that does not lead everywhere; else "". */
const char *hth_peer_addr_remark(const struct hth_addr *addr);

#endif
