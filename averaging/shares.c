/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of a butterfly by bandwidth; see shares.h. */
#include "averaging/shares.h"

#include <math.h>
#include <string.h>

uint32_t hth_avg_bandwidth_bad(const double *bandwidth, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double b = bandwidth[i];
        if (b != 0 && !(b >= HTH_AVG_BANDWIDTH_MIN && b <= HTH_AVG_BANDWIDTH_MAX))
            return i;
    }
    return n;
}

/* Places of the positive bandwidths, the fastest first, ties in the order of places. */
static uint32_t sort_positive(const double *bandwidth, uint32_t n, uint32_t *places)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = count;
        if (bandwidth[i] == 0)
            continue;
        for (; at > 0 && bandwidth[places[at - 1]] < bandwidth[i]; at--)
            places[at] = places[at - 1];
        places[at] = i;
        count++;
    }
    return count;
}

/* The level at which those at `places`, the fastest first, have the shares of n members that sum to
 * `part`. */
static double fill_part(const double *bandwidth, const uint32_t *places, uint32_t count, uint32_t n,
                        double part)
{
    double sum = 0, level = 0;
    for (uint32_t k = 0; k < count; k++) {
        double b = bandwidth[places[k]];
        /* The next one reduces only if the water reaches it. */
        if (k > 0 && !(level * b > 1))
            break;
        sum += b;
        level = (((double)n - 2) * part + k + 1) / sum;
    }
    return level;
}

enum hth_err hth_avg_shares(const double *bandwidth, uint32_t n, double *w)
{
    uint32_t places[HTH_AVG_MEMBERS_MAX];
    if (n == 0 || n > HTH_AVG_MEMBERS_MAX || hth_avg_bandwidth_bad(bandwidth, n) != n)
        return HTH_E_RANGE;
    uint32_t count = sort_positive(bandwidth, n, places);
    double level = count > 0 ? fill_part(bandwidth, places, count, n, 1) : 0;
    for (uint32_t i = 0; i < n; i++) {
        if (count == 0)
            w[i] = 1.0 / n;
        else if (bandwidth[i] == 0)
            w[i] = 0;
        else if (n > 2)
            w[i] = HTH_MIN(HTH_MAX((level * bandwidth[i] - 1) / ((double)n - 2), 0.0), 1.0);
        else
            w[i] = 1.0 / count;
    }
    return HTH_OK;
}

enum hth_err hth_avg_bound_claims(double *bandwidth, uint32_t n, double most)
{
    uint32_t places[HTH_AVG_MEMBERS_MAX], count, bound = 0;
    double cap, level;
    if (n == 0 || n > HTH_AVG_MEMBERS_MAX || hth_avg_bandwidth_bad(bandwidth, n) != n ||
        !(most >= 1))
        return HTH_E_RANGE;
    count = sort_positive(bandwidth, n, places);
    cap = most / HTH_MAX(count, 1u);
    if (n <= 2 || cap >= 1)
        return HTH_OK; /* of two each reduces half, whatever they say */
    for (;; bound++) {
        /* The fastest have the bound, the others fill what is left. */
        level = fill_part(bandwidth, places + bound, count - bound, n, 1 - bound * cap);
        if (bound + 1 == count || !(level * bandwidth[places[bound]] - 1 > cap * ((double)n - 2)))
            break;
    }
    for (uint32_t i = 0; i < bound; i++)
        bandwidth[places[i]] = (cap * ((double)n - 2) + 1) / level;
    return HTH_OK;
}

static bool gets_some(double w, uint64_t total, uint64_t minimum)
{
    return w > 0 && w * (double)total >= (double)minimum;
}

enum hth_err hth_avg_split(const double *w, uint32_t n, uint64_t total, uint64_t minimum,
                           uint64_t *counts)
{
    double sum = 0, kept = 0;
    uint64_t given = 0;
    uint32_t most = 0;
    if (n == 0 || n > HTH_AVG_MEMBERS_MAX || total > HTH_PARAMS_FLOATS_MAX)
        return HTH_E_RANGE;
    for (uint32_t i = 0; i < n; i++) {
        if (!(w[i] >= 0 && w[i] <= 1))
            return HTH_E_RANGE;
        most = w[i] > w[most] ? i : most;
        sum += w[i];
        kept += gets_some(w[i], total, minimum) ? w[i] : 0;
    }
    if (!(fabs(sum - 1) <= 1e-6))
        return HTH_E_RANGE;
    sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (kept == 0 ? i == most : gets_some(w[i], total, minimum))
            sum += w[i];
        uint64_t end = (uint64_t)(sum / (kept == 0 ? w[most] : kept) * (double)total);
        counts[i] = HTH_MIN(end, total) - given;
        given += counts[i];
    }
    return HTH_OK;
}
