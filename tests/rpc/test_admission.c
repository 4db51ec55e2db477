/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_admission.c: endpoints of a closed run let in whoever has a pass, turn away all others by
 * name before any request, and refuse methods that a pass gives no right to.
 */
#include "admission/gate.h"
#include "admission/invite.h"
#include "admission/revoke.h"
#include "averaging/match.h"
#include "averaging/reduce.h"
#include "averaging/state.h"
#include "collab/means.h"
#include "collab/roll_msg.h"
#include "experts/server.h"
#include "rpc/closed.h"
#include "rpc/duo.h"
#include "rpc/rpc_int.h"
#include "support/suite.h"

#define DAY_US (86400 * HTH_US_PER_S)

/* A run, and what its two members show. */
static struct hth_secret owner = {{1}}, key = {{2}};
static const struct hth_hash file = {{3}};
static struct hth_cert cert;
static struct hth_closed_run run;
static struct hth_admission shown[2];
static struct hth_gate *gate[2];
static struct hth_revoked_set *revoked[2];

static void make_run(void)
{
    const struct hth_crypto *crypto = a.env->crypto;
    memset(&run, 0, sizeof(run));
    crypto->public_of(&owner, &run.owner);
    hth_run_id(crypto, &run.owner, &file, &run.id);
    cert = (struct hth_cert){.run = run.id,
                             .serial = 8,
                             .not_after_us = hth_wall_us(a.env) + DAY_US,
                             .class = HTH_MEMBER,
                             .roles = HTH_MAY_TRAIN | HTH_MAY_SERVE,
                             .name = "ana"};
    crypto->public_of(&key, &cert.key);
}

/* Starts the member's endpoint anew, with a pass of `cert` as it is. */
static void enter(struct swarm_member *m, bool asks)
{
    size_t i = m == &b;
    struct hth_invite invite = {.seed = key, .owner = run.owner, .run_file = file};
    assert_ok(hth_cert_write(m->env->crypto, &cert, &owner, invite.cert, &invite.cert_len));
    member_stop(m);
    hth_gate_free(gate[i]);
    hth_revoked_set_free(revoked[i]);
    struct hth_closed_run known = run;
    known.revoked = revoked[i] = hth_revoked_set_new(m->env->crypto, &run);
    gate[i] = hth_gate_new(m->env, &known);
    shown[i].admit = hth_gate_check;
    shown[i].holds = hth_gate_holds;
    shown[i].arg = gate[i];
    shown[i].creds_len = hth_invite_creds(m->env->crypto, &invite, &m->env->secret,
                                          hth_wall_us(m->env), shown[i].creds);
    m->opts.admission = asks ? &shown[i] : NULL;
    member_serve(m);
}

static void begin(void)
{
    start_default();
    make_run();
    enter(&a, true);
    enter(&b, true);
}

static void end(void)
{
    stop();
    for (size_t i = 0; i < HTH_ARRAY_LEN(gate); i++) {
        hth_gate_free(gate[i]);
        hth_revoked_set_free(revoked[i]);
        gate[i] = NULL;
        revoked[i] = NULL;
    }
}

static enum hth_err call(uint16_t method, struct swarm_verdict *verdict)
{
    call_text(&a, &b, method, "hello", 10 * HTH_US_PER_S, verdict);
    await(w, verdict);
    return verdict->err;
}

TEST(members_are_let_in)
{
    (void)state;
    struct hth_rpc_peer_info info;
    begin();
    assert_ok(call(METHOD_ECHO, &v[0]));
    assert_ok(hth_rpc_peer_info(b.rpc, &a.env->self, &info));
    assert_int_equal(info.class, HTH_MEMBER);
    assert_int_equal(info.roles, HTH_MAY_TRAIN | HTH_MAY_SERVE);
    assert_int_equal(hth_gate_judged(gate[1]), 1);
    /* It comes again: no signature is looked at. */
    hth_rpc_disconnect(a.rpc, &b.env->self);
    assert_ok(call(METHOD_ECHO, &v[1]));
    assert_int_equal(hth_gate_judged(gate[1]), 1);
    /* A handler knows whose invite asks. */
    call_text(&a, &b, METHOD_HOLD, "hello", 10 * HTH_US_PER_S, &v[2]);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(b.held_count, 1);
    assert_int_equal(hth_rpc_serial(b.held[0]), 8);
    assert_int_equal(hth_rpc_class(b.held[0]), HTH_MEMBER);
    end();
}

/* Calls b, which asks for passes, and expects that error by b's word. */
static void must_be_turned_away(enum hth_err err, struct swarm_verdict *verdict)
{
    struct hth_rpc_stats stats;
    char want[HTH_RPC_TEXT_MAX + 1];
    assert_err(err, call(METHOD_ECHO, verdict));
    snprintf(want, sizeof(want), "run 'test': %s", hth_err_text(err));
    assert_string_equal(verdict->text, want);
    assert_int_equal(b.seen, 0);
    hth_rpc_stats(b.rpc, &stats);
    assert_int_equal(stats.conns, 0);
    assert_int_equal(stats.peers, 0);
    assert_true(stats.turned_away[err - HTH_E_NOT_ADMITTED] > 0);
    assert_int_equal(a.lost_err, err);
}

TEST(strangers_stop_at_hello)
{
    (void)state;
    begin();
    a.opts.admission = NULL; /* of an open run with that name */
    member_stop(&a);
    member_serve(&a);
    must_be_turned_away(HTH_E_NOT_ADMITTED, &v[0]);
    end();
}

/* Of a private run it sees neither name nor pass: only that it is turned away. */
TEST(private_peers_show_nothing)
{
    static const char hidden[] = "~5d0e27ab94c31f6082e7";
    (void)state;
    struct hth_rpc_stats stats;
    begin();
    a.opts.network = b.opts.network = hidden;
    enter(&a, true);
    enter(&b, true);
    assert_ok(call(METHOD_ECHO, &v[0]));
    hth_rpc_stats(a.rpc, &stats);
    assert_true(stats.bytes_in > HTH_PASS_BYTES);
    a.opts.network = "";
    a.opts.admission = NULL;
    member_stop(&a);
    member_serve(&a);
    assert_err(HTH_E_NOT_ADMITTED, call(METHOD_ECHO, &v[1]));
    char want[HTH_RPC_TEXT_MAX + 1];
    snprintf(want, sizeof(want), "run 'private': %s", hth_err_text(HTH_E_NOT_ADMITTED));
    assert_string_equal(v[1].text, want);
    hth_rpc_stats(a.rpc, &stats);
    assert_true(stats.bytes_in < HTH_PASS_BYTES); /* the goodbye alone */
    end();
}

TEST(bad_passes_are_named)
{
    (void)state;
    struct hth_closed_run ours;
    begin();
    ours = run;
    cert.not_after_us = hth_wall_us(a.env);
    hth_world_run_for(w, 10 * HTH_US_PER_S);
    enter(&a, true);
    must_be_turned_away(HTH_E_PASS_EXPIRED, &v[0]);
    cert.serial = (uint64_t)hth_wall_us(a.env) + DAY_US;
    cert.not_after_us += 2 * DAY_US;
    enter(&a, true);
    must_be_turned_away(HTH_E_PASS_EARLY, &v[1]);
    make_run();
    cert.run.b[0] ^= 1;
    enter(&a, true);
    must_be_turned_away(HTH_E_PASS_FORGED, &v[2]);
    make_run();
    struct hth_secret was = owner;
    owner = key;
    enter(&a, true);
    owner = was;
    must_be_turned_away(HTH_E_PASS_FORGED, &v[3]);
    /* The pass of b, shown by a. */
    make_run();
    enter(&a, true);
    memcpy(shown[0].creds, shown[1].creds, sizeof(shown[0].creds));
    member_stop(&a);
    member_serve(&a);
    must_be_turned_away(HTH_E_PASS_OTHER_KEY, &v[4]);
    assert_memory_equal(ours.id.b, run.id.b, sizeof(ours.id.b));
    end();
}

/* A member does not call a stranger either: it checks whom it dialled. */
TEST(strangers_are_not_asked)
{
    (void)state;
    begin();
    b.opts.admission = NULL;
    member_stop(&b);
    member_serve(&b);
    assert_err(HTH_E_NOT_ADMITTED, call(METHOD_ECHO, &v[0]));
    assert_int_equal(b.seen, 0);
    end();
}

/* Gives b a list of the owner with that entry. */
static void revoke(uint64_t seq, uint64_t entry)
{
    struct hth_revoked list = {.seq = seq, .count = 1, .entry = {entry}};
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    size_t len = hth_revoked_write(b.env->crypto, &list, &run.id, &owner, NULL, 0, bytes);
    assert_ok(hth_revoked_set_take(revoked[1], bytes, len));
    hth_rpc_judge_again(b.rpc);
}

TEST(revoked_peers_are_disconnected)
{
    (void)state;
    struct hth_rpc_peer_info info;
    begin();
    cert.serial = 9; /* of b */
    enter(&b, true);
    assert_ok(call(METHOD_ECHO, &v[0]));
    revoke(1, 7);
    assert_ok(hth_rpc_peer_info(b.rpc, &a.env->self, &info));
    assert_true(info.connected);
    revoke(2, 8);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(a.lost_err, HTH_E_PASS_REVOKED);
    hth_world_run_for(w, 60 * HTH_US_PER_S); /* its back-off */
    assert_err(HTH_E_PASS_REVOKED, call(METHOD_ECHO, &v[1]));
    end();
}

/* Nobody closes it but time. */
TEST(ended_passes_end_connections)
{
    (void)state;
    begin();
    cert.not_after_us = hth_wall_us(a.env) + 30 * HTH_US_PER_S;
    cert.serial = 9;
    enter(&a, true);
    assert_ok(call(METHOD_ECHO, &v[0]));
    hth_world_run_for(w, 30 * HTH_US_PER_S); /* and the skew of clocks */
    assert_ok(call(METHOD_ECHO, &v[1]));
    hth_world_run_for(w, 14 * HTH_US_PER_S);
    assert_int_equal(a.lost_err, HTH_E_PASS_EXPIRED);
    end();
}

TEST(roles_are_asked_for)
{
    (void)state;
    begin();
    cert.roles = HTH_MAY_SERVE;
    cert.serial++;
    enter(&a, true);
    assert_ok(call(METHOD_ECHO, &v[0]));                   /* 16 asks for no role */
    assert_err(HTH_E_PASS_ROLE, call(METHOD_HOLD, &v[1])); /* 17 is FORWARD */
    assert_true(v[1].remote);
    assert_int_equal(b.held_count, 0);
    end();
}

TEST(each_method_has_its_roles)
{
    (void)state;
    const uint8_t train = HTH_MAY_TRAIN, reduces = HTH_MAY_TRAIN | HTH_MAY_REDUCE;
    assert_int_equal(hth_rpc_rights(HTH_METHOD_EXPERT_INFO), 0);
    assert_int_equal(hth_rpc_rights(HTH_METHOD_EXPERT_FORWARD), train);
    assert_int_equal(hth_rpc_rights(HTH_METHOD_EXPERT_BACKWARD), train);
    assert_int_equal(hth_rpc_rights(HTH_METHOD_EXPERT_WEIGHTS),
                     HTH_MAY_TRAIN | HTH_MAY_SERVE | HTH_MAY_WATCH);
    assert_int_equal(hth_rpc_rights(HTH_MATCH_METHOD_JOIN), reduces);
    assert_int_equal(hth_rpc_rights(HTH_MATCH_METHOD_BEGIN), reduces);
    assert_int_equal(hth_rpc_rights(HTH_REDUCE_METHOD), reduces);
    assert_int_equal(hth_rpc_rights(HTH_STATE_METHOD_DESCRIBE), train | HTH_MAY_WATCH);
    assert_int_equal(hth_rpc_rights(HTH_STATE_METHOD_PART), train | HTH_MAY_WATCH);
    assert_int_equal(hth_rpc_rights(HTH_STATE_METHOD_HERE), reduces);
    assert_int_equal(hth_rpc_rights(HTH_ROLL_METHOD_READY), reduces);
    assert_int_equal(hth_rpc_rights(HTH_ROLL_METHOD_CALL), reduces);
    assert_int_equal(hth_rpc_rights(HTH_ROLL_METHOD_LINKS), reduces);
    assert_int_equal(hth_rpc_rights(HTH_MEAN_METHOD), reduces);
    assert_int_equal(hth_rpc_rights(HTH_ROW_METHOD), reduces);
}

/* A stranger costs at most 4 KiB of reads. */
TEST(large_hellos_are_not_read)
{
    (void)state;
    static const uint8_t types[] = {HTH_FRAME_HELLO, HTH_FRAME_REQUEST};
    static const enum hth_err errs[] = {HTH_E_TOO_LARGE, HTH_E_PROTOCOL};
    static uint8_t meta[HTH_RPC_HELLO_BYTES_MAX + 1];
    begin();
    for (size_t i = 0; i < HTH_ARRAY_LEN(types); i++) {
        struct hth_frame_header h = {
            .version = 1, .type = types[i], .id = i, .meta_len = sizeof(meta)};
        struct swarm_raw raw = {.env = NULL};
        struct hth_rpc_stats stats;
        uint8_t head[HTH_FRAME_HEADER_BYTES];
        hth_frame_header_write(&h, head);
        raw_dial(&raw, a.env, &b.addr);
        raw_bytes(&raw, head, sizeof(head));
        raw_bytes(&raw, meta, sizeof(meta));
        hth_world_run_for(w, HTH_US_PER_S);
        assert_true(raw.closed);
        assert_int_equal(raw.goodbye_err, errs[i]);
        hth_rpc_stats(b.rpc, &stats);
        assert_true(stats.bytes_in <= 4096);
        raw_clear(&raw);
    }
    end();
}
