/* SPDX-License-Identifier: Apache-2.0 */
/* member.c: one process of `hearth bench allreduce`, which runs the commands of its input. */
#define _GNU_SOURCE
#include "averaging/reduce.h"
#include "benchmarks/bench.h"
#include "benchmarks/reduce.h"
#include "core/mem.h"
#include "net/net.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUND_TIMEOUT_US (60 * HTH_US_PER_S)
#define LINE_BYTES_MAX   4096

struct bench_member {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_reducer *reducer;
    struct hth_bench_floor *floor;
    struct hth_reduce_member members[HTH_BENCH_MEMBERS_MAX];
    uint32_t n, self;
    uint64_t seed;
    struct hth_blob *values, *average;
    uint64_t count;
    struct hth_avg_span span;
    /* rounds under way */
    uint64_t round; /* number of the current round, over all commands */
    uint32_t left;
    bool warm;
    int64_t start_ns, end_ns, start_cpu_ns, end_cpu_ns, longest_ns;
    uint64_t bytes_out;
    uint32_t dropped;
    enum hth_err err;
};

/* ---- values -------------------------------------------------------------------------------- */

/* Float i of a member's vector: a hash, so that every member can compute every vector. */
static float value_at(uint64_t seed, uint32_t member, uint64_t i)
{
    uint64_t x = i + seed * UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)member << 56);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (float)((double)(x >> 40) / (1 << 23) - 1.0);
}

/* Distance of the result from the true mean, over the distance of this member's own values. */
static double error_of(const struct bench_member *m)
{
    const float *y = m->average != NULL ? (const float *)(const void *)m->average->data : NULL;
    double lost = 0, was = 0;
    for (uint64_t i = 0; y != NULL && i < m->count; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < m->n; k++)
            sum += (double)value_at(m->seed, k, i);
        double mean = sum / m->n, own = (double)value_at(m->seed, m->self, i) - mean;
        lost += ((double)y[i] - mean) * ((double)y[i] - mean);
        was += own * own;
    }
    return was > 0 ? sqrt(lost / was) : INFINITY;
}

/* ---- rounds -------------------------------------------------------------------------------- */

static void begin_round(struct bench_member *m);

static int64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void say_done(const struct bench_member *m, int64_t ns, int64_t cpu)
{
    printf("done %" PRId64 " %" PRId64 " %" PRIu64 " %u %" PRId64 "\n", ns, cpu,
           m->bytes_out, m->dropped, m->longest_ns);
}

static void end_rounds(struct bench_member *m)
{
    if (m->err != HTH_OK)
        printf("failed %s\n", hth_err_text(m->err));
    else
        say_done(m, m->end_ns - m->start_ns, m->end_cpu_ns - m->start_cpu_ns);
}

static void on_round(void *arg, const struct hth_reduce_result *result)
{
    struct bench_member *m = arg;
    int64_t now = hth_bench_now_ns(NULL);
    if (!m->warm)
        m->longest_ns = HTH_MAX(m->longest_ns, now - m->end_ns);
    m->end_ns = now;
    m->end_cpu_ns = cpu_ns();
    if (result->err != HTH_OK)
        m->err = result->err;
    if (m->warm) {
        m->start_ns = now;
        m->start_cpu_ns = m->end_cpu_ns;
    }
    m->bytes_out = result->bytes_out;
    m->dropped += result->dropped;
    m->warm = false;
    hth_blob_unref(m->average);
    m->average = result->average != NULL ? hth_blob_ref(result->average) : NULL;
    if (m->err != HTH_OK || m->left == 0) {
        end_rounds(m);
        return;
    }
    m->left--;
    begin_round(m);
}

static void begin_round(struct bench_member *m)
{
    struct hth_reduce_opts opts = {
        .members = m->members,
        .member_count = m->n,
        .self = m->self,
        .values = m->values,
        .count = m->count,
        .spans = &m->span,
        .span_count = 1,
        .timeout_us = ROUND_TIMEOUT_US,
        .done = on_round,
        .arg = m,
    };
    m->round++;
    memcpy(opts.group.b, &m->round, sizeof(m->round));
    m->err = hth_reduce_start(m->reducer, &opts, NULL);
    if (m->err != HTH_OK)
        end_rounds(m);
}

static bool do_rounds(struct bench_member *m, const char *line)
{
    m->left = (uint32_t)strtoul(line, NULL, 10);
    m->warm = true;
    m->dropped = 0;
    m->longest_ns = 0;
    m->err = HTH_OK;
    begin_round(m);
    return true;
}

/* ---- the other commands -------------------------------------------------------------------- */

static bool parse_id(const char *hex, struct hth_peer_id *id)
{
    for (size_t i = 0; i < sizeof(id->b); i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return false;
        id->b[i] = (uint8_t)byte;
    }
    return true;
}

static bool do_group(struct bench_member *m, const char *line)
{
    uint16_t ports[HTH_BENCH_MEMBERS_MAX];
    int used = 0;
    if (sscanf(line, "%u %u%n", &m->self, &m->n, &used) != 2 || m->n > HTH_BENCH_MEMBERS_MAX)
        return false;
    for (uint32_t i = 0; i < m->n; i++) {
        struct hth_reduce_member *to = &m->members[i];
        char hex[2 * HTH_HASH_LEN + 1];
        line += used;
        *to = (struct hth_reduce_member){.bandwidth = 1e9, .weight = 1};
        to->addr = (struct hth_addr){.family = 4, .ip = {127, 0, 0, 1}};
        if (sscanf(line, " %64[0-9a-f]:%hu:%hu%n", hex, &to->addr.port, &ports[i], &used) != 3 ||
            !parse_id(hex, &to->id))
            return false;
    }
    if (hth_bench_floor_join(m->floor, m->self, m->n, ports) != HTH_OK)
        return false;
    puts("ok");
    return true;
}

static bool do_prepare(struct bench_member *m, const char *line)
{
    char name[16];
    uint64_t bytes;
    if (sscanf(line, "%" SCNu64 " %15s %" SCNu64, &bytes, name, &m->seed) != 3 ||
        hth_quant_by_name(name, &m->span.format) != HTH_OK)
        return false;
    m->count = m->span.count = bytes / sizeof(float);
    hth_blob_unref(m->values);
    m->values = hth_blob_try_new(bytes);
    if (m->values == NULL)
        return false;
    float *x = (float *)(void *)m->values->data;
    for (uint64_t i = 0; i < m->count; i++)
        x[i] = value_at(m->seed, m->self, i);
    puts("ready");
    return true;
}

static bool do_floor(struct bench_member *m, const char *line)
{
    uint64_t bytes;
    uint32_t rounds;
    if (sscanf(line, "%" SCNu64 " %u", &bytes, &rounds) != 2)
        return false;
    int64_t start = 0, cpu = 0;
    for (uint32_t i = 0; i <= rounds; i++) {
        if (hth_bench_floor_run(m->floor, bytes) != HTH_OK)
            return false;
        if (i > 0)
            continue;
        start = hth_bench_now_ns(NULL);
        cpu = cpu_ns();
    }
    printf("done %" PRId64 " %" PRId64 " 0 0 0\n", hth_bench_now_ns(NULL) - start,
           cpu_ns() - cpu);
    return true;
}

static bool run_command(struct bench_member *m, const char *line)
{
    if (strncmp(line, "group ", 6) == 0)
        return do_group(m, line + 6);
    if (strncmp(line, "prepare ", 8) == 0)
        return do_prepare(m, line + 8);
    if (strncmp(line, "rounds ", 7) == 0)
        return do_rounds(m, line + 7);
    if (strncmp(line, "floor ", 6) == 0)
        return do_floor(m, line + 6);
    if (strncmp(line, "check", 5) != 0)
        return false;
    printf("error %g\n", error_of(m));
    return true;
}

/* ---- life ---------------------------------------------------------------------------------- */

static void on_lost(void *arg, const struct hth_peer_id *peer, enum hth_err err)
{
    struct bench_member *m = arg;
    (void)err;
    hth_reducer_peer_lost(m->reducer, peer);
}

static enum hth_err member_open(struct bench_member *m, bool plain)
{
    struct hth_net_opts net = HTH_NET_OPTS_INIT;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    const struct hth_cli_log log = {.spec = "error"};
    struct hth_addr any = {.family = 4, .ip = {127, 0, 0, 1}};
    uint16_t port;
    net.plain = plain;
    rpc.network = "bench";
    rpc.listen = &any;
    rpc.on_peer_lost = on_lost;
    rpc.arg = m;
    HTH_TRY(hth_net_new(&net, &m->env));
    HTH_TRY(hth_cli_log_apply(&log, &m->env->log));
    HTH_TRY(hth_rpc_new(m->env, &rpc, &m->rpc));
    HTH_TRY(hth_reducer_new(m->env, m->rpc, NULL, &m->reducer));
    HTH_TRY(hth_bench_floor_new(&m->floor, &port));
    hth_rpc_addr(m->rpc, &any);
    fputs("hello ", stdout);
    for (size_t i = 0; i < sizeof(m->env->self.b); i++)
        printf("%02x", m->env->self.b[i]);
    printf(" %u %u\n", any.port, port);
    return HTH_OK;
}

static void member_close(struct bench_member *m)
{
    if (m->env != NULL)
        hth_net_jobs_end(m->env);
    hth_reducer_free(m->reducer);
    hth_rpc_free(m->rpc);
    hth_blob_unref(m->values);
    hth_blob_unref(m->average);
    hth_net_free(m->env);
    hth_bench_floor_free(m->floor);
}

/* A line of the input, run on the loop thread. */
struct order {
    struct bench_member *member;
    char line[LINE_BYTES_MAX];
};

static void on_order(void *arg)
{
    struct order *o = arg;
    if (!run_command(o->member, o->line)) {
        printf("failed at: %s", o->line);
        hth_net_stop(o->member->env);
    }
    hth_free(o);
}

static void on_end(void *arg)
{
    struct bench_member *m = arg;
    hth_net_stop(m->env);
}

/* Reads the input on a thread of its own: the loop must not block, because it still sends to other
 * members. */
static void *read_orders(void *arg)
{
    struct bench_member *m = arg;
    for (;;) {
        struct order *o = hth_new(struct order);
        o->member = m;
        if (fgets(o->line, sizeof(o->line), stdin) == NULL) {
            hth_free(o);
            break;
        }
        hth_post(m->env, on_order, o);
    }
    hth_post(m->env, on_end, m);
    return NULL;
}

int hth_bench_member_main(bool plain)
{
    struct bench_member m = {0};
    pthread_t reader;
    setvbuf(stdout, NULL, _IOLBF, 0);
    bool fine =
        member_open(&m, plain) == HTH_OK && pthread_create(&reader, NULL, read_orders, &m) == 0;
    if (fine) {
        fine = hth_net_run(m.env) == HTH_OK;
        /* After a failed command the reader still waits for the end of the input. */
        pthread_join(reader, NULL);
    }
    member_close(&m);
    return fine ? HTH_EXIT_OK : HTH_EXIT_FAILURE;
}
