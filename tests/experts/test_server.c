/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_server.c: the server alone, in a simulated world: results, batches, refusals and repeated
 * backwards. test_keep.c has steps, ends and checkpoints.
 */
#include "experts/swarm.h"

#include "core/mem.h"
#include "experts/message.h"
#include "experts/rows.h"
#include "support/suite.h"

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

/* ---- results ------------------------------------------------------------------------------- */

TEST(answers_equal_the_kernels)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, 7 * D), *dy = normals(2, 7 * D), y[7 * D], dx[7 * D];
    struct ask a = {.coord = {0, 1}, .rows = {3, 4}, .parts = 2, .d = D, .x = x};
    struct hth_expert_opts second;
    struct reference r0, r1;
    struct answer out;
    struct swarm_caller c;

    (void)state;
    h.layer_count = 2;
    h.opts.step_rows = 1;
    host_start(&h, w, "host");
    assert_int_equal(h.loaded, 2);
    caller_start(&c, w, "caller", NULL);
    h.expert.uid = uid_of(0);
    second = h.expert;
    second.uid = uid_of(1);
    reference_start(&r0, &h.expert);
    reference_start(&r1, &second);
    for (uint64_t round = 0; round < 3; round++) {
        reference_forward(&r0, 3, x, y);
        reference_forward(&r1, 4, x + 3 * D, y + 3 * D);
        a.dy = NULL;
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        assert_memory_equal(out.rows, y, sizeof(y));
        answer_clear(&out);
        reference_backward(&r0, 3, 7, x, dy, dx);
        reference_backward(&r1, 4, 7, x + 3 * D, dy + 3 * D, dx + 3 * D);
        assert_ok(hth_expert_step(r0.expert, r0.ex));
        assert_ok(hth_expert_step(r1.expert, r1.ex));
        a.dy = dy;
        a.key = 1 + round;
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        assert_memory_equal(out.rows, dx, sizeof(dx));
        answer_clear(&out);
    }
    hth_world_run_for(w, HTH_US_PER_S);
    assert_true(experts_equal(host_expert(&h, 0), r0.expert));
    assert_true(experts_equal(host_expert(&h, 1), r1.expert));
    assert_int_equal(host_stats(&h).steps, 6);
    assert_int_equal(host_stats(&h).rows_forward, 21);
    assert_int_equal(host_stats(&h).rows_backward, 21);
    assert_int_equal(host_stats(&h).bytes_held, 0);
    reference_stop(&r0);
    reference_stop(&r1);
    hth_aligned_free(x);
    hth_aligned_free(dy);
    world_end(w, &c);
}

/* Forty callers at once: rows are computed in merged batches, some with bad parts, and every row
 * has the bits it has alone. */
TEST(bits_do_not_depend_on_the_batch)
{
    enum { N = 40 };
    struct hth_world *w = world_new(2);
    struct swarm_host h = host_init();
    float *x[N], y[5 * D];
    struct answer out[N];
    struct reference r;
    struct swarm_caller c;

    (void)state;
    h.opts.batch_rows_max = 64;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    h.expert.uid = uid_of(0);
    reference_start(&r, &h.expert);
    for (uint32_t i = 0; i < N; i++) {
        struct ask a = {.coord = {0}, .rows = {1 + i % 5}, .parts = 1, .d = D};
        x[i] = normals(i, 5 * D);
        if (i % 7 == 3)
            x[i][2] = i % 2 == 0 ? NAN : -INFINITY;
        a.x = x[i];
        ask(&c, &h, &a, &out[i]);
    }
    for (uint32_t i = 0; i < N; i++)
        assert_true(hth_world_run_until_true(w, answered, &out[i], HTH_US_PER_S * 60));
    for (uint32_t i = 0; i < N; i++) {
        assert_ok(out[i].err);
        if (i % 7 == 3) {
            assert_int_equal(out[i].status[0], HTH_E_NOT_FINITE);
            assert_int_equal(out[i].tensors, 0);
        } else {
            reference_forward(&r, 1 + i % 5, x[i], y);
            assert_memory_equal(out[i].rows, y, (1 + i % 5) * D * sizeof(float));
        }
        answer_clear(&out[i]);
        hth_aligned_free(x[i]);
    }
    assert_true(host_stats(&h).batches < N / 2);
    assert_int_equal(host_stats(&h).parts_not_finite, 6);
    reference_stop(&r);
    world_end(w, &c);
}

/* A large forward is cut over idle workers, and a request beyond batch_rows_max into batches: same
 * bits. */
TEST(large_forwards_are_cut)
{
    enum { ROWS = 1000 };
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct hth_world *w;
    struct swarm_host h = host_init();
    float *x = normals(1, ROWS * D), *y = normals(2, ROWS * D);
    struct ask a = {.coord = {0}, .rows = {ROWS}, .parts = 1, .d = D, .x = x};
    struct reference r;
    struct answer out;
    struct swarm_caller c;

    (void)state;
    wo.device.compute_workers = 3;
    w = hth_world_new(1, &wo);
    h.opts.split_flops = 1000;
    h.opts.batch_rows_max = 400;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    h.expert.uid = uid_of(0);
    reference_start(&r, &h.expert);
    reference_forward(&r, ROWS, x, y);
    ask_wait(w, &c, &h, &a, &out);
    assert_ok(out.err);
    assert_memory_equal(out.rows, y, ROWS * D * sizeof(float));
    assert_true(host_stats(&h).batches >= 4);
    answer_clear(&out);
    a.dy = x;
    a.key = 1;
    ask_wait(w, &c, &h, &a, &out); /* a backward is never cut */
    assert_ok(out.err);
    reference_backward(&r, ROWS, ROWS, x, x, y);
    assert_memory_equal(out.rows, y, ROWS * D * sizeof(float));
    answer_clear(&out);
    reference_stop(&r);
    hth_aligned_free(x);
    hth_aligned_free(y);
    world_end(w, &c);
}

TEST(narrow_types_stay_within_their_error)
{
    static const enum hth_dtype types[] = {HTH_BF16, HTH_F16};
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, 6 * D), y[6 * D];
    struct ask a = {.coord = {0}, .rows = {6}, .parts = 1, .d = D, .x = x};
    struct reference r;
    struct answer out;
    struct swarm_caller c;

    (void)state;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    h.expert.uid = uid_of(0);
    reference_start(&r, &h.expert);
    reference_forward(&r, 6, x, y);
    for (size_t i = 0; i < HTH_ARRAY_LEN(types); i++) {
        const uint16_t *half;
        a.dtype = types[i];
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        assert_int_equal(out.tensor.dtype, types[i]);
        half = (const uint16_t *)(const void *)out.rows;
        for (int j = 0; j < 6 * D; j++) {
            union {
                uint32_t u;
                float f;
            } bits = {.u = (uint32_t)half[j] << 16};
            if (types[i] == HTH_BF16)
                assert_close(bits.f, y[j], 0.02, 0.03);
        }
        answer_clear(&out);
    }
    reference_stop(&r);
    hth_aligned_free(x);
    world_end(w, &c);
}

/* Rows of int8 through forward, backward and a repeat: close to fp32, and the repeat gets the same
 * bytes. */
TEST(int8_rows_and_repeats_are_right)
{
    enum { ROWS = 6 };
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, ROWS * D), *dy = normals(2, ROWS * D), want[2][ROWS * D], got[ROWS * D];
    struct ask a = {.coord = {0}, .rows = {ROWS}, .parts = 1, .d = D, .x = x, .dtype = HTH_I8};
    size_t bytes = ROWS * hth_rows_bytes(HTH_I8, D);
    struct answer out, again;
    struct reference r;
    struct swarm_caller c;

    (void)state;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    h.expert.uid = uid_of(0);
    reference_start(&r, &h.expert);
    reference_forward(&r, ROWS, x, want[0]);
    reference_backward(&r, ROWS, ROWS, x, dy, want[1]);
    for (uint32_t pass = 0; pass < 2; pass++) {
        a.dy = pass == 1 ? dy : NULL;
        a.key = pass;
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        assert_int_equal(out.tensor.dtype, HTH_I8);
        assert_int_equal(out.blob->size - out.tensor.offset, bytes);
        hth_rows_to_f32(out.rows, HTH_I8, ROWS, D, got);
        for (int i = 0; i < ROWS * D; i++)
            assert_close(got[i], want[pass][i], 0.02, 0.06);
        if (pass == 1) {
            ask_wait(w, &c, &h, &a, &again);
            assert_ok(again.err);
            assert_memory_equal(again.rows, out.rows, bytes);
            answer_clear(&again);
        }
        answer_clear(&out);
    }
    assert_int_equal(host_stats(&h).rows_backward, ROWS);
    reference_stop(&r);
    hth_aligned_free(x);
    hth_aligned_free(dy);
    world_end(w, &c);
}

TEST(nop_returns_the_requests_bytes)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, 5 * D), *dy = normals(2, 5 * D);
    struct ask a = {.coord = {0, 1}, .rows = {2, 3}, .parts = 2, .d = D, .x = x};
    struct answer out;
    struct swarm_caller c;

    (void)state;
    h.expert.kind = "nop";
    h.layer_count = 2;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    x[3] = NAN; /* no kernel reads it */
    ask_wait(w, &c, &h, &a, &out);
    assert_ok(out.err);
    assert_memory_equal(out.rows, x, 5 * D * sizeof(float));
    answer_clear(&out);
    a.dy = dy;
    a.key = 1;
    ask_wait(w, &c, &h, &a, &out);
    assert_memory_equal(out.rows, dy, 5 * D * sizeof(float));
    answer_clear(&out);
    assert_int_equal(host_stats(&h).batches, 0);
    a = (struct ask){.coord = {0, 7}, .rows = {1, 1}, .parts = 2, .d = D, .x = dy};
    ask_wait(w, &c, &h, &a, &out); /* beside a missing expert the request goes through the pools */
    assert_int_equal(out.status[0], HTH_OK);
    assert_int_equal(out.status[1], HTH_E_NO_SUCH_EXPERT);
    assert_memory_equal(out.rows, dy, D * sizeof(float));
    answer_clear(&out);
    hth_aligned_free(x);
    hth_aligned_free(dy);
    world_end(w, &c);
}

/* ---- refusals ------------------------------------------------------------------------------ */

TEST(parts_have_their_own_verdicts)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, 5 * D), y[D];
    struct ask a = {.coord = {0, 9, 1, 0}, .rows = {1, 1, 1, 1}, .parts = 4, .d = D, .x = x};
    struct reference r;
    struct answer out;
    struct swarm_caller c;

    (void)state;
    h.layer_count = 2;
    h.opts.grad_norm_max = 100;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    h.expert.uid = uid_of(0);
    reference_start(&r, &h.expert);
    x[2 * D + 5] = NAN;
    ask_wait(w, &c, &h, &a, &out);
    assert_ok(out.err);
    assert_int_equal(out.status[0], HTH_OK);
    assert_int_equal(out.status[1], HTH_E_NO_SUCH_EXPERT);
    assert_int_equal(out.status[2], HTH_E_NOT_FINITE);
    assert_int_equal(out.status[3], HTH_OK);
    reference_forward(&r, 1, x + 3 * D, y);
    assert_memory_equal(out.rows + 3 * D, y, sizeof(y));
    answer_clear(&out);
    a.parts = 1;
    a.dy = x + 3 * D;
    x[3 * D] = 101;
    a.key = 1;
    ask_wait(w, &c, &h, &a, &out);
    assert_int_equal(out.status[0], HTH_E_NORM);
    answer_clear(&out);
    a.d = D / 2;
    a.dy = NULL;
    ask_wait(w, &c, &h, &a, &out);
    assert_int_equal(out.status[0], HTH_E_BAD_SHAPE);
    answer_clear(&out);
    assert_int_equal(host_stats(&h).parts_no_expert, 1);
    assert_int_equal(host_stats(&h).parts_norm, 1);
    reference_stop(&r);
    hth_aligned_free(x);
    world_end(w, &c);
}

/* The limit holds for M dy, which is added to a step, for any M that a sender claims, and for each
 * row alone. */
TEST(norm_limit_holds_for_each_row_of_m_dy)
{
    static const struct {
        uint32_t rows, microbatch;
        float last; /* one number of the last row's dy; the other rows have norm 1 / M */
        enum hth_err want;
    } cases[] = {
        {1, 1, 10, HTH_OK},           {1, 1, 10.01f, HTH_E_NORM},
        {1, 64, 10 / 64.0f, HTH_OK},  {1, 64, 0.157f, HTH_E_NORM},
        {1, 900, 1, HTH_E_NORM},      {64, 64, 10 / 64.0f, HTH_OK},
        {64, 64, 0.157f, HTH_E_NORM}, {64, 1, 10.01f, HTH_E_NORM},
        {1, 1000, 0.01f, HTH_OK},     {1, 1001, 0.01f, HTH_E_TOO_LARGE},
    };
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, 64 * D), *dy = normals(2, 64 * D);
    struct answer out;
    struct swarm_caller c;

    (void)state;
    h.opts.grad_norm_max = 10;
    h.opts.microbatch_rows_max = 1000;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    for (uint32_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct ask a = {.coord = {0},
                        .rows = {cases[i].rows},
                        .parts = 1,
                        .d = D,
                        .x = x,
                        .dy = dy,
                        .key = i + 1,
                        .microbatch = cases[i].microbatch};
        memset(dy, 0, 64 * D * sizeof(float));
        for (uint32_t r = 0; r < cases[i].rows; r++)
            dy[r * D + 3] = 1.0f / (float)cases[i].microbatch;
        dy[(cases[i].rows - 1) * D + 3] = cases[i].last;
        ask_wait(w, &c, &h, &a, &out);
        assert_err(cases[i].want, out.err != HTH_OK ? out.err : out.status[0]);
        answer_clear(&out);
    }
    hth_aligned_free(x);
    hth_aligned_free(dy);
    world_end(w, &c);
}

static enum hth_err raw_call(struct hth_world *w, struct swarm_caller *c,
                             const struct swarm_host *h, const struct hth_rpc_call_opts *opts)
{
    struct hth_rpc_target to = host_target(h);
    struct hth_rpc_call_opts o = *opts;
    struct answer out = {.parts = 1};
    enum hth_err err;

    o.timeout_us = HTH_US_PER_S;
    assert_ok(hth_rpc_call(c->rpc, &to, &o, on_answer, &out, NULL));
    assert_true(hth_world_run_until_true(w, answered, &out, 60 * HTH_US_PER_S));
    err = out.err;
    answer_clear(&out);
    return err;
}

struct hostile {
    struct hth_expert_msg work;
    uint64_t rows, cols;
    size_t tensors;
    enum hth_dtype dtype;
    bool backward;
    uint64_t key;
    enum hth_err want;
};

static enum hth_err hostile_call(struct hth_world *w, struct swarm_caller *c,
                                 const struct swarm_host *h, const struct hostile *k)
{
    struct hth_tensor t[2] = {{.dtype = k->dtype, .ndim = 2, .dim = {k->rows, k->cols}}};
    struct hth_rpc_call_opts o = {.method = k->backward ? HTH_METHOD_EXPERT_BACKWARD
                                                        : HTH_METHOD_EXPERT_FORWARD,
                                  .idem = {.lo = k->key}};
    uint8_t *payload;
    uint64_t bytes;
    enum hth_err err;

    assert_ok(hth_tensor_bytes(&t[0], &bytes));
    t[0].blob = hth_blob_try_new(bytes);
    assert_non_null(t[0].blob);
    memset(t[0].blob->data, 0, t[0].blob->size);
    t[1] = t[0];
    assert_ok(hth_expert_msg_pack(&k->work, &payload, &o.body.payload_len));
    o.body.payload = payload;
    o.body.tensors = t;
    o.body.tensor_count = k->tensors;
    err = raw_call(w, c, h, &o);
    hth_free(payload);
    hth_blob_unref(t[0].blob);
    return err;
}

TEST(malformed_requests_are_refused)
{
    enum { LONG_ROWS = HTH_EXPERT_REQUEST_FLOATS_MAX / HTH_EXPERT_D_MAX };
    enum { LONG_BYTES = HTH_EXPERT_D_MAX + HTH_EXPERT_D_MAX / 32 };
    static const uint32_t long_rows[2] = {LONG_ROWS + 1, LONG_ROWS};
    static const uint32_t coord[3] = {0, 0, 0}, far[1] = {HTH_GRID_DIM_MAX};
    static const uint32_t one[3] = {1, 1, 1}, zero[1] = {0}, many[2] = {UINT32_MAX, UINT32_MAX};
    static const struct hth_expert_msg good = {
        .layer = "ffn0", .ndim = 1, .parts = 1, .coord = coord, .rows = one};
    struct hostile cases[] = {
        {good, 1, D, 1, HTH_F32, false, 0, HTH_OK},
        {good, 1, D, 0, HTH_F32, false, 0, HTH_E_BAD_SHAPE},
        {good, 1, D, 2, HTH_F32, false, 0, HTH_E_BAD_SHAPE},
        {good, 2, D, 1, HTH_F32, false, 0, HTH_E_BAD_SHAPE},
        {good, 1, D, 1, HTH_I32, false, 0, HTH_E_BAD_SHAPE},
        {good, 1, HTH_EXPERT_D_MAX + 1, 1, HTH_F32, false, 0, HTH_E_BAD_SHAPE},
        {good, 1, D, 1, HTH_F32, true, 1, HTH_E_BAD_SHAPE},
        {good, 1, D, 2, HTH_F32, true, 1, HTH_E_RANGE}, /* no rows_in_microbatch */
        {good, 1, D, 2, HTH_F32, true, 0, HTH_E_MALFORMED},
        {good, 1, D, 1, HTH_F32, false, 0, HTH_E_MALFORMED},
        {good, 1, D, 1, HTH_F32, false, 0, HTH_E_MALFORMED},
        {good, 1, D, 1, HTH_F32, false, 0, HTH_E_RANGE},
        {good, 1, D, 1, HTH_F32, false, 0, HTH_E_RANGE},
        {good, 1, D, 1, HTH_F32, false, 0, HTH_E_RANGE},
        {good, 1, D, 1, HTH_F32, false, 0, HTH_E_RANGE},
        {good, 1, D, 1, HTH_F32, false, 0, HTH_E_TOO_LARGE},
        {good, 1, D, 2, HTH_F32, true, 2, HTH_E_TOO_LARGE},
        /* int8: a scale without codes; one row beyond the limit of floats; the largest that fits */
        {good, 1, 67, 1, HTH_I8, false, 0, HTH_E_BAD_SHAPE},
        {good, LONG_ROWS + 1, LONG_BYTES, 1, HTH_I8, false, 0, HTH_E_TOO_LARGE},
        {good, LONG_ROWS, LONG_BYTES, 1, HTH_I8, false, 0, HTH_OK},
    };
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    struct swarm_caller c;

    (void)state;
    cases[8].work.rows_in_microbatch = 1;
    cases[9].work.layer = "";
    cases[10].work.layer = "a.b";
    cases[11].work.coord = far;
    cases[12].work.rows = zero;
    cases[13].work.ndim = 4;
    cases[14].work.parts = 0;
    cases[15].work.parts = 2;
    cases[15].work.rows = many;
    cases[16].work.rows_in_microbatch = HTH_EXPERT_MICROBATCH_ROWS_MAX + 1;
    cases[13].work.coord = (const uint32_t[4]){0};
    cases[18].work.rows = &long_rows[0];
    cases[19].work.rows = &long_rows[1];
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        enum hth_err err = hostile_call(w, &c, &h, &cases[i]);
        if (err != cases[i].want)
            fail_msg("case %zu: %s, not %s", i, hth_err_name(err), hth_err_name(cases[i].want));
    }
    assert_int_equal(host_stats(&h).refused_bad, HTH_ARRAY_LEN(cases) - 2);
    world_end(w, &c);
}

TEST(part_and_row_limits_hold)
{
    struct hth_expert_msg work = {.layer = "f", .ndim = 1, .parts = HTH_EXPERT_PARTS_MAX + 1}, out;
    uint32_t *ones = hth_new_array(uint32_t, HTH_EXPERT_PARTS_MAX + 1);
    uint8_t *payload;
    size_t len;

    (void)state;
    for (uint32_t i = 0; i <= HTH_EXPERT_PARTS_MAX; i++)
        ones[i] = 1;
    work.coord = work.rows = ones;
    assert_ok(hth_expert_msg_pack(&work, &payload, &len));
    assert_err(HTH_E_TOO_LARGE, hth_expert_msg_open(payload, len, 1u << 20, &out));
    hth_free(payload);
    work.parts--;
    assert_ok(hth_expert_msg_pack(&work, &payload, &len));
    assert_err(HTH_E_TOO_LARGE, hth_expert_msg_open(payload, len, HTH_EXPERT_PARTS_MAX - 1, &out));
    assert_ok(hth_expert_msg_open(payload, len, HTH_EXPERT_PARTS_MAX, &out));
    assert_int_equal(out.rows_total, HTH_EXPERT_PARTS_MAX);
    hth_expert_msg_close(&out);
    hth_free(payload);
    hth_free(ones);
}

/* A slow host with a queue admits the work it can do in time and refuses the rest with a time for
 * the retry. */
TEST(long_queue_refuses_busy)
{
    enum { N = 30 };
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct hth_world *w;
    struct swarm_host h = host_init();
    float *x = normals(1, 64 * D);
    struct ask a = {.coord = {0}, .rows = {64}, .parts = 1, .d = D, .x = x};
    struct answer out[N];
    struct swarm_caller c;
    uint32_t busy = 0, ok = 0;

    (void)state;
    wo.device.flops_per_s = 1e6; /* 64 rows take 131 ms */
    w = hth_world_new(1, &wo);
    h.opts.queue_us_max = HTH_US_PER_S;
    h.opts.batch_rows_max = 64;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    ask_wait(w, &c, &h, &a, &out[0]);
    assert_ok(out[0].err);
    answer_clear(&out[0]);
    for (int i = 0; i < N; i++)
        ask(&c, &h, &a, &out[i]);
    for (int i = 0; i < N; i++) {
        assert_true(hth_world_run_until_true(w, answered, &out[i], 60 * HTH_US_PER_S));
        busy += out[i].err == HTH_E_BUSY ? 1 : 0;
        ok += out[i].err == HTH_OK ? 1 : 0;
        assert_true(out[i].err != HTH_E_BUSY || out[i].retry_after_us >= HTH_US_PER_MS);
        answer_clear(&out[i]);
    }
    assert_int_equal(busy + ok, N);
    if (ok < 6 || ok > 9)
        fail_msg("%u requests were admitted", ok);
    assert_int_equal(host_stats(&h).refused_busy, busy);
    a.timeout_us = 50 * HTH_US_PER_MS; /* alone it is admitted, and expires at its deadline */
    ask_wait(w, &c, &h, &a, &out[0]);
    assert_err(HTH_E_TIMEOUT, out[0].err);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(host_stats(&h).refused_expired + host_stats(&h).refused_canceled, 1);
    assert_int_equal(host_stats(&h).bytes_held, 0);
    hth_aligned_free(x);
    world_end(w, &c);
}

TEST(held_bytes_refuse_busy)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, 64 * D);
    struct ask a = {.coord = {0}, .rows = {64}, .parts = 1, .d = D, .x = x};
    struct answer out;
    struct swarm_caller c;

    (void)state;
    h.opts.queue_bytes_max = 2 * 64 * D * 4 - 1;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    ask_wait(w, &c, &h, &a, &out);
    assert_err(HTH_E_BUSY, out.err);
    answer_clear(&out);
    a.rows[0] = 63;
    ask_wait(w, &c, &h, &a, &out);
    assert_ok(out.err);
    answer_clear(&out);
    hth_aligned_free(x);
    world_end(w, &c);
}

/* ---- backward, once ------------------------------------------------------------------------ */

TEST(backward_is_applied_once)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, 4 * D), *dy = normals(2, 4 * D), dx[4 * D];
    struct ask a = {.coord = {0}, .rows = {4}, .parts = 1, .d = D, .x = x, .dy = dy, .key = 77};
    struct answer first, again, late;
    struct reference r;
    struct swarm_caller c;

    (void)state;
    h.opts.step_rows = 1;
    h.opts.result_age_us = 10 * HTH_US_PER_S;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    h.expert.uid = uid_of(0);
    reference_start(&r, &h.expert);
    reference_backward(&r, 4, 4, x, dy, dx);
    assert_ok(hth_expert_step(r.expert, r.ex));
    ask(&c, &h, &a, &first); /* two at once: the second waits for the first */
    ask_wait(w, &c, &h, &a, &again);
    assert_true(hth_world_run_until_true(w, answered, &first, 60 * HTH_US_PER_S));
    assert_ok(first.err);
    assert_ok(again.err);
    assert_memory_equal(first.rows, dx, sizeof(dx));
    assert_memory_equal(again.rows, dx, sizeof(dx));
    answer_clear(&again);
    hth_rpc_disconnect(c.rpc, &hth_node_env(h.node)->self);
    ask_wait(w, &c, &h, &a, &late); /* over another connection, after the step */
    assert_ok(late.err);
    assert_memory_equal(late.rows, dx, sizeof(dx));
    answer_clear(&late);
    assert_true(experts_equal(host_expert(&h, 0), r.expert));
    assert_int_equal(host_stats(&h).replays_joined, 1);
    assert_int_equal(host_stats(&h).replays_answered, 1);
    assert_int_equal(host_stats(&h).rows_backward, 4);
    a.rows[0] = 3; /* the same key for another request */
    ask_wait(w, &c, &h, &a, &late);
    assert_err(HTH_E_REPLAYED, late.err);
    a.rows[0] = 4;
    a.dtype = HTH_BF16; /* or for another wire type */
    ask_wait(w, &c, &h, &a, &late);
    assert_err(HTH_E_REPLAYED, late.err);
    a.dtype = HTH_F32;
    hth_world_run_for(w, 11 * HTH_US_PER_S); /* dropped by age */
    ask_wait(w, &c, &h, &a, &late);
    assert_ok(late.err);
    assert_int_equal(host_stats(&h).rows_backward, 8);
    answer_clear(&late);
    answer_clear(&first);
    reference_stop(&r);
    hth_aligned_free(x);
    hth_aligned_free(dy);
    world_end(w, &c);
}

/* Old answers make room for new ones; their keys stay, and their repeats are never applied
 * again. */
TEST(answers_are_kept_within_bounds)
{
    enum { ROWS = 256 };
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, ROWS * D);
    struct ask a = {.coord = {0}, .rows = {ROWS}, .parts = 1, .d = D, .x = x, .dy = x};
    struct answer out;
    struct swarm_caller c;

    (void)state;
    h.opts.result_bytes_max = 20 * 1000 + 3 * ROWS * D * 4;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    for (a.key = 1; a.key <= 20; a.key++) {
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        answer_clear(&out);
    }
    a.key = 20;
    ask_wait(w, &c, &h, &a, &out);
    assert_ok(out.err);
    answer_clear(&out);
    assert_int_equal(host_stats(&h).replays_answered, 1);
    a.key = 1;
    ask_wait(w, &c, &h, &a, &out);
    assert_err(HTH_E_REPLAYED, out.err);
    assert_int_equal(host_stats(&h).rows_backward, 20 * ROWS);
    hth_aligned_free(x);
    world_end(w, &c);
}

/* Kept answers never take the room that new requests need. */
TEST(kept_answers_leave_room)
{
    enum { ROWS = 256, BYTES = ROWS * D * 4 };
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, ROWS * D);
    struct ask a = {.coord = {0}, .rows = {ROWS}, .parts = 1, .d = D, .x = x, .dy = x};
    struct hth_budget budget;
    struct answer out;
    struct swarm_caller c;

    (void)state;
    hth_budget_init(&budget, 8 * BYTES, NULL);
    h.budget = &budget;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    for (a.key = 1; a.key <= 30; a.key++) {
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        assert_ok(out.status[0]);
        answer_clear(&out);
    }
    assert_true(hth_budget_used(&budget) <= 2 * BYTES);
    a.key = 30;
    ask_wait(w, &c, &h, &a, &out);
    assert_ok(out.err); /* the newest answer is kept */
    answer_clear(&out);
    a.key = 1;
    ask_wait(w, &c, &h, &a, &out);
    assert_err(HTH_E_REPLAYED, out.err);
    assert_int_equal(host_stats(&h).rows_backward, 30 * ROWS);
    hth_aligned_free(x);
    world_end(w, &c);
}

/* Beyond the limit of waiting repeats more are refused as BUSY, and all are answered in the end. */
TEST(waiting_repeats_are_bounded)
{
    enum { N = HTH_SERVER_WAITERS_MAX + 5 };
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct hth_world *w;
    struct swarm_host h = host_init();
    float *x = normals(1, 4 * D);
    struct ask a = {.coord = {0}, .rows = {4}, .parts = 1, .d = D, .x = x, .dy = x, .key = 3};
    struct answer out[N];
    struct swarm_caller c;
    uint32_t ok = 0, busy = 0;

    (void)state;
    wo.device.job_overhead_us = 500 * HTH_US_PER_MS;
    w = hth_world_new(1, &wo);
    host_start(&h, w, "host");
    hth_world_run_for(w, HTH_US_PER_S);
    caller_start(&c, w, "caller", NULL);
    for (int i = 0; i < N; i++)
        ask(&c, &h, &a, &out[i]);
    for (int i = 0; i < N; i++) {
        assert_true(hth_world_run_until_true(w, answered, &out[i], 60 * HTH_US_PER_S));
        ok += out[i].err == HTH_OK ? 1 : 0;
        busy += out[i].err == HTH_E_BUSY ? 1 : 0;
        answer_clear(&out[i]);
    }
    assert_int_equal(ok, 1 + HTH_SERVER_WAITERS_MAX);
    assert_int_equal(busy, N - ok);
    assert_int_equal(host_stats(&h).rows_backward, 4);
    hth_aligned_free(x);
    world_end(w, &c);
}

TEST(invalid_options_are_refused)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    struct hth_server_opts o = HTH_SERVER_OPTS_INIT;
    struct hth_expert_opts e;
    struct hth_server *s;

    (void)state;
    host_start(&h, w, "host");
    e = h.expert;
    e.uid = uid_of(0);
    assert_err(HTH_E_DUPLICATE, hth_server_add(h.server, &e));
    e.uid = uid_of(5);
    e.kind = "resnet";
    assert_err(HTH_E_CONFIG, hth_server_add(h.server, &e));
    o.step_rows = 0;
    assert_err(HTH_E_CONFIG, hth_server_new(h.env, h.rpc, &o, &s));
    hth_world_free(w);
}

/* With batch_age_us a lone row waits for other rows, for that time at most. */
TEST(lone_rows_wait_for_batch_age)
{
    struct hth_world *w = world_new(1);
    struct swarm_host h = host_init();
    float *x = normals(1, D);
    struct ask a = {.coord = {0}, .rows = {1}, .parts = 1, .d = D, .x = x};
    struct answer out[4];
    struct swarm_caller c;

    (void)state;
    h.opts.batch_age_us = 200 * HTH_US_PER_MS;
    h.opts.batch_rows_min = 4;
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    ask_wait(w, &c, &h, &a, &out[0]);
    answer_clear(&out[0]);
    assert_true(host_stats(&h).queue_ms_mean > 9); /* a twentieth of 200 ms */
    for (int i = 0; i < 4; i++)
        ask(&c, &h, &a, &out[i]);
    hth_world_run_for(w, 150 * HTH_US_PER_MS); /* four rows are enough */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(out[i].count, 1);
        answer_clear(&out[i]);
    }
    assert_int_equal(host_stats(&h).batches, 2);
    hth_aligned_free(x);
    world_end(w, &c);
}
