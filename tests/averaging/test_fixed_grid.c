/* SPDX-License-Identifier: Apache-2.0 */
/* A fixed grid in the simulator: when it begins, and that nobody shares a cell there for long. */
#include "averaging/roster.h"

#include "sim/world.h"
#include "support/test.h"

#define S   HTH_US_PER_S
#define MAX 12

struct swarm {
    struct hth_world *world;
    struct hth_roster *roster[MAX];
    uint32_t count;
};

static void add(struct swarm *s, const struct hth_roster_opts *o)
{
    char name[24];
    struct hth_node *node;

    snprintf(name, sizeof(name), "n%u", s->count);
    node = hth_world_node(s->world, name, NULL);
    assert_ok(hth_roster_new(hth_node_env(node), hth_node_dht(node), o, &s->roster[s->count++]));
}

static void swarm_clear(struct swarm *s)
{
    struct hth_open_counts open;

    for (uint32_t i = 0; i < s->count; i++)
        hth_roster_free(s->roster[i]);
    hth_world_open(s->world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(s->world);
}

static uint32_t generation_of(const struct swarm *s, uint32_t i)
{
    uint32_t g;

    (void)hth_roster_shape(s->roster[i], &g);
    return g;
}

/* How many cells the first `end` stand in; all of them in one generation. */
static uint32_t cells_taken(const struct swarm *s, uint32_t end)
{
    uint32_t taken = 0;

    for (uint32_t i = 0; i < end; i++) {
        struct hth_avg_cell cell;

        assert_ok(hth_roster_cell(s->roster[i], &cell));
        assert_int_equal(generation_of(s, i), generation_of(s, 0));
        taken |= UINT32_C(1) << (3 * cell.at[0] + cell.at[1]);
    }
    return (uint32_t)__builtin_popcount(taken);
}

/* Who comes when the grid is there, all of them knowing what it knows, or nobody of the others. */
static void test_nobody_shares_a_cell(void **state)
{
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;

    (void)state;
    o.network = "net";
    o.schema = 7;
    o.addr.family = 4;
    assert_ok(hth_avg_shape_parse("3x3", &o.shape));
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct hth_avg_cell cell;
        struct swarm s = {.world = hth_world_new(seed, NULL)};
        uint32_t generation;

        add(&s, &o);
        assert_err(HTH_E_NOT_FOUND, hth_roster_cell(s.roster[0], &cell));
        for (uint32_t i = 1; i < 4; i++)
            add(&s, &o);
        hth_world_run_for(s.world, 5 * S);
        assert_int_equal(cells_taken(&s, 4), 4);
        for (uint32_t i = 4; i < 7; i++) { /* one after the other */
            add(&s, &o);
            hth_world_run_for(s.world, 3 * S);
            assert_int_equal(cells_taken(&s, i + 1), i + 1);
        }
        generation = generation_of(&s, 0);
        assert_int_equal(generation, 1);
        for (uint32_t i = 7; i < 9; i++) /* two at once: maybe in one cell, but not for long */
            add(&s, &o);
        hth_world_run_for(s.world, 15 * S);
        assert_int_equal(cells_taken(&s, 9), 9);
        /* More than there are cells: that is as good as it gets, and nobody proposes any more. */
        for (uint32_t i = 9; i < 12; i++)
            add(&s, &o);
        hth_world_run_for(s.world, 12 * S);
        assert_int_equal(cells_taken(&s, 12), 9);
        generation = generation_of(&s, 0);
        hth_world_run_for(s.world, 60 * S);
        assert_int_equal(generation_of(&s, 0), generation);
        swarm_clear(&s);
    }
}

/* A key goes wherever the first one stands, which shares its cell whatever it does. It proposes
 * three generations, and then one every half minute, no more often than the others follow it. */
static void test_who_is_followed_stays_with_all(void **state)
{
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;

    (void)state;
    o.network = "net";
    o.schema = 7;
    o.addr.family = 4;
    assert_ok(hth_avg_shape_parse("3x3", &o.shape));
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct swarm s = {.world = hth_world_new(seed, NULL)};
        uint32_t apart = 0;

        for (uint32_t i = 0; i < 8; i++)
            add(&s, &o);
        hth_world_run_for(s.world, 30 * S);
        for (int k = 0; k < 1200; k++) {
            struct hth_avg_cell cell;

            assert_ok(hth_roster_cell(s.roster[0], &cell));
            (void)!hth_roster_set_cell(s.roster[7], generation_of(&s, 0), &cell);
            hth_world_run_for(s.world, S / 10);
            apart += generation_of(&s, 0) != generation_of(&s, 1);
        }
        if (apart > 60)
            fail_msg("seed %u: apart in %u of 1200 moments", (unsigned)seed, apart);
        assert_in_range(generation_of(&s, 0), 2, 12);
        swarm_clear(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_shares_a_cell),
        cmocka_unit_test(test_who_is_followed_stays_with_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
