/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mask.h: the keys that each query of an attention sees.
 *
 * A sequence holds `text` positions of text and then the codes of a picture of `height` x `width`,
 * in raster order. It may end early: any prefix is a sequence of the same mask. A query of the text
 * sees the text up to itself. A query of the picture, at row r and column c, sees the whole text
 * and the codes up to itself that the kind allows:
 *
 *   FULL      all of them                     CONV      those at most window / 2 rows above and
 *   ROW       those of row r                            window / 2 columns to either side
 *   COLUMN    those of column c               NONE      no mask: every query sees every position
 *
 * A text position that is padding is a key for nobody (struct hth_attention has the lengths).
 *
 * A mask is computed as *bands*: stretches of queries that see the same text keys and the same
 * stretch of further keys, so that both are plain products, and little is computed in vain:
 *
 *              text keys     keys of the band
 *   band  q0 [ x x x x x ] [ x . . . ]            what a query does not see of a stretch
 *            [ x x x x x ] [ x x . . ]            becomes minus infinity before its softmax
 *         q1 [ x x x x x ] [ x x x . ]
 *
 * Bands are numbered along the *walk*: the order of positions in which queries of a band are
 * neighbours. It is that of the sequence; with COLUMN the picture is walked column by column. Walk
 * and bands follow from mask and length alone, and so do the bits of an attention.
 *
 * A mask is a value: copy it, share it, any thread. Nothing here allocates.
 */
#ifndef HTH_KERNELS_MASK_H
#define HTH_KERNELS_MASK_H

#include "core/base.h"

enum hth_mask_kind {
    HTH_MASK_FULL,
    HTH_MASK_ROW,
    HTH_MASK_COLUMN,
    HTH_MASK_CONV,
    HTH_MASK_NONE,
    HTH_MASK_KINDS
};

struct hth_mask {
    enum hth_mask_kind kind;
    uint32_t text;          /* positions; at least 1 */
    uint32_t height, width; /* codes; both 0: no picture */
    uint32_t window;        /* of CONV, odd; else ignored */
};

/* Errors: E_CONFIG (no text, one side without the other, a window that is not odd, no such kind),
 * E_TOO_LARGE (over HTH_SEQ_MAX positions). */
enum hth_err hth_mask_check(const struct hth_mask *m) HTH_MUST;
/* Positions of a whole sequence; the mask has passed the check. */
uint32_t hth_mask_positions(const struct hth_mask *m);
/* "full", "row", "column", "conv" or "none": the spelling of run files; NULL: no such kind. */
const char *hth_mask_name(enum hth_mask_kind kind);

/* The position at place `i` of the walk through a sequence of `seq` positions. */
uint32_t hth_mask_place(const struct hth_mask *m, uint32_t seq, uint32_t i);

/* Places first .. end of the walk are queries. Their keys are the text [0, text) and places from ..
 * to of the walk. */
struct hth_band {
    uint32_t first, end, text, from, to;
};
/* The band that begins at place `first`, with at most `most` queries. */
struct hth_band hth_mask_band(const struct hth_mask *m, uint32_t seq, uint32_t first,
                              uint32_t most);
/* The band of the last position t of a sequence that ends with it: one query, as each row has been
 * in its turn when a sequence is written row by row. Its keys from .. to lie at the positions
 * *start, *start + *stride and so on. Not for NONE, whose queries see what comes later. */
struct hth_band hth_mask_last(const struct hth_mask *m, uint32_t t, uint32_t *start,
                              uint32_t *stride);
/* `scores` are those of the query at place q with the band's keys, the text first. Sets those that
 * the query does not see to minus infinity and returns the number of scores up to the last that it
 * sees. `unpadded` of the text are no padding. */
uint32_t hth_mask_row(const struct hth_mask *m, const struct hth_band *band, uint32_t q,
                      uint32_t unpadded, float *scores);

#endif
