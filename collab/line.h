/* SPDX-License-Identifier: Apache-2.0 */
/*
 * line.h: who reduces a round's values with whom, as all that have its GO know it (roll.h).
 *
 * The members of a list stand in the lines of the first axis (cells.h); a list that is one line has
 * one. Helpers are dealt out over the lines, behind the members, and have no values.
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

/* Sorts the GO's members; the group's lists are the GO's. self: HTH_ROLL_MEMBERS_MAX for one that
 * is no member. The step is the owner's to set. */
void hth_line_group(const struct hth_crypto *crypto, const struct hth_peer_id *self,
                    struct hth_ready_reply *go, struct hth_roll_group *out);
/* The line of a helper of the list. */
uint32_t hth_line_of_helper(const struct hth_cells *cells, uint32_t helper);
/* It can be dialled, and does not rest. */
bool hth_line_reduces(const struct hth_roll_peer *peer);
/* The reductions of a line's members, in order; *members: how many of them come first that are
 * members. Returns how many there are in all. */
uint32_t hth_line_fill(const struct hth_roll_group *group, const struct hth_cells *cells,
                       uint32_t line, struct hth_reduce_member out[HTH_LINE_MAX],
                       uint32_t *members);
/* The name of a line's reduction. */
struct hth_hash hth_line_name(const struct hth_crypto *crypto, const struct hth_roll_group *group,
                              const struct hth_cells *cells, uint32_t line);
/* Options of a reduction of so many floats that all have alike. */
struct hth_reduce_opts hth_line_opts(uint64_t count, const struct hth_avg_span *spans,
                                     uint32_t span_count);

/* For people: a round begins; one of its lines was reduced; it has ended, after so long. */
void hth_line_begins(struct hth_averager_stats *stats, const struct hth_roll_group *group);
void hth_line_counts(struct hth_averager_stats *stats, const struct hth_reduce_result *result);
void hth_line_ends(struct hth_averager_stats *stats, enum hth_err err, int64_t took_us);

#endif
