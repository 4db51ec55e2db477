/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c: a context's stream: copies through pinned pieces, results, and errors, which it keeps
 * for the sync.
 *
 *   upload    caller's memory --memcpy--> piece --copy engine--> device     piece i + 1 is filled
 *   download  device --copy engine--> piece --memcpy at the sync--> caller   while piece i is
 * copied
 */
#include "kernels/cuda/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct hth_cu_stream *hth_cu_enter(struct hth_exec *ex)
{
    struct hth_cu_stream *s = ex->stream;
    hth_cu_check(s, s->dev->gpu->use(s->dev->index));
    return s;
}

enum hth_err hth_cu_check(struct hth_cu_stream *s, int gpu_error)
{
    if (gpu_error != 0 && s->err == HTH_OK)
        s->err = HTH_E_DEVICE;
    return HTH_OK;
}

/* -- open and close ------------------------------------------------------------------------ */

static enum hth_err open_parts(struct hth_cu_stream *s)
{
    const struct hth_gpu *gpu = s->dev->gpu;
    void *results = NULL;
    if (gpu->use(s->dev->index) != 0 || gpu->stream_new(&s->queue) != 0 ||
        gpu->blas_open(&s->blas, NULL, 0) != 0)
        return HTH_E_DEVICE;
    s->results = hth_cu_take(s->dev, HTH_CU_BLOCK);
    if (s->results == NULL || gpu->host_alloc(&results, HTH_CU_BLOCK) != 0)
        return HTH_E_NO_MEMORY;
    s->results_host = results;
    return gpu->zero(s->results, HTH_CU_BLOCK, s->queue) == 0 ? HTH_OK : HTH_E_DEVICE;
}

static void close_parts(struct hth_cu_stream *s)
{
    const struct hth_gpu *gpu = s->dev->gpu;
    (void)gpu->use(s->dev->index);
    if (s->queue != NULL)
        (void)gpu->stream_sync(s->queue);
    hth_cu_release_all(s);
    hth_cu_graphs_free(s);
    for (uint32_t i = 0; i < HTH_CU_RING; i++) {
        if (s->ring[i].event != NULL)
            gpu->event_free(s->ring[i].event);
        if (s->ring[i].pinned != NULL)
            (void)gpu->host_free(s->ring[i].pinned);
    }
    for (uint32_t i = 0; i < HTH_ARRAY_LEN(s->stamp); i++) {
        if (s->stamp[i] != NULL)
            gpu->event_free(s->stamp[i]);
    }
    if (s->blas != NULL)
        gpu->blas_close(s->blas);
    if (s->queue != NULL)
        gpu->stream_free(s->queue);
    if (s->work != NULL)
        (void)hth_pool_give(&s->dev->pool, s->work);
    if (s->results != NULL)
        (void)hth_pool_give(&s->dev->pool, s->results);
    if (s->results_host != NULL)
        (void)gpu->host_free(s->results_host);
    free(s);
}

enum hth_err hth_cu_stream_open(struct hth_exec *ex)
{
    struct hth_cu_stream *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return HTH_E_NO_MEMORY;
    s->dev = hth_cu_device_of(ex->be);
    enum hth_err err = open_parts(s);
    if (err != HTH_OK) {
        close_parts(s);
        return err;
    }
    ex->stream = s;
    return HTH_OK;
}

void hth_cu_stream_close(struct hth_exec *ex)
{
    close_parts(ex->stream);
    ex->stream = NULL;
}

/* -- copies -------------------------------------------------------------------------------- */

/* Waits for a piece; copies a download's bytes to their destination. */
static void slot_finish(struct hth_cu_stream *s, struct hth_cu_slot *slot)
{
    if (!slot->busy)
        return;
    hth_cu_check(s, s->dev->gpu->event_sync(slot->event));
    if (slot->dst != NULL)
        memcpy(slot->dst, slot->pinned, slot->bytes);
    slot->busy = false;
    slot->dst = NULL;
}

/* Frees the oldest piece and returns it. NULL when memory is gone. */
static struct hth_cu_slot *slot_take(struct hth_cu_stream *s)
{
    struct hth_cu_slot *slot = &s->ring[s->next];
    const struct hth_gpu *gpu = s->dev->gpu;
    slot_finish(s, slot);
    if (slot->pinned == NULL && gpu->host_alloc(&slot->pinned, HTH_CU_PIECE) != 0)
        return NULL;
    if (slot->event == NULL && gpu->event_new(&slot->event) != 0)
        return NULL;
    s->next = (s->next + 1) % HTH_CU_RING;
    return slot;
}

enum hth_err hth_cu_upload(struct hth_exec *ex, void *device, const void *host, size_t bytes)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    const struct hth_gpu *gpu = s->dev->gpu;
    for (size_t at = 0; at < bytes; at += HTH_CU_PIECE) {
        size_t n = HTH_MIN(bytes - at, HTH_CU_PIECE);
        struct hth_cu_slot *slot = slot_take(s);
        if (slot == NULL)
            return HTH_E_NO_MEMORY;
        memcpy(slot->pinned, (const uint8_t *)host + at, n);
        hth_cu_check(s, gpu->copy_in((uint8_t *)device + at, slot->pinned, n, s->queue));
        hth_cu_check(s, gpu->event_record(slot->event, s->queue));
        slot->busy = true;
    }
    return HTH_OK;
}

enum hth_err hth_cu_download(struct hth_exec *ex, void *host, const void *device, size_t bytes)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    const struct hth_gpu *gpu = s->dev->gpu;
    for (size_t at = 0; at < bytes; at += HTH_CU_PIECE) {
        size_t n = HTH_MIN(bytes - at, HTH_CU_PIECE);
        struct hth_cu_slot *slot = slot_take(s);
        if (slot == NULL)
            return HTH_E_NO_MEMORY;
        hth_cu_check(s, gpu->copy_out(slot->pinned, (const uint8_t *)device + at, n, s->queue));
        hth_cu_check(s, gpu->event_record(slot->event, s->queue));
        slot->dst = (uint8_t *)host + at;
        slot->bytes = n;
        slot->busy = true;
    }
    return HTH_OK;
}

/* -- results and the sync ------------------------------------------------------------------ */

static void deliver(struct hth_cu_stream *s)
{
    for (uint32_t i = 0; i < s->wanted_count; i++) {
        const uint8_t *at = s->results_host + (size_t)i * HTH_CU_RESULT;
        if (s->wanted[i].xent != NULL) {
            struct hth_cu_xent_sum sum;
            memcpy(&sum, at, sizeof(sum));
            *s->wanted[i].xent = (struct hth_xent_result){sum.loss, sum.counted, sum.correct};
        } else {
            double sum;
            memcpy(&sum, at, sizeof(sum));
            *s->wanted[i].sumsq = (struct hth_sumsq_result){sum, isfinite(sum)};
        }
    }
    s->wanted_count = 0;
}

static void read_fault(struct hth_cu_stream *s)
{
    int fault;
    memcpy(&fault, s->results_host + HTH_CU_FAULT, sizeof(fault));
    if (fault == HTH_CU_FINE)
        return;
    if (s->err == HTH_OK)
        s->err = fault == HTH_CU_BAD_INDEX ? HTH_E_RANGE : HTH_E_NOT_FINITE;
    hth_cu_check(s, s->dev->gpu->zero(hth_cu_fault(s), sizeof(int), s->queue));
}

/* Waits for all work. Keeps an error in s->err. */
void hth_cu_settle(struct hth_cu_stream *s)
{
    const struct hth_gpu *gpu = s->dev->gpu;
    hth_cu_check(s, gpu->copy_out(s->results_host, s->results, HTH_CU_BLOCK, s->queue));
    hth_cu_check(s, gpu->stream_sync(s->queue));
    for (uint32_t i = 0; i < HTH_CU_RING; i++)
        slot_finish(s, &s->ring[(s->next + i) % HTH_CU_RING]);
    deliver(s);
    read_fault(s);
}

enum hth_err hth_cu_stream_sync(struct hth_exec *ex)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    hth_cu_settle(s);
    hth_cu_release_all(s);
    enum hth_err err = s->err;
    s->err = HTH_OK;
    return err;
}

enum hth_err hth_cu_stamp(struct hth_exec *ex, bool last)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    void **event = &s->stamp[last];
    if (*event == NULL && s->dev->gpu->timed_new(event) != 0)
        return HTH_E_DEVICE;
    return hth_cu_check(s, s->dev->gpu->event_record(*event, s->queue));
}

enum hth_err hth_cu_stamped_us(struct hth_exec *ex, double *us)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    if (s->stamp[0] == NULL || s->stamp[1] == NULL)
        return HTH_E_BUG;
    return s->dev->gpu->timed_us(s->stamp[0], s->stamp[1], us) == 0 ? HTH_OK : HTH_E_DEVICE;
}

static uint8_t *want(struct hth_exec *ex)
{
    struct hth_cu_stream *s = ex->stream;
    if (s->wanted_count == HTH_CU_RESULTS)
        hth_cu_settle(s); /* keeps held parts: an operation is in progress */
    return s->results + (size_t)s->wanted_count * HTH_CU_RESULT;
}

void *hth_cu_want_xent(struct hth_exec *ex, struct hth_xent_result *result)
{
    struct hth_cu_stream *s = ex->stream;
    void *at = want(ex);
    s->wanted[s->wanted_count].xent = result;
    s->wanted[s->wanted_count++].sumsq = NULL;
    return at;
}

void *hth_cu_want_sumsq(struct hth_exec *ex, struct hth_sumsq_result *result)
{
    struct hth_cu_stream *s = ex->stream;
    void *at = want(ex);
    s->wanted[s->wanted_count].xent = NULL;
    s->wanted[s->wanted_count++].sumsq = result;
    return at;
}

void *hth_cu_room(struct hth_cu_stream *s, size_t bytes)
{
    if (bytes <= s->work_bytes)
        return s->work;
    int err = s->dev->gpu->stream_sync(s->queue); /* work may still use the old room */
    hth_cu_check(s, err);
    if (err != 0)
        return NULL; /* the stream still runs, or records */
    s->rooms++;
    if (s->work != NULL)
        (void)hth_pool_give(&s->dev->pool, s->work);
    s->work = hth_cu_take(s->dev, bytes);
    s->work_bytes = s->work != NULL ? hth_pool_round(bytes) : 0;
    return s->work;
}
