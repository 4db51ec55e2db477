/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools.h: tools of all studies: work spread over threads, progress, numbers as JSON, files,
 * pictures drawn by gnuplot.
 */
#ifndef HTH_STUDIES_TOOLS_H
#define HTH_STUDIES_TOOLS_H

#include "core/base.h"

#include <stdio.h>

/* Calls `run` for every index below `count` exactly once, from that many threads at the same time;
 * each thread has a `local` of its own, made by `open` and freed by `close`. Results must depend on
 * the index alone. Errors: those of `open`. */
struct hth_sim_work {
    enum hth_err (*open)(void *arg, void **local);
    void (*run)(void *arg, void *local, uint64_t index);
    void (*close)(void *local);
    void *arg;
};
enum hth_err hth_sim_spread(const struct hth_sim_work *work, uint64_t count,
                            uint32_t threads) HTH_MUST;

/* After this call the first SIGINT makes hth_sim_spread hand out no more indices, so that finished
 * runs can be shown; the second ends the process. An ignored SIGINT stays ignored. */
void hth_sim_heed_interrupts(void);
bool hth_sim_interrupted(void);

/* The --threads given, or the number of cores. */
uint32_t hth_sim_threads(uint32_t asked);
/* Make malloc use huge pages and keep freed memory: each event of a large world touches other
 * memory, and address translation took a tenth of the time. Call it once, early. */
void hth_sim_settle_memory(void);
/* Monotonic clock in us. */
int64_t hth_sim_clock_us(void);

/* Progress of a long study, on standard error: on a terminal one line that is rewritten four times
 * a second; in a log a line every half minute. Wall time, for people: no result may depend on it.
 * Several threads may report. */
struct hth_sim_progress {
    bool tty;
    int64_t begun_us, shown_us; /* shown_us: atomic */
};
void hth_sim_progress_begin(struct hth_sim_progress *p);
/* Show progress, if it is time to. */
void hth_sim_progress_say(struct hth_sim_progress *p, const char *fmt, ...) HTH_PRINTF(2, 3);
/* Estimate the remaining seconds when `done` of `total` took the time since the beginning. */
double hth_sim_progress_left_s(const struct hth_sim_progress *p, uint64_t done, uint64_t total);
/* Clear the line on the terminal; later calls may write it again. */
void hth_sim_progress_wipe(const struct hth_sim_progress *p);

/* Write `"name":1.5` or `"name":[1,2]` with 9 digits; numbers that are not finite become null. */
void hth_sim_json_number(FILE *to, const char *name, double value);
void hth_sim_json_list(FILE *to, const char *name, const double *values, size_t count);

/* Make DIR and check that files can be made in it, before hours of work. Errors, reported: E_IO. */
enum hth_err hth_sim_check_out(const char *dir) HTH_MUST;
/* Open DIR/name.part for writing, and make DIR. Returns NULL after an error, which is reported. */
FILE *hth_sim_create(const char *dir, const char *name);
/* Close the file and rename it to DIR/name, in place of an earlier one. Errors, reported: E_IO when
 * not all of it could be written; then the file is removed and an earlier one is unchanged. */
enum hth_err hth_sim_finish(FILE *file, const char *dir, const char *name) HTH_MUST;
/* Remove files of an earlier run in DIR that not every run writes, and its pictures: beside new
 * ones they would be mistaken for these. Errors, reported: E_IO. */
enum hth_err hth_sim_forget(const char *dir) HTH_MUST;
/* Draw DIR/script with gnuplot, in DIR. Without gnuplot it says how to get the picture: the data
 * are complete anyway. Returns false if there is no picture. */
bool hth_sim_draw(const char *dir, const char *script);

#endif
