/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/life.h"

#include <math.h>

#define TWO_PI      6.283185307179586
#define FOR_EVER    (INT64_MAX / 4)
#define SHAPE_MIN   0.1
#define SHAPE_MAX   10.0
#define THINNED_MAX 1000000

enum hth_err hth_life_check(const struct hth_life *life)
{
    bool ok = life->kind == HTH_LIFE_ALWAYS || (life->up_us > 0 && life->down_us > 0);
    if (life->kind == HTH_LIFE_WEIBULL)
        ok = ok && life->shape >= SHAPE_MIN && life->shape <= SHAPE_MAX;
    if (life->kind == HTH_LIFE_DIURNAL)
        ok = ok && life->day_us > 0 && life->swing >= 0.0 && life->swing <= 1.0;
    return ok ? HTH_OK : HTH_E_RANGE;
}

static double weibull(struct hth_rng *rng, double mean, double shape)
{
    double scale = mean / tgamma(1.0 + 1.0 / shape);
    return scale * pow(hth_rng_exponential(rng, 1.0), 1.0 / shape);
}

/* Draw candidates at the highest rate; accept each with the ratio of the present rate to that. */
static double diurnal(const struct hth_life *life, struct hth_rng *rng, int64_t now_us, bool up)
{
    double mean = (double)(up ? life->up_us : life->down_us);
    double sign = up ? 1.0 : -1.0, highest = 1.0 + life->swing;
    double after_us = 0.0;
    for (int i = 0; i < THINNED_MAX; i++) {
        after_us += hth_rng_exponential(rng, mean / highest);
        double at = fmod((double)now_us + (double)life->phase_us + after_us, (double)life->day_us);
        double rate = 1.0 + sign * life->swing * cos(TWO_PI * at / (double)life->day_us);
        if (hth_rng_chance(rng, rate / highest))
            break;
    }
    return after_us;
}

int64_t hth_life_draw(const struct hth_life *life, struct hth_rng *rng, int64_t now_us, bool up)
{
    double us;
    if (life->kind == HTH_LIFE_ALWAYS)
        return FOR_EVER;
    if (life->kind == HTH_LIFE_DIURNAL)
        us = diurnal(life, rng, now_us, up);
    else if (life->kind == HTH_LIFE_WEIBULL && up)
        us = weibull(rng, (double)life->up_us, life->shape);
    else
        us = hth_rng_exponential(rng, (double)(up ? life->up_us : life->down_us));
    return us >= (double)FOR_EVER ? FOR_EVER : HTH_MAX((int64_t)us, (int64_t)1);
}
