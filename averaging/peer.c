/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/peer.h"

#include <string.h>

static void on_change(void *arg)
{
    struct hth_avg_peer *p = arg;

    if (p->averager.ops != NULL)
        hth_moshpit_nudge(&p->averager);
    if (p->on_change != NULL)
        p->on_change(p->arg);
}

void hth_avg_peer_lost(void *peer, const struct hth_peer_id *lost, enum hth_err err)
{
    struct hth_avg_peer *p = peer;

    if (p->reducer != NULL)
        hth_reducer_peer_lost(p->reducer, lost);
    if (p->averager.ops != NULL)
        hth_moshpit_peer_lost(&p->averager, lost, err);
    if (p->on_lost != NULL)
        p->on_lost(p->arg, lost);
}

static enum hth_err make(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                         const struct hth_avg_peer_opts *opts, struct hth_avg_peer *p)
{
    struct hth_roster_opts roster = opts->roster;
    struct hth_moshpit_opts moshpit = opts->moshpit;

    roster.network = moshpit.network = opts->network;
    roster.addr = moshpit.addr = opts->addr;
    moshpit.bandwidth = opts->bandwidth;
    moshpit.mode = opts->mode;
    if (opts->mode == HTH_AVG_CLIENT)
        roster.flags |= HTH_ROSTER_CLIENT;
    if (opts->mode == HTH_AVG_HELPER)
        roster.flags |= HTH_ROSTER_HELPER;
    roster.on_change = on_change;
    roster.arg = p;
    HTH_TRY(hth_roster_new(env, dht, &roster, &p->roster));
    HTH_TRY(hth_reducer_new(env, rpc, &opts->reducer, &p->reducer));
    return hth_moshpit_new(env, rpc, p->roster, p->reducer, &moshpit, &p->averager);
}

enum hth_err hth_avg_peer_open(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                               const struct hth_avg_peer_opts *opts, struct hth_avg_peer *p)
{
    enum hth_err err;

    memset(p, 0, sizeof(*p));
    p->on_change = opts->on_change;
    p->on_lost = opts->on_lost;
    p->arg = opts->arg;
    err = make(env, rpc, dht, opts, p);
    if (err != HTH_OK)
        hth_avg_peer_close(p);
    return err;
}

void hth_avg_peer_close(struct hth_avg_peer *p)
{
    hth_averager_free(&p->averager);
    hth_reducer_free(p->reducer);
    hth_roster_free(p->roster);
    memset(p, 0, sizeof(*p));
}
