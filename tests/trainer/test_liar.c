/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer that does all as it should and offers wrong gradients: turned, larger, and with more
 * weight than it has samples. What it does to a batch run of six, and what clipping leaves of it.
 */
#include "core/mem.h"
#include "sim/scenario_crew.h"
#include "support/test.h"
#include "trainer/task.h"

#define S       HTH_US_PER_S
#define MEMBERS 6
#define LIAR    5
#define STEPS   60

struct fixture {
    struct hth_world *world;
    struct hth_crew *crew;
    struct task_files files;
    bool lies;
    double loss; /* of the first member, over its last ten steps */
    uint64_t tries_failed, catch_ups;
    /* the liar's averager: all of the true one but its offers */
    struct hth_averager_ops ops;
    struct hth_averager averager;
};

/* A micro-batch takes about 50 ms. */
static const struct hth_device slow = {.flops_per_s = 50e9,
                                       .bytes_per_s = 10e9,
                                       .job_overhead_us = 5000,
                                       .compute_workers = 1,
                                       .disk_bytes_per_s = 500e6,
                                       .disk_latency_us = 100,
                                       .up_bytes_per_s = 125e6,
                                       .down_bytes_per_s = 125e6};

static enum hth_err (*true_offer)(void *self, const struct hth_avg_offer *offer);

static enum hth_err lie(void *self, const struct hth_avg_offer *offer)
{
    struct hth_avg_offer o = *offer;
    float *x = (float *)(void *)offer->values->data;

    for (size_t i = 0; i < offer->count; i++)
        x[i] *= -50;
    o.weight *= 10;
    return true_offer(self, &o);
}

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    struct fixture *f = arg;

    t->data.shuffle_rows = 64;
    t->data.peer = i + 1;
    if (i != LIAR || !f->lies)
        return;
    f->ops = *t->averager->ops;
    true_offer = f->ops.offer;
    f->ops.offer = lie;
    f->averager = (struct hth_averager){&f->ops, t->averager->self};
    t->averager = &f->averager;
}

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct fixture *f = arg;

    if (i != 0)
        return;
    if (stats->updates > STEPS - 10)
        f->loss += stats->loss / 10;
    f->tries_failed = stats->share.tries_failed + stats->share.below_quorum;
    f->catch_ups = stats->share.catch_ups;
}

/* The first member's loss at the end. */
static double run(bool lies, double clip)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct hth_crew_opts o = HTH_CREW_OPTS_INIT;
    double loss;

    world.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    f->world = hth_world_new(8, &world);
    f->lies = lies;
    task_mount(f->world, &f->files, 3);
    o.trainer = task_classifier();
    o.trainer.local_optim.schedule.lr = 0;
    o.trainer.model.balance = 0;
    o.trainer.micro_batch = 6;
    o.trainer.updates_max = STEPS;
    o.trainer.eval_every = 0;
    o.trainer.share.mode = HTH_SHARE_BATCH;
    o.trainer.share.every = 0;
    o.trainer.share.target = 72;
    o.reducer.clip = clip;
    o.members = MEMBERS;
    o.device = &slow;
    o.edit = edit;
    o.on_update = on_update;
    o.arg = f;
    f->crew = hth_crew_new(f->world, &o);
    assert_true(hth_world_run_until_true(f->world, hth_crew_all_done, f->crew, 500 * S));
    assert_ok(hth_crew_err(f->crew));
    assert_true(hth_crew_spread(f->crew) == 0); /* one group: the same bits for all */
    assert_int_equal(f->tries_failed, 0);
    assert_int_equal(f->catch_ups, 0);
    loss = f->loss;
    hth_world_free(f->world);
    hth_crew_free(f->crew);
    hth_free(f);
    return loss;
}

static void test_what_a_liar_can_do(void **state)
{
    double honest = run(false, 0), clipped = run(false, 1.5);
    double ruined = run(true, 0), kept = run(true, 1.5);

    (void)state;
    print_message(
        "loss after %d steps: honest %.3f, clipped %.3f; with a liar %.3f, clipped %.3f\n", STEPS,
        honest, clipped, ruined, kept);
    assert_true(honest < 0.1);
    assert_close(clipped, honest, 0.1, 0);
    assert_true(ruined > 2);
    assert_true(kept < 0.3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_liar_can_do),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
