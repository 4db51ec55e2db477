/* SPDX-License-Identifier: Apache-2.0 */
/* sim_averaging.h: what the verb `sim averaging` (sim_averaging.c) hands to its files and pictures
 * (sim_averaging_out.c): configurations with what came out of them. */
#ifndef HTH_APP_SIM_AVERAGING_H
#define HTH_APP_SIM_AVERAGING_H

#include "sim/pure.h"

struct hth_avg_study {
    struct hth_pure_opts opts;
    uint64_t seeds;
    double *mean, *se; /* hth_pure_row_len of each */
};

/* Writes config.json, metrics.csv, rounds.csv, plot.gp and report.html (which tells the command)
 * into `dir` and draws the picture:
 * errors by round, or with `table` the rounds to 1e-9 by failure probability, one panel for each
 * population. `studies` are in the order of population, probability, method. Errors are said:
 * E_IO. */
enum hth_err hth_avg_study_write(const char *dir, const char *command, bool table,
                                 const struct hth_avg_study *studies, size_t count) HTH_MUST;

#endif
