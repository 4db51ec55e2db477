/* SPDX-License-Identifier: Apache-2.0 */
/* lists.c: asks connected peers for their lists, and answers. */
#include "rpc/lists.h"

#include "core/mem.h"
#include "rpc/rpc_int.h"

#include <string.h>

#define FIRST_US   HTH_US_PER_S /* between questions, while a newcomer asks */
#define TIMEOUT_US (10 * HTH_US_PER_S)

struct ask {
    struct rpc_link node;
    struct hth_lists *of;
    struct hth_peer_id peer;
    struct hth_rpc_call *call;
};

struct hth_lists {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_revoked_set *set;
    hth_fn *on_news;
    void *arg;
    struct hth_timer *timer;
    int64_t asked_us; /* last of all at random */
    struct rpc_link asks;
    size_t ask_count;
    struct hth_peer_id first[HTH_LISTS_FIRST]; /* those that answered */
    size_t first_count;
};

/* ---- asking -------------------------------------------------------------------------------- */

static void ask_free(struct ask *a)
{
    rpc_list_del(&a->node);
    a->of->ask_count--;
    hth_free(a);
}

static bool is_first(const struct hth_lists *l, const struct hth_peer_id *peer)
{
    for (size_t i = 0; i < l->first_count; i++)
        if (hth_peer_id_eq(&l->first[i], peer))
            return true;
    return false;
}

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct ask *a = arg;
    struct hth_lists *l = a->of;
    size_t news = 0;
    char text[HTH_PEER_SHORT_LEN];
    enum hth_err err = result->err;
    if (err == HTH_OK)
        err = hth_revoked_set_unpack(l->set, result->payload, result->payload_len, &news);
    if (err != HTH_OK)
        HTH_LOG(l->env, HTH_DEBUG, HTH_SUB_RPC, "lists of peer %s: %s",
                hth_peer_id_short(&a->peer, text), hth_err_text(err));
    if (err == HTH_OK && l->first_count < HTH_LISTS_FIRST && !is_first(l, &a->peer))
        l->first[l->first_count++] = a->peer;
    ask_free(a);
    if (news > 0) {
        hth_lists_tell(l);
        l->on_news(l->arg);
    }
}

static void ask(struct hth_lists *l, const struct hth_peer_id *peer)
{
    uint8_t known[HTH_REVOKED_KNOWN_MAX];
    const struct hth_rpc_target target = {.peer = *peer};
    const struct hth_rpc_call_opts opts = {
        .method = HTH_RPC_LISTS,
        .timeout_us = TIMEOUT_US,
        .body = {.payload = known, .payload_len = hth_revoked_set_known(l->set, known)}};
    if (l->ask_count >= 2 * HTH_LISTS_TOLD_MAX) /* the next one at random makes up for it */
        return;
    struct ask *a = hth_new(struct ask);
    a->of = l;
    a->peer = *peer;
    rpc_list_init(&a->node);
    rpc_list_push(&l->asks, &a->node);
    l->ask_count++;
    if (hth_rpc_call(l->rpc, &target, &opts, on_answer, a, &a->call) != HTH_OK)
        ask_free(a);
}

/* Chooses at most max connected peers, each as likely as any other; new_ones: that were not asked
 * as the first. */
static size_t choose(struct hth_lists *l, bool new_ones, struct hth_peer_id *out, size_t max)
{
    size_t seen = 0;
    for (struct rpc_link *n = l->rpc->conns.next; n != &l->rpc->conns; n = n->next) {
        const struct rpc_conn *c = HTH_CONTAINER(n, struct rpc_conn, in_rpc);
        if (c->state != CONN_READY || hth_rpc_peer_conn(c->peer) != c ||
            (new_ones && is_first(l, &c->peer->id)))
            continue;
        size_t place = seen++;
        if (place >= max)
            place = (size_t)(hth_rng_u64(&l->env->rng) % seen);
        if (place < max)
            out[place] = c->peer->id;
    }
    return HTH_MIN(seen, max);
}

void hth_lists_tell(struct hth_lists *l)
{
    struct hth_peer_id peer[HTH_LISTS_TOLD_MAX];
    size_t count = choose(l, false, peer, HTH_LISTS_TOLD_MAX);
    for (size_t i = 0; i < count; i++)
        ask(l, &peer[i]);
}

static void on_timer(void *arg)
{
    struct hth_lists *l = arg;
    struct hth_peer_id peer;
    int64_t now = hth_now_us(l->env);
    bool newcomer = l->first_count < HTH_LISTS_FIRST, due = now - l->asked_us >= HTH_LISTS_EVERY_US;
    if (newcomer && choose(l, true, &peer, 1) == 1) {
        ask(l, &peer);
    } else if (due && choose(l, false, &peer, 1) == 1) {
        l->asked_us = now;
        ask(l, &peer);
    }
    hth_timer_set(l->env, l->timer, newcomer ? FIRST_US : HTH_LISTS_EVERY_US);
}

/* ---- answering ----------------------------------------------------------------------------- */

static void on_lists(void *arg, struct hth_rpc_request *req)
{
    struct hth_lists *l = arg;
    const struct hth_peer_id peer = *hth_rpc_peer(req);
    bool lacks;
    size_t len;
    const uint8_t *known = hth_rpc_payload(req, &len);
    enum hth_err err = hth_revoked_set_lacks(l->set, known, len, &lacks);
    if (err != HTH_OK) {
        hth_rpc_refuse(req, err, 0, NULL);
        return;
    }
    uint8_t *pack = hth_new_array(uint8_t, HTH_REVOKED_PACK_MAX);
    const struct hth_rpc_body body = {
        .payload = pack, .payload_len = hth_revoked_set_pack(l->set, known, len, pack)};
    hth_rpc_reply(req, &body);
    hth_free(pack);
    if (lacks)
        ask(l, &peer);
}

/* ---- life ---------------------------------------------------------------------------------- */

struct hth_lists *hth_lists_new(struct hth_env *env, struct hth_rpc *rpc,
                                struct hth_revoked_set *set, hth_fn *on_news, void *arg)
{
    struct hth_lists *l = hth_new(struct hth_lists);
    l->env = env;
    l->rpc = rpc;
    l->set = set;
    l->on_news = on_news;
    l->arg = arg;
    rpc_list_init(&l->asks);
    l->timer = hth_timer_new(env, on_timer, l);
    hth_timer_set(env, l->timer, FIRST_US);
    hth_rpc_serve(rpc, HTH_RPC_LISTS, on_lists, l);
    return l;
}

void hth_lists_free(struct hth_lists *l)
{
    if (l == NULL)
        return;
    hth_rpc_serve(l->rpc, HTH_RPC_LISTS, NULL, NULL);
    while (!rpc_list_empty(&l->asks)) {
        struct ask *a = HTH_CONTAINER(l->asks.next, struct ask, node);
        hth_rpc_cancel(a->call);
        ask_free(a);
    }
    hth_timer_free(l->env, l->timer);
    hth_free(l);
}
