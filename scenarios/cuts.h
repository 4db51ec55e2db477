/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuts.h: a run by roll call (collab/collab.h) whose network is cut in two for a while.
 *
 *     warm-up     cut: part 0 and part 1 hear nothing of each other       whole again
 *     |--------->|------------------------------------------------------>|--------------->|
 *                  a part without a quorum waits (strict), or goes on       one chain stays
 *
 * A crew (crew.h) trains a small model with real arithmetic. Each link that a trainer steps on is
 * noted, with the time, so that afterwards the run's history is known: which links were continued,
 * which were dropped, and when all trainers held a link of the chain that stayed.
 */
#ifndef HTH_SCENARIOS_CUTS_H
#define HTH_SCENARIOS_CUTS_H

#include "core/base.h"

struct hth_cut_opts {
    uint64_t seed;
    uint32_t members;
    uint32_t away; /* trainers in part 1: less than all */
    int64_t cut_us;
    bool unlike; /* the slowest machine takes 10 times as long as the fastest */
    bool strict; /* averaging.majority */
    bool grid;   /* they average on a grid of two axes, not in a line */
};

struct hth_cut_report {
    uint32_t both_stepped;   /* steps of which two links were continued */
    uint32_t dropped;        /* links that were made since the cut, and are not in the chain */
    uint64_t lost_samples;   /* in them */
    uint32_t links[2];       /* made by each part during the cut */
    double still_s[2];       /* longest time without a new link beyond what its batch takes */
    double healed_s;         /* from the heal until all hold one chain for 4 s; < 0: never */
    bool loser_stays;        /* a dropped chain had more samples than the one that stayed */
    uint32_t bits_differ;    /* trainers with other parameters than others at the same link */
    uint64_t steps, samples; /* of the chain that stayed */
    uint64_t hash;           /* of the world's events */
};

/* Runs one cut. Errors: E_CONFIG (numbers that make no cut), those of a boot. */
enum hth_err hth_sim_cut(const struct hth_cut_opts *opts, struct hth_cut_report *out) HTH_MUST;
/* The first promise that a report breaks, in words; NULL: it keeps all. */
const char *hth_cut_broken(const struct hth_cut_opts *opts, const struct hth_cut_report *r);

/* The table: all splits of 4, 5, 9 and 16 trainers by sizes, cuts of 1 to 300 s, machines alike and
 * unlike, both modes; first in a line, then on a grid. The seed is left at 0. */
uint32_t hth_cuts_rows(void);
struct hth_cut_opts hth_cuts_row(uint32_t row);

#endif
