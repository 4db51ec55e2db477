/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match_int.h: the parts of the matchmaker.
 *
 *   match.c        the node: JOINs that arrive, groups that have begun
 *   match_tell.c   declarations that go straight to those who may care, and arrive so
 *   match_look.c   one look: its board and note, the order of those seen, its turn and end
 *   match_follow.c one look as follower: whom it asks, and what it is told
 *   match_lead.c   one look as leader: who is there, who is waited for, the cut into groups
 *   match_msg.c    bytes
 *
 * A look acts in one place only, match_look.c:on_turn, which runs from its timer. Everything that
 * happens to it (a note, a JOIN, an answer) changes its state and pokes the timer.
 */
#ifndef HTH_AVERAGING_MATCH_INT_H
#define HTH_AVERAGING_MATCH_INT_H

#include "averaging/match.h"
#include "averaging/match_msg.h"
#include "dht/board.h"
#include "rpc/rpc.h"

/* Somebody in our line: who declared, who joined us, or both. */
struct match_looker {
    struct hth_look *look;
    struct hth_peer_id id;
    struct hth_hash mark; /* its place in the order, within its mode */
    enum hth_avg_mode mode;
    struct hth_addr addr;
    int64_t seen_us; /* first */
    /* its declaration */
    bool declared;
    uint64_t seq;
    uint8_t *record;
    size_t record_len;
    /* struck off: for the rest of the look when we found out ourselves, else until it declares
     * anew */
    bool struck, struck_here;
    uint32_t redirects; /* that it answered */
    uint32_t refusals;
    /* as our follower */
    bool joined;
    struct hth_rpc_request *held; /* NULL between two JOINs */
    int64_t until_us;             /* held: answer WAIT then; not held: given up then */
    int64_t joined_us;            /* first */
    int64_t left_us;              /* end of its window, on our clock */
    struct hth_avg_member self;
};

struct match_telling {
    struct hth_look *look;
    struct hth_rpc_call *call; /* NULL: answered, or none */
    struct hth_match_known to;
};

struct hth_look {
    struct hth_match *match;
    struct hth_look_opts opts;
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    size_t key_len;
    uint64_t nonce;
    struct hth_hash mark;
    struct hth_topic topic;
    struct hth_board *board;    /* judges notes, and from public_us on is watched */
    struct hth_publisher *note; /* NULL before */
    int64_t public_us;          /* INT64_MAX: it is public */
    uint8_t *own;               /* our declaration, signed, for TELLs */
    size_t own_len;
    struct match_telling telling[HTH_AVG_TELL_MAX];
    struct hth_timer *timer;
    int64_t turn_us;               /* when it was to run */
    struct match_looker **lookers; /* in the order */
    uint32_t count, capacity;
    int64_t made_us, end_us;
    struct hth_peer_id leader; /* as this look knew last; itself when it leads */
    int64_t since_us;          /* when it came to know that */
    /* as a follower */
    struct hth_rpc_call *call;
    struct hth_peer_id asked; /* whom the call goes to */
    int64_t asked_us;
    int64_t pause_us; /* no call before */
    enum hth_avg_reason last_refusal;
    /* the end */
    bool done;
    struct hth_look_result result;
};

struct match_begun {
    struct hth_avg_group *group; /* NULL: free */
    int64_t until_us;
    int64_t match_us;
};

/* What a peer said to us last about where it looks, for one schema. */
struct match_heard {
    struct hth_peer_id id;
    uint64_t schema;
    struct hth_avg_line line;
    uint8_t *record; /* signed, not judged yet; NULL after a JOIN */
    size_t record_len;
    int64_t said_us;  /* by its clock */
    int64_t until_us; /* 0: free */
};

struct hth_match {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_dht *dht;
    struct hth_match_opts opts;
    char network[HTH_NAME_LEN_MAX + 1];
    struct hth_record_cache *cache;
    struct hth_look *look; /* NULL: none */
    struct match_begun begun[HTH_AVG_BEGUN_MAX];
    uint32_t begun_next;
    struct match_heard heard[HTH_AVG_HEARD_MAX];
    int64_t clock_said_us; /* when the log last spoke of clocks; 0: never */
    bool version_said;     /* it spoke of another version */
    int64_t usual_rtt_us;  /* of those who were told; 0: of none it is known */
    struct hth_match_stats stats;
};

/* match.c */
void hth_match_answer(struct hth_match *m, struct hth_rpc_request *req,
                      const struct hth_join_reply *reply);
/* Keeps a copy for members that ask later. */
void hth_match_remember(struct hth_match *m, const struct hth_avg_group *group, int64_t match_us);
/* The members in the group's order, its id derived from the line, the schema and all that is said
 * of the members; `self` is count when this peer is not in it. Errors: as hth_avg_group_id, and
 * E_RANGE when more only reduce than average. */
enum hth_err hth_match_group(struct hth_look *look, const struct hth_avg_member *members,
                             uint32_t count, struct hth_avg_group **out) HTH_MUST;
/* Our look, if it is in that line; else why not: *reason is WAIT, or not. */
struct hth_look *hth_match_look_of(const struct hth_match *m, const struct hth_avg_line *line,
                                   uint64_t schema, enum hth_avg_reason *reason);
/* Says, once a minute, that this peer's clock is too far from ours. */
void hth_match_clocks_differ(struct hth_match *m, const struct hth_peer_id *id);

/* match_tell.c */
void hth_match_tell_serve(struct hth_match *m);
/* Keeps what was said. */
void hth_match_hear_join(struct hth_match *m, const struct hth_join_msg *join);
/* Signs our declaration, tells it to those known, and takes up what was told to us before. *all:
 * there was room to tell all of them, and somebody to tell. */
enum hth_err hth_look_tell(struct hth_look *look, bool *all) HTH_MUST;

/* match_look.c */
void hth_look_poke(struct hth_look *look);
/* Whether (mode, mark, id) comes before this peer itself. */
bool hth_look_precedes_us(const struct hth_look *look, enum hth_avg_mode mode,
                          const struct hth_peer_id *id);
struct match_looker *hth_look_find(const struct hth_look *look, const struct hth_peer_id *id);
/* NULL: HTH_AVG_LOOKERS_MAX are known, or of helpers HTH_AVG_HELPERS_MAX that come before it. Such
 * a one may make room: it is gone then; so is who was known in another mode, and finds no room in
 * this one. */
struct match_looker *hth_look_get(struct hth_look *look, const struct hth_peer_id *id,
                                  enum hth_avg_mode mode);
void hth_look_forget(struct hth_look *look, struct match_looker *l);
void hth_look_strike(struct hth_look *look, struct match_looker *l, bool here);
/* That peer lives: its declaration counts, unless it was found out here that it is of no use. */
void hth_look_spoke(struct hth_look *look, const struct hth_peer_id *id);
/* How long a call to that peer may take: the options' silence, or two round trips where these take
 * longer; a handshake more without a connection; and how late we are ourselves. */
int64_t hth_look_silence_us(const struct hth_look *look, const struct hth_peer_id *id);
/* Who should lead as far as this look knows; NULL: itself. */
struct match_looker *hth_look_leader(struct hth_look *look);
/* When a group should begin at the latest. Who follows a new leader, or leads anew, gives it a
 * moment even when the window is over. */
int64_t hth_look_until(const struct hth_look *look);
/* Ends it at the end of this turn. */
void hth_look_end(struct hth_look *look, enum hth_err err, enum hth_avg_reason reason,
                  struct hth_avg_group *group);
enum hth_err hth_look_declaration(const struct hth_look *look, struct hth_writer *w) HTH_MUST;
int64_t hth_look_life_us(const struct hth_look *look);
/* The own declaration. */
struct hth_avg_member hth_look_self(const struct hth_look *look);

/* match_follow.c */
/* Asks the leader, unless it is being asked. Returns when to look again. */
int64_t hth_look_follow(struct hth_look *look, struct match_looker *l);
void hth_look_drop_call(struct hth_rpc_call **call);

/* match_lead.c */
void hth_lead_join(struct hth_look *look, struct hth_rpc_request *req,
                   const struct hth_join_msg *join);
/* It is about to be forgotten: answers what it asked. */
void hth_lead_turn_away(struct match_looker *l);
/* Sends the followers to that looker (NULL: away). */
void hth_lead_dismiss(struct hth_look *look, const struct match_looker *to,
                      enum hth_avg_reason reason);
/* Begins the group or ends the look if it is time; else answers held JOINs that are due and gives
 * up followers that did not come back. Returns when to look again. */
int64_t hth_lead_turn(struct hth_look *look);

#endif
