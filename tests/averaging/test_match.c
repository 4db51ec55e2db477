/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_match.c: groups come about in the simulated world: quickly, all alike, and cut where a line
 * is too full; refusals by name, peers that lie, and the limits of matchmaking.
 */
#include "averaging/pit.h"
#include "core/mem.h"
#include "support/suite.h"

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

static struct hth_match_stats match_of(const struct pit_peer *q)
{
    struct hth_match_stats s;

    hth_match_stats(q->avg.match, &s);
    return s;
}

/* All that are in a group with others are in the same one, and there are so many groups. */
static uint32_t groups_of(const struct pit *p)
{
    uint32_t groups = 0;

    for (uint32_t i = 0; i < p->peers; i++) {
        const struct hth_avg_result *a = &p->peer[i].result;
        uint32_t members = 0;
        bool first = true;

        if (a->err != HTH_OK)
            continue;
        for (uint32_t j = 0; j < p->peers; j++) {
            const struct hth_avg_result *b = &p->peer[j].result;
            bool same = b->err == HTH_OK &&
                        memcmp(&a->round.group, &b->round.group, sizeof(a->round.group)) == 0;

            members += same;
            first &= !same || j >= i;
        }
        assert_int_equal(a->round.members, members);
        groups += first;
    }
    return groups;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Strangers need three round trips for TCP, TLS and HELLO, and one for each JOIN; a BEGIN half of
 * one. All are known, so that no key of the DHT is needed, and one peer leads. */
TEST(peers_meet_in_few_round_trips)
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
            group = p.peer[0].result.round.group;
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
TEST(modes_have_their_places)
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
TEST(absent_peers_are_awaited)
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
                            p.opts.window_us + 10 * PIT_RTT_US);
            if (least == 2)
                assert_int_equal(r->round.members, 4);
            else
                assert_int_equal(r->reason, HTH_AVG_TOO_FEW);
        }
        pit_stop(&p);
    }
}

/* ---- raw messages ---------------------------------------------------------------------------- */

static struct {
    uint32_t answers;
    enum hth_avg_reason reason;
} raw;

static void on_raw(void *arg, const struct hth_rpc_result *r)
{
    struct hth_join_reply reply;

    (void)arg;
    if (r->err != HTH_OK)
        return;
    raw.answers++;
    if (r->payload_len == 0)
        return;
    assert_ok(hth_join_reply_read(r->payload, r->payload_len, &reply));
    raw.reason = reply.reason;
}

static void send_raw(const struct pit_peer *from, const struct pit_peer *to, const void *data,
                     size_t len)
{
    const struct hth_rpc_target target = {to->env->self, to->addr};
    const struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_JOIN,
                                           .body = {.payload = data, .payload_len = len},
                                           .timeout_us = 3 * HTH_US_PER_S}; /* a window of one */

    raw.answers = 0;
    assert_ok(hth_rpc_call(from->rpc, &target, &call, on_raw, NULL, NULL));
    hth_world_run_for(from->pit->world, 5 * PIT_RTT_US);
}

static struct hth_join_msg join_of(const struct pit_peer *q)
{
    struct hth_join_msg join = {.schema = q->pit->roster.schema};

    join.line = (struct hth_avg_line){.shape = q->pit->shape, .cell = q->cell};
    join.self = (struct hth_avg_member){.mode = HTH_AVG_TRAINER, .addr = q->addr, .weight = 1};
    return join;
}

static void ask(const struct pit_peer *from, const struct pit_peer *to,
                const struct hth_join_msg *join)
{
    uint8_t bytes[HTH_JOIN_BYTES_MAX];

    send_raw(from, to, bytes, hth_join_write(join, bytes));
}

/* The peers in the order in which they are hosts of their line. */
static void in_order(const struct pit *p, struct pit_peer **out)
{
    struct hth_join_msg join = join_of(&p->peer[0]);
    uint8_t bytes[HTH_AVG_LINE_KEY_MAX];
    uint64_t key = hth_hash64(bytes, hth_avg_line_key(&join.line, bytes), join.schema), place[8];

    for (uint32_t i = 0; i < p->peers; i++) {
        const struct hth_peer_id *id = &p->peer[i].env->self;
        uint64_t own = hth_hash64(id->b, sizeof(id->b), key);
        uint32_t at = i;

        for (; at > 0 && own < place[at - 1]; at--) {
            place[at] = place[at - 1];
            out[at] = out[at - 1];
        }
        place[at] = own;
        out[at] = &p->peer[i];
    }
}

/* A host that does not look refuses by name, and takes who is right. */
TEST(refusals_have_names)
{
    uint8_t bytes[HTH_JOIN_BYTES_MAX + 1] = {0};
    const struct pit_peer *from, *to;
    struct hth_join_msg j;
    size_t size;
    struct pit p;

    (void)state;
    line_of(&p, 11, 3, NULL);
    pit_start(&p, SETTLE_US);
    from = &p.peer[1];
    to = &p.peer[0];
    send_raw(from, to, "", 0);
    assert_int_equal(raw.answers, 1);
    j = join_of(from);
    size = hth_join_write(&j, bytes);
    bytes[0]++;
    send_raw(from, to, bytes, size);
    assert_int_equal(raw.reason, HTH_AVG_OTHER_VERSION);
    j = join_of(from);
    j.self.mode++;
    ask(from, to, &j);
    assert_int_equal(raw.reason, HTH_AVG_RANGE);
    bytes[0]--;
    send_raw(from, to, bytes, 1);
    assert_int_equal(raw.reason, HTH_AVG_MALFORMED);
    send_raw(from, to, bytes, size + 1);
    assert_int_equal(raw.answers, 1);
    assert_int_equal(raw.reason, HTH_AVG_MALFORMED);
    j = join_of(from);
    ask(from, to, &j);
    assert_int_equal(raw.answers, 0);
    assert_int_equal(match_of(to).followers_now, 1);
    ask(from, to, &j); /* in place of the first */
    assert_int_equal(match_of(to).followers_now, 1);
    hth_world_run_for(p.world, HTH_US_PER_S);
    assert_int_equal(match_of(to).followers_now, 0);
    assert_int_equal(raw.reason, HTH_AVG_ALONE);
    pit_stop(&p);
}

/* The table of a host has room for so many. */
TEST(tables_are_bounded)
{
    enum { CALLERS = HTH_AVG_LOOKERS_MAX + 1 };
    static struct hth_rpc *rpc[CALLERS];
    uint8_t bytes[HTH_JOIN_BYTES_MAX];
    const struct pit_peer *to;
    struct hth_rpc_target target;
    struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_JOIN, .timeout_us = LONG_US};
    struct hth_rpc_opts o = HTH_RPC_OPTS_INIT;
    struct hth_join_msg j;
    struct pit p;

    (void)state;
    line_of(&p, 17, 2, NULL);
    pit_start(&p, SETTLE_US);
    to = &p.peer[0];
    target = (struct hth_rpc_target){to->env->self, to->addr};
    j = join_of(to);
    call.body = (struct hth_rpc_body){.payload = bytes, .payload_len = hth_join_write(&j, bytes)};
    o.network = "run";
    raw.answers = 0;
    for (uint32_t i = 0; i < CALLERS; i++) {
        struct hth_node *node = hth_world_node(p.world, "caller", NULL);

        assert_ok(hth_rpc_new(hth_node_env(node), &o, &rpc[i]));
        assert_ok(hth_rpc_call(rpc[i], &target, &call, on_raw, NULL, NULL));
    }
    hth_world_run_for(p.world, 20 * PIT_RTT_US);
    assert_int_equal(raw.answers, 1);
    assert_int_equal(raw.reason, HTH_AVG_FULL);
    assert_int_equal(match_of(to).followers_now, HTH_AVG_LOOKERS_MAX);
    for (uint32_t i = 0; i < CALLERS; i++)
        hth_rpc_free(rpc[i]);
    pit_stop(&p);
}

/* ---- peers that lie -------------------------------------------------------------------------- */

/* The first of three does this instead of being the host of the others. */
static struct liar {
    enum { MUTE, REFUSES, MISQUOTES, FLOODS } how;
    enum { NOTHING, WEIGHT, BANDWIDTH, NONCE, LIES } about; /* the first that joins */
    struct hth_join_reply list;
    struct hth_rpc_request *req[2];
} liar;

/* Answers both with a list of them, the liar and eight helpers. */
static void begin_lying(const struct pit_peer *self)
{
    struct hth_avg_member *m = liar.list.member;
    uint8_t bytes[HTH_JOIN_REPLY_BYTES_MAX];
    struct hth_rpc_body body = {.payload = bytes};

    m[2] = join_of(self).self;
    m[2].id = self->env->self;
    liar.list.count = 3;
    for (uint32_t i = 0; liar.how == FLOODS && i < 8; i++)
        m[liar.list.count++] = (struct hth_avg_member){
            .id = {{(uint8_t)(i + 1)}}, .addr = self->addr, .mode = HTH_AVG_HELPER};
    m[0].weight += liar.about == WEIGHT;
    m[0].bandwidth += liar.about == BANDWIDTH;
    m[0].nonce += liar.about == NONCE;
    body.payload_len = hth_join_reply_write(&liar.list, bytes);
    for (uint32_t i = 0; i < 2; i++)
        hth_rpc_reply(liar.req[i], &body);
}

static void on_join_lying(void *arg, struct hth_rpc_request *req)
{
    const struct pit_peer *self = arg;
    struct hth_join_msg join;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);

    if (liar.how == MUTE || liar.list.count > 1) {
        hth_rpc_ignore(req);
        return;
    }
    if (liar.how == REFUSES || len == 0) {
        hth_rpc_reply(req, NULL); /* which has no members */
        return;
    }
    assert_ok(hth_join_read(payload, len, &join));
    join.self.id = *hth_rpc_peer(req);
    liar.list.member[liar.list.count] = join.self;
    liar.req[liar.list.count++] = req;
    if (liar.list.count == 2)
        begin_lying(self);
}

static void lie(struct pit *p, const struct liar *lies, struct pit_peer *o[3])
{
    line_of(p, 30 + (uint64_t)lies->how, 3, NULL);
    pit_start(p, SETTLE_US);
    in_order(p, o);
    liar = *lies;
    hth_rpc_serve(o[0]->rpc, HTH_MATCH_METHOD_JOIN, on_join_lying, o[0]);
}

static void offer_beside(struct pit *p, struct pit_peer *o[3])
{
    hth_world_run_for(p->world, HTH_US_PER_S);
    pit_offer(o[1], 1);
    pit_offer(o[2], 1);
    assert_true(pit_run(p, LONG_US));
}

/* A host that is mute, refuses, or sends a list of helpers costs the others a round at most. */
TEST(liars_cost_a_round)
{
    static const int ways[] = {MUTE, REFUSES, FLOODS};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(ways); k++) {
        struct pit_peer *o[3];
        struct pit p;

        lie(&p, &(struct liar){.how = ways[k]}, o);
        offer_beside(&p, o);
        if (o[1]->result.err != HTH_OK)
            offer_beside(&p, o);
        for (uint32_t i = 1; i < 3; i++) {
            assert_ok(o[i]->result.err);
            assert_int_equal(o[i]->result.round.members, 2);
        }
        hth_rpc_serve(o[0]->rpc, HTH_MATCH_METHOD_JOIN, NULL, NULL);
        pit_stop(&p);
    }
}

/* A list that misquotes a member is not followed by it. */
TEST(misquoted_members_take_no_part)
{
    (void)state;
    for (int about = NOTHING; about < LIES; about++) {
        struct pit_peer *o[3];
        struct pit p;

        lie(&p, &(struct liar){.how = MISQUOTES, .about = about}, o);
        offer_beside(&p, o);
        for (uint32_t i = 1; i < 3; i++)
            if (hth_peer_id_eq(&o[i]->env->self, &liar.list.member[0].id))
                assert_true((o[i]->result.err == HTH_OK) == (about == NOTHING));
        hth_rpc_serve(o[0]->rpc, HTH_MATCH_METHOD_JOIN, NULL, NULL);
        pit_stop(&p);
    }
}
