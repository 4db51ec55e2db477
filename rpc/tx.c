/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tx.c: the send queue of a connection: a ring of spans.
 *
 * Headers and metas are packed one after the other into a blob of the connection, so that the
 * frames of one turn are one span and leave in one write. Bytes handed to the stream are never
 * written again, only the room behind them. Tensors are spans of their own blobs. The stream gets
 * at most TX_WINDOW bytes at a time, so that a large body can still be dropped, and is refilled in
 * on_drained.
 */
#include "rpc/rpc_int.h"

#define TX_BLOB_BYTES_MIN 768
#define TX_BLOB_BYTES_MAX 16384
#define TX_WINDOW         (1u << 20)
#define TX_SPANS          64
#define TX_RING_MIN       8

_Static_assert(TX_WINDOW >= HTH_STREAM_LOW_BYTES, "on_drained must come after a full window");

static void push(struct rpc_conn *c, struct hth_blob *blob, size_t offset, size_t len)
{
    if (c->tx_count > 0) {
        size_t last = (c->tx_first + c->tx_count - 1) & (c->tx_capacity - 1);
        struct hth_span *s = &c->tx[last];
        if (s->blob == blob && s->offset + s->len == offset) {
            s->len += len;
            c->tx_bytes += len;
            return;
        }
    }
    if (c->tx_count == c->tx_capacity) {
        uint32_t grown = c->tx_capacity == 0 ? TX_RING_MIN : 2 * c->tx_capacity;
        struct hth_span *ring = hth_new_array(struct hth_span, grown);
        for (size_t i = 0; i < c->tx_count; i++)
            ring[i] = c->tx[(c->tx_first + i) & (c->tx_capacity - 1)];
        hth_free(c->tx);
        c->tx = ring;
        c->tx_first = 0;
        c->tx_capacity = grown;
    }
    c->tx[(c->tx_first + c->tx_count) & (c->tx_capacity - 1)] =
        (struct hth_span){hth_blob_ref(blob), offset, len};
    c->tx_count++;
    c->tx_bytes += len;
}

static void push_tensors(struct rpc_conn *c, const struct hth_tensor *tensors, size_t count)
{
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = 0;
        if (hth_tensor_bytes(&tensors[i], &bytes) != HTH_OK || bytes == 0)
            continue;
        uint64_t pad = (HTH_FRAME_ALIGN - end % HTH_FRAME_ALIGN) % HTH_FRAME_ALIGN;
        if (pad > 0)
            push(c, c->rpc->pad, 0, (size_t)pad);
        push(c, tensors[i].blob, tensors[i].offset, (size_t)bytes);
        end += pad + bytes;
    }
}

uint64_t hth_rpc_tx_backlog(const struct rpc_conn *c)
{
    size_t in_stream = c->state == CONN_DEAD ? 0 : hth_stream_queued(c->rpc->env, c->stream);
    return c->tx_bytes + in_stream;
}

static void mark_dirty(struct rpc_conn *c)
{
    if (c->rpc->cork == 0)
        hth_rpc_tx_flush(c);
    else if (rpc_list_empty(&c->dirty))
        rpc_list_push(&c->rpc->dirty, &c->dirty);
}

/* Room for `bound` bytes in the connection's blob. */
static enum hth_err reserve(struct rpc_conn *c, size_t bound)
{
    if (c->tx_blob != NULL && bound <= c->tx_blob->size - c->tx_blob_used)
        return HTH_OK;
    /* Small at first: most connections of a large swarm send little. */
    size_t size = c->tx_blob != NULL ? 2 * c->tx_blob->size : TX_BLOB_BYTES_MIN;
    size = HTH_MIN(size, (size_t)TX_BLOB_BYTES_MAX);
    struct hth_blob *fresh = hth_blob_try_new(HTH_MAX(bound, size));
    if (fresh == NULL)
        return HTH_E_NO_MEMORY;
    hth_blob_unref(c->tx_blob);
    c->tx_blob = fresh;
    c->tx_blob_used = 0;
    return HTH_OK;
}

enum hth_err hth_rpc_tx_hello_pack(struct hth_rpc *rpc)
{
    const struct hth_rpc_opts *o = &rpc->opts;
    struct hth_frame_msg msg = {.type = HTH_FRAME_HELLO};
    msg.u.hello.version_min = o->version_min;
    msg.u.hello.version_max = o->version_max;
    msg.u.hello.network = o->network;
    msg.u.hello.features = o->features;
    msg.u.hello.requests_max = o->requests_max;
    msg.u.hello.body_bytes_max = o->body_bytes_max;
    msg.u.hello.request_credit_bytes = o->request_credit_bytes;
    msg.u.hello.reply_credit_bytes = o->reply_credit_bytes;
    if (o->admission != NULL) {
        msg.u.hello.pass = o->admission->creds;
        msg.u.hello.pass_len = o->admission->creds_len;
    }
    rpc->hello = hth_blob_try_new(hth_frame_pack_bound(&msg));
    if (rpc->hello == NULL)
        return HTH_E_NO_MEMORY;
    return hth_frame_pack(&msg, rpc->hello->data, rpc->hello->size, &rpc->hello_len);
}

/* Counts bytes that were queued and schedules the flush. */
static void count_out(struct rpc_conn *c, uint64_t bytes)
{
    c->rpc->stats.bytes_out += bytes;
    hth_metric_add(c->rpc->metrics.bytes_out, (int64_t)bytes);
    mark_dirty(c);
}

void hth_rpc_tx_hello(struct rpc_conn *c)
{
    push(c, c->rpc->hello, 0, c->rpc->hello_len);
    count_out(c, c->rpc->hello_len);
}

enum hth_err hth_rpc_tx_frame(struct rpc_conn *c, const struct hth_frame_msg *msg)
{
    size_t len;
    if (c->state == CONN_DEAD)
        return HTH_E_CLOSED;
    if (msg->body.payload_len > HTH_FRAME_META_BYTES_MAX ||
        msg->body.tensor_count > HTH_FRAME_TENSORS_MAX)
        return HTH_E_TOO_LARGE;
    size_t bound = hth_frame_pack_bound(msg);
    HTH_TRY(reserve(c, bound));
    HTH_TRY(hth_frame_pack(msg, c->tx_blob->data + c->tx_blob_used,
                           c->tx_blob->size - c->tx_blob_used, &len));
    uint64_t before = c->tx_bytes;
    push(c, c->tx_blob, c->tx_blob_used, len);
    c->tx_blob_used += len;
    push_tensors(c, msg->body.tensors, msg->body.tensor_count);
    count_out(c, c->tx_bytes - before);
    return HTH_OK;
}

void hth_rpc_tx_control(struct rpc_conn *c, enum hth_frame_type type, uint64_t id)
{
    struct hth_frame_msg msg = {.type = type, .id = id};
    enum hth_err err = hth_rpc_tx_frame(c, &msg);
    if (err != HTH_OK && err != HTH_E_CLOSED)
        HTH_LOG(c->rpc->env, HTH_DEBUG, HTH_SUB_RPC, "frame of type %d dropped: %s", type,
                hth_err_text(err));
}

/* The next spans, up to `room` bytes; the last one may be a part. */
static size_t gather(const struct rpc_conn *c, struct hth_span *out, size_t *count, size_t room)
{
    size_t bytes = 0, n = 0;
    while (n < TX_SPANS && n < c->tx_count && bytes < room) {
        out[n] = c->tx[(c->tx_first + n) & (c->tx_capacity - 1)];
        out[n].len = HTH_MIN(out[n].len, room - bytes);
        bytes += out[n].len;
        n++;
    }
    *count = n;
    return bytes;
}

static void consume(struct rpc_conn *c, size_t bytes)
{
    c->tx_bytes -= bytes;
    c->tx_written += bytes;
    while (bytes > 0) {
        struct hth_span *s = &c->tx[c->tx_first];
        size_t n = HTH_MIN(bytes, s->len);
        s->offset += n;
        s->len -= n;
        bytes -= n;
        if (s->len == 0) {
            hth_blob_unref(s->blob);
            c->tx_first = (c->tx_first + 1) & (c->tx_capacity - 1);
            c->tx_count--;
        }
    }
}

/* Hands the queue to the stream, as much as the stream takes. */
static void drain_queue(struct rpc_conn *c)
{
    struct hth_env *env = c->rpc->env;
    while (c->tx_count > 0) {
        struct hth_span spans[TX_SPANS];
        size_t count, queued = hth_stream_queued(env, c->stream);
        if (queued >= TX_WINDOW)
            return;
        size_t bytes = gather(c, spans, &count, TX_WINDOW - queued + HTH_STREAM_LOW_BYTES);
        /* E_QUEUE_FULL: on_drained comes. E_CLOSED: on_closed comes. */
        if (hth_stream_write(env, c->stream, spans, count) != HTH_OK)
            return;
        consume(c, bytes);
    }
}

/* Frees the queue's memory. Most connections of a large swarm send little and seldom: between two
 * turns they hold nothing, and the memory they allocate in a turn is warm, because another
 * connection has just freed it. */
static void rest(struct rpc_conn *c)
{
    hth_free(c->tx);
    hth_blob_unref(c->tx_blob);
    c->tx = NULL;
    c->tx_capacity = 0;
    c->tx_first = 0;
    c->tx_blob = NULL;
}

void hth_rpc_tx_flush(struct rpc_conn *c)
{
    rpc_list_del(&c->dirty);
    if (c->state != CONN_HELLO && c->state != CONN_READY)
        return;
    drain_queue(c);
    if (c->tx_count == 0)
        rest(c);
    hth_rpc_conn_settle(c);
}

void hth_rpc_tx_clear(struct rpc_conn *c)
{
    for (; c->tx_count > 0; c->tx_count--) {
        hth_blob_unref(c->tx[c->tx_first].blob);
        c->tx_first = (c->tx_first + 1) & (c->tx_capacity - 1);
    }
    rest(c);
    c->tx_bytes = 0;
    rpc_list_del(&c->dirty);
}
