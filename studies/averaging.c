/* SPDX-License-Identifier: Apache-2.0 */
/*
 * averaging.c: hearth sim averaging: how fast peers agree, by method, failure and its rate. This
 * file has the flags; see averaging.h.
 */
#include "studies/averaging.h"

#include "cli/cli.h"
#include "core/mem.h"
#include "scenarios/published.h"
#include "studies/questions.h"
#include "studies/study.h"
#include "studies/tools.h"

#include <stdlib.h>
#include <string.h>

#define SEEDS_MAX 10000000
#define MBIT_MIN  1e-3

enum { KEY_MODEL = 0x5200, KEY_METHOD, KEY_PEERS, KEY_GRID, KEY_P_FAIL, KEY_SEEDS, KEY_ROUNDS };
enum { KEY_CAP = 0x5300, KEY_SEED, KEY_THREADS, KEY_JSON, KEY_TABLE, KEY_OUT, KEY_NO_WALL };
enum { KEY_FAILURE = 0x5340, KEY_HOLD, KEY_COMPARE, KEY_EVENTS, KEY_DIM, KEY_LATENCY, KEY_JITTER };
enum { KEY_LOSS = 0x5380, KEY_MBIT, KEY_PAUSE, KEY_MEND, KEY_GOLDEN };

static const struct argp_option options[] = {
    {"model", KEY_MODEL, "NAME", 0,
     "pure: vectors and random failures only (default); protocol: the production averager in a "
     "simulated world; both",
     0},
    {"method", KEY_METHOD, "NAME,...", 0,
     "moshpit, random, gossip, pushsum, allreduce, or all (default moshpit). As a protocol: "
     "moshpit "
     "and allreduce",
     0},
    {"peers", KEY_PEERS, "N,...", 0, "Peers (default 1024)", 0},
    {"grid", KEY_GRID, "AxB...,...", 0,
     "Shape of the grid (default 32x32). With several, and several --peers: all pairs in which "
     "each "
     "peer has a cell",
     0},
    {"p-fail", KEY_P_FAIL, "P,...", 0,
     "Chance that a peer fails in a round, 0 to below 1 (default 0)", 0},
    {"failure", KEY_FAILURE, "KIND,...", 0,
     "Kind of failure: absent (default), crash, slow, partition, or all", 0},
    {"hold", KEY_HOLD, "N", 0, "Rounds for which a failed peer stays so (default 1)", 0},
    {"seeds", KEY_SEEDS, "N", 0, "Repetitions (default 200; as a protocol 5)", 0},
    {"rounds", KEY_ROUNDS, "N", 0, "Rounds whose errors are listed (default 10)", 0},
    {"cap", KEY_CAP, "N", 0, "A target not reached in so many rounds counts as this (default 50)",
     0},
    {"seed", KEY_SEED, "N", 0, "Everything random follows from it (default 1)", 0},
    {"threads", KEY_THREADS, "N", 0, "Seeds computed at the same time (default: number of cores)",
     0},
    {"table", KEY_TABLE, NULL, 0,
     "All methods, failures 0 to 1 % and five populations: the paper's table", 0},
    {"golden", KEY_GOLDEN, NULL, 0,
     "With --table: show published figures beside ours; exit code 1 if they differ", 0},
    {"compare", KEY_COMPARE, NULL, 0,
     "64, 256 and 1024 peers, failures 0 to 5 %: model and protocol side by side", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object for each row", 0},
    {"out", KEY_OUT, "DIR", 0, "Also write data, pictures and a report there", 0},
    {"events", KEY_EVENTS, NULL, 0,
     "With --out: also events.csv, the events of the first seed of each protocol", 0},
    {"no-wall", KEY_NO_WALL, NULL, 0, "Leave wall time out, so that two runs print the same", 0},
    {NULL, 0, NULL, 0, "World of the protocol:", 1},
    {"dim", KEY_DIM, "N", 0, "Length of the vector in floats (default 1024)", 1},
    {"latency", KEY_LATENCY, "MS", 0, "One-way delay between any two peers, in ms (default 25)", 1},
    {"jitter", KEY_JITTER, "MS", 0, "Mean of an additional exponential delay, in ms (default 0)",
     1},
    {"loss", KEY_LOSS, "P", 0, "Share of packets that are lost (default 0)", 1},
    {"mbit", KEY_MBIT, "RATE", 0, "Bandwidth of each peer, up and down; 0: no limit (default 100)",
     1},
    {"pause", KEY_PAUSE, "S", 0, "Time between two rounds, in seconds (default 3)", 1},
    {"mend", KEY_MEND, "S", 0,
     "With --failure partition: seconds from its end to the next round (default 0)", 1},
    {0},
};

/* Refuse empty words in a list: strtok_r skips them, so 'a,' would count as 'a'. */
static void refuse_gaps(struct argp_state *state, const char *flag, const char *text)
{
    size_t len = strlen(text);
    if (strspn(text, ",") == len)
        argp_error(state, "%s '%s': a value is expected", flag, text);
    else if (text[0] == ',' || text[len - 1] == ',' || strstr(text, ",,") != NULL)
        argp_error(state, "%s '%s': a value beside a comma is missing", flag, text);
}

static void parse_methods(struct argp_state *state, char *text, bool *methods)
{
    refuse_gaps(state, "--method", text);
    memset(methods, 0, HTH_PURE_METHODS * sizeof(*methods));
    for (char *save = NULL, *word = strtok_r(text, ",", &save); word != NULL;
         word = strtok_r(NULL, ",", &save)) {
        enum hth_pure_method method;
        if (strcmp(word, "all") == 0)
            memset(methods, 1, HTH_PURE_METHODS * sizeof(*methods));
        else if (hth_pure_method_find(word, &method) == HTH_OK)
            methods[method] = true;
        else
            argp_error(state,
                       "--method '%s': expected one of allreduce, gossip, pushsum, random, "
                       "moshpit, all",
                       word);
    }
}

static void parse_failures(struct argp_state *state, char *text, bool *failures)
{
    refuse_gaps(state, "--failure", text);
    memset(failures, 0, HTH_PURE_FAILURES * sizeof(*failures));
    for (char *save = NULL, *word = strtok_r(text, ",", &save); word != NULL;
         word = strtok_r(NULL, ",", &save)) {
        enum hth_pure_failure failure;
        if (strcmp(word, "all") == 0)
            memset(failures, 1, HTH_PURE_FAILURES * sizeof(*failures));
        else if (hth_pure_failure_find(word, &failure) == HTH_OK)
            failures[failure] = true;
        else
            argp_error(state, "--failure '%s': expected one of absent, crash, slow, partition, all",
                       word);
    }
}

static void parse_model(struct argp_state *state, const char *text, bool *models)
{
    bool both = strcmp(text, "both") == 0;
    models[HTH_AVG_PURE] = both || strcmp(text, "pure") == 0;
    models[HTH_AVG_PROTOCOL] = both || strcmp(text, "protocol") == 0;
    if (!models[HTH_AVG_PURE] && !models[HTH_AVG_PROTOCOL])
        argp_error(state, "--model '%s': expected one of pure, protocol, both", text);
}

/* Return the next word of a list, NULL at its end; `count` words came earlier. */
static char *next_word(struct argp_state *state, const char *flag, char *text, char **save,
                       size_t count)
{
    if (text != NULL)
        refuse_gaps(state, flag, text);
    char *word = strtok_r(text, ",", save);
    if (word != NULL && count == HTH_AVG_LIST_MAX)
        argp_error(state, "%s: at most %d", flag, HTH_AVG_LIST_MAX);
    return word;
}

static double parse_p(struct argp_state *state, const char *flag, const char *text)
{
    char *end;
    double p = strtod(text, &end);
    if (end == text || *end != '\0' || !(p >= 0 && p < 1))
        argp_error(state, "%s '%s': a number from 0 to below 1, such as 0.005", flag, text);
    return p;
}

static void parse_p_fails(struct argp_state *state, char *text, struct hth_avg_ask *a)
{
    char *save = NULL;
    a->p_count = 0;
    for (char *word; (word = next_word(state, "--p-fail", text, &save, a->p_count)) != NULL;
         text = NULL) {
        double p = parse_p(state, "--p-fail", word);
        for (size_t i = 0; i < a->p_count; i++)
            if (a->p_fails[i] == p)
                argp_error(state, "--p-fail '%s': given twice", word);
        a->p_fails[a->p_count++] = p;
    }
}

static void parse_peers(struct argp_state *state, char *text, struct hth_avg_ask *a)
{
    char *save = NULL;
    a->peers_count = 0;
    for (char *word; (word = next_word(state, "--peers", text, &save, a->peers_count)) != NULL;
         text = NULL)
        a->peers[a->peers_count++] =
            (uint32_t)hth_cli_number(state, "--peers", word, 2, HTH_PURE_PEERS_MAX);
}

static void parse_grids(struct argp_state *state, char *text, struct hth_avg_ask *a)
{
    char *save = NULL;
    a->grid_count = 0;
    for (char *word; (word = next_word(state, "--grid", text, &save, a->grid_count)) != NULL;
         text = NULL) {
        struct hth_avg_shape *shape = &a->grids[a->grid_count++];
        if (hth_avg_shape_parse(word, shape) != HTH_OK || hth_avg_cells(shape) > HTH_PURE_CELLS_MAX)
            argp_error(state, "--grid '%s': sizes such as 32x32 or 8x8x8, up to %u cells", word,
                       HTH_PURE_CELLS_MAX);
    }
}

static double parse_number(struct argp_state *state, const char *flag, const char *text, double max)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end != '\0' || !(x >= 0 && x <= max))
        argp_error(state, "%s '%s': expected a number from 0 to %g, such as 1", flag, text, max);
    return x;
}

/* Read a rate; 0 is no limit. Over a slower link than MBIT_MIN nothing would ever arrive. */
static double parse_mbit(struct argp_state *state, const char *text)
{
    double mbit = parse_number(state, "--mbit", text, 1e6);
    if (mbit > 0 && mbit < MBIT_MIN)
        argp_error(state, "--mbit '%s': 0, or at least %g", text, MBIT_MIN);
    return mbit;
}

static const char *world_flag(int key)
{
    size_t i = 0;
    while (options[i].key != key)
        i++;
    return options[i].name;
}

/* Parse the flags of the protocol's world. */
static error_t parse_world(int key, char *arg, struct argp_state *state, struct hth_average_opts *o)
{
    switch (key) {
    case KEY_DIM:
        o->dim = (uint32_t)hth_cli_number(state, "--dim", arg, 1, HTH_AVERAGE_DIM_MAX);
        break;
    case KEY_LATENCY:
        o->link.latency_us =
            (int64_t)(parse_number(state, "--latency", arg, 10000) * HTH_US_PER_MS);
        break;
    case KEY_JITTER:
        o->link.jitter_us = (int64_t)(parse_number(state, "--jitter", arg, 10000) * HTH_US_PER_MS);
        o->link.jitter = HTH_JITTER_EXPONENTIAL;
        break;
    case KEY_LOSS:
        o->link.loss = parse_p(state, "--loss", arg);
        break;
    case KEY_MBIT:
        o->line_bytes_per_s = parse_mbit(state, arg) * 1e6 / 8;
        break;
    case KEY_MEND:
        o->heal_us = (int64_t)(parse_number(state, "--mend", arg, 3600) * HTH_US_PER_S);
        break;
    case KEY_PAUSE:
        o->pause_us = (int64_t)(parse_number(state, "--pause", arg, 3600) * HTH_US_PER_S);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* Parse the flags that choose the runs and their output. */
static error_t parse_what(int key, char *arg, struct argp_state *state, struct hth_avg_ask *a)
{
    switch (key) {
    case KEY_MODEL:
        parse_model(state, arg, a->models);
        break;
    case KEY_METHOD:
        parse_methods(state, arg, a->methods);
        a->has_methods = true;
        break;
    case KEY_FAILURE:
        parse_failures(state, arg, a->failures);
        break;
    case KEY_SEEDS:
        a->seeds = hth_cli_number(state, "--seeds", arg, 1, SEEDS_MAX);
        break;
    case KEY_THREADS:
        a->request.threads = (uint32_t)hth_cli_number(state, "--threads", arg, 1, 256);
        break;
    case KEY_TABLE:
        a->table = true;
        break;
    case KEY_GOLDEN:
        a->request.golden = true;
        break;
    case KEY_COMPARE:
        a->compare = true;
        break;
    case KEY_JSON:
        a->request.json = true;
        break;
    case KEY_OUT:
        a->request.out = arg;
        break;
    case KEY_EVENTS:
        a->request.events = true;
        break;
    case KEY_NO_WALL:
        a->request.no_wall = true;
        break;
    default:
        if (parse_world(key, arg, state, &a->opts) != 0)
            return ARGP_ERR_UNKNOWN;
        a->world = world_flag(key);
    }
    return 0;
}

static void check_world(struct argp_state *state, const struct hth_avg_ask *a)
{
    if (a->world != NULL && !a->models[HTH_AVG_PROTOCOL] && !a->compare)
        argp_error(state, "--%s: needs --model protocol; the pure model has no network and no time",
                   a->world);
    if (a->opts.heal_us > 0 && !a->failures[HTH_PURE_PARTITION])
        argp_error(state, "--mend: needs --failure partition");
    if (a->opts.heal_us > a->opts.pause_us)
        argp_error(state, "--mend: a partition ends after the round: at most the --pause");
}

/* Check combinations, which is possible only after the last flag. */
static void check_all(struct argp_state *state, const struct hth_avg_ask *a)
{
    if (a->request.events &&
        (a->request.out == NULL || (!a->models[HTH_AVG_PROTOCOL] && !a->compare)))
        argp_error(state, "--events: needs --out DIR, and --model protocol: the pure model has no "
                          "events");
    check_world(state, a);
    if (a->table && (a->compare || a->models[HTH_AVG_PROTOCOL]))
        argp_error(state, "--table: needs --model pure; see --compare");
    if ((a->table || a->compare) && a->population != NULL)
        argp_error(state, "%s: --table and --compare set peers, grids and probabilities themselves",
                   a->population);
    if (a->request.golden && !a->table)
        argp_error(state, "--golden: needs --table");
    if (a->request.golden && (!a->failures[HTH_PURE_ABSENT] || a->opts.base.hold != 1 ||
                              a->opts.base.rounds < HTH_PUBLISHED_ROUNDS ||
                              a->opts.base.cap != hth_published_opts(hth_published).cap))
        argp_error(state,
                   "--golden: published figures have peers absent for one round, "
                   "at least %d --rounds and a --cap of 50",
                   HTH_PUBLISHED_ROUNDS);
    int failures = 0;
    for (int f = 0; f < HTH_PURE_FAILURES; f++)
        failures += a->failures[f];
    if (failures > 1 && (a->table || a->compare))
        argp_error(state, "--failure: a table has one kind");
    for (int m = 0; m < HTH_PURE_METHODS && a->models[HTH_AVG_PROTOCOL] && !a->compare; m++)
        if (a->methods[m] &&
            (m == HTH_PURE_RANDOM || m == HTH_PURE_GOSSIP || m == HTH_PURE_PUSHSUM))
            argp_error(state,
                       "--method '%s': exists only with --model pure. The production averager "
                       "runs moshpit and allreduce",
                       hth_pure_method_name((enum hth_pure_method)m));
    for (size_t n = 0; n < a->peers_count && a->models[HTH_AVG_PROTOCOL]; n++) {
        if (a->methods[HTH_PURE_ALLREDUCE] && a->peers[n] > HTH_AVG_MEMBERS_MAX / 2)
            argp_error(state,
                       "--method allreduce: as a protocol it is one group of at most %u --peers",
                       HTH_AVG_MEMBERS_MAX / 2);
        if (a->peers[n] > HTH_AVERAGE_PEERS_MAX)
            argp_error(state,
                       "--peers '%u': with --model protocol at most %u; more need --model pure",
                       a->peers[n], HTH_AVERAGE_PEERS_MAX);
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_avg_ask *a = state->input;
    struct hth_pure_opts *o = &a->opts.base;
    switch (key) {
    case KEY_PEERS:
        a->population = "--peers";
        parse_peers(state, arg, a);
        break;
    case KEY_GRID:
        a->population = "--grid";
        parse_grids(state, arg, a);
        break;
    case KEY_P_FAIL:
        a->population = "--p-fail";
        parse_p_fails(state, arg, a);
        break;
    case KEY_HOLD:
        o->hold = (uint32_t)hth_cli_number(state, "--hold", arg, 1, HTH_PURE_ROUNDS_MAX);
        break;
    case KEY_ROUNDS:
        o->rounds = (uint32_t)hth_cli_number(state, "--rounds", arg, 1, HTH_PURE_ROUNDS_MAX);
        break;
    case KEY_CAP:
        o->cap = (uint32_t)hth_cli_number(state, "--cap", arg, 1, HTH_PURE_ROUNDS_MAX);
        break;
    case KEY_SEED:
        o->seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case ARGP_KEY_END:
        check_all(state, a);
        break;
    default:
        return parse_what(key, arg, state, a);
    }
    return 0;
}

/* ---- the verb ------------------------------------------------------------------------------ */

static void print_study(const struct hth_avg_request *r, size_t index)
{
    if (r->json && !r->golden)
        hth_avg_print_json(&r->studies[index]);
    else if (r->picture == HTH_AVG_CURVES)
        hth_avg_print_curves(&r->studies[index]);
}

static enum hth_err run_all(struct hth_avg_request *r, bool *agrees)
{
    hth_sim_progress_begin(&r->progress);
    for (size_t i = 0; i < r->count; i++) {
        HTH_TRY(hth_avg_study_run(r, i));
        print_study(r, i);
        if (r->count > 1)
            hth_sim_progress_say(&r->progress, "%zu of %zu, about %.0f s left", i + 1, r->count,
                                 hth_sim_progress_left_s(&r->progress, i + 1, r->count));
    }
    hth_sim_progress_wipe(&r->progress);
    if (r->golden)
        *agrees = hth_avg_print_golden(r);
    else if (r->picture == HTH_AVG_TABLE && !r->json)
        hth_avg_print_table(r);
    if (r->picture == HTH_AVG_COMPARE && !r->json)
        hth_avg_print_compare(r);
    if (r->picture == HTH_AVG_SWEEP && !r->json)
        hth_avg_print_sweep(r);
    if (!r->json && !r->no_wall)
        printf("%.1f s\n", (double)(hth_sim_clock_us() - r->progress.begun_us) / HTH_US_PER_S);
    return HTH_OK;
}

static void say_error(enum hth_err err)
{
    if (err == HTH_E_CONFIG)
        hth_cli_say_error("sim averaging: moshpit needs a cell for each peer: choose a larger "
                          "--grid");
    else if (err == HTH_E_TOO_LARGE)
        hth_cli_say_error(
            "sim averaging: too many numbers to keep: choose fewer --seeds or --rounds");
    else if (err != HTH_OK)
        hth_cli_say_error("sim averaging: %s", hth_err_text(err));
}

int hth_sim_averaging_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc =
            "How fast do peers agree? Squared distance to the true mean and variance among "
            "peers by round, and rounds to 1e-4 and 1e-9, for five methods of averaging and four "
            "kinds of failure; as mathematics, or by the production averager in a simulated "
            "world. With lists of peers, grids or probabilities one row and one place in the "
            "picture for each combination.",
    };
    struct hth_avg_ask *a = hth_new(struct hth_avg_ask);
    struct hth_avg_request *r = &a->request;
    a->opts = (struct hth_average_opts)HTH_AVERAGE_OPTS_INIT;
    a->models[HTH_AVG_PURE] = a->failures[HTH_PURE_ABSENT] = true;
    a->peers[0] = a->opts.base.peers;
    a->grids[0] = a->opts.base.shape;
    a->p_fails[0] = a->opts.base.p_fail;
    a->peers_count = a->grid_count = a->p_count = 1;
    r->studies = a->studies;
    char *command = hth_study_command(argc, argv);
    r->command = command;
    int code = HTH_EXIT_USAGE;
    bool agrees = true;
    if (argp_parse(&argp, argc, argv, 0, NULL, a) == 0) {
        enum hth_err err = hth_avg_plan(a);
        if (err == HTH_OK && r->out != NULL)
            err = hth_sim_check_out(r->out);
        if (err == HTH_OK && a->models[HTH_AVG_PROTOCOL])
            hth_sim_settle_memory();
        if (err == HTH_OK) {
            err = run_all(r, &agrees);
            say_error(err);
        }
        if (err == HTH_OK && r->out != NULL)
            err = hth_avg_study_write(r);
        code = err == HTH_E_CONFIG ? HTH_EXIT_USAGE : hth_exit_of(err); /* the options caused it */
        if (err == HTH_OK && !agrees)
            code = HTH_EXIT_FAILURE;
    }
    for (size_t i = 0; i < r->count; i++)
        hth_avg_study_clear(&a->studies[i]);
    hth_free(command);
    hth_free(a);
    return code;
}
