/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roster_int.h (internal): the roster's parts.
 *
 *   roster.c        the board of the others' notes, this peer's own note
 *   roster_count.c  who counts: levels of sampling, doubts
 *   roster_grid.c   shapes, generations, cells
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
    uint32_t seen[65], parts[65]; /* notes, and those that count, by zeros of the mark */
    /* this peer */
    struct hth_roster_note self;
    struct hth_publisher *note; /* NULL before its slot, or when it never spoke */
    bool speaking;              /* the note is up */
    bool leaving;
    struct hth_roster_note said; /* as last published */
    int64_t said_us;             /* when */
    bool placed;                 /* self.cell is of this generation */
    /* sampling */
    uint32_t high;          /* notes seen beyond which the level rises */
    uint32_t level;         /* decides who posts */
    uint32_t counted_level; /* of the estimates: follows `level` down a little later */
    int64_t slot_at_us, lower_at_us, counted_at_us; /* 0: not due */
    int64_t recount_at_us; /* when a doubt ends; INT64_MAX: there is none */
    /* shapes */
    int64_t review_at_us; /* when patience ends; 0: the shape fits */
    bool other_shapes;    /* some may hold another */
    int64_t follow_at_us; /* when this peer goes with most others; 0: they hold no other */
    /* refusals */
    int64_t refused_us;    /* the latest, on our clock */
    int64_t clock_said_us; /* when the log last spoke of clocks; 0: never */
    struct hth_timer *tick, *change;
    int64_t tick_at_us; /* 0: not armed */
    bool changed, freed;
    hth_fn *left;
    void *left_arg;
    struct hth_roster_stats stats;
};

/* ---- roster.c ---- */
struct hth_roster_peer *hth_roster_get(const struct hth_roster *r, const struct hth_peer_id *id);
/* on_change comes in the next turn. */
void hth_roster_tell_change(struct hth_roster *r);
/* The note has changed in a way that others should know soon. */
void hth_roster_say(struct hth_roster *r);
/* What is said but once in a life, and all wait for. */
void hth_roster_say_now(struct hth_roster *r);
void hth_roster_tick_at(struct hth_roster *r, int64_t at_us);

/* ---- roster_count.c ---- */
/* Takes part in rounds and batches: of our schema and with state. */
bool hth_roster_takes_part(const struct hth_roster *r, const struct hth_roster_note *note);
/* ... and is not in doubt. */
bool hth_roster_counts(const struct hth_roster *r, const struct hth_roster_peer *p);
bool hth_roster_self_counts(const struct hth_roster *r);
/* Leading zeros of the id's mark: it is below a level with as many. */
uint32_t hth_roster_zeros(const struct hth_peer_id *id);
/* One that came, or is gone or about to change. */
void hth_roster_count(struct hth_roster *r, const struct hth_roster_peer *p, bool in);
/* All of them, when doubts begin or end: thousands of rosters that walk at each note take long. */
void hth_roster_recount(struct hth_roster *r);
void hth_roster_adjust_level(struct hth_roster *r);

/* ---- roster_grid.c ---- */
/* Before a note is said: whoever holds a new shape stands somewhere in it. */
void hth_roster_place(struct hth_roster *r);
/* Takes the others' shape, or proposes one when the present one has not fitted for long enough. */
void hth_roster_review(struct hth_roster *r);

#endif
