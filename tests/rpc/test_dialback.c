/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dialback.c: a peer dials back where it may: the address that the call comes from, or one
 * that the caller announces; and never often, and never further into its own network.
 */
#include "core/map.h"
#include "core/mem.h"
#include "rpc/dialback.h"
#include "rpc/duo.h"
#include "support/suite.h"

#define S HTH_US_PER_S

static struct hth_dialback *served;
static struct hth_addr announced; /* what the caller is known to announce */
static bool anyone;               /* ... and others */
static uint32_t looked;

static bool is_announced(void *arg, const struct hth_peer_id *peer, const struct hth_addr *addr)
{
    (void)arg;
    looked++;
    return (anyone || hth_peer_id_eq(peer, &a.env->self)) && hth_addr_eq(addr, &announced);
}

static void begin(void)
{
    start_default();
    announced = (struct hth_addr){0};
    looked = 0;
    anyone = false;
    served = hth_dialback_new(b.env, b.rpc, is_announced, NULL);
}

static void end(void)
{
    hth_dialback_free(served);
    stop();
}

/* The reply's verdict is `reached`, where err is HTH_OK. */
static enum hth_err ask(const struct hth_addr *addr, struct hth_dialback_reply *reply)
{
    struct hth_rpc_target target = member_target(&b);
    verdict_clear(&v[0]);
    memset(&v[0], 0, sizeof(v[0]));
    v[0].env = a.env;
    memset(reply, 0, sizeof(*reply));
    assert_ok(hth_dialback_ask(a.rpc, &target, addr, on_verdict, &v[0], NULL));
    await(w, &v[0]);
    if (v[0].err == HTH_OK)
        assert_ok(hth_dialback_reply_open((const uint8_t *)v[0].payload, v[0].payload_len, reply));
    return v[0].err;
}

static uint64_t dials_to_a(void)
{
    struct hth_rpc_stats stats;
    hth_rpc_stats(a.rpc, &stats);
    return stats.accepts;
}

TEST(caller_is_dialled_at_the_address_it_comes_from)
{
    struct hth_dialback_reply reply;
    struct hth_addr closed;
    (void)state;
    begin();
    assert_err(HTH_OK, ask(&a.addr, &reply));
    assert_true(reply.reached);
    assert_true(hth_addr_same_ip(&reply.from, &a.addr));
    assert_int_equal(dials_to_a(), 1);
    assert_int_equal(looked, 0);
    hth_world_run_for(w, HTH_DIALBACK_EACH_US);
    closed = a.addr;
    closed.port++; /* nothing listens there */
    assert_err(HTH_OK, ask(&closed, &reply));
    assert_false(reply.reached);
    end();
}

/* The address of another machine is dialled only if the caller announces it. Its key is not the
 * caller's, so the reply is "not reached" although something listens. */
TEST(third_parties_are_dialled_only_when_announced)
{
    struct hth_dialback_reply reply;
    struct swarm_member c;
    struct hth_rpc_stats stats;
    (void)state;
    begin();
    member_start(&c, w, "c", member_opts());
    assert_err(HTH_E_AGAIN, ask(&c.addr, &reply));
    assert_true(v[0].retry_after_us > 0);
    hth_world_run_for(w, HTH_DIALBACK_EACH_US);
    hth_rpc_stats(c.rpc, &stats);
    assert_int_equal(stats.accepts, 0);
    announced = c.addr;
    assert_err(HTH_OK, ask(&c.addr, &reply));
    assert_false(reply.reached);
    member_stop(&c);
    end();
}

/* Nodes of the simulator have private addresses: 127.0.0.1 and a link's address lead less far. */
TEST(nearer_addresses_are_not_dialled)
{
    static const char *const near[] = {"127.0.0.1:4000", "[::1]:4000", "169.254.1.2:4000",
                                       "[fe80::1]:4000"};
    struct hth_dialback_reply reply;
    (void)state;
    begin();
    for (size_t i = 0; i < HTH_ARRAY_LEN(near); i++) {
        assert_ok(hth_addr_parse(near[i], &announced));
        assert_err(HTH_OK, ask(&announced, &reply));
        assert_false(reply.reached);
    }
    assert_int_equal(looked, 0); /* refused before anything else */
    end();
}

TEST(an_origin_is_dialled_once_in_a_time)
{
    struct hth_dialback_reply reply;
    (void)state;
    begin();
    assert_err(HTH_OK, ask(&a.addr, &reply));
    for (int i = 0; i < 3; i++)
        assert_err(HTH_E_BUSY, ask(&a.addr, &reply));
    assert_true(v[0].retry_after_us > 0);
    assert_int_equal(dials_to_a(), 1);
    hth_world_run_for(w, HTH_DIALBACK_EACH_US);
    assert_err(HTH_OK, ask(&a.addr, &reply));
    assert_int_equal(dials_to_a(), 2);
    end();
}

/* Two callers announce the same address of a third machine. */
TEST(a_target_is_dialled_once_in_a_time)
{
    struct hth_dialback_reply reply;
    struct hth_rpc_target target;
    struct swarm_member c;
    (void)state;
    begin();
    target = member_target(&b);
    member_start(&c, w, "c", member_opts());
    assert_ok(hth_addr_parse("10.99.0.1:4000", &announced));
    assert_err(HTH_OK, ask(&announced, &reply));
    assert_false(reply.reached);
    anyone = true;
    v[1].env = c.env;
    assert_ok(hth_dialback_ask(c.rpc, &target, &announced, on_verdict, &v[1], NULL));
    await(w, &v[1]);
    assert_int_equal(v[1].err, HTH_E_BUSY);
    member_stop(&c);
    end();
}

/* One after the other, so that each dial has ended when the next request comes. */
TEST(all_origins_together_are_bounded)
{
    static struct swarm_member many[HTH_DIALBACK_DIALS_MAX + 1];
    struct hth_rpc_target target;
    (void)state;
    begin();
    target = member_target(&b);
    for (size_t i = 0; i < HTH_ARRAY_LEN(many); i++) {
        char name[16];
        snprintf(name, sizeof(name), "m%zu", i);
        member_start(&many[i], w, name, member_opts());
        v[i].env = many[i].env;
        assert_ok(hth_dialback_ask(many[i].rpc, &target, &many[i].addr, on_verdict, &v[i], NULL));
        await(w, &v[i]);
        assert_int_equal(v[i].err, i < HTH_DIALBACK_DIALS_MAX ? HTH_OK : HTH_E_BUSY);
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(many); i++)
        member_stop(&many[i]);
    end();
}

TEST(bad_messages_are_refused)
{
    static const struct {
        uint8_t bytes[24];
        size_t len;
        enum hth_err err;
    } cases[] = {
        {{0x0a, 3, 1, 2, 3, 0x10, 5}, 7, HTH_E_MALFORMED},
        {{0x10, 5}, 2, HTH_E_MALFORMED},
        {{0xff, 0xff}, 2, HTH_E_MALFORMED},
        {{0x0a, 4, 10, 0, 0, 1}, 6, HTH_E_RANGE},                       /* no port */
        {{0x0a, 4, 10, 0, 0, 1, 0x10, 0x80, 0x80, 4}, 10, HTH_E_RANGE}, /* port 65536 */
        {{0x0a, 4, 0, 0, 0, 0, 0x10, 5}, 8, HTH_E_RANGE},               /* 0.0.0.0 */
    };
    uint8_t big[HTH_DIALBACK_MESSAGE_MAX + 1] = {0};
    struct hth_addr addr;
    struct hth_dialback_reply reply;
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        assert_err(cases[i].err, hth_dialback_ask_open(cases[i].bytes, cases[i].len, &addr));
    assert_err(HTH_E_TOO_LARGE, hth_dialback_ask_open(big, sizeof(big), &addr));
    assert_err(HTH_E_TOO_LARGE, hth_dialback_reply_open(big, sizeof(big), &reply));
    assert_ok(hth_dialback_reply_open(big, 0, &reply));
    assert_false(reply.reached);
    assert_int_equal(reply.from.family, 0);
    begin();
    v[0].env = a.env;
    struct hth_rpc_target target = member_target(&b);
    struct hth_rpc_call_opts opts = {.method = HTH_RPC_DIALBACK, .timeout_us = S};
    opts.body.payload = cases[0].bytes;
    opts.body.payload_len = cases[0].len;
    assert_ok(hth_rpc_call(a.rpc, &target, &opts, on_verdict, &v[0], NULL));
    await(w, &v[0]);
    assert_int_equal(v[0].err, HTH_E_MALFORMED);
    end();
}

static bool has_looked(void *arg)
{
    (void)arg;
    return looked > 0;
}

/* Ends while the dial is under way. */
TEST(freeing_ends_dials)
{
    struct hth_rpc_target target;
    (void)state;
    begin();
    target = member_target(&b);
    v[0].env = a.env;
    assert_ok(hth_addr_parse("10.99.0.1:4000", &announced));
    assert_ok(hth_dialback_ask(a.rpc, &target, &announced, on_verdict, &v[0], NULL));
    hth_world_run_until_true(w, has_looked, NULL, S);
    end();
}

/* A peer of no run takes part in the calls of each run. */
TEST(caller_and_peer_of_no_run_agree)
{
    struct hth_rpc_opts none = member_opts();
    struct hth_dialback_reply reply;
    (void)state;
    none.network = "";
    start(member_opts(), none);
    served = hth_dialback_new(b.env, b.rpc, NULL, NULL);
    assert_err(HTH_OK, ask(&a.addr, &reply));
    assert_true(reply.reached);
    end();
}
