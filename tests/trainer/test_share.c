/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several trainers of one run in the simulator: shared batches against one process with the whole
 * batch, newcomers, deaths, and parameters averaged in the background.
 */
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

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
    bool lamb;                   /* steps; else the task's Adam */
    uint32_t batch[MEMBERS_MAX]; /* samples of a member's micro-batch; 0: all alike */
    double loss[MEMBERS_MAX][STEPS_MAX];
    uint64_t updates[MEMBERS_MAX];
    struct hth_train_stats stats[MEMBERS_MAX];
    float *first[MEMBERS_MAX]; /* the parameters after the first update */
};

static struct fixture *fixture_new(uint64_t seed)
{
    struct fixture *f = hth_new(struct fixture);

    f->world = crew_world(seed, &f->files);
    return f;
}

static void fixture_free(struct fixture *f)
{
    crew_end(f->world, f->crew);
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

static struct hth_crew_opts share_opts(struct fixture *f, enum hth_share_mode mode)
{
    struct hth_crew_opts o = crew_opts(mode);

    o.trainer.updates_max = 40;
    if (f->lamb) {
        o.trainer.optim.optim.kind = HTH_OPTIM_LAMB;
        o.trainer.optim.optim.weight_decay = 0.01f;
        o.trainer.optim.schedule.lr = 0.01f;
    }
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
    struct hth_crew_opts o = share_opts(f, HTH_SHARE_BATCH);

    o.edit = own_part;
    o.trainer.share.target = 18;
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

static void check_five_are_like_one(bool lamb)
{
    struct fixture *one = fixture_new(1), *five = fixture_new(2);
    uint64_t own = 0;
    size_t n;

    one->lamb = five->lamb = lamb;
    run_one(one);
    run_five(five);
    n = params_len(one, 0);
    assert_int_equal(one->stats[0].share.steps_alone, 200);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(five->stats[i].share.steps_shared, 200);
        assert_int_equal(five->stats[i].share.catch_ups, 0);
        assert_int_equal(five->stats[i].samples, 200 * 18);
        own += five->stats[i].own_samples;
        check_close(five->first[i], one->first[0], n, 1e-6);
        assert_memory_equal(five->first[i], five->first[0], n * sizeof(float));
    }
    assert_int_equal(own, 200 * 18); /* each counts its own once */
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

static void five_trainers_equal_one(void **state)
{
    (void)state;
    check_five_are_like_one(false);
}

/* LAMB's step of a tensor is scaled by norms, which all compute from the same average. */
static void five_trainers_equal_one_with_lamb(void **state)
{
    (void)state;
    check_five_are_like_one(true);
}

/* ---- shared batches -------------------------------------------------------------------------- */

/* The trainers that are there gather the step's samples: micro-batches of 6, batches of 60 by
 * four. */
static struct hth_crew_opts batch_opts(struct fixture *f, uint32_t members)
{
    struct hth_crew_opts o = share_opts(f, HTH_SHARE_BATCH);

    o.members = members;
    o.trainer.share.target = 60;
    o.device = &crew_slow;
    return o;
}

/* A language model has matrices that are large enough for 8 bits. */
static struct hth_crew_opts lm_opts(struct fixture *f, uint32_t members)
{
    struct hth_crew_opts o = batch_opts(f, members);
    struct hth_trainer_opts lm = task_lm();

    lm.local_optim.schedule.lr = 0;
    lm.model.balance = 0;
    lm.micro_batch = 6;
    lm.eval_every = 0;
    lm.updates_max = 20;
    lm.share = o.trainer.share;
    lm.share.target = 12 * members;
    o.trainer = lm;
    o.edit = crew_own_rows;
    return o;
}

/* All take the same step, whatever is left of a gradient on the wire. */
static void check_narrow(uint32_t members, const char *grid, enum hth_quant_format format)
{
    struct fixture *f = fixture_new(3);
    struct hth_crew_opts o = lm_opts(f, members);

    o.trainer.share.format = format;
    assert_ok(hth_avg_shape_parse(grid, &o.roster.shape));
    f->crew = hth_crew_new(f->world, &o);
    run_to_the_end(f, 1000 * S);
    for (uint32_t i = 0; i < members; i++)
        assert_int_equal(f->stats[i].share.steps_shared, 20);
    if (!(hth_crew_spread(f->crew) == 0))
        fail_msg("%u trainers on %s, %s: %.2g apart", members, grid, hth_quant_name(format),
                 hth_crew_spread(f->crew));
    assert_true(f->loss[0][19] < 0.8 * f->loss[0][0]);
    fixture_free(f);
}

/* Also columns of a grid, though other members reduce each part in each. */
static void narrow_formats_keep_trainers_equal(void **state)
{
    (void)state;
    for (int format = HTH_QUANT_F32; format <= HTH_QUANT_DYNAMIC8; format += HTH_TEST_FEW ? 2 : 1) {
        check_narrow(4, "4", (enum hth_quant_format)format);
        check_narrow(12, "3x4", (enum hth_quant_format)format);
    }
}

/* By the run's steps, not by what this trainer brings to them. */
static void time_left_is_estimated_from_the_run(void **state)
{
    struct fixture *f = fixture_new(43);
    struct hth_crew_opts o = batch_opts(f, 4);
    double left_s;
    int64_t at;

    (void)state;
    o.trainer.updates_max = 200;
    f->crew = hth_crew_new(f->world, &o);
    while (f->updates[0] < 100)
        hth_world_run_for(f->world, MS);
    left_s = f->stats[0].eta_s;
    at = hth_world_now_us(f->world);
    run_to_the_end(f, 120 * S);
    assert_close(left_s, (double)(hth_world_now_us(f->world) - at) / S, 0.15, 0);
    fixture_free(f);
}

static void delayed(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    (void)arg;
    (void)i;
    t->share.delayed = true;
}

static void delayed_batches_overlap(void **state)
{
    struct fixture *f = fixture_new(4), *g = fixture_new(4);
    struct hth_crew_opts o = batch_opts(f, 4);
    int64_t plain_us;

    (void)state;
    f->crew = hth_crew_new(f->world, &o);
    run_to_the_end(f, 1000 * S);
    plain_us = hth_world_now_us(f->world);
    o = batch_opts(g, 4);
    o.edit = delayed;
    g->crew = hth_crew_new(g->world, &o);
    run_to_the_end(g, 1000 * S);
    assert_int_equal(g->updates[0], 40);
    assert_true(hth_crew_spread(g->crew) == 0);
    assert_true(g->loss[0][39] < 0.8 * g->loss[0][0]);
    assert_true(hth_world_now_us(g->world) < plain_us);
    fixture_free(f);
    fixture_free(g);
}

static bool ten_updates(void *arg)
{
    return ((struct fixture *)arg)->updates[0] >= 10;
}

static void run_ten(struct fixture *f)
{
    assert_true(hth_world_run_until_true(f->world, ten_updates, f, 300 * S));
}

/* Half of them die at once, or more. The rest waits before it forks, as it may be cut off. */
static void check_many_die(uint32_t members, uint32_t left, const char *grid, enum hth_crash how)
{
    struct fixture *f = fixture_new(12);
    struct hth_crew_opts o = batch_opts(f, members);
    int64_t at;

    assert_ok(hth_avg_shape_parse(grid, &o.roster.shape));
    f->crew = hth_crew_new(f->world, &o);
    run_ten(f);
    for (uint32_t i = left; i < members; i++)
        hth_node_crash(hth_crew_node(f->crew, i), how);
    at = hth_world_now_us(f->world);
    run_to_the_end(f, 1000 * S);
    for (uint32_t i = 0; i < left; i++)
        assert_int_equal(f->updates[i], 40);
    print_message("%u of %u are left: 30 more steps after %.1f s\n", left, members,
                  (double)(hth_world_now_us(f->world) - at) / 1e6);
    /* A step takes one alone half a second. */
    assert_true(hth_world_now_us(f->world) - at < (10 + 5) * S + 15 * S / left);
    assert_true(hth_crew_spread(f->crew) == 0);
    fixture_free(f);
}

static void rest_continues_after_most_die(void **state)
{
    (void)state;
    check_many_die(6, 1, "6", HTH_CRASH_RESET);
    check_many_die(6, 3, "6", HTH_CRASH_RESET);
    check_many_die(6, 3, "6", HTH_CRASH_SILENT);
    check_many_die(9, 4, "3x3", HTH_CRASH_SILENT);
}

/* ---- newcomers ------------------------------------------------------------------------------- */

static void newcomer_adopts_the_state(void **state)
{
    struct fixture *f = fixture_new(7);
    struct hth_crew_opts o = batch_opts(f, 4);
    struct hth_train_stats stats;
    uint32_t late;

    (void)state;
    f->crew = hth_crew_new(f->world, &o);
    run_ten(f);
    late = hth_crew_join(f->crew);
    while ((stats = crew_stats(f->crew, late)).flights_landed == 0)
        hth_world_run_for(f->world, MS);
    assert_true(stats.flights_landed == 1 && stats.loss_ema == stats.loss);
    run_to_the_end(f, 1000 * S);
    assert_int_equal(f->updates[late], 40);
    assert_true(f->stats[late].share.catch_ups >= 1);
    assert_true(f->stats[late].share.state_bytes > 0);
    assert_true(f->stats[late].share.first_step_us > 0);
    assert_true(f->stats[late].own_samples < f->stats[late].samples / 2);
    assert_true(hth_crew_spread(f->crew) == 0);
    fixture_free(f);
}

/* A state takes longer than samples are gathered for, or is there at once. */
static void check_slow_line(double bytes_per_s, uint64_t target)
{
    struct fixture *f = fixture_new(20);
    struct hth_crew_opts o = batch_opts(f, 4);
    struct hth_device slow = crew_slow;
    int64_t step_us, joined_us;
    uint32_t late;

    slow.job_overhead_us = 20 * MS;
    slow.up_bytes_per_s = slow.down_bytes_per_s = bytes_per_s;
    o.device = &slow;
    o.edit = crew_own_rows;
    o.trainer.model.d = 64;
    o.trainer.share.target = target;
    o.trainer.updates_max = 1000;
    f->crew = hth_crew_new(f->world, &o);
    run_ten(f);
    step_us = hth_world_now_us(f->world) / (int64_t)f->updates[0];
    joined_us = hth_world_now_us(f->world);
    late = hth_crew_join(f->crew);
    while (f->updates[late] == 0 && hth_world_now_us(f->world) - joined_us < 40 * S)
        hth_world_run_for(f->world, MS);
    print_message("%.0f B/s: in after %.1f s, %.1f steps\n", bytes_per_s,
                  (double)(hth_world_now_us(f->world) - joined_us) / S,
                  (double)(hth_world_now_us(f->world) - joined_us) / (double)step_us);
    assert_true(f->updates[late] > 10);
    assert_true((double)(hth_world_now_us(f->world) - joined_us) < 3 * (double)step_us);
    hth_world_run_for(f->world, 8 * step_us);
    assert_true(f->stats[late].share.steps_shared > 1);
    crew_same(f->world, f->crew, 10 * S);
    fixture_free(f);
}

static void newcomer_gets_in_over_a_slow_line(void **state)
{
    (void)state;
    check_slow_line(5e4, 24);
    check_slow_line(1e6, 48);
}

/* A run lives whose state can't be had: the newcomer waits, says so, and begins nothing; it begins
 * when told to. */
static void unreachable_state_begins_no_second_run(void **state)
{
    struct fixture *f = fixture_new(9);
    struct hth_crew_opts o = batch_opts(f, 2);
    struct hth_train_stats stats;
    uint32_t late;

    (void)state;
    o.trainer.updates_max = 2000;
    f->crew = hth_crew_new(f->world, &o);
    run_ten(f);
    late = hth_crew_join(f->crew);
    for (uint32_t i = 0; i < 2; i++) {
        hth_world_block(f->world, hth_crew_node(f->crew, i), hth_crew_node(f->crew, late), true);
        hth_world_block(f->world, hth_crew_node(f->crew, late), hth_crew_node(f->crew, i), true);
    }
    hth_world_run_for(f->world, 30 * S);
    assert_int_equal(f->updates[late], 0);
    hth_trainer_stats(hth_crew_trainer(f->crew, late), &stats);
    assert_int_equal(stats.share.phase, HTH_SHARE_FETCHING);
    hth_world_heal(f->world);
    hth_world_run_for(f->world, 20 * S);
    hth_trainer_stats(hth_crew_trainer(f->crew, late), &stats);
    assert_true(stats.updates > 10);
    assert_true(stats.share.catch_ups >= 1);
    fixture_free(f);
}

/* Two runs of one name whose models differ, at once: each goes on by itself as if the other were
 * not there. */
static void runs_of_one_name_ignore_each_other(void **state)
{
    struct fixture *f = fixture_new(14);
    struct hth_crew_opts o = batch_opts(f, 3), other = batch_opts(f, 2);
    struct hth_crew *crew;

    (void)state;
    f->crew = hth_crew_new(f->world, &o);
    other.trainer.model.d *= 2;
    other.on_update = NULL;
    crew = hth_crew_new(f->world, &other);
    run_to_the_end(f, 1000 * S);
    assert_true(hth_world_run_until_true(f->world, hth_crew_all_done, crew, 1000 * S));
    assert_ok(hth_crew_err(crew));
    for (uint32_t i = 0; i < 3; i++) {
        struct hth_roster_stats stats;

        hth_roster_stats(hth_crew_roster(f->crew, i), &stats);
        assert_int_equal(stats.other_schema, 2);
        assert_int_equal(hth_roster_population(hth_crew_roster(f->crew, i), NULL), 3);
        assert_int_equal(f->stats[i].share.catch_ups, 0);
        assert_int_equal(f->stats[i].share.steps_shared, 40);
    }
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(hth_roster_population(hth_crew_roster(crew, i), NULL), 2);
    assert_true(hth_crew_spread(f->crew) == 0);
    assert_true(hth_crew_spread(crew) == 0);
    hth_world_free(f->world); /* before either crew */
    hth_crew_free(crew);
    hth_crew_free(f->crew);
    for (int i = 0; i < MEMBERS_MAX; i++)
        hth_free(f->first[i]);
    hth_free(f);
}

static void bootstrap_late(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    (void)arg;
    t->share.bootstrap = i >= 2;
}

static void bootstrap_overrides_waiting(void **state)
{
    struct fixture *f = fixture_new(10);
    struct hth_crew_opts o = share_opts(f, HTH_SHARE_LOCAL);
    uint32_t late;

    (void)state;
    o.members = 2;
    o.edit = bootstrap_late;
    o.trainer.updates_max = 250;
    o.device = &crew_slow;
    f->crew = hth_crew_new(f->world, &o);
    run_ten(f);
    hth_world_run_for(f->world, 10 * S);
    late = hth_crew_join(f->crew);
    hth_world_run_for(f->world, 2 * S);
    assert_true(f->updates[late] > 0);
    assert_int_equal(f->stats[late].share.catch_ups, 0);
    fixture_free(f);
}

/* ---- local steps ----------------------------------------------------------------------------- */

static void together(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    (void)arg;
    t->data.shuffle_rows = 64;
    t->data.peer = i + 1;
    t->share.states = true;
}

static void check_local_steps(bool lamb)
{
    double spread[2];

    for (int averaged = 0; averaged < 2; averaged++) {
        struct fixture *f = fixture_new(12);
        struct hth_crew_opts o;

        f->lamb = lamb;
        o = share_opts(f, HTH_SHARE_LOCAL);
        o.members = 4;
        o.edit = together;
        o.device = &crew_slow;
        o.trainer.updates_max = 200;
        o.trainer.share.every = averaged ? 5 : 0;
        f->crew = hth_crew_new(f->world, &o);
        run_to_the_end(f, 1000 * S);
        spread[averaged] = hth_crew_spread(f->crew);
        if (averaged) {
            assert_true(f->stats[0].rounds >= 5);
            assert_true(f->stats[0].share.distance > 0);
            assert_true(f->stats[0].share.norm > f->stats[0].share.distance);
        }
        fixture_free(f);
    }
    assert_true(spread[0] > 0.02);
    assert_true(spread[1] < 0.5 * spread[0]);
}

static void local_steps_stay_together(void **state)
{
    (void)state;
    check_local_steps(false);
}

/* With LAMB, whose statistics are averaged as well. */
static void lamb_averages_its_statistics(void **state)
{
    (void)state;
    check_local_steps(true);
}

/* Rounds come every H updates, no sooner and none left out once the grid is there. */
static void parameters_are_averaged_every_h_updates(void **state)
{
    enum { H = 5, UPDATES = 60 };
    struct fixture *f = fixture_new(5);
    struct hth_device slow = crew_slow;
    struct hth_crew_opts o = share_opts(f, HTH_SHARE_LOCAL);

    (void)state;
    slow.job_overhead_us = 30 * MS; /* an update takes about 0.3 s, the grid some seconds */
    o.members = 4;
    o.edit = crew_own_rows;
    o.device = &slow;
    o.trainer.updates_max = UPDATES;
    o.trainer.share.every = H;
    f->crew = hth_crew_new(f->world, &o);
    run_to_the_end(f, 500 * S);
    for (int i = 0; i < 4; i++) {
        assert_in_range(f->stats[i].rounds, UPDATES / H - 3, UPDATES / H);
        assert_int_equal(f->stats[i].rounds_failed, 0);
    }
    fixture_free(f);
}

static void bad_options_are_refused(void **state)
{
    struct fixture *f = fixture_new(13);
    struct hth_node *node = hth_world_node(f->world, "x", NULL);
    struct hth_trainer_opts o = task_classifier(), bad;
    struct hth_trainer *t;

    (void)state;
    o.local = true;
    o.share.mode = HTH_SHARE_BATCH;
    bad = o;
    bad.share.target = 0;
    assert_err(HTH_E_CONFIG, hth_trainer_new(hth_node_env(node), &bad, &t));
    bad = o;
    bad.share.step_samples_max = 1;
    assert_err(HTH_E_CONFIG, hth_trainer_new(hth_node_env(node), &bad, &t));
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(five_trainers_equal_one),
        cmocka_unit_test(five_trainers_equal_one_with_lamb),
        cmocka_unit_test(narrow_formats_keep_trainers_equal),
        cmocka_unit_test(time_left_is_estimated_from_the_run),
        cmocka_unit_test(delayed_batches_overlap),
        cmocka_unit_test(rest_continues_after_most_die),
        cmocka_unit_test(newcomer_adopts_the_state),
        cmocka_unit_test(newcomer_gets_in_over_a_slow_line),
        cmocka_unit_test(unreachable_state_begins_no_second_run),
        cmocka_unit_test(runs_of_one_name_ignore_each_other),
        cmocka_unit_test(bootstrap_overrides_waiting),
        cmocka_unit_test(local_steps_stay_together),
        cmocka_unit_test(lamb_averages_its_statistics),
        cmocka_unit_test(parameters_are_averaged_every_h_updates),
        cmocka_unit_test(bad_options_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
