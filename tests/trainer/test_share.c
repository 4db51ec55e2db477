/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several trainers of one run in the simulator, on the production averager: shared batches against
 * one process with the whole batch, newcomers, laggards, the dead, and parameters averaged in the
 * background.
 */
#include "core/mem.h"
#include "sim/scenario_crew.h"
#include "support/test.h"
#include "trainer/task.h"

#define S           HTH_US_PER_S
#define MS          HTH_US_PER_MS
#define MEMBERS_MAX 16
#define STEPS_MAX   256
#define ITEMS       504 /* 28 batches of 18 */

struct fixture {
    struct hth_world *world;
    struct hth_crew *crew;
    struct task_files files;
    uint8_t images[MEMBERS_MAX][16 + ITEMS * TASK_PIXELS];
    uint8_t labels[MEMBERS_MAX][8 + ITEMS];
    char image_name[MEMBERS_MAX][16], label_name[MEMBERS_MAX][16];
    uint32_t batch[MEMBERS_MAX]; /* samples of a member's micro-batch; 0: all alike */
    double loss[MEMBERS_MAX][STEPS_MAX];
    uint64_t updates[MEMBERS_MAX];
    struct hth_train_stats stats[MEMBERS_MAX];
    float *first[MEMBERS_MAX]; /* the parameters after the first update */
};

static struct fixture *fixture_new(uint64_t seed)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;

    opts.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    f->world = hth_world_new(seed, &opts);
    task_mount(f->world, &f->files, 3);
    return f;
}

static void fixture_free(struct fixture *f)
{
    struct hth_open_counts open;

    hth_world_leaks(f->world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(f->world);
    hth_crew_free(f->crew);
    for (int i = 0; i < MEMBERS_MAX; i++)
        hth_free(f->first[i]);
    hth_free(f);
}

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct fixture *f = arg;

    assert_true(i < MEMBERS_MAX);
    f->updates[i] = stats->updates;
    f->stats[i] = *stats;
    if (stats->updates >= 1 && stats->updates <= STEPS_MAX)
        f->loss[i][stats->updates - 1] = stats->loss;
    if (stats->updates == 1 && f->first[i] == NULL) {
        struct hth_params *p = hth_model_params(hth_trainer_model(hth_crew_trainer(f->crew, i)));
        size_t n = hth_params_flat_len(p);

        f->first[i] = hth_new_array(float, n);
        memcpy(f->first[i], hth_params_flat(p, HTH_PART_VALUE), n * sizeof(float));
    }
}

/* Experts that do not move, no noise, no balancing: the gradient of a batch is the mean over its
 * samples, however it is cut. */
static struct hth_crew_opts crew_opts(struct fixture *f, enum hth_share_mode mode)
{
    struct hth_crew_opts o = HTH_CREW_OPTS_INIT;

    o.trainer = task_classifier();
    o.trainer.local_optim.schedule.lr = 0;
    o.trainer.model.balance = 0;
    o.trainer.share.mode = mode;
    o.trainer.micro_batch = 6;
    o.trainer.updates_max = 40;
    o.trainer.eval_every = 0;
    o.members_max = MEMBERS_MAX;
    o.on_update = on_update;
    o.arg = f;
    return o;
}

static void run_to_the_end(struct fixture *f, int64_t within_us)
{
    assert_true(hth_world_run_until_true(f->world, hth_crew_all_done, f->crew, within_us));
    assert_ok(hth_crew_err(f->crew));
}

static void check_close(const float *a, const float *b, size_t n, double rtol)
{
    double diff = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    if (!(sqrt(diff / norm) <= rtol))
        fail_msg("relative distance %g", sqrt(diff / norm));
}

static size_t params_len(struct fixture *f, uint32_t i)
{
    return hth_params_flat_len(hth_model_params(hth_trainer_model(hth_crew_trainer(f->crew, i))));
}

/* ---- five against one ------------------------------------------------------------------------ */

static void be32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* Files of those samples of each batch of 18 that are `member`'s: `count` from `first` on. */
static void mount_part(struct fixture *f, uint32_t member, uint32_t first, uint32_t count)
{
    uint8_t *images = f->images[member], *labels = f->labels[member];
    uint32_t n = 0;

    memcpy(images, f->files.images, 16);
    memcpy(labels, f->files.labels, 8);
    for (uint32_t i = 0; i < ITEMS; i++) {
        if (i % 18 < first || i % 18 >= first + count)
            continue;
        memcpy(images + 16 + n * TASK_PIXELS, f->files.images + 16 + i * TASK_PIXELS, TASK_PIXELS);
        labels[8 + n++] = f->files.labels[8 + i];
    }
    be32(images + 4, n);
    be32(labels + 4, n);
    snprintf(f->image_name[member], 16, "images%u", member);
    snprintf(f->label_name[member], 16, "labels%u", member);
    hth_world_mount(f->world, f->image_name[member], images, 16 + n * TASK_PIXELS);
    hth_world_mount(f->world, f->label_name[member], labels, 8 + n);
    f->batch[member] = count;
}

static void own_part(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    struct fixture *f = arg;

    t->data.images = f->image_name[i];
    t->data.labels = f->label_name[i];
    t->has_eval_data = false;
    t->micro_batch = f->batch[i];
    t->share.step_samples_max = f->batch[i];
}

static struct hth_crew_opts parts_opts(struct fixture *f)
{
    struct hth_crew_opts o = crew_opts(f, HTH_SHARE_BATCH);

    o.edit = own_part;
    o.trainer.share.target = 18;
    o.trainer.share.every = 0;
    o.trainer.updates_max = 200;
    return o;
}

static void run_five(struct fixture *f)
{
    static const uint32_t batches[5] = {1, 2, 3, 5, 7};
    struct hth_crew_opts o = parts_opts(f);
    uint32_t first = 0;

    for (uint32_t i = 0; i < 5; i++) {
        mount_part(f, i, first, batches[i]);
        first += batches[i];
    }
    o.members = 5;
    f->crew = hth_crew_new(f->world, &o);
    run_to_the_end(f, 2000 * S);
}

static void run_one(struct fixture *f)
{
    struct hth_crew_opts o = parts_opts(f);

    mount_part(f, 0, 0, 18);
    o.members = 1;
    f->crew = hth_crew_new(f->world, &o);
    run_to_the_end(f, 2000 * S);
}

static void test_five_are_like_one(void **state)
{
    struct fixture *one = fixture_new(1), *five = fixture_new(2);
    size_t n;

    (void)state;
    run_one(one);
    run_five(five);
    n = params_len(one, 0);
    assert_int_equal(one->stats[0].share.steps_alone, 200);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(five->stats[i].share.steps_shared, 200);
        assert_int_equal(five->stats[i].share.catch_ups, 0);
        assert_int_equal(five->stats[i].samples, 200 * 18);
        check_close(five->first[i], one->first[0], n, 1e-6);
        assert_memory_equal(five->first[i], five->first[0], n * sizeof(float));
    }
    for (int k = 0; k < 200; k++) {
        double loss = 0;

        for (int i = 0; i < 5; i++)
            loss += five->batch[i] * five->loss[i][k] / 18;
        assert_close(loss, one->loss[0][k], 0.01, 0);
    }
    assert_true(one->loss[0][199] < 0.7 * one->loss[0][0]);
    assert_true(hth_crew_spread(five->crew) == 0);
    fixture_free(one);
    fixture_free(five);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_five_are_like_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
