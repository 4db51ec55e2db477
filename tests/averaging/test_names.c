/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, ids and orders equal bytes made elsewhere, and differ where anything differs. */
#include "averaging/grid.h"
#include "golden_names.h"
#include "net/crypto.h"
#include "support/test.h"

static struct hth_avg_line golden_line(void)
{
    struct hth_avg_line line = {
        .run = 0x1122334455667788,
        .round = 1000003, /* axis 1 */
        .shape = {.dims = 3, .size = {5, 4, 4}},
        .cell = {.at = {3, 2, 1}},
    };
    return line;
}

static void members(struct hth_peer_id *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        char text[24];
        struct hth_hash hash;
        int len = snprintf(text, sizeof(text), "member %u", i);
        hth_crypto_openssl()->hash(text, (size_t)len, &hash);
        memcpy(ids[i].b, hash.b, sizeof(hash.b));
    }
}

static void test_golden(void **state)
{
    const struct hth_crypto *crypto = hth_crypto_openssl();
    struct hth_avg_line line = golden_line();
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    struct hth_peer_id ids[5];
    struct hth_hash group;
    uint32_t order[5];
    (void)state;
    assert_int_equal(hth_avg_line_key(&line, key), sizeof(golden_key));
    assert_memory_equal(key, golden_key, sizeof(golden_key));
    members(ids, 5);
    assert_ok(hth_avg_group_id(crypto, &line, 0xabcdef, ids, 5, &group));
    assert_memory_equal(group.b, golden_group, sizeof(golden_group));
    hth_avg_order(crypto, &group, ids, 5, order);
    assert_memory_equal(order, golden_order, sizeof(golden_order));
}

/* Whoever lists the members in another order derives the same id, and the same people in a row. */
static void test_any_order(void **state)
{
    const struct hth_crypto *crypto = hth_crypto_openssl();
    struct hth_avg_line line = golden_line();
    struct hth_peer_id ids[5], turned[5];
    struct hth_hash group, again;
    uint32_t order[5], other[5];
    (void)state;
    members(ids, 5);
    for (uint32_t i = 0; i < 5; i++)
        turned[i] = ids[(i * 3 + 1) % 5];
    assert_ok(hth_avg_group_id(crypto, &line, 1, ids, 5, &group));
    assert_ok(hth_avg_group_id(crypto, &line, 1, turned, 5, &again));
    assert_memory_equal(&group, &again, sizeof(group));
    hth_avg_order(crypto, &group, ids, 5, order);
    hth_avg_order(crypto, &group, turned, 5, other);
    for (uint32_t i = 0; i < 5; i++)
        assert_true(hth_peer_id_eq(&ids[order[i]], &turned[other[i]]));
    line.cell.at[1] = 0; /* the round's own axis does not count */
    assert_ok(hth_avg_group_id(crypto, &line, 1, ids, 5, &again));
    assert_memory_equal(&group, &again, sizeof(group));
}

static void test_differs(void **state)
{
    const struct hth_crypto *crypto = hth_crypto_openssl();
    struct hth_avg_line line = golden_line(), others[7];
    struct hth_peer_id ids[5];
    struct hth_hash group, other;
    (void)state;
    members(ids, 5);
    for (size_t i = 0; i < HTH_ARRAY_LEN(others); i++)
        others[i] = line;
    others[0].run++;
    others[1].shape.size[1]++;
    others[2].round += 3; /* the same axis */
    others[3].round++;
    others[4].shape.size[0]++;
    others[5].cell.at[0]++;
    others[6].cell.at[2]++;
    assert_ok(hth_avg_group_id(crypto, &line, 1, ids, 5, &group));
    for (size_t i = 0; i < HTH_ARRAY_LEN(others); i++) {
        assert_false(hth_avg_line_eq(&line, &others[i]));
        assert_ok(hth_avg_group_id(crypto, &others[i], 1, ids, 5, &other));
        assert_memory_not_equal(&group, &other, sizeof(group));
    }
    assert_ok(hth_avg_group_id(crypto, &line, 2, ids, 5, &other));
    assert_memory_not_equal(&group, &other, sizeof(group));
    assert_ok(hth_avg_group_id(crypto, &line, 1, ids, 4, &other));
    assert_memory_not_equal(&group, &other, sizeof(group));
}

static void test_limits(void **state)
{
    static struct hth_peer_id ids[HTH_AVG_MEMBERS_MAX + 1];
    const struct hth_crypto *crypto = hth_crypto_openssl();
    struct hth_avg_line line = golden_line();
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    struct hth_hash group;
    uint32_t order[HTH_AVG_MEMBERS_MAX];
    bool seen[HTH_AVG_MEMBERS_MAX] = {false};
    (void)state;
    members(ids, HTH_ARRAY_LEN(ids));
    assert_err(HTH_E_RANGE, hth_avg_group_id(crypto, &line, 1, ids, 0, &group));
    assert_err(HTH_E_RANGE,
               hth_avg_group_id(crypto, &line, 1, ids, HTH_AVG_MEMBERS_MAX + 1, &group));
    /* The largest group of the longest line. */
    line.shape = (struct hth_avg_shape){.dims = 8, .size = {2, 2, 2, 2, 2, 2, 2, 2}};
    line.cell = (struct hth_avg_cell){.at = {1, 1, 1, 1, 1, 1, 1, 1}};
    assert_in_range(hth_avg_line_key(&line, key), 1, HTH_AVG_LINE_KEY_MAX);
    assert_ok(hth_avg_group_id(crypto, &line, 1, ids, HTH_AVG_MEMBERS_MAX, &group));
    hth_avg_order(crypto, &group, ids, HTH_AVG_MEMBERS_MAX, order);
    for (uint32_t i = 0; i < HTH_AVG_MEMBERS_MAX; i++) {
        assert_false(seen[order[i]]);
        seen[order[i]] = true;
    }
    ids[3] = ids[200];
    assert_err(HTH_E_DUPLICATE,
               hth_avg_group_id(crypto, &line, 1, ids, HTH_AVG_MEMBERS_MAX, &group));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_differs),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
