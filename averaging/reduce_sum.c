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

/* Whether all are finite: exponents of all ones show in the largest pattern without its sign. */
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
           (in->segment_count == 1 && in->segments[0].format == HTH_QUANT_F32 &&
            !in->segments[0].packed);
}

enum hth_err hth_reduce_values(const struct sum_input *in, float *room, const float **out)
{
    *out = room;
    if (is_plain(in)) {
        *out = (const float *)(const void *)in->bytes;
        return HTH_OK;
    }
    return hth_codec_decode(in->segments, in->segment_count, in->bytes, room);
}

/* Values as they are, into floats of one's own. */
static enum hth_err values_of(const struct sum_input *in, uint32_t count, float *out)
{
    const float *values;

    HTH_TRY(hth_reduce_values(in, out, &values));
    if (values != out)
        memcpy(out, values, (size_t)count * sizeof(float));
    return HTH_OK;
}

/* Marks the inputs that spoil the sum; false when none is found. */
static enum hth_err find_damaged(struct sum_input *in, uint32_t n, uint32_t count, bool *found)
{
    float *values = hth_try_block((size_t)count * sizeof(float));
    *found = false;
    if (values == NULL)
        return HTH_E_NO_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        if (in[i].damaged)
            continue;
        if (values_of(&in[i], count, values) == HTH_OK && all_small(values, count))
            continue;
        in[i].damaged = true;
        *found = true;
    }
    hth_block_free(values, (size_t)count * sizeof(float));
    return HTH_OK;
}

/* Plain inputs only: the sum is read and written once. */
static bool add_plain(const struct sum_input *in, uint32_t n, double weight, float *mean,
                      uint32_t count)
{
    for (uint32_t at = 0; at < count; at += BLOCK_FLOATS) {
        size_t len = HTH_MIN(count - at, BLOCK_FLOATS);
        bool first = true;
        for (uint32_t i = 0; i < n; i++) {
            if (in[i].damaged)
                continue;
            const float *x = (const float *)(const void *)in[i].bytes + at;
            float alpha = (float)(in[i].weight / weight);
            if (first)
                scale_into(x, alpha, mean + at, len);
            else
                scale_add(x, alpha, mean + at, len);
            first = false;
        }
        if (!all_finite(mean + at, len))
            return false;
    }
    return true;
}

static enum hth_err add_mixed(struct sum_input *in, uint32_t n, double weight, float *mean,
                              uint32_t count, bool *fine)
{
    *fine = true;
    memset(mean, 0, (size_t)count * sizeof(float));
    for (uint32_t i = 0; i < n && *fine; i++) {
        if (in[i].damaged)
            continue;
        float alpha = (float)(in[i].weight / weight);
        if (is_plain(&in[i])) {
            scale_add((const float *)(const void *)in[i].bytes, alpha, mean, count);
            continue;
        }
        enum hth_err err =
            hth_codec_add(in[i].segments, in[i].segment_count, in[i].bytes, alpha, mean);
        if (err == HTH_E_NO_MEMORY)
            return err;
        in[i].damaged = err != HTH_OK;
        *fine = err == HTH_OK;
    }
    if (*fine)
        *fine = all_finite(mean, count);
    return HTH_OK;
}

/* The weight of the inputs that are not left out; whether all of them are plain. */
static double weight_of(const struct sum_input *in, uint32_t n, uint32_t *damaged, bool *plain)
{
    double weight = 0;
    *damaged = 0;
    *plain = true;
    for (uint32_t i = 0; i < n; i++) {
        if (in[i].damaged) {
            ++*damaged;
            continue;
        }
        weight += in[i].weight;
        *plain = *plain && is_plain(&in[i]);
    }
    return weight;
}

enum hth_err hth_reduce_sum(struct sum_input *in, uint32_t n, float *mean, uint32_t count,
                            double *weight)
{
    /* Each turn leaves at least one more input out. */
    for (;;) {
        bool plain, fine, found = true;
        uint32_t before, after;
        *weight = weight_of(in, n, &before, &plain);
        if (!(*weight > 0))
            return HTH_OK;
        if (plain)
            fine = add_plain(in, n, *weight, mean, count);
        else
            HTH_TRY(add_mixed(in, n, *weight, mean, count, &fine));
        if (fine)
            return HTH_OK;
        (void)weight_of(in, n, &after, &plain);
        if (after == before)
            HTH_TRY(find_damaged(in, n, count, &found));
        if (!found) {
            *weight = 0;
            return HTH_OK;
        }
    }
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
                               bool pack, struct hth_segment *out, uint8_t *bytes)
{
    size_t size = (size_t)count * sizeof(float);
    float *rest = hth_try_block(size);
    if (rest == NULL)
        return HTH_E_NO_MEMORY;
    memcpy(rest, mean, size);
    enum hth_err err = hth_codec_add(sent->segments, sent->segment_count, sent->bytes, -1.0f, rest);
    uint32_t at = 0;
    for (uint32_t i = 0; i < sent->segment_count; i++) {
        out[i] = (struct hth_segment){.format = sent->segments[i].format,
                                      .count = sent->segments[i].count};
        if (out[i].format == HTH_QUANT_F32)
            memcpy(rest + at, mean + at, out[i].count * sizeof(float));
        at += out[i].count;
    }
    if (err == HTH_OK)
        err = hth_codec_encode(out, sent->segment_count, rest, pack, bytes, NULL);
    hth_block_free(rest, size);
    return err;
}
