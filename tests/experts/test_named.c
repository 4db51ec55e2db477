/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_named.c: the client's backwards that name forwards: which rows travel, and what happens when
 * a host does not keep them or the connection breaks.
 */
#include "experts/scene.h"
#include "support/suite.h"

#include "core/mem.h"

/* The connection breaks during a backward: the retry carries the same key and nothing is applied
 * twice. */
static void lose_backward(bool named)
{
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct hth_expert_pair pairs[4];
    float *x = normals(1, 4 * D);
    struct swarm_host like = host_init();
    struct hth_expert_batch *b;
    struct outcome o = {0}, forward = {0};
    struct hth_expert_call call;
    struct hth_tensor tx;
    struct scene s;

    wo.device.job_overhead_us = 300 * HTH_US_PER_MS;
    scene_start(&s, &wo, 1, 1, &like);
    deal_pairs(pairs, 4, 1, 1);
    tx = tensor_of(x, 4);
    call = call_of(&s, &tx, pairs, 4);
    call.keep = named;
    if (named)
        run_call(&s, &call, &forward);
    call.forward = forward.batch;
    call.dy = tx;
    assert_ok(hth_experts_call(s.c.client, &call, on_batch, &o, &b));
    hth_world_run_for(s.w, 250 * HTH_US_PER_MS);
    hth_rpc_disconnect(s.c.rpc, &s.target[0].host);
    assert_true(hth_world_run_until_true(s.w, has_outcome, &o, 120 * HTH_US_PER_S));
    assert_int_equal(hth_expert_batch_verdicts(o.batch)[0], HTH_OK);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), 4);
    assert_int_equal(host_stats(&s.host[0]).rows_backward, 4);
    assert_int_equal(
        host_stats(&s.host[0]).replays_answered + host_stats(&s.host[0]).replays_joined, 1);
    assert_int_equal(host_stats(&s.host[0]).named, named);
    hth_expert_batch_free(forward.batch);
    hth_expert_batch_free(o.batch);
    hth_blob_unref(tx.blob);
    hth_aligned_free(x);
    scene_end(&s);
}

TEST(lost_backward_is_applied_once)
{
    (void)state;
    lose_backward(false);
    lose_backward(true);
}

/* A backward names the rows that its host keeps, and only those. The gradients are the same. */
TEST(backwards_name_kept_rows)
{
    enum { UNITS = 12, K = 2, HOSTS = 3, PER_HOST = 2, N = UNITS * K, BYTES = N * D * 4 };
    static const struct {
        bool keep, old_host, too_late;
        uint32_t left_out; /* pairs that the backward does not have */
        bool named;
        uint32_t retries;
    } cases[] = {
        {.keep = true, .named = true},
        {.keep = false},
        {.keep = true, .old_host = true},
        {.keep = true, .too_late = true, .named = true, .retries = HOSTS},
        {.keep = true, .left_out = 1, .named = true},
    };
    float *x = normals(1, UNITS * D), *dy = normals(2, N * D), got[N * D], want[D];

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct swarm_host like = host_init();
        struct hth_expert_pair pairs[N];
        struct hth_expert_batch_info info;
        struct hth_expert_call call;
        struct hth_tensor tx = tensor_of(x, UNITS), tdy = tensor_of(dy, N);
        struct outcome forward, o;
        uint8_t ok[N];
        uint32_t first_group = 0, n = N - cases[i].left_out, resent = 0;
        uint64_t named = 0;
        struct scene s;
        like.opts.result_age_us = 10 * HTH_US_PER_S;
        if (cases[i].old_host)
            like.opts.keep_bytes_max = 0;
        scene_start(&s, NULL, HOSTS, PER_HOST, &like);
        deal_pairs(pairs, UNITS, K, s.experts);
        call = call_of(&s, &tx, pairs, N);
        call.keep = cases[i].keep;
        run_call(&s, &call, &forward);
        if (cases[i].too_late)
            hth_world_run_for(s.w, 11 * HTH_US_PER_S);
        call.forward = forward.batch;
        call.dy = tdy;
        call.dy.dim[0] = call.pairs_count = n;
        run_call(&s, &call, &o);
        hth_expert_batch_free(forward.batch);
        hth_expert_batch_info(o.batch, &info);
        hth_expert_batch_unpack(o.batch, got, D, ok);
        for (uint32_t p = 0; p < N; p++) /* the host of the last pair has a request of its own */
            first_group += pairs[p].target / PER_HOST == pairs[N - 1].target / PER_HOST;
        if (cases[i].left_out > 0)
            resent = first_group - 1; /* its rows are not those of the forward */
        for (uint32_t h = 0; h < HOSTS; h++)
            named += host_stats(&s.host[h]).named;
        assert_int_equal(info.retries, cases[i].retries);
        assert_int_equal(named, !cases[i].named || cases[i].too_late ? 0
                                : cases[i].left_out > 0              ? HOSTS - 1
                                                                     : HOSTS);
        assert_int_equal(info.bytes_out, !cases[i].named     ? 2 * BYTES
                                         : cases[i].too_late ? 3 * BYTES
                                                             : (n + resent) * D * 4);
        for (uint32_t p = 0; p < n; p++) {
            assert_int_equal(ok[p], 1);
            reference_backward(&s.ref[pairs[p].target], 1, UNITS, x + pairs[p].unit * D, dy + p * D,
                               want);
            assert_memory_equal(got + p * D, want, sizeof(want));
        }
        hth_expert_batch_free(o.batch);
        hth_blob_unref(tx.blob);
        hth_blob_unref(tdy.blob);
        scene_end(&s);
    }
    hth_aligned_free(x);
    hth_aligned_free(dy);
}
