/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backup.h: a copy of a secret key that only a passphrase opens.
 *
 * Two lines of text, so that a person can recognise it and print it:
 *
 *     hearth-backup-v1
 *     <hex digits: salt (16), nonce (12), public key (32), encrypted secret (32), tag (16)>
 *
 * The key of AES-256-GCM is made of the passphrase and the salt by scrypt with N = 2^17, r = 8,
 * p = 1: a guess costs 128 MiB and a third of a second. The public key is readable, and is under
 * the tag.
 *
 * Any thread; both functions block for that third of a second.
 */
#ifndef HTH_NET_BACKUP_H
#define HTH_NET_BACKUP_H

#include "core/crypto.h"

#define HTH_BACKUP_TEXT_MAX 256

/* Writes the text, with its end. Errors: E_IO (no random bytes), E_NO_MEMORY. */
enum hth_err hth_backup_write(const struct hth_secret *secret, const void *passphrase, size_t len,
                              char out[HTH_BACKUP_TEXT_MAX]) HTH_MUST;
/* The public key, which is not proved. Errors: E_BAD_MAGIC (no such text), E_VERSION, E_TRUNCATED,
 * E_MALFORMED. */
enum hth_err hth_backup_peek(const void *text, size_t len, struct hth_pubkey *out) HTH_MUST;
/* Errors: those too, E_BAD_KEY (another passphrase, or a damaged text), E_NO_MEMORY; *out is zero
 * then. */
enum hth_err hth_backup_read(const void *text, size_t len, const void *passphrase, size_t pass_len,
                             struct hth_secret *out) HTH_MUST;

#endif
