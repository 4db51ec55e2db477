/* SPDX-License-Identifier: Apache-2.0 */
/* resident.c: brings and evicts items; see resident.h. */
#include "kernels/cuda/resident.h"

#include <stdlib.h>
#include <string.h>

#define AGE_EVERY 32u /* uses per item between two halvings of the counts */
#define AGE_LEAST 256u
#define AHEAD_FOR 64u /* uses and arrivals for which a prefetched item is protected */

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

/* ---- loose blocks -------------------------------------------------------------------------- */

/* Returns loose blocks to the pool after their copies. It releases the lock meanwhile. */
static void give_loose(struct hth_resident *r)
{
    struct hth_loose list[HTH_LOOSE_MAX];
    uint32_t count = r->loose_count;
    memcpy(list, r->loose, count * sizeof(list[0]));
    r->loose_count = 0;
    r->giving++;
    unlock(r);
    (void)r->gpu->stream_sync(r->queue);
    for (uint32_t i = 0; i < count; i++)
        (void)hth_pool_give(r->pool, list[i].at);
    lock(r);
    r->giving--;
}

/* Adds a loose block; the caller has checked that the list has room. */
static void add_loose(struct hth_resident *r, uint8_t *at, size_t bytes)
{
    HTH_ASSERT(r->loose_count < HTH_LOOSE_MAX);
    r->loose[r->loose_count++] = (struct hth_loose){at, bytes};
}

static uint8_t *take_loose(struct hth_resident *r, size_t bytes)
{
    for (uint32_t i = r->loose_count; i > 0; i--) {
        struct hth_loose block = r->loose[i - 1];
        if (block.bytes == bytes) {
            r->loose[i - 1] = r->loose[--r->loose_count];
            return block.at;
        }
    }
    return NULL;
}

void hth_resident_clear(struct hth_resident *r)
{
    HTH_ASSERT(r->count == 0);
    if (r->loose_count > 0) {
        lock(r);
        give_loose(r);
        unlock(r);
    }
    if (r->queue != NULL)
        r->gpu->stream_free(r->queue);
    r->queue = NULL;
    free(r->items);
    r->items = NULL;
    r->cap = 0;
}

/* ---- eviction ------------------------------------------------------------------------------ */

/* True if the item can be evicted without a copy. */
static bool is_free(const struct hth_resident *r, const struct hth_item *item)
{
    return (item->kept && !item->dirty) || !r->matters(item);
}

/* A higher number is evicted first: items without a copy; others; prefetched ones (unless their
 * request was refused meanwhile: requests with bad numbers must not fill the card). */
static int readiness(const struct hth_resident *r, const struct hth_item *item)
{
    if (item->at == NULL || item->holds > 0 || item->asked)
        return 0;
    if (item->ahead && r->clock - item->came < AHEAD_FOR)
        return 1;
    return !r->matters(item) ? 3 : 2;
}

/* The next item to evict; NULL when all are held. */
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

/* Finds host memory for the item, pinned if possible. It releases the lock meanwhile; `asked` keeps
 * the item in place. False: no memory. */
static bool find_host(struct hth_resident *r, struct hth_item *item)
{
    void *p = NULL;
    item->asked++;
    unlock(r);
    bool pinned = r->gpu->host_alloc(&p, item->travel) == 0;
    if (!pinned)
        p = malloc(item->travel);
    lock(r);
    item->asked--;
    item->host = p;
    item->pinned = pinned;
    r->stats.unpinned += !pinned && p != NULL;
    return p != NULL;
}

/* Starts the item's copy out and makes its block loose. False: the driver refused. */
static bool evict(struct hth_resident *r, struct hth_item *item)
{
    if (!is_free(r, item)) {
        if (r->gpu->copy_out(item->host, item->at, item->travel, r->queue) != 0)
            return false;
        r->stats.bytes_out += item->travel;
        item->kept = true;
        item->dirty = false;
    }
    item->kept = item->kept && r->matters(item);
    add_loose(r, item->at, item->bytes);
    r->used -= item->bytes;
    r->stats.evictions++;
    item->at = NULL;
    item->arriving = item->ahead = false;
    r->moved(item);
    return true;
}

/* Evicts an item; skips items for which the host has no memory. `patient`: the lock may be released
 * for as long as the copy stream works. */
static bool evict_one(struct hth_resident *r, bool patient)
{
    struct hth_item *item, *stuck[8];
    uint32_t count = 0;
    bool done = false;
    while (!done && count < HTH_ARRAY_LEN(stuck) && (item = victim(r)) != NULL) {
        if (r->loose_count == HTH_LOOSE_MAX) {
            if (!patient)
                break;
            give_loose(r);
            continue; /* the lock was released: choose again */
        }
        bool homeless = item->host == NULL && !is_free(r, item);
        if (homeless && find_host(r, item))
            continue;
        done = !homeless && evict(r, item);
        if (!done) {
            item->asked++; /* skip it in this search */
            stuck[count++] = item;
        }
    }
    while (count > 0)
        stuck[--count]->asked--;
    return done;
}

/* ---- bringing ------------------------------------------------------------------------------ */

/* Call it without the lock. */
static void wait_for_copies(struct hth_resident *r)
{
    unlock(r);
    (void)r->gpu->stream_sync(r->queue);
    lock(r);
}

static uint8_t *find_block(struct hth_resident *r, size_t bytes, bool patient)
{
    for (;;) {
        bool over = r->used + bytes > r->budget;
        uint8_t *at = over ? NULL : take_loose(r, bytes);
        if (at == NULL && !over)
            at = hth_pool_take(r->pool, bytes);
        if (at != NULL)
            return at;
        if (!over && r->loose_count > 0 && patient)
            give_loose(r); /* blocks of other sizes: the driver can reuse their memory */
        else if (evict_one(r, patient))
            continue;
        else if (r->giving > 0 && patient)
            wait_for_copies(r);
        else
            return NULL;
    }
}

/* Makes a block loose that no item needs. */
static void give_up(struct hth_resident *r, uint8_t *at, size_t bytes)
{
    if (r->loose_count == HTH_LOOSE_MAX)
        give_loose(r);
    add_loose(r, at, bytes);
}

/* Brings the item: it is on the card, or its copy runs. */
static enum hth_err bring(struct hth_resident *r, struct hth_item *item, bool patient)
{
    const struct hth_gpu *gpu = r->gpu;
    uint8_t *at = find_block(r, item->bytes, patient);
    int err;
    if (at == NULL)
        return item->at != NULL ? HTH_OK : HTH_E_NO_MEMORY;
    if (item->at != NULL) { /* another thread brought it while the lock was released */
        give_up(r, at, item->bytes);
        return HTH_OK;
    }
    if (item->kept) {
        err = gpu->copy_in(at, item->host, item->travel, r->queue);
        r->stats.bytes_in += item->travel;
    } else {
        err = gpu->zero(at, item->bytes, r->queue);
    }
    if (err == 0)
        err = gpu->event_record(item->arrived, r->queue);
    if (err != 0) {
        give_up(r, at, item->bytes);
        return item->at != NULL ? HTH_OK : HTH_E_DEVICE;
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

static enum hth_err bring_all(struct hth_resident *r, struct hth_item *const *items, uint32_t count,
                              bool patient)
{
    enum hth_err err = HTH_OK;
    for (uint32_t i = 0; i < count; i++)
        items[i]->asked++;
    for (uint32_t i = 0; i < count && err == HTH_OK; i++) {
        if (items[i]->at == NULL)
            err = bring(r, items[i], patient);
        else
            r->stats.hits++;
    }
    for (uint32_t i = 0; i < count; i++)
        items[i]->asked--;
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
    enum hth_err err = bring_all(r, items, count, true);
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

/* The holder's stream has waited for the copy in, and the holder for its stream. */
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
        if (item->at == NULL && bring_all(r, &item, 1, false) == HTH_OK)
            item->ahead = true;
    }
    unlock(r);
}

bool hth_resident_make_room(struct hth_resident *r, size_t bytes)
{
    size_t left = 0;
    lock(r);
    bool any = r->loose_count > 0 || r->giving > 0;
    for (uint32_t i = 0; i < r->loose_count; i++)
        left += r->loose[i].bytes;
    while (left < bytes && evict_one(r, true)) {
        left += r->loose[r->loose_count - 1].bytes;
        any = true;
    }
    if (r->loose_count > 0)
        give_loose(r);
    else if (r->giving > 0)
        wait_for_copies(r);
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

static void leave_list(struct hth_resident *r, const struct hth_item *item)
{
    uint32_t i = 0;
    while (i < r->count && r->items[i] != item)
        i++;
    HTH_ASSERT(i < r->count);
    r->items[i] = r->items[--r->count];
}

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
        err = bring_all(r, &item, 1, true);
        if (err == HTH_OK) {
            r->held += item->holds++ == 0;
            item->dirty = true; /* the caller writes it next */
        } else {
            leave_list(r, item);
        }
    }
    unlock(r);
    if (err == HTH_OK && r->gpu->event_sync(item->arrived) == 0) {
        item->arriving = false; /* it is held, so no other thread uses the event */
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
    lock(r);
    while (item->asked > 0) /* another thread finds host memory to evict it */
        wait_for_copies(r);
    leave_list(r, item);
    r->held -= item->holds > 0;
    give_loose(r); /* waits: its copy may run; no other thread can reach it */
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
