/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_counters.c: a server's refusals, repeats and failed writes each have their own counter, and
 * the environment's metrics have the same numbers.
 */
#include "experts/swarm.h"
#include "support/suite.h"

#include "core/mem.h"

#define D 16

static double metric(const struct swarm_host *h, const char *name)
{
    return hth_metrics_get(h->env->metrics, name);
}

TEST(bad_parts_and_repeats_are_counted)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    float *x = normals(1, 4 * D);
    struct ask a = {.coord = {0}, .rows = {1}, .parts = 1, .d = D, .x = x, .dy = x, .key = 1};
    struct hth_server_stats s;
    struct answer out;
    struct swarm_caller c;

    (void)state;
    h.opts.grad_norm_max = 100;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    for (int i = 0; i < 3; i++) { /* the first and two repeats */
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        answer_clear(&out);
    }
    s = host_stats(&h);
    assert_int_equal(s.replays_answered, 2);
    assert_int_equal(s.parts_not_finite + s.parts_norm + s.parts_failed, 0);
    x[0] = 101; /* a norm above the limit */
    a.key = 2;
    ask_wait(w, &c, &h, &a, &out);
    assert_err(HTH_E_NORM, out.status[0]);
    answer_clear(&out);
    x[0] = NAN;
    for (a.key = 3; a.key < 6; a.key++) {
        ask_wait(w, &c, &h, &a, &out);
        assert_err(HTH_E_NOT_FINITE, out.status[0]);
        answer_clear(&out);
    }
    a.d = D / 2;
    a.dy = NULL;
    x[0] = 1;
    ask_wait(w, &c, &h, &a, &out);
    assert_err(HTH_E_BAD_SHAPE, out.status[0]);
    answer_clear(&out);
    s = host_stats(&h);
    assert_int_equal(s.parts_norm, 1);
    assert_int_equal(s.parts_not_finite, 3);
    assert_int_equal(s.parts_failed, 1);
    assert_int_equal(s.replays_answered, 2);
    assert_int_equal(s.rows_backward, 1);
    assert_int_equal(metric(&h, "hearth_expert_parts_norm_total"), 1);
    assert_int_equal(metric(&h, "hearth_expert_parts_not_finite_total"), 3);
    assert_int_equal(metric(&h, "hearth_expert_parts_failed_total"), 1);
    assert_int_equal(metric(&h, "hearth_expert_replays_total"), 2);
    hth_aligned_free(x);
    caller_stop(&c);
    hth_world_free(w);
}

/* On a full disk each round fails and is counted; with free space the same change is written. */
TEST(checkpoints_are_counted)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    struct hth_device small = HTH_DEVICE_INIT, roomy = HTH_DEVICE_INIT;
    float *x = normals(1, D);
    struct ask a = {.coord = {0}, .rows = {1}, .parts = 1, .d = D, .x = x, .dy = x, .key = 1};
    struct answer out;
    struct swarm_caller c;

    (void)state;
    small.disk_bytes_max = 100;
    h.opts.step_rows = 1;
    h.opts.checkpoint_dir = "ckpt";
    h.opts.checkpoint_period_us = 2 * HTH_US_PER_S;
    host_start(&h, w, "host");
    hth_node_set_device(h.node, &small);
    caller_start(&c, w, "caller", NULL);
    ask_wait(w, &c, &h, &a, &out);
    assert_ok(out.err);
    answer_clear(&out);
    hth_world_run_for(w, 5 * HTH_US_PER_S);
    assert_int_equal(host_stats(&h).checkpoints_failed, 2);
    assert_int_equal(host_stats(&h).checkpoints_written, 0);
    assert_int_equal(host_stats(&h).experts_unsaved, 1);
    assert_int_equal(host_stats(&h).saved_us, 0);
    int64_t wall_us = hth_wall_us(h.env), since_us = host_stats(&h).unsaved_since_us;
    assert_true(since_us > 0 && since_us < wall_us - HTH_US_PER_S); /* the first failure */
    assert_int_equal(metric(&h, "hearth_expert_checkpoints_failed_total"), 2);
    hth_node_set_device(h.node, &roomy);
    hth_world_run_for(w, 5 * HTH_US_PER_S);
    assert_int_equal(host_stats(&h).checkpoints_failed, 2);
    assert_int_equal(host_stats(&h).checkpoints_written, 1);
    assert_int_equal(host_stats(&h).experts_unsaved, 0);
    assert_int_equal(host_stats(&h).unsaved_since_us, 0);
    assert_in_range(host_stats(&h).saved_us, wall_us, hth_wall_us(h.env));
    assert_int_equal(metric(&h, "hearth_expert_checkpoints_failed_total"), 2);
    assert_int_equal(metric(&h, "hearth_expert_checkpoints_total"), 1);
    hth_aligned_free(x);
    caller_stop(&c);
    hth_world_free(w);
}

static void keep_line(void *arg, const char *line, size_t len)
{
    (void)len;
    if (strstr(line, "trainer ") != NULL)
        snprintf(arg, 256, "%s", line);
}

/* Each peer counts once, as one of now for a minute, and the first one's address is kept. The log
 * says who comes, goes and comes back. */
TEST(callers_are_counted_and_forgotten)
{
    char said[256] = "";
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    wo.log_level = HTH_INFO;
    wo.log_sink = keep_line;
    wo.log_arg = said;
    struct hth_world *w = hth_world_new(1, &wo);
    struct swarm_host h = host_init();
    float *x = normals(1, D);
    struct ask a = {.coord = {0}, .rows = {1}, .parts = 1, .d = D, .x = x};
    struct swarm_caller c[2];
    struct hth_server_stats s;
    struct answer out;

    (void)state;
    h.opts.checkpoint_dir = "ckpt";
    h.opts.checkpoint_period_us = 5 * HTH_US_PER_S;
    host_start(&h, w, "host");
    for (int i = 0; i < 2; i++)
        caller_start(&c[i], w, i == 0 ? "one" : "two", NULL);
    assert_int_equal(host_stats(&h).callers, 0);
    for (int i = 0; i < 4; i++) {
        ask_wait(w, &c[i / 2], &h, &a, &out);
        assert_ok(out.err);
        answer_clear(&out);
    }
    s = host_stats(&h);
    assert_int_equal(s.callers, 2);
    assert_int_equal(s.callers_now, 2);
    assert_non_null(strstr(said, " came from "));
    assert_true(hth_peer_id_eq(&s.first_caller.id, &c[0].env->self));
    assert_int_equal(s.first_caller.from.family, 4);
    hth_world_run_for(w, HTH_SERVER_CALLER_US / 2);
    ask_wait(w, &c[1], &h, &a, &out);
    answer_clear(&out);
    hth_world_run_for(w, HTH_SERVER_CALLER_US / 2 + 10 * HTH_US_PER_S);
    assert_int_equal(host_stats(&h).callers, 2);
    assert_int_equal(host_stats(&h).callers_now, 1);
    assert_non_null(strstr(said, " is gone: no rows from it for 60 s"));
    ask_wait(w, &c[0], &h, &a, &out);
    answer_clear(&out);
    assert_non_null(strstr(said, " is back"));
    assert_int_equal(host_stats(&h).callers, 2);
    hth_aligned_free(x);
    for (int i = 0; i < 2; i++)
        caller_stop(&c[i]);
    hth_world_free(w);
}

/* As many strangers as are remembered, and one more: the oldest is forgotten, so that it counts as
 * new when it comes again. */
TEST(a_flood_of_callers_is_bounded)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    float *x = normals(1, D);
    struct ask a = {.coord = {0}, .rows = {1}, .parts = 1, .d = D, .x = x};
    struct swarm_caller first, c;
    struct answer out;

    (void)state;
    host_start(&h, w, "host");
    caller_start(&first, w, "first", NULL);
    ask_wait(w, &first, &h, &a, &out);
    answer_clear(&out);
    for (uint32_t i = 0; i < HTH_SERVER_CALLERS_MAX; i++) {
        char name[16];
        snprintf(name, sizeof(name), "c%u", i);
        caller_start(&c, w, name, NULL);
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        answer_clear(&out);
        caller_stop(&c);
    }
    assert_int_equal(host_stats(&h).callers, HTH_SERVER_CALLERS_MAX + 1);
    assert_in_range(host_stats(&h).callers_now, 1, HTH_SERVER_CALLERS_MAX);
    ask_wait(w, &first, &h, &a, &out);
    answer_clear(&out);
    assert_int_equal(host_stats(&h).callers, HTH_SERVER_CALLERS_MAX + 2);
    hth_aligned_free(x);
    caller_stop(&first);
    hth_world_free(w);
}
