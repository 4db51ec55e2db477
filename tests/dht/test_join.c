/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_join.c: all results of a join, the census, and the peer cache with every kind of damage.
 */
#include "dht/peers.h"

#include "core/bytes.h"
#include "core/mem.h"
#include "dht/board.h"
#include "dht/census_int.h"
#include "dht/listing.h"
#include "sim/world.h"
#include "support/suite.h"

#define S HTH_US_PER_S

static struct {
    struct hth_world *world;
    struct hth_node *boot, *newcomer;
    struct hth_announcer *ann;
    struct hth_join *join;
    struct hth_listener *listener;
    struct hth_join_result result;
    int done;
} fx;

static void on_done(void *arg, const struct hth_join_result *result)
{
    (void)arg;
    fx.result = *result;
    fx.done++;
}

static void begin(int64_t boot_skew_us)
{
    struct hth_node_opts skewed = HTH_NODE_OPTS_INIT;
    memset(&fx, 0, sizeof(fx));
    skewed.wall_skew_us = boot_skew_us;
    fx.world = hth_world_new(5, NULL);
    fx.boot = hth_world_node(fx.world, "boot", &skewed);
    fx.newcomer = hth_world_node(fx.world, "newcomer", NULL);
}

static void begin_to_announce(const char *network)
{
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    opts.network = network;
    opts.info.addr_count = 1;
    opts.info.addr[0] = hth_node_addr(fx.boot, 4000);
    assert_ok(hth_announcer_new(hth_node_env(fx.boot), hth_node_dht(fx.boot), &opts, &fx.ann));
}

static void announce(const char *network)
{
    begin_to_announce(network);
    hth_world_run_for(fx.world, 2 * S);
}

static bool is_done(void *arg)
{
    (void)arg;
    return fx.done > 0;
}

/* network NULL: any. */
static void join(const char *network, size_t bootstraps)
{
    struct hth_join_opts opts = HTH_JOIN_OPTS_INIT;
    struct hth_addr addr = hth_node_addr(fx.boot, 4000);
    opts.network = network;
    opts.any_network = network == NULL;
    opts.bootstrap = &addr;
    opts.bootstrap_count = bootstraps;
    assert_ok(hth_join_new(hth_node_env(fx.newcomer), hth_node_dht(fx.newcomer), &opts, on_done,
                           NULL, &fx.join));
    assert_int_equal(fx.done, 0);
    hth_world_run_until_true(fx.world, is_done, NULL, 60 * S);
    assert_int_equal(fx.done, 1);
}

static void end(void)
{
    struct hth_open_counts open;
    hth_join_free(fx.join);
    hth_announcer_free(fx.ann);
    hth_listener_free(hth_node_env(fx.boot), fx.listener);
    hth_world_open(fx.world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(fx.world);
}

TEST(join_succeeds_in_living_swarm)
{
    (void)state;
    begin(0);
    announce("net");
    join("net", 1);
    assert_ok(fx.result.err);
    assert_int_equal(fx.result.nodes, 1);
    assert_true(fx.result.took_us < S);
    end();
}

TEST(first_node_joins_at_once)
{
    (void)state;
    begin(0);
    join("net", 0);
    assert_ok(fx.result.err);
    end();
}

TEST(join_refuses_another_network)
{
    (void)state;
    begin(0);
    announce("other");
    join("net", 1);
    assert_err(HTH_E_JOIN_WRONG_NETWORK, fx.result.err);
    assert_non_null(strstr(fx.result.text, "\"net\""));
    end();
}

TEST(join_accepts_any_network)
{
    (void)state;
    begin(0);
    join(NULL, 1);
    assert_ok(fx.result.err);
    assert_int_equal(fx.result.nodes, 0);
    end();
    begin(0);
    announce("other");
    join(NULL, 1);
    assert_ok(fx.result.err);
    assert_int_equal(fx.result.nodes, 1);
    end();
}

static void accept_nobody(void *arg, struct hth_stream *s)
{
    (void)arg;
    (void)s;
}

static void listen_as_announced(void)
{
    struct hth_addr addr = hth_node_addr(fx.boot, 4000);
    assert_ok(hth_listen(hth_node_env(fx.boot), &addr, accept_nobody, NULL, &fx.listener));
}

/* A beacon looks expired and its owner does not answer: the node crashed, and our clock is fine. */
TEST(expired_beacon_of_dead_node_is_no_clock_error)
{
    static const int64_t skews[] = {-64 * S - 500000, -100 * S, -300 * S};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(skews); i++) {
        begin(skews[i]);
        hth_world_run_for(fx.world, 65 * S);
        announce("net");
        join("net", 1);
        assert_ok(fx.result.err);
        assert_int_equal(fx.result.nodes, 0);
        end();
    }
}

/* A crash and a quick restart, at every tenth of the beacons' epoch: our own old beacon is still in
 * the DHT, perhaps under the key of the last epoch. */
TEST(own_old_beacon_is_no_clock_error)
{
    (void)state;
    for (int tenth = 0; tenth < 10; tenth++) {
        begin(0);
        hth_world_run_for(fx.world, 60 * S + tenth * HTH_TOPIC_EPOCH_US / 10);
        fx.newcomer = fx.boot;
        announce("net");
        hth_announcer_free(fx.ann); /* without a goodbye */
        fx.ann = NULL;
        hth_world_run_for(fx.world, 15 * S);
        join("net", 1);
        assert_ok(fx.result.err);
        end();
    }
}

TEST(join_names_skewed_clocks)
{
    static const int64_t skews[] = {6 * S, 10 * S, -64 * S - 500000, 200 * S, -1800 * S, 3400 * S};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(skews); i++) {
        begin(skews[i]);
        /* The newest record is 2 s old when it is read: clocks 6 s apart show as 4 s. Skews of
         * minutes put the beacon under a key of another epoch, which the scan must find. */
        hth_world_run_for(fx.world, 65 * S);
        announce("net");
        listen_as_announced();
        join("net", 1);
        assert_err(HTH_E_JOIN_CLOCK, fx.result.err);
        assert_non_null(strstr(fx.result.text, "clock"));
        assert_non_null(strstr(fx.result.text, "issued at"));
        end();
    }
    begin(2900 * HTH_US_PER_MS);
    hth_world_run_for(fx.world, 65 * S);
    announce("net");
    join("net", 1);
    assert_ok(fx.result.err);
    end();
}

static enum hth_err fill_future(void *arg, struct hth_writer *w)
{
    struct hth_beacon beacon = {.protocol_min = HTH_PROTOCOL_MAX + 1,
                                .protocol_max = HTH_PROTOCOL_MAX + 2,
                                .network = "net"};
    (void)arg;
    return hth_beacon_write(w, &beacon, 400);
}

TEST(join_names_newer_protocol)
{
    struct hth_topic topic;
    struct hth_publisher *publisher;
    (void)state;
    begin(0);
    hth_topic_init(&topic, hth_node_env(fx.boot)->crypto, "net", HTH_RECORD_BEACON, "", 0);
    assert_ok(hth_publisher_new(hth_node_env(fx.boot), hth_node_dht(fx.boot), &topic, NULL,
                                fill_future, NULL, &publisher));
    hth_world_run_for(fx.world, 2 * S);
    join("net", 1);
    assert_err(HTH_E_JOIN_VERSION, fx.result.err);
    hth_publisher_free(publisher);
    end();
}

TEST(join_names_missing_listener)
{
    (void)state;
    begin(0);
    hth_node_set_side(fx.boot, 1);
    join("net", 1);
    assert_err(HTH_E_JOIN_NOTHING_LISTENS, fx.result.err);
    end();
}

/* A DHT that reaches no node, beside a network that works for streams. */
static void no_nodes(void *self, struct hth_dht_stats *out)
{
    (void)self;
    memset(out, 0, sizeof(*out));
}

static enum hth_err mute_watch(void *self, const struct hth_dht_key *key, hth_dht_value_fn *value,
                               void *arg, struct hth_dht_watch **watch)
{
    (void)key;
    (void)value;
    (void)arg;
    *watch = self;
    return HTH_OK;
}

static void mute_unwatch(void *self, struct hth_dht_watch *watch)
{
    (void)self;
    (void)watch;
}

TEST(join_names_closed_udp)
{
    static const struct hth_dht_ops mute_ops = {
        .watch = mute_watch, .unwatch = mute_unwatch, .stats = no_nodes};
    struct hth_dht mute = {.ops = &mute_ops, .self = &fx};
    struct hth_join_opts opts = HTH_JOIN_OPTS_INIT;
    struct hth_addr addr;
    (void)state;
    for (int listens = 0; listens < 2; listens++) {
        begin(0);
        addr = hth_node_addr(fx.boot, 4000);
        if (listens)
            assert_ok(hth_listen(hth_node_env(fx.boot), &addr, accept_nobody, NULL, &fx.listener));
        opts.network = "net";
        opts.bootstrap = &addr;
        opts.bootstrap_count = 1;
        assert_ok(hth_join_new(hth_node_env(fx.newcomer), &mute, &opts, on_done, NULL, &fx.join));
        hth_world_run_until_true(fx.world, is_done, NULL, 60 * S);
        assert_err(listens ? HTH_E_JOIN_UDP_CLOSED : HTH_E_JOIN_NOTHING_LISTENS, fx.result.err);
        /* With refused connections the join ends sooner than with silence. */
        assert_true(listens ? fx.result.took_us >= 10 * S : fx.result.took_us < 4 * S);
        end();
    }
}

TEST(bad_options_are_refused)
{
    struct hth_join_opts opts = HTH_JOIN_OPTS_INIT;
    struct hth_addr many[HTH_BOOTSTRAP_MAX + 1] = {{0}};
    (void)state;
    begin(0);
    struct hth_env *env = hth_node_env(fx.newcomer);
    struct hth_dht *dht = hth_node_dht(fx.newcomer);
    opts.bootstrap = many;
    assert_err(HTH_E_CONFIG, hth_join_new(env, dht, &opts, on_done, NULL, &fx.join));
    opts.network = "a b";
    assert_err(HTH_E_CONFIG, hth_join_new(env, dht, &opts, on_done, NULL, &fx.join));
    opts.network = "net";
    opts.bootstrap_count = HTH_BOOTSTRAP_MAX + 1;
    assert_err(HTH_E_BUDGET, hth_join_new(env, dht, &opts, on_done, NULL, &fx.join));
    end();
}

static char said[256];

static void keep_line(void *arg, const char *line, size_t len)
{
    (void)arg;
    snprintf(said, sizeof(said), "%.*s", (int)len, line);
}

/* A peer whose clock is ahead is told so; one whose clock is right, or behind, is not. */
TEST(clock_that_is_ahead_is_told)
{
    static const int64_t boot_skews[] = {0, -2 * S, 2 * S, -5 * S};
    struct hth_census *census;
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(boot_skews); i++) {
        begin(boot_skews[i]);
        announce("net");
        struct hth_log *log = &hth_node_env(fx.newcomer)->log;
        memset(log->level, HTH_WARN, sizeof(log->level));
        log->sink = keep_line;
        said[0] = '\0';
        assert_ok(
            hth_census_new(hth_node_env(fx.newcomer), hth_node_dht(fx.newcomer), "net", &census));
        hth_census_log(census);
        hth_world_run_for(fx.world, 300 * S);
        if (boot_skews[i] > -3 * S)
            assert_string_equal(said, "");
        else
            assert_non_null(strstr(said, "clock is 5.0 s ahead of the other peers'"));
        hth_census_free(census);
        end();
    }
}

TEST(census_lists_roles_and_layers)
{
    struct hth_census *census;
    struct hth_census_node node;
    struct hth_census_stats stats;
    struct hth_layer_shape shape = {.kind = "ffn", .d = 64, .block_rows = 1};
    struct hth_peer_entry peers[4];
    struct hth_grid grid;
    uint32_t experts[3] = {1, 2, 3};
    struct hth_expert_list list = {experts, 3};
    (void)state;
    begin(0);
    announce("net");
    struct hth_log *log = &hth_node_env(fx.newcomer)->log;
    memset(log->level, HTH_INFO, sizeof(log->level));
    log->sink = keep_line;
    assert_ok(hth_grid_parse("ffn0.4.4", 8, &grid));
    assert_ok(hth_announcer_set_layer(fx.ann, &grid, &shape, &list));
    assert_ok(hth_census_new(hth_node_env(fx.newcomer), hth_node_dht(fx.newcomer), "net", &census));
    hth_census_log(census);
    hth_world_run_for(fx.world, 2 * S);
    hth_census_stats(census, &stats);
    assert_int_equal(stats.nodes, 1);
    assert_non_null(strstr(said, "node "));
    assert_non_null(strstr(said, ":4000 has joined\n"));
    assert_true(hth_census_at(census, 0, &node));
    assert_false(hth_census_at(census, 1, &node));
    assert_true(hth_peer_id_eq(&node.id, &hth_node_env(fx.boot)->self));
    assert_int_equal(node.role, HTH_ROLE_NODE);
    assert_string_equal(node.network, "net");
    assert_int_equal(node.layer_count, 1);
    assert_true(hth_grid_eq(&node.layers[0].grid, &grid));
    assert_int_equal(node.layers[0].experts, 3);
    assert_int_equal(hth_census_peers(census, peers, 4), 1);
    assert_int_equal(peers[0].addr.port, 4000);
    struct hth_census_network run;
    assert_int_equal(hth_census_networks(census, &run, 1), 1);
    assert_int_equal(run.nodes, 1);
    /* To itself a node is nobody to count, to join through, or to find a run by. */
    struct hth_census *own;
    assert_ok(hth_census_new(hth_node_env(fx.boot), hth_node_dht(fx.boot), "net", &own));
    hth_world_run_for(fx.world, 2 * S);
    assert_true(hth_census_at(own, 0, &node));
    hth_census_stats(own, &stats);
    assert_int_equal(stats.nodes, 0);
    assert_int_equal(hth_census_peers(own, peers, 4), 0);
    assert_int_equal(hth_census_networks(own, &run, 1), 0);
    hth_census_free(own);
    hth_announcer_withdraw(fx.ann, NULL, NULL);
    hth_world_run_for(fx.world, 1 * S);
    hth_census_stats(census, &stats);
    assert_int_equal(stats.nodes, 0);
    assert_non_null(strstr(said, ":4000 is gone\n"));
    /* A peer that comes and goes at once is not worth a word. */
    said[0] = '\0';
    hth_announcer_free(fx.ann);
    begin_to_announce("net");
    hth_world_run_for(fx.world, S / 25);
    hth_announcer_withdraw(fx.ann, NULL, NULL);
    hth_world_run_for(fx.world, 1 * S);
    assert_string_equal(said, "");
    hth_census_free(census);
    end();
}

static enum hth_err fill_other_name(void *arg, struct hth_writer *w)
{
    struct hth_beacon beacon = {
        .protocol_min = HTH_PROTOCOL_MIN, .protocol_max = HTH_PROTOCOL_MAX, .network = "other"};
    (void)arg;
    return hth_beacon_write(w, &beacon, 400);
}

/* Of several expired beacons the owner of the one that was issued last is asked whether it
 * lives. */
TEST(the_newest_of_expired_beacons_is_remembered)
{
    static const struct {
        int64_t issued_us;
        uint16_t port; /* 0: the beacon has no address */
    } seen[] = {{50 * S, 1}, {90 * S, 2}, {70 * S, 3}, {95 * S, 0}};
    struct hth_census_stats stats = {.expired = 0};
    (void)state;
    begin(0);
    struct hth_env *env = hth_node_env(fx.boot);
    for (size_t i = 0; i < HTH_ARRAY_LEN(seen); i++) {
        struct hth_beacon beacon = {
            .protocol_min = HTH_PROTOCOL_MIN, .protocol_max = HTH_PROTOCOL_MAX, .network = "net"};
        struct hth_record rec = {.issued_us = seen[i].issued_us, .owner = env->pubkey};
        uint8_t payload[400];
        struct hth_writer w;
        beacon.info.addr_count = seen[i].port != 0;
        beacon.info.addr[0] = hth_node_addr(fx.boot, seen[i].port);
        hth_writer_init(&w, payload, sizeof(payload));
        assert_ok(hth_beacon_write(&w, &beacon, sizeof(payload)));
        rec.payload = payload;
        rec.payload_len = w.pos;
        hth_census_count_expired(&stats, env->crypto, &rec);
    }
    assert_int_equal(stats.expired, HTH_ARRAY_LEN(seen));
    assert_int_equal(stats.expired_addr.port, 2);
    assert_true(hth_peer_id_eq(&stats.expired_id, &env->self));
    end();
}

/* One node with one key in three networks, and a beacon whose name contradicts its tag. */
TEST(census_counts_all_networks)
{
    static const char *const names[] = {"c", "a", "b"};
    struct hth_announcer *ann[HTH_ARRAY_LEN(names)];
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    struct hth_census_network found[3];
    struct hth_census_stats stats;
    struct hth_census *census;
    struct hth_topic topic;
    struct hth_publisher *forged;
    (void)state;
    begin(0);
    assert_ok(hth_census_new(hth_node_env(fx.newcomer), hth_node_dht(fx.newcomer), NULL, &census));
    assert_int_equal(hth_census_networks(census, found, 3), 0);
    /* A private one is seen by those alone who know it. */
    static const char hidden[] = "~5d0e27ab94c31f6082e7";
    struct hth_announcer *hider;
    struct hth_census *insider;
    struct hth_census_node node;
    struct hth_node *fourth = hth_world_node(fx.world, "fourth", NULL);
    opts.network = hidden;
    assert_ok(hth_announcer_new(hth_node_env(fourth), hth_node_dht(fourth), &opts, &hider));
    assert_ok(
        hth_census_new(hth_node_env(fx.newcomer), hth_node_dht(fx.newcomer), hidden, &insider));
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++) {
        opts.network = names[i];
        opts.role = i == 0 ? HTH_ROLE_HOST : i == 1 ? HTH_ROLE_TRAINER : HTH_ROLE_NODE;
        assert_ok(hth_announcer_new(hth_node_env(fx.boot), hth_node_dht(fx.boot), &opts, &ann[i]));
    }
    struct hth_node *third = hth_world_node(fx.world, "third", NULL);
    opts.network = "c";
    opts.role = HTH_ROLE_NODE;
    assert_ok(hth_announcer_new(hth_node_env(third), hth_node_dht(third), &opts, &fx.ann));
    hth_topic_init(&topic, hth_node_env(third)->crypto, "lie", HTH_RECORD_BEACON, "", 0);
    assert_ok(hth_publisher_new(hth_node_env(third), hth_node_dht(third), &topic, NULL,
                                fill_other_name, NULL, &forged));
    hth_world_run_for(fx.world, 2 * S);
    hth_census_stats(census, &stats);
    assert_int_equal(stats.nodes, 4);
    assert_int_equal(stats.wrong_network, 0);
    assert_true(stats.damaged > 0);
    assert_int_equal(hth_census_networks(census, found, 3), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(found[i].name, ((const char *[]){"a", "b", "c"})[i]);
        assert_int_equal(found[i].nodes, i == 2 ? 2 : 1);
        assert_int_equal(found[i].hosts, i == 2);
        assert_int_equal(found[i].trainers, i == 0);
    }
    memset(found, 0, sizeof(found));
    assert_int_equal(hth_census_networks(census, found, 1), 3);
    assert_int_equal(found[0].nodes, 1);
    assert_int_equal(found[1].nodes, 0);
    assert_true(hth_census_at(insider, 0, &node));
    assert_false(hth_census_at(insider, 1, &node));
    assert_string_equal(node.network, hidden);
    hth_census_free(insider);
    hth_announcer_free(hider);
    hth_census_free(census);
    hth_publisher_free(forged);
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++)
        hth_announcer_free(ann[i]);
    end();
}

/* ---- the peer cache ------------------------------------------------------------------------ */

static void peers_for(struct hth_peer_entry *peers, size_t count)
{
    memset(peers, 0, count * sizeof(*peers));
    for (size_t i = 0; i < count; i++) {
        peers[i].addr.family = i % 2 ? 6 : 4;
        peers[i].addr.ip[0] = 10;
        peers[i].addr.ip[3] = (uint8_t)i;
        peers[i].addr.port = (uint16_t)(1000 + i);
        peers[i].id.b[0] = (uint8_t)i;
        peers[i].seen_us = (int64_t)(i * 7 % 300) * S;
    }
}

TEST(peer_cache_loads_newest_first)
{
    struct hth_peer_entry in[300], out[300];
    size_t count;
    (void)state;
    begin(0);
    struct hth_env *env = hth_node_env(fx.newcomer);
    assert_err(HTH_E_NO_FILE, hth_peercache_load(env, "peers", out, 300, &count));
    peers_for(in, 300);
    assert_ok(hth_peercache_save(env, "peers", in, 300));
    assert_ok(hth_peercache_load(env, "peers", out, 300, &count));
    assert_int_equal(count, HTH_PEERCACHE_PEERS_MAX);
    for (size_t i = 0; i < count; i++) {
        const struct hth_peer_entry *want = &in[out[i].id.b[0]];
        assert_true(i == 0 || out[i].seen_us <= out[i - 1].seen_us);
        assert_true(hth_addr_eq(&out[i].addr, &want->addr));
        assert_int_equal(out[i].seen_us, want->seen_us);
    }
    assert_ok(hth_peercache_load(env, "peers", out, 3, &count));
    assert_int_equal(count, 3);
    assert_ok(hth_peercache_save(env, "peers", in, 0));
    assert_ok(hth_peercache_load(env, "peers", out, 3, &count));
    assert_int_equal(count, 0);
    end();
}

TEST(damaged_peer_cache_is_refused)
{
    struct hth_peer_entry peers[5], out[300];
    size_t len, count;
    (void)state;
    begin(0);
    struct hth_env *env = hth_node_env(fx.newcomer);
    peers_for(peers, 5);
    assert_ok(hth_peercache_save(env, "peers", peers, 5));
    const uint8_t *file = hth_node_disk_get(fx.newcomer, "peers", &len);
    uint8_t *copy = hth_calloc(len + 1, 1);
    for (size_t cut = 0; cut < len; cut++) {
        enum hth_err err = hth_peercache_read(file, cut, out, 300, &count);
        assert_true(err == HTH_E_CORRUPT || (cut < 13 && err == HTH_E_BAD_MAGIC));
        assert_int_equal(count, 0);
    }
    for (size_t i = 0; i < len; i++) {
        memcpy(copy, file, len);
        copy[i] ^= 0x11;
        enum hth_err err = hth_peercache_read(copy, len, out, 300, &count);
        assert_true(err == HTH_E_CORRUPT || (i < 13 && err == HTH_E_BAD_MAGIC) ||
                    ((i == 13 || i == 14) && err == HTH_E_VERSION));
        assert_int_equal(count, 0);
    }
    memcpy(copy, file, len);
    copy[len] = 'x';
    assert_err(HTH_E_CORRUPT, hth_peercache_read(copy, len + 1, out, 300, &count));
    hth_free(copy);
    const char *many = "hearth-peers 1 257\n";
    assert_err(HTH_E_CORRUPT,
               hth_peercache_read((const uint8_t *)many, strlen(many), out, 300, &count));
    uint8_t *large = hth_calloc(HTH_PEERCACHE_BYTES_MAX + 1, 1);
    assert_err(HTH_E_TOO_LARGE,
               hth_peercache_read(large, HTH_PEERCACHE_BYTES_MAX + 1, out, 300, &count));
    hth_node_disk_put(fx.newcomer, "peers", large, HTH_PEERCACHE_BYTES_MAX + 1);
    assert_err(HTH_E_TOO_LARGE, hth_peercache_load(env, "peers", out, 300, &count));
    hth_free(large);
    /* The next save repairs it. */
    assert_ok(hth_peercache_save(env, "peers", peers, 5));
    assert_ok(hth_peercache_load(env, "peers", out, 300, &count));
    assert_int_equal(count, 5);
    end();
}
