/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roster_int.h (internal): the roster's parts.
 *
 *   roster.c        the board of the others' notes, who counts, this peer's own note
 *   roster_grid.c   its shape and cell
 *   roster_note.c   a note's bytes
 */
#ifndef HTH_AVERAGING_ROSTER_INT_H
#define HTH_AVERAGING_ROSTER_INT_H

#include "averaging/roster.h"
#include "dht/board.h"

struct hth_roster {
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_roster_opts opts;
    struct hth_topic topic;
    struct hth_board *board;
    struct hth_record_cache *cache;
    struct hth_roster_peer **peers; /* by id */
    uint32_t count, capacity;
    uint32_t seen[65], parts[65]; /* notes, and those that take part, by zeros of the mark */
    /* this peer */
    struct hth_roster_note self;
    struct hth_publisher *note; /* NULL before its slot, or when it never spoke */
    bool speaking;              /* the note is up */
    bool leaving;
    struct hth_roster_note said; /* as last published */
    int64_t said_us;             /* when */
    /* sampling */
    uint32_t level; /* decides who posts */
    int64_t slot_us, lower_us;
    int64_t settle_us; /* until then those of a lower level have not all spoken */
    bool ranked;       /* the cell is by rank, all being known */
    int64_t review_us; /* when this peer proposes a shape; 0: there is one that suits */
    /* refusals */
    int64_t refused_us;    /* the latest, on our clock */
    int64_t clock_said_us; /* when the log last spoke of clocks; 0: never */
    struct hth_timer *timer;
    int64_t turn_us; /* 0: not armed */
    bool changed, freed;
    hth_fn *left;
    void *left_arg;
    struct hth_roster_stats stats;
};

/* ---- roster.c ---- */
/* Takes part in rounds: of our schema and with values. */
bool hth_roster_takes_part(const struct hth_roster *r, const struct hth_roster_note *note);
/* Not yet: all is looked at again then. */
bool hth_roster_is_over(struct hth_roster *r, int64_t at_us);

/* ---- roster_grid.c ---- */
/* Takes the others' shape, or proposes one when none has suited for long enough; and this peer's
 * cell. */
void hth_roster_place(struct hth_roster *r);

#endif
