/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_record.c: the bytes of a record, and the error for a change of each of them.
 */
#include "dht/record.h"

#include "core/bytes.h"
#include "dht/listing.h"
#include "net/crypto.h"
#include "sim/world.h"
#include "support/suite.h"

#define WALL_US (INT64_C(1700000000) * HTH_US_PER_S)

/* GOLDEN_RECORD: header, payload "hello", Ed25519 signature with the secret 00 01 02 .. 1f, for
 * topic (network "golden", root of "ffn0."), issued at WALL_US. Written by an independent
 * implementation of the picture in record.h and of the signature (golden_record.py). */
#include "golden_record.h"

struct fixture {
    struct hth_world *world;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_topic topic;
    struct hth_dht_key key;
    struct hth_record rec;
    uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
    size_t len;
};

static void seal(struct fixture *f)
{
    assert_ok(hth_record_seal(f->env, &f->key, &f->rec, f->bytes, sizeof(f->bytes), &f->len));
}

static int setup(void **state)
{
    static struct fixture f;
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    memset(&f, 0, sizeof(f));
    opts.crypto = hth_crypto_openssl();
    opts.wall_start_us = WALL_US;
    f.world = hth_world_new(1, &opts);
    f.node = hth_world_node(f.world, "a", NULL);
    f.env = hth_node_env(f.node);
    for (uint8_t i = 0; i < 32; i++)
        f.env->secret.b[i] = i;
    f.env->crypto->public_of(&f.env->secret, &f.env->pubkey);
    f.env->self = hth_peer_id_of(f.env->crypto, &f.env->pubkey);
    hth_topic_init(&f.topic, f.env->crypto, "golden", HTH_RECORD_ROOT, "ffn0.", 5);
    hth_topic_key(&f.topic, f.env->crypto, hth_topic_epoch(WALL_US), &f.key);
    f.rec = (struct hth_record){.kind = HTH_RECORD_ROOT,
                                .part = 3,
                                .network = f.topic.network,
                                .seq = (uint64_t)WALL_US,
                                .issued_us = WALL_US,
                                .life_ms = 60000,
                                .payload = (const uint8_t *)"hello",
                                .payload_len = 5};
    seal(&f);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    hth_world_free(f->world);
    return 0;
}

static enum hth_err open_at(struct fixture *f, const uint8_t *data, size_t len)
{
    struct hth_record rec;
    return hth_record_open(f->env, NULL, &f->topic, &f->key, data, len, &rec);
}

TEST_WITH(record_has_golden_bytes, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_record rec;
    assert_memory_equal(f->key.b, GOLDEN_KEY, sizeof(f->key.b));
    assert_int_equal(f->len, sizeof(GOLDEN_RECORD));
    assert_memory_equal(f->bytes, GOLDEN_RECORD, sizeof(GOLDEN_RECORD));
    assert_ok(hth_record_open(f->env, NULL, &f->topic, &f->key, GOLDEN_RECORD,
                              sizeof(GOLDEN_RECORD), &rec));
    assert_int_equal(rec.part, 3);
    assert_int_equal(rec.seq, WALL_US);
    assert_int_equal(rec.life_ms, 60000);
    assert_int_equal(rec.payload_len, 5);
    assert_memory_equal(rec.payload, "hello", 5);
    assert_true(hth_peer_id_eq(&rec.owner_id, &f->env->self));
}

TEST(beacon_has_golden_bytes)
{
    struct hth_beacon b, again = {.protocol_min = 1, .protocol_max = 1, .role = HTH_ROLE_HOST};
    struct hth_grid grid;
    struct hth_writer w;
    uint8_t buf[HTH_RECORD_PAYLOAD_MAX];
    (void)state;
    assert_ok(hth_grid_parse("ffn0.16.16", 10, &grid));
    assert_ok(hth_beacon_read(GOLDEN_BEACON, sizeof(GOLDEN_BEACON), &b));
    assert_string_equal(b.network, "golden");
    assert_int_equal(b.role, HTH_ROLE_HOST);
    assert_int_equal(b.info.addr[0].port, 4000);
    assert_int_equal(b.info.queue_ms, 7);
    assert_int_equal(b.layer_count, 1);
    assert_true(hth_grid_eq(&b.layers[0].grid, &grid));
    assert_int_equal(b.layers[0].shape.d, 256);
    assert_int_equal(b.layers[0].experts, 64);
    again.info = b.info;
    again.layers = b.layers;
    again.layer_count = 1;
    memcpy(again.network, "golden", 7);
    hth_writer_init(&w, buf, sizeof(buf));
    assert_ok(hth_beacon_write(&w, &again, 364));
    assert_int_equal(w.pos, sizeof(GOLDEN_BEACON));
    assert_memory_equal(buf, GOLDEN_BEACON, sizeof(GOLDEN_BEACON));
    hth_beacon_clear(&b);
}

/* Every changed bit is refused with a named error. */
TEST_WITH(every_changed_bit_is_refused, setup, teardown)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < f->len; i++) {
        for (int bit = 0; bit < 8; bit++) {
            f->bytes[i] ^= (uint8_t)(1 << bit);
            enum hth_err err = open_at(f, f->bytes, f->len);
            f->bytes[i] ^= (uint8_t)(1 << bit);
            bool named =
                err == HTH_E_BAD_SIGNATURE || (i < 4 && err == HTH_E_BAD_MAGIC) ||
                (i == 4 && err == HTH_E_VERSION) || (i == 5 && err == HTH_E_MALFORMED) ||
                (i == 6 && err == HTH_E_RANGE) || (i == 7 && err == HTH_E_MALFORMED) ||
                (i >= 8 && i < 16 && err == HTH_E_WRONG_RUN) ||
                (i >= 24 && i < 32 &&
                 (err == HTH_E_CLOCK_SKEW || err == HTH_E_EXPIRED || err == HTH_E_RANGE)) ||
                (i >= 32 && i < 36 && err == HTH_E_RANGE) ||
                (i >= 36 && i < 40 && (err == HTH_E_TRUNCATED || err == HTH_E_MALFORMED));
            if (!named)
                fail_msg("byte %zu bit %d: %s", i, bit, hth_err_name(err));
        }
    }
    assert_ok(open_at(f, f->bytes, f->len));
}

TEST_WITH(cut_and_padded_records_are_refused, setup, teardown)
{
    struct fixture *f = *state;
    for (size_t len = 0; len < f->len; len++)
        assert_err(HTH_E_TRUNCATED, open_at(f, f->bytes, len));
    assert_err(HTH_E_MALFORMED, open_at(f, f->bytes, f->len + 1));
    assert_err(HTH_E_TOO_LARGE, open_at(f, f->bytes, HTH_DHT_VALUE_BYTES_MAX + 1));
}

TEST_WITH(copy_under_another_key_is_refused, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_topic other;
    struct hth_record rec;
    struct hth_dht_key key;
    hth_topic_key(&f->topic, f->env->crypto, hth_topic_epoch(WALL_US) + 1, &key);
    assert_err(HTH_E_BAD_SIGNATURE,
               hth_record_open(f->env, NULL, &f->topic, &key, f->bytes, f->len, &rec));
    hth_topic_init(&other, f->env->crypto, "golden", HTH_RECORD_ROOT, "ffn1.", 5);
    hth_topic_key(&other, f->env->crypto, hth_topic_epoch(WALL_US), &key);
    assert_err(HTH_E_BAD_SIGNATURE,
               hth_record_open(f->env, NULL, &other, &key, f->bytes, f->len, &rec));
    hth_topic_init(&other, f->env->crypto, "golden", HTH_RECORD_PREFIX, "ffn0.", 5);
    assert_err(HTH_E_MALFORMED,
               hth_record_open(f->env, NULL, &other, &f->key, f->bytes, f->len, &rec));
    hth_topic_init(&other, f->env->crypto, "golden2", HTH_RECORD_ROOT, "ffn0.", 5);
    assert_err(HTH_E_WRONG_RUN,
               hth_record_open(f->env, NULL, &other, &f->key, f->bytes, f->len, &rec));
}

struct clock_case {
    int64_t issued_us; /* from now */
    uint32_t life_ms;
    enum hth_err err;
};

TEST_WITH(clock_skew_and_expiry_are_judged, setup, teardown)
{
    struct fixture *f = *state;
    static const struct clock_case CASES[] = {
        {0, 60000, HTH_OK},
        {2900000, 60000, HTH_OK},
        {3000000, 60000, HTH_OK},
        {3000001, 60000, HTH_E_CLOCK_SKEW},
        {3100000, 60000, HTH_E_CLOCK_SKEW},
        {-59000000, 60000, HTH_OK},
        {-62900000, 60000, HTH_OK},
        {-63000000, 60000, HTH_OK},
        {-63000001, 60000, HTH_E_EXPIRED},
        {-1000000 - 3000001, 1000, HTH_E_EXPIRED},
        {-600000000, 600000, HTH_OK},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(CASES); i++) {
        f->rec.issued_us = WALL_US + CASES[i].issued_us;
        f->rec.life_ms = CASES[i].life_ms;
        seal(f);
        assert_err(CASES[i].err, open_at(f, f->bytes, f->len));
    }
    struct hth_record rec;
    char text[200];
    f->rec.issued_us = WALL_US + 3100000;
    f->rec.life_ms = 60000;
    seal(f);
    assert_ok(hth_record_peek(f->bytes, f->len, &rec));
    hth_record_explain(HTH_E_CLOCK_SKEW, &rec, WALL_US, text);
    assert_non_null(strstr(text, "22:13:23.100")); /* 1700000003.1 s since 1970 */
    assert_non_null(strstr(text, "22:13:20.000"));
    assert_non_null(strstr(text, "3.1 s"));
}

TEST_WITH(sealing_refuses_values_beyond_limits, setup, teardown)
{
    struct fixture *f = *state;
    uint8_t payload[HTH_RECORD_PAYLOAD_MAX + 1] = {0};
    f->rec.payload = payload;
    f->rec.payload_len = HTH_RECORD_PAYLOAD_MAX;
    seal(f);
    assert_int_equal(f->len, HTH_DHT_VALUE_BYTES_MAX);
    assert_ok(open_at(f, f->bytes, f->len));
    f->rec.payload_len++;
    assert_err(HTH_E_TOO_LARGE,
               hth_record_seal(f->env, &f->key, &f->rec, f->bytes, sizeof(f->bytes), &f->len));
    f->rec.payload_len = 0;
    assert_err(HTH_E_TOO_LARGE, hth_record_seal(f->env, &f->key, &f->rec, f->bytes,
                                                HTH_RECORD_OVERHEAD_BYTES - 1, &f->len));
    seal(f);
    f->rec.part = HTH_BOARD_RECORDS_PER_OWNER_MAX;
    assert_err(HTH_E_RANGE,
               hth_record_seal(f->env, &f->key, &f->rec, f->bytes, sizeof(f->bytes), &f->len));
    f->rec.part = 0;
    const uint32_t bad_ms[] = {0, 999, 600001, UINT32_MAX};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad_ms); i++) {
        f->rec.life_ms = bad_ms[i];
        assert_err(HTH_E_RANGE,
                   hth_record_seal(f->env, &f->key, &f->rec, f->bytes, sizeof(f->bytes), &f->len));
    }
}

TEST_WITH(cache_remembers_refused_records, setup, teardown)
{
    struct fixture *f = *state;
    struct hth_record_cache *cache = hth_record_cache_new();
    struct hth_record rec;
    for (int i = 0; i < 3; i++)
        assert_ok(hth_record_open(f->env, cache, &f->topic, &f->key, f->bytes, f->len, &rec));
    assert_int_equal(hth_record_cache_verified(cache), 3); /* believed records are not cached */
    hth_record_cache_good(f->env, cache, &f->key, f->bytes, f->len);
    for (int i = 0; i < 3; i++)
        assert_ok(hth_record_open(f->env, cache, &f->topic, &f->key, f->bytes, f->len, &rec));
    assert_int_equal(hth_record_cache_verified(cache), 3);
    f->bytes[f->len - 1] ^= 1;
    for (int i = 0; i < 3; i++)
        assert_err(HTH_E_BAD_SIGNATURE,
                   hth_record_open(f->env, cache, &f->topic, &f->key, f->bytes, f->len, &rec));
    assert_int_equal(hth_record_cache_verified(cache), 4);
    f->bytes[f->len - 1] ^= 1;
    /* Its size is bounded: after that many other records, the first is checked again. */
    for (uint64_t i = 0; i < HTH_RECORD_CACHE_MAX; i++) {
        hth_store_u64le(f->bytes + f->len - 8, i);
        assert_err(HTH_E_BAD_SIGNATURE,
                   hth_record_open(f->env, cache, &f->topic, &f->key, f->bytes, f->len, &rec));
    }
    /* A few more push out as many of the oldest, and all others are still known. */
    for (uint64_t i = 0; i < HTH_RECORD_CACHE_MAX + 10; i++) {
        hth_store_u64le(f->bytes + f->len - 8, HTH_RECORD_CACHE_MAX + 9 - i);
        assert_err(HTH_E_BAD_SIGNATURE,
                   hth_record_open(f->env, cache, &f->topic, &f->key, f->bytes, f->len, &rec));
    }
    seal(f);
    assert_int_equal(hth_record_cache_verified(cache), 4 + HTH_RECORD_CACHE_MAX + 20);
    assert_ok(hth_record_open(f->env, cache, &f->topic, &f->key, f->bytes, f->len, &rec));
    assert_int_equal(hth_record_cache_verified(cache), 5 + HTH_RECORD_CACHE_MAX + 20);
    hth_record_cache_free(cache);
}
