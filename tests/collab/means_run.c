/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/means_run.h"

#include "core/mem.h"

/* ---- chains and models ----------------------------------------------------------------------- */

static struct hth_chain *make_chain(uint32_t links_max)
{
    const struct hth_chain_opts opts = {.crypto = hth_sim_crypto(),
                                        .window = 16,
                                        .eventual = true,
                                        .links_max = links_max,
                                        .members_max = 4};
    return hth_chain_new(&opts);
}

uint32_t add_link(struct hth_chain *chain, uint32_t prev, enum hth_link_kind kind, uint32_t ballot,
                  const struct hth_hash *mean)
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
uint32_t copy_links(const struct run *r, uint32_t link, struct hth_chain *into)
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
    assert_ok(hth_chain_read(into, &rd, NULL, &out));
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
    return d->said > 0 ? d->said : hth_chain_at(d->run->chain, d->tip)->step;
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
    hth_state_donor_free(d->donor);
    hth_rpc_free(d->rpc);
    d->donor = NULL;
    d->rpc = NULL;
}

struct donor *add_donor(struct run *r)
{
    struct donor *d = &r->donor[r->donors];
    struct hth_node_opts node = {.halt = halt_donor, .arg = d};
    struct hth_state_donor_opts opts = {.want = NULL};
    char name[16];
    snprintf(name, sizeof(name), "d%u", r->donors++);
    d->run = r;
    d->tip = r->tip;
    d->node = hth_world_node(r->world, name, &node);
    d->env = hth_node_env(d->node);
    d->rpc = make_rpc(d->env, d->node, NULL, NULL);
    opts.schema = SCHEMA;
    opts.budget = r->budget;
    opts.want = want;
    opts.step = step_of;
    opts.arg = d;
    assert_ok(hth_state_donor_new(d->env, d->rpc, &opts, &d->donor));
    return d;
}

static void step_donor(struct donor *d, uint32_t link, struct hth_blob *mean)
{
    const struct hth_crypto *crypto = hth_sim_crypto();
    if (!hth_node_is_up(d->node) || d->stays)
        return;
    add_mean(d->params, mean);
    d->tip = link;
    if (d->kind == GONE)
        return;
    struct hth_blob *hashes = hth_mean_hashes(crypto, mean), *bad;
    assert_ok(hth_env_blob_new(d->env, mean->size - (d->kind == SHORT ? 4 : 0), NULL, &bad));
    if (mean->data != NULL)
        memcpy(bad->data, mean->data, bad->size);
    if (d->kind == LIES || d->kind == HASHES)
        bad->data[bad->size - 1] ^= 1;
    if (d->kind == HASHES) {
        hth_blob_unref(hashes);
        hashes = hth_mean_hashes(crypto, bad);
    }
    hth_state_donor_keep(d->donor, hth_chain_head(d->run->chain, link),
                         hth_chain_at(d->run->chain, link)->step, bad, hashes);
    hth_blob_unref(hashes);
    hth_blob_unref(bad);
}

static void ignore(void *arg, struct hth_rpc_request *req)
{
    hth_rpc_ignore(req);
}

void lie(struct donor *d, enum kind kind)
{
    d->kind = kind;
    for (uint16_t m = HTH_STATE_METHOD_DESCRIBE; kind == SILENT && m <= HTH_STATE_METHOD_PART; m++)
        hth_rpc_serve(d->rpc, m, ignore, d);
}

/* ---- the newcomer ---------------------------------------------------------------------------- */

void go(struct newcomer *n)
{
    struct run *r = n->run;
    struct hth_holders holders = {.count = 0};
    for (uint32_t i = 0; i < r->donors; i++) {
        const struct hth_roll_peer at = peer_of(r->donor[i].node);
        holders.peer[holders.count++] = (struct hth_rpc_target){at.id, at.addr};
    }
    hth_arrive_go(n->arrive, n->at, hth_chain_find(n->chain, hth_chain_head(r->chain, n->known)),
                  &holders);
}

static void learn(struct newcomer *n)
{
    n->known = n->run->tip;
    copy_links(n->run, n->known, n->chain);
}

void on_links(void *arg)
{
    struct newcomer *n = arg;
    learn(n);
    if (!hth_arrive_is_going(n->arrive))
        go(n);
    if (n->goes_on)
        hth_timer_set(n->env, n->links, n->run->step_us / 5);
}

void go_on(struct newcomer *n)
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

static void on_step(void *arg, uint32_t link, struct hth_blob *mean, struct hth_blob *hashes)
{
    struct newcomer *n = arg;
    assert_int_equal(mean->size, mean_bytes(n->run));
    n->steps++;
    add_mean(n->params, mean);
    check_params(n, link);
    hth_arrive_stepped(n->arrive);
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

/* Its links come a moment later. */
static void on_unknown(void *arg, const struct hth_hash *head, const struct hth_rpc_target *holder)
{
    struct newcomer *n = arg;
    n->unknown++;
    assert_int_equal(hth_chain_find(n->chain, head), HTH_LINK_NONE);
    assert_int_not_equal(hth_chain_find(n->run->chain, head), HTH_LINK_NONE);
    assert_int_equal(holder->addr.port, PORT);
    hth_timer_set(n->env, n->links, 5 * MS);
}

static void on_done(void *arg, enum hth_err err, uint32_t link)
{
    struct newcomer *n = arg;
    const struct run *r = n->run;
    n->ends++;
    n->err = err;
    n->at = link;
    if (hth_chain_has(n->chain, link))
        check_params(n, link);
    bool tip =
        hth_chain_has(n->chain, link) &&
        memcmp(hth_chain_head(n->chain, link), hth_chain_head(r->chain, r->tip), HTH_HASH_LEN) == 0;
    n->came = err == HTH_OK && (tip || !n->goes_on);
    n->came_us = hth_now_us(n->env);
    if (n->came)
        hth_timer_cancel(n->env, n->links);
}

static void halt_newcomer(struct hth_env *env, void *arg)
{
    struct newcomer *n = arg;
    hth_arrive_free(n->arrive);
    hth_timer_free(n->env, n->links);
    hth_rpc_free(n->rpc);
    n->arrive = NULL;
    n->links = NULL;
    n->rpc = NULL;
}

/* It holds nothing yet, and knows the links up to the tip. */
struct newcomer *add_newcomer(struct run *r, double bytes_per_s)
{
    static const struct hth_arrive_ops ops = {on_step, on_adopt, on_unknown, on_done};
    struct newcomer *n = &r->newcomer;
    struct hth_device device = HTH_DEVICE_INIT;
    struct hth_node_opts node = {.halt = halt_newcomer, .arg = n, .device = &device};
    device.down_bytes_per_s = bytes_per_s;
    n->run = r;
    n->at = HTH_LINK_NONE;
    n->node = hth_world_node(r->world, "newcomer", &node);
    n->env = hth_node_env(n->node);
    n->rpc = make_rpc(n->env, n->node, NULL, NULL);
    n->links = hth_timer_new(n->env, on_links, n);
    n->chain = make_chain(r->links_max);
    learn(n);
    hth_budget_init(&n->budget, INT64_MAX / 2, NULL);
    n->opts = (struct hth_collab_opts){
        .count = r->values, .schema = SCHEMA, .state_bytes = r->state_bytes, .budget = &n->budget};
    n->arrive = hth_arrive_new(n->env, n->rpc, n->chain, &n->opts, &ops, n);
    return n;
}

/* It holds that step's link, as if it had been there. */
void hold(struct newcomer *n, uint64_t step)
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

void setup_values(struct run *r, bool ghost, uint64_t values, double state_means, int64_t step_us,
                  uint32_t window_bytes)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    static const float zero[VALUES];
    memset(r, 0, sizeof(*r));
    opts.ghost = r->ghost = ghost;
    opts.window_bytes = window_bytes;
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

void setup(struct run *r, bool ghost, double state_means, int64_t step_us)
{
    setup_values(r, ghost, VALUES, state_means, step_us, 4 << 20);
}

void take_step(struct run *r)
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

void run_steps(struct run *r, uint32_t steps)
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
bool run_until_over(struct run *r, int64_t us)
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

uint64_t given(const struct run *r)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->donors; i++) {
        struct hth_state_donor_stats stats = {0};
        if (r->donor[i].donor != NULL)
            hth_state_donor_stats(r->donor[i].donor, &stats);
        bytes += stats.bytes;
    }
    return bytes;
}

void tear_down(struct run *r)
{
    struct newcomer *n = &r->newcomer;
    struct hth_open_counts open;
    for (uint32_t i = 0; i < r->donors; i++)
        halt_donor(NULL, &r->donor[i]);
    halt_newcomer(NULL, n);
    hth_world_run_for(r->world, S); /* jobs end */
    hth_world_open(r->world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(r->world);
    hth_chain_free(r->chain);
    assert_int_equal(hth_budget_used(&n->budget), 0);
    hth_chain_free(n->chain);
}
