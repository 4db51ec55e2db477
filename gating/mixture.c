/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mixture.c: softmax over the survivors of each row, forward and backward; see mixture.h for the
 * equations.
 */
#include "gating/mixture.h"

#include "core/limits.h"
#include "gating/simd.h"

#include <float.h>

HTH_CLONES static void hth_gating_scale_to(float *out, const float *x, float w, size_t d)
{
    for (size_t i = 0; i < d; i++)
        out[i] = w * x[i];
}

HTH_CLONES static void hth_gating_scale_add(float *out, const float *x, float w, size_t d)
{
    for (size_t i = 0; i < d; i++)
        out[i] += w * x[i];
}

HTH_CLONES static float hth_gating_dot(const float *a, const float *b, size_t d)
{
    float lane[HTH_LANES] = {0.0f};
    size_t i = 0;
    for (; i + HTH_LANES <= d; i += HTH_LANES) {
        for (size_t l = 0; l < HTH_LANES; l++)
            lane[l] += a[i + l] * b[i + l];
    }
    for (size_t l = 0; i < d; i++, l++)
        lane[l] += a[i] * b[i];
    return hth_lanes_sum(lane);
}

size_t hth_mixture_drop_not_finite(const float **y, size_t count, size_t d)
{
    size_t dropped = 0;
    for (size_t i = 0; i < count; i++) {
        if (y[i] != NULL && hth_gating_any_not_finite(y[i], d)) {
            y[i] = NULL;
            dropped++;
        }
    }
    return dropped;
}

bool hth_mixture_ready(const float *const *y, const uint32_t *asked, size_t rows, size_t k,
                       size_t k_min)
{
    for (size_t b = 0; b < rows; b++) {
        size_t want = asked != NULL ? HTH_MIN((size_t)asked[b], k_min) : HTH_MIN(k, k_min);
        size_t have = 0;
        for (size_t j = 0; j < k; j++)
            have += y[b * k + j] != NULL;
        if (have < want)
            return false;
    }
    return true;
}

/* Softmax of one row over its survivors. Returns their number. The weights of all other choices
 * are 0. */
static size_t row_weights(const float *scores, const float *const *y, size_t k, float *weights)
{
    float max = -INFINITY;
    size_t survivors = 0;
    for (size_t j = 0; j < k; j++) {
        bool alive = y[j] != NULL && scores[j] > -INFINITY; /* false for NaN */
        survivors += alive;
        /* weights[] holds the clamped score until the maximum is known. */
        weights[j] = alive ? HTH_MIN(scores[j], FLT_MAX) : -INFINITY;
        max = HTH_MAX(max, weights[j]);
    }
    if (survivors == 0) {
        memset(weights, 0, k * sizeof(*weights));
        return 0;
    }
    float sum = 0.0f;
    for (size_t j = 0; j < k; j++) {
        weights[j] = hth_exp_neg(weights[j] - max);
        sum += weights[j];
    }
    for (size_t j = 0; j < k; j++)
        weights[j] /= sum; /* sum >= 1: the best score gives exp(0) */
    return survivors;
}

void hth_mixture_forward(const struct hth_mixture *m, float *weights, float *out,
                         struct hth_mixture_stats *stats)
{
    struct hth_mixture_stats sum = {0};
    for (size_t b = 0; b < m->rows; b++) {
        const float *const *y = m->y + b * m->k;
        float *w = weights + b * m->k;
        float *o = out + b * m->d;
        size_t survivors = row_weights(m->scores + b * m->k, y, m->k, w);
        sum.answers += survivors;
        sum.rows_empty += survivors == 0;
        sum.rows_below_k_min += survivors < HTH_MAX(m->k_min, (size_t)1);
        sum.rows_short += survivors < m->k;
        bool first = true;
        for (size_t j = 0; j < m->k; j++) {
            /* A survivor whose weight underflowed to 0 adds nothing. */
            if (y[j] == NULL || w[j] == 0.0f)
                continue;
            if (first)
                hth_gating_scale_to(o, y[j], w[j], m->d);
            else
                hth_gating_scale_add(o, y[j], w[j], m->d);
            first = false;
        }
        if (first)
            memset(o, 0, m->d * sizeof(*o));
    }
    if (stats != NULL)
        *stats = sum;
}

void hth_mixture_backward(const struct hth_mixture *m, const float *weights, const float *dout,
                          float *dscores, float *const *dy)
{
    for (size_t b = 0; b < m->rows; b++) {
        const float *g = dout + b * m->d;
        const float *w = weights + b * m->k;
        float *dz = dscores + b * m->k;
        float mean = 0.0f; /* sum over i of w_i g.y_i */
        for (size_t j = 0; j < m->k; j++) {
            const float *y = m->y[b * m->k + j];
            float *dy_j = dy != NULL ? dy[b * m->k + j] : NULL;
            bool alive = y != NULL && w[j] != 0.0f;
            dz[j] = alive ? hth_gating_dot(g, y, m->d) : 0.0f;
            mean += w[j] * dz[j];
            if (dy_j != NULL && alive)
                hth_gating_scale_to(dy_j, g, w[j], m->d);
            else if (dy_j != NULL)
                memset(dy_j, 0, m->d * sizeof(*dy_j));
        }
        for (size_t j = 0; j < m->k; j++)
            dz[j] = w[j] != 0.0f ? w[j] * (dz[j] - mean) : 0.0f;
    }
}
