/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.h: selects a number by its rank: a median, a quartile, a 99th percentile.
 *
 * Hoare's quickselect with the number at place k as pivot: about 3 inlined comparisons per number;
 * a sort takes log2(count) times as many. Equal numbers are no slower; sorted ones are faster. An
 * adversarial order makes it quadratic: where peers choose the numbers, their count must be small.
 */
#ifndef HTH_CORE_ORDER_H
#define HTH_CORE_ORDER_H

#include "core/base.h"

/* The k-th smallest, from 0, of `count` numbers, none of which is a NaN. Moves them: afterwards
 * nothing before place k is larger, and nothing behind it smaller. Any thread. */
double hth_kth(double *values, size_t count, size_t k);

#endif
