/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cells.h: where the members of a round stand, and who reduces its values with whom, as all that
 * have its GO know it (roll.h).
 *
 * A list that fits a line is one line. A longer one, or one whose run asks for a shape, is a grid
 * (averaging/grid.h): its shape and cells are a pure function of the list and the head. Ranks
 * are row-major, the last axis fastest. Each cell has a member; members beyond the last cell are
 * *twins*, second members of a cell, at most one in each line of the first axis:
 *
 *          axis 1 ->
 *      +---+---+---+---+     18 members in 4x4. Axis 0 averages {A E J N R}, {B F K O P},
 *    a | A | B | C | D |     {C G L Q} and {D H M S}. Then each line of axis 1 has one member
 *    x | E R F | G | H |     of each of these, and R or P has the mean of its line from the
 *    i | J | K P L | M |     others: twins bring values along the first axis, and hear the mean
 *    s | N | O | Q | S |     along all later ones.
 *    0 +---+---+---+---+
 *
 * Members that can be dialled are spread over the grid first, so that lines have one. Helpers are
 * dealt out over the lines of the first axis, behind the members, and have no values. Along later
 * axes each cell brings the mean of those that it covers.
 *
 *     line 0:  A E J N R  + helper 0, helper 4       each reduces a share by its bandwidth; members
 *     line 1:  B F K O P  + helper 1, ...            that rest or can't be dialled reduce none
 *
 * A member that did not say how much it can send counts as the lower median of those that did,
 * which one claim can't move far. Where all that can be dialled rest, none does.
 *
 * Plain values and pure functions, any thread.
 */
#ifndef HTH_COLLAB_CELLS_H
#define HTH_COLLAB_CELLS_H

#include "averaging/averager.h"
#include "averaging/grid.h"
#include "averaging/reduce.h"
#include "collab/roll.h"

struct hth_cells {
    struct hth_avg_shape shape; /* one axis: a line */
    uint32_t count;             /* members */
    uint32_t cells;
    uint32_t cell[HTH_ROLL_MEMBERS_MAX];   /* rank of each member's */
    uint16_t member[HTH_ROLL_MEMBERS_MAX]; /* by rank: who stands there; behind them the twins */
};

/* `asked`: the run's shape, with dims 0 for none. Its first axis follows the count, axes of one
 * cell are left out, and where a line would pass HTH_ROLL_LINE_MAX another shape is taken. `peer`
 * has 1 to HTH_ROLL_MEMBERS_MAX members, in one order everywhere. */
void hth_cells_place(const struct hth_crypto *crypto, const struct hth_hash *head,
                     const struct hth_roll_peer *peer, uint32_t count,
                     const struct hth_avg_shape *asked, struct hth_cells *out);

/* The members of that cell's line along an axis: one of each of its cells, in order, then twins.
 * Returns how many, at most HTH_ROLL_LINE_MAX. */
uint32_t hth_cells_line(const struct hth_cells *c, uint32_t cell, uint32_t axis, uint16_t *out);
static inline bool hth_cells_is_twin(const struct hth_cells *c, uint16_t member)
{
    return c->member[c->cell[member]] != member;
}
/* Whether a member's values are in what a cell holds before it averages along `axis`: the member's
 * own cell has its coordinates along this axis and all later ones. */
bool hth_cells_covers(const struct hth_cells *c, uint32_t cell, uint32_t axis, uint32_t member);

/* ---- lines ----------------------------------------------------------------------------------- */

/* Members and helpers of a line. */
#define HTH_LINE_MAX (HTH_ROLL_LINE_MAX + HTH_ROLL_HELPERS_MAX)

/* Sorts the GO's members; the group's lists are the GO's. self: the count plus its number for a
 * helper, and both counts for anybody else. The step is the owner's to set. */
void hth_line_group(const struct hth_crypto *crypto, const struct hth_peer_id *self,
                    struct hth_ready_reply *go, struct hth_roll_group *out);
/* A cell on the line of a helper of the list, along the first axis. */
uint32_t hth_line_of_helper(const struct hth_cells *cells, uint32_t helper);
/* Samples behind what a cell brings along a later axis; `marks`: whose values are in that. */
uint64_t hth_line_samples(const struct hth_roll_group *group, const struct hth_cells *cells,
                          uint32_t cell, uint32_t axis, const uint16_t *marks);

/* A line as it is reduced: members, without those whose cell brings nothing, then helpers. */
struct hth_line {
    struct hth_reduce_member member[HTH_LINE_MAX];
    uint32_t count, members;
    uint32_t self;                  /* HTH_LINE_MAX: it is none of them */
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
