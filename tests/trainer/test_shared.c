/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers that share batches by roll call hold the same bits, whoever comes and goes. */
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S  HTH_US_PER_S
#define MS HTH_US_PER_MS

struct fixture {
    struct hth_world *world;
    struct hth_crew *crew;
    struct task_files files;
    struct hth_device device;
};

static struct fixture *start_on(const char *grid, uint64_t seed, uint32_t members, uint64_t target)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);

    if (grid != NULL) {
        assert_ok(hth_avg_shape_parse(grid, &o.roster.shape));
        o.trainer.share.format = HTH_QUANT_INT8;
    }

    f->world = crew_world(seed, &f->files);
    o.trainer.share.target = target;
    o.trainer.flights = 1;
    o.trainer.updates_max = 1u << 30;
    o.members = members;
    o.edit = crew_own_rows;
    f->device = crew_slow;
    o.device = &f->device;
    f->crew = hth_crew_new(f->world, &o);
    return f;
}

static struct fixture *start(uint64_t seed, uint32_t members, uint64_t target)
{
    return start_on(NULL, seed, members, target);
}

static void end(struct fixture *f)
{
    assert_ok(hth_crew_err(f->crew));
    crew_end(f->world, f->crew);
    hth_free(f);
}

static uint64_t same(struct fixture *f, int64_t within_us)
{
    return crew_same(f->world, f->crew, within_us);
}

static void all_take_the_same_steps(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct fixture *f = start(seed, 3, 54);

        hth_world_run_for(f->world, 20 * S);
        assert_true(same(f, S) > 40);
        end(f);
    }
}

/* On 3x2, also with a hole, and after a death and a return. */
static void a_grid_takes_the_same_steps(void **state)
{
    (void)state;
    for (uint32_t members = 5; members <= 6; members++) {
        struct fixture *f = start_on("3x2", members, members, 18 * (members - 1));
        uint64_t before;

        hth_world_run_for(f->world, 15 * S);
        assert_true(same(f, S) > 20);
        hth_node_crash(hth_crew_node(f->crew, 1), HTH_CRASH_SILENT);
        hth_world_run_for(f->world, 5 * S);
        before = same(f, S);
        hth_node_restart(hth_crew_node(f->crew, 1));
        hth_world_run_for(f->world, 5 * S);
        assert_true(same(f, S) > before + 8);
        end(f);
    }
}

static void newcomers_come_in(void **state)
{
    (void)state;
    struct fixture *f = start(1, 3, 54);

    hth_world_run_for(f->world, 10 * S);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t m = hth_crew_join(f->crew);
        hth_world_run_for(f->world, 5 * S);
        assert_true(same(f, S) > 20);
        assert_true(crew_stats(f->crew, m).share.catch_ups == 1);
    }
    end(f);
}

static void deaths_cost_no_step(void **state)
{
    (void)state;
    struct fixture *f = start(1, 5, 90);

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
    end(f);
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
        struct fixture *f =
            start_on(cases[k].grid, k + 1, cases[k].members, 18 * cases[k].members);

        hth_world_run_for(f->world, 12 * S);
        same(f, S);
        for (uint32_t i = 0; i < cases[k].away; i++)
            hth_node_set_side(hth_crew_node(f->crew, i), 1);
        hth_world_run_for(f->world, cases[k].cut_us);
        hth_world_heal(f->world);
        hth_world_run_for(f->world, 15 * S);
        same(f, S);
        end(f);
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
    struct fixture *f = start(3, 5, 90);
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
    end(f);
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
