/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/roll_line.h"

#include "core/mem.h"

/* ---- the owner's side --------------------------------------------------------------------- */

static void say(struct mate *m)
{
    int64_t left = m->air > 0 ? m->lands_us - hth_now_us(m->env) : 0;
    struct hth_brings brings = {m->samples, m->air, GRAIN, left,
                                m->rests ? HTH_BRINGS_NO_MORE : m->measured_us};
    hth_roll_bring(m->roll, &brings);
}

/* One micro-batch at a time, as long as the quota allows. */
void line_gather(void *arg)
{
    struct mate *m = arg;
    if (m->mute)
        return;
    say(m);
    if (!m->rests && m->air == 0 && m->samples + GRAIN <= hth_roll_quota(m->roll)) {
        m->air = GRAIN;
        double part = 2 * hth_rng_unit(&m->env->rng) - 1;
        int64_t takes = m->each_us + (int64_t)(part * m->line->uneven * (double)m->each_us);
        m->lands_us = hth_now_us(m->env) + (m->lies ? MS : m->each_us);
        if (!m->lies)
            hth_timer_set(m->env, m->batch, takes);
    }
    say(m);
}

static void on_batch(void *arg)
{
    struct mate *m = arg;
    m->samples += m->air;
    m->air = 0;
    m->measured_us = m->each_us;
    line_gather(m);
}

static struct mate *mate_of(struct line *l, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (hth_peer_id_eq(&l->mate[i].env->self, id))
            return &l->mate[i];
    return NULL;
}

static struct round *round_of(struct line *l, const struct hth_roll_group *group)
{
    for (uint32_t i = l->rounds; i-- > 0;)
        if (memcmp(&l->round[i].id, &group->id, sizeof(group->id)) == 0)
            return &l->round[i];
    assert_true(l->rounds < ROUNDS_MAX);
    struct round *r = &l->round[l->rounds++];
    *r = (struct round){
        .id = group->id, .count = group->count, .began_us = hth_world_now_us(l->world)};
    for (uint32_t i = 0; i < group->count; i++)
        r->member[i] = group->peer[i].id;
    return r;
}

static void on_dialled(void *arg, const struct hth_rpc_result *result)
{
}

/* All members of a round exchange parts: they are connected. */
static void dial(struct mate *m, const struct hth_roll_peer *peer)
{
    struct hth_rpc_call_opts opts = {.method = HTH_ROLL_METHOD_LINKS};
    struct hth_rpc_target target = {peer->id, peer->addr};
    struct hth_rpc_peer_info info;
    if (!hth_peer_id_eq(&peer->id, &m->env->self) &&
        (hth_rpc_peer_info(m->rpc, &peer->id, &info) != HTH_OK || !info.connected))
        assert_ok(hth_rpc_call(m->rpc, &target, &opts, on_dialled, NULL, NULL));
}

static void start_average(void *arg, const struct hth_roll_group *group)
{
    struct mate *m = arg;
    m->round = round_of(m->line, group);
    m->rounds++;
    assert_int_equal(m->round->count, group->count);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < group->count; i++) {
        assert_true(hth_peer_id_eq(&m->round->member[i], &group->peer[i].id));
        sum += group->peer[i].samples;
        mate_of(m->line, &group->peer[i].id)->listed = true;
        mate_of(m->line, &group->peer[i].id)->reduces = !group->peer[i].rests;
        dial(m, &group->peer[i]);
    }
    assert_true(sum >= m->line->target);
    m->line->over_max = HTH_MAX(m->line->over_max, sum - m->line->target);
    m->line->lost += m->air > 0;
    m->air = 0;
    hth_timer_cancel(m->env, m->batch);
    assert_true(hth_peer_id_eq(&group->peer[group->self].id, &m->env->self));
    if (!m->round->closed && !m->deserts)
        m->round->came[group->self] = true;
    hth_timer_set(m->env, m->average, AVERAGE_US);
}

static bool apart(const struct line *l, uint32_t a, uint32_t b)
{
    return l->side[a] != l->side[b] || !hth_node_is_up(l->mate[a].node) ||
           !hth_node_is_up(l->mate[b].node);
}

/* A round ends once all that can come have, or after ROUND_US; nobody gets it from across a cut. */
static void on_average(void *arg)
{
    struct mate *m = arg;
    struct round *r = m->round;
    bool all = true, late = hth_world_now_us(m->line->world) - r->began_us >= ROUND_US;
    uint16_t marks[HTH_ROLL_LINE_MAX] = {0};
    struct hth_hash mean;
    for (uint32_t i = 0; i < r->count; i++) {
        struct mate *other = mate_of(m->line, &r->member[i]);
        if (r->came[i] && apart(m->line, m->index, other->index)) {
            hth_roll_averaged(m->roll, HTH_E_CLOSED, NULL, NULL); /* a reducer is lost */
            return;
        }
        all &= r->came[i] || other->by_hand;
    }
    if (!r->closed && !all && !late) {
        hth_timer_set(m->env, m->average, AVERAGE_US);
        return;
    }
    r->closed = true;
    for (uint32_t i = 0; i < r->count; i++)
        marks[i] = r->came[i] ? HTH_ROLL_IN : 0;
    if (m->refuses) {
        m->refuses = false;
        hth_roll_averaged(m->roll, HTH_E_NORM, NULL, NULL);
        return;
    }
    m->env->crypto->hash(r, offsetof(struct round, began_us), &mean);
    hth_roll_averaged(m->roll, HTH_OK, marks, &mean);
}

static void start_fetch(void *arg, const struct hth_hash *head, const struct hth_holders *holders)
{
    struct mate *m = arg;
    assert_true(holders->count > 0);
    m->fetching = *head;
    hth_timer_set(m->env, m->fetch, FETCH_US);
}

/* Whether somebody that it reaches holds that head. */
static void on_fetch(void *arg)
{
    struct mate *m = arg;
    bool found = false;
    for (uint32_t i = 0; i < m->line->n; i++) {
        const struct mate *other = &m->line->mate[i];
        if (i != m->index && !apart(m->line, m->index, i))
            for (uint64_t s = 0; s <= other->step; s++)
                found |= memcmp(&other->head[s], &m->fetching, sizeof(m->fetching)) == 0;
    }
    m->line->astray += !found;
    hth_roll_fetched(m->roll, found ? hth_chain_find(m->chain, &m->fetching) : HTH_LINK_NONE);
}

static void on_tip(void *arg, uint32_t link, bool used)
{
    struct mate *m = arg;
    m->step = hth_chain_at(m->chain, link)->step;
    assert_true(m->step < STEPS_MAX);
    m->head[m->step] = *hth_chain_head(m->chain, link);
    m->tip_us = hth_world_now_us(m->line->world);
    if (used)
        m->samples = 0;
    line_gather(m);
}

/* ---- the world ------------------------------------------------------------------------------- */

static void on_lost(void *arg, const struct hth_peer_id *peer, enum hth_err err)
{
    struct mate *m = arg;
    if (err != HTH_OK && m->roll != NULL)
        hth_roll_peer_lost(m->roll, peer);
}

struct hth_chain *line_chain(const struct line *l, const struct hth_crypto *crypto, uint32_t *at)
{
    struct hth_chain_opts opts = {.crypto = crypto,
                                  .window = 16,
                                  .eventual = l->eventual,
                                  .links_max = l->links_max,
                                  .members_max = l->members_max};
    struct hth_chain *chain = hth_chain_new(&opts);
    struct hth_roll roll[MEMBERS_MAX];
    struct hth_chain_link genesis = {.prev = HTH_LINK_NONE,
                                     .protocol = 1,
                                     .kind = HTH_LINK_GENESIS,
                                     .roll = roll,
                                     .count = l->founders};
    for (uint32_t i = 0; i < l->founders; i++) {
        roll[i] = (struct hth_roll){.marks = HTH_ROLL_IN};
        struct hth_peer_id id = hth_node_env(l->mate[i].node)->self;
        assert_ok(hth_chain_member(chain, &id, 1, &roll[i].member));
    }
    assert_ok(hth_chain_add(chain, &genesis, at));
    return chain;
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct mate *m = arg;
    struct hth_roll_opts opts = HTH_ROLL_OPTS_INIT;
    static const struct hth_roll_ops ops = {start_average, start_fetch, on_tip, line_gather, NULL};
    uint32_t genesis;
    m->env = env;
    m->rpc = make_rpc(env, m->node, on_lost, m);
    if (m->by_hand)
        return;
    m->chain = line_chain(m->line, env->crypto, &genesis);
    m->batch = hth_timer_new(env, on_batch, m);
    m->average = hth_timer_new(env, on_average, m);
    m->fetch = hth_timer_new(env, on_fetch, m);
    opts.addr = hth_node_addr(m->node, PORT);
    opts.life = ++m->life;
    opts.target = m->line->target;
    opts.last_protocol = HTH_MAX(m->speaks, opts.last_protocol);
    assert_ok(hth_roll_new(env, m->rpc, m->chain, &opts, &ops, m, &m->roll));
    for (uint32_t i = 0; i < m->line->n; i++) {
        struct hth_roll_peer peer = peer_of(m->line->mate[i].node);
        hth_roll_meet(m->roll, &peer);
    }
    m->step = 0;
    m->samples = m->air = 0;
    if (m->life > 1 || m->index >= m->line->founders) { /* a newcomer, who heard of a head */
        const struct mate *other = &m->line->mate[(m->index + 1) % m->line->founders];
        struct hth_roll_peer holder = peer_of(other->node);
        hth_roll_hear(m->roll, &other->head[other->step], &holder);
        return;
    }
    m->head[0] = *hth_chain_head(m->chain, genesis);
    hth_roll_hold(m->roll, genesis);
    line_gather(m);
}

static void halt(struct hth_env *env, void *arg)
{
    struct mate *m = arg;
    hth_roll_free(m->roll);
    hth_timer_free(env, m->batch);
    hth_timer_free(env, m->average);
    hth_timer_free(env, m->fetch);
    hth_chain_free(m->chain);
    hth_rpc_free(m->rpc);
    m->roll = NULL;
    m->rpc = NULL;
    m->chain = NULL;
    m->batch = m->average = m->fetch = NULL;
}

struct mate *line_add(struct line *l)
{
    struct hth_node_opts o = HTH_NODE_OPTS_INIT;
    char name[16];
    uint32_t i = l->n++;
    struct mate *m = &l->mate[i];
    snprintf(name, sizeof(name), "m%u", i);
    o.boot = boot;
    o.halt = halt;
    o.arg = m;
    m->line = l;
    m->index = i;
    if (m->each_us == 0)
        m->each_us = 30 * MS;
    m->node = hth_world_node(l->world, name, &o);
    m->env = hth_node_env(m->node);
    return m;
}

struct line *line_new(uint64_t seed, const struct hth_world_opts *opts, uint32_t founders)
{
    struct line *l = hth_new(struct line);
    l->world = hth_world_new(seed, opts);
    l->founders = founders;
    l->target = GRAIN * HTH_MAX(founders - 1, 1u);
    l->links_max = 256;
    l->members_max = 4 * MEMBERS_MAX;
    return l;
}

struct line *line_start(uint64_t seed, uint32_t n, bool eventual)
{
    struct line *l = line_new(seed, NULL, n);
    l->eventual = eventual;
    for (uint32_t i = 0; i < n; i++)
        line_add(l);
    return l;
}

void line_stop(struct line *l)
{
    end_world(l->world);
    hth_free(l);
}

void line_cut(struct line *l, uint32_t first)
{
    for (uint32_t i = 0; i < l->n; i++) {
        l->side[i] = i < first;
        hth_node_set_side(l->mate[i].node, l->side[i]);
    }
}

void line_heal(struct line *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        hth_node_set_side(l->mate[i].node, l->side[i] = 0);
    hth_world_heal(l->world);
}

const struct hth_chain_link *line_tip(const struct mate *m)
{
    return hth_chain_at(m->chain, hth_roll_choice(m->roll)->tip);
}

uint64_t line_agree(const struct line *l)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < l->n; i++)
        if (hth_node_is_up(l->mate[i].node))
            least = HTH_MIN(least, l->mate[i].step);
    const struct mate *first = NULL;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct mate *m = &l->mate[i];
        if (!hth_node_is_up(m->node))
            continue;
        uint32_t link = hth_roll_choice(m->roll)->tip;
        assert_int_not_equal(link, HTH_LINK_NONE);
        while (hth_chain_at(m->chain, link)->step + 1 > least)
            link = hth_chain_at(m->chain, link)->prev; /* the last step is not final */
        if (first == NULL) {
            first = m;
            assert_true(least > 0);
        }
        uint32_t same = hth_chain_find(first->chain, hth_chain_head(m->chain, link));
        assert_int_not_equal(same, HTH_LINK_NONE);
    }
    return least;
}
