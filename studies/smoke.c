/* SPDX-License-Identifier: Apache-2.0 */
/* smoke.c: hearth sim smoke: a swarm of N peers under faults. Only this file measures wall time. */
#include "cli/cli.h"
#include "scenarios/smoke.h"
#include "studies/questions.h"
#include "studies/tools.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

/* The largest resident size of this process so far. */
static uint64_t memory_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}

struct smoke {
    struct hth_smoke_opts opts;
    bool no_wall;
};

enum {
    KEY_PEERS = 0x5000,
    KEY_SEED,
    KEY_DURATION,
    KEY_PAYLOAD,
    KEY_REAL,
    KEY_CALM,
    KEY_NO_WALL,
    KEY_EXPERTS
};

static const struct argp_option smoke_options[] = {
    {"peers", KEY_PEERS, "N", 0, "Simulated peers (default 1000)", 0},
    {"seed", KEY_SEED, "N", 0, "Everything random follows from it (default 1)", 0},
    {"duration", KEY_DURATION, "TIME", 0, "Virtual time, at least 60s (default 60s)", 0},
    {"payload", KEY_PAYLOAD, "SIZE", 0, "Bytes of each request and reply (default 256KiB)", 0},
    {"real-payloads", KEY_REAL, NULL, 0, "Move and compare real bytes: about 100 times slower", 0},
    {"experts", KEY_EXPERTS, "N", 0, "Experts that each peer announces (default 2)", 0},
    {"calm", KEY_CALM, NULL, 0, "No faults", 0},
    {"no-wall", KEY_NO_WALL, NULL, 0, "Leave wall time out, so that two runs print the same", 0},
    {0},
};

static error_t parse_smoke(int key, char *arg, struct argp_state *state)
{
    struct smoke *s = state->input;
    uint64_t bytes;
    switch (key) {
    case KEY_PEERS:
        s->opts.peers = (uint32_t)hth_cli_number(state, "--peers", arg, 2, 100000);
        break;
    case KEY_SEED:
        s->opts.seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case KEY_DURATION:
        if (hth_cli_parse_time(arg, &s->opts.duration_us) != HTH_OK ||
            s->opts.duration_us < 60 * HTH_US_PER_S)
            argp_error(state, "--duration '%s': a time of at least 60s, such as 2m", arg);
        break;
    case KEY_PAYLOAD:
        if (hth_cli_parse_size(arg, &bytes) != HTH_OK || bytes < 1 || bytes > 64u << 20)
            argp_error(state, "--payload '%s': a size up to 64MiB, such as 256KiB", arg);
        s->opts.payload_bytes = (uint32_t)bytes;
        break;
    case KEY_REAL:
        s->opts.real_payloads = true;
        break;
    case KEY_EXPERTS:
        s->opts.experts =
            (uint32_t)hth_cli_number(state, "--experts", arg, 1, HTH_SMOKE_EXPERTS_MAX);
        break;
    case KEY_CALM:
        s->opts.calm = true;
        break;
    case KEY_NO_WALL:
        s->no_wall = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void show_second(void *arg, int64_t now_us, uint64_t events)
{
    (void)arg;
    fprintf(stderr, "\r%lld virtual seconds, %llu events ", (long long)(now_us / HTH_US_PER_S),
            (unsigned long long)events);
}

int hth_sim_smoke_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = smoke_options,
        .parser = parse_smoke,
        .doc = "Does a swarm of N peers survive? Peers announce, look up and call each other while "
               "nodes crash and the network is partitioned; then faults stop and all must recover.",
    };
    struct smoke s = {.opts = HTH_SMOKE_OPTS_INIT};
    struct hth_smoke_report report;
    char line[HTH_SMOKE_LINE_MAX];
    bool tty = isatty(STDERR_FILENO) == 1;
    if (argp_parse(&argp, argc, argv, 0, NULL, &s) != 0)
        return HTH_EXIT_USAGE;
    s.opts.progress = tty ? show_second : NULL;
    int64_t begin = hth_sim_clock_us();
    enum hth_err err = hth_smoke_run(&s.opts, &report);
    int64_t wall_us = hth_sim_clock_us() - begin;
    if (tty)
        fputs("\r\033[K", stderr);
    if (err != HTH_OK) {
        hth_cli_say_error("sim smoke: %s", hth_err_text(err));
        return hth_exit_of(err);
    }
    printf("%llu calls: %llu answered, %llu failed, %llu vanished with their caller; %llu crashes, "
           "%llu partitions\n",
           (unsigned long long)report.calls, (unsigned long long)report.calls_ok,
           (unsigned long long)report.calls_failed, (unsigned long long)report.calls_vanished,
           (unsigned long long)report.crashes, (unsigned long long)report.partitions);
    puts(hth_smoke_line(&report, s.no_wall ? 0 : wall_us, s.no_wall ? 0 : memory_bytes(), line));
    return report.pass ? HTH_EXIT_OK : HTH_EXIT_FAILURE;
}
