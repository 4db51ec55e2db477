/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_limits.c: bounds of core/limits.h that other tests of this folder reach only by chance:
 * signatures that a board checks in a second, the life of a record, and records that list a layer's
 * experts under its root before the list is cut by first coordinates.
 */
#include "dht/announce.h"
#include "dht/board.h"

#include "core/limits.h"
#include "core/mem.h"
#include "sim/world.h"
#include "support/suite.h"

static enum hth_err on_record(void *arg, const struct hth_record *rec, void **user)
{
    (void)rec;
    *user = arg;
    return HTH_OK;
}

static void on_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    (void)owner;
    (void)part;
    assert_ptr_equal(user, arg);
}

static const struct hth_board_ops OPS = {on_record, on_gone, NULL};

static enum hth_err fill(void *arg, struct hth_writer *w)
{
    (void)arg;
    hth_write_u8(w, 1);
    return w->err;
}

/* Offers the board a record by this node with the given sequence. */
static enum hth_err offer(struct hth_board *board, struct hth_env *env,
                          const struct hth_topic *topic, uint64_t seq)
{
    uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
    struct hth_record rec = {.kind = topic->kind,
                             .network = topic->network,
                             .seq = seq,
                             .issued_us = hth_wall_us(env),
                             .life_ms = 60000};
    struct hth_dht_key key;
    size_t len;
    hth_topic_key(topic, env->crypto, hth_topic_epoch(hth_wall_us(env)), &key);
    assert_ok(hth_record_seal(env, &key, &rec, bytes, sizeof(bytes), &len));
    return hth_board_offer(board, bytes, len);
}

/* A flood under one key costs at most that many signature checks in each second. */
TEST(signatures_in_a_second_are_bounded)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct hth_world *w;
    struct hth_node *host, *watcher;
    struct hth_env *env;
    struct hth_topic topic;
    struct hth_board *board;
    uint64_t seq = 1;
    (void)state;
    opts.log_level = HTH_ERROR;
    opts.wall_start_us = INT64_C(1700000050) * HTH_US_PER_S; /* 10 s into an epoch */
    w = hth_world_new(1, &opts);
    host = hth_world_node(w, "host", NULL);
    watcher = hth_world_node(w, "watcher", NULL);
    env = hth_node_env(host);
    hth_topic_init(&topic, env->crypto, "net", HTH_RECORD_ROOT, "x.", 2);
    assert_ok(
        hth_board_new(hth_node_env(watcher), hth_node_dht(watcher), &topic, NULL, &OPS, w, &board));
    for (int second = 0; second < 2; second++) {
        for (int i = 0; i < HTH_BOARD_VERIFY_PER_S_MAX; i++)
            assert_ok(offer(board, env, &topic, seq++));
        assert_err(HTH_E_BUSY, offer(board, env, &topic, seq++));
        hth_world_run_for(w, HTH_US_PER_S);
    }
    assert_ok(offer(board, env, &topic, seq));
    hth_board_free(board);
    hth_world_free(w);
}

TEST(lives_of_records_are_bounded)
{
    static const int64_t good[] = {HTH_RECORD_LIFE_MIN_US, HTH_RECORD_LIFE_MAX_US};
    static const int64_t bad[] = {HTH_RECORD_LIFE_MIN_US - 1, HTH_RECORD_LIFE_MAX_US + 1};
    struct hth_world *w = hth_world_new(1, NULL);
    struct hth_node *host = hth_world_node(w, "host", NULL);
    struct hth_publisher_opts opts = HTH_PUBLISHER_OPTS_INIT;
    struct hth_topic topic;
    struct hth_publisher *publisher;
    (void)state;
    hth_topic_init(&topic, hth_node_env(host)->crypto, "net", HTH_RECORD_ROOT, "x.", 2);
    for (size_t i = 0; i < HTH_ARRAY_LEN(good); i++) {
        opts.life_us = bad[i];
        assert_err(HTH_E_CONFIG, hth_publisher_new(hth_node_env(host), hth_node_dht(host), &topic,
                                                   &opts, fill, NULL, &publisher));
        opts.life_us = good[i];
        assert_ok(hth_publisher_new(hth_node_env(host), hth_node_dht(host), &topic, &opts, fill,
                                    NULL, &publisher));
        hth_publisher_free(publisher);
    }
    hth_world_free(w);
}

/* A growing list of scattered experts: one root record, two, up to the limit, never more. Beyond it
 * the root names only first coordinates, in one record. */
TEST(roots_of_a_layer_are_bounded)
{
    static const struct hth_layer_shape ffn = {.kind = "ffn", .d = 256, .block_rows = 1};
    static uint32_t numbers[10000];
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    struct hth_world *w = hth_world_new(1, NULL);
    struct hth_node *host = hth_world_node(w, "host", NULL);
    struct hth_node *watcher = hth_world_node(w, "watcher", NULL);
    struct hth_board_stats s;
    struct hth_announcer *ann;
    struct hth_board *board;
    struct hth_topic topic;
    struct hth_grid grid;
    size_t most = 0, before = 0;
    (void)state;
    assert_ok(hth_grid_parse("ffn0.8.4096", 11, &grid));
    opts.info.rows_per_s = 1000;
    opts.network = "net";
    opts.role = HTH_ROLE_HOST;
    opts.info.addr_count = 1;
    opts.info.addr[0] = hth_node_addr(host, 4000);
    memcpy(opts.info.version, "0.1.0", 6);
    assert_ok(hth_announcer_new(hth_node_env(host), hth_node_dht(host), &opts, &ann));
    hth_topic_init(&topic, hth_node_env(host)->crypto, "net", HTH_RECORD_ROOT, "ffn0.", 5);
    assert_ok(
        hth_board_new(hth_node_env(watcher), hth_node_dht(watcher), &topic, NULL, &OPS, w, &board));
    for (uint32_t i = 0; i < HTH_ARRAY_LEN(numbers); i++)
        numbers[i] = 2 * i;
    for (uint32_t count = 500; count <= HTH_ARRAY_LEN(numbers); count += 500) {
        const struct hth_expert_list list = {numbers, count};
        assert_ok(hth_announcer_set_layer(ann, &grid, &ffn, &list));
        hth_world_run_for(w, 5 * HTH_US_PER_S);
        hth_board_stats(board, &s);
        assert_true(s.live >= before || (before == HTH_ANNOUNCE_ROOT_PARTS_MAX && s.live == 1));
        most = HTH_MAX(most, s.live);
        before = s.live;
    }
    assert_int_equal(most, HTH_ANNOUNCE_ROOT_PARTS_MAX);
    assert_int_equal(before, 1);
    hth_board_free(board);
    hth_announcer_free(ann);
    hth_world_free(w);
}
