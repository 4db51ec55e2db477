/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/links.h"

#include "averaging/reduce.h"
#include "averaging/shares.h"
#include "core/mem.h"
#include "sim/world.h"

#include <math.h>
#include <stdio.h>

#define PORT 4000

struct links_run;

struct links_peer {
    struct links_run *links;
    struct hth_node *node;
    struct hth_rpc *rpc;
    struct hth_reducer *reducer;
    struct hth_blob *values;
    bool done;
};

struct links_run {
    const struct hth_links_opts *opts;
    struct hth_world *world;
    struct links_peer *members;
    struct hth_reduce_member *list;
    int64_t timeout_us;
    uint64_t count;   /* floats */
    int64_t end_us;   /* time at which the last member had the mean */
    double fraction;  /* the least of all members so far */
    enum hth_err err; /* the first error */
};

const char *hth_links_way_name(enum hth_links_way way)
{
    static const char *const names[] = {"allreduce", "server", "adaptive"};
    return (unsigned)way < HTH_LINKS_WAYS ? names[way] : "unknown";
}

/* ---- nodes --------------------------------------------------------------------------------- */

static void peer_lost(void *arg, const struct hth_peer_id *id, enum hth_err err)
{
    struct links_peer *m = arg;
    (void)err;
    if (m->reducer != NULL)
        hth_reducer_peer_lost(m->reducer, id);
}

static void halt(struct hth_env *env, void *arg)
{
    struct links_peer *m = arg;
    (void)env;
    hth_reducer_free(m->reducer);
    hth_rpc_free(m->rpc);
    m->reducer = NULL;
    m->rpc = NULL;
}

static enum hth_err build(struct hth_env *env, struct links_peer *m)
{
    struct hth_addr listen = hth_node_addr(m->node, PORT);
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    opts.network = "links";
    opts.listen = &listen;
    opts.on_peer_lost = peer_lost;
    opts.arg = m;
    HTH_TRY(hth_rpc_new(env, &opts, &m->rpc));
    return hth_reducer_new(env, m->rpc, NULL, &m->reducer);
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct links_peer *m = arg;
    enum hth_err err = build(env, m);
    (void)dht;
    if (err != HTH_OK)
        m->links->err = err;
}

static double told_bandwidth(const struct hth_links_opts *o, enum hth_links_way way, uint32_t index)
{
    uint32_t fastest = 0;
    for (uint32_t i = 1; i < o->peers; i++)
        if (o->bandwidth[i] > o->bandwidth[fastest])
            fastest = i;
    switch (way) {
    case HTH_LINKS_SERVER:
        return index == fastest ? o->bandwidth[index] : 0;
    case HTH_LINKS_ADAPTIVE:
        return o->bandwidth[index];
    default:
        return 1e9;
    }
}

static enum hth_err add_member(struct links_run *l, enum hth_links_way way, uint32_t index)
{
    struct links_peer *m = &l->members[index];
    struct hth_device device = HTH_DEVICE_INIT;
    struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    char name[24];
    device.up_bytes_per_s = device.down_bytes_per_s = l->opts->bandwidth[index] / 8;
    device.flops_per_s = 1e15;
    device.bytes_per_s = 1e15;
    device.job_overhead_us = 1;
    node.boot = boot;
    node.halt = halt;
    node.arg = m;
    node.device = &device;
    snprintf(name, sizeof(name), "m%u", index);
    m->links = l;
    m->node = hth_world_node(l->world, name, &node);
    struct hth_env *env = hth_node_env(m->node);
    l->list[index] = (struct hth_reduce_member){
        .id = env->self,
        .addr = hth_node_addr(m->node, PORT),
        .bandwidth = told_bandwidth(l->opts, way, index),
        .weight = 1,
    };
    return hth_env_blob_new(env, l->count * sizeof(float), NULL, &m->values);
}

/* ---- the round ----------------------------------------------------------------------------- */

static void on_done(void *arg, const struct hth_reduce_result *result)
{
    struct links_peer *m = arg;
    struct links_run *l = m->links;
    m->done = true;
    l->fraction = HTH_MIN(l->fraction, result->weight_fraction);
    l->end_us = hth_world_now_us(l->world);
    if (l->err == HTH_OK)
        l->err = result->err;
}

static enum hth_err begin(struct links_run *l)
{
    for (uint32_t i = 0; i < l->opts->peers; i++) {
        struct hth_reduce_opts opts = {
            .group = {{1}},
            .members = l->list,
            .member_count = l->opts->peers,
            .self = i,
            .values = l->members[i].values,
            .count = l->count,
            .timeout_us = l->timeout_us,
            .done = on_done,
            .arg = &l->members[i],
        };
        HTH_TRY(hth_reduce_start(l->members[i].reducer, &opts, NULL));
    }
    return HTH_OK;
}

static bool all_done(void *arg)
{
    const struct links_run *l = arg;
    for (uint32_t i = 0; i < l->opts->peers; i++)
        if (!l->members[i].done)
            return false;
    return true;
}

static enum hth_err play(struct links_run *l, enum hth_links_way way, double *seconds)
{
    for (uint32_t i = 0; i < l->opts->peers; i++)
        HTH_TRY(add_member(l, way, i));
    hth_world_run_for(l->world, 10 * HTH_US_PER_MS);
    HTH_TRY(l->err);
    int64_t begin_us = hth_world_now_us(l->world);
    HTH_TRY(begin(l));
    if (!hth_world_run_until_true(l->world, all_done, l, 2 * l->timeout_us))
        return HTH_E_TIMEOUT;
    *seconds = (double)(l->end_us - begin_us) / HTH_US_PER_S;
    return l->err;
}

/* Run one average of `count` floats in a world of its own. */
static enum hth_err run(const struct hth_links_opts *opts, enum hth_links_way way, uint64_t count,
                        struct hth_links_row *row, double *seconds)
{
    static const struct hth_chaos calm = HTH_CHAOS_NONE;
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct hth_world_stats stats;
    struct links_run l = {.opts = opts, .count = count, .fraction = 1};
    l.timeout_us = (int64_t)(20 * row->predicted_s * HTH_US_PER_S) + 60 * HTH_US_PER_S;
    world.ghost = true;
    world.chaos = calm;
    world.link.latency_us = opts->latency_us;
    l.world = hth_world_new(opts->seed, &world);
    l.members = hth_new_array(struct links_peer, opts->peers);
    l.list = hth_new_array(struct hth_reduce_member, opts->peers);
    enum hth_err err = play(&l, way, seconds);
    hth_world_stats(l.world, &stats);
    row->bytes = stats.bytes_delivered;
    row->trace = hth_world_trace_hash(l.world);
    row->fraction = HTH_MIN(row->fraction, l.fraction);
    hth_world_free(l.world);
    for (uint32_t i = 0; i < opts->peers; i++)
        hth_blob_unref(l.members[i].values);
    hth_free(l.members);
    hth_free(l.list);
    return err;
}

enum hth_err hth_links_times(const double *bandwidth, uint32_t n, double bits,
                             double seconds[HTH_LINKS_WAYS])
{
    double w[HTH_AVG_MEMBERS_MAX], xi = 0, fastest = 0, slowest = INFINITY;
    if (!(bits > 0 && isfinite(bits)))
        return HTH_E_RANGE;
    HTH_TRY(hth_avg_shares(bandwidth, n, w));
    for (uint32_t i = 0; i < n; i++) {
        if (bandwidth[i] == 0)
            continue;
        fastest = HTH_MAX(fastest, bandwidth[i]);
        slowest = HTH_MIN(slowest, bandwidth[i]);
        xi = HTH_MAX(xi, (1 + ((double)n - 2) * w[i]) / bandwidth[i]);
    }
    seconds[HTH_LINKS_ALLREDUCE] = 2.0 * (n - 1) / n * bits / (fastest > 0 ? slowest : 0);
    seconds[HTH_LINKS_SERVER] = (double)(n - 1) * bits / fastest;
    seconds[HTH_LINKS_ADAPTIVE] = xi > 0 ? bits * xi : INFINITY;
    for (int way = 0; n == 1 && way < HTH_LINKS_WAYS; way++)
        seconds[way] = 0;
    return HTH_OK;
}

static enum hth_err predict(const struct hth_links_opts *o, enum hth_links_way way, double *seconds)
{
    double times[HTH_LINKS_WAYS];
    if (o->peers < 2 || o->peers > HTH_AVG_MEMBERS_MAX || o->count == 0 || o->latency_us < 0 ||
        o->count > HTH_PARAMS_FLOATS_MAX / 2 || (unsigned)way >= HTH_LINKS_WAYS)
        return HTH_E_CONFIG;
    for (uint32_t i = 0; i < o->peers; i++)
        if (!(o->bandwidth[i] > 0) || hth_avg_bandwidth_bad(&o->bandwidth[i], 1) == 0)
            return HTH_E_CONFIG;
    HTH_TRY(hth_links_times(o->bandwidth, o->peers, (double)o->count * 32, times));
    *seconds = times[way];
    return HTH_OK;
}

enum hth_err hth_sim_links(const struct hth_links_opts *opts, enum hth_links_way way,
                           struct hth_links_row *row)
{
    double twice_s;
    struct hth_links_row unused;
    *row = (struct hth_links_row){.fraction = 1};
    HTH_TRY(predict(opts, way, &row->predicted_s));
    unused = *row;
    HTH_TRY(run(opts, way, opts->count, row, &row->simulated_s));
    HTH_TRY(run(opts, way, 2 * opts->count, &unused, &twice_s));
    row->fraction = HTH_MIN(row->fraction, unused.fraction);
    row->steady_s = row->fraction < 1 ? NAN : twice_s - row->simulated_s;
    return HTH_OK;
}
