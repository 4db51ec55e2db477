/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoint over real sockets and TLS: two loops on two threads. Runs under TSan as well. */
#include <pthread.h>

#include "core/mem.h"
#include "core/rng.h"
#include "net/net.h"
#include "rpc/rpc.h"
#include "support/suite.h"

#define METHOD_ECHO 16
#define METHOD_HOLD 17
#define CALLERS     64
#define CALLS       4000
#define BODY_BYTES  (3u << 20)

struct side {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_addr addr;
    pthread_t thread;
    struct hth_rpc_request *held;
};

static struct side server, client;

static void echo(void *arg, struct hth_rpc_request *req)
{
    struct hth_rpc_body body;
    (void)arg;
    body.payload = hth_rpc_payload(req, &body.payload_len);
    body.tensors = hth_rpc_tensors(req, &body.tensor_count);
    hth_rpc_reply(req, &body);
}

static void hold(void *arg, struct hth_rpc_request *req)
{
    struct side *s = arg;
    s->held = req;
}

static void start(struct side *s, bool listen)
{
    struct hth_net_opts nopts = HTH_NET_OPTS_INIT;
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    struct hth_addr any = {.family = 4, .ip = {127, 0, 0, 1}};
    memset(s, 0, sizeof(*s));
    nopts.compute_threads = 1;
    opts.network = "test";
    opts.listen = listen ? &any : NULL;
    assert_ok(hth_net_new(&nopts, &s->env));
    assert_ok(hth_rpc_new(s->env, &opts, &s->rpc));
    hth_rpc_addr(s->rpc, &s->addr);
    hth_rpc_serve(s->rpc, METHOD_ECHO, echo, s);
    hth_rpc_serve(s->rpc, METHOD_HOLD, hold, s);
}

static void *run_loop(void *arg)
{
    struct side *s = arg;
    HTH_ASSERT(hth_net_run(s->env) == HTH_OK);
    return NULL;
}

static void start_both(void)
{
    start(&server, true);
    start(&client, false);
    assert_int_equal(pthread_create(&server.thread, NULL, run_loop, &server), 0);
}

/* Stops the server's loop and frees the server, as a program does at its end. */
static void stop_server(void)
{
    hth_net_stop(server.env);
    assert_int_equal(pthread_join(server.thread, NULL), 0);
    hth_rpc_free(server.rpc);
    if (server.held != NULL)
        hth_rpc_reply(server.held, NULL);
    hth_net_free(server.env);
}

static void stop_client(void)
{
    hth_rpc_free(client.rpc);
    hth_net_free(client.env);
}

/* ---- many small calls ---------------------------------------------------------------------- */

static uint32_t started, answered;

static void small_done(void *arg, const struct hth_rpc_result *r);

static void small_call(void)
{
    struct hth_rpc_target target = {server.env->self, server.addr};
    struct hth_rpc_call_opts opts = {.method = METHOD_ECHO, .timeout_us = 60 * HTH_US_PER_S};
    opts.body.payload = &started;
    opts.body.payload_len = sizeof(started);
    started++;
    assert_ok(
        hth_rpc_call(client.rpc, &target, &opts, small_done, (void *)(uintptr_t)started, NULL));
}

static void small_done(void *arg, const struct hth_rpc_result *r)
{
    uint32_t got = 0;
    assert_int_equal(r->err, HTH_OK);
    assert_int_equal(r->payload_len, sizeof(got));
    memcpy(&got, r->payload, sizeof(got));
    assert_int_equal(got, (uintptr_t)arg);
    if (++answered == CALLS)
        hth_net_stop(client.env);
    else if (started < CALLS)
        small_call();
}

TEST(small_calls_are_all_answered)
{
    (void)state;
    started = answered = 0;
    start_both();
    for (int i = 0; i < CALLERS; i++)
        small_call();
    assert_ok(hth_net_run(client.env));
    assert_int_equal(answered, CALLS);
    stop_client();
    stop_server();
}

/* ---- bodies -------------------------------------------------------------------------------- */

static struct hth_blob *sent;

static void body_done(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    assert_int_equal(r->err, HTH_OK);
    assert_int_equal(r->tensor_count, 2);
    for (size_t i = 0; i < 2; i++) {
        uint64_t bytes;
        const struct hth_tensor *t = &r->tensors[i];
        assert_ok(hth_tensor_bytes(t, &bytes));
        assert_memory_equal(t->blob->data + t->offset, sent->data, bytes);
    }
    if (++answered == 8)
        hth_net_stop(client.env);
}

TEST(bodies_arrive_whole)
{
    struct hth_rpc_call_opts opts = {.method = METHOD_ECHO, .timeout_us = 60 * HTH_US_PER_S};
    (void)state;
    answered = 0;
    start_both();
    struct hth_rpc_target target = {server.env->self, server.addr};
    assert_ok(hth_env_blob_new(client.env, BODY_BYTES, NULL, &sent));
    for (size_t i = 0; i < BODY_BYTES; i++)
        sent->data[i] = (uint8_t)hth_mix64(i / 5);
    struct hth_tensor t[2] = {{HTH_U8, 1, {BODY_BYTES - 3}, sent, 0}, {HTH_F32, 1, {77}, sent, 0}};
    opts.body.tensors = t;
    opts.body.tensor_count = 2;
    for (int i = 0; i < 8; i++)
        assert_ok(hth_rpc_call(client.rpc, &target, &opts, body_done, NULL, NULL));
    assert_ok(hth_net_run(client.env));
    assert_int_equal(answered, 8);
    stop_client();
    stop_server();
    hth_blob_unref(sent);
}

/* ---- the ends of connections --------------------------------------------------------------- */

static enum hth_err last_err;

static void store_err(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    last_err = r->err;
    answered++;
    hth_net_stop(client.env);
}

static void one_call(const struct hth_rpc_target *target, uint16_t method)
{
    struct hth_rpc_call_opts opts = {.method = method, .timeout_us = 20 * HTH_US_PER_S};
    answered = 0;
    assert_ok(hth_rpc_call(client.rpc, target, &opts, store_err, NULL, NULL));
}

static void server_stops(void *arg)
{
    (void)arg;
    stop_server();
}

/* The server stops while it holds a request; a later call finds no listener. */
TEST(calls_fail_when_server_stops)
{
    (void)state;
    start_both();
    struct hth_rpc_target target = {server.env->self, server.addr};
    struct hth_timer *timer = hth_timer_new(client.env, server_stops, NULL);
    one_call(&target, METHOD_HOLD);
    hth_timer_set(client.env, timer, 200 * HTH_US_PER_MS);
    assert_ok(hth_net_run(client.env));
    assert_int_equal(answered, 1);
    assert_int_equal(last_err, HTH_E_CLOSED);
    one_call(&target, METHOD_ECHO);
    assert_ok(hth_net_run(client.env));
    assert_int_equal(answered, 1);
    assert_true(last_err == HTH_E_REFUSED || last_err == HTH_E_CLOSED);
    hth_timer_free(client.env, timer);
    stop_client();
}

TEST(dial_refuses_another_key)
{
    (void)state;
    start_both();
    struct hth_rpc_target target = {server.env->self, server.addr};
    target.peer.b[3] ^= 1;
    one_call(&target, METHOD_ECHO);
    assert_ok(hth_net_run(client.env));
    assert_int_equal(last_err, HTH_E_BAD_PEER_ID);
    stop_client();
    stop_server();
}
