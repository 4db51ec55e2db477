/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random swarms under loss, short reads, crashes, partitions and short timeouts: every call gets
 * exactly one verdict or, when canceled, none; every request is answered; no object is left over;
 * and the same seed gives the same history.
 */
#include "core/bytes.h"
#include "core/mem.h"
#include "rpc/swarm.h"
#include "support/suite.h"

#define NODES 8
#define CALLS 1000
#define SEEDS 12

struct swarm;

struct shot {
    struct swarm *swarm;
    struct hth_rpc_call *call;
    int from, to;
    uint32_t verdicts, boots; /* of the caller when it called */
    bool made, refused_at_once, canceled;
    uint32_t bytes;
    enum hth_err err;
};

struct swarm {
    struct hth_world *w;
    struct hth_rng rng;
    struct swarm_member members[NODES];
    struct shot shots[CALLS];
    uint32_t boots[NODES];
    uint32_t made, ok, canceled, errs[HTH_ERR_COUNT];
};

static void on_shot(void *arg, const struct hth_rpc_result *r)
{
    struct shot *s = arg;
    s->verdicts++;
    s->call = NULL;
    s->err = r->err;
    s->swarm->errs[r->err]++;
    if (r->err != HTH_OK)
        return;
    s->swarm->ok++;
    /* The reply equals the request. */
    assert_int_equal(r->payload_len, 4);
    assert_int_equal(hth_load_u32le(r->payload), (uint32_t)(s - s->swarm->shots));
    assert_int_equal(r->tensor_count, s->bytes > 0 ? 1 : 0);
    if (s->bytes == 0)
        return;
    assert_int_equal(r->tensors[0].dim[0], s->bytes);
    const uint8_t *data = r->tensors[0].blob->data + r->tensors[0].offset;
    for (uint32_t i = 0; data != NULL && i < s->bytes; i += 1 + i / 8)
        assert_int_equal(data[i], (uint8_t)(s->bytes + i));
}

static void fire(struct swarm *sw, struct shot *s)
{
    struct hth_blob *blob = NULL;
    uint8_t payload[4];
    struct swarm_member *from = &sw->members[s->from];
    if (from->rpc == NULL)
        return;
    struct hth_rpc_target target = member_target(&sw->members[s->to]);
    struct hth_rpc_call_opts opts = {.timeout_us = 0};
    opts.method = hth_rng_chance(&sw->rng, 0.8) ? METHOD_ECHO : METHOD_HOLD;
    if (hth_rng_chance(&sw->rng, 0.7))
        opts.timeout_us = 1 + (int64_t)hth_rng_below(&sw->rng, 3 * HTH_US_PER_S);
    hth_store_u32le(payload, (uint32_t)(s - sw->shots));
    opts.body.payload = payload;
    opts.body.payload_len = 4;
    s->bytes = hth_rng_chance(&sw->rng, 0.5) ? 0 : 1 + (uint32_t)hth_rng_below(&sw->rng, 100000);
    struct hth_tensor t = {HTH_U8, 1, {s->bytes}, NULL, 0};
    if (s->bytes > 0) {
        assert_ok(hth_env_blob_new(from->env, s->bytes, NULL, &blob));
        for (uint32_t i = 0; i < s->bytes; i++)
            blob->data[i] = (uint8_t)(s->bytes + i);
        t.blob = blob;
        opts.body.tensors = &t;
        opts.body.tensor_count = 1;
    }
    s->made = true;
    s->boots = sw->boots[s->from];
    sw->made++;
    if (hth_rpc_call(from->rpc, &target, &opts, on_shot, s, &s->call) != HTH_OK)
        s->refused_at_once = true;
    assert_int_equal(s->verdicts, 0);
    hth_blob_unref(blob);
}

static void disturb(struct swarm *sw)
{
    struct swarm_member *m = &sw->members[hth_rng_below(&sw->rng, NODES)];
    struct swarm_member *n = &sw->members[hth_rng_below(&sw->rng, NODES)];
    uint64_t draw = hth_rng_below(&sw->rng, 100);
    if (draw < 4 && m->rpc != NULL) {
        hth_node_crash(m->node, draw < 2 ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
    } else if (draw < 30 && m->rpc == NULL) {
        hth_node_restart(m->node);
        sw->boots[m - sw->members]++;
        member_serve(m);
    } else if (draw < 34) {
        hth_world_block(sw->w, m->node, n->node, true);
    } else if (draw < 40) {
        hth_world_heal(sw->w);
    } else if (draw < 42 && m->rpc != NULL) {
        hth_rpc_disconnect(m->rpc, &n->env->self);
    } else if (draw < 70 && m->rpc != NULL && m->held_count > 0) {
        struct hth_rpc_request *req = m->held[--m->held_count];
        struct hth_rpc_body body = {.payload = NULL};
        body.payload = hth_rpc_payload(req, &body.payload_len);
        body.tensors = hth_rpc_tensors(req, &body.tensor_count);
        hth_rpc_reply(req, &body);
    } else if (draw < 80) {
        struct shot *s = &sw->shots[hth_rng_below(&sw->rng, CALLS)];
        if (s->call != NULL && s->verdicts == 0 && s->boots == sw->boots[s->from] &&
            sw->members[s->from].rpc != NULL) {
            hth_rpc_cancel(s->call);
            s->call = NULL;
            s->canceled = true;
            sw->canceled++;
        }
    }
}

static void make(struct swarm *sw, uint64_t seed)
{
    struct hth_world_opts wopts = HTH_WORLD_OPTS_INIT;
    struct hth_rpc_opts opts = member_opts();
    memset(sw, 0, sizeof(*sw));
    hth_rng_init(&sw->rng, seed);
    wopts.link.loss = 0.002;
    wopts.link.jitter_us = 5000;
    wopts.link.jitter = HTH_JITTER_EXPONENTIAL;
    wopts.chaos.short_read = wopts.chaos.short_write = 0.3;
    wopts.log_level = HTH_ERROR;
    sw->w = hth_world_new(seed, &wopts);
    opts.requests_max = 1 + (uint32_t)hth_rng_below(&sw->rng, 16);
    opts.body_bytes_max = 128 << 10;
    opts.request_credit_bytes = opts.reply_credit_bytes = 256 << 10;
    opts.idle_timeout_us = 3 * HTH_US_PER_S;
    opts.ping_after_us = 2 * HTH_US_PER_S;
    opts.ping_timeout_us = 2 * HTH_US_PER_S;
    for (int i = 0; i < NODES; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n%d", i);
        member_start(&sw->members[i], sw->w, name, opts);
    }
}

static uint64_t play(struct swarm *sw, uint64_t seed)
{
    make(sw, seed);
    for (int i = 0; i < CALLS; i++) {
        struct shot *s = &sw->shots[i];
        s->swarm = sw;
        s->from = (int)hth_rng_below(&sw->rng, NODES);
        s->to = (s->from + 1 + (int)hth_rng_below(&sw->rng, NODES - 1)) % NODES;
        fire(sw, s);
        disturb(sw);
        if (hth_rng_chance(&sw->rng, 0.5))
            hth_world_run_for(sw->w, (int64_t)hth_rng_exponential(&sw->rng, 30000));
    }
    /* Without faults until every deadline has passed: adaptive ones end at 60 s. */
    hth_world_heal(sw->w);
    hth_world_run_for(sw->w, 70 * HTH_US_PER_S);
    for (int i = 0; i < CALLS; i++) {
        const struct shot *s = &sw->shots[i];
        bool caller_died = s->boots != sw->boots[s->from] || sw->members[s->from].rpc == NULL;
        uint32_t want = s->made && !s->refused_at_once && !s->canceled ? 1 : 0;
        if (s->verdicts != want && !(caller_died && s->verdicts == 0))
            fail_msg("seed %d call %d: %u verdicts, not %u", (int)seed, i, s->verdicts, want);
    }
    for (int i = 0; i < NODES; i++) {
        struct swarm_member *m = &sw->members[i];
        struct hth_rpc_stats stats;
        while (m->held_count > 0) /* all are canceled */
            hth_rpc_reply(m->held[--m->held_count], NULL);
        if (m->rpc == NULL)
            continue;
        hth_rpc_stats(m->rpc, &stats);
        assert_int_equal(stats.calls_now, 0);
        assert_int_equal(stats.requests_now, 0);
        member_stop(m);
    }
    uint64_t hash = hth_world_trace_hash(sw->w);
    struct hth_open_counts open;
    hth_world_open(sw->w, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_leaks(sw->w, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(sw->w);
    return hash;
}

TEST(every_call_gets_exactly_one_verdict)
{
    static struct swarm sw;
    uint32_t made = 0, ok = 0, canceled = 0, errs[HTH_ERR_COUNT] = {0};
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        play(&sw, seed);
        made += sw.made;
        ok += sw.ok;
        canceled += sw.canceled;
        for (int e = 0; e < HTH_ERR_COUNT; e++)
            errs[e] += sw.errs[e];
    }
    /* The faults must have had their effects. */
    assert_true(ok > made / 10);
    assert_true(canceled > 10);
    assert_true(errs[HTH_E_TIMEOUT] > 10);
    assert_true(errs[HTH_E_CLOSED] > 10);
    /* No peer here is Byzantine: no error of the class PEER may come up. */
    for (int e = 1; e < HTH_ERR_COUNT; e++) {
        if (hth_err_class((enum hth_err)e) != HTH_CLASS_RETRY && errs[e] > 0)
            fail_msg("%u x %s", errs[e], hth_err_name((enum hth_err)e));
    }
}

TEST(same_seed_gives_same_history)
{
    static struct swarm sw;
    (void)state;
    uint64_t first = play(&sw, 99);
    uint32_t ok = sw.ok;
    assert_int_equal(play(&sw, 99), first);
    assert_int_equal(sw.ok, ok);
    assert_true(play(&sw, 100) != first);
}
