/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h: older copies of a checkpoint, by age, so that damage which is found late can be undone.
 *
 *   PATH                 the newest content
 *   PATH.ring0 ... 6     copies, in any order
 *   PATH.ring            no tensors; its metadata says when each copy was taken (hearth.taken0 ...)
 *   PATH.undone          what a roll-back replaced, until the next one
 *
 * For each of the ages A = 10 minutes, 1 hour and 1 day two copies stay: the youngest that is at
 * least A old, and the oldest that is younger, which will take its place. So once a file has been
 * saved for longer than A there is a copy that is between A and 2 A old (10 minutes more, as copies
 * are taken every 10 minutes), and there are never more than six.
 *
 * The newest content comes first: a copy that can't be written is logged, and costs nothing else.
 * When the disk is full, copies make room for the newest content, the oldest first.
 *
 * A copy is written before the list names it, and leaves the list before its file goes, so that a
 * list never names what is not there. Files are hostile input. Hosts use this for experts, trainers
 * for the trunk and their local experts. In jobs, one at a time for a path; or at the start of a
 * program.
 */
#ifndef HTH_EXPERTS_RING_H
#define HTH_EXPERTS_RING_H

#include "core/env.h"

#define HTH_RING_AGES   3
#define HTH_RING_COPIES (2 * HTH_RING_AGES)

/* The ages, in seconds, rising. */
extern const int64_t hth_ring_age_s[HTH_RING_AGES];

/* When the next copy of a file, or of files that are saved together, is to be taken. All zero: with
 * the next save. Loop thread. */
struct hth_ring {
    int64_t next_us;
};
/* Returns the time of the copy that this save takes, or 0: it takes none. */
int64_t hth_ring_due(struct hth_ring *ring, int64_t wall_us);

/* Writes the newest content, and a copy if copy_us > 0. The file and its copies take at most
 * disk_bytes together (0: no bound); a bound keeps fewer ages, and never stops the newest content.
 * Errors: those of writing the newest content. */
enum hth_err hth_ring_write(struct hth_env *env, const char *path, struct hth_blob *bytes,
                            int64_t copy_us, uint64_t disk_bytes) HTH_MUST;

/* Puts the youngest copy that is at least age_us old at `path`, and drops the younger ones. `max`
 * bounds the bytes of a file. *taken_us is when that copy was taken; with E_NOT_FOUND, when the
 * oldest one was, 0 if there is none. Other errors: E_CORRUPT (the list, or the copy), those of
 * files. After an error `path` has its old content. */
enum hth_err hth_ring_back(struct hth_env *env, const char *path, int64_t age_us, int64_t wall_us,
                           uint64_t max, int64_t *taken_us) HTH_MUST;

#endif
