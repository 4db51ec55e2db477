/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared batches whose steps are shorter than everything else: than a record's way through the DHT,
 * than the fetching of a state. Trainers that are connected need no DHT, and one that missed a step
 * gets in again.
 */
#include "core/dht.h"
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S          HTH_US_PER_S
#define MS         HTH_US_PER_MS
#define MEMBERS    4
#define TARGET     48
#define STATE_LATE (300 * MS) /* about ten steps */

static struct hth_device fast; /* ten milliseconds a micro-batch */

static struct crew_scene *start(uint64_t seed)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);

    o.trainer.share.target = TARGET;
    o.trainer.flights = 2;
    o.trainer.updates_max = 1u << 30;
    o.members = MEMBERS;
    fast = crew_slow;
    fast.job_overhead_us = 800;
    o.device = &fast;
    return crew_scene_near(seed, 500, &o);
}

static uint64_t shared_by(struct crew_scene *f, uint32_t i)
{
    return crew_stats(f->crew, i).share.steps_shared;
}

static uint64_t dht_requests(struct crew_scene *f, uint32_t i)
{
    struct hth_dht_stats d;

    hth_dht_stats(hth_node_dht(hth_crew_node(f->crew, i)), &d);
    return d.puts + d.watches + d.gets;
}

/* So many steps of which it shares nine tenths, within that time. */
static void check_takes_part(struct crew_scene *f, uint32_t i, int64_t within_us)
{
    uint64_t before = shared_by(f, i), steps = crew_stats(f->crew, 0).updates;

    hth_world_run_for(f->world, within_us);
    steps = crew_stats(f->crew, 0).updates - steps;
    print_message("%llu of %llu steps, catch_ups %llu\n",
                  (unsigned long long)(shared_by(f, i) - before), (unsigned long long)steps,
                  (unsigned long long)crew_stats(f->crew, i).share.catch_ups);
    assert_true(steps > 20);
    assert_true(10 * (shared_by(f, i) - before) >= 9 * steps);
}

static void short_steps_make_few_dht_requests(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct crew_scene *f = start(seed);
        uint64_t requests[MEMBERS], steps;

        hth_world_run_for(f->world, 5 * S);
        for (uint32_t i = 0; i < MEMBERS; i++)
            requests[i] = dht_requests(f, i);
        steps = crew_stats(f->crew, 0).updates;
        hth_world_run_for(f->world, 4 * S);
        steps = crew_stats(f->crew, 0).updates - steps;
        assert_true(steps > 80);
        for (uint32_t i = 0; i < MEMBERS; i++) {
            requests[i] = dht_requests(f, i) - requests[i];
            if (requests[i] > 12) /* two notes a second, and a few of other kinds */
                fail_msg("%llu requests in %llu steps", (unsigned long long)requests[i],
                         (unsigned long long)steps);
        }
        crew_scene_free(f);
    }
}

static void lose_records(struct crew_scene *f)
{
    struct hth_dht_params dht = HTH_DHT_PARAMS_INIT;

    dht.lost_put = dht.partial = 1;
    hth_world_set_dht(f->world, &dht);
}

/* No record arrives, and one of the trainers dies then: the others go on without it. */
static void connected_trainers_share_without_records(void **state)
{
    struct crew_scene *f = start(3);
    uint64_t before;

    (void)state;
    hth_world_run_for(f->world, 5 * S);
    lose_records(f);
    hth_world_run_for(f->world, 30 * S);
    crew_same(f->world, f->crew, S);
    hth_node_crash(hth_crew_node(f->crew, 3), HTH_CRASH_SILENT);
    before = shared_by(f, 0);
    hth_world_run_for(f->world, 30 * S);
    assert_true(shared_by(f, 0) > before + 500);
    crew_same(f->world, f->crew, S);
    for (uint32_t i = 0; i < MEMBERS - 1; i++)
        assert_int_equal(crew_stats(f->crew, i).share.catch_ups, 0);
    crew_scene_free(f);
}

/* States take ten steps on their way to that member. */
static void run_with_late_states(struct crew_scene *f, uint32_t late, int64_t duration_us)
{
    int64_t end_us = hth_world_now_us(f->world) + duration_us;
    bool was_coming = false;

    while (hth_world_now_us(f->world) < end_us) {
        bool coming = hth_crew_trainer(f->crew, late) != NULL &&
                      crew_stats(f->crew, late).share.phase == HTH_SHARE_FETCHING;

        for (uint32_t i = 0; coming && !was_coming && i < hth_crew_count(f->crew); i++)
            if (i != late)
                hth_world_clog(f->world, hth_crew_node(f->crew, i), hth_crew_node(f->crew, late),
                               hth_world_now_us(f->world) + STATE_LATE);
        was_coming = coming;
        hth_world_run_for(f->world, MS);
    }
}

/* It does not run after the others for ever, and costs them nothing. */
static void straggler_gets_in_without_records(void **state)
{
    (void)state;
    for (uint64_t seed = 4; seed <= 5; seed++) {
        struct crew_scene *f = start(seed);
        uint64_t shared;

        hth_world_run_for(f->world, 5 * S);
        lose_records(f);
        hth_node_set_side(hth_crew_node(f->crew, 3), 1);
        hth_world_run_for(f->world, S);
        hth_world_heal(f->world);
        shared = shared_by(f, 0);
        run_with_late_states(f, 3, 2 * S);
        assert_true(shared_by(f, 0) > shared + 20);
        check_takes_part(f, 3, 2 * S);
        assert_true(crew_stats(f->crew, 3).share.catch_ups <= 2);
        crew_scene_free(f);
    }
}

/* Each state is ten steps old when it arrives. */
static void newcomer_gets_in(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct crew_scene *f = start(seed);

        hth_world_run_for(f->world, 5 * S);
        assert_int_equal(hth_crew_join(f->crew), MEMBERS);
        run_with_late_states(f, MEMBERS, 4 * S);
        check_takes_part(f, MEMBERS, 2 * S);
        assert_true(crew_stats(f->crew, MEMBERS).share.catch_ups <= 2);
        for (uint32_t i = 0; i < MEMBERS; i++)
            assert_int_equal(crew_stats(f->crew, i).share.catch_ups, 0);
        crew_scene_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_steps_make_few_dht_requests),
        cmocka_unit_test(connected_trainers_share_without_records),
        cmocka_unit_test(straggler_gets_in_without_records),
        cmocka_unit_test(newcomer_gets_in),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
