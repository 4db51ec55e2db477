/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life.h: random sessions and downtimes of volunteers' machines.
 *
 * A life alternates between sessions (up) and downtimes, drawn one after the other from a process:
 *
 *   ALWAYS   up for ever
 *   POISSON  both exponential and memoryless: a long session is as likely to end as a short one
 *   WEIBULL  the time up has the Weibull distribution with `shape` k and the given mean,
 *            F(t) = 1 - exp(-(t / s)^k), s = mean / Gamma(1 + 1/k). k < 1, as in traces of
 *            volunteer computing, means that most leave soon and the rest stay; k = 1 is
 *            POISSON. The time down is exponential.
 *   DIURNAL  both exponential with rates that swing with the time of day: a node leaves at the rate
 *            (1 + swing cos(2 pi (t + phase) / day)) / up and returns at the rate (1 - swing cos(2
 *            pi (t + phase) / day)) / down. Peers of several time zones differ in their phase.
 *            Drawn by thinning (Lewis and Shedler, 1979).
 *
 * Providers whose nodes fail together follow the same processes: see churn.h. Plain values and pure
 * functions of the generator; any thread.
 */
#ifndef HTH_SCENARIOS_LIFE_H
#define HTH_SCENARIOS_LIFE_H

#include "core/rng.h"

enum hth_life_kind { HTH_LIFE_ALWAYS, HTH_LIFE_POISSON, HTH_LIFE_WEIBULL, HTH_LIFE_DIURNAL };

struct hth_life {
    enum hth_life_kind kind;
    int64_t up_us, down_us; /* means; for DIURNAL those without a swing */
    double shape;           /* WEIBULL: 0.1 .. 10 */
    int64_t day_us;         /* DIURNAL */
    double swing;           /* DIURNAL: 0 .. 1 */
    int64_t phase_us;
};
#define HTH_LIFE_INIT                                                                              \
    {                                                                                              \
        .up_us = 3600 * HTH_US_PER_S, .down_us = 600 * HTH_US_PER_S, .shape = 0.6,                 \
        .day_us = 86400 * HTH_US_PER_S, .swing = 0.5                                               \
    }

/* Check all numbers. Errors: E_RANGE (a number outside the limits above, a mean that is not
 * positive). */
enum hth_err hth_life_check(const struct hth_life *life) HTH_MUST;
/* Draw the duration of the session or downtime that begins now: at least 1 us; for ALWAYS INT64_MAX
 * / 4. */
int64_t hth_life_draw(const struct hth_life *life, struct hth_rng *rng, int64_t now_us, bool up);

#endif
