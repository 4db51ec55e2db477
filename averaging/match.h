/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match.h: how the peers of one line agree who is a group.
 *
 * A peer that wants to average *looks*: it sends a JOIN to the *host* of its line and waits. The
 * host is the first peer of the line, in an order by hash(line key, id), that can be dialled and
 * that the owner knows of, the looker itself included. It keeps the table of its line whether it
 * looks or not, and answers all JOINs at once when the group begins:
 *
 *     looker                                 host: the first of the line
 *        | --- JOIN {line, schema, self} ----------> |
 *        | <-- pings, both ways -------------------> |  nobody is silent
 *        | <-- OK {members} ------------------------ |  all of the line have joined
 *
 * The host waits for all peers of the line that its owner says are due, and for nobody longer than
 * the earliest window among those who joined. A group has at most HTH_AVG_MEMBERS_MAX / 2 members
 * who average, the first in the order of their modes and hashes, and as many helpers as those; a
 * list with more helpers is refused. Whoever is beyond that hears FULL.
 *
 * A lost connection ends the wait for a peer at once, and so does silence: no byte for SILENCE and
 * two round trips, and DIAL more without a connection. A looker goes to the next host when its host
 * is lost, silent, refuses it or sends nonsense. Two views of a line may make two groups, and a
 * host that dies as it begins makes a smaller one: that costs a round.
 *
 * Every member checks the list (itself in it as it described itself, nobody twice, numbers in
 * range) and derives the group's id and the order of members from it: members to whom a host lists
 * different things are in different groups.
 *
 * Bounded, whatever others send: one look, HTH_AVG_LOOKERS_MAX who joined, of them
 * HTH_AVG_HELPERS_MAX helpers. Loop thread. No callback runs inside a call of this header or frees
 * it.
 */
#ifndef HTH_AVERAGING_MATCH_H
#define HTH_AVERAGING_MATCH_H

#include "averaging/match_msg.h"
#include "core/env.h"

struct hth_rpc;
struct hth_match;

#define HTH_MATCH_METHOD_JOIN 64

#define HTH_MATCH_NOTE_US (500 * HTH_US_PER_MS) /* so old are notes of peers when they are seen */

/* Of a line. */
#define HTH_MATCH_PEERS_MAX HTH_AVG_MEMBERS_MAX
struct hth_match_peer {
    struct hth_peer_id id;
    struct hth_addr addr; /* family 0: it can't be dialled */
    int64_t wait_us;      /* that a host waits for it after the first has joined */
};

struct hth_match_opts {
    struct hth_addr addr; /* where others reach this peer; family 0: only as a client */
    uint32_t group_min;   /* members who average */
    /* OK: this peer stands in that line and averages that; else why it does not. */
    enum hth_avg_reason (*judge)(void *arg, const struct hth_avg_line *line, uint64_t schema);
    /* Fills in the peers of the line, this one first; returns how many. *all: every peer of the run
     * is known. Where they are not, a host waits for as many as the line has cells. */
    uint32_t (*peers)(void *arg, const struct hth_avg_line *line,
                      struct hth_match_peer out[HTH_MATCH_PEERS_MAX], bool *all);
    /* That peer was lost, or silent: it is not there. `lied`: as a host it sent nonsense, or nothing
     * until the window was over. */
    void (*gone)(void *arg, const struct hth_peer_id *id, bool lied);
    void *arg;
};

/* Serves the method on `rpc`. */
struct hth_match *hth_match_new(struct hth_env *env, struct hth_rpc *rpc,
                                const struct hth_match_opts *opts);
/* Ends the look without a callback. NULL is fine. */
void hth_match_free(struct hth_match *match);
/* The peers of a line, or this peer's place, may have changed. */
void hth_match_nudge(struct hth_match *match);

struct hth_match_stats {
    uint64_t led; /* groups begun here as host */
    uint64_t joins_out;
    uint32_t looks_now, followers_now;
};
void hth_match_stats(const struct hth_match *match, struct hth_match_stats *out);

/* How a look ended. The group is the callback's: free it with hth_free. */
struct hth_look_result {
    enum hth_avg_reason reason;  /* OK, or why there is no group */
    struct hth_avg_group *group; /* NULL unless OK */
    int64_t wait_us;             /* until the group's begin */
    int64_t match_us;            /* of that: after the last member had come */
};

typedef void hth_look_done_fn(void *arg, const struct hth_look_result *result);

struct hth_look_opts {
    struct hth_avg_line line;
    uint64_t schema;
    enum hth_avg_mode mode;
    double bandwidth, weight;
    int64_t window_us;      /* at most HTH_AVG_WINDOW_MAX_US */
    hth_look_done_fn *done; /* exactly once, unless stopped; the look is over then */
    void *arg;
};

/* While none is under way. The caller has checked the numbers: they go to others as they are. */
void hth_match_look(struct hth_match *match, const struct hth_look_opts *opts);
/* Ends the look, if there is one: no callback comes any more. */
void hth_match_stop(struct hth_match *match);

#endif
