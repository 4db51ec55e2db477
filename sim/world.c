/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.c: the loop. It takes the next event, moves the clock to it, hands it to its part, and
 * mixes it into the trace hash.
 */
#include "sim/sim_int.h"

#include <string.h>

/* More events than this at one instant mean that some code waits for time in a circle. */
#define SAME_INSTANT_MAX 50000000u

struct sim_at {
    struct sim_event event;
    struct sim_list in_world;
    hth_fn *fn;
    void *arg;
};

static const char *const event_names[] = {
#define SIM_EVENT_TEXT(upper, text) text,
    SIM_EVENT_MAP(SIM_EVENT_TEXT)
#undef SIM_EVENT_TEXT
};

/* ---- schedule and trace -------------------------------------------------------------------- */

void hth_sim_schedule(struct hth_world *w, struct sim_event *event, int64_t at_us)
{
    /* splitmix64 is a bijection, so two events never have the same key. */
    uint64_t key = hth_mix64(w->seed ^ w->sequence++);
    hth_sim_queue_set(&w->queue, event, HTH_MAX(at_us, w->now_us), key);
}

void hth_sim_unschedule(struct hth_world *w, struct sim_event *event)
{
    hth_sim_queue_remove(&w->queue, event);
}

void hth_sim_trace(struct hth_world *w, const struct hth_node *node, enum sim_event_kind kind,
                   uint64_t detail)
{
    uint64_t who = node != NULL ? node->index + 1 : 0;
    uint64_t h = w->trace_hash ^ ((uint64_t)w->now_us + (who << 32) + ((uint64_t)kind << 56));
    w->trace_hash = hth_mix64(hth_mix64(h) ^ detail);
    if (w->opts.trace != NULL) {
        w->opts.trace(w->opts.trace_arg, w->now_us, node != NULL ? node->name : "",
                      event_names[kind], detail);
    }
}

uint64_t hth_world_trace_hash(const struct hth_world *w)
{
    return w->trace_hash;
}

/* ---- dispatch ------------------------------------------------------------------------------ */

static struct hth_stream *stream_of_pipe(struct sim_pipe *pipe)
{
    return HTH_CONTAINER(pipe, struct hth_stream, out);
}

static void dispatch_stream(struct hth_world *w, struct sim_event *event)
{
    switch (event->kind) {
    case SIM_HANDSHAKE:
        hth_sim_handshake(HTH_CONTAINER(event, struct sim_conn, handshake));
        break;
    case SIM_WAKE:
        hth_sim_stream_wake(HTH_CONTAINER(event, struct hth_stream, wake));
        break;
    case SIM_RESET:
        hth_sim_stream_reset_event(HTH_CONTAINER(event, struct hth_stream, reset));
        break;
    case SIM_ARRIVE:
        hth_sim_pipe_arrive(stream_of_pipe(HTH_CONTAINER(event, struct sim_pipe, arrive)));
        break;
    case SIM_CREDIT:
        hth_sim_trace(w, event->node, SIM_CREDIT, 0);
        hth_sim_pipe_credit(stream_of_pipe(HTH_CONTAINER(event, struct sim_pipe, credit)));
        break;
    default:
        hth_sim_trace(w, event->node, SIM_UPLINK, 0);
        hth_sim_uplink(event->node);
        break;
    }
}

static void dispatch_dht(struct hth_world *w, struct sim_event *event)
{
    switch (event->kind) {
    case SIM_PUT:
        hth_sim_dht_put_event(hth_sim_put_of(event));
        break;
    case SIM_GET:
        hth_sim_dht_get_event(hth_sim_get_of(event));
        break;
    case SIM_WATCH:
        hth_sim_dht_watch_event(hth_sim_watch_of(event));
        break;
    case SIM_PUSH:
        hth_sim_dht_push_event(event);
        break;
    default:
        hth_sim_dht_sweep(w);
        break;
    }
}

static void fire_timer(struct hth_world *w, struct hth_timer *timer)
{
    hth_sim_trace(w, timer->event.node, SIM_TIMER, 0);
    timer->fn(timer->arg); /* the callback may free the timer */
}

static void fire_at(struct hth_world *w, struct sim_at *at)
{
    hth_sim_trace(w, NULL, SIM_AT, 0);
    sim_list_remove(&at->in_world);
    hth_fn *fn = at->fn;
    void *arg = at->arg;
    hth_free(at);
    fn(arg);
}

static void dispatch(struct hth_world *w, struct sim_event *event)
{
    switch (event->kind) {
    case SIM_TIMER:
        fire_timer(w, HTH_CONTAINER(event, struct hth_timer, event));
        break;
    case SIM_AT:
        fire_at(w, HTH_CONTAINER(event, struct sim_at, event));
        break;
    case SIM_BOOT:
        hth_sim_node_boot(event->node);
        break;
    case SIM_POST:
        hth_sim_post_run(event->node);
        break;
    case SIM_JOB:
        hth_sim_job_event(HTH_CONTAINER(event, struct sim_worker, event));
        break;
    case SIM_HANDSHAKE:
    case SIM_WAKE:
    case SIM_RESET:
    case SIM_UPLINK:
    case SIM_ARRIVE:
    case SIM_CREDIT:
        dispatch_stream(w, event);
        break;
    default:
        dispatch_dht(w, event);
        break;
    }
}

/* Prefetch the memory behind an event that its part touches. */
static void fetch_parts(const struct hth_world *w, const struct sim_event *e)
{
    (void)w;
    if (e->node != NULL) {
        __builtin_prefetch(e->node);
        __builtin_prefetch(&e->node->world);
        __builtin_prefetch(&e->node->live);
    }
    if (e->kind == SIM_TIMER) {
        const struct hth_timer *timer = HTH_CONTAINER(e, const struct hth_timer, event);
        for (size_t at = 0; at < 4 * 64; at += 64)
            __builtin_prefetch((const char *)timer->arg + at);
    } else if (e->kind == SIM_ARRIVE) {
        const struct sim_pipe *pipe = HTH_CONTAINER(e, const struct sim_pipe, arrive);
        const struct hth_stream *s = HTH_CONTAINER(pipe, const struct hth_stream, out);
        const struct hth_stream *reader = sim_stream_other(s);
        __builtin_prefetch(pipe->segments);
        __builtin_prefetch(pipe->chunks);
        __builtin_prefetch(reader);
        __builtin_prefetch((const char *)reader + 64);
    } else if (e->kind == SIM_HANDSHAKE) {
        const struct sim_conn *conn = HTH_CONTAINER(e, const struct sim_conn, handshake);
        __builtin_prefetch(&conn->end[0]);
        __builtin_prefetch(&conn->end[1]);
    } else if (e->kind == SIM_PUSH) {
        hth_sim_dht_push_ahead(e);
    }
}

static const struct hth_stream *reader_of(const struct sim_event *arrival)
{
    const struct sim_pipe *pipe = HTH_CONTAINER(arrival, const struct sim_pipe, arrive);
    return sim_stream_other(HTH_CONTAINER(pipe, const struct hth_stream, out));
}

static void fetch_far(const struct hth_world *w, const struct sim_event *e)
{
    (void)w;
    __builtin_prefetch(e);
    __builtin_prefetch((const char *)e + 64);
}

static void tell_timer(const struct hth_world *w, const struct sim_event *e, uint32_t step)
{
    const struct hth_timer *timer = HTH_CONTAINER(e, const struct hth_timer, event);
    if (timer->fn == w->ahead_of)
        w->timer_ahead(timer->arg, step);
}

/* A stream that its owner released has no owner to fetch. */
static void fetch_owner(const void *arg)
{
    __builtin_prefetch(arg);
    __builtin_prefetch((const void *)((uintptr_t)arg + 64));
}

static void fetch_arg(const struct hth_world *w, const struct sim_event *e)
{
    if (e->kind == SIM_TIMER) {
        tell_timer(w, e, 0);
    } else if (e->kind == SIM_ARRIVE) {
        fetch_owner(reader_of(e)->arg);
    } else if (e->kind == SIM_HANDSHAKE) {
        const struct sim_conn *conn = HTH_CONTAINER(e, const struct sim_conn, handshake);
        __builtin_prefetch(conn->end[0].node);
        __builtin_prefetch(conn->end[1].node);
        fetch_owner(conn->end[0].arg);
    } else if (e->kind == SIM_PUSH) {
        hth_sim_dht_push_next(w, e, 0);
    }
}

/* The stream whose callback the event makes; NULL when none is known. */
static const struct hth_stream *called_by(const struct sim_event *e)
{
    if (e->kind == SIM_ARRIVE)
        return reader_of(e);
    if (e->kind != SIM_HANDSHAKE)
        return NULL;
    const struct sim_conn *conn = HTH_CONTAINER(e, const struct sim_conn, handshake);
    return conn->stage == SIM_HELLO_REPLY ? &conn->end[0] : NULL;
}

/* Prefetch for the two kinds whose memory lies behind long chains of pointers: their owners
 * registered functions that follow them. */
static void fetch_chain(const struct hth_world *w, const struct sim_event *e, uint32_t step)
{
    if (e->kind == SIM_TIMER)
        tell_timer(w, e, step);
    else if (e->kind == SIM_PUSH)
        hth_sim_dht_push_next(w, e, step);
}

static void fetch_second(const struct hth_world *w, const struct sim_event *e)
{
    fetch_chain(w, e, 2);
}

static void fetch_third(const struct hth_world *w, const struct sim_event *e)
{
    fetch_chain(w, e, 3);
}

static void fetch_behind_arg(const struct hth_world *w, const struct sim_event *e)
{
    const struct hth_stream *reader = called_by(e);
    fetch_chain(w, e, 1);
    if (reader != NULL && reader->held && reader->ops != NULL && reader->ops->ahead != NULL)
        reader->ops->ahead(reader->arg);
}

typedef void fetch_fn(const struct hth_world *w, const struct sim_event *e);

static void for_each(const struct hth_world *w, const struct sim_bucket *b, fetch_fn *fetch)
{
    for (uint32_t k = 0; b != NULL && k < b->count; k++)
        fetch(w, b->slots[k].event);
}

/* Prefetch the memory of the next stretches' events while this stretch is handled. In a large world
 * all of it is out of the cache, behind one pointer after the other. So each call follows one
 * pointer of each chain: those of the furthest events first, then what these point to. Only speed
 * depends on it. */
static void fetch_ahead(struct hth_world *w)
{
    struct sim_queue *q = &w->queue;
    q->opened = false;
    if (q->ahead[6] != NULL)
        __builtin_prefetch(q->ahead[6]->slots);
    for_each(w, q->ahead[5], fetch_far);
    for_each(w, q->ahead[4], fetch_parts);
    for_each(w, q->ahead[3], fetch_arg);
    for_each(w, q->ahead[2], fetch_behind_arg);
    for_each(w, q->ahead[1], fetch_second);
    for_each(w, q->ahead[0], fetch_third);
}

/* A stalled process runs none of its events; bytes that are in its sockets still leave. */
static bool is_held_up(const struct hth_world *w, const struct sim_event *event)
{
    const struct hth_node *node = event->node;

    return node != NULL && w->now_us < node->stalled_until_us && node->live &&
           event->kind != SIM_UPLINK && event->kind != SIM_BOOT;
}

void hth_node_stall(struct hth_node *node, int64_t for_us)
{
    node->stalled_until_us = HTH_MAX(node->stalled_until_us, node->world->now_us + for_us);
}

/* Handle the first event of the queue. */
static void step(struct hth_world *w, struct sim_slot slot)
{
    hth_sim_queue_remove(&w->queue, slot.event);
    if (w->queue.opened)
        fetch_ahead(w);
    w->same_instant = slot.at_us > w->now_us ? 0 : w->same_instant + 1;
    HTH_ASSERT(w->same_instant < SAME_INSTANT_MAX);
    w->now_us = slot.at_us;
    w->stats.events++;
    struct hth_node *node = slot.event->node;
    if (is_held_up(w, slot.event)) {
        hth_sim_schedule(w, slot.event, node->stalled_until_us);
        return;
    }
    w->current = node;
    if (node != NULL)
        node->env.now_us = w->now_us + node->clock_offset_us;
    dispatch(w, slot.event);
    w->current = NULL;
    if (node != NULL && node->crash_wanted)
        hth_sim_node_die(node, node->crash_how);
}

/* Set the clocks of all nodes, so that code outside callbacks sees the right time, too. */
static void show_time(struct hth_world *w)
{
    for (size_t i = 0; i < w->node_count; i++)
        w->nodes[i]->env.now_us = w->now_us + w->nodes[i]->clock_offset_us;
}

uint64_t hth_world_run_until(struct hth_world *w, int64_t until_us)
{
    HTH_ASSERT(w->current == NULL);
    uint64_t before = w->stats.events;
    const struct sim_slot *first;
    while ((first = hth_sim_queue_first(&w->queue)) != NULL && first->at_us <= until_us)
        step(w, *first);
    w->now_us = HTH_MAX(w->now_us, until_us);
    show_time(w);
    return w->stats.events - before;
}

uint64_t hth_world_run_for(struct hth_world *w, int64_t duration_us)
{
    return hth_world_run_until(w, w->now_us + duration_us);
}

bool hth_world_run_until_true(struct hth_world *w, bool (*done)(void *arg), void *arg,
                              int64_t duration_us)
{
    HTH_ASSERT(w->current == NULL);
    int64_t until_us = w->now_us + duration_us;
    bool holds = done(arg);
    const struct sim_slot *first;
    while (!holds && (first = hth_sim_queue_first(&w->queue)) != NULL && first->at_us <= until_us) {
        step(w, *first);
        holds = done(arg);
    }
    if (!holds)
        w->now_us = HTH_MAX(w->now_us, until_us);
    show_time(w);
    return holds;
}

/* The sweep of expired values belongs to the world and does not count. */
static bool is_idle(void *arg)
{
    const struct hth_world *w = arg;
    return w->queue.count == 0 || (w->queue.count == 1 && w->sweep.index != 0);
}

bool hth_world_run_until_idle(struct hth_world *w, int64_t duration_us)
{
    return hth_world_run_until_true(w, is_idle, w, duration_us);
}

void hth_world_at(struct hth_world *w, int64_t at_us, hth_fn *fn, void *arg)
{
    struct sim_at *at = hth_new(struct sim_at);
    sim_event_init(&at->event, SIM_AT, NULL);
    at->fn = fn;
    at->arg = arg;
    sim_list_append(&w->ats, &at->in_world);
    hth_sim_schedule(w, &at->event, at_us);
}

void hth_world_timer_ahead(struct hth_world *w, hth_fn *fn,
                           void (*ahead)(const void *arg, uint32_t step))
{
    w->ahead_of = fn;
    w->timer_ahead = ahead;
}

void hth_world_value_ahead(struct hth_world *w, hth_dht_value_fn *fn, hth_value_ahead_fn *ahead)
{
    w->value_ahead_of = fn;
    w->value_ahead = ahead;
}

/* ---- the world ----------------------------------------------------------------------------- */

struct hth_world *hth_world_new(uint64_t seed, const struct hth_world_opts *opts)
{
    static const struct hth_world_opts ordinary = HTH_WORLD_OPTS_INIT;
    struct hth_world *w = hth_new(struct hth_world);
    w->opts = opts != NULL ? *opts : ordinary;
    if (w->opts.crypto == NULL)
        w->opts.crypto = hth_sim_crypto();
    HTH_ASSERT(w->opts.segment_bytes > 0 && w->opts.window_bytes > 0);
    w->seed = hth_mix64(seed);
    w->trace_hash = w->seed;
    hth_rng_init(&w->root, seed);
    w->link_rng = hth_rng_split(&w->root, "links", 0);
    w->chaos_rng = hth_rng_split(&w->root, "chaos", 0);
    w->dht_rng = hth_rng_split(&w->root, "dht", 0);
    w->job_rng = hth_rng_split(&w->root, "jobs", 0);
    sim_list_init(&w->conns);
    sim_list_init(&w->ats);
    w->pair_links = hth_map_new();
    w->zone_links = hth_map_new();
    w->blocked = hth_map_new();
    w->clogs = hth_map_new();
    w->mounts = hth_map_new();
    w->sites = hth_map_new();
    w->table = hth_map_new();
    sim_event_init(&w->sweep, SIM_SWEEP, NULL);
    return w;
}

void hth_world_free(struct hth_world *w)
{
    if (w == NULL)
        return;
    HTH_ASSERT(w->current == NULL);
    for (size_t i = 0; i < w->node_count; i++)
        hth_sim_node_die(w->nodes[i], HTH_CRASH_SILENT);
    while (!sim_list_empty(&w->conns))
        hth_sim_conn_free(HTH_CONTAINER(w->conns.next, struct sim_conn, in_world));
    while (!sim_list_empty(&w->ats)) {
        struct sim_at *at = HTH_CONTAINER(w->ats.next, struct sim_at, in_world);
        sim_list_remove(&at->in_world);
        hth_sim_unschedule(w, &at->event);
        hth_free(at);
    }
    hth_sim_dht_free(w);
    for (size_t i = 0; i < w->node_count; i++)
        hth_sim_node_free(w->nodes[i]);
    hth_free(w->nodes);
    hth_sim_links_free(w);
    hth_sim_files_free(w->mounts);
    struct sim_site *site;
    for (size_t it = 0; (site = hth_map_next(w->sites, &it, NULL, NULL)) != NULL;)
        hth_free(site);
    hth_map_free(w->sites);
    hth_sim_queue_clear(&w->queue);
    hth_free(w);
}

int64_t hth_world_now_us(const struct hth_world *w)
{
    return w->now_us;
}

void hth_world_set_chaos(struct hth_world *w, const struct hth_chaos *chaos)
{
    w->opts.chaos = *chaos;
}

void hth_world_set_dht(struct hth_world *w, const struct hth_dht_params *params)
{
    w->opts.dht = *params;
}

void hth_world_stats(const struct hth_world *w, struct hth_world_stats *out)
{
    *out = w->stats;
}

/* ---- nodes of the world -------------------------------------------------------------------- */

struct hth_node *hth_world_node(struct hth_world *w, const char *name,
                                const struct hth_node_opts *opts)
{
    if (w->node_count == w->node_capacity) {
        w->node_capacity = w->node_capacity > 0 ? 2 * w->node_capacity : 16;
        w->nodes = hth_realloc(w->nodes, w->node_capacity, sizeof(struct hth_node *));
    }
    struct hth_node *node = hth_sim_node_new(w, name, opts);
    w->nodes[w->node_count++] = node;
    return node;
}

size_t hth_world_node_count(const struct hth_world *w)
{
    return w->node_count;
}

struct hth_node *hth_world_node_at(struct hth_world *w, size_t index)
{
    HTH_ASSERT(index < w->node_count);
    return w->nodes[index];
}

static void add_counts(struct hth_open_counts *sum, const struct hth_open_counts *more)
{
    sum->timers += more->timers;
    sum->listeners += more->listeners;
    sum->streams += more->streams;
    sum->jobs += more->jobs;
    sum->posts += more->posts;
    sum->puts += more->puts;
    sum->gets += more->gets;
    sum->watches += more->watches;
}

uint64_t hth_open_total(const struct hth_open_counts *c)
{
    return c->timers + c->listeners + c->streams + c->jobs + c->posts + c->puts + c->gets +
           c->watches;
}

void hth_world_open(const struct hth_world *w, struct hth_open_counts *out)
{
    *out = (struct hth_open_counts){.timers = 0};
    for (size_t i = 0; i < w->node_count; i++) {
        struct hth_open_counts one;
        hth_node_open(w->nodes[i], &one);
        add_counts(out, &one);
    }
}

void hth_world_leaks(const struct hth_world *w, struct hth_open_counts *out)
{
    *out = w->leaks;
}
