/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_roll.c: members of one line choose steps in the simulated world. The average is a table that
 * the members of a round share: each takes part when its GO comes, and the first to end the round
 * says who is in it, as reducers do.
 */
#include "support/test.h"

#include "collab/roll.h"
#include "core/mem.h"
#include "sim/world.h"

enum { MEMBERS_MAX = 8, STEPS_MAX = 16384, ROUNDS_MAX = 16384, LIVES = 4, GRAIN = 8 };
#define AVERAGE_US (10 * HTH_US_PER_MS)
#define ROUND_US   (300 * HTH_US_PER_MS) /* members that did not come by then are left out */
#define FETCH_US   (20 * HTH_US_PER_MS)

struct line;

struct mate {
    struct line *line;
    uint32_t index;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_chain *chain;
    struct hth_roll_call *roll;
    struct hth_timer *batch, *average, *fetch;
    struct hth_hash fetching;
    struct round *round;
    uint64_t life;
    uint32_t speaks;     /* its last protocol; 0: the program's */
    int64_t each_us;     /* its speed; */
    int64_t measured_us; /* 0 before the first landing */
    uint32_t samples, air;
    int64_t lands_us, tip_us;
    bool mute;                       /* never says what it brings */
    bool rests;                      /* brings no more */
    bool lies;                       /* nothing of what it starts lands */
    bool deserts;                    /* brings nothing to rounds */
    bool listed, reduces;            /* in the last list of any member */
    struct hth_hash head[STEPS_MAX]; /* by step, as this member held them last */
    uint64_t step;
};

struct round {
    struct hth_hash id;
    uint32_t count;
    struct hth_peer_id member[HTH_ROLL_LINE_MAX];
    bool came[HTH_ROLL_LINE_MAX];
    int64_t began_us;
    bool closed;
};

struct line {
    struct hth_world *world;
    struct mate mate[MEMBERS_MAX];
    uint32_t n, founders;
    struct round round[ROUNDS_MAX];
    uint32_t rounds;
    bool eventual;
    uint64_t target;
    double uneven;
    uint64_t over_max; /* samples of a list beyond it */
    uint32_t lost;     /* micro-batches that were in the air when a round began */
    uint32_t links_max;
    uint32_t side[MEMBERS_MAX]; /* of the cut; all 0: none */
};

/* ---- the owner's side --------------------------------------------------------------------- */

static void babble(struct mate *m)
{
    struct hth_rng *rng = &m->env->rng;
    struct hth_brings brings = {(uint32_t)hth_rng_below(rng, 1u << hth_rng_below(rng, 32)),
                                (uint32_t)hth_rng_below(rng, 1u << hth_rng_below(rng, 32)),
                                (uint32_t)hth_rng_below(rng, 1u << hth_rng_below(rng, 32)),
                                (int64_t)hth_rng_u64(rng) >> hth_rng_below(rng, 64),
                                (int64_t)hth_rng_u64(rng) >> hth_rng_below(rng, 64)};
    hth_roll_bring(m->roll, &brings);
}

static void say(struct mate *m)
{
    int64_t left = m->air > 0 ? m->lands_us - hth_now_us(m->env) : 0;
    struct hth_brings brings = {m->samples, m->air, GRAIN, left,
                                m->rests ? HTH_BRINGS_NO_MORE : m->measured_us};
    hth_roll_bring(m->roll, &brings);
}

/* One micro-batch at a time, as long as the quota allows. */
static void gather(void *arg)
{
    struct mate *m = arg;
    if (m->mute)
        return;
    say(m);
    if (!m->rests && m->air == 0 && m->samples + GRAIN <= hth_roll_quota(m->roll)) {
        m->air = GRAIN;
        double part = 2 * hth_rng_unit(&m->env->rng) - 1;
        int64_t takes = m->each_us + (int64_t)(part * m->line->uneven * (double)m->each_us);
        m->lands_us = hth_now_us(m->env) + (m->lies ? HTH_US_PER_MS : m->each_us);
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
    gather(m);
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
    (void)arg;
    (void)result;
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
        all &= r->came[i];
    }
    if (!r->closed && !all && !late) {
        hth_timer_set(m->env, m->average, AVERAGE_US);
        return;
    }
    r->closed = true;
    for (uint32_t i = 0; i < r->count; i++)
        marks[i] = r->came[i] ? HTH_ROLL_IN : 0;
    m->env->crypto->hash(r, offsetof(struct round, began_us), &mean);
    hth_roll_averaged(m->roll, HTH_OK, marks, &mean);
}

static void start_fetch(void *arg, const struct hth_hash *head, const struct hth_roll_peer *holders,
                        uint32_t count)
{
    struct mate *m = arg;
    assert_true(count > 0);
    (void)holders;
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
    gather(m);
}

/* ---- the world ------------------------------------------------------------------------------ */

static void on_lost(void *arg, const struct hth_peer_id *peer, enum hth_err err)
{
    struct mate *m = arg;
    if (err != HTH_OK && m->roll != NULL)
        hth_roll_peer_lost(m->roll, peer);
}

static uint32_t put_genesis(struct mate *m)
{
    struct hth_roll roll[MEMBERS_MAX];
    struct hth_chain_link genesis = {
        .prev = HTH_LINK_NONE, .protocol = 1, .kind = HTH_LINK_GENESIS, .roll = roll,
        .count = m->line->founders};
    uint32_t at;
    for (uint32_t i = 0; i < m->line->founders; i++) {
        roll[i] = (struct hth_roll){.marks = HTH_ROLL_IN};
        struct hth_peer_id id = hth_node_env(m->line->mate[i].node)->self;
        assert_ok(hth_chain_member(m->chain, &id, 1, &roll[i].member));
    }
    assert_ok(hth_chain_add(m->chain, &genesis, &at));
    return at;
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct mate *m = arg;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_roll_opts opts = HTH_ROLL_OPTS_INIT;
    static const struct hth_roll_ops ops = {start_average, start_fetch, on_tip, gather, NULL};
    struct hth_addr addr = hth_node_addr(m->node, 4000);
    struct hth_chain_opts chain = {.crypto = env->crypto,
                                   .window = 8,
                                   .eventual = m->line->eventual,
                                   .links_max = m->line->links_max,
                                   .members_max = MEMBERS_MAX * LIVES,
                                   .rolls_max = 2 * STEPS_MAX * MEMBERS_MAX};
    (void)dht;
    m->env = env;
    rpc.network = "run";
    rpc.listen = &addr;
    rpc.on_peer_lost = on_lost;
    rpc.arg = m;
    assert_ok(hth_rpc_new(env, &rpc, &m->rpc));
    m->chain = hth_chain_new(&chain);
    m->batch = hth_timer_new(env, on_batch, m);
    m->average = hth_timer_new(env, on_average, m);
    m->fetch = hth_timer_new(env, on_fetch, m);
    opts.addr = addr;
    opts.life = ++m->life;
    opts.target = m->line->target;
    opts.last_protocol = HTH_MAX(m->speaks, opts.last_protocol);
    uint32_t genesis = put_genesis(m);
    assert_ok(hth_roll_new(env, m->rpc, m->chain, &opts, &ops, m, &m->roll));
    for (uint32_t i = 0; i < m->line->n; i++) {
        struct hth_node *node = m->line->mate[i].node;
        struct hth_roll_peer peer = {.id = hth_node_env(node)->self,
                                     .addr = hth_node_addr(node, 4000)};
        hth_roll_meet(m->roll, &peer);
    }
    m->step = 0;
    m->samples = m->air = 0;
    if (m->life > 1 || m->index >= m->line->founders) { /* a newcomer, who heard of a head */
        const struct mate *other = &m->line->mate[(m->index + 1) % m->line->founders];
        struct hth_roll_peer holder = {.id = other->env->self,
                                       .addr = hth_node_addr(other->node, 4000)};
        hth_roll_hear(m->roll, &other->head[other->step], &holder);
        return;
    }
    m->head[0] = *hth_chain_head(m->chain, genesis);
    hth_roll_hold(m->roll, genesis);
    gather(m);
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
}

static void add_mate(struct line *l)
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
        m->each_us = 30 * HTH_US_PER_MS;
    m->node = hth_world_node(l->world, name, &o);
    m->env = hth_node_env(m->node);
}

static struct line *start(uint64_t seed, uint32_t n, bool eventual)
{
    struct line *l = hth_new(struct line);
    l->world = hth_world_new(seed, NULL);
    l->founders = n;
    l->eventual = eventual;
    l->target = GRAIN * HTH_MAX(n - 1, 1u);
    l->links_max = 256;
    for (uint32_t i = 0; i < n; i++)
        add_mate(l);
    return l;
}

static void stop(struct line *l)
{
    struct hth_open_counts leaks;
    for (uint32_t i = 0; i < l->n; i++)
        if (hth_node_is_up(l->mate[i].node))
            hth_node_crash(l->mate[i].node, HTH_CRASH_RESET);
    hth_world_leaks(l->world, &leaks);
    assert_int_equal(hth_open_total(&leaks), 0);
    hth_world_free(l->world);
    hth_free(l);
}

static void cut(struct line *l, uint32_t first)
{
    for (uint32_t i = 0; i < l->n; i++) {
        l->side[i] = i < first;
        hth_node_set_side(l->mate[i].node, l->side[i]);
    }
}

static void heal(struct line *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        hth_node_set_side(l->mate[i].node, l->side[i] = 0);
    hth_world_heal(l->world);
}

/* All that are up hold one head of each of the last steps; returns the least step. */
static uint64_t agree(const struct line *l)
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

/* Whether its values are in the step that made a link. */
static bool is_in(const struct mate *m, uint32_t link)
{
    const struct hth_roll *entry =
        hth_chain_entry(m->chain, link, hth_roll_choice(m->roll)->me);
    return entry != NULL && entry->marks & HTH_ROLL_IN;
}

/* ---- what is promised ----------------------------------------------------------------------- */

static void a_line_steps(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MEMBERS_MAX; n++) {
        struct line *l = start(n, n, false);
        hth_world_run_for(l->world, 10 * HTH_US_PER_S);
        uint64_t steps = agree(l);
        printf("%u members: %llu steps in 10 s\n", n, (unsigned long long)steps);
        assert_true(steps > 30);
        stop(l);
    }
}

static void deaths_cost_little(void **state)
{
    (void)state;
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};
    for (size_t k = 0; k < HTH_ARRAY_LEN(how); k++)
        for (uint32_t victim = 0; victim < 4; victim++) {
            struct line *l = start(victim + 10 * k, 4, false);
            hth_world_run_for(l->world, 5 * HTH_US_PER_S);
            uint64_t before = agree(l);
            hth_node_crash(l->mate[victim].node, how[k]);
            hth_world_run_for(l->world, 5 * HTH_US_PER_S);
            uint64_t after = agree(l);
            printf("%s death of %u: %llu, then %llu steps\n", k == 0 ? "loud" : "silent", victim,
                   (unsigned long long)before, (unsigned long long)(after - before));
            assert_true(after - before > before / 3);
            stop(l);
        }
}

/* Strict: the part without a quorum stands still, and comes back with the others' steps. */
static void a_cut_heals(void **state)
{
    (void)state;
    struct line *l = start(7, 5, false);
    hth_world_run_for(l->world, 3 * HTH_US_PER_S);
    cut(l, 2);
    hth_world_run_for(l->world, 30 * HTH_US_PER_S);
    uint64_t few = l->mate[0].step, most = l->mate[4].step;
    printf("cut: %llu and %llu\n", (unsigned long long)few, (unsigned long long)most);
    assert_true(most > few + 20);
    heal(l);
    hth_world_run_for(l->world, 60 * HTH_US_PER_S);
    assert_true(agree(l) > most);
    stop(l);
}

/* Of even halves exactly one goes on. */
static void of_even_halves_one_steps(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct line *l = start(seed, 4, false);
        hth_world_run_for(l->world, 3 * HTH_US_PER_S);
        cut(l, 2);
        hth_world_run_for(l->world, 15 * HTH_US_PER_S);
        uint64_t a = l->mate[0].step, b = l->mate[3].step;
        printf("halves: %llu and %llu\n", (unsigned long long)a, (unsigned long long)b);
        assert_true(HTH_MAX(a, b) > HTH_MIN(a, b) + 20);
        heal(l);
        hth_world_run_for(l->world, 10 * HTH_US_PER_S);
        assert_true(agree(l) > HTH_MAX(a, b));
        stop(l);
    }
}

/* Eventual: all parts go on; the chain with more samples remains. */
static void a_fork_heals(void **state)
{
    (void)state;
    static const uint32_t first[] = {1, 2, 3};
    for (size_t k = 0; k < HTH_ARRAY_LEN(first); k++) {
        struct line *l = start(k, 6, true);
        hth_world_run_for(l->world, 3 * HTH_US_PER_S);
        cut(l, first[k]);
        hth_world_run_for(l->world, 60 * HTH_US_PER_S);
        uint64_t a = l->mate[0].step, b = l->mate[5].step;
        printf("fork %u of 6: %llu and %llu\n", first[k], (unsigned long long)a,
               (unsigned long long)b);
        assert_true(HTH_MIN(a, b) > 100);
        heal(l);
        hth_world_run_for(l->world, 15 * HTH_US_PER_S);
        assert_true(agree(l) > 0);
        stop(l);
    }
}

/* Two that hold different heads of one choice are left: one takes the other's, and both fork. */
static void heads_of_one_choice_meet(void **state)
{
    (void)state;
    struct line *l = start(9, 5, true);
    const struct mate *a = &l->mate[0], *b = &l->mate[4];
    hth_world_run_for(l->world, 3 * HTH_US_PER_S);
    while (a->step == b->step || a->step != l->mate[1].step || b->step != l->mate[2].step ||
           b->step != l->mate[3].step || b->step > a->step) {
        hth_world_run_for(l->world, HTH_US_PER_MS / 10);
        assert_true(hth_world_now_us(l->world) < 60 * HTH_US_PER_S);
    }
    cut(l, 2); /* the two have ended the round, and the others make the step without them */
    while (a->step != b->step)
        hth_world_run_for(l->world, HTH_US_PER_MS);
    assert_memory_not_equal(&a->head[a->step], &b->head[b->step], sizeof(a->head[0]));
    for (uint32_t i = 1; i < 4; i++)
        hth_node_crash(l->mate[i].node, HTH_CRASH_RESET);
    uint64_t before = a->step;
    heal(l);
    hth_world_run_for(l->world, 15 * HTH_US_PER_S);
    assert_true(agree(l) > before + 20);
    stop(l);
}

/* The others lose no step, and it may go after two. */
static void leaving_costs_nothing(void **state)
{
    (void)state;
    struct line *l = start(3, 4, false);
    hth_world_run_for(l->world, 3 * HTH_US_PER_S);
    uint64_t before = l->mate[0].step;
    hth_roll_leave(l->mate[2].roll);
    hth_world_run_for(l->world, 400 * HTH_US_PER_MS);
    assert_true(hth_roll_has_left(l->mate[2].roll));
    hth_node_crash(l->mate[2].node, HTH_CRASH_RESET);
    hth_world_run_for(l->world, 3 * HTH_US_PER_S);
    assert_true(agree(l) - before > 40);
    stop(l);
}

/* Each in turn dies and comes back as another life, which the others take in. */
static void newcomers_come_in(void **state)
{
    (void)state;
    struct line *l = start(5, 4, false);
    for (uint32_t i = 0; i < 4; i++)
        l->mate[i].each_us = 200 * HTH_US_PER_MS;
    hth_world_run_for(l->world, 3 * HTH_US_PER_S);
    for (uint32_t i = 0; i < 4; i++) {
        struct mate *m = &l->mate[i];
        hth_node_crash(m->node, i % 2 ? HTH_CRASH_SILENT : HTH_CRASH_RESET);
        hth_world_run_for(l->world, 2 * HTH_US_PER_S);
        hth_node_restart(m->node);
        hth_world_run_for(l->world, 2 * HTH_US_PER_S);
        uint32_t tip = hth_roll_choice(m->roll)->tip;
        assert_int_not_equal(tip, HTH_LINK_NONE);
        assert_true(is_in(m, tip));
    }
    uint64_t before = agree(l);
    hth_world_run_for(l->world, 2 * HTH_US_PER_S);
    assert_true(agree(l) > before + 5);
    stop(l);
}

/* Neither a newcomer nor a member whose parts failed reduces, for a while. */
static void bad_reducers_rest(void **state)
{
    (void)state;
    struct line *l = start(5, 3, false);
    hth_world_run_for(l->world, 3 * HTH_US_PER_S);
    assert_true(l->mate[0].reduces && l->mate[1].reduces && l->mate[2].reduces);
    add_mate(l);
    while (!l->mate[3].listed)
        hth_world_run_for(l->world, HTH_US_PER_MS);
    assert_false(l->mate[3].reduces);
    hth_world_run_for(l->world, 3 * HTH_US_PER_S);
    assert_true(l->mate[3].reduces);
    for (uint32_t i = 0; i < l->n; i++)
        hth_roll_slow(l->mate[i].roll, &l->mate[1].env->self);
    hth_world_run_for(l->world, 3 * HTH_US_PER_S);
    assert_true(l->mate[0].reduces && !l->mate[1].reduces && l->mate[2].reduces);
    hth_world_run_for(l->world, 300 * HTH_US_PER_S);
    assert_true(l->mate[1].reduces);
    for (uint32_t i = 0; i < l->n * l->n; i++)
        hth_roll_slow(l->mate[i / l->n].roll, &l->mate[i % l->n].env->self);
    hth_world_run_for(l->world, 3 * HTH_US_PER_S);
    uint32_t reduce = 0; /* the caller: somebody has to */
    for (uint32_t i = 0; i < l->n; i++)
        reduce += l->mate[i].reduces;
    assert_int_equal(reduce, 1);
    stop(l);
}

/* The chain is longer than what is kept of it: a newcomer begins at an anchor. */
static void the_chain_is_longer_than_kept(void **state)
{
    (void)state;
    struct line *l = start(6, 3, false);
    hth_node_crash(l->mate[2].node, HTH_CRASH_SILENT);
    hth_world_run_for(l->world, 60 * HTH_US_PER_S);
    uint32_t tip = hth_roll_choice(l->mate[0].roll)->tip;
    assert_true(hth_chain_at(l->mate[0].chain, tip)->step > 500);
    hth_node_restart(l->mate[2].node);
    hth_world_run_for(l->world, 2 * HTH_US_PER_S);
    tip = hth_roll_choice(l->mate[2].roll)->tip;
    assert_int_not_equal(tip, HTH_LINK_NONE);
    assert_in_range(hth_chain_count(l->mate[2].chain), 10, 400);
    assert_int_equal(hth_chain_samples(l->mate[2].chain, tip) >= 16 * 500, 1);
    assert_true(agree(l) > 500);
    stop(l);
}

static const struct hth_peer_id *caller_of(const struct mate *m)
{
    struct hth_ballot now = hth_choice_now(hth_roll_choice(m->roll));
    return hth_chain_id(m->chain, hth_choice_caller(m->chain, &now));
}

/* A member that took its caller for lost for a moment, or got a bad state from it, is in the steps
 * again. */
static void a_lost_caller_is_heard_again(void **state)
{
    (void)state;
    struct line *l = start(8, 4, false);
    for (uint32_t i = 0; i < 4; i++)
        l->mate[i].each_us = 200 * HTH_US_PER_MS;
    hth_world_run_for(l->world, 3 * HTH_US_PER_S);
    for (uint32_t i = 0; i < 8; i++) {
        struct mate *m = &l->mate[i % 4];
        for (uint32_t k = 0; k < 4; k++)
            if (i < 4 && k != i)
                hth_roll_peer_lost(m->roll, &l->mate[k].env->self);
        if (i >= 4 && !hth_peer_id_eq(caller_of(m), &m->env->self))
            hth_roll_doubt(m->roll, caller_of(m), HTH_E_VERSION);
        hth_world_run_for(l->world, 3 * HTH_US_PER_S);
        uint32_t tip = hth_roll_choice(m->roll)->tip;
        for (uint32_t back = 0; back < 5; back++) {
            assert_true(is_in(m, tip) && (i >= 4 || hth_chain_at(m->chain, tip)->count == 4));
            tip = hth_chain_at(m->chain, tip)->prev;
        }
    }
    stop(l);
}

/* A member that missed some steps is in the next, whatever newcomers cost in rounds. */
static void members_that_missed_steps_come_back(void **state)
{
    (void)state;
    struct line *l = start(8, 5, false);
    hth_world_run_for(l->world, 5 * HTH_US_PER_S);
    add_mate(l);
    l->mate[5].deserts = true;
    hth_world_run_for(l->world, 10 * HTH_US_PER_S);
    assert_true(l->mate[5].listed); /* each time costs 0.3 s: none like it for 12 s */
    cut(l, 1);
    hth_world_run_for(l->world, 5 * HTH_US_PER_S);
    heal(l);
    hth_world_run_for(l->world, 2 * HTH_US_PER_S);
    assert_true(is_in(&l->mate[0], hth_roll_choice(l->mate[0].roll)->tip));
    stop(l);
}

/* Newcomers are in the roll soon, also where steps are short, and slow the others little. */
static void newcomers_are_waited_for(void **state)
{
    (void)state;
    static const int64_t each_ms[] = {1, 10, 30, 100, 500};
    for (size_t k = 0; k < HTH_ARRAY_LEN(each_ms); k++)
        for (uint32_t news = 1; news <= 3; news += 2) {
            struct line *l = start(k, 3, false);
            for (uint32_t i = 0; i < MEMBERS_MAX; i++)
                l->mate[i].each_us = each_ms[k] * HTH_US_PER_MS;
            hth_world_run_for(l->world, 5 * HTH_US_PER_S);
            uint64_t before = l->mate[0].step;
            for (uint32_t i = 0; i < news; i++)
                add_mate(l);
            int64_t began = hth_world_now_us(l->world);
            uint32_t in = 0;
            while (in < l->n && hth_world_now_us(l->world) < began + 10 * HTH_US_PER_S) {
                hth_world_run_for(l->world, HTH_US_PER_MS);
                in = hth_chain_at(l->mate[0].chain, hth_roll_choice(l->mate[0].roll)->tip)->count;
            }
            int64_t took = hth_world_now_us(l->world) - began;
            hth_world_run_for(l->world, 2 * HTH_US_PER_S - took % (2 * HTH_US_PER_S));
            uint64_t steps = l->mate[0].step - before;
            printf(
                "%u newcomers, %lld ms: in after %lld ms, %llu steps in 2 s, %llu in 5 s before\n",
                news, (long long)each_ms[k], (long long)took / 1000, (unsigned long long)steps,
                (unsigned long long)before);
            assert_true(took <= HTH_MAX(HTH_US_PER_S, 3 * 5 * HTH_US_PER_S / (int64_t)before));
            assert_true(13 * steps >= 10 * before * 2 / 5);
            stop(l);
        }
}

/* Members of two protocols step together; the newer one is used once the last member that does not
 * speak it has left, and that one can't come back. */
static void protocols_change_in_a_run(void **state)
{
    (void)state;
    struct line *l = hth_new(struct line);
    l->world = hth_world_new(9, NULL);
    l->founders = 4;
    l->target = GRAIN * 3;
    l->links_max = 256;
    for (uint32_t i = 0; i < 4; i++) {
        l->mate[i].speaks = i == 2 ? 1 : 2;
        add_mate(l);
    }
    struct mate *old = &l->mate[2];
    hth_world_run_for(l->world, 5 * HTH_US_PER_S);
    uint64_t before = agree(l);
    assert_true(before > 15);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(
            hth_chain_at(l->mate[i].chain, hth_roll_choice(l->mate[i].roll)->tip)->protocol, 1);
    hth_roll_leave(old->roll);
    hth_world_run_for(l->world, HTH_US_PER_S);
    assert_true(hth_roll_has_left(old->roll));
    hth_node_crash(old->node, HTH_CRASH_RESET);
    hth_world_run_for(l->world, 5 * HTH_US_PER_S);
    assert_true(agree(l) > before + 20);
    uint32_t tip = hth_roll_choice(l->mate[0].roll)->tip;
    assert_int_equal(hth_chain_at(l->mate[0].chain, tip)->protocol, 2);
    hth_node_restart(old->node);
    hth_world_run_for(l->world, 5 * HTH_US_PER_S);
    int64_t since_us;
    assert_int_equal(hth_roll_unspoken(old->roll, &since_us), 2);
    assert_int_equal(hth_roll_choice(old->roll)->tip, HTH_LINK_NONE);
    assert_true(l->mate[0].step > before + 40);
    stop(l);
}

/* ---- quotas ------------------------------------------------------------------------------ */

#define BATCH (20 * GRAIN)

static void far_away(struct line *l, uint32_t who, int64_t latency_us)
{
    struct hth_link link = HTH_LINK_INIT;
    link.latency_us = latency_us;
    for (uint32_t i = 0; i < l->n; i++) {
        hth_world_link(l->world, l->mate[who].node, l->mate[i].node, &link);
        hth_world_link(l->world, l->mate[i].node, l->mate[who].node, &link);
    }
}

/* The least time from one step to the next: the gathering, READY, GO and average. */
static int64_t bound_us(const struct line *l, int64_t latency_us)
{
    struct hth_brings in[MEMBERS_MAX];
    uint32_t quota[MEMBERS_MAX];
    for (uint32_t i = 0; i < l->n; i++)
        in[i] = (struct hth_brings){.grain = GRAIN, .each_us = l->mate[i].each_us};
    assert_true(hth_quota(in, l->n, l->target, quota));
    return hth_quota_closes_us(in, l->n, quota) + 2 * latency_us + AVERAGE_US;
}

/* No step has more than a micro-batch of each member too much, and none was in the air. */
static void check_batches(const struct line *l)
{
    assert_true(l->over_max <= GRAIN * (uint64_t)l->n);
    assert_int_equal(l->lost, 0);
}

static void machines_stay_busy(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint32_t n;
        int64_t each_ms[5];
        int64_t far_ms; /* of the last */
    } cases[] = {
        {"alike", 3, {20, 20, 20}, 10},          {"one ten times slower", 4, {20, 20, 20, 200}, 10},
        {"unlike", 5, {20, 30, 40, 55, 70}, 10}, {"one far", 4, {20, 20, 20, 20}, 100},
        {"slow", 3, {2000, 3000, 5000}, 10},
    };
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct line *l = start(k, cases[k].n, false);
        l->target = BATCH;
        for (uint32_t i = 0; i < l->n; i++)
            l->mate[i].each_us = cases[k].each_ms[i] * HTH_US_PER_MS;
        far_away(l, l->n - 1, cases[k].far_ms * HTH_US_PER_MS);
        int64_t bound = bound_us(l, cases[k].far_ms * HTH_US_PER_MS);
        hth_world_run_for(l->world, 10 * bound);
        uint64_t before = l->mate[0].step;
        hth_world_run_for(l->world, 100 * bound);
        uint64_t steps = l->mate[0].step - before;
        printf("%s: %llu steps in the time of 100, %llu samples too many\n", cases[k].what,
               (unsigned long long)steps, (unsigned long long)l->over_max);
        assert_true(steps >= 95);
        check_batches(l);
        stop(l);
    }
}

/* Speeds that change from one micro-batch to the next. */
static void uneven_speeds_waste_little(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct line *l = start(seed, 5, false);
        l->target = BATCH;
        l->uneven = 0.3;
        for (uint32_t i = 0; i < l->n; i++)
            l->mate[i].each_us = (5 + 10 * i) * HTH_US_PER_MS << seed % 4;
        int64_t bound = bound_us(l, 10 * HTH_US_PER_MS);
        hth_world_run_for(l->world, 100 * bound);
        printf("uneven: %llu steps in the time of 100, %llu samples too many\n",
               (unsigned long long)agree(l), (unsigned long long)l->over_max);
        assert_true(agree(l) >= 75);
        check_batches(l);
        stop(l);
    }
}

/* The others bring what one does not, once they know. */
static void death_in_a_batch(void **state)
{
    (void)state;
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};
    for (uint32_t k = 0; k < 8; k++) {
        struct line *l = start(k, 4, false);
        l->target = BATCH;
        for (uint32_t i = 0; i < l->n; i++)
            l->mate[i].each_us = 100 * HTH_US_PER_MS;
        hth_world_run_for(l->world, 5 * HTH_US_PER_S);
        uint64_t step = l->mate[k % 4].step;
        while (l->mate[k % 4].step == step)
            hth_world_run_for(l->world, HTH_US_PER_MS);
        hth_world_run_for(l->world, 220 * HTH_US_PER_MS);
        hth_node_crash(l->mate[k % 4].node, how[k / 4]);
        int64_t died = hth_world_now_us(l->world);
        const struct mate *other = &l->mate[(k + 1) % 4];
        step = other->step;
        while (other->step == step)
            hth_world_run_for(l->world, HTH_US_PER_MS);
        int64_t took = other->tip_us - died;
        printf("death of %u in a batch: a step %lld ms later\n", k % 4, (long long)took / 1000);
        /* Of 7 micro-batches each at most 5 were missing. */
        assert_true(took < 500 * HTH_US_PER_MS + (k < 4 ? 150 : 600) * HTH_US_PER_MS);
        hth_world_run_for(l->world, 5 * HTH_US_PER_S);
        assert_true(agree(l) > step + 5);
        check_batches(l);
        stop(l);
    }
}

/* A newcomer shares the batch once it is no stranger. */
static void newcomer_shares_the_batch(void **state)
{
    (void)state;
    struct line *l = start(1, 2, false);
    l->target = BATCH;
    hth_world_run_for(l->world, 10 * HTH_US_PER_S);
    uint64_t alone = agree(l);
    add_mate(l);
    hth_world_run_for(l->world, 10 * HTH_US_PER_S);
    uint64_t before = agree(l);
    hth_world_run_for(l->world, 10 * HTH_US_PER_S);
    uint64_t with = agree(l) - before;
    printf("two: %llu steps in 10 s, three: %llu, %llu samples too many\n",
           (unsigned long long)alone, (unsigned long long)with, (unsigned long long)l->over_max);
    assert_true(with > alone * 5 / 4);
    check_batches(l);
    stop(l);
}

/* The time that a liar costs: it says that its micro-batch lands in a moment, and none does. */
static int64_t lie(uint64_t seed, bool calls, uint32_t strange, bool rests)
{
    struct line *l = start(seed, strange > 0 ? 3 : 4, false);
    l->target = BATCH;
    hth_world_run_for(l->world, 10 * HTH_US_PER_S);
    for (uint32_t i = 0; i < strange; i++) {
        add_mate(l);
        l->mate[3 + i].lies = true;
    }
    const struct hth_peer_id *caller = caller_of(&l->mate[0]);
    uint32_t who = 3;
    while (!strange && calls != hth_peer_id_eq(&l->mate[who].env->self, caller))
        who--;
    l->mate[who].lies = !rests;
    l->mate[who].rests = rests;
    const struct mate *honest = &l->mate[who == 0];
    uint64_t before = honest->step;
    hth_world_run_for(l->world, 50 * HTH_US_PER_S);
    uint64_t steps = honest->step - before;
    hth_world_run_for(l->world, 10 * HTH_US_PER_S);
    int64_t step_us = 10 * HTH_US_PER_S / (int64_t)(honest->step - before - steps);
    stop(l);
    return 50 * HTH_US_PER_S - (int64_t)steps * step_us;
}

static void a_mute_member_stops_nobody(void **state)
{
    (void)state;
    for (uint32_t who = 0; who < 4; who++) {
        struct line *l = start(who, 4, false);
        l->target = BATCH;
        l->mate[who].mute = true;
        hth_world_run_for(l->world, 30 * HTH_US_PER_S);
        uint64_t steps = l->mate[(who + 1) % 4].step;
        printf("beside a mute one: %llu steps in 30 s\n", (unsigned long long)steps);
        assert_true(steps > 40);
        stop(l);
    }
}

/* Numbers without any sense, of a member or of a stranger, stop nobody. */
static void babble_stops_nobody(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct line *l = start(seed, 3 + seed % 2, false);
        l->target = BATCH;
        if (seed % 2 == 0)
            add_mate(l);
        hth_world_run_for(l->world, 2 * HTH_US_PER_S);
        const struct mate *honest = &l->mate[0];
        for (uint64_t k = 0, before = 0; k < 3; k++, before = honest->step) {
            for (uint32_t i = 0; i < 2000; i++) {
                hth_world_run_for(l->world, 10 * HTH_US_PER_MS);
                babble(&l->mate[3]);
            }
            printf("beside a babbler: %llu steps in 20 s\n",
                   (unsigned long long)(honest->step - before));
            assert_true(honest->step - before >= 20);
        }
        stop(l);
    }
}

static void liars_cost_little(void **state)
{
    (void)state;
    static const struct {
        const char *who;
        bool calls;
        uint32_t strange;
        bool rests;
        int64_t most_us;
    } cases[] = {{"a member that lies", false, 0, false, 7 * HTH_US_PER_S},
                 {"a caller that lies", true, 0, false, 10 * HTH_US_PER_S},
                 {"a stranger that lies", false, 1, false, 7 * HTH_US_PER_S / 2},
                 {"five strangers that lie", false, 5, false, 7 * HTH_US_PER_S / 2},
                 {"a member that rests", false, 0, true, HTH_US_PER_S},
                 {"a caller that rests", true, 0, true, HTH_US_PER_S}};
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            int64_t cost = lie(seed, cases[k].calls, cases[k].strange, cases[k].rests);
            printf("%s: %lld ms\n", cases[k].who, (long long)cost / 1000);
            assert_true(cost <= cases[k].most_us);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_steps),
        cmocka_unit_test(deaths_cost_little),
        cmocka_unit_test(a_cut_heals),
        cmocka_unit_test(of_even_halves_one_steps),
        cmocka_unit_test(a_fork_heals),
        cmocka_unit_test(heads_of_one_choice_meet),
        cmocka_unit_test(leaving_costs_nothing),
        cmocka_unit_test(newcomers_come_in),
        cmocka_unit_test(bad_reducers_rest),
        cmocka_unit_test(the_chain_is_longer_than_kept),
        cmocka_unit_test(newcomers_are_waited_for),
        cmocka_unit_test(a_lost_caller_is_heard_again),
        cmocka_unit_test(members_that_missed_steps_come_back),
        cmocka_unit_test(protocols_change_in_a_run),
        cmocka_unit_test(machines_stay_busy),
        cmocka_unit_test(uneven_speeds_waste_little),
        cmocka_unit_test(death_in_a_batch),
        cmocka_unit_test(newcomer_shares_the_batch),
        cmocka_unit_test(liars_cost_little),
        cmocka_unit_test(a_mute_member_stops_nobody),
        cmocka_unit_test(babble_stops_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
