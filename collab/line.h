/* SPDX-License-Identifier: Apache-2.0 */
/*
 * line.h: who reduces a round's values with whom, as all that have its GO know it (roll.h).
 *
 * The members of a list stand in the lines of a grid (cells.h); a list that is one line has one.
 * Helpers are dealt out over the lines of the first axis, behind the members, and have no values.
 * Along later axes each cell brings the mean of those that it covers, and twins hear the line's.
 *
 *     line 0:  A E J N R  + helper 0, helper 4       each reduces a share by its bandwidth; members
 *     line 1:  B F K O P  + helper 1, ...            that rest or can't be dialled reduce none
 *
 * A member that did not say how much it can send counts as the lower median of those that did,
 * which one claim can't move far. Where all that can be dialled rest, none does.
 *
 * Pure functions, any thread.
 */
#ifndef HTH_COLLAB_LINE_H
#define HTH_COLLAB_LINE_H

#include "averaging/averager.h"
#include "averaging/reduce.h"
#include "collab/cells.h"
#include "collab/roll.h"

/* Members and helpers of a line. */
#define HTH_LINE_MAX (HTH_ROLL_LINE_MAX + HTH_ROLL_HELPERS_MAX)

/* Sorts the GO's members; the group's lists are the GO's. self: the count plus its number for a
 * helper, and both counts for anybody else. The step is the owner's to set. */
void hth_line_group(const struct hth_crypto *crypto, const struct hth_peer_id *self,
                    struct hth_ready_reply *go, struct hth_roll_group *out);
/* A cell on the line of a helper of the list, along the first axis. */
uint32_t hth_line_of_helper(const struct hth_cells *cells, uint32_t helper);
/* Samples behind what a cell brings along a later axis; `marks`: whose values are in that. */
uint32_t hth_line_samples(const struct hth_roll_group *group, const struct hth_cells *cells,
                          uint32_t cell, uint32_t axis, const uint16_t *marks);

/* A line as it is reduced: members, without those whose cell brings nothing, then helpers. */
struct hth_line {
    struct hth_reduce_member member[HTH_LINE_MAX];
    uint32_t count, members;
    uint32_t self; /* HTH_LINE_MAX: it is none of them */
    uint16_t of[HTH_ROLL_LINE_MAX]; /* the list's member that each member is */
};
/* The line of a cell. `marks`: along a later axis, whose values are in what its cells bring. */
void hth_line_fill(const struct hth_roll_group *group, const struct hth_cells *cells, uint32_t cell,
                   uint32_t axis, const uint16_t *marks, struct hth_line *out);
/* Options of a reduction of so many floats that all have alike. */
struct hth_reduce_opts hth_line_opts(uint64_t count, const struct hth_avg_span *spans,
                                     uint32_t span_count);

/* For people: a round begins; one of its lines was reduced; it has ended, after so long. */
void hth_line_begins(struct hth_averager_stats *stats, const struct hth_roll_group *group);
void hth_line_counts(struct hth_averager_stats *stats, const struct hth_reduce_result *result);
void hth_line_ends(struct hth_averager_stats *stats, enum hth_err err, int64_t took_us);

#endif
