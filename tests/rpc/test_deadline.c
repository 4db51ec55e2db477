/* SPDX-License-Identifier: Apache-2.0 */
/* Adaptive deadlines compared with medians computed by hand and a closed form. */
#include "core/rng.h"
#include "rpc/deadline.h"
#include "support/suite.h"

#define QUICK 10000

static struct hth_deadline make(void)
{
    struct hth_deadline_opts opts = HTH_DEADLINE_OPTS_INIT;
    struct hth_deadline d;
    opts.k = 4.0;
    opts.slack = 0;
    opts.floor_us = 1000;
    opts.ceiling_us = 1000000;
    opts.initial_us = 500000;
    hth_deadline_init(&d, &opts);
    return d;
}

/* A caller with one call at a time. */
struct caller {
    struct hth_deadline d;
    int64_t now_us;
    bool silent; /* no bytes at all come without answers */
};

/* One call that takes takes_us; negative: never answered. True when it was answered in time. */
static bool call(struct caller *c, int64_t takes_us)
{
    int64_t deadline_us = hth_deadline_begin(&c->d);
    if (takes_us >= 0 && takes_us <= deadline_us) {
        c->now_us += takes_us;
        hth_deadline_observe(&c->d, c->now_us, takes_us);
        return true;
    }
    c->now_us += deadline_us;
    hth_deadline_miss(&c->d, c->now_us, deadline_us, c->now_us - deadline_us,
                      c->silent ? 0 : c->now_us);
    return false;
}

/* A caller with a full window of 10 ms answers. */
static struct caller make_caller(void)
{
    struct caller c = {.d = make()};
    for (int i = 0; i < HTH_DEADLINE_WINDOW; i++)
        assert_true(call(&c, QUICK));
    assert_int_equal(hth_deadline_get(&c.d), QUICK);
    return c;
}

TEST(starts_with_the_initial_value)
{
    struct hth_deadline d = make();
    (void)state;
    assert_int_equal(hth_deadline_median(&d), 0);
    for (int i = 0; i < HTH_DEADLINE_SAMPLES_MIN - 1; i++) {
        assert_int_equal(hth_deadline_get(&d), 500000);
        hth_deadline_observe(&d, 0, 10000);
        hth_deadline_miss(&d, 600000, 500000, 100000, 0); /* not counted as a duration */
    }
    assert_int_equal(hth_deadline_get(&d), 500000);
    hth_deadline_observe(&d, 0, 10000);
    assert_int_equal(hth_deadline_get(&d), 10000); /* no spread at all */
}

TEST(is_median_plus_k_mad)
{
    struct hth_deadline d = make();
    (void)state;
    /* median 30000; |x - m| = 0 10000 10000 20000 60000, their median 10000 */
    const int64_t us[] = {30000, 20000, 40000, 10000, 90000};
    for (size_t i = 0; i < HTH_ARRAY_LEN(us); i++)
        hth_deadline_observe(&d, 0, us[i]);
    assert_int_equal(hth_deadline_median(&d), 30000);
    assert_int_equal(hth_deadline_get(&d), (int64_t)(30000 + 4.0 * 1.4826 * 10000));
}

/* On a link without jitter a call that queued for a moment is not late. */
TEST(equal_durations_have_slack)
{
    struct hth_deadline d = make();
    (void)state;
    d.opts.slack = 0.25;
    for (int i = 0; i < HTH_DEADLINE_WINDOW; i++)
        hth_deadline_observe(&d, 0, 200000 + (i % 4 == 0 ? 5000 : 0));
    assert_int_equal(hth_deadline_get(&d), 250000);
    for (int i = 0; i < HTH_DEADLINE_WINDOW; i++) /* MAD 20000: more than the slack */
        hth_deadline_observe(&d, 0, i % 2 == 0 ? 180000 : 220000);
    assert_int_equal(hth_deadline_get(&d), (int64_t)(200000 + 4.0 * 1.4826 * 20000));
}

TEST(stays_between_floor_and_ceiling)
{
    struct hth_deadline d = make();
    (void)state;
    for (int i = 0; i < 8; i++)
        hth_deadline_observe(&d, 0, i == 0 ? -5 : 1);
    assert_int_equal(hth_deadline_get(&d), 1000);
    for (int i = 0; i < HTH_DEADLINE_WINDOW; i++)
        hth_deadline_observe(&d, 0, INT64_C(1) << 50);
    assert_int_equal(hth_deadline_get(&d), 1000000);
}

/* One straggler in ten, answered or not, changes the deadline little. */
TEST(forgets_stragglers)
{
    struct hth_deadline d = make();
    (void)state;
    for (int i = 0; i < HTH_DEADLINE_WINDOW; i++)
        hth_deadline_observe(&d, 0, i % 10 == 0 ? 900000 : 5000 + 100 * (i % 5));
    assert_true(hth_deadline_get(&d) < 10000);

    struct caller c = make_caller();
    for (int i = 0; i < 10 * HTH_DEADLINE_WINDOW; i++) {
        assert_int_equal(call(&c, i % 10 == 0 ? 900000 : QUICK), i % 10 != 0);
        assert_int_equal(hth_deadline_get(&c.d), QUICK);
    }
}

/* When every call takes ten times the deadline, seven are missed and then none. */
TEST(follows_slow_peer_and_returns)
{
    struct caller c = make_caller();
    int misses = 0;
    (void)state;
    while (!call(&c, 101000))
        misses++;
    assert_int_equal(misses, HTH_DEADLINE_MISSES + 3);
    for (int i = 0; i < 2 * HTH_DEADLINE_WINDOW; i++)
        assert_true(call(&c, 101000 + 100 * (i % 7)));
    assert_in_range(hth_deadline_get(&c.d), 101000, 104000); /* learnt */
    for (int i = 0; i < 2 * HTH_DEADLINE_WINDOW; i++)
        assert_true(call(&c, QUICK));
    assert_int_equal(hth_deadline_get(&c.d), QUICK);
}

/* A peer that lives and never answers gets the ceiling, until it answers a quarter of a window. */
TEST(unanswering_peer_costs_ceiling_at_most)
{
    struct caller c = make_caller();
    (void)state;
    for (int i = 0; i < 100; i++)
        assert_false(call(&c, -1));
    assert_int_equal(hth_deadline_get(&c.d), 1000000);
    for (int i = 0; i < HTH_DEADLINE_WINDOW / 4; i++)
        assert_true(call(&c, QUICK));
    assert_int_equal(hth_deadline_get(&c.d), QUICK);
}

/* The deadline of a silent peer does not grow. */
TEST(silent_peer_keeps_usual_deadline)
{
    struct caller c = make_caller();
    (void)state;
    c.silent = true;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(hth_deadline_get(&c.d), QUICK);
        assert_false(call(&c, -1));
    }
}

/* Half of the calls are lost: the mean deadline is 1 + m / 2^MISSES times the usual, with a ceiling
 * at 2^m times the usual. */
TEST(half_lost_one_by_one_gives_mean_of_closed_form)
{
    enum { CALLS = 400000, M = 6 };
    struct caller c = make_caller();
    struct hth_rng rng;
    double sum_us = 0;
    (void)state;
    int64_t usual_us = hth_deadline_get(&c.d);
    c.d.opts.ceiling_us = usual_us << M;
    hth_rng_init(&rng, 7);
    for (int i = 0; i < CALLS; i++) {
        sum_us += (double)hth_deadline_get(&c.d);
        call(&c, hth_rng_below(&rng, 2) == 0 ? -1 : QUICK);
    }
    double expected = 1 + (double)M / (1 << HTH_DEADLINE_MISSES);
    double got = sum_us / CALLS / (double)usual_us;
    assert_true(got > expected * 0.97 && got < expected * 1.03);
}

/* Sixteen concurrent calls, half of them lost: answers to calls that began no earlier prove the
 * missed ones lost, however many come in a row. */
TEST(half_lost_at_once_raises_no_patience)
{
    struct caller c = make_caller();
    (void)state;
    for (int round = 0; round < 100; round++) {
        int64_t deadline_us = hth_deadline_get(&c.d);
        assert_int_equal(deadline_us, QUICK);
        for (int i = 0; i < 8; i++)
            hth_deadline_observe(&c.d, c.now_us + QUICK, QUICK);
        c.now_us += deadline_us;
        for (int i = 0; i < 8; i++)
            hth_deadline_miss(&c.d, c.now_us, deadline_us, c.now_us - deadline_us, c.now_us);
    }
}

/* Nineteen in twenty of many concurrent calls become ten times slower: the quick ones do not hide
 * that. */
TEST(follows_most_calls)
{
    struct caller c = make_caller();
    int rounds = 0;
    (void)state;
    for (; hth_deadline_get(&c.d) < 101000; rounds++) {
        assert_true(rounds < HTH_DEADLINE_MISSES + 4);
        int64_t deadline_us = hth_deadline_get(&c.d);
        hth_deadline_observe(&c.d, c.now_us + QUICK / 2, QUICK / 2);
        c.now_us += deadline_us;
        for (int i = 0; i < 19; i++)
            hth_deadline_miss(&c.d, c.now_us, deadline_us, c.now_us - deadline_us, c.now_us);
    }
    for (int i = 0; i < 200; i++)
        assert_true(call(&c, i % 20 == 0 ? QUICK / 2 : 101000 + 100 * (i % 7)));
}

/* Sixteen concurrent calls of a caller; a new one replaces each that ends. */
struct crowd {
    struct caller c;
    int64_t begin_us[16], deadline_us[16], takes_us[16];
    struct hth_rng rng;
    int calls, missed;
    double deadlines_us; /* sum of all deadlines given */
};

/* Ends the next call and begins another that takes takes_us; negative: never answered. */
static void crowd_step(struct crowd *w, int64_t takes_us)
{
    int64_t end_us = INT64_MAX;
    int next = 0;
    for (int i = 0; i < 16; i++) {
        bool answered = w->takes_us[i] >= 0 && w->takes_us[i] <= w->deadline_us[i];
        int64_t us = w->begin_us[i] + (answered ? w->takes_us[i] : w->deadline_us[i]);
        next = us < end_us ? i : next;
        end_us = HTH_MIN(us, end_us);
    }
    int64_t spent_us = end_us - w->begin_us[next];
    w->c.now_us = end_us;
    if (spent_us == w->takes_us[next]) {
        hth_deadline_observe(&w->c.d, end_us, spent_us);
    } else {
        hth_deadline_miss(&w->c.d, end_us, spent_us, w->begin_us[next], end_us);
        w->missed++;
    }
    w->begin_us[next] = end_us;
    w->takes_us[next] = takes_us;
    w->deadline_us[next] = hth_deadline_begin(&w->c.d);
    w->deadlines_us += (double)w->deadline_us[next];
    w->calls++;
}

/* Ends `ends` calls; `share` of the new ones takes slow_us, the others about a third of QUICK,
 * which is the floor of deadlines here. */
static void crowd_run(struct crowd *w, int ends, double share, int64_t slow_us)
{
    w->calls = w->missed = 0;
    w->deadlines_us = 0;
    for (int i = 0; i < ends; i++) {
        bool slow = hth_rng_unit(&w->rng) < share;
        int64_t quick_us = QUICK / 3 + (int64_t)hth_rng_below(&w->rng, 100);
        crowd_step(w, slow ? slow_us : quick_us);
    }
}

static struct crowd make_crowd(void)
{
    struct crowd w = {.c = make_caller()};
    hth_rng_init(&w.rng, 11);
    for (int i = 0; i < 16; i++) {
        w.begin_us[i] = w.c.now_us;
        w.takes_us[i] = QUICK / 3;
        w.deadline_us[i] = QUICK;
    }
    w.c.d.opts.floor_us = QUICK;
    return w;
}

/* Two in five of concurrent calls take ten times the deadline: each eighth probe is long enough,
 * and two in five of those are of a slow call. Then nearly all are answered. Soon after all calls
 * are quick again the deadline is short again. */
TEST(follows_slow_share_of_concurrent_calls)
{
    struct crowd w = make_crowd();
    (void)state;
    crowd_run(&w, 6000, 0.4, 101000);
    assert_in_range(w.c.d.probes, 8, 48);
    crowd_run(&w, 10000, 0.4, 101000);
    assert_true(w.missed < 100);
    crowd_run(&w, 2000, 0, 0); /* 16 at once: twice the patience */
    assert_int_equal(hth_deadline_get(&w.c.d), QUICK);
}

/* One slow call in ten is not followed. */
TEST(forgets_stragglers_among_many)
{
    struct crowd w = make_crowd();
    (void)state;
    crowd_run(&w, 10000, 0.1, 101000);
    assert_in_range(w.c.d.probes, 0, 1);
    assert_int_equal(hth_deadline_get(&w.c.d), QUICK);
}

/* Half of many concurrent calls are lost: one call in 64 is a probe, and the mean deadline is 1 + m
 * / 64 times the usual. */
TEST(half_lost_among_many_costs_one_probe_in_64)
{
    enum { CALLS = 400000, M = 6 };
    struct crowd w = make_crowd();
    (void)state;
    w.c.d.opts.ceiling_us = QUICK << M;
    crowd_run(&w, CALLS, 0.5, -1);
    assert_in_range(w.c.d.probes, CALLS / 64 * 0.9, CALLS / 64 * 1.1);
    double got = w.deadlines_us / w.calls / QUICK, expected = 1 + M / 64.0;
    assert_true(got > expected * 0.97 && got < expected * 1.03);
}

/* A call waited while others were sent before it: their answers do not prove it lost. */
TEST(answers_sent_earlier_prove_no_loss)
{
    struct caller c = make_caller();
    (void)state;
    for (int i = 0; i < HTH_DEADLINE_MISSES; i++) {
        int64_t begin_us = c.now_us, sent_us = begin_us + QUICK / 2;
        hth_deadline_observe(&c.d, sent_us, QUICK / 4); /* sent at begin_us + QUICK / 4 */
        c.d.streak = (uint32_t)i;
        c.now_us = begin_us + QUICK;
        hth_deadline_miss(&c.d, c.now_us, QUICK, sent_us, c.now_us);
        assert_int_equal(c.d.streak, i + 1);
    }
    assert_int_equal(hth_deadline_get(&c.d), 2 * QUICK);
}
