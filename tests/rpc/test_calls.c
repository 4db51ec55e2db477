/* SPDX-License-Identifier: Apache-2.0 */
/* Calls between honest peers in the simulator: verdicts, deadlines, cancel, flow control. */
#include "core/bytes.h"
#include "core/mem.h"
#include "core/rng.h"
#include "rpc/duo.h"
#include "support/suite.h"

/* ---- verdicts ------------------------------------------------------------------------------ */

TEST(echo_takes_three_round_trips)
{
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_ECHO, "hello", HTH_US_PER_S, &v[0]);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_OK);
    assert_int_equal(v[0].payload_len, 5);
    assert_memory_equal(v[0].payload, "hello", 5);
    /* One way is 10 ms: two round trips for the dial; their HELLO comes a round trip after it, as
     * they first wait for the end of our handshake; one for the call. */
    assert_in_range(v[0].at_us, 80000, 80100);
    int64_t warm = v[0].at_us;
    call_text(&a, &b, METHOD_ECHO, "again", HTH_US_PER_S, &v[1]);
    await(w, &v[1]);
    assert_int_equal(v[1].err, HTH_OK);
    assert_in_range(v[1].at_us - warm, 20000, 20500);
    assert_in_range(v[1].rtt_us, 20000, 20500);
    struct hth_rpc_stats stats;
    hth_rpc_stats(a.rpc, &stats);
    assert_int_equal(stats.dials, 1);
    assert_int_equal(stats.calls_ok, 2);
    assert_int_equal(stats.calls_now, 0);
    assert_true(hth_metrics_get(a.env->metrics, "hearth_rpc_calls_total") == 2);
    stop();
}

TEST(one_connection_carries_calls_both_ways)
{
    struct hth_rpc_stats stats;
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[0]);
    await(w, &v[0]);
    call_text(&b, &a, METHOD_ECHO, "y", HTH_US_PER_S, &v[1]);
    await(w, &v[1]);
    assert_int_equal(v[1].err, HTH_OK);
    hth_rpc_stats(b.rpc, &stats);
    assert_int_equal(stats.dials, 0);
    assert_int_equal(stats.conns, 1);
    stop();
}

TEST(simultaneous_dials_are_tolerated)
{
    (void)state;
    start_default();
    for (int i = 0; i < 10; i++) {
        call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[2 * i]);
        call_text(&b, &a, METHOD_ECHO, "y", HTH_US_PER_S, &v[2 * i + 1]);
    }
    hth_world_run_for(w, HTH_US_PER_S);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(v[i].count, 1);
        assert_int_equal(v[i].err, HTH_OK);
    }
    stop();
}

static void fill(struct hth_blob *blob, uint32_t seed)
{
    for (size_t i = 0; blob->data != NULL && i < blob->size; i++)
        blob->data[i] = (uint8_t)hth_mix64(seed + i);
}

/* Tensors of odd sizes, one of them empty, come back unchanged in one aligned blob. */
TEST(tensors_come_back_bit_for_bit)
{
    struct hth_blob *blob;
    struct hth_rpc_target target;
    (void)state;
    start_default();
    target = member_target(&b);
    assert_ok(hth_env_blob_new(a.env, 3 << 20, NULL, &blob));
    fill(blob, 1);
    struct hth_tensor t[4] = {
        {HTH_F32, 2, {1000, 77}, blob, 0},
        {HTH_U8, 1, {13}, blob, 512},
        {HTH_BF16, 3, {4, 0, 9}, NULL, 0},
        {HTH_I64, 4, {2, 3, 5, 7}, blob, 2 << 20},
    };
    struct hth_rpc_call_opts opts = {.method = METHOD_ECHO, .timeout_us = HTH_US_PER_S * 10};
    opts.body.tensors = t;
    opts.body.tensor_count = 4;
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[0], NULL));
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_OK);
    assert_int_equal(v[0].tensor_count, 4);
    for (int i = 0; i < 4; i++) {
        uint64_t bytes;
        const struct hth_tensor *got = &v[0].tensors[i];
        assert_ok(hth_tensor_bytes(&t[i], &bytes));
        assert_int_equal(got->dtype, t[i].dtype);
        assert_int_equal(got->ndim, t[i].ndim);
        assert_memory_equal(got->dim, t[i].dim, sizeof(t[i].dim));
        if (bytes == 0)
            continue;
        assert_int_equal((uintptr_t)(got->blob->data + got->offset) % 64, 0);
        assert_memory_equal(got->blob->data + got->offset, blob->data + t[i].offset, bytes);
    }
    hth_blob_unref(blob);
    stop();
}

TEST(ghosts_travel_without_bytes)
{
    struct hth_world_opts wopts = HTH_WORLD_OPTS_INIT;
    struct hth_blob *blob;
    (void)state;
    wopts.ghost = true;
    wopts.chaos.short_read = 0.5;
    w = hth_world_new(3, &wopts);
    member_start(&a, w, "a", member_opts());
    member_start(&b, w, "b", member_opts());
    memset(v, 0, sizeof(v));
    assert_ok(hth_env_blob_new(a.env, 5 << 20, NULL, &blob));
    assert_null(blob->data);
    struct hth_tensor t[2] = {{HTH_F32, 1, {999}, blob, 0}, {HTH_F32, 1, {1 << 20}, blob, 4096}};
    struct hth_rpc_target target = member_target(&b);
    struct hth_rpc_call_opts opts = {.method = METHOD_ECHO, .timeout_us = HTH_US_PER_S * 10};
    opts.body = (struct hth_rpc_body){"ghost", 5, t, 2};
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[0], NULL));
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_OK);
    assert_int_equal(v[0].tensor_count, 2);
    assert_memory_equal(v[0].payload, "ghost", 5);
    assert_null(v[0].body->data);
    assert_int_equal(v[0].body->size, 4032 + (4 << 20)); /* 3996 up to the next 64 */
    hth_blob_unref(blob);
    stop();
}

TEST(refusals_carry_error_text_and_time)
{
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_BUSY, "", HTH_US_PER_S, &v[0]);
    call_text(&a, &b, 999, "", HTH_US_PER_S, &v[1]);
    await(w, &v[0]);
    await(w, &v[1]);
    assert_int_equal(v[0].err, HTH_E_BUSY);
    assert_int_equal(v[0].retry_after_us, 300 * HTH_US_PER_MS);
    assert_string_equal(v[0].text, "come back later");
    assert_true(v[0].remote);
    assert_int_equal(v[1].err, HTH_E_NO_SUCH_METHOD);
    stop();
}

TEST(fault_sites_fail_calls)
{
    (void)state;
    start_default();
    hth_world_set_fault(w, "rpc.busy", 1.0);
    call_text(&a, &b, METHOD_ECHO, "", HTH_US_PER_S, &v[0]);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_BUSY);
    hth_world_set_fault(w, "rpc.busy", 0.0);
    hth_world_set_fault(w, "rpc.conn_lost", 1.0);
    call_text(&a, &b, METHOD_HOLD, "", 50 * HTH_US_PER_S, &v[1]);
    await(w, &v[1]);
    assert_int_equal(v[1].err, HTH_E_CLOSED);
    hth_world_set_fault(w, "rpc.conn_lost", 0.0);
    stop();
}

static void ignore(void *arg, struct hth_rpc_request *req)
{
    (void)arg;
    hth_rpc_ignore(req);
}

/* The caller gets its timeout, or cancels; both sides free the request, and the connection keeps
 * serving. At the end one ignored request is under way. */
TEST(ignored_requests_end_with_their_deadline)
{
    struct hth_rpc_stats stats;
    struct hth_rpc_call *call;
    (void)state;
    start_default();
    hth_rpc_serve(b.rpc, 30, ignore, NULL);
    call_text(&a, &b, METHOD_ECHO, "", HTH_US_PER_S, &v[0]);
    await(w, &v[0]);
    call_text(&a, &b, 30, "lost", 500 * HTH_US_PER_MS, &v[1]);
    call = call_text(&a, &b, 30, "lost too", HTH_US_PER_S, &v[2]);
    call_text(&a, &b, METHOD_ECHO, "", HTH_US_PER_S, &v[3]);
    hth_world_run_for(w, 100 * HTH_US_PER_MS);
    assert_int_equal(v[3].err, HTH_OK);
    hth_rpc_stats(b.rpc, &stats);
    assert_int_equal(stats.requests_now, 2);
    hth_rpc_cancel(call);
    await(w, &v[1]);
    assert_int_equal(v[1].err, HTH_E_TIMEOUT);
    assert_in_range(v[1].at_us - v[0].at_us, 500000, 500100);
    hth_world_run_for(w, 100 * HTH_US_PER_MS);
    hth_rpc_stats(b.rpc, &stats);
    assert_int_equal(stats.requests_now, 0);
    call_text(&a, &b, 30, "lost as well", HTH_US_PER_S, &v[4]);
    hth_world_run_for(w, 100 * HTH_US_PER_MS);
    hth_rpc_stats(b.rpc, &stats);
    assert_int_equal(stats.requests_now, 1);
    stop();
}

TEST(key_trace_and_deadline_arrive)
{
    (void)state;
    start_default();
    struct hth_rpc_target target = member_target(&b);
    struct hth_rpc_call_opts opts = {.method = METHOD_HOLD, .timeout_us = HTH_US_PER_S};
    opts.idem = (struct hth_rpc_idem){1, 2};
    opts.trace_id = 77;
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[0], NULL));
    hth_world_run_for(w, 200000);
    assert_int_equal(b.held_count, 1);
    struct hth_rpc_idem key = hth_rpc_idem_key(b.held[0]);
    assert_int_equal(key.hi, 1);
    assert_int_equal(key.lo, 2);
    assert_int_equal(hth_rpc_trace_id(b.held[0]), 77);
    assert_int_equal(hth_rpc_method(b.held[0]), METHOD_HOLD);
    assert_true(hth_peer_id_eq(hth_rpc_peer(b.held[0]), &a.env->self));
    /* The deadline is the time left when it was sent, on our own clock. */
    int64_t left = hth_rpc_deadline_us(b.held[0]) - hth_rpc_arrived_us(b.held[0]);
    assert_in_range(left, 930000, 961000);
    stop();
}

/* ---- deadlines and cancel ------------------------------------------------------------------ */

TEST(deadline_ends_call_and_cancels_request)
{
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_HOLD, "", 500000, &v[0]);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_TIMEOUT);
    assert_int_equal(v[0].at_us, 500000);
    hth_world_run_for(w, 100000);
    assert_int_equal(b.cancels, 1);
    assert_true(hth_rpc_is_canceled(b.held[0]));
    /* The handler's answer is dropped, and its place is free again. */
    hth_rpc_reply(b.held[0], NULL);
    b.held_count = 0;
    hth_world_run_for(w, 100000);
    struct hth_rpc_peer_info info;
    assert_ok(hth_rpc_peer_info(a.rpc, &b.env->self, &info));
    assert_int_equal(info.in_flight, 0);
    assert_int_equal(v[0].count, 1);
    struct hth_rpc_stats stats;
    hth_rpc_stats(a.rpc, &stats);
    assert_int_equal(stats.late_replies, 1);
    stop();
}

TEST(server_cancels_at_deadline_without_caller)
{
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_ECHO, "", 500000, &v[1]);
    await(w, &v[1]);
    int64_t from = hth_world_now_us(w);
    call_text(&a, &b, METHOD_HOLD, "", 500000, &v[0]);
    hth_world_run_for(w, 100000);
    hth_world_block(w, a.node, b.node, true);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(b.cancels, 1);
    assert_in_range(b.cancel_us - from, 500000, 520000);
    stop();
}

TEST(cancel_reaches_the_handler)
{
    (void)state;
    start_default();
    struct hth_rpc_call *call = call_text(&a, &b, METHOD_HOLD, "", HTH_US_PER_S, &v[0]);
    struct hth_rpc_call *waiting = call_text(&a, &b, METHOD_HOLD, "", HTH_US_PER_S, &v[1]);
    hth_rpc_cancel(waiting); /* never sent */
    hth_world_run_for(w, 100000);
    assert_int_equal(b.held_count, 1);
    hth_rpc_cancel(call);
    hth_world_run_for(w, 100000);
    assert_int_equal(b.cancels, 1);
    hth_rpc_refuse(b.held[0], HTH_E_CANCELED, 0, NULL);
    b.held_count = 0;
    hth_world_run_for(w, 2 * HTH_US_PER_S);
    assert_int_equal(v[0].count + v[1].count, 0);
    stop();
}

TEST(deadlines_adapt_to_the_peer)
{
    struct hth_rpc_opts opts = member_opts();
    (void)state;
    opts.timeout_min_us = 30000;
    start(opts, member_opts());
    struct hth_rpc_target target = member_target(&b);
    assert_int_equal(hth_rpc_timeout_us(a.rpc, &target, METHOD_ECHO), 20 * HTH_US_PER_S);
    for (int i = 0; i < 16; i++) {
        call_text(&a, &b, METHOD_ECHO, "x", 0, &v[i]);
        await(w, &v[i]);
    }
    assert_in_range(hth_rpc_timeout_us(a.rpc, &target, METHOD_ECHO), 30000, 40000);
    int64_t from = hth_world_now_us(w);
    hth_world_block(w, a.node, b.node, true);
    call_text(&a, &b, METHOD_ECHO, "x", 0, &v[20]);
    await(w, &v[20]);
    assert_int_equal(v[20].err, HTH_E_TIMEOUT);
    assert_in_range(v[20].at_us - from, 30000, 40000);
    stop();
}

/* A year is cut to a day, on both sides. */
TEST(timeouts_are_bounded)
{
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_HOLD, "", 365 * 86400 * HTH_US_PER_S, &v[0]);
    hth_world_run_for(w, 200000);
    int64_t left = hth_rpc_deadline_us(b.held[0]) - hth_rpc_arrived_us(b.held[0]);
    assert_true(left <= (int64_t)HTH_RPC_TIMEOUT_MS_MAX * HTH_US_PER_MS);
    assert_true(left > (int64_t)HTH_RPC_TIMEOUT_MS_MAX * HTH_US_PER_MS - HTH_US_PER_S);
    stop();
}

/* ---- flow control -------------------------------------------------------------------------- */

TEST(requests_beyond_the_peers_limit_wait)
{
    struct hth_rpc_opts small = member_opts();
    struct hth_rpc_peer_info info;
    (void)state;
    small.requests_max = 4;
    start(member_opts(), small);
    for (int i = 0; i < 10; i++)
        call_text(&a, &b, METHOD_HOLD, "", 50 * HTH_US_PER_S, &v[i]);
    hth_world_run_for(w, 500000);
    assert_int_equal(b.held_count, 4);
    assert_ok(hth_rpc_peer_info(a.rpc, &b.env->self, &info));
    assert_int_equal(info.in_flight, 4);
    assert_int_equal(info.waiting, 6);
    for (int i = 0; i < 10; i++) {
        assert_true(b.held_count > (uint32_t)i);
        hth_rpc_reply(b.held[i], NULL);
        hth_world_run_for(w, 100000);
    }
    b.held_count = 0;
    for (int i = 0; i < 10; i++)
        assert_int_equal(v[i].err + (v[i].count == 1 ? 0 : 99), HTH_OK);
    stop();
}

static void call_blob(struct swarm_member *from, const struct swarm_member *to, uint32_t bytes,
                      struct swarm_verdict *out)
{
    struct hth_rpc_target target = member_target(to);
    struct hth_rpc_call_opts opts = {.method = METHOD_BLOB, .timeout_us = 50 * HTH_US_PER_S};
    uint8_t size[4];
    hth_store_u32le(size, bytes);
    opts.body.payload = size;
    opts.body.payload_len = 4;
    out->env = from->env;
    assert_ok(hth_rpc_call(from->rpc, &target, &opts, on_verdict, out, NULL));
}

/* Sixteen replies of half a window each go through a window that holds two. */
TEST(replies_wait_for_credit)
{
    struct hth_rpc_opts small = member_opts();
    (void)state;
    small.body_bytes_max = 64 << 10;
    small.reply_credit_bytes = small.request_credit_bytes = 128 << 10;
    small.peer_bytes_max = 256 << 10;
    start(small, member_opts());
    for (int i = 0; i < 16; i++)
        call_blob(&a, &b, 64 << 10, &v[i]);
    hth_world_run_for(w, 5 * HTH_US_PER_S);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(v[i].count, 1);
        assert_int_equal(v[i].err, HTH_OK);
        assert_int_equal(v[i].body->size, 64 << 10);
        assert_int_equal(v[i].body->data[1000], (uint8_t)7000);
    }
    /* A reply one byte beyond our limit is refused by the server, and the connection lives on. */
    call_blob(&a, &b, (64 << 10) + 1, &v[20]);
    await(w, &v[20]);
    assert_int_equal(v[20].err, HTH_E_TOO_LARGE);
    struct hth_rpc_peer_info info;
    assert_ok(hth_rpc_peer_info(a.rpc, &b.env->self, &info));
    assert_true(info.connected);
    assert_true(info.bytes_held <= 4096); /* the parser's own buffer */
    stop();
}

TEST(bodies_wait_for_the_servers_credit)
{
    struct hth_rpc_opts small = member_opts();
    struct hth_blob *blob;
    (void)state;
    small.body_bytes_max = 64 << 10;
    small.reply_credit_bytes = small.request_credit_bytes = 128 << 10;
    start(member_opts(), small);
    assert_ok(hth_env_blob_new(a.env, (64 << 10) + 64, NULL, &blob));
    fill(blob, 3);
    struct hth_tensor t = {HTH_U8, 1, {64 << 10}, blob, 0};
    struct hth_rpc_target target = member_target(&b);
    struct hth_rpc_call_opts opts = {.method = METHOD_HOLD, .timeout_us = 50 * HTH_US_PER_S};
    opts.body.tensors = &t;
    opts.body.tensor_count = 1;
    for (int i = 0; i < 6; i++)
        assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[i], NULL));
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(b.held_count, 2);
    for (uint32_t i = 0; i < 6; i++) {
        hth_rpc_reply(b.held[i], NULL);
        hth_world_run_for(w, 200000);
    }
    b.held_count = 0;
    for (int i = 0; i < 6; i++)
        assert_int_equal(v[i].count, 1);
    t.dim[0]++;
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[9], NULL));
    await(w, &v[9]);
    assert_int_equal(v[9].err, HTH_E_TOO_LARGE);
    hth_blob_unref(blob);
    stop();
}

TEST(bodies_beyond_budget_are_refused_busy)
{
    struct hth_rpc_opts opts = member_opts();
    struct hth_budget budget;
    struct hth_blob *blob;
    (void)state;
    hth_budget_init(&budget, 100000, NULL);
    opts.budget = &budget;
    start(member_opts(), opts);
    assert_ok(hth_env_blob_new(a.env, 200000, NULL, &blob));
    fill(blob, 3);
    struct hth_tensor t = {HTH_U8, 1, {200000}, blob, 0};
    struct hth_rpc_target target = member_target(&b);
    struct hth_rpc_call_opts copts = {.method = METHOD_ECHO, .timeout_us = HTH_US_PER_S};
    copts.body.tensors = &t;
    copts.body.tensor_count = 1;
    assert_ok(hth_rpc_call(a.rpc, &target, &copts, on_verdict, &v[0], NULL));
    call_text(&a, &b, METHOD_ECHO, "small", HTH_US_PER_S, &v[1]);
    await(w, &v[0]);
    await(w, &v[1]);
    assert_int_equal(v[0].err, HTH_E_BUSY);
    assert_true(v[0].retry_after_us > 0);
    assert_int_equal(v[1].err, HTH_OK); /* the connection lives on */
    /* A reply beyond the budget fails that call only. */
    struct swarm_verdict *big = &v[2], *small = &v[3];
    call_blob(&b, &a, 200000, big);
    call_text(&b, &a, METHOD_ECHO, "small", HTH_US_PER_S, small);
    await(w, big);
    await(w, small);
    assert_int_equal(big->err, HTH_E_BUDGET);
    assert_int_equal(small->err, HTH_OK);
    assert_int_equal(hth_budget_used(&budget), 0);
    hth_blob_unref(blob);
    stop();
}

TEST(bad_arguments_fail_at_once)
{
    static char payload[HTH_FRAME_META_BYTES_MAX + 1];
    struct hth_rpc_opts few = member_opts();
    (void)state;
    few.calls_max = 3;
    start(few, member_opts());
    struct hth_rpc_target target = member_target(&b);
    struct hth_rpc_call_opts opts = {.method = METHOD_HOLD, .timeout_us = HTH_US_PER_S};
    opts.body.payload = payload;
    opts.body.payload_len = sizeof(payload);
    assert_err(HTH_E_TOO_LARGE, hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[0], NULL));
    struct hth_tensor t = {(enum hth_dtype)50, 1, {4}, NULL, 0};
    opts.body = (struct hth_rpc_body){NULL, 0, &t, 1};
    assert_err(HTH_E_BAD_SHAPE, hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[0], NULL));
    opts.body = (struct hth_rpc_body){0};
    for (int i = 0; i < 3; i++)
        assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[i], NULL));
    assert_err(HTH_E_QUEUE_FULL, hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[3], NULL));
    hth_world_run_for(w, 2 * HTH_US_PER_S);
    assert_int_equal(v[3].count, 0);
    struct hth_rpc *none;
    struct hth_rpc_opts bad = member_opts();
    bad.body_bytes_max = bad.reply_credit_bytes;
    assert_err(HTH_E_CONFIG, hth_rpc_new(a.env, &bad, &none));
    bad = member_opts();
    bad.requests_max = HTH_RPC_REQUESTS_MAX + 1;
    assert_err(HTH_E_CONFIG, hth_rpc_new(a.env, &bad, &none));
    bad = member_opts();
    bad.network = "a name that is a good deal longer than the sixty-three characters allowed";
    assert_err(HTH_E_CONFIG, hth_rpc_new(a.env, &bad, &none));
    bad = member_opts(); /* valid options, but the HELLO's allocation fails */
    hth_mem_fail_at(2);  /* the first allocation is the pad */
    enum hth_err err = hth_rpc_new(a.env, &bad, &none);
    hth_mem_fail_at(0);
    assert_err(HTH_E_NO_MEMORY, err);
    assert_null(none);
    stop();
}

TEST(free_with_open_calls_and_requests)
{
    (void)state;
    start_default();
    for (int i = 0; i < 8; i++)
        call_text(&a, &b, METHOD_HOLD, "kept", 50 * HTH_US_PER_S, &v[i]);
    hth_world_run_for(w, 200000);
    for (int i = 8; i < 12; i++) /* some under way, some to an absent peer */
        call_text(&a, &b, METHOD_ECHO, "x", 50 * HTH_US_PER_S, &v[i]);
    member_stop(&b);
    size_t len;
    assert_true(hth_rpc_is_canceled(b.held[0]));
    assert_memory_equal(hth_rpc_payload(b.held[0], &len), "kept", 4);
    member_stop(&a);
    hth_world_run_for(w, HTH_US_PER_S);
    for (int i = 0; i < 12; i++)
        assert_int_equal(v[i].count, 0);
    stop();
}

/* ---- torture ------------------------------------------------------------------------------- */

/* One call with payload and tensors, while the n-th allocation that may fail does. */
static bool tortured_call(struct hth_blob *blob, long fail_at)
{
    struct hth_tensor t[20];
    struct hth_rpc_call_opts opts = {.method = METHOD_ECHO, .timeout_us = 5 * HTH_US_PER_S};
    struct hth_rpc_target target = member_target(&b);
    for (size_t i = 0; i < HTH_ARRAY_LEN(t); i++)
        t[i] = (struct hth_tensor){HTH_U8, 1, {1000 + i}, blob, 64 * i};
    opts.body = (struct hth_rpc_body){"payload", 7, t, HTH_ARRAY_LEN(t)};
    memset(&v[0], 0, sizeof(v[0]));
    v[0].env = a.env;
    hth_mem_fail_at(fail_at);
    enum hth_err err = hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[0], NULL);
    hth_world_run_for(w, 10 * HTH_US_PER_S);
    long made = hth_mem_try_count();
    hth_mem_fail_at(0);
    if (err != HTH_OK)
        assert_int_equal(v[0].count, 0);
    else
        assert_int_equal(v[0].count, 1);
    verdict_clear(&v[0]);
    return made >= fail_at;
}

/* The call gets one verdict, whichever allocation fails, and the next call is answered. */
TEST(failed_allocations_give_one_verdict)
{
    long n = 1;
    bool reached = true;
    (void)state;
    for (; reached; n++) {
        struct hth_blob *blob;
        start_default();
        assert_ok(hth_env_blob_new(a.env, 64 << 10, NULL, &blob));
        fill(blob, 1);
        reached = tortured_call(blob, n);
        hth_world_run_for(w, 60 * HTH_US_PER_S); /* longer than any back-off */
        call_text(&a, &b, METHOD_ECHO, "again", 5 * HTH_US_PER_S, &v[1]);
        await(w, &v[1]);
        assert_int_equal(v[1].err, HTH_OK);
        hth_blob_unref(blob);
        stop();
    }
    assert_true(n > 8);
}
