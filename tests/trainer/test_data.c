/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data: every sample once per epoch, the order a function of (seed, epoch, peer), any position can
 * be reached again, pictures are shifted as the seed says, hostile files are refused by name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "core/mem.h"
#include "support/suite.h"
#include "trainer/data.h"
#include "trainer/task.h"

#define ITEMS 53
#define SIDE  3

/* Image i has pixels i, i + 1, ..; its label is i % 10. */
static size_t make_images(uint8_t *out)
{
    task_heads(out, NULL, ITEMS, SIDE, SIDE);
    for (uint32_t i = 0; i < ITEMS * SIDE * SIDE; i++)
        out[16 + i] = (uint8_t)(i / (SIDE * SIDE) + i % (SIDE * SIDE));
    return 16 + ITEMS * SIDE * SIDE;
}

static size_t make_labels(uint8_t *out)
{
    task_heads(NULL, out, ITEMS, 0, 0);
    for (uint32_t i = 0; i < ITEMS; i++)
        out[8 + i] = (uint8_t)(i % 10);
    return 8 + ITEMS;
}

/* window 31: with gzip's header and trailer. */
static size_t gzip(const uint8_t *in, size_t len, uint8_t *out, size_t max)
{
    z_stream z;

    memset(&z, 0, sizeof(z));
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)in;
    z.avail_in = (uInt)len;
    z.next_out = out;
    z.avail_out = (uInt)max;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    len = z.total_out;
    deflateEnd(&z);
    return len;
}

static void put_file(struct task *f, const char *name, const uint8_t *bytes, size_t len,
                     bool compressed)
{
    size_t max = len + 1000;
    uint8_t *packed = hth_calloc(1, max);

    if (compressed)
        len = gzip(bytes, len, packed, max);
    hth_node_disk_put(f->node, name, compressed ? packed : bytes, len);
    hth_free(packed);
}

static void put_files(struct task *f, bool compressed)
{
    uint8_t plain[1024];

    put_file(f, "images", plain, make_images(plain), compressed);
    put_file(f, "labels", plain, make_labels(plain), compressed);
}

static struct hth_data_opts image_opts(void)
{
    struct hth_data_opts o = HTH_DATA_OPTS_INIT;

    o.images = "images";
    o.labels = "labels";
    o.mean = 0;
    o.std = 1;
    o.shuffle_rows = 8;
    o.seed = 7;
    return o;
}

/* The item number of a delivered image is its first pixel. */
static uint32_t item_of(const float *x)
{
    return (uint32_t)lrintf(x[0] * 255.0f);
}

/* The items in the order of an epoch, in which each comes once, with its label. */
static void read_order(struct task *f, const struct hth_data_opts *o, uint64_t epoch,
                       uint32_t out[ITEMS])
{
    uint32_t seen[ITEMS] = {0};
    struct hth_data_info info;
    struct hth_data *data;
    float x[ITEMS * SIDE * SIDE];
    int32_t y[ITEMS];

    assert_ok(hth_data_open(f->env, o, &data));
    hth_data_info(data, &info);
    assert_int_equal(info.samples, ITEMS);
    assert_int_equal(info.features, SIDE * SIDE);
    assert_ok(hth_data_read(data, epoch * ITEMS, ITEMS, x, NULL, y));
    for (int i = 0; i < ITEMS; i++) {
        uint32_t item = item_of(x + i * SIDE * SIDE);

        assert_true(item < ITEMS && seen[item]++ == 0);
        assert_int_equal(y[i], item % 10);
        assert_int_equal(lrintf(x[i * SIDE * SIDE + 8] * 255), item + 8);
        out[i] = item;
    }
    hth_data_free(data);
}

/* In an order of the epoch, the seed and the peer. */
TASK_TEST(each_sample_comes_once_per_epoch)
{
    static const struct {
        uint64_t epoch, seed;
        uint32_t peer;
    } others[] = {{1, 7, 0}, {0, 8, 0}, {0, 7, 1}};
    struct task *f = *state;

    for (int compressed = 0; compressed < 2; compressed++) {
        struct hth_data_opts o = image_opts();
        uint32_t a[ITEMS], b[ITEMS];

        put_files(f, compressed);
        read_order(f, &o, 0, a);
        read_order(f, &o, 0, b);
        assert_memory_equal(a, b, sizeof(a));
        for (size_t i = 0; i < HTH_ARRAY_LEN(others); i++) {
            o.seed = others[i].seed;
            o.peer = others[i].peer;
            read_order(f, &o, others[i].epoch, b);
            assert_memory_not_equal(a, b, sizeof(a));
        }
        o.shuffle_rows = 0;
        read_order(f, &o, 0, b);
        for (uint32_t i = 0; i < ITEMS; i++)
            assert_int_equal(b[i], i);
    }
}

/* ---- shifts ---------------------------------------------------------------------------------- */

#define HIGH    5
#define WIDE    7
#define PIXELS  (HIGH * WIDE)
#define SHIFT   2
#define MOVES   (2 * SHIFT + 1)
#define SAMPLES (40 * ITEMS)

/* Never 0, so that the shift of a picture is found for certain. */
static uint8_t pixel(int item, int row, int col)
{
    return (uint8_t)(1 + hth_mix64((uint64_t)(item * PIXELS + row * WIDE + col)) % 255);
}

static void put_pictures(struct task *f, bool compressed)
{
    uint8_t bytes[16 + ITEMS * PIXELS], labels[64];

    task_heads(bytes, NULL, ITEMS, HIGH, WIDE);
    for (int i = 0; i < ITEMS * PIXELS; i++)
        bytes[16 + i] = pixel(i / PIXELS, i / WIDE % HIGH, i % WIDE);
    put_file(f, "images", bytes, sizeof(bytes), compressed);
    put_file(f, "labels", labels, make_labels(labels), false);
}

/* Reads samples 0 .. SAMPLES - 1 as bytes, a few at a time. */
static void read_pictures(struct task *f, const struct hth_data_opts *o,
                          uint8_t out[SAMPLES][HIGH][WIDE])
{
    struct hth_data *data;
    float x[ITEMS * PIXELS];
    int32_t y[ITEMS];

    assert_ok(hth_data_open(f->env, o, &data));
    for (int at = 0; at < SAMPLES; at += ITEMS) {
        assert_ok(hth_data_read(data, (uint64_t)at, ITEMS, x, NULL, y));
        for (int i = 0; i < ITEMS * PIXELS; i++) {
            long byte = lrintf(x[i] * 255.0f);

            assert_close(x[i] * 255.0f, byte, 1e-3, 0);
            assert_in_range(byte, 0, 255);
            out[at + i / PIXELS][i / WIDE % HIGH][i % WIDE] = (uint8_t)byte;
        }
    }
    hth_data_free(data);
}

static bool is_moved(uint8_t got[HIGH][WIDE], int item, int down, int right)
{
    for (int r = 0; r < HIGH; r++)
        for (int c = 0; c < WIDE; c++) {
            int row = r - down, col = c - right;
            bool inside = row >= 0 && row < HIGH && col >= 0 && col < WIDE;

            if (got[r][c] != (inside ? pixel(item, row, col) : 0))
                return false;
        }
    return true;
}

/* Tries every item and every shift, also those beyond the limit; true when exactly one fits. */
static bool find_move(uint8_t got[HIGH][WIDE], int *item, int *down, int *right)
{
    int found = 0;

    for (int i = 0; i < ITEMS; i++)
        for (int d = -2 * SHIFT; d <= 2 * SHIFT; d++)
            for (int r = -2 * SHIFT; r <= 2 * SHIFT; r++)
                if (is_moved(got, i, d, r)) {
                    *item = i;
                    *down = d;
                    *right = r;
                    found++;
                }
    return found == 1;
}

TASK_TEST(shifts_are_uniform_within_bounds)
{
    static uint8_t got[SAMPLES][HIGH][WIDE];
    struct task *f = *state;
    struct hth_data_opts o = image_opts();
    int seen[MOVES][MOVES] = {{0}}, epoch[ITEMS] = {0};
    double expected = (double)SAMPLES / (MOVES * MOVES), chi2 = 0;

    put_pictures(f, false);
    o.shift = SHIFT;
    read_pictures(f, &o, got);
    for (int s = 0; s < SAMPLES; s++) {
        int item, down, right;

        assert_true(find_move(got[s], &item, &down, &right));
        assert_true(abs(down) <= SHIFT && abs(right) <= SHIFT);
        seen[down + SHIFT][right + SHIFT]++;
        epoch[item]++;
        assert_int_equal(epoch[item],
                         s / ITEMS + 1); /* each item once in each epoch, as without a shift */
    }
    for (int i = 0; i < MOVES * MOVES; i++)
        chi2 += pow(seen[i / MOVES][i % MOVES] - expected, 2) / expected;
    assert_true(chi2 < 51.2); /* 24 degrees of freedom: 1 in 1000 */
}

/* A new reader begins anywhere, as with --resume. */
TASK_TEST(any_position_can_be_read_again)
{
    static uint8_t all[SAMPLES][HIGH][WIDE];
    struct task *f = *state;
    struct hth_data_opts o = image_opts();
    struct hth_data *data;
    float x[7 * PIXELS];
    int32_t y[7];

    o.shift = SHIFT;
    for (int compressed = 0; compressed < 2; compressed++) {
        put_pictures(f, compressed);
        read_pictures(f, &o, all);
        for (int at = 0; at < 3 * ITEMS; at += 11) {
            assert_ok(hth_data_open(f->env, &o, &data));
            assert_ok(hth_data_read(data, (uint64_t)at, 7, x, NULL, y));
            for (int i = 0; i < 7 * PIXELS; i++)
                assert_int_equal(lrintf(x[i] * 255.0f),
                                 all[at + i / PIXELS][i / WIDE % HIGH][i % WIDE]);
            hth_data_free(data);
        }
    }
}

/* Every evaluation, on every trainer, reads the same pictures. */
TASK_TEST(shifts_of_a_test_set_are_equal_in_every_epoch)
{
    static uint8_t got[SAMPLES][HIGH][WIDE];
    struct task *f = *state;
    struct hth_data_opts o = image_opts();
    int moved = 0;

    put_pictures(f, false);
    o.shift = SHIFT;
    o.shuffle_rows = 0;
    read_pictures(f, &o, got);
    for (int s = 0; s < SAMPLES; s++) {
        int item, down, right;

        assert_memory_equal(got[s], got[s % ITEMS], PIXELS);
        assert_true(find_move(got[s], &item, &down, &right));
        assert_int_equal(item, s % ITEMS);
        moved += down != 0 || right != 0;
    }
    assert_true(moved > SAMPLES / 2);
}

/* A shift that is larger than the picture leaves a blank one, and none leaves every byte. */
TASK_TEST(shifts_are_as_large_as_they_may_be)
{
    static uint8_t got[SAMPLES][HIGH][WIDE];
    struct task *f = *state;
    struct hth_data_opts o = image_opts();
    int blank = 0;

    put_pictures(f, false);
    o.shift = HTH_DATA_SHIFT_MAX;
    read_pictures(f, &o, got);
    for (int s = 0; s < SAMPLES; s++) {
        static const uint8_t nothing[HIGH][WIDE];

        blank += memcmp(got[s], nothing, PIXELS) == 0;
    }
    /* 9 of 17 shifts down leave a line of the 5, 13 of 17 shifts right a column of the 7: the other
     * 172 of 289 are blank. */
    assert_true(fabs((double)blank / SAMPLES - 172.0 / 289) < 0.05);
    o.shift = 0;
    o.shuffle_rows = 0;
    read_pictures(f, &o, got);
    for (int s = 0; s < SAMPLES; s++)
        assert_true(is_moved(got[s], s % ITEMS, 0, 0));
}

TASK_TEST(text_windows_cover_the_part_once_per_epoch)
{
    struct task *f = *state;
    struct hth_data_opts o = HTH_DATA_OPTS_INIT;
    struct hth_data_info info;
    struct hth_data *data;
    uint8_t text[1000];
    int32_t tokens[400 * 8], labels[400 * 8];

    for (int i = 0; i < 1000; i++)
        text[i] = (uint8_t)(i * 37 + i / 256);
    for (int compressed = 0; compressed < 2; compressed++) {
        put_file(f, "text", text, 1000, compressed);
        o.kind = HTH_DATA_TEXT;
        o.text = "text";
        o.seq_len = 8;
        o.begin = 0.5;
        o.shuffle_rows = 0;
        assert_ok(hth_data_open(f->env, &o, &data));
        hth_data_info(data, &info);
        assert_int_equal(info.samples, (500 - 8) / 8);
        assert_ok(hth_data_read(data, 0, (uint32_t)info.samples, NULL, tokens, labels));
        for (uint64_t i = 0; i < info.samples * 8; i++) {
            assert_int_equal(tokens[i], text[500 + i]);
            assert_int_equal(labels[i], text[501 + i]);
        }
        hth_data_free(data);

        o.shuffle_rows = 16;
        assert_ok(hth_data_open(f->env, &o, &data));
        assert_ok(hth_data_read(data, 0, 400, NULL, tokens, labels));
        for (int i = 0; i < 400 * 8; i++)
            if (i % 8 != 7)
                assert_int_equal(labels[i], tokens[i + 1]);
        hth_data_free(data);
    }
}

/* ---- files that are none --------------------------------------------------------------------- */

struct said {
    char text[2048];
};

static void on_log(void *arg, const char *line, size_t len)
{
    struct said *s = arg;
    size_t at = strlen(s->text);

    snprintf(s->text + at, sizeof(s->text) - at, "%.*s\n", (int)len, line);
}

/* Refused when they are opened, not at their end. */
TASK_TEST(bad_files_are_refused)
{
    static const struct {
        size_t at; /* of the header */
        uint32_t value;
        int longer; /* bytes of the file, before it is packed, */
        int cut;    /* and behind */
        bool compressed;
        enum hth_err want;
        const char *says;
    } cases[] = {
        {0, 0x804, 0, 0, false, HTH_E_BAD_MAGIC,
         "images: it is not an idx file of bytes in 3 dimensions"},
        {0, 0xd03, 0, 0, false, HTH_E_BAD_MAGIC, "images: it is not an idx file"},
        {4, 0, 0, 0, false, HTH_E_BAD_SHAPE, "images: "},
        {4, ITEMS - 1, -SIDE * SIDE, 0, false, HTH_E_BAD_SHAPE, ""},
        {4, HTH_IDX_ITEMS_MAX + 1, 0, 0, false, HTH_E_TOO_LARGE, "images: "},
        {8, HTH_IDX_ITEM_BYTES_MAX + 1, 0, 0, false, HTH_E_TOO_LARGE, "images: "},
        {8, HTH_IDX_ITEM_BYTES_MAX / 2, 0, 0, false, HTH_E_TOO_LARGE, "images: "},
        {12, 0, 0, 0, false, HTH_E_BAD_SHAPE, "images: "},
        {4, ITEMS, 15 - 493, 0, false, HTH_E_TRUNCATED, "images: its header: "},
        {4, ITEMS, -1, 0, false, HTH_E_TRUNCATED,
         "images: its header says 53 items of 9 bytes, 493 bytes in all, but it has 492"},
        {4, ITEMS, 1, 0, false, HTH_E_CORRUPT, "493 bytes in all, but it has 494"},
        {4, ITEMS, -1, 0, true, HTH_E_TRUNCATED, "493 bytes in all, but it has 492"},
        {4, ITEMS, 0, 9, true, HTH_E_TRUNCATED, "images: the data ends too early"},
    };
    struct task *f = *state;
    struct hth_data_opts o = image_opts();
    struct hth_data *data;
    uint8_t bytes[1024], packed[2048];
    static struct said said; /* the log goes there until the node ends */

    put_files(f, false);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        size_t n = make_images(bytes) + (size_t)cases[i].longer;
        said.text[0] = '\0';
        task_be32(bytes + cases[i].at, cases[i].value);
        if (cases[i].compressed)
            n = gzip(bytes, n, packed, sizeof(packed)) - (size_t)cases[i].cut;
        hth_node_disk_put(f->node, "images", cases[i].compressed ? packed : bytes, n);
        hth_world_run_for(f->world, 10 * HTH_US_PER_S); /* a log counts repeats without them */
        f->env->log.sink = on_log;
        f->env->log.sink_arg = &said;
        enum hth_err err = hth_data_open(f->env, &o, &data);
        if (err != cases[i].want || strstr(said.text, cases[i].says) == NULL ||
            (cases[i].says[0] != '\0' && strstr(said.text, "put a good copy there") == NULL))
            fail_msg("case %zu: %s, '%s'", i, hth_err_name(err), said.text);
    }
    o.images = "absent";
    assert_err(HTH_E_NO_FILE, hth_data_open(f->env, &o, &data));
    /* Two gzip members are one file, though neither has its length. */
    o = image_opts();
    size_t n = make_images(bytes), m = gzip(bytes, 100, packed, sizeof(packed));
    m += gzip(bytes + 100, n - 100, packed + m, sizeof(packed) - m);
    hth_node_disk_put(f->node, "images", packed, m);
    assert_ok(hth_data_open(f->env, &o, &data));
    hth_data_free(data);
}

/* A file that is another one since it was opened. */
static struct hth_data *open_and_change(struct task *f, const struct hth_data_opts *o,
                                        const char *name, const uint8_t *bytes, size_t len)
{
    struct hth_data *data;

    assert_ok(hth_data_open(f->env, o, &data));
    hth_node_disk_put(f->node, name, bytes, len);
    return data;
}

TASK_TEST(bad_content_is_refused_and_named)
{
    struct task *f = *state;
    struct hth_data_opts o = image_opts();
    struct hth_data *data;
    uint8_t bytes[1024], packed[2048];
    float x[ITEMS * SIDE * SIDE];
    int32_t y[ITEMS];
    size_t n, m;

    o.shuffle_rows = 0;
    put_files(f, false);
    n = make_images(bytes);
    for (int longer = 0; longer < 2; longer++) {
        hth_node_disk_put(f->node, "images", bytes, n);
        data = open_and_change(f, &o, "images", bytes, longer ? n + 1 : n - 1);
        assert_err(longer ? HTH_E_CORRUPT : HTH_E_TRUNCATED,
                   hth_data_read(data, 0, ITEMS, x, NULL, y));
        assert_string_equal(hth_data_why(data), longer
                                                    ? "images: it has bytes after its last item"
                                                    : "images: item 52: the data ends too early");
        hth_data_free(data);
    }
    hth_node_disk_put(f->node, "images", bytes, n);
    m = make_labels(bytes);
    bytes[8 + 5] = 10;
    hth_node_disk_put(f->node, "labels", bytes, m);
    assert_ok(hth_data_open(f->env, &o, &data));
    assert_ok(hth_data_read(data, 0, 4, x, NULL, y));
    assert_string_equal(hth_data_why(data), "");
    assert_err(HTH_E_CORRUPT, hth_data_read(data, 4, 4, x, NULL, y));
    assert_string_equal(hth_data_why(data),
                        "labels: item 5 has class 10, but there are 10 classes");
    hth_data_free(data);

    put_files(f, true); /* gzip: a wrong checksum */
    n = make_images(bytes);
    m = gzip(bytes, n, packed, sizeof(packed));
    packed[m - 6] ^= 1;
    hth_node_disk_put(f->node, "images", packed, m);
    assert_ok(hth_data_open(f->env, &o, &data));
    assert_err(HTH_E_CORRUPT, hth_data_read(data, 0, ITEMS, x, NULL, y));
    hth_data_free(data);
}

/* ---- reads that fail ------------------------------------------------------------------------- */

#define LARGE_ITEMS 40
#define LARGE_SIDE  64
#define LARGE_BYTES (LARGE_ITEMS * LARGE_SIDE * LARGE_SIDE)
#define LARGE_BATCH 3

/* The environment's table with a file_pread that fails at the n-th call. */
static struct {
    struct hth_env_ops ops;
    const struct hth_env_ops *real;
    uint32_t calls, fail_at; /* counted from 1; 0: none */
} flaky;

static enum hth_err flaky_pread(struct hth_env *env, const char *path, uint64_t offset, void *buf,
                                size_t len, size_t *got)
{
    *got = 0;
    if (++flaky.calls == flaky.fail_at)
        return HTH_E_IO;
    return flaky.real->file_pread(env, path, offset, buf, len, got);
}

/* Noise, so that a compressed file needs several fetches. */
static struct hth_data_opts put_large(struct task *f, enum hth_data_kind kind, bool compressed)
{
    struct hth_data_opts o = image_opts();
    size_t head = kind == HTH_DATA_IMAGES ? 16 : 0;
    uint8_t *bytes = hth_calloc(1, head + LARGE_BYTES);
    uint8_t labels[8 + LARGE_ITEMS] = {0};
    struct hth_rng rng;

    hth_rng_init(&rng, 5);
    for (size_t i = 0; i < LARGE_BYTES; i++)
        bytes[head + i] = (uint8_t)hth_rng_u64(&rng);
    task_heads(head > 0 ? bytes : NULL, labels, LARGE_ITEMS, LARGE_SIDE, LARGE_SIDE);
    hth_node_disk_put(f->node, "labels", labels, sizeof(labels));
    put_file(f, "images", bytes, head + LARGE_BYTES, compressed);
    hth_free(bytes);
    o.kind = kind;
    o.text = "images";
    o.seq_len = LARGE_SIDE * LARGE_SIDE;
    return o;
}

/* Hashes the batches of two epochs and repeats each read that fails; returns the number of failures
 * in the middle of an epoch. */
static uint32_t read_epochs(struct task *f, const struct hth_data_opts *o, uint32_t fail_at,
                            uint64_t *hash)
{
    enum { NUMBERS = LARGE_BATCH * LARGE_SIDE * LARGE_SIDE };
    static float x[NUMBERS];
    static int32_t tokens[NUMBERS], y[NUMBERS];
    struct hth_data_info info;
    struct hth_data *data;
    uint32_t failed = 0;

    assert_ok(hth_data_open(f->env, o, &data));
    hth_data_info(data, &info);
    flaky.calls = 0;
    flaky.fail_at = fail_at;
    for (uint64_t at = 0; at < 2 * info.samples; at += LARGE_BATCH) {
        enum hth_err err = hth_data_read(data, at, LARGE_BATCH, x, tokens, y);
        if (err != HTH_OK) {
            assert_int_equal(err, HTH_E_IO);
            failed += at % info.samples != 0;
            assert_ok(hth_data_read(data, at, LARGE_BATCH, x, tokens, y));
        }
        bool images = o->kind == HTH_DATA_IMAGES;
        *hash++ =
            images ? hth_hash64(x, sizeof(x), y[0]) : hth_hash64(tokens, sizeof(tokens), y[0]);
    }
    hth_data_free(data);
    return failed;
}

/* A disk that fails once changes no sample, whichever of its reads fails. */
TASK_TEST(repeated_read_gives_the_undisturbed_samples)
{
    struct task *f = *state;

    flaky.real = f->env->ops;
    flaky.ops = *f->env->ops;
    flaky.ops.file_pread = flaky_pread;
    f->env->ops = &flaky.ops;
    for (int i = 0; i < 4; i++) {
        struct hth_data_opts o = put_large(f, i / 2 ? HTH_DATA_TEXT : HTH_DATA_IMAGES, i % 2);
        uint64_t undisturbed[2 * LARGE_ITEMS], hash[2 * LARGE_ITEMS];
        uint32_t failed = 0;

        memset(undisturbed, 0, sizeof(undisturbed));
        memset(hash, 0, sizeof(hash));
        assert_int_equal(read_epochs(f, &o, 0, undisturbed), 0);
        uint32_t reads = flaky.calls;
        for (uint32_t n = 1; n <= reads; n++) {
            failed += read_epochs(f, &o, n, hash);
            if (memcmp(hash, undisturbed, sizeof(hash)) != 0)
                fail_msg("case %d: other samples after read %u of %u failed", i, n, reads);
        }
        assert_true(failed > 0);
    }
    f->env->ops = flaky.real;
}

TASK_TEST(bad_options_are_refused)
{
    struct task *f = *state;
    struct hth_data_opts o[8];
    struct hth_data *data;
    uint8_t big[16], labels[8 + 4096] = {0};

    put_files(f, false);
    for (int i = 0; i < 8; i++) {
        o[i] = image_opts();
        if (i < 3 || i == 7)
            continue;
        o[i] = (struct hth_data_opts)HTH_DATA_OPTS_INIT;
        o[i].kind = HTH_DATA_TEXT;
        o[i].text = "images";
        o[i].seq_len = 8;
    }
    o[0].labels = NULL;
    o[1].std = 0;
    o[2].shift = HTH_DATA_SHIFT_MAX + 1;
    o[3].seq_len = HTH_SEQ_LEN_MAX + 1;
    o[4].shift = 1;
    o[5].begin = o[5].end = 0.5;
    o[6].seq_len = 1000; /* longer than the text */
    for (int i = 0; i < 7; i++)
        assert_err(i == 6 ? HTH_E_BAD_SHAPE : HTH_E_CONFIG, hth_data_open(f->env, &o[i], &data));

    /* 4096 items of a million pixels, by the header: a shuffle buffer beyond its limit. */
    task_heads(big, labels, 4096, 1024, 1024);
    put_file(f, "images", big, sizeof(big), true);
    put_file(f, "labels", labels, sizeof(labels), false);
    o[7].shuffle_rows = 4096;
    assert_err(HTH_E_TOO_LARGE, hth_data_open(f->env, &o[7], &data));
}
