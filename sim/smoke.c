/* SPDX-License-Identifier: Apache-2.0 */
/* smoke.c: neighbourhoods of peers that announce, look up and call, first under faults, then not.
 */
#include "sim/smoke.h"

#include "core/mem.h"
#include "dht/announce.h"
#include "dht/directory.h"
#include "rpc/rpc.h"
#include "sim/world.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOOD_PEERS      32
#define METHOD_ECHO     16
#define PORT            4000
#define NETWORK         "smoke"
#define CALL_EVERY_US   HTH_US_PER_S
#define CALL_TIMEOUT_US (5 * HTH_US_PER_S)
#define RETRY_US        HTH_US_PER_S
#define ATTEMPTS        3
#define PARTITION_US    (5 * HTH_US_PER_S)

struct smoke;
struct peer;

struct call { /* under way */
    struct peer *from;
    struct call *prev, *next;
    struct hth_rpc_target to;
    uint64_t digest;
    int64_t begun_us;
    struct hth_timer *timer; /* of the next attempt */
    bool waits;              /* for it */
    int attempts;
};

struct serving { /* a request in its job */
    struct hth_job job;
    struct hth_rpc_request *req;
};

struct peer {
    struct smoke *smoke;
    struct hth_node *node;
    struct hth_env *env;
    uint32_t index;
    struct hth_rpc *rpc;
    struct hth_announcer *announcer;
    struct hth_directory *directory;
    uint32_t layer;
    struct hth_timer *timer;
    struct call *calls;
};

struct smoke {
    const struct hth_smoke_opts *opts;
    struct hth_smoke_report *report;
    struct hth_world *world;
    struct hth_rng rng;
    struct peer *peers;
    uint64_t outstanding;
    int32_t *latency_us;
    size_t latency_count, latency_room;
    bool partitioned;
    bool ending; /* no new calls */
};

static void broken(struct smoke *s, const char *fmt, ...) HTH_PRINTF(2, 3);

/* Keeps the first reason only: what follows is often its consequence. */
static void broken(struct smoke *s, const char *fmt, ...)
{
    va_list args;
    if (s->report->why[0] != '\0')
        return;
    va_start(args, fmt);
    vsnprintf(s->report->why, sizeof(s->report->why), fmt, args);
    va_end(args);
}

static int64_t faults_end_us(const struct smoke *s)
{
    return s->opts->duration_us * 2 / 3;
}

/* ---- payloads ------------------------------------------------------------------------------ */

/* Real bytes are a function of the digest that stands for them. */
static enum hth_err payload_new(struct peer *p, uint64_t digest, struct hth_blob **out)
{
    HTH_TRY(hth_env_blob_new(p->env, p->smoke->opts->payload_bytes, NULL, out));
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
    struct peer *p = arg;
    struct serving *serving = hth_new(struct serving);
    serving->req = req;
    serving->job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                                    .run = serve_run,
                                    .done = serve_done,
                                    .flops = 5e7,
                                    .bytes_moved = 2.0 * p->smoke->opts->payload_bytes};
    enum hth_err err = hth_job_submit(p->env, &serving->job);
    if (err != HTH_OK) {
        hth_rpc_refuse(req, HTH_E_BUSY, 100 * HTH_US_PER_MS, "the queue is full");
        hth_free(serving);
    }
}

/* ---- calling ------------------------------------------------------------------------------- */

static void call_free(struct call *c)
{
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        c->from->calls = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    c->from->smoke->outstanding--;
    hth_timer_free(c->from->env, c->timer);
    hth_free(c);
}

static void keep_latency(struct smoke *s, int64_t us)
{
    if (s->latency_count == s->latency_room) {
        s->latency_room = s->latency_room > 0 ? 2 * s->latency_room : 1024;
        s->latency_us = hth_realloc(s->latency_us, s->latency_room, sizeof(int32_t));
    }
    s->latency_us[s->latency_count++] = (int32_t)us;
}

static void on_verdict(void *arg, const struct hth_rpc_result *result);
static void on_retry(void *arg);

/* Sends the call; what keeps it from being sent is broken. */
static bool call_send(struct call *c)
{
    struct peer *p = c->from;
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
        broken(p->smoke, "%s: a call was not taken: %s", hth_node_name(p->node), hth_err_name(err));
        return false;
    }
    p->smoke->report->calls++;
    return true;
}

static void on_failure(struct call *c, enum hth_err err)
{
    struct peer *p = c->from;
    struct smoke *s = p->smoke;
    s->report->calls_failed++;
    hth_directory_mark_dead(p->directory, &c->to.peer, 0);
    if (c->begun_us >= s->opts->duration_us * 9 / 10)
        broken(s, "%s: a call at %.3f s failed after the faults: %s", hth_node_name(p->node),
               (double)c->begun_us / 1e6, hth_err_name(err));
}

static void on_verdict(void *arg, const struct hth_rpc_result *result)
{
    struct call *c = arg;
    struct peer *p = c->from;
    struct smoke *s = p->smoke;
    /* A connection that was idle while its host crashed and came back is only found out by using
     * it, and two peers may have two: one that each dialled. The idempotency key stays the same. */
    if (result->err == HTH_E_CLOSED && ++c->attempts < ATTEMPTS) {
        s->report->calls_again++;
        c->waits = true;
        if (c->timer == NULL)
            c->timer = hth_timer_new(p->env, on_retry, c);
        hth_timer_set(p->env, c->timer, RETRY_US);
        return;
    }
    if (result->err == HTH_OK) {
        s->report->calls_ok++;
        keep_latency(s, hth_now_us(p->env) - c->begun_us);
        hth_directory_mark_alive(p->directory, &c->to.peer);
        if (result->tensor_count != 1 || !payload_is(&result->tensors[0], c->digest))
            broken(s, "%s: a reply carried another payload", hth_node_name(p->node));
    } else {
        on_failure(c, result->err);
    }
    call_free(c);
}

static void on_retry(void *arg)
{
    struct call *c = arg;
    if (call_send(c))
        c->waits = false;
    else
        call_free(c);
}

/* A live host of the neighbourhood other than ourselves, at random. */
static bool pick_host(struct peer *p, struct hth_host_ref *out)
{
    const struct hth_grid_view *view = hth_directory_view(p->directory, p->layer);
    for (int tries = 0; tries < 8 && view->live_count > 0; tries++) {
        uint32_t expert = view->expert[hth_rng_below(&p->env->rng, view->live_count)];
        if (hth_directory_hosts_of(p->directory, p->layer, expert, out, 1) == 1 &&
            !hth_peer_id_eq(&out->id, &p->env->self))
            return true;
    }
    return false;
}

static void place_call(struct peer *p)
{
    struct smoke *s = p->smoke;
    struct hth_host_ref host;
    if (!pick_host(p, &host)) {
        s->report->calls_without_host++;
        if (hth_world_now_us(s->world) >= s->opts->duration_us * 9 / 10)
            broken(s, "%s: knows nobody after the faults", hth_node_name(p->node));
        return;
    }
    struct call *c = hth_new(struct call);
    c->from = p;
    c->to = (struct hth_rpc_target){.peer = host.id, .addr = host.addr};
    c->digest = hth_rng_u64(&p->env->rng);
    c->begun_us = hth_now_us(p->env);
    if (!call_send(c)) {
        hth_free(c);
        return;
    }
    s->outstanding++;
    c->next = p->calls;
    if (p->calls != NULL)
        p->calls->prev = c;
    p->calls = c;
}

static void on_tick(void *arg)
{
    struct peer *p = arg;
    if (p->smoke->ending)
        return;
    place_call(p);
    int64_t jitter_us = (int64_t)hth_rng_below(&p->env->rng, CALL_EVERY_US / 5);
    hth_timer_set(p->env, p->timer, CALL_EVERY_US * 9 / 10 + jitter_us);
}

/* ---- a peer's life ------------------------------------------------------------------------- */

static enum hth_err start_rpc(struct peer *p)
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

static enum hth_err start_records(struct peer *p, struct hth_dht *dht)
{
    struct hth_announcer_opts a = HTH_ANNOUNCER_OPTS_INIT;
    struct hth_directory_opts d = HTH_DIRECTORY_OPTS_INIT;
    struct hth_layer_shape shape = {.kind = "nop", .d = 64, .block_rows = 1};
    struct hth_grid grid;
    char name[24];
    uint32_t experts = p->smoke->opts->experts;
    uint32_t index[HTH_SMOKE_EXPERTS_MAX];
    for (uint32_t i = 0; i < experts; i++)
        index[i] = p->index % HOOD_PEERS * experts + i;
    snprintf(name, sizeof(name), "hood%" PRIu32, p->index / HOOD_PEERS);
    HTH_TRY(hth_grid_init(&grid, name, 1, (uint32_t[]){HOOD_PEERS * experts}));
    a.network = d.network = NETWORK;
    a.role = HTH_ROLE_HOST;
    a.beacon = false;
    a.info = (struct hth_host_info){.addr_count = 1, .version = "sim", .rows_per_s = 1000};
    a.info.addr[0] = hth_node_addr(p->node, PORT);
    d.dead_retry_us = 3 * HTH_US_PER_S;
    HTH_TRY(hth_announcer_new(p->env, dht, &a, &p->announcer));
    HTH_TRY(hth_announcer_set_layer(p->announcer, &grid, &shape,
                                    &(struct hth_expert_list){index, experts}));
    HTH_TRY(hth_directory_new(p->env, dht, &d, &p->directory));
    return hth_directory_open_layer(p->directory, &grid, &shape, &p->layer);
}

static void peer_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct peer *p = arg;
    p->env = env;
    p->timer = hth_timer_new(env, on_tick, p);
    hth_timer_set(env, p->timer,
                  2 * HTH_US_PER_S + (int64_t)hth_rng_below(&env->rng, CALL_EVERY_US));
    enum hth_err err = start_rpc(p);
    if (err == HTH_OK)
        err = start_records(p, dht);
    if (err != HTH_OK)
        broken(p->smoke, "%s did not start: %s", hth_node_name(p->node), hth_err_name(err));
}

static void peer_halt(struct hth_env *env, void *arg)
{
    struct peer *p = arg;
    hth_announcer_free(p->announcer);
    hth_rpc_free(p->rpc);
    hth_directory_free(p->directory);
    hth_timer_free(env, p->timer);
    p->announcer = NULL;
    p->rpc = NULL;
    p->directory = NULL;
    while (p->calls != NULL) {
        p->smoke->report->calls_vanished += !p->calls->waits;
        call_free(p->calls);
    }
}

/* ---- faults -------------------------------------------------------------------------------- */

/* Cuts every other peer of every fourth neighbourhood off from the rest. */
static void partition(void *arg)
{
    struct smoke *s = arg;
    if (hth_world_now_us(s->world) >= faults_end_us(s))
        return;
    if (s->partitioned) {
        hth_world_heal(s->world);
    } else {
        uint32_t which = (uint32_t)hth_rng_below(&s->rng, 4);
        s->report->partitions++;
        for (uint32_t i = 0; i < s->opts->peers; i++) {
            if (i / HOOD_PEERS % 4 == which && i % 2 == 1)
                hth_node_set_side(s->peers[i].node, 1);
        }
    }
    s->partitioned = !s->partitioned;
    hth_world_at(s->world, hth_world_now_us(s->world) + PARTITION_US, partition, s);
}

static void restart(void *arg)
{
    hth_node_restart(arg);
}

/* Each second one peer in a hundred dies, half of them without a word, and comes back after 2 to
 * 8 seconds. */
static void crash_some(void *arg)
{
    struct smoke *s = arg;
    int64_t now_us = hth_world_now_us(s->world);
    if (now_us >= faults_end_us(s))
        return;
    for (uint32_t i = 0; i < (s->opts->peers + 99) / 100; i++) {
        struct hth_node *node = s->peers[hth_rng_below(&s->rng, s->opts->peers)].node;
        bool silent = hth_rng_chance(&s->rng, 0.5);
        int64_t away_us = (int64_t)hth_rng_below(&s->rng, 6 * HTH_US_PER_S) + 2 * HTH_US_PER_S;
        if (!hth_node_is_up(node))
            continue;
        s->report->crashes++;
        hth_node_crash(node, silent ? HTH_CRASH_SILENT : HTH_CRASH_RESET);
        hth_world_at(s->world, HTH_MIN(now_us + away_us, faults_end_us(s)), restart, node);
    }
    hth_world_at(s->world, now_us + HTH_US_PER_S, crash_some, s);
}

static struct hth_world_opts world_opts(const struct hth_smoke_opts *opts, bool faults)
{
    struct hth_world_opts o = HTH_WORLD_OPTS_INIT;
    o.ghost = !opts->real_payloads;
    o.log_level = opts->log_level;
    o.segment_bytes = 512u << 10; /* a payload in one piece: a third of the events */
    o.link = (struct hth_link){.latency_us = 20000,
                               .jitter_us = 5000,
                               .jitter = HTH_JITTER_EXPONENTIAL,
                               .loss = faults ? 0.001 : 0.0};
    o.dht.watch_refresh_us = 10 * HTH_US_PER_S;
    if (faults) {
        o.dht.lost_put = o.dht.lost_get = 0.02;
        o.dht.partial = o.dht.repeat = 0.05;
        o.chaos.site_enabled = o.chaos.site_fires = 0.25;
    }
    return o;
}

static void end_faults(void *arg)
{
    struct smoke *s = arg;
    struct hth_world_opts calm = world_opts(s->opts, false);
    hth_world_heal(s->world);
    hth_world_set_link(s->world, &calm.link);
    hth_world_set_dht(s->world, &calm.dht);
    hth_world_set_chaos(s->world, &calm.chaos);
}

/* ---- the run ------------------------------------------------------------------------------- */

static bool all_answered(void *arg)
{
    return ((struct smoke *)arg)->outstanding == 0;
}

static void check_directories(struct smoke *s)
{
    for (uint32_t i = 0; i < s->opts->peers; i++) {
        struct peer *p = &s->peers[i];
        uint32_t first = i / HOOD_PEERS * HOOD_PEERS;
        uint32_t hood = HTH_MIN(s->opts->peers - first, (uint32_t)HOOD_PEERS);
        uint32_t live =
            p->directory == NULL ? 0 : hth_directory_view(p->directory, p->layer)->live_count;
        if (live != hood * s->opts->experts)
            broken(s, "%s sees %" PRIu32 " experts of %" PRIu32 " after the faults",
                   hth_node_name(p->node), live, hood * s->opts->experts);
    }
}

static void check_counts(struct smoke *s)
{
    const struct hth_smoke_report *r = s->report;
    struct hth_open_counts open, leaks;
    hth_world_open(s->world, &open);
    hth_world_leaks(s->world, &leaks);
    if (hth_open_total(&open) + hth_open_total(&leaks) > 0)
        broken(s, "left behind: %" PRIu64 " timers, %" PRIu64 " streams, %" PRIu64 " dht handles",
               leaks.timers, leaks.streams, leaks.puts + leaks.gets + leaks.watches);
    if (r->calls != r->calls_ok + r->calls_failed + r->calls_again + r->calls_vanished)
        broken(s, "%" PRIu64 " calls, but %" PRIu64 " verdicts", r->calls,
               r->calls_ok + r->calls_failed + r->calls_again + r->calls_vanished);
    if (r->calls_ok == 0)
        broken(s, "no call succeeded");
}

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static double median_us(struct smoke *s)
{
    if (s->latency_count == 0)
        return 0.0;
    qsort(s->latency_us, s->latency_count, sizeof(int32_t), by_value);
    return (double)s->latency_us[s->latency_count / 2];
}

static void make_peers(struct smoke *s)
{
    s->peers = hth_new_array(struct peer, s->opts->peers);
    for (uint32_t i = 0; i < s->opts->peers; i++) {
        struct peer *p = &s->peers[i];
        struct hth_node_opts o = HTH_NODE_OPTS_INIT;
        char name[24];
        snprintf(name, sizeof(name), "peer%" PRIu32, i);
        o.boot = peer_boot;
        o.halt = peer_halt;
        o.arg = p;
        o.boot_delay_us = (int64_t)hth_rng_below(&s->rng, 2 * HTH_US_PER_S);
        o.wall_skew_us = (int64_t)hth_rng_below(&s->rng, 2000000) - 1000000;
        p->smoke = s;
        p->index = i;
        p->node = hth_world_node(s->world, name, &o);
    }
}

static void run(struct smoke *s)
{
    const struct hth_smoke_opts *opts = s->opts;
    make_peers(s);
    if (!opts->calm) {
        hth_world_at(s->world, 5 * HTH_US_PER_S, crash_some, s);
        hth_world_at(s->world, 10 * HTH_US_PER_S, partition, s);
        hth_world_at(s->world, faults_end_us(s), end_faults, s);
    }
    for (int64_t t = HTH_US_PER_S; t < opts->duration_us; t += HTH_US_PER_S) {
        s->report->events += hth_world_run_until(s->world, t);
        if (opts->progress != NULL)
            opts->progress(opts->arg, t, s->report->events);
    }
    hth_world_run_until(s->world, opts->duration_us);
    s->ending = true;
    if (!hth_world_run_until_true(s->world, all_answered, s, 4 * CALL_TIMEOUT_US))
        broken(s, "%" PRIu64 " calls never got a verdict", s->outstanding);
    check_directories(s);
    for (uint32_t i = 0; i < opts->peers; i++)
        hth_node_crash(s->peers[i].node, HTH_CRASH_RESET);
    check_counts(s);
}

enum hth_err hth_smoke_run(const struct hth_smoke_opts *opts, struct hth_smoke_report *report)
{
    memset(report, 0, sizeof(*report));
    report->peers = opts->peers;
    report->asked = *opts;
    report->seed = opts->seed;
    if (opts->peers < 2 || opts->peers > 100000 || opts->experts < 1 ||
        opts->experts > HTH_SMOKE_EXPERTS_MAX || opts->duration_us < 60 * HTH_US_PER_S ||
        opts->payload_bytes == 0 || opts->payload_bytes > 64u << 20)
        return HTH_E_RANGE;
    struct hth_world_opts world = world_opts(opts, !opts->calm);
    struct smoke s = {.opts = opts, .report = report};
    struct hth_world_stats stats;
    s.world = hth_world_new(opts->seed, &world);
    hth_rng_init(&s.rng, opts->seed ^ UINT64_C(0x534d4f4b45));
    run(&s);
    hth_world_stats(s.world, &stats);
    report->hash = hth_world_trace_hash(s.world);
    report->virtual_us = hth_world_now_us(s.world);
    report->events = stats.events;
    report->bytes_delivered = stats.bytes_delivered;
    report->dht_values = stats.dht_values;
    report->latency_median_us = median_us(&s);
    report->pass = report->why[0] == '\0';
    hth_world_free(s.world);
    hth_free(s.peers);
    hth_free(s.latency_us);
    return HTH_OK;
}

/* ---- the line ------------------------------------------------------------------------------ */

static size_t append(char *out, size_t at, const char *fmt, ...) HTH_PRINTF(3, 4);

static size_t append(char *out, size_t at, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(out + at, HTH_SMOKE_LINE_MAX - at, fmt, args);
    va_end(args);
    return HTH_MIN(at + (size_t)HTH_MAX(n, 0), (size_t)HTH_SMOKE_LINE_MAX - 1);
}

const char *hth_smoke_line(const struct hth_smoke_report *r, int64_t wall_us, uint64_t memory_bytes,
                           char out[HTH_SMOKE_LINE_MAX])
{
    double virtual_s = (double)r->virtual_us / 1e6;
    size_t at = append(out, 0, "%s seed=%" PRIu64 " hash=%016" PRIx64 " peers=%" PRIu32,
                       r->pass ? "PASS" : "FAIL", r->seed, r->hash, r->peers);
    at = append(out, at,
                " virtual_s=%.1f events=%" PRIu64 " calls=%" PRIu64 " ok=%" PRIu64
                " failed=%" PRIu64 " again=%" PRIu64 " vanished=%" PRIu64 " crashes=%" PRIu64,
                virtual_s, r->events, r->calls, r->calls_ok, r->calls_failed, r->calls_again,
                r->calls_vanished, r->crashes);
    at = append(out, at, " median_ms=%.1f mib_delivered=%.0f", r->latency_median_us / 1e3,
                (double)r->bytes_delivered / 1048576.0);
    if (wall_us > 0) {
        double wall_s = (double)wall_us / 1e6;
        at = append(out, at, " wall_s=%.2f virtual_per_wall=%.1f events_per_s=%.0f", wall_s,
                    virtual_s / wall_s, (double)r->events / wall_s);
    }
    if (memory_bytes > 0)
        at = append(out, at, " memory_mib=%.0f", (double)memory_bytes / 1048576.0);
    if (!r->pass)
        append(out, at,
               " why=\"%s\" again=\"hearth sim smoke --peers %" PRIu32 " --seed %" PRIu64
               " --duration %" PRIi64 "us --payload %" PRIu32 " --experts %" PRIu32 "%s%s\"",
               r->why, r->peers, r->seed, r->asked.duration_us, r->asked.payload_bytes,
               r->asked.experts, r->asked.calm ? " --calm" : "",
               r->asked.real_payloads ? " --real-payloads" : "");
    return out;
}
