/* SPDX-License-Identifier: Apache-2.0 */
/* test_together.c: the status page of a trainer. */
#include "app/together.h"

#include "core/mem.h"
#include "core/metrics.h"
#include "support/test.h"

#include <math.h>

/* A number that is not finite is null in its field; all others are there. */
static void test_not_finite(void **state)
{
    const struct hth_together nothing = {.peer = NULL};
    struct hth_metrics *metrics = hth_metrics_new();
    struct hth_train_stats stats = {.updates = 7};
    const json_t *averaging;
    json_t *page;
    char *text;

    (void)state;
    stats.share.gathered = 12;
    stats.share.known = INFINITY;
    stats.share.distance = NAN;
    stats.share.norm = 2;
    text = hth_together_page(&nothing, metrics, &stats);
    page = json_loads(text, 0, NULL);
    assert_non_null(page);
    averaging = json_object_get(page, "averaging");
    assert_int_equal(json_integer_value(json_object_get(averaging, "gathered")), 12);
    assert_true(json_is_null(json_object_get(averaging, "known")));
    assert_true(json_is_null(json_object_get(averaging, "distance")));
    assert_true(json_is_null(json_object_get(averaging, "distance_relative")));
    assert_true(json_is_real(json_object_get(averaging, "weight")));
    assert_true(json_is_string(json_object_get(averaging, "news")));
    json_decref(page);
    hth_free(text);
    hth_metrics_free(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_finite),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
