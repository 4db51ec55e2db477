/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/echo.h"

#include "core/limits.h"
#include "core/mem.h"
#include "core/order.h"
#include "dht/announce.h"
#include "dht/board.h"
#include "dht/directory.h"
#include "rpc/rpc.h"
#include "scenarios/leftovers.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define METHOD_ECHO     16
#define PORT            4000
#define NETWORK         "smoke"
#define CALL_TIMEOUT_US (5 * HTH_US_PER_S)
#define RETRY_US        HTH_US_PER_S
#define ATTEMPTS        3
#define BOOT_SPREAD_US  (2 * HTH_US_PER_S)

struct echo_peer;

struct echo_call { /* a call under way */
    struct echo_peer *from;
    struct echo_call *prev, *next;
    struct hth_rpc_target to;
    uint64_t digest;
    int64_t begun_us;        /* by the world's clock: peers' clocks have offsets */
    struct hth_timer *timer; /* for the next attempt */
    bool waits;              /* waits for the timer */
    int attempts;
};

struct serving { /* a request whose job runs */
    struct hth_job job;
    struct hth_rpc_request *req;
};

struct echo_peer {
    struct hth_echo *all;
    struct hth_node *node;
    struct hth_env *env;
    uint32_t index;
    struct hth_rpc *rpc;
    struct hth_announcer *announcer;
    struct hth_directory *directory;
    uint32_t layer;
    struct hth_timer *timer;
    struct echo_call *calls;
};

struct hth_echo {
    struct hth_world *world;
    struct hth_echo_opts opts;
    struct echo_peer *peers;
    struct hth_echo_stats stats;
    int64_t strict_from_us;
    double *latency_us;
    size_t latency_count, latency_room;
    bool ending; /* no new calls */
    char why[HTH_ECHO_WHY_MAX];
};

struct hth_hood hth_hood_of(uint32_t index, uint32_t count, uint32_t hood)
{
    uint32_t hoods = count / hood + (count % hood > 1);
    uint32_t last = hoods > 0 ? hoods - 1 : 0, number = HTH_MIN(index / hood, last);
    uint32_t first = number * hood;
    return (struct hth_hood){number, first, number < last ? hood : count - first};
}

uint64_t hth_hood_experts(uint32_t count, uint32_t hood, uint32_t experts)
{
    uint32_t last = hth_hood_of(count - 1, count, hood).size;
    return (uint64_t)HTH_MAX(last, hood) * experts;
}

static struct hth_hood hood_of(const struct hth_echo *s, uint32_t index)
{
    return hth_hood_of(index, s->opts.count, s->opts.hood);
}

/* Keep the first reason only: later ones often follow from it. */
void hth_echo_broken(struct hth_echo *s, const char *fmt, ...)
{
    va_list args;
    if (s->why[0] != '\0')
        return;
    va_start(args, fmt);
    vsnprintf(s->why, sizeof(s->why), fmt, args);
    va_end(args);
}

const char *hth_echo_why(const struct hth_echo *s)
{
    return s->why;
}

/* ---- payloads ------------------------------------------------------------------------------ */

/* Real bytes are a function of the digest that identifies them. */
static enum hth_err payload_new(struct echo_peer *p, uint64_t digest, struct hth_blob **out)
{
    HTH_TRY(hth_env_blob_new(p->env, p->all->opts.payload_bytes, NULL, out));
    struct hth_blob *blob = *out;
    if (blob->data == NULL) {
        blob->digest = digest;
        return HTH_OK;
    }
    for (size_t i = 0; i < blob->size; i++)
        blob->data[i] = (uint8_t)(hth_mix64(digest + i / 8) >> (i % 8 * 8));
    return HTH_OK;
}

static bool payload_is(const struct hth_tensor *t, uint64_t digest)
{
    const struct hth_blob *blob = t->blob;
    if (blob->data == NULL)
        return blob->digest == digest;
    for (size_t i = 0; i < t->dim[0]; i++) {
        if (blob->data[t->offset + i] != (uint8_t)(hth_mix64(digest + i / 8) >> (i % 8 * 8)))
            return false;
    }
    return true;
}

/* ---- serving ------------------------------------------------------------------------------- */

/* The operations of an expert for a call, and the bytes of one of its rows. */
#define SERVE_FLOPS     5e7
#define SERVE_ROW_BYTES 4096

static void serve_run(struct hth_job *job)
{
    (void)job; /* only its cost matters */
}

static void serve_done(struct hth_job *job, enum hth_err err)
{
    struct serving *serving = HTH_CONTAINER(job, struct serving, job);
    struct hth_rpc_body body = {.payload = NULL};
    if (err != HTH_OK) {
        hth_rpc_refuse(serving->req, HTH_E_DRAINING, 0, NULL);
    } else {
        body.tensors = hth_rpc_tensors(serving->req, &body.tensor_count);
        hth_rpc_reply(serving->req, &body);
    }
    hth_free(serving);
}

static void serve_echo(void *arg, struct hth_rpc_request *req)
{
    struct echo_peer *p = arg;
    struct serving *serving = hth_new(struct serving);
    serving->req = req;
    serving->job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                                    .run = serve_run,
                                    .done = serve_done,
                                    .bytes_moved = 2.0 * p->all->opts.payload_bytes};
    hth_job_add(&serving->job, HTH_WORK_FORWARD, SERVE_FLOPS,
                HTH_MAX(p->all->opts.payload_bytes / SERVE_ROW_BYTES, 1u));
    enum hth_err err = hth_job_submit(p->env, &serving->job);
    if (err != HTH_OK) {
        hth_rpc_refuse(req, HTH_E_BUSY, 100 * HTH_US_PER_MS, "the queue is full");
        hth_free(serving);
    }
}

/* ---- calling ------------------------------------------------------------------------------- */

static void call_free(struct echo_call *c)
{
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        c->from->calls = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    c->from->all->stats.outstanding--;
    hth_timer_free(c->from->env, c->timer);
    hth_free(c);
}

static void keep_latency(struct hth_echo *s, int64_t us)
{
    if (s->latency_count == s->latency_room) {
        s->latency_room = s->latency_room > 0 ? 2 * s->latency_room : 1024;
        s->latency_us = hth_realloc(s->latency_us, s->latency_room, sizeof(double));
    }
    s->latency_us[s->latency_count++] = (double)us;
}

static void on_verdict(void *arg, const struct hth_rpc_result *result);
static void on_retry(void *arg);

/* Send the call. A call that is refused for any reason except a crash is a violation. */
static bool call_send(struct echo_call *c)
{
    struct echo_peer *p = c->from;
    struct hth_blob *blob = NULL;
    enum hth_err err = payload_new(p, c->digest, &blob);
    if (err == HTH_OK) {
        struct hth_tensor t = {.dtype = HTH_U8, .ndim = 1, .dim = {blob->size}, .blob = blob};
        struct hth_rpc_call_opts o = {.method = METHOD_ECHO, .timeout_us = CALL_TIMEOUT_US};
        o.body = (struct hth_rpc_body){.tensors = &t, .tensor_count = 1};
        o.idem = (struct hth_rpc_idem){c->digest, 1};
        err = hth_rpc_call(p->rpc, &c->to, &o, on_verdict, c, NULL);
        hth_blob_unref(blob);
    }
    if (err != HTH_OK) {
        hth_echo_broken(p->all, "%s: a call was refused: %s", hth_node_name(p->node),
                        hth_err_name(err));
        return false;
    }
    p->all->stats.calls++;
    return true;
}

static void on_failure(struct echo_call *c, enum hth_err err)
{
    struct echo_peer *p = c->from;
    struct hth_echo *s = p->all;
    s->stats.failed++;
    hth_directory_mark_dead(p->directory, &c->to.peer, 0);
    if (c->begun_us >= s->strict_from_us)
        hth_echo_broken(s, "%s: a call at %.3f s failed after the faults: %s",
                        hth_node_name(p->node), (double)c->begun_us / 1e6, hth_err_name(err));
}

static void on_verdict(void *arg, const struct hth_rpc_result *result)
{
    struct echo_call *c = arg;
    struct echo_peer *p = c->from;
    struct hth_echo *s = p->all;
    /* A connection that was idle while its host crashed and came back fails only at its next use,
     * and two peers may have two: one dialled by each. The idempotency key stays the same. */
    if (result->err == HTH_E_CLOSED && ++c->attempts < ATTEMPTS) {
        s->stats.again++;
        c->waits = true;
        if (c->timer == NULL)
            c->timer = hth_timer_new(p->env, on_retry, c);
        hth_timer_set(p->env, c->timer, RETRY_US);
        return;
    }
    if (result->err == HTH_OK) {
        s->stats.ok++;
        keep_latency(s, hth_world_now_us(s->world) - c->begun_us);
        hth_directory_mark_alive(p->directory, &c->to.peer);
        if (result->tensor_count != 1 || result->tensors[0].dim[0] != s->opts.payload_bytes ||
            !payload_is(&result->tensors[0], c->digest))
            hth_echo_broken(s, "%s: a reply has the wrong payload", hth_node_name(p->node));
    } else {
        on_failure(c, result->err);
    }
    call_free(c);
}

static void on_retry(void *arg)
{
    struct echo_call *c = arg;
    if (call_send(c))
        c->waits = false;
    else
        call_free(c);
}

static bool is_other(struct echo_peer *p, uint32_t expert, struct hth_host_ref *out)
{
    return hth_directory_hosts_of(p->directory, p->layer, expert, out, 1) == 1 &&
           !hth_peer_id_eq(&out->id, &p->env->self);
}

/* Pick a random live host of the neighbourhood other than ourselves; when the draws hit only
 * ourselves, the first in the directory. */
static bool pick_host(struct echo_peer *p, struct hth_host_ref *out)
{
    const struct hth_grid_view *view = hth_directory_view(p->directory, p->layer);
    for (int tries = 0; tries < 8 && view->live_count > 0; tries++)
        if (is_other(p, view->expert[hth_rng_below(&p->env->rng, view->live_count)], out))
            return true;
    for (uint32_t i = 0; i < view->live_count; i++)
        if (is_other(p, view->expert[i], out))
            return true;
    return false;
}

static void place_call(struct echo_peer *p)
{
    struct hth_echo *s = p->all;
    struct hth_host_ref host;
    if (!pick_host(p, &host)) {
        s->stats.without_host++;
        if (hth_world_now_us(s->world) >= s->strict_from_us)
            hth_echo_broken(s, "%s knows no host after the faults", hth_node_name(p->node));
        return;
    }
    struct echo_call *c = hth_new(struct echo_call);
    c->from = p;
    c->to = (struct hth_rpc_target){.peer = host.id, .addr = host.addr};
    c->digest = hth_rng_u64(&p->env->rng);
    c->begun_us = hth_world_now_us(p->all->world);
    if (!call_send(c)) {
        hth_free(c);
        return;
    }
    s->stats.outstanding++;
    c->next = p->calls;
    if (p->calls != NULL)
        p->calls->prev = c;
    p->calls = c;
}

static void on_tick(void *arg)
{
    struct echo_peer *p = arg;
    if (p->all->ending)
        return;
    place_call(p);
    int64_t every_us = p->all->opts.call_every_us;
    int64_t jitter_us = (int64_t)hth_rng_below(&p->env->rng, (uint64_t)every_us / 5 + 1);
    hth_timer_set(p->env, p->timer, every_us * 9 / 10 + jitter_us);
}

/* Prefetch the objects of a call: first the cache lines of the peer, then those that they point
 * to. */
static void tick_ahead(const void *arg, uint32_t step)
{
    const struct echo_peer *p = arg;
    if (step > 0) {
        if (p->directory != NULL)
            hth_directory_fetch(p->directory, p->layer, step - 1);
        if (step == 1 && p->rpc != NULL)
            hth_rpc_fetch(p->rpc);
        return;
    }
    for (size_t at = 0; at < 12 * 64; at += 64)
        __builtin_prefetch((const char *)p->rpc + at);
    __builtin_prefetch(p->directory);
    __builtin_prefetch(&p->env->rng);
}

/* ---- a peer's life ------------------------------------------------------------------------- */

static enum hth_err start_rpc(struct echo_peer *p)
{
    struct hth_rpc_opts o = HTH_RPC_OPTS_INIT;
    struct hth_addr addr = hth_node_addr(p->node, PORT);
    o.network = NETWORK;
    o.listen = &addr;
    o.backoff_max_us = 2 * HTH_US_PER_S;
    HTH_TRY(hth_rpc_new(p->env, &o, &p->rpc));
    hth_rpc_serve(p->rpc, METHOD_ECHO, serve_echo, p);
    return HTH_OK;
}

static enum hth_err start_records(struct echo_peer *p, struct hth_dht *dht)
{
    struct hth_announcer_opts a = HTH_ANNOUNCER_OPTS_INIT;
    struct hth_directory_opts d = HTH_DIRECTORY_OPTS_INIT;
    struct hth_layer_shape shape = {.kind = "nop", .d = 64, .block_rows = 1};
    struct hth_grid grid;
    char name[24];
    struct hth_hood hood = hood_of(p->all, p->index);
    uint32_t experts = p->all->opts.experts, places = HTH_MAX(hood.size, p->all->opts.hood);
    uint32_t index[HTH_ECHO_EXPERTS_MAX];
    for (uint32_t i = 0; i < experts; i++)
        index[i] = (p->index - hood.first) * experts + i;
    snprintf(name, sizeof(name), "hood%" PRIu32, hood.number);
    HTH_TRY(hth_grid_init(&grid, name, 1, (uint32_t[]){places * experts}));
    a.network = d.network = NETWORK;
    a.role = HTH_ROLE_HOST;
    a.beacon = false;
    a.info = (struct hth_host_info){.addr_count = 1, .version = "sim", .rows_per_s = 1000};
    a.info.addr[0] = hth_node_addr(p->node, PORT);
    d.dead_retry_us = p->all->opts.dead_retry_us;
    if (p->all->opts.record_life_us > 0)
        a.life_us = p->all->opts.record_life_us;
    HTH_TRY(hth_announcer_new(p->env, dht, &a, &p->announcer));
    HTH_TRY(hth_announcer_set_layer(p->announcer, &grid, &shape,
                                    &(struct hth_expert_list){index, experts}));
    HTH_TRY(hth_directory_new(p->env, dht, &d, &p->directory));
    return hth_directory_open_layer(p->directory, &grid, &shape, &p->layer);
}

static void peer_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct echo_peer *p = arg;
    p->env = env;
    p->timer = hth_timer_new(env, on_tick, p);
    hth_timer_set(env, p->timer,
                  2 * HTH_US_PER_S +
                      (int64_t)hth_rng_below(&env->rng, (uint64_t)p->all->opts.call_every_us));
    enum hth_err err = start_rpc(p);
    if (err == HTH_OK)
        err = start_records(p, dht);
    if (err != HTH_OK)
        hth_echo_broken(p->all, "%s did not start: %s", hth_node_name(p->node), hth_err_name(err));
}

static void peer_halt(struct hth_env *env, void *arg)
{
    struct echo_peer *p = arg;
    hth_announcer_free(p->announcer);
    hth_rpc_free(p->rpc);
    hth_directory_free(p->directory);
    hth_timer_free(env, p->timer);
    p->announcer = NULL;
    p->rpc = NULL;
    p->directory = NULL;
    while (p->calls != NULL) {
        p->all->stats.vanished += !p->calls->waits;
        call_free(p->calls);
    }
}

/* ---- the whole ----------------------------------------------------------------------------- */

static void make_node(struct hth_echo *s, uint32_t i, struct hth_rng *rng)
{
    struct echo_peer *p = &s->peers[i];
    struct hth_node_opts o = HTH_NODE_OPTS_INIT;
    char name[24];
    snprintf(name, sizeof(name), "peer%" PRIu32, i);
    if (s->opts.node != NULL)
        s->opts.node(s->opts.arg, i, &o);
    o.boot = peer_boot;
    o.halt = peer_halt;
    o.arg = p;
    o.boot_delay_us = (int64_t)hth_rng_below(rng, BOOT_SPREAD_US);
    p->all = s;
    p->index = i;
    p->node = hth_world_node(s->world, name, &o);
}

enum hth_err hth_echo_new(struct hth_world *world, const struct hth_echo_opts *opts,
                          struct hth_echo **out)
{
    struct hth_rng rng;
    *out = NULL;
    if (opts->count < 2 || opts->hood < 2 || opts->experts < 1 ||
        opts->experts > HTH_ECHO_EXPERTS_MAX || opts->payload_bytes < 1 ||
        opts->call_every_us < 1 ||
        hth_hood_experts(opts->count, opts->hood, opts->experts) > HTH_GRID_DIM_MAX)
        return HTH_E_RANGE;
    struct hth_echo *s = hth_new(struct hth_echo);
    s->world = world;
    s->opts = *opts;
    s->strict_from_us = INT64_MAX;
    s->peers = hth_new_array(struct echo_peer, opts->count);
    hth_world_timer_ahead(world, on_tick, tick_ahead);
    hth_world_value_ahead(world, hth_board_value, hth_board_ahead);
    hth_rng_init(&rng, hth_world_trace_hash(world) ^ UINT64_C(0x5045455253));
    for (uint32_t i = 0; i < opts->count; i++)
        make_node(s, i, &rng);
    *out = s;
    return HTH_OK;
}

void hth_echo_free(struct hth_echo *s)
{
    if (s == NULL)
        return;
    hth_free(s->peers);
    hth_free(s->latency_us);
    hth_free(s);
}

struct hth_node *hth_echo_node(struct hth_echo *s, uint32_t index)
{
    return s->peers[index].node;
}

bool hth_echo_sees(struct hth_echo *s, uint32_t viewer, uint32_t host)
{
    struct echo_peer *p = &s->peers[viewer];
    struct hth_hood hood = hood_of(s, viewer);
    HTH_ASSERT(hood.number == hood_of(s, host).number);
    return p->directory != NULL && hth_grid_view_is_live(hth_directory_view(p->directory, p->layer),
                                                         (host - hood.first) * s->opts.experts);
}

void hth_echo_expect_success(struct hth_echo *s)
{
    s->strict_from_us = hth_world_now_us(s->world);
}

void hth_echo_stop(struct hth_echo *s)
{
    s->ending = true;
}

bool hth_echo_all_answered(void *peers)
{
    return ((struct hth_echo *)peers)->stats.outstanding == 0;
}

/* ---- what must hold ------------------------------------------------------------------------ */

void hth_echo_check_now(struct hth_echo *s)
{
    char why[HTH_LEFTOVERS_TEXT_MAX];
    if (!hth_world_is_tidy(s->world, why))
        hth_echo_broken(s, "%s", why);
}

void hth_echo_check_views(struct hth_echo *s)
{
    for (uint32_t i = 0; i < s->opts.count; i++) {
        struct echo_peer *p = &s->peers[i];
        uint32_t expected = hood_of(s, i).size * s->opts.experts;
        uint32_t live =
            p->directory == NULL ? 0 : hth_directory_view(p->directory, p->layer)->live_count;
        if (live != expected)
            hth_echo_broken(s, "%s sees %" PRIu32 " experts of %" PRIu32 " after the faults",
                            hth_node_name(p->node), live, expected);
    }
}

void hth_echo_check_end(struct hth_echo *s)
{
    const struct hth_echo_stats *n = &s->stats;
    for (uint32_t i = 0; i < s->opts.count; i++)
        hth_node_crash(s->peers[i].node, HTH_CRASH_RESET);
    hth_echo_check_now(s);
    if (n->calls != n->ok + n->failed + n->again + n->vanished)
        hth_echo_broken(s, "%" PRIu64 " calls, but %" PRIu64 " verdicts", n->calls,
                        n->ok + n->failed + n->again + n->vanished);
    if (n->ok == 0)
        hth_echo_broken(s, "no call succeeded");
}

void hth_echo_stats(struct hth_echo *s, struct hth_echo_stats *out)
{
    *out = s->stats;
    if (s->latency_count == 0)
        return;
    size_t n = s->latency_count;
    out->latency_median_us = hth_kth(s->latency_us, n, n / 2);
    out->latency_p99_us = hth_kth(s->latency_us, n, n * 99 / 100);
}
