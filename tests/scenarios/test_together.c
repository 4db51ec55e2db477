/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared batches of more trainers than one group holds, on grids that they do not fill, without
 * averages of the parameters: after every step all have the same bits, though one of them is late
 * with its evaluations now and then. Each seed is one that failed once.
 */
#include "scenarios/collab.h"
#include "support/test.h"

static struct hth_collab_opts opts(uint32_t trainers, uint32_t steps, uint64_t seed)
{
    struct hth_collab_opts o = HTH_COLLAB_OPTS_INIT;

    o.seed = seed;
    o.mode = HTH_SHARE_BATCH;
    o.what = HTH_COLLAB_CALM;
    o.trainers = trainers;
    o.steps = steps;
    o.target = 16 * trainers;
    o.every = 0;
    o.dim = 16;
    o.side = 6;
    return o;
}

static void check(uint32_t trainers, uint32_t steps, uint64_t seed, bool roll)
{
    struct hth_collab_opts o = opts(trainers, steps, seed);
    struct hth_collab_report r;

    o.roll = roll;
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

/* 5x4: a line of one trainer and three who stand in. */
static void seventeen_trainers_keep_equal_parameters(void **state)
{
    (void)state;
    check(17, 11, 1, false);  /* who stands in waits for a member that evaluates */
    check(17, 6, 60, false);  /* at the first step notes of the grid are on their way */
    check(17, 11, 64, false); /* a row is late, and the others gather the rest of a batch */
}

static void thirty_three_trainers_keep_equal_parameters(void **state)
{
    (void)state;
    check(33, 6, 1, false);
}

/* Deaths leave some with the parameters of another mean, by the same number of steps. They notice,
 * and take the others' state; nobody takes a number without its parameters. Nothing of it is left
 * in the end. */
static uint32_t check_split(uint64_t seed, uint32_t steps, int64_t within_us)
{
    struct hth_collab_opts o = opts(17, steps, seed);
    struct hth_collab_report r;

    o.what = HTH_COLLAB_CHURN;
    o.die = 5;
    o.join = 0;
    o.within_us = within_us;
    assert_ok(hth_sim_collab(&o, &r));
    print_message("seed %llu: drift %.2g on the way, %.2g at the end, %u of %u states yielded to\n",
                  (unsigned long long)seed, r.drift, r.spread, r.yields, r.catch_ups);
    assert_int_equal(r.died, 5);
    assert_true(r.yields == 0 || r.drift > 1e-6); /* nobody gives up what is right */
    assert_true(r.spread < 1e-6);
    return r.yields;
}

static void forked_trainers_adopt_the_others_state(void **state)
{
    uint32_t yields = 0;

    (void)state;
    yields += check_split(21, 40, 0);
    yields += check_split(16, 40, 800 * HTH_US_PER_MS);
    yields += check_split(24, 40, 800 * HTH_US_PER_MS);
    yields += check_split(62, 40, 800 * HTH_US_PER_MS);
    yields += check_split(83, 40, 800 * HTH_US_PER_MS);
    assert_true(yields > 0);
}

/* The same by roll call. */
static void trainers_of_a_roll_keep_equal_parameters(void **state)
{
    (void)state;
    check(17, 11, 1, true);
    check(17, 11, 64, true);
    check(33, 6, 1, true);
}

/* By roll call deaths in the middle of steps leave nobody with other parameters. */
static void deaths_in_a_roll_leave_equal_parameters(void **state)
{
    static const struct {
        uint64_t seed;
        int64_t within_ms;
    } cases[] = {{21, 0}, {16, 800}, {24, 800}, {62, 800}, {83, 800}};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_collab_opts o = opts(17, 40, cases[i].seed);
        struct hth_collab_report r;

        o.roll = true;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seventeen_trainers_keep_equal_parameters),
        cmocka_unit_test(thirty_three_trainers_keep_equal_parameters),
        cmocka_unit_test(forked_trainers_adopt_the_others_state),
        cmocka_unit_test(trainers_of_a_roll_keep_equal_parameters),
        cmocka_unit_test(deaths_in_a_roll_leave_equal_parameters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
