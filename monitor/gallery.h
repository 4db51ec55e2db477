/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gallery.h: answers of a trained model to a few fixed prompts: sentences, or drawings.
 *
 * The owner of the model fills it in and then shares it; from there on it does not change, so that
 * jobs may read it. Texts are bounded and inert (inert.h), whoever wrote the prompts.
 *
 * Any thread; references on the loop thread.
 */
#ifndef HTH_MONITOR_GALLERY_H
#define HTH_MONITOR_GALLERY_H

#include "core/blob.h"

#include <jansson.h>

#define HTH_GALLERY_MAX  8
#define HTH_GALLERY_FILE "drawings.png"

struct hth_gallery {
    uint64_t step; /* of the model */
    uint32_t t;    /* when it was asked, Unix time */
    uint32_t count;
    struct hth_gallery_item {
        char prompt[256];
        char text[1024]; /* "" beside a drawing */
    } item[HTH_GALLERY_MAX];
    /* HTH_GALLERY_MAX squares side by side, of which item i has the i-th, so that a page asks for
     * one file; NULL: there are texts. */
    struct hth_blob *png;
    uint32_t refs; /* private */
};

struct hth_gallery *hth_gallery_new(void);
struct hth_gallery *hth_gallery_ref(struct hth_gallery *g);
/* NULL is fine. */
void hth_gallery_unref(struct hth_gallery *g);
/* Nothing once it is full. `text` may be NULL. */
void hth_gallery_add(struct hth_gallery *g, const char *prompt, const char *text);
/* As run_json.h describes it; NULL without items. */
json_t *hth_gallery_json(const struct hth_gallery *g);

#endif
