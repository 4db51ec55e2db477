/* SPDX-License-Identifier: Apache-2.0 */
/* test_together.c: the status page of a trainer is valid JSON. */
#include "app/together.h"

#include "core/mem.h"
#include "core/metrics.h"
#include "support/suite.h"

#include <math.h>

/* A number that is not finite is null in its field, and all other fields are present. */
TEST(number_that_is_not_finite_is_null)
{
    const struct hth_together nothing = {.peer = NULL};
    struct hth_metrics *metrics = hth_metrics_new();
    struct hth_train_stats stats = {.updates = 7};
    const json_t *averaging;
    json_t *page;
    char *text;

    (void)state;
    stats.share.gathered = 12;
    stats.share.weight = INFINITY;
    stats.share.distance = NAN;
    stats.share.norm = 2;
    stats.share.run.fetch.news = "";
    text = hth_together_page(&nothing, metrics, &stats);
    page = json_loads(text, 0, NULL);
    assert_non_null(page);
    averaging = json_object_get(page, "averaging");
    assert_int_equal(json_integer_value(json_object_get(averaging, "gathered")), 12);
    assert_true(json_is_null(json_object_get(averaging, "distance")));
    assert_true(json_is_null(json_object_get(averaging, "distance_relative")));
    assert_true(json_is_null(json_object_get(averaging, "weight")));
    assert_true(json_is_string(json_object_get(averaging, "head")));
    assert_true(json_is_string(json_object_get(averaging, "news")));
    json_decref(page);
    hth_free(text);
    hth_metrics_free(metrics);
}

/* How far apart the peers are, in parts of what they have; nothing while nothing was averaged. */
TEST(distance_is_relative_to_the_norm)
{
    static const struct {
        double distance, norm, relative;
    } cases[] = {{2, 8, 0.25}, {3, 2, 1.5}, {1, 0, 0}};
    const struct hth_together nothing = {.peer = NULL};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_metrics *metrics = hth_metrics_new();
        struct hth_train_stats stats = {.updates = 7};
        stats.share.distance = cases[i].distance;
        stats.share.norm = cases[i].norm;
        char *text = hth_together_page(&nothing, metrics, &stats);
        json_t *page = json_loads(text, 0, NULL);
        const json_t *averaging = json_object_get(page, "averaging");
        assert_close(json_number_value(json_object_get(averaging, "distance_relative")),
                     cases[i].relative, 1e-9, 0);
        json_decref(page);
        hth_free(text);
        hth_metrics_free(metrics);
    }
}

static uint64_t hash_of(const char *grid, uint32_t group, double share_max)
{
    struct hth_peer peer = {.network = NULL};
    struct hth_together t = {.peer = &peer};
    char text[16] = "";
    struct hth_run_averaging run = {.group = group, .share_max = share_max};
    struct hth_share_opts out = {.mode = HTH_SHARE_LOCAL};
    if (grid != NULL)
        run.grid = strcpy(text, grid);
    hth_together_share(&t, &run, &out);
    return out.meeting;
}

/* Trainers whose settings of groups differ must have different hashes, so that they never meet. */
TEST(hash_covers_every_setting_of_groups)
{
    uint64_t usual = hash_of("4x4", 8, 2);
    (void)state;
    assert_true(hash_of("4x4", 8, 2) == usual);
    assert_true(hash_of("4x5", 8, 2) != usual);
    assert_true(hash_of(NULL, 8, 2) != usual);
    assert_true(hash_of("4x4", 9, 2) != usual);
    assert_true(hash_of("4x4", 8, 3) != usual);
}
