/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pair.h: shared by the tests of streams: an environment that dials itself, and two ends that
 * record their callbacks. Nothing sleeps: a test runs the loop until its condition holds, and a
 * guard timer turns a condition that never holds into a failure.
 */
#ifndef HTH_TESTS_NET_PAIR_H
#define HTH_TESTS_NET_PAIR_H

#include "support/test.h"

#include "core/limits.h"
#include "core/mem.h"
#include "net/net.h"

#define GUARD_US  (30 * HTH_US_PER_S)
#define POLL_US   200
#define QUIET_US  30000
#define NEVER_ERR ((enum hth_err)999)

struct stream_pair;

/* One end of a stream. Hooks may be NULL. */
struct pair_end {
    struct stream_pair *pair;
    struct hth_stream *s; /* NULL once it is closed */
    int opened, readable, drained, closed;
    enum hth_err err;
    uint64_t got;
    struct hth_blob *into;
    void (*on_open)(struct pair_end *e);
    void (*on_readable)(struct pair_end *e); /* default: reads and counts everything */
    void (*on_drained)(struct pair_end *e);
    void (*on_closed)(struct pair_end *e);
};

struct stream_pair {
    struct hth_env *env;
    struct hth_listener *listener;
    struct hth_addr addr;
    struct pair_end client, server;
    bool reject; /* the server attaches nothing */
    int accepted;
    bool (*until)(struct stream_pair *p);
    struct hth_timer *poll, *guard;
    bool guarded;
    void *user;
};

static inline void end_read_all(struct pair_end *e)
{
    struct hth_env *env = e->pair->env;
    size_t n;
    while (e->s != NULL && (n = hth_stream_read(env, e->s, e->into, 0, e->into->size)) > 0)
        e->got += n;
}

static inline void end_open(struct hth_stream *s, void *arg)
{
    struct pair_end *e = arg;
    assert_ptr_equal(s, e->s);
    e->opened++;
    if (e->on_open != NULL)
        e->on_open(e);
}

static inline void end_readable(struct hth_stream *s, void *arg)
{
    struct pair_end *e = arg;
    assert_ptr_equal(s, e->s);
    e->readable++;
    if (e->on_readable != NULL)
        e->on_readable(e);
    else
        end_read_all(e);
}

static inline void end_drained(struct hth_stream *s, void *arg)
{
    struct pair_end *e = arg;
    assert_ptr_equal(s, e->s);
    e->drained++;
    if (e->on_drained != NULL)
        e->on_drained(e);
}

static inline void end_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct pair_end *e = arg;
    assert_ptr_equal(s, e->s);
    e->closed++;
    e->err = err;
    e->s = NULL;
    if (e->on_closed != NULL)
        e->on_closed(e);
}

static const struct hth_stream_ops end_ops = {.on_open = end_open,
                                              .on_readable = end_readable,
                                              .on_drained = end_drained,
                                              .on_closed = end_closed};

static inline void pair_accept(void *arg, struct hth_stream *s)
{
    struct stream_pair *p = arg;
    p->accepted++;
    if (p->reject)
        return;
    assert_null(p->server.s);
    p->server.s = s;
    hth_stream_attach(p->env, s, &end_ops, &p->server);
    end_open(s, &p->server);
}

static inline void pair_poll(void *arg)
{
    struct stream_pair *p = arg;
    if (p->until(p))
        hth_net_stop(p->env);
    else
        hth_timer_set(p->env, p->poll, POLL_US);
}

static inline void pair_guard(void *arg)
{
    struct stream_pair *p = arg;
    p->guarded = true;
    hth_net_stop(p->env);
}

/* Runs the loop until the condition holds. */
#define pair_run(p, condition)                                                                     \
    do {                                                                                           \
        (p)->until = (condition);                                                                  \
        hth_timer_set((p)->env, (p)->poll, 0);                                                     \
        hth_timer_set((p)->env, (p)->guard, GUARD_US);                                             \
        assert_ok(hth_net_run((p)->env));                                                          \
        if ((p)->guarded)                                                                          \
            fail_msg("%s never became true", #condition);                                          \
        hth_timer_cancel((p)->env, (p)->guard);                                                    \
    } while (0)

static inline void end_init(struct pair_end *e, struct stream_pair *p)
{
    e->pair = p;
    e->err = NEVER_ERR;
    e->into = hth_blob_try_new(1u << 18);
    assert_non_null(e->into);
}

static inline void pair_open_at(struct stream_pair *p, const struct hth_net_opts *opts,
                                const char *listen_at)
{
    memset(p, 0, sizeof(*p));
    assert_ok(hth_net_new(opts, &p->env));
    p->env->log.level[HTH_SUB_NET] = HTH_ERROR;
    p->poll = hth_timer_new(p->env, pair_poll, p);
    p->guard = hth_timer_new(p->env, pair_guard, p);
    end_init(&p->client, p);
    end_init(&p->server, p);
    assert_ok(hth_addr_parse(listen_at, &p->addr));
    assert_ok(hth_listen(p->env, &p->addr, pair_accept, p, &p->listener));
    hth_listener_addr(p->env, p->listener, &p->addr);
    assert_true(p->addr.port != 0);
}

static inline void pair_open(struct stream_pair *p, const struct hth_net_opts *opts)
{
    pair_open_at(p, opts, "127.0.0.1:0");
}

static inline void pair_dial(struct stream_pair *p)
{
    assert_ok(hth_dial(p->env, &p->addr, &p->env->self, &end_ops, &p->client, &p->client.s));
    assert_int_equal(p->client.opened, 0);
}

static inline bool both_open(struct stream_pair *p)
{
    return p->client.opened == 1 && p->server.opened == 1;
}

static inline bool both_closed(struct stream_pair *p)
{
    return p->client.closed == 1 && p->server.closed == 1;
}

static inline bool client_closed(struct stream_pair *p)
{
    return p->client.closed == 1;
}

static inline bool server_closed(struct stream_pair *p)
{
    return p->server.closed == 1;
}

static inline bool no_streams(struct stream_pair *p)
{
    return hth_net_stream_count(p->env) == 0;
}

/* Opens the pair's environment, dials and waits until both ends are open. */
static inline void pair_connect(struct stream_pair *p, const struct hth_net_opts *opts)
{
    pair_open(p, opts);
    pair_dial(p);
    pair_run(p, both_open);
}

static inline void pair_close(struct stream_pair *p)
{
    if (p->client.s != NULL)
        hth_stream_close(p->env, p->client.s, false);
    if (p->server.s != NULL)
        hth_stream_close(p->env, p->server.s, false);
    hth_listener_free(p->env, p->listener);
    hth_timer_free(p->env, p->poll);
    hth_timer_free(p->env, p->guard);
    hth_net_free(p->env);
    hth_blob_unref(p->client.into);
    hth_blob_unref(p->server.into);
}

/* Writes a copy of these bytes. */
static inline enum hth_err end_write(struct pair_end *e, const void *data, size_t len)
{
    struct hth_blob *blob = hth_blob_copy(data, len);
    struct hth_span span = {blob, 0, len};
    enum hth_err err = hth_stream_write(e->pair->env, e->s, &span, 1);
    hth_blob_unref(blob);
    return err;
}

#endif
