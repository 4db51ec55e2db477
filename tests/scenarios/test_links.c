/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_links.c: DeDLOC's hybrid set-up on the production reduction: 8 peers with 1 Gbit/s and 16
 * with 200 Mbit/s average 70.8 MB in 5.43 s with equal shares, 13.0 s over a server and 2.83 s
 * adaptively.
 */
#include "scenarios/links.h"
#include "support/suite.h"

#define PEERS 24

static struct hth_links_opts hybrid(double *bandwidth)
{
    struct hth_links_opts opts = {
        .seed = 1, .bandwidth = bandwidth, .peers = PEERS, .count = 17700000, .latency_us = 1000};
    for (uint32_t i = 0; i < PEERS; i++)
        bandwidth[i] = i < 8 ? 1e9 : 200e6;
    return opts;
}

TEST(hybrid_group_matches_dedloc)
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
        assert_close(row.simulated_s, row.predicted_s, 0.02, 0);
        assert_true(row.fraction == 1);
        seconds[way] = row.steady_s;
    }
    assert_close(seconds[HTH_LINKS_ALLREDUCE] / seconds[HTH_LINKS_ADAPTIVE], 1.917, 0, 0.01);
}

/* Links of 20 to 100 Mbit/s, on which parts take long and probes wait behind them: no member is
 * abandoned, and each further byte costs as much as the formulas say. */
TEST(slow_links_match_the_formulas)
{
    static const struct {
        double first, others; /* Mbit/s */
        uint64_t count;
    } cases[] = {{100, 20, 2000000}, {50, 50, 9000000}, {20, 20, 2000000}};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        double bandwidth[8];
        struct hth_links_opts opts = {.seed = 1,
                                      .bandwidth = bandwidth,
                                      .peers = 8,
                                      .count = cases[i].count,
                                      .latency_us = 1000};
        for (uint32_t k = 0; k < 8; k++)
            bandwidth[k] = 1e6 * (k == 0 ? cases[i].first : cases[i].others);
        for (int way = 0; way < HTH_LINKS_WAYS; way++) {
            struct hth_links_row row;
            assert_ok(hth_sim_links(&opts, (enum hth_links_way)way, &row));
            assert_true(row.fraction == 1);
            assert_close(row.steady_s, row.predicted_s, 0.02, 0);
            assert_close(row.simulated_s, row.predicted_s, 0.09, 0);
        }
    }
}

TEST(same_options_give_the_same_trace)
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

TEST(invalid_options_are_refused)
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
