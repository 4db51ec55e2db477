/* SPDX-License-Identifier: Apache-2.0 */
/* The wait for strangers: peers with fewer than four answers (rpc.h, timeout_us). */
#include "rpc/swarm.h"
#include "support/suite.h"

#define MS HTH_US_PER_MS

struct scene {
    struct hth_world *w;
    struct swarm_member a, b, c; /* a calls; b answers, c receives requests and is silent */
};

static void begin(struct scene *s)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    s->w = hth_world_new(5, &opts);
    member_start(&s->a, s->w, "a", member_opts());
    member_start(&s->b, s->w, "b", member_opts());
    member_start(&s->c, s->w, "c", member_opts());
}

static void drop_held(struct swarm_member *m)
{
    for (uint32_t i = 0; i < m->held_count; i++)
        hth_rpc_reply(m->held[i], NULL);
    m->held_count = 0;
}

static void end(struct scene *s)
{
    struct hth_open_counts counts;
    member_stop(&s->a);
    member_stop(&s->b);
    member_stop(&s->c);
    drop_held(&s->b);
    drop_held(&s->c);
    hth_world_open(s->w, &counts);
    assert_int_equal(hth_open_total(&counts), 0);
    hth_world_free(s->w);
}

/* Makes one call that m answers after us. */
static void answers_after(struct scene *s, struct swarm_member *m, int64_t us)
{
    struct swarm_verdict v = {.count = 0};
    call_text(&s->a, m, METHOD_HOLD, "x", 0, &v);
    while (m->held_count == 0)
        hth_world_run_for(s->w, MS);
    hth_world_run_for(s->w, us);
    hth_rpc_reply(m->held[--m->held_count], NULL);
    await(s->w, &v);
    assert_int_equal(v.err, HTH_OK);
    verdict_clear(&v);
}

static void answered_after(struct scene *s, int64_t us)
{
    answers_after(s, &s->b, us);
}

/* The time until a call to c times out. */
static int64_t silent_for(struct scene *s)
{
    struct swarm_verdict v = {.count = 0};
    int64_t from_us = hth_world_now_us(s->w);
    call_text(&s->a, &s->c, METHOD_HOLD, "x", 0, &v);
    await(s->w, &v);
    int64_t took_us = v.at_us - from_us;
    assert_int_equal(v.err, HTH_E_TIMEOUT);
    verdict_clear(&v);
    hth_world_run_for(s->w, MS * 500);
    drop_held(&s->c);
    return took_us;
}

TEST(stranger_gets_initial_deadline_while_no_peer_answered)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s);
    assert_int_equal(silent_for(&s), 20 * HTH_US_PER_S);
    end(&s);
}

/* One answer of another peer gives the expected duration: the wait is four times the minimum
 * deadline from when the call was sent, a few round trips after it began. */
TEST(one_answer_of_another_peer_shortens_wait)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s);
    answered_after(&s, 10 * MS);
    int64_t us = silent_for(&s);
    assert_in_range(us, 800 * MS, 1300 * MS);
    assert_in_range(silent_for(&s), 800 * MS, 801 * MS);
    end(&s);
}

TEST(answer_of_another_peer_shortens_running_wait)
{
    struct scene s = {.w = NULL};
    struct swarm_verdict v = {.count = 0};
    (void)state;
    begin(&s);
    int64_t from_us = hth_world_now_us(s.w);
    call_text(&s.a, &s.c, METHOD_HOLD, "x", 0, &v);
    answered_after(&s, 2000 * MS); /* the wait is four times twice of it */
    await(s.w, &v);
    assert_int_equal(v.err, HTH_E_TIMEOUT);
    assert_in_range(v.at_us - from_us, 16000 * MS, 17000 * MS);
    verdict_clear(&v);
    hth_world_run_for(s.w, MS * 500);
    end(&s);
}

/* Calls c, which takes takes_us, until a call is answered; other peers take ten milliseconds.
 * Returns the time until then. */
static int64_t met_after(struct scene *s, int64_t takes_us, int64_t within_us)
{
    enum hth_err err = HTH_E_TIMEOUT;
    for (int i = 0; i < 8; i++)
        answered_after(s, 10 * MS);
    int64_t from_us = hth_world_now_us(s->w);
    while (err != HTH_OK && hth_world_now_us(s->w) < from_us + within_us) {
        struct swarm_verdict v = {.count = 0};
        int64_t due_us = hth_world_now_us(s->w) + takes_us;
        call_text(&s->a, &s->c, METHOD_HOLD, "x", 0, &v);
        while (v.count == 0 && hth_world_now_us(s->w) < due_us)
            hth_world_run_for(s->w, MS);
        hth_world_run_for(s->w, MS);
        drop_held(&s->c);
        await(s->w, &v);
        err = v.err;
        verdict_clear(&v);
    }
    assert_int_equal(err, HTH_OK);
    return hth_world_now_us(s->w) - from_us;
}

/* Answered within a minute; from then on the deadline covers it. */
TEST(peer_slow_from_the_start_is_answered_within_a_minute)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s);
    met_after(&s, 3 * HTH_US_PER_S, 60 * HTH_US_PER_S);
    struct hth_rpc_target to = member_target(&s.c);
    assert_true(hth_rpc_timeout_us(s.a.rpc, &to, METHOD_HOLD) > 3 * HTH_US_PER_S);
    end(&s);
}

/* One call in eight waits beyond 32 times the others' deadline and reaches such a peer: peers that
 * answer at once, as an attacker can, shut out no slow one. */
TEST(probe_reaches_peer_slower_than_32_times)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s);
    int64_t us = met_after(&s, 15 * HTH_US_PER_S, 320 * HTH_US_PER_S);
    assert_true(us > 16 * 15 * HTH_US_PER_S);
    end(&s);
}

/* Seven in eight waits are at most 32 times the deadline of the others, and the eighth grows to the
 * initial deadline. */
TEST(wait_is_capped_but_for_each_eighth)
{
    struct scene s = {.w = NULL};
    int64_t most_us = 0, probe_us = 0;
    (void)state;
    begin(&s);
    for (int i = 0; i < 8; i++)
        answered_after(&s, 10 * MS);
    for (int i = 1; i <= 80; i++) {
        int64_t us = silent_for(&s), *longest_us = i % 8 == 0 ? &probe_us : &most_us;
        *longest_us = HTH_MAX(*longest_us, us);
    }
    assert_in_range(most_us, 6400 * MS - 100 * MS, 6400 * MS);
    assert_int_equal(probe_us, 20 * HTH_US_PER_S);
    end(&s);
}

/* After one to three answers the next wait is short; the waits before them do not count. */
TEST(few_answers_reset_the_wait)
{
    (void)state;
    for (int answers = 1; answers <= 3; answers++) {
        struct scene s = {.w = NULL};
        begin(&s);
        for (int i = 0; i < 8; i++)
            answered_after(&s, 10 * MS);
        for (int i = 0; i < 12; i++)
            silent_for(&s);
        for (int i = 0; i < answers; i++)
            answers_after(&s, &s.c, 10 * MS);
        hth_world_run_for(s.w, 60 * HTH_US_PER_S); /* no call is out meanwhile */
        assert_in_range(silent_for(&s), 800 * MS, 801 * MS);
        end(&s);
    }
}

/* A peer slower than the others: its own answers raise the wait. */
TEST(own_few_answers_raise_the_wait)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s);
    for (int i = 0; i < 8; i++)
        answered_after(&s, 10 * MS);
    answers_after(&s, &s.c, 700 * MS);
    answers_after(&s, &s.c, 700 * MS);
    assert_in_range(silent_for(&s), 4 * 2 * 700 * MS, 4 * 2 * 760 * MS);
    end(&s);
}

/* Its own answers predict nothing about other peers. */
TEST(own_answers_alone_keep_initial_deadline)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s);
    for (int i = 0; i < 3; i++)
        answers_after(&s, &s.c, 10 * MS);
    assert_int_equal(silent_for(&s), 20 * HTH_US_PER_S);
    end(&s);
}

/* From the fourth answer on its own durations give the deadline. */
TEST(fourth_answer_ends_stranger_rule)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s);
    for (int i = 0; i < 8; i++)
        answered_after(&s, 2000 * MS);
    for (int i = 0; i < 4; i++)
        answers_after(&s, &s.c, 10 * MS);
    assert_in_range(silent_for(&s), 200 * MS, 201 * MS);
    end(&s);
}

/* An adaptive wait may end long before the deadline in the request: only the caller's CANCEL
 * reaches the handler then. */
TEST(handler_is_canceled_before_its_own_deadline)
{
    struct scene s = {.w = NULL};
    struct swarm_verdict v = {.count = 0};
    (void)state;
    begin(&s);
    answered_after(&s, 10 * MS);
    call_text(&s.a, &s.c, METHOD_HOLD, "x", 0, &v);
    await(s.w, &v);
    assert_int_equal(v.err, HTH_E_TIMEOUT);
    assert_int_equal(s.c.held_count, 1);
    assert_int_equal(s.c.cancels, 0);
    assert_true(hth_rpc_deadline_us(s.c.held[0]) > v.at_us + 10 * HTH_US_PER_S);
    hth_world_run_for(s.w, 100 * MS);
    assert_int_equal(s.c.cancels, 1);
    assert_true(hth_rpc_is_canceled(s.c.held[0]));
    assert_in_range(s.c.cancel_us - v.at_us, 10 * MS, 11 * MS); /* one way */
    end(&s);
}
