/* SPDX-License-Identifier: Apache-2.0 */
/* test_listen.c: averagers that bring nothing and are told what the others end with. */
#include "averaging/pit.h"
#include "core/mem.h"
#include "support/test.h"

/* The last `listeners` peers of the grid have no state. */
static void begin(struct pit *p, uint64_t seed, const char *shape, uint32_t listeners, size_t count)
{
    struct hth_avg_shape s;
    uint32_t peers;

    assert_ok(hth_avg_shape_parse(shape, &s));
    peers = hth_avg_cells(&s);
    pit_init(p, seed, peers + listeners, count, NULL);
    p->shape = s;
    p->has_cells = true;
    for (uint32_t i = 0; i < p->peers; i++) {
        p->peer[i].rank = i % peers;
        p->peer[i].listens = i >= peers;
        p->peer[i].weight = 1 + i;
    }
    pit_fill(p, seed);
    pit_start(p, 3 * HTH_US_PER_S);
    for (uint32_t i = 0; i < p->peers; i++)
        hth_roster_set_progress(p->peer[i].avg.roster, 7, 0, 0);
    hth_world_run_for(p->world, 2 * HTH_US_PER_S);
}

static void check_alike(const struct hth_avg_result *heard, const struct hth_avg_result *theirs)
{
    assert_ok(heard->err);
    assert_int_equal(heard->parts_kept, 0);
    assert_close(heard->weight, theirs->weight, 1e-9, 0);
    assert_close(heard->weight_met, theirs->weight_met, 1e-9, 0);
    assert_int_equal(heard->heads, theirs->heads);
    assert_int_equal(heard->origin, theirs->origin);
    assert_int_equal(heard->members, theirs->members);
    assert_int_equal(heard->step_max, theirs->step_max);
    assert_null(heard->values);
}

static void hears_a_line(void **state)
{
    struct pit p;
    double mean[5000];

    (void)state;
    begin(&p, 200, "4", 1, HTH_ARRAY_LEN(mean));
    pit_mean(&p, mean);
    pit_offer(&p.peer[4], 7, HTH_AVG_ALL_AXES);
    hth_world_run_for(p.world, 200 * HTH_US_PER_MS);
    for (uint32_t i = 0; i < 4; i++)
        pit_offer(&p.peer[i], 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(p.peer[i].result.heads, 4);
        assert_int_equal(p.peer[i].result.members, 5);
        assert_int_equal(p.peer[i].result.drops, 0);
    }
    check_alike(&p.peer[4].result, &p.peer[0].result);
    assert_true(pit_deviation(&p, mean) < 1e-5);
    assert_true(pit_spread(&p) == 0);
    pit_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hears_a_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
