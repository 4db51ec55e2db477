/* SPDX-License-Identifier: Apache-2.0 */
/* How long a peer that never answered, or hardly ever, is waited for (rpc.h, timeout_us). */
#include "support/test.h"

#include "rpc/swarm.h"

#define MS HTH_US_PER_MS

struct scene {
    struct hth_world *w;
    struct member a, b, c; /* a calls; b answers, c takes what it is sent and is silent */
};

static void begin(struct scene *s)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    s->w = hth_world_new(5, &opts);
    member_start(&s->a, s->w, "a", member_opts());
    member_start(&s->b, s->w, "b", member_opts());
    member_start(&s->c, s->w, "c", member_opts());
}

static void drop_held(struct member *m)
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

/* One call that m answers after so long. */
static void answers_after(struct scene *s, struct member *m, int64_t us)
{
    struct verdict v = {.count = 0};
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

/* How long a call to c is waited for, in vain. */
static int64_t silent_for(struct scene *s)
{
    struct verdict v = {.count = 0};
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

static void nobody_answered_yet(void **state)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s);
    assert_int_equal(silent_for(&s), 20 * HTH_US_PER_S);
    end(&s);
}

/* One answer is enough to know what to expect: four times the least deadline, from when the call
 * was sent, which is a few round trips after it began. */
static void one_answer_of_another_shortens_the_wait(void **state)
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

static void it_shortens_a_wait_that_has_begun(void **state)
{
    struct scene s = {.w = NULL};
    struct verdict v = {.count = 0};
    (void)state;
    begin(&s);
    int64_t from_us = hth_world_now_us(s.w);
    call_text(&s.a, &s.c, METHOD_HOLD, "x", 0, &v);
    answered_after(&s, 2000 * MS); /* four times twice of it, then: */
    await(s.w, &v);
    assert_int_equal(v.err, HTH_E_TIMEOUT);
    assert_in_range(v.at_us - from_us, 16000 * MS, 17000 * MS);
    verdict_clear(&v);
    hth_world_run_for(s.w, MS * 500);
    end(&s);
}

/* Calls c, who takes that long, until it is met; others take ten milliseconds. Returns how long
 * that took in all. */
static int64_t met_after(struct scene *s, int64_t takes_us, int64_t within_us)
{
    enum hth_err err = HTH_E_TIMEOUT;
    for (int i = 0; i < 8; i++)
        answered_after(s, 10 * MS);
    int64_t from_us = hth_world_now_us(s->w);
    while (err != HTH_OK && hth_world_now_us(s->w) < from_us + within_us) {
        struct verdict v = {.count = 0};
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

/* Within a minute, and then waited for. */
static void who_is_slow_from_the_beginning_is_met(void **state)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s);
    met_after(&s, 3 * HTH_US_PER_S, 60 * HTH_US_PER_S);
    struct hth_rpc_target to = member_target(&s.c);
    assert_true(hth_rpc_timeout_us(s.a.rpc, &to, METHOD_HOLD) > 3 * HTH_US_PER_S);
    end(&s);
}

/* And who takes longer than 32 times the deadline of the others, by one call in eight: those who
 * answer at once, as a liar can, keep nobody out. */
static void who_is_very_slow_is_met_too(void **state)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s);
    int64_t us = met_after(&s, 15 * HTH_US_PER_S, 320 * HTH_US_PER_S);
    assert_true(us > 16 * 15 * HTH_US_PER_S);
    end(&s);
}

/* Seven in eight waits are never longer than 32 times the deadline of the others, and the eighth
 * grows to what the first would be without them. */
static void the_wait_has_an_end(void **state)
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

/* One to three answers do not make the next wait the longest; and what was waited before them is
 * past. */
static void a_few_answers_and_then_silence(void **state)
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
        hth_world_run_for(s.w, 60 * HTH_US_PER_S); /* nobody waits meanwhile */
        assert_in_range(silent_for(&s), 800 * MS, 801 * MS);
        end(&s);
    }
}

/* Of one who needs longer than others do its own answers say so. */
static void its_own_few_answers_count_too(void **state)
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

/* What it answered while others did not says nothing of what others take. */
static void nobody_else_answered_yet(void **state)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s);
    for (int i = 0; i < 3; i++)
        answers_after(&s, &s.c, 10 * MS);
    assert_int_equal(silent_for(&s), 20 * HTH_US_PER_S);
    end(&s);
}

/* From the fourth answer on it is known by what it did itself. */
static void its_fourth_answer_makes_it_known(void **state)
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

/* An adaptive wait may end long before the deadline that the request carries: only the caller's
 * CANCEL tells the handler. */
static void the_handler_hears_of_a_timeout_before_its_own_deadline(void **state)
{
    struct scene s = {.w = NULL};
    struct verdict v = {.count = 0};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_answered_yet),
        cmocka_unit_test(one_answer_of_another_shortens_the_wait),
        cmocka_unit_test(it_shortens_a_wait_that_has_begun),
        cmocka_unit_test(who_is_slow_from_the_beginning_is_met),
        cmocka_unit_test(who_is_very_slow_is_met_too),
        cmocka_unit_test(the_wait_has_an_end),
        cmocka_unit_test(a_few_answers_and_then_silence),
        cmocka_unit_test(its_own_few_answers_count_too),
        cmocka_unit_test(nobody_else_answered_yet),
        cmocka_unit_test(its_fourth_answer_makes_it_known),
        cmocka_unit_test(the_handler_hears_of_a_timeout_before_its_own_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
