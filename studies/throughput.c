/* SPDX-License-Identifier: Apache-2.0 */
/*
 * throughput.c: hearth sim throughput: samples a second against delay, flights, blocks, trainers
 * and failures, with model-parallel and pipelined training in the same world.
 */
#include "cli/cli.h"
#include "core/limits.h"
#include "core/mem.h"
#include "scenarios/latency.h"
#include "studies/questions.h"
#include "studies/study.h"
#include "studies/tools.h"

#include <string.h>

#define POINTS_MAX    128
#define FAIL_DELAY_MS 100.0 /* in parts with a fixed delay */

enum { DELAY_MS, FLIGHTS, LAYERS, TRAINERS, DOWN };
enum { SAMPLES, USEFUL, LOST, STALENESS, DEATHS };

static const struct hth_study_column params[] = {{"delay_ms", "mean delay of a call (ms)", 0},
                                                 {"flights", "micro-batches in the air", 0},
                                                 {"blocks", "blocks (mixture layers)", 0},
                                                 {"trainers", "trainers", 0},
                                                 {"down_pct", "hosts that are down (%)", 0}};
static const struct hth_study_column metrics[] = {
    {"samples_per_s", "samples/s (virtual)", 1},
    {"useful_per_s", "samples/s times experts that learned", 1},
    {"lost_pct", "answers lost (%)", 2},
    {"staleness", "staleness (updates)", 1},
    {"deaths", "crashes of hosts", 0}};
static const struct hth_study_panel panels[] = {
    {"delay", "Delay: is it hidden?", DELAY_MS, SAMPLES, false, true, false},
    {"flights", "Micro-batches in the air", FLIGHTS, SAMPLES, true, true, false},
    {"blocks", "Blocks, at 100 ms", LAYERS, SAMPLES, true, true, false},
    {"trainers", "Trainers, at 100 ms", TRAINERS, SAMPLES, true, true, false},
    {"failures", "Failures, at 100 ms", DOWN, USEFUL, false, true, false},
    {"failures", "Failures: answers lost", DOWN, LOST, false, false, false}};

struct throughput {
    struct hth_study_flags flags;
    struct hth_latency_opts opts;
    struct hth_study_point points[POINTS_MAX];
    size_t count;
};

enum { KEY_HOSTS = 0x6100, KEY_UPDATES, KEY_FLIGHTS, KEY_MEASURE };

static const struct argp_option options[] = {
    {"hosts", KEY_HOSTS, "N", 0, "Expert hosts (default 8)", 0},
    {"flights", KEY_FLIGHTS, "N", 0, "Micro-batches in the air (default 128)", 0},
    {"updates", KEY_UPDATES, "N", 0, "Updates of a trainer to measure (default 200)", 0},
    {"measure", KEY_MEASURE, "TIME", 0, "Virtual time measured with failures (default 120s)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct throughput *t = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &t->flags;
        break;
    case KEY_HOSTS:
        t->opts.hosts = (uint32_t)hth_cli_number(state, "--hosts", arg, 1, 1000);
        break;
    case KEY_FLIGHTS:
        t->opts.flights = (uint32_t)hth_cli_number(state, "--flights", arg, 1, HTH_FLIGHTS_MAX);
        break;
    case KEY_UPDATES:
        t->opts.updates = (uint32_t)hth_cli_number(state, "--updates", arg, 1, 1000000);
        break;
    case KEY_MEASURE:
        if (hth_cli_parse_time(arg, &t->opts.measure_us) != HTH_OK || t->opts.measure_us <= 0)
            argp_error(state, "--measure '%s': a time, such as 120s", arg);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- points -------------------------------------------------------------------------------- */

enum way { ASYNCHRONOUS, DEEP, PIPELINED, MODEL_PARALLEL, WAYS };
static const char *const way_names[WAYS] = {"asynchronous", "deep pipeline", "pipelined",
                                            "model-parallel"};

static void add(struct throughput *t, const char *part, const char *series, enum way way,
                const struct hth_study_point *at)
{
    HTH_ASSERT(t->count < POINTS_MAX);
    struct hth_study_point *p = &t->points[t->count++];
    *p = *at;
    p->part = part;
    p->series = series;
    if (way == PIPELINED)
        p->param[FLIGHTS] = 2 * p->param[LAYERS];
    else if (way == MODEL_PARALLEL)
        p->param[FLIGHTS] = 1;
}

/* Add all schedules, while one parameter takes the given values. */
static void add_ways(struct throughput *t, const char *part, const struct hth_study_point *base,
                     int param, const double *values, size_t count)
{
    for (int way = 0; way < WAYS; way++)
        for (size_t i = 0; i < count; i++) {
            struct hth_study_point at = *base;
            at.param[param] = values[i];
            add(t, part, way_names[way], (enum way)way, &at);
        }
}

static void add_points(struct throughput *t)
{
    static const double delays[] = {0, 25, 50, 100, 150, 200}, blocks[] = {2, 4, 8, 16},
                        trainers[] = {1, 2, 4, 8}, down[] = {0, 5, 10, 20, 30},
                        flights[] = {1, 4, 16, 64, 256};
    static const struct {
        const char *series;
        double delay_ms;
    } far[] = {{"calls of 50 ms", 50}, {"calls of 100 ms", 100}, {"calls of 200 ms", 200}};
    struct hth_study_point base = {
        .param = {FAIL_DELAY_MS, (double)t->opts.flights, t->opts.layers, 1, 0}};
    add_ways(t, "delay", &base, DELAY_MS, delays, HTH_ARRAY_LEN(delays));
    for (size_t f = 0; f < HTH_ARRAY_LEN(far); f++)
        for (size_t i = 0; i < HTH_ARRAY_LEN(flights); i++) {
            struct hth_study_point at = base;
            at.param[DELAY_MS] = far[f].delay_ms;
            at.param[FLIGHTS] = flights[i];
            add(t, "flights", far[f].series, ASYNCHRONOUS, &at);
        }
    add_ways(t, "blocks", &base, LAYERS, blocks, HTH_ARRAY_LEN(blocks));
    add_ways(t, "trainers", &base, TRAINERS, trainers, HTH_ARRAY_LEN(trainers));
    add_ways(t, "failures", &base, DOWN, down, HTH_ARRAY_LEN(down));
}

/* ---- running ------------------------------------------------------------------------------- */

static enum hth_err run(void *arg, const struct hth_study_point *point, uint64_t seed,
                        const struct hth_study_watch *watch, double *values)
{
    const struct throughput *t = arg;
    struct hth_latency_opts o = t->opts;
    struct hth_latency_row row;
    bool dense = false;
    bool failures = strcmp(point->part, "failures") == 0;
    for (int way = DEEP; way < WAYS; way++)
        dense |= strcmp(point->series, way_names[way]) == 0;
    o.seed = seed;
    o.on_event = watch->event;
    o.arg = watch->arg;
    o.delay_ms = point->param[DELAY_MS];
    o.flights = (uint32_t)point->param[FLIGHTS];
    o.layers = (uint32_t)point->param[LAYERS];
    o.trainers = (uint32_t)point->param[TRAINERS];
    o.down = point->param[DOWN] / 100;
    o.patient = !failures;
    if (!failures)
        o.measure_us = 0;
    if (dense)
        o.side = o.k = 1;
    HTH_TRY(hth_sim_latency(&o, &row));
    values[SAMPLES] = row.samples_per_s;
    values[USEFUL] = row.useful_per_s;
    values[LOST] = 100 * row.answers_missing;
    values[STALENESS] = row.staleness_mean;
    values[DEATHS] = (double)row.deaths;
    return HTH_OK;
}

int hth_sim_throughput_verb(int argc, char **argv)
{
    static const struct argp_child children[] = {{&hth_study_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = children,
        .doc = "How many samples a second does training on far machines give? Against the mean "
               "delay of a call, the micro-batches in the air, blocks, trainers and failing "
               "hosts; beside it model-parallel training (one batch at a time through blocks on "
               "different hosts) and the same pipelined. Parts: delay, flights, blocks, trainers, "
               "failures.",
    };
    struct throughput *t = hth_new(struct throughput);
    *t = (struct throughput){.flags = HTH_STUDY_FLAGS_INIT, .opts = HTH_LATENCY_OPTS_INIT};
    t->opts.flights = 128;
    t->opts.updates = 200;
    t->opts.measure_us = 120 * HTH_US_PER_S;
    char *command = hth_study_command(argc, argv);
    int code = HTH_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, t) == 0) {
        t->flags.command = command;
        add_points(t);
        struct hth_study study = {
            .name = "throughput",
            .title = "Throughput of training on far machines",
            .about =
                "The production trainer and expert server in a simulated world, payloads as "
                "ghosts: nothing is learned, and what staleness does to learning is not in these "
                "numbers. Every message is delayed by an exponential time, half the given mean "
                "each way. Asynchronous: a grid of experts in each block, four for each row, many "
                "micro-batches in the air. Model-parallel: one expert a block, each block on "
                "another host, one micro-batch at a time. Pipelined: the same with as many "
                "micro-batches as there are stages, forward and backward. The trunk of a trainer "
                "needs about 50 ms for a micro-batch of 64, which is the upper limit; "
                "trainers do not average their trunks here. Failures: hosts are up and down for "
                "exponential times (down 10 s on average, half of the crashes silent), production "
                "deadlines apply, and an answer that does not come is left out of its row, so "
                "that samples/s alone says too much.",
            .params = params,
            .metrics = metrics,
            .panels = panels,
            .points = t->points,
            .param_count = HTH_ARRAY_LEN(params),
            .metric_count = HTH_ARRAY_LEN(metrics),
            .panel_count = HTH_ARRAY_LEN(panels),
            .point_count = t->count,
            .run = run,
            .arg = t};
        code = hth_exit_of(hth_study_run(&study, &t->flags));
    }
    hth_free(command);
    hth_free(t);
    return code;
}
