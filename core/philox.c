/* SPDX-License-Identifier: Apache-2.0 */
/*
 * philox.c: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
 * 1, 2, 3" (SC'11), section 4.
 */
#include "core/rng.h"

#include <math.h>

void hth_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = UINT64_C(0xD2511F53) * c0;
        uint64_t p1 = UINT64_C(0xCD9E8D57) * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += UINT32_C(0x9E3779B9);
        k1 += UINT32_C(0xBB67AE85);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Box-Muller on one pair of words; u1 is in (0, 1], so the logarithm is finite. */
static void normal_pair(uint32_t a, uint32_t b, float *x, float *y)
{
    double u1 = ((double)a + 1.0) * 0x1p-32;
    double angle = (double)b * (0x1p-32 * 6.283185307179586);
    double radius = sqrt(-2.0 * log(u1));
    *x = (float)(radius * cos(angle));
    *y = (float)(radius * sin(angle));
}

void hth_philox_normal(const uint32_t counter[4], const uint32_t key[2], float out[4])
{
    uint32_t w[4];
    hth_philox(counter, key, w);
    normal_pair(w[0], w[1], &out[0], &out[1]);
    normal_pair(w[2], w[3], &out[2], &out[3]);
}
