/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collab.h: what churn does to trainers that share one model.
 *
 * A crew (crew.h) learns to tell noisy pictures apart, with real arithmetic, in three
 * cases:
 *
 *   calm      the same trainers from the first step to the last
 *   churn     some of them crash and others join, at steps drawn from the seed
 *   newcomer  one joins a run in the middle; and once more with a donor that crashes half-way: when
 *             half of the state's chunks have arrived, the donor of most of them crashes. Where
 *             trainers step by themselves, the middle must be after HTH_SHARE_LAG_LOCAL updates: an
 *             earlier newcomer begins without a state
 *
 * The measure is the loss on the whole test set as a function of the samples trained on, so that
 * runs of different speed can be compared.
 */
#ifndef HTH_SCENARIOS_COLLAB_H
#define HTH_SCENARIOS_COLLAB_H

#include "sim/world.h"
#include "trainer/share.h"

#define HTH_COLLAB_POINTS_MAX 256

enum hth_collab_case { HTH_COLLAB_CALM, HTH_COLLAB_CHURN, HTH_COLLAB_NEWCOMER };

struct hth_sim_collab_opts {
    uint64_t seed;
    uint64_t order; /* seed of the samples' order: another order is another run of the same kind */
    enum hth_collab_case what;
    enum hth_share_mode mode;
    uint32_t trainers;
    uint32_t steps;
    uint32_t rows;   /* rows of a micro-batch */
    uint64_t target; /* BATCH: samples of a step; more than 16 trainers average on a grid */
    uint32_t every;  /* as of share.h */
    uint32_t die, join;
    /* a crash comes at most so long after that step of the first trainer: in the middle of a sweep,
     * or of its averages */
    int64_t within_us;
    bool kill_donor;        /* NEWCOMER */
    uint32_t dim, side;     /* width of the trunk; pictures have side * side pixels */
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
    uint64_t steps, samples; /* of the first trainer, which stays */
    uint32_t points;
    double at[HTH_COLLAB_POINTS_MAX]; /* numbers of samples ... */
    double loss[HTH_COLLAB_POINTS_MAX];
    double accuracy;      /* at the end, a fraction */
    double spread;        /* largest relative distance between the trunks at the end */
    double drift;         /* BATCH: the same between two trunks after the same update */
    double samples_min;   /* BATCH: least number of samples of a step */
    uint64_t steps_alone; /* BATCH: of the first trainer */
    uint32_t yields;      /* states adopted because most others had other parameters */
    uint32_t catch_ups;   /* of all trainers, first states of newcomers included */
    double virtual_s;
    /* NEWCOMER */
    uint64_t state_bytes;
    double state_s, first_step_s;   /* from its start to its first update */
    uint64_t joined_at, first_step; /* steps of the run at these times */
    uint64_t donor_gave;            /* bytes that the crashed donor had given */
    double donor_died_at;           /* the fraction of the state that had arrived */
    uint64_t hash;
};

/* Run one case. Errors: E_CONFIG (numbers that make no run), E_TIMEOUT (it did not end, or there
 * was no donor to crash), those of a boot. */
enum hth_err hth_sim_collab(const struct hth_sim_collab_opts *opts,
                            struct hth_collab_report *out) HTH_MUST;
/* Samples that all trainers together are to take (LOCAL: that the first one takes). */
double hth_collab_samples(const struct hth_sim_collab_opts *opts);
/* Loss of a report after so many samples, interpolated. Steps bring a micro-batch more than the
 * target, so that the points of two runs are not at the same samples: beyond the first or the last
 * point it is that point's loss, as far as half of the way to the next one. NAN farther out. */
double hth_collab_loss_at(const struct hth_collab_report *r, double samples);
/* Relative differences between r's loss and a calm run's at equal samples. */
struct hth_collab_difference {
    double worst, mean; /* over the second half of r's samples; the mean keeps its sign */
    double last;        /* at its end */
};
void hth_collab_compare(const struct hth_collab_report *r, const struct hth_collab_report *calm,
                        struct hth_collab_difference *out);

#endif
