/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fidelity.c: the time at which a crashed host disappears, and at which a restarted one is
 * used again.
 */
#include "lab/fidelity.h"
#include "support/suite.h"

#include <math.h>

#define ALL  32
#define GONE 24

/* A sample every half second, with these numbers of live experts. */
static struct hth_fidelity_series series_of(const uint32_t *live, size_t count)
{
    struct hth_fidelity_series s = {.count = 0};
    for (size_t i = 0; i < count; i++) {
        struct hth_fidelity_sample sample = {.t_s = 0.5 * (double)i, .live = live[i]};
        hth_fidelity_add(&s, &sample);
    }
    return s;
}

#define BACK(from_s, ...)                                                                          \
    until_back(from_s, (const uint32_t[]){__VA_ARGS__},                                            \
               sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static double until_back(double from_s, const uint32_t *live, size_t count)
{
    struct hth_fidelity_series s = series_of(live, count);
    double out = hth_fidelity_until_back(&s, from_s, ALL);
    hth_fidelity_clear(&s);
    return out;
}

TEST(host_is_back_once_its_experts_stay)
{
    (void)state;
    assert_true(BACK(0.2, 24, 24, 32, 32, 32, 32, 32, 32) == 0.8);
    /* A dip of another host, hidden for a moment. */
    assert_true(BACK(0.0, 24, 24, 32, 32, 24, 32, 32, 32) == 1.0);
    /* A peak of the crashed host while it is retried. */
    assert_true(BACK(0.0, 24, 32, 24, 24, 24, 32, 32, 32, 32) == 2.5);
    assert_true(BACK(0.0, 24, 32, 24, 32, 24, 24, 32, 32, 32) == 3.0);
    assert_true(isnan(BACK(0.0, 24, 24, 24)));
}

TEST(host_is_gone_after_two_samples)
{
    static const uint32_t live[] = {32, 24, 32, 32, 24, 24, 32};
    struct hth_fidelity_series s = series_of(live, HTH_ARRAY_LEN(live));
    (void)state;
    assert_true(hth_fidelity_until_gone(&s, 0.0, GONE) == 2.0);
    assert_true(hth_fidelity_until_gone(&s, 0.5, GONE) == 1.5);
    assert_true(isnan(hth_fidelity_until_gone(&s, 2.4, GONE)));
    hth_fidelity_clear(&s);
}
