/* SPDX-License-Identifier: Apache-2.0 */
/*
 * study_gaps.h: what a study (study.h) lacks, because runs of it failed or an interrupt left them
 * undone, in the table, the report and the files. Where nothing is missing none of these functions
 * says anything. One thread.
 */
#ifndef HTH_STUDIES_STUDY_GAPS_H
#define HTH_STUDIES_STUDY_GAPS_H

#include "studies/study.h"

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
/* Nothing where nothing is missing. */
void hth_study_print_gaps(const struct hth_study *study, bool json);
void hth_study_report_gaps(FILE *to, const struct hth_study *study);
void hth_study_config_gaps(FILE *to, const struct hth_study *study);
/* failures.csv, where there are any. Errors: E_IO, said. */
enum hth_err hth_study_write_gaps(const struct hth_study *study,
                                  const struct hth_study_flags *flags) HTH_MUST;

#endif
