/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_stream.c: simulated streams: times against closed forms, order, back-pressure, ends of
 * streams, partitions.
 */
#include "core/limits.h"
#include "core/mem.h"
#include "sim/world.h"
#include "support/suite.h"

/* One end of a stream, which records its events. */
struct end {
    struct hth_env *env;
    struct hth_stream *stream;
    uint8_t *bytes;
    size_t bytes_len, bytes_room;
    uint64_t count;  /* bytes read without keeping them */
    uint64_t digest; /* digest of a ghost that was read */
    int64_t opened_us, first_us, last_us, closed_us;
    int opens, reads, drains, closes;
    enum hth_err err;
    bool echo, sleepy, count_only;
    size_t read_max;
};

static void end_open(struct hth_stream *s, void *arg)
{
    struct end *e = arg;
    assert_ptr_equal(s, e->stream);
    e->opens++;
    e->opened_us = hth_now_us(e->env);
}

static void keep(struct end *e, const uint8_t *data, size_t n)
{
    if (e->bytes_len + n > e->bytes_room) {
        e->bytes_room = 2 * (e->bytes_len + n);
        e->bytes = hth_realloc(e->bytes, e->bytes_room, 1);
    }
    memcpy(e->bytes + e->bytes_len, data, n);
    e->bytes_len += n;
}

static void end_readable(struct hth_stream *s, void *arg)
{
    struct end *e = arg;
    e->reads++;
    if (e->sleepy)
        return;
    struct hth_blob *into = hth_blob_try_new(65536);
    size_t n = hth_stream_read(e->env, s, into, 0, e->read_max > 0 ? e->read_max : 65536);
    assert_true(n > 0);
    if (e->count == 0)
        e->first_us = hth_now_us(e->env);
    e->count += n;
    e->last_us = hth_now_us(e->env);
    if (!e->count_only)
        keep(e, into->data, n);
    if (e->echo) {
        struct hth_span span = {.blob = into, .len = n};
        assert_ok(hth_stream_write(e->env, s, &span, 1));
    }
    hth_blob_unref(into);
}

static void end_drained(struct hth_stream *s, void *arg)
{
    struct end *e = arg;
    e->drains++;
    assert_true(hth_stream_queued(e->env, s) < HTH_STREAM_LOW_BYTES);
}

static void end_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct end *e = arg;
    assert_ptr_equal(s, e->stream);
    e->stream = NULL;
    e->closes++;
    e->err = err;
    e->closed_us = hth_now_us(e->env);
}

static const struct hth_stream_ops end_ops = {
    .on_open = end_open,
    .on_readable = end_readable,
    .on_drained = end_drained,
    .on_closed = end_closed,
};

static void end_accept(void *arg, struct hth_stream *s)
{
    struct end *e = arg;
    e->opens++;
    e->opened_us = hth_now_us(e->env);
    e->stream = s;
    hth_stream_attach(e->env, s, &end_ops, e);
}

/* Two nodes; b listens on port 1. */
struct pair {
    struct hth_world *w;
    struct hth_node *a, *b;
    struct end ea, eb;
    struct hth_listener *listener;
    struct hth_addr addr;
};

static void pair_init(struct pair *p, uint64_t seed, const struct hth_world_opts *opts)
{
    memset(p, 0, sizeof(*p));
    p->w = hth_world_new(seed, opts);
    p->a = hth_world_node(p->w, "a", NULL);
    p->b = hth_world_node(p->w, "b", NULL);
    p->ea.env = hth_node_env(p->a);
    p->eb.env = hth_node_env(p->b);
    p->addr = hth_node_addr(p->b, 1);
    assert_ok(hth_listen(p->eb.env, &p->addr, end_accept, &p->eb, &p->listener));
}

static void pair_dial(struct pair *p)
{
    assert_ok(hth_dial(p->ea.env, &p->addr, &p->eb.env->self, &end_ops, &p->ea, &p->ea.stream));
}

static void pair_clear(struct pair *p)
{
    struct end *ends[2] = {&p->ea, &p->eb};
    for (int i = 0; i < 2; i++) {
        if (ends[i]->stream != NULL)
            hth_stream_close(ends[i]->env, ends[i]->stream, false);
        hth_free(ends[i]->bytes);
    }
    hth_listener_free(p->eb.env, p->listener);
    struct hth_open_counts open;
    hth_world_open(p->w, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(p->w);
}

static void write_pattern(struct end *e, size_t offset, size_t len)
{
    struct hth_blob *blob = hth_blob_try_new(len);
    for (size_t i = 0; i < len; i++)
        blob->data[i] = (uint8_t)(hth_mix64(offset + i) & 0xff);
    struct hth_span span = {.blob = blob, .len = len};
    assert_ok(hth_stream_write(e->env, e->stream, &span, 1));
    hth_blob_unref(blob);
}

static void assert_pattern(const struct end *e, size_t len)
{
    assert_int_equal(e->bytes_len, len);
    for (size_t i = 0; i < len; i++)
        assert_int_equal(e->bytes[i], hth_mix64(i) & 0xff);
}

#define SEGMENT_US_MAX 10000 /* longest time of one segment on a slow uplink */

static struct hth_world_opts calm(int64_t latency_us, double bytes_per_s)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    opts.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    opts.link.latency_us = latency_us;
    opts.device.up_bytes_per_s = opts.device.down_bytes_per_s = bytes_per_s;
    return opts;
}

/* ---- times --------------------------------------------------------------------------------- */

TEST(dial_and_transfer_times_match_closed_forms)
{
    (void)state;
    struct hth_world_opts opts = calm(25000, 1e6);
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    assert_int_equal(p.ea.opens, 0);
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.ea.opened_us, 4 * 25000); /* two round trips */
    assert_int_equal(p.eb.opened_us, 5 * 25000); /* and the last message */
    /* 100,000 bytes at 1 MB/s take 0.1 s on the sender's uplink; the receiver's downlink is as fast
     * and works in parallel. */
    p.eb.echo = true;
    int64_t start_us = hth_world_now_us(p.w);
    write_pattern(&p.ea, 0, 100000);
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.eb.last_us - start_us, 100000 + 25000);
    assert_pattern(&p.ea, 100000);
    /* The echo begins when the first segment (10 ms of the uplink) has arrived, and b's uplink is
     * as fast as the bytes arrive: the end is the last segment's way back. */
    assert_int_equal(p.ea.last_us - start_us, 100000 + 25000 + SEGMENT_US_MAX + 25000);
    pair_clear(&p);
}

/* With every packet lost, a segment stalls for a round trip, and for the first retransmission timer
 * on top where no later packet would tell the sender sooner. */
TEST(lost_packets_stall_the_stream)
{
    (void)state;
    struct hth_world_opts opts = calm(10000, 0);
    opts.link.loss = 1.0;
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    int64_t start_us = hth_world_now_us(p.w);
    write_pattern(&p.ea, 0, 1000);
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.eb.last_us - start_us, 10000 + 20000 + 200000);
    start_us = hth_world_now_us(p.w);
    write_pattern(&p.ea, 1000, 60000);
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.eb.last_us - start_us, 10000 + 20000);
    assert_pattern(&p.eb, 61000);
    pair_clear(&p);
}

static void count_arrivals(void *arg, int64_t now_us, const char *node, const char *event,
                           uint64_t detail)
{
    (void)now_us;
    (void)node;
    (void)detail;
    *(int *)arg += strcmp(event, "arrive") == 0;
}

/* A reader that takes a few bytes at a time opens the window a few bytes at a time, and the sender
 * learns of each at once here: it waits until a whole segment fits. */
TEST(sender_waits_until_a_whole_segment_fits)
{
    (void)state;
    struct hth_world_opts opts = calm(0, 0);
    int arrivals = 0;
    opts.window_bytes = 2 * opts.segment_bytes;
    opts.trace = count_arrivals;
    opts.trace_arg = &arrivals;
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    arrivals = 0;
    p.eb.read_max = 1000;
    write_pattern(&p.ea, 0, 16 * opts.segment_bytes);
    hth_world_run_for(p.w, 60 * HTH_US_PER_S);
    assert_pattern(&p.eb, 16 * opts.segment_bytes);
    assert_int_equal(arrivals, 16);
    pair_clear(&p);
}

/* Many streams of one node to another. */
struct crowd {
    struct hth_env *env;
    struct hth_stream *stream[HTH_STREAMS_PER_ADDR_MAX + 20];
    uint32_t count, closed;
};

static void crowd_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct crowd *c = arg;
    assert_int_equal(err, HTH_E_CLOSED);
    for (uint32_t i = 0; i < c->count; i++)
        if (c->stream[i] == s)
            c->stream[i] = NULL;
    c->closed++;
}

static const struct hth_stream_ops crowd_ops = {.on_closed = crowd_closed};

static void crowd_accept(void *arg, struct hth_stream *s)
{
    static struct crowd nobody;
    hth_stream_attach(arg, s, &crowd_ops, &nobody);
}

static void crowd_dial(struct crowd *c, const struct hth_addr *addr, uint32_t count)
{
    for (; count > 0; count--, c->count++)
        assert_ok(hth_dial(c->env, addr, NULL, &crowd_ops, c, &c->stream[c->count]));
}

/* The limit of one node's streams leaves places for others. */
TEST(each_address_has_its_own_limit)
{
    (void)state;
    struct hth_world_opts opts = calm(1000, 0);
    struct hth_world *w = hth_world_new(1, &opts);
    struct hth_node *to = hth_world_node(w, "to", NULL);
    struct crowd many = {.env = hth_node_env(hth_world_node(w, "many", NULL))};
    struct crowd few = {.env = hth_node_env(hth_world_node(w, "few", NULL))};
    struct hth_addr addr = hth_node_addr(to, 1);
    struct hth_listener *listener;
    assert_ok(hth_listen(hth_node_env(to), &addr, crowd_accept, hth_node_env(to), &listener));
    crowd_dial(&few, &addr, 100);
    crowd_dial(&many, &addr, HTH_STREAMS_PER_ADDR_MAX);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(few.closed + many.closed, 0);
    crowd_dial(&few, &addr, 5);
    crowd_dial(&many, &addr, 10);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(few.closed, 0);
    assert_int_equal(many.closed, 10);
    hth_world_free(w);
}

TEST(peer_id_is_unknown_until_the_handshake_ends)
{
    static const struct hth_peer_id nobody;
    struct hth_world_opts opts = calm(10000, 0);
    struct hth_peer_id id;
    struct hth_addr addr;
    struct pair p;
    (void)state;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    for (; p.ea.opens == 0; hth_world_run_for(p.w, 1000)) {
        hth_stream_peer(p.ea.env, p.ea.stream, &id, &addr);
        assert_true(hth_peer_id_eq(&id, &nobody));
        assert_true(hth_addr_eq(&addr, &p.addr));
    }
    hth_stream_peer(p.ea.env, p.ea.stream, &id, &addr);
    assert_true(hth_peer_id_eq(&id, &p.eb.env->self));
    pair_clear(&p);
}

/* The window opens at the reader; the sender learns of it one way later. */
TEST(window_update_takes_one_way)
{
    (void)state;
    struct hth_world_opts opts = calm(30000, 0);
    opts.window_bytes = 2 * opts.segment_bytes;
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    p.eb.sleepy = true;
    write_pattern(&p.ea, 0, 2 * opts.window_bytes);
    hth_world_run_for(p.w, HTH_US_PER_S);
    p.eb.sleepy = false;
    int64_t read_us = hth_world_now_us(p.w);
    for (int i = 0; i < 2; i++)
        end_readable(p.eb.stream, &p.eb);
    assert_int_equal(p.eb.bytes_len, opts.window_bytes);
    hth_world_run_for(p.w, 59999);
    assert_int_equal(p.eb.bytes_len, opts.window_bytes);
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_pattern(&p.eb, 2 * opts.window_bytes);
    assert_int_equal(p.eb.last_us, read_us + 60000);
    pair_clear(&p);
}

TEST(receivers_downlink_limits_a_transfer)
{
    (void)state;
    struct hth_world_opts opts = calm(10000, 10e6);
    struct pair p;
    pair_init(&p, 1, &opts);
    struct hth_device slow = opts.device;
    slow.down_bytes_per_s = 1e6;
    hth_node_set_device(p.b, &slow);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    p.eb.count_only = true;
    int64_t start_us = hth_world_now_us(p.w);
    write_pattern(&p.ea, 0, 1000000);
    hth_world_run_for(p.w, 5 * HTH_US_PER_S);
    assert_int_equal(p.eb.count, 1000000);
    assert_in_range(p.eb.last_us - start_us, 1010000 - 1, 1010000 + 1);
    pair_clear(&p);
}

/* Two streams of one node share its uplink: a short message does not wait for a long one. */
TEST(streams_share_the_uplink_in_rotation)
{
    (void)state;
    struct hth_world_opts opts = calm(1000, 1e6);
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    struct hth_node *c = hth_world_node(p.w, "c", NULL);
    struct end ec = {.env = hth_node_env(c)}, ea2 = {.env = p.ea.env};
    struct hth_addr addr = hth_node_addr(c, 9);
    struct hth_listener *l;
    assert_ok(hth_listen(ec.env, &addr, end_accept, &ec, &l));
    assert_ok(hth_dial(ea2.env, &addr, NULL, &end_ops, &ea2, &ea2.stream));
    hth_world_run_for(p.w, HTH_US_PER_S);
    int64_t start_us = hth_world_now_us(p.w);
    write_pattern(&p.ea, 0, 1000000);
    write_pattern(&ea2, 0, 100);
    hth_world_run_for(p.w, 3 * HTH_US_PER_S);
    assert_int_equal(ec.last_us - start_us,
                     2 * SEGMENT_US_MAX + 100 + 1000); /* behind two segments */
    assert_int_equal(p.eb.last_us - start_us, 1000000 + 100 + 1000);
    hth_stream_close(ea2.env, ea2.stream, true);
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(ec.err, HTH_OK);
    hth_free(ec.bytes);
    hth_listener_free(ec.env, l);
    pair_clear(&p);
}

/* ---- bytes --------------------------------------------------------------------------------- */

TEST(short_reads_and_writes_lose_nothing)
{
    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++) {
        struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
        opts.chaos.short_read = opts.chaos.short_write = 0.7;
        opts.link = (struct hth_link){.latency_us = 3000,
                                      .jitter_us = 9000,
                                      .loss = 0.01,
                                      .jitter = (enum hth_jitter)(seed % 4)};
        struct pair p;
        pair_init(&p, seed, &opts);
        pair_dial(&p);
        size_t sent = 0;
        for (int i = 0; i < 40; i++) {
            size_t n = 1 + (size_t)i * 997;
            write_pattern(&p.ea, sent, n); /* the first writes come before the stream is open */
            sent += n;
            hth_world_run_for(p.w, 5000);
        }
        hth_world_run_for(p.w, 20 * HTH_US_PER_S);
        assert_pattern(&p.eb, sent);
        assert_true(p.eb.reads > 50);
        pair_clear(&p);
    }
}

TEST(unread_bytes_fill_window_then_queue)
{
    (void)state;
    struct hth_world_opts opts = calm(10000, 0);
    opts.window_bytes = 1u << 20;
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    hth_stream_pause(p.eb.env, p.eb.stream, true);
    struct hth_blob *blob = hth_blob_try_new(32u << 20);
    memset(blob->data, 7, blob->size);
    struct hth_span span = {.blob = blob, .len = blob->size};
    enum hth_err err = HTH_OK;
    size_t writes = 0;
    while ((err = hth_stream_write(p.ea.env, p.ea.stream, &span, 1)) == HTH_OK) {
        writes++;
        hth_world_run_for(p.w, HTH_US_PER_S);
    }
    assert_int_equal(err, HTH_E_QUEUE_FULL);
    /* 1 MiB fills the window and the rest waits in the queue: room for eight blobs, not for
     * nine. */
    assert_int_equal(writes, 8);
    assert_int_equal(hth_stream_queued(p.ea.env, p.ea.stream), (255u << 20));
    assert_int_equal(p.ea.drains, 0);
    p.eb.count_only = true;
    hth_stream_pause(p.eb.env, p.eb.stream, false);
    hth_world_run_for(p.w, 100 * HTH_US_PER_S);
    assert_int_equal(p.eb.count, 8 * blob->size);
    assert_int_equal(p.ea.drains, 1);
    assert_int_equal(hth_stream_queued(p.ea.env, p.ea.stream), 0);
    assert_int_equal(blob->refs, 1);
    hth_blob_unref(blob);
    pair_clear(&p);
}

TEST(reader_is_called_again_for_unread_bytes)
{
    (void)state;
    struct hth_world_opts opts = calm(1000, 0);
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    p.eb.sleepy = true;
    write_pattern(&p.ea, 0, 10);
    hth_world_run_for(p.w, 11000);
    assert_true(p.eb.reads > 10);
    p.eb.sleepy = false;
    p.eb.read_max = 1; /* level triggered: one byte per call, without new arrivals */
    hth_world_run_for(p.w, 1000);
    assert_pattern(&p.eb, 10);
    pair_clear(&p);
}

TEST(ghosts_keep_size_and_digest)
{
    (void)state;
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    opts.ghost = true;
    opts.chaos.short_read = opts.chaos.short_write = 0.5;
    struct pair p;
    pair_init(&p, 9, &opts);
    p.eb.sleepy = true;
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    struct hth_blob *out = hth_blob_ghost(300000, 0xfeed), *zeros = hth_blob_try_new(64);
    memset(zeros->data, 0, 64);
    struct hth_span spans[2] = {{.blob = out, .len = 300000}, {.blob = zeros, .len = 64}};
    assert_ok(hth_stream_write(p.ea.env, p.ea.stream, spans, 2));
    hth_world_run_for(p.w, HTH_US_PER_S);
    struct hth_blob *in;
    assert_ok(hth_env_blob_new(p.eb.env, 300064, NULL, &in));
    assert_null(in->data);
    for (size_t at = 0, n; at < in->size; at += n) {
        n = hth_stream_read(p.eb.env, p.eb.stream, in, at, in->size - at);
        assert_true(n > 0);
    }
    assert_int_equal(in->digest, 0xfeed);
    hth_blob_unref(in);
    hth_blob_unref(out);
    hth_blob_unref(zeros);
    pair_clear(&p);
}

/* ---- ends ---------------------------------------------------------------------------------- */

TEST(failed_dials_report_their_reason)
{
    (void)state;
    struct hth_world_opts opts = calm(10000, 0);
    struct pair p;
    pair_init(&p, 1, &opts);
    p.addr.port = 2; /* no listener there */
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.ea.err, HTH_E_REFUSED);
    assert_int_equal(p.ea.closed_us, 20000);
    p.addr = (struct hth_addr){.family = 4, .ip = {10, 9, 9, 9}, .port = 1};
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.ea.err, HTH_E_UNREACHABLE);
    p.addr = hth_node_addr(p.b, 1);
    assert_ok(hth_dial(p.ea.env, &p.addr, &p.ea.env->self, &end_ops, &p.ea, &p.ea.stream));
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.ea.err, HTH_E_BAD_PEER_ID);
    assert_int_equal(p.ea.opens, 0);
    assert_int_equal(p.eb.opens, 0);
    p.addr.family = 0;
    assert_err(HTH_E_UNSUPPORTED, hth_dial(p.ea.env, &p.addr, NULL, &end_ops, &p.ea, &p.ea.stream));
    p.addr = hth_node_addr(p.b, 1);
    hth_node_set_side(p.b, 1);
    int64_t start_us = hth_world_now_us(p.w);
    pair_dial(&p);
    hth_world_run_for(p.w, 10 * HTH_US_PER_S);
    assert_int_equal(p.ea.err, HTH_E_TIMEOUT);
    assert_int_equal(p.ea.closed_us - start_us, HTH_DIAL_TIMEOUT_US);
    hth_node_set_side(p.b, 0);
    hth_listener_free(p.eb.env, p.listener);
    p.listener = NULL;
    hth_node_crash(p.b, HTH_CRASH_RESET);
    pair_dial(&p);
    hth_world_run_for(p.w, 10 * HTH_US_PER_S);
    assert_int_equal(p.ea.err, HTH_E_REFUSED);
    hth_node_restart(p.b);
    hth_node_crash(p.b, HTH_CRASH_SILENT);
    pair_dial(&p);
    hth_world_run_for(p.w, 10 * HTH_US_PER_S);
    assert_int_equal(p.ea.err, HTH_E_TIMEOUT);
    assert_int_equal(p.ea.closes, 6);
    pair_clear(&p);
}

TEST(peer_sees_clean_and_abrupt_ends)
{
    (void)state;
    struct hth_world_opts opts = calm(10000, 1e6);
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    /* A flushing close delivers everything, then a clean end. */
    write_pattern(&p.ea, 0, 500000);
    hth_stream_close(p.ea.env, p.ea.stream, true);
    p.ea.stream = NULL;
    hth_world_run_for(p.w, 2 * HTH_US_PER_S);
    assert_pattern(&p.eb, 500000);
    assert_int_equal(p.eb.err, HTH_OK);
    assert_int_equal(p.eb.closes, 1);
    assert_int_equal(p.ea.closes, 0); /* the end that closes gets no callback */

    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    p.eb.bytes_len = 0;
    write_pattern(&p.ea, 0, 500000);
    hth_stream_close(p.ea.env, p.ea.stream, false);
    p.ea.stream = NULL;
    hth_world_run_for(p.w, 2 * HTH_US_PER_S);
    assert_true(p.eb.bytes_len < 500000);
    assert_int_equal(p.eb.err, HTH_E_CLOSED);
    assert_int_equal(p.eb.closes, 2);

    /* Dial, write and close at once: a short message still arrives. */
    p.eb.bytes_len = 0;
    pair_dial(&p);
    while (p.ea.opens < 3)
        hth_world_run_for(p.w, 100);
    write_pattern(&p.ea, 0, 33);
    hth_stream_close(p.ea.env, p.ea.stream, true);
    p.ea.stream = NULL;
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_pattern(&p.eb, 33);
    assert_int_equal(p.eb.closes, 3);
    assert_int_equal(p.eb.err, HTH_OK);

    pair_dial(&p); /* closed before it was open: the listener sees nothing */
    hth_stream_close(p.ea.env, p.ea.stream, true);
    p.ea.stream = NULL;
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.eb.opens, 3);
    pair_clear(&p);
}

TEST(flushing_close_gives_up_after_five_seconds)
{
    (void)state;
    struct hth_world_opts opts = calm(10000, 1e6);
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    write_pattern(&p.ea, 0, 9000000);
    int64_t start_us = hth_world_now_us(p.w);
    hth_stream_close(p.ea.env, p.ea.stream, true);
    p.ea.stream = NULL;
    hth_world_run_for(p.w, 20 * HTH_US_PER_S);
    assert_int_equal(p.eb.err, HTH_E_CLOSED);
    assert_in_range(p.eb.closed_us - start_us, 5000000, 5100000);
    assert_in_range(p.eb.bytes_len, 4900000, 5200000);
    pair_clear(&p);
}

TEST(crash_with_reset_closes_streams_of_peers)
{
    (void)state;
    struct hth_world_opts opts = calm(10000, 0);
    opts.crash_notice_us = 3000;
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    hth_stream_close(p.eb.env, p.eb.stream, false);
    p.eb.stream = NULL;
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.ea.closes, 1);

    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    hth_listener_free(p.eb.env, p.listener);
    p.listener = NULL;
    p.eb.stream = NULL; /* left behind on purpose */
    int64_t start_us = hth_world_now_us(p.w);
    hth_node_crash(p.b, HTH_CRASH_RESET);
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.ea.closes, 2);
    assert_int_equal(p.ea.err, HTH_E_CLOSED);
    assert_int_equal(p.ea.closed_us - start_us, 13000);
    struct hth_open_counts leaks;
    hth_world_leaks(p.w, &leaks);
    assert_int_equal(leaks.streams, 1);
    pair_clear(&p);
}

TEST(restarted_host_resets_old_connections)
{
    (void)state;
    struct hth_world_opts opts = calm(10000, 0);
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    hth_listener_free(p.eb.env, p.listener);
    p.listener = NULL;
    hth_stream_close(p.eb.env, p.eb.stream, false);
    p.eb.stream = NULL;
    hth_node_crash(p.b, HTH_CRASH_SILENT); /* the reset was still on its way and arrives */
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.ea.err, HTH_E_CLOSED);

    hth_node_restart(p.b);
    assert_ok(hth_listen(p.eb.env, &p.addr, end_accept, &p.eb, &p.listener));
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_non_null(p.eb.stream);
    p.eb.stream = NULL;
    p.listener = NULL;
    hth_node_crash(p.b, HTH_CRASH_SILENT);
    write_pattern(&p.ea, 0, 1000);
    hth_world_run_for(p.w, 30 * HTH_US_PER_S);
    assert_int_equal(p.ea.closes, 1); /* no notice so far */
    hth_node_restart(p.b);            /* a retransmission meets a kernel without this connection */
    hth_world_run_for(p.w, 30 * HTH_US_PER_S);
    assert_int_equal(p.ea.closes, 2);
    assert_int_equal(p.ea.err, HTH_E_CLOSED);
    pair_clear(&p);
}

/* The listener's host answers at 20 ms and then falls silent: the handshake's limit ends the
 * attempt, not the dial's. */
TEST(stalled_handshakes_time_out)
{
    (void)state;
    struct hth_world_opts opts = calm(10000, 0);
    struct pair p;
    pair_init(&p, 1, &opts);
    int64_t start_us = hth_world_now_us(p.w);
    pair_dial(&p);
    hth_world_run_for(p.w, 25 * HTH_US_PER_MS);
    hth_node_set_side(p.b, 1);
    hth_world_run_for(p.w, HTH_HANDSHAKE_TIMEOUT_US - 30 * HTH_US_PER_MS);
    assert_int_equal(p.ea.closes, 0);
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.ea.err, HTH_E_TIMEOUT);
    assert_int_equal(p.ea.closed_us - start_us, HTH_HANDSHAKE_TIMEOUT_US);
    assert_int_equal(p.ea.opens, 0);
    hth_node_set_side(p.b, 0);
    pair_dial(&p); /* the same dial works without the block */
    hth_world_run_for(p.w, HTH_US_PER_S);
    assert_int_equal(p.ea.opens, 1);
    pair_clear(&p);
}

TEST(lasting_partition_times_out)
{
    (void)state;
    struct hth_world_opts opts = calm(10000, 0);
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    hth_node_set_side(p.b, 7);
    write_pattern(&p.ea, 0, 1000);
    hth_world_run_for(p.w, 2000 * HTH_US_PER_S);
    assert_int_equal(p.ea.err, HTH_E_TIMEOUT);
    assert_int_equal(p.eb.closes, 0);
    hth_world_heal(p.w);
    hth_world_run_for(p.w, 2 * HTH_US_PER_S);
    assert_int_equal(p.eb.err, HTH_E_CLOSED);
    pair_clear(&p);
}

TEST(partition_stalls_a_stream_until_it_heals)
{
    (void)state;
    struct hth_world_opts opts = calm(10000, 0);
    struct pair p;
    pair_init(&p, 1, &opts);
    pair_dial(&p);
    hth_world_run_for(p.w, HTH_US_PER_S);
    hth_world_block(p.w, p.a, p.b, true);
    write_pattern(&p.ea, 0, 1000);
    write_pattern(&p.eb, 0, 500); /* the other direction still works */
    int64_t start_us = hth_world_now_us(p.w);
    hth_world_run_for(p.w, 2 * HTH_US_PER_S);
    assert_int_equal(p.eb.count, 0);
    assert_int_equal(p.ea.count, 500);
    hth_world_block(p.w, p.a, p.b, false);
    hth_world_run_for(p.w, 10 * HTH_US_PER_S);
    assert_pattern(&p.eb, 1000);
    /* Retransmitted after 0.2, 0.6, 1.4, 3.0 s ...: the first one after the partition heals
     * arrives. */
    assert_int_equal(p.eb.last_us - start_us, 10000 + 200000 * (1 + 2 + 4 + 8));
    pair_clear(&p);
}

TEST(streams_per_node_and_address_are_limited)
{
    (void)state;
    struct hth_world_opts opts = calm(1000, 0);
    struct pair p;
    pair_init(&p, 1, &opts);
    enum { N = HTH_STREAMS_MAX };
    struct end *ends = hth_new_array(struct end, N);
    for (int i = 0; i < N; i++) {
        ends[i].env = p.ea.env;
        assert_ok(hth_dial(p.ea.env, &p.addr, NULL, &end_ops, &ends[i], &ends[i].stream));
    }
    struct hth_stream *s;
    assert_err(HTH_E_BUDGET, hth_dial(p.ea.env, &p.addr, NULL, &end_ops, &p.ea, &s));
    hth_world_run_for(p.w, HTH_US_PER_S);
    int open = 0;
    for (int i = 0; i < N; i++)
        open += ends[i].stream != NULL;
    assert_int_equal(open, HTH_STREAMS_PER_ADDR_MAX); /* the listener dropped the others */
    hth_node_crash(p.b, HTH_CRASH_RESET);             /* its handles count as leaks */
    p.listener = NULL;
    p.eb.stream = NULL;
    hth_world_run_for(p.w, HTH_US_PER_S);
    for (int i = 0; i < N; i++)
        assert_int_equal(ends[i].closes, 1);
    hth_free(ends);
    pair_clear(&p);
}
