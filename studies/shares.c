/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shares.c: hearth sim shares: the share of a vector that each peer reduces; and hearth sim links:
 * the time that the production reduction takes with these shares.
 */
#include "averaging/shares.h"
#include "cli/cli.h"
#include "scenarios/links.h"
#include "studies/questions.h"
#include "studies/tools.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FLOAT_MBIT 32e-6

enum { KEY_BANDWIDTH = 0x5500, KEY_ELEMENTS, KEY_MINIMUM, KEY_LATENCY, KEY_SEED, KEY_JSON };

/* ---- shares -------------------------------------------------------------------------------- */

struct shares {
    double bandwidth[HTH_AVG_MEMBERS_MAX];
    uint32_t count;
    uint64_t elements, minimum;
    bool json;
};

static const struct argp_option shares_options[] = {
    {"bandwidth", KEY_BANDWIDTH, "B,B,...", 0,
     "Mbit/s of each peer, 0 for a client; 200x7 is seven of 200", 0},
    {"elements", KEY_ELEMENTS, "N", 0, "Floats of the vector (default 17700000)", 0},
    {"minimum", KEY_MINIMUM, "N", 0, "A peer whose share has fewer floats reduces none (default 0)",
     0},
    {"json", KEY_JSON, NULL, 0, "One JSON object", 0},
    {0},
};

/* "1000,200x7" */
static void parse_bandwidth(struct argp_state *state, const char *text, struct shares *s)
{
    s->count = 0;
    for (const char *word = text;;) {
        char *end = (char *)(uintptr_t)word + 1;
        /* strtod would read 0x7 as a hexadecimal number. */
        double value = word[0] == '0' && word[1] == 'x' ? 0 : strtod(word, &end);
        unsigned long repeat = 1;
        bool bad = end == word;
        if (!bad && *end == 'x') {
            const char *number = end + 1;
            repeat = strtoul(number, &end, 10);
            bad = end == number || *number == '-' || repeat == 0;
        }
        if (bad || (*end != ',' && *end != '\0'))
            argp_error(state, "--bandwidth '%s': numbers such as 1000,200,200 or 1000,200x7", text);
        if (repeat > HTH_AVG_MEMBERS_MAX - s->count)
            argp_error(state, "--bandwidth: at most %d peers", HTH_AVG_MEMBERS_MAX);
        if (hth_avg_bandwidth_bad(&value, 1) == 0)
            argp_error(state, "--bandwidth: each must be 0 or between %g and %g",
                       HTH_AVG_BANDWIDTH_MIN, HTH_AVG_BANDWIDTH_MAX);
        for (; repeat > 0; repeat--)
            s->bandwidth[s->count++] = value;
        if (*end == '\0')
            return;
        word = end + 1;
    }
}

static bool can_reduce(const struct shares *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->bandwidth[i] > 0)
            return true;
    return false;
}

static error_t parse_shares(int key, char *arg, struct argp_state *state)
{
    struct shares *s = state->input;
    switch (key) {
    case KEY_BANDWIDTH:
        parse_bandwidth(state, arg, s);
        break;
    case KEY_ELEMENTS:
        s->elements = hth_cli_number(state, "--elements", arg, 1, HTH_PARAMS_FLOATS_MAX);
        break;
    case KEY_MINIMUM:
        s->minimum = hth_cli_number(state, "--minimum", arg, 0, HTH_PARAMS_FLOATS_MAX);
        break;
    case KEY_JSON:
        s->json = true;
        break;
    case ARGP_KEY_END:
        if (s->count == 0)
            argp_error(state, "which bandwidths? for example --bandwidth 1000,200x7");
        if (s->count > 0 && !can_reduce(s))
            argp_error(state, "--bandwidth: all are 0 (clients): at least one peer must reduce");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void print_shares(const struct shares *s, const double *w, const uint64_t *counts,
                         const double times[HTH_LINKS_WAYS])
{
    double xi = times[HTH_LINKS_ADAPTIVE] / ((double)s->elements * FLOAT_MBIT);
    if (!s->json) {
        printf("%10s %12s %14s\n", "Mbit/s", "share", "floats");
        for (uint32_t i = 0; i < s->count; i++)
            printf("%10g %12.6f %14llu\n", s->bandwidth[i], w[i], (unsigned long long)counts[i]);
        printf("xi %.6f; a vector of %llu floats takes %.3f s; with equal shares %.3f s, over one "
               "server %.3f s\n",
               xi, (unsigned long long)s->elements, times[HTH_LINKS_ADAPTIVE],
               times[HTH_LINKS_ALLREDUCE], times[HTH_LINKS_SERVER]);
        return;
    }
    putchar('{');
    hth_sim_json_list(stdout, "bandwidth", s->bandwidth, s->count);
    putchar(',');
    hth_sim_json_list(stdout, "shares", w, s->count);
    putchar(',');
    hth_sim_json_number(stdout, "xi", xi);
    printf(",\"elements\":%llu,\"counts\":[", (unsigned long long)s->elements);
    for (uint32_t i = 0; i < s->count; i++)
        printf("%s%llu", i > 0 ? "," : "", (unsigned long long)counts[i]);
    printf("],");
    hth_sim_json_number(stdout, "allreduce_s", times[HTH_LINKS_ALLREDUCE]);
    putchar(',');
    hth_sim_json_number(stdout, "server_s", times[HTH_LINKS_SERVER]);
    putchar(',');
    hth_sim_json_number(stdout, "adaptive_s", times[HTH_LINKS_ADAPTIVE]);
    puts("}");
}

/* Round shares to whole floats, with none for a peer below the minimum. The slowest peer with these
 * shares decides the time (averaging/shares.h). */
static void round_shares(const struct shares *s, const uint64_t *counts, double *w,
                         double times[HTH_LINKS_WAYS])
{
    double xi = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        w[i] = (double)counts[i] / (double)s->elements;
        if (s->bandwidth[i] > 0 && s->count > 1)
            xi = fmax(xi, (1 + (s->count - 2.0) * w[i]) / s->bandwidth[i]);
    }
    times[HTH_LINKS_ADAPTIVE] = xi * (double)s->elements * FLOAT_MBIT;
}

int hth_sim_shares_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = shares_options,
        .parser = parse_shares,
        .doc =
            "The share of a vector that each peer reduces when their links differ, and the time of "
            "an average with these shares, with equal shares, and over one server.",
    };
    struct shares s = {.elements = 17700000};
    double w[HTH_AVG_MEMBERS_MAX];
    uint64_t counts[HTH_AVG_MEMBERS_MAX];
    double times[HTH_LINKS_WAYS];
    if (argp_parse(&argp, argc, argv, 0, NULL, &s) != 0)
        return HTH_EXIT_USAGE;
    /* Both sides are in megabits, so the times are in seconds. */
    enum hth_err err = hth_avg_shares(s.bandwidth, s.count, w);
    if (err == HTH_OK)
        err = hth_avg_split(w, s.count, s.elements, s.minimum, counts);
    if (err == HTH_OK)
        err = hth_links_times(s.bandwidth, s.count, (double)s.elements * FLOAT_MBIT, times);
    if (err == HTH_OK && s.minimum > 0)
        round_shares(&s, counts, w, times);
    if (err == HTH_OK)
        print_shares(&s, w, counts, times);
    else
        hth_cli_say_error("sim shares: %s", hth_err_text(err));
    return hth_exit_of(err);
}

/* ---- links --------------------------------------------------------------------------------- */

struct shares_links {
    struct shares shares;
    uint64_t seed;
    int64_t latency_us;
};

static const struct argp_option links_options[] = {
    {"bandwidth", KEY_BANDWIDTH, "B,B,...", 0,
     "Mbit/s of each peer, up and down (default 1000x8,200x16)", 0},
    {"elements", KEY_ELEMENTS, "N", 0, "Floats of the vector (default 17700000)", 0},
    {"latency", KEY_LATENCY, "TIME", 0, "One-way delay between any two peers (default 1ms)", 0},
    {"seed", KEY_SEED, "N", 0, "Everything random follows from it (default 1)", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object", 0},
    {0},
};

static error_t parse_links(int key, char *arg, struct argp_state *state)
{
    struct shares_links *l = state->input;
    switch (key) {
    case KEY_LATENCY:
        if (hth_cli_parse_time(arg, &l->latency_us) != HTH_OK || l->latency_us > 10 * HTH_US_PER_S)
            argp_error(state, "--latency '%s': a time up to 10s, such as 25ms", arg);
        break;
    case KEY_SEED:
        l->seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case KEY_MINIMUM:
        return ARGP_ERR_UNKNOWN;
    case KEY_BANDWIDTH:
        parse_bandwidth(state, arg, &l->shares);
        for (uint32_t i = 0; i < l->shares.count; i++)
            if (l->shares.bandwidth[i] == 0)
                argp_error(state, "--bandwidth: each peer needs a rate above 0 here");
        break;
    case ARGP_KEY_END:
        if (l->shares.count == 1)
            argp_error(state, "--bandwidth: at least two peers");
        break;
    default:
        return parse_shares(key, arg, state);
    }
    return 0;
}

static void print_links(const struct shares_links *l, const struct hth_links_row *rows)
{
    double ratio = rows[HTH_LINKS_ALLREDUCE].steady_s / rows[HTH_LINKS_ADAPTIVE].steady_s;
    if (!l->shares.json) {
        printf("%-10s %12s %12s %12s %12s\n", "", "predicted s", "alone s", "steady s", "MB moved");
        for (int w = 0; w < HTH_LINKS_WAYS; w++)
            printf("%-10s %12.3f %12.3f %12.3f %12.1f\n", hth_links_way_name((enum hth_links_way)w),
                   rows[w].predicted_s, rows[w].simulated_s, rows[w].steady_s,
                   (double)rows[w].bytes / 1e6);
        printf("adaptive shares are %.3f times as fast as equal ones\n", ratio);
        return;
    }
    putchar('{');
    hth_sim_json_list(stdout, "bandwidth", l->shares.bandwidth, l->shares.count);
    printf(",\"elements\":%llu,\"latency_us\":%lld,\"seed\":%llu",
           (unsigned long long)l->shares.elements, (long long)l->latency_us,
           (unsigned long long)l->seed);
    for (int w = 0; w < HTH_LINKS_WAYS; w++) {
        printf(",\"%s\":{", hth_links_way_name((enum hth_links_way)w));
        hth_sim_json_number(stdout, "predicted_s", rows[w].predicted_s);
        putchar(',');
        hth_sim_json_number(stdout, "simulated_s", rows[w].simulated_s);
        putchar(',');
        hth_sim_json_number(stdout, "steady_s", rows[w].steady_s);
        putchar(',');
        hth_sim_json_number(stdout, "fraction", rows[w].fraction);
        printf(",\"bytes\":%llu,\"hash\":\"%016llx\"}", (unsigned long long)rows[w].bytes,
               (unsigned long long)rows[w].trace);
    }
    putchar(',');
    hth_sim_json_number(stdout, "ratio", ratio);
    puts("}");
}

int hth_sim_links_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = links_options,
        .parser = parse_links,
        .doc = "How long does a group need for an average? The production reduction in a simulated "
               "world where only links count: with equal shares, over one server, and with shares "
               "by bandwidth, beside the formulas.",
    };
    struct shares_links l = {.shares = {.elements = 17700000}, .seed = 1, .latency_us = 1000};
    struct hth_links_row rows[HTH_LINKS_WAYS];
    double bits_per_s[HTH_AVG_MEMBERS_MAX];
    for (; l.shares.count < 24; l.shares.count++)
        l.shares.bandwidth[l.shares.count] = l.shares.count < 8 ? 1000 : 200;
    if (argp_parse(&argp, argc, argv, 0, NULL, &l) != 0)
        return HTH_EXIT_USAGE;
    for (uint32_t i = 0; i < l.shares.count; i++)
        bits_per_s[i] = l.shares.bandwidth[i] * 1e6;
    struct hth_links_opts opts = {.seed = l.seed,
                                  .bandwidth = bits_per_s,
                                  .peers = l.shares.count,
                                  .count = l.shares.elements,
                                  .latency_us = l.latency_us};
    for (int w = 0; w < HTH_LINKS_WAYS; w++) {
        enum hth_err err = hth_sim_links(&opts, (enum hth_links_way)w, &rows[w]);
        if (err != HTH_OK) {
            hth_cli_say_error("sim links, %s: %s", hth_links_way_name((enum hth_links_way)w),
                              hth_err_text(err));
            return hth_exit_of(err);
        }
        if (rows[w].fraction < 1)
            hth_cli_say_error(
                "sim links, %s: some members were abandoned; only %.3g of the weight was "
                "averaged",
                hth_links_way_name((enum hth_links_way)w), rows[w].fraction);
    }
    print_links(&l, rows);
    return HTH_EXIT_OK;
}
