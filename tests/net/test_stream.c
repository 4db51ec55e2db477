/* SPDX-License-Identifier: Apache-2.0 */
/* test_stream.c: bytes between two ends: order, back-pressure, and every way a stream ends. */
#include "net/pair.h"
#include "support/suite.h"

#include <pthread.h>

#define MIB ((size_t)1 << 20)

static uint8_t pattern_at(uint64_t pos, uint64_t salt)
{
    return (uint8_t)(hth_mix64((pos >> 3) + salt) >> ((pos & 7) * 8));
}

/* ---- echo: both directions at once, random pieces ------------------------------------------- */

struct flow {
    struct pair_end *from, *to;
    struct hth_rng rng;
    uint64_t salt, total, sent, checked;
    struct hth_blob *source; /* the whole pattern */
};

struct echo {
    struct flow up, down;
};

static struct flow *flow_from(struct pair_end *e)
{
    struct echo *x = e->pair->user;
    return x->up.from == e ? &x->up : &x->down;
}

static struct flow *flow_to(struct pair_end *e)
{
    struct echo *x = e->pair->user;
    return x->up.to == e ? &x->up : &x->down;
}

/* Writes of 1 to 4 spans, from one byte to 100 KB each. */
static void flow_send(struct pair_end *e)
{
    struct flow *f = flow_from(e);
    struct hth_env *env = e->pair->env;
    while (f->sent < f->total && hth_stream_queued(env, e->s) < 2 * MIB) {
        struct hth_span spans[4];
        size_t count = 0, want = 1 + hth_rng_below(&f->rng, 4);
        uint64_t at = f->sent;
        while (count < want && at < f->total) {
            uint64_t max = hth_rng_chance(&f->rng, 0.5) ? 64 : 100000;
            uint64_t len = 1 + hth_rng_below(&f->rng, max);
            len = HTH_MIN(len, f->total - at);
            spans[count++] = (struct hth_span){f->source, (size_t)at, (size_t)len};
            at += len;
        }
        assert_ok(hth_stream_write(env, e->s, spans, count));
        f->sent = at;
    }
}

/* A few short reads, then leaves the rest for the next on_readable. */
static void flow_read(struct pair_end *e)
{
    struct flow *f = flow_to(e);
    struct hth_env *env = e->pair->env;
    for (int i = 0; i < 12; i++) {
        size_t max = hth_rng_chance(&f->rng, 0.3) ? 1 + hth_rng_below(&f->rng, 40)
                                                  : 1 + hth_rng_below(&f->rng, 200000);
        size_t at = hth_rng_below(&f->rng, 64);
        size_t n = hth_stream_read(env, e->s, e->into, at, max);
        for (size_t k = 0; k < n; k++, f->checked++) {
            if (e->into->data[at + k] != pattern_at(f->checked, f->salt))
                fail_msg("byte %llu is wrong", (unsigned long long)f->checked);
        }
        if (n == 0)
            return;
    }
}

static bool echo_done(struct stream_pair *p)
{
    struct echo *x = p->user;
    return x->up.checked == x->up.total && x->down.checked == x->down.total;
}

static void flow_init(struct flow *f, struct pair_end *from, struct pair_end *to, uint64_t total)
{
    *f = (struct flow){.from = from, .to = to, .salt = total + (from < to), .total = total};
    hth_rng_init(&f->rng, 7 + (from < to));
    f->source = hth_blob_try_new(total);
    assert_non_null(f->source);
    for (uint64_t i = 0; i < total; i++)
        f->source->data[i] = pattern_at(i, f->salt);
    from->on_open = flow_send;
    from->on_drained = flow_send;
    to->on_readable = flow_read;
}

static void run_echo(const struct hth_net_opts *opts, const char *at, uint64_t total)
{
    struct stream_pair p;
    struct echo x;
    struct hth_peer_id id;
    pair_open_at(&p, opts, at);
    p.user = &x;
    flow_init(&x.up, &p.client, &p.server, total);
    flow_init(&x.down, &p.server, &p.client, total);
    pair_dial(&p);
    pair_run(&p, echo_done);
    hth_stream_peer(p.env, p.client.s, &id, NULL);
    assert_true(hth_peer_id_eq(&id, &p.env->self));
    assert_int_equal(hth_stream_queued(p.env, p.client.s), 0);
    assert_true(p.client.drained > 0);
    pair_close(&p);
    hth_blob_unref(x.up.source);
    hth_blob_unref(x.down.source);
}

TEST(echo_over_tls)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    (void)state;
    run_echo(&opts, "127.0.0.1:0", (HTH_TEST_FEW ? 4 : 64) * MIB);
}

TEST(echo_without_tls)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    (void)state;
    opts.plain = true;
    run_echo(&opts, "127.0.0.1:0", (HTH_TEST_FEW ? 4 : 16) * MIB);
}

TEST(echo_over_ipv6)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    (void)state;
    run_echo(&opts, "[::1]:0", 4 * MIB);
}

/* The key changes every 8 records in both directions. */
TEST(echo_with_key_updates)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    (void)state;
    opts.key_records_max = 8;
    run_echo(&opts, "127.0.0.1:0", 8 * MIB);
}

/* Listens in both families on one port; a peer's address has the family of its connection. */
TEST(one_port_listens_in_both_families)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_listener *six;
    struct hth_addr addr = {.family = 6, .ip = {[15] = 1}}, from;
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    addr.port = p.addr.port;
    assert_ok(hth_listen(p.env, &addr, pair_accept, &p, &six));
    assert_err(HTH_E_ADDR_IN_USE, hth_listen(p.env, &addr, pair_accept, &p, &six));
    assert_null(six);
    pair_close(&p);

    pair_open(&p, &opts);
    addr.port = p.addr.port;
    assert_ok(hth_listen(p.env, &addr, pair_accept, &p, &six));
    p.addr = addr;
    pair_dial(&p);
    pair_run(&p, both_open);
    hth_stream_peer(p.env, p.server.s, NULL, &from);
    assert_int_equal(from.family, 6);
    hth_listener_free(p.env, six);
    pair_close(&p);
}

/* ---- back-pressure -------------------------------------------------------------------------- */

static bool client_drained(struct stream_pair *p)
{
    return p->client.drained > 0;
}

static bool server_got_all(struct stream_pair *p)
{
    return p->server.got == HTH_STREAM_QUEUE_BYTES_MAX;
}

/* The reader pauses: the writer's queue fills to the limit and not a byte beyond, then drains. */
TEST(queue_fills_to_limit_and_drains)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_blob *blob = hth_blob_try_new(32 * MIB);
    struct hth_span span = {blob, 0, 32 * MIB}, one = {blob, 0, 1};
    struct stream_pair p;
    (void)state;
    assert_non_null(blob);
    memset(blob->data, 1, blob->size);
    pair_connect(&p, &opts);
    hth_stream_pause(p.env, p.server.s, true);
    for (size_t i = 0; i < HTH_STREAM_QUEUE_BYTES_MAX / (32 * MIB); i++)
        assert_ok(hth_stream_write(p.env, p.client.s, &span, 1));
    assert_int_equal(hth_stream_queued(p.env, p.client.s), HTH_STREAM_QUEUE_BYTES_MAX);
    assert_err(HTH_E_QUEUE_FULL, hth_stream_write(p.env, p.client.s, &one, 1));
    assert_int_equal(p.client.drained, 0);
    assert_int_equal(p.server.got, 0);
    hth_stream_pause(p.env, p.server.s, false);
    pair_run(&p, client_drained);
    assert_true(hth_stream_queued(p.env, p.client.s) < HTH_STREAM_LOW_BYTES);
    pair_run(&p, server_got_all);
    assert_int_equal(p.client.drained, 1);
    assert_int_equal(blob->refs, 1);
    pair_close(&p);
    hth_blob_unref(blob);
}

static bool queue_is_stuck(struct stream_pair *p)
{
    static size_t last;
    static int64_t since;
    size_t now = hth_stream_queued(p->env, p->client.s);
    if (now != last) {
        last = now;
        since = hth_now_us(p->env);
    }
    return hth_now_us(p->env) - since > QUIET_US;
}

/* A paused reader makes the sender wait: what TCP's buffers do not hold stays queued. */
TEST(pause_stops_the_sender)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_blob *blob = hth_blob_try_new(32 * MIB);
    struct hth_span span = {blob, 0, 32 * MIB};
    struct stream_pair p;
    (void)state;
    assert_non_null(blob);
    memset(blob->data, 2, blob->size);
    pair_connect(&p, &opts);
    hth_stream_pause(p.env, p.server.s, true);
    assert_ok(hth_stream_write(p.env, p.client.s, &span, 1));
    pair_run(&p, queue_is_stuck);
    assert_true(hth_stream_queued(p.env, p.client.s) > MIB);
    assert_int_equal(p.server.readable, 0);
    assert_int_equal(p.client.drained, 0);
    pair_close(&p);
    assert_int_equal(blob->refs, 1);
    hth_blob_unref(blob);
}

/* ---- endings -------------------------------------------------------------------------------- */

static bool server_closed_client_gone(struct stream_pair *p)
{
    return p->server.closed == 1 && no_streams(p);
}

/* All queued bytes arrive, then HTH_OK; the closing side gets no callback. */
static void run_flush_close(bool plain)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_blob *blob = hth_blob_try_new(24 * MIB);
    struct hth_span span = {blob, 0, 24 * MIB};
    struct stream_pair p;
    assert_non_null(blob);
    memset(blob->data, 3, blob->size);
    opts.plain = plain;
    pair_connect(&p, &opts);
    assert_ok(hth_stream_write(p.env, p.client.s, &span, 1));
    /* Bytes that the closer never reads must not turn the end into a reset. */
    assert_ok(end_write(&p.server, "unread", 6));
    hth_stream_close(p.env, p.client.s, true);
    p.client.s = NULL;
    pair_run(&p, server_closed_client_gone);
    assert_int_equal(p.server.err, HTH_OK);
    assert_int_equal(p.server.got, 24 * MIB);
    assert_int_equal(p.client.closed, 0);
    pair_close(&p);
    assert_int_equal(blob->refs, 1);
    hth_blob_unref(blob);
}

TEST(flushing_close_delivers_all_bytes)
{
    (void)state;
    run_flush_close(false);
    run_flush_close(true);
}

/* Both ends flush and close at the same time, and neither waits for the timeout, which would come
 * after the guard. The one with more to send sees the other's end first. */
TEST(both_ends_may_flush_and_close)
{
    static const size_t sizes[] = {1, 24 * MIB};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(sizes); i++) {
        struct hth_net_opts opts = HTH_NET_OPTS_INIT;
        struct hth_blob *blob = hth_blob_try_new(sizes[i]);
        struct hth_span span = {blob, 0, sizes[i]};
        struct stream_pair p;
        assert_non_null(blob);
        memset(blob->data, 1, blob->size);
        opts.flush_timeout_us = 100 * GUARD_US;
        pair_connect(&p, &opts);
        assert_ok(hth_stream_write(p.env, p.client.s, &span, 1));
        assert_ok(end_write(&p.server, "b", 1));
        hth_stream_close(p.env, p.client.s, true);
        hth_stream_close(p.env, p.server.s, true);
        p.client.s = p.server.s = NULL;
        pair_run(&p, no_streams);
        assert_int_equal(p.client.closed + p.server.closed, 0);
        pair_close(&p);
        hth_blob_unref(blob);
    }
}

/* A peer that never reads holds a flushing stream no longer than the timeout. */
TEST(flush_ends_at_its_timeout)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_blob *blob = hth_blob_try_new(32 * MIB);
    struct hth_span span = {blob, 0, 32 * MIB};
    struct stream_pair p;
    (void)state;
    assert_non_null(blob);
    memset(blob->data, 4, blob->size);
    opts.flush_timeout_us = 50000;
    pair_connect(&p, &opts);
    hth_stream_pause(p.env, p.server.s, true);
    assert_ok(hth_stream_write(p.env, p.client.s, &span, 1));
    hth_stream_close(p.env, p.client.s, true);
    p.client.s = NULL;
    int64_t start = hth_now_us(p.env);
    struct hth_stream *server = p.server.s;
    while (hth_net_stream_count(p.env) > 1) {
        assert_true(hth_now_us(p.env) - start < GUARD_US);
        hth_timer_set(p.env, p.guard, 5000);
        assert_ok(hth_net_run(p.env));
    }
    assert_true(hth_now_us(p.env) - start >= 50000);
    p.guarded = false;
    hth_stream_pause(p.env, server, false);
    pair_run(&p, server_closed);
    assert_int_equal(p.server.err, HTH_E_CLOSED); /* the error shows that bytes are missing */
    assert_true(p.server.got < 32 * MIB);
    pair_close(&p);
    hth_blob_unref(blob);
}

static void run_abrupt(bool plain)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    opts.plain = plain;
    pair_connect(&p, &opts);
    hth_stream_close(p.env, p.client.s, false);
    p.client.s = NULL;
    pair_run(&p, server_closed);
    assert_int_equal(p.server.err, HTH_E_CLOSED);
    assert_int_equal(p.client.closed, 0);
    pair_run(&p, no_streams);
    pair_close(&p);
}

TEST(close_without_flush_is_an_error_there)
{
    (void)state;
    run_abrupt(false);
    run_abrupt(true);
}

static void close_me(struct pair_end *e)
{
    struct hth_stream *s = e->s;
    e->s = NULL;
    hth_stream_close(e->pair->env, s, false);
    /* Harmless in the callback that closed it. */
    hth_stream_close(e->pair->env, s, true);
    assert_int_equal(hth_stream_read(e->pair->env, s, e->into, 0, 1), 0);
    struct hth_blob *blob = hth_blob_copy("x", 1);
    struct hth_span span = {blob, 0, 1};
    assert_err(HTH_E_CLOSED, hth_stream_write(e->pair->env, s, &span, 1));
    hth_blob_unref(blob);
}

static void say_hello(struct pair_end *e)
{
    assert_ok(end_write(e, "hello", 5));
}

static bool server_closed_or_gone(struct stream_pair *p)
{
    return p->client.opened == 1 && p->accepted == 1 && no_streams(p);
}

/* Closing inside on_open, on_readable, on_drained, and inside the accept callback. */
TEST(streams_may_close_inside_callbacks)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    p.server.on_open = close_me;
    pair_dial(&p);
    pair_run(&p, server_closed_or_gone);
    assert_int_equal(p.client.err, HTH_E_CLOSED);
    pair_close(&p);

    pair_open(&p, &opts);
    p.client.on_open = say_hello;
    p.server.on_readable = close_me;
    pair_dial(&p);
    pair_run(&p, client_closed);
    assert_int_equal(p.server.closed, 0);
    pair_close(&p);

    pair_connect(&p, &opts);
    p.client.on_drained = close_me;
    struct hth_blob *blob = hth_blob_try_new(MIB);
    struct hth_span span = {blob, 0, MIB};
    assert_non_null(blob);
    memset(blob->data, 5, MIB);
    assert_ok(hth_stream_write(p.env, p.client.s, &span, 1));
    pair_run(&p, server_closed);
    pair_close(&p);
    hth_blob_unref(blob);

    pair_open(&p, &opts);
    p.reject = true;
    pair_dial(&p);
    pair_run(&p, client_closed);
    assert_int_equal(p.accepted, 1);
    assert_int_equal(p.client.err, HTH_E_CLOSED);
    pair_close(&p);
}

TEST(close_before_open_gives_no_callback)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    pair_dial(&p);
    hth_stream_close(p.env, p.client.s, true);
    p.client.s = NULL;
    pair_run(&p, no_streams);
    assert_int_equal(p.client.opened + p.client.closed, 0);
    pair_close(&p);
}

/* Bytes written before the stream is open arrive after that. */
static bool server_got_5(struct stream_pair *p)
{
    return p->server.got == 5;
}

TEST(early_writes_arrive_after_open)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    pair_dial(&p);
    assert_ok(end_write(&p.client, "early", 5));
    pair_run(&p, server_got_5);
    pair_close(&p);
}

/* Level triggered: on_readable repeats for each byte left in the codec, then the end comes. */
static void read_one(struct pair_end *e)
{
    e->got += hth_stream_read(e->pair->env, e->s, e->into, 0, 1);
}

TEST(on_readable_repeats_for_unread_bytes)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    char text[300];
    (void)state;
    memset(text, 'x', sizeof(text));
    for (int plain = 0; plain < 2; plain++) {
        opts.plain = plain == 1;
        pair_connect(&p, &opts);
        p.server.on_readable = read_one;
        assert_ok(end_write(&p.client, text, sizeof(text)));
        hth_stream_close(p.env, p.client.s, true);
        p.client.s = NULL;
        pair_run(&p, server_closed);
        assert_int_equal(p.server.got, sizeof(text));
        assert_int_equal(p.server.readable, sizeof(text));
        assert_int_equal(p.server.err, HTH_OK);
        pair_close(&p);
    }
}

/* Freeing with open streams leaks nothing and calls nothing (checked by the sanitizers). */
TEST(free_with_open_streams)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    (void)state;
    pair_connect(&p, &opts);
    for (int i = 0; i < 100; i++)
        assert_ok(end_write(&p.client, "left behind", 11));
    hth_timer_free(p.env, p.poll);
    hth_timer_free(p.env, p.guard);
    hth_net_free(p.env);
    assert_int_equal(p.client.closed + p.server.closed, 0);
    hth_blob_unref(p.client.into);
    hth_blob_unref(p.server.into);
}

/* ---- two environments, two threads ---------------------------------------------------------- */

struct far {
    struct hth_env *env;
    struct hth_blob *into;
    struct hth_listener *listener;
};

static void far_readable(struct hth_stream *s, void *arg)
{
    struct far *f = arg;
    size_t n = hth_stream_read(f->env, s, f->into, 0, f->into->size);
    struct hth_blob *copy = hth_blob_copy(f->into->data, n);
    struct hth_span span = {copy, 0, n};
    if (n > 0)
        assert_ok(hth_stream_write(f->env, s, &span, 1));
    hth_blob_unref(copy);
}

static void far_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct far *f = arg;
    (void)s;
    (void)err;
    hth_net_stop(f->env);
}

static const struct hth_stream_ops far_ops = {.on_readable = far_readable, .on_closed = far_closed};

static void far_accept(void *arg, struct hth_stream *s)
{
    struct far *f = arg;
    hth_stream_attach(f->env, s, &far_ops, f);
}

static void *far_main(void *arg)
{
    struct far *f = arg;
    enum hth_err err = hth_net_run(f->env);
    return err == HTH_OK ? NULL : f;
}

static bool client_got_4mib(struct stream_pair *p)
{
    return p->client.got == 4 * MIB;
}

TEST(two_environments_run_on_two_threads)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_addr addr = {.family = 4, .ip = {127, 0, 0, 1}};
    struct hth_blob *blob = hth_blob_try_new(MIB);
    struct hth_span span = {blob, 0, MIB};
    struct far f = {0};
    struct hth_peer_id id;
    struct stream_pair p;
    pthread_t thread;
    void *failed;
    (void)state;
    assert_non_null(blob);
    memset(blob->data, 6, MIB);
    assert_ok(hth_net_new(&opts, &f.env));
    f.into = hth_blob_try_new(MIB);
    assert_non_null(f.into);
    assert_ok(hth_listen(f.env, &addr, far_accept, &f, &f.listener));
    hth_listener_addr(f.env, f.listener, &addr);
    pair_open(&p, &opts);
    p.addr = addr;
    assert_ok(hth_dial(p.env, &addr, &f.env->self, &end_ops, &p.client, &p.client.s));
    hth_stream_peer(p.env, p.client.s, &id, NULL);
    assert_true(hth_peer_id_is_zero(&id));
    assert_int_equal(pthread_create(&thread, NULL, far_main, &f), 0);
    for (int i = 0; i < 4; i++)
        assert_ok(hth_stream_write(p.env, p.client.s, &span, 1));
    pair_run(&p, client_got_4mib);
    hth_stream_peer(p.env, p.client.s, &id, NULL);
    assert_true(hth_peer_id_eq(&id, &f.env->self));
    pair_close(&p);
    pthread_join(thread, &failed);
    assert_null(failed);
    hth_listener_free(f.env, f.listener);
    hth_net_free(f.env);
    hth_blob_unref(f.into);
    hth_blob_unref(blob);
}
