/* SPDX-License-Identifier: Apache-2.0 */
/* test_words.c: words, ids and rows of text. */
#include <stdlib.h>

#include "core/mem.h"
#include "data/jsonl.h"
#include "data/words.h"
#include "support/suite.h"

TEST(text_is_cut_into_words_and_signs)
{
    (void)state;
    static const struct {
        const char *text, *words; /* joined by | */
    } cases[] = {
        {"", ""},
        {"  \n ", ""},
        {"Woman Mechanic: dark skin tone", "woman|mechanic|:|dark|skin|tone"},
        {"a-b (c)", "a|-|b|(|c|)"},
        {"CÔTE d\xe2\x80\x99Ivoire", "côte|d|\xe2\x80\x99|ivoire"},
        {"3,655 R2D2", "3|,|655|r2d2"},
        {"\xff\xfe", "\xff\xfe"},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        char joined[256] = "", word[HTH_WORD_BYTES_MAX];
        size_t at = 0, n, len = 0;
        while ((n = hth_text_word(cases[i].text, strlen(cases[i].text), &at, word)) > 0)
            len += (size_t)snprintf(joined + len, sizeof(joined) - len, "%s%.*s",
                                    len > 0 ? "|" : "", (int)n, word);
        assert_string_equal(joined, cases[i].words);
    }
}

TEST(long_runs_are_cut_between_characters)
{
    (void)state;
    char text[400], word[HTH_WORD_BYTES_MAX];
    size_t at = 0, n, all = 0;
    for (size_t i = 0; i < 99; i++)
        memcpy(text + 3 * i, "\xe6\xbc\xa2", 3);
    while ((n = hth_text_word(text, 297, &at, word)) > 0) {
        assert_true(hth_text_ok(word, n));
        assert_true(n <= HTH_WORD_BYTES_MAX);
        all += n;
    }
    assert_int_equal(all, 297);
}

TEST(bytes_that_are_no_text_are_found)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len;
        bool ok;
    } cases[] = {
        {"plain\ttext\r\n", 12, true},
        {"\xc3\xb4", 2, true},
        {"\xf0\x9f\x98\x80", 4, true},
        {"a\0b", 3, false},
        {"\x1b[31m", 5, false},
        {"\xc3", 1, false},
        {"\xc0\x80", 2, false},
        {"\xed\xa0\x80", 3, false},
        {"\xe0\x80\x80", 3, false},
        {"\xf4\x90\x80\x80", 4, false},
        {"\xff", 1, false},
        {"\x80", 1, false},
        {"\x7f", 1, false},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        if (hth_text_ok(cases[i].text, cases[i].len) != cases[i].ok)
            fail_msg("case %zu", i);
    assert_int_equal(hth_text_chars("\xc3\xb4x", 3), 2);
}

static struct hth_words *three_words(void)
{
    struct hth_word_counter *c = hth_word_counter_new();
    struct hth_words *w;
    const char *text = "red Heart red: red heart : blue once";
    hth_word_counter_add(c, text, strlen(text));
    hth_word_counter_add(c, "blue", 4);
    w = hth_word_counter_list(c, 2);
    hth_word_counter_free(c);
    return w;
}

TEST(words_are_listed_by_falling_count)
{
    (void)state;
    static const char *const want[] = {"red", ":", "blue", "heart"};
    struct hth_words *w = three_words();
    uint64_t count;
    assert_int_equal(hth_words_count(w), 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_string_equal(hth_words_at(w, i, &count), want[i]);
    hth_words_free(w);
}

TEST(text_becomes_ids_and_back)
{
    (void)state;
    static const struct {
        const char *text, *back;
        uint32_t vocab;
        size_t count;
    } cases[] = {
        {"Red heart: blue", "red heart: blue", 65536, 4},
        {"red ab", "red ab", 65536, 3},
        {"ab cd", "ab cd", 65536, 5}, /* the blank is a byte */
        {"red ab heart", "red ab heart", 65536, 4},
        {"red heart", "red heart", HTH_ID_WORD, 9}, /* no word is below the vocabulary */
        {"red heart", "red heart", HTH_ID_WORD + 1, 6},
        {"", "", 65536, 0},
    };
    struct hth_words *w = three_words();
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        int32_t ids[32];
        char text[64];
        size_t n =
            hth_words_encode(w, cases[i].vocab, cases[i].text, strlen(cases[i].text), ids, 32);
        assert_int_equal(n, cases[i].count);
        for (size_t k = 0; k < n; k++)
            assert_true(ids[k] >= HTH_ID_BYTE && (uint32_t)ids[k] < cases[i].vocab);
        assert_int_equal(hth_words_decode(w, ids, n, text, sizeof(text)), strlen(cases[i].back));
        assert_string_equal(text, cases[i].back);
    }
    int32_t two[2] = {-1, -1};
    char small[4];
    assert_int_equal(hth_words_encode(w, 65536, "red red red", 11, two, 1), 3);
    assert_int_equal(two[1], -1);
    const int32_t odd[] = {HTH_ID_PAD, HTH_ID_BEGIN, -5, 1 << 30, HTH_ID_WORD};
    assert_int_equal(hth_words_decode(w, odd, 5, small, sizeof(small)), 3);
    assert_string_equal(small, "red");
    assert_int_equal(hth_words_decode(w, odd, 5, small, 2), 3);
    assert_string_equal(small, "r");
    hth_words_free(w);
}

TEST(a_list_is_read_as_written)
{
    (void)state;
    struct hth_words *w = three_words(), *back;
    struct hth_blob *blob, *again;
    struct hth_why why = {""};
    assert_ok(hth_words_write(w, &blob));
    assert_ok(hth_words_parse("words.json", blob->data, blob->size, &back, &why));
    assert_ok(hth_words_write(back, &again));
    assert_int_equal(blob->size, again->size);
    assert_memory_equal(blob->data, again->data, blob->size);
    hth_words_free(w);
    hth_words_free(back);
    hth_blob_unref(blob);
    hth_blob_unref(again);
}

TEST(lies_of_a_list_are_named)
{
    (void)state;
    static const struct {
        const char *text;
        enum hth_err err;
        const char *why;
    } bad[] = {
        {"", HTH_E_MALFORMED, "w:1:0"},
        {"{}", HTH_E_MALFORMED, "expected {\"version\""},
        {"{\"version\":9,\"words\":[]}", HTH_E_VERSION, "version 9"},
        {"{\"version\":1,\"words\":[3]}", HTH_E_MALFORMED, "words[0]"},
        {"{\"version\":1,\"words\":[[\"a\",1],[\"a\",1]]}", HTH_E_DUPLICATE, "'a' is there twice"},
        {"{\"version\":1,\"words\":[[\"a b\",1]]}", HTH_E_MALFORMED, "words[0]"},
        {"{\"version\":1,\"words\":[[\"A\",1]]}", HTH_E_MALFORMED, "lower case"},
        {"{\"version\":1,\"words\":[[\"\",1]]}", HTH_E_MALFORMED, "words[0]"},
        {"{\"version\":1,\"words\":[[\"a\",-1]]}", HTH_E_MALFORMED, "words[0]"},
        {"{\"version\":1,\"words\":[[\"a\\u0000\",1]]}", HTH_E_MALFORMED, "w:1:"},
        {"{\"version\":1,\"words\":[[\"0123456789012345678901234567890123456789012345678901234567"
         "8901234\",1]]}",
         HTH_E_MALFORMED, "at most 64 bytes"},
    };
    struct hth_words *w;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        struct hth_why why = {""};
        enum hth_err err =
            hth_words_parse("w", (const uint8_t *)bad[i].text, strlen(bad[i].text), &w, &why);
        if (err != bad[i].err || strstr(why.text, bad[i].why) == NULL)
            fail_msg("%s gave %s: %s", bad[i].text, hth_err_name(err), why.text);
        assert_null(w);
    }
}

TEST(limits_of_a_list_hold)
{
    (void)state;
    struct hth_words *w;
    struct hth_why why = {""};
    size_t len = HTH_WORDS_BYTES_MAX + 1;
    char *text = hth_calloc(len, 1);
    assert_err(HTH_E_TOO_LARGE, hth_words_parse("w", (uint8_t *)text, len, &w, &why));
    int at = snprintf(text, len, "{\"version\":1,\"words\":[");
    for (int i = 0; i <= HTH_WORDS_MAX; i++)
        at += snprintf(text + at, len - (size_t)at, "%s[\"w%d\",1]", i > 0 ? "," : "", i);
    at += snprintf(text + at, len - (size_t)at, "]}");
    why.text[0] = '\0';
    assert_err(HTH_E_RANGE, hth_words_parse("w", (uint8_t *)text, (size_t)at, &w, &why));
    hth_free(text);
}

TEST(rows_go_on_behind_a_bad_line)
{
    (void)state;
    static const char text[] = "{\"text\":\"a\",\"n\":3,\"b\":true}\n\n{\"text\":\n[1]\n"
                               "{\"text\":\"\xff\"}\n{\"text\":\"z\"}";
    struct hth_jsonl j;
    struct hth_why why = {""};
    hth_jsonl_init(&j, "f.jsonl", text, sizeof(text) - 1);
    assert_ok(hth_jsonl_next(&j, &why));
    assert_string_equal(hth_jsonl_text(&j, "text"), "a");
    assert_null(hth_jsonl_text(&j, "n"));
    assert_true(hth_jsonl_is(&j, "n", "3") && hth_jsonl_is(&j, "b", "true"));
    assert_true(hth_jsonl_is(&j, "text", "a") && !hth_jsonl_is(&j, "none", "a"));
    assert_err(HTH_E_MALFORMED, hth_jsonl_next(&j, &why));
    assert_non_null(strstr(why.text, "f.jsonl:3:"));
    why.text[0] = '\0';
    assert_err(HTH_E_MALFORMED, hth_jsonl_next(&j, &why));
    assert_non_null(strstr(why.text, "f.jsonl:4: expected an object"));
    assert_err(HTH_E_MALFORMED, hth_jsonl_next(&j, NULL));
    assert_ok(hth_jsonl_next(&j, NULL));
    assert_string_equal(hth_jsonl_text(&j, "text"), "z");
    assert_int_equal(j.line, 6);
    assert_err(HTH_E_NOT_FOUND, hth_jsonl_next(&j, NULL));
    hth_jsonl_clear(&j);

    char *line = hth_calloc(HTH_JSONL_LINE_BYTES_MAX + 2, 1);
    memset(line, '1', HTH_JSONL_LINE_BYTES_MAX + 1);
    hth_jsonl_init(&j, "f", line, HTH_JSONL_LINE_BYTES_MAX + 1);
    assert_err(HTH_E_TOO_LARGE, hth_jsonl_next(&j, NULL));
    hth_jsonl_clear(&j);
    hth_free(line);
}

TEST(characters_of_any_bytes_can_be_shown)
{
    static const struct {
        const char *text;
        size_t len;
        bool more;
        size_t takes;
        const char *shown;
    } cases[] = {
        {"a", 1, false, 1, "a"},
        {"\n", 1, false, 1, "\n"},
        {"\x1b[2J", 4, false, 1, "\xef\xbf\xbd"},
        {"\0", 1, false, 1, "\xef\xbf\xbd"},
        {"\xc3\xa9", 2, false, 2, "\xc3\xa9"},
        {"\xc3", 1, true, 0, ""},
        {"\xc3", 1, false, 1, "\xef\xbf\xbd"},
        {"\xc3q", 2, true, 1, "\xef\xbf\xbd"},
        {"\xf0\x9f\x98", 3, true, 0, ""},
        {"\xf0\x9f\x98\x80", 4, true, 4, "\xf0\x9f\x98\x80"},
        {"\x80", 1, true, 1, "\xef\xbf\xbd"},
        {"\xff", 1, true, 1, "\xef\xbf\xbd"},
        {"", 0, false, 0, ""},
    };
    char out[HTH_TEXT_CHAR_MAX];
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        assert_int_equal(hth_text_char(cases[i].text, cases[i].len, cases[i].more, out),
                         cases[i].takes);
        assert_string_equal(out, cases[i].shown);
    }
}

/* ---- lower case ---------------------------------------------------------------------------- */

static size_t put_utf8(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    out[0] = (char)(0xe0 | c >> 12);
    out[1] = (char)(0x80 | (c >> 6 & 0x3f));
    out[2] = (char)(0x80 | (c & 0x3f));
    return 3;
}

/* Unicode's table (of Debian's unicode-data): field 13 of a row, from 0, is the lower case. Nothing
 * else changes; Latin, Greek, Cyrillic and Armenian are complete where the bytes are as many. */
TEST(lower_case_is_that_of_unicode)
{
    (void)state;
    char line[1024];
    uint32_t folded = 0;
    FILE *table = fopen("/usr/share/unicode/UnicodeData.txt", "r");
    assert_non_null(table);
    while (fgets(line, sizeof(line), table) != NULL) {
        char *field = line, is[8], want[8], *end;
        uint32_t c = (uint32_t)strtoul(line, NULL, 16), lower;
        if (c < 0x20 || c > 0xffff || (c >= 0xd800 && c < 0xe000))
            continue;
        for (int i = 0; i < 13; i++)
            field = strchr(field, ';') + 1;
        lower = (uint32_t)strtoul(field, &end, 16);
        lower = end == field ? c : lower;
        size_t n = put_utf8(c, is), m = put_utf8(lower, want);
        bool same_size = n == m && lower <= 0xffff;
        char before[8];
        memcpy(before, is, n);
        hth_text_lower(is, n);
        if (same_size && memcmp(is, want, n) == 0) {
            folded += lower != c;
            continue;
        }
        assert_memory_equal(is, before, n); /* untouched */
        bool complete = (c < 0x180) || (c >= 0x386 && c < 0x3cf) || (c >= 0x400 && c < 0x557);
        if (complete && same_size)
            fail_msg("U+%04X is not made lower case", c);
    }
    fclose(table);
    assert_true(folded > 500);
}

/* New words are left out beyond the limit; those that are known are counted on. */
TEST(words_beyond_the_limit_are_left_out)
{
    (void)state;
    struct hth_word_counter *counter = hth_word_counter_new();
    uint64_t count;
    char word[16];
    for (uint32_t i = 0; i < HTH_WORDS_COUNTED_MAX; i++) {
        int len = snprintf(word, sizeof(word), "w%x", i);
        hth_word_counter_add(counter, word, (size_t)len);
    }
    hth_word_counter_add(counter, "late late late w7 w7", 20);
    struct hth_words *list = hth_word_counter_list(counter, 2);
    assert_int_equal(hth_words_count(list), 1);
    assert_string_equal(hth_words_at(list, 0, &count), "w7");
    assert_int_equal(count, 3);
    hth_words_free(list);
    hth_word_counter_free(counter);
}
