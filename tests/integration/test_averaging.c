/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_averaging.c: averagers as processes of their own, each with its own DHT node on loopback:
 * full grids give the true mean. test_deaths.c has what the death of one of them does.
 */
#include "integration/swarm.h"

#define COUNT   100000
#define SLOW_US 20000000

/* The first sweep makes all the connections. A machine that is busy with other things may make a
 * process seem dead, which costs that sweep its exactness: so all are patient, and it is done
 * again, at most twice. */
static void full_grid(struct place *p, const char *shape, uint32_t peers, const char *format,
                      double bound)
{
    const struct swarm_opts o = {
        .shape = shape, .peers = peers, .count = COUNT, .format = format, .patience_s = 20};
    struct swarm s;
    int64_t us;
    double off;

    swarm_start(&s, p, &o);
    us = swarm_sweep(&s, true);
    print_message("%s %s: connecting took %lld ms\n", shape, format, (long long)us / 1000);
    do {
        us = swarm_sweep(&s, true);
        off = swarm_deviation(&s);
        print_message("%s %s: %lld ms, deviation %.3g\n", shape, format, (long long)us / 1000, off);
    } while (s.sweeps <= 3 && !(off < bound && us < SLOW_US));
    assert_true(off < bound);
    assert_true(us < SLOW_US);
    place_end(p);
}

static void sixteen_fp32(void **state)
{
    full_grid(*state, "4x4", 16, "fp32", 1e-5);
}

/* The largest of the values is above 4. */
static void sixteen_fp16(void **state)
{
    full_grid(*state, "4x4", 16, "fp16", 2e-3 * 4);
}

static void twentyseven(void **state)
{
    full_grid(*state, "3x3x3", 27, "fp32", 1e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sixteen_fp32, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(sixteen_fp16, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(twentyseven, place_setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
