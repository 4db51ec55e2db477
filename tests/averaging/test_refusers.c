/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/refusers.h"

#include "core/base.h"
#include "support/test.h"

#define S HTH_US_PER_S

static struct hth_peer_id peer(uint32_t i)
{
    return (struct hth_peer_id){.b = {(uint8_t)i, (uint8_t)(i >> 8), 1}};
}

static void refuses(struct hth_refusers *r, uint32_t i, int64_t now_us)
{
    const struct hth_peer_id id = peer(i);

    hth_refusers_add(r, &id, now_us);
}

static bool excludes(const struct hth_refusers *r, uint32_t i, int64_t now_us)
{
    const struct hth_peer_id id = peer(i);

    return hth_refusers_exclude(r, &id, now_us);
}

/* From the second time on, twice as long each time, up to a bound. */
static void test_who_does_it_again(void **state)
{
    static const int64_t times_s[] = {0, 10, 20, 40, 80, 160, 320, 640, 640};
    struct hth_refusers r = {0};
    int64_t now = S;

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(times_s); i++) {
        refuses(&r, 1, now);
        assert_false(excludes(&r, 2, now));
        assert_int_equal(excludes(&r, 1, now), times_s[i] > 0);
        if (times_s[i] > 0)
            assert_true(excludes(&r, 1, now + times_s[i] * S - 1));
        now += times_s[i] * S;
        assert_false(excludes(&r, 1, now));
        now += 60 * S; /* no longer, and it is no habit */
    }
    refuses(&r, 1, now + 1);
    assert_false(excludes(&r, 1, now + 1));
}

/* A crowd that refuses once each, and is larger than the table, lets nobody off who is excluded. */
static void test_a_crowd(void **state)
{
    struct hth_refusers r = {0};

    (void)state;
    refuses(&r, 0, S);
    refuses(&r, 0, S);
    for (uint32_t i = 1; i < 4 * HTH_AVG_REFUSERS_MAX; i++)
        refuses(&r, i, 2 * S + i);
    assert_true(excludes(&r, 0, 11 * S - 1));
    /* ... and when its time is over, it makes room as the others do. */
    for (uint32_t i = 1; i <= HTH_AVG_REFUSERS_MAX; i++)
        refuses(&r, 1000 + i, 12 * S + i);
    refuses(&r, 0, 13 * S);
    assert_false(excludes(&r, 0, 13 * S));
}

/* When all are excluded the one goes whose time ends first. */
static void test_all_are_excluded(void **state)
{
    struct hth_refusers r = {0};

    (void)state;
    for (int times = 0; times < 2; times++)
        for (uint32_t i = 0; i < HTH_AVG_REFUSERS_MAX; i++)
            refuses(&r, i, S + i);
    refuses(&r, 0, 2 * S); /* 20 s now */
    refuses(&r, 1000, 3 * S);
    for (uint32_t i = 0; i < HTH_AVG_REFUSERS_MAX; i++)
        assert_int_equal(excludes(&r, i, 3 * S), i != 1);
    refuses(&r, 1000, 3 * S);
    assert_true(excludes(&r, 1000, 3 * S));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_does_it_again),
        cmocka_unit_test(test_a_crowd),
        cmocka_unit_test(test_all_are_excluded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
