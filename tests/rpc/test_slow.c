/* SPDX-License-Identifier: Apache-2.0 */
/* Adaptive deadlines of many concurrent calls to a server that is slow with some of them. */
#include "core/rng.h"
#include "rpc/swarm.h"
#include "support/suite.h"

#define AT_ONCE 16
#define TICK_US (10 * HTH_US_PER_MS)

struct scene {
    struct hth_world *w;
    struct swarm_member a, b;
    struct swarm_verdict v[AT_ONCE];
    struct hth_rng rng;
    int64_t due_us[HELD_MAX]; /* when each request is to be answered */
    uint32_t ended, timeouts;
};

/* b serves requests_max requests of one peer at a time; 0: many. */
static void begin(struct scene *s, uint32_t requests_max)
{
    struct hth_rpc_opts server = member_opts();
    if (requests_max > 0)
        server.requests_max = requests_max;
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    s->w = hth_world_new(5, &opts);
    hth_rng_init(&s->rng, 1);
    member_start(&s->a, s->w, "a", member_opts());
    member_start(&s->b, s->w, "b", server);
}

static void end(struct scene *s)
{
    struct hth_open_counts counts;
    member_stop(&s->a);
    member_stop(&s->b);
    for (uint32_t i = 0; i < s->b.held_count; i++)
        if (s->b.held[i] != NULL)
            hth_rpc_reply(s->b.held[i], NULL);
    for (int i = 0; i < AT_ONCE; i++)
        verdict_clear(&s->v[i]);
    hth_world_open(s->w, &counts);
    assert_int_equal(hth_open_total(&counts), 0);
    hth_world_free(s->w);
}

/* Counts calls that ended, and replaces them by new ones. */
static void call_again(struct scene *s)
{
    for (int i = 0; i < AT_ONCE; i++) {
        struct swarm_verdict *v = &s->v[i];
        if (v->env != NULL && v->count == 0)
            continue;
        s->ended += v->count;
        s->timeouts += v->err == HTH_E_TIMEOUT;
        verdict_clear(v);
        call_text(&s->a, &s->b, METHOD_HOLD, "x", 0, v);
    }
}

/* The server answers each request after a tick, but a random third of them after slow_us. */
static void answer(struct scene *s, int64_t slow_us)
{
    int64_t now_us = hth_world_now_us(s->w);
    for (uint32_t i = 0; i < s->b.held_count; i++) {
        if (s->b.held[i] == NULL)
            continue;
        if (s->due_us[i] == 0)
            s->due_us[i] = now_us + (hth_rng_below(&s->rng, 3) == 0 ? slow_us : TICK_US);
        if (now_us < s->due_us[i] && !hth_rpc_is_canceled(s->b.held[i]))
            continue;
        hth_rpc_reply(s->b.held[i], NULL);
        s->b.held[i] = NULL;
    }
}

/* Runs that many calls; returns how many missed their deadline. */
static uint32_t run(struct scene *s, uint32_t calls, int64_t slow_us)
{
    s->timeouts = 0;
    for (uint32_t until = s->ended + calls; s->ended < until;) {
        call_again(s);
        hth_world_run_for(s->w, TICK_US);
        answer(s, slow_us);
    }
    return s->timeouts;
}

TEST(deadline_follows_server_slow_with_a_third)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s, 0);
    assert_int_equal(run(&s, 100, TICK_US), 0);
    struct hth_rpc_target to = member_target(&s.b);
    assert_int_equal(hth_rpc_timeout_us(s.a.rpc, &to, METHOD_HOLD), 200 * HTH_US_PER_MS);
    assert_true(run(&s, 400, 500 * HTH_US_PER_MS) > 0); /* all slow calls, until a probe */
    run(&s, 1600, 500 * HTH_US_PER_MS);
    assert_int_equal(run(&s, 600, 500 * HTH_US_PER_MS), 0);
    run(&s, 1000, TICK_US);
    assert_int_equal(hth_rpc_timeout_us(s.a.rpc, &to, METHOD_HOLD), 200 * HTH_US_PER_MS);
    end(&s);
}

/* When a call without an answer ends. */
static int64_t ends_after(struct scene *s, int64_t timeout_us, int64_t timeout_max_us)
{
    struct hth_rpc_target target = member_target(&s->b);
    struct hth_rpc_call_opts opts = {
        .method = METHOD_HOLD, .timeout_us = timeout_us, .timeout_max_us = timeout_max_us};
    struct swarm_verdict v = {.env = s->a.env};
    int64_t from_us = hth_world_now_us(s->w);
    assert_ok(hth_rpc_call(s->a.rpc, &target, &opts, on_verdict, &v, NULL));
    await(s->w, &v);
    assert_int_equal(v.err, HTH_E_TIMEOUT);
    return v.at_us - from_us;
}

/* timeout_max_us cuts adaptive deadlines, never lengthens them, and leaves fixed ones alone. */
TEST(caller_cuts_adaptive_deadlines)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s, 0);
    assert_int_equal(ends_after(&s, 0, 70000), 70000);
    assert_int_equal(ends_after(&s, 300000, 70000), 300000);
    assert_int_equal(ends_after(&s, 0, 40 * HTH_US_PER_S), 20 * HTH_US_PER_S);
    end(&s);
}

/* Calls that waited for an earlier call's place were sent after it: its answer does not prove them
 * lost, so four misses in a row raise the patience. */
TEST(misses_of_queued_calls_count_from_sending)
{
    struct scene s = {.w = NULL};
    (void)state;
    begin(&s, 1);
    struct hth_rpc_target target = member_target(&s.b);
    for (int i = 0; i < 8; i++) {
        call_text(&s.a, &s.b, METHOD_HOLD, "x", 0, &s.v[i]);
        hth_world_run_for(s.w, 200000);
        hth_rpc_reply(s.b.held[--s.b.held_count], NULL);
        await(s.w, &s.v[i]);
    }
    int64_t usual_us = hth_rpc_timeout_us(s.a.rpc, &target, METHOD_HOLD);
    assert_true(usual_us < HTH_US_PER_S);
    call_text(&s.a, &s.b, METHOD_HOLD, "answered", HTH_US_PER_S, &s.v[10]);
    for (int i = 1; i <= 4; i++)
        call_text(&s.a, &s.b, METHOD_HOLD, "not", (1 + i) * HTH_US_PER_S, &s.v[10 + i]);
    hth_world_run_for(s.w, 100000);
    assert_int_equal(s.b.held_count, 1);
    hth_rpc_reply(s.b.held[--s.b.held_count], NULL);
    for (int i = 0; i <= 4; i++) {
        await(s.w, &s.v[10 + i]);
        assert_int_equal(s.v[10 + i].err, i == 0 ? HTH_OK : HTH_E_TIMEOUT);
        hth_world_run_for(s.w, 100000);
        if (i > 0) /* it was canceled, and its place is free after b's verdict */
            hth_rpc_refuse(s.b.held[--s.b.held_count], HTH_E_CANCELED, 0, NULL);
    }
    assert_int_equal(s.b.held_count, 0);
    assert_int_equal(hth_rpc_timeout_us(s.a.rpc, &target, METHOD_HOLD), 2 * 5 * HTH_US_PER_S);
    end(&s);
}

/* Bytes that arrive while a process does not run are read after its timers: a call whose deadline
 * passed meanwhile is extended once, by the length of the stall. A silent peer times out then. The
 * lateness is remembered for 10 s. */
TEST(stall_extends_deadlines_once)
{
    enum { WAIT_US = 100000, STALL_US = 300000 };
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct scene s = {.w = hth_world_new(seed, NULL)};
        member_start(&s.a, s.w, "a", member_opts());
        member_start(&s.b, s.w, "b", member_opts());
        call_text(&s.a, &s.b, METHOD_ECHO, "x", 5 * HTH_US_PER_S, &s.v[0]);
        await(s.w, &s.v[0]);
        assert_int_equal(hth_rpc_late_us(s.a.rpc), 0);
        for (int i = 1; i <= 2; i++) {
            int64_t begin_us = hth_world_now_us(s.w);
            if (i == 2)
                hth_node_crash(s.b.node, HTH_CRASH_SILENT);
            call_text(&s.a, &s.b, METHOD_ECHO, "x", WAIT_US, &s.v[i]);
            hth_world_run_for(s.w, 1000);
            hth_node_stall(s.a.node, STALL_US - 1000);
            await(s.w, &s.v[i]);
            hth_world_run_for(s.w, 1000);
            assert_int_equal(s.v[i].err, i == 1 ? HTH_OK : HTH_E_TIMEOUT);
            assert_in_range(s.v[i].at_us - begin_us, STALL_US, 2 * STALL_US - WAIT_US + 1000);
            assert_in_range(hth_rpc_late_us(s.a.rpc), STALL_US - WAIT_US, STALL_US);
        }
        hth_world_run_for(s.w, 11 * HTH_US_PER_S);
        assert_int_equal(hth_rpc_late_us(s.a.rpc), 0);
        end(&s);
    }
}

/* A call due shortly after the stall gets the extension too, like one due shortly before its
 * end. */
TEST(call_due_after_stall_is_extended)
{
    enum { WAIT_US = 300000, STALL_US = 290000 };
    (void)state;
    for (int i = 0; i < 40; i += 10) {
        struct scene s = {.w = hth_world_new(20, NULL)};
        member_start(&s.a, s.w, "a", member_opts());
        member_start(&s.b, s.w, "b", member_opts());
        call_text(&s.a, &s.b, METHOD_ECHO, "x", 5 * HTH_US_PER_S, &s.v[0]);
        await(s.w, &s.v[0]);
        call_text(&s.a, &s.b, METHOD_HOLD, "x", 100000, &s.v[1]); /* its timer detects the stall */
        call_text(&s.a, &s.b, METHOD_ECHO, "x", WAIT_US, &s.v[2]);
        hth_world_run_for(s.w, 1000);
        hth_node_stall(s.a.node, STALL_US + i * 1000);
        hth_node_stall(s.b.node, STALL_US + i * 1000); /* on the same machine */
        await(s.w, &s.v[2]);
        assert_int_equal(s.v[2].err, HTH_OK);
        await(s.w, &s.v[1]);
        hth_rpc_refuse(s.b.held[--s.b.held_count], HTH_E_CANCELED, 0, NULL);
        end(&s);
    }
}
