/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_holes.c: grids that are not full: cells that nobody is in, that two are in, whose peer has
 * died or comes late. One sweep gives everybody the mean of all, by those who stand in.
 */
#include <math.h>
#include <stdlib.h>

#include "averaging/pit.h"
#include "averaging/scene.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "core/rng.h"
#include "dht/board.h"
#include "support/test.h"

static uint64_t proxied(const struct pit *p)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < p->peers; i++) {
        struct hth_averager_stats s;

        if (!p->peer[i].up)
            continue;
        hth_averager_stats(&p->peer[i].avg.averager, &s);
        n += s.proxied;
    }
    return n;
}

/* The roster says of everybody that it is at this step. */
static void come_to_step(struct pit *p, uint64_t step)
{
    for (uint32_t i = 0; i < p->peers; i++)
        hth_roster_set_progress(p->peer[i].avg.roster, step, 0, 0);
    hth_world_run_for(p->world, 2 * HTH_US_PER_S);
}

/* In cells by rank, so that the last ones are empty, or the first ones hold two. Returns how often
 * somebody stood in. */
static uint64_t one_sweep(const char *shape, uint32_t peers, uint64_t seed)
{
    struct pit p;
    double mean[300], total = 0;
    uint64_t n;

    pit_init(&p, seed, peers, 300, NULL);
    assert_ok(hth_avg_shape_parse(shape, &p.shape));
    p.has_cells = true;
    pit_fill(&p, seed);
    for (uint32_t i = 0; i < peers; i++)
        total += p.peer[i].weight = 1 + i % 3;
    pit_start(&p, 3 * HTH_US_PER_S);
    come_to_step(&p, 7);
    pit_mean(&p, mean);
    pit_offer_all(&p, 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    for (uint32_t i = 0; i < peers; i++) {
        assert_int_equal(p.peer[i].result.err, HTH_OK);
        assert_close(p.peer[i].result.weight, total, 1e-9, 0);
        assert_close(p.peer[i].result.weight_met, total, 1e-9, 0);
        assert_int_equal(p.peer[i].result.heads, peers);
    }
    print_message("%u in %s: deviation %.2g, took %.0f ms, trace %016llx\n", peers, shape,
                  pit_deviation(&p, mean), (double)p.peer[0].longest_us / 1e3,
                  (unsigned long long)hth_world_trace_hash(p.world));
    assert_true(pit_deviation(&p, mean) < 1e-6);
    n = proxied(&p);
    pit_stop(&p);
    return n;
}

static void sparse_grids(void **state)
{
    (void)state;
    assert_int_equal(one_sweep("3x3", 9, 1), 0);
    assert_int_equal(one_sweep("3x3", 8, 2), 1);
    assert_int_equal(one_sweep("5x4", 17, 3), 3);
    assert_int_equal(one_sweep("6x6", 33, 4), 3);
    assert_true(one_sweep("3x3x3", 22, 5) > 0);
    assert_true(one_sweep("2x2x2x2", 13, 6) > 0);
}

/* Who shares a cell brings the same mean into the next line, and it counts once. */
static void doubled_cells(void **state)
{
    (void)state;
    assert_int_equal(one_sweep("4x4", 17, 7), 0);
    assert_int_equal(one_sweep("3x3", 13, 8), 0);
}

/* Who is alone in its line gives those who are on their way a moment, the first time; then it goes
 * on at once. */
static void alone_in_a_line(void **state)
{
    struct pit p;
    int64_t took_us[3];

    (void)state;
    for (uint64_t seed = 41; seed < 47; seed++) {
        pit_init(&p, seed, 4, 64, NULL);
        assert_ok(hth_avg_shape_parse("3x3", &p.shape));
        p.has_cells = true;
        p.apply = true;
        pit_fill(&p, seed);
        pit_start(&p, 3 * HTH_US_PER_S);
        for (uint64_t k = 0; k < 3; k++) {
            for (uint32_t i = 0; i < 4; i++)
                p.peer[i].longest_us = 0;
            come_to_step(&p, 7 + k);
            pit_offer_all(&p, 7 + k, HTH_AVG_ALL_AXES);
            assert_true(pit_run(&p, 20 * HTH_US_PER_S));
            assert_true(pit_spread(&p) < 1e-6);
            took_us[k] = p.peer[1].longest_us; /* in a column of its own */
            for (uint32_t i = 0; i < 4; i++)
                assert_int_equal(p.peer[i].result.heads, 4);
        }
        print_message("seed %u: %.0f, %.0f, %.0f ms\n", (unsigned)seed, (double)took_us[0] / 1e3,
                      (double)took_us[1] / 1e3, (double)took_us[2] / 1e3);
        assert_in_range(took_us[0], 500 * HTH_US_PER_MS, 1500 * HTH_US_PER_MS);
        assert_in_range(took_us[1], 0, 300 * HTH_US_PER_MS);
        assert_in_range(took_us[2], 0, 300 * HTH_US_PER_MS);
        pit_stop(&p);
    }
}

/* Who comes when the others have begun without it finds somebody in its place in the next line, and
 * both are counted there as what they are: the mean without it, and it. */
static void one_comes_late(void **state)
{
    struct pit p;
    double mean[64], without[64];

    (void)state;
    pit_init(&p, 31, 9, 64, NULL);
    assert_ok(hth_avg_shape_parse("3x3", &p.shape));
    p.has_cells = true;
    p.opts.window_us = HTH_US_PER_S;
    pit_fill(&p, 31);
    pit_start(&p, 3 * HTH_US_PER_S);
    come_to_step(&p, 7);
    pit_mean(&p, mean);
    p.peer[4].up = false; /* not yet */
    pit_mean(&p, without);
    pit_offer_all(&p, 7, HTH_AVG_ALL_AXES);
    hth_world_run_for(p.world, 1200 * HTH_US_PER_MS);
    p.peer[4].up = true;
    pit_offer(&p.peer[4], 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    p.peer[4].up = false;
    assert_true(pit_deviation(&p, without) < 1e-6);
    for (uint32_t i = 0; i < p.peers; i++) {
        assert_close(p.peer[i].result.weight, i == 4 ? p.peer[i].result.weight : 8, 1e-9, 0);
        assert_true(p.peer[i].result.heads == 8 || i == 4);
    }
    p.peer[4].up = true;
    come_to_step(&p, 8);
    /* and one sweep later all have one mean again */
    pit_offer_all(&p, 8, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    assert_true(pit_spread(&p) < 1e-6);
    pit_stop(&p);
}

/* Who comes to a step two steps late heard the others look there, and in the lines where they would
 * have stood in. It waits for none of them: it would be as late to the next step, and the one after
 * it. */
static void others_have_passed(void **state)
{
    struct pit p;
    const uint32_t late = 4;
    int64_t took_us;

    (void)state;
    pit_init(&p, 39, 9, 64, NULL);
    assert_ok(hth_avg_shape_parse("3x3", &p.shape));
    p.has_cells = true;
    pit_fill(&p, 39);
    pit_start(&p, 3 * HTH_US_PER_S);
    for (uint64_t step = 6; step <= 9; step++) {
        for (uint32_t i = 0; i < p.peers; i++)
            if (i != late || step <= 7)
                hth_roster_set_progress(p.peer[i].avg.roster, step, 0, 0);
        hth_world_run_for(p.world, HTH_US_PER_S);
        for (uint32_t i = 0; i < p.peers && step <= 8; i++)
            if (i != late || step == 6)
                pit_offer(&p.peer[i], step, HTH_AVG_ALL_AXES);
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    }
    pit_offer(&p.peer[late], 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    took_us = p.peer[late].ended_us - p.peer[late].offered_us;
    print_message("two steps late: alone after %.2f s\n", (double)took_us / 1e6);
    assert_int_equal(p.peer[late].result.err, HTH_E_NOT_FOUND);
    assert_true(took_us <= 2 * HTH_US_PER_S);
    pit_stop(&p);
}

/* Who looked when nobody else did is with the others the next time, and not ahead of them for
 * good. */
static void one_was_early(void **state)
{
    struct pit p;

    (void)state;
    pit_init(&p, 33, 9, 64, NULL);
    assert_ok(hth_avg_shape_parse("3x3", &p.shape));
    p.has_cells = true;
    p.opts.window_us = HTH_US_PER_S;
    pit_fill(&p, 33);
    pit_start(&p, 3 * HTH_US_PER_S);
    for (int times = 0; times < 2; times++) {
        pit_offer(&p.peer[2], HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        assert_int_equal(p.peer[2].result.err, HTH_E_NOT_FOUND);
        hth_world_run_for(p.world, 2 * HTH_US_PER_S);
    }
    pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
    hth_world_run_for(p.world, HTH_US_PER_MS);
    assert_int_equal(hth_roster_self(p.peer[2].avg.roster)->round, 0); /* and says so */
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    for (uint32_t i = 0; i < p.peers; i++)
        assert_close(p.peer[i].result.weight, 9, 1e-9, 0);
    assert_true(pit_spread(&p) < 1e-6);
    pit_stop(&p);
}

/* Who stood in when the others were not there yet does not bring those values when all try the same
 * sweep again. */
static void tried_again(void **state)
{
    struct pit p;
    double mean[64];

    (void)state;
    pit_init(&p, 34, 8, 64, NULL);
    assert_ok(hth_avg_shape_parse("3x3", &p.shape));
    p.has_cells = true;
    pit_fill(&p, 34);
    pit_start(&p, 3 * HTH_US_PER_S);
    come_to_step(&p, 7);
    p.timeout_us = 1500 * HTH_US_PER_MS;
    pit_offer(&p.peer[2], 7, HTH_AVG_ALL_AXES); /* the column of the empty cell */
    pit_offer(&p.peer[5], 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 5 * HTH_US_PER_S));
    assert_ok(p.peer[2].result.err);
    assert_int_equal(proxied(&p), 1);
    pit_fill(&p, 35);
    pit_mean(&p, mean);
    p.timeout_us = 0;
    pit_offer_all(&p, 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    assert_true(pit_deviation(&p, mean) < 1e-6);
    pit_stop(&p);
}

/* The same step once more, in lines of their own. Who stands in was heard in that round, but in the
 * lines of the first time: it comes two seconds late, and is waited for like any other. */
static void once_more(void **state)
{
    struct pit p;
    double mean[64];

    (void)state;
    pit_init(&p, 36, 8, 64, NULL);
    assert_ok(hth_avg_shape_parse("3x3", &p.shape));
    p.has_cells = true;
    pit_fill(&p, 36);
    pit_start(&p, 3 * HTH_US_PER_S);
    come_to_step(&p, 7);
    pit_offer_all(&p, 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    assert_int_equal(proxied(&p), 1);
    pit_fill(&p, 38);
    pit_mean(&p, mean);
    for (uint32_t i = 0; i < p.peers; i++) {
        p.peer[i].kind = 1;
        if (i != 2 && i != 5) /* the column of the empty cell */
            pit_offer(&p.peer[i], 7, HTH_AVG_ALL_AXES);
    }
    hth_world_run_for(p.world, 2 * HTH_US_PER_S);
    pit_offer(&p.peer[2], 7, HTH_AVG_ALL_AXES);
    pit_offer(&p.peer[5], 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    assert_int_equal(proxied(&p), 2);
    assert_true(pit_deviation(&p, mean) < 1e-6);
    pit_stop(&p);
}

/* The same sweep for the third time, in the lines of the second, with more samples. Those who stand
 * in come a moment late, and are called before that: they bring the values that they have, of
 * the second time. What comes of it is not what the others have, and says so. */
static void third_time(void **state)
{
    struct pit p;
    bool differ = false;

    (void)state;
    pit_init(&p, 41, 8, 64, NULL);
    assert_ok(hth_avg_shape_parse("3x3", &p.shape));
    p.has_cells = true;
    pit_start(&p, 3 * HTH_US_PER_S);
    come_to_step(&p, 7);
    for (uint32_t time = 2; time <= 3; time++) {
        pit_fill(&p, 40 + time);
        for (uint32_t i = 0; i < p.peers; i++) {
            p.peer[i].kind = 1;
            p.peer[i].weight = time;
            p.peer[i].attempt = time - 1;
            if (time == 2 || (i != 2 && i != 5)) /* the column of the empty cell */
                pit_offer(&p.peer[i], 7, HTH_AVG_ALL_AXES);
        }
        if (time == 2)
            assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    }
    hth_world_run_for(p.world, 300 * HTH_US_PER_MS);
    pit_offer(&p.peer[2], 7, HTH_AVG_ALL_AXES);
    pit_offer(&p.peer[5], 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    for (uint32_t i = 1; i < p.peers; i++) {
        bool apart = fabsf(p.peer[i].values[0] - p.peer[0].values[0]) > 1e-5F;

        assert_ok(p.peer[i].result.err);
        assert_true((p.peer[i].result.origin != p.peer[0].result.origin) == apart);
        differ |= apart;
    }
    print_message("for the third time: %s\n", differ ? "two averages" : "one average");
    pit_stop(&p);
}

static void offer_some(struct pit *p, uint32_t from, uint32_t to, uint32_t kind, uint32_t kind_on)
{
    for (uint32_t i = from; i < to; i++) {
        p->peer[i].kind = kind;
        p->peer[i].kind_on = kind_on;
        pit_offer(&p->peer[i], 7, HTH_AVG_ALL_AXES);
    }
}

/* So many do a sweep once more, in lines of their own; the others come to it for the first time, a
 * second after that or a moment before. Returns the fewest samples in an average of those
 * others. */
static double some_go_on(uint32_t gone_on, bool late)
{
    struct pit p;
    double fewest = 9;

    pit_init(&p, 40, 9, 64, NULL);
    assert_ok(hth_avg_shape_parse("3x3", &p.shape));
    p.has_cells = true;
    pit_fill(&p, 40);
    pit_start(&p, 3 * HTH_US_PER_S);
    come_to_step(&p, 7);
    if (late)
        offer_some(&p, 0, gone_on, 1, 0);
    else
        offer_some(&p, gone_on, p.peers, 0, 1);
    hth_world_run_for(p.world, late ? HTH_US_PER_S : 100 * HTH_US_PER_MS);
    if (late)
        offer_some(&p, gone_on, p.peers, 0, 1);
    else
        offer_some(&p, 0, gone_on, 1, 0);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    print_message("%u of 9 go on: waited %.2f s\n", gone_on,
                  (double)p.peer[8].result.wait_us / 1e6);
    for (uint32_t i = gone_on; i < p.peers; i++)
        fewest = HTH_MIN(fewest, p.peer[i].result.weight);
    pit_stop(&p);
    return fewest;
}

/* Four of nine or more have gone on: who comes to the step goes there at once, and who waits for
 * them in vain as soon as it hears that. One key that says so moves nobody. */
static void others_go_on(void **state)
{
    (void)state;
    for (uint32_t gone_on = 4; gone_on < 9; gone_on++) {
        assert_close(some_go_on(gone_on, true), 9, 1e-9, 0);
        assert_close(some_go_on(gone_on, false), 9, 1e-9, 0);
    }
    assert_close(some_go_on(1, true), 8, 1e-9, 0);
    assert_close(some_go_on(1, false), 8, 1e-9, 0);
}

/* One has nine cells to stand in for, which is one more than it does at once: the last line calls
 * it again when it has done with the others. */
static void limit_is_kept(void **state)
{
    struct pit p;
    uint32_t complete = 0;

    (void)state;
    pit_init(&p, 32, HTH_AVG_PROXIES_MAX + 3, 64, NULL);
    assert_ok(hth_avg_shape_parse("10x2", &p.shape));
    p.has_cells = true;
    pit_fill(&p, 32);
    for (uint32_t i = 0; i < p.peers; i++) /* column 0, and one in column 1 */
        p.peer[i].rank = i < p.peers - 1 ? 2 * i : 1;
    pit_start(&p, 3 * HTH_US_PER_S);
    come_to_step(&p, 7);
    pit_offer_all(&p, 7, HTH_AVG_ALL_AXES);
    while (proxied(&p) == 0)
        hth_world_run_for(p.world, HTH_US_PER_MS);
    assert_int_equal(proxied(&p), HTH_AVG_PROXIES_MAX);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    for (uint32_t i = 0; i < p.peers; i++)
        complete += p.peer[i].result.weight > p.peers - 0.5;
    assert_int_equal(complete, p.peers);
    assert_int_equal(proxied(&p), HTH_AVG_PROXIES_MAX + 1);
    pit_stop(&p);
}

static enum hth_err fill_stranger(void *arg, struct hth_writer *w)
{
    struct hth_roster_note note = {.addr = {.family = 4, .port = 1}, .schema = *(uint64_t *)arg};

    return hth_roster_note_write(&note, w);
}

#define STRANGERS 120

/* Each stands for 32 at least by its mark (roster.h). */
static void add_rare(struct pit *p, struct hth_publisher *note[STRANGERS])
{
    struct hth_publisher_opts opts = HTH_PUBLISHER_OPTS_INIT;
    struct hth_topic topic;

    opts.life_us = 60 * HTH_US_PER_S;
    for (uint32_t n = 0; n < STRANGERS;) {
        struct hth_node *node = hth_world_node(p->world, "rare", NULL);
        struct hth_env *env = hth_node_env(node);

        if (hth_mix64(hth_load_u64le(env->self.b)) >> 59 != 0)
            continue;
        hth_topic_init(&topic, env->crypto, "run", HTH_RECORD_PROGRESS, "roster", 6);
        assert_ok(hth_publisher_new(env, hth_node_dht(node), &topic, &opts, fill_stranger,
                                    &p->roster.schema, &note[n++]));
    }
}

/* A grid that is too large for anybody to look through, which a forged population could ask for. */
static void grid_is_bounded(const char *shape, uint32_t rank, uint64_t want)
{
    struct hth_publisher *note[STRANGERS];
    struct pit p;
    bool exact;

    pit_init(&p, 37, 2, 64, NULL);
    assert_ok(hth_avg_shape_parse(shape, &p.shape));
    p.has_cells = true;
    p.peer[1].rank = rank;
    pit_fill(&p, 37);
    add_rare(&p, note);
    pit_start(&p, 5 * HTH_US_PER_S);
    assert_true(4 * hth_roster_population(p.peer[0].avg.roster, &exact) >= hth_avg_cells(&p.shape));
    assert_false(exact);
    pit_offer_all(&p, 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    assert_ok(p.peer[0].result.err);
    assert_int_equal(proxied(&p), want);
    for (uint32_t i = 0; i < STRANGERS; i++)
        hth_publisher_free(note[i]);
    pit_stop(&p);
}

static void large_grids(void **state)
{
    (void)state;
    grid_is_bounded("4x2048", 2048, 2); /* two of a column, whose two other cells are empty */
    grid_is_bounded("4x2049", 2049, 0);
}

/* Four of nine go, one after the other and in different ways: after each, one sweep is enough. */
static void four_go(uint32_t first, uint64_t seed)
{
    struct pit p;
    uint32_t gone[4] = {first, first == 0 ? 1 : 0, first == 8 ? 7 : 8, first >= 7 ? 6 : 7};

    pit_init(&p, seed, 9, 64, NULL);
    assert_ok(hth_avg_shape_parse("3x3", &p.shape));
    p.has_cells = true;
    pit_start(&p, 3 * HTH_US_PER_S);
    for (uint32_t k = 0; k < 4; k++) {
        pit_fill(&p, seed + k);
        pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
        hth_world_run_for(p.world, (int64_t)(seed * 7919 % 90) * HTH_US_PER_MS);
        if (k == 2) /* says goodbye */
            hth_roster_leave(p.peer[gone[k]].avg.roster, NULL, NULL);
        if (k == 3)
            hth_node_set_side(p.peer[gone[k]].node, 1);
        else
            hth_node_crash(p.peer[gone[k]].node, HTH_CRASH_RESET);
        p.peer[gone[k]].up = false;
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        for (int again = 0; again < 3; again++) {
            pit_fill(&p, seed + 10 * k);
            pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
            assert_true(pit_run(&p, 20 * HTH_US_PER_S));
            if (pit_spread(&p) >= 1e-4)
                fail_msg("first %u, seed %llu: %u gone, sweep %d after: spread %g", first,
                         (unsigned long long)seed, k + 1, again + 1, pit_spread(&p));
        }
    }
    pit_stop(&p);
}

static void one_after_the_other(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 9; first++)
        four_go(first, first);
}

/* One dies in silence at any moment of a sweep, also when its column has all of it and does not
 * miss it, and its row waits for somebody in its place who will not come. */
static void dies_at_any_moment(void **state)
{
    int64_t longest_us = 0;

    (void)state;
    for (uint32_t moment = 0; moment < 24; moment++) {
        struct pit p;
        struct pit_peer *victim;
        int64_t at;

        pit_init(&p, 600 + moment, 9, 2000, NULL);
        victim = &p.peer[moment * 5 % 9];
        assert_ok(hth_avg_shape_parse("3x3", &p.shape));
        p.has_cells = true;
        pit_fill(&p, 6);
        pit_start(&p, 3 * HTH_US_PER_S);
        pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
        hth_world_run_for(p.world, moment * 4 * HTH_US_PER_MS);
        at = hth_world_now_us(p.world);
        hth_node_crash(victim->node, HTH_CRASH_SILENT);
        victim->up = false;
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        longest_us = HTH_MAX(longest_us, hth_world_now_us(p.world) - at);
        pit_fill(&p, 7);
        pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        assert_true(pit_spread(&p) < 1e-4);
        pit_stop(&p);
    }
    print_message("at any moment: %lld ms at most\n", (long long)longest_us / 1000);
    assert_true(longest_us <= 1600 * HTH_US_PER_MS);
}

/* Who dies is one of the heads where its values are in all of the average, and else not. */
static void heads_are_whole(void **state)
{
    bool was_in[2] = {false, false}, kept = false;

    (void)state;
    for (uint32_t moment = 0; moment < 12; moment++) {
        struct pit p;
        struct pit_peer *victim;

        pit_init(&p, 700 + moment, 5, 2000, NULL);
        victim = &p.peer[moment % 5];
        assert_ok(hth_avg_shape_parse("5", &p.shape));
        p.has_cells = true;
        pit_fill(&p, 7);
        pit_start(&p, 3 * HTH_US_PER_S);
        pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, 1);
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, 1);
        hth_world_run_for(p.world, moment * 5 * HTH_US_PER_MS);
        hth_node_crash(victim->node, HTH_CRASH_SILENT);
        victim->up = false;
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        for (uint32_t i = 0; i < p.peers; i++) {
            const struct hth_avg_result *r = &p.peer[i].result;

            if (!p.peer[i].up)
                continue;
            kept |= r->parts_kept > 0;
            if (r->parts_kept > 0)
                assert_int_equal(r->heads, 1); /* in those parts is nobody else */
            else
                assert_int_equal(r->heads, (uint32_t)(r->weight + 1e-6));
            was_in[r->heads == 5] |= r->members == 5;
        }
        pit_stop(&p);
    }
    assert_true(was_in[0] && was_in[1] && kept);
}

/* Both times: the longest wait of those who live, from the death, and in the sweep after it. */
static int64_t bound_us(enum how how)
{
    return (how == KILLED ? 200 : 1000) * HTH_US_PER_MS;
}

/* Deaths on two axes, of 9 and of 8 peers: one sweep later everybody has the same, although the
 * grid has a hole now. Who is left alone in a column waits for nobody: the connection broke. */
static void deaths(uint64_t seed)
{
    for (enum how how = KILLED; how < HOWS; how++)
        for (enum role role = MEMBER; role < ROLES; role++)
            for (enum phase phase = DECLARED; role != REDUCER && phase < PHASES; phase++) {
                struct scene_times t = scene_one_dies("3x3", 9 - phase % 2, seed, role, phase, how);
                scene_print(role, phase, how, &t);
                assert_true(t.first_us <= bound_us(how) && t.next_us <= bound_us(how));
            }
}

static void kill_matrix(void **state)
{
    (void)state;
    deaths(500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sparse_grids),        cmocka_unit_test(alone_in_a_line),
        cmocka_unit_test(doubled_cells),       cmocka_unit_test(one_comes_late),
        cmocka_unit_test(others_have_passed),  cmocka_unit_test(one_was_early),
        cmocka_unit_test(tried_again),         cmocka_unit_test(once_more),
        cmocka_unit_test(others_go_on),        cmocka_unit_test(third_time),
        cmocka_unit_test(limit_is_kept),       cmocka_unit_test(large_grids),
        cmocka_unit_test(one_after_the_other), cmocka_unit_test(heads_are_whole),
        cmocka_unit_test(kill_matrix),         cmocka_unit_test(dies_at_any_moment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
