/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c: see sample.h. */
#include "trainer/sample.h"

#include <math.h>
#include <stdlib.h>

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/math64.h"

enum hth_err hth_sample_check(const struct hth_sample_opts *o)
{
    bool good = o->temperature >= 0 && isfinite(o->temperature) && o->top_p > 0 && o->top_p <= 1;

    return good ? HTH_OK : HTH_E_CONFIG;
}

struct choice {
    float logit;
    uint32_t token;
};

/* Falling by logit, equals by token. */
static int cmp_choice(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* Uniform in [0, 1). */
static double draw(uint64_t seed, uint32_t stream, uint32_t position)
{
    const uint32_t counter[4] = {position, stream, 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];

    hth_philox(counter, key, out);
    return (double)(((uint64_t)out[0] << 32 | out[1]) >> 11) * 0x1p-53;
}

/* Draws among the first `count` choices; they are sorted if top_p cuts. */
static uint32_t pick(const struct hth_sample_opts *o, const struct choice *c, uint32_t count,
                     float top, double u)
{
    double *weight = hth_new_array(double, count), sum = 0, reached = 0;
    uint32_t kept = 0, i = 0;

    for (uint32_t j = 0; j < count; j++) {
        weight[j] = hth_exp64(((double)c[j].logit - (double)top) / (double)o->temperature);
        sum += weight[j];
    }
    while (kept < count && (kept == 0 || reached < (double)o->top_p * sum))
        reached += weight[kept++];
    for (double at = u * reached; i + 1 < kept && at >= weight[i]; i++)
        at -= weight[i];
    hth_free(weight);
    return c[i].token;
}

enum hth_err hth_sample(const struct hth_sample_opts *o, const float *logits, uint32_t count,
                        uint32_t stream, uint32_t position, uint32_t *out)
{
    bool cuts = (o->top_k > 0 && o->top_k < count) || o->top_p < 1;
    uint32_t best = 0;
    struct choice *c;

    for (uint32_t i = 0; i < count; i++) {
        if (!isfinite(logits[i]))
            return HTH_E_NOT_FINITE;
        best = logits[i] > logits[best] ? i : best;
    }
    *out = best;
    if (o->temperature == 0)
        return HTH_OK;
    c = hth_new_array(struct choice, count);
    for (uint32_t i = 0; i < count; i++)
        c[i] = (struct choice){logits[i], i};
    if (cuts)
        qsort(c, count, sizeof(*c), cmp_choice);
    *out = pick(o, c, o->top_k > 0 ? HTH_MIN(o->top_k, count) : count, logits[best],
                draw(o->seed, stream, position));
    hth_free(c);
    return HTH_OK;
}
