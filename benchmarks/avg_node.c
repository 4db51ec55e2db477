/* SPDX-License-Identifier: Apache-2.0 */
#include "benchmarks/avg_node.h"

#include "core/mem.h"
#include "core/rng.h"
#include "dht/opendht.h"
#include "net/net.h"

#include <string.h>

#define LOOK_US   (2 * HTH_US_PER_MS)
#define POSTED_US (20 * HTH_US_PER_MS) /* shortest time between two records: rounds are short */

void hth_avg_node_values(uint64_t seed, uint32_t rank, float *out, size_t count)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    float x[4];

    for (size_t i = 0; i < count; i += 4) {
        const uint32_t counter[4] = {(uint32_t)i, rank, (uint32_t)(i >> 32), 0};
        hth_philox_normal(counter, key, x);
        memcpy(out + i, x, HTH_MIN((size_t)4, count - i) * sizeof(*out));
    }
}

/* ---- callbacks ------------------------------------------------------------------------------ */

static void take(struct hth_avg_node *n, struct hth_blob *values)
{
    hth_blob_unref(n->offers);
    n->offers = values;
    n->values = (const float *)(const void *)values->data;
}

static enum hth_err offer(struct hth_avg_node *n)
{
    struct hth_avg_offer o = {.values = n->offers,
                              .count = n->opts.count,
                              .weight = 1,
                              .schema = HTH_AVG_NODE_SCHEMA,
                              .spans = &n->span,
                              .span_count = 1};

    if (n->opts.mode == HTH_AVG_HELPER) {
        o.weight = 0;
        o.values = NULL;
    }
    return hth_averager_offer(&n->avg.averager, &o);
}

static void on_round(void *arg, const struct hth_avg_result *r)
{
    struct hth_avg_node *n = arg;

    if (r->average != NULL)
        take(n, hth_blob_ref(r->average));
    n->failed += r->err != HTH_OK;
    if (--n->rounds > 0 && offer(n) == HTH_OK)
        return;
    if (n->opts.on_sweep != NULL)
        n->opts.on_sweep(n->opts.arg, r);
}

static void on_timer(void *arg)
{
    struct hth_avg_node *n = arg;
    struct hth_roster_stats seen;

    hth_roster_stats(n->avg.roster, &seen);
    if (seen.seen + 1 < n->opts.population) {
        hth_timer_set(n->env, n->timer, LOOK_US);
        return;
    }
    n->ready = true;
    if (n->opts.on_ready != NULL)
        n->opts.on_ready(n->opts.arg);
}

/* ---- life ----------------------------------------------------------------------------------- */

static enum hth_err open_net(struct hth_avg_node *n)
{
    struct hth_net_opts net = HTH_NET_OPTS_INIT;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_opendht_opts dht = HTH_OPENDHT_OPTS_INIT;

    net.compute_threads = n->opts.threads;
    HTH_TRY(hth_net_new(&net, &n->env));
    memset(n->env->log.level, HTH_ERROR, sizeof(n->env->log.level));
    if (n->opts.log != NULL)
        memcpy(n->env->log.level, n->opts.log->level, sizeof(n->env->log.level));
    hth_peer_id_short(&n->env->self, n->env->log.node);
    rpc.network = n->opts.network;
    rpc.listen = &n->opts.addr;
    rpc.on_peer_lost = hth_avg_peer_lost;
    rpc.arg = &n->avg;
    HTH_TRY(hth_rpc_new(n->env, &rpc, &n->rpc));
    hth_rpc_addr(n->rpc, &n->opts.addr);
    dht.bind = n->opts.addr;
    dht.bootstrap = n->opts.join;
    dht.bootstrap_count = n->opts.join_count;
    HTH_TRY(hth_opendht_new(n->env, &dht, &n->opendht));
    n->dht = hth_opendht_dht(n->opendht);
    return HTH_OK;
}

static enum hth_err open_averager(struct hth_avg_node *n)
{
    const struct hth_avg_node_opts *opts = &n->opts;
    struct hth_avg_peer_opts o = HTH_AVG_PEER_OPTS_INIT;

    o.network = opts->network;
    o.addr = opts->addr;
    o.mode = opts->mode;
    o.bandwidth = opts->bandwidth;
    o.roster.schema = HTH_AVG_NODE_SCHEMA;
    o.roster.flags = opts->flags;
    o.roster.shape = opts->shape;
    o.roster.has_cell = true;
    o.roster.cell = hth_avg_cell_of_rank(&opts->shape, opts->rank);
    o.roster.publish_min_us = POSTED_US;
    o.moshpit.window_us = opts->window_us;
    if (opts->silence_us > 0)
        o.reducer.silence_us = o.reducer.patience_us = opts->silence_us;
    return hth_avg_peer_open(n->env, n->rpc, n->dht, &o, &n->avg);
}

enum hth_err hth_avg_node_open(const struct hth_avg_node_opts *opts, struct hth_avg_node *n)
{
    memset(n, 0, sizeof(*n));
    n->opts = *opts;
    struct hth_blob *values = hth_blob_try_new(opts->count * sizeof(*n->values));
    if (values == NULL)
        return HTH_E_NO_MEMORY;
    hth_avg_node_values(opts->seed, opts->rank, (float *)(void *)values->data, opts->count);
    take(n, values);
    n->span = (struct hth_avg_span){.count = opts->count, .format = opts->format};
    HTH_TRY(open_net(n));
    HTH_TRY(open_averager(n));
    HTH_TRY(hth_averager_start(&n->avg.averager, on_round, n));
    n->timer = hth_timer_new(n->env, on_timer, n);
    hth_timer_set(n->env, n->timer, 0);
    return HTH_OK;
}

enum hth_err hth_avg_node_run(struct hth_avg_node *n)
{
    return hth_net_run(n->env);
}

enum hth_err hth_avg_node_set(struct hth_avg_node *n, const float *values)
{
    size_t bytes = n->opts.count * sizeof(*values);
    struct hth_blob *blob = hth_blob_try_new(bytes);

    if (blob == NULL)
        return HTH_E_NO_MEMORY;
    memcpy(blob->data, values, bytes);
    take(n, blob);
    return HTH_OK;
}

enum hth_err hth_avg_node_sweep(struct hth_avg_node *n, uint32_t rounds)
{
    n->rounds = rounds;
    n->failed = 0;
    return offer(n);
}

void hth_avg_node_close(struct hth_avg_node *n)
{
    if (n->env != NULL)
        hth_net_jobs_end(n->env);
    hth_avg_peer_close(&n->avg);
    if (n->timer != NULL)
        hth_timer_free(n->env, n->timer);
    hth_rpc_free(n->rpc);
    hth_opendht_free(n->opendht);
    hth_net_free(n->env);
    hth_blob_unref(n->offers);
    memset(n, 0, sizeof(*n));
}
