/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_clip.c: a mean that few members can't move far, on plain memory.
 *
 *     v  <-  v + sum a_i min(1, t_i / |x_i - v|) (x_i - v)        a_i: shares of the weight
 *
 * is centred clipping (Karimireddy, He, Jaggi, ICML 2021; Gorbunov et al., ICML 2022, clip each
 * part of a butterfly like this). It begins at the lower median of each coordinate, which less than
 * half of the members can't take out of the range of the others, and does not depend on whose
 * machine computes it.
 *
 * The radius is the group's own spread. A gradient of w samples lies about s = sqrt(1/w + 1/m) from
 * the median of gradients of m, so t_i is `clip` times s_i times the lower median of |x_i - v| /
 * s_i, and never grows from step to step: batches of any size are alike, and less than half of the
 * members can't choose it. Where somebody is far off, a weight counts for WEIGHT_MEDIANS times the
 * lower median one at most. So members with a share a of what counts move the result by at most
 * a / (1 - a) t.
 *
 * In a group in which nobody is far off the result is the plain mean, bit by bit. The order of all
 * additions is fixed.
 */
#include <math.h>
#include <string.h>

#include "averaging/reduce_int.h"

#define STEPS          4 /* each leaves 2 / n or so of what a far one had moved */
#define WEIGHT_MEDIANS 2.0
#define LANES          8
#define TILE           64u /* columns sorted at once: of 64 members, in the nearest cache */

struct clip {
    const struct sum_input *in; /* those that are left out are not there */
    uint32_t n, count;
    double *distance, *spread, *sorted; /* n each: |x - v|, s */
    double weight_max, weight;          /* a member counts for at most; their sum */
    float *v, *next;                    /* count each */
};

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

/* clang gives clones a name of their own, which no other file finds. */
double hth_reduce_distance(const float *x, const float *v, size_t n)
{
    return distance(x, v, n);
}

/* Into c->spread what each would be off if all were honest, up to a factor. */
static void weigh(struct clip *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        c->sorted[i] = c->in[i].weight;
    double median = hth_reduce_rank(c->sorted, c->n, (c->n - 1) / 2);
    c->weight_max = WEIGHT_MEDIANS * median;
    for (uint32_t i = 0; i < c->n; i++) {
        c->spread[i] = sqrt(1 + median / c->in[i].weight);
        c->weight += HTH_MIN(c->in[i].weight, c->weight_max);
    }
}

/* ---- the median of each coordinate ----------------------------------------------------------- */

CLONES static void order(float *restrict low, float *restrict high)
{
    for (uint32_t k = 0; k < TILE; k++) {
        float a = low[k], b = high[k];

        low[k] = a < b ? a : b;
        high[k] = a < b ? b : a;
    }
}

/* The least rows come first, in order, up to the lower median: the same exchanges whatever the
 * values. */
static void sort_columns(float *rows, uint32_t n)
{
    for (uint32_t k = 0; k <= (n - 1) / 2; k++)
        for (uint32_t i = k + 1; i < n; i++)
            order(rows + (size_t)k * TILE, rows + (size_t)i * TILE);
}

static void begin_at_the_median(struct clip *c, float *rows)
{
    memset(rows, 0, (size_t)c->n * TILE * sizeof(float));
    for (uint32_t at = 0; at < c->count; at += TILE) {
        size_t bytes = HTH_MIN(c->count - at, TILE) * sizeof(float);

        for (uint32_t i = 0; i < c->n; i++)
            memcpy(rows + (size_t)i * TILE, c->in[i].values + at, bytes);
        sort_columns(rows, c->n);
        memcpy(c->v + at, rows + (size_t)((c->n - 1) / 2) * TILE, bytes);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The lower median of the distances from c->v, each by its spread. */
static double measure(struct clip *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        c->distance[i] = hth_reduce_distance(c->in[i].values, c->v, c->count);
        c->sorted[i] = c->distance[i] / c->spread[i];
    }
    return hth_reduce_rank(c->sorted, c->n, (c->n - 1) / 2);
}

CLONES static void pull(float *restrict to, const float *restrict x, const float *restrict v,
                        float a, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] += a * (x[i] - v[i]);
}

static bool is_far(const struct clip *c, uint32_t i, double radius)
{
    return c->distance[i] > radius * c->spread[i];
}

static void move(struct clip *c, double radius)
{
    float *old = c->v;

    memcpy(c->next, c->v, c->count * sizeof(float));
    for (uint32_t i = 0; i < c->n; i++) {
        double a = HTH_MIN(c->in[i].weight, c->weight_max) / c->weight;

        if (is_far(c, i, radius))
            a *= radius * c->spread[i] / c->distance[i];
        pull(c->next, c->in[i].values, c->v, (float)a, c->count);
    }
    c->v = c->next;
    c->next = old;
}

/* False: nobody is far off. */
static bool find_centre(struct clip *c, double clip)
{
    double radius = INFINITY;

    for (int step = 0; step < STEPS; step++) {
        uint32_t far = 0;

        radius = HTH_MIN(radius, clip * measure(c));
        for (uint32_t i = 0; i < c->n; i++)
            far += is_far(c, i, radius);
        if (step == 0 && far == 0)
            return false;
        move(c, radius);
        if (far == 0) /* v is the mean, and stays */
            break;
    }
    return true;
}

static enum hth_err clip_block(const struct sum_input *in, uint32_t n, double clip, float *mean,
                               uint32_t count)
{
    struct clip c = {.in = in, .n = n, .count = count};
    size_t bytes = (2 * (size_t)count + (size_t)n * TILE) * sizeof(float);
    float *room = hth_try_block(bytes);

    if (room == NULL)
        return HTH_E_NO_MEMORY;
    c.v = room;
    c.next = room + count;
    c.distance = hth_new_array(double, 3 * (size_t)n);
    c.spread = c.distance + n;
    c.sorted = c.spread + n;
    weigh(&c);
    begin_at_the_median(&c, room + 2 * (size_t)count);
    /* Differences of what a majority sends may overflow, though its mean does not. */
    if (find_centre(&c, clip) && hth_reduce_is_finite(c.v, count))
        memcpy(mean, c.v, count * sizeof(float));
    hth_free(c.distance);
    hth_block_free(room, bytes);
    return HTH_OK;
}

/* ---- parts ----------------------------------------------------------------------------------- */

enum hth_err hth_reduce_clip(const struct sum_input *in, uint32_t n, double clip, bool fixed,
                             float *mean, uint32_t count)
{
    struct sum_input live[HTH_AVG_MEMBERS_MAX];
    uint32_t block = fixed ? HTH_AVG_BLOCK_FLOATS : count, left = 0;

    for (uint32_t i = 0; i < n; i++)
        if (!in[i].out)
            live[left++] = in[i];
    if (left < HTH_REDUCE_CLIP_MEMBERS)
        return HTH_OK;
    for (uint32_t at = 0; at < count; at += block) {
        HTH_TRY(clip_block(live, left, clip, mean + at, HTH_MIN(count - at, block)));
        for (uint32_t i = 0; i < left; i++)
            live[i].values += HTH_MIN(count - at, block);
    }
    return HTH_OK;
}
