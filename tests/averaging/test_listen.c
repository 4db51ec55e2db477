/* SPDX-License-Identifier: Apache-2.0 */
/* test_listen.c: averagers that bring nothing and are told what the others end with. */
#include "averaging/pit.h"
#include "core/mem.h"
#include "support/test.h"

/* The last `observers` peers of the grid have no state. */
static void begin(struct pit *p, uint64_t seed, const char *shape, uint32_t observers, size_t count)
{
    struct hth_avg_shape s;
    uint32_t peers;

    assert_ok(hth_avg_shape_parse(shape, &s));
    peers = hth_avg_cells(&s);
    pit_init(p, seed, peers + observers, count, NULL);
    p->shape = s;
    p->has_cells = true;
    for (uint32_t i = 0; i < p->peers; i++) {
        p->peer[i].rank = i % peers;
        p->peer[i].observes = i >= peers;
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
    struct hth_match_stats s;
    double mean[5000];

    (void)state;
    begin(&p, 200, "4", 1, HTH_ARRAY_LEN(mean));
    pit_mean(&p, mean);
    pit_offer(&p.peer[4], 7, HTH_AVG_ALL_AXES);
    hth_world_run_for(p.world, HTH_US_PER_S);
    for (uint32_t i = 0; i < 4; i++)
        pit_offer(&p.peer[i], 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(p.peer[i].result.heads, 4);
        assert_int_equal(p.peer[i].result.members, 5);
        assert_int_equal(p.peer[i].result.drops, 0);
    }
    check_alike(&p.peer[4].result, &p.peer[0].result);
    hth_moshpit_match_stats(&p.peer[4].avg.averager, &s);
    assert_int_equal(s.boards, 0); /* however long before it looked */
    assert_true(pit_deviation(&p, mean) < 1e-5);
    assert_true(pit_spread(&p) == 0);
    pit_stop(&p);
}

/* Through the axes before the last one nobody tells it anything, and any line of that has the
 * mean. */
static void hears_grids(void **state)
{
    static const char *const shapes[] = {"3x3", "2x2x2", "4x3"};
    static const uint32_t observers[] = {2, 1, 2}; /* a line of two takes one */
    double mean[3000];

    (void)state;
    for (uint64_t k = 0; k < 6; k++) {
        struct pit p;
        uint32_t trainers;

        begin(&p, 210 + k, shapes[k / 2], observers[k / 2], HTH_ARRAY_LEN(mean));
        trainers = p.peers - observers[k / 2];
        pit_mean(&p, mean);
        for (uint32_t i = trainers; i < p.peers; i++)
            pit_offer(&p.peer[i], 7, HTH_AVG_ALL_AXES);
        hth_world_run_for(p.world, 250 * HTH_US_PER_MS);
        for (uint32_t i = 0; i < trainers; i++)
            pit_offer(&p.peer[i], 7, HTH_AVG_ALL_AXES);
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
        for (uint32_t i = 0; i < p.peers; i++) {
            struct hth_avg_result r = p.peer[i].result;

            assert_int_equal(r.heads, trainers);
            assert_int_equal(r.drops, 0);
            assert_int_equal(r.rounds_failed, 0);
            assert_int_equal(r.rounds, i < trainers ? p.shape.dims : 1);
            if (i < trainers)
                continue;
            r.members = p.peer[0].result.members; /* its line's */
            check_alike(&r, &p.peer[0].result);
        }
        assert_true(pit_deviation(&p, mean) < 1e-5);
        pit_stop(&p);
    }
}

/* The others meet at once, and it looked lead_us before. How often it was left out. */
static uint32_t count_left_out(int64_t lead_us)
{
    uint32_t left_out = 0;

    for (uint64_t seed = 300; seed < 308; seed++) {
        struct pit p;

        begin(&p, seed, "8", 2, 100);
        for (uint64_t sweep = 7; sweep < 12; sweep++) {
            for (uint32_t i = 8; i < 10; i++)
                pit_offer(&p.peer[i], sweep, HTH_AVG_ALL_AXES);
            hth_world_run_for(p.world, lead_us);
            for (uint32_t i = 0; i < 8; i++)
                pit_offer(&p.peer[i], sweep, HTH_AVG_ALL_AXES);
            assert_true(pit_run(&p, 20 * HTH_US_PER_S));
            for (uint32_t i = 0; i < 10; i++) {
                left_out += i >= 8 && p.peer[i].result.err != HTH_OK;
                assert_true(i >= 8 || p.peer[i].result.err == HTH_OK);
                hth_roster_set_progress(p.peer[i].avg.roster, sweep + 1, 0, 0);
            }
            hth_world_run_for(p.world, 2 * HTH_US_PER_S);
        }
        pit_stop(&p);
    }
    return left_out;
}

/* A line of two takes one of them: who found it full observes another from then on. */
static void two_share_a_narrow_grid(void **state)
{
    (void)state;
    for (uint64_t seed = 400; seed < 408; seed++) {
        uint32_t heard[2] = {0};
        struct pit p;

        begin(&p, seed, "2x2", 2, 100);
        for (uint64_t sweep = 7; sweep < 15; sweep++) {
            for (uint32_t i = 4; i < 6; i++)
                pit_offer(&p.peer[i], sweep, HTH_AVG_ALL_AXES);
            hth_world_run_for(p.world, 100 * HTH_US_PER_MS);
            for (uint32_t i = 0; i < 4; i++)
                pit_offer(&p.peer[i], sweep, HTH_AVG_ALL_AXES);
            assert_true(pit_run(&p, 20 * HTH_US_PER_S));
            for (uint32_t i = 0; i < 6; i++) {
                if (i >= 4)
                    heard[i - 4] += p.peer[i].result.err == HTH_OK;
                hth_roster_set_progress(p.peer[i].avg.roster, sweep + 1, 0, 0);
            }
            hth_world_run_for(p.world, 2 * HTH_US_PER_S);
        }
        print_message("seed %u: heard %u and %u of 8 steps\n", (unsigned)seed, heard[0], heard[1]);
        assert_true(heard[0] + heard[1] >= 15);
        pit_stop(&p);
    }
}

/* Nobody waits for it, and it is in as soon as its word is there. */
static void is_not_left_out(void **state)
{
    (void)state;
    for (int64_t ms = 0; ms <= 100; ms += 50) {
        uint32_t left_out = count_left_out(ms * HTH_US_PER_MS);

        print_message("looked %d ms before: left out in %u of 80\n", (int)ms, left_out);
        assert_int_equal(left_out, 0);
    }
}

/* ---- what becomes of it -------------------------------------------------------------------- */

/* When the last of the others has its average, from when they offered; the observer ends at at_us
 * of that, killed or silent, or never (negative). */
static int64_t run_end(int64_t at_us, enum hth_crash how)
{
    struct pit p;
    double mean[5000];
    int64_t longest_us = 0;

    begin(&p, 230, "4", 1, HTH_ARRAY_LEN(mean));
    pit_mean(&p, mean);
    pit_offer(&p.peer[4], 7, HTH_AVG_ALL_AXES);
    hth_world_run_for(p.world, 100 * HTH_US_PER_MS);
    for (uint32_t i = 0; i < 4; i++)
        pit_offer(&p.peer[i], 7, HTH_AVG_ALL_AXES);
    if (at_us >= 0) {
        hth_world_run_for(p.world, at_us);
        hth_node_crash(p.peer[4].node, how);
        p.peer[4].up = false;
    }
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    for (uint32_t i = 0; i < 4; i++) {
        const struct hth_avg_result *r = &p.peer[i].result;

        assert_ok(r->err);
        assert_int_equal(r->heads, 4);
        assert_int_equal(r->drops, 0);
        assert_int_equal(r->parts_kept, 0);
        assert_true(r->weight == r->weight_met && r->weight == 10);
        longest_us = HTH_MAX(longest_us, p.peer[i].longest_us);
    }
    assert_true(pit_deviation(&p, mean) < 1e-5);
    pit_stop(&p);
    return longest_us;
}

static void is_not_missed(void **state)
{
    int64_t calm_us = run_end(-1, HTH_CRASH_RESET);

    (void)state;
    for (int64_t at = 0; at < calm_us; at += 5 * HTH_US_PER_MS) {
        assert_true(run_end(at, HTH_CRASH_RESET) <= calm_us + HTH_US_PER_MS);
        assert_true(run_end(at, HTH_CRASH_SILENT) <= calm_us + HTH_US_PER_MS);
    }
}

/* Samples that somebody says it has at the step, and did not bring: to observe is no excuse. */
static void counts_for_nothing(void **state)
{
    struct hth_roster_batch b;
    struct pit p;

    (void)state;
    begin(&p, 250, "3", 1, 16);
    hth_roster_set_flags(p.peer[3].avg.roster, 0);
    hth_roster_set_progress(p.peer[3].avg.roster, 7, 50, 0);
    hth_world_run_for(p.world, 2 * HTH_US_PER_S);
    hth_roster_batch(p.peer[0].avg.roster, 7, 100, &b);
    assert_true(b.samples == 50);
    pit_offer_all(&p, 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 5 * HTH_US_PER_S));
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(p.peer[i].result.err);
        assert_int_equal(p.peer[i].result.members, 4);
        assert_true(p.peer[i].longest_us < 500 * HTH_US_PER_MS);
        hth_roster_batch(p.peer[i].avg.roster, 7, 100, &b);
        assert_true(b.samples == 0);
    }
    /* The next time it observes, too. */
    pit_offer(&p.peer[3], 8, HTH_AVG_ALL_AXES);
    hth_world_run_for(p.world, HTH_US_PER_S);
    hth_roster_batch(p.peer[0].avg.roster, 7, 100, &b);
    assert_true(b.samples == 0);
    pit_stop(&p);
}

/* Most go on to other lines. Who observes has its own, and looks there once, whatever it hears. */
static void looks_once(void **state)
{
    struct hth_match_stats before, after;
    struct pit p;

    (void)state;
    begin(&p, 250, "9", 0, 16);
    p.peer[8].observes = true;
    hth_moshpit_match_stats(&p.peer[8].avg.averager, &before);
    p.peer[8].kind_on = 1;
    pit_offer(&p.peer[8], 7, HTH_AVG_ALL_AXES);
    hth_world_run_for(p.world, 100 * HTH_US_PER_MS);
    for (uint32_t i = 0; i < 8; i++) {
        p.peer[i].kind = i < 6 ? 1 : 0;
        p.peer[i].kind_on = i < 6 ? 0 : 1;
        pit_offer(&p.peer[i], 7, HTH_AVG_ALL_AXES);
    }
    assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    hth_moshpit_match_stats(&p.peer[8].avg.averager, &after);
    assert_int_equal(after.looks - before.looks, 1);
    pit_stop(&p);
}

/* ---- what it may offer --------------------------------------------------------------------- */

static void offers(void **state)
{
    struct hth_avg_offer o = {.count = 16, .schema = 5, .sweep = 7};
    enum hth_avg_reason reason;
    struct hth_averager *a;
    struct pit p;
    double mean[16];

    (void)state;
    begin(&p, 240, "3", 1, 16);
    pit_mean(&p, mean);
    a = &p.peer[3].avg.averager;
    assert_err(HTH_E_NOT_FOUND, hth_averager_ready(a, &reason)); /* to bring something */
    assert_int_equal(reason, HTH_AVG_STARTING);
    o.rounds = 1;
    assert_err(HTH_E_RANGE, hth_averager_offer(a, &o));
    o.rounds = HTH_AVG_ALL_AXES;
    o.sweep = HTH_AVG_SWEEP_AUTO;
    assert_err(HTH_E_RANGE, hth_averager_offer(a, &o));
    o.sweep = 7;
    o.weight = 1;
    assert_err(HTH_E_RANGE, hth_averager_offer(a, &o));
    o.weight = 0;
    /* Nobody comes: as for others. */
    pit_offer(&p.peer[3], 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 5 * HTH_US_PER_S));
    assert_int_equal(p.peer[3].result.err, HTH_E_NOT_FOUND);
    assert_int_equal(p.peer[3].result.reason, HTH_AVG_ALONE);
    /* Who prepared to bring something, and now can't, observes: the others do not wait for it. */
    assert_ok(hth_averager_prepare(&p.peer[2].avg.averager, &o, HTH_US_PER_S));
    hth_world_run_for(p.world, 100 * HTH_US_PER_MS);
    p.peer[2].observes = true;
    for (uint32_t i = 0; i < 4; i++)
        pit_offer(&p.peer[i], 7, HTH_AVG_ALL_AXES);
    assert_true(pit_run(&p, 5 * HTH_US_PER_S));
    for (uint32_t i = 0; i < 2; i++) {
        assert_ok(p.peer[i].result.err);
        assert_int_equal(p.peer[i].result.heads, 2);
        assert_true(p.peer[i].longest_us < 500 * HTH_US_PER_MS);
    }
    /* Of two who bring something one may hear. */
    assert_int_equal((p.peer[2].result.err == HTH_OK) + (p.peer[3].result.err == HTH_OK), 1);
    pit_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hears_a_line),    cmocka_unit_test(hears_grids),
        cmocka_unit_test(is_not_left_out), cmocka_unit_test(two_share_a_narrow_grid),
        cmocka_unit_test(is_not_missed),   cmocka_unit_test(counts_for_nothing),
        cmocka_unit_test(offers),          cmocka_unit_test(looks_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
