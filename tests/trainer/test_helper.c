/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers: they reduce with trainers, change no bit, and their absence or death costs little.
 */
#include "core/mem.h"
#include "rpc/rpc.h"
#include "support/suite.h"
#include "trainer/crew.h"
#include "trainer/helper.h"

/* The helpers are the last members. */
static struct crew_scene *start(uint64_t seed, bool big, uint32_t trainers, uint32_t helpers,
                                const char *grid, enum hth_share_mode mode)
{
    struct hth_crew_opts o = crew_opts(mode, trainers);

    if (big) { /* a vector of several shares */
        o.trainer.micro_batch = 2;
        crew_use_lm(&o);
        o.trainer.model.d = 48;
    }
    o.trainer.share.target = 3 * o.trainer.micro_batch * HTH_MAX(trainers, 2u);
    o.trainer.share.every = 5;
    if (grid != NULL)
        assert_ok(hth_avg_shape_parse(grid, &o.roster.shape));
    struct crew_scene *f = crew_scene_new(seed, &o);
    for (uint32_t i = 0; i < helpers; i++)
        hth_crew_help(f->crew);
    return f;
}

static void end(struct crew_scene *f)
{
    assert_ok(hth_crew_err(f->crew));
    crew_scene_free(f);
}

static uint64_t step_of(struct crew_scene *f, uint32_t i)
{
    return crew_stats(f, i).updates;
}

/* Rounds of a helper. */
static uint64_t helped(struct crew_scene *f, uint32_t i)
{
    struct hth_averager_stats s;

    hth_helper_rounds(hth_crew_helper(f->crew, i), &s);
    return s.rounds;
}

/* That the trainers send. */
static uint64_t bytes_of(struct crew_scene *f)
{
    struct hth_rpc_stats s;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < hth_crew_count(f->crew); i++) {
        if (hth_crew_trainer(f->crew, i) == NULL)
            continue;
        hth_rpc_stats(hth_crew_rpc(f->crew, i), &s);
        bytes += s.bytes_out;
    }
    return bytes;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Bytes that the trainers send for a step. */
static double bytes_a_step(uint64_t seed, uint32_t helpers)
{
    enum { TRAINERS = 3 };
    struct crew_scene *f = start(seed, true, TRAINERS, helpers, NULL, HTH_SHARE_BATCH);

    hth_world_run_for(f->world, 6 * S);
    uint64_t bytes = bytes_of(f), before = step_of(f, 0), was[2] = {0};
    for (uint32_t i = 0; i < helpers; i++)
        was[i] = helped(f, TRAINERS + i);
    hth_world_run_for(f->world, 4 * S);
    uint64_t steps = step_of(f, 0) - before;
    double each = (double)(bytes_of(f) - bytes) / (double)steps;
    crew_same_after(f, 0);
    for (uint32_t i = 0; i < helpers; i++)
        assert_true(10 * (helped(f, TRAINERS + i) - was[i]) >= 8 * steps);
    end(f);
    return each;
}

TEST(helpers_take_bytes_off_the_trainers)
{
    double none = bytes_a_step(1, 0), one = bytes_a_step(1, 1), two = bytes_a_step(1, 2);

    assert_true(one < 0.95 * none);
    assert_true(two < one);
}

/* Of a helper that dies the trainers lose a round, and no step; killed in mid-round or frozen, and
 * back again. */
TEST(the_death_of_a_helper_costs_a_round)
{
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};

    for (size_t k = 0; k < HTH_ARRAY_LEN(how); k++) {
        struct crew_scene *f = start(5 + k, true, 3, 1, NULL, HTH_SHARE_BATCH);

        hth_world_run_for(f->world, 6 * S);
        assert_true(helped(f, 3) > 5);
        while (crew_stats(f, 0).share.run.phase != HTH_COLLAB_AVERAGES)
            hth_world_run_for(f->world, MS / 2);
        crew_crash(f, 3, how[k]);
        int64_t died = hth_world_now_us(f->world);
        crew_scene_run(f, 0, step_of(f, 0) + 2, 5 * S);
        assert_true(hth_world_now_us(f->world) - died < (k == 0 ? 1200 : 2000) * MS);
        crew_same_after(f, 2 * S);
        crew_restart(f, 3);
        hth_world_run_for(f->world, 20 * S);
        assert_true(helped(f, 3) > 5);
        crew_same_after(f, 0);
        end(f);
    }
}

/* It finds trainers that come later; and rests when it is told to. */
TEST(a_helper_is_there_first)
{
    struct crew_scene *f = start(7, false, 0, 1, NULL, HTH_SHARE_BATCH);

    hth_world_run_for(f->world, 15 * S);
    hth_crew_join(f->crew);
    hth_crew_join(f->crew);
    hth_world_run_for(f->world, 15 * S);
    assert_true(helped(f, 0) > 20);
    assert_true(hth_roster_self(hth_crew_roster(f->crew, 0))->step + 100 > crew_same_after(f, 0));
    hth_helper_quiesce(hth_crew_helper(f->crew, 0));
    hth_world_run_for(f->world, 2 * S);
    uint64_t rounds = helped(f, 0), step = step_of(f, 1);
    hth_world_run_for(f->world, 5 * S);
    assert_int_equal(helped(f, 0), rounds);
    assert_true(step_of(f, 1) > step + 5);
    end(f);
}

/* On a grid each line has helpers of its own; a trainer and a helper are no company: the trainer's
 * own samples are the batch; and where trainers step by themselves it is in their rounds. */
TEST(helpers_are_where_trainers_average)
{
    static const struct {
        uint32_t trainers, helpers;
        const char *grid;
        enum hth_share_mode mode;
        uint64_t updates, least, most; /* rounds of each helper */
    } cases[] = {{4, 2, "2x2", HTH_SHARE_BATCH, 40, 10, UINT64_MAX},
                 {1, 1, NULL, HTH_SHARE_BATCH, 20, 0, 0},
                 {2, 1, NULL, HTH_SHARE_LOCAL, 200, 10, UINT64_MAX}};

    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        uint32_t trainers = cases[k].trainers;
        struct crew_scene *f =
            start(8 + k, false, trainers, cases[k].helpers, cases[k].grid, cases[k].mode);

        crew_scene_run(f, 0, cases[k].updates, 120 * S);
        for (uint32_t i = 0; i < cases[k].helpers; i++)
            assert_in_range(helped(f, trainers + i), cases[k].least, cases[k].most);
        struct hth_train_stats stats = crew_stats(f, 0);
        assert_true(stats.share.run.averages.failed <= (cases[k].mode == HTH_SHARE_BATCH ? 0 : 2));
        assert_true(trainers > 1 || stats.share.steps_shared == 0);
        if (cases[k].mode == HTH_SHARE_BATCH)
            crew_same_after(f, 0);
        end(f);
    }
}
