/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn.h: what the studies of learning share (convergence.c, storm.c): options, data, the
 * numbers that a run of scenarios/learn.h gives, and lists of points that one run measures.
 *
 * A *setup* is one run's options; its group of points shows, in any order, numbers of the end, of
 * places on the way (curves against updates or time) and of the histogram of staleness.
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
    size_t first; /* of the group under way */
};

/* The whole verb: parses the arguments, reads the data, lets `add_points` add its own, runs the
 * study. `study` says the rest: name, title, about, panels. Returns an exit code. */
struct hth_learn_verb {
    const char *doc;              /* of --help */
    uint32_t hosts;               /* by default */
    struct hth_study_column fail; /* what HTH_LEARN_FAIL is here */
    void (*add_points)(struct hth_learn_study *s);
    struct hth_study study;
};
int hth_learn_verb(const struct hth_learn_verb *verb, int argc, char **argv);

/* A classifier at that mean delay: with as many micro-batches in the air as it takes (4, 16, 32 at
 * 0, 100, 1000 ms), a grace to match, and 1 expert for the dense model of equal work. */
struct hth_learn_opts hth_learn_at(const struct hth_learn_study *s, double delay_ms,
                                   uint32_t experts);
/* The next group: what follows is measured by one run of these options. */
void hth_learn_group(struct hth_learn_study *s, const struct hth_learn_opts *o);
/* One more point of it, with the parameters of its options and this share of failures, which is
 * shown in per cent. */
struct hth_study_point *hth_learn_add(struct hth_learn_study *s, const char *part,
                                      const char *series, double fail);
/* Its curves, against updates and against time, and its histogram. */
void hth_learn_add_curves(struct hth_learn_study *s, const char *part, const char *series,
                          double fail);
void hth_learn_add_histogram(struct hth_learn_study *s, const char *part, const char *series,
                             double fail);
#endif
