/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timing.h: how fast a case of benchmarks/kernels/bench.h is, and the core's peak beside it, on a
 * machine that others use, too.
 *
 * A *turn* is short: the peak, a burst of runs on one thread, the peak; and the same with helpers.
 * Turns of several cases alternate, so that drift of the clock falls on all alike. What disturbs a
 * machine only adds time, so the fastest run of all turns counts; the first of each burst warms the
 * caches and does not count. For the same reason the highest peak does.
 *
 * One thread is timed by two clocks: its processor time, which leaves out what others got of the
 * core, and the wall. A run in which both agree was undisturbed and counts by the wall. Where there
 * was none, the fastest by processor time stands in; beside busy neighbours on the same hardware
 * that clock was seen to lose a quarter of a run. Several threads are timed by the wall alone: the
 * kernel gives no exact time of another thread, so on a machine that is not idle their figures are
 * those of whoever had the cores.
 */
#ifndef HTH_BENCHMARKS_TIMING_H
#define HTH_BENCHMARKS_TIMING_H

#include "benchmarks/kernels/bench.h"
#include "kernels/peak.h"

/* -- the fastest of several runs ------------------------------------------------------------ */

struct hth_bench_fastest {
    double s;  /* of one run; 0: there was none */
    bool sure; /* undisturbed, as far as the clocks tell */
};

struct hth_bench_watch {
    int64_t own_ns, wall_ns; /* clocks of the thread and of the wall */
};

void hth_bench_watch_start(struct hth_bench_watch *w);
/* `runs` runs on one thread or on many took so long: keeps the better of this and *f. Gives their
 * seconds together. */
double hth_bench_watch_stop(const struct hth_bench_watch *w, bool many, uint32_t runs,
                            struct hth_bench_fastest *f);
/* The better of *f and a run of which this is known. */
void hth_bench_fastest_add(struct hth_bench_fastest *f, struct hth_bench_fastest run);

/* -- turns ---------------------------------------------------------------------------------- */

struct hth_bench_peaks {
    struct hth_team *team;      /* borrowed; NULL: one thread only */
    uint32_t rounds[HTH_PEAKS]; /* that take about a millisecond */
};

void hth_bench_peaks_init(struct hth_bench_peaks *p, struct hth_team *team);

#define HTH_BENCH_PARTS_MAX 2

/* What all turns of a case found: [0] on one thread, [1] with helpers. Zeroed before the first. */
struct hth_bench_timing {
    struct hth_bench_case *work;
    struct hth_bench_fastest part[2][HTH_BENCH_PARTS_MAX], peak[2]; /* of peak: an operation */
};

/* Errors: those of the case. */
enum hth_err hth_bench_turn(const struct hth_bench_peaks *p, enum hth_peak kind,
                            struct hth_bench_timing *t) HTH_MUST;
/* Seconds of all parts of the case together. */
double hth_bench_timing_best(const struct hth_bench_timing *t, bool many);
/* Operations/s. */
double hth_bench_timing_peak(const struct hth_bench_timing *t, bool many);

#endif
