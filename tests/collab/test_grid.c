/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_grid.c: rounds of several axes in the simulated world: endpoints, reducers and
 * collaborations, with an owner whose values follow from its index and its batch's number.
 */
#include "support/test.h"

#include "collab/collab_int.h"
#include "collab/row_msg.h"
#include "core/mem.h"
#include "sim/world.h"

#include <math.h>

#define S  HTH_US_PER_S
#define MS HTH_US_PER_MS

enum { MATES_MAX = 80, STEPS_MAX = 4096, GRAIN = 8, PORT = 4000, STATE_BYTES = 64 };
#define EACH_US (20 * MS)
#ifndef DEATHS
#define DEATHS 20 /* of each kind */
#endif

struct crew;

struct mate {
    struct crew *crew;
    uint32_t index;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_reducer *reducer;
    struct hth_collab *collab;
    struct hth_timer *batch, *answer;
    struct hth_blob *values; /* taken */
    uint32_t samples, air;
    int64_t lands_us;
    bool takes, copies, adopts; /* what the answer is to */
    uint64_t step;
    uint32_t last_protocol;
    enum hth_err failed;
};

struct crew {
    struct hth_world *world;
    struct mate mate[MATES_MAX];
    uint32_t n, clients; /* the last so many can't be dialled */
    uint32_t count;      /* floats */
    struct hth_avg_span span[2];
    double clip;
    struct hth_avg_shape shape;
    uint32_t liar; /* UINT32_MAX: none */
    /* By step: the head of the first that took it, when that was, and how many did. */
    struct {
        struct hth_hash head;
        uint32_t took;
        int64_t first_us;
    } step[STEPS_MAX];
    uint64_t last;    /* step that somebody took */
    double error_max; /* of a mean, against float64 */
};

/* ---- the owner's side --------------------------------------------------------------------- */

/* In -1..1. */
static double value(const struct crew *crew, uint32_t index, uint32_t batch, uint32_t k)
{
    uint32_t v = k * 2654435761u ^ (index * 40503u + batch * 9973u + 7) * 2246822519u;
    v = (v ^ v >> 15) * 2246822519u;
    v = (v ^ v >> 13) * 3266489917u;
    return ((double)(v >> 8) / (1 << 23) - 1) * (index == crew->liar ? 40 : 1);
}

static void gather(void *arg)
{
    struct mate *m = arg;
    int64_t left = m->air > 0 ? m->lands_us - hth_now_us(m->env) : 0;
    struct hth_brings brings = {m->samples, m->air, GRAIN, left, EACH_US};
    if (m->air == 0 && hth_collab_may_launch(m->collab, &brings)) {
        brings.air = m->air = GRAIN;
        brings.lands_us = EACH_US;
        m->lands_us = hth_now_us(m->env) + EACH_US;
        hth_timer_set(m->env, m->batch, EACH_US);
    }
    hth_collab_brings(m->collab, &brings);
}

static void on_batch(void *arg)
{
    struct mate *m = arg;
    m->samples += m->air;
    m->air = 0;
    gather(m);
}

static void on_take(void *arg)
{
    struct mate *m = arg;
    uint32_t batch = hth_collab_choice(m->collab)->batch;
    hth_timer_cancel(m->env, m->batch);
    m->air = 0;
    hth_blob_unref(m->values);
    assert_ok(hth_env_blob_new(m->env, m->crew->count * sizeof(float), NULL, &m->values));
    for (uint32_t k = 0; k < m->crew->count; k++)
        ((float *)(void *)m->values->data)[k] = (float)value(m->crew, m->index, batch, k);
    m->takes = true;
    hth_timer_set(m->env, m->answer, MS);
}

static void on_used(void *arg)
{
    struct mate *m = arg;
    m->samples = 0;
}

static void on_copy(void *arg)
{
    struct mate *m = arg;
    m->copies = true;
    hth_timer_set(m->env, m->answer, MS);
}

static void on_adopt(void *arg, const struct hth_state_result *state, const uint8_t *meta,
                     size_t meta_len)
{
    struct mate *m = arg;
    assert_true(meta_len == 1 && meta[0] == 7);
    m->step = state->step;
    m->samples = m->air = 0;
    m->adopts = true;
    hth_timer_cancel(m->env, m->batch);
    hth_timer_set(m->env, m->answer, MS);
}

static uint32_t index_of(const struct crew *crew, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < crew->n; i++)
        if (hth_peer_id_eq(&hth_node_env(crew->mate[i].node)->self, id))
            return i;
    fail_msg("a stranger");
    return 0;
}

/* The mean against that of the link's roll. */
static double error_of(const struct mate *m, const struct hth_chain_link *link, const float *mean)
{
    double most = 0;
    for (uint32_t k = 0; k < m->crew->count; k += 509) {
        double sum = 0, samples = 0;
        for (uint32_t i = 0; i < link->count; i++) {
            const struct hth_roll *r = &link->roll[i];
            uint32_t who = index_of(m->crew, hth_chain_id(m->collab->chain, r->member));
            sum += r->samples * value(m->crew, who, r->batch, k);
            samples += r->samples;
        }
        most = HTH_MAX(most, fabs(sum / samples - (double)mean[k]));
    }
    return most;
}

static void on_step(void *arg, struct hth_blob *mean, uint64_t samples,
                    const struct hth_chain_link *link)
{
    struct mate *m = arg;
    struct crew *crew = m->crew;
    const struct hth_chain *chain = hth_collab_chain(m->collab);
    uint64_t step = link->step;
    bool whole = true;
    assert_true(samples > 0 && step < STEPS_MAX && step == m->step + 1);
    m->step = step;
    if (crew->step[step].took++ == 0) {
        crew->step[step].head = *hth_chain_head(chain, m->collab->to);
        crew->step[step].first_us = hth_now_us(m->env);
    }
    crew->last = HTH_MAX(crew->last, step);
    for (uint32_t i = 0; i < link->count; i++)
        whole = whole && link->roll[i].marks & HTH_ROLL_IN;
    if (whole)
        crew->error_max =
            HTH_MAX(crew->error_max, error_of(m, link, (const float *)(const void *)mean->data));
    hth_timer_set(m->env, m->answer, MS);
}

static void on_answer(void *arg)
{
    struct mate *m = arg;
    if (m->takes) {
        m->takes = false;
        hth_collab_taken(m->collab, HTH_OK, m->values, m->samples);
    } else if (m->copies) {
        m->copies = false;
        const uint8_t meta = 7;
        struct hth_blob *state;
        assert_ok(hth_env_blob_new(m->env, STATE_BYTES, NULL, &state));
        memset(state->data, 0, STATE_BYTES);
        hth_collab_copied(m->collab, HTH_OK, state, &meta, 1);
        hth_blob_unref(state);
    } else if (m->adopts) {
        m->adopts = false;
        hth_collab_adopted(m->collab, HTH_OK);
    } else {
        hth_collab_stepped(m->collab);
    }
    gather(m);
}

/* ---- the world ---------------------------------------------------------------------------- */

static void on_lost(void *arg, const struct hth_peer_id *peer, enum hth_err err)
{
    struct mate *m = arg;
    if (m->reducer != NULL)
        hth_reducer_peer_lost(m->reducer, peer);
    if (err != HTH_OK && m->collab != NULL)
        hth_collab_peer_lost(m->collab, peer);
}

static struct hth_addr addr_of(const struct mate *m)
{
    bool client = m->index >= m->crew->n - m->crew->clients;
    return client ? (struct hth_addr){.family = 0} : hth_node_addr(m->node, PORT);
}

/* All hold one genesis, and know where the others are. */
static void hold_genesis(struct mate *m)
{
    struct crew *crew = m->crew;
    struct hth_roll roll[MATES_MAX];
    struct hth_chain_link genesis = {
        .prev = HTH_LINK_NONE, .protocol = 1, .kind = HTH_LINK_GENESIS, .roll = roll,
        .count = crew->n};
    uint32_t at;
    for (uint32_t i = 0; i < crew->n; i++) {
        bool client = i >= crew->n - crew->clients;
        struct hth_peer_id id = hth_node_env(crew->mate[i].node)->self;
        roll[i] = (struct hth_roll){.marks = HTH_ROLL_IN | (client ? HTH_ROLL_CLIENT : 0),
                                    .samples = GRAIN};
        assert_ok(hth_chain_member(m->collab->chain, &id, 1, &roll[i].member));
    }
    assert_ok(hth_chain_add(m->collab->chain, &genesis, &at));
    hth_roll_hold(m->collab->roll, at);
    for (uint32_t i = 0; i < crew->n; i++) {
        struct hth_roll_peer peer = {.id = hth_node_env(crew->mate[i].node)->self,
                                     .addr = addr_of(&crew->mate[i])};
        hth_roll_meet(m->collab->roll, &peer);
    }
    collab_holds(m->collab, at);
}

static void on_fail(void *arg, enum hth_err err)
{
    struct mate *m = arg;
    assert_int_equal(m->failed, HTH_OK);
    m->failed = err;
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    static const struct hth_collab_ops ops = {.take = on_take,
                                              .used = on_used,
                                              .step = on_step,
                                              .copy = on_copy,
                                              .adopt = on_adopt,
                                              .more = gather,
                                              .fail = on_fail};
    struct mate *m = arg;
    struct crew *crew = m->crew;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_reducer_opts reducer = HTH_REDUCER_OPTS_INIT;
    struct hth_addr addr = addr_of(m);
    m->env = env;
    rpc.network = "run";
    rpc.listen = addr.family != 0 ? &addr : NULL;
    rpc.on_peer_lost = on_lost;
    rpc.arg = m;
    assert_ok(hth_rpc_new(env, &rpc, &m->rpc));
    reducer.clip = crew->clip;
    assert_ok(hth_reducer_new(env, m->rpc, &reducer, &m->reducer));
    m->batch = hth_timer_new(env, on_batch, m);
    m->answer = hth_timer_new(env, on_answer, m);
    const struct hth_collab_opts opts = {.network = "run",
                                         .schema = 1,
                                         .addr = addr,
                                         .life = 1,
                                         .count = crew->count,
                                         .state_bytes = STATE_BYTES,
                                         .spans = crew->span,
                                         .span_count = 2,
                                         .target = GRAIN * (crew->n - 2),
                                         .shape = crew->shape,
                                         .look_us = S,
                                         .last_protocol = m->last_protocol,
                                         .dht = dht,
                                         .reducer = m->reducer};
    assert_ok(hth_collab_new(env, m->rpc, &opts, &ops, m, &m->collab));
    m->samples = m->air = 0;
    m->takes = m->copies = m->adopts = false;
    m->step = 0;
    hold_genesis(m);
    gather(m);
}

static void halt(struct hth_env *env, void *arg)
{
    struct mate *m = arg;
    hth_collab_free(m->collab);
    hth_reducer_free(m->reducer);
    hth_timer_free(env, m->batch);
    hth_timer_free(env, m->answer);
    hth_rpc_free(m->rpc);
    hth_blob_unref(m->values);
    m->values = NULL;
    m->collab = NULL;
    m->reducer = NULL;
}

static struct crew *start_over(const struct hth_world_opts *lines, uint64_t seed, uint32_t n,
                               const char *shape, enum hth_quant_format format)
{
    struct crew *crew = hth_new(struct crew);
    crew->world = hth_world_new(seed, lines);
    crew->n = n;
    crew->liar = UINT32_MAX;
    crew->count = 20000 + 77;
    crew->span[0] = (struct hth_avg_span){1001, HTH_QUANT_F32};
    crew->span[1] = (struct hth_avg_span){crew->count - 1001, format};
    if (shape != NULL)
        assert_ok(hth_avg_shape_parse(shape, &crew->shape));
    for (uint32_t i = 0; i < n; i++) {
        struct hth_node_opts node = HTH_NODE_OPTS_INIT;
        char name[16];
        snprintf(name, sizeof(name), "m%u", i);
        node.boot = boot;
        node.halt = halt;
        node.arg = &crew->mate[i];
        crew->mate[i].crew = crew;
        crew->mate[i].index = i;
        crew->mate[i].node = hth_world_node(crew->world, name, &node);
    }
    return crew;
}

static struct crew *start(uint64_t seed, uint32_t n, const char *shape,
                          enum hth_quant_format format)
{
    struct hth_world_opts o = HTH_WORLD_OPTS_INIT;
    o.link.latency_us = 2 * MS;
    return start_over(&o, seed, n, shape, format);
}

static void stop(struct crew *crew)
{
    struct hth_open_counts leaks;
    for (uint32_t i = 0; i < crew->n; i++)
        if (hth_node_is_up(crew->mate[i].node))
            hth_node_crash(crew->mate[i].node, HTH_CRASH_RESET);
    hth_world_leaks(crew->world, &leaks);
    assert_int_equal(hth_open_total(&leaks), 0);
    hth_world_free(crew->world);
    hth_free(crew);
}

static struct hth_collab_stats stats_of(const struct mate *m)
{
    struct hth_collab_stats stats;
    hth_collab_stats(m->collab, &stats);
    return stats;
}

/* ---- what is promised ---------------------------------------------------------------------- */

/* Nobody fails a round or fetches a mean: all come to one head at each step by themselves. */
static uint64_t check_calm(const struct crew *crew)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < crew->n; i++) {
        const struct mate *m = &crew->mate[i];
        assert_int_equal(stats_of(m).averages.failed, 0);
        assert_int_equal(stats_of(m).means, 0);
        least = HTH_MIN(least, m->step);
        const struct hth_chain *chain = hth_collab_chain(m->collab);
        uint32_t link = hth_collab_choice(m->collab)->tip;
        for (; link != HTH_LINK_NONE && hth_chain_at(chain, link)->step > 0;
             link = hth_chain_at(chain, link)->prev) {
            const struct hth_chain_link *at = hth_chain_at(chain, link);
            assert_memory_equal(hth_chain_head(chain, link), &crew->step[at->step].head,
                                sizeof(struct hth_hash));
            assert_int_equal(at->count, crew->n);
        }
    }
    return least;
}

static void all_hold_the_mean(void **state)
{
    static const struct {
        uint32_t n;
        const char *shape;
        enum hth_quant_format format;
        double clip, most;
        uint32_t clients;
    } cases[] = {
        {20, "5x4", HTH_QUANT_F32, 0, 1e-6, 0},    {20, "5x4", HTH_QUANT_F16, 0, 1e-3, 0},
        {20, "5x4", HTH_QUANT_INT8, 0, 2e-2, 0},   {18, "5x4", HTH_QUANT_INT8, 0, 2e-2, 0},
        {17, "5x4", HTH_QUANT_F16, 0, 1e-3, 0},    {20, "5x4", HTH_QUANT_INT8, 3, 0, 0},
        {18, "5x4", HTH_QUANT_F32, 3, 0, 0},       {36, "6x6", HTH_QUANT_INT8, 0, 2e-2, 0},
        {32, "6x6", HTH_QUANT_F32, 0, 1e-6, 0},    {33, "6x6", HTH_QUANT_INT8, 3, 0, 0},
        {27, "3x3x3", HTH_QUANT_F32, 0, 1e-6, 0},  {27, "3x3x3", HTH_QUANT_INT8, 3, 0, 0},
        {20, "3x3x3", HTH_QUANT_INT8, 0, 3e-2, 0}, {22, "3x3x3", HTH_QUANT_F16, 3, 0, 0},
        {20, "5x4", HTH_QUANT_INT8, 0, 2e-2, 8},   {70, NULL, HTH_QUANT_INT8, 0, 2e-2, 3},
        {7, NULL, HTH_QUANT_INT8, 0, 2e-2, 0},     {20, "5x4", HTH_QUANT_DYNAMIC8, 0, 5e-2, 0},
        {20, "5x4", HTH_QUANT_UNIFORM8, 3, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct crew *crew = start(i + 1, cases[i].n, cases[i].shape, cases[i].format);
        crew->clip = cases[i].clip;
        crew->clients = cases[i].clients;
        crew->liar = crew->clip > 0 ? 2 : UINT32_MAX;
        hth_world_run_for(crew->world, S);
        uint64_t steps = check_calm(crew);
        printf("%u on %s, %s, clip %g: %llu steps, off by at most %g\n", crew->n,
               cases[i].shape != NULL ? cases[i].shape : "a line or a grid",
               hth_quant_name(cases[i].format), crew->clip, (unsigned long long)steps,
               crew->error_max);
        assert_true(steps >= 5);
        assert_true(crew->clip > 0 || crew->error_max < cases[i].most);
        stop(crew);
    }
}

/* Lines end one after the other, and messages wait behind values: nobody is lost for that. */
static void slow_lines_keep_all(void **state)
{
    struct hth_world_opts o = HTH_WORLD_OPTS_INIT;
    (void)state;
    o.link.latency_us = 20 * MS;
    o.device.up_bytes_per_s = o.device.down_bytes_per_s = 20e6 / 8;
    struct crew *crew = start_over(&o, 1, 18, "5x4", HTH_QUANT_INT8);
    crew->span[1].count += 400000;
    crew->count += 400000;
    hth_world_run_for(crew->world, 10 * S);
    uint64_t steps = check_calm(crew);
    printf("slow lines: %llu steps, %lld ms from GO to the mean\n", (unsigned long long)steps,
           (long long)(stats_of(&crew->mate[0]).averaged_us / MS));
    assert_true(steps >= 6);
    stop(crew);
}

/* The longest time from one step to the next since that one. */
static int64_t longest_us(const struct crew *crew, uint64_t from)
{
    int64_t most = 0;
    for (uint64_t s = from + 1; s <= crew->last; s++)
        most = HTH_MAX(most, crew->step[s].first_us - crew->step[s - 1].first_us);
    return most;
}

/* One dies so long after it was asked for its values. Returns by how much a step was late. */
static int64_t late_after_death(uint64_t seed, int64_t after_us, enum hth_crash how)
{
    static const struct {
        uint32_t n;
        const char *shape;
    } grids[] = {{10, "4x3"}, {9, "3x3"}, {11, "2x2x3"}};
    size_t k = seed % HTH_ARRAY_LEN(grids);
    struct crew *crew = start(seed, grids[k].n, grids[k].shape, HTH_QUANT_F32);
    uint32_t victim = (uint32_t)(seed * 7 % crew->n);
    struct mate *m = &crew->mate[victim];
    hth_world_run_for(crew->world, S);
    int64_t usual_us = longest_us(crew, 1);
    uint64_t before = crew->last;
    while (!m->takes)
        hth_world_run_for(crew->world, MS / 4);
    hth_world_run_for(crew->world, after_us);
    hth_node_crash(m->node, how);
    hth_world_run_for(crew->world, 4 * S);
    uint64_t most = 0, least = UINT64_MAX;
    for (uint32_t i = 0; i < crew->n; i++) {
        if (i == victim)
            continue;
        struct hth_collab_stats stats = stats_of(&crew->mate[i]);
        most = HTH_MAX(most, stats.step);
        least = HTH_MIN(least, stats.step);
        assert_memory_equal(&stats.head, &crew->step[stats.step].head, sizeof(stats.head));
    }
    assert_true(least + 1 >= most && least > before + 5);
    int64_t late_us = longest_us(crew, before) - usual_us;
    stop(crew);
    return late_us;
}

static void deaths_cost_little(void **state)
{
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};
    static const int64_t most_us[] = {300 * MS, 1500 * MS};
    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(how); k++) {
        int64_t worst_us = 0;
        for (uint32_t i = 0; i < DEATHS; i++) {
            int64_t late_us = late_after_death(i, i * 3 % 37 * MS, how[k]);
            if (late_us > most_us[k])
                printf("death %u: %lld ms late\n", i, (long long)(late_us / MS));
            worst_us = HTH_MAX(worst_us, late_us);
        }
        printf("%s deaths: a step is at most %lld ms late\n", k == 0 ? "loud" : "silent",
               (long long)(worst_us / MS));
        assert_true(worst_us <= most_us[k]);
    }
}

/* Two have no way to each other. Where they meet in a line, its members have no mean, or another
 * one than other lines; all take the others' steps. */
static void a_pair_without_a_way(void **state)
{
    struct crew *crew = start(4, 12, "4x3", HTH_QUANT_INT8);
    (void)state;
    hth_world_run_for(crew->world, S);
    hth_world_block(crew->world, crew->mate[3].node, crew->mate[7].node, true);
    hth_world_block(crew->world, crew->mate[7].node, crew->mate[3].node, true);
    uint64_t before = crew->last;
    hth_world_run_for(crew->world, 20 * S);
    uint64_t with = crew->last;
    hth_world_heal(crew->world);
    hth_world_run_for(crew->world, 30 * S); /* a state that nobody has is given up in 20 s */
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < crew->n; i++)
        least = HTH_MIN(least, stats_of(&crew->mate[i]).step);
    printf("a broken pair: %llu steps in 20 s, then %llu in 30 s\n",
           (unsigned long long)(with - before), (unsigned long long)(crew->last - with));
    assert_true(with >= before + 10);
    assert_true(crew->last >= with + 40);
    assert_true(least + 1 >= crew->last);
    stop(crew);
}

struct probe {
    bool done;
    enum hth_err err;
};

static void on_probe(void *arg, const struct hth_rpc_result *result)
{
    struct probe *p = arg;
    p->done = true;
    p->err = result->err;
    assert_true(result->remote);
}

/* A member's ROWs that are not its own, or of no line here: refused, and nothing else happens. */
static void bad_rows_are_refused(void **state)
{
    enum { BYTES, GROUP, FIRST_AXIS, NO_AXIS, NO_CELL, COUNT, OTHERS, NOT_LED, LATE, CASES };
    static const enum hth_err expected[CASES] = {
        [BYTES] = HTH_E_TRUNCATED,    [GROUP] = HTH_E_AGAIN,      [FIRST_AXIS] = HTH_E_RANGE,
        [NO_AXIS] = HTH_E_RANGE,      [NO_CELL] = HTH_E_RANGE,    [COUNT] = HTH_E_RANGE,
        [OTHERS] = HTH_E_BAD_PEER_ID, [NOT_LED] = HTH_E_PROTOCOL, [LATE] = HTH_E_EXPIRED};
    struct crew *crew = start(3, 12, "4x3", HTH_QUANT_F32);
    struct mate *to = &crew->mate[0], *from;
    struct probe probe[CASES] = {{.done = false}};
    (void)state;
    hth_world_run_for(crew->world, S);
    while (to->collab->grid == NULL)
        hth_world_run_for(crew->world, MS);
    const struct hth_cells *c = &to->collab->cells;
    const struct hth_roll_group *group = &to->collab->group;
    uint32_t own = c->cell[group->self];
    uint32_t cell = (hth_cells_on_line(c, own, 1, 0) + 3) % c->count; /* on the next line */
    from = &crew->mate[index_of(crew, &group->peer[c->member[cell]].id)];
    for (uint32_t i = 0; i < CASES; i++) {
        struct hth_row_msg row = {.group = i == LATE    ? to->collab->grid_ended
                                           : i == GROUP ? (struct hth_hash){{1}}
                                                        : group->id,
                                  .axis = i == FIRST_AXIS ? 0
                                          : i == NO_AXIS  ? 2
                                                          : 1,
                                  .cell = i == NO_CELL  ? c->cells
                                          : i == OTHERS ? own
                                                        : cell,
                                  .state = i == COUNT ? HTH_ROW_HAS : HTH_ROW_FAILED,
                                  .marks.count = c->count - 1};
        uint8_t bytes[HTH_ROW_BYTES_MAX];
        struct hth_rpc_call_opts opts = {.method = HTH_ROW_METHOD, .timeout_us = S};
        struct hth_rpc_target target = {to->env->self, hth_node_addr(to->node, PORT)};
        opts.body.payload = bytes;
        opts.body.payload_len = hth_row_write(&row, bytes) - (i == BYTES);
        assert_ok(hth_rpc_call(from->rpc, &target, &opts, on_probe, &probe[i], NULL));
    }
    hth_world_run_for(crew->world, S);
    for (uint32_t i = 0; i < CASES; i++) {
        assert_true(probe[i].done);
        assert_err(expected[i], probe[i].err);
    }
    check_calm(crew);
    stop(crew);
}

/* The others go on to the next protocol while it is away. It says so, and ends; they do not. */
static void a_program_that_is_too_old_ends(void **state)
{
    (void)state;
    struct crew *crew = start(1, 4, NULL, HTH_QUANT_F32);
    struct mate *old = &crew->mate[2];
    for (uint32_t i = 0; i < 4; i++)
        crew->mate[i].last_protocol = i == 2 ? 1 : 2;
    for (uint32_t i = 0; i < 4; i++) {
        hth_node_crash(crew->mate[i].node, HTH_CRASH_RESET);
        hth_node_restart(crew->mate[i].node);
    }
    memset(crew->step, 0, sizeof(crew->step));
    hth_world_run_for(crew->world, 5 * S);
    uint32_t tip = hth_collab_choice(crew->mate[0].collab)->tip;
    assert_int_equal(hth_chain_at(crew->mate[0].collab->chain, tip)->protocol, 1);
    hth_node_crash(old->node, HTH_CRASH_RESET);
    hth_world_run_for(crew->world, 5 * S);
    tip = hth_collab_choice(crew->mate[0].collab)->tip;
    assert_int_equal(hth_chain_at(crew->mate[0].collab->chain, tip)->protocol, 2);
    hth_node_restart(old->node);
    hth_world_run_for(crew->world, S);
    hth_timer_set(old->env, old->collab->timer, 0);
    hth_world_run_for(crew->world, 58 * S);
    assert_int_equal(old->failed, HTH_OK);
    hth_world_run_for(crew->world, 5 * S);
    assert_int_equal(old->failed, HTH_E_VERSION);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(crew->mate[i].failed, i == 2 ? HTH_E_VERSION : HTH_OK);
    stop(crew);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_hold_the_mean),    cmocka_unit_test(slow_lines_keep_all),
        cmocka_unit_test(deaths_cost_little),   cmocka_unit_test(a_pair_without_a_way),
        cmocka_unit_test(bad_rows_are_refused),
        cmocka_unit_test(a_program_that_is_too_old_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
