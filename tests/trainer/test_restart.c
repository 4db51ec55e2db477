/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All trainers of a run crash, and come back with the checkpoints that they have: one of step 90,
 * the others of step 50. The run goes on from the latest that is there in time.
 */
#include "support/test.h"
#include "trainer/crew.h"

#define S         HTH_US_PER_S
#define MS        HTH_US_PER_MS
#define CRASHED   99
#define NEWEST    90
#define ENOUGH    130

#define NOTES_END (30 * S) /* nobody has a note any more */

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    crew_own_rows(arg, i, t);
    t->checkpoint_every = i == 0 ? 10 : 50;
}

static void edit_first_ends(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    edit(arg, i, t);
    t->updates_max = i == 0 ? NEWEST : ENOUGH;
}

static struct crew_scene *crashed_with(uint64_t seed, uint32_t members, int64_t down_us,
                                       void (*with)(void *, uint32_t, struct hth_trainer_opts *))
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct crew_scene *s;

    o.trainer.updates_max = ENOUGH;
    o.trainer.share.target = 240;
    o.trainer.share.every = 0;
    o.trainer.resume = true;
    o.trainer.checkpoint_path = "trunk.safetensors";
    o.members = members;
    o.device = &crew_slow;
    o.edit = with;
    s = crew_scene_new(seed, &o);
    crew_scene_run(s, 1, CRASHED, 300 * S);
    for (uint32_t i = 0; i < members; i++)
        hth_node_crash(hth_crew_node(s->crew, i), HTH_CRASH_RESET);
    hth_world_run_for(s->world, down_us);
    memset(s->stats, 0, sizeof(s->stats));
    return s;
}

static struct crew_scene *crashed(uint64_t seed, uint32_t members, int64_t down_us)
{
    return crashed_with(seed, members, down_us, edit);
}

static void run_on(struct crew_scene *s, int64_t since_us)
{
    assert_true(hth_world_run_until_true(s->world, hth_crew_all_done, s->crew, 300 * S));
    assert_ok(hth_crew_err(s->crew));
    for (uint32_t i = 0; i < hth_crew_count(s->crew); i++)
        assert_int_equal(s->stats[i].share.steps_alone, 0);
    assert_true(hth_crew_spread(s->crew) < 1e-6);
    print_message("%u trainers: all done %.1f s after they came back\n", hth_crew_count(s->crew),
                  (double)(hth_world_now_us(s->world) - since_us) / S);
}

/* All come back at once, and nobody takes a step from an older one. (The newest once stood still
 * for half a minute while the others did those steps again, and then trained alone.) */
static void check_together(uint64_t seed, uint32_t members, int64_t down_us)
{
    struct crew_scene *s = crashed(seed, members, down_us);
    int64_t since_us = hth_world_now_us(s->world);

    for (uint32_t i = 0; i < members; i++)
        hth_node_restart(hth_crew_node(s->crew, i));
    crew_scene_run(s, 0, NEWEST + 1, 20 * S);
    run_on(s, since_us);
    for (uint32_t i = 0; i < members; i++) {
        assert_int_equal(s->stats[i].share.catch_ups, i > 0);
        assert_int_equal(s->stats[i].share.steps_shared, ENOUGH - NEWEST);
    }
    crew_scene_free(s);
}

static void trainers_that_return_together_use_the_latest_checkpoint(void **state)
{
    (void)state;
    check_together(7, 3, NOTES_END);
    check_together(9, 3, NOTES_END);
    check_together(7, 6, NOTES_END);
}

/* The notes of before the crash are still there: everybody asks for the state of those who wrote
 * them, until they say that they look, too. */
static void stale_records_do_not_block_a_restart(void **state)
{
    (void)state;
    check_together(7, 3, 2 * S);
    check_together(9, 3, 10 * S);
    check_together(7, 6, 2 * S);
}

/* The newest comes when the others have gone on without it. They believe no single one that is so
 * far ahead, and so it takes their state and trains with them. (It once waited until they had come
 * near its step, for 37 s; and its samples did not count until they had.) */
static void check_newest_is_late(uint64_t seed, int64_t late_us)
{
    struct crew_scene *s = crashed(seed, 3, NOTES_END);
    int64_t since_us;

    hth_node_restart(hth_crew_node(s->crew, 2));
    hth_node_restart(hth_crew_node(s->crew, 1));
    hth_world_run_for(s->world, late_us);
    since_us = hth_world_now_us(s->world);
    hth_node_restart(hth_crew_node(s->crew, 0));
    run_on(s, since_us);
    assert_int_equal(s->stats[0].share.yields, 1);
    assert_int_equal(s->stats[0].share.catch_ups, 1);
    assert_true(s->stats[0].share.steps_shared > 65);
    assert_true(hth_world_now_us(s->world) - since_us < 70 * S);
    crew_scene_free(s);
}

static void late_return_of_the_latest_checkpoint_joins_the_run(void **state)
{
    (void)state;
    check_newest_is_late(9, 2 * S);
    check_newest_is_late(7, 8 * S);
}

/* A trainer that has taken all its steps does not adopt an earlier state. */
static void finished_trainer_adopts_no_earlier_state(void **state)
{
    struct crew_scene *s = crashed_with(9, 3, NOTES_END, edit_first_ends);

    (void)state;
    hth_node_restart(hth_crew_node(s->crew, 2));
    hth_node_restart(hth_crew_node(s->crew, 1));
    hth_world_run_for(s->world, 2 * S);
    hth_node_restart(hth_crew_node(s->crew, 0));
    hth_world_run_for(s->world, 5 * S);
    assert_true(hth_crew_is_done(s->crew, 0));
    assert_int_equal(s->stats[0].share.catch_ups, 0);
    crew_scene_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trainers_that_return_together_use_the_latest_checkpoint),
        cmocka_unit_test(stale_records_do_not_block_a_restart),
        cmocka_unit_test(late_return_of_the_latest_checkpoint_joins_the_run),
        cmocka_unit_test(finished_trainer_adopts_no_earlier_state),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
