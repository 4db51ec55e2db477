/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_roll.c: members of one line choose steps (roll_line.h). Deaths, leaving and returns are in
 * tests/trainer/test_shared.c, cuts and newcomers in tests/scenarios.
 */
#include "collab/fold.h"
#include "collab/roll_line.h"
#include "core/mem.h"
#include "support/suite.h"

/* ---- steps -------------------------------------------------------------------------------- */

/* Whether its values are in the step that made a link. */
static bool is_in(const struct mate *m, uint32_t link)
{
    const struct hth_roll *entry = hth_chain_entry(m->chain, link, hth_roll_choice(m->roll)->me);
    return entry != NULL && entry->marks & HTH_ROLL_IN;
}

/* Two that hold different heads of one choice are left: one takes the other's, and both fork. */
TEST(heads_of_one_choice_meet)
{
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

TEST(a_link_that_a_quorum_refuses_is_not_final)
{
    static const struct {
        unsigned refuse, gone;
        bool goes_on;
        int64_t most_us;
    } cases[] = {
        {2, 0, true, 1500 * MS},  /* the others go on, and it follows */
        {6, 0, false, 2500 * MS}, /* they go on without the link */
        {6, 4, true, 30 * S},     /* no quorum is left without the link's maker: it yields */
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        int64_t took_us;
        assert_int_equal(goes_on(cases[i].refuse, cases[i].gone, &took_us), cases[i].goes_on);
        assert_true(took_us < cases[i].most_us);
    }
}

/* Neither a newcomer nor a member whose parts failed reduces, for a while. */
TEST(bad_reducers_rest)
{
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
TEST(the_chain_is_longer_than_kept)
{
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
TEST(a_lost_caller_is_heard_again)
{
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
TEST(members_that_missed_steps_come_back)
{
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

/* Drops a peer's signatures from all links. */
static void lose_signatures(struct mate *m, const struct mate *of)
{
    for (uint32_t k = hth_chain_count(m->chain); k-- > 0 && hth_chain_has(m->chain, k);) {
        struct hth_held *at = hth_chain_held(m->chain, k);
        for (uint32_t i = at->sigs; i-- > 0;)
            if (hth_peer_id_eq(hth_chain_id(m->chain, at->sig[i].member), &of->env->self))
                at->sig[i] = at->sig[--at->sigs];
    }
}

/* One that holds the genesis comes to the others, though the founder is gone, and nobody has its
 * signature that proves the first step. */
TEST(a_late_one_comes_from_the_genesis)
{
    struct line *l = line_start(1, 2, false);
    const struct mate *late = &l->mate[0], *founder = &l->mate[1];
    l->target = 4 * GRAIN;
    line_cut(l, 1);
    for (uint32_t i = 2; i < 5; i++)
        line_add(l);
    hth_world_run_for(l->world, 4 * S);
    hth_node_crash(founder->node, HTH_CRASH_RESET);
    hth_world_run_for(l->world, S);
    for (uint32_t i = 2; i < 5; i++)
        lose_signatures(&l->mate[i], founder);
    uint64_t before = l->mate[2].step;
    assert_true(late->step == 0 && before > 1);
    line_heal(l);
    hth_world_run_for(l->world, 5 * S);
    assert_true(line_agree(l) > before);
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

TEST(machines_stay_busy)
{
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
        if (steps < cases[k].least)
            fail_msg("%s: %llu steps", cases[k].what, (unsigned long long)steps);
        check_batches(l);
        line_stop(l);
    }
}

/* A newcomer shares the batch once it is no stranger. */
TEST(newcomer_shares_the_batch)
{
    struct line *l = line_start(1, 2, false);
    l->target = BATCH;
    hth_world_run_for(l->world, 10 * S);
    uint64_t alone = line_agree(l);
    line_add(l);
    hth_world_run_for(l->world, 10 * S);
    uint64_t before = line_agree(l);
    hth_world_run_for(l->world, 10 * S);
    uint64_t with = line_agree(l) - before;
    assert_true(with > alone * 5 / 4);
    check_batches(l);
    line_stop(l);
}

/* Micro-batches may take longer than anybody is waited for: members and newcomers are listed when
 * they have none in the air, and newcomers are in soon. */
TEST(nobody_computes_in_a_round)
{
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct line *l = line_start(seed, 4, false);
        l->target = 16 * GRAIN;
        for (uint32_t i = 0; i < MEMBERS_MAX; i++) {
            struct mate *m = i < 4 ? &l->mate[i] : line_add(l);
            m->each_us = 4 * S;
            if (i >= 3)
                hth_world_run_for(l->world, i == 3 ? 100 * S : (int64_t)seed * S / 2);
        }
        hth_world_run_for(l->world, 3 * 20 * S);
        uint32_t tip = hth_roll_choice(l->mate[0].roll)->tip;
        for (uint32_t i = 0; i < MEMBERS_MAX; i++)
            assert_true(is_in(&l->mate[i], tip));
        check_batches(l);
        line_stop(l);
    }
}

enum lie { LIES, RESTS, MUTE };

/* The time that a member costs that lies: it says that its micro-batch lands in a moment, and none
 * does; that rests, or says nothing. */
static int64_t lie(uint64_t seed, bool calls, uint32_t strange, enum lie lie)
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
    l->mate[who].lies = lie == LIES;
    l->mate[who].rests = lie == RESTS;
    l->mate[who].mute = lie == MUTE;
    const struct mate *honest = &l->mate[who == 0];
    uint64_t before = honest->step;
    hth_world_run_for(l->world, 50 * S);
    uint64_t steps = honest->step - before;
    hth_world_run_for(l->world, 10 * S);
    int64_t step_us = 10 * S / (int64_t)(honest->step - before - steps);
    line_stop(l);
    return 50 * S - (int64_t)steps * step_us;
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
TEST(babble_stops_nobody)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
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
            assert_true(honest->step - before >= 20);
        }
        line_stop(l);
    }
}

TEST(liars_cost_little)
{
    static const struct {
        const char *who;
        bool calls;
        uint32_t strange;
        enum lie lie;
        int64_t most_us;
    } cases[] = {{"a member that lies", false, 0, LIES, 7 * S},
                 {"a caller that lies", true, 0, LIES, 10 * S},
                 {"a stranger that lies", false, 1, LIES, 7 * S / 2},
                 {"five strangers that lie", false, 5, LIES, 7 * S / 2},
                 {"a member that rests", false, 0, RESTS, S},
                 {"a caller that rests", true, 0, RESTS, S},
                 {"a mute member", false, 0, MUTE, 7 * S},
                 {"a mute caller", true, 0, MUTE, 10 * S}};
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            int64_t cost = lie(seed, cases[k].calls, cases[k].strange, cases[k].lie);
            if (cost > cases[k].most_us)
                fail_msg("%s: %lld ms", cases[k].who, (long long)(cost / MS));
        }
}
