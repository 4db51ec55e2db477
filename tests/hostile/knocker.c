/* SPDX-License-Identifier: Apache-2.0 */
/*
 * knocker.c: strangers that connect again and again: TLS, a HELLO without a pass, and the answer;
 * four at a time, as more of one key are closed on arrival. Takes the addresses in turn, and with
 * each round of all of them the next of its keys. Prints how many connections there were.
 *
 *     knocker INVITE-FILE KEY COUNT KEYS ADDR:PORT...
 *
 * KEY is the number of the first key. Three hundred keys come to all addresses within 20 s.
 */
#define _DEFAULT_SOURCE
#include "hostile/attack.h"

#include "core/limits.h"
#include "core/mem.h"
#include "net/net.h"
#include "rpc/frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define AT_ONCE   4
#define AGAIN_US  (10 * HTH_US_PER_MS)
#define KEY_US    66000
#define ADDRS_MAX 8

struct knocker {
    struct hth_env *env;
    struct hth_addr addr[ADDRS_MAX];
    char network[HTH_NAME_LEN_MAX + 1];
    struct hth_timer *timer;
    unsigned addrs;
    unsigned long left, turn, open, done, failed; /* turn: dials left of this key's */
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
    while (k->turn > 0 && k->open < AT_ONCE) {
        const struct hth_addr *addr = &k->addr[k->turn % k->addrs];
        if (hth_dial(k->env, addr, NULL, &ops, k, &stream) != HTH_OK) {
            hth_timer_set(k->env, k->timer, AGAIN_US);
            return;
        }
        k->open++;
        k->turn--;
    }
    if (k->turn == 0 && k->open == 0)
        hth_net_stop(k->env);
}

/* An environment has one key, so each key has an environment. */
static enum hth_err knock_as(struct knocker *k, uint32_t number, unsigned long count)
{
    struct hth_secret secret;
    struct hth_net_opts opts = {.compute_threads = 1, .secret = &secret};
    attack_key(number, &secret);
    HTH_TRY(hth_net_new(&opts, &k->env));
    k->turn = count;
    k->left -= count;
    k->timer = hth_timer_new(k->env, knock, k);
    hth_timer_set(k->env, k->timer, 0);
    enum hth_err err = hth_net_run(k->env);
    hth_timer_free(k->env, k->timer);
    hth_net_free(k->env);
    return err;
}

int main(int argc, char **argv)
{
    static struct knocker k;
    struct hth_invite invite;
    uint32_t first = 0, keys = 0;
    enum hth_err err = HTH_OK;
    bool good = argc > 5 && argc - 5 <= ADDRS_MAX && attack_invite(argv[1], &invite, k.network);
    for (int i = 5; good && i < argc; i++)
        good = attack_addr(argv[i], &k.addr[k.addrs++]);
    if (good) {
        first = (uint32_t)strtoul(argv[2], NULL, 10);
        k.left = strtoul(argv[3], NULL, 10);
        keys = (uint32_t)strtoul(argv[4], NULL, 10);
    }
    if (k.left == 0 || keys == 0) {
        fputs("usage: knocker INVITE-FILE KEY COUNT KEYS ADDR:PORT..., of loopback\n", stderr);
        return 2;
    }
    for (uint32_t i = 0; err == HTH_OK && k.left > 0; i = (i + 1) % keys) {
        err = knock_as(&k, first + i, keys > 1 ? HTH_MIN(k.addrs, k.left) : k.left);
        if (keys > 1)
            usleep(KEY_US);
    }
    printf("%lu connections, %lu failed\n", k.done, k.failed);
    return err == HTH_OK && k.failed == 0 ? 0 : 1;
}
