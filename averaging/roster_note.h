/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roster_note.h: what a peer says of itself in its note, and the bytes of it.
 *
 * A note is signed by its owner and lies on the board that roster.h describes; docs/protocol.md has
 * its layout. Reading checks each number for itself (a time, a rate, a cell within its shape); what
 * a note is worth beside others is for the roster to say.
 *
 * Any thread.
 */
#ifndef HTH_AVERAGING_ROSTER_NOTE_H
#define HTH_AVERAGING_ROSTER_NOTE_H

#include "averaging/grid.h"
#include "core/bytes.h"
#include "core/limits.h"

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
    uint32_t wait_ms, match_ms, reduce_ms;
    uint64_t bytes;         /* of values, both ways */
    double change;          /* norm of average - its own values: how far it was from the others */
    double norm;            /* of the average */
    double weight_fraction; /* of the groups' weight that was averaged */
};

/* Hashes of groups of settings, chosen by their owner (trainer/settings.h): where schemas differ
 * they tell which settings do. */
#define HTH_ROSTER_SETTINGS 5

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

#endif
