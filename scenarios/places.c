/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/places.h"

#include "core/mem.h"
#include "experts/places.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NETWORK   "places"
#define PORT      4000
#define LAYERS    2
#define WANT_MAX  7
#define STARTS_US (10 * HTH_US_PER_S)
#define STEP_US   (100 * HTH_US_PER_MS)

struct places_host {
    struct places_run *run;
    uint32_t want;
    struct hth_node *node;
    struct hth_rpc *rpc;
    struct hth_server *server;
    struct hth_announcer *announcer;
    struct hth_places *places;
};

struct places_run {
    struct hth_world *world;
    struct hth_grid grids[LAYERS];
    struct places_host hosts[HTH_PLACES_HOSTS_MAX];
    uint32_t count;
    enum hth_err err;
};

/* ---- a host -------------------------------------------------------------------------------- */

static void expert(void *arg, const struct hth_uid *uid, struct hth_expert_opts *out)
{
    (void)arg;
    (void)uid;
    out->kind = "nop";
    out->shape.d = 8;
    out->backend = hth_backend_ref();
}

static void on_expert(void *arg, const struct hth_uid *uid, enum hth_err err, bool restored)
{
    struct places_host *host = arg;

    hth_places_loaded(host->places, uid, err, restored);
}

static enum hth_err make_host(struct places_host *host, struct hth_env *env, struct hth_dht *dht)
{
    struct hth_addr addr = hth_node_addr(host->node, PORT);
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_server_opts server = HTH_SERVER_OPTS_INIT;
    struct hth_announcer_opts announcer = HTH_ANNOUNCER_OPTS_INIT;
    struct hth_places_opts places = {.network = NETWORK,
                                     .grids = host->run->grids,
                                     .layers = LAYERS,
                                     .shape = {.kind = "nop", .d = 8, .block_rows = 1},
                                     .want = host->want,
                                     .expert = expert};

    rpc.network = NETWORK;
    rpc.listen = &addr;
    server.on_expert = on_expert;
    server.arg = host;
    announcer.network = NETWORK;
    announcer.role = HTH_ROLE_HOST;
    announcer.info.addr[0] = addr;
    announcer.info.addr_count = 1;
    HTH_TRY(hth_rpc_new(env, &rpc, &host->rpc));
    HTH_TRY(hth_server_new(env, host->rpc, &server, &host->server));
    HTH_TRY(hth_announcer_new(env, dht, &announcer, &host->announcer));
    places.rpc = host->rpc;
    places.server = host->server;
    places.announcer = host->announcer;
    HTH_TRY(hth_places_new(env, dht, &places, &host->places));
    hth_places_start(host->places);
    return HTH_OK;
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct places_host *host = arg;
    enum hth_err err = make_host(host, env, dht);

    if (err != HTH_OK)
        host->run->err = err;
}

static void halt(struct hth_env *env, void *arg)
{
    struct places_host *host = arg;

    (void)env;
    hth_places_free(host->places);
    hth_announcer_free(host->announcer);
    hth_server_free(host->server);
    hth_rpc_free(host->rpc);
    host->places = NULL;
    host->announcer = NULL;
    host->server = NULL;
    host->rpc = NULL;
}

/* ---- the run ------------------------------------------------------------------------------- */

static int64_t start_us(const struct hth_sim_places_opts *opts, struct hth_rng *rng, uint32_t i)
{
    if (opts->start == HTH_PLACES_AT_ONCE || i == 0)
        return 0;
    if (opts->start == HTH_PLACES_UNIFORM)
        return (int64_t)(hth_rng_unit(rng) * STARTS_US);
    return STARTS_US * i / opts->hosts;
}

/* Draws what each host wants, and makes two layers that have as many places. */
static enum hth_err plan(struct places_run *run, const struct hth_sim_places_opts *opts,
                         struct hth_rng *rng)
{
    static const char *const names[LAYERS] = {"ffn0", "ffn1"};
    uint32_t places = 0;

    for (uint32_t i = 0; i < opts->hosts; i++) {
        run->hosts[i].want = 1 + (uint32_t)hth_rng_below(rng, WANT_MAX);
        places += run->hosts[i].want;
    }
    if (places < LAYERS)
        places += run->hosts[0].want++;
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t dim = (places + l) / LAYERS;
        HTH_TRY(hth_grid_init(&run->grids[l], names[l], 1, &dim));
    }
    return HTH_OK;
}

static struct hth_world *make_world(uint64_t seed)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;

    w.link = (struct hth_link){.latency_us = 40 * HTH_US_PER_MS,
                               .jitter_us = 10 * HTH_US_PER_MS,
                               .jitter = HTH_JITTER_EXPONENTIAL};
    w.dht.partial = 0.02;
    return hth_world_new(seed, &w);
}

static void make_hosts(struct places_run *run, const struct hth_sim_places_opts *opts,
                       struct hth_rng *rng)
{
    for (uint32_t i = 0; i < opts->hosts; i++) {
        struct hth_node_opts node = HTH_NODE_OPTS_INIT;
        char name[16];

        node.boot = boot;
        node.halt = halt;
        node.arg = &run->hosts[i];
        node.boot_delay_us = HTH_MAX(start_us(opts, rng, i), 1);
        snprintf(name, sizeof(name), "host%u", i);
        run->hosts[i].run = run;
        run->hosts[i].node = hth_world_node(run->world, name, &node);
    }
    run->count = opts->hosts;
}

static uint32_t servers_of(const struct places_run *run, uint32_t layer, uint32_t index)
{
    struct hth_uid uid = {.ncoord = 1, .coord = {index}};
    struct hth_server_expert e;
    uint32_t n = 0;

    memcpy(uid.name, run->grids[layer].name, sizeof(uid.name));
    for (uint32_t i = 0; i < run->count; i++)
        n += run->hosts[i].server != NULL &&
             hth_server_expert_find(run->hosts[i].server, &uid, &e) && e.ready;
    return n;
}

/* Returns true when each place has one host. */
static bool count(const struct places_run *run, struct hth_sim_places_row *row)
{
    uint32_t places = 0, served = 0;

    row->twice = 0;
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t i = 0; i < hth_grid_size(&run->grids[l]); i++, places++) {
            uint32_t n = servers_of(run, l, i);
            served += n > 0;
            row->twice += n > 1;
        }
    row->served = (double)served / places;
    return served == places && row->twice == 0;
}

enum hth_err hth_sim_places(const struct hth_sim_places_opts *opts, struct hth_sim_places_row *row)
{
    struct hth_rng rng;
    enum hth_err err;

    if (opts->hosts == 0 || opts->hosts > HTH_PLACES_HOSTS_MAX)
        return HTH_E_CONFIG;
    struct places_run *run = hth_new(struct places_run);
    hth_rng_init(&rng, hth_mix64(opts->seed) ^ UINT64_C(0x504c41434553));
    HTH_GOTO(out, plan(run, opts, &rng));
    run->world = make_world(opts->seed);
    make_hosts(run, opts, &rng);
    row->s = NAN;
    for (int64_t at = 0; at < HTH_PLACES_WITHIN_US && run->err == HTH_OK; at += STEP_US) {
        hth_world_run_for(run->world, STEP_US);
        if (!count(run, row))
            row->s = NAN;
        else if (isnan(row->s))
            row->s = (double)hth_world_now_us(run->world) / HTH_US_PER_S;
    }
    err = run->err;
out:
    hth_world_free(run->world);
    hth_free(run);
    return err;
}
