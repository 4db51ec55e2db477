/* SPDX-License-Identifier: Apache-2.0 */
/* sim.c: hearth sim: a table of simulated studies; this file only measures wall time and prints. */
#include "app/cli.h"
#include "app/json.h"
#include "app/sim.h"

#include "core/mem.h"
#include "sim/scenario_latency.h"
#include "sim/smoke.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The largest resident size this process ever had. */
static uint64_t memory_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}

/* ---- smoke --------------------------------------------------------------------------------- */

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
enum { KEY_DELAYS = 0x5100, KEY_FLIGHTS, KEY_UPDATES, KEY_JSON, KEY_HOSTS, KEY_LAYERS };

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

static int run_smoke(int argc, char **argv)
{
    static const struct argp argp = {
        .options = smoke_options,
        .parser = parse_smoke,
        .doc = "Does a swarm of N peers live? Peers announce, look up and call each other while "
               "nodes crash and the network is cut; then faults stop and all must recover.",
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

/* ---- latency ------------------------------------------------------------------------------- */

#define DELAYS_MAX 16

struct latency {
    struct hth_latency_opts opts;
    double delays_ms[DELAYS_MAX];
    size_t delay_count;
    bool json;
};

static const struct argp_option latency_options[] = {
    {"seed", KEY_SEED, "N", 0, "Everything random follows from it (default 1)", 0},
    {"delays", KEY_DELAYS, "MS,MS,...", 0, "Mean delays of a call (default 0,50,100,200)", 0},
    {"flights", KEY_FLIGHTS, "N", 0, "Micro-batches in the air (default 320)", 0},
    {"layers", KEY_LAYERS, "N", 0, "Mixture layers (default 4)", 0},
    {"hosts", KEY_HOSTS, "N", 0, "Expert hosts (default 8)", 0},
    {"updates", KEY_UPDATES, "N", 0, "Updates that are measured (default 600)", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object per row", 0},
    {0},
};

static void parse_delays(struct argp_state *state, char *text, struct latency *l)
{
    l->delay_count = 0;
    for (char *word = text; *word != '\0';) {
        char *end;
        double ms = strtod(word, &end);
        if (end == word || !(ms >= 0 && ms <= 10000) || (*end != ',' && *end != '\0') ||
            l->delay_count == DELAYS_MAX)
            argp_error(state, "--delays '%s': at most %d numbers from 0 to 10000", text,
                       DELAYS_MAX);
        l->delays_ms[l->delay_count++] = ms;
        word = *end == ',' ? end + 1 : end;
    }
}

static error_t parse_latency(int key, char *arg, struct argp_state *state)
{
    struct latency *l = state->input;
    switch (key) {
    case KEY_SEED:
        l->opts.seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case KEY_DELAYS:
        parse_delays(state, arg, l);
        break;
    case KEY_FLIGHTS:
        l->opts.flights = (uint32_t)hth_cli_number(state, "--flights", arg, 1, 1024);
        break;
    case KEY_LAYERS:
        l->opts.layers = (uint32_t)hth_cli_number(state, "--layers", arg, 1, 64);
        break;
    case KEY_HOSTS:
        l->opts.hosts = (uint32_t)hth_cli_number(state, "--hosts", arg, 1, 1000);
        break;
    case KEY_UPDATES:
        l->opts.updates = (uint32_t)hth_cli_number(state, "--updates", arg, 1, 1000000);
        break;
    case KEY_JSON:
        l->json = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void print_latency(const struct latency *l, const struct hth_latency_row *row, double base)
{
    double ratio = base > 0 ? row->samples_per_s / base : 0;
    if (l->json) {
        char hash[17];
        json_t *o = json_object();
        snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)row->trace);
        hth_json_real(o, "delay_ms", row->delay_ms);
        hth_json_count(o, "flights", row->flights);
        hth_json_real(o, "samples_per_s", row->samples_per_s);
        hth_json_real(o, "ratio", ratio);
        hth_json_real(o, "staleness_mean", row->staleness_mean);
        hth_json_real(o, "answers_missing", row->answers_missing);
        hth_json_real(o, "virtual_s", row->virtual_s);
        hth_json_text(o, "hash", hash);
        hth_json_print_take(stdout, o);
        putchar('\n');
    } else {
        printf("%8.0f ms %8u %14.1f %9.2f %12.1f %12.4f\n", row->delay_ms, row->flights,
               row->samples_per_s, ratio, row->staleness_mean, row->answers_missing);
    }
    fflush(stdout);
}

/* One row per delay with all flights, then one per delay with a single flight. The ratios are to
 * the first row of each block. */
static int latency_block(const struct latency *l, uint32_t flights)
{
    double base = 0;
    for (size_t i = 0; i < l->delay_count; i++) {
        struct hth_latency_opts opts = l->opts;
        struct hth_latency_row row;
        opts.delay_ms = l->delays_ms[i];
        opts.flights = flights;
        enum hth_err err = hth_sim_latency(&opts, &row);
        if (err != HTH_OK) {
            hth_cli_say_error("sim latency: %s", hth_err_text(err));
            return hth_exit_of(err);
        }
        if (i == 0)
            base = row.samples_per_s;
        print_latency(l, &row, base);
    }
    return HTH_EXIT_OK;
}

static int run_latency(int argc, char **argv)
{
    static const struct argp argp = {
        .options = latency_options,
        .parser = parse_latency,
        .doc = "Does the trainer hide latency? Samples a second, in virtual time, of a mixture "
               "model whose every call is delayed by an exponential time.",
    };
    struct latency l = {
        .opts = HTH_LATENCY_OPTS_INIT, .delays_ms = {0, 50, 100, 200}, .delay_count = 4};
    if (argp_parse(&argp, argc, argv, 0, NULL, &l) != 0)
        return HTH_EXIT_USAGE;
    if (!l.json)
        printf("%11s %8s %14s %9s %12s %12s\n", "mean delay", "flights", "samples/s", "to first",
               "staleness", "lost answers");
    int code = latency_block(&l, l.opts.flights);
    return code == HTH_EXIT_OK ? latency_block(&l, 1) : code;
}

/* ---- the verb ------------------------------------------------------------------------------ */

struct study {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
};

static const struct study studies[] = {
    {"run", hth_sim_run_verb, "a scenario file: faults drawn from a seed, then recovery"},
    {"hunt", hth_sim_hunt_verb, "seed after seed of a scenario, on all cores"},
    {"vary", hth_sim_vary_verb, "scenarios as a study: a number of theirs takes several values"},
    {"smoke", run_smoke, "N peers announce, look up and call each other under faults"},
    {"latency", run_latency, "throughput of a trainer against the delay of its calls"},
    {"throughput", hth_sim_throughput_verb, "the same against flights, blocks, trainers, failures"},
    {"convergence", hth_sim_convergence_verb, "what delays and failures do to learning"},
    {"storm", hth_sim_storm_verb,
     "the same with hosts replaced, calls lost and hosts slow at once"},
    {"churn", hth_sim_churn_verb, "what peers notice of deaths and births, and when"},
    {"dht", hth_sim_dht_verb, "how long a new trainer takes to select experts"},
    {"fidelity", hth_sim_fidelity_verb, "the same swarm with processes and simulated"},
    {"averaging", hth_sim_averaging_verb, "how fast peers agree, by method and failure rate"},
    {"mixing", hth_sim_mixing_verb, "by how much a round of random groups shrinks the variance"},
    {"shares", hth_sim_shares_verb, "who reduces how much when links differ"},
    {"links", hth_sim_links_verb, "how long an average takes when links differ"},
    {"collab", hth_sim_collab_verb, "trainers of one model come and go"},
};

static void print_studies(FILE *to)
{
    fputs("usage: hearth sim STUDY [options]      hearth sim STUDY --help\n\n", to);
    for (size_t i = 0; i < HTH_ARRAY_LEN(studies); i++)
        fprintf(to, "  %-11s %s\n", studies[i].name, studies[i].what);
}

int hth_verb_sim(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_studies(stdout);
        return argc < 2 ? HTH_EXIT_USAGE : HTH_EXIT_OK;
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(studies); i++) {
        if (strcmp(studies[i].name, argv[1]) == 0) {
            static char program[64];
            hth_sim_settle_memory();
            hth_mem_hoard(true);
            snprintf(program, sizeof(program), "%s %s", argv[0], argv[1]);
            argv[1] = program;
            return studies[i].run(argc - 1, argv + 1);
        }
    }
    hth_cli_say_error("no study '%s'", argv[1]);
    print_studies(stderr);
    return HTH_EXIT_USAGE;
}
