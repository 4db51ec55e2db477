/* SPDX-License-Identifier: Apache-2.0 */
/*
 * knocker.c: a stranger that connects again and again: TLS, a HELLO without a pass, and the answer;
 * four at a time, as more of one key are closed on arrival. Prints how many there were.
 *
 *     knocker NETWORK ADDR:PORT COUNT
 */
#include "core/limits.h"
#include "core/mem.h"
#include "net/net.h"
#include "rpc/frame.h"

#include <stdio.h>
#include <stdlib.h>

#define AT_ONCE  4
#define AGAIN_US (10 * HTH_US_PER_MS)

struct knocker {
    struct hth_env *env;
    struct hth_addr addr;
    const char *network;
    struct hth_timer *timer;
    unsigned long left, open, done, failed;
};

static void on_open(struct hth_stream *stream, void *arg)
{
    struct knocker *k = arg;
    uint8_t bytes[1024];
    struct hth_frame_msg hello = {.type = HTH_FRAME_HELLO};
    size_t len;
    hello.u.hello.version_min = HTH_RPC_VERSION_MIN;
    hello.u.hello.version_max = HTH_RPC_VERSION_MAX;
    hello.u.hello.network = k->network;
    hello.u.hello.requests_max = 8;
    if (hth_frame_pack(&hello, bytes, sizeof(bytes), &len) != HTH_OK)
        return;
    struct hth_blob *blob = hth_blob_copy(bytes, len);
    const struct hth_span span = {blob, 0, len};
    (void)!hth_stream_write(k->env, stream, &span, 1);
    hth_blob_unref(blob);
}

static void on_readable(struct hth_stream *stream, void *arg)
{
    struct knocker *k = arg;
    struct hth_blob *sink = hth_blob_try_new(65536);
    while (hth_stream_read(k->env, stream, sink, 0, 65536) > 0)
        continue;
    hth_blob_unref(sink);
}

static void on_closed(struct hth_stream *stream, enum hth_err err, void *arg)
{
    struct knocker *k = arg;
    (void)stream;
    k->open--;
    k->done++;
    k->failed += err == HTH_E_REFUSED || err == HTH_E_UNREACHABLE || err == HTH_E_TIMEOUT;
    hth_timer_set(k->env, k->timer, 0);
}

static void knock(void *arg)
{
    static const struct hth_stream_ops ops = {
        .on_open = on_open, .on_readable = on_readable, .on_closed = on_closed};
    struct knocker *k = arg;
    struct hth_stream *stream;
    while (k->left > 0 && k->open < AT_ONCE) {
        if (hth_dial(k->env, &k->addr, NULL, &ops, k, &stream) != HTH_OK) {
            hth_timer_set(k->env, k->timer, AGAIN_US);
            return;
        }
        k->open++;
        k->left--;
    }
    if (k->left == 0 && k->open == 0)
        hth_net_stop(k->env);
}

int main(int argc, char **argv)
{
    struct hth_net_opts opts = {.compute_threads = 1};
    struct knocker k = {.network = argc == 4 ? argv[1] : ""};
    if (argc == 4)
        k.left = strtoul(argv[3], NULL, 10);
    if (k.left == 0 || hth_addr_parse(argv[2], &k.addr) != HTH_OK ||
        hth_addr_scope(&k.addr) != HTH_SCOPE_MACHINE) {
        fputs("usage: knocker NETWORK ADDR:PORT COUNT, of loopback\n", stderr);
        return 2;
    }
    if (hth_net_new(&opts, &k.env) != HTH_OK)
        return 1;
    k.timer = hth_timer_new(k.env, knock, &k);
    hth_timer_set(k.env, k.timer, 0);
    enum hth_err err = hth_net_run(k.env);
    printf("%lu connections, %lu failed\n", k.done, k.failed);
    hth_timer_free(k.env, k.timer);
    hth_net_free(k.env);
    return err == HTH_OK && k.failed == 0 ? 0 : 1;
}
