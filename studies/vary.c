/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vary.c: hearth sim vary: scenario files as a study: one number in them takes several values, each
 * with many seeds, and the results become a table, a picture and a report.
 */
#include "cli/cli.h"
#include "core/mem.h"
#include "studies/load.h"
#include "studies/questions.h"
#include "studies/study.h"
#include "studies/tools.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCENARIOS_MAX 8
#define VALUES_MAX    16
#define WORD_MAX      31
#define DECIMALS_MAX  6

enum { ANSWERED, MEDIAN_MS, P99_MS, FAILED, DEATHS, UPDATES, MISSING, PASSED, METRICS };

static const struct hth_study_column metrics[METRICS] = {
    {"answered_pct", "calls answered (%)", 2},
    {"median_ms", "median of an answered call (ms)", 1},
    {"p99_ms", "99 % of the answered calls (ms)", 1},
    {"failed", "calls that failed", 1},
    {"deaths", "deaths", 1},
    {"updates", "updates of the trainers", 1},
    {"missing_pct", "missing answers of experts (%)", 2},
    {"passed_pct", "seeds that passed (%)", 1}};

/* A fleet uses the first three, peers all but the first two. */
static const struct hth_study_panel panels[] = {
    {"vary", "Updates of the trainers", 0, UPDATES, false, false, false},
    {"vary", "Missing answers of experts", 0, MISSING, false, false, false},
    {"vary", "Deaths", 0, DEATHS, false, false, false},
    {"vary", "Calls that were answered", 0, ANSWERED, false, false, true},
    {"vary", "Median time of a call", 0, MEDIAN_MS, false, false, false},
    {"vary", "Time of 99 % of the calls", 0, P99_MS, false, false, false}};
#define SWARM_PANELS 3
#define PEERS_FIRST  2

struct vary {
    struct hth_study_flags flags;
    const char *names[SCENARIOS_MAX];
    size_t name_count;
    char word[WORD_MAX + 1];
    char *values; /* "10,20": as given, cut into words */
    const char *value[VALUES_MAX];
    size_t value_count;
    struct hth_loaded_scenario loaded[SCENARIOS_MAX * VALUES_MAX];
    struct hth_study_point points[SCENARIOS_MAX * VALUES_MAX];
    size_t count;
};

/* ---- flags ---------------------------------------------------------------------------------- */

enum { KEY_VARY = 0x6600 };

static const struct argp_option options[] = {
    {"vary", KEY_VARY, "WORD=A,B,...", 0, "Numbers that replace $WORD in the files", 0},
    {0},
};

static bool is_number(const char *text)
{
    char *end;
    double x = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(x);
}

static void parse_vary(struct argp_state *state, char *arg, struct vary *v)
{
    size_t len = 0;
    while (isalnum((unsigned char)arg[len]) || arg[len] == '_')
        len++;
    if (len == 0 || len > WORD_MAX || arg[len] != '=')
        argp_error(state,
                   "--vary '%s': a word of up to %d letters, = and numbers, such as up=10,20", arg,
                   WORD_MAX);
    memcpy(v->word, arg, len);
    v->word[len] = '\0';
    v->value_count = 0;
    hth_free(v->values);
    v->values = hth_strdup(arg + len + 1);
    for (char *save = NULL, *word = strtok_r(v->values, ",", &save); word != NULL;
         word = strtok_r(NULL, ",", &save)) {
        if (!is_number(word) || v->value_count == VALUES_MAX)
            argp_error(state, "--vary '%s': expected up to %d numbers, such as up=10,20", arg,
                       VALUES_MAX);
        v->value[v->value_count++] = word;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct vary *v = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &v->flags;
        break;
    case KEY_VARY:
        parse_vary(state, arg, v);
        break;
    case ARGP_KEY_ARG:
        if (v->name_count == SCENARIOS_MAX)
            argp_error(state, "at most %d scenarios", SCENARIOS_MAX);
        v->names[v->name_count++] = arg;
        break;
    case ARGP_KEY_END:
        if (v->name_count == 0 || v->value_count == 0)
            argp_error(state, "which scenario, and what varies? home.yaml --vary up=10,20,50, with "
                              "`up_s: [$up, $up]` in the file");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* The number of decimals that show each value as it was given. */
static int decimals_of(const struct vary *v)
{
    int most = 0;
    for (size_t i = 0; i < v->value_count; i++) {
        const char *point = strchr(v->value[i], '.');
        int decimals = point != NULL ? (int)strspn(point + 1, "0123456789") : 0;
        if (strpbrk(v->value[i], "eExX") != NULL)
            decimals = DECIMALS_MAX;
        most = HTH_MAX(most, HTH_MIN(decimals, DECIMALS_MAX));
    }
    return most;
}

/* Return "up_s (s)": the key whose value varies, with the unit that its end names. Heap string. */
static char *label_of(const struct vary *v)
{
    static const struct {
        const char *end, *unit;
    } units[] = {{"gbytes_per_s", "GB/s"}, {"_per_s", "1/s"}, {"_ms", "ms"}, {"_s", "s"},
                 {"_kib", "KiB"},          {"_mib", "MiB"},   {"_mb", "MB"}, {"_mbit", "Mbit/s"},
                 {"gflops", "GFLOP/s"}};
    const char *key = v->loaded[0].key[0] != '\0' ? v->loaded[0].key : v->word;
    for (size_t i = 0; i < HTH_ARRAY_LEN(units); i++) {
        size_t len = strlen(units[i].end), all = strlen(key);
        if (all >= len && strcmp(key + all - len, units[i].end) == 0)
            return hth_asprintf("%s (%s)", key, units[i].unit);
    }
    return hth_strdup(key);
}

/* ---- points and runs ------------------------------------------------------------------------ */

/* Whether no other file has this scenario's name, which labels its series. */
static bool is_new_line(const struct vary *v, const struct hth_loaded_scenario *s)
{
    for (const struct hth_loaded_scenario *o = v->loaded; o < s; o += v->value_count) {
        if (strcmp(o->file->name, s->file->name) != 0)
            continue;
        hth_cli_say_error("sim vary: %s and %s are both named '%s': a line of the picture each, "
                          "please",
                          o->path, s->path, s->file->name);
        return false;
    }
    return true;
}

static int load_all(struct vary *v)
{
    for (size_t n = 0; n < v->name_count; n++)
        for (size_t i = 0; i < v->value_count; i++) {
            struct hth_loaded_scenario *s = &v->loaded[v->count];
            int code = hth_scenario_load(v->names[n], v->word, v->value[i], s);
            if (code != HTH_EXIT_OK)
                return code;
            if (i == 0 && !is_new_line(v, s))
                return HTH_EXIT_CONFIG;
            v->points[v->count++] = (struct hth_study_point){.part = "vary",
                                                             .series = s->file->name,
                                                             .param = {strtod(v->value[i], NULL)},
                                                             .setup = s};
        }
    return HTH_EXIT_OK;
}

static double percent(uint64_t part, uint64_t rest)
{
    return part + rest > 0 ? 100 * (double)part / (double)(part + rest) : NAN;
}

/* Run a point. A violated invariant is a result, not an error. */
static enum hth_err run(void *arg, const struct hth_study_point *point, uint64_t seed,
                        const struct hth_study_watch *watch, double *values)
{
    const struct hth_loaded_scenario *s = point->setup;
    struct hth_scenario_opts opts = {
        .log_level = HTH_ERROR, .on_event = watch->event, .arg = watch->arg};
    struct hth_scenario_report report;
    struct hth_plan plan;
    (void)arg;
    hth_scenario_draw(s->file, seed, &plan);
    HTH_TRY(hth_scenario_run(&plan, &opts, &report));
    if (!report.pass)
        hth_cli_say_error("sim vary: %s, %g, seed %llu: %s", s->path, point->param[0],
                          (unsigned long long)seed, report.why);
    values[ANSWERED] = percent(report.calls_ok, report.calls_failed);
    values[MEDIAN_MS] = report.is_swarm ? NAN : report.latency_median_us / 1000;
    values[P99_MS] = report.is_swarm ? NAN : report.latency_p99_us / 1000;
    values[FAILED] = (double)report.calls_failed;
    values[DEATHS] = (double)report.deaths;
    values[UPDATES] = report.is_swarm ? (double)report.fleet.updates : NAN;
    values[MISSING] =
        report.is_swarm ? percent(report.fleet.answers_missing, report.fleet.answers) : NAN;
    values[PASSED] = report.pass ? 100 : 0;
    return HTH_OK;
}

static int run_study(struct vary *v)
{
    const char *sources[2 * SCENARIOS_MAX + 1] = {NULL};
    for (size_t n = 0; n < v->name_count; n++) {
        sources[2 * n] = v->loaded[n * v->value_count].path;
        sources[2 * n + 1] = v->loaded[n * v->value_count].text;
    }
    char *label = label_of(v);
    const struct hth_study_column param = {v->word, label, decimals_of(v)};
    bool swarm = v->loaded[0].file->swarm.trainers > 0;
    struct hth_study study = {
        .name = "vary",
        .title = "A scenario, varied",
        .about =
            "Each point is a scenario file in which one number takes a value: the seed draws a "
            "world and its faults, the faults happen and end, and the swarm must recover. "
            "Calls that were answered are a share of those that were answered or given up; "
            "calls that went with their caller do not count. All counts are of a whole run, "
            "its second phase without faults included.",
        .params = &param,
        .metrics = metrics,
        .panels = swarm ? panels : panels + PEERS_FIRST,
        .points = v->points,
        .param_count = 1,
        .metric_count = METRICS,
        .panel_count = swarm ? SWARM_PANELS : HTH_ARRAY_LEN(panels) - PEERS_FIRST,
        .point_count = v->count,
        .sources = sources,
        .run = run};
    int code = hth_exit_of(hth_study_run(&study, &v->flags));
    hth_free(label);
    return code;
}

int hth_sim_vary_verb(int argc, char **argv)
{
    static const struct argp_child children[] = {{&hth_study_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = children,
        .args_doc = "SCENARIO...",
        .doc = "A scenario of your own as a study: $WORD in the file takes each of some values, "
               "each value is run with many seeds, and the results are a table, and with --out "
               "pictures and a report. Each of several files is a curve of the picture.",
    };
    struct vary *v = hth_new(struct vary);
    v->flags = (struct hth_study_flags)HTH_STUDY_FLAGS_INIT;
    char *command = hth_study_command(argc, argv);
    int code = HTH_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, v) == 0) {
        v->flags.command = command;
        code = load_all(v);
        if (code == HTH_EXIT_OK)
            code = run_study(v);
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(v->loaded); i++)
        hth_scenario_unload(&v->loaded[i]);
    hth_free(v->values);
    hth_free(command);
    hth_free(v);
    return code;
}
