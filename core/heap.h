/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap.h: an intrusive binary min-heap. The element embeds struct hth_heap_node; `less` must be a
 * strict total order, so that equal keys never make the order depend on history.
 */
#ifndef HTH_CORE_HEAP_H
#define HTH_CORE_HEAP_H

#include "core/base.h"

struct hth_heap_node {
    size_t index; /* position + 1; 0 = not in a heap */
};

struct hth_heap {
    struct hth_heap_node **nodes;
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
struct hth_heap_node *hth_heap_pop(struct hth_heap *heap);
/* Does nothing when the node is not in the heap. */
void hth_heap_remove(struct hth_heap *heap, struct hth_heap_node *node);
static inline bool hth_heap_contains(const struct hth_heap_node *node)
{
    return node->index != 0;
}

#endif
