/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staller.c: a hostile client: begins a request of 64 MiB at a host, sends 63 of them, and then
 * nothing. When the host drops it, it comes again. Ends by a signal.
 *
 *     staller NETWORK ADDR:PORT
 */
#include "core/limits.h"
#include "core/mem.h"
#include "net/net.h"
#include "rpc/frame.h"

#include <stdio.h>
#include <string.h>

#define BODY     (64u << 20)
#define SENT     (63u << 20)
#define CHUNK    (1u << 20)
#define AGAIN_US HTH_US_PER_S
#define FORWARD  17

struct staller {
    struct hth_env *env;
    struct hth_addr addr;
    const char *network;
    struct hth_stream *stream;
    struct hth_timer *timer;
    struct hth_blob *chunk;
    uint32_t sent;
    bool begun; /* the request, which may follow the host's HELLO */
};

static void put(struct staller *s, const struct hth_frame_msg *msg)
{
    static uint8_t bytes[HTH_FRAME_META_BYTES_MAX + 1024];
    size_t len;
    if (hth_frame_pack(msg, bytes, sizeof(bytes), &len) != HTH_OK)
        return;
    struct hth_blob *blob = hth_blob_copy(bytes, len);
    const struct hth_span span = {blob, 0, len};
    (void)!hth_stream_write(s->env, s->stream, &span, 1);
    hth_blob_unref(blob);
}

static void more(struct staller *s)
{
    const struct hth_span span = {s->chunk, 0, CHUNK};
    while (s->sent < SENT && hth_stream_write(s->env, s->stream, &span, 1) == HTH_OK)
        s->sent += CHUNK;
}

static void on_open(struct hth_stream *stream, void *arg)
{
    struct staller *s = arg;
    struct hth_frame_msg hello = {.type = HTH_FRAME_HELLO};
    (void)stream;
    hello.u.hello.version_min = HTH_RPC_VERSION_MIN;
    hello.u.hello.version_max = HTH_RPC_VERSION_MAX;
    hello.u.hello.network = s->network;
    hello.u.hello.requests_max = 8;
    hello.u.hello.body_bytes_max = CHUNK;
    hello.u.hello.request_credit_bytes = hello.u.hello.reply_credit_bytes = 2 * CHUNK;
    put(s, &hello);
    s->begun = false;
}

static void begin(struct staller *s)
{
    struct hth_blob *ghost = hth_blob_ghost(BODY, 1);
    const struct hth_tensor t = {HTH_U8, 1, {BODY}, ghost, 0};
    struct hth_frame_msg request = {.type = HTH_FRAME_REQUEST, .id = 1};
    s->begun = true;
    request.u.request.method = FORWARD;
    request.u.request.timeout_ms = 600000;
    request.body.tensors = &t;
    request.body.tensor_count = 1;
    put(s, &request);
    s->sent = 0;
    more(s);
    hth_blob_unref(ghost);
}

static void on_readable(struct hth_stream *stream, void *arg)
{
    struct staller *s = arg;
    struct hth_blob *sink = hth_blob_try_new(65536);
    while (hth_stream_read(s->env, stream, sink, 0, 65536) > 0)
        continue;
    hth_blob_unref(sink);
    if (!s->begun)
        begin(s);
}

static void on_drained(struct hth_stream *stream, void *arg)
{
    (void)stream;
    more(arg);
}

static void on_closed(struct hth_stream *stream, enum hth_err err, void *arg)
{
    struct staller *s = arg;
    (void)stream;
    (void)err;
    s->stream = NULL;
    hth_timer_set(s->env, s->timer, AGAIN_US);
}

static void dial(void *arg)
{
    static const struct hth_stream_ops ops = {.on_open = on_open,
                                              .on_readable = on_readable,
                                              .on_drained = on_drained,
                                              .on_closed = on_closed};
    struct staller *s = arg;
    if (hth_dial(s->env, &s->addr, NULL, &ops, s, &s->stream) != HTH_OK)
        hth_timer_set(s->env, s->timer, AGAIN_US);
}

int main(int argc, char **argv)
{
    struct hth_net_opts opts = {.compute_threads = 1};
    struct staller s = {.network = argc == 3 ? argv[1] : ""};
    if (argc != 3 || hth_addr_parse(argv[2], &s.addr) != HTH_OK ||
        hth_addr_scope(&s.addr) != HTH_SCOPE_MACHINE) {
        fputs("usage: staller NETWORK ADDR:PORT, of loopback\n", stderr);
        return 2;
    }
    if (hth_net_new(&opts, &s.env) != HTH_OK)
        return 1;
    s.chunk = hth_blob_try_new(CHUNK);
    memset(s.chunk->data, 0, CHUNK);
    s.timer = hth_timer_new(s.env, dial, &s);
    hth_timer_set(s.env, s.timer, 0);
    return hth_net_run(s.env) == HTH_OK ? 0 : 1;
}
