/* SPDX-License-Identifier: Apache-2.0 */
/* The averager of a trainer that is alone refuses with a reason, and never calls back. */
#include "averaging/averager.h"
#include "core/blob.h"
#include "support/test.h"

static void no_round(void *arg, const struct hth_avg_result *result)
{
    (void)arg;
    (void)result;
    fail_msg("a round ended that nobody took part in");
}

static void test_nobody(void **state)
{
    struct hth_averager a;
    struct hth_averager_stats stats;
    struct hth_blob *blob = hth_blob_copy("0123456789abcdef", 16);
    struct hth_avg_offer offer = {.values = blob, .count = 4, .weight = 32};
    enum hth_avg_reason reason = HTH_AVG_OK;

    (void)state;
    hth_averager_nobody(&a);
    assert_ok(hth_averager_start(&a, no_round, NULL));
    assert_err(HTH_E_NOT_FOUND, hth_averager_ready(&a, &reason));
    assert_int_equal(reason, HTH_AVG_NOBODY);
    assert_err(HTH_E_NOT_FOUND, hth_averager_offer(&a, &offer));
    offer.weight = 0;
    assert_err(HTH_E_RANGE, hth_averager_offer(&a, &offer));
    offer.weight = NAN;
    assert_err(HTH_E_RANGE, hth_averager_offer(&a, &offer));
    offer.weight = 2 * HTH_AVG_WEIGHT_MAX;
    assert_err(HTH_E_RANGE, hth_averager_offer(&a, &offer));
    hth_averager_stats(&a, &stats);
    assert_int_equal(stats.offers, 4);
    assert_int_equal(stats.refused, 4);
    assert_int_equal(stats.rounds, 0);
    hth_averager_stop(&a);
    hth_averager_free(&a);
    hth_averager_free(&a);
    hth_blob_unref(blob);
}

static void test_reasons(void **state)
{
    (void)state;
    for (unsigned i = 0; i < HTH_AVG_REASONS_MAX; i++) {
        assert_non_null(hth_avg_reason_text((enum hth_avg_reason)i));
        assert_true(strlen(hth_avg_reason_name((enum hth_avg_reason)i)) > 0);
    }
    assert_string_equal(hth_avg_reason_name(HTH_AVG_NOT_LEADER), "NOT_LEADER");
    assert_string_equal(hth_avg_reason_name((enum hth_avg_reason)9999), "UNKNOWN");
#define BELOW(num, name, text) assert_true((num) < HTH_AVG_REASONS_MAX);
    HTH_AVG_REASON_MAP(BELOW)
#undef BELOW
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nobody),
                                       cmocka_unit_test(test_reasons)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
