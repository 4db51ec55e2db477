/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_collab.c: the scenario of trainers under churn, in small: it replays, and all trainers end
 * with one model.
 */
#include "scenarios/collab.h"
#include "scenarios/trunk.h"
#include "support/suite.h"

static struct hth_sim_collab_opts small(enum hth_collab_case what)
{
    struct hth_sim_collab_opts o = HTH_COLLAB_OPTS_INIT;

    o.what = what;
    o.mode = HTH_SHARE_BATCH;
    o.trainers = 4;
    o.steps = 40;
    o.target = 96;
    o.die = 1;
    o.join = 1;
    o.dim = 16;
    o.side = 6;
    return o;
}

static void count_boots(void *arg, int64_t now_us, const char *node, const char *event,
                        uint64_t detail)
{
    (void)now_us;
    (void)node;
    (void)detail;
    *(uint32_t *)arg += strcmp(event, "boot") == 0;
}

TEST(churn_replays_and_ends_with_one_model)
{
    uint32_t boots = 0;
    struct hth_sim_collab_opts o = small(HTH_COLLAB_CALM);
    struct hth_collab_report calm, churn, again;
    struct hth_collab_difference d;

    (void)state;
    assert_ok(hth_sim_collab(&o, &calm));
    assert_int_equal(calm.steps, 40);
    assert_int_equal(calm.catch_ups, 0);
    assert_true(calm.spread == 0);
    assert_true(calm.samples_min >= 96);
    assert_true(calm.points >= 6);
    assert_true(calm.loss[calm.points - 1] < 0.9 * calm.loss[0]);
    o.what = HTH_COLLAB_CHURN;
    assert_ok(hth_sim_collab(&o, &churn));
    assert_int_equal(churn.died, 1);
    assert_int_equal(churn.joined, 1);
    assert_int_equal(churn.steps, 40);
    assert_true(churn.catch_ups >= 1);
    assert_true(churn.spread == 0 && churn.drift == 0);
    assert_true(churn.samples_min >= 96);
    hth_collab_compare(&churn, &calm, &d);
    assert_true(d.last < 0.02 && fabs(d.mean) < 0.02);
    o.on_event = count_boots;
    o.arg = &boots;
    assert_ok(hth_sim_collab(&o, &again));
    assert_true(again.hash == churn.hash);
    assert_int_equal(boots, 5);
    o.on_event = NULL;
    o.seed = 2;
    assert_ok(hth_sim_collab(&o, &again));
    assert_true(again.hash != churn.hash);
    o = small(HTH_COLLAB_CALM);
    o.order = 1;
    assert_ok(hth_sim_collab(&o, &again));
    hth_collab_compare(&again, &calm, &d);
    assert_true(d.worst > 0 && d.last < 0.1);
}

/* Trunks and losses that are NaN are not close to any other: no bound holds for them. */
TEST(nan_is_close_to_nothing)
{
    const float a[3] = {3, 0, 4}, b[3] = {3, 0, 9}, nan[3] = {3, NAN, 4}, zero[3] = {0, 0, 0};
    struct hth_collab_report calm = {.points = 3, .at = {1, 2, 3}, .loss = {4, 2, 1}}, r = calm;
    struct hth_collab_difference d;

    (void)state;
    assert_true(hth_trunk_distance(a, a, 3) == 0);
    assert_true(hth_trunk_distance(a, b, 3) == 1);
    assert_true(hth_trunk_distance(zero, zero, 3) == 0);
    assert_true(isinf(hth_trunk_distance(zero, a, 3)));
    assert_true(isnan(hth_trunk_distance(a, nan, 3)));
    assert_true(isnan(hth_trunk_distance(nan, a, 3)));
    assert_true(isnan(hth_worse(hth_worse(0, NAN), 1)));
    assert_true(hth_worse(hth_worse(0, 2), 1) == 2);
    r.loss[1] = NAN;
    hth_collab_compare(&r, &calm, &d);
    assert_false(d.worst < 1);
    r.loss[1] = 2;
    hth_collab_compare(&r, &calm, &d);
    assert_true(d.worst == 0);
}

/* Every step reaches its target, and no average loses a member. */
TEST(eight_trainers_reach_the_target_each_step)
{
    struct hth_sim_collab_opts o = small(HTH_COLLAB_CALM);
    struct hth_collab_report r;

    (void)state;
    o.trainers = 8;
    o.target = 256;
    for (o.seed = 1; o.seed <= 3; o.seed++) {
        assert_ok(hth_sim_collab(&o, &r));
        assert_int_equal(r.steps, 40);
        assert_int_equal(r.steps_alone, 0);
        assert_int_equal(r.catch_ups, 0);
        assert_true(r.samples_min >= 256);
        assert_true(r.samples <= 40 * 2 * 256);
        assert_true(r.spread == 0);
    }
}

/* A newcomer joins a run of eight: its first step that counts comes within 2 s of its start, its
 * state within 1 s and only once; also when a donor crashes half-way, silently or by a reset. Where
 * that donor alone had this snapshot, which is seldom, another state comes from the others. */
TEST(newcomer_joins_within_seconds_despite_a_donors_crash)
{
    struct hth_sim_collab_opts o = small(HTH_COLLAB_NEWCOMER);
    struct hth_collab_report r;
    uint64_t bytes = 0;
    uint32_t twice = 0;

    (void)state;
    o.trainers = 8;
    o.target = 256;
    o.steps = 30; /* the first means are gone: a state has to come */
    o.every = 50;
    o.dim = 48; /* 15 state chunks */
    o.side = 20;
    for (uint64_t run = 0; run <= 8; run++) {
        o.kill_donor = run > 0;
        o.seed = HTH_MAX(run, 1u);
        assert_ok(hth_sim_collab(&o, &r));
        print_message("%llu bytes in %.2f s, first step after %.2f s; a donor that gave %llu died "
                      "at %.2f\n",
                      (unsigned long long)r.state_bytes, r.state_s, r.first_step_s,
                      (unsigned long long)r.donor_gave, r.donor_died_at);
        bytes = run == 0 ? r.state_bytes : bytes;
        assert_int_equal(r.died, run > 0);
        assert_true(r.first_step >= r.joined_at && r.first_step <= o.steps);
        assert_true(r.first_step_s > 0 && r.first_step_s < 2);
        assert_true(r.spread == 0);
        assert_true(r.state_bytes >= bytes && r.state_bytes < 2 * bytes);
        if (r.state_bytes < bytes + bytes / 4)
            assert_true(r.state_s > 0 && r.state_s < 1);
        else
            twice++;
        if (run == 0)
            continue;
        assert_true(r.donor_gave > 0 && r.donor_gave < bytes);
        assert_true(r.donor_died_at >= 0.5 && r.donor_died_at < 1);
    }
    assert_true(twice <= 1);
}

/* Where trainers step by themselves, a newcomer adopts the state once the others are further ahead
 * than trainers may differ; also when a donor crashes. */
TEST(local_newcomer_adopts_the_state)
{
    struct hth_sim_collab_opts o = small(HTH_COLLAB_NEWCOMER);
    struct hth_collab_report r;

    (void)state;
    o.mode = HTH_SHARE_LOCAL;
    o.steps = 2 * HTH_SHARE_LAG_LOCAL;
    assert_err(HTH_E_CONFIG, hth_sim_collab(&o, &r));
    o.steps = 4 * HTH_SHARE_LAG_LOCAL; /* records of steps are some seconds late */
    o.dim = 48;
    o.side = 20;
    for (int killed = 0; killed < 2; killed++) {
        o.kill_donor = killed == 1;
        assert_ok(hth_sim_collab(&o, &r));
        assert_int_equal(r.died, killed);
        assert_true(r.state_bytes > 0 && r.catch_ups >= 1);
        assert_true(r.first_step > r.joined_at - HTH_SHARE_LAG_LOCAL && r.first_step <= o.steps);
        assert_true(r.first_step_s > 0 && r.first_step_s < 5);
        assert_true(!killed || (r.donor_gave > 0 && r.donor_died_at >= 0.5));
    }
}

TEST(curves_are_compared_at_equal_samples)
{
    struct hth_collab_report a = {.points = 3, .at = {0, 10, 20}, .loss = {4, 2, 1}}, b = a;
    struct hth_collab_difference d;
    struct hth_sim_collab_opts o = small(HTH_COLLAB_CALM);

    (void)state;
    assert_close(hth_collab_loss_at(&a, 5), 3, 1e-12, 0);
    assert_close(hth_collab_loss_at(&a, 20), 1, 1e-12, 0);
    a.at[0] = 4;
    assert_true(hth_collab_loss_at(&a, 4) == 4);
    assert_true(hth_collab_loss_at(&a, 1) == 4 && hth_collab_loss_at(&a, 25) == 1);
    assert_true(isnan(hth_collab_loss_at(&a, 0.9)) && isnan(hth_collab_loss_at(&a, 25.1)));
    a.at[0] = 0;
    assert_true(hth_collab_samples(&o) == 40 * 96);
    o.mode = HTH_SHARE_LOCAL;
    assert_true(hth_collab_samples(&o) == 40 * 8);
    b.loss[1] = 2.2;
    hth_collab_compare(&b, &a, &d);
    assert_close(d.worst, 0.1, 1e-9, 0);
    assert_close(d.mean, 0.05, 1e-9, 0);
    assert_close(d.last, 0, 0, 1e-12);
}

TEST(invalid_options_are_refused)
{
    struct hth_sim_collab_opts o = small(HTH_COLLAB_CALM);
    struct hth_collab_report r;

    (void)state;
    o.die = 4;
    assert_err(HTH_E_CONFIG, hth_sim_collab(&o, &r));
    o = small(HTH_COLLAB_CALM);
    o.trainers = 1000;
    assert_err(HTH_E_CONFIG, hth_sim_collab(&o, &r));
}
