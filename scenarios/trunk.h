/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trunk.h: the distance between two trunks, for scenarios that check it.
 *
 *     |a - b| / |a|    0 when both are all zeros; NaN or infinite as soon as a float of either is
 *
 * so that NaN passes no comparison with a bound (keep the largest with hth_worse). Pure.
 */
#ifndef HTH_SCENARIOS_TRUNK_H
#define HTH_SCENARIOS_TRUNK_H

#include <math.h>

#include "core/base.h"
#include "kernels/params.h"

static inline double hth_trunk_distance(const float *a, const float *b, size_t count)
{
    double diff = 0, norm = 0;

    for (size_t i = 0; i < count; i++) {
        double d = (double)a[i] - (double)b[i];

        diff += d * d;
        norm += (double)a[i] * (double)a[i];
    }
    if (norm == 0)
        return diff == 0 ? 0 : (double)INFINITY;
    return sqrt(diff / norm);
}

/* Distance between the values of two sets of one shape. */
static inline double hth_params_distance(struct hth_params *a, struct hth_params *b)
{
    return hth_trunk_distance(hth_params_flat(a, HTH_PART_VALUE),
                              hth_params_flat(b, HTH_PART_VALUE), hth_params_flat_len(a));
}

#endif
