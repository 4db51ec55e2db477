/* SPDX-License-Identifier: Apache-2.0 */
/*
 * revoke.h: the list of a run's revoked invites, signed by its owner.
 *
 *     0  magic "HREV"      6  n (2)             16  run id (32)       48 + 8n  Ed25519 signature
 * (64) 4  version 1, 0      8  sequence (8)      48  serials (8n)
 *
 * Serials rise. The list with the highest sequence holds, alone: it has all serials of the ones
 * before. Anybody may pass it on, because the owner's signature lies in it.
 *
 * Pure functions, any thread. Bytes may come from strangers.
 */
#ifndef HTH_ADMISSION_REVOKE_H
#define HTH_ADMISSION_REVOKE_H

#include "admission/pass.h"

#define HTH_REVOKED_BYTES_MAX (48 + 8 * HTH_REVOKED_MAX + HTH_SIG_LEN)

struct hth_revoked {
    uint64_t seq; /* 0: none was ever signed */
    uint16_t count;
    uint64_t serial[HTH_REVOKED_MAX];
};

/* Puts a serial into its place. Errors: E_DUPLICATE, E_TOO_LARGE (the list is full). */
enum hth_err hth_revoked_add(struct hth_revoked *list, uint64_t serial) HTH_MUST;
/* Signs; returns the length. */
size_t hth_revoked_write(const struct hth_crypto *crypto, const struct hth_revoked *list,
                         const struct hth_hash *run, const struct hth_secret *owner,
                         uint8_t out[HTH_REVOKED_BYTES_MAX]);
/* Reads a list of this run. Errors: E_TRUNCATED, E_MALFORMED (more follows), E_BAD_MAGIC,
 * E_VERSION, E_RANGE (order or number), E_PASS_OTHER_RUN, E_PASS_FORGED; *out is empty then. */
enum hth_err hth_revoked_read(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                              const void *data, size_t len, struct hth_revoked *out) HTH_MUST;

#endif
