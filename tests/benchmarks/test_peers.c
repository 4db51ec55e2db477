/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_peers.c: the figures of runs in turns, and hearth's averagers. The output of the question is
 * tested in tests/integration/test_benches.c.
 */
#include "benchmarks/peers.h"

#include "support/suite.h"

/* A row has the median of each side, their ratio, and the spread of the pairs' ratios. */
TEST(ratio_is_ours_over_peer_where_more_is_better)
{
    (void)state;
    const struct hth_bench_peers_pairs p = {
        .ours = {30, 10, 20, 40}, .peer = {10, 5, 5, 20}, .count = 4};
    struct hth_bench_peers_figure f = hth_bench_peers_figure(&p, false);
    assert_true(f.ours == 25 && f.peer == 7.5);
    assert_close(f.ratio, 25 / 7.5, 1e-12, 0);
    assert_close(f.spread, (4.0 - 2) / 2.5, 1e-3, 0); /* of 2, 2, 3 and 4 */
}

TEST(ratio_is_peer_over_ours_where_less_is_better)
{
    (void)state;
    const struct hth_bench_peers_pairs p = {.ours = {2, 4, 1}, .peer = {80, 80, 100}, .count = 3};
    struct hth_bench_peers_figure f = hth_bench_peers_figure(&p, true);
    assert_true(f.ours == 2 && f.peer == 80 && f.ratio == 40);
    assert_close(f.spread, (100.0 - 20) / 40, 1e-3, 0);
}

TEST(one_run_has_no_spread)
{
    (void)state;
    const struct hth_bench_peers_pairs p = {.ours = {3}, .peer = {2}, .count = 1};
    struct hth_bench_peers_figure f = hth_bench_peers_figure(&p, false);
    assert_true(f.ratio == 1.5 && f.spread == 0);
}

#ifdef HTH_BENCH_AVERAGERS
/* Case C as a whole, 16 averagers and their DHT, which compares with the true mean itself. */
TEST(averagers_find_the_true_mean)
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
