/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h: the driver and the GEMM library as a table of functions: the CUDA runtime on a machine
 * with a card (gpu_cuda.c, blas_cuda.c), plain memory and naive loops in tests, and tables that
 * fail on purpose.
 *
 * All functions return 0 or the runtime's error code; `text` names it. A stream is a queue of work
 * of one device; work of different streams may overlap. An event marks a place in a stream.
 */
#ifndef HTH_KERNELS_CUDA_GPU_H
#define HTH_KERNELS_CUDA_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hth_gpu_info {
    char name[96];
    char driver[32]; /* "13.0" */
    uint64_t memory_bytes;
    int major, minor; /* compute capability */
};

/* A product, row-major: c [m, n] (+)= a b with the leading dimensions of the form (rowops.h). */
enum hth_gpu_form { HTH_GPU_NN, HTH_GPU_NT, HTH_GPU_TN };
enum hth_gpu_type { HTH_GPU_F32, HTH_GPU_TF32, HTH_GPU_BF16 }; /* operands a and b */
enum hth_gpu_end {
    HTH_GPU_PLAIN,
    HTH_GPU_BIAS,      /* + bias */
    HTH_GPU_BIAS_GELU, /* gelu(+ bias); aux, if not NULL, receives the input of gelu */
    HTH_GPU_BIAS_RELU,
    HTH_GPU_DGELU, /* * gelu'(aux) */
};
struct hth_gpu_matmul {
    int form, type, end;
    uint32_t m, n, k;
    const void *a, *b;
    float *c;
    size_t lda, ldb, ldc;
    bool accumulate;
    const float *bias;
    float *aux;
    size_t ld_aux;
};

/* Many products of one shape: `each` without its pointers; a, b and c are arrays of `count`
 * pointers in device memory. Plain ends only. */
struct hth_gpu_many {
    struct hth_gpu_matmul each;
    uint32_t count;
    const void *const *a, *const *b;
    void *const *c;
};

struct hth_gpu {
    const char *(*text)(int err);
    int (*count)(int *devices);
    int (*info)(int device, struct hth_gpu_info *out);
    int (*use)(int device); /* for the calling thread */
    int (*mem_alloc)(void **p, size_t bytes);
    int (*mem_free)(void *p);
    int (*mem_left)(size_t *bytes);            /* of the device in use */
    int (*host_alloc)(void **p, size_t bytes); /* pinned */
    int (*host_free)(void *p);
    int (*stream_new)(void **stream);
    void (*stream_free)(void *stream);
    int (*stream_sync)(void *stream);
    int (*stream_wait)(void *stream,
                       void *event); /* later work of the stream waits for the event */
    int (*event_new)(void **event);
    void (*event_free)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_sync)(void *event);
    int (*timed_new)(void **event); /* an event with a time */
    int (*timed_us)(void *from, void *to, double *us);
    /* Work that this thread gives to the stream between the two is not run but recorded as a graph,
     * which graph_launch gives to a stream as a whole. capture_begin NULL: no graphs. */
    int (*capture_begin)(void *stream);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_launch)(void *graph, void *stream);
    void (*graph_free)(void *graph);
    int (*copy_in)(void *device, const void *host, size_t bytes, void *stream);
    int (*copy_out)(void *host, const void *device, size_t bytes, void *stream);
    int (*copy)(void *to, const void *from, size_t bytes, void *stream); /* within the device */
    int (*zero)(void *device, size_t bytes, void *stream);
    int (*device_sync)(void);
    /* Opens the library for this device and thread; loads it the first time. `why` gets a line on
     * failure. */
    int (*blas_open)(void **blas, char *why, size_t why_size);
    void (*blas_close)(void *blas);
    /* HTH_GPU_NO_FUSION: the library has no such end for these operands, and nothing was done. */
    int (*matmul)(void *blas, void *stream, const struct hth_gpu_matmul *m);
    /* HTH_GPU_NO_FUSION: the library can't, and nothing was done. */
    int (*matmul_many)(void *blas, void *stream, const struct hth_gpu_many *m);
};
#define HTH_GPU_NO_FUSION (-1)

extern const struct hth_gpu hth_gpu_cuda;

#endif
