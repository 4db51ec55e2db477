/* SPDX-License-Identifier: Apache-2.0 */
/* test_select.c: a newcomer's first selection against the formulas of the simulated DHT. */
#include "core/limits.h"
#include "scenarios/select.h"
#include "support/suite.h"

#include <math.h>
#include <string.h>

static struct hth_select_row run(const struct hth_select_opts *opts)
{
    struct hth_select_row row;
    assert_ok(hth_sim_select(opts, &row));
    return row;
}

/* A first answer takes 1/2 + log2(N) / 4 round trips to nodes on random continents. The mean
 * one-way latency is that of the zones' table plus a fifth for jitter. Trainers are on all
 * continents. */
TEST(first_selection_takes_one_lookup)
{
    (void)state;
    const double way_s = 1.2 * (12 + 20 + 30 + 2 * (45 + 90 + 75)) / 9 / 1000;
    struct hth_select_opts o = HTH_SELECT_OPTS_INIT;
    for (uint32_t nodes = 128; nodes <= 2048; nodes *= 4) {
        double sum = 0;
        o.nodes = nodes;
        o.trainers = 48;
        for (o.seed = 1; o.seed <= 4; o.seed++) {
            struct hth_select_row row = run(&o);
            assert_float_equal(row.exact, 1, 0);
            assert_float_equal(row.living, 1, 0);
            assert_float_equal(row.warm_requests, 0, 0);
            sum += row.first_s / 4;
        }
        double expected_s = (0.5 + log2(nodes) / 4) * 2 * way_s;
        /* 192 trainers, whose round trips deviate by half of their mean. */
        assert_float_equal(sum, expected_s, 0.15 * expected_s);
    }
}

TEST(crashed_hosts_are_selected_like_others)
{
    (void)state;
    struct hth_select_opts o = HTH_SELECT_OPTS_INIT;
    double living = 0;
    o.nodes = 100;
    o.dead = 0.5;
    o.trainers = 16;
    for (o.seed = 1; o.seed <= 16; o.seed++)
        living += run(&o).living / 16;
    /* 256 rows whose experts lie on about two hosts each. */
    assert_float_equal(living, 0.5, 0.1);
}

/* Right after a change of keys, the first answer may show a newcomer few hosts; later it never
 * does. */
TEST(new_keys_make_poor_first_selections)
{
    (void)state;
    struct hth_select_opts o = HTH_SELECT_OPTS_INIT;
    double young = 0;
    o.nodes = 100;
    o.epoch_s = 8;
    for (o.seed = 1; o.seed <= 4; o.seed++) {
        struct hth_select_row row = run(&o);
        young += row.exact / 4;
        assert_true(row.exact_s < 2 && row.exact_s >= row.first_s);
    }
    assert_true(young > 0.2 && young < 0.9);
}

TEST(poor_dht_replays_from_its_seed)
{
    (void)state;
    struct hth_select_opts o = HTH_SELECT_OPTS_INIT;
    o.nodes = 100;
    o.poor = true;
    o.epoch_s = 30;
    o.trainers = 32;
    struct hth_select_row a = run(&o), b = run(&o);
    assert_true(memcmp(&a, &b, sizeof(a)) == 0);
    assert_true(a.exact < 1 && a.exact > 0.3 && a.exact_s > a.first_s);
}

TEST(invalid_options_are_refused)
{
    (void)state;
    const struct hth_select_opts good = HTH_SELECT_OPTS_INIT;
    struct hth_select_opts bad[7];
    struct hth_select_row row;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        bad[i] = good;
    bad[0].hosts = HTH_SELECT_HOSTS_MAX + 1;
    bad[1].trainers = HTH_SELECT_TRAINERS_MAX + 1;
    bad[2].nodes = good.hosts + good.trainers - 1;
    bad[3].side = 7; /* 49 experts for 64 hosts */
    bad[4].k = HTH_TOP_K_MAX + 1;
    bad[5].dead = 0.91;
    bad[6].epoch_s = 120;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        assert_err(HTH_E_CONFIG, hth_sim_select(&bad[i], &row));
}
