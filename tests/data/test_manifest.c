/* SPDX-License-Identifier: Apache-2.0 */
/* test_manifest.c: data.json is read back as written, and each lie in it is named. */
#include "core/mem.h"
#include "data/manifest.h"
#include "support/suite.h"

#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HEAD "{\"version\":1,\"name\":\"n\",\"licence\":\"l\",\"kind\":\"pictures\",\"side\":32,"
#define SHARD(file, samples)                                                                       \
    "{\"file\":\"" file "\",\"part\":\"train\",\"bytes\":10,\"samples\":" samples                  \
    ",\"sha256\":\"" HASH "\"}"

static const struct {
    const char *text;
    enum hth_err err;
    const char *why; /* in the sentence */
} bad[] = {
    {"", HTH_E_MALFORMED, "d/data.json:1:0"},
    {"[]", HTH_E_MALFORMED, "not a data set's manifest"},
    {"{\"version\":2}", HTH_E_VERSION, "version 2"},
    {"{\"version\":1,\"version\":1}", HTH_E_MALFORMED, "duplicate"},
    {HEAD "\"samples\":1}", HTH_E_MALFORMED, "'shards' is missing"},
    {HEAD "\"samples\":1,\"shards\":[]}", HTH_E_RANGE, "'shards' has 0 entries"},
    {HEAD "\"samples\":1152921504606846976,\"shards\":[" SHARD("a", "1") "]}", HTH_E_RANGE,
     "'samples' is 1152921504606846976"},
    {HEAD "\"samples\":1152921504606846976,\"shards\":[" SHARD("a", "1152921504606846976") "]}",
     HTH_E_RANGE, "'shards[0].samples' is 1152921504606846976"},
    {HEAD "\"samples\":68719476737,\"shards\":[" SHARD("a", "1") "]}", HTH_E_RANGE,
     "expected 1 to 68719476736"},
    {HEAD "\"samples\":1048577,\"shards\":[" SHARD("a", "1048577") "]}", HTH_E_RANGE,
     "expected 1 to 1048576"},
    {HEAD "\"samples\":1,\"shards\":[{\"file\":\"a\",\"part\":\"train\",\"bytes\":67108865,"
          "\"samples\":1,\"sha256\":\"" HASH "\"}]}",
     HTH_E_RANGE, "'shards[0].bytes' is 67108865; expected 1 to 67108864"},
    {HEAD "\"samples\":3,\"shards\":[" SHARD("a", "2") "]}", HTH_E_RANGE, "but the shards have 2"},
    {HEAD "\"samples\":-1,\"shards\":[" SHARD("a", "2") "]}", HTH_E_RANGE, "'samples' is -1"},
    {HEAD "\"samples\":4,\"shards\":[" SHARD("a", "2") "," SHARD("a", "2") "]}", HTH_E_DUPLICATE,
     "'shards[1].file' is 'a', like an earlier one"},
    {HEAD "\"samples\":2,\"shards\":[" SHARD("../a", "2") "]}", HTH_E_MALFORMED, "'../a'"},
    {HEAD "\"samples\":2,\"shards\":[" SHARD(".a", "2") "]}", HTH_E_MALFORMED, "'.a'"},
    {HEAD "\"samples\":2,\"shards\":[{\"file\":\"a\",\"sha256\":\"12\"}]}", HTH_E_MALFORMED,
     "'shards[0].sha256' is not 64 hex digits"},
    {HEAD "\"samples\":2,\"shards\":[3]}", HTH_E_MALFORMED, "'shards[0].file' is missing"},
    {HEAD "\"classes\":[\"a\",\"a\"]}", HTH_E_DUPLICATE, "'classes[1]'"},
    {HEAD "\"classes\":[\"\"]}", HTH_E_MALFORMED, "'classes[0]'"},
    {"{\"version\":1,\"name\":\"n\",\"licence\":\"l\",\"kind\":\"songs\"}", HTH_E_RANGE, "'songs'"},
    {"{\"version\":1,\"name\":\"n\\nrun: x\",\"licence\":\"l\",\"kind\":\"text\"}", HTH_E_MALFORMED,
     "'name' has control characters"},
    {"{\"version\":1,\"name\":\"n\",\"licence\":\"\\u001b[2J\",\"kind\":\"text\"}", HTH_E_MALFORMED,
     "'licence' has control characters"},
    {"{\"version\":1,\"name\":\"n\",\"licence\":\"l\",\"kind\":\"pictures\",\"side\":513}",
     HTH_E_RANGE, "'side' is 513; expected 1 to 512"},
    {"{\"version\":1,\"name\":\"n\",\"licence\":\"l\",\"kind\":\"codes\",\"side\":32,\"samples\":1,"
     "\"shards\":[" SHARD("a", "1") "],\"codebook\":{\"file\":\"b\",\"sha256\":\"" HASH "\","
                                    "\"codes\":512,\"patch\":5}}",
     HTH_E_RANGE, "divides the side 32"},
};

TEST(lies_of_a_manifest_are_named)
{
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        struct hth_manifest *m;
        struct hth_why why = {""};
        enum hth_err err = hth_manifest_parse("d/data.json", (const uint8_t *)bad[i].text,
                                              strlen(bad[i].text), &m, &why);
        if (err != bad[i].err || strstr(why.text, bad[i].why) == NULL)
            fail_msg("%s\ngave %s: '%s', not %s: '%s'", bad[i].text, hth_err_name(err), why.text,
                     hth_err_name(bad[i].err), bad[i].why);
        assert_null(m);
    }
}

TEST(limits_of_a_manifest_hold)
{
    (void)state;
    struct hth_manifest *m;
    struct hth_why why = {""};
    size_t len = HTH_MANIFEST_BYTES_MAX + 1;
    char *text = hth_calloc(len + 64, 1);
    memset(text, ' ', len);
    assert_err(HTH_E_TOO_LARGE, hth_manifest_parse("d", (uint8_t *)text, len, &m, &why));

    /* One shard more than there may be. */
    int at = snprintf(text, len, "%s\"shards\":[", HEAD);
    for (int i = 0; i <= HTH_SHARDS_MAX; i++)
        at += snprintf(text + at, len - (size_t)at, "%s1", i > 0 ? "," : "");
    at += snprintf(text + at, len - (size_t)at, "]}");
    why.text[0] = '\0';
    assert_err(HTH_E_RANGE, hth_manifest_parse("d", (uint8_t *)text, (size_t)at, &m, &why));
    at = snprintf(text, len, "%s\"classes\":[", HEAD);
    for (int i = 0; i <= HTH_SET_CLASSES_MAX; i++)
        at += snprintf(text + at, len - (size_t)at, "%s\"%d\"", i > 0 ? "," : "", i);
    at += snprintf(text + at, len - (size_t)at, "]}");
    why.text[0] = '\0';
    assert_err(HTH_E_RANGE, hth_manifest_parse("d", (uint8_t *)text, (size_t)at, &m, &why));
    hth_free(text);
}

TEST(a_manifest_is_read_as_written)
{
    (void)state;
    char cat[] = "cat", dog[] = "dog \"x\"";
    char *classes[] = {cat, dog};
    struct hth_shard_entry shards[] = {
        {.file = "train-00000.tar.zst", .bytes = 7, .samples = 5, .sha256 = {{1, 2, 3}}},
        {.file = "test-00000.tar.zst", .part = HTH_SET_TEST, .bytes = 9, .samples = 2}};
    struct hth_manifest in = {.name = "n",
                              .licence = "OFL 1.1",
                              .kind = HTH_SET_CODES,
                              .side = 32,
                              .classes = classes,
                              .class_count = 2,
                              .shards = shards,
                              .shard_count = 2,
                              .samples = {5, 2},
                              .words = {.file = "words.json", .count = 3},
                              .book = {.file = "b", .count = 512},
                              .patch = 4,
                              .skipped = {{"broken picture", 3}},
                              .skip_count = 1};
    struct hth_manifest *out;
    struct hth_blob *first, *second;
    struct hth_why why = {""};
    assert_ok(hth_manifest_write(&in, &first));
    assert_ok(hth_manifest_parse("d", first->data, first->size, &out, &why));
    assert_int_equal(out->samples[HTH_SET_TRAIN], 5);
    assert_int_equal(out->samples[HTH_SET_TEST], 2);
    assert_int_equal(out->patch, 4);
    assert_string_equal(out->classes[1], "dog \"x\"");
    assert_memory_equal(out->shards[0].sha256.b, shards[0].sha256.b, HTH_HASH_LEN);
    assert_ok(hth_manifest_write(out, &second));
    assert_int_equal(first->size, second->size);
    assert_memory_equal(first->data, second->data, first->size);
    hth_manifest_free(out);
    hth_blob_unref(first);
    hth_blob_unref(second);
}
