/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blas.c: matrix products by OpenBLAS, loaded at run time, one thread per call.
 *
 * OpenBLAS does not promise that a row of A gives the same row of C for any M, and three of its
 * properties break that (0.3.21, measured):
 *
 *   - The FMA kernels of core types Haswell and Zen sum in an order that depends on the row's place
 *     in a tile of 12. Padding does not help: these core types are never chosen.
 *   - SkylakeX (and Cooperlake) use other kernels for small products: `direct` ones for row-major
 *     NN with beta = 0, and `small matrix` ones where M N K <= 100^3. So products are given in
 *     column-major form (C^T = B^T A^T), which has no direct kernel, and a product that is too
 *     small is padded with zero rows until M N K > 100^3: at most a million multiply-adds, some
 *     10 us.
 *   - For tiny weights (N K < 32768) padding would cost more than the product: they use our own
 *     loops. The choice depends on N and K only, never on M.
 *
 * The choice is SkylakeX where the CPU has AVX-512 (on Zen 5 it is twice as fast as Haswell at 2048
 * rows, on Zen 4 5 % slower; at 1 row it takes 1.6 times as long), else Sandybridge (plain AVX: on
 * Zen CPUs as fast as FMA, as they add and multiply in separate pipes; half the peak on Intel's),
 * else OpenBLAS's own choice. Each is used only after a self-check with real products.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/cpu_int.h"

/* Values of the CBLAS interface. */
enum { CBLAS_COL_MAJOR = 102, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };

typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                      const float *a, int lda, const float *b, int ldb, float beta, float *c,
                      int ldc);

/* Below this N K our own loops compute the product. */
#define OWN_WEIGHT_MAX 32768
/* Below this N or K, too: OpenBLAS has no advantage on thin matrices, and padding them is
 * expensive. */
#define OWN_SIDE_MAX 16
/* OpenBLAS uses its small-matrix kernels up to this M N K. */
#define SMALL_PRODUCT 1000000

/* Written by the one thread that loads, read by all once `stage` is LOADED. */
enum { UNTRIED, LOADING, LOADED };
static struct {
    atomic_int stage;
    enum hth_err err;
    char detail[160];
    sgemm_fn *sgemm;
} blas;
struct hth_cpu hth_cpu_blas;

static bool own_loops(size_t n, size_t k)
{
    return n < OWN_SIDE_MAX || k < OWN_SIDE_MAX || n * k < OWN_WEIGHT_MAX;
}

static size_t rows_min(size_t n, size_t k)
{
    return SMALL_PRODUCT / (n * k) + 1;
}

/* Row-major C = A B is column-major C^T = B^T A^T, so B goes first and m and n change places. */
static void sgemm(const struct hth_gemm *g)
{
    int trans_b = g->form == HTH_GEMM_NT ? CBLAS_TRANS : CBLAS_NO_TRANS;
    int trans_a = g->form == HTH_GEMM_TN ? CBLAS_TRANS : CBLAS_NO_TRANS;
    blas.sgemm(CBLAS_COL_MAJOR, trans_b, trans_a, (int)g->n, (int)g->m, (int)g->k, 1.0f, g->b,
               (int)g->ldb, g->a, (int)g->lda, g->accumulate ? 1.0f : 0.0f, g->c, (int)g->ldc);
}

/* The product with zero rows below A, so that it is large enough for the common kernels. */
static enum hth_err sgemm_padded(struct hth_exec *ex, const struct hth_gemm *g, size_t rows)
{
    size_t mark = hth_exec_mark(ex);
    float *a = hth_exec_take(ex, rows * g->k * sizeof(float));
    float *c = hth_exec_take(ex, rows * g->n * sizeof(float));
    if (a == NULL || c == NULL) {
        hth_exec_release(ex, mark);
        return HTH_E_NO_MEMORY;
    }
    for (size_t r = 0; r < g->m; r++) {
        memcpy(a + r * g->k, g->a + r * g->lda, g->k * sizeof(float));
        if (g->accumulate)
            memcpy(c + r * g->n, g->c + r * g->ldc, g->n * sizeof(float));
    }
    memset(a + g->m * g->k, 0, (rows - g->m) * g->k * sizeof(float));
    if (g->accumulate)
        memset(c + g->m * g->n, 0, (rows - g->m) * g->n * sizeof(float));
    struct hth_gemm wide = *g;
    wide.m = (uint32_t)rows;
    wide.a = a;
    wide.lda = g->k;
    wide.c = c;
    wide.ldc = g->n;
    sgemm(&wide);
    for (size_t r = 0; r < g->m; r++)
        memcpy(g->c + r * g->ldc, c + r * g->n, g->n * sizeof(float));
    hth_exec_release(ex, mark);
    return HTH_OK;
}

static enum hth_err blas_gemm(struct hth_exec *ex, const struct hth_gemm *g)
{
    if (g->form == HTH_GEMM_TN) {
        /* A sum over rows: no row has to match another batch's, so only the shape decides. */
        if ((size_t)g->n * g->m < OWN_WEIGHT_MAX)
            hth_cpu_blas.row->gemm(g);
        else
            sgemm(g);
        return HTH_OK;
    }
    if (own_loops(g->n, g->k)) {
        hth_cpu_blas.row->gemm(g);
        return HTH_OK;
    }
    size_t rows = rows_min(g->n, g->k);
    if (g->m < rows)
        return sgemm_padded(ex, g, rows);
    sgemm(g);
    return HTH_OK;
}

static size_t blas_gemm_scratch(size_t n, size_t k)
{
    if (own_loops(n, k))
        return 0;
    size_t rows = rows_min(n, k);
    return hth_exec_cost(rows * k * sizeof(float)) + hth_exec_cost(rows * n * sizeof(float));
}

/* -- choosing a core type ------------------------------------------------------------------ */

#define CHECK_ROWS 61

/* True if every batch of the list, cut from the long one at some row, repeats its bits. */
static bool same_rows(struct hth_exec *ex, struct hth_gemm all, float *c)
{
    static const uint32_t batches[] = {1, 2, 3, 5, 8, 13, 32, 60};
    for (size_t i = 0; i < HTH_ARRAY_LEN(batches); i++) {
        struct hth_gemm part = all;
        size_t first = (7 * i) % (CHECK_ROWS - batches[i] + 1);
        part.m = batches[i];
        part.a = all.a + first * all.lda;
        part.c = c;
        if (blas_gemm(ex, &part) != HTH_OK ||
            memcmp(c, all.c + first * all.ldc, part.m * all.ldc * sizeof(float)) != 0)
            return false;
    }
    return true;
}

/* Compares rows of a few shapes on both sides of the thresholds, forward and backward. */
static bool self_check(void)
{
    static const uint32_t shapes[][2] = {{64, 512}, {512, 64}, {100, 330}, {333, 101}, {1000, 512}};
    size_t area = (size_t)CHECK_ROWS * 1000, weight = (size_t)1000 * 512;
    bool good = false;
    struct hth_exec *ex = NULL;
    float *a = hth_try_aligned((3 * area + weight) * sizeof(float));
    if (a == NULL || hth_exec_new(&hth_cpu_blas_backend, 4 * area * sizeof(float), &ex) != HTH_OK)
        goto out;
    float *b = a + area, *c = b + weight, *d = c + area;
    /* The values only need full mantissas: a Weyl sequence in [-1/2, 1/2). */
    for (size_t i = 0; i < area + weight; i++)
        a[i] = (float)((uint32_t)i * UINT32_C(2654435769) >> 8) * 0x1p-24f - 0.5f;
    good = true;
    for (size_t s = 0; s < HTH_ARRAY_LEN(shapes) && good; s++) {
        uint32_t k = shapes[s][0], n = shapes[s][1];
        for (int nt = 0; nt < 2 && good; nt++) {
            struct hth_gemm g = {.form = nt ? HTH_GEMM_NT : HTH_GEMM_NN,
                                 .m = CHECK_ROWS,
                                 .n = n,
                                 .k = k,
                                 .a = a,
                                 .lda = k,
                                 .b = b,
                                 .ldb = nt ? k : n,
                                 .c = c,
                                 .ldc = n};
            good = blas_gemm(ex, &g) == HTH_OK && same_rows(ex, g, d);
        }
    }
out:
    hth_exec_free(ex);
    hth_aligned_free(a);
    return good;
}

/* Loads the library as if on `core` (NULL: its own choice); keeps it if the self-check passes. */
static bool try_core(const char *library, const char *core)
{
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    if (core != NULL)
        setenv("OPENBLAS_CORETYPE", core, 1);
    else
        unsetenv("OPENBLAS_CORETYPE");
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *why = dlerror();
        snprintf(blas.detail, sizeof(blas.detail), "%s", why != NULL ? why : "dlopen failed");
        return false;
    }
    char *(*corename)(void) = (char *(*)(void))dlsym(handle, "openblas_get_corename");
    void (*set_threads)(int) = (void (*)(int))dlsym(handle, "openblas_set_num_threads");
    blas.sgemm = (sgemm_fn *)dlsym(handle, "cblas_sgemm");
    const char *name = corename != NULL ? corename() : "unknown";
    if (blas.sgemm == NULL || set_threads == NULL) {
        snprintf(blas.detail, sizeof(blas.detail), "%s is not OpenBLAS", library);
    } else {
        set_threads(1);
        if (self_check()) {
            snprintf(blas.detail, sizeof(blas.detail), "%s, core type %s", library, name);
            return true;
        }
        snprintf(blas.detail, sizeof(blas.detail),
                 "%s, core type %s: not used, a row's bits depend on its batch", library, name);
    }
    dlclose(handle);
    return false;
}

static bool cpu_has(const char *what)
{
#if defined(__x86_64__)
    if (strcmp(what, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    return __builtin_cpu_supports("avx");
#else
    (void)what;
    return false;
#endif
}

static void blas_load(const struct hth_blas_options *options)
{
    const char *library = options->library != NULL ? options->library : "libopenblas.so.0";
    const struct hth_rowops *fast = hth_rowops_fast();
    hth_cpu_blas = (struct hth_cpu){
        .row = fast != NULL ? fast : &hth_rowops_ref,
        .gemm = blas_gemm,
        .gemm_scratch = blas_gemm_scratch,
        /* rows_min (n + k) with n k >= OWN_WEIGHT_MAX is largest where one side is smallest. */
        .gemm_scratch_max = blas_gemm_scratch(OWN_SIDE_MAX, HTH_SEQ_MAX) +
                            blas_gemm_scratch(OWN_SIDE_MAX, OWN_WEIGHT_MAX / OWN_SIDE_MAX),
    };
    bool good;
    if (options->core_type != NULL) {
        good = try_core(library, options->core_type);
    } else {
        good = (cpu_has("avx512") && try_core(library, "SkylakeX")) ||
               (cpu_has("avx") && try_core(library, "Sandybridge")) || try_core(library, NULL);
    }
    blas.err = good ? HTH_OK : HTH_E_UNSUPPORTED;
}

enum hth_err hth_backend_blas(const struct hth_blas_options *options,
                              const struct hth_backend **out)
{
    const struct hth_blas_options defaults = HTH_BLAS_OPTIONS_INIT;
    int stage = UNTRIED;
    if (atomic_compare_exchange_strong(&blas.stage, &stage, LOADING)) {
        blas_load(options != NULL ? options : &defaults);
        atomic_store(&blas.stage, LOADED);
    }
    /* Another thread loads the library, once in a process for some 10 ms. It spins: kernels/ has no
     * locks. */
    while (atomic_load(&blas.stage) != LOADED)
        continue;
    if (blas.err == HTH_OK)
        *out = &hth_cpu_blas_backend;
    return blas.err;
}

void hth_blas_describe(char *buf, size_t size)
{
    bool known = atomic_load(&blas.stage) == LOADED;
    snprintf(buf, size, "%s", known ? blas.detail : "not loaded yet");
}
