/* SPDX-License-Identifier: Apache-2.0 */
/* test_invite.c: an invite's text is read as it was written, and a bad one is named. */
#include "admission/party.h"
#include "core/bytes.h"
#include "support/suite.h"

/* SHA-256 of the two texts below. */
#define GOLDEN_BY_OWNER  "6343d9bbcf86d7f8b6379e3bf67bf8f25d1c51ba1bcdcc31e0b60bf4fd47970f"
#define GOLDEN_BY_DEPUTY "a530d4469813fb2e7cfe78415504549dafed4a174e54ee9536b33c62065ade04"

static void write_one(struct party *p, bool by_deputy, char text[HTH_INVITE_TEXT_MAX])
{
    party_init(p);
    party_sign(p, by_deputy);
    p->invite.addr_count = 2;
    assert_ok(hth_addr_parse("203.0.113.5:4700", &p->invite.addr[0]));
    assert_ok(hth_addr_parse("[2001:db8::1]:4701", &p->invite.addr[1]));
    assert_ok(hth_invite_write(&p->invite, text));
}

static enum hth_err read_text(const char *text, struct hth_invite *out)
{
    return hth_invite_read(text, strlen(text), out);
}

TEST(invite_is_read_as_written)
{
    (void)state;
    struct party p;
    struct hth_invite got;
    struct hth_closed_run run;
    struct hth_grant grant;
    struct hth_hash hash;
    char text[HTH_INVITE_TEXT_MAX], hex[65], padded[HTH_INVITE_TEXT_MAX + 8];
    uint8_t creds[HTH_CREDS_BYTES_MAX];
    for (int by_deputy = 0; by_deputy < 2; by_deputy++) {
        write_one(&p, by_deputy, text);
        assert_memory_equal(text, "hearth1.AQIE", 12);
        snprintf(padded, sizeof(padded), " %.60s\r\n %s\r\n", text, text + 60);
        assert_ok(read_text(padded, &got));
        assert_memory_equal(&got, &p.invite, sizeof(got));
        /* The invite alone is enough to judge others. */
        hth_invite_run(p.crypto, &got, &run);
        size_t len = hth_invite_creds(p.crypto, &got, &p.peer, NOW_US, creds);
        assert_ok(hth_creds_check(p.crypto, &run, &p.peer_id, creds, len, NOW_US, &grant));
        p.crypto->hash(text, strlen(text), &hash);
        hth_hex(hash.b, sizeof(hash.b), hex);
        assert_string_equal(hex, by_deputy ? GOLDEN_BY_DEPUTY : GOLDEN_BY_OWNER);
    }
}

/* A private run's invite has its secret, and leads to a network that nobody else can name. */
TEST(private_invites_hide_the_network)
{
    (void)state;
    struct party p;
    struct hth_invite got, other;
    char text[HTH_INVITE_TEXT_MAX], network[HTH_NAME_LEN_MAX + 1], open[HTH_NAME_LEN_MAX + 1];
    write_one(&p, true, text);
    assert_string_equal(hth_invite_network(p.crypto, &p.invite, open),
                        "golden~be25b2ac199efd8cd02a");
    hth_invite_hide(p.crypto, &p.owner, &p.invite);
    assert_string_equal(hth_invite_network(p.crypto, &p.invite, network), "~80dda9c821935fa983ca");
    assert_ok(hth_invite_write(&p.invite, text));
    assert_ok(read_text(text, &got));
    assert_memory_equal(&got, &p.invite, sizeof(got));
    assert_err(HTH_E_TRUNCATED, hth_invite_read(text, strlen(text) - 1, &got));
    other = p.invite;
    other.secret.b[31] ^= 1;
    assert_string_not_equal(hth_invite_network(p.crypto, &other, open), network);
}

TEST(bad_invites_are_named)
{
    (void)state;
    struct party p;
    struct hth_invite got;
    char text[HTH_INVITE_TEXT_MAX], zero[sizeof(got)] = {0};
    write_one(&p, true, text);
    size_t len = strlen(text);
    for (size_t n = 8; n < len; n++)
        assert_err(HTH_E_TRUNCATED, hth_invite_read(text, n, &got));
    assert_memory_equal(&got, zero, sizeof(got)); /* no seed is left */
    for (size_t at = 8; at + 1 < len; at++) {
        char was = text[at];
        text[at] = was == 'A' ? 'B' : 'A';
        enum hth_err err = read_text(text, &got);
        assert_true(err == HTH_E_CORRUPT || err == HTH_E_TRUNCATED);
        text[at] = '+';
        assert_err(HTH_E_CORRUPT, read_text(text, &got));
        text[at] = was;
    }
    text[6] = '2';
    assert_err(HTH_E_VERSION, read_text(text, &got));
    assert_err(HTH_E_BAD_MAGIC, read_text("hello", &got));
    assert_err(HTH_E_BAD_MAGIC, read_text("", &got));
    assert_string_equal(hth_invite_why(HTH_E_CORRUPT), "the invite is mistyped: copy it again");
}
