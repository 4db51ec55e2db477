/* SPDX-License-Identifier: Apache-2.0 */
/* test_senders.c: how many rows of a sender count in a pooled gradient, and of which size. */
#include "experts/senders.h"
#include "support/suite.h"

#include <math.h>

static struct hth_sender_id id_of(uint64_t number)
{
    return (struct hth_sender_id){.number = number, .probation = number >= 1000};
}

/* Takes and computes a part; returns its rows that count. */
static uint32_t send(struct hth_senders *s, uint64_t number, uint32_t rows, double norm)
{
    double most;
    uint32_t counted = hth_senders_take(s, id_of(number), rows, &most);

    hth_senders_saw(s, id_of(number), norm, most);
    return counted;
}

/* One pool: each of so many members 16 rows, and what the liar may add, before them or after. */
static uint32_t pool(struct hth_senders *s, uint32_t members, uint64_t liar, bool first)
{
    uint32_t counted = first ? send(s, liar, 4096, 1) : 0;

    for (uint32_t i = 0; i < members; i++)
        assert_int_equal(send(s, 1 + i, 16, 1), 16);
    counted += first ? 0 : send(s, liar, 4096, 1);
    hth_senders_next_pool(s);
    return counted;
}

TEST(rows_of_a_sender_are_a_quarter_at_most)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct hth_senders s = {0};
        for (int i = 0; i < 20; i++)
            (void)pool(&s, 8, 50, first);
        /* 8 * 16 rows of members: a third of that beside them is a quarter of all. */
        assert_in_range(pool(&s, 8, 50, first), 36, 42);
        struct hth_senders few = {0};
        for (int i = 0; i < 20; i++)
            (void)pool(&few, 3, 50, first);
        assert_in_range(pool(&few, 3, 50, first), 44, 48); /* 2 of 4 senders: a half */
        struct hth_senders two = {0};
        assert_int_equal(pool(&two, 1, 50, first), 4096);
    }
}

TEST(probation_is_a_quarter_together)
{
    struct hth_senders alone = {0}, beside = {0};

    (void)state;
    assert_int_equal(send(&alone, 1000, 64, 1), 64); /* nobody else is there */
    send(&beside, 1, 48, 1);
    for (uint64_t k = 0, sum = 0; k < 40; k++) {
        sum += send(&beside, 1000 + k, 64, 1);
        assert_true(sum <= 16);
    }
}

TEST(norms_are_bounded_by_the_lower_median)
{
    struct hth_senders s = {0};
    double most;

    (void)state;
    send(&s, 1, 16, 2);
    hth_senders_take(&s, id_of(1), 16, &most);
    assert_true(most == 0); /* one part says nothing */
    send(&s, 2, 16, 4);
    send(&s, 3, 16, 1e9);
    hth_senders_take(&s, id_of(3), 16, &most);
    assert_float_equal(most, 6, 1e-9);
    send(&s, 4, 16, 1e9);
    hth_senders_take(&s, id_of(1), 16, &most);
    assert_float_equal(most, 6, 1e-9); /* the lower one of 4 and 1e9 */
    send(&s, 5, 16, NAN);
    send(&s, 6, 16, 0);
    hth_senders_take(&s, id_of(1), 16, &most);
    assert_float_equal(most, 6, 1e-9);
    struct hth_senders own = {0};
    for (int i = 0; i < 16; i++)
        send(&own, 1, 16, 2);
    hth_senders_take(&own, id_of(1), 16, &most);
    assert_float_equal(most, 8, 1e-9);
    for (int i = 0; i < 4; i++)
        send(&own, 2, 16, 1e12);
    hth_senders_take(&own, id_of(1), 16, &most);
    assert_in_range(most, 8, 10); /* grows by what was accepted only */
}

TEST(senders_beyond_the_table_are_one)
{
    struct hth_senders s = {0};
    uint32_t counted = 0;

    (void)state;
    for (uint64_t k = 1; k < HTH_SENDERS_MAX; k++)
        assert_int_equal(send(&s, k, 4, 1), 4);
    for (uint64_t k = 0; k < 500; k++)
        counted += send(&s, 2000 + k, 4, 1);
    assert_int_equal(s.count, HTH_SENDERS_MAX);
    assert_true(counted <= HTH_SENDERS_MAX * 4 / 3);
    for (int i = 0; i < 40; i++)
        hth_senders_next_pool(&s);
    assert_int_equal(s.count, 0); /* they left */
}

TEST(failed_parts_leave_room)
{
    struct hth_senders s = {0};
    double most;

    (void)state;
    for (uint32_t i = 0; i < 9; i++)
        send(&s, 1 + i, 16, 1);
    uint32_t first = hth_senders_take(&s, id_of(50), 4096, &most);
    assert_int_equal(hth_senders_take(&s, id_of(50), 4096, &most), 0);
    hth_senders_give_back(&s, id_of(50), first);
    assert_int_equal(hth_senders_take(&s, id_of(50), 4096, &most), first);
}
