/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that are averaged every H steps only: in both modes no round comes sooner, none is
 * left out, and the trunks stay one model. What they were apart between two rounds is gone after
 * the next.
 */
#include <math.h>

#include "core/mem.h"
#include "sim/scenario_crew.h"
#include "support/test.h"
#include "trainer/task.h"

#define S       HTH_US_PER_S
#define MEMBERS 4
#define H       5
#define STEPS   60
#define PUSHED  7 /* the step after which one member's trunk is moved */

struct fixture {
    struct hth_world *world;
    struct hth_crew *crew;
    struct task_files files;
    struct hth_train_stats stats[MEMBERS];
    bool push;
    double spread[STEPS + 1]; /* when the last of them had made that update */
    uint32_t here[STEPS + 1];
};

/* A micro-batch takes about 0.3 s. */
static const struct hth_device slow = {.flops_per_s = 50e9,
                                       .bytes_per_s = 10e9,
                                       .job_overhead_us = 30000,
                                       .compute_workers = 1,
                                       .disk_bytes_per_s = 500e6,
                                       .disk_latency_us = 100,
                                       .up_bytes_per_s = 125e6,
                                       .down_bytes_per_s = 125e6};

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

static void own_data(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    (void)arg;
    t->data.shuffle_rows = 64;
    t->data.peer = i + 1;
}

static struct fixture *run(enum hth_share_mode mode, uint64_t every, bool pushed)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct hth_crew_opts o = HTH_CREW_OPTS_INIT;

    world.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    f->world = hth_world_new(5, &world);
    f->push = pushed;
    task_mount(f->world, &f->files, 3);
    o.trainer = task_classifier();
    o.trainer.local_optim.schedule.lr = 0; /* experts are alike everywhere, and stay so */
    o.trainer.model.balance = 0;
    o.trainer.micro_batch = 6;
    o.trainer.updates_max = STEPS;
    o.trainer.eval_every = 0;
    o.trainer.share.mode = mode;
    o.trainer.share.every = every;
    o.trainer.share.target = 48;
    o.members = MEMBERS;
    o.device = &slow;
    o.edit = own_data;
    o.on_update = on_update;
    o.arg = f;
    f->crew = hth_crew_new(f->world, &o);
    assert_true(hth_world_run_until_true(f->world, hth_crew_all_done, f->crew, 500 * S));
    assert_ok(hth_crew_err(f->crew));
    return f;
}

static void end(struct fixture *f)
{
    hth_world_free(f->world);
    hth_crew_free(f->crew);
    hth_free(f);
}

/* Shared batches keep trunks alike by themselves, so one is moved: nothing brings it back before
 * the next multiple of H, and all of it is gone one step later. */
static void test_shared_batches(void **state)
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
static void test_local_steps(void **state)
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
        cmocka_unit_test(test_shared_batches),
        cmocka_unit_test(test_local_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
