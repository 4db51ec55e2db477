/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that are averaged every H steps only: in both modes no round comes sooner, none is
 * left out, and the trunks stay one model. The next round undoes their differences.
 */
#include <math.h>

#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S       HTH_US_PER_S
#define MEMBERS 4
#define H       5
#define STEPS   60
#define PUSHED  7 /* the step after which one member's trunk is moved */

struct fixture {
    struct hth_world *world;
    struct hth_crew *crew;
    struct task_files files;
    struct hth_device device;
    struct hth_train_stats stats[MEMBERS];
    bool push;
    double spread[STEPS + 1]; /* when the last of them had made that update */
    uint32_t here[STEPS + 1];
};

/* As if it had taken another step than the others. */
static void push(struct hth_trainer *t)
{
    struct hth_params *p = hth_model_params(hth_trainer_model(t));
    float *values = hth_params_flat(p, HTH_PART_VALUE);

    for (size_t i = 0; i < hth_params_flat_len(p); i++)
        values[i] *= 1.1f;
    hth_params_touched(p);
}

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct fixture *f = arg;

    f->stats[i] = *stats;
    assert_true(stats->updates <= STEPS);
    assert_true(stats->rounds + stats->rounds_failed <= stats->updates / H);
    if (++f->here[stats->updates] == MEMBERS)
        f->spread[stats->updates] = hth_crew_spread(f->crew);
    if (f->push && i == 2 && stats->updates == PUSHED)
        push(hth_crew_trainer(f->crew, i));
}

static struct fixture *run(enum hth_share_mode mode, uint64_t every, bool pushed)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_crew_opts o = crew_opts(mode);

    f->world = crew_world(5, &f->files);
    f->push = pushed;
    f->device = crew_slow;
    f->device.job_overhead_us = 30000; /* a micro-batch takes about 0.3 s */
    o.trainer.updates_max = STEPS;
    o.trainer.share.every = every;
    o.trainer.share.target = 48;
    o.members = MEMBERS;
    o.device = &f->device;
    o.edit = crew_own_rows;
    o.on_update = on_update;
    o.arg = f;
    f->crew = hth_crew_new(f->world, &o);
    assert_true(hth_world_run_until_true(f->world, hth_crew_all_done, f->crew, 500 * S));
    assert_ok(hth_crew_err(f->crew));
    return f;
}

static void end(struct fixture *f)
{
    crew_end(f->world, f->crew);
    hth_free(f);
}

/* Shared batches keep trunks alike by themselves, so one is moved: nothing brings it back before
 * the next multiple of H, and all of it is gone one step later. */
static void parameters_are_averaged_every_h_shared_steps(void **state)
{
    struct fixture *f = run(HTH_SHARE_BATCH, H, true);

    (void)state;
    for (int i = 0; i < MEMBERS; i++) {
        assert_int_equal(f->stats[i].rounds, (STEPS - 1) / H);
        assert_int_equal(f->stats[i].rounds_failed, 0);
        assert_int_equal(f->stats[i].share.catch_ups, 0);
    }
    for (int step = 1; step <= STEPS; step++) {
        assert_int_equal(f->here[step], MEMBERS);
        if (step > PUSHED && step <= 2 * H)
            assert_true(f->spread[step] > 0.01);
        else if (step != PUSHED) /* before or after it was moved */
            assert_true(f->spread[step] < 1e-6);
    }
    end(f);
}

/* Steps of one's own part the trunks, and rounds bring them together. The grid is there after some
 * seconds, which are ten updates or so. */
static void parameters_are_averaged_every_h_local_steps(void **state)
{
    struct fixture *f = run(HTH_SHARE_LOCAL, 0, false);
    double alone = hth_crew_spread(f->crew);

    (void)state;
    assert_int_equal(f->stats[0].rounds, 0);
    end(f);
    f = run(HTH_SHARE_LOCAL, H, false);
    for (int i = 0; i < MEMBERS; i++) {
        assert_true(f->stats[i].rounds >= STEPS / H - 3);
        assert_int_equal(f->stats[i].rounds_failed, 0);
    }
    print_message("spread after %d steps: alone %.3g, every %d steps %.3g\n", STEPS, alone, H,
                  f->spread[STEPS]);
    for (int step = STEPS / 2; step <= STEPS; step++)
        assert_true(f->spread[step] < 0.5 * alone);
    end(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_averaged_every_h_shared_steps),
        cmocka_unit_test(parameters_are_averaged_every_h_local_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
