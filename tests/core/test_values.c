/* SPDX-License-Identifier: Apache-2.0 */
/* Values: errors, bytes, addresses, tensors, budgets, blobs, memory. */
#include "core/blob.h"
#include "core/budget.h"
#include "core/bytes.h"
#include "core/counter.h"
#include "core/env.h"
#include "core/ident.h"
#include "core/limits.h"
#include "core/mem.h"
#include "core/name.h"
#include "core/order.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "support/suite.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

TEST(test_errors_have_unique_names_and_classes)
{
    (void)state;
    for (uint32_t i = 0; i < HTH_ERR_COUNT; i++) {
        enum hth_err err = hth_err_from_wire(i);
        assert_int_equal(err, i);
        assert_non_null(hth_err_name(err));
        assert_true(strlen(hth_err_text(err)) > 3);
        assert_true((hth_err_class(err) == HTH_CLASS_OK) == (i == 0));
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(hth_err_name((enum hth_err)j), hth_err_name(err));
    }
    assert_int_equal(hth_err_from_wire(HTH_ERR_COUNT), HTH_E_PROTOCOL);
    assert_int_equal(hth_err_from_wire(UINT32_MAX), HTH_E_PROTOCOL);
    assert_int_equal(hth_err_class((enum hth_err)9999), HTH_CLASS_PEER);
    assert_string_equal(hth_err_name((enum hth_err)9999), "E_UNKNOWN");
}

TEST(test_bytes_round_trip)
{
    (void)state;
    static const uint8_t golden[] = {0x01, 0x03, 0x02, 0x07, 0x06, 0x05, 0x04, 0x0f,
                                     0x0e, 0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08, 'h'};
    uint8_t data[sizeof(golden)];
    struct hth_writer w;
    hth_writer_init(&w, data, sizeof(data));
    hth_write_u8(&w, 1);
    hth_write_u16(&w, 0x0203);
    hth_write_u32(&w, 0x04050607);
    hth_write_u64(&w, UINT64_C(0x08090a0b0c0d0e0f));
    hth_write_bytes(&w, "h", 1);
    assert_int_equal(w.err, HTH_OK);
    assert_memory_equal(data, golden, sizeof(golden));
    hth_write_u8(&w, 0);
    assert_int_equal(w.err, HTH_E_TOO_LARGE);

    struct hth_reader r;
    hth_reader_init(&r, data, sizeof(data));
    assert_int_equal(hth_read_u8(&r), 1);
    assert_int_equal(hth_read_u16(&r), 0x0203);
    assert_int_equal(hth_read_u32(&r), 0x04050607);
    assert_true(hth_read_u64(&r) == UINT64_C(0x08090a0b0c0d0e0f));
    assert_int_equal(hth_reader_left(&r), 1);
    assert_null(hth_read_view(&r, 2));
    assert_int_equal(r.err, HTH_E_TRUNCATED);
    assert_int_equal(hth_read_u8(&r), 0); /* the first error stays */
}

TEST(test_hex_round_trip_and_refusals)
{
    (void)state;
    char text[9];
    uint8_t back[4];
    const uint8_t data[4] = {0xde, 0xad, 0x00, 0x1f};
    hth_hex(data, 4, text);
    assert_string_equal(text, "dead001f");
    assert_ok(hth_unhex("DEad001F", back, 4));
    assert_memory_equal(back, data, 4);
    assert_err(HTH_E_MALFORMED, hth_unhex("dead001", back, 4));
    assert_err(HTH_E_MALFORMED, hth_unhex("dead00zz", back, 4));
}

TEST(test_addresses_parse_and_print)
{
    (void)state;
    static const char *const good[] = {"1.2.3.4:5", "127.0.0.1:65535", "[::1]:80",
                                       "[2001:db8::1]:0"};
    static const char *const bad[] = {
        "",           "1.2.3.4",        "1.2.3.4:",    "1.2.3.4:65536",
        "1.2.3:4",    "::1:80",         "[::1]",       "[::1]80",
        "[::1:80",    "host:80",        "1.2.3.4:-1",  "1.2.3.4: 1",
        "[1.2.3.4]:", "1.2.3.4:123456", "[::1]:99999", ":1"};
    char text[HTH_ADDR_TEXT_MAX];
    for (size_t i = 0; i < HTH_ARRAY_LEN(good); i++) {
        struct hth_addr addr, again;
        assert_ok(hth_addr_parse(good[i], &addr));
        assert_string_equal(hth_addr_text(&addr, text), good[i]);
        assert_ok(hth_addr_parse(text, &again));
        assert_true(hth_addr_eq(&addr, &again));
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        struct hth_addr addr;
        assert_err(HTH_E_MALFORMED, hth_addr_parse(bad[i], &addr));
    }
}

TEST(test_scopes_of_addresses)
{
    (void)state;
    static const struct {
        const char *text;
        enum hth_scope scope;
    } cases[] = {
        {"0.0.0.0:1", HTH_SCOPE_NONE},         {"[::]:1", HTH_SCOPE_NONE},
        {"127.0.0.1:1", HTH_SCOPE_MACHINE},    {"127.9.8.7:1", HTH_SCOPE_MACHINE},
        {"[::1]:1", HTH_SCOPE_MACHINE},        {"169.254.3.4:1", HTH_SCOPE_LINK},
        {"[fe80::1]:1", HTH_SCOPE_LINK},       {"[febf::1]:1", HTH_SCOPE_LINK},
        {"10.1.2.3:1", HTH_SCOPE_PRIVATE},     {"172.16.0.1:1", HTH_SCOPE_PRIVATE},
        {"172.31.255.1:1", HTH_SCOPE_PRIVATE}, {"192.168.1.5:1", HTH_SCOPE_PRIVATE},
        {"100.127.0.1:1", HTH_SCOPE_PRIVATE},  {"[fd00::2]:1", HTH_SCOPE_PRIVATE},
        {"172.32.0.1:1", HTH_SCOPE_PUBLIC},    {"100.128.0.1:1", HTH_SCOPE_PUBLIC},
        {"11.0.0.1:1", HTH_SCOPE_PUBLIC},      {"203.0.113.9:1", HTH_SCOPE_PUBLIC},
        {"[2001:db8::1]:1", HTH_SCOPE_PUBLIC}, {"[::2]:1", HTH_SCOPE_PUBLIC},
        {"[fec0::1]:1", HTH_SCOPE_PUBLIC},
    };
    struct hth_addr addr, none = {0};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        assert_ok(hth_addr_parse(cases[i].text, &addr));
        if (hth_addr_scope(&addr) != cases[i].scope)
            fail_msg("%s: scope %d", cases[i].text, hth_addr_scope(&addr));
    }
    assert_int_equal(hth_addr_scope(&none), HTH_SCOPE_NONE);
}

TEST(test_tensor_bytes_refuses_bad_shapes)
{
    (void)state;
    uint64_t bytes = 0;
    struct hth_tensor t = {.dtype = HTH_F32, .ndim = 2, .dim = {3, 5}};
    assert_ok(hth_tensor_bytes(&t, &bytes));
    assert_int_equal(bytes, 60);
    t.dim[0] = UINT64_C(1) << 62;
    assert_err(HTH_E_TOO_LARGE, hth_tensor_bytes(&t, &bytes));
    t = (struct hth_tensor){.dtype = (enum hth_dtype)77, .ndim = 1, .dim = {1}};
    assert_err(HTH_E_BAD_SHAPE, hth_tensor_bytes(&t, &bytes));
    t = (struct hth_tensor){.dtype = HTH_U8, .ndim = HTH_TENSOR_DIMS_MAX + 1};
    assert_err(HTH_E_BAD_SHAPE, hth_tensor_bytes(&t, &bytes));
}

TEST(test_budgets_nest)
{
    (void)state;
    struct hth_budget process, peer;
    hth_budget_init(&process, 100, NULL);
    hth_budget_init(&peer, 80, &process);
    assert_ok(hth_budget_take(&peer, 80));
    assert_err(HTH_E_BUDGET, hth_budget_take(&peer, 1));
    assert_int_equal(hth_budget_used(&process), 80);
    assert_ok(hth_budget_take(&process, 20));
    hth_budget_give(&peer, 40);
    assert_ok(hth_budget_take(&process, 40));
    assert_err(HTH_E_BUDGET, hth_budget_take(&peer, 1)); /* the outer level is full */
    assert_int_equal(hth_budget_used(&peer), 40);
    assert_err(HTH_E_BUDGET, hth_budget_take(&peer, SIZE_MAX));
    assert_int_equal(hth_budget_used(&peer), 40);
}

static void count_release(void *arg, void *data)
{
    (void)data;
    (*(int *)arg)++;
}

TEST(test_blobs_return_bytes_with_last_reference)
{
    (void)state;
    struct hth_budget budget;
    struct hth_blob *blob = NULL;
    int released = 0;
    hth_budget_init(&budget, 1000, NULL);
    assert_ok(hth_blob_new_budget(1000, &budget, &blob));
    assert_int_equal((uintptr_t)blob->data % 64, 0);
    struct hth_blob *none = NULL;
    assert_err(HTH_E_BUDGET, hth_blob_new_budget(1, &budget, &none));
    assert_null(none);
    hth_blob_unref(hth_blob_ref(blob));
    assert_int_equal(hth_budget_used(&budget), 1000);
    hth_blob_unref(blob);
    assert_int_equal(hth_budget_used(&budget), 0);

    char foreign[4] = "abc";
    blob = hth_blob_wrap(foreign, 4, count_release, &released);
    hth_blob_ref(blob);
    hth_blob_unref(blob);
    assert_int_equal(released, 0);
    hth_blob_unref(blob);
    assert_int_equal(released, 1);

    blob = hth_blob_ghost(UINT64_C(1) << 40, 7);
    assert_null(blob->data);
    assert_int_equal(blob->digest, 7);
    hth_blob_unref(blob);
    hth_blob_unref(NULL);
}

#define ADDERS    4
#define ADDITIONS 100000

static void *add_all(void *arg)
{
    for (int i = 0; i < ADDITIONS; i++)
        hth_counter_add(arg, i % 2 == 0 ? 3 : -1);
    return NULL;
}

/* One thread adds, then several, then one again: no addition is lost. */
TEST(test_counters_add_up)
{
    (void)state;
    pthread_t thread[ADDERS];
    int64_t sum = 0;
    add_all(&sum);
    assert_int_equal(sum, ADDITIONS);
    for (int i = 0; i < ADDERS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, add_all, &sum), 0);
    add_all(&sum);
    for (int i = 0; i < ADDERS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(hth_counter_add(&sum, 1), (ADDERS + 2) * ADDITIONS + 1);
}

TEST(test_try_allocations_fail_on_request)
{
    (void)state;
    hth_mem_fail_at(2);
    void *first = hth_try_calloc(1, 8);
    assert_non_null(first);
    struct hth_budget budget;
    struct hth_blob *blob;
    hth_budget_init(&budget, 100, NULL);
    assert_err(HTH_E_NO_MEMORY, hth_blob_new_budget(50, &budget, &blob));
    assert_int_equal(hth_budget_used(&budget), 0); /* a failure gives its bytes back */
    hth_mem_fail_at(0);
    hth_free(first);
    assert_null(hth_try_realloc(NULL, SIZE_MAX, 2));
    assert_null(hth_try_aligned(SIZE_MAX));
}

/* A freed block is kept for its next use, however many came and went: fresh pages of this size are
 * zeros from the kernel. Not where sanitizers look for uses after a free. */
TEST(test_a_block_is_kept_each_time)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    const size_t bytes = 48u << 20;
    for (uint8_t round = 0; round < 3 * (HTH_BLOCKS_BYTES_MAX / bytes); round++) {
        uint8_t *p = hth_try_block(bytes);
        assert_non_null(p);
        if (round > 0)
            assert_int_equal(p[bytes / 2], round);
        p[bytes / 2] = round + 1;
        hth_block_free(p, bytes);
    }
}

/* A file as an environment shows it: so long, and what a read gives of it. */
static struct {
    uint64_t size;
    size_t readable;
    enum hth_err err;
} file;

static enum hth_err file_size(struct hth_env *env, const char *path, uint64_t *size)
{
    (void)env;
    (void)path;
    *size = file.size;
    return HTH_OK;
}

static enum hth_err file_pread(struct hth_env *env, const char *path, uint64_t offset, void *buf,
                               size_t len, size_t *got)
{
    (void)env;
    (void)path;
    assert_int_equal(offset, 0);
    *got = HTH_MIN(len, file.readable);
    memset(buf, 'x', *got);
    return file.err;
}

TEST(test_a_file_is_read_whole_or_not)
{
    static const struct {
        uint64_t size;
        size_t readable;
        enum hth_err err, want;
    } cases[] = {
        {10, 10, HTH_OK, HTH_OK},          {0, 0, HTH_OK, HTH_OK},
        {11, 11, HTH_OK, HTH_E_TOO_LARGE}, {10, 9, HTH_OK, HTH_E_IO}, /* it shrank meanwhile */
        {10, 0, HTH_OK, HTH_E_IO},         {10, 10, HTH_E_PERMISSION, HTH_E_PERMISSION},
    };
    static const struct hth_env_ops ops = {.file_size = file_size, .file_pread = file_pread};
    struct hth_env env = {.ops = &ops};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_blob *blob;
        file.size = cases[i].size;
        file.readable = cases[i].readable;
        file.err = cases[i].err;
        assert_err(cases[i].want, hth_file_read(&env, "file", 10, &blob));
        assert_true((blob != NULL) == (cases[i].want == HTH_OK));
        if (blob != NULL)
            assert_int_equal(blob->size, cases[i].size);
        hth_blob_unref(blob);
    }
}

/* Blocks of every class, reused and fresh ones, are aligned, writable to their end and never handed
 * out twice. Bytes beyond the limit are freed and not kept. */
TEST(test_blocks_are_reused_up_to_limit)
{
    (void)state;
    enum { HELD = 80 };
    static const size_t sizes[] = {1,       (256u << 10) - 1, 256u << 10, (256u << 10) + 1,
                                   3000000, 8u << 20,         48u << 20,  (128u << 20) + 1};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < HTH_ARRAY_LEN(sizes); i++) {
            size_t held = HTH_MIN((size_t)HELD, 1 + 2 * (size_t)HTH_BLOCKS_BYTES_MAX / sizes[i]);
            uint8_t *p[HELD];
            for (size_t j = 0; j < held; j++) {
                p[j] = hth_try_block(sizes[i]);
                assert_non_null(p[j]);
                assert_int_equal((uintptr_t)p[j] % 64, 0);
                p[j][0] = (uint8_t)j;
                p[j][sizes[i] - 1] = (uint8_t)j;
            }
            for (size_t j = 0; j < held; j++) {
                assert_int_equal(p[j][0], j);
                assert_int_equal(p[j][sizes[i] - 1], j);
                hth_block_free(p[j], sizes[i]);
            }
        }
    }
    hth_block_free(NULL, 8u << 20);
    hth_mem_fail_at(1);
    assert_null(hth_try_block(8u << 20));
    hth_mem_fail_at(0);
}

/* The bytes of a blob of any size are aligned, its own, and writable to the end. */
TEST(test_blobs_of_all_sizes_are_aligned)
{
    (void)state;
    enum { HELD = 8 };
    for (size_t size = 1; size < 600000; size = size * 3 / 2 + 1) {
        struct hth_blob *held[HELD];
        for (int i = 0; i < HELD; i++) {
            held[i] = hth_blob_try_new(size);
            assert_non_null(held[i]);
            assert_int_equal((uintptr_t)held[i]->data % 64, 0);
            memset(held[i]->data, i, size);
        }
        for (int i = 0; i < HELD; i++) {
            assert_int_equal(held[i]->data[0], i);
            assert_int_equal(held[i]->data[size - 1], i);
            hth_blob_unref(held[i]);
        }
    }
    struct hth_blob *empty = hth_blob_try_new(0), *ghost = hth_blob_ghost(1u << 30, 7);
    assert_true(empty->data == NULL && ghost->data == NULL && ghost->size == 1u << 30);
    hth_blob_unref(empty);
    hth_blob_unref(ghost);
}

/* A hoard hands out freed blocks zeroed, large enough, and none twice. */
TEST(test_hoard_hands_out_zeroed_distinct_blocks)
{
    (void)state;
    enum { HELD = 300 };
    static uint8_t *held[HELD];
    static size_t size[HELD];
    struct hth_rng rng;
    hth_rng_init(&rng, 4);
    hth_mem_hoard(true);
    for (int step = 0; step < 200000; step++) {
        size_t i = (size_t)hth_rng_below(&rng, HELD);
        if (held[i] != NULL) {
            for (size_t b = 0; b < size[i]; b++)
                assert_int_equal(held[i][b], (uint8_t)i);
            hth_free(held[i]);
            held[i] = NULL;
            continue;
        }
        size[i] = 1 + (size_t)hth_rng_below(&rng, step % 50 == 0 ? 5000 : 80);
        held[i] = hth_calloc(size[i], 1);
        for (size_t b = 0; b < size[i]; b++)
            assert_int_equal(held[i][b], 0);
        memset(held[i], (int)i, size[i]);
    }
    for (int i = 0; i < HELD; i++)
        hth_free(held[i]);
    hth_mem_hoard(false);
}

/* Allocating and freeing the same sizes does not make a hoard grow, whichever function
 * allocates. */
TEST(test_hoard_reuses_freed_blocks)
{
    enum { STEPS = 20000, SIZES = 16 };
    size_t before = 0;
    (void)state;
    hth_mem_hoard(true);
    for (int step = 0; step < STEPS; step++) {
        size_t size = 8 + (size_t)(step % SIZES) * 56;
        uint8_t *made[3] = {hth_realloc(NULL, size, 1), hth_try_calloc(size, 1), NULL};
        made[2] = hth_realloc(hth_calloc(size / 2 + 1, 1), size, 1);
        memset(made[2], step, size);
        made[2] = hth_try_realloc(made[2], size * 2, 1);
        assert_non_null(made[2]);
        assert_int_equal(made[2][size - 1], (uint8_t)step);
        made[2] = hth_realloc(made[2], size / 2, 1);
        assert_int_equal(made[2][size / 2 - 1], (uint8_t)step);
        for (int i = 0; i < 3; i++)
            hth_free(made[i]);
        if (step == 4 * SIZES)
            before = mallinfo2().uordblks + hth_mem_hoard_bytes();
    }
    hth_mem_hoard(false);
    assert_true(mallinfo2().uordblks + hth_mem_hoard_bytes() <= before + (64u << 10));
}

/* Blocks that a thread without a hoard frees return to the hoards, and such a thread can resize a
 * hoard's block. */
TEST(test_hoard_takes_back_blocks_freed_elsewhere)
{
    enum { HELD = 100 };
    uint8_t *held[HELD];
    size_t before = 0;
    (void)state;
    for (int step = 0; step < 300; step++) {
        hth_mem_hoard(true);
        for (int i = 0; i < HELD; i++)
            held[i] = hth_calloc((size_t)(i + 1) * 11, 1);
        hth_mem_hoard(false);
        for (int i = 0; i < HELD; i++) {
            held[i][0] = (uint8_t)i;
            if (i % 2 == 0)
                held[i] = hth_realloc(held[i], 5000, 1);
            assert_int_equal(held[i][0], (uint8_t)i);
        }
        for (int i = 0; i < HELD; i++)
            hth_free(held[i]);
        if (step == 0)
            before = hth_mem_hoard_bytes();
    }
    assert_int_equal(hth_mem_hoard_bytes(), before);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Compares with a sort at all ranks: random numbers, few different ones, sorted in both
 * directions. */
TEST(test_kth_agrees_with_sort)
{
    struct hth_rng rng;

    (void)state;
    hth_rng_init(&rng, 5);
    for (size_t count = 1; count <= 40; count++)
        for (size_t k = 0; k < count * 4; k++) {
            double values[40], sorted[40], kth;

            for (size_t i = 0; i < count; i++) {
                double drawn = hth_rng_unit(&rng) - 0.5;
                const double kinds[] = {drawn, drawn > 0, (double)i, -(double)i};

                values[i] = sorted[i] = kinds[k % 4];
            }
            qsort(sorted, count, sizeof(double), by_size);
            kth = hth_kth(values, count, k / 4);
            assert_true(kth == sorted[k / 4]);
            for (size_t i = 0; i < count; i++)
                assert_true(i < k / 4 ? values[i] <= kth : values[i] >= kth);
            qsort(values, count, sizeof(double), by_size);
            assert_memory_equal(values, sorted, count * sizeof(double));
        }
}

/* Networks are names, differ with the id, and give the run's name back, cut between characters. */
TEST(test_networks_name_their_run)
{
    struct hth_hash id = {{0x5d, 0x0e, 0x27, 0xab, 0x94, 0xc3, 0x1f, 0x60, 0x82, 0xe7, 0xff}};
    char network[HTH_NAME_LEN_MAX + 1], name[HTH_NAME_LEN_MAX + 1];
    char wide[HTH_NAME_LEN_MAX + 1] = "x";

    (void)state;
    assert_string_equal(hth_network_of("fashion", &id, network), "fashion~5d0e27ab94c31f6082e7");
    assert_string_equal(hth_network_name(network, name), "fashion");
    assert_false(hth_network_is_private(network));
    assert_true(hth_network_is_private(hth_network_of("", &id, network)));
    assert_string_equal(hth_network_name(network, name), "private");
    assert_false(hth_network_is_private("~5d0e27ab94c31f6082e"));
    assert_string_equal(hth_network_name("a~b", name), "a~b");
    assert_string_equal(hth_network_name("plain", name), "plain");
    for (size_t i = 0; i < 31; i++)
        memcpy(wide + 1 + 2 * i, "\u00fc", 3);
    assert_int_equal(strlen(wide), HTH_NAME_LEN_MAX);
    hth_network_of(wide, &id, network);
    assert_int_equal(hth_name_check(network, strlen(network)), HTH_OK);
    hth_network_name(network, name);
    assert_int_equal(strlen(name), 41);
    assert_memory_equal(name, wide, 41);
}
