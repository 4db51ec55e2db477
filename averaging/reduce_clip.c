/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_clip.c: a mean that few members can't move far, on plain memory.
 *
 *     v  <-  v + sum a_i min(1, t / |x_i - v|) (x_i - v)        a_i: shares of the weight
 *
 * is centred clipping (Karimireddy, He, Jaggi, ICML 2021; Gorbunov et al., ICML 2022, clip each
 * part of a butterfly like this). Its radius t must be known; here it is `clip` times the lower
 * median of the distances |x_i - v|, so that less than half of the members can't choose it, and
 * never grows from step to step. A share of the weight counts for WEIGHT_MEDIANS times the median
 * one at most. So members with a share a of what counts move the result by at most a / (1 - a) t.
 *
 * It begins at this member's own values, which it need not mistrust; a helper begins at whoever is
 * nearest to half of the others.
 *
 * In a group in which nobody is far off the result is the plain mean, bit by bit. The order of all
 * additions is fixed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/reduce_int.h"

#define STEPS          4 /* each leaves 2 / n or so of what a far one had moved */
#define WEIGHT_MEDIANS 2.0
#define LANES          8

struct clip {
    struct sum_input *in;
    uint32_t n, live, count;
    double *distance, *sorted; /* n each; of the live ones */
    double weight_max, weight; /* a member counts for at most; their sum */
    bool capped;
    float *v, *next, *room; /* count each */
};

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static double lower_median(double *sorted, uint32_t n)
{
    qsort(sorted, n, sizeof(*sorted), by_size);
    return sorted[(n - 1) / 2];
}

CLONES static double distance(const float *restrict x, const float *restrict v, size_t n)
{
    double lane[LANES] = {0}, sum = 0;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) {
            double d = (double)x[i + k] - (double)v[i + k];
            lane[k] += d * d;
        }
    for (; i < n; i++)
        lane[0] += ((double)x[i] - (double)v[i]) * ((double)x[i] - (double)v[i]);
    for (uint32_t k = 0; k < LANES; k++)
        sum += lane[k];
    return sqrt(sum);
}

double hth_reduce_distance(const float *x, const float *v, size_t n)
{
    return distance(x, v, n);
}

/* Distances of all from c->v and their lower median. Errors: a decoder's. */
static enum hth_err measure(struct clip *c, double *median)
{
    const float *x;
    uint32_t live = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        if (c->in[i].damaged)
            continue;
        HTH_TRY(hth_reduce_values(&c->in[i], c->room, &x));
        c->distance[i] = distance(x, c->v, c->count);
        c->sorted[live++] = c->distance[i];
    }
    *median = lower_median(c->sorted, live);
    return HTH_OK;
}

static void cap_weights(struct clip *c)
{
    c->live = 0;
    for (uint32_t i = 0; i < c->n; i++)
        if (!c->in[i].damaged)
            c->sorted[c->live++] = c->in[i].weight;
    if (c->live == 0)
        return;
    c->weight_max = WEIGHT_MEDIANS * lower_median(c->sorted, c->live);
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->in[i].damaged)
            continue;
        c->weight += HTH_MIN(c->in[i].weight, c->weight_max);
        c->capped |= c->in[i].weight > c->weight_max;
    }
}

/* Into c->v the values of whoever is nearest to half of the others. */
static enum hth_err begin_at_the_middle(struct clip *c)
{
    double best = INFINITY;
    const float *x;

    for (uint32_t i = 0; i < c->n; i++) {
        double median;

        if (c->in[i].damaged)
            continue;
        HTH_TRY(hth_reduce_values(&c->in[i], c->room, &x));
        memcpy(c->v, x, c->count * sizeof(float));
        HTH_TRY(measure(c, &median));
        if (median >= best)
            continue;
        best = median;
        memcpy(c->next, c->v, c->count * sizeof(float));
    }
    memcpy(c->v, c->next, c->count * sizeof(float));
    return HTH_OK;
}

CLONES static void pull(float *restrict to, const float *restrict x, const float *restrict v,
                        float a, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] += a * (x[i] - v[i]);
}

static enum hth_err move(struct clip *c, double radius)
{
    const float *x;

    memcpy(c->next, c->v, c->count * sizeof(float));
    for (uint32_t i = 0; i < c->n; i++) {
        double a = HTH_MIN(c->in[i].weight, c->weight_max) / c->weight;

        if (c->in[i].damaged)
            continue;
        if (c->distance[i] > radius)
            a *= radius / c->distance[i];
        HTH_TRY(hth_reduce_values(&c->in[i], c->room, &x));
        pull(c->next, x, c->v, (float)a, c->count);
    }
    float *old = c->v;
    c->v = c->next;
    c->next = old;
    return HTH_OK;
}

/* True in *plain: nobody is far off and nobody's weight is capped. */
static enum hth_err find_centre(struct clip *c, double clip, bool *plain)
{
    double radius = INFINITY;

    for (int step = 0; step < STEPS; step++) {
        uint32_t far = 0;
        double median;

        HTH_TRY(measure(c, &median));
        radius = HTH_MIN(radius, clip * median);
        for (uint32_t i = 0; i < c->n; i++) {
            c->in[i].clipped = !c->in[i].damaged && c->distance[i] > radius;
            far += c->in[i].clipped;
        }
        *plain = step == 0 && far == 0 && !c->capped;
        if (*plain)
            return HTH_OK;
        HTH_TRY(move(c, radius));
        if (far == 0) /* v is the mean, and stays */
            return HTH_OK;
    }
    return HTH_OK;
}

static enum hth_err run(struct clip *c, const float *start, double clip, float *mean)
{
    bool plain = true;

    cap_weights(c);
    if (c->live < HTH_REDUCE_CLIP_MEMBERS)
        return HTH_OK;
    if (start != NULL)
        memcpy(c->v, start, c->count * sizeof(float));
    else
        HTH_TRY(begin_at_the_middle(c));
    HTH_TRY(find_centre(c, clip, &plain));
    /* Differences of what a majority sends may overflow, though its mean does not. */
    if (!plain && hth_reduce_is_finite(c->v, c->count))
        memcpy(mean, c->v, c->count * sizeof(float));
    return HTH_OK;
}

enum hth_err hth_reduce_clip(struct sum_input *in, uint32_t n, const float *start, double clip,
                             float *mean, uint32_t count)
{
    struct clip c = {.in = in, .n = n, .count = count};
    size_t bytes = 3 * (size_t)count * sizeof(float);
    float *room = hth_try_block(bytes);
    enum hth_err err;

    if (room == NULL)
        return HTH_E_NO_MEMORY;
    c.v = room;
    c.next = room + count;
    c.room = room + 2 * (size_t)count;
    c.distance = hth_new_array(double, 2 * (size_t)n);
    c.sorted = c.distance + n;
    err = run(&c, start, clip, mean);
    hth_free(c.distance);
    hth_block_free(room, bytes);
    return err;
}

/* The inputs' values in one piece of memory each, decoded where they are narrow. */
static enum hth_err flatten(const struct sum_input *in, uint32_t n, uint32_t count, float *room,
                            struct sum_input *out)
{
    for (uint32_t i = 0; i < n; i++) {
        const float *x = room + (size_t)i * count;

        out[i] = (struct sum_input){.weight = in[i].weight, .damaged = in[i].damaged};
        if (!in[i].damaged)
            HTH_TRY(hth_reduce_values(&in[i], room + (size_t)i * count, &x));
        out[i].bytes = (const uint8_t *)(const void *)x;
    }
    return HTH_OK;
}

enum hth_err hth_reduce_clip_blocks(struct sum_input *in, uint32_t n, double clip, float *mean,
                                    uint32_t count)
{
    size_t bytes = (size_t)n * count * sizeof(float), block = UNIT_FLOATS_FIXED * sizeof(float);
    float *room = hth_try_block(bytes);
    enum hth_err err;

    if (room == NULL)
        return HTH_E_NO_MEMORY;
    struct sum_input *flat = hth_new_array(struct sum_input, n);
    err = flatten(in, n, count, room, flat);
    for (uint32_t at = 0; at < count && err == HTH_OK; at += UNIT_FLOATS_FIXED) {
        for (uint32_t i = 0; i < n; i++)
            flat[i].bytes += at > 0 ? block : 0;
        err =
            hth_reduce_clip(flat, n, NULL, clip, mean + at, HTH_MIN(count - at, UNIT_FLOATS_FIXED));
        for (uint32_t i = 0; i < n; i++)
            in[i].clipped = in[i].clipped || flat[i].clipped;
    }
    hth_free(flat);
    hth_block_free(room, bytes);
    return err;
}
