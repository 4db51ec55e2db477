/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cells.h: where the members of a round stand when they average on a grid (averaging/grid.h).
 *
 * A list that fits a line is one line. A longer one, or one whose run asks for a shape, is a grid:
 * its shape and cells are a pure function of the list and the head, so all members know them. Ranks
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
 * Members that can be dialled are spread over the grid first, so that lines have one.
 *
 * Plain values and pure functions, any thread.
 */
#ifndef HTH_COLLAB_CELLS_H
#define HTH_COLLAB_CELLS_H

#include "averaging/grid.h"
#include "collab/roll_msg.h"

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

#endif
