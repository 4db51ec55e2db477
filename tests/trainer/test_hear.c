/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who fetches a state goes along with the others' steps (trainer/hear.c). What it hears is scripted
 * here: its averager tells it each average that the first of the others has, as soon as that one
 * has it, unless the script says otherwise. Four trainers on lines on which a state takes half of a
 * step, and as much as samples are gathered for: who hears nothing never gets in.
 */
#include <stdio.h>
#include <string.h>

#include "averaging/roster.h"
#include "core/budget.h"
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S        HTH_US_PER_S
#define MS       HTH_US_PER_MS
#define MEMBERS  4 /* and the newcomer, whose number that is */
#define LOOKS    4
#define GRADIENT 1 /* a ticket of the trainer's */

/* Before a trainer's own averager. */
struct between {
    struct hth_averager_ops ops;
    struct hth_averager averager, under;
    hth_avg_round_fn *fn;
    void *arg;
};

static struct {
    struct between first, late;
    struct hth_device device;
    struct crew_scene *scene;
    struct hth_avg_offer offered; /* the last one of the first member */
    struct hth_avg_offer look[LOOKS];
    bool is_out[LOOKS];
    /* the script */
    bool deaf;            /* it hears nothing, from now on */
    uint64_t misses;      /* it does not hear of this many steps, ... */
    uint64_t missed_from; /* ... from the first that it listens to on */
    bool lied_to;         /* of the next step it is told an average that nobody has */
    bool short_of;        /* what it is told is short of the target, and it can't listen again */
    bool refuses;
    struct hth_budget *budget;
} script;

/* ---- the averagers --------------------------------------------------------------------------- */

static void tell(uint32_t i, const struct hth_avg_result *r)
{
    struct hth_avg_result out = *r;

    out.ticket = script.look[i].ticket;
    out.values = NULL;
    out.weight_met = script.short_of ? 12 : out.weight_met;
    script.refuses = script.short_of;
    script.is_out[i] = false;
    script.late.fn(script.late.arg, &out);
}

/* When it is not known yet: zeros. */
static void lie(const struct hth_avg_offer *o)
{
    struct hth_avg_result r = {.average = hth_blob_try_new(o->count * sizeof(float)),
                               .weight = 24,
                               .weight_met = 24,
                               .weight_fraction = 1,
                               .origin = 1,
                               .heads = MEMBERS,
                               .members = MEMBERS + 1};

    memset(r.average->data, 0, r.average->size);
    for (uint32_t i = 0; i < LOOKS && script.lied_to; i++)
        if (script.is_out[i] && script.look[i].sweep == o->sweep) {
            script.lied_to = false;
            tell(i, &r);
        }
    hth_blob_unref(r.average);
}

static enum hth_err first_offer(void *self, const struct hth_avg_offer *offer)
{
    if (offer->ticket == GRADIENT) {
        script.offered = *offer;
        lie(offer);
    }
    return script.first.under.ops->offer(self, offer);
}

static bool is_missed(uint64_t sweep)
{
    if (script.misses > 0 && script.missed_from == 0)
        script.missed_from = sweep;
    return script.deaf || (script.missed_from > 0 && sweep >= script.missed_from &&
                           sweep < script.missed_from + script.misses);
}

static void first_round(void *arg, const struct hth_avg_result *r)
{
    const struct hth_avg_result nobody = {.err = HTH_E_NOT_FOUND, .reason = HTH_AVG_NOBODY};

    (void)arg;
    for (uint32_t i = 0; i < LOOKS && r->ticket == GRADIENT && r->err == HTH_OK; i++) {
        const struct hth_avg_offer *o = &script.look[i];

        if (!script.is_out[i] || o->sweep > script.offered.sweep)
            continue;
        if (o->sweep == script.offered.sweep && o->kind == script.offered.kind &&
            !is_missed(o->sweep))
            tell(i, r);
        else
            tell(i, &nobody);
    }
    script.first.fn(script.first.arg, r);
}

static enum hth_err late_offer(void *self, const struct hth_avg_offer *offer)
{
    uint32_t i = 0;

    if (offer->values != NULL)
        return script.late.under.ops->offer(self, offer);
    assert_true(offer->weight == 0 && offer->count > 0);
    if (script.refuses)
        return HTH_E_BUSY;
    while (i < LOOKS && script.is_out[i])
        i++;
    assert_true(i < LOOKS);
    script.look[i] = *offer;
    script.is_out[i] = true;
    return HTH_OK;
}

static void late_round(void *arg, const struct hth_avg_result *r)
{
    (void)arg;
    script.late.fn(script.late.arg, r);
}

static enum hth_err first_start(void *self, hth_avg_round_fn *fn, void *arg)
{
    script.first.fn = fn;
    script.first.arg = arg;
    return script.first.under.ops->start(self, first_round, NULL);
}

static enum hth_err late_start(void *self, hth_avg_round_fn *fn, void *arg)
{
    script.late.fn = fn;
    script.late.arg = arg;
    return script.late.under.ops->start(self, late_round, NULL);
}

static void late_stop(void *self)
{
    memset(script.is_out, 0, sizeof(script.is_out));
    script.late.under.ops->stop(self);
}

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    struct between *b = i == 0 ? &script.first : &script.late;

    crew_own_rows(arg, i, t);
    if (i != 0 && i != MEMBERS)
        return;
    b->under = *t->averager;
    b->ops = *t->averager->ops;
    b->ops.start = i == 0 ? first_start : late_start;
    b->ops.offer = i == 0 ? first_offer : late_offer;
    if (i == MEMBERS)
        b->ops.stop = late_stop;
    b->averager = (struct hth_averager){&b->ops, t->averager->self};
    t->averager = &b->averager;
    if (i == MEMBERS)
        t->budget = script.budget;
}

/* ---- the runs -------------------------------------------------------------------------------- */

/* With so many updates, and ten of them made. */
static struct crew_scene *scene_new(uint64_t seed, uint64_t updates)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);

    memset(&script, 0, sizeof(script));
    script.device = crew_slow;
    script.device.job_overhead_us = 20 * MS;
    script.device.up_bytes_per_s = script.device.down_bytes_per_s = 5e4;
    o.device = &script.device;
    o.members = MEMBERS;
    o.edit = edit;
    o.trainer.model.d = 64;
    o.trainer.updates_max = updates;
    o.trainer.share.target = 24;
    o.trainer.share.every = 0;
    script.scene = crew_scene_new(seed, &o);
    crew_scene_run(script.scene, 0, 10, 60 * S);
    return script.scene;
}

static struct hth_share_stats late_stats(void)
{
    struct hth_train_stats s = {0};

    if (hth_crew_trainer(script.scene->crew, MEMBERS) != NULL)
        hth_trainer_stats(hth_crew_trainer(script.scene->crew, MEMBERS), &s);
    return s.share;
}

static bool is_in(void *arg)
{
    return ((const struct crew_scene *)arg)->stats[MEMBERS].share.steps_shared > 0;
}

/* Within so long it takes steps with the others. */
static bool joins(int64_t within_us)
{
    assert_int_equal(hth_crew_join(script.scene->crew), MEMBERS);
    return hth_world_run_until_true(script.scene->world, is_in, script.scene, within_us);
}

static bool are_alike(void *arg)
{
    const struct crew_scene *s = arg;

    for (uint32_t i = 1; i <= MEMBERS; i++)
        if (s->stats[i].updates != s->stats[0].updates)
            return false;
    return hth_crew_spread(s->crew) == 0;
}

static void check_alike(void)
{
    assert_true(hth_world_run_until_true(script.scene->world, are_alike, script.scene, 20 * S));
}

/* What it has then is what they have, to the last bit. */
static void newcomer_with_averages_matches_the_others_exactly(void **state)
{
    struct crew_scene *s = scene_new(1, 1000);

    (void)state;
    assert_true(joins(10 * S));
    assert_true(late_stats().heard >= 1);
    assert_int_equal(late_stats().catch_ups, 1);
    check_alike();
    crew_scene_free(s);
}

static void slow_state_without_averages_never_gets_in(void **state)
{
    struct crew_scene *s = scene_new(1, 1000);

    (void)state;
    script.deaf = true;
    assert_false(joins(20 * S));
    assert_int_equal(late_stats().heard, 0);
    crew_scene_free(s);
}

/* What it missed makes a state that is older be of no use: the next one is. */
static void missed_average_needs_a_newer_state(void **state)
{
    struct crew_scene *s = scene_new(1, 1000);

    (void)state;
    script.misses = 1;
    assert_true(joins(15 * S));
    assert_true(late_stats().heard >= 1);
    check_alike();
    crew_scene_free(s);
}

/* There is no room for what it hears. */
static void newcomer_without_memory_keeps_no_averages(void **state)
{
    struct crew_scene *s = scene_new(2, 1000);
    struct hth_budget budget;

    (void)state;
    hth_budget_init(&budget, 32000, NULL); /* a state has 28 kB */
    script.budget = &budget;
    assert_false(joins(10 * S));
    assert_int_equal(late_stats().heard, 0);
    assert_true(late_stats().catch_ups >= 1);
    crew_scene_free(s);
    assert_int_equal(hth_budget_used(&budget), 0);
}

static bool has_yielded(void *arg)
{
    (void)arg;
    return late_stats().yields == 1;
}

/* What it heard is not what the others stepped on: as who has split off it is outvoted, and takes
 * their state. */
static void false_average_is_outvoted(void **state)
{
    struct crew_scene *s = scene_new(1, 1000);

    (void)state;
    script.lied_to = true;
    assert_true(joins(15 * S));
    assert_false(script.lied_to);
    assert_true(hth_world_run_until_true(s->world, has_yielded, s, 20 * S));
    check_alike();
    assert_int_equal(late_stats().yields, 1);
    crew_scene_free(s);
}

static bool has_a_part(void *arg)
{
    (void)arg;
    return late_stats().parts_done > 0;
}

/* Who listens is gone: nobody notices. */
static void death_of_an_observer_delays_nobody(void **state)
{
    struct crew_scene *s = scene_new(1, 1000);
    uint64_t steps;

    (void)state;
    assert_int_equal(hth_crew_join(s->crew), MEMBERS);
    assert_true(hth_world_run_until_true(s->world, has_a_part, s, 5 * S));
    hth_node_crash(hth_crew_node(s->crew, MEMBERS), HTH_CRASH_SILENT);
    steps = s->stats[0].updates;
    hth_world_run_for(s->world, 8 * S); /* of steps of 1.5 s */
    assert_true(s->stats[0].updates >= steps + 5);
    crew_scene_free(s);
}

/* One of those who give the state dies, and its average is lost with it or not. */
static void newcomer_survives_death_of_its_donor(void **state)
{
    struct crew_scene *s = scene_new(1, 1000);

    (void)state;
    assert_int_equal(hth_crew_join(s->crew), MEMBERS);
    assert_true(hth_world_run_until_true(s->world, has_a_part, s, 5 * S));
    hth_node_crash(hth_crew_node(s->crew, 1), HTH_CRASH_RESET);
    assert_true(hth_world_run_until_true(s->world, is_in, s, 20 * S));
    assert_true(late_stats().heard >= 1);
    crew_scene_free(s);
}

static bool is_late_done(void *arg)
{
    return hth_crew_is_done(((struct crew_scene *)arg)->crew, MEMBERS);
}

/* After the run's last step nothing is listened for. */
static void no_average_is_awaited_after_the_last_step(void **state)
{
    struct crew_scene *s = scene_new(2, 11);

    (void)state;
    script.misses = 1; /* that one */
    assert_int_equal(hth_crew_join(s->crew), MEMBERS);
    assert_true(hth_world_run_until_true(s->world, is_late_done, s, 10 * S));
    assert_true(hth_crew_spread(s->crew) == 0);
    crew_scene_free(s);
}

/* The others gather what an average was short of, as it hears, and it can't listen to the next: its
 * state is taken up all the same. */
static void state_is_adopted_though_the_rest_of_a_step_is_missed(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct crew_scene *s = scene_new(1, 1000);

        hth_world_run_for(s->world, i * 150 * MS);
        script.short_of = true;
        (void)joins(6 * S);
        assert_true(late_stats().catch_ups >= 1);
        crew_scene_free(s);
    }
}

#define LIARS 4

static struct hth_roster *liars[LIARS];
static uint32_t liars_gone;

/* In the order in which they are crashed. */
static void halt_liar(struct hth_env *env, void *arg)
{
    (void)env;
    (void)arg;
    hth_roster_free(liars[liars_gone]);
    liars[liars_gone++] = NULL;
}

/* As many as there are others say a far step, and are gone again, or stay. */
static void say_far_step(bool stay)
{
    struct crew_scene *s = scene_new(1, 1000);
    struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    struct hth_node *n[LIARS];
    char name[16];

    liars_gone = 0;
    assert_int_equal(hth_crew_join(s->crew), MEMBERS);
    assert_true(hth_world_run_until_true(s->world, has_a_part, s, 5 * S));
    node.halt = halt_liar;
    for (uint32_t i = 0; i < LIARS; i++) {
        struct hth_roster_opts roster = HTH_ROSTER_OPTS_INIT;

        snprintf(name, sizeof(name), "liar-%u", i);
        n[i] = hth_world_node(s->world, name, &node);
        roster.network = "crew";
        roster.schema = hth_roster_self(hth_crew_roster(s->crew, 0))->schema;
        roster.addr = hth_node_addr(n[i], 4000);
        roster.slot_us = 0;
        assert_ok(hth_roster_new(hth_node_env(n[i]), hth_node_dht(n[i]), &roster, &liars[i]));
        hth_roster_set_progress(liars[i], 900, 0, 0);
    }
    hth_world_run_for(s->world, 4 * S);
    for (uint32_t i = 0; i < LIARS && !stay; i++)
        hth_node_crash(n[i], HTH_CRASH_SILENT);
    assert_true(hth_world_run_until_true(s->world, is_in, s, 45 * S));
    check_alike();
    for (uint32_t i = 0; i < LIARS && stay; i++)
        hth_node_crash(n[i], HTH_CRASH_SILENT);
    crew_scene_free(s);
}

static void forged_far_step_that_vanishes_does_no_harm(void **state)
{
    (void)state;
    say_far_step(false);
}

/* What they say of is never shown, and who shows something is believed. */
static void forged_far_step_that_stays_is_not_believed(void **state)
{
    (void)state;
    say_far_step(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(newcomer_with_averages_matches_the_others_exactly),
        cmocka_unit_test(slow_state_without_averages_never_gets_in),
        cmocka_unit_test(missed_average_needs_a_newer_state),
        cmocka_unit_test(newcomer_without_memory_keeps_no_averages),
        cmocka_unit_test(death_of_an_observer_delays_nobody),
        cmocka_unit_test(false_average_is_outvoted),
        cmocka_unit_test(no_average_is_awaited_after_the_last_step),
        cmocka_unit_test(forged_far_step_that_vanishes_does_no_harm),
        cmocka_unit_test(newcomer_survives_death_of_its_donor),
        cmocka_unit_test(forged_far_step_that_stays_is_not_believed),
        cmocka_unit_test(state_is_adopted_though_the_rest_of_a_step_is_missed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
