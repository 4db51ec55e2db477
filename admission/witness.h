/* SPDX-License-Identifier: Apache-2.0 */
/*
 * witness.h: how long peers on probation have done good work that this process saw itself.
 *
 *   host     a backward of theirs weighed, or was refused: not finite, or malformed
 *   trainer  an answer of theirs, as hosts, was used, or was refused for its numbers
 *      |
 *      v
 *   good work, at most HTH_WITNESS_PAUSE_US after the last: the time between counts
 *   good work after a longer pause: nothing is lost, and nothing counts
 *   a refusal: the time begins anew
 *
 * A peer with HTH_WITNESS_WORK_US is due: a deputy beside this process may raise it to a member
 * (rpc/raise.h, hearth owner promote --auto). Groups of averages are not asked: whoever takes part
 * in them sends backwards, which hosts see.
 *
 * Keys are free for those on probation. So of a network (/24, IPv6 /48) one key counts at a time,
 * until it is raised or was silent for an hour; and there are HTH_WITNESS_MAX places, of which a
 * newcomer gets the one with the least time. A peer that is seen as a member loses its place.
 *
 * The times are a file between two starts, so that a restart loses a minute at most:
 *
 *     magic "HWIT"   version 1 (1)   n (1)   n times: key (32), network (8), seconds (4)
 *
 * Pure state; the caller's monotonic clock. One thread.
 */
#ifndef HTH_ADMISSION_WITNESS_H
#define HTH_ADMISSION_WITNESS_H

#include "admission/pass.h"
#include "core/ident.h"

#define HTH_WITNESS_WORK_US   (4 * 3600 * HTH_US_PER_S)
#define HTH_WITNESS_PAUSE_US  (60 * HTH_US_PER_S)
#define HTH_WITNESS_MAX       64

#define HTH_WITNESS_BYTES_MAX (6 + HTH_WITNESS_MAX * 44)

struct hth_witness;

struct hth_witness *hth_witness_new(void);
/* NULL is fine. */
void hth_witness_free(struct hth_witness *witness);
/* A peer with this grant did work from there. */
void hth_witness_saw(struct hth_witness *witness, const struct hth_grant *grant,
                     const struct hth_addr *from, bool good, int64_t now_us);
/* The next key that is due; *it begins at 0. False past the last. */
bool hth_witness_due(const struct hth_witness *witness, size_t *it, struct hth_pubkey *out);

/* Returns the length. */
size_t hth_witness_write(const struct hth_witness *witness, uint8_t out[HTH_WITNESS_BYTES_MAX]);
/* Into an empty one. Errors: E_TRUNCATED, E_BAD_MAGIC, E_VERSION, E_RANGE (too many), E_MALFORMED
 * (more follows); it stays empty then. */
enum hth_err hth_witness_read(struct hth_witness *witness, const void *data, size_t len) HTH_MUST;

#endif
