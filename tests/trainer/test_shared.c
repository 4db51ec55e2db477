/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers that share batches by roll call hold the same bits, whoever comes and goes. */
#include "core/limits.h"
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#include <stdlib.h>

#define S  HTH_US_PER_S
#define MS HTH_US_PER_MS

static struct crew_scene *start_on(const char *grid, uint64_t seed, uint32_t members,
                                   uint64_t target)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);

    if (grid != NULL) {
        assert_ok(hth_avg_shape_parse(grid, &o.roster.shape));
        o.trainer.share.format = HTH_QUANT_INT8;
    }
    o.trainer.share.target = target;
    o.trainer.flights = 1;
    o.trainer.updates_max = 1u << 30;
    o.members = members;
    o.edit = crew_own_rows;
    o.device = &crew_slow;
    return crew_scene_new(seed, &o);
}

static struct crew_scene *start(uint64_t seed, uint32_t members, uint64_t target)
{
    return start_on(NULL, seed, members, target);
}

static uint64_t same(struct crew_scene *f, int64_t within_us)
{
    return crew_same(f->world, f->crew, within_us);
}

static void all_take_the_same_steps(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct crew_scene *f = start(seed, 3, 54);

        hth_world_run_for(f->world, 20 * S);
        assert_true(same(f, S) > 40);
        crew_scene_free(f);
    }
}

/* On 3x2, also with a hole, and after a death and a return. */
static void a_grid_takes_the_same_steps(void **state)
{
    (void)state;
    for (uint32_t members = 5; members <= 6; members++) {
        struct crew_scene *f = start_on("3x2", members, members, 18 * (members - 1));
        uint64_t before;

        hth_world_run_for(f->world, 15 * S);
        assert_true(same(f, S) > 20);
        hth_node_crash(hth_crew_node(f->crew, 1), HTH_CRASH_SILENT);
        hth_world_run_for(f->world, 5 * S);
        before = same(f, S);
        hth_node_restart(hth_crew_node(f->crew, 1));
        hth_world_run_for(f->world, 5 * S);
        assert_true(same(f, S) > before + 8);
        crew_scene_free(f);
    }
}

static void newcomers_come_in(void **state)
{
    (void)state;
    struct crew_scene *f = start(1, 3, 54);

    hth_world_run_for(f->world, 10 * S);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t m = hth_crew_join(f->crew);
        hth_world_run_for(f->world, 5 * S);
        assert_true(same(f, S) > 20);
        assert_true(crew_stats(f->crew, m).share.catch_ups == 1);
    }
    crew_scene_free(f);
}

static void deaths_cost_no_step(void **state)
{
    (void)state;
    struct crew_scene *f = start(1, 5, 90);

    hth_world_run_for(f->world, 10 * S);
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t before = same(f, S);
        hth_node_crash(hth_crew_node(f->crew, i), i % 2 ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
        hth_world_run_for(f->world, 5 * S);
        assert_true(same(f, S) > before + 5);
    }
    for (uint32_t i = 0; i < 3; i++)
        hth_node_restart(hth_crew_node(f->crew, i));
    hth_world_run_for(f->world, 10 * S);
    same(f, S);
    crew_scene_free(f);
}

/* A cut: each part goes on, or waits; when it has ended they become one model again. */
static void a_cut_heals(void **state)
{
    (void)state;
    static const struct {
        const char *grid;
        uint32_t members, away;
        int64_t cut_us;
    } cases[] = {{NULL, 5, 2, 3 * S},  {NULL, 5, 2, 30 * S},  {NULL, 4, 2, 30 * S},
                 {NULL, 5, 1, 25 * S}, {NULL, 9, 3, 120 * S}, {"3x3", 9, 4, 3 * S},
                 {"3x3", 9, 3, 30 * S}};

    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct crew_scene *f =
            start_on(cases[k].grid, k + 1, cases[k].members, 18 * cases[k].members);

        hth_world_run_for(f->world, 12 * S);
        same(f, S);
        for (uint32_t i = 0; i < cases[k].away; i++)
            hth_node_set_side(hth_crew_node(f->crew, i), 1);
        hth_world_run_for(f->world, cases[k].cut_us);
        hth_world_heal(f->world);
        hth_world_run_for(f->world, 15 * S);
        same(f, S);
        crew_scene_free(f);
    }
}

static void on_stop(void *arg)
{
    *(int64_t *)arg = 1;
}

/* Of five, four leave one after the other, two at once: nobody else loses a step. */
static void leaving_costs_nobody_a_step(void **state)
{
    (void)state;
    struct crew_scene *f = start(3, 5, 90);
    int64_t stopped[5] = {0};

    hth_world_run_for(f->world, 12 * S);
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t before = same(f, S);

        hth_trainer_stop(hth_crew_trainer(f->crew, i), on_stop, &stopped[i]);
        if (i == 1)
            continue; /* the next one leaves, too */
        hth_world_run_for(f->world, 1500 * MS);
        for (uint32_t k = 0; k <= i; k++) {
            assert_true(stopped[k]);
            if (hth_node_is_up(hth_crew_node(f->crew, k)))
                hth_node_crash(hth_crew_node(f->crew, k), HTH_CRASH_RESET);
        }
        hth_world_run_for(f->world, S);
        assert_true(same(f, S) > before + 3);
    }
    crew_scene_free(f);
}

/* ---- churn ----------------------------------------------------------------------------------- */

enum { STEPS = 40, DEATHS = 2, EVENTS = 4 }; /* deaths, and as many who join */

static void delayed(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    crew_own_rows(arg, i, t);
    t->share.delayed = true;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Not the first one, which is asked how far the run is. */
static void kill_one(struct crew_scene *s, struct hth_rng *rng)
{
    uint32_t up[CREW_MAX], n = 0;

    for (uint32_t i = 1; i < hth_crew_count(s->crew); i++)
        if (hth_node_is_up(hth_crew_node(s->crew, i)))
            up[n++] = i;
    hth_world_run_for(s->world, (int64_t)hth_rng_below(rng, 500 * MS));
    hth_node_crash(hth_crew_node(s->crew, up[hth_rng_below(rng, n)]),
                   hth_rng_chance(rng, 0.5) ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
}

static void churn(struct crew_scene *s, struct hth_rng *rng)
{
    uint64_t at[EVENTS];

    for (uint32_t i = 0; i < EVENTS; i++)
        at[i] = 2 * (2 + hth_rng_below(rng, STEPS - 4)) + (i >= DEATHS);
    qsort(at, EVENTS, sizeof(at[0]), by_number);
    for (uint32_t i = 0; i < EVENTS; i++) {
        crew_scene_run(s, 0, at[i] / 2, 300 * S);
        if (at[i] & 1)
            hth_crew_join(s->crew);
        else
            kill_one(s, rng);
    }
}

static void check_churn(uint64_t seed)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct hth_device device = crew_slow;
    struct crew_scene *s;
    struct hth_rng rng;

    device.job_overhead_us = 45 * MS; /* half a second for a micro-batch, a step one and a half */
    o.device = &device;
    o.members = 8;
    o.edit = delayed;
    o.trainer.updates_max = STEPS;
    o.trainer.share.target = 96;
    s = crew_scene_new(seed, &o);
    hth_rng_init(&rng, seed + 77);
    churn(s, &rng);
    assert_true(hth_world_run_until_true(s->world, hth_crew_all_done, s->crew, 300 * S));
    for (uint32_t i = 0; i < hth_crew_count(s->crew); i++)
        if (hth_node_is_up(hth_crew_node(s->crew, i)))
            assert_int_equal(crew_stats(s->crew, i).updates, STEPS);
    assert_true(hth_crew_spread(s->crew) == 0);
    crew_scene_free(s);
}

/* Batches that are gathered while the last one is averaged. */
static void delayed_trainers_survive_deaths_and_joins(void **state)
{
    static const uint64_t seeds[] = {12, 17, 18};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(seeds); i++)
        check_churn(seeds[i]);
}

/* More than a sampled roster shows. */
static void hundred_trainers_take_the_same_steps(void **state)
{
    enum { MEMBERS = HTH_AVG_ROSTER_HIGH + 4, FEW = 3 };
    struct task_files *files = hth_new(struct task_files);
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct hth_world *world = crew_world(7, files);
    struct hth_crew *crew;

    (void)state;
    o.members = o.members_max = MEMBERS;
    o.device = &crew_slow;
    o.edit = crew_own_rows;
    o.trainer.micro_batch = 2;
    o.trainer.share.target = 2 * MEMBERS;
    o.trainer.updates_max = FEW;
    crew = hth_crew_new(world, &o);
    assert_true(hth_world_run_until_true(world, hth_crew_all_done, crew, 10 * S));
    assert_ok(hth_crew_err(crew));
    for (uint32_t i = 0; i < MEMBERS; i++) {
        assert_int_equal(crew_stats(crew, i).share.steps_shared, FEW);
        assert_int_equal(crew_stats(crew, i).share.catch_ups, 0);
    }
    assert_true(hth_crew_spread(crew) == 0);
    crew_end(world, crew);
    hth_free(files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_take_the_same_steps),
        cmocka_unit_test(a_grid_takes_the_same_steps),
        cmocka_unit_test(newcomers_come_in),
        cmocka_unit_test(deaths_cost_no_step),
        cmocka_unit_test(a_cut_heals),
        cmocka_unit_test(leaving_costs_nobody_a_step),
        cmocka_unit_test(delayed_trainers_survive_deaths_and_joins),
        cmocka_unit_test(hundred_trainers_take_the_same_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
