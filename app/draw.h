/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draw.h: the parts of hearth draw.
 *
 *   draw.c        draws pictures from a caption and writes them as PNG
 *   draw_eval.c   --eval: what a picture model is measured by
 *
 * Main thread.
 */
#ifndef HTH_APP_DRAW_H
#define HTH_APP_DRAW_H

#include "app/use.h"
#include "data/codes.h"
#include "trainer/draw.h"

struct hth_draw_eval;

struct hth_drawing {
    struct hth_use use;
    const char *caption, *out;
    uint32_t count, best; /* pictures to draw, and to keep; best 0: all, as they were drawn */
    bool sheet, json, eval;
    uint32_t samples; /* --eval: captions of each part */
    struct hth_draw_opts opts;

    struct hth_codes paint; /* book and decoder */
    struct hth_draw *draw;
    struct hth_draw_eval *evaluation;
    int64_t begun_us;
};

/* Pixels of a picture's side, and its pixels: side * side * 3 bytes. Errors: those of
 * hth_decoder_paint. */
uint32_t hth_drawing_side(const struct hth_drawing *d);
enum hth_err hth_drawing_paint(struct hth_drawing *d, const int32_t *codes, uint8_t *rgb) HTH_MUST;

/* Evaluates, prints, and stops the verb. Call it once experts answer. */
void hth_draw_eval_start(struct hth_drawing *d);
void hth_draw_eval_free(struct hth_draw_eval *e);
#define HTH_DRAW_EVAL_BATCH 64 /* captions at once */

#endif
