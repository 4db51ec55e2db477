/* SPDX-License-Identifier: Apache-2.0 */
/* test_throughput.c: the throughput scenario against computations by hand. */
#include "scenarios/latency.h"
#include "support/suite.h"

static struct hth_latency_row run(const struct hth_latency_opts *opts)
{
    struct hth_latency_row row;
    assert_ok(hth_sim_latency(opts, &row));
    return row;
}

static struct hth_latency_opts dense(uint32_t flights)
{
    struct hth_latency_opts o = HTH_LATENCY_OPTS_INIT;
    o.side = o.k = 1;
    o.flights = flights;
    o.updates = 60;
    return o;
}

/* One batch at a time: an update is 2 * layers calls in sequence, whose delays have the given mean
 * and the standard deviation of two exponentials, and the work in between. */
TEST(model_parallel_update_takes_the_sum_of_delays)
{
    (void)state;
    struct hth_latency_opts o = dense(1);
    o.updates = 200;
    double work_s = 64 / run(&o).samples_per_s;
    o.delay_ms = 200;
    double update_s = 64 / run(&o).samples_per_s;
    /* 1600 calls of 0.2 s: the mean's standard error is 0.2 / sqrt(2) / 40. */
    assert_float_equal(update_s, work_s + 8 * 0.2, 8 * 4 * 0.2 / 1.41421 / 40);
}

/* An update takes more than a minute, so sixty take longer than the hour in which one must come. */
TEST(all_updates_may_take_longer_than_an_hour)
{
    (void)state;
    struct hth_latency_opts o = dense(1);
    o.delay_ms = 10000;
    assert_true(run(&o).virtual_s > 3600);
}

TEST(more_flights_hide_more_latency)
{
    (void)state;
    struct hth_latency_opts o = dense(1);
    o.delay_ms = 100;
    double one = run(&o).samples_per_s;
    o.flights = 8;
    double eight = run(&o).samples_per_s;
    /* At most eight times as much, and most of that, as the trunk is mostly idle. */
    assert_true(eight < 8.5 * one);
    assert_true(eight > 4 * one);
}

/* With enough flights a mean delay of 200 ms on every call costs less than a tenth of the
 * throughput; with one it costs most of it. */
TEST(many_flights_hide_latency)
{
    (void)state;
    struct hth_latency_opts o = HTH_LATENCY_OPTS_INIT;
    o.updates = 400;
    double none = run(&o).samples_per_s;
    o.delay_ms = 200;
    struct hth_latency_row much = run(&o);
    o.flights = 1;
    o.updates = 20;
    assert_true(much.samples_per_s >= 0.9 * none);
    assert_true(run(&o).samples_per_s < 0.2 * none);
    assert_true(much.answers_missing < 0.01);
}

/* Between a flight's start and its end all others land once; the filling of the pipeline does not
 * count. */
TEST(staleness_matches_a_full_pipeline)
{
    (void)state;
    static const uint32_t flights[] = {1, 8, 64};
    for (size_t i = 0; i < HTH_ARRAY_LEN(flights); i++) {
        struct hth_latency_opts o = dense(flights[i]);
        o.updates = 10;
        o.delay_ms = 50;
        assert_float_equal(run(&o).staleness_mean, flights[i] - 1, 0.01 * flights[i]);
    }
}

TEST(throughput_of_trainers_adds_up)
{
    (void)state;
    struct hth_latency_opts o = dense(4);
    o.delay_ms = 100;
    double one = run(&o).samples_per_s;
    o.trainers = 3;
    double three = run(&o).samples_per_s;
    assert_float_equal(three / one, 3, 0.45);
}

TEST(crashing_hosts_lose_answers)
{
    (void)state;
    struct hth_latency_opts o = HTH_LATENCY_OPTS_INIT;
    o.flights = 16;
    o.patient = false;
    o.down = 0.3;
    o.down_us = 5 * HTH_US_PER_S;
    o.measure_us = 60 * HTH_US_PER_S;
    struct hth_latency_row a = run(&o), b = run(&o);
    assert_true(a.trace == b.trace && a.deaths == b.deaths);
    /* Eight hosts crash every 5 / 0.3 seconds each, 29 times a minute in all. */
    assert_in_range(a.deaths, 12, 50);
    assert_true(a.answers_missing > 0 && a.answers_missing < 0.3);
    /* Experts learn from most of the answered pairs, but not from all: hosts crash in between. */
    assert_true(a.useful_per_s < a.samples_per_s * (1 - a.answers_missing));
    assert_true(a.useful_per_s > a.samples_per_s * (1 - 3 * a.answers_missing));
    o.down = 0;
    struct hth_latency_row calm = run(&o);
    assert_int_equal(calm.deaths, 0);
    assert_true(calm.useful_per_s > a.useful_per_s);
}

TEST(invalid_options_are_refused)
{
    (void)state;
    struct hth_latency_row row;
    struct hth_latency_opts o = HTH_LATENCY_OPTS_INIT;
    o.trainers = 0;
    assert_err(HTH_E_CONFIG, hth_sim_latency(&o, &row));
    o.trainers = HTH_LATENCY_TRAINERS_MAX + 1;
    assert_err(HTH_E_CONFIG, hth_sim_latency(&o, &row));
    o = (struct hth_latency_opts)HTH_LATENCY_OPTS_INIT;
    o.down = 0.95;
    assert_err(HTH_E_CONFIG, hth_sim_latency(&o, &row));
    o = (struct hth_latency_opts)HTH_LATENCY_OPTS_INIT;
    o.side = 0;
    assert_err(HTH_E_CONFIG, hth_sim_latency(&o, &row));
}
