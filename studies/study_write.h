/* SPDX-License-Identifier: Apache-2.0 */
/*
 * study_write.h: the output of a study: tables and JSON on standard output (study_print.c), and the
 * files of --out (study_files.c). Every output names the gaps. One thread.
 */
#ifndef HTH_STUDIES_STUDY_WRITE_H
#define HTH_STUDIES_STUDY_WRITE_H

#include "studies/study_model.h"

/* Print the table, or one JSON object for each point; with `differences` (or NULL) another one of
 * them. */
void hth_study_print(const struct hth_study *study, const struct hth_study_flags *flags,
                     const struct hth_study_mean *means, const struct hth_study_mean *differences);

/* Write the files. `means` has metric_count of them for each point, and so has `differences`, or is
 * NULL. Errors, reported: E_IO. */
enum hth_err hth_study_write(const struct hth_study *study, const struct hth_study_flags *flags,
                             const struct hth_study_mean *means,
                             const struct hth_study_mean *differences) HTH_MUST;
/* Write runs.csv: each run's own numbers, for comparisons seed by seed. `values` are
 * [point][seed][metric]; points that were not asked for are left out. Errors, reported: E_IO. */
enum hth_err hth_study_write_runs(const struct hth_study *study,
                                  const struct hth_study_flags *flags,
                                  const double *values) HTH_MUST;
/* Write the beginning of config.json: study, program and command. */
void hth_study_config_begin(FILE *to, const char *study, const char *command);
/* Write a JSON string, with quotes. */
void hth_study_json_text(FILE *to, const char *text);
/* Write ",1.5" to a CSV file; NaN becomes an empty field. */
void hth_study_csv_number(FILE *to, double value);
/* Write `"name":"a",...`: a point's part, series and parameters. */
void hth_study_json_point(FILE *to, const struct hth_study *study,
                          const struct hth_study_point *point);

#endif
