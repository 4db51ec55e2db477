/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_curve.c: any bytes as the lines of a run; steps rise, and time never falls. */
#include "cli/curve.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_curve curve;

    hth_curve_parse(data, size, &curve);
    for (size_t i = 1; i < curve.train.count; i++) {
        const struct hth_curve_point *a = &curve.train.point[i - 1], *b = &curve.train.point[i];
        HTH_ASSERT(a->at[HTH_CURVE_STEPS] < b->at[HTH_CURVE_STEPS]);
        HTH_ASSERT(a->at[HTH_CURVE_TIME] <= b->at[HTH_CURVE_TIME]);
    }
    for (size_t i = 1; i < curve.test.count; i++)
        HTH_ASSERT(curve.test.point[i - 1].at[HTH_CURVE_STEPS] <
                   curve.test.point[i].at[HTH_CURVE_STEPS]);
    hth_curve_clear(&curve);
    return 0;
}
