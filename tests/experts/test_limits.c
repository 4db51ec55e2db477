/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_limits.c: the experts' bounds of core/limits.h, each reached and then crossed: those of an
 * expert, a server, a batch, a job, a file and a request of the client.
 */
#include "experts/swarm.h"

#include "core/limits.h"
#include "core/mem.h"
#include "support/suite.h"

#define D 16

/* d * inner is 2^29 or a little less; no weights are made, so this is cheap. */
TEST(weights_of_an_expert_are_bounded)
{
    struct hth_expert_opts o = host_init().expert;
    struct hth_expert *e;

    (void)state;
    o.uid = uid_of(0);
    o.shape = (struct hth_expert_shape){.d = 512, .inner = HTH_EXPERT_PARAMS_MAX / 1024};
    assert_int_equal(hth_kind_ffn.weights(&o.shape) > HTH_EXPERT_PARAMS_MAX, 1);
    assert_err(HTH_E_TOO_LARGE, hth_expert_new(&o, &e));
    o.shape.inner -= 2048;
    assert_int_equal(hth_kind_ffn.weights(&o.shape) <= HTH_EXPERT_PARAMS_MAX, 1);
    assert_ok(hth_expert_new(&o, &e));
    hth_expert_free(e);
}

TEST(experts_of_a_server_are_bounded)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    struct hth_expert_opts o;

    (void)state;
    h.expert.kind = "nop";
    host_start(&h, w, "host");
    o = h.expert;
    for (uint32_t i = 1; i < HTH_SERVER_EXPERTS_MAX; i++) {
        o.uid = uid_of(i);
        assert_ok(hth_server_add(h.server, &o));
    }
    o.uid.name[3] = '1'; /* of another layer */
    assert_err(HTH_E_BUDGET, hth_server_add(h.server, &o));
    assert_int_equal(host_stats(&h).experts, HTH_SERVER_EXPERTS_MAX);
    hth_world_free(w);
}

/* The simulated file has only a length: the loader refuses it without reading its bytes. */
TEST(checkpoints_are_bounded)
{
    static const uint8_t byte;
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    struct hth_expert_opts o = h.expert;
    struct hth_expert *e;

    (void)state;
    hth_world_mount(w, "huge", &byte, HTH_CHECKPOINT_BYTES_MAX + 1);
    host_start(&h, w, "host");
    o.uid = uid_of(1);
    assert_ok(hth_expert_new(&o, &e));
    assert_err(HTH_E_TOO_LARGE, hth_expert_load_file(e, h.env, "huge"));
    hth_expert_free(e);
    hth_world_free(w);
}

/* Sends that many requests of one row for one expert, or (spread) for as many experts, while the
 * only worker is busy with another expert. Returns the server's counters. */
static struct hth_server_stats together(uint32_t count, bool spread)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    struct answer *out = hth_new_array(struct answer, count);
    float *x = normals(1, D);
    struct ask a = {.coord = {0}, .rows = {1}, .parts = 1, .d = D, .x = x};
    struct hth_device slow = HTH_DEVICE_INIT;
    struct hth_server_stats before, after;
    struct answer first;
    struct swarm_caller c[2];

    h.layer_count = spread ? count : 1;
    h.opts.job_flops_min = 1e30;
    host_start(&h, w, "host");
    caller_start(&c[0], w, "caller0", NULL);
    caller_start(&c[1], w, "caller1", NULL);
    hth_world_run_for(w, HTH_US_PER_S);
    slow.job_overhead_us = HTH_US_PER_S;
    hth_node_set_device(h.node, &slow);
    ask(&c[0], &h, &a, &first);
    hth_world_run_for(w, 200 * HTH_US_PER_MS);
    before = host_stats(&h);
    for (uint32_t i = 0; i < count; i++) {
        a.coord[0] = spread ? i : 0;
        ask(&c[i % 2], &h, &a, &out[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        assert_true(hth_world_run_until_true(w, answered, &out[i], 60 * HTH_US_PER_S));
        assert_ok(out[i].err);
        answer_clear(&out[i]);
    }
    assert_ok(first.err);
    answer_clear(&first);
    after = host_stats(&h);
    after.batches -= before.batches;
    after.jobs -= before.jobs;
    assert_int_equal(after.rows_forward, count + 1);
    hth_aligned_free(x);
    hth_free(out);
    caller_stop(&c[0]);
    caller_stop(&c[1]);
    hth_world_free(w);
    return after;
}

TEST(parts_of_a_batch_are_bounded)
{
    (void)state;
    assert_int_equal(together(HTH_SERVER_BATCH_PARTS_MAX, false).batches, 1);
    assert_int_equal(together(HTH_SERVER_BATCH_PARTS_MAX + 1, false).batches, 2);
}

TEST(batches_of_a_job_are_bounded)
{
    struct hth_server_stats s;

    (void)state;
    s = together(HTH_SERVER_JOB_BATCHES_MAX, true);
    assert_int_equal(s.batches, HTH_SERVER_JOB_BATCHES_MAX);
    assert_int_equal(s.jobs, 1);
    s = together(HTH_SERVER_JOB_BATCHES_MAX + 1, true);
    assert_int_equal(s.batches, HTH_SERVER_JOB_BATCHES_MAX + 1);
    assert_int_equal(s.jobs, 2);
}

static void on_batch(void *arg, struct hth_expert_batch *batch)
{
    (void)batch;
    ++*(uint32_t *)arg;
}

static bool is_done(void *arg)
{
    return *(uint32_t *)arg > 0;
}

/* Sends one row of width d to each of that many experts of one host. Returns the number of
 * requests. */
static uint64_t requests_for(uint32_t count, uint32_t d)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    struct hth_expert_target *targets = hth_new_array(struct hth_expert_target, count);
    struct hth_expert_pair *pairs = hth_new_array(struct hth_expert_pair, count);
    struct hth_tensor x = {.dtype = HTH_F32, .ndim = 2, .dim = {1, d}};
    struct hth_expert_call call = {.layer = "ffn0", .ndim = 1};
    struct hth_rpc_target to;
    struct hth_expert_batch *b;
    struct swarm_caller c;
    uint64_t requests;
    uint32_t done = 0;

    h.expert.kind = "nop";
    h.expert.shape = (struct hth_expert_shape){.d = d};
    h.layer_count = count;
    host_start(&h, w, "host");
    hth_world_run_for(w, 5 * HTH_US_PER_S);
    assert_int_equal(h.loaded, count);
    caller_start(&c, w, "caller", NULL);
    to = host_target(&h);
    for (uint32_t i = 0; i < count; i++) {
        targets[i] = (struct hth_expert_target){.coord = {i}, .host = to.peer, .addr = to.addr};
        pairs[i] = (struct hth_expert_pair){0, i};
    }
    x.blob = hth_blob_try_new((size_t)d * sizeof(float));
    assert_non_null(x.blob);
    memset(x.blob->data, 0, x.blob->size);
    call.x = x;
    call.targets = targets;
    call.pairs = pairs;
    call.targets_count = call.pairs_count = count;
    assert_ok(hth_experts_call(c.client, &call, on_batch, &done, &b));
    assert_true(hth_world_run_until_true(w, is_done, &done, 120 * HTH_US_PER_S));
    assert_int_equal(hth_expert_batch_ok_count(b), count);
    hth_expert_batch_free(b);
    requests = host_stats(&h).requests;
    hth_blob_unref(x.blob);
    hth_free(targets);
    hth_free(pairs);
    caller_stop(&c);
    hth_world_free(w);
    return requests;
}

TEST(parts_of_a_call_are_bounded)
{
    (void)state;
    assert_int_equal(requests_for(HTH_EXPERT_CALL_PARTS_MAX, 1), 1);
    assert_int_equal(requests_for(HTH_EXPERT_CALL_PARTS_MAX + 1, 1), 2);
}

TEST(bytes_of_a_call_are_bounded)
{
    enum { ROWS = HTH_EXPERT_CALL_BYTES_MAX / (HTH_EXPERT_D_MAX * sizeof(float)) };

    (void)state;
    assert_int_equal(requests_for(ROWS, HTH_EXPERT_D_MAX), 1);
    assert_int_equal(requests_for(ROWS + 1, HTH_EXPERT_D_MAX), 2);
}
