/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gather.c: status collects a swarm within a second of its first answer, and tells living
 * hosts from records whose host is dead or cannot be reached.
 */
#include "monitor/gather.h"

#include "core/bytes.h"
#include "core/mem.h"
#include "dht/announce.h"
#include "experts/message.h"
#include "experts/server.h"
#include "rpc/rpc.h"
#include "sim/world.h"
#include "support/suite.h"

#include <stdio.h>

#define S         HTH_US_PER_S
#define PORT      4000
#define HOSTS_MAX 8

static const struct hth_layer_shape FFN = {.kind = "ffn", .d = 8, .block_rows = 1};

struct host {
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_announcer *ann; /* NULL: it has no records */
    uint32_t first;            /* of its two experts */
    enum hth_reach reach;
    bool repeats; /* lists each expert twice */
    struct hth_about_peer *names;
    uint32_t names_count;
};

static struct {
    struct hth_world *world;
    struct host host[HOSTS_MAX];
    size_t hosts;
    struct hth_node *watcher;
    struct hth_census *census;
    struct hth_gather *gather;
    struct hth_gather_opts opts;
    int64_t took_us; /* of the last gathering */
    bool done;
} fx;

static int set_up(void **state)
{
    (void)state;
    memset(&fx, 0, sizeof(fx));
    fx.world = hth_world_new(5, NULL);
    fx.opts.wait_us = S;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    hth_gather_free(fx.gather);
    hth_census_free(fx.census);
    hth_world_free(fx.world); /* ends the hosts */
    return 0;
}

/* Answers ABOUT, and names the peers of `names`. */
static void tell(void *arg, struct hth_rpc_request *req)
{
    static uint8_t bytes[HTH_ABOUT_BYTES_MAX];
    static struct hth_about about;
    const struct host *h = arg;
    about = (struct hth_about){
        .started_us = 1699999000 * S, .rows = 1234, .trainers = 2, .unsaved_since_us = 7 * S};
    about.reach = h->reach;
    for (; about.peer_count < h->names_count; about.peer_count++)
        about.peer[about.peer_count] = h->names[about.peer_count];
    const struct hth_rpc_body body = {.payload = bytes,
                                      .payload_len = hth_about_write(&about, bytes)};
    hth_rpc_reply(req, &body);
}

/* Answers INFO with the experts ffn0.2i and ffn0.2i + 1 of host i. */
static void list(void *arg, struct hth_rpc_request *req)
{
    const struct host *h = arg;
    struct hth_expert_info infos[4];
    struct hth_rpc_body body = {0};
    uint32_t count = h->repeats ? 4 : 2;
    uint8_t *bytes;
    for (uint32_t i = 0; i < count; i++) {
        infos[i] = (struct hth_expert_info){.kind = "ffn", .d = 8, .block_rows = 1};
        snprintf(infos[i].uid, sizeof(infos[i].uid), "ffn0.%u", h->first + i % 2);
    }
    hth_info_reply_pack(infos, count, count, &bytes, &body.payload_len);
    body.payload = bytes;
    hth_rpc_reply(req, &body);
    hth_free(bytes);
}

static void on_halt(struct hth_env *env, void *arg)
{
    struct host *h = arg;
    (void)env;
    hth_announcer_free(h->ann);
    hth_rpc_free(h->rpc);
    hth_free(h->names);
}

/* OLD: knows no ABOUT; DEAF: announced, and nothing listens; SHY: listens, and has no records. */
enum sort { TELLS, OLD, DEAF, SHY };

/* Announces two experts of a grid of 8, at this port. */
static struct host *add_host(enum sort sort, uint16_t port)
{
    struct host *h = &fx.host[fx.hosts];
    struct hth_rpc_opts rpc_opts = HTH_RPC_OPTS_INIT;
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    const struct hth_node_opts node_opts = {.halt = on_halt, .arg = h};
    struct hth_addr addr;
    struct hth_grid grid;
    char name[16];
    uint32_t index[2];
    const struct hth_expert_list experts = {index, 2};
    h->first = 2 * (fx.hosts % 4);
    index[0] = h->first;
    index[1] = h->first + 1;
    snprintf(name, sizeof(name), "host%zu", fx.hosts++);
    h->node = hth_world_node(fx.world, name, &node_opts);
    h->env = hth_node_env(h->node);
    addr = hth_node_addr(h->node, PORT);
    rpc_opts.network = "net";
    rpc_opts.listen = sort == DEAF ? NULL : &addr;
    assert_ok(hth_rpc_new(h->env, &rpc_opts, &h->rpc));
    if (sort != OLD)
        hth_rpc_serve(h->rpc, HTH_METHOD_ABOUT, tell, h);
    hth_rpc_serve(h->rpc, HTH_METHOD_EXPERT_INFO, list, h);
    if (sort == SHY)
        return h;
    opts.network = "net";
    opts.role = HTH_ROLE_HOST;
    opts.info.addr_count = 1;
    opts.info.addr[0] = addr;
    opts.info.addr[0].port = port;
    assert_ok(hth_grid_parse("ffn0.8", 6, &grid));
    assert_ok(hth_announcer_new(h->env, hth_node_dht(h->node), &opts, &h->ann));
    assert_ok(hth_announcer_set_layer(h->ann, &grid, &FFN, &experts));
    return h;
}

static void on_done(void *arg)
{
    (void)arg;
    fx.done = true;
}

static bool is_done(void *arg)
{
    (void)arg;
    return fx.done;
}

/* A new status. The simulated DHT answers at once, so took_us counts from that answer. */
static const struct hth_gather *gather(void)
{
    struct hth_env *env;
    if (fx.watcher == NULL)
        fx.watcher = hth_world_node(fx.world, "status", NULL);
    env = hth_node_env(fx.watcher);
    hth_gather_free(fx.gather);
    hth_census_free(fx.census);
    fx.done = false;
    assert_ok(hth_census_new(env, hth_node_dht(fx.watcher), NULL, &fx.census));
    fx.opts.census = fx.census;
    fx.opts.done = on_done;
    int64_t began_us = hth_world_now_us(fx.world);
    assert_ok(hth_gather_new(env, hth_node_dht(fx.watcher), &fx.opts, &fx.gather));
    assert_true(hth_world_run_until_true(fx.world, is_done, NULL, 60 * S));
    fx.took_us = hth_world_now_us(fx.world) - began_us;
    assert_ok(fx.gather->err);
    return fx.gather;
}

static const struct hth_gather_peer *peer_of(const struct host *h)
{
    for (size_t i = 0; i < fx.gather->peer_count; i++)
        if (hth_peer_id_eq(&fx.gather->peer[i]->id, &h->env->self))
            return fx.gather->peer[i];
    fail_msg("a host is not listed");
    return NULL;
}

static enum hth_gather_state state_of(const struct host *h)
{
    return peer_of(h)->state;
}

static uint32_t served(void)
{
    uint32_t once, twice;
    hth_gather_count(fx.gather, 0, &once, &twice);
    return once;
}

/* The host names this peer to those that ask. */
static void name(struct host *h, const struct hth_peer_id *id, const struct hth_addr *addr)
{
    h->names = hth_realloc(h->names, h->names_count + 1, sizeof(*h->names));
    h->names[h->names_count++] =
        (struct hth_about_peer){.id = *id, .role = HTH_ROLE_HOST, .addr = *addr, .age_s = 3};
}

TEST_WITH(a_swarm_is_shown_within_a_second, set_up, tear_down)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        add_host(TELLS, PORT);
    hth_world_run_for(fx.world, 10 * S);
    gather();
    assert_true(fx.took_us < S);
    assert_true(fx.gather->complete);
    assert_string_equal(fx.gather->network, "net");
    assert_int_equal(served(), 6);
    for (int i = 0; i < 3; i++) {
        const struct hth_gather_peer *p = peer_of(&fx.host[i]);
        assert_int_equal(p->state, HTH_ANSWERED);
        assert_int_equal(p->experts, 2);
        assert_non_null(p->about);
        assert_int_equal(p->about->rows, 1234);
        assert_int_equal(p->about->trainers, 2);
        assert_true(p->about->unsaved_since_us == 7 * S);
    }
}

/* A swarm of nodes that serve no run answers, too. */
TEST_WITH(a_swarm_without_a_run_takes_a_second, set_up, tear_down)
{
    size_t count;
    (void)state;
    hth_world_node(fx.world, "node", NULL);
    gather();
    assert_in_range(fx.took_us, S, S + S / 10);
    hth_free(hth_gather_runs(fx.gather, &count));
    assert_int_equal(count, 0);
}

/* Its records live on for a minute. */
TEST_WITH(a_dead_host_is_silent_and_serves_nothing, set_up, tear_down)
{
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};
    (void)state;
    for (int i = 0; i < 3; i++)
        add_host(TELLS, PORT);
    hth_world_run_for(fx.world, 10 * S);
    for (uint32_t i = 0; i < 2; i++) {
        hth_node_crash(fx.host[i].node, how[i]);
        hth_world_run_for(fx.world, 2 * S);
        gather();
        assert_true(fx.took_us <= S + S / 10);
        assert_int_equal(state_of(&fx.host[i]), HTH_SILENT);
        assert_int_equal(state_of(&fx.host[2]), HTH_ANSWERED);
        assert_int_equal(served(), 4 - 2 * i);
    }
}

TEST_WITH(an_unreachable_host_is_silent, set_up, tear_down)
{
    (void)state;
    struct host *deaf = add_host(DEAF, PORT), *wrong = add_host(TELLS, PORT + 1);
    hth_world_run_for(fx.world, 10 * S);
    gather();
    assert_int_equal(state_of(deaf), HTH_SILENT);
    assert_int_equal(state_of(wrong), HTH_SILENT);
    assert_int_equal(served(), 0);
    /* On this machine it is dialled where it listens. */
    const struct hth_gather_own own = {wrong->env->self, hth_node_addr(wrong->node, PORT)};
    fx.opts.own = &own;
    fx.opts.own_count = 1;
    gather();
    assert_int_equal(state_of(wrong), HTH_ANSWERED);
    assert_true(peer_of(wrong)->own);
    assert_false(peer_of(deaf)->own);
    assert_int_equal(served(), 2);
}

/* It answers on its own machine, or in its own network. */
TEST_WITH(a_host_that_others_cannot_dial_serves_nothing, set_up, tear_down)
{
    (void)state;
    add_host(TELLS, PORT)->reach = HTH_REACH_YES;
    add_host(TELLS, PORT)->reach = HTH_REACH_NO;
    hth_world_run_for(fx.world, 10 * S);
    gather();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(state_of(&fx.host[i]), HTH_ANSWERED);
        assert_int_equal(peer_of(&fx.host[i])->experts, 2);
    }
    assert_int_equal(served(), 2);
}

TEST_WITH(an_earlier_version_answers_without_figures, set_up, tear_down)
{
    (void)state;
    struct host *old = add_host(OLD, PORT), *bare = add_host(OLD, PORT);
    hth_rpc_serve(bare->rpc, HTH_METHOD_EXPERT_INFO, NULL, NULL);
    hth_world_run_for(fx.world, 10 * S);
    gather();
    assert_int_equal(state_of(old), HTH_ANSWERED);
    assert_null(peer_of(old)->about);
    assert_int_equal(state_of(bare), HTH_ANSWERED); /* it refuses: so it lives */
    assert_int_equal(served(), 2);
}

/* The DHT hands records out late while some of its nodes are dead. */
TEST_WITH(peers_name_peers_without_records, set_up, tear_down)
{
    (void)state;
    struct host *one = add_host(TELLS, PORT), *shy = add_host(SHY, PORT),
                *deaf = add_host(SHY, PORT);
    const struct hth_addr at = hth_node_addr(shy->node, PORT);
    const struct hth_addr nowhere = hth_node_addr(deaf->node, PORT + 1);
    name(one, &shy->env->self, &at);
    name(one, &deaf->env->self, &nowhere);
    hth_world_run_for(fx.world, 10 * S);
    gather();
    assert_true(fx.took_us < S);
    assert_int_equal(fx.gather->peer_count, 3);
    assert_int_equal(state_of(shy), HTH_ANSWERED);
    assert_int_equal(state_of(deaf), HTH_SILENT);
    assert_int_equal(served(), 4);
}

/* A monitor asks every few seconds. */
TEST_WITH(all_are_asked_again, set_up, tear_down)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        add_host(TELLS, PORT);
    hth_world_run_for(fx.world, 10 * S);
    gather();
    hth_node_crash(fx.host[1].node, HTH_CRASH_RESET);
    for (int round = 0; round < 3; round++) {
        hth_world_run_for(fx.world, 5 * S);
        fx.done = false;
        assert_ok(hth_gather_again(fx.gather, 0));
        assert_int_equal(fx.gather->peer_count, 0);
        assert_true(hth_world_run_until_true(fx.world, is_done, NULL, 60 * S));
        assert_int_equal(served(), 4);
        assert_int_equal(state_of(&fx.host[0]), HTH_ANSWERED);
        assert_int_equal(state_of(&fx.host[1]), HTH_SILENT);
    }
    hth_world_run_for(fx.world, 120 * S); /* its record is over */
    fx.done = false;
    assert_ok(hth_gather_again(fx.gather, 0));
    assert_true(hth_world_run_until_true(fx.world, is_done, NULL, 60 * S));
    assert_int_equal(fx.gather->peer_count, 2);
}

TEST_WITH(an_expert_listed_twice_counts_once, set_up, tear_down)
{
    uint32_t once, twice;
    (void)state;
    add_host(TELLS, PORT)->repeats = true;
    add_host(TELLS, PORT)->first = 1; /* it has ffn0.1 as well */
    hth_world_run_for(fx.world, 10 * S);
    gather();
    hth_gather_count(fx.gather, 0, &once, &twice);
    assert_int_equal(once, 3);
    assert_int_equal(twice, 1);
    const struct hth_gather_peer *p = peer_of(&fx.host[0]);
    assert_int_equal(p->expert_count, 2);
    assert_int_equal(p->expert[1].index, 1);
}

/* ---- what a trainer remembers ---------------------------------------------------------------- */

static struct hth_recall_told memory;

static void recall(void *arg, struct hth_rpc_request *req)
{
    static uint8_t bytes[HTH_RECALL_BYTES_MAX];
    struct hth_rpc_body body = {.payload = bytes};
    size_t len;
    const uint8_t *after = hth_rpc_payload(req, &len);
    (void)arg;
    assert_int_equal(len, 4);
    body.payload_len = hth_recall_write(&memory, hth_load_u32le(after), bytes);
    hth_rpc_reply(req, &body);
}

TEST_WITH(trainers_recall_and_hosts_are_not_asked, set_up, tear_down)
{
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    (void)state;
    memory = (struct hth_recall_told){.total = 2000, .saved_step = 900, .saved_t = 77};
    for (uint32_t i = 0; i < 3; i++)
        hth_recall_add(&memory, &(struct hth_recall_point){100 + 10 * i, i, 64 * i, 2.5f, 8});
    struct host *t = add_host(SHY, PORT), *h = add_host(TELLS, PORT);
    hth_rpc_serve(t->rpc, HTH_METHOD_RECALL, recall, t);
    hth_rpc_serve(h->rpc, HTH_METHOD_RECALL, recall, h);
    opts.network = "net";
    opts.role = HTH_ROLE_TRAINER;
    opts.info.addr_count = 1;
    opts.info.addr[0] = hth_node_addr(t->node, PORT);
    assert_ok(hth_announcer_new(t->env, hth_node_dht(t->node), &opts, &t->ann));
    hth_world_run_for(fx.world, 10 * S);
    gather();
    assert_null(peer_of(t)->recall);
    fx.opts.recall = true;
    gather();
    assert_null(peer_of(h)->recall);
    assert_int_equal(peer_of(t)->recall->point_count, 3);
    fx.done = false;
    assert_ok(hth_gather_again(fx.gather, 105));
    assert_true(hth_world_run_until_true(fx.world, is_done, NULL, 60 * S));
    const struct hth_recall_told *told = peer_of(t)->recall;
    assert_non_null(told);
    assert_int_equal(told->total, 2000);
    assert_int_equal(told->point_count, 2);
    assert_int_equal(told->point[0].t, 110);
    assert_int_equal(told->point[1].samples, 128);
}

/* Strangers could name any number of peers. */
TEST_WITH(a_crowd_is_listed_in_part, set_up, tear_down)
{
    struct hth_addr nowhere = {.family = 4, .ip = {10, 99, 0, 1}, .port = 1};
    (void)state;
    for (int h = 0; h < 5; h++) {
        struct host *one = add_host(TELLS, PORT);
        for (uint32_t i = 0; i < HTH_ABOUT_PEERS_MAX; i++) {
            const struct hth_peer_id id = {{1, (uint8_t)h, (uint8_t)i}};
            name(one, &id, &nowhere);
        }
    }
    hth_world_run_for(fx.world, 10 * S);
    gather();
    assert_true(fx.took_us <= S + S / 10);
    assert_int_equal(fx.gather->peer_count, HTH_GATHER_PEERS_MAX);
}

static void on_dial(void *arg, struct hth_stream *stream)
{
    (void)stream; /* without callbacks it is cut */
    ++*(unsigned *)arg;
}

static void gather_again(void)
{
    fx.done = false;
    assert_ok(hth_gather_again(fx.gather, 0));
    assert_true(hth_world_run_until_true(fx.world, is_done, NULL, 60 * S));
}

TEST_WITH(a_third_party_is_dialled_three_times_in_a_minute, set_up, tear_down)
{
    struct hth_node *node = hth_world_node(fx.world, "third", NULL);
    struct hth_env *third = hth_node_env(node);
    const struct hth_addr addr = hth_node_addr(node, PORT);
    struct host *liar = add_host(TELLS, PORT);
    struct hth_listener *listener;
    unsigned dials = 0;
    (void)state;
    assert_ok(hth_listen(third, &addr, on_dial, &dials, &listener));
    name(liar, &third->self, &addr);
    hth_world_run_for(fx.world, 10 * S);
    gather();
    for (int round = 0; round < 7; round++) {
        hth_world_run_for(fx.world, 5 * S);
        gather_again();
    }
    assert_int_equal(dials, 3);
    assert_int_equal(state_of(liar), HTH_ANSWERED);
    hth_world_run_for(fx.world, 60 * S);
    gather_again();
    assert_int_equal(dials, 4);
    hth_listener_free(third, listener);
}

TEST(about_survives_round_trip)
{
    static struct hth_about about, back;
    static uint8_t bytes[HTH_ABOUT_BYTES_MAX + 3];
    (void)state;
    about = (struct hth_about){
        5, 6, 7, 8, 9, 10, HTH_REACH_NO, 3, "1.2.3", 1, {{.role = 2, .age_s = 11}}, 0, {{"", 0}}};
    const size_t before = 102; /* of the refusals, which earlier versions do not tell */
    hth_about_refuse(&about, "E_NOT_ADMITTED", 3);
    assert_false(hth_about_refuses_values(&about));
    hth_about_refuse(&about, "mean", UINT64_MAX);
    hth_about_refuse(&about, "claim", 0);
    assert_true(hth_about_refuses_values(&about));
    assert_int_equal(about.refusal_count, 2);
    assert_int_equal(about.refusal[1].count, UINT32_MAX);
    about.peer[0].addr = (struct hth_addr){.family = 4, .ip = {10, 0, 0, 7}, .port = 4700};
    size_t len = hth_about_write(&about, bytes);
    assert_ok(hth_about_read(bytes, len + 3, &back)); /* a later version's */
    assert_memory_equal(&back, &about, sizeof(about));
    for (size_t cut = 0; cut < len; cut++)
        if (cut != before)
            assert_err(HTH_E_TRUNCATED, hth_about_read(bytes, cut, &back));
    assert_ok(hth_about_read(bytes, before, &back));
    assert_int_equal(back.refusal_count, 0);
    static const struct {
        size_t at;
        uint8_t byte;
        enum hth_err err;
    } bad[] = {{7, 0x80, HTH_E_RANGE},
               {36, 3, HTH_E_RANGE},
               {38, HTH_VERSION_LEN_MAX + 1, HTH_E_TOO_LARGE},
               {39, '\x1b', HTH_E_MALFORMED},
               {45, 1, HTH_E_TOO_LARGE}, /* 257 peers */
               {79, 5, HTH_E_MALFORMED},
               {102, HTH_ABOUT_REFUSALS_MAX + 1, HTH_E_TOO_LARGE},
               {103, HTH_ABOUT_REASON_MAX + 1, HTH_E_TOO_LARGE},
               {104, ' ', HTH_E_MALFORMED}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        uint8_t good = bytes[bad[i].at];
        bytes[bad[i].at] = bad[i].byte;
        assert_err(bad[i].err, hth_about_read(bytes, len, &back));
        bytes[bad[i].at] = good;
    }
    about.peer_count = HTH_ABOUT_PEERS_MAX;
    memset(about.version, 'v', HTH_VERSION_LEN_MAX);
    for (int i = 0; i < HTH_ABOUT_REFUSALS_MAX; i++)
        hth_about_refuse(&about, "more", 1);
    assert_int_equal(about.refusal_count, HTH_ABOUT_REFUSALS_MAX);
    for (int i = 0; i < HTH_ABOUT_REFUSALS_MAX; i++)
        memset(about.refusal[i].reason, 'r', HTH_ABOUT_REASON_MAX);
    assert_int_equal(hth_about_write(&about, bytes), HTH_ABOUT_BYTES_MAX);
    assert_ok(hth_about_read(bytes, HTH_ABOUT_BYTES_MAX, &back));
}

TEST(recall_keeps_the_last_hour)
{
    static struct hth_recall_told r;
    (void)state;
    memset(&r, 0, sizeof(r));
    for (uint32_t t = 1000; t < 1000 + 5000; t++) /* each second: a point each ten */
        hth_recall_add(&r, &(struct hth_recall_point){.t = t, .step = t});
    assert_int_equal(r.point_count, HTH_RECALL_POINTS_MAX);
    for (uint32_t i = 0; i < r.point_count; i++)
        assert_int_equal(r.point[i].t, 5999 - 10 * (HTH_RECALL_POINTS_MAX - 1 - i));
    hth_recall_add(&r, &(struct hth_recall_point){.t = 100}); /* a clock that was set back */
    assert_int_equal(r.point[HTH_RECALL_POINTS_MAX - 1].t, 5999);
    for (uint32_t i = 0; i < HTH_RECALL_TESTS_MAX + 3; i++)
        hth_recall_add_test(&r, &(struct hth_recall_test){.t = i});
    assert_int_equal(r.test_count, HTH_RECALL_TESTS_MAX);
    assert_int_equal(r.test[0].t, 3);
}

TEST(recall_survives_round_trip)
{
    static struct hth_recall_told r, back;
    static uint8_t bytes[HTH_RECALL_BYTES_MAX + 2];
    (void)state;
    memset(&r, 0, sizeof(r));
    r = (struct hth_recall_told){.total = 5,
                                 .saved_step = 6,
                                 .saved_t = 7,
                                 .began_t = 8,
                                 .behind = 9,
                                 .forks = 2,
                                 .joined = 3};
    hth_recall_add(&r, &(struct hth_recall_point){11, 12, 13, 1.5f, 2.5f});
    hth_recall_add(&r, &(struct hth_recall_point){31, 32, HTH_RECALL_COUNT_MAX, 3.5f, 4.5f});
    hth_recall_add_test(&r, &(struct hth_recall_test){41, 42, 5.5f, 0.5f, 6.5f});
    size_t len = hth_recall_write(&r, 0, bytes);
    assert_int_equal(len, 28 + 2 * 28 + 24 + 24);
    assert_ok(hth_recall_read(bytes, len + 2, &back)); /* a later version's */
    static uint8_t again[HTH_RECALL_BYTES_MAX];
    assert_int_equal(hth_recall_write(&back, 0, again), len);
    assert_memory_equal(again, bytes, len);
    assert_int_equal(back.point[1].samples, HTH_RECALL_COUNT_MAX);
    assert_true(back.test[0].accuracy == 0.5f);
    assert_int_equal(back.began_t, 8);
    assert_int_equal(back.behind, 9);
    assert_true(back.forks == 2 && back.joined == 3);
    assert_ok(hth_recall_read(bytes, len - 16, &back)); /* earlier versions' */
    assert_true(back.behind == 9 && back.forks == 0 && back.joined == 0);
    assert_ok(hth_recall_read(bytes, len - 24, &back));
    assert_int_equal(back.behind, 0);
    for (size_t cut = 0; cut < len - 24; cut++)
        assert_err(HTH_E_TRUNCATED, hth_recall_read(bytes, cut, &back));
    static const struct {
        size_t at;
        uint8_t byte;
        enum hth_err err;
    } bad[] = {{7, 1, HTH_E_RANGE},
               {15, 1, HTH_E_RANGE}, /* counts */
               {25, 2, HTH_E_TOO_LARGE},
               {26 + 11, 1, HTH_E_RANGE},
               {26 + 28, 11, HTH_E_RANGE},
               {26 + 28, 19, HTH_E_RANGE},
               {26 + 56 + 1, 1, HTH_E_TOO_LARGE},
               {26 + 56 + 13, 1, HTH_E_RANGE},
               {26 + 56 + 2 + 24 + 7, 1, HTH_E_RANGE}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        uint8_t good = bytes[bad[i].at];
        bytes[bad[i].at] = bad[i].byte;
        assert_err(bad[i].err, hth_recall_read(bytes, len, &back));
        bytes[bad[i].at] = good;
    }
}
