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
#include "trainer/draw.h"

struct hth_draw_eval;

struct hth_drawing {
    struct hth_use use;
    const char *caption, *out;
    uint32_t count, best; /* pictures to draw, and to keep; best 0: all, as they were drawn */
    bool sheet, eval;
    uint32_t samples; /* --eval: captions of each part */
    struct hth_draw_opts opts;

    struct hth_draw *draw;
    struct hth_draw_eval *evaluation;
    int64_t begun_us;
};

/* Evaluates, prints, and stops the verb. Call it once experts answer. */
void hth_draw_eval_start(struct hth_drawing *d);
void hth_draw_eval_free(struct hth_draw_eval *e);
#define HTH_DRAW_EVAL_BATCH 64 /* captions at once */

#endif
