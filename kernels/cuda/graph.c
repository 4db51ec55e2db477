/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c: the table of graphs, and the recorded calls; see graph.h. */
#include "kernels/cuda/graph.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.h"

/* -- the table ----------------------------------------------------------------------------- */

static bool is_same(const struct hth_graph *g, const struct hth_call_key *key, uint64_t room)
{
    return g->room == room && memcmp(&g->key, key, sizeof(*key)) == 0;
}

struct hth_graph *hth_graphs_at(struct hth_graphs *graphs, const struct hth_call_key *key,
                                uint64_t room, bool *known, void (*drop)(void *arg, void *graph),
                                void *arg)
{
    struct hth_graph *oldest = &graphs->entry[0];
    *known = true;
    for (uint32_t i = 0; i < graphs->count; i++) {
        struct hth_graph *g = &graphs->entry[i];
        oldest = g->used < oldest->used ? g : oldest;
        if (is_same(g, key, room)) {
            g->used = ++graphs->clock;
            return g;
        }
    }
    *known = false;
    if (graphs->count < HTH_GRAPHS_MAX)
        oldest = &graphs->entry[graphs->count++];
    else if (oldest->graph != NULL)
        drop(arg, oldest->graph);
    *oldest = (struct hth_graph){.key = *key, .room = room, .used = ++graphs->clock};
    return oldest;
}

void hth_graphs_clear(struct hth_graphs *graphs, void (*drop)(void *arg, void *graph), void *arg)
{
    for (uint32_t i = 0; i < graphs->count; i++) {
        if (graphs->entry[i].graph != NULL)
            drop(arg, graphs->entry[i].graph);
    }
    graphs->count = 0;
}

/* -- calls --------------------------------------------------------------------------------- */

static void drop_graph(void *arg, void *graph)
{
    struct hth_cu_stream *s = arg;
    (void)s->dev->gpu->stream_sync(s->queue); /* the graph may be running */
    s->dev->gpu->graph_free(graph);
}

/* True if the call needs launches only: else the next call would differ. */
static bool is_settled(const struct hth_params *p)
{
    for (uint32_t i = 0; p->be->compute == HTH_MATMUL_BF16 && i < p->count; i++) {
        const struct hth_image *image = &p->weights[i]->image[0];
        if (p->weights[i]->rows > 1 &&
            atomic_load_explicit(&image->version, memory_order_acquire) != p->version)
            return false;
    }
    return true;
}

/* Records the call and launches it. False: the failure is dropped, and the caller runs the call as
 * usual, with its own errors. */
static bool record(struct hth_cu_stream *s, struct hth_graph *g, struct hth_exec *ex,
                   hth_exec_fn *fn, void *arg)
{
    const struct hth_gpu *gpu = s->dev->gpu;
    enum hth_err before = s->err, err = HTH_OK;
    void *graph = NULL;
    bool good = gpu->capture_begin(s->queue) == 0;
    if (good) {
        err = fn(ex, arg, 0);
        good = gpu->capture_end(s->queue, &graph) == 0 && err == HTH_OK && s->err == before;
    }
    if (good)
        good = gpu->graph_launch(graph, s->queue) == 0;
    if (good) {
        g->graph = graph;
        g->state = HTH_GRAPH_READY;
        s->graphs->recorded++;
        return true;
    }
    if (graph != NULL)
        gpu->graph_free(graph);
    g->state = HTH_GRAPH_REFUSED;
    s->err = before;
    return false;
}

/* Launches a recording. False: it did not start. The recording is dropped for good, and the caller
 * runs the call as usual. */
static bool launch(struct hth_cu_stream *s, struct hth_graph *g)
{
    if (s->dev->gpu->graph_launch(g->graph, s->queue) == 0) {
        s->graphs->launched++;
        return true;
    }
    drop_graph(s, g->graph);
    g->graph = NULL;
    g->state = HTH_GRAPH_REFUSED;
    return false;
}

enum hth_err hth_cu_replay(struct hth_exec *ex, const struct hth_params *p,
                           const struct hth_call_key *key, hth_exec_fn *fn, void *arg)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    bool known;
    if (s->graphs == NULL)
        s->graphs = calloc(1, sizeof(*s->graphs));
    if (s->graphs == NULL || s->dev->gpu->capture_begin == NULL || !is_settled(p))
        return fn(ex, arg, 0);
    struct hth_graph *g = hth_graphs_at(s->graphs, key, s->rooms, &known, drop_graph, s);
    if (known && g->state == HTH_GRAPH_READY)
        return launch(s, g) ? HTH_OK : fn(ex, arg, 0);
    /* While another context records or waits for the whole card, this call runs as usual. */
    if (!known || g->state != HTH_GRAPH_SEEN ||
        atomic_flag_test_and_set_explicit(&s->dev->whole, memory_order_acquire))
        return fn(ex, arg, 0);
    bool recorded = record(s, g, ex, fn, arg);
    atomic_flag_clear_explicit(&s->dev->whole, memory_order_release);
    return recorded ? HTH_OK : fn(ex, arg, 0);
}

void hth_cu_graphs_free(struct hth_cu_stream *s)
{
    if (s->graphs != NULL)
        hth_graphs_clear(s->graphs, drop_graph, s);
    free(s->graphs);
    s->graphs = NULL;
}
