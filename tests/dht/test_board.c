/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_board.c: publishers and boards over the simulated DHT: which records a board believes and
 * for how long, and its bounds under attack.
 */
#include "dht/board.h"

#include "core/bytes.h"
#include "core/mem.h"
#include "sim/world.h"
#include "support/suite.h"

#define S HTH_US_PER_S

/* A reader that keeps the newest payload (one byte) per part of one owner. */
struct reader {
    struct hth_board *board;
    int records, gone, refused;
    enum hth_err last_refusal;
    int last; /* payload of the newest record; -1: no record is believed */
    int live;
    struct hth_peer_id owner; /* of the newest record */
};

static enum hth_err on_record(void *arg, const struct hth_record *rec, void **user)
{
    struct reader *r = arg;
    if (rec->payload_len != 1)
        return HTH_E_MALFORMED;
    r->live += *user == NULL;
    r->records++;
    r->last = rec->payload[0];
    r->owner = rec->owner_id;
    *user = r;
    return HTH_OK;
}

static void on_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    struct reader *r = arg;
    (void)owner;
    (void)part;
    assert_ptr_equal(user, r);
    r->gone++;
    r->live--;
    r->last = -1;
}

static void on_refused(void *arg, enum hth_err err, const struct hth_record *rec)
{
    struct reader *r = arg;
    (void)rec;
    r->refused++;
    r->last_refusal = err;
}

static const struct hth_board_ops OPS = {on_record, on_gone, on_refused};

struct writer {
    uint8_t value;
    int fills;
};

static enum hth_err fill(void *arg, struct hth_writer *w)
{
    struct writer *x = arg;
    x->fills++;
    hth_write_u8(w, x->value);
    return w->err;
}

struct fixture {
    struct hth_world *world;
    struct hth_node *host, *watcher;
    struct hth_topic topic;
    struct reader reader;
    struct writer writer;
    struct hth_publisher *publisher;
};

static struct fixture fx;

/* Frees the host's objects when its node crashes: its handles are invalid after that. */
static void halt_host(struct hth_env *env, void *arg)
{
    (void)env;
    (void)arg;
    hth_publisher_free(fx.publisher);
    fx.publisher = NULL;
}

static int setup_skewed(int64_t host_skew_us, const struct hth_dht_params *params)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct hth_node_opts skewed = HTH_NODE_OPTS_INIT;
    memset(&fx, 0, sizeof(fx));
    opts.log_level = HTH_ERROR;
    opts.wall_start_us = INT64_C(1700000050) * S; /* 10 s into an epoch */
    if (params != NULL)
        opts.dht = *params;
    fx.world = hth_world_new(11, &opts);
    skewed.wall_skew_us = host_skew_us;
    skewed.halt = halt_host;
    fx.host = hth_world_node(fx.world, "host", &skewed);
    fx.watcher = hth_world_node(fx.world, "watcher", NULL);
    hth_topic_init(&fx.topic, hth_node_env(fx.host)->crypto, "net", HTH_RECORD_ROOT, "x.", 2);
    fx.reader.last = -1;
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return setup_skewed(0, NULL);
}

static void start_publisher(uint8_t value, int64_t life_us)
{
    struct hth_publisher_opts opts = HTH_PUBLISHER_OPTS_INIT;
    opts.life_us = life_us;
    fx.writer.value = value;
    assert_ok(hth_publisher_new(hth_node_env(fx.host), hth_node_dht(fx.host), &fx.topic, &opts,
                                fill, &fx.writer, &fx.publisher));
}

static void start_board(const struct hth_board_opts *opts)
{
    assert_ok(hth_board_new(hth_node_env(fx.watcher), hth_node_dht(fx.watcher), &fx.topic, opts,
                            &OPS, &fx.reader, &fx.reader.board));
}

static int teardown(void **state)
{
    struct hth_open_counts open;
    (void)state;
    halt_host(NULL, NULL);
    hth_board_free(fx.reader.board);
    assert_int_equal(fx.reader.live, 0);
    hth_world_open(fx.world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(fx.world);
    return 0;
}

TEST_WITH(record_is_seen_renewed_and_expired, setup, teardown)
{
    (void)state;
    start_board(NULL);
    start_publisher(42, 60 * S);
    hth_world_run_for(fx.world, 1 * S);
    assert_int_equal(fx.reader.last, 42);
    /* It stays over several epochs of the topic, without a gap. */
    hth_world_run_for(fx.world, 600 * S);
    assert_int_equal(fx.reader.last, 42);
    assert_int_equal(fx.reader.gone, 0);
    assert_true(fx.writer.fills >= 30 && fx.writer.fills <= 42);
    hth_node_crash(fx.host, HTH_CRASH_SILENT);
    assert_null(fx.publisher);
    hth_world_run_for(fx.world, 38 * S);
    assert_int_equal(fx.reader.last, 42);
    hth_world_run_for(fx.world, 22 * S + S / 2);
    assert_int_equal(fx.reader.last, -1);
    assert_int_equal(fx.reader.gone, 1);
    /* The DHT still has copies, and the board does not believe them again. */
    hth_world_run_for(fx.world, 300 * S);
    assert_int_equal(fx.reader.gone, 1);
}

TEST_WITH(late_reader_finds_record_in_any_second, setup, teardown)
{
    (void)state;
    start_publisher(7, 60 * S);
    hth_world_run_for(fx.world, 100 * S);
    for (int i = 0; i < 60; i++) {
        start_board(NULL);
        hth_world_run_for(fx.world, 1 * S);
        assert_int_equal(fx.reader.last, 7);
        hth_board_free(fx.reader.board);
        fx.reader.board = NULL;
        hth_world_run_for(fx.world, 3 * S);
    }
}

TEST_WITH(updates_and_goodbyes_travel_at_once, setup, teardown)
{
    (void)state;
    start_board(NULL);
    start_publisher(1, 60 * S);
    hth_world_run_for(fx.world, 5 * S);
    fx.writer.value = 2;
    hth_publisher_update(fx.publisher, 0);
    hth_world_run_for(fx.world, S / 2);
    assert_int_equal(fx.reader.last, 2);
    assert_int_equal(fx.reader.records, 2);
    hth_publisher_goodbye(fx.publisher, NULL, NULL);
    hth_world_run_for(fx.world, S / 2);
    assert_int_equal(fx.reader.last, -1);
    int fills = fx.writer.fills;
    hth_world_run_for(fx.world, 100 * S);
    assert_int_equal(fx.writer.fills, fills);
    assert_int_equal(fx.reader.gone, 1);
    hth_publisher_resume(fx.publisher);
    hth_world_run_for(fx.world, S / 2);
    assert_int_equal(fx.reader.last, 2);
}

/* Readers believe the highest sequence, so the newest record must have it, even after its owner's
 * clock stepped back. */
TEST_WITH(clock_step_back_delays_no_record, setup, teardown)
{
    static const int64_t steps_us[] = {1, 2 * S, 20 * S};
    (void)state;
    start_board(NULL);
    start_publisher(0, 60 * S);
    hth_world_run_for(fx.world, 40 * S); /* further into the epoch than the steps go back */
    for (uint8_t i = 0; i < HTH_ARRAY_LEN(steps_us); i++) {
        hth_node_wall_step(fx.host, -steps_us[i]);
        fx.writer.value = i + 1;
        hth_publisher_update(fx.publisher, 0);
        hth_world_run_for(fx.world, S / 2);
        assert_int_equal(fx.reader.last, i + 1);
    }
    assert_int_equal(fx.reader.gone, 0);
    hth_node_wall_step(fx.host, -5 * S);
    hth_publisher_goodbye(fx.publisher, NULL, NULL);
    hth_world_run_for(fx.world, S / 2);
    assert_int_equal(fx.reader.last, -1);
    hth_node_wall_step(fx.host, -5 * S);
    hth_publisher_resume(fx.publisher);
    hth_world_run_for(fx.world, S / 2);
    assert_int_equal(fx.reader.last, HTH_ARRAY_LEN(steps_us));
}

static void count_done(void *arg, enum hth_err err)
{
    assert_ok(err);
    ++*(int *)arg;
}

TEST_WITH(goodbye_before_first_record_ends_at_once, setup, teardown)
{
    int done = 0;
    (void)state;
    start_board(NULL);
    start_publisher(1, 60 * S);
    hth_publisher_goodbye(fx.publisher, count_done, &done);
    hth_world_run_for(fx.world, 2 * S);
    assert_int_equal(done, 1);
    assert_int_equal(fx.reader.records, 0);
}

/* Clocks may differ by 3 s both ways; beyond that a fresh record is refused with a named error. */
TEST_WITH(skew_beyond_three_seconds_is_refused, NULL, teardown)
{
    static const int64_t skews[] = {2900000, 3100000, -2900000, -62000000, -64000000};
    static const bool seen[] = {true, false, true, true, false};
    static const enum hth_err why[] = {HTH_OK, HTH_E_CLOCK_SKEW, HTH_OK, HTH_OK, HTH_E_EXPIRED};
    struct hth_dht_params fast = HTH_DHT_PARAMS_INIT;
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(skews); i++) {
        setup_skewed(skews[i], &fast);
        struct hth_link link = {.latency_us = 1};
        hth_world_link(fx.world, fx.host, fx.watcher, &link);
        /* The middle of an epoch on both clocks, with any of the skews. */
        hth_world_run_for(fx.world, 75 * S);
        start_board(NULL);
        start_publisher(9, 60 * S);
        hth_world_run_for(fx.world, S / 2);
        assert_int_equal(fx.reader.last == 9, seen[i]);
        assert_int_equal(fx.reader.last_refusal, why[i]);
        teardown(NULL);
    }
    setup(NULL);
}

/* The DHT loses the first put; the note does not wait for its next renewal, minutes later. */
TEST_WITH(a_put_that_failed_is_repeated_within_seconds, NULL, teardown)
{
    struct hth_dht_params params = HTH_DHT_PARAMS_INIT;
    struct hth_publisher_stats s;
    (void)state;
    params.lost_put = 1;
    setup_skewed(0, &params);
    start_board(NULL);
    start_publisher(6, 600 * S);
    hth_world_run_for(fx.world, params.get_timeout_us + S);
    hth_publisher_stats(fx.publisher, &s);
    assert_int_equal(s.put_errors, 1);
    assert_int_equal(fx.reader.last, -1);
    params.lost_put = 0;
    hth_world_set_dht(fx.world, &params);
    hth_world_run_for(fx.world, 5 * S);
    assert_int_equal(fx.reader.last, 6);
    teardown(NULL);
    setup(NULL);
}

/* Seals a record by the host, issued at its present time. */
static size_t seal_as(uint32_t life_ms, uint8_t flags, uint8_t part, uint64_t seq, uint8_t value,
                      uint8_t *out)
{
    struct hth_env *env = hth_node_env(fx.host);
    struct hth_record rec = {.kind = fx.topic.kind,
                             .flags = flags,
                             .part = part,
                             .network = fx.topic.network,
                             .seq = seq,
                             .issued_us = hth_wall_us(env),
                             .life_ms = life_ms,
                             .payload = &value,
                             .payload_len = 1};
    struct hth_dht_key key;
    size_t len;
    hth_topic_key(&fx.topic, env->crypto, hth_topic_epoch(hth_wall_us(env)), &key);
    assert_ok(hth_record_seal(env, &key, &rec, out, HTH_DHT_VALUE_BYTES_MAX, &len));
    return len;
}

static size_t seal(uint8_t part, uint64_t seq, uint8_t value, uint8_t *out)
{
    return seal_as(60000, 0, part, seq, value, out);
}

/* The DHT delivers a record for its whole life, even after its owner's goodbye. */
TEST_WITH(goodbye_keeps_older_record_out, setup, teardown)
{
    uint8_t old[HTH_DHT_VALUE_BYTES_MAX], bye[HTH_DHT_VALUE_BYTES_MAX];
    (void)state;
    start_board(NULL);
    size_t old_len = seal(0, 100, 1, old);
    size_t bye_len = seal_as(60000, HTH_RECORD_GOODBYE, 0, 101, 0, bye);
    assert_ok(hth_board_offer(fx.reader.board, old, old_len));
    hth_world_run_for(fx.world, S);
    assert_ok(hth_board_offer(fx.reader.board, bye, bye_len));
    assert_int_equal(fx.reader.live, 0);
    for (int i = 0; i < 61; i++) { /* sealed 1 s ago, 60 s of life, 3 s of skew */
        hth_world_run_for(fx.world, S);
        assert_err(HTH_E_STALE, hth_board_offer(fx.reader.board, old, old_len));
    }
    hth_world_run_for(fx.world, 2 * S);
    assert_err(HTH_E_EXPIRED, hth_board_offer(fx.reader.board, old, old_len));
    assert_int_equal(fx.reader.records, 1);
    assert_int_equal(fx.reader.gone, 1);
}

static void renew(uint32_t life_ms, uint64_t seq, uint8_t value)
{
    uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
    size_t len = seal_as(life_ms, 0, 0, seq, value, bytes);
    assert_ok(hth_board_offer(fx.reader.board, bytes, len));
    assert_int_equal(fx.reader.last, value);
    assert_true(hth_peer_id_eq(&fx.reader.owner, &hth_node_env(fx.host)->self));
}

/* Each renewal moves the end, later or sooner, and a newer record of an expired owner is
 * believed. */
TEST_WITH(newest_record_sets_the_end, setup, teardown)
{
    (void)state;
    start_board(NULL);
    renew(60000, 100, 1);
    hth_world_run_for(fx.world, S);
    renew(20000, 101, 2);
    hth_world_run_for(fx.world, 20 * S - 1);
    assert_int_equal(fx.reader.last, 2);
    hth_world_run_for(fx.world, 1);
    assert_int_equal(fx.reader.last, -1);
    renew(60000, 102, 3);
    hth_world_run_for(fx.world, 50 * S);
    renew(60000, 103, 4);
    hth_world_run_for(fx.world, 60 * S - 1);
    assert_int_equal(fx.reader.last, 4);
    assert_int_equal(fx.reader.gone, 1);
    hth_world_run_for(fx.world, 1);
    assert_int_equal(fx.reader.last, -1);
    assert_int_equal(fx.reader.gone, 2);
}

/* A renewal takes the place of the record that it renews. */
TEST_WITH(renewals_take_no_more_room, setup, teardown)
{
    struct hth_board_stats s;
    (void)state;
    start_board(NULL);
    renew(60000, 100, 1);
    hth_board_stats(fx.reader.board, &s);
    size_t bytes = s.bytes;
    for (uint64_t seq = 101; seq < 200; seq++)
        renew(60000, seq, (uint8_t)(seq % 3));
    hth_board_stats(fx.reader.board, &s);
    assert_int_equal(s.live, 1);
    assert_int_equal(s.bytes, bytes);
}

TEST_WITH(replays_and_older_sequences_are_refused, setup, teardown)
{
    uint8_t old[HTH_DHT_VALUE_BYTES_MAX], new[HTH_DHT_VALUE_BYTES_MAX];
    struct hth_board_stats s;
    (void)state;
    start_board(NULL);
    size_t old_len = seal(0, 100, 1, old), new_len = seal(0, 101, 2, new);
    assert_ok(hth_board_offer(fx.reader.board, new, new_len));
    assert_err(HTH_E_STALE, hth_board_offer(fx.reader.board, old, old_len));
    assert_err(HTH_E_DUPLICATE, hth_board_offer(fx.reader.board, new, new_len));
    assert_int_equal(fx.reader.last, 2);
    hth_board_stats(fx.reader.board, &s);
    assert_int_equal(s.accepted, 1);
    assert_int_equal(s.stale, 1);
    assert_int_equal(s.known, 1);
    /* A replayed old record does not shorten the newer one's life. */
    hth_world_run_for(fx.world, 59 * S);
    assert_int_equal(fx.reader.last, 2);
    hth_world_run_for(fx.world, 2 * S);
    assert_int_equal(fx.reader.last, -1);
    /* Within the tolerated skew after its end it passes the clock check, but its sequence is
     * known. */
    assert_err(HTH_E_DUPLICATE, hth_board_offer(fx.reader.board, new, new_len));
    hth_world_run_for(fx.world, 5 * S);
    assert_err(HTH_E_EXPIRED, hth_board_offer(fx.reader.board, new, new_len));
    assert_err(HTH_E_EXPIRED, hth_board_offer(fx.reader.board, old, old_len));
}

TEST_WITH(refused_payload_keeps_older_record, setup, teardown)
{
    uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
    struct hth_env *env = hth_node_env(fx.host);
    struct hth_record rec = {.kind = fx.topic.kind,
                             .network = fx.topic.network,
                             .seq = 200,
                             .issued_us = hth_wall_us(env),
                             .life_ms = 60000};
    struct hth_dht_key key;
    size_t len;
    (void)state;
    start_board(NULL);
    len = seal(0, 100, 1, bytes);
    assert_ok(hth_board_offer(fx.reader.board, bytes, len));
    hth_topic_key(&fx.topic, env->crypto, hth_topic_epoch(hth_wall_us(env)), &key);
    assert_ok(hth_record_seal(env, &key, &rec, bytes, sizeof(bytes), &len));
    assert_err(HTH_E_MALFORMED, hth_board_offer(fx.reader.board, bytes, len));
    assert_int_equal(fx.reader.last, 1);
    assert_int_equal(fx.reader.live, 1);
}

TEST_WITH(parts_of_one_owner_are_bounded, setup, teardown)
{
    uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
    struct hth_board_stats s;
    (void)state;
    start_board(NULL);
    for (uint8_t part = 0; part < HTH_BOARD_RECORDS_PER_OWNER_MAX; part++) {
        size_t len = seal(part, 100, part, bytes);
        assert_ok(hth_board_offer(fx.reader.board, bytes, len));
    }
    assert_int_equal(fx.reader.live, HTH_BOARD_RECORDS_PER_OWNER_MAX);
    /* One owner cannot have more: the range of part numbers ends there. */
    size_t len = seal(0, 101, 0, bytes);
    bytes[6] = HTH_BOARD_RECORDS_PER_OWNER_MAX;
    assert_err(HTH_E_RANGE, hth_board_offer(fx.reader.board, bytes, len));
    hth_board_stats(fx.reader.board, &s);
    assert_int_equal(s.live, HTH_BOARD_RECORDS_PER_OWNER_MAX);
}

/* Offers a record of an unknown owner, whose secret is the number. */
static enum hth_err offer_stranger(uint32_t number)
{
    uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
    struct hth_env *env = hth_node_env(fx.host);
    struct hth_secret secret = env->secret;
    struct hth_pubkey pubkey = env->pubkey;
    memset(&env->secret, 0, sizeof(env->secret));
    hth_store_u32le(env->secret.b, number);
    env->crypto->public_of(&env->secret, &env->pubkey);
    size_t len = seal(0, 100, 5, bytes);
    env->secret = secret;
    env->pubkey = pubkey;
    return hth_board_offer(fx.reader.board, bytes, len);
}

TEST_WITH(number_of_owners_is_bounded, setup, teardown)
{
    struct hth_board_opts opts = HTH_BOARD_OPTS_INIT;
    struct hth_board_stats s;
    (void)state;
    start_board(&opts);
    uint32_t taken = 0, busy = 0, budget = 0;
    for (uint32_t i = 1; i <= HTH_BOARD_RECORDS_MAX + 100; i++) {
        enum hth_err err = offer_stranger(i);
        taken += err == HTH_OK;
        busy += err == HTH_E_BUSY;
        budget += err == HTH_E_BUDGET;
        if (err == HTH_E_BUSY)
            hth_world_run_for(fx.world, 1 * S);
    }
    hth_board_stats(fx.reader.board, &s);
    assert_int_equal(s.live, taken);
    assert_true(taken <= HTH_BOARD_RECORDS_MAX && taken > HTH_BOARD_RECORDS_MAX - 10);
    assert_true(s.bytes <= HTH_BOARD_BYTES_MAX);
    assert_true(busy >= 1); /* more than 2000 signatures in one second */
    assert_true(budget >= 90);
    /* After they expire an honest record is believed. */
    hth_world_run_for(fx.world, 70 * S);
    start_publisher(3, 60 * S);
    hth_world_run_for(fx.world, 1 * S);
    assert_int_equal(fx.reader.last, 3);
    assert_int_equal(fx.reader.live, 1);
}

TEST_WITH(bytes_of_board_are_bounded, setup, teardown)
{
    struct hth_board_opts opts = HTH_BOARD_OPTS_INIT;
    (void)state;
    opts.bytes_max = 3000;
    start_board(&opts);
    uint32_t taken = 0;
    for (uint32_t i = 1; i <= 100; i++)
        taken += offer_stranger(i) == HTH_OK;
    struct hth_board_stats s;
    hth_board_stats(fx.reader.board, &s);
    assert_true(taken > 3 && taken < 30);
    assert_true(s.bytes <= 3000);
}

TEST_WITH(garbage_values_do_not_hide_true_record, setup, teardown)
{
    struct hth_rng rng;
    struct hth_board_stats s;
    uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
    struct hth_env *env = hth_node_env(fx.host);
    struct hth_dht *dht = hth_node_dht(fx.host);
    struct hth_dht_put **puts = hth_new_array(struct hth_dht_put *, 10000);
    struct hth_dht_key key;
    (void)state;
    hth_rng_init(&rng, 5);
    hth_topic_key(&fx.topic, env->crypto, hth_topic_epoch(hth_wall_us(env)), &key);
    for (int i = 0; i < 10000; i++) {
        /* Noise, cut records, and well-formed ones with a wrong signature. */
        size_t len = seal(0, 1000 + (uint64_t)i, 1, bytes);
        if (i % 3 == 0)
            len = hth_rng_below(&rng, len);
        for (size_t b = i % 3 == 1 ? 0 : len; b < len; b++)
            bytes[b] = (uint8_t)hth_rng_u64(&rng);
        if (i % 3 == 2)
            bytes[len - 1] ^= 1;
        assert_ok(hth_dht_put(dht, &key, bytes, len, NULL, NULL, &puts[i]));
    }
    start_board(NULL);
    start_publisher(8, 60 * S);
    hth_world_run_for(fx.world, 5 * S);
    assert_int_equal(fx.reader.last, 8);
    assert_int_equal(fx.reader.live, 1);
    hth_board_stats(fx.reader.board, &s);
    /* Once the true record is known, forged ones with lower sequences don't cost a signature. */
    assert_true(s.refused + s.stale >= 9900);
    assert_true(s.bytes < 1000);
    for (int i = 0; i < 10000; i++)
        hth_dht_withdraw(dht, puts[i]);
    hth_free(puts);
}

TEST_WITH(empty_lookup_is_remembered, setup, teardown)
{
    struct hth_board_stats s;
    (void)state;
    start_board(NULL);
    hth_world_run_for(fx.world, 1 * S);
    assert_ok(hth_board_ask(fx.reader.board));
    assert_err(HTH_E_AGAIN, hth_board_ask(fx.reader.board));
    hth_world_run_for(fx.world, 1 * S);
    assert_err(HTH_E_NOT_FOUND, hth_board_ask(fx.reader.board));
    hth_board_stats(fx.reader.board, &s);
    assert_int_equal(s.gets, 1);
    assert_int_equal(s.negative_hits, 1);
    start_publisher(4, 60 * S);
    hth_world_run_for(fx.world, 6 * S);
    assert_ok(hth_board_ask(fx.reader.board));
    hth_world_run_for(fx.world, 1 * S);
    /* the last lookup found a record: no negative entry */
    assert_ok(hth_board_ask(fx.reader.board));
}

TEST_WITH(lossy_dht_delays_but_loses_no_record, NULL, teardown)
{
    struct hth_dht_params params = HTH_DHT_PARAMS_INIT;
    int seen = 0;
    (void)state;
    params.lost_put = 0.2;
    params.partial = 0.3;
    params.repeat = 0.3;
    setup_skewed(0, &params);
    start_board(NULL);
    start_publisher(6, 60 * S);
    hth_world_run_for(fx.world, 60 * S);
    for (int i = 0; i < 100; i++) {
        hth_world_run_for(fx.world, 10 * S);
        seen += fx.reader.last == 6;
    }
    assert_true(seen >= 95);
    teardown(NULL);
    setup(NULL);
}

/* It judges offered bytes, and reads nothing from the DHT until it is watched. */
TEST_WITH(unwatched_board_judges_offers_only, setup, teardown)
{
    struct hth_board_opts o = HTH_BOARD_OPTS_INIT;
    uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
    struct hth_board_stats s;
    size_t len;

    (void)state;
    o.unwatched = true;
    start_board(&o);
    start_publisher(42, 60 * S);
    hth_world_run_for(fx.world, 90 * S);
    assert_int_equal(fx.reader.last, -1);
    len = seal_as(60000, 0, 0, 1, 7, bytes);
    assert_ok(hth_board_offer(fx.reader.board, bytes, len));
    assert_int_equal(fx.reader.last, 7);
    hth_board_stats(fx.reader.board, &s);
    assert_int_equal(s.watches, 0);
    assert_ok(hth_board_watch(fx.reader.board));
    hth_world_run_for(fx.world, 2 * S);
    assert_int_equal(fx.reader.last, 42);
    hth_board_stats(fx.reader.board, &s);
    assert_true(s.watches > 0);
}
