/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_shim.c: a driver of this process's own memory, and naive matrix products.
 *
 * Device memory is an arena; a new block is full of NaN. Streams run at once, so events never wait.
 */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base.h"
#include "kernels/elements.h"
#include "kernels/shim_control.h"

#define ARENA      ((size_t)1 << 30)
#define ALIGN      ((size_t)4096)
#define OUT_MEMORY 2

struct block {
    uint8_t *at;
    size_t bytes;
    bool used;
};

static struct {
    uint8_t *base;
    size_t top; /* most bytes ever in use */
    struct block blocks[4096];
    size_t count;
    bool guard, fuse, many, cut;
} arena;

void hth_shim_memory(bool open)
{
    if (arena.guard && arena.top > 0)
        HTH_ASSERT(mprotect(arena.base, arena.top, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
}

void hth_shim_guard(bool on)
{
    arena.guard = true;
    hth_shim_memory(!on);
    arena.guard = on;
}

void hth_shim_fuse(bool on)
{
    arena.fuse = on;
}

void hth_shim_cut(bool on)
{
    arena.cut = on;
}

void hth_shim_batch(bool on)
{
    arena.many = on;
}

static const char *shim_text(int err)
{
    return err == OUT_MEMORY ? "out of memory" : hth_shim_failure();
}

static int shim_count(int *devices)
{
    *devices = 1;
    return 0;
}

static int shim_info(int device, struct hth_gpu_info *out)
{
    (void)device;
    *out = (struct hth_gpu_info){.name = "shim", .memory_bytes = ARENA, .major = 8};
    return 0;
}

static int shim_use(int device)
{
    (void)device;
    return 0;
}

static int shim_mem_alloc(void **p, size_t bytes)
{
    size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    struct block *b = NULL;
    if (arena.base == NULL) {
        arena.base = mmap(NULL, ARENA, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        HTH_ASSERT(arena.base != MAP_FAILED);
    }
    for (size_t i = 0; i < arena.count && b == NULL; i++) {
        if (!arena.blocks[i].used && arena.blocks[i].bytes == rounded)
            b = &arena.blocks[i];
    }
    if (b == NULL) {
        if (rounded > ARENA - arena.top || arena.count == HTH_ARRAY_LEN(arena.blocks))
            return OUT_MEMORY;
        b = &arena.blocks[arena.count++];
        *b = (struct block){.at = arena.base + arena.top, .bytes = rounded};
        arena.top += rounded;
    }
    b->used = true;
    *p = b->at;
    hth_shim_memory(true);
    memset(b->at, 0xff, rounded);
    hth_shim_memory(false);
    return 0;
}

static int shim_mem_free(void *p)
{
    for (size_t i = 0; i < arena.count; i++) {
        if (arena.blocks[i].at == p) {
            HTH_ASSERT(arena.blocks[i].used);
            arena.blocks[i].used = false;
            return 0;
        }
    }
    return 1;
}

static int shim_mem_left(size_t *bytes)
{
    *bytes = ARENA - arena.top;
    for (size_t i = 0; i < arena.count; i++)
        *bytes += arena.blocks[i].used ? 0 : arena.blocks[i].bytes;
    return 0;
}

static int shim_host_alloc(void **p, size_t bytes)
{
    *p = malloc(bytes);
    return *p != NULL ? 0 : OUT_MEMORY;
}

static int shim_host_free(void *p)
{
    free(p);
    return 0;
}

/* Makes a handle. */
static int shim_handle_new(void **handle)
{
    return shim_host_alloc(handle, 1);
}

static int shim_blas_open(void **blas, char *why, size_t why_size)
{
    (void)why;
    (void)why_size;
    return shim_handle_new(blas);
}

static void shim_handle_free(void *handle)
{
    free(handle);
}

static int spoil(void);

static int shim_wait(void *handle)
{
    (void)handle;
    return spoil();
}

static int shim_record(void *event, void *stream)
{
    (void)event;
    (void)stream;
    return 0;
}

static int shim_stream_wait(void *stream, void *event)
{
    return shim_record(event, stream); /* recorded work is already done */
}

/* Time is the number of stamps. */
static uint32_t stamps;

static int shim_timed_us(void *from, void *to, double *us)
{
    *us = from != NULL && to != NULL ? 1.0 + stamps++ % 3 : 0;
    return 0;
}

static int shim_device_sync(void)
{
    return spoil();
}

static int shim_copy(void *dst, const void *src, size_t bytes, void *stream)
{
    (void)stream;
    (void)spoil();
    hth_shim_memory(true);
    memcpy(dst, src, bytes);
    hth_shim_memory(false);
    return 0;
}

static int shim_zero(void *device, size_t bytes, void *stream)
{
    (void)stream;
    hth_shim_memory(true);
    memset(device, 0, bytes);
    hth_shim_memory(false);
    return 0;
}

/* -- graphs -------------------------------------------------------------------------------- */

struct kept {
    int (*run)(void *arg);
    void *arg;
    void (*drop)(void *arg);
};

struct recording {
    struct kept op[256];
    uint32_t count;
};

static struct {
    struct recording *now;
    bool spoilt, refuse;
    uint32_t launches;
} graphs;

bool hth_shim_recording(void)
{
    return graphs.now != NULL;
}

void hth_shim_record(int (*run)(void *arg), void *arg, void (*drop)(void *arg))
{
    HTH_ASSERT(graphs.now->count < HTH_ARRAY_LEN(graphs.now->op));
    graphs.now->op[graphs.now->count++] = (struct kept){run, arg, drop};
}

void hth_shim_graphs(bool on)
{
    graphs.refuse = !on;
}

uint32_t hth_shim_graph_launches(void)
{
    return graphs.launches;
}

static void shim_graph_free(void *graph)
{
    struct recording *r = graph;
    for (uint32_t i = 0; i < r->count; i++)
        r->op[i].drop(r->op[i].arg);
    free(r);
}

static int shim_capture_begin(void *stream)
{
    (void)stream;
    graphs.spoilt = false;
    graphs.now = calloc(1, sizeof(*graphs.now));
    return graphs.now != NULL ? 0 : OUT_MEMORY;
}

static int shim_capture_end(void *stream, void **graph)
{
    (void)stream;
    *graph = graphs.now;
    graphs.now = NULL;
    if (!graphs.spoilt && !graphs.refuse)
        return 0;
    shim_graph_free(*graph);
    *graph = NULL;
    return 901;
}

static int shim_graph_launch(void *graph, void *stream)
{
    const struct recording *r = graph;
    (void)stream;
    graphs.launches++;
    for (uint32_t i = 0; i < r->count; i++) {
        int err = r->op[i].run(r->op[i].arg);
        if (err != 0)
            return err;
    }
    return 0;
}

/* Refuses a call that may not be recorded, and the recording with it. */
static int spoil(void)
{
    graphs.spoilt = true;
    return graphs.now != NULL ? 900 : 0;
}

/* -- products ------------------------------------------------------------------------------ */

static float at(const struct hth_gpu_matmul *m, const void *x, size_t i)
{
    if (m->type == HTH_GPU_BF16)
        return hth_el_from_bf16(((const uint16_t *)x)[i]);
    float v = ((const float *)x)[i];
    if (m->type != HTH_GPU_TF32)
        return v;
    uint32_t half = arena.cut ? 0 : 0x1000u; /* TF32 keeps 10 bits of the mantissa */
    return hth_el_float((hth_el_bits(v) + half) & 0xffffe000u);
}

static void finish(const struct hth_gpu_matmul *m, size_t i, size_t j, double sum)
{
    float *c = m->c + i * m->ldc + j;
    float x = (float)(m->accumulate ? (double)*c + sum : sum);
    float *aux = m->aux != NULL ? m->aux + i * m->ld_aux + j : NULL;
    if (m->end == HTH_GPU_BIAS || m->end == HTH_GPU_BIAS_GELU || m->end == HTH_GPU_BIAS_RELU)
        x += m->bias[j];
    if (m->end == HTH_GPU_BIAS_GELU) {
        if (aux != NULL)
            *aux = x;
        x = hth_el_gelu(x);
    }
    if (m->end == HTH_GPU_BIAS_RELU)
        x = x < 0 ? 0 : x;
    if (m->end == HTH_GPU_DGELU)
        x *= hth_el_gelu_slope(*aux);
    *c = x;
}

static int matmul_now(const struct hth_gpu_matmul *m)
{
    double *row = calloc(m->n, sizeof(*row));
    hth_shim_memory(true);
    for (size_t i = 0; i < m->m; i++) {
        memset(row, 0, m->n * sizeof(*row));
        for (size_t k = 0; k < m->k; k++) {
            double a = (double)at(m, m->a, m->form == HTH_GPU_TN ? k * m->lda + i : i * m->lda + k);
            for (size_t j = 0; j < m->n; j++)
                row[j] += a * (double)at(m, m->b,
                                         m->form == HTH_GPU_NT ? j * m->ldb + k : k * m->ldb + j);
        }
        for (size_t j = 0; j < m->n; j++)
            finish(m, i, j, row[j]);
    }
    hth_shim_memory(false);
    free(row);
    return 0;
}

static int run_matmul(void *arg)
{
    return matmul_now(arg);
}

static int shim_matmul(void *blas, void *stream, const struct hth_gpu_matmul *m)
{
    (void)blas;
    (void)stream;
    if (m->end != HTH_GPU_PLAIN && !arena.fuse)
        return HTH_GPU_NO_FUSION;
    if (!hth_shim_recording())
        return matmul_now(m);
    struct hth_gpu_matmul *kept = malloc(sizeof(*kept));
    *kept = *m;
    hth_shim_record(run_matmul, kept, free);
    return 0;
}

static uint32_t many_products;

uint32_t hth_shim_many(void)
{
    return many_products;
}

static int shim_matmul_many(void *blas, void *stream, const struct hth_gpu_many *many)
{
    if (!arena.many)
        return HTH_GPU_NO_FUSION;
    many_products++;
    for (uint32_t i = 0; i < many->count; i++) {
        struct hth_gpu_matmul m = many->each;
        hth_shim_memory(true);
        m.a = many->a[i];
        m.b = many->b[i];
        m.c = many->c[i];
        hth_shim_memory(false);
        int err = shim_matmul(blas, stream, &m);
        if (err != 0)
            return err;
    }
    return 0;
}

const struct hth_gpu hth_gpu_shim = {
    .text = shim_text,
    .count = shim_count,
    .info = shim_info,
    .use = shim_use,
    .mem_alloc = shim_mem_alloc,
    .mem_free = shim_mem_free,
    .mem_left = shim_mem_left,
    .host_alloc = shim_host_alloc,
    .host_free = shim_host_free,
    .stream_new = shim_handle_new,
    .stream_free = shim_handle_free,
    .stream_sync = shim_wait,
    .stream_wait = shim_stream_wait,
    .event_new = shim_handle_new,
    .event_free = shim_handle_free,
    .event_record = shim_record,
    .event_sync = shim_wait,
    .timed_new = shim_handle_new,
    .timed_us = shim_timed_us,
    .capture_begin = shim_capture_begin,
    .capture_end = shim_capture_end,
    .graph_launch = shim_graph_launch,
    .graph_free = shim_graph_free,
    .copy_in = shim_copy,
    .copy_out = shim_copy,
    .copy = shim_copy,
    .zero = shim_zero,
    .device_sync = shim_device_sync,
    .blas_open = shim_blas_open,
    .blas_close = shim_handle_free,
    .matmul = shim_matmul,
    .matmul_many = shim_matmul_many,
};
