/* SPDX-License-Identifier: Apache-2.0 */
/* test_match_hostile.c: refusals by name, notes that lie, and the limits of matchmaking. */
#include "averaging/crowd.h"
#include "averaging/match_int.h"
#include "averaging/match_msg.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "dht/record.h"
#include "support/test.h"

/* ---- refusals -------------------------------------------------------------------------------- */

struct raw {
    uint32_t answers;
    enum hth_err err;
    enum hth_avg_reason reason;
    size_t record_len;
    uint32_t members;
};

static void on_raw(void *arg, const struct hth_rpc_result *r)
{
    struct raw *raw = arg;
    struct hth_join_reply reply;

    raw->answers++;
    raw->err = r->err;
    if (r->err != HTH_OK)
        return;
    assert_ok(hth_join_reply_open(r->payload, r->payload_len, &reply));
    raw->reason = reply.reason;
    raw->record_len = reply.record_len;
    raw->members = reply.count;
    hth_join_reply_close(&reply);
}

static struct hth_join_msg join_of(const struct mate *from)
{
    const struct hth_look_opts *o = &from->crowd->look;
    struct hth_join_msg join = {.line = o->line, .schema = o->schema, .left_ms = 1000};

    join.line.cell = from->cell;
    join.self.mode = HTH_AVG_TRAINER;
    join.self.addr = from->addr;
    join.self.weight = 1;
    join.wall_us = hth_wall_us(from->env);
    return join;
}

/* The answer may come much later. */
static struct raw *send_bytes(struct mate *from, const struct mate *to, const void *data,
                              size_t len)
{
    static struct raw raws[64];
    static uint32_t next;
    struct raw *raw = &raws[next++ % HTH_ARRAY_LEN(raws)];
    struct hth_rpc_target target = {to->env->self, to->addr};
    struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_JOIN,
                                     .body = {.payload = data, .payload_len = len},
                                     .timeout_us = HTH_US_PER_S};

    memset(raw, 0, sizeof(*raw));
    assert_ok(hth_rpc_call(from->rpc, &target, &call, on_raw, raw, NULL));
    return raw;
}

static struct raw ask(struct mate *from, const struct mate *to, const struct hth_join_msg *join)
{
    uint8_t bytes[HTH_JOIN_BYTES_MAX];
    size_t len = hth_join_msg_pack(join, bytes);
    const struct raw *raw = send_bytes(from, to, bytes, len);

    hth_world_run_for(from->crowd->world, 150 * HTH_US_PER_MS);
    return *raw;
}

/* Three mates who come in this order in the line; all are due, so that nobody begins. */
static void order_start(struct crowd *c, uint64_t seed)
{
    crowd_start(c, seed, 3, NULL);
    c->due_known = true;
    c->look.window_us = 20 * HTH_US_PER_S;
    for (;; c->look.line.round++) {
        struct hth_hash m[3];
        uint8_t key[HTH_AVG_LINE_KEY_MAX];
        size_t len = hth_avg_line_key(&c->look.line, key);
        for (int i = 0; i < 3; i++)
            hth_avg_mark(c->mate[i].env->crypto, key, len, &c->mate[i].env->self, &m[i]);
        if (memcmp(&m[0], &m[1], sizeof(m[0])) < 0 && memcmp(&m[1], &m[2], sizeof(m[0])) < 0)
            break;
    }
}

static void refusals(void **state)
{
    struct crowd c;
    struct hth_join_msg j;
    struct raw raw;
    const struct raw *late;
    uint8_t bytes[HTH_JOIN_BYTES_MAX + 1];
    size_t len;

    (void)state;
    order_start(&c, 11);
    assert_int_equal(ask(&c.mate[1], &c.mate[0], &(struct hth_join_msg){0}).reason, HTH_AVG_RANGE);
    j = join_of(&c.mate[1]);
    assert_int_equal(ask(&c.mate[1], &c.mate[0], &j).reason, HTH_AVG_NOT_LOOKING);
    crowd_look(&c.mate[0]);
    j.line.generation++;
    assert_int_equal(ask(&c.mate[1], &c.mate[0], &j).reason, HTH_AVG_OTHER_SHAPE);
    j.line.generation--;
    j.line.shape.size[0]++;
    assert_int_equal(ask(&c.mate[1], &c.mate[0], &j).reason, HTH_AVG_OTHER_SHAPE);
    j.line.shape.size[0]--;
    j.line.round++;
    assert_int_equal(ask(&c.mate[1], &c.mate[0], &j).reason, HTH_AVG_OTHER_ROUND);
    j.line.round--;
    j.line.run++;
    assert_int_equal(ask(&c.mate[1], &c.mate[0], &j).reason, HTH_AVG_OTHER_LINE);
    j.line.run--;
    j.schema++;
    assert_int_equal(ask(&c.mate[1], &c.mate[0], &j).reason, HTH_AVG_OTHER_SCHEMA);
    j.schema--;
    j.wall_us = hth_wall_us(c.mate[1].env) + 2900 * HTH_US_PER_MS;
    raw = ask(&c.mate[1], &c.mate[0], &j);
    assert_int_equal(raw.answers, 0); /* held */
    j.wall_us = hth_wall_us(c.mate[1].env) + 3100 * HTH_US_PER_MS;
    assert_int_equal(ask(&c.mate[1], &c.mate[0], &j).reason, HTH_AVG_CLOCK_SKEW);
    j.wall_us = hth_wall_us(c.mate[1].env) - 3500 * HTH_US_PER_MS;
    assert_int_equal(ask(&c.mate[1], &c.mate[0], &j).reason, HTH_AVG_CLOCK_SKEW);
    j.wall_us = hth_wall_us(c.mate[1].env);
    len = hth_join_msg_pack(&j, bytes);
    late = send_bytes(&c.mate[1], &c.mate[0], bytes, len - 1);
    hth_world_run_for(c.world, 150 * HTH_US_PER_MS);
    assert_int_equal(late->reason, HTH_AVG_MALFORMED);
    memset(bytes, 0, sizeof(bytes));
    late = send_bytes(&c.mate[1], &c.mate[0], bytes, sizeof(bytes));
    hth_world_run_for(c.world, 150 * HTH_US_PER_MS);
    assert_int_equal(late->reason, HTH_AVG_RANGE); /* longer than any JOIN */
    /* a smaller one must not follow */
    c.mate[2].cell = c.mate[1].cell;
    crowd_look(&c.mate[1]);
    hth_world_run_for(c.world, 100 * HTH_US_PER_MS);
    j = join_of(&c.mate[0]);
    assert_int_equal(ask(&c.mate[0], &c.mate[1], &j).reason, HTH_AVG_NOT_SMALLER);
    crowd_stop(&c);
}

/* Who follows somebody says whom, with that one's own signed word. */
static void redirected(void **state)
{
    struct crowd c;
    struct hth_join_msg j;
    struct raw raw;

    (void)state;
    order_start(&c, 12);
    crowd_look(&c.mate[0]);
    crowd_look(&c.mate[1]);
    hth_world_run_for(c.world, 300 * HTH_US_PER_MS);
    j = join_of(&c.mate[2]);
    raw = ask(&c.mate[2], &c.mate[1], &j);
    assert_int_equal(raw.reason, HTH_AVG_NOT_LEADER);
    assert_true(raw.record_len > HTH_RECORD_OVERHEAD_BYTES);
    /* once the group has begun, a member gets it from any other, a stranger from none */
    c.mate[2].absent = true;
    hth_match_nudge(c.mate[0].match);
    assert_true(crowd_run(&c, HTH_US_PER_S));
    assert_true(crowd_agrees(&c));
    assert_int_equal(c.mate[1].group->count, 2);
    assert_int_equal(ask(&c.mate[2], &c.mate[1], &j).reason, HTH_AVG_BEGUN);
    j = join_of(&c.mate[0]);
    j.self.nonce = c.mate[1].group->member[1 - c.mate[1].group->self].nonce;
    raw = ask(&c.mate[0], &c.mate[1], &j);
    assert_int_equal(raw.reason, HTH_AVG_OK);
    assert_int_equal(raw.members, 2);
    hth_world_run_for(c.world, c.match.linger_us);
    j.wall_us = hth_wall_us(c.mate[0].env);
    assert_int_equal(ask(&c.mate[0], &c.mate[1], &j).reason, HTH_AVG_NOT_LOOKING);
    crowd_stop(&c);
}

static void draining(void **state)
{
    struct crowd c;

    (void)state;
    order_start(&c, 13);
    c.look.window_us = 2 * HTH_US_PER_S;
    hth_rpc_drain(c.mate[0].rpc, 10 * HTH_US_PER_S, NULL, NULL);
    crowd_look(&c.mate[0]);
    crowd_look(&c.mate[1]);
    hth_world_run_for(c.world, HTH_US_PER_S);
    assert_int_equal(c.mate[1].ended, 0); /* it goes on alone, and waits for the third */
    assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
    assert_int_equal(c.mate[1].result.err, HTH_E_TIMEOUT);
    assert_true(c.mate[1].result.reason == HTH_AVG_DRAINING ||
                c.mate[1].result.reason == HTH_AVG_NO_LEADER);
    crowd_stop(&c);
}

/* ---- hostile declarations -------------------------------------------------------------------- */

struct planted {
    struct hth_topic topic;
    struct hth_dht_key key;
    uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
    size_t len;
};

static enum hth_avg_mode planted_mode; /* of the notes that are made */
static uint8_t planted_version;        /* 0: today's */

/* mate's declaration for its line, issued `ago_us` ago; not yet in the table. */
static void make_note(struct mate *m, int64_t ago_us, struct planted *p)
{
    struct hth_avg_line line = m->crowd->look.line;
    uint8_t key[HTH_AVG_LINE_KEY_MAX], payload[64];
    struct hth_declare d = {.mode = planted_mode, .addr = m->addr, .schema = m->crowd->look.schema};
    struct hth_writer w;
    struct hth_record rec = {.kind = HTH_RECORD_DECLARE, .life_ms = 5000};
    size_t len;

    line.cell = m->cell;
    len = hth_avg_line_key(&line, key);
    hth_writer_init(&w, payload, sizeof(payload));
    hth_declare_write(&d, &w);
    if (planted_version != 0)
        payload[0] = planted_version;
    hth_topic_init(&p->topic, m->env->crypto, "run", HTH_RECORD_DECLARE, key, len);
    hth_topic_key(&p->topic, m->env->crypto, 0, &p->key);
    rec.network = p->topic.network;
    rec.issued_us = hth_wall_us(m->env) - ago_us;
    rec.seq = (uint64_t)rec.issued_us;
    rec.payload = payload;
    rec.payload_len = w.pos;
    assert_ok(hth_record_seal(m->env, &p->key, &rec, p->bytes, sizeof(p->bytes), &p->len));
}

static struct {
    struct hth_dht *dht;
    struct hth_dht_put *put;
} garden[HTH_AVG_LOOKERS_MAX + 16];
static uint32_t garden_count;

static void plant(struct mate *by, const struct planted *p)
{
    struct hth_dht_put **put = &garden[garden_count].put;

    garden[garden_count++].dht = hth_node_dht(by->node);
    assert_ok(hth_dht_put(hth_node_dht(by->node), &p->key, p->bytes, p->len, NULL, NULL, put));
}

static void uproot(void)
{
    while (garden_count > 0) {
        garden_count--;
        hth_dht_withdraw(garden[garden_count].dht, garden[garden_count].put);
    }
}

static void hostile_notes(void **state)
{
    struct crowd c;
    struct planted p, other;
    struct hth_match_stats s;

    (void)state;
    order_start(&c, 14); /* mate 0 looks; mate 1 writes; mate 2 is due and never comes */
    crowd_look(&c.mate[0]);
    make_note(&c.mate[1], 0, &p);
    p.bytes[p.len - 1] ^= 1; /* forged */
    plant(&c.mate[1], &p);
    make_note(&c.mate[1], 9 * HTH_US_PER_S, &p); /* expired */
    plant(&c.mate[1], &p);
    make_note(&c.mate[1], -4 * HTH_US_PER_S, &p); /* from the future */
    plant(&c.mate[1], &p);
    c.look.line.round++; /* a true one, copied from another line */
    make_note(&c.mate[1], 0, &other);
    c.look.line.round--;
    other.key = p.key;
    plant(&c.mate[1], &other);
    make_note(&c.mate[1], 0, &p);
    p.len -= 3; /* cut */
    plant(&c.mate[1], &p);
    hth_world_run_for(c.world, 500 * HTH_US_PER_MS);
    hth_match_stats(c.mate[0].match, &s);
    assert_int_equal(s.notes_refused, 5);
    assert_null(hth_look_find(c.mate[0].look, &c.mate[1].env->self));
    make_note(&c.mate[1], 0, &p);
    plant(&c.mate[1], &p);
    hth_world_run_for(c.world, 500 * HTH_US_PER_MS);
    assert_non_null(hth_look_find(c.mate[0].look, &c.mate[1].env->self));
    plant(&c.mate[2], &p);                   /* the same again, by somebody else: known */
    make_note(&c.mate[1], HTH_US_PER_S, &p); /* older */
    plant(&c.mate[2], &p);
    hth_world_run_for(c.world, 500 * HTH_US_PER_MS);
    hth_match_stats(c.mate[0].match, &s);
    assert_int_equal(s.notes_refused, 5);
    hth_look_cancel(c.mate[0].look);
    c.mate[0].look = NULL;
    uproot();
    crowd_stop(&c);
}

/* A program that would misread the parts of an average: no group with it, and it is said why. */
static void another_version(void **state)
{
    struct crowd c;
    struct planted p;

    (void)state;
    for (uint8_t version = 2; version <= 4; version++) {
        order_start(&c, 14);
        planted_version = version;
        make_note(&c.mate[1], 0, &p);
        planted_version = 0;
        plant(&c.mate[1], &p);
        c.mate[1].absent = c.mate[2].absent = true;
        crowd_look(&c.mate[0]);
        assert_true(crowd_run(&c, 10 * HTH_US_PER_S));
        assert_int_equal(c.mate[0].result.err != HTH_OK, true);
        assert_int_equal(c.mate[0].result.reason == HTH_AVG_OTHER_VERSION, version != 3);
        uproot();
        crowd_stop(&c);
    }
}

/* A smaller one that is declared but does not exist: struck off, and the others meet. */
static void ghost_leader(void **state)
{
    struct crowd c;
    struct planted p;

    (void)state;
    order_start(&c, 15);
    make_note(&c.mate[0], 0, &p);
    plant(&c.mate[0], &p);
    hth_world_run_for(c.world, 50 * HTH_US_PER_MS);
    c.mate[0].absent = true;
    hth_world_block(c.world, c.mate[0].node, c.mate[1].node, true);
    hth_world_block(c.world, c.mate[0].node, c.mate[2].node, true);
    crowd_look(&c.mate[1]);
    crowd_look(&c.mate[2]);
    assert_true(crowd_run(&c, 2 * HTH_US_PER_S));
    assert_int_equal(c.mate[1].result.err, HTH_OK);
    assert_int_equal(c.mate[1].group->count, 2);
    assert_true(c.mate[1].result.wait_us <= 2000 * HTH_US_PER_MS);
    uproot();
    crowd_stop(&c);
}

/* ---- a leader that lies ---------------------------------------------------------------------- */

static struct liar {
    struct mate *self;
    struct hth_rpc_request *req[2]; /* of mates 1 and 2 */
    struct hth_avg_member member[3];
    uint32_t count;
    double lies[2]; /* its bandwidth, as it tells each of them */
    enum { NOTHING, WEIGHT, BANDWIDTH, NONCE, LIES } about; /* of mate 1, to both */
    uint32_t helpers;                                       /* that it invents */
} liar;

static void answer_lying(uint32_t to)
{
    struct hth_avg_member members[10];
    struct hth_join_reply reply = {.reason = HTH_AVG_OK, .members = members, .count = 3};

    memcpy(members, liar.member, sizeof(liar.member));
    for (uint32_t i = 3; i < 3 + liar.helpers; i++) {
        members[i] = (struct hth_avg_member){.id = {{(uint8_t)i}},
                                             .addr = liar.self->addr,
                                             .mode = HTH_AVG_HELPER,
                                             .bandwidth = 1e9};
        reply.count++;
    }
    members[0].bandwidth = liar.lies[to];
    members[1].weight += liar.about == WEIGHT;
    members[1].bandwidth += liar.about == BANDWIDTH;
    members[1].nonce += liar.about == NONCE;
    hth_match_answer(liar.self->match, liar.req[to], &reply);
}

static void on_join_lying(void *arg, struct hth_rpc_request *req)
{
    struct hth_join_msg join;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);

    (void)arg;
    assert_ok(hth_join_msg_open(payload, len, &join));
    join.self.id = *hth_rpc_peer(req);
    liar.member[1 + liar.count] = join.self;
    liar.req[liar.count++] = req;
    if (liar.count < 2)
        return;
    hth_rpc_serve(liar.self->rpc, HTH_MATCH_METHOD_JOIN, NULL, NULL);
    answer_lying(0);
    answer_lying(1);
}

/* Mate 0 leads by its note, and has its own idea of the truth. */
static void lie(struct crowd *c, uint64_t seed, const struct liar *lies)
{
    struct planted p;

    order_start(c, seed);
    liar = *lies;
    liar.self = &c->mate[0];
    liar.member[0] =
        (struct hth_avg_member){.id = c->mate[0].env->self, .addr = c->mate[0].addr, .weight = 1};
    make_note(&c->mate[0], 0, &p);
    plant(&c->mate[0], &p);
    hth_rpc_serve(c->mate[0].rpc, HTH_MATCH_METHOD_JOIN, on_join_lying, NULL);
    hth_world_run_for(c->world, 50 * HTH_US_PER_MS);
    c->mate[0].absent = true;
    crowd_look(&c->mate[1]);
    crowd_look(&c->mate[2]);
    assert_true(crowd_run(c, 2 * HTH_US_PER_S));
    uproot();
}

/* Members to whom a leader says different things are in different groups, instead of one that cuts
 * the vector in different places; and nobody accepts that it says something else of themselves. */
static void lying_leader(void **state)
{
    struct crowd c;

    (void)state;
    lie(&c, 16, &(struct liar){.lies = {5, 5}});
    assert_int_equal(c.mate[1].group->count, 3);
    assert_memory_equal(&c.mate[1].group->id, &c.mate[2].group->id, sizeof(struct hth_hash));
    crowd_stop(&c);
    lie(&c, 16, &(struct liar){.lies = {5, 6}});
    assert_int_equal(c.mate[1].group->count, 3);
    assert_int_equal(c.mate[2].group->count, 3);
    assert_memory_not_equal(&c.mate[1].group->id, &c.mate[2].group->id, sizeof(struct hth_hash));
    crowd_stop(&c);
    /* As many helpers as there are members who average may be in a list, and no more. */
    lie(&c, 16, &(struct liar){.lies = {5, 5}, .helpers = 3});
    assert_int_equal(c.mate[1].group->count, 6);
    crowd_stop(&c);
    lie(&c, 16, &(struct liar){.lies = {5, 5}, .helpers = 4});
    for (uint32_t i = 1; i < 3; i++)
        assert_true(c.mate[i].group == NULL || c.mate[i].group->count == 2);
    crowd_stop(&c);
    for (int about = WEIGHT; about < LIES; about++) {
        uint32_t complete = 0;

        lie(&c, 16, &(struct liar){.lies = {5, 5}, .about = about});
        for (uint32_t i = 1; i < 3; i++)
            complete += c.mate[i].group != NULL && c.mate[i].group->count == 3;
        assert_int_equal(complete, 1); /* the one of whom the list is right */
        crowd_stop(&c);
    }
}

static void on_join_refusing(void *arg, struct hth_rpc_request *req)
{
    const struct hth_join_reply reply = {.reason = *(enum hth_avg_reason *)arg};

    hth_match_answer(liar.self->match, req, &reply);
}

static void tell_of(const struct mate *from, const struct mate *to, const struct planted *p)
{
    static uint8_t bytes[HTH_TELL_BYTES_MAX];
    static struct raw ignored;
    const struct hth_rpc_target target = {to->env->self, to->addr};
    struct hth_rpc_call_opts call = {
        .method = HTH_MATCH_METHOD_TELL, .body = {.payload = bytes}, .timeout_us = HTH_US_PER_S};
    struct hth_tell tell = {.line = from->crowd->look.line,
                            .schema = from->crowd->look.schema,
                            .record = p->bytes,
                            .record_len = p->len};

    call.body.payload_len = hth_tell_pack(&tell, bytes);
    assert_ok(hth_rpc_call(from->rpc, &target, &call, on_raw, &ignored, NULL));
}

/* The smallest says again and again that it looks, and refuses whoever asks: the others give it up
 * and meet. */
static void flapping_leader(void **state)
{
    enum hth_avg_reason reasons[] = {HTH_AVG_NOT_LOOKING, HTH_AVG_BEGUN};

    (void)state;
    for (uint32_t k = 0; k < HTH_ARRAY_LEN(reasons); k++) {
        struct crowd c;
        struct planted p;

        order_start(&c, 15);
        liar.self = &c.mate[0];
        hth_rpc_serve(c.mate[0].rpc, HTH_MATCH_METHOD_JOIN, on_join_refusing, &reasons[k]);
        c.mate[0].absent = true;
        crowd_look(&c.mate[1]);
        crowd_look(&c.mate[2]);
        for (uint32_t i = 0; i < 2000 && !crowd_run(&c, 10 * HTH_US_PER_MS); i++) {
            make_note(&c.mate[0], 0, &p);
            tell_of(&c.mate[0], &c.mate[1], &p);
            tell_of(&c.mate[0], &c.mate[2], &p);
        }
        assert_true(crowd_run(&c, 2 * HTH_US_PER_S));
        assert_int_equal(c.mate[1].result.err, HTH_OK);
        assert_int_equal(c.mate[1].group->count, 2);
        assert_true(c.mate[1].result.wait_us < HTH_US_PER_S);
        crowd_stop(&c);
    }
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void must_not_end(void *arg, const struct hth_look_result *r)
{
    (void)arg;
    (void)r;
    fail_msg("a look ended that was canceled");
}

static void limits(void **state)
{
    struct crowd c;
    struct hth_look *look;
    struct hth_look_opts o;
    struct hth_match *m;
    struct hth_match_opts bad;

    (void)state;
    order_start(&c, 16);
    o = c.look;
    o.done = must_not_end;
    assert_ok(hth_look_new(c.mate[0].match, &o, &look));
    o.line.round++;
    assert_err(HTH_E_BUSY, hth_look_new(c.mate[0].match, &o, &look));
    hth_look_cancel(c.mate[0].match->look);
    o.window_us = HTH_AVG_WINDOW_MAX_US + 1;
    assert_err(HTH_E_CONFIG, hth_look_new(c.mate[0].match, &o, &look));
    o.window_us = HTH_AVG_WINDOW_MAX_US;
    o.group_max = HTH_AVG_MEMBERS_MAX / 2 + 1;
    assert_err(HTH_E_CONFIG, hth_look_new(c.mate[0].match, &o, &look));
    o.group_max = 2;
    o.group_full = 2;
    o.weight = 2 * HTH_AVG_WEIGHT_MAX;
    assert_err(HTH_E_CONFIG, hth_look_new(c.mate[0].match, &o, &look));
    bad = c.match;
    assert_err(HTH_E_CONFIG,
               hth_match_new(c.mate[0].env, c.mate[0].rpc, hth_node_dht(c.mate[0].node), &bad, &m));
    crowd_stop(&c);
}

static uint32_t known_all(void *arg, struct hth_match_known *out, uint32_t max)
{
    struct mate *me = arg;
    uint32_t n = 0;

    for (uint32_t i = 0; i < me->crowd->count && n < max; i++)
        if (&me->crowd->mate[i] != me)
            out[n++] =
                (struct hth_match_known){me->crowd->mate[i].env->self, me->crowd->mate[i].addr};
    return n;
}

/* Where everybody knows everybody no board is needed: with a DHT that loses all it is told. */
static void told_straight(void **state)
{
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    struct crowd c;

    (void)state;
    world.dht.lost_put = 1;
    world.dht.partial = 1;
    crowd_start(&c, 18, 12, &world);
    c.due_known = true;
    c.look.known = known_all;
    for (uint32_t round = 0; round < 3; round++) {
        double rtts = crowd_round(&c, round);
        assert_true(rtts <= (round == 0 ? 8 : 4));
    }
    crowd_stop(&c);
}

static void send_tell(const struct mate *from, const struct mate *to, uint64_t round,
                      uint64_t schema)
{
    static uint8_t bytes[HTH_TELL_BYTES_MAX];
    static struct raw ignored;
    const struct hth_rpc_target target = {to->env->self, to->addr};
    struct hth_rpc_call_opts call = {
        .method = HTH_MATCH_METHOD_TELL, .body = {.payload = bytes}, .timeout_us = HTH_US_PER_S};
    struct hth_tell tell = {.line = from->crowd->look.line,
                            .schema = schema,
                            .record = (const uint8_t *)"no record",
                            .record_len = 9};

    tell.line.round = round;
    call.body.payload_len = hth_tell_pack(&tell, bytes);
    assert_ok(hth_rpc_call(from->rpc, &target, &call, on_raw, &ignored, NULL));
}

/* The round in which that one looks; 0: nothing was heard of it. */
static uint64_t heard(const struct mate *by, const struct mate *of, uint64_t schema)
{
    const struct hth_avg_line *line =
        hth_match_heard(by->match, &of->env->self, schema, NULL, NULL);

    return line != NULL ? line->round : 0;
}

/* One tells at most so many. Of what others tell the newest is remembered; and one who tells much
 * takes the place of nobody else's words. */
static void telling_is_bounded(void **state)
{
    const uint32_t others = HTH_AVG_HEARD_MAX / HTH_AVG_HEARD_EACH_MAX + 1;
    const uint64_t schemas = HTH_AVG_HEARD_EACH_MAX;
    struct hth_match_stats s;
    struct crowd c;

    (void)state;
    crowd_start(&c, 19, others + 1, NULL);
    c.look.window_us = 20 * HTH_US_PER_S;
    c.look.known = known_all;
    crowd_look(&c.mate[0]);
    hth_match_stats(c.mate[0].match, &s);
    assert_int_equal(s.tells_out, HTH_AVG_TELL_MAX);
    send_tell(&c.mate[2], &c.mate[0], 78, 1);
    hth_world_run_for(c.world, 100 * HTH_US_PER_MS);
    for (uint64_t schema = 1; schema <= HTH_AVG_HEARD_MAX + 1; schema++) {
        send_tell(&c.mate[1], &c.mate[0], 77, schema);
        hth_world_run_for(c.world, 5 * HTH_US_PER_MS);
    }
    hth_world_run_for(c.world, 200 * HTH_US_PER_MS);
    assert_int_equal(heard(&c.mate[0], &c.mate[2], 1), 78);
    for (uint64_t schema = 1; schema <= HTH_AVG_HEARD_MAX + 1; schema++)
        assert_int_equal(heard(&c.mate[0], &c.mate[1], schema),
                         schema > HTH_AVG_HEARD_MAX + 1 - schemas ? 77 : 0);

    for (uint32_t i = 1; i <= others; i++) {
        for (uint64_t schema = 1; schema <= schemas; schema++)
            send_tell(&c.mate[i], &c.mate[0], 79, schema);
        hth_world_run_for(c.world, 20 * HTH_US_PER_MS);
    }
    hth_world_run_for(c.world, 200 * HTH_US_PER_MS);
    assert_int_equal(heard(&c.mate[0], &c.mate[1], 1), 0);
    for (uint32_t i = 2; i <= others; i++)
        assert_int_equal(heard(&c.mate[0], &c.mate[i], schemas), 79);
    hth_look_cancel(c.mate[0].look);
    c.mate[0].look = NULL;
    crowd_stop(&c);
}

/* Eighty groups within the time that they are remembered: the newest are. */
static void begun_groups_are_bounded(void **state)
{
    struct hth_match_stats s;
    struct crowd c;

    (void)state;
    crowd_start(&c, 20, 2, NULL);
    c.due_known = true;
    for (uint32_t round = 0; round < 80; round++) {
        c.look.line.round = round;
        crowd_look_all(&c);
        assert_true(crowd_run(&c, HTH_US_PER_S));
    }
    hth_match_stats(c.mate[0].match, &s);
    assert_int_equal(s.begun, 80);
    assert_int_equal(s.begun_now, HTH_AVG_BEGUN_MAX);
    crowd_stop(&c);
}

/* How many of the mates come before that mark in the line. */
static uint32_t place_of(const struct crowd *c, const struct hth_hash *mark)
{
    uint8_t line[HTH_AVG_LINE_KEY_MAX];
    size_t len = hth_avg_line_key(&c->look.line, line);
    uint32_t before = 0;

    for (uint32_t i = 0; i < c->count; i++) {
        struct hth_hash m;

        hth_avg_mark(c->mate[i].env->crypto, line, len, &c->mate[i].env->self, &m);
        before += memcmp(&m, mark, sizeof(m)) < 0;
    }
    return before;
}

/* mate[2]'s declaration under another name; returns how many mates come before that one. */
static uint32_t make_note_as(struct crowd *c, uint64_t name, struct planted *p)
{
    struct hth_env *env = c->mate[2].env;
    struct hth_pubkey key = env->pubkey;
    struct hth_secret secret = env->secret;
    uint8_t line[HTH_AVG_LINE_KEY_MAX];
    size_t len = hth_avg_line_key(&c->look.line, line);
    struct hth_hash mark;
    struct hth_peer_id id;

    hth_store_u64le(env->secret.b, name);
    env->crypto->public_of(&env->secret, &env->pubkey);
    id = hth_peer_id_of(env->crypto, &env->pubkey);
    make_note(&c->mate[2], 0, p);
    env->secret = secret;
    env->pubkey = key;
    hth_avg_mark(env->crypto, line, len, &id, &mark);
    return place_of(c, &mark);
}

/* More lookers than a line may have: the table stays bounded, and those beyond hear FULL. */
static void too_many_lookers(void **state)
{
    struct crowd c;
    struct hth_match_stats s;
    struct hth_join_msg j;
    struct planted p;

    (void)state;
    order_start(&c, 17);
    crowd_look(&c.mate[0]);
    for (uint64_t name = 1000; garden_count < HTH_AVG_LOOKERS_MAX; name++)
        if (make_note_as(&c, name, &p) > 0)
            plant(&c.mate[2], &p);
    hth_world_run_for(c.world, HTH_US_PER_S);
    hth_match_stats(c.mate[0].match, &s);
    assert_int_equal(s.notes_refused, 1); /* its own is on the board too */
    j = join_of(&c.mate[1]);              /* one place is left for who comes without a note */
    assert_int_equal(ask(&c.mate[1], &c.mate[0], &j).answers, 0);
    j = join_of(&c.mate[2]);
    assert_int_equal(ask(&c.mate[2], &c.mate[0], &j).reason, HTH_AVG_FULL);
    hth_look_cancel(c.mate[0].look);
    c.mate[0].look = NULL;
    uproot();
    crowd_stop(&c);
}

/* Notes of so many of that mode who come after that many mates. */
static void plant_many(struct crowd *c, enum hth_avg_mode mode, uint32_t count, uint32_t after)
{
    static uint64_t name = 100000;
    struct planted p;

    planted_mode = mode;
    for (uint32_t done = 0; done < count; name++) {
        if (make_note_as(c, name, &p) != after)
            continue;
        plant(&c->mate[2], &p);
        done++;
    }
    planted_mode = HTH_AVG_TRAINER;
}

/* Helpers cost nothing to make. However many declare, those that come first in the order are kept,
 * and trainers find a place. */
static void too_many_helpers(void **state)
{
    uint8_t bytes[HTH_JOIN_BYTES_MAX];
    struct crowd c;
    struct hth_join_msg helper, trainer;
    const struct raw *held;
    struct planted p;

    (void)state;
    order_start(&c, 18);
    crowd_look(&c.mate[0]);
    plant_many(&c, HTH_AVG_HELPER, HTH_AVG_HELPERS_MAX + 4, 2); /* between mates 1 and 2 */
    hth_world_run_for(c.world, HTH_US_PER_S);
    assert_int_equal(c.mate[0].look->count, HTH_AVG_HELPERS_MAX);
    helper = join_of(&c.mate[2]);
    helper.self.mode = HTH_AVG_HELPER;
    helper.self.weight = 0;
    assert_int_equal(ask(&c.mate[2], &c.mate[0], &helper).reason, HTH_AVG_FULL);
    trainer = join_of(&c.mate[2]);
    assert_int_equal(ask(&c.mate[2], &c.mate[0], &trainer).answers, 0); /* held */
    helper.self.addr = c.mate[1].addr;
    held = send_bytes(&c.mate[1], &c.mate[0], bytes, hth_join_msg_pack(&helper, bytes));
    hth_world_run_for(c.world, 50 * HTH_US_PER_MS);
    assert_int_equal(held->answers, 0); /* one of the flood made room for it */
    /* A flood that does come before it takes its place, which it is told. */
    plant_many(&c, HTH_AVG_HELPER, HTH_AVG_HELPERS_MAX, 1);
    hth_world_run_for(c.world, 140 * HTH_US_PER_MS);
    assert_int_equal(held->reason, HTH_AVG_FULL);
    /* Nor does who came as a trainer find room as one. */
    assert_int_equal(c.mate[0].look->count, HTH_AVG_HELPERS_MAX + 1);
    planted_mode = HTH_AVG_HELPER;
    make_note(&c.mate[2], 0, &p);
    planted_mode = HTH_AVG_TRAINER;
    plant(&c.mate[2], &p);
    hth_world_run_for(c.world, 140 * HTH_US_PER_MS);
    assert_int_equal(c.mate[0].look->count, HTH_AVG_HELPERS_MAX);
    hth_look_cancel(c.mate[0].look);
    c.mate[0].look = NULL;
    uproot();
    crowd_stop(&c);
}

/* Three join as helpers and declare then that they are trainers: what they joined as is what counts
 * in the group, and two of them are in it. */
static void helpers_that_say_trainers(void **state)
{
    uint8_t bytes[HTH_JOIN_BYTES_MAX];
    struct crowd c;
    struct mate *leader = &c.mate[0], *other = &c.mate[1];
    struct hth_hash mark;
    struct planted p;

    (void)state;
    crowd_start(&c, 19, 5, NULL);
    c.due_known = true;
    do {
        size_t len;

        c.look.line.round++;
        len = hth_avg_line_key(&c.look.line, bytes);
        hth_avg_mark(leader->env->crypto, bytes, len, &leader->env->self, &mark);
    } while (place_of(&c, &mark) > 0);
    crowd_look(leader);
    for (uint32_t i = 2; i < 5; i++) {
        struct hth_join_msg j = join_of(&c.mate[i]);

        j.self.mode = HTH_AVG_HELPER;
        j.self.weight = 0;
        send_bytes(&c.mate[i], leader, bytes, hth_join_msg_pack(&j, bytes));
    }
    hth_world_run_for(c.world, 100 * HTH_US_PER_MS);
    assert_int_equal(leader->look->count, 3);
    for (uint32_t i = 2; i < 5; i++) {
        make_note(&c.mate[i], 0, &p);
        plant(&c.mate[i], &p);
    }
    hth_world_run_for(c.world, 100 * HTH_US_PER_MS);
    for (uint32_t i = 0; i < leader->look->count; i++)
        assert_true(leader->look->lookers[i]->declared);
    crowd_look(other);
    assert_true(crowd_run(&c, 2 * HTH_US_PER_S));
    assert_int_equal(leader->result.err, HTH_OK);
    assert_int_equal(leader->group->count, 4);
    assert_int_equal(other->result.err, HTH_OK);
    uproot();
    crowd_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(redirected),
        cmocka_unit_test(draining),
        cmocka_unit_test(hostile_notes),
        cmocka_unit_test(another_version),
        cmocka_unit_test(ghost_leader),
        cmocka_unit_test(lying_leader),
        cmocka_unit_test(flapping_leader),
        cmocka_unit_test(limits),
        cmocka_unit_test(told_straight),
        cmocka_unit_test(telling_is_bounded),
        cmocka_unit_test(begun_groups_are_bounded),
        cmocka_unit_test(too_many_lookers),
        cmocka_unit_test(too_many_helpers),
        cmocka_unit_test(helpers_that_say_trainers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
