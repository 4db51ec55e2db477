/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shared batch has its target and hardly more: nobody begins what lands after it is full, and
 * nobody waits for what others do not bring.
 */
#include "averaging/roster.h"
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S           HTH_US_PER_S
#define MS          HTH_US_PER_MS
#define MEMBERS_MAX 9

struct run {
    uint32_t members, rows, flights, steps;
    uint64_t target;
    double slowest;  /* times the fastest */
    int64_t skew_us; /* of the last one's clock */
    uint32_t eval_every, eval_samples;
    /* out */
    double samples, samples_min; /* of a step, of the first trainer */
    double step_s;
    uint64_t shared, short_of, alone; /* of all but the last */
    uint32_t counted;
    int64_t from_us;
    struct hth_world *world;
};

/* The first step is gathered before anybody knows how fast the others are. */
static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct run *r = arg;

    if (i == 0 && stats->updates == 1)
        r->from_us = hth_world_now_us(r->world);
    if (i != 0 || stats->updates == 1)
        return;
    r->samples += stats->share.weight;
    r->samples_min =
        r->counted == 0 ? stats->share.weight : HTH_MIN(r->samples_min, stats->share.weight);
    r->counted++;
    r->step_s = (double)(hth_world_now_us(r->world) - r->from_us) / S / r->counted;
}

struct waiting {
    struct hth_crew *crew;
    uint32_t count;
};

static bool are_done(void *arg)
{
    const struct waiting *w = arg;

    for (uint32_t i = 0; i < w->count; i++)
        if (!hth_crew_is_done(w->crew, i))
            return false;
    return true;
}

/* A micro-batch takes the fastest trainer some half a second. */
static struct hth_crew *crew_of(struct run *r)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct hth_device device = crew_slow;
    struct hth_crew *crew;

    o.trainer.micro_batch = r->rows;
    o.trainer.flights = r->flights;
    o.trainer.updates_max = r->steps;
    o.trainer.share.target = r->target;
    o.trainer.eval_every = r->eval_every;
    o.trainer.eval_samples = r->eval_samples;
    o.trainer.share.every = 0;
    o.members = 0;
    o.members_max = MEMBERS_MAX;
    o.device = &device;
    o.edit = crew_own_rows;
    o.on_update = on_update;
    o.arg = r;
    crew = hth_crew_new(r->world, &o);
    for (uint32_t i = 0; i < r->members; i++) {
        double part = (double)i / (r->members - 1);

        device.job_overhead_us = (int64_t)((1 + part * (r->slowest - 1)) * 40 * MS);
        hth_crew_join(crew);
    }
    return crew;
}

static void run(struct run *r, uint64_t seed)
{
    struct task_files files;
    struct waiting waiting = {.count = r->members - (r->skew_us != 0)};

    r->world = crew_world(seed, &files);
    waiting.crew = crew_of(r);
    hth_node_wall_set(hth_crew_node(waiting.crew, r->members - 1), r->skew_us);
    assert_true(hth_world_run_until_true(r->world, are_done, &waiting, 600 * S));
    for (uint32_t i = 0; i < waiting.count; i++) {
        struct hth_train_stats stats;

        hth_trainer_stats(hth_crew_trainer(waiting.crew, i), &stats);
        r->shared += stats.share.steps_shared;
        r->short_of += stats.share.short_of;
        r->alone += stats.share.steps_alone;
    }
    r->samples /= r->counted;
    print_message("%u trainers, clock off by %.1f s: %.1f samples of %llu, at least %.0f, %.2f s a "
                  "step, %.2f times short\n",
                  r->members, (double)r->skew_us / S, r->samples, (unsigned long long)r->target,
                  r->samples_min, r->step_s, (double)r->short_of / waiting.count);
    assert_int_equal(r->shared, waiting.count * r->steps);
    assert_int_equal(r->alone, 0);
    assert_true(r->samples_min >= (double)r->target);
    crew_end(r->world, waiting.crew);
}

/* Four micro-batches of each are the target: nobody makes a fifth. */
static void equal_trainers_meet_the_target_exactly(void **state)
{
    struct run r = {.members = 8, .rows = 4, .flights = 1, .steps = 8, .target = 128, .slowest = 1};

    (void)state;
    run(&r, 1);
    assert_close(r.samples, 128, 0, 0);
    assert_int_equal(r.short_of, 0);
}

/* Of nine who land at the same moment five go on for a fourth time: all would be 144. */
static void simultaneous_landings_meet_the_target(void **state)
{
    struct run r = {.members = 9, .rows = 4, .flights = 1, .steps = 8, .target = 128, .slowest = 1};

    (void)state;
    run(&r, 1);
    assert_close(r.samples, 128, 0, 0);
    assert_int_equal(r.short_of, 0);
}

/* They land when they will; of the last ones some are as good as in time. */
static void unequal_trainers_stay_near_the_target(void **state)
{
    struct run r = {
        .members = 8, .rows = 4, .flights = 1, .steps = 10, .target = 128, .slowest = 2};

    (void)state;
    run(&r, 2);
    assert_true(r.samples < 1.08 * 128); /* 1.25 if everybody made one more */
    assert_true(r.short_of <= 8);
}

static void many_flights_stay_near_the_target(void **state)
{
    struct run r = {
        .members = 4, .rows = 4, .flights = 3, .steps = 8, .target = 192, .slowest = 1.2};

    (void)state;
    run(&r, 3);
    assert_true(r.samples < 1.15 * 192);
    assert_true(r.short_of <= 4);
}

/* Every fourth step all evaluate, for as long as they gather for four. Nobody expects samples of
 * those who do, nor takes them to be slower for it, so that all come to each step. (The notes that
 * told of the step did not tell of the evaluation that began then: one average was short for
 * it.) */
static void evaluations_do_not_shorten_batches(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct run r = {.members = 8,
                        .rows = 4,
                        .flights = 1,
                        .steps = 14,
                        .target = 128,
                        .slowest = 1.3,
                        .eval_every = 4,
                        .eval_samples = 64};

        run(&r, seed);
        assert_true(r.samples < 1.15 * 128);
        assert_true(r.step_s < 4);
        assert_int_equal(r.short_of, 0);
    }
}

/* A trainer with a wrong clock meets no other one, and the samples that it publishes never arrive.
 * It may take a step before that is known. */
static void wrong_clock_does_not_stop_the_others(void **state)
{
    static const int64_t skews_s[] = {-30, -15, -8, -5, 5, 30};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(skews_s); i++) {
        struct run r = {.members = 6,
                        .rows = 4,
                        .flights = 1,
                        .steps = 10,
                        .target = 80,
                        .slowest = 1,
                        .skew_us = skews_s[i] * S};

        run(&r, 4 + i);
        assert_true(r.short_of <= 2 * 5);
        assert_true(r.samples < 1.1 * 80);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_trainers_meet_the_target_exactly),
        cmocka_unit_test(simultaneous_landings_meet_the_target),
        cmocka_unit_test(unequal_trainers_stay_near_the_target),
        cmocka_unit_test(many_flights_stay_near_the_target),
        cmocka_unit_test(evaluations_do_not_shorten_batches),
        cmocka_unit_test(wrong_clock_does_not_stop_the_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
