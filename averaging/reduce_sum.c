/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_sum.c: the arithmetic of a part. The order of additions is that of the inputs, and
 * products and sums are rounded one by one, so that the bits depend on nothing else.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/reduce_int.h"

/* Floats of the sum that stay in the first-level cache while all inputs pass by. */
#define BLOCK_FLOATS 2048u

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

static bool is_plain(const struct sum_input *in)
{
    return in->segments == NULL ||
           (in->segment_count == 1 && in->segments[0].format == HTH_QUANT_F32);
}

enum hth_err hth_reduce_values(const struct sum_input *in, float *room, const float **out)
{
    *out = room;
    if (is_plain(in)) {
        *out = (const float *)(const void *)in->bytes;
        return HTH_OK;
    }
    return hth_codec_decode(in->segments, in->segment_count, in->bytes, NULL, room);
}

/* Leaves out the inputs that spoil the sum. */
static enum hth_err leave_out(struct sum_input *in, uint32_t n, uint32_t count)
{
    float *room = hth_try_block((size_t)count * sizeof(float));
    if (room == NULL)
        return HTH_E_NO_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        const float *values;
        in[i].out = in[i].out || hth_reduce_values(&in[i], room, &values) != HTH_OK ||
                    !all_small(values, count);
    }
    hth_block_free(room, (size_t)count * sizeof(float));
    return HTH_OK;
}

/* Of plain inputs only, the sum is read and written once. */
static enum hth_err add(const struct sum_input *in, uint32_t n, double weight, float *mean,
                        uint32_t count, uint32_t block)
{
    for (uint32_t at = 0; at < count; at += block) {
        size_t len = HTH_MIN(count - at, block);
        bool first = true;
        for (uint32_t i = 0; i < n; i++) {
            const float *x = (const float *)(const void *)in[i].bytes + at;
            float alpha = (float)(in[i].weight / weight);
            if (in[i].out)
                continue;
            if (first && !is_plain(&in[i]))
                memset(mean, 0, len * sizeof(float));
            if (!is_plain(&in[i]))
                HTH_TRY(
                    hth_codec_add(in[i].segments, in[i].segment_count, in[i].bytes, alpha, mean));
            else if (first)
                scale_into(x, alpha, mean + at, len);
            else
                scale_add(x, alpha, mean + at, len);
            first = false;
        }
        if (!hth_reduce_is_finite(mean + at, len))
            return HTH_E_NOT_FINITE;
    }
    return HTH_OK;
}

enum hth_err hth_reduce_sum(struct sum_input *in, uint32_t n, float *mean, uint32_t count,
                            double *weight)
{
    for (int turn = 0; turn < 2; turn++) {
        uint32_t block = HTH_MIN(BLOCK_FLOATS, count);
        *weight = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (in[i].out)
                continue;
            *weight += in[i].weight;
            block = is_plain(&in[i]) ? block : count;
        }
        if (!(*weight > 0))
            return HTH_OK;
        enum hth_err err = add(in, n, *weight, mean, count, block);
        if (err == HTH_OK || err == HTH_E_NO_MEMORY)
            return err;
        HTH_TRY(leave_out(in, n, count));
    }
    *weight = 0;
    return HTH_OK;
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

enum hth_err hth_reduce_answer(const struct sum_input *sent, const float *mean, uint32_t count,
                               uint8_t *bytes)
{
    size_t size = (size_t)count * sizeof(float);
    float *rest = hth_try_block(size);
    if (rest == NULL)
        return HTH_E_NO_MEMORY;
    memcpy(rest, mean, size);
    enum hth_err err = hth_codec_add(sent->segments, sent->segment_count, sent->bytes, -1.0f, rest);
    for (uint32_t i = 0, at = 0; i < sent->segment_count; at += sent->segments[i++].count)
        if (sent->segments[i].format == HTH_QUANT_F32)
            memcpy(rest + at, mean + at, sent->segments[i].count * sizeof(float));
    if (err == HTH_OK)
        err = hth_codec_encode(sent->segments, sent->segment_count, rest, bytes);
    hth_block_free(rest, size);
    return err;
}
