/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.h: a hash map from short byte keys to pointers, iterated in insertion order.
 *
 * Keys are copied, or lie in the values (hth_map_new_held); values are borrowed. Iteration order
 * depends only on the calls made, never on addresses, so that a simulation replays. Entries may be
 * removed during an iteration (they are then skipped); adding one during an iteration is not
 * allowed.
 *
 * Strangers choose some of the keys. A stranger that knows the hash could choose keys that all
 * collide. So a program that takes input from strangers gives the hash a secret first; no visible
 * behaviour depends on the secret.
 */
#ifndef HTH_CORE_MAP_H
#define HTH_CORE_MAP_H

#include "core/base.h"

struct hth_map;

/* Once in a process, before its first map and its first thread. */
void hth_map_secret(const uint64_t secret[2]);

struct hth_map *hth_map_new(void);
/* A map of values that hold their own keys: key_len bytes at key_offset, constant while the value
 * is in the map. The map keeps no copies, and a lookup touches one cold cache line less. Every
 * key_len below must be this one. */
struct hth_map *hth_map_new_held(size_t key_offset, size_t key_len);
/* Values are not freed. NULL is fine. */
void hth_map_free(struct hth_map *map);
size_t hth_map_count(const struct hth_map *map);
/* The value, or NULL. */
void *hth_map_get(const struct hth_map *map, const void *key, size_t key_len);
/* Stores value (not NULL); returns the one it replaces, or NULL. Where values hold their keys,
 * `key` is the same as the value's. */
void *hth_map_put(struct hth_map *map, const void *key, size_t key_len, void *value);
/* Removes and returns the value, or NULL. */
void *hth_map_del(struct hth_map *map, const void *key, size_t key_len);

/* Prefetches the slot of the key. */
void hth_map_fetch(const struct hth_map *map, const void *key, size_t key_len);
/* The value, seldom another one, or NULL: only hashes are compared. For prefetching the value. */
const void *hth_map_guess(const struct hth_map *map, const void *key, size_t key_len);

/* for (size_t it = 0; (v = hth_map_next(map, &it, &key, &key_len)) != NULL;)  key may be NULL. */
void *hth_map_next(const struct hth_map *map, size_t *it, const void **key, size_t *key_len);

/* The same with 64-bit integers as keys. */
static inline void *hth_map_get_u64(const struct hth_map *map, uint64_t key)
{
    return hth_map_get(map, &key, sizeof(key));
}
static inline void *hth_map_put_u64(struct hth_map *map, uint64_t key, void *value)
{
    return hth_map_put(map, &key, sizeof(key), value);
}
static inline void *hth_map_del_u64(struct hth_map *map, uint64_t key)
{
    return hth_map_del(map, &key, sizeof(key));
}

#endif
