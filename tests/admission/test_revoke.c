/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_revoke.c: a list of revoked invites is read as it was signed, a bad one is named, and a set
 * of lists knows whom each of them counts for.
 */
#include "admission/revoke.h"

#include "admission/party.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "support/suite.h"

#include "golden_pass.h"

enum signer { OWNER, DEPUTY, SUCCESSOR };

/* Signs a list of these entries; returns its length. */
static size_t sign(const struct party *p, enum signer by, uint64_t seq, const uint64_t *entries,
                   size_t count, uint8_t out[HTH_REVOKED_BYTES_MAX])
{
    const struct hth_secret *keys[] = {&p->owner, &p->deputy, &p->successor};
    const struct hth_cert *certs[] = {NULL, &p->deputy_cert, &p->successor_cert};
    struct hth_revoked list = {.seq = seq};
    uint8_t chain[HTH_CERT_BYTES_MAX];
    size_t len = 0;
    for (size_t i = 0; i < count; i++)
        assert_ok(hth_revoked_add(&list, entries[i]));
    if (by != OWNER)
        assert_ok(hth_cert_write(p->crypto, certs[by], &p->owner, chain, &len));
    return hth_revoked_write(p->crypto, &list, &p->run.id, keys[by], chain, len, out);
}

TEST(list_is_read_as_signed)
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
    /* The largest one, by a successor's deputy. */
    memset(p.deputy_cert.name, 'y', HTH_CERT_NAME_MAX);
    memset(p.successor_cert.name, 'z', HTH_CERT_NAME_MAX);
    party_sign_by_successor(&p, true);
    size_t len = hth_revoked_write(p.crypto, &list, &p.run.id, &p.deputy, p.invite.chain,
                                   p.invite.chain_len, bytes);
    assert_ok(hth_revoked_read(p.crypto, &p.run, bytes, len, &got));
    assert_memory_equal(got.entry, list.entry, sizeof(got.entry));
    assert_int_equal(got.seq, 5);
    assert_int_equal(got.by.deputy, 7);
    assert_int_equal(got.by.successor, 6);
    assert_err(HTH_E_MALFORMED, hth_revoked_read(p.crypto, &p.run, bytes, len + 1, &got));

    party_init(&p);
    static const uint64_t entries[] = {5, 8};
    len = sign(&p, DEPUTY, NOW_US, entries, 2, bytes);
    assert_int_equal(len, sizeof(GOLDEN_REVOKED));
    assert_memory_equal(bytes, GOLDEN_REVOKED, len);
}

TEST(bad_lists_are_named)
{
    (void)state;
    struct party p;
    struct hth_revoked list = {.seq = 5}, got;
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    party_init(&p);
    assert_ok(hth_revoked_add(&list, 7));
    assert_ok(hth_revoked_add(&list, 8));
    size_t len = hth_revoked_write(p.crypto, &list, &p.run.id, &p.owner, NULL, 0, bytes);
    for (size_t n = 0; n < len; n++)
        assert_err(HTH_E_TRUNCATED, hth_revoked_read(p.crypto, &p.run, bytes, n, &got));
    static const struct {
        size_t at;
        enum hth_err err;
    } bad[] = {{0, HTH_E_BAD_MAGIC},       {4, HTH_E_VERSION},      {5, HTH_E_VERSION},
               {7, HTH_E_RANGE},           {8, HTH_E_PASS_FORGED},  {15, HTH_E_RANGE},
               {16, HTH_E_PASS_OTHER_RUN}, {56, HTH_E_PASS_FORGED}, {64, HTH_E_PASS_FORGED}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        bytes[bad[i].at] ^= 0x80;
        assert_err(bad[i].err, hth_revoked_read(p.crypto, &p.run, bytes, len, &got));
        assert_int_equal(got.count, 0);
        bytes[bad[i].at] ^= 0x80;
    }
    /* By another key, and with the certificate of a member that may not revoke. */
    len = hth_revoked_write(p.crypto, &list, &p.run.id, &p.deputy, NULL, 0, bytes);
    assert_err(HTH_E_PASS_FORGED, hth_revoked_read(p.crypto, &p.run, bytes, len, &got));
    party_sign(&p, false);
    len = hth_revoked_write(p.crypto, &list, &p.run.id, &p.key, p.invite.cert, p.invite.cert_len,
                            bytes);
    assert_err(HTH_E_PASS_ROLE, hth_revoked_read(p.crypto, &p.run, bytes, len, &got));
    list.entry[0] = 9; /* not in order */
    len = hth_revoked_write(p.crypto, &list, &p.run.id, &p.owner, NULL, 0, bytes);
    assert_err(HTH_E_RANGE, hth_revoked_read(p.crypto, &p.run, bytes, len, &got));
    list.entry[0] = 0; /* names everybody who has no deputy */
    len = hth_revoked_write(p.crypto, &list, &p.run.id, &p.owner, NULL, 0, bytes);
    assert_err(HTH_E_RANGE, hth_revoked_read(p.crypto, &p.run, bytes, len, &got));
}

/* The verdict on a peer invited by that signer while the set has one list. */
static enum hth_err verdict(struct party *p, enum signer list_by, uint64_t entry,
                            enum signer invited_by)
{
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    struct hth_grant grant;
    struct hth_revoked_set *set = hth_revoked_set_new(p->crypto, &p->run);
    size_t len = sign(p, list_by, 5, &entry, 1, bytes);
    assert_ok(hth_revoked_set_take(set, bytes, len));
    p->run.revoked = set;
    if (invited_by == SUCCESSOR)
        party_sign_by_successor(p, false);
    else
        party_sign(p, invited_by == DEPUTY);
    enum hth_err err = party_judge(p, NOW_US, &grant);
    p->run.revoked = NULL;
    hth_revoked_set_free(set);
    return err;
}

TEST(lists_count_for_those_below)
{
    (void)state;
    struct party p;
    party_init(&p);
    p.successor_cert.silence_s = 0;
    uint64_t peer = hth_load_u64le(p.peer_id.b);
    const struct {
        enum signer list_by;
        uint64_t entry;
        enum hth_err of[3]; /* invited by the owner, the deputy, the successor */
    } cases[] = {
        {OWNER, 5, {HTH_OK, HTH_OK, HTH_OK}},
        {OWNER, 8, {HTH_E_PASS_REVOKED, HTH_E_PASS_REVOKED, HTH_E_PASS_REVOKED}},
        {OWNER, peer, {HTH_E_PASS_REVOKED, HTH_E_PASS_REVOKED, HTH_E_PASS_REVOKED}},
        {OWNER, 7, {HTH_OK, HTH_E_PASS_REVOKED, HTH_OK}}, /* its deputy */
        {OWNER, 6, {HTH_OK, HTH_OK, HTH_E_PASS_REVOKED}}, /* its successor */
        {DEPUTY, 8, {HTH_OK, HTH_E_PASS_REVOKED, HTH_OK}},
        {DEPUTY, peer, {HTH_OK, HTH_E_PASS_REVOKED, HTH_OK}},
        {SUCCESSOR, 8, {HTH_E_PASS_REVOKED, HTH_E_PASS_REVOKED, HTH_E_PASS_REVOKED}},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        for (int by = OWNER; by <= SUCCESSOR; by++)
            assert_err(cases[i].of[by],
                       verdict(&p, cases[i].list_by, cases[i].entry, (enum signer)by));
    /* A successor that does not count yet revokes nobody. */
    p.successor_cert.silence_s = 2 * 86400;
    p.successor_cert.serial = NOW_US - DAY_US + 60 * HTH_US_PER_S;
    assert_ok(verdict(&p, SUCCESSOR, 8, OWNER));
    assert_err(HTH_E_PASS_EARLY, verdict(&p, OWNER, 5, SUCCESSOR));
}

/* An owner that signs now and then stays the owner. */
TEST(successors_count_after_silence)
{
    (void)state;
    struct party p;
    struct hth_grant grant;
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    party_init(&p);
    p.cert.not_after_us = p.successor_cert.not_after_us = NOW_US + 365 * DAY_US;
    p.successor_cert.serial = NOW_US - DAY_US + 60 * HTH_US_PER_S;
    party_sign_by_successor(&p, false);
    /* Named a day ago. */
    assert_err(HTH_E_PASS_EARLY, party_judge(&p, NOW_US + 29 * DAY_US - 4000000, &grant));
    assert_ok(party_judge(&p, NOW_US + 29 * DAY_US, &grant));
    struct hth_revoked_set *set = hth_revoked_set_new(p.crypto, &p.run);
    p.run.revoked = set;
    assert_ok(party_judge(&p, NOW_US + 29 * DAY_US, &grant));
    size_t len = sign(&p, OWNER, NOW_US + 20 * DAY_US, NULL, 0, bytes);
    assert_ok(hth_revoked_set_take(set, bytes, len));
    assert_err(HTH_E_PASS_EARLY, hth_grant_check(&grant, &p.run, NOW_US + 49 * DAY_US));
    assert_ok(hth_grant_check(&grant, &p.run, NOW_US + 50 * DAY_US));
    /* It is back. */
    len = sign(&p, OWNER, NOW_US + 60 * DAY_US, NULL, 0, bytes);
    assert_ok(hth_revoked_set_take(set, bytes, len));
    assert_err(HTH_E_PASS_EARLY, hth_grant_check(&grant, &p.run, NOW_US + 61 * DAY_US));
    /* At the owner's word: at once. */
    p.successor_cert.silence_s = 0;
    p.successor_cert.serial = NOW_US + 61 * DAY_US;
    party_sign_by_successor(&p, false);
    assert_ok(party_judge(&p, NOW_US + 61 * DAY_US, &grant));
    hth_revoked_set_free(set);
}

TEST(newer_lists_hold_and_are_exchanged)
{
    (void)state;
    struct party p;
    static const uint64_t entries[] = {5, 8};
    uint8_t bytes[HTH_REVOKED_BYTES_MAX], known[HTH_REVOKED_KNOWN_MAX];
    uint8_t *pack = hth_new_array(uint8_t, HTH_REVOKED_PACK_MAX);
    size_t known_len, len, news;
    bool lacks;
    party_init(&p);
    struct hth_revoked_set *a = hth_revoked_set_new(p.crypto, &p.run);
    struct hth_revoked_set *b = hth_revoked_set_new(p.crypto, &p.run);
    assert_ok(hth_revoked_set_take(a, bytes, sign(&p, OWNER, 5, entries, 2, bytes)));
    assert_ok(hth_revoked_set_take(b, bytes, sign(&p, OWNER, 4, entries, 1, bytes)));
    assert_ok(hth_revoked_set_take(a, bytes, sign(&p, DEPUTY, 3, entries, 1, bytes)));
    assert_err(HTH_E_STALE, hth_revoked_set_take(a, bytes, sign(&p, OWNER, 5, entries, 1, bytes)));
    assert_err(HTH_E_STALE, hth_revoked_set_take(a, bytes, sign(&p, OWNER, 4, entries, 1, bytes)));
    assert_int_equal(hth_revoked_set_find(a, bytes, 64), 2);
    /* b asks a, and gets both; a wants nothing of b. */
    known_len = hth_revoked_set_known(b, known);
    assert_ok(hth_revoked_set_lacks(a, known, known_len, &lacks));
    assert_false(lacks);
    len = hth_revoked_set_pack(a, known, known_len, pack);
    known_len = hth_revoked_set_known(a, known);
    assert_ok(hth_revoked_set_lacks(b, known, known_len, &lacks));
    assert_true(lacks);
    assert_err(HTH_E_TRUNCATED, hth_revoked_set_unpack(b, pack, len - 1, &news));
    assert_int_equal(news, 1);
    assert_ok(hth_revoked_set_unpack(b, pack, len, &news));
    assert_int_equal(news, 1);
    assert_int_equal(hth_revoked_set_count(b), 2);
    uint64_t entry[4];
    assert_int_equal(hth_revoked_set_entries(b, entry, 4), 2); /* one is in both lists */
    assert_memory_equal(entry, entries, sizeof(entries));
    assert_int_equal(hth_revoked_set_entries(b, entry, 1), 1);
    assert_ok(hth_revoked_set_lacks(b, known, known_len, &lacks));
    assert_false(lacks);
    assert_int_equal(hth_revoked_set_pack(a, known, known_len, pack), 0);
    assert_err(HTH_E_MALFORMED, hth_revoked_set_lacks(b, known, 15, &lacks));
    hth_revoked_set_free(a);
    hth_revoked_set_free(b);
    hth_free(pack);
}

/* Another deputy's list, named by the owner or by its successor; also in the set. */
static enum hth_err take_deputys(struct party *p, struct hth_revoked_set *set, uint8_t key,
                                 uint64_t seq, bool by_successor)
{
    static const uint64_t entry = 8;
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    struct hth_revoked list = {.seq = seq};
    assert_ok(hth_revoked_add(&list, entry));
    memset(p->deputy.b, key, sizeof(p->deputy.b));
    p->crypto->public_of(&p->deputy, &p->deputy_cert.key);
    if (by_successor)
        party_sign_by_successor(p, true);
    else
        party_sign(p, true);
    return hth_revoked_set_take(set, bytes,
                                hth_revoked_write(p->crypto, &list, &p->run.id, &p->deputy,
                                                  p->invite.chain, p->invite.chain_len, bytes));
}

/* A successor that does not count yet can name as many deputies as it likes, and choose serials. */
TEST(no_signer_takes_anothers_place)
{
    (void)state;
    struct party p;
    struct hth_grant grant;
    static const uint64_t entry = 8, none[1];
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    party_init(&p);
    struct hth_revoked_set *set = hth_revoked_set_new(p.crypto, &p.run);
    p.run.revoked = set;
    /* Its deputy has the serial of the owner's: that one's list counts on, and its own does not. */
    assert_ok(hth_revoked_set_take(set, bytes, sign(&p, DEPUTY, 5, &entry, 1, bytes)));
    assert_err(HTH_E_PASS_REVOKED, party_verdict(&p, true, &grant));
    assert_ok(take_deputys(&p, set, 100, INT64_MAX, true));
    assert_int_equal(hth_revoked_set_count(set), 2);
    memset(p.deputy.b, 2, sizeof(p.deputy.b));
    p.crypto->public_of(&p.deputy, &p.deputy_cert.key);
    assert_err(HTH_E_PASS_REVOKED, party_verdict(&p, true, &grant));
    assert_ok(hth_revoked_set_take(set, bytes, sign(&p, DEPUTY, 6, none, 0, bytes)));
    assert_ok(party_verdict(&p, true, &grant));
    /* Its deputies fill the set, and give way to the owner's; nobody to them. */
    for (uint8_t i = 101; hth_revoked_set_count(set) < HTH_REVOKED_LISTS - 2; i++)
        assert_ok(take_deputys(&p, set, i, 5, true));
    assert_err(HTH_E_TOO_LARGE, take_deputys(&p, set, 99, 5, true));
    for (uint8_t i = 201; i < 201 + HTH_REVOKED_LISTS - 3; i++)
        assert_ok(take_deputys(&p, set, i, 5, false));
    assert_err(HTH_E_TOO_LARGE, take_deputys(&p, set, 99, 5, false));
    /* Two successors leave the owner its place. */
    assert_ok(hth_revoked_set_take(set, bytes, sign(&p, SUCCESSOR, 3, &entry, 1, bytes)));
    p.successor = p.peer;
    p.successor_cert.key = p.peer_pub;
    assert_err(HTH_E_TOO_LARGE,
               hth_revoked_set_take(set, bytes, sign(&p, SUCCESSOR, 3, &entry, 1, bytes)));
    assert_ok(hth_revoked_set_take(set, bytes, sign(&p, OWNER, INT64_MAX, &entry, 1, bytes)));
    assert_err(HTH_E_PASS_REVOKED, party_verdict(&p, false, &grant));
    hth_revoked_set_free(set);
}
