/* SPDX-License-Identifier: Apache-2.0 */
/* reach.c: rounds of DIALBACK requests, and the verdict from their replies. */
#include "app/reach.h"

#include "core/mem.h"
#include "dht/peers.h"
#include "rpc/dialback.h"

#include <string.h>

#define FIRST_US     (2 * HTH_US_PER_S)
#define YES_AGAIN_US (600 * HTH_US_PER_S)
#define NO_AGAIN_US  (60 * HTH_US_PER_S)
#define SOON_US      (5 * HTH_US_PER_S)
#define ASKED_MAX    3
#define EACH_US      (20 * HTH_US_PER_S)     /* of an address that only records name */
#define ROUNDS_MAX   (EACH_US / SOON_US + 1) /* in that time */

struct hth_reacher {
    struct hth_env *env;
    struct hth_reach_opts opts;
    struct hth_addr through[HTH_REACH_THROUGH_MAX];
    struct hth_dialback *answers;
    struct hth_timer *timer;
    struct hth_rpc_call *call; /* under way */
    enum hth_reach verdict;
    int64_t pause_us; /* after a round without a verdict */
    /* the round */
    struct hth_rpc_target target[ASKED_MAX];
    uint32_t count, next, noes;
    struct hth_addr from; /* of a no */
    /* the last dials of addresses from records, the oldest one at `oldest` */
    struct {
        struct hth_addr addr;
        int64_t at_us;
    } dialled[ROUNDS_MAX * ASKED_MAX];
    uint32_t oldest;
};

/* The vouching record: any peer that reads it may dial the address. */
static bool announced(void *arg, const struct hth_peer_id *peer, const struct hth_addr *addr)
{
    struct hth_reacher *r = arg;
    struct hth_census_node node;
    for (uint32_t i = 0; hth_census_at(r->opts.census, i, &node); i++) {
        if (!hth_peer_id_eq(&node.id, peer))
            continue;
        for (uint32_t a = 0; a < node.info.addr_count; a++)
            if (hth_addr_eq(&node.info.addr[a], addr))
                return true;
    }
    return false;
}

/* ---- a round ------------------------------------------------------------------------------- */

static void add(struct hth_reacher *r, const struct hth_peer_id *id, const struct hth_addr *addr)
{
    if (r->count == ASKED_MAX || hth_addr_eq(addr, &r->opts.announce))
        return;
    for (uint32_t i = 0; i < r->count; i++)
        if (hth_addr_eq(&r->target[i].addr, addr))
            return;
    r->target[r->count].addr = *addr;
    r->target[r->count].peer = id != NULL ? *id : (struct hth_peer_id){{0}};
    r->count++;
}

/* Anybody may write a beacon with a third party's address, so a machine that is not connected is
 * dialled three times in a minute at most, whoever says to be there. */
static bool may_ask(struct hth_reacher *r, const struct hth_rpc_target *target)
{
    static const struct hth_peer_id none;
    struct hth_rpc_peer_info info;
    int64_t now_us = hth_now_us(r->env);
    if (hth_peer_id_eq(&target->peer, &none) || /* the user named it */
        (hth_rpc_peer_info(r->opts.rpc, &target->peer, &info) == HTH_OK && info.connected))
        return true;
    for (size_t i = 0; i < HTH_ARRAY_LEN(r->dialled); i++)
        if (hth_addr_same_ip(&r->dialled[i].addr, &target->addr) &&
            now_us - r->dialled[i].at_us < EACH_US)
            return false;
    r->dialled[r->oldest].addr = target->addr;
    r->dialled[r->oldest].at_us = now_us;
    r->oldest = (r->oldest + 1) % HTH_ARRAY_LEN(r->dialled);
    return true;
}

static void choose(struct hth_reacher *r)
{
    struct hth_census_node node;
    struct hth_census_stats seen;
    r->count = r->next = r->noes = 0;
    r->from = (struct hth_addr){0};
    for (size_t i = 0; i < r->opts.through_count && r->count < ASKED_MAX - 1; i++)
        add(r, NULL, &r->through[i]);
    hth_census_stats(r->opts.census, &seen);
    uint32_t all = seen.nodes + 1; /* this peer's own beacon may be among them */
    uint32_t first = (uint32_t)hth_rng_below(&r->env->rng, all);
    for (uint32_t i = 0; i < all; i++)
        if (hth_census_at(r->opts.census, (first + i) % all, &node) && node.info.addr_count > 0 &&
            !hth_peer_id_eq(&node.id, &r->env->self))
            add(r, &node.id, &node.info.addr[0]);
}

static void finish(struct hth_reacher *r, enum hth_reach verdict)
{
    int64_t pause_us = verdict == HTH_REACH_YES ? YES_AGAIN_US : NO_AGAIN_US;
    if (verdict == HTH_REACH_UNKNOWN) {
        pause_us = r->pause_us;
        r->pause_us = HTH_MIN(2 * r->pause_us, NO_AGAIN_US);
    }
    hth_timer_set(r->env, r->timer, pause_us);
    if (verdict == HTH_REACH_UNKNOWN || verdict == r->verdict)
        return;
    r->verdict = verdict;
    r->opts.on_change(r->opts.arg, verdict, &r->from);
}

static void ask_next(struct hth_reacher *r);

static bool is_here(const struct hth_reacher *r, const struct hth_addr *addr)
{
    return hth_addr_same_ip(addr, &r->opts.announce) || hth_addr_scope(addr) == HTH_SCOPE_MACHINE;
}

static void on_reply(void *arg, const struct hth_rpc_result *result)
{
    struct hth_reacher *r = arg;
    struct hth_dialback_reply reply;
    const struct hth_addr *asked = &r->target[r->next - 1].addr;
    r->call = NULL;
    if (result->err == HTH_OK &&
        hth_dialback_reply_open(result->payload, result->payload_len, &reply) == HTH_OK) {
        if (reply.reached && !is_here(r, asked)) {
            finish(r, HTH_REACH_YES);
            return;
        }
        r->noes += !reply.reached;
        if (!reply.reached)
            r->from = reply.from;
    }
    ask_next(r);
}

static void ask_next(struct hth_reacher *r)
{
    while (r->next < r->count) {
        const struct hth_rpc_target *target = &r->target[r->next++];
        if (may_ask(r, target) && hth_dialback_ask(r->opts.rpc, target, &r->opts.announce, on_reply,
                                                   r, &r->call) == HTH_OK)
            return;
        r->call = NULL;
    }
    finish(r, r->noes > 0 ? HTH_REACH_NO : HTH_REACH_UNKNOWN);
}

static void on_timer(void *arg)
{
    struct hth_reacher *r = arg;
    choose(r);
    ask_next(r);
}

/* ---- life ---------------------------------------------------------------------------------- */

struct hth_reacher *hth_reacher_new(struct hth_env *env, const struct hth_reach_opts *opts)
{
    struct hth_reacher *r = hth_new(struct hth_reacher);
    r->env = env;
    r->opts = *opts;
    r->opts.through_count = HTH_MIN(opts->through_count, (size_t)HTH_REACH_THROUGH_MAX);
    for (size_t i = 0; i < r->opts.through_count; i++)
        r->through[i] = opts->through[i];
    r->opts.through = r->through;
    r->pause_us = SOON_US;
    r->answers = hth_dialback_new(env, opts->rpc, announced, r);
    r->timer = hth_timer_new(env, on_timer, r);
    if (opts->announce.family != 0)
        hth_timer_set(env, r->timer, FIRST_US);
    return r;
}

void hth_reacher_free(struct hth_reacher *r)
{
    if (r == NULL)
        return;
    if (r->call != NULL)
        hth_rpc_cancel(r->call);
    hth_dialback_free(r->answers);
    hth_timer_free(r->env, r->timer);
    hth_free(r);
}
