/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h: one card as a back end: the structs of the host's side.
 *
 * A device has a pool of memory and up to three tables (fp32, TF32 and bf16 products) over it. Each
 * execution context has a stream; work of a context runs in order, that of several contexts side
 * by side, copies of one beside kernels of another. Copies pass through a ring of four pinned
 * buffers of the stream, so that one is filled while another is copied. An upload has read the
 * caller's memory when the call returns; everything else is complete at the sync, which also
 * returns the errors.
 *
 * Results for the host (losses, sums) and the fault word lie in a block of device memory that the
 * sync downloads.
 */
#ifndef HTH_KERNELS_CUDA_DEVICE_H
#define HTH_KERNELS_CUDA_DEVICE_H

#include "kernels/backend_int.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/pool.h"
#include "kernels/cuda/resident.h"

#define HTH_CU_RING    4
#define HTH_CU_PIECE   ((size_t)1 << 20)
#define HTH_CU_RESULTS 64
#define HTH_CU_RESULT  16 /* bytes of one */
#define HTH_CU_FAULT   ((size_t)HTH_CU_RESULTS * HTH_CU_RESULT)
#define HTH_CU_BLOCK   (HTH_CU_FAULT + HTH_CU_RESULT)
#define HTH_CU_TABLES  3
#define HTH_CU_HELD    64

struct hth_cu_device {
    const struct hth_gpu *gpu;
    int index;
    struct hth_gpu_info info;
    struct hth_pool pool;
    struct hth_resident resident; /* experts' weights and states */
    void *queue;                  /* for work outside any context */
    atomic_flag whole;            /* a context records a graph, or waits for the whole card */
    char names[HTH_CU_TABLES][24];
    struct hth_backend tables[HTH_CU_TABLES]; /* by enum hth_gpu_type */
};

/* A piece of a copy. */
struct hth_cu_slot {
    void *pinned, *event;
    void *dst; /* download: destination at the sync */
    size_t bytes;
    bool busy;
};

struct hth_cu_home;

/* Parts of a set that stay on the card until the sync. */
struct hth_cu_held {
    struct hth_cu_home *home;
    uint32_t parts, wrote;
};

struct hth_cu_stream {
    struct hth_cu_device *dev;
    void *queue, *blas;
    struct hth_cu_slot ring[HTH_CU_RING];
    uint32_t next;
    uint8_t *work; /* room of one operation */
    size_t work_bytes;
    uint64_t rooms;                  /* rooms allocated so far: the number of this one */
    uint8_t *results, *results_host; /* device, pinned */
    struct {
        struct hth_xent_result *xent; /* exactly one of the two is set */
        struct hth_sumsq_result *sumsq;
    } wanted[HTH_CU_RESULTS];
    uint32_t wanted_count;
    struct hth_graphs *graphs; /* graph.h; made with the first call */
    void *stamp[2];            /* timed events, made at the first use */
    struct hth_cu_held held[HTH_CU_HELD];
    uint32_t held_count;
    enum hth_err err; /* the first since the last sync */
};

/* Makes the device's tables; the pool may hold `limit` bytes (0: all that the card has). Errors:
 * E_NO_MEMORY, E_DEVICE; then `why` gets a line, and the caller does not close the device. */
enum hth_err hth_cu_device_open(struct hth_cu_device *dev, const struct hth_gpu *gpu, int index,
                                size_t limit, char *why, size_t why_size) HTH_MUST;
void hth_cu_device_close(struct hth_cu_device *dev);

/* -- stream.c ------------------------------------------------------------------------------ */

enum hth_err hth_cu_stream_open(struct hth_exec *ex) HTH_MUST;
void hth_cu_stream_close(struct hth_exec *ex);
enum hth_err hth_cu_stream_sync(struct hth_exec *ex) HTH_MUST;
enum hth_err hth_cu_upload(struct hth_exec *ex, void *device, const void *host,
                           size_t bytes) HTH_MUST;
enum hth_err hth_cu_download(struct hth_exec *ex, void *host, const void *device,
                             size_t bytes) HTH_MUST;
enum hth_err hth_cu_stamp(struct hth_exec *ex, bool last) HTH_MUST;
enum hth_err hth_cu_stamped_us(struct hth_exec *ex, double *us) HTH_MUST;
/* Returns the context's stream and makes its device the thread's current one. */
struct hth_cu_stream *hth_cu_enter(struct hth_exec *ex);
/* Keeps the first failure until the sync, which returns it. Always HTH_OK. */
enum hth_err hth_cu_check(struct hth_cu_stream *s, int gpu_error);
/* Waits for all launched work; keeps errors and held parts. */
void hth_cu_settle(struct hth_cu_stream *s);
/* Memory for one operation, valid until the next call. NULL when memory is gone. */
void *hth_cu_room(struct hth_cu_stream *s, size_t bytes);
/* Device memory for a result, which the sync copies to `result`. */
void *hth_cu_want_xent(struct hth_exec *ex, struct hth_xent_result *result);
void *hth_cu_want_sumsq(struct hth_exec *ex, struct hth_sumsq_result *result);

static inline int *hth_cu_fault(struct hth_cu_stream *s)
{
    return (int *)(void *)(s->results + HTH_CU_FAULT);
}

/* -- linear.c: products and optimiser steps ------------------------------------------------ */

enum hth_err hth_cu_linear_forward(struct hth_exec *ex, const struct hth_linear *lin,
                                   struct hth_view x, struct hth_view y);
enum hth_err hth_cu_linear_backward_data(struct hth_exec *ex, const struct hth_linear_back *lin,
                                         struct hth_view dy, struct hth_view dx);
enum hth_err hth_cu_linear_backward_weight(struct hth_exec *ex, struct hth_weight *w,
                                           struct hth_weight *bias, struct hth_view x,
                                           struct hth_view dy);
/* Operands are bf16 with bf16 products, else fp32; c is fp32. */
enum hth_err hth_cu_bare_product(struct hth_exec *ex, struct hth_view a, struct hth_view b,
                                 struct hth_view c);
/* The type of the context's products. */
enum hth_gpu_type hth_cu_type_of(const struct hth_exec *ex);
/* The operand of a product for a held weight: its values, or their image, rebuilt when stale. */
const void *hth_cu_weight_operand(struct hth_cu_stream *s, enum hth_gpu_type type,
                                  struct hth_weight *w);
enum hth_err hth_cu_step_all(struct hth_exec *ex, struct hth_params *p, const struct hth_step *base,
                             float weight_decay);
enum hth_err hth_cu_step_one(struct hth_exec *ex, struct hth_weight *w,
                             const struct hth_step *step);

/* -- home.c: the memory of parameter sets -------------------------------------------------- */

enum hth_err hth_cu_params_open(struct hth_params *p);
void hth_cu_params_opened(struct hth_params *p);
void hth_cu_params_close(struct hth_params *p);
enum hth_err hth_cu_params_hold(struct hth_exec *ex, struct hth_params *p, uint32_t reads,
                                uint32_t writes);
void hth_cu_params_ahead(struct hth_exec *ex, struct hth_params *p, uint32_t parts);
/* Like hold, but keeps all that the context holds already: E_NO_MEMORY where that leaves no room,
 * without a wait. */
enum hth_err hth_cu_params_try(struct hth_exec *ex, struct hth_params *p, uint32_t reads,
                               uint32_t writes);
/* Releases all held parts, after a wait for the stream. */
void hth_cu_release_all(struct hth_cu_stream *s);
bool hth_cu_home_matters(const struct hth_item *item);
void hth_cu_home_moved(struct hth_item *item);

/* -- graph.c ------------------------------------------------------------------------------- */

enum hth_err hth_cu_replay(struct hth_exec *ex, const struct hth_params *p,
                           const struct hth_call_key *key, hth_exec_fn *fn, void *arg);
void hth_cu_graphs_free(struct hth_cu_stream *s);

/* -- group.c ------------------------------------------------------------------------------- */

enum hth_err hth_cu_ffn_many(struct hth_exec *ex, const struct hth_ffn_member *members,
                             uint32_t count, bool is_backward, hth_exec_fn *alone, void *arg);

/* -- device.c ------------------------------------------------------------------------------ */

/* Takes memory from the pool; evicts weights when the card is full. */
void *hth_cu_take(struct hth_cu_device *dev, size_t bytes);
/* Waits for all streams of the card. The driver refuses that while a stream records, and it spoils
 * the recording, so the two exclude each other. Do not call it from recorded code. */
int hth_cu_quiet(struct hth_cu_device *dev);

/* Rounded up so that the next item starts on 256 bytes. */
static inline size_t hth_cu_cost(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static inline struct hth_cu_mat hth_cu_mat_of(struct hth_view v)
{
    return (struct hth_cu_mat){v.data, v.rows, v.cols, v.ld};
}

static inline struct hth_cu_device *hth_cu_device_of(const struct hth_backend *be)
{
    return (struct hth_cu_device *)(uintptr_t)be->impl;
}

#endif
