/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_values.c: trainers with one Byzantine host among eight: it answers numbers whose sums are
 * infinite or finite, or lacks experts. It announces a replica of every expert. No run ends, and
 * each learns like one without the attacker.
 */
#include "kernels/params.h"
#include "scenarios/fleet.h"
#include "scenarios/fleet_int.h"
#include "support/suite.h"
#include "trainer/trainer_int.h"

#include <inttypes.h>

#define HOSTS    7
#define TRAINERS 2
#define CLAIMERS 80

struct outcome {
    uint64_t updates, bad, refused, mixed, lost, alone, requests, unanswered, untaught;
    uint64_t hidden; /* seconds for which a trainer had excluded a host */
    double loss;
};

/* `clip`: limit of the trunk's and the experts' steps; below 0: the default. */
static struct outcome live_clipped(const struct hth_malice *kind, uint64_t seed, double clip)
{
    const struct hth_fleet_malice malice = {kind, kind == &hth_malice_claimer ? CLAIMERS : 1};
    struct hth_fleet_opts o = HTH_FLEET_OPTS_INIT;
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct outcome out = {0};
    struct hth_fleet *f;

    o.hosts = HOSTS;
    o.trainers = TRAINERS;
    o.average = false;
    o.checkpoint_us = 0;
    o.malice = &malice;
    o.malice_count = kind != NULL;
    struct hth_world *world = hth_world_new(seed, &w);
    assert_ok(hth_fleet_new(world, &o, &f));
    if (clip >= 0) {
        struct hth_swarm_opts *s = hth_swarm_edit(f->swarm);

        s->trainer.optim.clip_norm = s->expert_optim.clip_norm = (float)clip;
    }
    hth_fleet_end_faults(f);
    for (int second = 0; second < 15; second++) {
        hth_world_run_for(world, HTH_US_PER_S);
        for (uint32_t i = 0; i < TRAINERS; i++) {
            struct hth_train_stats s;

            hth_trainer_stats(hth_swarm_trainer_at(f->swarm, i), &s);
            out.hidden += s.hosts_dead > 0;
        }
    }
    hth_fleet_expect_recovery(f);
    hth_world_run_for(world, 5 * HTH_US_PER_S);
    hth_fleet_check_recovery(f);
    for (uint32_t i = 0; i < TRAINERS; i++) {
        struct hth_train_stats s;

        hth_trainer_stats(hth_swarm_trainer_at(f->swarm, i), &s);
        assert_int_equal(s.flights_not_finite, 0);
        out.updates += s.updates;
        out.bad += s.answers_bad;
        out.refused += s.parts_refused;
        out.mixed += s.rows_mixed;
        out.lost += s.rows_without_expert;
        out.alone += s.rows_short;
        out.requests += s.requests;
        out.unanswered += s.requests_failed;
        out.untaught += s.backward_missing;
        out.loss += s.loss_ema / TRAINERS;
    }
    hth_fleet_stop(f);
    assert_true(hth_world_run_until_true(world, hth_fleet_all_stopped, f, 20 * HTH_US_PER_S));
    hth_fleet_check_end(f);
    assert_string_equal(hth_fleet_why(f), "");
    hth_world_free(world);
    hth_fleet_free(f);
    print_message(
        "%-9s seed %" PRIu64 ": %" PRIu64 " updates, loss %.4f; %" PRIu64 " answers bad, %" PRIu64
        " parts refused; %" PRIu64 " of %" PRIu64 " rows short; %" PRIu64 " of %" PRIu64
        " requests unanswered; %" PRIu64 " pairs without a gradient; left out %" PRIu64 " s\n",
        kind != NULL ? kind->name : "nobody", seed, out.updates, out.loss, out.bad, out.refused,
        out.alone, out.mixed, out.unanswered, out.requests, out.untaught, out.hidden);
    return out;
}

static struct outcome live(const struct hth_malice *kind, uint64_t seed)
{
    return live_clipped(kind, seed, -1);
}

TEST(one_attacker_among_eight_hosts_does_no_harm)
{
    static const struct hth_malice *const kinds[] = {&hth_malice_deafening, &hth_malice_loud,
                                                     &hth_malice_naysayer};

    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct outcome calm = live(NULL, seed);

        assert_true(calm.updates > 400);
        assert_int_equal(calm.bad + calm.refused + calm.hidden, 0);
        for (size_t i = 0; i < HTH_ARRAY_LEN(kinds); i++) {
            struct outcome r = live(kinds[i], seed);

            assert_true(r.updates * 20 > calm.updates * 19);
            assert_true(r.loss < 1.1 * calm.loss + 0.02);
            assert_true(r.bad + r.refused > 0); /* the attacker was asked ... */
            /* ... and nearly all rows went to the other replicas */
            assert_true(r.alone * 50 < r.mixed);
            /* A host that answers nothing useful is excluded as a host, too. */
            assert_true(r.hidden > 0 || kinds[i] == &hth_malice_naysayer);
        }
    }
}

/* Steps are not clipped: no such number may get that far. */
TEST(large_numbers_without_clipping)
{
    static const struct hth_malice *const kinds[] = {&hth_malice_deafening, &hth_malice_loud};

    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct outcome calm = live_clipped(NULL, seed, 0);

        assert_true(calm.updates > 400);
        for (size_t i = 0; i < HTH_ARRAY_LEN(kinds); i++) {
            struct outcome r = live_clipped(kinds[i], seed, 0);

            assert_true(r.updates * 20 > calm.updates * 19);
            assert_true(r.loss < 1.1 * calm.loss + 0.02);
            assert_true(r.bad > 0);
        }
    }
}

/* A host with mostly good answers is never excluded as a host: the breakers of its replicas send
 * requests for its missing experts elsewhere. */
TEST(host_that_lacks_one_expert_is_not_excluded)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct outcome calm = live(NULL, seed), r = live(&hth_malice_forgetful, seed);

        assert_true(r.updates * 20 > calm.updates * 19);
        assert_true(r.loss < 1.1 * calm.loss + 0.02);
        assert_int_equal(r.bad, 0);
        assert_true(r.refused > 0 && r.refused < 100);
        assert_int_equal(r.hidden, 0);
        assert_true(r.alone * 100 < r.mixed);
    }
}

/* BUSY is not a failure, but a host that always says BUSY is asked only rarely. */
TEST(busy_host_is_asked_rarely)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct outcome calm = live(NULL, seed), r = live(&hth_malice_postponer, seed);

        assert_true(r.updates * 20 > calm.updates * 19);
        assert_true(r.loss < 1.1 * calm.loss + 0.02);
        assert_int_equal(r.bad + r.refused + r.hidden, 0);
        assert_true(r.unanswered > 0 && r.unanswered * 50 < r.requests);
        assert_true(r.alone * 50 < r.mixed);
    }
}

/* A host may limit gradients, but a limit that no gradient meets makes it get few rows. */
TEST(host_that_refuses_gradients_gets_few_rows)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct outcome calm = live(NULL, seed), r = live(&hth_malice_prude, seed);

        assert_int_equal(calm.untaught, 0);
        assert_true(r.updates * 20 > calm.updates * 19);
        assert_true(r.loss < 1.1 * calm.loss + 0.02);
        assert_int_equal(r.bad + r.refused + r.hidden, 0);
        assert_true(r.untaught > 0 && r.untaught * 50 < r.mixed);
    }
}

/* Each signs that it has all experts, where nobody listens. No row goes there. */
TEST(claims_of_many_keys_cost_no_rows)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct outcome calm = live(NULL, seed), r = live(&hth_malice_claimer, seed);

        assert_true(r.updates * 20 > calm.updates * 19);
        assert_true(r.lost * 100 <= r.mixed);
        assert_true(r.unanswered * 100 <= r.requests);
    }
}

static uint64_t updates_in(struct hth_world *world, struct hth_fleet *f, int64_t us)
{
    struct hth_train_stats before, after;

    hth_trainer_stats(hth_swarm_trainer(f->swarm), &before);
    hth_world_run_for(world, us);
    hth_trainer_stats(hth_swarm_trainer(f->swarm), &after);
    return after.updates - before.updates;
}

/* The only host left takes no work: training pauses until the others are back. */
TEST(no_experts_no_step)
{
    const struct hth_fleet_malice malice = {&hth_malice_postponer, 1};
    struct hth_fleet_opts o = HTH_FLEET_OPTS_INIT;
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_world *world = hth_world_new(7, &w);
    struct hth_train_stats stats;
    struct hth_fleet *f;

    (void)state;
    o.hosts = o.copies = 2;
    o.trainers = 1;
    o.average = false;
    o.checkpoint_us = 0;
    o.malice = &malice;
    o.malice_count = 1;
    assert_ok(hth_fleet_new(world, &o, &f));
    hth_world_run_for(world, HTH_US_PER_MS);
    assert_true(updates_in(world, f, 5 * HTH_US_PER_S) > 100);
    for (uint32_t i = 0; i < 2; i++)
        hth_node_crash(hth_fleet_node(f, i), HTH_CRASH_RESET);
    assert_true(updates_in(world, f, 10 * HTH_US_PER_S) < HTH_STARVED_FLIGHTS + 2);
    assert_int_equal(updates_in(world, f, 20 * HTH_US_PER_S), 0);
    hth_trainer_stats(hth_swarm_trainer(f->swarm), &stats);
    assert_true(stats.starved && stats.waiting);
    for (uint32_t i = 0; i < 2; i++)
        hth_node_restart(hth_fleet_node(f, i));
    assert_true(updates_in(world, f, 40 * HTH_US_PER_S) > 200);
    hth_trainer_stats(hth_swarm_trainer(f->swarm), &stats);
    assert_false(stats.starved || stats.waiting);
    hth_world_free(world);
    hth_fleet_free(f);
}
