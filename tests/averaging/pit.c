/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/pit.h"

#include "core/mem.h"
#include "support/end_world.h"

/* ---- one peer ------------------------------------------------------------------------------- */

static void take(struct pit_peer *p, const struct hth_avg_result *r)
{
    size_t bytes = p->pit->count * sizeof(float);

    p->failed += r->err != HTH_OK;
    if (r->err == HTH_OK && r->average != NULL) {
        assert_int_equal(r->average->size, bytes);
        assert_int_equal(r->values->size, bytes);
        if (r->average->data != NULL)
            memcpy(p->values, r->average->data, bytes);
    }
}

static void offer(struct pit_peer *q)
{
    struct pit *p = q->pit;
    struct hth_avg_offer o = {.count = p->count,
                              .weight = q->weight,
                              .schema = p->roster.schema,
                              .spans = &p->span,
                              .span_count = 1};
    enum hth_err err;

    p->span = (struct hth_avg_span){.count = p->count, .format = p->format};
    if (q->mode != HTH_AVG_HELPER)
        assert_ok(hth_env_blob_new(q->env, p->count * sizeof(float), NULL, &o.values));
    if (o.values != NULL && o.values->data != NULL)
        memcpy(o.values->data, q->values, o.values->size);
    err = hth_averager_offer(&q->avg.averager, &o);
    hth_blob_unref(o.values);
    assert_ok(err);
}

static void on_round(void *arg, const struct hth_avg_result *r)
{
    struct pit_peer *p = arg;

    if (p->left > 1) {
        p->left--;
        take(p, r);
        offer(p);
        return;
    }
    p->ended++;
    p->ended_us = hth_world_now_us(p->pit->world);
    p->longest_us = HTH_MAX(p->longest_us, p->ended_us - p->offered_us);
    p->result = *r;
    assert_true((r->err == HTH_OK) == (r->reason == HTH_AVG_OK));
    assert_true(r->err != HTH_OK || (r->average != NULL) == (p->mode != HTH_AVG_HELPER));
    take(p, r);
    p->result.values = p->result.average = NULL;
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct pit_peer *p = arg;
    struct pit *pit = p->pit;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_avg_peer_opts avg = {.network = "run",
                                    .mode = p->mode,
                                    .bandwidth = pit->bandwidth,
                                    .roster = pit->roster,
                                    .reducer = HTH_REDUCER_OPTS_INIT,
                                    .moshpit = pit->opts};

    p->env = env;
    p->addr = hth_node_addr(p->node, PIT_PORT);
    rpc.network = avg.network;
    rpc.listen = &p->addr;
    rpc.on_peer_lost = hth_avg_peer_lost;
    rpc.arg = &p->avg;
    assert_ok(hth_rpc_new(env, &rpc, &p->rpc));
    if (p->mode != HTH_AVG_CLIENT)
        avg.addr = p->addr;
    avg.roster.shape = pit->shape;
    avg.roster.has_cell = pit->has_cells;
    avg.roster.cell = p->cell;
    assert_ok(hth_avg_peer_open(env, p->rpc, dht, &avg, &p->avg));
    assert_ok(hth_averager_start(&p->avg.averager, on_round, p));
    p->up = true;
}

static void halt(struct hth_env *env, void *arg)
{
    struct pit_peer *p = arg;

    (void)env;
    if (p->rpc == NULL)
        return;
    hth_avg_peer_close(&p->avg);
    hth_rpc_free(p->rpc);
    p->rpc = NULL;
    p->up = false;
}

/* ---- all ------------------------------------------------------------------------------------ */

void pit_init(struct pit *p, uint64_t seed, uint32_t peers, size_t count,
              const struct hth_world_opts *world)
{
    memset(p, 0, sizeof(*p));
    p->world = hth_world_new(seed, world);
    p->peers = peers;
    p->count = count;
    p->peer = hth_new_array(struct pit_peer, peers);
    p->opts = (struct hth_moshpit_opts)HTH_MOSHPIT_OPTS_INIT;
    p->roster = (struct hth_roster_opts)HTH_ROSTER_OPTS_INIT;
    p->roster.schema = 5;
    p->format = HTH_QUANT_F32;
    for (uint32_t i = 0; i < peers; i++) {
        struct pit_peer *q = &p->peer[i];
        struct hth_node_opts o = HTH_NODE_OPTS_INIT;
        char name[16];
        snprintf(name, sizeof(name), "p%u", i);
        o.halt = halt;
        o.arg = q;
        q->pit = p;
        q->weight = 1;
        q->values = hth_new_array(float, count);
        q->node = hth_world_node(p->world, name, &o);
    }
}

void pit_start(struct pit *p, int64_t settle_us)
{
    for (uint32_t i = 0; i < p->peers; i++) {
        struct pit_peer *q = &p->peer[i];
        if (p->has_cells)
            q->cell = hth_avg_cell_of_rank(&p->shape, i);
        boot(hth_node_env(q->node), hth_node_dht(q->node), q);
    }
    hth_world_run_for(p->world, settle_us);
}

void pit_stop(struct pit *p)
{
    end_world(p->world);
    for (uint32_t i = 0; i < p->peers; i++)
        hth_free(p->peer[i].values);
    hth_free(p->peer);
}

void pit_fill(struct pit *p, uint64_t seed)
{
    for (uint32_t i = 0; i < p->peers; i++)
        for (size_t j = 0; j < p->count; j += 4) {
            uint32_t counter[4] = {(uint32_t)j, i, 0, 0}, key[2] = {(uint32_t)seed, 1};
            float x[4];
            hth_philox_normal(counter, key, x);
            memcpy(p->peer[i].values + j, x, HTH_MIN((size_t)4, p->count - j) * sizeof(float));
        }
}

void pit_offer(struct pit_peer *q, uint32_t rounds)
{
    q->left = rounds;
    q->offered_us = hth_world_now_us(q->pit->world);
    q->offered++;
    offer(q);
}

void pit_offer_all(struct pit *p, uint32_t rounds)
{
    for (uint32_t i = 0; i < p->peers; i++)
        if (p->peer[i].up)
            pit_offer(&p->peer[i], rounds);
}

static bool all_ended(void *arg)
{
    struct pit *p = arg;

    for (uint32_t i = 0; i < p->peers; i++)
        if (p->peer[i].up && p->peer[i].ended < p->peer[i].offered)
            return false;
    return true;
}

bool pit_run(struct pit *p, int64_t us)
{
    int64_t end = hth_world_now_us(p->world) + us;

    /* asked in steps: thousands of peers are not looked at before each event */
    while (!all_ended(p) && hth_world_now_us(p->world) < end)
        hth_world_run_for(p->world, HTH_US_PER_MS);
    return all_ended(p);
}

void pit_mean(const struct pit *p, double *out)
{
    double weight = 0;

    memset(out, 0, p->count * sizeof(*out));
    for (uint32_t i = 0; i < p->peers; i++) {
        if (!p->peer[i].up || p->peer[i].mode == HTH_AVG_HELPER)
            continue;
        weight += p->peer[i].weight;
        for (size_t j = 0; j < p->count; j++)
            out[j] += p->peer[i].weight * (double)p->peer[i].values[j];
    }
    for (size_t j = 0; j < p->count; j++)
        out[j] /= weight;
}

double pit_deviation(const struct pit *p, const double *mean)
{
    double worst = 0;

    for (uint32_t i = 0; i < p->peers; i++)
        for (size_t j = 0; p->peer[i].up && p->peer[i].mode != HTH_AVG_HELPER && j < p->count; j++)
            worst = hth_worse(worst, fabs((double)p->peer[i].values[j] - mean[j]));
    return worst;
}

double pit_spread(const struct pit *p)
{
    double worst = 0;

    for (size_t j = 0; j < p->count; j++) {
        double low = INFINITY, high = -INFINITY;
        for (uint32_t i = 0; i < p->peers; i++) {
            if (!p->peer[i].up)
                continue;
            low = -hth_worse(-low, -(double)p->peer[i].values[j]);
            high = hth_worse(high, (double)p->peer[i].values[j]);
        }
        worst = hth_worse(worst, high - low);
    }
    return worst;
}
