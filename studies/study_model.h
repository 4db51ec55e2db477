/* SPDX-License-Identifier: Apache-2.0 */
/*
 * study_model.h: what a study's points and numbers mean (study.h), without running or writing: the
 * statistics of its seeds, the points that flags chose, differences between points, and gaps: runs
 * that failed or that an interrupt left undone. study_run.c runs, study_write.h writes. One thread.
 */
#ifndef HTH_STUDIES_STUDY_MODEL_H
#define HTH_STUDIES_STUDY_MODEL_H

#include "studies/study.h"

struct hth_study_mean hth_study_mean_of(const double *values, size_t count, size_t stride);
/* Half of the 95 % interval of a mean of `count` values: Student's. Below two: NaN. */
double hth_study_half(double se, uint64_t count);

/* ---- which points were asked for: --only, --where ------------------------------------------- */

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

/* ---- differences, seed by seed: --against --------------------------------------------------
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

/* ---- what a table shows --------------------------------------------------------------------- */

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

/* ---- what is missing ------------------------------------------------------------------------ */

/* A run that failed; of its group the first point that was asked for. */
struct hth_study_failure {
    const struct hth_study_point *point;
    uint64_t seed;
    enum hth_err err;
};

/* What a study lacks. An interrupt (SIGINT) leaves runs undone: then only seeds count with which
 * all points were run, or, where there is no such seed (`seeds` 0), whatever was run. */
struct hth_study_gaps {
    const struct hth_study_failure *failures; /* by point and seed */
    size_t failure_count;
    bool interrupted;
    uint64_t runs, runs_asked, seeds, seeds_asked;
};

/* "storm: all three, delay_ms 1000, strength_pct 100", as in config.json. Heap string. */
char *hth_study_point_name(const struct hth_study *study, const struct hth_study_point *point);
/* What an error of a run means to people. */
const char *hth_study_why(enum hth_err err);
/* "interrupted after 23 of 90 runs; shown are 2 of 5 seeds". Heap string. */
char *hth_study_interrupted_text(const struct hth_study_gaps *gaps);

#endif
