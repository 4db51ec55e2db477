/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roll_int.h: the inside of a roll call: READYs, GOs and rounds (roll.c), CALLs and what a peer's
 * ballots may do (roll_call.c), quotas (roll_quota.c), who reduces (roll_help.c), who is there
 * (roll_mates.c), links and states of other heads (roll_links.c), signatures on heads
 * (roll_proof.c), begin and end (roll_vote.c).
 */
#ifndef HTH_COLLAB_ROLL_INT_H
#define HTH_COLLAB_ROLL_INT_H

#include "collab/roll.h"

/* After a refusal a READY is sent again. */
#define AGAIN_US (20 * HTH_US_PER_MS)
/* A member that was heard so lately keeps its number. */
#define HERE_US (10 * HTH_US_PER_S)
/* With fewer links to come until its own is gone, a member begins anew. */
#define ROOM_MIN 64
/* A member that waits asks one other after this time which head it holds. */
#define ASK_US HTH_US_PER_S
/* A member raises the ballot of others at most that often: at HTH_CALL_JUMP a time it takes half an
 * hour to the end of the numbers, and each step begins at 0 again. */
#define RAISE_US (100 * HTH_US_PER_MS)
/* A peer that gave bad links is asked for none so long. */
#define SHUN_US (10 * HTH_US_PER_S)
/* From a READY of a member that is not due to a look at it. */
#define SOON_US HTH_US_PER_MS
/* Between two READYs of a member that gathers. */
#define SAY_US (50 * HTH_US_PER_MS)

/* A caller sends no GO while it awaits one of these. */
enum roll_awaits {
    ROLL_AWAITS_NONE,
    ROLL_AWAITS_STRANGERS, /* them alone */
    ROLL_AWAITS_MEMBERS,
};

/* Time that may still be wasted in rounds, which grows. Below 0: it is not listed. */
struct trust {
    int64_t us, at_us;
};

/* A member, by its number in the chain. */
struct mate {
    struct hth_roll_call *roll;
    uint32_t born; /* hth_chain_born: another one, and the rest is of one that is forgotten */
    struct hth_addr addr;
    bool lost;                    /* until it is heard, */
    int64_t lost_us;              /* since then */
    int64_t coming_us;            /* it was READY with an older head */
    int64_t heard_us;             /* last */
    uint32_t speaks;              /* its last protocol; 0: not known */
    int64_t raised_us;            /* it raised this member's ballot then */
    uint64_t vain;                /* the last step for which it called a ballot in vain */
    struct hth_rpc_request *held; /* its READY; NULL: none is held */
    int64_t held_until_us;
    struct hth_rpc_call *sought; /* it is missing, and is asked whether it averages; or NULL */
    int64_t sought_us;
    struct hth_brings brings; /* as it said, */
    int64_t said_us;          /* then; for this member itself by hth_roll_bring */
    int64_t each_us;          /* the last that is known of its speed */
    int64_t lands_us;         /* a landing was to come by then */
    int64_t rtt_us;           /* from there to here and back, as far as either side knows */
    uint32_t quota;           /* as planned, */
    uint32_t told;            /* and as it knows it */
    uint32_t deeds;           /* of the last rolls those that have it, */
    uint64_t deeds_from;      /* since that step */
    bool known;               /* it was in the roll of a tip of this member */
    struct trust trust;       /* then: in this one alone */
    bool stalled;
    bool equivocates;         /* that was logged */
    uint32_t up_kbit;         /* as it said */
    int64_t rests_until_us;   /* it reduces nothing until then */
    int64_t doubted_until_us; /* it gave a state that is of no use: until then it counts as lost */
};

/* A helper's READY. */
struct held_helper {
    struct hth_rpc_request *req;
    struct hth_roll_peer peer;
    int64_t until_us;
};

/* A READY on its way to the caller, or held by it. Another one, with more samples, may follow it
 * before that is answered, and two once the member is done: a far caller answers late. */
enum { READYS = 4, READYS_GATHERING = 2 };
struct ready_out {
    struct hth_roll_call *roll;
    struct hth_rpc_call *call; /* NULL: free */
    uint16_t to;
};

struct roll_shunned {
    struct hth_peer_id peer;
    int64_t until_us;
};

struct hth_roll_call {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_chain *chain;
    struct hth_roll_opts opts;
    struct hth_roll_ops ops;
    void *arg;
    struct hth_choice *choice;
    struct mate *mate; /* members_max */
    uint32_t mates_max;
    uint64_t *hears;      /* the members that are not lost */
    uint64_t *here, *due; /* of a plan: READY on its tip, and may be listed; expected there */
    struct hth_timer *timer;
    int64_t pump_us; /* for which it is set, at the latest */
    bool pumping;
    bool frozen; /* hth_roll_freeze */

    struct ready_out ready[READYS];
    struct hth_ballot ready_in; /* the ballot of its READYs */
    bool more;                  /* the owner said more since the last one, */
    int64_t ready_us;           /* which was sent then */
    int64_t again_us;           /* READY is sent again then; 0: an answer is awaited */
    int64_t since_us;           /* it waits in this ballot since then, */
    int64_t idle_us;            /* and since then without a reason that it knows */
    int64_t alone_us;           /* a quorum was READY then, as a caller said */
    bool first;                 /* no quota is known: one micro-batch */

    /* As a caller. */
    enum roll_awaits awaits;
    bool missing;               /* a member that is due is not READY in this ballot */
    int64_t strangers_since_us; /* strangers alone are waited for; 0: they are not */
    int64_t patience_us;        /* that strangers have left; below 0: they had more */
    int64_t step_us;            /* gathering, for the last GO that it sent; 0: none */
    struct trust trust;         /* of all together that were in no roll yet */

    struct hth_choice_go go;       /* the round that this member is in, */
    int64_t round_us;              /* since then, */
    struct hth_ready_reply list;   /* and its list */
    struct hth_ready_reply sent;   /* the GO that it sent as a caller */
    struct hth_ballot sent_ballot; /* in this ballot; base HTH_LINK_NONE: none */
    uint8_t *sent_sigs;            /* in it */

    uint32_t made;  /* the last link of a round that this member was in, or HTH_LINK_NONE */
    uint32_t signs; /* the head that `sig` is of, or HTH_LINK_NONE */
    struct hth_sig sig;

    struct held_helper helper[HTH_ROLL_HELPERS_MAX];
    uint32_t helpers;
    int64_t helpless_until_us; /* lists no helpers until then */

    int64_t failed_us;         /* a round failed then, */
    uint32_t failed_on;        /* with this tip: others may have its link */
    int64_t doubted_us;        /* signatures of a head that is not proven were last asked for */
    int64_t asked_us;          /* another was last asked for its head */
    uint16_t asked;            /* which */
    uint32_t unspoken;         /* protocol of a better head, which is not spoken here; 0: none, */
    int64_t unspoken_us;       /* since then */
    struct hth_hash wanted;    /* head whose links or state are fetched */
    struct hth_hash moved;     /* that its caller last picked */
    struct hth_roll_peer from; /* by whom it was named */
    uint32_t read;             /* the last link that came, or HTH_LINK_NONE */
    uint32_t fetched;          /* links that came in this fetch */
    uint32_t guests;           /* links that others gave, of worse chains */
    struct roll_shunned shunned[16];
    struct hth_rpc_call *links; /* NULL: no links are fetched */
    bool fetching;              /* the owner fetches a state */
};

/* All that this member does by itself. */
void roll_pump(struct hth_roll_call *roll);
uint16_t roll_me(const struct hth_roll_call *roll);
/* For a GO in the present ballot. */
enum hth_choice_time roll_waited(const struct hth_roll_call *roll);
/* Whether what is used on top of a link is spoken here. */
bool roll_speaks(const struct hth_roll_call *roll, uint32_t link);
/* roll_call.c */
struct hth_rpc_target roll_target(const struct hth_roll_call *roll, uint16_t member);
struct hth_roll_ballot roll_to_wire(const struct hth_roll_call *roll, struct hth_ballot ballot);
/* E_NOT_FOUND: its base is not known here. E_MALFORMED: it is not of the base's choice. */
enum hth_err roll_from_wire(const struct hth_roll_call *roll, const struct hth_roll_ballot *ballot,
                            struct hth_ballot *out) HTH_MUST;
/* A caller that breaks the rules is lost. */
void roll_give_up(struct hth_roll_call *roll, uint16_t caller, enum hth_err err, const char *what);
/* Whether that member may raise the ballot: not twice within RAISE_US. */
bool roll_may_raise(struct hth_roll_call *roll, uint16_t by);
void roll_send_calls(struct hth_roll_call *roll);
void roll_seek(struct hth_roll_call *roll);
void roll_on_call(void *arg, struct hth_rpc_request *req);
/* The protocol of the link that this GO makes: the next one, once all that vote, and all of the
 * list, speak it. */
uint32_t roll_next_protocol(const struct hth_roll_call *roll, const struct hth_roll *list,
                            uint32_t count);
/* Logs what a peer did wrong. */
void roll_blame(struct hth_roll_call *roll, const struct hth_peer_id *peer, enum hth_err err,
                const char *what);
/* Its READYs that are on their way are of no use any more. */
void roll_drop_ready(struct hth_roll_call *roll);
bool roll_is_doubted(const struct hth_roll_call *roll, const struct hth_peer_id *peer);
/* Of a member that is doubted it stays lost. */
void roll_set_heard(struct hth_roll_call *roll, uint16_t member, bool heard);
void roll_answer(struct hth_rpc_request *req, const struct hth_ready_reply *reply);
/* Answers the READY that is held for a member. */
void roll_release(struct hth_roll_call *roll, uint16_t member, const struct hth_ready_reply *reply);
/* "Still here", and the quota. */
void roll_release_wait(struct hth_roll_call *roll, uint16_t member);
/* Takes up members that the chain came to know, and forgets those that it forgot. */
void roll_meet(struct hth_roll_call *roll);
/* The number of a member. Errors: E_TOO_LARGE (too many are here). */
enum hth_err roll_number(struct hth_roll_call *roll, const struct hth_peer_id *id, uint64_t life,
                         uint16_t *out) HTH_MUST;
/* Where a peer is reached, by another's word: what it said itself stays. */
void roll_meet_at(struct hth_roll_call *roll, const struct hth_roll_peer *peer);
struct hth_roll_peer roll_peer(const struct hth_roll_call *roll, uint16_t member);
struct hth_hash roll_head(const struct hth_roll_call *roll, uint32_t link);
/* Fetches a head if it is worth it: its links first, then its state. */
void roll_want(struct hth_roll_call *roll, const struct hth_hash *head,
               const struct hth_roll_peer *holders, uint32_t count);
/* When the next member is asked which head it holds, if steps may have been missed. */
int64_t roll_ask_at(const struct hth_roll_call *roll);
/* Asks one. */
void roll_ask(struct hth_roll_call *roll);
void roll_on_links(void *arg, struct hth_rpc_request *req);

/* roll_proof.c */
/* This member's signature on its tip. */
const struct hth_sig *roll_sign(struct hth_roll_call *roll);
/* A READY's signature, which a member has to have whose one counts. Errors: E_BAD_SIGNATURE;
 * E_PROTOCOL (it equivocates: it has no vote for either head). */
enum hth_err roll_check_sig(struct hth_roll_call *roll, uint16_t from, uint32_t head,
                            const struct hth_ready_msg *msg) HTH_MUST;
/* Puts a quorum's signatures on its head into a GO; keeps those of a GO that came. */
void roll_list_sigs(struct hth_roll_call *roll, struct hth_ready_reply *go);
void roll_take_sigs(struct hth_roll_call *roll, uint32_t head, const struct hth_ready_reply *go);
/* Says once of each member whom a link's signatures convict; its links keep both. */
void roll_note_twins(struct hth_roll_call *roll, uint32_t link);

/* Holds a helper's READY. */
void roll_take_helper(struct hth_roll_call *roll, struct hth_rpc_request *req,
                      const struct hth_ready_msg *msg);
/* Those that were held long enough, or all if another member calls. */
void roll_answer_helpers(struct hth_roll_call *roll);
/* When the next has been held long enough. */
int64_t roll_helpers_at(const struct hth_roll_call *roll);
/* That one, or all (NULL), are held no more. */
void roll_lose_helper(struct hth_roll_call *roll, const struct hth_peer_id *peer);
/* Puts the helpers into a GO; and answers them with it. */
void roll_list_helpers(const struct hth_roll_call *roll, struct hth_ready_reply *go);
void roll_release_helpers(struct hth_roll_call *roll, const struct hth_ready_reply *go);
/* Says of each member whether it reduces. */
void roll_tell_rests(const struct hth_roll_call *roll, struct hth_ready_reply *go,
                     const struct hth_roll *list);
/* The round of roll->list failed. */
void roll_note_failed(struct hth_roll_call *roll);

/* A member says how it gathers; `first`: in this ballot. */
void roll_brings(struct hth_roll_call *roll, uint16_t member, const struct hth_brings *brings,
                 bool first);
/* To a member and back; 0: not known. */
int64_t roll_rtt_us(const struct hth_roll_call *roll, uint16_t member);
/* How this member gathers, from now on. */
struct hth_brings roll_brings_now(const struct hth_roll_call *roll);
/* Whether this member has brought what it shall. */
bool roll_is_done(const struct hth_roll_call *roll);
/* A WAIT came: the quota is at least what the batch has. */
void roll_take_quota(struct hth_roll_call *roll, uint32_t quota);
/* Another tip: begins with that quota, or with one micro-batch. */
void roll_begin_quota(struct hth_roll_call *roll, bool known, uint32_t quota);
/* As the caller: plans, and tells those whose quota rose; sets `awaits`. Returns whether it is. */
bool roll_plan(struct hth_roll_call *roll);
/* Each listed member's quota for the step on top of this GO. */
void roll_plan_next(const struct hth_roll_call *roll, struct hth_ready_reply *go,
                    const struct hth_roll *list);
/* Whether a GO may go out, as to samples. */
bool roll_is_full(struct hth_roll_call *roll);
/* Drops from the caller's table those that its list does without. */
void roll_leave_out(struct hth_roll_call *roll);
/* Whether a member is READY with this caller, and has samples. */
bool roll_has_samples(const struct hth_roll_call *roll, uint16_t member);
/* Whether this caller alone brings nothing. */
bool roll_is_idle(struct hth_roll_call *roll);
/* Until when strangers are waited for, if they are. */
int64_t roll_strangers_until_us(const struct hth_roll_call *roll);
/* A GO goes out: counts the time for which strangers were waited for. */
void roll_settle(struct hth_roll_call *roll);
/* Whether a stranger with this older head can catch up while it is waited for. */
bool roll_comes_soon(const struct hth_roll_call *roll, uint32_t head);
/* The round of roll->list has ended: counts its time against strangers that were listed and are
 * not in. `marks` of the list; NULL: it failed. */
void roll_settle_round(struct hth_roll_call *roll, const uint16_t *marks);

#endif
