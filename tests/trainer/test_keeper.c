/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Somebody leads wherever its key comes first, and begins no group: it says to all that they wait.
 */
#include "averaging/match_msg.h"
#include "averaging/roster.h"
#include "core/mem.h"
#include "dht/record.h"
#include "rpc/rpc.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S        HTH_US_PER_S
#define MS       HTH_US_PER_MS

#define HELD_MAX 64 /* JOINs, for 100 ms */

static struct keeper {
    struct hth_env *env;
    struct hth_addr addr;
    struct hth_rpc *rpc;
    struct hth_roster *roster;
    struct hth_timer *timer;
    struct hth_rpc_request *held[HELD_MAX];
    struct hth_avg_line line; /* of the last JOIN */
    uint64_t schema;
    bool speaks; /* it says each time that it is of another schema, too */
    uint32_t joins;
} keeper;

static void halt_keeper(struct hth_env *env, void *arg)
{
    (void)arg;
    for (uint32_t i = 0; i < HELD_MAX; i++)
        if (keeper.held[i] != NULL)
            hth_rpc_ignore(keeper.held[i]);
    hth_roster_free(keeper.roster);
    hth_timer_free(env, keeper.timer);
    hth_rpc_free(keeper.rpc);
    memset(&keeper, 0, sizeof(keeper));
}

static void answer(struct hth_rpc_request *req, const struct hth_join_reply *reply)
{
    struct hth_rpc_body body = {0};
    uint8_t *bytes;

    assert_ok(hth_join_reply_pack(reply, &bytes, &body.payload_len));
    body.payload = bytes;
    hth_rpc_reply(req, &body);
    hth_free(bytes);
}

static size_t declare(const struct hth_avg_line *line, uint64_t schema, uint8_t *bytes)
{
    uint8_t key[HTH_AVG_LINE_KEY_MAX], payload[64];
    struct hth_declare d = {.mode = HTH_AVG_TRAINER, .schema = schema, .addr = keeper.addr};
    struct hth_record rec = {.kind = HTH_RECORD_DECLARE, .life_ms = 15000};
    struct hth_topic topic;
    struct hth_dht_key at;
    struct hth_writer w;
    size_t len = hth_avg_line_key(line, key);

    hth_writer_init(&w, payload, sizeof(payload));
    hth_declare_write(&d, &w);
    hth_topic_init(&topic, keeper.env->crypto, "crew", HTH_RECORD_DECLARE, key, len);
    hth_topic_key(&topic, keeper.env->crypto, 0, &at);
    rec.network = topic.network;
    rec.issued_us = hth_wall_us(keeper.env);
    rec.seq = (uint64_t)rec.issued_us;
    rec.payload = payload;
    rec.payload_len = w.pos;
    assert_ok(hth_record_seal(keeper.env, &at, &rec, bytes, HTH_DHT_VALUE_BYTES_MAX, &len));
    return len;
}

static void on_tell(void *arg, struct hth_rpc_request *req)
{
    uint8_t record[HTH_DHT_VALUE_BYTES_MAX];
    struct hth_join_reply reply = {.reason = HTH_AVG_WAIT, .record = record};
    struct hth_tell tell;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);

    (void)arg;
    assert_ok(hth_tell_open(payload, len, &tell));
    reply.record_len = declare(&tell.line, tell.schema, record);
    hth_tell_close(&tell);
    answer(req, &reply);
}

static void on_told(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    (void)r;
}

/* Refused by whoever hears it: what a look ends with is that, then. */
static void speak(void)
{
    uint8_t record[HTH_DHT_VALUE_BYTES_MAX], bytes[HTH_TELL_BYTES_MAX];
    struct hth_tell tell = {.line = keeper.line, .schema = keeper.schema, .record = record};
    struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_TELL, .timeout_us = S};
    const struct hth_roster_peer *p;

    tell.record_len = declare(&keeper.line, keeper.schema + 1, record);
    call.body.payload = bytes;
    call.body.payload_len = hth_tell_pack(&tell, bytes);
    for (uint32_t i = 0; (p = hth_roster_at(keeper.roster, i)) != NULL; i++) {
        struct hth_rpc_target target = {.peer = p->id, .addr = p->note.addr};
        struct hth_rpc_call *out;

        (void)!hth_rpc_call(keeper.rpc, &target, &call, on_told, NULL, &out);
    }
}

static void on_timer(void *arg)
{
    (void)arg;
    for (uint32_t i = 0; i < HELD_MAX; i++) {
        struct hth_rpc_request *req = keeper.held[i];

        keeper.held[i] = NULL;
        if (req != NULL)
            answer(req, &(struct hth_join_reply){.reason = HTH_AVG_WAIT});
    }
    if (keeper.speaks && keeper.joins > 0)
        speak();
    hth_timer_set(keeper.env, keeper.timer, 100 * MS);
}

static void on_join(void *arg, struct hth_rpc_request *req)
{
    uint32_t i = 0;
    struct hth_join_msg join;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);

    (void)arg;
    assert_ok(hth_join_msg_open(payload, len, &join));
    keeper.line = join.line;
    keeper.schema = join.schema;
    keeper.joins++;
    while (i < HELD_MAX && keeper.held[i] != NULL)
        i++;
    if (i < HELD_MAX)
        keeper.held[i] = req;
    else
        hth_rpc_refuse(req, HTH_E_BUSY, 0, NULL);
}

static void open_keeper(struct crew_scene *s)
{
    struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    struct hth_roster_opts roster = HTH_ROSTER_OPTS_INIT;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_node *n;

    node.halt = halt_keeper;
    n = hth_world_node(s->world, "keeper", &node);
    keeper.env = hth_node_env(n);
    keeper.addr = hth_node_addr(n, 4000);
    rpc.network = roster.network = "crew";
    rpc.listen = &keeper.addr;
    assert_ok(hth_rpc_new(keeper.env, &rpc, &keeper.rpc));
    hth_rpc_serve(keeper.rpc, HTH_MATCH_METHOD_TELL, on_tell, NULL);
    hth_rpc_serve(keeper.rpc, HTH_MATCH_METHOD_JOIN, on_join, NULL);
    roster.schema = hth_roster_self(hth_crew_roster(s->crew, 0))->schema;
    roster.addr = keeper.addr;
    roster.slot_us = 0;
    assert_ok(hth_roster_new(keeper.env, hth_node_dht(n), &roster, &keeper.roster));
    hth_roster_set_progress(keeper.roster, s->stats[0].updates, 0, 0);
    keeper.timer = hth_timer_new(keeper.env, on_timer, NULL);
    hth_timer_set(keeper.env, keeper.timer, 100 * MS);
}

/* Steps of the first trainer in the next 30 s. */
static uint64_t steps_in_30_s(struct crew_scene *s)
{
    uint64_t before = s->stats[0].updates;

    hth_world_run_for(s->world, 30 * S);
    return s->stats[0].updates - before;
}

/* It is followed for a window twice, and then shunned for longer each time. */
static void run_keeper(bool speaks)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
        struct crew_scene *s;
        uint64_t alone, first, then;

        o.trainer.updates_max = 100000;
        o.trainer.share.target = 60;
        o.members = 4;
        o.device = &crew_slow;
        s = crew_scene_new(seed, &o);
        crew_scene_run(s, 0, 10, 60 * S);
        alone = steps_in_30_s(s);
        open_keeper(s);
        keeper.speaks = speaks;
        first = steps_in_30_s(s);
        then = steps_in_30_s(s);
        print_message("seed %d: %d steps in 30 s, beside it %d and %d; it was asked %u times\n",
                      (int)seed, (int)alone, (int)first, (int)then, keeper.joins);
        assert_true(keeper.joins > 0);
        assert_true(first >= alone / 2);
        assert_true(then >= 3 * alone / 4);
        crew_scene_free(s);
    }
}

static void peer_that_keeps_a_line_waiting_is_excluded(void **state)
{
    (void)state;
    run_keeper(false);
}

/* A keeper that also publishes another schema is refused for that, which lifts no exclusion. */
static void refusals_do_not_lift_an_exclusion(void **state)
{
    (void)state;
    run_keeper(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(peer_that_keeps_a_line_waiting_is_excluded),
                                       cmocka_unit_test(refusals_do_not_lift_an_exclusion)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
