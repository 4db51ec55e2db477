/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/deadline.h"

#include <string.h>

/* Answers before a new computation: it costs two sorts of the window, and a few samples change
 * little. */
#define FRESH_MAX 4

_Static_assert(HTH_DEADLINE_WINDOW == 32, "outcomes has one bit per call of the window");

void hth_deadline_init(struct hth_deadline *d, const struct hth_deadline_opts *opts)
{
    memset(d, 0, sizeof(*d));
    d->opts = *opts;
    d->usual_us = opts->initial_us;
    d->began_us = INT64_MIN;
}

static void sort_u32(uint32_t *v, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        uint32_t x = v[i], j = i;
        for (; j > 0 && v[j - 1] > x; j--)
            v[j] = v[j - 1];
        v[j] = x;
    }
}

static uint32_t held(const struct hth_deadline *d)
{
    return HTH_MIN(d->count, (uint32_t)HTH_DEADLINE_WINDOW);
}

/* The middle of n sorted values; the mean of the two middle ones when n is even. */
static int64_t middle(const uint32_t *v, uint32_t n)
{
    int64_t hi = v[n / 2];
    return n % 2 ? hi : (hi + (int64_t)v[n / 2 - 1]) / 2;
}

int64_t hth_deadline_median(const struct hth_deadline *d)
{
    uint32_t sorted[HTH_DEADLINE_WINDOW], n = held(d);
    if (n == 0)
        return 0;
    memcpy(sorted, d->sample_us, n * sizeof(sorted[0]));
    sort_u32(sorted, n);
    return middle(sorted, n);
}

static int64_t usual(struct hth_deadline *d)
{
    uint32_t n = held(d);
    if (n < HTH_DEADLINE_SAMPLES_MIN || d->fresh < FRESH_MAX)
        return d->usual_us;
    int64_t median = hth_deadline_median(d);
    uint32_t away[HTH_DEADLINE_WINDOW];
    for (uint32_t i = 0; i < n; i++) {
        int64_t diff = (int64_t)d->sample_us[i] - median;
        away[i] = (uint32_t)(diff < 0 ? -diff : diff);
    }
    sort_u32(away, n);
    double spread_us = d->opts.k * 1.4826 * (double)middle(away, n);
    double us = (double)median + HTH_MAX(spread_us, d->opts.slack * (double)median);
    int64_t got = us < (double)d->opts.ceiling_us ? (int64_t)us : d->opts.ceiling_us;
    d->usual_us = HTH_MAX(got, d->opts.floor_us);
    d->fresh = 0;
    return d->usual_us;
}

int64_t hth_deadline_get(struct hth_deadline *d)
{
    return HTH_MAX(usual(d), d->patience_us);
}

static void remember(struct hth_deadline *d, int64_t now_us, bool missed)
{
    d->ended_us = now_us;
    d->outcomes = d->outcomes << 1 | (missed ? 1 : 0);
    if (d->held > 0)
        d->held--;
}

/* True if more than `quarters` quarters of the last HTH_DEADLINE_WINDOW calls were missed. */
static bool missed_quarters(const struct hth_deadline *d, uint32_t quarters)
{
    uint32_t n = 0;
    for (uint32_t bits = d->outcomes; bits != 0; bits &= bits - 1)
        n++;
    return n > HTH_DEADLINE_WINDOW / 4 * quarters;
}

static bool mostly_missed(const struct hth_deadline *d)
{
    return missed_quarters(d, 3);
}

int64_t hth_deadline_begin(struct hth_deadline *d)
{
    int64_t us = hth_deadline_get(d), probe_us = 2 * d->usual_us;
    if (d->lost < HTH_DEADLINE_WINDOW)
        return us;
    d->lost = 0;
    d->probes++;
    for (uint32_t n = d->probes; n % 2 == 0 && probe_us < d->opts.ceiling_us; n /= 2)
        probe_us *= 2;
    return HTH_MAX(us, HTH_MIN(probe_us, d->opts.ceiling_us));
}

void hth_deadline_observe(struct hth_deadline *d, int64_t now_us, int64_t took_us)
{
    int64_t us = took_us < 0 ? 0 : HTH_MIN(took_us, (int64_t)UINT32_MAX);
    remember(d, now_us, false);
    d->began_us = HTH_MAX(d->began_us, now_us - us);
    if (!mostly_missed(d))
        d->streak = 0;
    bool was_right = (d->patience_us > 0 || missed_quarters(d, 1)) && us > usual(d);
    if (was_right && us > d->patience_us)
        d->patience_us = HTH_MIN(2 * us, d->opts.ceiling_us);
    if (was_right) {
        d->held = HTH_DEADLINE_WINDOW / 2;
        d->held_until_us = now_us + d->patience_us;
    } else if (d->held == 0 && now_us >= d->held_until_us && !mostly_missed(d)) {
        d->patience_us = 0;
    }
    d->sample_us[d->next] = (uint32_t)us;
    d->next = (d->next + 1) % HTH_DEADLINE_WINDOW;
    if (d->count < 2 * HTH_DEADLINE_WINDOW)
        d->count++;
    d->fresh++;
}

void hth_deadline_miss(struct hth_deadline *d, int64_t now_us, int64_t waited_us, int64_t sent_us,
                       int64_t received_us)
{
    bool is_received = received_us > d->ended_us;
    remember(d, now_us, true);
    if (sent_us <= d->began_us && !mostly_missed(d)) {
        d->lost += missed_quarters(d, 1) ? 1 : 0;
        return;
    }
    if (waited_us < hth_deadline_get(d) || (!is_received && d->streak > 0))
        return;
    if (++d->streak >= HTH_DEADLINE_MISSES)
        d->patience_us = HTH_MIN(2 * waited_us, d->opts.ceiling_us);
}
