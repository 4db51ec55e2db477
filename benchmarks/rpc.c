/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc.c: what a call costs: two endpoints in one process, each on its own loop thread, over
 * loopback TLS. The server answers inside its handler with what it got.
 *
 * usage: bench_rpc [--plain] [CALLERS [BYTES [SECONDS]]]      (64 callers, 0 bytes, 2 s)
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "net/net.h"
#include "rpc/rpc.h"

#define METHOD 16

struct side {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_addr addr;
};

static struct side server, client;
static struct hth_blob *blob;
static struct hth_tensor tensor;
static uint64_t answered, failed;
static int64_t until_us;
static struct hth_timer *quit;

static void die(enum hth_err err, const char *what)
{
    fprintf(stderr, "bench_rpc: %s: %s\n", what, hth_err_text(err));
    exit(1);
}

static void start(struct side *s, bool plain, bool listen)
{
    struct hth_net_opts nopts = HTH_NET_OPTS_INIT;
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    struct hth_addr any = {.family = 4, .ip = {127, 0, 0, 1}};
    nopts.plain = plain;
    nopts.compute_threads = 1;
    opts.network = "bench";
    opts.listen = listen ? &any : NULL;
    enum hth_err err = hth_net_new(&nopts, &s->env);
    if (err == HTH_OK)
        err = hth_rpc_new(s->env, &opts, &s->rpc);
    if (err != HTH_OK)
        die(err, "start");
    hth_rpc_addr(s->rpc, &s->addr);
}

static void echo(void *arg, struct hth_rpc_request *req)
{
    struct hth_rpc_body body;
    (void)arg;
    body.payload = hth_rpc_payload(req, &body.payload_len);
    body.tensors = hth_rpc_tensors(req, &body.tensor_count);
    hth_rpc_reply(req, &body);
}

static void call(void);

static void done(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    if (r->err != HTH_OK || r->payload_len != 16 || r->tensor_count != (blob != NULL ? 1 : 0)) {
        failed++;
        return;
    }
    answered++;
    if (hth_now_us(client.env) < until_us)
        call();
}

static void call(void)
{
    struct hth_rpc_target target = {server.env->self, server.addr};
    struct hth_rpc_call_opts opts = {.method = METHOD, .timeout_us = 10 * HTH_US_PER_S};
    opts.body = (struct hth_rpc_body){"sixteen bytes...", 16, &tensor, blob != NULL ? 1 : 0};
    if (hth_rpc_call(client.rpc, &target, &opts, done, NULL, NULL) != HTH_OK)
        failed++;
}

static void stop(void *arg)
{
    (void)arg;
    hth_net_stop(client.env);
}

static void *serve(void *arg)
{
    (void)arg;
    if (hth_net_run(server.env) != HTH_OK)
        abort();
    return NULL;
}

/* The first calls pay for the connection: a warm-up run, then the one that counts. */
static double run(int callers, int64_t seconds)
{
    answered = 0;
    int64_t from = hth_now_us(client.env);
    until_us = from + seconds * HTH_US_PER_S;
    for (int i = 0; i < callers; i++)
        call();
    hth_timer_set(client.env, quit, seconds * HTH_US_PER_S + 200000);
    if (hth_net_run(client.env) != HTH_OK)
        abort();
    return (double)answered / (double)seconds;
}

int main(int argc, char **argv)
{
    bool plain = argc > 1 && strcmp(argv[1], "--plain") == 0;
    argv += plain ? 1 : 0;
    argc -= plain ? 1 : 0;
    int callers = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 64;
    long bytes = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
    int64_t seconds = argc > 3 ? strtol(argv[3], NULL, 10) : 2;
    pthread_t thread;
    start(&server, plain, true);
    start(&client, plain, false);
    quit = hth_timer_new(client.env, stop, NULL);
    hth_rpc_serve(server.rpc, METHOD, echo, NULL);
    if (bytes > 0) {
        enum hth_err err = hth_env_blob_new(client.env, (size_t)bytes, NULL, &blob);
        if (err != HTH_OK)
            die(err, "payload");
        memset(blob->data, 1, (size_t)bytes);
        tensor = (struct hth_tensor){HTH_U8, 1, {(uint64_t)bytes}, blob, 0};
    }
    if (pthread_create(&thread, NULL, serve, NULL) != 0)
        return 1;
    run(callers, 1);
    double rate = run(callers, seconds);
    printf("{\"bench\":\"rpc\",\"callers\":%d,\"body_bytes\":%ld,\"tls\":%s,\"calls_per_s\":%.0f,"
           "\"gb_per_s_each_way\":%.3f,\"failed\":%llu}\n",
           callers, bytes, plain ? "false" : "true", rate, rate * (double)bytes / 1e9,
           (unsigned long long)failed);
    hth_net_stop(server.env);
    pthread_join(thread, NULL);
    /* Each answer counted above must have been a request over there. */
    struct hth_rpc_stats there, here;
    hth_rpc_stats(server.rpc, &there);
    hth_rpc_stats(client.rpc, &here);
    if (there.requests != here.calls || here.calls_ok != here.calls) {
        fprintf(stderr, "bench_rpc: %llu calls, %llu requests, %llu answers\n",
                (unsigned long long)here.calls, (unsigned long long)there.requests,
                (unsigned long long)here.calls_ok);
        failed++;
    }
    hth_timer_free(client.env, quit);
    hth_rpc_free(client.rpc);
    hth_rpc_free(server.rpc);
    hth_net_free(client.env);
    hth_net_free(server.env);
    hth_blob_unref(blob);
    return failed > 0;
}
