/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h: the answers of backwards, so that none is applied twice.
 *
 * The server adds an entry when it admits a backward, and finds it again by (peer, idempotency
 * key). While the backward runs, repeats wait in its entry. When it is done, the entry keeps the
 * answer until it is too old or newer answers need the room. It keeps the key longer, so that a
 * repeat is refused and not applied. `digest` is a hash of the request: the same key with another
 * request is refused. Loop thread. Private to experts/.
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
    bool spent; /* done, and the answer was dropped to make room: only the key is left */
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

/* At most answers_max of bytes_max are for answers; the rest is for keys. */
struct hth_cache *hth_cache_new(int64_t bytes_max, int64_t answers_max, int64_t age_us);
/* The caller has answered all waiters. */
void hth_cache_free(struct hth_cache *cache);
/* NULL when there is no entry, or it is too old. */
struct hth_cache_entry *hth_cache_find(struct hth_cache *cache, const struct hth_rpc_request *req,
                                       int64_t now_us);
struct hth_cache_entry *hth_cache_add(struct hth_cache *cache, const struct hth_rpc_request *req,
                                      uint64_t digest);
/* Makes the request wait for the entry's answer. Errors: E_QUEUE_FULL. */
enum hth_err hth_cache_join(struct hth_cache_entry *entry, struct hth_rpc_request *req) HTH_MUST;
/* Keeps the answer (takes payload, references the tensor's blob) and sends it to all waiters. */
void hth_cache_done_take(struct hth_cache_entry *entry, uint8_t *payload, size_t payload_len,
                         const struct hth_tensor *tensor, int64_t now_us);
void hth_cache_answer(const struct hth_cache_entry *entry, struct hth_rpc_request *req);
/* Drops an entry whose backward is not computed: refuses all waiters with `err`. */
void hth_cache_drop(struct hth_cache_entry *entry, enum hth_err err);
int64_t hth_cache_bytes(const struct hth_cache *cache);

#endif
