/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pass.c: certificates and passes have the bytes that an independent writer gives them, and
 * each kind of bad credentials has its own error.
 */
#include "admission/party.h"

#include "core/bytes.h"
#include "core/name.h"
#include "golden_pass.h"
#include "support/suite.h"

TEST(credentials_have_golden_bytes)
{
    (void)state;
    struct party p;
    struct hth_grant grant;
    uint8_t creds[HTH_CREDS_BYTES_MAX];
    char network[HTH_NAME_LEN_MAX + 1];
    party_init(&p);
    assert_memory_equal(p.run.id.b, GOLDEN_RUN, sizeof(GOLDEN_RUN));
    assert_string_equal(hth_network_of("golden", &p.run.id, network),
                        "golden~be25b2ac199efd8cd02a");
    party_sign(&p, true);
    size_t len = party_creds(&p, creds);
    assert_int_equal(len, sizeof(GOLDEN_CREDS));
    assert_memory_equal(creds, GOLDEN_CREDS, len);
    assert_ok(hth_creds_check(p.crypto, &p.run, &p.peer_id, creds, len, NOW_US, &grant));
    assert_int_equal(grant.serial, 8);
    assert_int_equal(grant.invite, hth_load_u64le(p.cert.key.b));
    assert_int_equal(grant.by.deputy, 7);
    assert_int_equal(grant.by.successor, 0);
    assert_int_equal(grant.class, HTH_MEMBER);
    assert_int_equal(grant.roles, HTH_MAY_TRAIN | HTH_MAY_SERVE);
    assert_string_equal(grant.name, "ana-mária");
    party_sign_by_successor(&p, true);
    len = party_creds(&p, creds);
    assert_int_equal(len, sizeof(GOLDEN_BY_SUCCESSOR));
    assert_memory_equal(creds, GOLDEN_BY_SUCCESSOR, len);
}

TEST(largest_credentials_fit)
{
    (void)state;
    struct party p;
    struct hth_grant grant;
    party_init(&p);
    memset(p.cert.name, 'x', HTH_CERT_NAME_MAX);
    memset(p.deputy_cert.name, 'y', HTH_CERT_NAME_MAX);
    memset(p.successor_cert.name, 'z', HTH_CERT_NAME_MAX);
    p.successor_cert.silence_s = 0;
    party_sign_by_successor(&p, true);
    assert_ok(party_judge(&p, NOW_US, &grant));
    uint8_t creds[HTH_CREDS_BYTES_MAX];
    assert_int_equal(party_creds(&p, creds), 540); /* 543 in a HELLO */
}

/* Any flipped bit is refused, as what it is. */
TEST(flipped_bits_are_refused)
{
    (void)state;
    struct party p;
    struct hth_grant grant;
    uint8_t creds[HTH_CREDS_BYTES_MAX];
    party_init(&p);
    party_sign(&p, true);
    size_t len = party_creds(&p, creds), name_at = HTH_PASS_BYTES + 49;
    creds[name_at] ^= 1;
    assert_err(HTH_E_PASS_FORGED,
               hth_creds_check(p.crypto, &p.run, &p.peer_id, creds, len, NOW_US, &grant));
    creds[name_at] ^= 1;
    for (size_t at = 0; at < len; at++) {
        creds[at] ^= 0x10;
        assert_int_not_equal(
            hth_creds_check(p.crypto, &p.run, &p.peer_id, creds, len, NOW_US, &grant), HTH_OK);
        creds[at] ^= 0x10;
    }
    assert_ok(hth_creds_check(p.crypto, &p.run, &p.peer_id, creds, len, NOW_US, &grant));
}

TEST(cut_credentials_are_refused)
{
    (void)state;
    struct party p;
    struct hth_grant grant;
    uint8_t creds[HTH_CREDS_BYTES_MAX + 1] = {0};
    party_init(&p);
    party_sign(&p, true);
    size_t len = party_creds(&p, creds), owner_part = HTH_PASS_BYTES + p.invite.cert_len;
    assert_err(HTH_E_NOT_ADMITTED,
               hth_creds_check(p.crypto, &p.run, &p.peer_id, NULL, 0, NOW_US, &grant));
    for (size_t n = 1; n < len; n++) {
        /* Without the deputy's part it claims that the owner signed. */
        assert_err(n == owner_part ? HTH_E_PASS_FORGED : HTH_E_TRUNCATED,
                   hth_creds_check(p.crypto, &p.run, &p.peer_id, creds, n, NOW_US, &grant));
    }
    assert_err(HTH_E_VERSION, /* a certificate of the next byte */
               hth_creds_check(p.crypto, &p.run, &p.peer_id, creds, len + 1, NOW_US, &grant));
    party_sign_by_successor(&p, true);
    len = party_creds(&p, creds);
    assert_err(HTH_E_MALFORMED,
               hth_creds_check(p.crypto, &p.run, &p.peer_id, creds, len + 1, NOW_US, &grant));
}

TEST(other_versions_are_named)
{
    (void)state;
    struct party p;
    struct hth_grant grant;
    uint8_t creds[HTH_CREDS_BYTES_MAX];
    static const size_t at[] = {0, HTH_PASS_BYTES, HTH_PASS_BYTES + 1};
    party_init(&p);
    party_sign(&p, false);
    size_t len = party_creds(&p, creds);
    for (size_t i = 0; i < HTH_ARRAY_LEN(at); i++) {
        creds[at[i]] ^= 4;
        assert_err(HTH_E_VERSION,
                   hth_creds_check(p.crypto, &p.run, &p.peer_id, creds, len, NOW_US, &grant));
        creds[at[i]] ^= 4;
    }
}

TEST(other_runs_keys_and_signers_are_named)
{
    (void)state;
    struct party p, other;
    struct hth_grant grant;
    uint8_t creds[HTH_CREDS_BYTES_MAX];
    party_init(&p);
    party_init(&other);
    assert_ok(party_verdict(&p, false, &grant));
    other.run.id.b[0] ^= 1;
    assert_err(HTH_E_PASS_FORGED, party_verdict(&other, false, &grant));
    party_init(&other);
    other.peer_id.b[31] ^= 1; /* a pass of one machine, shown by another */
    assert_err(HTH_E_PASS_OTHER_KEY, party_verdict(&other, false, &grant));
    party_init(&other);
    other.owner = other.deputy; /* a stranger signs */
    assert_err(HTH_E_PASS_FORGED, party_verdict(&other, false, &grant));
    assert_err(HTH_E_PASS_FORGED, party_verdict(&other, true, &grant));
    party_init(&other);
    other.invite.seed = other.peer; /* who saw the certificate, without its key */
    assert_err(HTH_E_PASS_FORGED, party_verdict(&other, false, &grant));
    /* The pass of one invite beside the certificate of another one with the same key. */
    party_sign(&p, false);
    size_t len = party_creds(&p, creds);
    p.cert.serial = 9;
    party_sign(&p, false);
    memcpy(creds + HTH_PASS_BYTES, p.invite.cert, p.invite.cert_len);
    assert_err(HTH_E_PASS_FORGED,
               hth_creds_check(p.crypto, &p.run, &p.peer_id, creds, len, NOW_US, &grant));
}

TEST(times_are_kept)
{
    (void)state;
    struct party p;
    struct hth_grant grant;
    party_init(&p);
    p.cert.not_after_us = NOW_US - HTH_CLOCK_SKEW_MAX_US;
    assert_ok(party_verdict(&p, false, &grant));
    p.cert.not_after_us--;
    assert_err(HTH_E_PASS_EXPIRED, party_verdict(&p, false, &grant));
    party_init(&p);
    p.cert.serial = NOW_US + 60 * HTH_US_PER_S + HTH_CLOCK_SKEW_MAX_US;
    assert_ok(party_verdict(&p, false, &grant));
    p.cert.serial++;
    assert_err(HTH_E_PASS_EARLY, party_verdict(&p, false, &grant));
    party_init(&p);
    p.deputy_cert.not_after_us = NOW_US - DAY_US; /* what a deputy signed ends with it */
    assert_ok(party_verdict(&p, false, &grant));
    assert_err(HTH_E_PASS_EXPIRED, party_verdict(&p, true, &grant));
}

TEST(deputies_give_only_what_they_have)
{
    (void)state;
    struct party p;
    struct hth_grant grant;
    party_init(&p);
    assert_ok(party_verdict(&p, true, &grant));
    p.cert.roles |= HTH_MAY_INVITE; /* a deputy of a deputy */
    assert_err(HTH_E_PASS_ROLE, party_verdict(&p, true, &grant));
    party_init(&p);
    p.cert.roles |= HTH_MAY_REDUCE;
    assert_err(HTH_E_PASS_ROLE, party_verdict(&p, true, &grant));
    party_init(&p);
    p.deputy_cert.class = HTH_PROBATION;
    assert_err(HTH_E_PASS_ROLE, party_verdict(&p, true, &grant));
    party_init(&p);
    p.deputy_cert.roles &= (uint8_t)~HTH_MAY_INVITE; /* a member signs as if it were one */
    assert_err(HTH_E_PASS_ROLE, party_verdict(&p, true, &grant));
}

/* Each chain that leads to the owner, but not by the right steps. */
TEST(chains_have_two_steps)
{
    (void)state;
    struct party p;
    struct hth_grant grant;
    struct hth_invite *i = &p.invite;
    size_t len;
    party_init(&p);
    p.successor_cert.silence_s = 0;
    party_sign_by_successor(&p, true);
    assert_ok(party_judge(&p, NOW_US, &grant));
    assert_int_equal(grant.by.deputy, 7);
    assert_int_equal(grant.by.successor, 6);
    /* A deputy of a deputy. */
    p.successor_cert.flags = 0;
    p.successor_cert.silence_s = 0;
    party_sign_by_successor(&p, true);
    assert_err(HTH_E_PASS_ROLE, party_judge(&p, NOW_US, &grant));
    /* A successor of a successor, and one that a deputy names. */
    for (int by_deputy = 0; by_deputy < 2; by_deputy++) {
        party_init(&p);
        p.successor_cert.silence_s = 0;
        p.deputy_cert.flags = HTH_CERT_SUCCESSOR;
        if (by_deputy)
            p.successor_cert.flags = 0;
        party_sign_by_successor(&p, true);
        assert_err(HTH_E_PASS_ROLE, party_judge(&p, NOW_US, &grant));
    }
    /* A successor is no member by that alone. */
    party_init(&p);
    p.cert.flags = HTH_CERT_SUCCESSOR;
    assert_err(HTH_E_PASS_ROLE, party_verdict(&p, false, &grant));
    /* A chain of another run, and one whose upper end a stranger signed. */
    party_init(&p);
    p.deputy_cert.run.b[0] ^= 1;
    assert_err(HTH_E_PASS_FORGED, party_verdict(&p, true, &grant));
    party_init(&p);
    party_sign(&p, true);
    assert_ok(hth_cert_write(p.crypto, &p.deputy_cert, &p.successor, i->chain, &len));
    assert_err(HTH_E_PASS_FORGED, party_judge(&p, NOW_US, &grant));
}

/* An invite for a key is worth nothing to others, and is no secret. */
TEST(bound_invites_are_for_one_key)
{
    (void)state;
    struct party p;
    struct hth_grant grant;
    party_init(&p);
    memset(&p.invite.seed, 0, sizeof(p.invite.seed));
    p.cert.key = p.peer_pub;
    assert_ok(party_verdict(&p, true, &grant));
    assert_ok(hth_invite_check(p.crypto, &p.invite, NOW_US));
    p.cert.key.b[0] ^= 1;
    assert_err(HTH_E_PASS_FORGED, party_verdict(&p, true, &grant));
}

TEST(bad_certificates_are_not_signed)
{
    (void)state;
    struct party p;
    uint8_t out[HTH_CERT_BYTES_MAX];
    size_t len;
    party_init(&p);
    static const char *const names[] = {"", "a b", "a\x1b[31m", "\xff", "a/b"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++) {
        strcpy(p.cert.name, names[i]);
        assert_err(HTH_E_MALFORMED, hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    }
    memset(p.cert.name, 'x', sizeof(p.cert.name));
    assert_err(HTH_E_TOO_LARGE, hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    party_init(&p);
    p.cert.roles = 0;
    assert_err(HTH_E_RANGE, hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    p.cert.roles = HTH_MAY_ALL + 1;
    assert_err(HTH_E_RANGE, hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    party_init(&p);
    p.cert.serial = 0; /* what no list can name */
    assert_err(HTH_E_RANGE, hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    party_init(&p);
    p.cert.class = 3;
    assert_err(HTH_E_RANGE, hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    party_init(&p);
    p.cert.flags = HTH_CERT_PUBLIC; /* anybody is a full member */
    assert_err(HTH_E_RANGE, hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    p.cert.class = HTH_PROBATION;
    assert_ok(hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    p.cert.roles |= HTH_MAY_INVITE;
    assert_err(HTH_E_RANGE, hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    party_init(&p);
    p.cert.serial = (uint64_t)p.cert.not_after_us + 60 * HTH_US_PER_S;
    assert_ok(hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    p.cert.serial++; /* it would end before it begins */
    assert_err(HTH_E_RANGE, hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    p.cert.serial = UINT64_MAX;
    assert_err(HTH_E_RANGE, hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
    party_init(&p);
    p.cert.not_after_us = (INT64_C(1) << 32) * HTH_US_PER_S;
    assert_err(HTH_E_RANGE, hth_cert_write(p.crypto, &p.cert, &p.owner, out, &len));
}

TEST(roles_are_words)
{
    (void)state;
    uint8_t roles;
    char text[48];
    assert_ok(hth_roles_parse("train,serve,reduce,watch,invite", &roles));
    assert_int_equal(roles, HTH_MAY_ALL);
    assert_string_equal(hth_roles_text(roles, text), "train,serve,reduce,watch,invite");
    assert_ok(hth_roles_parse("watch", &roles));
    assert_int_equal(roles, HTH_MAY_WATCH);
    static const char *const bad[] = {"", "trian", "train,", ",train", "train serve", "TRAIN"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        assert_err(HTH_E_MALFORMED, hth_roles_parse(bad[i], &roles));
}
