/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c: how streams begin and end, and which callback is owed.
 *
 *   dialer                              listener
 *     |---- SYN ------------------------->|   nobody listens: SIM_FAIL after a round trip
 *     |<--------------------- SYN_ACK ----|
 *     |---- HELLO ----------------------->|   TLS
 *     |<----------------- HELLO_REPLY ----|   on_open, or E_BAD_PEER_ID
 *     |---- FINISH ---------------------->|   accept
 *
 * A message that cannot arrive is sent again after 1, 2, 4, ... seconds until the dial or the
 * handshake times out.
 */
#include "sim/sim_int.h"

#include "core/limits.h"

#include <string.h>

#define HANDSHAKE_RETRY_US HTH_US_PER_S /* first retry; doubles, as for a SYN */
#define FLUSH_MAX_US       (5 * HTH_US_PER_S)
#define IDLE_READER_US     INT64_C(100)

/* ---- listeners ----------------------------------------------------------------------------- */

static struct hth_listener *find_listener(struct hth_node *node, uint16_t port)
{
    for (struct sim_list *l = node->listeners.next; l != &node->listeners; l = l->next) {
        struct hth_listener *listener = HTH_CONTAINER(l, struct hth_listener, in_node);
        if (listener->port == port)
            return listener;
    }
    return NULL;
}

enum hth_err hth_sim_listen(struct hth_env *env, const struct hth_addr *addr, hth_accept_fn *fn,
                            void *arg, struct hth_listener **out)
{
    struct hth_node *node = sim_node_of(env);
    uint16_t port = addr->port;
    *out = NULL;
    if (!node->live)
        return HTH_E_CANCELED;
    if (port != 0 && find_listener(node, port) != NULL)
        return HTH_E_ADDR_IN_USE;
    for (int tries = 0; port == 0 && tries < UINT16_MAX; tries++) {
        uint16_t candidate = node->next_port++;
        if (candidate >= 1024 && find_listener(node, candidate) == NULL)
            port = candidate;
    }
    if (port == 0)
        return HTH_E_ADDR_IN_USE;
    struct hth_listener *l = hth_new(struct hth_listener);
    l->node = node;
    l->port = port;
    l->fn = fn;
    l->arg = arg;
    sim_list_append(&node->listeners, &l->in_node);
    *out = l;
    return HTH_OK;
}

void hth_sim_listener_addr(struct hth_listener *l, struct hth_addr *out)
{
    *out = hth_node_addr(l->node, l->port);
}

void hth_sim_listener_free(struct hth_listener *l)
{
    sim_list_remove(&l->in_node);
    hth_free(l);
}

/* ---- connections --------------------------------------------------------------------------- */

static void end_init(struct sim_conn *conn, int side, struct hth_node *node)
{
    struct hth_stream *s = &conn->end[side];
    s->conn = conn;
    s->node = node;
    s->side = (uint8_t)side;
    sim_event_init(&s->wake, SIM_WAKE, node);
    sim_event_init(&s->reset, SIM_RESET, node);
    sim_list_init(&s->in_node);
}

static void end_open(struct hth_stream *s, enum sim_end_state state)
{
    s->state = (uint8_t)state;
    s->held = true;
    sim_list_append(&s->node->streams, &s->in_node);
    s->node->stream_count++;
}

/* Release the end after the application has given up its handle. */
static void end_release(struct hth_stream *s)
{
    s->held = false;
    s->node->stream_count--;
    sim_list_remove(&s->in_node);
}

static bool is_active(const struct hth_stream *s)
{
    return s->held || s->state == SIM_END_OPEN || s->state == SIM_END_DIALING;
}

void hth_sim_conn_free(struct sim_conn *conn)
{
    struct hth_world *w = conn->end[0].node->world;
    hth_sim_unschedule(w, &conn->handshake);
    for (int i = 0; i < 2; i++) {
        struct hth_stream *s = &conn->end[i];
        hth_sim_unschedule(w, &s->wake);
        hth_sim_unschedule(w, &s->reset);
        sim_list_remove(&s->in_node);
        hth_sim_pipe_clear(s);
    }
    sim_list_remove(&conn->in_world);
    hth_free(conn);
}

void hth_sim_conn_maybe_free(struct sim_conn *conn)
{
    if (conn->pins > 0 || is_active(&conn->end[0]) || is_active(&conn->end[1]))
        return;
    /* A dialer that wrote and closed at once is still owed its accept. */
    if (conn->end[1].state == SIM_END_NONE && conn->stage == SIM_FINISH && !conn->end[0].crashed)
        return;
    hth_sim_conn_free(conn);
}

static void go_to_stage(struct sim_conn *conn, enum sim_stage stage, struct hth_node *at,
                        int64_t delay_us)
{
    struct hth_world *w = at->world;
    conn->stage = (uint8_t)stage;
    conn->retries = 0;
    conn->handshake.node = at;
    conn->finish_us = w->now_us + delay_us;
    hth_sim_schedule(w, &conn->handshake, conn->finish_us);
}

static void fail_dial(struct sim_conn *conn, enum hth_err err, int64_t delay_us)
{
    conn->fail = err;
    go_to_stage(conn, SIM_FAIL, conn->end[0].node, delay_us);
}

enum hth_err hth_sim_dial(struct hth_env *env, const struct hth_addr *addr,
                          const struct hth_peer_id *want, const struct hth_stream_ops *ops,
                          void *arg, struct hth_stream **out)
{
    struct hth_node *node = sim_node_of(env);
    struct hth_world *w = node->world;
    *out = NULL;
    if (!node->live)
        return HTH_E_CANCELED;
    if (addr->family != 4 && addr->family != 6)
        return HTH_E_UNSUPPORTED;
    if (node->stream_count >= HTH_STREAMS_MAX)
        return HTH_E_BUDGET;
    struct hth_node *to = hth_sim_node_by_addr(w, addr);
    struct sim_conn *conn = hth_new(struct sim_conn);
    sim_list_append(&w->conns, &conn->in_world);
    sim_event_init(&conn->handshake, SIM_HANDSHAKE, node);
    end_init(conn, 0, node);
    end_init(conn, 1, to != NULL ? to : node);
    hth_sim_pipe_init(&conn->end[0]);
    hth_sim_pipe_init(&conn->end[1]);
    conn->to = *addr;
    conn->dial_port = (uint16_t)(32768 + w->stats.streams_opened++ % 16384);
    conn->dialed_us = w->now_us;
    conn->has_want = want != NULL;
    if (want != NULL)
        conn->want = *want;
    struct hth_stream *s = &conn->end[0];
    s->ops = ops;
    s->arg = arg;
    s->life = node->life;
    end_open(s, SIM_END_DIALING);
    if (to == NULL)
        fail_dial(conn, HTH_E_UNREACHABLE, 2 * w->opts.link.latency_us);
    else
        go_to_stage(conn, SIM_SYN, to, hth_sim_delay(w, node, to));
    *out = s;
    return HTH_OK;
}

/* ---- handshake ----------------------------------------------------------------------------- */

static bool over_limits(struct hth_node *node, const struct hth_node *from)
{
    uint32_t same = 0;
    if (node->stream_count >= HTH_STREAMS_MAX)
        return true;
    if (node->stream_count < HTH_STREAMS_PER_ADDR_MAX)
        return false;
    for (struct sim_list *l = node->streams.next; l != &node->streams; l = l->next) {
        const struct hth_stream *s = HTH_CONTAINER(l, struct hth_stream, in_node);
        same += s->held && s->side == 1 && sim_stream_other(s)->node == from;
    }
    return same >= HTH_STREAMS_PER_ADDR_MAX;
}

static void accept_conn(struct sim_conn *conn, struct hth_listener *listener)
{
    struct hth_stream *s = &conn->end[1];
    conn->stage = SIM_DONE;
    end_open(s, SIM_END_OPEN);
    conn->pins++;
    listener->fn(listener->arg, s);
    conn->pins--;
    if (s->held && s->ops == NULL)
        hth_sim_stream_close(s, false);
    else if (s->held)
        hth_sim_stream_rearm(s);
    else
        hth_sim_conn_maybe_free(conn);
}

/* Send the message of this stage again later. */
static void retry_handshake(struct sim_conn *conn)
{
    struct hth_world *w = conn->end[0].node->world;
    bool early = conn->stage == SIM_SYN || conn->stage == SIM_SYN_ACK;
    int64_t limit_us = early ? HTH_DIAL_TIMEOUT_US : HTH_HANDSHAKE_TIMEOUT_US;
    int64_t left_us = conn->dialed_us + limit_us - w->now_us;
    if (left_us > 0) {
        int64_t wait_us = HANDSHAKE_RETRY_US << HTH_MIN(conn->retries, 6);
        conn->retries++;
        conn->finish_us = w->now_us + HTH_MIN(left_us, wait_us);
        hth_sim_schedule(w, &conn->handshake, conn->finish_us);
    } else if (conn->stage == SIM_FINISH) {
        conn->stage = SIM_DONE;
        hth_sim_stream_tell_reset(&conn->end[0], 0);
        hth_sim_conn_maybe_free(conn);
    } else {
        fail_dial(conn, HTH_E_TIMEOUT, 0);
    }
}

static void handshake_at_listener(struct sim_conn *conn)
{
    struct hth_node *from = conn->end[0].node;
    struct hth_node *node = conn->end[1].node;
    struct hth_world *w = node->world;
    struct hth_listener *listener = node->live ? find_listener(node, conn->to.port) : NULL;
    if ((!node->live && node->silent) || !hth_sim_reachable(w, from, node)) {
        retry_handshake(conn);
        return;
    }
    if (conn->stage == SIM_SYN && listener != NULL)
        conn->end[1].life = node->life;
    bool there = listener != NULL && conn->end[1].life == node->life;
    int64_t back_us = hth_sim_delay(w, node, from);
    switch (conn->stage) {
    case SIM_SYN:
        if (there)
            go_to_stage(conn, SIM_SYN_ACK, from, back_us);
        else
            fail_dial(conn, HTH_E_REFUSED, back_us);
        break;
    case SIM_HELLO:
        if (there)
            go_to_stage(conn, SIM_HELLO_REPLY, from, back_us);
        else
            fail_dial(conn, HTH_E_CLOSED, back_us);
        break;
    default:
        if (there && !over_limits(node, from)) {
            accept_conn(conn, listener);
            break;
        }
        conn->stage = SIM_DONE;
        hth_sim_stream_tell_reset(&conn->end[0], back_us);
        hth_sim_conn_maybe_free(conn);
        break;
    }
}

static void handshake_at_dialer(struct sim_conn *conn)
{
    struct hth_stream *s = &conn->end[0];
    struct hth_node *to = conn->end[1].node;
    struct hth_world *w = s->node->world;
    if (conn->stage == SIM_FAIL) {
        hth_sim_stream_fail(s, conn->fail);
        hth_sim_stream_call(s);
        return;
    }
    if (!hth_sim_reachable(w, to, s->node)) {
        retry_handshake(conn);
        return;
    }
    int64_t there_us = hth_sim_delay(w, s->node, to);
    if (conn->stage == SIM_SYN_ACK) {
        go_to_stage(conn, SIM_HELLO, to, there_us);
        return;
    }
    if (conn->has_want && !hth_peer_id_eq(&conn->want, &to->env.self)) {
        hth_sim_stream_fail(s, HTH_E_BAD_PEER_ID);
        hth_sim_stream_call(s);
        return;
    }
    s->state = SIM_END_OPEN;
    s->opened = true;
    go_to_stage(conn, SIM_FINISH, to, there_us);
    s->out.last_arrive_us = conn->end[1].out.last_arrive_us = conn->finish_us;
    hth_sim_pipe_kick(s);
    hth_sim_stream_call(s);
}

void hth_sim_handshake(struct sim_conn *conn)
{
    hth_sim_trace(conn->end[0].node->world, conn->handshake.node, SIM_HANDSHAKE, conn->stage);
    if (conn->stage == SIM_SYN || conn->stage == SIM_HELLO || conn->stage == SIM_FINISH)
        handshake_at_listener(conn);
    else
        handshake_at_dialer(conn);
}

/* ---- which callback is due ----------------------------------------------------------------- */

static bool readable(const struct hth_stream *s)
{
    const struct sim_pipe *in = &sim_stream_other(s)->out;
    return s->state == SIM_END_OPEN && !s->paused && in->delivered > in->read;
}

static bool ended(const struct hth_stream *s)
{
    const struct sim_pipe *in = &sim_stream_other(s)->out;
    return s->state == SIM_END_OPEN && !s->paused && in->fin_delivered && in->delivered == in->read;
}

void hth_sim_stream_rearm(struct hth_stream *s)
{
    struct hth_world *w = s->node->world;
    if (!s->held || s->crashed || s->ops == NULL)
        return;
    if (s->close_due || s->opened || s->drained || ended(s))
        hth_sim_schedule(w, &s->wake, w->now_us);
    else if (readable(s) && s->wake.index == 0)
        hth_sim_schedule(w, &s->wake, w->now_us + (s->idle ? IDLE_READER_US : 0));
}

static void call_closed(struct hth_stream *s, enum hth_err err)
{
    end_release(s);
    s->state = SIM_END_GONE;
    s->close_due = false;
    hth_sim_unschedule(s->node->world, &s->wake);
    hth_sim_unschedule(s->node->world, &s->reset);
    hth_sim_pipe_cut(s);
    if (s->ops->on_closed != NULL)
        s->ops->on_closed(s, err, s->arg);
}

static void call_readable(struct hth_stream *s)
{
    const struct sim_pipe *in = &sim_stream_other(s)->out;
    uint64_t before = in->read;
    if (s->ops->on_readable != NULL)
        s->ops->on_readable(s, s->arg);
    s->idle = in->read == before;
}

void hth_sim_stream_call(struct hth_stream *s)
{
    struct sim_conn *conn = s->conn;
    if (!s->held || s->crashed || s->ops == NULL)
        return;
    conn->pins++;
    if (s->close_due) {
        call_closed(s, s->closed);
    } else if (s->opened) {
        s->opened = false;
        if (s->ops->on_open != NULL)
            s->ops->on_open(s, s->arg);
    } else if (s->drained) {
        s->drained = false;
        if (s->ops->on_drained != NULL)
            s->ops->on_drained(s, s->arg);
    } else if (readable(s)) {
        call_readable(s);
    } else if (ended(s)) {
        call_closed(s, HTH_OK);
    }
    conn->pins--;
    if (s->held)
        hth_sim_stream_rearm(s);
    else
        hth_sim_conn_maybe_free(conn);
}

void hth_sim_stream_wake(struct hth_stream *s)
{
    struct hth_world *w = s->node->world;
    hth_sim_trace(w, s->node, SIM_WAKE, s->state);
    if (s->state != SIM_END_GONE) {
        hth_sim_stream_call(s);
        return;
    }
    /* The flush timed out. */
    if (!s->out.fin_sent) {
        hth_sim_pipe_cut(s);
        hth_sim_pipe_send_reset(s);
        sim_list_remove(&s->in_node);
    }
}

void hth_sim_stream_fail(struct hth_stream *s, enum hth_err err)
{
    if (s->state != SIM_END_OPEN && s->state != SIM_END_DIALING)
        return;
    s->close_due = true;
    s->closed = err;
    hth_sim_stream_rearm(s);
}

void hth_sim_stream_tell_reset(struct hth_stream *to, int64_t delay_us)
{
    struct hth_world *w = to->node->world;
    if ((to->state == SIM_END_OPEN || to->state == SIM_END_DIALING) && to->reset.index == 0)
        hth_sim_schedule(w, &to->reset, w->now_us + delay_us);
}

void hth_sim_stream_reset_event(struct hth_stream *s)
{
    struct hth_world *w = s->node->world;
    struct hth_node *from = sim_stream_other(s)->node;
    hth_sim_trace(w, s->node, SIM_RESET, 0);
    if (!hth_sim_reachable(w, from, s->node)) {
        hth_sim_schedule(w, &s->reset, w->now_us + HANDSHAKE_RETRY_US);
        return;
    }
    hth_sim_stream_fail(s, HTH_E_CLOSED);
    hth_sim_stream_call(s);
}

/* ---- the handle ---------------------------------------------------------------------------- */

void hth_sim_stream_attach(struct hth_stream *s, const struct hth_stream_ops *ops, void *arg)
{
    s->ops = ops;
    s->arg = arg;
    hth_sim_stream_rearm(s);
}

void hth_sim_stream_pause(struct hth_stream *s, bool paused)
{
    s->paused = paused;
    s->idle = false;
    hth_sim_stream_rearm(s);
}

void hth_sim_stream_peer(const struct hth_stream *s, struct hth_peer_id *id, struct hth_addr *addr)
{
    const struct hth_stream *other = sim_stream_other(s);
    memset(id, 0, sizeof(*id));
    if (s->state != SIM_END_DIALING && s->state != SIM_END_NONE)
        *id = other->node->env.self;
    *addr = s->side == 0 ? s->conn->to : hth_node_addr(other->node, s->conn->dial_port);
}

void hth_sim_stream_close(struct hth_stream *s, bool flush)
{
    struct sim_conn *conn = s->conn;
    struct hth_world *w = s->node->world;
    /* A second close inside on_closed is allowed; one of a freed handle is not. */
    HTH_ASSERT(s->held || conn->pins > 0);
    if (!s->held)
        return;
    bool open = s->state == SIM_END_OPEN && !s->close_due;
    end_release(s);
    s->state = SIM_END_GONE;
    hth_sim_unschedule(w, &s->wake);
    hth_sim_unschedule(w, &s->reset);
    if (open) {
        hth_sim_pipe_discard_unread(s);
        if (flush) {
            s->out.ending = true;
            sim_list_append(&s->node->streams, &s->in_node);
            hth_sim_schedule(w, &s->wake, w->now_us + FLUSH_MAX_US);
            hth_sim_pipe_kick(s);
        } else {
            hth_sim_pipe_cut(s);
            hth_sim_pipe_send_reset(s);
        }
    }
    hth_sim_conn_maybe_free(conn);
}

/* ---- crash of a node ----------------------------------------------------------------------- */

void hth_sim_streams_disconnect(struct hth_node *node, enum hth_crash how)
{
    struct hth_world *w = node->world;
    hth_sim_unschedule(w, &node->uplink);
    while (!sim_list_empty(&node->up_ready))
        sim_list_remove(node->up_ready.next);
    for (struct sim_list *l = node->streams.next; l != &node->streams; l = l->next) {
        struct hth_stream *s = HTH_CONTAINER(l, struct hth_stream, in_node);
        struct hth_stream *other = sim_stream_other(s);
        s->crashed = true;
        s->state = SIM_END_GONE;
        hth_sim_unschedule(w, &s->wake);
        hth_sim_unschedule(w, &s->reset);
        hth_sim_unschedule(w, &s->out.credit);
        hth_sim_pipe_cut(s);
        if (how == HTH_CRASH_RESET)
            hth_sim_stream_tell_reset(other, w->opts.crash_notice_us +
                                                 hth_sim_delay(w, node, other->node));
    }
}

uint64_t hth_sim_streams_sweep(struct hth_node *node)
{
    uint64_t leaked = 0;
    while (!sim_list_empty(&node->streams)) {
        struct hth_stream *s = HTH_CONTAINER(node->streams.next, struct hth_stream, in_node);
        if (s->held) {
            leaked++;
            end_release(s);
        }
        sim_list_remove(&s->in_node);
        hth_sim_conn_maybe_free(s->conn);
    }
    return leaked;
}
