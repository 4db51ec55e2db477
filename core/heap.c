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
        heap->nodes[i]->index = 0;
    hth_free(heap->nodes);
    heap->nodes = NULL;
    heap->count = heap->capacity = 0;
}

static void place(struct hth_heap *heap, size_t pos, struct hth_heap_node *node)
{
    heap->nodes[pos] = node;
    node->index = pos + 1;
}

static void sift_up(struct hth_heap *heap, size_t pos, struct hth_heap_node *node)
{
    while (pos > 0) {
        size_t parent = (pos - 1) / 2;
        if (!heap->less(node, heap->nodes[parent]))
            break;
        place(heap, pos, heap->nodes[parent]);
        pos = parent;
    }
    place(heap, pos, node);
}

static void sift_down(struct hth_heap *heap, size_t pos, struct hth_heap_node *node)
{
    for (;;) {
        size_t child = 2 * pos + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && heap->less(heap->nodes[child + 1], heap->nodes[child]))
            child++;
        if (!heap->less(heap->nodes[child], node))
            break;
        place(heap, pos, heap->nodes[child]);
        pos = child;
    }
    place(heap, pos, node);
}

void hth_heap_push(struct hth_heap *heap, struct hth_heap_node *node)
{
    HTH_ASSERT(node->index == 0);
    if (heap->count == heap->capacity) {
        heap->capacity = heap->capacity > 0 ? 2 * heap->capacity : 16;
        heap->nodes = hth_realloc(heap->nodes, heap->capacity, sizeof(*heap->nodes));
    }
    heap->count++;
    sift_up(heap, heap->count - 1, node);
}

struct hth_heap_node *hth_heap_top(const struct hth_heap *heap)
{
    return heap->count > 0 ? heap->nodes[0] : NULL;
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
    HTH_ASSERT(pos < heap->count && heap->nodes[pos] == node);
    struct hth_heap_node *last = heap->nodes[--heap->count];
    node->index = 0;
    if (last == node)
        return;
    if (pos > 0 && heap->less(last, heap->nodes[(pos - 1) / 2]))
        sift_up(heap, pos, last);
    else
        sift_down(heap, pos, last);
}
