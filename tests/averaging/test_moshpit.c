/* SPDX-License-Identifier: Apache-2.0 */
/* test_moshpit.c: whole averagers in the simulated world against means in double. */
#include "averaging/pit.h"
#include "core/mem.h"
#include "support/test.h"

static void full_grids(void **state)
{
    static const struct {
        const char *shape;
        enum hth_quant_format format;
        double bound; /* times the largest value, about 5 */
    } cases[] = {{"4x4", HTH_QUANT_F32, 2e-7}, {"4x4", HTH_QUANT_F16, 2e-3},
                 {"3x3x3", HTH_QUANT_F32, 2e-7}, {"8", HTH_QUANT_F32, 2e-7}};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct hth_avg_shape shape;
        struct pit p;
        double *mean;
        assert_ok(hth_avg_shape_parse(cases[k].shape, &shape));
        pit_init(&p, 70 + k, hth_avg_cells(&shape), 100000, NULL);
        p.shape = shape;
        p.has_cells = true;
        p.format = cases[k].format;
        pit_fill(&p, 3);
        mean = hth_new_array(double, p.count);
        pit_start(&p, 3 * HTH_US_PER_S);
        pit_mean(&p, mean);
        pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        printf("%s: deviation %.3g, wait %.1f ms match %.1f reduce %.1f took %.1f\n", cases[k].shape, pit_deviation(&p, mean),
            p.peer[0].result.wait_us / 1e3, p.peer[0].result.match_us / 1e3, p.peer[0].result.reduce_us / 1e3, p.peer[0].result.took_us / 1e3);
        for (uint32_t i = 0; i < p.peers; i++) {
            const struct hth_avg_result *r = &p.peer[i].result;
            assert_int_equal(r->err, HTH_OK);
            assert_int_equal(r->rounds, shape.dims);
            assert_int_equal(r->rounds_failed, 0);
            assert_true(r->weight_fraction == 1);
            assert_true(r->weight == p.peers);
            assert_true(r->change > 0);
        }
        assert_true(pit_deviation(&p, mean) < cases[k].bound * 5);
        hth_free(mean);
        pit_stop(&p);
    }
}

/* Thousands, in cells given: exact after as many rounds as axes. */
static void crowd_of(const char *text, uint64_t seed)
{
    struct hth_avg_shape shape;
    struct pit p;
    double mean[16], worst_wait = 0;
    uint32_t failed = 0;

    assert_ok(hth_avg_shape_parse(text, &shape));
    pit_init(&p, seed, hth_avg_cells(&shape), 16, NULL);
    p.shape = shape;
    p.has_cells = true;
    pit_fill(&p, 4);
    pit_start(&p, 3 * HTH_US_PER_S);
    pit_mean(&p, mean);
    pit_offer_all(&p, HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 60 * HTH_US_PER_S));
    for (uint32_t i = 0; i < p.peers; i++) {
        failed += p.peer[i].result.rounds_failed;
        worst_wait = HTH_MAX(worst_wait, (double)p.peer[i].result.took_us);
    }
    printf("%s: deviation %.3g failed %u took %.1f ms virtual\n", text, pit_deviation(&p, mean), failed, worst_wait / 1e3);
    assert_int_equal(failed, 0);
    assert_true(pit_deviation(&p, mean) < 1e-6);
    pit_stop(&p);
}

static void a_thousand(void **state)
{
    (void)state;
    crowd_of("32x32", 90);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_grids),
        cmocka_unit_test(a_thousand),
    };
    if (argc > 1) { /* a larger one, by hand */
        crowd_of(argv[1], 90);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
