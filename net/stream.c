/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c: a stream's life.
 *
 *                 dial             accept
 *                  |                  |
 *              CONNECTING             |
 *                  |                  |
 *                  +--> HANDSHAKE <---+        one timer bounds each of these two
 *                           |
 *                         OPEN ---- close(flush) --> FLUSHING --> LINGER
 *                           |                            |           |
 *                           +--> DEAD <------------------+-----------+   at most flush_timeout
 *
 * LINGER: everything is sent, our direction is shut, and we wait until the other side closes.
 * Closing at once could make the kernel answer late bytes with a reset, and a reset destroys bytes
 * that the other side has received and not yet read.
 *
 * A dead stream keeps its memory until the outermost turn ends, so that code up the stack may still
 * read its state; every entry of the table tolerates a dead stream within that turn.
 */
#define _GNU_SOURCE
#include "net/net_int.h"

#include "core/limits.h"
#include "core/mem.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

/* A peer whose machine vanished is noticed after KEEPALIVE_IDLE_S + count * interval. */
#define KEEPALIVE_IDLE_S     30
#define KEEPALIVE_INTERVAL_S 10
#define KEEPALIVE_COUNT      3
/* Reads of unwanted bytes in one turn. */
#define DISCARD_READS 16

/* ---- lists ---------------------------------------------------------------------------------- */

void hth_net_ready_later(struct hth_stream *s, unsigned what)
{
    struct hth_net *net = s->net;
    if (s->state == HTH_NET_DEAD)
        return;
    if (s->ready == 0) {
        s->ready_next = NULL;
        if (net->ready_tail != NULL)
            net->ready_tail->ready_next = s;
        else
            net->ready_head = s;
        net->ready_tail = s;
        hth_net_wake_ready(net);
    }
    s->ready = (uint8_t)(s->ready | what);
}

void hth_net_dirty(struct hth_stream *s)
{
    struct hth_net *net = s->net;
    if (s->dirty)
        return;
    s->dirty = true;
    s->dirty_next = NULL;
    if (net->dirty_tail != NULL)
        net->dirty_tail->dirty_next = s;
    else
        net->dirty_head = s;
    net->dirty_tail = s;
    if (net->depth == 0)
        hth_net_wake_ready(net); /* outside a turn nothing else would pump it */
}

void hth_net_streams_bury(struct hth_net *net)
{
    struct hth_stream *s = net->grave;
    net->grave = NULL;
    while (s != NULL) {
        struct hth_stream *next = s->grave_next;
        if (s->ready != 0 || s->dirty || s->at_door) { /* the list's next turn removes it */
            s->grave_next = net->grave;
            net->grave = s;
        } else {
            hth_free(s->ring);
            hth_free(s);
        }
        s = next;
    }
}

void hth_net_stream_cut(struct hth_stream *s)
{
    struct hth_net *net = s->net;
    if (s->state == HTH_NET_DEAD)
        return;
    /* Without TLS only a reset shows the other side that the end is not clean. */
    if (net->opts.plain && s->state == HTH_NET_OPEN && !s->ended) {
        struct linger hard = {.l_onoff = 1, .l_linger = 0};
        setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    }
    s->state = HTH_NET_DEAD;
    event_del(&s->read_event);
    event_del(&s->write_event);
    event_del(&s->timer);
    net->codec->clear(s);
    close(s->fd);
    s->fd = -1;
    hth_net_drop_queue(s);
    if (s->counted)
        hth_net_addr_give(net, &s->addr);
    if (s->prev != NULL)
        s->prev->next = s->next;
    else
        net->streams = s->next;
    if (s->next != NULL)
        s->next->prev = s->prev;
    net->stream_count--;
    hth_metric_set(net->m_streams, net->stream_count);
    s->grave_next = net->grave;
    net->grave = s;
    if (net->depth == 0)
        hth_net_wake_ready(net);
}

/* Ends the stream for a reason of its own: cuts it, then calls on_closed. */
static void finish(struct hth_stream *s, enum hth_err err)
{
    const struct hth_stream_ops *ops = s->ops;
    struct hth_net *net = s->net;
    if (s->state < HTH_NET_OPEN) {
        char text[HTH_ADDR_TEXT_MAX];
        hth_metric_add(net->m_handshake_failed, 1);
        HTH_LOG(&net->env, HTH_DEBUG, HTH_SUB_NET, "connection %s %s failed: %s",
                s->dialed ? "to" : "from", hth_addr_text(&s->addr, text), hth_err_text(err));
    }
    hth_net_stream_cut(s);
    if (ops != NULL && ops->on_closed != NULL) {
        hth_net_tick(net);
        ops->on_closed(s, err, s->arg);
    }
}

static void set_timeout(struct hth_stream *s, int64_t us)
{
    struct timeval tv = {.tv_sec = (time_t)(us / HTH_US_PER_S),
                         .tv_usec = (suseconds_t)(us % HTH_US_PER_S)};
    event_add(&s->timer, &tv);
}

/* ---- delivering ----------------------------------------------------------------------------- */

/* Called after the owner read: bytes that wait above the socket never make it readable again. */
static void check_buffered(struct hth_stream *s)
{
    struct hth_net *net = s->net;
    if (s->state != HTH_NET_OPEN || s->paused)
        return;
    if (s->ended) {
        hth_net_ready_later(s, HTH_NET_READY_READ);
        return;
    }
    if (!net->codec->buffered(s))
        return;
    net->out_len = 0;
    enum hth_net_step step = net->codec->peek(s);
    hth_net_out_flush(s);
    if (step == HTH_NET_STEP_WAIT)
        return; /* half a record: the socket becomes readable with the rest */
    if (step != HTH_NET_STEP_OK) {
        s->ended = true;
        if (step == HTH_NET_STEP_END)
            s->end_err = HTH_OK;
    }
    hth_net_ready_later(s, HTH_NET_READY_READ);
}

static void deliver(struct hth_stream *s)
{
    struct hth_net *net = s->net;
    if (s->ended) {
        finish(s, s->end_err);
        return;
    }
    s->read_left = HTH_NET_TURN_BYTES;
    net->out_len = 0;
    enum hth_net_step step = net->codec->peek(s);
    hth_net_out_flush(s);
    switch (step) {
    case HTH_NET_STEP_OK:
        if (s->ops == NULL || s->ops->on_readable == NULL) {
            hth_net_stream_pause(s, true); /* there is no reader */
            return;
        }
        hth_net_tick(net);
        s->ops->on_readable(s, s->arg);
        check_buffered(s);
        return;
    case HTH_NET_STEP_WAIT:
        if (s->write_err != HTH_OK)
            finish(s, s->write_err);
        return;
    case HTH_NET_STEP_END:
        finish(s, HTH_OK);
        return;
    case HTH_NET_STEP_FAIL:
        finish(s, s->end_err);
        return;
    }
}

/* ---- opening -------------------------------------------------------------------------------- */

void hth_net_peer_from_key(struct hth_stream *s, const uint8_t key[HTH_PUBKEY_LEN])
{
    struct hth_pubkey pub;
    __builtin_memcpy(pub.b, key, sizeof(pub.b));
    s->peer = hth_peer_id_of(s->net->env.crypto, &pub);
}

static void keep_alive(const struct hth_stream *s)
{
    int one = 1, idle = KEEPALIVE_IDLE_S, interval = KEEPALIVE_INTERVAL_S, count = KEEPALIVE_COUNT;
    setsockopt(s->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(s->fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

static void opened(struct hth_stream *s)
{
    struct hth_net *net = s->net;
    keep_alive(s);
    event_del(&s->timer);
    s->state = HTH_NET_OPEN;
    s->read_left = HTH_NET_TURN_BYTES;
    if (s->paused)
        hth_net_want_read(s, false);
    hth_net_tick(net);
    if (s->dialed) {
        if (s->ops->on_open != NULL)
            s->ops->on_open(s, s->arg);
    } else {
        struct hth_listener *l = s->listener;
        s->listener = NULL; /* the callback may free it */
        l->fn(l->arg, s);
        if (s->ops == NULL)
            hth_net_stream_cut(s);
    }
    if (s->state == HTH_NET_OPEN && s->queued_bytes > 0)
        hth_net_dirty(s);
    check_buffered(s);
}

static void shake(struct hth_stream *s)
{
    struct hth_net *net = s->net;
    net->out_len = 0;
    if (!s->shaking) {
        s->end_err = net->codec->open(s);
        s->shaking = s->end_err == HTH_OK;
    }
    enum hth_net_step step = s->shaking ? net->codec->handshake(s) : HTH_NET_STEP_FAIL;
    hth_net_out_flush(s); /* also sends the alert with the reason of a failure */
    if (step == HTH_NET_STEP_OK)
        opened(s);
    else if (step != HTH_NET_STEP_WAIT)
        finish(s, s->end_err);
    else if (s->write_err != HTH_OK)
        finish(s, s->write_err);
}

static void start_handshake(struct hth_stream *s)
{
    s->state = HTH_NET_HANDSHAKE;
    set_timeout(s, s->net->opts.handshake_timeout_us);
    hth_net_want_read(s, true);
}

static void connected(struct hth_stream *s)
{
    int code = 0;
    socklen_t len = sizeof(code);
    if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &code, &len) != 0)
        code = errno;
    if (code != 0) {
        finish(s, hth_net_errno_err(code));
        return;
    }
    hth_net_want_write(s, false);
    start_handshake(s);
    shake(s);
}

/* ---- closing -------------------------------------------------------------------------------- */

/* Reads and drops bytes; true when the stream is over. */
static bool discard(struct hth_stream *s)
{
    for (int i = 0; i < DISCARD_READS; i++) {
        s->dry = false;
        if (hth_net_sock_recv(s, s->net->rx, HTH_NET_SEND_BYTES) == 0)
            break;
    }
    if (s->eof)
        hth_net_want_read(s, false);
    return s->sock_errno != 0 || (s->eof && s->state == HTH_NET_LINGER);
}

/* Sends the queue, then the end mark, then shuts down our direction of TCP. */
static void flush_on(struct hth_stream *s)
{
    hth_net_pump(s);
    if (s->write_err == HTH_OK && s->queued_bytes == 0 && s->left_len == 0 && !s->end_sealed) {
        s->end_sealed = true;
        s->net->out_len = 0;
        s->net->codec->seal_end(s);
        hth_net_out_flush(s);
    }
    if (s->write_err != HTH_OK) {
        hth_net_stream_cut(s);
        return;
    }
    if (!s->end_sealed || s->left_len > 0)
        return;
    shutdown(s->fd, SHUT_WR);
    s->state = HTH_NET_LINGER;
    if (s->eof)
        hth_net_stream_cut(s);
}

void hth_net_stream_close(struct hth_stream *s, bool flush)
{
    if (s->state > HTH_NET_OPEN)
        return;
    s->ops = NULL;
    if (!flush || s->state != HTH_NET_OPEN || s->ended || s->write_err != HTH_OK) {
        hth_net_stream_cut(s);
        return;
    }
    s->state = HTH_NET_FLUSHING;
    set_timeout(s, s->net->opts.flush_timeout_us);
    hth_net_want_read(s, true);
    hth_net_dirty(s);
}

/* ---- from libevent -------------------------------------------------------------------------- */

static void read_cb(evutil_socket_t fd, short what, void *arg)
{
    struct hth_stream *s = arg;
    struct hth_net *net = s->net;
    (void)fd;
    (void)what;
    hth_net_enter(net);
    s->dry = false;
    if (s->state > HTH_NET_OPEN) {
        if (discard(s))
            hth_net_stream_cut(s);
    } else if (s->stranger) {
        hth_net_door_wait(s);
    } else if (s->state == HTH_NET_HANDSHAKE) {
        shake(s);
    } else {
        deliver(s);
    }
    hth_net_leave(net);
}

void hth_net_stream_step(struct hth_stream *s)
{
    if (s->state == HTH_NET_HANDSHAKE)
        shake(s);
    else if (s->state == HTH_NET_OPEN && !s->paused)
        deliver(s);
    if (s->state == HTH_NET_HANDSHAKE || (s->state == HTH_NET_OPEN && !s->paused))
        hth_net_want_read(s, true);
}

static void write_cb(evutil_socket_t fd, short what, void *arg)
{
    struct hth_stream *s = arg;
    struct hth_net *net = s->net;
    (void)fd;
    (void)what;
    hth_net_enter(net);
    if (s->state == HTH_NET_CONNECTING)
        connected(s);
    else if (s->state == HTH_NET_FLUSHING)
        flush_on(s);
    else
        hth_net_pump(s); /* in a handshake it only sends left-over bytes */
    hth_net_leave(net);
}

static void timeout_cb(evutil_socket_t fd, short what, void *arg)
{
    struct hth_stream *s = arg;
    struct hth_net *net = s->net;
    (void)fd;
    (void)what;
    hth_net_enter(net);
    finish(s, HTH_E_TIMEOUT);
    hth_net_leave(net);
}

void hth_net_streams_pump(struct hth_net *net)
{
    while (net->dirty_head != NULL) {
        struct hth_stream *s = net->dirty_head;
        net->dirty_head = s->dirty_next;
        if (net->dirty_head == NULL)
            net->dirty_tail = NULL;
        s->dirty = false;
        if (s->state == HTH_NET_OPEN && !s->writing)
            hth_net_pump(s);
        else if (s->state == HTH_NET_FLUSHING && !s->writing)
            flush_on(s);
    }
}

static void ready_one(struct hth_stream *s, unsigned what)
{
    if (s->state == HTH_NET_CONNECTING && (what & HTH_NET_READY_FAIL) != 0) {
        finish(s, s->end_err);
        return;
    }
    if (s->state == HTH_NET_HANDSHAKE && s->write_err != HTH_OK) {
        finish(s, s->write_err);
        return;
    }
    if ((what & HTH_NET_READY_PUMP) != 0)
        hth_net_dirty(s); /* pumped when this turn ends */
    if ((what & HTH_NET_READY_READ) != 0 && s->state == HTH_NET_OPEN) {
        if (s->paused) {
            if (s->write_err != HTH_OK)
                finish(s, s->write_err);
        } else if (s->stranger) {
            hth_net_door_wait(s);
        } else {
            deliver(s);
        }
    }
    if ((what & HTH_NET_READY_DRAINED) != 0 && s->state == HTH_NET_OPEN && s->want_drained &&
        hth_net_stream_queued(s) < HTH_STREAM_LOW_BYTES) {
        s->want_drained = false;
        hth_net_tick(s->net);
        if (s->ops != NULL && s->ops->on_drained != NULL)
            s->ops->on_drained(s, s->arg);
    }
}

void hth_net_streams_ready(struct hth_net *net)
{
    struct hth_stream *s = net->ready_head;
    net->ready_head = net->ready_tail = NULL;
    while (s != NULL) {
        struct hth_stream *next = s->ready_next;
        unsigned what = s->ready;
        s->ready = 0;
        ready_one(s, what);
        s = next;
    }
}

/* ---- making them ---------------------------------------------------------------------------- */

static struct hth_stream *stream_new(struct hth_net *net, int fd, const struct hth_addr *addr)
{
    struct hth_stream *s = hth_new(struct hth_stream);
    int one = 1;
    s->net = net;
    s->fd = fd;
    s->addr = *addr;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    event_assign(&s->read_event, net->base, fd, EV_READ | EV_PERSIST, read_cb, s);
    event_assign(&s->write_event, net->base, fd, EV_WRITE | EV_PERSIST, write_cb, s);
    event_assign(&s->timer, net->base, -1, 0, timeout_cb, s);
    s->next = net->streams;
    if (s->next != NULL)
        s->next->prev = s;
    net->streams = s;
    net->stream_count++;
    hth_metric_set(net->m_streams, net->stream_count);
    return s;
}

void hth_net_stream_accepted(struct hth_listener *l, int fd, const struct hth_addr *addr)
{
    struct hth_stream *s = stream_new(l->net, fd, addr);
    s->counted = s->stranger = true;
    s->listener = l;
    start_handshake(s);
}

enum hth_err hth_net_dial(struct hth_env *env, const struct hth_addr *addr,
                          const struct hth_peer_id *want, const struct hth_stream_ops *ops,
                          void *arg, struct hth_stream **out)
{
    struct hth_net *net = hth_net_of(env);
    struct sockaddr_storage ss;
    socklen_t len = hth_net_sockaddr(addr, &ss);

    *out = NULL;
    if (len == 0)
        return HTH_E_UNSUPPORTED;
    if (net->stream_count >= net->opts.streams_max)
        return HTH_E_BUDGET;
    int fd = socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno == EAFNOSUPPORT ? HTH_E_UNSUPPORTED : HTH_E_BUDGET;
    struct hth_stream *s = stream_new(net, fd, addr);
    s->dialed = true;
    s->ops = ops;
    s->arg = arg;
    if (want != NULL) {
        s->has_want = true;
        s->want = *want;
    }
    if (connect(fd, (struct sockaddr *)&ss, len) == 0 || errno == EINPROGRESS) {
        set_timeout(s, net->opts.dial_timeout_us);
        hth_net_want_write(s, true);
    } else {
        s->end_err = hth_net_errno_err(errno);
        hth_net_ready_later(s, HTH_NET_READY_FAIL);
    }
    *out = s;
    return HTH_OK;
}

void hth_net_stream_attach(struct hth_stream *s, const struct hth_stream_ops *ops, void *arg)
{
    s->ops = ops;
    s->arg = arg;
    s->stranger = s->stranger && ops->is_stranger;
}

void hth_net_stream_pause(struct hth_stream *s, bool paused)
{
    if (s->paused == paused || s->state > HTH_NET_OPEN)
        return;
    s->paused = paused;
    if (s->state != HTH_NET_OPEN)
        return; /* a handshake has to read */
    hth_net_want_read(s, !paused);
    if (!paused)
        hth_net_ready_later(s, HTH_NET_READY_READ);
}

void hth_net_stream_peer(const struct hth_stream *s, struct hth_peer_id *id, struct hth_addr *addr)
{
    static const struct hth_peer_id nobody;
    if (id != NULL)
        *id = s->state >= HTH_NET_OPEN ? s->peer : nobody;
    if (addr != NULL)
        *addr = s->addr;
}
