/* SPDX-License-Identifier: Apache-2.0 */
/*
 * invite.h: an invite to a closed run as one line of text, which a person sends to a person.
 *
 *     hearth1.<base64url of the bytes below, without padding>
 *
 *     version 1 (1)   n addresses: n (1), then each: 4 or 6 (1), ip (4 or 16), port (2)
 *     length and name of the run (1 + ...)   owner's public key (32)   hash of the run file (32)
 *     private seed (32)   certificate   m: 0 to 2 (1), then the m certificates of its chain
 *     with 128 added to m: the run's secret (32)   checksum (4)
 *
 * The addresses lie outside every signature, because they go stale: anybody in the run may print
 * the invite anew with others. The checksum finds typing mistakes; it protects nothing. Owner and
 * hash let a peer without the run file judge others by its invite alone.
 *
 * The text is a secret: everybody who has it is let in under its name until it ends or is revoked.
 * Only where the seed is all zeros it is none: its certificate is for a key whose owner has the
 * seed. No function here logs.
 *
 * Pure functions, any thread.
 */
#ifndef HTH_ADMISSION_INVITE_H
#define HTH_ADMISSION_INVITE_H

#include "admission/pass.h"

#define HTH_INVITE_BYTES_MAX                                                                       \
    (2 + HTH_INVITE_ADDRS_MAX * 19 + 1 + HTH_NAME_LEN_MAX + 96 + 3 * HTH_CERT_BYTES_MAX + 33 + 4)
#define HTH_INVITE_TEXT_MAX (8 + (HTH_INVITE_BYTES_MAX + 2) / 3 * 4 + 1)

struct hth_invite {
    struct hth_addr addr[HTH_INVITE_ADDRS_MAX];
    size_t addr_count;
    char run[HTH_NAME_LEN_MAX + 1];
    struct hth_pubkey owner;
    struct hth_hash run_file;
    struct hth_secret seed; /* of the key in the certificate */
    uint8_t cert[HTH_CERT_BYTES_MAX], chain[HTH_CHAIN_BYTES_MAX]; /* pass.h */
    size_t cert_len, chain_len; /* chain_len 0: the owner signed */
    bool is_private;
    struct hth_hash secret; /* of a private run */
};

/* Writes the text, with its end. Errors: those of hth_name_check about the run's name. */
enum hth_err hth_invite_write(const struct hth_invite *invite,
                              char out[HTH_INVITE_TEXT_MAX]) HTH_MUST;
/* Reads a text; blanks and line ends around it and in it are fine. It judges no signature. Errors:
 * E_BAD_MAGIC (no invite), E_VERSION, E_TRUNCATED (cut), E_CORRUPT (mistyped), E_MALFORMED. */
enum hth_err hth_invite_read(const char *text, size_t len, struct hth_invite *out) HTH_MUST;
/* One sentence on an error of hth_invite_read. */
const char *hth_invite_why(enum hth_err err);

/* The certificate in it, which hth_invite_read has checked. */
void hth_invite_cert(const struct hth_invite *invite, struct hth_cert *out);
/* The run that it is for, by its own word: hth_invite_check tells whether the owner signed. */
void hth_invite_run(const struct hth_crypto *crypto, const struct hth_invite *invite,
                    struct hth_closed_run *out);
/* The run's network (core/name.h). Returns out. */
const char *hth_invite_network(const struct hth_crypto *crypto, const struct hth_invite *invite,
                               char out[HTH_NAME_LEN_MAX + 1]);
/* Makes it one of a private run, whose secret follows from the owner's. */
void hth_invite_hide(const struct hth_crypto *crypto, const struct hth_secret *owner,
                     struct hth_invite *invite);
/* Whether it holds now, as far as it shows itself; of a successor's, whether that one may sign now.
 * Errors: those of hth_cert_check and hth_grant_check. */
enum hth_err hth_invite_check(const struct hth_crypto *crypto, const struct hth_invite *invite,
                              int64_t wall_us) HTH_MUST;
/* Whether its certificate is for a key whose secret it does not have. */
bool hth_invite_is_bound(const struct hth_invite *invite);
/* Puts a certificate and its chain, for a key whose secret is elsewhere, in place of its own: it is
 * bound then. They were checked (hth_cert_check). */
void hth_invite_bind(struct hth_invite *invite, const void *certs, size_t len);
/* Signs a pass for the peer with this secret and writes credentials (pass.h); returns their length.
 * A bound invite makes good ones only for the peer that it is bound to. */
size_t hth_invite_creds(const struct hth_crypto *crypto, const struct hth_invite *invite,
                        const struct hth_secret *peer, int64_t wall_us,
                        uint8_t out[HTH_CREDS_BYTES_MAX]);

#endif
