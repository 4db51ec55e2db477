/* SPDX-License-Identifier: Apache-2.0 */
/* test_turnover.c: the churn scenario against computations by hand. */
#include "scenarios/turnover.h"
#include "support/suite.h"

#include <math.h>
#include <string.h>

static struct hth_sim_churn_row run(const struct hth_sim_churn_opts *opts)
{
    struct hth_sim_churn_row row;
    char why[256] = "";
    enum hth_err err = hth_sim_churn(opts, &row, why);
    if (err != HTH_OK)
        print_error("%s\n", why);
    assert_ok(err);
    return row;
}

TEST(calm_world_has_no_crashes)
{
    (void)state;
    struct hth_sim_churn_opts o = HTH_SIM_CHURN_OPTS_INIT;
    o.peers = 16;
    o.hood = 16;
    o.replaced = 0;
    o.duration_us = 60 * HTH_US_PER_S;
    struct hth_sim_churn_row row = run(&o);
    assert_int_equal(row.deaths, 0);
    assert_float_equal(row.dead, 0, 0);
    assert_float_equal(row.recovery_s, 0, 0);
    assert_true(isnan(row.discover_s) && isnan(row.forget_s) && isnan(row.newcomer_s));
    /* All calls that should be made are made, except those under way at the ends. */
    assert_float_equal(row.goodput, 1, 0.02);
}

/* A viewer forgets a crashed host when it calls it, as it calls each of the other m hosts once in m
 * seconds, or when the record expires, with 2/3 to 3/3 of its life L left: E[min(Exp(m), U(2L/3,
 * L))] = m (1 - mean over u of exp(-u / m)). */
static double forget_by_hand(double m, double life)
{
    double a = 2 * life / 3, b = life;
    return m * (1 - m * (exp(-a / m) - exp(-b / m)) / (b - a));
}

TEST(time_to_forget_matches_the_formula)
{
    (void)state;
    struct hth_sim_churn_opts o = HTH_SIM_CHURN_OPTS_INIT;
    o.peers = 32;
    o.hood = 16;
    o.silent = 0; /* a crashed host's kernel refuses a call at once */
    o.replaced = 0.2;
    o.duration_us = 600 * HTH_US_PER_S;
    struct hth_sim_churn_row row = run(&o);
    /* 32 places * 0.2 a minute * 10 minutes. */
    assert_in_range(row.deaths, 64 - 32, 64 + 32);
    assert_float_equal(row.forget_s, forget_by_hand(15, 60), 3);
    /* Each place shows a crashed host for forget_s, at the rate of 0.2 a minute. */
    assert_float_equal(row.dead, 0.2 / 60 * row.forget_s, 0.02);
    assert_true(row.forget_p95_s < 61 && row.discover_s > 0.08 && row.discover_s < 1);
    assert_true(row.recovery_s < 61);
}

TEST(short_record_lives_are_forgotten_sooner)
{
    (void)state;
    struct hth_sim_churn_opts o = HTH_SIM_CHURN_OPTS_INIT;
    o.peers = 16;
    o.hood = 16;
    o.silent = 1;
    o.replaced = 0.3;
    o.duration_us = 200 * HTH_US_PER_S;
    struct hth_sim_churn_row slow = run(&o);
    o.record_life_us = 15 * HTH_US_PER_S;
    struct hth_sim_churn_row fast = run(&o);
    assert_true(fast.dead < slow.dead && fast.forget_s < slow.forget_s);
    assert_true(fast.goodput > slow.goodput);
    assert_true(fast.forget_p95_s < 16);
    struct hth_sim_churn_row again = run(&o);
    assert_true(memcmp(&again, &fast, sizeof(fast)) == 0);
}

TEST(invalid_options_are_refused)
{
    (void)state;
    struct hth_sim_churn_row row;
    struct hth_sim_churn_opts o = HTH_SIM_CHURN_OPTS_INIT;
    o.hood = HTH_CHURN_HOOD_MAX + 1;
    assert_err(HTH_E_CONFIG, hth_sim_churn(&o, &row, NULL));
    o = (struct hth_sim_churn_opts)HTH_SIM_CHURN_OPTS_INIT;
    o.replaced = 11;
    assert_err(HTH_E_CONFIG, hth_sim_churn(&o, &row, NULL));
    o = (struct hth_sim_churn_opts)HTH_SIM_CHURN_OPTS_INIT;
    o.peers = 1;
    assert_err(HTH_E_CONFIG, hth_sim_churn(&o, &row, NULL));
    o = (struct hth_sim_churn_opts)HTH_SIM_CHURN_OPTS_INIT;
    o.experts = 0;
    assert_err(HTH_E_CONFIG, hth_sim_churn(&o, &row, NULL));
}
