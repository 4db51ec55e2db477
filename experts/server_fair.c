/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_fair.c: whose turn it is.
 *
 * Start-time fair queueing (Goyal et al. 1996) over peers, in work rather than in requests. The
 * server has a clock that shows work, not time: the turn of the batch that was taken last. A part's
 * turn is where its peer's work ended so far, or the clock where that is later:
 *
 *     part.turn = max(server.turn, peer.turn);   peer.turn = part.turn + the part's work
 *
 * and the lowest turn goes first. A part that is cut goes on with the turn after the rows that were
 * taken. So a peer alone has everything; n peers with work waiting share the host equally, however
 * much each of them sends; and who comes with a little goes ahead of all that others piled up,
 * after one batch per worker. Nobody saves up turns while away, and who waits for each answer
 * before the next request does not get rid of what it had: peers that left early are remembered for
 * a while.
 *
 * What waits is bounded per peer, too: the estimated wait of a request is that of its peer's own
 * work times the peers at work, and a peer that is not alone may hold at most as many bytes as it
 * leaves free (Choudhury and Hahne 1998): k of them that flood leave the k+1st part to newcomers.
 * One that is alone leaves an eighth: else the next would never come to be the second.
 */
#include "experts/server_int.h"

#include <string.h>

/* Operations of one unit of turns: the clock of a host that never rests lasts a thousand years. */
#define TAG_WORK 1024.0

static struct srv_peer *peer_find(const struct hth_server *s, const struct hth_peer_id *id)
{
    return hth_map_get(s->peers, id->b, sizeof(id->b));
}

/* Of many, those that left longest ago are forgotten. */
static void gone_add(struct hth_server *s, const struct srv_peer *p)
{
    struct srv_gone *g = &s->gone[s->gone_next];

    if (p->finish_tag <= s->virtual_time)
        return;
    s->gone_count += g->finish_tag == 0 ? 1 : 0;
    *g = (struct srv_gone){p->id, p->finish_tag};
    s->gone_next = (s->gone_next + 1) % SRV_GONE_MAX;
}

/* Where the peer's work ended when it left; 0 when that is over or forgotten. */
static uint64_t gone_take(struct hth_server *s, const struct hth_peer_id *id)
{
    for (uint32_t i = 0, left = s->gone_count; left > 0; i++) {
        struct srv_gone *g = &s->gone[i];
        uint64_t tag = g->finish_tag;
        left -= tag > 0 ? 1 : 0;
        if (tag > 0 && memcmp(g->id.b, id->b, sizeof(id->b)) == 0) {
            g->finish_tag = 0;
            s->gone_count--;
            return tag;
        }
    }
    return 0;
}

void hth_srv_peer_enter(struct srv_request *r, const struct hth_peer_id *id)
{
    struct hth_server *s = r->server;
    struct srv_peer *p = peer_find(s, id);

    if (p == NULL) {
        p = hth_new(struct srv_peer);
        p->id = *id;
        p->finish_tag = gone_take(s, id);
        hth_map_put(s->peers, id->b, sizeof(id->b), p);
    }
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
    hth_map_del(s->peers, p->id.b, sizeof(p->id.b));
    if (hth_map_count(s->peers) > 0) {
        gone_add(s, p);
        hth_free(p);
        return;
    }
    hth_free(p);
    s->cost_waiting = 0; /* sums of differences drift; here the true value is known */
    s->virtual_time = 0; /* who is here alone takes nobody's turn */
    if (s->gone_count > 0)
        memset(s->gone, 0, sizeof(s->gone));
    s->gone_count = 0;
}

void hth_srv_work_waits(struct srv_request *r, double cost)
{
    r->server->cost_waiting += cost;
    r->peer->cost_waiting += cost;
}

uint64_t hth_srv_tag_span(double cost)
{
    return (uint64_t)(cost / TAG_WORK);
}

uint64_t hth_srv_start_tag(struct srv_request *r, double cost)
{
    uint64_t tag = HTH_MAX(r->server->virtual_time, r->peer->finish_tag);

    r->peer->finish_tag = tag + hth_srv_tag_span(cost) + 1;
    return tag;
}

bool hth_srv_shared(const struct hth_server *s)
{
    return hth_map_count(s->peers) > 1;
}

bool hth_srv_may_enter(const struct hth_server *s, const struct hth_peer_id *id, int64_t bytes,
                       double cost, int64_t left_us)
{
    const struct srv_peer *p = peer_find(s, id);
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
    /* With an empty queue everything is admitted, so that a wrong estimate of the speed corrects
     * itself. */
    return s->requests_count == 0 ||
           (end_us <= (double)s->opts.queue_us_max && end_us <= (double)left_us);
}
