/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_uid.c: the grammar of names as a table, and the arithmetic of grids.
 */
#include "dht/uid.h"
#include "support/suite.h"

#include <stdlib.h>

struct name_case {
    const char *text;
    enum hth_err uid, prefix;
};

#define NAME63 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz01234567890"

static const struct name_case NAMES[] = {
    {"expert.0", HTH_OK, HTH_E_MALFORMED},
    {"ffn.12.34.56", HTH_OK, HTH_E_TOO_LARGE},
    {"T\xc2\xae@.3", HTH_OK, HTH_E_MALFORMED},
    {"0.1.2", HTH_OK, HTH_E_MALFORMED},
    {"expert.", HTH_E_MALFORMED, HTH_OK},
    {"expert.1.", HTH_E_MALFORMED, HTH_OK},
    {"expert.1.2.", HTH_E_MALFORMED, HTH_OK},
    {"expert.1.2.3.", HTH_E_MALFORMED, HTH_E_TOO_LARGE},
    {"expert", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"expert.01", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"expert.00", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"expert.-1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"expert.+1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"a.b.1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"expert.1\n", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"expert.1 ", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {" expert.1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"ex pert.1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"../x.1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"a/b.1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"a\\b.1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"a[0].1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {".", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {".1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"a..1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"a.1..", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"a.1.2.3.4", HTH_E_TOO_LARGE, HTH_E_TOO_LARGE},
    {"a.65535", HTH_OK, HTH_E_MALFORMED},
    {"a.65536", HTH_E_RANGE, HTH_E_RANGE},
    {"a.99999999999999999999999", HTH_E_RANGE, HTH_E_RANGE},
    {"\xff.1", HTH_E_MALFORMED, HTH_E_MALFORMED},         /* not UTF-8 */
    {"\xc0\xae.1", HTH_E_MALFORMED, HTH_E_MALFORMED},     /* an overlong dot */
    {"\xed\xa0\x80.1", HTH_E_MALFORMED, HTH_E_MALFORMED}, /* a surrogate */
    {"\xe2\x82.1", HTH_E_MALFORMED, HTH_E_MALFORMED},     /* cut short */
    {"\xc2\x9b.1", HTH_E_MALFORMED, HTH_E_MALFORMED},     /* a control character */
    {"\xe2\x80\xae.1", HTH_E_MALFORMED, HTH_E_MALFORMED}, /* it turns text round */
    {"a\xd8\x9c.1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"a\xef\xbb\xbf.1", HTH_E_MALFORMED, HTH_E_MALFORMED},
    {"\xe2\x82\xac\xf0\x9f\x94\xa5.1", HTH_OK, HTH_E_MALFORMED},
    {NAME63 ".1", HTH_OK, HTH_E_MALFORMED},
    {NAME63 "x.1", HTH_E_TOO_LARGE, HTH_E_TOO_LARGE},
};

TEST(names_follow_the_grammar)
{
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(NAMES); i++) {
        struct hth_uid uid, zero = {0};
        char text[HTH_UID_TEXT_MAX];
        enum hth_err err = hth_uid_parse(NAMES[i].text, strlen(NAMES[i].text), &uid);
        if (err != NAMES[i].uid)
            fail_msg("uid \"%s\": %s", NAMES[i].text, hth_err_name(err));
        if (err == HTH_OK)
            assert_string_equal(hth_uid_text(&uid, text), NAMES[i].text);
        else
            assert_memory_equal(&uid, &zero, sizeof(uid));
        err = hth_prefix_parse(NAMES[i].text, strlen(NAMES[i].text), &uid);
        if (err != NAMES[i].prefix)
            fail_msg("prefix \"%s\": %s", NAMES[i].text, hth_err_name(err));
        if (err == HTH_OK)
            assert_string_equal(hth_prefix_text(&uid, text), NAMES[i].text);
    }
    /* An embedded terminator is a byte like any other, and not allowed. */
    struct hth_uid uid;
    assert_err(HTH_E_MALFORMED, hth_uid_parse("a\0b.1", 5, &uid));
    assert_err(HTH_E_MALFORMED, hth_uid_parse("a.1\0", 4, &uid));
}

TEST(longest_text_fits)
{
    struct hth_uid uid;
    char text[HTH_UID_TEXT_MAX];
    const char *longest = NAME63 ".65535.65535.65535";
    (void)state;
    assert_ok(hth_uid_parse(longest, strlen(longest), &uid));
    assert_string_equal(hth_uid_text(&uid, text), longest);
}

struct pattern_case {
    const char *text;
    enum hth_err err;
    uint32_t count;
};

static const struct pattern_case PATTERNS[] = {
    {"ffn0.[0:4].[0:16]", HTH_OK, 64},
    {"ffn0.3.[0:16]", HTH_OK, 16},
    {"ffn0.3", HTH_OK, 1},
    {"ffn0.[2:3]", HTH_OK, 1},
    {"ffn0.[0:65536]", HTH_OK, 65536},
    {"ffn0.[0:65536].[0:256]", HTH_OK, 1u << 24},
    {"ffn0.[0:65536].[0:257]", HTH_E_RANGE, 0},
    {"ffn0.[0:65537]", HTH_E_RANGE, 0},
    {"ffn0.[4:4]", HTH_E_RANGE, 0},
    {"ffn0.[5:4]", HTH_E_RANGE, 0},
    {"ffn0.[0:4", HTH_E_MALFORMED, 0},
    {"ffn0.[0,4]", HTH_E_MALFORMED, 0},
    {"ffn0.[:4]", HTH_E_MALFORMED, 0},
    {"ffn0.[0:4]x", HTH_E_MALFORMED, 0},
    {"ffn0.", HTH_E_MALFORMED, 0},
    {"ffn0", HTH_E_MALFORMED, 0},
    {"ffn0.[0:1].[0:1].[0:1].[0:1]", HTH_E_TOO_LARGE, 0},
};

TEST(patterns_follow_the_grammar)
{
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(PATTERNS); i++) {
        struct hth_pattern p;
        enum hth_err err = hth_pattern_parse(PATTERNS[i].text, strlen(PATTERNS[i].text), &p);
        if (err != PATTERNS[i].err)
            fail_msg("\"%s\": %s", PATTERNS[i].text, hth_err_name(err));
        if (err == HTH_OK)
            assert_int_equal(hth_pattern_count(&p), PATTERNS[i].count);
    }
}

TEST(pattern_expands_in_a_grid)
{
    struct hth_pattern p;
    struct hth_grid grid;
    uint32_t index[6];
    const uint32_t dims[] = {4, 5};
    (void)state;
    assert_ok(hth_grid_init(&grid, "ffn0", 2, dims));
    assert_ok(hth_pattern_parse("ffn0.[1:3].[2:5]", 16, &p));
    assert_ok(hth_pattern_expand(&p, &grid, index));
    const uint32_t want[6] = {7, 8, 9, 12, 13, 14};
    assert_memory_equal(index, want, sizeof(want));
    assert_ok(hth_pattern_parse("ffn0.[1:5].[2:3]", 16, &p));
    assert_err(HTH_E_RANGE, hth_pattern_expand(&p, &grid, index));
    assert_ok(hth_pattern_parse("ffn1.[1:3].[2:5]", 16, &p));
    assert_err(HTH_E_WRONG_RUN, hth_pattern_expand(&p, &grid, index));
    assert_ok(hth_pattern_parse("ffn0.[1:3]", 10, &p));
    assert_err(HTH_E_WRONG_RUN, hth_pattern_expand(&p, &grid, index));
}

TEST(grids_map_indices_and_coordinates)
{
    struct hth_grid grid, other;
    char text[HTH_UID_TEXT_MAX];
    uint32_t c[HTH_GRID_DIMS_MAX], index;
    struct hth_uid uid;
    const uint32_t zero[] = {4, 0};
    (void)state;
    assert_ok(hth_grid_parse("ffn0.3.4.5", 10, &grid));
    assert_int_equal(hth_grid_size(&grid), 60);
    for (uint32_t i = 0; i < 60; i++) {
        hth_grid_coords(&grid, i, c);
        assert_int_equal((c[0] * 4 + c[1]) * 5 + c[2], i);
        assert_int_equal(hth_grid_index(&grid, c), i);
        hth_grid_uid_text(&grid, i, text);
        assert_ok(hth_uid_parse(text, strlen(text), &uid));
        assert_ok(hth_grid_find(&grid, &uid, &index));
        assert_int_equal(index, i);
    }
    assert_ok(hth_uid_parse("ffn0.3.0.0", 10, &uid));
    assert_err(HTH_E_RANGE, hth_grid_find(&grid, &uid, &index));
    assert_ok(hth_uid_parse("ffn0.1.0", 8, &uid));
    assert_err(HTH_E_WRONG_RUN, hth_grid_find(&grid, &uid, &index));
    assert_string_equal(hth_grid_text(&grid, text), "ffn0.3.4.5");
    assert_ok(hth_grid_parse("ffn0.3.4", 8, &other));
    assert_false(hth_grid_eq(&grid, &other));
    assert_ok(hth_grid_parse("a.4096.4096", 11, &other));
    assert_int_equal(hth_grid_size(&other), HTH_GRID_EXPERTS_MAX);
    assert_err(HTH_E_RANGE, hth_grid_parse("a.4096.4097", 11, &other));
    assert_err(HTH_E_RANGE, hth_grid_parse("a.0", 3, &other));
    assert_err(HTH_E_RANGE, hth_grid_init(&other, "a", 2, zero));
    assert_err(HTH_E_TOO_LARGE, hth_grid_init(&other, "a", 0, zero));
    assert_err(HTH_E_MALFORMED, hth_grid_init(&other, "a.b", 1, zero));
}
