/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resident.h: what lives on the card now, when more is hosted than fits.
 *
 * An *item* is one stretch of memory of an expert: its values, its gradients, a state of its
 * optimiser. It is on the card, or in pinned memory of this process, or (nobody wrote it yet)
 * nowhere, and then it is zeros. Who computes *holds* the items that he needs: they are brought in,
 * and stay where they are until he lets go of them. All copies go through one stream of their own,
 * so they overlap with kernels:
 *
 *   copy stream   [ out: A ][ in: B ]-event                [ out: C ][ in: D ]-event
 *   context       [ kernels of another expert ]--wait--[ kernels on B ] ...
 *
 * A block that A leaves is *loose*: it is given to B at once, for the stream keeps the order. To
 * the pool, where other streams find it, it goes only when somebody needs memory of another size,
 * and then somebody waits for the copy stream first.
 *
 * Who leaves, when room is wanted: nobody who is held. First what costs no copy (gradients that are
 * logically zero). Then the least used; and among those whose counts are nearly the least (by one,
 * or by a quarter), the one that came last. So a round robin over a few items too many keeps most
 * of them where they are, instead of moving every one of them each time, as "the oldest leaves"
 * would; and an item must be used clearly more than another to take its place for good. Counts are
 * halved now and then, so that yesterday's favourites leave.
 *
 * An item whose bytes on the card are those of its host memory leaves without a copy. Where pinned
 * memory is refused, ordinary memory does (slower); where that is refused too, the item stays and
 * another leaves.
 *
 * Any thread: a short lock, under which copies are ordered. Who has to wait for the copy stream, or
 * asks the driver for pinned memory, gives the lock up meanwhile. Files of this pair know nothing
 * of experts: the callbacks say which bytes matter and that an item has moved.
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
    size_t travel;  /* of these, what is copied: the first so many */
    uint8_t *at;    /* on the card, or NULL */
    uint8_t *host;  /* its place in this process' memory, once it had to leave */
    bool pinned;    /* that is pinned */
    bool kept;      /* the host's bytes are worth something */
    bool dirty;     /* the card's are newer */
    bool arriving;  /* `arrived` may not have happened yet */
    bool ahead;     /* was brought before anybody held it */
    uint32_t asked; /* by requests that are being served: it does not leave */
    uint32_t holds;
    uint64_t uses, came;
    void *arrived; /* event of the copy stream */
};

/* A block of nobody, whose last bytes may still be on their way. */
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
    /* Whether an item's bytes are worth keeping (else it comes back as zeros). Under the lock; no
     * one holds the item. */
    bool (*matters)(const struct hth_item *item);
    /* It came, or left (at is NULL). Under the lock. */
    void (*moved)(struct hth_item *item);
    void *queue; /* the copy stream */
    atomic_flag busy;
    struct hth_item **items;
    uint32_t count, cap;
    size_t budget, used; /* bytes on the card, of all items */
    struct hth_loose loose[HTH_LOOSE_MAX];
    uint32_t loose_count;
    uint32_t giving; /* threads that wait before they give loose blocks to the pool */
    uint64_t clock, age_at;
    uint32_t held; /* items that somebody holds */
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
/* Whoever holds it. What its blocks were used for must be over. */
void hth_resident_remove(struct hth_resident *r, struct hth_item *item);

/* All of them are on the card and held once more, or none is. `stream` waits for those that are
 * under way. Errors: E_NO_MEMORY: what others hold leaves too little room (or the host has no
 * memory for what would have to leave); E_DEVICE. */
enum hth_err hth_resident_hold(struct hth_resident *r, struct hth_item *const *items,
                               uint32_t count, void *stream) HTH_MUST;
/* The holder has waited for what it did with it. `wrote`: the card's bytes are new. */
void hth_resident_release(struct hth_resident *r, struct hth_item *item, bool wrote);
/* They will be needed soon: brings what there is room for without pushing out who is held, or
 * waiting. */
void hth_resident_ahead(struct hth_resident *r, struct hth_item *const *items, uint32_t count);
/* Lets items leave until the pool may have that many bytes more. False: nobody left. */
bool hth_resident_make_room(struct hth_resident *r, size_t bytes);
/* Whether anybody holds anything. */
bool hth_resident_is_held(struct hth_resident *r);

#endif
