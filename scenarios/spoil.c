/* SPDX-License-Identifier: Apache-2.0 */
/* spoil.c: see spoil.h. */
#include "scenarios/spoil.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "experts/message.h"
#include "experts/ring.h"
#include "experts/rows.h"
#include "experts/server.h"
#include "rpc/rpc.h"
#include "scenarios/admitted.h"
#include "sim/world.h"

#define PORT        4000
#define D           16
#define ROWS        16
#define LIE_ROWS    64
#define EVAL_ROWS   512
#define MICROBATCH  1024 /* the host's limit */
#define PERIOD_US   (2 * HTH_US_PER_S)
#define LIE_US      (4 * HTH_US_PER_S)
#define MINUTE_US   (60.0 * 1e6)
#define FILE_MAX    (1u << 20)
#define LIAR_SERIAL 1
#define DIR         "experts"
#define LIMIT_US    (INT64_C(100) * 3600 * HTH_US_PER_S)

struct spoil;

struct spoiler { /* a peer, honest or not */
    struct spoil *run;
    struct hth_admission admission;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_timer *timer;
    struct hth_rng rng;
    bool lies, waits;
    uint64_t key;
    int64_t asked_us;
    float x[LIE_ROWS * D], t[LIE_ROWS * D], dy[LIE_ROWS * D];
};

struct spoil {
    const struct hth_spoil_opts *opts;
    struct hth_world *world;
    struct hth_node *host;
    struct hth_env *env;
    struct hth_admission admission;
    struct hth_rpc *rpc;
    struct hth_server *server;
    struct hth_expert *teacher;
    struct hth_exec *ex;
    struct spoiler *peer;
    uint32_t peers;
    bool attack;
    double sigma; /* of the noise on each number of a target */
    double usual; /* mean of ||dy|| of an honest row, moving average */
    double forward_us, forwards;
    enum hth_err err;
};

/* ---- arithmetic ----------------------------------------------------------------------------- */

static void normals(struct hth_rng *rng, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (float)hth_rng_normal(rng);
}

static void forward(struct spoil *s, const struct hth_expert *e, uint32_t rows, const float *x,
                    float *y)
{
    size_t scratch = hth_expert_scratch_bytes(e, rows, false);

    if (s->err == HTH_OK)
        s->err = hth_exec_reserve(s->ex, scratch);
    if (s->err == HTH_OK)
        s->err = hth_expert_forward(e, s->ex, hth_view_f32((float *)(uintptr_t)x, rows, D, D),
                                    hth_view_f32(y, rows, D, D));
}

static const struct hth_expert *hosted(const struct spoil *s)
{
    struct hth_server_expert e = {.expert = NULL};

    return s->server != NULL && hth_server_expert_at(s->server, 0, &e) && e.ready ? e.expert : NULL;
}

/* The mean of ||y - t||^2 / 2 over fixed rows, with the noise of the targets. */
static double loss(struct spoil *s)
{
    float *x = hth_new_array(float, EVAL_ROWS *D), *y = hth_new_array(float, EVAL_ROWS *D);
    float *t = hth_new_array(float, EVAL_ROWS *D);
    struct hth_rng rng;
    double sum = 0;

    hth_rng_init(&rng, 77);
    normals(&rng, x, EVAL_ROWS * D);
    forward(s, s->teacher, EVAL_ROWS, x, t);
    forward(s, hosted(s), EVAL_ROWS, x, y);
    for (size_t i = 0; i < EVAL_ROWS * D; i++)
        sum += ((double)y[i] - t[i]) * ((double)y[i] - t[i]) / 2 / EVAL_ROWS;
    hth_free(x);
    hth_free(y);
    hth_free(t);
    return sum + s->sigma * s->sigma * D / 2;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static void send(struct spoiler *p, const float *x, const float *dy, uint32_t rows,
                 uint32_t microbatch, hth_rpc_done_fn *done)
{
    struct spoil *s = p->run;
    uint32_t coord = 0;
    struct hth_expert_msg work = {.layer = "ffn0",
                                  .ndim = 1,
                                  .parts = 1,
                                  .coord = &coord,
                                  .rows = &rows,
                                  .rows_in_microbatch = dy != NULL ? microbatch : 0};
    struct hth_rpc_target to = {.peer = hth_node_env(s->host)->self,
                                .addr = hth_node_addr(s->host, PORT)};
    struct hth_rpc_call_opts o = {.method = dy != NULL ? HTH_METHOD_EXPERT_BACKWARD
                                                       : HTH_METHOD_EXPERT_FORWARD,
                                  .timeout_us = HTH_US_PER_S,
                                  .idem = {.lo = ++p->key}};
    struct hth_tensor t[2] = {hth_rows_tensor(HTH_F32, rows, D), hth_rows_tensor(HTH_F32, rows, D)};
    const float *from[2] = {x, dy};
    uint8_t *payload = NULL;

    o.body.tensor_count = dy != NULL ? 2 : 1;
    for (size_t i = 0; i < o.body.tensor_count; i++)
        t[i].blob = hth_blob_copy(from[i], rows * D * sizeof(float));
    o.body.tensors = t;
    if (hth_expert_msg_pack(&work, &payload, &o.body.payload_len) == HTH_OK) {
        o.body.payload = payload;
        p->waits = hth_rpc_call(p->rpc, &to, &o, done, p, NULL) == HTH_OK;
    }
    for (size_t i = 0; i < o.body.tensor_count; i++)
        hth_blob_unref(t[i].blob);
    hth_free(payload);
}

static void on_backward(void *arg, const struct hth_rpc_result *result)
{
    struct spoiler *p = arg;

    (void)result;
    p->waits = false;
}

static void on_forward(void *arg, const struct hth_rpc_result *result)
{
    struct spoiler *p = arg;
    struct spoil *s = p->run;
    double sumsq = 0;

    p->waits = false;
    if (result->err != HTH_OK || result->tensor_count == 0)
        return;
    s->forward_us += (double)(hth_now_us(p->env) - p->asked_us);
    s->forwards++;
    const float *y =
        (const float *)(const void *)(result->tensors[0].blob->data + result->tensors[0].offset);
    for (size_t i = 0; i < ROWS * D; i++) {
        p->dy[i] = (y[i] - p->t[i] - (float)(s->sigma * hth_rng_normal(&p->rng))) / ROWS;
        sumsq += (double)p->dy[i] * p->dy[i];
    }
    s->usual += 0.05 * (ROWS * sqrt(sumsq / ROWS) - s->usual);
    send(p, p->x, p->dy, ROWS, ROWS, on_backward);
}

static void ask(struct spoiler *p)
{
    normals(&p->rng, p->x, ROWS * D);
    forward(p->run, p->run->teacher, ROWS, p->x, p->t);
    p->asked_us = hth_now_us(p->env);
    send(p, p->x, NULL, ROWS, 0, on_forward);
}

static void lie(struct spoiler *p)
{
    struct spoil *s = p->run;
    const struct hth_expert *e = hosted(s);
    double sumsq = 0;
    float factor;

    if (e == NULL)
        return;
    normals(&p->rng, p->x, LIE_ROWS * D);
    if (s->opts->kind == HTH_SPOIL_SHOVE) {
        for (size_t i = 0; i < LIE_ROWS * D; i++)
            p->dy[i] = HTH_EXPERT_NUMBER_MAX;
        send(p, p->x, p->dy, LIE_ROWS, MICROBATCH, on_backward);
        return;
    }
    forward(s, s->teacher, LIE_ROWS, p->x, p->t);
    forward(s, e, LIE_ROWS, p->x, p->dy);
    for (size_t i = 0; i < LIE_ROWS * D; i++) {
        p->dy[i] = p->t[i] - p->dy[i];
        sumsq += (double)p->dy[i] * p->dy[i];
    }
    factor = s->opts->kind == HTH_SPOIL_TURN
                 ? 1e6f
                 : (float)(1.5 * s->usual / sqrt(sumsq / LIE_ROWS + 1e-12));
    for (size_t i = 0; i < LIE_ROWS * D; i++)
        p->dy[i] *= factor / LIE_ROWS;
    send(p, p->x, p->dy, LIE_ROWS, LIE_ROWS, on_backward);
}

static void on_timer(void *arg)
{
    struct spoiler *p = arg;

    hth_timer_set(p->env, p->timer, p->lies ? LIE_US : PERIOD_US);
    if (p->waits)
        return;
    if (!p->lies)
        ask(p);
    else if (p->run->attack)
        lie(p);
}

/* ---- nodes ---------------------------------------------------------------------------------- */

static void peer_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct spoiler *p = arg;
    struct hth_rpc_opts o = HTH_RPC_OPTS_INIT;

    (void)dht;
    p->env = env;
    p->rng = hth_rng_split(&env->rng, "spoil", 0);
    o.network = "spoil";
    o.admission = &p->admission;
    if (hth_rpc_new(env, &o, &p->rpc) != HTH_OK)
        return;
    p->timer = hth_timer_new(env, on_timer, p);
    hth_timer_set(env, p->timer, (int64_t)hth_rng_below(&p->rng, PERIOD_US));
}

static void peer_halt(struct hth_env *env, void *arg)
{
    struct spoiler *p = arg;

    hth_timer_free(env, p->timer);
    hth_rpc_free(p->rpc);
    p->timer = NULL;
    p->rpc = NULL;
}

static struct hth_expert_opts expert_opts(uint32_t coord)
{
    struct hth_expert_opts o = HTH_EXPERT_OPTS_INIT;

    o.uid = (struct hth_uid){.name = "ffn0", .ncoord = 1, .coord = {coord}};
    o.shape.d = D;
    o.shape.inner = 2 * D;
    o.backend = hth_backend_ref();
    o.run_seed = 3;
    return o;
}

static void host_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct spoil *s = arg;
    struct hth_rpc_opts o = HTH_RPC_OPTS_INIT;
    struct hth_server_opts server = HTH_SERVER_OPTS_INIT;
    struct hth_expert_opts expert = expert_opts(0);
    struct hth_addr addr = hth_node_addr(s->host, PORT);

    (void)dht;
    s->env = env;
    o.network = "spoil";
    o.listen = &addr;
    o.admission = &s->admission;
    server.step_rows = 128;
    server.microbatch_rows_max = MICROBATCH;
    server.bound_senders = !s->opts->unbounded;
    server.pause_us = s->opts->canary ? server.pause_us : 0;
    server.checkpoint_dir = DIR;
    s->err = hth_rpc_new(env, &o, &s->rpc);
    if (s->err == HTH_OK)
        s->err = hth_server_new(env, s->rpc, &server, &s->server);
    if (s->err == HTH_OK)
        s->err = hth_server_add(s->server, &expert);
}

static void host_halt(struct hth_env *env, void *arg)
{
    struct spoil *s = arg;

    (void)env;
    hth_server_free(s->server);
    hth_rpc_free(s->rpc);
    s->server = NULL;
    s->rpc = NULL;
}

static struct hth_node *add(struct spoil *s, const char *kind, uint32_t i, bool host,
                            struct spoiler *p)
{
    struct hth_node_opts o = HTH_NODE_OPTS_INIT;
    char name[32];

    snprintf(name, sizeof(name), "%s%u", kind, i);
    o.boot = host ? host_boot : peer_boot;
    o.halt = host ? host_halt : peer_halt;
    o.arg = host ? (void *)s : (void *)p;
    o.boot_delay_us = 1;
    return hth_world_node(s->world, name, &o);
}

static void add_peers(struct spoil *s)
{
    const struct hth_spoil_opts *o = s->opts;

    s->peers = o->honest + o->attackers;
    s->peer = hth_new_array(struct spoiler, s->peers);
    for (uint32_t i = 0; i < s->peers; i++) {
        struct spoiler *p = &s->peer[i];
        p->run = s;
        p->lies = i >= o->honest;
        p->admission = hth_admitted(p->lies ? LIAR_SERIAL : LIAR_SERIAL + 1 + i,
                                    p->lies && o->probation ? HTH_PROBATION : HTH_MEMBER);
        p->node = add(s, p->lies ? "liar" : "honest", i, false, p);
    }
}

/* Draws the teacher, and sets the noise by the size of its answers. */
static void make_teacher(struct spoil *s)
{
    struct hth_expert_opts o = expert_opts(9);
    float *x = hth_new_array(float, EVAL_ROWS *D), *t = hth_new_array(float, EVAL_ROWS *D);
    struct hth_rng rng;

    s->err = hth_expert_new(&o, &s->teacher);
    if (s->err == HTH_OK)
        s->err = hth_expert_init(s->teacher);
    if (s->err == HTH_OK)
        s->err = hth_exec_new(o.backend, 0, &s->ex);
    hth_rng_init(&rng, 78);
    normals(&rng, x, EVAL_ROWS * D);
    forward(s, s->teacher, EVAL_ROWS, x, t);
    /* The part that has to be learnt: an expert adds its input to what it computes. */
    double sumsq = 0;
    for (size_t i = 0; i < EVAL_ROWS * D; i++)
        sumsq += ((double)t[i] - x[i]) * ((double)t[i] - x[i]);
    s->sigma = sqrt(s->opts->noise * sumsq / (EVAL_ROWS * D));
    hth_free(x);
    hth_free(t);
}

/* ---- the run -------------------------------------------------------------------------------- */

static void run_for(struct spoil *s, double minutes)
{
    hth_world_run_for(s->world, (int64_t)(minutes * MINUTE_US));
}

static struct hth_server_stats stats_of(const struct spoil *s)
{
    struct hth_server_stats stats = {.steps = 0};

    if (s->server != NULL)
        hth_server_stats(s->server, &stats);
    return stats;
}

static bool has_stepped(void *arg)
{
    const struct spoil *s = arg;

    return s->err != HTH_OK || stats_of(s).steps >= s->opts->back_updates;
}

/* The host ends, and starts with --roll-back. The start before it only reaches the disk. */
static void roll_back(struct spoil *s)
{
    int64_t age = (int64_t)((s->opts->minutes + 1) * MINUTE_US), taken;

    s->attack = false;
    hth_node_crash(s->host, HTH_CRASH_RESET);
    hth_node_restart(s->host);
    if (s->err == HTH_OK)
        s->err = hth_ring_back(s->env, DIR "/ffn0.0.safetensors", age, hth_wall_us(s->env),
                               FILE_MAX, &taken);
    hth_node_crash(s->host, HTH_CRASH_RESET);
    hth_node_restart(s->host);
    if (!hth_world_run_until_true(s->world, has_stepped, s, LIMIT_US) && s->err == HTH_OK)
        s->err = HTH_E_TIMEOUT;
}

enum hth_err hth_sim_spoil(const struct hth_spoil_opts *opts, struct hth_spoil_report *out)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct spoil *s = hth_new(struct spoil);
    enum hth_err err;

    *out = (struct hth_spoil_report){.begin = 0};
    s->opts = opts;
    s->admission = hth_admitted(LIAR_SERIAL + 100000, HTH_MEMBER);
    make_teacher(s);
    w.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    s->world = hth_world_new(opts->seed, &w);
    s->host = add(s, "host", 0, true, NULL);
    add_peers(s);
    hth_world_run_for(s->world, HTH_US_PER_S / 2);
    out->begin = loss(s);
    run_for(s, opts->calm_minutes);
    out->calm = loss(s);
    s->attack = opts->kind != HTH_SPOIL_NONE;
    s->forward_us = s->forwards = 0;
    run_for(s, opts->minutes);
    out->end = loss(s);
    out->steps = stats_of(s).steps;
    out->pauses = stats_of(s).pauses;
    out->forwards = s->forwards > 0 ? s->forward_us / s->forwards / 1e3 : 0;
    if (opts->back_updates > 0) {
        roll_back(s);
        out->back = s->err == HTH_OK ? loss(s) : 0;
    }
    err = s->err;
    hth_world_free(s->world);
    hth_exec_free(s->ex);
    hth_expert_free(s->teacher);
    hth_free(s->peer);
    hth_free(s);
    return err;
}
