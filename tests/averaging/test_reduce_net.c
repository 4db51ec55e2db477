/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reduction on real environments: three members, each with a loop thread and compute threads
 * of its own, over TLS on loopback. What the simulator can't show: jobs that
 * run beside the loop.
 */
#include "averaging/reduce.h"
#include "core/mem.h"
#include "net/net.h"
#include "support/suite.h"

#include <pthread.h>

#define N      3
#define COUNT  300000u
#define ROUNDS 5

struct peer {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_reducer *reducer;
    struct hth_reduce_member *members;
    struct hth_blob *values, *average;
    struct hth_avg_span span;
    uint32_t self, rounds;
    enum hth_err err;
    pthread_t thread;
    struct crew *crew;
};

/* Nobody's loop stops before all have ended: their last answers may still wait to be sent. */
struct crew {
    struct peer peer[N];
    uint32_t left;
};

static float value_at(uint32_t member, uint32_t i)
{
    return (float)((i * 2654435761u >> 16) % 1000) / 500.0f - 1.0f + (float)member;
}

static void begin(struct peer *p);

static void ended(struct peer *p)
{
    if (p->crew == NULL || __atomic_sub_fetch(&p->crew->left, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    for (uint32_t i = 0; i < N; i++)
        hth_net_stop(p->crew->peer[i].env);
}

static void on_done(void *arg, const struct hth_reduce_result *result)
{
    struct peer *p = arg;
    if (result->err != HTH_OK || result->dropped > 0)
        p->err = result->err != HTH_OK ? result->err : HTH_E_BUG;
    hth_blob_unref(p->average);
    p->average = result->average != NULL ? hth_blob_ref(result->average) : NULL;
    if (++p->rounds < ROUNDS && p->err == HTH_OK)
        begin(p);
    else
        ended(p);
}

static void begin(struct peer *p)
{
    struct hth_reduce_opts opts = {
        .group = {{(uint8_t)p->rounds, (uint8_t)p->span.format}},
        .members = p->members,
        .member_count = N,
        .self = p->self,
        .values = p->values,
        .count = COUNT,
        .spans = &p->span,
        .span_count = 1,
        .timeout_us = 30 * HTH_US_PER_S,
        .done = on_done,
        .arg = p,
    };
    p->err = hth_reduce_start(p->reducer, &opts, NULL);
    if (p->err != HTH_OK)
        ended(p);
}

static void *peer_main(void *arg)
{
    struct peer *p = arg;
    begin(p);
    enum hth_err err = hth_net_run(p->env);
    if (p->err == HTH_OK)
        p->err = err;
    return NULL;
}

static void open_peer(struct peer *p, uint32_t self, enum hth_quant_format format,
                      struct hth_reduce_member *members)
{
    struct hth_net_opts net = HTH_NET_OPTS_INIT;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_reducer_opts reducer = HTH_REDUCER_OPTS_INIT;
    struct hth_addr any = {.family = 4, .ip = {127, 0, 0, 1}};
    p->self = self;
    p->members = members;
    p->span = (struct hth_avg_span){COUNT, format};
    net.compute_threads = 2;
    rpc.network = "test";
    rpc.listen = &any;
    /* A busy machine with sanitizers is not what is tested here. */
    reducer.silence_us = 20 * HTH_US_PER_S;
    reducer.patience_us = 20 * HTH_US_PER_S;
    assert_ok(hth_net_new(&net, &p->env));
    assert_ok(hth_rpc_new(p->env, &rpc, &p->rpc));
    assert_ok(hth_reducer_new(p->env, p->rpc, &reducer, &p->reducer));
    members[self] = (struct hth_reduce_member){.id = p->env->self, .bandwidth = 1e9, .weight = 1};
    hth_rpc_addr(p->rpc, &members[self].addr);
    p->values = hth_blob_try_new(COUNT * sizeof(float));
    assert_non_null(p->values);
    for (uint32_t i = 0; i < COUNT; i++)
        ((float *)(void *)p->values->data)[i] = value_at(p->self, i);
}

static void close_peer(struct peer *p)
{
    hth_net_jobs_end(p->env);
    hth_reducer_free(p->reducer);
    hth_rpc_free(p->rpc);
    hth_blob_unref(p->values);
    hth_blob_unref(p->average);
    hth_net_free(p->env);
}

TEST(rounds)
{
    static const struct {
        enum hth_quant_format format;
        double within;
    } cases[] = {{HTH_QUANT_F32, 2e-6}, {HTH_QUANT_INT8, 0.05}};
    for (size_t c = 0; c < HTH_ARRAY_LEN(cases); c++) {
        struct crew crew = {.left = N};
        struct peer *peer = crew.peer;
        struct hth_reduce_member members[N];
        for (uint32_t i = 0; i < N; i++) {
            peer[i].crew = &crew;
            open_peer(&peer[i], i, cases[c].format, members);
        }
        for (uint32_t i = 0; i < N; i++)
            assert_int_equal(pthread_create(&peer[i].thread, NULL, peer_main, &peer[i]), 0);
        for (uint32_t i = 0; i < N; i++)
            pthread_join(peer[i].thread, NULL);
        for (uint32_t i = 0; i < N; i++) {
            const float *y = (const float *)(const void *)peer[i].average->data;
            assert_ok(peer[i].err);
            assert_int_equal(peer[i].rounds, ROUNDS);
            for (uint32_t k = 0; k < COUNT; k++)
                assert_close(y[k], ((double)value_at(0, k) + value_at(1, k) + value_at(2, k)) / N,
                             0, cases[c].within);
            assert_true(c > 0 || memcmp(y, peer[0].average->data, 4 * COUNT) == 0);
        }
        for (uint32_t i = 0; i < N; i++)
            close_peer(&peer[i]);
    }
}

/* A member ends in the middle of a round: its jobs and the others' calls are let go of. */
TEST(leave)
{
    struct peer peer[2];
    struct hth_reduce_member members[N];
    memset(peer, 0, sizeof(peer));
    for (uint32_t i = 0; i < 2; i++)
        open_peer(&peer[i], i, HTH_QUANT_INT8, members);
    members[2] = members[1];
    members[2].id.b[0] ^= 1;
    begin(&peer[0]);
    assert_ok(peer[0].err);
    close_peer(&peer[0]);
    assert_int_equal(peer[0].rounds, 0);
    close_peer(&peer[1]);
}
