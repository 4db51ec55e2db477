/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event.c: the queue of future events, in the order of (time, key).
 *
 * Time is cut into stretches of 128 us, and one stretch is open. A small heap holds the events up
 * to the end of the open stretch. All later ones lie unsorted in buckets. An event's level is the
 * highest digit (of ten bits) in which the number of its stretch differs from that of the open one,
 * and its bucket is that digit.
 *
 *     level 1  [ . . # . # # . # ...]  1,024 buckets of 131 ms
 *     level 0  [ . # . . # # . # ...]  1,024 buckets of 128 us, of the 131 ms that are open
 *     soon     [ heap ]                up to the end of the open stretch
 *
 * When the heap is empty, the queue opens the next bucket: a bucket of level 0 becomes the heap, a
 * bucket of a higher level is spread over the levels below it. So an event moves at most once a
 * level, scheduling or removing it costs the same however many others wait, and only the few events
 * of one stretch are compared. A single heap of all 14,000 events of a swarm of 1,000 touches seven
 * others at each step. (The structure is a radix heap, Ahuja et al. 1990, and a hierarchical timing
 * wheel, Varghese and Lauck 1987.)
 */
#include "sim/sim_int.h"

#define STRETCH_BITS 7
#define DIGIT_BITS   10
#define BUCKETS      (1u << DIGIT_BITS)
#define WORDS        (BUCKETS / 64)
#define NO_BUCKET    UINT32_MAX

_Static_assert(STRETCH_BITS + DIGIT_BITS * SIM_QUEUE_LEVELS >= 63, "every time has a place");
_Static_assert(SIM_QUEUE_LEVELS *BUCKETS < UINT16_MAX, "every bucket has a number");

struct sim_level {
    uint64_t used[WORDS]; /* one bit for each bucket that is not empty */
    struct sim_bucket bucket[BUCKETS];
};

/* ---- the heap of the next events ------------------------------------------------------------- */

static bool before(const struct sim_slot *a, const struct sim_slot *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->key < b->key;
}

static void place(struct sim_bucket *heap, uint32_t pos, struct sim_slot slot)
{
    heap->slots[pos] = slot;
    slot.event->index = pos + 1;
}

static void sift_up(struct sim_bucket *heap, uint32_t pos, struct sim_slot slot)
{
    while (pos > 0) {
        uint32_t parent = (pos - 1) / 4;
        if (!before(&slot, &heap->slots[parent]))
            break;
        place(heap, pos, heap->slots[parent]);
        pos = parent;
    }
    place(heap, pos, slot);
}

static void sift_down(struct sim_bucket *heap, uint32_t pos, struct sim_slot slot)
{
    for (;;) {
        uint32_t first = 4 * pos + 1;
        if (first >= heap->count)
            break;
        uint32_t end = HTH_MIN(first + 4, heap->count);
        uint32_t least = first;
        for (uint32_t i = first + 1; i < end; i++) {
            if (before(&heap->slots[i], &heap->slots[least]))
                least = i;
        }
        if (!before(&heap->slots[least], &slot))
            break;
        place(heap, pos, heap->slots[least]);
        pos = least;
    }
    place(heap, pos, slot);
}

/* ---- buckets ------------------------------------------------------------------------------- */

static void make_room(struct sim_bucket *b)
{
    if (b->count < b->capacity)
        return;
    HTH_ASSERT(b->capacity < UINT32_MAX / 2);
    b->capacity = b->capacity > 0 ? 2 * b->capacity : 4;
    b->slots = hth_realloc(b->slots, b->capacity, sizeof(*b->slots));
}

static uint32_t digit(uint64_t stretch, uint32_t level)
{
    return (uint32_t)(stretch >> (DIGIT_BITS * level)) & (BUCKETS - 1);
}

static void insert(struct sim_queue *q, struct sim_slot slot)
{
    uint64_t stretch = (uint64_t)slot.at_us >> STRETCH_BITS;
    if (stretch <= q->open) {
        slot.event->place = 0;
        make_room(&q->soon);
        sift_up(&q->soon, q->soon.count++, slot);
        return;
    }
    uint32_t level = (uint32_t)(63 - __builtin_clzll(stretch ^ q->open)) / DIGIT_BITS;
    uint32_t i = digit(stretch, level);
    if (q->level[level] == NULL)
        q->level[level] = hth_new(struct sim_level);
    struct sim_bucket *b = &q->level[level]->bucket[i];
    make_room(b);
    slot.event->place = (uint16_t)(1 + level * BUCKETS + i);
    place(b, b->count++, slot);
    q->level[level]->used[i / 64] |= UINT64_C(1) << (i % 64);
}

/* Find the first non-empty bucket from i on. */
static uint32_t next_used(const struct sim_level *l, uint32_t i)
{
    if (l == NULL || i >= BUCKETS)
        return NO_BUCKET;
    uint64_t bits = l->used[i / 64] >> (i % 64) << (i % 64);
    for (uint32_t word = i / 64;;) {
        if (bits != 0)
            return word * 64 + (uint32_t)__builtin_ctzll(bits);
        if (++word == WORDS)
            return NO_BUCKET;
        bits = l->used[word];
    }
}

/* Turn the bucket into the heap, which is empty. */
static void become_soon(struct sim_queue *q, struct sim_bucket b)
{
    hth_free(q->soon.slots);
    q->soon = b;
    for (uint32_t k = 0; k < b.count; k++) {
        struct sim_slot slot = b.slots[k];
        slot.event->place = 0;
        sift_up(&q->soon, k, slot);
    }
}

/* Open the next bucket. There must be one. */
static void open_next(struct sim_queue *q)
{
    uint32_t level = 0, i;
    while ((i = next_used(q->level[level], digit(q->open, level) + 1)) == NO_BUCKET) {
        level++;
        HTH_ASSERT(level < SIM_QUEUE_LEVELS);
    }
    struct sim_level *l = q->level[level];
    struct sim_bucket b = l->bucket[i];
    l->bucket[i] = (struct sim_bucket){.slots = NULL};
    l->used[i / 64] &= ~(UINT64_C(1) << (i % 64));
    uint32_t shift = DIGIT_BITS * level;
    q->open = (q->open >> shift & ~(uint64_t)(BUCKETS - 1)) + i;
    q->open <<= shift;
    if (level == 0) {
        become_soon(q, b);
        return;
    }
    for (uint32_t k = 0; k < b.count; k++)
        insert(q, b.slots[k]);
    hth_free(b.slots);
}

/* List the next buckets of level 0, so that a caller can prefetch their events. */
static void scan_ahead(struct sim_queue *q)
{
    const struct sim_level *l = q->level[0];
    uint32_t i = digit(q->open, 0) + 1, n = 0;
    q->opened = true;
    for (uint32_t word = i / 64; l != NULL && word < WORDS && n < SIM_QUEUE_AHEAD; word++) {
        uint64_t bits = l->used[word] >> (i % 64) << (i % 64);
        for (; bits != 0 && n < SIM_QUEUE_AHEAD; bits &= bits - 1)
            q->ahead[n++] = &l->bucket[64 * word + (uint32_t)__builtin_ctzll(bits)];
        i = 0;
    }
    while (n < SIM_QUEUE_AHEAD)
        q->ahead[n++] = NULL;
}

/* ---- the queue ----------------------------------------------------------------------------- */

void hth_sim_queue_set(struct sim_queue *q, struct sim_event *event, int64_t at_us, uint64_t key)
{
    HTH_ASSERT(at_us >= 0);
    hth_sim_queue_remove(q, event);
    q->count++;
    insert(q, (struct sim_slot){.at_us = at_us, .key = key, .event = event});
}

void hth_sim_queue_remove(struct sim_queue *q, struct sim_event *event)
{
    if (event->index == 0)
        return;
    uint32_t pos = event->index - 1;
    event->index = 0;
    q->count--;
    if (event->place == 0) {
        struct sim_slot last = q->soon.slots[--q->soon.count];
        if (last.event == event)
            return;
        if (pos > 0 && before(&last, &q->soon.slots[(pos - 1) / 4]))
            sift_up(&q->soon, pos, last);
        else
            sift_down(&q->soon, pos, last);
        return;
    }
    uint32_t level = (event->place - 1u) / BUCKETS, i = (event->place - 1u) % BUCKETS;
    struct sim_bucket *b = &q->level[level]->bucket[i];
    struct sim_slot last = b->slots[--b->count];
    if (last.event != event)
        place(b, pos, last);
    if (b->count == 0)
        q->level[level]->used[i / 64] &= ~(UINT64_C(1) << (i % 64));
}

const struct sim_slot *hth_sim_queue_first(struct sim_queue *q)
{
    if (q->count == 0)
        return NULL;
    if (q->soon.count > 0)
        return q->soon.slots;
    while (q->soon.count == 0)
        open_next(q);
    scan_ahead(q);
    return q->soon.slots;
}

static void forget(struct sim_bucket *b)
{
    for (uint32_t k = 0; k < b->count; k++)
        b->slots[k].event->index = 0;
    hth_free(b->slots);
}

void hth_sim_queue_clear(struct sim_queue *q)
{
    forget(&q->soon);
    for (uint32_t level = 0; level < SIM_QUEUE_LEVELS; level++) {
        for (uint32_t i = 0; q->level[level] != NULL && i < BUCKETS; i++)
            forget(&q->level[level]->bucket[i]);
        hth_free(q->level[level]);
    }
    *q = (struct sim_queue){.count = 0};
}
