/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roll.h: one member of a run's roll call, in a list of at most HTH_ROLL_MEMBERS_MAX: it is
 * READY, averages with those that are, and holds the next head.
 *
 * The rules are choice.h's and the record is chain.h's; this is the clock and the lines around
 * them.
 *
 *     member                                   caller (the voters take turns)
 *        | --- 72 READY {ballot, head, brings} -->|   held, at most hold_us
 *        | <-- WAIT {quota, quorum} --------------|   "still here", or more is wanted
 *        | --- READY ---------------------------->|   READY again
 *        | <-- GO {head, list} -------------------|   enough samples, and all are done
 *        | <============ the round =============> |   by the owner of this object
 *
 * A READY that is held tells each side that the other lives. A lost connection, or an answer that
 * does not come within hold_us + silence_us, makes the other side *lost* until it is heard again.
 * Other answers: MOVE (fetch another head from these, then be READY again), LATER (a later ballot
 * runs), BEHIND (a better head exists: ask for its links). A member whose caller is lost goes on to
 * a ballot of a caller that it hears; that one says CALL to those who are due.
 *
 * A head that is better than the tip (hth_chain_better) is fetched whenever one is heard of: its
 * links first (LINKS), then the state, by the owner.
 *
 * How many samples a member brings is its *quota* (quota.h). GO says the first one for the step on
 * top of it; a member that has none brings one micro-batch. A READY says what has landed, what is
 * in the air, and how fast; from the READYs the caller plans quotas whose sum reaches the target
 * soonest, and WAIT says them, at once to a member whose quota changes. A member starts a
 * micro-batch only while it stays within its quota, and is *done* when nothing is in the air and no
 * other one fits. It is READY again at once when it is done, else each 50 ms. GO goes out when
 * enough samples have landed and all are done, so no micro-batch is lost, and none lands late.
 *
 *     A  |-8-|-8-|-8-|          quota 24, done
 *     B  |---8---|              quota 8
 *     C      |---8---|          quota 8, done as the last: GO
 *
 * A machine that is too slow for one micro-batch has quota 0, and is left out of the round, unless
 * its vote is needed.
 *
 * Words are not deeds. A member is *stalled* that lands nothing for window_us longer than the
 * others would need to bring its part, at least one micro-batch: nobody counts on it, or waits for
 * it, in this step, and its deeds are void. It costs the others that time, and then the time to
 * bring its part. A caller with nothing to bring leaves the ballot to the next one; one that just
 * sends no GO costs twice the window, until another one calls; those that have not called in vain
 * come first. A member of no roll calls no more.
 *
 * A member is a *stranger* whose deeds, the rolls that have it of the last 16, are fewer than half
 * of another's: its samples count once they have landed, it reduces nothing, and its vote weighs
 * nothing (chain.h). One that is not due and computes as GO goes out is listed only if its samples
 * are needed: it would be late for the round. The others wait for strangers that were in the last
 * round, or are READY with a head that lacks one step, or no more than are made in silence_us: so
 * long at a time, and for all together at most 1/20 of the time. Else a newcomer would run after
 * the head for ever where steps are short. Samples that a member says have landed are believed: it
 * brings values of their weight. Of members that were in no roll yet a list has half a line, or as
 * many as the last roll. A stranger that was listed for a round and is not in its roll is not
 * listed for 40 times as long, 1/4 s of it apart, and at most 20 s, 10 s if it brought nothing; or
 * all together that were in no roll yet: at most 40 s if it brought nothing, and 20 s after a round
 * that failed, as others may be to blame.
 *
 * A READY carries a signature on its head, if it counts (proof.h); one without, or a wrong one, is
 * refused. GO and LINKS carry a quorum's. A head that is better by what its links say, and is not
 * proven, is not followed; its signatures are asked for once a second. The log names a member that
 * signed two links of one ballot (`equivocation`, with both heads), once, and its READYs on either
 * are refused.
 *
 * A peer that breaks the rules has the loss: its message is refused or left aside with a named
 * error, and nothing else changes. Heads of a READY must be candidates of its ballot's choice; the
 * votes and ballots of members without a vote count for nothing; no message moves a ballot far
 * ahead. A caller whose answers are bad is lost, and so is a peer whose state or values can't be
 * used (hth_roll_doubt), for 60 s or until it is in the roll of a tip; a peer whose links are bad
 * is asked for none for 10 s. Links of worse chains get at most half of the chain's room.
 *
 * The owner (trainer) counts samples, averages, and moves states; it hears through hth_roll_ops and
 * answers with the functions below. A round must give the same marks and the same mean to all its
 * members, whoever reduced the parts.
 *
 * Loop thread. Runs on the real and the simulated environment.
 */
#ifndef HTH_COLLAB_ROLL_H
#define HTH_COLLAB_ROLL_H

#include "collab/choice.h"
#include "collab/roll_msg.h"
#include "core/env.h"
#include "rpc/rpc.h"

struct hth_roll_call;

/* How long a peer is left aside that gave a state of no use: much longer than fork_us, so that a
 * run that may fork goes on without peers that hold most votes. */
#define HTH_ROLL_DOUBT_US (60 * HTH_US_PER_S)

/* Those that average on top of one head. */
struct hth_roll_group {
    struct hth_hash id; /* of this head and ballot */
    struct hth_hash head;
    uint64_t step; /* that the average makes */
    uint32_t count, self;
    const struct hth_roll_peer *peer; /* the same list in the same order everywhere */
    uint32_t helpers;                 /* that reduce with them (helper.h) */
    const struct hth_roll_peer *helper;
};

/* Peers that are said to hold something, in the order in which they are asked. */
struct hth_holders {
    uint32_t count;
    struct hth_rpc_target peer[HTH_ROLL_LINE_MAX];
};

struct hth_roll_ops {
    /* Bring the batch, and average with these. Answer with hth_roll_averaged. */
    void (*average)(void *arg, const struct hth_roll_group *group);
    /* Fetch the state of that head from one of these. Answer with hth_roll_fetched. */
    void (*fetch)(void *arg, const struct hth_hash *head, const struct hth_holders *holders);
    /* This link is the tip: after a round its mean is the step to take. `used`: the batch counts,
     * and another one begins. Called inside hth_roll_averaged and hth_roll_fetched. */
    void (*tip)(void *arg, uint32_t link, bool used);
    /* The quota rose: more micro-batches may start. */
    void (*more)(void *arg);
    /* A peer was asked for the links of its head, and has none, or bad ones; E_VERSION: another
     * program's. NULL is fine. */
    void (*no_head)(void *arg, const struct hth_peer_id *peer, enum hth_err err);
};

struct hth_roll_opts {
    struct hth_addr addr; /* where others reach this member; family 0: nowhere */
    uint64_t life;
    uint32_t up_kbit;   /* that it can send in a second; 0: not known */
    uint64_t target;    /* samples in a list before it averages */
    int64_t hold_us;    /* a READY is held that long before it is answered with WAIT */
    int64_t silence_us; /* after that much more its caller is lost */
    int64_t window_us;  /* waited for what a member said would land, beyond what is needed */
    uint32_t first_protocol, last_protocol; /* that this program speaks (roll_msg.h) */
    int64_t fork_us; /* without a quorum for so long, a run that may fork does */
};
#define HTH_ROLL_OPTS_INIT                                                                         \
    {                                                                                              \
        .target = 1, .hold_us = 150 * HTH_US_PER_MS, .silence_us = 350 * HTH_US_PER_MS,            \
        .window_us = 3 * HTH_US_PER_S, .fork_us = 10 * HTH_US_PER_S,                               \
        .first_protocol = HTH_ROLL_PROTOCOL, .last_protocol = HTH_ROLL_PROTOCOL                    \
    }

/* `chain` is borrowed, and written by this object alone. Errors: E_CONFIG (times, protocols),
 * E_TOO_LARGE (no room for this member). */
enum hth_err hth_roll_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_chain *chain,
                          const struct hth_roll_opts *opts, const struct hth_roll_ops *ops,
                          void *arg, struct hth_roll_call **out) HTH_MUST;
/* Without callbacks. NULL is fine. */
void hth_roll_free(struct hth_roll_call *roll);

/* Holds the state of this link, which is in the chain: a genesis, or a checkpoint's. */
void hth_roll_hold(struct hth_roll_call *roll, uint32_t link);
/* Goes on as the member that it was before its process ended, whose life is in the options. The
 * links are in the chain. */
void hth_roll_resume(struct hth_roll_call *roll, const struct hth_vote *vote);
/* Sends nothing and enters no round any more, so that its vote can be kept; a round that is under
 * way has failed. Others may still ask for its links. `held` is the link whose state the owner has:
 * it differs from the tip while a state is fetched. */
void hth_roll_freeze(struct hth_roll_call *roll, uint32_t held);
/* Where a member is reached, from a note in the DHT. Members say it themselves, too. */
void hth_roll_meet(struct hth_roll_call *roll, const struct hth_roll_peer *peer);
/* Hears of members that hold heads: asks one of them for its links. */
void hth_roll_hear(struct hth_roll_call *roll, const struct hth_hash *head,
                   const struct hth_roll_peer *holder);
/* Asks a peer which head it holds, and so tells it of the own one: for a client, which nobody can
 * ask. */
void hth_roll_greet(struct hth_roll_call *roll, const struct hth_roll_peer *peer);
/* How this member gathers: when a micro-batch starts or lands, or its speed changes; first of all
 * before any starts. Samples never become fewer until the batch counts. */
void hth_roll_bring(struct hth_roll_call *roll, const struct hth_brings *brings);
/* A micro-batch may start while samples + air + grain are no more than this. 0 while it holds no
 * head, is in a round, or leaves and has brought its last batch. */
uint32_t hth_roll_quota(const struct hth_roll_call *roll);
/* The round's outcome: for each of the group's list HTH_ROLL_IN, HTH_ROLL_PART or 0, and the digest
 * of the mean; or the error that ended it, E_NORM if this member refuses the mean (choice.h). */
void hth_roll_averaged(struct hth_roll_call *roll, enum hth_err err, const uint16_t *marks,
                       const struct hth_hash *mean);
/* A member of the group that was no good reducer: it reduces nothing in this caller's lists, for a
 * while. */
void hth_roll_slow(struct hth_roll_call *roll, const struct hth_peer_id *peer);
/* A peer gave what can't be used (`what`, for the log): a state, or values that are not finite. For
 * a while it counts as lost, whatever it says: else a head that nobody else has would be picked
 * again and again, and a voter whose values are in no mean would keep all from a quorum. */
void hth_roll_doubt(struct hth_roll_call *roll, const struct hth_peer_id *peer, enum hth_err err,
                    const char *what);
/* The fetch has ended, and this link's state is held, which need not be the one that was wanted. */
void hth_roll_fetched(struct hth_roll_call *roll, uint32_t held);
/* Asks to leave; hth_roll_has_left once it may go. */
void hth_roll_leave(struct hth_roll_call *roll);
bool hth_roll_has_left(const struct hth_roll_call *roll);
/* For on_peer_lost. */
void hth_roll_peer_lost(struct hth_roll_call *roll, const struct hth_peer_id *peer);

/* Holds no head any more, and waits for one. Not in a round. */
void hth_roll_lose(struct hth_roll_call *roll);
/* Voters of its present choice that this member hears, itself among them, of how many; and whether
 * one of them calls ballots. Returns whether they are a quorum and one does; also true where it
 * holds no head. */
bool hth_roll_hears(const struct hth_roll_call *roll, uint32_t *heard, uint32_t *voters,
                    bool *calls);
/* A better head than its own has a protocol that this program does not speak, since then; 0: none
 * has. A step clears it. */
uint32_t hth_roll_unspoken(const struct hth_roll_call *roll, int64_t *since_us);
/* Where a member is reached; family 0: not known, or nowhere. */
struct hth_addr hth_roll_addr(const struct hth_roll_call *roll, uint16_t member);
/* To look at. */
const struct hth_choice *hth_roll_choice(const struct hth_roll_call *roll);

#endif
