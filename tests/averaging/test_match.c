/* SPDX-License-Identifier: Apache-2.0 */
/* test_match.c: groups come about in the simulated world: quickly, all alike, and whoever dies. */
#include "averaging/crowd.h"
#include "core/mem.h"
#include "support/test.h"

#define RTT_US (20 * HTH_US_PER_MS) /* of the calm world */

/* Until a note that is put is seen by who watches (sim/params.h). */
static double dht_rtts(uint32_t n)
{
    return 1 + log2(n) / 2;
}

/* Round trips that the slowest of all needs for a group of all. */
static double one_round(struct crowd *c, uint64_t round)
{
    int64_t start = hth_world_now_us(c->world), longest = 0;

    c->look.line.round = round;
    crowd_look_all(c);
    assert_true(crowd_run(c, 3 * HTH_US_PER_S));
    assert_true(crowd_agrees(c));
    for (uint32_t i = 0; i < c->count; i++) {
        assert_int_equal(c->mate[i].result.err, HTH_OK);
        assert_int_equal(c->mate[i].group->count, c->count);
        longest = HTH_MAX(longest, c->mate[i].ended_us - start);
    }
    return (double)longest / RTT_US;
}

/* The notes have to be seen, then JOIN and BEGIN are one round trip; who never spoke to the leader
 * before needs three more for TCP, TLS and HELLO. Half a one is for a leader that is seen late. */
static void together(void **state)
{
    static const uint32_t counts[] = {2, 3, 5, 8, 16, 33, 64};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(counts); k++) {
        struct crowd c;
        double best = INFINITY;
        crowd_start(&c, 40 + k, counts[k], NULL);
        c.due_known = true;
        for (uint32_t round = 0; round < 12; round++) {
            double rtts = one_round(&c, round);
            assert_true(rtts <= dht_rtts(counts[k]) + 4.5);
            best = HTH_MIN(best, rtts);
        }
        if (counts[k] <= 5) /* the same leader came again */
            assert_true(best <= dht_rtts(counts[k]) + 1.5);
        crowd_stop(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
