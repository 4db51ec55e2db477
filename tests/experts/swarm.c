/* SPDX-License-Identifier: Apache-2.0 */
/* swarm.c: see swarm.h. */
#include "experts/swarm.h"

#include "support/test.h"

#include "core/mem.h"
#include "experts/message.h"
#include "experts/rows.h"

struct hth_uid uid_of(uint32_t coord)
{
    return (struct hth_uid){.name = "ffn0", .ncoord = 1, .coord = {coord}};
}

struct swarm_host host_init(void)
{
    struct swarm_host h = {.opts = HTH_SERVER_OPTS_INIT, .expert = HTH_EXPERT_OPTS_INIT};

    h.expert.shape.d = 16;
    h.expert.shape.inner = 32;
    h.expert.backend = hth_backend_ref();
    h.expert.run_seed = 5;
    h.layer_count = 1;
    return h;
}

static void on_expert(void *arg, const struct hth_uid *uid, enum hth_err err, bool restored)
{
    struct swarm_host *h = arg;

    (void)uid;
    h->loaded += err == HTH_OK ? 1 : 0;
    h->restored += restored ? 1 : 0;
    if (err != HTH_OK) {
        h->failed++;
        h->failed_err = err;
    }
}

static void host_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct swarm_host *h = arg;
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    struct hth_addr addr = hth_node_addr(h->node, PORT);

    (void)dht;
    h->env = env;
    opts.network = "test";
    opts.listen = &addr;
    opts.budget = h->budget;
    opts.admission = h->admission;
    assert_ok(hth_rpc_new(env, &opts, &h->rpc));
    h->opts.on_expert = on_expert;
    h->opts.arg = h;
    assert_ok(hth_server_new(env, h->rpc, &h->opts, &h->server));
    for (uint32_t i = 0; i < h->layer_count; i++) {
        struct hth_expert_opts expert = h->expert;
        expert.uid = uid_of(h->layer_first + i);
        assert_ok(hth_server_add(h->server, &expert));
    }
}

static void host_halt(struct hth_env *env, void *arg)
{
    struct swarm_host *h = arg;

    (void)env;
    hth_server_free(h->server);
    hth_rpc_free(h->rpc);
    h->server = NULL;
    h->rpc = NULL;
}

void host_start(struct swarm_host *h, struct hth_world *w, const char *name)
{
    struct hth_node_opts opts = HTH_NODE_OPTS_INIT;

    opts.boot = host_boot;
    opts.halt = host_halt;
    opts.arg = h;
    opts.boot_delay_us = 1;
    h->node = hth_world_node(w, name, &opts);
    hth_world_run_for(w, 50 * HTH_US_PER_MS);
}

void host_stop(struct swarm_host *h)
{
    host_halt(h->env, h);
}

struct hth_rpc_target host_target(const struct swarm_host *h)
{
    return (struct hth_rpc_target){.peer = hth_node_env(h->node)->self,
                                   .addr = hth_node_addr(h->node, PORT)};
}

struct hth_server_stats host_stats(const struct swarm_host *h)
{
    struct hth_server_stats s;

    hth_server_stats(h->server, &s);
    return s;
}

const struct hth_expert *host_expert(const struct swarm_host *h, uint32_t i)
{
    struct hth_server_expert e;

    assert_true(hth_server_expert_at(h->server, i, &e));
    return e.expert;
}

static void on_host(void *arg, const struct hth_peer_id *host, enum hth_err err, int64_t rtt_us)
{
    struct swarm_caller *c = arg;

    (void)host;
    (void)rtt_us;
    c->host_ok += err == HTH_OK ? 1 : 0;
    c->host_failed += err != HTH_OK ? 1 : 0;
}

void caller_start(struct swarm_caller *c, struct hth_world *w, const char *name,
                  const struct hth_expert_client_opts *opts)
{
    caller_start_as(c, w, name, opts, NULL);
}

void caller_start_as(struct swarm_caller *c, struct hth_world *w, const char *name,
                     const struct hth_expert_client_opts *opts,
                     const struct hth_admission *admission)
{
    struct hth_expert_client_opts client = HTH_EXPERT_CLIENT_OPTS_INIT;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;

    memset(c, 0, sizeof(*c));
    if (opts != NULL)
        client = *opts;
    client.on_host = on_host;
    client.arg = c;
    c->node = hth_world_node(w, name, NULL);
    c->env = hth_node_env(c->node);
    rpc.network = "test";
    rpc.admission = admission;
    rpc.timeout_min_us = 2 * HTH_US_PER_S;
    assert_ok(hth_rpc_new(c->env, &rpc, &c->rpc));
    assert_ok(hth_expert_client_new(c->env, c->rpc, &client, &c->client));
}

void caller_stop(struct swarm_caller *c)
{
    hth_expert_client_free(c->client);
    hth_rpc_free(c->rpc);
    c->client = NULL;
    c->rpc = NULL;
}

void on_answer(void *arg, const struct hth_rpc_result *r)
{
    struct answer *a = arg;

    a->count++;
    a->err = r->err;
    a->remote = r->remote;
    a->retry_after_us = r->retry_after_us;
    a->tensors = (uint32_t)r->tensor_count;
    if (r->err == HTH_OK)
        assert_ok(
            hth_expert_msg_reply_open(r->payload, r->payload_len, a->parts, a->status, &a->kept));
    if (r->tensor_count > 0) {
        a->tensor = r->tensors[0];
        a->blob = hth_blob_ref(r->tensors[0].blob);
        a->rows = (const float *)(const void *)(a->blob->data + r->tensors[0].offset);
    }
}

void answer_clear(struct answer *a)
{
    hth_blob_unref(a->blob);
    memset(a, 0, sizeof(*a));
}

bool answered(void *answer)
{
    return ((struct answer *)answer)->count > 0;
}

static struct hth_tensor rows_tensor(const float *rows, uint32_t count, uint32_t d,
                                     enum hth_dtype dtype)
{
    struct hth_tensor t = hth_rows_tensor(dtype, count, d);

    t.blob = hth_blob_try_new(count * hth_rows_bytes(dtype, d));
    assert_non_null(t.blob);
    hth_rows_from_f32(rows, dtype, count, d, t.blob->data);
    return t;
}

struct hth_rpc_call *ask(struct swarm_caller *c, const struct swarm_host *h, const struct ask *a,
                         struct answer *out)
{
    struct hth_expert_msg work = {.layer = "ffn0",
                                  .ndim = 1,
                                  .parts = a->parts,
                                  .coord = a->coord,
                                  .rows = a->rows,
                                  .forward.lo = a->forward};
    struct hth_rpc_target to = host_target(h);
    struct hth_rpc_call_opts opts = {
        .method = a->dy != NULL ? HTH_METHOD_EXPERT_BACKWARD : HTH_METHOD_EXPERT_FORWARD,
        .timeout_us = a->timeout_us > 0 ? a->timeout_us : 10 * HTH_US_PER_S,
        .idem = {.lo = a->key}};
    const float *const rows_of[2] = {a->x, a->dy};
    enum hth_dtype dtype = a->dtype != 0 ? a->dtype : HTH_F32;
    struct hth_tensor t[2];
    struct hth_rpc_call *call;
    uint8_t *payload;
    uint32_t rows = 0;

    for (uint32_t i = 0; i < a->parts; i++)
        rows += a->rows[i];
    if (a->dy != NULL)
        work.rows_in_microbatch = a->microbatch > 0 ? a->microbatch : rows;
    assert_ok(hth_expert_msg_pack(&work, &payload, &opts.body.payload_len));
    for (int i = 0; i < 2; i++)
        if (rows_of[i] != NULL)
            t[opts.body.tensor_count++] = rows_tensor(rows_of[i], rows, a->d, dtype);
    opts.body.payload = payload;
    opts.body.tensors = t;
    memset(out, 0, sizeof(*out));
    out->parts = a->parts;
    assert_ok(hth_rpc_call(c->rpc, &to, &opts, on_answer, out, &call));
    hth_free(payload);
    for (size_t i = 0; i < opts.body.tensor_count; i++)
        hth_blob_unref(t[i].blob);
    return call;
}

void ask_wait(struct hth_world *w, struct swarm_caller *c, const struct swarm_host *h,
              const struct ask *a, struct answer *out)
{
    ask(c, h, a, out);
    if (!hth_world_run_until_true(w, answered, out, 60 * HTH_US_PER_S))
        fail_msg("no answer within a virtual minute");
}

float *normals(uint64_t seed, size_t count)
{
    float *out = hth_try_aligned((count + 1) * sizeof(float));
    struct hth_rng rng;

    assert_non_null(out);
    hth_rng_init(&rng, seed);
    for (size_t i = 0; i < count; i++)
        out[i] = (float)hth_rng_normal(&rng);
    return out;
}

void reference_start(struct reference *r, const struct hth_expert_opts *opts)
{
    assert_ok(hth_expert_new(opts, &r->expert));
    assert_ok(hth_expert_init(r->expert));
    assert_ok(hth_exec_new(opts->backend, 0, &r->ex));
}

void reference_forward(struct reference *r, uint32_t rows, const float *x, float *y)
{
    uint32_t d = hth_expert_shape_of(r->expert)->d;

    assert_ok(hth_exec_reserve(r->ex, hth_expert_scratch_bytes(r->expert, rows, false)));
    assert_ok(hth_expert_forward(r->expert, r->ex, hth_view_f32((float *)(uintptr_t)x, rows, d, d),
                                 hth_view_f32(y, rows, d, d)));
}

void reference_backward(struct reference *r, uint32_t rows, uint32_t microbatch, const float *x,
                        const float *dy, float *dx)
{
    uint32_t d = hth_expert_shape_of(r->expert)->d;

    assert_ok(hth_exec_reserve(r->ex, hth_expert_scratch_bytes(r->expert, rows, true)));
    assert_ok(hth_expert_backward(
        r->expert, r->ex, microbatch, hth_view_f32((float *)(uintptr_t)x, rows, d, d),
        hth_view_f32((float *)(uintptr_t)dy, rows, d, d), hth_view_f32(dx, rows, d, d)));
}

void reference_stop(struct reference *r)
{
    hth_exec_free(r->ex);
    hth_expert_free(r->expert);
}

bool experts_equal(const struct hth_expert *a, const struct hth_expert *b)
{
    struct hth_blob *ba, *bb;
    bool equal;

    assert_ok(hth_expert_snapshot(a, &ba));
    assert_ok(hth_expert_snapshot(b, &bb));
    equal = ba->size == bb->size && memcmp(ba->data, bb->data, ba->size) == 0;
    hth_blob_unref(ba);
    hth_blob_unref(bb);
    return equal;
}
