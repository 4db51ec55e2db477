/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes.h: what the tests of this folder have in common in the simulated world: endpoints, and
 * means that follow from a seed.
 */
#ifndef HTH_TESTS_COLLAB_NODES_H
#define HTH_TESTS_COLLAB_NODES_H

#include "support/end_world.h"

#include "averaging/state.h"
#include "collab/roll.h"
#include "core/crypto.h"
#include "rpc/rpc.h"

#define S    HTH_US_PER_S
#define MS   HTH_US_PER_MS
#define PORT 4000

typedef void lost_fn(void *arg, const struct hth_peer_id *peer, enum hth_err err);

static inline struct hth_rpc *make_rpc(struct hth_env *env, struct hth_node *node, lost_fn *on_lost,
                                       void *arg)
{
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    struct hth_addr addr = hth_node_addr(node, PORT);
    struct hth_rpc *rpc;
    opts.network = "run";
    opts.listen = &addr;
    opts.on_peer_lost = on_lost;
    opts.arg = arg;
    assert_ok(hth_rpc_new(env, &opts, &rpc));
    return rpc;
}

static inline struct hth_roll_peer peer_of(struct hth_node *node)
{
    return (struct hth_roll_peer){.id = hth_node_env(node)->self,
                                  .addr = hth_node_addr(node, PORT)};
}

static inline struct hth_blob *make_mean(struct hth_env *env, uint64_t count, uint64_t seed)
{
    struct hth_blob *b;
    assert_ok(hth_env_blob_new(env, count * sizeof(float), NULL, &b));
    for (uint64_t i = 0; b->data != NULL && i < count; i++)
        ((float *)(void *)b->data)[i] = (float)hth_mix64(seed * 1000003 + i) * 0x1p-64f;
    return b;
}

/* Zero for a ghost, of which any digest fits. */
static inline struct hth_hash digest_of(const void *values, uint64_t count)
{
    struct hth_hash digest = {{0}};
    const struct hth_blob blob = {.data = (uint8_t *)values, .size = count * sizeof(float)};
    if (values == NULL)
        return digest;
    struct hth_blob *hashes = hth_mean_hashes(hth_sim_crypto(), &blob);
    hth_sim_crypto()->hash(hashes->data, hashes->size, &digest);
    hth_blob_unref(hashes);
    return digest;
}

#endif
