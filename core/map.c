/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.c: a dense array of entries in insertion order, and an open-addressing table of values with
 * their places in it. Removed entries stay as holes until the next rebuild.
 *
 *   slots:   [ . v2 . v0 . . v1 . ]     entries: [ (v0,k0) (v1,k1) (v2,k2) ]
 *
 * Where values hold their keys an entry is the value alone, and only iterations read it.
 */
#include "core/map.h"

#include "core/mem.h"
#include "core/rng.h"

#include <string.h>

/* Holds peer ids and the keys of records: a key on the heap costs each lookup one more cache
 * line. */
#define KEY_INLINE 48

struct map_entry {
    void *value;   /* NULL: a hole */
    uint32_t hash; /* the low half: there are never 2^32 slots */
    uint32_t key_len;
    union {
        uint8_t bytes[KEY_INLINE];
        uint8_t *heap;
    } key;
};
_Static_assert(sizeof(struct map_entry) == 64, "an entry is a cache line");

/* The hash lies beside the value, so that a lookup reads only the right value. */
struct map_slot {
    void *value; /* NULL: empty */
    uint32_t index;
    uint32_t hash;
};

static const char deleted; /* the value of a slot whose entry was removed */

struct hth_map {
    struct map_slot *slots;
    size_t key_offset, key_len; /* of values that hold their keys; else the length is 0 */
    uint8_t *entries;           /* struct map_entry, or void * */
    size_t entries_used;        /* holes included */
    size_t entries_capacity;
    size_t slots_count; /* a power of two */
    size_t live;
};

static size_t entry_bytes(const struct hth_map *map)
{
    return map->key_len > 0 ? sizeof(void *) : sizeof(struct map_entry);
}

/* Either kind begins with its value. */
static void **value_at(const struct hth_map *map, size_t i)
{
    return (void **)(void *)(map->entries + i * entry_bytes(map));
}

static struct map_entry *entry_at(const struct hth_map *map, size_t i)
{
    return (struct map_entry *)(void *)map->entries + i;
}

static const uint8_t *copied_key(const struct map_entry *e)
{
    return e->key_len <= KEY_INLINE ? e->key.bytes : e->key.heap;
}

static const uint8_t *held_key(const struct hth_map *map, const void *value)
{
    return (const uint8_t *)value + map->key_offset;
}

struct hth_map *hth_map_new(void)
{
    return hth_new(struct hth_map);
}

struct hth_map *hth_map_new_held(size_t key_offset, size_t key_len)
{
    struct hth_map *map = hth_map_new();
    HTH_ASSERT(key_len > 0);
    map->key_offset = key_offset;
    map->key_len = key_len;
    return map;
}

void hth_map_free(struct hth_map *map)
{
    if (map == NULL)
        return;
    for (size_t i = 0; map->key_len == 0 && i < map->entries_used; i++) {
        const struct map_entry *e = entry_at(map, i);
        if (e->value != NULL && e->key_len > KEY_INLINE)
            hth_free(e->key.heap);
    }
    hth_free(map->entries);
    hth_free(map->slots);
    hth_free(map);
}

size_t hth_map_count(const struct hth_map *map)
{
    return map->live;
}

static bool has_key(const struct hth_map *map, const struct map_slot *s, const void *key,
                    size_t key_len)
{
    if (map->key_len > 0)
        return memcmp(held_key(map, s->value), key, map->key_len) == 0;
    const struct map_entry *e = entry_at(map, s->index);
    return e->key_len == key_len && memcmp(copied_key(e), key, key_len) == 0;
}

/* The slot that holds the key, or NULL. */
static struct map_slot *find_slot(const struct hth_map *map, uint32_t hash, const void *key,
                                  size_t key_len)
{
    HTH_ASSERT(map->key_len == 0 || map->key_len == key_len);
    if (map->slots_count == 0)
        return NULL;
    size_t mask = map->slots_count - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        struct map_slot *s = &map->slots[i];
        if (s->value == NULL)
            return NULL;
        if (s->hash == hash && s->value != &deleted && has_key(map, s, key, key_len))
            return s;
    }
}

static void slot_insert(struct hth_map *map, struct map_slot slot)
{
    size_t mask = map->slots_count - 1;
    size_t i = slot.hash & mask;
    while (map->slots[i].value != NULL && map->slots[i].value != &deleted)
        i = (i + 1) & mask;
    map->slots[i] = slot;
}

__extension__ typedef unsigned __int128 u128;

/* Used until the process sets its own (hth_map_secret). */
static uint64_t secrets[2] = {UINT64_C(0x9e3779b97f4a7c15), UINT64_C(0xa0761d6478bd642f)};

void hth_map_secret(const uint64_t secret[2])
{
    secrets[0] = secret[0];
    secrets[1] = secret[1];
}

/* Both halves of a product: the step of Wang Yi's wyhash. Only places in `slots` depend on it;
 * iterations follow the order of insertion. Both factors hold a secret: otherwise a key that makes
 * one factor zero would cancel the rest of itself. */
static uint64_t fold(uint64_t a, uint64_t b)
{
    u128 product = (u128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint32_t hash_of(const void *key, size_t key_len)
{
    const uint8_t *p = key;
    uint64_t h = hth_mix64(key_len ^ secrets[1]), word[2];
    for (; key_len >= 16; key_len -= 16, p += 16) {
        memcpy(word, p, 16);
        h = fold(word[0] ^ h, word[1] ^ secrets[0]);
    }
    if (key_len >= 8) {
        memcpy(word, p, 8);
        h = fold(word[0] ^ h, secrets[1]);
        key_len -= 8;
        p += 8;
    }
    uint64_t rest = 0;
    for (size_t i = 0; i < key_len; i++)
        rest = rest << 8 | p[i];
    return (uint32_t)fold(rest ^ h, UINT64_C(0xe7037ed1a0b428db));
}

/* Removes the holes and makes room for half as many entries again. The capacity jumps from 8 to 32:
 * a map with more than a few entries mostly has dozens, and blocks freed on the way would not fit
 * other maps that grow in step. */
static void rebuild(struct hth_map *map)
{
    size_t used = 0, bytes = entry_bytes(map);
    for (size_t i = 0; i < map->entries_used; i++) {
        if (*value_at(map, i) != NULL)
            memmove(map->entries + used++ * bytes, map->entries + i * bytes, bytes);
    }
    map->entries_used = used;
    size_t more = map->live < 8 ? 8 : 24;
    map->entries_capacity = map->live + HTH_MAX(more, map->live / 2);
    map->entries = hth_realloc(map->entries, map->entries_capacity, bytes);
    map->slots_count = 16;
    while (map->slots_count * 2 < map->entries_capacity * 3)
        map->slots_count *= 2;
    HTH_ASSERT(map->slots_count < UINT32_MAX);
    hth_free(map->slots);
    map->slots = hth_new_array(struct map_slot, map->slots_count);
    for (size_t i = 0; i < used; i++) {
        void *value = *value_at(map, i);
        uint32_t hash =
            map->key_len > 0 ? hash_of(held_key(map, value), map->key_len) : entry_at(map, i)->hash;
        slot_insert(map, (struct map_slot){value, (uint32_t)i, hash});
    }
}

void *hth_map_get(const struct hth_map *map, const void *key, size_t key_len)
{
    const struct map_slot *s = find_slot(map, hash_of(key, key_len), key, key_len);
    return s != NULL ? s->value : NULL;
}

void hth_map_fetch(const struct hth_map *map, const void *key, size_t key_len)
{
    if (map->slots_count > 0)
        __builtin_prefetch(&map->slots[hash_of(key, key_len) & (map->slots_count - 1)]);
}

const void *hth_map_guess(const struct hth_map *map, const void *key, size_t key_len)
{
    if (map->slots_count == 0)
        return NULL;
    uint32_t hash = hash_of(key, key_len);
    size_t mask = map->slots_count - 1;
    for (size_t i = hash & mask; map->slots[i].value != NULL; i = (i + 1) & mask)
        if (map->slots[i].hash == hash && map->slots[i].value != &deleted)
            return map->slots[i].value;
    return NULL;
}

static void copy_key(struct map_entry *e, uint32_t hash, const void *key, size_t key_len)
{
    e->hash = hash;
    e->key_len = (uint32_t)key_len;
    if (key_len > KEY_INLINE)
        e->key.heap = hth_calloc(key_len, 1);
    memcpy(key_len > KEY_INLINE ? e->key.heap : e->key.bytes, key, key_len);
}

void *hth_map_put(struct hth_map *map, const void *key, size_t key_len, void *value)
{
    HTH_ASSERT(value != NULL && key_len <= UINT32_MAX);
    HTH_ASSERT(map->key_len == 0 || memcmp(held_key(map, value), key, key_len) == 0);
    uint32_t hash = hash_of(key, key_len);
    struct map_slot *s = find_slot(map, hash, key, key_len);
    if (s != NULL) {
        void *old = s->value;
        s->value = *value_at(map, s->index) = value;
        return old;
    }
    if (map->entries_used == map->entries_capacity)
        rebuild(map);
    size_t i = map->entries_used++;
    memset(map->entries + i * entry_bytes(map), 0, entry_bytes(map));
    *value_at(map, i) = value;
    if (map->key_len == 0)
        copy_key(entry_at(map, i), hash, key, key_len);
    slot_insert(map, (struct map_slot){value, (uint32_t)i, hash});
    map->live++;
    return NULL;
}

void *hth_map_del(struct hth_map *map, const void *key, size_t key_len)
{
    struct map_slot *s = find_slot(map, hash_of(key, key_len), key, key_len);
    if (s == NULL)
        return NULL;
    void *value = s->value;
    struct map_entry *e = map->key_len == 0 ? entry_at(map, s->index) : NULL;
    if (e != NULL && e->key_len > KEY_INLINE)
        hth_free(e->key.heap);
    *value_at(map, s->index) = NULL;
    s->value = (void *)&deleted;
    map->live--;
    return value;
}

void *hth_map_next(const struct hth_map *map, size_t *it, const void **key, size_t *key_len)
{
    while (*it < map->entries_used) {
        size_t i = (*it)++;
        void *value = *value_at(map, i);
        if (value == NULL)
            continue;
        bool held = map->key_len > 0;
        if (key != NULL)
            *key = held ? held_key(map, value) : copied_key(entry_at(map, i));
        if (key_len != NULL)
            *key_len = held ? map->key_len : entry_at(map, i)->key_len;
        return value;
    }
    return NULL;
}
