/* SPDX-License-Identifier: Apache-2.0 */
/* test_emoji.c: rows of Unicode's list, and the pictures of Debian's font for them. */
#include <stdlib.h>

#include "core/mem.h"
#include "data/emoji.h"
#include "data/fashion.h"
#include "data/set.h"
#include "sim/world.h"
#include "support/suite.h"

TEST(rows_of_the_list_are_read)
{
    (void)state;
    static const struct {
        const char *line;
        const char *name; /* NULL: refused */
        uint32_t points, last;
    } cases[] = {
        {"1F600    ; fully-qualified     # X E1.0 grinning face", "grinning face", 1, 0x1f600},
        {"1F468 1F3FB 200D 2695 FE0F ; fully-qualified # X E4.0 man: light\r", "man: light", 5,
         0xfe0f},
        {"1F600 ; minimally-qualified # X E1.0 grinning face", NULL, 0, 0},
        {"# 1F600 ; fully-qualified # X E1.0 grinning face", NULL, 0, 0},
        {"1F600 ; fully-qualified", NULL, 0, 0},
        {"1F600 ; fully-qualified # X", NULL, 0, 0},
        {"1F600 ; fully-qualified # X E1.0 ", NULL, 0, 0},
        {"1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 ; fully-qualified # X E1.0 seventeen", NULL, 0, 0},
        {"1234567 ; fully-qualified # X E1.0 seven digits", "seven digits", 2, 7},
        {"", NULL, 0, 0},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_emoji e;
        bool ok = hth_emoji_row(cases[i].line, strlen(cases[i].line), &e);
        if (ok != (cases[i].name != NULL))
            fail_msg("case %zu", i);
        if (!ok)
            continue;
        assert_string_equal(e.name, cases[i].name);
        assert_int_equal(e.points, cases[i].points);
        assert_int_equal(e.point[e.points - 1], cases[i].last);
    }
}

struct fixture {
    struct hth_world *world;
    struct hth_env *env;
    struct hth_pack *pack;
    struct hth_why why;
};

static int setup(void **state)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct hth_pack_opts pack = {.dir = "out",
                                 .name = "n",
                                 .licence = "",
                                 .side = 16,
                                 .test = 0.1,
                                 .caption_min = 1,
                                 .aspect_max = 2,
                                 .words_min = 1};
    opts.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    f->world = hth_world_new(1, &opts);
    f->env = hth_node_env(hth_world_node(f->world, "n", NULL));
    assert_ok(hth_pack_new(f->env, &pack, &f->pack, &f->why));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    hth_pack_free(f->pack);
    hth_world_free(f->world);
    hth_free(f);
    return 0;
}

static void put(struct fixture *f, const char *path, const void *bytes, size_t len)
{
    struct hth_blob *blob = hth_blob_copy(bytes, len);
    assert_ok(hth_file_write(f->env, path, &(struct hth_span){blob, 0, len}, 1));
    hth_blob_unref(blob);
}

static void put_font(struct fixture *f)
{
    FILE *file = fopen(HTH_EMOJI_FONT, "rb");
    if (file == NULL)
        fail_msg("%s is missing: tools/setup installs it", HTH_EMOJI_FONT);
    size_t room = 32u << 20;
    uint8_t *bytes = hth_calloc(room, 1);
    put(f, "font", bytes, fread(bytes, 1, room, file));
    fclose(file);
    hth_free(bytes);
}

TEST_WITH(sequences_become_pictures, setup, teardown)
{
    struct fixture *f = *state;
    static const char list[] =
        "1F7E5 ; fully-qualified # X E12.0 red square\n"
        "1F468 1F3FF 200D 1F527 ; fully-qualified # X E4.0 man mechanic: dark skin tone\n"
        "1F1E8 1F1ED ; fully-qualified # X E2.0 flag: Switzerland\n"
        "0078 ; fully-qualified # X E2.0 a letter\n"
        "1F7E5 1F7E5 ; fully-qualified # X E2.0 two pictures\n";
    const struct hth_manifest *m;
    struct hth_set *set;
    struct hth_sample s;
    const char *first;
    put_font(f);
    put(f, "list", list, sizeof(list) - 1);
    assert_ok(hth_emoji_pack(f->env, "font", "list", f->pack, NULL, NULL, &f->why));
    assert_int_equal(hth_pack_skipped(f->pack, HTH_SKIP_NO_FILE, &first), 2);
    assert_ok(hth_pack_finish(f->pack, &m, &f->why));
    assert_int_equal(m->samples[HTH_SET_TRAIN] + m->samples[HTH_SET_TEST], 3);
    assert_ok(hth_set_open(f->env, "out", &set, &f->why));
    for (int i = 0, part = 0; part < HTH_SET_PARTS; part++)
        for (uint64_t k = 0; k < m->samples[part]; k++, i++) {
            assert_ok(hth_set_seek(set, (enum hth_set_part)part, k, &f->why));
            assert_ok(hth_set_next(set, &s, &f->why));
            const uint8_t *middle = s.pixels + 3 * (16 * 8 + 8);
            if (strncmp(s.text, "red", 3) == 0)
                assert_true(middle[0] > 180 && middle[1] < 80 && middle[2] < 80);
            if (strncmp(s.text, "flag", 4) == 0)
                assert_true(middle[0] > 230 && middle[1] > 180);
        }
    hth_set_free(set);
}

TEST_WITH(files_that_are_no_font_or_list_are_named, setup, teardown)
{
    struct fixture *f = *state;
    put(f, "text", "hello", 5);
    assert_err(HTH_E_NO_FILE, hth_emoji_pack(f->env, "none", "text", f->pack, NULL, NULL, &f->why));
    assert_non_null(strstr(f->why.text, "fonts-noto-color-emoji"));
    f->why.text[0] = '\0';
    assert_err(HTH_E_BAD_MAGIC,
               hth_emoji_pack(f->env, "text", "text", f->pack, NULL, NULL, &f->why));
    assert_non_null(strstr(f->why.text, "text: not a font"));
    f->why.text[0] = '\0';
    put_font(f);
    assert_err(HTH_E_NOT_FOUND,
               hth_emoji_pack(f->env, "font", "text", f->pack, NULL, NULL, &f->why));
}

/* An idx file of `count` items with one byte each or 28 x 28. */
static void put_idx(struct fixture *f, const char *path, uint8_t dims, uint8_t count, size_t bytes)
{
    static uint8_t file[4096] = {0, 0, 8};
    memset(file + 4, 0, sizeof(file) - 4);
    file[3] = dims;
    file[7] = count;
    file[11] = file[15] = dims == 3 ? 28 : 0;
    put(f, path, file, bytes);
}

TEST_WITH(idx_files_are_packed_and_checked, setup, teardown)
{
    struct fixture *f = *state;
    static const struct {
        uint8_t dims, count;
        size_t bytes;
        enum hth_err err;
    } images[] = {
        {3, 2, 16 + 2 * 784 - 1, HTH_E_TRUNCATED},
        {3, 2, 16 + 2 * 784 + 1, HTH_E_TRUNCATED},
        {1, 2, 8 + 2, HTH_E_BAD_MAGIC},
        {3, 2, 7, HTH_E_BAD_MAGIC},
        {3, 3, 16 + 3 * 784, HTH_E_BAD_SHAPE},
        {3, 2, 16 + 2 * 784, HTH_OK},
    };
    const struct hth_manifest *m;
    put_idx(f, "in/train-labels-idx1-ubyte.gz", 1, 2, 8 + 2);
    put_idx(f, "in/t10k-labels-idx1-ubyte.gz", 1, 1, 8 + 1);
    put_idx(f, "in/t10k-images-idx3-ubyte.gz", 3, 1, 16 + 784);
    for (size_t i = 0; i < HTH_ARRAY_LEN(images); i++) {
        hth_pack_free(f->pack);
        struct hth_pack_opts pack = {
            .dir = "out", .name = "n", .licence = "", .side = 16, .caption_min = 1, .words_min = 1};
        assert_ok(hth_pack_new(f->env, &pack, &f->pack, &f->why));
        f->why.text[0] = '\0';
        put_idx(f, "in/train-images-idx3-ubyte.gz", images[i].dims, images[i].count,
                images[i].bytes);
        assert_err(images[i].err, hth_fashion_pack(f->env, "in", 16, f->pack, NULL, NULL, &f->why));
    }
    assert_ok(hth_pack_finish(f->pack, &m, &f->why));
    assert_int_equal(m->samples[HTH_SET_TRAIN], 2);
    assert_int_equal(m->samples[HTH_SET_TEST], 1);
    assert_int_equal(m->class_count, 10);
}
