/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_average.c: rounds of the production averager against the model: exact means without
 * failures, the effect of each kind of failure, replay from a seed, no objects left behind.
 */
#include "core/mem.h"
#include "scenarios/average.h"
#include "support/suite.h"

#include <math.h>
#include <string.h>

static struct hth_average_opts opts_of(uint32_t peers, const char *grid, double p_fail,
                                       uint32_t rounds)
{
    struct hth_average_opts o = HTH_AVERAGE_OPTS_INIT;
    o.base.method = HTH_PURE_MOSHPIT;
    o.base.peers = peers;
    assert_ok(hth_avg_shape_parse(grid, &o.base.shape));
    o.base.p_fail = p_fail;
    o.base.rounds = o.base.cap = rounds;
    o.dim = 64;
    o.pause_us = HTH_US_PER_S;
    return o;
}

/* Free with hth_free. */
static double *run(const struct hth_average_opts *o, uint64_t index,
                   struct hth_average_report *report)
{
    double *row = hth_new_array(double, hth_average_row_len(o));
    assert_ok(hth_sim_average(o, index, row, report));
    assert_true(report->leaks == 0);
    return row;
}

static double at(const struct hth_average_opts *o, const double *row, enum hth_average_metric m,
                 uint32_t t)
{
    return row[m * (size_t)o->base.rounds + t];
}

/* A full grid without failures is exact after as many rounds as it has axes; a group of four sends
 * 2 (4 - 1) / 4 vectors a peer. */
TEST(calm_grid_is_exact_after_one_round_per_axis)
{
    struct hth_average_opts o = opts_of(16, "4x4", 0, 3);
    struct hth_average_report r;
    double *row = run(&o, 0, &r);
    (void)state;
    assert_true(at(&o, row, HTH_AVERAGE_MSE, 0) > 0.1 && at(&o, row, HTH_AVERAGE_MSE, 0) < 0.4);
    assert_true(at(&o, row, HTH_AVERAGE_MSE, 1) < 1e-12);
    assert_true(at(&o, row, HTH_AVERAGE_VARIANCE, 2) < 1e-12);
    for (uint32_t t = 0; t < 3; t++) {
        assert_close(at(&o, row, HTH_AVERAGE_VECTORS, t), 1.5, 1e-12, 0);
        assert_true(at(&o, row, HTH_AVERAGE_SUCCESS, t) == 1);
        assert_true(at(&o, row, HTH_AVERAGE_FRACTION, t) == 1);
        assert_true(at(&o, row, HTH_AVERAGE_MEMBERS, t) == 4);
        assert_true(at(&o, row, HTH_AVERAGE_BYTES, t) > 1.5 * 64 * 4);
        /* round trips of 50 ms, and no waiting for absent peers */
        assert_true(at(&o, row, HTH_AVERAGE_SECONDS, t) > 0.05);
        assert_true(at(&o, row, HTH_AVERAGE_SECONDS, t) < 0.5);
    }
    assert_close(row[HTH_AVERAGE_METRICS * 3 + HTH_PURE_REACHED_1E9], 2, 1e-12, 0);
    assert_true(row[HTH_AVERAGE_METRICS * 3 + HTH_PURE_UNREACHED] == 0);
    assert_true(r.offers == 48 && r.failed == 0 && r.deaths == 0 && r.rounds == 3);
    hth_free(row);
}

/* A peer that is not at the target by the cap counts as the cap, however many rounds are listed. */
TEST(unreached_targets_count_as_the_cap)
{
    struct hth_average_opts o = opts_of(9, "3x3", 0, 3);
    struct hth_average_report r;
    (void)state;
    o.base.cap = 1;
    double *row = run(&o, 0, &r), *end = row + HTH_AVERAGE_METRICS * 3;
    assert_int_equal(r.rounds, 3);
    for (int k = 0; k < 2; k++) {
        assert_close(end[HTH_PURE_REACHED + k], 1, 1e-12, 0);
        assert_close(end[HTH_PURE_UNREACHED + k], 1, 1e-12, 0);
    }
    hth_free(row);
}

TEST(same_seed_gives_the_same_row)
{
    struct hth_average_opts o = opts_of(9, "3x3", 0.2, 3);
    struct hth_average_report a, b, c;
    (void)state;
    o.base.failure = HTH_PURE_CRASH;
    double *first = run(&o, 1, &a), *again = run(&o, 1, &b), *other = run(&o, 2, &c);
    assert_memory_equal(first, again, hth_average_row_len(&o) * sizeof(double));
    assert_true(a.hash == b.hash && a.hash != c.hash);
    assert_memory_not_equal(first, other, hth_average_row_len(&o) * sizeof(double));
    hth_free(first);
    hth_free(again);
    hth_free(other);
}

/* Groups keep the sum, whichever peers are absent; and absent peers return. */
TEST(groups_keep_the_sum_with_absent_peers)
{
    struct hth_average_opts o = opts_of(16, "4x4", 0.15, 20);
    struct hth_average_report r;
    (void)state;
    double *row = run(&o, 0, &r);
    for (uint32_t t = 0; t < 20; t++)
        assert_close(at(&o, row, HTH_AVERAGE_MSE, t), at(&o, row, HTH_AVERAGE_VARIANCE, t), 1e-6,
                     1e-12);
    assert_true(r.offers > 20 * 16 * 0.7 && r.offers < 20 * 16);
    assert_true(at(&o, row, HTH_AVERAGE_VARIANCE, 19) < 1e-8);
    hth_free(row);
}

struct seen {
    uint32_t dies, starts, rounds;
};

static void on_event(void *arg, int64_t now_us, const char *node, const char *event,
                     const char *detail)
{
    struct seen *s = arg;
    (void)detail;
    assert_true(now_us > 0);
    s->dies += strcmp(event, "dies") == 0;
    s->starts += strcmp(event, "starts") == 0;
    s->rounds += node[0] == '\0' && strcmp(event, "round begins") == 0;
}

/* A crash costs shares, not rounds: the others have an average all the same, and the crashed peer
 * takes part in the next round. */
TEST(crash_costs_shares_not_rounds)
{
    struct hth_average_opts o = opts_of(16, "4x4", 0.1, 8);
    struct hth_average_report r;
    struct seen seen = {0};
    (void)state;
    o.base.failure = HTH_PURE_CRASH;
    o.on_event = on_event;
    o.arg = &seen;
    double *row = run(&o, 0, &r);
    assert_true(r.deaths > 4 && r.deaths == seen.dies && seen.starts == seen.dies);
    assert_int_equal(seen.rounds, 8);
    assert_true(r.offers == 8 * 16);
    assert_true(r.failed <= 4);
    assert_true(at(&o, row, HTH_AVERAGE_VARIANCE, 7) < 1e-3);
    hth_free(row);
}

/* A tenth of the speed costs time and nothing else. */
TEST(slow_peers_cost_only_time)
{
    struct hth_average_opts o = opts_of(8, "8", 0, 2);
    struct hth_average_report r;
    (void)state;
    o.dim = 32768;
    o.line_bytes_per_s = 2.5e6;
    double *calm = run(&o, 0, &r);
    o.base.failure = HTH_PURE_SLOW;
    o.base.p_fail = 0.2;
    double *slow = run(&o, 0, &r);
    assert_true(r.failed == 0);
    assert_true(at(&o, slow, HTH_AVERAGE_MSE, 0) < 1e-12);
    assert_true(at(&o, slow, HTH_AVERAGE_SECONDS, 0) > at(&o, calm, HTH_AVERAGE_SECONDS, 0) + 0.15);
    hth_free(calm);
    hth_free(slow);
}

/* Each side averages separately for two rounds. Then the sides are drawn again, so all agree in the
 * end. */
TEST(partitioned_sides_average_separately)
{
    struct hth_average_opts o = opts_of(8, "8", 0.4, 8);
    struct hth_average_report r;
    (void)state;
    o.base.failure = HTH_PURE_PARTITION;
    o.base.hold = 2;
    double *row = run(&o, 0, &r);
    double first = at(&o, row, HTH_AVERAGE_VARIANCE, 0);
    assert_true(first > 1e-3 && first < 0.9);
    assert_close(at(&o, row, HTH_AVERAGE_VARIANCE, 1), first, 0.5, 0);
    assert_true(at(&o, row, HTH_AVERAGE_VARIANCE, 7) < first / 4);
    assert_true(at(&o, row, HTH_AVERAGE_MEMBERS, 0) < 8);
    hth_free(row);
}

/* One group of all begins only when no peer is missing. */
TEST(allreduce_waits_for_all_peers)
{
    struct hth_average_opts o = opts_of(6, "6", 0.15, 6);
    struct hth_average_report r;
    uint32_t done = 0;
    (void)state;
    o.base.method = HTH_PURE_ALLREDUCE;
    double *row = run(&o, 0, &r);
    for (uint32_t t = 0; t < 6; t++) {
        double success = at(&o, row, HTH_AVERAGE_SUCCESS, t);
        assert_true(success == 0 || success == 1);
        assert_true(success == 0 || at(&o, row, HTH_AVERAGE_MEMBERS, t) == 6);
        done += success == 1;
        if (done == 0)
            assert_true(at(&o, row, HTH_AVERAGE_MSE, t) > 0.5);
        else
            assert_true(at(&o, row, HTH_AVERAGE_MSE, t) < 1e-12);
    }
    assert_true(done > 0 && done < 6);
    hth_free(row);
}

TEST(invalid_options_are_refused)
{
    struct hth_average_opts good = opts_of(16, "4x4", 0, 2), bad[11];
    struct hth_average_report r;
    double row[64];
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        bad[i] = good;
    bad[0].base.method = HTH_PURE_GOSSIP;
    bad[1].base.peers = 1;
    bad[2].base.peers = 17;
    bad[3].base.peers = HTH_AVERAGE_PEERS_MAX + 1;
    bad[4].dim = 0;
    bad[5].dim = HTH_AVERAGE_DIM_MAX + 1;
    bad[6].base.method = HTH_PURE_ALLREDUCE; /* more peers than one group holds */
    bad[7].pause_us = -1;
    bad[8].line_bytes_per_s = -1;
    bad[9].heal_us = -1;
    bad[10].heal_us = bad[10].pause_us + 1;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        assert_err(HTH_E_CONFIG, hth_sim_average(&bad[i], 0, row, &r));
}
