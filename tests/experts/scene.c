/* SPDX-License-Identifier: Apache-2.0 */
/* scene.c: see scene.h. */
#include "experts/scene.h"

#include "support/test.h"

void scene_start(struct scene *s, const struct hth_world_opts *wo, uint32_t hosts,
                 uint32_t per_host, const struct swarm_host *like)
{
    memset(s, 0, sizeof(*s));
    s->w = hth_world_new(11, wo);
    s->hosts = hosts;
    for (uint32_t i = 0; i < hosts; i++) {
        char name[16];
        snprintf(name, sizeof(name), "host%u", i);
        s->host[i] = like != NULL ? *like : host_init();
        s->host[i].layer_first = i * per_host;
        s->host[i].layer_count = per_host;
        host_start(&s->host[i], s->w, name);
        for (uint32_t e = 0; e < per_host; e++, s->experts++) {
            struct hth_expert_opts o = s->host[i].expert;
            struct hth_rpc_target to = host_target(&s->host[i]);
            o.uid = uid_of(s->experts);
            reference_start(&s->ref[s->experts], &o);
            s->target[s->experts] =
                (struct hth_expert_target){.coord = {s->experts}, .host = to.peer, .addr = to.addr};
        }
    }
    hth_world_run_for(s->w, HTH_US_PER_S);
    caller_start(&s->c, s->w, "caller", NULL);
}

void scene_end(struct scene *s)
{
    caller_stop(&s->c);
    hth_world_free(s->w);
    for (uint32_t i = 0; i < s->experts; i++)
        reference_stop(&s->ref[i]);
}

void on_batch(void *arg, struct hth_expert_batch *batch)
{
    struct outcome *o = arg;

    o->count++;
    o->batch = batch;
    if (o->env != NULL)
        o->at_us = hth_now_us(o->env);
}

bool has_outcome(void *arg)
{
    return ((struct outcome *)arg)->count > 0;
}

struct hth_tensor tensor_of(const float *rows, uint64_t count)
{
    struct hth_tensor t = {.dtype = HTH_F32, .ndim = 2, .dim = {count, D}};

    t.blob = hth_blob_try_new(count * D * sizeof(float));
    assert_non_null(t.blob);
    memcpy(t.blob->data, rows, count * D * sizeof(float));
    return t;
}

uint32_t deal_pairs(struct hth_expert_pair *pairs, uint32_t units, uint32_t k, uint32_t experts)
{
    uint32_t n = 0;

    for (uint32_t u = 0; u < units; u++)
        for (uint32_t j = 0; j < k; j++)
            pairs[n++] = (struct hth_expert_pair){u, (u * 7 + j * 5) % experts};
    return n;
}

struct hth_expert_call call_of(const struct scene *s, const struct hth_tensor *x,
                               const struct hth_expert_pair *pairs, uint32_t n)
{
    return (struct hth_expert_call){.layer = "ffn0",
                                    .ndim = 1,
                                    .x = *x,
                                    .targets = s->target,
                                    .targets_count = s->experts,
                                    .pairs = pairs,
                                    .pairs_count = n};
}

void run_call(struct scene *s, const struct hth_expert_call *call, struct outcome *o)
{
    struct hth_expert_batch *b;

    memset(o, 0, sizeof(*o));
    o->env = s->c.env;
    assert_ok(hth_experts_call(s->c.client, call, on_batch, o, &b));
    assert_int_equal(o->count, 0);
    assert_true(hth_world_run_until_true(s->w, has_outcome, o, 120 * HTH_US_PER_S));
    assert_int_equal(o->count, 1);
    assert_ptr_equal(o->batch, b);
}
