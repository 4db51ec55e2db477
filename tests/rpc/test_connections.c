/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections between honest peers in the simulator: how they are made, break, are found dead,
 * drain and end.
 */
#include "rpc/duo.h"
#include "support/suite.h"

TEST(refused_dial_fails_calls_and_backs_off)
{
    (void)state;
    start_default();
    struct hth_rpc_target target = member_target(&b);
    struct hth_rpc_call_opts opts = {.method = METHOD_ECHO, .timeout_us = 10 * HTH_US_PER_S};
    target.addr.port = 9;
    v[0].env = v[1].env = a.env;
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[0], NULL));
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_REFUSED);
    /* Fails fast while in back-off, but not inside the call. */
    int64_t from = hth_world_now_us(w);
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[1], NULL));
    assert_int_equal(v[1].count, 0);
    await(w, &v[1]);
    assert_int_equal(v[1].err, HTH_E_REFUSED);
    assert_int_equal(v[1].at_us, from);
    struct hth_rpc_peer_info info;
    assert_ok(hth_rpc_peer_info(a.rpc, &b.env->self, &info));
    assert_true(info.retry_in_us > 0);
    /* After the back-off it is dialled again. */
    hth_world_run_for(w, info.retry_in_us + 1);
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[2], NULL));
    await(w, &v[2]);
    struct hth_rpc_stats stats;
    hth_rpc_stats(a.rpc, &stats);
    assert_int_equal(stats.dials, 2);
    /* And before, after a sign that it lives. */
    hth_rpc_lives(a.rpc, &a.env->self); /* it never called that one */
    hth_rpc_lives(a.rpc, &b.env->self);
    assert_ok(hth_rpc_peer_info(a.rpc, &b.env->self, &info));
    assert_int_equal(info.retry_in_us, 0);
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[4], NULL));
    await(w, &v[4]);
    hth_rpc_stats(a.rpc, &stats);
    assert_int_equal(stats.dials, 3);
    /* Under a new address the peer is dialled at once. */
    call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[3]);
    await(w, &v[3]);
    assert_int_equal(v[3].err, HTH_OK);
    stop();
}

TEST(backoff_doubles_up_to_its_maximum)
{
    struct hth_rpc_opts opts = member_opts();
    struct hth_rpc_peer_info info;
    double want = 200000;
    (void)state;
    opts.backoff_max_us = 3 * HTH_US_PER_S;
    start(opts, member_opts());
    b.addr.port = 9;
    for (int i = 0; i < 8; i++) {
        call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[i]);
        await(w, &v[i]);
        assert_int_equal(v[i].err, HTH_E_REFUSED);
        assert_ok(hth_rpc_peer_info(a.rpc, &b.env->self, &info));
        assert_in_range(info.retry_in_us, (uint64_t)(want * 0.74), (uint64_t)(want * 1.26));
        want = HTH_MIN(2 * want, 3e6);
        hth_world_run_for(w, info.retry_in_us + 1);
    }
    stop();
}

TEST(dial_refuses_wrong_key)
{
    (void)state;
    start_default();
    struct hth_rpc_target target = member_target(&b);
    struct hth_rpc_call_opts opts = {.method = METHOD_ECHO, .timeout_us = HTH_US_PER_S};
    target.peer.b[0] ^= 1;
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[0], NULL));
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_BAD_PEER_ID);
    /* Without a wanted key any peer is accepted. */
    memset(&target.peer, 0, sizeof(target.peer));
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[1], NULL));
    await(w, &v[1]);
    assert_int_equal(v[1].err, HTH_OK);
    /* Without key and address the call fails. */
    memset(&target.addr, 0, sizeof(target.addr));
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[2], NULL));
    await(w, &v[2]);
    assert_int_equal(v[2].err, HTH_E_UNREACHABLE);
    stop();
}

TEST(call_fails_in_another_network)
{
    struct hth_rpc_opts other = member_opts();
    (void)state;
    other.network = "elsewhere";
    start(member_opts(), other);
    call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[0]);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_WRONG_RUN);
    assert_non_null(strstr(v[0].text, "'elsewhere'"));
    assert_non_null(strstr(v[0].text, "'test'"));
    assert_int_equal(b.seen, 0);
    stop();
    /* Names are UTF-8: two that differ there alone are two, and the text shows neither's bytes. */
    struct hth_rpc_opts one = member_opts();
    one.network = "f\xC3\xBCr-alle";
    other.network = "f\xC3\xB6r-alle";
    start(one, other);
    call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[0]);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_WRONG_RUN);
    assert_non_null(strstr(v[0].text, "'f\?\?r-alle'"));
    stop();
    start(one, one);
    call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[0]);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_OK);
    stop();
}

TEST(call_needs_a_common_version)
{
    struct hth_rpc_opts newer = member_opts();
    (void)state;
    newer.version_min = 2;
    newer.version_max = 3;
    start(member_opts(), newer);
    call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[0]);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_VERSION);
    stop();
    newer.version_min = 1;
    start(member_opts(), newer);
    call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[0]);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_OK);
    struct hth_rpc_peer_info info;
    assert_ok(hth_rpc_peer_info(b.rpc, &a.env->self, &info));
    assert_int_equal(info.version, 1);
    stop();
}

TEST(crash_fails_all_calls_at_once)
{
    (void)state;
    start_default();
    for (int i = 0; i < 10; i++)
        call_text(&a, &b, METHOD_HOLD, "", 50 * HTH_US_PER_S, &v[i]);
    hth_world_run_for(w, 200000);
    int64_t from = hth_world_now_us(w);
    hth_node_crash(b.node, HTH_CRASH_RESET);
    hth_world_run_for(w, 100000);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(v[i].count, 1);
        assert_int_equal(v[i].err, HTH_E_CLOSED);
        assert_true(v[i].at_us - from < 50000);
    }
    assert_int_equal(a.lost_count, 1);
    assert_int_equal(a.lost_err, HTH_E_CLOSED);
    stop();
}

TEST(ping_finds_silent_peer_dead)
{
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_HOLD, "", 55 * HTH_US_PER_S, &v[0]);
    hth_world_run_for(w, 200000);
    hth_node_crash(b.node, HTH_CRASH_SILENT);
    int64_t from = hth_world_now_us(w);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_CLOSED);
    /* ping_after 5 s, ping_timeout 5 s, checked every 2.5 s */
    assert_in_range(v[0].at_us - from, 9 * HTH_US_PER_S, 16 * HTH_US_PER_S);
    hth_world_run_for(w, 1000);
    assert_int_equal(a.lost_err, HTH_E_TIMEOUT);
    stop();
}

/* Each dialled the other at once: a silent peer is dead on both connections. */
TEST(silent_peer_is_dead_on_all_connections)
{
    struct hth_rpc_stats stats;
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_HOLD, "", 55 * HTH_US_PER_S, &v[0]);
    call_text(&b, &a, METHOD_ECHO, "x", HTH_US_PER_S, &v[1]);
    hth_world_run_for(w, 200000);
    hth_rpc_stats(a.rpc, &stats);
    assert_int_equal(stats.conns, 2);
    hth_node_crash(b.node, HTH_CRASH_SILENT);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_CLOSED);
    hth_world_run_for(w, 1000);
    hth_rpc_stats(a.rpc, &stats);
    assert_int_equal(stats.conns, 0);
    assert_int_equal(a.lost_count, 1);
    stop();
}

/* One that answers on another connection lives, and loses the dead one alone. */
TEST(dead_connection_leaves_the_living_one)
{
    struct hth_rpc_stats stats;
    struct swarm_raw raw = {.env = NULL};
    (void)state;
    start_default();
    call_text(&b, &a, METHOD_ECHO, "x", HTH_US_PER_S, &v[1]);
    hth_world_run_for(w, 200000);
    raw_dial(&raw, b.env, &a.addr); /* it answers nothing */
    hth_world_run_for(w, 100000);
    raw_hello(&raw);
    hth_world_run_for(w, 100000);
    call_text(&a, &b, METHOD_HOLD, "", 55 * HTH_US_PER_S, &v[0]);
    hth_world_run_for(w, 100000);
    hth_rpc_stats(a.rpc, &stats);
    assert_int_equal(stats.conns, 2);
    hth_world_run_for(w, 16 * HTH_US_PER_S);
    assert_int_equal(v[0].err, HTH_E_CLOSED);
    hth_rpc_stats(a.rpc, &stats);
    assert_int_equal(stats.conns, 1);
    assert_int_equal(a.lost_count + b.lost_count, 0);
    raw_clear(&raw);
    stop();
}

/* Both processes stall while a PING is under way, as when their machine does, or one a second
 * longer. */
TEST(peer_that_stalled_with_us_is_kept)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct hth_rpc_stats before, now;
        start_default();
        call_text(&a, &b, METHOD_HOLD, "", 100 * HTH_US_PER_S, &v[0]);
        hth_world_run_for(w, 200000);
        hth_rpc_stats(a.rpc, &before);
        do { /* the PING */
            hth_world_run_for(w, 1000);
            hth_rpc_stats(a.rpc, &now);
        } while (now.bytes_out == before.bytes_out);
        hth_node_stall(a.node, 40 * HTH_US_PER_S);
        hth_node_stall(b.node, 40 * HTH_US_PER_S + i * HTH_US_PER_S);
        hth_world_run_for(w, 50 * HTH_US_PER_S);
        assert_int_equal(v[0].count, 0);
        assert_int_equal(a.lost_count + b.lost_count, 0);
        hth_rpc_reply(b.held[0], NULL);
        b.held_count = 0;
        await(w, &v[0]);
        assert_int_equal(v[0].err, HTH_OK);
        stop();
    }
}

/* Repeated stalls of our machine do not keep a dead peer. */
TEST(dead_peer_is_found_on_busy_machine)
{
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_HOLD, "", 90 * HTH_US_PER_S, &v[0]);
    hth_world_run_for(w, 200000);
    hth_node_crash(b.node, HTH_CRASH_SILENT);
    int64_t from = hth_world_now_us(w);
    while (v[0].count == 0) {
        hth_node_stall(a.node, 150000);
        hth_world_run_for(w, 200000);
    }
    assert_int_equal(v[0].err, HTH_E_CLOSED);
    assert_in_range(v[0].at_us - from, 9 * HTH_US_PER_S, 2 * 16 * HTH_US_PER_S);
    hth_world_run_for(w, 200000);
    stop();
}

TEST(living_peer_without_traffic_is_kept)
{
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_HOLD, "", 100 * HTH_US_PER_S, &v[0]);
    hth_world_run_for(w, 90 * HTH_US_PER_S);
    assert_int_equal(v[0].count, 0);
    hth_rpc_reply(b.held[0], NULL);
    b.held_count = 0;
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_OK);
    struct hth_rpc_peer_info info;
    assert_ok(hth_rpc_peer_info(a.rpc, &b.env->self, &info));
    assert_in_range(info.rtt_us, 20000, 21000);
    stop();
}

/* A nudge sends bytes unless other bytes were sent since the last one; without a connection it does
 * nothing. */
TEST(nudge_sends_ping_only_when_silent)
{
    struct hth_rpc_peer_info info;
    (void)state;
    start_default();
    hth_rpc_nudge(a.rpc, &b.env->self);
    call_text(&a, &b, METHOD_HOLD, "", 100 * HTH_US_PER_S, &v[0]);
    hth_world_run_for(w, 15000);
    assert_ok(hth_rpc_peer_info(a.rpc, &b.env->self, &info));
    assert_true(info.dialing && !info.connected && info.received_us == 0);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_ok(hth_rpc_peer_info(b.rpc, &a.env->self, &info));
    assert_true(!info.dialing && info.connected);
    int64_t received_us = info.received_us;
    uint64_t moved = info.moved_bytes;
    /* The call was sent since the last nudge: there was none yet. */
    hth_rpc_nudge(a.rpc, &b.env->self);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_ok(hth_rpc_peer_info(b.rpc, &a.env->self, &info));
    assert_true(info.received_us == received_us && info.moved_bytes == moved);
    hth_rpc_nudge(a.rpc, &b.env->self);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_ok(hth_rpc_peer_info(b.rpc, &a.env->self, &info));
    assert_true(info.received_us > received_us && info.moved_bytes > moved);
    assert_int_equal(v[0].count, 0);
    hth_rpc_reply(b.held[0], NULL);
    b.held_count = 0;
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_OK);
    stop();
}

TEST(idle_connection_closes_without_error)
{
    struct hth_rpc_opts opts = member_opts();
    struct hth_rpc_stats stats;
    (void)state;
    opts.idle_timeout_us = 10 * HTH_US_PER_S;
    start(opts, opts);
    call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[0]);
    await(w, &v[0]);
    hth_world_run_for(w, 9 * HTH_US_PER_S);
    hth_rpc_stats(a.rpc, &stats);
    assert_int_equal(stats.conns, 1);
    hth_world_run_for(w, 10 * HTH_US_PER_S);
    hth_rpc_stats(a.rpc, &stats);
    assert_int_equal(stats.conns, 0);
    assert_int_equal(stats.peers_dropped, 0);
    hth_rpc_stats(b.rpc, &stats);
    assert_int_equal(stats.conns, 0);
    assert_int_equal(a.lost_count, 1);
    assert_int_equal(a.lost_err, HTH_OK);
    /* No back-off: the next call dials at once. */
    call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[1]);
    await(w, &v[1]);
    assert_int_equal(v[1].err, HTH_OK);
    stop();
}

static void knock_open(struct hth_stream *s, void *arg)
{
    hth_stream_close(b.env, s, false);
    *(struct hth_stream **)arg = NULL;
}

static void knock_readable(struct hth_stream *s, void *arg)
{
    (void)s;
    (void)arg;
}

static void knock_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    (void)s;
    (void)arg;
    fail_msg("the connection did not open: %s", hth_err_name(err));
}

/* b only probes a, as a joining peer does: a must not back off from dialling b for that. */
TEST(probing_peer_causes_no_back_off)
{
    static const struct hth_stream_ops ops = {.on_open = knock_open,
                                              .on_readable = knock_readable,
                                              .on_drained = knock_readable,
                                              .on_closed = knock_closed};
    struct hth_rpc_peer_info info;
    struct hth_stream *s;
    (void)state;
    start_default();
    struct hth_rpc_target target = member_target(&a);
    for (int i = 0; i < 5; i++) {
        assert_ok(hth_dial(b.env, &target.addr, &target.peer, &ops, &s, &s));
        hth_world_run_for(w, 500 * HTH_US_PER_MS);
        assert_null(s);
    }
    assert_ok(hth_rpc_peer_info(a.rpc, &b.env->self, &info));
    assert_int_equal(info.retry_in_us, 0);
    assert_ok(hth_dial(b.env, &target.addr, &target.peer, &ops, &s, &s));
    hth_world_run_for(w, 100 * HTH_US_PER_MS);
    call_text(&a, &b, METHOD_ECHO, "x", HTH_US_PER_S, &v[0]);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_OK);
    stop();
}

static void set_flag(void *arg)
{
    *(bool *)arg = true;
}

TEST(drain_lets_requests_under_way_finish)
{
    bool drained = false;
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_HOLD, "", 50 * HTH_US_PER_S, &v[0]);
    hth_world_run_for(w, 200000);
    hth_rpc_drain(b.rpc, 20 * HTH_US_PER_S, set_flag, &drained);
    call_text(&a, &b, METHOD_ECHO, "crossing", HTH_US_PER_S, &v[1]);
    await(w, &v[1]);
    assert_int_equal(v[1].err, HTH_E_DRAINING);
    call_text(&a, &b, METHOD_ECHO, "later", HTH_US_PER_S, &v[2]);
    await(w, &v[2]);
    assert_int_equal(v[2].err, HTH_E_DRAINING);
    assert_false(drained);
    hth_rpc_reply(b.held[0], NULL);
    b.held_count = 0;
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_OK);
    hth_world_run_for(w, 200000);
    assert_true(drained);
    stop();
}

TEST(drain_ends_at_its_timeout)
{
    bool drained = false;
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_HOLD, "", 50 * HTH_US_PER_S, &v[0]);
    hth_world_run_for(w, 200000);
    hth_rpc_drain(b.rpc, 2 * HTH_US_PER_S, set_flag, &drained);
    hth_world_run_for(w, 1900000);
    assert_false(drained);
    hth_world_run_for(w, 200000);
    assert_true(drained);
    assert_int_equal(b.cancels, 1);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_CLOSED);
    stop();
}

/* Calls that wait for a connection dial again when it ends: here b, which never answers. */
TEST(drain_ends_although_a_call_waits)
{
    bool drained = false;
    (void)state;
    start_default();
    hth_world_block(w, a.node, b.node, true);
    call_text(&a, &b, METHOD_ECHO, "x", 50 * HTH_US_PER_S, &v[0]);
    hth_rpc_drain(a.rpc, 2 * HTH_US_PER_S, set_flag, &drained);
    hth_world_run_for(w, 1900000);
    assert_false(drained);
    hth_world_run_for(w, 200000);
    assert_true(drained);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_CLOSED);
    stop();
}

TEST(disconnect_fails_the_calls)
{
    (void)state;
    start_default();
    call_text(&a, &b, METHOD_HOLD, "", 50 * HTH_US_PER_S, &v[0]);
    hth_world_run_for(w, 200000);
    hth_rpc_disconnect(a.rpc, &b.env->self);
    assert_int_equal(v[0].count, 0);
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_CLOSED);
    stop();
}
