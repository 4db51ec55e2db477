/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grid.h: where peers stand in the averaging grid, and who belongs together in a round.
 *
 * N peers stand in the cells of a grid with d axes. Round r works along axis r mod d: the peers
 * whose cells differ only along that axis are a *line*, and those of a line who meet are a *group*
 * that averages. In a full grid every line of M cells is a group of M, and after d rounds everybody
 * holds the exact mean, although nobody ever talked to more than d (M - 1) others:
 *
 *        axis 1 ->          round 0: columns        round 1: rows
 *      +---+---+---+
 *    a | A | B | C |        {A D G} {B E H}         {A B C} {D E F}
 *    x | D | E | F |        {C F I}                 {G H I}
 *    i | G | H | I |
 *    s +---+---+---+        each holds the mean     each holds the mean
 *    0                      of 3                    of all 9
 *
 * Where all know all, cells stay: a peer that missed a round stands where the others look for it in
 * the next. In a crowd those of a group deal out the cells of their line among themselves, so that
 * lines become as long as each other (algorithm 1 below).
 *
 * The grid has to follow the population: too sparse, and lines hold too few to mix; too full, and
 * they are long. hth_avg_shape_for chooses sizes, hth_avg_shape_suits says when to change. What a
 * shape is good for in a crowd that comes and goes is measured by `hearth sim averaging`
 * (docs/averaging.md).
 *
 * Everybody derives the same names: the key of a line (which includes the shape and the axis), the
 * group's id out of the line, the schema and the members (match.h), and the order of members out of
 * the group's id, which nobody can foresee before the members are known.
 *
 * Plain values and pure functions, any thread. Shapes and cells that come from a peer must pass
 * hth_avg_shape_check and hth_avg_cell_check before anything else here sees them.
 *
 * Ryabinin, Gorbunov, Plokhotnyuk, Pekhimenko: Moshpit SGD, NeurIPS 2021, algorithm 1.
 */
#ifndef HTH_AVERAGING_GRID_H
#define HTH_AVERAGING_GRID_H

#include "core/base.h"
#include "core/crypto.h"
#include "core/limits.h"

/* Peers per cell outside of which a shape should be changed. */
#define HTH_AVG_FILL_MIN 0.75
#define HTH_AVG_FILL_MAX 1.3

/* 8 sizes of up to 8 digits, and an x or dot or the terminator behind each. */
#define HTH_AVG_SHAPE_TEXT_MAX (HTH_AVG_DIMS_MAX * 9)
#define HTH_AVG_LINE_KEY_MAX   (2 + 8 * HTH_AVG_DIMS_MAX)

struct hth_avg_shape {
    uint32_t dims;                   /* 1..HTH_AVG_DIMS_MAX */
    uint32_t size[HTH_AVG_DIMS_MAX]; /* at least 1 each; unused ones are 0 */
};

struct hth_avg_cell {
    uint32_t at[HTH_AVG_DIMS_MAX]; /* below the shape's sizes; unused ones are 0 */
};

/* One line of one round. The cell is that of any peer of the line: the coordinate along the
 * round's axis does not count. */
struct hth_avg_line {
    uint32_t round; /* of it only the axis names the line */
    struct hth_avg_shape shape;
    struct hth_avg_cell cell;
};

/* ---- shapes -------------------------------------------------------------------------------- */

/* "32x32", "5x4x4", "16". Whole text, no signs, no leading zeros, no blanks.
 * Errors: E_MALFORMED (grammar), E_TOO_LARGE (more axes than HTH_AVG_DIMS_MAX), E_RANGE (a size of
 * 0, or more cells than HTH_AVG_CELLS_MAX). `out` is all zero then. */
enum hth_err hth_avg_shape_parse(const char *text, struct hth_avg_shape *out) HTH_MUST;
const char *hth_avg_shape_text(const struct hth_avg_shape *shape, char out[HTH_AVG_SHAPE_TEXT_MAX]);
/* Checks a shape of a record as the parser does. Errors: E_RANGE, E_TOO_LARGE. */
enum hth_err hth_avg_shape_check(const struct hth_avg_shape *shape) HTH_MUST;
bool hth_avg_shape_eq(const struct hth_avg_shape *a, const struct hth_avg_shape *b);
/* Product of the sizes, at most HTH_AVG_CELLS_MAX. */
uint32_t hth_avg_cells(const struct hth_avg_shape *shape);
double hth_avg_fill(const struct hth_avg_shape *shape, uint32_t population);

/* The shape for that many peers in groups of at most group_max: one axis while all fit into one
 * group; else the fewest axes whose sizes stay within group_max, sizes that differ by at most 1
 * (larger ones first), and of those the smallest product >= population. Where that would leave the
 * fill below HTH_AVG_FILL_MIN, the next product below the population instead, so that the fill is
 * in [0.75, 1.125] for group_max >= 3. Populations are taken as 1..HTH_AVG_CELLS_MAX, group_max as
 * at least 2; sizes exceed group_max only where HTH_AVG_DIMS_MAX axes are not enough. */
struct hth_avg_shape hth_avg_shape_for(uint32_t population, uint32_t group_max);

/* Whether so many may stand in the shape: it is the one for them, or the fill is in
 * [HTH_AVG_FILL_MIN, HTH_AVG_FILL_MAX] and no axis too many or too long. */
bool hth_avg_shape_suits(const struct hth_avg_shape *shape, uint32_t population,
                         uint32_t group_max);

/* ---- cells --------------------------------------------------------------------------------- */

/* Row-major, the last axis fastest; ranks beyond the last cell begin anew. The peers 0 .. cells - 1
 * fill the grid exactly. */
struct hth_avg_cell hth_avg_cell_of_rank(const struct hth_avg_shape *shape, uint64_t rank);
/* The same cells in another order: among the first of them, cells / smallest size, there is one of
 * each line of every axis. */
struct hth_avg_cell hth_avg_cell_across(const struct hth_avg_shape *shape, uint64_t rank);
/* A cell that depends on the id alone, even over all cells. */
struct hth_avg_cell hth_avg_cell_drawn(const struct hth_avg_shape *shape,
                                       const struct hth_peer_id *id);
/* "3.7". */
const char *hth_avg_cell_text(const struct hth_avg_shape *shape, const struct hth_avg_cell *cell,
                              char out[HTH_AVG_SHAPE_TEXT_MAX]);
/* Errors: E_RANGE (a coordinate beyond its axis, or set beyond the last axis). */
enum hth_err hth_avg_cell_check(const struct hth_avg_shape *shape,
                                const struct hth_avg_cell *cell) HTH_MUST;

/* ---- rounds -------------------------------------------------------------------------------- */

/* The axis that a round works along. */
uint32_t hth_avg_axis(const struct hth_avg_shape *shape, uint64_t round);

/* ---- names --------------------------------------------------------------------------------- */

/* The bytes that name a line: equal for exactly the peers that may meet. Returns their number. */
size_t hth_avg_line_key(const struct hth_avg_line *line, uint8_t out[HTH_AVG_LINE_KEY_MAX]);
/* Whether two peers may meet: the same shape and axis, and cells of one line. */
bool hth_avg_line_eq(const struct hth_avg_line *a, const struct hth_avg_line *b);

/* Where a peer comes in an order that nobody can choose: hash(salt, id). Compare marks by memcmp,
 * and equal ones by id. */
void hth_avg_mark(const struct hth_crypto *crypto, const void *salt, size_t salt_len,
                  const struct hth_peer_id *id, struct hth_hash *mark);

#endif
