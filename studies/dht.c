/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dht.c: hearth sim dht: how long a new trainer takes to select experts, and how well it
 * selects.
 */
#include "cli/cli.h"
#include "core/limits.h"
#include "core/mem.h"
#include "scenarios/select.h"
#include "studies/questions.h"
#include "studies/study.h"
#include "studies/tools.h"

#include <string.h>

#define POINTS_MAX 64
#define NODES_MAX  100000

enum { NODES, HOSTS, DEAD, FAR, EPOCH };
enum { FIRST, EXACT, EXACT_PCT, LIVING, REQUESTS, WARM };

static const struct hth_study_column params[] = {
    {"nodes", "nodes of the DHT", 0},
    {"hosts", "hosts of the layer", 0},
    {"dead_pct", "hosts that crashed just before (%)", 0},
    {"far", "times the usual distances", 2},
    {"epoch_s", "since the keys changed (s)", 0}};
static const struct hth_study_column metrics[] = {
    {"first_s", "to the first selection (s)", 3},
    {"exact_s", "to the exact one (s)", 3},
    {"exact_pct", "first selections that are exact (%)", 1},
    {"living_pct", "selected experts whose host is up (%)", 1},
    {"dht_requests", "DHT requests of a trainer", 1},
    {"warm_requests", "DHT requests of 100 searches later", 1}};
static const struct hth_study_panel panels[] = {
    {"size", "Latency of the first selection", NODES, FIRST, true, false, false},
    {"size", "Latency of the exact selection", NODES, EXACT, true, false, false},
    {"hosts", "Many hosts in a layer", HOSTS, EXACT, true, false, false},
    {"distance", "Distances", FAR, EXACT, true, false, false},
    {"epoch", "Just after the keys changed: first selections", EPOCH, EXACT_PCT, false, false,
     false},
    {"epoch", "Just after the keys changed: until exact", EPOCH, EXACT, false, false, false},
    {"dead", "Crashed hosts: latency", DEAD, EXACT, false, false, false},
    {"dead", "Crashed hosts: choice", DEAD, LIVING, false, false, false}};

struct dht {
    struct hth_study_flags flags;
    struct hth_select_opts opts;
    struct hth_study_point points[POINTS_MAX];
    size_t count;
};

enum { KEY_NODES = 0x6300, KEY_HOSTS, KEY_TRAINERS, KEY_K };

static const struct argp_option options[] = {
    {"nodes", KEY_NODES, "N", 0, "Nodes in all parts but 'size' (default 1000)", 0},
    {"hosts", KEY_HOSTS, "N", 0, "Hosts of the layer in all parts but 'hosts' (default 64)", 0},
    {"trainers", KEY_TRAINERS, "N", 0, "Trainers that search once each (default 8)", 0},
    {"top-k", KEY_K, "N", 0, "Experts selected (default 4)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct dht *d = state->input;
    struct hth_select_opts *o = &d->opts;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &d->flags;
        break;
    case KEY_NODES:
        o->nodes = (uint32_t)hth_cli_number(state, "--nodes", arg, 2, NODES_MAX);
        break;
    case KEY_HOSTS:
        o->hosts = (uint32_t)hth_cli_number(state, "--hosts", arg, 1, HTH_SELECT_HOSTS_MAX);
        break;
    case KEY_TRAINERS:
        o->trainers =
            (uint32_t)hth_cli_number(state, "--trainers", arg, 1, HTH_SELECT_TRAINERS_MAX);
        break;
    case KEY_K:
        o->k = (uint32_t)hth_cli_number(state, "--top-k", arg, 1, HTH_TOP_K_MAX);
        break;
    case ARGP_KEY_END:
        if (o->nodes < o->hosts + o->trainers)
            argp_error(state, "--nodes %u: must include all hosts and trainers, so at least %u",
                       o->nodes, o->hosts + o->trainers);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- points -------------------------------------------------------------------------------- */

static const char *const series[2] = {"good DHT", "poor DHT"};

/* Add points with a good DHT and with a poor one, where one parameter takes the given values. */
static void add(struct dht *d, const char *part, int param, const double *values, size_t count)
{
    for (int poor = 0; poor < 2; poor++)
        for (size_t i = 0; i < count; i++) {
            HTH_ASSERT(d->count < POINTS_MAX);
            struct hth_study_point *p = &d->points[d->count++];
            *p = (struct hth_study_point){.part = part,
                                          .series = series[poor],
                                          .param = {d->opts.nodes, d->opts.hosts, 0, 1, 60}};
            p->param[param] = values[i];
        }
}

static void add_points(struct dht *d)
{
    static const double sizes[] = {100, 1000, 10000}, hosts[] = {4, 16, 64, 256},
                        far[] = {0.25, 0.5, 1, 2}, dead[] = {0, 10, 20, 30, 50},
                        epoch[] = {0, 5, 10, 15, 20, 30, 60};
    /* a number of --hosts that does not fit into the smallest size is left out there */
    size_t too_small = 0;
    while (too_small < 2 && sizes[too_small] < d->opts.hosts + d->opts.trainers)
        too_small++;
    add(d, "size", NODES, sizes + too_small, HTH_ARRAY_LEN(sizes) - too_small);
    add(d, "hosts", HOSTS, hosts, HTH_ARRAY_LEN(hosts));
    add(d, "distance", FAR, far, HTH_ARRAY_LEN(far));
    add(d, "epoch", EPOCH, epoch, HTH_ARRAY_LEN(epoch));
    add(d, "dead", DEAD, dead, HTH_ARRAY_LEN(dead));
}

/* ---- running ------------------------------------------------------------------------------- */

static enum hth_err run(void *arg, const struct hth_study_point *point, uint64_t seed,
                        const struct hth_study_watch *watch, double *values)
{
    const struct dht *d = arg;
    struct hth_select_opts o = d->opts;
    struct hth_select_row row;
    o.seed = seed;
    o.on_event = watch->event;
    o.arg = watch->arg;
    o.hosts = (uint32_t)point->param[HOSTS];
    o.nodes = HTH_MAX((uint32_t)point->param[NODES], o.hosts + o.trainers);
    o.dead = point->param[DEAD] / 100;
    o.far = point->param[FAR];
    o.epoch_s = point->param[EPOCH];
    o.poor = strcmp(point->series, series[1]) == 0;
    HTH_TRY(hth_sim_select(&o, &row));
    values[FIRST] = row.first_s;
    values[EXACT] = row.exact_s;
    values[EXACT_PCT] = 100 * row.exact;
    values[LIVING] = 100 * row.living;
    values[REQUESTS] = row.dht_requests;
    values[WARM] = row.warm_requests;
    return HTH_OK;
}

int hth_sim_dht_verb(int argc, char **argv)
{
    static const struct argp_child children[] = {{&hth_study_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = children,
        .doc =
            "How long does a new trainer take until its beam search finds its "
            "experts, and how many of them are up? Against the nodes of the DHT, the hosts of "
            "the layer, the distances, the age of the keys and crashed hosts. Parts: size, hosts, "
            "distance, epoch, dead.",
    };
    struct dht *d = hth_new(struct dht);
    *d = (struct dht){.flags = HTH_STUDY_FLAGS_INIT, .opts = HTH_SELECT_OPTS_INIT};
    char *command = hth_study_command(argc, argv);
    int code = HTH_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, d) == 0) {
        d->flags.command = command;
        add_points(d);
        struct hth_study study = {
            .name = "dht",
            .title = "Selecting experts over the DHT",
            .about =
                "Hosts announce the 1024 experts of one layer, in equal runs, with the production "
                "announcer; trainers that know nothing come, open the layer in the production "
                "directory and search with the production beam search, for one row, whenever "
                "something new is known. First: as many experts as wanted are found. Exact: they "
                "are those that a search among all announced experts gives. Nodes are on three "
                "continents, 12 to 90 ms apart each way, with exponential jitter of a fifth of "
                "that. Poor DHT: three in ten values are missing from an answer and come "
                "with a refresh within 30 s. The DHT is a model, a table whose delays "
                "are those of OpenDHT on 64 nodes, carried on with the logarithm of their number: "
                "no routing, no churn of its own. The keys of records change every two minutes, "
                "and hosts "
                "announce themselves under the new ones in the first 30 s; the other parts look "
                "60 s after a change. Later searches use what is in memory.",
            .params = params,
            .metrics = metrics,
            .panels = panels,
            .points = d->points,
            .param_count = HTH_ARRAY_LEN(params),
            .metric_count = HTH_ARRAY_LEN(metrics),
            .panel_count = HTH_ARRAY_LEN(panels),
            .point_count = d->count,
            .run = run,
            .arg = d};
        code = hth_exit_of(hth_study_run(&study, &d->flags));
    }
    hth_free(command);
    hth_free(d);
    return code;
}
