/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match_int.h: the parts of the matchmaker.
 *
 *   match.c        the node: JOINs that arrive, groups that have begun, life of looks
 *   match_look.c   one look: its board and note, the order of those seen, its turn and end
 *   match_follow.c one look as follower: whom it asks, and what it is told
 *   match_lead.c   one look as leader: who is there, who is waited for, the cut into groups
 *   match_tell.c   declarations that go straight to those who may care
 *   match_msg.c    bytes
 *
 * A look acts in one place only, match_look.c:on_turn, which runs from its timer. Everything that
 * happens to it (a note, a JOIN, an answer, the caller's word) changes its state and pokes the
 * timer.
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
    bool early;         /* struck because it did not look yet: it is waited for where it is due */
    bool slow;          /* no connection comes about: another leads meanwhile, if there is one */
    bool doubted;       /* somebody else who would follow it found that it does not answer */
    uint32_t redirects; /* that it answered */
    uint32_t refusals;
    bool keeps; /* it answered WAIT */
    /* as our follower */
    bool joined, ready;
    struct hth_rpc_request *held; /* NULL between two JOINs */
    int64_t until_us;             /* held: answer WAIT then; not held: given up then */
    int64_t ready_us;             /* when it had come and was ready */
    int64_t left_us;              /* end of its window, on our clock */
    struct hth_avg_member self;
};

/* After a leader was lost, others are asked whether it began a group that we did not hear of. */
#define HTH_LOOK_PROBES 4
struct match_probe {
    struct hth_look *look;
    struct hth_rpc_call *call; /* NULL: none */
};

/* A TELL, or a call for somebody to stand in. Who is waited for is told again and again: it
 * lives. */
struct match_telling {
    struct hth_look *look;
    struct hth_rpc_call *call; /* NULL: answered, or none */
    struct hth_match_known to;
    int64_t told_us;
    int64_t due_us;             /* when the answer should be there at the latest */
    uint32_t missing;           /* as of hth_tell; 0: no call */
    enum hth_avg_reason reason; /* its last answer; OK: none yet */
    int64_t again_us;           /* not told again before; 0: it never was */
    int64_t slow_us;            /* no connection comes about: another is called from then on */
};

struct hth_look {
    struct hth_match *match;
    struct hth_look_opts opts;
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    size_t key_len;
    uint8_t part; /* of its note: several looks in one line differ by schema */
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
    int64_t turn_us;         /* when it was to run */
    struct match_looker **lookers; /* in the order */
    uint32_t count, capacity;
    int64_t made_us, ready_us, end_us;
    struct hth_peer_id leader;    /* as this look knew last; itself when it leads */
    int64_t since_us;             /* when it came to know that */
    struct hth_peer_id waits_for; /* as leader, the longest: for the log */
    int64_t lost_us;              /* when it last found out that somebody is not there */
    /* as a follower */
    struct hth_rpc_call *call;
    struct hth_peer_id asked; /* whom the call goes to */
    bool asked_ready;         /* what it said */
    int64_t asked_us;
    int64_t answer_us; /* when the answer should be there, if we were not late ourselves */
    int64_t pause_us;  /* no call before */
    bool lost;         /* a leader, since the last probes */
    struct match_probe probe[HTH_LOOK_PROBES];
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
    bool observes;   /* it brings nothing there */
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
    struct hth_look *looks[HTH_AVG_LOOKS_MAX];
    struct match_begun begun[HTH_AVG_BEGUN_MAX];
    uint32_t begun_next;
    struct match_heard heard[HTH_AVG_HEARD_MAX];
    int64_t clock_said_us; /* when the log last spoke of clocks; 0: never */
    bool version_said;     /* it spoke of another version */
    int64_t usual_rtt_us;  /* of those who were told; 0: of none it is known */
    struct hth_match_stats stats;
};

/* match.c */
/* How many may observe in a group where so many average. */
static inline uint32_t hth_match_observers_max(uint32_t averaging)
{
    return (averaging + 1) / 2;
}
/* How long a handshake may take, by how far those are who answered. */
int64_t hth_match_dial_us(const struct hth_match *m);
void hth_match_note_rtt(struct hth_match *m, const struct hth_peer_id *id);
void hth_match_answer(struct hth_match *m, struct hth_rpc_request *req,
                      const struct hth_join_reply *reply);
void hth_match_refuse(struct hth_match *m, struct hth_rpc_request *req, enum hth_avg_reason reason);
/* Keeps a copy for members that ask later. */
void hth_match_remember(struct hth_match *m, const struct hth_avg_group *group, int64_t match_us);
/* The members in the group's order, its id derived from the line, the schema and all that is said
 * of the members; `self` is count when this peer is not in it. Errors: as hth_avg_group_id, and
 * E_RANGE when more only reduce than average, or more than half as many observe. */
enum hth_err hth_match_group(struct hth_look *look, const struct hth_avg_member *members,
                             uint32_t count, struct hth_avg_group **out) HTH_MUST;

/* match_look.c */
void hth_look_poke(struct hth_look *look);
/* Whether (mode, mark, id) comes before this peer itself. */
bool hth_look_precedes_us(const struct hth_look *look, enum hth_avg_mode mode,
                          const struct hth_peer_id *id);
/* Where this peer stands along the round's axis. */
uint32_t hth_look_at(const struct hth_look *look);
bool hth_look_excludes(const struct hth_look *look, const struct hth_peer_id *id);
struct match_looker *hth_look_find(const struct hth_look *look, const struct hth_peer_id *id);
/* NULL: HTH_AVG_LOOKERS_MAX are known, or of those who only reduce HTH_AVG_HELPERS_MAX, or of those
 * who observe HTH_AVG_OBSERVERS_MAX, that come before it. Such a one may make room: it is gone
 * then; so is who was known in another mode, and finds no room in this one. */
struct match_looker *hth_look_get(struct hth_look *look, const struct hth_peer_id *id,
                                  enum hth_avg_mode mode);
void hth_look_forget(struct hth_look *look, struct match_looker *l);
void hth_look_strike(struct hth_look *look, struct match_looker *l, bool here);
/* That peer lives: its declaration counts, unless it was found out here that it is of no use. */
void hth_look_spoke(struct hth_look *look, const struct hth_peer_id *id);
/* What means that it is not there: the options' silence, or two round trips where these take
 * longer. */
int64_t hth_look_silence_us(const struct hth_look *look, const struct hth_peer_id *id);
bool hth_look_connected(const struct hth_look *look, const struct hth_peer_id *id);
/* Who should lead as far as this look knows; NULL: itself. */
struct match_looker *hth_look_leader(struct hth_look *look);
/* When a group should begin at the latest. Who follows a new leader, or leads anew, gives it a
 * moment even when the window is over. */
int64_t hth_look_until(const struct hth_look *look);
/* Ends it at the end of this turn. */
void hth_look_end(struct hth_look *look, enum hth_err err, enum hth_avg_reason reason,
                  struct hth_avg_group *group);

/* match_follow.c */
/* Asks the leader, unless it is being asked. Returns when to look again. */
int64_t hth_look_follow(struct hth_look *look, struct match_looker *l);
/* After a leader was lost: whether it began a group that we did not hear of. */
void hth_look_probe(struct hth_look *look);
void hth_look_drop_call(struct hth_rpc_call **call);
/* That peer, which comes before us, asks us, as those do whose leader was lost. */
void hth_look_doubt(struct hth_look *look, const struct hth_peer_id *by);

/* match_tell.c */
void hth_match_tell_serve(struct hth_match *m);
/* Keeps what was said, at said_us by the speaker's clock. */
void hth_match_hear_join(struct hth_match *m, const struct hth_join_msg *join);
/* For who counts those that live, and those that can be met. */
void hth_match_spoke(struct hth_match *m, const struct hth_peer_id *id, uint64_t step);
void hth_match_apart(struct hth_match *m, const struct hth_peer_id *id);
/* Signs our declaration, tells it to those known, and takes up what was told to us before. *all:
 * there was room to tell all of them, and somebody to tell. */
enum hth_err hth_look_tell(struct hth_look *look, bool *all) HTH_MUST;
void hth_look_tell_end(struct hth_look *look);
/* Tells somebody who is due and not here, or calls it to stand in, unless it was asked just now.
 * Returns when to look again. */
int64_t hth_look_ask(struct hth_look *look, const struct hth_match_due *due);
/* When it is known at the latest whether somebody who is being told, over a connection, is there;
 * INT64_MIN: it is not being told. */
int64_t hth_look_asked_until(const struct hth_look *look, const struct hth_peer_id *id);
struct hth_look *hth_match_look_of(struct hth_match *m, const struct hth_avg_line *line,
                                   uint64_t schema);
/* Why no look of ours fits. */
enum hth_avg_reason hth_match_mismatch(const struct hth_match *m, const struct hth_avg_line *line);
enum hth_err hth_look_declaration(const struct hth_look *look, struct hth_writer *w) HTH_MUST;
int64_t hth_look_life_us(const struct hth_look *look);

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
