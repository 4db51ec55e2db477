/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_raise.c: a peer on probation that works for four virtual hours is a member at the host that
 * saw it, over a restart of the host, without a connection being cut in the middle of a call.
 */
#include "rpc/raise.h"

#include "admission/gate.h"
#include "admission/invite.h"
#include "admission/revoke.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "rpc/closed.h"
#include "rpc/swarm.h"
#include "support/suite.h"

#define S     HTH_US_PER_S
#define STEP  (50 * S) /* from call to call */
#define HOURS (3600 * S)

static const struct hth_secret owner = {{1}}, key = {{2}};
static const struct hth_hash run_file = {{3}};

static struct party {
    struct swarm_member m;
    struct hth_admission shown;
    struct hth_revoked_set *set;
    struct hth_gate *gate;
    struct hth_witness *witness;
    struct hth_raise *raise;
    int raised;
} host, peer;

static struct hth_world *w;
static struct hth_closed_run run;

static struct hth_cert cert_of(uint8_t class, const struct hth_pubkey *for_key)
{
    int64_t wall_us = hth_wall_us(host.m.env);
    return (struct hth_cert){.run = run.id,
                             .key = *for_key,
                             .serial = (uint64_t)wall_us,
                             .not_after_us = wall_us + 86400 * S,
                             .class = class,
                             .roles = HTH_MAY_TRAIN,
                             .name = "ana"};
}

static void show(struct party *p, const struct hth_invite *invite)
{
    p->shown.creds_len = hth_invite_creds(p->m.env->crypto, invite, &p->m.env->secret,
                                          hth_wall_us(p->m.env), p->shown.creds);
}

/* The new pass is shown by the test, a second later, as the program does. */
static enum hth_err take(void *arg, const void *certs, size_t len)
{
    struct party *p = arg;
    struct hth_invite invite = {.owner = run.owner, .run_file = run_file};
    struct hth_grant grant;
    struct hth_cert cert;
    HTH_TRY(hth_cert_check(p->m.env->crypto, &run, certs, len, &cert, &grant));
    if (memcmp(cert.key.b, p->m.env->pubkey.b, sizeof(cert.key.b)) != 0)
        return HTH_E_PASS_OTHER_KEY;
    hth_invite_bind(&invite, certs, len);
    show(p, &invite);
    p->raised++;
    return HTH_OK;
}

static void open(struct party *p)
{
    p->witness = hth_witness_new();
    p->shown.witness = p->witness;
    member_serve(&p->m);
    const struct hth_raise_opts opts = {
        .witness = p->witness, .dir = "state", .take = take, .arg = p};
    p->raise = hth_raise_new(p->m.env, p->m.rpc, &opts);
}

static void close_all(struct party *p)
{
    hth_raise_free(p->raise);
    member_stop(&p->m);
    hth_witness_free(p->witness);
}

static void enter(struct party *p, const char *name, uint8_t class)
{
    struct hth_invite invite = {.seed = key, .run_file = run_file};
    struct hth_pubkey pub;
    member_start(&p->m, w, name, member_opts());
    const struct hth_crypto *crypto = p->m.env->crypto;
    crypto->public_of(&owner, &run.owner);
    hth_run_id(crypto, &run.owner, &run_file, &run.id);
    invite.owner = run.owner;
    crypto->public_of(&key, &pub);
    struct hth_cert cert = cert_of(class, &pub);
    assert_ok(hth_cert_write(crypto, &cert, &owner, invite.cert, &invite.cert_len));
    struct hth_closed_run known = run;
    known.revoked = p->set = hth_revoked_set_new(crypto, &run);
    p->gate = hth_gate_new(p->m.env, &known);
    p->shown =
        (struct hth_admission){.admit = hth_gate_check, .holds = hth_gate_holds, .arg = p->gate};
    show(p, &invite);
    member_stop(&p->m);
    p->m.opts.admission = &p->shown;
    open(p);
}

static void leave(struct party *p)
{
    close_all(p);
    hth_gate_free(p->gate);
    hth_revoked_set_free(p->set);
}

/* The peer calls, and the host finds its work good or not, for that time. */
static void work(int64_t time_us, bool good)
{
    for (int64_t at = 0; at < time_us; at += STEP) {
        struct swarm_verdict v = {.count = 0};
        call_text(&peer.m, &host.m, METHOD_ECHO, "hello", 10 * S, &v);
        await(w, &v);
        assert_ok(v.err);
        verdict_clear(&v);
        hth_rpc_saw_work(host.m.rpc, &peer.m.env->self, good);
        hth_world_run_for(w, STEP - hth_now_us(host.m.env) % STEP);
    }
}

/* Signs as hearth owner promote --auto does. Returns for how many. */
static int promote(const struct hth_secret *signer)
{
    struct hth_witness *seen = hth_witness_new();
    struct hth_pubkey due;
    struct hth_blob *blob;
    int count = 0;
    if (hth_file_read(host.m.env, "state/witnessed", HTH_WITNESS_BYTES_MAX, &blob) == HTH_OK) {
        assert_ok(hth_witness_read(seen, blob->data, blob->size));
        hth_blob_unref(blob);
    }
    for (size_t it = 0; hth_witness_due(seen, &it, &due); count++) {
        struct hth_cert cert = cert_of(HTH_MEMBER, &due);
        uint8_t bytes[HTH_CERT_BYTES_MAX];
        char hex[2 * HTH_PUBKEY_LEN + 1];
        size_t len;
        assert_ok(hth_cert_write(host.m.env->crypto, &cert, signer, bytes, &len));
        hth_hex(due.b, sizeof(due.b), hex);
        char *path = hth_asprintf("state/" HTH_RAISE_FILE, hex);
        struct hth_span span = {hth_blob_copy(bytes, len), 0, len};
        assert_ok(hth_file_write(host.m.env, path, &span, 1));
        hth_blob_unref(span.blob);
        hth_free(path);
    }
    hth_witness_free(seen);
    return count;
}

static uint8_t class_at_host(void)
{
    struct hth_rpc_peer_info info;
    assert_ok(hth_rpc_peer_info(host.m.rpc, &peer.m.env->self, &info));
    return info.class;
}

static void begin(void)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    opts.log_level = HTH_ERROR;
    opts.wall_start_us = INT64_C(1700000050) * S;
    w = hth_world_new(9, &opts);
    memset(&host, 0, sizeof(host));
    memset(&peer, 0, sizeof(peer));
    enter(&host, "host", HTH_MEMBER);
    enter(&peer, "peer", HTH_PROBATION);
}

static void end(void)
{
    struct hth_open_counts counts;
    leave(&peer);
    leave(&host);
    hth_world_open(w, &counts);
    assert_int_equal(hth_open_total(&counts), 0);
    hth_world_free(w);
}

TEST(four_hours_make_a_member)
{
    struct swarm_verdict v = {.count = 0};
    (void)state;
    begin();
    work(2 * HOURS, true);
    close_all(&host);
    hth_world_run_for(w, S); /* the peer sees that */
    open(&host);
    work(2 * HOURS - 2 * STEP, true);
    assert_int_equal(promote(&owner), 0);
    assert_int_equal(class_at_host(), HTH_PROBATION);
    work(6 * STEP, true);
    assert_int_equal(promote(&owner), 1);
    work(2 * STEP, true);
    assert_true(peer.raised > 0);
    /* A call that is under way ends, and the next one comes from a member. */
    call_text(&peer.m, &host.m, METHOD_HOLD, "hello", 10 * S, &v);
    hth_world_run_for(w, S);
    hth_rpc_show_again(peer.m.rpc);
    hth_world_run_for(w, S);
    assert_int_equal(host.m.held_count, 1);
    hth_rpc_reply(host.m.held[0], NULL);
    await(w, &v);
    assert_ok(v.err);
    verdict_clear(&v);
    host.m.held_count = 0;
    work(2 * STEP, true);
    assert_int_equal(class_at_host(), HTH_MEMBER);
    int raised = peer.raised;
    work(4 * STEP, true);
    assert_int_equal(promote(&owner), 0); /* its place is free */
    assert_int_equal(peer.raised, raised);
    end();
}

/* The peer judges: a stranger's word makes no member, and refused work none that is due. */
TEST(only_the_owner_raises)
{
    (void)state;
    begin();
    work(3 * HOURS, true);
    work(STEP, false);
    work(2 * HOURS, true);
    assert_int_equal(promote(&owner), 0);
    work(2 * HOURS + 4 * STEP, true);
    assert_int_equal(promote(&key), 1);
    work(4 * STEP, true);
    assert_int_equal(peer.raised, 0);
    assert_int_equal(promote(&owner), 1);
    work(2 * STEP, true);
    assert_true(peer.raised > 0);
    end();
}
