/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.h: the steady case: a block that is computed again and again from the same places, recorded
 * once as a graph of the driver's and then launched as a whole.
 *
 * A call is known by its key: what is computed, its shape and number of rows, and every address
 * that its kernels see. Weights that were moved (resident.h), scratch that grew, another number of
 * rows: another key, and a graph that nobody finds again leaves the table, which has a fixed number
 * of places, as the one used longest ago. The first call with a key is made as usual, so that all
 * that happens once (plans, images of weights, memory) happens then; the second is recorded.
 *
 * Who hosts experts pads batches to few numbers of rows (hth_backend_padded), so that keys come
 * again.
 *
 * A key that can't be recorded, or whose graph did not start, is kept as such and nobody tries
 * again: its calls are made as usual.
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
    uint64_t room; /* of the context, which operations use by themselves: its number */
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

/* The entry with that key, or a new one (`*known` false) in the place of the one used longest ago,
 * whose graph is given to `drop`. */
struct hth_graph *hth_graphs_at(struct hth_graphs *graphs, const struct hth_call_key *key,
                                uint64_t room, bool *known, void (*drop)(void *arg, void *graph),
                                void *arg);
void hth_graphs_clear(struct hth_graphs *graphs, void (*drop)(void *arg, void *graph), void *arg);

#endif
