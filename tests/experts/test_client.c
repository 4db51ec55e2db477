/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client.c: batches over several hosts in a simulated world: the right rows to the right
 * experts, one request per host, and exactly one verdict per pair under all failures of hosts.
 */
#include "experts/scene.h"

#include "core/mem.h"
#include "experts/message.h"
#include "experts/rows.h"
#include "support/suite.h"

/* ---- the rows ------------------------------------------------------------------------------ */

TEST(rows_return_to_their_pairs)
{
    enum { UNITS = 12, K = 3, N = UNITS * K };
    struct hth_expert_pair pairs[N];
    float *x = normals(1, UNITS * D), *dy = normals(2, N * D), out[N * D], want[D];
    struct hth_expert_batch_info info;
    struct swarm_host like = host_init();
    struct hth_expert_call call;
    struct hth_tensor tx, tdy;
    struct outcome o;
    uint8_t ok[N];
    struct scene s;

    (void)state;
    like.opts.step_rows = 1000000;
    scene_start(&s, NULL, 4, 2, &like);
    assert_int_equal(deal_pairs(pairs, UNITS, K, 8), N);
    tx = tensor_of(x, UNITS);
    tdy = tensor_of(dy, N);
    call = call_of(&s, &tx, pairs, N);
    run_call(&s, &call, &o);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), N);
    assert_int_equal(hth_expert_batch_pairs(o.batch), N);
    hth_expert_batch_info(o.batch, &info);
    assert_int_equal(info.requests, 4); /* one per host */
    assert_int_equal(info.hosts, 4);
    assert_int_equal(info.bytes_out, N * D * 4);
    assert_int_equal(info.bytes_in, N * D * 4);
    assert_int_equal(hth_expert_batch_unpack(o.batch, out, D, ok), 0);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(ok[i], 1);
        reference_forward(&s.ref[pairs[i].target], 1, x + pairs[i].unit * D, want);
        assert_memory_equal(out + i * D, want, sizeof(want));
    }
    hth_expert_batch_free(o.batch);
    call.dy = tdy;
    run_call(&s, &call, &o);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), N);
    assert_int_equal(hth_expert_batch_unpack(o.batch, out, D, ok), 0);
    for (uint32_t i = 0; i < N; i++) {
        reference_backward(&s.ref[pairs[i].target], 1, UNITS, x + pairs[i].unit * D, dy + i * D,
                           want);
        assert_memory_equal(out + i * D, want, sizeof(want));
    }
    hth_expert_batch_free(o.batch);
    hth_blob_unref(tx.blob);
    hth_blob_unref(tdy.blob);
    hth_aligned_free(x);
    hth_aligned_free(dy);
    scene_end(&s);
}

TEST(sequences_are_sent_whole)
{
    enum { T = 4, UNITS = 3, N = 6 };
    struct hth_expert_pair pairs[N];
    float *x = normals(1, UNITS * T * D), out[N * (T * D + 5)], want[T * D];
    struct swarm_host like = host_init();
    struct hth_expert_call call;
    struct hth_tensor tx;
    struct outcome o;
    uint8_t ok[N];
    struct scene s;

    (void)state;
    like.expert.kind = "transformer";
    like.expert.shape.heads = 2;
    like.expert.shape.block_rows = T;
    scene_start(&s, NULL, 2, 2, &like);
    deal_pairs(pairs, UNITS, 2, 4);
    tx = tensor_of(x, UNITS * T);
    call = call_of(&s, &tx, pairs, N);
    call.block_rows = T;
    run_call(&s, &call, &o);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), N);
    hth_expert_batch_unpack(o.batch, out, T * D + 5, ok);
    for (uint32_t i = 0; i < N; i++) {
        reference_forward(&s.ref[pairs[i].target], T, x + pairs[i].unit * T * D, want);
        assert_memory_equal(out + i * (T * D + 5), want, sizeof(want));
    }
    hth_expert_batch_free(o.batch);
    call.block_rows = 1; /* the host refuses half a sequence */
    run_call(&s, &call, &o);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), 0);
    assert_int_equal(hth_expert_batch_verdicts(o.batch)[0], HTH_E_BAD_SHAPE);
    hth_expert_batch_free(o.batch);
    hth_blob_unref(tx.blob);
    hth_aligned_free(x);
    scene_end(&s);
}

TEST(narrow_wire_types_stay_within_their_error)
{
    enum { UNITS = 6, N = 12 };
    static const struct {
        enum hth_dtype type;
        double most; /* error over the largest number, for the roundings of both directions */
    } wires[] = {{HTH_F16, 0.002}, {HTH_BF16, 0.015}, {HTH_I8, 0.02}};
    struct hth_expert_pair pairs[N];
    float *x = normals(1, UNITS * D), out[N * D], want[D];
    struct hth_expert_batch_info info;
    struct hth_expert_call call;
    struct hth_tensor tx;
    struct outcome o;
    uint8_t ok[N];
    struct scene s;

    (void)state;
    scene_start(&s, NULL, 2, 2, NULL);
    deal_pairs(pairs, UNITS, 2, 4);
    tx = tensor_of(x, UNITS);
    for (size_t w = 0; w < HTH_ARRAY_LEN(wires); w++) {
        call = call_of(&s, &tx, pairs, N);
        call.wire = wires[w].type;
        run_call(&s, &call, &o);
        assert_int_equal(hth_expert_batch_unpack(o.batch, out, D, ok), 0);
        for (uint32_t i = 0; i < N; i++) {
            float top = 0;
            assert_int_equal(ok[i], 1);
            reference_forward(&s.ref[pairs[i].target], 1, x + pairs[i].unit * D, want);
            for (int j = 0; j < D; j++)
                top = fmaxf(top, fabsf(want[j]));
            for (int j = 0; j < D; j++)
                assert_close(out[i * D + j], want[j], 0, wires[w].most * top);
        }
        hth_expert_batch_info(o.batch, &info);
        assert_int_equal(info.bytes_out, N * hth_rows_bytes(wires[w].type, D));
        assert_int_equal(info.bytes_in, info.bytes_out);
        hth_expert_batch_free(o.batch);
    }
    hth_blob_unref(tx.blob);
    hth_aligned_free(x);
    scene_end(&s);
}

/* An expert's weights overflow: its rows are refused and read as zeros. */
TEST(infinite_answers_are_refused)
{
    struct hth_expert_pair pairs[2] = {{0, 0}, {0, 1}};
    float *x = normals(1, D), out[2 * D];
    struct hth_expert_call call;
    struct hth_tensor tx;
    struct outcome o;
    uint8_t ok[2];
    struct scene s;
    struct hth_params *p;

    (void)state;
    scene_start(&s, NULL, 1, 2, NULL);
    p = hth_expert_params((struct hth_expert *)(uintptr_t)host_expert(&s.host[0], 1));
    hth_params_flat(p, HTH_PART_VALUE)[0] = NAN;
    hth_params_touched(p);
    tx = tensor_of(x, 1);
    call = call_of(&s, &tx, pairs, 2);
    run_call(&s, &call, &o);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), 2);
    assert_int_equal(hth_expert_batch_unpack(o.batch, out, D, ok), 1);
    assert_int_equal(ok[0], 1);
    assert_int_equal(ok[1], 0);
    for (int j = 0; j < D; j++)
        assert_close(out[D + j], 0, 0, 0);
    hth_expert_batch_free(o.batch);
    hth_blob_unref(tx.blob);
    hth_aligned_free(x);
    scene_end(&s);
}

struct judged {
    uint32_t parts, bad, hosts, hosts_bad;
    enum hth_err err;
    double gain;
};

static void on_part(void *arg, const struct hth_peer_id *host, const uint32_t *coord,
                    enum hth_err err, double gain)
{
    struct judged *j = arg;

    (void)host;
    j->parts++;
    j->gain = fmax(j->gain, gain);
    if (err == HTH_OK)
        return;
    j->bad++;
    j->err = err;
    assert_int_equal(coord[0], 1); /* the second expert */
}

static void on_judged(void *arg, const struct hth_peer_id *host, enum hth_err err, int64_t rtt_us)
{
    struct judged *j = arg;

    (void)host;
    assert_true(rtt_us > 0);
    j->hosts++;
    j->hosts_bad += err != HTH_OK;
}

/* Sets the output bias of the second of four experts to `value` and judges its answers. */
static struct judged answers_of(float value, double gain_max, uint32_t *refused)
{
    enum { N = 4 };
    struct hth_expert_pair pairs[N] = {{0, 0}, {0, 1}, {0, 2}, {0, 3}};
    float *x = normals(1, D), out[N * D];
    struct judged j = {0};
    struct hth_expert_call call;
    struct hth_params *p;
    struct hth_tensor tx;
    struct outcome o;
    uint8_t ok[N];
    struct scene s;

    scene_start(&s, NULL, 1, N, NULL);
    p = hth_expert_params((struct hth_expert *)(uintptr_t)host_expert(&s.host[0], 1));
    for (int i = 0; i < D; i++) /* the last tensor is b2 [D] */
        hth_params_flat(p, HTH_PART_VALUE)[hth_params_flat_len(p) - 1 - (size_t)i] = value;
    hth_params_touched(p);
    tx = tensor_of(x, 1);
    call = call_of(&s, &tx, pairs, N);
    call.gain_max = gain_max;
    run_call(&s, &call, &o);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), N);
    *refused = hth_expert_batch_unpack(o.batch, out, D, ok);
    assert_int_equal(*refused, !ok[1]);
    assert_true(ok[0] && ok[2] && ok[3]);
    for (int i = 0; i < D && !ok[1]; i++)
        assert_close(out[D + i], 0, 0, 0);
    assert_true(hth_expert_batch_gain(o.batch) < 10);
    hth_expert_batch_judge(o.batch, on_judged, on_part, &j);
    hth_expert_batch_judge(o.batch, on_judged, on_part, &j); /* a second call reports nothing */
    assert_int_equal(j.parts, N);
    assert_int_equal(j.hosts, 1);
    assert_int_equal(j.hosts_bad, 0); /* most of its parts are good */
    assert_int_equal(j.bad, *refused);
    hth_expert_batch_free(o.batch);
    hth_blob_unref(tx.blob);
    hth_aligned_free(x);
    scene_end(&s);
    return j;
}

/* Finite numbers beyond the usual gain are refused; beyond 1e15 always. */
TEST(gains_above_the_limit_are_refused)
{
    uint32_t refused;

    (void)state;
    (void)answers_of(10, 0, &refused);
    assert_int_equal(refused, 0);
    assert_true(answers_of(80, 0, &refused).gain > 50 && refused == 0);
    assert_int_equal(answers_of(200, 0, &refused).err, HTH_E_RANGE);
    assert_int_equal(answers_of(200, 300, &refused).err, HTH_OK);
    assert_int_equal(answers_of(1e14f, 1e30, &refused).err, HTH_OK);
    assert_int_equal(answers_of(2e15f, 1e30, &refused).err, HTH_E_RANGE);
    assert_int_equal(answers_of(3e38f, 1e30, &refused).err, HTH_E_RANGE);
    assert_int_equal(answers_of(NAN, 0, &refused).err, HTH_E_NOT_FINITE);
}

/* A single host's answers, with no usual gain known, do not set the limit by themselves. */
TEST(single_host_does_not_set_the_usual_gain)
{
    static const struct {
        float bias;
        bool good;
    } first[] = {{800, true}, {2000, false}, {1e9f, false}};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(first); i++) {
        struct hth_expert_pair pair = {0, 0};
        float *x = normals(1, D), out[D];
        struct hth_expert_call call;
        struct hth_params *p;
        struct hth_tensor tx;
        struct outcome o;
        struct scene s;
        uint8_t ok;

        scene_start(&s, NULL, 1, 1, NULL);
        p = hth_expert_params((struct hth_expert *)(uintptr_t)host_expert(&s.host[0], 0));
        for (int j = 0; j < D; j++)
            hth_params_flat(p, HTH_PART_VALUE)[hth_params_flat_len(p) - 1 - (size_t)j] =
                first[i].bias;
        hth_params_touched(p);
        tx = tensor_of(x, 1);
        call = call_of(&s, &tx, &pair, 1);
        run_call(&s, &call, &o);
        assert_int_equal(hth_expert_batch_unpack(o.batch, out, D, &ok), !first[i].good);
        assert_int_equal(ok, first[i].good);
        hth_expert_batch_free(o.batch);
        hth_blob_unref(tx.blob);
        hth_aligned_free(x);
        scene_end(&s);
    }
}

/* Rows of x or dy that a host must refuse are no fault of the host: judging reports no error. */
TEST(own_bad_rows_are_not_reported)
{
    static const struct {
        enum hth_dtype wire;
        float x, dy;
    } bad[] = {{HTH_F32, 2e15f, 1},  {HTH_F32, 1, NAN},    {HTH_F16, 70000, 1},
               {HTH_F16, 1, -65520}, {HTH_BF16, 2e15f, 1}, {HTH_I8, 1, 2e15f}};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        struct hth_expert_pair pair = {0, 0};
        float *x = normals(1, D), *dy = normals(2, D), out[D];
        struct hth_expert_call call;
        struct hth_tensor tx, tdy;
        struct judged j = {0};
        struct outcome o;
        struct scene s;
        uint8_t ok;

        dy[3] = bad[i].dy;
        x[3] = bad[i].x > 1 ? bad[i].x : x[3];
        scene_start(&s, NULL, 1, 1, NULL);
        tx = tensor_of(x, 1);
        tdy = tensor_of(dy, 1);
        call = call_of(&s, &tx, &pair, 1);
        call.dy = tdy;
        call.wire = bad[i].wire;
        run_call(&s, &call, &o);
        assert_int_equal(hth_expert_batch_ok_count(o.batch), 0);
        assert_int_equal(hth_expert_batch_unpack(o.batch, out, D, &ok), 0);
        hth_expert_batch_judge(o.batch, on_judged, on_part, &j);
        assert_int_equal(j.parts, 0);
        assert_int_equal(j.hosts, 1);
        assert_int_equal(j.hosts_bad, 0);
        hth_expert_batch_free(o.batch);
        hth_blob_unref(tx.blob);
        hth_blob_unref(tdy.blob);
        hth_aligned_free(x);
        hth_aligned_free(dy);
        scene_end(&s);
    }
}

/* ---- failures ------------------------------------------------------------------------------ */

TEST(dead_host_fails_only_its_pairs)
{
    enum { UNITS = 16, K = 4, N = UNITS * K };
    struct hth_expert_pair pairs[N];
    float *x = normals(1, UNITS * D), out[N * D], want[D];
    struct hth_expert_call call;
    struct hth_tensor tx;
    struct outcome o;
    uint32_t lost = 0;
    uint8_t ok[N];
    struct scene s;

    (void)state;
    for (int silent = 0; silent < 2; silent++) {
        scene_start(&s, NULL, 4, 2, NULL);
        deal_pairs(pairs, UNITS, K, 8);
        hth_node_crash(s.host[2].node, silent ? HTH_CRASH_SILENT : HTH_CRASH_RESET);
        hth_world_run_for(s.w, 100 * HTH_US_PER_MS);
        tx = tensor_of(x, UNITS);
        call = call_of(&s, &tx, pairs, N);
        call.k_min = 1;
        call.grace_us = 300 * HTH_US_PER_MS;
        run_call(&s, &call, &o);
        hth_expert_batch_unpack(o.batch, out, D, ok);
        for (uint32_t i = 0; i < N; i++) {
            bool dead = pairs[i].target / 2 == 2;
            assert_int_equal(ok[i], dead ? 0 : 1);
            assert_true(!dead || hth_expert_batch_verdicts(o.batch)[i] != HTH_OK);
            lost += dead ? 1 : 0;
            if (!dead) {
                reference_forward(&s.ref[pairs[i].target], 1, x + pairs[i].unit * D, want);
                assert_memory_equal(out + i * D, want, sizeof(want));
            }
        }
        assert_true(lost > 0);
        assert_int_equal(s.c.host_ok, 3);
        assert_int_equal(s.c.host_failed, 1);
        hth_expert_batch_free(o.batch);
        hth_blob_unref(tx.blob);
        scene_end(&s);
    }
    hth_aligned_free(x);
}

/* One slow host: with k_min the batch ends a grace period after the others; without k_min it ends
 * with the slow host's answer. */
TEST(batch_ends_a_grace_period_after_k_min)
{
    struct hth_expert_pair pairs[8];
    float *x = normals(1, 4 * D);
    struct hth_link slow = HTH_LINK_INIT;
    struct hth_expert_call call;
    struct hth_tensor tx;
    struct outcome o;
    int64_t start;
    struct scene s;

    (void)state;
    scene_start(&s, NULL, 2, 1, NULL);
    slow.latency_us = 400 * HTH_US_PER_MS;
    hth_world_link(s.w, s.host[1].node, s.c.node, &slow);
    deal_pairs(pairs, 4, 2, 2);
    tx = tensor_of(x, 4);
    call = call_of(&s, &tx, pairs, 8);
    run_call(&s, &call, &o); /* also connects both */
    assert_int_equal(hth_expert_batch_ok_count(o.batch), 8);
    hth_expert_batch_free(o.batch);
    start = hth_world_now_us(s.w);
    run_call(&s, &call, &o);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), 8);
    assert_true(hth_world_now_us(s.w) - start >= 800 * HTH_US_PER_MS);
    hth_expert_batch_free(o.batch);
    call.k_min = 1;
    call.grace_us = 100 * HTH_US_PER_MS;
    start = hth_world_now_us(s.w);
    run_call(&s, &call, &o);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), 4);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(hth_expert_batch_verdicts(o.batch)[i],
                         pairs[i].target == 0 ? HTH_OK : HTH_E_TIMEOUT);
    assert_true(hth_world_now_us(s.w) - start >= 100 * HTH_US_PER_MS);
    assert_true(hth_world_now_us(s.w) - start <= 150 * HTH_US_PER_MS);
    hth_expert_batch_free(o.batch);
    call.k_min = 2; /* only the slow host's answers reach it: the batch waits */
    run_call(&s, &call, &o);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), 8);
    hth_expert_batch_free(o.batch);
    call.timeout_us = 200 * HTH_US_PER_MS;
    start = hth_world_now_us(s.w);
    run_call(&s, &call, &o);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), 4);
    assert_int_equal(hth_world_now_us(s.w) - start, 200 * HTH_US_PER_MS);
    hth_expert_batch_free(o.batch);
    hth_blob_unref(tx.blob);
    hth_aligned_free(x);
    scene_end(&s);
}

TEST(replicas_answer_for_lost_and_busy_hosts)
{
    enum { UNITS = 8, K = 2, N = UNITS * K };
    struct hth_expert_pair pairs[N];
    float *x = normals(1, UNITS * D), out[N * D], want[D];
    struct swarm_host like = host_init(), mirror;
    struct hth_expert_batch_info info;
    struct hth_expert_call call;
    struct hth_peer_id peer;
    struct hth_addr addr;
    struct hth_tensor tx;
    struct outcome o;
    uint8_t ok[N];
    struct scene s;

    (void)state;
    scene_start(&s, NULL, 2, 2, &like);
    mirror = like;
    mirror.layer_count = 4;
    host_start(&mirror, s.w, "mirror");
    for (uint32_t i = 0; i < 4; i++) {
        s.target[i].has_replica = true;
        s.target[i].replica_host = host_target(&mirror).peer;
        s.target[i].replica_addr = host_target(&mirror).addr;
    }
    hth_node_crash(s.host[0].node, HTH_CRASH_RESET);
    hth_world_run_for(s.w, 100 * HTH_US_PER_MS);
    deal_pairs(pairs, UNITS, K, 4);
    tx = tensor_of(x, UNITS);
    call = call_of(&s, &tx, pairs, N);
    run_call(&s, &call, &o);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), N);
    hth_expert_batch_unpack(o.batch, out, D, ok);
    for (uint32_t i = 0; i < N; i++) {
        reference_forward(&s.ref[pairs[i].target], 1, x + pairs[i].unit * D, want);
        assert_memory_equal(out + i * D, want, sizeof(want));
        hth_expert_batch_host(o.batch, pairs[i].target, &peer, &addr);
        assert_true(hth_peer_id_eq(&peer, pairs[i].target < 2 ? &s.target[0].replica_host
                                                              : &s.target[2].host));
    }
    hth_expert_batch_info(o.batch, &info);
    assert_int_equal(info.retries, 1);
    hth_expert_batch_free(o.batch);
    hth_blob_unref(tx.blob);
    hth_aligned_free(x);
    scene_end(&s);
}

/* A host refuses with BUSY: the client retries after the time in the refusal, and every pair is
 * answered. */
TEST(busy_host_is_retried_at_its_time)
{
    enum { CALLS = 12 };
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct hth_expert_pair pairs[64];
    float *x = normals(1, 64 * D);
    struct swarm_host like = host_init();
    struct hth_expert_batch *b;
    struct hth_expert_batch_info info;
    struct outcome o[CALLS] = {0};
    struct hth_expert_call call;
    struct hth_tensor tx;
    uint32_t retries = 0;
    struct scene s;

    (void)state;
    wo.device.flops_per_s = 1e6;
    like.opts.queue_us_max = 400 * HTH_US_PER_MS;
    like.opts.batch_rows_max = 64;
    scene_start(&s, &wo, 1, 1, &like);
    deal_pairs(pairs, 64, 1, 1);
    tx = tensor_of(x, 64);
    call = call_of(&s, &tx, pairs, 64);
    call.dy = tx;
    run_call(&s, &call, &o[0]);
    hth_expert_batch_free(o[0].batch);
    o[0].count = 0;
    for (int i = 0; i < CALLS; i++)
        assert_ok(hth_experts_call(s.c.client, &call, on_batch, &o[i], &b));
    for (int i = 0; i < CALLS; i++) {
        assert_true(hth_world_run_until_true(s.w, has_outcome, &o[i], 120 * HTH_US_PER_S));
        assert_int_equal(hth_expert_batch_verdicts(o[i].batch)[0], HTH_OK);
        assert_int_equal(hth_expert_batch_ok_count(o[i].batch), 64);
        hth_expert_batch_info(o[i].batch, &info);
        retries += info.retries;
        hth_expert_batch_free(o[i].batch);
    }
    assert_true(retries > 0);
    assert_int_equal(host_stats(&s.host[0]).rows_backward, (CALLS + 1) * 64);
    hth_blob_unref(tx.blob);
    hth_aligned_free(x);
    scene_end(&s);
}

TEST(freed_batches_call_nothing)
{
    struct hth_expert_pair pairs[8], spread[4] = {{3, 0}, {1, 0}, {0, 1}, {2, 1}};
    float *x = normals(1, 4 * D);
    struct outcome o = {0};
    struct hth_expert_batch *b[3];
    struct hth_expert_call call;
    struct hth_tensor tx;
    struct scene s;

    (void)state;
    scene_start(&s, NULL, 2, 1, NULL);
    deal_pairs(pairs, 4, 2, 2);
    tx = tensor_of(x, 4);
    call = call_of(&s, &tx, pairs, 8);
    assert_ok(hth_experts_call(s.c.client, &call, on_batch, &o, &b[0]));
    call.pairs = spread;
    call.pairs_count = 4;
    assert_ok(hth_experts_call(s.c.client, &call, on_batch, &o, &b[1]));
    hth_expert_batch_free(b[1]); /* its rows are being gathered */
    hth_world_run_for(s.w, 15 * HTH_US_PER_MS);
    hth_expert_batch_free(b[0]); /* its requests are sent */
    assert_ok(hth_experts_call(s.c.client, &call, on_batch, &o, &b[2]));
    hth_world_run_for(s.w, 5 * HTH_US_PER_MS);
    hth_expert_client_free(s.c.client);
    s.c.client = NULL;
    hth_world_run_for(s.w, 10 * HTH_US_PER_S);
    assert_int_equal(o.count, 0);
    hth_blob_unref(tx.blob);
    hth_aligned_free(x);
    scene_end(&s);
}

TEST(invalid_calls_are_refused)
{
    struct hth_expert_pair pairs[2] = {{0, 0}, {0, 0}};
    float *x = normals(1, 4 * D);
    struct hth_expert_call good, c;
    struct hth_expert_batch *b;
    struct outcome o = {0};
    struct hth_tensor tx;
    struct scene s;

    (void)state;
    scene_start(&s, NULL, 1, 1, NULL);
    tx = tensor_of(x, 4);
    good = call_of(&s, &tx, pairs, 2);
    assert_err(HTH_E_DUPLICATE, hth_experts_call(s.c.client, &good, on_batch, &o, &b));
    good.pairs_count = 1;
#define REFUSED(want, change)                                                                      \
    c = good;                                                                                      \
    change;                                                                                        \
    assert_err(want, hth_experts_call(s.c.client, &c, on_batch, &o, &b))
    REFUSED(HTH_E_RANGE, c.ndim = 4);
    REFUSED(HTH_E_RANGE, c.layer = "");
    REFUSED(HTH_E_RANGE, c.pairs_count = 0);
    REFUSED(HTH_E_RANGE, c.targets_count = 0);
    REFUSED(HTH_E_RANGE, c.pairs = &((struct hth_expert_pair){4, 0}));
    REFUSED(HTH_E_TOO_LARGE, c.pairs_count = HTH_EXPERT_PAIRS_MAX + 1);
    REFUSED(HTH_E_TOO_LARGE, c.block_rows = HTH_EXPERT_BLOCK_ROWS_MAX + 1);
    REFUSED(HTH_E_BAD_SHAPE, c.block_rows = 3);
    REFUSED(HTH_E_BAD_SHAPE, c.x.dim[0] = 5);
    REFUSED(HTH_E_BAD_SHAPE, c.x.dtype = HTH_I32);
    REFUSED(HTH_E_BAD_SHAPE, c.wire = HTH_U8);
    REFUSED(HTH_E_BAD_SHAPE, c.dy = tx); /* dy must have one row per pair */
    hth_world_run_for(s.w, HTH_US_PER_S);
    assert_int_equal(o.count, 0);
    hth_blob_unref(tx.blob);
    hth_aligned_free(x);
    scene_end(&s);
}

/* A batch with more rows than one request takes becomes several requests. */
TEST(large_batch_becomes_several_requests)
{
    enum { N = HTH_EXPERT_CALL_ROWS_MAX + 5 };
    struct hth_expert_pair *pairs = hth_new_array(struct hth_expert_pair, N);
    float *x = normals(1, (size_t)N * D);
    struct hth_expert_batch_info info;
    struct swarm_host like = host_init();
    struct hth_expert_call call;
    struct hth_tensor tx;
    struct outcome o;
    struct scene s;

    (void)state;
    like.expert.kind = "nop";
    scene_start(&s, NULL, 1, 1, &like);
    deal_pairs(pairs, N, 1, 1);
    tx = tensor_of(x, N);
    call = call_of(&s, &tx, pairs, N);
    run_call(&s, &call, &o);
    hth_expert_batch_info(o.batch, &info);
    assert_int_equal(info.requests, 2);
    assert_int_equal(hth_expert_batch_ok_count(o.batch), N);
    hth_expert_batch_free(o.batch);
    hth_blob_unref(tx.blob);
    hth_aligned_free(x);
    hth_free(pairs);
    scene_end(&s);
}

struct told {
    uint32_t count, total, calls;
    enum hth_err err;
    char last[HTH_UID_TEXT_MAX];
};

static void on_info(void *arg, enum hth_err err, const struct hth_expert_info *infos,
                    uint32_t count, uint32_t total)
{
    struct told *t = arg;

    t->calls++;
    t->err = err;
    t->count = count;
    t->total = total;
    if (count > 0)
        snprintf(t->last, sizeof(t->last), "%s", infos[count - 1].uid);
}

TEST(info_lists_all_experts)
{
    struct swarm_host like = host_init();
    struct hth_rpc_target to;
    struct told t = {0};
    struct scene s;

    (void)state;
    like.expert.kind = "nop";
    scene_start(&s, NULL, 1, 1, &like);
    for (uint32_t i = 1; i < HTH_EXPERT_INFO_PAGE_MAX + 10; i++) {
        struct hth_expert_opts o = like.expert;
        o.uid = uid_of(i);
        assert_ok(hth_server_add(s.host[0].server, &o));
    }
    to = host_target(&s.host[0]);
    assert_ok(hth_expert_client_info(s.c.client, &to, 0, HTH_US_PER_S, on_info, &t));
    hth_world_run_for(s.w, HTH_US_PER_S);
    assert_int_equal(t.calls, 1);
    assert_ok(t.err);
    assert_int_equal(t.count, HTH_EXPERT_INFO_PAGE_MAX);
    assert_int_equal(t.total, HTH_EXPERT_INFO_PAGE_MAX + 10);
    assert_ok(hth_expert_client_info(s.c.client, &to, t.count, HTH_US_PER_S, on_info, &t));
    hth_world_run_for(s.w, HTH_US_PER_S);
    assert_int_equal(t.count, 10);
    assert_string_equal(t.last, "ffn0.265");
    assert_ok(hth_expert_client_info(s.c.client, &to, UINT32_MAX, HTH_US_PER_S, on_info, &t));
    hth_world_run_for(s.w, HTH_US_PER_S);
    assert_int_equal(t.count, 0);
    assert_ok(hth_expert_client_info(s.c.client, &to, 0, HTH_US_PER_S, on_info, &t));
    scene_end(&s); /* with an INFO call open */
}

/* ---- the property -------------------------------------------------------------------------- */

struct storm {
    struct scene *s;
    struct hth_rng rng;
    uint32_t live, started, finished;
    uint32_t ok, failed;
    struct hth_tensor tx[40], tdy[40];
    struct hth_expert_pair pairs[40][48];
    uint32_t n[40];
    uint8_t backward[40];
};

struct one {
    struct storm *st;
    uint32_t i;
    bool done;
};

static void on_storm_batch(void *arg, struct hth_expert_batch *batch)
{
    struct one *one = arg;
    struct storm *st = one->st;
    static float out[48 * D];
    uint8_t ok[48];
    const enum hth_err *v = hth_expert_batch_verdicts(batch);

    assert_false(one->done); /* exactly once */
    one->done = true;
    st->finished++;
    assert_int_equal(hth_expert_batch_pairs(batch), st->n[one->i]);
    hth_expert_batch_unpack(batch, out, D, ok);
    for (uint32_t p = 0; p < st->n[one->i]; p++) {
        float want[D];
        assert_true((v[p] == HTH_OK) == (ok[p] == 1));
        st->ok += ok[p];
        st->failed += 1 - ok[p];
        if (!ok[p] || st->backward[one->i])
            continue;
        /* No expert steps here, so the forward's bits are known. */
        reference_forward(&st->s->ref[st->pairs[one->i][p].target], 1,
                          (const float *)(const void *)st->tx[one->i].blob->data +
                              st->pairs[one->i][p].unit * D,
                          want);
        assert_memory_equal(out + p * D, want, sizeof(want));
    }
    hth_expert_batch_free(batch);
}

/* Under loss, jitter, short reads and host crashes every batch ends once, every pair has one
 * verdict, and every answered row is right. */
static void storm(uint64_t seed)
{
    enum { CALLS = 40, UNITS = 12, K = 4 };
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct swarm_host like = host_init();
    struct storm *st = hth_new(struct storm);
    struct one one[CALLS];
    struct hth_expert_batch *b;
    float *x = normals(seed, UNITS * D), *dy = normals(seed + 1, UNITS * K * D);
    struct scene s;

    wo.link.jitter_us = 20000;
    wo.link.jitter = HTH_JITTER_EXPONENTIAL;
    wo.link.loss = 0.02;
    wo.chaos.short_read = 0.3;
    wo.chaos.short_write = 0.3;
    wo.device.compute_workers = 2;
    like.opts.step_rows = UINT64_C(1) << 40;
    like.opts.step_age_us = INT64_C(1) << 50;
    scene_start(&s, &wo, 4, 3, &like);
    st->s = &s;
    hth_rng_init(&st->rng, seed);
    for (uint32_t i = 0; i < CALLS; i++) {
        struct hth_expert_call call;
        st->tx[i] = tensor_of(x, UNITS);
        st->n[i] = deal_pairs(st->pairs[i], UNITS, K, 12);
        st->backward[i] = hth_rng_chance(&st->rng, 0.5);
        call = call_of(&s, &st->tx[i], st->pairs[i], st->n[i]);
        call.k_min = (uint32_t)hth_rng_below(&st->rng, 4);
        call.grace_us = 200 * HTH_US_PER_MS;
        call.timeout_us = 8 * HTH_US_PER_S;
        if (st->backward[i]) {
            st->tdy[i] = tensor_of(dy, st->n[i]);
            call.dy = st->tdy[i];
        }
        one[i] = (struct one){.st = st, .i = i};
        assert_ok(hth_experts_call(s.c.client, &call, on_storm_batch, &one[i], &b));
        st->started++;
        hth_world_run_for(s.w, (int64_t)hth_rng_below(&st->rng, 300) * HTH_US_PER_MS);
        if (hth_rng_chance(&st->rng, 0.3)) {
            struct swarm_host *h = &s.host[hth_rng_below(&st->rng, 4)];
            if (hth_node_is_up(h->node))
                hth_node_crash(h->node,
                               hth_rng_chance(&st->rng, 0.5) ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
            else
                hth_node_restart(h->node);
        }
    }
    hth_world_run_for(s.w, 30 * HTH_US_PER_S);
    assert_int_equal(st->finished, CALLS);
    assert_true(st->ok > 0 && st->failed > 0);
    for (uint32_t i = 0; i < CALLS; i++) {
        hth_blob_unref(st->tx[i].blob);
        hth_blob_unref(st->tdy[i].blob);
    }
    hth_aligned_free(x);
    hth_aligned_free(dy);
    scene_end(&s);
    hth_free(st);
}

TEST(every_pair_has_one_verdict)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++)
        storm(seed);
}
