/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match.h: how the peers of one line agree who is a group.
 *
 * A peer that wants to average *looks*: it sends a JOIN to the *host* of its line and waits. The
 * host is the first of all peers in the roster that can be dialled, in an order by hash(line key,
 * id); it need not stand in the line, nor look itself. It keeps a table of who joined, and answers
 * all of a line at once when their group begins:
 *
 *     looker                                 host
 *        | --- JOIN {line, schema, self} ----------> |
 *        | <-- pings, both ways -------------------> |  nobody is silent
 *        | <-- OK {members} ------------------------ |  all of the line have joined
 *
 * Where the roster shows all peers the host waits for those of the line that are in its round or
 * one behind, else for as many as the line has cells; and for nobody longer than the earliest
 * window among those who joined. A group has at most HTH_AVG_MEMBERS_MAX / 2 members who average,
 * the first in the order of their modes and hashes, and as many helpers as those; a list with more
 * helpers is refused. Whoever is beyond that hears FULL.
 *
 * A lost connection ends the wait for a peer at once, and so does silence: no byte for SILENCE and
 * two round trips, and DIAL more without a connection. A looker goes to the next host when its host
 * is lost, silent, refuses it, sends nonsense, or does not answer by the request's deadline. Two
 * views of the roster may make two groups, and a host that dies as it begins makes a smaller one:
 * that costs a round.
 *
 * Every member checks the list (itself in it as it described itself, nobody twice, numbers in
 * range) and derives the group's id and the order of members from it: members to whom a host lists
 * different things are in different groups.
 *
 * Bounded, whatever others send: one look, HTH_AVG_LOOKERS_MAX who joined. Loop thread. No callback
 * runs inside a call of this header or frees it.
 */
#ifndef HTH_AVERAGING_MATCH_H
#define HTH_AVERAGING_MATCH_H

#include "averaging/averager.h"
#include "averaging/roster.h"

struct hth_rpc;
struct hth_match;

#define HTH_MATCH_METHOD_JOIN 64

/* ---- members and messages -------------------------------------------------------------------- */

/* On the wire; in the order in which they have their places in a group. */
enum hth_avg_mode {
    HTH_AVG_TRAINER = 0,
    HTH_AVG_HELPER = 1, /* has no values: only reduces */
    HTH_AVG_CLIENT = 2  /* can't be dialled: reduces nothing */
};

/* Trainers and clients bring values; trainers and helpers reduce, and can be dialled. */
static inline bool hth_avg_mode_brings(uint32_t mode)
{
    return mode == HTH_AVG_TRAINER || mode == HTH_AVG_CLIENT;
}
static inline bool hth_avg_mode_reduces(uint32_t mode)
{
    return mode == HTH_AVG_TRAINER || mode == HTH_AVG_HELPER;
}

struct hth_avg_member {
    struct hth_peer_id id;
    struct hth_addr addr; /* family 0 of a client */
    enum hth_avg_mode mode;
    double bandwidth; /* 0 of a client, or not known */
    double weight;    /* 0 of a helper */
    uint64_t nonce;   /* drawn for each look, so that no two groups have the same id */
};

/* The members of one average; each of them has the same, but for `self`. */
struct hth_avg_group {
    struct hth_hash id;
    uint32_t count, self;
    struct hth_avg_member member[]; /* by their marks (grid.h) under the group's id */
};

/* The first byte of a JOIN. Raise it when members are to read each other's bytes, here or in
 * reduce.proto, in another way: programs of two versions form no group (OTHER_VERSION). */
#define HTH_MATCH_VERSION        6

#define HTH_JOIN_BYTES_MAX       256
#define HTH_JOIN_REPLY_BYTES_MAX (5 + 76 * HTH_AVG_MEMBERS_MAX)

/* Method 64, JOIN, to the host of the line. The request's deadline is the end of the window and 2
 * s, for the answer's way. */
struct hth_join_msg {
    struct hth_avg_line line;
    uint64_t schema;
    struct hth_avg_member self; /* without id: the connection says who it is */
};

/* Its answer, when the group begins, or with why there is none. */
struct hth_join_reply {
    enum hth_avg_reason reason;
    uint32_t count;
    struct hth_avg_member member[HTH_AVG_MEMBERS_MAX]; /* of OK: everybody in the group */
};

/* `out` has HTH_JOIN_BYTES_MAX and HTH_JOIN_REPLY_BYTES_MAX; they return the number of bytes. An
 * unknown reason is kept as it is. Errors: E_MALFORMED, E_RANGE (a number), E_TOO_LARGE (axes, or
 * members beyond HTH_AVG_MEMBERS_MAX), E_TRUNCATED, E_VERSION. */
size_t hth_join_write(const struct hth_join_msg *m, uint8_t *out);
enum hth_err hth_join_read(const uint8_t *data, size_t len, struct hth_join_msg *out) HTH_MUST;
size_t hth_join_reply_write(const struct hth_join_reply *m, uint8_t *out);
enum hth_err hth_join_reply_read(const uint8_t *data, size_t len,
                                 struct hth_join_reply *out) HTH_MUST;

/* Of an answer with OK, its members in the group's order. The id is derived from line, schema and
 * the answer's bytes; `self` is count when that peer is not in it. Free it with hth_free. Errors:
 * E_RANGE (more that only reduce than average), E_DUPLICATE (a peer is named twice). */
enum hth_err hth_avg_group_new(const struct hth_crypto *crypto, const struct hth_peer_id *self,
                               const struct hth_avg_line *line, uint64_t schema,
                               const uint8_t *data, size_t len, const struct hth_join_reply *reply,
                               struct hth_avg_group **out) HTH_MUST;

/* ---- matchmaking ----------------------------------------------------------------------------- */

/* Serves the method on `rpc`. Groups have at least group_min members who average. */
struct hth_match *hth_match_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_roster *roster,
                                uint32_t group_min);
/* Ends the look without a callback. NULL is fine. */
void hth_match_free(struct hth_match *match);
/* The roster has changed. */
void hth_match_nudge(struct hth_match *match);

struct hth_match_stats {
    uint64_t led; /* groups begun here as host */
    uint64_t joins_out;
    uint32_t looks_now, followers_now;
};
void hth_match_stats(const struct hth_match *match, struct hth_match_stats *out);

/* How a look ended: OK with a group, which is the callback's (hth_free), or why there is none. */
typedef void hth_look_done_fn(void *arg, enum hth_avg_reason reason, struct hth_avg_group *group,
                              int64_t waited_us);

/* While none is under way, for at most HTH_AVG_WINDOW_MAX_US. Of `self` mode, bandwidth and weight
 * count, which the caller has checked: they go to others as they are. `done` comes exactly once,
 * unless stopped; the look is over then. */
void hth_match_look(struct hth_match *match, const struct hth_avg_line *line,
                    const struct hth_avg_member *self, int64_t window_us, hth_look_done_fn *done,
                    void *arg);
/* Ends the look, if there is one: no callback comes any more. */
void hth_match_stop(struct hth_match *match);

/* How many rounds that peer, which may meet us, is ahead: rounds are numbers on a circle, and
 * whatever somebody says, others are a few ahead or behind. */
static inline int32_t hth_match_ahead(uint32_t theirs, uint32_t ours)
{
    return (int32_t)(theirs - ours);
}
/* It stands in the line, whatever its round. */
bool hth_match_in_line(const struct hth_roster_note *note, const struct hth_avg_line *line);

#endif
