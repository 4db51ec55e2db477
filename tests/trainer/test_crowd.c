/* SPDX-License-Identifier: Apache-2.0 */
/* Shared batches of more trainers than a sampled roster shows: all of them are seen, and step. */
#include "averaging/roster.h"
#include "core/limits.h"
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

static void hundred_trainers_share_batches(void **state)
{
    enum { MEMBERS = HTH_AVG_ROSTER_HIGH + 4, STEPS = 3 };
    struct task_files *files = hth_new(struct task_files);
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct hth_world *world = crew_world(7, files);
    struct hth_crew *crew;

    (void)state;
    o.members = o.members_max = MEMBERS;
    o.device = &crew_slow;
    o.edit = crew_own_rows;
    o.trainer.micro_batch = 2;
    o.trainer.share.target = 2 * MEMBERS;
    o.trainer.updates_max = STEPS;
    crew = hth_crew_new(world, &o);
    assert_true(hth_world_run_until_true(world, hth_crew_all_done, crew, 10 * HTH_US_PER_S));
    assert_ok(hth_crew_err(crew));
    for (uint32_t i = 0; i < MEMBERS; i++) {
        struct hth_train_stats stats;
        bool exact;

        hth_trainer_stats(hth_crew_trainer(crew, i), &stats);
        assert_int_equal(stats.share.steps_shared, STEPS);
        assert_int_equal(stats.share.catch_ups, 0);
        assert_int_equal(hth_roster_population(hth_crew_roster(crew, i), &exact), MEMBERS);
        assert_true(exact);
    }
    assert_true(hth_crew_spread(crew) < 1e-5);
    crew_end(world, crew);
    hth_free(files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(hundred_trainers_share_batches)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
