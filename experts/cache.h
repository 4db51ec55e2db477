/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h: the answers of backwards, so that none is applied twice.
 *
 * An entry is made when a backward is admitted and found again by (peer, idempotency key). While it
 * runs, repeats wait at it; when it is done it keeps the answer until it is too old or newer
 * answers need the room; the key is kept longer, so that a repeat is refused, not applied. `digest`
 * says what was asked: the same key with another question is refused. Loop thread. Private to
 * experts/.
 */
#ifndef HTH_EXPERTS_CACHE_H
#define HTH_EXPERTS_CACHE_H

#include "core/base.h"
#include "core/limits.h"
#include "core/tensor.h"
#include "rpc/rpc.h"

struct hth_cache;

struct hth_cache_entry {
    struct hth_cache_entry *prev, *next; /* finished ones, oldest first */
    uint8_t key[HTH_HASH_LEN + 16];
    uint64_t digest;
    bool done;
    bool spent; /* done, but the answer had to make room: only the key is left */
    struct hth_rpc_request *waiters[HTH_SERVER_WAITERS_MAX];
    uint32_t waiters_count;
    uint8_t *payload;
    size_t payload_len;
    bool has_tensor;
    struct hth_tensor tensor;
    int64_t done_us;
    int64_t bytes;
    struct hth_cache *cache;
};

/* `answers_max` of the bytes_max are for answers; the rest is for keys. */
struct hth_cache *hth_cache_new(int64_t bytes_max, int64_t answers_max, int64_t age_us);
/* Waiters must have been answered. */
void hth_cache_free(struct hth_cache *cache);
/* NULL when it is not there or too old. */
struct hth_cache_entry *hth_cache_find(struct hth_cache *cache, const struct hth_rpc_request *req,
                                       int64_t now_us);
struct hth_cache_entry *hth_cache_add(struct hth_cache *cache, const struct hth_rpc_request *req,
                                      uint64_t digest);
/* The request waits for the entry. Errors: E_QUEUE_FULL. */
enum hth_err hth_cache_join(struct hth_cache_entry *entry, struct hth_rpc_request *req) HTH_MUST;
/* Keeps the answer (payload is taken, the tensor's blob referenced) and gives it to who waits. */
void hth_cache_done_take(struct hth_cache_entry *entry, uint8_t *payload, size_t payload_len,
                         const struct hth_tensor *tensor, int64_t now_us);
void hth_cache_answer(const struct hth_cache_entry *entry, struct hth_rpc_request *req);
/* It was never computed: refuses who waits and forgets it. */
void hth_cache_drop(struct hth_cache_entry *entry, enum hth_err err);
int64_t hth_cache_bytes(const struct hth_cache *cache);

#endif
