/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_swarm.c: fifty nodes talk at random while nodes crash, links lose and partitions come and
 * go. On every stream every byte arrives in order and once until the stream ends, everything is
 * freed, and the same seed gives the same trace.
 */
#include "core/mem.h"
#include "core/rng.h"
#include "sim/world.h"
#include "support/suite.h"

#define NODES         50
#define CONVERSATIONS 8 /* that each node tries to keep open */

/* A stream carries the sequence hash(stream number, position); its first 8 bytes are the number. */
struct talk {
    struct app *app;
    struct hth_stream *stream;
    uint64_t number; /* number of the sequence that we send */
    uint64_t sent;
    uint64_t heard_number, heard;
    struct talk *next;
};

struct app {
    struct hth_env *env;
    struct hth_timer *timer;
    struct hth_listener *listener;
    struct talk *talks;
    struct soup *soup;
};

struct soup {
    struct hth_world *w;
    struct hth_rng rng;
    struct app apps[NODES];
    uint64_t numbers;
    uint64_t bytes, wrong, opens, ends_clean, ends_broken;
};

static uint8_t byte_at(uint64_t number, uint64_t pos)
{
    if (pos < 8)
        return (uint8_t)(number >> (8 * pos));
    return (uint8_t)hth_mix64(number * 1000003 + pos);
}

static void talk_free(struct talk *t)
{
    struct talk **link = &t->app->talks;
    while (*link != t)
        link = &(*link)->next;
    *link = t->next;
    hth_free(t);
}

static void talk_say(struct talk *t)
{
    struct hth_env *env = t->app->env;
    size_t n = 1 + (size_t)hth_rng_below(&env->rng, 20000);
    struct hth_blob *blob = hth_blob_try_new(n);
    for (size_t i = 0; i < n; i++)
        blob->data[i] = byte_at(t->number, t->sent + i);
    size_t cut = (size_t)hth_rng_below(&env->rng, n);
    struct hth_span spans[2] = {{blob, 0, cut}, {blob, cut, n - cut}};
    if (hth_stream_write(env, t->stream, spans, 2) == HTH_OK)
        t->sent += n;
    hth_blob_unref(blob);
}

static void talk_readable(struct hth_stream *s, void *arg)
{
    struct talk *t = arg;
    struct soup *soup = t->app->soup;
    struct hth_blob *into = hth_blob_try_new(4096);
    size_t n = hth_stream_read(t->app->env, s, into, 0, 4096);
    for (size_t i = 0; i < n; i++, t->heard++) {
        if (t->heard < 8)
            t->heard_number |= (uint64_t)into->data[i] << (8 * t->heard);
        else
            soup->wrong += into->data[i] != byte_at(t->heard_number, t->heard);
    }
    soup->bytes += n;
    hth_blob_unref(into);
}

static void talk_open(struct hth_stream *s, void *arg)
{
    struct talk *t = arg;
    (void)s;
    t->app->soup->opens++;
    talk_say(t);
}

static void talk_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct talk *t = arg;
    (void)s;
    if (err == HTH_OK)
        t->app->soup->ends_clean++;
    else
        t->app->soup->ends_broken++;
    talk_free(t);
}

static const struct hth_stream_ops talk_ops = {
    .on_open = talk_open,
    .on_readable = talk_readable,
    .on_closed = talk_closed,
};

static struct talk *talk_new(struct app *app)
{
    struct talk *t = hth_new(struct talk);
    t->app = app;
    t->number = ++app->soup->numbers;
    t->next = app->talks;
    app->talks = t;
    return t;
}

static void on_accept(void *arg, struct hth_stream *s)
{
    struct app *app = arg;
    struct talk *t = talk_new(app);
    t->stream = s;
    hth_stream_attach(app->env, s, &talk_ops, t);
}

static void app_tick(void *arg)
{
    struct app *app = arg;
    struct hth_env *env = app->env;
    int count = 0;
    struct talk *next;
    for (struct talk *t = app->talks; t != NULL; t = next) {
        next = t->next;
        count++;
        if (hth_rng_chance(&env->rng, 0.02)) {
            hth_stream_close(env, t->stream, hth_rng_chance(&env->rng, 0.5));
            talk_free(t);
        } else if (hth_rng_chance(&env->rng, 0.2)) {
            hth_stream_pause(env, t->stream, hth_rng_chance(&env->rng, 0.3));
            talk_say(t);
        }
    }
    if (count < CONVERSATIONS) {
        struct talk *t = talk_new(app);
        size_t to = (size_t)hth_rng_below(&env->rng, NODES);
        struct hth_addr addr = hth_node_addr(hth_world_node_at(app->soup->w, to), 1);
        if (hth_dial(env, &addr, NULL, &talk_ops, t, &t->stream) != HTH_OK)
            talk_free(t);
    }
    hth_timer_set(env, app->timer, 50000);
}

static void app_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct app *app = arg;
    struct hth_addr addr = {.family = 4, .port = 1};
    (void)dht;
    app->env = env;
    app->timer = hth_timer_new(env, app_tick, app);
    hth_timer_set(env, app->timer, (int64_t)hth_rng_below(&env->rng, 50000));
    assert_ok(hth_listen(env, &addr, on_accept, app, &app->listener));
}

static void app_halt(struct hth_env *env, void *arg)
{
    struct app *app = arg;
    while (app->talks != NULL) {
        hth_stream_close(env, app->talks->stream, true);
        talk_free(app->talks);
    }
    hth_timer_free(env, app->timer);
    hth_listener_free(env, app->listener);
}

static struct hth_node *pick(struct soup *soup)
{
    return hth_world_node_at(soup->w, (size_t)hth_rng_below(&soup->rng, NODES));
}

static void mischief(void *arg)
{
    struct soup *soup = arg;
    struct hth_world *w = soup->w;
    struct hth_rng *rng = &soup->rng;
    for (int i = 0; i < 3; i++) {
        struct hth_node *n = pick(soup);
        if (!hth_node_is_up(n))
            hth_node_restart(n);
        else
            hth_node_crash(n, hth_rng_chance(rng, 0.5) ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
    }
    if (hth_rng_chance(rng, 0.3))
        hth_world_heal(w);
    hth_node_set_side(pick(soup), (uint32_t)(hth_world_now_us(w) / 100000 % 3));
    /* one draw per statement: C leaves the order of operands open */
    struct hth_node *from = pick(soup);
    hth_world_block(w, from, pick(soup), true);
    hth_world_at(w, hth_world_now_us(w) + 200000, mischief, soup);
}

static uint64_t run_soup(uint64_t seed, struct soup *soup)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    opts.link = (struct hth_link){
        .latency_us = 5000, .jitter_us = 20000, .loss = 0.002, .jitter = HTH_JITTER_EXPONENTIAL};
    opts.device.up_bytes_per_s = 3e6;
    opts.device.down_bytes_per_s = 3e6;
    opts.window_bytes = 128u << 10;
    opts.chaos.short_read = opts.chaos.short_write = 0.3;
    memset(soup, 0, sizeof(*soup));
    soup->w = hth_world_new(seed, &opts);
    hth_rng_init(&soup->rng, seed);
    for (int i = 0; i < NODES; i++) {
        struct hth_node_opts o = HTH_NODE_OPTS_INIT;
        char name[16];
        snprintf(name, sizeof(name), "n%d", i);
        o.boot = app_boot;
        o.halt = app_halt;
        o.arg = &soup->apps[i];
        soup->apps[i].soup = soup;
        hth_world_node(soup->w, name, &o);
    }
    hth_world_at(soup->w, 500000, mischief, soup);
    hth_world_run_for(soup->w, 4 * HTH_US_PER_S);
    for (int i = 0; i < NODES; i++)
        hth_node_crash(hth_world_node_at(soup->w, (size_t)i), HTH_CRASH_RESET);
    struct hth_open_counts open, leaks;
    hth_world_open(soup->w, &open);
    hth_world_leaks(soup->w, &leaks);
    assert_int_equal(hth_open_total(&open), 0);
    assert_int_equal(hth_open_total(&leaks), 0);
    uint64_t hash = hth_world_trace_hash(soup->w);
    hth_world_free(soup->w);
    return hash;
}

TEST(bytes_arrive_in_order_or_the_stream_ends)
{
    (void)state;
    struct soup soup;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        uint64_t hash = run_soup(seed, &soup);
        assert_int_equal(soup.wrong, 0);
        assert_true(soup.bytes > 5000000);
        assert_true(soup.opens > 500);
        assert_true(soup.ends_clean > 50);
        assert_true(soup.ends_broken > 100);
        print_message("seed %d: hash %016llx, %llu bytes, %llu opened, %llu clean, %llu broken\n",
                      (int)seed, (unsigned long long)hash, (unsigned long long)soup.bytes,
                      (unsigned long long)soup.opens, (unsigned long long)soup.ends_clean,
                      (unsigned long long)soup.ends_broken);
    }
}

TEST(same_seed_gives_the_same_trace)
{
    (void)state;
    struct soup soup;
    uint64_t a = run_soup(11, &soup);
    uint64_t bytes = soup.bytes;
    uint64_t b = run_soup(11, &soup);
    assert_true(a == b);
    assert_true(bytes == soup.bytes);
    assert_true(run_soup(12, &soup) != a);
}
