/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.c: one connection from open to close: HELLO, frames received, keep-alive, the ways it ends.
 *
 *   dial -> DIALING --on_open--> HELLO --their HELLO--> READY --> DEAD
 *   accept ---------------------^
 */
#include "rpc/closed.h"
#include "admission/witness.h"
#include "rpc/rpc_int.h"

#include <stdio.h>
#include <string.h>

/* Bounds per turn: one connection may not occupy the loop. The rest is read in the next turn. */
#define FRAMES_PER_TURN 512
#define BYTES_PER_TURN  (8u << 20)
#define SCRATCH_BYTES   65536
/* Weight of a byte of meta: it may cost an allocation, a byte of a body only its copy. */
#define META_BYTE_COST 16
/* Factor between pings while no work is under way: often enough to keep a home router's mapping. */
#define PING_SELDOM 6
/* Period of the sweep over quiet connections without pings and idle ends, before it is halved. */
#define QUIET_SWEEP_US (120 * HTH_US_PER_S)
/* A body that has taken so long, and needs as long again, is slow. */
#define SLOW_BODY_S 2.0
/* Bodies that take less were in a buffer. */
#define LINE_SEEN_S 0.2
/* Period in which the grants of standing connections are judged again. */
#define GRANTS_US (10 * HTH_US_PER_S)

static const struct hth_stream_ops stream_ops, stranger_ops;

/* ---- beginning ----------------------------------------------------------------------------- */

static int64_t check_period(const struct hth_rpc *rpc)
{
    int64_t us = HTH_MIN(rpc->opts.stall_timeout_us, rpc->opts.hello_timeout_us);
    if (rpc->opts.ping_after_us > 0)
        us = HTH_MIN(us, HTH_MIN(rpc->opts.ping_after_us, rpc->opts.ping_timeout_us));
    if (rpc->opts.idle_timeout_us > 0)
        us = HTH_MIN(us, rpc->opts.idle_timeout_us);
    return HTH_MAX(us / 2, HTH_US_PER_MS);
}

static int64_t sweep_period(const struct hth_rpc *rpc)
{
    int64_t us = QUIET_SWEEP_US;
    if (rpc->opts.ping_after_us > 0)
        us = HTH_MIN(us, rpc->opts.ping_after_us * PING_SELDOM);
    if (rpc->opts.idle_timeout_us > 0)
        us = HTH_MIN(us, rpc->opts.idle_timeout_us);
    return HTH_MAX(us / 2, HTH_US_PER_MS);
}

static bool is_quiet(const struct rpc_conn *c)
{
    return c->state == CONN_READY && !c->goodbye_in && !c->goodbye_out && c->in_flight == 0 &&
           c->request_count == 0 && rpc_list_empty(&c->replies) && c->ping_sent_us == 0 &&
           !hth_frame_parser_busy(&c->parser) && hth_rpc_tx_backlog(c) == 0;
}

/* Restarts the windows in which stalls are measured. */
static void windows_begin(struct rpc_conn *c)
{
    c->rx_window_us = c->tx_window_us = hth_now_us(c->rpc->env);
    c->rx_window_bytes = c->rx_bytes;
    c->rx_window_frames = c->rx_frames;
    c->tx_window_bytes = c->tx_written + c->tx_bytes - hth_rpc_tx_backlog(c);
}

void hth_rpc_conn_settle(struct rpc_conn *c)
{
    struct hth_rpc *rpc = c->rpc;
    if (c->state == CONN_DEAD || c->state == CONN_DIALING)
        return;
    if (is_quiet(c)) {
        c->quiet = true;
        rpc_list_del(&c->busy);
        return;
    }
    if (c->quiet)
        windows_begin(c);
    c->quiet = false;
    if (rpc_list_empty(&c->busy))
        rpc_list_push(&rpc->busy, &c->busy);
    if (!hth_heap_contains(&rpc->busy_check.heap))
        hth_rpc_due_set(rpc, &rpc->busy_check, hth_now_us(rpc->env) + check_period(rpc));
}

static struct rpc_conn *conn_new(struct rpc_peer *p, bool accepted)
{
    struct hth_rpc *rpc = p->rpc;
    struct rpc_conn *c = hth_new(struct rpc_conn);
    c->rpc = rpc;
    c->peer = hth_rpc_peer_ref(p);
    c->accepted = accepted;
    c->pins = 1;
    rpc_list_init(&c->dirty);
    rpc_list_init(&c->busy);
    rpc_list_init(&c->requests);
    rpc_list_init(&c->replies);
    rpc_list_push(&rpc->conns, &c->in_rpc);
    rpc_list_push(&p->conns, &c->in_peer);
    rpc->conn_count++;
    p->conn_count++;
    hth_metric_set(rpc->metrics.conns, rpc->conn_count);
    if (!hth_heap_contains(&rpc->sweep.heap))
        hth_rpc_due_set(rpc, &rpc->sweep, hth_now_us(rpc->env) + sweep_period(rpc));
    hth_frame_parser_init(&c->parser, &p->held);
    c->opened_us = c->active_us = c->rx_last_us = hth_now_us(rpc->env);
    c->rx_window_us = c->tx_window_us = c->opened_us;
    return c;
}

/* Takes it off every list; the last unpin frees the memory. */
static void conn_detach(struct rpc_conn *c)
{
    c->state = CONN_DEAD;
    rpc_list_del(&c->busy);
    rpc_list_del(&c->in_rpc);
    rpc_list_del(&c->in_peer);
    rpc_list_del(&c->dirty);
    c->rpc->conn_count--;
    c->peer->conn_count--;
    hth_metric_set(c->rpc->metrics.conns, c->rpc->conn_count);
}

void hth_rpc_conn_unpin(struct rpc_conn *c)
{
    if (--c->pins > 0)
        return;
    HTH_ASSERT(c->state == CONN_DEAD && c->parser.frame == NULL);
    hth_rpc_peer_unref(c->peer);
    hth_free(c->slots);
    hth_free(c);
}

enum hth_err hth_rpc_conn_dial(struct rpc_peer *p)
{
    struct hth_rpc *rpc = p->rpc;
    if (rpc->draining && hth_now_us(rpc->env) >= rpc->drain_until_us)
        return HTH_E_CLOSED; /* else waiting calls would replace each connection that ends */
    if (rpc->conn_count >= rpc->opts.conns_max)
        return HTH_E_BUDGET;
    struct rpc_conn *c = conn_new(p, false);
    const struct hth_peer_id *want = p->anonymous ? NULL : &p->id;
    enum hth_err err = hth_dial(rpc->env, &p->addr, want, &stream_ops, c, &c->stream);
    rpc->stats.dials++;
    if (err != HTH_OK) {
        conn_detach(c);
        hth_rpc_conn_unpin(c);
    }
    return err;
}

/* A private run's peer shows itself to none that dials it but members. */
static bool is_shy(const struct rpc_conn *c)
{
    return c->accepted && c->rpc->is_private;
}

static void send_hello(struct rpc_conn *c)
{
    c->state = CONN_HELLO;
    c->opened_us = c->active_us = c->rx_last_us = hth_now_us(c->rpc->env);
    c->rx_window_us = c->tx_window_us = c->opened_us;
    hth_rpc_conn_settle(c);
    if (!is_shy(c))
        hth_rpc_tx_hello(c);
}

static void on_open(struct hth_stream *s, void *arg)
{
    struct rpc_conn *c = arg;
    struct hth_rpc *rpc = c->rpc;
    struct hth_addr addr;
    if (c->peer->anonymous)
        hth_stream_peer(rpc->env, s, &c->peer->id, &addr);
    hth_rpc_enter(rpc);
    send_hello(c);
    hth_rpc_leave(rpc);
}

/* A stream over a limit is closed by returning without attaching it. */
void hth_rpc_conn_accept(void *arg, struct hth_stream *s)
{
    struct hth_rpc *rpc = arg;
    struct hth_peer_id id;
    struct hth_addr addr;
    struct rpc_peer *p;
    if (rpc->draining || rpc->conn_count >= rpc->opts.conns_max)
        return;
    hth_stream_peer(rpc->env, s, &id, &addr);
    enum hth_err err = hth_rpc_peer_get(rpc, &id, NULL, &p);
    if (err != HTH_OK || p->conn_count >= HTH_RPC_CONNS_PER_PEER_MAX) {
        char text[HTH_PEER_SHORT_LEN];
        HTH_LOG(rpc->env, HTH_DEBUG, HTH_SUB_RPC,
                "peer %s: connection refused: it has as many as one peer may have",
                hth_peer_id_short(&id, text));
        return;
    }
    struct rpc_conn *c = conn_new(p, true);
    c->stream = s;
    rpc->stats.accepts++;
    hth_stream_attach(rpc->env, s, &stranger_ops, c);
    hth_rpc_enter(rpc);
    send_hello(c);
    hth_rpc_leave(rpc);
}

/* ---- ending -------------------------------------------------------------------------------- */

static void log_end(struct rpc_conn *c, enum hth_err err, const char *text)
{
    char id[HTH_PEER_SHORT_LEN];
    bool for_cause = hth_err_class(err) != HTH_CLASS_RETRY && err != HTH_OK;
    if (for_cause || err == HTH_E_TIMEOUT || err == HTH_E_QUEUE_FULL) {
        c->rpc->stats.peers_dropped++;
        hth_metric_add(c->rpc->metrics.dropped, 1);
        for_cause = true;
    }
    HTH_LOG(c->rpc->env, for_cause ? HTH_WARN : HTH_DEBUG, HTH_SUB_RPC,
            "peer %s: connection closed: %s (%s)", hth_peer_id_short(&c->peer->id, id),
            hth_err_text(err),
            text != NULL && strcmp(text, hth_err_text(err)) != 0 ? text : hth_err_name(err));
}

/* Only when the queue is empty: in the middle of a body the bytes would be read as tensors. */
static void send_goodbye(struct rpc_conn *c, enum hth_err err, const char *text)
{
    struct hth_frame_msg msg = {.type = HTH_FRAME_GOODBYE};
    hth_rpc_tx_flush(c);
    if (c->tx_count > 0)
        return;
    msg.u.refuse.err = err;
    msg.u.refuse.text = text != NULL ? text : hth_err_text(err);
    if (hth_rpc_tx_frame(c, &msg) == HTH_OK)
        hth_rpc_tx_flush(c);
}

/* Ends the connection once its stream is closed. */
static void conn_bury(struct rpc_conn *c, enum hth_err err, const char *text, bool was_ready)
{
    struct hth_rpc *rpc = c->rpc;
    struct rpc_peer *p = c->peer;
    /* A connection that the peer dialled, and that carried no call of ours, tells nothing about
     * dialling the peer: a joining peer probes us and hangs up. */
    bool ours = !c->accepted || c->in_flight > 0 || c->had_verdict;
    char kept[HTH_RPC_TEXT_MAX + 1] = "";
    /* `text` may lie in the frame that is freed below. */
    strncpy(kept, text != NULL ? text : hth_err_text(err), HTH_RPC_TEXT_MAX);
    log_end(c, err, kept);
    conn_detach(c);
    hth_rpc_tx_clear(c);
    hth_rpc_requests_orphan_all(c, err == HTH_OK ? HTH_E_CLOSED : err);
    /* A lost connection always means the same for a request that was out: unknown. */
    enum hth_err verdict = err == HTH_OK || err == HTH_E_TIMEOUT ? HTH_E_CLOSED : err;
    hth_rpc_slots_fail_all(c, verdict, kept, false);
    hth_budget_give(&p->held, c->rx_held);
    c->rx_held = 0;
    hth_rpc_frame_free(c->parser.frame);
    c->parser.frame = NULL;
    hth_frame_parser_clear(&c->parser);
    bool other = false;
    for (struct rpc_link *n = p->conns.next; n != &p->conns; n = n->next)
        other |= HTH_CONTAINER(n, struct rpc_conn, in_peer)->state == CONN_READY;
    if (was_ready && !other)
        hth_rpc_queue_lost(rpc, &p->id, err);
    bool theirs = !ours && err == HTH_E_CLOSED;
    hth_rpc_peer_conn_lost(p, theirs ? HTH_OK : err, kept, was_ready, c->had_verdict);
    if (rpc->draining && rpc->drain_fn != NULL)
        hth_rpc_soon(rpc);
    hth_rpc_conn_unpin(c);
}

void hth_rpc_conn_kill(struct rpc_conn *c, enum hth_err err, const char *text, bool notify)
{
    if (c->state == CONN_DEAD)
        return;
    bool was_ready = c->state == CONN_READY;
    if (notify && c->state != CONN_DIALING)
        send_goodbye(c, err, text);
    bool flush = notify || err == HTH_OK;
    c->state = CONN_DEAD;
    hth_stream_close(c->rpc->env, c->stream, flush);
    conn_bury(c, err, text, was_ready);
}

static void on_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct rpc_conn *c = arg;
    struct hth_rpc *rpc = c->rpc;
    (void)s;
    bool was_ready = c->state == CONN_READY;
    bool agreed = c->goodbye_in || c->goodbye_out;
    if (err == HTH_OK && (!agreed || c->in_flight > 0))
        err = HTH_E_CLOSED;
    c->state = CONN_DEAD;
    hth_rpc_enter(rpc);
    conn_bury(c, err, NULL, was_ready);
    hth_rpc_leave(rpc);
}

void hth_rpc_conn_goodbye(struct rpc_conn *c, enum hth_err err, const char *text)
{
    struct hth_frame_msg msg = {.type = HTH_FRAME_GOODBYE};
    if (c->goodbye_out || c->state != CONN_READY)
        return;
    c->goodbye_out = true;
    c->goodbye_us = hth_now_us(c->rpc->env);
    msg.u.refuse.err = err;
    msg.u.refuse.text = text;
    if (hth_rpc_tx_frame(c, &msg) != HTH_OK)
        hth_rpc_conn_kill(c, HTH_E_NO_MEMORY, NULL, false);
}

void hth_rpc_conn_maybe_finish(struct rpc_conn *c)
{
    if (c->state == CONN_READY && c->goodbye_in && c->in_flight == 0 && c->request_count == 0 &&
        rpc_list_empty(&c->replies))
        hth_rpc_conn_kill(c, HTH_OK, "goodbye", false);
}

/* ---- HELLO --------------------------------------------------------------------------------- */

static enum hth_err check_pass(struct rpc_conn *c, const struct hth_frame_msg *m)
{
    const struct hth_admission *a = c->rpc->opts.admission;
    struct hth_grant grant = HTH_GRANT_IMPLICIT;
    if (a != NULL)
        HTH_TRY(a->admit(a->arg, &c->peer->id, m->u.hello.pass, m->u.hello.pass_len, &grant));
    c->grant = grant;
    c->roles = grant.roles;
    if (a != NULL && !hth_heap_contains(&c->rpc->grants.heap))
        hth_rpc_due_set(c->rpc, &c->rpc->grants, hth_now_us(c->rpc->env) + GRANTS_US);
    return HTH_OK;
}

void hth_rpc_count_refusal(struct hth_rpc *rpc, enum hth_err err)
{
    if (err < HTH_E_NOT_ADMITTED || err > HTH_E_PASS_FORGED)
        err = HTH_E_PASS_FORGED;
    rpc->stats.turned_away[err - HTH_E_NOT_ADMITTED]++;
}

/* Nothing of a stranger that came by itself stays behind. */
static void turn_away(struct rpc_conn *c, enum hth_err err)
{
    char text[HTH_RPC_TEXT_MAX];
    struct rpc_peer *p = hth_rpc_peer_ref(c->peer);
    hth_rpc_count_refusal(c->rpc, err);
    snprintf(text, sizeof(text), "run '%s': %s",
             c->rpc->is_private ? "private" : c->rpc->opts.network, hth_err_text(err));
    hth_rpc_conn_kill(c, err, hth_frame_clean(text), true);
    if (c->accepted)
        hth_rpc_peer_forget(p);
    hth_rpc_peer_unref(p);
}

static enum hth_err on_hello(struct rpc_conn *c, const struct hth_frame_msg *m)
{
    const struct hth_rpc_opts *o = &c->rpc->opts;
    char text[HTH_RPC_TEXT_MAX];
    if (c->state != CONN_HELLO) {
        hth_rpc_conn_kill(c, HTH_E_PROTOCOL, "a second HELLO", true);
        return HTH_OK;
    }
    if (m->u.hello.network[0] != '\0' && o->network[0] != '\0' &&
        strcmp(m->u.hello.network, o->network) != 0) {
        snprintf(text, sizeof(text), "this peer is in network '%s', you are in '%s'", o->network,
                 m->u.hello.network);
        hth_rpc_conn_kill(c, HTH_E_WRONG_RUN, hth_frame_clean(text), true);
        return HTH_OK;
    }
    uint32_t low = HTH_MAX(m->u.hello.version_min, o->version_min);
    uint32_t high = HTH_MIN(m->u.hello.version_max, o->version_max);
    if (high < low) {
        snprintf(text, sizeof(text), "this peer speaks versions %u to %u, you speak %u to %u",
                 o->version_min, o->version_max, m->u.hello.version_min, m->u.hello.version_max);
        hth_rpc_conn_kill(c, HTH_E_VERSION, text, true);
        return HTH_OK;
    }
    uint64_t body_max = m->u.hello.body_bytes_max;
    if (body_max > m->u.hello.request_credit_bytes / 2 ||
        body_max > m->u.hello.reply_credit_bytes / 2 || m->u.hello.requests_max == 0) {
        hth_rpc_conn_kill(c, HTH_E_PROTOCOL, "HELLO with limits that contradict each other", true);
        return HTH_OK;
    }
    enum hth_err err = check_pass(c, m);
    if (err != HTH_OK) {
        turn_away(c, err);
        return HTH_OK;
    }
    c->version = high;
    c->features = m->u.hello.features;
    c->their_requests_max = HTH_MIN(m->u.hello.requests_max, (uint32_t)HTH_RPC_REQUESTS_MAX);
    c->their_body_max = body_max;
    c->their_request_credit = m->u.hello.request_credit_bytes;
    c->their_reply_credit = m->u.hello.reply_credit_bytes;
    c->state = CONN_READY;
    if (c->accepted)
        hth_stream_attach(c->rpc->env, c->stream, &stream_ops, c);
    if (is_shy(c))
        hth_rpc_tx_hello(c);
    /* The dialling side sent its HELLO one round trip before this one arrives. */
    if (!c->accepted)
        hth_rpc_peer_observe_rtt(c->peer, hth_now_us(c->rpc->env) - c->opened_us);
    hth_rpc_peer_pump(c->peer);
    if (c->rpc->draining)
        hth_rpc_conn_goodbye(c, HTH_E_DRAINING, "shutting down");
    return HTH_OK;
}

static void on_goodbye(struct rpc_conn *c, const struct hth_frame_msg *m)
{
    enum hth_err err = m->u.refuse.err;
    struct rpc_peer *p = c->peer;
    if (err != HTH_OK && err != HTH_E_DRAINING) {
        hth_rpc_conn_kill(c, err, m->u.refuse.text, false);
        return;
    }
    c->goodbye_in = true;
    if (err == HTH_E_DRAINING)
        hth_rpc_peer_conn_lost(p, err, m->u.refuse.text, true, true);
    else
        hth_rpc_peer_pump(p);
    hth_rpc_conn_maybe_finish(c);
}

/* ---- receiving ----------------------------------------------------------------------------- */

/* How long the rest of this connection's body will take, at the speed of the window in which stalls
 * are measured: most of a body may have come quickly. */
static double body_left_s(const struct rpc_conn *c, double age_s)
{
    double window_s = (double)(hth_now_us(c->rpc->env) - c->rx_window_us) / 1e6;
    double arrived = (double)(c->rx_bytes - c->body_from);
    bool recent = window_s >= SLOW_BODY_S;
    double came = recent ? (double)(c->rx_bytes - c->rx_window_bytes) : arrived;

    return HTH_MAX((double)c->rx_held - arrived, 0.0) * (recent ? window_s : age_s) /
           HTH_MAX(came, 1.0);
}

/* The process's budget is used up: drops the connection whose unfinished body would hold the most
 * bytes for the longest. Strangers who begin large bodies and do not send them must not keep
 * others out. False: there is none that is slow. */
static bool drop_slowest(struct hth_rpc *rpc, const struct rpc_conn *except)
{
    struct rpc_conn *worst = NULL;
    double most = 0;

    for (struct rpc_link *n = rpc->conns.next; n != &rpc->conns; n = n->next) {
        struct rpc_conn *c = HTH_CONTAINER(n, struct rpc_conn, in_rpc);
        double age_s = (double)(hth_now_us(rpc->env) - c->body_us) / 1e6;
        double left_s = c->rx_held > 0 && c != except ? body_left_s(c, age_s) : 0;
        if (age_s < SLOW_BODY_S || left_s < SLOW_BODY_S || left_s * (double)c->rx_held <= most)
            continue;
        most = left_s * (double)c->rx_held;
        worst = c;
    }
    if (worst == NULL)
        return false;
    hth_rpc_conn_kill(worst, HTH_E_TIMEOUT,
                      "its body arrives slowly, and others need the memory that it holds", true);
    return true;
}

static enum hth_err body_new(struct rpc_conn *c, size_t len, struct hth_blob **out)
{
    struct hth_rpc *rpc = c->rpc;
    enum hth_err err;

    if (hth_fault(rpc->env, "rpc.body"))
        return HTH_E_NO_MEMORY;
    do
        err = hth_env_blob_new(rpc->env, len, rpc->opts.budget, out);
    while (err == HTH_E_BUDGET && drop_slowest(rpc, c));
    return err;
}

uint64_t hth_rpc_conn_body_done(struct rpc_conn *c)
{
    uint64_t held = c->rx_held;
    double took_s = (double)(hth_now_us(c->rpc->env) - c->body_us) / 1e6;

    /* A quick one was in a buffer, and says nothing of the line. */
    if (held > 0 && took_s >= LINE_SEEN_S)
        c->line =
            c->line > 0 ? c->line + ((double)held / took_s - c->line) / 4 : (double)held / took_s;
    c->rx_held = 0;
    return held;
}

enum hth_err hth_rpc_conn_take_body(struct rpc_conn *c, bool wanted)
{
    struct hth_rpc *rpc = c->rpc;
    size_t len = c->parser.frame->header.body_len;
    struct hth_blob *blob;
    enum hth_err err = wanted ? hth_budget_take(&c->peer->held, len) : HTH_E_CANCELED;
    if (err == HTH_OK) {
        err = body_new(c, len, &blob);
        if (err == HTH_OK) {
            c->rx_held = len;
            c->body_us = hth_now_us(rpc->env);
            c->body_from = c->rx_bytes;
            hth_frame_parser_body_take(&c->parser, blob);
            return HTH_OK;
        }
        hth_budget_give(&c->peer->held, len);
    }
    c->rx_err = err;
    HTH_TRY(hth_env_blob_new(rpc->env, HTH_MIN(len, (size_t)SCRATCH_BYTES), NULL, &blob));
    hth_frame_parser_skip_take(&c->parser, blob);
    return HTH_OK;
}

static void on_pong(struct rpc_conn *c, uint64_t id)
{
    if (c->ping_sent_us == 0 || id != c->ping_id)
        return;
    int64_t rtt = hth_now_us(c->rpc->env) - c->ping_sent_us;
    struct rpc_peer *p = c->peer;
    /* 1/8 is the constant of TCP's smoothed round trip (RFC 6298). */
    p->rtt_us = p->rtt_us == 0 ? rtt : p->rtt_us + (rtt - p->rtt_us) / 8;
    c->ping_sent_us = 0;
}

/* True if this peer leaves more answers unread than we are willing to hold. */
static bool flooded(const struct rpc_conn *c)
{
    uint64_t most = 2 * c->rpc->opts.queue_bytes_max + c->request_out;
    return hth_rpc_tx_backlog(c) > most;
}

/* A peer of a private run turns strangers away without a HELLO. */
static bool may_come_first(const struct hth_frame_header *h)
{
    return h->type == HTH_FRAME_HELLO ||
           (h->type == HTH_FRAME_GOODBYE && h->meta_len <= HTH_RPC_HELLO_BYTES_MAX);
}

/* Handles a frame whose header and meta are complete. An error closes the connection. */
static enum hth_err on_head(struct rpc_conn *c)
{
    struct hth_frame *f = c->parser.frame;
    bool has_body = f->header.body_len > 0;
    c->rx_frames++;
    bool refused = f->msg.type == HTH_FRAME_GOODBYE && f->msg.u.refuse.err != HTH_OK;
    if (c->state == CONN_HELLO && f->msg.type != HTH_FRAME_HELLO && !refused)
        return HTH_E_PROTOCOL;
    if (flooded(c))
        return HTH_E_QUEUE_FULL;
    switch (f->msg.type) {
    case HTH_FRAME_HELLO:
        return on_hello(c, &f->msg);
    case HTH_FRAME_REQUEST:
        HTH_TRY(hth_rpc_request_on_head(c, f));
        if (!has_body)
            hth_rpc_request_on_complete(c);
        return HTH_OK;
    case HTH_FRAME_REPLY:
    case HTH_FRAME_REFUSE:
        HTH_TRY(hth_rpc_call_on_head(c, f));
        if (!has_body)
            hth_rpc_call_on_complete(c, f);
        return HTH_OK;
    case HTH_FRAME_CANCEL:
        if (f->header.id > c->last_id)
            return HTH_E_PROTOCOL;
        hth_rpc_request_on_cancel(c, f->header.id);
        return HTH_OK;
    case HTH_FRAME_CREDIT:
        if (f->msg.u.credit.reply_bytes > c->reply_out)
            return HTH_E_PROTOCOL;
        c->reply_out -= f->msg.u.credit.reply_bytes;
        hth_rpc_replies_pump(c);
        return HTH_OK;
    case HTH_FRAME_PING:
        hth_rpc_tx_control(c, HTH_FRAME_PONG, f->header.id);
        return HTH_OK;
    case HTH_FRAME_PONG:
        on_pong(c, f->header.id);
        return HTH_OK;
    case HTH_FRAME_GOODBYE:
        on_goodbye(c, &f->msg);
        return HTH_OK;
    }
    return HTH_E_BUG;
}

/* Between two frames a connection holds neither frame nor buffer. */
static void rx_rest(struct rpc_conn *c)
{
    if (c->state == CONN_DEAD || hth_frame_parser_busy(&c->parser))
        return;
    hth_rpc_frame_free(c->parser.frame);
    c->parser.frame = NULL;
    hth_frame_parser_clear(&c->parser);
}

/* Reads bytes of the stream. Returns false when there are no more, or the connection has ended. */
static bool read_some(struct rpc_conn *c, size_t *bytes, size_t *cost)
{
    struct hth_blob *into;
    size_t offset, max, n = 0;
    enum hth_err err = hth_frame_parser_want(&c->parser, &into, &offset, &max);
    if (err == HTH_OK) {
        n = hth_stream_read(c->rpc->env, c->stream, into, offset, max);
        if (n == 0)
            return false;
        if (c->parser.frame == NULL) /* allocated late: most turns end between two frames */
            c->parser.frame = hth_rpc_frame_new();
        if (c->parser.frame == NULL)
            err = HTH_E_NO_MEMORY;
    }
    if (err == HTH_OK) {
        *bytes += n;
        *cost += c->parser.phase == HTH_FRAME_IN_META ? n * META_BYTE_COST : n;
        enum hth_frame_event ev = hth_frame_parser_got(&c->parser, n);
        if (ev == HTH_FRAME_HEAD) {
            err = on_head(c);
        } else if (ev == HTH_FRAME_BODY) {
            c->rx_frames++;
            if (c->rx_req != NULL)
                hth_rpc_request_on_complete(c);
            else
                hth_rpc_call_on_complete(c, c->parser.frame);
        } else if (ev == HTH_FRAME_BAD) {
            err = c->parser.err;
        } else if (c->state == CONN_HELLO && c->parser.phase == HTH_FRAME_IN_META &&
                   !may_come_first(&c->parser.frame->header)) {
            err = HTH_E_PROTOCOL; /* before its meta is read */
        }
        if (ev != HTH_FRAME_MORE && c->state != CONN_DEAD && c->parser.frame != NULL &&
            c->parser.phase == HTH_FRAME_IN_HEADER)
            hth_frame_clear(c->parser.frame);
    }
    if (err != HTH_OK)
        hth_rpc_conn_kill(c, err, NULL, true);
    return c->state != CONN_DEAD;
}

static void on_readable(struct hth_stream *s, void *arg)
{
    struct rpc_conn *c = arg;
    struct hth_rpc *rpc = c->rpc;
    size_t bytes = 0, cost = 0;
    uint64_t frames = c->rx_frames;
    (void)s;
    metrics_fetch(rpc);
    hth_rpc_enter(rpc);
    c->pins++;
    while (cost < BYTES_PER_TURN && c->rx_frames - frames < FRAMES_PER_TURN &&
           read_some(c, &bytes, &cost))
        continue;
    c->rx_bytes += bytes;
    c->rx_last_us = hth_now_us(rpc->env);
    rpc->stats.bytes_in += bytes;
    hth_metric_add(rpc->metrics.bytes_in, (int64_t)bytes);
    rx_rest(c);
    hth_rpc_conn_settle(c);
    hth_rpc_conn_unpin(c);
    hth_rpc_leave(rpc);
}

static void on_drained(struct hth_stream *s, void *arg)
{
    struct rpc_conn *c = arg;
    struct hth_rpc *rpc = c->rpc;
    (void)s;
    hth_rpc_enter(rpc);
    hth_rpc_tx_flush(c);
    hth_rpc_leave(rpc);
}

void hth_rpc_conn_fetch(const struct rpc_conn *c)
{
    __builtin_prefetch(c->slots);
    for (size_t at = 64; at < offsetof(struct rpc_conn, version); at += 64)
        __builtin_prefetch((const char *)c + at);
}

static void ahead(const void *arg)
{
    const struct rpc_conn *c = arg;
    for (size_t at = 0; at < offsetof(struct hth_rpc, anonymous); at += 64)
        __builtin_prefetch((const char *)c->rpc + at);
    for (size_t at = 0; at < sizeof(struct rpc_peer); at += 64)
        __builtin_prefetch((const char *)c->peer + at);
    hth_rpc_conn_fetch(c);
}

static const struct hth_stream_ops stream_ops = {
    .ahead = ahead,
    .on_open = on_open,
    .on_readable = on_readable,
    .on_drained = on_drained,
    .on_closed = on_closed,
};
/* Until its HELLO is good. */
static const struct hth_stream_ops stranger_ops = {
    .ahead = ahead,
    .on_readable = on_readable,
    .on_drained = on_drained,
    .on_closed = on_closed,
    .is_stranger = true,
};

/* ---- keep-alive and stalls ----------------------------------------------------------------- */

/* Bytes that must move in a window while `held` bytes are held: with a byte a minute they would be
 * held for ever, and with a few bytes a second a large body for days. */
static uint64_t progress_min(uint64_t held)
{
    return HTH_MAX(held / HTH_RPC_STALL_WINDOWS_MAX, (uint64_t)HTH_RPC_PROGRESS_BYTES_MIN);
}

/* Any body may take some windows; more only at the speed of a slow line, or at an eighth of what
 * this peer's earlier bodies came with. */
static bool body_late(const struct rpc_conn *c, int64_t now)
{
    double speed = HTH_MAX((double)HTH_RPC_LINE_BYTES_MIN, c->line / 8);
    double most_us = HTH_RPC_BODY_WINDOWS * (double)c->rpc->opts.stall_timeout_us +
                     (double)c->rx_held / speed * 1e6;

    return c->rx_held > 0 && (double)(now - c->body_us) > most_us;
}

/* A frame that was begun must continue. */
static bool rx_stalled(struct rpc_conn *c, int64_t now)
{
    bool same = hth_frame_parser_busy(&c->parser) && c->rx_window_frames == c->rx_frames;
    if (!same || c->rx_bytes - c->rx_window_bytes >= progress_min(c->rx_held)) {
        c->rx_window_us = now;
        c->rx_window_bytes = c->rx_bytes;
        c->rx_window_frames = c->rx_frames;
        return false;
    }
    return now - c->rx_window_us >= c->rpc->opts.stall_timeout_us;
}

/* The peer must read what we send. */
static bool tx_stalled(struct rpc_conn *c, int64_t now)
{
    uint64_t backlog = hth_rpc_tx_backlog(c);
    uint64_t sent = c->tx_written + c->tx_bytes - backlog;
    if (backlog == 0 || sent - c->tx_window_bytes >= progress_min(backlog)) {
        c->tx_window_us = now;
        c->tx_window_bytes = sent;
        return false;
    }
    return now - c->tx_window_us >= c->rpc->opts.stall_timeout_us;
}

/* Answers that wait for credit count as well: their reader gives none. */
static bool reply_stalled(const struct rpc_conn *c, int64_t now)
{
    if (rpc_list_empty(&c->replies))
        return false;
    const struct hth_rpc_request *first =
        HTH_CONTAINER(c->replies.next, struct hth_rpc_request, node);
    return now - first->answered_us >= c->rpc->opts.stall_timeout_us && hth_rpc_tx_backlog(c) == 0;
}

/* On all of its connections: where one is dead, it shows which live. */
static void ping_all(const struct rpc_peer *p, int64_t now)
{
    for (const struct rpc_link *n = p->conns.next; n != &p->conns; n = n->next) {
        struct rpc_conn *c = HTH_CONTAINER(n, struct rpc_conn, in_peer);
        if (c->state != CONN_READY || c->ping_sent_us != 0)
            continue;
        c->ping_sent_us = now;
        hth_rpc_tx_control(c, HTH_FRAME_PING, ++c->ping_id);
        hth_rpc_conn_settle(c);
    }
}

/* True when the peer is dead. */
static bool keep_alive(struct rpc_conn *c, int64_t now)
{
    const struct hth_rpc_opts *o = &c->rpc->opts;
    int64_t silent = now - c->rx_last_us;
    if (o->ping_after_us == 0)
        return false;
    if (c->ping_sent_us != 0 && c->rx_last_us > c->ping_sent_us)
        c->ping_sent_us = 0;
    if (c->ping_sent_us != 0)
        return now - c->ping_sent_us >= o->ping_timeout_us;
    bool at_stake = c->in_flight > 0 || c->request_count > 0;
    if (silent >= o->ping_after_us * (at_stake ? 1 : PING_SELDOM))
        ping_all(c->peer, now);
    return false;
}

/* Closes a peer's connections on which nothing came since a PING. The peer may have closed some of
 * them itself: calls on those would be lost. Each has a PING out, so that it is in no list that a
 * caller walks but the busy one. */
static void kill_silent(struct rpc_peer *p, int64_t since_us)
{
    hth_rpc_peer_ref(p);
    for (struct rpc_link *n = p->conns.next, *next; n != &p->conns; n = next) {
        struct rpc_conn *c = HTH_CONTAINER(n, struct rpc_conn, in_peer);
        next = n->next;
        if (c->state == CONN_READY && c->ping_sent_us != 0 && c->rx_last_us <= since_us)
            hth_rpc_conn_kill(c, HTH_E_TIMEOUT, "no answer to a ping", false);
    }
    hth_rpc_peer_unref(p);
}

static void idle_check(struct rpc_conn *c, int64_t now)
{
    const struct hth_rpc_opts *o = &c->rpc->opts;
    if (c->in_flight > 0 || c->request_count > 0 || !rpc_list_empty(&c->peer->waiting)) {
        c->active_us = now;
        return;
    }
    if (c->goodbye_out && now - c->goodbye_us >= o->stall_timeout_us && !c->rpc->draining) {
        hth_rpc_conn_kill(c, HTH_OK, "idle", false);
        return;
    }
    /* The side that dialled closes first, so that both do not say goodbye at the same time. */
    int64_t limit = o->idle_timeout_us * (c->accepted ? 2 : 1);
    if (o->idle_timeout_us > 0 && now - c->active_us >= limit)
        hth_rpc_conn_goodbye(c, HTH_OK, "idle");
}

/* True if c is quiet, needs no ping and is not idle for too long, as most connections of a large
 * swarm. */
static bool rests(const struct hth_rpc_opts *o, const struct rpc_conn *c, int64_t now)
{
    return c->quiet && c->ping_sent_us == 0 &&
           (o->ping_after_us == 0 || now - c->rx_last_us < o->ping_after_us * PING_SELDOM) &&
           (o->idle_timeout_us == 0 || now - c->active_us < o->idle_timeout_us);
}

static void conn_check(struct hth_rpc *rpc, struct rpc_conn *c)
{
    const struct hth_rpc_opts *o = &rpc->opts;
    int64_t now = hth_now_us(rpc->env);
    if (c->state == CONN_HELLO && now - c->opened_us >= o->hello_timeout_us) {
        hth_rpc_conn_kill(c, HTH_E_TIMEOUT, "no HELLO before the timeout", true);
        return;
    }
    if (hth_fault(rpc->env, "rpc.conn_lost")) {
        hth_rpc_conn_kill(c, HTH_E_CLOSED, NULL, false);
        return;
    }
    if (rests(o, c, now))
        return;
    if (rx_stalled(c, now)) {
        hth_rpc_conn_kill(c, HTH_E_TIMEOUT, "the peer began a frame and did not continue it", true);
        return;
    }
    if (body_late(c, now)) {
        hth_rpc_conn_kill(c, HTH_E_TIMEOUT, "a body took far longer than this peer's line needs",
                          true);
        return;
    }
    if (tx_stalled(c, now) || reply_stalled(c, now)) {
        hth_rpc_conn_kill(c, HTH_E_TIMEOUT, "the peer does not read its replies", false);
        return;
    }
    if (c->state == CONN_READY) {
        if (keep_alive(c, now)) {
            kill_silent(c->peer, c->ping_sent_us);
            return;
        }
        c->pins++;
        idle_check(c, now);
        bool dead = c->state == CONN_DEAD;
        hth_rpc_conn_unpin(c);
        if (dead)
            return;
    }
    hth_rpc_conn_settle(c);
}

void hth_rpc_conns_check_busy(struct hth_rpc *rpc, bool late)
{
    struct rpc_link list;
    /* Bytes that arrived while this process did not run are not read yet, and peers on the same
     * machine did not run either: skip this check. Only once: on a busy machine the next check may
     * be as late. */
    rpc->checks_late = late && !rpc->checks_late;
    if (rpc->checks_late) {
        hth_rpc_due_set(rpc, &rpc->busy_check, hth_now_us(rpc->env) + check_period(rpc));
        return;
    }
    rpc_list_steal(&rpc->busy, &list);
    for (const struct rpc_link *n = list.next; n != &list; n = n->next) /* load in parallel */
        hth_rpc_conn_fetch(HTH_CONTAINER(n, const struct rpc_conn, busy));
    for (const struct rpc_link *n = list.next; n != &list; n = n->next)
        __builtin_prefetch((const char *)HTH_CONTAINER(n, const struct rpc_conn, busy)->stream +
                           64);
    while (!rpc_list_empty(&list)) {
        struct rpc_conn *c = HTH_CONTAINER(list.next, struct rpc_conn, busy);
        rpc_list_del(&c->busy);
        conn_check(rpc, c);
    }
}

void hth_rpc_conns_grants(struct hth_rpc *rpc)
{
    const struct hth_admission *a = rpc->opts.admission;
    for (struct rpc_link *n = rpc->conns.next, *next; n != &rpc->conns && a != NULL; n = next) {
        struct rpc_conn *c = HTH_CONTAINER(n, struct rpc_conn, in_rpc);
        next = n->next;
        enum hth_err err = c->state == CONN_READY ? a->holds(a->arg, &c->grant) : HTH_OK;
        if (err != HTH_OK)
            hth_rpc_conn_kill(c, err, NULL, true);
    }
    if (rpc->conn_count > 0)
        hth_rpc_due_set(rpc, &rpc->grants, hth_now_us(rpc->env) + GRANTS_US);
}

void hth_rpc_judge_again(struct hth_rpc *rpc)
{
    hth_rpc_enter(rpc);
    hth_rpc_conns_grants(rpc);
    hth_rpc_leave(rpc);
}

void hth_rpc_show_again(struct hth_rpc *rpc)
{
    struct hth_blob *old = rpc->hello;
    enum hth_err err = hth_rpc_tx_hello_pack(rpc);
    if (err != HTH_OK) {
        HTH_LOG(rpc->env, HTH_WARN, HTH_SUB_RPC, "new credentials: %s", hth_err_text(err));
        hth_blob_unref(rpc->hello);
        rpc->hello = old;
        return;
    }
    hth_blob_unref(old);
    hth_rpc_enter(rpc);
    for (struct rpc_link *n = rpc->conns.next, *next; n != &rpc->conns; n = next) {
        struct rpc_conn *c = HTH_CONTAINER(n, struct rpc_conn, in_rpc);
        next = n->next;
        hth_rpc_conn_goodbye(c, HTH_OK, "its pass is another one now");
    }
    hth_rpc_leave(rpc);
}

void hth_rpc_saw_work(struct hth_rpc *rpc, const struct hth_peer_id *peer, bool good)
{
    const struct hth_admission *a = rpc->opts.admission;
    bool counts = a != NULL && a->witness != NULL;
    const struct rpc_peer *p = counts ? hth_rpc_peer_find(rpc, peer, NULL) : NULL;
    const struct rpc_conn *c = p != NULL ? hth_rpc_peer_conn(p) : NULL;
    struct hth_peer_id id;
    struct hth_addr from;
    if (c == NULL)
        return;
    hth_stream_peer(rpc->env, c->stream, &id, &from);
    hth_witness_saw(a->witness, &c->grant, &from, good, hth_now_us(rpc->env));
}

void hth_rpc_conns_sweep(struct hth_rpc *rpc)
{
    for (struct rpc_link *n = rpc->conns.next, *next; n != &rpc->conns; n = next) {
        struct rpc_conn *c = HTH_CONTAINER(n, struct rpc_conn, in_rpc);
        next = n->next;
        __builtin_prefetch(next);
        if (c->state == CONN_READY && rpc_list_empty(&c->busy))
            conn_check(rpc, c);
    }
    if (rpc->conn_count > 0)
        hth_rpc_due_set(rpc, &rpc->sweep, hth_now_us(rpc->env) + sweep_period(rpc));
}
