/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roster.h: who takes part in a run's averaging, how far each of them is, and in which grid.
 *
 * Every trainer and helper keeps one signed PROGRESS note on a board that all of them watch: its
 * step, the samples it has gathered and how fast, its round, its cell, and the shape of the grid
 * that it believes in. From these notes follow
 *
 *   the population   how many there are
 *   the shape        which grid suits them, agreed on without a vote
 *   the freshest     whom a newcomer asks for the state
 *   the status       what `hearth status` and the monitor show of a run
 *
 * Thousands of peers must cost one reader no more than dozens. So peers are sampled: at level L
 * only those whose mark (a hash of the id) begins with L zero bits post a note, and the population
 * is those seen times 2^L. Each reader finds L by itself from what it sees, and a peer posts as
 * long as its own mark is below its own L:
 *
 *   more than H seen: L + 1      fewer than H / HTH_AVG_ROSTER_LOW_PART seen: L - 1
 *
 * H is HTH_AVG_ROSTER_HIGH; up to it, L is 0 and all is exact. Peers with rare marks post first:
 * thousands learn L in time.
 *
 * The shape. A note carries one. A peer takes the one that most hold of those that suit the
 * population as it counts it; so what a single peer says moves nobody into a grid that does not
 * suit. When none suits for 3 s, a peer that posts proposes another. `shape` in the
 * options fixes it.
 *
 * The cell. With L = 0 it is this peer's rank among the sorted ids of those that take part, so that
 * any number of peers fill the grid evenly (where there are clients those who can be dialled come
 * first, across the lines: hth_avg_cell_across). It follows from what the peer sees now, so a grid
 * is full again as soon as all have seen who came and who went. In a sample it is drawn from the id
 * at first, and then moves along the axis of each group that this peer was in.
 *
 * What others say is bounded and checked (a note with a number that makes no sense is refused as a
 * whole), but not proved: a liar can shift counts and shapes, as it can lie in a round.
 *
 * Loop thread. The caller's strings may go. `on_change` never comes inside a call of this header.
 */
#ifndef HTH_AVERAGING_ROSTER_H
#define HTH_AVERAGING_ROSTER_H

#include "averaging/grid.h"
#include "core/bytes.h"
#include "core/env.h"
#include "core/limits.h"

struct hth_dht;
struct hth_roster;

/* ---- notes ----------------------------------------------------------------------------------- */

/* flags of a note */
#define HTH_ROSTER_CLIENT        1u /* can't be dialled: reduces nothing */
#define HTH_ROSTER_HELPER        2u /* has no values: only reduces */
#define HTH_ROSTER_BOOTSTRAPPING 4u /* has no state yet: takes no part in rounds */
#define HTH_ROSTER_FLAGS         7u

/* How a peer's last round went, for people. */
struct hth_roster_last {
    uint32_t group; /* the first bytes of its id, as a number; 0: there was no group */
    uint32_t members, drops;
    uint32_t reason; /* enum hth_avg_reason */
    uint32_t wait_ms, reduce_ms;
    uint64_t bytes;         /* of values, both ways */
    double change;          /* norm of average - its own values: how far it was from the others */
    double norm;            /* of the average */
    double weight_fraction; /* of the groups' weight that was averaged */
};

/* Hashes of groups of settings, chosen by their owner (trainer/settings.h): where schemas differ
 * they tell which settings do. */
#define HTH_ROSTER_SETTINGS 5

/* A peer's word on itself (docs/records.md has the bytes). Reading checks each number for
 * itself; what a note is worth beside others is for the roster to say. */
struct hth_roster_note {
    struct hth_addr addr; /* family 0: can't be dialled */
    uint32_t flags;
    uint64_t schema; /* of what it averages */
    uint32_t settings[HTH_ROSTER_SETTINGS];
    uint64_t step;              /* updates applied so far */
    uint64_t samples;           /* gathered towards the next */
    double samples_per_s;       /* 0: not known */
    uint32_t round;             /* that it will look for a group in next */
    struct hth_avg_shape shape; /* dims 0: none yet */
    struct hth_avg_cell cell;
    struct hth_roster_last last;
};

#define HTH_ROSTER_NOTE_BYTES_MAX 192

/* For the roster, tests and the fuzzer. Returns the number of bytes. */
size_t hth_roster_note_write(const struct hth_roster_note *note, uint8_t *out);
/* Errors: E_TRUNCATED, E_MALFORMED (bytes left over, unknown flags, half an address), E_RANGE,
 * E_TOO_LARGE (axes), E_VERSION. */
enum hth_err hth_roster_note_read(const uint8_t *data, size_t len,
                                  struct hth_roster_note *out) HTH_MUST;

/* ---- the roster ------------------------------------------------------------------------------ */

struct hth_roster_peer {
    struct hth_peer_id id;
    struct hth_roster_note note;
    int64_t issued_us;        /* the note, by its owner's wall clock */
    bool lost;                /* hth_roster_lost, and its note was not renewed since */
    int64_t doubted_until_us; /* hth_roster_doubt; on the reader's clock */
};

struct hth_roster_opts {
    const char *network;
    uint64_t schema;
    struct hth_addr addr;
    uint32_t flags;
    bool silent;                /* an onlooker, until hth_roster_speak: posts nothing */
    uint32_t group_max;         /* for shapes */
    struct hth_avg_shape shape; /* dims 0: follows the population */
    bool has_cell;
    struct hth_avg_cell cell;     /* given, with a given shape only */
    int64_t publish_min_us;       /* between two notes */
    void (*on_change)(void *arg); /* somebody came, went or moved; may be NULL; may not free it */
    void *arg;
};
#define HTH_ROSTER_OPTS_INIT                                                                       \
    {                                                                                              \
        .group_max = 16, .publish_min_us = 500 * HTH_US_PER_MS                                     \
    }

/* Watches at once; posts after its slot. Errors: E_CONFIG (name, shape, cell, time), those of a
 * watch. */
enum hth_err hth_roster_new(struct hth_env *env, struct hth_dht *dht,
                            const struct hth_roster_opts *opts, struct hth_roster **out) HTH_MUST;
/* Without a goodbye. NULL is fine. */
void hth_roster_free(struct hth_roster *roster);
/* Ends the silence of the options: this peer has come in, and counts. */
void hth_roster_speak(struct hth_roster *roster);
/* Says goodbye; done (may be NULL) comes once, within a second, and may free the roster. */
void hth_roster_leave(struct hth_roster *roster, hth_fn *done, void *arg);

/* ---- what this peer says --------------------------------------------------------------------- */

/* Published soon when the step changed, or the speed by a quarter. */
void hth_roster_set_progress(struct hth_roster *roster, uint64_t step, uint64_t samples,
                             double samples_per_s);
/* Of what this peer averages: known only once its model is made. Counts begin anew. */
void hth_roster_set_schema(struct hth_roster *roster, uint64_t schema,
                           const uint32_t settings[HTH_ROSTER_SETTINGS]);
void hth_roster_set_flags(struct hth_roster *roster, uint32_t flags);
void hth_roster_set_last(struct hth_roster *roster, const struct hth_roster_last *last);
/* In which it looks next. */
void hth_roster_set_round(struct hth_roster *roster, uint32_t round);
/* It was in a group along that axis, and had that place in it: its coordinate in a sample. */
void hth_roster_set_place(struct hth_roster *roster, uint32_t axis, uint32_t at);
/* Its note is up: others see this peer. */
bool hth_roster_speaks(const struct hth_roster *roster);
/* With its present shape (dims 0 while nobody else was seen) and its cell in that round. */
const struct hth_roster_note *hth_roster_self(const struct hth_roster *roster);

/* ---- what all say ---------------------------------------------------------------------------- */

/* Those seen, without this peer, by id; NULL past the last. Valid until the loop's next turn. */
const struct hth_roster_peer *hth_roster_at(const struct hth_roster *roster, uint32_t index);
/* NULL: not seen. */
const struct hth_roster_peer *hth_roster_find(const struct hth_roster *roster,
                                              const struct hth_peer_id *id);
/* A peer that lied is not believed for a minute. */
void hth_roster_doubt(struct hth_roster *roster, const struct hth_peer_id *id);
bool hth_roster_doubts(const struct hth_roster *roster, const struct hth_roster_peer *peer);
/* Its connection was lost, or it was silent when it was asked: nobody waits for it. */
void hth_roster_lost(struct hth_roster *roster, const struct hth_peer_id *id);
/* It may average with us: it is of our schema, with state, and not lost. */
bool hth_roster_meets(const struct hth_roster *roster, const struct hth_roster_peer *peer);
/* Those that take part (of our schema, with state; helpers bring nothing and do not count), this
 * peer included if it does. *exact (may be NULL): every one of them is seen. */
uint32_t hth_roster_population(const struct hth_roster *roster, bool *exact);
struct hth_roster_stats {
    uint32_t seen;  /* notes believed now, of any schema */
    uint32_t level; /* L */
    uint64_t puts;
    uint64_t refused;  /* notes */
    char refusal[200]; /* the latest of the last minute in words */
};
void hth_roster_stats(const struct hth_roster *roster, struct hth_roster_stats *out);

#endif
