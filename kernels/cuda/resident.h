/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resident.h: decides which weights are on the card when more are hosted than fit.
 *
 * An *item* is a piece of memory of an expert: its values, its gradients, a state of its optimiser.
 * It is on the card, or in pinned memory of this process, or, before its first write, nowhere, and
 * then it is zeros. A context *holds* the items that it needs: they are copied in, and stay until
 * the context releases them. All copies use one stream of their own, so they overlap with kernels:
 *
 *   copy stream   [ out: A ][ in: B ]-event                [ out: C ][ in: D ]-event
 *   context       [ kernels of another expert ]--wait--[ kernels on B ] ...
 *
 * The block of an evicted item A is *loose*: it can be given to B at once, because the stream keeps
 * the order. It returns to the pool, where other streams can take it, only when memory of another
 * size is needed, and after a wait for the copy stream.
 *
 * Eviction never takes a held item. It takes items that need no copy first (gradients that are
 * logically zero), then the least used; among those whose counts are nearly the least (by one, or
 * by a quarter), the one that was brought last. So a round robin over slightly more items than fit
 * keeps most of them on the card, where "least recently used" would move every one each time; and
 * an item must be used clearly more than another to replace it for good. Counts are halved at
 * intervals, so that items out of use lose their place.
 *
 * An item whose bytes on the card equal those of its host memory is evicted without a copy. Where
 * the driver refuses pinned memory, ordinary memory serves (slower); without that, too, the item
 * stays and another is evicted.
 *
 * Any thread: a short lock orders the copies. A thread that waits for the copy stream, or asks the
 * driver for pinned memory, releases the lock meanwhile. These files know nothing of experts:
 * callbacks tell which bytes matter, and are told that an item has moved.
 */
#ifndef HTH_KERNELS_CUDA_RESIDENT_H
#define HTH_KERNELS_CUDA_RESIDENT_H

#include <stdatomic.h>

#include "core/base.h"
#include "kernels/cuda/pool.h"

struct hth_item {
    void *owner;    /* the caller's */
    uint32_t part;  /* the caller's */
    size_t bytes;   /* on the card, as the pool rounds */
    size_t travel;  /* of these, the first bytes that are copied */
    uint8_t *at;    /* on the card, or NULL */
    uint8_t *host;  /* its memory in this process, from the first eviction on */
    bool pinned;    /* `host` is pinned */
    bool kept;      /* the host's bytes are valid */
    bool dirty;     /* the card's are newer */
    bool arriving;  /* the copy in may not be complete */
    bool ahead;     /* was prefetched and not held since */
    uint32_t asked; /* requests in progress that need it: it is not evicted */
    uint32_t holds;
    uint64_t uses, came;
    void *arrived; /* event of the copy stream */
};

/* A block without an item, whose last copy may still run. */
struct hth_loose {
    uint8_t *at;
    size_t bytes;
};
#define HTH_LOOSE_MAX 64

struct hth_resident_stats {
    uint64_t hits, loads, evictions; /* of items */
    uint64_t bytes_in, bytes_out;
    uint64_t unpinned; /* items whose host memory is not pinned */
};

struct hth_resident {
    const struct hth_gpu *gpu;
    struct hth_pool *pool;
    /* True if an item's bytes must be kept (else it returns as zeros). Called under the lock; the
     * item is not held. */
    bool (*matters)(const struct hth_item *item);
    /* The item was brought, or evicted (at is NULL). Called under the lock. */
    void (*moved)(struct hth_item *item);
    void *queue; /* the copy stream */
    atomic_flag busy;
    struct hth_item **items;
    uint32_t count, cap;
    size_t budget, used; /* bytes on the card, of all items */
    struct hth_loose loose[HTH_LOOSE_MAX];
    uint32_t loose_count;
    uint32_t giving; /* threads that wait before they return loose blocks to the pool */
    uint64_t clock, age_at;
    uint32_t held; /* items that are held */
    struct hth_resident_stats stats;
};

/* The pool must outlive it. Errors: E_DEVICE (no stream). */
enum hth_err hth_resident_init(struct hth_resident *r, const struct hth_gpu *gpu,
                               struct hth_pool *pool, size_t budget) HTH_MUST;
/* No item may be left. */
void hth_resident_clear(struct hth_resident *r);

/* Brings a new item, held once. Errors: E_NO_MEMORY (also when it alone is over the budget),
 * E_DEVICE. */
enum hth_err hth_resident_add(struct hth_resident *r, struct hth_item *item, size_t bytes,
                              size_t travel) HTH_MUST;
/* Removes an item, held or not. All work on its blocks must be over. */
void hth_resident_remove(struct hth_resident *r, struct hth_item *item);

/* Holds all items once more and brings them, or holds none. `stream` waits for copies that still
 * run. Errors: E_NO_MEMORY (items held by others leave too little room, or the host has no memory
 * for evicted ones); E_DEVICE. */
enum hth_err hth_resident_hold(struct hth_resident *r, struct hth_item *const *items,
                               uint32_t count, void *stream) HTH_MUST;
/* Releases one hold, after the holder has waited for its work on the item. `wrote`: the card's
 * bytes are new. */
void hth_resident_release(struct hth_resident *r, struct hth_item *item, bool wrote);
/* Prefetches items as far as there is room, without evicting held items and without a wait. */
void hth_resident_ahead(struct hth_resident *r, struct hth_item *const *items, uint32_t count);
/* Evicts items until the pool may take that many bytes more. False: all others are held. */
bool hth_resident_make_room(struct hth_resident *r, size_t bytes);
/* True if any item is held. */
bool hth_resident_is_held(struct hth_resident *r);

#endif
