/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.c: see cache.h. Finished entries form a list in order of time, so that dropping by age or
 * size needs no heap.
 */
#include "experts/cache.h"

#include "core/map.h"
#include "core/mem.h"

#include <string.h>

/* Bytes charged for an entry besides its answer. */
#define ENTRY_BYTES ((int64_t)sizeof(struct hth_cache_entry) + 128)

struct hth_cache {
    struct hth_map *map;
    struct hth_cache_entry *oldest, *newest;
    struct hth_cache_entry *oldest_answer; /* the oldest entry that has its answer */
    int64_t bytes, bytes_max;
    int64_t answers, answers_max; /* of the bytes */
    int64_t age_us;
};

static void make_key(const struct hth_rpc_request *req, uint8_t key[HTH_HASH_LEN + 16])
{
    struct hth_rpc_idem idem = hth_rpc_idem_key(req);

    memcpy(key, hth_rpc_peer(req)->b, HTH_HASH_LEN);
    memcpy(key + HTH_HASH_LEN, &idem.hi, 8);
    memcpy(key + HTH_HASH_LEN + 8, &idem.lo, 8);
}

struct hth_cache *hth_cache_new(int64_t bytes_max, int64_t answers_max, int64_t age_us)
{
    struct hth_cache *c = hth_new(struct hth_cache);

    c->map = hth_map_new();
    c->bytes_max = bytes_max;
    c->answers_max = answers_max;
    c->age_us = age_us;
    return c;
}

static void answer_free(struct hth_cache_entry *e)
{
    if (e->done && !e->spent)
        e->cache->answers -= e->bytes - ENTRY_BYTES;
    if (e->cache->oldest_answer == e)
        e->cache->oldest_answer = e->next;
    if (e->has_tensor)
        hth_blob_unref(e->tensor.blob);
    hth_free(e->payload);
    e->payload = NULL;
    e->has_tensor = false;
    e->spent = true;
}

static void entry_free(struct hth_cache_entry *e)
{
    struct hth_cache *c = e->cache;

    answer_free(e);
    if (e->done) {
        if (e->prev != NULL)
            e->prev->next = e->next;
        else
            c->oldest = e->next;
        if (e->next != NULL)
            e->next->prev = e->prev;
        else
            c->newest = e->prev;
        c->bytes -= e->bytes;
    }
    hth_map_del(c->map, e->key, sizeof(e->key));
    hth_free(e);
}

void hth_cache_free(struct hth_cache *cache)
{
    struct hth_cache_entry *e;

    if (cache == NULL)
        return;
    for (size_t it = 0; (e = hth_map_next(cache->map, &it, NULL, NULL)) != NULL;)
        entry_free(e);
    hth_map_free(cache->map);
    hth_free(cache);
}

struct hth_cache_entry *hth_cache_find(struct hth_cache *cache, const struct hth_rpc_request *req,
                                       int64_t now_us)
{
    uint8_t key[HTH_HASH_LEN + 16];

    while (cache->oldest != NULL && now_us - cache->oldest->done_us > cache->age_us)
        entry_free(cache->oldest);
    make_key(req, key);
    return hth_map_get(cache->map, key, sizeof(key));
}

struct hth_cache_entry *hth_cache_add(struct hth_cache *cache, const struct hth_rpc_request *req,
                                      uint64_t digest)
{
    struct hth_cache_entry *e = hth_new(struct hth_cache_entry);

    make_key(req, e->key);
    e->digest = digest;
    e->cache = cache;
    hth_map_put(cache->map, e->key, sizeof(e->key), e);
    return e;
}

/* Refuses the repeats whose callers canceled: rpc would drop their answers. */
static void on_waiter_cancel(void *arg)
{
    struct hth_cache_entry *e = arg;

    for (uint32_t i = 0; i < e->waiters_count; i++) {
        if (hth_rpc_is_canceled(e->waiters[i])) {
            struct hth_rpc_request *req = e->waiters[i];
            e->waiters[i--] = e->waiters[--e->waiters_count];
            hth_rpc_refuse(req, HTH_E_CANCELED, 0, NULL);
        }
    }
}

enum hth_err hth_cache_join(struct hth_cache_entry *entry, struct hth_rpc_request *req)
{
    if (entry->waiters_count == HTH_SERVER_WAITERS_MAX)
        return HTH_E_QUEUE_FULL;
    entry->waiters[entry->waiters_count++] = req;
    hth_rpc_on_cancel(req, on_waiter_cancel, entry);
    return HTH_OK;
}

void hth_cache_answer(const struct hth_cache_entry *entry, struct hth_rpc_request *req)
{
    const struct hth_rpc_body body = {
        .payload = entry->payload,
        .payload_len = entry->payload_len,
        .tensors = entry->has_tensor ? &entry->tensor : NULL,
        .tensor_count = entry->has_tensor ? 1 : 0,
    };

    hth_rpc_reply(req, &body);
}

/* Drops answers first, the oldest first. Without its key a repeat would be applied twice, and a
 * peer's flood of large answers must not cause that for other peers. Keys go only when they alone
 * exceed the limit. */
static void make_room(struct hth_cache *c)
{
    struct hth_cache_entry *e;

    while ((e = c->oldest_answer) != NULL &&
           (c->bytes > c->bytes_max || c->answers > c->answers_max)) {
        answer_free(e);
        c->bytes -= e->bytes - ENTRY_BYTES;
        e->bytes = ENTRY_BYTES;
    }
    while (c->bytes > c->bytes_max && c->oldest != NULL)
        entry_free(c->oldest);
}

void hth_cache_done_take(struct hth_cache_entry *entry, uint8_t *payload, size_t payload_len,
                         const struct hth_tensor *tensor, int64_t now_us)
{
    struct hth_cache *c = entry->cache;

    entry->done = true;
    entry->done_us = now_us;
    entry->payload = payload;
    entry->payload_len = payload_len;
    entry->bytes = ENTRY_BYTES + (int64_t)payload_len;
    if (tensor != NULL) {
        entry->has_tensor = true;
        entry->tensor = *tensor;
        hth_blob_ref(tensor->blob);
        entry->bytes += (int64_t)tensor->blob->size;
    }
    entry->prev = c->newest;
    if (c->newest != NULL)
        c->newest->next = entry;
    else
        c->oldest = entry;
    c->newest = entry;
    if (c->oldest_answer == NULL)
        c->oldest_answer = entry;
    c->bytes += entry->bytes;
    c->answers += entry->bytes - ENTRY_BYTES;
    while (entry->waiters_count > 0)
        hth_cache_answer(entry, entry->waiters[--entry->waiters_count]);
    make_room(c);
}

void hth_cache_drop(struct hth_cache_entry *entry, enum hth_err err)
{
    while (entry->waiters_count > 0)
        hth_rpc_refuse(entry->waiters[--entry->waiters_count], err, 0, NULL);
    entry_free(entry);
}

int64_t hth_cache_bytes(const struct hth_cache *cache)
{
    return cache->bytes;
}
