/* SPDX-License-Identifier: Apache-2.0 */
/* Adaptive deadlines against hand-computed medians. */
#include "support/test.h"

#include "rpc/deadline.h"

static struct hth_deadline make(void)
{
    struct hth_deadline_opts opts = HTH_DEADLINE_OPTS_INIT;
    struct hth_deadline d;
    opts.k = 4.0;
    opts.floor_us = 1000;
    opts.ceiling_us = 1000000;
    opts.initial_us = 500000;
    hth_deadline_init(&d, &opts);
    return d;
}

static void starts_with_the_initial_value(void **state)
{
    struct hth_deadline d = make();
    (void)state;
    assert_int_equal(hth_deadline_median(&d), 0);
    for (int i = 0; i < HTH_DEADLINE_SAMPLES_MIN - 1; i++) {
        assert_int_equal(hth_deadline_get(&d), 500000);
        hth_deadline_observe(&d, 10000);
    }
    assert_int_equal(hth_deadline_get(&d), 500000);
    hth_deadline_observe(&d, 10000);
    assert_int_equal(hth_deadline_get(&d), 10000); /* no spread at all */
}

static void is_median_plus_k_mad(void **state)
{
    struct hth_deadline d = make();
    (void)state;
    /* median 30000; |x - m| = 0 10000 10000 20000 60000, their median 10000 */
    const int64_t us[] = {30000, 20000, 40000, 10000, 90000};
    for (size_t i = 0; i < HTH_ARRAY_LEN(us); i++)
        hth_deadline_observe(&d, us[i]);
    assert_int_equal(hth_deadline_median(&d), 30000);
    assert_int_equal(hth_deadline_get(&d), (int64_t)(30000 + 4.0 * 1.4826 * 10000));
}

static void stays_between_floor_and_ceiling(void **state)
{
    struct hth_deadline d = make();
    (void)state;
    for (int i = 0; i < 8; i++)
        hth_deadline_observe(&d, i == 0 ? -5 : 1);
    assert_int_equal(hth_deadline_get(&d), 1000);
    for (int i = 0; i < HTH_DEADLINE_WINDOW; i++)
        hth_deadline_observe(&d, INT64_C(1) << 50);
    assert_int_equal(hth_deadline_get(&d), 1000000);
}

/* One straggler in ten moves it little; a world that became ten times slower is followed. */
static void forgets_stragglers_and_follows_change(void **state)
{
    struct hth_deadline d = make();
    (void)state;
    for (int i = 0; i < HTH_DEADLINE_WINDOW; i++)
        hth_deadline_observe(&d, i % 10 == 0 ? 900000 : 5000 + 100 * (i % 5));
    assert_true(hth_deadline_get(&d) < 10000);
    int misses = 0;
    while (hth_deadline_get(&d) < 60000) {
        hth_deadline_miss(&d, hth_deadline_get(&d));
        assert_true(++misses < 4 * HTH_DEADLINE_WINDOW);
    }
    for (int i = 0; i < 2 * HTH_DEADLINE_WINDOW; i++)
        hth_deadline_observe(&d, 50000 + 100 * (i % 7));
    int64_t us = hth_deadline_get(&d);
    assert_true(us > 50000 && us < 60000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_with_the_initial_value),
        cmocka_unit_test(is_median_plus_k_mad),
        cmocka_unit_test(stays_between_floor_and_ceiling),
        cmocka_unit_test(forgets_stragglers_and_follows_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
