/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_profile.c: any bytes as a device's profile: one that gives finite times for any work, or an
 * error.
 */
#include "sim/profile.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const double flops[] = {1, 1e6, 1e12};
    static const uint32_t rows[] = {1, 7, 1u << 30};
    struct hth_profile *p;
    char error[HTH_PROFILE_ERROR_MAX];
    if (hth_profile_parse("fuzz", data, size, &p, error) != HTH_OK) {
        HTH_ASSERT(error[0] != '\0' && p == NULL);
        return 0;
    }
    for (int kind = 0; kind < HTH_WORK_KINDS; kind++) {
        for (int i = 0; i < 9; i++) {
            const struct hth_job_work work = {flops[i / 3], rows[i % 3], 1 + (uint32_t)i % 2};
            double s = hth_profile_s(p, (enum hth_work_kind)kind, &work);
            HTH_ASSERT(isfinite(s) && s >= 0);
        }
    }
    hth_profile_free(p);
    return 0;
}
