/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_roll.c: members of one line choose steps (roll_line.h). Deaths, leaving and returns are in
 * tests/trainer/test_shared.c, cuts and newcomers in tests/scenarios.
 */
#include "collab/fold.h"
#include "collab/roll_line.h"
#include "core/mem.h"

/* ---- steps -------------------------------------------------------------------------------- */

static void a_line_steps(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MEMBERS_MAX; n++) {
        struct line *l = line_start(n, n, false);
        hth_world_run_for(l->world, 10 * S);
        assert_true(line_agree(l) > 30);
        line_stop(l);
    }
}

/* Strict: exactly one part goes on, and the other one comes back with its steps. */
static void of_two_parts_one_steps(void **state)
{
    (void)state;
    for (uint32_t n = 4; n <= 5; n++) {
        struct line *l = line_start(n, n, false);
        hth_world_run_for(l->world, 3 * S);
        line_cut(l, 2);
        hth_world_run_for(l->world, 30 * S);
        uint64_t a = l->mate[0].step, b = l->mate[n - 1].step;
        assert_true(HTH_MAX(a, b) > HTH_MIN(a, b) + 20);
        line_heal(l);
        hth_world_run_for(l->world, 15 * S);
        assert_true(line_agree(l) > HTH_MAX(a, b));
        line_stop(l);
    }
}

/* Whether its values are in the step that made a link. */
static bool is_in(const struct mate *m, uint32_t link)
{
    const struct hth_roll *entry =
        hth_chain_entry(m->chain, link, hth_roll_choice(m->roll)->me);
    return entry != NULL && entry->marks & HTH_ROLL_IN;
}

/* Two that hold different heads of one choice are left: one takes the other's, and both fork. */
static void heads_of_one_choice_meet(void **state)
{
    (void)state;
    struct line *l = line_start(3, 5, true);
    const struct mate *a = &l->mate[0], *b = &l->mate[4];
    hth_world_run_for(l->world, 3 * S);
    while (a->step == b->step || a->step != l->mate[1].step || b->step != l->mate[2].step ||
           b->step != l->mate[3].step || b->step > a->step) {
        hth_world_run_for(l->world, MS / 10);
        assert_true(hth_world_now_us(l->world) < 60 * S);
    }
    line_cut(l, 2); /* the two have ended the round, and the others make the step without them */
    while (a->step != b->step)
        hth_world_run_for(l->world, MS);
    assert_memory_not_equal(&a->head[a->step], &b->head[b->step], sizeof(a->head[0]));
    for (uint32_t i = 1; i < 4; i++)
        hth_node_crash(l->mate[i].node, HTH_CRASH_RESET);
    uint64_t before = a->step;
    line_heal(l);
    hth_world_run_for(l->world, 15 * S);
    assert_true(line_agree(l) > before + 20);
    line_stop(l);
}

/* Of three, those with these numbers refuse the mean of a round, and then one of them is gone.
 * Returns whether the link that the others made of it is in the chain, and how long a step took. */
static bool goes_on(unsigned refuse, unsigned gone, int64_t *took_us)
{
    struct line *l = line_start(4, 3, false);
    hth_world_run_for(l->world, 3 * S);
    for (uint32_t i = 0; i < 3; i++)
        l->mate[i].refuses = refuse >> i & 1;
    while (l->mate[0].refuses || l->mate[1].refuses || l->mate[2].refuses)
        hth_world_run_for(l->world, MS);
    uint64_t step = l->mate[0].step;
    struct hth_hash head = l->mate[0].head[step];
    int64_t began_us = hth_world_now_us(l->world);
    for (uint32_t i = 1; i < 3; i++) {
        assert_true(!(refuse >> i & 1) || l->mate[i].step == step - 1);
        if (gone >> i & 1)
            hth_node_crash(l->mate[i].node, HTH_CRASH_RESET);
    }
    while (l->mate[1].step <= step && hth_world_now_us(l->world) - began_us < 60 * S)
        hth_world_run_for(l->world, MS);
    *took_us = hth_world_now_us(l->world) - began_us;
    hth_world_run_for(l->world, 5 * S);
    assert_true(line_agree(l) > step + 20);
    bool is_there = memcmp(&l->mate[1].head[step], &head, sizeof(head)) == 0;
    line_stop(l);
    return is_there;
}

static void a_link_that_a_quorum_refuses_is_not_final(void **state)
{
    static const struct {
        unsigned refuse, gone;
        bool goes_on;
        int64_t most_us;
    } cases[] = {
        {2, 0, true, 1500 * MS},  /* the others go on, and it follows */
        {6, 0, false, 2500 * MS}, /* they go on without the link */
        {6, 4, true, 30 * S},      /* no quorum is left without the link's maker: it yields */
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        int64_t took_us;
        assert_int_equal(goes_on(cases[i].refuse, cases[i].gone, &took_us), cases[i].goes_on);
        printf("%x refuse, %x are gone: %lld ms\n", cases[i].refuse, cases[i].gone,
               (long long)(took_us / MS));
        assert_true(took_us < cases[i].most_us);
    }
}

/* Neither a newcomer nor a member whose parts failed reduces, for a while. */
static void bad_reducers_rest(void **state)
{
    (void)state;
    struct line *l = line_start(5, 3, false);
    hth_world_run_for(l->world, 3 * S);
    assert_true(l->mate[0].reduces && l->mate[1].reduces && l->mate[2].reduces);
    line_add(l);
    while (!l->mate[3].listed)
        hth_world_run_for(l->world, MS);
    assert_false(l->mate[3].reduces);
    hth_world_run_for(l->world, 3 * S);
    assert_true(l->mate[3].reduces);
    for (uint32_t i = 0; i < l->n; i++)
        hth_roll_slow(l->mate[i].roll, &l->mate[1].env->self);
    hth_world_run_for(l->world, 3 * S);
    assert_true(l->mate[0].reduces && !l->mate[1].reduces && l->mate[2].reduces);
    hth_world_run_for(l->world, 300 * S);
    assert_true(l->mate[1].reduces);
    for (uint32_t i = 0; i < l->n * l->n; i++)
        hth_roll_slow(l->mate[i / l->n].roll, &l->mate[i % l->n].env->self);
    hth_world_run_for(l->world, 3 * S);
    uint32_t reduce = 0; /* the caller: somebody has to */
    for (uint32_t i = 0; i < l->n; i++)
        reduce += l->mate[i].reduces;
    assert_int_equal(reduce, 1);
    line_stop(l);
}

/* The samples that a member has contributed, as another one knows them. */
static uint64_t contribution(const struct mate *m, const struct mate *of)
{
    struct hth_fold *fold = hth_fold_upto(m->chain, hth_roll_choice(m->roll)->tip);
    uint64_t samples = 0;
    assert_non_null(fold);
    for (uint32_t i = 0; i < fold->count; i++)
        if (hth_peer_id_eq(&fold->peer[i].id, &of->env->self))
            samples = fold->peer[i].samples;
    hth_free(fold);
    return samples;
}

/* The chain is longer than what is kept of it: a newcomer begins at an anchor, and knows what all
 * have contributed. */
static void the_chain_is_longer_than_kept(void **state)
{
    (void)state;
    struct line *l = line_start(6, 3, false);
    hth_node_crash(l->mate[2].node, HTH_CRASH_SILENT);
    hth_world_run_for(l->world, 60 * S);
    uint32_t tip = hth_roll_choice(l->mate[0].roll)->tip;
    assert_true(hth_chain_at(l->mate[0].chain, tip)->step > 500);
    hth_node_restart(l->mate[2].node);
    hth_world_run_for(l->world, 2 * S);
    tip = hth_roll_choice(l->mate[2].roll)->tip;
    assert_int_not_equal(tip, HTH_LINK_NONE);
    assert_in_range(hth_chain_count(l->mate[2].chain), 10, 400);
    assert_int_equal(hth_chain_samples(l->mate[2].chain, tip) >= 16 * 500, 1);
    assert_true(contribution(&l->mate[2], &l->mate[0]) >= 500 * GRAIN);
    assert_in_range(contribution(&l->mate[2], &l->mate[2]), GRAIN, 100 * GRAIN);
    assert_true(line_agree(l) > 500);
    line_stop(l);
}

static const struct hth_peer_id *caller_of(const struct mate *m)
{
    struct hth_ballot now = hth_choice_now(hth_roll_choice(m->roll));
    return hth_chain_id(m->chain, hth_choice_caller(m->chain, &now));
}

/* A member that took its caller for lost for a moment, or got a bad state from it, is in the steps
 * again. */
static void a_lost_caller_is_heard_again(void **state)
{
    (void)state;
    struct line *l = line_start(8, 4, false);
    for (uint32_t i = 0; i < 4; i++)
        l->mate[i].each_us = 200 * MS;
    hth_world_run_for(l->world, 3 * S);
    for (uint32_t i = 0; i < 8; i++) {
        struct mate *m = &l->mate[i % 4];
        for (uint32_t k = 0; k < 4; k++)
            if (i < 4 && k != i)
                hth_roll_peer_lost(m->roll, &l->mate[k].env->self);
        if (i >= 4 && !hth_peer_id_eq(caller_of(m), &m->env->self))
            hth_roll_doubt(m->roll, caller_of(m), HTH_E_VERSION, "a state");
        hth_world_run_for(l->world, 3 * S);
        uint32_t tip = hth_roll_choice(m->roll)->tip;
        for (uint32_t back = 0; back < 5; back++) {
            assert_true(is_in(m, tip) && (i >= 4 || hth_chain_at(m->chain, tip)->count == 4));
            tip = hth_chain_at(m->chain, tip)->prev;
        }
    }
    line_stop(l);
}

/* They are in the next one, whatever newcomers cost in rounds. */
static void members_that_missed_steps_come_back(void **state)
{
    (void)state;
    struct line *l = line_start(8, 5, false);
    hth_world_run_for(l->world, 5 * S);
    line_add(l)->deserts = true;
    hth_world_run_for(l->world, 10 * S);
    assert_true(l->mate[5].listed); /* each time costs 0.3 s: none like it for 12 s */
    line_cut(l, 1);
    hth_world_run_for(l->world, 5 * S);
    line_heal(l);
    hth_world_run_for(l->world, S + 2 * S); /* it has dialled the caller again, and 2 s */
    assert_true(is_in(&l->mate[0], hth_roll_choice(l->mate[0].roll)->tip));
    line_stop(l);
}

/* Members of two protocols step together; the newer one is used once the last member that does not
 * speak it has left, and that one can't come back. */
static void protocols_change_in_a_run(void **state)
{
    (void)state;
    struct line *l = line_new(9, NULL, 4);
    for (uint32_t i = 0; i < 4; i++) {
        l->mate[i].speaks = i == 2 ? 1 : 2;
        line_add(l);
    }
    struct mate *old = &l->mate[2];
    hth_world_run_for(l->world, 5 * S);
    uint64_t before = line_agree(l);
    assert_true(before > 15);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(
            hth_chain_at(l->mate[i].chain, hth_roll_choice(l->mate[i].roll)->tip)->protocol, 1);
    hth_roll_leave(old->roll);
    hth_world_run_for(l->world, S);
    assert_true(hth_roll_has_left(old->roll));
    hth_node_crash(old->node, HTH_CRASH_RESET);
    hth_world_run_for(l->world, 5 * S);
    assert_true(line_agree(l) > before + 20);
    uint32_t tip = hth_roll_choice(l->mate[0].roll)->tip;
    assert_int_equal(hth_chain_at(l->mate[0].chain, tip)->protocol, 2);
    hth_node_restart(old->node);
    hth_world_run_for(l->world, 5 * S);
    int64_t since_us;
    assert_int_equal(hth_roll_unspoken(old->roll, &since_us), 2);
    assert_int_equal(hth_roll_choice(old->roll)->tip, HTH_LINK_NONE);
    assert_true(l->mate[0].step > before + 40);
    line_stop(l);
}

/* ---- quotas ------------------------------------------------------------------------------ */

#define BATCH (20 * GRAIN)

static void far_away(struct line *l, uint32_t who, int64_t latency_us)
{
    struct hth_link link = HTH_LINK_INIT;
    link.latency_us = latency_us;
    for (uint32_t i = 0; i < l->n; i++) {
        hth_world_link(l->world, l->mate[who].node, l->mate[i].node, &link);
        hth_world_link(l->world, l->mate[i].node, l->mate[who].node, &link);
    }
}

/* The least time from one step to the next: the gathering, READY, GO and average. */
static int64_t bound_us(const struct line *l, int64_t latency_us)
{
    struct hth_brings in[MEMBERS_MAX];
    uint32_t quota[MEMBERS_MAX];
    for (uint32_t i = 0; i < l->n; i++)
        in[i] = (struct hth_brings){.grain = GRAIN, .each_us = l->mate[i].each_us};
    assert_true(hth_quota(in, l->n, l->target, quota));
    return hth_quota_closes_us(in, l->n, quota) + 2 * latency_us + AVERAGE_US;
}

/* No step has more than a micro-batch of each member too much, and none was in the air. */
static void check_batches(const struct line *l)
{
    assert_true(l->over_max <= GRAIN * (uint64_t)l->n);
    assert_int_equal(l->lost, 0);
}

static void machines_stay_busy(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint32_t n;
        int64_t each_ms[5];
        int64_t far_ms; /* of the last */
        double uneven;  /* speeds change from one micro-batch to the next */
        uint64_t least; /* steps in the time of 100 */
    } cases[] = {
        {"alike", 3, {20, 20, 20}, 10, 0, 95},
        {"one ten times slower", 4, {20, 20, 20, 200}, 10, 0, 95},
        {"unlike", 5, {20, 30, 40, 55, 70}, 10, 0, 95},
        {"one far", 4, {20, 20, 20, 20}, 100, 0, 95},
        {"slow", 3, {2000, 3000, 5000}, 10, 0, 95},
        {"uneven", 5, {5, 15, 25, 35, 45}, 10, 0.3, 75},
        {"slow and uneven", 5, {40, 120, 200, 280, 360}, 10, 0.3, 75},
    };
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct line *l = line_start(k, cases[k].n, false);
        l->target = BATCH;
        l->uneven = cases[k].uneven;
        for (uint32_t i = 0; i < l->n; i++)
            l->mate[i].each_us = cases[k].each_ms[i] * MS;
        far_away(l, l->n - 1, cases[k].far_ms * MS);
        int64_t bound = bound_us(l, cases[k].far_ms * MS);
        hth_world_run_for(l->world, 10 * bound);
        uint64_t before = l->mate[0].step;
        hth_world_run_for(l->world, 100 * bound);
        uint64_t steps = l->mate[0].step - before;
        printf("%s: %llu steps in the time of 100, %llu samples too many\n", cases[k].what,
               (unsigned long long)steps, (unsigned long long)l->over_max);
        assert_true(steps >= cases[k].least);
        check_batches(l);
        line_stop(l);
    }
}

/* The others bring what one does not, once they know. */
static void death_in_a_batch(void **state)
{
    (void)state;
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};
    for (uint32_t k = 0; k < 8; k++) {
        struct line *l = line_start(k, 4, false);
        l->target = BATCH;
        for (uint32_t i = 0; i < l->n; i++)
            l->mate[i].each_us = 100 * MS;
        hth_world_run_for(l->world, 5 * S);
        uint64_t step = l->mate[k % 4].step;
        while (l->mate[k % 4].step == step)
            hth_world_run_for(l->world, MS);
        hth_world_run_for(l->world, 220 * MS);
        hth_node_crash(l->mate[k % 4].node, how[k / 4]);
        int64_t died = hth_world_now_us(l->world);
        const struct mate *other = &l->mate[(k + 1) % 4];
        step = other->step;
        while (other->step == step)
            hth_world_run_for(l->world, MS);
        int64_t took = other->tip_us - died;
        printf("death of %u in a batch: a step %lld ms later\n", k % 4, (long long)took / 1000);
        /* Of 7 micro-batches each at most 5 were missing. */
        assert_true(took < 500 * MS + (k < 4 ? 150 : 600) * MS);
        hth_world_run_for(l->world, 5 * S);
        assert_true(line_agree(l) > step + 5);
        check_batches(l);
        line_stop(l);
    }
}

/* A newcomer shares the batch once it is no stranger. */
static void newcomer_shares_the_batch(void **state)
{
    (void)state;
    struct line *l = line_start(1, 2, false);
    l->target = BATCH;
    hth_world_run_for(l->world, 10 * S);
    uint64_t alone = line_agree(l);
    line_add(l);
    hth_world_run_for(l->world, 10 * S);
    uint64_t before = line_agree(l);
    hth_world_run_for(l->world, 10 * S);
    uint64_t with = line_agree(l) - before;
    printf("two: %llu steps in 10 s, three: %llu, %llu samples too many\n",
           (unsigned long long)alone, (unsigned long long)with, (unsigned long long)l->over_max);
    assert_true(with > alone * 5 / 4);
    check_batches(l);
    line_stop(l);
}

/* The time that a liar costs: it says that its micro-batch lands in a moment, and none does. */
static int64_t lie(uint64_t seed, bool calls, uint32_t strange, bool rests)
{
    struct line *l = line_start(seed, strange > 0 ? 3 : 4, false);
    l->target = BATCH;
    hth_world_run_for(l->world, 10 * S);
    for (uint32_t i = 0; i < strange; i++) {
        line_add(l);
        l->mate[3 + i].lies = true;
    }
    const struct hth_peer_id *caller = caller_of(&l->mate[0]);
    uint32_t who = 3;
    while (!strange && calls != hth_peer_id_eq(&l->mate[who].env->self, caller))
        who--;
    l->mate[who].lies = !rests;
    l->mate[who].rests = rests;
    const struct mate *honest = &l->mate[who == 0];
    uint64_t before = honest->step;
    hth_world_run_for(l->world, 50 * S);
    uint64_t steps = honest->step - before;
    hth_world_run_for(l->world, 10 * S);
    int64_t step_us = 10 * S / (int64_t)(honest->step - before - steps);
    line_stop(l);
    return 50 * S - (int64_t)steps * step_us;
}

static void a_mute_member_stops_nobody(void **state)
{
    (void)state;
    for (uint32_t who = 0; who < 4; who++) {
        struct line *l = line_start(who, 4, false);
        l->target = BATCH;
        l->mate[who].mute = true;
        hth_world_run_for(l->world, 30 * S);
        uint64_t steps = l->mate[(who + 1) % 4].step;
        printf("beside a mute one: %llu steps in 30 s\n", (unsigned long long)steps);
        assert_true(steps > 40);
        line_stop(l);
    }
}

static void babble(struct mate *m)
{
    struct hth_rng *rng = &m->env->rng;
    struct hth_brings brings = {(uint32_t)hth_rng_below(rng, 1u << hth_rng_below(rng, 32)),
                                (uint32_t)hth_rng_below(rng, 1u << hth_rng_below(rng, 32)),
                                (uint32_t)hth_rng_below(rng, 1u << hth_rng_below(rng, 32)),
                                (int64_t)hth_rng_u64(rng) >> hth_rng_below(rng, 64),
                                (int64_t)hth_rng_u64(rng) >> hth_rng_below(rng, 64)};
    hth_roll_bring(m->roll, &brings);
}

/* Numbers without any sense, of a member or of a stranger, stop nobody. */
static void babble_stops_nobody(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct line *l = line_start(seed, 3 + seed % 2, false);
        l->target = BATCH;
        if (seed % 2 == 0)
            line_add(l);
        hth_world_run_for(l->world, 2 * S);
        const struct mate *honest = &l->mate[0];
        for (uint64_t k = 0, before = 0; k < 3; k++, before = honest->step) {
            for (uint32_t i = 0; i < 2000; i++) {
                hth_world_run_for(l->world, 10 * MS);
                babble(&l->mate[3]);
            }
            printf("beside a babbler: %llu steps in 20 s\n",
                   (unsigned long long)(honest->step - before));
            assert_true(honest->step - before >= 20);
        }
        line_stop(l);
    }
}

static void liars_cost_little(void **state)
{
    (void)state;
    static const struct {
        const char *who;
        bool calls;
        uint32_t strange;
        bool rests;
        int64_t most_us;
    } cases[] = {{"a member that lies", false, 0, false, 7 * S},
                 {"a caller that lies", true, 0, false, 10 * S},
                 {"a stranger that lies", false, 1, false, 7 * S / 2},
                 {"five strangers that lie", false, 5, false, 7 * S / 2},
                 {"a member that rests", false, 0, true, S},
                 {"a caller that rests", true, 0, true, S}};
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            int64_t cost = lie(seed, cases[k].calls, cases[k].strange, cases[k].rests);
            printf("%s: %lld ms\n", cases[k].who, (long long)cost / 1000);
            assert_true(cost <= cases[k].most_us);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_steps),
        cmocka_unit_test(of_two_parts_one_steps),
        cmocka_unit_test(heads_of_one_choice_meet),
        cmocka_unit_test(a_link_that_a_quorum_refuses_is_not_final),
        cmocka_unit_test(bad_reducers_rest),
        cmocka_unit_test(the_chain_is_longer_than_kept),
        cmocka_unit_test(a_lost_caller_is_heard_again),
        cmocka_unit_test(members_that_missed_steps_come_back),
        cmocka_unit_test(protocols_change_in_a_run),
        cmocka_unit_test(machines_stay_busy),
        cmocka_unit_test(death_in_a_batch),
        cmocka_unit_test(newcomer_shares_the_batch),
        cmocka_unit_test(liars_cost_little),
        cmocka_unit_test(a_mute_member_stops_nobody),
        cmocka_unit_test(babble_stops_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
