/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prompts.h: asks a trained model the same eight prompts whenever its trainer has saved anew.
 *
 *     look --file changed?--> open (io lane) -> draw, write or fill -> paint (io lane) -> on_new
 *
 * The prompts are the lines of DIR/prompts.txt, if it is there; else captions or beginnings of
 * lines from the held-out part of the model's data, always the same. Pictures are drawn greedily
 * and texts with a fixed seed, so that two checkpoints differ by what was learnt.
 *
 * Experts must be in the folder: hosts are asked nothing. A missing part is named once by
 * hth_say_note, and looked for again. A renewal begins 10 s after the last one, or later, so that
 * it costs at most a tenth of the time.
 *
 * Loop thread.
 */
#ifndef HTH_APP_PROMPTS_H
#define HTH_APP_PROMPTS_H

#include "monitor/gallery.h"

#include "core/env.h"

#define HTH_PROMPTS_FILE "prompts.txt"

struct hth_prompts;

/* `dir`: a trainer's folder (app/opened.h), borrowed; need not be there yet. on_new: there is
 * another gallery. */
struct hth_prompts *hth_prompts_new(struct hth_env *env, const char *dir, hth_fn *on_new,
                                    void *arg);
/* Call it after the jobs have ended. NULL is fine. */
void hth_prompts_free(struct hth_prompts *p);
/* Call it every few seconds. NULL is fine. */
void hth_prompts_look(struct hth_prompts *p);
/* The newest answers; NULL: none yet. */
struct hth_gallery *hth_prompts_gallery(const struct hth_prompts *p);

#endif
