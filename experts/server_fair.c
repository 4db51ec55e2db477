/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_fair.c: the order in which parts are computed, and admission per peer.
 *
 * Start-time fair queueing (Goyal et al. 1996) over *payers*, in work rather than in requests. A
 * payer is an invite, whose keys share one turn; for peers on probation, whose invite anybody may
 * use, a network (/24, or /48 of IPv6); in an open run, a peer: below, all are called peers. The
 * server's virtual time is the start tag of the batch that was taken last. A part starts where its
 * peer's work ends, or at the virtual time where that is later:
 *
 *     part.start_tag  = max(server.virtual_time, peer.finish_tag)
 *     peer.finish_tag = part.start_tag + the part's work
 *
 * The part with the lowest start tag is computed first. The rest of a part that is cut gets the
 * start tag behind the rows that were taken. So a single peer gets the whole host; n peers with
 * work waiting share it equally, however much each of them sends; and a peer that sends little
 * waits for one batch per worker, not for the others' queues. A peer saves up no share while it is
 * away, and a peer that waits for each reply before its next request keeps its finish tag: the
 * server remembers the last SRV_GONE_MAX peers that left with a finish tag ahead of the virtual
 * time.
 *
 * Those on probation get an eighth of the host together while members have work waiting: for m of
 * them beside n members, each one's tags are 7 m / n times as far apart as its work.
 *
 * Admission is per peer, too. The estimated wait of a request is that of its peer's own work times
 * the number of peers with requests. A peer that is not alone may hold at most as many bytes as it
 * leaves free (Choudhury and Hahne 1998): k peers that flood the host leave a (k+1)st share to the
 * next. A peer that is alone leaves an eighth free, or a second peer would never be admitted.
 */
#include "experts/server_int.h"

#include <string.h>

/* Operations of one unit of a tag: 64 bits last a thousand years on a host that never idles. */
#define TAG_WORK 1024.0

enum { PAYS_PEER, PAYS_INVITE, PAYS_NETWORK };

/* The distance of tags for an eighth of the time: seven parts of members' work to one. */
#define PROBATION_FACTOR 7.0

static struct srv_payer payer_of(const struct hth_rpc_request *req)
{
    struct srv_payer p = {.kind = PAYS_PEER};
    struct hth_addr from = hth_rpc_from(req);
    uint64_t invite = hth_rpc_invite(req);

    if (invite == 0) {
        memcpy(p.b, hth_rpc_peer(req)->b, sizeof(p.b));
    } else if (hth_rpc_class(req) == HTH_PROBATION && from.family != 0) {
        p.kind = PAYS_NETWORK;
        p.b[0] = from.family;
        memcpy(&p.b[1], from.ip, from.family == 4 ? 3 : 6);
    } else {
        p.kind = PAYS_INVITE;
        memcpy(p.b, &invite, sizeof(invite));
    }
    return p;
}

static struct srv_peer *peer_find(const struct hth_server *s, const struct srv_payer *id)
{
    return hth_map_get(s->peers, id, sizeof(*id));
}

/* Remembers a peer that left. A full table drops the peer that left longest ago. */
static void gone_add(struct hth_server *s, const struct srv_peer *p)
{
    struct srv_gone *g = &s->gone[s->gone_next];

    if (p->finish_tag <= s->virtual_time)
        return;
    s->gone_count += g->finish_tag == 0 ? 1 : 0;
    *g = (struct srv_gone){p->id, p->finish_tag};
    s->gone_next = (s->gone_next + 1) % SRV_GONE_MAX;
}

/* Takes the finish tag of a peer that returns; 0 when it was not ahead, or was dropped. */
static uint64_t gone_take(struct hth_server *s, const struct srv_payer *id)
{
    for (uint32_t i = 0, left = s->gone_count; left > 0; i++) {
        struct srv_gone *g = &s->gone[i];
        uint64_t tag = g->finish_tag;
        left -= tag > 0 ? 1 : 0;
        if (tag > 0 && memcmp(&g->id, id, sizeof(*id)) == 0) {
            g->finish_tag = 0;
            s->gone_count--;
            return tag;
        }
    }
    return 0;
}

void hth_srv_peer_enter(struct srv_request *r)
{
    struct hth_server *s = r->server;
    struct srv_payer id = payer_of(r->req);
    struct srv_peer *p = peer_find(s, &id);
    double members;

    if (p == NULL) {
        p = hth_new(struct srv_peer);
        p->id = id;
        p->probation = r->sender.probation;
        p->finish_tag = gone_take(s, &id);
        hth_map_put(s->peers, &p->id, sizeof(p->id), p);
        s->probation += p->probation;
    }
    members = (double)hth_map_count(s->peers) - s->probation;
    r->tag_factor =
        p->probation && members > 0 ? HTH_MAX(PROBATION_FACTOR * s->probation / members, 1.0) : 1;
    p->requests++;
    p->bytes_held += r->held_bytes;
    s->stats.bytes_held += r->held_bytes;
    r->peer = p;
}

void hth_srv_peer_leave(struct srv_request *r)
{
    struct hth_server *s = r->server;
    struct srv_peer *p = r->peer;

    s->stats.bytes_held -= r->held_bytes;
    p->bytes_held -= r->held_bytes;
    if (--p->requests > 0)
        return;
    hth_map_del(s->peers, &p->id, sizeof(p->id));
    s->probation -= p->probation;
    if (hth_map_count(s->peers) > 0) {
        gone_add(s, p);
        hth_free(p);
        return;
    }
    hth_free(p);
    s->cost_waiting = 0; /* a sum of differences drifts; without requests the exact value is 0 */
    s->virtual_time = 0; /* no peer is left that a fresh start could disadvantage */
    if (s->gone_count > 0)
        memset(s->gone, 0, sizeof(s->gone));
    s->gone_count = 0;
}

void hth_srv_work_waits(struct srv_request *r, double cost)
{
    r->server->cost_waiting += cost;
    r->peer->cost_waiting += cost;
}

uint64_t hth_srv_tag_span(const struct srv_request *r, double cost)
{
    return (uint64_t)(cost * r->tag_factor / TAG_WORK);
}

uint64_t hth_srv_start_tag(struct srv_request *r, double cost)
{
    uint64_t tag = HTH_MAX(r->server->virtual_time, r->peer->finish_tag);

    r->peer->finish_tag = tag + hth_srv_tag_span(r, cost) + 1;
    return tag;
}

bool hth_srv_shared(const struct hth_server *s)
{
    return hth_map_count(s->peers) > 1;
}

bool hth_srv_may_enter(const struct hth_server *s, const struct hth_rpc_request *req, int64_t bytes,
                       double cost, int64_t left_us)
{
    const struct srv_payer id = payer_of(req);
    const struct srv_peer *p = peer_find(s, &id);
    size_t peers = hth_map_count(s->peers) + (p == NULL ? 1 : 0);
    uint32_t width = hth_srv_width(s);
    double us_per_cost = s->ema_cost > 0 ? s->ema_us / s->ema_cost : 0;
    double own = (p != NULL ? p->cost_waiting : 0) + cost;
    double ahead = HTH_MIN(s->cost_waiting, own * (double)peers - cost);
    double end_us = us_per_cost * (ahead / width + cost);
    int64_t held = p != NULL ? p->bytes_held : 0;
    int64_t free_bytes = s->opts.queue_bytes_max - s->stats.bytes_held;
    int64_t leave = peers > 1 ? held : s->opts.queue_bytes_max / 8;

    if (bytes > free_bytes || (held > 0 && bytes > free_bytes - leave))
        return false;
    /* An empty queue admits everything, so that a wrong estimate of the speed corrects itself. */
    return s->requests_count == 0 ||
           (end_us <= (double)s->opts.queue_us_max && end_us <= (double)left_us);
}
