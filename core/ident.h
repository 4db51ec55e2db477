/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ident.h: a peer's identity and address, as plain values.
 *
 * A peer's id is the SHA-256 of its Ed25519 public key. An address is numeric (names are resolved
 * in net/ before they get here), IPv4 or IPv6 with a port; text forms are "1.2.3.4:5" and
 * "[::1]:5". In the simulator a node's address is 10.x.y.z made of its number.
 */
#ifndef HTH_CORE_IDENT_H
#define HTH_CORE_IDENT_H

#include "core/base.h"

#define HTH_HASH_LEN       32
#define HTH_PUBKEY_LEN     32
#define HTH_SIG_LEN        64
#define HTH_ADDR_TEXT_MAX  56
#define HTH_PEER_SHORT_LEN 9

struct hth_hash {
    uint8_t b[HTH_HASH_LEN];
};

struct hth_pubkey {
    uint8_t b[HTH_PUBKEY_LEN];
};

struct hth_peer_id {
    uint8_t b[HTH_HASH_LEN];
};

struct hth_addr {
    uint8_t family; /* 4 or 6; 0 = none */
    uint8_t ip[16]; /* the first 4 bytes for IPv4, the rest zero */
    uint16_t port;
};

bool hth_peer_id_eq(const struct hth_peer_id *a, const struct hth_peer_id *b);
int hth_peer_id_cmp(const struct hth_peer_id *a, const struct hth_peer_id *b);
bool hth_peer_id_is_zero(const struct hth_peer_id *id);
/* The first 8 hex digits, for people. out has HTH_PEER_SHORT_LEN bytes. */
const char *hth_peer_id_short(const struct hth_peer_id *id, char out[HTH_PEER_SHORT_LEN]);

bool hth_addr_eq(const struct hth_addr *a, const struct hth_addr *b);
/* How far an address leads: nowhere (none, or every address: 0.0.0.0, ::), to this machine
 * (127.0.0.0/8, ::1), to this link (169.254.0.0/16, fe80::/10), within a private network (RFC 1918,
 * RFC 6598, fc00::/7), or everywhere. */
enum hth_scope {
    HTH_SCOPE_NONE,
    HTH_SCOPE_MACHINE,
    HTH_SCOPE_LINK,
    HTH_SCOPE_PRIVATE,
    HTH_SCOPE_PUBLIC,
};
enum hth_scope hth_addr_scope(const struct hth_addr *addr);
/* Whether the addresses are equal but for the port. */
bool hth_addr_same_ip(const struct hth_addr *a, const struct hth_addr *b);
/* Errors: E_MALFORMED (not a numeric address with a port 0..65535). */
enum hth_err hth_addr_parse(const char *text, struct hth_addr *out) HTH_MUST;
const char *hth_addr_text(const struct hth_addr *addr, char out[HTH_ADDR_TEXT_MAX]);

#endif
