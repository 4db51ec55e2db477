/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_sim.c: the simulator keeps the promises of core/env.h. */
#include "support/env_conformance.h"
#include "support/test.h"

#include "sim/world.h"

static bool run(struct conform *c, bool (*done)(void *arg), void *arg, int64_t max_us)
{
    return hth_world_run_until_true(c->runner, done, arg, max_us);
}

static void in_a_world(void (*test)(struct conform *c))
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
        struct hth_open_counts open;
        opts.link.latency_us = 1000;
        opts.link.jitter_us = 500;
        opts.link.jitter = HTH_JITTER_EXPONENTIAL;
        opts.chaos.short_read = opts.chaos.short_write = 0.1 * (double)seed;
        opts.device.compute_workers = 1 + (uint32_t)seed;
        struct hth_world *w = hth_world_new(seed, &opts);
        struct hth_node *a = hth_world_node(w, "a", NULL);
        struct hth_node *b = seed == 3 ? a : hth_world_node(w, "b", NULL);
        struct conform c = {.a = hth_node_env(a),
                            .b = hth_node_env(b),
                            .run = run,
                            .runner = w,
                            .listen = hth_node_addr(b, 0),
                            .file_prefix = "disk/"};
        test(&c);
        hth_world_run_for(w, 10 * HTH_US_PER_S);
        hth_world_open(w, &open);
        assert_int_equal(hth_open_total(&open), 0);
        hth_world_free(w);
    }
}

#define CONFORMANCE_TEST(name)                                                                     \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        in_a_world(conform_##name);                                                                \
    }
CONFORMANCE_MAP(CONFORMANCE_TEST)

int main(void)
{
#define CONFORMANCE_ENTRY(name) cmocka_unit_test(name),
    const struct CMUnitTest tests[] = {CONFORMANCE_MAP(CONFORMANCE_ENTRY)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
