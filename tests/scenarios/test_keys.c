/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys that bring nothing, or not for long: a few small rows of hearth sim keys, and the judge.
 */
#include "scenarios/keys.h"
#include "support/suite.h"

#include <string.h>

TEST(a_run_keeps_its_pace)
{
    static const struct hth_keys_opts cases[] = {
        {.keys = 1, .trainers = 3, .kind = HTH_KEYS_DECLARE, .minutes = 1},
        {.keys = 1, .trainers = 3, .kind = HTH_KEYS_SILENT, .minutes = 1},
        {.keys = 1, .trainers = 3, .kind = HTH_KEYS_BRINGS, .minutes = 1},
    };

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_keys_opts o = cases[i];
        struct hth_keys_report r, again;

        o.seed = 1;
        assert_ok(hth_sim_keys(&o, &r));
        print_message("%u keys that %s beside %u trainers: %.3f of the steps (%llu of %llu)\n",
                      o.keys, hth_keys_kind_name(o.kind), o.trainers, r.steps_ratio,
                      (unsigned long long)r.steps, (unsigned long long)r.alone);
        if (hth_keys_broken(&r) != NULL)
            fail_msg("case %zu: %s", i, hth_keys_broken(&r));
        assert_true(r.alone > 100);
        if (i > 0)
            continue;
        assert_ok(hth_sim_keys(&o, &again));
        assert_true(r.hash == again.hash && r.steps == again.steps);
    }
}

TEST(each_promise_is_judged)
{
    static const struct hth_keys_report good = {.steps_ratio = 0.92};
    static const struct hth_keys_report slow = {.steps_ratio = 0.919};
    static const struct hth_keys_report asked = {.steps_ratio = 1, .asked = 1};

    (void)state;
    assert_null(hth_keys_broken(&good));
    assert_non_null(strstr(hth_keys_broken(&slow), "0.92"));
    assert_non_null(strstr(hth_keys_broken(&asked), "reduce"));
}

TEST(keys_that_are_none_are_refused)
{
    static const struct hth_keys_opts cases[] = {
        {.keys = 0, .trainers = 1, .minutes = 1},
        {.keys = 4097, .trainers = 1, .minutes = 1},
        {.keys = 1, .trainers = 0, .minutes = 1},
        {.keys = 1, .trainers = 10, .minutes = 1},
        {.keys = 1, .trainers = 1, .minutes = 0},
        {.keys = 1, .trainers = 1, .minutes = 1, .kind = HTH_KEYS_KINDS},
    };
    struct hth_keys_report r;

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        assert_err(HTH_E_CONFIG, hth_sim_keys(&cases[i], &r));
}
