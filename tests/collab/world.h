/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.h: searches all orders of events in small worlds of the roll call, on the production code.
 *
 * A world has 2 to 5 members, each with its own struct hth_choice, and a chain that they share: a
 * link that several make is one link. From the first state every event that can happen next is
 * tried, breadth first, so the first violation found has the shortest trace.
 *
 *   READY    is heard by its caller at once, not across a cut; the caller may act at any later time
 *   GO CALL  lie in the receiver's box until it takes them, or are lost with a cut or their sender
 *   round    lines of values. One line: `shares` reducers, each closes its share once, over those
 *            who gave. Grid 2x2: two columns, then two rows; for an empty cell the other one of its
 *            column brings the column's mean
 *   loss     whoever does not run, or is cut off, may be given up at any moment from then on
 *   time     passes only when nothing else can happen; then windows end (enum hth_choice_time)
 *   faults   crash, freeze (goes on later), cut of a pair, partition (both heal), a false suspicion
 *            (a member leaves its caller, or a caller or reducer does not wait), leaving, a round
 *            whose mean any set of its members refuses: at every state, as many as the world has.
 *            A crashed member is another one if it starts again
 *
 * Promises checked, from the links alone and by the text of chain.h, not by its code:
 *   S1  strict: no two links of one step both have a successor
 *   S2  no batch of a member is in two links of one chain
 *   S3  where nothing can happen any more, all who run are at the last step, on one chain, if a
 *       majority runs; in a partition, those of the part with a majority. Ballots and moves between
 *       forks are bounded, and a bound that is hit is a violation: so there is no live-lock
 *   S4  eventual, or two geneses: after healing one chain is left
 *   S5  members that hold one head hold the same bits
 *   S6  no step stands on a link while a quorum of those who choose it refuses it
 */
#ifndef HTH_TESTS_COLLAB_WORLD_H
#define HTH_TESTS_COLLAB_WORLD_H

#include "core/base.h"

enum {
    WORLD_CRASH = 1,
    WORLD_FREEZE = 2,
    WORLD_CUT = 4,
    WORLD_PART = 8,
    WORLD_SUSPECT = 16,
    WORLD_LEAVE = 32,
    WORLD_REFUSE = 64,
    WORLD_ANY = 31 | WORLD_REFUSE
};

struct world {
    const char *name;
    int members, newcomers;
    int shares; /* reducers of the line, if it is no grid */
    bool grid, eventual, genesis;
    int steps;
    int faults;
    unsigned kinds; /* WORLD_ of faults */
    bool large;     /* left out under sanitizers */
    bool links;     /* S1, S2 and S5 alone, not whether all get on */
    unsigned seed;  /* of the order of voters: who calls first, whose head is smaller */
};

struct world_found {
    char why[64]; /* empty: no violation */
    size_t states, ends, links;
};

/* Searches a world. Prints the shortest trace of a violation on stderr if `show`. */
struct world_found world_search(const struct world *w, bool show);

#endif
