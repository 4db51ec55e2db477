/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roll_int.h: the inside of a roll call: READYs, GOs and rounds (roll.c), links and states of other
 * heads (roll_links.c).
 */
#ifndef HTH_COLLAB_ROLL_INT_H
#define HTH_COLLAB_ROLL_INT_H

#include "collab/roll.h"

/* After a refusal a READY is sent again. */
#define AGAIN_US (20 * HTH_US_PER_MS)
/* A member that waits asks one other after this time which head it holds. */
#define ASK_US HTH_US_PER_S

/* Another member, by its number in the chain. */
struct mate {
    struct hth_addr addr;
    bool lost;                    /* until it is heard */
    int64_t heard_us;             /* last */
    struct hth_rpc_request *held; /* its READY; NULL: none is held */
    int64_t held_until_us;
};

/* A READY on its way to the caller, or held by it. A second one, with more samples, may follow the
 * first before that is answered; a third waits. */
struct ready_out {
    struct hth_roll_call *roll;
    struct hth_rpc_call *call; /* NULL: free */
    uint16_t to;
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
    uint16_t met;    /* members that this object knows */
    uint64_t *hears; /* the members that are not lost */
    struct hth_timer *timer;
    bool pumping;

    struct ready_out ready[2];
    struct hth_ballot ready_in; /* the ballot of its READYs */
    bool more;                  /* samples came since the last one */
    int64_t again_us;           /* READY is sent again then; 0: an answer is awaited */
    int64_t since_us;           /* it waits in this ballot since then */
    int64_t due_us; /* as a caller: there are enough samples since then; 0: there are not */

    struct hth_choice_go go;       /* the round that this member is in */
    struct hth_ready_reply list;   /* and its list */
    struct hth_ready_reply sent;   /* the GO that it sent as a caller */
    struct hth_ballot sent_ballot; /* in this ballot; base HTH_LINK_NONE: none */

    int64_t asked_us;           /* another was last asked for its head */
    uint16_t asked;             /* which */
    struct hth_hash wanted;     /* head whose links or state are fetched */
    struct hth_roll_peer from;  /* by whom it was named */
    uint32_t read;              /* the last link that came, or HTH_LINK_NONE */
    struct hth_rpc_call *links; /* NULL: no links are fetched */
    bool fetching;              /* the owner fetches a state */
};

/* All that this member does by itself. */
void roll_pump(struct hth_roll_call *roll);
uint16_t roll_me(const struct hth_roll_call *roll);
void roll_set_heard(struct hth_roll_call *roll, uint16_t member, bool heard);
/* Takes up members that the chain came to know. */
void roll_meet(struct hth_roll_call *roll);
/* Where a peer is reached, by another's word: what it said itself stays. */
void roll_meet_at(struct hth_roll_call *roll, const struct hth_roll_peer *peer);
struct hth_roll_peer roll_peer(const struct hth_roll_call *roll, uint16_t member);
struct hth_hash roll_head(const struct hth_roll_call *roll, uint32_t link);
/* Fetches a head if it is worth it: its links first, then its state. */
void roll_want(struct hth_roll_call *roll, const struct hth_hash *head,
               const struct hth_roll_peer *holders, uint32_t count);
/* Asks one member after the other which head it holds, when steps may have been missed. */
void roll_ask(struct hth_roll_call *roll);
void roll_on_links(void *arg, struct hth_rpc_request *req);

#endif
