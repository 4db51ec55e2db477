/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_arrive.c: members that missed steps and newcomers get to the tip of a run that goes on, in
 * the simulated world. The run is a clock: each step it makes a mean and a link, and those of its
 * members that are up add the mean to their parameters.
 */
#include "collab/arrive.h"
#include "collab/nodes.h"
#include "core/mem.h"

#define SCHEMA 99

enum { DONORS_MAX = 4, STEPS_MAX = 400, VALUES = 64 * HTH_MEAN_BLOCK + 7 };
#define MEAN_BYTES (VALUES * sizeof(float))

struct run;

struct donor {
    struct run *run;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_means *means;
    struct hth_state_donor *donor;
    uint32_t tip; /* link */
    float params[VALUES];
    bool declines, short_meta, spoilt; /* its states */
    bool stays;                        /* takes no more steps */
};

struct newcomer {
    struct run *run;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_chain *chain;
    struct hth_means *means;
    struct hth_arrive *arrive;
    struct hth_timer *links;
    uint32_t at;    /* link in its chain */
    uint32_t known; /* the run's last link that it knows, in the run's chain */
    float params[VALUES];
    struct hth_budget budget;
    uint32_t steps, states, ends;
    enum hth_err err, step_err, adopt_err;
    bool goes_on; /* asks for links five times a step, until it is at the tip */
    bool came;
    int64_t came_us;
};

struct run {
    struct hth_world *world;
    struct donor donor[DONORS_MAX];
    uint32_t donors;
    struct newcomer newcomer;
    struct hth_chain *chain;
    uint32_t tip;
    uint64_t values; /* of a mean; beyond VALUES only as ghosts */
    uint64_t state_bytes;
    int64_t step_us, next_us;
    struct hth_hash params[STEPS_MAX]; /* digest of all members' by step */
    bool ghost;
    uint32_t links_max; /* that the newcomer keeps */
};

/* ---- chains and models ----------------------------------------------------------------------- */

static struct hth_chain *make_chain(uint32_t links_max)
{
    const struct hth_chain_opts opts = {.crypto = hth_sim_crypto(),
                                        .window = 8,
                                        .eventual = true,
                                        .links_max = links_max,
                                        .members_max = 4,
                                        .rolls_max = STEPS_MAX};
    return hth_chain_new(&opts);
}

static uint32_t add_link(struct hth_chain *chain, uint32_t prev, enum hth_link_kind kind,
                         uint32_t ballot, const struct hth_hash *mean)
{
    static const struct hth_peer_id member = {{1}};
    struct hth_roll roll = {.marks = HTH_ROLL_IN, .samples = 1};
    struct hth_chain_link link = {
        .prev = prev, .kind = kind, .ballot = ballot, .mean = *mean, .roll = &roll, .count = 1};
    uint32_t out;
    link.step = prev == HTH_LINK_NONE ? 0 : hth_chain_at(chain, prev)->step + 1;
    assert_ok(hth_chain_member(chain, &member, 1, &roll.member));
    assert_ok(hth_chain_add(chain, &link, &out));
    return out;
}

/* Takes up the links of the run up to this one; returns its number in that chain. */
static uint32_t copy_links(const struct run *r, uint32_t link, struct hth_chain *into)
{
    uint8_t bytes[512];
    struct hth_writer w;
    struct hth_reader rd;
    uint32_t out = hth_chain_find(into, hth_chain_head(r->chain, link));
    if (out != HTH_LINK_NONE)
        return out;
    if (hth_chain_at(r->chain, link)->prev != HTH_LINK_NONE)
        copy_links(r, hth_chain_at(r->chain, link)->prev, into);
    hth_writer_init(&w, bytes, sizeof(bytes));
    hth_chain_write(r->chain, link, &w);
    assert_ok(w.err);
    hth_reader_init(&rd, bytes, w.pos);
    assert_ok(hth_chain_read(into, &rd, &out));
    return out;
}

static uint64_t mean_bytes(const struct run *r)
{
    return r->values * sizeof(float);
}

static void add_mean(float *params, const struct hth_blob *mean)
{
    for (uint64_t i = 0; mean->data != NULL && i < mean->size / sizeof(float); i++)
        params[i] += ((const float *)(const void *)mean->data)[i];
}

/* ---- donors ---------------------------------------------------------------------------------- */

static uint64_t step_of(void *arg)
{
    const struct donor *d = arg;
    return hth_chain_at(d->run->chain, d->tip)->step;
}

static void want(void *arg)
{
    struct donor *d = arg;
    struct hth_blob *values;
    if (d->declines) {
        hth_state_donor_decline(d->donor);
        return;
    }
    assert_ok(hth_env_blob_new(d->env, d->run->state_bytes, NULL, &values));
    if (values->data != NULL) {
        memset(values->data, 7, values->size);
        memcpy(values->data, d->params, mean_bytes(d->run));
        if (d->spoilt)
            ((float *)(void *)values->data)[3] = NAN;
    }
    assert_ok(hth_state_donor_give(d->donor, step_of(d), hth_chain_head(d->run->chain, d->tip),
                                   d->short_meta ? 31 : HTH_HASH_LEN, values));
    hth_blob_unref(values);
}

static void halt_donor(struct hth_env *env, void *arg)
{
    struct donor *d = arg;
    (void)env;
    hth_state_donor_free(d->donor);
    hth_means_free(d->means);
    hth_rpc_free(d->rpc);
    d->donor = NULL;
    d->means = NULL;
    d->rpc = NULL;
}

static struct donor *add_donor(struct run *r)
{
    struct donor *d = &r->donor[r->donors];
    struct hth_node_opts node = {.halt = halt_donor, .arg = d};
    struct hth_state_donor_opts opts = HTH_STATE_DONOR_OPTS_INIT;
    char name[16];
    snprintf(name, sizeof(name), "d%u", r->donors++);
    d->run = r;
    d->tip = r->tip;
    d->node = hth_world_node(r->world, name, &node);
    d->env = hth_node_env(d->node);
    d->rpc = make_rpc(d->env, d->node, NULL, NULL);
    d->means = hth_means_new(d->env, d->rpc, NULL);
    opts.network = "run";
    opts.schema = SCHEMA;
    opts.addr = hth_node_addr(d->node, PORT);
    opts.want = want;
    opts.step = step_of;
    opts.arg = d;
    assert_ok(hth_state_donor_new(d->env, d->rpc, hth_node_dht(d->node), &opts, &d->donor));
    return d;
}

/* As a trainer does: the donor's snapshots decide which means are kept. */
static void step_donor(struct donor *d, uint32_t link, struct hth_blob *mean)
{
    struct hth_state_donor_stats given;
    if (!hth_node_is_up(d->node) || d->stays)
        return;
    hth_state_donor_stats(d->donor, &given);
    hth_means_keep_from(d->means, given.oldest);
    hth_means_put(d->means, hth_chain_head(d->run->chain, link),
                  hth_chain_at(d->run->chain, link)->step, mean);
    add_mean(d->params, mean);
    d->tip = link;
}

/* ---- the newcomer ---------------------------------------------------------------------------- */

static void go(struct newcomer *n)
{
    struct run *r = n->run;
    struct hth_roll_peer holders[DONORS_MAX] = {{.life = 0}};
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->donors; i++)
        holders[count++] = peer_of(r->donor[i].node);
    hth_arrive_go(n->arrive, n->at, hth_chain_find(n->chain, hth_chain_head(r->chain, n->known)),
                  holders, count);
}

static void learn(struct newcomer *n)
{
    n->known = n->run->tip;
    copy_links(n->run, n->known, n->chain);
}

static void on_links(void *arg)
{
    struct newcomer *n = arg;
    learn(n);
    if (!hth_arrive_is_going(n->arrive))
        go(n);
    if (n->goes_on)
        hth_timer_set(n->env, n->links, n->run->step_us / 5);
}

static void go_on(struct newcomer *n)
{
    n->goes_on = true;
    on_links(n);
}

static void check_params(const struct newcomer *n, uint32_t link)
{
    uint64_t step = hth_chain_at(n->chain, link)->step;
    struct hth_hash digest = digest_of(n->run->ghost ? NULL : n->params, n->run->values);
    assert_memory_equal(&digest, &n->run->params[step], sizeof(digest));
}

static void on_step(void *arg, uint32_t link, struct hth_blob *mean)
{
    struct newcomer *n = arg;
    assert_int_equal(mean->size, mean_bytes(n->run));
    n->steps++;
    if (n->step_err == HTH_OK) {
        add_mean(n->params, mean);
        check_params(n, link);
    }
    hth_arrive_stepped(n->arrive, n->step_err);
}

static void on_adopt(void *arg, uint32_t link, const struct hth_state_result *state)
{
    struct newcomer *n = arg;
    enum hth_err err = n->adopt_err;
    n->states++;
    assert_int_equal(state->values->size, n->run->state_bytes);
    if (state->values->data != NULL) {
        memcpy(n->params, state->values->data, mean_bytes(n->run));
        if (isnan(n->params[3]))
            err = HTH_E_NOT_FINITE;
    }
    if (err == HTH_OK)
        check_params(n, link);
    hth_arrive_adopted(n->arrive, err);
}

static void on_done(void *arg, enum hth_err err, uint32_t link)
{
    struct newcomer *n = arg;
    const struct run *r = n->run;
    n->ends++;
    n->err = err;
    n->at = link;
    if (hth_chain_has(n->chain, link) && n->step_err == HTH_OK)
        check_params(n, link);
    bool tip =
        hth_chain_has(n->chain, link) &&
        memcmp(hth_chain_head(n->chain, link), hth_chain_head(r->chain, r->tip), HTH_HASH_LEN) == 0;
    n->came = err == HTH_OK && (tip || !n->goes_on);
    n->came_us = hth_now_us(n->env);
    if (err == HTH_E_AGAIN) {
        struct hth_hash head;
        struct hth_roll_peer holder;
        hth_arrive_unknown(n->arrive, &head, &holder);
        assert_int_equal(hth_chain_find(n->chain, &head), HTH_LINK_NONE);
        assert_int_not_equal(hth_chain_find(r->chain, &head), HTH_LINK_NONE);
        assert_int_equal(holder.addr.port, PORT);
    }
    if (n->came)
        hth_timer_cancel(n->env, n->links);
}

static void halt_newcomer(struct hth_env *env, void *arg)
{
    struct newcomer *n = arg;
    (void)env;
    hth_arrive_free(n->arrive);
    hth_means_free(n->means);
    hth_timer_free(n->env, n->links);
    hth_rpc_free(n->rpc);
    n->arrive = NULL;
    n->means = NULL;
    n->links = NULL;
    n->rpc = NULL;
}

/* It holds nothing yet, and knows the links up to the tip. */
static struct newcomer *add_newcomer(struct run *r, double bytes_per_s)
{
    static const struct hth_arrive_ops ops = {on_step, on_adopt, on_done};
    struct newcomer *n = &r->newcomer;
    struct hth_device device = HTH_DEVICE_INIT;
    struct hth_node_opts node = {.halt = halt_newcomer, .arg = n, .device = &device};
    device.down_bytes_per_s = bytes_per_s;
    n->run = r;
    n->at = HTH_LINK_NONE;
    n->node = hth_world_node(r->world, "newcomer", &node);
    n->env = hth_node_env(n->node);
    n->rpc = make_rpc(n->env, n->node, NULL, NULL);
    n->means = hth_means_new(n->env, n->rpc, NULL);
    n->links = hth_timer_new(n->env, on_links, n);
    n->chain = make_chain(r->links_max);
    learn(n);
    hth_budget_init(&n->budget, INT64_MAX / 2, NULL);
    const struct hth_arrive_opts opts = {
        .values = r->values, .schema = SCHEMA, .state_bytes = r->state_bytes, .budget = &n->budget};
    n->arrive = hth_arrive_new(n->env, n->rpc, n->chain, n->means, &opts, &ops, n);
    return n;
}

/* It holds that step's link, as if it had been there. */
static void hold(struct newcomer *n, uint64_t step)
{
    uint32_t link = n->run->tip;
    memset(n->params, 0, sizeof(n->params));
    while (hth_chain_at(n->run->chain, link)->step > step)
        link = hth_chain_at(n->run->chain, link)->prev;
    n->at = hth_chain_find(n->chain, hth_chain_head(n->run->chain, link));
    for (uint64_t s = 1; s <= step; s++) {
        struct hth_blob *mean = make_mean(n->env, n->run->values, s);
        add_mean(n->params, mean);
        hth_blob_unref(mean);
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

static void setup_values(struct run *r, bool ghost, uint64_t values, double state_means,
                         int64_t step_us)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    static const float zero[VALUES];
    memset(r, 0, sizeof(*r));
    opts.ghost = r->ghost = ghost;
    opts.link.latency_us = 2 * MS;
    r->world = hth_world_new(1, &opts);
    r->chain = make_chain(STEPS_MAX);
    r->links_max = STEPS_MAX;
    r->values = values;
    r->state_bytes = (uint64_t)(state_means * (double)mean_bytes(r));
    r->step_us = step_us;
    r->next_us = step_us;
    r->params[0] = digest_of(ghost ? NULL : zero, values);
    r->tip = add_link(r->chain, HTH_LINK_NONE, HTH_LINK_GENESIS, 0, &r->params[0]);
}

static void setup(struct run *r, bool ghost, double state_means, int64_t step_us)
{
    setup_values(r, ghost, VALUES, state_means, step_us);
}

static void take_step(struct run *r)
{
    uint64_t step = hth_chain_at(r->chain, r->tip)->step + 1;
    struct hth_blob *mean = make_mean(r->donor[0].env, r->values, step);
    static float params[VALUES];
    if (step == 1)
        memset(params, 0, sizeof(params));
    add_mean(params, mean);
    assert_true(step < STEPS_MAX);
    struct hth_hash digest = digest_of(mean->data, r->values);
    r->params[step] = digest_of(r->ghost ? NULL : params, r->values);
    r->tip = add_link(r->chain, r->tip, HTH_LINK_STEP, 0, &digest);
    for (uint32_t i = 0; i < r->donors; i++)
        step_donor(&r->donor[i], r->tip, mean);
    hth_blob_unref(mean);
}

static void run_steps(struct run *r, uint32_t steps)
{
    for (; steps > 0; steps--) {
        hth_world_run_until(r->world, r->next_us);
        r->next_us += r->step_us;
        take_step(r);
    }
}

static bool is_over(void *arg)
{
    const struct newcomer *n = &((const struct run *)arg)->newcomer;
    return n->came || (n->ends > 0 && !n->goes_on);
}

/* The run goes on until the arrival has ended. */
static bool run_until_over(struct run *r, int64_t us)
{
    int64_t end = hth_world_now_us(r->world) + us;
    while (!is_over(r) && hth_world_now_us(r->world) < end) {
        int64_t next = HTH_MIN(r->next_us, end);
        if (hth_world_run_until_true(r->world, is_over, r, next - hth_world_now_us(r->world)))
            return true;
        if (next == r->next_us) {
            r->next_us += r->step_us;
            take_step(r);
        }
    }
    return is_over(r);
}

static uint64_t fetched(const struct newcomer *n)
{
    struct hth_means_stats stats;
    hth_means_stats(n->means, &stats);
    return stats.fetched;
}

static bool is_fetching(void *arg)
{
    return fetched(arg) > 0;
}

static void tear_down(struct run *r)
{
    struct newcomer *n = &r->newcomer;
    for (uint32_t i = 0; i < r->donors; i++)
        halt_donor(NULL, &r->donor[i]);
    halt_newcomer(NULL, n);
    end_world(r->world);
    hth_chain_free(r->chain);
    assert_int_equal(hth_budget_used(&n->budget), 0);
    hth_chain_free(n->chain);
}

static uint64_t parts_given(const struct run *r)
{
    uint64_t parts = 0;
    for (uint32_t i = 0; i < r->donors; i++) {
        struct hth_state_donor_stats given = {0};
        if (r->donor[i].donor != NULL)
            hth_state_donor_stats(r->donor[i].donor, &given);
        parts += given.parts;
    }
    return parts;
}

/* ---- what is promised ------------------------------------------------------------------------ */

static void a_missed_step_is_one_mean(void **state)
{
    (void)state;
    static const struct {
        uint64_t missed;
        uint32_t steps, states;
    } cases[] = {{0, 0, 0}, {1, 1, 0}, {3, 3, 0}, {32, 32, 0}, {33, 0, 1}};
    for (int ghost = 0; ghost < 2; ghost++)
        for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
            static struct run r;
            setup(&r, ghost, 3, 10 * MS);
            add_donor(&r);
            add_donor(&r);
            run_steps(&r, 40);
            struct newcomer *n = add_newcomer(&r, 125e6);
            hold(n, 40 - cases[i].missed);
            r.step_us = r.next_us = 1000 * S; /* the run waits for it */
            go(n);
            assert_true(run_until_over(&r, 10 * S));
            assert_ok(n->err);
            assert_int_equal(hth_chain_at(n->chain, n->at)->step, 40);
            assert_int_equal(n->steps, cases[i].steps);
            assert_int_equal(n->states, cases[i].states);
            assert_int_equal(fetched(n), cases[i].steps * MEAN_BYTES);
            assert_int_equal(parts_given(&r) > 0, cases[i].states > 0);
            tear_down(&r);
        }
}

/* A state takes `state_steps` steps to come, and a mean half a step: the means made meanwhile are
 * fetched behind it, and those made meanwhile, so it takes twice as long. */
static void check_newcomer(bool ghost, double state_steps, int64_t step_us)
{
    static struct run r;
    const double rate = 4e6;
    setup_values(&r, ghost, (uint64_t)(rate * (double)step_us / 1e6 / 2.1 / sizeof(float)),
                 2 * state_steps, step_us);
    for (int d = 0; d < 3; d++)
        add_donor(&r);
    run_steps(&r, 10);
    struct newcomer *n = add_newcomer(&r, rate);
    int64_t begin = hth_world_now_us(r.world);
    go_on(n);
    assert_true(run_until_over(&r, 60 * step_us));
    double took = (double)(n->came_us - begin) / (double)step_us;
    double wait = HTH_MAX(3.0, 1e6 / (double)step_us);
    printf("%sstate of %g steps of %lld ms: in after %.1f, %u states, %u means, %u arrivals\n",
           ghost ? "ghosts, " : "", state_steps, (long long)(step_us / MS), took, n->states,
           n->steps, n->ends);
    assert_true(took <= 2 * state_steps + wait);
    tear_down(&r);
}

static void newcomers_reach_the_tip(void **state)
{
    (void)state;
    static const double state_steps[] = {0.5, 1, 3, 10};
    static const int64_t step_us[] = {20 * MS, 50 * MS, 500 * MS, 10 * S};
    for (size_t i = 0; i < HTH_ARRAY_LEN(state_steps); i++)
        for (size_t k = 0; k < HTH_ARRAY_LEN(step_us); k++) {
            check_newcomer(true, state_steps[i], step_us[k]);
            if (step_us[k] < S)
                check_newcomer(false, state_steps[i], step_us[k]);
        }
}

/* From another branch, from its own genesis, or where means are gone everywhere. */
static void other_ways_cost_a_state(void **state)
{
    enum way { BRANCH, GENESIS, GENESIS_BEFORE, OTHER_GENESIS, GONE };
    static const struct {
        enum way way;
        uint32_t before, steps, states; /* of the run; which it takes */
    } cases[] = {{BRANCH, 10, 0, 1},
                 {GENESIS, 0, 0, 0}, /* of the same parameters: nothing is moved */
                 {GENESIS_BEFORE, 3, 3, 0},
                 {OTHER_GENESIS, 0, 0, 1},
                 {GONE, 10, 0, 1}};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        static struct run r;
        enum way way = cases[i].way;
        struct hth_hash mean = {{9}};
        setup(&r, false, 3, way == GONE ? 5 * S : 200 * MS); /* one mean is kept */
        add_donor(&r);
        run_steps(&r, cases[i].before);
        struct newcomer *n = add_newcomer(&r, 125e6);
        if (way == GONE)
            hold(n, 7);
        else if (way == BRANCH)
            n->at = add_link(n->chain, 5, HTH_LINK_STEP, 1, &mean);
        else
            n->at = add_link(n->chain, HTH_LINK_NONE, HTH_LINK_GENESIS, 5,
                             way == OTHER_GENESIS ? &mean : &r.params[0]);
        if (way == GENESIS || way == GENESIS_BEFORE)
            memset(n->params, 0, sizeof(n->params));
        go(n);
        assert_true(run_until_over(&r, 3 * S));
        assert_ok(n->err);
        assert_memory_equal(hth_chain_head(n->chain, n->at), hth_chain_head(r.chain, n->known), 32);
        assert_int_equal(n->states, cases[i].states);
        assert_int_equal(n->steps, cases[i].steps);
        tear_down(&r);
    }
}

/* A snapshot's head may be newer than the chain. Where steps are quick the run is far ahead of it
 * once its links are here: it will do all the same, or the next one would be ahead again. */
static void an_unknown_head_is_named(void **state)
{
    (void)state;
    for (int quick = 0; quick < 2; quick++) {
        static struct run r;
        setup_values(&r, false, quick ? VALUES / 8 : VALUES, 3, quick ? 10 * MS : S);
        add_donor(&r);
        run_steps(&r, 20);
        struct newcomer *n = add_newcomer(&r, 125e6);
        run_steps(&r, 1);
        go(n);
        assert_true(run_until_over(&r, 900 * MS));
        assert_err(HTH_E_AGAIN, n->err);
        assert_int_equal(n->at, HTH_LINK_NONE);
        struct hth_hash head;
        struct hth_roll_peer holder;
        hth_arrive_unknown(n->arrive, &head, &holder);
        assert_true(quick || memcmp(&head, hth_chain_head(r.chain, r.tip), sizeof(head)) == 0);
        assert_true(hth_peer_id_eq(&holder.id, &r.donor[0].env->self));
        run_steps(&r, quick ? 2 : 0);
        n->ends = 0;
        on_links(n);
        assert_true(run_until_over(&r, 900 * MS));
        assert_true(quick || n->err == HTH_OK);
        assert_int_equal(n->states, 1);
        tear_down(&r);
    }
}

static bool has_parts(void *arg)
{
    return parts_given(arg) > 10;
}

/* Donors die while they give a state, or means; one is left. */
static void donors_die(void **state)
{
    (void)state;
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};
    for (size_t k = 0; k < HTH_ARRAY_LEN(how); k++)
        for (int in_means = 0; in_means < 2; in_means++) {
            static struct run r;
            setup(&r, false, 10, 500 * MS);
            for (int i = 0; i < 3; i++)
                add_donor(&r);
            run_steps(&r, 10);
            struct newcomer *n = add_newcomer(&r, 3.0 * MEAN_BYTES * 2);
            int64_t begin = hth_world_now_us(r.world);
            if (in_means) {
                hold(n, 8);
                assert_false(is_fetching(n));
            }
            go_on(n);
            assert_true(hth_world_run_until_true(r.world, in_means ? is_fetching : has_parts,
                                                 in_means ? (void *)n : (void *)&r, 400 * MS));
            hth_node_crash(r.donor[0].node, how[k]);
            hth_world_run_for(r.world, 50 * MS);
            hth_node_crash(r.donor[1].node, how[k]);
            assert_true(run_until_over(&r, 60 * S));
            assert_ok(n->err);
            printf("%s deaths during %s: in after %lld ms, %u states\n", k == 0 ? "loud" : "silent",
                   in_means ? "means" : "a state", (long long)(n->came_us - begin) / MS, n->states);
            assert_true(n->came_us - begin < (k == 0 ? 3 : 12) * S);
            tear_down(&r);
        }
}

/* Where no holder is left it says so, and what it holds. */
static void nobody_is_left(void **state)
{
    enum what { DEAD, SILENT, DECLINE, NO_MEANS };
    static const struct {
        enum what what;
        int64_t within_us;
        enum hth_err want;
    } cases[] = {{DEAD, 1 * S, HTH_E_NOT_FOUND},
                 {SILENT, 12 * S, HTH_E_NOT_FOUND},
                 {DECLINE, 21 * S, HTH_E_TIMEOUT},
                 {NO_MEANS, 22 * S, HTH_E_TIMEOUT}}; /* its state does not lead there */
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        static struct run r;
        enum what what = cases[i].what;
        setup(&r, false, 3, 100 * MS);
        struct donor *d = add_donor(&r);
        run_steps(&r, 5);
        d->declines = what == DECLINE;
        d->stays = true;
        run_steps(&r, what == NO_MEANS ? 3 : 0);
        if (what == NO_MEANS) {
            hth_means_free(d->means);
            d->means = NULL;
        }
        struct newcomer *n = add_newcomer(&r, 125e6);
        if (what == DEAD || what == SILENT)
            hth_node_crash(d->node, what == DEAD ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
        int64_t begin = hth_world_now_us(r.world);
        r.next_us = INT64_MAX / 2; /* the run stands still */
        go(n);
        assert_true(run_until_over(&r, 30 * S));
        assert_err(cases[i].want, n->err);
        assert_true(n->came_us - begin <= cases[i].within_us);
        assert_int_equal(n->states, what == NO_MEANS);
        if (what == NO_MEANS)
            assert_int_equal(hth_chain_at(n->chain, n->at)->step, 5);
        else
            assert_int_equal(n->at, HTH_LINK_NONE);
        tear_down(&r);
    }
}

static void states_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        bool spoilt, short_meta, behind;
        uint32_t states;
    } cases[] = {{true, false, false, 2}, {false, true, false, 1}, {false, false, true, 1}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        static struct run r;
        setup(&r, false, 3, 100 * MS);
        struct donor *bad = add_donor(&r);
        add_donor(&r);
        run_steps(&r, 2);
        bad->stays = cases[i].behind; /* no state of it leads there */
        run_steps(&r, 40);
        bad->spoilt = cases[i].spoilt;
        bad->short_meta = cases[i].short_meta;
        struct newcomer *n = add_newcomer(&r, 125e6);
        if (cases[i].spoilt) /* the other one's comes later */
            hth_node_stall(r.donor[1].node, 400 * MS);
        go_on(n);
        assert_true(run_until_over(&r, 20 * S));
        assert_ok(n->err);
        assert_int_equal(n->states, cases[i].states);
        tear_down(&r);
    }
}

/* The owner's own errors end it, and are told. */
static void errors_of_the_owner(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        static struct run r;
        setup(&r, false, 3, 1000 * S);
        add_donor(&r);
        for (int i = 0; i < 3; i++)
            take_step(&r);
        struct newcomer *n = add_newcomer(&r, 125e6);
        n->step_err = k == 0 ? HTH_E_DEVICE : HTH_OK;
        n->adopt_err = k == 1 ? HTH_E_DEVICE : k == 2 ? HTH_E_NOT_FINITE : HTH_OK;
        if (k == 0)
            hold(n, 1);
        go(n);
        assert_true(run_until_over(&r, 10 * S));
        assert_err(k == 2 ? HTH_E_NOT_FOUND : HTH_E_DEVICE, n->err);
        assert_int_equal(n->states, k != 0);
        if (k == 0)
            assert_int_equal(hth_chain_at(n->chain, n->at)->step, 1);
        else
            assert_int_equal(n->at, HTH_LINK_NONE);
        tear_down(&r);
    }
}

static void budgets_are_kept(void **state)
{
    (void)state;
    static const struct {
        int64_t means; /* that have room */
        uint64_t held; /* 0: nothing */
        enum hth_err want;
    } cases[] = {
        {3, 0, HTH_OK}, {2, 0, HTH_E_BUDGET}, {2, 1, HTH_OK}, {1, 1, HTH_OK}, {0, 1, HTH_E_BUDGET}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        static struct run r;
        setup(&r, false, 3, 1000 * S);
        add_donor(&r);
        for (int k = 0; k < 5; k++)
            take_step(&r);
        struct newcomer *n = add_newcomer(&r, 125e6);
        if (cases[i].held > 0)
            hold(n, cases[i].held);
        n->budget.limit_bytes = cases[i].means * (int64_t)MEAN_BYTES;
        go(n);
        assert_true(run_until_over(&r, 10 * S));
        assert_err(cases[i].want, n->err);
        assert_int_equal(hth_budget_used(&n->budget), 0);
        tear_down(&r);
    }
}

/* The chain grows past the wanted link, while means or a state are fetched. */
static void links_go(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        static struct run r;
        setup(&r, false, 6, 10 * MS);
        add_donor(&r);
        run_steps(&r, 20);
        r.links_max = 24;
        struct newcomer *n = add_newcomer(&r, k == 0 ? 125e6 : 4e6);
        if (k == 2)
            hold(n, 10);
        go(n);
        for (int i = 0; i < 5 && k > 0; i++) { /* it is under way */
            run_steps(&r, 1);
            copy_links(&r, r.tip, n->chain);
        }
        assert_true(hth_arrive_is_going(n->arrive));
        for (int i = 0; i < 30; i++)
            take_step(&r);
        copy_links(&r, r.tip, n->chain);
        assert_true(run_until_over(&r, 10 * S));
        assert_err(HTH_E_NOT_FOUND, n->err);
        tear_down(&r);
    }
}

/* The owner ends it whenever it likes. */
static void an_arrival_ends_anywhere(void **state)
{
    (void)state;
    for (int64_t us = 0; us < 400 * MS; us += 5 * MS) {
        static struct run r;
        setup(&r, false, 6, 50 * MS);
        add_donor(&r);
        run_steps(&r, 5);
        struct newcomer *n = add_newcomer(&r, 1e6);
        if (us / MS % 2 == 0)
            hold(n, 2);
        go_on(n);
        run_until_over(&r, us);
        tear_down(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missed_step_is_one_mean),
        cmocka_unit_test(newcomers_reach_the_tip),
        cmocka_unit_test(other_ways_cost_a_state),
        cmocka_unit_test(an_unknown_head_is_named),
        cmocka_unit_test(donors_die),
        cmocka_unit_test(nobody_is_left),
        cmocka_unit_test(states_that_are_refused),
        cmocka_unit_test(errors_of_the_owner),
        cmocka_unit_test(budgets_are_kept),
        cmocka_unit_test(links_go),
        cmocka_unit_test(an_arrival_ends_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
