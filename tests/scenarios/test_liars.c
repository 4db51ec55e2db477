/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_liars.c: trainers of one run among peers that lie to the averaging (scenarios/malice.h).
 * Each kind does what it says, and the honest go on, agree where that is promised, and leave
 * nothing behind.
 */
#include <string.h>

#include "collab/collab.h"
#include "scenarios/fleet_int.h"
#include "support/suite.h"

#define HOSTS    2
#define TRAINERS 4
#define SEED     4
#define SEEDS    4
#define ATTACKER (HOSTS + TRAINERS) /* its node */

struct play {
    struct hth_world *world;
    struct hth_fleet *fleet;
    struct hth_fleet_malice malice;
};

static uint64_t seed = SEED;

static void play_new(struct play *p, const struct hth_malice *kind, enum hth_share_mode mode,
                     double clip)
{
    struct hth_fleet_opts o = HTH_FLEET_OPTS_INIT;
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;

    p->malice = (struct hth_fleet_malice){kind, kind != NULL};
    o.hosts = o.copies = HOSTS;
    o.trainers = TRAINERS;
    o.mode = mode;
    o.target = 128;
    o.clip = clip;
    o.checkpoint_us = 0;
    o.malice = &p->malice;
    o.malice_count = kind != NULL;
    p->world = hth_world_new(seed, &w);
    assert_ok(hth_fleet_new(p->world, &o, &p->fleet));
}

static void play_free(struct play *p)
{
    hth_world_free(p->world);
    hth_fleet_free(p->fleet);
}

/* Of twenty seconds. */
struct outcome {
    uint64_t updates;
    uint64_t late;   /* of these in the last eight seconds */
    uint64_t drops;  /* of members, in all rounds of all trainers */
    uint64_t failed; /* rounds, of the trainer with the most */
};

static void count_rounds(const struct play *p, struct outcome *out)
{
    struct hth_train_stats stats;

    for (uint32_t i = 0; i < TRAINERS; i++) {
        hth_trainer_stats(fleet_trainer(p->fleet, i), &stats);
        out->drops += stats.share.run.averages.drops;
        out->failed = HTH_MAX(out->failed, stats.share.run.averages.failed);
    }
}

/* Twenty seconds, the checks of a fleet, and its end. */
static struct outcome live(const struct hth_malice *kind, enum hth_share_mode mode, double clip)
{
    struct hth_fleet_stats stats;
    struct outcome out = {.updates = 0};
    struct play p;

    play_new(&p, kind, mode, clip);
    hth_fleet_end_faults(p.fleet);
    hth_world_run_for(p.world, 12 * HTH_US_PER_S);
    hth_fleet_expect_recovery(p.fleet);
    hth_fleet_stats(p.fleet, &stats);
    out.late = stats.updates;
    hth_world_run_for(p.world, 8 * HTH_US_PER_S);
    hth_fleet_check_recovery(p.fleet);
    hth_fleet_stats(p.fleet, &stats);
    out.updates = stats.updates;
    out.late = out.updates - out.late;
    count_rounds(&p, &out);
    hth_fleet_stop(p.fleet);
    assert_true(
        hth_world_run_until_true(p.world, hth_fleet_all_stopped, p.fleet, 20 * HTH_US_PER_S));
    hth_fleet_check_end(p.fleet);
    assert_string_equal(hth_fleet_why(p.fleet), "");
    play_free(&p);
    print_message(
        "%s, %s: %llu updates, %llu late, %llu averages, %llu dropped, %llu failed, spread %.3g\n",
        kind != NULL ? kind->name : "nobody", mode == HTH_SHARE_BATCH ? "batch" : "local",
        (unsigned long long)out.updates, (unsigned long long)out.late,
        (unsigned long long)stats.rounds, (unsigned long long)out.drops,
        (unsigned long long)out.failed, stats.spread);
    return out;
}

static bool is_found_out(void *fleet)
{
    return strstr(hth_fleet_why(fleet), "of an average is") != NULL;
}

/* LOCAL: the watch over what was offered (fleet.h), which is not kept where somebody lies, finds a
 * lie in an average. */
static void lie_reaches_averages(const struct hth_malice *kind, int64_t within_us)
{
    struct hth_malice unknown = *kind;
    struct play p;

    unknown.in_averages = false;
    play_new(&p, &unknown, HTH_SHARE_LOCAL, 0);
    if (!hth_world_run_until_true(p.world, is_found_out, p.fleet, within_us))
        fail_msg("with seed %llu no lie of %s reached an average: '%s'", (unsigned long long)seed,
                 kind->name, hth_fleet_why(p.fleet));
    play_free(&p);
}

/* Whether the attacker was in the last round, and a link was made of it. */
static bool is_in_a_step(void *arg)
{
    const struct play *p = arg;
    const struct hth_peer_id *id = &hth_node_env(hth_fleet_node(p->fleet, ATTACKER))->self;
    struct hth_train_stats stats = {.updates = 0};
    const struct hth_averager_stats *averages = &stats.share.run.averages;
    const struct hth_avg_round_info *last = &averages->last;
    struct hth_trainer *t = fleet_trainer(p->fleet, 0);

    if (t != NULL)
        hth_trainer_stats(t, &stats);
    for (uint32_t i = 0; averages->rounds > 0 && last->err == HTH_OK && i < last->members; i++)
        if (hth_peer_id_eq(&last->member[i], id))
            return true;
    return false;
}

/* BATCH: it brings values to a step that counts, or reduces it. */
static void attacker_is_in_steps(const struct hth_malice *kind)
{
    struct play p;

    play_new(&p, kind, HTH_SHARE_BATCH, 1.5);
    if (!hth_world_run_until_true(p.world, is_in_a_step, &p, 12 * HTH_US_PER_S))
        fail_msg("%s was in no step", kind->name);
    play_free(&p);
}

TEST(lies_reach_averages_and_end_no_run)
{
    /* Values are in the next average. A vector as small as this model's is reduced whole by one of
     * the five members, drawn anew in each round (averaging/shares.h): a usurper that is in all of
     * them is passed over in 90, as many as there are in that time, with a chance of 2e-9. */
    static const struct {
        const struct hth_malice *kind;
        int64_t within_us;
    } lies[] = {
        {&hth_malice_turncoat, 12 * HTH_US_PER_S},    {&hth_malice_usurper, 40 * HTH_US_PER_S},
        {&hth_malice_equivocator, 12 * HTH_US_PER_S}, {&hth_malice_deserter, 12 * HTH_US_PER_S},
        {&hth_malice_pretender, 12 * HTH_US_PER_S},
    };
    static const struct hth_malice *const kinds[] = {&hth_malice_turncoat, &hth_malice_usurper,
                                                     &hth_malice_equivocator};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(lies); i++)
        for (seed = 2; seed < 2 + SEEDS; seed++)
            lie_reaches_averages(lies[i].kind, lies[i].within_us);
    seed = SEED;
    for (size_t i = 0; i < HTH_ARRAY_LEN(kinds); i++) {
        attacker_is_in_steps(kinds[i]);
        live(kinds[i], HTH_SHARE_LOCAL, 1.5);
        live(kinds[i], HTH_SHARE_BATCH, 1.5);
    }
    live(&hth_malice_pretender, HTH_SHARE_LOCAL, 1.5);
}

static struct outcome calm; /* when nobody lies */

TEST(honest_run_drops_no_round)
{
    (void)state;
    calm = live(NULL, HTH_SHARE_BATCH, 0);
    assert_true(calm.updates > 960 && calm.drops == 0 && calm.failed == 0);
}

/* It comes again and again as a new process, and no caller trusts it with parts twice within five
 * minutes: so at most one round of each fails, and the run keeps its pace. Where trainers step by
 * themselves they do not wait for it at all. */
TEST(deserters_are_dropped_and_excluded)
{
    (void)state;
    attacker_is_in_steps(&hth_malice_deserter);
    for (seed = 1; seed <= SEEDS; seed++) {
        struct outcome o = live(&hth_malice_deserter, HTH_SHARE_BATCH, 1.5);

        assert_in_range(o.failed, 1, TRAINERS);
        assert_true(o.late * 100 > calm.late * 90);
    }
    seed = SEED;
    uint64_t alone = live(NULL, HTH_SHARE_LOCAL, 1.5).late;
    struct outcome local = live(&hth_malice_deserter, HTH_SHARE_LOCAL, 1.5);
    assert_true(local.drops > 0 && local.late * 100 > alone * 95);
}

/* A chain that claims more samples than any other is fetched, and its state is of no use: the run
 * goes on with its own. */
TEST(pretenders_end_no_run)
{
    struct play p;
    struct hth_fleet_stats stats;
    struct hth_node *node;

    (void)state;
    play_new(&p, &hth_malice_pretender, HTH_SHARE_BATCH, 1.5);
    node = hth_fleet_node(p.fleet, ATTACKER);
    hth_world_run_for(p.world, HTH_US_PER_MS);
    hth_node_crash(node, HTH_CRASH_RESET);
    hth_world_run_for(p.world, 8 * HTH_US_PER_S);
    hth_node_restart(node); /* once the run has begun */
    hth_fleet_end_faults(p.fleet);
    hth_world_run_for(p.world, 12 * HTH_US_PER_S);
    hth_fleet_expect_recovery(p.fleet);
    hth_world_run_for(p.world, 8 * HTH_US_PER_S);
    hth_fleet_check_recovery(p.fleet);
    hth_fleet_stats(p.fleet, &stats);
    assert_string_equal(hth_fleet_why(p.fleet), "");
    assert_int_equal(stats.catch_ups, 0);
    assert_true(stats.spread < 0.1);
    play_free(&p);
}

/* It is there before the run has begun, and keeps nobody from beginning for long. */
TEST(pretenders_keep_no_run_from_beginning)
{
    struct play p;
    struct hth_fleet_stats stats;

    (void)state;
    play_new(&p, &hth_malice_pretender, HTH_SHARE_BATCH, 1.5);
    hth_world_run_for(p.world, HTH_US_PER_MS);
    for (uint32_t i = 0; i < TRAINERS; i++)
        hth_node_crash(hth_fleet_node(p.fleet, HOSTS + i), HTH_CRASH_RESET);
    hth_world_run_for(p.world, 8 * HTH_US_PER_S);
    for (uint32_t i = 0; i < TRAINERS; i++)
        hth_node_restart(hth_fleet_node(p.fleet, HOSTS + i));
    hth_world_run_for(p.world, 40 * HTH_US_PER_S);
    hth_fleet_stats(p.fleet, &stats);
    print_message("%llu updates, %llu states\n", (unsigned long long)stats.updates,
                  (unsigned long long)stats.catch_ups);
    assert_true(stats.updates * 4 > calm.updates);
    play_free(&p);
}

/* Notes that are old, or on another board, are no news to anybody. */
TEST(replayers_change_nothing)
{
    struct outcome batch = live(&hth_malice_replayer, HTH_SHARE_BATCH, 0);
    struct outcome alone = live(NULL, HTH_SHARE_LOCAL, 0);
    struct outcome local = live(&hth_malice_replayer, HTH_SHARE_LOCAL, 0);

    (void)state;
    assert_true(batch.drops == 0 && batch.failed == 0);
    assert_true(batch.updates * 100 > calm.updates * 95);
    assert_true(local.drops == 0 && local.failed == 0);
    assert_true(local.updates * 100 > alone.updates * 95);
}
