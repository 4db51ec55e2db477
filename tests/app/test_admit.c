/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_admit.c: a member's program says how others join: by a public invite, or whom to ask; and
 * what raises a peer, how long it is raised, and that it stays so after a restart.
 */
#include "app/admit.h"

#include "admission/party.h"
#include "core/mem.h"
#include "sim/world.h"
#include "support/suite.h"

/* The word of a program with the invite that was signed last. */
static char *join(struct party *p, char ask[HTH_CERT_NAME_MAX + 16])
{
    static int any;
    struct hth_cli_net net = {.invited = true, .invite = p->invite};
    struct hth_admit admit = {.gate = (void *)&any}; /* the run is closed */
    assert_ok(party_judge(p, NOW_US, &admit.grant));
    return hth_admit_join(&admit, &net, ask);
}

TEST(others_hear_how_to_join)
{
    (void)state;
    struct party p;
    struct hth_admit open = {.gate = NULL};
    struct hth_cli_net net = {.invited = false};
    char ask[HTH_CERT_NAME_MAX + 16], text[HTH_INVITE_TEXT_MAX];
    party_init(&p);
    assert_null(hth_admit_join(&open, &net, ask));
    assert_string_equal(ask, "");
    party_sign(&p, false);
    char *word = join(&p, ask);
    assert_string_equal(ask, "the run's owner");
    assert_string_equal(word, "--invite INVITE"); /* not the member's own */
    hth_free(word);
    party_sign(&p, true);
    word = join(&p, ask);
    assert_string_equal(ask, "dora");
    assert_string_equal(word, "--invite INVITE");
    hth_free(word);
    p.cert.class = HTH_PROBATION;
    p.cert.flags = HTH_CERT_PUBLIC;
    party_sign(&p, true);
    assert_ok(hth_invite_write(&p.invite, text));
    word = join(&p, ask);
    assert_string_equal(ask, "");
    assert_memory_equal(word, "--invite ", 9);
    assert_string_equal(word + 9, text);
    hth_free(word);
}

/* ---- raised -------------------------------------------------------------------------------- */

#define MINUTE (60 * HTH_US_PER_S)

/* A peer with a public invite, in a world whose clock begins at NOW_US. */
static struct {
    struct party p;
    struct hth_world *w;
    struct hth_env *env;
    struct hth_cli_net net;
    struct hth_admit admit;
} v;

static void visit(void)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    memset(&v, 0, sizeof(v));
    opts.log_level = HTH_ERROR;
    opts.wall_start_us = NOW_US;
    v.w = hth_world_new(1, &opts);
    v.env = hth_node_env(hth_world_node(v.w, "peer", NULL));
    party_init(&v.p);
    v.p.crypto = v.env->crypto;
    v.p.crypto->public_of(&v.p.owner, &v.p.invite.owner);
    v.p.crypto->public_of(&v.p.key, &v.p.cert.key);
    hth_invite_run(v.p.crypto, &v.p.invite, &v.p.run);
    v.p.cert.run = v.p.run.id;
    v.p.cert.class = HTH_PROBATION;
    v.p.cert.roles = HTH_MAY_TRAIN | HTH_MAY_SERVE;
    party_sign(&v.p, false);
    v.net = (struct hth_cli_net){.invited = true, .invite = v.p.invite};
    assert_ok(hth_admit_open(v.env, &v.net, NULL, HTH_MAY_TRAIN, "state", &v.admit));
    assert_int_equal(v.admit.grant.class, HTH_PROBATION);
}

static void start_again(void)
{
    hth_admit_close(&v.admit);
    assert_ok(hth_admit_open(v.env, &v.net, NULL, HTH_MAY_TRAIN, "state", &v.admit));
}

static void go(void)
{
    hth_admit_close(&v.admit);
    hth_world_free(v.w);
}

/* Another peer brings a certificate for a key, by the owner, which ends after so long. */
static enum hth_err raise(uint64_t serial, uint8_t class, uint8_t roles,
                          const struct hth_pubkey *key, int64_t life_us)
{
    uint8_t certs[HTH_CERT_BYTES_MAX];
    size_t len;
    struct hth_cert cert = v.p.cert;
    cert.serial = (uint64_t)NOW_US + serial;
    cert.class = class;
    cert.roles = roles;
    cert.key = *key;
    cert.not_after_us = hth_wall_us(v.env) + life_us;
    assert_ok(hth_cert_write(v.p.crypto, &cert, &v.p.owner, certs, &len));
    return hth_admit_raise(v.env, &v.admit, certs, len);
}

TEST(peer_is_raised_until_that_ends)
{
    const uint8_t roles = HTH_MAY_TRAIN | HTH_MAY_SERVE | HTH_MAY_REDUCE;
    struct hth_pubkey other = {{7}};
    bool changed;
    (void)state;
    visit();
    const struct hth_pubkey *own = &v.env->pubkey;
    assert_err(HTH_E_PASS_OTHER_KEY, raise(50, HTH_MEMBER, roles, &other, MINUTE));
    assert_err(HTH_E_STALE, raise(50, HTH_PROBATION, roles, own, MINUTE));
    assert_err(HTH_E_STALE, raise(50, HTH_MEMBER, HTH_MAY_TRAIN, own, MINUTE));
    assert_false(v.admit.raised);
    assert_ok(raise(50, HTH_MEMBER, roles, own, MINUTE));
    assert_int_equal(v.admit.grant.serial, NOW_US + 50);
    assert_err(HTH_E_STALE, raise(51, HTH_MEMBER, roles, own, MINUTE / 2));
    assert_ok(raise(52, HTH_MEMBER, roles, own, 2 * MINUTE));
    start_again();
    assert_int_equal(v.admit.grant.serial, NOW_US + 52);
    assert_int_equal(v.admit.grant.roles, roles);
    hth_world_run_for(v.w, MINUTE);
    assert_ok(hth_admit_holds(v.env, &v.admit, &changed));
    assert_false(changed);
    /* Then its invite counts again, now and after a restart. */
    hth_world_run_for(v.w, 2 * MINUTE);
    assert_ok(hth_admit_holds(v.env, &v.admit, &changed));
    assert_true(changed);
    assert_int_equal(v.admit.grant.class, HTH_PROBATION);
    start_again();
    assert_int_equal(v.admit.grant.serial, v.p.cert.serial);
    go();
}

TEST(revoked_certificate_raises_no_more)
{
    struct hth_revoked list = {.seq = 5, .count = 1, .entry = {NOW_US + 50}};
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    bool changed;
    (void)state;
    visit();
    assert_ok(raise(50, HTH_MEMBER, HTH_MAY_ALL & ~HTH_MAY_INVITE, &v.env->pubkey, MINUTE));
    size_t len = hth_revoked_write(v.p.crypto, &list, &v.p.run.id, &v.p.owner, NULL, 0, bytes);
    assert_ok(hth_revoked_set_take(v.admit.revoked, bytes, len));
    hth_admit_revoked(v.env, &v.admit);
    assert_ok(hth_admit_holds(v.env, &v.admit, &changed));
    assert_true(changed);
    assert_int_equal(v.admit.grant.class, HTH_PROBATION);
    start_again();
    assert_int_equal(v.admit.grant.class, HTH_PROBATION);
    go();
}
