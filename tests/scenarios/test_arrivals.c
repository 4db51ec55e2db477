/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Newcomers come to a run: a few rows of hearth sim arrivals, and the judge itself.
 */
#include "scenarios/arrivals.h"
#include "support/suite.h"

#include <string.h>

TEST(newcomers_are_in_in_time)
{
    static const struct hth_arrival_opts cases[] = {
        {.members = 4, .newcomers = 1, .step_s = 0.1, .state_steps = 0.1},
        {.members = 4, .newcomers = 3, .step_s = 0.1, .state_steps = 1},
        {.members = 4, .newcomers = 2, .step_s = 1, .state_steps = 0.3},
        {.members = 3, .newcomers = 1, .step_s = 1, .state_steps = 1},
        {.members = 4, .newcomers = 2, .step_s = 30, .state_steps = 3}, /* a mean takes 15 s */
        {.members = 4, .newcomers = 6, .step_s = 30, .state_steps = 1}, /* a micro-batch 4 s */
        {.members = 4, .newcomers = 6, .step_s = 0.1, .state_steps = 10},
    };

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_arrival_opts o = cases[i];
        struct hth_arrival_report r;

        o.seed = 1 + i;
        assert_ok(hth_sim_arrival(&o, &r));
        print_message("%u newcomers, steps of %.2f s, state of %.1f: in after %.2f s (%.2f of the "
                      "limit), the others' steps %.2f times as long; lacked %u means\n",
                      o.newcomers, r.calm_s, o.state_steps, r.in_s_max, r.over, r.slowed, r.lacked);
        if (hth_arrival_broken(&r) != NULL)
            fail_msg("case %zu: %s", i, hth_arrival_broken(&r));
        assert_true(r.in_s_max > 0 && r.states >= o.newcomers);
        assert_true(r.calm_s > o.step_s / 2 && r.calm_s < o.step_s * 2);
    }
}

TEST(same_seed_is_the_same_run)
{
    struct hth_arrival_opts o = {
        .seed = 5, .members = 2, .newcomers = 1, .step_s = 0.1, .state_steps = 1};
    struct hth_arrival_report a, b;

    (void)state;
    assert_ok(hth_sim_arrival(&o, &a));
    assert_ok(hth_sim_arrival(&o, &b));
    assert_true(a.hash == b.hash && a.in_s_max == b.in_s_max);
    o.seed++;
    assert_ok(hth_sim_arrival(&o, &b));
    assert_true(a.hash != b.hash);
}

TEST(each_promise_is_judged)
{
    static const struct {
        struct hth_arrival_report r;
        const char *says; /* NULL: all is kept */
    } cases[] = {
        {{.in_s_max = 3, .over = 1, .slowed = 1.3}, NULL},
        {{.in_s_max = -1}, "never in"},
        {{.over = 1.01, .slowed = 1}, "later"},
        {{.over = 0.5, .slowed = 1.31}, "1.3 times"},
    };

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        const char *broken = hth_arrival_broken(&cases[i].r);

        if (cases[i].says == NULL)
            assert_null(broken);
        else
            assert_non_null(strstr(broken != NULL ? broken : "", cases[i].says));
    }
}

TEST(arrivals_that_are_none_are_refused)
{
    static const struct hth_arrival_opts cases[] = {
        {.members = 0, .newcomers = 1, .step_s = 1, .state_steps = 1},
        {.members = 1, .newcomers = 0, .step_s = 1, .state_steps = 1},
        {.members = 12, .newcomers = 5, .step_s = 1, .state_steps = 1},
        {.members = 1, .newcomers = 1, .step_s = 0, .state_steps = 1},
        {.members = 1, .newcomers = 1, .step_s = 1, .state_steps = 0},
    };
    struct hth_arrival_report r;

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        assert_err(HTH_E_CONFIG, hth_sim_arrival(&cases[i], &r));
}
