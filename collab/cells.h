/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cells.h: where the members of a round stand when they average on a grid (averaging/grid.h).
 *
 * A list that fits a line is one line. A longer one, or one whose run asks for a shape, is a grid:
 * its shape and cells are a pure function of the list and the head, so all members know them. Ranks
 * are row-major, the last axis fastest; members have the first ranks, and the empty cells, the
 * *holes*, are at the end of the first axis' last layer. So each line of the first axis has a
 * member, and at most one hole:
 *
 *          axis 1 ->
 *      +---+---+---+---+     18 members in 5x4. Axis 0 averages {A E J N R}, {B F K O P},
 *    a | A | B | C | D |     {C G L Q} and {D H M S}. Then each line of axis 1 has one member
 *    x | E | F | G | H |     of each of these, but for the last one, in which C and D stand in
 *    i | J | K | L | M |     for the holes, too.
 *    s | N | O | Q | S |
 *    0 | R | P | c | d |     A hole has a *proxy*, a member of its line of axis 0: that one
 *      +---+---+---+---+     holds what the line has come to.
 *
 * Members that can be dialled are spread over the grid first, so that lines have one.
 *
 * Plain values and pure functions, any thread.
 */
#ifndef HTH_COLLAB_CELLS_H
#define HTH_COLLAB_CELLS_H

#include "averaging/grid.h"
#include "collab/roll_msg.h"

#define HTH_CELL_NONE UINT32_MAX

struct hth_cells {
    struct hth_avg_shape shape; /* one axis: a line */
    uint32_t count;             /* members, and first ranks */
    uint32_t cells;
    uint32_t cell[HTH_ROLL_MEMBERS_MAX];       /* rank of each member's */
    uint16_t member[2 * HTH_ROLL_MEMBERS_MAX]; /* by rank: who stands there; in a hole its proxy */
};

/* `asked`: the run's shape, with dims 0 for none. Its first axis follows the count, axes of one
 * cell are left out, and where an axis would pass HTH_ROLL_LINE_MAX another shape is taken. `peer`
 * has 1 to HTH_ROLL_MEMBERS_MAX members, in one order everywhere. */
void hth_cells_place(const struct hth_crypto *crypto, const struct hth_hash *head,
                     const struct hth_roll_peer *peer, uint32_t count,
                     const struct hth_avg_shape *asked, struct hth_cells *out);

/* The coordinate of a cell along an axis. */
uint32_t hth_cells_at(const struct hth_cells *c, uint32_t cell, uint32_t axis);
/* The cell with coordinate k on that cell's line along an axis; the line's first, and its name,
 * with k = 0. */
uint32_t hth_cells_on_line(const struct hth_cells *c, uint32_t cell, uint32_t axis, uint32_t k);
/* Whether somebody's own cell is on the line. One of proxies alone is not averaged. */
bool hth_cells_line_counts(const struct hth_cells *c, uint32_t cell, uint32_t axis);
/* The hole that a member stands in for, or HTH_CELL_NONE. */
uint32_t hth_cells_hole_of(const struct hth_cells *c, uint32_t member);
/* Whether a member's values are in what a cell holds before it averages along `axis`: the member's
 * own cell has its coordinates along this axis and all later ones. */
bool hth_cells_covers(const struct hth_cells *c, uint32_t cell, uint32_t axis, uint32_t member);

#endif
