/* SPDX-License-Identifier: Apache-2.0 */
/* test_gallery.c: a gallery is bounded, its texts are inert, and its JSON is what pages read. */
#include "cli/json.h"
#include "monitor/gallery.h"
#include "support/suite.h"

#include <string.h>

TEST(test_texts_are_bounded_and_inert)
{
    static char huge[4096];
    static const struct {
        const char *prompt, *text, *want_prompt, *want_text;
    } cases[] = {
        {"red heart", "a heart", "red heart", "a heart"},
        {"a\x1b[2J\n", "\u202egnp", "a\ufffd[2J\ufffd", "\ufffdgnp"},
        {"<img src=x>", NULL, "<img src=x>", ""},
        {"\xff\xfe", "\xc3", "\ufffd\ufffd", "\ufffd"},
    };
    (void)state;
    struct hth_gallery *g = hth_gallery_new();
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        hth_gallery_add(g, cases[i].prompt, cases[i].text);
        assert_string_equal(g->item[i].prompt, cases[i].want_prompt);
        assert_string_equal(g->item[i].text, cases[i].want_text);
    }
    memset(huge, 'x', sizeof(huge) - 1);
    for (size_t i = 0; i < HTH_GALLERY_MAX; i++)
        hth_gallery_add(g, huge, huge);
    assert_int_equal(g->count, HTH_GALLERY_MAX);
    assert_int_equal(strlen(g->item[7].prompt), sizeof(g->item[7].prompt) - 1);
    assert_int_equal(strlen(g->item[7].text), sizeof(g->item[7].text) - 1);
    assert_ptr_equal(hth_gallery_ref(g), g);
    hth_gallery_unref(g);
    hth_gallery_unref(g);
    hth_gallery_unref(NULL);
}

TEST(test_json_has_texts_or_a_picture)
{
    (void)state;
    struct hth_gallery *g = hth_gallery_new();
    assert_null(hth_gallery_json(NULL));
    assert_null(hth_gallery_json(g));
    g->step = 7;
    g->t = 9;
    hth_gallery_add(g, "p", "answer");
    for (int drawn = 0; drawn < 2; drawn++) {
        json_t *o = hth_gallery_json(g);
        char *text = json_dumps(o, JSON_COMPACT);
        assert_string_equal(text, drawn ? "{\"t\":9,\"step\":7,\"picture\":\"drawings.png\","
                                          "\"items\":[{\"prompt\":\"p\",\"text\":null}]}"
                                        : "{\"t\":9,\"step\":7,\"picture\":null,"
                                          "\"items\":[{\"prompt\":\"p\",\"text\":\"answer\"}]}");
        free(text);
        json_decref(o);
        if (!drawn)
            g->png = hth_blob_copy("x", 1);
    }
    hth_gallery_unref(g);
}
