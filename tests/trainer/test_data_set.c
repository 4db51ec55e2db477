/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data sets as the trainer reads them: every sample once per epoch in an order of the seed, text as
 * one stream of ids, pictures in colours or grey, captions before codes; a set that is not the run
 * file's is refused by name.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/mem.h"
#include "data/pack.h"
#include "data/picture.h"
#include "data/set.h"
#include "kernels/ops.h"
#include "support/suite.h"
#include "trainer/data.h"
#include "trainer/task.h"

#define SIDE  8
#define ITEMS 40

static struct hth_why why;

static struct hth_pack *new_pack(struct task *f, const char *dir, enum hth_set_kind kind)
{
    struct hth_pack_opts opts = {
        .dir = dir, .name = "n", .licence = "", .kind = kind, .side = SIDE, .words_min = 1};
    struct hth_pack *pack;
    assert_ok(hth_pack_new(f->env, &opts, &pack, &why));
    return pack;
}

static void finish(struct task *f, struct hth_pack *pack)
{
    const struct hth_manifest *m;
    assert_ok(hth_pack_finish(pack, &m, &why));
    hth_pack_free(pack);
}

/* The number at (row, col, channel) of picture i. */
static uint8_t pixel(int i, int row, int col, int channel)
{
    return (uint8_t)(5 * i + 7 * row + 3 * col + 11 * channel);
}

static void make_pictures(struct task *f, const char *dir, bool classes)
{
    static const char *const names[] = {"a", "b", "c"};
    struct hth_pack *pack = new_pack(f, dir, HTH_SET_PICTURES);
    uint8_t rgb[SIDE * SIDE * 3];
    if (classes)
        hth_pack_classes(pack, names, 3);
    for (int i = 0; i < ITEMS; i++) {
        for (int k = 0; k < SIDE * SIDE * 3; k++)
            rgb[k] = pixel(i, k / 3 / SIDE, k / 3 % SIDE, k % 3);
        assert_ok(hth_pack_pixels(pack, i % 4 == 3 ? HTH_SET_TEST : HTH_SET_TRAIN, "n", rgb, "text",
                                  4, classes ? i % 3 : -1, &why));
    }
    finish(f, pack);
}

static char *document(int i)
{
    return hth_asprintf("Text number %d: %.*s.", i, i % 23, "the lazy dog jumped over");
}

static void make_text(struct task *f, const char *dir)
{
    struct hth_pack *pack = new_pack(f, dir, HTH_SET_TEXT);
    for (int i = 0; i < ITEMS; i++) {
        char *text = document(i);
        assert_ok(hth_pack_text(pack, text, text, strlen(text), &why));
        hth_free(text);
    }
    finish(f, pack);
}

#define CODES 16 /* of the book; 2 x 2 codes a picture */
#define TEXT  6  /* ids of a caption */

static void make_codes(struct task *f, const char *dir)
{
    struct hth_pack *pack = new_pack(f, dir, HTH_SET_CODES);
    struct hth_side_file book = {.file = "codebook.safetensors", .count = CODES};
    memset(book.sha256.b, 9, sizeof(book.sha256.b));
    hth_pack_book(pack, &book, SIDE / 2);
    for (int i = 0; i < ITEMS; i++) {
        uint16_t codes[4] = {(uint16_t)(i % CODES), 1, 2, (uint16_t)(i / CODES)};
        char text[64];
        int len =
            snprintf(text, sizeof(text), "%s", i == 0 ? "one two one two one two one" : "two, one");
        assert_ok(hth_pack_codes(pack, HTH_SET_TRAIN, codes, 4, text, (size_t)len, -1, &why));
    }
    finish(f, pack);
}

static struct hth_data *open_data(struct task *f, const struct hth_data_opts *o)
{
    struct hth_data *data;
    assert_ok(hth_data_open(f->env, o, &data));
    return data;
}

/* ---- pictures ------------------------------------------------------------------------------ */

static struct hth_data_opts image_opts(void)
{
    struct hth_data_opts o = HTH_DATA_OPTS_INIT;
    o.kind = HTH_DATA_SET_IMAGES;
    o.set = "out";
    o.features = 3 * SIDE * SIDE;
    o.classes = 3;
    o.mean = 0;
    o.std = 1;
    o.seed = 5;
    return o;
}

static int clamped(int at)
{
    return at < 0 ? 0 : at >= SIDE ? SIDE - 1 : at;
}

/* Whether x is picture i moved down and right. */
static bool is_moved(const float *x, int i, int down, int right)
{
    for (int k = 0; k < SIDE * SIDE * 3; k++) {
        int row = clamped(k / 3 / SIDE - down), col = clamped(k / 3 % SIDE - right);
        if (lrintf(x[k] * 255) != pixel(i, row, col, k % 3))
            return false;
    }
    return true;
}

/* Each picture of the part comes once per epoch with its class, moved by at most `shift` pixels,
 * and its edge is its nearest pixel. */
TASK_TEST(pictures_are_read_and_moved)
{
    struct task *f = *state;
    static float x[ITEMS * SIDE * SIDE * 3];
    int32_t labels[ITEMS], moved = 0;
    make_pictures(f, "out", true);
    for (int part = 0; part < 2; part++) {
        struct hth_data_opts o = image_opts();
        struct hth_data_info info;
        o.held_out = part == 1;
        o.shift = 2;
        struct hth_data *data = open_data(f, &o);
        hth_data_info(data, &info);
        assert_int_equal(info.samples, part == 1 ? ITEMS / 4 : ITEMS - ITEMS / 4);
        assert_int_equal(info.features, 3 * SIDE * SIDE);
        assert_int_equal(info.labels, 1);
        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            int seen[ITEMS] = {0};
            assert_ok(
                hth_data_read(data, epoch * info.samples, (uint32_t)info.samples, x, NULL, labels));
            for (uint64_t s = 0; s < info.samples; s++)
                for (int i = 0; i < ITEMS; i++)
                    for (int move = 0; move < 25; move++)
                        if (is_moved(x + s * 3 * SIDE * SIDE, i, move / 5 - 2, move % 5 - 2)) {
                            seen[i]++;
                            moved += move != 12;
                            assert_int_equal(labels[s], i % 3);
                        }
            for (int i = 0; i < ITEMS; i++)
                assert_int_equal(seen[i], (i % 4 == 3) == o.held_out);
        }
        hth_data_free(data);
    }
    assert_true(moved > ITEMS); /* of 2 * ITEMS */
}

TASK_TEST(pictures_become_grey)
{
    struct task *f = *state;
    struct hth_data_opts o = image_opts();
    float x[SIDE * SIDE];
    int32_t label;
    make_pictures(f, "out", true);
    o.features = SIDE * SIDE;
    o.shuffle_rows = 0;
    struct hth_data *data = open_data(f, &o);
    assert_ok(hth_data_read(data, 1, 1, x, NULL, &label));
    for (int k = 0; k < SIDE * SIDE; k++) {
        int row = k / SIDE, col = k % SIDE;
        double grey = 0.299 * pixel(1, row, col, 0) + 0.587 * pixel(1, row, col, 1) +
                      0.114 * pixel(1, row, col, 2);
        assert_close(x[k] * 255, grey, 0, 1.0);
    }
    hth_data_free(data);
}

/* ---- text ---------------------------------------------------------------------------------- */

/* The ids of a part as this test makes them of its documents. */
static size_t stream_of(struct task *f, uint32_t vocab, int32_t *out, size_t max)
{
    struct hth_set *set;
    size_t n = 0;
    assert_ok(hth_set_open(f->env, "out", &set, &why));
    for (int i = 0; i < ITEMS; i++) {
        char *text = document(i);
        size_t len = strlen(text);
        if (vocab == HTH_DATA_BYTES) {
            for (size_t k = 0; k < len; k++)
                out[n++] = text[k];
            out[n++] = '\n';
        } else {
            out[n++] = HTH_ID_BEGIN;
            n += hth_words_encode(hth_set_words(set), vocab, text, len, out + n, max - n);
        }
        hth_free(text);
    }
    hth_set_free(set);
    return n;
}

TASK_TEST(text_is_one_stream)
{
    struct task *f = *state;
    static const uint32_t vocabs[] = {HTH_DATA_BYTES, HTH_ID_WORD, HTH_ID_WORD + 5, 1000};
    static int32_t want[8192];
    make_text(f, "out");
    for (size_t v = 0; v < HTH_ARRAY_LEN(vocabs); v++) {
        struct hth_data_opts o = HTH_DATA_OPTS_INIT;
        struct hth_data_info info;
        size_t total = stream_of(f, vocabs[v], want, HTH_ARRAY_LEN(want));
        int32_t tokens[7], labels[7];
        o.kind = HTH_DATA_SET_TEXT;
        o.set = "out";
        o.vocab = vocabs[v];
        o.seq_len = 7;
        o.shuffle_rows = 0;
        struct hth_data *data = open_data(f, &o);
        hth_data_info(data, &info);
        assert_int_equal(info.samples, (total - 7) / 7);
        assert_int_equal(info.labels, 7);
        for (uint64_t s = 0; s < info.samples; s++) {
            assert_ok(hth_data_read(data, s, 1, NULL, tokens, labels));
            assert_memory_equal(tokens, want + 7 * s, sizeof(tokens));
            assert_memory_equal(labels, want + 7 * s + 1, sizeof(labels));
        }
        hth_data_free(data);
    }
}

/* Shuffled, too, each window comes once in an epoch, at the phase that is drawn for it; and any
 * position gives the same sample to a reader that begins there. */
TASK_TEST(windows_come_in_an_order_of_the_seed)
{
    struct task *f = *state;
    static int32_t want[8192];
    struct hth_data_opts o = HTH_DATA_OPTS_INIT;
    struct hth_data_info info;
    int32_t tokens[5], labels[5], again[5], other[5];
    uint64_t same = 0;
    make_text(f, "out");
    size_t total = stream_of(f, 1000, want, HTH_ARRAY_LEN(want));
    o.kind = HTH_DATA_SET_TEXT;
    o.set = "out";
    o.vocab = 1000;
    o.seq_len = 5;
    o.shuffle_rows = 30;
    o.seed = 3;
    struct hth_data *data = open_data(f, &o);
    hth_data_info(data, &info);
    o.seed = 4;
    struct hth_data *second = open_data(f, &o);
    o.seed = 3;
    for (uint64_t s = 0; s < 2 * info.samples; s++) {
        bool found = false;
        assert_ok(hth_data_read(data, s, 1, NULL, tokens, labels));
        assert_ok(hth_data_read(second, s, 1, NULL, other, labels));
        same += memcmp(tokens, other, sizeof(tokens)) == 0;
        for (size_t at = 0; at + 5 <= total && !found; at++)
            found = memcmp(want + at, tokens, sizeof(tokens)) == 0;
        assert_true(found);
        if (s % 31 == 0) {
            struct hth_data *fresh = open_data(f, &o);
            assert_ok(hth_data_read(fresh, s, 1, NULL, again, labels));
            assert_memory_equal(again, tokens, sizeof(tokens));
            hth_data_free(fresh);
        }
    }
    assert_true(same < info.samples);
    hth_data_free(data);
    hth_data_free(second);
}

/* ---- codes --------------------------------------------------------------------------------- */

static struct hth_data_opts code_opts(void)
{
    struct hth_data_opts o = HTH_DATA_OPTS_INIT;
    o.kind = HTH_DATA_SET_CODES;
    o.set = "out";
    o.vocab = HTH_ID_WORD + 2;
    o.text_len = TEXT;
    o.codes = CODES;
    o.code_side = 2;
    o.shuffle_rows = 0;
    return o;
}

TASK_TEST(captions_come_before_codes)
{
    struct task *f = *state;
    struct hth_data_opts o = code_opts();
    struct hth_data_info info;
    enum { S = TEXT + 4 - 1, ONE = HTH_ID_WORD, TWO = HTH_ID_WORD + 1 };
    static const int32_t long_one[] = {HTH_ID_BEGIN, ONE, TWO, ONE, TWO, ONE, 0, 1, 2};
    const int32_t second[] = {HTH_ID_BEGIN, TWO, HTH_ID_BYTE + ',', ONE, 0, 0, 1, 1, 2};
    int32_t tokens[S], labels[S];
    make_codes(f, "out");
    struct hth_data *data = open_data(f, &o);
    hth_data_info(data, &info);
    assert_int_equal(info.features, S);
    assert_int_equal(info.labels, S);
    assert_int_equal(info.samples, ITEMS);
    assert_true(info.hash != 0);
    assert_ok(hth_data_read(data, 0, 1, NULL, tokens, labels)); /* the caption is cut */
    assert_memory_equal(tokens, long_one, sizeof(tokens));
    assert_memory_equal(labels, long_one + 1, sizeof(labels) - 4);
    assert_int_equal(labels[S - 1], 0);
    assert_ok(hth_data_read(data, 1, 1, NULL, tokens, labels));
    assert_memory_equal(tokens, second, sizeof(tokens));
    for (int i = 0; i < S - 1; i++)
        assert_int_equal(labels[i],
                         i < TEXT - 1 && second[i + 1] == 0 ? HTH_LABEL_NONE : second[i + 1]);
    assert_ok(hth_data_read(data, CODES + 3, 1, NULL, tokens, labels));
    assert_int_equal(labels[S - 1], 1);
    hth_data_free(data);
}

/* The fraction that loses its caption is that of the options, and each read has the same ones. */
TASK_TEST(captions_are_dropped_as_drawn)
{
    struct task *f = *state;
    struct hth_data_opts o = code_opts();
    enum { S = TEXT + 4 - 1, N = 50 * ITEMS };
    static int32_t tokens[2][N * S], labels[N * S];
    int dropped = 0;
    make_codes(f, "out");
    o.shuffle_rows = 8;
    o.caption_drop = 0.25;
    for (int k = 0; k < 2; k++) {
        struct hth_data *data = open_data(f, &o);
        assert_ok(hth_data_read(data, 0, N, NULL, tokens[k], labels));
        hth_data_free(data);
    }
    assert_memory_equal(tokens[0], tokens[1], sizeof(tokens[0]));
    for (int i = 0; i < N; i++) {
        assert_int_equal(tokens[0][i * S], HTH_ID_BEGIN);
        dropped += tokens[0][i * S + 1] == HTH_ID_PAD;
        if (tokens[0][i * S + 1] == HTH_ID_PAD)
            assert_int_equal(labels[i * S], HTH_LABEL_NONE);
    }
    assert_in_range(dropped, N * 0.2, N * 0.3);
}

/* ---- what does not fit --------------------------------------------------------------------- */

static void check_open(struct task *f, struct hth_data_opts o, enum hth_err err)
{
    struct hth_data *data;

    if (o.kind == HTH_DATA_SET_TEXT)
        o.vocab = 300;
    assert_err(err, hth_data_open(f->env, &o, &data));
    hth_data_free(data);
}

TASK_TEST(sets_that_do_not_fit_are_refused)
{
    struct task *f = *state;

    make_pictures(f, "out", true);
    make_pictures(f, "bare", false);
    make_text(f, "text");
    make_codes(f, "codes");
#define CHECK(of, from, change, err)                                                               \
    do {                                                                                           \
        struct hth_data_opts o =                                                                   \
            HTH_DATA_SET_##of == HTH_DATA_SET_CODES ? code_opts() : image_opts();                  \
        o.kind = HTH_DATA_SET_##of;                                                                \
        o.set = from;                                                                              \
        o.change;                                                                                  \
        check_open(f, o, err);                                                                     \
    } while (0)
    CHECK(IMAGES, "out", features = SIDE * SIDE, HTH_OK); /* grey */
    CHECK(CODES, "codes", held_out = false, HTH_OK);
    CHECK(TEXT, "text", held_out = false, HTH_OK);
    CHECK(IMAGES, NULL, held_out = false, HTH_E_CONFIG);
    CHECK(IMAGES, "nowhere", held_out = false, HTH_E_NO_FILE);
    CHECK(IMAGES, "text", held_out = false, HTH_E_CONFIG);
    CHECK(TEXT, "out", held_out = false, HTH_E_CONFIG);
    CHECK(CODES, "out", held_out = false, HTH_E_CONFIG);
    CHECK(IMAGES, "bare", held_out = false, HTH_E_CONFIG);
    CHECK(IMAGES, "out", features = 784, HTH_E_CONFIG);
    CHECK(IMAGES, "out", classes = 2, HTH_E_CONFIG);
    CHECK(TEXT, "text", words = "aa", HTH_E_CONFIG);
    CHECK(TEXT, "text", held_out = true, HTH_E_CONFIG);
    CHECK(TEXT, "text", seq_len = 4000, HTH_E_CONFIG);
    CHECK(CODES, "codes", words = "aa", HTH_E_CONFIG);
    CHECK(CODES, "codes", book = "bb", HTH_E_CONFIG);
    CHECK(CODES, "codes", codes = CODES + 1, HTH_E_CONFIG);
#undef CHECK
}

/* A shard that changes under a reader is an error that names it. */
TASK_TEST(a_changed_shard_is_named)
{
    struct task *f = *state;
    struct hth_data_opts o = code_opts();
    int32_t tokens[TEXT + 4], labels[TEXT + 4];
    make_codes(f, "out");
    struct hth_data *data = open_data(f, &o);
    hth_node_disk_put(f->node, "out/train-00000.tar.zst", "nothing", 7);
    assert_err(HTH_E_CORRUPT, hth_data_read(data, 0, 1, NULL, tokens, labels));
    assert_non_null(strstr(hth_data_why(data), "out/train-00000.tar.zst"));
    hth_data_free(data);
}
