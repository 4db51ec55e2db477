/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools.h: what studies share: work spread over threads, progress, numbers as JSON, files, a
 * picture drawn by gnuplot.
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

/* From here on the first SIGINT makes hth_sim_spread hand out no more indices, so that what is done
 * can be shown; the second ends the process. Where SIGINT is ignored it stays so. */
void hth_sim_heed_interrupts(void);
bool hth_sim_interrupted(void);

/* --threads as given, or as many as there are cores. */
uint32_t hth_sim_threads(uint32_t asked);
/* Makes malloc serve this process from huge pages and keep what is freed: a large world touches
 * other memory with each event, and a tenth of the time went into finding it. Call it once,
 * early. */
void hth_sim_settle_memory(void);
/* Monotonic, in us. */
int64_t hth_sim_clock_us(void);

/* How far a long study is, on standard error: on a terminal one line, written anew four times a
 * second; elsewhere, as in a log, a line for every half minute. Wall time, for people: no result
 * may depend on it. Several threads may say how far it is. */
struct hth_sim_progress {
    bool tty;
    int64_t begun_us, shown_us; /* shown_us: atomic */
};
void hth_sim_progress_begin(struct hth_sim_progress *p);
/* Says it if it is time to. */
void hth_sim_progress_say(struct hth_sim_progress *p, const char *fmt, ...) HTH_PRINTF(2, 3);
/* What is left when `done` of `total` took the time since the beginning. */
double hth_sim_progress_left_s(const struct hth_sim_progress *p, uint64_t done, uint64_t total);
/* Wipes the line off the terminal; more may be said afterwards. */
void hth_sim_progress_wipe(const struct hth_sim_progress *p);

/* `"name":1.5` and `"name":[1,2]` with 9 digits; what is not finite becomes null. */
void hth_sim_json_number(FILE *to, const char *name, double value);
void hth_sim_json_list(FILE *to, const char *name, const double *values, size_t count);

/* Makes DIR, and whether files can be made in it: to be asked before hours of work. Errors, said:
 * E_IO. */
enum hth_err hth_sim_check_out(const char *dir) HTH_MUST;
/* Opens DIR/name.part for writing, making DIR. Errors are said; NULL then. */
FILE *hth_sim_create(const char *dir, const char *name);
/* Closes it and makes it DIR/name, in place of an earlier one. Errors, said with their reason:
 * E_IO, when not all of it could be written; then it is gone, and an earlier one is as it was. */
enum hth_err hth_sim_finish(FILE *file, const char *dir, const char *name) HTH_MUST;
/* Removes what an earlier run left in DIR of the files that not every run writes, its pictures too:
 * beside new ones they would be taken for theirs. Errors, said: E_IO. */
enum hth_err hth_sim_forget(const char *dir) HTH_MUST;
/* Draws DIR/script with gnuplot, in DIR. Says what to do if there is no gnuplot: the data are there
 * anyway. False if there is no picture. */
bool hth_sim_draw(const char *dir, const char *script);

#endif
