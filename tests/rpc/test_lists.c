/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lists.c: a revoked invite is in force at all connected peers soon, without any DHT, and a
 * peer that keeps lists back, sends forged ones or floods keeps nobody from them.
 */
#include "rpc/lists.h"

#include "admission/gate.h"
#include "admission/invite.h"
#include "rpc/closed.h"
#include "rpc/swarm.h"
#include "support/suite.h"

#define S     HTH_US_PER_S
#define PEERS 13

/* A member, and what it knows. */
struct peer {
    struct swarm_member m;
    struct hth_admission shown;
    struct hth_closed_run run;
    struct hth_revoked_set *set;
    struct hth_gate *gate;
    struct hth_lists *lists;
    int news;
    uint64_t serial;
};

static const struct hth_secret owner = {{1}}, key = {{2}};
static struct hth_world *w;
static struct hth_closed_run run;
static struct peer peers[PEERS];

static void on_news(void *arg)
{
    struct peer *p = arg;
    p->news++;
    hth_rpc_judge_again(p->m.rpc);
}

/* keeps: it answers no question about lists. */
static void enter(struct peer *p, const char *name, uint64_t serial, bool keeps)
{
    const struct hth_hash file = {{3}};
    struct hth_invite invite = {.seed = key, .run_file = file};
    member_start(&p->m, w, name, member_opts());
    const struct hth_crypto *crypto = p->m.env->crypto;
    int64_t wall_us = hth_wall_us(p->m.env);
    struct hth_cert cert = {.serial = serial,
                            .not_after_us = wall_us + 86400 * S,
                            .class = HTH_MEMBER,
                            .roles = HTH_MAY_TRAIN,
                            .name = "ana"};
    crypto->public_of(&owner, &run.owner);
    hth_run_id(crypto, &run.owner, &file, &run.id);
    cert.run = run.id;
    invite.owner = run.owner;
    crypto->public_of(&key, &cert.key);
    assert_ok(hth_cert_write(crypto, &cert, &owner, invite.cert, &invite.cert_len));
    p->serial = serial;
    p->run = run;
    p->run.revoked = p->set = hth_revoked_set_new(crypto, &run);
    p->gate = hth_gate_new(p->m.env, &p->run);
    p->shown.admit = hth_gate_check;
    p->shown.holds = hth_gate_holds;
    p->shown.arg = p->gate;
    p->shown.creds_len =
        hth_invite_creds(crypto, &invite, &p->m.env->secret, wall_us, p->shown.creds);
    member_stop(&p->m);
    p->m.opts.admission = &p->shown;
    member_serve(&p->m);
    if (!keeps)
        p->lists = hth_lists_new(p->m.env, p->m.rpc, p->set, on_news, p);
}

static int setup(void **state)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    (void)state;
    memset(peers, 0, sizeof(peers));
    opts.log_level = HTH_ERROR;
    opts.wall_start_us = INT64_C(1700000050) * S;
    w = hth_world_new(9, &opts);
    return 0;
}

static int teardown(void **state)
{
    struct hth_open_counts open;
    (void)state;
    for (size_t i = 0; i < PEERS; i++) {
        struct peer *p = &peers[i];
        if (p->m.env == NULL)
            continue;
        hth_lists_free(p->lists);
        member_stop(&p->m);
        hth_gate_free(p->gate);
        hth_revoked_set_free(p->set);
    }
    hth_world_open(w, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(w);
    return 0;
}

static void connect(struct peer *from, struct peer *to)
{
    struct swarm_verdict v = {.count = 0};
    call_text(&from->m, &to->m, METHOD_ECHO, "hello", 10 * S, &v);
    await(w, &v);
    assert_ok(v.err);
    verdict_clear(&v);
}

static bool connected(const struct peer *a, const struct peer *b)
{
    struct hth_rpc_peer_info info;
    return hth_rpc_peer_info(a->m.rpc, &b->m.env->self, &info) == HTH_OK && info.connected;
}

/* The peer hears the owner: that serial is revoked. */
static void revoke(struct peer *p, uint64_t seq, uint64_t serial)
{
    struct hth_revoked list = {.seq = seq, .count = 1, .entry = {serial}};
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    size_t len = hth_revoked_write(p->m.env->crypto, &list, &run.id, &owner, NULL, 0, bytes);
    assert_ok(hth_revoked_set_take(p->set, bytes, len));
    hth_rpc_judge_again(p->m.rpc);
    if (p->lists != NULL)
        hth_lists_tell(p->lists);
}

TEST_WITH(revoked_peer_is_dropped_by_all, setup, teardown)
{
    (void)state;
    struct peer *bad = &peers[PEERS - 1];
    for (size_t i = 0; i < PEERS; i++)
        enter(&peers[i], "peer", 10 + i, false);
    /* A row of twelve, each connected with the revoked one, too. */
    for (size_t i = 0; i + 1 < PEERS; i++) {
        if (i > 0)
            connect(&peers[i - 1], &peers[i]);
        connect(&peers[i], bad);
    }
    hth_world_run_for(w, 40 * S);
    for (size_t i = 0; i + 1 < PEERS; i++) {
        assert_true(connected(bad, &peers[i]));
        assert_int_equal(peers[i].news, 0);
    }
    revoke(&peers[0], 5, bad->serial);
    hth_world_run_for(w, 25 * S);
    for (size_t i = 0; i + 1 < PEERS; i++) {
        assert_false(connected(&peers[i], bad));
        assert_int_equal(hth_revoked_set_count(peers[i].set), 1);
        assert_int_equal(peers[i].news, i > 0);
    }
    /* An older list that comes again changes nothing. */
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    struct hth_revoked old = {.seq = 4};
    size_t len = hth_revoked_write(bad->m.env->crypto, &old, &run.id, &owner, NULL, 0, bytes);
    assert_err(HTH_E_STALE, hth_revoked_set_take(peers[3].set, bytes, len));
    assert_true(hth_gate_holds(peers[3].gate, &(struct hth_grant){.serial = bad->serial}) ==
                HTH_E_PASS_REVOKED);
}

/* The peer through which a newcomer joins has the list, and keeps it back. */
TEST_WITH(newcomers_ask_three, setup, teardown)
{
    (void)state;
    struct peer *keeper = &peers[0], *newcomer = &peers[1];
    enter(keeper, "keeper", 10, true);
    enter(newcomer, "newcomer", 11, false);
    for (size_t i = 2; i < 4; i++) {
        enter(&peers[i], "peer", 10 + i, false);
        revoke(&peers[i], 5, 99);
    }
    connect(newcomer, keeper);
    hth_world_run_for(w, 20 * S);
    assert_int_equal(newcomer->news, 0);
    connect(newcomer, &peers[2]);
    connect(newcomer, &peers[3]);
    hth_world_run_for(w, 5 * S);
    assert_int_equal(newcomer->news, 1);
    assert_err(HTH_E_PASS_REVOKED,
               hth_gate_holds(newcomer->gate, &(struct hth_grant){.serial = 99}));
}

static int forged;

/* Names a list that nobody has, and gives a bad one to those that ask for it. */
static void lie(void *arg, struct hth_rpc_request *req)
{
    static const uint8_t bytes[40] = {38, 0, 'H', 'R', 'E', 'V', 1};
    const struct hth_rpc_body body = {.payload = bytes, .payload_len = sizeof(bytes)};
    (void)arg;
    forged++;
    hth_rpc_reply(req, &body);
}

TEST_WITH(liars_change_nothing, setup, teardown)
{
    (void)state;
    static const char *const bad[] = {"15 bytes at all", ""};
    struct swarm_verdict v = {.count = 0};
    struct peer *liar = &peers[0], *other = &peers[1];
    enter(liar, "liar", 10, true);
    enter(other, "other", 11, false);
    hth_rpc_serve(liar->m.rpc, HTH_RPC_LISTS, lie, liar);
    connect(other, liar);
    hth_world_run_for(w, 60 * S);
    assert_true(forged > 1 && forged < 70); /* a second apart, until it had an answer of use */
    assert_int_equal(other->news, 0);
    call_text(&liar->m, &other->m, HTH_RPC_LISTS, bad[0], 10 * S, &v);
    await(w, &v);
    assert_err(HTH_E_MALFORMED, v.err);
    verdict_clear(&v);
    /* It says that it has a newer list, and is asked for it once. */
    int before = forged;
    call_text(&liar->m, &other->m, HTH_RPC_LISTS, "8 bytes.and more", 10 * S, &v);
    await(w, &v);
    assert_ok(v.err);
    assert_int_equal(v.payload_len, 0);
    verdict_clear(&v);
    hth_world_run_for(w, S / 2);
    assert_true(forged >= before + 1 && forged <= before + 2);
    assert_int_equal(hth_revoked_set_count(other->set), 0);
}
