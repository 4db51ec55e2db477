/* SPDX-License-Identifier: Apache-2.0 */
/* profile.c: looks up how long a job takes on a measured machine. */
#include "sim/profile.h"

#include "core/limits.h"

#include <math.h>
#include <stdio.h>

#define US_MAX 1e12 /* eleven days: a longer time is a mistake */

/* ---- what a point stands for --------------------------------------------------------------- */

static double flops_per_row(enum hth_work_kind kind, double d)
{
    switch (kind) {
    case HTH_WORK_FORWARD:
        return 16 * d * d;
    case HTH_WORK_BACKWARD:
        return 48 * d * d;
    default:
        return 12 * (8 * d * d + 7 * d);
    }
}

static const struct hth_profile_table *table_of(const struct hth_profile *p,
                                                enum hth_work_kind kind)
{
    return kind == HTH_WORK_FORWARD    ? &p->forward
           : kind == HTH_WORK_BACKWARD ? &p->backward
                                       : &p->step;
}

/* ---- looking up ---------------------------------------------------------------------------- */

/* Return y at x on the straight line through two points in logarithms. */
static double power_law(double x0, double y0, double x1, double y1, double x)
{
    return y0 * exp(log(y1 / y0) * log(x / x0) / log(x1 / x0));
}

/* Microseconds of one batch, from the points of one width: points[0] .. points[count - 1]. */
static double us_of_rows(const struct hth_profile_point *points, uint32_t count, double rows)
{
    const struct hth_profile_point *first = &points[0], *last = &points[count - 1];
    if (rows >= last->rows)
        return last->us * rows / last->rows;
    if (rows <= first->rows)
        return first->us; /* a smaller batch reads all the weights, too */
    uint32_t i = 1;
    while (points[i].rows < rows)
        i++;
    return power_law(points[i - 1].rows, points[i - 1].us, points[i].rows, points[i].us, rows);
}

/* Seconds per operation of a batch of `rows` rows, each of `flops` operations. */
static double s_per_flop(const struct hth_profile_table *t, enum hth_work_kind kind, double flops,
                         double rows)
{
    double below_flops = 0, below = 0;
    for (uint32_t i = 0, n; i < t->count; i += n) {
        const struct hth_profile_point *p = &t->points[i];
        for (n = 1; i + n < t->count && p[n].d == p->d;)
            n++;
        double here_flops = flops_per_row(kind, p->d);
        double here = us_of_rows(p, n, rows) * 1e-6 / (here_flops * rows);
        if (here_flops >= flops)
            return i == 0 ? here : power_law(below_flops, below, here_flops, here, flops);
        below_flops = here_flops;
        below = here;
    }
    return below;
}

double hth_profile_s(const struct hth_profile *p, enum hth_work_kind kind,
                     const struct hth_job_work *work)
{
    const struct hth_profile_table *t = table_of(p, kind);
    if (work->batches == 0 || work->rows == 0 || !(work->flops > 0))
        return 0;
    if (t->count == 0)
        return work->flops / (p->gflops * 1e9);
    double rows = (double)work->rows / work->batches;
    return work->flops * s_per_flop(t, kind, work->flops / (double)work->rows, rows);
}

void hth_profile_apply(const struct hth_profile *p, struct hth_device *device)
{
    device->profile = p;
    device->profile_slow = 1;
    device->flops_per_s = p->gflops * 1e9;
    device->bytes_per_s = p->gbytes_per_s * 1e9;
    device->job_overhead_us = (int64_t)(p->overhead_us + 0.5);
    device->compute_workers = p->workers;
}

/* ---- checking ------------------------------------------------------------------------------ */

static bool within(const char *key, double value, double low, double high, char *error, size_t max)
{
    if (value >= low && value <= high)
        return true;
    snprintf(error, max, "%s is %g; it must lie between %g and %g", key, value, low, high);
    return false;
}

static bool check_table(const char *name, const struct hth_profile_table *t, char *error,
                        size_t max)
{
    char key[64];
    for (uint32_t i = 0; i < t->count; i++) {
        const struct hth_profile_point *p = &t->points[i];
        snprintf(key, sizeof(key), "%s[%u].d", name, i);
        if (!within(key, p->d, 1, HTH_PROFILE_D_MAX, error, max))
            return false;
        snprintf(key, sizeof(key), "%s[%u].rows", name, i);
        if (!within(key, p->rows, 1, HTH_PROFILE_ROWS_MAX, error, max))
            return false;
        snprintf(key, sizeof(key), "%s[%u].us", name, i);
        if (!within(key, p->us, 1e-3, US_MAX, error, max))
            return false;
        if (i > 0 && (p[-1].d > p->d || (p[-1].d == p->d && p[-1].rows >= p->rows))) {
            snprintf(error, max,
                     "%s[%u] does not follow the one before it: d must rise, and for equal d rows",
                     name, i);
            return false;
        }
    }
    return true;
}

enum hth_err hth_profile_check(const struct hth_profile *p, char *error, size_t max)
{
    bool good = within("workers", p->workers, 1, 1024, error, max) &&
                within("gflops", p->gflops, 1e-3, 1e9, error, max) &&
                within("gbytes_per_s", p->gbytes_per_s, 1e-3, 1e9, error, max) &&
                within("overhead_us", p->overhead_us, 0, 1e6, error, max) &&
                check_table("forward", &p->forward, error, max) &&
                check_table("backward", &p->backward, error, max) &&
                check_table("step", &p->step, error, max);
    return good ? HTH_OK : HTH_E_RANGE;
}
