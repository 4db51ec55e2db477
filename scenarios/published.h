/* SPDX-License-Identifier: Apache-2.0 */
/*
 * published.h: published results for the methods of pure.h, and the tolerance for each.
 *
 * Rounds until the variance is below 1e-9 and 1e-4, which are the last two columns of the table of
 * Moshpit SGD (Ryabinin et al., NeurIPS 2021), computed again with 200 seeds; random groups and
 * ring gossip are copied from the table, means of 10 runs. Mean squared errors after each of the
 * first rounds, 200 seeds. Everywhere: values from N(0, 1), a failed peer is absent for a round, 50
 * means that 50 rounds were not enough.
 *
 * A mean over seeds is noisy, the published one too. Where hth_pure_expected gives the mean over
 * all seeds, the published figure is compared with that first.
 */
#ifndef HTH_SCENARIOS_PUBLISHED_H
#define HTH_SCENARIOS_PUBLISHED_H

#include "scenarios/pure.h"

#define HTH_PUBLISHED_ROUNDS 6

struct hth_published {
    enum hth_pure_method method;
    uint32_t peers;
    struct hth_avg_shape shape;
    double p_fail;
    double to_1e9, to_1e4;            /* rounds */
    double mse[HTH_PUBLISHED_ROUNDS]; /* 0: not published */
};

/* In the order of population, method, probability. */
extern const struct hth_published hth_published[];
extern const size_t hth_published_count;

/* Options of a run of it: hth_pure's defaults and the fields above. */
struct hth_pure_opts hth_published_opts(const struct hth_published *p);
/* Tolerance of rounds: 0.2 for means of 200 seeds; 0.4, three standard errors, for means of 10
 * runs. */
double hth_published_rounds_off(const struct hth_published *p);
/* Whether the squared error after round t (from 0) agrees: within 5 % in the first round, later
 * within a factor of 2. */
bool hth_published_mse_agrees(uint32_t t, double published, double value);
/* Whether the rounds of an all-reduce with restarts agree with 1 / (1 - p)^N within 15 %. */
bool hth_published_allreduce_agrees(const struct hth_pure_opts *opts, double rounds);

#endif
