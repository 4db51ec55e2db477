/* SPDX-License-Identifier: Apache-2.0 */
/*
 * study.h: what the studies of `hearth sim` have in common: many runs of a simulation, each from a
 * seed of its own, and what they say together.
 *
 * A study is a list of *points*: settings at which something is measured. A point belongs to a
 * *part* of the study (what is varied), to a *series* within it (a line of the picture), and has
 * the values of the study's parameters. Each point is run with the seeds seed .. seed + seeds - 1,
 * and each run gives one number for each metric; NaN stands for "nothing to measure here". Where
 * one run measures several points, as with the places of a curve, these follow each other as a
 * *group*: the first says how many they are.
 *
 *     points x seeds --run, on all cores--> numbers --mean, s.e., 95 %--> table or JSON
 *                                                                    `--> DIR/config.json
 *                                                                         DIR/metrics.csv
 *                                                                         DIR/plot.gp -> pictures
 *                                                                         DIR/report.html
 *
 * With --against the points are also compared, seed by seed: a second table, and
 * DIR/differences.csv.
 *
 * With --events the first seed of each group is run once more, and DIR/events.csv has the births
 * and deaths of its nodes.
 *
 * Each part that has panels is a picture of its own, PART.png and PART.svg, and a chapter of the
 * report.
 *
 * What comes out depends on the points and seeds alone, never on threads or time: two runs give the
 * same files. The command in them leaves out what does not change a number (--out, --threads,
 * --json). The interval of a mean over n seeds is Student's: t(0.975, n - 1) standard errors to
 * both sides; with one seed there is none.
 *
 * One thread calls; `run` is called from several at the same time.
 */
#ifndef HTH_STUDIES_STUDY_H
#define HTH_STUDIES_STUDY_H

#include "core/base.h"
#include "sim/world.h"

#include <argp.h>
#include <stdio.h>

#define HTH_STUDY_PARAMS_MAX  12
#define HTH_STUDY_METRICS_MAX 16

/* A column: its name in files, what it says to people with its unit, and how many decimals a table
 * shows of it. */
struct hth_study_column {
    const char *name, *label;
    int decimals;
};

struct hth_study_point {
    const char *part, *series;
    double param[HTH_STUDY_PARAMS_MAX]; /* NaN: does not apply */
    const void *setup;                  /* for `run`; may be NULL */
    size_t group;                       /* points that one run measures, from here on; 0: 1 */
};

/* One frame of a picture: metric y against parameter x, for all points of a part. */
struct hth_study_panel {
    const char *part, *title;
    uint32_t x, y;
    bool log_x, log_y;
    bool zoom; /* y does not begin at 0 */
};

/* Who hears what happens in a run, for the world's options; event is NULL when nobody does. */
struct hth_study_watch {
    hth_trace_fn *event;
    void *arg;
};

/* Mean, standard error and half of the 95 % interval of those values that are finite. With one of
 * them the last two are NaN, with none all three. */
struct hth_study_mean {
    double mean, se, half;
    uint64_t count;
};

/* Everything is borrowed. Names and labels hold no quotes, commas or line ends. */
struct hth_study {
    const char *name;  /* "throughput" */
    const char *title; /* over the report */
    const char *about; /* a paragraph: what was done and what it does not say */
    const struct hth_study_column *params, *metrics;
    size_t param_count, metric_count;
    const struct hth_study_panel *panels;
    size_t panel_count;
    size_t aimed;  /* the metric that has an aim: to be `within` so much of 0. Its panels show */
    double within; /* lines there and both signs of it. 0: none has */
    const struct hth_study_point *points;
    size_t point_count;
    /* Measures the group that begins with `point` with one seed into `values`, for each of its
     * points one of each metric. */
    enum hth_err (*run)(void *arg, const struct hth_study_point *point, uint64_t seed,
                        const struct hth_study_watch *watch, double *values);
    /* What the means say together, a sentence: below the tables, over the report. `shown` has the
     * points that were asked for. NULL, or a heap string. May be NULL. */
    char *(*verdict)(void *arg, const struct hth_study *shown, const struct hth_study_mean *means);
    void *arg;
    /* Files that say what was run, for config.json: path, text, path, text, NULL. May be NULL. */
    const char *const *sources;
    const struct hth_study_gaps *gaps; /* study_gaps.h; set by hth_study_run */
};

/* Flags of every study, an argp child whose input is this struct. */
struct hth_study_flags {
    uint64_t seed, seeds;
    uint32_t threads; /* 0: cores */
    bool json;
    bool events;      /* needs `out` */
    const char *out;  /* NULL: no files */
    const char *only; /* NULL: all parts; else their names with commas between */
    /* NULL: all points; else "flights=16,64": those with such a parameter, and with semicolons
     * between several of these, those that satisfy all. What the flags gave is in where_text. */
    const char *where;
    char where_text[256];
    const char *against; /* NULL: none; else "experts=1": see study_against.c below */
    bool quiet;          /* nothing on standard output: for tests */
    const char *command; /* as in hth_study_command */
};
#define HTH_STUDY_FLAGS_INIT                                                                       \
    {                                                                                              \
        .seed = 1, .seeds = 5, .command = ""                                                       \
    }
extern const struct argp hth_study_argp;

/* What stands in files as the command: the arguments without those that change no number. To be
 * called before argp_parse, which reorders them. Heap string. */
char *hth_study_command(int argc, char **argv);

struct hth_study_mean hth_study_mean_of(const double *values, size_t count, size_t stride);
/* Half of the 95 % interval of a mean of `count` values: Student's. Below two: NaN. */
double hth_study_half(double se, uint64_t count);

/* Runs all points, prints the table or one JSON object for each point, writes the files. Says what
 * went wrong. Runs that failed are named with what they would have measured, in the table and in
 * the files, and the others are kept. Errors: E_TRUNCATED (some runs failed), or the first of a run
 * where all did; E_CANCELED (SIGINT: what was done until then is shown); E_USAGE (`only`, `where`,
 * `against`), E_TOO_LARGE (too many runs), E_IO (files; before any run where `out` can't be written
 * to). */
enum hth_err hth_study_run(const struct hth_study *study,
                           const struct hth_study_flags *flags) HTH_MUST;

/* ---- study_choose.c ------------------------------------------------------------------------ */

/* Errors, said: E_USAGE (no such part or parameter, or no point is left). */
enum hth_err hth_study_check_choice(const struct hth_study *study,
                                    const struct hth_study_flags *flags) HTH_MUST;
/* Whether one of `count` points was asked for. */
bool hth_study_is_chosen(const struct hth_study *study, const struct hth_study_point *points,
                         size_t count, const struct hth_study_flags *flags);
/* The first of a group that was asked for; it may begin with points of parts that nobody asked for
 * and no file shows. */
const struct hth_study_point *hth_study_first_chosen(const struct hth_study *study,
                                                     const struct hth_study_point *group,
                                                     const struct hth_study_flags *flags);
bool hth_study_has_part(const struct hth_study *study, const char *part);
/* The parameter whose name stands before the `=` of a text; param_count: none. */
size_t hth_study_param(const struct hth_study *study, const char *text);
/* Whether a parameter is what was asked for: up to what a float loses. */
bool hth_study_is_near(double param, double asked);

/* ---- study_against.c -----------------------------------------------------------------------
 *
 * "experts=1": each point is compared with the one of its part that has this value there and
 * differs in no other parameter (where several do, the one of its series, else the first). Both
 * were run with the same seeds, so that the difference is taken seed by seed, and its interval is
 * that of the mean of these: what a seed does to both alike cancels out, and it holds whether
 * anything does or not. "experts=1,flights=4" is the difference of differences: how much more the
 * point gains on the dense model than its like with 4 in the air does. At most three. */

/* Errors, said: E_USAGE (no such parameter, no number, or nothing to compare). */
enum hth_err hth_study_check_against(const struct hth_study *study, const char *against) HTH_MUST;
/* `values` are [point][seed][metric], `out` [point][metric]; with count 0 where a point has nothing
 * beside it. Errors: as above. */
enum hth_err hth_study_differences(const struct hth_study *study, const char *against,
                                   const double *values, uint64_t seeds,
                                   struct hth_study_mean *out) HTH_MUST;

/* ---- for study_events.c -------------------------------------------------------------------- */

/* Errors: E_IO, said. */
enum hth_err hth_study_write_events(const struct hth_study *study,
                                    const struct hth_study_flags *flags) HTH_MUST;

/* ---- study_print.c ------------------------------------------------------------------------- */

/* The table, or one JSON object for each point; with `differences` (or NULL) another one of them.
 */
void hth_study_print(const struct hth_study *study, const struct hth_study_flags *flags,
                     const struct hth_study_mean *means, const struct hth_study_mean *differences);

/* ---- for study_files.c --------------------------------------------------------------------- */

/* `means` has metric_count of them for each point, and so has `differences`, or is NULL. Errors:
 * E_IO, said. */
enum hth_err hth_study_write(const struct hth_study *study, const struct hth_study_flags *flags,
                             const struct hth_study_mean *means,
                             const struct hth_study_mean *differences) HTH_MUST;
/* runs.csv: each run's numbers by themselves, for whoever compares points seed by seed. `values`
 * are [point][seed][metric]; points that nobody asked for are left out. Errors: E_IO, said. */
enum hth_err hth_study_write_runs(const struct hth_study *study,
                                  const struct hth_study_flags *flags,
                                  const double *values) HTH_MUST;
/* What config.json begins with: study, program and command. */
void hth_study_config_begin(FILE *to, const char *study, const char *command);
/* A string of JSON, quotes included. */
void hth_study_json_text(FILE *to, const char *text);
/* ",1.5" for a CSV file; what is not a number stays empty. */
void hth_study_csv_number(FILE *to, double value);
/* Whether two are equal or both not a number. */
bool hth_study_same_number(double a, double b);
/* Whether that point is the first of its part. */
bool hth_study_begins_part(const struct hth_study *study, size_t point);
/* Columns of the part that begins with a point: a parameter that has one value in all of it is said
 * once and not in each row, and a metric that was never measured not at all. */
struct hth_study_shown {
    bool param[HTH_STUDY_PARAMS_MAX], fixed[HTH_STUDY_PARAMS_MAX], metric[HTH_STUDY_METRICS_MAX];
};
void hth_study_find_shown(const struct hth_study *study, const struct hth_study_mean *means,
                          size_t first, struct hth_study_shown *out);
/* Whether anything was measured at a point, whose `means` these are. */
bool hth_study_has_metric(const struct hth_study *study, const struct hth_study_mean *means);
/* Whether anything was at any point of the part that begins with that one. */
bool hth_study_has_table(const struct hth_study *study, const struct hth_study_mean *means,
                         size_t first);
/* `"name":"a",...` for a point's part, series and parameters. */
void hth_study_json_point(FILE *to, const struct hth_study *study,
                          const struct hth_study_point *point);

/* ---- report.html: one file that needs no other --------------------------------------------- */

/* Opens DIR/report.html and writes its head. NULL when that failed, which was said. */
FILE *hth_report_begin(const char *dir, const char *title, const char *command, const char *about);
/* The picture DIR/svg itself, not a link to it; a sentence where there is none. */
void hth_report_picture(FILE *report, const char *dir, const char *svg);
/* A table of DIR/csv. */
void hth_report_csv(FILE *report, const char *dir, const char *csv);
/* Text with &, <, > and quotes escaped. */
void hth_report_text(FILE *report, const char *text);
/* Ends and closes it. Errors: E_IO, said. */
enum hth_err hth_report_end(FILE *report, const char *dir) HTH_MUST;

#endif
