/* SPDX-License-Identifier: Apache-2.0 */
/* test_arrive.c: members that missed steps, and newcomers, get to the tip of a run that goes on. */
#include "collab/means_run.h"

static bool is_fetching(void *arg)
{
    return fetched(arg) > 0;
}

static uint64_t parts_given(const struct run *r)
{
    uint64_t parts = 0;
    for (uint32_t i = 0; i < r->donors; i++) {
        struct hth_state_donor_stats given = {0};
        if (r->donor[i].donor != NULL)
            hth_state_donor_stats(r->donor[i].donor, &given);
        parts += given.parts;
    }
    return parts;
}

/* ---- what is promised ------------------------------------------------------------------------ */

static void a_missed_step_is_one_mean(void **state)
{
    (void)state;
    static const struct {
        uint64_t missed;
        uint32_t steps, states;
    } cases[] = {{0, 0, 0}, {1, 1, 0}, {3, 3, 0}, {32, 32, 0}, {33, 0, 1}};
    for (int ghost = 0; ghost < 2; ghost++)
        for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
            static struct run r;
            setup(&r, ghost, 3, 10 * MS);
            add_donor(&r);
            add_donor(&r);
            run_steps(&r, 40);
            struct newcomer *n = add_newcomer(&r, 125e6);
            hold(n, 40 - cases[i].missed);
            r.step_us = r.next_us = 1000 * S; /* the run waits for it */
            go(n);
            assert_true(run_until_over(&r, 10 * S));
            assert_ok(n->err);
            assert_int_equal(hth_chain_at(n->chain, n->at)->step, 40);
            assert_int_equal(n->steps, cases[i].steps);
            assert_int_equal(n->states, cases[i].states);
            assert_int_equal(fetched(n), cases[i].steps * MEAN_BYTES);
            assert_int_equal(parts_given(&r) > 0, cases[i].states > 0);
            tear_down(&r);
        }
}

/* A state takes `state_steps` steps to come, and a mean half a step: the means made meanwhile are
 * fetched behind it, and those made meanwhile, so it takes twice as long. */
static void check_newcomer(bool ghost, double state_steps, int64_t step_us)
{
    static struct run r;
    const double rate = 4e6;
    setup_values(&r, ghost, (uint64_t)(rate * (double)step_us / 1e6 / 2.1 / sizeof(float)),
                 2 * state_steps, step_us, 4 << 20);
    for (int d = 0; d < 3; d++)
        add_donor(&r);
    run_steps(&r, 10);
    struct newcomer *n = add_newcomer(&r, rate);
    int64_t begin = hth_world_now_us(r.world);
    go_on(n);
    assert_true(run_until_over(&r, 60 * step_us));
    double took = (double)(n->came_us - begin) / (double)step_us;
    double wait = HTH_MAX(3.0, 1e6 / (double)step_us);
    printf("%sstate of %g steps of %lld ms: in after %.1f, %u states, %u means, %u arrivals\n",
           ghost ? "ghosts, " : "", state_steps, (long long)(step_us / MS), took, n->states,
           n->steps, n->ends);
    assert_true(took <= 2 * state_steps + wait);
    tear_down(&r);
}

static void newcomers_reach_the_tip(void **state)
{
    (void)state;
    static const double state_steps[] = {0.5, 1, 3, 10};
    static const int64_t step_us[] = {20 * MS, 50 * MS, 500 * MS, 10 * S};
    for (size_t i = 0; i < HTH_ARRAY_LEN(state_steps); i++)
        for (size_t k = 0; k < HTH_ARRAY_LEN(step_us); k++) {
            check_newcomer(true, state_steps[i], step_us[k]);
            if (step_us[k] == 50 * MS)
                check_newcomer(false, state_steps[i], step_us[k]);
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
static void other_ways_cost_a_state(void **state)
{
    enum way { BRANCH, GENESIS, GENESIS_BEFORE, OTHER_GENESIS, OTHER_STEP, NO_MEAN };
    static const struct {
        enum way way;
        uint32_t before, steps, states; /* of the run; which it takes */
    } cases[] = {{BRANCH, 10, 0, 1},
                 {GENESIS, 0, 0, 0}, /* of the same parameters: nothing is moved */
                 {GENESIS_BEFORE, 3, 3, 0},
                 {OTHER_GENESIS, 0, 0, 1},
                 {OTHER_STEP, 0, 0, 1},
                 {NO_MEAN, 10, 0, 1}};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        static struct run r;
        enum way way = cases[i].way;
        struct hth_hash mean = {{9}};
        setup(&r, false, 3, way == NO_MEAN ? 5 * S : 200 * MS); /* one mean is kept */
        add_donor(&r);
        run_steps(&r, cases[i].before);
        struct newcomer *n = add_newcomer(&r, 125e6);
        if (way == NO_MEAN)
            hold(n, 7);
        else if (way == BRANCH)
            n->at = add_link(n->chain, 5, HTH_LINK_STEP, 1, &mean);
        else
            n->at = add_genesis(n->chain, way == OTHER_STEP ? 7 : 0,
                                way == OTHER_GENESIS ? &mean : &r.params[0]);
        if (way == GENESIS || way == GENESIS_BEFORE)
            memset(n->params, 0, sizeof(n->params));
        go(n);
        assert_true(run_until_over(&r, 3 * S));
        assert_ok(n->err);
        assert_memory_equal(hth_chain_head(n->chain, n->at), hth_chain_head(r.chain, n->known), 32);
        assert_int_equal(n->states, cases[i].states);
        assert_int_equal(n->steps, cases[i].steps);
        tear_down(&r);
    }
}

/* A snapshot's head may be newer than the chain. Where steps are quick the run is far ahead of it
 * once its links are here: it will do all the same, or the next one would be ahead again. */
static void an_unknown_head_is_named(void **state)
{
    (void)state;
    for (int quick = 0; quick < 2; quick++) {
        static struct run r;
        setup_values(&r, false, quick ? VALUES / 8 : VALUES, 3, quick ? 10 * MS : S, 4 << 20);
        add_donor(&r);
        run_steps(&r, 20);
        struct newcomer *n = add_newcomer(&r, 125e6);
        run_steps(&r, 1);
        go(n);
        assert_true(run_until_over(&r, 900 * MS));
        assert_err(HTH_E_AGAIN, n->err);
        assert_int_equal(n->at, HTH_LINK_NONE);
        struct hth_hash head;
        struct hth_roll_peer holder;
        hth_arrive_unknown(n->arrive, &head, &holder);
        assert_true(quick || memcmp(&head, hth_chain_head(r.chain, r.tip), sizeof(head)) == 0);
        assert_true(hth_peer_id_eq(&holder.id, &r.donor[0].env->self));
        run_steps(&r, quick ? 2 : 0);
        n->ends = 0;
        on_links(n);
        assert_true(run_until_over(&r, 900 * MS));
        assert_true(quick || n->err == HTH_OK);
        assert_int_equal(n->states, 1);
        tear_down(&r);
    }
}

static bool has_parts(void *arg)
{
    return parts_given(arg) > 10;
}

/* Donors die while they give a state, or means; one is left. */
static void donors_die(void **state)
{
    (void)state;
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};
    for (size_t k = 0; k < HTH_ARRAY_LEN(how); k++)
        for (int in_means = 0; in_means < 2; in_means++) {
            static struct run r;
            setup(&r, false, 10, 500 * MS);
            for (int i = 0; i < 3; i++)
                add_donor(&r);
            run_steps(&r, 10);
            struct newcomer *n = add_newcomer(&r, 3.0 * MEAN_BYTES * 2);
            int64_t begin = hth_world_now_us(r.world);
            if (in_means) {
                hold(n, 8);
                assert_false(is_fetching(n));
            }
            go_on(n);
            assert_true(hth_world_run_until_true(r.world, in_means ? is_fetching : has_parts,
                                                 in_means ? (void *)n : (void *)&r, 400 * MS));
            hth_node_crash(r.donor[0].node, how[k]);
            hth_world_run_for(r.world, 50 * MS);
            hth_node_crash(r.donor[1].node, how[k]);
            assert_true(run_until_over(&r, 60 * S));
            assert_ok(n->err);
            printf("%s deaths during %s: in after %lld ms, %u states\n", k == 0 ? "loud" : "silent",
                   in_means ? "means" : "a state", (long long)(n->came_us - begin) / MS, n->states);
            assert_true(n->came_us - begin < (k == 0 ? 3 : 12) * S);
            tear_down(&r);
        }
}

/* Where no holder is left it says so, and what it holds. */
static void nobody_is_left(void **state)
{
    enum what { DEAD, FROZEN, DECLINE, NO_MEANS };
    static const struct {
        enum what what;
        int64_t within_us;
        enum hth_err want;
    } cases[] = {{DEAD, 1 * S, HTH_E_NOT_FOUND},
                 {FROZEN, 12 * S, HTH_E_NOT_FOUND},
                 {DECLINE, 21 * S, HTH_E_TIMEOUT},
                 {NO_MEANS, 2 * S, HTH_E_NOT_FOUND}}; /* its state does not lead there */
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        static struct run r;
        enum what what = cases[i].what;
        setup(&r, false, 3, 100 * MS);
        struct donor *d = add_donor(&r);
        run_steps(&r, 5);
        d->declines = what == DECLINE;
        d->stays = true;
        run_steps(&r, what == NO_MEANS ? 3 : 0);
        if (what == NO_MEANS) {
            hth_means_free(d->means);
            d->means = NULL;
        }
        struct newcomer *n = add_newcomer(&r, 125e6);
        if (what == DEAD || what == FROZEN)
            hth_node_crash(d->node, what == DEAD ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
        int64_t begin = hth_world_now_us(r.world);
        r.next_us = INT64_MAX / 2; /* the run stands still */
        go(n);
        assert_true(run_until_over(&r, 30 * S));
        assert_err(cases[i].want, n->err);
        assert_true(n->came_us - begin <= cases[i].within_us);
        assert_int_equal(n->states, what == NO_MEANS);
        if (what == NO_MEANS)
            assert_int_equal(hth_chain_at(n->chain, n->at)->step, 5);
        else
            assert_int_equal(n->at, HTH_LINK_NONE);
        tear_down(&r);
    }
}

static void states_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        bool spoilt, short_meta, behind;
        uint32_t states;
    } cases[] = {{true, false, false, 2}, {false, true, false, 1}, {false, false, true, 1}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        static struct run r;
        setup(&r, false, 3, 100 * MS);
        struct donor *bad = add_donor(&r);
        add_donor(&r);
        run_steps(&r, 2);
        bad->stays = cases[i].behind; /* no state of it leads there */
        run_steps(&r, 40);
        bad->spoilt = cases[i].spoilt;
        bad->short_meta = cases[i].short_meta;
        struct newcomer *n = add_newcomer(&r, 125e6);
        if (cases[i].spoilt) /* the other one's comes later */
            hth_node_stall(r.donor[1].node, 400 * MS);
        go_on(n);
        assert_true(run_until_over(&r, 20 * S));
        assert_ok(n->err);
        assert_int_equal(n->states, cases[i].states);
        tear_down(&r);
    }
}

/* The owner's own errors end it, and are told. */
static void errors_of_the_owner(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        static struct run r;
        setup(&r, false, 3, 1000 * S);
        add_donor(&r);
        for (int i = 0; i < 3; i++)
            take_step(&r);
        struct newcomer *n = add_newcomer(&r, 125e6);
        n->adopt_err = k == 0 ? HTH_E_DEVICE : HTH_E_NOT_FINITE;
        go(n);
        assert_true(run_until_over(&r, 10 * S));
        assert_err(k == 0 ? HTH_E_DEVICE : HTH_E_NOT_FOUND, n->err);
        assert_int_equal(n->states, 1);
        assert_int_equal(n->at, HTH_LINK_NONE);
        tear_down(&r);
    }
}

static void budgets_are_kept(void **state)
{
    (void)state;
    static const struct {
        int64_t means; /* that have room */
        uint64_t held; /* 0: nothing */
        enum hth_err want;
    } cases[] = {
        {3, 0, HTH_OK}, {2, 0, HTH_E_BUDGET}, {2, 1, HTH_OK}, {1, 1, HTH_OK}, {0, 1, HTH_E_BUDGET}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        static struct run r;
        setup(&r, false, 3, 1000 * S);
        add_donor(&r);
        for (int k = 0; k < 5; k++)
            take_step(&r);
        struct newcomer *n = add_newcomer(&r, 125e6);
        if (cases[i].held > 0)
            hold(n, cases[i].held);
        n->budget.limit_bytes = cases[i].means * (int64_t)MEAN_BYTES;
        go(n);
        assert_true(run_until_over(&r, 10 * S));
        assert_err(cases[i].want, n->err);
        assert_int_equal(hth_budget_used(&n->budget), 0);
        tear_down(&r);
    }
}

/* The chain grows past the wanted link, while means or a state are fetched. */
static void links_go(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        static struct run r;
        setup(&r, false, 6, 10 * MS);
        add_donor(&r);
        run_steps(&r, 20);
        r.links_max = 24;
        struct newcomer *n = add_newcomer(&r, k == 0 ? 125e6 : 4e6);
        if (k == 2)
            hold(n, 10);
        go(n);
        for (int i = 0; i < 5 && k > 0; i++) { /* it is under way */
            run_steps(&r, 1);
            copy_links(&r, r.tip, n->chain);
        }
        assert_true(hth_arrive_is_going(n->arrive));
        for (int i = 0; i < 30; i++)
            take_step(&r);
        copy_links(&r, r.tip, n->chain);
        assert_true(run_until_over(&r, 10 * S));
        assert_err(HTH_E_NOT_FOUND, n->err);
        tear_down(&r);
    }
}

/* The owner ends it whenever it likes. */
static void an_arrival_ends_anywhere(void **state)
{
    (void)state;
    for (int64_t us = 0; us < 400 * MS; us += 15 * MS) {
        static struct run r;
        setup(&r, false, 6, 50 * MS);
        add_donor(&r);
        run_steps(&r, 5);
        struct newcomer *n = add_newcomer(&r, 1e6);
        if (us / MS % 2 == 0)
            hold(n, 2);
        go_on(n);
        run_until_over(&r, us);
        tear_down(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missed_step_is_one_mean),
        cmocka_unit_test(newcomers_reach_the_tip),
        cmocka_unit_test(other_ways_cost_a_state),
        cmocka_unit_test(an_unknown_head_is_named),
        cmocka_unit_test(donors_die),
        cmocka_unit_test(nobody_is_left),
        cmocka_unit_test(states_that_are_refused),
        cmocka_unit_test(errors_of_the_owner),
        cmocka_unit_test(budgets_are_kept),
        cmocka_unit_test(links_go),
        cmocka_unit_test(an_arrival_ends_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
