/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls.c: hearth bench tls: measures bytes/s of one loopback connection in one direction, with TLS
 * 1.3 and without. Sender and receiver share the cores of one machine, so two machines can only be
 * faster.
 */
#include "benchmarks/bench.h"
#include "cli/json.h"
#include "net/net.h"

#include <pthread.h>
#include <string.h>

#define CHUNK_BYTES  (1u << 20)
#define WINDOW_BYTES (8u << 20)
#define TOTAL_BYTES  (UINT64_C(1) << 30)

struct tls_side {
    struct hth_env *env;
    struct hth_blob *chunk;
    uint64_t left; /* bytes to send or to receive */
    bool damaged;
    enum hth_err err;
    char cipher[64];
    pthread_t thread;
};

/* Byte `at` of the stream. */
static uint8_t pattern(uint64_t at)
{
    return (uint8_t)((at % CHUNK_BYTES) * 2654435761u >> 13);
}

/* ---- the receiver -------------------------------------------------------------------------- */

static void on_bytes(struct hth_stream *s, void *arg)
{
    struct tls_side *in = arg;
    size_t n;
    while (in->left > 0 && (n = hth_stream_read(in->env, s, in->chunk, 0, CHUNK_BYTES)) > 0) {
        uint64_t at = TOTAL_BYTES - in->left;
        /* Checks the first and last byte of each chunk: that finds a shift and costs no time. */
        if (in->chunk->data[0] != pattern(at) || in->chunk->data[n - 1] != pattern(at + n - 1))
            in->damaged = true;
        in->left -= HTH_MIN((uint64_t)n, in->left);
    }
    if (in->left == 0)
        hth_net_stop(in->env);
}

static void on_lost(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct tls_side *side = arg;
    (void)s;
    side->err = err == HTH_OK ? HTH_E_CLOSED : err;
    hth_net_stop(side->env);
}

static void on_accept(void *arg, struct hth_stream *s)
{
    static const struct hth_stream_ops ops = {.on_readable = on_bytes, .on_closed = on_lost};
    struct tls_side *in = arg;
    hth_stream_attach(in->env, s, &ops, in);
}

static void *receive_main(void *arg)
{
    struct tls_side *in = arg;
    enum hth_err err = hth_net_run(in->env);
    in->err = in->err == HTH_OK ? err : in->err;
    return NULL;
}

/* ---- the sender ---------------------------------------------------------------------------- */

static void fill(struct hth_stream *s, void *arg)
{
    struct tls_side *out = arg;
    while (out->left > 0 && hth_stream_queued(out->env, s) < WINDOW_BYTES) {
        struct hth_span span = {out->chunk, 0, CHUNK_BYTES};
        if (hth_stream_write(out->env, s, &span, 1) != HTH_OK)
            return;
        out->left -= CHUNK_BYTES;
    }
}

static void on_open(struct hth_stream *s, void *arg)
{
    struct tls_side *out = arg;
    strncpy(out->cipher, hth_net_stream_cipher(s), sizeof(out->cipher) - 1);
    fill(s, arg);
}

static void *send_main(void *arg)
{
    struct tls_side *out = arg;
    enum hth_err err = hth_net_run(out->env);
    out->err = out->err == HTH_OK ? err : out->err;
    return NULL;
}

/* ---- one transfer -------------------------------------------------------------------------- */

static enum hth_err side_init(struct tls_side *side, bool plain)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    opts.plain = plain;
    opts.compute_threads = 1;
    side->left = TOTAL_BYTES;
    side->chunk = hth_blob_try_new(CHUNK_BYTES);
    if (side->chunk == NULL)
        return HTH_E_NO_MEMORY;
    for (size_t i = 0; i < CHUNK_BYTES; i++)
        side->chunk->data[i] = pattern(i);
    return hth_net_new(&opts, &side->env);
}

static void side_clear(struct tls_side *side)
{
    hth_net_free(side->env);
    hth_blob_unref(side->chunk);
}

static enum hth_err transfer(bool plain, double *bytes_per_s, char cipher[64])
{
    static const struct hth_stream_ops ops = {
        .on_open = on_open, .on_drained = fill, .on_closed = on_lost};
    struct tls_side in = {0}, out = {0};
    struct hth_addr addr = {.family = 4, .ip = {127, 0, 0, 1}};
    struct hth_listener *listener = NULL;
    struct hth_stream *stream;
    enum hth_err err;
    HTH_GOTO(out, side_init(&in, plain));
    HTH_GOTO(out, side_init(&out, plain));
    HTH_GOTO(out, hth_listen(in.env, &addr, on_accept, &in, &listener));
    hth_listener_addr(in.env, listener, &addr);
    HTH_GOTO(out, hth_dial(out.env, &addr, &in.env->self, &ops, &out, &stream));
    int64_t start_us = hth_bench_now_us(NULL);
    HTH_ASSERT(pthread_create(&in.thread, NULL, receive_main, &in) == 0);
    HTH_ASSERT(pthread_create(&out.thread, NULL, send_main, &out) == 0);
    pthread_join(in.thread, NULL);
    *bytes_per_s = (double)TOTAL_BYTES * 1e6 / (double)(hth_bench_now_us(NULL) - start_us);
    hth_net_stop(out.env);
    pthread_join(out.thread, NULL);
    err = in.err != HTH_OK ? in.err : in.damaged ? HTH_E_CORRUPT : out.err;
    memcpy(cipher, out.cipher, sizeof(out.cipher));
out:
    if (in.env != NULL)
        hth_listener_free(in.env, listener);
    side_clear(&out);
    side_clear(&in);
    return err;
}

static enum hth_err measure(struct hth_bench *b, bool plain)
{
    struct hth_bench_samples samples;
    char cipher[64] = "";
    hth_bench_begin(&samples);
    while (hth_bench_more(b, &samples, 5)) {
        double rate = 0;
        HTH_TRY(transfer(plain, &rate, cipher));
        hth_bench_add(&samples, rate);
    }
    json_t *row = json_object();
    hth_json_text(row, "cipher", cipher);
    hth_json_real(row, "gb_per_s", hth_bench_round(hth_bench_median(&samples) / 1e9));
    hth_json_real(row, "spread", hth_bench_spread(&samples));
    hth_json_flag(row, "tls", !plain);
    hth_bench_row_take(b, row);
    return HTH_OK;
}

int hth_bench_tls_main(int argc, char **argv)
{
    struct hth_bench b;
    int code = hth_bench_open(
        &b, argc, argv, "Measure one connection's bytes/s, with and without TLS.", NULL, NULL);
    if (code != HTH_EXIT_OK)
        return code;
    enum hth_err err = b.plain ? HTH_OK : measure(&b, false);
    if (err == HTH_OK)
        err = measure(&b, true);
    return hth_bench_finish(&b, "measuring streams", err);
}
