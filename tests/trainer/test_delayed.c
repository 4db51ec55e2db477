/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches that are gathered while the last one is averaged, by trainers that die and others that
 * join, and beside evaluations.
 */
#include <stdlib.h>

#include "support/test.h"
#include "trainer/crew.h"

#define S       HTH_US_PER_S
#define MS      HTH_US_PER_MS
#define MEMBERS 8
#define STEPS   40
#define DEATHS  2
#define EVENTS  4 /* deaths, and as many who join */

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    crew_own_rows(arg, i, t);
    t->share.delayed = true;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Not the first one, which is asked how far the run is. */
static void kill_one(struct crew_scene *s, struct hth_rng *rng)
{
    uint32_t up[CREW_MAX], n = 0;

    for (uint32_t i = 1; i < hth_crew_count(s->crew); i++)
        if (hth_node_is_up(hth_crew_node(s->crew, i)))
            up[n++] = i;
    hth_world_run_for(s->world, (int64_t)hth_rng_below(rng, 500 * MS));
    hth_node_crash(hth_crew_node(s->crew, up[hth_rng_below(rng, n)]),
                   hth_rng_chance(rng, 0.5) ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
}

static void churn(struct crew_scene *s, struct hth_rng *rng)
{
    uint64_t at[EVENTS];

    for (uint32_t i = 0; i < EVENTS; i++)
        at[i] = 2 * (2 + hth_rng_below(rng, STEPS - 4)) + (i >= DEATHS);
    qsort(at, EVENTS, sizeof(at[0]), by_number);
    for (uint32_t i = 0; i < EVENTS; i++) {
        crew_scene_run(s, 0, at[i] / 2, 300 * S);
        if (at[i] & 1)
            hth_crew_join(s->crew);
        else
            kill_one(s, rng);
    }
}

/* Checks the members that are alive at the end. */
static void check_all(struct crew_scene *s, uint64_t seed)
{
    uint64_t failed = 0, shared = 0, states = 0;

    for (uint32_t i = 0; i < hth_crew_count(s->crew); i++) {
        struct hth_train_stats stats;

        if (!hth_node_is_up(hth_crew_node(s->crew, i)))
            continue;
        hth_trainer_stats(hth_crew_trainer(s->crew, i), &stats);
        assert_int_equal(stats.updates, STEPS);
        failed += stats.share.tries_failed;
        shared += stats.share.steps_shared;
        states += stats.share.catch_ups;
    }
    print_message("seed %llu: %llu steps shared, %llu tries failed, %llu states, ended at %.1f s\n",
                  (unsigned long long)seed, (unsigned long long)shared, (unsigned long long)failed,
                  (unsigned long long)states, (double)hth_world_now_us(s->world) / S);
    assert_true(10 * failed < shared);
    assert_true(hth_crew_spread(s->crew) == 0);
}

static void check_churn(uint64_t seed)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct hth_device device = crew_slow;
    struct crew_scene *s;
    struct hth_rng rng;

    device.job_overhead_us = 45 * MS; /* half a second for a micro-batch, a step one and a half */
    o.device = &device;
    o.members = MEMBERS;
    o.edit = edit;
    o.trainer.updates_max = STEPS;
    o.trainer.share.target = 96;
    s = crew_scene_new(seed, &o);
    hth_rng_init(&rng, seed + 77);
    churn(s, &rng);
    assert_true(hth_world_run_until_true(s->world, hth_crew_all_done, s->crew, 300 * S));
    check_all(s, seed);
    crew_scene_free(s);
}

static void delayed_trainers_survive_deaths_and_joins(void **state)
{
    static const uint64_t seeds[] = {12, 17, 18};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(seeds); i++)
        check_churn(seeds[i]);
}

/* All evaluate after every fourth step, for as long as they gather for two. */
static void evaluations_do_not_shorten_delayed_batches(void **state)
{
    uint64_t failed = 0, states = 0;

    (void)state;
    for (uint64_t seed = 41; seed <= 43; seed++) {
        struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
        struct hth_device device = crew_slow;
        struct crew_scene *s;

        device.job_overhead_us = 40 * MS;
        o.device = &device;
        o.members = MEMBERS;
        o.edit = edit;
        o.trainer.micro_batch = 4;
        o.trainer.updates_max = 29;
        o.trainer.eval_every = 4;
        o.trainer.eval_samples = 64;
        o.trainer.share.target = 128;
            s = crew_scene_new(seed, &o);
        assert_true(hth_world_run_until_true(s->world, hth_crew_all_done, s->crew, 300 * S));
        for (uint32_t i = 0; i < MEMBERS; i++) {
            struct hth_train_stats stats = crew_stats(s->crew, i);

            assert_true(stats.share.weight >= 128);
            failed += stats.share.tries_failed;
            states += stats.share.catch_ups;
        }
        print_message("seed %llu: ended at %.1f s\n", (unsigned long long)seed,
                      (double)hth_world_now_us(s->world) / S);
        crew_scene_free(s);
    }
    assert_int_equal(failed + states, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delayed_trainers_survive_deaths_and_joins),
        cmocka_unit_test(evaluations_do_not_shorten_delayed_batches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
