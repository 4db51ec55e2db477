/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.c: a dense array of entries in insertion order, and an open-addressing table of indices into
 * it. Removed entries stay as holes until the next rebuild.
 *
 *   slots:   [ . 2 . 0 . . 1 . ]        entries: [ (k0,v0) (k1,v1) (k2,v2) ]
 */
#include "core/map.h"

#include "core/mem.h"
#include "core/rng.h"

#include <string.h>

#define SLOT_EMPTY   UINT32_MAX
#define SLOT_DELETED (UINT32_MAX - 1)
/* Peer ids and keys of records too: a key elsewhere is a cache line more for each look. */
#define KEY_INLINE 48

struct entry {
    void *value;   /* NULL: a hole */
    uint32_t hash; /* the low half: there are never more slots */
    uint32_t key_len;
    union {
        uint8_t bytes[KEY_INLINE];
        uint8_t *heap;
    } key;
};
_Static_assert(sizeof(struct entry) == 64, "an entry is a cache line");

/* The hash stands beside the index so that only the right entry is looked at. */
struct slot {
    uint32_t index;
    uint32_t hash;
};

struct hth_map {
    struct entry *entries;
    struct slot *slots;
    size_t entries_used; /* holes included */
    size_t entries_capacity;
    size_t slots_count; /* a power of two */
    size_t live;
};

static const uint8_t *key_of(const struct entry *e)
{
    return e->key_len <= KEY_INLINE ? e->key.bytes : e->key.heap;
}

struct hth_map *hth_map_new(void)
{
    return hth_new(struct hth_map);
}

void hth_map_free(struct hth_map *map)
{
    if (map == NULL)
        return;
    for (size_t i = 0; i < map->entries_used; i++) {
        if (map->entries[i].value != NULL && map->entries[i].key_len > KEY_INLINE)
            hth_free(map->entries[i].key.heap);
    }
    hth_free(map->entries);
    hth_free(map->slots);
    hth_free(map);
}

size_t hth_map_count(const struct hth_map *map)
{
    return map->live;
}

/* The slot that holds the key, or SIZE_MAX. */
static size_t find_slot(const struct hth_map *map, uint32_t hash, const void *key, size_t key_len)
{
    if (map->slots_count == 0)
        return SIZE_MAX;
    size_t mask = map->slots_count - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        const struct slot *s = &map->slots[i];
        if (s->index == SLOT_EMPTY)
            return SIZE_MAX;
        if (s->index == SLOT_DELETED || s->hash != hash)
            continue;
        const struct entry *e = &map->entries[s->index];
        if (e->key_len == key_len && memcmp(key_of(e), key, key_len) == 0)
            return i;
    }
}

static void slot_insert(struct hth_map *map, uint32_t hash, uint32_t index)
{
    size_t mask = map->slots_count - 1;
    size_t i = hash & mask;
    while (map->slots[i].index != SLOT_EMPTY && map->slots[i].index != SLOT_DELETED)
        i = (i + 1) & mask;
    map->slots[i] = (struct slot){index, hash};
}

/* Squeezes the holes out and makes room for half as many entries again; from 8 to 32 at once, as
 * whoever has more than a few mostly has dozens, and what a map leaves behind, maps that grow in
 * step with it don't need. */
static void rebuild(struct hth_map *map)
{
    size_t used = 0;
    for (size_t i = 0; i < map->entries_used; i++) {
        if (map->entries[i].value != NULL)
            map->entries[used++] = map->entries[i];
    }
    map->entries_used = used;
    size_t more = map->live < 8 ? 8 : 24;
    map->entries_capacity = map->live + HTH_MAX(more, map->live / 2);
    map->entries = hth_realloc(map->entries, map->entries_capacity, sizeof(*map->entries));
    map->slots_count = 16;
    while (map->slots_count * 2 < map->entries_capacity * 3)
        map->slots_count *= 2;
    HTH_ASSERT(map->slots_count < SLOT_DELETED);
    map->slots = hth_realloc(map->slots, map->slots_count, sizeof(*map->slots));
    memset(map->slots, 0xff, map->slots_count * sizeof(*map->slots));
    for (size_t i = 0; i < used; i++)
        slot_insert(map, map->entries[i].hash, (uint32_t)i);
}

__extension__ typedef unsigned __int128 u128;

/* Until a process has its own (hth_map_secret). */
static uint64_t secrets[2] = {UINT64_C(0x9e3779b97f4a7c15), UINT64_C(0xa0761d6478bd642f)};

void hth_map_secret(const uint64_t secret[2])
{
    secrets[0] = secret[0];
    secrets[1] = secret[1];
}

/* Both halves of a product: the step of Wang Yi's wyhash. Nothing but the places in `slots` depends
 * on it: whoever iterates sees the order of insertion. Both factors hold a secret, or a key that
 * makes one of them zero would hide the rest of itself. */
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

void *hth_map_get(const struct hth_map *map, const void *key, size_t key_len)
{
    size_t slot = find_slot(map, hash_of(key, key_len), key, key_len);
    return slot != SIZE_MAX ? map->entries[map->slots[slot].index].value : NULL;
}

void *hth_map_put(struct hth_map *map, const void *key, size_t key_len, void *value)
{
    HTH_ASSERT(value != NULL && key_len <= UINT32_MAX);
    uint32_t hash = hash_of(key, key_len);
    size_t slot = find_slot(map, hash, key, key_len);
    if (slot != SIZE_MAX) {
        struct entry *e = &map->entries[map->slots[slot].index];
        void *old = e->value;
        e->value = value;
        return old;
    }
    if (map->entries_used == map->entries_capacity)
        rebuild(map);
    struct entry *e = &map->entries[map->entries_used];
    memset(e, 0, sizeof(*e));
    e->value = value;
    e->hash = hash;
    e->key_len = (uint32_t)key_len;
    if (key_len > KEY_INLINE)
        e->key.heap = hth_calloc(key_len, 1);
    memcpy(key_len > KEY_INLINE ? e->key.heap : e->key.bytes, key, key_len);
    slot_insert(map, hash, (uint32_t)map->entries_used);
    map->entries_used++;
    map->live++;
    return NULL;
}

void *hth_map_del(struct hth_map *map, const void *key, size_t key_len)
{
    size_t slot = find_slot(map, hash_of(key, key_len), key, key_len);
    if (slot == SIZE_MAX)
        return NULL;
    struct entry *e = &map->entries[map->slots[slot].index];
    void *value = e->value;
    if (e->key_len > KEY_INLINE)
        hth_free(e->key.heap);
    e->value = NULL;
    e->key_len = 0;
    map->slots[slot].index = SLOT_DELETED;
    map->live--;
    return value;
}

void *hth_map_next(const struct hth_map *map, size_t *it, const void **key, size_t *key_len)
{
    while (*it < map->entries_used) {
        const struct entry *e = &map->entries[(*it)++];
        if (e->value == NULL)
            continue;
        if (key != NULL)
            *key = key_of(e);
        if (key_len != NULL)
            *key_len = e->key_len;
        return e->value;
    }
    return NULL;
}
