/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_monitor.c: a monitor of a simulated run shows what `hearth status` shows of the same
 * answers, notices who comes, goes and dies, remembers, and shows strangers' words as harmless
 * text.
 */
#include "monitor/monitor.h"

#include "averaging/roster.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "dht/announce.h"
#include "dht/peers.h"
#include "experts/message.h"
#include "experts/server.h"
#include "monitor/agree.h"
#include "monitor/inert.h"
#include "monitor/status_json.h"
#include "rpc/rpc.h"
#include "sim/world.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define S         HTH_US_PER_S
#define PORT      4000
#define PEERS_MAX 8

static const struct hth_layer_shape FFN = {.kind = "ffn", .d = 8, .block_rows = 1};

struct peer {
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_announcer *ann;
    struct hth_roster *roster; /* of a trainer */
    uint32_t first, count;     /* of a host's experts */
    uint32_t asked;            /* times */
    struct hth_about about;
    struct hth_recall_told told;
};

static struct {
    struct hth_world *world;
    struct peer peer[PEERS_MAX];
    size_t peers;
    const char *network, *layer;
    struct hth_node *watcher;
    struct hth_census *census;
    struct hth_monitor *m;
    uint32_t news;
    json_t *run, *status; /* of the newest view */
    char *text;           /* run.json */
} fx;

static int set_up(void **state)
{
    (void)state;
    memset(&fx, 0, sizeof(fx));
    fx.world = hth_world_new(5, NULL);
    fx.network = "net";
    fx.layer = "ffn0.4.4";
    return 0;
}

static void stop_watching(void)
{
    hth_monitor_free(fx.m);
    hth_census_free(fx.census);
    fx.m = NULL;
    fx.census = NULL;
}

static int tear_down(void **state)
{
    (void)state;
    stop_watching();
    json_decref(fx.run);
    json_decref(fx.status);
    hth_free(fx.text);
    hth_world_free(fx.world);
    return 0;
}

/* ---- a run ---------------------------------------------------------------------------------- */

static void about(void *arg, struct hth_rpc_request *req)
{
    static uint8_t bytes[HTH_ABOUT_BYTES_MAX];
    struct peer *p = arg;
    p->asked++;
    const struct hth_rpc_body body = {.payload = bytes,
                                      .payload_len = hth_about_write(&p->about, bytes)};
    hth_rpc_reply(req, &body);
}

static void list(void *arg, struct hth_rpc_request *req)
{
    const struct peer *p = arg;
    struct hth_expert_info infos[16];
    struct hth_rpc_body body = {0};
    struct hth_grid grid;
    uint8_t *bytes;
    assert_ok(hth_grid_parse(fx.layer, strlen(fx.layer), &grid));
    for (uint32_t i = 0; i < p->count; i++) {
        char uid[HTH_UID_TEXT_MAX];
        infos[i] = (struct hth_expert_info){.kind = "ffn", .d = 8, .block_rows = 1};
        snprintf(infos[i].uid, sizeof(infos[i].uid), "%s",
                 hth_grid_uid_text(&grid, p->first + i, uid));
    }
    hth_info_reply_pack(infos, p->count, p->count, &bytes, &body.payload_len);
    body.payload = bytes;
    hth_rpc_reply(req, &body);
    hth_free(bytes);
}

static void recall(void *arg, struct hth_rpc_request *req)
{
    static uint8_t bytes[HTH_RECALL_BYTES_MAX];
    struct peer *p = arg;
    size_t len;
    const uint8_t *after = hth_rpc_payload(req, &len);
    assert_int_equal(len, 4);
    struct hth_rpc_body body = {.payload = bytes};
    body.payload_len = hth_recall_write(&p->told, hth_load_u32le(after), bytes);
    hth_rpc_reply(req, &body);
}

static void on_halt(struct hth_env *env, void *arg)
{
    struct peer *p = arg;
    (void)env;
    hth_roster_free(p->roster);
    hth_announcer_free(p->ann);
    hth_rpc_free(p->rpc);
}

static struct peer *add_peer(enum hth_role role, const char *version)
{
    struct peer *p = &fx.peer[fx.peers];
    struct hth_rpc_opts rpc_opts = HTH_RPC_OPTS_INIT;
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    const struct hth_node_opts node_opts = {.halt = on_halt, .arg = p};
    char name[16];
    snprintf(name, sizeof(name), "peer%zu", fx.peers++);
    p->node = hth_world_node(fx.world, name, &node_opts);
    p->env = hth_node_env(p->node);
    struct hth_addr addr = hth_node_addr(p->node, PORT);
    rpc_opts.network = fx.network;
    rpc_opts.listen = &addr;
    assert_ok(hth_rpc_new(p->env, &rpc_opts, &p->rpc));
    p->about.started_us = hth_wall_us(p->env);
    snprintf(p->about.version, sizeof(p->about.version), "%s", version);
    hth_rpc_serve(p->rpc, HTH_METHOD_ABOUT, about, p);
    opts.network = fx.network;
    opts.role = role;
    opts.info.addr_count = 1;
    opts.info.addr[0] = addr;
    assert_ok(hth_announcer_new(p->env, hth_node_dht(p->node), &opts, &p->ann));
    return p;
}

static struct peer *add_host(uint32_t first, uint32_t count)
{
    struct peer *p = add_peer(HTH_ROLE_HOST, "1.2.3");
    struct hth_grid grid;
    uint32_t index[16];
    const struct hth_expert_list experts = {index, count};
    for (uint32_t i = 0; i < count; i++)
        index[i] = first + i;
    p->first = first;
    p->count = count;
    p->about.rows = 1000;
    p->about.rows_per_s = 77;
    p->about.queue_ms = 5;
    hth_rpc_serve(p->rpc, HTH_METHOD_EXPERT_INFO, list, p);
    assert_ok(hth_grid_parse(fx.layer, strlen(fx.layer), &grid));
    assert_ok(hth_announcer_set_layer(p->ann, &grid, &FFN, &experts));
    return p;
}

static uint32_t wall_s(void)
{
    return (uint32_t)(hth_wall_us(fx.peer[0].env) / S);
}

/* Remembers one step more for each ten seconds of the last so many. */
static struct peer *add_trainer(uint32_t remembers)
{
    struct peer *p = add_peer(HTH_ROLE_TRAINER, "1.2.3");
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;
    o.network = fx.network;
    o.schema = 7;
    o.addr = hth_node_addr(p->node, PORT);
    assert_ok(hth_roster_new(p->env, hth_node_dht(p->node), &o, &p->roster));
    p->told.total = 1000;
    for (uint32_t i = 0; i < remembers; i++) {
        const struct hth_recall_point point = {wall_s() - 10 * (remembers - i), i + 1, 64 * (i + 1),
                                               (float)(2 + p->env->self.b[0] / 256.0), 6.5f};
        hth_recall_add(&p->told, &point);
    }
    hth_rpc_serve(p->rpc, HTH_METHOD_RECALL, recall, p);
    hth_roster_set_progress(p->roster, remembers, 0, 6.5);
    return p;
}

static void step(struct peer *p, uint64_t at)
{
    const struct hth_recall_point point = {wall_s(), at, 64 * at, 1.5f, 6.5f};
    hth_recall_add(&p->told, &point);
    hth_roster_set_progress(p->roster, at, 0, 6.5);
}

/* ---- watching ------------------------------------------------------------------------------- */

static void on_new(void *arg)
{
    struct hth_run_now now;
    (void)arg;
    fx.news++;
    json_decref(fx.run);
    json_decref(fx.status);
    hth_free(fx.text);
    hth_monitor_now(fx.m, &now);
    now.gallery = hth_gallery_new();
    hth_gallery_add(now.gallery, "a prompt", "its answer");
    fx.run = hth_run_json(&now, true);
    hth_gallery_unref(now.gallery);
    fx.text = hth_run_json_text_take(json_incref(fx.run));
    fx.status = hth_status_json(hth_monitor_gather(fx.m));
}

static void watch(const char *dir)
{
    struct hth_monitor_opts opts = {.dir = dir, .version = "1.2.3", .on_new = on_new};
    if (fx.watcher == NULL)
        fx.watcher = hth_world_node(fx.world, "watcher", NULL);
    struct hth_env *env = hth_node_env(fx.watcher);
    assert_ok(hth_census_new(env, hth_node_dht(fx.watcher), NULL, &fx.census));
    opts.census = fx.census;
    opts.join_command = "hearth serve --run FILE --join ADDR:PORT";
    opts.join_ask = "";
    assert_ok(hth_monitor_new(env, hth_node_dht(fx.watcher), &opts, &fx.m));
}

static bool has_news(void *arg)
{
    return fx.news >= *(uint32_t *)arg;
}

static void see(uint32_t more)
{
    uint32_t want = fx.news + more;
    assert_true(hth_world_run_until_true(fx.world, has_news, &want, (more + 2) * 20 * S));
}

static double number(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    if (!json_is_number(v))
        fail_msg("%s is no number", name);
    return json_number_value(v);
}

static const char *text(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_string(v) ? json_string_value(v) : "";
}

static const json_t *peer_of(const struct peer *p)
{
    char id[HTH_PEER_SHORT_LEN];
    size_t i;
    json_t *o;
    hth_peer_id_short(&p->env->self, id);
    json_array_foreach(json_object_get(fx.run, "peers"), i,
                       o) if (strcmp(text(o, "id"), id) == 0) return o;
    return NULL;
}

static uint32_t events(const char *kind)
{
    uint32_t n = 0;
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(fx.run, "events"), i, o) n +=
        strcmp(text(o, "kind"), kind) == 0;
    return n;
}

/* ---- truth ---------------------------------------------------------------------------------- */

static void check_node(const json_t *node, const json_t *peer)
{
    static const char *const same[][2] = {{"seen_s", "seen_s"},
                                          {"experts", "experts"},
                                          {"served", "rows"},
                                          {"queue_ms", "queue_ms"},
                                          {"rows_per_s", "able_rows_per_s"},
                                          {"up_s", "up_s"},
                                          {"unsaved_s", "unsaved_s"}};
    bool host = strcmp(text(node, "role"), "host") == 0;
    for (size_t i = 0; i < HTH_ARRAY_LEN(same); i++) {
        const json_t *a = json_object_get(node, same[i][0]), *b = json_object_get(peer, same[i][1]);
        if (!host && json_is_null(b))
            continue;
        assert_true(a == NULL ? json_is_null(b)
                              : fabs(json_number_value(a) - json_number_value(b)) <=
                                    1e-5 * json_number_value(a));
    }
    assert_string_equal(text(node, "role"), text(peer, "role"));
    assert_string_equal(text(node, "version"), text(peer, "version"));
    assert_string_equal(text(node, "compute"), text(peer, "compute"));
    assert_int_equal(json_is_true(json_object_get(node, "silent")),
                     strcmp(text(peer, "state"), "silent") == 0);
    assert_int_equal(json_is_false(json_object_get(node, "reachable")),
                     strcmp(text(peer, "state"), "silent") == 0 ||
                         strcmp(text(peer, "state"), "unreachable") == 0);
}

/* Compares each figure that both have, made from the same answers. */
static void equals_status(void)
{
    json_t *node, *peer, *layer;
    size_t i, j;
    uint32_t hosts = 0, trainers = 0, silent = 0, found = 0;
    assert_string_equal(text(fx.run, "run"), text(fx.status, "run"));
    json_array_foreach(json_object_get(fx.status, "nodes"), i, node)
    {
        bool lives = !json_is_true(json_object_get(node, "silent"));
        hosts += lives && strcmp(text(node, "role"), "host") == 0;
        trainers += lives && strcmp(text(node, "role"), "trainer") == 0;
        silent += !lives;
        json_array_foreach(json_object_get(fx.run, "peers"), j,
                           peer) if (strncmp(text(peer, "id"), text(node, "id"), 8) == 0)
        {
            check_node(node, peer);
            found++;
        }
    }
    assert_int_equal(found, json_array_size(json_object_get(fx.status, "nodes")));
    assert_int_equal(found, json_array_size(json_object_get(fx.run, "peers")));
    assert_int_equal(number(fx.run, "hosts"), hosts);
    assert_int_equal(number(fx.run, "trainers"), trainers);
    assert_int_equal(number(fx.run, "silent"), silent);
    json_array_foreach(json_object_get(fx.status, "layers"), i, layer)
    {
        const json_t *mine = json_array_get(json_object_get(fx.run, "layers"), i);
        static const char *const counts[] = {"places", "served", "twice"};
        for (size_t c = 0; c < HTH_ARRAY_LEN(counts); c++)
            assert_true(number(layer, counts[c]) == number(mine, counts[c]));
        assert_string_equal(text(layer, "name"), text(mine, "name"));
        assert_true(json_equal(json_object_get(layer, "grid"), json_object_get(mine, "grid")));
    }
    json_array_foreach(json_object_get(fx.status, "trainers"), i, node)
        json_array_foreach(json_object_get(fx.run, "peers"), j,
                           peer) if (strncmp(text(peer, "id"), text(node, "id"), 8) == 0)
    {
        assert_true(number(peer, "step") == number(node, "step"));
        assert_true(number(peer, "samples_per_s") == number(node, "samples_per_s"));
    }
}

/* Every key of one object is in the other, in the same order. */
static void same_keys(json_t *a, json_t *b, const char *where)
{
    void *x = json_object_iter(a), *y = json_object_iter(b);
    for (; x != NULL && y != NULL; x = json_object_iter_next(a, x), y = json_object_iter_next(b, y))
        if (strcmp(json_object_iter_key(x), json_object_iter_key(y)) != 0)
            fail_msg("%s: %s, not %s", where, json_object_iter_key(x), json_object_iter_key(y));
    assert_true(x == NULL && y == NULL);
}

static void same_shape_as_the_example(void)
{
    static const char *const lists[] = {"peers", "layers", "events"}, *const objects[] = {
                                                                          "join", "gallery",
                                                                          "tests", "history"};
    json_t *example = json_load_file("tests/monitor/run.json", 0, NULL);
    assert_non_null(example);
    same_keys(fx.run, example, "run.json");
    for (size_t i = 0; i < HTH_ARRAY_LEN(lists); i++)
        same_keys(json_array_get(json_object_get(fx.run, lists[i]), 0),
                  json_array_get(json_object_get(example, lists[i]), 0), lists[i]);
    for (size_t i = 0; i < HTH_ARRAY_LEN(objects); i++)
        same_keys(json_object_get(fx.run, objects[i]), json_object_get(example, objects[i]),
                  objects[i]);
    json_decref(example);
}

static void tells_no_address(void)
{
    char addr[HTH_ADDR_TEXT_MAX];
    for (size_t i = 0; i < fx.peers; i++) {
        const struct hth_addr at = hth_node_addr(fx.peer[i].node, PORT);
        *strrchr(hth_addr_text(&at, addr), ':') = '\0';
        assert_null(strstr(fx.text, addr));
    }
}

static void figures_equal_those_of_status(void **state)
{
    (void)state;
    add_host(0, 6);
    add_host(4, 4)->about.unsaved_since_us = hth_wall_us(fx.peer[0].env) - 7 * S;
    add_host(12, 4)->about.reach = HTH_REACH_NO;
    struct peer *dead = add_host(8, 2);
    struct peer *t = add_trainer(30);
    add_trainer(10);
    hth_world_run_for(fx.world, 15 * S);
    hth_node_crash(dead->node, HTH_CRASH_RESET);
    watch(NULL);
    see(1);
    equals_status();
    tells_no_address();
    assert_string_equal(text(fx.run, "state"), "training");
    assert_int_equal(number(fx.run, "served"), 8);
    assert_int_equal(number(fx.run, "total"), 1000);
    assert_int_equal(number(fx.run, "step"), 10); /* more than half of two reach it */
    assert_true(number(fx.run, "samples_per_s") == 13);
    assert_int_equal(number(fx.run, "samples"), 64 * 40);
    t->about.rows = 0;
    fx.peer[0].about.rows += 500;
    add_host(10, 1);
    see(3);
    equals_status();
    same_shape_as_the_example();
    assert_int_equal(number(fx.run, "seq"), 4);
    /* Hosts of an expert are peers of the list. */
    const json_t *layer = json_array_get(json_object_get(fx.run, "layers"), 0);
    const json_t *hosts = json_array_get(json_object_get(layer, "hosts"), 4);
    assert_int_equal(json_array_size(hosts), 2);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(layer, "replicas"), 4)), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *peer = json_array_get(json_object_get(fx.run, "peers"),
                                            (size_t)json_integer_value(json_array_get(hosts, i)));
        assert_true(peer == peer_of(&fx.peer[0]) || peer == peer_of(&fx.peer[1]));
    }
}

/* ---- who comes and goes --------------------------------------------------------------------- */

static double served(void)
{
    return number(fx.run, "served");
}

static bool shows_death(void *arg)
{
    (void)arg;
    return served() == 4;
}

static void deaths_and_arrivals_are_shown(void **state)
{
    (void)state;
    add_host(0, 4);
    struct peer *dies = add_host(4, 4), *t = add_trainer(3);
    hth_world_run_for(fx.world, 10 * S);
    watch(NULL);
    see(2);
    assert_int_equal(served(), 8);
    assert_int_equal(json_array_size(json_object_get(fx.run, "events")), 0);
    hth_node_crash(dies->node, HTH_CRASH_SILENT);
    assert_true(hth_world_run_until_true(fx.world, shows_death, NULL, 15 * S));
    see(2);
    assert_int_equal(events("killed"), 1);
    assert_non_null(strstr(fx.text, "4 experts are not served"));
    add_host(4, 3);
    see(2);
    assert_int_equal(served(), 7);
    assert_int_equal(events("joined"), 1);
    assert_int_equal(events("replaced"), 1);
    assert_non_null(strstr(fx.text, "serves 3 experts that nobody served"));
    /* A trainer says goodbye. */
    assert_int_equal(number(fx.run, "trainers"), 1);
    hth_roster_leave(t->roster, NULL, NULL);
    hth_announcer_withdraw(t->ann, NULL, NULL);
    see(2);
    assert_int_equal(number(fx.run, "trainers"), 0);
    assert_string_equal(text(fx.run, "state"), "idle");
    see(1);
    assert_int_equal(events("left"), 1);
    /* The dead host's record ends: no second event. */
    see(10);
    assert_int_equal(events("left"), 1);
    assert_int_equal(events("killed"), 1);
    assert_int_equal(number(fx.run, "silent"), 0);
}

/* Its record says goodbye to nobody. */
static void a_killed_trainer_counts_for_a_records_life_at_most(void **state)
{
    (void)state;
    add_trainer(3);
    struct peer *dies = add_trainer(3);
    hth_world_run_for(fx.world, 10 * S);
    watch(NULL);
    see(1);
    assert_int_equal(number(fx.run, "trainers"), 2);
    hth_node_crash(dies->node, HTH_CRASH_SILENT);
    see(7);
    assert_int_equal(number(fx.run, "trainers"), 1);
}

static void stragglers_and_checkpoints_are_told(void **state)
{
    (void)state;
    struct peer *t[3];
    for (int i = 0; i < 3; i++)
        t[i] = add_trainer(3);
    hth_world_run_for(fx.world, 10 * S);
    watch(NULL);
    for (uint64_t round = 1; round <= 30; round++) {
        for (int i = 0; i < 3; i++)
            step(t[i], i < 2 ? 10 * round : 5); /* the third one stands still */
        if (round == 1)
            t[2]->told.forks = 7; /* before anybody watched */
        if (round == 10)
            t[0]->told.forks = t[1]->told.forks = 1;
        if (round == 15)
            t[1]->told.joined = 1;
        if (round == 20) {
            t[0]->told.saved_step = t[1]->told.saved_step = 200;
            t[0]->told.saved_t = t[1]->told.saved_t = wall_s();
        }
        if (round == 25) {
            t[0]->told.saved_step = t[1]->told.saved_step = 250;
            t[0]->told.saved_t = t[1]->told.saved_t = wall_s();
        }
        see(1);
    }
    assert_int_equal(events("behind"), 1);
    assert_int_equal(events("fork"), 1);
    assert_int_equal(events("heal"), 1);
    assert_non_null(strstr(fx.text, "and 1 more went on without a quorum"));
    assert_int_equal(events("checkpoint"), 1); /* the newest of two in a row */
    assert_non_null(strstr(fx.text, "saved step 250\""));
    assert_int_equal(number(json_object_get(fx.run, "checkpoint"), "step"), 250);
    assert_int_equal(number(fx.run, "step"), 300);
    assert_in_range(number(fx.run, "left_s"), 600, 800); /* 700 steps, one a second */
    /* Nobody steps: the run waits. */
    see(8);
    assert_string_equal(text(fx.run, "state"), "waiting");
    for (int i = 0; i < 3; i++)
        step(t[i], 1000);
    see(2);
    assert_string_equal(text(fx.run, "state"), "done");
    for (int i = 0; i < 3; i++) {
        hth_roster_leave(t[i]->roster, NULL, NULL);
        hth_announcer_withdraw(t[i]->ann, NULL, NULL);
    }
    see(3);
    assert_int_equal(number(fx.run, "trainers"), 0);
    assert_string_equal(text(fx.run, "state"), "done");
}

static void peers_are_asked_once_in_ten_seconds(void **state)
{
    (void)state;
    add_host(0, 4);
    add_trainer(3);
    hth_world_run_for(fx.world, 10 * S);
    watch(NULL);
    see(1);
    uint32_t before[2] = {fx.peer[0].asked, fx.peer[1].asked};
    hth_world_run_for(fx.world, 600 * S);
    for (int i = 0; i < 2; i++)
        assert_in_range(fx.peer[i].asked - before[i], 58, 60);
}

/* ---- memory --------------------------------------------------------------------------------- */

static const json_t *column(const char *name)
{
    return json_object_get(json_object_get(fx.run, "history"), name);
}

static void a_late_start_is_filled_by_trainers(void **state)
{
    (void)state;
    struct peer *t = add_trainer(300);
    add_trainer(300);
    add_trainer(100);
    hth_recall_add_test(&t->told, &(struct hth_recall_test){wall_s() - 60, 250, 1.25f, 0.5f, NAN});
    t->told.began_t = wall_s() - 4000;
    hth_world_run_for(fx.world, 10 * S);
    watch(NULL);
    see(1);
    size_t n = json_array_size(column("t"));
    assert_in_range(n, 299, 303);
    json_int_t last = 0, samples = 0;
    for (size_t i = 0; i < n; i++) {
        json_int_t at = json_integer_value(json_array_get(column("t"), i));
        assert_true(at > last);
        last = at;
        at = json_integer_value(json_array_get(column("samples"), i));
        assert_true(at >= samples && (i < 20 || at > 0));
        samples = at;
        assert_true(i + 5 > n || json_is_null(json_array_get(column("hosts"), i)));
    }
    assert_int_equal(json_integer_value(json_array_get(column("step"), 10)), 11);
    assert_int_equal(json_integer_value(json_array_get(column("trainers"), 250)), 3);
    /* The median of three, two of which agree. */
    assert_in_range(json_integer_value(json_array_get(column("step"), 250)), 245, 255);
    assert_int_equal(samples, number(fx.run, "samples"));
    assert_int_equal(samples, 64 * (300 + 300 + 100));
    assert_int_equal(number(fx.run, "since_at_s"), t->told.began_t);
    assert_true(number(json_object_get(fx.run, "test"), "loss") == 1.25);
    assert_true(json_is_null(json_object_get(json_object_get(fx.run, "test"), "bits_per_byte")));
    assert_int_equal(json_array_size(json_object_get(json_object_get(fx.run, "tests"), "t")), 1);
}

/* The first answers may come without a trainer's: it was there before all the same. */
static void a_trainer_that_is_met_late_counts_whole(void **state)
{
    (void)state;
    add_host(0, 4);
    hth_world_run_for(fx.world, 10 * S);
    watch(NULL);
    see(2);
    assert_int_equal(number(fx.run, "samples"), 0);
    add_trainer(3);
    see(2);
    assert_int_equal(number(fx.run, "samples"), 64 * 3);
}

static void a_restart_goes_on(void **state)
{
    (void)state;
    struct peer *t = add_trainer(3);
    hth_world_run_for(fx.world, 10 * S);
    watch("monitor");
    for (uint64_t i = 0; i < 20; i++) {
        step(t, 10 + i);
        see(1);
    }
    size_t n = json_array_size(column("t"));
    double samples = number(fx.run, "samples");
    assert_int_equal(samples, 64 * 29);
    add_host(0, 4);
    see(2);
    assert_int_equal(events("joined"), 1);
    stop_watching();
    /* Ten minutes without it, in which the trainer went on. */
    for (uint64_t i = 0; i < 60; i++) {
        step(t, 30 + i);
        hth_world_run_for(fx.world, 10 * S);
    }
    watch("monitor");
    see(1);
    assert_in_range(json_array_size(column("t")), n + 58, n + 63);
    /* A point of the ten seconds in which it stopped may count for either. */
    assert_in_range(number(fx.run, "samples"), 64 * 88, 64 * 89);
    assert_int_equal(number(fx.run, "seq"), 1);
    assert_int_equal(events("joined"), 1); /* of the process before */
    assert_int_equal(json_array_size(json_object_get(fx.run, "events")), 1);
}

/* ---- strangers ------------------------------------------------------------------------------ */

#define RTL "\xE2\x80\xAE" /* U+202E */

static void hostile_words_are_inert(void **state)
{
    (void)state;
    fx.network = "<img-src=x-onerror=alert(1)>\"'&{";
    fx.layer = "\xC2\xAD<b>{\"a\":1}.4.4"; /* a soft hyphen, which is not seen */
    add_host(0, 4);
    snprintf(fx.peer[0].about.version, sizeof(fx.peer[0].about.version),
             "<img/onerror=alert(1)>\"");
    add_trainer(3);
    hth_world_run_for(fx.world, 10 * S);
    watch(NULL);
    see(2);
    assert_string_equal(text(fx.run, "run"), "<img-src=x-onerror=alert(1)>\"'&{");
    const json_t *layer = json_array_get(json_object_get(fx.run, "layers"), 0);
    assert_string_equal(text(layer, "name"), "\xEF\xBF\xBD<b>{\"a\":1}");
    assert_int_equal(number(layer, "served"), 4);
    assert_string_equal(text(peer_of(&fx.peer[0]), "version"), "<img/onerror=alert(1)>\"");
    json_t *back = json_loads(fx.text, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_equal(back, fx.run));
    json_decref(back);
    for (const char *p = fx.text; *p != '\0'; p++)
        assert_true((unsigned char)*p >= ' ');
    assert_null(strstr(fx.text, RTL));
}

/* A trainer's word for everything, as far from the others' as can be told. */
static void tell_lies(struct peer *liar, bool high)
{
    uint64_t count = high ? HTH_RECALL_COUNT_MAX : 1;
    for (uint32_t s = 3590; s > 0; s -= 10)
        hth_recall_add(&liar->told,
                       &(struct hth_recall_point){wall_s() - s, count, count, high ? 1e30f : 1e-30f,
                                                  high ? 1e30f : 1e-30f});
    for (uint32_t i = 0; i < HTH_RECALL_TESTS_MAX; i++)
        hth_recall_add_test(&liar->told,
                            &(struct hth_recall_test){wall_s() - HTH_RECALL_TESTS_MAX + i, count,
                                                      high ? 1e30f : 1e-30f, high, NAN});
    liar->told.total = liar->told.saved_step = liar->told.behind = count;
    liar->told.saved_t = high ? wall_s() : 1;
    liar->told.began_t = high ? wall_s() : 1;
    hth_roster_set_progress(liar->roster, high ? UINT64_C(1) << 60 : 0, 0, high ? 1e30 : 1e-30);
}

/* 30 steps in 5 minutes, tests at 10 and 20, a checkpoint at 20. */
static struct peer *add_honest_trainer(uint32_t others)
{
    struct peer *p = add_trainer(30);
    p->told.began_t = wall_s() - 310;
    p->told.saved_step = 20;
    p->told.saved_t = wall_s() - 90;
    p->told.behind = 64 * 30 * (others + 1);
    for (uint32_t i = 1; i <= 2; i++)
        hth_recall_add_test(&p->told,
                            &(struct hth_recall_test){wall_s() - 300 + 100 * i, 10 * i,
                                                      2.f / (float)i, 0.25f * (float)i, NAN});
    return p;
}

static void one_lies(uint32_t trainers, bool high)
{
    const json_t *tests, *checkpoint;
    double whole = 64 * 30 * (trainers - 1);
    struct peer *liar = add_trainer(0);
    uint32_t began = wall_s() - 310;
    tell_lies(liar, high);
    for (uint32_t i = 1; i < trainers; i++)
        add_honest_trainer(trainers - 2);
    hth_world_run_for(fx.world, 10 * S);
    watch(NULL);
    see(3);
    assert_int_equal(number(fx.run, "step"), 30);
    assert_int_equal(number(fx.run, "total"), 1000);
    assert_in_range(number(fx.run, "loss"), 2, 3);
    assert_true(number(fx.run, "since_at_s") == began);
    checkpoint = json_object_get(fx.run, "checkpoint");
    assert_int_equal(number(checkpoint, "step"), 20);
    assert_int_equal(number(checkpoint, "t"), began + 310 - 90);
    tests = json_object_get(fx.run, "tests");
    assert_int_equal(json_array_size(json_object_get(tests, "t")), 2);
    assert_true(number(json_object_get(fx.run, "test"), "loss") == 1);
    assert_true(number(json_object_get(fx.run, "test"), "accuracy") == 0.5);
    assert_int_equal(number(json_object_get(fx.run, "test"), "step"), 20);
    assert_in_range(json_array_size(column("t")), 32, 36); /* not an hour */
    /* All the same it is one trainer, and as quick as one can be. */
    assert_true(number(fx.run, "samples") >= whole);
    assert_true(number(fx.run, "samples") <= whole + 20 * 64 * 30);
    assert_true(number(fx.run, "samples_per_s") >= 6.5 * (trainers - 1));
    assert_true(number(fx.run, "samples_per_s") <= 6.5 * (trainers - 1 + 20));
}

static void one_liar_of_three_decides_nothing(void **state)
{
    bool *high = *state;
    one_lies(3, *high);
}

static void one_liar_of_five_decides_nothing(void **state)
{
    bool *high = *state;
    one_lies(5, *high);
}

/* Its parameters have others' samples behind them, which are counted already. */
static void a_fetched_state_adds_no_samples(void **state)
{
    (void)state;
    struct peer *t = add_trainer(30), *newcomer = add_trainer(0);
    t->told.behind = 64 * 30;
    hth_world_run_for(fx.world, 10 * S);
    watch(NULL);
    see(1);
    assert_int_equal(number(fx.run, "samples"), 64 * 30);
    newcomer->told.behind = 64 * 32;
    hth_recall_add(&newcomer->told, &(struct hth_recall_point){wall_s(), 32, 64 * 2, 2.f, 6.5f});
    see(1);
    assert_int_equal(number(fx.run, "samples"), 64 * 32);
    stop_watching();
    watch(NULL);
    see(1);
    assert_int_equal(number(fx.run, "samples"), 64 * 32);
}

/* It has no points to tell that the history lacks, and goes on from what it had. */
static void a_pause_adds_no_samples(void **state)
{
    (void)state;
    struct peer *t = add_trainer(3);
    t->told.began_t = wall_s() - 30;
    hth_world_run_for(fx.world, 10 * S);
    watch("monitor");
    step(t, 10);
    see(1);
    for (int restart = 0; restart < 2; restart++) {
        see(30);
        assert_int_equal(number(fx.run, "samples"), 64 * (10 + restart));
        step(t, 11 + (uint64_t)restart);
        see(2);
        assert_int_equal(number(fx.run, "samples"), 64 * (11 + restart));
        stop_watching();
        watch("monitor");
    }
}

static void numbers_that_most_agree_on(void **state)
{
    static const struct {
        double told[5];
        size_t count;
        double agreed, most;
    } rows[] = {{{0}, 0, NAN, INFINITY},     {{7}, 1, 7, 140},
                {{9, 7}, 2, 7, 140},         {{1e300, 7, 8}, 3, 8, 160},
                {{-1e300, 7, 8}, 3, 7, 140}, {{0, 0, 3, 0, 5}, 5, 0, 60},
                {{0, 0, 0}, 3, 0, INFINITY}};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(rows); i++) {
        double told[5], most[5];
        memcpy(told, rows[i].told, sizeof(told));
        memcpy(most, rows[i].told, sizeof(most));
        double agreed = hth_agreed(told, rows[i].count);
        assert_true(rows[i].count == 0 ? isnan(agreed) : agreed == rows[i].agreed);
        assert_true(hth_agreed_most(most, rows[i].count) == rows[i].most);
    }
}

static void lies_are_bounded(void **state)
{
    (void)state;
    add_trainer(3);
    add_trainer(3);
    struct peer *liar = add_trainer(0);
    /* Of the day before, in the places of the newest rows. */
    uint32_t day = wall_s() - 86400;
    for (uint32_t t = day - 40; t < day + 40; t += 10)
        hth_recall_add(&liar->told, &(struct hth_recall_point){.t = t, .step = 77});
    const struct hth_recall_point point = {wall_s(), HTH_RECALL_COUNT_MAX, HTH_RECALL_COUNT_MAX,
                                           INFINITY, -INFINITY};
    hth_recall_add(&liar->told, &point);
    for (uint32_t i = 0; i < HTH_RECALL_TESTS_MAX; i++)
        hth_recall_add_test(&liar->told,
                            &(struct hth_recall_test){UINT32_MAX - i, 1, 1e-30f, NAN, INFINITY});
    liar->told.saved_step = HTH_RECALL_COUNT_MAX;
    liar->told.saved_t = liar->told.began_t = UINT32_MAX;
    hth_roster_set_progress(liar->roster, UINT64_C(1) << 60, 0, 1e30);
    hth_world_run_for(fx.world, 10 * S);
    watch(NULL);
    see(3);
    assert_int_equal(number(fx.run, "step"), 3);
    assert_in_range(number(fx.run, "loss"), 2, 3);
    assert_in_range(json_array_size(column("t")), 5, 7); /* 3 recalled, 3 seen */
    assert_in_range(json_integer_value(json_array_get(column("t"), 0)), day + 86360, day + 86400);
    assert_true(json_is_null(json_object_get(fx.run, "test")));
    assert_true(json_is_null(json_object_get(fx.run, "checkpoint")));
    assert_true(number(fx.run, "since_at_s") < wall_s());
}

/* Nobody answers: what is shown says so, and its clock goes on. */
static void an_empty_swarm_is_looked_for(void **state)
{
    (void)state;
    watch(NULL);
    see(3);
    assert_string_equal(text(fx.run, "state"), "looking");
    assert_true(json_is_null(json_object_get(fx.run, "run")));
    assert_int_equal(json_array_size(json_object_get(fx.run, "peers")), 0);
}

static void text_becomes_inert(void **state)
{
    static const char *const rows[][2] = {
        {"plain <b>", "plain <b>"},
        {"a\x1b[31mb\n", "a\xEF\xBF\xBD[31mb\xEF\xBF\xBD"},
        {"\xC3\xBC\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xBC\xE2\x82\xAC\xF0\x9F\x98\x80"},
        {RTL "\xE2\x81\xA6x", "\xEF\xBF\xBD\xEF\xBF\xBDx"},
        {"\xC2\x9B", "\xEF\xBF\xBD"}, /* C1 */
        {"\xFF\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* a surrogate */
        {"\xE2\x82", "\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* cut */
    };
    char out[64];
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(rows); i++)
        assert_string_equal(hth_inert(rows[i][0], out, sizeof(out)), rows[i][1]);
    assert_string_equal(hth_inert("\xC3\xBC\xC3\xBC", out, 4), "\xC3\xBC"); /* no half character */
    char *large = hth_new_array(char, 65537);
    memset(large, '\x02', 65536);
    assert_int_equal(strlen(hth_inert(large, out, sizeof(out))), 63);
    hth_free(large);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define LIES(name, high)                                                                           \
    {                                                                                              \
#name, name, set_up, tear_down, high                                                       \
    }

int main(void)
{
    static bool low, high = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_becomes_inert),
        cmocka_unit_test(numbers_that_most_agree_on),
        TEST(figures_equal_those_of_status),
        TEST(deaths_and_arrivals_are_shown),
        TEST(a_killed_trainer_counts_for_a_records_life_at_most),
        TEST(stragglers_and_checkpoints_are_told),
        TEST(peers_are_asked_once_in_ten_seconds),
        TEST(a_late_start_is_filled_by_trainers),
        TEST(a_trainer_that_is_met_late_counts_whole),
        TEST(a_restart_goes_on),
        TEST(hostile_words_are_inert),
        TEST(lies_are_bounded),
        LIES(one_liar_of_three_decides_nothing, &low),
        LIES(one_liar_of_three_decides_nothing, &high),
        LIES(one_liar_of_five_decides_nothing, &low),
        LIES(one_liar_of_five_decides_nothing, &high),
        TEST(a_fetched_state_adds_no_samples),
        TEST(a_pause_adds_no_samples),
        TEST(an_empty_swarm_is_looked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
