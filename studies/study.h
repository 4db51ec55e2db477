/* SPDX-License-Identifier: Apache-2.0 */
/*
 * study.h: the frame of all studies of `hearth sim`: many runs of a simulation, each from its own
 * seed, and their statistics.
 *
 * A study is a list of *points*: settings to measure. A point belongs to a *part* of the study
 * (which varies one thing), to a *series* within it (a curve of the picture), and has values of the
 * study's parameters. Each point is run with the seeds seed .. seed + seeds - 1, and each run gives
 * one number for each metric; NaN stands for "nothing to measure here". Where one run measures
 * several points, as with the places of a curve, these follow each other as a *group*: the first
 * says how many they are.
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
 * With --events the first seed of each group is run once more, and DIR/events.csv has the starts
 * and crashes of its nodes.
 *
 * Each part that has panels is a picture of its own, PART.png and PART.svg, and a chapter of the
 * report.
 *
 * Results depend on the points and seeds alone, never on threads or time: two runs give the same
 * files. The command in them leaves out options that change no number (--out, --threads, --json).
 * The interval of a mean over n seeds is Student's: t(0.975, n - 1) standard errors to both sides;
 * with one seed there is none.
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

/* A column: its name in files, its label for people with its unit, and the decimals that a table
 * shows. */
struct hth_study_column {
    const char *name, *label;
    int decimals;
};

struct hth_study_point {
    const char *part, *series;
    double param[HTH_STUDY_PARAMS_MAX]; /* NaN: does not apply */
    const void *setup;                  /* for `run`; may be NULL */
    /* number of points, from this one on, that one run measures; 0: 1 */
    size_t group;
};

/* One frame of a picture: metric y against parameter x, for all points of a part. */
struct hth_study_panel {
    const char *part, *title;
    uint32_t x, y;
    bool log_x, log_y;
    bool zoom; /* y does not begin at 0 */
};

/* The trace callback of a run, for the world's options; event is NULL without one. */
struct hth_study_watch {
    hth_trace_fn *event;
    void *arg;
};

/* Mean, standard error and half of the 95 % interval of the finite values. With one value the last
 * two are NaN, with none all three. */
struct hth_study_mean {
    double mean, se, half;
    uint64_t count;
};

/* Everything is borrowed. Names and labels hold no quotes, commas or line ends. */
struct hth_study {
    const char *name;  /* "throughput" */
    const char *title; /* over the report */
    const char *about; /* a paragraph: the method and its limits */
    const struct hth_study_column *params, *metrics;
    size_t param_count, metric_count;
    const struct hth_study_panel *panels;
    size_t panel_count;
    /* index of the metric with an aim: to lie `within` so much of 0. Its panels show */
    size_t aimed;
    double within; /* lines at 0 and at both limits. 0: no aim */
    const struct hth_study_point *points;
    size_t point_count;
    /* Measure the group that begins with `point` with one seed. `values` has one of each metric for
     * each of its points. */
    enum hth_err (*run)(void *arg, const struct hth_study_point *point, uint64_t seed,
                        const struct hth_study_watch *watch, double *values);
    /* Return a sentence about all means, for below the tables and above the report. `shown` has the
     * points that were asked for. NULL, or a heap string. May be NULL. */
    char *(*verdict)(void *arg, const struct hth_study *shown, const struct hth_study_mean *means);
    void *arg;
    /* Files that describe the runs, for config.json: path, text, path, text, NULL. May be NULL. */
    const char *const *sources;
    const struct hth_study_gaps *gaps; /* study_model.h; set by hth_study_run */
};

/* Flags of every study, an argp child whose input is this struct. */
struct hth_study_flags {
    uint64_t seed, seeds;
    uint32_t threads; /* 0: cores */
    bool json;
    bool events;      /* needs `out` */
    const char *out;  /* NULL: no files */
    const char *only; /* NULL: all parts; otherwise their names, separated by commas */
    /* NULL: all points. "flights=16,64": the points with such a value; several conditions,
     * separated by semicolons, must all hold. The flags' text is in where_text. */
    const char *where;
    char where_text[256];
    const char *against; /* NULL: none; else "experts=1": see study_model.h */
    bool quiet;          /* print nothing on standard output: for tests */
    const char *command; /* as in hth_study_command */
};
#define HTH_STUDY_FLAGS_INIT                                                                       \
    {                                                                                              \
        .seed = 1, .seeds = 5, .command = ""                                                       \
    }
extern const struct argp hth_study_argp;

/* The command as files show it: the arguments without those that change no number. Call it before
 * argp_parse, which reorders them. Heap string. */
char *hth_study_command(int argc, char **argv);

/* Run all points, print the table or one JSON object for each point, write the files, and report
 * errors. The table and the files name each failed run with the points that it would have measured;
 * the other runs count. Errors: E_TRUNCATED (some runs failed), or the first error where all
 * failed; E_CANCELED (SIGINT: completed seeds are shown); E_USAGE (`only`, `where`, `against`),
 * E_TOO_LARGE (too many runs), E_IO (files; before any run where `out` is not writable). */
enum hth_err hth_study_run(const struct hth_study *study,
                           const struct hth_study_flags *flags) HTH_MUST;

#endif
