/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cut.c: a peer that was cut off from the others for a round is with them in the next one.
 *
 * What it said meanwhile reached its own side of the cut only, and it holds old notes of all
 * others: until these are renewed nobody would wait for it, and it would look where nobody is any
 * more.
 */
#include <stdlib.h>

#include "averaging/pit.h"
#include "support/test.h"

#define PEERS 16

static void one_round(struct pit *p)
{
    pit_offer_all(p, HTH_AVG_SWEEP_AUTO, 1);
    assert_true(pit_run(p, 20 * HTH_US_PER_S));
}

static uint32_t rounds_of(const struct pit *p, uint32_t i)
{
    return p->peer[i].averaged;
}

static uint64_t seeks_of(const struct pit *p, uint32_t i)
{
    struct hth_roster_stats s;

    hth_roster_stats(p->peer[i].avg.roster, &s);
    return s.seeks;
}

/* Some rounds, one of them with that peer on the other side of a cut that ends rest_us before the
 * next. Returns how many had no average in the next. */
static uint32_t missing_after_cut(uint64_t seed, uint32_t who, int64_t rest_us)
{
    struct pit p;
    uint32_t before[PEERS], missing = 0;

    pit_init(&p, seed, PEERS, 100, NULL);
    assert_ok(hth_avg_shape_parse("4x4", &p.shape));
    p.has_cells = true;
    pit_fill(&p, seed);
    pit_start(&p, 3 * HTH_US_PER_S);
    for (uint32_t r = 0; r < 3; r++) {
        one_round(&p);
        hth_world_run_for(p.world, 2 * HTH_US_PER_S);
    }
    hth_node_set_side(p.peer[who].node, 1);
    one_round(&p);
    hth_node_set_side(p.peer[who].node, 0);
    hth_world_run_for(p.world, rest_us);
    for (uint32_t i = 0; i < PEERS; i++)
        before[i] = rounds_of(&p, i);
    one_round(&p);
    for (uint32_t i = 0; i < PEERS; i++)
        missing += rounds_of(&p, i) == before[i];
    /* Not for ever, and only who met nobody. */
    hth_world_run_for(p.world, 10 * HTH_US_PER_S);
    for (uint32_t i = 0; i < PEERS; i++) {
        assert_true(seeks_of(&p, i) <= 12);
        assert_true(i == who ? seeks_of(&p, i) > 0 : missing > 0 || seeks_of(&p, i) == 0);
    }
    pit_stop(&p);
    return missing;
}

static const uint64_t seeds = 12;

static void back_in_time(void **state)
{
    uint32_t missing = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= seeds; seed++)
        missing += missing_after_cut(seed, (uint32_t)(seed * 5 % PEERS), 2 * HTH_US_PER_S);
    print_message("%u offers without an average after %u cuts\n", missing, (uint32_t)seeds);
    assert_true(8 * missing <= seeds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(back_in_time)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
