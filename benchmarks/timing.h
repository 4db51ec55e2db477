/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timing.h: times a case of benchmarks/kernels/bench.h and the core's peak beside it, on a machine
 * with other load.
 *
 * A *turn* is short: the peak, a burst of runs on one thread, the peak; and the same with helpers.
 * Turns of several cases alternate, so that drift of the core's clock meets all alike. Disturbances
 * only add time, so the fastest run of all turns counts, and the highest peak. The first run of
 * each burst warms the caches and does not count.
 *
 * One thread is timed by two clocks: its processor time, which excludes time that the core gave to
 * others, and the wall. A run in which both agree is undisturbed and counts by the wall. If there
 * is none, the fastest run by processor time counts; beside busy neighbours on the same hardware
 * that clock has been seen to lose a quarter of a run. Several threads are timed by the wall alone,
 * because the kernel gives no exact time of another thread: on a busy machine their figures include
 * the time that other processes took.
 */
#ifndef HTH_BENCHMARKS_TIMING_H
#define HTH_BENCHMARKS_TIMING_H

#include "benchmarks/kernels/bench.h"
#include "kernels/peak.h"

/* -- the fastest of several runs ------------------------------------------------------------ */

struct hth_bench_fastest {
    double s;  /* seconds of one run; 0: none yet */
    bool sure; /* undisturbed: both clocks agree */
};

struct hth_bench_watch {
    int64_t own_ns, wall_ns; /* clocks of the thread and of the wall */
};

void hth_bench_watch_start(struct hth_bench_watch *w);
/* Ends the watch over `runs` runs, on one thread or on many: keeps the better of this and *f.
 * Returns the seconds of all runs. */
double hth_bench_watch_stop(const struct hth_bench_watch *w, bool many, uint32_t runs,
                            struct hth_bench_fastest *f);
/* Keeps the better of *f and a run. */
void hth_bench_fastest_add(struct hth_bench_fastest *f, struct hth_bench_fastest run);

/* -- turns ---------------------------------------------------------------------------------- */

struct hth_bench_peaks {
    struct hth_team *team;      /* borrowed; NULL: one thread only */
    uint32_t rounds[HTH_PEAKS]; /* rounds that take about a millisecond */
    double rate[HTH_PEAKS];     /* operations/s when they were counted; 0: not usable */
};

void hth_bench_peaks_init(struct hth_bench_peaks *p, struct hth_team *team);
/* The quickest instruction of this CPU for products of that type or a wider one. */
enum hth_peak hth_bench_peaks_best(const struct hth_bench_peaks *p, enum hth_matmul compute);

#define HTH_BENCH_PARTS_MAX 2

/* Results of all turns of a case: [0] on one thread, [1] with helpers. Zero it before the first. */
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
