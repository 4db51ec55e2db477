/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/crew.h"

#include <math.h>
#include <stdio.h>

#include "core/mem.h"
#include "kernels/params.h"
#include "rpc/rpc.h"
#include "scenarios/trunk.h"
#include "trainer/helper.h"

struct crew_member {
    struct hth_crew *crew;
    uint32_t index;
    struct hth_node *node;
    struct hth_rpc *rpc;
    struct hth_avg_peer avg;
    bool helps;
    struct hth_trainer *trainer;
    struct hth_helper *helper;
    bool done;
};

struct hth_crew {
    struct hth_world *world;
    struct hth_crew_opts opts;
    struct crew_member *members;
    uint32_t count;
    enum hth_err err;
};

static void on_update(void *arg, const struct hth_train_stats *stats)
{
    struct crew_member *m = arg;
    const struct hth_crew_opts *o = &m->crew->opts;

    if (o->on_update != NULL)
        o->on_update(o->arg, m->index, stats);
}

static void on_eval(void *arg, const struct hth_eval_result *result)
{
    struct crew_member *m = arg;
    const struct hth_crew_opts *o = &m->crew->opts;

    if (o->on_eval != NULL)
        o->on_eval(o->arg, m->index, result);
}

static void on_done(void *arg, enum hth_err err)
{
    struct crew_member *m = arg;

    m->done = true;
    if (m->crew->err == HTH_OK)
        m->crew->err = err;
}

static void on_change(void *arg)
{
    struct crew_member *m = arg;

    if (m->trainer != NULL)
        hth_trainer_nudge(m->trainer);
}

static void on_lost(void *arg, const struct hth_peer_id *peer)
{
    struct crew_member *m = arg;

    if (m->trainer != NULL)
        hth_trainer_peer_lost(m->trainer, peer);
}

static enum hth_err make_averager(struct crew_member *m, struct hth_env *env, struct hth_dht *dht,
                                  const struct hth_addr *addr)
{
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_avg_peer_opts o = {.network = HTH_CREW_NETWORK,
                                  .addr = *addr,
                                  .mode = m->helps            ? HTH_AVG_HELPER
                                          : addr->family != 0 ? HTH_AVG_TRAINER
                                                              : HTH_AVG_CLIENT,
                                  .roster = m->crew->opts.roster,
                                  .reducer = m->crew->opts.reducer,
                                  .moshpit = m->crew->opts.moshpit,
                                  .on_change = on_change,
                                  .on_lost = on_lost,
                                  .arg = m};

    o.roster.silent = true; /* until there is a trainer, as in the program */
    rpc.network = HTH_CREW_NETWORK;
    rpc.listen = addr->family != 0 ? addr : NULL;
    rpc.on_peer_lost = hth_avg_peer_lost;
    rpc.arg = &m->avg;
    HTH_TRY(hth_rpc_new(env, &rpc, &m->rpc));
    return hth_avg_peer_open(env, m->rpc, dht, &o, &m->avg);
}

static enum hth_err make_helper(struct crew_member *m, struct hth_env *env,
                                const struct hth_trainer_opts *like)
{
    const struct hth_helper_opts o = {.model = like->model,
                                      .optim = like->optim,
                                      .share = like->share,
                                      .averager = like->averager,
                                      .rpc = like->rpc};

    return hth_helper_new(env, &o, &m->helper);
}

static enum hth_err start(struct crew_member *m, struct hth_env *env, struct hth_dht *dht)
{
    struct hth_addr addr = hth_node_addr(m->node, HTH_CREW_PORT);
    struct hth_trainer_opts trainer = m->crew->opts.trainer;

    if (m->index < m->crew->opts.clients)
        addr = (struct hth_addr){.family = 0};
    HTH_TRY(make_averager(m, env, dht, &addr));
    trainer.local = true;
    trainer.rpc = m->rpc;
    trainer.averager = &m->avg.averager;
    trainer.share.roster = m->avg.roster;
    trainer.share.dht = dht;
    trainer.share.network = HTH_CREW_NETWORK;
    trainer.share.addr = addr;
    trainer.share.reducer = m->avg.reducer;
    trainer.share.shape = m->crew->opts.roster.shape;
    trainer.share.clip = m->crew->opts.reducer.clip;
    trainer.on.on_update = on_update;
    trainer.on.on_eval = on_eval;
    trainer.on.on_done = on_done;
    trainer.on.arg = m;
    if (m->crew->opts.edit != NULL)
        m->crew->opts.edit(m->crew->opts.arg, m->index, &trainer);
    if (m->helps)
        HTH_TRY(make_helper(m, env, &trainer));
    else
        HTH_TRY(hth_trainer_new(env, &trainer, &m->trainer));
    hth_roster_speak(m->avg.roster);
    if (!m->helps)
        hth_trainer_start(m->trainer);
    return HTH_OK;
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct crew_member *m = arg;
    enum hth_err err = start(m, env, dht);

    m->done = m->helps;
    if (m->crew->err == HTH_OK)
        m->crew->err = err;
}

static void halt(struct hth_env *env, void *arg)
{
    struct crew_member *m = arg;

    (void)env;
    hth_trainer_free(m->trainer);
    hth_helper_free(m->helper);
    hth_avg_peer_close(&m->avg);
    hth_rpc_free(m->rpc);
    m->trainer = NULL;
    m->helper = NULL;
    m->rpc = NULL;
}

uint32_t hth_crew_join(struct hth_crew *crew)
{
    struct crew_member *m = &crew->members[crew->count];
    struct hth_node_opts o = HTH_NODE_OPTS_INIT;
    char name[24];

    HTH_ASSERT(crew->count < crew->opts.members_max);
    m->crew = crew;
    m->index = crew->count;
    o.boot = boot;
    o.halt = halt;
    o.arg = m;
    o.device = crew->opts.device;
    snprintf(name, sizeof(name), "trainer%u", m->index);
    m->node = hth_world_node(crew->world, name, &o);
    return crew->count++;
}

uint32_t hth_crew_help(struct hth_crew *crew)
{
    uint32_t i = hth_crew_join(crew);

    crew->members[i].helps = true;
    return i;
}

struct hth_crew *hth_crew_new(struct hth_world *world, const struct hth_crew_opts *opts)
{
    struct hth_crew *crew = hth_new(struct hth_crew);

    crew->world = world;
    crew->opts = *opts;
    crew->opts.members_max = HTH_MAX(opts->members_max, opts->members);
    crew->members = hth_new_array(struct crew_member, crew->opts.members_max);
    for (uint32_t i = 0; i < opts->members; i++)
        hth_crew_join(crew);
    return crew;
}

void hth_crew_free(struct hth_crew *crew)
{
    if (crew == NULL)
        return;
    hth_free(crew->members);
    hth_free(crew);
}

uint32_t hth_crew_count(const struct hth_crew *crew)
{
    return crew->count;
}

struct hth_node *hth_crew_node(struct hth_crew *crew, uint32_t i)
{
    return crew->members[i].node;
}

struct hth_trainer *hth_crew_trainer(struct hth_crew *crew, uint32_t i)
{
    return crew->members[i].trainer;
}

struct hth_helper *hth_crew_helper(struct hth_crew *crew, uint32_t i)
{
    return crew->members[i].helper;
}

struct hth_roster *hth_crew_roster(struct hth_crew *crew, uint32_t i)
{
    return crew->members[i].avg.roster;
}

struct hth_rpc *hth_crew_rpc(struct hth_crew *crew, uint32_t i)
{
    return crew->members[i].rpc;
}

bool hth_crew_is_done(const struct hth_crew *crew, uint32_t i)
{
    return crew->members[i].done;
}

bool hth_crew_all_done(void *arg)
{
    const struct hth_crew *crew = arg;

    if (crew->err != HTH_OK)
        return true;
    for (uint32_t i = 0; i < crew->count; i++)
        if (hth_node_is_up(crew->members[i].node) && !crew->members[i].done)
            return false;
    return true;
}

static struct hth_params *params_of(struct hth_crew *crew, uint32_t i)
{
    struct hth_trainer *t = crew->members[i].trainer;

    return t != NULL ? hth_model_params(hth_trainer_model(t)) : NULL;
}

double hth_crew_spread(struct hth_crew *crew)
{
    struct hth_params *first = NULL;
    double worst = 0;

    for (uint32_t i = 0; i < crew->count; i++) {
        struct hth_params *p = params_of(crew, i);

        if (p == NULL)
            continue;
        if (first == NULL)
            first = p;
        worst = hth_worse(worst, hth_params_distance(first, p));
    }
    return worst;
}

enum hth_err hth_crew_err(const struct hth_crew *crew)
{
    return crew->err;
}
