/* SPDX-License-Identifier: Apache-2.0 */
/* test_set.c: folders and texts become data sets, which are read back sample by sample. */
#include <stdlib.h>

#include "core/mem.h"
#include "data/folder.h"
#include "data/picture.h"
#include "data/set.h"
#include "sim/world.h"
#include "support/suite.h"

struct fixture {
    struct hth_world *world;
    struct hth_env *env;
    struct hth_why why;
};

static int setup(void **state)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    opts.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    f->world = hth_world_new(1, &opts);
    f->env = hth_node_env(hth_world_node(f->world, "n", NULL));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
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

static void put_text(struct fixture *f, const char *path, const char *text)
{
    put(f, path, text, strlen(text));
}

/* A picture of one grey. */
static void put_picture(struct fixture *f, const char *path, uint32_t width, uint32_t height,
                        uint8_t grey)
{
    uint8_t *rgb = hth_calloc((size_t)width * height, 3);
    struct hth_blob *png;
    memset(rgb, grey, (size_t)width * height * 3);
    assert_ok(hth_picture_png(rgb, width, height, &png));
    put(f, path, png->data, png->size);
    hth_blob_unref(png);
    hth_free(rgb);
}

static struct hth_pack *new_pack(struct fixture *f, enum hth_set_kind kind)
{
    struct hth_pack_opts opts = {.dir = "out",
                                 .name = "n",
                                 .licence = "l",
                                 .kind = kind,
                                 .side = 8,
                                 .test = 0.1,
                                 .caption_min = 3,
                                 .aspect_max = 2,
                                 .words_min = 1};
    struct hth_pack *pack;
    assert_ok(hth_pack_new(f->env, &opts, &pack, &f->why));
    return pack;
}

static uint64_t skipped(const struct hth_pack *pack, enum hth_skip reason, const char *first)
{
    const char *is;
    uint64_t n = hth_pack_skipped(pack, reason, &is);
    if (strstr(is, first) == NULL)
        fail_msg("%s: the first is '%s', not '%s'", hth_skip_text(reason), is, first);
    return n;
}

static struct hth_set *open_set(struct fixture *f)
{
    struct hth_set *set;
    enum hth_err err = hth_set_open(f->env, "out", &set, &f->why);
    if (err != HTH_OK)
        fail_msg("%s", f->why.text);
    return set;
}

TEST_WITH(captions_beside_pictures_are_packed, setup, teardown)
{
    struct fixture *f = *state;
    static const char *const files[] = {
        "a.PNG", "a.txt", "b.png", "big.png",  "big.txt",  "broken.jpg", "broken.txt", "e.png",
        "e.txt", "l.png", "l.txt", "long.png", "long.txt", "notes.md",   "u.png",      "u.txt"};
    struct hth_folder_opts opts = {.dir = "in", .files = files, .count = HTH_ARRAY_LEN(files)};
    struct hth_pack *pack = new_pack(f, HTH_SET_PICTURES);
    const struct hth_manifest *m;
    struct hth_sample sample;
    struct hth_set *set;
    char *large = hth_calloc((1u << 20) + 1, 1);

    put_picture(f, "in/a.PNG", 16, 16, 40);
    put_text(f, "in/a.txt", "  A grey square\n");
    put_picture(f, "in/b.png", 16, 16, 40); /* without a caption */
    put_picture(f, "in/big.png", 17, 8, 40);
    put_text(f, "in/big.txt", "too wide");
    put_text(f, "in/broken.jpg", "\xff\xd8\xff nothing");
    put_text(f, "in/broken.txt", "a broken file");
    put_picture(f, "in/e.png", 8, 8, 40);
    put_text(f, "in/e.txt", "");
    put_picture(f, "in/l.png", 8, 8, 40);
    memset(large, 'x', 1u << 20);
    put_text(f, "in/l.txt", large);
    put_picture(f, "in/long.png", 8, 8, 40);
    large[HTH_CAPTION_BYTES_MAX + 1] = '\0';
    put_text(f, "in/long.txt", large);
    put_picture(f, "in/u.png", 8, 8, 40);
    put_text(f, "in/u.txt", "not \xff UTF-8");
    hth_free(large);

    assert_ok(hth_folder_pack(f->env, &opts, pack, &f->why));
    assert_int_equal(skipped(pack, HTH_SKIP_NO_CAPTION, "b.png"), 1);
    assert_int_equal(skipped(pack, HTH_SKIP_ASPECT, "big"), 1);
    assert_int_equal(skipped(pack, HTH_SKIP_BROKEN, "broken: broken JPEG"), 1);
    assert_int_equal(skipped(pack, HTH_SKIP_SHORT, "e"), 1);
    assert_int_equal(skipped(pack, HTH_SKIP_LONG, "l"), 2);
    assert_int_equal(skipped(pack, HTH_SKIP_NOT_UTF8, "u"), 1);
    assert_ok(hth_pack_finish(pack, &m, &f->why));
    assert_int_equal(m->samples[HTH_SET_TRAIN] + m->samples[HTH_SET_TEST], 1);
    assert_int_equal(m->skip_count, 6);
    hth_pack_free(pack);

    set = open_set(f);
    assert_int_equal(hth_words_count(hth_set_words(set)), 3);
    assert_ok(hth_set_seek(set, HTH_SET_TRAIN, 0, &f->why));
    for (int i = 0; i < 3; i++) { /* the part begins anew at its end */
        assert_ok(hth_set_next(set, &sample, &f->why));
        assert_int_equal(sample.text_len, 13);
        assert_memory_equal(sample.text, "A grey square", 13);
        assert_int_equal(sample.label, -1);
        assert_int_equal(sample.pixels[0], 40);
        assert_int_equal(sample.pixels[8 * 8 * 3 - 1], 40);
    }
    hth_set_free(set);
}

TEST_WITH(folders_of_classes_are_packed, setup, teardown)
{
    struct fixture *f = *state;
    char paths[40][32];
    const char *files[40];
    struct hth_folder_opts opts = {.dir = "in", .files = files, .count = 40};
    struct hth_pack *pack = new_pack(f, HTH_SET_PICTURES);
    const struct hth_manifest *m;
    struct hth_sample sample;
    struct hth_set *set;

    for (int i = 0; i < 40; i++) {
        char *path;
        snprintf(paths[i], sizeof(paths[i]), "%s/%02d.png", i < 20 ? "A" : "dog", i);
        files[i] = paths[i];
        path = hth_asprintf("in/%s", paths[i]);
        put_picture(f, path, 8, 8, (uint8_t)(i < 20 ? 10 : 20));
        hth_free(path);
    }
    assert_ok(hth_folder_pack(f->env, &opts, pack, &f->why));
    assert_ok(hth_pack_finish(pack, &m, &f->why));
    assert_int_equal(m->samples[HTH_SET_TRAIN] + m->samples[HTH_SET_TEST], 40);
    assert_true(m->samples[HTH_SET_TEST] > 0);
    hth_pack_free(pack);
    set = open_set(f);
    assert_int_equal(hth_set_manifest(set)->class_count, 2);
    for (int part = 0; part < HTH_SET_PARTS; part++)
        for (uint64_t i = 0; i < hth_set_manifest(set)->samples[part]; i++) {
            assert_ok(hth_set_seek(set, (enum hth_set_part)part, i, &f->why));
            assert_ok(hth_set_next(set, &sample, &f->why));
            assert_int_equal(sample.pixels[0], sample.label == 0 ? 10 : 20);
            assert_memory_equal(sample.text, sample.label == 0 ? "A" : "dog", sample.text_len);
        }
    assert_err(HTH_E_RANGE, hth_set_seek(set, HTH_SET_TEST,
                                         hth_set_manifest(set)->samples[HTH_SET_TEST], &f->why));
    hth_set_free(set);
}

TEST_WITH(rows_of_captions_are_packed_and_dropped, setup, teardown)
{
    struct fixture *f = *state;
    static const char *const files[] = {"a.png", "captions.jsonl", "x/b.png"};
    struct hth_folder_opts opts = {
        .dir = "in", .files = files, .count = 3, .drop = {{"nsfw", "yes"}}, .drop_count = 1};
    struct hth_pack *pack = new_pack(f, HTH_SET_PICTURES);
    const struct hth_manifest *m;
    put_picture(f, "in/a.png", 8, 8, 1);
    put_picture(f, "in/x/b.png", 8, 8, 2);
    put_text(f, "in/captions.jsonl",
             "{\"file\":\"a.png\",\"text\":\"first one\"}\n"
             "{\"file\":\"x/b.png\",\"caption\":\"second one\"}\n"
             "{\"file\":\"x/b.png\",\"caption\":\"third\",\"nsfw\":\"yes\"}\n"
             "{\"file\":\"../../etc/passwd\",\"caption\":\"fourth\"}\n"
             "{\"file\":\"a.png\"}\n"
             "{\"file\":\"captions.jsonl\",\"text\":\"no picture\"}\n"
             "no JSON\n");
    assert_ok(hth_folder_pack(f->env, &opts, pack, &f->why));
    assert_int_equal(skipped(pack, HTH_SKIP_DROPPED, "captions.jsonl:3"), 1);
    assert_int_equal(skipped(pack, HTH_SKIP_NO_FILE, "captions.jsonl:4: ../../etc/passwd"), 1);
    assert_int_equal(skipped(pack, HTH_SKIP_NO_CAPTION, "captions.jsonl:5"), 1);
    assert_int_equal(skipped(pack, HTH_SKIP_BROKEN, "neither PNG nor JPEG"), 1);
    assert_int_equal(skipped(pack, HTH_SKIP_BAD_ROW, "captions.jsonl:7:"), 1);
    assert_ok(hth_pack_finish(pack, &m, &f->why));
    assert_int_equal(m->samples[HTH_SET_TRAIN] + m->samples[HTH_SET_TEST], 2);
    hth_pack_free(pack);
}

TEST_WITH(text_is_cut_into_documents, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_pack *pack = new_pack(f, HTH_SET_TEXT);
    const struct hth_manifest *m;
    struct hth_sample sample;
    struct hth_set *set;
    size_t len = 0, seen = 0, room = 300000;
    char *text = hth_calloc(room, 1);

    for (int i = 0; len + 100 < room - 80000; i++)
        len += (size_t)snprintf(text + len, room - len, "line %d of a long text\n%s", i,
                                i % 7 == 0 ? "\n" : "");
    memset(text + len, 'y', 70000); /* longer than a sample may be */
    len += 70000;
    put(f, "in/t.txt", text, len);
    assert_ok(hth_text_pack(f->env, "in/t.txt", pack, NULL, NULL, &f->why));
    assert_ok(hth_pack_finish(pack, &m, &f->why));
    hth_pack_free(pack);
    set = open_set(f);
    for (int part = 0; part < HTH_SET_PARTS; part++) {
        uint64_t count = hth_set_manifest(set)->samples[part];
        assert_true(count > 0);
        assert_ok(hth_set_seek(set, (enum hth_set_part)part, 0, &f->why));
        for (uint64_t i = 0; i < count; i++) {
            assert_ok(hth_set_next(set, &sample, &f->why));
            assert_true(sample.text_len <= HTH_DOCUMENT_BYTES_MAX);
            for (size_t k = 0; k < sample.text_len; k++)
                seen += sample.text[k] > ' ';
        }
    }
    for (size_t k = 0; k < len; k++)
        seen -= text[k] > ' ';
    assert_int_equal(seen, 0); /* every letter is in one document */
    hth_set_free(set);
    hth_free(text);
}

TEST_WITH(rows_of_text_are_packed, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_pack *pack = new_pack(f, HTH_SET_TEXT);
    const struct hth_manifest *m;
    put_text(f, "t.jsonl", "{\"text\":\"one\"}\n{\"text\":3}\n{\n{\"text\":\"two\"}\n");
    assert_ok(hth_text_pack(f->env, "t.jsonl", pack, NULL, NULL, &f->why));
    assert_int_equal(skipped(pack, HTH_SKIP_BAD_ROW, "t.jsonl:2: no \"text\""), 2);
    assert_ok(hth_pack_finish(pack, &m, &f->why));
    assert_int_equal(m->samples[HTH_SET_TRAIN] + m->samples[HTH_SET_TEST], 2);
    hth_pack_free(pack);
    assert_err(HTH_E_NO_FILE, hth_text_pack(f->env, "none", NULL, NULL, NULL, &f->why));
    assert_non_null(strstr(f->why.text, "none: "));
}

/* The names of R 5.1 whose integer ends in 0 are held out by 0.1; a smaller fraction holds out some
 * of them. */
TEST_WITH(names_decide_the_part, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_pack_opts opts = {.dir = "x", .name = "n", .licence = "", .side = 8};
    uint32_t held[3] = {0}, both = 0;
    bool of_any[3][1000];
    static const double fractions[] = {0.1, 0.05, 0.5};
    for (int k = 0; k < 3; k++) {
        struct hth_pack *pack;
        opts.test = fractions[k];
        assert_ok(hth_pack_new(f->env, &opts, &pack, &f->why));
        for (int i = 0; i < 1000; i++) {
            char name[32];
            snprintf(name, sizeof(name), "name %d", i);
            of_any[k][i] = hth_pack_part_of(pack, name) == HTH_SET_TEST;
            held[k] += of_any[k][i];
        }
        hth_pack_free(pack);
    }
    for (int i = 0; i < 1000; i++)
        both += of_any[0][i] && of_any[1][i];
    assert_int_equal(both, held[1]);
    assert_in_range(held[0], 70, 130);
    assert_in_range(held[1], 30, 70);
    assert_in_range(held[2], 450, 550);
}

TEST_WITH(a_changed_set_is_refused, setup, teardown)
{
    struct fixture *f = *state;
    static const char *const names[] = {"out/train-00000.tar.zst", "out/words.json"};
    struct hth_pack *pack = new_pack(f, HTH_SET_TEXT);
    const struct hth_manifest *m;
    struct hth_sample sample;
    struct hth_set *set;
    struct hth_pack_opts again = {.dir = "out", .name = "n", .licence = "", .side = 8};

    assert_ok(hth_pack_text(pack, "a", "some text", 9, &f->why));
    assert_ok(hth_pack_finish(pack, &m, &f->why));
    hth_pack_free(pack);
    assert_err(HTH_E_DUPLICATE, hth_pack_new(f->env, &again, &pack, &f->why));
    assert_non_null(strstr(f->why.text, "out has a data set already"));
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++) {
        struct hth_blob *whole;
        enum hth_err err;
        f->why.text[0] = '\0';
        assert_ok(hth_file_read(f->env, names[i], 1u << 20, &whole));
        whole->data[whole->size / 2] ^= 1;
        put(f, names[i], whole->data, whole->size);
        err = hth_set_open(f->env, "out", &set, &f->why);
        if (err == HTH_OK)
            err = hth_set_seek(set, HTH_SET_TRAIN, 0, &f->why);
        if (err == HTH_OK)
            err = hth_set_next(set, &sample, &f->why);
        assert_err(HTH_E_CORRUPT, err);
        assert_non_null(strstr(f->why.text, names[i]));
        assert_non_null(strstr(f->why.text, "SHA-256"));
        hth_set_free(set);
        set = NULL;
        if (i == 0) { /* and a shard that is cut short */
            put(f, names[i], whole->data, whole->size - 1);
            f->why.text[0] = '\0';
            assert_ok(hth_set_open(f->env, "out", &set, &f->why));
            assert_ok(hth_set_seek(set, HTH_SET_TRAIN, 0, &f->why));
            assert_err(HTH_E_CORRUPT, hth_set_next(set, &sample, &f->why));
            assert_non_null(strstr(f->why.text, "bytes, but data.json says"));
            hth_set_free(set);
        }
        hth_blob_unref(whole);
    }
}

TEST_WITH(an_empty_set_is_not_written, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_pack *pack = new_pack(f, HTH_SET_PICTURES);
    struct hth_folder_opts opts = {.dir = "in"};
    const struct hth_manifest *m;
    struct hth_set *set;
    assert_err(HTH_E_NOT_FOUND, hth_folder_pack(f->env, &opts, pack, &f->why));
    assert_non_null(strstr(f->why.text, "NAME.txt"));
    assert_err(HTH_E_BAD_SHAPE, hth_pack_finish(pack, &m, &f->why));
    hth_pack_free(pack);
    f->why.text[0] = '\0';
    assert_err(HTH_E_NO_FILE, hth_set_open(f->env, "out", &set, &f->why));
    assert_non_null(strstr(f->why.text, "out/data.json"));
}
