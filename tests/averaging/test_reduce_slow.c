/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reduction on slow and long lines: nobody who lives is given up for what all lines do, few
 * slow ones do not hold up the others, and who is dead is given up as soon as on fast ones.
 */
#include "averaging/reduce_swarm.h"
#include "support/suite.h"

#include "core/mem.h"

#define MBIT   1e6
#define MS     HTH_US_PER_MS
#define VICTIM 1u

/* n members with lines of so many Mbit/s, that all know. */
static void line_swarm(struct reduce_swarm *s, uint64_t seed, uint32_t n, uint64_t count,
                       double mbit)
{
    s->world_opts.device.up_bytes_per_s = s->world_opts.device.down_bytes_per_s = mbit * MBIT / 8;
    swarm_new(s, seed, n, count);
    for (uint32_t i = 0; i < n; i++)
        s->member[i].bandwidth = mbit * MBIT;
}

static void part_from_others(struct reduce_swarm *s, int64_t latency_us)
{
    struct hth_link far = HTH_LINK_INIT;
    far.latency_us = latency_us;
    for (uint32_t i = 0; i < s->n; i++) {
        if (i == VICTIM)
            continue;
        hth_world_link(s->world, s->peer[VICTIM].node, s->peer[i].node, &far);
        hth_world_link(s->world, s->peer[i].node, s->peer[VICTIM].node, &far);
    }
}

/* Rounds in which nothing happens but that lines are slow, or long: all have all in them. */
TEST(all_are_waited_for)
{
    static const struct {
        uint32_t n, floats;
        double mbit, jitter;
        int64_t way_ms;
        bool one_reduces; /* what all send queues at its line */
        bool one_is_far;  /* by that much; the others are near */
    } cases[] = {{8, 1 << 20, 20, 0, 1, true, false},    {8, 1 << 20, 50, 0, 1, true, false},
                 {4, 200000, 100, 0, 150, false, false}, {4, 200000, 100, 0, 250, false, false},
                 {4, 200000, 100, 0, 150, false, true},  {4, 1 << 18, 10, 0.05, 150, false, false}};
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct reduce_swarm s;
        swarm_defaults(&s);
        s.world_opts.ghost = true;
        s.timeout_us = 120 * HTH_US_PER_S;
        if (!cases[k].one_is_far)
            s.world_opts.link.latency_us = cases[k].way_ms * MS;
        s.world_opts.link.jitter = HTH_JITTER_EXPONENTIAL;
        s.world_opts.link.jitter_us = (int64_t)(cases[k].jitter * (double)(cases[k].way_ms * MS));
        line_swarm(&s, 1 + k, cases[k].n, cases[k].floats, cases[k].mbit);
        for (uint32_t i = 1; i < s.n && cases[k].one_reduces; i++)
            s.member[i].bandwidth = 0;
        if (cases[k].one_is_far)
            part_from_others(&s, cases[k].way_ms * MS);
        for (int round = 0; round < 2; round++) { /* the first one begins with dials */
            peer_start(&s.peer[0]);               /* it led, the others hear of it later */
            hth_world_run_for(s.world, s.world_opts.link.latency_us);
            for (uint32_t i = 1; i < s.n; i++)
                peer_start(&s.peer[i]);
            swarm_run(&s);
            for (uint32_t i = 0; i < s.n; i++)
                check_calm(&s.peer[i]);
            double least_s = (s.n - 1.0) * 32 * cases[k].floats / (cases[k].mbit * MBIT);
            if (cases[k].one_reduces)
                assert_close((double)s.peer[1].result.took_us / HTH_US_PER_S, least_s, 0.08, 0);
            swarm_next(&s);
        }
        swarm_free(&s);
    }
}

/* Frozen at any time of a round over lines of 20 Mbit/s: the others end a second later at most, and
 * give up on nobody else. */
TEST(frozen)
{
    int64_t calm = 0;
    for (int k = 0; k < 6; k++) {
        struct reduce_swarm s;
        int64_t at = k == 0 ? 0 : calm * (k - 1) / 4 + 20 * MS;
        swarm_defaults(&s);
        s.world_opts.ghost = true;
        line_swarm(&s, 40 + (uint64_t)k, 4, 1 << 18, 20);
        swarm_start(&s);
        if (k > 0) {
            hth_world_run_for(s.world, at);
            hth_node_crash(s.peer[VICTIM].node, HTH_CRASH_SILENT);
        }
        swarm_run(&s);
        for (uint32_t i = 0; i < 4; i++) {
            const struct hth_reduce_result *r = &s.peer[i].result;
            if (k > 0 && i == VICTIM)
                continue;
            check_lost(&s.peer[i], k > 0 ? VICTIM : 4);
            calm = k == 0 ? HTH_MAX(calm, r->took_us) : calm;
            if (r->took_us > HTH_MAX(calm, at) + HTH_US_PER_S)
                fail_msg("frozen after %lld ms: member %u took %lld ms, a calm round %lld",
                         (long long)at / 1000, i, (long long)r->took_us / 1000,
                         (long long)calm / 1000);
        }
        swarm_free(&s);
    }
}

/* Dead before anybody was connected, and nobody else to compare with: a second more, no longer. */
TEST(dead_before)
{
    struct reduce_swarm s;
    swarm_defaults(&s);
    line_swarm(&s, 80, 2, 100000, 100);
    hth_node_crash(s.peer[VICTIM].node, HTH_CRASH_SILENT);
    swarm_round(&s);
    const struct hth_reduce_result *r = &s.peer[0].result;
    assert_ok(r->err);
    assert_int_equal(r->fates[VICTIM].as_reducer, HTH_REDUCE_DROP_SILENT);
    assert_in_range(r->took_us, 700 * MS, 1800 * MS);
    swarm_free(&s);
}

/* ---- one line far slower than the others --------------------------------------------------- */

struct one_slow {
    double usual, mbit, said; /* of the others, and of this one; mbit 0: it takes no part */
    int64_t way_ms;           /* to it */
    uint64_t floats;
    bool slow;     /* its fate */
    double most_s; /* of the others */
    double least_fraction;
};

/* Eight, of whom one has `mbit` and says that it has `said`; 30 s, as the averager gives a round.
 * The second round counts: all are connected. Returns the longest time of the others. */
static double beside(const struct one_slow *c)
{
    struct hth_device slow;
    struct reduce_swarm s;
    double took_s = 0, fraction = 1;
    enum hth_reduce_drop sender = HTH_REDUCE_DROP_NONE, reducer = HTH_REDUCE_DROP_NONE;

    swarm_defaults(&s);
    s.world_opts.ghost = true;
    s.timeout_us = 30 * HTH_US_PER_S;
    s.share_max = 2;
    line_swarm(&s, 97, 8, c->floats, c->usual);
    slow = s.world_opts.device;
    slow.up_bytes_per_s = slow.down_bytes_per_s = HTH_MAX(c->mbit, 1) * MBIT / 8;
    hth_node_set_device(s.peer[VICTIM].node, &slow);
    part_from_others(&s, c->way_ms * MS);
    for (uint32_t i = 0; i < 8; i++)
        s.member[i].weight = 1;
    s.member[VICTIM].bandwidth = c->said * MBIT;
    s.absent = c->mbit == 0 ? 1u << VICTIM : 0;
    for (int round = 0; round < 2; round++) {
        swarm_next(&s);
        swarm_round(&s);
    }
    for (uint32_t i = 0; i < 8; i++) {
        const struct hth_reduce_result *r = &s.peer[i].result;
        if (i == VICTIM)
            continue;
        check_lost(&s.peer[i], VICTIM);
        took_s = fmax(took_s, (double)r->took_us / HTH_US_PER_S);
        fraction = fmin(fraction, r->weight_fraction);
        sender = HTH_MAX(sender, r->fates[VICTIM].as_sender);
        reducer = HTH_MAX(reducer, r->fates[VICTIM].as_reducer);
    }
    print_message("%8.3g Mbit/s beside %g, says %6.3g: others %.2f s, fraction %.3f, dropped as "
                  "sender: %s, as reducer: %s\n",
                  c->mbit, c->usual, c->said, took_s, fraction,
                  sender == HTH_REDUCE_DROP_SLOW ? "slow" : "none",
                  reducer == HTH_REDUCE_DROP_SLOW ? "slow" : "none");
    if (c->mbit != 0)
        assert_int_equal(sender, c->slow ? HTH_REDUCE_DROP_SLOW : HTH_REDUCE_DROP_NONE);
    assert_true(fraction >= c->least_fraction);
    swarm_free(&s);
    return took_s;
}

/* A round of 16.8 MB takes 2.4 s where all lines have 100 Mbit/s. A line of a fifth that says so is
 * waited for; one that needs more than five times as long as the others costs them nothing. */
TEST(one_slow_line)
{
    enum { F = 1 << 22 };
    static const struct one_slow cases[] = {{100, 100, 100, 1, F, false, 2.5, 1 - 1e-9},
                                            {100, 20, 20, 1, F, false, 7, 1 - 1e-9},
                                            {100, 100, 1, 1, F, false, 2.7, 1 - 1e-9},
                                            {100, 100, 0.01, 1, F, false, 2.7, 1 - 1e-9},
                                            {100, 10, 10, 1, F, true, 3, 0.87},
                                            {100, 10, 100, 1, F, true, 3, 0.75},
                                            {100, 5, 5, 1, F, true, 3, 0.87},
                                            {100, 1, 1, 1, F, true, 3, 0.87},
                                            {100, 1, 100, 1, F, true, 3, 0.75},
                                            {100, 1, 1e6, 1, F, true, 3, 0.65}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        assert_true(beside(&cases[i]) < cases[i].most_s);
}

/* Neither a line of a thousandth, 100 ms away, nor what its owner says of it slows the others. */
TEST(claims_slow_nobody)
{
    static const double lines[][2] = {{1000, 1}, {1000, 150}, {1, 1},
                                      {1, 150},  {1, 1000},   {1, 1e6}};
    struct one_slow c = {1000, 0, 1000, 100, 1u << 24, false, 0, 0};
    double calm = beside(&c);
    for (size_t i = 0; i < HTH_ARRAY_LEN(lines); i++) {
        c.mbit = lines[i][0];
        c.said = lines[i][1];
        c.slow = c.mbit == 1;
        assert_true(beside(&c) <= 1.3 * calm);
    }
}

static void put_off(void *arg, struct hth_rpc_request *req)
{
    hth_rpc_refuse(req, HTH_E_BUSY, MS, "soon, soon");
}

/* One sends its parts like the others and puts off whoever sends it any, beside others and alone:
 * that its line moves bytes helps it no more than a slow one. */
TEST(one_puts_off)
{
    for (int alone = 0; alone < 2; alone++) {
        struct reduce_swarm s;
        swarm_defaults(&s);
        s.timeout_us = 30 * HTH_US_PER_S;
        s.share_max = alone ? 0 : 2;
        line_swarm(&s, 96, 8, 1u << 17, 100);
        for (uint32_t i = 0; alone && i < 8; i++)
            s.member[i].bandwidth = i == VICTIM ? 100 * MBIT : 0;
        hth_rpc_serve(s.peer[VICTIM].rpc, HTH_REDUCE_METHOD, put_off, NULL);
        swarm_round(&s);
        for (uint32_t i = 0; i < 8; i++) {
            const struct hth_reduce_result *r = &s.peer[i].result;
            if (i == VICTIM)
                continue;
            check_lost(&s.peer[i], VICTIM);
            assert_true(r->took_us < 3 * HTH_US_PER_S);
            assert_int_equal(r->fates[VICTIM].as_sender, HTH_REDUCE_DROP_NONE);
            assert_int_equal(r->fates[VICTIM].as_reducer, HTH_REDUCE_DROP_REFUSED);
        }
        swarm_free(&s);
    }
}
