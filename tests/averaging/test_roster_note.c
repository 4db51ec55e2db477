/* SPDX-License-Identifier: Apache-2.0 */
/* What a roster's note may say: there and back, and each limit crossed. */
#include "averaging/roster.h"

#include "support/test.h"

static struct hth_roster_note good_note(void)
{
    struct hth_roster_note n = {.addr = {.family = 4, .ip = {10, 1, 2, 3}, .port = 9},
                                .flags = HTH_ROSTER_CLIENT,
                                .schema = 77,
                                .step = 12,
                                .samples = 13,
                                .samples_per_s = 14.5,
                                .round = 15,
                                .shape = {.dims = 2, .size = {3, 4}},
                                .cell = {{2, 3}},
                                .last = {.group = 1,
                                         .members = 2,
                                         .drops = 1,
                                         .bytes = 3,
                                         .change = 0.5,
                                         .norm = 4,
                                         .weight_fraction = 0.5},
                                .settings = {31, 32, 33, 34, 35}};

    return n;
}

static enum hth_err round_trip(const struct hth_roster_note *n, struct hth_roster_note *out)
{
    uint8_t bytes[512];
    struct hth_writer w;

    hth_writer_init(&w, bytes, sizeof(bytes));
    assert_ok(hth_roster_note_write(n, &w));
    return hth_roster_note_read(bytes, w.pos, out);
}

static void test_notes(void **state)
{
    struct hth_roster_note n = good_note(), got;
    uint8_t bytes[512];
    struct hth_writer w;

    (void)state;
    assert_ok(round_trip(&n, &got));
    assert_true(hth_addr_eq(&n.addr, &got.addr));
    assert_int_equal(got.samples, 13);
    assert_close(got.samples_per_s, 14.5, 0, 0);
    assert_int_equal(got.cell.at[1], 3);
    assert_int_equal(got.last.bytes, 3);
    assert_close(got.last.norm, 4, 0, 0);
    assert_close(got.last.weight_fraction, 0.5, 0, 0);
    assert_memory_equal(&got.settings, &n.settings, sizeof(n.settings));
    hth_writer_init(&w, bytes, sizeof(bytes));
    assert_ok(hth_roster_note_write(&n, &w));
    for (size_t len = 0; len < w.pos; len++)
        assert_err(HTH_E_TRUNCATED, hth_roster_note_read(bytes, len, &got));
    assert_err(HTH_E_MALFORMED, hth_roster_note_read(bytes, w.pos + 1, &got));
    bytes[0]++;
    assert_err(HTH_E_VERSION, hth_roster_note_read(bytes, w.pos, &got));
}

static void test_limits_of_notes(void **state)
{
    struct hth_roster_note n, got;

    (void)state;
#define REFUSED(err, field, value)                                                                 \
    do {                                                                                           \
        n = good_note();                                                                           \
        n.field = value;                                                                           \
        assert_err(err, round_trip(&n, &got));                                                     \
    } while (0)
    REFUSED(HTH_E_MALFORMED, flags, HTH_ROSTER_FLAGS + 1);
    REFUSED(HTH_E_RANGE, addr.family, 5);
    REFUSED(HTH_E_RANGE, step, HTH_AVG_STEP_MAX + 1);
    REFUSED(HTH_E_RANGE, round, HTH_AVG_STEP_MAX + 1);
    REFUSED(HTH_E_RANGE, samples, HTH_AVG_SAMPLES_MAX + 1);
    REFUSED(HTH_E_RANGE, samples_per_s, 1.001 * HTH_AVG_RATE_MAX);
    REFUSED(HTH_E_RANGE, samples_per_s, -1);
    REFUSED(HTH_E_RANGE, samples_per_s, NAN);
    REFUSED(HTH_E_RANGE, shape.size[1], 0);
    REFUSED(HTH_E_RANGE, shape.size[1], HTH_AVG_CELLS_MAX);
    REFUSED(HTH_E_RANGE, cell.at[0], 3);
    REFUSED(HTH_E_RANGE, last.members, HTH_AVG_MEMBERS_MAX + 1);
    REFUSED(HTH_E_RANGE, last.drops, HTH_AVG_MEMBERS_MAX + 1);
    REFUSED(HTH_E_RANGE, last.change, -1);
    REFUSED(HTH_E_RANGE, last.change, NAN);
    REFUSED(HTH_E_RANGE, last.norm, INFINITY);
    REFUSED(HTH_E_RANGE, last.weight_fraction, -0.1);
    REFUSED(HTH_E_RANGE, last.weight_fraction, 1.01);
    REFUSED(HTH_E_RANGE, last.weight_fraction, NAN);
#undef REFUSED
    n = good_note();
    n.step = HTH_AVG_STEP_MAX;
    n.samples = HTH_AVG_SAMPLES_MAX;
    n.samples_per_s = HTH_AVG_RATE_MAX;
    assert_ok(round_trip(&n, &got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_notes),
        cmocka_unit_test(test_limits_of_notes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
