/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shares.h: who reduces how much of the vector.
 *
 * In a butterfly all-reduce each of n peers owns a share w of the vector. It takes that share from
 * the n - 1 others and returns the mean to them, and sends the rest of its own vector out:
 *
 *     down   (n - 1) w  + (1 - w)  =  1 + (n - 2) w      vectors, and up the same
 *
 * With bandwidth b that takes (1 + (n - 2) w) / b per unit of vector. The slowest peer ends the
 * round, so the shares minimise the largest of these times:
 *
 *     minimise xi = max_i (1 + (n - 2) w_i) / b_i     with  sum w = 1, w >= 0
 *
 * which is solved by filling water: w_i = max(0, (xi b_i - 1) / (n - 2)), with the level xi at
 * which they sum to 1. Sorted by bandwidth the level is found exactly, without iterating: if the k
 * fastest reduce, xi = (n - 2 + k) / (b_1 + ... + b_k), and k grows while the next peer's share
 * would be positive. A peer too slow to reduce anything still has to move its own vector once,
 * which may be what the round waits for: xi is at least 1 / (smallest positive b). The linear
 * program then has many solutions; the water level is the balanced one of them. (DeDLOC, Diskin et
 * al., NeurIPS 2021, section 3.2, in the special case that its code solves.)
 *
 * Bandwidth 0 marks a client, that others can't connect to: it reduces nothing and its own link is
 * not known. If all are 0 nobody said anything, and shares are equal.
 *
 * Claims. A reducer decides its share, and its share follows what it says of its own line; so among
 * strangers a claim counts for no more than makes its share `most` times the mean one of those who
 * reduce (hth_avg_bound_claims): the same linear program with w_i <= most / reducers. With most = 2
 * at least every second reduces. No round takes longer than with equal shares, and so none of n
 * members of whom r reduce more than 1 + (n - 2) / r times what the shares above make of it, as
 * even who reduces nothing has to move its vector once.
 *
 * Every member computes the shares of a group by itself, and all must get the same numbers: the
 * order of operations is fixed, ties go to the lower index, and the folder is compiled without
 * contraction. Pure functions, any thread. Bandwidths come from peers; hostile ones are an error.
 */
#ifndef HTH_AVERAGING_SHARES_H
#define HTH_AVERAGING_SHARES_H

#include "core/base.h"
#include "core/limits.h"

/* Times the mean share: how much a run lets one reduce at most if it does not say. */
#define HTH_AVG_SHARE_MAX 2.0

/* w[i], sum 1. n = 1: the whole vector; n = 2: every split takes the same time, so an even one (or
 * all to the one that is not a client).
 * Errors: E_RANGE: n is 0 or above HTH_AVG_MEMBERS_MAX, or a bandwidth is NaN, infinite, negative,
 * above HTH_AVG_BANDWIDTH_MAX, or positive but below HTH_AVG_BANDWIDTH_MIN. */
enum hth_err hth_avg_shares(const double *bandwidth, uint32_t n, double *w) HTH_MUST;

/* The index of the first bandwidth that hth_avg_shares would refuse, n if there is none. */
uint32_t hth_avg_bandwidth_bad(const double *bandwidth, uint32_t n);

/* Lowers the bandwidths that would give more than `most` times the mean share, most >= 1, so that
 * hth_avg_shares gives exactly that; others are left to the bit, all where nobody is beyond it.
 * Errors: as hth_avg_shares, and E_RANGE for `most`. */
enum hth_err hth_avg_bound_claims(double *bandwidth, uint32_t n, double most) HTH_MUST;

/* Whole elements: counts[i] in proportion to w[i], within one, sum `total`: shares end at the whole
 * elements below where they would end. A member with less than `minimum` of the elements reduces
 * nothing and leaves its share to the others; if all have, the largest share takes everything.
 * Errors: E_RANGE (n as above, a share not in [0, 1], their sum not 1 within 1e-6, total above
 * HTH_PARAMS_FLOATS_MAX). */
enum hth_err hth_avg_split(const double *w, uint32_t n, uint64_t total, uint64_t minimum,
                           uint64_t *counts) HTH_MUST;

#endif
