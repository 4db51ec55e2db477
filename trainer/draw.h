/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draw.h: draws pictures, as grids of codes, from captions with a trained picture model.
 *
 * All pictures of a call grow together, code by code, each from a caption of its own. The code at
 * place i of picture n is a function of (seed, n, i) and of the logits (sample.h).
 *
 * Guidance (Ho and Salimans, 2022): with u the logits without a caption and c those with it, a code
 * is drawn from u + guide (c - u); a model knows how to draw without one if it was trained with
 * data.caption_drop. Score: log p(codes | caption) - log p(codes), how much likelier the caption
 * makes the picture: by it the best of several drawings is found without another model. Either
 * doubles the work.
 *
 * Loop thread only. It borrows infer, whose only user it is until it is freed.
 */
#ifndef HTH_TRAINER_DRAW_H
#define HTH_TRAINER_DRAW_H

#include "trainer/infer.h"
#include "trainer/sample.h"

struct hth_draw;

struct hth_draw_opts {
    struct hth_sample_opts sample;
    float guide; /* 1: none */
    bool score;
    /* Once: all are drawn, or an error ended it. The caller may free. */
    void (*on_done)(void *arg, enum hth_err err);
    void *arg;
};

/* Rows that infer must be made for. */
uint32_t hth_draw_rows(const struct hth_model_opts *model, uint32_t pictures, bool twice);
/* Begins: captions [pictures, model.text], each the begin, ids and padding (data/words.h); copied.
 * Callbacks never run inside this call. Errors: E_CONFIG (options), E_RANGE (an id), and those of
 * hth_infer_begin. */
enum hth_err hth_draw_new(struct hth_env *env, struct hth_infer *infer, const int32_t *captions,
                          uint32_t pictures, const struct hth_draw_opts *opts,
                          struct hth_draw **out) HTH_MUST;
/* NULL is fine; while it draws, free infer first. */
void hth_draw_free(struct hth_draw *draw);

/* height * width codes of a picture, row by row. */
const int32_t *hth_draw_codes(const struct hth_draw *draw, uint32_t picture);
/* Log p of the codes with the caption, in nats; and with `score` the score. */
double hth_draw_likelihood(const struct hth_draw *draw, uint32_t picture);
double hth_draw_score(const struct hth_draw *draw, uint32_t picture);

#endif
