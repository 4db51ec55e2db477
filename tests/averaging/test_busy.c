/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_busy.c: averagers whose processes don't always get to run, as on machines short of cores.
 *
 *   test_averaging_busy          what CI runs
 *   test_averaging_busy SEEDS    more worlds, with all loads, also such as nobody can bear
 *
 * Each process stands still for a while, again and again, whatever the others do. Who stands still
 * is silent to those who run, and what it hears comes late; nobody is to be dropped for that. Of
 * six sweeps the fifth loses one in silence: the others end a second after it, and what they may
 * stand still in each round.
 */
#include <stdlib.h>

#include "averaging/pit.h"
#include "core/rng.h"
#include "support/test.h"

#define PEERS_MAX 9
#define SWEEPS    6
#define DEATH     4
#define NOBODY    PEERS_MAX

struct load {
    int64_t every_ms, least_ms, most_ms; /* between two of them on average, and how long */
    bool together;                       /* all at once, some up to a quarter longer */
};

struct outcome {
    uint32_t offers, dropped, failed; /* of living ones; without an average */
    uint32_t deaths, late;            /* beyond a second, and the longest of stalls in each round */
    int64_t sum_us, worst_us;
};

struct crowd {
    struct pit pit;
    const struct load *load;
    struct hth_rng rng;
    int64_t next_us[PEERS_MAX];
    struct outcome *out;
};

static int64_t now_of(const struct crowd *c)
{
    return hth_world_now_us(c->pit.world);
}

static void run_ms(struct crowd *c)
{
    const struct load *l = c->load;
    uint64_t range_us = (uint64_t)((l->most_ms - l->least_ms) * HTH_US_PER_MS);

    for (uint32_t i = 0; i < (l->together ? 1 : c->pit.peers); i++) {
        int64_t us = l->least_ms * HTH_US_PER_MS;

        if (now_of(c) < c->next_us[i])
            continue;
        us += (int64_t)hth_rng_below(&c->rng, range_us + 1);
        for (uint32_t k = 0; k < c->pit.peers && l->together; k++)
            if (c->pit.peer[k].up)
                hth_node_stall(c->pit.peer[k].node,
                               us + (int64_t)hth_rng_below(&c->rng, (uint64_t)us / 4));
        if (c->pit.peer[i].up)
            hth_node_stall(c->pit.peer[i].node, us);
        us += (int64_t)hth_rng_exponential(&c->rng, (double)(l->every_ms * HTH_US_PER_MS));
        c->next_us[i] = now_of(c) + us;
    }
    hth_world_run_for(c->pit.world, HTH_US_PER_MS);
}

static void run_for(struct crowd *c, int64_t us)
{
    for (int64_t end_us = now_of(c) + us; now_of(c) < end_us;)
        run_ms(c);
}

static bool all_ended(const struct crowd *c)
{
    for (uint32_t i = 0; i < c->pit.peers; i++)
        if (c->pit.peer[i].up && c->pit.peer[i].ended < c->pit.peer[i].offered)
            return false;
    return true;
}

static void count(struct crowd *c, int64_t died_us)
{
    struct outcome *o = c->out;
    int64_t gap_us = 0;

    for (uint32_t i = 0; i < c->pit.peers; i++) {
        const struct pit_peer *p = &c->pit.peer[i];
        /* in each round it may be the dead one */
        uint32_t dead = died_us > 0 ? HTH_MIN(p->result.drops, c->pit.shape.dims) : 0;

        if (!p->up)
            continue;
        o->offers++;
        o->failed += p->result.err != HTH_OK;
        o->dropped += p->result.drops - dead;
        gap_us = HTH_MAX(gap_us, p->ended_us - died_us);
    }
    if (died_us == 0)
        return;
    o->deaths++;
    o->sum_us += gap_us;
    o->worst_us = HTH_MAX(o->worst_us, gap_us);
    /* Who finds the death out may stall, and after it in each round who ends last. */
    o->late += gap_us > HTH_US_PER_S + (c->pit.shape.dims + 1) * c->load->most_ms * HTH_US_PER_MS;
}

static void sweep(struct crowd *c, uint32_t who, int64_t after_us)
{
    int64_t begin_us = now_of(c), died_us = 0;

    pit_offer_all(&c->pit, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
    while (!all_ended(c) || (who != NOBODY && died_us == 0)) {
        if (who != NOBODY && died_us == 0 && now_of(c) >= begin_us + after_us) {
            hth_node_crash(c->pit.peer[who].node, HTH_CRASH_SILENT);
            c->pit.peer[who].up = false;
            died_us = now_of(c);
        }
        assert_true(now_of(c) < begin_us + 60 * HTH_US_PER_S);
        run_ms(c);
    }
    count(c, died_us);
}

static void one_world(const char *shape, uint32_t peers, const struct load *load, uint64_t seed,
                      struct outcome *out)
{
    struct crowd c = {.load = load, .out = out};
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;

    world.ghost = true;
    pit_init(&c.pit, seed, peers, 70000, &world); /* several shares */
    assert_ok(hth_avg_shape_parse(shape, &c.pit.shape));
    c.pit.has_cells = true;
    pit_start(&c.pit, 3 * HTH_US_PER_S);
    hth_rng_init(&c.rng, seed);
    pit_offer_all(&c.pit, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&c.pit, 20 * HTH_US_PER_S)); /* all are connected */
    run_for(&c, 4 * HTH_US_PER_S);
    for (uint32_t k = 0; k < SWEEPS; k++) {
        uint32_t who = k == DEATH ? (uint32_t)hth_rng_below(&c.rng, peers) : NOBODY;

        sweep(&c, who, (int64_t)hth_rng_below(&c.rng, 100 * HTH_US_PER_MS));
        run_for(&c, HTH_US_PER_S / 2);
    }
    pit_stop(&c.pit);
}

static struct outcome many_worlds(const char *shape, uint32_t peers, const struct load *load,
                                  uint64_t seeds)
{
    struct outcome o = {0};

    for (uint64_t seed = 1; seed <= seeds; seed++)
        one_world(shape, peers, load, seed, &o);
    print_message(
        "%-3s, %3lld to %4lld ms each %4lld%s: %4u offers, %3u drops of living ones, %2u "
        "without an average; %u silent deaths: %lld ms on average, %lld at most, %u late\n",
        shape, (long long)load->least_ms, (long long)load->most_ms, (long long)load->every_ms,
        load->together ? ", all" : "", o.offers, o.dropped, o.failed, o.deaths,
        (long long)(o.sum_us / o.deaths / HTH_US_PER_MS), (long long)(o.worst_us / HTH_US_PER_MS),
        o.late);
    return o;
}

static const struct load loads[] = {
    {400, 20, 60, false}, {400, 50, 150, false}, {600, 50, 300, false},  {800, 50, 800, false},
    {400, 50, 150, true}, {600, 50, 300, true},  {1000, 100, 800, true}, {4000, 1500, 4000, true},
};
static uint64_t seeds = 20;

/* A tenth, and a fifth of the time; and all at once. */
static void short_of_cores(void **state)
{
    static const uint32_t which[] = {0, 1, 4};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(which); k++) {
        struct outcome line = many_worlds("8", 8, &loads[which[k]], seeds);
        struct outcome grid = many_worlds("3x3", 9, &loads[which[k]], seeds);

        assert_int_equal(line.failed + grid.failed, 0);
        assert_int_equal(line.late + grid.late, 0);
        assert_int_equal(line.dropped + grid.dropped, 0);
    }
}

/* For longer than the least silence that means dead: some are held for dead before it is known how
 * busy the machine is. */
static void long_stalls(void **state)
{
    (void)state;
    struct outcome line = many_worlds("8", 8, &loads[2], seeds);
    struct outcome grid = many_worlds("3x3", 9, &loads[2], seeds);

    assert_true(line.dropped + grid.dropped < (line.offers + grid.offers) / 25);
    assert_true(line.sum_us + grid.sum_us < 1300 * HTH_US_PER_MS * (line.deaths + grid.deaths));
    line = many_worlds("8", 8, &loads[5], seeds);
    grid = many_worlds("3x3", 9, &loads[5], seeds);
    assert_int_equal(line.dropped + grid.dropped + line.failed + grid.failed, 0);
}

/* All stand still at once, for less than anybody is waited for: calls that had no time have as much
 * more, and nobody who lives is given up. Who dies then may be found out by nobody before all have
 * stood still again, so no bound is set for that. */
static void all_at_once(void **state)
{
    (void)state;
    struct outcome line = many_worlds("8", 8, &loads[6], seeds);
    struct outcome grid = many_worlds("3x3", 9, &loads[6], seeds);

    assert_int_equal(line.dropped + grid.dropped, 0);
    assert_true(line.failed + grid.failed < (line.offers + grid.offers) / 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_of_cores),
        cmocka_unit_test(long_stalls),
        cmocka_unit_test(all_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
