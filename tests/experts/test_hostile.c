/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hostile.c: Byzantine callers: they try to read memory of other requests, to leave work that
 * never ends, to spoil an expert's steps, to have another peer's backward applied twice. And hosts
 * that refuse every request.
 */
#include "experts/swarm.h"
#include "support/suite.h"

#include "core/mem.h"

#define D 16

static bool is_drained(void *arg)
{
    return ((struct swarm_host *)arg)->drained;
}

static void on_drained(void *arg)
{
    ((struct swarm_host *)arg)->drained = true;
}

/* The rows of a refused part return as zeros, not as older contents of the memory. */
TEST(refused_rows_are_zeros)
{
    enum { ROWS = 20000 }; /* above a quarter of a MiB: such blocks are reused at once */
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    float *x = normals(1, ROWS * D);
    struct ask a = {.coord = {0}, .rows = {ROWS}, .parts = 1, .d = D, .x = x};
    struct answer out;
    struct swarm_caller c;

    (void)state;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    for (int i = 0; i < 3; i++) { /* leaves other rows in memory */
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        answer_clear(&out);
    }
    a = (struct ask){.coord = {9, 0, 8}, .rows = {ROWS - 3, 1, 2}, .parts = 3, .d = D, .x = x};
    ask_wait(w, &c, &h, &a, &out);
    assert_ok(out.err);
    assert_int_equal(out.status[0], HTH_E_NO_SUCH_EXPERT);
    assert_ok(out.status[1]);
    for (size_t i = 0; i < ROWS * D; i++)
        if (i / D != ROWS - 3 && out.rows[i] != 0)
            fail_msg("element %zu of a refused part is %g", i, (double)out.rows[i]);
    assert_true(out.rows[(ROWS - 3) * D] != 0);
    answer_clear(&out);
    hth_aligned_free(x);
    caller_stop(&c);
    hth_world_free(w);
}

/* A forward is cut into batches; its caller cancels while a step runs between two of them. */
TEST(cancel_between_batches_leaves_nothing)
{
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct hth_world *w;
    struct swarm_host h = host_init();
    float *x = normals(1, 8 * D);
    struct ask back = {.coord = {0}, .rows = {4}, .parts = 1, .d = D, .x = x, .dy = x, .key = 1};
    struct ask ahead = {.coord = {0}, .rows = {8}, .parts = 1, .d = D, .x = x};
    struct answer out[2];
    struct hth_rpc_call *call;
    struct swarm_caller c;

    (void)state;
    wo.device.job_overhead_us = 300 * HTH_US_PER_MS;
    wo.device.compute_workers = 2;
    w = hth_world_new(1, &wo);
    h.opts.batch_rows_max = 4;
    h.opts.job_flops_min = 0;
    h.opts.step_rows = 1;
    host_start(&h, w, "host");
    hth_world_run_for(w, HTH_US_PER_S);
    caller_start(&c, w, "caller", NULL);
    ask(&c, &h, &back, &out[0]);
    hth_world_run_for(w, 150 * HTH_US_PER_MS);
    call = ask(&c, &h, &ahead, &out[1]);
    while (host_stats(&h).rows_forward == 0)
        hth_world_run_for(w, 10 * HTH_US_PER_MS);
    assert_int_equal(host_stats(&h).rows_forward, 4);
    assert_int_equal(host_stats(&h).parts_waiting, 1);
    assert_int_equal(host_stats(&h).steps, 0); /* the step runs */
    hth_rpc_cancel(call);
    hth_world_run_for(w, 3 * HTH_US_PER_S);
    assert_int_equal(host_stats(&h).rows_forward, 4);
    assert_int_equal(host_stats(&h).bytes_held, 0);
    assert_int_equal(host_stats(&h).parts_waiting, 0);
    hth_server_drain(h.server, on_drained, &h);
    assert_true(hth_world_run_until_true(w, is_drained, &h, 60 * HTH_US_PER_S));
    answer_clear(&out[0]);
    hth_aligned_free(x);
    caller_stop(&c);
    hth_world_free(w);
}

/* Finite numbers that would make the gradient infinite are refused; the honest caller's backward
 * beside them is stepped. */
TEST(huge_numbers_are_refused)
{
    static const float huge[] = {3e38f, -1e30f, 1.1e15f, NAN, INFINITY};
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    float *x = normals(1, 4 * D), *bad = normals(2, 4 * D);
    struct ask good = {.coord = {0}, .rows = {4}, .parts = 1, .d = D, .x = x, .dy = x, .key = 100};
    struct answer out;
    struct swarm_caller c, evil;

    (void)state;
    h.opts.step_rows = 4;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    caller_start(&evil, w, "evil", NULL);
    for (uint32_t i = 0; i < 4 * HTH_ARRAY_LEN(huge); i++) {
        struct ask a = {.coord = {0}, .rows = {3}, .parts = 1, .d = D, .key = 1 + i};
        float kept = bad[7], number = huge[i / 4];
        a.dtype = i % 4 < 2 ? HTH_F32 : HTH_I8; /* I8 can't hold 2^127 */
        bad[7] = number;
        a.x = i % 2 == 0 ? bad : x;
        a.dy = i % 2 == 0 ? x : bad;
        ask_wait(w, &evil, &h, &a, &out);
        assert_ok(out.err);
        bool is_number = isfinite(number) && (a.dtype == HTH_F32 || fabsf(number) < 1e38f);
        assert_int_equal(out.status[0], is_number ? HTH_E_RANGE : HTH_E_NOT_FINITE);
        answer_clear(&out);
        bad[7] = kept;
    }
    for (size_t i = 0; i < 3 * D; i++)
        bad[i] = HTH_EXPERT_NUMBER_MAX; /* the largest that is accepted */
    for (uint32_t i = 0; i < 3; i++) {
        struct ask a = {.coord = {0}, .rows = {3}, .parts = 1, .d = D, .key = 50 + i};
        a.x = i == 1 ? x : bad;
        a.dy = i == 2 ? x : bad;
        ask_wait(w, &evil, &h, &a, &out);
        assert_ok(out.err);
        assert_ok(out.status[0]);
        answer_clear(&out);
        good.key++;
        ask_wait(w, &c, &h, &good, &out);
        assert_ok(out.err);
        assert_ok(out.status[0]);
        answer_clear(&out);
    }
    hth_world_run_for(w, 5 * HTH_US_PER_S);
    assert_int_equal(host_stats(&h).steps_not_finite, 0);
    assert_true(host_stats(&h).steps >= 3);
    hth_aligned_free(x);
    hth_aligned_free(bad);
    caller_stop(&c);
    caller_stop(&evil);
    hth_world_free(w);
}

/* One peer's answers push out another's; the other's repeat is refused, not applied twice. */
TEST(evicted_answer_is_not_applied_twice)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    float *x = normals(1, 256 * D);
    struct ask mine = {.coord = {0}, .rows = {4}, .parts = 1, .d = D, .x = x, .dy = x, .key = 1};
    struct ask flood = {.coord = {0}, .rows = {256}, .parts = 1, .d = D, .x = x, .dy = x};
    struct answer out;
    struct swarm_caller c, evil;
    uint64_t rows;

    (void)state;
    h.opts.result_bytes_max = 64 << 10;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    caller_start(&evil, w, "evil", NULL);
    ask_wait(w, &c, &h, &mine, &out);
    assert_ok(out.err);
    answer_clear(&out);
    for (flood.key = 1; flood.key <= 20; flood.key++) {
        ask_wait(w, &evil, &h, &flood, &out);
        assert_ok(out.err);
        answer_clear(&out);
    }
    rows = host_stats(&h).rows_backward;
    ask_wait(w, &c, &h, &mine, &out);
    assert_int_equal(out.err, HTH_E_REPLAYED);
    assert_int_equal(host_stats(&h).rows_backward, rows);
    answer_clear(&out);
    flood.key = 20; /* the newest answer is kept */
    ask_wait(w, &evil, &h, &flood, &out);
    assert_ok(out.err);
    assert_int_equal(out.tensors, 1);
    assert_int_equal(host_stats(&h).rows_backward, rows);
    answer_clear(&out);
    hth_world_run_for(w, 61 * HTH_US_PER_S); /* keys age out like answers */
    ask_wait(w, &c, &h, &mine, &out);
    assert_ok(out.err);
    assert_int_equal(host_stats(&h).rows_backward, rows + 4);
    answer_clear(&out);
    hth_aligned_free(x);
    caller_stop(&c);
    caller_stop(&evil);
    hth_world_free(w);
}

struct told {
    struct hth_expert_batch *batch;
    uint32_t parts, hosts, hosts_bad;
    enum hth_err err;
};

static void on_batch(void *arg, struct hth_expert_batch *batch)
{
    ((struct told *)arg)->batch = batch;
}

static bool has_batch(void *arg)
{
    return ((struct told *)arg)->batch != NULL;
}

static void on_part(void *arg, const struct hth_peer_id *host, const uint32_t *coord,
                    enum hth_err err, double gain)
{
    struct told *t = arg;

    (void)host;
    (void)coord;
    (void)gain;
    t->parts++;
    t->err = err;
}

static void on_judged(void *arg, const struct hth_peer_id *host, enum hth_err err, int64_t rtt_us)
{
    struct told *t = arg;

    (void)host;
    (void)rtt_us;
    t->hosts++;
    t->hosts_bad += err != HTH_OK;
}

static void put_off(void *arg, struct hth_rpc_request *req)
{
    const enum hth_err *word = arg;

    hth_rpc_refuse(req, *word, 0, NULL);
}

/* Calls expert `coord` of the host and judges what comes. */
static struct told judged_call(struct hth_world *w, struct swarm_host *h, uint32_t coord)
{
    struct hth_rpc_target to = host_target(h);
    struct hth_expert_target target = {.coord = {coord}, .host = to.peer, .addr = to.addr};
    struct hth_expert_pair pair = {0, 0};
    struct hth_expert_call call = {.layer = "ffn0",
                                   .ndim = 1,
                                   .targets = &target,
                                   .targets_count = 1,
                                   .pairs = &pair,
                                   .pairs_count = 1};
    struct hth_expert_batch *b;
    struct told t = {0};
    struct swarm_caller c;

    caller_start(&c, w, "caller", NULL);
    call.x = (struct hth_tensor){.dtype = HTH_F32, .ndim = 2, .dim = {1, D}};
    call.x.blob = hth_blob_try_new(D * sizeof(float));
    memset(call.x.blob->data, 0, D * sizeof(float));
    assert_ok(hth_experts_call(c.client, &call, on_batch, &t, &b));
    assert_true(hth_world_run_until_true(w, has_batch, &t, 120 * HTH_US_PER_S));
    assert_int_equal(hth_expert_batch_ok_count(b), 0);
    hth_expert_batch_judge(b, on_judged, on_part, &t);
    assert_int_equal(t.parts, 1);
    hth_expert_batch_free(b);
    hth_blob_unref(call.x.blob);
    caller_stop(&c);
    return t;
}

/* The host refuses with BUSY, or with errors that breakers take as faults of this machine or
 * ignore. Judging reports every refused part, so that the replica is asked first in the end. */
TEST(every_refusal_is_reported_busy)
{
    static enum hth_err words[] = {HTH_E_BUSY,       HTH_E_AGAIN,     HTH_E_CANCELED, HTH_E_BUDGET,
                                   HTH_E_QUEUE_FULL, HTH_E_NO_MEMORY, HTH_E_DEVICE,   HTH_E_BUG};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(words); i++) {
        struct hth_world *w = hth_world_new(1, NULL);
        struct swarm_host h = host_init();

        host_start(&h, w, "host");
        hth_rpc_serve(h.rpc, HTH_METHOD_EXPERT_FORWARD, put_off, &words[i]);
        struct told t = judged_call(w, &h, 0);
        assert_err(HTH_E_BUSY, t.err);
        assert_int_equal(t.hosts, 0); /* the host did not answer */
        hth_world_free(w);
    }
}

/* A host whose record is older than its experts refuses each part; judging names the parts and does
 * not blame the host. */
TEST(missing_experts_are_no_fault_of_the_host)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();

    (void)state;
    host_start(&h, w, "host");
    struct told t = judged_call(w, &h, 1);
    assert_err(HTH_E_NO_SUCH_EXPERT, t.err);
    assert_int_equal(t.hosts, 1);
    assert_int_equal(t.hosts_bad, 0);
    hth_world_free(w);
}
