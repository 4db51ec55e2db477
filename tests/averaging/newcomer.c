/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/newcomer.h"

#include "support/test.h"

#define STATE_STEP 3
#define LINE_BYTES 2.5e6

static const char meta[] = "counters";

static void on_want(void *arg)
{
    struct pit_peer *p = arg;
    struct hth_blob *state = p->state;

    assert_ok(hth_state_donor_give(p->donor, STATE_STEP, meta, sizeof(meta), state));
}

static uint64_t step_of(void *arg)
{
    (void)arg;
    return STATE_STEP;
}

static void hand_out(struct pit_peer *p, struct hth_blob *state)
{
    struct hth_state_donor_opts o = HTH_STATE_DONOR_OPTS_INIT;

    o.network = "run";
    o.schema = p->pit->roster.schema;
    o.addr = p->addr;
    o.want = on_want;
    o.step = step_of;
    o.arg = p;
    p->state = state;
    assert_ok(hth_state_donor_new(p->env, p->rpc, hth_node_dht(p->node), &o, &p->donor));
}

static void halt(struct hth_env *env, void *arg)
{
    struct newcomer *n = arg;

    (void)env;
    hth_state_fetch_free(n->fetch);
    hth_roster_free(n->roster);
    hth_rpc_free(n->rpc);
    n->fetch = NULL;
    n->roster = NULL;
    n->rpc = NULL;
}

void newcomer_comes(struct newcomer *n, struct pit *pit)
{
    struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    struct hth_device device = HTH_DEVICE_INIT;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_roster_opts roster = pit->roster;
    struct hth_addr addr;

    memset(n, 0, sizeof(*n));
    n->pit = pit;
    device.down_bytes_per_s = LINE_BYTES;
    node.device = &device;
    node.halt = halt;
    node.arg = n;
    n->node = hth_world_node(pit->world, "newcomer", &node);
    addr = hth_node_addr(n->node, PIT_PORT);
    rpc.network = roster.network = "run";
    rpc.listen = &addr;
    roster.addr = addr;
    roster.flags |= HTH_ROSTER_BOOTSTRAPPING;
    roster.shape = pit->shape;
    assert_ok(hth_rpc_new(hth_node_env(n->node), &rpc, &n->rpc));
    assert_ok(hth_roster_new(hth_node_env(n->node), hth_node_dht(n->node), &roster, &n->roster));
    assert_ok(hth_env_blob_new(hth_node_env(n->node), NEWCOMER_BYTES, NULL, &n->state));
    for (size_t i = 0; i < NEWCOMER_BYTES; i++)
        n->state->data[i] = (uint8_t)hth_mix64(i);
    for (uint32_t i = 0; i < pit->peers; i++)
        hand_out(&pit->peer[i], n->state);
}

static void on_done(void *arg, const struct hth_state_result *r)
{
    struct newcomer *n = arg;

    assert_false(n->done);
    assert_int_equal(r->step, STATE_STEP);
    assert_int_equal(r->meta_len, sizeof(meta));
    assert_memory_equal(r->meta, meta, sizeof(meta));
    assert_int_equal(r->values->size, NEWCOMER_BYTES);
    assert_memory_equal(r->values->data, n->state->data, NEWCOMER_BYTES);
    n->done = true;
    n->done_us = hth_world_now_us(n->pit->world);
    n->result = *r;
    n->result.values = NULL;
    n->result.meta = NULL;
    hth_state_fetch_free(n->fetch);
    n->fetch = NULL;
}

static bool some_came(void *arg)
{
    struct newcomer *n = arg;
    struct hth_state_progress at;

    if (n->done)
        return true;
    hth_state_fetch_progress(n->fetch, &at);
    return at.parts > 0 && at.parts_done >= at.parts / 16;
}

void newcomer_asks(struct newcomer *n, uint32_t donors)
{
    struct hth_state_fetch_opts o = HTH_STATE_FETCH_OPTS_INIT;

    o.network = "run";
    o.schema = n->pit->roster.schema;
    o.bytes = NEWCOMER_BYTES;
    o.donors = donors;
    o.on_done = on_done;
    o.arg = n;
    assert_ok(hth_state_fetch_new(hth_node_env(n->node), n->rpc, hth_node_dht(n->node), n->roster,
                                  &o, &n->fetch));
    assert_true(hth_world_run_until_true(n->pit->world, some_came, n, 5 * HTH_US_PER_S));
    assert_false(n->done);
}

bool newcomer_is_fed_by(const struct newcomer *n, const struct pit_peer *peer)
{
    struct hth_state_donor_stats s;

    hth_state_donor_stats(peer->donor, &s);
    return !n->done && s.parts > 0;
}

static bool is_done(void *arg)
{
    return ((struct newcomer *)arg)->done;
}

bool newcomer_run(struct newcomer *n, int64_t us)
{
    return hth_world_run_until_true(n->pit->world, is_done, n, us);
}

void newcomer_goes(struct newcomer *n)
{
    hth_node_crash(n->node, HTH_CRASH_RESET);
    hth_blob_unref(n->state);
}
