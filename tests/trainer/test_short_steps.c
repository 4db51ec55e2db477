/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared batches whose steps are shorter than everything else: than a note's way through the DHT,
 * than the fetching of a state. The first one is hardly larger than others, the DHT is left alone,
 * nobody who is connected is lost from sight, and who missed a step gets in again.
 */
#include "averaging/moshpit.h"
#include "core/dht.h"
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S          HTH_US_PER_S
#define MS         HTH_US_PER_MS
#define MEMBERS    4
#define TARGET     48
#define LIFE       (4 * S)    /* of a note */
#define STATE_LATE (300 * MS) /* about ten steps */

struct fixture {
    struct hth_world *world;
    struct hth_crew *crew;
    struct task_files files;
    struct hth_device device;
};

static struct fixture *grid_new(uint64_t seed, int64_t life_us, uint32_t members, uint32_t group)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);

    f->world = crew_world_near(seed, 500, &f->files);
    o.trainer.share.target = TARGET;
    o.trainer.share.every = 100;
    o.trainer.flights = 2;
    o.trainer.updates_max = 1u << 30;
    o.members = members;
    o.roster.life_us = life_us;
    o.roster.group_max = group;
    f->device = crew_slow;
    f->device.job_overhead_us = 800; /* ten milliseconds a micro-batch */
    o.device = &f->device;
    f->crew = hth_crew_new(f->world, &o);
    return f;
}

static struct fixture *fixture_new(uint64_t seed, int64_t life_us)
{
    return grid_new(seed, life_us, MEMBERS, 16);
}

static void fixture_free(struct fixture *f)
{
    assert_ok(hth_crew_err(f->crew));
    crew_end(f->world, f->crew);
    hth_free(f);
}

static struct hth_train_stats stats_of(struct fixture *f, uint32_t i)
{
    struct hth_train_stats t;

    hth_trainer_stats(hth_crew_trainer(f->crew, i), &t);
    return t;
}

/* Not in the middle of a step, which is counted before it is taken. */
static struct hth_train_stats stats_after_step(struct fixture *f, uint32_t i)
{
    while (stats_of(f, i).share.phase == HTH_SHARE_STEPPING)
        hth_world_run_for(f->world, MS);
    return stats_of(f, i);
}

static uint64_t shared_by(struct fixture *f, uint32_t i)
{
    return stats_of(f, i).share.steps_shared;
}

static uint64_t dht_requests(struct fixture *f, uint32_t i)
{
    struct hth_dht_stats d;

    hth_dht_stats(hth_node_dht(hth_crew_node(f->crew, i)), &d);
    return d.puts + d.watches + d.gets;
}

/* So many steps of which it shares nine tenths, within that time. */
static void check_takes_part(struct fixture *f, uint32_t i, int64_t within_us)
{
    uint64_t before = shared_by(f, i), steps = stats_of(f, 0).updates;

    hth_world_run_for(f->world, within_us);
    steps = stats_of(f, 0).updates - steps;
    print_message("%llu of %llu steps, catch_ups %llu\n",
                  (unsigned long long)(shared_by(f, i) - before), (unsigned long long)steps,
                  (unsigned long long)stats_of(f, i).share.catch_ups);
    assert_true(steps > 20);
    assert_true(10 * (shared_by(f, i) - before) >= 9 * steps);
}

static bool has_stepped(void *arg)
{
    struct fixture *f = arg;

    return hth_crew_trainer(f->crew, 0) != NULL && stats_of(f, 0).updates > 0;
}

/* How fast the others are is known a note's way after their first micro-batch, and the grid as
 * soon after it was proposed. */
static void first_step_is_in_time(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct fixture *f = fixture_new(seed, 20 * S);
        double first_s, samples;

        assert_true(hth_world_run_until_true(f->world, has_stepped, f, 10 * S));
        first_s = (double)hth_world_now_us(f->world) / S;
        samples = stats_of(f, 0).share.weight;
        print_message("first step after %.2f s, of %.0f samples\n", first_s, samples);
        assert_int_equal(stats_of(f, 0).updates, 1);
        assert_true(samples <= 2 * TARGET);
        assert_true(first_s < 4.4);
        fixture_free(f);
    }
}

/* A look costs no place in the DHT; averages are whole the first time. */
static void short_steps_make_few_dht_requests(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct fixture *f = fixture_new(seed, 20 * S);
        uint64_t requests[MEMBERS], steps;

        hth_world_run_for(f->world, 5 * S);
        for (uint32_t i = 0; i < MEMBERS; i++)
            requests[i] = dht_requests(f, i);
        steps = stats_of(f, 0).updates;
        hth_world_run_for(f->world, 4 * S);
        steps = stats_of(f, 0).updates - steps;
        assert_true(steps > 80);
        for (uint32_t i = 0; i < MEMBERS; i++) {
            const struct hth_train_stats t = stats_after_step(f, i);

            requests[i] = dht_requests(f, i) - requests[i];
            if (requests[i] > 12) /* two notes a second, and a few of other kinds */
                fail_msg("%llu requests in %llu steps", (unsigned long long)requests[i],
                         (unsigned long long)steps);
            assert_int_equal(t.share.steps_shared, t.updates);
            assert_true(20 * t.share.short_of <= t.updates);
        }
        fixture_free(f);
    }
}

/* Three in groups of two: one of them is alone in its line. Nobody waits for it there in each step,
 * and who comes to stand there gets in. */
static void line_of_one_waits_for_nobody(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct fixture *f = grid_new(seed, 20 * S, 3, 2);
        uint64_t steps;
        uint32_t g;

        hth_world_run_for(f->world, 10 * S);
        assert_int_equal(hth_roster_shape(hth_crew_roster(f->crew, 0), &g)->dims, 2);
        steps = stats_of(f, 0).updates;
        hth_world_run_for(f->world, 5 * S);
        steps = stats_of(f, 0).updates - steps;
        print_message("%llu steps by three in 5 s\n", (unsigned long long)steps);
        assert_true(steps > 60);
        hth_crew_join(f->crew);
        hth_world_run_for(f->world, 10 * S);
        check_takes_part(f, 3, 5 * S);
        fixture_free(f);
    }
}

static void lose_notes(struct fixture *f)
{
    struct hth_dht_params dht = HTH_DHT_PARAMS_INIT;

    dht.lost_put = dht.partial = 1;
    hth_world_set_dht(f->world, &dht);
}

/* Notes do not come any more: who is connected is there all the same. One of them dies then: the
 * others go on without it. */
static void connected_trainers_share_without_records(void **state)
{
    struct fixture *f = fixture_new(3, LIFE);
    uint64_t before;

    (void)state;
    hth_world_run_for(f->world, 5 * S);
    lose_notes(f);
    hth_world_run_for(f->world, 3 * LIFE);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        const struct hth_train_stats t = stats_of(f, i);

        assert_int_equal(t.share.steps_alone, 0);
        assert_int_equal(t.share.catch_ups, 0);
        assert_int_equal(t.share.steps_shared, t.updates);
        assert_int_equal(hth_roster_population(hth_crew_roster(f->crew, i), NULL), MEMBERS);
    }
    hth_node_crash(hth_crew_node(f->crew, 3), HTH_CRASH_SILENT);
    before = shared_by(f, 0);
    hth_world_run_for(f->world, 2 * LIFE);
    assert_true(shared_by(f, 0) > before + 50);
    for (uint32_t i = 0; i < MEMBERS - 1; i++) {
        assert_int_equal(stats_of(f, i).share.steps_alone, 0);
        assert_int_equal(hth_roster_population(hth_crew_roster(f->crew, i), NULL), MEMBERS - 1);
    }
    fixture_free(f);
}

/* States take ten steps on their way to that member. */
static void run_with_late_states(struct fixture *f, uint32_t late, int64_t duration_us)
{
    int64_t end_us = hth_world_now_us(f->world) + duration_us;
    bool was_coming = false;

    while (hth_world_now_us(f->world) < end_us) {
        bool coming = hth_crew_trainer(f->crew, late) != NULL &&
                      stats_of(f, late).share.phase == HTH_SHARE_FETCHING;

        for (uint32_t i = 0; coming && !was_coming && i < hth_crew_count(f->crew); i++)
            if (i != late)
                hth_world_clog(f->world, hth_crew_node(f->crew, i), hth_crew_node(f->crew, late),
                               hth_world_now_us(f->world) + STATE_LATE);
        was_coming = coming;
        hth_world_run_for(f->world, MS);
    }
}

/* It does not run after the others for ever, though it reads of no step of theirs, and costs them
 * nothing. */
static void straggler_gets_in_without_records(void **state)
{
    (void)state;
    for (uint64_t seed = 4; seed <= 5; seed++) {
        struct fixture *f = fixture_new(seed, 20 * S);
        uint64_t shared;

        hth_world_run_for(f->world, 5 * S);
        lose_notes(f);
        hth_node_set_side(hth_crew_node(f->crew, 3), 1);
        hth_world_run_for(f->world, S);
        hth_world_heal(f->world);
        shared = shared_by(f, 0);
        run_with_late_states(f, 3, 2 * S);
        assert_true(shared_by(f, 0) > shared + 20);
        check_takes_part(f, 3, 2 * S);
        assert_true(stats_of(f, 3).share.catch_ups <= 2);
        fixture_free(f);
    }
}

/* Notes of the others are three milestones late for it: it waits for their line, and begins none
 * beside it. (In two worlds of these sixteen all of them took its state.) */
static void newcomer_waits_for_late_records(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct fixture *f = fixture_new(seed, 20 * S);

        hth_world_run_for(f->world, 5 * S);
        assert_int_equal(hth_crew_join(f->crew), MEMBERS);
        run_with_late_states(f, MEMBERS, 4 * S);
        check_takes_part(f, MEMBERS, 2 * S);
        assert_true(stats_of(f, MEMBERS).share.catch_ups <= 2);
        for (uint32_t i = 0; i < MEMBERS; i++)
            assert_int_equal(stats_of(f, i).share.catch_ups, 0);
        fixture_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_step_is_in_time),
        cmocka_unit_test(short_steps_make_few_dht_requests),
        cmocka_unit_test(line_of_one_waits_for_nobody),
        cmocka_unit_test(connected_trainers_share_without_records),
        cmocka_unit_test(straggler_gets_in_without_records),
        cmocka_unit_test(newcomer_waits_for_late_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
