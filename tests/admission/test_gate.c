/* SPDX-License-Identifier: Apache-2.0 */
/* test_gate.c: a gate asks signatures once, and the clock each time. */
#include "admission/gate.h"
#include "admission/party.h"
#include "admission/revoke.h"
#include "support/suite.h"

static int64_t clock_us;

static int64_t wall_us(struct hth_env *env)
{
    (void)env;
    return clock_us;
}

TEST(known_peers_cost_no_signature)
{
    (void)state;
    static const struct hth_env_ops ops = {.wall_us = wall_us};
    struct hth_revoked list = {.seq = 1, .count = 1, .entry = {8}};
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    struct party p;
    struct hth_grant grant;
    uint8_t creds[HTH_CREDS_BYTES_MAX];
    party_init(&p);
    party_sign(&p, false);
    size_t len = party_creds(&p, creds);
    struct hth_revoked_set *set = hth_revoked_set_new(p.crypto, &p.run);
    p.run.revoked = set;
    struct hth_env env = {.ops = &ops, .crypto = p.crypto};
    struct hth_gate *g = hth_gate_new(&env, &p.run);
    clock_us = NOW_US;
    for (int i = 0; i < 3; i++) {
        assert_ok(hth_gate_check(g, &p.peer_id, creds, len, &grant));
        assert_int_equal(grant.roles, HTH_MAY_TRAIN | HTH_MAY_SERVE);
        assert_int_equal(hth_gate_judged(g), 1);
    }
    /* A stranger is judged each time, and takes nobody's place. */
    struct hth_peer_id stranger = p.peer_id;
    stranger.b[31] ^= 1;
    assert_err(HTH_E_PASS_OTHER_KEY, hth_gate_check(g, &stranger, creds, len, &grant));
    assert_err(HTH_E_NOT_ADMITTED, hth_gate_check(g, &p.peer_id, NULL, 0, &grant));
    assert_ok(hth_gate_check(g, &p.peer_id, creds, len, &grant));
    assert_int_equal(hth_gate_judged(g), 3);
    /* A remembered grant ends all the same. */
    assert_ok(hth_gate_holds(g, &grant));
    clock_us = NOW_US + 31 * DAY_US;
    assert_err(HTH_E_PASS_EXPIRED, hth_gate_check(g, &p.peer_id, creds, len, &grant));
    /* A longer one of the same serial counts at once. */
    p.cert.not_after_us = NOW_US + 60 * DAY_US;
    party_sign(&p, false);
    len = party_creds(&p, creds);
    assert_ok(hth_gate_check(g, &p.peer_id, creds, len, &grant));
    size_t list_len = hth_revoked_write(p.crypto, &list, &p.run.id, &p.owner, NULL, 0, bytes);
    assert_ok(hth_revoked_set_take(set, bytes, list_len));
    assert_err(HTH_E_PASS_REVOKED, hth_gate_check(g, &p.peer_id, creds, len, &grant));
    assert_err(HTH_E_PASS_REVOKED, hth_gate_holds(g, &grant));
    hth_gate_free(g);
    hth_revoked_set_free(set);
}
