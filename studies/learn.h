/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn.h: shared by the studies of learning (convergence.c, storm.c): options, data, the numbers
 * of a run of scenarios/learn.h, and lists of points that one run measures.
 *
 * A *setup* is one run's options. Its group of points has, in any order, numbers of the run's end,
 * of moments during the run (curves against updates or time) and of the histogram of staleness.
 */
#ifndef HTH_STUDIES_LEARN_H
#define HTH_STUDIES_LEARN_H

#include "scenarios/learn.h"
#include "studies/study.h"

/* Parameters, and the metrics of all points but those of a histogram. */
enum {
    HTH_LEARN_DELAY_MS,
    HTH_LEARN_FAIL,
    HTH_LEARN_EXPERTS,
    HTH_LEARN_FLIGHTS,
    HTH_LEARN_TRAINERS,
    HTH_LEARN_GRACE_S,
    HTH_LEARN_RATE,
    HTH_LEARN_UPDATES,
    HTH_LEARN_SEEN, /* samples */
    HTH_LEARN_TIME_S,
    HTH_LEARN_STALE,
    HTH_LEARN_PARAMS
};
enum {
    HTH_LEARN_LOSS,
    HTH_LEARN_RIGHT,
    HTH_LEARN_BITS,
    HTH_LEARN_SAMPLES_PER_S,
    HTH_LEARN_USEFUL_PER_S,
    HTH_LEARN_ANSWERED,
    HTH_LEARN_SHORT,
    HTH_LEARN_EMPTY,
    HTH_LEARN_WASTED,
    HTH_LEARN_STALENESS,
    HTH_LEARN_USED,
    HTH_LEARN_BUSIEST,
    HTH_LEARN_DEATHS,
    HTH_LEARN_SHARE,
    HTH_LEARN_METRICS
};

#define HTH_LEARN_POINTS_MAX 640
#define HTH_LEARN_SETUPS_MAX 128

struct hth_learn_study {
    struct hth_study_flags flags;
    struct hth_learn_opts base;
    const char *folder, *text, *backend;
    bool quick;
    struct hth_learn_data data;
    uint8_t *files[5];
    struct hth_learn_opts setups[HTH_LEARN_SETUPS_MAX];
    size_t setup_count;
    struct hth_study_point points[HTH_LEARN_POINTS_MAX];
    size_t point_count;
    size_t first; /* first point of the group under way */
};

/* The whole verb: parse the arguments, read the data, let `add_points` add its points, run the
 * study. `study` has the rest: name, title, about, panels. Returns an exit code. */
struct hth_learn_verb {
    const char *doc;              /* of --help */
    uint32_t hosts;               /* by default */
    struct hth_study_column fail; /* the meaning of HTH_LEARN_FAIL in this study */
    void (*add_points)(struct hth_learn_study *s);
    struct hth_study study;
};
int hth_learn_verb(const struct hth_learn_verb *verb, int argc, char **argv);

/* Options of a classifier at that mean delay: enough micro-batches in the air (4, 16, 32 at 0, 100,
 * 1000 ms), a grace to match, and 1 expert for the dense model of equal work. */
struct hth_learn_opts hth_learn_at(const struct hth_learn_study *s, double delay_ms,
                                   uint32_t experts);
/* Begin a group: one run of these options measures all points that follow. */
void hth_learn_group(struct hth_learn_study *s, const struct hth_learn_opts *o);
/* Add a point to the group, with the parameters of its options and this share of failures, which is
 * shown in per cent. */
struct hth_study_point *hth_learn_add(struct hth_learn_study *s, const char *part,
                                      const char *series, double fail);
/* Add the group's curves, against updates and against time, and its histogram. */
void hth_learn_add_curves(struct hth_learn_study *s, const char *part, const char *series,
                          double fail);
void hth_learn_add_histogram(struct hth_learn_study *s, const char *part, const char *series,
                             double fail);
#endif
