/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roster.h: who takes part in a run's averaging, how far each of them is, and in which grid.
 *
 * Every trainer and helper keeps one signed PROGRESS note on a board that all of them watch: where
 * it observes, its step, the samples it has gathered towards the next one and how fast, its round,
 * its cell, and the shape of the grid that it believes in. From these notes follow
 *
 *   the population   how many there are
 *   the shape        which grid suits them, agreed on without a vote
 *   the batch        how many samples all have together by now, and when they will have enough
 *   the freshest     whom a newcomer asks for the state
 *
 * Thousands of peers must cost one reader no more than dozens. So peers are sampled: at level L
 * only those whose mark (a hash of the id) begins with L zero bits post a note, and the population
 * is those seen times 2^L. Each reader finds L by itself from what it sees, and a peer posts as
 * long as its own mark is below its own L:
 *
 *   more than H seen: L + 1      fewer than H / HTH_AVG_ROSTER_LOW_PART seen: L - 1
 *
 * H is HTH_AVG_ROSTER_HIGH, or HTH_AVG_ROSTER_WHOLE after hth_roster_need_all; up to it, L is 0 and
 * all is exact. Peers with rare marks post first (`slot_us` per bit): thousands learn L in time.
 *
 * The shape. A note carries (generation, shape). The latest generation counts, and of two with the
 * same number the one whose shape has the larger text; but what a single peer says moves nobody
 * into a grid that does not suit the population, nor often into one that does (roster_grid.c).
 * Generations go round: b is later than a when it comes within 2^31 after it, so that nobody can
 * end their line by saying the last of them. When the fill has left the bounds of
 * hth_avg_shape_review for `patience_us` (and a random part of it more), a peer that posts proposes
 * generation + 1. `shape` in the options fixes it: such peers propose and follow no
 * other, and the same one anew when peers share a cell while others are empty.
 *
 * The cell. Given by the options; else, with L = 0, this peer's rank among the sorted ids of those
 * that take part, so that M^d peers fill the grid exactly (where there are clients those who can be
 * dialled come first, across the lines: hth_avg_cell_across); else from its id. It is placed when
 * it is first asked for or told to others, and again when the generation changes; after a round its
 * owner moves it.
 *
 * The round is a counter of Lamport's kind: hth_roster_round is at least what anybody said.
 *
 * What others say is bounded and checked (a note with a number that makes no sense is refused as a
 * whole), but not proved: a liar can shift sums and shapes, as it can lie in a round. In the sums a
 * note counts for no more than it can be worth (struct hth_roster_batch).
 *
 * Loop thread. The caller's strings may go. `on_change` never comes inside a call of this header.
 */
#ifndef HTH_AVERAGING_ROSTER_H
#define HTH_AVERAGING_ROSTER_H

#include "averaging/roster_note.h"
#include "core/env.h"
#include "core/limits.h"

struct hth_dht;
struct hth_roster;

struct hth_roster_peer {
    struct hth_peer_id id;
    struct hth_roster_note note;
    uint64_t step;     /* taken so far, by the note or what it told us itself since */
    int64_t issued_us; /* the note, by its owner's wall clock */
    int64_t skew_us;   /* how far that clock is ahead of ours, as notes tell; at most 3 s */
    int64_t moved_us;  /* when it was first seen in its round, on our clock; 0: from the first */
    bool doubted;      /* it does not count now: hth_roster_doubt, _miss, _deaf */
    bool lost;         /* hth_roster_lost, and neither spoke nor renewed its note since */
    int64_t spoke_us; /* last, over its own connection; 0: never, there are only its notes */
    /* private: */
    uint64_t told; /* the latest step that it told us itself; 0: none, or it is not believed now */
    bool missed, apart, mute;
    uint32_t doubts;
    bool kept; /* its note is over, and it speaks */
    int64_t heard_us, until_us, doubted_until_us;
};

struct hth_roster_opts {
    const char *network;
    uint64_t schema;
    struct hth_addr addr;
    uint32_t flags;
    double bandwidth;
    bool watch_only;            /* never posts: an onlooker */
    bool silent;                /* posts only after hth_roster_speak */
    uint32_t group_max;         /* for shapes */
    struct hth_avg_shape shape; /* dims 0: follows the population */
    bool has_cell;
    struct hth_avg_cell cell; /* with a fixed shape only */
    int64_t life_us;          /* of a note */
    int64_t slot_us;
    int64_t patience_us;
    int64_t publish_min_us;       /* between two notes */
    void (*on_change)(void *arg); /* somebody came, went or moved; may be NULL; may not free it */
    void *arg;
};
#define HTH_ROSTER_OPTS_INIT                                                                       \
    {                                                                                              \
        .group_max = 16, .life_us = 20 * HTH_US_PER_S, .slot_us = 100 * HTH_US_PER_MS,             \
        .patience_us = 3 * HTH_US_PER_S, .publish_min_us = 500 * HTH_US_PER_MS                     \
    }

/* Watches at once; posts after its slot. Errors: E_CONFIG (name, shape, cell, times), those of a
 * watch. */
enum hth_err hth_roster_new(struct hth_env *env, struct hth_dht *dht,
                            const struct hth_roster_opts *opts, struct hth_roster **out) HTH_MUST;
/* Without a goodbye. NULL is fine. */
void hth_roster_free(struct hth_roster *roster);
/* Ends the silence of the options: this peer has come in. */
void hth_roster_speak(struct hth_roster *roster);
/* Says goodbye; done (may be NULL) comes once, within a second, and may free the roster. */
void hth_roster_leave(struct hth_roster *roster, hth_fn *done, void *arg);

/* ---- what this peer says --------------------------------------------------------------------- */

/* Published soon: at once when the step changed, else when others would estimate it wrongly. */
void hth_roster_set_progress(struct hth_roster *roster, uint64_t step, uint64_t samples,
                             double samples_per_s);
/* Samples come so many at once, next at a time of the loop's clock (INT64_MAX: not before the
 * step), then every grain / samples_per_s. Published with the next note. */
void hth_roster_set_landings(struct hth_roster *roster, uint32_t grain, int64_t next_us);
/* Published with the next note. */
void hth_roster_set_marks(struct hth_roster *roster, const struct hth_roster_marks *marks);
/* Of what this peer averages: known only once its model is made. Counts begin anew. */
void hth_roster_set_schema(struct hth_roster *roster, uint64_t schema,
                           const uint32_t settings[HTH_ROSTER_SETTINGS]);
void hth_roster_need_all(struct hth_roster *roster); /* no sample; all of a run, or none */
void hth_roster_set_flags(struct hth_roster *roster, uint32_t flags);
void hth_roster_set_ready_at(struct hth_roster *roster, int64_t wall_us);
void hth_roster_set_last(struct hth_roster *roster, const struct hth_roster_last *last);
/* Never goes back. */
void hth_roster_set_round(struct hth_roster *roster, uint64_t round);
/* May: a round that was looked for in vain is looked for again. */
void hth_roster_retry_round(struct hth_roster *roster, uint64_t round);
/* After a round; of the present shape. Errors: E_STALE (the generation is another by now). */
enum hth_err hth_roster_set_cell(struct hth_roster *roster, uint32_t generation,
                                 const struct hth_avg_cell *cell) HTH_MUST;
const struct hth_roster_note *hth_roster_self(const struct hth_roster *roster);

/* ---- what all say ---------------------------------------------------------------------------- */

/* Those seen, without this peer, by id; NULL past the last. Valid until the loop's next turn. */
const struct hth_roster_peer *hth_roster_at(const struct hth_roster *roster, uint32_t index);
/* NULL: not seen. */
const struct hth_roster_peer *hth_roster_find(const struct hth_roster *roster,
                                              const struct hth_peer_id *id);
/* What it says of itself was not true: it does not count for a minute, the next time for two, and
 * so on up to an hour. */
void hth_roster_doubt(struct hth_roster *roster, const struct hth_peer_id *id);
/* It was not there when it should have been: when half of its note's life is over and it was not
 * renewed, it does not count until it is. */
void hth_roster_miss(struct hth_roster *roster, const struct hth_peer_id *id);
/* It should have come, and there is no connection to it. Who never spoke to us is only a word then,
 * however often that is renewed: it is doubted, until it speaks. On a grid nobody is, as those of
 * other lines do not speak to us. */
void hth_roster_deaf(struct hth_roster *roster, const struct hth_peer_id *id);
/* All who never spoke did not come for so long that they are doubted like that, who can't be
 * dialled too; or again, which takes less: only those who were doubted before, where nobody else
 * is there. */
void hth_roster_doubt_mute(struct hth_roster *roster, bool again);
/* Its connection was lost, or it was silent when it was asked: nobody waits for it. */
void hth_roster_lost(struct hth_roster *roster, const struct hth_peer_id *id);
/* It spoke to us over its own connection, or is in a group with us; at which step it is, 0: not
 * said. Its note may be late: the later step counts, and for a note's life it is not lost from
 * sight, nor missed. */
void hth_roster_heard(struct hth_roster *roster, const struct hth_peer_id *id);
/* It does not meet us, as its clock and ours are too far apart, or it did not come to the step that
 * it says it is at: its samples do not count until it is heard, or we leave our grid. */
void hth_roster_apart(struct hth_roster *roster, const struct hth_peer_id *id);
/* Who met nobody that should have come asks for notes and renews its own, 5 s long or until: */
void hth_roster_seek(struct hth_roster *roster);
void hth_roster_sought(struct hth_roster *roster);
/* Those that take part (of our schema, with state; helpers bring nothing and do not count), this
 * peer included if it does. *exact (may be NULL): every one of them is seen. */
uint32_t hth_roster_population(const struct hth_roster *roster, bool *exact);
/* A step was taken on an average of the values of so many trainers, this one included. */
void hth_roster_met(struct hth_roster *roster, uint32_t heads);
/* The population that grids and quorums are for. Words cost nothing: where it is known how many an
 * average has, it is a quarter more at most, but one. A single newcomer counts at once; several do
 * when they have come. */
uint32_t hth_roster_present(const struct hth_roster *roster);
/* False where it is known that averages have fewer than those whose samples count. */
bool hth_roster_all_come(const struct hth_roster *roster);
/* The highest step that one in `one_in` of those seen that take part, this peer among them, and at
 * least `least` others have reached, if above `above`; else `above`: fewer move nothing. */
uint64_t hth_roster_reached(const struct hth_roster *roster, uint64_t above, uint32_t one_in,
                            uint32_t least);
/* The shape of the present generation; dims 0 while generation is 0 (nobody else was seen). */
const struct hth_avg_shape *hth_roster_shape(const struct hth_roster *roster, uint32_t *generation);
/* Of two generations of shapes; 0, none, is before all. */
bool hth_roster_is_later(uint32_t a, uint32_t b);
/* This peer's cell in it, placed now if need be. Errors: E_NOT_FOUND (there is no shape). */
enum hth_err hth_roster_cell(struct hth_roster *roster, struct hth_avg_cell *out) HTH_MUST;
/* The round to look for a group in now: the highest that anybody said, and none we have done. */
uint64_t hth_roster_round(const struct hth_roster *roster);

/* Where the run's batch stands. Sums are over those that take part, this peer included, times 2^L
 * where they are sampled. */
struct hth_roster_batch {
    uint32_t peers;         /* with a known speed or samples */
    double samples;         /* towards `step` by now: what they said, of nobody more than `target`,
                             * and what landed since, for as long as two batches need at most */
    double samples_said;    /* only what they said, of nobody more than half of `target` */
    double samples_per_s;   /* of all, whatever step they are at; of nobody more than 100 times the
                             * median */
    int64_t eta_us;         /* until `target` is reached; 0: it is; INT64_MAX: nobody computes */
    uint64_t step_max;      /* the highest that anybody said */
    uint32_t ahead, behind; /* peers at a later, an earlier step */
};
void hth_roster_batch(const struct hth_roster *roster, uint64_t step, uint64_t target,
                      struct hth_roster_batch *out);
/* Samples of the others towards `step` that come before ours do, which land in lands_us, and again
 * each apart_us. Of those that land at about the same moment some are before us, and to them we are
 * not; at each step in another order. */
double hth_roster_batch_before(const struct hth_roster *roster, uint64_t step, uint64_t target,
                               int64_t lands_us, int64_t apart_us);

struct hth_roster_stats {
    uint32_t seen;                  /* notes believed now, of any schema */
    uint32_t other_schema;          /* of them not ours */
    uint32_t bootstrapping;         /* of ours, without state yet */
    uint32_t level, generation;     /* L, and of the shape */
    uint64_t proposed;              /* shapes proposed by this peer */
    uint64_t puts, seeks;           /* seeks: tries of hth_roster_seek */
    uint64_t refused, refused_skew; /* notes; for their clock */
    char refusal[200];              /* the latest of the last minute in words */
};
void hth_roster_stats(const struct hth_roster *roster, struct hth_roster_stats *out);

#endif
