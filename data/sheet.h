/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sheet.h: many small pictures on one sheet, row by row, as a PNG; the sheet of a data set.
 *
 * Any thread; the sheet of a set reads it, as hth_set_next does.
 */
#ifndef HTH_DATA_SHEET_H
#define HTH_DATA_SHEET_H

#include "core/blob.h"
#include "data/codes.h"

struct hth_sheet {
    uint32_t columns, rows, side; /* pixels of a picture's side */
    uint32_t zoom;                /* each of its pixels is zoom x zoom */
    uint32_t width, height;
    uint8_t *rgb;
};

/* Errors: E_NO_MEMORY. */
enum hth_err hth_sheet_init(struct hth_sheet *s, uint32_t columns, uint32_t rows, uint32_t side,
                            uint32_t zoom) HTH_MUST;
void hth_sheet_clear(struct hth_sheet *s);
/* Puts a picture (side * side * 3 bytes) at place `index` < columns * rows. */
void hth_sheet_put(struct hth_sheet *s, uint32_t index, const uint8_t *rgb);
/* Errors: E_NO_MEMORY. */
enum hth_err hth_sheet_png(const struct hth_sheet *s, struct hth_blob **out) HTH_MUST;

/* Samples of a set, evenly spread: at most `count` of the training part, and below them, from a row
 * of their own, a third as many of the held-out part. Calls `each` for every one. Codes are painted
 * by `codes`, which may be NULL for other sets. The sheet of a text is empty (rgb NULL). Clear it
 * in any case. Errors: those of hth_set_next and hth_decoder_paint. */
typedef void hth_sheet_fn(void *arg, enum hth_set_part part, uint32_t number,
                          const struct hth_sample *sample);
enum hth_err hth_sheet_of_set(struct hth_set *set, const struct hth_codes *codes, uint32_t count,
                              hth_sheet_fn *each, void *arg, struct hth_sheet *out,
                              struct hth_why *why) HTH_MUST;

#endif
