/* SPDX-License-Identifier: Apache-2.0 */
/* monitor_made.c: the answers of a large run, made up, and a monitor's page of them. */
#include "benchmarks/monitor.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/rng.h"
#include "dht/uid.h"
#include "monitor/monitor.h"
#include "monitor/publish.h"
#include "net/http.h"
#include "net/net.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LAYERS   4
#define SIDE     50 /* of each layer's grid: 4 x 2,500 experts */
#define TRAINERS 19
#define NODES    1
#define HOSTS    (HTH_BENCH_MADE_PEERS - TRAINERS - NODES)
#define DAYS     90
#define TURN_US  HTH_US_PER_S

struct made {
    struct hth_env *env;
    struct hth_gather gather;
    struct hth_run_view *view;
    struct hth_events *events;
    struct hth_history *history;
    struct hth_http *http;
    struct hth_publish *publish;
    struct hth_timer *timer;
    struct hth_event event[HTH_EVENTS_MAX];
    struct hth_history_row row[HTH_HISTORY_LIST_MAX];
    uint64_t seq;
    pthread_t watcher;
};

/* ---- answers -------------------------------------------------------------------------------- */

static void list_experts(struct hth_gather_peer *p, uint32_t host)
{
    for (uint32_t i = host; i < HTH_BENCH_MADE_EXPERTS; i += HOSTS) {
        if (p->expert_count == p->expert_room) {
            p->expert_room = HTH_MAX(2 * p->expert_room, 16u);
            p->expert = hth_realloc(p->expert, p->expert_room, sizeof(*p->expert));
        }
        p->expert[p->expert_count++] =
            (struct hth_gather_expert){i / (SIDE * SIDE), i % (SIDE * SIDE)};
    }
    p->experts = p->expert_count;
}

static void remember(struct hth_gather_peer *p, struct hth_env *env, uint32_t i)
{
    uint32_t now = (uint32_t)(hth_wall_us(env) / HTH_US_PER_S);
    p->recall = hth_new(struct hth_recall_told);
    p->recall->total = 31250;
    for (uint32_t k = 0; k < HTH_RECALL_POINTS_MAX; k++) {
        const struct hth_recall_point point = {now - 10 * (HTH_RECALL_POINTS_MAX - k), 20000 + k,
                                               64 * (20000 + k), 2.5f + 0.001f * (float)i, 30.f};
        hth_recall_add(p->recall, &point);
    }
}

static void add_peer(struct made *m, uint32_t i)
{
    struct hth_gather *g = &m->gather;
    struct hth_gather_peer *p = hth_new(struct hth_gather_peer);
    p->of = g;
    for (size_t b = 0; b < sizeof(p->id.b); b++)
        p->id.b[b] = (uint8_t)hth_rng_u64(&m->env->rng);
    p->role = i < HOSTS ? HTH_ROLE_HOST : i < HOSTS + TRAINERS ? HTH_ROLE_TRAINER : HTH_ROLE_NODE;
    p->addr = (struct hth_addr){.family = 4, .ip = {10, 0, (uint8_t)(i >> 8), (uint8_t)i}};
    p->state = HTH_ANSWERED;
    p->about = hth_new(struct hth_about);
    p->about->started_us = hth_wall_us(m->env) - (int64_t)i * HTH_US_PER_S;
    p->about->rows = hth_rng_u64(&m->env->rng) % 10000000;
    p->about->rows_per_s = (uint32_t)(1000 + i);
    snprintf(p->about->version, sizeof(p->about->version), "0.1.0");
    if (p->role == HTH_ROLE_HOST)
        list_experts(p, i);
    if (p->role == HTH_ROLE_TRAINER)
        remember(p, m->env, i);
    g->peer[g->peer_count++] = p;
    hth_map_put(g->by_id, p->id.b, sizeof(p->id.b), p);
    g->expert_count += p->expert_count;
}

static void answer(struct made *m)
{
    const uint32_t dim[2] = {SIDE, SIDE};
    struct hth_gather *g = &m->gather;
    g->env = m->env;
    g->by_id = hth_map_new_held(offsetof(struct hth_gather_peer, id), sizeof(struct hth_peer_id));
    snprintf(g->network, sizeof(g->network), "made");
    for (uint32_t l = 0; l < LAYERS; l++) {
        char name[16];
        struct hth_beacon_layer *layer = &g->layer[g->layer_count++];
        snprintf(name, sizeof(name), "ffn%u", l);
        HTH_ASSERT(hth_grid_init(&layer->grid, name, 2, dim) == HTH_OK);
        layer->shape.d = 1024;
        snprintf(layer->shape.kind, sizeof(layer->shape.kind), "ffn");
    }
    for (uint32_t i = 0; i < HTH_BENCH_MADE_PEERS; i++)
        add_peer(m, i);
}

/* 90 days, the last of them each ten seconds, with a loss that falls. */
static void fill_history(struct made *m)
{
    uint32_t now = (uint32_t)(hth_wall_us(m->env) / HTH_US_PER_S);
    uint32_t day = now - 86400, step = HTH_HISTORY_COARSE_S;
    for (uint32_t t = now - DAYS * 86400; t < now; t += step) {
        uint64_t at = (t - (now - DAYS * 86400)) / 250;
        const struct hth_history_row row = {
            .t = t,
            .trainers = TRAINERS - t % 3,
            .hosts = HOSTS - t % 7,
            .served = HTH_BENCH_MADE_EXPERTS - t % 31,
            .step = at,
            .samples = at * 4096,
            .loss = (float)(2 + 6 * exp(-(double)at / 9000) + 0.01 * (double)(t % 17)),
            .samples_per_s = 500 + (float)(t % 53),
            .rows_per_s = 90000 + (float)(t % 1009)};
        hth_history_add(m->history, &row);
        step = t < day ? HTH_HISTORY_COARSE_S : HTH_HISTORY_FINE_S;
    }
}

/* ---- the page ------------------------------------------------------------------------------- */

static void on_turn(void *arg)
{
    struct made *m = arg;
    struct hth_run_view *view = hth_run_view_new(&m->gather, m->view);
    hth_run_view_free(m->view);
    m->view = view;
    hth_events_see(m->events, view, 1);
    for (size_t i = 0; i < HOSTS; i++)
        m->gather.peer[i]->about->rows += 900;
    const struct hth_run_now now = {
        .seq = ++m->seq,
        .now_us = view->asked_us,
        .asked_us = view->asked_us,
        .period_s = 10,
        .name = view->run,
        .state = "training",
        .version = "0.1.0",
        .since_t = hth_history_began(m->history),
        .left_s = 86400,
        .samples = 123456789,
        .join_command = "hearth serve --run FILE --join ADDR:PORT",
        .join_ask = "",
        .view = view,
        .event = m->event,
        .event_count = hth_events_list(m->events, m->event),
        .row = m->row,
        .row_count =
            hth_history_list(m->history, (uint32_t)(view->asked_us / HTH_US_PER_S), m->row)};
    hth_publish_show(m->publish, &now);
    hth_timer_set(m->env, m->timer, TURN_US);
}

static void stop(void *arg)
{
    hth_net_stop(arg);
}

static void *watch_input(void *arg)
{
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    hth_post(arg, stop, arg);
    return NULL;
}

static enum hth_err open_page(struct made *m, const char *dir)
{
    struct hth_addr addr = {.family = 4, .ip = {127, 0, 0, 1}};
    HTH_TRY(hth_http_new_public(m->env, &addr, &m->http));
    hth_http_addr(m->http, &addr);
    const struct hth_publish_opts opts = {.http = {m->http}};
    m->publish = hth_publish_new(m->env, &opts);
    m->events = hth_events_new();
    m->history = hth_history_new(m->env, dir, "made");
    fill_history(m);
    answer(m);
    m->timer = hth_timer_new(m->env, on_turn, m);
    hth_timer_set(m->env, m->timer, 0);
    printf("%u\n", addr.port);
    fflush(stdout);
    return HTH_OK;
}

static void close_page(struct made *m)
{
    hth_net_jobs_end(m->env);
    hth_timer_free(m->env, m->timer);
    hth_publish_free(m->publish);
    hth_http_free(m->http);
    hth_history_free(m->history);
    hth_events_free(m->events);
    hth_run_view_free(m->view);
    for (size_t i = 0; i < m->gather.peer_count; i++) {
        hth_free(m->gather.peer[i]->about);
        hth_free(m->gather.peer[i]->recall);
        hth_free(m->gather.peer[i]->expert);
        hth_free(m->gather.peer[i]);
    }
    hth_map_free(m->gather.by_id);
    hth_net_free(m->env);
}

int hth_bench_monitor_made(const char *dir)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct made *m = hth_new(struct made);
    if (hth_net_new(&opts, &m->env) != HTH_OK) {
        hth_free(m);
        return 1;
    }
    enum hth_err err = open_page(m, dir);
    if (err == HTH_OK) {
        HTH_ASSERT(pthread_create(&m->watcher, NULL, watch_input, m->env) == 0);
        err = hth_net_run(m->env);
        pthread_join(m->watcher, NULL);
    }
    close_page(m);
    hth_free(m);
    return err == HTH_OK ? 0 : 1;
}
