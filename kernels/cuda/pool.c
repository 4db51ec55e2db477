/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: blocks of device memory in an array by address; see pool.h. */
#include "kernels/cuda/pool.h"

#include <stdlib.h>
#include <string.h>

#define SMALL_ALIGN ((size_t)512)
#define LARGE_ALIGN ((size_t)2 << 20) /* the driver's own page */

/* Small sizes in steps of an eighth of their power of two, so that at most an eighth is lost and
 * few different sizes are idle; large ones in whole pages. */
size_t hth_pool_round(size_t bytes)
{
    if (bytes > SIZE_MAX - LARGE_ALIGN)
        return SIZE_MAX;
    size_t step = SMALL_ALIGN;
    if (bytes > LARGE_ALIGN)
        step = LARGE_ALIGN;
    else
        while (step * 16 < bytes)
            step *= 2;
    return bytes == 0 ? step : (bytes + step - 1) / step * step;
}

void hth_pool_init(struct hth_pool *pool, const struct hth_gpu *gpu, size_t limit)
{
    memset(pool, 0, sizeof(*pool));
    atomic_flag_clear(&pool->busy);
    pool->gpu = gpu;
    pool->limit = limit;
}

/* Held for a search, or for one call of the driver. */
static void lock(struct hth_pool *pool)
{
    while (atomic_flag_test_and_set_explicit(&pool->busy, memory_order_acquire))
        continue;
}

static void unlock(struct hth_pool *pool)
{
    atomic_flag_clear_explicit(&pool->busy, memory_order_release);
}

/* The place of the first block at or after an address. */
static size_t place_of(const struct hth_pool *pool, const uint8_t *at)
{
    size_t low = 0, high = pool->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pool->blocks[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void *reuse(struct hth_pool *pool, size_t bytes)
{
    for (size_t i = 0; i < pool->count; i++) {
        struct hth_pool_block *b = &pool->blocks[i];
        if (!b->used && b->bytes == bytes) {
            b->used = true;
            pool->used += bytes;
            return b->at;
        }
    }
    return NULL;
}

static bool grow_table(struct hth_pool *pool)
{
    if (pool->count < pool->cap)
        return true;
    size_t cap = pool->cap > 0 ? 2 * pool->cap : 64;
    struct hth_pool_block *blocks = realloc(pool->blocks, cap * sizeof(*blocks));
    if (blocks == NULL)
        return false;
    pool->blocks = blocks;
    pool->cap = cap;
    return true;
}

static void *from_driver(struct hth_pool *pool, size_t bytes)
{
    void *p = NULL;
    if (!grow_table(pool) || (pool->limit > 0 && bytes > pool->limit - pool->held) ||
        pool->gpu->mem_alloc(&p, bytes) != 0)
        return NULL;
    size_t i = place_of(pool, p);
    memmove(&pool->blocks[i + 1], &pool->blocks[i], (pool->count - i) * sizeof(pool->blocks[0]));
    pool->blocks[i] = (struct hth_pool_block){.at = p, .bytes = bytes, .used = true};
    pool->count++;
    pool->held += bytes;
    pool->used += bytes;
    return p;
}

/* Returns one idle block to the driver: the smallest that alone makes room for `bytes`, or the
 * largest. False: none is idle. */
static bool give_back_one(struct hth_pool *pool, size_t bytes)
{
    size_t best = pool->count;
    for (size_t i = 0; i < pool->count; i++) {
        const struct hth_pool_block *b = &pool->blocks[i], *old = &pool->blocks[best];
        if (b->used)
            continue;
        if (best == pool->count ||
            (old->bytes < bytes ? b->bytes > old->bytes
                                : b->bytes >= bytes && b->bytes < old->bytes))
            best = i;
    }
    if (best == pool->count)
        return false;
    struct hth_pool_block gone = pool->blocks[best];
    (void)pool->gpu->mem_free(gone.at);
    pool->held -= gone.bytes;
    pool->count--;
    memmove(&pool->blocks[best], &pool->blocks[best + 1],
            (pool->count - best) * sizeof(pool->blocks[0]));
    return true;
}

void *hth_pool_take(struct hth_pool *pool, size_t bytes)
{
    size_t rounded = hth_pool_round(bytes);
    if (rounded == SIZE_MAX || (pool->limit > 0 && rounded > pool->limit))
        return NULL;
    lock(pool);
    void *p = reuse(pool, rounded);
    if (p == NULL)
        p = from_driver(pool, rounded);
    while (p == NULL && give_back_one(pool, rounded))
        p = from_driver(pool, rounded);
    unlock(pool);
    return p;
}

bool hth_pool_give(struct hth_pool *pool, void *p)
{
    lock(pool);
    size_t i = place_of(pool, p);
    bool ours = i < pool->count && pool->blocks[i].at == p && pool->blocks[i].used;
    if (ours) {
        pool->blocks[i].used = false;
        pool->used -= pool->blocks[i].bytes;
    }
    unlock(pool);
    return ours;
}

void hth_pool_trim(struct hth_pool *pool)
{
    lock(pool);
    while (give_back_one(pool, 0))
        continue;
    unlock(pool);
}

void hth_pool_clear(struct hth_pool *pool)
{
    hth_pool_trim(pool);
    free(pool->blocks);
    pool->blocks = NULL;
    pool->count = pool->cap = 0;
}
