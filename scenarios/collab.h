/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collab.h: what coming and going does to trainers who share one model.
 *
 * A crew (crew.h) learns to tell noisy pictures apart, with real arithmetic, in three
 * cases:
 *
 *   calm      the same trainers from the first step to the last
 *   churn     some of them die and others join, at steps drawn from the seed
 *   newcomer  one joins a run in the middle; and once more with a donor that dies half-way: when
 *             half of the state's parts have come, the one that gave most of them. Where trainers
 *             step by themselves the middle has to be after HTH_SHARE_LAG_LOCAL updates: before
 *             that a newcomer begins without a state
 *
 * A case is measured by the loss on the whole test set as a function of the samples behind it, so
 * that runs of different speed can be compared.
 */
#ifndef HTH_SCENARIOS_COLLAB_H
#define HTH_SCENARIOS_COLLAB_H

#include "sim/world.h"
#include "trainer/share.h"

#define HTH_COLLAB_POINTS_MAX 256

enum hth_collab_case { HTH_COLLAB_CALM, HTH_COLLAB_CHURN, HTH_COLLAB_NEWCOMER };

struct hth_collab_opts {
    uint64_t seed;
    uint64_t order; /* of the samples: another one is another run of the same kind */
    enum hth_collab_case what;
    enum hth_share_mode mode;
    uint32_t trainers;
    uint32_t steps;
    uint32_t rows;   /* of a micro-batch */
    uint64_t target; /* BATCH: samples of a step */
    uint32_t every;  /* as of share.h */
    uint32_t die, join;
    int64_t within_us;  /* a death comes so long after that step of the first trainer, at most: in
                         * the middle of a sweep, or of its averages */
    bool kill_donor;    /* NEWCOMER */
    uint32_t dim, side; /* width of the trunk; pictures have side * side pixels */
    hth_trace_fn *on_event; /* NULL: none */
    void *arg;
};
#define HTH_COLLAB_OPTS_INIT                                                                       \
    {                                                                                              \
        .seed = 1, .trainers = 8, .steps = 500, .rows = 8, .target = 256, .every = 50, .die = 2,   \
        .join = 3, .dim = 32, .side = 8                                                            \
    }

struct hth_collab_report {
    uint32_t died, joined;
    uint64_t steps, samples; /* of the first trainer, who stays */
    uint32_t points;
    double at[HTH_COLLAB_POINTS_MAX]; /* samples ... */
    double loss[HTH_COLLAB_POINTS_MAX];
    double accuracy;      /* at the end, a fraction */
    double spread;        /* largest relative distance between the trunks at the end */
    double drift;         /* BATCH: the same between two of them after any same update */
    double samples_min;   /* BATCH: behind a step, at least */
    uint64_t steps_alone; /* BATCH: of the first trainer */
    uint32_t yields;      /* states taken because most others had other parameters */
    uint32_t catch_ups;   /* of all trainers; the newcomers' first states included */
    double virtual_s;
    /* NEWCOMER */
    uint64_t state_bytes;
    double state_s, first_step_s;   /* from its start to its first update */
    uint64_t joined_at, first_step; /* steps of the run then */
    uint64_t donor_gave;            /* bytes, by the donor that died */
    double donor_died_at;           /* the fraction of the state that had come */
    uint64_t hash;
};

/* Errors: E_CONFIG (numbers that make no run), E_TIMEOUT (it did not end, or there was no donor to
 * kill), a boot's. */
enum hth_err hth_sim_collab(const struct hth_collab_opts *opts,
                            struct hth_collab_report *out) HTH_MUST;
/* Samples that all trainers together are meant to take (LOCAL: that the first one takes). */
double hth_collab_samples(const struct hth_collab_opts *opts);
/* Loss of a report at so many samples, between its points; NAN where it has none. */
double hth_collab_loss_at(const struct hth_collab_report *r, double samples);
/* Relative differences of r's loss from a calm run's at equal samples. */
struct hth_collab_difference {
    double worst, mean; /* over the second half of r's samples; the mean keeps its sign */
    double last;        /* at its end */
};
void hth_collab_compare(const struct hth_collab_report *r, const struct hth_collab_report *calm,
                        struct hth_collab_difference *out);

#endif
