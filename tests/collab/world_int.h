/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world_int.h: a state of a world, and the events that lead from one to the next (world.c), for the
 * search (search.c).
 */
#ifndef HTH_TESTS_COLLAB_WORLD_INT_H
#define HTH_TESTS_COLLAB_WORLD_INT_H

#include "world.h"

#include "collab/choice.h"

enum { NM = 5, STEPS = 6, ROUNDS = 8, LINES = 4, WINDOW = 3, BALLOTS = 24, MOVES = 12 };
enum up { CRASHED, RUNS, FROZEN, GONE };
#define CHOICE_SIZE (sizeof(struct hth_choice) + NM * sizeof(struct hth_choice_seat))

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
    uint8_t list, leave, fork, gave[LINES], closed[LINES], value[LINES];
    uint8_t batch[NM];
    uint8_t pad[4];
};

struct state {
    struct member m[NM];
    struct round r[ROUNDS];
    uint32_t rounds, faults;
    uint32_t went_on[STEPS]; /* the link of a step that has a successor */
    uint8_t cut[NM], pad[3];
};
_Static_assert(sizeof(struct state) % 8 == 0, "states are hashed by words");

/* X(kind, text of the trace). The faults are from CRASH on. */
#define EVENTS(X)                                                                                  \
    X(ONGO, "takes the GO")                                                                        \
    X(ONCALL, "takes the CALL")                                                                    \
    X(GIVE, "gives to line")                                                                       \
    X(CLOSE, "closes line")                                                                        \
    X(GET, "gets line")                                                                            \
    X(FAIL, "leaves the round, it failed, line")                                                   \
    X(MOVE, "MOVE: fetches the caller's pick from")                                                \
    X(LEARN, "fetches the better head of")                                                         \
    X(PASS, "gives up its lost caller")                                                            \
    X(OVER, "takes over")                                                                          \
    X(GO, "sends GO")                                                                              \
    X(DROPGO, "never gets the GO")                                                                 \
    X(DROPCALL, "never gets the CALL")                                                             \
    X(HEAL, "the cut heals")                                                                       \
    X(THAW, "goes on after its freeze")                                                            \
    X(EXIT, "has left")                                                                            \
    X(RESTART, "starts again from its checkpoint")                                                 \
    X(LATEGO, "sends GO, window over")                                                             \
    X(LATECALL, "calls, window over")                                                              \
    X(FORK, "sends GO without a quorum")                                                           \
    X(CRASH, "CRASHES")                                                                            \
    X(FREEZE, "FREEZES")                                                                           \
    X(CUT, "LOSES its connection to")                                                              \
    X(PART, "PARTITION")                                                                           \
    X(SUSPECT, "SUSPECTS its caller")                                                              \
    X(RASHGO, "DOES NOT WAIT, sends GO")                                                           \
    X(RASHCLOSE, "DOES NOT WAIT, closes line")                                                     \
    X(LEAVE, "LEAVES")
#define KIND(kind, text) kind,
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
