/* SPDX-License-Identifier: Apache-2.0 */
/* sim_averaging.c: hearth sim averaging: how fast peers agree, by method and failure rate. */
#include "app/sim_averaging.h"

#include "app/cli.h"
#include "app/sim.h"
#include "app/study.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEEDS_MAX   10000000
#define VALUES_MAX  (64u << 20) /* kept until the end: seeds times what one gives */
#define STUDIES_MAX 256

struct averaging {
    struct hth_pure_opts opts;
    bool methods[HTH_PURE_METHODS];
    uint64_t seeds;
    uint32_t threads;
    bool json, table, no_wall;
    const char *out;
    struct hth_avg_study studies[STUDIES_MAX];
    size_t study_count;
};

enum { KEY_MODEL = 0x5200, KEY_METHOD, KEY_PEERS, KEY_GRID, KEY_P_FAIL, KEY_SEEDS, KEY_ROUNDS };
enum { KEY_CAP = 0x5300, KEY_SEED, KEY_THREADS, KEY_JSON, KEY_TABLE, KEY_OUT, KEY_NO_WALL };

static const struct argp_option options[] = {
    {"model", KEY_MODEL, "NAME", 0, "pure: vectors and failure coins only (default)", 0},
    {"method", KEY_METHOD, "NAME,...", 0,
     "moshpit, turns, random, gossip, pushsum, allreduce, or all (default moshpit)", 0},
    {"peers", KEY_PEERS, "N", 0, "Peers (default 1024)", 0},
    {"grid", KEY_GRID, "AxB...", 0, "Shape of the grid (default 32x32)", 0},
    {"p-fail", KEY_P_FAIL, "P", 0, "That a peer is absent from a round (default 0)", 0},
    {"seeds", KEY_SEEDS, "N", 0, "Repetitions (default 200)", 0},
    {"rounds", KEY_ROUNDS, "N", 0, "Rounds whose errors are listed (default 10)", 0},
    {"cap", KEY_CAP, "N", 0, "A target not reached by then counts as this (default 50)", 0},
    {"seed", KEY_SEED, "N", 0, "Everything random follows from it (default 1)", 0},
    {"threads", KEY_THREADS, "N", 0, "Seeds computed at the same time (default: cores)", 0},
    {"table", KEY_TABLE, NULL, 0,
     "All methods, failures 0 to 1 % and five populations: the paper's table", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object for each row", 0},
    {"out", KEY_OUT, "DIR", 0, "Also write data, pictures and a report there", 0},
    {"no-wall", KEY_NO_WALL, NULL, 0, "Leave wall time out, so that two runs print the same", 0},
    {0},
};

static void parse_methods(struct argp_state *state, char *text, bool *methods)
{
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
                       "--method '%s': not one of allreduce, gossip, pushsum, random, "
                       "moshpit, turns, all",
                       word);
    }
}

static double parse_p_fail(struct argp_state *state, const char *text)
{
    char *end;
    double p = strtod(text, &end);
    if (end == text || *end != '\0' || !(p >= 0 && p < 1))
        argp_error(state, "--p-fail '%s': a number from 0 to below 1, such as 0.005", text);
    return p;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct averaging *a = state->input;
    struct hth_pure_opts *o = &a->opts;
    switch (key) {
    case KEY_MODEL:
        if (strcmp(arg, "pure") != 0)
            argp_error(state, "--model '%s': only 'pure' is known", arg);
        break;
    case KEY_METHOD:
        parse_methods(state, arg, a->methods);
        break;
    case KEY_PEERS:
        o->peers = (uint32_t)hth_cli_number(state, "--peers", arg, 1, HTH_PURE_PEERS_MAX);
        break;
    case KEY_GRID:
        if (hth_avg_shape_parse(arg, &o->shape) != HTH_OK ||
            hth_avg_cells(&o->shape) > HTH_PURE_CELLS_MAX)
            argp_error(state, "--grid '%s': sizes such as 32x32 or 8x8x8, up to %u cells", arg,
                       HTH_PURE_CELLS_MAX);
        break;
    case KEY_P_FAIL:
        o->p_fail = parse_p_fail(state, arg);
        break;
    case KEY_SEEDS:
        a->seeds = hth_cli_number(state, "--seeds", arg, 1, SEEDS_MAX);
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
    case KEY_THREADS:
        a->threads = (uint32_t)hth_cli_number(state, "--threads", arg, 1, 256);
        break;
    case KEY_TABLE:
        a->table = true;
        break;
    case KEY_JSON:
        a->json = true;
        break;
    case KEY_OUT:
        a->out = arg;
        break;
    case KEY_NO_WALL:
        a->no_wall = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- running ------------------------------------------------------------------------------- */

struct seeds {
    const struct hth_pure_opts *opts;
    double *rows;
    size_t len;
};

static enum hth_err open_seeds(void *arg, void **local)
{
    struct hth_pure *pure;
    HTH_TRY(hth_pure_new(((struct seeds *)arg)->opts, &pure));
    *local = pure;
    return HTH_OK;
}

static void run_seed(void *arg, void *local, uint64_t index)
{
    struct seeds *s = arg;
    hth_pure_run(local, index, s->rows + index * s->len);
}

static void close_seeds(void *local)
{
    hth_pure_free(local);
}

static enum hth_err run_study(const struct averaging *a, struct hth_avg_study *study)
{
    struct seeds seeds = {.opts = &study->opts, .len = hth_pure_row_len(&study->opts)};
    struct hth_sim_work work = {open_seeds, run_seed, close_seeds, &seeds};
    if (study->seeds * seeds.len > VALUES_MAX)
        return HTH_E_TOO_LARGE;
    seeds.rows = hth_try_calloc(study->seeds * seeds.len, sizeof(double));
    if (seeds.rows == NULL)
        return HTH_E_NO_MEMORY;
    enum hth_err err = hth_sim_spread(&work, study->seeds, hth_sim_threads(a->threads));
    if (err == HTH_OK) {
        study->mean = hth_new_array(double, seeds.len);
        study->se = hth_new_array(double, seeds.len);
        hth_pure_summary(seeds.rows, study->seeds, seeds.len, study->mean, study->se);
    }
    hth_free(seeds.rows);
    return err;
}

/* ---- printing ------------------------------------------------------------------------------ */

static double mean_at(const struct hth_avg_study *s, int what)
{
    return s->mean[hth_pure_at(&s->opts, what)];
}

static double se_at(const struct hth_avg_study *s, int what)
{
    return s->se[hth_pure_at(&s->opts, what)];
}

static void json_targets(const char *name, double to_1e4, double to_1e9)
{
    printf(",\"%s\":{", name);
    hth_sim_json_number(stdout, "1e-4", to_1e4);
    putchar(',');
    hth_sim_json_number(stdout, "1e-9", to_1e9);
    putchar('}');
}

static void print_json(const struct hth_avg_study *s)
{
    const struct hth_pure_opts *o = &s->opts;
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    printf("{\"model\":\"pure\",\"method\":\"%s\",\"peers\":%u,\"grid\":\"%s\",",
           hth_pure_method_name(o->method), o->peers, hth_avg_shape_text(&o->shape, grid));
    hth_sim_json_number(stdout, "p_fail", o->p_fail);
    printf(",\"seeds\":%llu,\"seed\":%llu,\"cap\":%u,", (unsigned long long)s->seeds,
           (unsigned long long)o->seed, o->cap);
    hth_sim_json_list(stdout, "mse", s->mean, o->rounds);
    putchar(',');
    hth_sim_json_list(stdout, "mse_se", s->se, o->rounds);
    putchar(',');
    hth_sim_json_list(stdout, "variance", s->mean + o->rounds, o->rounds);
    putchar(',');
    hth_sim_json_list(stdout, "variance_se", s->se + o->rounds, o->rounds);
    putchar(',');
    hth_sim_json_list(stdout, "vectors_sent", s->mean + 2 * o->rounds, o->rounds);
    json_targets("rounds_to", mean_at(s, HTH_PURE_REACHED), mean_at(s, HTH_PURE_REACHED_1E9));
    json_targets("rounds_to_se", se_at(s, HTH_PURE_REACHED), se_at(s, HTH_PURE_REACHED_1E9));
    json_targets("unreached", mean_at(s, HTH_PURE_UNREACHED), mean_at(s, HTH_PURE_UNREACHED_1E9));
    if (o->method == HTH_PURE_ALLREDUCE) {
        putchar(',');
        hth_sim_json_number(stdout, "exact", hth_pure_allreduce_rounds(o));
    }
    puts("}");
}

static void print_curves(const struct hth_avg_study *s)
{
    const struct hth_pure_opts *o = &s->opts;
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    printf("%s: %u peers in %s, %g %% absent from a round, %llu seeds\n"
           "%8s %12s %10s %12s %10s %13s\n",
           hth_pure_method_name(o->method), o->peers, hth_avg_shape_text(&o->shape, grid),
           o->p_fail * 100, (unsigned long long)s->seeds, "round", "error", "s.e.", "variance",
           "s.e.", "vectors sent");
    for (uint32_t t = 0; t < o->rounds; t++)
        printf("%8u %12.3g %10.2g %12.3g %10.2g %13.3f\n", t + 1, s->mean[t], s->se[t],
               s->mean[o->rounds + t], s->se[o->rounds + t], s->mean[2 * o->rounds + t]);
    for (int k = 0; k < 2; k++) {
        double lost = mean_at(s, HTH_PURE_UNREACHED + k);
        printf("rounds to a variance of %s: %.2f +- %.2f", k == 0 ? "1e-4" : "1e-9",
               mean_at(s, HTH_PURE_REACHED + k), se_at(s, HTH_PURE_REACHED + k));
        if (lost > 0)
            printf(" (%.4g %% were not there after %u)", lost * 100, o->cap);
        putchar('\n');
    }
}

/* "8.31+-.04 (3.65)" */
static void print_cell(const struct hth_avg_study *s)
{
    char text[48];
    double to = mean_at(s, HTH_PURE_REACHED_1E9);
    if (to >= 1000)
        snprintf(text, sizeof(text), "%.0f", to);
    else
        snprintf(text, sizeof(text), "%.2f+-%.2f (%.2f)", to, se_at(s, HTH_PURE_REACHED_1E9),
                 mean_at(s, HTH_PURE_REACHED));
    printf(" %20s", text);
}

static void print_table(const struct averaging *a)
{
    char grid[HTH_AVG_SHAPE_TEXT_MAX], label[HTH_AVG_SHAPE_TEXT_MAX + 16];
    printf(
        "Rounds to a variance of 1e-9 +- standard error (and to 1e-4); %llu seeds; %u: not there "
        "by then;\n1/(1-p)^N: the all-reduce by arithmetic\n\n%-15s %6s %10s",
        (unsigned long long)a->seeds, a->opts.cap, "peers in grid", "p", "1/(1-p)^N");
    for (int m = 0; m < HTH_PURE_METHODS; m++)
        printf(" %20s", hth_pure_method_name((enum hth_pure_method)m));
    for (size_t i = 0; i < a->study_count; i++) {
        const struct hth_avg_study *s = &a->studies[i];
        if (s->opts.method == 0) {
            snprintf(label, sizeof(label), "%u in %s", s->opts.peers,
                     hth_avg_shape_text(&s->opts.shape, grid));
            printf("\n%-15s %6g %10.4g", label, s->opts.p_fail,
                   hth_pure_allreduce_rounds(&s->opts));
        }
        print_cell(s);
    }
    putchar('\n');
}

/* ---- the verb ------------------------------------------------------------------------------ */

static void add_study(struct averaging *a, const struct hth_pure_opts *opts)
{
    HTH_ASSERT(a->study_count < STUDIES_MAX);
    a->studies[a->study_count++] = (struct hth_avg_study){.opts = *opts, .seeds = a->seeds};
}

static void add_methods(struct averaging *a, const struct hth_pure_opts *opts)
{
    for (int m = 0; m < HTH_PURE_METHODS; m++) {
        struct hth_pure_opts o = *opts;
        o.method = (enum hth_pure_method)m;
        if (a->table || a->methods[m])
            add_study(a, &o);
    }
}

static void add_table(struct averaging *a)
{
    static const struct {
        uint32_t peers;
        struct hth_avg_shape shape;
    } populations[] = {{512, {2, {32, 32}}},
                       {768, {2, {32, 32}}},
                       {900, {2, {32, 32}}},
                       {1024, {2, {32, 32}}},
                       {512, {3, {8, 8, 8}}}};
    static const double p_fails[] = {0, 0.001, 0.005, 0.01};
    for (size_t n = 0; n < HTH_ARRAY_LEN(populations); n++)
        for (size_t p = 0; p < HTH_ARRAY_LEN(p_fails); p++) {
            struct hth_pure_opts o = a->opts;
            o.peers = populations[n].peers;
            o.shape = populations[n].shape;
            o.p_fail = p_fails[p];
            add_methods(a, &o);
        }
}

static enum hth_err run_all(struct averaging *a)
{
    bool tty = isatty(STDERR_FILENO) == 1 && a->study_count > 1;
    int64_t begin_us = hth_sim_clock_us();
    for (size_t i = 0; i < a->study_count; i++) {
        HTH_TRY(run_study(a, &a->studies[i]));
        double spent_s = (double)(hth_sim_clock_us() - begin_us) / HTH_US_PER_S;
        if (tty)
            fprintf(stderr, "\r%zu of %zu, about %.0f s left ", i + 1, a->study_count,
                    spent_s / (double)(i + 1) * (double)(a->study_count - i - 1));
        if (!a->table && a->json)
            print_json(&a->studies[i]);
        else if (!a->table)
            print_curves(&a->studies[i]);
    }
    if (tty)
        fputs("\r\033[K", stderr);
    for (size_t i = 0; i < a->study_count && a->table && a->json; i++)
        print_json(&a->studies[i]);
    if (a->table && !a->json)
        print_table(a);
    if (!a->json && !a->no_wall)
        printf("%.1f s\n", (double)(hth_sim_clock_us() - begin_us) / HTH_US_PER_S);
    return HTH_OK;
}

int hth_sim_averaging_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "How fast do peers agree? Squared distance to the true mean and variance among "
               "peers by round, and rounds to 1e-4 and 1e-9, for six methods of averaging when "
               "peers are absent at random.",
    };
    struct averaging *a = hth_new(struct averaging);
    a->opts = (struct hth_pure_opts)HTH_PURE_OPTS_INIT;
    a->seeds = 200;
    a->methods[HTH_PURE_MOSHPIT] = true;
    char *command = hth_study_command(argc, argv);
    int code = HTH_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, a) == 0) {
        if (a->table)
            add_table(a);
        else
            add_methods(a, &a->opts);
        enum hth_err err = run_all(a);
        if (err == HTH_E_CONFIG)
            hth_cli_say_error("sim averaging: moshpit needs a cell for each peer: choose a larger "
                              "--grid");
        else if (err == HTH_E_TOO_LARGE)
            hth_cli_say_error("sim averaging: fewer --seeds or --rounds, please");
        else if (err != HTH_OK)
            hth_cli_say_error("sim averaging: %s", hth_err_text(err));
        if (err == HTH_OK && a->out != NULL)
            err = hth_avg_study_write(a->out, command, a->table, a->studies, a->study_count);
        code = hth_exit_of(err);
    }
    for (size_t i = 0; i < a->study_count; i++) {
        hth_free(a->studies[i].mean);
        hth_free(a->studies[i].se);
    }
    hth_free(command);
    hth_free(a);
    return code;
}
