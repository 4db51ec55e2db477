/* SPDX-License-Identifier: Apache-2.0 */
/* Claimants are asked once, and what they claim makes no trainer dial a third party often. */
#include "core/mem.h"
#include "dht/directory.h"
#include "rpc/rpc.h"
#include "sim/world.h"
#include "support/suite.h"
#include "trainer/transport_prove.h"

#define S    HTH_US_PER_S
#define KEYS 300
#define PORT 7000

/* Dials of that endpoint. */
static uint64_t dials(struct hth_world *world, const struct hth_rpc *rpc, int64_t us)
{
    struct hth_rpc_stats before, after;

    hth_rpc_stats(rpc, &before);
    hth_world_run_for(world, us);
    hth_rpc_stats(rpc, &after);
    return after.dials - before.dials;
}

static void look(void *prover)
{
    hth_prover_look(prover);
}

static void claim(struct hth_directory *dir, uint32_t layer, const struct hth_peer_id *id,
                  const struct hth_addr *addr)
{
    const struct hth_host_info info = {.addr_count = 1, .addr = {*addr}};
    uint32_t e = 0;

    assert_ok(
        hth_directory_load(dir, layer, id, &info, &(struct hth_expert_list){&e, 1}, 100000 * S));
}

TEST(third_parties_are_dialled_three_times_a_minute)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_world *world = hth_world_new(5, &w);
    struct hth_node *trainer = hth_world_node(world, "trainer", NULL);
    struct hth_node *host = hth_world_node(world, "host", NULL);
    struct hth_node *third = hth_world_node(world, "third", NULL);
    struct hth_env *env = hth_node_env(trainer);
    struct hth_addr victim = hth_node_addr(third, 80), honest = hth_node_addr(host, PORT);
    struct hth_directory_opts opts = HTH_DIRECTORY_OPTS_INIT;
    struct hth_rpc_opts of_host = HTH_RPC_OPTS_INIT, of_trainer = HTH_RPC_OPTS_INIT;
    const struct hth_layer_shape shape = {.kind = "ffn", .d = 8, .block_rows = 1};
    struct hth_directory *dir;
    struct hth_rpc *rpc, *server;
    struct hth_rpc_stats all;
    struct hth_prover *prover;
    struct hth_grid grid;
    uint32_t layer;

    opts.network = of_host.network = of_trainer.network = "net";
    opts.prove = true;
    of_host.listen = &honest;
    assert_ok(hth_rpc_new(hth_node_env(host), &of_host, &server));
    assert_ok(hth_rpc_new(env, &of_trainer, &rpc));
    assert_ok(hth_directory_new(env, hth_node_dht(trainer), &opts, &dir));
    assert_ok(hth_grid_parse("ffn0.4.4", 8, &grid));
    assert_ok(hth_directory_open_layer(dir, &grid, &shape, &layer));
    for (uint32_t i = 0; i < KEYS; i++)
        claim(dir, layer, &(struct hth_peer_id){{9, (uint8_t)i, (uint8_t)(i >> 8)}}, &victim);
    claim(dir, layer, &hth_node_env(host)->self, &honest);
    claim(dir, layer, &(struct hth_peer_id){{8}}, &honest);
    prover = hth_prover_new(env, rpc, dir);
    hth_directory_on_change(dir, look, prover);
    assert_int_equal(dials(world, rpc, S), 2);                       /* both addresses, once */
    assert_int_equal(hth_directory_view(dir, layer)->live_count, 1); /* the honest one */
    assert_in_range(dials(world, rpc, 59 * S), 1, 2);
    for (uint32_t minute = 0; minute < 30; minute++)
        assert_in_range(dials(world, rpc, 60 * S), 0, 3);
    assert_in_range(dials(world, rpc, 3600 * S), 4, 8);
    /* All but the honest host's claim, and the first one of the victim's address. */
    hth_rpc_stats(rpc, &all);
    assert_int_equal(hth_prover_refused(prover), all.dials - 2);
    hth_prover_free(prover);
    hth_directory_free(dir);
    hth_rpc_free(rpc);
    hth_rpc_free(server);
    hth_world_free(world);
}
