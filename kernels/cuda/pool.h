/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h: device memory that is kept when it is given back, because asking the driver stops the
 * whole card.
 *
 * Sizes are rounded up (pool.c says how), a block that is given back waits for the next request of
 * its rounded size. When the limit is reached or the driver has no more, blocks that wait go back
 * to the driver one by one, until the request can be met: each call stops the card, and what still
 * waits serves the next request of its size. With none left the answer is NULL.
 *
 * Any thread. The pool knows blocks by their address only and reads or writes none of them.
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
    size_t limit; /* bytes of the driver; 0: none but the card's */
    size_t held, used;
};

void hth_pool_init(struct hth_pool *pool, const struct hth_gpu *gpu, size_t limit);
/* Everything goes back to the driver; nothing may be in use. */
void hth_pool_clear(struct hth_pool *pool);

/* At least `bytes`, aligned as the driver aligns (256 bytes and more). NULL: too little. */
void *hth_pool_take(struct hth_pool *pool, size_t bytes);
/* What takes part in no pool, or is not in use, is left alone: false. */
bool hth_pool_give(struct hth_pool *pool, void *p);
/* Returns blocks that wait. */
void hth_pool_trim(struct hth_pool *pool);
size_t hth_pool_round(size_t bytes);

#endif
