/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared batches of more trainers than one line holds, on grids that they do not fill: after every
 * step all have the same bits, though one of them is late with its evaluations now and then.
 */
#include "scenarios/collab.h"
#include "support/suite.h"

static struct hth_sim_collab_opts opts(uint32_t trainers, uint32_t steps, uint64_t seed)
{
    struct hth_sim_collab_opts o = HTH_COLLAB_OPTS_INIT;

    o.seed = seed;
    o.mode = HTH_SHARE_BATCH;
    o.what = HTH_COLLAB_CALM;
    o.trainers = trainers;
    o.steps = steps;
    o.target = 16 * trainers;
    o.dim = 16;
    o.side = 6;
    return o;
}

static void check(uint32_t trainers, uint32_t steps, uint64_t seed)
{
    struct hth_sim_collab_opts o = opts(trainers, steps, seed);
    struct hth_collab_report r;

    assert_ok(hth_sim_collab(&o, &r));
    print_message("%u trainers, seed %llu: drift %.2g, %.1f s, trace %016llx\n", trainers,
                  (unsigned long long)seed, r.drift, r.virtual_s, (unsigned long long)r.hash);
    assert_int_equal(r.steps, steps);
    assert_int_equal(r.steps_alone, 0);
    assert_int_equal(r.catch_ups, 0);
    assert_true(r.samples_min >= (double)o.target);
    assert_true(r.drift == 0); /* the same bits */
    assert_true(r.spread == 0);
    assert_true(r.virtual_s < 3.0 * steps);
}

/* Grids with holes, in which proxies stand. */
TEST(trainers_on_grids_keep_equal_parameters)
{
    (void)state;
    check(17, 11, 1);
    check(17, 6, 60);
    check(17, 11, 64);
    check(33, 6, 1);
}

/* Deaths in the middle of steps leave nobody with other parameters. */
TEST(deaths_leave_equal_parameters)
{
    static const struct {
        uint64_t seed;
        int64_t within_ms;
    } cases[] = {{21, 0}, {16, 800}, {24, 800}, {62, 800}, {83, 800}};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_sim_collab_opts o = opts(17, 40, cases[i].seed);
        struct hth_collab_report r;

        o.what = HTH_COLLAB_CHURN;
        o.die = 5;
        o.join = 0;
        o.within_us = cases[i].within_ms * HTH_US_PER_MS;
        assert_ok(hth_sim_collab(&o, &r));
        print_message("seed %llu: drift %.2g on the way, %u states, %.1f s\n",
                      (unsigned long long)cases[i].seed, r.drift, r.catch_ups, r.virtual_s);
        assert_int_equal(r.died, 5);
        assert_true(r.drift == 0);
        assert_true(r.spread == 0);
    }
}
