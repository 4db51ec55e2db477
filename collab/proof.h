/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proof.h: signatures that prove a link: who held its head, and who brought what.
 *
 * A member signs each head that it holds, once, and sends the signature with its READY. A caller
 * has the READYs of a quorum before it sends a GO, so the GO carries their signatures on the head
 * to all of the list. Each member keeps them with the link, and LINKS serves them.
 *
 *     B, C --- READY + signature on h ---> A --- GO + a quorum's signatures on h ---> B, C
 *
 * The signed bytes, little-endian (Ed25519, by the key whose hash is the member's id):
 *
 *     "HTHLINK" and a zero byte, run 32, head 32, u64 samples in the means up to this head, u64
 *     life, u8 made, u32 batch, u32 samples
 *
 * `made`: the signer took part in the round that made the link; batch and samples are then those of
 * its entry in the roll, 0 without one. A signer that fetched the head says 0 for all three. The
 * head covers all links before it, so a signature vouches for them too, and for the sum of samples,
 * which a reader that begins at an anchor can't count.
 *
 * A link is *proven* when members that signed it, or a link on top of it, are a quorum of its
 * base's voters. Others need less: a genesis a quorum of its own voters; a fork that and a voter of
 * the base of the link before it, which it proves too; a link right after an anchor, where voters
 * are not known, one of those that its roll names. The links that this process made, and those
 * before them, need no proof (hth_chain_trust).
 *
 * When chains have parted, the links of the other one count up to its first that is not proven. A
 * later step of one's own chain is *backed*, and followed, when the links between are proven and a
 * voter of the tip's base, or of that one's base, signed the tip: the others' READYs are on their
 * way (hth_chain_better). The latter are who chooses for a member that is one step behind: after a
 * death they may be all that hold the tip.
 *
 * Ids are free. A peer that signs a chain of its own with its own keys proves it, and such a chain
 * is compared with others by samples, if it has no link in common with them. One voter that lies
 * can back a step that nobody else made. A member that holds no head takes what it is given, if its
 * sum of samples is known from the genesis on, or signed.
 *
 * *Equivocation*: a member makes one link in a ballot. Two links of one ballot of one choice, each
 * signed as made by one life, convict it. Both signatures stay with their links.
 *
 * Signatures of others are checked when they are needed: by the caller that hears a READY, before
 * they are served, and when chains are compared. For a whole run of links one of each member is
 * enough. A bad one is dropped. A link keeps at most one signature of each member whose signature
 * counts. One thread at a time.
 */
#ifndef HTH_COLLAB_PROOF_H
#define HTH_COLLAB_PROOF_H

#include "collab/fold.h"
#include "core/wire.h"

/* On the wire: key 32, life u64, made u8, signature 64. */
#define HTH_SIG_BYTES (HTH_PUBKEY_LEN + 8 + 1 + HTH_SIG_LEN)

struct hth_sig {
    struct hth_pubkey key;
    uint64_t life;
    bool made;
    uint8_t sig[HTH_SIG_LEN];
};

/* A link's signature as it is kept. */
struct hth_link_sig {
    struct hth_sig sig;
    uint16_t member;
    bool good;     /* it was checked */
    uint32_t twin; /* another link that the signer made in the same ballot, or HTH_LINK_NONE */
};

void hth_wire_sig(struct hth_wire *io, struct hth_sig *sig);
void hth_proof_sign(const struct hth_chain *chain, uint32_t link, uint16_t member, bool made,
                    const struct hth_secret *secret, struct hth_sig *out);
/* Whether a member's signature on a link counts: it votes at the link's base, or at that one's. */
bool hth_proof_counts(const struct hth_chain *chain, uint32_t link, uint16_t member);
/* Keeps a signature with a link; `check`: checks it now, else when it is needed. Errors:
 * E_NOT_FOUND (it does not count: nothing is kept), E_BAD_SIGNATURE, E_PROTOCOL (it has a twin). */
enum hth_err hth_proof_keep(struct hth_chain *chain, uint32_t link, const struct hth_sig *sig,
                            bool check) HTH_MUST;
/* Picks signatures of a link by others than those of `set`, the members that signed links on top of
 * it; adds their members. As many as prove it, or `all`; at most `max`. Writes them, unless `io` is
 * NULL, each behind the byte `before`, if it is not NULL. Returns how many. */
uint32_t hth_proof_pick(const struct hth_chain *chain, uint32_t link, uint64_t *set, bool all,
                        uint32_t max, const uint8_t *before, struct hth_wire *io);
/* Samples of the links after `from` (HTH_LINK_NONE: of all) up to a tip's base, as far as all links
 * before are proven or made here. Returns whether all are. */
bool hth_proof_samples(const struct hth_chain *chain, uint32_t tip, uint32_t from, uint64_t *out);
/* Whether a link is proven by its signatures and those of `top`, itself or a link on top of it. */
bool hth_proof_proves(const struct hth_chain *chain, uint32_t link, uint32_t top);
/* Whether links that follow from `from` are proven up to `link`, and a voter signed that one. */
bool hth_proof_backs(const struct hth_chain *chain, uint32_t link, uint32_t from);
/* Whether the link before this one is proven: one link at most is made up. A genesis has none, and
 * of an anchor that stands alone a voter signed it and so the sum of samples before it. */
bool hth_proof_stands(const struct hth_chain *chain, uint32_t link);

/* ---- links for others, and in a member's file --------------------------------------------- */

/*     u8 anchored (the first link is an anchor), u64 samples before it, u16 count, links (chain.h),
 *     the oldest first; u16 count, of each signature that proves them: u8 (the link before the
 *     first: 0; the first: 1; ...), signature; u16 length, the fold (fold.h) that the last of the
 *     links names that names one, if it is known */
#define HTH_LINKS_MAX      96
#define HTH_LINKS_SIGS_MAX 160
#define HTH_LINKS_MORE_MAX (4 + HTH_LINKS_SIGS_MAX * (1 + HTH_SIG_BYTES) + HTH_FOLD_BYTES_MAX)
struct hth_links {
    bool anchored;
    uint32_t count;                   /* without the one before the first */
    uint32_t link[1 + HTH_LINKS_MAX]; /* that one, or HTH_LINK_NONE; then these */
};

/* The links from one to another on top of it, as far as there is room; anchored unless the first is
 * a genesis. */
void hth_links_path(const struct hth_chain *chain, uint32_t first, uint32_t last,
                    struct hth_links *out);
/* Only links up to that position are written, and HTH_LINKS_MORE_MAX bytes may follow; `links` has
 * those that were. */
void hth_links_put(const struct hth_chain *chain, struct hth_links *links, size_t end,
                   struct hth_wire *io);
/* Takes up at most `max` links, and what proves them. `out` has those that were taken up before the
 * error, too, and where none came, its first link is the caller's. Errors: those of hth_chain_read
 * and hth_fold_take; E_TOO_LARGE (links, signatures). */
enum hth_err hth_links_get(struct hth_chain *chain, struct hth_wire *io, uint32_t max,
                           struct hth_links *out) HTH_MUST;

#endif
