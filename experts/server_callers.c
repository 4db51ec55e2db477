/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_callers.c: the peers that sent work, for the lines that a host prints and for its metrics.
 * Beyond HTH_SERVER_CALLERS_MAX a new one replaces the one heard longest ago.
 */
#include "experts/server_int.h"

static struct srv_caller *place_for(struct hth_server *s)
{
    struct srv_caller *oldest = &s->callers[0];

    if (s->callers_count < HTH_SERVER_CALLERS_MAX) {
        if (s->callers_count == s->callers_capacity) {
            s->callers_capacity = s->callers_capacity == 0 ? 4 : s->callers_capacity * 2;
            s->callers = hth_realloc(s->callers, s->callers_capacity, sizeof(*s->callers));
        }
        return &s->callers[s->callers_count++];
    }
    for (uint32_t i = 1; i < s->callers_count; i++)
        if (s->callers[i].last_us < oldest->last_us)
            oldest = &s->callers[i];
    return oldest;
}

void hth_srv_caller_note(struct hth_server *s, const struct hth_rpc_request *req)
{
    const struct hth_peer_id *id = hth_rpc_peer(req);
    int64_t now = hth_now_us(s->env);
    char text[HTH_PEER_SHORT_LEN], addr[HTH_ADDR_TEXT_MAX];

    for (uint32_t i = 0; i < s->callers_count; i++) {
        struct srv_caller *c = &s->callers[i];
        if (!hth_peer_id_eq(&c->id, id))
            continue;
        if (c->gone)
            HTH_LOG(s->env, HTH_INFO, HTH_SUB_EXPERT, "trainer %s is back",
                    hth_peer_id_short(id, text));
        c->gone = false;
        c->last_us = now;
        return;
    }
    *place_for(s) = (struct srv_caller){.id = *id, .last_us = now};
    struct hth_server_caller caller = {*id, hth_rpc_from(req)};
    if (s->stats.callers++ == 0)
        s->stats.first_caller = caller; /* its host has a line of its own for it */
    else
        HTH_LOG(s->env, HTH_INFO, HTH_SUB_EXPERT, "trainer %s came from %s",
                hth_peer_id_short(id, text), hth_addr_text(&caller.from, addr));
}

void hth_srv_callers_look(struct hth_server *s)
{
    int64_t since = hth_now_us(s->env) - HTH_SERVER_CALLER_US;

    for (uint32_t i = 0; i < s->callers_count; i++) {
        struct srv_caller *c = &s->callers[i];
        char text[HTH_PEER_SHORT_LEN];
        if (c->gone || c->last_us >= since)
            continue;
        c->gone = true;
        HTH_LOG(s->env, HTH_INFO, HTH_SUB_EXPERT, "trainer %s is gone: no rows from it for %d s",
                hth_peer_id_short(&c->id, text), (int)(HTH_SERVER_CALLER_US / HTH_US_PER_S));
    }
}

uint32_t hth_srv_callers_now(const struct hth_server *s)
{
    int64_t since = hth_now_us(s->env) - HTH_SERVER_CALLER_US;
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->callers_count; i++)
        n += s->callers[i].last_us >= since;
    return n;
}
