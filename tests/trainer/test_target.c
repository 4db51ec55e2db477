/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shared batch has its target and hardly more: no trainer begins a micro-batch that lands after
 * it is full, and none waits for samples that others do not bring.
 */
#include "support/test.h"
#include "trainer/crew.h"

#define S           HTH_US_PER_S
#define MS          HTH_US_PER_MS
#define MEMBERS_MAX 9
#define ROWS        4 /* of a micro-batch */

struct run {
    uint32_t members, flights, steps;
    uint64_t target;
    double slowest;  /* times the fastest, which takes half a second for a micro-batch */
    int64_t skew_us; /* of the last one's clock */
    uint32_t capped; /* the last so many bring one micro-batch to a step, and do not say so */
    uint32_t dies;   /* the member that does, without a word; 0: none */
    uint32_t eval_every, eval_samples;
    bool delayed; /* gathers a batch while the last one is averaged */
    /* out: steps of the first trainer after its first one, when speeds are known */
    double samples; /* of a step, on average */
    double step_s;
    int64_t slowest_us;
    uint32_t counted;
    int64_t from_us, last_us;
    struct hth_world *world;
    struct hth_crew *crew;
};

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct run *r = arg;
    int64_t now = hth_world_now_us(r->world);

    if (i != 0)
        return;
    assert_true(stats->share.weight >= (double)r->target);
    if (stats->updates == 1) {
        r->from_us = r->last_us = now;
        return;
    }
    assert_true(stats->share.weight < (double)(r->target + ROWS * r->members));
    r->samples += stats->share.weight;
    r->counted++;
    r->slowest_us = HTH_MAX(r->slowest_us, now - r->last_us);
    r->last_us = now;
}

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    const struct run *r = arg;

    crew_own_rows(NULL, i, t);
    if (i >= r->members - r->capped)
        t->share.step_samples_max = ROWS;
}

/* It is dead, or meets nobody by its clock. */
static bool is_left_out(const struct run *r, uint32_t i)
{
    return (r->dies > 0 && i == r->dies) || (r->skew_us != 0 && i == r->members - 1);
}

static bool are_done(void *arg)
{
    const struct run *r = arg;
    bool all = true;

    for (uint32_t i = 0; i < r->members; i++)
        all &= hth_crew_is_done(r->crew, i) || is_left_out(r, i);
    return all;
}

static void make_crew(struct run *r)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct hth_device device = crew_slow;

    o.trainer.micro_batch = ROWS;
    o.trainer.flights = r->flights;
    o.trainer.updates_max = r->steps;
    o.trainer.share.target = r->target;
    o.trainer.share.delayed = r->delayed;
    o.trainer.eval_every = r->eval_every;
    o.trainer.eval_samples = r->eval_samples;
    o.members = 0;
    o.members_max = MEMBERS_MAX;
    o.device = &device;
    o.edit = edit;
    o.on_update = on_update;
    o.arg = r;
    r->crew = hth_crew_new(r->world, &o);
    for (uint32_t i = 0; i < r->members; i++) {
        double part = (double)i / (r->members - 1);

        device.job_overhead_us = (int64_t)((1 + part * (r->slowest - 1)) * 40 * MS);
        hth_crew_join(r->crew);
    }
}

/* Half-way through the run and through a step. */
static void kill_one(struct run *r)
{
    while (r->counted < r->steps / 2)
        hth_world_run_for(r->world, 10 * MS);
    hth_world_run_for(r->world, (r->last_us - r->from_us) / (r->counted * 2));
    hth_node_crash(hth_crew_node(r->crew, r->dies), HTH_CRASH_SILENT);
}

static void run(struct run *r, uint64_t seed)
{
    struct task_files files;

    r->world = crew_world(seed, &files);
    make_crew(r);
    hth_node_wall_set(hth_crew_node(r->crew, r->members - 1), r->skew_us);
    if (r->dies > 0)
        kill_one(r);
    assert_true(hth_world_run_until_true(r->world, are_done, r, 600 * S));
    for (uint32_t i = 0; i < r->members; i++)
        if (!is_left_out(r, i))
            assert_int_equal(crew_stats(r->crew, i).share.steps_shared, r->steps);
    r->samples /= r->counted;
    r->step_s = (double)(r->last_us - r->from_us) / S / r->counted;
    print_message("%u trainers: %.1f samples of %llu, %.2f s a step, the slowest %.2f s\n",
                  r->members, r->samples, (unsigned long long)r->target, r->step_s,
                  (double)r->slowest_us / S);
    crew_end(r->world, r->crew);
}

/* Four micro-batches of each of eight, or three and four of nine, are the target. */
static void equal_trainers_meet_the_target(void **state)
{
    (void)state;
    for (uint32_t members = 8; members <= 9; members++) {
        struct run r = {.members = members, .flights = 1, .steps = 8, .target = 128, .slowest = 1};

        run(&r, 1);
        assert_true(r.samples <= 128 + ROWS);
    }
}

static void unequal_trainers_stay_near_the_target(void **state)
{
    struct run r = {.members = 8, .flights = 1, .steps = 10, .target = 128, .slowest = 2};

    (void)state;
    run(&r, 2);
    assert_true(r.samples < 1.08 * 128); /* 1.25 if everybody made one more */
}

static void many_flights_stay_near_the_target(void **state)
{
    struct run r = {.members = 4, .flights = 3, .steps = 8, .target = 192, .slowest = 1.2};

    (void)state;
    run(&r, 3);
    assert_true(r.samples < 1.15 * 192);
}

/* Every fourth step all evaluate, for as long as they gather for four. */
static void evaluations_do_not_shorten_batches(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct run r = {.members = 8,
                        .flights = 1,
                        .steps = 14,
                        .target = 128,
                        .slowest = 1.3,
                        .eval_every = 4,
                        .eval_samples = 64,
                        .delayed = seed > 2};

        run(&r, seed);
        assert_true(r.samples < 1.15 * 128);
        assert_true(r.step_s < 4);
    }
}

static void wrong_clock_does_not_stop_the_others(void **state)
{
    static const int64_t skews_s[] = {-30, -15, -8, -5, 5, 30};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(skews_s); i++) {
        struct run r = {.members = 6,
                        .flights = 1,
                        .steps = 10,
                        .target = 80,
                        .slowest = 1,
                        .skew_us = skews_s[i] * S};

        run(&r, 4 + i);
        assert_true(r.samples < 1.1 * 80);
    }
}

static void trainers_that_never_land_do_not_delay_steps(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct run r = {
            .members = 9, .flights = 1, .steps = 20, .target = 128, .slowest = 1, .capped = 3};

        run(&r, seed);
        assert_true(r.samples < 1.1 * 128);
        assert_true(r.step_s < 2.7);
    }
}

/* Each trainer dies in one run. */
static void death_of_any_trainer_does_not_stop_steps(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < MEMBERS_MAX; i++) {
        struct run r = {
            .members = 9, .flights = 1, .steps = 12, .target = 128, .slowest = 1, .dies = i};

        run(&r, i);
        assert_true(r.samples < 1.03 * 128);
        assert_true(r.slowest_us < 2700 * MS); /* half a micro-batch and an average more */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_trainers_meet_the_target),
        cmocka_unit_test(unequal_trainers_stay_near_the_target),
        cmocka_unit_test(many_flights_stay_near_the_target),
        cmocka_unit_test(evaluations_do_not_shorten_batches),
        cmocka_unit_test(wrong_clock_does_not_stop_the_others),
        cmocka_unit_test(trainers_that_never_land_do_not_delay_steps),
        cmocka_unit_test(death_of_any_trainer_does_not_stop_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
