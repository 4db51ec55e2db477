/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_lines.h: the lines that `hearth train` appends to metrics.jsonl in its folder, or to the
 * FILE of --metrics, one JSON object each; t is Unix time in seconds:
 *
 *   {"kind":"progress", "t", "step", "samples", "loss", "accuracy", "samples_per_s", "gap_ms",
 *    "calls", "calls_failed", "calls_retried", "bytes", "rows_mixed", "rows_lost", "not_finite",
 *    "answers_bad", "parts_bad", "parts_refused", "experts_live", "staleness_mean", "trainers",
 *    "rounds", "rounds_failed", "means_refused", "distance", "weight_fraction",
 *    "phase"}
 *   {"kind":"eval", "t", "step", "samples", "loss", "accuracy", "bits_per_byte"}, of a
 *    picture model with "bits_per_code"
 *   {"kind":"end", "t", "step", "code"}
 *
 * A progress line comes every half second in the FILE of --metrics. In the folder it comes ever
 * less often: after a hundredth of the time since the start, between half a second and a minute, so
 * that the file stays small (a day has about 2,000 lines). `rows_lost` counts those of the
 * `rows_mixed` of all layers that had no expert. `rounds` counts rounds of gradients and of
 * parameters, as on the status page. `weight_fraction` is that of the last
 * round. `distance` is the distance to the last mean of parameters, over its norm.
 *
 * Training continues without a line that can't be written: the first one is reported, all are
 * counted.
 *
 * Loop thread.
 */
#ifndef HTH_APP_TRAIN_LINES_H
#define HTH_APP_TRAIN_LINES_H

#include "app/together.h"

#include <stdio.h>

/* All zero: no file, and nothing is written. */
struct hth_train_lines {
    FILE *file;
    const char *path; /* borrowed */
    struct hth_env *env;
    uint64_t lost; /* lines that could not be written */
    bool thin;     /* ever less often */
    int64_t begun_us, next_us;
};

/* Errors: E_IO, printed. */
enum hth_err hth_train_lines_open(struct hth_train_lines *l, struct hth_env *env, const char *path,
                                  bool thin) HTH_MUST;
/* Whether it is time for a progress line. */
bool hth_train_lines_due(struct hth_train_lines *l);
/* `gap_us`: the longest time without an update since the last line. */
void hth_train_lines_progress(struct hth_train_lines *l, struct hth_together *together,
                              const struct hth_train_stats *stats, int64_t gap_us);
void hth_train_lines_eval(struct hth_train_lines *l, const struct hth_eval_result *result);
/* Writes the last line; prints how many lines were lost, if any. */
void hth_train_lines_end(struct hth_train_lines *l, uint64_t step, int code);
/* Also if it was never opened. */
void hth_train_lines_close(struct hth_train_lines *l);

#endif
