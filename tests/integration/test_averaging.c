/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_averaging.c: averagers in processes, each with its own DHT node on loopback: full grids give
 * the true mean. test_deaths.c tests the death of one of them.
 */
#include "integration/swarm.h"
#include "support/suite.h"

#define COUNT   100000
#define SLOW_US 20000000

/* The first sweep makes the connections. On a busy machine a process may seem dead, and then the
 * mean is not exact: so timeouts are long, and the sweep is repeated at most twice. */
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

PLACE_TEST(grid_4x4_fp32_finds_the_mean)
{
    full_grid(*state, "4x4", 16, "fp32", 1e-5);
}

/* The largest value is above 4, so half precision has an error of up to 2e-3. */
PLACE_TEST(grid_4x4_fp16_finds_the_mean)
{
    full_grid(*state, "4x4", 16, "fp16", 2e-3 * 4);
}

PLACE_TEST(grid_3x3x3_finds_the_mean)
{
    full_grid(*state, "3x3x3", 27, "fp32", 1e-5);
}
