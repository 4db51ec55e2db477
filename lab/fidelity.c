/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fidelity.c: hearth sim fidelity: does the simulator agree with real processes? Three scenarios in
 * a lab, and the same simulated, side by side.
 */
#include "lab/fidelity.h"

#include "cli/cli.h"
#include "core/limits.h"
#include "core/mem.h"
#include "studies/tools.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WARM_S 3.0 /* after the first update: the pipeline fills, deadlines settle */

static const struct hth_fidelity_case cases[] = {
    /* delay, lines of trainer and hosts, flights, rows, death and return, seconds */
    {"delay", "0 ms", 0, 0, 0, 8, 16, 0, 0, 15},
    {"delay", "50 ms", 25, 0, 0, 8, 16, 0, 0, 15},
    {"delay", "200 ms", 100, 0, 0, 8, 16, 0, 0, 20},
    {"delay", "200 ms, 64 rows", 100, 0, 0, 8, 64, 0, 0, 20},
    {"deaths", "50 ms", 25, 0, 0, 8, 16, 10, 20, 35},
    {"lines", "20 Mbit/s", 10, 20, 100, 8, 64, 0, 0, 20},
    {"lines", "5 Mbit/s", 10, 5, 100, 8, 64, 0, 0, 40},
};

struct fidelity {
    uint64_t seed;
    const char *only, *out, *profile_path, *data, *log;
    bool json, simulated_only;
    struct hth_profile *profile;
    struct hth_runfile *run;
};

/* ---- series -------------------------------------------------------------------------------- */

/* Write the counters of both halves to files, for a closer look. */
static enum hth_err write_series(const struct hth_fidelity_series *s, const char *dir,
                                 const char *name)
{
    double begin_s = hth_fidelity_begin_s(s);
    FILE *f = hth_sim_create(dir, name);
    if (f == NULL)
        return HTH_E_IO;
    fprintf(f, "# killed at %.3f, started again at %.3f\nt_s,updates,calls,failed,bytes,live\n",
            s->kill_s > 0 ? s->kill_s - begin_s : 0, s->back_s > 0 ? s->back_s - begin_s : 0);
    for (size_t i = 0; i < s->count; i++) {
        const struct hth_fidelity_sample *x = &s->sample[i];
        fprintf(f, "%.3f,%.0f,%.0f,%.0f,%.0f,%u\n", x->t_s - begin_s, x->updates, x->calls,
                x->failed, x->bytes, x->live);
    }
    return hth_sim_finish(f, dir, name);
}

/* ---- figures ------------------------------------------------------------------------------- */

enum figure { RATE, CALLS, BYTES, RATE_DOWN, RATE_AFTER, FORGET, RETURN, FAILED, FIGURES };

static const char *const figure_name[FIGURES] = {
    "samples_per_s",       "calls_per_update", "kib_per_update", "samples_per_s_down",
    "samples_per_s_after", "s_to_forget",      "s_to_return",    "calls_failed"};

/* Interpolate a counter at a time between two samples. */
static double at(const struct hth_fidelity_series *s, size_t offset, double t_s)
{
    for (size_t i = 1; i < s->count; i++) {
        const struct hth_fidelity_sample *a = &s->sample[i - 1], *b = &s->sample[i];
        double x, y;
        if (b->t_s < t_s)
            continue;
        memcpy(&x, (const char *)a + offset, sizeof(x));
        memcpy(&y, (const char *)b + offset, sizeof(y));
        return x + (y - x) * HTH_MAX(t_s - a->t_s, 0.0) / (b->t_s - a->t_s);
    }
    return NAN;
}

#define BETWEEN(s, member, from, to)                                                               \
    (at(s, offsetof(struct hth_fidelity_sample, member), to) -                                     \
     at(s, offsetof(struct hth_fidelity_sample, member), from))

static double rate(const struct hth_fidelity_case *c, const struct hth_fidelity_series *s,
                   double from_s, double to_s)
{
    return c->rows * BETWEEN(s, updates, from_s, to_s) / (to_s - from_s);
}

static void figures_of(const struct hth_fidelity_case *c, const struct hth_fidelity_series *s,
                       double out[FIGURES])
{
    double begin_s = hth_fidelity_begin_s(s), from_s = begin_s + WARM_S;
    double to_s = begin_s + (c->kill_s > 0 ? c->kill_s - 0.5 : c->seconds);
    double updates = BETWEEN(s, updates, from_s, to_s);
    for (int i = 0; i < FIGURES; i++)
        out[i] = NAN;
    out[RATE] = rate(c, s, from_s, to_s);
    out[CALLS] = BETWEEN(s, calls, from_s, to_s) / updates;
    out[BYTES] = BETWEEN(s, bytes, from_s, to_s) / updates / 1024;
    if (c->kill_s <= 0)
        return;
    out[RATE_DOWN] = rate(c, s, s->kill_s, s->back_s);
    out[RATE_AFTER] = rate(c, s, s->back_s + 5, begin_s + c->seconds);
    out[FORGET] = hth_fidelity_until_gone(s, s->kill_s, 24);
    out[RETURN] = hth_fidelity_until_back(s, s->back_s, 32);
    out[FAILED] = BETWEEN(s, failed, begin_s, begin_s + c->seconds);
}

/* ---- printing ------------------------------------------------------------------------------ */

static void print_number(double value)
{
    if (isfinite(value))
        printf(" %12.5g", value);
    else
        printf(" %12s", "-");
}

static void print_case(const struct fidelity *f, const struct hth_fidelity_case *c,
                       const double sim[FIGURES], const double real[FIGURES], double boot_s)
{
    for (int i = 0; i < FIGURES; i++) {
        double difference = real[i] != 0 ? (sim[i] - real[i]) / real[i] : NAN;
        if (!isfinite(sim[i]) && !isfinite(real[i]))
            continue;
        if (f->json) {
            printf("{\"part\":\"%s\",\"case\":\"%s\",\"figure\":\"%s\",", c->part, c->name,
                   figure_name[i]);
            hth_sim_json_number(stdout, "simulated", sim[i]);
            putchar(',');
            hth_sim_json_number(stdout, "real", real[i]);
            putchar(',');
            hth_sim_json_number(stdout, "difference", difference);
            puts("}");
            continue;
        }
        printf("%-8s %-16s %-20s", c->part, c->name, figure_name[i]);
        print_number(sim[i]);
        print_number(real[i]);
        if (isfinite(difference))
            printf(" %+10.1f %%\n", 100 * difference);
        else
            puts("");
    }
    if (!f->json && boot_s > 0)
        printf("%-8s %-16s the restarted process served after %.2f s, simulated too\n", c->part,
               c->name, boot_s);
    fflush(stdout);
}

/* ---- running ------------------------------------------------------------------------------- */

static bool make_dir(const char *path)
{
    if (mkdir(path, 0755) == 0 || errno == EEXIST)
        return true;
    hth_cli_say_error("%s: %s", path, strerror(errno));
    return false;
}

/* Make an empty folder for a case, so that files of an earlier run are not read. */
static bool case_dir(const struct fidelity *f, size_t index, char out[4096])
{
    static const char *const stale[] = {"metrics.jsonl", "events.txt"};
    char path[4200];
    snprintf(out, 4096, "%s/%s%zu", f->out, cases[index].part, index);
    for (size_t i = 0; i < HTH_ARRAY_LEN(stale); i++) {
        snprintf(path, sizeof(path), "%s/%s", out, stale[i]);
        (void)remove(path);
    }
    return make_dir(out);
}

static enum hth_err run_case(const struct fidelity *f, size_t index)
{
    const struct hth_fidelity_case *c = &cases[index];
    struct hth_fidelity_series real = {.count = 0}, sim = {.count = 0};
    double real_figures[FIGURES], sim_figures[FIGURES];
    char error[HTH_LAB_ERROR_MAX], dir[4096];
    enum hth_err err = HTH_OK;
    for (int i = 0; i < FIGURES; i++)
        real_figures[i] = NAN;
    if (!case_dir(f, index, dir))
        return HTH_E_IO;
    if (!f->simulated_only) {
        err = hth_fidelity_real(c, dir, f->data, f->log, &real, error);
        if (err != HTH_OK)
            hth_cli_say_error("%s", error);
        else
            err = write_series(&real, dir, "real.csv");
        if (err == HTH_OK)
            figures_of(c, &real, real_figures);
    }
    if (err == HTH_OK) {
        err = hth_fidelity_simulate(c, f->run, f->profile, f->seed, real.boot_s, &sim);
        if (err != HTH_OK)
            hth_cli_say_error("simulating %s, %s: %s", c->part, c->name, hth_err_text(err));
    }
    if (err == HTH_OK) {
        err = write_series(&sim, dir, "simulated.csv");
        figures_of(c, &sim, sim_figures);
        print_case(f, c, sim_figures, real_figures, real.boot_s);
    }
    hth_fidelity_clear(&real);
    hth_fidelity_clear(&sim);
    return err;
}

static enum hth_err load_profile(struct fidelity *f)
{
    /* one byte more than allowed, so that a larger file is refused */
    static uint8_t data[HTH_PROFILE_BYTES_MAX + 1];
    char error[HTH_PROFILE_ERROR_MAX];
    if (f->profile_path == NULL)
        return HTH_OK;
    FILE *file = fopen(f->profile_path, "rb");
    if (file == NULL) {
        hth_cli_say_error("%s: %s", f->profile_path, strerror(errno));
        return HTH_E_CONFIG;
    }
    size_t len = fread(data, 1, sizeof(data), file);
    fclose(file);
    enum hth_err err = hth_profile_parse(f->profile_path, data, len, &f->profile, error);
    if (err != HTH_OK)
        hth_cli_say_error("%s", error);
    return err;
}

static enum hth_err load_run(struct fidelity *f)
{
    char error[HTH_RUNFILE_ERROR_MAX], *text = hth_fidelity_runfile();
    enum hth_err err =
        hth_runfile_parse("fidelity", (const uint8_t *)text, strlen(text), &f->run, error);
    if (err != HTH_OK)
        hth_cli_say_error("%s", error);
    hth_free(text);
    return err;
}

static enum hth_err run_all(struct fidelity *f)
{
    HTH_TRY(load_profile(f));
    HTH_TRY(load_run(f));
    if (!make_dir(f->out))
        return HTH_E_IO;
    if (!f->json)
        printf("%-8s %-16s %-20s %12s %12s %12s\n", "part", "case", "figure", "simulated", "real",
               "difference");
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        if (f->only == NULL || strcmp(f->only, cases[i].part) == 0)
            HTH_TRY(run_case(f, i));
    return HTH_OK;
}

/* ---- the verb ------------------------------------------------------------------------------ */

enum { KEY_SEED = 0x5c00, KEY_ONLY, KEY_OUT, KEY_PROFILE, KEY_DATA, KEY_JSON, KEY_SIM, KEY_LOG };

static const struct argp_option options[] = {
    {"seed", KEY_SEED, "N", 0, "Seed of the simulated half (default 1)", 0},
    {"only", KEY_ONLY, "PART", 0, "Run only this part: delay, deaths or lines (default: all)", 0},
    {"profile", KEY_PROFILE, "FILE", 0, "Profile of this machine, from bench --profile", 0},
    {"data", KEY_DATA, "DIR", 0,
     "Folder of the trainer's pictures (default: that of Fashion-MNIST)", 0},
    {"out", KEY_OUT, "DIR", 0,
     "Folder for series, and the processes' logs and files (default fidelity)", 0},
    {"log", KEY_LOG, "SPEC", 0, "Log levels of the processes, as in their own --log", 0},
    {"simulated", KEY_SIM, NULL, 0, "Only the simulated half, which needs no root", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object per figure", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct fidelity *f = state->input;
    struct hth_log log;
    char bad[64];
    switch (key) {
    case KEY_SEED:
        f->seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case KEY_ONLY:
        f->only = arg;
        for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
            if (strcmp(arg, cases[i].part) == 0)
                return 0;
        argp_error(state, "--only '%s': expected delay, deaths or lines", arg);
        break;
    case KEY_OUT:
        f->out = arg;
        if (strlen(arg) > 3000)
            argp_error(state, "--out: the path is too long");
        break;
    case KEY_PROFILE:
        f->profile_path = arg;
        break;
    case KEY_DATA:
        f->data = arg;
        break;
    case KEY_LOG:
        hth_log_init(&log);
        if (hth_log_parse(&log, arg, bad) != HTH_OK)
            argp_error(state, "--log '%s': unknown word '%s'; expected levels, such as info", arg,
                       bad);
        f->log = arg;
        break;
    case KEY_SIM:
        f->simulated_only = true;
        break;
    case KEY_JSON:
        f->json = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

int hth_sim_fidelity_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Does the simulator agree with real processes? A trainer and four hosts as "
               "processes, in "
               "network namespaces with delays and rates between them, and the same simulated. "
               "Needs root; exits with 77 where namespaces cannot be made.",
    };
    struct fidelity f = {.seed = 1, .out = "fidelity"};
    if (argp_parse(&argp, argc, argv, 0, NULL, &f) != 0)
        return HTH_EXIT_USAGE;
    enum hth_err err = run_all(&f);
    hth_profile_free(f.profile);
    hth_runfile_free(f.run);
    return err == HTH_E_UNSUPPORTED ? HTH_LAB_EXIT_SKIP : hth_exit_of(err);
}
