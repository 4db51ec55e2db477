/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_life.c: sessions and downtimes against the closed forms of their distributions, churn
 * against counts by hand, traces against their rows.
 */
#include "core/limits.h"
#include "core/mem.h"
#include "scenarios/churn.h"
#include "support/suite.h"

#include <math.h>
#include <string.h>

#define DRAWS 40000

struct moments {
    double mean, variance;
};

static struct moments draw_many(const struct hth_life *life, bool up, uint64_t seed)
{
    struct hth_rng rng;
    double sum = 0, squares = 0;
    hth_rng_init(&rng, seed);
    for (int i = 0; i < DRAWS; i++) {
        double x = (double)hth_life_draw(life, &rng, 0, up) * 1e-6;
        sum += x;
        squares += x * x;
    }
    double mean = sum / DRAWS;
    return (struct moments){mean, squares / DRAWS - mean * mean};
}

/* Assert |x - expected| within five standard errors. */
static void assert_mean(double x, double expected, double variance)
{
    double error = 5.0 * sqrt(variance / DRAWS);
    if (!(fabs(x - expected) <= error))
        fail_msg("%g is not %g +- %g", x, expected, error);
}

TEST(poisson_sessions_are_exponential)
{
    (void)state;
    struct hth_life life = HTH_LIFE_INIT;
    life.kind = HTH_LIFE_POISSON;
    life.up_us = 100 * HTH_US_PER_S;
    life.down_us = 20 * HTH_US_PER_S;
    struct moments up = draw_many(&life, true, 1), down = draw_many(&life, false, 2);
    assert_mean(up.mean, 100, 100 * 100);
    assert_mean(down.mean, 20, 20 * 20);
    /* The variance of an exponential's sample variance is about 8 mean^4 / n. */
    assert_mean(up.variance, 1e4, 8e8);
}

/* Mean s Gamma(1 + 1/k), second moment s^2 Gamma(1 + 2/k). */
TEST(weibull_sessions_have_their_moments)
{
    (void)state;
    static const double shapes[] = {0.5, 0.8, 1.0, 2.0, 5.0};
    for (size_t i = 0; i < HTH_ARRAY_LEN(shapes); i++) {
        struct hth_life life = HTH_LIFE_INIT;
        double k = shapes[i];
        life.kind = HTH_LIFE_WEIBULL;
        life.shape = k;
        life.up_us = 1000 * HTH_US_PER_S;
        double scale = 1000 / tgamma(1 + 1 / k);
        double variance = scale * scale * tgamma(1 + 2 / k) - 1e6;
        struct moments up = draw_many(&life, true, 3 + i);
        assert_mean(up.mean, 1000, variance);
        /* A share of 1 - 1/e ends before the scale, whatever the shape. */
        struct hth_rng rng;
        int early = 0;
        hth_rng_init(&rng, 30 + i);
        for (int n = 0; n < DRAWS; n++)
            early += (double)hth_life_draw(&life, &rng, 0, true) * 1e-6 < scale;
        assert_mean((double)early / DRAWS, 1 - exp(-1), 0.25);
    }
}

/* P(up longer than t) = exp(-integral of the rate), from any hour of the day. */
TEST(diurnal_sessions_follow_the_time_of_day)
{
    (void)state;
    struct hth_life life = HTH_LIFE_INIT;
    const double day = 86400, mean = 40000, pi = acos(-1.0);
    life.kind = HTH_LIFE_DIURNAL;
    life.up_us = life.down_us = (int64_t)(mean * 1e6);
    life.swing = 0.8;
    for (int hour = 0; hour < 24; hour += 6) {
        for (int up = 0; up < 2; up++) {
            double begin = hour * 3600.0, t = 30000, sign = up ? 1 : -1;
            double swung = life.swing * day / (2 * pi) *
                           (sin(2 * pi * (begin + t) / day) - sin(2 * pi * begin / day));
            double expected = exp(-(t + sign * swung) / mean);
            struct hth_rng rng;
            int longer = 0;
            hth_rng_init(&rng, 50 + (uint64_t)(hour * 2 + up));
            for (int n = 0; n < DRAWS; n++)
                longer += (double)hth_life_draw(&life, &rng, (int64_t)(begin * 1e6), up) > t * 1e6;
            assert_mean((double)longer / DRAWS, expected, expected * (1 - expected));
        }
    }
    /* A phase is a shift of the clock. */
    struct hth_rng a, b;
    struct hth_life shifted = life;
    shifted.phase_us = 6 * 3600 * HTH_US_PER_S;
    hth_rng_init(&a, 9);
    hth_rng_init(&b, 9);
    for (int n = 0; n < 100; n++)
        assert_int_equal(hth_life_draw(&life, &a, shifted.phase_us, true),
                         hth_life_draw(&shifted, &b, 0, true));
}

TEST(invalid_lives_are_refused)
{
    (void)state;
    struct hth_life life = HTH_LIFE_INIT;
    struct hth_rng rng;
    hth_rng_init(&rng, 1);
    life.up_us = 0;
    assert_ok(hth_life_check(&life)); /* ALWAYS needs no mean */
    assert_true(hth_life_draw(&life, &rng, 0, true) > INT64_MAX / 8);
    life.kind = HTH_LIFE_POISSON;
    assert_err(HTH_E_RANGE, hth_life_check(&life));
    life.up_us = 1;
    life.kind = HTH_LIFE_WEIBULL;
    life.shape = 0.01;
    assert_err(HTH_E_RANGE, hth_life_check(&life));
    life.shape = 1;
    assert_ok(hth_life_check(&life));
    life.kind = HTH_LIFE_DIURNAL;
    life.swing = 1.5;
    assert_err(HTH_E_RANGE, hth_life_check(&life));
    life.swing = (double)NAN;
    assert_err(HTH_E_RANGE, hth_life_check(&life));
}

/* ---- churn --------------------------------------------------------------------------------- */

/* In the long run a node is up for up / (up + down) of the time. */
TEST(share_of_downtime_matches_the_means)
{
    (void)state;
    enum { NODES = 200, SAMPLES = 200 };
    struct hth_world *w = hth_world_new(1, NULL);
    struct hth_churn_opts o = HTH_CHURN_OPTS_INIT;
    struct hth_churn_stats stats;
    o.peer.kind = HTH_LIFE_POISSON;
    o.peer.up_us = 30 * HTH_US_PER_S;
    o.peer.down_us = 10 * HTH_US_PER_S;
    struct hth_churn *churn = hth_churn_new(w, &o, 7);
    for (int i = 0; i < NODES; i++)
        hth_churn_add(churn, hth_world_node(w, "n", NULL));
    double down = 0;
    hth_world_run_for(w, 100 * HTH_US_PER_S);
    for (int i = 0; i < SAMPLES; i++) {
        hth_world_run_for(w, 20 * HTH_US_PER_S);
        hth_churn_stats(churn, &stats);
        down += stats.down;
    }
    /* A cycle lasts 40 s: samples of one node 20 s apart are nearly independent. */
    double share = down / (NODES * SAMPLES);
    assert_true(fabs(share - 0.25) < 5 * sqrt(0.25 * 0.75 * 2 / (NODES * SAMPLES)));
    assert_true(stats.deaths >= stats.returns && stats.deaths - stats.returns == stats.down);
    /* 200 nodes, 4100 s, one crash per node and 40 s: 20500, within five deviations of a
     * Poisson. */
    assert_true(fabs((double)stats.deaths - 20500) < 5 * sqrt(20500));
    hth_churn_stop(churn);
    hth_churn_stats(churn, &stats);
    assert_int_equal(stats.down, 0);
    uint64_t deaths = stats.deaths;
    hth_world_run_for(w, 1000 * HTH_US_PER_S);
    hth_churn_stats(churn, &stats);
    assert_int_equal(stats.deaths, deaths);
    hth_world_free(w);
    hth_churn_free(churn);
}

/* With under_way the share of nodes that are down is at its long-run value at once; without it all
 * nodes begin up. */
TEST(churn_under_way_starts_in_balance)
{
    (void)state;
    enum { NODES = 1200 };
    for (int under_way = 0; under_way < 2; under_way++) {
        struct hth_world *w = hth_world_new(1, NULL);
        struct hth_churn_opts o = HTH_CHURN_OPTS_INIT;
        struct hth_churn_stats stats;
        o.peer.kind = HTH_LIFE_POISSON;
        o.peer.up_us = 30 * HTH_US_PER_S;
        o.peer.down_us = 10 * HTH_US_PER_S;
        o.under_way = under_way;
        struct hth_churn *churn = hth_churn_new(w, &o, 7);
        for (int i = 0; i < NODES; i++)
            hth_churn_add(churn, hth_world_node(w, "n", NULL));
        hth_churn_stats(churn, &stats);
        double sigma = sqrt(0.25 * 0.75 * NODES);
        assert_true(fabs(stats.down - (under_way ? 0.25 * NODES : 0)) < 4 * sigma * under_way + 1);
        hth_world_run_for(w, 10 * HTH_US_PER_S);
        hth_churn_stats(churn, &stats);
        if (under_way)
            assert_true(fabs(stats.down - 0.25 * NODES) < 4 * sigma);
        hth_world_free(w);
        hth_churn_free(churn);
    }
}

TEST(nodes_of_a_provider_fail_together)
{
    (void)state;
    enum { NODES = 40, PROVIDERS = 4 };
    struct hth_world *w = hth_world_new(1, NULL);
    struct hth_churn_opts o = HTH_CHURN_OPTS_INIT;
    struct hth_churn_stats stats;
    o.provider.kind = HTH_LIFE_POISSON;
    o.provider.up_us = 100 * HTH_US_PER_S;
    o.provider.down_us = 50 * HTH_US_PER_S;
    o.providers = PROVIDERS;
    struct hth_churn *churn = hth_churn_new(w, &o, 3);
    for (int i = 0; i < NODES; i++)
        hth_churn_add(churn, hth_world_node(w, "n", NULL));
    bool seen[PROVIDERS] = {false};
    for (int t = 0; t < 1000; t++) {
        hth_world_run_for(w, HTH_US_PER_S);
        for (size_t i = 0; i < NODES; i++) {
            bool up = hth_node_is_up(hth_world_node_at(w, i));
            assert_int_equal(up, hth_node_is_up(hth_world_node_at(w, i % PROVIDERS)));
            seen[i % PROVIDERS] |= !up;
        }
    }
    for (int p = 0; p < PROVIDERS; p++)
        assert_true(seen[p]);
    hth_churn_stats(churn, &stats);
    assert_int_equal(stats.deaths, stats.outages * (NODES / PROVIDERS));
    assert_true(stats.outages > 10 && stats.outages < 60); /* 1000 s / 150 s * 4 = 27 */
    hth_world_free(w);
    hth_churn_free(churn);
}

/* Churn has its own generators: draws of the world do not change it. */
TEST(churn_depends_on_its_seed_only)
{
    (void)state;
    struct hth_churn_stats stats[3];
    for (int run = 0; run < 3; run++) {
        struct hth_world *w = hth_world_new(run == 1 ? 99 : 1, NULL);
        struct hth_churn_opts o = HTH_CHURN_OPTS_INIT;
        o.peer.kind = HTH_LIFE_WEIBULL;
        o.peer.up_us = o.peer.down_us = 10 * HTH_US_PER_S;
        struct hth_churn *churn = hth_churn_new(w, &o, run == 2 ? 6 : 5);
        for (int i = 0; i < 30; i++)
            hth_churn_add(churn, hth_world_node(w, "n", NULL));
        hth_world_run_for(w, 333 * HTH_US_PER_S);
        hth_churn_stats(churn, &stats[run]);
        hth_world_free(w);
        hth_churn_free(churn);
    }
    assert_memory_equal(&stats[0], &stats[1], sizeof(stats[0]));
    assert_true(stats[0].deaths != stats[2].deaths);
}

/* ---- traces -------------------------------------------------------------------------------- */

static enum hth_err parse(const char *text, struct hth_avail *out, char error[HTH_AVAIL_ERROR_MAX])
{
    enum hth_err err = hth_avail_parse(text, strlen(text), out, error);
    assert_int_equal(error[0] != '\0', err != HTH_OK);
    return err;
}

TEST(parser_reads_traces)
{
    (void)state;
    struct hth_avail a;
    char error[HTH_AVAIL_ERROR_MAX];
    assert_ok(parse("# a comment\r\npeer,on,off,up,down,speed\r\n"
                    "alice,0,10.5,1000,2000,1\nbob,3,,0,0,0.25\n\nalice,10.5,20,1,2,3.5",
                    &a, error));
    assert_int_equal(a.peer_count, 2);
    assert_int_equal(a.row_count, 3);
    assert_string_equal(a.peers[0].name, "alice");
    assert_int_equal(a.peers[0].count, 2);
    assert_int_equal(a.peers[0].rows[0].on_us, 0);
    assert_int_equal(a.peers[0].rows[0].off_us, 10500000);
    assert_true(a.peers[0].rows[0].down_bytes_per_s == 2000);
    assert_true(a.peers[0].rows[1].speed == 3.5);
    assert_int_equal(a.peers[1].rows[0].off_us, INT64_MAX);
    hth_avail_clear(&a);
    /* With the byte order mark that spreadsheets write. */
    assert_ok(parse("\xEF\xBB\xBFpeer,on,off,up,down,speed\nbob,3,,0,0,1\n", &a, error));
    assert_string_equal(a.peers[0].name, "bob");
    hth_avail_clear(&a);
}

TEST(errors_of_traces_name_line_and_column)
{
    (void)state;
#define HEAD "peer,on,off,up,down,speed\n"
    static const struct {
        const char *text;
        enum hth_err err;
        const char *says;
    } cases[] = {
        {"", HTH_E_MALFORMED, "no rows"},
        {HEAD, HTH_E_MALFORMED, "no rows"},
        {"peer,on,off\na,0,1\n", HTH_E_MALFORMED, "line 1: 'peer,on,off'; the first line must"},
        {HEAD "a,0,1,2,3\n", HTH_E_MALFORMED, "line 2: 5 columns"},
        {HEAD "a,0,1,2,3,4,5\n", HTH_E_MALFORMED, "line 2: more than 6 columns"},
        {HEAD "a b,0,1,2,3,4\n", HTH_E_MALFORMED, "peer is 'a b'"},
        {HEAD "a,-1,1,2,3,4\n", HTH_E_MALFORMED, "on is '-1'"},
        {HEAD "a,0x1,1,2,3,4\n", HTH_E_MALFORMED, "on is '0x1'"},
        {HEAD "a,1.2.3,4,2,3,4\n", HTH_E_MALFORMED, "on is '1.2.3'"},
        {HEAD "a,,4,2,3,4\n", HTH_E_MALFORMED, "on is ''"},
        {HEAD "a,nan,4,2,3,4\n", HTH_E_MALFORMED, "on is 'nan'"},
        {HEAD "a,0,1,0.0000000000001,3,4\n", HTH_E_RANGE, "up is 0.0000000000001 bytes a second"},
        {HEAD "a,0,1,2,0.99,4\n", HTH_E_RANGE, "down is 0.99 bytes a second"},
        {HEAD "a,2,1,2,3,4\n", HTH_E_RANGE, "off (1) must be after on (2)"},
        {HEAD "a,2000000000,,2,3,4\n", HTH_E_RANGE, "on is 2000000000"},
        {HEAD "a,0,1,2,3,0\n", HTH_E_RANGE, "speed is 0"},
        {HEAD "a,0,5,2,3,1\nb,0,1,1,1,1\na,4,6,2,3,1\n", HTH_E_RANGE, "line 4: a comes at 4"},
        {HEAD "a,0,,2,3,1\na,4,6,2,3,1\n", HTH_E_RANGE, "line 3: a comes at 4"},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_avail a;
        char error[HTH_AVAIL_ERROR_MAX];
        assert_err(cases[i].err, parse(cases[i].text, &a, error));
        if (strstr(error, cases[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", error, cases[i].says);
        hth_avail_clear(&a);
    }
}

/* Rows and peers beyond the limits are refused, and the memory is freed. */
TEST(size_of_traces_is_bounded)
{
    (void)state;
    struct hth_avail a;
    char error[HTH_AVAIL_ERROR_MAX];
    size_t line = 40, rows = HTH_AVAIL_ROWS_MAX + 1, at = strlen(HEAD);
    char *text = hth_calloc(rows * line + at, 1);
    memcpy(text, HEAD, at);
    for (size_t i = 0; i < rows; i++)
        at += (size_t)snprintf(text + at, line, "a,%zu,%zu,1,1,1\n", i, i + 1);
    assert_err(HTH_E_TOO_LARGE, hth_avail_parse(text, at, &a, error));
    assert_non_null(strstr(error, "more than 1048576 rows"));
    assert_int_equal(a.row_count, HTH_AVAIL_ROWS_MAX);
    hth_avail_clear(&a);
    at = strlen(HEAD);
    for (size_t i = 0; i <= HTH_AVAIL_PEERS_MAX; i++)
        at += (size_t)snprintf(text + at, line, "p%zu,0,1,1,1,1\n", i);
    assert_err(HTH_E_TOO_LARGE, hth_avail_parse(text, at, &a, error));
    assert_int_equal(a.peer_count, HTH_AVAIL_PEERS_MAX);
    hth_avail_clear(&a);
    hth_free(text);
    text = hth_calloc(HTH_AVAIL_BYTES_MAX + 1, 1);
    assert_err(HTH_E_TOO_LARGE, hth_avail_parse(text, HTH_AVAIL_BYTES_MAX + 1, &a, error));
    hth_avail_clear(&a);
    memset(text, 'x', 300);
    assert_err(HTH_E_MALFORMED, hth_avail_parse(text, 300, &a, error));
    hth_avail_clear(&a);
    hth_free(text);
}

TEST(nodes_follow_the_rows_of_a_trace)
{
    (void)state;
    struct hth_avail a;
    char error[HTH_AVAIL_ERROR_MAX];
    struct hth_device base = HTH_DEVICE_INIT;
    assert_ok(
        parse(HEAD "a,0,10,1000,2000,1\na,20,30,5,6,0.5\na,30,,7,8,2\nb,5,,0,0,1\n", &a, error));
    struct hth_world *w = hth_world_new(1, NULL);
    struct hth_churn_opts o = HTH_CHURN_OPTS_INIT;
    struct hth_churn *churn = hth_churn_new(w, &o, 1);
    for (size_t i = 0; i < 2; i++)
        hth_churn_play(churn, hth_world_node(w, "n", NULL), a.peers[i].rows, a.peers[i].count,
                       &base);
    for (int t = 0; t < 60; t++) {
        bool up[2] = {t < 10 || t >= 20, t >= 5};
        hth_world_run_until(w, t * HTH_US_PER_S + 1);
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(hth_node_is_up(hth_world_node_at(w, i)), up[i]);
    }
    struct hth_churn_stats stats;
    hth_churn_stats(churn, &stats);
    assert_int_equal(stats.deaths, 3); /* b before its first row, a twice */
    assert_int_equal(stats.returns, 3);
    hth_world_free(w);
    hth_churn_free(churn);
    hth_avail_clear(&a);
}
