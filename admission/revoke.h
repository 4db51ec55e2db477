/* SPDX-License-Identifier: Apache-2.0 */
/*
 * revoke.h: which invites and peers of a run are revoked: signed lists, and the set of those that
 * hold.
 *
 *     0  magic "HREV"      6  n (2)             16  run id (32)       48 + 8n  signature (64)
 *     4  version 1, 0      8  sequence (8)      48  entries (8n)     112 + 8n  chain (pass.h)
 *
 * An entry is the serial of a certificate or the first 8 bytes of a peer's id, little-endian; they
 * rise, and none is 0. The sequence is the wall clock in microseconds when it was signed. Of each
 * signer the list with the highest sequence holds, alone: it has all entries of the ones before
 * whose invites have not ended. Anybody may pass a list on, because what judges it lies in it.
 *
 * A list of the owner counts for all; so does one of its successor, while that one counts. A
 * deputy's counts for the peers that the deputy invited. A signer is known by its key, not by the
 * serial of its certificate: whoever signs certificates can choose that. Of a key that is a
 * deputy's and a successor's, two lists hold. The owner's newest list is also its last
 * sign of life, from which a successor's time of silence runs.
 *
 * One thread for a set; the rest are pure functions. Bytes may come from strangers.
 */
#ifndef HTH_ADMISSION_REVOKE_H
#define HTH_ADMISSION_REVOKE_H

#include "admission/pass.h"

#define HTH_REVOKED_BYTES_MAX (48 + 8 * HTH_REVOKED_MAX + HTH_SIG_LEN + HTH_CHAIN_BYTES_MAX)

struct hth_revoked {
    uint64_t seq; /* 0: none was ever signed */
    uint16_t count;
    uint64_t entry[HTH_REVOKED_MAX];
    struct hth_signer by;
};

/* Puts an entry into its place. Errors: E_DUPLICATE, E_TOO_LARGE (the list is full). */
enum hth_err hth_revoked_add(struct hth_revoked *list, uint64_t entry) HTH_MUST;
/* Whether of lists of these two only the newer one holds. */
bool hth_revoked_same(const struct hth_signer *a, const struct hth_signer *b);
/* Signs; chain: of the signer, len 0 for the owner. Returns the length. */
size_t hth_revoked_write(const struct hth_crypto *crypto, const struct hth_revoked *list,
                         const struct hth_hash *run, const struct hth_secret *signer,
                         const void *chain, size_t chain_len, uint8_t out[HTH_REVOKED_BYTES_MAX]);
/* Reads a list of this run. Errors: E_TRUNCATED, E_BAD_MAGIC, E_VERSION, E_RANGE (order or number),
 * E_PASS_OTHER_RUN, E_PASS_FORGED, those of hth_chain_check; *out is empty then. */
enum hth_err hth_revoked_read(const struct hth_crypto *crypto, const struct hth_closed_run *run,
                              const void *data, size_t len, struct hth_revoked *out) HTH_MUST;

/* ---- the lists that hold ------------------------------------------------------------------- */

/* A peer's word on the lists it has: for each its signer, the first 8 bytes of its key with the
 * lowest bit 1 for a deputy and else 0, and the sequence, 8 bytes each. */
#define HTH_REVOKED_KNOWN_MAX (16 * HTH_REVOKED_LISTS)
/* Lists, each behind its length (2). */
#define HTH_REVOKED_PACK_MAX (HTH_REVOKED_LISTS * (2 + HTH_REVOKED_BYTES_MAX))

/* The run's owner and id are copied; the crypto table must outlive it. */
struct hth_revoked_set *hth_revoked_set_new(const struct hth_crypto *crypto,
                                            const struct hth_closed_run *run);
/* NULL is fine. */
void hth_revoked_set_free(struct hth_revoked_set *set);
/* Errors: E_STALE (an equal or a newer one is there), E_TOO_LARGE (there is no place;
 * the owner's list always has one), those of hth_revoked_read. */
enum hth_err hth_revoked_set_take(struct hth_revoked_set *set, const void *data,
                                  size_t len) HTH_MUST;
/* The place of these bytes, a list that holds: no signature needs to be looked at. Else the count.
 * A newer list of a signer has the place of the older one. */
size_t hth_revoked_set_find(const struct hth_revoked_set *set, const void *data, size_t len);
size_t hth_revoked_set_count(const struct hth_revoked_set *set);
const uint8_t *hth_revoked_set_at(const struct hth_revoked_set *set, size_t i, size_t *len);
/* Writes the entries of all lists, each serial or id once; returns how many, at most max. */
size_t hth_revoked_set_entries(const struct hth_revoked_set *set, uint64_t *out, size_t max);
/* Whether it names the grant's invite, the peer, or a certificate above them. */
bool hth_revoked_set_has(const struct hth_revoked_set *set, const struct hth_grant *grant,
                         int64_t wall_us);
/* When a successor begins to count, by the owner's last word in the set, which may be NULL. */
int64_t hth_succession_us(const struct hth_revoked_set *set, const struct hth_signer *successor);

/* Returns the length. */
size_t hth_revoked_set_known(const struct hth_revoked_set *set, uint8_t out[HTH_REVOKED_KNOWN_MAX]);
/* Whether a peer that says this has a list that is missing here, or an older one here. Errors:
 * E_MALFORMED (the length). */
enum hth_err hth_revoked_set_lacks(const struct hth_revoked_set *set, const void *known, size_t len,
                                   bool *lacks) HTH_MUST;
/* Writes the lists that a peer lacks that says this; none are known with len 0. Returns the length,
 * at most HTH_REVOKED_PACK_MAX. */
size_t hth_revoked_set_pack(const struct hth_revoked_set *set, const void *known, size_t known_len,
                            uint8_t *out);
/* Takes packed lists; *news: those that were newer. Errors: the first one other than E_STALE; the
 * good lists before and behind it are taken. E_TRUNCATED. */
enum hth_err hth_revoked_set_unpack(struct hth_revoked_set *set, const void *data, size_t len,
                                    size_t *news) HTH_MUST;

#endif
