/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   PLAN     there: the end; means lead there: MEANS; else STATE
 *   MEANS    path[left - 1] is stepped on, the next two fetched; the last one -> PLAN
 *              a mean is not to be had -> STATE
 *   STATE    fetched from the holders -> ADOPT -> PLAN, from its head
 *              the owner refuses it -> STATE, without its donors
 */
#include "collab/arrive.h"

#include "core/mem.h"
#include "rpc/rpc.h"

#include <string.h>

/* A donor makes a new snapshot rather than give one that is so many steps older than the wanted
 * head: the means since have to last until the state has come. */
#define STATE_STEPS 8
#define STALL_US    (20 * HTH_US_PER_S) /* without progress */

/* Means that are fetched at once: one alone does not fill a long line. */
#define AHEAD 2

enum phase { IDLE, PLAN, MEANS, STATE, ADOPT };

/* A mean that is fetched, or waits for its turn. */
struct ahead {
    struct hth_arrive *arrive;
    struct hth_state_fetch *fetch;
    struct hth_blob *mean, *hashes;
    enum hth_err err; /* why it can't be had */
};

struct hth_arrive {
    struct hth_env *env;
    struct hth_rpc *rpc;
    const struct hth_chain *chain;
    const struct hth_collab_opts *opts;
    struct hth_arrive_ops ops;
    void *arg;
    struct hth_timer *timer;

    enum phase phase;
    enum hth_err end;    /* HTH_OK: it goes on */
    uint32_t at, wanted; /* links: held and wanted */
    struct hth_holders holders;

    /* The links that lead from the held one to the wanted one, the next one last. */
    uint32_t path[HTH_MEANS_MAX];
    uint32_t left;
    bool stepping;             /* on path[left - 1] */
    struct ahead ahead[AHEAD]; /* of path[i]: i modulo AHEAD */

    struct hth_state_fetch *state;
    uint32_t adopting;        /* the last one's link, or HTH_LINK_NONE */
    uint32_t donors;          /* of it: the first holders */
    struct hth_peer_id giver; /* of the last mean, or of a part of the last state */
};

static void pump(struct hth_arrive *a);

/* ---- the chain ------------------------------------------------------------------------------- */

static bool is_same_genesis(const struct hth_chain *chain, uint32_t a, uint32_t b)
{
    const struct hth_chain_link *x = hth_chain_at(chain, a), *y = hth_chain_at(chain, b);
    return x->kind == HTH_LINK_GENESIS && y->kind == HTH_LINK_GENESIS && x->step == y->step &&
           memcmp(&x->mean, &y->mean, sizeof(x->mean)) == 0;
}

/* The links that lead from `from` to `to` through means alone: `path`, the last one first, and how
 * many; UINT32_MAX: none do. */
static uint32_t find_path(const struct hth_chain *chain, uint32_t from, uint32_t to,
                          uint32_t path[HTH_MEANS_MAX])
{
    uint32_t n = 0;
    if (!hth_chain_has(chain, from) || !hth_chain_has(chain, to))
        return UINT32_MAX;
    while (to != from && !is_same_genesis(chain, from, to)) {
        if (n == HTH_MEANS_MAX || hth_chain_at(chain, to)->prev == HTH_LINK_NONE)
            return UINT32_MAX;
        path[n++] = to;
        to = hth_chain_at(chain, to)->prev;
    }
    return n;
}

static bool leads(const struct hth_arrive *a, uint32_t from, uint32_t to)
{
    uint32_t path[HTH_MEANS_MAX];
    return find_path(a->chain, from, to, path) != UINT32_MAX;
}

/* ---- the end --------------------------------------------------------------------------------- */

static void drop_means(struct hth_arrive *a)
{
    for (uint32_t i = 0; i < AHEAD; i++) {
        hth_state_fetch_free(a->ahead[i].fetch);
        hth_blob_unref(a->ahead[i].mean);
        hth_blob_unref(a->ahead[i].hashes);
        a->ahead[i] = (struct ahead){.arrive = a};
    }
}

static void drop_state(struct hth_arrive *a)
{
    hth_state_fetch_free(a->state);
    a->state = NULL;
}

static void finish(struct hth_arrive *a, enum hth_err err)
{
    drop_means(a);
    drop_state(a);
    hth_timer_cancel(a->env, a->timer);
    a->phase = IDLE;
    a->ops.done(a->arg, err, a->at); /* may free it */
}

/* ---- states ---------------------------------------------------------------------------------- */

static enum hth_err judge_state(void *arg, const struct hth_rpc_target *donor, const uint8_t *meta,
                                size_t len)
{
    struct hth_arrive *a = arg;
    struct hth_hash head;
    if (len < sizeof(head))
        return HTH_E_TRUNCATED;
    memcpy(&head, meta, sizeof(head));
    if (!hth_chain_has(a->chain, a->wanted))
        return HTH_E_STALE;
    uint32_t link = hth_chain_find(a->chain, &head);
    if (link != HTH_LINK_NONE)
        return leads(a, a->wanted, link) || leads(a, link, a->wanted) ? HTH_OK : HTH_E_STALE;
    a->ops.unknown(a->arg, &head, donor);
    return HTH_E_BUSY;
}

/* A peer that gave what was asked for is asked first, if it is among the holders. */
static void put_first(struct hth_arrive *a, const struct hth_peer_id *id)
{
    struct hth_holders *h = &a->holders;
    struct hth_rpc_target first;
    uint32_t at = 0;
    a->giver = *id;
    while (at < h->count && !hth_peer_id_eq(&h->peer[at].peer, id))
        at++;
    if (at == h->count)
        return;
    first = h->peer[at];
    memmove(&h->peer[1], &h->peer[0], at * sizeof(first));
    h->peer[0] = first;
}

static void on_state(void *arg, enum hth_err err, const struct hth_state_result *r)
{
    struct hth_arrive *a = arg;
    struct hth_hash head;
    if (err != HTH_OK) {
        finish(a, err);
        return;
    }
    memcpy(&head, r->meta, sizeof(head)); /* it was judged */
    a->adopting = hth_chain_find(a->chain, &head);
    if (a->adopting == HTH_LINK_NONE) { /* its link is not kept any more */
        finish(a, HTH_E_NOT_FOUND);
        return;
    }
    a->phase = ADOPT;
    a->donors = r->said_by.count;
    for (uint32_t i = a->donors; i-- > 0;)
        put_first(a, &r->said_by.id[i]); /* they have the means since */
    struct hth_state_fetch *state = a->state;
    a->state = NULL;
    a->ops.adopt(a->arg, a->adopting, r);
    hth_state_fetch_free(state);
}

/* The least step of a state that is worth fetching. One that was adopted in vain is not. */
static uint64_t oldest_state(const struct hth_arrive *a)
{
    uint64_t step = hth_chain_at(a->chain, a->wanted)->step;
    step -= HTH_MIN(step, STATE_STEPS);
    if (a->at == a->adopting && hth_chain_has(a->chain, a->at))
        step = HTH_MAX(step, hth_chain_at(a->chain, a->at)->step + 1);
    return step;
}

/* Of a state, or of a link's mean, from the holders. */
static enum hth_err fetch(struct hth_arrive *a, struct hth_state_fetch_opts *o,
                          struct hth_state_fetch **out)
{
    if (a->holders.count == 0)
        return HTH_E_NOT_FOUND;
    o->schema = a->opts->schema;
    o->budget = a->opts->budget;
    o->patience_us = STALL_US;
    o->holders = a->holders.peer;
    o->holders_count = a->holders.count;
    return hth_state_fetch_new(a->env, a->rpc, o, out);
}

static enum hth_err fetch_state(struct hth_arrive *a)
{
    struct hth_state_fetch_opts o = {.bytes = a->opts->state_bytes,
                                     .step_min = oldest_state(a),
                                     .judge = judge_state,
                                     .on_done = on_state,
                                     .arg = a};
    return fetch(a, &o, &a->state);
}

/* ---- means ----------------------------------------------------------------------------------- */

static struct ahead *ahead_of(struct hth_arrive *a, uint32_t i)
{
    return &a->ahead[i % AHEAD];
}

static void on_mean(void *arg, enum hth_err err, const struct hth_state_result *r)
{
    struct ahead *ahead = arg;
    struct hth_arrive *a = ahead->arrive;
    ahead->err = err;
    if (err == HTH_OK) {
        ahead->mean = hth_blob_ref(r->values);
        ahead->hashes = hth_blob_ref(r->hashes);
        put_first(a, &r->said_by.id[0]);
    }
    hth_state_fetch_free(ahead->fetch);
    ahead->fetch = NULL;
    pump(a);
}

static enum hth_err fetch_mean(struct hth_arrive *a, uint32_t i)
{
    struct hth_state_fetch_opts o = {.bytes = a->opts->count * sizeof(float),
                                     .mean = true,
                                     .head = *hth_chain_head(a->chain, a->path[i]),
                                     .digest = hth_chain_at(a->chain, a->path[i])->mean,
                                     .on_done = on_mean,
                                     .arg = ahead_of(a, i)};
    return fetch(a, &o, &ahead_of(a, i)->fetch);
}

/* Fetches those that come next. A lack of memory is an error only where no mean before it will make
 * room. */
static enum hth_err fetch_ahead(struct hth_arrive *a)
{
    uint32_t left = a->left - a->stepping;
    for (uint32_t i = left; i-- > 0 && i + AHEAD >= left;) {
        const struct ahead *ahead = ahead_of(a, i);
        if (ahead->fetch != NULL || ahead->mean != NULL || ahead->err != HTH_OK)
            continue;
        enum hth_err err = fetch_mean(a, i);
        if (err != HTH_OK)
            return i + 1 < a->left ? HTH_OK : err;
    }
    return HTH_OK;
}

static void step(struct hth_arrive *a)
{
    struct ahead *ahead = ahead_of(a, a->left - 1);
    struct hth_blob *mean = ahead->mean, *hashes = ahead->hashes;
    ahead->mean = ahead->hashes = NULL;
    a->stepping = true;
    a->ops.step(a->arg, a->path[a->left - 1], mean, hashes);
    hth_blob_unref(mean);
    hth_blob_unref(hashes);
}

/* ---- the next thing to do -------------------------------------------------------------------- */

static void pump_state(struct hth_arrive *a)
{
    enum hth_err err = a->state == NULL ? fetch_state(a) : HTH_OK;
    if (err != HTH_OK)
        finish(a, err);
}

static void pump_means(struct hth_arrive *a)
{
    const struct ahead *next = ahead_of(a, a->left - 1);
    if (!a->stepping && next->mean != NULL)
        step(a);
    enum hth_err err = fetch_ahead(a), lost = next->err;
    if (err != HTH_OK) {
        finish(a, err);
    } else if (!a->stepping && lost != HTH_OK) {
        drop_means(a);
        a->phase = STATE;
        pump_state(a);
    }
}

static void plan(struct hth_arrive *a)
{
    drop_means(a);
    a->left = find_path(a->chain, a->at, a->wanted, a->path);
    if (a->left == 0)
        a->at = a->wanted;            /* or another genesis, with the same digest */
    if (leads(a, a->wanted, a->at)) { /* or it came farther */
        finish(a, HTH_OK);
        return;
    }
    a->phase = a->left <= HTH_MEANS_MAX ? MEANS : STATE;
    pump(a);
}

static void pump(struct hth_arrive *a)
{
    bool kept = hth_chain_has(a->chain, a->wanted) &&
                (a->phase != MEANS || hth_chain_has(a->chain, a->path[a->left - 1]));
    if (!kept && a->end == HTH_OK && !a->stepping && a->phase != ADOPT)
        a->end = HTH_E_NOT_FOUND;
    if (a->end != HTH_OK)
        finish(a, a->end);
    else if (a->phase == PLAN)
        plan(a);
    else if (a->phase == MEANS)
        pump_means(a);
    else if (a->phase == STATE)
        pump_state(a);
}

static void on_timer(void *arg)
{
    pump(arg);
}

/* ---- the owner's side ------------------------------------------------------------------------ */

struct hth_arrive *hth_arrive_new(struct hth_env *env, struct hth_rpc *rpc,
                                  const struct hth_chain *chain, const struct hth_collab_opts *opts,
                                  const struct hth_arrive_ops *ops, void *arg)
{
    struct hth_arrive *a = hth_new(struct hth_arrive);
    a->env = env;
    a->rpc = rpc;
    a->chain = chain;
    a->opts = opts;
    a->ops = *ops;
    a->arg = arg;
    drop_means(a);
    a->timer = hth_timer_new(env, on_timer, a);
    return a;
}

void hth_arrive_free(struct hth_arrive *a)
{
    if (a == NULL)
        return;
    a->stepping = false;
    drop_means(a);
    drop_state(a);
    hth_timer_free(a->env, a->timer);
    hth_free(a);
}

void hth_arrive_go(struct hth_arrive *a, uint32_t held, uint32_t wanted,
                   const struct hth_holders *holders)
{
    HTH_ASSERT(a->phase == IDLE && holders->count > 0);
    a->phase = PLAN;
    a->end = HTH_OK;
    a->at = held;
    a->wanted = wanted;
    a->holders = *holders;
    put_first(a, &a->giver);
    a->adopting = HTH_LINK_NONE;
    hth_timer_set(a->env, a->timer, 0);
}

bool hth_arrive_is_going(const struct hth_arrive *a)
{
    return a->phase != IDLE;
}

void hth_arrive_progress(const struct hth_arrive *a, struct hth_state_progress *out)
{
    *out = (struct hth_state_progress){.news = ""};
    if (a->state != NULL)
        hth_state_fetch_progress(a->state, out);
}

void hth_arrive_stepped(struct hth_arrive *a)
{
    if (!a->stepping)
        return;
    a->stepping = false;
    a->at = a->path[--a->left];
    if (a->left == 0)
        a->phase = PLAN;
    hth_timer_set(a->env, a->timer, 0);
}

void hth_arrive_adopted(struct hth_arrive *a, enum hth_err err)
{
    HTH_ASSERT(a->phase == ADOPT);
    a->phase = PLAN;
    if (err == HTH_OK) {
        a->at = a->adopting;
    } else if (hth_err_class(err) == HTH_CLASS_PEER) {
        struct hth_holders *h = &a->holders;
        h->count -= a->donors;
        memmove(&h->peer[0], &h->peer[a->donors], h->count * sizeof(h->peer[0]));
    } else {
        a->end = err;
    }
    hth_timer_set(a->env, a->timer, 0);
}
