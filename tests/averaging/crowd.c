/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/crowd.h"

#include "core/mem.h"
#include "support/test.h"

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct mate *m = arg;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_match_opts match = m->crowd->match;

    m->env = env;
    m->addr = hth_node_addr(m->node, CROWD_PORT);
    rpc.network = "run";
    rpc.listen = &m->addr;
    assert_ok(hth_rpc_new(env, &rpc, &m->rpc));
    match.network = "run";
    match.addr = m->addr;
    assert_ok(hth_match_new(env, m->rpc, dht, &match, &m->match));
}

static void halt(struct hth_env *env, void *arg)
{
    struct mate *m = arg;

    (void)env;
    hth_match_free(m->match);
    hth_rpc_free(m->rpc);
    m->look = NULL;
    m->match = NULL;
    m->rpc = NULL;
}

void crowd_start(struct crowd *c, uint64_t seed, uint32_t count, const struct hth_world_opts *opts)
{
    memset(c, 0, sizeof(*c));
    c->world = hth_world_new(seed, opts);
    c->count = count;
    c->match = (struct hth_match_opts)HTH_MATCH_OPTS_INIT;
    c->look.line.run = 7;
    c->look.line.generation = 1;
    c->look.line.shape = (struct hth_avg_shape){.dims = 1, .size = {count}};
    c->look.schema = 99;
    c->look.weight = 1;
    c->look.group_min = 2;
    c->look.group_full = count;
    c->look.group_max = count;
    c->look.window_us = 2 * HTH_US_PER_S;
    for (uint32_t i = 0; i < count; i++) {
        struct mate *m = &c->mate[i];
        struct hth_node_opts o = HTH_NODE_OPTS_INIT;
        char name[16];
        snprintf(name, sizeof(name), "m%u", i);
        o.halt = halt;
        o.arg = m;
        m->crowd = c;
        m->node = hth_world_node(c->world, name, &o);
        boot(hth_node_env(m->node), hth_node_dht(m->node), m);
    }
    hth_world_run_for(c->world, 10 * HTH_US_PER_MS);
}

void crowd_stop(struct crowd *c)
{
    struct hth_open_counts leaks;

    for (uint32_t i = 0; i < c->count; i++)
        if (hth_node_is_up(c->mate[i].node))
            hth_node_crash(c->mate[i].node, HTH_CRASH_RESET);
    hth_world_leaks(c->world, &leaks);
    assert_int_equal(hth_open_total(&leaks), 0);
    hth_world_free(c->world);
    for (uint32_t i = 0; i < c->count; i++)
        hth_free(c->mate[i].group);
}

static bool same_line(const struct mate *a, const struct mate *b)
{
    struct hth_avg_line x = a->crowd->look.line, y = x;

    x.cell = a->cell;
    y.cell = b->cell;
    return hth_avg_line_eq(&x, &y);
}

static uint32_t due(void *arg, struct hth_match_due *out, uint32_t max)
{
    struct mate *me = arg;
    struct crowd *c = me->crowd;
    uint32_t n = 0;

    if (!c->due_known)
        return UINT32_MAX;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct mate *m = &c->mate[i];
        if (m == me || m->absent || !same_line(m, me) || n == max)
            continue;
        out[n++] = (struct hth_match_due){.id = m->env->self,
                                          .until_us = hth_now_us(me->env) + c->look.window_us};
    }
    return n;
}

static void on_done(void *arg, const struct hth_look_result *r)
{
    struct mate *m = arg;

    m->look = NULL;
    m->ended++;
    m->ended_us = hth_world_now_us(m->crowd->world);
    m->result = *r;
    hth_free(m->group);
    m->group = r->group;
    assert_true((r->err == HTH_OK) == (r->group != NULL));
    assert_true((r->err == HTH_OK) == (r->reason == HTH_AVG_OK));
}

void crowd_look(struct mate *m)
{
    struct hth_look_opts o = m->crowd->look;

    o.line.cell = m->cell;
    o.done = on_done;
    o.due = due;
    o.arg = m;
    assert_ok(hth_look_new(m->match, &o, &m->look));
}

void crowd_look_all(struct crowd *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (hth_node_is_up(c->mate[i].node))
            crowd_look(&c->mate[i]);
}

static bool all_ended(void *arg)
{
    struct crowd *c = arg;

    for (uint32_t i = 0; i < c->count; i++)
        if (c->mate[i].look != NULL)
            return false;
    return true;
}

bool crowd_run(struct crowd *c, int64_t us)
{
    return hth_world_run_until_true(c->world, all_ended, c, us);
}

static const struct mate *mate_of(const struct crowd *c, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (hth_peer_id_eq(&c->mate[i].env->self, id))
            return &c->mate[i];
    return NULL;
}

bool crowd_agrees(const struct crowd *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        const struct hth_avg_group *g = c->mate[i].group;
        if (g == NULL || !hth_node_is_up(c->mate[i].node))
            continue;
        if (!hth_peer_id_eq(&g->member[g->self].id, &c->mate[i].env->self))
            return false;
        for (uint32_t j = 0; j < g->count; j++) {
            const struct mate *m = mate_of(c, &g->member[j].id);
            if (m == NULL)
                return false;
            if (!hth_node_is_up(m->node))
                continue;
            if (m->group == NULL || m->group->count != g->count || m->group->self != j ||
                memcmp(&m->group->id, &g->id, sizeof(g->id)) != 0)
                return false;
        }
    }
    return true;
}

/* Until a note that is put is seen by who watches (sim/params.h). */
double crowd_dht_rtts(uint32_t n)
{
    return 1 + log2(n) / 2;
}

/* Round trips that the slowest of all needs for a group of all. */
double crowd_round(struct crowd *c, uint64_t round)
{
    int64_t start = hth_world_now_us(c->world), longest = 0;

    c->look.line.round = round;
    crowd_look_all(c);
    assert_true(crowd_run(c, 3 * HTH_US_PER_S));
    assert_true(crowd_agrees(c));
    for (uint32_t i = 0; i < c->count; i++) {
        assert_int_equal(c->mate[i].result.err, HTH_OK);
        assert_int_equal(c->mate[i].group->count, c->count);
        longest = HTH_MAX(longest, c->mate[i].ended_us - start);
    }
    return (double)longest / CROWD_RTT_US;
}
