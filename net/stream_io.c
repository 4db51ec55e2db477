/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_io.c: the bytes of a stream, from the owner's spans to the socket and back.
 *
 *   write:  ring of spans --seal--> net->out --send--> socket
 *             (16 KiB records)   (64 KiB at a time)      |
 *                                    refused bytes -> s->left, sent first when it drains
 *
 *   read:   socket --recv--> codec's read-ahead (64 KiB) --unseal--> the caller's blob
 *
 * Large spans are sealed in place. Small ones are gathered into one record, so that a frame's
 * header, meta and small body take one record and one system call.
 */
#define _GNU_SOURCE
#include "net/net_int.h"

#include "core/limits.h"
#include "core/mem.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* Sealed bytes that may wait because the socket refuses them: one send, and the bytes of a
 * handshake. A peer that causes more answers without reading any of them is cut off. */
#define LEFT_BYTES_MAX (4 * HTH_NET_OUT_BYTES)

/* ---- socket --------------------------------------------------------------------------------- */

size_t hth_net_sock_recv(struct hth_stream *s, void *buf, size_t len)
{
    ssize_t n;
    if (s->dry || s->eof || s->sock_errno != 0 || len == 0)
        return 0;
    if (s->stranger) {
        len = HTH_MIN(len, (size_t)HTH_STRANGER_BYTES_MAX - s->first_bytes);
        if (len == 0) {
            s->sock_errno = EMSGSIZE;
            return 0;
        }
    }
    do
        n = recv(s->fd, buf, len, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        /* A short read means that the socket is empty: a second recv would be a wasted system call.
         * epoll reports the next bytes. */
        s->dry = (size_t)n < len;
        s->first_bytes += s->stranger ? (uint32_t)n : 0;
        hth_metric_add(s->net->m_bytes_in, n);
        return (size_t)n;
    }
    if (n == 0)
        s->eof = true;
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
        s->dry = true;
    else
        s->sock_errno = errno;
    return 0;
}

enum hth_err hth_net_errno_err(int e)
{
    switch (e) {
    case ECONNREFUSED:
        return HTH_E_REFUSED;
    case ETIMEDOUT:
        return HTH_E_TIMEOUT;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case EADDRNOTAVAIL:
    case EACCES:
    case EPERM:
    case EINVAL:
        return HTH_E_UNREACHABLE;
    case EMSGSIZE:
        return HTH_E_PROTOCOL;
    default:
        return HTH_E_CLOSED;
    }
}

enum hth_err hth_net_sock_err(const struct hth_stream *s, enum hth_err otherwise)
{
    if (s->sock_errno != 0)
        return hth_net_errno_err(s->sock_errno);
    return s->eof ? HTH_E_CLOSED : otherwise;
}

void hth_net_want_read(struct hth_stream *s, bool on)
{
    if (s->reading == on)
        return;
    s->reading = on;
    if (on)
        event_add(&s->read_event, NULL);
    else
        event_del(&s->read_event);
}

void hth_net_want_write(struct hth_stream *s, bool on)
{
    if (s->writing == on)
        return;
    s->writing = on;
    if (on)
        event_add(&s->write_event, NULL);
    else
        event_del(&s->write_event);
}

/* ---- sending -------------------------------------------------------------------------------- */

bool hth_net_out(struct hth_net *net, const void *data, size_t len)
{
    if (len > HTH_NET_OUT_BYTES - net->out_len)
        return false;
    memcpy(net->out + net->out_len, data, len);
    net->out_len += len;
    return true;
}

void hth_net_drop_queue(struct hth_stream *s)
{
    while (s->ring_count > 0) {
        hth_blob_unref(s->ring[s->ring_head].blob);
        s->ring_head = (s->ring_head + 1) % s->ring_cap;
        s->ring_count--;
    }
    s->queued_bytes = 0;
    hth_free(s->left);
    s->left = NULL;
    s->left_off = s->left_len = s->left_cap = 0;
}

/* Ends sending. Received bytes are still delivered before on_closed. */
static void write_fail(struct hth_stream *s, enum hth_err err)
{
    hth_net_drop_queue(s);
    hth_net_want_write(s, false);
    if (s->write_err == HTH_OK)
        s->write_err = err;
    hth_net_ready_later(s, HTH_NET_READY_READ);
}

/* One send. Returns the bytes taken; 0 when the socket is full or failed (then s->write_err). */
static size_t send_some(struct hth_stream *s, const uint8_t *data, size_t len)
{
    ssize_t n;
    do
        n = send(s->fd, data, len, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n >= 0) {
        hth_metric_add(s->net->m_bytes_out, n);
        return (size_t)n;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK)
        write_fail(s, hth_net_errno_err(errno));
    return 0;
}

static void keep_left(struct hth_stream *s, const uint8_t *data, size_t len)
{
    if (s->left_len + len > LEFT_BYTES_MAX) {
        write_fail(s, HTH_E_PROTOCOL);
        return;
    }
    if (s->left_off + s->left_len + len > s->left_cap) {
        if (s->left_len > 0)
            memmove(s->left, s->left + s->left_off, s->left_len);
        s->left_off = 0;
        if (s->left_len + len > s->left_cap) {
            s->left_cap = s->left_len + len;
            s->left = hth_realloc(s->left, s->left_cap, 1);
        }
    }
    memcpy(s->left + s->left_off + s->left_len, data, len);
    s->left_len += len;
    hth_net_want_write(s, true);
}

void hth_net_out_flush(struct hth_stream *s)
{
    struct hth_net *net = s->net;
    size_t len = net->out_len, sent = 0;
    net->out_len = 0;
    if (len == 0 || s->write_err != HTH_OK)
        return;
    if (s->left_len == 0)
        sent = send_some(s, net->out, len);
    if (sent < len && s->write_err == HTH_OK)
        keep_left(s, net->out + sent, len - sent);
}

/* True when nothing is left over. */
static bool send_left(struct hth_stream *s)
{
    while (s->left_len > 0) {
        size_t n = send_some(s, s->left + s->left_off, s->left_len);
        if (s->write_err != HTH_OK)
            return false;
        if (n == 0) {
            hth_net_want_write(s, true);
            return false;
        }
        s->left_off += n;
        s->left_len -= n;
    }
    /* An idle stream holds no buffer, because there may be thousands. */
    hth_free(s->left);
    s->left = NULL;
    s->left_off = s->left_cap = 0;
    hth_net_want_write(s, false);
    return true;
}

/* ---- the ring of spans ---------------------------------------------------------------------- */

static void ring_push(struct hth_stream *s, const struct hth_span *span)
{
    if (s->ring_count == s->ring_cap) {
        size_t cap = s->ring_cap > 0 ? s->ring_cap * 2 : 16;
        struct hth_span *ring = hth_new_array(struct hth_span, cap);
        for (size_t i = 0; i < s->ring_count; i++)
            ring[i] = s->ring[(s->ring_head + i) % s->ring_cap];
        hth_free(s->ring);
        s->ring = ring;
        s->ring_cap = cap;
        s->ring_head = 0;
    }
    struct hth_span *slot = &s->ring[(s->ring_head + s->ring_count) % s->ring_cap];
    *slot = *span;
    hth_blob_ref(span->blob);
    s->ring_count++;
}

/* The first n bytes of the head span are sealed. */
static void ring_advance(struct hth_stream *s, size_t n)
{
    struct hth_span *head = &s->ring[s->ring_head];
    head->offset += n;
    head->len -= n;
    s->queued_bytes -= n;
    if (head->len == 0) {
        hth_blob_unref(head->blob);
        s->ring_head = (s->ring_head + 1) % s->ring_cap;
        s->ring_count--;
    }
}

/* One record: a slice of a large span as it lies, or several small ones gathered. */
static enum hth_err seal_record(struct hth_stream *s)
{
    struct hth_net *net = s->net;
    struct hth_span *head = &s->ring[s->ring_head];
    size_t len = 0;
    if (head->len >= HTH_NET_RECORD_BYTES || s->ring_count == 1) {
        len = HTH_MIN(head->len, (size_t)HTH_NET_RECORD_BYTES);
        enum hth_err err = net->codec->seal(s, head->blob->data + head->offset, len);
        if (err == HTH_OK)
            ring_advance(s, len);
        return err;
    }
    while (s->ring_count > 0 && len < HTH_NET_RECORD_BYTES) {
        head = &s->ring[s->ring_head];
        size_t n = HTH_MIN(head->len, HTH_NET_RECORD_BYTES - len);
        memcpy(net->staging + len, head->blob->data + head->offset, n);
        len += n;
        ring_advance(s, n);
    }
    return net->codec->seal(s, net->staging, len);
}

void hth_net_pump(struct hth_stream *s)
{
    struct hth_net *net = s->net;
    size_t moved = 0;
    while (s->write_err == HTH_OK && send_left(s) && s->ring_count > 0) {
        if (moved >= HTH_NET_TURN_BYTES) {
            hth_net_ready_later(s, HTH_NET_READY_PUMP);
            break;
        }
        enum hth_err err = HTH_OK;
        net->out_len = 0;
        while (err == HTH_OK && s->ring_count > 0 && net->out_len < HTH_NET_SEND_BYTES)
            err = seal_record(s);
        moved += net->out_len;
        hth_net_out_flush(s);
        if (err != HTH_OK)
            write_fail(s, err);
    }
    if (s->want_drained && hth_net_stream_queued(s) < HTH_STREAM_LOW_BYTES)
        hth_net_ready_later(s, HTH_NET_READY_DRAINED);
}

/* ---- the owner's calls ---------------------------------------------------------------------- */

enum hth_err hth_net_stream_write(struct hth_stream *s, const struct hth_span *spans, size_t count)
{
    size_t total = 0;
    if (s->state > HTH_NET_OPEN || s->write_err != HTH_OK)
        return HTH_E_CLOSED;
    for (size_t i = 0; i < count; i++) {
        const struct hth_span *sp = &spans[i];
        HTH_ASSERT(sp->offset <= sp->blob->size && sp->len <= sp->blob->size - sp->offset);
        HTH_ASSERT(sp->len == 0 || sp->blob->data != NULL); /* ghosts exist in the simulator only */
        if (__builtin_add_overflow(total, sp->len, &total))
            return HTH_E_QUEUE_FULL;
    }
    if (total > HTH_STREAM_QUEUE_BYTES_MAX ||
        hth_net_stream_queued(s) > HTH_STREAM_QUEUE_BYTES_MAX - total) {
        s->want_drained = s->ring_count > 0 || s->left_len > 0;
        return HTH_E_QUEUE_FULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (spans[i].len > 0)
            ring_push(s, &spans[i]);
    }
    s->queued_bytes += total;
    if (hth_net_stream_queued(s) >= HTH_STREAM_LOW_BYTES)
        s->want_drained = true;
    if (s->state == HTH_NET_OPEN)
        hth_net_dirty(s);
    return HTH_OK;
}

size_t hth_net_stream_queued(const struct hth_stream *s)
{
    return s->queued_bytes + s->left_len;
}

size_t hth_net_stream_read(struct hth_stream *s, struct hth_blob *into, size_t offset, size_t max)
{
    struct hth_net *net = s->net;
    size_t total = 0;
    if (s->state != HTH_NET_OPEN || s->ended || max == 0)
        return 0;
    HTH_ASSERT(offset <= into->size && max <= into->size - offset && into->data != NULL);
    max = HTH_MIN(max, s->read_left);
    net->out_len = 0;
    while (total < max) {
        size_t n = 0;
        enum hth_net_step step = net->codec->read(s, into->data + offset + total, max - total, &n);
        total += n;
        if (step == HTH_NET_STEP_WAIT)
            break;
        if (step != HTH_NET_STEP_OK) {
            s->ended = true;
            if (step == HTH_NET_STEP_END)
                s->end_err = HTH_OK;
            hth_net_ready_later(s, HTH_NET_READY_READ);
            break;
        }
    }
    hth_net_out_flush(s); /* sends an alert, or the answer to a key update */
    s->read_left -= total;
    if (s->read_left == 0)
        hth_net_ready_later(s, HTH_NET_READY_READ);
    return total;
}
