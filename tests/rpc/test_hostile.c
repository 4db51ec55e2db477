/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers that break the protocol, stall, flood or vanish: each is dropped with a named error, and a
 * call of an honest peer in the same minute is answered.
 */
#include "core/bytes.h"
#include "core/mem.h"
#include "rpc/swarm.h"
#include "support/suite.h"

static struct hth_world *w;
static struct swarm_member server, good;
static struct hth_node *bad_node;
static struct swarm_raw bad;
static struct swarm_verdict v[8];

static struct hth_rpc_opts small_opts(void)
{
    struct hth_rpc_opts opts = member_opts();
    opts.requests_max = 4;
    opts.body_bytes_max = 64 << 10;
    opts.request_credit_bytes = opts.reply_credit_bytes = 128 << 10;
    opts.queue_bytes_max = 256 << 10;
    opts.peer_bytes_max = 1 << 20;
    return opts;
}

static void start(void)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    opts.log_level = HTH_ERROR;
    w = hth_world_new(11, &opts);
    member_start(&server, w, "server", small_opts());
    member_start(&good, w, "good", member_opts());
    bad_node = hth_world_node(w, "bad", NULL);
    memset(v, 0, sizeof(v));
    memset(&bad, 0, sizeof(bad));
}

static void stop(void)
{
    struct hth_open_counts counts;
    struct hth_rpc_peer_info info;
    verdict_clear(&v[7]);
    call_text(&good, &server, METHOD_ECHO, "still there?", 5 * HTH_US_PER_S, &v[7]);
    await(w, &v[7]);
    assert_int_equal(v[7].err, HTH_OK);
    raw_clear(&bad);
    hth_world_run_for(w, 200000);
    if (hth_rpc_peer_info(server.rpc, &hth_node_env(bad_node)->self, &info) == HTH_OK) {
        assert_false(info.connected);
        assert_true(info.bytes_held <= 256 << 10); /* bodies that the test's handlers still hold */
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(v); i++)
        verdict_clear(&v[i]);
    for (uint32_t i = 0; i < server.held_count; i++)
        hth_rpc_reply(server.held[i], NULL);
    server.held_count = 0;
    if (hth_rpc_peer_info(server.rpc, &hth_node_env(bad_node)->self, &info) == HTH_OK)
        assert_int_equal(info.bytes_held, 0);
    member_stop(&good);
    member_stop(&server);
    hth_world_open(w, &counts);
    assert_int_equal(hth_open_total(&counts), 0);
    hth_world_free(w);
}

/* Connects and, if hello is set, sends HELLO. */
static void connect_bad(bool hello)
{
    raw_dial(&bad, hth_node_env(bad_node), &server.addr);
    hth_world_run_for(w, 100000);
    assert_true(bad.open);
    assert_int_equal(bad.seen[HTH_FRAME_HELLO], 1);
    if (hello)
        raw_hello(&bad);
    hth_world_run_for(w, 100000);
    assert_int_equal(bad.closed, false);
}

static void expect_dropped(enum hth_err err)
{
    hth_world_run_for(w, 200000);
    assert_true(bad.closed);
    if (bad.goodbye_err != err)
        fail_msg("goodbye was %s, not %s", hth_err_name(bad.goodbye_err), hth_err_name(err));
}

/* ---- broken frames ------------------------------------------------------------------------- */

static void patched(int at, uint8_t value, enum hth_err want)
{
    uint8_t bytes[HTH_FRAME_HEADER_BYTES];
    struct hth_frame_header h = {.version = 1, .type = HTH_FRAME_PING, .id = 1};
    hth_frame_header_write(&h, bytes);
    bytes[at] = value;
    start();
    connect_bad(true);
    raw_bytes(&bad, bytes, sizeof(bytes));
    expect_dropped(want);
    stop();
}

TEST(broken_headers_are_named)
{
    (void)state;
    patched(HTH_FRAME_AT_MAGIC, 'X', HTH_E_BAD_MAGIC);
    patched(HTH_FRAME_AT_VERSION, 9, HTH_E_VERSION);
    patched(HTH_FRAME_AT_TYPE, 200, HTH_E_PROTOCOL);
    patched(HTH_FRAME_AT_FLAGS, 1, HTH_E_PROTOCOL);
    patched(HTH_FRAME_AT_META_LEN + 2, 0xff, HTH_E_TOO_LARGE);
    patched(HTH_FRAME_AT_BODY_LEN + 3, 0xff, HTH_E_TOO_LARGE);
}

TEST(another_protocol_is_dropped)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
    (void)state;
    start();
    connect_bad(false);
    raw_bytes(&bad, http, strlen(http));
    expect_dropped(HTH_E_BAD_MAGIC);
    stop();
}

/* Frames that are valid by themselves and may not come in this state of the connection. */
TEST(frames_out_of_turn_are_dropped)
{
    static const struct {
        const char *name;
        bool hello; /* first exchange HELLO */
        struct hth_frame_msg msg;
        const char *text; /* of the GOODBYE; NULL: any */
    } cases[] = {
        {"a REQUEST before HELLO",
         false,
         {.type = HTH_FRAME_REQUEST,
          .id = 1,
          .u.request = {.method = METHOD_ECHO, .timeout_ms = 60000}},
         NULL},
        {"a second HELLO",
         true,
         {.type = HTH_FRAME_HELLO,
          .u.hello = {.version_min = 1, .version_max = 1, .requests_max = 8, .network = "test"}},
         "a second HELLO"},
        {"a HELLO with a body beyond half of the credit",
         false,
         {.type = HTH_FRAME_HELLO,
          .u.hello = {.version_min = 1,
                      .version_max = 1,
                      .requests_max = 1,
                      .network = "test",
                      .body_bytes_max = 1000,
                      .request_credit_bytes = 1999,
                      .reply_credit_bytes = 5000}},
         NULL},
        {"a REPLY without a request", true, {.type = HTH_FRAME_REPLY, .id = 0x10000}, NULL},
        {"CREDIT that is not owed", true, {.type = HTH_FRAME_CREDIT, .u.credit = {1}}, NULL},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        start();
        connect_bad(cases[i].hello);
        raw_frame(&bad, &cases[i].msg);
        hth_world_run_for(w, 200000);
        if (!bad.closed || bad.goodbye_err != HTH_E_PROTOCOL || server.seen > 0 ||
            (cases[i].text != NULL && strcmp(bad.text, cases[i].text) != 0))
            fail_msg("%s: closed %d, goodbye %s (%s), %u requests run", cases[i].name, bad.closed,
                     hth_err_name(bad.goodbye_err), bad.text, server.seen);
        stop();
    }
}

TEST(tensor_of_16_exbibytes_is_dropped)
{
    /* dtype u8, one dim of 2^64 - 1, as many bytes */
    static const uint8_t meta[] = {0x08, 16,   0x10, 0xe8, 0x07, 0x32, 25,   0x08, 6,    0x12, 10,
                                   0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,    0x20,
                                   0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1};
    uint8_t head[HTH_FRAME_HEADER_BYTES];
    struct hth_frame_header h = {.version = 1, .type = HTH_FRAME_REQUEST, .id = 1};
    (void)state;
    h.meta_len = sizeof(meta);
    h.body_len = 64;
    hth_frame_header_write(&h, head);
    start();
    connect_bad(true);
    raw_bytes(&bad, head, sizeof(head));
    raw_bytes(&bad, meta, sizeof(meta));
    expect_dropped(HTH_E_TOO_LARGE);
    stop();
}

/* ---- broken promises ----------------------------------------------------------------------- */

TEST(requests_beyond_limit_are_dropped)
{
    (void)state;
    start();
    connect_bad(true);
    for (uint64_t id = 1; id <= 4; id++)
        raw_request(&bad, id, METHOD_HOLD, "x", 1, 0);
    hth_world_run_for(w, 100000);
    assert_false(bad.closed);
    assert_int_equal(server.seen, 4);
    raw_request(&bad, 5, METHOD_HOLD, "x", 1, 0);
    expect_dropped(HTH_E_PROTOCOL);
    hth_world_run_for(w, 1000);
    assert_int_equal(server.seen, 4);
    assert_int_equal(server.cancels, 4);
    stop();
}

TEST(body_beyond_credit_is_dropped)
{
    static uint8_t body[64 << 10];
    (void)state;
    start();
    connect_bad(true);
    for (uint64_t id = 1; id <= 2; id++) {
        raw_request(&bad, id, METHOD_HOLD, "x", 1, sizeof(body));
        raw_bytes(&bad, body, sizeof(body));
    }
    hth_world_run_for(w, 100000);
    assert_false(bad.closed);
    assert_int_equal(server.seen, 2);
    raw_request(&bad, 3, METHOD_HOLD, "x", 1, 1);
    expect_dropped(HTH_E_PROTOCOL);
    stop();
}

TEST(body_over_limit_is_dropped)
{
    (void)state;
    start();
    connect_bad(true);
    raw_request(&bad, 1, METHOD_HOLD, "x", 1, (64 << 10) + 1);
    expect_dropped(HTH_E_TOO_LARGE);
    stop();
}

TEST(replayed_request_is_dropped)
{
    (void)state;
    start();
    connect_bad(true);
    raw_request(&bad, 5, METHOD_ECHO, "x", 1, 0);
    hth_world_run_for(w, 100000);
    assert_int_equal(bad.seen[HTH_FRAME_REPLY], 1);
    raw_request(&bad, 5, METHOD_ECHO, "x", 1, 0);
    expect_dropped(HTH_E_REPLAYED);
    assert_int_equal(server.seen, 1);
    stop();
}

TEST(cancel_of_future_request_is_dropped)
{
    struct hth_frame_msg msg = {.type = HTH_FRAME_CANCEL, .id = 5};
    (void)state;
    start();
    connect_bad(true);
    raw_request(&bad, 5, METHOD_ECHO, "x", 1, 0);
    raw_frame(&bad, &msg); /* answered already: the two crossed on the wire */
    msg.id = 3;            /* skipped: as good as answered */
    raw_frame(&bad, &msg);
    hth_world_run_for(w, 100000);
    assert_false(bad.closed);
    msg.id = 6; /* no such request yet */
    raw_frame(&bad, &msg);
    expect_dropped(HTH_E_PROTOCOL);
    stop();
}

TEST(request_without_time_is_refused)
{
    struct hth_frame_msg msg = {.type = HTH_FRAME_REQUEST, .id = 1};
    (void)state;
    start();
    connect_bad(true);
    msg.u.request.method = METHOD_ECHO;
    raw_frame(&bad, &msg);
    hth_world_run_for(w, 100000);
    assert_int_equal(bad.refuse_err, HTH_E_TIMEOUT);
    assert_int_equal(server.seen, 0);
    stop();
}

/* ---- time ---------------------------------------------------------------------------------- */

TEST(header_of_one_byte_a_minute_is_dropped)
{
    static const uint8_t magic[] = {'H', 'R', 'T', 'H'};
    (void)state;
    start();
    connect_bad(true);
    int64_t from = hth_world_now_us(w);
    for (int i = 0; i < 4 && !bad.closed; i++) {
        raw_bytes(&bad, magic + i, 1);
        hth_world_run_for(w, 60 * HTH_US_PER_S);
    }
    assert_true(bad.closed);
    assert_in_range(bad.closed_us - from, 19 * HTH_US_PER_S, 26 * HTH_US_PER_S);
    assert_int_equal(bad.goodbye_err, HTH_E_TIMEOUT);
    stop();
}

TEST(trickling_body_is_dropped)
{
    static uint8_t body[100];
    (void)state;
    start();
    connect_bad(true);
    raw_request(&bad, 1, METHOD_ECHO, "x", 1, 64 << 10);
    int64_t from = hth_world_now_us(w);
    for (int i = 0; i < 60 && !bad.closed; i++) {
        raw_bytes(&bad, body, sizeof(body));
        hth_world_run_for(w, HTH_US_PER_S);
    }
    assert_true(bad.closed);
    assert_in_range(bad.closed_us - from, 19 * HTH_US_PER_S, 26 * HTH_US_PER_S);
    assert_int_equal(server.seen, 0);
    stop();
}

/* The larger the body, the faster it must arrive: with a few bytes a second it would be held for
 * days. */
TEST(larger_body_must_arrive_faster)
{
    static uint8_t body[3 << 10];
    struct hth_rpc_opts opts = small_opts();
    (void)state;
    for (size_t step = 1 << 10; step <= sizeof(body); step += sizeof(body) - (1 << 10)) {
        opts.body_bytes_max = 4 << 20;
        opts.request_credit_bytes = opts.reply_credit_bytes = 8 << 20;
        opts.peer_bytes_max = 16 << 20;
        start();
        member_stop(&server);
        member_start(&server, w, "large", opts);
        connect_bad(true);
        raw_request(&bad, 1, METHOD_ECHO, "x", 1, 4 << 20); /* at least 32 KiB in 20 s */
        int64_t from = hth_world_now_us(w);
        for (int i = 0; i < 120 && !bad.closed; i++) {
            raw_bytes(&bad, body, step);
            hth_world_run_for(w, HTH_US_PER_S);
        }
        assert_int_equal(bad.closed, step < sizeof(body));
        if (bad.closed)
            assert_in_range(bad.closed_us - from, 19 * HTH_US_PER_S, 50 * HTH_US_PER_S);
        stop();
    }
}

TEST(slow_link_is_tolerated)
{
    static uint8_t body[2048];
    (void)state;
    start();
    connect_bad(true);
    raw_request(&bad, 1, METHOD_ECHO, "x", 1, 64 << 10);
    for (int i = 0; i < 32; i++) {
        raw_bytes(&bad, body, sizeof(body));
        hth_world_run_for(w, 3 * HTH_US_PER_S / 2);
    }
    assert_false(bad.closed);
    assert_int_equal(bad.reply_bytes, 64 << 10);
    stop();
}

/* A peer that moves just enough to be no stall may not hold a small body for minutes. */
TEST(body_of_minutes_is_dropped)
{
    static uint8_t body[300];
    (void)state;
    start();
    connect_bad(true);
    raw_request(&bad, 1, METHOD_ECHO, "x", 1, 64 << 10);
    int64_t from = hth_world_now_us(w);
    for (int i = 0; i < 200 && !bad.closed; i++) {
        raw_bytes(&bad, body, sizeof(body));
        hth_world_run_for(w, HTH_US_PER_S);
    }
    assert_true(bad.closed);
    assert_in_range(bad.closed_us - from, 119 * HTH_US_PER_S, 130 * HTH_US_PER_S);
    stop();
}

static void call_floats(uint64_t count, struct swarm_verdict *out)
{
    struct hth_rpc_target to = member_target(&server);
    struct hth_tensor t = {.dtype = HTH_F32, .ndim = 1, .dim = {count}};
    struct hth_rpc_call_opts o = {.method = METHOD_ECHO,
                                  .timeout_us = HTH_US_PER_S,
                                  .body = {.tensors = &t, .tensor_count = 1}};
    t.blob = hth_blob_try_new(count * sizeof(float));
    memset(t.blob->data, 0, t.blob->size);
    out->env = good.env;
    assert_ok(hth_rpc_call(good.rpc, &to, &o, on_verdict, out, NULL));
    hth_blob_unref(t.blob);
}

/* Ten strangers begin bodies that together are more than the endpoint's budget. They send all but
 * the end of them, or a little every second, and an honest call with a body is answered. */
TEST(slow_bodies_make_room)
{
    enum { STRANGERS = 10, BODY = 1 << 20, SENT = BODY * 63 / 64 };
    static uint8_t body[SENT];
    struct swarm_raw stranger[STRANGERS];
    (void)state;
    for (int trickles = 0; trickles < 2; trickles++) {
        struct hth_rpc_opts opts = small_opts();
        struct hth_budget budget;
        start();
        hth_budget_init(&budget, 4 * BODY, NULL);
        opts.body_bytes_max = BODY;
        opts.request_credit_bytes = opts.reply_credit_bytes = opts.peer_bytes_max = 2 * BODY;
        opts.budget = &budget;
        member_stop(&server);
        member_start(&server, w, "narrow", opts);
        memset(stranger, 0, sizeof(stranger));
        for (int i = 0; i < STRANGERS; i++) {
            raw_dial(&stranger[i], hth_node_env(hth_world_node(w, "stranger", NULL)), &server.addr);
            hth_world_run_for(w, 100000);
            raw_hello(&stranger[i]);
            hth_world_run_for(w, 100000);
            raw_request(&stranger[i], 1, METHOD_ECHO, "x", 1, BODY);
            raw_bytes(&stranger[i], body, trickles != 0 ? 1000 : SENT);
            hth_world_run_for(w, 10000);
        }
        for (int second = 0; second < 5; second++) {
            hth_world_run_for(w, HTH_US_PER_S);
            for (int i = 0; i < STRANGERS && trickles != 0; i++)
                if (!stranger[i].closed)
                    raw_bytes(&stranger[i], body, 10000);
        }
        assert_true(hth_budget_used(&budget) > 2 * BODY && hth_budget_used(&budget) <= 4 * BODY);
        for (int i = 0; i < 4; i++) {
            call_floats(BODY / 16, &v[i]);
            await(w, &v[i]);
            assert_int_equal(v[i].err, HTH_OK);
        }
        for (int i = 0; i < STRANGERS; i++)
            raw_clear(&stranger[i]);
        stop();
        assert_int_equal(hth_budget_used(&budget), 0);
    }
}

TEST(missing_hello_times_out)
{
    (void)state;
    start();
    int64_t from = hth_world_now_us(w);
    connect_bad(false);
    hth_world_run_for(w, 30 * HTH_US_PER_S);
    assert_true(bad.closed);
    assert_in_range(bad.closed_us - from, 10 * HTH_US_PER_S, 14 * HTH_US_PER_S);
    stop();
}

/* It requests replies within its credit, and never reads. */
TEST(client_that_stops_reading_is_dropped)
{
    struct hth_frame_msg hello = {.type = HTH_FRAME_HELLO};
    uint8_t size[4];
    (void)state;
    start();
    bad.deaf = true;
    raw_dial(&bad, hth_node_env(bad_node), &server.addr);
    hth_world_run_for(w, 100000);
    hello.u.hello.version_min = hello.u.hello.version_max = 1;
    hello.u.hello.network = "test";
    hello.u.hello.requests_max = 1000;
    hello.u.hello.body_bytes_max = 1u << 30;
    hello.u.hello.request_credit_bytes = hello.u.hello.reply_credit_bytes = 1ull << 40;
    raw_frame(&bad, &hello);
    hth_store_u32le(size, 4 << 20);
    for (uint64_t id = 1; id <= 100 && !bad.closed; id++) {
        raw_request(&bad, id, METHOD_BLOB, size, 4, 0);
        hth_world_run_for(w, 20000);
    }
    /* Served: replies within the stream's window, and one that filled the queue; the others were
     * refused. */
    assert_in_range(server.seen, 1, 4);
    hth_world_run_for(w, 40 * HTH_US_PER_S);
    struct hth_rpc_peer_info info;
    assert_ok(hth_rpc_peer_info(server.rpc, &hth_node_env(bad_node)->self, &info));
    assert_false(info.connected);
    bad.deaf = false;
    stop();
}

/* Replies wait for credit that never comes. */
TEST(client_without_credit_is_dropped)
{
    uint8_t size[4];
    struct hth_rpc_peer_info info;
    (void)state;
    start();
    connect_bad(true);
    hth_store_u32le(size, 1 << 20);
    for (uint64_t id = 1; id <= 3; id++) {
        raw_request(&bad, id, METHOD_BLOB, size, 4, 0);
        hth_world_run_for(w, HTH_US_PER_S);
    }
    assert_int_equal(bad.reply_bytes, 2 << 20);
    assert_int_equal(bad.seen[HTH_FRAME_REPLY], 2);
    hth_world_run_for(w, 30 * HTH_US_PER_S);
    assert_true(bad.closed);
    assert_ok(hth_rpc_peer_info(server.rpc, &hth_node_env(bad_node)->self, &info));
    assert_false(info.connected);
    stop();
}

/* Cheap frames whose answers are never read. */
TEST(flood_of_pings_is_dropped)
{
    static uint8_t pings[HTH_FRAME_HEADER_BYTES * 2048];
    struct hth_rpc_peer_info info;
    (void)state;
    for (uint64_t i = 0; i < 2048; i++) {
        struct hth_frame_header h = {.version = 1, .type = HTH_FRAME_PING, .id = i};
        hth_frame_header_write(&h, pings + HTH_FRAME_HEADER_BYTES * i);
    }
    start();
    bad.deaf = true;
    raw_dial(&bad, hth_node_env(bad_node), &server.addr);
    hth_world_run_for(w, 100000);
    raw_hello(&bad);
    for (int i = 0; i < 200 && !bad.closed; i++) {
        raw_bytes(&bad, pings, sizeof(pings));
        hth_world_run_for(w, 20000);
    }
    hth_world_run_for(w, 100000);
    assert_ok(hth_rpc_peer_info(server.rpc, &hth_node_env(bad_node)->self, &info));
    assert_false(info.connected);
    assert_int_equal(info.last_err, HTH_E_QUEUE_FULL);
    bad.deaf = false;
    stop();
}

/* ---- floods of connections ----------------------------------------------------------------- */

#define FLOOD 40

TEST(connections_are_bounded)
{
    struct hth_world_opts wopts = HTH_WORLD_OPTS_INIT;
    struct hth_rpc_opts opts = member_opts();
    static struct swarm_raw raws[FLOOD];
    struct hth_rpc_stats stats;
    (void)state;
    w = hth_world_new(5, &wopts);
    opts.conns_max = 16;
    member_start(&server, w, "server", opts);
    struct hth_node *one = hth_world_node(w, "one", NULL);
    memset(raws, 0, sizeof(raws));
    for (int i = 0; i < 10; i++) /* one identity */
        raw_dial(&raws[i], hth_node_env(one), &server.addr);
    hth_world_run_for(w, 500000);
    hth_rpc_stats(server.rpc, &stats);
    assert_int_equal(stats.conns, HTH_RPC_CONNS_PER_PEER_MAX);
    for (int i = 10; i < FLOOD; i++) /* many */
        raw_dial(&raws[i], hth_node_env(hth_world_node(w, "n", NULL)), &server.addr);
    hth_world_run_for(w, 500000);
    hth_rpc_stats(server.rpc, &stats);
    assert_int_equal(stats.conns, 16);
    for (int i = 0; i < FLOOD; i++)
        raw_clear(&raws[i]);
    hth_world_run_for(w, 500000);
    hth_rpc_stats(server.rpc, &stats);
    assert_int_equal(stats.conns, 0);
    member_stop(&server);
    hth_world_free(w);
}

/* The table of peers: a peer in use is never forgotten, an unused one makes room. */
TEST(peers_are_bounded)
{
    struct hth_world_opts wopts = HTH_WORLD_OPTS_INIT;
    struct hth_rpc_opts opts = member_opts();
    struct hth_rpc_call_opts copts = {.method = METHOD_ECHO, .timeout_us = HTH_US_PER_S};
    struct hth_rpc_target target = {.peer = {{1}}};
    struct swarm_verdict many = {0};
    (void)state;
    w = hth_world_new(5, &wopts);
    opts.calls_max = UINT32_MAX;
    member_start(&server, w, "server", opts);
    many.env = server.env;
    for (uint32_t i = 0; i < HTH_RPC_PEERS_MAX; i++) { /* with an id, and anonymous */
        struct hth_rpc_target nobody = {.addr = {.port = 1}};
        hth_store_u32le(target.peer.b + 4, i);
        hth_store_u32le(nobody.addr.ip, i);
        const struct hth_rpc_target *to = i % 2 == 0 ? &target : &nobody;
        assert_ok(hth_rpc_call(server.rpc, to, &copts, on_verdict, &many, NULL));
    }
    hth_store_u32le(target.peer.b + 4, HTH_RPC_PEERS_MAX);
    assert_err(HTH_E_BUDGET, hth_rpc_call(server.rpc, &target, &copts, on_verdict, &many, NULL));
    hth_world_run_for(w, 1000);
    assert_int_equal(many.count, HTH_RPC_PEERS_MAX);
    assert_int_equal(many.err, HTH_E_UNREACHABLE);
    assert_ok(hth_rpc_call(server.rpc, &target, &copts, on_verdict, &many, NULL));
    hth_world_run_for(w, 1000);
    struct hth_rpc_stats stats;
    hth_rpc_stats(server.rpc, &stats);
    assert_true(stats.peers <= 2);
    member_stop(&server);
    hth_world_free(w);
}

/* ---- hostile servers ----------------------------------------------------------------------- */

/* `good` calls the raw peer, which has sent HELLO and received the request. */
static void call_bad(struct swarm_verdict *out)
{
    struct hth_rpc_target target = {hth_node_env(bad_node)->self, hth_node_addr(bad_node, 77)};
    struct hth_rpc_call_opts opts = {.method = METHOD_ECHO, .timeout_us = 30 * HTH_US_PER_S};
    raw_listen(&bad, hth_node_env(bad_node), 77);
    out->env = good.env;
    assert_ok(hth_rpc_call(good.rpc, &target, &opts, on_verdict, out, NULL));
    hth_world_run_for(w, 100000);
    assert_true(bad.open);
    raw_hello(&bad);
    hth_world_run_for(w, 100000);
    assert_int_equal(bad.seen[HTH_FRAME_REQUEST], 1);
}

/* One CANCEL, after the deadline, and none for the call that was answered in time. */
TEST(timeout_sends_cancel)
{
    struct hth_frame_msg msg = {.type = HTH_FRAME_REPLY, .id = 0x10000};
    struct hth_rpc_call_opts opts = {.method = METHOD_ECHO, .timeout_us = 500 * HTH_US_PER_MS};
    (void)state;
    start();
    struct hth_rpc_target target = {hth_node_env(bad_node)->self, hth_node_addr(bad_node, 77)};
    call_bad(&v[0]);
    raw_frame(&bad, &msg);
    hth_world_run_for(w, 100 * HTH_US_PER_MS);
    assert_int_equal(v[0].err, HTH_OK);
    v[1].env = good.env;
    assert_ok(hth_rpc_call(good.rpc, &target, &opts, on_verdict, &v[1], NULL));
    hth_world_run_for(w, 499 * HTH_US_PER_MS);
    assert_int_equal(v[1].count, 0);
    assert_int_equal(bad.seen[HTH_FRAME_REQUEST], 2);
    assert_int_equal(bad.seen[HTH_FRAME_CANCEL], 0);
    hth_world_run_for(w, 2 * HTH_US_PER_S);
    assert_int_equal(v[1].err, HTH_E_TIMEOUT);
    assert_int_equal(bad.seen[HTH_FRAME_CANCEL], 1);
    stop();
}

TEST(second_reply_is_dropped)
{
    struct hth_frame_msg msg = {.type = HTH_FRAME_REPLY, .id = 0x10000};
    (void)state;
    start();
    call_bad(&v[0]);
    raw_frame(&bad, &msg);
    raw_frame(&bad, &msg);
    hth_world_run_for(w, 200000);
    assert_int_equal(v[0].count, 1);
    assert_int_equal(v[0].err, HTH_OK);
    assert_true(bad.closed);
    assert_int_equal(bad.goodbye_err, HTH_E_PROTOCOL);
    stop();
}

TEST(server_of_another_protocol_fails_call)
{
    (void)state;
    start();
    call_bad(&v[0]);
    raw_bytes(&bad, "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n", 40);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_BAD_MAGIC);
    assert_false(v[0].remote);
    stop();
}

TEST(goodbye_error_fails_call)
{
    struct hth_frame_msg msg = {.type = HTH_FRAME_GOODBYE};
    (void)state;
    start();
    call_bad(&v[0]);
    msg.u.refuse.err = HTH_E_DISK_FULL;
    msg.u.refuse.text = "no room here";
    raw_frame(&bad, &msg);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_DISK_FULL);
    assert_string_equal(v[0].text, "no room here");
    stop();
}

TEST(oversized_reply_fails_call)
{
    struct hth_frame_msg msg = {.type = HTH_FRAME_REPLY, .id = 0x10000};
    struct hth_blob *ghost = hth_blob_ghost((128u << 20) + 1, 1);
    struct hth_tensor t = {HTH_U8, 1, {(128u << 20) + 1}, ghost, 0};
    (void)state;
    start();
    call_bad(&v[0]);
    msg.body.tensors = &t;
    msg.body.tensor_count = 1;
    raw_frame(&bad, &msg);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_TOO_LARGE);
    hth_blob_unref(ghost);
    stop();
}
