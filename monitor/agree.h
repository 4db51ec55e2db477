/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agree.h: one number out of what several peers tell. Nobody proves what he tells: one liar may
 * decide nothing. So a value is the median, and a sum limits each summand by the median.
 *
 * Both move the numbers that they read, none of which is a NaN. Any thread.
 */
#ifndef HTH_MONITOR_AGREE_H
#define HTH_MONITOR_AGREE_H

#include "core/base.h"

/* A peer counts for at most so many times the median: as a card among processors. */
#define HTH_AGREE_TIMES 20

/* The median; of an even number the lower one, which more than half reach. NAN: there are none. */
double hth_agreed(double *told, size_t count);
/* The most that one counts for in a sum, by the median of those above 0; INFINITY: none is. */
double hth_agreed_most(double *told, size_t count);

#endif
