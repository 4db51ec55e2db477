/* SPDX-License-Identifier: Apache-2.0 */
/* test_revoke.c: a list of revoked serials is read as it was signed, and a bad one is named. */
#include "admission/revoke.h"

#include "admission/party.h"

static void list_is_read_as_signed(void **state)
{
    (void)state;
    struct party p;
    struct hth_revoked list = {.seq = 5}, got;
    uint8_t bytes[HTH_REVOKED_BYTES_MAX + 1] = {0};
    party_init(&p);
    for (uint64_t i = HTH_REVOKED_MAX; i > 0; i--)
        assert_ok(hth_revoked_add(&list, 3 * i));
    assert_err(HTH_E_DUPLICATE, hth_revoked_add(&list, 3));
    assert_err(HTH_E_TOO_LARGE, hth_revoked_add(&list, 4));
    size_t len = hth_revoked_write(p.crypto, &list, &p.run.id, &p.owner, bytes);
    assert_int_equal(len, HTH_REVOKED_BYTES_MAX);
    assert_ok(hth_revoked_read(p.crypto, &p.run, bytes, len, &got));
    assert_memory_equal(&got, &list, sizeof(got));
    assert_err(HTH_E_MALFORMED, hth_revoked_read(p.crypto, &p.run, bytes, len + 1, &got));
}

static void bad_lists_are_named(void **state)
{
    (void)state;
    struct party p;
    struct hth_revoked list = {.seq = 5}, got;
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    party_init(&p);
    assert_ok(hth_revoked_add(&list, 7));
    assert_ok(hth_revoked_add(&list, 8));
    size_t len = hth_revoked_write(p.crypto, &list, &p.run.id, &p.owner, bytes);
    for (size_t n = 0; n < len; n++)
        assert_err(HTH_E_TRUNCATED, hth_revoked_read(p.crypto, &p.run, bytes, n, &got));
    static const struct {
        size_t at;
        enum hth_err err;
    } bad[] = {{0, HTH_E_BAD_MAGIC},    {4, HTH_E_VERSION},     {5, HTH_E_VERSION},
               {7, HTH_E_RANGE},        {8, HTH_E_PASS_FORGED}, {16, HTH_E_PASS_OTHER_RUN},
               {56, HTH_E_PASS_FORGED}, {64, HTH_E_PASS_FORGED}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        bytes[bad[i].at] ^= 0x80;
        assert_err(bad[i].err, hth_revoked_read(p.crypto, &p.run, bytes, len, &got));
        assert_int_equal(got.count, 0);
        bytes[bad[i].at] ^= 0x80;
    }
    len = hth_revoked_write(p.crypto, &list, &p.run.id, &p.deputy, bytes); /* by another key */
    assert_err(HTH_E_PASS_FORGED, hth_revoked_read(p.crypto, &p.run, bytes, len, &got));
    list.serial[0] = 9; /* not in order */
    len = hth_revoked_write(p.crypto, &list, &p.run.id, &p.owner, bytes);
    assert_err(HTH_E_RANGE, hth_revoked_read(p.crypto, &p.run, bytes, len, &got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(list_is_read_as_signed),
        cmocka_unit_test(bad_lists_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
