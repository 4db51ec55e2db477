/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blas_cuda.c: products by cuBLASLt.
 *
 * The library is column-major: our row-major c = a b is its c^T = b^T a^T, so the sides and m and
 * n change places, and our bias per column is its bias per row. Its GELU is the tanh form, like
 * ours.
 *
 * For each shape the library chooses an algorithm once, and a table keeps it by key (plan.h). So a
 * shape is always computed in the same way: two runs give the same bits. Algorithms that add from
 * several blocks in place, whose order is not fixed, are excluded.
 *
 * The library is 500 MB of code: dlopen loads it once, when the first device is opened.
 */
#define _GNU_SOURCE
#include "kernels/cuda/blas_cuda.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/plan.h"

#define WORKSPACE ((size_t)32 << 20)

/* X(name without prefix) */
#define FUNCTIONS(X)                                                                               \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(Matmul)                                                                                      \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)

/* Written by the one thread that loads, read by all once `stage` is LOADED. */
enum { UNTRIED, LOADING, LOADED };
static struct {
    atomic_int stage;
    bool found;
    char why[200];
#define POINTER(name) __typeof__(&cublasLt##name) name;
    FUNCTIONS(POINTER)
#undef POINTER
} lt;

static _Atomic(const char *) only_folder;

void hth_cublas_look_in(const char *folder)
{
    atomic_store(&only_folder, folder);
}

/* Opens the library of the major version of our headers: another one has other structs. */
static void *open_library(const char *name)
{
    static const char *const usual[] = {"", "/usr/local/cuda/lib64/"};
    const char *folder = atomic_load(&only_folder);
    size_t count = folder != NULL ? 1 : sizeof(usual) / sizeof(usual[0]);
    void *handle = NULL;
    for (size_t i = 0; i < count && handle == NULL; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s%s%s.so.%d", folder != NULL ? folder : usual[i],
                 folder != NULL ? "/" : "", name, CUBLAS_VER_MAJOR);
        handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return handle;
}

static void load(void)
{
    void *handle = open_library("libcublasLt");
    if (handle == NULL) {
        const char *text = dlerror();
        snprintf(lt.why, sizeof(lt.why), "cuBLAS not found: %s",
                 text != NULL ? text : "no libcublasLt");
        return;
    }
#define RESOLVE(name)                                                                              \
    {                                                                                              \
        void *symbol = dlsym(handle, "cublasLt" #name);                                            \
        if (symbol == NULL) {                                                                      \
            snprintf(lt.why, sizeof(lt.why), "cuBLAS lacks cublasLt" #name);                       \
            return;                                                                                \
        }                                                                                          \
        memcpy(&lt.name, &symbol, sizeof(symbol));                                                 \
    }
    FUNCTIONS(RESOLVE)
#undef RESOLVE
    lt.found = true;
}

static bool loaded(void)
{
    int stage = UNTRIED;
    if (atomic_compare_exchange_strong(&lt.stage, &stage, LOADING)) {
        load();
        atomic_store(&lt.stage, LOADED);
    }
    while (atomic_load(&lt.stage) != LOADED)
        continue;
    return lt.found;
}

/* Products by arrays of pointers are in libcublas (54 MB), which is loaded with the first group.
 * X(name, symbol): the header calls the second version by the first one's name. */
#define V2_FUNCTIONS(X)                                                                            \
    X(Create, "cublasCreate_v2")                                                                   \
    X(Destroy, "cublasDestroy_v2")                                                                 \
    X(SetStream, "cublasSetStream_v2")                                                             \
    X(SetWorkspace, "cublasSetWorkspace_v2")                                                       \
    X(GemmBatchedEx, "cublasGemmBatchedEx")
static struct {
    atomic_int stage;
    bool found;
#define V2_POINTER(name, symbol) __typeof__(&cublas##name) name;
    V2_FUNCTIONS(V2_POINTER)
#undef V2_POINTER
} v2;

static void load_v2(void)
{
    void *handle = open_library("libcublas");
    if (handle == NULL)
        return;
#define V2_RESOLVE(name, symbol)                                                                   \
    {                                                                                              \
        void *at = dlsym(handle, symbol);                                                          \
        if (at == NULL)                                                                            \
            return;                                                                                \
        memcpy(&v2.name, &at, sizeof(at));                                                         \
    }
    V2_FUNCTIONS(V2_RESOLVE)
#undef V2_RESOLVE
    v2.found = true;
}

static bool v2_loaded(void)
{
    int stage = UNTRIED;
    if (atomic_compare_exchange_strong(&v2.stage, &stage, LOADING)) {
        load_v2();
        atomic_store(&v2.stage, LOADED);
    }
    while (atomic_load(&v2.stage) != LOADED)
        continue;
    return v2.found;
}

/* The library's objects for a shape: made once, freed with the context. */
struct cublas_product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

struct blas {
    cublasLtHandle_t handle;
    cublasHandle_t many; /* of libcublas; made at the first use */
    bool many_tried;
    void *many_stream; /* the stream for which the workspace is set */
    void *workspace;   /* of both libraries */
    struct hth_matmul_plans plans;
};

static void product_free(void *plan)
{
    struct cublas_product *p = plan;
    if (p->desc != NULL)
        (void)lt.MatmulDescDestroy(p->desc);
    if (p->a != NULL)
        (void)lt.MatrixLayoutDestroy(p->a);
    if (p->b != NULL)
        (void)lt.MatrixLayoutDestroy(p->b);
    if (p->c != NULL)
        (void)lt.MatrixLayoutDestroy(p->c);
    free(p);
}

int hth_cublas_open(void **out, char *why, size_t why_size)
{
    if (!loaded()) {
        if (why != NULL)
            snprintf(why, why_size, "%s", lt.why);
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    struct blas *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    hth_matmul_plans_init(&b->plans, product_free);
    cublasStatus_t err = lt.Create(&b->handle);
    if (err == CUBLAS_STATUS_SUCCESS && cudaMalloc(&b->workspace, WORKSPACE) != cudaSuccess)
        err = CUBLAS_STATUS_ALLOC_FAILED;
    if (err != CUBLAS_STATUS_SUCCESS) {
        if (why != NULL)
            snprintf(why, why_size, "cuBLAS did not start (status %d)", (int)err);
        hth_cublas_close(b);
        return (int)err;
    }
    *out = b;
    return 0;
}

void hth_cublas_close(void *blas)
{
    struct blas *b = blas;
    hth_matmul_plans_clear(&b->plans);
    if (b->many != NULL)
        (void)v2.Destroy(b->many);
    if (b->handle != NULL)
        (void)lt.Destroy(b->handle);
    (void)cudaFree(b->workspace);
    free(b);
}

/* -- plans --------------------------------------------------------------------------------- */

static cublasStatus_t set_desc(struct cublas_product *p, cublasLtMatmulDescAttributes_t which,
                               const void *value, size_t bytes)
{
    return lt.MatmulDescSetAttribute(p->desc, which, value, bytes);
}

static cublasLtEpilogue_t epilogue_of(const struct hth_gpu_matmul *m)
{
    switch (m->end) {
    case HTH_GPU_BIAS:
        return CUBLASLT_EPILOGUE_BIAS;
    case HTH_GPU_BIAS_GELU:
        return m->aux != NULL ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
    case HTH_GPU_BIAS_RELU:
        return CUBLASLT_EPILOGUE_RELU_BIAS;
    case HTH_GPU_DGELU:
        return CUBLASLT_EPILOGUE_DGELU;
    default:
        return CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* Pointers belong to the call and not to the plan, but the library keeps them in the
 * description. */
static cublasStatus_t set_pointers(struct cublas_product *p, const struct hth_gpu_matmul *m)
{
    cublasStatus_t err = CUBLAS_STATUS_SUCCESS;
    if (m->end == HTH_GPU_BIAS || m->end == HTH_GPU_BIAS_GELU || m->end == HTH_GPU_BIAS_RELU)
        err = set_desc(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &m->bias, sizeof(m->bias));
    if (err == CUBLAS_STATUS_SUCCESS && m->aux != NULL &&
        (m->end == HTH_GPU_BIAS_GELU || m->end == HTH_GPU_DGELU))
        err = set_desc(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &m->aux, sizeof(m->aux));
    return err;
}

static cublasStatus_t describe(struct cublas_product *p, const struct hth_gpu_matmul *m)
{
    cublasComputeType_t compute =
        m->type == HTH_GPU_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    /* Our b is the library's first side. */
    int32_t first = m->form == HTH_GPU_NT ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t second = m->form == HTH_GPU_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t end = epilogue_of(m), number = CUDA_R_32F;
    int64_t ld_aux = (int64_t)m->ld_aux;
    cublasStatus_t err = lt.MatmulDescCreate(&p->desc, compute, CUDA_R_32F);
#define SET(which, value)                                                                          \
    if (err == CUBLAS_STATUS_SUCCESS)                                                              \
    err = set_desc(p, which, &(value), sizeof(value))
    SET(CUBLASLT_MATMUL_DESC_TRANSA, first);
    SET(CUBLASLT_MATMUL_DESC_TRANSB, second);
    SET(CUBLASLT_MATMUL_DESC_EPILOGUE, end);
    if (m->end != HTH_GPU_PLAIN && m->end != HTH_GPU_DGELU) {
        SET(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, number);
    }
    if (m->aux != NULL && (m->end == HTH_GPU_BIAS_GELU || m->end == HTH_GPU_DGELU)) {
        SET(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, ld_aux);
        SET(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, number);
    }
#undef SET
    return err == CUBLAS_STATUS_SUCCESS ? set_pointers(p, m) : err;
}

/* Describes the matrices: our rows are the library's columns. */
static cublasStatus_t layouts(struct cublas_product *p, const struct hth_gpu_matmul *m)
{
    cudaDataType_t type = m->type == HTH_GPU_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    bool turned_b = m->form == HTH_GPU_NT, turned_a = m->form == HTH_GPU_TN;
    cublasStatus_t err = lt.MatrixLayoutCreate(&p->a, type, turned_b ? m->k : m->n,
                                               turned_b ? m->n : m->k, (int64_t)m->ldb);
    if (err == CUBLAS_STATUS_SUCCESS)
        err = lt.MatrixLayoutCreate(&p->b, type, turned_a ? m->m : m->k, turned_a ? m->k : m->m,
                                    (int64_t)m->lda);
    if (err == CUBLAS_STATUS_SUCCESS)
        err = lt.MatrixLayoutCreate(&p->c, CUDA_R_32F, m->n, m->m, (int64_t)m->ldc);
    return err;
}

static cublasStatus_t choose(struct blas *b, struct cublas_product *p,
                             const struct hth_matmul_plan_key *key)
{
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t found;
    size_t room = WORKSPACE;
    uint32_t sums = CUBLASLT_REDUCTION_SCHEME_MASK & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_INPLACE;
    int count = 0;
    cublasStatus_t err = lt.MatmulPreferenceCreate(&wish);
#define WISH(which, value)                                                                         \
    if (err == CUBLAS_STATUS_SUCCESS)                                                              \
    err = lt.MatmulPreferenceSetAttribute(wish, which, &(value), sizeof(value))
    WISH(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, room);
    WISH(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, sums);
    /* The plan serves other pointers of the same alignment, too. */
    WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key->align_b);
    WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key->align_a);
    WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->align_c);
    WISH(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key->align_c);
#undef WISH
    if (err == CUBLAS_STATUS_SUCCESS)
        err = lt.MatmulAlgoGetHeuristic(b->handle, p->desc, p->a, p->b, p->c, p->c, wish, 1, &found,
                                        &count);
    if (wish != NULL)
        (void)lt.MatmulPreferenceDestroy(wish);
    if (err == CUBLAS_STATUS_SUCCESS && (count == 0 || found.state != CUBLAS_STATUS_SUCCESS))
        err = CUBLAS_STATUS_NOT_SUPPORTED;
    if (err == CUBLAS_STATUS_SUCCESS)
        p->algo = found.algo;
    return err;
}

/* NULL: the library has no algorithm, which is kept as a plan of NULL. */
static struct cublas_product *plan_new(struct blas *b, const struct hth_gpu_matmul *m,
                                       const struct hth_matmul_plan_key *key)
{
    struct cublas_product *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return NULL;
    cublasStatus_t err = describe(p, m);
    if (err == CUBLAS_STATUS_SUCCESS)
        err = layouts(p, m);
    if (err == CUBLAS_STATUS_SUCCESS)
        err = choose(b, p, key);
    if (err != CUBLAS_STATUS_SUCCESS) {
        product_free(p);
        return NULL;
    }
    return p;
}

int hth_cublas_matmul(void *blas, void *stream, const struct hth_gpu_matmul *m)
{
    struct blas *b = blas;
    struct hth_matmul_plan_key key = hth_matmul_plan_key_of(m);
    void *plan;
    if (!hth_matmul_plans_find(&b->plans, &key, &plan)) {
        plan = plan_new(b, m, &key);
        hth_matmul_plans_put(&b->plans, &key, plan);
    }
    struct cublas_product *p = plan;
    if (p == NULL)
        return m->end != HTH_GPU_PLAIN ? HTH_GPU_NO_FUSION : CUBLAS_STATUS_NOT_SUPPORTED;
    const float one = 1.0f, beta = m->accumulate ? 1.0f : 0.0f;
    cublasStatus_t err = set_pointers(p, m);
    if (err == CUBLAS_STATUS_SUCCESS)
        err = lt.Matmul(b->handle, p->desc, &one, m->b, p->a, m->a, p->b, &beta, m->c, p->c, m->c,
                        p->c, &p->algo, b->workspace, WORKSPACE, (cudaStream_t)stream);
    /* If the library refuses what it promised, our own kernels compute the end. */
    if (m->end != HTH_GPU_PLAIN &&
        (err == CUBLAS_STATUS_NOT_SUPPORTED || err == CUBLAS_STATUS_INVALID_VALUE))
        return HTH_GPU_NO_FUSION;
    return (int)err;
}

/* ---- many products ----------------------------------------------------------------------- */

/* Makes the context's handle of libcublas. It shares the workspace of cublasLt: all calls of a
 * context are in one stream, one after the other, and a recording is launched in that stream. So
 * recording allocates nothing, and equal calls are computed in the same way. The workspace is set
 * after the stream, because setting a stream resets it. */
static bool many_handle(struct blas *b, void *stream)
{
    if (!b->many_tried && v2_loaded() && v2.Create(&b->many) != CUBLAS_STATUS_SUCCESS)
        b->many = NULL;
    b->many_tried = true;
    if (b->many == NULL || b->many_stream == stream)
        return b->many != NULL;
    b->many_stream = NULL;
    if (v2.SetStream(b->many, (cudaStream_t)stream) != CUBLAS_STATUS_SUCCESS ||
        v2.SetWorkspace(b->many, b->workspace, WORKSPACE) != CUBLAS_STATUS_SUCCESS)
        return false;
    b->many_stream = stream;
    return true;
}

/* CUBLAS_COMPUTE_32F has an fp32 scale: from fp32 or bf16 into fp32. FAST_TF32 has fp32 everywhere,
 * and only permits the library to round operands (cuBLAS's header); docs/gpu.md has the sources. If
 * the library or the card refuses, the caller computes the products one by one. */
int hth_cublas_matmul_many(void *blas, void *stream, const struct hth_gpu_many *many)
{
    struct blas *b = blas;
    const struct hth_gpu_matmul *m = &many->each;
    const float one = 1.0f, beta = m->accumulate ? 1.0f : 0.0f;
    cudaDataType_t type = m->type == HTH_GPU_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasComputeType_t compute =
        m->type == HTH_GPU_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    if (!many_handle(b, stream))
        return HTH_GPU_NO_FUSION;
    cublasStatus_t err = v2.GemmBatchedEx(
        b->many, m->form == HTH_GPU_NT ? CUBLAS_OP_T : CUBLAS_OP_N,
        m->form == HTH_GPU_TN ? CUBLAS_OP_T : CUBLAS_OP_N, (int)m->n, (int)m->m, (int)m->k, &one,
        many->b, type, (int)m->ldb, many->a, type, (int)m->lda, &beta, many->c, CUDA_R_32F,
        (int)m->ldc, (int)many->count, compute, CUBLAS_GEMM_DEFAULT);
    if (err == CUBLAS_STATUS_NOT_SUPPORTED || err == CUBLAS_STATUS_INVALID_VALUE ||
        err == CUBLAS_STATUS_ARCH_MISMATCH)
        return HTH_GPU_NO_FUSION;
    return (int)err;
}
