/* SPDX-License-Identifier: Apache-2.0 */
/*
 * monitor.c: hearth bench monitor: what a monitor of a large run costs (memory, bytes of its page),
 * how fast a thousand readers are served while slow ones hold on, what happens to ten thousand
 * connections, and what a monitor with 20 browsers costs a run's trainer, in turns.
 */
#define _GNU_SOURCE
#include "benchmarks/monitor.h"

#include "benchmarks/bench.h"
#include "benchmarks/child.h"
#include "cli/json.h"
#include "cli/shipped.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define READERS  1000
#define SLOW     100
#define READ_S   10
#define CROWD    10000
#define BROWSERS 20
#define TURNS    4 /* with and without each, unless --repeats says otherwise */
#define SETTLE_S 6
#define PROGRAM  "/proc/self/exe"

struct monitor_bench {
    struct hth_bench bench;
    uint32_t seconds; /* of each turn of the run; 0: no run */
    char dir[64];
};

enum { KEY_SECONDS = 0x5900 };

static const struct argp_option options[] = {
    {"seconds", KEY_SECONDS, "N", 0,
     "Seconds of each turn of the run with and without a monitor; 0: leave it out (default 20)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct monitor_bench *m = state->input;
    if (key != KEY_SECONDS)
        return ARGP_ERR_UNKNOWN;
    m->seconds = (uint32_t)hth_cli_number(state, "--seconds", arg, 0, 3600);
    return 0;
}

static const struct argp argp = {.options = options, .parser = parse};

/* ---- a made-up run -------------------------------------------------------------------------- */

static double rss_mib(pid_t pid)
{
    char path[64], line[128];
    long kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "VmHWM: %ld kB", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return (double)kib / 1024;
}

static double page_kb(uint16_t port)
{
    static const char *const paths[] = {"/", "/page.js", "/page.css", "/icon.svg", "/run.json"};
    double sum = 0;
    for (size_t i = 0; i < HTH_ARRAY_LEN(paths); i++) {
        size_t bytes = hth_bench_get(port, paths[i]);
        if (bytes == 0)
            return 0;
        sum += (double)bytes / 1e3;
    }
    return sum;
}

/* The page is there, once the first picture is made. */
static bool wait_for_page(uint16_t port, double *kb)
{
    for (int i = 0; i < 100; i++) {
        *kb = page_kb(port);
        if (*kb > 0)
            return true;
        usleep(100000);
    }
    return false;
}

static enum hth_err measure_made(struct monitor_bench *m, json_t *row)
{
    const struct hth_bench_readers how = {READERS, SLOW, READ_S};
    struct hth_bench_child child;
    struct hth_bench_read read;
    char line[32] = "", log[96];
    uint32_t opened = 0, stay = 0;
    double kb = 0;
    snprintf(log, sizeof(log), "%s/made.log", m->dir);
    const char *argv[] = {PROGRAM, "bench", "monitor", "--made", m->dir, NULL};
    bool good = hth_bench_child_start(&child, argv, log) &&
                hth_bench_child_hear(&child, line, sizeof(line), 60 * HTH_US_PER_S);
    uint16_t port = (uint16_t)strtoul(line, NULL, 10);
    good = good && wait_for_page(port, &kb) && hth_bench_read(port, &how, &read);
    if (good) {
        usleep(200000);
        stay = hth_bench_crowd(port, CROWD, &opened);
        good = opened == CROWD && stay <= HTH_HTTP_CONNS_MAX && wait_for_page(port, &kb);
    }
    double rss = good ? rss_mib(child.pid) : 0;
    hth_bench_child_end(&child);
    if (!good) {
        hth_cli_say_error(
            "a made-up run was not served: %u of %u sockets opened, %u stayed; see %s", opened,
            CROWD, stay, log);
        return HTH_E_IO;
    }
    hth_json_count(row, "experts", HTH_BENCH_MADE_EXPERTS);
    hth_json_count(row, "peers", HTH_BENCH_MADE_PEERS);
    hth_json_real(row, "rss_mib", hth_bench_round(rss));
    hth_json_real(row, "page_gz_kb", hth_bench_round(kb));
    hth_json_count(row, "answers", read.answers);
    hth_json_count(row, "failed", read.failed);
    hth_json_real(row, "p50_ms", hth_bench_round(read.p50_ms));
    hth_json_real(row, "p99_ms", hth_bench_round(read.p99_ms));
    hth_json_count(row, "refused", opened - stay);
    return HTH_OK;
}

/* ---- a run ---------------------------------------------------------------------------------- */

#define NODE "127.83.0.1:4710"

struct run {
    struct monitor_bench *m;
    char *file;
    struct hth_bench_child node, host, trainer, monitor;
};

static bool start(struct run *r, struct hth_bench_child *c, const char *name,
                  const char *const *more)
{
    const char *argv[24] = {PROGRAM};
    char log[112], dir[112];
    size_t n = 1;
    snprintf(log, sizeof(log), "%s/%s.log", r->m->dir, name);
    snprintf(dir, sizeof(dir), "%s/%s", r->m->dir, name);
    while (*more != NULL)
        argv[n++] = *more++;
    argv[n++] = "--dir";
    argv[n++] = dir;
    return hth_bench_child_start(c, argv, log);
}

/* The samples in the last whole line of progress in the trainer's metrics; -1: there is none. Lines
 * of other kinds count other samples. */
static double samples_of(const struct run *r)
{
    char path[112], tail[4096];
    snprintf(path, sizeof(path), "%s/metrics.jsonl", r->m->dir);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return -1;
    fseek(file, 0, SEEK_END);
    long size = ftell(file),
         from = size > (long)sizeof(tail) - 1 ? size - (long)sizeof(tail) + 1 : 0;
    fseek(file, from, SEEK_SET);
    size_t len = fread(tail, 1, sizeof(tail) - 1, file);
    fclose(file);
    while (len > 0 && tail[len - 1] != '\n')
        len--;
    tail[len] = '\0';
    char *at = NULL, *next = tail;
    while ((next = strstr(next, "\"kind\":\"progress\"")) != NULL)
        at = next++;
    at = at != NULL ? strstr(at, "\"samples\":") : NULL;
    return at != NULL ? strtod(at + strlen("\"samples\":"), NULL) : -1;
}

static bool start_run(struct run *r)
{
    char metrics[112];
    snprintf(metrics, sizeof(metrics), "%s/metrics.jsonl", r->m->dir);
    const char *node[] = {"node", "--network", "fashion", "--listen", NODE, NULL};
    const char *host[] = {"serve", "--run",    r->file,           "--join",    NODE, "--experts",
                          "32",    "--listen", "127.83.0.1:4711", "--threads", "1",  NULL};
    const char *trainer[] = {"train",    "--run",           r->file,   "--join",    NODE,
                             "--listen", "127.83.0.1:4712", "--steps", "100000000", "--threads",
                             "1",        "--metrics",       metrics,   NULL};
    if (!start(r, &r->node, "node", node))
        return false;
    usleep(500000);
    return start(r, &r->host, "host", host) && start(r, &r->trainer, "trainer", trainer);
}

/* Samples a second of one turn. */
static double turn(struct run *r, bool with)
{
    const char *monitor[] = {"monitor",  "--join",          NODE, "--listen", "127.83.0.1:4713",
                             "--public", "127.0.0.1:47183", NULL};
    struct hth_bench_browsers *browsers = NULL;
    double kb;
    if (with && start(r, &r->monitor, "monitor", monitor) && wait_for_page(47183, &kb))
        browsers = hth_bench_browsers_new(47183, BROWSERS);
    sleep(SETTLE_S);
    double before = samples_of(r);
    int64_t began_us = hth_bench_now_us(NULL);
    sleep(r->m->seconds);
    double rate = (samples_of(r) - before) * 1e6 / (double)(hth_bench_now_us(NULL) - began_us);
    bool good =
        before > 0 && (!with || (browsers != NULL && hth_bench_get(47183, "/now.json") > 0));
    hth_bench_browsers_free(browsers);
    if (with)
        hth_bench_child_end(&r->monitor);
    return good ? rate : 0;
}

static enum hth_err measure_run(struct monitor_bench *m, json_t *row)
{
    struct run r = {.m = m, .file = hth_shipped_find("runs/fashion.yaml")};
    struct hth_bench_samples ratios;
    bool good = start_run(&r);
    for (int i = 0; good && i < 60 && samples_of(&r) <= 0; i++)
        sleep(1);
    hth_bench_begin(&ratios);
    m->bench.budget_us = INT64_MAX / 4;
    while (good && hth_bench_more(&m->bench, &ratios, TURNS)) {
        bool first = ratios.count % 2 == 1; /* a drift of the machine's speed cancels */
        double one = turn(&r, first), other = turn(&r, !first);
        double with = first ? one : other, without = first ? other : one;
        good = without > 0 && with > 0;
        if (good)
            hth_bench_add(&ratios, with / without);
    }
    hth_bench_child_end(&r.trainer);
    hth_bench_child_end(&r.host);
    hth_bench_child_end(&r.node);
    hth_free(r.file);
    if (!good) {
        hth_cli_say_error("the run did not train or the monitor did not answer: see the logs in %s",
                          m->dir);
        return HTH_E_IO;
    }
    hth_json_real(row, "run_ratio", hth_bench_round(hth_bench_median(&ratios)));
    hth_json_real(row, "run_spread", hth_bench_spread(&ratios));
    return HTH_OK;
}

/* ---- all ------------------------------------------------------------------------------------ */

static void raise_open_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int hth_bench_monitor_main(int argc, char **argv)
{
    struct monitor_bench m = {.seconds = 20};
    if (argc == 3 && strcmp(argv[1], "--made") == 0)
        return hth_bench_monitor_made(argv[2]);
    int code =
        hth_bench_open(&m.bench, argc, argv,
                       "Measure what a run's page costs and how it bears readers.", &argp, &m);
    if (code != HTH_EXIT_OK)
        return code;
    raise_open_files();
    snprintf(m.dir, sizeof(m.dir), "/tmp/hearth-bench-monitor-XXXXXX");
    json_t *row = json_object();
    enum hth_err err = mkdtemp(m.dir) != NULL ? measure_made(&m, row) : HTH_E_IO;
    if (err == HTH_OK && m.seconds > 0)
        err = measure_run(&m, row);
    if (err == HTH_OK)
        hth_bench_row_take(&m.bench, row);
    else
        json_decref(row);
    return hth_bench_finish(&m.bench, "a monitor", err);
}
