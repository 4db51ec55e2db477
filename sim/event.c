/* SPDX-License-Identifier: Apache-2.0 */
/* event.c: a 4-ary heap whose slots carry their keys: comparing touches no event, and the four
 * children of a slot lie in two cache lines. Most of the simulator's time is spent here. */
#include "sim/internal.h"

static bool before(const struct sim_heap_slot *a, const struct sim_heap_slot *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->key < b->key;
}

static void place(struct sim_heap *heap, size_t pos, struct sim_heap_slot slot)
{
    heap->slots[pos] = slot;
    slot.event->index = (uint32_t)pos + 1;
}

static void sift_up(struct sim_heap *heap, size_t pos, struct sim_heap_slot slot)
{
    while (pos > 0) {
        size_t parent = (pos - 1) / 4;
        if (!before(&slot, &heap->slots[parent]))
            break;
        place(heap, pos, heap->slots[parent]);
        pos = parent;
    }
    place(heap, pos, slot);
}

static void sift_down(struct sim_heap *heap, size_t pos, struct sim_heap_slot slot)
{
    for (;;) {
        size_t first = 4 * pos + 1;
        if (first >= heap->count)
            break;
        size_t end = HTH_MIN(first + 4, heap->count);
        size_t least = first;
        for (size_t i = first + 1; i < end; i++) {
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

void sim_heap_set(struct sim_heap *heap, struct sim_event *event, int64_t at_us, uint64_t key)
{
    struct sim_heap_slot slot = {.at_us = at_us, .key = key, .event = event};
    if (event->index == 0) {
        if (heap->count == heap->capacity) {
            heap->capacity = heap->capacity > 0 ? 2 * heap->capacity : 256;
            heap->slots = hth_realloc(heap->slots, heap->capacity, sizeof(*heap->slots));
        }
        HTH_ASSERT(heap->count < UINT32_MAX - 1);
        sift_up(heap, heap->count++, slot);
        return;
    }
    size_t pos = event->index - 1;
    if (before(&slot, &heap->slots[pos]))
        sift_up(heap, pos, slot);
    else
        sift_down(heap, pos, slot);
}

void sim_heap_remove(struct sim_heap *heap, struct sim_event *event)
{
    if (event->index == 0)
        return;
    size_t pos = event->index - 1;
    event->index = 0;
    struct sim_heap_slot last = heap->slots[--heap->count];
    if (last.event == event)
        return;
    if (pos > 0 && before(&last, &heap->slots[(pos - 1) / 4]))
        sift_up(heap, pos, last);
    else
        sift_down(heap, pos, last);
}

void sim_heap_clear(struct sim_heap *heap)
{
    for (size_t i = 0; i < heap->count; i++)
        heap->slots[i].event->index = 0;
    hth_free(heap->slots);
    *heap = (struct sim_heap){.slots = NULL};
}
