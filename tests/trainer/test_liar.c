/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer that follows the protocol and brings wrong gradients, turned and larger: the harm to a
 * batch run of six, without and with clipping.
 */
#include "collab/collab_int.h"
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"
#include "trainer/trainer_int.h"

#define S       HTH_US_PER_S
#define MEMBERS 6
#define LIAR    5
#define STEPS   60
#define WORLDS  4

struct fixture {
    struct hth_world *world;
    struct hth_crew *crew;
    struct task_files files;
    bool lies;
    double loss; /* of the first member, over its last ten steps */
    uint64_t tries_failed, catch_ups;
};

static void (*true_take)(void *trainer);

/* Turns the sum of the batch before it is frozen. */
static void lie(void *trainer)
{
    struct hth_trainer *t = trainer;
    size_t n = hth_params_flat_len(hth_model_params(hth_trainer_model(t)));

    for (size_t i = 0; i < n; i++)
        t->batch.sum[i] *= -500;
    true_take(t);
}

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct fixture *f = arg;

    if (i == LIAR && f->lies && stats->updates == 1) {
        struct hth_collab *collab = hth_crew_trainer(f->crew, i)->collab;

        true_take = collab->ops.take;
        collab->ops.take = lie;
    }
    if (i != 0)
        return;
    if (stats->updates > STEPS - 10)
        f->loss += stats->loss / 10;
    f->tries_failed = stats->share.tries_failed;
    f->catch_ups = stats->share.catch_ups;
}

/* The first member's loss at the end. */
static double run(uint64_t seed, bool lies, double clip)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    double loss;

    f->world = crew_world(seed, &f->files);
    f->lies = lies;
    o.trainer.updates_max = STEPS;
    o.trainer.share.target = 72;
    o.reducer.clip = clip;
    o.members = MEMBERS;
    o.device = &crew_slow;
    o.edit = crew_own_rows;
    o.on_update = on_update;
    o.arg = f;
    f->crew = hth_crew_new(f->world, &o);
    assert_true(hth_world_run_until_true(f->world, hth_crew_all_done, f->crew, 500 * S));
    assert_ok(hth_crew_err(f->crew));
    assert_true(hth_crew_spread(f->crew) == 0);
    assert_int_equal(f->tries_failed, 0);
    assert_int_equal(f->catch_ups, 0);
    loss = f->loss;
    crew_end(f->world, f->crew);
    hth_free(f);
    return loss;
}

static double mean_of_worlds(bool lies, double clip)
{
    double sum = 0;

    for (uint64_t seed = 1; seed <= WORLDS; seed++)
        sum += run(seed, lies, clip);
    return sum / WORLDS;
}

static void clipping_limits_the_harm_of_a_liar(void **state)
{
    double honest = mean_of_worlds(false, 0), clipped = mean_of_worlds(false, 1.5);
    double ruined = mean_of_worlds(true, 0), kept = mean_of_worlds(true, 1.5);

    (void)state;
    print_message("loss after %d steps, mean of %u worlds: honest %.3f, clipped %.3f; with a liar "
                  "%.3f, clipped %.3f, %.3f with 3, %.3f with 1\n",
                  STEPS, WORLDS, honest, clipped, ruined, kept, mean_of_worlds(true, 3),
                  mean_of_worlds(true, 1));
    assert_true(honest < 0.1);
    assert_close(clipped, honest, 0.1, 0);
    assert_true(ruined > 2);
    assert_true(kept < 0.35); /* single worlds: 0.15 to 0.46 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clipping_limits_the_harm_of_a_liar),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
