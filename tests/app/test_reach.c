/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reach.c: a peer learns from others whether they reach it where it announces to be.
 */
#include "app/reach.h"
#include "dht/peers.h"
#include "rpc/dialback.h"
#include "sim/world.h"
#include "support/suite.h"

#define S     HTH_US_PER_S
#define PORT  4000
#define PEERS 5

struct member {
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_census *census;
    struct hth_announcer *ann;
    struct hth_reacher *reacher;
    enum hth_reach reach;
    struct hth_addr from;
    uint32_t changes;
};

static struct hth_world *world;
static struct member m[PEERS];

static void on_change(void *arg, enum hth_reach reach, const struct hth_addr *from)
{
    struct member *x = arg;
    x->reach = reach;
    x->from = *from;
    x->changes++;
}

/* `announce` NULL: its own address. */
static void join(struct member *x, const char *name, const struct hth_addr *announce)
{
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_announcer_opts ann = HTH_ANNOUNCER_OPTS_INIT;
    struct hth_reach_opts opts = {.on_change = on_change, .arg = x};
    *x = (struct member){.node = hth_world_node(world, name, NULL)};
    struct hth_addr addr = hth_node_addr(x->node, PORT);
    x->env = hth_node_env(x->node);
    rpc.network = "net";
    rpc.listen = &addr;
    assert_ok(hth_rpc_new(x->env, &rpc, &x->rpc));
    assert_ok(hth_census_new(x->env, hth_node_dht(x->node), "net", &x->census));
    ann.network = "net";
    ann.role = HTH_ROLE_HOST;
    ann.info.addr_count = 1;
    ann.info.addr[0] = announce != NULL ? *announce : addr;
    assert_ok(hth_announcer_new(x->env, hth_node_dht(x->node), &ann, &x->ann));
    opts.rpc = x->rpc;
    opts.census = x->census;
    opts.announce = ann.info.addr[0];
    x->reacher = hth_reacher_new(x->env, &opts);
}

static void leave(struct member *x)
{
    hth_reacher_free(x->reacher);
    hth_announcer_free(x->ann);
    hth_census_free(x->census);
    hth_rpc_free(x->rpc);
}

static int set_up(void **state)
{
    (void)state;
    memset(m, 0, sizeof(m));
    world = hth_world_new(11, NULL);
    return 0;
}

static int tear_down(void **state)
{
    struct hth_open_counts open;
    (void)state;
    for (size_t i = 0; i < PEERS; i++)
        if (m[i].node != NULL)
            leave(&m[i]);
    hth_world_open(world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(world);
    return 0;
}

static bool all_known(void *arg)
{
    for (size_t i = 0; i < *(size_t *)arg; i++)
        if (m[i].reach == HTH_REACH_UNKNOWN)
            return false;
    return true;
}

TEST_WITH(nobody_to_ask_leaves_it_unknown, set_up, tear_down)
{
    (void)state;
    join(&m[0], "m0", NULL);
    hth_world_run_for(world, 300 * S);
    assert_int_equal(m[0].changes, 0);
}

TEST_WITH(reachable_peers_learn_that_they_are, set_up, tear_down)
{
    size_t count = 3;
    (void)state;
    for (size_t i = 0; i < count; i++)
        join(&m[i], "m", NULL);
    hth_world_run_until_true(world, all_known, &count, 60 * S);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(m[i].reach, HTH_REACH_YES);
}

/* One of four announces an address that leads nowhere: it learns that, and where it comes from; and
 * nothing changes for the others. */
TEST_WITH(a_wrong_address_is_found_out, set_up, tear_down)
{
    static const char *const wrong[] = {"10.99.0.1:4000", "203.0.113.9:4000", "127.0.0.1:4000"};
    (void)state;
    for (size_t w = 0; w < HTH_ARRAY_LEN(wrong); w++) {
        struct hth_addr nowhere;
        size_t count = 4;
        assert_ok(hth_addr_parse(wrong[w], &nowhere));
        if (w > 0)
            assert_int_equal(tear_down(state) + set_up(state), 0);
        for (size_t i = 0; i < count; i++)
            join(&m[i], "m", i == 0 ? &nowhere : NULL);
        hth_world_run_until_true(world, all_known, &count, 120 * S);
        assert_int_equal(m[0].reach, HTH_REACH_NO);
        struct hth_addr mine = hth_node_addr(m[0].node, 0);
        assert_true(hth_addr_same_ip(&m[0].from, &mine));
        for (size_t i = 1; i < count; i++)
            assert_int_equal(m[i].reach, HTH_REACH_YES);
    }
}

/* A second listener of the peer stands for a router that forwards the announced port. */
TEST_WITH(verdict_changes_when_the_port_opens, set_up, tear_down)
{
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_rpc *second;
    size_t count = 3;
    (void)state;
    join(&m[1], "m1", NULL);
    join(&m[2], "m2", NULL);
    struct hth_node *probe = hth_world_node(world, "probe", NULL);
    struct hth_addr later = hth_node_addr(probe, PORT + 1);
    /* Nodes are numbered in order: the next one has the address after this one's. */
    later.ip[3]++;
    join(&m[0], "m0", &later);
    struct hth_addr mine = hth_node_addr(m[0].node, PORT + 1);
    assert_true(hth_addr_eq(&mine, &later));
    hth_world_run_until_true(world, all_known, &count, 120 * S);
    assert_int_equal(m[0].reach, HTH_REACH_NO);
    rpc.network = "net";
    rpc.listen = &later;
    assert_ok(hth_rpc_new(m[0].env, &rpc, &second));
    hth_world_run_for(world, 120 * S);
    assert_int_equal(m[0].reach, HTH_REACH_YES);
    assert_int_equal(m[0].changes, 2);
    hth_rpc_free(second);
}

/* A peer on the same machine dials it whatever its router does: its yes does not count, its no
 * does. */
TEST_WITH(a_peer_on_this_machine_proves_nothing, set_up, tear_down)
{
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_dialback *answers;
    struct hth_rpc *second;
    (void)state;
    join(&m[0], "m0", NULL);
    struct hth_addr near = hth_node_addr(m[0].node, PORT + 1), none = hth_node_addr(m[0].node, 9);
    struct hth_reach_opts opts = {.rpc = m[0].rpc,
                                  .census = m[0].census,
                                  .through = &near,
                                  .through_count = 1,
                                  .on_change = on_change,
                                  .arg = &m[0]};
    rpc.network = "net";
    rpc.listen = &near;
    assert_ok(hth_rpc_new(m[0].env, &rpc, &second));
    answers = hth_dialback_new(m[0].env, second, NULL, NULL);
    for (int good = 1; good >= 0; good--) {
        hth_reacher_free(m[0].reacher);
        opts.announce = good ? hth_node_addr(m[0].node, PORT) : none;
        m[0].reacher = hth_reacher_new(m[0].env, &opts);
        hth_world_run_for(world, 60 * S);
        assert_int_equal(m[0].reach, good ? HTH_REACH_UNKNOWN : HTH_REACH_NO);
    }
    hth_dialback_free(answers);
    hth_rpc_free(second);
}

/* Four keys say that they are at other ports of a machine that is none of theirs. */
TEST_WITH(beacons_aim_few_dials_at_a_third_party, set_up, tear_down)
{
    struct hth_node *third = hth_world_node(world, "third", NULL);
    struct hth_rpc_stats stats;
    (void)state;
    for (size_t i = 1; i < PEERS; i++) {
        struct hth_addr claimed = hth_node_addr(third, (uint16_t)(PORT + i));
        join(&m[i], "liar", &claimed);
        hth_reacher_free(m[i].reacher);
        m[i].reacher = NULL;
    }
    join(&m[0], "m0", NULL);
    hth_world_run_for(world, 62 * S); /* the first round is after two */
    hth_rpc_stats(m[0].rpc, &stats);
    assert_in_range(stats.dials, 1, 3);
}
