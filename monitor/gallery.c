/* SPDX-License-Identifier: Apache-2.0 */
/* gallery.c: see gallery.h. */
#include "monitor/gallery.h"

#include "cli/json.h"
#include "core/mem.h"
#include "monitor/inert.h"

struct hth_gallery *hth_gallery_new(void)
{
    struct hth_gallery *g = hth_new(struct hth_gallery);
    g->refs = 1;
    return g;
}

struct hth_gallery *hth_gallery_ref(struct hth_gallery *g)
{
    g->refs++;
    return g;
}

void hth_gallery_unref(struct hth_gallery *g)
{
    if (g == NULL || --g->refs > 0)
        return;
    hth_blob_unref(g->png);
    hth_free(g);
}

void hth_gallery_add(struct hth_gallery *g, const char *prompt, const char *text)
{
    if (g->count == HTH_GALLERY_MAX)
        return;
    struct hth_gallery_item *item = &g->item[g->count++];
    hth_inert(prompt, item->prompt, sizeof(item->prompt));
    hth_inert(text != NULL ? text : "", item->text, sizeof(item->text));
}

json_t *hth_gallery_json(const struct hth_gallery *g)
{
    if (g == NULL || g->count == 0)
        return NULL;
    json_t *o = json_object(), *items = json_array();
    for (uint32_t i = 0; i < g->count; i++) {
        json_t *one = json_object();
        hth_json_text(one, "prompt", g->item[i].prompt);
        hth_json_text(one, "text", g->png == NULL ? g->item[i].text : NULL);
        json_array_append_new(items, one);
    }
    hth_json_count(o, "t", g->t);
    hth_json_count(o, "step", g->step);
    hth_json_text(o, "picture", g->png != NULL ? HTH_GALLERY_FILE : NULL);
    hth_json_take(o, "items", items);
    return o;
}
