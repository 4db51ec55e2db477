/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fold.h: what each peer has contributed to a chain: totals that outlive the links they come from.
 *
 * A chain keeps its last links alone (chain.h). So each link whose step is a multiple of
 * HTH_FOLD_STEPS names a *fold*: of each peer, whatever its lives, the samples and the steps of all
 * links before that one. The link's extension is the fold's hash, and its head covers that: a
 * signature on the head (proof.h) is one on the totals.
 *
 *     0 --- 1 --- ... --- 63 --- 64 ------------ ... --- 127 --- 128 ------------ ...
 *                                 | fold: 0 to 63                 | fold: that one, and 64 to 127
 *
 * A link counts for those with values in every part of its mean, if there are two: nobody else saw
 * a step that a member took alone. The *rest* of a fold counts for nobody: those steps, a genesis
 * (samples of a checkpoint), and peers beyond HTH_ROLL_MEMBERS_MAX, of which those with the most
 * samples are kept, then those with smaller ids. So the totals of a fold and its rest add up to
 * samples_before of the link that names it.
 *
 * A member that has a fold and the links since derives the next: nobody has to be believed. A
 * reader that begins at an anchor has a link that names a fold among its links, as a chain's epochs
 * are as long, and gets the table with them (LINKS, roll_msg.h). A member that has no table makes
 * its link without one. So does a quorum of such members, and the next fold begins anew: all before
 * it is rest.
 *
 * Bytes, little-endian, at most HTH_FOLD_BYTES_MAX; the extension is their SHA-256:
 *
 *     rest u64, count u32, of each peer: id 32, samples u64, steps u32; ascending by id
 *
 * One thread at a time; no clock, no I/O.
 */
#ifndef HTH_COLLAB_FOLD_H
#define HTH_COLLAB_FOLD_H

#include "collab/chain.h"

/* Also the links of an epoch, for which voters keep their order: a reader's anchor lies before its
 * epoch (hth_chain_anchor), so a fold is never far. */
#define HTH_FOLD_STEPS     64
#define HTH_FOLD_BYTES_MAX (8 + 4 + HTH_ROLL_MEMBERS_MAX * (32 + 8 + 4))

struct hth_fold_peer {
    struct hth_peer_id id;
    uint64_t samples;
    uint32_t steps; /* at least 1 */
};

struct hth_fold {
    uint64_t rest; /* samples */
    uint32_t count;
    struct hth_fold_peer peer[]; /* ascending by id */
};

/* The totals of all links up to this one, itself included; NULL: a fold before it is not known
 * here. To be freed with hth_free. Its time grows with the rolls since that fold. */
struct hth_fold *hth_fold_upto(const struct hth_chain *chain, uint32_t link);
/* Returns the number of bytes, at most HTH_FOLD_BYTES_MAX. */
size_t hth_fold_write(const struct hth_fold *fold, uint8_t *out);
struct hth_hash hth_fold_hash(const struct hth_crypto *crypto, const struct hth_fold *fold);
/* Takes up the fold that a link names, from a peer's bytes. Errors, after which nothing has
 * changed: E_NOT_FOUND (the link names none), E_TRUNCATED, E_TOO_LARGE (peers), E_MALFORMED (order,
 * no steps, bytes left over), E_BAD_FOLD (it is another one, or does not add up). */
enum hth_err hth_fold_take(struct hth_chain *chain, uint32_t link, const uint8_t *bytes,
                           size_t len) HTH_MUST;

#endif
