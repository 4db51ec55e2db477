/* SPDX-License-Identifier: Apache-2.0 */
/* The averager of a trainer that is alone refuses with a reason; reasons have names. */
#include "averaging/averager.h"
#include "core/blob.h"
#include "support/test.h"

static void alone(void **state)
{
    struct hth_averager a = {.ops = NULL};
    struct hth_averager_stats stats = {.rounds = 1};
    const struct hth_avg_offer offer = {.count = 4, .weight = 32};
    enum hth_avg_reason reason = HTH_AVG_OK;

    (void)state;
    assert_ok(hth_averager_start(&a, NULL, NULL));
    assert_err(HTH_E_NOT_FOUND, hth_averager_ready(&a, &reason));
    assert_int_equal(reason, HTH_AVG_NOBODY);
    assert_err(HTH_E_NOT_FOUND, hth_averager_offer(&a, &offer));
    hth_averager_stats(&a, &stats);
    assert_int_equal(stats.rounds, 0);
    hth_averager_stop(&a);
    hth_averager_free(&a);
}

static void reasons_have_names(void **state)
{
    (void)state;
#define NAMED(num, name, text)                                                                     \
    assert_true((num) < HTH_AVG_REASONS_MAX);                                                      \
    assert_string_equal(hth_avg_reason_name(HTH_AVG_##name), #name);                               \
    assert_string_equal(hth_avg_reason_text(HTH_AVG_##name), text);
    HTH_AVG_REASON_MAP(NAMED)
#undef NAMED
    assert_string_equal(hth_avg_reason_name((enum hth_avg_reason)9999), "UNKNOWN");
    assert_true(strlen(hth_avg_reason_text((enum hth_avg_reason)9999)) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(alone),
                                       cmocka_unit_test(reasons_have_names)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
