/* SPDX-License-Identifier: Apache-2.0 */
/* test_safetensors.c: round trips, files of other programs, and every kind of damage. */
#include "core/bytes.h"
#include "core/limits.h"
#include "core/mem.h"
#include "core/rng.h"
#include "experts/safetensors.h"
#include "support/suite.h"

#include <stdlib.h>

static struct hth_blob *write_two(void)
{
    static const float a[6] = {1, 2, 3, 4, 5, 6};
    static const uint8_t b[3] = {7, 8, 9};
    const uint64_t da[2] = {2, 3}, db[1] = {3};
    struct hth_st_writer *w = hth_st_writer_new();
    struct hth_blob *blob;

    hth_st_add_meta(w, "note", "a \"quoted\" \\ text, \xc3\xa9\n\tsecond line\x7f\x01");
    hth_st_add_meta_real(w, "mean", 0.1);
    hth_st_add(w, "layer.weight", HTH_F32, 2, da, a);
    hth_st_add_meta_u64(w, "steps", UINT64_MAX);
    hth_st_add(w, "mask", HTH_U8, 1, db, b);
    hth_st_add(w, "scalar", HTH_F32, 0, NULL, a);
    assert_ok(hth_st_writer_finish(w, &blob));
    hth_st_writer_free(w);
    return blob;
}

TEST(round_trip_keeps_everything)
{
    struct hth_blob *blob = write_two(), *again = write_two();
    struct hth_st_reader *r;
    const struct hth_st_entry *e;
    uint64_t steps;
    double mean;
    float a[6], one;

    (void)state;
    assert_int_equal(blob->size, again->size);
    assert_memory_equal(blob->data, again->data, blob->size);
    assert_int_equal((8 + hth_load_u64le(blob->data)) % 64, 0);
    assert_ok(hth_st_open(blob->data, blob->size, &r));
    assert_true(hth_st_has_digest(r));
    assert_int_equal(hth_st_count(r), 3);
    assert_string_equal(hth_st_at(r, 0)->name, "layer.weight");
    assert_null(hth_st_at(r, 3));
    assert_string_equal(hth_st_meta(r, "note"),
                        "a \"quoted\" \\ text, \xc3\xa9\n\tsecond line\x7f\x01");
    assert_ok(hth_st_meta_real(r, "mean", &mean));
    assert_true(mean == 0.1);
    assert_err(HTH_E_MALFORMED, hth_st_meta_real(r, "note", &mean));
    assert_err(HTH_E_NOT_FOUND, hth_st_meta_real(r, "none", &mean));
    assert_ok(hth_st_meta_u64(r, "steps", &steps));
    assert_true(steps == UINT64_MAX);
    assert_err(HTH_E_NOT_FOUND, hth_st_meta_u64(r, "nothing", &steps));
    assert_err(HTH_E_MALFORMED, hth_st_meta_u64(r, "note", &steps));
    e = hth_st_find(r, "layer.weight");
    assert_non_null(e);
    assert_int_equal(e->ndim, 2);
    assert_int_equal(e->dim[1], 3);
    assert_ok(hth_st_copy(r, "layer.weight", HTH_F32, 6, a));
    assert_close(a[5], 6, 0, 0);
    assert_ok(hth_st_copy(r, "scalar", HTH_F32, 1, &one));
    assert_err(HTH_E_BAD_SHAPE, hth_st_copy(r, "layer.weight", HTH_F32, 5, a));
    assert_err(HTH_E_BAD_SHAPE, hth_st_copy(r, "mask", HTH_F32, 3, a));
    assert_err(HTH_E_NOT_FOUND, hth_st_copy(r, "absent", HTH_F32, 3, a));
    hth_st_close(r);
    hth_blob_unref(blob);
    hth_blob_unref(again);
}

/* A flip of any bit is found, and every shorter file is refused. */
TEST(every_flip_and_cut_is_found)
{
    struct hth_blob *blob = write_two();
    struct hth_st_reader *r;
    size_t silent = 0;

    (void)state;
    for (size_t bit = 0; bit < blob->size * 8; bit++) {
        blob->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (hth_st_open(blob->data, blob->size, &r) == HTH_OK) {
            /* The one flip that passes renames the digest's key. A checkpoint's reader requires the
             * digest. */
            silent += hth_st_has_digest(r) ? 1 : 0;
            hth_st_close(r);
        }
        blob->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(silent, 0);
    for (size_t len = 0; len < blob->size; len++) {
        uint8_t *cut = malloc(len + 1);
        memcpy(cut, blob->data, len);
        assert_int_not_equal(hth_st_open(cut, len, &r), HTH_OK);
        free(cut);
    }
    hth_blob_unref(blob);
}

/* Opens a file of the given header text and data length. */
static enum hth_err open_text(const char *header, size_t data_len)
{
    size_t len = strlen(header);
    uint8_t *bytes = calloc(8 + len + data_len, 1);
    struct hth_st_reader *r = NULL;
    enum hth_err err;

    hth_store_u64le(bytes, len);
    memcpy(bytes + 8, header, len);
    err = hth_st_open(bytes, 8 + len + data_len, &r);
    hth_st_close(r);
    free(bytes);
    return err;
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(files_of_other_programs_are_judged)
{
    static const struct {
        const char *header;
        size_t data;
        enum hth_err want;
    } cases[] = {
        {"{}", 0, HTH_OK},
        {"{}   ", 0, HTH_OK},
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, HTH_OK},
        {"{\"a\":" T("F32", "[2]", "[0,8]") "}", 8, HTH_OK},
        {"{\"b\":" T("F32", "[1]", "[8,12]") ",\"a\":" T("I64", "[1]", "[0,8]") "}", 12, HTH_OK},
        {"{\"a\":" T("F32", "[0,7]", "[0,0]") "}", 0, HTH_OK},
        {"", 0, HTH_E_MALFORMED},
        {"[]", 0, HTH_E_MALFORMED},
        {" {}", 0, HTH_E_MALFORMED},
        {"{", 0, HTH_E_MALFORMED},
        {"{\"a\":1}", 0, HTH_E_MALFORMED},
        {"{\"__metadata__\":{\"n\":1}}", 0, HTH_E_MALFORMED},
        {"{\"a\":" T("F32", "[2]", "[0,8]") "}", 7, HTH_E_TRUNCATED},
        {"{\"a\":" T("F32", "[2]", "[0,8]") "}", 9, HTH_E_BAD_SHAPE},
        {"{\"a\":" T("F32", "[3]", "[0,8]") "}", 8, HTH_E_BAD_SHAPE},
        {"{\"a\":" T("F32", "[2]", "[8,0]") "}", 8, HTH_E_BAD_SHAPE},
        {"{\"a\":" T("F32", "[2]", "[4,12]") "}", 12, HTH_E_BAD_SHAPE},
        {"{\"a\":" T("F32", "[-2]", "[0,8]") "}", 8, HTH_E_MALFORMED},
        {"{\"a\":" T("F32", "[2.0]", "[0,8]") "}", 8, HTH_E_MALFORMED},
        {"{\"a\":" T("F32", "\"2\"", "[0,8]") "}", 8, HTH_E_MALFORMED},
        {"{\"a\":" T("F32", "[2]", "[0]") "}", 8, HTH_E_MALFORMED},
        {"{\"a\":" T("F64", "[1]", "[0,8]") "}", 8, HTH_E_UNSUPPORTED},
        {"{\"a\":" T("F32", "[1,1,1,1,2]", "[0,8]") "}", 8, HTH_E_TOO_LARGE},
        {"{\"a\":" T("F32", "[4611686018427387904,4]", "[0,0]") "}", 0, HTH_E_BAD_SHAPE},
        {"{\"a\":" T("F32", "[99999999999999999999]", "[0,8]") "}", 8, HTH_E_MALFORMED},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[0,4]") "}", 4,
         HTH_E_DUPLICATE},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[0,4]") "}", 4,
         HTH_E_BAD_SHAPE},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[8,12]") "}", 12,
         HTH_E_BAD_SHAPE},
        {"{\"__metadata__\":{\"hearth_digest\":\"0000000000000000\"}}", 0, HTH_E_CORRUPT},
        {"{\"__metadata__\":{\"hearth_digest\":\"0\",\"z\":\"1\"}}", 0, HTH_E_CORRUPT},
        {"{\"__metadata__\":{\"hearth.digest\":\"0000000000000000\"}}", 0, HTH_E_CORRUPT},
        {"{\"__metadata__\":{\"hearth.digest\":\"0\",\"z\":\"1\"}}", 0, HTH_E_CORRUPT},
    };

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        enum hth_err err = open_text(cases[i].header, cases[i].data);
        if (err != cases[i].want)
            fail_msg("%s: %s, not %s", cases[i].header, hth_err_name(err),
                     hth_err_name(cases[i].want));
    }
}

TEST(name_and_header_limits_hold)
{
    uint8_t head[16] = {0};
    char name[HTH_ST_NAME_MAX + 2], text[512];
    struct hth_st_reader *r;
    char *nested;

    (void)state;
    hth_store_u64le(head, HTH_ST_HEADER_BYTES_MAX + 1);
    assert_err(HTH_E_TOO_LARGE, hth_st_open(head, sizeof(head), &r));
    hth_store_u64le(head, UINT64_MAX);
    assert_err(HTH_E_TOO_LARGE, hth_st_open(head, sizeof(head), &r));
    hth_store_u64le(head, 9);
    assert_err(HTH_E_TRUNCATED, hth_st_open(head, sizeof(head), &r));
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    snprintf(text, sizeof(text), "{\"%s\":" T("U8", "[1]", "[0,1]") "}", name);
    assert_err(HTH_E_TOO_LARGE, open_text(text, 1));
    name[HTH_ST_NAME_MAX] = '\0';
    snprintf(text, sizeof(text), "{\"%s\":" T("U8", "[1]", "[0,1]") "}", name);
    assert_ok(open_text(text, 1));
    nested = malloc(1 << 20);
    memset(nested, '[', (1 << 20) - 1);
    memcpy(nested, "{\"a\":", 5);
    nested[(1 << 20) - 1] = '\0';
    assert_err(HTH_E_MALFORMED, open_text(nested, 0));
    free(nested);
}

TEST(tensor_count_limit_holds)
{
    size_t cap = (size_t)(HTH_ST_TENSORS_MAX + 2) * 64, len = 1;
    char *text = malloc(cap);

    (void)state;
    text[0] = '{';
    for (uint32_t i = 0; i <= HTH_ST_TENSORS_MAX; i++)
        len += (size_t)snprintf(text + len, cap - len, "%s\"%x\":" T("U8", "[0]", "[0,0]"),
                                i == 0 ? "" : ",", i);
    snprintf(text + len, cap - len, "}");
    assert_err(HTH_E_TOO_LARGE, open_text(text, 0));
    free(text);
}

static enum hth_err finish_with(const char *name, const char *key, const char *value, bool twice)
{
    struct hth_st_writer *w = hth_st_writer_new();
    const uint64_t dim = 1;
    struct hth_blob *blob;
    enum hth_err err;

    for (int i = 0; i < (twice ? 2 : 1); i++)
        hth_st_add(w, name, HTH_U8, 1, &dim, "x");
    hth_st_add_meta(w, key, value);
    err = hth_st_writer_finish(w, &blob);
    if (err == HTH_OK)
        hth_blob_unref(blob);
    hth_st_writer_free(w);
    return err;
}

/* Files of version 1 name the digest in another way. */
TEST(older_digests_are_verified)
{
    struct hth_blob *blob = write_two();
    struct hth_st_reader *r;
    size_t at = 0;

    (void)state;
    while (memcmp(blob->data + at, "hearth.digest", 13) != 0)
        assert_true(++at < blob->size - 13);
    blob->data[at + 6] = '_'; /* behind the bytes that the digest covers */
    assert_ok(hth_st_open(blob->data, blob->size, &r));
    assert_true(hth_st_has_digest(r));
    hth_st_close(r);
    blob->data[blob->size - 1] ^= 1;
    assert_err(HTH_E_CORRUPT, hth_st_open(blob->data, blob->size, &r));
    hth_blob_unref(blob);
}

TEST(writer_refuses_bad_names_and_texts)
{
    const uint64_t huge[3] = {UINT64_C(1) << 32, UINT64_C(1) << 32, 4};
    struct hth_st_writer *w = hth_st_writer_new();
    char text[HTH_ST_TEXT_MAX + 2];
    struct hth_blob *blob;

    (void)state;
    memset(text, 't', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_ok(finish_with("a", "a", "v", false));
    assert_err(HTH_E_DUPLICATE, finish_with("a", "k", "v", true));
    assert_err(HTH_E_MALFORMED, finish_with("a b", "k", "v", false));
    assert_err(HTH_E_MALFORMED, finish_with("", "k", "v", false));
    assert_err(HTH_E_MALFORMED, finish_with("a", "k", "\xff", false)); /* no UTF-8 */
    assert_err(HTH_E_DUPLICATE, finish_with("a", "hearth_digest", "v", false));
    assert_err(HTH_E_DUPLICATE, finish_with("a", "hearth.digest", "v", false));
    assert_err(HTH_E_TOO_LARGE, finish_with("a", "k", text, false));
    hth_st_add(w, "huge", HTH_F32, 3, huge, "x");
    assert_err(HTH_E_TOO_LARGE, hth_st_writer_finish(w, &blob));
    hth_st_writer_free(w);
}

/* Random tensors of any shapes survive the round trip. */
TEST(random_tensors_survive_the_round_trip)
{
    static const enum hth_dtype types[] = {HTH_F32, HTH_BF16, HTH_F16, HTH_I8,
                                           HTH_I32, HTH_U8,   HTH_I64};
    uint8_t data[4096];
    struct hth_rng rng;

    (void)state;
    hth_rng_init(&rng, 7);
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)hth_rng_u64(&rng);
    for (int round = 0; round < 300; round++) {
        struct hth_st_writer *w = hth_st_writer_new();
        size_t count = hth_rng_below(&rng, 12);
        struct hth_st_reader *r;
        struct hth_blob *blob;
        char name[32];
        for (size_t i = 0; i < count; i++) {
            uint64_t dim[2] = {hth_rng_below(&rng, 9), hth_rng_below(&rng, 9)};
            snprintf(name, sizeof(name), "t/%zu", i);
            hth_st_add(w, name, types[hth_rng_below(&rng, 7)], (uint32_t)hth_rng_below(&rng, 3),
                       dim, data + hth_rng_below(&rng, 1024));
        }
        assert_ok(hth_st_writer_finish(w, &blob));
        assert_ok(hth_st_open(blob->data, blob->size, &r));
        assert_int_equal(hth_st_count(r), count);
        hth_st_close(r);
        hth_blob_unref(blob);
        hth_st_writer_free(w);
    }
}
