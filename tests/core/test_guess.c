/* SPDX-License-Identifier: Apache-2.0 */
/* test_guess.c: "did you mean" for near names, and the list of all for others. */
#include "core/guess.h"
#include "support/suite.h"

#include <string.h>

TEST(distance_counts_edits)
{
    (void)state;
    assert_int_equal(hth_text_distance("rate", "rate"), 0);
    assert_int_equal(hth_text_distance("raet", "rate"), 1);
    assert_int_equal(hth_text_distance("rat", "rate"), 1);
    assert_int_equal(hth_text_distance("", "rate"), 4);
    assert_int_equal(hth_text_distance("kitten", "sitting"), 3);
}

TEST(near_names_are_guessed_and_others_listed)
{
    (void)state;
    static const struct {
        const char *name;
        int value;
    } names[] = {{"node", 1}, {"train", 2}, {"convergence", 3}};
    static const struct {
        const char *said, *hint;
    } cases[] = {
        {"trian", "; did you mean 'train'?"},
        {"mode", "; did you mean 'node'?"},
        {"convargance", "; did you mean 'convergence'?"},
        {"convargense", "; did you mean 'convergence'?"}, /* 3 edits: a third of the word */
        {"konvargensy", "; expected one of: node, train, convergence"},
        {"foo", "; expected one of: node, train, convergence"},
        {"no", "; did you mean 'node'?"},
        {"tr", "; expected one of: node, train, convergence"}, /* 3 edits */
        {"", "; expected one of: node, train, convergence"},
    };
    char hint[80], narrow[24];
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        assert_string_equal(hth_guess_text(cases[i].said, names, sizeof(names[0]),
                                           HTH_ARRAY_LEN(names), hint, sizeof(hint)),
                            cases[i].hint);
    hth_guess_text("foo", names, sizeof(names[0]), HTH_ARRAY_LEN(names), narrow, sizeof(narrow));
    assert_string_equal(narrow, "; expected one of: n...");
}
