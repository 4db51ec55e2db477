/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples land by grains, and a note says when: what the others have by now, and when all have
 * enough, is what really happens at each of them, whatever their clocks say.
 */
#include "averaging/roster.h"
#include "core/mem.h"
#include "sim/world.h"
#include "support/test.h"

#define S     HTH_US_PER_S
#define MS    HTH_US_PER_MS
#define PEERS 3
#define STEP  5

/* What the peers do: `grain` samples at `first_us`, and again every `apart_us`. */
struct truth {
    uint32_t grain;
    int64_t first_us, apart_us;
};

static const struct truth truths[PEERS] = {
    {10, 300 * MS, 500 * MS}, {8, 700 * MS, 900 * MS}, {25, 1100 * MS, 2000 * MS}};

struct swarm {
    struct hth_world *world;
    struct hth_node *node[PEERS];
    struct hth_roster *roster[PEERS];
    int64_t start_us; /* of the step */
};

static void swarm_init(struct swarm *s, uint64_t seed, int64_t skew_us)
{
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;

    memset(s, 0, sizeof(*s));
    o.network = "net";
    o.schema = 7;
    o.addr.family = 4;
    s->world = hth_world_new(seed, NULL);
    for (uint32_t i = 0; i < PEERS; i++) {
        struct hth_node_opts node = HTH_NODE_OPTS_INIT;
        char name[8];

        node.wall_skew_us = i == 1 ? skew_us : 0;
        snprintf(name, sizeof(name), "n%u", i);
        s->node[i] = hth_world_node(s->world, name, &node);
        assert_ok(
            hth_roster_new(hth_node_env(s->node[i]), hth_node_dht(s->node[i]), &o, &s->roster[i]));
    }
    hth_world_run_for(s->world, 5 * S);
}

static void swarm_clear(struct swarm *s)
{
    for (uint32_t i = 0; i < PEERS; i++)
        hth_roster_free(s->roster[i]);
    hth_world_free(s->world);
}

static int64_t age_us(const struct swarm *s)
{
    return hth_world_now_us(s->world) - s->start_us;
}

static uint64_t landings(const struct truth *t, int64_t at_us)
{
    return at_us < t->first_us ? 0 : 1 + (uint64_t)((at_us - t->first_us) / t->apart_us);
}

static double rate_of(const struct truth *t)
{
    return t->grain / ((double)t->apart_us / S);
}

/* As a trainer does when it came to the step, and at each landing. */
static void say(struct swarm *s, uint32_t i)
{
    const struct truth *t = &truths[i];
    uint64_t n = landings(t, age_us(s));
    int64_t next_us = s->start_us + t->first_us + (int64_t)n * t->apart_us;

    hth_roster_set_landings(s->roster[i], t->grain,
                            next_us - hth_world_now_us(s->world) +
                                hth_now_us(hth_node_env(s->node[i])));
    hth_roster_set_progress(s->roster[i], STEP, n * t->grain, rate_of(t));
}

static void begin(struct swarm *s)
{
    s->start_us = hth_world_now_us(s->world);
    for (uint32_t i = 0; i < PEERS; i++)
        say(s, i);
}

static void go_on(struct swarm *s, int64_t for_us)
{
    int64_t end_us = hth_world_now_us(s->world) + for_us;

    while (hth_world_now_us(s->world) < end_us) {
        uint64_t before[PEERS];

        for (uint32_t i = 0; i < PEERS; i++)
            before[i] = landings(&truths[i], age_us(s));
        hth_world_run_for(s->world, 10 * MS);
        for (uint32_t i = 0; i < PEERS; i++)
            if (landings(&truths[i], age_us(s)) > before[i])
                say(s, i);
    }
}

static double true_samples(const struct swarm *s, int64_t in_us)
{
    double sum = 0;

    for (uint32_t i = 0; i < PEERS; i++)
        sum += (double)(truths[i].grain * landings(&truths[i], age_us(s) + in_us));
    return sum;
}

static int64_t true_eta_us(const struct swarm *s, double target)
{
    int64_t in_us = 0;

    while (true_samples(s, in_us) < target)
        in_us += MS;
    return in_us;
}

/* At each moment, but for those of a landing, that a note says in whole milliseconds. */
static void check_for(struct swarm *s, int64_t for_us)
{
    int64_t end_us = hth_world_now_us(s->world) + for_us;
    struct hth_roster_batch b;

    for (; hth_world_now_us(s->world) < end_us; go_on(s, 10 * MS)) {
        if (true_samples(s, -5 * MS) != true_samples(s, 5 * MS))
            continue;
        for (uint32_t i = 0; i < PEERS; i++) {
            hth_roster_batch(s->roster[i], STEP, 400, &b);
            assert_close(b.samples, true_samples(s, 0), 1e-9, 0);
            assert_close((double)b.eta_us, (double)true_eta_us(s, 400), 0, 3 * MS);
        }
    }
}

static void test_landings(void **state)
{
    struct swarm s;

    (void)state;
    swarm_init(&s, 1, 0);
    begin(&s);
    go_on(&s, S);
    check_for(&s, 4 * S);
    swarm_clear(&s);
}

/* A clock that is off by less than is refused, or that is set right meanwhile, changes nothing. */
static void test_clocks_do_not_matter(void **state)
{
    static const int64_t skews_us[] = {-2900 * MS, -900 * MS, 2700 * MS};
    struct swarm s;

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(skews_us); i++) {
        swarm_init(&s, 2 + i, skews_us[i]);
        begin(&s);
        go_on(&s, S);
        check_for(&s, 2 * S);
        hth_node_wall_set(s.node[1], 0);
        check_for(&s, 2 * S);
        swarm_clear(&s);
    }
}

/* A note that is of the step before tells the speed and the grain. */
static void test_step_before(void **state)
{
    struct hth_roster_batch b;
    struct swarm s;

    (void)state;
    swarm_init(&s, 5, 0);
    begin(&s);
    go_on(&s, 2 * S);
    hth_roster_set_landings(s.roster[0], 0, INT64_MAX);
    hth_roster_set_progress(s.roster[0], STEP + 1, 0, 0);
    for (int i = 0; i < 38; i++) {
        int64_t in_us = 50 * MS * i;

        hth_roster_batch(s.roster[0], STEP + 1, 400, &b);
        if (in_us % (900 * MS) != 0)
            assert_close(b.samples, (double)(8 * (in_us / (900 * MS))), 1e-9, 0); /* 25 at 2 s */
        hth_world_run_for(s.world, 50 * MS);
    }
    swarm_clear(&s);
}

/* Who comes to the step when others are there for long has not done what they have: it is believed
 * to be a second further than its note at most. */
static void test_who_comes_later(void **state)
{
    struct hth_roster_batch b;
    struct swarm s;
    double sum;

    (void)state;
    swarm_init(&s, 6, 0);
    hth_roster_set_landings(s.roster[0], 1, INT64_MAX);
    hth_roster_set_progress(s.roster[0], STEP, 0, 1);
    hth_world_run_for(s.world, 7 * S);
    begin(&s);
    hth_roster_set_landings(s.roster[2], 0, INT64_MAX);
    hth_roster_set_progress(s.roster[2], STEP, 0, 0);
    hth_world_run_for(s.world, 2 * S);
    hth_roster_batch(s.roster[0], STEP, 1000, &b);
    sum = b.samples - (double)hth_roster_self(s.roster[0])->samples;
    assert_true(sum >= 8 * 2 && sum <= 8 * 3);
    swarm_clear(&s);
}

/* Nothing is in the air at one that offers its samples already. */
static void test_none_lands(void **state)
{
    struct hth_roster_batch b;
    struct swarm s;

    (void)state;
    swarm_init(&s, 7, 0);
    for (uint32_t i = 0; i < PEERS; i++) {
        hth_roster_set_landings(s.roster[i], 8, INT64_MAX);
        hth_roster_set_progress(s.roster[i], STEP, 24, 50);
    }
    hth_world_run_for(s.world, 3 * S);
    hth_roster_batch(s.roster[0], STEP, 100, &b);
    assert_close(b.samples, 72, 1e-9, 0);
    assert_true(b.eta_us == INT64_MAX);
    hth_roster_batch(s.roster[0], STEP, 72, &b);
    assert_int_equal(b.eta_us, 0);
    swarm_clear(&s);
}

/* All alike, who land at the same moment: at each step one is before the other two, one between
 * them, one after, and not always the same. Each counts what those before it will have. */
static void test_turns(void **state)
{
    uint32_t first[PEERS] = {0};
    struct swarm s;

    (void)state;
    swarm_init(&s, 9, 0);
    for (uint64_t step = STEP; step < STEP + 12; step++) {
        uint32_t seen = 0;

        for (uint32_t i = 0; i < PEERS; i++) {
            hth_roster_set_landings(s.roster[i], 8, hth_now_us(hth_node_env(s.node[i])) + S);
            hth_roster_set_progress(s.roster[i], step, 0, 8);
        }
        hth_world_run_for(s.world, 900 * MS);
        for (uint32_t i = 0; i < PEERS; i++) {
            double before = hth_roster_batch_before(s.roster[i], step, 400, 100 * MS, S);
            double later = hth_roster_batch_before(s.roster[i], step, 400, 1100 * MS, S);

            seen |= 1u << (uint32_t)(before / 8);
            first[i] += before == 0;
            assert_close(later, before + 16, 1e-9, 0);
        }
        assert_int_equal(seen, 7);
    }
    for (uint32_t i = 0; i < PEERS; i++)
        assert_in_range(first[i], 1, 11);
    swarm_clear(&s);
}

/* A clock that is so wrong that nobody meets its owner: its samples never come. */
static void test_apart(void **state)
{
    struct hth_roster_batch b;
    struct swarm s;

    (void)state;
    swarm_init(&s, 8, 0);
    begin(&s);
    go_on(&s, 4 * S);
    hth_roster_batch(s.roster[0], STEP, 400, &b);
    assert_close(b.samples, true_samples(&s, 0), 1e-9, 0);
    hth_roster_apart(s.roster[0], &hth_node_env(s.node[2])->self);
    hth_roster_batch(s.roster[0], STEP, 400, &b);
    assert_close(b.samples, true_samples(&s, 0) - 50, 1e-9, 0);
    assert_close(b.samples_per_s, rate_of(&truths[0]) + rate_of(&truths[1]), 1e-6, 0);
    assert_int_equal(hth_roster_population(s.roster[0], NULL), PEERS);
    hth_roster_heard(s.roster[0], &hth_node_env(s.node[2])->self, 0);
    hth_roster_batch(s.roster[0], STEP, 400, &b);
    assert_close(b.samples, true_samples(&s, 0), 1e-9, 0);
    swarm_clear(&s);
}

static uint64_t puts_of(const struct swarm *s, uint32_t i)
{
    struct hth_roster_stats stats;

    hth_roster_stats(s->roster[i], &stats);
    return stats.puts;
}

/* What lands when it was said to land, or a little off, needs no note; what does not land does. */
static void test_told_seldom(void **state)
{
    struct swarm s;
    uint64_t before, stuck;

    (void)state;
    swarm_init(&s, 9, 0);
    begin(&s);
    go_on(&s, S);
    before = puts_of(&s, 0) + puts_of(&s, 1);
    for (int i = 0; i < 8; i++) {
        go_on(&s, 500 * MS);
        hth_roster_set_progress(s.roster[0], STEP, 10 * landings(&truths[0], age_us(&s) + 90 * MS),
                                rate_of(&truths[0]));
    }
    assert_true(puts_of(&s, 0) + puts_of(&s, 1) <= before + 2); /* to be renewed */
    stuck = 8 * landings(&truths[1], age_us(&s));
    hth_world_run_for(s.world, 3 * S);
    before = puts_of(&s, 1);
    hth_roster_set_progress(s.roster[1], STEP, stuck, rate_of(&truths[1]));
    hth_world_run_for(s.world, S / 2);
    assert_int_equal(puts_of(&s, 1), before + 1);
    swarm_clear(&s);
}

/* The first speed is said at once; one that comes and goes is not said more often than others. */
static void test_told_at_once_seldom(void **state)
{
    struct swarm s;
    uint64_t before;

    (void)state;
    swarm_init(&s, 9, 0);
    begin(&s);
    go_on(&s, S);
    before = puts_of(&s, 0);
    for (int i = 0; i < 5000; i++) {
        hth_roster_set_progress(s.roster[0], STEP, 0, i % 2 * rate_of(&truths[0]));
        hth_world_run_for(s.world, MS);
    }
    assert_in_range(puts_of(&s, 0) - before, 1, 5 * S / (500 * MS) * 2);
    swarm_clear(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_landings),
        cmocka_unit_test(test_clocks_do_not_matter),
        cmocka_unit_test(test_step_before),
        cmocka_unit_test(test_who_comes_later),
        cmocka_unit_test(test_none_lands),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_told_seldom),
        cmocka_unit_test(test_told_at_once_seldom),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
