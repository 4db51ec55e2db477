/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trainers that share batches by roll call hold the same bits, whoever comes and goes; their
 * batches have the target and hardly more; and where steps are short they need no records. Cuts are
 * in tests/scenarios/test_cuts.c.
 */
#include "core/dht.h"
#include "core/limits.h"
#include "core/mem.h"
#include "support/suite.h"
#include "trainer/crew.h"

/* `delayed`: batches are gathered while the last one is averaged. */
static struct crew_scene *start(uint64_t seed, uint32_t members, const char *grid, bool delayed)
{
    struct hth_crew_opts o = crew_batch_opts(members, 18 * members);

    o.trainer.share.delayed = delayed;
    if (grid != NULL) {
        assert_ok(hth_avg_shape_parse(grid, &o.roster.shape));
        o.trainer.share.format = HTH_QUANT_INT8;
    }
    return crew_scene_new(seed, &o);
}

/* ---- comings and goings ---------------------------------------------------------------------- */

/* In a line, on a grid, and with a twin in it: a death costs no step, and who comes is in. */
TEST(members_come_and_go)
{
    static const struct {
        uint32_t members;
        const char *grid;
        bool delayed;
    } cases[] = {{5, NULL, false}, {8, NULL, true}, {5, "3x2", true}, {6, "3x2", false}};

    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct crew_scene *f = start(k + 1, cases[k].members, cases[k].grid, cases[k].delayed);

        for (uint32_t i = 0; i < 3; i++) {
            uint64_t before = crew_same_after(f, i == 0 ? 10 * S : 0);

            assert_true(before > 10);
            crew_crash(f, i, i % 2 ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
            assert_true(crew_same_after(f, 5 * S) > before + 5);
        }
        for (uint32_t i = 0; i < 3; i++)
            crew_restart(f, i);
        uint64_t before = crew_same_after(f, 5 * S);
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t m = hth_crew_join(f->crew);

            assert_true(crew_same_after(f, 5 * S) > before + 5 * (i + 1));
            assert_int_equal(crew_stats(f, m).share.catch_ups, 1);
        }
        crew_scene_free(f);
    }
}

static void on_stop(void *arg)
{
    *(int64_t *)arg = 1;
}

/* Of five, four leave one after the other, two at once: nobody else loses a step. */
TEST(leaving_costs_nobody_a_step)
{
    struct crew_scene *f = start(3, 5, NULL, false);
    int64_t stopped[5] = {0};

    hth_world_run_for(f->world, 12 * S);
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t before = crew_same_after(f, 0);

        hth_trainer_stop(hth_crew_trainer(f->crew, i), on_stop, &stopped[i]);
        if (i == 1)
            continue; /* the next one leaves, too */
        hth_world_run_for(f->world, 1500 * MS);
        for (uint32_t k = 0; k <= i; k++) {
            assert_true(stopped[k]);
            if (hth_node_is_up(hth_crew_node(f->crew, k)))
                crew_crash(f, k, HTH_CRASH_RESET);
        }
        assert_true(crew_same_after(f, S) > before + 3);
    }
    crew_scene_free(f);
}

/* More than a sampled roster shows. */
TEST(hundred_trainers_take_the_same_steps)
{
    enum { MEMBERS = HTH_AVG_ROSTER_HIGH + 4, FEW = 3 };
    struct hth_crew_opts o = crew_batch_opts(MEMBERS, 2 * MEMBERS);
    struct crew_scene *f;

    o.trainer.micro_batch = 2;
    o.trainer.updates_max = FEW;
    f = crew_scene_new(7, &o);
    crew_to_the_end(f, 10 * S);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        assert_int_equal(crew_stats(f, i).share.steps_shared, FEW);
        assert_int_equal(crew_stats(f, i).share.catch_ups, 0);
    }
    assert_true(hth_crew_spread(f->crew) == 0);
    crew_scene_free(f);
}

/* ---- short steps ----------------------------------------------------------------------------- */

static uint64_t dht_requests(struct crew_scene *f, uint32_t i)
{
    struct hth_dht_stats d;

    hth_dht_stats(hth_node_dht(hth_crew_node(f->crew, i)), &d);
    return d.puts + d.watches + d.gets;
}

/* Steps shorter than a record's way through the DHT make few requests there; and where no record
 * arrives, and one dies then, the others go on. */
TEST(connected_trainers_share_without_records)
{
    enum { MEMBERS = 4 };
    struct hth_crew_opts o = crew_batch_opts(MEMBERS, 48);
    struct hth_device fast = crew_slow; /* ten milliseconds a micro-batch */
    struct hth_dht_params dht = HTH_DHT_PARAMS_INIT;
    uint64_t requests[MEMBERS], before;

    fast.job_overhead_us = 800;
    o.device = &fast;
    o.trainer.flights = 2;
    struct crew_scene *f = crew_scene_near(3, 500, &o);
    hth_world_run_for(f->world, 5 * S);
    for (uint32_t i = 0; i < MEMBERS; i++)
        requests[i] = dht_requests(f, i);
    before = crew_stats(f, 0).updates;
    hth_world_run_for(f->world, 4 * S);
    assert_true(crew_stats(f, 0).updates > before + 80);
    for (uint32_t i = 0; i < MEMBERS; i++) /* two notes a second, and a few of other kinds */
        assert_in_range(dht_requests(f, i) - requests[i], 0, 12);
    dht.lost_put = dht.partial = 1;
    hth_world_set_dht(f->world, &dht);
    before = crew_same_after(f, 10 * S);
    crew_crash(f, 3, HTH_CRASH_SILENT);
    assert_true(crew_same_after(f, 10 * S) > before + 150);
    for (uint32_t i = 0; i < MEMBERS - 1; i++)
        assert_int_equal(crew_stats(f, i).share.catch_ups, 0);
    crew_scene_free(f);
}

/* ---- targets --------------------------------------------------------------------------------- */

#define ROWS 4 /* of a micro-batch */

struct run {
    uint32_t members, flights, steps;
    uint64_t target;
    double slowest;   /* times the fastest, which takes half a second for a micro-batch */
    double over;      /* samples of a step, at most, on average, by the target */
    double step_s;    /* on average, at most; 0: not looked at */
    double longest_s; /* likewise, of the longest step */
    uint32_t capped;  /* the last so many bring one micro-batch to a step, and do not say so */
    uint32_t dies;    /* the member that does; 0: none */
    enum hth_crash how;
    bool evaluates, delayed;
    /* Out: steps of the first trainer after its first one, when speeds are known. */
    double samples;
    uint32_t counted;
    int64_t from_us, last_us, longest_us;
    struct crew_scene *scene;
};

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct run *r = arg;
    int64_t now = hth_world_now_us(r->scene->world);

    if (i != 0)
        return;
    assert_true(stats->share.weight >= (double)r->target);
    if (stats->updates > 1) {
        assert_true(stats->share.weight < (double)(r->target + ROWS * r->members));
        r->samples += stats->share.weight;
        r->counted++;
        r->longest_us = HTH_MAX(r->longest_us, now - r->last_us);
    } else {
        r->from_us = now;
    }
    r->last_us = now;
}

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    const struct run *r = arg;

    crew_own_rows(NULL, i, t);
    if (i >= r->members - r->capped)
        t->share.step_samples_max = ROWS;
}

static bool are_done(void *arg)
{
    const struct run *r = arg;
    bool all = true;

    for (uint32_t i = 0; i < r->members; i++)
        all &= hth_crew_is_done(r->scene->crew, i) || (r->dies > 0 && i == r->dies);
    return all;
}

static void run(struct run *r, uint64_t seed)
{
    struct hth_crew_opts o = crew_batch_opts(0, r->target);
    struct hth_device device = crew_slow;
    struct crew_scene *s;

    o.trainer.micro_batch = ROWS;
    o.trainer.flights = r->flights;
    o.trainer.updates_max = r->steps;
    o.trainer.share.delayed = r->delayed;
    o.trainer.eval_every = r->evaluates ? 4 : 0;
    o.trainer.eval_samples = r->evaluates ? 64 : o.trainer.eval_samples;
    o.device = &device;
    o.edit = edit;
    o.on_update = on_update;
    o.arg = r;
    s = r->scene = crew_scene_new(seed, &o);
    for (uint32_t i = 0; i < r->members; i++) {
        double part = (double)i / (r->members - 1);

        device.job_overhead_us = (int64_t)((1 + part * (r->slowest - 1)) * 40 * MS);
        hth_crew_join(s->crew);
    }
    while (r->dies > 0 && r->counted < r->steps / 2)
        hth_world_run_for(s->world, 10 * MS);
    hth_world_run_for(s->world, r->dies > 0 ? S : 0); /* half-way through a step */
    if (r->dies > 0)
        crew_crash(s, r->dies, r->how);
    assert_true(hth_world_run_until_true(s->world, are_done, r, 600 * S));
    for (uint32_t i = 0; i < r->members; i++)
        if (hth_crew_trainer(s->crew, i) != NULL)
            assert_int_equal(crew_stats(s, i).share.steps_shared, r->steps);
    crew_scene_free(s);
}

/* No trainer begins a micro-batch that lands after its batch is full, and none waits for samples
 * that others do not bring. */
TEST(batches_have_their_target)
{
    static const struct run cases[] = {
        /* Four micro-batches of each of eight, or three and four of nine. */
        {8, 1, 8, 128, 1, .over = 1 + ROWS / 128.0},
        {9, 1, 8, 128, 1, .over = 1 + ROWS / 128.0},
        {8, 1, 10, 128, 2, .over = 1.08}, /* 1.25 if everybody made one more */
        {4, 3, 8, 192, 1.2, .over = 1.15},
        /* Every fourth step all evaluate, for as long as they gather for four. */
        {8, 1, 14, 128, 1.3, .over = 1.15, .step_s = 4, .evaluates = true},
        {8, 1, 14, 128, 1.3, .over = 1.15, .step_s = 4, .evaluates = true, .delayed = true},
        {9, 1, 20, 128, 1, .over = 1.1, .step_s = 2.7, .capped = 3},
        /* Half a micro-batch and an average more. */
        {9, 1, 12, 128, 1, .over = 1.03, .longest_s = 2.7, .dies = 1, .how = HTH_CRASH_SILENT},
        {9, 1, 12, 128, 1, .over = 1.03, .longest_s = 2.0, .dies = 5, .how = HTH_CRASH_RESET},
        {9, 1, 12, 128, 1, .over = 1.03, .longest_s = 2.7, .dies = 8, .how = HTH_CRASH_SILENT},
    };

    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct run r = cases[k];

        run(&r, k + 1);
        double step_s = (double)(r.last_us - r.from_us) / S / r.counted;
        print_message("%u trainers: %.1f samples of %llu, %.2f s a step, the longest %.2f s\n",
                      r.members, r.samples / r.counted, (unsigned long long)r.target, step_s,
                      (double)r.longest_us / S);
        assert_true(r.samples / r.counted <= r.over * (double)r.target);
        assert_true(r.step_s == 0 || step_s < r.step_s);
        assert_true(r.longest_s == 0 || (double)r.longest_us < r.longest_s * S);
    }
}
