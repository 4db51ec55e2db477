/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.h: records repeated calls of a block as graphs of the driver, which one call then launches
 * as a whole.
 *
 * The key of a call is the kind of block, its shape and number of rows, and every address that its
 * kernels use. Moved weights (resident.h), grown scratch or another number of rows give another
 * key. The table has a fixed number of places; a new key replaces the least recently used one. The
 * first call with a key runs as usual, with all that happens once (plans, images of weights,
 * memory); the second is recorded.
 *
 * A server of experts pads batches to few numbers of rows (hth_backend_padded), so that keys
 * repeat.
 *
 * A key that can't be recorded, or whose graph did not start, is marked REFUSED: its calls run as
 * usual and are never recorded again.
 *
 * One thread: each context has its own table. Host code only, tested without a card.
 */
#ifndef HTH_KERNELS_CUDA_GRAPH_H
#define HTH_KERNELS_CUDA_GRAPH_H

#include "kernels/backend_int.h"
#include "kernels/cuda/gpu.h"

#define HTH_GRAPHS_MAX 256

enum hth_graph_state { HTH_GRAPH_SEEN, HTH_GRAPH_READY, HTH_GRAPH_REFUSED };

struct hth_graph {
    struct hth_call_key key;
    uint64_t room; /* number of the context's room (hth_cu_room), which operations use */
    enum hth_graph_state state;
    void *graph; /* READY */
    uint64_t used;
};

struct hth_graphs {
    struct hth_graph entry[HTH_GRAPHS_MAX];
    uint32_t count;
    uint64_t clock;
    uint64_t recorded, launched; /* for tests */
};

/* The entry with that key. Without one (`*known` false), a new entry replaces the least recently
 * used one, whose graph is passed to `drop`. */
struct hth_graph *hth_graphs_at(struct hth_graphs *graphs, const struct hth_call_key *key,
                                uint64_t room, bool *known, void (*drop)(void *arg, void *graph),
                                void *arg);
void hth_graphs_clear(struct hth_graphs *graphs, void (*drop)(void *arg, void *graph), void *arg);

#endif
