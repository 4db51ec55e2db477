/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeDLOC's hybrid set-up on the production reduction: 8 peers with 1 Gbit/s and 16 with 200 Mbit/s
 * average 70.8 MB in 5.43 s with equal shares, 13.0 s over a server and 2.83 s adaptively, once the
 * parts flow; a round of its own pays for the first of them.
 */
#include "sim/scenario_links.h"
#include "support/test.h"

#define PEERS 24

static struct hth_links_opts hybrid(double *bandwidth)
{
    struct hth_links_opts opts = {
        .seed = 1, .bandwidth = bandwidth, .peers = PEERS, .count = 17700000, .latency_us = 1000};
    for (uint32_t i = 0; i < PEERS; i++)
        bandwidth[i] = i < 8 ? 1e9 : 200e6;
    return opts;
}

static void test_hybrid(void **state)
{
    static const double want[HTH_LINKS_WAYS] = {5.43, 13.0, 2.83};
    double bandwidth[PEERS], seconds[HTH_LINKS_WAYS];
    struct hth_links_opts opts = hybrid(bandwidth);
    (void)state;
    for (int way = 0; way < HTH_LINKS_WAYS; way++) {
        struct hth_links_row row;
        assert_ok(hth_sim_links(&opts, (enum hth_links_way)way, &row));
        print_message("%s: predicted %.3f s, alone %.3f s, steady %.3f s\n",
                      hth_links_way_name((enum hth_links_way)way), row.predicted_s, row.simulated_s,
                      row.steady_s);
        assert_close(row.predicted_s, want[way], 0.005, 0);
        assert_close(row.steady_s, want[way], 0.02, 0);
        /* A share of an eighth has 17 parts. */
        assert_close(row.simulated_s, want[way], way == HTH_LINKS_ADAPTIVE ? 0.08 : 0.02, 0);
        assert_true(row.fraction == 1);
        seconds[way] = row.steady_s;
    }
    assert_close(seconds[HTH_LINKS_ALLREDUCE] / seconds[HTH_LINKS_ADAPTIVE], 1.917, 0, 0.01);
}

static void test_repeats(void **state)
{
    double bandwidth[PEERS];
    struct hth_links_opts opts = hybrid(bandwidth);
    struct hth_links_row row, again;
    (void)state;
    opts.peers = 6;
    opts.count = 1000000;
    assert_ok(hth_sim_links(&opts, HTH_LINKS_ADAPTIVE, &row));
    assert_ok(hth_sim_links(&opts, HTH_LINKS_ADAPTIVE, &again));
    assert_true(row.trace == again.trace && row.simulated_s == again.simulated_s);
}

static void test_refusals(void **state)
{
    double bandwidth[PEERS];
    struct hth_links_opts opts = hybrid(bandwidth);
    struct hth_links_row row;
    (void)state;
    opts.peers = 1;
    assert_err(HTH_E_CONFIG, hth_sim_links(&opts, HTH_LINKS_SERVER, &row));
    opts.peers = PEERS;
    opts.count = 0;
    assert_err(HTH_E_CONFIG, hth_sim_links(&opts, HTH_LINKS_SERVER, &row));
    opts.count = 10;
    bandwidth[3] = 0;
    assert_err(HTH_E_CONFIG, hth_sim_links(&opts, HTH_LINKS_SERVER, &row));
    bandwidth[3] = NAN;
    assert_err(HTH_E_CONFIG, hth_sim_links(&opts, HTH_LINKS_SERVER, &row));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hybrid),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
