/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_listing.c: sets of experts survive a round trip through a record, each in one small form.
 */
#include "dht/listing.h"

#include "core/mem.h"
#include "core/rng.h"
#include "dht/record.h"
#include "support/suite.h"

#define NUMBERS_MAX 70000

static uint32_t numbers[NUMBERS_MAX];

static void listing_for(struct hth_listing *l, const char *grid)
{
    memset(l, 0, sizeof(*l));
    assert_ok(hth_grid_parse(grid, strlen(grid), &l->grid));
    l->shape = (struct hth_layer_shape){.kind = "ffn", .d = 256, .block_rows = 1};
    assert_ok(hth_addr_parse("127.0.0.1:4000", &l->info.addr[0]));
    l->info.addr_count = 1;
    memcpy(l->info.version, "0.1.0", 6);
    l->info.rows_per_s = 12345;
    l->info.queue_ms = 7;
    l->info.compute = HTH_COMPUTE_TF32;
}

/* Writes numbers[0..count) under `l` and checks that they come back. Returns the bytes. */
static size_t round_trip(const struct hth_listing *l, size_t count, size_t bytes_max, size_t *taken)
{
    uint8_t buf[HTH_RECORD_PAYLOAD_MAX];
    struct hth_writer w;
    struct hth_listing back;
    hth_writer_init(&w, buf, sizeof(buf));
    assert_ok(hth_listing_write_head(&w, l));
    size_t head = w.pos;
    assert_ok(hth_listing_write_set(&w, numbers, count, bytes_max, taken));
    assert_true(w.pos - head <= bytes_max);
    assert_ok(hth_listing_read(buf, w.pos, &back));
    assert_int_equal(back.count, *taken);
    size_t n = 0;
    for (size_t r = 0; r < back.run_count; r++)
        for (uint32_t i = 0; i < back.runs[r].count; i++)
            assert_int_equal(back.runs[r].first + i, numbers[n++]);
    assert_int_equal(n, *taken);
    assert_true(hth_grid_eq(&back.grid, &l->grid));
    assert_true(hth_layer_shape_eq(&back.shape, &l->shape));
    assert_int_equal(back.info.addr_count, 1);
    assert_true(hth_addr_eq(&back.info.addr[0], &l->info.addr[0]));
    assert_string_equal(back.info.version, "0.1.0");
    assert_int_equal(back.info.queue_ms, 7);
    assert_string_equal(hth_compute_name(back.info.compute), "tf32");
    assert_close(back.info.rows_per_s, 12345, 0, 0);
    /* Every truncation is refused. */
    for (size_t len = 0; len < w.pos; len++) {
        struct hth_listing cut;
        assert_int_not_equal(hth_listing_read(buf, len, &cut), HTH_OK);
    }
    hth_listing_clear(&back);
    return w.pos;
}

TEST(pattern_takes_few_bytes)
{
    struct hth_listing l;
    struct hth_pattern p;
    size_t taken;
    (void)state;
    listing_for(&l, "ffn0.32.32");
    assert_ok(hth_pattern_parse("ffn0.[0:4].[0:16]", 17, &p));
    assert_ok(hth_pattern_expand(&p, &l.grid, numbers));
    size_t bytes = round_trip(&l, 64, 400, &taken);
    assert_int_equal(taken, 64);
    assert_true(bytes + HTH_RECORD_OVERHEAD_BYTES < 200);
}

TEST(random_sets_survive_round_trip)
{
    struct hth_rng rng;
    struct hth_listing l;
    (void)state;
    hth_rng_init(&rng, 7);
    listing_for(&l, "ffn0.64.64");
    for (int round = 0; round < 300; round++) {
        double density = hth_rng_unit(&rng);
        size_t count = 0, taken;
        for (uint32_t i = 0; i < 4096; i++)
            if (hth_rng_chance(&rng, density))
                numbers[count++] = i;
        if (count == 0)
            continue;
        round_trip(&l, count, 1024, &taken);
        assert_int_equal(taken, count); /* a bitmap of the whole grid has 512 bytes */
        size_t few = 16 + hth_rng_below(&rng, 100);
        round_trip(&l, count, few, &taken);
        assert_true(taken >= 1);
    }
}

TEST(sets_choose_the_shorter_codec)
{
    struct hth_listing l;
    size_t taken;
    (void)state;
    listing_for(&l, "ffn0.4096");
    for (uint32_t i = 0; i < 512; i++)
        numbers[i] = 2 * i;
    assert_true(round_trip(&l, 512, 2000, &taken) < 128 + 90); /* a bit each, not two bytes */
    for (uint32_t i = 0; i < 512; i++)
        numbers[i] = i + 100;
    assert_true(round_trip(&l, 512, 2000, &taken) < 20 + 60);
}

/* A listing with this set after the head, byte by byte. */
static enum hth_err read_set(const char *grid, uint8_t flags, const uint8_t *set, size_t len)
{
    uint8_t buf[HTH_RECORD_PAYLOAD_MAX];
    struct hth_writer w;
    struct hth_listing l, back;
    listing_for(&l, grid);
    l.flags = flags;
    hth_writer_init(&w, buf, sizeof(buf));
    assert_ok(hth_listing_write_head(&w, &l));
    hth_write_bytes(&w, set, len);
    assert_ok(w.err);
    enum hth_err err = hth_listing_read(buf, w.pos, &back);
    hth_listing_clear(&back);
    return err;
}

#define SET(...) ((const uint8_t[]){__VA_ARGS__}), sizeof((const uint8_t[]){__VA_ARGS__})

TEST(hostile_sets_are_named)
{
    (void)state;
    assert_ok(read_set("a.8.8", 0, SET(1, 2, 1, 3, 1)));
    assert_err(HTH_E_MALFORMED, read_set("a.8.8", 0, SET(3, 2, 1, 3, 1)));       /* codec */
    assert_err(HTH_E_MALFORMED, read_set("a.8.8", 0, SET(1, 3, 1, 3, 1)));       /* count */
    assert_err(HTH_E_MALFORMED, read_set("a.8.8", 0, SET(1, 2, 1, 3, 1, 0)));    /* left over */
    assert_err(HTH_E_MALFORMED, read_set("a.8.8", 0, SET(1, 2, 2, 3, 0, 0, 0))); /* touching */
    assert_err(HTH_E_RANGE, read_set("a.8.8", 0, SET(1, 2, 1, 63, 1))); /* beyond the grid */
    assert_err(HTH_E_MALFORMED, read_set("a.8.8", 0, SET(1, 2, 1, 0x83, 0, 1))); /* long form */
    assert_err(HTH_E_MALFORMED,
               read_set("a.8.8", 0, SET(1, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 3, 1))); /* 35 bits */
    assert_err(HTH_E_TRUNCATED, read_set("a.8.8", 0, SET(1, 2, 0xff, 0xff, 0x3f, 0, 0)));
    assert_ok(read_set("a.8.8", 0, SET(2, 2, 5, 3, 5)));
    assert_err(HTH_E_MALFORMED, read_set("a.8.8", 0, SET(2, 1, 5, 3, 4)));  /* first bit clear */
    assert_err(HTH_E_MALFORMED, read_set("a.8.8", 0, SET(2, 1, 5, 3, 1)));  /* last bit clear */
    assert_err(HTH_E_MALFORMED, read_set("a.8.8", 0, SET(2, 3, 5, 3, 13))); /* padding set */
    assert_err(HTH_E_MALFORMED, read_set("a.8.8", 0, SET(2, 0, 5, 0)));
    assert_err(HTH_E_RANGE, read_set("a.8.8", 0, SET(2, 2, 62, 3, 5)));
    /* More experts than one host may list: a run of 65537 in five bytes. */
    assert_err(HTH_E_TOO_LARGE,
               read_set("a.4096.4096", 0, SET(1, 0x81, 0x80, 4, 1, 0, 0x80, 0x80, 4)));
    assert_ok(read_set("a.4096.4096", 0, SET(1, 0x80, 0x80, 4, 1, 0, 0xff, 0xff, 3)));
    /* First coordinates are counted along the first axis, and there must be more than one axis. */
    assert_ok(read_set("a.8.8", HTH_LISTING_FIRSTS, SET(1, 1, 1, 7, 0)));
    assert_err(HTH_E_RANGE, read_set("a.8.8", HTH_LISTING_FIRSTS, SET(1, 1, 1, 8, 0)));
    assert_err(HTH_E_MALFORMED, read_set("a.8", HTH_LISTING_FIRSTS, SET(1, 1, 1, 7, 0)));
    assert_err(HTH_E_MALFORMED, read_set("a.8.8", 2, SET(1, 1, 1, 7, 0)));
}

TEST(beacons_survive_round_trip)
{
    struct hth_beacon b = {.protocol_min = 1, .protocol_max = 3, .role = HTH_ROLE_HOST}, back;
    struct hth_beacon_layer layers[40];
    struct hth_listing l;
    uint8_t buf[HTH_RECORD_PAYLOAD_MAX];
    struct hth_writer w;
    (void)state;
    listing_for(&l, "ffn0.16.16");
    b.info = l.info;
    memcpy(b.network, "r\xc3\xa9seau", 8);
    for (uint32_t i = 0; i < 40; i++)
        layers[i] = (struct hth_beacon_layer){.grid = l.grid, .shape = l.shape, .experts = 64 + i};
    b.layers = layers;
    b.layer_count = 40;
    hth_writer_init(&w, buf, sizeof(buf));
    assert_ok(hth_beacon_write(&w, &b, 364));
    assert_true(w.pos <= 364);
    assert_ok(hth_beacon_read(buf, w.pos, &back));
    assert_int_equal(back.protocol_min, 1);
    assert_int_equal(back.protocol_max, 3);
    assert_int_equal(back.role, HTH_ROLE_HOST);
    assert_string_equal(back.network, "r\xc3\xa9seau");
    assert_true(back.layer_count > 10 && back.layer_count < 40);
    for (size_t i = 0; i < back.layer_count; i++)
        assert_int_equal(back.layers[i].experts, 64 + i);
    hth_beacon_clear(&back);
    for (size_t len = 0; len < w.pos; len++)
        assert_int_not_equal(hth_beacon_read(buf, len, &back), HTH_OK);
    buf[0] = 9;
    assert_err(HTH_E_VERSION, hth_beacon_read(buf, w.pos, &back));
}

static enum hth_err read_beacon_of(const void *name, size_t len)
{
    static const uint8_t head[] = {2, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    uint8_t buf[200];
    struct hth_writer w;
    struct hth_beacon back;
    hth_writer_init(&w, buf, sizeof(buf));
    hth_write_bytes(&w, head, sizeof(head)); /* no addresses, no version */
    hth_write_u8(&w, (uint8_t)len);
    hth_write_bytes(&w, name, len);
    hth_write_u8(&w, 0); /* no layers */
    assert_ok(w.err);
    enum hth_err err = hth_beacon_read(buf, w.pos, &back);
    hth_beacon_clear(&back);
    return err;
}

/* Names from strangers are shown on terminals. */
TEST(beacon_needs_a_printable_network)
{
    char name[HTH_NAME_LEN_MAX + 1];
    (void)state;
    memset(name, 'n', sizeof(name));
    assert_ok(read_beacon_of(name, 1));
    assert_ok(read_beacon_of(name, HTH_NAME_LEN_MAX));
    assert_err(HTH_E_RANGE, read_beacon_of(name, HTH_NAME_LEN_MAX + 1));
    assert_ok(read_beacon_of("", 0)); /* of a private run */
    assert_err(HTH_E_MALFORMED, read_beacon_of("a\0b", 3));
    assert_err(HTH_E_MALFORMED, read_beacon_of("a\x1b[2J", 5));
    assert_err(HTH_E_MALFORMED, read_beacon_of("\xc3", 1));
}

/* Runs of one number each: the most memory that a payload can cause. */
TEST(failed_allocations_are_errors)
{
    struct hth_listing l, back;
    uint8_t buf[HTH_RECORD_PAYLOAD_MAX];
    struct hth_writer w;
    size_t taken;
    (void)state;
    listing_for(&l, "ffn0.4096.4096");
    for (uint32_t i = 0; i < 14000; i++)
        numbers[i] = 2 * i;
    hth_writer_init(&w, buf, sizeof(buf));
    assert_ok(hth_listing_write_head(&w, &l));
    assert_ok(hth_listing_write_set(&w, numbers, 14000, 3800, &taken));
    assert_int_equal(taken, 14000);
    for (long n = 1;; n++) {
        hth_mem_fail_at(n);
        enum hth_err err = hth_listing_read(buf, w.pos, &back);
        hth_mem_fail_at(0);
        if (err == HTH_OK)
            break;
        assert_err(HTH_E_NO_MEMORY, err);
        assert_null(back.runs);
    }
    assert_int_equal(back.count, 14000);
    hth_listing_clear(&back);
}

/* A newer program may write a number without a name here. */
TEST(compute_types_have_names)
{
    (void)state;
    assert_string_equal(hth_compute_name(HTH_COMPUTE_FP32), "fp32");
    assert_string_equal(hth_compute_name(HTH_COMPUTE_BF16), "bf16");
    assert_string_equal(hth_compute_name((enum hth_compute)4), "?");
}
