/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beam.h: the k live experts with the best product-key scores, for every row of a batch.
 *
 * The search walks the layer's grid view (dht/directory.h) prefix by prefix. Of each level it keeps
 * the `width` prefixes with the best partial scores and expands only those. It finds only experts
 * of the grid view; experts without a host, or whose hosts are marked dead, are not in it. The
 * search does no I/O and allocates nothing after _new.
 *
 * The contract, where "better" means the higher score and, on equal scores, the lower index:
 *
 *   - The result of a row is sorted, best first, and every expert in it is live.
 *   - It is the exact top k of all live experts whenever no level has more than `width` live
 *     prefixes (so always on a grid of one axis), and also on any grid of two axes that is full,
 *     unless rounding made two different sums equal.
 *   - Its i-th score is never below that of the textbook beam search of the same width.
 *
 * The method: a first narrow pass (k prefixes a level) finds k good experts; the score tau of the
 * worst of them then cuts the wide pass short. A prefix with partial score s can't hold an expert
 * that matters if s + (the row's best entry of each further table) < tau; float addition is
 * monotonic, so the bound is exact, not approximate. On full grids little is left after the cut.
 *
 * Exploration: with noise_std > 0 the choice is made on tables to which Gaussian noise was added,
 * drawn by Philox from (seed, step, row, axis, coordinate): the same whatever batch the row travels
 * in. The scores that come back are without noise. Noise costs about 20 ns a table entry.
 *
 * A row whose tables hold NaN or infinity gets no expert and is counted; it takes the residual
 * path.
 *
 * A workspace belongs to one thread at a time (the loop's or a job's); the caller holds a reference
 * to the grid view during a search. Results are pure functions of grid view, tables, options, step
 * and first_row.
 */
#ifndef HTH_GATING_BEAM_H
#define HTH_GATING_BEAM_H

#include "core/base.h"
#include "dht/directory.h"
#include "gating/gate.h"

struct hth_beam;

struct hth_beam_opts {
    uint32_t k; /* experts per row, 1 .. HTH_TOP_K_MAX */
    /* Prefixes per level, k .. HTH_BEAM_WIDTH_MAX; 0: HTH_BEAM_WIDTH_DEFAULT or k. */
    uint32_t width;
    float noise_std; /* 0: none */
    uint64_t seed;   /* of the noise */
};
#define HTH_BEAM_OPTS_INIT                                                                         \
    {                                                                                              \
        .k = 4, .width = 0, .noise_std = 0.0f, .seed = 0                                           \
    }

/* A workspace for searches in this grid. Errors: E_RANGE (options), E_NO_MEMORY. */
enum hth_err hth_beam_new(const struct hth_grid *grid, const struct hth_beam_opts *opts,
                          struct hth_beam **out) HTH_MUST;
/* NULL is fine. */
void hth_beam_free(struct hth_beam *beam);

struct hth_beam_batch {
    const struct hth_grid_view *view;
    const float *tables; /* [rows, hth_gate_width] */
    size_t rows;
    uint64_t step;      /* for the noise: another one each training step */
    uint64_t first_row; /* for the noise: number of row 0 within the step */
};

/* The caller's arrays for the result. Entries from found[b] on are HTH_GATE_NONE and -INFINITY. */
struct hth_beam_result {
    uint32_t *index; /* [rows, k] */
    float *score;    /* [rows, k]; as hth_gate_forward gives it */
    uint32_t *found; /* [rows]; NULL if not wanted */
    uint32_t *coord; /* [rows, k, HTH_GRID_DIMS_MAX]; NULL if not wanted */
};

struct hth_beam_stats {
    uint64_t rows;
    uint64_t rows_short;      /* fewer than k experts, empty ones included */
    uint64_t rows_empty;      /* no expert at all */
    uint64_t rows_not_finite; /* those of rows_empty whose tables weren't finite */
    uint64_t prefixes;        /* nodes expanded: the work that the bound leaves */
};

/* Writes `result` and adds to `stats`, which may be NULL. Error: E_BAD_SHAPE (the view is of
 * another grid); it writes nothing then. */
enum hth_err hth_beam_search(struct hth_beam *beam, const struct hth_beam_batch *batch,
                             const struct hth_beam_result *result,
                             struct hth_beam_stats *stats) HTH_MUST;

#endif
