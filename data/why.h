/* SPDX-License-Identifier: Apache-2.0 */
/*
 * why.h: the sentence that goes with an error of a data set: file, place, fault and remedy.
 *
 * The first sentence stays: callers further up add nothing to it.
 *
 * Any thread.
 */
#ifndef HTH_DATA_WHY_H
#define HTH_DATA_WHY_H

#include "core/base.h"

struct hth_why {
    char text[512]; /* "" before any error */
};

/* Returns err. NULL is fine. */
enum hth_err hth_blame(struct hth_why *why, enum hth_err err, const char *fmt, ...)
    HTH_PRINTF(3, 4);

#endif
