/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match_int.h: the parts of the matchmaker.
 *
 *   match.c        the node: messages that arrive; groups out of lists
 *   match_look.c   one look: the lookers it knows, what it asks them, as leader too, its end
 *   match_msg.c    bytes
 *
 * A look acts in one place only, match_look.c:on_turn, which runs from its timer. Everything that
 * happens to it (a JOIN, an answer) changes its state and pokes the timer.
 */
#ifndef HTH_AVERAGING_MATCH_INT_H
#define HTH_AVERAGING_MATCH_INT_H

#include "averaging/match.h"
#include "averaging/match_msg.h"
#include "rpc/rpc.h"

#define HTH_MATCH_BEAT_US    (150 * HTH_US_PER_MS) /* a follower says so often that it is here */
#define HTH_MATCH_SILENCE_US (350 * HTH_US_PER_MS) /* a peer that was asked has that long */
#define HTH_MATCH_FAR_US     (4 * HTH_US_PER_S)    /* no way there and back is believed longer */

/*  EXPECTED --- says that it looks ---> LOOKS <--- says so no more --- FOLLOWS us
 *                                         |  \________ follows us ________/ |
 *                                         '--- lost, silent, refuses ---> GONE, until it speaks */
enum match_state { MATCH_EXPECTED, MATCH_LOOKS, MATCH_FOLLOWS, MATCH_GONE };

/* Another peer of our line. */
struct match_looker {
    struct hth_look *look;
    struct hth_avg_member self; /* as it says; id and addr alone of one that is only expected */
    struct hth_hash mark;       /* its place in the order, within its mode */
    enum match_state state;
    uint32_t strikes;
    int64_t since_us;          /* when it came into its state */
    int64_t heard_us;          /* last */
    int64_t left_us;           /* of a follower: the end of its window, on our clock */
    struct hth_rpc_call *call; /* a JOIN that it has not answered */
    bool follow;               /* which says that we follow it */
    bool told;                 /* a JOIN was sent */
};

struct hth_look {
    struct hth_match *match;
    struct hth_look_opts opts;
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    size_t key_len;
    struct hth_avg_member self;
    struct hth_hash mark;
    struct hth_timer *timer;
    int64_t turn_us;               /* when it was to run */
    struct match_looker **lookers; /* in the order in which they came */
    uint32_t count, capacity;
    int64_t made_us, end_us;
    struct match_looker *leader; /* as this look knew last; NULL: itself */
    int64_t since_us;            /* when it came to know that */
    int64_t beat_us;             /* when the leader is asked again */
    struct match_looker *lost;   /* as leader: others may have heard it begin; NULL: none */
    enum hth_avg_reason last_refusal;
    bool done;
    struct hth_look_result result;
};

struct hth_match {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_match_opts opts;
    struct hth_look *look;       /* NULL: none */
    struct hth_avg_group *begun; /* the last one: members may ask for the list */
    bool version_said;           /* it spoke of another version */
    int64_t usual_rtt_us;        /* of those who were asked; 0: of none it is known */
    struct hth_match_stats stats;
};

/* match.c */
/* The members in the group's order, its id derived from the line, the schema and all that is said
 * of the members; `self` is count when this peer is not in it. Errors: E_RANGE (no members, too
 * many, or more that only reduce than average), E_DUPLICATE (a peer is named twice). */
enum hth_err hth_match_group(const struct hth_look *look, const struct hth_avg_member *members,
                             uint32_t count, struct hth_avg_group **out) HTH_MUST;
/* match_look.c */
void hth_look_poke(struct hth_look *look);
bool hth_look_precedes_us(const struct hth_look *look, const struct match_looker *l);
struct match_looker *hth_look_find(const struct hth_look *look, const struct hth_peer_id *id);
/* Notes a peer's own word about itself, and that it speaks. NULL: the table is full. */
struct match_looker *hth_look_hear(struct hth_look *look, const struct hth_avg_member *m);
void hth_look_set(struct match_looker *l, enum match_state state);
/* The one that should lead as far as this look knows; NULL: itself. */
struct match_looker *hth_look_leader(const struct hth_look *look);
/* Its word to us as leader. False: it makes no sense. */
bool hth_look_take(struct match_looker *from, const struct hth_join_reply *reply);

#endif
