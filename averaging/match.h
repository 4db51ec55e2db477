/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match.h: how the peers of one line find each other and agree who is a group.
 *
 * A peer that wants to average *looks* in its line, and says so with a JOIN to the peers that its
 * owner knows in it. All lookers have one place in an order that nobody can choose: trainers,
 * helpers, clients, and within these by hash(line key, id). A looker that knows of a smaller one
 * follows the smallest it knows; one that knows of none leads. So requests only go from larger to
 * smaller, and can't wait for each other in a circle.
 *
 *     follower                              leader (the smallest of the line)
 *        | --- JOIN {line, schema, self} ----------> |  to each that may be there
 *        | <-- WAIT {the callee itself} ------------ |  "I look there, too"
 *        | --- JOIN {..., follows} ----------------> |  again each beat:    "still here"
 *        | <-- WAIT -------------------------------- |
 *        | <-- BEGIN {members} --------------------- |  all of the line are there
 *
 * A lost connection ends the wait for a peer at once, and so does silence: of a follower for a beat
 * and SILENCE, of a leader for SILENCE (or two round trips, and a handshake more without a
 * connection). The next in the order takes over. A leader that learns of a smaller looker follows
 * it, and names it to its own followers (NOT_LEADER), who ask that one itself. Where a leader dies
 * as it begins, some have heard it and some have not: who is asked by a member of its own group
 * answers with the list, and so these come too.
 *
 * When a group begins. The leader waits for everybody it knows of: lookers, and peers that the
 * owner says are due. It waits for no looker longer than PATIENCE after it could have heard of it,
 * and for nobody once the earliest window among it and its followers is over. A group has at most
 * HTH_AVG_MEMBERS_MAX / 2 members who average, the first in the order, and as many helpers as
 * those; a list with more helpers is refused. Whoever is beyond that hears FULL, and follows the
 * next. Fewer than group_min at the window's end: the look ends ALONE or TOO_FEW, or for the last
 * refusal's reason.
 *
 * Every member checks the list (itself in it as it described itself, nobody twice, numbers in
 * range) and derives the group's id and the order of members from it: members to whom a leader
 * lists different things are in different groups. A peer that refuses or does not answer is struck
 * off until it speaks again, a few times.
 *
 * Bounded, whatever others send: one look, HTH_AVG_LOOKERS_MAX lookers of its line, of them
 * HTH_AVG_HELPERS_MAX helpers. Loop thread. No callback runs inside a call of this header
 * or frees it.
 */
#ifndef HTH_AVERAGING_MATCH_H
#define HTH_AVERAGING_MATCH_H

#include "averaging/grid.h"
#include "averaging/reason.h"
#include "core/env.h"
#include "core/limits.h"

struct hth_rpc;
struct hth_match;
struct hth_look;

#define HTH_MATCH_METHOD_JOIN  64
#define HTH_MATCH_METHOD_BEGIN 65

/* On the wire; in the order in which they lead. */
enum hth_avg_mode {
    HTH_AVG_TRAINER = 0,
    HTH_AVG_HELPER = 1, /* has no values: only reduces */
    HTH_AVG_CLIENT = 2  /* can't be dialled: reduces nothing */
};

struct hth_avg_member {
    struct hth_peer_id id;
    struct hth_addr addr; /* family 0 of a client */
    enum hth_avg_mode mode;
    double bandwidth; /* 0 of a client, or not known */
    double weight;    /* 0 of a helper */
    uint64_t nonce;   /* drawn for each look, so that no two groups have the same id */
};

/* Who averages with whom; every member has the same, but for `self`. */
struct hth_avg_group {
    struct hth_hash id;
    struct hth_avg_line line;
    uint64_t schema;
    uint32_t count, self;
    struct hth_avg_member member[]; /* by their marks (grid.h) under the group's id */
};

/* ---- the node's matchmaker ----------------------------------------------------------------- */

struct hth_match_opts {
    struct hth_addr addr; /* where others reach this peer; family 0: only as a client */
    /* That peer looks in that line, as it says at that time of its clock; may be NULL. */
    void (*spoke)(void *arg, const struct hth_peer_id *id, const struct hth_avg_line *line,
                  uint64_t schema, int64_t wall_us);
    void *arg;
};

/* Serves the methods on `rpc`. */
struct hth_match *hth_match_new(struct hth_env *env, struct hth_rpc *rpc,
                                const struct hth_match_opts *opts);
/* Ends the look without a callback. NULL is fine. */
void hth_match_free(struct hth_match *match);
/* For on_peer_lost: that peer is not waited for until it speaks again. */
void hth_match_peer_lost(struct hth_match *match, const struct hth_peer_id *peer);
/* The peers of the line may have changed. */
void hth_match_nudge(struct hth_match *match);
/* How much longer than usual a looker is waited for, where those who answered are far. */
int64_t hth_match_far_us(const struct hth_match *match);

struct hth_match_stats {
    uint64_t led; /* groups begun here as leader */
    uint64_t joins_out;
    uint32_t looks_now, followers_now;
};
void hth_match_stats(const struct hth_match *match, struct hth_match_stats *out);

/* ---- one look ------------------------------------------------------------------------------ */

/* A peer that may come into the line. */
struct hth_match_peer {
    struct hth_peer_id id;
    struct hth_addr addr; /* family 0: it is only told over a connection that exists */
    bool due;             /* it is waited for until the window is over; else for a moment */
};

/* How a look ended. The group is the callback's: free it with hth_free. */
struct hth_look_result {
    enum hth_avg_reason reason;  /* OK, ALONE, TOO_FEW, NO_LEADER, LEFT_OUT, a refusal */
    struct hth_avg_group *group; /* NULL unless OK */
    struct hth_peer_id lost;     /* of it, silent before it began; zero: nobody */
    int64_t wait_us;             /* until the group's begin */
    int64_t match_us;            /* of that: after the last member had come */
};

typedef void hth_look_done_fn(void *arg, const struct hth_look_result *result);

struct hth_look_opts {
    struct hth_avg_line line;
    uint64_t schema;
    enum hth_avg_mode mode;
    double bandwidth, weight;
    uint32_t group_min;  /* members who average */
    uint32_t group_full; /* with these it begins where not all peers are known */
    int64_t window_us;   /* at most HTH_AVG_WINDOW_MAX_US */
    /* Fills in the peers of the line besides this one, at most `max`; returns how many. *all: every
     * peer of the run is known. While they are not a full group begins at once, others at the
     * window's end. */
    uint32_t (*peers)(void *arg, struct hth_match_peer *out, uint32_t max, bool *all);
    /* That peer did not answer in time: it is not there. */
    void (*deaf)(void *arg, const struct hth_peer_id *id);
    hth_look_done_fn *done; /* exactly once, unless canceled; the look is gone then */
    void *arg;
};

/* While none is under way. The caller has checked the numbers: they go to others as they are. */
struct hth_look *hth_look_new(struct hth_match *match, const struct hth_look_opts *opts);
/* No callback comes any more. Only before the callback came. */
void hth_look_cancel(struct hth_look *look);

#endif
