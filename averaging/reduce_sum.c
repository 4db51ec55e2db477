/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_sum.c: the arithmetic of a part. The order of additions is that of the inputs, and
 * products and sums are rounded one by one, so that the bits depend on nothing else.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/reduce_int.h"

/* As if added to zeros: -0 becomes 0 here, too. */
CLONES static void scale_into(const float *restrict x, float a, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a * x[i] + 0.0f;
}

CLONES static void scale_add(const float *restrict x, float a, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

/* Exponents of all ones show in the largest pattern without its sign. */
CLONES static bool all_finite(const float *restrict x, size_t n)
{
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most < 0x7f800000u;
}

bool hth_reduce_is_finite(const float *x, size_t n)
{
    return all_finite(x, n);
}

static bool all_small(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(x[i]) <= NUMBER_MAX))
            return false;
    }
    return true;
}

/* In blocks, which stay in the first-level cache while all inputs pass by. */
static bool add(const struct sum_input *in, uint32_t n, double weight, float *mean, uint32_t count)
{
    for (uint32_t at = 0; at < count; at += HTH_AVG_BLOCK_FLOATS) {
        size_t len = HTH_MIN(count - at, HTH_AVG_BLOCK_FLOATS);
        bool first = true;
        for (uint32_t i = 0; i < n; i++) {
            float alpha = (float)(in[i].weight / weight);
            if (in[i].out)
                continue;
            if (first)
                scale_into(in[i].values + at, alpha, mean + at, len);
            else
                scale_add(in[i].values + at, alpha, mean + at, len);
            first = false;
        }
        if (!hth_reduce_is_finite(mean + at, len))
            return false;
    }
    return true;
}

double hth_reduce_sum(struct sum_input *in, uint32_t n, float *mean, uint32_t count)
{
    for (int turn = 0; turn < 2; turn++) {
        double weight = 0;
        for (uint32_t i = 0; i < n; i++)
            weight += in[i].out ? 0 : in[i].weight;
        if (!(weight > 0) || add(in, n, weight, mean, count))
            return weight;
        for (uint32_t i = 0; i < n; i++)
            in[i].out = in[i].out || !all_small(in[i].values, count);
    }
    return 0;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double hth_reduce_rank(double *x, uint32_t n, uint32_t rank)
{
    qsort(x, n, sizeof(x[0]), by_size);
    return x[rank];
}
