/* SPDX-License-Identifier: Apache-2.0 */
/*
 * averager_peer.c: one averager as a process, for tests of several (swarm.h starts them).
 *
 *   hth_averager_peer KEY=VALUE...
 *
 *   listen=ADDR [join=ADDR] shape=4x4 rank=N population=N count=N [format=fp16] out=FILE
 *   [patience=S]        a peer may be late or silent for S seconds
 *   [helper=BITS/S]     it has no values and reduces with this bandwidth
 *   [up=BITS/S]         the bandwidth that it announces
 *   [state=BYTES]       it is a donor of a state of this size; with fetch=1 it is a newcomer
 *   [die=HOW role=ROLE phase=PHASE calm=CALM]
 *
 * It prints "listening", and "ready" when the roster shows POPULATION peers. SIGUSR2 starts a sweep
 * through all axes with the first values of its rank, SIGUSR1 one with its current values; each
 * prints a line and writes the vector to OUT. A newcomer starts to fetch at either signal. The
 * process runs until SIGTERM. Printed times are CLOCK_MONOTONIC, equal for all processes of a
 * machine.
 *
 * AVERAGER_LOG in the environment sets log levels like --log: "warn,avg:debug".
 *
 * With `die` it kills itself (kill), ends in order (end), stops itself (stop) or takes its network
 * device down (hole: only in a lab), as soon as it is in that role and phase, in a sweep after the
 * first CALM. Of the processes that share a folder for OUT only the first one does.
 */
#define _DEFAULT_SOURCE
#include "benchmarks/avg_node.h"
#include "averaging/state.h"
#include "core/mem.h"
#include "core/rng.h"
#include "net/net.h"

#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WATCH_US   100
#define STATE_STEP 1
#define LAB_DEVICE "net0" /* of each of netlab's hosts */

struct peer {
    struct hth_avg_node node;
    struct hth_avg_node_opts opts;
    struct hth_log log;
    struct hth_addr join;
    const char *out, *die, *role, *phase;
    float *drawn;  /* the values of its rank */
    uint32_t calm; /* number of sweeps without a death */
    uint64_t state_bytes;
    bool fetches;
    uint32_t done;
    int64_t began_us;
    struct hth_timer *watch;
    struct hth_blob *state;
    struct hth_state_donor *donor;
    struct hth_state_fetch *fetch;
    bool moving; /* a part of the state has arrived */
    /* counters when it began to watch itself */
    struct hth_match_stats match;
    struct hth_reducer_stats reducer;
};

static long long now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

/* ---- deaths ---------------------------------------------------------------------------------- */

static bool in_phase(const struct peer *p, const struct hth_match_stats *m)
{
    struct hth_reducer_stats r;

    hth_reducer_stats(p->node.avg.reducer, &r);
    if (strcmp(p->phase, "declared") == 0)
        return m->looks_now > 0;
    if (strcmp(p->phase, "joined") == 0)
        return m->followers_now > 0 || m->joins_out > p->match.joins_out;
    if (strcmp(p->phase, "begun") == 0)
        return r.rounds_now > 0;
    if (strcmp(p->phase, "reducing") == 0)
        return r.rounds_now > 0 && r.bytes_in > p->reducer.bytes_in;
    if (strcmp(p->phase, "returning") == 0)
        return r.rounds_now > 0 && r.parts_reduced > p->reducer.parts_reduced;
    return strcmp(p->phase, "giving") == 0;
}

static bool in_role(const struct peer *p, const struct hth_match_stats *m)
{
    bool leads = m->followers_now > 0 || m->led > p->match.led;

    if (strcmp(p->role, "leader") == 0)
        return leads;
    return strcmp(p->role, "member") != 0 || !leads;
}

static uint64_t given(const struct peer *p)
{
    struct hth_state_donor_stats s = {0};

    if (p->donor != NULL)
        hth_state_donor_stats(p->donor, &s);
    return s.bytes;
}

/* Whether this process is the first of its swarm to make the file. */
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

/* Takes the network device of this process's lab host down, so that packets vanish without an
 * error, or up again after a peer of an earlier swarm took it down. */
static bool set_line(bool up)
{
    struct ifreq r = {.ifr_name = LAB_DEVICE};
    int sock = getenv("NETLAB") != NULL ? socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    bool good = sock >= 0 && ioctl(sock, SIOCGIFFLAGS, &r) == 0;

    r.ifr_flags = (short)(up ? r.ifr_flags | IFF_UP : r.ifr_flags & ~IFF_UP);
    good = good && ioctl(sock, SIOCSIFFLAGS, &r) == 0;
    if (sock >= 0)
        close(sock);
    return good;
}

static void die(const struct peer *p)
{
    printf("dies now: %s, %s, after giving %llu bytes, at %lld us\n", p->role, p->phase,
           (unsigned long long)given(p), now_us());
    fflush(stdout);
    if (strcmp(p->die, "hole") == 0)
        HTH_ASSERT(set_line(false));
    else if (strcmp(p->die, "end") == 0)
        raise(SIGTERM);
    else
        raise(strcmp(p->die, "kill") == 0 ? SIGKILL : SIGSTOP);
}

static void on_watch(void *arg)
{
    struct peer *p = arg;
    struct hth_match_stats m;
    bool gives = strcmp(p->role, "donor") == 0;

    hth_match_stats(p->node.avg.match, &m);
    /* in the phase `declared` no peer leads */
    if (!in_phase(p, &m) || (gives && given(p) == 0) ||
        (strcmp(p->phase, "declared") != 0 && !in_role(p, &m)))
        hth_timer_set(p->node.env, p->watch, WATCH_US);
    else if (is_first(p))
        die(p);
}

static void watch(struct peer *p)
{
    if (p->die == NULL || p->watch != NULL)
        return;
    hth_match_stats(p->node.avg.match, &p->match);
    hth_reducer_stats(p->node.avg.reducer, &p->reducer);
    p->watch = hth_timer_new(p->node.env, on_watch, p);
    hth_timer_set(p->node.env, p->watch, 0);
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

static void on_ready(void *arg)
{
    (void)arg;
    printf("ready\n");
    fflush(stdout);
}

static void begin_fetch(struct peer *p);

static void on_go(void *arg)
{
    struct peer *p = arg;
    enum hth_err err;

    if (p->fetches) {
        begin_fetch(p);
        return;
    }
    p->began_us = hth_now_us(p->node.env);
    err = hth_avg_node_sweep(&p->node, p->opts.shape.dims);
    if (err != HTH_OK) {
        printf("offer failed: %s\n", hth_err_text(err));
        fflush(stdout);
    }
    if (p->done >= p->calm)
        watch(p);
}

/* The values were drawn at the start: if all processes of a machine drew them at once that would
 * take as long as a deadline, and a peer whose loop is blocked gives others more time. */
static void on_go_anew(void *arg)
{
    struct peer *p = arg;

    enum hth_err err = hth_avg_node_set(&p->node, p->drawn);

    if (err == HTH_OK)
        on_go(p);
    else
        printf("offer failed: %s\n", hth_err_text(err));
}

static void write_values(struct peer *p)
{
    char aside[512];
    FILE *f;

    snprintf(aside, sizeof(aside), "%s.new", p->out);
    f = fopen(aside, "wb");
    if (f == NULL || fwrite(p->node.values, sizeof(float), p->opts.count, f) != p->opts.count ||
        fclose(f) != 0 || rename(aside, p->out) != 0)
        printf("can't write %s\n", p->out);
}

static void on_sweep(void *arg, const struct hth_avg_result *r)
{
    struct peer *p = arg;
    long long at_us = now_us();

    p->done++;
    write_values(p);
    printf("sweep %u %s failed %u drops %u took_us %lld wait_us %lld at %lld us\n", p->done,
           hth_avg_reason_name(r->reason), p->node.failed, r->round.drops,
           (long long)(hth_now_us(p->node.env) - p->began_us), (long long)r->round.wait_us, at_us);
    fflush(stdout);
}

/* ---- a state --------------------------------------------------------------------------------- */

static uint64_t word(size_t i)
{
    return hth_mix64(0x73746174u + i);
}

static void on_want(void *arg)
{
    struct peer *p = arg;

    if (hth_state_donor_give(p->donor, STATE_STEP, "meta", 4, p->state) != HTH_OK)
        hth_state_donor_decline(p->donor);
}

static uint64_t state_step(void *arg)
{
    (void)arg;
    return STATE_STEP;
}

static enum hth_err open_donor(struct peer *p)
{
    const struct hth_state_donor_opts o = {
        .schema = HTH_AVG_NODE_SCHEMA, .want = on_want, .step = state_step, .arg = p};
    uint64_t *words;

    HTH_TRY(hth_env_blob_new(p->node.env, p->state_bytes, NULL, &p->state));
    words = (uint64_t *)(void *)p->state->data;
    for (size_t i = 0; i < p->state_bytes / sizeof(*words); i++)
        words[i] = word(i);
    hth_roster_set_progress(p->node.avg.roster, STATE_STEP, 0, 0);
    return hth_state_donor_new(p->node.env, p->node.rpc, &o, &p->donor);
}

static void on_fetched(void *arg, enum hth_err err, const struct hth_state_result *r)
{
    struct peer *p = arg;
    if (err != HTH_OK) { /* it is tried again */
        hth_state_fetch_free(p->fetch);
        p->fetch = NULL;
        hth_timer_set(p->node.env, p->watch, WATCH_US);
        return;
    }
    const uint64_t *words = (const uint64_t *)(const void *)r->values->data;
    bool good = r->step == STATE_STEP && r->values->size == p->state_bytes;

    for (size_t i = 0; good && i < p->state_bytes / sizeof(*words); i++)
        good = words[i] == word(i);
    printf("fetched %s bytes %llu took_us %lld at %lld us\n", good ? "well" : "DAMAGED",
           (unsigned long long)r->bytes, (long long)r->took_us, now_us());
    fflush(stdout);
    hth_state_fetch_free(p->fetch);
    p->fetch = NULL;
    p->fetches = false;
}

/* From all who say in the roster that they have it. */
static void try_fetch(struct peer *p)
{
    struct hth_rpc_target holders[HTH_STATE_DONORS_MAX];
    struct hth_state_fetch_opts o = {.schema = HTH_AVG_NODE_SCHEMA,
                                     .bytes = p->state_bytes,
                                     .step_min = STATE_STEP,
                                     .holders = holders,
                                     .patience_us = 20 * HTH_US_PER_S,
                                     .on_done = on_fetched,
                                     .arg = p};
    const struct hth_roster_peer *q;

    for (uint32_t i = 0; (q = hth_roster_at(p->node.avg.roster, i)) != NULL; i++)
        if (q->note.step >= STATE_STEP && o.holders_count < HTH_STATE_DONORS_MAX)
            holders[o.holders_count++] = (struct hth_rpc_target){q->id, q->note.addr};
    if (o.holders_count > 0 &&
        hth_state_fetch_new(p->node.env, p->node.rpc, &o, &p->fetch) != HTH_OK)
        printf("the fetch failed\n");
}

static void on_look(void *arg)
{
    struct peer *p = arg;
    struct hth_state_progress at;

    if (p->fetch == NULL && p->fetches)
        try_fetch(p);
    if (p->fetch == NULL) {
        hth_timer_set(p->node.env, p->watch, WATCH_US);
        return;
    }
    hth_state_fetch_progress(p->fetch, &at);
    if (at.parts_done > 0) {
        printf("moving: %u of %u parts have come\n", at.parts_done, at.parts);
        fflush(stdout);
    } else {
        hth_timer_set(p->node.env, p->watch, WATCH_US);
    }
}

static void begin_fetch(struct peer *p)
{
    p->watch = hth_timer_new(p->node.env, on_look, p);
    hth_timer_set(p->node.env, p->watch, 0);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void on_signal(void *arg)
{
    struct peer *p = arg;

    hth_net_stop(p->node.env);
}

static enum hth_err parse_one(struct peer *p, const char *key, size_t len, const char *value)
{
    struct hth_avg_node_opts *o = &p->opts;
    const char **const words[] = {&p->out, &p->die, &p->role, &p->phase};
    static const char *const names[] = {"out", "die", "role", "phase"};
    double number = strtod(value, NULL);

#define IS(name) (len == strlen(name) && strncmp(key, name, len) == 0)
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++)
        if (IS(names[i])) {
            *words[i] = value;
            return HTH_OK;
        }
    if (IS("listen"))
        return hth_addr_parse(value, &o->addr);
    if (IS("join")) {
        o->join = &p->join;
        o->join_count = 1;
        return hth_addr_parse(value, &p->join);
    }
    if (IS("shape"))
        return hth_avg_shape_parse(value, &o->shape);
    if (IS("rank"))
        o->rank = (uint32_t)number;
    else if (IS("calm"))
        p->calm = (uint32_t)number;
    else if (IS("population"))
        o->population = (uint32_t)number;
    else if (IS("count"))
        o->count = (size_t)number;
    else if (IS("format"))
        o->format = strcmp(value, "fp16") == 0 ? HTH_QUANT_F16 : HTH_QUANT_F32;
    else if (IS("patience"))
        o->silence_us = o->window_us = (int64_t)(number * HTH_US_PER_S);
    else if (IS("helper")) {
        o->mode = HTH_AVG_HELPER;
        o->bandwidth = number;
    } else if (IS("up"))
        o->bandwidth = number;
    else if (IS("state"))
        p->state_bytes = (uint64_t)number;
    else if (IS("fetch")) {
        p->fetches = true;
        o->flags = HTH_ROSTER_BOOTSTRAPPING;
    } else
        return HTH_E_USAGE;
    return HTH_OK;
#undef IS
}

static enum hth_err parse(int argc, char **argv, struct peer *p)
{
    p->opts = (struct hth_avg_node_opts){.network = "averagers",
                                         .threads = 1,
                                         .seed = 1,
                                         .window_us = 3 * HTH_US_PER_S,
                                         .on_ready = on_ready,
                                         .on_sweep = on_sweep,
                                         .arg = p};
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        if (equals == NULL)
            return HTH_E_USAGE;
        HTH_TRY(parse_one(p, argv[i], (size_t)(equals - argv[i]), equals + 1));
    }
    if (getenv("AVERAGER_LOG") != NULL) {
        char bad[64];

        hth_log_init(&p->log);
        HTH_TRY(hth_log_parse(&p->log, getenv("AVERAGER_LOG"), bad));
        p->opts.log = &p->log;
    }
    bool whole = p->out != NULL && p->opts.count > 0 && p->opts.population > 0;
    bool one_death =
        (p->die == NULL) == (p->role == NULL) && (p->die == NULL) == (p->phase == NULL);
    return whole && one_death ? HTH_OK : HTH_E_USAGE;
}

static enum hth_err run(struct peer *p)
{
    struct hth_env *env;

    HTH_TRY(hth_avg_node_open(&p->opts, &p->node));
    env = p->node.env;
    p->drawn = hth_new_array(float, p->opts.count);
    memcpy(p->drawn, p->node.values, p->opts.count * sizeof(*p->drawn));
    if (p->state_bytes > 0 && !p->fetches)
        HTH_TRY(open_donor(p));
    HTH_TRY(hth_net_on_signal(env, SIGTERM, on_signal, p));
    HTH_TRY(hth_net_on_signal(env, SIGUSR1, on_go, p));
    HTH_TRY(hth_net_on_signal(env, SIGUSR2, on_go_anew, p));
    printf("listening\n");
    fflush(stdout);
    return hth_avg_node_run(&p->node);
}

int main(int argc, char **argv)
{
    struct peer p = {.out = NULL};
    enum hth_err err = parse(argc, argv, &p);

    if (err == HTH_OK && getenv("NETLAB") != NULL && !set_line(true))
        err = HTH_E_IO;
    if (err == HTH_OK)
        err = run(&p);
    if (err != HTH_OK)
        fprintf(stderr, "averager_peer: %s\n", hth_err_text(err));
    if (p.node.env != NULL)
        hth_net_jobs_end(p.node.env);
    hth_state_fetch_free(p.fetch);
    hth_state_donor_free(p.donor);
    hth_blob_unref(p.state);
    if (p.watch != NULL)
        hth_timer_free(p.node.env, p.watch);
    hth_avg_node_close(&p.node);
    hth_free(p.drawn);
    return err == HTH_OK ? 0 : 1;
}
