/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.h: one number of many by its place in their order: a median, a quartile, a 99th percentile.
 *
 * Hoare's quickselect with the number at the sought place as pivot: about 3 comparisons a number
 * where a sort takes log2(count) times as many, and no call for each. Equal numbers are no slower;
 * sorted ones are faster. An order made on purpose can make it quadratic: where others choose the
 * numbers, their count must be small.
 */
#ifndef HTH_CORE_ORDER_H
#define HTH_CORE_ORDER_H

#include "core/base.h"

/* The k-th smallest, from 0, of `count` numbers, none of which is a NaN. Moves them: afterwards
 * nothing before place k is larger, and nothing behind it smaller. Any thread. */
double hth_kth(double *values, size_t count, size_t k);

#endif
