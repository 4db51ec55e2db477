/* SPDX-License-Identifier: Apache-2.0 */
/* nodht.c: fills a directory by hand and counts requests to its table. */
#include "benchmarks/nodht.h"

#include "core/mem.h"
#include "net/net.h"

#include <stdio.h>
#include <string.h>

/* The records must not expire during a measurement. */
#define LIFE_US (600 * HTH_US_PER_S)

/* A handle for watches, which only has to differ from NULL. */
static char handle;

static enum hth_err no_put(void *self, const struct hth_dht_key *key, const void *data, size_t len,
                           hth_dht_done_fn *done, void *arg, struct hth_dht_put **put)
{
    struct hth_bench_nodht *n = self;
    (void)key, (void)data, (void)len, (void)done, (void)arg;
    n->asked++;
    *put = (struct hth_dht_put *)(void *)&handle;
    return HTH_OK;
}

static enum hth_err no_get(void *self, const struct hth_dht_key *key, hth_dht_value_fn *value,
                           hth_dht_done_fn *done, void *arg, struct hth_dht_get **get)
{
    struct hth_bench_nodht *n = self;
    (void)key, (void)value, (void)done, (void)arg;
    n->asked++;
    *get = (struct hth_dht_get *)(void *)&handle;
    return HTH_OK;
}

static enum hth_err no_watch(void *self, const struct hth_dht_key *key, hth_dht_value_fn *value,
                             void *arg, struct hth_dht_watch **watch)
{
    struct hth_bench_nodht *n = self;
    (void)key, (void)value, (void)arg;
    n->asked++;
    *watch = (struct hth_dht_watch *)(void *)&handle;
    return HTH_OK;
}

static void no_withdraw(void *self, struct hth_dht_put *put)
{
    (void)self, (void)put;
}

static void no_cancel(void *self, struct hth_dht_get *get)
{
    (void)self, (void)get;
}

static void no_unwatch(void *self, struct hth_dht_watch *watch)
{
    (void)self, (void)watch;
}

static void no_stats(void *self, struct hth_dht_stats *out)
{
    (void)self;
    *out = (struct hth_dht_stats){0};
}

static const struct hth_dht_ops no_ops = {
    .put = no_put,
    .withdraw = no_withdraw,
    .get = no_get,
    .get_cancel = no_cancel,
    .watch = no_watch,
    .unwatch = no_unwatch,
    .stats = no_stats,
};

static enum hth_err load_host(struct hth_bench_nodht *n, uint32_t layer, uint32_t number,
                              const struct hth_expert_list *experts)
{
    struct hth_peer_id id = {{0}};
    struct hth_host_info info = {.addr_count = 1, .version = "bench", .rows_per_s = 1000};
    info.addr[0] = (struct hth_addr){.family = 4, .ip = {127, 0, 0, 1}, .port = 1};
    memcpy(id.b, &number, sizeof(number));
    id.b[31] = 1;
    return hth_directory_load(n->directory, layer, &id, &info, experts, LIFE_US);
}

enum hth_err hth_bench_nodht_open(struct hth_bench_nodht *n, const struct hth_grid *grid,
                                  uint32_t hosts)
{
    struct hth_net_opts net_opts = HTH_NET_OPTS_INIT;
    struct hth_directory_opts opts = HTH_DIRECTORY_OPTS_INIT;
    uint32_t size = hth_grid_size(grid), layer, *index = NULL;
    enum hth_err err;
    *n = (struct hth_bench_nodht){.dht = {&no_ops, n}};
    net_opts.compute_threads = 1;
    HTH_GOTO(out, hth_net_new(&net_opts, &n->env));
    opts.network = "bench";
    HTH_GOTO(out, hth_directory_new(n->env, &n->dht, &opts, &n->directory));
    HTH_GOTO(out, hth_directory_open_layer(n->directory, grid, NULL, &layer));
    index = hth_new_array(uint32_t, size);
    for (uint32_t i = 0; i < size; i++)
        index[i] = i;
    for (uint32_t h = 0; h < hosts; h++) {
        uint32_t first = (uint32_t)((uint64_t)h * size / hosts);
        uint32_t end = (uint32_t)((uint64_t)(h + 1) * size / hosts);
        const struct hth_expert_list list = {index + first, end - first};
        HTH_GOTO(out, load_host(n, layer, h, &list));
    }
out:
    hth_free(index);
    if (err != HTH_OK)
        hth_bench_nodht_close(n);
    return err;
}

void hth_bench_nodht_close(struct hth_bench_nodht *n)
{
    hth_directory_free(n->directory);
    hth_net_free(n->env);
    *n = (struct hth_bench_nodht){0};
}

uint64_t hth_bench_nodht_requests(const struct hth_bench_nodht *n)
{
    struct hth_directory_stats stats;
    hth_directory_stats(n->directory, &stats);
    return stats.dht_requests + n->asked;
}
