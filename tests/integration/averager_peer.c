/* SPDX-License-Identifier: Apache-2.0 */
/*
 * averager_peer.c: one averager as a process, for test_averaging.c.
 *
 *   hth_averager_peer ADDR JOIN SHAPE RANK POPULATION COUNT FORMAT SWEEPS OUT [PHASE HOW]
 *
 * It says "listening", and "ready" when the roster shows POPULATION peers. On each SIGUSR1 it goes
 * SWEEPS times through all axes, prints a line per sweep, writes its vector to OUT after each, and
 * stays until SIGTERM. JOIN "-": nobody. With a PHASE it kills or stops itself (HOW: kill, stop) as
 * soon as it sees itself in that phase of its second sweep: declared, joined, leading, begun,
 * reducing, returning. Of those that share a folder for OUT only the first to see it does. PHASE
 * "patience": nobody dies, and a peer may be late or silent for HOW seconds.
 */
#include "app/avg_node.h"
#include "core/mem.h"
#include "net/net.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WATCH_US 100

struct peer {
    struct hth_avg_node node;
    const char *out, *phase, *how;
    uint32_t sweeps, done, until; /* until: sweeps that were asked for */
    int64_t began_us;
    struct hth_timer *watch;
    /* when it began to watch itself */
    struct hth_match_stats match;
    struct hth_reducer_stats reducer;
};

static bool in_phase(struct peer *p)
{
    struct hth_match_stats m;
    struct hth_reducer_stats r;

    hth_moshpit_match_stats(&p->node.averager, &m);
    hth_reducer_stats(p->node.reducer, &r);
    if (strcmp(p->phase, "declared") == 0)
        return m.looks_now > 0;
    if (strcmp(p->phase, "joined") == 0)
        return m.followers_now > 0 || m.joins_out > p->match.joins_out;
    if (strcmp(p->phase, "leading") == 0)
        return m.followers_now > 0;
    if (strcmp(p->phase, "begun") == 0)
        return r.rounds_now > 0;
    if (strcmp(p->phase, "reducing") == 0)
        return r.rounds_now > 0 && r.bytes_in > p->reducer.bytes_in;
    return r.parts_reduced > p->reducer.parts_reduced;
}

/* Whoever makes the file first. */
static bool is_first(const struct peer *p)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof(path), "%s", p->out);
    if (strrchr(path, '/') == NULL)
        return true;
    strcpy(strrchr(path, '/'), "/dead");
    f = fopen(path, "wx");
    return f != NULL && fclose(f) == 0;
}

static void on_watch(void *arg)
{
    struct peer *p = arg;

    if (in_phase(p)) {
        if (!is_first(p))
            return;
        printf("dies now: %s\n", p->phase);
        fflush(stdout);
        raise(strcmp(p->how, "kill") == 0 ? SIGKILL : SIGSTOP);
    } else {
        hth_timer_set(p->node.env, p->watch, WATCH_US);
    }
}

static void go(struct peer *p)
{
    enum hth_err err;

    p->began_us = hth_now_us(p->node.env);
    err = hth_avg_node_sweep(&p->node, HTH_AVG_ALL_AXES);
    if (err != HTH_OK) {
        printf("offer failed: %s\n", hth_err_text(err));
        fflush(stdout);
    }
}

static void on_ready(void *arg)
{
    (void)arg;
    printf("ready\n");
    fflush(stdout);
}

static void on_go(void *arg)
{
    struct peer *p = arg;

    p->until = p->done + p->sweeps;
    hth_avg_node_values(p->node.opts.seed, p->node.opts.rank, p->node.values, p->node.opts.count);
    go(p);
    if (p->phase != NULL && p->done > 0 && p->watch == NULL) {
        hth_moshpit_match_stats(&p->node.averager, &p->match);
        hth_reducer_stats(p->node.reducer, &p->reducer);
        p->watch = hth_timer_new(p->node.env, on_watch, p);
        hth_timer_set(p->node.env, p->watch, 0);
    }
}

static void write_values(struct peer *p)
{
    char aside[512];
    FILE *f;

    snprintf(aside, sizeof(aside), "%s.new", p->out);
    f = fopen(aside, "wb");
    if (f == NULL ||
        fwrite(p->node.values, sizeof(float), p->node.opts.count, f) != p->node.opts.count ||
        fclose(f) != 0 || rename(aside, p->out) != 0)
        printf("can't write %s\n", p->out);
}

static void on_sweep(void *arg, const struct hth_avg_result *r)
{
    struct peer *p = arg;

    p->done++;
    write_values(p);
    printf("sweep %u %s rounds %u failed %u drops %u took_us %lld wait_us %lld\n", p->done,
           hth_avg_reason_name(r->reason), r->rounds, r->rounds_failed, r->drops,
           (long long)(hth_now_us(p->node.env) - p->began_us), (long long)r->wait_us);
    fflush(stdout);
    if (p->done < p->until)
        go(p);
}

static void on_signal(void *arg)
{
    struct peer *p = arg;

    hth_net_stop(p->node.env);
}

static enum hth_err parse(int argc, char **argv, struct hth_avg_node_opts *o, struct hth_addr *join)
{
    if (argc != 10 && argc != 12)
        return HTH_E_USAGE;
    o->network = "averagers";
    o->threads = 1;
    o->seed = 1;
    o->window_us = 3 * HTH_US_PER_S;
    HTH_TRY(hth_addr_parse(argv[1], &o->addr));
    if (strcmp(argv[2], "-") != 0) {
        HTH_TRY(hth_addr_parse(argv[2], join));
        o->join = join;
        o->join_count = 1;
    }
    HTH_TRY(hth_avg_shape_parse(argv[3], &o->shape));
    o->rank = (uint32_t)strtoul(argv[4], NULL, 10);
    o->population = (uint32_t)strtoul(argv[5], NULL, 10);
    o->count = strtoul(argv[6], NULL, 10);
    o->format = strcmp(argv[7], "fp16") == 0 ? HTH_QUANT_F16 : HTH_QUANT_F32;
    return HTH_OK;
}

int main(int argc, char **argv)
{
    struct peer p = {.phase = NULL};
    struct hth_avg_node_opts o = {.on_ready = on_ready, .on_sweep = on_sweep, .arg = &p};
    struct hth_addr join;
    enum hth_err err = parse(argc, argv, &o, &join);

    if (err == HTH_OK) {
        p.sweeps = (uint32_t)strtoul(argv[8], NULL, 10);
        p.out = argv[9];
        p.phase = argc == 12 ? argv[10] : NULL;
        p.how = argc == 12 ? argv[11] : NULL;
        if (p.phase != NULL && strcmp(p.phase, "patience") == 0) {
            o.silence_us = o.window_us = atoi(p.how) * HTH_US_PER_S;
            p.phase = NULL;
        }
        err = hth_avg_node_open(&o, &p.node);
    }
    if (err == HTH_OK)
        err = hth_net_on_signal(p.node.env, SIGTERM, on_signal, &p);
    if (err == HTH_OK)
        err = hth_net_on_signal(p.node.env, SIGUSR1, on_go, &p);
    if (err == HTH_OK) {
        printf("listening\n");
        fflush(stdout);
        err = hth_avg_node_run(&p.node);
    }
    if (err != HTH_OK)
        fprintf(stderr, "averager_peer: %s\n", hth_err_text(err));
    if (p.watch != NULL)
        hth_timer_free(p.node.env, p.watch);
    hth_avg_node_close(&p.node);
    return err == HTH_OK ? 0 : 1;
}
