/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/reduce_swarm.h"

#include "averaging/part.h"
#include "core/mem.h"
#include "core/rng.h"

#define PORT 4000

/* ---- nodes --------------------------------------------------------------------------------- */

static void peer_lost(void *arg, const struct hth_peer_id *id, enum hth_err err)
{
    struct reduce_peer *p = arg;
    if (p->reducer != NULL)
        hth_reducer_peer_lost(p->reducer, id);
}

static void halt(struct hth_env *env, void *arg)
{
    struct reduce_peer *p = arg;
    hth_reducer_free(p->reducer);
    hth_rpc_free(p->rpc);
    p->reducer = NULL;
    p->rpc = NULL;
    p->round = NULL;
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct reduce_peer *p = arg;
    struct hth_addr listen = hth_node_addr(p->node, PORT);
    struct hth_rpc_opts opts = p->swarm->rpc_opts;
    p->env = env;
    opts.network = "test";
    opts.listen = &listen;
    opts.on_peer_lost = peer_lost;
    opts.arg = p;
    assert_ok(hth_rpc_new(env, &opts, &p->rpc));
    assert_ok(hth_reducer_new(env, p->rpc, &p->swarm->reducer_opts, &p->reducer));
}

void swarm_defaults(struct reduce_swarm *s)
{
    static const struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    static const struct hth_reducer_opts reducer = HTH_REDUCER_OPTS_INIT;
    static const struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    static const struct hth_chaos none = HTH_CHAOS_NONE;
    memset(s, 0, sizeof(*s));
    s->world_opts = world;
    s->world_opts.chaos = none;
    s->world_opts.link.latency_us = 1000;
    s->reducer_opts = reducer;
    s->rpc_opts = rpc;
    s->format = HTH_QUANT_F32;
    s->timeout_us = 20 * HTH_US_PER_S;
}

void swarm_new(struct reduce_swarm *s, uint64_t seed, uint32_t n, uint64_t count)
{
    char name[24];
    assert_true(n <= PEERS_MAX);
    s->n = n;
    s->count = count;
    s->world = hth_world_new(seed, &s->world_opts);
    for (uint32_t i = 0; i < n; i++) {
        struct reduce_peer *p = &s->peer[i];
        struct hth_node_opts opts = HTH_NODE_OPTS_INIT;
        p->swarm = s;
        p->index = i;
        opts.boot = boot;
        opts.halt = halt;
        opts.arg = p;
        snprintf(name, sizeof(name), "p%u", i);
        p->node = hth_world_node(s->world, name, &opts);
        p->env = hth_node_env(p->node);
        s->member[i] = (struct hth_reduce_member){
            .id = p->env->self,
            .addr = hth_node_addr(p->node, PORT),
            .bandwidth = 1e9,
            .weight = i + 1,
        };
        assert_ok(hth_env_blob_new(p->env, count * sizeof(float), NULL, &p->values));
        if (p->values->data != NULL)
            swarm_fill(p, seed);
    }
    hth_world_run_for(s->world, 10 * HTH_US_PER_MS);
}

void swarm_fill(struct reduce_peer *p, uint64_t seed)
{
    const uint32_t key[2] = {(uint32_t)seed, p->index};
    float *x = values_of(p);
    for (uint64_t i = 0; i < p->swarm->count; i += 4) {
        const uint32_t counter[4] = {(uint32_t)(i / 4), 0, 0, 7};
        float normal[4];
        hth_philox_normal(counter, key, normal);
        for (uint64_t k = 0; k < 4 && i + k < p->swarm->count; k++)
            x[i + k] = normal[k] + (float)p->index;
    }
}

void swarm_roles(struct reduce_swarm *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->member[i].weight == 0 && s->member[i].bandwidth > 0) {
            hth_blob_unref(s->peer[i].values);
            s->peer[i].values = NULL;
        }
        if (s->member[i].bandwidth == 0)
            s->member[i].addr.family = 0;
    }
}

void swarm_free(struct reduce_swarm *s)
{
    struct hth_open_counts leaks;
    hth_world_leaks(s->world, &leaks);
    assert_int_equal(hth_open_total(&leaks), 0);
    for (uint32_t i = 0; i < s->n; i++) {
        halt(s->peer[i].env, &s->peer[i]);
        hth_blob_unref(s->peer[i].values);
        hth_blob_unref(s->peer[i].average);
    }
    hth_world_free(s->world);
}

/* ---- lies ---------------------------------------------------------------------------------- */

static void answer_lie(void *arg, struct hth_rpc_request *req)
{
    struct reduce_peer *p = arg;
    const struct reduce_lie *lie = &p->lie;
    uint32_t width = lie->format == HTH_QUANT_BF16 ? 2 : 4;
    struct hth_part_reply reply = {.floats = 0};
    struct hth_segment whole = {.format = width == 2 ? HTH_QUANT_BF16 : HTH_QUANT_F32};
    uint8_t bytes[HTH_PART_BYTES_MAX];
    struct hth_tensor out = {.dtype = HTH_U8, .ndim = 1};
    struct hth_rpc_body body = {.payload = bytes, .tensors = &out, .tensor_count = 1};
    struct hth_part_head head;
    size_t len, count;
    const struct hth_tensor *t = hth_rpc_tensors(req, &count);
    const uint8_t *payload = hth_rpc_payload(req, &len);

    assert_ok(hth_part_open(payload, len, count > 0 ? t->dim[0] : 0, &head));
    whole.count = head.floats;
    if (lie->refuses || whole.count == 0) {
        hth_rpc_refuse(req, HTH_E_RANGE, 0, "no");
        return;
    }
    whole.count -= lie->brief;
    out.dim[0] = (uint64_t)whole.count * width;
    assert_ok(hth_env_blob_new(p->env, out.dim[0], NULL, &out.blob));
    for (uint32_t i = 0; i < whole.count; i++) /* the upper half of a float is a bf16 */
        memcpy(out.blob->data + (size_t)i * width, (const char *)&lie->value + 4 - width, width);
    reply.missing[0] = lie->missing;
    reply.segments[0] = whole;
    reply.segment_count = 1;
    body.payload_len = hth_part_reply_pack(&reply, bytes);
    if (lie->garbage)
        memset(bytes, 0xee, body.payload_len);
    hth_rpc_reply(req, &body);
    hth_blob_unref(out.blob);
}

void peer_lies(struct reduce_peer *p, const struct reduce_lie *lie)
{
    p->lie = *lie;
    hth_rpc_serve(p->rpc, HTH_REDUCE_METHOD, answer_lie, p);
}

/* ---- rounds -------------------------------------------------------------------------------- */

static void on_done(void *arg, const struct hth_reduce_result *result)
{
    struct reduce_peer *p = arg;
    p->results++;
    p->result = *result;
    memcpy(p->fates, result->fates, result->members * sizeof(p->fates[0]));
    p->result.fates = p->fates;
    p->average = result->average != NULL ? hth_blob_ref(result->average) : NULL;
    p->round = NULL;
}

void peer_start(struct reduce_peer *p)
{
    struct reduce_swarm *s = p->swarm;
    struct hth_reduce_member members[PEERS_MAX];
    uint32_t n = 0, self = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        if (i == p->index)
            self = n;
        if ((s->absent >> i & 1) == 0)
            members[n++] = s->member[i];
    }
    const struct hth_avg_span whole = {s->count, s->format};
    bool cut = s->spans != NULL;
    struct hth_reduce_opts opts = {
        .group = {{s->group, 1, 2, 3}},
        .members = members,
        .member_count = n,
        .self = self,
        .values = p->values,
        .count = s->count,
        .spans = cut                          ? s->spans
                 : s->format != HTH_QUANT_F32 ? &whole
                                              : NULL,
        .span_count = cut ? s->span_count : 1,
        .same = s->same,
        .fixed = s->fixed,
        .share_max = s->share_max,
        .timeout_us = s->timeout_us,
        .done = on_done,
        .arg = p,
    };
    assert_ok(hth_reduce_start(p->reducer, &opts, &p->round));
    assert_int_equal(p->results, 0);
}

void swarm_start(struct reduce_swarm *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (hth_node_is_up(s->peer[i].node) && (s->absent >> i & 1) == 0)
            peer_start(&s->peer[i]);
    }
}

bool swarm_is_done(void *arg)
{
    const struct reduce_swarm *s = arg;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->peer[i].round != NULL && hth_node_is_up(s->peer[i].node))
            return false;
    }
    return true;
}

void swarm_run(struct reduce_swarm *s)
{
    assert_true(hth_world_run_until_true(s->world, swarm_is_done, s, 2 * s->timeout_us));
}

void swarm_round(struct reduce_swarm *s)
{
    swarm_start(s);
    swarm_run(s);
}

void swarm_for(struct reduce_swarm *s, int64_t us)
{
    assert_false(hth_world_run_until_true(s->world, swarm_is_done, s, us));
}

void swarm_next(struct reduce_swarm *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct reduce_peer *p = &s->peer[i];
        hth_blob_unref(p->average);
        p->average = NULL;
        p->results = 0;
    }
    s->group++;
}

void check_calm(const struct reduce_peer *p)
{
    const struct hth_reduce_result *r = &p->result;
    assert_int_equal(p->results, 1);
    assert_ok(r->err);
    assert_close(r->weight_fraction, 1, 1e-9, 0);
    assert_int_equal(r->dropped, 0);
    assert_int_equal(r->parts_kept, 0);
}

void check_lost(const struct reduce_peer *p, uint32_t victim)
{
    assert_int_equal(p->results, 1);
    assert_ok(p->result.err);
    for (uint32_t i = 0; i < p->result.members; i++)
        assert_true(i == victim || p->fates[i].as_sender + p->fates[i].as_reducer == 0);
}

void check_same(const struct reduce_swarm *s)
{
    for (uint32_t i = 1; i < s->n; i++)
        assert_memory_equal(average_of(&s->peer[i]), average_of(&s->peer[0]),
                            s->count * sizeof(float));
}

/* ---- numbers ------------------------------------------------------------------------------- */

float *values_of(const struct reduce_peer *p)
{
    return (float *)(void *)p->values->data;
}

const float *average_of(const struct reduce_peer *p)
{
    assert_non_null(p->average);
    return (const float *)(const void *)p->average->data;
}

double mean_of(const struct reduce_swarm *s, uint32_t who, uint64_t i)
{
    double sum = 0, weight = 0;
    for (uint32_t k = 0; k < s->n; k++) {
        if ((who >> k & 1) == 0 || s->peer[k].values == NULL)
            continue;
        sum += s->member[k].weight * (double)values_of(&s->peer[k])[i];
        weight += s->member[k].weight;
    }
    return sum / weight;
}

double deviation(const struct reduce_peer *p, uint32_t who, uint64_t first, uint64_t end)
{
    double most = 0;
    for (uint64_t i = first; i < end; i++) {
        double d = fabs((double)average_of(p)[i] - mean_of(p->swarm, who, i));
        most = isfinite(d) ? fmax(most, d) : INFINITY;
    }
    return most;
}

double relative(const struct reduce_peer *p, uint32_t who)
{
    double lost = 0, was = 0;
    for (uint64_t i = 0; i < p->swarm->count; i++) {
        double mean = mean_of(p->swarm, who, i);
        double d = (double)average_of(p)[i] - mean, o = (double)values_of(p)[i] - mean;
        lost += d * d;
        was += o * o;
    }
    return sqrt(lost / was);
}
