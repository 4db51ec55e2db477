/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap.h: an intrusive binary min-heap. The element embeds struct hth_heap_node. The order is that
 * of the nodes' keys and then that of `less`, which must be a strict total order of equal keys, so
 * that equal keys never make the order depend on history. Keys are copied into the heap, where they
 * lie side by side: most comparisons touch no element. An element without a key leaves it 0.
 */
#ifndef HTH_CORE_HEAP_H
#define HTH_CORE_HEAP_H

#include "core/base.h"

struct hth_heap_node {
    size_t index; /* position + 1; 0 = not in a heap */
    int64_t key;  /* constant while in a heap */
};

struct hth_heap_slot {
    int64_t key;
    struct hth_heap_node *node;
};

struct hth_heap {
    struct hth_heap_slot *slots;
    size_t count;
    size_t capacity;
    bool (*less)(const struct hth_heap_node *a, const struct hth_heap_node *b);
};

void hth_heap_init(struct hth_heap *heap,
                   bool (*less)(const struct hth_heap_node *a, const struct hth_heap_node *b));
void hth_heap_clear(struct hth_heap *heap);
void hth_heap_push(struct hth_heap *heap, struct hth_heap_node *node);
/* NULL when empty. */
struct hth_heap_node *hth_heap_top(const struct hth_heap *heap);
/* The top's key, without reading the node itself; INT64_MAX when empty. */
static inline int64_t hth_heap_top_key(const struct hth_heap *heap)
{
    return heap->count > 0 ? heap->slots[0].key : INT64_MAX;
}
struct hth_heap_node *hth_heap_pop(struct hth_heap *heap);
/* Does nothing when the node is not in the heap. */
void hth_heap_remove(struct hth_heap *heap, struct hth_heap_node *node);
static inline bool hth_heap_contains(const struct hth_heap_node *node)
{
    return node->index != 0;
}

#endif
