/* SPDX-License-Identifier: Apache-2.0 */
#include "admission/party.h"

#include "net/crypto.h"

static struct hth_secret secret_of(uint8_t n)
{
    struct hth_secret s;
    memset(s.b, n, sizeof(s.b));
    return s;
}

void party_init(struct party *p)
{
    memset(p, 0, sizeof(*p));
    p->crypto = hth_crypto_openssl();
    p->owner = secret_of(1);
    p->deputy = secret_of(2);
    p->key = p->invite.seed = secret_of(3);
    p->peer = secret_of(4);
    p->successor = secret_of(5);
    p->crypto->public_of(&p->peer, &p->peer_pub);
    p->peer_id = hth_peer_id_of(p->crypto, &p->peer_pub);
    p->crypto->public_of(&p->owner, &p->invite.owner);
    p->crypto->hash("run golden\n", 11, &p->invite.run_file);
    strcpy(p->invite.run, "golden");
    hth_invite_run(p->crypto, &p->invite, &p->run);
    p->cert = (struct hth_cert){.run = p->run.id,
                                .serial = 8,
                                .not_after_us = NOW_US + 30 * DAY_US,
                                .class = HTH_MEMBER,
                                .roles = HTH_MAY_TRAIN | HTH_MAY_SERVE,
                                .name = "ana-mária"};
    p->crypto->public_of(&p->key, &p->cert.key);
    p->deputy_cert = p->cert;
    p->deputy_cert.serial = 7;
    p->deputy_cert.roles |= HTH_MAY_INVITE;
    strcpy(p->deputy_cert.name, "dora");
    p->crypto->public_of(&p->deputy, &p->deputy_cert.key);
    p->successor_cert = p->cert;
    p->successor_cert.serial = 6;
    p->successor_cert.roles = HTH_MAY_ALL;
    p->successor_cert.flags = HTH_CERT_SUCCESSOR;
    p->successor_cert.silence_s = 30 * 86400;
    strcpy(p->successor_cert.name, "sara");
    p->crypto->public_of(&p->successor, &p->successor_cert.key);
}

void party_sign(struct party *p, bool by_deputy)
{
    struct hth_invite *i = &p->invite;
    assert_ok(hth_cert_write(p->crypto, &p->cert, by_deputy ? &p->deputy : &p->owner, i->cert,
                             &i->cert_len));
    i->chain_len = 0;
    if (by_deputy)
        assert_ok(hth_cert_write(p->crypto, &p->deputy_cert, &p->owner, i->chain, &i->chain_len));
}

void party_sign_by_successor(struct party *p, bool by_deputy)
{
    struct hth_invite *i = &p->invite;
    size_t len = 0;
    assert_ok(hth_cert_write(p->crypto, &p->cert, by_deputy ? &p->deputy : &p->successor, i->cert,
                             &i->cert_len));
    if (by_deputy)
        assert_ok(hth_cert_write(p->crypto, &p->deputy_cert, &p->successor, i->chain, &len));
    i->chain_len = len;
    assert_ok(
        hth_cert_write(p->crypto, &p->successor_cert, &p->owner, i->chain + i->chain_len, &len));
    i->chain_len += len;
}

enum hth_err party_judge(const struct party *p, int64_t wall_us, struct hth_grant *grant)
{
    uint8_t creds[HTH_CREDS_BYTES_MAX];
    size_t len = party_creds(p, creds);
    return hth_creds_check(p->crypto, &p->run, &p->peer_id, creds, len, wall_us, grant);
}

size_t party_creds(const struct party *p, uint8_t out[HTH_CREDS_BYTES_MAX])
{
    return hth_invite_creds(p->crypto, &p->invite, &p->peer, NOW_US, out);
}

enum hth_err party_verdict(struct party *p, bool by_deputy, struct hth_grant *grant)
{
    party_sign(p, by_deputy);
    return party_judge(p, NOW_US, grant);
}
