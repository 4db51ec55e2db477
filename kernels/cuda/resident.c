/* SPDX-License-Identifier: Apache-2.0 */
/* resident.c: who lives on the card, and how they come and go; see resident.h. */
#include "kernels/cuda/resident.h"

#include <stdlib.h>
#include <string.h>

#define AGE_EVERY 32u /* uses per item between two halvings of the counts */
#define AGE_LEAST 256u
#define AHEAD_FOR 64u /* uses and arrivals after which who was brought ahead has no more right */

static void lock(struct hth_resident *r)
{
    while (atomic_flag_test_and_set_explicit(&r->busy, memory_order_acquire))
        continue;
}

static void unlock(struct hth_resident *r)
{
    atomic_flag_clear_explicit(&r->busy, memory_order_release);
}

enum hth_err hth_resident_init(struct hth_resident *r, const struct hth_gpu *gpu,
                               struct hth_pool *pool, size_t budget)
{
    memset(r, 0, sizeof(*r));
    atomic_flag_clear(&r->busy);
    r->gpu = gpu;
    r->pool = pool;
    r->budget = budget;
    r->age_at = AGE_LEAST;
    return gpu->stream_new(&r->queue) == 0 ? HTH_OK : HTH_E_DEVICE;
}

/* The spare block goes to the pool, where other streams find it: once its bytes are out. */
static void drop_spare(struct hth_resident *r)
{
    if (r->spare == NULL)
        return;
    (void)r->gpu->stream_sync(r->queue);
    (void)hth_pool_give(r->pool, r->spare);
    r->spare = NULL;
}

void hth_resident_clear(struct hth_resident *r)
{
    HTH_ASSERT(r->count == 0);
    drop_spare(r);
    if (r->queue != NULL)
        r->gpu->stream_free(r->queue);
    r->queue = NULL;
    free(r->items);
    r->items = NULL;
    r->cap = 0;
}

/* ---- leaving ------------------------------------------------------------------------------- */

/* Whether it may leave without a copy. */
static bool is_free(const struct hth_resident *r, const struct hth_item *item)
{
    return (item->kept && !item->dirty) || !r->matters(item);
}

/* Higher: leaves before. Free ones; others; those that were brought for somebody who comes soon
 * (unless he was refused on the way: requests with bad numbers shall not fill the card). */
static int readiness(const struct hth_resident *r, const struct hth_item *item)
{
    if (item->at == NULL || item->holds > 0 || item->asked)
        return 0;
    if (item->ahead && r->clock - item->came < AHEAD_FOR)
        return 1;
    return !r->matters(item) ? 3 : 2;
}

/* The next that leaves; NULL when all are held. */
static struct hth_item *victim(const struct hth_resident *r)
{
    struct hth_item *last = NULL;
    uint64_t least = UINT64_MAX;
    int best = 1;
    for (uint32_t i = 0; i < r->count; i++)
        best = HTH_MAX(best, readiness(r, r->items[i]));
    for (uint32_t i = 0; i < r->count; i++) {
        if (readiness(r, r->items[i]) == best)
            least = HTH_MIN(least, r->items[i]->uses);
    }
    for (uint32_t i = 0; i < r->count; i++) {
        struct hth_item *item = r->items[i];
        bool rare = readiness(r, item) == best && item->uses <= least + HTH_MAX(least / 4, 1u);
        if (rare && (last == NULL || item->came > last->came))
            last = item;
    }
    return last;
}

/* Pinned memory where there is some. */
static bool find_host(struct hth_resident *r, struct hth_item *item)
{
    void *p = NULL;
    if (item->host != NULL)
        return true;
    item->pinned = r->gpu->host_alloc(&p, item->travel) == 0;
    if (!item->pinned)
        p = malloc(item->travel);
    item->host = p;
    r->stats.unpinned += !item->pinned && p != NULL;
    return p != NULL;
}

/* Its bytes are on their way out, its block is spare. False: there is no memory for them. */
static bool evict(struct hth_resident *r, struct hth_item *item)
{
    if (!is_free(r, item)) {
        if (!find_host(r, item) ||
            r->gpu->copy_out(item->host, item->at, item->travel, r->queue) != 0)
            return false;
        r->stats.bytes_out += item->travel;
        item->kept = true;
        item->dirty = false;
    }
    item->kept = item->kept && r->matters(item);
    drop_spare(r);
    r->spare = item->at;
    r->spare_bytes = item->bytes;
    r->used -= item->bytes;
    r->stats.evictions++;
    item->at = NULL;
    item->arriving = item->ahead = false;
    r->moved(item);
    return true;
}

/* Somebody leaves; who can't (no memory of the host) is passed over. */
static bool evict_one(struct hth_resident *r)
{
    struct hth_item *item, *stuck[8];
    uint32_t count = 0;
    bool done = false;
    while (!done && count < HTH_ARRAY_LEN(stuck) && (item = victim(r)) != NULL) {
        done = evict(r, item);
        if (!done) {
            item->asked = true; /* not again */
            stuck[count++] = item;
        }
    }
    while (count > 0)
        stuck[--count]->asked = false;
    return done;
}

/* ---- coming -------------------------------------------------------------------------------- */

static uint8_t *find_block(struct hth_resident *r, size_t bytes)
{
    uint8_t *at = r->spare;
    while (r->used + bytes > r->budget) {
        if (!evict_one(r))
            return NULL;
        at = r->spare;
    }
    for (;;) {
        if (at != NULL && r->spare_bytes == bytes) {
            r->spare = NULL;
            return at;
        }
        drop_spare(r);
        at = hth_pool_take(r->pool, bytes);
        if (at != NULL || !evict_one(r))
            return at;
        at = r->spare;
    }
}

/* On the card, or on its way there. */
static enum hth_err bring(struct hth_resident *r, struct hth_item *item)
{
    const struct hth_gpu *gpu = r->gpu;
    uint8_t *at = find_block(r, item->bytes);
    int err;
    if (at == NULL)
        return HTH_E_NO_MEMORY;
    if (item->kept) {
        err = gpu->copy_in(at, item->host, item->travel, r->queue);
        r->stats.bytes_in += item->travel;
    } else {
        err = gpu->zero(at, item->bytes, r->queue);
    }
    if (err == 0)
        err = gpu->event_record(item->arrived, r->queue);
    if (err != 0) {
        drop_spare(r);
        r->spare = at;
        r->spare_bytes = item->bytes;
        return HTH_E_DEVICE;
    }
    item->at = at;
    item->arriving = true;
    item->came = ++r->clock;
    r->used += item->bytes;
    r->stats.loads++;
    r->moved(item);
    return HTH_OK;
}

static void count_use(struct hth_resident *r, struct hth_item *item)
{
    item->uses++;
    if (++r->clock < r->age_at)
        return;
    for (uint32_t i = 0; i < r->count; i++)
        r->items[i]->uses /= 2;
    r->age_at = r->clock + HTH_MAX(AGE_LEAST, AGE_EVERY * r->count);
}

static enum hth_err bring_all(struct hth_resident *r, struct hth_item *const *items, uint32_t count)
{
    enum hth_err err = HTH_OK;
    for (uint32_t i = 0; i < count; i++)
        items[i]->asked = true;
    for (uint32_t i = 0; i < count && err == HTH_OK; i++) {
        if (items[i]->at == NULL)
            err = bring(r, items[i]);
        else
            r->stats.hits++;
    }
    for (uint32_t i = 0; i < count; i++)
        items[i]->asked = false;
    return err;
}

static void let_go(struct hth_resident *r, struct hth_item *item)
{
    HTH_ASSERT(item->holds > 0);
    r->held -= --item->holds == 0;
}

enum hth_err hth_resident_hold(struct hth_resident *r, struct hth_item *const *items,
                               uint32_t count, void *stream)
{
    int waited = 0;
    lock(r);
    enum hth_err err = bring_all(r, items, count);
    for (uint32_t i = 0; i < count && err == HTH_OK; i++) {
        struct hth_item *item = items[i];
        count_use(r, item);
        r->held += item->holds++ == 0;
        item->ahead = false;
        if (item->arriving && waited == 0)
            waited = r->gpu->stream_wait(stream, item->arrived);
    }
    for (uint32_t i = 0; i < count && waited != 0; i++)
        let_go(r, items[i]);
    unlock(r);
    return waited == 0 ? err : HTH_E_DEVICE;
}

/* The holder's stream waited for it to arrive, and he for his stream. */
void hth_resident_release(struct hth_resident *r, struct hth_item *item, bool wrote)
{
    lock(r);
    let_go(r, item);
    item->arriving = false;
    item->dirty = item->dirty || wrote;
    unlock(r);
}

void hth_resident_ahead(struct hth_resident *r, struct hth_item *const *items, uint32_t count)
{
    lock(r);
    for (uint32_t i = 0; i < count; i++) {
        struct hth_item *item = items[i];
        if (item->at == NULL && bring_all(r, &item, 1) == HTH_OK)
            item->ahead = true;
    }
    unlock(r);
}

bool hth_resident_make_room(struct hth_resident *r, size_t bytes)
{
    size_t left = 0;
    bool any = false;
    lock(r);
    drop_spare(r);
    while (left < bytes && evict_one(r)) {
        left += r->spare_bytes;
        drop_spare(r);
        any = true;
    }
    unlock(r);
    return any;
}

bool hth_resident_is_held(struct hth_resident *r)
{
    lock(r);
    bool held = r->held > 0;
    unlock(r);
    return held;
}

/* ---- items --------------------------------------------------------------------------------- */

static bool grow(struct hth_resident *r)
{
    if (r->count < r->cap)
        return true;
    uint32_t cap = r->cap > 0 ? 2 * r->cap : 64;
    struct hth_item **items = realloc(r->items, cap * sizeof(struct hth_item *));
    if (items == NULL)
        return false;
    r->items = items;
    r->cap = cap;
    return true;
}

enum hth_err hth_resident_add(struct hth_resident *r, struct hth_item *item, size_t bytes,
                              size_t travel)
{
    enum hth_err err = HTH_E_NO_MEMORY;
    item->bytes = hth_pool_round(bytes);
    item->travel = travel;
    if (item->bytes > r->budget)
        return err;
    if (r->gpu->event_new(&item->arrived) != 0)
        return HTH_E_DEVICE;
    lock(r);
    if (grow(r)) {
        r->items[r->count++] = item;
        err = bring_all(r, &item, 1);
        if (err == HTH_OK) {
            r->held += item->holds++ == 0;
            item->dirty = true; /* what the caller is about to write */
        } else {
            r->count--;
        }
    }
    unlock(r);
    if (err == HTH_OK && r->gpu->event_sync(item->arrived) == 0) {
        item->arriving = false; /* it is held: nobody else looks */
        return HTH_OK;
    }
    if (err == HTH_OK) {
        hth_resident_remove(r, item);
        return HTH_E_DEVICE;
    }
    r->gpu->event_free(item->arrived);
    item->arrived = NULL;
    return err;
}

void hth_resident_remove(struct hth_resident *r, struct hth_item *item)
{
    uint32_t i = 0;
    lock(r);
    while (i < r->count && r->items[i] != item)
        i++;
    HTH_ASSERT(i < r->count);
    r->items[i] = r->items[--r->count];
    r->held -= item->holds > 0;
    (void)r->gpu->stream_sync(r->queue); /* its bytes may be on their way */
    if (item->at != NULL) {
        (void)hth_pool_give(r->pool, item->at);
        r->used -= item->bytes;
    }
    r->stats.unpinned -= item->host != NULL && !item->pinned;
    unlock(r);
    if (item->pinned && item->host != NULL)
        (void)r->gpu->host_free(item->host);
    else
        free(item->host);
    r->gpu->event_free(item->arrived);
    memset(item, 0, sizeof(*item));
}
