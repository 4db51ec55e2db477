/* SPDX-License-Identifier: Apache-2.0 */
/* latency.c: hearth sim latency: does the trainer hide the delay of its calls? */
#include "cli/cli.h"
#include "cli/json.h"
#include "scenarios/latency.h"
#include "studies/questions.h"

#include <stdio.h>
#include <stdlib.h>

enum { KEY_SEED = 0x5000, KEY_DELAYS, KEY_FLIGHTS, KEY_UPDATES, KEY_JSON, KEY_HOSTS, KEY_LAYERS };

#define DELAYS_MAX 16

struct latency {
    struct hth_latency_opts opts;
    double delays_ms[DELAYS_MAX];
    size_t delay_count;
    bool json;
};

static const struct argp_option latency_options[] = {
    {"seed", KEY_SEED, "N", 0, "Everything random follows from it (default 1)", 0},
    {"delays", KEY_DELAYS, "MS,MS,...", 0, "Mean delays of a call, in ms (default 0,50,100,200)",
     0},
    {"flights", KEY_FLIGHTS, "N", 0, "Micro-batches in the air (default 320)", 0},
    {"layers", KEY_LAYERS, "N", 0, "Mixture layers (default 4)", 0},
    {"hosts", KEY_HOSTS, "N", 0, "Expert hosts (default 8)", 0},
    {"updates", KEY_UPDATES, "N", 0, "Updates to measure (default 600)", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object per row", 0},
    {0},
};

static void parse_delays(struct argp_state *state, char *text, struct latency *l)
{
    l->delay_count = 0;
    if (text[0] == '\0')
        argp_error(state, "--delays '': expected numbers, such as 0,50,100");
    for (char *word = text; *word != '\0';) {
        char *end;
        double ms = strtod(word, &end);
        if (end == word || !(ms >= 0 && ms <= 10000) || (*end != ',' && *end != '\0') ||
            l->delay_count == DELAYS_MAX)
            argp_error(state,
                       "--delays '%s': expected at most %d numbers from 0 to 10000, such as "
                       "0,50,100",
                       text, DELAYS_MAX);
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

/* Print one row per delay. The ratios are to the first row of the block. */
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

int hth_sim_latency_verb(int argc, char **argv)
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
