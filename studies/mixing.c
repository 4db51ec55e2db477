/* SPDX-License-Identifier: Apache-2.0 */
/* mixing.c: hearth sim mixing: the factor of random groups, measured, exact and as printed. */
#include "cli/cli.h"
#include "core/mem.h"
#include "scenarios/pure.h"
#include "studies/questions.h"
#include "studies/study.h"
#include "studies/study_write.h"
#include "studies/tools.h"

#include <math.h>
#include <stdio.h>

#define BLOCKS     64
#define TRIALS_MAX 1000000000

struct mixing {
    struct hth_mixing_opts opts;
    uint64_t trials;
    uint32_t threads;
    bool json;
    const char *out;        /* NULL: no files */
    double *sums, *squares; /* BLOCKS times rounds */
};

enum { KEY_PEERS = 0x5400, KEY_GROUPS, KEY_ROUNDS, KEY_TRIALS, KEY_SEED, KEY_THREADS, KEY_JSON };
enum { KEY_OUT = 0x5440 };

static const struct argp_option mixing_options[] = {
    {"peers", KEY_PEERS, "N", 0, "Peers (default 8)", 0},
    {"groups", KEY_GROUPS, "R", 0, "Groups of a round, of near-equal size (default 2)", 0},
    {"rounds", KEY_ROUNDS, "T", 0, "Rounds (default 1)", 0},
    {"trials", KEY_TRIALS, "K", 0, "Repetitions (default 200000)", 0},
    {"seed", KEY_SEED, "N", 0, "Everything random follows from it (default 1)", 0},
    {"threads", KEY_THREADS, "N", 0, "Trials computed at the same time (default: cores)", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object", 0},
    {"out", KEY_OUT, "DIR", 0, "Also write data, pictures and a report there", 0},
    {0},
};

static error_t parse_mixing(int key, char *arg, struct argp_state *state)
{
    struct mixing *m = state->input;
    struct hth_mixing_opts *o = &m->opts;
    switch (key) {
    case KEY_PEERS:
        o->peers = (uint32_t)hth_cli_number(state, "--peers", arg, 2, HTH_PURE_PEERS_MAX);
        break;
    case KEY_GROUPS:
        o->groups = (uint32_t)hth_cli_number(state, "--groups", arg, 1, HTH_PURE_PEERS_MAX);
        break;
    case KEY_ROUNDS:
        o->rounds = (uint32_t)hth_cli_number(state, "--rounds", arg, 1, 1000);
        break;
    case KEY_TRIALS:
        m->trials = hth_cli_number(state, "--trials", arg, 2, TRIALS_MAX);
        break;
    case KEY_SEED:
        o->seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case KEY_THREADS:
        m->threads = (uint32_t)hth_cli_number(state, "--threads", arg, 1, 256);
        break;
    case KEY_JSON:
        m->json = true;
        break;
    case KEY_OUT:
        m->out = arg;
        break;
    case ARGP_KEY_END:
        if (o->groups > o->peers)
            argp_error(state, "--groups %u: more than the %u peers", o->groups, o->peers);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static enum hth_err open_nothing(void *arg, void **local)
{
    (void)arg;
    *local = NULL;
    return HTH_OK;
}

static void close_nothing(void *local)
{
    (void)local;
}

/* Run a block. Its options were checked when they were parsed. */
static void run_block(void *arg, void *local, uint64_t index)
{
    struct mixing *m = arg;
    uint64_t trials = m->trials / BLOCKS + (index < m->trials % BLOCKS);
    enum hth_err err = hth_mixing_block(&m->opts, index, trials, m->sums + index * m->opts.rounds,
                                        m->squares + index * m->opts.rounds);
    (void)local;
    HTH_ASSERT(err == HTH_OK);
}

/* Compute the mean and standard error of the factor after each round from the sums of the
 * blocks. */
static void summarise(const struct mixing *m, double *measured, double *error)
{
    double n = (double)m->trials;
    for (uint32_t t = 0; t < m->opts.rounds; t++) {
        double sum = 0, square = 0;
        for (uint32_t b = 0; b < BLOCKS; b++) {
            sum += m->sums[b * m->opts.rounds + t];
            square += m->squares[b * m->opts.rounds + t];
        }
        measured[t] = sum / n;
        error[t] = sqrt(HTH_MAX(0.0, square / n - measured[t] * measured[t]) / (n - 1));
    }
}

static void print_mixing(const struct mixing *m, const double *measured, const double *error)
{
    const struct hth_mixing_opts *o = &m->opts;
    uint32_t last = o->rounds - 1;
    if (!m->json) {
        printf("%u peers in %u groups, %llu trials: factor of the variance\n"
               "%6s %14s %12s %14s %14s\n",
               o->peers, o->groups, (unsigned long long)m->trials, "rounds", "measured", "s.e.",
               "exact", "printed bound");
        for (uint32_t t = 0; t < o->rounds; t++)
            printf("%6u %14.6g %12.2g %14.6g %14.6g\n", t + 1, measured[t], error[t],
                   hth_mixing_exact(o, t + 1), hth_mixing_printed(o, t + 1));
        return;
    }
    printf("{\"peers\":%u,\"groups\":%u,\"rounds\":%u,\"trials\":%llu,\"seed\":%llu,", o->peers,
           o->groups, o->rounds, (unsigned long long)m->trials, (unsigned long long)o->seed);
    hth_sim_json_number(stdout, "measured", measured[last]);
    putchar(',');
    hth_sim_json_number(stdout, "standard_error", error[last]);
    putchar(',');
    hth_sim_json_number(stdout, "exact", hth_mixing_exact(o, o->rounds));
    putchar(',');
    hth_sim_json_number(stdout, "printed", hth_mixing_printed(o, o->rounds));
    printf(",\"printed_is\":\"upper bound\",");
    hth_sim_json_list(stdout, "measured_by_round", measured, o->rounds);
    putchar(',');
    hth_sim_json_list(stdout, "standard_error_by_round", error, o->rounds);
    puts("}");
}

/* ---- files ---------------------------------------------------------------------------------- */

enum { MEASURED, EXACT, PRINTED, SERIES };

static const struct hth_study_column params[] = {{"round", "rounds", 0}};
static const struct hth_study_column metrics[] = {{"factor", "factor of the variance", 8}};
static const struct hth_study_panel panels[] = {
    {"mixing", "Random groups: the remaining variance", 0, 0, false, true, false}};

static void fill_points(const struct mixing *m, const double *measured, const double *error,
                        struct hth_study_point *points, struct hth_study_mean *means)
{
    static const char *const names[SERIES] = {"measured", "exact", "printed bound"};
    uint32_t rounds = m->opts.rounds;
    for (uint32_t i = 0; i < SERIES * rounds; i++) {
        uint32_t t = i % rounds, series = i / rounds;
        double value = series == MEASURED ? measured[t]
                       : series == EXACT  ? hth_mixing_exact(&m->opts, t + 1)
                                          : hth_mixing_printed(&m->opts, t + 1);
        points[i] =
            (struct hth_study_point){.part = "mixing", .series = names[series], .param = {t + 1}};
        means[i] = (struct hth_study_mean){value, NAN, NAN, 1};
        if (series == MEASURED)
            means[i] = (struct hth_study_mean){value, error[t], hth_study_half(error[t], m->trials),
                                               m->trials};
    }
}

static enum hth_err write_files(const struct mixing *m, const double *measured, const double *error,
                                const char *command)
{
    size_t count = SERIES * (size_t)m->opts.rounds;
    struct hth_study_point *points = hth_new_array(struct hth_study_point, count);
    struct hth_study_mean *means = hth_new_array(struct hth_study_mean, count);
    struct hth_study_flags flags = {
        .seed = m->opts.seed, .seeds = 1, .out = m->out, .command = command};
    fill_points(m, measured, error, points, means);
    struct hth_study study = {
        .name = "mixing",
        .title = "How random groups mix",
        .about = "N peers with values of variance 1 are divided into R groups at random, and each "
                 "group takes its mean, round by round. Measured: the mean of the variance that "
                 "is left over many trials, all from one seed; its interval is Student's. "
                 "Exact: ((R-1)/(N-1)) to the number of rounds. Printed: the bound of the "
                 "paper, ((R-1)/N + R/N^2) to the number of rounds.",
        .params = params,
        .metrics = metrics,
        .panels = panels,
        .points = points,
        .param_count = 1,
        .metric_count = 1,
        .panel_count = 1,
        .point_count = count};
    enum hth_err err = hth_study_write(&study, &flags, means, NULL);
    hth_free(points);
    hth_free(means);
    return err;
}

/* ---- the verb ------------------------------------------------------------------------------- */

int hth_sim_mixing_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = mixing_options,
        .parser = parse_mixing,
        .doc = "By which factor do T rounds of R random groups shrink the variance of N peers? "
               "Monte Carlo beside the exact ((R-1)/(N-1))^T and the bound "
               "((R-1)/N + R/N^2)^T that the paper prints as an equality.",
    };
    struct mixing m = {.opts = {.peers = 8, .groups = 2, .rounds = 1, .seed = 1}, .trials = 200000};
    struct hth_sim_work work = {open_nothing, run_block, close_nothing, &m};
    char *command = hth_study_command(argc, argv);
    enum hth_err err = HTH_OK;
    if (argp_parse(&argp, argc, argv, 0, NULL, &m) != 0)
        err = HTH_E_USAGE;
    else if (m.out != NULL)
        err = hth_sim_check_out(m.out);
    if (err != HTH_OK) {
        hth_free(command);
        return hth_exit_of(err);
    }
    m.sums = hth_new_array(double, BLOCKS *m.opts.rounds);
    m.squares = hth_new_array(double, BLOCKS *m.opts.rounds);
    err = hth_sim_spread(&work, BLOCKS, hth_sim_threads(m.threads));
    double *result = hth_new_array(double, 2 * m.opts.rounds);
    summarise(&m, result, result + m.opts.rounds);
    print_mixing(&m, result, result + m.opts.rounds);
    if (err == HTH_OK && m.out != NULL)
        err = write_files(&m, result, result + m.opts.rounds, command);
    hth_free(command);
    hth_free(result);
    hth_free(m.sums);
    hth_free(m.squares);
    return hth_exit_of(err);
}
