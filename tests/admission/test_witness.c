/* SPDX-License-Identifier: Apache-2.0 */
/* test_witness.c: what counts as work on probation, for whom, and what a restart keeps of it. */
#include "admission/witness.h"
#include "support/suite.h"

#include <string.h>

#define S HTH_US_PER_S

static struct hth_grant grant_of(uint8_t key, uint8_t class)
{
    return (struct hth_grant){.key = {{key, 1}}, .class = class};
}

/* Of a network of its own, unless `host` is given. */
static void saw_from(struct hth_witness *w, uint8_t net, uint8_t host, uint8_t key, bool good,
                     int64_t at_us)
{
    const struct hth_addr from = {.family = 4, .ip = {10, 0, net, host}};
    struct hth_grant grant = grant_of(key, HTH_PROBATION);
    hth_witness_saw(w, &grant, &from, good, at_us);
}

static void saw(struct hth_witness *w, uint8_t key, bool good, int64_t at_us)
{
    saw_from(w, key, 1, key, good, at_us);
}

/* Works each `every_us` from begin to end, at both. Returns the end. */
static int64_t work(struct hth_witness *w, uint8_t key, int64_t begin_us, int64_t end_us,
                    int64_t every_us)
{
    for (int64_t at = begin_us; at <= end_us; at += every_us)
        saw(w, key, true, at);
    return end_us;
}

static bool is_due(const struct hth_witness *w, uint8_t key)
{
    struct hth_pubkey due;
    for (size_t it = 0; hth_witness_due(w, &it, &due);)
        if (due.b[0] == key)
            return true;
    return false;
}

TEST(four_hours_without_a_refusal_are_due)
{
    struct hth_witness *w = hth_witness_new();
    const int64_t four = HTH_WITNESS_WORK_US;
    (void)state;
    work(w, 1, 0, four - 60 * S, 60 * S);
    assert_false(is_due(w, 1));
    saw(w, 1, true, four);
    assert_true(is_due(w, 1));
    /* Pauses of more than a minute do not count, and take nothing. */
    int64_t half = work(w, 2, 0, four / 2, 60 * S);
    int64_t end = work(w, 2, half + 1800 * S, half + 1800 * S + four / 2 - 60 * S, 60 * S);
    assert_false(is_due(w, 2));
    saw(w, 2, true, end + 60 * S);
    assert_true(is_due(w, 2));
    work(w, 3, 0, 2 * four, 61 * S);
    assert_false(is_due(w, 3));
    /* A refusal begins anew. */
    work(w, 4, 0, four - 60 * S, 60 * S);
    saw(w, 4, false, four - 30 * S);
    end = work(w, 4, four, 2 * four - 60 * S, 60 * S);
    assert_false(is_due(w, 4));
    saw(w, 4, true, end + 30 * S);
    assert_true(is_due(w, 4));
    /* Members need no witness. */
    const struct hth_addr from = {.family = 4};
    struct hth_grant member = grant_of(1, HTH_MEMBER);
    hth_witness_saw(w, &member, &from, true, 2 * four);
    assert_false(is_due(w, 1));
    assert_true(is_due(w, 2) && is_due(w, 4));
    hth_witness_free(w);
}

TEST(network_has_one_key_at_a_time)
{
    struct hth_witness *w = hth_witness_new();
    const int64_t four = HTH_WITNESS_WORK_US;
    int64_t at;
    (void)state;
    for (at = 0; at <= four; at += 60 * S)
        for (uint8_t key = 1; key < 100; key++)
            saw_from(w, 7, key, key, true, at);
    for (uint8_t key = 1; key < 100; key++)
        assert_int_equal(is_due(w, key), key == 1);
    /* The next one's time begins when the first is silent for an hour, or is a member. */
    saw_from(w, 7, 2, 2, true, at + 3500 * S);
    assert_true(is_due(w, 1));
    saw_from(w, 7, 2, 2, true, at + 3600 * S);
    assert_false(is_due(w, 1));
    hth_witness_free(w);
}

/* Newcomers of many networks take the places of those that have worked least. */
TEST(flood_of_networks_costs_no_hours)
{
    struct hth_witness *w = hth_witness_new();
    const int64_t four = HTH_WITNESS_WORK_US;
    uint8_t bytes[HTH_WITNESS_BYTES_MAX];
    (void)state;
    work(w, 1, 0, four - 60 * S, 60 * S);
    for (int i = 0; i < 1000; i++)
        saw_from(w, (uint8_t)(2 + i % 250), (uint8_t)(i / 250), (uint8_t)(2 + i % 250), true,
                 four - 59 * S);
    assert_int_equal(hth_witness_write(w, bytes), HTH_WITNESS_BYTES_MAX);
    saw(w, 1, true, four);
    assert_true(is_due(w, 1));
    hth_witness_free(w);
}

TEST(restart_keeps_the_hours)
{
    struct hth_witness *w = hth_witness_new(), *again = hth_witness_new();
    const int64_t four = HTH_WITNESS_WORK_US;
    uint8_t bytes[HTH_WITNESS_BYTES_MAX + 1], more[HTH_WITNESS_BYTES_MAX];
    (void)state;
    work(w, 1, 0, four - 60 * S, 60 * S);
    work(w, 2, 0, four, 60 * S);
    size_t len = hth_witness_write(w, bytes);
    assert_ok(hth_witness_read(again, bytes, len));
    assert_int_equal(hth_witness_write(again, more), len);
    assert_memory_equal(bytes, more, len);
    /* The clock of the new process is another one; the time between is no work. */
    saw(again, 1, true, 5 * S);
    assert_true(is_due(again, 2) && !is_due(again, 1));
    saw(again, 1, true, 65 * S);
    assert_true(is_due(again, 1));
    hth_witness_free(again);
    again = hth_witness_new();
    static const struct {
        size_t at;
        uint8_t change;
        enum hth_err err;
    } bad[] = {{0, 1, HTH_E_BAD_MAGIC},
               {4, 1, HTH_E_VERSION},
               {5, 1, HTH_E_TRUNCATED},
               {5, 0xff - 2, HTH_E_RANGE}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        bytes[bad[i].at] = (uint8_t)(bytes[bad[i].at] + bad[i].change);
        assert_err(bad[i].err, hth_witness_read(again, bytes, len));
        bytes[bad[i].at] = (uint8_t)(bytes[bad[i].at] - bad[i].change);
    }
    assert_err(HTH_E_MALFORMED, hth_witness_read(again, bytes, len + 1));
    assert_err(HTH_E_TRUNCATED, hth_witness_read(again, bytes, 5));
    assert_false(is_due(again, 2));
    hth_witness_free(again);
    hth_witness_free(w);
}
