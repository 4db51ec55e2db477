/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_keep.c: the server over time, in a simulated world: steps by count and age, callers that
 * cancel or crash, drains, checkpoints and restarts.
 */
#include "experts/swarm.h"
#include "support/suite.h"

#include "core/mem.h"

#include <string.h>

#define D 16

static struct hth_world *world_new(uint64_t seed)
{
    return hth_world_new(seed, NULL);
}

static void world_end(struct hth_world *w, struct swarm_caller *c)
{
    caller_stop(c);
    hth_world_free(w);
}

/* ---- steps --------------------------------------------------------------------------------- */

TEST(steps_come_by_count_and_by_age)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, 8 * D);
    struct ask a = {.coord = {0}, .rows = {8}, .parts = 1, .d = D, .x = x, .dy = x};
    struct answer out;
    struct swarm_caller c;

    (void)state;
    h.opts.step_rows = 24;
    h.opts.step_age_us = 2 * HTH_US_PER_S;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    for (a.key = 1; a.key <= 3; a.key++) {
        assert_int_equal(host_stats(&h).steps, 0);
        ask_wait(w, &c, &h, &a, &out);
        answer_clear(&out);
    }
    hth_world_run_for(w, 100 * HTH_US_PER_MS);
    assert_int_equal(host_stats(&h).steps, 1);
    ask_wait(w, &c, &h, &a, &out);
    answer_clear(&out);
    hth_world_run_for(w, 1500 * HTH_US_PER_MS);
    assert_int_equal(host_stats(&h).steps, 1);
    hth_world_run_for(w, 1000 * HTH_US_PER_MS);
    assert_int_equal(host_stats(&h).steps, 2);
    hth_world_run_for(w, 10 * HTH_US_PER_S);
    assert_int_equal(host_stats(&h).steps, 2);
    hth_aligned_free(x);
    world_end(w, &c);
}

/* ---- cancel, crash, drain, checkpoints ----------------------------------------------------- */

TEST(canceled_work_is_dropped)
{
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct hth_world *w;
    struct swarm_host h = host_init();
    float *x = normals(1, 4 * D);
    struct ask a = {.coord = {0}, .rows = {4}, .parts = 1, .d = D, .x = x};
    struct answer out[4];
    struct hth_rpc_call *call[4];
    struct swarm_caller c;

    (void)state;
    wo.device.job_overhead_us = 300 * HTH_US_PER_MS;
    w = hth_world_new(1, &wo);
    h.opts.batch_rows_max = 4;
    host_start(&h, w, "host");
    hth_world_run_for(w, HTH_US_PER_S);
    caller_start(&c, w, "caller", NULL);
    for (int i = 0; i < 4; i++) {
        a.dy = i >= 2 ? x : NULL;
        a.key = (uint64_t)i;
        call[i] = ask(&c, &h, &a, &out[i]);
    }
    hth_world_run_for(w, 100 * HTH_US_PER_MS); /* the first runs, three wait */
    hth_rpc_cancel(call[1]);
    hth_rpc_cancel(call[2]);
    assert_true(hth_world_run_until_true(w, answered, &out[3], 60 * HTH_US_PER_S));
    assert_ok(out[0].err);
    assert_ok(out[3].err);
    hth_world_run_for(w, 3 * HTH_US_PER_S);
    assert_int_equal(host_stats(&h).refused_canceled, 2);
    assert_int_equal(host_stats(&h).rows_forward, 4);
    assert_int_equal(host_stats(&h).rows_backward, 4);
    assert_int_equal(host_stats(&h).bytes_held, 0);
    assert_int_equal(host_stats(&h).parts_waiting, 0);
    a.key = 2; /* the backward was dropped unapplied, so its key is new */
    ask_wait(w, &c, &h, &a, &out[2]);
    assert_ok(out[2].err);
    assert_int_equal(host_stats(&h).rows_backward, 8);
    answer_clear(&out[0]);
    answer_clear(&out[2]);
    answer_clear(&out[3]);
    hth_aligned_free(x);
    world_end(w, &c);
}

/* A caller crashes during its backward: the work is finished, and the restarted caller's repeat
 * gets the answer. */
TEST(restarted_caller_gets_its_answer)
{
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct hth_world *w;
    struct swarm_host h = host_init();
    float *x = normals(1, 4 * D);
    struct ask a = {.coord = {0}, .rows = {4}, .parts = 1, .d = D, .x = x, .dy = x, .key = 5};
    struct answer out;
    struct swarm_caller c;

    (void)state;
    wo.device.job_overhead_us = 300 * HTH_US_PER_MS;
    w = hth_world_new(1, &wo);
    host_start(&h, w, "host");
    hth_world_run_for(w, HTH_US_PER_S);
    caller_start(&c, w, "caller", NULL);
    ask(&c, &h, &a, &out);
    hth_world_run_for(w, 200 * HTH_US_PER_MS);
    hth_rpc_disconnect(c.rpc, &hth_node_env(h.node)->self);
    hth_world_run_for(w, 2 * HTH_US_PER_S);
    assert_err(HTH_E_CLOSED, out.err);
    assert_int_equal(host_stats(&h).rows_backward, 4);
    ask_wait(w, &c, &h, &a, &out);
    assert_ok(out.err);
    assert_int_equal(host_stats(&h).rows_backward, 4);
    assert_int_equal(host_stats(&h).replays_answered, 1);
    answer_clear(&out);
    hth_aligned_free(x);
    world_end(w, &c);
}

static void on_drained(void *arg)
{
    ((struct swarm_host *)arg)->drained = true;
}

static bool is_drained(void *arg)
{
    return ((struct swarm_host *)arg)->drained;
}

/* A drained and restarted host has the same bits: weights, moments, steps. */
TEST(drain_saves_and_start_restores)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, 8 * D), *dy = normals(2, 8 * D), dx[8 * D];
    struct ask a = {.coord = {0}, .rows = {8}, .parts = 1, .d = D, .x = x, .dy = dy};
    struct reference r;
    struct answer out, late;
    struct swarm_caller c;

    (void)state;
    h.layer_count = 2;
    h.opts.step_rows = 16;
    h.opts.step_age_us = 3600 * HTH_US_PER_S;
    h.opts.checkpoint_dir = "ckpt";
    h.opts.checkpoint_period_us = 3600 * HTH_US_PER_S;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    h.expert.uid = uid_of(0);
    reference_start(&r, &h.expert);
    for (a.key = 1; a.key <= 3; a.key++) {
        ask_wait(w, &c, &h, &a, &out);
        answer_clear(&out);
        reference_backward(&r, 8, 8, x, dy, dx);
        if (a.key != 1)
            assert_ok(hth_expert_step(r.expert, r.ex)); /* the drain steps pending gradients */
    }
    a.key = 9;
    a.dy = NULL;
    ask(&c, &h, &a, &out);
    hth_world_run_for(w, 12 * HTH_US_PER_MS);
    hth_server_drain(h.server, on_drained, &h);
    assert_true(hth_world_run_until_true(w, is_drained, &h, 60 * HTH_US_PER_S));
    ask_wait(w, &c, &h, &a, &late);
    assert_err(HTH_E_DRAINING, late.err);
    assert_true(out.count == 1);
    answer_clear(&out);
    assert_int_equal(host_stats(&h).steps, 2);
    assert_int_equal(host_stats(&h).checkpoints_written, 1); /* the other expert never changed */
    hth_node_crash(h.node, HTH_CRASH_RESET);
    hth_world_run_for(w, HTH_US_PER_S);
    hth_node_restart(h.node);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(h.restored, 1);
    assert_true(experts_equal(host_expert(&h, 0), r.expert));
    assert_int_equal(hth_expert_steps(host_expert(&h, 0)), 2);
    reference_stop(&r);
    hth_aligned_free(x);
    hth_aligned_free(dy);
    world_end(w, &c);
}

/* After a power cut between checkpoints the last checkpoint is whole, and the step behind it is
 * lost. */
TEST(crash_restores_the_last_checkpoint)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, 8 * D);
    struct ask a = {.coord = {0}, .rows = {8}, .parts = 1, .d = D, .x = x, .dy = x, .key = 1};
    struct answer out;
    struct swarm_caller c;
    size_t len;

    (void)state;
    h.opts.step_rows = 1;
    h.opts.checkpoint_dir = "ckpt";
    h.opts.checkpoint_period_us = 5 * HTH_US_PER_S;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    ask_wait(w, &c, &h, &a, &out);
    answer_clear(&out);
    hth_world_run_for(w, 6 * HTH_US_PER_S);
    assert_int_equal(host_stats(&h).checkpoints_written, 1);
    assert_non_null(hth_node_disk_get(h.node, "ckpt/ffn0.0.safetensors", &len));
    hth_world_run_for(w, 20 * HTH_US_PER_S); /* no change, no write */
    assert_int_equal(host_stats(&h).checkpoints_written, 1);
    a.key = 2;
    ask_wait(w, &c, &h, &a, &out);
    answer_clear(&out);
    hth_world_run_for(w, 100 * HTH_US_PER_MS);
    hth_node_crash(h.node, HTH_CRASH_SILENT);
    hth_node_restart(h.node);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(h.restored, 1);
    assert_int_equal(hth_expert_steps(host_expert(&h, 0)), 1);
    hth_aligned_free(x);
    world_end(w, &c);
}

/* Its waiting gradients are stepped and it is written before it leaves; its neighbour stays. */
TEST(removed_expert_is_refused_and_saved)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, 8 * D);
    struct ask a = {.coord = {0, 1}, .rows = {4, 4}, .parts = 2, .d = D, .x = x, .dy = x, .key = 1};
    struct hth_uid uid = uid_of(0);
    struct answer out;
    struct swarm_caller c;
    size_t len;

    (void)state;
    h.layer_count = 2;
    h.opts.step_rows = 1000;
    h.opts.step_age_us = 600 * HTH_US_PER_S;
    h.opts.checkpoint_dir = "ckpt";
    h.opts.checkpoint_period_us = 5 * HTH_US_PER_S;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    ask_wait(w, &c, &h, &a, &out);
    answer_clear(&out);
    assert_ok(hth_server_remove(h.server, &uid));
    assert_err(HTH_E_NO_SUCH_EXPERT, hth_server_remove(h.server, &uid));
    h.expert.uid = uid;
    assert_err(HTH_E_AGAIN, hth_server_add(h.server, &h.expert));
    a.key = 2;
    ask_wait(w, &c, &h, &a, &out);
    assert_err(HTH_E_NO_SUCH_EXPERT, out.status[0]);
    assert_ok(out.status[1]);
    answer_clear(&out);
    hth_world_run_for(w, 8 * HTH_US_PER_S);
    assert_int_equal(host_stats(&h).experts, 1);
    assert_int_equal(host_stats(&h).steps, 1);
    assert_non_null(hth_node_disk_get(h.node, "ckpt/ffn0.0.safetensors", &len));
    assert_ok(hth_server_add(h.server, &h.expert));
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(h.restored, 1);
    assert_int_equal(hth_expert_steps(host_expert(&h, 1)), 1);
    /* Removing both while their weights are read ends well, too. */
    assert_ok(hth_server_remove(h.server, &uid));
    uid = uid_of(1);
    assert_ok(hth_server_remove(h.server, &uid));
    hth_world_run_for(w, HTH_US_PER_S);
    hth_server_drain(h.server, on_drained, &h);
    assert_true(hth_world_run_until_true(w, is_drained, &h, 60 * HTH_US_PER_S));
    hth_aligned_free(x);
    world_end(w, &c);
}

/* An expert with a damaged file is refused by name and its file stays; the others are served. */
TEST(damaged_checkpoints_are_refused)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, D);
    struct ask a = {.coord = {0, 1}, .rows = {1, 1}, .parts = 2, .d = D, .x = x};
    struct answer out;
    struct swarm_caller c;
    size_t len;

    (void)state;
    hth_aligned_free(x);
    a.x = x = normals(1, 2 * D);
    h.layer_count = 2;
    h.opts.checkpoint_dir = "ckpt";
    h.node = NULL;
    host_start(&h, w, "host");
    hth_node_crash(h.node, HTH_CRASH_RESET);
    hth_world_run_for(w, HTH_US_PER_S);
    hth_node_disk_put(h.node, "ckpt/ffn0.1.safetensors", "\x09\0\0\0\0\0\0\0torn", 12);
    hth_node_restart(h.node);
    hth_world_run_for(w, HTH_US_PER_S);
    caller_start(&c, w, "caller", NULL);
    assert_int_equal(h.failed, 1);
    assert_int_equal(h.failed_err, HTH_E_CORRUPT);
    ask_wait(w, &c, &h, &a, &out);
    assert_int_equal(out.status[0], HTH_OK);
    assert_int_equal(out.status[1], HTH_E_NO_SUCH_EXPERT);
    answer_clear(&out);
    hth_server_drain(h.server, on_drained, &h);
    assert_true(hth_world_run_until_true(w, is_drained, &h, 60 * HTH_US_PER_S));
    assert_non_null(hth_node_disk_get(h.node, "ckpt/ffn0.1.safetensors", &len));
    assert_int_equal(len, 12);
    hth_aligned_free(x);
    world_end(w, &c);
}

struct said {
    uint32_t failed, again;
    char last[512];
};

static void listen_to_saves(void *arg, const char *line, size_t len)
{
    struct said *said = arg;

    if (strstr(line, "checkpoint not written") == NULL && strstr(line, "written again") == NULL)
        return;
    said->failed += strstr(line, "checkpoint not written") != NULL;
    said->again += strstr(line, "written again") != NULL;
    snprintf(said->last, sizeof(said->last), "%.*s", (int)len, line);
}

/* Two experts can't be saved for 25 minutes, in 300 rounds: a line when it begins, one each 10
 * minutes, and one when both are on the disk again. */
TEST(full_disk_is_said_when_it_begins_and_ends)
{
    struct said said = {.failed = 0};
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct hth_device full = HTH_DEVICE_INIT, roomy = HTH_DEVICE_INIT, half = HTH_DEVICE_INIT;
    struct hth_world *w;
    struct swarm_host h = host_init();
    float *x = normals(1, 8 * D);
    struct ask a = {.coord = {0, 1}, .rows = {4, 4}, .parts = 2, .d = D, .x = x, .dy = x, .key = 1};
    struct answer out;
    struct swarm_caller c;

    (void)state;
    wo.log_level = HTH_INFO;
    wo.log_sink = listen_to_saves;
    wo.log_arg = &said;
    w = hth_world_new(1, &wo);
    h.layer_count = 2;
    h.opts.step_rows = 1;
    h.opts.checkpoint_dir = "ckpt";
    h.opts.checkpoint_period_us = 5 * HTH_US_PER_S;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    full.disk_bytes_max = 100;
    hth_node_set_device(h.node, &full);
    ask_wait(w, &c, &h, &a, &out);
    answer_clear(&out);
    assert_int_equal(host_stats(&h).unsaved_since_us, 0);
    hth_world_run_for(w, 20 * HTH_US_PER_S);
    assert_int_equal(said.failed, 1);
    assert_non_null(strstr(said.last, "no space left on the disk"));
    int64_t since_us = host_stats(&h).unsaved_since_us;
    assert_in_range(hth_wall_us(h.env) - since_us, 1, 20 * HTH_US_PER_S);
    hth_world_run_for(w, 25 * 60 * HTH_US_PER_S);
    assert_true(host_stats(&h).checkpoints_failed > 500);
    assert_int_equal(said.failed, 3);
    assert_non_null(strstr(said.last, "not written for 20 minutes"));
    assert_true(host_stats(&h).unsaved_since_us == since_us);
    half.disk_bytes_max = 20000; /* one of two files of 15 kB */
    hth_node_set_device(h.node, &half);
    hth_world_run_for(w, 12 * HTH_US_PER_S);
    assert_int_equal(host_stats(&h).checkpoints_written, 1);
    assert_true(host_stats(&h).unsaved_since_us == since_us);
    assert_int_equal(said.again, 0);
    hth_node_set_device(h.node, &roomy);
    hth_world_run_for(w, 12 * HTH_US_PER_S);
    assert_int_equal(host_stats(&h).checkpoints_written, 2);
    assert_int_equal(host_stats(&h).unsaved_since_us, 0);
    assert_int_equal(said.again, 1);
    assert_int_equal(said.failed, 3);
    hth_aligned_free(x);
    world_end(w, &c);
}

TEST(server_is_freed_while_jobs_run)
{
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct hth_world *w;
    struct swarm_host h = host_init();
    float *x = normals(1, 4 * D);
    struct ask a = {.coord = {0}, .rows = {4}, .parts = 1, .d = D, .x = x};
    struct answer out[6];
    struct swarm_caller c;

    (void)state;
    wo.device.job_overhead_us = 300 * HTH_US_PER_MS;
    w = hth_world_new(1, &wo);
    h.opts.batch_rows_max = 4;
    host_start(&h, w, "host");
    hth_world_run_for(w, HTH_US_PER_S);
    caller_start(&c, w, "caller", NULL);
    for (uint64_t i = 0; i < 6; i++) {
        a.dy = i % 2 == 1 ? x : NULL;
        a.key = i / 4 + 1; /* a repeat waits for the first one */
        ask(&c, &h, &a, &out[i]);
    }
    hth_world_run_for(w, 100 * HTH_US_PER_MS);
    hth_server_free(h.server);
    h.server = NULL;
    for (int i = 0; i < 6; i++) {
        assert_true(hth_world_run_until_true(w, answered, &out[i], 60 * HTH_US_PER_S));
        assert_err(HTH_E_DRAINING, out[i].err);
    }
    hth_aligned_free(x);
    world_end(w, &c);
}

/* The compute lane's queue is full at first: the weights are drawn when it has room, and no expert
 * is lost. */
TEST(full_lane_loses_no_expert)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();

    (void)state;
    h.layer_count = 8;
    hth_world_set_fault(w, "experts.job", 1);
    host_start(&h, w, "host");
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(h.loaded + h.failed, 0);
    assert_true(hth_world_fault_count(w, "experts.job") >= 8);
    hth_world_set_fault(w, "experts.job", 0.5);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(h.loaded, 8);
    assert_int_equal(h.failed, 0);
    host_stop(&h);
    hth_world_free(w);
}
