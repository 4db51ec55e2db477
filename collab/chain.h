/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chain.h: the record of the steps that trainers took together: who brought values, and who votes.
 *
 * Each step that a group averages leaves a *link*. It names the link before it, the ballot in which
 * it was made, a digest of the mean, and the *roll*: the members whose values are in the mean. The
 * link's hash is its *head*. Two members with the same head hold the same parameters, bit for bit,
 * and a chain of heads tells who took part in what.
 *
 *      genesis          step 1           step 2
 *     +--------+       +--------+       +--------+
 *     | A B C  | <---- | A B    | <---- | A B D  |      C missed two steps, D came with the second
 *     +--------+       +--------+       +--------+
 *
 * The rolls say who may vote. The *voters* of a link are those in its roll, with values in every
 * part of the mean, that do not leave, and that the rolls of the last `window` links have at least
 * half as often as any other of these: so a visitor of a few steps may die without a word. All
 * votes are alike, so that they do not change with each step that somebody misses: two halves that
 * hold links next to each other judge alike. Voters are in order of a hash; those who can't be
 * dialled come last, as the first voters call ballots. A *quorum* is more than half of them; or
 * just half, with the first voter in it. So of two even halves exactly one is a quorum, and of two
 * quorums of the same voters at least one member is in both.
 *
 * Which link follows another is a *choice* among candidates (choice.h). All candidates of one step
 * have the same *base*, the link before them, and the base's voters decide. A link may stand on
 * another only if its roll holds a quorum of that other one's voters of the base: so a link with a
 * successor was chosen by a quorum, and is final.
 *
 *     base(L) = the link before L; for a genesis or a fork, which nobody chose, L itself
 *
 * A *fork* is a link without that quorum: some members went on without the others
 * (averaging.majority: eventual). hth_chain_better says which of two chains remains when they meet.
 *
 * A roll is what somebody says. Signatures prove it (proof.h): a member leaves its chain for one
 * that has parted from it only for samples that are proven.
 *
 * A member is a process, not a machine: a peer's id and the number of its life. A process that
 * starts again without its promises is another member.
 *
 * The chain is a store of links and members, addressed by numbers. It keeps the last links_max
 * links, and with some of them the totals of all before (fold.h). A reader that needs older ones
 * begins at an *anchor*, a link whose predecessor it does not know; right after an anchor quorums
 * can't be judged. Members without a link can be forgotten.
 * One thread at a time; no clock, no I/O.
 *
 * Lamport: The part-time parliament, ACM TOCS 16(2), 1998; Lamport, Malkhi, Zhou: Reconfiguring a
 * state machine, SIGACT News 41(1), 2010: the voters of a choice follow from the choices before it.
 */
#ifndef HTH_COLLAB_CHAIN_H
#define HTH_COLLAB_CHAIN_H

#include "core/bytes.h"
#include "core/crypto.h"

#define HTH_LINK_NONE   UINT32_MAX
#define HTH_MEMBER_NONE UINT16_MAX
/* Entries of a roll; and members that a chain can have. */
#define HTH_ROLL_MEMBERS_MAX 256
#define HTH_MEMBERS_MAX      4096

enum hth_link_kind {
    HTH_LINK_STEP,    /* its roll holds a quorum */
    HTH_LINK_FORK,    /* it does not, and its members went on all the same */
    HTH_LINK_GENESIS, /* the first of a chain */
};

/* How a roll marks a member. */
enum {
    HTH_ROLL_IN = 1,      /* its values are in each part of the mean */
    HTH_ROLL_PART = 2,    /* its values are in some parts of the mean */
    HTH_ROLL_LEFT = 4,    /* with HTH_ROLL_IN: it asked to leave, and votes on no later link */
    HTH_ROLL_CLIENT = 16, /* with HTH_ROLL_IN: it can't be dialled, and calls no ballot */
};

struct hth_roll {
    uint16_t member;  /* number in the chain */
    uint16_t marks;   /* HTH_ROLL_ */
    uint32_t batch;   /* number of the batch that it brought */
    uint32_t samples; /* in that batch */
};

/* A link as it was made. */
struct hth_chain_link {
    uint64_t step;
    uint32_t prev;     /* HTH_LINK_NONE for a genesis */
    uint32_t ballot;   /* in which it was made */
    uint32_t protocol; /* version that is used on top of this link */
    enum hth_link_kind kind;
    struct hth_hash mean;        /* digest of the mean's parts; of the parameters for a genesis */
    const struct hth_roll *roll; /* no two alike; in the store ascending by member */
    uint32_t count;              /* of the roll, 1..HTH_ROLL_MEMBERS_MAX */
};

/* A link's voters follow from it and from those before it. */
struct hth_voters {
    uint16_t *member; /* clients last, then by hash(epoch's head, id, life) */
    uint32_t count;   /* at least 1 */
    uint32_t callers; /* the first so many take turns in calling */
};

struct hth_chain_opts {
    const struct hth_crypto *crypto; /* borrowed */
    struct hth_hash run;             /* no link of another run has the same head */
    uint32_t window;                 /* links whose rolls say who votes, at least 1 */
    bool eventual;                   /* forks are allowed (averaging.majority) */
    uint32_t links_max;              /* that are kept */
    uint32_t members_max;            /* at most HTH_MEMBERS_MAX */
};

struct hth_chain;
struct hth_fold;

/* A link that is kept, and what follows from it and those before it. */
struct hth_held {
    struct hth_hash head;
    uint32_t number;
    struct hth_hash before; /* head of the link before it, which may be gone; zero of a genesis */
    struct hth_chain_link link;
    struct hth_roll *roll; /* the link's, and its voters' numbers in one piece of memory */
    struct hth_voters voters;
    uint32_t known;           /* links before it, at most the window; all behind a genesis */
    struct hth_hash epoch;    /* the draws of voters come from */
    uint64_t samples_before;  /* in the means of all links before it, from the genesis on, */
    uint64_t samples;         /* and with its own */
    bool trusted;             /* hth_chain_trust */
    struct hth_hash fold;     /* that it names (fold.h); zero: none */
    struct hth_fold *table;   /* the fold; NULL: not known here */
    struct hth_link_sig *sig; /* signatures (proof.h) */
    uint32_t sigs;
};

/* Zeros, for the head of no link. */
static inline bool hth_head_is_none(const struct hth_hash *head)
{
    static const struct hth_hash none;
    return memcmp(head, &none, sizeof(none)) == 0;
}

struct hth_chain *hth_chain_new(const struct hth_chain_opts *opts);
void hth_chain_free(struct hth_chain *chain);

/* The number of a member, given when it is first seen. An older life of the same peer that is in no
 * link is forgotten. Errors: E_TOO_LARGE (the store is full); *out is HTH_MEMBER_NONE then. */
enum hth_err hth_chain_member(struct hth_chain *chain, const struct hth_peer_id *id, uint64_t life,
                              uint16_t *out) HTH_MUST;
/* The same for one that has a number; else HTH_MEMBER_NONE. */
uint16_t hth_chain_known(const struct hth_chain *chain, const struct hth_peer_id *id,
                         uint64_t life);
/* This member is never forgotten. */
void hth_chain_keep(struct hth_chain *chain, uint16_t member);
/* Which one of all that ever had this number has it; 0: nobody. */
uint32_t hth_chain_born(const struct hth_chain *chain, uint16_t member);
/* Whether a member passes a test. */
typedef bool hth_member_test(const void *ctx, uint16_t member);
/* Forgets those that are in no link and do not pass: their numbers are given again. */
void hth_chain_sweep(struct hth_chain *chain, hth_member_test *keeps, const void *ctx);
/* Numbers in use are below this one. */
uint32_t hth_chain_members(const struct hth_chain *chain);
const struct hth_peer_id *hth_chain_id(const struct hth_chain *chain, uint16_t member);
uint64_t hth_chain_life(const struct hth_chain *chain, uint16_t member);

/* Takes up a link that this process made, or finds it; trusts it. Copies the roll. Errors:
 * E_NOT_FOUND (the link before it is unknown here: fetch it first); E_MALFORMED (a roll that is
 * empty or has a member twice, marks that are none, unknown members, a step that does not follow, a
 * genesis with a link before it, another kind without one); E_STALE (a step whose roll holds no
 * quorum, or a fork whose roll does); E_REFUSED (a fork, in a run that has none); E_TOO_LARGE (a
 * roll). *out is HTH_LINK_NONE then. */
enum hth_err hth_chain_add(struct hth_chain *chain, const struct hth_chain_link *link,
                           uint32_t *out) HTH_MUST;
/* A link's bytes on the wire: those that are hashed, behind the run, into its head. The writer's
 * error is E_TOO_LARGE where they do not fit.
 *
 *     step u64, head before (32; zero of a genesis), protocol u32, ballot u32, kind u8, mean (32),
 *     count u32, of each member: id (32), life u64, marks u16, batch u32, samples u32; ascending by
 *     id and life; length of the extension u16 (0 or 32), the hash of a fold (fold.h) */
void hth_chain_write(const struct hth_chain *chain, uint32_t link, struct hth_writer *w);
/* Reads one link and takes it up: only if it is good do its members get numbers. `anchor`: the
 * link before it need not be known, and those are the samples of all before; else NULL. Errors:
 * those of hth_chain_add; E_TRUNCATED; E_MALFORMED (order, kind, a fold that is not due);
 * E_BAD_FOLD (it is not that of the links before); E_VERSION (another extension). */
enum hth_err hth_chain_read(struct hth_chain *chain, struct hth_reader *r, const uint64_t *anchor,
                            uint32_t *out) HTH_MUST;
/* This process vouches for a link, and for those before it: they need no proof. */
void hth_chain_trust(struct hth_chain *chain, uint32_t link);
/* Whether its voters are known: not right after an anchor. */
bool hth_chain_judges(const struct hth_chain *chain, uint32_t link);
/* Signatures and the fold are proof.c's and fold.c's to write; they go with the link. */
struct hth_held *hth_chain_held(const struct hth_chain *chain, uint32_t link);
const struct hth_chain_opts *hth_chain_opts(const struct hth_chain *chain);
/* Takes back the links that were added when there were `count`: nobody refers to them yet. */
void hth_chain_drop(struct hth_chain *chain, uint32_t count);
/* The link at which somebody has to begin who wants to judge what follows `link`, and has nothing:
 * the window before the epoch of its base, as far as that is kept. */
uint32_t hth_chain_anchor(const struct hth_chain *chain, uint32_t link);
/* The number of the link with this head, or HTH_LINK_NONE. */
uint32_t hth_chain_find(const struct hth_chain *chain, const struct hth_hash *head);

/* Links that ever were in the store: their numbers are below, later ones larger. */
uint32_t hth_chain_count(const struct hth_chain *chain);
/* How many links can be added before this one is not kept. */
uint32_t hth_chain_room(const struct hth_chain *chain, uint32_t link);
/* Whether it is kept. `prev` of a kept link is HTH_LINK_NONE once that one is not. */
bool hth_chain_has(const struct hth_chain *chain, uint32_t link);
const struct hth_chain_link *hth_chain_at(const struct hth_chain *chain, uint32_t link);
const struct hth_hash *hth_chain_head(const struct hth_chain *chain, uint32_t link);
struct hth_voters hth_chain_voters(const struct hth_chain *chain, uint32_t link);
uint32_t hth_chain_base(const struct hth_chain *chain, uint32_t link);
/* Whether a member is a voter of a link. */
bool hth_chain_votes(const struct hth_chain *chain, uint32_t link, uint16_t member);
/* Samples in the means of this link and of all before it, from the genesis on. */
uint64_t hth_chain_samples(const struct hth_chain *chain, uint32_t link);
/* The entry of a member in a link's roll, or NULL. */
const struct hth_roll *hth_chain_entry(const struct hth_chain *chain, uint32_t link,
                                       uint16_t member);
/* Whether a batch of a member is in a mean of this chain, in full or in part. */
bool hth_chain_used(const struct hth_chain *chain, uint32_t link, uint16_t member, uint32_t batch);

/* Whether those voters of a link that pass a test are a quorum. */
bool hth_chain_quorum(const struct hth_chain *chain, uint32_t link, hth_member_test *has,
                      const void *ctx);
/* Whether the roll of a link holds a quorum of those who choose it. */
bool hth_chain_enough(const struct hth_chain *chain, const struct hth_chain_link *link);
/* A set of members: bits by number, members_max of them. */
#define HTH_MEMBERS_WORDS (HTH_MEMBERS_MAX / 64)
static inline bool hth_members_has(const void *set, uint16_t member)
{
    return ((const uint64_t *)set)[member / 64] >> (member % 64) & 1;
}
static inline void hth_members_put(uint64_t *set, uint16_t member)
{
    set[member / 64] |= UINT64_C(1) << (member % 64);
}
/* Whether a holder of link b should go over to link a. Where a follows from b's base without a fork
 * between them: when a's step is later, and a is backed (proof.h). Where b follows from a's base in
 * that way: no. Else the chains have parted: in a run with forks, or where no link is in both, the
 * chain with more samples up to its base, since the last common link, is better, then the smaller
 * head of the base. Only proven samples count, and those of links that this process made. So of two
 * groups at most one goes over. Bases, not tips: the READYs that prove a tip are on their way, and
 * all candidates of one choice compare alike, so nobody goes back and forth. */
bool hth_chain_better(const struct hth_chain *chain, uint32_t a, uint32_t b);
/* The same if all that its links say were proven. */
bool hth_chain_claims(const struct hth_chain *chain, uint32_t a, uint32_t b);

#endif
