/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_cuda.c: the table of gpu.h with the CUDA runtime, which is linked in statically. */
#include <cuda_runtime_api.h>
#include <stdio.h>

#include "kernels/cuda/blas_cuda.h"
#include "kernels/cuda/gpu.h"

static const char *cuda_text(int err)
{
    if (err == (int)cudaErrorInsufficientDriver)
        return "no NVIDIA driver, or one too old for this build (CUDA 13 needs 580 or later)";
    if (err == (int)cudaErrorNoKernelImageForDevice)
        return "this build has no code for this card (set HEARTH_CUDA_ARCHITECTURES to all)";
    return cudaGetErrorString((cudaError_t)err);
}

static int cuda_count(int *devices)
{
    return (int)cudaGetDeviceCount(devices);
}

static int cuda_info(int device, struct hth_gpu_info *out)
{
    struct cudaDeviceProp prop;
    int version = 0;
    cudaError_t err = cudaGetDeviceProperties(&prop, device);
    if (err == cudaSuccess)
        err = cudaDriverGetVersion(&version);
    if (err != cudaSuccess)
        return (int)err;
    snprintf(out->name, sizeof(out->name), "%.*s", (int)sizeof(out->name) - 1, prop.name);
    snprintf(out->driver, sizeof(out->driver), "%d.%d", version / 1000, version % 1000 / 10);
    out->memory_bytes = prop.totalGlobalMem;
    out->major = prop.major;
    out->minor = prop.minor;
    return 0;
}

static int cuda_use(int device)
{
    return (int)cudaSetDevice(device);
}

static int cuda_mem_alloc(void **p, size_t bytes)
{
    cudaError_t err = cudaMalloc(p, bytes);
    (void)cudaGetLastError(); /* clears the runtime's error: too little memory is no fault */
    return (int)err;
}

static int cuda_mem_free(void *p)
{
    return (int)cudaFree(p);
}

static int cuda_mem_left(size_t *bytes)
{
    size_t total;
    return (int)cudaMemGetInfo(bytes, &total);
}

static int cuda_host_alloc(void **p, size_t bytes)
{
    cudaError_t err = cudaHostAlloc(p, bytes, cudaHostAllocDefault);
    (void)cudaGetLastError();
    return (int)err;
}

static int cuda_host_free(void *p)
{
    return (int)cudaFreeHost(p);
}

/* Not ordered with the default stream: contexts overlap. */
static int cuda_stream_new(void **stream)
{
    return (int)cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking);
}

static void cuda_stream_free(void *stream)
{
    (void)cudaStreamDestroy((cudaStream_t)stream);
}

static int cuda_stream_sync(void *stream)
{
    return (int)cudaStreamSynchronize((cudaStream_t)stream);
}

static int cuda_stream_wait(void *stream, void *event)
{
    return (int)cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0);
}

static int cuda_event_new(void **event)
{
    return (int)cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming);
}

static void cuda_event_free(void *event)
{
    (void)cudaEventDestroy((cudaEvent_t)event);
}

static int cuda_event_record(void *event, void *stream)
{
    return (int)cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream);
}

static int cuda_event_sync(void *event)
{
    return (int)cudaEventSynchronize((cudaEvent_t)event);
}

static int cuda_timed_new(void **event)
{
    return (int)cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDefault);
}

static int cuda_timed_us(void *from, void *to, double *us)
{
    float ms = 0;
    cudaError_t err = cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to);
    *us = (double)ms * 1e3;
    return (int)err;
}

static int cuda_capture_begin(void *stream)
{
    return (int)cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal);
}

static int cuda_capture_end(void *stream, void **out)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t err = cudaStreamEndCapture((cudaStream_t)stream, &graph);
    if (err == cudaSuccess)
        err = cudaGraphInstantiate(&exec, graph, 0);
    if (graph != NULL)
        (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError(); /* clears the error: a failed recording is no failure of the stream */
    *out = exec;
    return (int)err;
}

static int cuda_graph_launch(void *graph, void *stream)
{
    return (int)cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream);
}

static void cuda_graph_free(void *graph)
{
    (void)cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

static int cuda_copy_in(void *device, const void *host, size_t bytes, void *stream)
{
    return (int)cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream);
}

static int cuda_copy_out(void *host, const void *device, size_t bytes, void *stream)
{
    return (int)cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream);
}

static int cuda_copy(void *to, const void *from, size_t bytes, void *stream)
{
    return (int)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)stream);
}

static int cuda_zero(void *device, size_t bytes, void *stream)
{
    return (int)cudaMemsetAsync(device, 0, bytes, (cudaStream_t)stream);
}

static int cuda_device_sync(void)
{
    return (int)cudaDeviceSynchronize();
}

const struct hth_gpu hth_gpu_cuda = {
    .text = cuda_text,
    .count = cuda_count,
    .info = cuda_info,
    .use = cuda_use,
    .mem_alloc = cuda_mem_alloc,
    .mem_free = cuda_mem_free,
    .mem_left = cuda_mem_left,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .stream_sync = cuda_stream_sync,
    .stream_wait = cuda_stream_wait,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_sync = cuda_event_sync,
    .timed_new = cuda_timed_new,
    .timed_us = cuda_timed_us,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .device_sync = cuda_device_sync,
    .blas_open = hth_cublas_open,
    .blas_close = hth_cublas_close,
    .matmul = hth_cublas_matmul,
    .matmul_many = hth_cublas_matmul_many,
};
