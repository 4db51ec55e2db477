/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.c: the table of peers: their identity and address, and when to dial again.
 *
 * Back-off: after the n-th failure in a row the next dial waits backoff_min * 2^(n-1), at most
 * backoff_max, times a random 0.75 .. 1.25 so that a swarm does not reconnect in step. A connection
 * that gave at least one verdict was good: after losing it the next dial is immediate.
 */
#include "rpc/rpc_int.h"

#include <string.h>

/* Failures counted for a peer that broke the protocol or has another identity: an early retry is
 * useless. */
#define FAILURES_FOR_CAUSE 4

#define ADDR_KEY_BYTES     19

static bool is_anonymous(const struct hth_peer_id *id)
{
    return id == NULL || hth_peer_id_is_zero(id);
}

static void addr_key(const struct hth_addr *addr, uint8_t key[ADDR_KEY_BYTES])
{
    key[0] = addr->family;
    memcpy(key + 1, addr->ip, sizeof(addr->ip));
    key[17] = (uint8_t)(addr->port & 0xff);
    key[18] = (uint8_t)(addr->port >> 8);
}

struct rpc_peer *hth_rpc_peer_find(const struct hth_rpc *rpc, const struct hth_peer_id *id,
                                   const struct hth_addr *addr)
{
    static const struct hth_addr none;
    uint8_t key[ADDR_KEY_BYTES];
    if (!is_anonymous(id))
        return hth_map_get(rpc->peers, id->b, sizeof(id->b));
    addr_key(addr != NULL ? addr : &none, key);
    return hth_map_get(rpc->anonymous, key, sizeof(key));
}

uint32_t hth_rpc_peers_count(const struct hth_rpc *rpc)
{
    return (uint32_t)(hth_map_count(rpc->peers) + hth_map_count(rpc->anonymous));
}

static void put(struct hth_rpc *rpc, struct rpc_peer *p)
{
    uint8_t key[ADDR_KEY_BYTES];
    addr_key(&p->addr, key);
    if (p->anonymous)
        hth_map_put(rpc->anonymous, key, sizeof(key), p);
    else
        hth_map_put(rpc->peers, p->id.b, sizeof(p->id.b), p);
}

static bool peer_unused(const struct rpc_peer *p)
{
    return p->refs == 1 && rpc_list_empty(&p->conns) && rpc_list_empty(&p->waiting);
}

/* Forgets every peer without calls, requests and connections. */
static void sweep(struct hth_map *peers)
{
    const void *key;
    size_t key_len;
    struct rpc_peer *p;
    for (size_t it = 0; (p = hth_map_next(peers, &it, &key, &key_len)) != NULL;) {
        if (!peer_unused(p))
            continue;
        hth_map_del(peers, key, key_len);
        hth_rpc_peer_unref(p);
    }
}

void hth_rpc_peer_forget(struct rpc_peer *p)
{
    if (p->rpc == NULL || p->anonymous || !rpc_list_empty(&p->conns) ||
        !rpc_list_empty(&p->waiting) || hth_rpc_peer_find(p->rpc, &p->id, NULL) != p)
        return;
    hth_map_del(p->rpc->peers, p->id.b, sizeof(p->id.b));
    hth_rpc_peer_unref(p);
}

/* A peer with a new address is dialled without back-off. An anonymous peer never moves: a new
 * address is a new peer. */
static void update_addr(struct rpc_peer *p, const struct hth_addr *addr)
{
    if (addr == NULL || addr->family == 0 || hth_addr_eq(&p->addr, addr))
        return;
    p->addr = *addr;
    p->failures = 0;
    p->retry_at_us = 0;
}

enum hth_err hth_rpc_peer_get(struct hth_rpc *rpc, const struct hth_peer_id *id,
                              const struct hth_addr *addr, struct rpc_peer **out)
{
    struct rpc_peer *p = hth_rpc_peer_find(rpc, id, addr);
    *out = p;
    if (p == NULL) {
        if (hth_rpc_peers_count(rpc) >= HTH_RPC_PEERS_MAX) {
            sweep(rpc->peers);
            sweep(rpc->anonymous);
        }
        if (hth_rpc_peers_count(rpc) >= HTH_RPC_PEERS_MAX)
            return HTH_E_BUDGET;
        p = hth_new(struct rpc_peer);
        p->rpc = rpc;
        p->refs = 1;
        p->anonymous = is_anonymous(id);
        if (addr != NULL)
            p->addr = *addr;
        if (!p->anonymous)
            p->id = *id;
        hth_budget_init(&p->held, (int64_t)rpc->opts.peer_bytes_max, NULL);
        rpc_list_init(&p->conns);
        rpc_list_init(&p->waiting);
        put(rpc, p);
        *out = p;
    }
    update_addr(p, addr);
    return HTH_OK;
}

struct rpc_peer *hth_rpc_peer_ref(struct rpc_peer *p)
{
    p->refs++;
    return p;
}

void hth_rpc_peer_unref(struct rpc_peer *p)
{
    if (--p->refs > 0)
        return;
    HTH_ASSERT(rpc_list_empty(&p->conns) && rpc_list_empty(&p->waiting));
    hth_free(p->deadlines.of);
    hth_free(p->last_text);
    hth_free(p);
}

struct rpc_conn *hth_rpc_peer_conn(const struct rpc_peer *p)
{
    for (struct rpc_link *n = p->conns.prev; n != &p->conns; n = n->prev) {
        struct rpc_conn *c = HTH_CONTAINER(n, struct rpc_conn, in_peer);
        /* After our goodbye the other side may close at any moment; while we drain there is no
         * better connection. */
        bool leaving = c->goodbye_in || (c->goodbye_out && !p->rpc->draining);
        if (c->state == CONN_READY && !leaving)
            return c;
    }
    return NULL;
}

bool hth_rpc_peer_connecting(const struct rpc_peer *p)
{
    for (struct rpc_link *n = p->conns.prev; n != &p->conns; n = n->prev) {
        uint8_t state = HTH_CONTAINER(n, struct rpc_conn, in_peer)->state;
        if (state == CONN_DIALING || state == CONN_HELLO)
            return true;
    }
    return false;
}

void hth_rpc_peer_fail_waiting(struct rpc_peer *p, enum hth_err err, const char *text, bool remote)
{
    while (!rpc_list_empty(&p->waiting)) {
        struct hth_rpc_call *call = HTH_CONTAINER(p->waiting.next, struct hth_rpc_call, node);
        rpc_list_del(&call->node);
        p->waiting_count--;
        hth_rpc_call_fail_soon(call, err, text, remote);
    }
}

void hth_rpc_peer_pump(struct rpc_peer *p)
{
    struct hth_rpc *rpc = p->rpc;
    if (rpc_list_empty(&p->waiting))
        return;
    struct rpc_conn *c = hth_rpc_peer_conn(p);
    if (c != NULL) {
        while (!rpc_list_empty(&p->waiting) && hth_rpc_call_send_next(c))
            continue;
        return;
    }
    if (hth_rpc_peer_connecting(p))
        return;
    if (hth_now_us(rpc->env) < p->retry_at_us) {
        hth_rpc_peer_fail_waiting(p, p->last_err, p->last_text, false);
        return;
    }
    if (p->addr.family == 0) {
        hth_rpc_peer_fail_waiting(p, HTH_E_UNREACHABLE, "no address of this peer is known", false);
        return;
    }
    enum hth_err err = hth_rpc_conn_dial(p);
    if (err != HTH_OK)
        hth_rpc_peer_fail_waiting(p, err, hth_err_text(err), false);
}

static void back_off(struct rpc_peer *p)
{
    struct hth_rpc *rpc = p->rpc;
    int64_t wait = rpc->opts.backoff_min_us;
    for (uint32_t i = 1; i < p->failures && wait < rpc->opts.backoff_max_us; i++)
        wait *= 2;
    wait = HTH_MIN(wait, rpc->opts.backoff_max_us);
    wait = (int64_t)((double)wait * (0.75 + 0.5 * hth_rng_unit(&rpc->env->rng)));
    p->retry_at_us = hth_now_us(rpc->env) + wait;
}

void hth_rpc_peer_conn_lost(struct rpc_peer *p, enum hth_err err, const char *text, bool was_ready,
                            bool had_verdict)
{
    bool last = hth_rpc_peer_conn(p) == NULL && !hth_rpc_peer_connecting(p);
    if (err == HTH_OK) {
        if (last)
            hth_rpc_peer_pump(p);
        return;
    }
    if (was_ready && had_verdict && hth_err_class(err) == HTH_CLASS_RETRY)
        p->failures = 0;
    else
        p->failures += hth_err_class(err) == HTH_CLASS_PEER ? FAILURES_FOR_CAUSE : 1;
    if (p->failures > 0 || err == HTH_E_DRAINING)
        back_off(p);
    /* `text` may be p->last_text itself. */
    char *kept = hth_strdup(text != NULL ? text : hth_err_text(err));
    hth_free(p->last_text);
    p->last_err = err;
    p->last_text = kept;
    if (last)
        hth_rpc_peer_fail_waiting(p, err, p->last_text, false);
}

struct method_deadline *hth_rpc_deadline_of(struct hth_rpc *rpc, struct method_deadlines *all,
                                            uint16_t method)
{
    /* All methods beyond the limit share the last entry. */
    for (uint32_t i = 0; i < all->count; i++) {
        if (all->of[i].method == method || i == METHOD_DEADLINES_MAX - 1)
            return &all->of[i];
    }
    struct hth_deadline_opts opts = HTH_DEADLINE_OPTS_INIT;
    opts.floor_us = rpc->opts.timeout_min_us;
    opts.ceiling_us = rpc->opts.timeout_max_us;
    opts.initial_us = HTH_MAX(HTH_MIN(opts.initial_us, opts.ceiling_us), opts.floor_us);
    /* Grows by one: most peers are called with one method, and there are many peers. */
    all->of = hth_realloc(all->of, all->count + 1, sizeof(*all->of));
    struct method_deadline *d = &all->of[all->count++];
    d->method = method;
    d->since_us = hth_now_us(rpc->env);
    d->tries = 0;
    hth_deadline_init(&d->deadline, &opts);
    return d;
}

void hth_rpc_fetch(const struct hth_rpc *rpc)
{
    __builtin_prefetch(rpc->peers);
    metrics_fetch(rpc);
}

/* ---- accessors ----------------------------------------------------------------------------- */

enum hth_err hth_rpc_peer_info(const struct hth_rpc *rpc, const struct hth_peer_id *peer,
                               struct hth_rpc_peer_info *out)
{
    const struct rpc_peer *p = hth_rpc_peer_find(rpc, peer, NULL);
    memset(out, 0, sizeof(*out));
    if (p == NULL)
        return HTH_E_NOT_FOUND;
    for (struct rpc_link *n = p->conns.next; n != &p->conns; n = n->next) {
        const struct rpc_conn *c = HTH_CONTAINER(n, struct rpc_conn, in_peer);
        out->in_flight += c->in_flight;
        out->serving += c->request_count;
        out->dialing = out->dialing || c->state == CONN_DIALING;
        if (c->state != CONN_READY && c->state != CONN_HELLO)
            continue;
        out->received_us = HTH_MAX(out->received_us, c->rx_last_us);
        out->came_bytes += c->rx_bytes;
        out->moved_bytes += c->rx_bytes + c->tx_written + c->tx_bytes - hth_rpc_tx_backlog(c);
        if (c->state != CONN_READY)
            continue;
        out->connected = true;
        out->version = c->version;
        out->features = c->features;
        out->class = c->grant.class;
        out->roles = c->roles;
    }
    out->dialing = out->dialing && out->received_us == 0;
    int64_t left = p->retry_at_us - hth_now_us(rpc->env);
    out->waiting = p->waiting_count;
    out->retry_in_us = HTH_MAX(left, (int64_t)0);
    out->last_err = p->last_err;
    out->rtt_us = p->rtt_us;
    out->bytes_held = (uint64_t)hth_budget_used(&p->held);
    return HTH_OK;
}

int64_t hth_rpc_timeout_us(const struct hth_rpc *rpc, const struct hth_rpc_target *target,
                           uint16_t method)
{
    struct rpc_peer *p = hth_rpc_peer_find(rpc, &target->peer, &target->addr);
    if (p != NULL)
        return hth_deadline_get(&hth_rpc_deadline_of(p->rpc, &p->deadlines, method)->deadline);
    struct hth_deadline_opts opts = HTH_DEADLINE_OPTS_INIT;
    return HTH_MAX(HTH_MIN(opts.initial_us, rpc->opts.timeout_max_us), rpc->opts.timeout_min_us);
}

/* No answer comes sooner than a round trip, so the smallest is the estimate while no PING measures
 * it. */
void hth_rpc_peer_observe_rtt(struct rpc_peer *p, int64_t took_us)
{
    if (p->rtt_us == 0 || took_us < p->rtt_us)
        p->rtt_us = took_us;
}

void hth_rpc_nudge(struct hth_rpc *rpc, const struct hth_peer_id *peer)
{
    const struct rpc_peer *p = hth_rpc_peer_find(rpc, peer, NULL);
    struct rpc_conn *c = p != NULL ? hth_rpc_peer_conn(p) : NULL;
    if (c == NULL)
        return;
    /* Number 0 belongs to no probe of keep_alive: its PONG is not measured. */
    if (c->tx_written + c->tx_bytes == c->nudge_bytes && hth_rpc_tx_backlog(c) == 0)
        hth_rpc_tx_control(c, HTH_FRAME_PING, 0);
    c->nudge_bytes = c->tx_written + c->tx_bytes;
}

void hth_rpc_lives(struct hth_rpc *rpc, const struct hth_peer_id *peer)
{
    struct rpc_peer *p = hth_rpc_peer_find(rpc, peer, NULL);
    if (p == NULL)
        return;
    p->failures = 0;
    p->retry_at_us = 0;
}

void hth_rpc_disconnect(struct hth_rpc *rpc, const struct hth_peer_id *peer)
{
    struct rpc_peer *p = hth_rpc_peer_find(rpc, peer, NULL);
    if (p == NULL)
        return;
    hth_rpc_peer_ref(p);
    while (!rpc_list_empty(&p->conns))
        hth_rpc_conn_kill(HTH_CONTAINER(p->conns.next, struct rpc_conn, in_peer), HTH_E_CLOSED,
                          NULL, false);
    hth_rpc_peer_fail_waiting(p, HTH_E_CLOSED, "disconnected", false);
    hth_rpc_peer_unref(p);
}
