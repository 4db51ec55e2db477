/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/handout.h"

/* ---- peers ----------------------------------------------------------------------------------- */

static void want(void *arg)
{
    struct handout_peer *p = arg;

    p->wanted += p->want == NULL;
    if (p->want != NULL)
        p->want(p);
    else if (p->declines)
        hth_state_donor_decline(p->donor);
    else if (!p->silent)
        assert_ok(hth_state_donor_give(p->donor, p->step, &p->step, sizeof(p->step), p->values));
}

static uint64_t step_of(void *arg)
{
    const struct handout_peer *p = arg;

    return p->step;
}

void halt(struct hth_env *env, void *arg)
{
    struct handout_peer *p = arg;

    (void)env;
    hth_state_donor_free(p->donor);
    hth_roster_free(p->roster);
    hth_rpc_free(p->rpc);
    p->donor = NULL;
    p->roster = NULL;
    p->rpc = NULL;
}

struct hth_blob *make_values(struct hth_env *env, size_t size, uint32_t seed)
{
    struct hth_blob *b;

    assert_ok(hth_env_blob_new(env, size, NULL, &b));
    for (size_t i = 0; b->data != NULL && i < size; i++)
        b->data[i] = (uint8_t)(hth_mix64(seed * 1000003u + i));
    return b;
}

static void open_roster(struct handout_peer *p, uint32_t flags)
{
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;

    o.network = "net";
    o.schema = SCHEMA;
    o.flags = flags;
    if ((flags & HTH_ROSTER_CLIENT) == 0)
        o.addr = hth_node_addr(p->node, PORT);
    assert_ok(hth_roster_new(p->env, hth_node_dht(p->node), &o, &p->roster));
}

struct handout_peer *add(struct handout *f, uint64_t step, uint32_t seed, bool newcomer)
{
    struct handout_peer *p = &f->peer[f->count];
    struct hth_node_opts node = {.halt = halt, .arg = p};
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_state_donor_opts donor = {.schema = SCHEMA, .want = want, .step = step_of, .arg = p};
    struct hth_addr addr;
    char name[24];

    snprintf(name, sizeof(name), "p%u", f->count++);
    p->f = f;
    p->step = step;
    p->node = hth_world_node(f->world, name, &node);
    p->env = hth_node_env(p->node);
    addr = hth_node_addr(p->node, PORT);
    rpc.network = "net";
    rpc.listen = &addr;
    assert_ok(hth_rpc_new(p->env, &rpc, &p->rpc));
    if (newcomer)
        return p;
    p->values = make_values(p->env, BYTES, seed);
    assert_ok(hth_state_donor_new(p->env, p->rpc, &donor, &p->donor));
    return p;
}

struct handout_peer *add_client(struct handout *f, uint64_t step, uint32_t seed)
{
    struct handout_peer *p = add(f, step, seed, false);
    open_roster(p, HTH_ROSTER_CLIENT);
    return p;
}

struct handout_peer *add_in_need(struct handout *f)
{
    struct handout_peer *p = add(f, 0, 0, true);
    open_roster(p, HTH_ROSTER_BOOTSTRAPPING);
    return p;
}

struct hth_rpc_target target_of(const struct handout_peer *p)
{
    return (struct hth_rpc_target){.peer = p->env->self, .addr = hth_node_addr(p->node, PORT)};
}

void setup_world(struct handout *f, uint64_t seed, bool ghost)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;

    memset(f, 0, sizeof(*f));
    opts.ghost = ghost;
    opts.link.latency_us = 20 * MS;
    f->world = hth_world_new(seed, &opts);
}

void tear_down(struct handout *f)
{
    struct hth_open_counts open;

    hth_state_fetch_free(f->fetch);
    for (uint32_t i = 0; i < f->count; i++)
        halt(NULL, &f->peer[i]);
    hth_world_run_for(f->world, S); /* jobs end */
    hth_world_open(f->world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(f->world);
    for (uint32_t i = 0; i < f->count; i++)
        hth_blob_unref(f->peer[i].values);
    hth_blob_unref(f->values);
}

/* ---- fetching -------------------------------------------------------------------------------- */

static void on_done(void *arg, enum hth_err err, const struct hth_state_result *r)
{
    struct handout *f = arg;

    assert_false(f->done);
    f->done = true;
    f->err = err;
    if (err == HTH_OK) {
        f->result = *r;
        assert_true(r->meta_len <= sizeof(f->meta));
        memcpy(f->meta, r->meta, r->meta_len);
        f->values = hth_blob_ref(r->values);
    }
    hth_state_fetch_free(f->fetch);
    f->fetch = NULL;
}

struct hth_state_fetch_opts fetch_opts(struct handout *f)
{
    return (struct hth_state_fetch_opts){
        .schema = SCHEMA, .bytes = BYTES, .patience_us = 20 * S, .on_done = on_done, .arg = f};
}

void start(struct handout *f, struct hth_state_fetch_opts *o)
{
    if (f->newcomer == NULL)
        f->newcomer = add(f, 0, 0, true);
    f->done = false;
    hth_blob_unref(f->values);
    f->values = NULL;
    o->holders = f->holders;
    o->holders_count = 0;
    for (uint32_t i = 0; i < f->count; i++)
        if (f->peer[i].values != NULL)
            f->holders[o->holders_count++] = target_of(&f->peer[i]);
    assert_ok(hth_state_fetch_new(f->newcomer->env, f->newcomer->rpc, o, &f->fetch));
}

void start_slowly(struct handout *f, struct hth_state_fetch_opts *o)
{
    struct hth_device slow = HTH_DEVICE_INIT;

    start(f, o);
    slow.down_bytes_per_s = 400e3;
    hth_node_set_device(f->newcomer->node, &slow);
}

static bool is_done(void *arg)
{
    return ((struct handout *)arg)->done;
}

void finish(struct handout *f, int64_t within_us)
{
    assert_true(hth_world_run_until_true(f->world, is_done, f, within_us));
    assert_ok(f->err);
}

uint32_t parts_done(const struct handout *f)
{
    struct hth_state_progress p;

    hth_state_fetch_progress(f->fetch, &p);
    return p.parts_done;
}

bool part_way(void *arg)
{
    const struct handout *f = arg;

    return f->fetch == NULL || parts_done(f) >= 25;
}

void check_values(struct handout *f, const struct handout_peer *donor)
{
    assert_int_equal(f->values->size, BYTES);
    assert_memory_equal(f->values->data, donor->values->data, BYTES);
    assert_int_equal(f->result.step, donor->step);
    assert_int_equal(f->result.meta_len, sizeof(donor->step));
    assert_memory_equal(f->meta, &donor->step, sizeof(donor->step));
}
