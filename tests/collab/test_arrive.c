/* SPDX-License-Identifier: Apache-2.0 */
/* test_arrive.c: members that missed steps, and newcomers, get to the tip of a run that goes on. */
#include "collab/means_run.h"
#include "support/suite.h"

static struct run run;

static bool is_fetching(void *arg)
{
    return given(&run) > 0;
}

static bool has_parts(void *arg)
{
    return given(&run) > 10 * HTH_STATE_PART_BYTES_MIN;
}

/* A run of so many donors that has taken so many steps, with a state of so many means. */
static void start(double state_means, int64_t step_us, uint32_t donors, uint32_t steps)
{
    setup(&run, false, state_means, step_us);
    for (uint32_t i = 0; i < donors; i++)
        add_donor(&run);
    run_steps(&run, steps);
}

/* It comes to its end in that time, with these means and states. */
static void check_end(int64_t within_us, enum hth_err want, uint32_t steps, uint32_t states)
{
    const struct newcomer *n = &run.newcomer;
    assert_true(run_until_over(&run, within_us));
    assert_err(want, n->err);
    assert_int_equal(n->steps, steps);
    assert_int_equal(n->states, states);
    assert_int_equal(hth_budget_used(&n->budget), 0);
}

static uint64_t step_held(const struct newcomer *n)
{
    return n->at == HTH_LINK_NONE ? 0 : hth_chain_at(n->chain, n->at)->step;
}

/* ---- the tip --------------------------------------------------------------------------------- */

TEST(a_missed_step_is_one_mean)
{
    static const struct {
        uint64_t missed;
        uint32_t steps, states;
    } cases[] = {{0, 0, 0}, {1, 1, 0}, {3, 3, 0}, {32, 32, 0}, {33, 0, 1}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        start(3, 10 * MS, 2, 40);
        struct newcomer *n = add_newcomer(&run, 125e6);
        hold(n, 40 - cases[i].missed);
        run.step_us = run.next_us = 1000 * S; /* the run waits for it */
        go(n);
        check_end(10 * S, HTH_OK, cases[i].steps, cases[i].states);
        assert_int_equal(step_held(n), 40);
        assert_int_equal(given(&run),
                         cases[i].states > 0 ? run.state_bytes : cases[i].steps * MEAN_BYTES);
        tear_down(&run);
    }
}

/* A state takes `state_steps` steps to come, and a mean half a step: the means made meanwhile are
 * fetched behind it, and those made meanwhile, so it takes twice as long. */
static void check_newcomer(bool ghost, double state_steps, int64_t step_us)
{
    const double rate = 4e6;
    setup_values(&run, ghost, (uint64_t)(rate * (double)step_us / 1e6 / 2.1 / sizeof(float)),
                 2 * state_steps, step_us, 4 << 20);
    for (int d = 0; d < 3; d++)
        add_donor(&run);
    run_steps(&run, 10);
    struct newcomer *n = add_newcomer(&run, rate);
    int64_t begin = hth_world_now_us(run.world);
    go_on(n);
    assert_true(run_until_over(&run, 60 * step_us));
    double took = (double)(n->came_us - begin) / (double)step_us;
    double wait = HTH_MAX(3.0, 1e6 / (double)step_us);
    printf("%sstate of %g steps of %lld ms: in after %.1f, %u states, %u means, %u arrivals\n",
           ghost ? "ghosts, " : "", state_steps, (long long)(step_us / MS), took, n->states,
           n->steps, n->ends);
    assert_true(took <= 2 * state_steps + wait);
    tear_down(&run);
}

TEST(newcomers_reach_the_tip)
{
    static const double state_steps[] = {0.5, 3, 10};
    static const int64_t step_us[] = {20 * MS, 500 * MS, 10 * S};
    for (size_t i = 0; i < HTH_ARRAY_LEN(state_steps); i++) {
        check_newcomer(false, state_steps[i], 50 * MS);
        for (size_t k = 0; k < HTH_ARRAY_LEN(step_us); k++)
            check_newcomer(true, state_steps[i], step_us[k]);
    }
}

static uint32_t add_genesis(struct hth_chain *chain, uint64_t step, const struct hth_hash *mean)
{
    struct hth_roll roll = {.marks = HTH_ROLL_IN, .samples = 2};
    const struct hth_chain_link link = {.step = step,
                                        .prev = HTH_LINK_NONE,
                                        .kind = HTH_LINK_GENESIS,
                                        .mean = *mean,
                                        .roll = &roll,
                                        .count = 1};
    uint32_t out;
    assert_ok(hth_chain_add(chain, &link, &out));
    return out;
}

/* From another branch, from its own genesis, or where means are gone everywhere. */
TEST(other_ways_cost_a_state)
{
    enum way { BRANCH, GENESIS, GENESIS_BEFORE, OTHER_GENESIS, OTHER_STEP, NO_MEAN };
    static const struct {
        enum way way;
        uint32_t before, steps, states;                         /* of the run; which it takes */
    } cases[] = {{BRANCH, 10, 0, 1},        {GENESIS, 0, 0, 0}, /* of the same parameters: nothing
                                                                   is moved */
                 {GENESIS_BEFORE, 3, 3, 0}, {OTHER_GENESIS, 0, 0, 1}, {OTHER_STEP, 0, 0, 1},
                 {NO_MEAN, 10, 0, 1}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        enum way way = cases[i].way;
        struct hth_hash mean = {{9}};
        start(3, way == NO_MEAN ? 5 * S : 200 * MS, 1, cases[i].before); /* one mean is kept */
        struct newcomer *n = add_newcomer(&run, 125e6);
        if (way == NO_MEAN)
            hold(n, 7);
        else if (way == BRANCH)
            n->at = add_link(n->chain, 5, HTH_LINK_STEP, 1, &mean);
        else
            n->at = add_genesis(n->chain, way == OTHER_STEP ? 7 : 0,
                                way == OTHER_GENESIS ? &mean : &run.params[0]);
        if (way == GENESIS || way == GENESIS_BEFORE)
            memset(n->params, 0, sizeof(n->params));
        go(n);
        check_end(3 * S, HTH_OK, cases[i].steps, cases[i].states);
        assert_memory_equal(hth_chain_head(n->chain, n->at), hth_chain_head(run.chain, n->known),
                            32);
        tear_down(&run);
    }
}

/* A snapshot's head may be newer than the chain: its links are read meanwhile. */
TEST(an_unknown_head_is_named)
{
    for (int quick = 0; quick < 2; quick++) {
        setup_values(&run, false, quick ? VALUES / 8 : VALUES, 3, quick ? 10 * MS : S, 4 << 20);
        add_donor(&run);
        run_steps(&run, 20);
        struct newcomer *n = add_newcomer(&run, 125e6);
        run_steps(&run, 1);
        go(n);
        check_end(900 * MS, HTH_OK, 0, 1);
        assert_true(n->unknown > 0);
        assert_true(step_held(n) >= 21);
        tear_down(&run);
    }
}

/* ---- donors ---------------------------------------------------------------------------------- */

/* They die while they give a state, or means; one is left. */
TEST(donors_die)
{
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};
    for (size_t k = 0; k < HTH_ARRAY_LEN(how); k++)
        for (int in_means = 0; in_means < 2; in_means++) {
            start(10, 500 * MS, 3, 10);
            struct newcomer *n = add_newcomer(&run, 3.0 * MEAN_BYTES * 2);
            int64_t begin = hth_world_now_us(run.world);
            if (in_means)
                hold(n, 8);
            go_on(n);
            assert_true(hth_world_run_until_true(run.world, in_means ? is_fetching : has_parts,
                                                 NULL, 400 * MS));
            hth_node_crash(run.donor[0].node, how[k]);
            hth_world_run_for(run.world, 50 * MS);
            hth_node_crash(run.donor[1].node, how[k]);
            assert_true(run_until_over(&run, 60 * S));
            assert_ok(n->err);
            printf("%s deaths during %s: in after %lld ms, %u states\n", k == 0 ? "loud" : "silent",
                   in_means ? "means" : "a state", (long long)(n->came_us - begin) / MS, n->states);
            assert_true(n->came_us - begin < (k == 0 ? 3 : 12) * S);
            tear_down(&run);
        }
}

/* Where no holder is left it says so, and what it holds. */
TEST(nobody_is_left)
{
    enum what { DEAD, FROZEN, DECLINE, NO_MEANS };
    static const struct {
        enum what what;
        int64_t within_us;
        enum hth_err want;
        uint64_t held;
    } cases[] = {{DEAD, 1 * S, HTH_E_NOT_FOUND, 0},
                 {FROZEN, 12 * S, HTH_E_NOT_FOUND, 0},
                 {DECLINE, 21 * S, HTH_E_TIMEOUT, 0},
                 {NO_MEANS, 2 * S, HTH_E_NOT_FOUND, 5}}; /* its state does not lead there */
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        enum what what = cases[i].what;
        start(3, 100 * MS, 1, 5);
        struct donor *d = &run.donor[0];
        d->declines = what == DECLINE;
        d->stays = true;
        run_steps(&run, what == NO_MEANS ? 3 : 0);
        struct newcomer *n = add_newcomer(&run, 125e6);
        if (what == DEAD || what == FROZEN)
            hth_node_crash(d->node, what == DEAD ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
        run.next_us = INT64_MAX / 2; /* the run stands still */
        go(n);
        check_end(cases[i].within_us, cases[i].want, 0, what == NO_MEANS);
        assert_int_equal(step_held(n), cases[i].held);
        tear_down(&run);
    }
}

TEST(states_that_are_refused)
{
    static const struct {
        bool spoilt, short_meta, behind;
        uint32_t states;
    } cases[] = {{true, false, false, 2}, {false, true, false, 1}, {false, false, true, 1}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        start(3, 100 * MS, 2, 2);
        struct donor *bad = &run.donor[0];
        bad->stays = cases[i].behind; /* no state of it leads there */
        run_steps(&run, 40);
        bad->spoilt = cases[i].spoilt;
        bad->short_meta = cases[i].short_meta;
        struct newcomer *n = add_newcomer(&run, 125e6);
        if (cases[i].spoilt) /* the other one's comes later */
            hth_node_stall(run.donor[1].node, 400 * MS);
        go_on(n);
        assert_true(run_until_over(&run, 20 * S));
        assert_ok(n->err);
        assert_int_equal(n->states, cases[i].states);
        tear_down(&run);
    }
}

/* ---- the owner ------------------------------------------------------------------------------- */

/* Its own errors end it, and are told; and so does its budget. */
TEST(errors_of_the_owner)
{
    static const struct {
        enum hth_err adopts, want;
        int64_t means; /* that have room */
        uint64_t held; /* 0: nothing */
        uint32_t steps, states;
    } cases[] = {
        {HTH_E_DEVICE, HTH_E_DEVICE, 100, 0, 0, 1},
        {HTH_E_NOT_FINITE, HTH_E_NOT_FOUND, 100, 0, 0, 1},
        {HTH_OK, HTH_OK, 3, 0, 0, 1},
        {HTH_OK, HTH_E_BUDGET, 2, 0, 0, 0},
        {HTH_OK, HTH_OK, 2, 1, 4, 0},
        {HTH_OK, HTH_OK, 1, 1, 4, 0},
        {HTH_OK, HTH_E_BUDGET, 0, 1, 0, 0},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        start(3, 1000 * S, 1, 0);
        for (int k = 0; k < 5; k++)
            take_step(&run);
        struct newcomer *n = add_newcomer(&run, 125e6);
        if (cases[i].held > 0)
            hold(n, cases[i].held);
        n->adopt_err = cases[i].adopts;
        n->budget.limit_bytes = cases[i].means * (int64_t)MEAN_BYTES;
        go(n);
        check_end(10 * S, cases[i].want, cases[i].steps, cases[i].states);
        assert_int_equal(step_held(n), cases[i].want == HTH_OK ? 5 : cases[i].held);
        tear_down(&run);
    }
}

/* The chain grows past the wanted link, while means or a state are fetched. */
TEST(links_go)
{
    for (int k = 0; k < 3; k++) {
        start(6, 10 * MS, 1, 20);
        run.links_max = 24;
        struct newcomer *n = add_newcomer(&run, k == 0 ? 125e6 : 4e6);
        if (k == 2)
            hold(n, 10);
        go(n);
        for (int i = 0; i < 5 && k > 0; i++) { /* it is under way */
            run_steps(&run, 1);
            copy_links(&run, run.tip, n->chain);
        }
        assert_true(hth_arrive_is_going(n->arrive));
        for (int i = 0; i < 30; i++)
            take_step(&run);
        copy_links(&run, run.tip, n->chain);
        assert_true(run_until_over(&run, 10 * S));
        assert_err(HTH_E_NOT_FOUND, n->err);
        tear_down(&run);
    }
}

/* The owner ends it whenever it likes. */
TEST(an_arrival_ends_anywhere)
{
    for (int64_t us = 0; us < 400 * MS; us += 15 * MS) {
        start(6, 50 * MS, 1, 5);
        struct newcomer *n = add_newcomer(&run, 1e6);
        if (us / MS % 2 == 0)
            hold(n, 2);
        go_on(n);
        run_until_over(&run, us);
        tear_down(&run);
    }
}
