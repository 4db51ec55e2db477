/* SPDX-License-Identifier: Apache-2.0 */
/* heap.c: a binary heap of nodes that know their place, so that removal is O(log n). */
#include "core/heap.h"

#include "core/mem.h"

void hth_heap_init(struct hth_heap *heap,
                   bool (*less)(const struct hth_heap_node *a, const struct hth_heap_node *b))
{
    *heap = (struct hth_heap){.less = less};
}

void hth_heap_clear(struct hth_heap *heap)
{
    for (size_t i = 0; i < heap->count; i++)
        heap->slots[i].node->index = 0;
    hth_free(heap->slots);
    heap->slots = NULL;
    heap->count = heap->capacity = 0;
}

static bool before(const struct hth_heap *heap, struct hth_heap_slot a, struct hth_heap_slot b)
{
    return a.key != b.key ? a.key < b.key : heap->less(a.node, b.node);
}

static void place(struct hth_heap *heap, size_t pos, struct hth_heap_slot slot)
{
    heap->slots[pos] = slot;
    slot.node->index = pos + 1;
}

static void sift_up(struct hth_heap *heap, size_t pos, struct hth_heap_slot slot)
{
    while (pos > 0) {
        size_t parent = (pos - 1) / 2;
        if (!before(heap, slot, heap->slots[parent]))
            break;
        place(heap, pos, heap->slots[parent]);
        pos = parent;
    }
    place(heap, pos, slot);
}

static void sift_down(struct hth_heap *heap, size_t pos, struct hth_heap_slot slot)
{
    for (;;) {
        size_t child = 2 * pos + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && before(heap, heap->slots[child + 1], heap->slots[child]))
            child++;
        if (!before(heap, heap->slots[child], slot))
            break;
        place(heap, pos, heap->slots[child]);
        pos = child;
    }
    place(heap, pos, slot);
}

void hth_heap_push(struct hth_heap *heap, struct hth_heap_node *node)
{
    HTH_ASSERT(node->index == 0);
    if (heap->count == heap->capacity) {
        heap->capacity = heap->capacity > 0 ? 2 * heap->capacity : 16;
        heap->slots = hth_realloc(heap->slots, heap->capacity, sizeof(*heap->slots));
    }
    heap->count++;
    sift_up(heap, heap->count - 1, (struct hth_heap_slot){node->key, node});
}

struct hth_heap_node *hth_heap_top(const struct hth_heap *heap)
{
    return heap->count > 0 ? heap->slots[0].node : NULL;
}

struct hth_heap_node *hth_heap_pop(struct hth_heap *heap)
{
    struct hth_heap_node *top = hth_heap_top(heap);
    if (top != NULL)
        hth_heap_remove(heap, top);
    return top;
}

void hth_heap_remove(struct hth_heap *heap, struct hth_heap_node *node)
{
    if (node->index == 0)
        return;
    size_t pos = node->index - 1;
    HTH_ASSERT(pos < heap->count && heap->slots[pos].node == node);
    struct hth_heap_slot last = heap->slots[--heap->count];
    node->index = 0;
    if (last.node == node)
        return;
    if (pos > 0 && before(heap, last, heap->slots[(pos - 1) / 2]))
        sift_up(heap, pos, last);
    else
        sift_down(heap, pos, last);
}
