/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c: what a stream of net/ carries on this machine, and what TLS costs.
 *
 * Two environments in one process, each on a thread of its own, over one loopback connection:
 *
 *   verify    4 MiB of a pattern come back unchanged (nothing is timed before that)
 *   bulk      1 MiB writes in one direction, until the last byte was acknowledged
 *   echo N    messages of 128 bytes, N in flight, each sent back
 *
 *     bench_stream [--plain] [--json] [--mib 4096] [--messages 200000]
 */
#define _GNU_SOURCE
#include "core/limits.h"
#include "core/mem.h"
#include "net/net.h"

#include <argp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define CHUNK_BYTES   (1u << 20)
#define VERIFY_BYTES  (4u << 20)
#define MESSAGE_BYTES 128
#define WINDOW_BYTES  (8u << 20)

enum phase { PHASE_VERIFY, PHASE_BULK, PHASE_ECHO };

struct server {
    struct hth_env *env;
    struct hth_listener *listener;
    struct hth_blob *chunk;
    struct hth_stream *stream;
    uint64_t sink_bytes; /* to swallow before one byte of acknowledgement */
    bool sinking;
    struct hth_env *client_env;
};

struct client {
    struct hth_env *env;
    struct hth_stream *stream;
    struct hth_blob *pattern, *into;
    enum phase phase;
    uint64_t to_send, to_read, read_bytes;
    bool failed;
    char cipher[64];
};

struct args {
    bool plain, json;
    uint64_t mib, messages;
};

static double seconds(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* ---- server: echoes, or swallows what start_sinking said
 * ----------------------------------------- */

static void server_readable(struct hth_stream *s, void *arg)
{
    struct server *sv = arg;
    for (;;) {
        size_t n = hth_stream_read(sv->env, s, sv->chunk, 0, CHUNK_BYTES);
        if (n == 0)
            return;
        if (sv->sinking) {
            sv->sink_bytes -= HTH_MIN((uint64_t)n, sv->sink_bytes);
            if (sv->sink_bytes > 0)
                continue;
            sv->sinking = false;
            n = 1;
        }
        struct hth_blob *copy = hth_blob_copy(sv->chunk->data, n);
        struct hth_span span = {copy, 0, n};
        if (hth_stream_write(sv->env, s, &span, 1) != HTH_OK)
            fprintf(stderr, "bench_stream: the server's queue is full\n");
        hth_blob_unref(copy);
    }
}

static void server_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct server *sv = arg;
    (void)s;
    (void)err;
    hth_net_stop(sv->env);
}

static void server_accept(void *arg, struct hth_stream *s)
{
    static const struct hth_stream_ops ops = {.on_readable = server_readable,
                                              .on_closed = server_closed};
    struct server *sv = arg;
    sv->stream = s;
    hth_stream_attach(sv->env, s, &ops, sv);
}

static void *server_main(void *arg)
{
    struct server *sv = arg;
    if (hth_net_run(sv->env) != HTH_OK)
        fprintf(stderr, "bench_stream: the server's loop failed\n");
    return NULL;
}

/* ---- client --------------------------------------------------------------------------------- */

static void client_fill(struct client *c)
{
    while (c->to_send > 0 && hth_stream_queued(c->env, c->stream) < WINDOW_BYTES) {
        size_t n = (size_t)HTH_MIN(c->to_send, (uint64_t)CHUNK_BYTES);
        size_t at = c->phase == PHASE_VERIFY ? VERIFY_BYTES - c->to_send : 0;
        struct hth_span span = {c->pattern, at, n};
        if (hth_stream_write(c->env, c->stream, &span, 1) != HTH_OK)
            return;
        c->to_send -= n;
    }
}

static void echo_reply(struct client *c, size_t n)
{
    struct hth_span span = {c->pattern, 0, MESSAGE_BYTES};
    uint64_t before = c->read_bytes / MESSAGE_BYTES;
    uint64_t whole = (c->read_bytes + n) / MESSAGE_BYTES - before;
    for (; whole > 0 && c->to_send > 0; whole--, c->to_send--) {
        if (hth_stream_write(c->env, c->stream, &span, 1) != HTH_OK)
            c->failed = true;
    }
}

static void client_readable(struct hth_stream *s, void *arg)
{
    struct client *c = arg;
    for (;;) {
        size_t at = c->phase == PHASE_VERIFY ? (size_t)c->read_bytes : 0;
        size_t n = hth_stream_read(c->env, s, c->into, at, VERIFY_BYTES - at);
        if (n == 0)
            return;
        if (c->phase == PHASE_ECHO)
            echo_reply(c, n);
        c->read_bytes += n;
        if (c->read_bytes >= c->to_read) {
            hth_net_stop(c->env);
            return;
        }
    }
}

static void client_open(struct hth_stream *s, void *arg)
{
    struct client *c = arg;
    snprintf(c->cipher, sizeof(c->cipher), "%s", hth_net_stream_cipher(s));
    client_fill(c);
}

static void client_drained(struct hth_stream *s, void *arg)
{
    (void)s;
    client_fill(arg);
}

static void client_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct client *c = arg;
    (void)s;
    fprintf(stderr, "bench_stream: closed: %s\n", hth_err_text(err));
    c->failed = true;
    hth_net_stop(c->env);
}

/* Runs one phase; returns its wall seconds. */
static double phase(struct client *c, enum phase what, uint64_t send, uint64_t want)
{
    c->phase = what;
    c->to_send = send;
    c->to_read = want;
    c->read_bytes = 0;
    double start = seconds(CLOCK_MONOTONIC);
    if (what != PHASE_VERIFY)
        client_fill(c);
    if (hth_net_run(c->env) != HTH_OK)
        c->failed = true;
    return seconds(CLOCK_MONOTONIC) - start;
}

static double echo_phase(struct client *c, uint64_t messages, uint32_t in_flight)
{
    struct hth_span span = {c->pattern, 0, MESSAGE_BYTES};
    c->phase = PHASE_ECHO;
    c->to_send = messages - in_flight;
    c->to_read = messages * MESSAGE_BYTES;
    c->read_bytes = 0;
    double start = seconds(CLOCK_MONOTONIC);
    for (uint32_t i = 0; i < in_flight; i++) {
        if (hth_stream_write(c->env, c->stream, &span, 1) != HTH_OK)
            c->failed = true;
    }
    if (hth_net_run(c->env) != HTH_OK)
        c->failed = true;
    return seconds(CLOCK_MONOTONIC) - start;
}

static void report(const struct args *a, const struct client *c, const char *name, double value,
                   const char *unit)
{
    printf(a->json ? "{\"bench\":\"stream\",\"case\":\"%s\",\"cipher\":\"%s\",\"value\":%.4g,"
                     "\"unit\":\"%s\"}\n"
                   : "%-10s %-24s %12.4g %s\n",
           name, c->cipher, value, unit);
    fflush(stdout);
}

static void start_sinking(void *arg)
{
    struct server *sv = arg;
    sv->sinking = true;
    hth_net_stop(sv->client_env); /* which waits for this in its loop */
}

static int measure(const struct args *a, struct client *c, struct server *sv)
{
    static const uint32_t depths[] = {1, 16, 64, 256};
    phase(c, PHASE_VERIFY, VERIFY_BYTES, VERIFY_BYTES);
    if (c->failed || memcmp(c->pattern->data, c->into->data, VERIFY_BYTES) != 0) {
        fprintf(stderr, "bench_stream: the bytes came back changed\n");
        return 1;
    }
    sv->sink_bytes = a->mib << 20;
    sv->client_env = c->env;
    hth_post(sv->env, start_sinking, sv);
    if (hth_net_run(c->env) != HTH_OK)
        return 1;
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    double wall = phase(c, PHASE_BULK, a->mib << 20, 1);
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    report(a, c, "bulk", (double)(a->mib << 20) / wall / 1e9, "GB/s");
    report(a, c, "bulk_cpu", (double)(a->mib << 20) / cpu / 1e9, "GB/cpu-s, both ends");
    for (size_t i = 0; i < HTH_ARRAY_LEN(depths) && !c->failed; i++) {
        char name[32];
        snprintf(name, sizeof(name), "echo_%u", (unsigned)depths[i]);
        wall = echo_phase(c, a->messages, depths[i]);
        report(a, c, name, (double)a->messages / wall, "messages/s");
    }
    return c->failed ? 1 : 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;
    switch (key) {
    case 'p':
        a->plain = true;
        return 0;
    case 'j':
        a->json = true;
        return 0;
    case 'm':
        a->mib = strtoull(arg, NULL, 10);
        return a->mib > 0 ? 0 : EINVAL;
    case 'n':
        a->messages = strtoull(arg, NULL, 10);
        return a->messages >= 256 ? 0 : EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int bench(const struct args *a)
{
    static const struct hth_stream_ops ops = {.on_open = client_open,
                                              .on_readable = client_readable,
                                              .on_drained = client_drained,
                                              .on_closed = client_closed};
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct hth_addr addr = {.family = 4, .ip = {127, 0, 0, 1}};
    struct server sv = {0};
    struct client c = {0};
    pthread_t thread;
    int rc = 1;

    opts.plain = a->plain;
    opts.compute_threads = 1;
    if (hth_net_new(&opts, &sv.env) != HTH_OK || hth_net_new(&opts, &c.env) != HTH_OK)
        return 1;
    sv.chunk = hth_blob_try_new(CHUNK_BYTES);
    c.pattern = hth_blob_try_new(VERIFY_BYTES);
    c.into = hth_blob_try_new(VERIFY_BYTES);
    HTH_ASSERT(sv.chunk != NULL && c.pattern != NULL && c.into != NULL);
    for (size_t i = 0; i < VERIFY_BYTES; i++)
        c.pattern->data[i] = (uint8_t)(hth_mix64(i) >> 7);
    memset(c.into->data, 0, VERIFY_BYTES);
    if (hth_listen(sv.env, &addr, server_accept, &sv, &sv.listener) == HTH_OK) {
        hth_listener_addr(sv.env, sv.listener, &addr);
        if (hth_dial(c.env, &addr, &sv.env->self, &ops, &c, &c.stream) == HTH_OK &&
            pthread_create(&thread, NULL, server_main, &sv) == 0) {
            rc = measure(a, &c, &sv);
            hth_stream_close(c.env, c.stream, false);
            hth_net_free(c.env);
            c.env = NULL;
            pthread_join(thread, NULL);
        }
        hth_listener_free(sv.env, sv.listener);
    }
    hth_net_free(c.env);
    hth_net_free(sv.env);
    hth_blob_unref(sv.chunk);
    hth_blob_unref(c.pattern);
    hth_blob_unref(c.into);
    return rc;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"plain", 'p', NULL, 0, "Without TLS", 0},
        {"json", 'j', NULL, 0, "One JSON object per line", 0},
        {"mib", 'm', "N", 0, "MiB of the bulk phase (4096)", 0},
        {"messages", 'n', "N", 0, "Messages of each echo phase, at least 256 (200000)", 0},
        {0}};
    static const struct argp argp = {options, parse, NULL, "What a stream carries", 0, 0, 0};
    struct args args = {.mib = 4096, .messages = 200000};
    argp_parse(&argp, argc, argv, 0, NULL, &args);
    return bench(&args);
}
