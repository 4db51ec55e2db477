/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/swarm.h"

#include <stdio.h>
#include <string.h>

#include "averaging/peer.h"
#include "core/mem.h"
#include "dht/announce.h"

struct swarm_host {
    struct hth_swarm *swarm;
    uint32_t index;
    struct hth_node *node;
    struct hth_rpc *rpc;
    struct hth_server *server;
    struct hth_announcer *announcer;
    uint32_t boots;
};

struct swarm_trainer {
    struct hth_swarm *swarm;
    uint32_t index;
    struct hth_node *node;
    struct hth_rpc *rpc;
    struct hth_directory *directory;
    struct hth_avg_peer avg; /* with `share` */
    struct hth_trainer *trainer;
};

struct hth_swarm {
    struct hth_world *world;
    struct hth_swarm_opts opts;
    struct hth_grid grids[HTH_MODEL_LAYERS_MAX];
    uint32_t layers;
    uint64_t *rows[HTH_MODEL_LAYERS_MAX]; /* rows of experts on hosts that have crashed */
    struct swarm_host *hosts;
    struct swarm_trainer *trainers;
    uint32_t trainer_count;
    enum hth_err err;
};

static void remember(struct hth_swarm *swarm, enum hth_err err)
{
    if (swarm->err == HTH_OK)
        swarm->err = err;
}

static struct hth_budget *budget_of(const struct hth_swarm *swarm, uint32_t node)
{
    return swarm->opts.budget != NULL ? swarm->opts.budget(swarm->opts.arg, node) : NULL;
}

static void booted(struct hth_swarm *swarm, uint32_t node, enum hth_err err)
{
    if (err != HTH_OK && swarm->opts.on_bad_boot != NULL)
        swarm->opts.on_bad_boot(swarm->opts.arg, node, err);
    else
        remember(swarm, err);
}

static uint32_t block_rows(const struct hth_model_opts *m)
{
    return strcmp(m->expert_kind, "transformer") == 0 ? m->seq_len : 1;
}

/* ---- a host ---------------------------------------------------------------------------------- */

static bool serves(const struct swarm_host *host, uint32_t layer, uint32_t expert)
{
    const struct hth_swarm_opts *o = &host->swarm->opts;
    uint32_t first = (uint32_t)((expert + (uint64_t)layer * o->shift) % o->hosts);

    return (host->index + o->hosts - first) % o->hosts < HTH_MAX(o->copies, 1u);
}

static enum hth_err add_expert(struct swarm_host *host, const struct hth_grid *grid,
                               uint32_t expert)
{
    const struct hth_swarm_opts *o = &host->swarm->opts;
    struct hth_expert_opts e = HTH_EXPERT_OPTS_INIT;

    memcpy(e.uid.name, grid->name, sizeof(e.uid.name));
    e.uid.ncoord = grid->ndim;
    hth_grid_coords(grid, expert, e.uid.coord);
    e.kind = o->trainer.model.expert_kind;
    e.shape.d = o->trainer.model.d;
    e.shape.block_rows = block_rows(&o->trainer.model);
    e.shape.heads = e.shape.block_rows > 1 ? o->trainer.model.heads : 0;
    e.optim = o->expert_optim.optim;
    e.schedule = o->expert_optim.schedule;
    e.clip_norm = o->expert_optim.clip_norm;
    e.backend = o->trainer.backend != NULL ? o->trainer.backend : hth_backend_ref();
    e.run_seed = o->trainer.model.seed;
    return hth_server_add(host->server, &e);
}

static enum hth_err add_layer(struct swarm_host *host, uint32_t layer)
{
    const struct hth_grid *grid = &host->swarm->grids[layer];
    const struct hth_model_opts *m = &host->swarm->opts.trainer.model;
    struct hth_layer_shape shape = {.d = m->d, .block_rows = block_rows(m)};
    uint32_t size = hth_grid_size(grid);
    uint32_t *mine = hth_new_array(uint32_t, size);
    struct hth_expert_list list = {mine, 0};
    enum hth_err err = HTH_OK;

    snprintf(shape.kind, sizeof(shape.kind), "%s", m->expert_kind);
    for (uint32_t i = 0; i < size; i++) {
        if (!serves(host, layer, i))
            continue;
        HTH_GOTO(out, add_expert(host, grid, i));
        mine[list.count++] = i;
    }
    err = hth_announcer_set_layer(host->announcer, grid, &shape, &list);
out:
    hth_free(mine);
    return err;
}

static enum hth_err make_server(struct swarm_host *host, struct hth_env *env)
{
    struct hth_server_opts server = host->swarm->opts.server;
    char folder[64];

    snprintf(folder, sizeof(folder), "%s.%u", server.checkpoint_dir, host->boots++);
    if (host->swarm->opts.blank && server.checkpoint_dir != NULL)
        server.checkpoint_dir = folder;
    if (host->swarm->opts.edit_host != NULL)
        host->swarm->opts.edit_host(host->swarm->opts.arg, host->index, &server);
    return hth_server_new(env, host->rpc, &server, &host->server);
}

/* Add the rows of the experts of a host that is up. They were added layer by layer. */
static void count_rows(const struct swarm_host *host, uint32_t only, uint64_t *rows)
{
    struct hth_server_expert e;
    uint32_t at = 0;

    for (uint32_t l = 0; host->server != NULL && l < host->swarm->layers; l++)
        for (uint32_t i = 0; i < hth_grid_size(&host->swarm->grids[l]); i++)
            if (serves(host, l, i) && hth_server_expert_at(host->server, at++, &e) && l == only)
                rows[i] += e.rows_forward;
}

static enum hth_err start_host(struct swarm_host *host, struct hth_env *env, struct hth_dht *dht)
{
    struct hth_swarm *swarm = host->swarm;
    struct hth_addr addr = hth_node_addr(host->node, HTH_SWARM_PORT);
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_announcer_opts announcer = HTH_ANNOUNCER_OPTS_INIT;

    rpc.network = HTH_SWARM_NETWORK;
    rpc.admission = swarm->opts.admission;
    rpc.listen = &addr;
    rpc.budget = budget_of(swarm, host->index);
    announcer.network = HTH_SWARM_NETWORK;
    announcer.role = HTH_ROLE_HOST;
    announcer.life_us = swarm->opts.record_life_us;
    announcer.info.addr[0] = addr;
    announcer.info.addr_count = 1;
    announcer.info.rows_per_s = 1000;
    HTH_TRY(hth_rpc_new(env, &rpc, &host->rpc));
    HTH_TRY(make_server(host, env));
    HTH_TRY(hth_announcer_new(env, dht, &announcer, &host->announcer));
    for (uint32_t l = 0; l < swarm->layers; l++)
        HTH_TRY(add_layer(host, l));
    return HTH_OK;
}

static void host_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct swarm_host *host = arg;

    booted(host->swarm, host->index, start_host(host, env, dht));
}

static void host_halt(struct hth_env *env, void *arg)
{
    struct swarm_host *host = arg;

    (void)env;
    for (uint32_t l = 0; l < host->swarm->layers; l++)
        count_rows(host, l, host->swarm->rows[l]);
    hth_announcer_free(host->announcer);
    hth_server_free(host->server);
    hth_rpc_free(host->rpc);
    host->announcer = NULL;
    host->server = NULL;
    host->rpc = NULL;
}

/* ---- the trainer ----------------------------------------------------------------------------- */

static void on_change(void *arg)
{
    struct swarm_trainer *t = arg;

    if (t->trainer != NULL)
        hth_trainer_nudge(t->trainer);
}

static void on_lost(void *arg, const struct hth_peer_id *peer)
{
    struct swarm_trainer *t = arg;

    if (t->trainer != NULL)
        hth_trainer_peer_lost(t->trainer, peer);
}

static enum hth_err join_others(struct swarm_trainer *t, struct hth_env *env, struct hth_dht *dht,
                                const struct hth_addr *addr, struct hth_trainer_opts *trainer)
{
    struct hth_avg_peer_opts o = {.network = HTH_SWARM_NETWORK,
                                  .addr = *addr,
                                  .roster = t->swarm->opts.roster,
                                  .reducer = t->swarm->opts.reducer,
                                  .moshpit = t->swarm->opts.moshpit,
                                  .on_change = on_change,
                                  .on_lost = on_lost,
                                  .arg = t};

    o.roster.silent = true; /* until there is a trainer, as in the program */
    HTH_TRY(hth_avg_peer_open(env, t->rpc, dht, &o, &t->avg));
    trainer->averager = &t->avg.averager;
    trainer->share.network = HTH_SWARM_NETWORK;
    trainer->share.addr = *addr;
    trainer->share.roster = t->avg.roster;
    trainer->share.dht = dht;
    trainer->share.reducer = t->avg.reducer;
    return HTH_OK;
}

static enum hth_err start_trainer(struct swarm_trainer *t, struct hth_env *env, struct hth_dht *dht)
{
    const struct hth_swarm_opts *opts = &t->swarm->opts;
    struct hth_addr addr = hth_node_addr(t->node, HTH_SWARM_PORT);
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_directory_opts directory = HTH_DIRECTORY_OPTS_INIT;
    struct hth_trainer_opts trainer = opts->trainer;

    rpc.network = HTH_SWARM_NETWORK;
    rpc.admission = opts->admission;
    rpc.budget = trainer.budget = budget_of(t->swarm, opts->hosts + t->index);
    if (opts->share) {
        rpc.listen = &addr;
        rpc.on_peer_lost = hth_avg_peer_lost;
        rpc.arg = &t->avg;
    }
    if (opts->deadline_min_us > 0)
        rpc.timeout_min_us = opts->deadline_min_us;
    directory.network = HTH_SWARM_NETWORK;
    directory.prove = true;
    HTH_TRY(hth_rpc_new(env, &rpc, &t->rpc));
    HTH_TRY(hth_directory_new(env, dht, &directory, &t->directory));
    if (opts->share)
        HTH_TRY(join_others(t, env, dht, &addr, &trainer));
    trainer.rpc = t->rpc;
    trainer.directory = t->directory;
    trainer.local = false;
    if (opts->edit != NULL)
        opts->edit(opts->arg, t->index, &trainer);
    HTH_TRY(hth_trainer_new(env, &trainer, &t->trainer));
    if (t->avg.roster != NULL)
        hth_roster_speak(t->avg.roster);
    hth_trainer_start(t->trainer);
    return HTH_OK;
}

static void trainer_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct swarm_trainer *t = arg;

    booted(t->swarm, t->swarm->opts.hosts + t->index, start_trainer(t, env, dht));
}

static void trainer_halt(struct hth_env *env, void *arg)
{
    struct swarm_trainer *t = arg;

    (void)env;
    hth_trainer_free(t->trainer);
    hth_avg_peer_close(&t->avg);
    hth_directory_free(t->directory);
    hth_rpc_free(t->rpc);
    t->trainer = NULL;
    t->directory = NULL;
    t->rpc = NULL;
}

/* ---- the swarm ------------------------------------------------------------------------------- */

static struct hth_node *make_node(struct hth_swarm *swarm, uint32_t index, const char *name,
                                  const struct hth_node_opts *kind, void *arg)
{
    struct hth_node_opts o = *kind;

    if (swarm->opts.edit_node != NULL)
        swarm->opts.edit_node(swarm->opts.arg, index, &o);
    o.boot = kind->boot;
    o.halt = kind->halt;
    o.arg = arg;
    return hth_world_node(swarm->world, name, &o);
}

static void make_nodes(struct hth_swarm *swarm)
{
    struct hth_node_opts o = HTH_NODE_OPTS_INIT;
    char name[24];

    o.boot = host_boot;
    o.halt = host_halt;
    o.device = swarm->opts.host_device;
    for (uint32_t i = 0; i < swarm->opts.hosts; i++) {
        struct swarm_host *host = &swarm->hosts[i];

        host->swarm = swarm;
        host->index = i;
        snprintf(name, sizeof(name), "host%u", i);
        host->node = make_node(swarm, i, name, &o, host);
    }
    o.boot = trainer_boot;
    o.halt = trainer_halt;
    o.device = swarm->opts.trainer_device;
    for (uint32_t i = 0; i < swarm->trainer_count; i++) {
        struct swarm_trainer *t = &swarm->trainers[i];

        t->swarm = swarm;
        t->index = i;
        if (i == 0)
            snprintf(name, sizeof(name), "trainer");
        else
            snprintf(name, sizeof(name), "trainer%u", i);
        t->node = make_node(swarm, swarm->opts.hosts + i, name, &o, t);
    }
}

struct hth_swarm *hth_swarm_new(struct hth_world *world, const struct hth_swarm_opts *opts)
{
    struct hth_swarm *swarm = hth_new(struct hth_swarm);
    const struct hth_model_opts *m = &opts->trainer.model;
    char name[HTH_NAME_LEN_MAX + 1];

    swarm->world = world;
    swarm->opts = *opts;
    swarm->layers = HTH_MIN(m->layers, (uint32_t)HTH_MODEL_LAYERS_MAX);
    swarm->hosts = hth_new_array(struct swarm_host, opts->hosts);
    swarm->trainer_count = HTH_MAX(opts->trainers, 1u);
    swarm->trainers = hth_new_array(struct swarm_trainer, swarm->trainer_count);
    for (uint32_t l = 0; l < swarm->layers; l++) {
        snprintf(name, sizeof(name), "%s%u", m->layer_prefix, l);
        remember(swarm, hth_grid_init(&swarm->grids[l], name, m->grid_ndim, m->grid_dim));
        swarm->rows[l] = hth_new_array(uint64_t, hth_grid_size(&swarm->grids[l]) + 1);
    }
    if (swarm->err == HTH_OK)
        make_nodes(swarm);
    return swarm;
}

void hth_swarm_free(struct hth_swarm *swarm)
{
    if (swarm == NULL)
        return;
    for (uint32_t l = 0; l < swarm->layers; l++)
        hth_free(swarm->rows[l]);
    hth_free(swarm->hosts);
    hth_free(swarm->trainers);
    hth_free(swarm);
}

struct hth_swarm_opts *hth_swarm_edit(struct hth_swarm *swarm)
{
    return &swarm->opts;
}

struct hth_node *hth_swarm_host(struct hth_swarm *swarm, uint32_t i)
{
    return swarm->hosts[i].node;
}

struct hth_server *hth_swarm_server(struct hth_swarm *swarm, uint32_t i)
{
    return swarm->hosts[i].server;
}

struct hth_node *hth_swarm_trainer_node(struct hth_swarm *swarm)
{
    return swarm->trainers[0].node;
}

struct hth_trainer *hth_swarm_trainer(struct hth_swarm *swarm)
{
    return swarm->trainers[0].trainer;
}

struct hth_trainer *hth_swarm_trainer_at(struct hth_swarm *swarm, uint32_t i)
{
    HTH_ASSERT(i < swarm->trainer_count);
    return swarm->trainers[i].trainer;
}

void hth_swarm_expert_rows(const struct hth_swarm *swarm, uint32_t layer, uint64_t *rows)
{
    memcpy(rows, swarm->rows[layer], hth_grid_size(&swarm->grids[layer]) * sizeof(*rows));
    for (uint32_t i = 0; i < swarm->opts.hosts; i++)
        count_rows(&swarm->hosts[i], layer, rows);
}

enum hth_err hth_swarm_err(const struct hth_swarm *swarm)
{
    return swarm->err;
}
