/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Figures beside a peer: what a row says of runs in turns, and hearth's averagers, small. The
 * question as a script sees it is in tests/integration/test_benches.c.
 */
#include "benchmarks/peers.h"

#include "support/test.h"

/* Medians of each side, their ratio, and the spread of the ratios of runs side by side. */
static void test_more_is_better(void **state)
{
    (void)state;
    const struct hth_bench_peers_pairs p = {
        .ours = {30, 10, 20, 40}, .peer = {10, 5, 5, 20}, .count = 4};
    struct hth_bench_peers_figure f = hth_bench_peers_figure(&p, false);
    assert_true(f.ours == 25 && f.peer == 7.5);
    assert_close(f.ratio, 25 / 7.5, 1e-12, 0);
    assert_close(f.spread, (4.0 - 2) / 2.5, 1e-3, 0); /* of 2, 2, 3 and 4 */
}

static void test_less_is_better(void **state)
{
    (void)state;
    const struct hth_bench_peers_pairs p = {.ours = {2, 4, 1}, .peer = {80, 80, 100}, .count = 3};
    struct hth_bench_peers_figure f = hth_bench_peers_figure(&p, true);
    assert_true(f.ours == 2 && f.peer == 80 && f.ratio == 40);
    assert_close(f.spread, (100.0 - 20) / 40, 1e-3, 0);
}

static void test_one_run_has_no_spread(void **state)
{
    (void)state;
    const struct hth_bench_peers_pairs p = {.ours = {3}, .peer = {2}, .count = 1};
    struct hth_bench_peers_figure f = hth_bench_peers_figure(&p, false);
    assert_true(f.ratio == 1.5 && f.spread == 0);
}

#ifdef HTH_BENCH_AVERAGERS
/* The whole of case C, 16 averagers and their DHT; it compares with the true mean itself. */
static void test_averagers(void **state)
{
    (void)state;
    const struct hth_bench_peers_side *side = &hth_bench_peers_averagers;
    const struct hth_bench_peers_case c = {
        .name = "C", .nodes = 16, .width = 8, .group = 4, .rounds = 5};
    struct hth_bench b = {.seed = 7, .log = {.spec = "error"}};
    struct hth_bench_peers_run run = {0};
    void *ours = NULL;
    assert_int_equal(side->open(&b, &c, &ours), HTH_OK);
    assert_int_equal(side->run(ours, &run), HTH_OK);
    assert_true(run.value > 0);
    assert_in_range(run.good, 1, 80);
    print_message("%u of 80 steps\n", run.good);
    side->close(ours);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more_is_better),
        cmocka_unit_test(test_less_is_better),
        cmocka_unit_test(test_one_run_has_no_spread),
#ifdef HTH_BENCH_AVERAGERS
        cmocka_unit_test(test_averagers),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
