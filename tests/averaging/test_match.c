/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_match.c: groups come about in the simulated world: quickly, all alike, and cut where a line
 * is too full; refusals by name, peers that lie, and the limits of matchmaking.
 */
#include "averaging/match_int.h"
#include "averaging/pit.h"
#include "core/mem.h"
#include "dht/record.h"
#include "support/test.h"

#define SETTLE_US (3 * HTH_US_PER_S)
#define LONG_US   (20 * HTH_US_PER_S)
#define FLOATS    16

static void line_of(struct pit *p, uint64_t seed, uint32_t peers,
                    const struct hth_world_opts *world)
{
    pit_init(p, seed, peers, FLOATS, world);
    p->shape = (struct hth_avg_shape){.dims = 1, .size = {peers}};
    p->has_cells = true;
}

static struct hth_averager_stats stats_of(const struct pit_peer *q)
{
    struct hth_averager_stats s;

    hth_averager_stats(&q->avg.averager, &s);
    return s;
}

static struct hth_match_stats match_of(const struct pit_peer *q)
{
    struct hth_match_stats s;

    hth_moshpit_match_stats(&q->avg.averager, &s);
    return s;
}

/* All that are in a group with others are in the same one, and there are so many groups. */
static uint32_t groups_of(const struct pit *p)
{
    uint32_t groups = 0;

    for (uint32_t i = 0; i < p->peers; i++) {
        struct hth_averager_stats a = stats_of(&p->peer[i]);
        uint32_t members = 0;
        bool first = true;

        if (p->peer[i].result.err != HTH_OK)
            continue;
        for (uint32_t j = 0; j < p->peers; j++) {
            struct hth_averager_stats b = stats_of(&p->peer[j]);
            bool same = p->peer[j].result.err == HTH_OK &&
                        memcmp(&a.last.group, &b.last.group, sizeof(a.last.group)) == 0;

            members += same;
            first &= !same || j >= i;
        }
        assert_int_equal(a.last.members, members);
        groups += first;
    }
    return groups;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Strangers need three round trips for TCP, TLS and HELLO, and one for each JOIN; a BEGIN half of
 * one. All are known, so that no key of the DHT is needed, and one peer leads. */
static void peers_meet_in_few_round_trips(void **state)
{
    static const uint32_t counts[] = {2, 3, 5, 8, 16, 33};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(counts); k++) {
        struct hth_hash last = {{0}}, group;
        struct pit p;

        line_of(&p, 40 + k, counts[k], NULL);
        pit_start(&p, SETTLE_US);
        for (int round = 0; round < 4; round++) {
            uint64_t led = 0;

            pit_offer_all(&p, 1);
            assert_true(pit_run(&p, LONG_US));
            assert_int_equal(groups_of(&p), 1);
            group = stats_of(&p.peer[0]).last.group;
            assert_memory_not_equal(&last, &group, sizeof(last));
            last = group;
            for (uint32_t i = 0; i < p.peers; i++) {
                assert_int_equal(p.peer[i].result.round.members, counts[k]);
                assert_true(p.peer[i].result.round.wait_us <= (round == 0 ? 7 : 4) * PIT_RTT_US);
                led += match_of(&p.peer[i]).led;
            }
            assert_int_equal(led, round + 1);
        }
        pit_stop(&p);
    }
}

/* Helpers push nobody out who brings values, and are no more than those; nor do clients push out
 * trainers. Of one trainer and more clients than a group may have some hear FULL. */
static void modes_have_their_places(void **state)
{
    static const struct {
        uint32_t count[3], in[3]; /* by mode */
    } cases[] = {{{6, 2, 4}, {6, 2, 4}},
                 {{2, 2, 0}, {2, 2, 0}},
                 {{2, 9, 1}, {2, 3, 1}},
                 {{1, 0, HTH_AVG_MEMBERS_MAX / 2 + 2}, {1, 0, HTH_AVG_MEMBERS_MAX / 2 - 1}},
                 {{0, 0, 2}, {0, 0, 0}}};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        const uint32_t *n = cases[k].count, *in = cases[k].in, all = n[0] + n[1] + n[2];
        uint32_t got[3] = {0};
        struct pit p;

        line_of(&p, 80 + k, all, NULL);
        for (uint32_t i = 0; i < all; i++) {
            p.peer[i].mode = i < n[0]          ? HTH_AVG_TRAINER
                             : i < n[0] + n[1] ? HTH_AVG_HELPER
                                               : HTH_AVG_CLIENT;
            p.peer[i].weight = p.peer[i].mode != HTH_AVG_HELPER;
        }
        pit_start(&p, SETTLE_US);
        pit_offer_all(&p, 1);
        assert_true(pit_run(&p, LONG_US));
        for (uint32_t i = 0; i < all; i++) {
            const struct hth_avg_result *r = &p.peer[i].result;

            got[p.peer[i].mode] += r->err == HTH_OK;
            assert_true(r->err != HTH_OK || r->round.members == in[0] + in[1] + in[2]);
            if (n[0] == 1 && r->err != HTH_OK)
                assert_int_equal(r->reason, HTH_AVG_FULL);
            if (n[0] == 0)
                assert_int_equal(r->reason, HTH_AVG_ALONE);
        }
        assert_memory_equal(got, in, sizeof(got));
        pit_stop(&p);
    }
}

/* Peers that are due and do not come are waited for as long as the window; fewer than group_min
 * end without a group then. */
static void absent_peers_are_awaited(void **state)
{
    (void)state;
    for (uint32_t least = 2; least <= 5; least += 3) {
        struct pit p;

        line_of(&p, 90, 5, NULL);
        p.opts.group_min = least;
        pit_start(&p, SETTLE_US);
        for (uint32_t i = 0; i < 4; i++)
            pit_offer(&p.peer[i], 1);
        assert_true(pit_run(&p, LONG_US));
        for (uint32_t i = 0; i < 4; i++) {
            const struct hth_avg_result *r = &p.peer[i].result;

            assert_in_range(r->round.wait_us, p.opts.window_us - 8 * PIT_RTT_US,
                            p.opts.window_us + HTH_MATCH_SILENCE_US);
            if (least == 2)
                assert_int_equal(r->round.members, 4);
            else
                assert_true(r->reason == HTH_AVG_TOO_FEW || r->reason == HTH_AVG_NOT_LOOKING);
        }
        pit_stop(&p);
    }
}

/* ---- raw messages ---------------------------------------------------------------------------- */

struct raw {
    uint32_t answers, members;
    enum hth_err err;
    enum hth_avg_reason reason;
    struct hth_peer_id other;
};

static struct raw raw;

static void on_raw(void *arg, const struct hth_rpc_result *r)
{
    struct hth_join_reply reply;

    (void)arg;
    raw.answers++;
    raw.err = r->err;
    if (r->err != HTH_OK || r->payload_len == 0)
        return;
    assert_ok(hth_join_reply_open(r->payload, r->payload_len, &reply));
    raw.reason = reply.reason;
    raw.members = reply.count;
    if (reply.count > 0)
        raw.other = reply.members[0].id;
    hth_join_reply_close(&reply);
}

static void send_raw(const struct pit_peer *from, const struct pit_peer *to, uint16_t method,
                     const void *data, size_t len)
{
    const struct hth_rpc_target target = {to->env->self, to->addr};
    const struct hth_rpc_call_opts call = {.method = method,
                                           .body = {.payload = data, .payload_len = len},
                                           .timeout_us = HTH_US_PER_S};

    raw = (struct raw){0};
    assert_ok(hth_rpc_call(from->rpc, &target, &call, on_raw, NULL, NULL));
}

static struct hth_join_msg join_of(const struct pit_peer *q)
{
    struct hth_join_msg join = {.schema = q->pit->roster.schema,
                                .left_ms = 1000,
                                .version = HTH_MATCH_VERSION,
                                .wall_us = hth_wall_us(q->env)};

    join.line = (struct hth_avg_line){
        .run = hth_network_tag(q->env->crypto, "run"), .shape = q->pit->shape, .cell = q->cell};
    join.self = (struct hth_avg_member){.mode = HTH_AVG_TRAINER, .addr = q->addr, .weight = 1};
    return join;
}

static enum hth_avg_reason ask(const struct pit_peer *from, const struct pit_peer *to,
                               const struct hth_join_msg *join)
{
    uint8_t bytes[HTH_JOIN_BYTES_MAX];

    send_raw(from, to, HTH_MATCH_METHOD_JOIN, bytes, hth_join_msg_pack(join, bytes));
    hth_world_run_for(from->pit->world, 5 * PIT_RTT_US);
    return raw.reason;
}

/* The peers in the order of their line. */
static void in_order(const struct pit *p, struct pit_peer **out)
{
    struct hth_avg_line line = join_of(&p->peer[0]).line;
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    size_t len = hth_avg_line_key(&line, key);
    struct hth_hash mark[8];

    for (uint32_t i = 0; i < p->peers; i++) {
        struct hth_hash m;
        uint32_t at = i;

        hth_avg_mark(p->peer[i].env->crypto, key, len, &p->peer[i].env->self, &m);
        for (; at > 0 && memcmp(&m, &mark[at - 1], sizeof(m)) < 0; at--) {
            mark[at] = mark[at - 1];
            out[at] = out[at - 1];
        }
        mark[at] = m;
        out[at] = &p->peer[i];
    }
}

/* Three peers in one line of two, o[0] before o[1] before o[2]. */
static void three(struct pit *p, uint64_t seed, struct pit_peer *o[3])
{
    line_of(p, seed, 3, NULL);
    p->shape = (struct hth_avg_shape){.dims = 2, .size = {3, 2}};
    for (uint32_t i = 0; i < 3; i++)
        p->peer[i].rank = 2 * i;
    pit_start(p, SETTLE_US);
    in_order(p, o);
}

static void refusals_have_names(void **state)
{
    static const struct {
        size_t at; /* of the number that is one higher */
        enum hth_avg_reason reason;
    } cases[] = {{offsetof(struct hth_join_msg, line.shape.size[0]), HTH_AVG_OTHER_SHAPE},
                 {offsetof(struct hth_join_msg, line.round), HTH_AVG_OTHER_ROUND},
                 {offsetof(struct hth_join_msg, line.cell.at[1]), HTH_AVG_OTHER_LINE},
                 {offsetof(struct hth_join_msg, line.run), HTH_AVG_OTHER_LINE},
                 {offsetof(struct hth_join_msg, schema), HTH_AVG_OTHER_SCHEMA},
                 {offsetof(struct hth_join_msg, version), HTH_AVG_OTHER_VERSION},
                 {offsetof(struct hth_join_msg, self.mode), HTH_AVG_RANGE}};
    uint8_t bytes[HTH_JOIN_BYTES_MAX + 1] = {0};
    struct pit_peer *o[3];
    struct hth_join_msg j;
    struct pit p;

    (void)state;
    three(&p, 11, o);
    j = join_of(o[1]);
    assert_int_equal(ask(o[1], o[0], &j), HTH_AVG_NOT_LOOKING);
    pit_offer(o[0], 1);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        j = join_of(o[1]);
        ((uint8_t *)&j)[cases[i].at]++;
        assert_int_equal(ask(o[1], o[0], &j), cases[i].reason);
    }
    send_raw(o[1], o[0], HTH_MATCH_METHOD_JOIN, "\xff", 1);
    hth_world_run_for(p.world, 5 * PIT_RTT_US);
    assert_int_equal(raw.reason, HTH_AVG_MALFORMED);
    send_raw(o[1], o[0], HTH_MATCH_METHOD_JOIN, bytes, sizeof(bytes)); /* longer than any JOIN */
    hth_world_run_for(p.world, 5 * PIT_RTT_US);
    assert_int_equal(raw.reason, HTH_AVG_RANGE);
    pit_stop(&p);
}

/* Requests go from larger to smaller peers; a follower names the peer that it follows. */
static void only_the_first_leads(void **state)
{
    struct pit_peer *o[3];
    struct hth_join_msg j;
    struct pit p;

    (void)state;
    three(&p, 12, o);
    pit_offer(o[0], 1);
    pit_offer(o[1], 1);
    hth_world_run_for(p.world, 10 * PIT_RTT_US);
    assert_int_equal(match_of(o[0]).followers_now, 1);
    j = join_of(o[0]);
    j.follows = true;
    assert_int_equal(ask(o[0], o[1], &j), HTH_AVG_NOT_SMALLER);
    j = join_of(o[2]);
    j.follows = true;
    assert_int_equal(ask(o[2], o[1], &j), HTH_AVG_NOT_LEADER);
    assert_memory_equal(&raw.other, &o[0]->env->self, sizeof(raw.other));
    send_raw(o[2], o[1], HTH_MATCH_METHOD_BEGIN, "", 0); /* it follows another */
    hth_world_run_for(p.world, 5 * PIT_RTT_US);
    assert_int_equal(raw.err, HTH_E_MALFORMED);
    j = join_of(o[2]);
    assert_int_equal(ask(o[2], o[0], &j), HTH_AVG_WAIT); /* only says that it looks */
    assert_memory_equal(&raw.other, &o[0]->env->self, sizeof(raw.other));
    assert_int_equal(match_of(o[0]).followers_now, 1);
    pit_stop(&p);
}

/* ---- peers that lie -------------------------------------------------------------------------- */

/* The first of three does this instead of leading. */
static struct liar {
    enum { MUTE, REFUSES, REDIRECTS, MISQUOTES, FLOODS } how;
    enum { NOTHING, WEIGHT, BANDWIDTH, NONCE, LIES } about;
    struct pit_peer *self;
    struct hth_avg_member member[12];
    uint32_t count;
} liar;

static void begin_lying(void)
{
    struct hth_join_reply reply = {.members = liar.member, .count = liar.count};
    struct hth_avg_member *lied = &liar.member[1];

    for (uint32_t i = 0; liar.how == FLOODS && i < 8; i++)
        liar.member[reply.count++] = (struct hth_avg_member){.id = {{(uint8_t)(i + 1)}},
                                                             .addr = liar.self->addr,
                                                             .mode = HTH_AVG_HELPER,
                                                             .bandwidth = 1e9};
    lied->weight += liar.about == WEIGHT;
    lied->bandwidth += liar.about == BANDWIDTH;
    lied->nonce += liar.about == NONCE;
    for (uint32_t i = 1; i < liar.count; i++) {
        const struct pit_peer *to = &liar.self->pit->peer[0];
        size_t len;
        uint8_t *bytes = hth_join_reply_pack(&reply, &len);

        while (!hth_peer_id_eq(&to->env->self, &liar.member[i].id))
            to++;
        send_raw(liar.self, to, HTH_MATCH_METHOD_BEGIN, bytes, len);
        hth_free(bytes);
    }
    liar.how = REFUSES;
}

static void on_join_lying(void *arg, struct hth_rpc_request *req)
{
    struct hth_avg_member other = liar.member[0];
    struct hth_join_reply reply = {.reason = HTH_AVG_WAIT, .members = &other, .count = 1};
    struct hth_rpc_body body = {.payload = NULL};
    struct hth_join_msg join;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    uint8_t *bytes;

    (void)arg;
    if (liar.how == MUTE) {
        hth_rpc_ignore(req);
        return;
    }
    assert_ok(hth_join_msg_open(payload, len, &join));
    join.self.id = *hth_rpc_peer(req);
    if (join.follows && liar.how >= MISQUOTES)
        liar.member[liar.count++] = join.self;
    if (liar.how == REDIRECTS) {
        reply.reason = HTH_AVG_NOT_LEADER;
        other.id.b[0]++; /* a peer that does not exist */
    } else if (liar.how == REFUSES) {
        reply.reason = HTH_AVG_NOT_LOOKING;
        reply.count = 0;
    }
    body.payload = bytes = hth_join_reply_pack(&reply, &body.payload_len);
    hth_rpc_reply(req, &body);
    hth_free(bytes);
    if (liar.count == 3 && liar.how >= MISQUOTES)
        begin_lying();
}

/* The first of three says again and again that it looks, and lies to those that follow it. */
static void lie(struct pit *p, uint64_t seed, const struct liar *lies)
{
    uint8_t bytes[HTH_JOIN_BYTES_MAX];
    struct pit_peer *o[3];
    struct hth_join_msg j;

    three(p, seed, o);
    liar = *lies;
    liar.self = o[0];
    j = join_of(o[0]);
    liar.count = 1;
    liar.member[0] = j.self;
    liar.member[0].id = o[0]->env->self;
    hth_rpc_serve(o[0]->rpc, HTH_MATCH_METHOD_JOIN, on_join_lying, NULL);
    pit_offer(o[1], 1);
    pit_offer(o[2], 1);
    for (uint32_t i = 0; i < 300 && !pit_run(p, 10 * HTH_US_PER_MS); i++) {
        j.wall_us = hth_wall_us(o[0]->env);
        for (uint32_t k = 1; k < 3; k++)
            send_raw(o[0], o[k], HTH_MATCH_METHOD_JOIN, bytes, hth_join_msg_pack(&j, bytes));
    }
    assert_true(pit_run(p, LONG_US));
    hth_rpc_serve(o[0]->rpc, HTH_MATCH_METHOD_JOIN, NULL, NULL);
}

/* Whatever the first of a line does, the others meet within their window. A list that misquotes a
 * member, or has more helpers than members with values, is followed by none that it misquotes. */
static void liars_lead_nobody(void **state)
{
    (void)state;
    for (int how = MUTE; how <= FLOODS; how++) {
        struct pit p;

        if (how == MISQUOTES)
            continue;
        lie(&p, 30 + (uint64_t)how, &(struct liar){.how = how});
        for (uint32_t i = 0; i < 3; i++) {
            const struct pit_peer *q = &p.peer[i];

            if (q == liar.self)
                continue;
            assert_ok(q->result.err);
            assert_int_equal(q->result.round.members, 2); /* without the liar */
            assert_true(q->result.round.wait_us <= 2500 * HTH_US_PER_MS);
        }
        pit_stop(&p);
    }
    for (int about = WEIGHT; about < LIES; about++) {
        struct hth_peer_id lied;
        struct pit p;

        lie(&p, 40, &(struct liar){.how = MISQUOTES, .about = about});
        lied = liar.member[1].id;
        for (uint32_t i = 0; i < 3; i++)
            if (hth_peer_id_eq(&p.peer[i].env->self, &lied))
                assert_true(p.peer[i].result.err != HTH_OK);
        pit_stop(&p);
    }
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void must_not_end(void *arg, const struct hth_look_result *r)
{
    (void)arg;
    (void)r;
    fail_msg("a look ended that was canceled");
}

static void limits_are_kept(void **state)
{
    const struct hth_look_opts good = {.line = {.run = 7, .shape = {.dims = 1, .size = {4}}},
                                       .weight = 1,
                                       .group_min = 2,
                                       .group_full = 4,
                                       .window_us = HTH_AVG_WINDOW_MAX_US,
                                       .done = must_not_end};
    struct hth_match_opts opts = {.arg = NULL};
    struct hth_avg_member m = {.mode = HTH_AVG_HELPER};
    struct hth_match *match;
    struct hth_look *look;
    struct pit_peer *q;
    struct pit p;

    (void)state;
    line_of(&p, 16, 2, NULL);
    pit_start(&p, SETTLE_US);
    q = &p.peer[0];
    opts.addr = q->addr;
    match = hth_match_new(q->env, q->rpc, &opts);
    look = hth_look_new(match, &good);
    for (uint32_t i = 0; i <= HTH_AVG_LOOKERS_MAX; i++) {
        hth_store_u64le(m.id.b, i + 1);
        if (i == HTH_AVG_HELPERS_MAX) {
            assert_null(hth_look_hear(look, &m));
            m.mode = HTH_AVG_CLIENT;
        }
        assert_int_equal(hth_look_hear(look, &m) != NULL, i < HTH_AVG_LOOKERS_MAX);
    }
    hth_look_cancel(look);
    hth_match_free(match);
    pit_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_meet_in_few_round_trips),
        cmocka_unit_test(modes_have_their_places),
        cmocka_unit_test(absent_peers_are_awaited),
        cmocka_unit_test(refusals_have_names),
        cmocka_unit_test(only_the_first_leads),
        cmocka_unit_test(liars_lead_nobody),
        cmocka_unit_test(limits_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
