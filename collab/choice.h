/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choice.h: one member's part in choosing which step counts: Paxos without a message of its own.
 *
 * Candidates for a step are links with one base (chain.h). The base's voters choose among them, in
 * ballots 0, 1, 2 ...; each ballot has one *caller*, the voters taking turns in their order. The
 * messages that a step needs anyway carry the votes:
 *
 *     READY   member -> caller    "I hold this head, and have a batch": also Paxos's *promise*,
 *                                 with the head that the member last accepted
 *     GO      caller -> members   "average on top of this head": Paxos's *proposal*; who enters the
 *                                 round has *accepted* the head
 *     CALL    caller -> members   "ballot n is mine, be READY with me": after a caller was lost
 *
 *       A (caller)          B                  C
 *       |<---- READY h,n ---|                  |
 *       |<---- READY h,n ----------------------|
 *       |----- GO h,n ----->|                  |
 *       |----- GO h,n ------------------------>|
 *       |<====== values, means (the round) ===>|        makes the link on h: h is chosen if
 *       |<---- READY h',n --|                  |        its roll holds a quorum; h' is next
 *
 * The next step's READYs follow at once, so a step costs one exchange before its round. A round
 * whose mean came makes a link, and the link is the new *tip*; a round that failed leads to the
 * next ballot. The caller proposes the head that was accepted in the latest ballot among a quorum
 * of READYs; if none was, the one that most hold. Members with another head fetch it first (MOVE).
 * One GO a ballot, ever.
 *
 * A batch counts once: a member brings its batch again until the chain that it holds has it.
 *
 * A member whose own check of a round's mean fails *refuses* the link: it does not take it, whoever
 * holds it, and is READY on the head before it, in the next ballot. Where those who refuse are a
 * quorum, they make another link, and the one that they refuse is never final. Where the others
 * are, these go on: it follows a link on top of the refused one, as that was chosen. If neither
 * are, as somebody is away, it waits in vain with one caller after the other, and then *yields*: it
 * may take the link all the same.
 *
 * This is state and rules alone: no clock, no sockets, no memory taken. The code around it
 * has the clock and the lines: it delivers messages, says which members it hears and how long it
 * has waited, and makes the moves that are open. Same inputs, same state. Messages
 * name links and members by number in the chain; who speaks to peers looks heads up first. One
 * thread at a time.
 */
#ifndef HTH_COLLAB_CHOICE_H
#define HTH_COLLAB_CHOICE_H

#include "collab/chain.h"

/* A choice, and a ballot in it. The step tells the genesis from the step after it, both of which
 * have the genesis as base. */
struct hth_ballot {
    uint64_t step;
    uint32_t base; /* HTH_LINK_NONE: no choice */
    uint32_t n;
};

enum hth_choice_phase {
    HTH_CHOICE_FETCH, /* holds no head */
    HTH_CHOICE_READY, /* has to send READY: hth_choice_ready */
    HTH_CHOICE_WAIT,  /* is READY with its caller */
    HTH_CHOICE_ROUND, /* brings values */
};

enum hth_choice_leave {
    HTH_CHOICE_STAYS,
    HTH_CHOICE_LEAVES, /* says so in its READYs */
    HTH_CHOICE_LEFT,   /* has no vote any more: may go once nobody needs its means */
};

struct hth_ready {
    struct hth_ballot ballot;
    uint32_t head;       /* which the member holds */
    uint32_t accepted;   /* last head that it accepted in this choice, or HTH_LINK_NONE */
    uint32_t accepted_n; /* in this ballot */
    uint32_t batch;
    uint32_t samples;
    uint16_t member;
    uint16_t leaves; /* 1: it does */
};

/* Plain values, to be read by all and written by the functions below. */
struct hth_choice {
    const struct hth_chain *chain; /* borrowed */
    uint16_t me;
    uint8_t phase; /* enum hth_choice_phase */
    uint8_t leave; /* enum hth_choice_leave */
    uint32_t tip;  /* the link whose state it holds, or HTH_LINK_NONE */
    uint32_t promised;
    uint32_t accepted;
    uint32_t accepted_n;
    uint32_t refused;   /* it takes no link on this head, HTH_LINK_NONE: of none, */
    uint32_t refused_n; /* that was made in this ballot or an earlier one, */
    uint32_t yields_n;  /* until it has waited in two turns of all callers, up to this one */
    uint32_t batch;     /* number of the batch that it brings, from 1 on */
    uint32_t samples;
    /* As a caller. */
    struct hth_ballot ballot; /* of the seats; n may be ahead of `promised` */
    uint16_t gone_out;        /* the ballot's one GO was sent */
    uint16_t capacity;
    uint32_t seats;
    struct hth_ready seat[]; /* ascending by member */
};

/* Bytes of a choice with room for that many READYs. One more is not heard, unless a voter sends it:
 * then one of a member without a vote goes. */
size_t hth_choice_size(uint16_t capacity);
/* A member without a head, whose first batch has number 1. */
void hth_choice_init(struct hth_choice *c, const struct hth_chain *chain, uint16_t me,
                     uint16_t capacity);

/* The choice in which the tip is a candidate, at the promised ballot. */
struct hth_ballot hth_choice_now(const struct hth_choice *c);
/* The choice in which a link is a candidate, at that ballot. */
struct hth_ballot hth_choice_of(const struct hth_chain *chain, uint32_t link, uint32_t n);
/* The member that calls a ballot; HTH_MEMBER_NONE where nobody votes. */
uint16_t hth_choice_caller(const struct hth_chain *chain, const struct hth_ballot *ballot);

/* ---- what a member does ------------------------------------------------------------------- */

/* Holds this head from now on, which its round made or which it fetched. In another choice than
 * before, it has promised and accepted nothing. A batch that the chain has is used up, and the next
 * number begins; returns whether it did. */
bool hth_choice_take(struct hth_choice *c, uint32_t link);
/* Holds no head any more: the chain has left its one behind. */
void hth_choice_lose(struct hth_choice *c);
/* Its round failed, or its caller fell silent: the next ballot. */
void hth_choice_fail(struct hth_choice *c);
/* The same, because its round's mean fails its own check: it takes no link of this round, nor of
 * an earlier one on its head. */
void hth_choice_refuse(struct hth_choice *c);
bool hth_choice_refuses(const struct hth_choice *c, uint32_t link);
/* Whether its caller, which holds that link, is of no use to it: hth_choice_fail leads to the next.
 * So that it waits with one that refuses the link, too. */
bool hth_choice_shuns(const struct hth_choice *c, uint32_t link);
/* Whether a link is better than the head that it holds, and not refused. */
bool hth_choice_prefers(const struct hth_choice *c, uint32_t link);
/* It is READY again in the same ballot, with more samples, or because its caller did not get the
 * last one. Only from phase WAIT. */
void hth_choice_again(struct hth_choice *c);
/* The part of a member's state that outlives its process: with it, the member was only frozen. */
struct hth_vote {
    uint32_t tip; /* HTH_LINK_NONE: it holds no head, and has no vote to keep */
    uint32_t promised;
    uint32_t accepted; /* HTH_LINK_NONE: none */
    uint32_t accepted_n;
    uint32_t batch;
};
/* Not from phase ROUND. */
struct hth_vote hth_choice_vote(const struct hth_choice *c);
/* A member without a head goes on with a vote that has one. */
void hth_choice_resume(struct hth_choice *c, const struct hth_vote *vote);
/* It wants to leave, after its present batch. */
void hth_choice_leave(struct hth_choice *c);
/* The READY to send, from phase READY; returns its caller, which may be this member itself. It
 * waits from now on. */
uint16_t hth_choice_ready(struct hth_choice *c, struct hth_ready *out);

/* ---- messages ----------------------------------------------------------------------------- */

enum hth_choice_answer {
    HTH_CHOICE_TAKEN,
    HTH_CHOICE_CALLS,  /* taken; it takes this ballot over: send CALL (hth_choice_may_call) */
    HTH_CHOICE_LATER,  /* there is a later ballot, `ballot`: tell the sender */
    HTH_CHOICE_BEHIND, /* the sender holds a head that was passed: send it the links since */
    HTH_CHOICE_NOT_ME, /* another member calls this ballot, or the table is full */
    HTH_CHOICE_FAR,    /* a ballot that nobody who counts has come to */
};
/* A READY whose ballot is farther ahead than that is not heard, nor a CALL: so nobody drives a
 * run's ballots to the end of their numbers. With a failed ballot a second it is 18 hours. A CALL
 * may repeat what READYs raised. */
#define HTH_BALLOT_JUMP 65536u
#define HTH_CALL_JUMP   (4 * HTH_BALLOT_JUMP)
/* A READY, from another member or itself. Its heads are known here, and candidates of its ballot's
 * choice. Where a voter is READY in a ballot, others do not raise it. */
enum hth_choice_answer hth_choice_hear_ready(struct hth_choice *c, uint16_t from,
                                             const struct hth_ready *ready);
/* A CALL, or the answer LATER: returns whether it has to be READY again, in that ballot. */
bool hth_choice_hear_call(struct hth_choice *c, const struct hth_ballot *ballot);
/* A GO on top of a head: returns whether it enters the round. */
bool hth_choice_hear_go(struct hth_choice *c, uint32_t head, uint32_t n);
/* A member fell silent: it is READY no more in this caller's table. */
void hth_choice_drop(struct hth_choice *c, uint16_t member);
/* Whether a CALL goes to that member: it votes in the choice, or is in the tip's roll. */
bool hth_choice_is_due(const struct hth_choice *c, uint16_t member);
/* Whether a CALL may be sent: nobody calls who does not hear a quorum, except to fork. It would
 * keep others from a caller that does. */
bool hth_choice_may_call(const struct hth_choice *c, const uint64_t *hears);

/* ---- moves -------------------------------------------------------------------------------- */

/* How long a member has waited, each after the one before. */
enum hth_choice_time {
    HTH_CHOICE_NOW,
    HTH_CHOICE_SILENT, /* for a GO: its caller may hear nobody */
    HTH_CHOICE_ALONE,  /* for a quorum */
};

enum hth_choice_move {
    HTH_CHOICE_PASS = 1,   /* its caller is lost: READY with the next one that it hears */
    HTH_CHOICE_OVER = 2,   /* takes over a later ballot, which it calls */
    HTH_CHOICE_GO = 4,     /* sends GO: whom it waits for first is not decided here */
    HTH_CHOICE_FORK = 8,   /* sends GO without a quorum */
    HTH_CHOICE_YIELD = 16, /* refuses nothing any more */
    HTH_CHOICE_CALL = 32   /* begins a ballot that it calls */
};
/* The moves that are open to it (a set), where `hears` are the members that it has a line to. Any
 * of them is safe at any time; the first in the order above is the one to make. */
unsigned hth_choice_open(const struct hth_choice *c, const uint64_t *hears,
                         enum hth_choice_time time);

/* A GO: the seats with this head, in the caller's table, are its list. */
struct hth_choice_go {
    uint32_t head;
    uint32_t n;
    bool fork;
};
/* Makes a move that is open. PASS, OVER, YIELD and CALL lead to phase READY; CALL to a ballot after
 * that of its table. GO and FORK fill `go`, and this member has entered the round. */
void hth_choice_make(struct hth_choice *c, enum hth_choice_move move, const uint64_t *hears,
                     struct hth_choice_go *go);
/* The head that this caller goes on with, for which it sends MOVE to those in its table that hold
 * another; HTH_LINK_NONE while its table holds no quorum and it is too early to fork. */
uint32_t hth_choice_pick(const struct hth_choice *c, enum hth_choice_time time);

/* The list of a GO on top of that head: an entry for each seat that holds it and has samples,
 * marked HTH_ROLL_LEFT where the member leaves. `roll` has room for all seats. Returns how many. */
uint32_t hth_choice_list(const struct hth_choice *c, uint32_t head, struct hth_roll *roll);
/* The link that a round makes. `roll` has the entries of the GO's list, to which HTH_ROLL_IN or
 * HTH_ROLL_PART were added as their values are in the mean; those with neither are taken out. The
 * caller adds mean and protocol. `roll` of the link points to `roll`. Returns false if the round
 * does not count: without a quorum in its roll, only a fork makes a link. */
bool hth_choice_link(const struct hth_chain *chain, const struct hth_choice_go *go,
                     struct hth_roll *roll, uint32_t count, struct hth_chain_link *link);

#endif
