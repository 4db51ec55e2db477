/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The averager of a peer as a whole: what its parts are told, and that nothing stays of a bad one.
 * That it averages, and what a lost connection does, is in test_moshpit.c.
 */
#include "averaging/peer.h"

#include "support/test.h"

#include "sim/world.h"

#define PORT 4000

struct fixture {
    struct hth_world *world;
    struct hth_node *node;
    struct hth_rpc *rpc;
    struct hth_avg_peer peer;
    struct hth_avg_peer_opts opts;
    uint32_t changes;
};

static void on_change(void *arg)
{
    ((struct fixture *)arg)->changes++;
}

static void add_node(struct fixture *f, const char *name)
{
    const struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_addr addr;

    f->node = hth_world_node(f->world, name, &node);
    addr = hth_node_addr(f->node, PORT);
    rpc.network = "run";
    rpc.listen = &addr;
    rpc.on_peer_lost = hth_avg_peer_lost;
    rpc.arg = &f->peer;
    assert_ok(hth_rpc_new(hth_node_env(f->node), &rpc, &f->rpc));
    f->opts = (struct hth_avg_peer_opts)HTH_AVG_PEER_OPTS_INIT;
    f->opts.network = "run";
    f->opts.addr = addr;
    f->opts.on_change = on_change;
    f->opts.arg = f;
}

static enum hth_err open_peer(struct fixture *f)
{
    return hth_avg_peer_open(hth_node_env(f->node), f->rpc, hth_node_dht(f->node), &f->opts,
                             &f->peer);
}

static void close_all(struct fixture *f, size_t count)
{
    struct hth_open_counts open;

    for (size_t i = 0; i < count; i++) {
        hth_avg_peer_close(&f[i].peer);
        hth_avg_peer_close(&f[i].peer);
        hth_rpc_free(f[i].rpc);
    }
    hth_world_run_for(f->world, HTH_US_PER_S);
    hth_world_leaks(f->world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(f->world);
}

/* Whichever part refuses its options: the earlier ones are gone again, and the peer can be opened
 * with better ones. */
static void test_bad_options(void **state)
{
    const struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct fixture f = {.world = hth_world_new(1, &world)};
    struct hth_peer_id stranger = {{9}};

    (void)state;
    add_node(&f, "a");
    for (int part = 0; part < 3; part++) {
        const struct hth_avg_peer_opts good = f.opts;

        if (part == 0)
            f.opts.network = "";
        else if (part == 1)
            f.opts.reducer.silence_max_us = 1;
        else
            f.opts.moshpit.share_max = 0.5;
        assert_err(HTH_E_CONFIG, open_peer(&f));
        assert_null(f.peer.roster);
        assert_null(f.peer.reducer);
        assert_null(f.peer.averager.ops);
        hth_avg_peer_lost(&f.peer, &stranger, HTH_E_TIMEOUT);
        f.opts = good;
    }
    assert_ok(open_peer(&f));
    close_all(&f, 1);
}

/* What a peer is stands once in its options; its roster, and through it the others', has it. */
static void test_said_once(void **state)
{
    static const uint32_t flag[] = {[HTH_AVG_TRAINER] = 0,
                                    [HTH_AVG_HELPER] = HTH_ROSTER_HELPER,
                                    [HTH_AVG_CLIENT] = HTH_ROSTER_CLIENT};
    const struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct fixture f[3] = {{.world = hth_world_new(2, &world)}};

    (void)state;
    for (int i = 0; i < 3; i++) {
        char name[2] = {(char)('a' + i), '\0'};

        f[i].world = f->world;
        add_node(&f[i], name);
        f[i].opts.mode = (enum hth_avg_mode)i;
        f[i].opts.bandwidth = i == HTH_AVG_CLIENT ? 0 : 5e6 * (i + 1);
        f[i].opts.roster.flags = HTH_ROSTER_BOOTSTRAPPING;
        assert_ok(open_peer(&f[i]));
    }
    hth_world_run_for(f->world, 5 * HTH_US_PER_S);
    for (int i = 0; i < 3; i++) {
        const struct hth_roster_peer *seen =
            hth_roster_find(f[(i + 1) % 3].peer.roster, &hth_node_env(f[i].node)->self);

        assert_non_null(seen);
        assert_int_equal(seen->note.flags, HTH_ROSTER_BOOTSTRAPPING | flag[i]);
        assert_true(hth_addr_eq(&seen->note.addr, &f[i].opts.addr));
        assert_true(f[i].changes >= 2); /* two came */
    }
    close_all(f, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_said_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
