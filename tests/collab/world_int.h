/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world_int.h: a state of a world, and the events that lead from one to the next (world.c), for the
 * search (search.c).
 */
#ifndef HTH_TESTS_COLLAB_WORLD_INT_H
#define HTH_TESTS_COLLAB_WORLD_INT_H

#include "world.h"

#include "collab/choice.h"

enum { NM = 5, STEPS = 6, ROUNDS = 8, LINES = 4, WINDOW = 3, BALLOTS = 24, MOVES = 12, AHEAD = 8 };
enum up { CRASHED, RUNS, FROZEN, GONE };
#define CHOICE_SIZE (sizeof(struct hth_choice) + NM * sizeof(struct hth_ready))

/* Messages on their way to a member; base or head HTH_LINK_NONE: none. */
struct go {
    uint32_t head, n, from;
};
struct call {
    struct hth_ballot ballot;
    uint64_t from;
};

struct member {
    union {
        struct hth_choice c;
        uint8_t room[CHOICE_SIZE];
    } u;
    struct go go;
    uint32_t got; /* lines whose mean it has */
    struct call call;
    uint32_t up, moves;
};

struct round {
    uint32_t head, n;
    uint8_t list, leave, fork, refuse, gave[LINES], closed[LINES], value[LINES];
    uint8_t batch[NM];
    uint8_t pad[3];
};

struct state {
    struct member m[NM];
    struct round r[ROUNDS];
    uint32_t rounds, faults;
    uint32_t went_on[STEPS]; /* the link of a step that has a successor */
    uint8_t cut[NM], pad[3];
};
_Static_assert(sizeof(struct state) % 8 == 0, "states are hashed by words");

/* The faults are from CRASH on; LATEGO, YIELD, LATECALL and FORK need time, and those that begin
 * with RASH do not wait. MOVE fetches the caller's pick, LEARN a better head; SPOIL lets a set of
 * members refuse the round's mean. */
/* clang-format off */
#define EVENTS(X)                                                                                  \
    X(ONGO) X(ONCALL) X(GIVE) X(CLOSE) X(GET) X(FAIL) X(MOVE) X(LEARN) X(PASS) X(PASSBY) X(OVER)   \
    X(GO) X(DROPGO) X(DROPCALL) X(HEAL) X(THAW) X(EXIT) X(RESTART) X(LATEGO) X(YIELD) X(LATECALL)  \
    X(FORK) X(CRASH) X(FREEZE) X(CUT) X(PART) X(SUSPECT) X(RASHGO) X(RASHCLOSE) X(SPOIL) X(LEAVE)
/* clang-format on */
#define KIND(kind) kind,
enum kind { EVENTS(KIND) };

struct event {
    uint8_t kind, m, x;
};
struct events {
    struct event e[512];
    size_t n;
};

/* The world that is searched, its members' chain, and the promise that was broken, or NULL. */
extern struct world world_now;
extern struct hth_chain *world_chain;
extern const char *world_violation;

/* The first state; makes the chain, which world_end frees. */
struct state world_begin(const struct world *w);
void world_end(void);
/* All that can happen next. */
void world_events(struct state *s, struct events *out);
void world_apply(struct state *s, struct event e);
/* Checks a state in which nothing can happen any more. */
void world_judge(const struct state *s);
/* One line of a trace on stderr: an event, and what it changed. */
void world_print(const struct state *before, struct event e, const struct state *after);

#endif
