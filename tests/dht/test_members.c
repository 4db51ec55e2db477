/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_members.c: in a closed run boards believe records of members alone, of the kinds that their
 * roles allow, in whatever order records and passes arrive.
 */
#include "dht/members.h"

#include "admission/gate.h"
#include "admission/invite.h"
#include "core/bytes.h"
#include "sim/world.h"
#include "support/suite.h"

#define S HTH_US_PER_S

/* A peer: its pass, its record of experts, and its board of such records. */
struct peer {
    struct hth_node *node;
    struct hth_env *env;
    struct hth_gate *gate;
    struct hth_closed_run run;
    struct hth_revoked_set *set;
    struct hth_admission own;
    struct hth_members *members;
    struct hth_publisher *publisher;
    struct hth_board *board;
    int live, refused, lists;
    enum hth_err last_refusal;
};

static struct hth_world *w;
static struct hth_topic topic;
static struct hth_closed_run run;
static struct peer a, b;

static enum hth_err on_record(void *arg, const struct hth_record *rec, void **user)
{
    struct peer *p = arg;
    (void)rec;
    p->live += *user == NULL;
    *user = p;
    return HTH_OK;
}

static void on_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    struct peer *p = arg;
    (void)owner, (void)part, (void)user;
    p->live--;
}

static void on_refused(void *arg, enum hth_err err, const struct hth_record *rec)
{
    struct peer *p = arg;
    (void)rec;
    p->refused++;
    p->last_refusal = err;
}

static enum hth_err fill(void *arg, struct hth_writer *out)
{
    (void)arg;
    hth_write_u8(out, 1);
    return out->err;
}

static void on_revoked(void *arg)
{
    struct peer *p = arg;
    p->lists++;
}

/* Gives the peer a pass, and what judges those of others. */
static void enter(struct peer *p, uint8_t roles, int64_t life_us)
{
    static const struct hth_secret owner = {{1}}, key = {{2}};
    static const struct hth_hash file = {{3}};
    const struct hth_crypto *crypto = p->env->crypto;
    struct hth_invite invite = {.seed = key, .run_file = file};
    int64_t wall_us = hth_wall_us(p->env);
    struct hth_cert cert = {.serial = roles,
                            .not_after_us = wall_us + life_us,
                            .class = HTH_MEMBER,
                            .roles = roles,
                            .name = "ana"};
    crypto->public_of(&owner, &run.owner);
    hth_run_id(crypto, &run.owner, &file, &run.id);
    crypto->public_of(&key, &cert.key);
    cert.run = run.id;
    invite.owner = run.owner;
    assert_ok(hth_cert_write(crypto, &cert, &owner, invite.cert, &invite.cert_len));
    p->run = run;
    p->run.revoked = p->set = hth_revoked_set_new(crypto, &run);
    p->gate = hth_gate_new(p->env, &p->run);
    p->own.admit = hth_gate_check;
    p->own.holds = hth_gate_holds;
    p->own.arg = p->gate;
    p->own.creds_len = hth_invite_creds(crypto, &invite, &p->env->secret, wall_us, p->own.creds);
    const struct hth_members_opts opts = {.network = "net",
                                          .run = &p->run,
                                          .revoked = p->set,
                                          .own = &p->own,
                                          .publishes = true,
                                          .on_revoked = on_revoked,
                                          .arg = p};
    assert_ok(hth_members_new(p->env, hth_node_dht(p->node), &opts, &p->members));
}

static void publish(struct peer *p)
{
    const struct hth_publisher_opts opts = HTH_PUBLISHER_OPTS_INIT;
    assert_ok(
        hth_publisher_new(p->env, hth_node_dht(p->node), &topic, &opts, fill, p, &p->publisher));
}

static void leave(struct peer *p)
{
    hth_publisher_free(p->publisher);
    hth_board_free(p->board);
    hth_members_free(p->members);
    hth_gate_free(p->gate);
    hth_revoked_set_free(p->set);
    p->set = NULL;
    p->publisher = NULL;
    p->board = NULL;
    p->members = NULL;
    p->gate = NULL;
}

/* b reads the experts' topic as a member. */
static int setup(void **state)
{
    static const struct hth_board_ops ops = {on_record, on_gone, on_refused};
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    (void)state;
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    opts.log_level = HTH_ERROR;
    opts.wall_start_us = INT64_C(1700000050) * S;
    w = hth_world_new(5, &opts);
    a.node = hth_world_node(w, "a", NULL);
    b.node = hth_world_node(w, "b", NULL);
    a.env = hth_node_env(a.node);
    b.env = hth_node_env(b.node);
    hth_topic_init(&topic, b.env->crypto, "net", HTH_RECORD_ROOT, "x.", 2);
    enter(&b, HTH_MAY_TRAIN, 86400 * S);
    assert_ok(hth_board_new(b.env, hth_node_dht(b.node), &topic, NULL, &ops, &b, &b.board));
    return 0;
}

static int teardown(void **state)
{
    struct hth_open_counts open;
    (void)state;
    leave(&a);
    leave(&b);
    assert_int_equal(b.live, 0);
    hth_world_open(w, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(w);
    return 0;
}

TEST_WITH(members_records_are_believed, setup, teardown)
{
    (void)state;
    enter(&a, HTH_MAY_SERVE, 86400 * S);
    publish(&a);
    hth_world_run_for(w, 3 * S);
    assert_int_equal(hth_members_count(b.members), 2);
    struct hth_grant grant;
    assert_true(hth_members_find(b.members, &a.env->self, &grant));
    assert_string_equal(grant.name, "ana");
    static const struct hth_peer_id nobody;
    assert_false(hth_members_find(b.members, &nobody, &grant));
    assert_int_equal(b.live, 1);
    hth_world_run_for(w, 600 * S); /* over epochs and renewals */
    assert_int_equal(b.live, 1);
    assert_int_equal(b.refused, 0);
}

TEST_WITH(early_record_waits_for_its_pass, setup, teardown)
{
    (void)state;
    publish(&a);
    hth_world_run_for(w, 5 * S);
    assert_int_equal(b.live, 0);
    enter(&a, HTH_MAY_SERVE, 86400 * S);
    hth_world_run_for(w, 3 * S); /* long before the record's renewal */
    assert_int_equal(b.live, 1);
    assert_int_equal(b.refused, 0);
}

TEST_WITH(strangers_records_are_refused, setup, teardown)
{
    (void)state;
    publish(&a);
    hth_world_run_for(w, 120 * S);
    assert_int_equal(b.live, 0);
    assert_true(b.refused > 0);
    assert_int_equal(b.last_refusal, HTH_E_NOT_ADMITTED);
    hth_publisher_free(a.publisher);
    /* A flood of them costs a bounded memory, and keeps no member out for longer than a renewal. */
    static struct hth_publisher *flood[HTH_BOARD_RECORDS_PER_OWNER_MAX];
    for (size_t i = 0; i < HTH_ARRAY_LEN(flood); i++) {
        struct hth_publisher_opts opts = HTH_PUBLISHER_OPTS_INIT;
        opts.part = (uint8_t)i;
        assert_ok(
            hth_publisher_new(a.env, hth_node_dht(a.node), &topic, &opts, fill, &a, &flood[i]));
    }
    hth_world_run_for(w, 60 * S);
    for (size_t i = 0; i < HTH_ARRAY_LEN(flood); i++)
        hth_publisher_free(flood[i]);
    a.publisher = NULL;
    assert_int_equal(b.live, 0);
    enter(&a, HTH_MAY_SERVE, 86400 * S);
    publish(&a);
    hth_world_run_for(w, 30 * S);
    assert_true(b.live >= 1);
}

TEST_WITH(roles_limit_kinds, setup, teardown)
{
    (void)state;
    enter(&a, HTH_MAY_TRAIN, 86400 * S); /* it may not announce experts */
    publish(&a);
    hth_world_run_for(w, 60 * S);
    assert_int_equal(hth_members_count(b.members), 2);
    assert_int_equal(b.live, 0);
    assert_int_equal(b.last_refusal, HTH_E_NOT_ADMITTED);
}

TEST_WITH(ended_pass_ends_belief, setup, teardown)
{
    (void)state;
    enter(&a, HTH_MAY_SERVE, 300 * S);
    publish(&a);
    hth_world_run_for(w, 290 * S);
    assert_int_equal(b.live, 1);
    hth_world_run_for(w, 250 * S);
    assert_int_equal(hth_members_count(b.members), 1);
    assert_int_equal(b.live, 0);
}

/* Signs a list; returns its length. */
static size_t sign_list(uint64_t seq, uint64_t serial, uint8_t out[HTH_REVOKED_BYTES_MAX])
{
    static const struct hth_secret owner = {{1}};
    struct hth_revoked list = {.seq = seq};
    assert_ok(hth_revoked_add(&list, serial));
    return hth_revoked_write(b.env->crypto, &list, &run.id, &owner, NULL, 0, out);
}

TEST_WITH(revoked_members_are_not_believed, setup, teardown)
{
    (void)state;
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    enter(&a, HTH_MAY_SERVE, 86400 * S);
    publish(&a);
    hth_world_run_for(w, 3 * S);
    assert_int_equal(b.live, 1);
    /* A third peer has the list, and is gone soon: the others keep it. */
    static struct peer c;
    c.node = hth_world_node(w, "c", NULL);
    c.env = hth_node_env(c.node);
    enter(&c, HTH_MAY_WATCH, 86400 * S);
    assert_ok(hth_revoked_set_take(c.set, bytes, sign_list(5, HTH_MAY_SERVE, bytes)));
    hth_members_revoked(c.members);
    hth_world_run_for(w, 25 * S);
    assert_int_equal(b.lists, 1);
    leave(&c);
    hth_world_run_for(w, 900 * S); /* longer than any record of it */
    assert_int_equal(b.live, 0);
    assert_int_equal(hth_members_count(b.members), 1);
    enter(&c, HTH_MAY_WATCH, 86400 * S);
    hth_world_run_for(w, 10 * S);
    assert_int_equal(c.lists, 1);
    assert_int_equal(b.lists, 1);
    leave(&c);
}

#define CROWD 60

/* Many members have a list; few publish it, and others go on when those are gone. */
TEST_WITH(few_members_publish_a_list, setup, teardown)
{
    (void)state;
    static const struct hth_board_ops ops = {on_record, on_gone, on_refused};
    static struct peer crowd[CROWD], reader;
    uint8_t bytes[HTH_REVOKED_BYTES_MAX];
    struct hth_topic lists;
    struct hth_board_stats stats;
    size_t len = sign_list(5, 99, bytes);
    hth_topic_init(&lists, b.env->crypto, "net", HTH_RECORD_REVOKED, "", 0);
    memset(&reader, 0, sizeof(reader));
    reader.node = hth_world_node(w, "reader", NULL);
    reader.env = hth_node_env(reader.node);
    assert_ok(hth_board_new(reader.env, hth_node_dht(reader.node), &lists, NULL, &ops, &reader,
                            &reader.board));
    for (size_t i = 0; i < CROWD; i++) {
        struct peer *p = &crowd[i];
        memset(p, 0, sizeof(*p));
        p->node = hth_world_node(w, "member", NULL);
        p->env = hth_node_env(p->node);
        enter(p, HTH_MAY_WATCH, 86400 * S);
        assert_ok(hth_revoked_set_take(p->set, bytes, len));
        hth_members_revoked(p->members);
    }
    hth_world_run_for(w, 60 * S);
    hth_board_stats(reader.board, &stats);
    assert_true(stats.live >= HTH_LIST_COPIES_MIN && stats.live <= HTH_LIST_COPIES_MAX);
    /* Half of the members leave: among them, half of those that publish. */
    for (size_t i = 0; i < CROWD / 2; i++)
        leave(&crowd[i]);
    hth_world_run_for(w, 700 * S);
    hth_board_stats(reader.board, &stats);
    assert_true(stats.live >= HTH_LIST_COPIES_MIN && stats.live <= HTH_LIST_COPIES_MAX);
    for (size_t i = CROWD / 2; i < CROWD; i++)
        leave(&crowd[i]);
    leave(&reader);
}
