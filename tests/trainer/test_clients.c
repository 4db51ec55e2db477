/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where all who have the run's state are clients, which nobody can dial: they dial the newcomer,
 * and it fetches over these connections. A client among clients says what is missing. Beside
 * others clients vote, and reduce nothing; grids with them are in test_grid.c.
 */
#include "core/limits.h"
#include "core/mem.h"
#include "rpc/rpc.h"
#include "support/suite.h"
#include "trainer/crew.h"

/* `members` train for a while, and the first `clients` of all are clients. */
static struct crew_scene *start(enum hth_share_mode mode, uint32_t members, uint32_t clients)
{
    struct hth_crew_opts o = crew_opts(mode, members);
    struct crew_scene *f;

    o.trainer.share.target = 24; /* more steps in 20 s than means are kept of */
    o.clients = clients;
    f = crew_scene_new(21, &o);
    hth_world_run_for(f->world, 20 * S);
    assert_ok(hth_crew_err(f->crew));
    return f;
}

/* ... and one more joins. */
static struct crew_scene *join(enum hth_share_mode mode, uint32_t members, uint32_t clients)
{
    struct crew_scene *f = start(mode, members, clients);

    assert_int_equal(hth_crew_join(f->crew), members);
    hth_world_run_for(f->world, 12 * S);
    assert_ok(hth_crew_err(f->crew));
    return f;
}

/* A client hands its state out, and from then on the newcomer reduces for both. */
static void check_joins(enum hth_share_mode mode)
{
    struct crew_scene *f = join(mode, 1, 1);
    struct hth_train_stats late = crew_stats(f, 1), first = crew_stats(f, 0);

    assert_int_equal(late.share.catch_ups, 1);
    assert_true(late.share.state_bytes > 0);
    assert_true(first.share.run.given_bytes >= late.share.state_bytes);
    assert_true(late.updates > first.updates / 2);
    if (mode == HTH_SHARE_BATCH) {
        assert_true(late.share.steps_shared > 0);
        crew_same(f, S);
    } else {
        assert_true(late.share.run.averages.rounds > 0);
    }
    crew_scene_free(f);
}

TEST(client_gives_state_and_newcomer_reduces)
{
    check_joins(HTH_SHARE_LOCAL);
    check_joins(HTH_SHARE_BATCH);
}

/* The newcomer began a run of its own, as the client could not dial it. */
TEST(client_and_newcomer_become_one_run)
{
    struct crew_scene *f = start(HTH_SHARE_BATCH, 1, 1);
    uint32_t late = hth_crew_join(f->crew);
    uint64_t steps;

    hth_world_block(f->world, hth_crew_node(f->crew, 0), hth_crew_node(f->crew, late), true);
    hth_world_run_for(f->world, 8 * S);
    steps = crew_stats(f, 0).updates;
    assert_in_range(crew_stats(f, late).updates, 1, steps);
    hth_world_heal(f->world);
    hth_world_run_for(f->world, 15 * S);
    assert_true(crew_same(f, S) > steps);
    crew_scene_free(f);
}

TEST(newcomer_in_client_mode_needs_a_reachable_trainer)
{
    struct crew_scene *f = join(HTH_SHARE_LOCAL, 1, 2);
    struct hth_train_stats late = crew_stats(f, 1);

    assert_int_equal(late.share.run.phase, HTH_COLLAB_FETCHES);
    assert_non_null(strstr(late.share.run.fetch.news, "one trainer must be reachable"));
    assert_int_equal(late.updates, 0);
    crew_scene_free(f);
}

/* One says that it can be dialled and can't: clients are there all the same. */
TEST(clients_give_state_when_a_trainer_is_out_of_reach)
{
    struct crew_scene *f = start(HTH_SHARE_LOCAL, 3, 2);
    uint32_t late = hth_crew_join(f->crew);

    crew_block(f, 2, late);
    hth_world_run_for(f->world, 12 * S);
    assert_ok(hth_crew_err(f->crew));
    assert_int_equal(crew_stats(f, late).share.catch_ups, 1);
    crew_scene_free(f);
}

/* It dials them one after the other. */
TEST(one_client_serves_many_newcomers)
{
    struct crew_scene *f = start(HTH_SHARE_LOCAL, 1, 1);

    for (uint32_t i = 0; i < 8; i++)
        hth_crew_join(f->crew);
    hth_world_run_for(f->world, 6 * S);
    for (uint32_t i = 1; i < hth_crew_count(f->crew); i++)
        assert_true(crew_stats(f, i).share.catch_ups >= 1);
    crew_scene_free(f);
}

/* ---- beside others --------------------------------------------------------------------------- */

/* All that are up are in the last roll, and it knows the clients. */
static void check_roll(struct crew_scene *f, uint32_t clients)
{
    const struct hth_choice *c = hth_collab_choice(crew_collab(f, 1));
    const struct hth_chain_link *link = hth_chain_at(c->chain, c->tip);
    uint32_t known = 0;

    for (uint32_t i = 0; i < link->count; i++) {
        assert_true(link->roll[i].marks & HTH_ROLL_IN);
        known += (link->roll[i].marks & HTH_ROLL_CLIENT) != 0;
    }
    assert_int_equal(link->count, hth_crew_count(f->crew));
    assert_int_equal(known, clients);
}

/* One that comes again is a newcomer. */
TEST(clients_are_members)
{
    for (uint32_t clients = 2; clients <= 3; clients++) {
        struct crew_scene *f = start(HTH_SHARE_BATCH, 4, clients);
        uint64_t step = crew_same(f, S);

        assert_true(step > 20);
        check_roll(f, clients);
        crew_crash(f, 0, clients == 2 ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
        assert_true(crew_same_after(f, 5 * S) > step + 5);
        crew_restart(f, 0);
        assert_true(crew_same_after(f, 5 * S) > step + 10);
        check_roll(f, clients);
        crew_scene_free(f);
    }
}

/* Clients can't meet alone: without the only one that is dialled they wait. They go on with it when
 * a cut ends; if it died, and is another one now, it takes them on. */
TEST(clients_wait_for_one_that_is_dialled)
{
    enum { CUT, KILLED, SILENT };

    for (int k = CUT; k <= SILENT; k++) {
        struct crew_scene *f = start(HTH_SHARE_BATCH, 4, 3);
        struct hth_node *node = hth_crew_node(f->crew, 3);
        uint64_t step = crew_same(f, S);

        if (k == CUT)
            hth_node_set_side(node, 1);
        else
            hth_node_crash(node, k == KILLED ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
        hth_world_run_for(f->world, 20 * S);
        for (uint32_t i = 0; i < 3; i++)
            assert_in_range(crew_stats(f, i).updates, step, step + 1);
        if (k == CUT)
            hth_world_heal(f->world);
        else
            hth_node_restart(node);
        assert_true(crew_same_after(f, (k == CUT ? 15 : 25) * S) > step + 10);
        check_roll(f, 3);
        crew_scene_free(f);
    }
}
