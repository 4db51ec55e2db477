/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a grid's lines: they come back as they were, and bad ones are named errors. */
#include "support/test.h"

#include "collab/chain.h"
#include "collab/row_msg.h"

static struct hth_row_marks any_marks(uint32_t count)
{
    static const uint16_t marks[] = {HTH_ROLL_IN, 0, HTH_ROLL_PART};
    struct hth_row_marks m = {.count = count};
    for (uint32_t i = 0; i < count; i++)
        m.of[i] = marks[i % 3];
    return m;
}

static void rows_come_back(void **state)
{
    static const uint32_t counts[] = {1, 3, 4, 18, HTH_ROLL_MEMBERS_MAX};
    uint8_t bytes[HTH_ROW_BYTES_MAX + 1];
    (void)state;
    for (size_t k = 0; k < 3 * HTH_ARRAY_LEN(counts); k++) {
        struct hth_row_msg a = {.group = {{9, 8}}, .axis = 2, .cell = 77, .state = k % 3}, b;
        if (a.state == HTH_ROW_HAS)
            a.marks = any_marks(counts[k / 3]);
        size_t len = hth_row_write(&a, bytes);
        assert_ok(hth_row_read(bytes, len, &b));
        assert_memory_equal(&a, &b, sizeof(a));
        for (size_t cut = 0; cut < len; cut++)
            assert_int_not_equal(hth_row_read(bytes, cut, &b), HTH_OK);
        assert_err(HTH_E_MALFORMED, hth_row_read(bytes, len + 1, &b));
    }
}

static void answers_come_back(void **state)
{
    uint8_t bytes[HTH_ROW_BYTES_MAX + 1];
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct hth_row_reply a = {.kind = k}, b;
        if (a.kind == HTH_ROW_BEGIN) {
            a.has = UINT64_C(1) << 63 | 5;
            a.marks = any_marks(HTH_ROLL_MEMBERS_MAX);
        }
        size_t len = hth_row_reply_write(&a, bytes);
        assert_ok(hth_row_reply_read(bytes, len, &b));
        assert_int_equal(a.kind, b.kind);
        assert_true(a.has == b.has);
        assert_memory_equal(&a.marks, &b.marks, sizeof(a.marks));
        for (size_t cut = 0; cut < len; cut++)
            assert_int_not_equal(hth_row_reply_read(bytes, cut, &b), HTH_OK);
        assert_err(HTH_E_MALFORMED, hth_row_reply_read(bytes, len + 1, &b));
    }
}

static void bad_ones_are_refused(void **state)
{
    enum { STATE = 38, COUNT = 39, MARKS = 41 }; /* in the bytes of a ROW */
    struct hth_row_msg row = {.axis = 1, .state = HTH_ROW_HAS, .marks = any_marks(5)}, read;
    struct hth_row_reply begin = {.kind = HTH_ROW_BEGIN, .has = 1, .marks = any_marks(5)}, back;
    static const struct {
        size_t at;
        uint8_t byte;
        enum hth_err err;
    } cases[] = {
        {0, 2, HTH_E_VERSION},           {STATE, HTH_ROW_HAS + 1, HTH_E_MALFORMED},
        {COUNT + 1, 2, HTH_E_TOO_LARGE}, {MARKS, 3, HTH_E_MALFORMED}, /* in and in part */
        {MARKS + 1, 4, HTH_E_MALFORMED},                              /* of a sixth */
    };
    uint8_t bytes[HTH_ROW_BYTES_MAX];
    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        size_t len = hth_row_write(&row, bytes);
        bytes[cases[k].at] = cases[k].byte;
        assert_err(cases[k].err, hth_row_read(bytes, len, &read));
    }
    size_t len = hth_row_reply_write(&begin, bytes);
    bytes[0] = HTH_ROW_BEGIN + 1;
    assert_err(HTH_E_MALFORMED, hth_row_reply_read(bytes, len, &back));
    begin.has = 0; /* nobody brings anything */
    len = hth_row_reply_write(&begin, bytes);
    assert_err(HTH_E_MALFORMED, hth_row_reply_read(bytes, len, &back));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back),
        cmocka_unit_test(answers_come_back),
        cmocka_unit_test(bad_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
