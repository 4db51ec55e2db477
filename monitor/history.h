/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h: what a monitor has seen of a run: a row each 10 s for a day, and each 5 min for 90
 * days, in memory and on disk.
 *
 *     fine    slot = t / 10     8,640 of them   files  10s-00 ..  10s-24   an hour each
 *     coarse  slot = t / 300   25,920 of them   files 5min-00 .. 5min-90   a day each
 *
 * Both are rings: a slot's place is its number modulo their size, and a row is there if its own
 * time says so. So rows may come in any order, a clock that is set back harms only what it
 * overwrites, and a gap is no rows. A coarse row follows from the fine ones of its 5 minutes: means
 * of what goes up and down, the last of what grows.
 *
 * On disk each hour and each day is a small file of its own, replaced as a whole (hth_file_write)
 * by a job: the fine one with each row, the coarse one when 5 minutes are complete. So a process
 * that is killed at any time loses the row that it was about to write, and a file that is damaged
 * costs its hour or day; a warning names it, and it is begun anew.
 *
 * A text of its owner, the events (events.h), lies beside them in the file `events`.
 *
 *    0  magic "HHIS" (4)  version 1 (2)   kind: 0 fine, 1 coarse (2)
 *    8  hash of the run's name (8)        16  number of the hour or day since 1970 (4)
 *   20  rows (2), then of each, in order of time:
 *         t (4) trainers (4) hosts (4) served (4) step (8) samples (8)
 *         loss (f32) samples/s (f32) rows/s (f32)
 *       hash64 of all before (8)
 *
 * Little-endian. Loop thread, but for hth_history_new; hth_history_read is pure.
 */
#ifndef HTH_MONITOR_HISTORY_H
#define HTH_MONITOR_HISTORY_H

#include "core/env.h"

#define HTH_HISTORY_FINE_S     10
#define HTH_HISTORY_COARSE_S   300
#define HTH_HISTORY_FINE_MAX   8640
#define HTH_HISTORY_COARSE_MAX 25920
#define HTH_HISTORY_FILE_ROWS  360 /* of an hour; a day has fewer */
/* Rows that hth_history_list gives at most: two hours of 10 s, 22 of 1 min, and what is older. */
#define HTH_HISTORY_OLD_MAX  2000
#define HTH_HISTORY_LIST_MAX (720 + 1320 + HTH_HISTORY_OLD_MAX + 3)

#define HTH_HISTORY_TEXT_MAX (256u << 10)

#define HTH_HISTORY_UNKNOWN  UINT32_MAX /* of trainers, hosts, served */
#define HTH_HISTORY_NO_STEP  UINT64_MAX /* of step, samples */

/* Floats that are not finite are not known. */
struct hth_history_row {
    uint32_t t; /* Unix s, the begin of its slot; 0: there is no row */
    uint32_t trainers, hosts, served;
    uint64_t step, samples;
    float loss, samples_per_s, rows_per_s;
};
#define HTH_HISTORY_ROW_BYTES 44
#define HTH_HISTORY_BYTES_MAX (22 + HTH_HISTORY_FILE_ROWS * HTH_HISTORY_ROW_BYTES + 8)

struct hth_history;

/* Reads the folder, which may be missing; NULL: memory only. Its name is borrowed. Files of another
 * run than this one are left until their turn to be replaced comes, with a warning. A job may do
 * it: it reads a hundred files. */
struct hth_history *hth_history_new(struct hth_env *env, const char *dir, const char *run);
/* Writes what waits. NULL is fine. */
void hth_history_free(struct hth_history *h);
/* Keeps this text in the file `events`, in place of the one before. Takes a reference. */
void hth_history_keep(struct hth_history *h, struct hth_blob *text);
/* The text that the folder had when it was opened; NULL: none. Borrowed. */
const struct hth_blob *hth_history_kept(const struct hth_history *h);
/* Sets the row of its slot. */
void hth_history_add(struct hth_history *h, const struct hth_history_row *row);
/* NULL: there is none. Valid until the next one is added. */
const struct hth_history_row *hth_history_at(const struct hth_history *h, uint32_t t);
/* The newest row not after t; NULL: there is none of the last day. */
const struct hth_history_row *hth_history_last(const struct hth_history *h, uint32_t t);
/* The time of the first row with a step above 0; 0: none. */
uint32_t hth_history_began(const struct hth_history *h);
/* Rows for a curve up to t, the oldest first (run_json.h says which); returns how many. */
size_t hth_history_list(const struct hth_history *h, uint32_t t,
                        struct hth_history_row out[HTH_HISTORY_LIST_MAX]);
/* Why rows can't be written; HTH_OK: they can. */
enum hth_err hth_history_err(const struct hth_history *h);

/* One file's content. */
struct hth_history_file {
    bool coarse;
    uint64_t run;    /* hash of its name */
    uint32_t number; /* of the hour or day */
    uint32_t count;
    struct hth_history_row row[HTH_HISTORY_FILE_ROWS];
};
size_t hth_history_write(const struct hth_history_file *file, uint8_t out[HTH_HISTORY_BYTES_MAX]);
/* Errors: E_TRUNCATED, E_BAD_MAGIC, E_VERSION, E_CORRUPT (its hash), E_RANGE (a row outside its
 * hour or day, or out of order), E_MALFORMED (bytes left over). */
enum hth_err hth_history_read(const uint8_t *data, size_t len,
                              struct hth_history_file *out) HTH_MUST;

#endif
