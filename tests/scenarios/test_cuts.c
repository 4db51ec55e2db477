/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run's network is cut in two: a tenth of the rows of hearth sim cuts, and the judge itself.
 */
#include "scenarios/cuts.h"
#include "support/suite.h"

#include <string.h>

/* Rows. It does not divide the 24 rows of a split, so that all lengths and modes come up. */
#define EVERY 23

static struct hth_cut_opts check(uint32_t row, uint64_t seed)
{
    struct hth_cut_opts o = hth_cuts_row(row);
    struct hth_cut_report r;

    o.seed = seed;
    assert_ok(hth_sim_cut(&o, &r));
    print_message("row %u: %u + %u cut for %lld s, %s, %s: healed after %.1f s, lost %llu "
                  "samples, stood still %.1f s\n",
                  row, o.away, o.members - o.away, (long long)(o.cut_us / HTH_US_PER_S),
                  o.strict ? "strict" : "eventual", o.unlike ? "unlike" : "alike", r.healed_s,
                  (unsigned long long)r.lost_samples, HTH_MAX(r.still_s[0], r.still_s[1]));
    if (hth_cut_broken(&o, &r) != NULL)
        fail_msg("row %u, seed %llu: %s", row, (unsigned long long)seed, hth_cut_broken(&o, &r));
    return o;
}

TEST(parts_become_one_model)
{
    uint32_t strict = 0, lengths = 0;

    (void)state;
    for (uint32_t row = 0; row < hth_cuts_rows(); row += EVERY) {
        const struct hth_cut_opts o = check(row, 1 + row);

        strict += o.strict;
        lengths |= 1u << (row % 24 / 4);
    }
    assert_in_range(strict, hth_cuts_rows() / EVERY / 3, hth_cuts_rows() / EVERY * 2 / 3);
    assert_int_equal(lengths, 0x3f);
}

/* Members of a line of a later axis may live, and not be in the round. */
TEST(rows_wait_for_nobody_who_did_not_come)
{
    static const uint32_t rows[] = {410, 445, 554};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(rows); i++)
        check(rows[i], 1);
}

TEST(same_seed_is_the_same_run)
{
    struct hth_cut_opts o = {.seed = 5, .members = 4, .away = 1, .cut_us = 15 * HTH_US_PER_S};
    struct hth_cut_report a, b;

    (void)state;
    assert_ok(hth_sim_cut(&o, &a));
    assert_ok(hth_sim_cut(&o, &b));
    assert_true(a.hash == b.hash && a.samples == b.samples && a.lost_samples == b.lost_samples);
    assert_true(a.lost_samples > 0 && a.dropped > 1); /* what the smaller part did */
    o.seed++;
    assert_ok(hth_sim_cut(&o, &b));
    assert_true(a.hash != b.hash);
}

TEST(each_promise_is_judged)
{
    const int64_t long_us = 30 * HTH_US_PER_S;
    static const struct {
        bool strict;
        struct hth_cut_report r;
        const char *says; /* NULL: all is kept */
    } cases[] = {
        {true, {.links = {9, 1}, .dropped = 1, .healed_s = 15}, NULL},
        {true, {.links = {9, 0}, .both_stepped = 1}, "both continued"},
        {true, {.links = {9, 1}, .dropped = 2}, "dropped"},
        {true, {.links = {9, 2}}, "both parts"},
        {true, {.links = {1, 1}}, "no part"},
        {false, {.links = {9, 9}, .dropped = 9, .both_stepped = 8, .still_s = {12, 12}}, NULL},
        {false, {.links = {9, 9}, .loser_stays = true}, "fewer samples"},
        {false, {.links = {9, 9}, .still_s = {0, 12.1}}, "still"},
        {false, {.links = {9, 9}, .bits_differ = 1}, "parameters"},
        {false, {.links = {9, 9}, .healed_s = -1}, "one model"},
        {true, {.links = {9, 0}, .healed_s = 15.1}, "one model"},
    };

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_cut_opts o = {.strict = cases[i].strict, .cut_us = long_us};
        const char *broken = hth_cut_broken(&o, &cases[i].r);

        if (cases[i].says == NULL)
            assert_null(broken);
        else
            assert_non_null(strstr(broken != NULL ? broken : "", cases[i].says));
    }
}

TEST(cuts_that_are_none_are_refused)
{
    static const struct hth_cut_opts cases[] = {
        {.members = 1, .away = 1, .cut_us = 1}, {.members = 17, .away = 1, .cut_us = 1},
        {.members = 4, .away = 0, .cut_us = 1}, {.members = 4, .away = 4, .cut_us = 1},
        {.members = 4, .away = 1, .cut_us = 0},
    };
    struct hth_cut_report r;

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        assert_err(HTH_E_CONFIG, hth_sim_cut(&cases[i], &r));
}
