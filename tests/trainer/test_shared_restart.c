/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs whose trainers end and come back: in order, with their votes (collab/collab_file.h), or
 * killed, as new members with a checkpoint.
 */
#include "collab/collab_file.h"
#include "core/mem.h"
#include "support/suite.h"
#include "trainer/crew.h"

#include <stdio.h>
#include <string.h>

#define TRUNK "trunk.safetensors"
#define VOTE  TRUNK ".vote"
#define MANY  8

static bool strict;
static uint64_t ends; /* steps of member 0; 0: no end */
static int64_t stopped[MANY];

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    crew_own_rows(NULL, i, t);
    t->share.strict = strict;
    t->updates_max = i == 0 && ends > 0 ? ends : t->updates_max;
    t->checkpoint_every = i == 0 ? 10 : i == 1 ? 1 : 17;
}

static struct crew_scene *start(uint64_t seed, uint32_t members, bool is_strict)
{
    struct hth_crew_opts o = crew_batch_opts(members, 18 * members);

    strict = is_strict;
    ends = 0;
    o.trainer.resume = true;
    o.trainer.checkpoint_path = TRUNK;
    o.edit = edit;
    struct crew_scene *f = crew_scene_new(seed, &o);
    hth_world_run_for(f->world, 12 * S);
    return f;
}

static void end(struct crew_scene *f)
{
    assert_ok(hth_crew_err(f->crew));
    crew_scene_free(f);
}

static uint64_t life(struct crew_scene *f, uint32_t i)
{
    const struct hth_collab *c = crew_collab(f, i);

    return hth_chain_life(hth_collab_choice(c)->chain, hth_collab_choice(c)->me);
}

static void on_stop(void *arg)
{
    *(int64_t *)arg = 1;
}

static void ask_to_stop(struct crew_scene *f, uint32_t i)
{
    stopped[i] = 0;
    hth_trainer_stop(hth_crew_trainer(f->crew, i), on_stop, &stopped[i]);
}

/* The process ends once it has saved. */
static void finish_stop(struct crew_scene *f, uint32_t i)
{
    for (uint32_t k = 0; k < 500 && !stopped[i]; k++)
        hth_world_run_for(f->world, 10 * MS);
    assert_true(stopped[i]);
    crew_crash(f, i, HTH_CRASH_RESET);
    hth_world_run_for(f->world, MS);
}

static bool has_vote(struct crew_scene *f, uint32_t i)
{
    size_t len;

    return hth_node_disk_get(hth_crew_node(f->crew, i), VOTE, &len) != NULL;
}

/* Whether a member's chain leads through that head. */
static bool leads_through(struct crew_scene *f, uint32_t i, const struct hth_hash *head)
{
    const struct hth_chain *chain = hth_collab_choice(crew_collab(f, i))->chain;
    uint32_t link = hth_collab_choice(crew_collab(f, i))->tip, at = hth_chain_find(chain, head);

    while (link != HTH_LINK_NONE && link != at)
        link = hth_chain_at(chain, link)->prev;
    return at != HTH_LINK_NONE && link == at;
}

/* The step of the state that a member's chain begins with, as far as it is kept. */
static uint64_t first_step(struct crew_scene *f, uint32_t i)
{
    const struct hth_chain *chain = hth_collab_choice(crew_collab(f, i))->chain;
    uint32_t link = hth_collab_choice(crew_collab(f, i))->tip;

    while (hth_chain_at(chain, link)->prev != HTH_LINK_NONE)
        link = hth_chain_at(chain, link)->prev;
    return hth_chain_at(chain, link)->step;
}

/* ---- in order ----------------------------------------------------------------------------- */

/* Asks all, or one after the other, to stop; fills their lives and the last one's head. */
static void stop_all(struct crew_scene *f, bool together, struct hth_hash *head,
                     uint64_t lives[MANY], uint64_t *step)
{
    for (uint32_t i = 0; together && i < hth_crew_count(f->crew); i++)
        ask_to_stop(f, i);
    for (uint32_t i = 0; i < hth_crew_count(f->crew); i++) {
        if (!together)
            ask_to_stop(f, i);
        for (uint32_t k = 0; k < 500 && !stopped[i]; k++)
            hth_world_run_for(f->world, 10 * MS);
        assert_true(stopped[i]);
        lives[i] = life(f, i);
        assert_true(!together || i == 0 || crew_collab_stats(f, i).step == *step); /* one step */
        *step = crew_collab_stats(f, i).step;
        *head = crew_collab_stats(f, i).head;
        if (together)
            continue;
        finish_stop(f, i);
        hth_world_run_for(f->world, 60 * S / hth_crew_count(f->crew));
    }
    for (uint32_t i = 0; together && i < hth_crew_count(f->crew); i++) {
        finish_stop(f, i);
        assert_true(has_vote(f, i));
    }
    hth_world_run_for(f->world, together ? 30 * S : 0); /* records have expired */
}

/* A run stops at one step and goes on from it, with all votes. Where they leave one by one the last
 * keeps the vote: it comes back first or last, and the others wait for it, in a strict run for
 * ever, else for 10 s. */
TEST(runs_go_on_at_their_last_step)
{
    static const struct {
        uint32_t members;
        bool strict, together, last_first;
        int64_t apart_s; /* when they come back */
    } cases[] = {{3, false, true, false, 0},  {5, true, true, false, 15},
                 {2, true, true, false, 60},  {5, false, false, false, 1},
                 {5, true, false, false, 12}, {5, false, false, true, 12},
                 {5, true, false, true, 12}};

    for (size_t c = 0; c < HTH_ARRAY_LEN(cases); c++) {
        uint32_t members = cases[c].members;
        struct crew_scene *f = start(c + 2, members, cases[c].strict);
        uint64_t lives[MANY], last;
        struct hth_hash head;
        bool waits = cases[c].strict && !cases[c].together && !cases[c].last_first;

        crew_same(f, S);
        stop_all(f, cases[c].together, &head, lives, &last);
        for (uint32_t k = 0; k < members; k++) {
            uint32_t i = cases[c].last_first ? members - 1 - k : k;

            crew_restart(f, i);
            hth_world_run_for(f->world, cases[c].apart_s * S);
            if (waits && k + 1 < members)
                assert_true(crew_collab_stats(f, i).step < last &&
                            crew_collab_stats(f, i).averages.rounds == 0);
        }
        hth_world_run_for(f->world, 10 * S);
        assert_true(crew_same(f, 2 * S) > last + 5);
        /* Those that come late have later links alone. */
        assert_true(leads_through(f, cases[c].together ? 0 : members - 1, &head));
        for (uint32_t i = 0; i < members; i++) {
            assert_false(has_vote(f, i));
            assert_true(life(f, i) == lives[i]);
            assert_true(!cases[c].strict || crew_collab_stats(f, i).forks == 0);
        }
        if (waits) /* it says whom it waits for */
            assert_non_null(strstr(f->said, "hears 0 of 4 voters"));
        end(f);
    }
}

/* ---- files that do not fit ---------------------------------------------------------------- */

/* Changes the file of member 0: a case each (the others are in tests/collab/test_collab_file.c). */
static const char *spoil(struct crew_scene *f, uint32_t k)
{
    struct hth_node *node = hth_crew_node(f->crew, 0);
    size_t len;
    const uint8_t *vote = hth_node_disk_get(node, VOTE, &len);
    uint8_t *copy = hth_calloc(1, len);
    struct hth_hash hash;

    memcpy(copy, vote, len);
    if (k == 0) {
        copy[len / 2] ^= 1;
    } else { /* of another step */
        copy[8 + 4 + 32 + 8] ^= 1;
        hth_sim_crypto()->hash(copy, len - sizeof(hash), &hash);
        memcpy(copy + len - sizeof(hash), &hash, sizeof(hash));
    }
    hth_node_disk_put(node, VOTE, copy, len);
    hth_free(copy);
    return k == 0 ? "damaged" : "older";
}

TEST(bad_file_makes_a_new_life)
{
    for (uint32_t k = 0; k < 2; k++) {
        struct crew_scene *f = start(k + 1, 3, false);
        uint64_t lives[MANY], step;
        struct hth_hash head;

        stop_all(f, true, &head, lives, &step);
        f->said_len = 0;
        const char *says = spoil(f, k);
        for (uint32_t i = 0; i < 3; i++)
            crew_restart(f, i);
        hth_world_run_for(f->world, 5 * S);
        crew_same(f, 2 * S);
        if (strstr(f->said, "can't be used") == NULL || strstr(f->said, says) == NULL)
            fail_msg("'%s' is not said: %s", says, f->said);
        assert_true(life(f, 0) != lives[0] && life(f, 1) == lives[1]);
        assert_true(leads_through(f, 0, &head));
        assert_false(has_vote(f, 0));
        end(f);
    }
}

/* Killed after its start, at any time: the file was removed, and is not believed again. */
TEST(file_is_believed_once)
{
    struct crew_scene *f = start(4, 3, false);
    uint64_t lives[MANY], step;
    struct hth_hash head;

    stop_all(f, true, &head, lives, &step);
    for (uint32_t k = 0; k < 3; k++) {
        crew_restart(f, 0);
        for (uint32_t t = 0; t < 1000 && hth_crew_trainer(f->crew, 0) == NULL; t++)
            hth_world_run_for(f->world, MS);
        assert_false(has_vote(f, 0));
        assert_true((life(f, 0) == lives[0]) == (k == 0));
        crew_crash(f, 0, HTH_CRASH_RESET);
        hth_world_run_for(f->world, MS);
    }
    for (uint32_t i = 0; i < 3; i++)
        crew_restart(f, i);
    hth_world_run_for(f->world, 5 * S);
    crew_same(f, 2 * S);
    assert_true(life(f, 0) != lives[0] && leads_through(f, 0, &head));
    end(f);
}

/* The vote goes with a checkpoint of its very step, or not at all. */
TEST(no_checkpoint_no_vote)
{
    struct crew_scene *f = start(6, 3, false);
    uint64_t before = life(f, 1);

    hth_world_set_fault(f->world, "trainer.checkpoint", 1);
    ask_to_stop(f, 1);
    finish_stop(f, 1);
    assert_false(has_vote(f, 1));
    hth_world_set_fault(f->world, "trainer.checkpoint", 0);
    crew_restart(f, 1);
    hth_world_run_for(f->world, 5 * S);
    crew_same(f, 2 * S);
    assert_true(life(f, 1) != before);
    end(f);
}

/* ---- killed ------------------------------------------------------------------------------- */

/* Some are killed and come back: the rest goes on, or forks; and all become one model. */
static void killed(uint32_t members, uint32_t set, bool waits)
{
    struct crew_scene *f = start(set + 20, members, waits);
    uint64_t before = crew_same(f, S), step;
    bool all = set + 1 == 1u << members;
    uint32_t dead = (uint32_t)__builtin_popcount(set);

    for (uint32_t i = 0; i < members; i++)
        if (set >> i & 1)
            crew_crash(f, i, HTH_CRASH_RESET);
    hth_world_run_for(f->world, 2 * S);
    for (uint32_t i = 0; i < members; i++)
        if (set >> i & 1)
            crew_restart(f, i);
    hth_world_run_for(f->world, 25 * S);
    if (waits && 2 * dead >= members) { /* no quorum: it waits, and says so */
        for (uint32_t i = 0; i < members; i++)
            assert_true(crew_collab_stats(f, i).step <= before + 1); /* a round was under way */
        if (strstr(f->said, all ? "waits for others" : "voters (averaging.majority: strict)") ==
            NULL)
            fail_msg("nothing is said: %s", f->said);
        end(f);
        return;
    }
    step = crew_same(f, 2 * S);
    assert_true(step > before + 3);
    if (all) /* the latest checkpoint, which may lack a step, is the run */
        assert_true(first_step(f, 0) + 1 >= before);
    else /* nothing is lost */
        for (uint32_t i = 0; i < members; i++)
            assert_true(crew_collab_stats(f, i).forks <= 1 &&
                        (2 * dead >= members || crew_collab_stats(f, i).forks == 0));
    end(f);
}

TEST(killed_ones_come_back_as_newcomers)
{
    static const uint32_t sets[] = {1, 6, 7};

    for (size_t i = 0; i < HTH_ARRAY_LEN(sets); i++) {
        killed(3, sets[i], false);
        killed(3, sets[i], true);
    }
}

static struct crew_scene *all_killed(uint64_t seed, uint64_t *at)
{
    struct crew_scene *f = start(seed, 3, false);

    *at = crew_same(f, S);
    for (uint32_t i = 0; i < 3; i++)
        crew_crash(f, i, HTH_CRASH_RESET);
    hth_world_run_for(f->world, 30 * S); /* records have expired */
    return f;
}

/* The trainer with the latest checkpoint comes when the others have gone on without it. */
TEST(late_return_of_the_latest_checkpoint_joins_the_run)
{
    for (int64_t late_us = 2 * S; late_us <= 8 * S; late_us += 6 * S) {
        uint64_t at;
        struct crew_scene *f = all_killed(9, &at);

        crew_restart(f, 0);
        crew_restart(f, 2);
        hth_world_run_for(f->world, late_us);
        crew_restart(f, 1);
        hth_world_run_for(f->world, 10 * S);
        assert_true(crew_same(f, S) > at);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(crew_collab_stats(f, i).members, 3);
        end(f);
    }
}

/* It has taken all its steps, and the others are at earlier ones. */
TEST(finished_trainer_adopts_no_earlier_state)
{
    uint64_t at;
    struct crew_scene *f = all_killed(9, &at);

    ends = at / 10 * 10; /* its last checkpoint */
    crew_restart(f, 2);
    hth_world_run_for(f->world, 2 * S);
    crew_restart(f, 0);
    hth_world_run_for(f->world, 2 * S);
    assert_true(crew_collab_stats(f, 2).step < ends);
    assert_true(hth_crew_is_done(f->crew, 0));
    assert_int_equal(crew_stats(f, 0).updates, ends);
    assert_int_equal(crew_stats(f, 0).share.catch_ups, 0);
    end(f);
}
