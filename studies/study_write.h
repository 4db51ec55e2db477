/* SPDX-License-Identifier: Apache-2.0 */
/*
 * study_write.h: what a study shows: tables and JSON on standard output (study_print.c), and the
 * files of --out (study_files.c). Gaps are named wherever numbers are shown. One thread.
 */
#ifndef HTH_STUDIES_STUDY_WRITE_H
#define HTH_STUDIES_STUDY_WRITE_H

#include "studies/study_model.h"

/* The table, or one JSON object for each point; with `differences` (or NULL) another one of
 * them. */
void hth_study_print(const struct hth_study *study, const struct hth_study_flags *flags,
                     const struct hth_study_mean *means, const struct hth_study_mean *differences);

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
/* `"name":"a",...` for a point's part, series and parameters. */
void hth_study_json_point(FILE *to, const struct hth_study *study,
                          const struct hth_study_point *point);

#endif
