/* SPDX-License-Identifier: Apache-2.0 */
/* The map and the heap compared with brute force over random histories. */
#include "core/heap.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/rng.h"
#include "support/suite.h"

#include <stdlib.h>

#define KEYS 500

/* A key of 8..64 bytes made of its number, so that short and long keys mix. */
static size_t make_key(uint64_t n, uint8_t key[64])
{
    size_t len = 8 + n % 57;
    memset(key, (int)(n % 251), 64);
    memcpy(key, &n, sizeof(n));
    return len;
}

TEST(test_map_agrees_with_array)
{
    (void)state;
    struct hth_rng rng;
    struct hth_map *map = hth_map_new();
    static int values[KEYS];
    bool present[KEYS] = {false};
    size_t count = 0;
    hth_rng_init(&rng, 7);
    for (int step = 0; step < 20000; step++) {
        uint8_t key[64];
        size_t n = hth_rng_below(&rng, KEYS);
        size_t len = make_key(n, key);
        if (hth_rng_chance(&rng, 0.5)) {
            void *old = hth_map_put(map, key, len, &values[n]);
            assert_ptr_equal(old, present[n] ? &values[n] : NULL);
            count += !present[n];
            present[n] = true;
        } else {
            void *old = hth_map_del(map, key, len);
            assert_ptr_equal(old, present[n] ? &values[n] : NULL);
            count -= present[n];
            present[n] = false;
        }
        assert_int_equal(hth_map_count(map), count);
        size_t probe = hth_rng_below(&rng, KEYS);
        len = make_key(probe, key);
        assert_ptr_equal(hth_map_get(map, key, len), present[probe] ? &values[probe] : NULL);
    }
    size_t seen = 0;
    const void *key;
    size_t key_len;
    int *value;
    for (size_t it = 0; (value = hth_map_next(map, &it, &key, &key_len)) != NULL; seen++) {
        uint8_t want[64];
        assert_int_equal(key_len, make_key((uint64_t)(value - values), want));
        assert_memory_equal(key, want, key_len);
    }
    assert_int_equal(seen, count);
    hth_map_free(map);
}

TEST(test_map_iterates_in_insertion_order)
{
    (void)state;
    struct hth_map *map = hth_map_new();
    static int values[100];
    for (uint64_t i = 0; i < 100; i++)
        hth_map_put_u64(map, i * 7919 % 101, &values[i]);
    for (uint64_t i = 0; i < 100; i += 3)
        assert_ptr_equal(hth_map_del_u64(map, i * 7919 % 101), &values[i]);
    int *last = NULL, *value;
    for (size_t it = 0; (value = hth_map_next(map, &it, NULL, NULL)) != NULL; last = value)
        assert_true(last == NULL || value > last);
    hth_map_free(map);
}

struct holder {
    uint32_t before;
    uint8_t key[41];
    uint64_t put_at; /* 0: not in the map */
};

static void holder_set(struct holder *h, uint64_t n)
{
    memset(h->key, 7, sizeof(h->key));
    memcpy(h->key + 20, &n, sizeof(n));
}

TEST(test_map_guess_finds_present_keys)
{
    (void)state;
    struct hth_map *map = hth_map_new();
    static int values[100];
    uint64_t key = 1;
    assert_null(hth_map_guess(map, &key, sizeof(key)));
    hth_map_fetch(map, &key, sizeof(key));
    for (key = 0; key < 100; key++)
        hth_map_put_u64(map, key, &values[key]);
    for (key = 0; key < 100; key += 2)
        hth_map_del_u64(map, key);
    for (key = 0; key < 200; key++) {
        hth_map_fetch(map, &key, sizeof(key));
        assert_ptr_equal(hth_map_guess(map, &key, sizeof(key)), hth_map_get_u64(map, key));
    }
    assert_int_equal(hth_map_count(map), 50);
    hth_map_free(map);
}

/* Checks that holders are iterated in the order of insertion, with their own keys. */
static void check_holders(const struct hth_map *map, size_t count)
{
    const void *key;
    size_t seen = 0, key_len;
    uint64_t last = 0;
    const struct holder *h;
    for (size_t it = 0; (h = hth_map_next(map, &it, &key, &key_len)) != NULL; seen++) {
        assert_ptr_equal(key, h->key);
        assert_int_equal(key_len, sizeof(h->key));
        assert_true(h->put_at > last);
        last = h->put_at;
    }
    assert_int_equal(seen, count);
    assert_int_equal(hth_map_count(map), count);
}

/* Two values share each key, and at most one of them is in the map. The map never reads a removed
 * value: its key is overwritten. */
TEST(test_map_of_holders_agrees_with_array)
{
    (void)state;
    struct hth_rng rng;
    static struct holder of[KEYS][2];
    struct holder *present[KEYS] = {NULL};
    struct hth_map *map = hth_map_new_held(offsetof(struct holder, key), sizeof(present[0]->key));
    size_t count = 0;
    hth_rng_init(&rng, 17);
    for (uint64_t step = 1; step <= 20000; step++) {
        size_t n = hth_rng_below(&rng, KEYS), i = hth_rng_below(&rng, 2);
        struct holder *old = present[n], wanted = {.put_at = 0};
        holder_set(&wanted, n);
        assert_ptr_equal(hth_map_get(map, wanted.key, sizeof(wanted.key)), old);
        if (hth_rng_chance(&rng, 0.6)) {
            /* a replaced value keeps its place */
            uint64_t put_at = old != NULL ? old->put_at : step;
            holder_set(&of[n][i], n);
            assert_ptr_equal(hth_map_put(map, wanted.key, sizeof(wanted.key), &of[n][i]), old);
            present[n] = &of[n][i];
            present[n]->put_at = put_at;
            count += old == NULL;
        } else {
            assert_ptr_equal(hth_map_del(map, wanted.key, sizeof(wanted.key)), old);
            present[n] = NULL;
            count -= old != NULL;
        }
        if (old != NULL && old != present[n])
            holder_set(old, hth_rng_below(&rng, KEYS));
        if (step % 500 == 0)
            check_holders(map, count);
    }
    hth_map_free(map);
}

/* Values are removed by their own keys in the middle of an iteration and freed at once. The map
 * does not read them when it grows again. */
TEST(test_map_never_reads_freed_holders)
{
    (void)state;
    enum { PASSES = 6 };
    const void *key;
    size_t key_len, held = 0;
    struct holder *h;
    struct hth_map *map = hth_map_new_held(offsetof(struct holder, key), sizeof(h->key));
    for (uint64_t pass = 0; pass < PASSES; pass++) {
        for (uint64_t n = pass * KEYS; n < (pass + 1) * KEYS; n++) {
            h = hth_new(struct holder);
            holder_set(h, n);
            h->put_at = n + 1;
            assert_null(hth_map_put(map, h->key, sizeof(h->key), h));
        }
        check_holders(map, held += KEYS);
        for (size_t it = 0; (h = hth_map_next(map, &it, &key, &key_len)) != NULL;) {
            if (h->put_at % PASSES == pass)
                continue;
            assert_ptr_equal(hth_map_del(map, key, key_len), h);
            hth_free(h);
            held--;
        }
        check_holders(map, held);
    }
    for (size_t it = 0; (h = hth_map_next(map, &it, NULL, NULL)) != NULL; held--)
        hth_free(h);
    assert_int_equal(held, 0);
    hth_map_free(map);
}

/* The map behaves alike with any secret: a process's, and the worst one (zeros). */
TEST(test_map_behaves_alike_with_any_secret)
{
    static const uint64_t secrets[][2] = {{UINT64_C(0x0123456789abcdef), 42}, {0, 0}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(secrets); i++) {
        hth_map_secret(secrets[i]);
        test_map_agrees_with_array(state);
        test_map_iterates_in_insertion_order(state);
        test_map_of_holders_agrees_with_array(state);
        test_map_never_reads_freed_holders(state);
    }
}

struct item {
    struct hth_heap_node node;
    uint64_t key;
    uint64_t id;
};

static bool item_less(const struct hth_heap_node *a, const struct hth_heap_node *b)
{
    const struct item *x = HTH_CONTAINER(a, const struct item, node);
    const struct item *y = HTH_CONTAINER(b, const struct item, node);
    return x->key != y->key ? x->key < y->key : x->id < y->id;
}

static void check_heap_against_scan(bool keys)
{
    struct hth_rng rng;
    struct hth_heap heap;
    static struct item items[200];
    hth_rng_init(&rng, 11);
    hth_heap_init(&heap, item_less);
    for (size_t i = 0; i < HTH_ARRAY_LEN(items); i++)
        items[i].id = i;
    for (int step = 0; step < 20000; step++) {
        struct item *it = &items[hth_rng_below(&rng, HTH_ARRAY_LEN(items))];
        if (hth_heap_contains(&it->node)) {
            hth_heap_remove(&heap, &it->node);
        } else {
            it->key = hth_rng_below(&rng, 50);
            it->node.key = keys ? (int64_t)it->key : 0;
            hth_heap_push(&heap, &it->node);
        }
        const struct item *best = NULL;
        for (size_t i = 0; i < HTH_ARRAY_LEN(items); i++) {
            if (hth_heap_contains(&items[i].node) &&
                (best == NULL || item_less(&items[i].node, &best->node)))
                best = &items[i];
        }
        assert_ptr_equal(hth_heap_top(&heap), best != NULL ? &best->node : NULL);
    }
    uint64_t last = 0;
    while (hth_heap_top(&heap) != NULL) {
        struct item *it = HTH_CONTAINER(hth_heap_pop(&heap), struct item, node);
        assert_true(it->key >= last);
        last = it->key;
    }
    hth_heap_clear(&heap);
}

/* The order is the same whether it comes from the keys or from `less` alone. */
TEST(test_heap_agrees_with_linear_scan)
{
    (void)state;
    check_heap_against_scan(false);
    check_heap_against_scan(true);
}
