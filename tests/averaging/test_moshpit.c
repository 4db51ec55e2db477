/* SPDX-License-Identifier: Apache-2.0 */
/* test_moshpit.c: whole averagers in the simulated world against means in double. */
#include "averaging/pit.h"
#include "core/mem.h"
#include "support/suite.h"

/* A full grid gives each peer the mean of all after as many rounds as it has axes, and a line the
 * weighted one in one round: of peers that can't be dialled too, beside a helper that has none. */
TEST(full_grids)
{
    static const struct {
        const char *shape;
        enum hth_quant_format format;
        double bound; /* times the largest value, about 5 */
        bool modes;
    } cases[] = {{"4x4", HTH_QUANT_F32, 2e-7, false},
                 {"4x4", HTH_QUANT_F16, 2e-3, false},
                 {"3x3x3", HTH_QUANT_F32, 2e-7, false},
                 {"7", HTH_QUANT_F32, 2e-7, true}};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct hth_avg_shape shape;
        struct pit p;
        double *mean;

        assert_ok(hth_avg_shape_parse(cases[k].shape, &shape));
        pit_init(&p, 70 + k, hth_avg_cells(&shape), 50000, NULL);
        p.shape = shape;
        p.has_cells = true;
        p.format = cases[k].format;
        for (uint32_t i = 0; cases[k].modes && i < p.peers; i++) {
            p.peer[i].mode = i == 2       ? HTH_AVG_HELPER
                             : i % 3 == 1 ? HTH_AVG_CLIENT
                                          : HTH_AVG_TRAINER;
            p.peer[i].weight = i == 2 ? 0 : 1 + i * i;
        }
        pit_fill(&p, 3);
        mean = hth_new_array(double, p.count);
        pit_start(&p, 3 * HTH_US_PER_S);
        pit_mean(&p, mean);
        pit_offer_all(&p, p.shape.dims);
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        for (uint32_t i = 0; i < p.peers; i++) {
            const struct hth_avg_result *r = &p.peer[i].result;
            struct hth_averager_stats s;

            hth_averager_stats(&p.peer[i].avg.averager, &s);
            assert_int_equal(s.rounds, shape.dims);
            assert_true(s.bytes_out > 0 && s.bytes_in > 0 && s.under_way == 0);
            assert_int_equal(p.peer[i].failed, 0);
            assert_int_equal(r->round.members, shape.size[0]);
            assert_true(r->round.weight_fraction == 1);
        }
        assert_true(pit_deviation(&p, mean) < cases[k].bound * 5);
        hth_free(mean);
        pit_stop(&p);
    }
}

/* One that missed a round goes with the others in the next, not with those who missed it too: the
 * first of each line, or a line but one of it. */
TEST(the_late_catch_up)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        bool line = seed % 2 == 0;
        struct pit p;

        pit_init(&p, seed, 16, 64, NULL);
        assert_ok(hth_avg_shape_parse("4x4", &p.shape));
        p.has_cells = true;
        pit_start(&p, 3 * HTH_US_PER_S);
        for (uint32_t i = 0; i < p.peers; i++)
            if (line ? i % 4 > 0 || i == 0 : i >= 4)
                pit_offer(&p.peer[i], 1);
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        hth_world_run_for(p.world, 2 * HTH_US_PER_S);
        pit_offer_all(&p, 1);
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        for (uint32_t i = 0; i < p.peers; i++) {
            assert_int_equal(hth_roster_self(p.peer[i].avg.roster)->round, 2);
            assert_int_equal(p.peer[i].result.round.members, 4);
        }
        pit_stop(&p);
    }
}

/* A peer that is lost in a round costs that round: the next sweep of a full grid is exact again. */
TEST(a_full_grid_is_full_again)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct pit p;
        double mean[64];

        pit_init(&p, seed, 27, 64, NULL);
        assert_ok(hth_avg_shape_parse("3x3x3", &p.shape));
        pit_start(&p, 4 * HTH_US_PER_S);
        for (uint32_t i = 0; i < p.peers; i++) /* one is absent, and one is cut off */
            if (i != seed)
                pit_offer(&p.peer[i], 3);
        hth_node_set_side(p.peer[seed + 7].node, 1);
        hth_world_run_for(p.world, 500 * HTH_US_PER_MS);
        hth_node_set_side(p.peer[seed + 7].node, 0);
        assert_true(pit_run(&p, 60 * HTH_US_PER_S));
        hth_world_run_for(p.world, 10 * HTH_US_PER_S);
        pit_fill(&p, 3);
        pit_mean(&p, mean);
        pit_offer_all(&p, 3);
        assert_true(pit_run(&p, 60 * HTH_US_PER_S));
        assert_true(pit_deviation(&p, mean) < 1e-6);
        pit_stop(&p);
    }
}

/* Everybody goes on with its next step by itself: some at once, some when most of the others have
 * met in it already, and now and then a whole line does. Every step is one of four all the same. */
TEST(no_step_is_lost)
{
    static const uint32_t steps = 5, seeds = 4;
    uint32_t lost = 0;

    (void)state;
    for (uint32_t seed = 0; seed < seeds; seed++) {
        struct hth_rng rng;
        int64_t at_us[16] = {0};
        struct pit p;

        pit_init(&p, 100 + seed, 16, 64, NULL);
        hth_rng_init(&rng, seed);
        assert_ok(hth_avg_shape_parse("4x4", &p.shape));
        p.has_cells = true;
        p.roster.publish_min_us = 20 * HTH_US_PER_MS;
        pit_start(&p, 3 * HTH_US_PER_S);
        for (uint32_t ended = 0; ended < p.peers * steps; hth_world_run_for(p.world, 1000)) {
            int64_t now_us = hth_world_now_us(p.world);

            ended = 0;
            for (uint32_t i = 0; i < p.peers; i++) {
                struct pit_peer *q = &p.peer[i];

                ended += q->ended;
                if (q->ended < q->offered || q->offered == steps)
                    continue;
                if (at_us[i] == 0) { /* its step has just ended */
                    lost +=
                        q->offered > 0 && (q->result.err != HTH_OK || q->result.round.members != 4);
                    at_us[i] = now_us + 1;
                    if (hth_rng_chance(&rng, 0.4))
                        at_us[i] += 50 * HTH_US_PER_MS + (int64_t)hth_rng_below(&rng, 450000);
                }
                if (now_us >= at_us[i]) {
                    pit_offer(q, 1);
                    at_us[i] = 0;
                }
            }
        }
        for (uint32_t i = 0; i < p.peers; i++)
            lost += p.peer[i].result.err != HTH_OK || p.peer[i].result.round.members != 4;
        pit_stop(&p);
    }
    print_message("%u of %u steps lost\n", lost, seeds * steps * 16);
    assert_int_equal(lost, 0);
}

TEST(refusals)
{
    struct hth_avg_offer o = {.count = 16, .weight = 1, .schema = 5};
    struct hth_averager *a;
    struct pit p;

    (void)state;
    pit_init(&p, 85, 2, 16, NULL);
    assert_ok(hth_avg_shape_parse("2", &p.shape));
    p.has_cells = true;
    pit_start(&p, 0);
    a = &p.peer[0].avg.averager;
    assert_err(HTH_E_NOT_FOUND, hth_averager_ready(a));
    hth_world_run_for(p.world, 3 * HTH_US_PER_S);
    assert_ok(hth_averager_ready(a));
    assert_ok(hth_env_blob_new(p.peer[0].env, 64, NULL, &o.values));
    memset(o.values->data, 0, 64);
    o.weight = 0;
    assert_err(HTH_E_RANGE, hth_averager_offer(a, &o));
    o.weight = 2 * HTH_AVG_WEIGHT_MAX;
    assert_err(HTH_E_RANGE, hth_averager_offer(a, &o));
    o.weight = 1;
    o.count = 15;
    assert_err(HTH_E_RANGE, hth_averager_offer(a, &o));
    o.count = 16;
    assert_ok(hth_averager_offer(a, &o));
    assert_err(HTH_E_BUSY, hth_averager_ready(a));
    assert_err(HTH_E_BUSY, hth_averager_offer(a, &o));
    /* nobody comes */
    hth_world_run_for(p.world, 10 * HTH_US_PER_S);
    assert_int_equal(p.peer[0].ended, 1);
    assert_int_equal(p.peer[0].result.err, HTH_E_NOT_FOUND);
    assert_int_equal(p.peer[0].result.reason, HTH_AVG_ALONE);
    hth_averager_stop(a);
    assert_err(HTH_E_NOT_FOUND, hth_averager_ready(a));
    hth_blob_unref(o.values);
    pit_stop(&p);
}

/* Whichever part refuses its options: the earlier ones are gone again, and the peer can be opened
 * with better ones. What a peer is stands once in its options; the others' rosters have it. */
TEST(parts_are_one)
{
    static const uint32_t flag[] = {[HTH_AVG_TRAINER] = 0,
                                    [HTH_AVG_HELPER] = HTH_ROSTER_HELPER,
                                    [HTH_AVG_CLIENT] = HTH_ROSTER_CLIENT};
    const struct hth_peer_id stranger = {{9}};
    struct hth_avg_peer peer = {.roster = NULL};
    struct pit p;

    (void)state;
    pit_init(&p, 86, 3, 16, NULL);
    for (uint32_t i = 0; i < 3; i++)
        p.peer[i].mode = (enum hth_avg_mode)i;
    pit_start(&p, 5 * HTH_US_PER_S);
    for (int part = 0; part < 4; part++) {
        struct hth_avg_peer_opts o = HTH_AVG_PEER_OPTS_INIT;

        o.network = part == 0 ? "" : "another";
        o.addr = p.peer[0].addr;
        o.reducer.silence_us = part == 1 ? 0 : o.reducer.silence_us;
        o.moshpit.share_max = part == 2 ? 0.5 : 2;
        assert_err(part < 3 ? HTH_E_CONFIG : HTH_OK,
                   hth_avg_peer_open(p.peer[0].env, p.peer[0].rpc, hth_node_dht(p.peer[0].node), &o,
                                     &peer));
        hth_avg_peer_lost(&peer, &stranger, HTH_E_TIMEOUT);
        hth_avg_peer_close(&peer);
        hth_avg_peer_close(&peer);
    }
    for (uint32_t i = 0; i < 3; i++) {
        const struct hth_roster_peer *seen =
            hth_roster_find(p.peer[(i + 1) % 3].avg.roster, &p.peer[i].env->self);

        assert_non_null(seen);
        assert_int_equal(seen->note.flags, flag[i]);
        assert_int_equal(seen->note.addr.family, i == HTH_AVG_CLIENT ? 0 : 4);
    }
    pit_stop(&p);
}

/* A thousand, most of them strangers, in cells given: exact after as many rounds as axes. */
TEST(a_thousand)
{
    struct pit p;
    double mean[16];
    int64_t longest_us = 0;

    (void)state;
    pit_init(&p, 90, 1024, 16, NULL);
    assert_ok(hth_avg_shape_parse("32x32", &p.shape));
    p.has_cells = true;
    pit_fill(&p, 4);
    pit_start(&p, 3 * HTH_US_PER_S);
    pit_mean(&p, mean);
    pit_offer_all(&p, p.shape.dims);
    assert_true(pit_run(&p, 60 * HTH_US_PER_S));
    for (uint32_t i = 0; i < p.peers; i++) {
        assert_int_equal(p.peer[i].failed, 0);
        longest_us = HTH_MAX(longest_us, p.peer[i].longest_us);
    }
    assert_true(pit_deviation(&p, mean) < 1e-6 && longest_us < HTH_US_PER_S);
    pit_stop(&p);
}

/* Half of 512 leave at once. The notes of the dead fade, a new shape is agreed on, and two
 * rounds later the grid is full enough again and everybody meets somebody. Groups have dealt out
 * their cells by then: of cells that are drawn 1/e would be free. */
TEST(half_leave)
{
    const struct hth_avg_shape *shape;
    const struct hth_avg_cell *cell;
    struct pit p;
    uint32_t alone = 0, agreed = 0, taken = 0;
    bool is_taken[HTH_AVG_ROSTER_MAX] = {false};
    double fill;

    (void)state;
    pit_init(&p, 95, 512, 16, NULL);
    p.roster.group_max = 32;
    pit_fill(&p, 5);
    pit_start(&p, 20 * HTH_US_PER_S);
    shape = &hth_roster_self(p.peer[1].avg.roster)->shape;
    fill = hth_avg_fill(shape, 512);
    print_message("512 peers: %u x %u, fill %.2f\n", shape->size[0], shape->size[1], fill);
    for (uint32_t i = 0; i < p.peers; i += 2)
        hth_node_crash(p.peer[i].node, HTH_CRASH_RESET);
    hth_world_run_for(p.world, 45 * HTH_US_PER_S);
    for (uint32_t round = 0; round < 2; round++) {
        pit_offer_all(&p, 1);
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    }
    shape = &hth_roster_self(p.peer[1].avg.roster)->shape;
    fill = hth_avg_fill(shape, 256);
    for (uint32_t i = 1; i < p.peers; i += 2) {
        alone += p.peer[i].result.err != HTH_OK;
        agreed += hth_avg_shape_eq(&hth_roster_self(p.peer[i].avg.roster)->shape, shape);
        cell = &hth_roster_self(p.peer[i].avg.roster)->cell;
        taken += !is_taken[cell->at[0] * shape->size[1] + cell->at[1]];
        is_taken[cell->at[0] * shape->size[1] + cell->at[1]] = true;
    }
    print_message("256 peers: %u x %u, fill %.2f, %u agree, %u alone, %u cells taken\n",
                  shape->size[0], shape->size[1], fill, agreed, alone, taken);
    assert_int_equal(agreed, 256);
    assert_true(fill >= 0.75);
    assert_true(alone <= 256 / 50);
    assert_true(taken > hth_avg_cells(shape) * 3 / 4);
    pit_stop(&p);
}

/* ---- deaths ---------------------------------------------------------------------------------- */

enum how { KILLED, POWERED_OFF, CUT_OFF, HOWS };
enum phase { DECLARED, JOINED, BEGUN, REDUCING, PHASES };

struct scene {
    struct pit *pit;
    enum phase phase;
    bool leads;
    struct pit_peer *victim;
    uint64_t joins_out[8], led[8], bytes_in[8]; /* before */
};

static bool scene_is_set(void *arg)
{
    struct scene *s = arg;

    for (uint32_t i = 0; i < s->pit->peers && s->victim == NULL; i++) {
        struct pit_peer *p = &s->pit->peer[i];
        struct hth_match_stats m;
        struct hth_reducer_stats r;
        bool leads, there;

        hth_match_stats(p->avg.match, &m);
        hth_reducer_stats(p->avg.reducer, &r);
        leads = m.followers_now > 0 || m.led > s->led[i];
        there = s->phase == DECLARED ? m.looks_now > 0
                : s->phase == JOINED ? m.followers_now > 0 || m.joins_out > s->joins_out[i]
                : s->phase == BEGUN  ? r.rounds_now > 0
                                     : r.rounds_now > 0 && r.bytes_in > s->bytes_in[i];
        if (there && (leads == s->leads || s->phase == DECLARED))
            s->victim = p;
    }
    return s->victim != NULL;
}

/* The others end soon with an average, and have the same after the next round. Of a host that dies
 * as it begins some have heard and some have not: these miss each other. */
static void check_death(enum how how, enum phase phase, bool leads)
{
    bool torn = phase == BEGUN && leads;
    struct pit p;
    struct scene s = {.pit = &p, .phase = phase, .leads = leads};
    int64_t at_us, worst_us[2] = {0};

    pit_init(&p, 500 + (uint64_t)(how * 10 + phase * 2 + leads), 8, 50000, NULL);
    assert_ok(hth_avg_shape_parse("8", &p.shape));
    p.has_cells = true;
    pit_start(&p, 3 * HTH_US_PER_S);
    pit_offer_all(&p, 1); /* a calm one: all are connected */
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    pit_fill(&p, 7);
    hth_world_run_for(p.world, HTH_US_PER_S);
    for (uint32_t i = 0; i < p.peers; i++) {
        struct hth_match_stats m;
        struct hth_reducer_stats r;

        hth_match_stats(p.peer[i].avg.match, &m);
        hth_reducer_stats(p.peer[i].avg.reducer, &r);
        s.joins_out[i] = m.joins_out;
        s.led[i] = m.led;
        s.bytes_in[i] = r.bytes_in;
    }
    pit_offer_all(&p, 1);
    assert_true(hth_world_run_until_true(p.world, scene_is_set, &s, 2 * HTH_US_PER_S));
    at_us = hth_world_now_us(p.world);
    if (how == CUT_OFF) {
        hth_node_set_side(s.victim->node, 1);
        s.victim->up = false; /* as far as the others are concerned */
    } else {
        hth_node_crash(s.victim->node, how == KILLED ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
        s.victim->up = false;
    }
    for (int round = 0; round < 2; round++) {
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        for (uint32_t i = 0; i < p.peers; i++)
            if (p.peer[i].up) {
                worst_us[round] = HTH_MAX(worst_us[round], p.peer[i].ended_us - at_us);
                assert_int_equal(p.peer[i].result.err, HTH_OK);
            }
        at_us = hth_world_now_us(p.world);
        if (round == 0)
            pit_offer_all(&p, 1);
    }
    print_message("%d in phase %d, %s: %lld ms, next %lld ms\n", how, phase,
                  leads ? "leader" : "member", (long long)worst_us[0] / 1000,
                  (long long)worst_us[1] / 1000);
    assert_true(worst_us[0] <= (torn ? 1500 : how == KILLED ? 100 : 1000) * HTH_US_PER_MS);
    assert_true(worst_us[1] <= 100 * HTH_US_PER_MS);
    assert_true(pit_spread(&p) < 1e-4);
    pit_stop(&p);
}

TEST(death_costs_one_round)
{
    (void)state;
    for (enum how how = KILLED; how < HOWS; how++)
        for (enum phase phase = DECLARED; phase < PHASES; phase++)
            for (int leads = 0; leads < 2; leads++)
                check_death(how, phase, leads != 0);
}
