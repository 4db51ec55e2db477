/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h: a cache of device memory, because each call of the driver's allocator stops the whole
 * card.
 *
 * Sizes are rounded up (hth_pool_round). A block that is given back stays in the pool for the next
 * request of its rounded size. When the limit is reached or the driver has no more, the pool
 * returns idle blocks to the driver one by one until it can meet the request: each return stops the
 * card, and the remaining blocks serve later requests. With none left it returns NULL.
 *
 * Any thread. The pool uses the addresses of blocks only and never reads or writes their memory.
 */
#ifndef HTH_KERNELS_CUDA_POOL_H
#define HTH_KERNELS_CUDA_POOL_H

#include <stdatomic.h>

#include "kernels/cuda/gpu.h"

struct hth_pool_block {
    uint8_t *at;
    size_t bytes; /* rounded */
    bool used;
};

struct hth_pool {
    const struct hth_gpu *gpu;
    atomic_flag busy;
    struct hth_pool_block *blocks; /* by address */
    size_t count, cap;
    size_t limit; /* most bytes taken from the driver; 0: the card's memory is the limit */
    size_t held, used;
};

void hth_pool_init(struct hth_pool *pool, const struct hth_gpu *gpu, size_t limit);
/* Returns all blocks to the driver; none may be in use. */
void hth_pool_clear(struct hth_pool *pool);

/* At least `bytes`, with the driver's alignment (256 bytes and more). NULL: too little memory. */
void *hth_pool_take(struct hth_pool *pool, size_t bytes);
/* Gives a block back. False, and nothing done, for memory that is not a used block of the pool. */
bool hth_pool_give(struct hth_pool *pool, void *p);
/* Returns all idle blocks to the driver. */
void hth_pool_trim(struct hth_pool *pool);
size_t hth_pool_round(size_t bytes);

#endif
