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
 * the base of the link before it, which it proves too; a link right after an anchor, where weights
 * are not known, one voter. The links that this process made, and those before them, need no proof
 * (hth_chain_trust).
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

#include "collab/chain.h"
#include "core/wire.h"

#define HTH_SIGNED_BYTES (8 + 32 + 32 + 8 + 8 + 1 + 4 + 4)
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
    uint32_t born; /* hth_chain_born of its member: else it is of one that is forgotten */
    uint16_t member;
    bool good;     /* it was checked */
    uint32_t twin; /* another link that the signer made in the same ballot, or HTH_LINK_NONE */
};

void hth_wire_sig(struct hth_wire *io, struct hth_sig *sig);

/* The bytes that a member signs. */
void hth_proof_bytes(const struct hth_chain *chain, uint32_t link, uint16_t member, bool made,
                     uint8_t out[HTH_SIGNED_BYTES]);
void hth_proof_sign(const struct hth_chain *chain, uint32_t link, uint16_t member, bool made,
                    const struct hth_secret *secret, struct hth_sig *out);
/* Whether a member's signature on a link counts: it votes at the link's base, or at that one's. */
bool hth_proof_counts(const struct hth_chain *chain, uint32_t link, uint16_t member);
/* Keeps a signature with a link; `check`: checks it now, else when it is needed. *twin is the
 * signature's. Errors: E_NOT_FOUND (it does not count: nothing is kept), E_BAD_SIGNATURE. */
enum hth_err hth_proof_keep(struct hth_chain *chain, uint32_t link, const struct hth_sig *sig,
                            bool check, uint32_t *twin) HTH_MUST;
/* The signatures of a link that prove it together with those of `set`, the members that signed
 * links on top of it; adds their members. At most `max`; they stay valid until the next
 * hth_proof_keep. `out` NULL: adds all that signed the link. Returns how many are in `out`. */
uint32_t hth_proof_pick(const struct hth_chain *chain, uint32_t link, uint64_t *set,
                        const struct hth_sig **out, uint32_t max);
/* Words of such a set. */
size_t hth_proof_words(const struct hth_chain *chain);
/* Samples of the links after `from` (HTH_LINK_NONE: of all) up to a tip's base, as far as all links
 * before are proven or made here. Returns whether all are. */
bool hth_proof_samples(const struct hth_chain *chain, uint32_t tip, uint32_t from, uint64_t *out);
/* Whether a link is proven. */
bool hth_proof_proves(const struct hth_chain *chain, uint32_t link);
/* Whether links that follow from `from` are proven up to `link`, and a voter signed that one. */
bool hth_proof_backs(const struct hth_chain *chain, uint32_t link, uint32_t from);
/* Whether the link before this one is proven, or there is none: one link at most is made up. */
bool hth_proof_stands(const struct hth_chain *chain, uint32_t link);
/* Whether a link's sum of samples is known from the genesis on, or signed by a voter. */
bool hth_proof_sums(const struct hth_chain *chain, uint32_t link);

#endif
