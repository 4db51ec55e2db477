/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several trainers of one run in the simulator: shared batches against one process with the whole
 * batch, what a crew says of itself, and parameters averaged in the background.
 */
#include "core/mem.h"
#include "support/suite.h"
#include "trainer/crew.h"

#define STEPS 200
#define ITEMS 504 /* 28 batches of 18 */

/* ---- five against one ------------------------------------------------------------------------ */

struct parts {
    struct crew_scene *scene;
    uint8_t images[5][16 + ITEMS * TASK_PIXELS], labels[5][8 + ITEMS];
    char image_name[5][16], label_name[5][16];
    uint32_t batch[5]; /* samples of a member's micro-batch */
    double loss[5][STEPS];
    float *first[5]; /* the parameters after the first update */
    size_t floats;
};

static void keep_first(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct parts *p = arg;
    struct hth_trainer *t = hth_crew_trainer(p->scene->crew, i);

    p->loss[i][stats->updates - 1] = stats->loss;
    if (stats->updates != 1)
        return;
    p->floats = hth_params_flat_len(task_params(t));
    p->first[i] = hth_new_array(float, p->floats);
    memcpy(p->first[i], task_values(t), p->floats * sizeof(float));
}

/* Files of those samples of each batch of 18 that are `member`'s: `count` from `first` on. */
static void mount_part(struct parts *p, uint32_t member, uint32_t first, uint32_t count)
{
    const struct task_files *files = &p->scene->files;
    uint8_t *images = p->images[member], *labels = p->labels[member];
    uint32_t n = 0;

    for (uint32_t i = 0; i < ITEMS; i++) {
        if (i % 18 < first || i % 18 >= first + count)
            continue;
        memcpy(images + 16 + n * TASK_PIXELS, files->images + 16 + i * TASK_PIXELS, TASK_PIXELS);
        labels[8 + n++] = files->labels[8 + i];
    }
    task_heads(images, labels, n, TASK_SIDE, TASK_SIDE);
    snprintf(p->image_name[member], 16, "images%u", member);
    snprintf(p->label_name[member], 16, "labels%u", member);
    hth_world_mount(p->scene->world, p->image_name[member], images, 16 + n * TASK_PIXELS);
    hth_world_mount(p->scene->world, p->label_name[member], labels, 8 + n);
}

static void own_part(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    struct parts *p = arg;

    t->data.images = p->image_name[i];
    t->data.labels = p->label_name[i];
    t->has_eval_data = false;
    t->micro_batch = t->share.step_samples_max = p->batch[i];
}

/* LAMB's step of a tensor is scaled by norms, which all compute from the same average. */
static void use_lamb(struct hth_crew_opts *o)
{
    o->trainer.optim.optim.kind = HTH_OPTIM_LAMB;
    o->trainer.optim.optim.weight_decay = 0.01f;
    o->trainer.optim.schedule.lr = 0.01f;
}

static struct parts *run_parts(uint64_t seed, bool lamb, const char *grid, uint32_t members,
                               const uint32_t *batches)
{
    struct parts *p = hth_new(struct parts);
    struct hth_crew_opts o = crew_batch_opts(members, 18);

    if (lamb)
        use_lamb(&o);
    assert_ok(hth_avg_shape_parse(grid, &o.roster.shape));
    o.trainer.updates_max = STEPS;
    o.edit = own_part;
    o.on_update = keep_first;
    o.arg = p;
    p->scene = crew_scene_new(seed, &o);
    for (uint32_t i = 0, first = 0; i < members; first += batches[i++]) {
        p->batch[i] = batches[i];
        mount_part(p, i, first, batches[i]);
    }
    crew_to_the_end(p->scene, 2000 * S);
    assert_true(hth_crew_spread(p->scene->crew) == 0);
    return p;
}

static void parts_free(struct parts *p)
{
    crew_scene_free(p->scene);
    for (int i = 0; i < 5; i++)
        hth_free(p->first[i]);
    hth_free(p);
}

static void check_close(const float *a, const float *b, size_t n, double rtol)
{
    double diff = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    assert_true(sqrt(diff / norm) <= rtol);
}

/* In a line, and on a grid with a hole. */
TEST(five_trainers_equal_one)
{
    static const uint32_t all[1] = {18}, batches[5] = {1, 2, 3, 5, 7};
    static const struct {
        bool lamb;
        const char *grid;
    } cases[] = {{false, "5"}, {true, "5"}, {false, "3x2"}};

    for (size_t c = 0; c < HTH_ARRAY_LEN(cases); c++) {
        struct parts *one = run_parts(1, cases[c].lamb, "1", 1, all);
        struct parts *five = run_parts(2, cases[c].lamb, cases[c].grid, 5, batches);
        uint64_t own = 0;

        assert_int_equal(crew_stats(one->scene, 0).share.steps_alone, STEPS);
        for (uint32_t i = 0; i < 5; i++) {
            struct hth_train_stats stats = crew_stats(five->scene, i);

            assert_int_equal(stats.share.steps_shared, STEPS);
            assert_int_equal(stats.share.catch_ups, 0);
            assert_int_equal(stats.samples, STEPS * 18);
            own += stats.own_samples;
            check_close(five->first[i], one->first[0], one->floats, 1e-6);
            assert_memory_equal(five->first[i], five->first[0], one->floats * sizeof(float));
        }
        assert_int_equal(own, STEPS * 18); /* each counts its own once */
        for (int k = 0; k < STEPS; k++) {
            double loss = 0;

            for (int i = 0; i < 5; i++)
                loss += batches[i] * five->loss[i][k] / 18;
            assert_close(loss, one->loss[0][k], 0.01, 0);
        }
        assert_true(one->loss[0][STEPS - 1] < 0.7 * one->loss[0][0]);
        parts_free(one);
        parts_free(five);
    }
}

/* ---- shared batches -------------------------------------------------------------------------- */

/* The time left is told by the run's steps, not by what this trainer brings to them. */
TEST(delayed_batches_overlap)
{
    int64_t took_us[2];

    for (int delayed = 0; delayed < 2; delayed++) {
        struct hth_crew_opts o = crew_batch_opts(4, 60);
        struct crew_scene *s;

        o.trainer.updates_max = 200;
        o.trainer.share.delayed = delayed;
        s = crew_scene_new(4, &o);
        crew_scene_run(s, 0, 100, 120 * S);
        double left_s = crew_stats(s, 0).eta_s;
        took_us[delayed] = crew_to_the_end(s, 120 * S);
        assert_close(left_s, (double)took_us[delayed] / S, 0.15, 0);
        assert_true(hth_crew_spread(s->crew) == 0);
        crew_scene_free(s);
    }
    assert_true(took_us[1] < took_us[0]);
}

/* While the run's state can't be had it waits, says so, and begins nothing. */
TEST(newcomer_adopts_the_state)
{
    struct hth_crew_opts o = crew_batch_opts(2, 60);
    struct hth_train_stats stats;
    struct crew_scene *s;
    uint32_t late;

    o.trainer.updates_max = 200;
    s = crew_scene_new(9, &o);
    crew_scene_run(s, 0, 10, 300 * S);
    late = hth_crew_join(s->crew);
    crew_block(s, 0, late);
    crew_block(s, 1, late);
    hth_world_run_for(s->world, 30 * S);
    stats = crew_stats(s, late);
    assert_int_equal(stats.updates, 0);
    assert_int_equal(stats.share.run.phase, HTH_COLLAB_FETCHES);
    hth_world_heal(s->world);
    while ((stats = crew_stats(s, late)).flights_landed == 0)
        hth_world_run_for(s->world, MS);
    assert_true(stats.flights_landed == 1 && stats.loss_ema == stats.loss);
    crew_to_the_end(s, 1000 * S);
    stats = crew_stats(s, late);
    assert_int_equal(stats.updates, 200);
    assert_true(stats.share.catch_ups >= 1 && stats.share.state_bytes > 0);
    assert_true(stats.share.first_step_us > 0);
    assert_true(stats.own_samples < stats.samples / 2);
    assert_true(hth_crew_spread(s->crew) == 0);
    crew_scene_free(s);
}

/* ---- local steps ----------------------------------------------------------------------------- */

static void bootstrap_late(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    t->share.bootstrap = i >= 2;
}

TEST(bootstrap_overrides_waiting)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_LOCAL, 2);
    struct crew_scene *s;
    uint32_t late;

    o.edit = bootstrap_late;
    s = crew_scene_new(10, &o);
    crew_scene_run(s, 0, 10, 300 * S);
    hth_world_run_for(s->world, 10 * S);
    late = hth_crew_join(s->crew);
    hth_world_run_for(s->world, 2 * S);
    assert_true(crew_stats(s, late).updates > 0);
    assert_int_equal(crew_stats(s, late).share.catch_ups, 0);
    crew_scene_free(s);
}

/* With LAMB, too, whose statistics are averaged as well. */
TEST(local_steps_stay_together)
{
    for (int lamb = 0; lamb < 2; lamb++) {
        double spread[2];

        for (int averaged = 0; averaged < 2; averaged++) {
            struct hth_crew_opts o = crew_opts(HTH_SHARE_LOCAL, 4);
            struct crew_scene *s;

            if (lamb)
                use_lamb(&o);
            o.trainer.updates_max = 200;
            o.trainer.share.states = true;
            o.trainer.share.every = averaged ? 5 : 0;
            s = crew_scene_new(12, &o);
            crew_to_the_end(s, 1000 * S);
            spread[averaged] = hth_crew_spread(s->crew);
            if (averaged) {
                assert_true(crew_stats(s, 0).share.run.averages.rounds >= 5);
                assert_true(crew_stats(s, 0).share.distance > 0);
                assert_true(crew_stats(s, 0).share.norm > crew_stats(s, 0).share.distance);
            }
            crew_scene_free(s);
        }
        assert_true(spread[0] > 0.02);
        assert_true(spread[1] < 0.5 * spread[0]);
    }
}

/* Rounds come every H updates, no sooner and none left out once the grid is there. */
TEST(parameters_are_averaged_every_h_updates)
{
    enum { H = 5, UPDATES = 60 };
    struct hth_crew_opts o = crew_opts(HTH_SHARE_LOCAL, 4);
    struct hth_device slow = crew_slow;
    struct crew_scene *s;

    slow.job_overhead_us = 30 * MS; /* an update takes about 0.3 s, the grid some seconds */
    o.device = &slow;
    o.trainer.updates_max = UPDATES;
    o.trainer.share.every = H;
    s = crew_scene_new(5, &o);
    crew_to_the_end(s, 500 * S);
    for (int i = 0; i < 4; i++) {
        struct hth_averager_stats averages = crew_stats(s, i).share.run.averages;

        assert_in_range(averages.rounds, UPDATES / H - 3, UPDATES / H);
        assert_int_equal(averages.failed, 0);
    }
    crew_scene_free(s);
}
