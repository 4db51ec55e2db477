/* SPDX-License-Identifier: Apache-2.0 */
/* churn.c: hearth sim churn: how soon peers notice crashes and new hosts. */
#include "cli/cli.h"
#include "core/mem.h"
#include "scenarios/echo.h"
#include "scenarios/turnover.h"
#include "studies/questions.h"
#include "studies/study.h"
#include "studies/tools.h"

#include <stdlib.h>
#include <string.h>

#define POINTS_MAX 64
#define SIZES_MAX  8

enum { REPLACED, PEERS, LIFE_S };
enum {
    GOODPUT,
    DISCOVER,
    DISCOVER_P95,
    FORGET,
    FORGET_P95,
    DEAD,
    NEWCOMER,
    RECOVERY,
    MEDIAN_MS,
    DEATHS
};

static const struct hth_study_column params[] = {
    {"replaced_pct", "peers replaced in a minute (%)", 0},
    {"peers", "peers", 0},
    {"life_s", "life of a record (s)", 0}};
static const struct hth_study_column metrics[] = {
    {"goodput_pct", "calls answered (%)", 2},
    {"discover_s", "to discover a new host (s)", 2},
    {"discover_p95_s", "95 % discovered (s)", 2},
    {"forget_s", "to forget a crashed host (s)", 2},
    {"forget_p95_s", "95 % forgotten (s)", 2},
    {"dead_pct", "shown hosts that are down (%)", 2},
    {"newcomer_s", "until a newcomer shows 90 % (s)", 2},
    {"recovery_s", "from the last crash until all views are right (s)", 1},
    {"median_ms", "median of an answered call (ms)", 1},
    {"deaths", "deaths", 0}};
static const struct hth_study_panel panels[] = {
    {"churn", "Goodput against churn", REPLACED, GOODPUT, true, false, false},
    {"churn", "Records of crashed hosts against churn", REPLACED, DEAD, true, false, false},
    {"churn", "Forgetting against churn", REPLACED, FORGET, true, false, false},
    {"churn", "Discovery against churn", REPLACED, DISCOVER, true, false, false},
    {"life", "Records of crashed hosts against their life", LIFE_S, DEAD, true, false, false},
    {"life", "Recovery against the life of records", LIFE_S, RECOVERY, true, false, false},
    {"size", "Discovery against the size of the swarm", PEERS, DISCOVER, true, false, false},
    {"size", "Newcomers against the size of the swarm", PEERS, NEWCOMER, true, false, false}};

struct churn {
    struct hth_study_flags flags;
    struct hth_sim_churn_opts opts;
    uint32_t sizes[SIZES_MAX];
    size_t size_count;
    struct hth_study_point points[POINTS_MAX];
    size_t count;
};

enum { KEY_PEERS = 0x6200, KEY_SIZES, KEY_HOOD, KEY_EXPERTS, KEY_DURATION, KEY_LATENCY };

static const struct argp_option options[] = {
    {"peers", KEY_PEERS, "N", 0, "Peers in all parts but 'size' (default 64)", 0},
    {"sizes", KEY_SIZES, "N,...", 0, "Peers in the part 'size' (default 32,128,512)", 0},
    {"hood", KEY_HOOD, "N", 0, "Peers of a neighbourhood, which know each other (default 32)", 0},
    {"experts", KEY_EXPERTS, "N", 0, "Experts of each peer (default 4)", 0},
    {"duration", KEY_DURATION, "TIME", 0, "Virtual time of churn (default 5m)", 0},
    {"latency", KEY_LATENCY, "MS", 0, "Mean one-way delay between two peers, in ms (default 40)",
     0},
    {0},
};

static void parse_sizes(struct argp_state *state, char *text, struct churn *c)
{
    c->size_count = 0;
    for (char *save = NULL, *word = strtok_r(text, ",", &save); word != NULL;
         word = strtok_r(NULL, ",", &save)) {
        if (c->size_count == SIZES_MAX)
            argp_error(state, "--sizes: at most %d", SIZES_MAX);
        c->sizes[c->size_count++] = (uint32_t)hth_cli_number(state, "--sizes", word, 2, 100000);
    }
    if (c->size_count == 0)
        argp_error(state, "--sizes: numbers such as 100,1000");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct churn *c = state->input;
    uint64_t ms;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &c->flags;
        break;
    case KEY_PEERS:
        c->opts.peers = (uint32_t)hth_cli_number(state, "--peers", arg, 2, 100000);
        break;
    case KEY_SIZES:
        parse_sizes(state, arg, c);
        break;
    case KEY_HOOD:
        c->opts.hood = (uint32_t)hth_cli_number(state, "--hood", arg, 2, HTH_CHURN_HOOD_MAX);
        break;
    case KEY_EXPERTS:
        c->opts.experts =
            (uint32_t)hth_cli_number(state, "--experts", arg, 1, HTH_ECHO_EXPERTS_MAX);
        break;
    case KEY_DURATION:
        if (hth_cli_parse_time(arg, &c->opts.duration_us) != HTH_OK ||
            c->opts.duration_us < HTH_US_PER_S)
            argp_error(state, "--duration '%s': a time from 1s, such as 5m", arg);
        break;
    case KEY_LATENCY:
        ms = hth_cli_number(state, "--latency", arg, 1, 10000);
        c->opts.latency_ms = (double)ms;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- points -------------------------------------------------------------------------------- */

/* "told": the peers' connections are reset, as when a process ends. */
static const struct {
    const char *name;
    double silent;
} deaths[] = {{"told", 0}, {"half silent", 0.5}, {"silent", 1}};

static void add(struct churn *c, const char *part, const char *series, double replaced,
                double peers, double life_s)
{
    HTH_ASSERT(c->count < POINTS_MAX);
    c->points[c->count++] = (struct hth_study_point){
        .part = part, .series = series, .param = {replaced, peers, life_s}};
}

static void add_points(struct churn *c)
{
    static const double replaced[] = {1, 3, 10, 30, 100}, lives[] = {15, 30, 60, 120};
    double peers = c->opts.peers;
    for (size_t d = 0; d < HTH_ARRAY_LEN(deaths); d++)
        for (size_t i = 0; i < HTH_ARRAY_LEN(replaced); i++)
            add(c, "churn", deaths[d].name, replaced[i], peers, 60);
    for (size_t d = 0; d < HTH_ARRAY_LEN(deaths); d++)
        for (size_t i = 0; i < HTH_ARRAY_LEN(lives); i++)
            add(c, "life", deaths[d].name, 10, peers, lives[i]);
    for (size_t i = 0; i < c->size_count; i++)
        add(c, "size", "half silent", 10, c->sizes[i], 60);
}

/* ---- running ------------------------------------------------------------------------------- */

static enum hth_err run(void *arg, const struct hth_study_point *point, uint64_t seed,
                        const struct hth_study_watch *watch, double *values)
{
    const struct churn *c = arg;
    struct hth_sim_churn_opts o = c->opts;
    struct hth_sim_churn_row row;
    char why[HTH_ECHO_WHY_MAX];
    o.seed = seed;
    o.on_event = watch->event;
    o.arg = watch->arg;
    o.replaced = point->param[REPLACED] / 100;
    o.peers = (uint32_t)point->param[PEERS];
    o.record_life_us = (int64_t)point->param[LIFE_S] * HTH_US_PER_S;
    for (size_t d = 0; d < HTH_ARRAY_LEN(deaths); d++)
        if (strcmp(point->series, deaths[d].name) == 0)
            o.silent = deaths[d].silent;
    enum hth_err err = hth_sim_churn(&o, &row, why);
    if (err == HTH_E_BUG)
        hth_cli_say_error("sim churn: %s", why);
    if (err != HTH_OK)
        return err;
    values[GOODPUT] = 100 * row.goodput;
    values[DISCOVER] = row.discover_s;
    values[DISCOVER_P95] = row.discover_p95_s;
    values[FORGET] = row.forget_s;
    values[FORGET_P95] = row.forget_p95_s;
    values[DEAD] = 100 * row.dead;
    values[NEWCOMER] = row.newcomer_s;
    values[RECOVERY] = row.recovery_s;
    values[MEDIAN_MS] = row.median_ms;
    values[DEATHS] = (double)row.deaths;
    return HTH_OK;
}

int hth_sim_churn_verb(int argc, char **argv)
{
    static const struct argp_child children[] = {{&hth_study_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = children,
        .doc = "Peers crash and others replace them: how many calls are answered, how long "
               "does it take until a new host is known and a crashed one forgotten, how many shown "
               "hosts are down? Against the rate of crashes, the life of records and the number "
               "of peers. Parts: churn, life, size.",
    };
    struct churn *c = hth_new(struct churn);
    *c = (struct churn){.flags = HTH_STUDY_FLAGS_INIT,
                        .opts = HTH_SIM_CHURN_OPTS_INIT,
                        .sizes = {32, 128, 512},
                        .size_count = 3};
    char *command = hth_study_command(argc, argv);
    int code = HTH_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, c) == 0) {
        c->flags.command = command;
        add_points(c);
        struct hth_study study = {
            .name = "churn",
            .title = "How soon peers notice churn",
            .about =
                "Peers with the production calls, records and directories in a simulated world. "
                "They know each other in neighbourhoods; each calls a random host of its own once "
                "a second. Hosts crash at exponential times, and a node that was down takes the "
                "place at once. Told: the connections of the crashed host are reset, as when a "
                "process ends; silent: its peers get no notice, as when the power fails. To "
                "forget: from a crash until another peer no longer shows the host, because a call "
                "to it failed or its record expired; to discover: from the start of a new host "
                "until a peer that was there shows it. A host that failed once is tried again "
                "after 30 s while its record lives. Directories are read every 50 ms. The table "
                "of the DHT is a model: its delays grow with the logarithm of the number of nodes, "
                "and it loses nothing here.",
            .params = params,
            .metrics = metrics,
            .panels = panels,
            .points = c->points,
            .param_count = HTH_ARRAY_LEN(params),
            .metric_count = HTH_ARRAY_LEN(metrics),
            .panel_count = HTH_ARRAY_LEN(panels),
            .point_count = c->count,
            .run = run,
            .arg = c};
        code = hth_exit_of(hth_study_run(&study, &c->flags));
    }
    hth_free(command);
    hth_free(c);
    return code;
}
