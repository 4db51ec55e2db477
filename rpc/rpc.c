/* SPDX-License-Identifier: Apache-2.0 */
/* rpc.c: the endpoint: creation and end, its one timer, and its statistics. */
#include "rpc/rpc_int.h"

#include "core/name.h"

#include <string.h>

#define LATE_US     (20 * HTH_US_PER_MS) /* less is work of the loop, not a stall */
#define LATE_OLD_US (10 * HTH_US_PER_S)  /* a stall counts this long: it may recur */

/* ---- time ---------------------------------------------------------------------------------- */

static struct rpc_due *due_of(const struct hth_heap_node *n)
{
    return HTH_CONTAINER(n, struct rpc_due, heap);
}

static bool due_less(const struct hth_heap_node *a, const struct hth_heap_node *b)
{
    return due_of(a)->seq < due_of(b)->seq; /* ties in time */
}

/* The timer may be early, never late: it is not moved back when its due entry is canceled. */
static void arm(struct hth_rpc *rpc, int64_t at_us)
{
    if (at_us >= rpc->timer_at_us)
        return;
    rpc->timer_at_us = at_us;
    hth_timer_set(rpc->env, rpc->timer, at_us - hth_now_us(rpc->env));
}

void hth_rpc_due_set(struct hth_rpc *rpc, struct rpc_due *due, int64_t at_us)
{
    hth_heap_remove(&rpc->due, &due->heap);
    due->heap.key = at_us;
    due->seq = ++rpc->due_seq;
    hth_heap_push(&rpc->due, &due->heap);
    arm(rpc, at_us);
}

void hth_rpc_due_cancel(struct hth_rpc *rpc, struct rpc_due *due)
{
    hth_heap_remove(&rpc->due, &due->heap);
}

void hth_rpc_soon(struct hth_rpc *rpc)
{
    arm(rpc, hth_now_us(rpc->env));
}

int64_t hth_rpc_lateness(const struct hth_rpc *rpc, int64_t due_us)
{
    int64_t late_us = hth_now_us(rpc->env) - due_us;
    return late_us > LATE_US ? HTH_MIN(late_us, RPC_LATE_MAX_US) : 0;
}

void hth_rpc_observe_late(struct hth_rpc *rpc, int64_t due_us)
{
    int64_t late_us = hth_rpc_lateness(rpc, due_us), now = hth_now_us(rpc->env);
    if (late_us == 0)
        return;
    rpc->stalled_us += now - HTH_MAX(due_us, rpc->stalled_until_us);
    rpc->stalled_until_us = now;
    if (late_us >= hth_rpc_late_us(rpc)) {
        rpc->late_us = late_us;
        rpc->late_at_us = now;
    }
}

int64_t hth_rpc_late_us(const struct hth_rpc *rpc)
{
    return hth_now_us(rpc->env) < rpc->late_at_us + LATE_OLD_US ? rpc->late_us : 0;
}

static void run_due(struct hth_rpc *rpc)
{
    int64_t now = hth_now_us(rpc->env);
    while (hth_heap_top_key(&rpc->due) <= now) {
        struct rpc_due *due = due_of(hth_heap_pop(&rpc->due));
        switch (due->kind) {
        case DUE_CALL:
            hth_rpc_call_expired(HTH_CONTAINER(due, struct hth_rpc_call, due));
            break;
        case DUE_REQUEST:
            hth_rpc_request_expired(HTH_CONTAINER(due, struct hth_rpc_request, due));
            break;
        case DUE_BUSY:
            hth_rpc_conns_check_busy(rpc, hth_rpc_lateness(rpc, due->heap.key) > 0);
            break;
        case DUE_SWEEP:
            hth_rpc_conns_sweep(rpc);
            break;
        case DUE_GRANTS:
            hth_rpc_conns_grants(rpc);
            break;
        }
    }
}

static void run_soon(struct hth_rpc *rpc)
{
    struct rpc_link list;
    rpc_list_steal(&rpc->soon_calls, &list);
    while (!rpc_list_empty(&list)) {
        struct hth_rpc_call *call = HTH_CONTAINER(list.next, struct hth_rpc_call, node);
        rpc_list_del(&call->node);
        hth_rpc_call_run_soon(call);
    }
    rpc_list_steal(&rpc->soon_requests, &list);
    while (!rpc_list_empty(&list)) {
        struct hth_rpc_request *req = HTH_CONTAINER(list.next, struct hth_rpc_request, soon);
        rpc_list_del(&req->soon);
        hth_rpc_request_run_soon(req);
    }
    struct lost_peer *lost = rpc->lost_first;
    rpc->lost_first = rpc->lost_last = NULL;
    while (lost != NULL) {
        struct lost_peer *next = lost->next;
        if (rpc->opts.on_peer_lost != NULL)
            rpc->opts.on_peer_lost(rpc->opts.arg, &lost->peer, lost->err);
        hth_free(lost);
        lost = next;
    }
}

static void on_timer(void *arg)
{
    struct hth_rpc *rpc = arg;
    hth_rpc_observe_late(rpc, rpc->timer_at_us);
    rpc->timer_at_us = INT64_MAX;
    hth_rpc_enter(rpc);
    run_soon(rpc);
    run_due(rpc);
    hth_rpc_drain_check(rpc);
    hth_rpc_leave(rpc);
    arm(rpc, hth_heap_top_key(&rpc->due)); /* an empty heap arms nothing */
    if (rpc->draining && rpc->drain_fn != NULL)
        arm(rpc, rpc->drain_until_us);
}

void hth_rpc_enter(struct hth_rpc *rpc)
{
    rpc->cork++;
}

void hth_rpc_leave(struct hth_rpc *rpc)
{
    if (--rpc->cork > 0)
        return;
    while (!rpc_list_empty(&rpc->dirty))
        hth_rpc_tx_flush(HTH_CONTAINER(rpc->dirty.next, struct rpc_conn, dirty));
}

void hth_rpc_queue_lost(struct hth_rpc *rpc, const struct hth_peer_id *peer, enum hth_err err)
{
    if (rpc->opts.on_peer_lost == NULL)
        return;
    struct lost_peer *lost = hth_new(struct lost_peer);
    lost->peer = *peer;
    lost->err = err;
    if (rpc->lost_last != NULL)
        rpc->lost_last->next = lost;
    else
        rpc->lost_first = lost;
    rpc->lost_last = lost;
    hth_rpc_soon(rpc);
}

/* ---- frames -------------------------------------------------------------------------------- */

/* Frames, calls and requests are not recycled here: malloc returns the block freed last by any
 * module, which is the warmest memory. */
struct hth_frame *hth_rpc_frame_new(void)
{
    struct hth_frame *f = hth_try_alloc(sizeof(*f));
    if (f != NULL)
        hth_frame_init(f);
    return f;
}

void hth_rpc_frame_free(struct hth_frame *f)
{
    if (f != NULL)
        hth_frame_clear(f);
    hth_free(f);
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum hth_err check_opts(const struct hth_rpc_opts *o)
{
    bool ok = o->network != NULL && strlen(o->network) <= HTH_NAME_LEN_MAX && o->version_min >= 1 &&
              o->version_min <= o->version_max && o->requests_max >= 1 &&
              o->requests_max <= HTH_RPC_REQUESTS_MAX && o->calls_max >= 1 && o->conns_max >= 1 &&
              o->body_bytes_max <= HTH_FRAME_BODY_BYTES_MAX &&
              o->body_bytes_max <= o->request_credit_bytes / 2 &&
              o->body_bytes_max <= o->reply_credit_bytes / 2 &&
              o->peer_bytes_max <= INT64_MAX / 2 && o->stall_timeout_us > 0 &&
              o->hello_timeout_us > 0 && o->ping_after_us >= 0 &&
              (o->ping_after_us == 0 || o->ping_timeout_us > 0) && o->backoff_min_us > 0 &&
              o->backoff_max_us >= o->backoff_min_us && o->timeout_min_us > 0 &&
              o->timeout_max_us >= o->timeout_min_us && o->idle_timeout_us >= 0;
    return ok ? HTH_OK : HTH_E_CONFIG;
}

/* The metrics of each message come first: metrics lie side by side in the order of registration. */
static void register_metrics(struct hth_rpc *rpc)
{
    struct hth_metrics *m = rpc->env->metrics;
    struct rpc_metrics *to = &rpc->metrics;
    to->bytes_in = hth_counter(m, "hearth_rpc_received_bytes", "bytes of frames received");
    to->bytes_out = hth_counter(m, "hearth_rpc_sent_bytes", "bytes of frames sent");
    to->calls = hth_counter(m, "hearth_rpc_calls_total", "calls made");
    to->requests = hth_counter(m, "hearth_rpc_requests_total", "requests received");
    to->rtt = hth_histogram(m, "hearth_rpc_call_seconds", "from sent to verdict", 1e-6);
    to->conns = hth_gauge(m, "hearth_rpc_connections", "open connections");
    to->calls_failed = hth_counter(m, "hearth_rpc_calls_failed_total", "calls without a reply");
    to->refused = hth_counter(m, "hearth_rpc_refused_total", "requests refused");
    to->dropped = hth_counter(m, "hearth_rpc_peers_dropped_total", "connections closed for cause");
}

enum hth_err hth_rpc_new(struct hth_env *env, const struct hth_rpc_opts *opts, struct hth_rpc **out)
{
    *out = NULL;
    HTH_TRY(check_opts(opts));
    struct hth_rpc *rpc = hth_new(struct hth_rpc);
    rpc->env = env;
    rpc->opts = *opts;
    memcpy(rpc->network, opts->network, strlen(opts->network) + 1);
    rpc->opts.network = rpc->network;
    rpc->is_private = opts->admission != NULL && hth_network_is_private(opts->network);
    if (rpc->is_private)
        rpc->network[0] = '\0';
    rpc->opts.listen = NULL;
    rpc->peers = hth_map_new_held(offsetof(struct rpc_peer, id), sizeof(struct hth_peer_id));
    rpc->anonymous = hth_map_new();
    static const uint8_t zeros[HTH_FRAME_ALIGN];
    rpc->pad = hth_blob_copy(zeros, sizeof(zeros));
    rpc_list_init(&rpc->conns);
    rpc_list_init(&rpc->dirty);
    rpc_list_init(&rpc->busy);
    rpc->busy_check.kind = DUE_BUSY;
    rpc->sweep.kind = DUE_SWEEP;
    rpc->grants.kind = DUE_GRANTS;
    rpc_list_init(&rpc->soon_calls);
    rpc_list_init(&rpc->soon_requests);
    rpc_list_init(&rpc->orphans);
    hth_heap_init(&rpc->due, due_less);
    rpc->timer = hth_timer_new(env, on_timer, rpc);
    rpc->timer_at_us = INT64_MAX;
    register_metrics(rpc);
    enum hth_err err = hth_rpc_tx_hello_pack(rpc);
    if (err == HTH_OK && opts->listen != NULL)
        err = hth_listen(env, opts->listen, hth_rpc_conn_accept, rpc, &rpc->listener);
    if (err != HTH_OK) {
        hth_rpc_free(rpc);
        return err;
    }
    if (rpc->listener != NULL)
        hth_listener_addr(env, rpc->listener, &rpc->addr);
    *out = rpc;
    return HTH_OK;
}

/* Frees calls that are in no connection, without a verdict. */
static void drop_calls(struct rpc_link *list)
{
    while (!rpc_list_empty(list)) {
        struct hth_rpc_call *call = HTH_CONTAINER(list->next, struct hth_rpc_call, node);
        rpc_list_del(&call->node);
        hth_rpc_call_free(call);
    }
}

static void drop_peers(struct hth_map *peers)
{
    struct rpc_peer *p;
    for (size_t it = 0; (p = hth_map_next(peers, &it, NULL, NULL)) != NULL;) {
        drop_calls(&p->waiting);
        p->rpc = NULL;
        hth_rpc_peer_unref(p);
    }
    hth_map_free(peers);
}

static void drop_lost(struct hth_rpc *rpc)
{
    for (struct lost_peer *n = rpc->lost_first; n != NULL;) {
        struct lost_peer *next = n->next;
        hth_free(n);
        n = next;
    }
}

void hth_rpc_free(struct hth_rpc *rpc)
{
    if (rpc == NULL)
        return;
    HTH_ASSERT(rpc->cork == 0);
    rpc->draining = true;
    rpc->drain_fn = NULL;
    rpc->opts.on_peer_lost = NULL;
    hth_listener_free(rpc->env, rpc->listener);
    while (!rpc_list_empty(&rpc->conns))
        hth_rpc_conn_kill(HTH_CONTAINER(rpc->conns.next, struct rpc_conn, in_rpc), HTH_E_CLOSED,
                          NULL, false);
    drop_calls(&rpc->soon_calls);
    while (!rpc_list_empty(&rpc->orphans)) {
        struct hth_rpc_request *req =
            HTH_CONTAINER(rpc->orphans.next, struct hth_rpc_request, node);
        rpc_list_del(&req->node);
        rpc_list_del(&req->soon);
        req->rpc = NULL;
    }
    drop_peers(rpc->peers);
    drop_peers(rpc->anonymous);
    hth_free(rpc->handlers);
    hth_free(rpc->usual.of);
    drop_lost(rpc);
    hth_heap_clear(&rpc->due);
    hth_timer_free(rpc->env, rpc->timer);
    hth_blob_unref(rpc->pad);
    hth_blob_unref(rpc->hello);
    hth_free(rpc);
}

struct hth_budget *hth_rpc_budget(const struct hth_rpc *rpc)
{
    return rpc->opts.budget;
}

void hth_rpc_addr(const struct hth_rpc *rpc, struct hth_addr *out)
{
    *out = rpc->addr;
}

void hth_rpc_serve(struct hth_rpc *rpc, uint16_t method, hth_rpc_handler_fn *handler, void *arg)
{
    uint32_t i = 0;
    while (i < rpc->handler_count && rpc->handlers[i].method != method)
        i++;
    if (handler == NULL) {
        if (i < rpc->handler_count)
            rpc->handlers[i] = rpc->handlers[--rpc->handler_count];
        return;
    }
    if (i == rpc->handler_count)
        rpc->handlers = hth_realloc(rpc->handlers, ++rpc->handler_count, sizeof(*rpc->handlers));
    rpc->handlers[i] = (struct rpc_handler){method, handler, arg};
}

/* ---- drain --------------------------------------------------------------------------------- */

void hth_rpc_drain(struct hth_rpc *rpc, int64_t timeout_us, hth_fn *done, void *arg)
{
    rpc->draining = true;
    rpc->drain_fn = done;
    rpc->drain_arg = arg;
    rpc->drain_until_us = hth_now_us(rpc->env) + timeout_us;
    hth_listener_free(rpc->env, rpc->listener);
    rpc->listener = NULL;
    hth_rpc_enter(rpc);
    for (struct rpc_link *n = rpc->conns.next, *next; n != &rpc->conns; n = next) {
        struct rpc_conn *c = HTH_CONTAINER(n, struct rpc_conn, in_rpc);
        next = n->next;
        if (c->state == CONN_READY)
            hth_rpc_conn_goodbye(c, HTH_E_DRAINING, "shutting down");
    }
    hth_rpc_leave(rpc);
    hth_rpc_soon(rpc);
}

void hth_rpc_drain_check(struct hth_rpc *rpc)
{
    if (!rpc->draining || rpc->drain_fn == NULL)
        return;
    if (hth_now_us(rpc->env) >= rpc->drain_until_us) {
        while (!rpc_list_empty(&rpc->conns))
            hth_rpc_conn_kill(HTH_CONTAINER(rpc->conns.next, struct rpc_conn, in_rpc), HTH_OK, NULL,
                              false);
    }
    if (rpc->conn_count > 0)
        return;
    hth_fn *fn = rpc->drain_fn;
    rpc->drain_fn = NULL;
    fn(rpc->drain_arg);
}

/* ---- accessors ----------------------------------------------------------------------------- */

void hth_rpc_stats(const struct hth_rpc *rpc, struct hth_rpc_stats *out)
{
    *out = rpc->stats;
    out->conns = rpc->conn_count;
    out->peers = hth_rpc_peers_count(rpc);
}
