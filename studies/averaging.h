/* SPDX-License-Identifier: Apache-2.0 */
/*
 * averaging.h: the parts of the verb `sim averaging`.
 *
 *   averaging.c         flags
 *   averaging_plan.c    from flags to configurations
 *   averaging_run.c     runs them: the model of scenarios/pure.h, or the production averager in the
 *                           world of scenarios/average.h
 *   averaging_print.c   tables and JSON
 *   averaging_out.c     files and the report
 *   averaging_draw.c    pictures
 *   averaging_sweep.c   table and picture of lists of peers, grids and probabilities
 *   averaging_golden.c  the table beside published figures
 *
 * Both models give lists by round (mse, variance, vectors sent) first, and then rounds to two
 * targets; so they share all of these files.
 */
#ifndef HTH_STUDIES_AVERAGING_H
#define HTH_STUDIES_AVERAGING_H

#include "scenarios/average.h"
#include "studies/tools.h"

#include <stdio.h>

/* A configuration and its results. The pure model uses only opts.base. */
struct hth_avg_study {
    bool protocol;
    size_t panel, place; /* index of its population and of its probability among those asked for */
    struct hth_average_opts opts;
    uint64_t seeds;
    size_t lists; /* by round, as in enum hth_average_metric */
    /* lists * rounds + 4 of each; half: of a 95 % interval. With one seed the last two are NaN */
    double *mean, *se, *half;
};

enum hth_avg_picture {
    HTH_AVG_CURVES,  /* errors by round */
    HTH_AVG_TABLE,   /* rounds to 1e-9 of all methods, a panel for each population */
    HTH_AVG_COMPARE, /* the two models side by side, a panel for each population */
    HTH_AVG_SWEEP,   /* lists of populations and probabilities: rounds, remaining distance */
};

/* The whole request. Studies are in the order of population, probability, method. */
struct hth_avg_request {
    struct hth_avg_study *studies;
    size_t count;
    enum hth_avg_picture picture;
    uint32_t threads;
    bool json, no_wall, events;
    bool golden;         /* with HTH_AVG_TABLE: published figures and ours instead of the table */
    const char *out;     /* NULL: no files */
    const char *command; /* as in hth_study_command */
    struct hth_sim_progress progress;
};

/* ---- averaging_plan.c ------------------------------------------------------------------ */

#define HTH_AVG_STUDIES_MAX 256
#define HTH_AVG_LIST_MAX    8 /* of --peers, --grid and --p-fail each */

enum { HTH_AVG_PURE, HTH_AVG_PROTOCOL, HTH_AVG_MODELS };

/* The values of the flags. */
struct hth_avg_ask {
    struct hth_average_opts opts; /* method and failure are set for each study */
    bool methods[HTH_PURE_METHODS];
    bool failures[HTH_PURE_FAILURES];
    bool models[HTH_AVG_MODELS];
    bool has_methods, table, compare;
    const char *population; /* the last flag that chose one; NULL: none */
    const char *world;      /* the last flag of the protocol's world */
    uint32_t peers[HTH_AVG_LIST_MAX];
    struct hth_avg_shape grids[HTH_AVG_LIST_MAX];
    double p_fails[HTH_AVG_LIST_MAX];
    size_t peers_count, grid_count, p_count;
    uint64_t seeds;      /* 0: by model */
    size_t panel, place; /* indices of the studies that are being added */
    struct hth_avg_study studies[HTH_AVG_STUDIES_MAX];
    struct hth_avg_request request;
};

/* Fill in studies and request. Errors: E_USAGE, reported. */
enum hth_err hth_avg_plan(struct hth_avg_ask *ask) HTH_MUST;

/* ---- averaging_run.c ------------------------------------------------------------------- */

/* Run a study and fill in its results; shows progress on a terminal. Errors: E_CONFIG, E_TOO_LARGE,
 * E_NO_MEMORY, those of hth_sim_average. */
enum hth_err hth_avg_study_run(struct hth_avg_request *r, size_t index) HTH_MUST;
void hth_avg_study_clear(struct hth_avg_study *s);

/* "moshpit", "random", ... */
const char *hth_avg_study_method(const struct hth_avg_study *s);
const char *hth_avg_study_model(const struct hth_avg_study *s);
/* The index of HTH_PURE_REACHED and so on. */
size_t hth_avg_study_at(const struct hth_avg_study *s, int what);
/* The mean of number t of a list. */
double hth_avg_study_mean(const struct hth_avg_study *s, enum hth_average_metric m, uint32_t t);
/* "mse" and so on. */
const char *hth_avg_metric_name(enum hth_average_metric m);

/* ---- averaging_print.c ----------------------------------------------------------------- */

void hth_avg_print_json(const struct hth_avg_study *s);
void hth_avg_print_curves(const struct hth_avg_study *s);
void hth_avg_print_table(const struct hth_avg_request *r);
void hth_avg_print_compare(const struct hth_avg_request *r);

/* ---- averaging_sweep.c ----------------------------------------------------------------- */

/* Print a row for each study. */
void hth_avg_print_sweep(const struct hth_avg_request *r);
/* Write the script of the picture "sweep": above, rounds to a variance of 1e-9; below, the distance
 * to the true mean after the last round; against the probability, with a column for each
 * population. Returns the picture's name. */
const char *hth_avg_draw_sweep(FILE *to, const struct hth_avg_request *r);

/* ---- averaging_golden.c ---------------------------------------------------------------- */

/* Print a row for each published figure (scenarios/published.h) and each all-reduce. Returns
 * whether all agree, except those that the exact expectation shows to be off themselves. */
bool hth_avg_print_golden(const struct hth_avg_request *r);

/* ---- averaging_out.c, averaging_draw.c --------------------------------------------- */

/* Begin a script: a loop over two terminals, NAME.png and NAME.svg, which the caller ends. */
void hth_avg_draw_terminals(FILE *to, const char *name, int width, int height);
/* Write "seed 1", "20 seeds, 95 % intervals", or the seeds of models and averager. */
void hth_avg_draw_seeds(FILE *to, const struct hth_avg_request *r);
/* Write the label of a study in the key of a picture; `failures`: with the kind of failure. */
void hth_avg_draw_label(FILE *to, const struct hth_avg_study *s, bool protocol, bool failures);

/* Write config.json, metrics.csv, rounds.csv, plot.gp, report.html and the pictures into r->out;
 * with `events` also events.csv, for which the first seed of each protocol study is run once more.
 * Errors, reported: E_IO. */
enum hth_err hth_avg_study_write(const struct hth_avg_request *r) HTH_MUST;
/* Write the script of any other picture. Returns its name without an ending. */
const char *hth_avg_draw(FILE *to, const struct hth_avg_request *r);

#endif
