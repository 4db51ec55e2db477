/* SPDX-License-Identifier: Apache-2.0 */
/*
 * study_model.h: the model of a study (study.h), without running or writing: statistics over its
 * seeds, the points that flags chose, differences between points, and gaps: runs that failed or
 * that an interrupt left undone. study_run.c runs, study_write.h writes. One thread.
 */
#ifndef HTH_STUDIES_STUDY_MODEL_H
#define HTH_STUDIES_STUDY_MODEL_H

#include "studies/study.h"

struct hth_study_mean hth_study_mean_of(const double *values, size_t count, size_t stride);
/* Half of the 95 % interval of a mean of `count` values, by Student's t. Below two values: NaN. */
double hth_study_half(double se, uint64_t count);

/* ---- which points were asked for: --only, --where ------------------------------------------- */

/* Check --only and --where. Errors, reported: E_USAGE (no such part or parameter, or no point is
 * left). */
enum hth_err hth_study_check_choice(const struct hth_study *study,
                                    const struct hth_study_flags *flags) HTH_MUST;
/* Whether one of `count` points was asked for. */
bool hth_study_is_chosen(const struct hth_study *study, const struct hth_study_point *points,
                         size_t count, const struct hth_study_flags *flags);
/* The first point of a group that was asked for. A group may begin with points of parts that were
 * not asked for, and that no file shows. */
const struct hth_study_point *hth_study_first_chosen(const struct hth_study *study,
                                                     const struct hth_study_point *group,
                                                     const struct hth_study_flags *flags);
bool hth_study_has_part(const struct hth_study *study, const char *part);
/* The index of the parameter whose name precedes the `=` of a text; param_count: none. */
size_t hth_study_param(const struct hth_study *study, const char *text);
/* Whether a parameter equals the given value, up to the precision of a float. */
bool hth_study_is_near(double param, double asked);

/* ---- differences, seed by seed: --against --------------------------------------------------- */

/* --against experts=1 compares each point with its reference: the point of its part that has this
 * value and differs in no other parameter (of several the one of its series, otherwise the first).
 * Both ran with the same seeds, so the difference is taken seed by seed, and the interval is that
 * of the mean difference: the effect of a seed on both cancels out. "experts=1,flights=4" is the
 * difference of differences: by how much the point's gain on the dense model exceeds that of its
 * reference with 4 in the air. At most three conditions. */

/* Check --against. Errors, reported: E_USAGE (no such parameter, no number, or nothing to
 * compare). */
enum hth_err hth_study_check_against(const struct hth_study *study, const char *against) HTH_MUST;
/* Compute the differences. `values` are [point][seed][metric], `out` [point][metric], with count 0
 * where a point has no reference. Errors: as above. */
enum hth_err hth_study_differences(const struct hth_study *study, const char *against,
                                   const double *values, uint64_t seeds,
                                   struct hth_study_mean *out) HTH_MUST;

/* ---- what a table shows --------------------------------------------------------------------- */

/* Whether two numbers are equal or both NaN. */
bool hth_study_same_number(double a, double b);
/* Whether that point is the first of its part. */
bool hth_study_begins_part(const struct hth_study *study, size_t point);
/* Columns of the part that begins with a point. A parameter with one value in the whole part is
 * named once above the table, and a metric without any measurement is left out. */
struct hth_study_shown {
    bool param[HTH_STUDY_PARAMS_MAX], fixed[HTH_STUDY_PARAMS_MAX], metric[HTH_STUDY_METRICS_MAX];
};
void hth_study_find_shown(const struct hth_study *study, const struct hth_study_mean *means,
                          size_t first, struct hth_study_shown *out);
/* Whether a point with these `means` has any measurement. */
bool hth_study_has_metric(const struct hth_study *study, const struct hth_study_mean *means);
/* Whether any point of the part that begins with that one has a measurement. */
bool hth_study_has_table(const struct hth_study *study, const struct hth_study_mean *means,
                         size_t first);

/* ---- gaps ----------------------------------------------------------------------------------- */

/* A run that failed, with the first point of its group that was asked for. */
struct hth_study_failure {
    const struct hth_study_point *point;
    uint64_t seed;
    enum hth_err err;
};

/* The gaps of a study. An interrupt (SIGINT) leaves runs undone: then only seeds count with which
 * all points were run, or, where there is no such seed (`seeds` 0), all finished runs. */
struct hth_study_gaps {
    const struct hth_study_failure *failures; /* by point and seed */
    size_t failure_count;
    bool interrupted;
    uint64_t runs, runs_asked, seeds, seeds_asked;
};

/* "storm: all three, delay_ms 1000, strength_pct 100", as in config.json. Heap string. */
char *hth_study_point_name(const struct hth_study *study, const struct hth_study_point *point);
/* Text for people of a run's error. */
const char *hth_study_why(enum hth_err err);
/* "interrupted after 23 of 90 runs; shown are 2 of 5 seeds". Heap string. */
char *hth_study_interrupted_text(const struct hth_study_gaps *gaps);

#endif
