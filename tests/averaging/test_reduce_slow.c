/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reduction on slow and long lines: nobody who lives is given up for what its line does, and
 * who is dead is given up as soon as on fast ones.
 */
#include "averaging/reduce_swarm.h"

#include "core/mem.h"

#define MBIT   1e6
#define VICTIM 1u
#define ALL    UINT32_MAX

/* n members with lines of so many Mbit/s, that all know. */
static void line_swarm(struct reduce_swarm *s, uint64_t seed, uint32_t n, uint64_t count,
                       double mbit)
{
    s->world_opts.device.up_bytes_per_s = s->world_opts.device.down_bytes_per_s = mbit * MBIT / 8;
    swarm_new(s, seed, n, count);
    for (uint32_t i = 0; i < n; i++)
        s->member[i].bandwidth = mbit * MBIT;
}

static void check_whole(const struct reduce_swarm *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const struct hth_reduce_result *r = &s->peer[i].result;
        assert_int_equal(s->peer[i].results, 1);
        assert_ok(r->err);
        assert_int_equal(r->dropped, 0);
        assert_close(r->weight_fraction, 1, 1e-9, 0);
    }
}

/* One reducer that seven send to, all at 20 and 50 Mbit/s: what they send queues for a while at its
 * line, and nothing can be answered before. */
static void test_one_reducer(void **state)
{
    static const double mbit[] = {20, 50};
    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(mbit); k++) {
        struct reduce_swarm s;
        swarm_defaults(&s);
        s.world_opts.ghost = true;
        s.timeout_us = 120 * HTH_US_PER_S;
        line_swarm(&s, 1 + k, 8, 1u << 20, mbit[k]);
        for (uint32_t i = 1; i < 8; i++)
            s.member[i].bandwidth = 0;
        swarm_start(&s);
        swarm_run(&s);
        check_whole(&s);
        /* Seven vectors go through its line, each way. */
        double least_s = 7.0 * 32 * (1u << 20) / (mbit[k] * MBIT);
        assert_close((double)s.peer[1].result.took_us / HTH_US_PER_S, least_s, 0.08, 0);
        swarm_free(&s);
    }
}

/* Frozen at any time of a round over lines of 20 Mbit/s: the others end a second later at most, and
 * give up on nobody else. */
static void test_frozen(void **state)
{
    enum { COUNT = 1 << 18 };
    int64_t calm = 0;
    (void)state;
    for (int k = 0; k < 8; k++) {
        struct reduce_swarm s;
        int64_t at = k == 0 ? 0 : calm * (k - 1) / 6 + 20 * HTH_US_PER_MS;
        swarm_defaults(&s);
        line_swarm(&s, 40 + (uint64_t)k, 4, COUNT, 20);
        swarm_start(&s);
        if (k > 0) {
            hth_world_run_for(s.world, at);
            hth_node_crash(s.peer[VICTIM].node, HTH_CRASH_SILENT);
        }
        swarm_run(&s);
        for (uint32_t i = 0; i < 4; i++) {
            const struct hth_reduce_result *r = &s.peer[i].result;
            if (k == 0)
                calm = HTH_MAX(calm, r->took_us);
            if (k > 0 && i == VICTIM)
                continue;
            assert_ok(r->err);
            if (r->took_us > HTH_MAX(calm, at) + HTH_US_PER_S)
                fail_msg("frozen after %lld ms: member %u took %lld ms, a calm round %lld",
                         (long long)at / 1000, i, (long long)r->took_us / 1000,
                         (long long)calm / 1000);
            for (uint32_t m = 0; m < 4; m++) {
                if (k > 0 && m == VICTIM)
                    continue;
                assert_int_equal(r->fates[m].as_sender, HTH_REDUCE_DROP_NONE);
                assert_int_equal(r->fates[m].as_reducer, HTH_REDUCE_DROP_NONE);
            }
        }
        if (k == 0)
            check_whole(&s);
        swarm_free(&s);
    }
}

/* Round trips of 300 and 500 ms: the first round begins with dials and handshakes that take longer
 * than the silence that means dead, the second is over connections that are there. */
static void test_far(void **state)
{
    static const int64_t one_way_us[] = {150000, 250000};
    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(one_way_us); k++) {
        struct reduce_swarm s;
        swarm_defaults(&s);
        s.world_opts.link.latency_us = one_way_us[k];
        line_swarm(&s, 60 + k, 4, 200000, 100);
        for (int round = 0; round < 2; round++) {
            swarm_start(&s);
            swarm_run(&s);
            check_whole(&s);
            swarm_next(&s);
        }
        swarm_free(&s);
    }
}

/* One that is far from the others, who are near each other: 300 ms round trips. */
static void test_far_newcomer(void **state)
{
    struct reduce_swarm s;
    struct hth_link far = HTH_LINK_INIT;
    (void)state;
    swarm_defaults(&s);
    line_swarm(&s, 70, 4, 200000, 100);
    far.latency_us = 150 * HTH_US_PER_MS;
    for (uint32_t i = 0; i < 4; i++) {
        if (i == VICTIM)
            continue;
        hth_world_link(s.world, s.peer[VICTIM].node, s.peer[i].node, &far);
        hth_world_link(s.world, s.peer[i].node, s.peer[VICTIM].node, &far);
    }
    swarm_start(&s);
    swarm_run(&s);
    check_whole(&s);
    swarm_free(&s);
}

static void cut_all(struct reduce_swarm *s, int64_t us)
{
    for (uint32_t i = 0; i < s->n; i++)
        hth_node_set_side(s->peer[i].node, i);
    hth_world_run_for(s->world, us);
    for (uint32_t i = 0; i < s->n; i++)
        hth_node_set_side(s->peer[i].node, 0);
}

/* All pause longer and longer, and nobody is given up for it; but nobody's silence may take three
 * times the longest pause where that is more than silence_thin_us, and a round trip. */
static void test_longest_silence(void **state)
{
    static const int64_t pauses_ms[] = {100, 400, 900, 1500};
    struct hth_reducer_opts o = HTH_REDUCER_OPTS_INIT;
    struct hth_reducer_stats stats;
    struct hth_rpc_peer_info info;
    struct reduce_swarm s;
    (void)state;
    swarm_defaults(&s);
    s.world_opts.ghost = true;
    s.timeout_us = 120 * HTH_US_PER_S;
    line_swarm(&s, 75, 4, 1 << 21, 5);
    swarm_start(&s);
    for (size_t k = 0; k < HTH_ARRAY_LEN(pauses_ms); k++) {
        swarm_for(&s, HTH_US_PER_S);
        cut_all(&s, pauses_ms[k] * HTH_US_PER_MS);
    }
    swarm_for(&s, HTH_US_PER_S);
    for (uint32_t i = 0; i < s.n; i++) {
        hth_reducer_stats(s.peer[i].reducer, &stats);
        assert_int_equal(stats.senders_dropped + stats.reducers_failed, 0);
    }
    hth_node_crash(s.peer[VICTIM].node, HTH_CRASH_SILENT);
    do {
        swarm_for(&s, HTH_US_PER_MS);
        hth_reducer_stats(s.peer[0].reducer, &stats);
    } while (stats.senders_dropped == 0);
    assert_ok(hth_rpc_peer_info(s.peer[0].rpc, &s.member[VICTIM].id, &info));
    int64_t silent_us = hth_world_now_us(s.world) - info.received_us - info.rtt_us;
    assert_in_range(silent_us, 3 * HTH_US_PER_S, 3 * HTH_US_PER_S + o.silence_min_us / 2);
    swarm_run(&s);
    swarm_free(&s);
}

/* Dead before anybody was connected, and nobody else to compare with: a second more, no longer. */
static void test_dead_stranger(void **state)
{
    struct reduce_swarm s;
    (void)state;
    swarm_defaults(&s);
    line_swarm(&s, 80, 2, 100000, 100);
    hth_node_crash(s.peer[VICTIM].node, HTH_CRASH_SILENT);
    swarm_start(&s);
    swarm_run(&s);
    const struct hth_reduce_result *r = &s.peer[0].result;
    assert_ok(r->err);
    assert_int_equal(r->fates[VICTIM].as_reducer, HTH_REDUCE_DROP_SILENT);
    assert_in_range(r->took_us, 700 * HTH_US_PER_MS, 1800 * HTH_US_PER_MS);
    swarm_free(&s);
}

/* ---- two rounds at once -------------------------------------------------------------------- */

struct other {
    uint32_t done, dropped;
    double fraction;
};

static void on_other(void *arg, const struct hth_reduce_result *result)
{
    struct other *o = arg;
    assert_ok(result->err);
    o->done++;
    o->dropped += result->dropped;
    o->fraction = fmin(o->fraction, result->weight_fraction);
}

static bool both_done(void *arg)
{
    struct other *o = arg;
    return o->done == 24;
}

/* DeDLOC's hybrid set-up, equal shares: lines that do nothing else for ten seconds, in which one
 * round has to wait for the other's bytes. */
static void test_two_rounds(void **state)
{
    struct reduce_swarm s;
    struct other other = {.fraction = 1};
    (void)state;
    swarm_defaults(&s);
    s.world_opts.ghost = true;
    s.timeout_us = 120 * HTH_US_PER_S;
    line_swarm(&s, 90, 24, 17700000, 1000);
    for (uint32_t i = 8; i < 24; i++) {
        struct hth_device slow = s.world_opts.device;
        slow.up_bytes_per_s = slow.down_bytes_per_s = 200 * MBIT / 8;
        hth_node_set_device(s.peer[i].node, &slow);
    }
    swarm_start(&s);
    for (uint32_t i = 0; i < 24; i++) {
        struct hth_reduce_opts opts = {
            .group = {{99}},
            .members = s.member,
            .member_count = 24,
            .self = i,
            .values = s.peer[i].values,
            .count = s.count,
            .timeout_us = s.timeout_us,
            .done = on_other,
            .arg = &other,
        };
        assert_ok(hth_reduce_start(s.peer[i].reducer, &opts, NULL));
    }
    swarm_run(&s);
    assert_true(hth_world_run_until_true(s.world, both_done, &other, s.timeout_us));
    check_whole(&s);
    assert_int_equal(other.dropped, 0);
    assert_close(other.fraction, 1, 1e-9, 0);
    swarm_free(&s);
}

/* ---- one line far slower than the others
 * ------------------------------------------------------ */

struct cost {
    double took_s;    /* the longest of the others */
    double fraction;  /* of the weight, their least */
    double own;       /* of the slow one's */
    uint32_t refused; /* who refused the slow one's parts, as it says */
    enum hth_reduce_drop sender, reducer;
};

/* Eight with 100 Mbit/s, of whom one has `mbit` and says that it has `said`; 30 s, as the averager
 * gives a round. */
static struct cost with_one_slow(double mbit, double said, uint64_t count)
{
    struct cost cost = {.fraction = 1};
    struct hth_device slow;
    struct reduce_swarm s;

    swarm_defaults(&s);
    s.world_opts.ghost = true;
    s.timeout_us = 30 * HTH_US_PER_S;
    s.share_max = 2;
    line_swarm(&s, 95, 8, count, 100);
    for (uint32_t i = 0; i < 8; i++)
        s.member[i].weight = 1;
    slow = s.world_opts.device;
    slow.up_bytes_per_s = slow.down_bytes_per_s = mbit * MBIT / 8;
    hth_node_set_device(s.peer[VICTIM].node, &slow);
    s.member[VICTIM].bandwidth = said * MBIT;
    swarm_start(&s);
    swarm_run(&s);
    for (uint32_t i = 0; i < 8; i++) {
        const struct hth_reduce_result *r = &s.peer[i].result;

        assert_ok(r->err);
        if (i == VICTIM) {
            cost.own = r->weight_fraction;
            for (uint32_t m = 0; m < 8; m++)
                cost.refused += r->fates[m].as_reducer == HTH_REDUCE_DROP_REFUSED;
            continue;
        }
        cost.took_s = fmax(cost.took_s, (double)r->took_us / HTH_US_PER_S);
        cost.fraction = fmin(cost.fraction, r->weight_fraction);
        cost.sender = HTH_MAX(cost.sender, r->fates[VICTIM].as_sender);
        cost.reducer = HTH_MAX(cost.reducer, r->fates[VICTIM].as_reducer);
        for (uint32_t m = 0; m < 8; m++)
            assert_true(m == VICTIM || r->fates[m].as_sender + r->fates[m].as_reducer == 0);
    }
    print_message("%8.3g Mbit/s, says %6.3g, %4.3g MB: others %.2f s, fraction %.3f, its own %.3f, "
                  "dropped as sender: %s, as reducer: %s\n",
                  mbit, said, (double)count * 4e-6, cost.took_s, cost.fraction, cost.own,
                  hth_reduce_drop_name(cost.sender), hth_reduce_drop_name(cost.reducer));
    swarm_free(&s);
    return cost;
}

static bool is_whole(struct cost c)
{
    return c.fraction > 1 - 1e-9 && c.own > 1 - 1e-9;
}

/* A round of 16.8 MB takes 2.4 s where all lines have 100 Mbit/s. Down to a fifth of that a slow
 * one is waited for, whatever it says of itself. Below a tenth it is given up when it has held up
 * the others for five times as long as a round takes, 13.4 s; nobody else is, and what it sent
 * until then counts. One that would need twice that is given up soon after two rounds, 5.4 s, as
 * more waiting would not help. Its parts come when the others have ended long since, which it does
 * not take for a refusal. */
static void test_one_slow_line(void **state)
{
    enum { COUNT = 1 << 22 };
    static const double waited[][2] = {{100, 100}, {20, 20}, {20, 100}, {100, 1}, {100, 0.01}};
    static const double given_up[][2] = {{8, 8}, {10, 100}};
    static const double hopeless[][2] = {{5, 5}, {1, 1}, {1, 100}, {1, 1e6}};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(waited); i++) {
        struct cost c = with_one_slow(waited[i][0], waited[i][1], COUNT);

        assert_true(is_whole(c));
        assert_true(c.took_s < (waited[i][0] == 100 ? 3 : 13));
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(given_up); i++) {
        struct cost c = with_one_slow(given_up[i][0], given_up[i][1], COUNT);

        assert_int_equal(c.sender, HTH_REDUCE_DROP_SLOW);
        assert_true(c.took_s > 13.2 && c.took_s < 15.5);
        assert_true(c.fraction > 0.875 && c.fraction < 1);
        assert_int_equal(c.refused, 0);
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(hopeless); i++) {
        struct cost c = with_one_slow(hopeless[i][0], hopeless[i][1], COUNT);

        assert_int_equal(c.sender, HTH_REDUCE_DROP_SLOW);
        assert_true(c.took_s < 9);
        assert_true(c.fraction > (hopeless[i][1] > 1 ? 0.65 : 0.87));
        assert_int_equal(c.refused, 0);
    }
}

/* Between those who are waited for and those who are not there is no edge on which some bytes more
 * or less decide: what a line costs the others goes down from 13.4 s to 5.4 s of waiting while what
 * it needs goes up from one and a half to twice 13.4 s, which are lines of 6.7 to 5 Mbit/s: half a
 * second for a tenth of one. */
static void test_no_edge(void **state)
{
    struct cost last = {0};
    (void)state;
    for (int tenths = 70; tenths >= 46; tenths--) {
        struct cost c = with_one_slow(tenths / 10.0, tenths / 10.0, 1 << 22);

        if (tenths < 70) {
            assert_true(fabs(c.took_s - last.took_s) < 1);
            assert_true(fabs(c.fraction - last.fraction) < 0.01);
            assert_true(fabs(c.own - last.own) < 0.05);
        }
        last = c;
    }
}

/* How long seven with 1 Gbit/s take for 64 MB beside one that is 100 ms away, has `mbit` and says
 * that it has `said`; mbit 0: without it. */
static double others_beside(double mbit, double said)
{
    struct hth_link far = HTH_LINK_INIT;
    struct hth_device slow;
    struct reduce_swarm s;
    double took_s = 0;

    swarm_defaults(&s);
    s.world_opts.ghost = true;
    s.timeout_us = 30 * HTH_US_PER_S;
    s.share_max = 2;
    line_swarm(&s, 97, 8, 1u << 24, 1000);
    far.latency_us = 100 * HTH_US_PER_MS;
    slow = s.world_opts.device;
    slow.up_bytes_per_s = slow.down_bytes_per_s = HTH_MAX(mbit, 1) * MBIT / 8;
    hth_node_set_device(s.peer[VICTIM].node, &slow);
    for (uint32_t i = 0; i < 8; i++) {
        s.member[i].weight = 1;
        if (i == VICTIM)
            continue;
        hth_world_link(s.world, s.peer[VICTIM].node, s.peer[i].node, &far);
        hth_world_link(s.world, s.peer[i].node, s.peer[VICTIM].node, &far);
    }
    s.member[VICTIM].bandwidth = said * MBIT;
    s.absent = mbit == 0 ? 1u << VICTIM : 0;
    swarm_start(&s);
    swarm_run(&s);
    swarm_next(&s); /* now all are connected */
    swarm_start(&s);
    swarm_run(&s);
    for (uint32_t i = 0; i < 8; i++) {
        const struct hth_reduce_result *r = &s.peer[i].result;

        if (i == VICTIM)
            continue;
        assert_ok(r->err);
        took_s = fmax(took_s, (double)r->took_us / HTH_US_PER_S);
    }
    print_message("beside %g Mbit/s that says %g: %.2f s\n", mbit, said, took_s);
    swarm_free(&s);
    return took_s;
}

/* Neither a line of a thousandth nor what its owner says of it slows the others. */
static void test_claims_slow_nobody(void **state)
{
    static const double cases[][2] = {{1000, 1000}, {1000, 1}, {1000, 150}, {1000, 600},
                                      {1, 1},       {1, 150},  {1, 1000},   {1, 1e6}};
    double calm = others_beside(0, 1000), most = 0;

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        most = fmax(most, others_beside(cases[i][0], cases[i][1]));
    assert_true(most <= 1.3 * calm);
}

static void put_off(void *arg, struct hth_rpc_request *req)
{
    (void)arg;
    hth_rpc_refuse(req, HTH_E_BUSY, HTH_US_PER_MS, "soon, soon");
}

/* One sends its parts like the others and puts off whoever sends it any: that its line moves bytes
 * helps it no more than a slow one. `alone`: no other reduces, to compare with. */
static void check_one_puts_off(bool alone)
{
    struct reduce_swarm s;

    swarm_defaults(&s);
    s.timeout_us = 30 * HTH_US_PER_S;
    s.share_max = alone ? 0 : 2;
    line_swarm(&s, 96, 8, 1u << 19, 100);
    for (uint32_t i = 0; alone && i < 8; i++)
        s.member[i].bandwidth = i == VICTIM ? 100 * MBIT : 0;
    hth_rpc_serve(s.peer[VICTIM].rpc, HTH_REDUCE_METHOD, put_off, NULL);
    swarm_start(&s);
    swarm_run(&s);
    for (uint32_t i = 0; i < 8; i++) {
        const struct hth_reduce_result *r = &s.peer[i].result;

        if (i == VICTIM)
            continue;
        assert_ok(r->err);
        assert_true(r->took_us < 3 * HTH_US_PER_S);
        assert_int_equal(r->fates[VICTIM].as_sender, HTH_REDUCE_DROP_NONE);
        assert_int_equal(r->fates[VICTIM].as_reducer, HTH_REDUCE_DROP_REFUSED);
        for (uint32_t m = 0; m < 8; m++)
            assert_true(m == VICTIM || r->fates[m].as_sender + r->fates[m].as_reducer == 0);
    }
    swarm_free(&s);
}

static void test_one_puts_off(void **state)
{
    (void)state;
    check_one_puts_off(false);
    check_one_puts_off(true);
}

/* 10 Mbit/s and 300 ms: before the first byte of somebody is here its line has had turns for all
 * others. Nobody is taken for dead for that. */
static void test_far_and_thin(void **state)
{
    const int64_t way_us = 150 * HTH_US_PER_MS;

    (void)state;
    for (uint64_t seed = 5; seed < 8; seed++) {
        struct reduce_swarm s;

        swarm_defaults(&s);
        s.world_opts.device.up_bytes_per_s = s.world_opts.device.down_bytes_per_s = 1.25e6;
        s.world_opts.link.latency_us = way_us;
        s.world_opts.link.jitter = HTH_JITTER_EXPONENTIAL;
        s.world_opts.link.jitter_us = way_us / 20;
        swarm_new(&s, seed, 4, 1u << 18);
        for (uint32_t round = 0; round < 3; round++) {
            if (round > 0)
                swarm_next(&s);
            peer_start(&s.peer[0]); /* it led, the others hear of it later */
            hth_world_run_for(s.world, way_us);
            for (uint32_t i = 1; i < s.n; i++)
                peer_start(&s.peer[i]);
            swarm_run(&s);
            for (uint32_t i = 0; i < s.n; i++) {
                assert_ok(s.peer[i].result.err);
                assert_int_equal(s.peer[i].result.dropped, 0);
            }
        }
        swarm_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far_and_thin),
        cmocka_unit_test(test_one_slow_line),
        cmocka_unit_test(test_no_edge),
        cmocka_unit_test(test_claims_slow_nobody),
        cmocka_unit_test(test_one_reducer),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_far),
        cmocka_unit_test(test_far_newcomer),
        cmocka_unit_test(test_longest_silence),
        cmocka_unit_test(test_dead_stranger),
        cmocka_unit_test(test_two_rounds),
        cmocka_unit_test(test_one_puts_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
